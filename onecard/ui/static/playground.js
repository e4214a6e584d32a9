// Text from the newest checkpoint of a run while it is written: token by token, until it is done or stopped.

import { capital, h } from "./dom.js";
import { stream } from "./live.js";
import { int, missing } from "./numbers.js";

const PAUSES = { length: "Done", time: "Stopped after two minutes, the most for one text", stopped: "Stopped" };

function setting(label, note, attributes) {
  const input = h("input", { type: "number", required: true, ...attributes });
  return { input, node: h("label", { class: "setting", title: note }, h("span", { text: label }), input) };
}

/** A section for the run at `path`; `update(found)` says which checkpoint there is now. */
export function playground(path) {
  const temperature = setting("Temperature", "0 takes the likeliest token each time; more is more random", {
    value: 0.8,
    min: 0,
    max: 100,
    step: "any",
  });
  const topK = setting("Top k", "How many of the likeliest tokens are considered", { value: 200, min: 1, step: 1 });
  const seed = setting("Seed", "Another seed, another text", { value: 1337, min: 0, max: 2 ** 53 - 1, step: 1 });
  const tokens = setting("Tokens", "How many are added", { value: 200, min: 1, max: 1024, step: 1 });
  const prompt = h("textarea", {
    rows: 2,
    maxlength: 4096,
    "aria-label": "Prompt",
    placeholder: "Once upon a time",
    title: "What the text begins with; empty: the model begins one",
  });
  const write = h("button", { class: "button primary", type: "submit", text: "Write" });
  const stop = h("button", { class: "button", type: "button", text: "Stop", hidden: true });
  const how = h("p", { class: "quiet how", role: "status" });
  const given = h("span", { class: "given" });
  const made = h("span", {});
  const page = h("p", { class: "written", dir: "auto", hidden: true }, given, made);
  const which = h("span", { class: "quiet" });
  const form = h(
    "form",
    { class: "card playground", "aria-label": "Playground" },
    prompt,
    h(
      "div",
      { class: "settings" },
      [temperature, topK, seed, tokens].map((one) => one.node),
      h("div", { class: "buttons" }, write, stop),
    ),
    page,
    how,
  );
  const refusal = h("p", { class: "card", hidden: true });
  let running = null;

  const told = {
    begin: () => how.replaceChildren("Loading the model…"),
    model: ({ notes }) => how.replaceChildren(["Writing…", ...notes].join(" ")),
    text: ({ text, tokens: count }) => {
      made.append(text);
      how.replaceChildren(`${int(count)} tokens…`);
    },
    end: ({ why, tokens_per_second: speed }) => {
      const rate = missing(speed) ? "" : `, ${speed < 10 ? speed.toFixed(1) : int(speed)} tokens/s on the processor`;
      how.replaceChildren(`${PAUSES[why]}${rate}.`);
    },
    refused: (error) => how.replaceChildren(lines(error)),
  };
  const lines = ({ what, why, fix }) => h("span", { class: "refused" }, [what, why, fix].filter(Boolean).map(line));
  const line = (words) => h("span", { text: capital(words) });

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (running) return;
    running = new AbortController();
    given.textContent = prompt.value;
    made.textContent = "";
    told.begin();
    page.hidden = stop.hidden = false;
    write.hidden = true;
    page.setAttribute("aria-busy", "true");
    stop.focus();
    const asked = {
      prompt: prompt.value,
      tokens: tokens.input.valueAsNumber,
      temperature: temperature.input.valueAsNumber,
      top_k: topK.input.valueAsNumber,
      seed: seed.input.valueAsNumber,
    };
    try {
      await stream(`${path}/text`, asked, (kind, what) => told[kind]?.(what), running.signal);
    } catch (error) {
      if (error.name === "AbortError") how.replaceChildren("Stopped.");
      else told.refused(error);
    }
    running = null;
    const focused = document.activeElement === stop;
    write.hidden = false;
    stop.hidden = true;
    page.removeAttribute("aria-busy");
    page.hidden = !page.textContent;
    if (focused) write.focus();
  });
  stop.addEventListener("click", () => running?.abort());

  const head = h("div", { class: "head" }, h("h2", { text: "Playground" }), which);
  const node = h("section", {}, head, form, refusal);
  return {
    node,
    update(found) {
      node.hidden = !found;
      if (!found) return;
      which.textContent = `what the checkpoint of step ${int(found.step)} writes`;
      form.hidden = Boolean(found.missing);
      refusal.hidden = !found.missing;
      if (found.missing) refusal.replaceChildren(lines(found.missing));
    },
  };
}
