// Made by frontend/build.py from frontend/src: change those.

const MANY = 6;  // inputs; of more, some are folded
const OPEN = 3;

function folding(section, draw) {
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

function howToAsk(predicted, label) {
  const code = `wf.explain(model, inputs, processor=…, target=(${JSON.stringify(predicted)}, ${JSON.stringify(label)}))`;
  return element("span", {}, `This page has no map of ${predicted} rather than ${label}. `, element("code", {}, code),
    " makes one; passed to save as others=[…], it opens here.");
}

function questionsOf(data, place) {
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

const DRAW = { explanation: (data, place) => explanationOf(data, questionsOf(data, place)), rows: beeswarmOf, heads: headsOfRecord };

function fitFrame() {
  const frame = (window.frameElement);
  if (!frame?.classList.contains("wf-frame-host")) return;
  const fit = () => { frame.style.height = `${Math.ceil(document.body.getBoundingClientRect().height)}px`; };
  new ResizeObserver(fit).observe(document.body);
  fit();
}

function start() {
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
  document.querySelectorAll("table.wf-shaded").forEach((table) => sortable(table));
  document.querySelectorAll(".wf-switch").forEach((old) => {
    if (!document.querySelector(".wf-still:not([hidden]) tr.wf-special")) old.hidden = true;
  });
  document.documentElement.classList.add("wf-started");
  fitFrame();
}

start();
