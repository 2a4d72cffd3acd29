// The image that an answer was read from: the map of the chosen tokens, and the share of the patch under the mouse.
import { colourOf } from "./color.js";
import { numbersOf } from "./data.js";
import { drawnShape, element } from "./dom.js";

const exactShare = (value) => `${(100 * value).toPrecision(Math.abs(value) < 0.1 ? 2 : 3)}\u00a0%`;

/**
 * @typedef {{grid: [number, number], size: [number, number], labels: string[], picture: string | null,
 *   shares: import("./data.js").Grid}} AnswerImage
 * @param {AnswerImage} image @param {boolean} signed
 */
export function answerImageOf(image, signed) {
  const [rows, columns] = image.grid;
  const shares = numbersOf(image.shares);
  const heat = /** @type {HTMLCanvasElement} */ (element("canvas", { class: "wf-heat", width: columns, height: rows, "aria-hidden": "true" }));
  const pen = /** @type {CanvasRenderingContext2D} */ (heat.getContext("2d"));
  const frame = element("i", { class: "wf-patch" });
  const stage = element("div", {
    class: "wf-stage", tabindex: "0", role: "application",
    "aria-label": `image, ${rows} × ${columns} patches: arrow keys move`,
    style: { aspectRatio: `${image.size[1]} / ${image.size[0]}` },
  }, image.picture ? element("img", { src: image.picture, alt: "the image of the prompt" }) : null, heat, frame);
  const words = element("p", { class: "wf-note", "aria-live": "polite" });
  heat.style.opacity = image.picture ? "0.6" : "1";
  let values = new Float32Array(rows * columns);
  let [name, here] = ["", -1];

  const describe = () => {
    frame.style.display = here < 0 ? "none" : "block";
    if (here >= 0) {
      Object.assign(frame.style, {
        top: `${(100 * Math.floor(here / columns)) / rows}%`, left: `${(100 * (here % columns)) / columns}%`,
        width: `${100 / columns}%`, height: `${100 / rows}%`,
      });
      words.textContent = `${name} \u2190 ${image.labels[here]}: ${exactShare(values[here])}`;
      return;
    }
    const best = values.reduce((most, value, i) => (Math.abs(value) > Math.abs(values[most]) ? i : most), 0);
    const whole = values.reduce((sum, value) => sum + value, 0);
    words.textContent = `${name} \u2190 image ${exactShare(whole)}, strongest: ${image.labels[best]}, ${exactShare(values[best])}`;
  };
  /** The mean map of some tokens of the answer. @param {number} first @param {number} end @param {string} chosen */
  const draw = (first, end, chosen) => {
    name = chosen;
    values = new Float32Array(rows * columns);
    for (let t = first; t < end; t++) values.forEach((_, p) => { values[p] += shares[t * rows * columns + p] / (end - first); });
    const reach = values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
    const pixels = pen.createImageData(columns, rows);
    values.forEach((value, p) => pixels.data.set([...colourOf({ reach, low: 0, signed }, value, true), 255], 4 * p));
    pen.putImageData(pixels, 0, 0);
    describe();
  };
  /** Patch under the mouse. @param {MouseEvent} event @param {Element} box */
  const under = (event, box) => {
    const { left, top, width, height } = box.getBoundingClientRect();
    const [row, column] = [Math.floor(((event.clientY - top) / height) * rows), Math.floor(((event.clientX - left) / width) * columns)];
    return row >= 0 && row < rows && column >= 0 && column < columns ? row * columns + column : -1;
  };
  const point = (patch) => { here = patch; describe(); };
  stage.addEventListener("pointermove", (event) => point(under(event, stage)));
  stage.addEventListener("pointerleave", () => point(-1));
  stage.addEventListener("blur", () => point(-1));
  stage.addEventListener("keydown", (event) => {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const at = Math.max(here, 0);
    const [row, column] = [Math.floor(at / columns) + moves[event.key][0], (at % columns) + moves[event.key][1]];
    if (row >= 0 && row < rows && column >= 0 && column < columns) point(row * columns + column);
  });
  /** Still pictures of parts of the answer respond, too: `choose` shows the part. @param {SVGElement} still */
  const follow = (still, choose, leave) => {
    const [wide, high] = (still.getAttribute("viewBox") ?? "").split(" ").slice(2).map(Number);
    const outline = drawnShape("rect", { width: wide / columns, height: high / rows, class: "wf-outline", visibility: "hidden" });
    const note = element("p", { class: "wf-note" }, "\u00a0");
    still.append(outline);
    still.after(note);
    still.addEventListener("pointerenter", choose);
    still.addEventListener("pointermove", (event) => {
      const patch = under(event, still);
      point(patch);
      outline.setAttribute("visibility", patch < 0 ? "hidden" : "visible");
      if (patch < 0) return;
      outline.setAttribute("x", String(((patch % columns) * wide) / columns));
      outline.setAttribute("y", String((Math.floor(patch / columns) * high) / rows));
      note.textContent = `${image.labels[patch]}: ${exactShare(values[patch])}`;
    });
    still.addEventListener("pointerleave", () => {
      outline.setAttribute("visibility", "hidden");
      note.textContent = "\u00a0";
      point(-1);
      leave();
    });
  };
  return { node: element("div", { class: "wf-answer-image" }, element("div", { class: "wf-window" }, stage), words), draw, follow };
}
