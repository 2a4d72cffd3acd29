// The page of `whyformer serve`: ask a model, see its prediction at once, explain it, and look closer.
import { number, percent } from "./data.js";
import { element } from "./dom.js";
import { asked, posted } from "./serve_api.js";
import { historyList } from "./serve_history.js";
import { formOf } from "./serve_input.js";
import { jobList } from "./serve_jobs.js";
import { methodList } from "./serve_methods.js";
import { questionLine } from "./serve_question.js";
import { resultOf } from "./serve_result.js";
import { refuseStrayFiles } from "./serve_upload.js";
import { theme } from "./theme.js";

const QUIET = 250;  // milliseconds without a change, after which the model is asked

async function begin() {
  const root = /** @type {HTMLElement} */ (document.getElementById("serve"));
  const { models, may_load: mayLoad } = await asked("/api/models");
  /** @type {any} */
  let model = models[0];
  /** @type {any} */
  let form = null;
  /** @type {{node: HTMLElement, repaint: () => void} | null} */
  let shown = null;
  /** @type {any} */
  let current = null;
  // A late answer to an old question is dropped: of predictions, and of what is to be drawn.
  let predictions = 0;
  let drawings = 0;
  let waiting = 0;
  let erasing = false;

  const status = element("p", { class: "sv-status", role: "status" });
  const chooser = /** @type {HTMLSelectElement} */ (element("select", { id: "sv-model" }));
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

  /** Ask for something to be drawn. What is asked or opened meanwhile comes in its place; it is in the list all the same. */
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

  /** What the model says: classes, objects, written tokens, or a number. @param {any} told */
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
    const name = /** @type {HTMLInputElement} */ (element("input", { type: "text", placeholder: "model on the hub", "aria-label": "load a model by its name" }));
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
  /** Another model: what is on screen, and what was asked of the one before, is not about it. */
  async function turnTo(name) {
    clear();
    await choose(name);
    predict();
  }
  /** The first sample, explained by the default: a page that opens shows a result. Each browser asks for it once. */
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

/** What this browser keeps for the page; nothing where it may not keep anything. @param {string} key @param {string} [value] */
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
