// What Python wrote beside the page (views/html/live.py), and how scores are read from it.

/**
 * @typedef {{rows: number, columns: number, low: number, high: number, data: string, of?: number}} Grid
 * @typedef {{name: string, method: string, scores: number[], errors: number[] | null, signed: boolean, value: number, base: number | null, remainder?: string,
 *   explained: string, share: number, headroom: number, aside: number[], folded: number[], folded_words: string, untried: number[], matrix: Grid | null, layers: Grid[] | null, read: number | null,
 *   small: string, doubts: string[], trust: import("./evidence.js").Trust | null, nothing: string, sides: [string, string] | null}} ScoreMap
 * @typedef {{caption: string, shared: string, details: [string, string][], doubts: string[]}} Footer
 * @typedef {{labels: string[], special: number[], stream: string[], word: number[] | null,
 *   spans: [number, number][] | null, text: string | null, grid: [number, number] | null, upwards: boolean,
 *   values: string[] | null, outside: boolean[], seconds: number | null, wave: number[] | null}} Units
 * @typedef {{kind: string, units: Units, maps: ScoreMap[], prediction: {label: string, probability: number | null,
 *   next: [string, number][], asks: boolean}, picture: string | null, size: [number, number] | null,
 *   frames: {box: number[], label: string}[], by: string, specials: boolean, shared: boolean, others: import("./classes.js").Question[], footer: Footer}} Data
 * @typedef {{label: string, members: number[], special: boolean, span: [number, number] | null}} Entry
 */

/** @type {WeakMap<Units, string[]>} */
const CHARACTERS = new WeakMap();

/** A stretch of the text. Python counts characters, and JavaScript halves of some (emoji). @param {Units} units @param {number} start @param {number} [end] */
export function textBetween(units, start, end) {
  if (!CHARACTERS.has(units)) CHARACTERS.set(units, Array.from(units.text ?? ""));
  return /** @type {string[]} */ (CHARACTERS.get(units)).slice(start, end).join("");
}

