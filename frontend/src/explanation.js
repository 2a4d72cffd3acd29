// One input under one method or several: prediction, text or picture, bars, waterfall and map, all linked.
import { gradient } from "./color.js";
import { ORDERS, barsOf } from "./bars.js";
import { classesOf } from "./classes.js";
import { endsOf, entriesOf, isFolded, number, percent, scaleOf, scoreOf } from "./data.js";
import { chooser, element, tick } from "./dom.js";
import { awayOf, badgeOf, blanking, evidenceState, howToTrust } from "./evidence.js";
import { copyImage } from "./image.js";
import { matrixOf } from "./matrix.js";
import { patchesOf, pictureOf } from "./picture.js";
import { stateOf } from "./state.js";
import { isSound, stripOf } from "./strip.js";
import { textOf, textStreams } from "./text.js";
import { waterfallOf } from "./waterfall.js";

/**
 * @param {import("./data.js").Data} data
 * @param {import("./classes.js").Ask | null} [ask] what a click on a class does where the page has no map for it
 * @returns {{node: HTMLElement, repaint: () => void}}
 */
export function explanationOf(data, ask = null) {
  const { units } = data;
  let { maps, footer } = data;
  const several = maps.length > 1;
  const mixed = new Set(maps.map((map) => map.method)).size > 1;
  const state = stateOf({ by: data.by, order: maps.some((map) => map.signed) ? "size" : "ranked", specials: data.specials, shared: data.shared });
  /** @type {(() => void)[]} */
  let marks = [];
  /** @type {import("./data.js").Entry[]} */
  let entries = [];
  /** Bars are sorted and filtered without drawing the rest anew. @type {Map<string, {draw: () => void, marks: (() => void)[]}>} */
  const lists = new Map();
  const said = element("p", { class: "wf-said-unit", "aria-live": "polite" });
  const body = element("div", { class: "wf-maps" });
  const evidence = evidenceState();
  const measured = maps.some((map) => map.trust);
  const classes = classesOf(data, ask, (question) => {
    ({ maps, footer } = question ?? data);
    draw();
  });
  const below = element("div", { class: "wf-footer" });
  const node = element("div", { class: "wf-live-view" }, classes, ...(several ? [toolsOf(), said, body] : [said, body, toolsOf()]), below, measured ? null : howToTrust());

  function draw() {
    marks = [];
    lists.clear();
    const { by, shared, hidden, layer } = state.choices;
    const shares = several && mixed && shared;
    entries = entriesOf(units, by);
    const patches = units.grid ? patchesOf(units).map((i) => ({ label: units.labels[i], members: [i], special: false, span: null })) : null;
    const shown = maps.filter((map) => !hidden.has(map.name));
    const scales = maps.map((map) => scaleOf(map, patches ?? entries, shares, !patches));
    if (several && shared) {
      const reach = Math.max(...scales.map((scale) => scale.reach));
      scales.forEach((scale) => { scale.reach = reach; });
    }
    body.replaceChildren(...shown.map((map) => {
      const scale = scales[maps.indexOf(map)];
      const context = { several, state, entries, shares, scale, marks, away: () => awayOf(map, evidence) };
      const [parts, folds] = [[], []];
      const [picture, legend] = [patches ? pictureOf(data, map, context) : null, map.nothing ? null : legendOf(map, scale, Boolean(patches), shares)];
      if (several) parts.push(element("h3", {}, map.name));
      if (map.trust) parts.push(badgeOf(map, context, evidence, mark));
      const beside = picture && !several && !textStreams(units).length;  // a picture leaves room for its bars
      if (beside) folds.push(element("div", { class: "wf-part" }, picture, legend)); else if (picture) parts.push(picture);
      for (const stream of textStreams(units)) {
        if (textStreams(units).length > 1) parts.push(element(several ? "h4" : "h3", {}, stream));
        parts.push(textOf(data, map, context, stream));
      }
      if (isSound(units)) parts.push(stripOf(units, map, context));
      if (!beside && legend) parts.push(legend);
      const falls = !several && map.signed && units.stream.every((stream) => stream === "table");  // a row opens with its waterfall
      const waterfall = () => fold(`from baseline ${number(map.base)} to ${number(map.value)}`, waterfallOf(map, context), falls);
      if (map.nothing) parts.push(element("p", { class: "wf-nothing" }, map.nothing));
      else if (map.base === null) folds.push(fold(`bars`, listOf(map, context), true));
      else if (falls) {
        folds.push(waterfall(), fold(`bars`, listOf(map, context), false));
        folds[folds.length - 2].style.flexBasis = "100%";
      } else folds.push(fold(`bars`, listOf(map, context), true), waterfall());
      if ((map.matrix || map.layers) && !map.nothing) {
        const title = layer >= 0 && map.layers ? `map of layer ${layer}: who gets what from whom` : "map: who gets what from whom";
        folds.push(fold(title, matrixOf(data, map, context), !several && units.labels.length <= 64 && !patches));
      }
      parts.push(element("div", { class: "wf-parts" }, ...folds));
      if (map.small) parts.push(element("p", { class: "wf-note" }, map.small));
      if (map.doubts.length) parts.push(element("div", { class: "wf-doubts" }, element("b", {}, "What to doubt"),
        element("ul", {}, ...map.doubts.map((doubt) => element("li", {}, doubt)))));
      const card = element("div", { class: several ? "wf-map wf-card" : "wf-map" }, ...parts);
      if (map.trust?.deletion) marks.push(blanking(card, map, evidence));
      return card;
    }));
    below.replaceChildren(...footerOf(footer, shared));
    body.classList.toggle("wf-single", !several);
    body.classList.toggle("wf-four", shown.length === 4);
    mark();
  }

  /** @param {import("./data.js").ScoreMap} map @param {any} context */
  function listOf(map, context) {
    const place = element("div");
    const list = { marks: [], draw: () => {
      list.marks = [];
      place.replaceChildren(barsOf(data, map, { ...context, marks: list.marks }));
    } };
    list.draw();
    lists.set(map.name, list);
    return place;
  }

  function mark() {
    for (const each of [...[...lists.values()].flatMap((list) => list.marks), ...marks]) each();
    said.textContent = sentence();
    node.classList.toggle("wf-pinned", state.choices.pinned);
  }

  /** The chosen unit, with its score under every method. */
  function sentence() {
    const unit = state.choices.unit;
    if (unit === null) {
      return units.grid && !textStreams(units).length
        ? "Point at a patch for its score; a click holds it, arrow keys move on."
        : `Point at a unit for its score${several ? " under every method" : ""}; a click holds it, arrow keys move on, Escape lets go.`;
    }
    const entry = entries.find((e) => e.members.includes(unit)) ?? entries[0];
    const told = maps.map((map) => {
      const score = scoreOf(map, entry, false);
      const listed = entries.filter((e) => !isFolded(map, e));
      const rank = 1 + listed.filter((e) => scoreOf(map, e, false) > score).length;
      const place = isFolded(map, entry) ? "hidden" : `${rank}. of ${listed.length}`;
      // Short: a second line would push what is pointed at away from the mouse.
      const told = several && mixed && state.choices.shared ? percent(score * map.share) : number(score);
      return `${several ? `${map.name} ` : ""}${told} (${place})`;
    });
    return `${entry.label}${entry.special ? " (special)" : ""} · ${told.join(" · ")}`;
  }

  /** Panels that can be closed; they stay as the reader left them. */
  const opened = new Map();
  function fold(title, inner, open) {
    const key = title.split(/[ :]/)[0];
    const details = element("details", { class: "wf-part" }, element("summary", {}, title), inner);
    details.open = opened.get(key) ?? open;
    details.addEventListener("toggle", () => opened.set(key, details.open));
    return details;
  }

  function toolsOf() {
    const tools = element("div", { class: "wf-tools", role: "toolbar", "aria-label": "how it is drawn" });
    if (units.word && units.word.some((word, i) => i && word >= 0 && word === units.word[i - 1])) {
      tools.append(chooser("scores of", [["token", "tokens"], ["word", "words"]], () => state.choices.by, (by) => state.set({ by, unit: null, pinned: false })));
    }
    tools.append(chooser("order of bars", ORDERS, () => state.choices.order, (order) => state.set({ order })));
    const filter = element("input", { type: "search", placeholder: "find a unit", "aria-label": "show bars of units with these letters" });
    filter.addEventListener("input", () => state.set({ filter: filter.value }));
    tools.append(filter);
    if (maps.some((map) => map.folded.length)) tools.append(tick("special tokens", data.specials, (specials) => state.set({ specials })));
    if (several) {
      tools.append(chooser("colour scale", [["shared", "one scale"], ["own", "own scales"]],
        () => (state.choices.shared ? "shared" : "own"), (value) => state.set({ shared: value === "shared" })));
      for (const map of maps) {
        tools.append(tick(map.name, true, (on) => {
          const hidden = new Set(state.choices.hidden);
          if (on) hidden.delete(map.name); else hidden.add(map.name);
          state.set({ hidden });
        }));
      }
    }
    if (units.grid) {
      if (data.picture) tools.append(slider("overlay", 0, 100, 60, (value) => state.set({ opacity: value / 100 })));
      tools.append(slider("zoom", 1, 6, 1, (value) => state.set({ zoom: value })), tick("smooth", false, (smooth) => state.set({ smooth })));
    }
    const deepest = Math.max(...maps.map((map) => map.layers?.length ?? 0));
    if (deepest) {
      const words = element("output", {}, "all layers");
      tools.append(slider("layer", -1, deepest - 1, -1, (value) => {
        words.textContent = value < 0 ? "all layers" : `layer ${value}`;
        state.set({ layer: value });
      }), words);
    }
    const copy = element("button", { type: "button", onclick: async () => {
      copy.textContent = await copyImage(node).catch(() => "not possible here");
      setTimeout(() => { copy.textContent = "copy as image"; }, 1500);
    } }, "copy as image");
    tools.append(copy);
    return tools;
  }

  state.listen((changed) => {
    const quick = new Set(["unit", "pinned", "opacity", "zoom", "smooth"]);
    const sorting = new Set([...quick, "order", "filter", "shown"]);
    if (![...changed].every((key) => sorting.has(key))) return draw();
    if (![...changed].every((key) => quick.has(key))) lists.forEach((list) => list.draw());
    mark();
  });
  draw();
  return { node, repaint: draw };
}

