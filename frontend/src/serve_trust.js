// How far an explanation can be trusted: its curve in the random band, other methods, and what the check-up says.
import { number } from "./data.js";
import { element } from "./dom.js";

const SVG_SPACE = "http://www.w3.org/2000/svg";
const CURVE_WIDTH = 360;
const CURVE_HEIGHT = 220;
const CURVE_LEFT = 36;
const CURVE_BOTTOM = 24;

function drawnShape(tag, attributes) {
  const made = document.createElementNS(SVG_SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  return made;
}

/** @param {any} curves @param {"remove" | "keep"} kind @param {string} method */
function curveOf(curves, kind, method) {
  const told = curves[kind];
  const values = [told.curve, told.low, told.high].flat().filter((v) => v !== null);
  const [low, high] = [Math.min(0, ...values), Math.max(...values, 1e-9)];
  const x = (share) => CURVE_LEFT + share * (CURVE_WIDTH - CURVE_LEFT - 8);
  const y = (value) => 8 + (1 - ((value ?? 0) - low) / (high - low || 1)) * (CURVE_HEIGHT - CURVE_BOTTOM - 8);
  const line = (points) => points.map((value, i) => `${x(curves.fractions[i]).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const words = kind === "remove" ? "as the highest scores are taken away" : "as nothing but the highest scores is there";
  const svg = drawnShape("svg", { viewBox: `0 0 ${CURVE_WIDTH} ${CURVE_HEIGHT}`, class: "sv-curve", role: "img", "aria-label": `${method} ${words}` });
  const band = `${line(told.high)} ${told.low.map((value, i) => `${x(curves.fractions[i]).toFixed(1)},${y(value).toFixed(1)}`).reverse().join(" ")}`;
  svg.append(drawnShape("polygon", { points: band, class: "sv-band" }), drawnShape("polyline", { points: line(told.mean), class: "sv-mean" }),
    drawnShape("polyline", { points: line(told.curve), class: "sv-this" }));
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
  const better = kind === "remove" ? told.area < told.random[0] : told.area > told.random[2];
  const verdict = better ? "beats every random order" : (kind === "remove" ? told.area < told.random[1] : told.area > told.random[1])
    ? "better than random on average, inside its band" : "no better than random";
  return element("figure", { class: "sv-figure" }, svg, element("figcaption", { class: "wf-note" },
    `The probability ${words}: mean ${number(told.area ?? 0)}, random ${number(told.random[1] ?? 0)} (${number(told.random[0] ?? 0)} to ${number(told.random[2] ?? 0)}): ${verdict}.`));
}

/** @param {any} about @param {(method: string) => void} choose @param {() => void} thorough @returns {HTMLElement} */
export function trustOf(about, choose, thorough) {
  const { curves, recommended, others } = about;
  const advice = element("p", { class: "sv-advice" }, recommended.method
    ? element("b", {}, `Recommended here: ${recommended.method}. `) : element("b", {}, "No recommendation: "), recommended.why,
  recommended.method && recommended.method !== about.method ? element("button", { type: "button", onclick: () => choose(recommended.method) }, "explain with it") : null);
  const ran = others.filter((other) => other.area !== undefined).concat([{ method: about.method, area: curves.remove.area, agreement: 1 }])
    .sort((a, b) => (a.area ?? 9) - (b.area ?? 9));
  const table = element("table", { class: "sv-table" }, element("thead", {}, element("tr", {}, ...["method", "curve (lower is better)", "agreement"].map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, ...ran.map((other) => element("tr", { class: other.method === about.method ? "sv-this-row" : "" },
      element("th", { scope: "row" }, other.method, other.method === recommended.method ? element("b", { class: "sv-mark" }, "recommended") : null,
        other.method === recommended.unasked ? element("b", { class: "sv-mark" }, "default") : null),
      element("td", {}, other.area === null ? "–" : number(other.area)), element("td", {}, other.agreement === null || other.agreement === undefined ? "–" : number(other.agreement))))));
  const findings = element("ul", { class: "sv-findings" }, ...about.findings.map((finding) =>
    element("li", { class: `sv-${finding.level}` }, element("b", {}, `${finding.level}: ${finding.title}. `), finding.text)));
  return element("div", { class: "sv-trust" }, advice,
    element("div", { class: "sv-curves" }, curveOf(curves, "remove", about.method), curveOf(curves, "keep", about.method)),
    element("p", { class: "wf-note" }, `Grey: between the lowest and highest of ten random orders. Absent parts: ${curves.replacement}. Agreement: rank correlation with ${about.method} over ${curves.parts} parts.`),
    table, element("h3", {}, "Check-up"), findings,
    about.thorough ? null : element("p", { class: "sv-advice" }, element("button", { type: "button", onclick: thorough }, "run the slow checks, too")));
}
