// What is asked about: texts, a prompt, a picture, a sound or a row of a table; with samples to begin with.
import { element, tick } from "./dom.js";
import { asksTheSame, pictureForm, soundForm } from "./serve_upload.js";

/**
 * The form of one model. `changed` is called whenever the input is another one; `isEdit` says whether the second of two
 * inputs is the first one edited, and not another.
 * @param {any} model @param {() => void} changed @param {(words: string) => void} say
 * @returns {{node: HTMLElement, input: () => any, more: () => any, fill: (input: any, more?: any) => void, isEdit: (before: any, after: any) => boolean}}
 */
export function formOf(model, changed, say) {
  const forms = { text: textForm, similarity: textForm, language: promptForm, image: pictureForm, detector: pictureForm, pair: pairForm, sound: soundForm, table: rowForm };
  const isEdit = (before, after) => !asksTheSame(before, after);
  return { more: () => ({}), isEdit, ...forms[model.kind](model, changed, say) };
}

function areaOf(words, value, changed) {
  const area = /** @type {HTMLTextAreaElement} */ (element("textarea", { class: "sv-area", rows: 3, maxlength: 20000, "aria-label": words, dir: "auto" }));
  area.value = value;
  area.addEventListener("input", changed);
  return area;
}

function chipsOf(samples, choose) {
  return element("p", { class: "sv-chips" }, ...samples.map((sample) =>
    element("button", { type: "button", dir: "auto", onclick: () => choose(sample) }, [sample].flat().join(" · "))));
}

/** One text, or two where the model reads pairs. */
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
  const length = /** @type {HTMLInputElement} */ (element("input", { type: "number", min: 0, max: 256, value: 0, "aria-label": "tokens to write" }));
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
      const box = /** @type {HTMLInputElement | null} */ (chatting?.querySelector("input") ?? null);
      if (box) box.checked = chat;
    },
  };
}

/** A picture and what is asked about it. */
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
  /** @type {Map<string, HTMLInputElement | HTMLSelectElement>} */
  const fields = new Map();
  const cells = model.columns.map(({ name, categories }) => {
    const field = /** @type {any} */ (categories
      ? element("select", {}, ...categories.map((category, i) => element("option", { value: i }, String(category))))
      : element("input", { type: "number", step: "any" }));
    field.addEventListener("input", changed);
    fields.set(name, field);
    return element("label", { class: "sv-cell" }, element("span", {}, name), field);
  });
  const fillRow = (row) => {
    for (const { name, categories } of model.columns) {
      const field = /** @type {any} */ (fields.get(name));
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
      const { value } = /** @type {any} */ (fields.get(name));
      return [name, categories ? categories[Number(value)] : value === "" ? null : Number(value)];
    })) }),
    fill: (input) => fillRow(input.row ?? model.samples[input.sample ?? 0] ?? {}),
  };
}
