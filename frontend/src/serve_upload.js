// Pictures and sounds: dropped, chosen or taken from the samples. Sounds are decoded here, and sent as samples.
import { element } from "./dom.js";
import { asked } from "./serve_api.js";

/** @param {string} path @param {Blob} data @returns {Promise<any>} */
function uploaded(path, data) {
  return asked(path, { method: "POST", body: data, headers: { "content-type": "application/octet-stream" } });
}

/** Whether two inputs ask the same, in whatever order their fields came. @param {any} one @param {any} other */
export function asksTheSame(one, other) {
  const fields = (input) => JSON.stringify(Object.entries(input).filter(([, value]) => !Array.isArray(value) || value.length).sort());
  return fields(one) === fields(other);
}

/** A place to drop a file, with a button to choose one. @param {HTMLElement} shown @param {string} what @param {string} accept @param {(file: File) => void} take */
function dropZone(shown, what, accept, take) {
  const file = /** @type {HTMLInputElement} */ (element("input", { type: "file", accept, "aria-label": `choose a ${what}` }));
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

/** A file that misses the place is not opened instead of the page. */
export function refuseStrayFiles() {
  for (const kind of ["dragover", "drop"]) window.addEventListener(kind, (event) => event.preventDefault());
}

function sampleAddress(model, sample) {
  return `/api/samples?model=${encodeURIComponent(model.name)}&number=${sample}`;
}

/** @param {any} model @param {() => void} changed @param {(words: string) => void} say */
export function pictureForm(model, changed, say) {
  /** @type {any} */
  let chosen = { sample: 0 };
  let newest = 0;  // of uploads: one that was dropped later counts, although an earlier one may take longer
  const shown = /** @type {HTMLImageElement} */ (element("img", { class: "sv-shown", alt: "the image to explain" }));
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

/** @param {any} model @param {() => void} changed @param {(words: string) => void} say */
export function soundForm(model, changed, say) {
  /** @type {any} */
  let chosen = { sample: 0 };
  let newest = 0;
  const player = /** @type {HTMLAudioElement} */ (element("audio", { class: "sv-player", controls: true, preload: "none", "aria-label": "the sound to explain" }));
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

/** Any sound that the browser can play, as a 16-bit WAV of one channel at this rate. @param {File} file @param {number} rate @returns {Promise<Blob>} */
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
