// Pages of many inputs: the first are open, the others are a line each until they are wanted.
import { element } from "./dom.js";

export const MANY = 6;  // inputs; of more, some are folded
export const OPEN = 3;

/** @param {HTMLElement} section @param {() => void} draw called once, when it is opened */
export function folding(section, draw) {
  const heading = section.querySelector(":scope > h2");
  if (!heading) return draw();
  let drawn = false;
  const button = element("button", { type: "button", class: "wf-unfold", "aria-expanded": "false", onclick: () => {
    const open = section.classList.toggle("wf-folded");
    button.setAttribute("aria-expanded", String(!open));
    if (!drawn) draw();
    drawn = true;
  } }, heading.textContent ?? "");
  heading.replaceChildren(button);
  section.classList.add("wf-folded");
}
