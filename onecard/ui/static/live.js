// Talks with the server: answers as JSON, errors in the three lines of the commands, events while a run trains.

import { connection } from "./dom.js";

/** The JSON of an answer. Throws an Error with `what`, `why` and `fix` where the server refused. */
export async function ask(path, options = {}) {
  const answer = await fetched(path, { headers: { Accept: "application/json" }, ...options });
  return answer.json().catch(() => ({}));
}

/** Posts `asked`, and calls `told(kind, data)` for each event of the answer until its end. */
export async function stream(path, asked, told, signal) {
  const headers = { "Content-Type": "application/json" };
  const answer = await fetched(path, { method: "POST", headers, body: JSON.stringify(asked), signal });
  let held = "";
  for (const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader(); ; ) {
    const { done, value } = await reader.read();
    if (done) return;
    held += value;
    const events = held.split("\n\n");
    held = events.pop(); // the last one is not whole yet
    for (const event of events) {
      const [, kind, data] = /^event: (\w+)\ndata: (.*)$/.exec(event) ?? [];
      if (kind) told(kind, JSON.parse(data));
    }
  }
}

async function fetched(path, options) {
  let answer;
  try {
    answer = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw refused({
      what: "the server does not answer",
      why: "onecard ui has ended or the network is down",
      fix: "start onecard ui again",
    });
  }
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => ({}));
  throw refused(body.error ?? body, answer.status);
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
