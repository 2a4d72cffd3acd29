// Elements. Everything that comes from a model (tokens, labels, names of files and columns) goes through here, as text.

/**
 * An element with properties and children; strings become text, never markup.
 * @param {string} tag
 * @param {Record<string, any>} [properties] `class`, `style`, `dataset`, `on…` and attributes
 * @param {...(Node | string | null | undefined)} children
 * @returns {HTMLElement}
 */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "style") Object.assign(made.style, value);
    else if (name === "dataset") Object.assign(made.dataset, value);
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

/**
 * A choice of one among several, as buttons that say which is pressed.
 * @param {string} name read before the buttons
 * @param {[string, string][]} options value and words
 * @param {() => string} current
 * @param {(value: string) => void} choose
 */
export function chooser(name, options, current, choose) {
  const buttons = options.map(([value, words]) =>
    element("button", { type: "button", onclick: () => { choose(value); say(); } }, words));
  function say() {
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(options[i][0] === current())));
  }
  say();
  return element("span", { class: "wf-chooser", role: "group", "aria-label": name }, element("small", { "aria-hidden": "true" }, name), ...buttons);
}

/**
 * A box to tick.
 * @param {string} words
 * @param {boolean} ticked
 * @param {(ticked: boolean) => void} change
 */
export function tick(words, ticked, change) {
  const box = element("input", { type: "checkbox" });
  box.checked = ticked;
  box.addEventListener("change", () => change(box.checked));
  return element("label", { class: "wf-tick" }, box, words);
}

/**
 * A slider with its name.
 * @param {string} name
 * @param {[number, number, number]} range lowest and highest value, and the step
 * @param {number} value
 * @param {(value: number) => void} change
 */
export function slider(name, [low, high, step], value, change) {
  const input = element("input", { type: "range", min: low, max: high, step, value, "aria-label": name });
  input.addEventListener("input", () => change(Number(input.value)));
  return element("label", { class: "wf-slide" }, name, input);
}

// In two halves: a page may not hold an address, which it would seem to fetch.
export const SVG_SPACE = ["ht", "tp://www.w3.org/2000/svg"].join("");

/** A shape of a drawing. @param {string} tag @param {Record<string, any>} attributes @param {...(Node | string)} children */
export function drawnShape(tag, attributes, ...children) {
  const made = document.createElementNS(SVG_SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.append(...children);
  return made;
}
