// Who attends to whom: tokens on the left attend to tokens on the right, a line for each weight. The matrix beside it
// shows the same numbers; pages without JavaScript show the matrix alone.
import { drawnShape, element } from "./dom.js";

export const MOST_JOINED = 64;  // tokens that have room for their lines
const MOST_LINES = 1200;
const FAINTEST = 0.04;  // of the largest weight: weaker lines could not be seen
const LINE_HIGH = 20;
const LINES_WIDE = 380;
const LINES_LEFT = 130;
const LINES_RIGHT = 250;
const LONGEST_NAME = 16;

/**
 * @param {string[]} names of tokens @param {ArrayLike<number>} weights row by row @param {any} state its `unit` is the token whose lines alone are shown
 * @returns {{node: HTMLElement, mark: () => void}}
 */
export function linesBetween(names, weights, state) {
  const count = names.length;
  const high = Math.max(...Array.from(weights)) || 1;
  const y = (i) => LINE_HIGH * (i + 1);
  /** @type {number | null} */
  let attended = null;  // the token on the right that the mouse is over
  const all = Array.from(weights, (weight, at) => ({ weight, row: Math.floor(at / count), column: at % count }))
    .filter(({ weight }) => weight >= FAINTEST * high).sort((a, b) => b.weight - a.weight).slice(0, MOST_LINES);
  const lines = all.map(({ weight, row, column }) => drawnShape("line", { x1: LINES_LEFT, y1: y(row), x2: LINES_RIGHT, y2: y(column), "stroke-opacity": (weight / high).toFixed(2) },
    drawnShape("title", {}, `${names[row]} → ${names[column]}: ${weight.toPrecision(3)}`)));
  const short = (name) => (name.length > LONGEST_NAME ? `${name.slice(0, LONGEST_NAME - 1)}…` : name);
  const side = (right) => names.map((name, i) => {
    const text = drawnShape("text", { x: right ? LINES_RIGHT + 6 : LINES_LEFT - 6, y: y(i) + 4, "text-anchor": right ? "start" : "end" }, short(name));
    const place = drawnShape("rect", { x: right ? LINES_RIGHT : 0, y: y(i) - LINE_HIGH / 2, width: LINES_LEFT, height: LINE_HIGH, class: "wf-touch" });
    place.addEventListener("pointerenter", () => {
      if (right) { attended = i; mark(); } else if (!state.choices.pinned) state.set({ unit: i });
    });
    place.addEventListener("pointerleave", () => {
      if (right) { attended = null; mark(); } else if (!state.choices.pinned) state.set({ unit: null });
    });
    if (!right) {
      place.addEventListener("click", () => {
        const held = state.choices.pinned && state.choices.unit === i;
        state.set({ unit: i, pinned: !held });
      });
    }
    return [text, place];
  });
  const [from, to] = [side(false), side(true)];
  const tall = y(count) + 4;
  const svg = drawnShape("svg", { viewBox: `0 0 ${LINES_WIDE} ${tall}`, class: "wf-joined", role: "img", "aria-label": "lines from each token (left) to the tokens it attends to (right); stronger lines: larger weights" },
    drawnShape("g", { class: "wf-joins" }, ...lines), ...[...from, ...to].flat());
  function mark() {
    const unit = attended === null ? state.choices.unit : null;
    lines.forEach((line, i) => {
      const { row, column } = all[i];
      const shown = attended === null ? unit === null || row === unit : column === attended;
      line.style.display = shown ? "" : "none";
    });
    from.forEach(([text], i) => text.classList.toggle("wf-here", i === unit));
    to.forEach(([text], i) => text.classList.toggle("wf-here", i === attended));
  }
  const node = element("figure", { class: "wf-lines-between" }, element("figcaption", { class: "wf-note" },
    "Left attends to right. Hover a token for its lines only; click to pin."), svg);
  return { node, mark };
}
