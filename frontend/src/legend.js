// The legend of a colour scale: its colours, its ends, and what they mean.
import { gradient } from "./color.js";
import { endsOf } from "./data.js";
import { element } from "./dom.js";

/** @param {import("./color.js").Scale} scale @param {string} words @param {boolean} [overImage] @param {boolean} [shares] */
export function legendLine(scale, words, overImage = false, shares = false) {
  const [low, high] = endsOf(scale.signed ? -scale.reach : scale.low, scale.reach, shares);
  return element("div", { class: "wf-legend" },
    element("span", { class: "wf-ramp", style: { background: gradient(scale, overImage) } }),
    element("span", {}, scale.signed ? `${low} … 0 … ${high}` : `${low} … ${high}`), element("span", {}, words));
}
