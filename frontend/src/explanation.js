// One input under one method or several: prediction, text or picture, bars, waterfall and map, all linked.
import { ORDERS, barsOf } from "./bars.js";
import { classesOf } from "./classes.js";
import { entriesOf, isFolded, nounOf, number, percent, pluralOf, scaleOf, scoreOf } from "./data.js";
import { chooser, element, slider, tick } from "./dom.js";
import { awayOf, badgeOf, blanking, evidenceState, howToTrust } from "./evidence.js";
import { copyImage } from "./image.js";
import { legendLine } from "./legend.js";
import { matrixOf } from "./matrix.js";
import { originalOf, patchesOf, pictureOf } from "./picture.js";
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
  const node = element("div", { class: "wf-live-view" }, classes, toolsOf(), said, body, below, measured ? null : howToTrust());

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
    const original = several && patches && data.picture ? [element("div", { class: "wf-card wf-original" }, element("h3", {}, "Input image"), originalOf(data))] : [];
    body.replaceChildren(...original, ...shown.map((map) => {
      const scale = scales[maps.indexOf(map)];
      const context = { several, state, entries, shares, scale, marks, away: () => awayOf(map, evidence) };
      const [parts, folds] = [[], []];
      const [picture, legend] = [patches ? pictureOf(data, map, context) : null, map.nothing ? null : legendOf(map, scale, Boolean(patches), shares)];
      if (several) parts.push(element("h3", {}, map.name));
      if (map.trust) parts.push(badgeOf(map, context, evidence, mark));
      const beside = picture && !several && !textStreams(units).length;  // a picture leaves room for its bars
      if (beside) {
        const both = data.picture ? [titled("Input image", originalOf(data)), titled("Scores per patch", picture)] : [titled("Scores per patch", picture)];
        folds.push(element("div", { class: "wf-part wf-pictures" }, element("div", { class: "wf-both" }, ...both), legend));
      } else if (picture) parts.push(picture);
      for (const stream of textStreams(units)) {
        if (textStreams(units).length > 1) parts.push(element(several ? "h4" : "h3", {}, stream));
        parts.push(textOf(data, map, context, stream));
      }
      if (isSound(units)) parts.push(stripOf(units, map, context));
      if (!beside && legend) parts.push(legend);
      const falls = !several && map.signed && units.stream.every((stream) => stream === "table");  // a row opens with its waterfall
      const waterfall = () => fold("waterfall", `Waterfall: from the baseline (${number(map.base)}) to the explained value (${number(map.value)})`, waterfallOf(map, context), falls);
      const list = (open) => fold("bars", `Scores per ${nounOf(units, by)}`, listOf(map, context), open);
      if (map.nothing) parts.push(element("p", { class: "wf-nothing" }, map.nothing));
      else if (map.base === null) folds.push(list(true));
      else if (falls) {
        folds.push(waterfall(), list(false));
        folds[folds.length - 2].style.flexBasis = "100%";
      } else folds.push(list(true), waterfall());
      if ((map.matrix || map.layers) && !map.nothing) {
        const noun = nounOf(units);
        const title = `${noun[0].toUpperCase()}${noun.slice(1)}-to-${noun} relevance${layer >= 0 && map.layers ? `, layer ${layer}` : ""}`;
        folds.push(fold("map", title, matrixOf(data, map, context), !several && units.labels.length <= 64 && !patches));
      }
      parts.push(element("div", { class: "wf-parts" }, ...folds));
      if (map.small) parts.push(element("p", { class: "wf-note" }, map.small));
      if (map.doubts.length) parts.push(element("div", { class: "wf-doubts" }, element("b", {}, "Warnings"),
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
    if (!measuring) said.textContent = sentence();
    node.classList.toggle("wf-pinned", state.choices.pinned);
  }

  /** The chosen unit, with its score under every method. */
  function sentence() {
    const unit = state.choices.unit;
    if (unit === null) {
      return "Hover for scores; click to pin; arrow keys move; Esc unpins.";
    }
    const entry = entries.find((e) => e.members.includes(unit)) ?? entries[0];
    const told = maps.map((map) => {
      const score = scoreOf(map, entry, false);
      const listed = entries.filter((e) => !isFolded(map, e));
      const rank = 1 + listed.filter((e) => scoreOf(map, e, false) > score).length;
      const place = isFolded(map, entry) ? "hidden" : `${rank}. of ${listed.length}`;
      const told = several && mixed && state.choices.shared ? percent(score * map.share) : number(score);
      return `${several ? `${map.name} ` : ""}${told} (${place})`;
    });
    return `${entry.label}${entry.special ? " (special)" : ""} · ${told.join(" · ")}`;
  }

  /** Room for the longest sentence: one that wrapped would push what is hovered away from the mouse. */
  let measuring = false;
  function reserve() {
    const longest = entries.reduce((most, { label }) => (label.length > most.length ? label : most), "");
    measuring = true;
    said.style.minHeight = "";
    const places = `(${entries.length}. of ${entries.length})`;
    said.textContent = `${longest} (special) · ${maps.map((map) => `${several ? `${map.name} ` : ""}-0.00000 ${places}`).join(" · ")}`;
    said.style.minHeight = `${said.offsetHeight}px`;
    measuring = false;
    said.textContent = sentence();
  }
  let width = 0;
  new ResizeObserver(([{ contentRect }]) => {
    if (contentRect.width === width) return;
    width = contentRect.width;
    reserve();
  }).observe(node);

  /** Panels that can be closed; they stay as the reader left them. */
  const opened = new Map();
  function fold(key, title, inner, open) {
    const details = element("details", { class: "wf-part" }, element("summary", {}, title), inner);
    details.open = opened.get(key) ?? open;
    details.addEventListener("toggle", () => opened.set(key, details.open));
    return details;
  }

  function toolsOf() {
    const tools = element("div", { class: "wf-tools", role: "toolbar", "aria-label": "controls" });
    if (units.word && units.word.some((word, i) => i && word >= 0 && word === units.word[i - 1])) {
      tools.append(chooser("scores per", [["token", "token"], ["word", "word"]], () => state.choices.by, (by) => state.set({ by, unit: null, pinned: false })));
    }
    tools.append(chooser("sort", ORDERS, () => state.choices.order, (order) => state.set({ order })));
    const filter = element("input", { type: "search", placeholder: `find a ${nounOf(units)}`, "aria-label": `show only ${pluralOf(nounOf(units))} that contain this text` });
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
      if (data.picture) tools.append(slider("overlay", [0, 100, 5], 60, (value) => state.set({ opacity: value / 100 })));
      tools.append(slider("zoom", [1, 6, 0.5], 1, (value) => state.set({ zoom: value })), tick("smooth", false, (smooth) => state.set({ smooth })));
    }
    const deepest = Math.max(...maps.map((map) => map.layers?.length ?? 0));
    if (deepest) {
      const words = element("output", {}, "all layers");
      tools.append(slider("layer", [-1, deepest - 1, 1], -1, (value) => {
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

/** Caption, details and warnings of what is shown. @param {import("./data.js").Footer} footer @param {boolean} shared */
function footerOf({ caption, shared: onOneScale, details, doubts }, shared) {
  const rows = details.filter(([name]) => name !== "not validated");  // which has a fold of its own
  return [
    element("p", { class: "wf-caption" }, shared ? onOneScale : caption),
    rows.length ? element("dl", { class: "wf-facts" }, ...rows.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)))) : null,
    doubts.length ? element("div", { class: "wf-doubts" }, element("b", {}, "Warnings"), element("ul", {}, ...doubts.map((doubt) => element("li", {}, doubt)))) : null,
  ].filter((part) => part !== null);
}

/** @param {import("./data.js").ScoreMap} map @param {import("./color.js").Scale} scale @param {boolean} overImage @param {boolean} shares */
function legendOf(map, scale, overImage, shares) {
  const [explained] = map.explained.split(" = ");
  const sides = map.sides ? `orange supports ${map.sides[1]}, blue supports ${map.sides[0]}` : `orange lowers, blue raises the ${explained}`;
  const told = shares ? "share of the method's total |score|, hidden tokens left out" : "score";
  const stronger = overImage ? "dark: low, yellow: high" : "stronger colour: higher score";
  return legendLine(scale, `${told} (${scale.signed ? sides : stronger})`, overImage, shares);
}

/** @param {string} title @param {HTMLElement} inner */
function titled(title, inner) {
  return element("figure", { class: "wf-titled" }, element("figcaption", {}, title), inner);
}
