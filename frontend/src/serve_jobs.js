// Work that takes a while: a line for each job, with its progress and a button that cancels it.
import { element } from "./dom.js";
import { asked, cancelled, heard, posted } from "./serve_api.js";

const HIDDEN = ["rehearsal", "predict"];  // nobody asked for the one, and the other is over at once

/**
 * @param {(words: string, wrong?: boolean) => void} say @param {() => void} finished
 * @returns {{node: HTMLElement, work: (path: string, question: any) => Promise<any>, rejoin: () => Promise<void>}}
 */
export function jobList(say, finished) {
  const node = element("div", { class: "sv-jobs", "aria-live": "polite" });

  /** Follow a job until it ends; its line is there as long. */
  async function follow(told) {
    const progress = /** @type {HTMLProgressElement} */ (element("progress", { "aria-label": `progress of ${told.what}` }));
    const words = element("span", {});
    const cancel = element("button", { type: "button", class: "sv-cancel", onclick: () => cancelled(told.job).catch((error) => say(error.message, true)) }, "cancel");
    const line = element("p", { class: "sv-busy" }, progress, cancel, words);
    const news = (now) => {
      progress.max = Math.max(1, now.of);
      progress.value = Math.min(now.of, now.done + (now.steps > 1 ? now.step / now.steps : 0));
      words.textContent = now.state === "waiting" ? `${now.what} waits: ${now.ahead} before it` : `${now.what}: ${now.done} of ${now.of}${now.label ? `, ${now.label}` : ""}`;
    };
    news(told);
    node.append(line);
    try {
      return await heard(told.job, news);
    } finally {
      line.remove();
    }
  }

  return {
    node,
    /** What comes in a moment is the answer, else the job is followed. */
    async work(path, question) {
      const told = await posted(path, { ...question, wait: 0.4 });
      return told.job ? asked(`/api/results/${(await follow(told)).answer}`) : told;
    },
    /** Jobs that an earlier visit began: they went on without it. */
    async rejoin() {
      const { jobs } = await asked("/api/jobs");
      for (const job of jobs) if (!HIDDEN.includes(job.what)) follow(job).then(finished, finished);
    },
  };
}
