// The badge of a map and the evidence behind it: this input's deletion curve in the band of random orders, and a
// slider that masks the features with the highest scores on the page and shows the measured value.
import { isDark } from "./color.js";
import { number } from "./data.js";
import { element } from "./dom.js";
import { unitsOf } from "./linked.js";

const CURVE_WIDE = 460;
const CURVE_HIGH = 230;
const EDGE = { left: 46, right: 12, top: 10, bottom: 36 };

/**
 * @typedef {{badge: string, verdict: "yes" | "partly" | "no" | "unknown", deletion: null | {counts: number[], order: number[], curve: number[],
 *   low: number[], mean: number[], high: number[], beaten: number, draws: number, value: string}}} Trust
 */

/**
 * What the reader opened and took away, by the name of a map: it outlives redrawing.
 * @typedef {{open: Set<string>, step: Map<string, number>}} Opened
 * @returns {Opened}
 */
export function evidenceState() {
  return { open: new Set(), step: new Map() };
}

/** The units of a map that are away. @param {import("./data.js").ScoreMap} map @param {Opened} opened @returns {Set<number>} */
export function awayOf(map, opened) {
  const deletion = map.trust?.deletion;
  return new Set(deletion ? deletion.order.slice(0, deletion.counts[opened.step.get(map.name) ?? 0]) : []);
}

/**
 * @param {import("./data.js").ScoreMap} map @param {{state: any, marks: (() => void)[]}} context
 * @param {Opened} opened @param {() => void} changed
 */
export function badgeOf(map, context, opened, changed) {
  const trust = /** @type {Trust} */ (map.trust);
  const kind = `wf-beats-${trust.verdict}`;
  const sign = { yes: "✓", partly: "≈", no: "!", unknown: "?" }[trust.verdict];
  if (!trust.deletion) {
    return element("p", { class: `wf-badge ${kind}` }, element("span", { "aria-hidden": "true" }, sign), trust.badge);
  }
  const inner = evidenceOf(map, context, opened, changed);
  inner.hidden = !opened.open.has(map.name);
  const button = element("button", { type: "button", class: `wf-badge ${kind}`, "aria-expanded": String(!inner.hidden), title: "show the deletion curve" },
    element("span", { "aria-hidden": "true" }, sign), trust.badge);
  button.addEventListener("click", () => {
    inner.hidden = !inner.hidden;
    if (inner.hidden) opened.open.delete(map.name); else opened.open.add(map.name);
    button.setAttribute("aria-expanded", String(!inner.hidden));
    if (!inner.hidden) return;
    opened.step.delete(map.name);
    changed();
  });
  return element("div", {}, button, inner);
}

/** @param {import("./data.js").ScoreMap} map @param {{marks: (() => void)[]}} context @param {Opened} opened @param {() => void} changed */
function evidenceOf(map, context, opened, changed) {
  const { counts, curve, low, mean, high, beaten, draws, value } = map.trust.deletion;
  const canvas = /** @type {HTMLCanvasElement} */ (element("canvas", {
    class: "wf-curve", role: "img",
    "aria-label": `${value} as features are masked, highest scores first, from ${number(curve[0])} to ${number(curve[curve.length - 1])}; below ${beaten} of ${draws} random orders`,
    style: { width: `${CURVE_WIDE}px`, maxWidth: "100%", aspectRatio: `${CURVE_WIDE} / ${CURVE_HIGH}` },
  }));
  [canvas.width, canvas.height] = [2 * CURVE_WIDE, 2 * CURVE_HIGH];
  const slider = /** @type {HTMLInputElement} */ (element("input", {
    type: "range", min: 0, max: counts.length - 1, step: 1, value: opened.step.get(map.name) ?? 0,
    "aria-label": `features to mask, ${map.name}`,
  }));
  const told = element("p", { class: "wf-told", "aria-live": "polite" });
  slider.addEventListener("input", () => {
    opened.step.set(map.name, Number(slider.value));
    changed();
  });
  context.marks.push(() => {
    const step = opened.step.get(map.name) ?? 0;
    slider.value = String(step);
    slider.setAttribute("aria-valuetext", `${counts[step]} of ${counts[counts.length - 1]} features masked`);
    paintCurve(canvas, map.trust.deletion, step);
    told.textContent = step
      ? `Top ${counts[step]} masked: ${value} ${number(curve[step])} (before: ${number(curve[0])}). As many at random: ${number(mean[step])} (${number(low[step])} to ${number(high[step])}).`
      : `${value}: ${number(curve[0])}. Move the slider to mask the features with the highest scores.`;
  });
  return element("div", { class: "wf-evidence" },
    element("p", { class: "wf-note" }, `Deletion curve of this input: below ${beaten} of ${draws} random orders (lower is better). Band: 90 % of the random orders.`),
    canvas, element("label", { class: "wf-slide" }, "mask", slider), told);
}

