// Made by frontend/build.py from frontend/src: change those.

const SMALL_SIDE = 52;
const MOST_WORDS = 600;  // tokens that are written out

function headsOfRecord(data) {
  const state = stateOf({});
  let [site, head, shared] = [0, 0, true];
  const highest = Math.max(...data.sites.flatMap(({ heads }) => heads.map((grid) => grid.high)));
  const large = element("div", { class: "wf-head-large" });
  let marks = [];
  const buttons = data.sites.map(({ heads }, s) => heads.map((grid, h) => element("button", {
    type: "button", class: "wf-head", "aria-label": `layer ${s}, head ${h}`, title: `layer ${s}, head ${h}`, tabindex: s + h ? "-1" : "0",
    onclick: () => choose(s, h),
  }, smallOf(grid))));

  function smallOf(grid) {
    return element("canvas", { width: grid.columns, height: grid.rows, "aria-hidden": "true",
      style: { width: `${SMALL_SIDE}px`, height: `${Math.max(6, Math.min(SMALL_SIDE, (SMALL_SIDE * grid.rows) / grid.columns))}px`,
        imageRendering: grid.columns > SMALL_SIDE ? "auto" : "pixelated" } });
  }

  function paintSmall() {
    data.sites.forEach(({ heads }, s) => heads.forEach((grid, h) => {
      const pen = (buttons[s][h].querySelector("canvas").getContext("2d"));
      const pixels = pen.createImageData(grid.columns, grid.rows);
      const scale = { reach: shared ? highest : grid.high, low: 0, signed: false };
      paintScores(scale, numbersOf(grid), pixels.data);
      pen.putImageData(pixels, 0, 0);
    }));
  }

  function choose(s, h, focus = false) {
    [site, head] = [s, h];
    buttons.flat().forEach((button) => { button.tabIndex = -1; button.setAttribute("aria-pressed", "false"); });
    buttons[s][h].tabIndex = 0;
    buttons[s][h].setAttribute("aria-pressed", "true");
    if (focus) buttons[s][h].focus();
    drawLarge();
  }

  function drawLarge() {
    marks = [];
    const { name, queries, keys, heads } = data.sites[site];
    const grid = heads[head];
    const known = data.labels.length === keys && queries === keys;
    const labels = known ? data.labels : Array.from({ length: keys }, (_, i) => `position ${i}`);
    const units = { labels, special: labels.map(() => 0), stream: labels.map(() => "text") };
    const map = { name: `layer ${site}, head ${head}`, matrix: grid, layers: null, signed: false, read: 0 };
    const context = { state, several: false, marks };
    const parts = [element("h3", {}, `layer ${site}, head ${head}`), element("p", { class: "wf-note" }, `${name} · largest weight ${number(grid.high)}`)];
    if (known && labels.length <= MOST_WORDS) parts.push(wordsOf(labels, grid, context));
    parts.push(matrixOf(({ units }), (map), context));
    large.replaceChildren(...parts);
    for (const mark of marks) mark();
  }

  function wordsOf(labels, grid, context) {
    const values = numbersOf(grid);
    const items = labels.map((label, i) => element("span", { class: "wf-token", dir: "auto", dataset: { units: String(i) }, "aria-label": label },
      label.replace(/^##|^[Ġ▁]+/, "") || "␣"));
    const run = element("p", { class: "wf-run" }, ...items.flatMap((item, i) => (i && !labels[i].startsWith("##") ? [" ", item] : [item])));
    const told = element("p", { class: "wf-said-unit", "aria-live": "polite" });
    context.marks.push(link(state, run, items, `words, layer ${site}, head ${head}`), () => {
      const unit = state.choices.unit;
      const row = unit === null ? -1 : Math.floor((unit * grid.rows) / labels.length);
      const weights = items.map((_, i) => (row < 0 ? 0 : values[row * grid.columns + Math.floor((i * grid.columns) / labels.length)]));
      const reach = Math.max(...weights);
      items.forEach((item, i) => {
        const colour = colourOf({ reach, low: 0, signed: false }, weights[i]);
        Object.assign(item.style, row < 0 ? { background: "", color: "" } : { background: css(colour), color: inkOn(colour) });
      });
      const best = weights.indexOf(reach);
      told.textContent = unit === null ? "Point at a word: what it looks at is coloured. A click holds it, arrow keys move on."
        : `${labels[unit]} looks most at ${labels[best]} (${number(reach)})`;
    });
    return element("div", {}, told, run);
  }

  const rows = buttons.map((line, s) => element("div", { class: "wf-heads-row" }, element("span", { class: "wf-note" }, String(s)), ...line));
  const grid = element("div", { class: "wf-heads-grid", role: "group", "aria-label": "layers down, heads across: arrow keys walk" }, ...rows);
  grid.addEventListener("keydown", (event) => {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const [down, right] = moves[event.key];
    const s = Math.max(0, Math.min(buttons.length - 1, site + down));
    choose(s, Math.max(0, Math.min(buttons[s].length - 1, head + right)), true);
  });
  const tools = element("div", { class: "wf-tools", role: "toolbar", "aria-label": "how it is drawn" },
    chooser("colours of small maps", [["shared", "one scale"], ["own", "own scales"]], () => (shared ? "shared" : "own"), (value) => {
      shared = value === "shared";
      paintSmall();
    }));
  state.listen(() => { for (const mark of marks) mark(); });
  const repaint = () => { paintSmall(); drawLarge(); };
  choose(0, 0);
  paintSmall();
  return { node: element("div", { class: "wf-live-view" }, tools, grid, large), repaint };
}

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
    " makes one; given to save as others=[…], it opens here.");
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
    if (many && at >= OPEN && section) folding(section, draw); else draw();
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
