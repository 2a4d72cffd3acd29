// Finds the data beside the still pictures of a page, and puts interactive views in their place.
import { beeswarmOf } from "./beeswarm.js";
import { dialogueOf } from "./dialogue.js";
import { explanationOf } from "./explanation.js";
import { graphOf } from "./graph.js";
import { headsOfRecord } from "./heads.js";
import { MANY, OPEN, folding } from "./folded.js";
import { questionsOf } from "./questions.js";
import { sortable } from "./table.js";
import { theme } from "./theme.js";

const DRAW = { explanation: (data, place) => explanationOf(data, questionsOf(data, place)), rows: beeswarmOf, heads: headsOfRecord };

/** In a notebook the page stands in a frame, which is made as high as the page. */
function fitFrame() {
  const frame = /** @type {HTMLElement | null} */ (window.frameElement);
  if (!frame?.classList.contains("wf-frame-host")) return;
  const fit = () => { frame.style.height = `${Math.ceil(document.body.getBoundingClientRect().height)}px`; };
  new ResizeObserver(fit).observe(document.body);
  fit();
}

function start() {
  /** @type {(() => void)[]} */
  const repaints = [];
  const button = theme(() => repaints.forEach((repaint) => repaint()));
  document.querySelector(".wf")?.prepend(button);
  let place = 0;
  const many = document.querySelectorAll("script.wf-data[data-kind=explanation]").length > MANY;
  for (const script of document.querySelectorAll("script.wf-data[data-kind]")) {
    const section = script.closest(".wf-view");
    const at = script.dataset.kind === "explanation" ? place++ : 0;
    const draw = () => {
      try {
        const { node, repaint } = DRAW[script.dataset.kind](JSON.parse(script.textContent ?? ""), at);
        script.before(node);
        repaints.push(repaint);
        section?.querySelectorAll(":scope > .wf-still").forEach((still) => { still.hidden = true; });
      } catch (error) {
        console.error(error);  // the still picture stays
      }
    };
    const folded = section?.hasAttribute("data-folded") || (many && at >= OPEN);
    if (folded && section) folding(section, draw); else draw();
  }
  for (const section of document.querySelectorAll(".wf-view[data-folded]")) {
    if (!section.querySelector(":scope > script.wf-data")) folding(section, () => {});
  }
  for (const dialogue of document.querySelectorAll(".wf-dialogue")) repaints.push(dialogueOf(dialogue));
  for (const graph of document.querySelectorAll(".wf-graph")) repaints.push(graphOf(graph));
  document.querySelectorAll("table.wf-shaded").forEach((table) => sortable(table));
  document.querySelectorAll(".wf-switch").forEach((old) => {
    if (!document.querySelector(".wf-still:not([hidden]) tr.wf-special")) old.hidden = true;
  });
  document.documentElement.classList.add("wf-started");
  fitFrame();
}

start();
