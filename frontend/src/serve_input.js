// What is asked about: a text, a prompt, a picture or a row of a table; with samples to begin with.
import { element, tick } from "./dom.js";
import { asked } from "./serve_api.js";

/**
 * The form of one model. `changed` is called whenever the input is another one.
 * @param {any} model @param {() => void} changed @param {(words: string) => void} say
 * @returns {{node: HTMLElement, input: () => any, more: () => any, fill: (input: any, more?: any) => void}}
 */
export function formOf(model, changed, say) {
  const forms = { text: textForm, language: promptForm, image: imageForm, table: rowForm };
  return forms[model.kind](model, changed, say);
}

function areaOf(words, value, changed) {
  const area = /** @type {HTMLTextAreaElement} */ (element("textarea", { class: "sv-area", rows: 3, maxlength: 20000, "aria-label": words, dir: "auto" }));
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
  const length = /** @type {HTMLInputElement} */ (element("input", { type: "number", min: 0, max: 256, value: 0, "aria-label": "tokens to write" }));
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
  /** @type {any} */
  let chosen = { sample: 0 };
  const shown = /** @type {HTMLImageElement} */ (element("img", { class: "sv-shown", alt: "the picture that is asked about" }));
  const address = (input) => (input.image ? `/api/images/${input.image}` : `/api/samples?model=${encodeURIComponent(model.name)}&number=${input.sample}`);
  const show = (input) => { chosen = input; shown.src = address(input); };
  const file = /** @type {HTMLInputElement} */ (element("input", { type: "file", accept: "image/png,image/jpeg,image/webp", "aria-label": "choose a picture" }));
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
    more: () => ({}),
    fill: (input) => fillRow(input.row ?? model.samples[input.sample ?? 0] ?? {}),
  };
}
