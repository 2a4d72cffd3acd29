// One answer: drawn as saved pages draw it, with what was edited, its heads, its trust, and files to take away.
import { beeswarmOf } from "./beeswarm.js";
import { number, percent } from "./data.js";
import { dialogueOf } from "./dialogue.js";
import { chooser, element } from "./dom.js";
import { enlarging } from "./enlarge.js";
import { explanationOf } from "./explanation.js";
import { headsOfRecord } from "./heads.js";
import { patchesOf } from "./picture.js";
import { headsOf } from "./serve_heads.js";
import { trustOf } from "./serve_trust.js";
import { sortable } from "./table.js";

const KINDS = { explanation: explanationOf, rows: beeswarmOf, heads: headsOfRecord };
const TABS = { heads: "layers × heads", trust: "trust" };
const FILES = [["html", "page"], ["json", "JSON"], ["png", "PNG"], ["csv", "CSV"]];

/**
 * @typedef {{index: number, label: string}} Named
 * @typedef {{contrast: (said: Named, other: Named) => void, erase: (unit: number) => void, erasing: (on?: boolean) => boolean,
 *   choose: (method: string) => void, about: (kind: string, id: string, more: any) => Promise<any>}} Doors
 * @param {any} told @param {Doors} doors
 * @returns {{node: HTMLElement, repaint: () => void}}
 */
export function resultOf(told, doors) {
  /** @type {(() => void)[]} */
  const repaints = [];
  const tabs = told.tabs?.length ? [["explanation", "explanation"], ...told.tabs.map((kind) => [kind, TABS[kind]])] : [];
  const body = element("div", { class: "sv-body", role: tabs.length ? "tabpanel" : null, "aria-label": tabs.length ? "result" : null });
  let item = 0;  // of several objects or written tokens
  let tab = "explanation";
  /** @type {Map<string, HTMLElement>} */
  const opened = new Map();
  const key = () => `${tab} ${item}`;

  function firstTab() {
    const parts = [];
    if (told.beside?.difference) parts.push(differenceOf(told.beside.difference));
    const still = told.html ? stillView(told.html, repaints) : null;
    if (told.items.length || !told.views.length) parts.push(still);
    if (told.left_out) parts.push(element("p", { class: "wf-note" }, told.left_out));
    if (told.views.length) parts.push(liveView(told.views[item], doors, repaints, !told.items.length));
    if (!told.items.length && told.views.length) parts.push(still);
    const failures = Object.entries(told.failures ?? {});
    if (failures.length) parts.push(element("div", { class: "wf-doubts", role: "note" }, element("b", {}, "Not explained"),
      element("ul", {}, ...failures.map(([method, reason]) => element("li", {}, element("b", {}, `${method}: `), reason)))));
    return element("div", {}, ...parts);
  }
  const buttons = tabs.map(([kind, words]) => element("button", { type: "button", role: "tab", "data-tab": kind, onclick: () => { tab = kind; open(); } }, words));
  const items = told.items.length > 1 ? chooser("which one", told.items.map((name, i) => [String(i), `${i + 1}: ${name}`]), () => String(item), (value) => { item = Number(value); open(); }) : null;
  items?.classList.add("sv-items");

  async function open(more = {}) {
    const mine = key();
    if (more.again) opened.delete(mine);
    buttons.forEach((button) => button.setAttribute("aria-selected", String(button.dataset.tab === tab)));
    if (!opened.has(mine) && tab === "explanation") opened.set(mine, firstTab());
    if (!opened.has(mine)) {
      body.replaceChildren(element("p", { class: "wf-note" }, "computing …"));
      try {
        const { about } = await doors.about(tab, told.id, { item, ...more });
        opened.set(mine, mine.startsWith("heads") ? headsOf(about, repaints) : trustOf(about, doors.choose, () => open({ again: true, thorough: true })));
      } catch (error) {
        if (mine === key()) body.replaceChildren(element("p", { class: "sv-error" }, error.message));
        return;
      }
      if (mine !== key()) return;
    }
    body.replaceChildren(/** @type {HTMLElement} */ (opened.get(mine)));
  }
  const files = element("p", { class: "sv-files" }, "download: ", ...FILES.flatMap(([form, words]) =>
    [element("a", { href: `/api/results/${told.id}/export?format=${form}`, download: `whyformer-${told.id}.${form}` }, words), " "]),
  element("a", { href: told.link, class: "sv-link" }, "link"));
  const title = told.items.length ? told.title : told.views[0]?.title ?? told.title;
  const node = element("section", { class: "wf-view sv-result", "aria-label": "result", "data-id": told.id },
    element("h2", { dir: "auto" }, title), files, items,
    tabs.length ? element("div", { class: "sv-tabs", role: "tablist" }, ...buttons) : null, body);
  open();
  return { node, repaint: () => repaints.forEach((repaint) => repaint()) };
}

