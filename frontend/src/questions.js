// A click on another class of a saved page: shows the call that explains it, or asks the notebook's kernel.
import { element } from "./dom.js";

/** The call that answers, to be copied. @param {string} predicted @param {string} label */
function howToAsk(predicted, label) {
  const code = `wf.explain(model, inputs, processor=…, target=(${JSON.stringify(predicted)}, ${JSON.stringify(label)}))`;
  return element("span", {}, `This page has no map of ${predicted} rather than ${label}. `, element("code", {}, code),
    " makes one; passed to save as others=[…], it opens here.");
}

/**
 * @param {import("./data.js").Data} data @param {number} place of its view on the page @returns {import("./classes.js").Ask}
 */
export function questionsOf(data, place) {
  if (document.documentElement.dataset.asks === undefined) return (label) => howToAsk(data.prediction.label, label);
  return (label) => new Promise((done, failed) => {
    const number = `${Date.now()}-${Math.random()}`;
    const listen = (event) => {
      if (event.source !== window.parent || event.data?.whyformer !== number) return;
      window.removeEventListener("message", listen);
      if (event.data.question) done(event.data.question); else failed(new Error(event.data.error ?? "no answer"));
    };
    window.addEventListener("message", listen);
    window.parent.postMessage({ whyformer: "ask", number, label, place }, "*");
  });
}
