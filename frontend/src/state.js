// What the reader chose on one view, and who wants to know.

/**
 * @typedef {{unit: number | null, pinned: boolean, by: string, specials: boolean, order: string, filter: string,
 *   shared: boolean, hidden: Set<string>, opacity: number, zoom: number, layer: number, shown: number, smooth: boolean}} Choices
 */

/**
 * @param {Partial<Choices>} start
 */
export function stateOf(start) {
  /** @type {Choices} */
  const choices = {
    unit: null, pinned: false, by: "token", specials: false, order: "ranked", filter: "", shared: false,
    hidden: new Set(), opacity: 0.6, zoom: 1, layer: -1, shown: 0, smooth: false, ...start,
  };
  /** @type {((changed: Set<string>) => void)[]} */
  const listeners = [];
  return {
    choices,
    /** @param {(changed: Set<string>) => void} listener */
    listen(listener) { listeners.push(listener); },
    /** @param {Partial<Choices>} changes */
    set(changes) {
      const changed = new Set(Object.keys(changes).filter((key) => choices[key] !== changes[key] || key === "hidden"));
      Object.assign(choices, changes);
      if (changed.size) for (const listener of listeners) listener(changed);
    },
  };
}