/** Tokens, or words with their pieces together; `members` are units. @param {Units} units @param {string} by @returns {Entry[]} */
export function entriesOf(units, by) {
  const single = (i) => ({
    label: units.values && units.values[i] ? `${units.labels[i]} = ${units.values[i]}` : units.labels[i],
    members: [i],
    special: Boolean(units.special[i]),
    span: units.spans ? units.spans[i] : null,
  });
  if (by !== "word" || !units.word) return units.labels.map((_, i) => single(i));
  /** @type {Entry[]} */
  const entries = [];
  let before = -1;
  units.word.forEach((word, i) => {
    if (word >= 0 && word === before) {
      const last = entries[entries.length - 1];
      last.members.push(i);
      if (last.span && units.spans) last.span = [last.span[0], units.spans[i][1]];
    } else entries.push(single(i));
    before = word;
  });
  for (const entry of entries) {
    const text = entry.span && units.text !== null ? textBetween(units, ...entry.span).trim() : "";
    if (text) entry.label = text;
    else if (entry.members.length > 1) {
      entry.label = entry.members.map((i) => units.labels[i].replace(/^##/, "").replace(/^[Ġ▁]+/, "")).join("");
    }
  }
  return entries;
}

/** What one entry is: a token, a word, a patch, a column, a frame; "feature" where there are several kinds. @param {Units} units @param {string} by */
export function nounOf(units, by = "token") {
  const streams = new Set(units.stream);
  if (units.grid && streams.size === 1) return "patch";
  if (streams.size === 1 && streams.has("table")) return "column";
  if (streams.size === 1 && streams.has("audio")) return "frame";
  return [...streams].every((stream) => ["text", "source", "target", "a", "b"].includes(stream)) ? by : "feature";
}

/** @param {string} noun */
export function pluralOf(noun) {
  return noun.endsWith("ch") ? `${noun}es` : `${noun}s`;
}

/** @param {ScoreMap} map @param {Entry} entry @param {boolean} shares */
export function scoreOf(map, entry, shares) {
  const sum = entry.members.reduce((total, i) => total + map.scores[i], 0);
  return shares ? sum * map.share : sum;
}

const ABOUT_95 = 1.96;

/** How far the score is known, of 95 %: of a word no further than its pieces together. @param {ScoreMap} map @param {Entry} entry @param {boolean} shares */
export function errorOf(map, entry, shares) {
  if (!map.errors) return 0;
  return ABOUT_95 * entry.members.reduce((total, i) => total + map.errors[i], 0) * (shares ? map.share : 1);
}

/** Hidden: a special token, or one off the scale of the others. @param {ScoreMap} map @param {Entry} entry */
export function isFolded(map, entry) {
  return entry.members.some((i) => map.folded.includes(i));
}

export const FEW = 10;  // a list of so many entries is shown whole
export const MOST_SHOWN = 8;  // of a longer one, the first

/**
 * The scale of some entries: special tokens and those off the scale are left out, unless there are no others.
 * @param {ScoreMap} map @param {Entry[]} entries @param {boolean} shares @param {boolean} fromZero
 * @returns {import("./color.js").Scale}
 */
export function scaleOf(map, entries, shares, fromZero = true) {
  const ordinary = entries.filter((e) => !isFolded(map, e));
  const scores = (ordinary.length ? ordinary : entries).map((e) => scoreOf(map, e, shares));
  const signed = map.signed || scores.some((s) => s < 0);
  const low = signed || fromZero ? 0 : Math.min(...scores);
  const largest = scores.reduce((most, s) => Math.max(most, Math.abs(s)), 0);
  return { reach: largest * (shares ? 1 : map.headroom), low, signed };
}

/** @type {WeakMap<Grid, Float32Array>} */
const NUMBERS = new WeakMap();

/** The numbers of a grid, row by row: two bytes each, between `low` and `high`. @param {Grid} grid */
export function numbersOf(grid) {
  const known = NUMBERS.get(grid);
  if (known) return known;
  const bytes = atob(grid.data);
  const values = new Float32Array(bytes.length / 2);
  for (let i = 0; i < values.length; i++) {
    values[i] = grid.low + ((bytes.charCodeAt(2 * i) + 256 * bytes.charCodeAt(2 * i + 1)) / 65535) * (grid.high - grid.low);
  }
  NUMBERS.set(grid, values);
  return values;
}

/** Three digits that tell scores apart. @param {number} value */
export function number(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-4) return value.toExponential(1).replace("e+", "e");
  return value.toPrecision(3);
}

const POWERS = 7;

/**
 * Numbers of one column, with as many decimals each as give the largest three digits; those that nobody could count
 * are told in the power of ten of the largest. The same rule as in Python (views/header.py), to the last digit.
 * The page adds scores up by itself (words, shares, what a filter leaves), so Python cannot send them as text.
 * @param {number[]} values
 */
export function columnOf(values) {
  const largest = values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  const power = largest ? Math.floor(Math.log10(largest)) : 1;
  const told = (value, digits) => {
    const text = value.toFixed(digits);
    return Number(text) === 0 ? text.replace("-", "") : text;
  };
  if (power >= POWERS) return (value) => `${told(value / 10 ** power, 2)}e${power}`;
  return (value) => told(value, Math.min(12, Math.max(0, 2 - power)));
}

/**
 * Both ends of a scale, rounded as the scores that stand on it; less so where they would look alike.
 * @param {number} low @param {number} high @param {boolean} shares
 */
export function endsOf(low, high, shares) {
  let told = shares ? percent : columnOf([low, high]);
  if (!shares && low !== high && told(low) === told(high)) told = columnOf([high - low]);
  return [low, high].map((end) => (end === 0 ? "0" : told(end).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "")));
}

/** @param {number} share */
export function percent(share) {
  const small = share !== 0 && Math.abs(share) < 0.001;
  return small ? `${share < 0 ? "> -" : "< "}0.1 %` : `${(100 * share).toFixed(1)} %`;
}
