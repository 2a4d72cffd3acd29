// Many rows of one table: a dot per row and column, at its score, coloured by the value that stood there.
import { element } from "./dom.js";
import { isDark } from "./color.js";
import { number } from "./data.js";

const HIGH = 34;  // of one column
const MOST_COLUMNS = 20;
const RADIUS = 3.2;

/**
 * @typedef {{kind: string, labels: string[], values: string[][], scores: number[][], names: string[]}} Rows
 * @param {Rows} data
 */
export function beeswarmOf(data) {
  const size = (column) => data.scores.reduce((sum, row) => sum + Math.abs(row[column]), 0);
  const order = data.labels.map((_, i) => i).sort((a, b) => size(b) - size(a)).slice(0, MOST_COLUMNS);
  const reach = Math.max(...data.scores.flatMap((row) => order.map((c) => Math.abs(row[c]))), 1e-30);
  const [left, wide] = [170, 760];
  const high = HIGH * order.length + 30;
  const canvas = /** @type {HTMLCanvasElement} */ (element("canvas", {
    class: "wf-matrix", role: "application", tabindex: "0",
    "aria-label": `scores of ${data.scores.length} rows, one line of dots per column (${order.map((c) => data.labels[c]).join(", ")}): up and down change the column, left and right the row`,
    style: { width: `${wide}px`, maxWidth: "100%", aspectRatio: `${wide} / ${high}` },
  }));
  [canvas.width, canvas.height] = [2 * wide, 2 * high];
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const across = (score) => left + (wide - left - 12) * (0.5 + score / reach / 2);
  const dots = order.flatMap((column, line) => {
    const ranks = ranksOf(data.values.map((row) => row[column]));
    /** @type {Map<number, number>} */
    const stacked = new Map();
    return data.scores.map((row, number_) => {
      const x = across(row[column]);
      const bin = Math.round(x / (2 * RADIUS));
      const count = stacked.get(bin) ?? 0;
      stacked.set(bin, count + 1);
      const off = (count % 2 ? -1 : 1) * Math.ceil(count / 2) * RADIUS;
      const y = HIGH * (line + 0.5) + Math.max(-HIGH / 2 + RADIUS, Math.min(HIGH / 2 - RADIUS, off));
      return { x, y, column, row: number_, rank: ranks[number_] };
    });
  });
  const paint = (chosen) => {
    pen.setTransform(2, 0, 0, 2, 0, 0);
    pen.clearRect(0, 0, wide, high);
    pen.font = "13px system-ui, sans-serif";
    const ink = isDark() ? "#c9d1d9" : "#1b1f24";
    pen.strokeStyle = isDark() ? "#3d444d" : "#d8dde3";
    pen.beginPath();
    pen.moveTo(across(0), 0);
    pen.lineTo(across(0), high - 24);
    order.forEach((_, line) => { pen.moveTo(left, HIGH * (line + 0.5)); pen.lineTo(wide - 12, HIGH * (line + 0.5)); });
    pen.stroke();
    pen.fillStyle = ink;
    order.forEach((column, line) => {
      const label = data.labels[column];
      pen.textAlign = "right";
      pen.fillText(label.length > 22 ? `${label.slice(0, 21)}…` : label, left - 8, HIGH * (line + 0.5) + 4);
    });
    pen.textAlign = "center";
    for (const score of [-reach, 0, reach]) {
      pen.textAlign = score < 0 ? "left" : score > 0 ? "right" : "center";
      pen.fillText(number(score), across(score), high - 8);
    }
    for (const dot of dots) {
      pen.beginPath();
      pen.arc(dot.x, dot.y, chosen !== null && dot.row === chosen ? RADIUS + 2 : RADIUS, 0, 7);
      pen.fillStyle = dot.rank === null ? "#8a929b" : mixed(dot.rank);
      pen.globalAlpha = chosen !== null && dot.row !== chosen ? 0.35 : 0.85;
      pen.fill();
    }
    pen.globalAlpha = 1;
  };
  const said = element("p", { class: "wf-said-unit", "aria-live": "polite" }, "Hover a dot to mark its row in every column; click to go to the row; arrow keys move.");
  const tell = (row, column) => {
    paint(row);
    const value = data.values[row][column];
    said.textContent = `${data.names[row]} · ${data.labels[column]}${value ? ` = ${value}` : ""}: ${number(data.scores[row][column])}`;
  };
  /** Rows are drawn one by one below; not all of many. @param {number} row */
  const goTo = (row) => {
    const headings = [...document.querySelectorAll(".wf-view > h2")];
    const heading = headings.find((each) => /^[:,]/.test((each.textContent ?? "").replace(data.names[row], "")));
    heading?.querySelector("button[aria-expanded=false]")?.click();
    heading?.scrollIntoView({ behavior: "smooth", block: "start" });
  };
  let [line_, row_] = [0, -1];
  canvas.addEventListener("keydown", (event) => {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (event.key === "Escape") paint(null);
    if (event.key === "Enter" && row_ >= 0) goTo(row_);
    if (!(event.key in moves)) return;
    event.preventDefault();
    const [down, right] = moves[event.key];
    line_ = Math.max(0, Math.min(order.length - 1, line_ + (row_ < 0 ? 0 : down)));
    row_ = Math.max(0, Math.min(data.scores.length - 1, row_ < 0 ? 0 : row_ + right));
    tell(row_, order[line_]);
  });
  const under = (event) => {
    const box = canvas.getBoundingClientRect();
    const [x, y] = [((event.clientX - box.left) / box.width) * wide, ((event.clientY - box.top) / box.height) * high];
    let best = null;
    let least = 64;
    for (const dot of dots) {
      const far = (dot.x - x) ** 2 + (dot.y - y) ** 2;
      if (far < least) [best, least] = [dot, far];
    }
    return best;
  };
  canvas.addEventListener("pointermove", (event) => {
    const dot = under(event);
    if (dot) tell(dot.row, dot.column); else paint(null);
  });
  canvas.addEventListener("click", (event) => {
    const dot = under(event);
    if (dot) goTo(dot.row);
  });
  canvas.addEventListener("pointerleave", () => paint(null));
  paint(null);
  const left_out = data.labels.length - order.length;
  const key = element("p", { class: "wf-note" }, element("span", { class: "wf-values" }), "low to high value of the column · grey: no number",
    left_out > 0 ? ` · ${left_out} weaker columns are not drawn` : "");
  return { node: element("div", {}, said, canvas, key), repaint: () => paint(null) };
}

/** Each value's place among all, 0 to 1; null for what is no number. @param {string[]} values */
function ranksOf(values) {
  const numbers = values.map((value) => (value.trim() === "" ? NaN : Number(value)));
  const sorted = numbers.filter((n) => !Number.isNaN(n)).sort((a, b) => a - b);
  return numbers.map((n) => (Number.isNaN(n) ? null : sorted.length > 1 ? sorted.indexOf(n) / (sorted.length - 1) : 0.5));
}

/** @param {number} rank */
function mixed(rank) {
  const [low, high] = [[58, 134, 192], [217, 112, 20]];
  return `rgb(${low.map((v, i) => Math.round(v + (high[i] - v) * rank)).join(" ")})`;
}
