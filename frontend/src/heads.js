// Every head of every layer as a small map: one is chosen, and drawn large with lines between its tokens.
import { linesBetween, MOST_JOINED } from "./attention_lines.js";
import { colourOf, css, inkOn, paintScores } from "./color.js";
import { number, numbersOf } from "./data.js";
import { chooser, element, slider } from "./dom.js";
import { link } from "./linked.js";
import { matrixOf } from "./matrix.js";
import { stateOf } from "./state.js";

const SMALL_SIDE = 52;
const MOST_WORDS = 600;  // tokens that are written out

/**
 * @typedef {{kind: string, labels: string[], named: string, sites: {name: string, queries: number, keys: number, heads: import("./data.js").Grid[]}[]}} AllHeads
 * @param {AllHeads} data
 * @returns {{node: HTMLElement, repaint: () => void}}
 */
export function headsOfRecord(data) {
  const state = stateOf({});
  let [site, head, shared] = [0, 0, true];
  const highest = Math.max(...data.sites.flatMap(({ heads }) => heads.map((grid) => grid.high)));
  const large = element("div", { class: "wf-head-large" });
  /** @type {(() => void)[]} */
  let marks = [];
  /** The number that a site has in the model: of some chosen ones, not their place here. */
  const layerOf = (s) => /^\d+(?=: )/.exec(data.sites[s].name)?.[0] ?? s;
  const nameOf = (s, h) => (data.named ? (data.sites.length > 1 ? `layer ${layerOf(s)}, ${data.named}` : data.named) : `layer ${layerOf(s)}, head ${h}`);
  const buttons = data.sites.map(({ heads }, s) => heads.map((grid, h) => element("button", {
    type: "button", class: "wf-head", "aria-label": nameOf(s, h), title: nameOf(s, h), tabindex: s + h ? "-1" : "0",
    onclick: () => choose(s, h),
  }, smallOf(grid))));

  /** @param {import("./data.js").Grid} grid */
  function smallOf(grid) {
    return element("canvas", { width: grid.columns, height: grid.rows, "aria-hidden": "true",
      style: { width: `${SMALL_SIDE}px`, height: `${Math.max(6, Math.min(SMALL_SIDE, (SMALL_SIDE * grid.rows) / grid.columns))}px`,
        imageRendering: grid.columns > SMALL_SIDE ? "auto" : "pixelated" } });
  }

  function paintSmall() {
    data.sites.forEach(({ heads }, s) => heads.forEach((grid, h) => {
      const pen = /** @type {CanvasRenderingContext2D} */ (buttons[s][h].querySelector("canvas").getContext("2d"));
      const pixels = pen.createImageData(grid.columns, grid.rows);
      const scale = { reach: shared ? highest : grid.high, low: 0, signed: false };
      paintScores(scale, numbersOf(grid), pixels.data);
      pen.putImageData(pixels, 0, 0);
    }));
  }

  function choose(s, h, focus = false) {
    [site, head] = [s, h];
    buttons.flat().forEach((button) => { button.tabIndex = -1; button.setAttribute("aria-pressed", "false"); });
    buttons[s][h].tabIndex = 0;
    buttons[s][h].setAttribute("aria-pressed", "true");
    layers.querySelector("input").value = String(s);
    if (focus) buttons[s][h].focus();
    drawLarge();
  }

  function drawLarge() {
    marks = [];
    const { name, queries, keys, heads } = data.sites[site];
    const grid = heads[head];
    const known = data.labels.length === keys && queries === keys;
    const labels = known ? data.labels : Array.from({ length: keys }, (_, i) => `position ${i}`);
    const units = { labels, special: labels.map(() => 0), stream: labels.map(() => "text") };
    const map = { name: nameOf(site, head), matrix: grid, layers: null, signed: false, read: 0 };
    const context = { state, several: false, marks, attention: true };
    const parts = [element("h3", {}, nameOf(site, head)), element("p", { class: "wf-note" }, `${name} · largest weight ${number(grid.high)}`)];
    if (known && labels.length <= MOST_WORDS) parts.push(wordsOf(labels, grid, context));
    const matrix = matrixOf(/** @type {any} */ ({ units }), /** @type {any} */ (map), context);
    if (keys <= MOST_JOINED && queries === keys && grid.rows === queries && grid.columns === keys) {
      const { node, mark } = linesBetween(labels, numbersOf(grid), state);
      marks.push(mark);
      matrix.prepend(node);
    }
    parts.push(matrix);
    large.replaceChildren(...parts);
    for (const mark of marks) mark();
  }

  /** The text, coloured by the attention of the chosen token. @param {string[]} labels @param {import("./data.js").Grid} grid @param {any} context */
  function wordsOf(labels, grid, context) {
    const values = numbersOf(grid);
    const items = labels.map((label, i) => element("span", { class: "wf-token", dir: "auto", dataset: { units: String(i) }, "aria-label": label },
      label.replace(/^##|^[Ġ▁]+/, "") || "␣"));
    const run = element("p", { class: "wf-run" }, ...items.flatMap((item, i) => (i && !labels[i].startsWith("##") ? [" ", item] : [item])));
    const told = element("p", { class: "wf-said-unit", "aria-live": "polite" });
    context.marks.push(link(state, run, items, `tokens, ${nameOf(site, head)}`), () => {
      const unit = state.choices.unit;
      const row = unit === null ? -1 : Math.floor((unit * grid.rows) / labels.length);
      const weights = items.map((_, i) => (row < 0 ? 0 : values[row * grid.columns + Math.floor((i * grid.columns) / labels.length)]));
      const reach = Math.max(...weights);
      items.forEach((item, i) => {
        const colour = colourOf({ reach, low: 0, signed: false }, weights[i]);
        Object.assign(item.style, row < 0 ? { background: "", color: "" } : { background: css(colour), color: inkOn(colour) });
      });
      const best = weights.indexOf(reach);
      told.textContent = unit === null ? "Hover a token to colour what it attends to; click to pin; arrow keys move; Esc unpins."
        : `${labels[unit]} attends most to ${labels[best]} (weight ${number(reach)})`;
    });
    return element("div", {}, told, run);
  }

  const rows = buttons.map((line, s) => element("div", { class: "wf-heads-row" }, element("span", { class: "wf-note" }, `layer ${layerOf(s)}`), ...line));
  const grid = element("div", { class: "wf-heads-grid", role: "group", "aria-label": "layers down, heads across: arrow keys move" }, ...rows);
  grid.addEventListener("keydown", (event) => {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const [down, right] = moves[event.key];
    const s = Math.max(0, Math.min(buttons.length - 1, site + down));
    choose(s, Math.max(0, Math.min(buttons[s].length - 1, head + right)), true);
  });
  /** Moves through the layers at the chosen head. */
  const layers = slider("layer", [0, buttons.length - 1, 1], 0, (s) => choose(s, Math.min(head, buttons[s].length - 1)));
  layers.hidden = buttons.length === 1;
  const tools = element("div", { class: "wf-tools", role: "toolbar", "aria-label": "controls" }, layers,
    chooser("colour scale", [["shared", "one scale"], ["own", "own scales"]], () => (shared ? "shared" : "own"), (value) => {
      shared = value === "shared";
      paintSmall();
    }));
  state.listen(() => { for (const mark of marks) mark(); });
  const repaint = () => { paintSmall(); drawLarge(); };
  choose(0, 0);
  paintSmall();
  const whole = buttons.flat().length > 1 ? [tools, element("p", { class: "wf-note" }, "Click a map to enlarge it."), grid] : [];
  return { node: element("div", { class: "wf-live-view" }, ...whole, large), repaint };
}
