// Made by frontend/build.py from frontend/src: change those.

class Refused extends Error {}

async function asked(path, how = {}) {
  let answer;
  try {
    answer = await fetch(path, { credentials: "same-origin", ...how });
  } catch {
    throw new Refused("the server does not answer: is it still running?");
  }
  const told = await answer.json().catch(() => ({ error: `the server answers ${answer.status}` }));
  if (!answer.ok) throw new Refused(told.error ?? `the server answers ${answer.status}`);
  return told;
}

function posted(path, question) {
  return asked(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(question) });
}

async function worked(path, question, news) {
  const told = await posted(path, { ...question, wait: 0.4 });
  if (!told.job) return told;
  news(told);
  const ended = await new Promise((resolve, reject) => {
    const events = new EventSource(`/api/jobs/${told.job}/events`);
    const close = (then, value) => { events.close(); then(value); };
    events.addEventListener("progress", (event) => news(JSON.parse(event.data)));
    events.addEventListener("done", (event) => close(resolve, JSON.parse(event.data)));
    for (const end of ["failed", "cancelled"]) {
      events.addEventListener(end, (event) => close(reject, new Refused(JSON.parse(event.data).error)));
    }
    events.addEventListener("error", () => {
      if (events.readyState === EventSource.CLOSED) close(reject, new Refused("the connection was lost."));
    });
  });
  return asked(`/api/results/${ended.answer}`);
}

function cancelled(job) {
  return asked(`/api/jobs/${job}`, { method: "DELETE" });
}

function historyList(open, compare) {
  const search = (element("input", { type: "search", placeholder: "search", "aria-label": "search results" }));
  const list = element("ul", { class: "sv-list" });
  const chosen = new Set();
  const beside = (element("button", { type: "button", onclick: () => compare([...chosen]) }, "side by side"));
  const say = () => { beside.disabled = chosen.size < 2; };
  async function refresh() {
    const { results } = await asked(`/api/results?search=${encodeURIComponent(search.value)}&limit=100`);
    list.replaceChildren(...results.map((result) => {
      const box = (element("input", { type: "checkbox", "aria-label": `choose ${result.title}` }));
      box.checked = chosen.has(result.id);
      box.disabled = result.kind !== "explanation";
      box.addEventListener("change", () => { if (box.checked) chosen.add(result.id); else chosen.delete(result.id); say(); });
      const link = element("a", { href: result.link, onclick: (event) => {
        if (event.ctrlKey || event.metaKey || event.shiftKey) return;
        event.preventDefault();
        open(result.id);
      } }, element("b", { dir: "auto" }, result.title), element("small", {}, `${result.said} · ${result.method} · ${result.model}`));
      return element("li", {}, box, link);
    }));
    if (!results.length) list.append(element("li", { class: "wf-note" }, search.value ? "nothing fits." : "nothing yet."));
  }
  let waiting = 0;
  search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(refresh, 200); });
  say();
  return { node: element("details", { class: "sv-fold sv-history", open: true }, element("summary", {}, "results"), element("p", { class: "sv-line" }, search, beside), list), refresh };
}

function formOf(model, changed, say) {
  const forms = { text: textForm, language: promptForm, image: imageForm, table: rowForm };
  return forms[model.kind](model, changed, say);
}

function areaOf(words, value, changed) {
  const area = (element("textarea", { class: "sv-area", rows: 3, maxlength: 20000, "aria-label": words, dir: "auto" }));
  area.value = value;
  area.addEventListener("input", changed);
  return area;
}

function chipsOf(samples, choose) {
  return element("p", { class: "sv-chips" }, ...samples.map((sample) =>
    element("button", { type: "button", onclick: () => choose(sample) }, sample)));
}

function textForm(model, changed) {
  const area = areaOf("text", model.samples[0], changed);
  const fill = (input) => { area.value = input.text ?? model.samples[input.sample] ?? ""; };
  const chips = chipsOf(model.samples, (sample) => { area.value = sample; changed(); });
  return { node: element("div", {}, area, chips), input: () => ({ text: area.value }), more: () => ({}), fill };
}

