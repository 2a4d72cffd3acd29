// Layers × heads: a small map of every head; one that is clicked is drawn large, with the words that attend.
import { colourOf } from "./color.js";
import { number } from "./data.js";
import { element } from "./dom.js";

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

/** @param {any} about @returns {HTMLElement} */
export function headsOf(about) {
  const large = element("div", { class: "sv-large", "aria-live": "polite" });
  const most = Math.max(1e-12, ...(about.importance ?? []).flat().map((v) => Math.abs(v ?? 0)));

  function enlarge(layer, l, head) {
    const whole = layer.columns === about.labels.length && layer.rows === about.labels.length;
    const canvas = headCanvas(layer, head, 360);
    const words = element("p", { class: "wf-note" }, whole ? "Point at a cell: who attends to whom." : "Neighbours share a cell.");
    const cells = cellsOf(layer, head);
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      const row = Math.min(layer.rows - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * layer.rows)));
      const column = Math.min(layer.columns - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * layer.columns)));
      const weight = (cells[row * layer.columns + column] / 255) * layer.highest[head];
      const name = (at) => (whole ? about.labels[at] : `cell ${at}`);
      words.textContent = `${name(row)} attends to ${name(column)}: ${number(weight)}`;
    });
    const share = about.importance ? `, importance ${number(about.importance[l][head] ?? 0)}` : "";
    large.replaceChildren(element("h3", {}, `layer ${l}, head ${head}`),
      element("p", { class: "wf-note" }, `highest weight ${number(layer.highest[head])}, mean entropy ${number(layer.entropy[head])}${share}`), canvas, words);
  }

  const rows = about.layers.map((layer, l) => element("div", { class: "sv-heads-row" }, element("span", { class: "wf-note" }, `layer ${l}`),
    ...Array.from({ length: layer.heads }, (_, head) => {
      const weight = about.importance ? Math.abs(about.importance[l][head] ?? 0) / most : 0;
      return element("button", { type: "button", class: "sv-head-button", "aria-label": `layer ${l}, head ${head}`, onclick: () => enlarge(layer, l, head) },
        headCanvas(layer, head, 56), element("i", { class: "sv-weight", style: { width: `${100 * weight}%` } }));
    })));
  const words = about.importance
    ? "Rows attend to columns. The bar under a head is how far the explained score depends on it (gradient), next to the strongest."
    : "Rows attend to columns.";
  return element("div", { class: "sv-heads" }, element("div", { class: "sv-heads-grid" }, ...rows), large, element("p", { class: "wf-note" }, words));
}
