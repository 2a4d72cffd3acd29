// Made by frontend/build.py from frontend/src: change those.

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "style") Object.assign(made.style, value);
    else if (name === "dataset") Object.assign(made.dataset, value);
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? "" : String(value));
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

function chooser(name, options, current, choose) {
  const buttons = options.map(([value, words]) =>
    element("button", { type: "button", onclick: () => { choose(value); say(); } }, words));
  function say() {
    buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(options[i][0] === current())));
  }
  say();
  return element("span", { class: "wf-chooser", role: "group", "aria-label": name }, element("small", { "aria-hidden": "true" }, name), ...buttons);
}

function tick(words, ticked, change) {
  const box = element("input", { type: "checkbox" });
  box.checked = ticked;
  box.addEventListener("change", () => change(box.checked));
  return element("label", { class: "wf-tick" }, box, words);
}

function slider(name, [low, high, step], value, change) {
  const input = element("input", { type: "range", min: low, max: high, step, value, "aria-label": name });
  input.addEventListener("input", () => change(Number(input.value)));
  return element("label", { class: "wf-slide" }, name, input);
}

const SVG_SPACE = ["ht", "tp://www.w3.org/2000/svg"].join("");

function drawnShape(tag, attributes, ...children) {
  const made = document.createElementNS(SVG_SPACE, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.append(...children);
  return made;
}

const LIGHT = {
  sequential: ["#ffffff", "#d1e5f0", "#92c5de", "#4393c3", "#2166ac"],
  diverging: ["#b35806", "#e08214", "#fdb863", "#fee0b6", "#ffffff", "#d1e5f0", "#92c5de", "#4393c3", "#2166ac"],
};
const DARK = {
  sequential: ["#161b22", "#15324a", "#1c547f", "#3a86c0", "#8ccbf7"],
  diverging: ["#ffc07a", "#d98525", "#8d5413", "#46301a", "#161b22", "#15324a", "#1c547f", "#3a86c0", "#8ccbf7"],
};
const HEAT = ["#000004", "#320a5e", "#781c6d", "#bc3754", "#ed6925", "#fbb61a", "#fcffa4"];

function isDark() {
  return document.documentElement.classList.contains("wf-dark");
}

function rgb(hex) {
  return ([1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
}

function between(anchors, at) {
  const place = Math.min(1, Math.max(0, at)) * (anchors.length - 1);
  const low = Math.min(Math.floor(place), anchors.length - 2);
  const [a, b] = [rgb(anchors[low]), rgb(anchors[low + 1])];
  return (a.map((v, i) => Math.round(v + (b[i] - v) * (place - low))));
}

function colourOf(scale, score, overImage = false) {
  const ramps = isDark() ? DARK : LIGHT;
  if (scale.signed) return between(overImage ? LIGHT.diverging : ramps.diverging, scale.reach ? 0.5 + score / scale.reach / 2 : 0.5);
  const width = scale.reach - scale.low;
  return between(overImage ? HEAT : ramps.sequential, width > 0 ? (score - scale.low) / width : 0);
}

const STEPS_OF_PALETTE = 1024;

function paintScores(scale, scores, pixels) {
  const least = scale.signed ? -scale.reach : scale.low;
  const width = scale.reach - least || 1;
  const palette = Array.from({ length: STEPS_OF_PALETTE + 1 }, (_, i) => colourOf(scale, least + (width * i) / STEPS_OF_PALETTE));
  for (let i = 0; i < scores.length; i++) {
    const at = Math.round(((scores[i] - least) / width) * STEPS_OF_PALETTE);
    const colour = palette[Math.max(0, Math.min(STEPS_OF_PALETTE, at))];
    pixels[4 * i] = colour[0];
    pixels[4 * i + 1] = colour[1];
    pixels[4 * i + 2] = colour[2];
    pixels[4 * i + 3] = 255;
  }
}

function css(colour) {
  return `rgb(${colour.join(" ")})`;
}

function inkOn(colour) {
  const linear = colour.map((v) => (v <= 10 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
  const luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  return (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) ? "#000" : "#fff";
}

function barColour(score, special) {
  return special ? "var(--wf-special)" : score >= 0 ? "var(--wf-raise)" : "var(--wf-lower)";
}

function gradient(scale, overImage) {
  const stops = Array.from({ length: 9 }, (_, i) => {
    const at = i / 8;
    const score = scale.signed ? (2 * at - 1) * scale.reach : scale.low + at * (scale.reach - scale.low);
    return css(colourOf(scale, score, overImage));
  });
  return `linear-gradient(to right, ${stops.join(", ")})`;
}

const CHARACTERS = new WeakMap();

function textBetween(units, start, end) {
  if (!CHARACTERS.has(units)) CHARACTERS.set(units, Array.from(units.text ?? ""));
  return (CHARACTERS.get(units)).slice(start, end).join("");
}

function entriesOf(units, by) {
  const single = (i) => ({
    label: units.values && units.values[i] ? `${units.labels[i]} = ${units.values[i]}` : units.labels[i],
    members: [i],
    special: Boolean(units.special[i]),
    span: units.spans ? units.spans[i] : null,
  });
  if (by !== "word" || !units.word) return units.labels.map((_, i) => single(i));
  const entries = [];
  let before = -1;
  units.word.forEach((word, i) => {
    if (word >= 0 && word === before) {
      const last = entries[entries.length - 1];
      last.members.push(i);
      if (last.span && units.spans) last.span = [last.span[0], units.spans[i][1]];
    } else entries.push(single(i));
    before = word;
  });
  for (const entry of entries) {
    const text = entry.span && units.text !== null ? textBetween(units, ...entry.span).trim() : "";
    if (text) entry.label = text;
    else if (entry.members.length > 1) {
      entry.label = entry.members.map((i) => units.labels[i].replace(/^##/, "").replace(/^[Ġ▁]+/, "")).join("");
    }
  }
  return entries;
}

function nounOf(units, by = "token") {
  const streams = new Set(units.stream);
  if (units.grid && streams.size === 1) return "patch";
  if (streams.size === 1 && streams.has("table")) return "column";
  if (streams.size === 1 && streams.has("audio")) return "frame";
  return [...streams].every((stream) => ["text", "source", "target", "a", "b"].includes(stream)) ? by : "feature";
}

function pluralOf(noun) {
  return noun.endsWith("ch") ? `${noun}es` : `${noun}s`;
}

function scoreOf(map, entry, shares) {
  const sum = entry.members.reduce((total, i) => total + map.scores[i], 0);
  return shares ? sum * map.share : sum;
}

const ABOUT_95 = 1.96;

function errorOf(map, entry, shares) {
  if (!map.errors) return 0;
  return ABOUT_95 * entry.members.reduce((total, i) => total + map.errors[i], 0) * (shares ? map.share : 1);
}

function isFolded(map, entry) {
  return entry.members.some((i) => map.folded.includes(i));
}

const FEW = 10;  // a list of so many entries is shown whole
const MOST_SHOWN = 8;  // of a longer one, the first

function scaleOf(map, entries, shares, fromZero = true) {
  const ordinary = entries.filter((e) => !isFolded(map, e));
  const scores = (ordinary.length ? ordinary : entries).map((e) => scoreOf(map, e, shares));
  const signed = map.signed || scores.some((s) => s < 0);
  const low = signed || fromZero ? 0 : Math.min(...scores);
  const largest = scores.reduce((most, s) => Math.max(most, Math.abs(s)), 0);
  return { reach: largest * (shares ? 1 : map.headroom), low, signed };
}

const NUMBERS = new WeakMap();

function numbersOf(grid) {
  const known = NUMBERS.get(grid);
  if (known) return known;
  const bytes = atob(grid.data);
  const values = new Float32Array(bytes.length / 2);
  for (let i = 0; i < values.length; i++) {
    values[i] = grid.low + ((bytes.charCodeAt(2 * i) + 256 * bytes.charCodeAt(2 * i + 1)) / 65535) * (grid.high - grid.low);
  }
  NUMBERS.set(grid, values);
  return values;
}

function number(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-4) return value.toExponential(1).replace("e+", "e");
  return value.toPrecision(3);
}

const POWERS = 7;

function columnOf(values) {
  const largest = values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  const power = largest ? Math.floor(Math.log10(largest)) : 1;
  const told = (value, digits) => {
    const text = value.toFixed(digits);
    return Number(text) === 0 ? text.replace("-", "") : text;
  };
  if (power >= POWERS) return (value) => `${told(value / 10 ** power, 2)}e${power}`;
  return (value) => told(value, Math.min(12, Math.max(0, 2 - power)));
}

function endsOf(low, high, shares) {
  let told = shares ? percent : columnOf([low, high]);
  if (!shares && low !== high && told(low) === told(high)) told = columnOf([high - low]);
  return [low, high].map((end) => (end === 0 ? "0" : told(end).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "")));
}

function percent(share) {
  const small = share !== 0 && Math.abs(share) < 0.001;
  return small ? `${share < 0 ? "> -" : "< "}0.1 %` : `${(100 * share).toFixed(1)} %`;
}

const HIGH = 34;  // of one column
const MOST_COLUMNS = 20;
const RADIUS = 3.2;

function beeswarmOf(data) {
  const size = (column) => data.scores.reduce((sum, row) => sum + Math.abs(row[column]), 0);
  const order = data.labels.map((_, i) => i).sort((a, b) => size(b) - size(a)).slice(0, MOST_COLUMNS);
  const reach = Math.max(...data.scores.flatMap((row) => order.map((c) => Math.abs(row[c]))), 1e-30);
  const [left, wide] = [170, 760];
  const high = HIGH * order.length + 30;
  const canvas = (element("canvas", {
    class: "wf-matrix", role: "application", tabindex: "0",
    "aria-label": `scores of ${data.scores.length} rows, one line of dots per column (${order.map((c) => data.labels[c]).join(", ")}): up and down change the column, left and right the row`,
    style: { width: `${wide}px`, maxWidth: "100%", aspectRatio: `${wide} / ${high}` },
  }));
  [canvas.width, canvas.height] = [2 * wide, 2 * high];
  const pen = (canvas.getContext("2d"));
  const across = (score) => left + (wide - left - 12) * (0.5 + score / reach / 2);
  const dots = order.flatMap((column, line) => {
    const ranks = ranksOf(data.values.map((row) => row[column]));
    const stacked = new Map();
    return data.scores.map((row, number_) => {
      const x = across(row[column]);
      const bin = Math.round(x / (2 * RADIUS));
      const count = stacked.get(bin) ?? 0;
      stacked.set(bin, count + 1);
      const off = (count % 2 ? -1 : 1) * Math.ceil(count / 2) * RADIUS;
      const y = HIGH * (line + 0.5) + Math.max(-HIGH / 2 + RADIUS, Math.min(HIGH / 2 - RADIUS, off));
      return { x, y, column, row: number_, rank: ranks[number_] };
    });
  });
  const paint = (chosen) => {
    pen.setTransform(2, 0, 0, 2, 0, 0);
    pen.clearRect(0, 0, wide, high);
    pen.font = "13px system-ui, sans-serif";
    const ink = isDark() ? "#c9d1d9" : "#1b1f24";
    pen.strokeStyle = isDark() ? "#3d444d" : "#d8dde3";
    pen.beginPath();
    pen.moveTo(across(0), 0);
    pen.lineTo(across(0), high - 24);
    order.forEach((_, line) => { pen.moveTo(left, HIGH * (line + 0.5)); pen.lineTo(wide - 12, HIGH * (line + 0.5)); });
    pen.stroke();
    pen.fillStyle = ink;
    order.forEach((column, line) => {
      const label = data.labels[column];
      pen.textAlign = "right";
      pen.fillText(label.length > 22 ? `${label.slice(0, 21)}…` : label, left - 8, HIGH * (line + 0.5) + 4);
    });
    pen.textAlign = "center";
    for (const score of [-reach, 0, reach]) {
      pen.textAlign = score < 0 ? "left" : score > 0 ? "right" : "center";
      pen.fillText(number(score), across(score), high - 8);
    }
    for (const dot of dots) {
      pen.beginPath();
      pen.arc(dot.x, dot.y, chosen !== null && dot.row === chosen ? RADIUS + 2 : RADIUS, 0, 7);
      pen.fillStyle = dot.rank === null ? "#8a929b" : mixed(dot.rank);
      pen.globalAlpha = chosen !== null && dot.row !== chosen ? 0.35 : 0.85;
      pen.fill();
    }
    pen.globalAlpha = 1;
  };
  const said = element("p", { class: "wf-said-unit", "aria-live": "polite" }, "Hover a dot to mark its row in every column; click to go to the row; arrow keys move.");
  const tell = (row, column) => {
    paint(row);
    const value = data.values[row][column];
    said.textContent = `${data.names[row]} · ${data.labels[column]}${value ? ` = ${value}` : ""}: ${number(data.scores[row][column])}`;
  };
  const goTo = (row) => {
    const headings = [...document.querySelectorAll(".wf-view > h2")];
    const heading = headings.find((each) => /^[:,]/.test((each.textContent ?? "").replace(data.names[row], "")));
    heading?.querySelector("button[aria-expanded=false]")?.click();
    heading?.scrollIntoView({ behavior: "smooth", block: "start" });
  };
  let [line_, row_] = [0, -1];
  canvas.addEventListener("keydown", (event) => {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (event.key === "Escape") paint(null);
    if (event.key === "Enter" && row_ >= 0) goTo(row_);
    if (!(event.key in moves)) return;
    event.preventDefault();
    const [down, right] = moves[event.key];
    line_ = Math.max(0, Math.min(order.length - 1, line_ + (row_ < 0 ? 0 : down)));
    row_ = Math.max(0, Math.min(data.scores.length - 1, row_ < 0 ? 0 : row_ + right));
    tell(row_, order[line_]);
  });
  const under = (event) => {
    const box = canvas.getBoundingClientRect();
    const [x, y] = [((event.clientX - box.left) / box.width) * wide, ((event.clientY - box.top) / box.height) * high];
    let best = null;
    let least = 64;
    for (const dot of dots) {
      const far = (dot.x - x) ** 2 + (dot.y - y) ** 2;
      if (far < least) [best, least] = [dot, far];
    }
    return best;
  };
  canvas.addEventListener("pointermove", (event) => {
    const dot = under(event);
    if (dot) tell(dot.row, dot.column); else paint(null);
  });
  canvas.addEventListener("click", (event) => {
    const dot = under(event);
    if (dot) goTo(dot.row);
  });
  canvas.addEventListener("pointerleave", () => paint(null));
  paint(null);
  const left_out = data.labels.length - order.length;
  const key = element("p", { class: "wf-note" }, element("span", { class: "wf-values" }), "low to high value of the column · grey: no number",
    left_out > 0 ? ` · ${left_out} weaker columns are not drawn` : "");
  return { node: element("div", {}, said, canvas, key), repaint: () => paint(null) };
}

function ranksOf(values) {
  const numbers = values.map((value) => (value.trim() === "" ? NaN : Number(value)));
  const sorted = numbers.filter((n) => !Number.isNaN(n)).sort((a, b) => a - b);
  return numbers.map((n) => (Number.isNaN(n) ? null : sorted.length > 1 ? sorted.indexOf(n) / (sorted.length - 1) : 0.5));
}

function mixed(rank) {
  const [low, high] = [[58, 134, 192], [217, 112, 20]];
  return `rgb(${low.map((v, i) => Math.round(v + (high[i] - v) * rank)).join(" ")})`;
}

const exactShare = (value) => `${(100 * value).toPrecision(Math.abs(value) < 0.1 ? 2 : 3)}\u00a0%`;

function answerImageOf(image, signed) {
  const [rows, columns] = image.grid;
  const shares = numbersOf(image.shares);
  const heat = (element("canvas", { class: "wf-heat", width: columns, height: rows, "aria-hidden": "true" }));
  const pen = (heat.getContext("2d"));
  const frame = element("i", { class: "wf-patch" });
  const stage = element("div", {
    class: "wf-stage", tabindex: "0", role: "application",
    "aria-label": `image, ${rows} × ${columns} patches: arrow keys move`,
    style: { aspectRatio: `${image.size[1]} / ${image.size[0]}` },
  }, image.picture ? element("img", { src: image.picture, alt: "the image of the prompt" }) : null, heat, frame);
  const words = element("p", { class: "wf-note", "aria-live": "polite" });
  heat.style.opacity = image.picture ? "0.6" : "1";
  let values = new Float32Array(rows * columns);
  let [name, here] = ["", -1];

  const describe = () => {
    frame.style.display = here < 0 ? "none" : "block";
    if (here >= 0) {
      Object.assign(frame.style, {
        top: `${(100 * Math.floor(here / columns)) / rows}%`, left: `${(100 * (here % columns)) / columns}%`,
        width: `${100 / columns}%`, height: `${100 / rows}%`,
      });
      words.textContent = `${name} \u2190 ${image.labels[here]}: ${exactShare(values[here])}`;
      return;
    }
    const best = values.reduce((most, value, i) => (Math.abs(value) > Math.abs(values[most]) ? i : most), 0);
    const whole = values.reduce((sum, value) => sum + value, 0);
    words.textContent = `${name} \u2190 image ${exactShare(whole)}, strongest: ${image.labels[best]}, ${exactShare(values[best])}`;
  };
  const draw = (first, end, chosen) => {
    name = chosen;
    values = new Float32Array(rows * columns);
    for (let t = first; t < end; t++) values.forEach((_, p) => { values[p] += shares[t * rows * columns + p] / (end - first); });
    const reach = values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
    const pixels = pen.createImageData(columns, rows);
    values.forEach((value, p) => pixels.data.set([...colourOf({ reach, low: 0, signed }, value, true), 255], 4 * p));
    pen.putImageData(pixels, 0, 0);
    describe();
  };
  const under = (event, box) => {
    const { left, top, width, height } = box.getBoundingClientRect();
    const [row, column] = [Math.floor(((event.clientY - top) / height) * rows), Math.floor(((event.clientX - left) / width) * columns)];
    return row >= 0 && row < rows && column >= 0 && column < columns ? row * columns + column : -1;
  };
  const point = (patch) => { here = patch; describe(); };
  stage.addEventListener("pointermove", (event) => point(under(event, stage)));
  stage.addEventListener("pointerleave", () => point(-1));
  stage.addEventListener("blur", () => point(-1));
  stage.addEventListener("keydown", (event) => {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const at = Math.max(here, 0);
    const [row, column] = [Math.floor(at / columns) + moves[event.key][0], (at % columns) + moves[event.key][1]];
    if (row >= 0 && row < rows && column >= 0 && column < columns) point(row * columns + column);
  });
  const follow = (still, choose, leave) => {
    const [wide, high] = (still.getAttribute("viewBox") ?? "").split(" ").slice(2).map(Number);
    const outline = drawnShape("rect", { width: wide / columns, height: high / rows, class: "wf-outline", visibility: "hidden" });
    const note = element("p", { class: "wf-note" }, "\u00a0");
    still.append(outline);
    still.after(note);
    still.addEventListener("pointerenter", choose);
    still.addEventListener("pointermove", (event) => {
      const patch = under(event, still);
      point(patch);
      outline.setAttribute("visibility", patch < 0 ? "hidden" : "visible");
      if (patch < 0) return;
      outline.setAttribute("x", String(((patch % columns) * wide) / columns));
      outline.setAttribute("y", String((Math.floor(patch / columns) * high) / rows));
      note.textContent = `${image.labels[patch]}: ${exactShare(values[patch])}`;
    });
    still.addEventListener("pointerleave", () => {
      outline.setAttribute("visibility", "hidden");
      note.textContent = "\u00a0";
      point(-1);
      leave();
    });
  };
  return { node: element("div", { class: "wf-answer-image" }, element("div", { class: "wf-window" }, stage), words), draw, follow };
}

const MOST_SOURCES = 6;

function dialogueOf(root) {
  const data = JSON.parse(root.querySelector(".wf-data")?.textContent ?? "");
  const all = (selector) => ([...root.querySelectorAll(selector)]);
  const [pieces, tokens] = [all("[data-piece]"), all(".wf-said button")];
  const [chips, folds] = [all(".wf-chips button"), all(".wf-fold")];
  const from = (root.querySelector(".wf-from"));
  const image = data.image ? answerImageOf(data.image, data.signed) : null;
  let [pinned, drawn] = [chips[0], chips[0]];

  const paint = (element, value, reach) => {
    const colour = colourOf({ reach, low: 0, signed: data.signed }, reach ? value : 0);
    element.style.background = css(colour);
    element.style.color = inkOn(colour);
  };
  const range = (button) => [Number(button.dataset.first), Number(button.dataset.end)];
  const percent = (value) => `${Math.round(100 * value)}\u00a0%`;

  const over = (first, end) => pieces.map((_, p) => {
    let [sum, there, on] = [0, false, false];
    for (let t = first; t < end; t++) {
      const share = data.shares[t][p];
      if (share === null) continue;
      there = true;
      if (!data.aside[t].includes(p)) {
        on = true;
        sum += share;
      }
    }
    return { value: sum / (end - first) / data.steps, there, aside: there && !on };
  });

  const draw = (button) => {
    drawn = button;
    const [first, end] = range(button);
    const shares = over(first, end);
    const reach = shares.reduce((most, x, p) => (data.ordinary[p] && !x.aside ? Math.max(most, Math.abs(x.value)) : most), 0);
    shares.forEach((x, p) => {
      const piece = pieces[p];
      piece.style.background = piece.style.color = "";
      piece.classList.toggle("wf-aside", x.aside);
      piece.style.opacity = x.there ? "" : "0.35";
      if (x.there && !x.aside && data.ordinary[p]) paint(piece, x.value, reach);
      piece.title = x.there ? (x.aside ? "off the scale" : percent(x.value)) : "not yet written";
    });
    for (const fold of folds) {
      let best = 0;
      for (const piece of (fold.querySelectorAll("[data-piece]"))) {
        const x = shares[Number(piece.dataset.piece)];
        if (!x.aside && Math.abs(x.value) > Math.abs(best)) best = x.value;
      }
      paint(fold.querySelector("summary"), best, reach);
    }
    const order = shares.map((_, p) => p)
      .filter((p) => data.ordinary[p] && !shares[p].aside && Math.abs(shares[p].value) >= data.least)
      .sort((a, b) => Math.abs(shares[b].value) - Math.abs(shares[a].value)).slice(0, MOST_SOURCES);
    const words = order.map((p) => `${(pieces[p].textContent ?? "").trim()} ${percent(shares[p].value)}`);
    from.textContent = `${button.dataset.name} \u2190 ${words.join(", ") || "no single source"}`;
    image?.draw(first, end, button.dataset.name ?? "");
    const part = end - first < tokens.length;
    tokens.forEach((token, t) => token.classList.toggle("wf-chosen", part && t >= first && t < end));
  };
  const pin = (button) => {
    pinned = button;
    for (const each of [...tokens, ...chips]) each.setAttribute("aria-pressed", String(each === button));
    draw(button);
  };
  root.classList.add("wf-live");
  if (image) {
    const reading = (root.querySelector(".wf-reading"));
    const beside = element("div", { class: "wf-with-image" });
    reading.before(beside);
    beside.append(reading, image.node);
    const stills = ([...(root.closest(".wf-view")?.querySelectorAll("svg[data-first]") ?? [])]);
    for (const still of stills) {
      const own = [...tokens, ...chips].find((b) => b.dataset.first === still.dataset.first && b.dataset.end === still.dataset.end);
      image.follow(still, () => draw(own ?? chips[0]), () => draw(pinned));
    }
    if (stills.length === 1) stills[0].closest(".wf-panel")?.setAttribute("hidden", "");  // the same picture
  }
  for (const button of [...tokens, ...chips]) {
    button.addEventListener("mouseenter", () => draw(button));
    button.addEventListener("mouseleave", () => draw(pinned));
    button.addEventListener("focus", () => draw(button));
    button.addEventListener("blur", () => draw(pinned));
    button.addEventListener("click", () => pin(pinned === button ? chips[0] : button));
  }
  tokens.forEach((token, t) => {
    token.tabIndex = t ? -1 : 0;
    token.addEventListener("keydown", (event) => {
      const to = { ArrowRight: t + 1, ArrowLeft: t - 1, Home: 0, End: tokens.length - 1 }[event.key];
      if (to === undefined || !tokens[to]) return;
      event.preventDefault();
      tokens.forEach((other, i) => { other.tabIndex = i === to ? 0 : -1; });
      tokens[to].focus();
    });
  });
  root.addEventListener("keydown", (event) => { if (event.key === "Escape") pin(chips[0]); });
  pin(chips[0]);
  return () => draw(drawn);
}

function link(state, container, items, name) {
  container.setAttribute("role", "listbox");
  container.setAttribute("aria-label", name);
  const byUnit = new Map();
  items.forEach((item, i) => {
    item.setAttribute("role", "option");
    item.setAttribute("aria-selected", "false");
    item.tabIndex = i ? -1 : 0;
    for (const unit of unitsOf(item)) byUnit.set(unit, item);
  });
  const itemAt = (event) => {
    const item = event.target instanceof Element ? event.target.closest("[data-units]") : null;
    return item && container.contains(item) ? (item) : null;
  };
  const show = (item, pinned) => state.set({ unit: unitsOf(item)[0], pinned });
  container.addEventListener("pointerover", (event) => {
    const item = itemAt(event);
    if (item && !state.choices.pinned) show(item, false);
  });
  container.addEventListener("pointerleave", () => {
    if (!state.choices.pinned) state.set({ unit: null });
  });
  container.addEventListener("click", (event) => {
    const item = itemAt(event);
    if (!item) return;
    const held = state.choices.pinned && unitsOf(item).includes(state.choices.unit ?? -1);
    state.set(held ? { pinned: false } : { unit: unitsOf(item)[0], pinned: true });
  });
  container.addEventListener("keydown", (event) => {
    const item = itemAt(event);
    if (!item) return;
    const at = items.indexOf(item);
    const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };
    const ends = { Home: 0, End: items.length - 1 };
    const to = event.key in ends ? ends[event.key] : event.key in steps ? at + steps[event.key] : -1;
    if (event.key === "Escape") state.set({ unit: null, pinned: false });
    else if (event.key === "Enter" || event.key === " ") show(item, true);
    else if (items[to]) {
      items.forEach((other) => { other.tabIndex = other === items[to] ? 0 : -1; });
      items[to].focus();
      show(items[to], state.choices.pinned);
    } else return;
    event.preventDefault();
  });
  let marked = null;
  const mark = () => {
    const unit = state.choices.unit;
    const item = unit === null ? null : byUnit.get(unit) ?? null;
    if (item === marked) return;
    for (const [other, here] of ([[marked, false], [item, true]])) {
      other?.classList.toggle("wf-here", here);
      other?.setAttribute("aria-selected", String(here));
    }
    marked = item;
  };
  mark();
  return mark;
}

function unitsOf(item) {
  return (item.dataset.units ?? "").split(",").map(Number);
}

const ORDERS = [["ranked", "highest"], ["size", "largest |score|"], ["reading", "in order"], ["name", "A–Z"]];

function barsOf(data, map, context) {
  const { state, scale } = context;
  const { order, filter, specials, shown } = state.choices;
  const wanted = filter.trim().toLowerCase();
  const rows = context.entries
    .map((entry, place) => ({ entry, place, score: scoreOf(map, entry, context.shares), untried: isUntried(map, entry) }))
    .filter(({ entry }) => (specials || !isFolded(map, entry)) && (!wanted || entry.label.toLowerCase().includes(wanted)));
  const compare = {
    ranked: (a, b) => b.score - a.score,
    size: (a, b) => Math.abs(b.score) - Math.abs(a.score),
    reading: (a, b) => a.place - b.place,
    name: (a, b) => a.entry.label.localeCompare(b.entry.label),
  };
  rows.sort((a, b) => (order === "ranked" || order === "size" ? Number(a.untried) - Number(b.untried) : 0) || compare[order](a, b));
  const drawn = rows.slice(0, shown || (rows.length <= FEW ? FEW : MOST_SHOWN));
  const number = columnOf(drawn.map(({ score }) => score));
  const items = drawn.map(({ entry, score, untried }) => {
    const error = errorOf(map, entry, context.shares);
    const say = context.shares ? percent : number;
    const told = untried ? "no effect" : say(score);
    const limits = error ? `${told} ± ${say(error)}` : told;
    return element("div", {
      class: `wf-line${isFolded(map, entry) || untried ? " wf-special" : ""}`,
      title: untried ? UNTRIED : null,
      dataset: { units: entry.members.join() },
      "aria-label": `${entry.label}, ${limits}`,
    },
    element("span", { class: "wf-label", dir: "auto", title: entry.label }, entry.label),
    element("span", { class: "wf-number", title: error ? limits : null }, told),
    track(score, scale, isFolded(map, entry), error));
  });
  const list = element("div", { class: data.units.values || data.units.stream[0] === "table" ? "wf-lines wf-pairs" : "wf-lines" }, ...items);
  context.marks.push(link(state, list, items, `bars, ${map.name}`));
  const parts = element("div", {}, list);
  if (rows.length > drawn.length) {
    parts.append(element("button", { type: "button", class: "wf-more", onclick: () => state.set({ shown: drawn.length * 4 }) },
      `… ${rows.length - drawn.length} more`));
  }
  if (map.folded_words && !specials) parts.append(element("p", { class: "wf-note wf-folded-words" }, map.folded_words));
  if (!rows.length) parts.append(element("p", { class: "wf-note" }, `No ${nounOf(data.units)} contains this text.`));
  return parts;
}

const UNTRIED = "masking changed nothing: the column equals the baseline, or the model does not use it";

function isUntried(map, entry) {
  return entry.members.every((unit) => map.untried.includes(unit));
}

function track(score, scale, quiet, error = 0) {
  const length = scale.reach ? Math.min(1, Math.abs(score) / scale.reach) : 0;
  const size = length * (scale.signed ? 50 : 100);
  const left = scale.signed ? (score < 0 ? 50 - size : 50) : 0;
  const beyond = scale.reach > 0 && Math.abs(score) > scale.reach * 1.0001;
  return element("span", { class: "wf-track" },
    element("i", {
      class: beyond ? "wf-bar wf-beyond" : "wf-bar",
      title: beyond ? "longer than the scale of the other bars" : null,
      style: { left: `${left}%`, width: `${size}%`, backgroundColor: barColour(score, quiet) },
    }),
    scale.signed ? element("i", { class: "wf-axis" }) : null,
    error ? whisker(score, scale, error) : null);
}

function whisker(score, scale, error) {
  const at = (value) => {
    const share = Math.max(scale.signed ? -1 : 0, Math.min(1, value / scale.reach));
    return scale.signed ? 50 + 50 * share : 100 * share;
  };
  const left = at(score - error);
  return element("i", { class: "wf-whisker", style: { left: `${left}%`, width: `${at(score + error) - left}%` } });
}

function classesOf(data, ask, show) {
  const { label, probability, next } = data.prediction;
  if (probability === null) return null;
  const known = new Map((data.others ?? []).map((question) => [question.label, question]));
  const told = element("div", { class: "wf-why", "aria-live": "polite" });
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

const CURVE_WIDE = 460;
const CURVE_HIGH = 230;
const EDGE = { left: 46, right: 12, top: 10, bottom: 36 };


function evidenceState() {
  return { open: new Set(), step: new Map() };
}

function awayOf(map, opened) {
  const deletion = map.trust?.deletion;
  return new Set(deletion ? deletion.order.slice(0, deletion.counts[opened.step.get(map.name) ?? 0]) : []);
}

function badgeOf(map, context, opened, changed) {
  const trust = (map.trust);
  const kind = `wf-beats-${trust.verdict}`;
  const sign = { yes: "✓", partly: "≈", no: "!", unknown: "?" }[trust.verdict];
  if (!trust.deletion) {
    return element("p", { class: `wf-badge ${kind}` }, element("span", { "aria-hidden": "true" }, sign), trust.badge);
  }
  const inner = evidenceOf(map, context, opened, changed);
  inner.hidden = !opened.open.has(map.name);
  const button = element("button", { type: "button", class: `wf-badge ${kind}`, "aria-expanded": String(!inner.hidden), title: "show the deletion curve" },
    element("span", { "aria-hidden": "true" }, sign), trust.badge);
  button.addEventListener("click", () => {
    inner.hidden = !inner.hidden;
    if (inner.hidden) opened.open.delete(map.name); else opened.open.add(map.name);
    button.setAttribute("aria-expanded", String(!inner.hidden));
    if (!inner.hidden) return;
    opened.step.delete(map.name);
    changed();
  });
  return element("div", {}, button, inner);
}

function evidenceOf(map, context, opened, changed) {
  const { counts, curve, low, mean, high, beaten, draws, value } = map.trust.deletion;
  const canvas = (element("canvas", {
    class: "wf-curve", role: "img",
    "aria-label": `${value} as features are masked, highest scores first, from ${number(curve[0])} to ${number(curve[curve.length - 1])}; below ${beaten} of ${draws} random orders`,
    style: { width: `${CURVE_WIDE}px`, maxWidth: "100%", aspectRatio: `${CURVE_WIDE} / ${CURVE_HIGH}` },
  }));
  [canvas.width, canvas.height] = [2 * CURVE_WIDE, 2 * CURVE_HIGH];
  const slider = (element("input", {
    type: "range", min: 0, max: counts.length - 1, step: 1, value: opened.step.get(map.name) ?? 0,
    "aria-label": `features to mask, ${map.name}`,
  }));
  const told = element("p", { class: "wf-told", "aria-live": "polite" });
  slider.addEventListener("input", () => {
    opened.step.set(map.name, Number(slider.value));
    changed();
  });
  context.marks.push(() => {
    const step = opened.step.get(map.name) ?? 0;
    slider.value = String(step);
    slider.setAttribute("aria-valuetext", `${counts[step]} of ${counts[counts.length - 1]} features masked`);
    paintCurve(canvas, map.trust.deletion, step);
    told.textContent = step
      ? `Top ${counts[step]} masked: ${value} ${number(curve[step])} (before: ${number(curve[0])}). As many at random: ${number(mean[step])} (${number(low[step])} to ${number(high[step])}).`
      : `${value}: ${number(curve[0])}. Move the slider to mask the features with the highest scores.`;
  });
  return element("div", { class: "wf-evidence" },
    element("p", { class: "wf-note" }, `Deletion curve of this input: below ${beaten} of ${draws} random orders (lower is better). Band: 90 % of the random orders.`),
    canvas, element("label", { class: "wf-slide" }, "mask", slider), told);
}

function paintCurve(canvas, { counts, curve, low, mean, high }, step) {
  const pen = (canvas.getContext("2d"));
  const [ink, grey, blue] = isDark() ? ["#c9d1d9", "#9aa5b1", "#4c9fdc"] : ["#1b1f24", "#57606a", "#2b7bb9"];
  const all = [...curve, ...low, ...high];
  const [least, most] = [Math.min(...all), Math.max(...all)];
  const last = counts[counts.length - 1];
  const x = (count) => EDGE.left + ((CURVE_WIDE - EDGE.left - EDGE.right) * count) / last;
  const y = (value) => CURVE_HIGH - EDGE.bottom - ((CURVE_HIGH - EDGE.top - EDGE.bottom) * (value - least)) / (most - least || 1);
  const path = (values) => values.forEach((v, i) => pen[i ? "lineTo" : "moveTo"](x(counts[i]), y(v)));
  pen.setTransform(2, 0, 0, 2, 0, 0);
  pen.clearRect(0, 0, CURVE_WIDE, CURVE_HIGH);
  pen.beginPath();
  path(high);
  for (let i = low.length - 1; i >= 0; i--) pen.lineTo(x(counts[i]), y(low[i]));
  pen.fillStyle = isDark() ? "#8a929b44" : "#8a929b33";
  pen.fill();
  const line = (values, colour, width, dash) => {
    pen.beginPath();
    path(values);
    pen.setLineDash(dash);
    [pen.strokeStyle, pen.lineWidth] = [colour, width];
    pen.stroke();
    pen.setLineDash([]);
  };
  line(mean, grey, 1.5, [5, 4]);
  line(curve, blue, 2, []);
  pen.beginPath();
  pen.arc(x(counts[step]), y(curve[step]), 5, 0, 7);
  pen.fillStyle = blue;
  pen.fill();
  pen.fillStyle = ink;
  pen.font = "12px system-ui, sans-serif";
  pen.textAlign = "right";
  for (const value of [least, most]) pen.fillText(number(value), EDGE.left - 6, y(value) + 4);
  pen.textAlign = "center";
  for (const count of new Set([0, counts[Math.floor(counts.length / 2)], last])) pen.fillText(String(count), x(count), CURVE_HIGH - EDGE.bottom + 16);
  pen.fillText("masked features, highest scores first (dashed: random order)", EDGE.left + (CURVE_WIDE - EDGE.left - EDGE.right) / 2, CURVE_HIGH - 6);
}

function blanking(card, map, opened) {
  let before = 0;
  return () => {
    const away = awayOf(map, opened);
    if (!away.size && !before) return;
    before = away.size;
    for (const item of card.querySelectorAll("[data-units]")) {
      item.classList.toggle("wf-away", unitsOf((item)).every((unit) => away.has(unit)));
    }
  };
}

function howToTrust() {
  return element("details", { class: "wf-part wf-unmeasured" }, element("summary", {}, "Not validated: run with --report to test this explanation."),
    element("p", { class: "wf-note" }, "Every method returns a map, faithful or not. A report masks the features with the highest scores on inputs like yours and measures the change of the output; its maps have a badge and a deletion curve. In Python: ",
      element("code", {}, "wf.report(model, inputs, processor=…).save(\"report.html\")"),
      ". On the command line: ", element("code", {}, "whyformer explain text … --report report.html"), "."));
}

const SPACE = 16;
const PATIENCE = 1000;  // milliseconds: some browsers ask, or never answer

async function imageOf(node) {
  const { width, height } = node.getBoundingClientRect();
  const copy = (node.cloneNode(true));
  const canvases = node.querySelectorAll("canvas");
  copy.querySelectorAll("canvas").forEach((canvas, i) => {
    const image = document.createElement("img");
    image.src = canvases[i].toDataURL();
    image.className = canvas.className;
    image.setAttribute("style", canvas.getAttribute("style") ?? "");
    canvas.replaceWith(image);
  });
  copy.querySelectorAll(".wf-tools").forEach((tools) => tools.remove());
  const rules = [...document.querySelectorAll("style")].map((style) => style.textContent).join("\n");
  const dark = document.documentElement.classList.contains("wf-dark");
  const sheet = document.createElement("div");
  sheet.className = "wf";
  sheet.style.cssText = `padding:${SPACE}px;width:${width + 2 * SPACE}px;max-width:none`;
  const style = document.createElement("style");
  style.textContent = rules;
  sheet.append(style, copy);
  const outer = document.createElement("div");
  outer.className = dark ? "wf-dark" : "";
  outer.append(sheet);
  const body = new XMLSerializer().serializeToString(outer);
  const [wide, high] = [Math.ceil(width + 2 * SPACE), Math.ceil(height + 2 * SPACE)];
  const names = SVG_SPACE;
  const drawing = `<svg xmlns="${names}" width="${wide}" height="${high}"><foreignObject width="100%" height="100%">${body}</foreignObject></svg>`;
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(drawing)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [2 * wide, 2 * high];
  const pen = (canvas.getContext("2d"));
  pen.scale(2, 2);
  pen.fillStyle = dark ? "#0d1117" : "#fff";
  pen.fillRect(0, 0, wide, high);
  pen.drawImage(image, 0, 0);
  return new Promise((done, failed) => canvas.toBlob((blob) => (blob ? done(blob) : failed(new Error("no picture"))), "image/png"));
}

async function copyImage(node) {
  const blob = await imageOf(node);
  try {
    const unanswered = new Promise((_, failed) => setTimeout(() => failed(new Error("not allowed yet")), PATIENCE));
    await Promise.race([navigator.clipboard.write([new ClipboardItem({ "image/png": blob })]), unanswered]);
    return "copied";
  } catch {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(blob);
    link.download = "whyformer.png";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    return "saved";
  }
}

function legendLine(scale, words, overImage = false, shares = false) {
  const [low, high] = endsOf(scale.signed ? -scale.reach : scale.low, scale.reach, shares);
  return element("div", { class: "wf-legend" },
    element("span", { class: "wf-ramp", style: { background: gradient(scale, overImage) } }),
    element("span", {}, scale.signed ? `${low} … 0 … ${high}` : `${low} … ${high}`), element("span", {}, words));
}

const MOST_LABELS = 40;
const LONGEST_LABEL = 14;
const MOST_IN_ROW = 12;

function short(label) {
  return label.length <= LONGEST_LABEL ? label : `${label.slice(0, LONGEST_LABEL - 1)}…`;
}

function matrixOf(data, map, context) {
  const { state } = context;
  const layer = state.choices.layer;
  const grid = (layer >= 0 && map.layers ? map.layers[layer] : map.matrix ?? map.layers?.[0]);
  const values = numbersOf(grid);
  const units = data.units.labels.length;
  const perColumn = units / grid.columns;  // more than one: neighbours stand together
  const perRow = grid.rows > 1 ? units / grid.rows : units;
  const labelled = grid.columns <= MOST_LABELS && perColumn === 1;
  const scale = scaleOfGrid(data, grid, values, map.signed, Boolean(context.attention));
  const cell = labelled ? 20 : Math.max(1, Math.floor(480 / Math.max(grid.columns, grid.rows)));
  const rowNames = labelled && grid.rows === units ? data.units.labels.map(short) : [];
  const left = rowNames.length ? 8 * Math.max(...rowNames.map((l) => l.length)) + 8 : 2;
  const top = labelled ? 8 * Math.max(...data.units.labels.map((l) => short(l).length)) * 0.8 + 12 : 2;
  const [wide, high] = [left + cell * grid.columns + (labelled ? 40 : 2), top + cell * grid.rows + 2];
  const canvas = (element("canvas", {
    class: "wf-matrix", tabindex: "0", role: "application",
    "aria-label": `map of ${grid.rows} × ${grid.columns}, ${map.name}: the up and down keys choose a row, which is listed beside it`,
    style: { width: `${wide}px`, maxWidth: "100%", aspectRatio: `${wide} / ${high}` },
  }));
  const cells = document.createElement("canvas");
  [cells.width, cells.height] = [grid.columns, grid.rows];
  const small = (cells.getContext("2d"));
  const pixels = small.createImageData(grid.columns, grid.rows);
  paintScores(scale, values, pixels.data);
  const own = grid.rows === grid.columns ? Array.from({ length: grid.rows }, (_, i) => values[i * grid.columns + i]).filter((value) => Math.abs(value) > scale.reach * 1.0001) : [];
  if (own.length) {  // the diagonal is beyond the scale: in colour it would look like the largest value
    for (let i = 0; i < grid.rows; i++) {
      const at = i * grid.columns + i;
      if (Math.abs(values[at]) > scale.reach * 1.0001) pixels.data.set(isDark() ? [61, 68, 77, 255] : [224, 224, 224, 255], 4 * at);
    }
  }
  small.putImageData(pixels, 0, 0);
  const density = 2;
  [canvas.width, canvas.height] = [wide * density, high * density];
  const pen = (canvas.getContext("2d"));
  const paint = (row) => {
    pen.setTransform(density, 0, 0, density, 0, 0);
    pen.clearRect(0, 0, wide, high);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(cells, left, top, cell * grid.columns, cell * grid.rows);
    pen.strokeStyle = isDark() ? "#3d444d" : "#d8dde3";
    pen.strokeRect(left, top, cell * grid.columns, cell * grid.rows);
    pen.font = "12px system-ui, sans-serif";
    rowNames.forEach((label, i) => {
      pen.fillStyle = i === row ? css(isDark() ? [140, 203, 247] : [33, 102, 172]) : isDark() ? "#c9d1d9" : "#1b1f24";
      pen.textAlign = "right";
      pen.fillText(label, left - 5, top + (i + 0.7) * cell);
    });
    if (labelled) {
      data.units.labels.forEach((label, i) => {
        pen.save();
        pen.translate(left + (i + 0.65) * cell, top - 5);
        pen.rotate(-0.95);
        pen.textAlign = "left";
        pen.fillStyle = isDark() ? "#c9d1d9" : "#1b1f24";
        pen.fillText(short(label), 0, 0);
        pen.restore();
      });
    }
    if (row !== null && grid.rows > 1) {
      pen.strokeStyle = isDark() ? "#fff" : "#000";
      pen.lineWidth = 1.5;
      pen.strokeRect(left, top + row * cell, cell * grid.columns, Math.max(cell, 2));
      pen.lineWidth = 1;
    }
  };
  const said = element("div", { class: "wf-row-of" });
  const names = (from, per) => {
    const [first, last] = [Math.floor(from * per), Math.min(units, Math.ceil((from + 1) * per)) - 1];
    return last > first ? `${data.units.labels[first]} … ${data.units.labels[last]}` : data.units.labels[first];
  };
  const list = (row) => {
    const from = grid.rows === 1 ? "the output" : names(row, perRow);
    const all = Array.from({ length: grid.columns }, (_, column) => ({ column, value: values[row * grid.columns + column] }));
    all.sort((a, b) => Math.abs(b.value) - Math.abs(a.value));
    const others = all.filter(({ column }) => !(grid.rows === grid.columns && column === row) && !data.units.special[Math.floor(column * perColumn)]);
    const reach = Math.max(...(others.length ? others : all).map(({ value }) => Math.abs(value)));
    const told = columnOf([reach]);
    said.replaceChildren(element(context.several ? "h4" : "h3", {}, context.attention ? `${from} attends to` : `Relevance for ${from}`), element("div", { class: "wf-lines" },
      ...all.slice(0, MOST_IN_ROW).map(({ column, value }) => element("div", { class: "wf-line" },
        element("span", { class: "wf-label", dir: "auto" }, names(column, perColumn)),
        element("span", { class: "wf-number" }, told(value)),
        track(value, { ...scale, low: 0, reach }, !others.some((other) => other.column === column))))));
  };
  const rowOf = (unit) => Math.min(grid.rows - 1, Math.floor(unit / perRow));
  const under = (event) => {
    const box = canvas.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * wide - left;
    const y = ((event.clientY - box.top) / box.height) * high - top;
    const [row, column] = [Math.floor(y / cell), Math.floor(x / cell)];
    return row >= 0 && row < grid.rows && column >= 0 && column < grid.columns ? [row, column] : null;
  };
  canvas.addEventListener("pointermove", (event) => {
    const at = under(event);
    if (grid.rows > 1 && !state.choices.pinned) state.set({ unit: at ? Math.floor(at[0] * perRow) : null });
    canvas.title = at ? `${grid.rows === 1 ? "output" : names(at[0], perRow)} → ${names(at[1], perColumn)}: ${number(values[at[0] * grid.columns + at[1]])}` : "";
  });
  canvas.addEventListener("click", (event) => {
    const at = under(event);
    if (at && grid.rows > 1) state.set({ unit: Math.floor(at[0] * perRow), pinned: true });
  });
  canvas.addEventListener("pointerleave", () => { if (!state.choices.pinned) state.set({ unit: null }); });
  canvas.addEventListener("keydown", (event) => {
    const steps = { ArrowDown: 1, ArrowUp: -1 };
    if (event.key === "Escape") state.set({ unit: null, pinned: false });
    if (!(event.key in steps) || grid.rows === 1) return;
    event.preventDefault();
    const row = rowOf(state.choices.unit ?? map.read ?? 0) + (state.choices.unit === null ? 0 : steps[event.key]);
    state.set({ unit: Math.floor(Math.max(0, Math.min(grid.rows - 1, row)) * perRow), pinned: true });
  });
  context.marks.push(() => {
    const chosen = state.choices.unit;
    const row = rowOf(chosen ?? map.read ?? 0);
    paint(row);
    if (chosen !== null) list(row);  // the row that is read is what the bars show
    else said.replaceChildren(element("p", { class: "wf-note" }, grid.rows > 1 ? "Hover a row to list it here." : ""));
  });
  const note = perColumn > 1 ? element("p", { class: "wf-note" }, `${units} ${pluralOf(nounOf(data.units))}: ${Math.ceil(perColumn)} neighbours share a cell (their mean).`) : null;
  const meaning = context.attention ? "attention weight" : scale.signed ? "relevance (orange: below 0, blue: above 0)" : "relevance";
  const largest = own.length ? `; grey: relevance to itself, beyond the scale (up to ${number(own.reduce((most, value) => (Math.abs(value) > Math.abs(most) ? value : most)))})` : "";
  const axes = grid.rows === 1 ? "" : context.attention ? "Rows attend to columns." : "Rows: output positions. Columns: input positions.";
  return element("div", { class: "wf-beside" }, element("div", { class: "wf-canvas" }, canvas, legendLine(scale, meaning + largest), axes ? element("p", { class: "wf-note" }, axes) : null, note), said);
}

function scaleOfGrid(data, grid, values, signed, whole) {
  const square = grid.rows === grid.columns;
  const exact = grid.columns === data.units.labels.length;
  let reach = 0;
  let least = Infinity;
  values.forEach((value, i) => {
    const [row, column] = [Math.floor(i / grid.columns), i % grid.columns];
    if (!whole && ((square && row === column) || (exact && data.units.special[column]))) return;
    reach = Math.max(reach, Math.abs(value));
    least = Math.min(least, value);
  });
  return { reach: reach || 1, low: 0, signed: signed || least < 0 };
}

function patchesOf(units) {
  const several = new Set(units.stream).size > 1;
  return units.labels.map((_, i) => i).filter((i) => !units.special[i] && (units.stream[i] === "image" || !several));
}

function originalOf(data) {
  return element("div", { class: "wf-window wf-plain" }, element("img", { src: data.picture, alt: "the input image" }), ...framesOf(data));
}

function framesOf(data) {
  return data.frames.map(({ box, label }) => element("span", {
    class: "wf-frame",
    style: { left: `${100 * box[0]}%`, top: `${100 * box[1]}%`, width: `${100 * (box[2] - box[0])}%`, height: `${100 * (box[3] - box[1])}%` },
  }, element("b", {}, label)));
}

function pictureOf(data, map, context) {
  const { state, scale } = context;
  const [rows, columns] = (data.units.grid);
  const patches = patchesOf(data.units);
  const [height, width] = data.size ?? [rows, columns];
  const heat = (element("canvas", { class: "wf-heat", width: columns, height: rows, "aria-hidden": "true" }));
  const pen = (heat.getContext("2d"));
  const pixels = pen.createImageData(columns, rows);
  const unitAt = (row, column) => patches[(data.units.upwards ? rows - 1 - row : row) * columns + column];
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      const score = scoreOf(map, { label: "", members: [unitAt(row, column)], special: false, span: null }, context.shares);
      pixels.data.set([...colourOf(scale, score, true), 255], 4 * (row * columns + column));
    }
  }
  pen.putImageData(pixels, 0, 0);
  const gone = (element("canvas", { class: "wf-heat wf-gone", width: columns, height: rows, "aria-hidden": "true" }));
  const blank = (gone.getContext("2d"));
  const frame = element("i", { class: "wf-patch" });
  const stage = element("div", {
    class: "wf-stage", tabindex: "0", role: "application",
    "aria-label": `${rows} × ${columns} patches, ${map.name}: arrow keys move`,
    style: { aspectRatio: `${width} / ${height}` },
  },
  data.picture ? element("img", { src: data.picture, alt: "the explained image" }) : null, heat, gone, frame,
  ...framesOf(data));
  const placeOf = (unit) => {
    const at = patches.indexOf(unit);
    const row = Math.floor(at / columns);
    return at < 0 ? null : [data.units.upwards ? rows - 1 - row : row, at % columns];
  };
  const under = (event) => {
    const box = stage.getBoundingClientRect();
    const row = Math.floor(((event.clientY - box.top) / box.height) * rows);
    const column = Math.floor(((event.clientX - box.left) / box.width) * columns);
    return row >= 0 && row < rows && column >= 0 && column < columns ? unitAt(row, column) : null;
  };
  stage.addEventListener("pointermove", (event) => { if (!state.choices.pinned) state.set({ unit: under(event) }); });
  stage.addEventListener("pointerleave", () => { if (!state.choices.pinned) state.set({ unit: null }); });
  stage.addEventListener("click", (event) => {
    const unit = under(event);
    state.set(state.choices.pinned && unit === state.choices.unit ? { pinned: false } : { unit, pinned: true });
  });
  stage.addEventListener("keydown", (event) => {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (event.key === "Escape") state.set({ unit: null, pinned: false });
    if (!(event.key in moves)) return;
    event.preventDefault();
    const [row, column] = placeOf(state.choices.unit ?? patches[0]) ?? [0, 0];
    const [down, right] = moves[event.key];
    const clamp = (value, most) => Math.max(0, Math.min(most - 1, value));
    state.set({ unit: unitAt(clamp(row + down, rows), clamp(column + right, columns)), pinned: true });
  });
  context.marks.push(() => {
    const place = state.choices.unit === null ? null : placeOf(state.choices.unit);
    frame.style.display = place ? "block" : "none";
    if (place) {
      Object.assign(frame.style, {
        top: `${(100 * place[0]) / rows}%`, left: `${(100 * place[1]) / columns}%`,
        width: `${100 / columns}%`, height: `${100 / rows}%`,
      });
    }
    const away = context.away();
    blank.clearRect(0, 0, columns, rows);
    blank.fillStyle = "#8a929b";
    for (const unit of away) {
      const at = placeOf(unit);
      if (at) blank.fillRect(at[1], at[0], 1, 1);
    }
    heat.style.opacity = data.picture ? String(state.choices.opacity) : "1";
    heat.style.imageRendering = state.choices.smooth ? "auto" : "pixelated";
    stage.style.width = `${100 * state.choices.zoom}%`;
  });
  return element("div", { class: "wf-window" }, stage);
}

function stateOf(start) {
  const choices = {
    unit: null, pinned: false, by: "token", specials: false, order: "ranked", filter: "", shared: false,
    hidden: new Set(), opacity: 0.6, zoom: 1, layer: -1, shown: 0, smooth: false, ...start,
  };
  const listeners = [];
  return {
    choices,
    listen(listener) { listeners.push(listener); },
    set(changes) {
      const changed = new Set(Object.keys(changes).filter((key) => choices[key] !== changes[key] || key === "hidden"));
      Object.assign(choices, changes);
      if (changed.size) for (const listener of listeners) listener(changed);
    },
  };
}

const STEPS = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600];  // seconds between ticks
const MOST_TICKS = 9;

function isSound(units) {
  return units.grid === null && units.stream.every((stream) => stream === "audio");
}

function stripOf(units, map, context) {
  const { scale } = context;
  const entries = context.entries.filter((entry) => !entry.special);  // a token of the model has no time
  const frames = entries.map((entry) => {
    const score = scoreOf(map, entry, context.shares);
    const high = scale.reach ? Math.min(1, Math.abs(score) / scale.reach) * (scale.signed ? 50 : 100) : 0;
    const top = scale.signed ? (score < 0 ? 50 : 50 - high) : 100 - high;
    return element("span", {
      class: "wf-moment", dataset: { units: entry.members.join() },
      "aria-label": `${entry.label}, ${context.shares ? percent(score) : number(score)}`,
    }, element("i", { style: { top: `${top}%`, height: `${high}%`, backgroundColor: barColour(score, entry.special) } }));
  });
  const strip = element("div", { class: "wf-strip" }, ...frames);
  context.marks.push(link(context.state, strip, frames, `${frames.length} frames in time, ${map.name}`));
  if (units.seconds === null) {
    return element("div", {}, strip, element("p", { class: "wf-note wf-time" },
      element("span", {}, entries[0].label), element("span", {}, "time →"), element("span", {}, entries[entries.length - 1].label)));
  }
  const parts = units.wave ? [strip, waveOf(units.wave)] : [strip];
  return element("div", { class: "wf-sound" }, ...parts, ticksOf(units.seconds));
}

function waveOf(wave) {
  const canvas = (element("canvas", { class: "wf-wave", width: wave.length * 2, height: 80, role: "img", "aria-label": "waveform" }));
  const pen = (canvas.getContext("2d"));
  pen.fillStyle = isDark() ? "#9aa5b1" : "#57606a";
  wave.forEach((loud, i) => pen.fillRect(2 * i, 40 - 38 * loud, 2, Math.max(1, 76 * loud)));
  return canvas;
}

function ticksOf(seconds) {
  const step = STEPS.find((each) => seconds / each <= MOST_TICKS) ?? seconds;
  const ticks = Array.from({ length: Math.floor(seconds / step + 1e-9) + 1 }, (_, i) => i * step);
  const digits = step < 0.1 ? 2 : step < 1 ? 1 : 0;
  return element("div", { class: "wf-ticks" }, ...ticks.map((at) =>
    element("span", at < 0.95 * seconds ? { style: { left: `${(100 * at) / seconds}%` } } : { class: "wf-last" }, `${at.toFixed(digits)} s`)));
}

const TEXTS = ["text", "source", "target", "a", "b"];

function textStreams(units) {
  if (units.grid && new Set(units.stream).size === 1) return [];
  return [...new Set(units.stream)].filter((stream) => TEXTS.includes(stream));
}

function textOf(data, map, context, stream) {
  const { units } = data;
  const entries = context.entries.filter((e) => units.stream[e.members[0]] === stream);
  const run = element("p", { class: "wf-run", dir: "auto" });
  const items = [];
  const piece = (words, members, special) => {
    const score = scoreOf(map, { label: "", members, special, span: null }, context.shares);
    const aside = members.some((i) => map.aside.includes(i));
    const colour = colourOf(context.scale, score);
    const told = context.shares ? percent(score) : number(score);
    const item = element("span", {
      class: `wf-token${special ? " wf-special" : ""}${aside ? " wf-aside" : ""}`,
      style: aside || special ? {} : { background: css(colour), color: inkOn(colour) },
      dataset: { units: members.join() },
      "aria-label": `${words.trim()}, ${told}`,
    }, words);
    items.push(item);
    return item;
  };
  const placed = places(entries);
  if (units.text !== null && placed.length) {
    let at = 0;
    const specials = context.state.choices.specials ? entries.filter((e) => e.special && !width(e)) : [];
    const first = entries.findIndex((e) => width(e));
    for (const entry of specials.filter((e) => entries.indexOf(e) < first)) {
      run.append(piece(entry.label, entry.members, true), " ");
    }
    for (const { span, members, special } of placed) {
      const words = textBetween(units, ...span);
      const blank = words.length - words.trimStart().length;  // a space that a tokenizer counts to its word
      const start = span[0] + blank;
      if (start > at) run.append(at || !units.outside[0] ? textBetween(units, at, start) : unscored(textBetween(units, 0, start)));
      if (span[1] > start) run.append(piece(textBetween(units, start, span[1]), members, special));
      at = Math.max(at, span[1]);
    }
    const rest = textBetween(units, at);
    run.append(units.outside[1] && rest.trim() ? unscored(rest) : rest);
    for (const entry of specials.filter((e) => entries.indexOf(e) >= first)) run.append(" ", piece(entry.label, entry.members, true));
  } else {
    const marked = entries.some((e) => /^[Ġ▁]/.test(e.label));
    entries.forEach((entry, i) => {
      const glued = marked ? !/^[Ġ▁]/.test(entry.label) && !entry.special : entry.label.startsWith("##");
      if (i && !glued) run.append(" ");
      run.append(piece(entry.label.replace(/^##/, "").replace(/^[Ġ▁]+/, "") || " ", entry.members, entry.special));
    });
  }
  context.marks.push(link(context.state, run, items, `${stream}, ${map.name}: scores of ${items.length} tokens`));
  return run;
}

function unscored(words) {
  return element("span", { class: "wf-unread", title: "not scored: outside the tokens of this explanation" }, words);
}

function width(entry) {
  return entry.span ? entry.span[1] - entry.span[0] : 0;
}

function places(entries) {
  const placed = [];
  for (const entry of entries.filter(width).sort((a, b) => a.span[0] - b.span[0])) {
    const before = placed[placed.length - 1];
    if (before && entry.span[0] < before.span[1]) {
      before.members = [...before.members, ...entry.members];
      before.span = [before.span[0], Math.max(before.span[1], entry.span[1])];
      before.special = before.special && entry.special;
    } else placed.push({ span: entry.span, members: entry.members, special: entry.special });
  }
  return placed;
}

const MOST = 12;

function waterfallOf(map, context) {
  const base = (map.base);
  const all = context.entries.filter((entry) => !isUntried(map, entry)).map((entry) => ({ entry, score: scoreOf(map, entry, false) }))
    .filter(({ entry, score }) => score || !entry.special);
  all.sort((a, b) => Math.abs(b.score) - Math.abs(a.score));
  const most = all.length === MOST + 1 ? MOST + 1 : MOST;  // a line for "1 other" can as well be that one
  const steps = all.slice(0, most).map(({ entry, score }) => ({ name: entry.label, units: entry.members, score, quiet: entry.special }));
  const rest = all.slice(most);
  if (rest.length) steps.push({ name: `${rest.length} others`, units: [], score: rest.reduce((sum, r) => sum + r.score, 0), quiet: false });
  const reached = base + steps.reduce((sum, step) => sum + step.score, 0);
  const off = map.value - reached;
  if (Math.abs(off) > 0.005 * Math.abs(map.value - base)) steps.push({ name: map.remainder ?? "not accounted for", units: [], score: off, quiet: true });
  const number = columnOf([base, map.value, ...steps.map((step) => step.score)]);
  let at = base;
  const ends = [base, ...steps.map((step) => (at += step.score))];
  const [lowest, highest] = [Math.min(...ends), Math.max(...ends)];
  const [low, high] = [-1, 1].map((side) => (lowest + highest + side * map.headroom * (highest - lowest)) / 2);
  const place = (value) => (high > low ? (100 * (value - low)) / (high - low) : 0);
  const line = (name, told, from, to, colour, units) => element("div", {
    class: "wf-line", dataset: units?.length ? { units: units.join() } : {}, "aria-label": `${name}, ${told}`,
  },
  element("span", { class: "wf-label", dir: "auto", title: name }, name), element("span", { class: "wf-number" }, told),
  element("span", { class: "wf-track" }, element("i", { class: "wf-bar", style: {
    left: `${Math.min(place(from), place(to))}%`, width: `max(2px, ${Math.abs(place(to) - place(from))}%)`, backgroundColor: colour,
  } })));
  at = base;
  const lines = steps.map((step) => {
    const from = at;
    at += step.score;
    return line(step.name, `${step.score >= 0 ? "+" : ""}${number(step.score)}`, from, at, barColour(step.score, step.quiet), step.units);
  });
  const pairs = steps.some((step) => step.name.includes(" = "));  // columns with their values
  const list = element("div", { class: `wf-lines wf-waterfall${pairs ? " wf-pairs" : ""}` },
    line("baseline", number(base), base, base, "var(--wf-ink)", null), ...lines,
    line("explained value", number(map.value), map.value, map.value, "var(--wf-ink)", null));
  context.marks.push(link(context.state, list, lines.filter((l) => l.dataset.units), `from baseline to value, ${map.name}`));
  return list;
}

function explanationOf(data, ask = null) {
  const { units } = data;
  let { maps, footer } = data;
  const several = maps.length > 1;
  const mixed = new Set(maps.map((map) => map.method)).size > 1;
  const state = stateOf({ by: data.by, order: maps.some((map) => map.signed) ? "size" : "ranked", specials: data.specials, shared: data.shared });
  let marks = [];
  let entries = [];
  const lists = new Map();
  const said = element("p", { class: "wf-said-unit", "aria-live": "polite" });
  const body = element("div", { class: "wf-maps" });
  const evidence = evidenceState();
  const measured = maps.some((map) => map.trust);
  const classes = classesOf(data, ask, (question) => {
    ({ maps, footer } = question ?? data);
    draw();
  });
  const below = element("div", { class: "wf-footer" });
  const node = element("div", { class: "wf-live-view" }, classes, toolsOf(), said, body, below, measured ? null : howToTrust());

  function draw() {
    marks = [];
    lists.clear();
    const { by, shared, hidden, layer } = state.choices;
    const shares = several && mixed && shared;
    entries = entriesOf(units, by);
    const patches = units.grid ? patchesOf(units).map((i) => ({ label: units.labels[i], members: [i], special: false, span: null })) : null;
    const shown = maps.filter((map) => !hidden.has(map.name));
    const scales = maps.map((map) => scaleOf(map, patches ?? entries, shares, !patches));
    if (several && shared) {
      const reach = Math.max(...scales.map((scale) => scale.reach));
      scales.forEach((scale) => { scale.reach = reach; });
    }
    const original = several && patches && data.picture ? [element("div", { class: "wf-card wf-original" }, element("h3", {}, "Input image"), originalOf(data))] : [];
    body.replaceChildren(...original, ...shown.map((map) => {
      const scale = scales[maps.indexOf(map)];
      const context = { several, state, entries, shares, scale, marks, away: () => awayOf(map, evidence) };
      const [parts, folds] = [[], []];
      const [picture, legend] = [patches ? pictureOf(data, map, context) : null, map.nothing ? null : legendOf(map, scale, Boolean(patches), shares)];
      if (several) parts.push(element("h3", {}, map.name));
      if (map.trust) parts.push(badgeOf(map, context, evidence, mark));
      const beside = picture && !several && !textStreams(units).length;  // a picture leaves room for its bars
      if (beside) {
        const both = data.picture ? [titled("Input image", originalOf(data)), titled("Scores per patch", picture)] : [titled("Scores per patch", picture)];
        folds.push(element("div", { class: "wf-part wf-pictures" }, element("div", { class: "wf-both" }, ...both), legend));
      } else if (picture) parts.push(picture);
      for (const stream of textStreams(units)) {
        if (textStreams(units).length > 1) parts.push(element(several ? "h4" : "h3", {}, stream));
        parts.push(textOf(data, map, context, stream));
      }
      if (isSound(units)) parts.push(stripOf(units, map, context));
      if (!beside && legend) parts.push(legend);
      const falls = !several && map.signed && units.stream.every((stream) => stream === "table");  // a row opens with its waterfall
      const waterfall = () => fold("waterfall", `Waterfall: from the baseline (${number(map.base)}) to the explained value (${number(map.value)})`, waterfallOf(map, context), falls);
      const list = (open) => fold("bars", `Scores per ${nounOf(units, by)}`, listOf(map, context), open);
      if (map.nothing) parts.push(element("p", { class: "wf-nothing" }, map.nothing));
      else if (map.base === null) folds.push(list(true));
      else if (falls) {
        folds.push(waterfall(), list(false));
        folds[folds.length - 2].style.flexBasis = "100%";
      } else folds.push(list(true), waterfall());
      if ((map.matrix || map.layers) && !map.nothing) {
        const noun = nounOf(units);
        const title = `${noun[0].toUpperCase()}${noun.slice(1)}-to-${noun} relevance${layer >= 0 && map.layers ? `, layer ${layer}` : ""}`;
        folds.push(fold("map", title, matrixOf(data, map, context), !several && units.labels.length <= 64 && !patches));
      }
      parts.push(element("div", { class: "wf-parts" }, ...folds));
      if (map.small) parts.push(element("p", { class: "wf-note" }, map.small));
      if (map.doubts.length) parts.push(element("div", { class: "wf-doubts" }, element("b", {}, "Warnings"),
        element("ul", {}, ...map.doubts.map((doubt) => element("li", {}, doubt)))));
      const card = element("div", { class: several ? "wf-map wf-card" : "wf-map" }, ...parts);
      if (map.trust?.deletion) marks.push(blanking(card, map, evidence));
      return card;
    }));
    below.replaceChildren(...footerOf(footer, shared));
    body.classList.toggle("wf-single", !several);
    body.classList.toggle("wf-four", shown.length === 4);
    mark();
  }

  function listOf(map, context) {
    const place = element("div");
    const list = { marks: [], draw: () => {
      list.marks = [];
      place.replaceChildren(barsOf(data, map, { ...context, marks: list.marks }));
    } };
    list.draw();
    lists.set(map.name, list);
    return place;
  }

  function mark() {
    for (const each of [...[...lists.values()].flatMap((list) => list.marks), ...marks]) each();
    if (!measuring) said.textContent = sentence();
    node.classList.toggle("wf-pinned", state.choices.pinned);
  }

  function sentence() {
    const unit = state.choices.unit;
    if (unit === null) {
      return "Hover for scores; click to pin; arrow keys move; Esc unpins.";
    }
    const entry = entries.find((e) => e.members.includes(unit)) ?? entries[0];
    const told = maps.map((map) => {
      const score = scoreOf(map, entry, false);
      const listed = entries.filter((e) => !isFolded(map, e));
      const rank = 1 + listed.filter((e) => scoreOf(map, e, false) > score).length;
      const place = isFolded(map, entry) ? "hidden" : `${rank}. of ${listed.length}`;
      const told = several && mixed && state.choices.shared ? percent(score * map.share) : number(score);
      return `${several ? `${map.name} ` : ""}${told} (${place})`;
    });
    return `${entry.label}${entry.special ? " (special)" : ""} · ${told.join(" · ")}`;
  }

  let measuring = false;
  function reserve() {
    const longest = entries.reduce((most, { label }) => (label.length > most.length ? label : most), "");
    measuring = true;
    said.style.minHeight = "";
    const places = `(${entries.length}. of ${entries.length})`;
    said.textContent = `${longest} (special) · ${maps.map((map) => `${several ? `${map.name} ` : ""}-0.00000 ${places}`).join(" · ")}`;
    said.style.minHeight = `${said.offsetHeight}px`;
    measuring = false;
    said.textContent = sentence();
  }
  let width = 0;
  new ResizeObserver(([{ contentRect }]) => {
    if (contentRect.width === width) return;
    width = contentRect.width;
    reserve();
  }).observe(node);

  const opened = new Map();
  function fold(key, title, inner, open) {
    const details = element("details", { class: "wf-part" }, element("summary", {}, title), inner);
    details.open = opened.get(key) ?? open;
    details.addEventListener("toggle", () => opened.set(key, details.open));
    return details;
  }

  function toolsOf() {
    const tools = element("div", { class: "wf-tools", role: "toolbar", "aria-label": "controls" });
    if (units.word && units.word.some((word, i) => i && word >= 0 && word === units.word[i - 1])) {
      tools.append(chooser("scores per", [["token", "token"], ["word", "word"]], () => state.choices.by, (by) => state.set({ by, unit: null, pinned: false })));
    }
    tools.append(chooser("sort", ORDERS, () => state.choices.order, (order) => state.set({ order })));
    const filter = element("input", { type: "search", placeholder: `find a ${nounOf(units)}`, "aria-label": `show only ${pluralOf(nounOf(units))} that contain this text` });
    filter.addEventListener("input", () => state.set({ filter: filter.value }));
    tools.append(filter);
    if (maps.some((map) => map.folded.length)) tools.append(tick("special tokens", data.specials, (specials) => state.set({ specials })));
    if (several) {
      tools.append(chooser("colour scale", [["shared", "one scale"], ["own", "own scales"]],
        () => (state.choices.shared ? "shared" : "own"), (value) => state.set({ shared: value === "shared" })));
      for (const map of maps) {
        tools.append(tick(map.name, true, (on) => {
          const hidden = new Set(state.choices.hidden);
          if (on) hidden.delete(map.name); else hidden.add(map.name);
          state.set({ hidden });
        }));
      }
    }
    if (units.grid) {
      if (data.picture) tools.append(slider("overlay", [0, 100, 5], 60, (value) => state.set({ opacity: value / 100 })));
      tools.append(slider("zoom", [1, 6, 0.5], 1, (value) => state.set({ zoom: value })), tick("smooth", false, (smooth) => state.set({ smooth })));
    }
    const deepest = Math.max(...maps.map((map) => map.layers?.length ?? 0));
    if (deepest) {
      const words = element("output", {}, "all layers");
      tools.append(slider("layer", [-1, deepest - 1, 1], -1, (value) => {
        words.textContent = value < 0 ? "all layers" : `layer ${value}`;
        state.set({ layer: value });
      }), words);
    }
    const copy = element("button", { type: "button", onclick: async () => {
      copy.textContent = await copyImage(node).catch(() => "not possible here");
      setTimeout(() => { copy.textContent = "copy as image"; }, 1500);
    } }, "copy as image");
    tools.append(copy);
    return tools;
  }

  state.listen((changed) => {
    const quick = new Set(["unit", "pinned", "opacity", "zoom", "smooth"]);
    const sorting = new Set([...quick, "order", "filter", "shown"]);
    if (![...changed].every((key) => sorting.has(key))) return draw();
    if (![...changed].every((key) => quick.has(key))) lists.forEach((list) => list.draw());
    mark();
  });
  draw();
  return { node, repaint: draw };
}

function footerOf({ caption, shared: onOneScale, details, doubts }, shared) {
  const rows = details.filter(([name]) => name !== "not validated");  // which has a fold of its own
  return [
    element("p", { class: "wf-caption" }, shared ? onOneScale : caption),
    rows.length ? element("dl", { class: "wf-facts" }, ...rows.map(([name, value]) => element("div", {}, element("dt", {}, name), element("dd", {}, value)))) : null,
    doubts.length ? element("div", { class: "wf-doubts" }, element("b", {}, "Warnings"), element("ul", {}, ...doubts.map((doubt) => element("li", {}, doubt)))) : null,
  ].filter((part) => part !== null);
}

function legendOf(map, scale, overImage, shares) {
  const [explained] = map.explained.split(" = ");
  const sides = map.sides ? `orange supports ${map.sides[1]}, blue supports ${map.sides[0]}` : `orange lowers, blue raises the ${explained}`;
  const told = shares ? "share of the method's total |score|, hidden tokens left out" : "score";
  const stronger = overImage ? "dark: low, yellow: high" : "stronger colour: higher score";
  return legendLine(scale, `${told} (${scale.signed ? sides : stronger})`, overImage, shares);
}

function titled(title, inner) {
  return element("figure", { class: "wf-titled" }, element("figcaption", {}, title), inner);
}

const MOST_JOINED = 64;  // tokens that have room for their lines
const MOST_LINES = 1200;
const FAINTEST = 0.04;  // of the largest weight: weaker lines could not be seen
const LINE_HIGH = 20;
const LINES_WIDE = 380;
const LINES_LEFT = 130;
const LINES_RIGHT = 250;
const LONGEST_NAME = 16;

function linesBetween(names, weights, state) {
  const count = names.length;
  const high = Math.max(...Array.from(weights)) || 1;
  const y = (i) => LINE_HIGH * (i + 1);
  let attended = null;  // the token on the right that the mouse is over
  const all = Array.from(weights, (weight, at) => ({ weight, row: Math.floor(at / count), column: at % count }))
    .filter(({ weight }) => weight >= FAINTEST * high).sort((a, b) => b.weight - a.weight).slice(0, MOST_LINES);
  const lines = all.map(({ weight, row, column }) => drawnShape("line", { x1: LINES_LEFT, y1: y(row), x2: LINES_RIGHT, y2: y(column), "stroke-opacity": (weight / high).toFixed(2) },
    drawnShape("title", {}, `${names[row]} → ${names[column]}: ${weight.toPrecision(3)}`)));
  const short = (name) => (name.length > LONGEST_NAME ? `${name.slice(0, LONGEST_NAME - 1)}…` : name);
  const side = (right) => names.map((name, i) => {
    const text = drawnShape("text", { x: right ? LINES_RIGHT + 6 : LINES_LEFT - 6, y: y(i) + 4, "text-anchor": right ? "start" : "end" }, short(name));
    const place = drawnShape("rect", { x: right ? LINES_RIGHT : 0, y: y(i) - LINE_HIGH / 2, width: LINES_LEFT, height: LINE_HIGH, class: "wf-touch" });
    place.addEventListener("pointerenter", () => {
      if (right) { attended = i; mark(); } else if (!state.choices.pinned) state.set({ unit: i });
    });
    place.addEventListener("pointerleave", () => {
      if (right) { attended = null; mark(); } else if (!state.choices.pinned) state.set({ unit: null });
    });
    if (!right) {
      place.addEventListener("click", () => {
        const held = state.choices.pinned && state.choices.unit === i;
        state.set({ unit: i, pinned: !held });
      });
    }
    return [text, place];
  });
  const [from, to] = [side(false), side(true)];
  const tall = y(count) + 4;
  const svg = drawnShape("svg", { viewBox: `0 0 ${LINES_WIDE} ${tall}`, class: "wf-joined", role: "img", "aria-label": "lines from each token (left) to the tokens it attends to (right); stronger lines: larger weights" },
    drawnShape("g", { class: "wf-joins" }, ...lines), ...[...from, ...to].flat());
  function mark() {
    const unit = attended === null ? state.choices.unit : null;
    lines.forEach((line, i) => {
      const { row, column } = all[i];
      const shown = attended === null ? unit === null || row === unit : column === attended;
      line.style.display = shown ? "" : "none";
    });
    from.forEach(([text], i) => text.classList.toggle("wf-here", i === unit));
    to.forEach(([text], i) => text.classList.toggle("wf-here", i === attended));
  }
  const node = element("figure", { class: "wf-lines-between" }, element("figcaption", { class: "wf-note" },
    "Left attends to right. Hover a token for its lines only; click to pin."), svg);
  return { node, mark };
}

const SMALL_SIDE = 52;
const MOST_WORDS = 600;  // tokens that are written out

function headsOfRecord(data) {
  const state = stateOf({});
  let [site, head, shared] = [0, 0, true];
  const highest = Math.max(...data.sites.flatMap(({ heads }) => heads.map((grid) => grid.high)));
  const large = element("div", { class: "wf-head-large" });
  let marks = [];
  const layerOf = (s) => /^\d+(?=: )/.exec(data.sites[s].name)?.[0] ?? s;
  const nameOf = (s, h) => (data.named ? (data.sites.length > 1 ? `layer ${layerOf(s)}, ${data.named}` : data.named) : `layer ${layerOf(s)}, head ${h}`);
  const buttons = data.sites.map(({ heads }, s) => heads.map((grid, h) => element("button", {
    type: "button", class: "wf-head", "aria-label": nameOf(s, h), title: nameOf(s, h), tabindex: s + h ? "-1" : "0",
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
    layers.querySelector("input").value = String(s);
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
    const map = { name: nameOf(site, head), matrix: grid, layers: null, signed: false, read: 0 };
    const context = { state, several: false, marks, attention: true };
    const parts = [element("h3", {}, nameOf(site, head)), element("p", { class: "wf-note" }, `${name} · largest weight ${number(grid.high)}`)];
    if (known && labels.length <= MOST_WORDS) parts.push(wordsOf(labels, grid, context));
    const matrix = matrixOf(({ units }), (map), context);
    if (keys <= MOST_JOINED && queries === keys && grid.rows === queries && grid.columns === keys) {
      const { node, mark } = linesBetween(labels, numbersOf(grid), state);
      marks.push(mark);
      matrix.prepend(node);
    }
    parts.push(matrix);
    large.replaceChildren(...parts);
    for (const mark of marks) mark();
  }

  function wordsOf(labels, grid, context) {
    const values = numbersOf(grid);
    const items = labels.map((label, i) => element("span", { class: "wf-token", dir: "auto", dataset: { units: String(i) }, "aria-label": label },
      label.replace(/^##|^[Ġ▁]+/, "") || "␣"));
    const run = element("p", { class: "wf-run" }, ...items.flatMap((item, i) => (i && !labels[i].startsWith("##") ? [" ", item] : [item])));
    const told = element("p", { class: "wf-said-unit", "aria-live": "polite" });
    context.marks.push(link(state, run, items, `tokens, ${nameOf(site, head)}`), () => {
      const unit = state.choices.unit;
      const row = unit === null ? -1 : Math.floor((unit * grid.rows) / labels.length);
      const weights = items.map((_, i) => (row < 0 ? 0 : values[row * grid.columns + Math.floor((i * grid.columns) / labels.length)]));
      const reach = Math.max(...weights);
      items.forEach((item, i) => {
        const colour = colourOf({ reach, low: 0, signed: false }, weights[i]);
        Object.assign(item.style, row < 0 ? { background: "", color: "" } : { background: css(colour), color: inkOn(colour) });
      });
      const best = weights.indexOf(reach);
      told.textContent = unit === null ? "Hover a token to colour what it attends to; click to pin; arrow keys move; Esc unpins."
        : `${labels[unit]} attends most to ${labels[best]} (weight ${number(reach)})`;
    });
    return element("div", {}, told, run);
  }

  const rows = buttons.map((line, s) => element("div", { class: "wf-heads-row" }, element("span", { class: "wf-note" }, `layer ${layerOf(s)}`), ...line));
  const grid = element("div", { class: "wf-heads-grid", role: "group", "aria-label": "layers down, heads across: arrow keys move" }, ...rows);
  grid.addEventListener("keydown", (event) => {
    const moves = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const [down, right] = moves[event.key];
    const s = Math.max(0, Math.min(buttons.length - 1, site + down));
    choose(s, Math.max(0, Math.min(buttons[s].length - 1, head + right)), true);
  });
  const layers = slider("layer", [0, buttons.length - 1, 1], 0, (s) => choose(s, Math.min(head, buttons[s].length - 1)));
  layers.hidden = buttons.length === 1;
  const tools = element("div", { class: "wf-tools", role: "toolbar", "aria-label": "controls" }, layers,
    chooser("colour scale", [["shared", "one scale"], ["own", "own scales"]], () => (shared ? "shared" : "own"), (value) => {
      shared = value === "shared";
      paintSmall();
    }));
  state.listen(() => { for (const mark of marks) mark(); });
  const repaint = () => { paintSmall(); drawLarge(); };
  choose(0, 0);
  paintSmall();
  const whole = buttons.flat().length > 1 ? [tools, element("p", { class: "wf-note" }, "Click a map to enlarge it."), grid] : [];
  return { node: element("div", { class: "wf-live-view" }, ...whole, large), repaint };
}

function sortable(table) {
  const [head, ...rows] = [...table.rows];
  if (rows.length < 2) return;
  let [sorted, falling] = [-1, false];
  [...head.cells].forEach((cell, column) => {
    const sort = () => {
      falling = sorted === column ? !falling : column > 0;
      sorted = column;
      const value = (row) => {
        const text = (row.cells[column]?.textContent ?? "").trim();
        const number = parseFloat(text.replaceAll(",", "").replace("−", "-"));
        return { text, number };
      };
      const compare = (a, b) => {
        const [x, y] = [value(a), value(b)];
        const [first, second] = [Number.isNaN(x.number), Number.isNaN(y.number)];
        if (first !== second) return first ? 1 : -1;  // what has no number stays at the end
        return (falling ? -1 : 1) * (first ? x.text.localeCompare(y.text) : x.number - y.number);
      };
      head.after(...rows.slice().sort(compare));
      [...head.cells].forEach((other, i) => other.setAttribute("aria-sort", i === column ? (falling ? "descending" : "ascending") : "none"));
    };
    cell.setAttribute("aria-sort", "none");
    cell.classList.add("wf-sort");
    cell.tabIndex = 0;
    cell.title = "sort by this column";
    cell.addEventListener("click", sort);
    cell.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      sort();
    });
  });
}

function wanted() {
  try {
    const host = window.parent !== window ? window.parent.document.body : null;
    if (host?.dataset.jpThemeLight) return host.dataset.jpThemeLight === "false";
    if (host && /vscode-(dark|light)/.test(host.className)) return host.className.includes("vscode-dark");
  } catch { /* a frame of another origin: its own preference counts */ }
  return window.matchMedia("(prefers-color-scheme: dark)").matches;
}

function theme(changed) {
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