/** Caption, details and doubts of what is shown. @param {import("./data.js").Footer} footer @param {boolean} shared */
function footerOf({ caption, shared: onOneScale, details, doubts }, shared) {
  const rows = details.filter(([name]) => name !== "doubt");  // what was not tested has a fold of its own
  return [
    element("p", { class: "wf-caption" }, shared ? onOneScale : caption),
    rows.length ? element("dl", { class: "wf-facts" }, ...rows.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)))) : null,
    doubts.length ? element("div", { class: "wf-doubts" }, element("b", {}, "What to doubt"), element("ul", {}, ...doubts.map((doubt) => element("li", {}, doubt)))) : null,
  ].filter((part) => part !== null);
}

/** @param {import("./data.js").ScoreMap} map @param {import("./color.js").Scale} scale @param {boolean} overImage @param {boolean} shares */
function legendOf(map, scale, overImage, shares) {
  const [low, high] = endsOf(scale.signed ? -scale.reach : scale.low, scale.reach, shares);
  const sides = map.sides ? `supports ${map.sides[1]} … supports ${map.sides[0]}` : "lowers … raises the explained value";
  const told = shares ? "share of the method's total |score|, hidden tokens left out" : "score";
  const words = scale.signed ? `${told}: ${sides}` : told;
  return element("div", { class: "wf-legend" },
    element("span", { class: "wf-ramp", style: { background: gradient(scale, overImage) } }),
    element("span", {}, `${low} … ${high}`), element("span", {}, words));
}

/** @param {string} name @param {number} low @param {number} high @param {number} value @param {(value: number) => void} change */
function slider(name, low, high, value, change) {
  const input = element("input", { type: "range", min: low, max: high, step: high - low > 20 ? 5 : name === "zoom" ? 0.5 : 1, value, "aria-label": name });
  input.addEventListener("input", () => change(Number(input.value)));
  return element("label", { class: "wf-slide" }, name, input);
}
