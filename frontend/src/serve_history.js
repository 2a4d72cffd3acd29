// What was explained before: searched, opened again, put side by side, deleted.
import { element } from "./dom.js";
import { asked } from "./serve_api.js";

const AT_ONCE = 50;

/**
 * @param {(id: string) => void} open @param {(ids: string[]) => void} compare @param {(words: string, wrong?: boolean) => void} say
 * @returns {{node: HTMLElement, refresh: () => Promise<void>}}
 */
export function historyList(open, compare, say) {
  const search = /** @type {HTMLInputElement} */ (element("input", { type: "search", placeholder: "search", "aria-label": "search results" }));
  const list = element("ul", { class: "sv-list" });
  /** @type {Set<string>} */
  const chosen = new Set();
  const beside = /** @type {HTMLButtonElement} */ (element("button", { type: "button", onclick: () => compare([...chosen]) }, "side by side"));
  const remove = /** @type {HTMLButtonElement} */ (element("button", { type: "button", onclick: () => removed().catch((error) => say(error.message, true)) }, "delete"));
  const older = element("button", { type: "button", hidden: true, onclick: () => more().catch((error) => say(error.message, true)) }, "older");
  let last = 0;  // when the oldest one that is shown was made
  let turn = 0;
  const count = () => { beside.disabled = chosen.size < 2; remove.disabled = chosen.size < 1; };

  function lineOf(result) {
    const box = /** @type {HTMLInputElement} */ (element("input", { type: "checkbox", "aria-label": `choose ${result.title}` }));
    box.checked = chosen.has(result.id);
    box.addEventListener("change", () => { if (box.checked) chosen.add(result.id); else chosen.delete(result.id); count(); });
    const link = element("a", { href: result.link, onclick: (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      open(result.id);
    } }, element("b", { dir: "auto" }, result.title), element("small", {}, `${result.said} · ${result.method} · ${result.model}`), element("small", {}, timeOf(result.made)));
    return element("li", {}, box, link);
  }
  async function listed(before) {
    const { results } = await asked(`/api/results?search=${encodeURIComponent(search.value)}&limit=${AT_ONCE}${before ? `&before=${before}` : ""}`);
    return results;
  }
  function shown(results) {
    list.append(...results.map(lineOf));
    last = results.at(-1)?.made ?? last;
    older.hidden = results.length < AT_ONCE;
  }
  async function refresh() {
    const mine = ++turn;
    const results = await listed(0);
    if (mine !== turn) return;
    list.replaceChildren();
    shown(results);
    if (!results.length) list.append(element("li", { class: "wf-note" }, search.value ? "no matches." : "no results yet."));
  }
  async function more() {
    const mine = turn;
    const results = await listed(last);
    if (mine === turn) shown(results);
  }
  async function removed() {
    for (const id of [...chosen]) {
      chosen.delete(id);
      await asked(`/api/results/${id}`, { method: "DELETE" });
    }
    count();
    await refresh();
  }
  let waiting = 0;
  search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(() => refresh().catch((error) => say(error.message, true)), 200); });
  count();
  return { node: element("details", { class: "sv-fold sv-history", open: true }, element("summary", {}, "results"), element("p", { class: "sv-line" }, search, beside, remove), list, older), refresh };
}

/** Today the time alone. @param {number} seconds */
function timeOf(seconds) {
  const made = new Date(1000 * seconds);
  const today = made.toDateString() === new Date().toDateString();
  return made.toLocaleString(undefined, today ? { timeStyle: "short" } : { dateStyle: "medium", timeStyle: "short" });
}