function promptForm(model, changed) {
  const area = areaOf("prompt", model.samples[0], changed);
  const length = (element("input", { type: "number", min: 0, max: 256, value: 0, "aria-label": "tokens to write" }));
  let chat = false;
  const chatting = model.chat ? tick("as a message", false, (on) => { chat = on; changed(); }) : null;
  const node = element("div", {}, area, element("p", { class: "sv-line" },
    element("label", {}, "write ", length, " tokens (0: explain the next one)"), chatting));
  return {
    node,
    input: () => ({ prompt: area.value, ...(chat ? { chat } : {}) }),
    more: () => (Number(length.value) > 0 ? { generate: Math.round(Number(length.value)) } : {}),
    fill: (input, more = {}) => {
      area.value = input.prompt ?? input.text ?? model.samples[input.sample] ?? "";
      length.value = String(more.generate ?? 0);
    },
  };
}

function imageForm(model, changed, say) {
  let chosen = { sample: 0 };
  const shown = (element("img", { class: "sv-shown", alt: "the picture that is asked about" }));
  const address = (input) => (input.image ? `/api/images/${input.image}` : `/api/samples?model=${encodeURIComponent(model.name)}&number=${input.sample}`);
  const show = (input) => { chosen = input; shown.src = address(input); };
  const file = (element("input", { type: "file", accept: "image/png,image/jpeg,image/webp", "aria-label": "choose a picture" }));
  async function upload(data) {
    if (!data) return;
    try {
      const told = await asked("/api/images", { method: "POST", body: data, headers: { "content-type": "application/octet-stream" } });
      show({ image: told.image });
      changed();
    } catch (error) {
      say(error.message);
    }
  }
  file.addEventListener("change", () => upload(file.files?.[0]));
  const zone = element("div", { class: "sv-drop" }, shown, element("p", {}, "Drop a picture here, or ", file));
  zone.addEventListener("dragover", (event) => { event.preventDefault(); zone.classList.add("sv-over"); });
  zone.addEventListener("dragleave", () => zone.classList.remove("sv-over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("sv-over");
    upload(event.dataTransfer?.files[0]);
  });
  const thumbs = element("p", { class: "sv-chips" }, ...Array.from({ length: model.pictures }, (_, number) =>
    element("button", { type: "button", class: "sv-thumb", onclick: () => { show({ sample: number }); changed(); } },
      element("img", { src: address({ sample: number }), alt: `sample ${number}` }))));
  show(chosen);
  return { node: element("div", {}, zone, thumbs), input: () => ({ ...chosen }), more: () => ({}), fill: ({ erased, ...input }) => show(input) };
}

function rowForm(model, changed) {
  const fields = new Map();
  const cells = model.columns.map(({ name, categories }) => {
    const field = (categories
      ? element("select", {}, ...categories.map((category, i) => element("option", { value: i }, String(category))))
      : element("input", { type: "number", step: "any" }));
    field.addEventListener("input", changed);
    fields.set(name, field);
    return element("label", { class: "sv-cell" }, element("span", {}, name), field);
  });
  const fillRow = (row) => {
    for (const { name, categories } of model.columns) {
      const field = (fields.get(name));
      field.value = categories ? String(Math.max(0, categories.indexOf(row[name]))) : String(row[name] ?? "");
    }
  };
  const rows = element("select", { "aria-label": "row to begin with" },
    ...model.samples.map((_, i) => element("option", { value: i }, `row ${i}`)));
  rows.addEventListener("input", () => { fillRow(model.samples[Number(rows.value)]); changed(); });
  fillRow(model.samples[0]);
  return {
    node: element("div", {}, element("p", { class: "sv-line" }, element("label", {}, "begin with ", rows)), element("div", { class: "sv-cells" }, ...cells)),
    input: () => ({ row: Object.fromEntries(model.columns.map(({ name, categories }) => {
      const { value } = (fields.get(name));
      return [name, categories ? categories[Number(value)] : value === "" ? null : Number(value)];
    })) }),
    more: () => ({}),
    fill: (input) => fillRow(input.row ?? model.samples[input.sample ?? 0] ?? {}),
  };
}

