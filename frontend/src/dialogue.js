// What a language model read, and its answer: a token or a sentence of it is chosen, and what it came from is coloured.
import { answerImageOf } from "./answer_image.js";
import { colourOf, css, inkOn } from "./color.js";
import { element } from "./dom.js";

const MOST_SOURCES = 6;

/**
 * @typedef {{signed: boolean, steps: number, least: number, ordinary: number[], shares: (number | null)[][],
 *   aside: number[][], image: import("./answer_image.js").AnswerImage | null}} Dialogue
 * @param {HTMLElement} root @returns {() => void} draws it again
 */
export function dialogueOf(root) {
  /** @type {Dialogue} */
  const data = JSON.parse(root.querySelector(".wf-data")?.textContent ?? "");
  const all = (selector) => /** @type {HTMLElement[]} */ ([...root.querySelectorAll(selector)]);
  const [pieces, tokens] = [all("[data-piece]"), all(".wf-said button")];
  const [chips, folds] = [all(".wf-chips button"), all(".wf-fold")];
  const from = /** @type {HTMLElement} */ (root.querySelector(".wf-from"));
  const image = data.image ? answerImageOf(data.image, data.signed) : null;
  let [pinned, drawn] = [chips[0], chips[0]];

  const paint = (element, value, reach) => {
    const colour = colourOf({ reach, low: 0, signed: data.signed }, reach ? value : 0);
    element.style.background = css(colour);
    element.style.color = inkOn(colour);
  };
  const range = (button) => [Number(button.dataset.first), Number(button.dataset.end)];
  const percent = (value) => `${Math.round(100 * value)}\u00a0%`;

  /** Mean over some tokens of what is on their scales. */
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
      for (const piece of /** @type {NodeListOf<HTMLElement>} */ (fold.querySelectorAll("[data-piece]"))) {
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
    const reading = /** @type {HTMLElement} */ (root.querySelector(".wf-reading"));
    const beside = element("div", { class: "wf-with-image" });
    reading.before(beside);
    beside.append(reading, image.node);
    const stills = /** @type {SVGElement[]} */ ([...(root.closest(".wf-view")?.querySelectorAll("svg[data-first]") ?? [])]);
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
