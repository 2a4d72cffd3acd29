// A map from tokens to tokens: drawn on a canvas, whatever its size; the row of one token as a list beside it.
import { css, isDark, paintScores } from "./color.js";
import { columnOf, nounOf, number, numbersOf, pluralOf } from "./data.js";
import { element } from "./dom.js";
import { track } from "./bars.js";
import { legendLine } from "./legend.js";

const MOST_LABELS = 40;
const LONGEST_LABEL = 14;
const MOST_IN_ROW = 12;

/** @param {string} label */
function short(label) {
  return label.length <= LONGEST_LABEL ? label : `${label.slice(0, LONGEST_LABEL - 1)}…`;
}

/**
 * @param {import("./data.js").Data} data @param {import("./data.js").ScoreMap} map
 * @param {{state: any, several: boolean, marks: (() => void)[], attention?: boolean}} context `attention`: weights, whose diagonal is like all others
 */
export function matrixOf(data, map, context) {
  const { state } = context;
  const layer = state.choices.layer;
  const grid = /** @type {import("./data.js").Grid} */ (layer >= 0 && map.layers ? map.layers[layer] : map.matrix ?? map.layers?.[0]);
  const values = numbersOf(grid);
  const units = data.units.labels.length;
  const perColumn = units / grid.columns;  // more than one: neighbours stand together
  const perRow = grid.rows > 1 ? units / grid.rows : units;
  const labelled = grid.columns <= MOST_LABELS && perColumn === 1;
  const scale = scaleOfGrid(data, grid, values, map.signed, Boolean(context.attention));
  const cell = labelled ? 20 : Math.max(1, Math.floor(480 / Math.max(grid.columns, grid.rows)));
  const rowNames = labelled && grid.rows === units ? data.units.labels.map(short) : [];
  const left = rowNames.length ? 8 * Math.max(...rowNames.map((l) => l.length)) + 8 : 2;
  const top = labelled ? 8 * Math.max(...data.units.labels.map((l) => short(l).length)) * 0.8 + 12 : 2;
  const [wide, high] = [left + cell * grid.columns + (labelled ? 40 : 2), top + cell * grid.rows + 2];
  const canvas = /** @type {HTMLCanvasElement} */ (element("canvas", {
    class: "wf-matrix", tabindex: "0", role: "application",
    "aria-label": `map of ${grid.rows} × ${grid.columns}, ${map.name}: the up and down keys choose a row, which is listed beside it`,
    style: { width: `${wide}px`, maxWidth: "100%", aspectRatio: `${wide} / ${high}` },
  }));
  const cells = document.createElement("canvas");
  [cells.width, cells.height] = [grid.columns, grid.rows];
  const small = /** @type {CanvasRenderingContext2D} */ (cells.getContext("2d"));
  const pixels = small.createImageData(grid.columns, grid.rows);
  paintScores(scale, values, pixels.data);
  const own = grid.rows === grid.columns ? Array.from({ length: grid.rows }, (_, i) => values[i * grid.columns + i]).filter((value) => Math.abs(value) > scale.reach * 1.0001) : [];
  if (own.length) {  // the diagonal is beyond the scale: in colour it would look like the largest value
    for (let i = 0; i < grid.rows; i++) {
      const at = i * grid.columns + i;
      if (Math.abs(values[at]) > scale.reach * 1.0001) pixels.data.set(isDark() ? [61, 68, 77, 255] : [224, 224, 224, 255], 4 * at);
    }
  }
  small.putImageData(pixels, 0, 0);
  const density = 2;
  [canvas.width, canvas.height] = [wide * density, high * density];
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const paint = (row) => {
    pen.setTransform(density, 0, 0, density, 0, 0);
    pen.clearRect(0, 0, wide, high);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(cells, left, top, cell * grid.columns, cell * grid.rows);
    pen.strokeStyle = isDark() ? "#3d444d" : "#d8dde3";
    pen.strokeRect(left, top, cell * grid.columns, cell * grid.rows);
    pen.font = "12px system-ui, sans-serif";
    rowNames.forEach((label, i) => {
      pen.fillStyle = i === row ? css(isDark() ? [140, 203, 247] : [33, 102, 172]) : isDark() ? "#c9d1d9" : "#1b1f24";
      pen.textAlign = "right";
      pen.fillText(label, left - 5, top + (i + 0.7) * cell);
    });
    if (labelled) {
      data.units.labels.forEach((label, i) => {
        pen.save();
        pen.translate(left + (i + 0.65) * cell, top - 5);
        pen.rotate(-0.95);
        pen.textAlign = "left";
        pen.fillStyle = isDark() ? "#c9d1d9" : "#1b1f24";
        pen.fillText(short(label), 0, 0);
        pen.restore();
      });
    }
    if (row !== null && grid.rows > 1) {
      pen.strokeStyle = isDark() ? "#fff" : "#000";
      pen.lineWidth = 1.5;
      pen.strokeRect(left, top + row * cell, cell * grid.columns, Math.max(cell, 2));
      pen.lineWidth = 1;
    }
  };
  const said = element("div", { class: "wf-row-of" });
  const names = (from, per) => {
    const [first, last] = [Math.floor(from * per), Math.min(units, Math.ceil((from + 1) * per)) - 1];
    return last > first ? `${data.units.labels[first]} … ${data.units.labels[last]}` : data.units.labels[first];
  };
  const list = (row) => {
    const from = grid.rows === 1 ? "the output" : names(row, perRow);
    const all = Array.from({ length: grid.columns }, (_, column) => ({ column, value: values[row * grid.columns + column] }));
    all.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
    const others = all.filter(({ column }) => !(grid.rows === grid.columns && column === row) && !data.units.special[Math.floor(column * perColumn)]);
    const reach = Math.max(...(others.length ? others : all).map(({ value }) => Math.abs(value)));
    const told = columnOf([reach]);
    said.replaceChildren(element(context.several ? "h4" : "h3", {}, context.attention ? `${from} attends to` : `Relevance for ${from}`), element("div", { class: "wf-lines" },
      ...all.slice(0, MOST_IN_ROW).map(({ column, value }) => element("div", { class: "wf-line" },
        element("span", { class: "wf-label", dir: "auto" }, names(column, perColumn)),
        element("span", { class: "wf-number" }, told(value)),
        track(value, { ...scale, low: 0, reach }, !others.some((other) => other.column === column))))));
  };
  const rowOf = (unit) => Math.min(grid.rows - 1, Math.floor(unit / perRow));
  const under = (event) => {
    const box = canvas.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * wide - left;
    const y = ((event.clientY - box.top) / box.height) * high - top;
    const [row, column] = [Math.floor(y / cell), Math.floor(x / cell)];
    return row >= 0 && row < grid.rows && column >= 0 && column < grid.columns ? [row, column] : null;
  };
  canvas.addEventListener("pointermove", (event) => {
    const at = under(event);
    if (grid.rows > 1 && !state.choices.pinned) state.set({ unit: at ? Math.floor(at[0] * perRow) : null });
    canvas.title = at ? `${grid.rows === 1 ? "output" : names(at[0], perRow)} → ${names(at[1], perColumn)}: ${number(values[at[0] * grid.columns + at[1]])}` : "";
  });
  canvas.addEventListener("click", (event) => {
    const at = under(event);
    if (at && grid.rows > 1) state.set({ unit: Math.floor(at[0] * perRow), pinned: true });
  });
  canvas.addEventListener("pointerleave", () => { if (!state.choices.pinned) state.set({ unit: null }); });
  canvas.addEventListener("keydown", (event) => {
    const steps = { ArrowDown: 1, ArrowUp: -1 };
    if (event.key === "Escape") state.set({ unit: null, pinned: false });
    if (!(event.key in steps) || grid.rows === 1) return;
    event.preventDefault();
    const row = rowOf(state.choices.unit ?? map.read ?? 0) + (state.choices.unit === null ? 0 : steps[event.key]);
    state.set({ unit: Math.floor(Math.max(0, Math.min(grid.rows - 1, row)) * perRow), pinned: true });
  });
  context.marks.push(() => {
    const chosen = state.choices.unit;
    const row = rowOf(chosen ?? map.read ?? 0);
    paint(row);
    if (chosen !== null) list(row);  // the row that is read is what the bars show
    else said.replaceChildren(element("p", { class: "wf-note" }, grid.rows > 1 ? "Hover a row to list it here." : ""));
  });
  const note = perColumn > 1 ? element("p", { class: "wf-note" }, `${units} ${pluralOf(nounOf(data.units))}: ${Math.ceil(perColumn)} neighbours share a cell (their mean).`) : null;
  const meaning = context.attention ? "attention weight" : scale.signed ? "relevance (orange: below 0, blue: above 0)" : "relevance";
  const largest = own.length ? `; grey: relevance to itself, beyond the scale (up to ${number(own.reduce((most, value) => (Math.abs(value) > Math.abs(most) ? value : most)))})` : "";
  const axes = grid.rows === 1 ? "" : context.attention ? "Rows attend to columns." : "Rows: output positions. Columns: input positions.";
  return element("div", { class: "wf-beside" }, element("div", { class: "wf-canvas" }, canvas, legendLine(scale, meaning + largest), axes ? element("p", { class: "wf-note" }, axes) : null, note), said);
}

/** Special tokens and the diagonal would leave all others white; of attention weights both are on the scale. */
function scaleOfGrid(data, grid, values, signed, whole) {
  const square = grid.rows === grid.columns;
  const exact = grid.columns === data.units.labels.length;
  let reach = 0;
  let least = Infinity;
  values.forEach((value, i) => {
    const [row, column] = [Math.floor(i / grid.columns), i % grid.columns];
    if (!whole && ((square && row === column) || (exact && data.units.special[column]))) return;
    reach = Math.max(reach, Math.abs(value));
    least = Math.min(least, value);
  });
  return { reach: reach || 1, low: 0, signed: signed || least < 0 };
}

