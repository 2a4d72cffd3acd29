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

const AGAIN = 1000;  // milliseconds
let listening = false;

async function heard(job, news) {
  if (listening) return askedAgain(job, news);
  listening = true;
  try {
    return await listened(job, news);
  } finally {
    listening = false;
  }
}

async function askedAgain(job, news) {
  for (;;) {
    const told = await asked(`/api/jobs/${job}`);
    if (told.state === "done") return told;
    if (told.state === "failed" || told.state === "cancelled") throw new Refused(told.error);
    news(told);
    await new Promise((resolve) => { setTimeout(resolve, AGAIN); });
  }
}

function listened(job, news) {
  return new Promise((resolve, reject) => {
    const events = new EventSource(`/api/jobs/${job}/events`);
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
}

function cancelled(job) {
  return asked(`/api/jobs/${job}`, { method: "DELETE" });
}

const AT_ONCE = 50;

function historyList(open, compare, say) {
  const search = (element("input", { type: "search", placeholder: "search", "aria-label": "search results" }));
  const list = element("ul", { class: "sv-list" });
  const chosen = new Set();
  const beside = (element("button", { type: "button", onclick: () => compare([...chosen]) }, "side by side"));
  const remove = (element("button", { type: "button", onclick: () => removed().catch((error) => say(error.message, true)) }, "delete"));
  const older = element("button", { type: "button", hidden: true, onclick: () => more().catch((error) => say(error.message, true)) }, "older");
  let last = 0;  // when the oldest one that is shown was made
  let turn = 0;
  const count = () => { beside.disabled = chosen.size < 2; remove.disabled = chosen.size < 1; };

  function lineOf(result) {
    const box = (element("input", { type: "checkbox", "aria-label": `choose ${result.title}` }));
    box.checked = chosen.has(result.id);
    box.addEventListener("change", () => { if (box.checked) chosen.add(result.id); else chosen.delete(result.id); count(); });
    const link = element("a", { href: result.link, onclick: (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      open(result.id);
    } }, element("b", { dir: "auto" }, result.title), element("small", {}, `${result.said} · ${result.method} · ${result.model}`), element("small", {}, timeOf(result.made)));
    return element("li", {}, box, link);
  }
  async function listed(before) {
    const { results } = await asked(`/api/results?search=${encodeURIComponent(search.value)}&limit=${AT_ONCE}${before ? `&before=${before}` : ""}`);
    return results;
  }
  function shown(results) {
    list.append(...results.map(lineOf));
    last = results.at(-1)?.made ?? last;
    older.hidden = results.length < AT_ONCE;
  }
  async function refresh() {
    const mine = ++turn;
    const results = await listed(0);
    if (mine !== turn) return;
    list.replaceChildren();
    shown(results);
    if (!results.length) list.append(element("li", { class: "wf-note" }, search.value ? "no matches." : "no results yet."));
  }
  async function more() {
    const mine = turn;
    const results = await listed(last);
    if (mine === turn) shown(results);
  }
  async function removed() {
    for (const id of [...chosen]) {
      chosen.delete(id);
      await asked(`/api/results/${id}`, { method: "DELETE" });
    }
    count();
    await refresh();
  }
  let waiting = 0;
  search.addEventListener("input", () => { clearTimeout(waiting); waiting = setTimeout(() => refresh().catch((error) => say(error.message, true)), 200); });
  count();
  return { node: element("details", { class: "sv-fold sv-history", open: true }, element("summary", {}, "results"), element("p", { class: "sv-line" }, search, beside, remove), list, older), refresh };
}

function timeOf(seconds) {
  const made = new Date(1000 * seconds);
  const today = made.toDateString() === new Date().toDateString();
  return made.toLocaleString(undefined, today ? { timeStyle: "short" } : { dateStyle: "medium", timeStyle: "short" });
}

function uploaded(path, data) {
  return asked(path, { method: "POST", body: data, headers: { "content-type": "application/octet-stream" } });
}

function asksTheSame(one, other) {
  const fields = (input) => JSON.stringify(Object.entries(input).filter(([, value]) => !Array.isArray(value) || value.length).sort());
  return fields(one) === fields(other);
}

function dropZone(shown, what, accept, take) {
  const file = (element("input", { type: "file", accept, "aria-label": `choose a ${what}` }));
  file.addEventListener("change", () => { if (file.files?.[0]) take(file.files[0]); });
  const zone = element("div", { class: "sv-drop" }, shown, element("p", {}, `Drop a ${what} here, or `, file));
  zone.addEventListener("dragover", (event) => { event.preventDefault(); zone.classList.add("sv-over"); });
  zone.addEventListener("dragleave", () => zone.classList.remove("sv-over"));
  zone.addEventListener("drop", (event) => {
    event.preventDefault();
    zone.classList.remove("sv-over");
    const dropped = event.dataTransfer?.files[0];
    if (dropped) take(dropped);
  });
  return zone;
}

function refuseStrayFiles() {
  for (const kind of ["dragover", "drop"]) window.addEventListener(kind, (event) => event.preventDefault());
}

function sampleAddress(model, sample) {
  return `/api/samples?model=${encodeURIComponent(model.name)}&number=${sample}`;
}

function pictureForm(model, changed, say) {
  let chosen = { sample: 0 };
  let newest = 0;  // of uploads: one that was dropped later counts, although an earlier one may take longer
  const shown = (element("img", { class: "sv-shown", alt: "the image to explain" }));
  const address = (input) => (input.image ? `/api/images/${input.image}` : sampleAddress(model, input.sample));
  const erased = element("p", { class: "sv-line", hidden: true });
  const show = ({ text, ...input }) => {
    chosen = input;
    newest += 1;
    if (!shown.src.endsWith(address(input))) shown.src = address(input);
    const count = input.erased?.length ?? 0;
    erased.hidden = !count;
    erased.replaceChildren(`${count} patch${count === 1 ? "" : "es"} erased `, element("button", { type: "button", onclick: () => { const { erased: _, ...whole } = chosen; show(whole); changed(); } }, "restore"));
  };
  async function upload(data) {
    const mine = ++newest;
    try {
      const told = await uploaded("/api/images", data);
      if (mine !== newest) return;
      show({ image: told.image });
      changed();
    } catch (error) {
      say(error.message);
    }
  }
  const zone = dropZone(shown, "picture", "image/png,image/jpeg,image/webp", upload);
  const thumbs = element("p", { class: "sv-chips" }, ...Array.from({ length: model.pictures }, (_, at) =>
    element("button", { type: "button", class: "sv-thumb", onclick: () => { show({ sample: at }); changed(); } },
      element("img", { src: address({ sample: at }), alt: `sample ${at}` }))));
  const isSame = (before, after) => before.image === after.image && before.sample === after.sample;
  show(chosen);
  return {
    node: element("div", {}, zone, erased, thumbs),
    input: () => ({ ...chosen }),
    fill: show,
    isSame,
    isEdit: (before, after) => isSame(before, after) && !asksTheSame(before, after),
  };
}

function soundForm(model, changed, say) {
  let chosen = { sample: 0 };
  let newest = 0;
  const player = (element("audio", { class: "sv-player", controls: true, preload: "none", "aria-label": "the sound to explain" }));
  const show = (input) => {
    chosen = input;
    newest += 1;
    player.src = input.sound ? `/api/sounds/${input.sound}` : sampleAddress(model, input.sample);
  };
  async function upload(file) {
    const mine = ++newest;
    try {
      const told = await uploaded("/api/sounds", await waveOfFile(file, model.rate));
      if (mine !== newest) return;
      show({ sound: told.sound });
      changed();
    } catch (error) {
      say(error.message);
    }
  }
  const zone = dropZone(player, "sound", "audio/*", upload);
  const chips = element("p", { class: "sv-chips" }, ...model.samples.map((_, at) =>
    element("button", { type: "button", onclick: () => { show({ sample: at }); changed(); } }, `sample ${at}`)));
  show(chosen);
  return { node: element("div", {}, zone, chips), input: () => ({ ...chosen }), fill: (input) => show(input), isEdit: () => false };
}

async function waveOfFile(file, rate) {
  const bytes = await file.arrayBuffer();
  const decoded = await new OfflineAudioContext(1, 1, rate).decodeAudioData(bytes).catch(() => {
    throw new Error("this cannot be read as a sound.");
  });
  const channels = Array.from({ length: decoded.numberOfChannels }, (_, i) => decoded.getChannelData(i));
  const view = new DataView(new ArrayBuffer(44 + 2 * decoded.length));
  const write = (at, words) => [...words].forEach((letter, i) => view.setUint8(at + i, letter.charCodeAt(0)));
  write(0, "RIFF");
  view.setUint32(4, 36 + 2 * decoded.length, true);
  write(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  for (const [at, value] of [[20, 1], [22, 1], [32, 2], [34, 16]]) view.setUint16(at, value, true);
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  write(36, "data");
  view.setUint32(40, 2 * decoded.length, true);
  for (let i = 0; i < decoded.length; i++) {
    const mean = channels.reduce((sum, channel) => sum + channel[i], 0) / channels.length;
    view.setInt16(44 + 2 * i, Math.round(32767 * Math.max(-1, Math.min(1, mean))), true);
  }
  return new Blob([view], { type: "audio/wav" });
}

function formOf(model, changed, say) {
  const forms = { text: textForm, similarity: textForm, language: promptForm, image: pictureForm, detector: pictureForm, pair: pairForm, sound: soundForm, table: rowForm };
  const isEdit = (before, after) => !asksTheSame(before, after);
  return { more: () => ({}), isEdit, ...forms[model.kind](model, changed, say) };
}

function areaOf(words, value, changed) {
  const area = (element("textarea", { class: "sv-area", rows: 3, maxlength: 20000, "aria-label": words, dir: "auto" }));
  area.value = value;
  area.addEventListener("input", changed);
  return area;
}

function chipsOf(samples, choose) {
  return element("p", { class: "sv-chips" }, ...samples.map((sample) =>
    element("button", { type: "button", dir: "auto", onclick: () => choose(sample) }, [sample].flat().join(" · "))));
}

function textForm(model, changed) {
  const [first, other] = [model.samples[0]].flat();
  const area = areaOf(model.second?.names[0] ?? "text", first, changed);
  const second = areaOf(model.second?.names[1] ?? "", other ?? "", changed);
  const open = () => { pair.hidden = false; more.hidden = true; };
  const more = element("button", { type: "button", hidden: !model.second || model.second.must, onclick: () => { open(); second.focus(); } }, "add a second text");
  const pair = element("label", { class: "sv-pair", hidden: !(model.second?.must || other) }, element("span", { class: "wf-note" }, model.second?.names[1] ?? ""), second);
  const write = (one, two) => {
    area.value = one;
    second.value = two ?? "";
    if (two) open();
  };
  const fill = (input) => {
    const [one, two] = [model.samples[input.sample ?? -1] ?? []].flat();
    write(input.text ?? one ?? "", input.second ?? two);
  };
  const chips = chipsOf(model.samples, (sample) => { write(...[sample].flat()); changed(); });
  const name = model.second?.must ? element("span", { class: "wf-note" }, model.second.names[0]) : null;
  return {
    node: element("div", {}, name, area, pair, element("p", { class: "sv-line" }, more), chips),
    input: () => ({ text: area.value, ...(model.second && second.value.trim() ? { second: second.value } : {}) }),
    fill,
  };
}

function promptForm(model, changed) {
  const area = areaOf("prompt", model.samples[0], changed);
  const length = (element("input", { type: "number", min: 0, max: 256, value: 0, "aria-label": "tokens to write" }));
  let chat = false;
  let answer;  // that was asked about over HTTP: asked again with the prompt, until the prompt is another
  area.addEventListener("input", () => { answer = undefined; });
  const chatting = model.chat ? tick("as a message", false, (on) => { chat = on; changed(); }) : null;
  const chips = model.samples.length > 1 ? chipsOf(model.samples, (sample) => { area.value = sample; answer = undefined; changed(); }) : null;
  const node = element("div", {}, area, element("p", { class: "sv-line" },
    element("label", {}, "write ", length, " tokens (0: explain the next one)"), chatting), chips);
  return {
    node,
    input: () => ({ prompt: area.value, ...(answer === undefined ? {} : { answer }), ...(chat ? { chat } : {}) }),
    more: () => (Number(length.value) > 0 ? { generate: Math.min(256, Math.round(Number(length.value))) } : {}),
    fill: (input, more = {}) => {
      area.value = input.prompt ?? input.text ?? model.samples[input.sample] ?? "";
      length.value = String(more.generate ?? 0);
      answer = input.answer;
      chat = Boolean(input.chat);
      const box = (chatting?.querySelector("input") ?? null);
      if (box) box.checked = chat;
    },
  };
}

function pairForm(model, changed, say) {
  const picture = pictureForm(model, changed, say);
  const area = areaOf("text about the picture", model.samples[0] ?? "", changed);
  return {
    node: element("div", {}, picture.node, element("label", { class: "sv-pair" }, element("span", { class: "wf-note" }, "text about it"), area)),
    input: () => ({ ...picture.input(), text: area.value }),
    fill: (input) => {
      picture.fill(input);
      area.value = input.text ?? model.samples[input.sample ?? 0] ?? "";
    },
    isEdit: picture.isEdit,
  };
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
    fill: (input) => fillRow(input.row ?? model.samples[input.sample ?? 0] ?? {}),
  };
}

const HIDDEN = ["rehearsal", "predict"];  // nobody asked for the one, and the other is over at once

function jobList(say, finished) {
  const node = element("div", { class: "sv-jobs", "aria-live": "polite" });

  async function follow(told) {
    const progress = (element("progress", { "aria-label": `progress of ${told.what}` }));
    const words = element("span", {});
    const cancel = element("button", { type: "button", class: "sv-cancel", onclick: () => cancelled(told.job).catch((error) => say(error.message, true)) }, "cancel");
    const line = element("p", { class: "sv-busy" }, progress, cancel, words);
    const news = (now) => {
      progress.max = Math.max(1, now.of);
      progress.value = Math.min(now.of, now.done + (now.steps > 1 ? now.step / now.steps : 0));
      words.textContent = now.state === "waiting" ? `${now.what} waits: ${now.ahead} before it` : `${now.what}: ${now.done} of ${now.of}${now.label ? `, ${now.label}` : ""}`;
    };
    news(told);
    node.append(line);
    try {
      return await heard(told.job, news);
    } finally {
      line.remove();
    }
  }

  return {
    node,
    async work(path, question) {
      const told = await posted(path, { ...question, wait: 0.4 });
      return told.job ? asked(`/api/results/${(await follow(told)).answer}`) : told;
    },
    async rejoin() {
      const { jobs } = await asked("/api/jobs");
      for (const job of jobs) if (!HIDDEN.includes(job.what)) follow(job).then(finished, finished);
    },
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

const USUAL = 0.5;  // above which a detector's objects count

function questionLine(changed) {
  let known = new Map();
  let chosen = { target: null, versus: null };
  let kind = "";
  const selects = { target: chooserOf("what is explained"), versus: chooserOf("rather than") };
  const clear = element("button", { type: "button", onclick: () => { chosen = { target: null, versus: null }; draw(); changed(); } }, "just the prediction");
  const share = (element("input", { type: "number", min: 0.05, max: 0.95, step: 0.05, value: USUAL, "aria-label": "lowest probability of an object" }));
  const classes = element("span", {}, "Why ", selects.target, " rather than ", selects.versus, "? ", clear);
  const objects = element("label", {}, "objects above ", share);
  const node = element("p", { class: "sv-question" }, classes, objects);
  share.addEventListener("input", changed);

  function chooserOf(words) {
    return (element("select", { "aria-label": words }));
  }
  for (const side of ["target", "versus"]) {
    selects[side].addEventListener("input", () => {
      chosen[side] = selects[side].value === "" ? null : Number(selects[side].value);
      draw();
      changed();
    });
  }
  function draw() {
    objects.hidden = kind !== "detector";
    classes.hidden = kind === "detector" || known.size < 2;
    node.hidden = objects.hidden && classes.hidden;
    clear.hidden = chosen.target === null && chosen.versus === null;
    for (const [side, words] of [["target", "the prediction"], ["versus", "no other class"]]) {
      selects[side].replaceChildren(element("option", { value: "" }, words), ...[...known].map(([index, label]) => element("option", { value: index }, label)));
      selects[side].value = chosen[side] === null ? "" : String(chosen[side]);
    }
  }
  return {
    node,
    show(model, said) {
      kind = model.kind;
      const listed = model.labels.map((label, i) => [model.indices[i], label]);
      const heard = said ? [[said.index, said.label], ...said.next.map((each) => [each.index, each.label])] : [];
      const asked = [...known].filter(([index]) => index === chosen.target || index === chosen.versus);
      known = new Map(listed.length > 1 ? listed : heard.length > 1 ? [...heard, ...asked] : asked);
      draw();
    },
    aim() {
      if (kind === "detector") return Number(share.value) === USUAL ? {} : { target: Math.min(0.999, Math.max(0.001, Number(share.value))) };
      return { ...(chosen.target === null ? {} : { target: chosen.target }), ...(chosen.versus === null ? {} : { versus: chosen.versus }) };
    },
    contrast(said, other) {
      for (const { index, label } of [said, other]) known.set(index, label);
      chosen = { target: said.index, versus: other.index };
      draw();
    },
    restore(target, least = USUAL) {
      chosen = { target: null, versus: null };
      share.value = String(least);
      if (target) {
        known.set(target.index, target.label);
        chosen.target = target.index;
        if (target.versus !== null) {
          known.set(target.versus, target.versus_label);
          chosen.versus = target.versus;
        }
      }
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

const MOST_NAMES = 48;  // that are written beside a map
const LARGE = 360;  // pixels
const LARGEST_CELL = 32;

function namedMap(canvas, names, side) {
  if (!names || names.length > MOST_NAMES) return canvas;
  const cell = side / names.length;
  const size = { fontSize: `${Math.max(8, Math.min(12, cell * 0.9))}px` };
  const left = element("div", { class: "sv-rows", style: size, "aria-hidden": "true" }, ...names.map((name) => element("span", { style: { height: `${cell}px`, lineHeight: `${cell}px` } }, name)));
  const top = element("div", { class: "sv-columns-of", style: size, "aria-hidden": "true" }, ...names.map((name) => element("span", { style: { width: `${cell}px` } }, element("b", {}, name))));
  return element("div", { class: "sv-named" }, element("i", {}), top, left, canvas);
}

function joinedOf(cells, high, names) {
  const state = stateOf({});
  const { node, mark } = linesBetween(names, Float32Array.from(cells, (cell) => (cell / 255) * high), state);
  state.listen(mark);
  return node;
}

function headsOf(about, repaints) {
  const large = element("div", { class: "sv-large", role: "group", "aria-label": "the chosen head", tabindex: "0" });
  const most = Math.max(1e-12, ...(about.importance ?? []).flat().map((v) => Math.abs(v ?? 0)));
  let chosen = [0, 0];

  function enlarge(l, head) {
    chosen = [l, head];
    const layer = about.layers[l];
    const names = layer.whole && layer.names !== null ? about.names[layer.names] : null;
    const side = Math.min(LARGE, LARGEST_CELL * layer.columns);
    const canvas = headCanvas(layer, head, side);
    const words = element("p", { class: "wf-note" }, layer.whole ? "Rows attend to columns. Hover a cell for its weight." : "Neighbours share a cell.");
    const cells = cellsOf(layer, head);
    canvas.addEventListener("pointermove", (event) => {
      const box = canvas.getBoundingClientRect();
      const row = Math.min(layer.rows - 1, Math.max(0, Math.floor(((event.clientY - box.top) / box.height) * layer.rows)));
      const column = Math.min(layer.columns - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * layer.columns)));
      const weight = (cells[row * layer.columns + column] / 255) * layer.highest[head];
      const name = (at) => names?.[at] ?? (layer.whole ? `position ${at}` : `cell ${at}`);
      words.textContent = `${name(row)} attends to ${name(column)}: ${number(weight)}`;
    });
    const share = about.importance ? `, importance ${number(about.importance[l][head] ?? 0)}` : "";
    const high = layer.highest[head];
    const legend = legendLine({ reach: high, low: 0, signed: false }, "attention weight");
    const joined = layer.whole && layer.rows === layer.columns && layer.rows <= MOST_JOINED ? joinedOf(cells, high, names ?? Array.from({ length: layer.rows }, (_, i) => `position ${i}`)) : null;
    large.replaceChildren(element("h3", {}, `layer ${l}, head ${head}${layer.stream ? ` (${layer.stream})` : ""}`),
      element("p", { class: "wf-note" }, `highest weight ${number(layer.highest[head])}, mean entropy ${number(layer.entropy[head])}${share}`), element("div", { class: "wf-beside" }, joined, element("div", {}, namedMap(canvas, names, side), legend, words)));
  }
  const grid = element("div", { class: "sv-heads-grid", role: "group", "aria-label": "all heads", tabindex: "0" });
  function draw() {
    grid.replaceChildren(...about.layers.map((layer, l) => element("div", { class: "sv-heads-row" }, element("span", { class: "wf-note" }, `layer ${l}${layer.stream ? ` ${layer.stream}` : ""}`),
      ...Array.from({ length: layer.heads }, (_, head) => {
        const weight = about.importance ? Math.abs(about.importance[l][head] ?? 0) / most : 0;
        return element("button", { type: "button", class: "sv-head-button", "aria-label": `layer ${l}, head ${head}`, onclick: () => enlarge(l, head) },
          headCanvas(layer, head, 56), element("i", { class: "sv-weight", style: { width: `${100 * weight}%` } }));
      }))));
    enlarge(...chosen);
  }
  draw();
  repaints.push(draw);  // colours of the theme are in the canvases
  const words = about.importance
    ? "Attention of every head: click one to enlarge it. Bar under a head: importance for the explained value (gradient), relative to the largest."
    : "Attention of every head: click one to enlarge it.";
  return element("div", { class: "sv-heads" }, element("p", { class: "wf-note" }, words), element("div", { class: "sv-heads-both" }, grid, large));
}

const CURVE_WIDTH = 360;
const CURVE_HEIGHT = 220;
const CURVE_LEFT = 36;
const CURVE_BOTTOM = 24;

const LINES = 5;  // colours that curves are told apart by

function curveOf(curves, kind) {
  const told = curves[kind];
  const values = [...told.lines.map((line) => line.curve), told.low, told.high].flat().filter((v) => v !== null);
  const [low, high] = [Math.min(0, ...values), Math.max(...values, 1e-9)];
  const x = (share) => CURVE_LEFT + share * (CURVE_WIDTH - CURVE_LEFT - 8);
  const y = (value) => 8 + (1 - ((value ?? 0) - low) / (high - low || 1)) * (CURVE_HEIGHT - CURVE_BOTTOM - 8);
  const points = (values_) => values_.map((value, i) => `${x(curves.fractions[i]).toFixed(1)},${y(value).toFixed(1)}`);
  const words = kind === "remove" ? "as features are masked, highest scores first" : "as features are revealed, highest scores first";
  const svg = drawnShape("svg", { viewBox: `0 0 ${CURVE_WIDTH} ${CURVE_HEIGHT}`, class: "sv-curve", role: "img", "aria-label": `${curves.value} ${words}` });
  svg.append(drawnShape("polygon", { points: [...points(told.high), ...points(told.low).reverse()].join(" "), class: "sv-band" }), drawnShape("polyline", { points: points(told.mean).join(" "), class: "sv-mean" }),
    ...told.lines.map((line, i) => drawnShape("polyline", { points: points(line.curve).join(" "), class: `sv-this sv-line-${i % LINES}` })));
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
  const [least, mean, most] = told.random;
  return element("figure", { class: "sv-figure" }, svg, element("figcaption", { class: "wf-note" },
    `The ${curves.value} ${words}; random orders have a mean of ${number(mean ?? 0)} (${number(least ?? 0)} to ${number(most ?? 0)}).`,
    element("ul", { class: "sv-keys" }, ...told.lines.map((line, i) => element("li", {}, element("i", { class: `sv-key sv-line-${i % LINES}` }), `${line.method}: mean ${number(line.area ?? 0)}, better than ${line.worse} of ${curves.draws} random orders`)))));
}

function trustOf(about, choose, thorough) {
  const { curves } = about;
  const advice = element("p", { class: "sv-advice" }, about.statement);
  const ran = [...about.ran].sort((a, b) => (a.area ?? Infinity) - (b.area ?? Infinity));
  const told = (value) => (value === null || value === undefined ? "–" : number(value));
  const marked = (words, why) => element("b", { class: "sv-mark", title: why }, words);
  const table = element("table", { class: "sv-table" }, element("thead", {}, element("tr", {}, ...["method", "mean ↓", "agreement"].map((name) => element("th", { scope: "col" }, name)))),
    element("tbody", {}, ...ran.map((each) => element("tr", { class: each.shown ? "sv-this-row" : "" },
      element("th", { scope: "row" }, each.method, each.method === about.unasked ? marked("default", "the default method") : null),
      element("td", {}, told(each.area)), element("td", {}, told(each.agreement))))));
  const refused = about.refused.length ? element("details", { class: "sv-fold" }, element("summary", {}, `${about.refused.length} methods do not support this model`),
    element("ul", { class: "sv-findings" }, ...about.refused.map((each) => element("li", {}, element("b", {}, `${each.method}: `), each.refused)))) : null;
  const findings = element("ul", { class: "sv-findings" }, ...about.findings.map((finding) =>
    element("li", { class: `sv-${finding.level}` }, element("b", {}, `${finding.level}: ${finding.title}. `), finding.text)));
  return element("div", { class: "sv-trust" }, advice,
    element("div", { class: "sv-curves" }, curveOf(curves, "remove"), curveOf(curves, "keep")),
    element("p", { class: "wf-note" }, `Grey: range of ten random orders, dashed: their mean. Baseline: ${curves.replacement}. Table: mean ${curves.value} as features are masked, highest scores first (lower is better), and rank correlation with ${about.method} over ${curves.parts} features.`),
    element("div", { class: "sv-scroll", role: "group", "aria-label": "methods on this input", tabindex: "0" }, table), refused, element("h3", {}, `Sanity checks of ${about.method}`), findings,
    about.thorough ? null : element("p", { class: "sv-advice" }, element("button", { type: "button", onclick: thorough }, "run the slow checks, too")));
}

const KINDS = { explanation: explanationOf, rows: beeswarmOf, heads: headsOfRecord };
const TABS = { heads: "layers × heads", trust: "trust" };
const FILES = [["html", "page"], ["json", "JSON"], ["png", "PNG"], ["csv", "CSV"]];

function resultOf(told, doors) {
  const repaints = [];
  const tabs = told.tabs?.length ? [["explanation", "explanation"], ...told.tabs.map((kind) => [kind, TABS[kind]])] : [];
  const body = element("div", { class: "sv-body", role: tabs.length ? "tabpanel" : null, "aria-label": tabs.length ? "result" : null });
  let item = 0;  // of several objects or written tokens
  let tab = "explanation";
  const opened = new Map();
  const key = () => `${tab} ${item}`;

  function firstTab() {
    const parts = [];
    if (told.beside?.difference) parts.push(differenceOf(told.beside.difference));
    const still = told.html ? stillView(told.html, repaints) : null;
    if (told.items.length || !told.views.length) parts.push(still);
    if (told.left_out) parts.push(element("p", { class: "wf-note" }, told.left_out));
    if (told.views.length) parts.push(liveView(told.views[item], doors, repaints, !told.items.length));
    if (!told.items.length && told.views.length) parts.push(still);
    const failures = Object.entries(told.failures ?? {});
    if (failures.length) parts.push(element("div", { class: "wf-doubts", role: "note" }, element("b", {}, "Not explained"),
      element("ul", {}, ...failures.map(([method, reason]) => element("li", {}, element("b", {}, `${method}: `), reason)))));
    return element("div", {}, ...parts);
  }
  const buttons = tabs.map(([kind, words]) => element("button", { type: "button", role: "tab", "data-tab": kind, onclick: () => { tab = kind; open(); } }, words));
  const items = told.items.length > 1 ? chooser("which one", told.items.map((name, i) => [String(i), `${i + 1}: ${name}`]), () => String(item), (value) => { item = Number(value); open(); }) : null;
  items?.classList.add("sv-items");

  async function open(more = {}) {
    const mine = key();
    if (more.again) opened.delete(mine);
    buttons.forEach((button) => button.setAttribute("aria-selected", String(button.dataset.tab === tab)));
    if (!opened.has(mine) && tab === "explanation") opened.set(mine, firstTab());
    if (!opened.has(mine)) {
      body.replaceChildren(element("p", { class: "wf-note" }, "computing …"));
      try {
        const { about } = await doors.about(tab, told.id, { item, ...more });
        opened.set(mine, mine.startsWith("heads") ? headsOf(about, repaints) : trustOf(about, doors.choose, () => open({ again: true, thorough: true })));
      } catch (error) {
        if (mine === key()) body.replaceChildren(element("p", { class: "sv-error" }, error.message));
        return;
      }
      if (mine !== key()) return;
    }
    body.replaceChildren((opened.get(mine)));
  }
  const files = element("p", { class: "sv-files" }, "download: ", ...FILES.flatMap(([form, words]) =>
    [element("a", { href: `/api/results/${told.id}/export?format=${form}`, download: `whyformer-${told.id}.${form}` }, words), " "]),
  element("a", { href: told.link, class: "sv-link" }, "link"));
  const title = told.items.length ? told.title : told.views[0]?.title ?? told.title;
  const node = element("section", { class: "wf-view sv-result", "aria-label": "result", "data-id": told.id },
    element("h2", { dir: "auto" }, title), files, items,
    tabs.length ? element("div", { class: "sv-tabs", role: "tablist" }, ...buttons) : null, body);
  open();
  return { node, repaint: () => repaints.forEach((repaint) => repaint()) };
}

function liveView(view, doors, repaints, asks) {
  const { node, repaint } = KINDS[view.data.kind](view.data);
  repaints.push(repaint);
  if (asks) node.querySelectorAll(".wf-class:not(.wf-first)").forEach((line, i) => {
    line.classList.add("sv-asks");
    line.setAttribute("title", "click: why not this class?");
    line.addEventListener("click", () => doors.contrast({ index: view.predicted, label: view.data.prediction.label }, { index: view.choices[i], label: view.data.prediction.next[i][0] }));
  });
  const told = (facts) => element("dl", { class: "wf-facts" }, ...facts.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value))));
  const drawn = view.data.prediction && view.data.prediction.probability !== null;  // the classes say it
  const answer = view.details.length ? view.facts.map(([name, value]) => element("p", { class: "wf-answer" }, element("span", {}, name), ` ${value}`)) : [told(view.facts)];
  const doubts = view.doubts.length ? element("div", { class: "wf-doubts" }, element("b", {}, "Warnings"), element("ul", {}, ...view.doubts.map((doubt) => element("li", {}, doubt)))) : null;
  return element("div", {}, ...(drawn ? [] : answer), view.data.units?.grid && !view.data.units.upwards ? eraserOf(view, node, doors) : null, node, ...(view.data.footer ? [] : [told(view.details), doubts]));
}

function eraserOf({ data, erasable }, node, doors) {
  if (!erasable) return element("p", { class: "wf-note" }, "Patches cannot be erased: the model does not read the whole image resized to one size.");
  const box = (element("input", { type: "checkbox", class: "sv-erase" }));
  box.checked = doors.erasing();
  box.addEventListener("change", () => doors.erasing(box.checked));
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
  return element("label", { class: "wf-tick" }, box, "erase clicked patches");
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
  const rated = difference.classes.some(({ before, after }) => before !== null || after !== null);
  const classes = !rated ? [element("tr", {}, element("th", { scope: "row" }, difference.scalar), ...difference.value.map((value) => element("td", {}, number(value))),
    element("td", {}, signedOf(difference.value[1] - difference.value[0], number)))] : difference.classes.map(({ label, before, after }) => element("tr", {}, element("th", { scope: "row", dir: "auto" }, label),
    element("td", {}, share(before)), element("td", {}, share(after)), element("td", {}, before === null || after === null ? "" : signedOf(after - before, (size) => `${number(100 * size)} percentage points`))));
  const isEdited = ({ values = [null, null] }) => Number(values[0] !== values[1]);  // columns that hold something else come first
  const moved = difference.units.filter((unit) => isEdited(unit) || unit.before === null || unit.after === null || unit.before !== unit.after)
    .sort((a, b) => isEdited(b) - isEdited(a) || Math.abs((b.after ?? 0) - (b.before ?? 0)) - Math.abs((a.after ?? 0) - (a.before ?? 0))).slice(0, 12);
  const named = (label, [old, now] = [null, null]) => (old === null || now === null ? label : old === now ? `${label} = ${now}` : `${label}: ${old} → ${now}`);
  const units = moved.map(({ label, values, before, after }) => element("tr", {}, element("th", { scope: "row", dir: "auto" }, named(label, values)),
    element("td", {}, before === null ? "–" : number(before)), element("td", {}, after === null ? "–" : number(after)),
    element("td", {}, signedOf((after ?? 0) - (before ?? 0), number))));
  const table = (name, rows) => element("table", { class: "sv-table" }, element("thead", {}, element("tr", {}, ...[name, "before", "after", "difference"].map((words) => element("th", { scope: "col" }, words)))), element("tbody", {}, ...rows));
  return element("div", { class: "sv-difference" }, element("h3", {}, "What the edit changed"), element("p", {}, element("b", {}, lead)),
    element("div", { class: "sv-curves" }, table(rated ? "probability of" : "value", classes), table("score of", units)),
    difference.same ? null : element("p", { class: "wf-note" }, `The scores answer different questions: ${difference.explained.join("; then ")}.`));
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
  let predictions = 0;
  let drawings = 0;
  let waiting = 0;
  let erasing = false;

  const status = element("p", { class: "sv-status", role: "status" });
  const chooser = (element("select", { id: "sv-model" }));
  const trouble = element("p", { class: "sv-error sv-trouble", hidden: true });
  const place = element("div", { class: "sv-form" });
  const prediction = element("div", { class: "sv-prediction", "aria-live": "polite" });
  const output = element("main", { class: "sv-main" });
  const question = questionLine(() => { if (model.kind === "detector") changed(); });
  const methods = methodList(() => {});
  const history = historyList((id) => open(id), (ids) => run("/api/compare", { results: ids }), say);
  const jobs = jobList(say, () => history.refresh());

  function say(words, wrong = false) {
    status.textContent = words;
    status.classList.toggle("sv-error", wrong);
  }

  async function run(path, asking) {
    const mine = ++drawings;
    say("");
    try {
      const told = await jobs.work(path, asking);
      if (mine === drawings) {
        show(told, true);
        if (output.getBoundingClientRect().top > window.innerHeight) output.scrollIntoView();  // on a phone it is below the form
      }
    } catch (error) {
      say(error.message, true);
    }
    await history.refresh();
  }

  function show(told, link, example = false) {
    current = told;
    shown = resultOf(told, {
      contrast: (said, other) => { question.contrast(said, other); explain(); },
      erase: (unit) => {
        const before = told.question.input.erased ?? [];
        form.fill({ ...told.question.input, erased: before.includes(unit) ? before.filter((other) => other !== unit) : [...before, unit] }, told.question);
        changed();
        explain();
      },
      erasing: (on) => { if (on !== undefined) erasing = on; return erasing; },
      choose: (method) => { methods.choose([method]); explain(); },
      about: (kind, id, more) => jobs.work(`/api/${kind}`, { result: id, ...more }),
    });
    output.replaceChildren(...(example ? [element("p", { class: "wf-note sv-example" }, "Example: the first sample of this model. Enter your own input and press Explain.")] : []), shown.node);
    if (link && window.location.pathname !== told.link) window.history.pushState(null, "", told.link);
    document.title = `${told.title} · whyformer`;
  }

  function explain() {
    const input = form.input();
    const names = methods.chosen();
    const asking = { model: model.name, input, ...form.more(), ...question.aim(), method: names.length === 1 ? names[0] : names.length ? names : null };
    const before = current && current.kind === "explanation" && current.model === model.name && current.views.length ? current : null;
    if (before && form.isEdit(before.question.input, input)) asking.edited_from = before.id;
    return run("/api/explain", asking);
  }

  async function predict() {
    const mine = ++predictions;
    const [of, input] = [model, form.input()];
    try {
      const told = await posted("/api/predict", { model: of.name, input, ...(of.kind === "detector" ? question.aim() : {}) });
      if (mine !== predictions) return;
      question.show(of, told.items ? null : told.prediction);
      prediction.replaceChildren(saidOf(told));
    } catch (error) {
      if (mine === predictions) prediction.replaceChildren(element("p", { class: "sv-error" }, error.message));
    }
  }

  function saidOf(told) {
    const said = told.prediction;
    if (told.items?.[0]?.box) {
      const note = told.note ? element("p", { class: "wf-note" }, told.note) : null;
      return element("div", {}, note, element("ul", {}, ...told.items.map((each) => element("li", { class: "sv-class sv-said" }, element("b", { dir: "auto" }, each.label), element("span", {}, `query ${each.query}`)))));
    }
    if (told.items) return element("p", { dir: "auto" }, "generated: ", element("b", {}, told.items.map((each) => each.label.replace(/[▁Ġ]/g, " ").trim()).join(" ")));
    if (said.probability === null && !said.next.length) {
      return element("p", {}, element("b", { dir: "auto" }, said.label), model.kind === "similarity" || said.label === "similarity" ? `: ${number(told.value)} (${told.scalar})` : "");
    }
    const line = (each, first) => element("li", { class: first ? "sv-class sv-said" : "sv-class" },
      element("button", { type: "button", dir: "auto", disabled: first, title: first ? "" : "why not this class?", onclick: () => { question.contrast(said, each); explain(); } }, each.label),
      element("span", {}, each.probability === null ? "" : percent(each.probability)), element("i", { style: { width: `${100 * (each.probability ?? 0)}%` } }));
    const list = element("ul", {}, line(said, true), ...said.next.map((each) => line(each, false)));
    return said.probability === null ? list : element("div", {}, element("p", { class: "wf-note" }, "Predicted classes and their probabilities"), list);
  }

  function changed() {
    clearTimeout(waiting);
    predictions += 1;
    waiting = setTimeout(predict, QUIET);
  }

  async function choose(name) {
    model = models.find((each) => each.name === name) ?? models[0];
    chooser.value = model.name;
    predictions += 1;
    prediction.replaceChildren();
    question.restore(null);
    question.show(model, null);
    trouble.hidden = true;
    form = formOf(model, changed, (words) => say(words, true));
    place.replaceChildren(form.node);
    const mine = model;
    const offer = async (wait) => {
      const told = await asked(`/api/methods?model=${encodeURIComponent(mine.name)}&wait=${wait}`);
      if (mine !== model) return;
      methods.show(told.methods, !wait);
      trouble.hidden = !told.trouble;
      trouble.textContent = told.trouble ? `The model failed on a sample: ${told.trouble}` : "";
    };
    await offer(0);
    offer(50).catch(() => {});  // which of them apply is known a little later
  }

  async function open(id, link = true) {
    const mine = ++drawings;
    try {
      const told = await asked(`/api/results/${id}`);
      if (mine !== drawings) return;
      const { input, method } = told.question;
      if (input && models.some((each) => each.name === told.model)) {
        if (told.model !== model.name) await choose(told.model);
        if (mine !== drawings) return;
        form.fill(input, told.question);
        const named = told.question.target !== undefined || told.question.versus !== undefined;
        const least = model.kind === "detector" && typeof told.question.target === "number" ? told.question.target : undefined;
        question.restore(named && told.views[0]?.target ? told.views[0].target : null, least);
        if (method) methods.choose([method].flat());
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
    element("label", { class: "sv-line", for: "sv-model" }, "model ", chooser), trouble, place, prediction, question.node, methods.node,
    element("p", { class: "sv-line" }, go, measure), jobs.node, status);
  left.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); explain(); } });
  if (mayLoad) left.prepend(loaderOf());
  function loaderOf() {
    const name = (element("input", { type: "text", placeholder: "model on the hub", "aria-label": "load a model by its name" }));
    const load = async () => {
      say(`loading ${name.value} …`);
      try {
        const told = await posted("/api/models", { name: name.value });
        if (!models.some((each) => each.name === told.name)) models.push(told);
        list();
        await turnTo(told.name);
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
  async function turnTo(name) {
    clear();
    await choose(name);
    predict();
  }
  async function showExample() {
    const key = `whyformer example ${model.name}`;
    const kept = remembered(key);
    const found = kept ? await asked(`/api/results/${kept}`).catch(() => null) : null;
    if (found) return found;
    const told = await jobs.work("/api/explain", { model: model.name, input: form.input() });
    remembered(key, told.id);
    await history.refresh();
    return told;
  }
  async function openExample() {
    const mine = ++drawings;
    const [of, told] = [model, await showExample().catch(() => null)];
    if (told && mine === drawings && of === model) show(told, false, true);
  }
  function clear() {
    drawings += 1;
    current = null;
    shown = null;
    output.replaceChildren();
  }
  list();
  chooser.addEventListener("change", () => turnTo(chooser.value).catch((error) => say(error.message, true)));
  const button = theme(() => shown?.repaint());
  root.replaceChildren(element("header", { class: "sv-header" }, element("h1", {}, "whyformer"), button), element("div", { class: "sv-columns" }, left, output, element("aside", { class: "sv-aside sv-left", "aria-label": "results" }, history.node)));
  const linked = () => /^\/r\/([\w-]+)$/.exec(window.location.pathname)?.[1];
  window.addEventListener("popstate", () => { const id = linked(); if (id) open(id, false); else clear(); });
  refuseStrayFiles();
  await choose(model.name);
  const id = linked();
  if (id) await open(id, false);
  else {  // which may wait for the work of others: the page does not
    predict();
    openExample();
  }
  await history.refresh();
  jobs.rejoin().catch(() => {});
  document.documentElement.classList.add("wf-started");
}

function remembered(key, value) {
  try {
    if (value !== undefined) window.localStorage.setItem(key, value);
    return window.localStorage.getItem(key);
  } catch {
    return null;
  }
}

begin().catch((error) => {
  const root = document.getElementById("serve");
  root?.replaceChildren(element("p", { class: "sv-error" }, `The page could not start: ${error.message}`));
});