function methodList(changed) {
  let ticked = new Set();
  let methods = [];
  const summary = element("summary", {}, "method");
  const list = element("div", { class: "sv-methods", role: "group", "aria-label": "methods" });
  const node = element("details", { class: "sv-fold" }, summary, list);

  function say() {
    summary.textContent = ticked.size ? `method: ${[...ticked].join(", ")}` : "method: none chosen";
  }
  function draw() {
    list.replaceChildren(...methods.map((method) => {
      const box = (element("input", { type: "checkbox", value: method.name }));
      box.checked = ticked.has(method.name);
      box.disabled = method.applies === false;
      box.addEventListener("change", () => {
        if (box.checked) ticked.add(method.name); else ticked.delete(method.name);
        say();
        changed();
      });
      const mark = method.default ? element("b", { class: "sv-mark" }, "default") : null;
      const words = method.applies === false ? method.reason : `${method.idea} Cost: ${method.cost}.`;
      return element("label", { class: method.applies === false ? "sv-method sv-grey" : "sv-method", title: words },
        box, element("span", {}, method.name), mark, method.applies === false ? element("small", {}, method.reason) : null);
    }));
    say();
  }
  return {
    node,
    show(told, anew) {
      methods = told;
      if (anew) ticked.clear();
      const known = new Set(told.filter((m) => m.applies !== false).map((m) => m.name));
      ticked = new Set([...ticked].filter((name) => known.has(name)));
      if (!ticked.size) ticked = new Set(told.filter((m) => m.default).map((m) => m.name));
      draw();
    },
    chosen: () => [...ticked],
    choose(names) {
      ticked = new Set(names);
      draw();
    },
  };
}

function enlarging(panel) {
  const map = panel.querySelector("svg");
  if (!map) return;
  const name = panel.querySelector("h3")?.textContent ?? "";
  const open = () => {
    const copy = (map.cloneNode(true));
    const dialog = (element("dialog", { class: "wf-large", "aria-label": name },
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

function cellsOf(layer, head) {
  const size = layer.rows * layer.columns;
  const bytes = Uint8Array.from(atob(layer.data).slice(head * size, (head + 1) * size), (c) => c.charCodeAt(0));
  return bytes;
}

function headCanvas(layer, head, side) {
  const canvas = (element("canvas", { class: "sv-head", width: layer.columns, height: layer.rows, style: { width: `${side}px`, height: `${(side * layer.rows) / layer.columns}px` } }));
  const pen = (canvas.getContext("2d"));
  const pixels = pen.createImageData(layer.columns, layer.rows);
  cellsOf(layer, head).forEach((value, i) => {
    pixels.data.set([...colourOf({ reach: 255, low: 0, signed: false }, value), 255], 4 * i);
  });
  pen.putImageData(pixels, 0, 0);
  return canvas;
}

function headsOf(about) {
  const large = element("div", { class: "sv-large", "aria-live": "polite" });
  const most = Math.max(1e-12, ...(about.importance ?? []).flat().map((v) => Math.abs(v ?? 0)));

  function enlarge(layer, l, head) {
    const whole = layer.columns === about.labels.length && layer.rows === about.labels.length;
    const canvas = headCanvas(layer, head, 360);
    const words = element("p", { class: "wf-note" }, whole ? "Point at a cell: who attends to whom." : "Neighbours share a cell.");
    const cells = cellsOf(layer, head);
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      const row = Math.min(layer.rows - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * layer.rows)));
      const column = Math.min(layer.columns - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * layer.columns)));
      const weight = (cells[row * layer.columns + column] / 255) * layer.highest[head];
      const name = (at) => (whole ? about.labels[at] : `cell ${at}`);
      words.textContent = `${name(row)} attends to ${name(column)}: ${number(weight)}`;
    });
    const share = about.importance ? `, importance ${number(about.importance[l][head] ?? 0)}` : "";
    large.replaceChildren(element("h3", {}, `layer ${l}, head ${head}`),
      element("p", { class: "wf-note" }, `highest weight ${number(layer.highest[head])}, mean entropy ${number(layer.entropy[head])}${share}`), canvas, words);
  }

  const rows = about.layers.map((layer, l) => element("div", { class: "sv-heads-row" }, element("span", { class: "wf-note" }, `layer ${l}`),
    ...Array.from({ length: layer.heads }, (_, head) => {
      const weight = about.importance ? Math.abs(about.importance[l][head] ?? 0) / most : 0;
      return element("button", { type: "button", class: "sv-head-button", "aria-label": `layer ${l}, head ${head}`, onclick: () => enlarge(layer, l, head) },
        headCanvas(layer, head, 56), element("i", { class: "sv-weight", style: { width: `${100 * weight}%` } }));
    })));
  const words = about.importance
    ? "Rows attend to columns. The bar under a head is how far the explained score depends on it (gradient), next to the strongest."
    : "Rows attend to columns.";
  return element("div", { class: "sv-heads" }, element("div", { class: "sv-heads-grid" }, ...rows), large, element("p", { class: "wf-note" }, words));
}

