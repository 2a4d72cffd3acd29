// What is to be explained: why this class, or rather than which other; of a detector, from which probability on.
import { element } from "./dom.js";

const USUAL = 0.5;  // above which a detector's objects count

/**
 * @param {() => void} changed
 * @returns {{node: HTMLElement, show: (model: any, said: any) => void, aim: () => any, contrast: (said: any, other: any) => void, restore: (target: any, least?: number) => void}}
 */
export function questionLine(changed) {
  /** @type {Map<number, string>} */
  let known = new Map();
  /** @type {{target: number | null, versus: number | null}} */
  let chosen = { target: null, versus: null };
  let kind = "";
  const selects = { target: chooserOf("what is explained"), versus: chooserOf("rather than") };
  const clear = element("button", { type: "button", onclick: () => { chosen = { target: null, versus: null }; draw(); changed(); } }, "just the prediction");
  const share = /** @type {HTMLInputElement} */ (element("input", { type: "number", min: 0.05, max: 0.95, step: 0.05, value: USUAL, "aria-label": "lowest probability of an object" }));
  const classes = element("span", {}, "Why ", selects.target, " rather than ", selects.versus, "? ", clear);
  const objects = element("label", {}, "objects above ", share);
  const node = element("p", { class: "sv-question" }, classes, objects);
  share.addEventListener("input", changed);

  function chooserOf(words) {
    return /** @type {HTMLSelectElement} */ (element("select", { "aria-label": words }));
  }
  for (const side of ["target", "versus"]) {
    selects[side].addEventListener("input", () => {
      chosen[side] = selects[side].value === "" ? null : Number(selects[side].value);
      draw();
      changed();
    });
  }
  function draw() {
    objects.hidden = kind !== "detector";
    classes.hidden = kind === "detector" || known.size < 2;
    node.hidden = objects.hidden && classes.hidden;
    clear.hidden = chosen.target === null && chosen.versus === null;
    for (const [side, words] of [["target", "the prediction"], ["versus", "no other class"]]) {
      selects[side].replaceChildren(element("option", { value: "" }, words), ...[...known].map(([index, label]) => element("option", { value: index }, label)));
      selects[side].value = chosen[side] === null ? "" : String(chosen[side]);
    }
  }
  return {
    node,
    show(model, said) {
      kind = model.kind;
      const listed = model.labels.map((label, i) => [model.indices[i], label]);
      const heard = said ? [[said.index, said.label], ...said.next.map((each) => [each.index, each.label])] : [];
      const asked = [...known].filter(([index]) => index === chosen.target || index === chosen.versus);
      known = new Map(listed.length > 1 ? listed : heard.length > 1 ? [...heard, ...asked] : asked);
      draw();
    },
    aim() {
      // Never a whole number: that would be a class.
      if (kind === "detector") return Number(share.value) === USUAL ? {} : { target: Math.min(0.999, Math.max(0.001, Number(share.value))) };
      return { ...(chosen.target === null ? {} : { target: chosen.target }), ...(chosen.versus === null ? {} : { versus: chosen.versus }) };
    },
    /** Both sides by number: what is predicted may change with the next edit, the question does not. */
    contrast(said, other) {
      for (const { index, label } of [said, other]) known.set(index, label);
      chosen = { target: said.index, versus: other.index };
      draw();
    },
    restore(target, least = USUAL) {
      chosen = { target: null, versus: null };
      share.value = String(least);
      if (target) {
        known.set(target.index, target.label);
        chosen.target = target.index;
        if (target.versus !== null) {
          known.set(target.versus, target.versus_label);
          chosen.versus = target.versus;
        }
      }
      draw();
    },
  };
}
