// The run of an agent: a step is chosen, its sources are coloured and joined to it, and a click on one walks back.
import { colourOf, css, inkOn } from "./color.js";
import { chooser, drawnShape, element } from "./dom.js";

const MOST_DRIVERS = 6;
const MOST_ARCS = 4;
const GUTTER = 72;

/**
 * @typedef {{names: string[], steps: number[], calls: (number | null)[], unit: number, least: number,
 *   shares: number[][], origins: number[][], drops: (number | null)[][]}} Graph
 * @param {HTMLElement} root @returns {() => void} draws it again
 */
export function graphOf(root) {
  /** @type {Graph} */
  const data = JSON.parse(root.querySelector(".wf-data")?.textContent ?? "");
  const pieces = /** @type {HTMLElement[]} */ ([...root.querySelectorAll("[data-piece]")]);
  const run = /** @type {HTMLElement} */ (root.querySelector(".wf-graph-run"));
  const why = /** @type {HTMLElement} */ (root.querySelector(".wf-why"));
  const lines = drawnShape("svg", { class: "wf-graph-lines", width: GUTTER, "aria-hidden": "true" });
  run.prepend(lines);
  /** The steps that were walked through, the first clicked one first. @type {number[]} */
  let path = [data.steps.length - 1];
  let by = "shares";

  const percent = (value) => `${Math.round((100 * value) / data.unit)}\u00a0%`;
  const words = (piece) => (pieces[piece].textContent ?? "").trim();
  const ranked = (step, rows) => rows[step].map((_, p) => p)
    .filter((p) => rows[step][p] >= data.least * data.unit).sort((a, b) => rows[step][b] - rows[step][a]);
  const middle = (piece) => {
    const closed = /** @type {HTMLElement | null} */ (pieces[piece].closest("details:not([open])"));
    const box = (closed ?? pieces[piece]).getBoundingClientRect();
    return (box.top + box.bottom) / 2 - run.getBoundingClientRect().top;
  };

  const join = (from, to, share, chosen) => {
    const [a, b] = [middle(from), middle(to)];
    const deep = Math.min(GUTTER - 8, 14 + Math.abs(b - a) / 6);
    lines.append(drawnShape("path", {
      d: `M${GUTTER} ${a} C${GUTTER - deep} ${a} ${GUTTER - deep} ${b} ${GUTTER} ${b}`,
      class: chosen ? "wf-line-chosen" : "wf-line", "stroke-width": chosen ? 1 + 5 * share : 1, "data-from": from, "data-to": to,
    }));
  };

  const drawLines = () => {
    lines.replaceChildren();
    lines.setAttribute("height", String(run.scrollHeight));
    const here = path[path.length - 1];
    data.steps.forEach((piece, step) => {
      if (step !== here) for (const p of ranked(step, data.shares).slice(0, 1)) join(p, piece, 0, false);
    });
    for (const p of ranked(here, data[by]).slice(0, MOST_ARCS)) {
      join(p, data.steps[here], data[by][here][p] / data.unit, true);
    }
  };

  const walk = (step) => element("button", { type: "button", onclick: () => choose([...path, step]) }, `walk back to step ${step}`);
  const source = (here, p) => {
    const [share, drop, step] = [data[by][here][p], data.drops[here][p], data.steps.indexOf(p)];
    const call = data.calls[p];
    const left = drop === null ? null : `without it: log-probability ${drop < 0 ? "+" : "\u2212"}${Math.abs(drop).toFixed(2)}`;
    return element("li", {},
      element("span", { class: "wf-why-bar", style: { width: `${(100 * share) / data.unit}%` } }),
      element("b", {}, percent(share)), ` ${data.names[p]}: `, element("span", { dir: "auto" }, words(p)),
      left ? element("span", { class: "wf-note" }, ` (${left})`) : null,
      step >= 0 ? walk(step) : call === null ? null : walk(call));
  };

  const draw = () => {
    const here = path[path.length - 1];
    const row = data[by][here];
    const reach = Math.max(...row);
    pieces.forEach((piece, p) => {
      const step = data.steps.indexOf(p);
      const colour = colourOf({ reach, low: 0, signed: false }, row[p]);
      piece.style.background = row[p] ? css(colour) : "none";
      piece.style.color = row[p] ? inkOn(colour) : "";
      piece.style.opacity = p > data.steps[here] ? "0.45" : "";
      piece.title = p < data.steps[here] ? percent(row[p]) : "";
      if (step >= 0) piece.setAttribute("aria-pressed", String(step === here));
    });
    const trail = path.map((step, i) => element("button", {
      type: "button", "aria-current": i === path.length - 1 ? "step" : null, onclick: () => choose(path.slice(0, i + 1)),
    }, `step ${step}`));
    const best = ranked(here, data[by]).slice(0, MOST_DRIVERS);
    why.replaceChildren(
      element("p", { class: "wf-trail" }, ...trail.flatMap((button, i) => (i ? [" \u2190 ", button] : [button]))),
      element("h4", {}, `What drove ${data.names[data.steps[here]]}?`),
      element("p", { dir: "auto", class: "wf-why-step" }, words(data.steps[here])),
      chooser("shares", [["shares", "direct"], ["origins", "origins: steps handed on"]], () => by, (value) => { by = value; draw(); }),
      best.length ? element("ol", {}, ...best.map((p) => source(here, p))) : element("p", {}, "No source speaks for it."),
    );
    drawLines();
  };
  const choose = (next) => { path = next; draw(); };

  root.classList.add("wf-live");
  data.steps.forEach((p, step) => {
    const piece = pieces[p];
    piece.classList.add("wf-step");
    piece.setAttribute("role", "button");
    piece.tabIndex = 0;
    piece.addEventListener("click", () => choose([step]));
    piece.addEventListener("keydown", (event) => {
      const to = { ArrowDown: step + 1, ArrowUp: step - 1, Home: 0, End: data.steps.length - 1 }[event.key];
      if (event.key === "Enter" || event.key === " ") choose([step]);
      else if (to !== undefined && data.steps[to] !== undefined) pieces[data.steps[to]].focus();
      else return;
      event.preventDefault();
    });
  });
  root.addEventListener("keydown", (event) => { if (event.key === "Escape") choose([data.steps.length - 1]); });
  root.addEventListener("toggle", drawLines, true);
  new ResizeObserver(drawLines).observe(run);
  draw();
  return draw;
}
