// Made by frontend/build.py from frontend/src: change those.

const DRAW = { explanation: explanationOf, rows: beeswarmOf };

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
  for (const script of document.querySelectorAll("script.wf-data[data-kind]")) {
    const section = script.closest(".wf-view");
    try {
      const data = JSON.parse(script.textContent ?? "");
      const { node, repaint } = DRAW[data.kind](data);
      script.before(node);
      repaints.push(repaint);
      section?.querySelectorAll(":scope > .wf-still").forEach((still) => { still.hidden = true; });
    } catch (error) {
      console.error(error);  // the still picture stays
    }
  }
  for (const dialogue of document.querySelectorAll(".wf-dialogue")) repaints.push(dialogueOf(dialogue));
  document.querySelectorAll("table.wf-shaded").forEach((table) => sortable(table));
  document.querySelectorAll(".wf-small .wf-panel").forEach((panel) => enlarging(panel));
  document.querySelectorAll(".wf-switch").forEach((old) => {
    if (!document.querySelector(".wf-still:not([hidden]) tr.wf-special")) old.hidden = true;
  });
  document.documentElement.classList.add("wf-started");
  fitFrame();
}

start();
