// Talks with the server: answers as JSON, errors in the three lines of the commands, events while a run trains.

import { connection } from "./dom.js";

/** The JSON of an answer. Throws an Error with `what`, `why` and `fix` where the server refused. */
export async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, { headers: { Accept: "application/json" }, ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw refused({
      what: "the server does not answer",
      why: "onecard ui has ended or the network is down",
      fix: "start onecard ui again",
    });
  }
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw refused(body.error ?? body, answer.status);
  return body;
}

function refused(error, status) {
  const said = typeof error === "string" ? { what: error } : (error ?? {});
  const what = said.what ?? `the server answered ${status}`;
  return Object.assign(new Error(what), { what, why: said.why, fix: said.fix });
}

/** Calls `changed(event)` for every event; at most one call at a time, and the last event is never lost. */
export function follow(path, names, changed) {
  let busy = false;
  let waiting = null;
  const run = async (event) => {
    if (busy) {
      waiting = event;
      return;
    }
    busy = true;
    try {
      await changed(event);
    } catch {
      // The next event tries again: a run folder may have been moved while we read it.
    }
    busy = false;
    if (waiting !== null) {
      const next = waiting;
      waiting = null;
      run(next);
    }
  };
  let lost = false;
  let source;
  const open = () => {
    source = new EventSource(path);
    source.onopen = () => {
      connection(true);
      if (lost) run({ type: "reconnect", data: null });
      lost = false;
    };
    source.onerror = () => {
      connection(false);
      lost = true;
      if (source.readyState === EventSource.CLOSED) setTimeout(open, 2000); // the browser gave up: we do not
    };
    for (const name of names) {
      source.addEventListener(name, (event) =>
        run({ type: event.type, data: event.data ? JSON.parse(event.data) : null }),
      );
    }
  };
  open();
  addEventListener("pagehide", () => source.close());
}
