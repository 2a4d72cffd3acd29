// Made by frontend/build.py from frontend/src: change those.

const MOST_DRIVERS = 6;
const MOST_ARCS = 4;
const GUTTER = 72;

function graphOf(root) {
  const data = JSON.parse(root.querySelector(".wf-data")?.textContent ?? "");
  const pieces = ([...root.querySelectorAll("[data-piece]")]);
  const run = (root.querySelector(".wf-graph-run"));
  const why = (root.querySelector(".wf-why"));
  const lines = drawnShape("svg", { class: "wf-graph-lines", width: GUTTER, "aria-hidden": "true" });
  run.prepend(lines);
  let path = [data.steps.length - 1];
  let by = "shares";

  const percent = (value) => `${Math.round((100 * value) / data.unit)}\u00a0%`;
  const words = (piece) => (pieces[piece].textContent ?? "").trim();
  const ranked = (step, rows) => rows[step].map((_, p) => p)
    .filter((p) => rows[step][p] >= data.least * data.unit).sort((a, b) => rows[step][b] - rows[step][a]);
  const middle = (piece) => {
    const closed = (pieces[piece].closest("details:not([open])"));
    const box = (closed ?? pieces[piece]).getBoundingClientRect();
    return (box.top + box.bottom) / 2 - run.getBoundingClientRect().top;
  };

  const join = (from, to, share, chosen) => {
    const [a, b] = [middle(from), middle(to)];
    const deep = Math.min(GUTTER - 8, 14 + Math.abs(b - a) / 6);
    lines.append(drawnShape("path", {
      d: `M${GUTTER} ${a} C${GUTTER - deep} ${a} ${GUTTER - deep} ${b} ${GUTTER} ${b}`,
      class: chosen ? "wf-line-chosen" : "wf-line", "stroke-width": chosen ? 1 + 5 * share : 1, "data-from": from, "data-to": to,
    }));
  };

  const drawLines = () => {
    lines.replaceChildren();
    lines.setAttribute("height", String(run.scrollHeight));
    const here = path[path.length - 1];
    data.steps.forEach((piece, step) => {
      if (step !== here) for (const p of ranked(step, data.shares).slice(0, 1)) join(p, piece, 0, false);
    });
    for (const p of ranked(here, data[by]).slice(0, MOST_ARCS)) {
      join(p, data.steps[here], data[by][here][p] / data.unit, true);
    }
  };

  const walk = (step) => element("button", { type: "button", onclick: () => choose([...path, step]) }, `walk back to step ${step}`);
  const source = (here, p) => {
    const [share, drop, step] = [data[by][here][p], data.drops[here][p], data.steps.indexOf(p)];
    const call = data.calls[p];
    const left = drop === null ? null : `without it: log-probability ${drop < 0 ? "+" : "\u2212"}${Math.abs(drop).toFixed(2)}`;
    return element("li", {},
      element("span", { class: "wf-why-bar", style: { width: `${(100 * share) / data.unit}%` } }),
      element("b", {}, percent(share)), ` ${data.names[p]}: `, element("span", { dir: "auto" }, words(p)),
      left ? element("span", { class: "wf-note" }, ` (${left})`) : null,
      step >= 0 ? walk(step) : call === null ? null : walk(call));
  };

  const draw = () => {
    const here = path[path.length - 1];
    const row = data[by][here];
    const reach = Math.max(...row);
    pieces.forEach((piece, p) => {
      const step = data.steps.indexOf(p);
      const colour = colourOf({ reach, low: 0, signed: false }, row[p]);
      piece.style.background = row[p] ? css(colour) : "none";
      piece.style.color = row[p] ? inkOn(colour) : "";
      piece.style.opacity = p > data.steps[here] ? "0.45" : "";
      piece.title = p < data.steps[here] ? percent(row[p]) : "";
      if (step >= 0) piece.setAttribute("aria-pressed", String(step === here));
    });
    const trail = path.map((step, i) => element("button", {
      type: "button", "aria-current": i === path.length - 1 ? "step" : null, onclick: () => choose(path.slice(0, i + 1)),
    }, `step ${step}`));
    const best = ranked(here, data[by]).slice(0, MOST_DRIVERS);
    why.replaceChildren(
      element("p", { class: "wf-trail" }, ...trail.flatMap((button, i) => (i ? [" \u2190 ", button] : [button]))),
      element("h4", {}, `What drove ${data.names[data.steps[here]]}?`),
      element("p", { dir: "auto", class: "wf-why-step" }, words(data.steps[here])),
      chooser("shares", [["shares", "direct"], ["origins", "origins: steps handed on"]], () => by, (value) => { by = value; draw(); }),
      best.length ? element("ol", {}, ...best.map((p) => source(here, p))) : element("p", {}, "No source speaks for it."),
    );
    drawLines();
  };
  const choose = (next) => { path = next; draw(); };

  root.classList.add("wf-live");
  data.steps.forEach((p, step) => {
    const piece = pieces[p];
    piece.classList.add("wf-step");
    piece.setAttribute("role", "button");
    piece.tabIndex = 0;
    piece.addEventListener("click", () => choose([step]));
    piece.addEventListener("keydown", (event) => {
      const to = { ArrowDown: step + 1, ArrowUp: step - 1, Home: 0, End: data.steps.length - 1 }[event.key];
      if (event.key === "Enter" || event.key === " ") choose([step]);
      else if (to !== undefined && data.steps[to] !== undefined) pieces[data.steps[to]].focus();
      else return;
      event.preventDefault();
    });
  });
  root.addEventListener("keydown", (event) => { if (event.key === "Escape") choose([data.steps.length - 1]); });
  root.addEventListener("toggle", drawLines, true);
  new ResizeObserver(drawLines).observe(run);
  draw();
  return draw;
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
  for (const graph of document.querySelectorAll(".wf-graph")) repaints.push(graphOf(graph));
  document.querySelectorAll("table.wf-shaded").forEach((table) => sortable(table));
  document.querySelectorAll(".wf-switch").forEach((old) => {
    if (!document.querySelector(".wf-still:not([hidden]) tr.wf-special")) old.hidden = true;
  });
  document.documentElement.classList.add("wf-started");
  fitFrame();
}

start();
