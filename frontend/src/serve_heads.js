// Layers × heads: a small map of every head; one that is clicked is drawn large, with the words that attend.
import { linesBetween, MOST_JOINED } from "./attention_lines.js";
import { colourOf } from "./color.js";
import { number } from "./data.js";
import { element } from "./dom.js";
import { legendLine } from "./legend.js";
import { stateOf } from "./state.js";

/** @param {any} layer @param {number} head */
function cellsOf(layer, head) {
  const size = layer.rows * layer.columns;
  const bytes = Uint8Array.from(atob(layer.data).slice(head * size, (head + 1) * size), (c) => c.charCodeAt(0));
  return bytes;
}

/** @param {any} layer @param {number} head @param {number} side */
function headCanvas(layer, head, side) {
  const canvas = /** @type {HTMLCanvasElement} */ (element("canvas", { class: "sv-head", width: layer.columns, height: layer.rows, style: { width: `${side}px`, height: `${(side * layer.rows) / layer.columns}px` } }));
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const pixels = pen.createImageData(layer.columns, layer.rows);
  cellsOf(layer, head).forEach((value, i) => {
    pixels.data.set([...colourOf({ reach: 255, low: 0, signed: false }, value), 255], 4 * i);
  });
  pen.putImageData(pixels, 0, 0);
  return canvas;
}

const MOST_NAMES = 48;  // that are written beside a map
const LARGE = 360;  // pixels
const LARGEST_CELL = 32;

/** The names of rows and columns beside a map, where there is room for them. */
function namedMap(canvas, names, side) {
  if (!names || names.length > MOST_NAMES) return canvas;
  const cell = side / names.length;
  const size = { fontSize: `${Math.max(8, Math.min(12, cell * 0.9))}px` };
  const left = element("div", { class: "sv-rows", style: size, "aria-hidden": "true" }, ...names.map((name) => element("span", { style: { height: `${cell}px`, lineHeight: `${cell}px` } }, name)));
  const top = element("div", { class: "sv-columns-of", style: size, "aria-hidden": "true" }, ...names.map((name) => element("span", { style: { width: `${cell}px` } }, element("b", {}, name))));
  return element("div", { class: "sv-named" }, element("i", {}), top, left, canvas);
}

/** @param {Uint8Array} cells @param {number} high @param {string[]} names */
function joinedOf(cells, high, names) {
  const state = stateOf({});
  const { node, mark } = linesBetween(names, Float32Array.from(cells, (cell) => (cell / 255) * high), state);
  state.listen(mark);
  return node;
}

/** @param {any} about @param {(() => void)[]} repaints @returns {HTMLElement} */
export function headsOf(about, repaints) {
  const large = element("div", { class: "sv-large", role: "group", "aria-label": "the chosen head", tabindex: "0" });
  const most = Math.max(1e-12, ...(about.importance ?? []).flat().map((v) => Math.abs(v ?? 0)));
  let chosen = [0, 0];

  function enlarge(l, head) {
    chosen = [l, head];
    const layer = about.layers[l];
    const names = layer.whole && layer.names !== null ? about.names[layer.names] : null;
    const side = Math.min(LARGE, LARGEST_CELL * layer.columns);
    const canvas = headCanvas(layer, head, side);
    const words = element("p", { class: "wf-note" }, layer.whole ? "Rows attend to columns. Hover a cell for its weight." : "Neighbours share a cell.");
    const cells = cellsOf(layer, head);
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      const row = Math.min(layer.rows - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * layer.rows)));
      const column = Math.min(layer.columns - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * layer.columns)));
      const weight = (cells[row * layer.columns + column] / 255) * layer.highest[head];
      const name = (at) => names?.[at] ?? (layer.whole ? `position ${at}` : `cell ${at}`);
      words.textContent = `${name(row)} attends to ${name(column)}: ${number(weight)}`;
    });
    const share = about.importance ? `, importance ${number(about.importance[l][head] ?? 0)}` : "";
    const high = layer.highest[head];
    const legend = legendLine({ reach: high, low: 0, signed: false }, "attention weight");
    const joined = layer.whole && layer.rows === layer.columns && layer.rows <= MOST_JOINED ? joinedOf(cells, high, names ?? Array.from({ length: layer.rows }, (_, i) => `position ${i}`)) : null;
    large.replaceChildren(element("h3", {}, `layer ${l}, head ${head}${layer.stream ? ` (${layer.stream})` : ""}`),
      element("p", { class: "wf-note" }, `highest weight ${number(layer.highest[head])}, mean entropy ${number(layer.entropy[head])}${share}`), element("div", { class: "wf-beside" }, joined, element("div", {}, namedMap(canvas, names, side), legend, words)));
  }
  const grid = element("div", { class: "sv-heads-grid", role: "group", "aria-label": "all heads", tabindex: "0" });
  function draw() {
    grid.replaceChildren(...about.layers.map((layer, l) => element("div", { class: "sv-heads-row" }, element("span", { class: "wf-note" }, `layer ${l}${layer.stream ? ` ${layer.stream}` : ""}`),
      ...Array.from({ length: layer.heads }, (_, head) => {
        const weight = about.importance ? Math.abs(about.importance[l][head] ?? 0) / most : 0;
        return element("button", { type: "button", class: "sv-head-button", "aria-label": `layer ${l}, head ${head}`, onclick: () => enlarge(l, head) },
          headCanvas(layer, head, 56), element("i", { class: "sv-weight", style: { width: `${100 * weight}%` } }));
      }))));
    enlarge(...chosen);
  }
  draw();
  repaints.push(draw);  // colours of the theme are in the canvases
  const words = about.importance
    ? "Attention of every head: click one to enlarge it. Bar under a head: importance for the explained value (gradient), relative to the largest."
    : "Attention of every head: click one to enlarge it.";
  return element("div", { class: "sv-heads" }, element("p", { class: "wf-note" }, words), element("div", { class: "sv-heads-both" }, grid, large));
}
