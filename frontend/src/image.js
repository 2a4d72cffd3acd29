// A view as a picture: its elements in an SVG, that on a canvas, and from there to the clipboard or into a file.
import { SVG_SPACE } from "./dom.js";

const SPACE = 16;
const PATIENCE = 1000;  // milliseconds: some browsers ask, or never answer

/** @param {HTMLElement} node @returns {Promise<Blob>} */
export async function imageOf(node) {
  const { width, height } = node.getBoundingClientRect();
  const copy = /** @type {HTMLElement} */ (node.cloneNode(true));
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
  const pen = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  pen.scale(2, 2);
  pen.fillStyle = dark ? "#0d1117" : "#fff";
  pen.fillRect(0, 0, wide, high);
  pen.drawImage(image, 0, 0);
  return new Promise((done, failed) => canvas.toBlob((blob) => (blob ? done(blob) : failed(new Error("no picture"))), "image/png"));
}

/** To the clipboard; where the browser does not allow that, into a file. @param {HTMLElement} node @returns {Promise<string>} */
export async function copyImage(node) {
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
