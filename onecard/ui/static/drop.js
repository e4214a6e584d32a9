// A log from elsewhere, dropped anywhere on the page or chosen with a button: read by the doctor, never kept.

import { capital, h, say } from "./dom.js";
import { ask } from "./live.js";
import { view } from "./view.js";

const MOST_BYTES = 32 * 2 ** 20;
const isConfig = (file) => file.name.endsWith(".py");

async function diagnosis(files) {
  const log = files.find((file) => !isConfig(file));
  const config = files.find(isConfig);
  if (!log)
    throw Object.assign(new Error("this is a config, not a log"), { fix: "Drop a log, alone or with its config." });
  if (log.size > MOST_BYTES)
    throw Object.assign(new Error("the log is larger than 32 MiB"), {
      fix: "onecard doctor reads it from the command line.",
    });
  const text = await log.text();
  const body = config ? JSON.stringify({ log: text, config: await config.text(), config_name: config.name }) : text;
  const answer = await ask("/api/doctor?more=1", {
    method: "POST",
    headers: { "Content-Type": config ? "application/json" : "text/plain" },
    body,
  }).catch((error) => {
    throw Object.assign(error, { what: error.what?.replace("stdin", log.name) }); // as the command calls what is piped
  });
  return { name: log.name, answer };
}

function shownRuns({ name, answer }) {
  return answer.ui.runs.map((run, i) => {
    const entry = answer.runs[i];
    const several = answer.runs.length > 1 ? ` (${i + 1} of ${answer.runs.length})` : "";
    return view({ ...run, doctor: entry, run: { ...run.run, name: name + several } });
  });
}

/** A button that opens files, and the whole window as a place to drop them. `place` holds what was found. */
export function dropLogs(place) {
  const read = async (files) => {
    if (!files.length) return;
    say("Reading the log…");
    const close = h("button", {
      class: "button",
      type: "button",
      text: "Close this log",
      onclick: () => place.replaceChildren(),
    });
    try {
      const runs = shownRuns(await diagnosis(files));
      place.replaceChildren(...runs.flatMap((run) => run.nodes), h("p", { class: "asks" }, close));
      for (const run of runs) run.draw();
      place.focus();
      place.scrollIntoView({ block: "start" });
      say("Read; nothing was kept");
    } catch (error) {
      place.replaceChildren(
        h(
          "div",
          { class: "card refused", role: "alert" },
          h("h2", { text: capital(error.what ?? error.message) }),
          h("p", { text: [error.why, error.fix].filter(Boolean).map(capital).join(". ") }),
          close,
        ),
      );
    }
  };
  const input = h("input", {
    class: "sr",
    type: "file",
    multiple: true,
    id: "log",
    onchange: () => read([...input.files]),
  });
  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    document.body.classList.add("dropping");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) document.body.classList.remove("dropping");
  });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    document.body.classList.remove("dropping");
    read([...event.dataTransfer.files]);
  });
  return h("span", { class: "open-log" }, input, h("label", { class: "button", for: "log", text: "Open a log…" }));
}
