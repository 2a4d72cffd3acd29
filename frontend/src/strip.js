// Sound: frames in a row, from the first to the last, as high as their scores.
import { barColour } from "./color.js";
import { number, percent, scoreOf } from "./data.js";
import { element } from "./dom.js";
import { link } from "./linked.js";

/** @param {import("./data.js").Units} units */
export function isSound(units) {
  return units.grid === null && units.stream.every((stream) => stream === "audio");
}

/**
 * @param {import("./data.js").ScoreMap} map
 * @param {{state: any, entries: import("./data.js").Entry[], shares: boolean, scale: any, marks: (() => void)[]}} context
 */
export function stripOf(map, context) {
  const { entries, scale } = context;
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
  return element("div", {}, strip, element("p", { class: "wf-note wf-time" },
    element("span", {}, entries[0].label), element("span", {}, "time →"), element("span", {}, entries[entries.length - 1].label)));
}
