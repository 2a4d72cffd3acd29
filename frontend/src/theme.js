// Light or dark: as the reader's system, or the notebook around the page, has it; a button changes it.
import { element } from "./dom.js";

/** @returns {boolean} */
function wanted() {
  try {
    const host = window.parent !== window ? window.parent.document.body : null;
    if (host?.dataset.jpThemeLight) return host.dataset.jpThemeLight === "false";
    if (host && /vscode-(dark|light)/.test(host.className)) return host.className.includes("vscode-dark");
  } catch { /* a frame of another origin: its own preference counts */ }
  return window.matchMedia("(prefers-color-scheme: dark)").matches;
}

/** @param {(dark: boolean) => void} changed */
export function theme(changed) {
  const root = document.documentElement;
  const set = (dark) => {
    root.classList.toggle("wf-dark", dark);
    root.style.colorScheme = dark ? "only dark" : "only light";
    button.textContent = dark ? "light" : "dark";
    button.setAttribute("aria-label", dark ? "switch to a light page" : "switch to a dark page");
    changed(dark);
  };
  const button = element("button", { type: "button", class: "wf-theme", onclick: () => set(!root.classList.contains("wf-dark")) });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => set(wanted()));
  set(wanted());
  return button;
}
