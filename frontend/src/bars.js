// One bar per token, patch or column: sorted, filtered, as many at a time as can be read.
import { barColour } from "./color.js";
import { columnOf, errorOf, FEW, isFolded, MOST_SHOWN, nounOf, percent, scoreOf } from "./data.js";
import { element } from "./dom.js";
import { link } from "./linked.js";

export const ORDERS = [["ranked", "highest"], ["size", "largest |score|"], ["reading", "in order"], ["name", "A–Z"]];

/**
 * @param {import("./data.js").Data} data @param {import("./data.js").ScoreMap} map
 * @param {{state: any, entries: import("./data.js").Entry[], shares: boolean, scale: any, marks: (() => void)[]}} context
 */
export function barsOf(data, map, context) {
  const { state, scale } = context;
  const { order, filter, specials, shown } = state.choices;
  const wanted = filter.trim().toLowerCase();
  const rows = context.entries
    .map((entry, place) => ({ entry, place, score: scoreOf(map, entry, context.shares), untried: isUntried(map, entry) }))
    .filter(({ entry }) => (specials || !isFolded(map, entry)) && (!wanted || entry.label.toLowerCase().includes(wanted)));
  const compare = {
    ranked: (a, b) => b.score - a.score,
    size: (a, b) => Math.abs(b.score) - Math.abs(a.score),
    reading: (a, b) => a.place - b.place,
    name: (a, b) => a.entry.label.localeCompare(b.entry.label),
  };
  rows.sort((a, b) => (order === "ranked" || order === "size" ? Number(a.untried) - Number(b.untried) : 0) || compare[order](a, b));
  const drawn = rows.slice(0, shown || (rows.length <= FEW ? FEW : MOST_SHOWN));
  const number = columnOf(drawn.map(({ score }) => score));
  const items = drawn.map(({ entry, score, untried }) => {
    const error = errorOf(map, entry, context.shares);
    const say = context.shares ? percent : number;
    const told = untried ? "no effect" : say(score);
    const limits = error ? `${told} ± ${say(error)}` : told;
    return element("div", {
      class: `wf-line${isFolded(map, entry) || untried ? " wf-special" : ""}`,
      title: untried ? UNTRIED : null,
      dataset: { units: entry.members.join() },
      "aria-label": `${entry.label}, ${limits}`,
    },
    element("span", { class: "wf-label", dir: "auto", title: entry.label }, entry.label),
    element("span", { class: "wf-number", title: error ? limits : null }, told),
    track(score, scale, isFolded(map, entry), error));
  });
  const list = element("div", { class: data.units.values || data.units.stream[0] === "table" ? "wf-lines wf-pairs" : "wf-lines" }, ...items);
  context.marks.push(link(state, list, items, `bars, ${map.name}`));
  const parts = element("div", {}, list);
  if (rows.length > drawn.length) {
    parts.append(element("button", { type: "button", class: "wf-more", onclick: () => state.set({ shown: drawn.length * 4 }) },
      `… ${rows.length - drawn.length} more`));
  }
  if (map.folded_words && !specials) parts.append(element("p", { class: "wf-note wf-folded-words" }, map.folded_words));
  if (!rows.length) parts.append(element("p", { class: "wf-note" }, `No ${nounOf(data.units)} contains this text.`));
  return parts;
}

const UNTRIED = "masking changed nothing: the column equals the baseline, or the model does not use it";

/** A column whose masking changed nothing. @param {import("./data.js").ScoreMap} map @param {import("./data.js").Entry} entry */
export function isUntried(map, entry) {
  return entry.members.every((unit) => map.untried.includes(unit));
}

/** @param {number} score @param {import("./color.js").Scale} scale @param {boolean} quiet @param {number} error of 95 %, to either side */
export function track(score, scale, quiet, error = 0) {
  const length = scale.reach ? Math.min(1, Math.abs(score) / scale.reach) : 0;
  const size = length * (scale.signed ? 50 : 100);
  const left = scale.signed ? (score < 0 ? 50 - size : 50) : 0;
  const beyond = scale.reach > 0 && Math.abs(score) > scale.reach * 1.0001;
  return element("span", { class: "wf-track" },
    element("i", {
      class: beyond ? "wf-bar wf-beyond" : "wf-bar",
      title: beyond ? "longer than the scale of the other bars" : null,
      style: { left: `${left}%`, width: `${size}%`, backgroundColor: barColour(score, quiet) },
    }),
    scale.signed ? element("i", { class: "wf-axis" }) : null,
    error ? whisker(score, scale, error) : null);
}

/** The limits of a score, a thin line. @param {number} score @param {import("./color.js").Scale} scale @param {number} error */
function whisker(score, scale, error) {
  const at = (value) => {
    const share = Math.max(scale.signed ? -1 : 0, Math.min(1, value / scale.reach));
    return scale.signed ? 50 + 50 * share : 100 * share;
  };
  const left = at(score - error);
  return element("i", { class: "wf-whisker", style: { left: `${left}%`, width: `${at(score + error) - left}%` } });
}
