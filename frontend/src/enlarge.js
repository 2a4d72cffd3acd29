// Small maps (every head of every layer): a click opens one in large.
import { element } from "./dom.js";

/** @param {HTMLElement} panel */
export function enlarging(panel) {
  const map = panel.querySelector("svg");
  if (!map) return;
  const name = panel.querySelector("h3")?.textContent ?? "";
  const open = () => {
    const copy = /** @type {SVGElement} */ (map.cloneNode(true));
    const dialog = /** @type {HTMLDialogElement} */ (element("dialog", { class: "wf-large", "aria-label": name },
      element("form", { method: "dialog" }, element("h3", {}, name), element("button", {}, "close")), copy));
    dialog.addEventListener("close", () => dialog.remove());
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
    panel.closest(".wf")?.append(dialog);
    dialog.showModal();
  };
  panel.classList.add("wf-opens");
  panel.tabIndex = 0;
  panel.setAttribute("role", "button");
  panel.setAttribute("aria-label", `head ${name}, open in large`);
  panel.addEventListener("click", open);
  panel.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    open();
  });
}
