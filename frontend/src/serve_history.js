// What was explained before: searched, opened again, put side by side.
import { element } from "./dom.js";
import { asked } from "./serve_api.js";

/**
 * @param {(id: string) => void} open @param {(ids: string[]) => void} compare
 * @returns {{node: HTMLElement, refresh: () => Promise<void>}}
 */
export function historyList(open, compare) {
  const search = /** @type {HTMLInputElement} */ (element("input", { type: "search", placeholder: "search", "aria-label": "search results" }));
  const list = element("ul", { class: "sv-list" });
  /** @type {Set<string>} */
  const chosen = new Set();
  const beside = /** @type {HTMLButtonElement} */ (element("button", { type: "button", onclick: () => compare([...chosen]) }, "side by side"));
  const say = () => { beside.disabled = chosen.size < 2; };
  async function refresh() {
    const { results } = await asked(`/api/results?search=${encodeURIComponent(search.value)}&limit=100`);
    list.replaceChildren(...results.map((result) => {
      const box = /** @type {HTMLInputElement} */ (element("input", { type: "checkbox", "aria-label": `choose ${result.title}` }));
      box.checked = chosen.has(result.id);
      box.disabled = result.kind !== "explanation";
      box.addEventListener("change", () => { if (box.checked) chosen.add(result.id); else chosen.delete(result.id); say(); });
      const link = element("a", { href: result.link, onclick: (event) => {
        if (event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        open(result.id);
      } }, element("b", { dir: "auto" }, result.title), element("small", {}, `${result.said} · ${result.method} · ${result.model}`));
      return element("li", {}, box, link);
    }));
    if (!results.length) list.append(element("li", { class: "wf-note" }, search.value ? "nothing fits." : "nothing yet."));
  }
  let waiting = 0;
  search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(refresh, 200); });
  say();
  return { node: element("details", { class: "sv-fold sv-history", open: true }, element("summary", {}, "results"), element("p", { class: "sv-line" }, search, beside), list), refresh };
}
