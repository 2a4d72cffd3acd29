// Tests of an explanation: its curve in the random band, other methods, and sanity checks.
import { number } from "./data.js";
import { drawnShape, element } from "./dom.js";

const CURVE_WIDTH = 360;
const CURVE_HEIGHT = 220;
const CURVE_LEFT = 36;
const CURVE_BOTTOM = 24;

const LINES = 5;  // colours that curves are told apart by

/** @param {any} curves @param {"remove" | "keep"} kind */
function curveOf(curves, kind) {
  const told = curves[kind];
  const values = [...told.lines.map((line) => line.curve), told.low, told.high].flat().filter((v) => v !== null);
  const [low, high] = [Math.min(0, ...values), Math.max(...values, 1e-9)];
  const x = (share) => CURVE_LEFT + share * (CURVE_WIDTH - CURVE_LEFT - 8);
  const y = (value) => 8 + (1 - ((value ?? 0) - low) / (high - low || 1)) * (CURVE_HEIGHT - CURVE_BOTTOM - 8);
  const points = (values_) => values_.map((value, i) => `${x(curves.fractions[i]).toFixed(1)},${y(value).toFixed(1)}`);
  const words = kind === "remove" ? "as features are masked, highest scores first" : "as features are revealed, highest scores first";
  const svg = drawnShape("svg", { viewBox: `0 0 ${CURVE_WIDTH} ${CURVE_HEIGHT}`, class: "sv-curve", role: "img", "aria-label": `${curves.value} ${words}` });
  svg.append(drawnShape("polygon", { points: [...points(told.high), ...points(told.low).reverse()].join(" "), class: "sv-band" }), drawnShape("polyline", { points: points(told.mean).join(" "), class: "sv-mean" }),
    ...told.lines.map((line, i) => drawnShape("polyline", { points: points(line.curve).join(" "), class: `sv-this sv-line-${i % LINES}` })));
  for (const [at, value] of [[y(high) + 4, high], [y(low), low]]) {
    const text = drawnShape("text", { x: CURVE_LEFT - 4, y: at, "text-anchor": "end" });
    text.textContent = number(value);
    svg.append(text);
  }
  for (const share of [0, 0.5, 1]) {
    const text = drawnShape("text", { x: x(share), y: CURVE_HEIGHT - 6, "text-anchor": share === 1 ? "end" : "middle" });
    text.textContent = `${100 * share} %`;
    svg.append(text);
  }
  const [least, mean, most] = told.random;
  return element("figure", { class: "sv-figure" }, svg, element("figcaption", { class: "wf-note" },
    `The ${curves.value} ${words}; random orders have a mean of ${number(mean ?? 0)} (${number(least ?? 0)} to ${number(most ?? 0)}).`,
    element("ul", { class: "sv-keys" }, ...told.lines.map((line, i) => element("li", {}, element("i", { class: `sv-key sv-line-${i % LINES}` }), `${line.method}: mean ${number(line.area ?? 0)}, better than ${line.worse} of ${curves.draws} random orders`)))));
}

/** @param {any} about @param {(method: string) => void} choose @param {() => void} thorough @returns {HTMLElement} */
export function trustOf(about, choose, thorough) {
  const { curves } = about;
  const advice = element("p", { class: "sv-advice" }, about.statement);
  const ran = [...about.ran].sort((a, b) => (a.area ?? Infinity) - (b.area ?? Infinity));
  const told = (value) => (value === null || value === undefined ? "–" : number(value));
  const marked = (words, why) => element("b", { class: "sv-mark", title: why }, words);
  const table = element("table", { class: "sv-table" }, element("thead", {}, element("tr", {}, ...["method", "mean ↓", "agreement"].map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, ...ran.map((each) => element("tr", { class: each.shown ? "sv-this-row" : "" },
      element("th", { scope: "row" }, each.method, each.method === about.unasked ? marked("default", "the default method") : null),
      element("td", {}, told(each.area)), element("td", {}, told(each.agreement))))));
  const refused = about.refused.length ? element("details", { class: "sv-fold" }, element("summary", {}, `${about.refused.length} methods do not support this model`),
    element("ul", { class: "sv-findings" }, ...about.refused.map((each) => element("li", {}, element("b", {}, `${each.method}: `), each.refused)))) : null;
  const findings = element("ul", { class: "sv-findings" }, ...about.findings.map((finding) =>
    element("li", { class: `sv-${finding.level}` }, element("b", {}, `${finding.level}: ${finding.title}. `), finding.text)));
  return element("div", { class: "sv-trust" }, advice,
    element("div", { class: "sv-curves" }, curveOf(curves, "remove"), curveOf(curves, "keep")),
    element("p", { class: "wf-note" }, `Grey: range of ten random orders, dashed: their mean. Baseline: ${curves.replacement}. Table: mean ${curves.value} as features are masked, highest scores first (lower is better), and rank correlation with ${about.method} over ${curves.parts} features.`),
    element("div", { class: "sv-scroll", role: "group", "aria-label": "methods on this input", tabindex: "0" }, table), refused, element("h3", {}, `Sanity checks of ${about.method}`), findings,
    about.thorough ? null : element("p", { class: "sv-advice" }, element("button", { type: "button", onclick: thorough }, "run the slow checks, too")));
}
