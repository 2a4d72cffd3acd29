// The page of `whyformer serve`: ask a model, see its prediction at once, explain it, and look closer.
import { percent } from "./data.js";
import { element } from "./dom.js";
import { asked, cancelled, posted, worked } from "./serve_api.js";
import { historyList } from "./serve_history.js";
import { formOf } from "./serve_input.js";
import { methodList } from "./serve_methods.js";
import { resultOf } from "./serve_result.js";
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
  let versus = "";
  let turn = 0;  // of predictions: a late answer to an old question is dropped
  let waiting = 0;

  const status = element("p", { class: "sv-status", role: "status" });
  const progress = /** @type {HTMLProgressElement} */ (element("progress", { "aria-label": "progress" }));
  const cancel = element("button", { type: "button", class: "sv-cancel" }, "cancel");
  const busy = element("p", { class: "sv-busy", hidden: true }, progress, cancel);
  const chooser = /** @type {HTMLSelectElement} */ (element("select", { id: "sv-model", "aria-label": "model" }));
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

  /** Follow long work, with its progress; what goes wrong is said. */
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
    const name = /** @type {HTMLInputElement} */ (element("input", { type: "text", placeholder: "name on the hub", "aria-label": "load a model by its name" }));
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
