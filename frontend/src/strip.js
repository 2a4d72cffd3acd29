// Sound: frames in a row, from the first to the last, as high as their scores, over the waveform they were cut from.
import { barColour, isDark } from "./color.js";
import { number, percent, scoreOf } from "./data.js";
import { element } from "./dom.js";
import { link } from "./linked.js";

const STEPS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600];  // seconds between ticks
const MOST_TICKS = 9;

/** @param {import("./data.js").Units} units */
export function isSound(units) {
  return units.grid === null && units.stream.every((stream) => stream === "audio");
}

/**
 * @param {import("./data.js").Units} units @param {import("./data.js").ScoreMap} map
 * @param {{state: any, entries: import("./data.js").Entry[], shares: boolean, scale: any, marks: (() => void)[]}} context
 */
export function stripOf(units, map, context) {
  const { scale } = context;
  const entries = context.entries.filter((entry) => !entry.special);  // a token of the model has no time
  const frames = entries.map((entry) => {
    const score = scoreOf(map, entry, context.shares);
    const high = scale.reach ? Math.min(1, Math.abs(score) / scale.reach) * (scale.signed ? 50 : 100) : 0;
    const top = scale.signed ? (score < 0 ? 50 : 50 - high) : 100 - high;
    return element("span", {
      class: "wf-moment", dataset: { units: entry.members.join() },
      "aria-label": `${entry.label}, ${context.shares ? percent(score) : number(score)}`,
    }, element("i", { style: { top: `${top}%`, height: `${high}%`, backgroundColor: barColour(score, entry.special) } }));
  });
  const strip = element("div", { class: "wf-strip" }, ...frames);
  context.marks.push(link(context.state, strip, frames, `${frames.length} frames in time, ${map.name}`));
  if (units.seconds === null) {
    return element("div", {}, strip, element("p", { class: "wf-note wf-time" },
      element("span", {}, entries[0].label), element("span", {}, "time →"), element("span", {}, entries[entries.length - 1].label)));
  }
  const parts = units.wave ? [strip, waveOf(units.wave)] : [strip];
  return element("div", { class: "wf-sound" }, ...parts, ticksOf(units.seconds));
}

/** How loud it is, above and below a line. @param {number[]} wave */
function waveOf(wave) {
  const canvas = /** @type {HTMLCanvasElement} */ (element("canvas", { class: "wf-wave", width: wave.length * 2, height: 80, role: "img", "aria-label": "waveform" }));
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  pen.fillStyle = isDark() ? "#9aa5b1" : "#57606a";
  wave.forEach((loud, i) => pen.fillRect(2 * i, 40 - 38 * loud, 2, Math.max(1, 76 * loud)));
  return canvas;
}

/** @param {number} seconds */
function ticksOf(seconds) {
  const step = STEPS.find((each) => seconds / each <= MOST_TICKS) ?? seconds;
  const ticks = Array.from({ length: Math.floor(seconds / step + 1e-9) + 1 }, (_, i) => i * step);
  const digits = step < 0.1 ? 2 : step < 1 ? 1 : 0;
  return element("div", { class: "wf-ticks" }, ...ticks.map((at) =>
    element("span", at < 0.95 * seconds ? { style: { left: `${(100 * at) / seconds}%` } } : { class: "wf-last" }, `${at.toFixed(digits)} s`)));
}
