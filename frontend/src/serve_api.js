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

const AGAIN = 1000;  // milliseconds
let listening = false;

/**
 * News of a job until it is done. `news` hears how far it is. One job is listened to, others are asked about: browsers
 * have few connections to one server, and each that listens takes one away from everything else.
 * @param {string} job @param {(told: any) => void} news @returns {Promise<any>} what is told of it at its end
 */
export async function heard(job, news) {
  if (listening) return askedAgain(job, news);
  listening = true;
  try {
    return await listened(job, news);
  } finally {
    listening = false;
  }
}

/** @param {string} job @param {(told: any) => void} news @returns {Promise<any>} */
async function askedAgain(job, news) {
  for (;;) {
    const told = await asked(`/api/jobs/${job}`);
    if (told.state === "done") return told;
    if (told.state === "failed" || told.state === "cancelled") throw new Refused(told.error);
    news(told);
    await new Promise((resolve) => { setTimeout(resolve, AGAIN); });
  }
}

/** @param {string} job @param {(told: any) => void} news @returns {Promise<any>} */
function listened(job, news) {
  return new Promise((resolve, reject) => {
    const events = new EventSource(`/api/jobs/${job}/events`);
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
}

/** @param {string} job */
export function cancelled(job) {
  return asked(`/api/jobs/${job}`, { method: "DELETE" });
}