/** @param {HTMLCanvasElement} canvas @param {any} deletion @param {number} step */
function paintCurve(canvas, { counts, curve, low, mean, high }, step) {
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  const [ink, grey, blue] = isDark() ? ["#c9d1d9", "#9aa5b1", "#4c9fdc"] : ["#1b1f24", "#57606a", "#2b7bb9"];
  const all = [...curve, ...low, ...high];
  const [least, most] = [Math.min(...all), Math.max(...all)];
  const last = counts[counts.length - 1];
  const x = (count) => EDGE.left + ((CURVE_WIDE - EDGE.left - EDGE.right) * count) / last;
  const y = (value) => CURVE_HIGH - EDGE.bottom - ((CURVE_HIGH - EDGE.top - EDGE.bottom) * (value - least)) / (most - least || 1);
  const path = (values) => values.forEach((v, i) => pen[i ? "lineTo" : "moveTo"](x(counts[i]), y(v)));
  pen.setTransform(2, 0, 0, 2, 0, 0);
  pen.clearRect(0, 0, CURVE_WIDE, CURVE_HIGH);
  pen.beginPath();
  path(high);
  for (let i = low.length - 1; i >= 0; i--) pen.lineTo(x(counts[i]), y(low[i]));
  pen.fillStyle = isDark() ? "#8a929b44" : "#8a929b33";
  pen.fill();
  const line = (values, colour, width, dash) => {
    pen.beginPath();
    path(values);
    pen.setLineDash(dash);
    [pen.strokeStyle, pen.lineWidth] = [colour, width];
    pen.stroke();
    pen.setLineDash([]);
  };
  line(mean, grey, 1.5, [5, 4]);
  line(curve, blue, 2, []);
  pen.beginPath();
  pen.arc(x(counts[step]), y(curve[step]), 5, 0, 7);
  pen.fillStyle = blue;
  pen.fill();
  pen.fillStyle = ink;
  pen.font = "12px system-ui, sans-serif";
  pen.textAlign = "right";
  for (const value of [least, most]) pen.fillText(number(value), EDGE.left - 6, y(value) + 4);
  pen.textAlign = "center";
  for (const count of new Set([0, counts[Math.floor(counts.length / 2)], last])) pen.fillText(String(count), x(count), CURVE_HIGH - EDGE.bottom + 16);
  pen.fillText("masked features, highest scores first (dashed: random order)", EDGE.left + (CURVE_WIDE - EDGE.left - EDGE.right) / 2, CURVE_HIGH - 6);
}

/**
 * Marks the units of one map that are away, wherever they are drawn as elements.
 * @param {HTMLElement} card @param {import("./data.js").ScoreMap} map @param {Opened} opened
 */
export function blanking(card, map, opened) {
  let before = 0;
  return () => {
    const away = awayOf(map, opened);
    if (!away.size && !before) return;
    before = away.size;
    for (const item of card.querySelectorAll("[data-units]")) {
      item.classList.toggle("wf-away", unitsOf(/** @type {HTMLElement} */ (item)).every((unit) => away.has(unit)));
    }
  };
}

/** A map that was not measured has no badge; this explains how to get one. */
export function howToTrust() {
  return element("details", { class: "wf-part wf-unmeasured" }, element("summary", {}, "Not validated: run with --report to test this explanation."),
    element("p", { class: "wf-note" }, "Every method returns a map, faithful or not. A report masks the features with the highest scores on inputs like yours and measures the change of the output; its maps have a badge and a deletion curve. In Python: ",
      element("code", {}, "wf.report(model, inputs, processor=…).save(\"report.html\")"),
      ". On the command line: ", element("code", {}, "whyformer explain text … --report report.html"), "."));
}
