// From the value at the background to the value that was explained, unit by unit: for methods that add up.
import { isUntried } from "./bars.js";
import { barColour } from "./color.js";
import { columnOf, scoreOf } from "./data.js";
import { element } from "./dom.js";
import { link } from "./linked.js";

const MOST = 12;

/**
 * @param {import("./data.js").ScoreMap} map
 * @param {{state: any, entries: import("./data.js").Entry[], marks: (() => void)[]}} context
 */
export function waterfallOf(map, context) {
  const base = /** @type {number} */ (map.base);
  const all = context.entries.filter((entry) => !isUntried(map, entry)).map((entry) => ({ entry, score: scoreOf(map, entry, false) }))
    .filter(({ entry, score }) => score || !entry.special);
  all.sort((a, b) => Math.abs(b.score) - Math.abs(a.score));
  const most = all.length === MOST + 1 ? MOST + 1 : MOST;  // a line for "1 other" can as well be that one
  const steps = all.slice(0, most).map(({ entry, score }) => ({ name: entry.label, units: entry.members, score, quiet: entry.special }));
  const rest = all.slice(most);
  if (rest.length) steps.push({ name: `${rest.length} others`, units: [], score: rest.reduce((sum, r) => sum + r.score, 0), quiet: false });
  const reached = base + steps.reduce((sum, step) => sum + step.score, 0);
  const off = map.value - reached;
  if (Math.abs(off) > 0.005 * Math.abs(map.value - base)) steps.push({ name: map.remainder ?? "not accounted for", units: [], score: off, quiet: true });
  const number = columnOf([base, map.value, ...steps.map((step) => step.score)]);
  let at = base;
  const ends = [base, ...steps.map((step) => (at += step.score))];
  const [lowest, highest] = [Math.min(...ends), Math.max(...ends)];
  const [low, high] = [-1, 1].map((side) => (lowest + highest + side * map.headroom * (highest - lowest)) / 2);
  const place = (value) => (high > low ? (100 * (value - low)) / (high - low) : 0);
  const line = (name, told, from, to, colour, units) => element("div", {
    class: "wf-line", dataset: units?.length ? { units: units.join() } : {}, "aria-label": `${name}, ${told}`,
  },
  element("span", { class: "wf-label", dir: "auto", title: name }, name), element("span", { class: "wf-number" }, told),
  element("span", { class: "wf-track" }, element("i", { class: "wf-bar", style: {
    left: `${Math.min(place(from), place(to))}%`, width: `max(2px, ${Math.abs(place(to) - place(from))}%)`, backgroundColor: colour,
  } })));
  at = base;
  const lines = steps.map((step) => {
    const from = at;
    at += step.score;
    return line(step.name, `${step.score >= 0 ? "+" : ""}${number(step.score)}`, from, at, barColour(step.score, step.quiet), step.units);
  });
  const pairs = steps.some((step) => step.name.includes(" = "));  // columns with their values
  const list = element("div", { class: `wf-lines wf-waterfall${pairs ? " wf-pairs" : ""}` },
    line("baseline", number(base), base, base, "var(--wf-ink)", null), ...lines,
    line("explained value", number(map.value), map.value, map.value, "var(--wf-ink)", null));
  context.marks.push(link(context.state, list, lines.filter((l) => l.dataset.units), `from baseline to value, ${map.name}`));
  return list;
}
