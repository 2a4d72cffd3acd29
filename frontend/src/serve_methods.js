// The methods: those that do not apply are grey, with the reason; the default is marked.
import { element } from "./dom.js";

/**
 * @param {() => void} changed
 * @returns {{node: HTMLElement, show: (methods: any[], anew: boolean) => void, chosen: () => string[], choose: (names: string[]) => void}}
 */
export function methodList(changed) {
  /** @type {Set<string>} */
  let ticked = new Set();
  /** @type {any[]} */
  let methods = [];
  const summary = element("summary", {}, "method");
  const list = element("div", { class: "sv-methods", role: "group", "aria-label": "methods" });
  const node = element("details", { class: "sv-fold" }, summary, list);

  function say() {
    summary.textContent = ticked.size ? `method: ${[...ticked].join(", ")}` : "method: none chosen";
  }
  function draw() {
    list.replaceChildren(...methods.map((method) => {
      const box = /** @type {HTMLInputElement} */ (element("input", { type: "checkbox", value: method.name }));
      box.checked = ticked.has(method.name);
      box.disabled = method.applies === false;
      box.addEventListener("change", () => {
        if (box.checked) ticked.add(method.name); else ticked.delete(method.name);
        say();
        changed();
      });
      const mark = method.default ? element("b", { class: "sv-mark" }, "default") : null;
      const words = method.applies === false ? method.reason : `${method.idea} Cost: ${method.cost}.`;
      return element("label", { class: method.applies === false ? "sv-method sv-grey" : "sv-method", title: words },
        box, element("span", {}, method.name), mark, method.applies === false ? element("small", {}, method.reason) : null);
    }));
    say();
  }
  return {
    node,
    show(told, anew) {
      methods = told;
      if (anew) ticked.clear();
      const known = new Set(told.filter((m) => m.applies !== false).map((m) => m.name));
      ticked = new Set([...ticked].filter((name) => known.has(name)));
      if (!ticked.size) ticked = new Set(told.filter((m) => m.default).map((m) => m.name));
      draw();
    },
    chosen: () => [...ticked],
    choose(names) {
      ticked = new Set(names);
      draw();
    },
  };
}
