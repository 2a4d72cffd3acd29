// The predicted class and the next ones: a click on one explains the prediction rather than that class.
import { percent } from "./data.js";
import { element } from "./dom.js";

/**
 * @typedef {{label: string, words: string, maps: import("./data.js").ScoreMap[], footer: import("./data.js").Footer}} Question why the prediction rather than `label`
 * @typedef {(label: string) => Promise<Question> | Node} Ask of a class that the page has no map for: its answer, or what is said instead
 */

/**
 * @param {import("./data.js").Data} data @param {Ask | null} ask without it, only classes that the page has maps for are buttons
 * @param {(question: Question | null) => void} show draws a question, or the prediction again
 */
export function classesOf(data, ask, show) {
  const { label, probability, next } = data.prediction;
  if (probability === null) return null;
  /** @type {Map<string, Question>} */
  const known = new Map((data.others ?? []).map((question) => [question.label, question]));
  const told = element("div", { class: "wf-why", "aria-live": "polite" });
  /** @type {HTMLElement[]} */
  const buttons = [];
  let shown = "";
  const back = () => element("button", { type: "button", class: "wf-more", onclick: () => choose("") }, "back to the prediction");
  const answer = (question) => {
    known.set(question.label, question);
    told.replaceChildren(element("b", {}, question.words), ` ${question.maps[0].explained}. `, back());
    show(question);
  };
  const choose = async (name) => {
    shown = name === shown ? "" : name;
    buttons.forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.label === shown)));
    told.replaceChildren();
    const question = known.get(shown);
    if (question) return answer(question);
    show(null);
    if (!shown || !ask) return;
    const asked = ask(shown);
    if (asked instanceof Node) return told.replaceChildren(asked);
    told.replaceChildren("computing …");
    try {
      const answered = await asked;
      if (shown === name) answer(answered);
    } catch (error) {
      if (shown === name) told.replaceChildren(error.message);
    }
  };
  const line = (name, share, first) => {
    const asks = !first && ((ask !== null && data.prediction.asks) || known.has(name));
    const words = asks
      ? element("button", { type: "button", class: "wf-label wf-asks", dir: "auto", dataset: { label: name }, "aria-pressed": "false", title: `why not ${name}?`, onclick: () => choose(name) }, name)
      : element("span", { class: "wf-label", dir: "auto" }, name);
    if (asks) buttons.push(words);
    return element("li", { class: first ? "wf-class wf-first" : "wf-class" }, words, element("span", { class: "wf-number" }, percent(share)),
      element("span", { class: "wf-track" }, element("i", { class: "wf-bar", style: { left: "0", width: `${100 * share}%`, backgroundColor: first ? "var(--wf-raise)" : "var(--wf-special)" } })));
  };
  return element("div", { class: "wf-said-classes" },
    element("p", { class: "wf-says" }, "Predicted classes and their probabilities"),
    element("ul", { class: "wf-classes", "aria-label": "predicted classes and their probabilities" },
      line(label, probability, true), ...next.map(([name, share]) => line(name, share, false))), told);
}
