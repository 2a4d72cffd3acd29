// Patches over their picture: opacity, zoom, and each patch responds to the mouse.
import { colourOf } from "./color.js";
import { scoreOf } from "./data.js";
import { element } from "./dom.js";

/** Units that have a place on the picture, row by row. @param {import("./data.js").Units} units */
export function patchesOf(units) {
  const several = new Set(units.stream).size > 1;
  return units.labels.map((_, i) => i).filter((i) => !units.special[i] && (units.stream[i] === "image" || !several));
}

/** The picture without scores, with its boxes. @param {import("./data.js").Data} data */
export function originalOf(data) {
  return element("div", { class: "wf-window wf-plain" }, element("img", { src: data.picture, alt: "the input image" }), ...framesOf(data));
}

/** Boxes of a detector. @param {import("./data.js").Data} data */
function framesOf(data) {
  return data.frames.map(({ box, label }) => element("span", {
    class: "wf-frame",
    style: { left: `${100 * box[0]}%`, top: `${100 * box[1]}%`, width: `${100 * (box[2] - box[0])}%`, height: `${100 * (box[3] - box[1])}%` },
  }, element("b", {}, label)));
}

/**
 * @param {import("./data.js").Data} data @param {import("./data.js").ScoreMap} map
 * @param {{state: any, shares: boolean, scale: any, marks: (() => void)[], away: () => Set<number>}} context
 */
export function pictureOf(data, map, context) {
  const { state, scale } = context;
  const [rows, columns] = /** @type {[number, number]} */ (data.units.grid);
  const patches = patchesOf(data.units);
  const [height, width] = data.size ?? [rows, columns];
  const heat = /** @type {HTMLCanvasElement} */ (element("canvas", { class: "wf-heat", width: columns, height: rows, "aria-hidden": "true" }));
  const pen = /** @type {CanvasRenderingContext2D} */ (heat.getContext("2d"));
  const pixels = pen.createImageData(columns, rows);
  const unitAt = (row, column) => patches[(data.units.upwards ? rows - 1 - row : row) * columns + column];
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const score = scoreOf(map, { label: "", members: [unitAt(row, column)], special: false, span: null }, context.shares);
      pixels.data.set([...colourOf(scale, score, true), 255], 4 * (row * columns + column));
    }
  }
  pen.putImageData(pixels, 0, 0);
  const gone = /** @type {HTMLCanvasElement} */ (element("canvas", { class: "wf-heat wf-gone", width: columns, height: rows, "aria-hidden": "true" }));
  const blank = /** @type {CanvasRenderingContext2D} */ (gone.getContext("2d"));
  const frame = element("i", { class: "wf-patch" });
  const stage = element("div", {
    class: "wf-stage", tabindex: "0", role: "application",
    "aria-label": `${rows} × ${columns} patches, ${map.name}: arrow keys move`,
    style: { aspectRatio: `${width} / ${height}` },
  },
  data.picture ? element("img", { src: data.picture, alt: "the explained image" }) : null, heat, gone, frame,
  ...framesOf(data));
  const placeOf = (unit) => {
    const at = patches.indexOf(unit);
    const row = Math.floor(at / columns);
    return at < 0 ? null : [data.units.upwards ? rows - 1 - row : row, at % columns];
  };
  const under = (event) => {
    const box = stage.getBoundingClientRect();
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    return row >= 0 && row < rows && column >= 0 && column < columns ? unitAt(row, column) : null;
  };
  stage.addEventListener("pointermove", (event) => { if (!state.choices.pinned) state.set({ unit: under(event) }); });
  stage.addEventListener("pointerleave", () => { if (!state.choices.pinned) state.set({ unit: null }); });
  stage.addEventListener("click", (event) => {
    const unit = under(event);
    state.set(state.choices.pinned && unit === state.choices.unit ? { pinned: false } : { unit, pinned: true });
  });
  stage.addEventListener("keydown", (event) => {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (event.key === "Escape") state.set({ unit: null, pinned: false });
    if (!(event.key in moves)) return;
    event.preventDefault();
    const [row, column] = placeOf(state.choices.unit ?? patches[0]) ?? [0, 0];
    const [down, right] = moves[event.key];
    const clamp = (value, most) => Math.max(0, Math.min(most - 1, value));
    state.set({ unit: unitAt(clamp(row + down, rows), clamp(column + right, columns)), pinned: true });
  });
  context.marks.push(() => {
    const place = state.choices.unit === null ? null : placeOf(state.choices.unit);
    frame.style.display = place ? "block" : "none";
    if (place) {
      Object.assign(frame.style, {
        top: `${(100 * place[0]) / rows}%`, left: `${(100 * place[1]) / columns}%`,
        width: `${100 / columns}%`, height: `${100 / rows}%`,
      });
    }
    const away = context.away();
    blank.clearRect(0, 0, columns, rows);
    blank.fillStyle = "#8a929b";
    for (const unit of away) {
      const at = placeOf(unit);
      if (at) blank.fillRect(at[1], at[0], 1, 1);
    }
    heat.style.opacity = data.picture ? String(state.choices.opacity) : "1";
    heat.style.imageRendering = state.choices.smooth ? "auto" : "pixelated";
    stage.style.width = `${100 * state.choices.zoom}%`;
  });
  return element("div", { class: "wf-window" }, stage);
}
