// Questions to the server, and jobs that are followed until they end.

/** An answer that says what went wrong, in the server's words. */
export class Refused extends Error {}

/** @param {string} path @param {RequestInit} [how] @returns {Promise<any>} */
export async function asked(path, how = {}) {
  let answer;
  try {
    answer = await fetch(path, { credentials: "same-origin", ...how });
  } catch {
    throw new Refused("the server does not answer: is it still running?");
  }
  const told = await answer.json().catch(() => ({ error: `the server answers ${answer.status}` }));
  if (!answer.ok) throw new Refused(told.error ?? `the server answers ${answer.status}`);
  return told;
}

/** @param {string} path @param {any} question @returns {Promise<any>} */
export function posted(path, question) {
  return asked(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(question) });
}

/**
 * Ask for long work: what comes in a moment is the answer, else the job is followed. `news` hears how far it is.
 * @param {string} path @param {any} question @param {(job: any) => void} news @returns {Promise<any>} the result
 */
export async function worked(path, question, news) {
  const told = await posted(path, { ...question, wait: 0.4 });
  if (!told.job) return told;
  news(told);
  const ended = await new Promise((resolve, reject) => {
    const events = new EventSource(`/api/jobs/${told.job}/events`);
    const close = (then, value) => { events.close(); then(value); };
    events.addEventListener("progress", (event) => news(JSON.parse(event.data)));
    events.addEventListener("done", (event) => close(resolve, JSON.parse(event.data)));
    for (const end of ["failed", "cancelled"]) {
      events.addEventListener(end, (event) => close(reject, new Refused(JSON.parse(event.data).error)));
    }
    events.addEventListener("error", () => {
      if (events.readyState === EventSource.CLOSED) close(reject, new Refused("the connection was lost."));
    });
  });
  return asked(`/api/results/${ended.answer}`);
}

/** @param {string} job */
export function cancelled(job) {
  return asked(`/api/jobs/${job}`, { method: "DELETE" });
}
