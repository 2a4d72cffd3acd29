// Units that are drawn in several places: pointing at one marks all of them, arrow keys walk through them.

/**
 * @typedef {ReturnType<typeof import("./state.js").stateOf>} State
 */

/**
 * Link elements to units: each carries `data-units` (the first counts), hovering shows, a click or Enter holds.
 * @param {State} state @param {HTMLElement} container @param {HTMLElement[]} items in the order of arrow keys
 * @param {string} name for screen readers
 */
export function link(state, container, items, name) {
  container.setAttribute("role", "listbox");
  container.setAttribute("aria-label", name);
  /** @type {Map<number, HTMLElement>} */
  const byUnit = new Map();
  items.forEach((item, i) => {
    item.setAttribute("role", "option");
    item.setAttribute("aria-selected", "false");
    item.tabIndex = i ? -1 : 0;
    for (const unit of unitsOf(item)) byUnit.set(unit, item);
  });
  const itemAt = (event) => {
    const item = event.target instanceof Element ? event.target.closest("[data-units]") : null;
    return item && container.contains(item) ? /** @type {HTMLElement} */ (item) : null;
  };
  const show = (item, pinned) => state.set({ unit: unitsOf(item)[0], pinned });
  container.addEventListener("pointerover", (event) => {
    const item = itemAt(event);
    if (item && !state.choices.pinned) show(item, false);
  });
  container.addEventListener("pointerleave", () => {
    if (!state.choices.pinned) state.set({ unit: null });
  });
  container.addEventListener("click", (event) => {
    const item = itemAt(event);
    if (!item) return;
    const held = state.choices.pinned && unitsOf(item).includes(state.choices.unit ?? -1);
    state.set(held ? { pinned: false } : { unit: unitsOf(item)[0], pinned: true });
  });
  container.addEventListener("keydown", (event) => {
    const item = itemAt(event);
    if (!item) return;
    const at = items.indexOf(item);
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    const ends = { Home: 0, End: items.length - 1 };
    const to = event.key in ends ? ends[event.key] : event.key in steps ? at + steps[event.key] : -1;
    if (event.key === "Escape") state.set({ unit: null, pinned: false });
    else if (event.key === "Enter" || event.key === " ") show(item, true);
    else if (items[to]) {
      items.forEach((other) => { other.tabIndex = other === items[to] ? 0 : -1; });
      items[to].focus();
      show(items[to], state.choices.pinned);
    } else return;
    event.preventDefault();
  });
  /** @type {HTMLElement | null} */
  let marked = null;
  const mark = () => {
    const unit = state.choices.unit;
    const item = unit === null ? null : byUnit.get(unit) ?? null;
    if (item === marked) return;
    for (const [other, here] of /** @type {[HTMLElement | null, boolean][]} */ ([[marked, false], [item, true]])) {
      other?.classList.toggle("wf-here", here);
      other?.setAttribute("aria-selected", String(here));
    }
    marked = item;
  };
  mark();
  return mark;
}

/** @param {HTMLElement} item @returns {number[]} */
export function unitsOf(item) {
  return (item.dataset.units ?? "").split(",").map(Number);
}