/** @param {any} view @param {Doors} doors @param {(() => void)[]} repaints @param {boolean} asks whether classes are to be clicked */
function liveView(view, doors, repaints, asks) {
  const { node, repaint } = KINDS[view.data.kind](view.data);
  repaints.push(repaint);
  // By their place in the list, which is that of their numbers: two classes may have one name.
  if (asks) node.querySelectorAll(".wf-class:not(.wf-first)").forEach((line, i) => {
    line.classList.add("sv-asks");
    line.setAttribute("title", "click: why not this class?");
    line.addEventListener("click", () => doors.contrast({ index: view.predicted, label: view.data.prediction.label }, { index: view.choices[i], label: view.data.prediction.next[i][0] }));
  });
  const told = (facts) => element("dl", { class: "wf-facts" }, ...facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
  const drawn = view.data.prediction && view.data.prediction.probability !== null;  // the classes say it
  const answer = view.details.length ? view.facts.map(([name, value]) => element("p", { class: "wf-answer" }, element("span", {}, name), ` ${value}`)) : [told(view.facts)];
  const doubts = view.doubts.length ? element("div", { class: "wf-doubts" }, element("b", {}, "Warnings"), element("ul", {}, ...view.doubts.map((doubt) => element("li", {}, doubt)))) : null;
  return element("div", {}, ...(drawn ? [] : answer), view.data.units?.grid && !view.data.units.upwards ? eraserOf(view, node, doors) : null, node, ...(view.data.footer ? [] : [told(view.details), doubts]));
}

/** Of pictures: a switch after which a click on a patch asks again without it. @param {any} view @param {HTMLElement} node @param {Doors} doors */
function eraserOf({ data, erasable }, node, doors) {
  if (!erasable) return element("p", { class: "wf-note" }, "Patches cannot be erased: the model does not read the whole image resized to one size.");
  const box = /** @type {HTMLInputElement} */ (element("input", { type: "checkbox", class: "sv-erase" }));
  box.checked = doors.erasing();
  box.addEventListener("change", () => doors.erasing(box.checked));
  node.addEventListener("click", (event) => {
    const stage = box.checked && event.target instanceof Element ? event.target.closest(".wf-stage") : null;
    if (!stage) return;
    const bounds = stage.getBoundingClientRect();
    const [rows, columns] = data.units.grid;
    const row = Math.floor(((event.clientY - bounds.top) / bounds.height) * rows);
    const column = Math.floor(((event.clientX - bounds.left) / bounds.width) * columns);
    const unit = patchesOf(data.units)[row * columns + column];
    if (unit !== undefined) doors.erase(unit);
  }, true);
  return element("label", { class: "wf-tick" }, box, "erase clicked patches");
}

/** Results without live data, as saved pages have them. @param {string} html @param {(() => void)[]} repaints */
function stillView(html, repaints) {
  const page = new DOMParser().parseFromString(html, "text/html").querySelector(".wf");
  const node = element("div", { class: "sv-still" }, ...(page ? [...page.children].map((child) => document.importNode(child, true)) : []));
  for (const script of node.querySelectorAll("script.wf-data[data-kind]")) {
    const data = JSON.parse(script.textContent ?? "");
    const live = KINDS[data.kind]?.(data);
    if (!live) continue;
    script.before(live.node);
    repaints.push(live.repaint);
    script.closest(".wf-view")?.querySelectorAll(":scope > .wf-still").forEach((still) => { still.hidden = true; });
  }
  for (const dialogue of node.querySelectorAll(".wf-dialogue")) repaints.push(dialogueOf(dialogue));
  node.querySelectorAll("table.wf-shaded").forEach((table) => sortable(table));
  node.querySelectorAll(".wf-small .wf-panel").forEach((panel) => enlarging(panel));
  return node;
}

/** Before and after an edit. @param {any} difference */
function differenceOf(difference) {
  const share = (value) => (value === null || value === undefined ? "–" : percent(value));
  const [was, is] = difference.prediction;
  const lead = was === is ? `Still ${is}.` : `From ${was} to ${is}.`;
  const rated = difference.classes.some(({ before, after }) => before !== null || after !== null);
  const classes = !rated ? [element("tr", {}, element("th", { scope: "row" }, difference.scalar), ...difference.value.map((value) => element("td", {}, number(value))),
    element("td", {}, signedOf(difference.value[1] - difference.value[0], number)))] : difference.classes.map(({ label, before, after }) => element("tr", {}, element("th", { scope: "row", dir: "auto" }, label),
    element("td", {}, share(before)), element("td", {}, share(after)), element("td", {}, before === null || after === null ? "" : signedOf(after - before, (size) => `${number(100 * size)} percentage points`))));
  const isEdited = ({ values = [null, null] }) => Number(values[0] !== values[1]);  // columns that hold something else come first
  const moved = difference.units.filter((unit) => isEdited(unit) || unit.before === null || unit.after === null || unit.before !== unit.after)
    .sort((a, b) => isEdited(b) - isEdited(a) || Math.abs((b.after ?? 0) - (b.before ?? 0)) - Math.abs((a.after ?? 0) - (a.before ?? 0))).slice(0, 12);
  const named = (label, [old, now] = [null, null]) => (old === null || now === null ? label : old === now ? `${label} = ${now}` : `${label}: ${old} → ${now}`);
  const units = moved.map(({ label, values, before, after }) => element("tr", {}, element("th", { scope: "row", dir: "auto" }, named(label, values)),
    element("td", {}, before === null ? "–" : number(before)), element("td", {}, after === null ? "–" : number(after)),
    element("td", {}, signedOf((after ?? 0) - (before ?? 0), number))));
  const table = (name, rows) => element("table", { class: "sv-table" }, element("thead", {}, element("tr", {}, ...[name, "before", "after", "difference"].map((words) => element("th", { scope: "col" }, words)))), element("tbody", {}, ...rows));
  return element("div", { class: "sv-difference" }, element("h3", {}, "What the edit changed"), element("p", {}, element("b", {}, lead)),
    element("div", { class: "sv-curves" }, table(rated ? "probability of" : "value", classes), table("score of", units)),
    difference.same ? null : element("p", { class: "wf-note" }, `The scores answer different questions: ${difference.explained.join("; then ")}.`));
}

function signedOf(value, told) {
  return `${value >= 0 ? "+" : "−"}${told(Math.abs(value))}`;
}
