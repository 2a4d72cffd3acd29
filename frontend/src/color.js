// The colours of views/scales.py, and their twins on a dark ground: there the weakest score is dark, too.

/** @typedef {[number, number, number]} RGB */

const LIGHT = {
  sequential: ["#ffffff", "#d1e5f0", "#92c5de", "#4393c3", "#2166ac"],
  diverging: ["#b35806", "#e08214", "#fdb863", "#fee0b6", "#ffffff", "#d1e5f0", "#92c5de", "#4393c3", "#2166ac"],
};
const DARK = {
  sequential: ["#161b22", "#15324a", "#1c547f", "#3a86c0", "#8ccbf7"],
  diverging: ["#ffc07a", "#d98525", "#8d5413", "#46301a", "#161b22", "#15324a", "#1c547f", "#3a86c0", "#8ccbf7"],
};
const HEAT = ["#000004", "#320a5e", "#781c6d", "#bc3754", "#ed6925", "#fbb61a", "#fcffa4"];

/** @returns {boolean} */
export function isDark() {
  return document.documentElement.classList.contains("wf-dark");
}

/** @param {string} hex @returns {RGB} */
function rgb(hex) {
  return /** @type {RGB} */ ([1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)));
}

/** @param {string[]} anchors @param {number} at 0 to 1 @returns {RGB} */
function between(anchors, at) {
  const place = Math.min(1, Math.max(0, at)) * (anchors.length - 1);
  const low = Math.min(Math.floor(place), anchors.length - 2);
  const [a, b] = [rgb(anchors[low]), rgb(anchors[low + 1])];
  return /** @type {RGB} */ (a.map((v, i) => Math.round(v + (b[i] - v) * (place - low))));
}

/**
 * @typedef {{reach: number, low: number, signed: boolean}} Scale from `low` (of unsigned scores) to `reach`
 * @param {Scale} scale @param {number} score @param {boolean} [overImage] @returns {RGB}
 */
export function colourOf(scale, score, overImage = false) {
  const ramps = isDark() ? DARK : LIGHT;
  if (scale.signed) return between(overImage ? LIGHT.diverging : ramps.diverging, scale.reach ? 0.5 + score / scale.reach / 2 : 0.5);
  const width = scale.reach - scale.low;
  return between(overImage ? HEAT : ramps.sequential, width > 0 ? (score - scale.low) / width : 0);
}

const STEPS_OF_PALETTE = 1024;

/**
 * Colours of many scores as pixels: mixing each anew would take seconds on large maps.
 * @param {Scale} scale @param {ArrayLike<number>} scores @param {Uint8ClampedArray} pixels
 */
export function paintScores(scale, scores, pixels) {
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

/** @param {RGB} colour */
export function css(colour) {
  return `rgb(${colour.join(" ")})`;
}

/** Black or white, whichever contrasts more. @param {RGB} colour */
export function inkOn(colour) {
  const linear = colour.map((v) => (v <= 10 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
  const luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  return (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) ? "#000" : "#fff";
}

/** @param {number} score @param {boolean} special */
export function barColour(score, special) {
  return special ? "var(--wf-special)" : score >= 0 ? "var(--wf-raise)" : "var(--wf-lower)";
}

/** A gradient of a scale, for legends. @param {Scale} scale @param {boolean} overImage */
export function gradient(scale, overImage) {
  const stops = Array.from({ length: 9 }, (_, i) => {
    const at = i / 8;
    const score = scale.signed ? (2 * at - 1) * scale.reach : scale.low + at * (scale.reach - scale.low);
    return css(colourOf(scale, score, overImage));
  });
  return `linear-gradient(to right, ${stops.join(", ")})`;
}
