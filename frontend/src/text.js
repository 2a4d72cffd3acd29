// The text as it was written, its tokens or words coloured by their scores.
import { colourOf, css, inkOn } from "./color.js";
import { number, percent, scoreOf, textBetween } from "./data.js";
import { element } from "./dom.js";
import { link } from "./linked.js";

const TEXTS = ["text", "source", "target", "a", "b"];

/** @param {import("./data.js").Units} units */
export function textStreams(units) {
  if (units.grid && new Set(units.stream).size === 1) return [];
  return [...new Set(units.stream)].filter((stream) => TEXTS.includes(stream));
}

/**
 * @param {import("./data.js").Data} data @param {import("./data.js").ScoreMap} map
 * @param {{state: any, entries: import("./data.js").Entry[], shares: boolean, scale: any, marks: (() => void)[]}} context
 * @param {string} stream
 */
export function textOf(data, map, context, stream) {
  const { units } = data;
  const entries = context.entries.filter((e) => units.stream[e.members[0]] === stream);
  const run = element("p", { class: "wf-run", dir: "auto" });
  /** @type {HTMLElement[]} */
  const items = [];
  const piece = (words, members, special) => {
    const score = scoreOf(map, { label: "", members, special, span: null }, context.shares);
    const aside = members.some((i) => map.aside.includes(i));
    const colour = colourOf(context.scale, score);
    const told = context.shares ? percent(score) : number(score);
    const item = element("span", {
      class: `wf-token${special ? " wf-special" : ""}${aside ? " wf-aside" : ""}`,
      style: aside || special ? {} : { background: css(colour), color: inkOn(colour) },
      dataset: { units: members.join() },
      "aria-label": `${words.trim()}, ${told}`,
    }, words);
    items.push(item);
    return item;
  };
  const placed = places(entries);
  if (units.text !== null && placed.length) {
    let at = 0;
    const specials = context.state.choices.specials ? entries.filter((e) => e.special && !width(e)) : [];
    const first = entries.findIndex((e) => width(e));
    for (const entry of specials.filter((e) => entries.indexOf(e) < first)) {
      run.append(piece(entry.label, entry.members, true), " ");
    }
    for (const { span, members, special } of placed) {
      const words = textBetween(units, ...span);
      const blank = words.length - words.trimStart().length;  // a space that a tokenizer counts to its word
      const start = span[0] + blank;
      if (start > at) run.append(at || !units.outside[0] ? textBetween(units, at, start) : unscored(textBetween(units, 0, start)));
      if (span[1] > start) run.append(piece(textBetween(units, start, span[1]), members, special));
      at = Math.max(at, span[1]);
    }
    const rest = textBetween(units, at);
    run.append(units.outside[1] && rest.trim() ? unscored(rest) : rest);
    for (const entry of specials.filter((e) => entries.indexOf(e) >= first)) run.append(" ", piece(entry.label, entry.members, true));
  } else {
    const marked = entries.some((e) => /^[Ġ▁]/.test(e.label));
    entries.forEach((entry, i) => {
      const glued = marked ? !/^[Ġ▁]/.test(entry.label) && !entry.special : entry.label.startsWith("##");
      if (i && !glued) run.append(" ");
      run.append(piece(entry.label.replace(/^##/, "").replace(/^[Ġ▁]+/, "") || " ", entry.members, entry.special));
    });
  }
  context.marks.push(link(context.state, run, items, `${stream}, ${map.name}: scores of ${items.length} tokens`));
  return run;
}

/** Text before the first or after the last unit: grey, since no colour would look like a zero. @param {string} words */
function unscored(words) {
  return element("span", { class: "wf-unread", title: "not scored: outside the tokens of this explanation" }, words);
}

/** @param {import("./data.js").Entry} entry */
function width(entry) {
  return entry.span ? entry.span[1] - entry.span[0] : 0;
}

/** What stands in the string, from left to right; pieces of one character (bytes) are one. */
function places(entries) {
  const placed = [];
  for (const entry of entries.filter(width).sort((a, b) => a.span[0] - b.span[0])) {
    const before = placed[placed.length - 1];
    if (before && entry.span[0] < before.span[1]) {
      before.members = [...before.members, ...entry.members];
      before.span = [before.span[0], Math.max(before.span[1], entry.span[1])];
      before.special = before.special && entry.special;
    } else placed.push({ span: entry.span, members: entry.members, special: entry.special });
  }
  return placed;
}