const SVG_SPACE = "http://www.w3.org/2000/svg";
const CURVE_WIDTH = 360;
const CURVE_HEIGHT = 220;
const CURVE_LEFT = 36;
const CURVE_BOTTOM = 24;

function drawnShape(tag, attributes) {
  const made = document.createElementNS(SVG_SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  return made;
}

function curveOf(curves, kind, method) {
  const told = curves[kind];
  const values = [told.curve, told.low, told.high].flat().filter((v) => v !== null);
  const [low, high] = [Math.min(0, ...values), Math.max(...values, 1e-9)];
  const x = (share) => CURVE_LEFT + share * (CURVE_WIDTH - CURVE_LEFT - 8);
  const y = (value) => 8 + (1 - ((value ?? 0) - low) / (high - low || 1)) * (CURVE_HEIGHT - CURVE_BOTTOM - 8);
  const line = (points) => points.map((value, i) => `${x(curves.fractions[i]).toFixed(1)},${y(value).toFixed(1)}`).join(" ");
  const words = kind === "remove" ? "as the highest scores are taken away" : "as nothing but the highest scores is there";
  const svg = drawnShape("svg", { viewBox: `0 0 ${CURVE_WIDTH} ${CURVE_HEIGHT}`, class: "sv-curve", role: "img", "aria-label": `${method} ${words}` });
  const band = `${line(told.high)} ${told.low.map((value, i) => `${x(curves.fractions[i]).toFixed(1)},${y(value).toFixed(1)}`).reverse().join(" ")}`;
  svg.append(drawnShape("polygon", { points: band, class: "sv-band" }), drawnShape("polyline", { points: line(told.mean), class: "sv-mean" }),
    drawnShape("polyline", { points: line(told.curve), class: "sv-this" }));
  for (const [at, value] of [[y(high) + 4, high], [y(low), low]]) {
    const text = drawnShape("text", { x: CURVE_LEFT - 4, y: at, "text-anchor": "end" });
    text.textContent = number(value);
    svg.append(text);
  }
  for (const share of [0, 0.5, 1]) {
    const text = drawnShape("text", { x: x(share), y: CURVE_HEIGHT - 6, "text-anchor": share === 1 ? "end" : "middle" });
    text.textContent = `${100 * share} %`;
    svg.append(text);
  }
  const better = kind === "remove" ? told.area < told.random[0] : told.area > told.random[2];
  const verdict = better ? "beats every random order" : (kind === "remove" ? told.area < told.random[1] : told.area > told.random[1])
    ? "better than random on average, inside its band" : "no better than random";
  return element("figure", { class: "sv-figure" }, svg, element("figcaption", { class: "wf-note" },
    `The probability ${words}: mean ${number(told.area ?? 0)}, random ${number(told.random[1] ?? 0)} (${number(told.random[0] ?? 0)} to ${number(told.random[2] ?? 0)}): ${verdict}.`));
}

function trustOf(about, choose, thorough) {
  const { curves, recommended, others } = about;
  const advice = element("p", { class: "sv-advice" }, recommended.method
    ? element("b", {}, `Recommended here: ${recommended.method}. `) : element("b", {}, "No recommendation: "), recommended.why,
  recommended.method && recommended.method !== about.method ? element("button", { type: "button", onclick: () => choose(recommended.method) }, "explain with it") : null);
  const ran = others.filter((other) => other.area !== undefined).concat([{ method: about.method, area: curves.remove.area, agreement: 1 }])
    .sort((a, b) => (a.area ?? 9) - (b.area ?? 9));
  const table = element("table", { class: "sv-table" }, element("thead", {}, element("tr", {}, ...["method", "curve (lower is better)", "agreement"].map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, ...ran.map((other) => element("tr", { class: other.method === about.method ? "sv-this-row" : "" },
      element("th", { scope: "row" }, other.method, other.method === recommended.method ? element("b", { class: "sv-mark" }, "recommended") : null,
        other.method === recommended.unasked ? element("b", { class: "sv-mark" }, "default") : null),
      element("td", {}, other.area === null ? "–" : number(other.area)), element("td", {}, other.agreement === null || other.agreement === undefined ? "–" : number(other.agreement))))));
  const findings = element("ul", { class: "sv-findings" }, ...about.findings.map((finding) =>
    element("li", { class: `sv-${finding.level}` }, element("b", {}, `${finding.level}: ${finding.title}. `), finding.text)));
  return element("div", { class: "sv-trust" }, advice,
    element("div", { class: "sv-curves" }, curveOf(curves, "remove", about.method), curveOf(curves, "keep", about.method)),
    element("p", { class: "wf-note" }, `Grey: between the lowest and highest of ten random orders. Absent parts: ${curves.replacement}. Agreement: rank correlation with ${about.method} over ${curves.parts} parts.`),
    table, element("h3", {}, "Check-up"), findings,
    about.thorough ? null : element("p", { class: "sv-advice" }, element("button", { type: "button", onclick: thorough }, "run the slow checks, too")));
}

const KINDS = { explanation: explanationOf, rows: beeswarmOf };
const FILES = [["html", "page"], ["json", "JSON"], ["png", "PNG"], ["csv", "CSV"]];

function resultOf(told, doors) {
  const repaints = [];
  const body = element("div", { class: "sv-body", role: told.kind === "explanation" && told.views.length ? "tabpanel" : null });
  const whole = element("div", {}, ...told.views.map((view) => liveView(view, doors, repaints)));
  if (told.html) whole.append(stillView(told.html, repaints));
  const failures = Object.entries(told.failures ?? {});
  const parts = [whole];
  if (told.beside?.difference) parts.unshift(differenceOf(told.beside.difference));
  if (failures.length) parts.push(element("div", { class: "wf-doubts", role: "note" }, element("b", {}, "Not explained"),
    element("ul", {}, ...failures.map(([method, reason]) => element("li", {}, element("b", {}, `${method}: `), reason)))));
  const first = element("div", {}, ...parts);

  const opened = new Map([["explanation", first]]);
  const tabs = told.kind === "explanation" && told.views.length ? [["explanation", "explanation"], ["heads", "layers × heads"], ["trust", "trust"]] : [];
  const buttons = tabs.map(([kind, words]) => element("button", { type: "button", role: "tab", "data-tab": kind, onclick: () => open(kind) }, words));
  async function open(kind, more = {}) {
    if (more.again) opened.delete(kind);
    buttons.forEach((button) => button.setAttribute("aria-selected", String(button.dataset.tab === kind)));
    if (!opened.has(kind)) {
      body.replaceChildren(element("p", { class: "wf-note" }, "working …"));
      try {
        const { about } = await doors.about(kind, told.id, more);
        opened.set(kind, kind === "heads" ? headsOf(about) : trustOf(about, doors.choose, () => open("trust", { again: true, thorough: true })));
      } catch (error) {
        body.replaceChildren(element("p", { class: "sv-error" }, error.message));
        return;
      }
      if (!buttons.some((button) => button.dataset.tab === kind && button.getAttribute("aria-selected") === "true")) return;
    }
    body.replaceChildren((opened.get(kind)));
  }
  const files = element("p", { class: "sv-files" }, "take away: ", ...FILES.flatMap(([form, words]) =>
    [element("a", { href: `/api/results/${told.id}/export?format=${form}`, download: `whyformer-${told.id}.${form}` }, words), " "]),
  element("a", { href: told.link, class: "sv-link" }, "link"));
  const node = element("section", { class: "wf-view sv-result", "aria-label": "result", "data-id": told.id },
    element("h2", { dir: "auto" }, told.views[0]?.title ?? told.title), files,
    tabs.length ? element("div", { class: "sv-tabs", role: "tablist" }, ...buttons) : null, body);
  if (tabs.length) buttons[0].setAttribute("aria-selected", "true");
  body.append(first);
  return { node, repaint: () => repaints.forEach((repaint) => repaint()) };
}

function liveView(view, doors, repaints) {
  const { node, repaint } = KINDS[view.data.kind](view.data);
  repaints.push(repaint);
  node.addEventListener("click", (event) => {
    const line = event.target instanceof Element ? event.target.closest(".wf-class:not(.wf-first)") : null;
    if (line) doors.contrast(line.querySelector(".wf-label")?.textContent ?? "");
  });
  node.querySelectorAll(".wf-class:not(.wf-first)").forEach((line) => {
    line.classList.add("sv-asks");
    line.setAttribute("title", "why not that? click");
  });
  const facts = element("dl", { class: "wf-facts" }, ...view.facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
  const doubts = view.doubts.length ? element("div", { class: "wf-doubts" }, element("b", {}, "What to doubt"), element("ul", {}, ...view.doubts.map((doubt) => element("li", {}, doubt)))) : null;
  return element("div", {}, facts, view.data.units?.grid ? eraserOf(view.data, node, doors) : null, node, doubts);
}

function eraserOf(data, node, doors) {
  const box = (element("input", { type: "checkbox", class: "sv-erase" }));
  node.addEventListener("click", (event) => {
    const stage = box.checked && event.target instanceof Element ? event.target.closest(".wf-stage") : null;
    if (!stage) return;
    const bounds = stage.getBoundingClientRect();
    const [rows, columns] = data.units.grid;
    const row = Math.floor(((event.clientY - bounds.top) / bounds.height) * rows);
    const column = Math.floor(((event.clientX - bounds.left) / bounds.width) * columns);
    const unit = patchesOf(data.units)[row * columns + column];
    if (unit !== undefined) doors.erase(unit);
  }, true);
  return element("label", { class: "wf-tick" }, box, "erase the patches that I click");
}

function stillView(html, repaints) {
  const page = new DOMParser().parseFromString(html, "text/html").querySelector(".wf");
  const node = element("div", { class: "sv-still" }, ...(page ? [...page.children].map((child) => document.importNode(child, true)) : []));
  for (const script of node.querySelectorAll("script.wf-data[data-kind]")) {
    const data = JSON.parse(script.textContent ?? "");
    const live = KINDS[data.kind]?.(data);
    if (!live) continue;
    script.before(live.node);
    repaints.push(live.repaint);
    script.closest(".wf-view")?.querySelectorAll(":scope > .wf-still").forEach((still) => { still.hidden = true; });
  }
  for (const dialogue of node.querySelectorAll(".wf-dialogue")) repaints.push(dialogueOf(dialogue));
  node.querySelectorAll("table.wf-shaded").forEach((table) => sortable(table));
  node.querySelectorAll(".wf-small .wf-panel").forEach((panel) => enlarging(panel));
  return node;
}

function differenceOf(difference) {
  const share = (value) => (value === null || value === undefined ? "–" : percent(value));
  const [was, is] = difference.prediction;
  const lead = was === is ? `Still ${is}.` : `From ${was} to ${is}.`;
  const classes = difference.classes.map(({ label, before, after }) => element("tr", {}, element("th", { scope: "row", dir: "auto" }, label),
    element("td", {}, share(before)), element("td", {}, share(after)), element("td", {}, before === null || after === null ? "" : signedOf(after - before, (size) => `${number(100 * size)} %`))));
  const moved = difference.units.filter(({ before, after }) => before === null || after === null || before !== after)
    .sort((a, b) => Math.abs((b.after ?? 0) - (b.before ?? 0)) - Math.abs((a.after ?? 0) - (a.before ?? 0))).slice(0, 12);
  const units = moved.map(({ label, before, after }) => element("tr", {}, element("th", { scope: "row", dir: "auto" }, label),
    element("td", {}, before === null ? "–" : number(before)), element("td", {}, after === null ? "–" : number(after)),
    element("td", {}, signedOf((after ?? 0) - (before ?? 0), number))));
  const table = (name, rows) => element("table", { class: "sv-table" }, element("thead", {}, element("tr", {}, ...[name, "before", "after", "difference"].map((words) => element("th", { scope: "col" }, words)))), element("tbody", {}, ...rows));
  return element("div", { class: "sv-difference" }, element("h3", {}, "What the edit changed"), element("p", {}, element("b", {}, lead)),
    element("div", { class: "sv-curves" }, table("class", classes), table("unit", units)),
    difference.same ? null : element("p", { class: "wf-note" }, `The scores are of different questions: ${difference.explained.join("; then ")}.`));
}

function signedOf(value, told) {
  return `${value >= 0 ? "+" : "−"}${told(Math.abs(value))}`;
}

const QUIET = 250;  // milliseconds without a change, after which the model is asked

async function begin() {
  const root = (document.getElementById("serve"));
  const { models, may_load: mayLoad } = await asked("/api/models");
  let model = models[0];
  let form = null;
  let shown = null;
  let current = null;
  let versus = "";
  let turn = 0;  // of predictions: a late answer to an old question is dropped
  let waiting = 0;

  const status = element("p", { class: "sv-status", role: "status" });
  const progress = (element("progress", { "aria-label": "progress" }));
  const cancel = element("button", { type: "button", class: "sv-cancel" }, "cancel");
  const busy = element("p", { class: "sv-busy", hidden: true }, progress, cancel);
  const chooser = (element("select", { id: "sv-model", "aria-label": "model" }));
  const place = element("div", { class: "sv-form" });
  const prediction = element("div", { class: "sv-prediction", "aria-live": "polite" });
  const question = element("p", { class: "sv-question" });
  const output = element("main", { class: "sv-main" });
  const methods = methodList(() => {});
  const history = historyList((id) => open(id), (ids) => run("/api/compare", { results: ids }));

  function say(words, wrong = false) {
    status.textContent = words;
    status.classList.toggle("sv-error", wrong);
  }

  async function working(path, asking) {
    let job = "";
    cancel.onclick = () => job && cancelled(job).catch((error) => say(error.message, true));
    try {
      return await worked(path, asking, (news) => {
        job = news.job;
        busy.hidden = false;
        progress.max = Math.max(1, news.of);
        progress.value = Math.min(news.of, news.done + (news.steps > 1 ? news.step / news.steps : 0));
        say(news.state === "waiting" ? `waiting: ${news.ahead} before this` : `${news.what}: ${news.done} of ${news.of}${news.label ? `, ${news.label}` : ""}`);
      });
    } finally {
      busy.hidden = true;
      say("");
    }
  }

  async function run(path, asking) {
    try {
      show(await working(path, asking), true);
      await history.refresh();
    } catch (error) {
      say(error.message, true);
    }
  }

  function show(told, link) {
    current = told;
    shown = resultOf(told, {
      contrast: (label) => { versus = label; sayQuestion(); explain(); },
      erase: (unit) => {
        const before = told.question.input.erased ?? [];
        explain({ ...told.question.input, erased: before.includes(unit) ? before.filter((other) => other !== unit) : [...before, unit] });
      },
      choose: (method) => { methods.choose([method]); explain(); },
      about: (kind, id, more) => working(`/api/${kind}`, { result: id, ...more }),
    });
    output.replaceChildren(shown.node);
    if (link && window.location.pathname !== told.link) window.history.pushState(null, "", told.link);
    document.title = `${told.title} · whyformer`;
  }

  function explain(input = form.input()) {
    const names = methods.chosen();
    const asking = { model: model.name, input, ...form.more(), method: names.length === 1 ? names[0] : names.length ? names : null };
    if (versus) asking.versus = versus;
    const before = current && current.kind === "explanation" && current.model === model.name && current.views.length ? current : null;
    if (before && JSON.stringify(before.question.input) !== JSON.stringify(input)) asking.edited_from = before.id;
    return run("/api/explain", asking);
  }

  function sayQuestion() {
    question.replaceChildren(...(versus ? [`Why the prediction rather than ${versus}? `, element("button", { type: "button", onclick: () => { versus = ""; sayQuestion(); } }, "no contrast")] : []));
  }

  async function predict() {
    const mine = ++turn;
    try {
      const { prediction: said } = await posted("/api/predict", { model: model.name, input: form.input() });
      if (mine !== turn) return;
      const line = (label, probability, first) => element("li", { class: first ? "sv-class sv-said" : "sv-class" },
        element("button", { type: "button", disabled: first, title: first ? "" : "why not that?", onclick: () => { versus = label; sayQuestion(); explain(); } }, label),
        element("span", {}, probability === null ? "" : percent(probability)), element("i", { style: { width: `${100 * (probability ?? 0)}%` } }));
      prediction.replaceChildren(element("ul", {}, line(said.label, said.probability, true), ...said.next.map((each) => line(each.label, each.probability, false))));
    } catch (error) {
      if (mine === turn) prediction.replaceChildren(element("p", { class: "sv-error" }, error.message));
    }
  }

  function changed() {
    clearTimeout(waiting);
    waiting = setTimeout(predict, QUIET);
  }

  async function choose(name) {
    model = models.find((each) => each.name === name) ?? models[0];
    chooser.value = model.name;
    versus = "";
    sayQuestion();
    form = formOf(model, changed, (words) => say(words, true));
    place.replaceChildren(form.node);
    const mine = model;
    const offer = async (wait) => {
      const told = await asked(`/api/methods?model=${encodeURIComponent(mine.name)}&wait=${wait}`);
      if (mine === model) methods.show(told.methods, !wait);
    };
    await offer(0);
    offer(50).catch(() => {});  // which of them apply is known a little later
  }

  async function open(id, link = true) {
    try {
      const told = await asked(`/api/results/${id}`);
      const { input, versus: other, method, ...more } = told.question;
      if (input && models.some((each) => each.name === told.model)) {
        if (told.model !== model.name) await choose(told.model);
        form.fill(input, more);
        versus = typeof other === "string" ? other : "";
        sayQuestion();
        predict();
      }
      show(told, link);
    } catch (error) {
      say(error.message, true);
    }
  }

  const go = element("button", { type: "submit", class: "sv-go" }, "Explain");
  const measure = element("button", { type: "button", onclick: () => run("/api/compare", { model: model.name, inputs: [form.input()], methods: methods.chosen().length > 1 ? methods.chosen() : null }) }, "Compare methods");
  const left = element("form", { class: "sv-side sv-left", "aria-label": "question", onsubmit: (event) => { event.preventDefault(); explain(); } },
    element("label", { class: "sv-line", for: "sv-model" }, "model ", chooser), place, prediction, question, methods.node,
    element("p", { class: "sv-line" }, go, measure), busy, status);
  left.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); explain(); } });
  if (mayLoad) left.prepend(loaderOf());
  function loaderOf() {
    const name = (element("input", { type: "text", placeholder: "name on the hub", "aria-label": "load a model by its name" }));
    const load = async () => {
      say(`loading ${name.value} …`);
      try {
        const told = await posted("/api/models", { name: name.value });
        if (!models.some((each) => each.name === told.name)) models.push(told);
        list();
        await choose(told.name);
        await predict();
        say("");
      } catch (error) {
        say(error.message, true);
      }
    };
    return element("p", { class: "sv-line" }, name, element("button", { type: "button", onclick: load }, "load"));
  }
  function list() {
    chooser.replaceChildren(...models.map((each) => element("option", { value: each.name }, `${each.name} (${each.kind})`)));
  }
  list();
  chooser.addEventListener("change", async () => { current = null; output.replaceChildren(); await choose(chooser.value); await predict(); });
  const button = theme(() => shown?.repaint());
  root.replaceChildren(element("header", { class: "sv-header" }, element("h1", {}, "whyformer"), button), element("div", { class: "sv-columns" }, left, output, element("aside", { class: "sv-aside sv-left", "aria-label": "results" }, history.node)));
  const linked = () => /^\/r\/([\w-]+)$/.exec(window.location.pathname)?.[1];
  window.addEventListener("popstate", () => { const id = linked(); if (id) open(id, false); else output.replaceChildren(); });
  await choose(model.name);
  const id = linked();
  if (id) await open(id, false); else await predict();
  await history.refresh();
  document.documentElement.classList.add("wf-started");
}

begin().catch((error) => {
  const root = document.getElementById("serve");
  root?.replaceChildren(element("p", { class: "sv-error" }, `The page could not begin: ${error.message}`));
});
