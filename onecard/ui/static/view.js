// One run, from its verdict to its config: the page of a run, and what a dropped log looks like.

import { curves } from "./curves.js";
import { capital, copyButton, h, hardware, icon, none, state } from "./dom.js";
import { findings, pythonValue } from "./findings.js";
import { duration, gib, int, loss, missing, percent, range, rate, short } from "./numbers.js";

const twoDigits = (value) => loss(value, 2);

/** The sentence that answers "how is this run?". */
function verdict({ run, prediction, evals }) {
  const last = evals.findLast((one) => !missing(one.val_loss));
  const worst = run.findings && run.findings.fatal + run.findings.error > 0 ? run.first_finding : null;
  if (run.state === "training") {
    const ahead = prediction?.loss;
    const left = missing(run.seconds_to_go) ? "" : ` in ${duration(run.seconds_to_go)}`;
    if (worst) return `Training, but look: ${worst}.`;
    if (ahead) return `On course: ends at ${twoDigits(ahead.likely)} (${range(ahead, twoDigits)})${left}.`;
    return left ? `Training: ends${left}.` : "Training.";
  }
  if (run.state === "finished")
    return last
      ? `Finished at ${loss(last.val_loss, 4)}${worst ? `, but ${worst}` : ""}.`
      : "Finished, without an evaluation.";
  return run.state_why ? `${capital(run.state_why.replace(/\.$/, ""))}.` : `${capital(run.state ?? "a log")}.`;
}

function lede({ run, prediction }) {
  if (run.state === "training")
    return prediction?.basis ? capital(`${prediction.loss ? "prediction: " : ""}${prediction.basis}.`) : "";
  if (run.first_finding && run.findings && run.findings.fatal + run.findings.error + run.findings.warn > 0)
    return `First thing to look at: ${run.first_finding}.`;
  return run.state === "finished" ? (run.state_why ?? "") : "";
}

/** Why a figure of the updates is not there. */
const unsaid = (run) => (run.format === "onecard" && !run.step ? "no update yet" : "the log does not say");

function figures({ run, evals, prediction, memory }) {
  const figure = (name, value, unit, note) =>
    h(
      "div",
      { class: "figure" },
      h("dt", { text: name }),
      h("dd", {}, value, unit ? h("small", { text: ` ${unit}` }) : null),
      h("dd", { class: "note", text: note ?? "" }),
    );
  const last = evals.findLast((one) => !missing(one.val_loss));
  const error = last && !missing(last.val_loss_error) ? `± ${last.val_loss_error.toFixed(4)}` : "";
  const noShare = run.card ? unsaid(run) : "needs a card and its peak";
  const held = run.reserved_bytes ?? null;
  const planned = memory?.predicted_process_bytes ?? run.predicted_process_bytes;
  const toGo = prediction?.seconds_to_go;
  const time =
    run.state === "training"
      ? figure(
          "Left",
          missing(run.seconds_to_go) ? none("not enough updates yet to say") : duration(run.seconds_to_go),
          "",
          [
            toGo && !missing(toGo.low) ? range(toGo, duration) : null,
            missing(run.seconds) ? null : `${duration(run.seconds)} so far`,
          ]
            .filter(Boolean)
            .join("; "),
        )
      : figure(
          "Trained",
          missing(run.seconds) ? none("the log does not say") : duration(run.seconds),
          "",
          missing(run.seconds_to_go) || run.state === "finished"
            ? ""
            : `${duration(run.seconds_to_go)} to go if resumed`,
        );
  return h(
    "dl",
    { class: "figures" },
    figure(
      "Validation loss",
      last ? loss(last.val_loss, 4) : none("no evaluation yet"),
      error,
      last ? `at step ${int(last.step)}` : "",
    ),
    figure(
      "Tokens",
      missing(run.tokens) ? none(unsaid(run)) : short(run.tokens),
      "",
      `step ${int(run.step ?? 0)}${run.steps_planned ? ` of ${int(run.steps_planned)}` : ""}`,
    ),
    figure(
      "Speed",
      missing(run.tokens_per_second) ? none(unsaid(run)) : rate(run.tokens_per_second),
      missing(run.tokens_per_second) ? "" : "tokens/s",
      run.state === "training" && !missing(run.tokens_per_second) ? "now" : "",
    ),
    figure(
      "MFU",
      missing(run.mfu) ? none(noShare) : percent(run.mfu),
      "",
      missing(run.mfu) ? noShare : run.card ? `of ${run.card}` : "",
    ),
    figure(
      "Memory",
      missing(held) ? none("no card's memory is recorded") : gib(held),
      missing(held) ? "" : "GiB reserved",
      missing(planned)
        ? run.card
          ? "the run has no plan in its records"
          : "no plan: no card is known"
        : `plan ${gib(planned)}${memory?.available_bytes ? ` of ${gib(memory.available_bytes, 1)}` : ""}`,
    ),
    time,
  );
}

const isSet = (row) => JSON.stringify(row.value) !== JSON.stringify(row.default);

function config(rows) {
  if (!rows.length) return null;
  const set = rows.filter(isSet);
  const list = (some) =>
    h(
      "ul",
      { class: "config" },
      some.map((row) =>
        h(
          "li",
          { title: row.meaning ?? null },
          h("code", { class: isSet(row) ? "set" : null, text: row.key }),
          h("code", { text: pythonValue(row.value) }),
          h("span", { class: "quiet", text: row.origin }),
        ),
      ),
    );
  const text = `${set.map((row) => `${row.key} = ${pythonValue(row.value)}`).join("\n")}\n`;
  return [
    h(
      "div",
      { class: "head" },
      h("h2", { text: "Config" }),
      h("span", { class: "quiet", text: `${set.length} values set, ${rows.length - set.length} defaults` }),
      h("div", { class: "tools" }, copyButton(text, "Copy as file")),
    ),
    h(
      "div",
      { class: "card" },
      h(
        "details",
        { "data-key": "set" },
        h("summary", {}, icon("down"), "What was set, and where each value came from"),
        list(set),
      ),
      h(
        "details",
        { "data-key": "defaults" },
        h("summary", {}, icon("down"), "Defaults"),
        list(rows.filter((row) => !isSet(row))),
      ),
    ),
  ];
}

/** What the model wrote at one step, and a slider through the steps. */
function samples(list, chosen, choose) {
  if (!list?.length) return null;
  const steps = [...new Set(list.map((sample) => sample.step))];
  const shown = h("div", { class: "samples card" });
  const show = (place) => {
    const step = steps[place];
    const texts = list.filter((sample) => sample.step === step);
    input.setAttribute("aria-valuetext", `step ${int(step)}`);
    input.style.setProperty("--fill", `${steps.length > 1 ? (100 * place) / (steps.length - 1) : 100}%`);
    out.textContent = `step ${int(step)}`;
    page.replaceChildren(...texts.map(written));
  };
  const written = ({ prompt, text }) => {
    const begins = text.startsWith(prompt) ? prompt : "";
    return h("p", { class: "written", dir: "auto" }, h("span", { class: "given", text: begins }), text.slice(begins.length));
  };
  const out = h("b", {});
  const page = h("div", {});
  const input = h("input", { type: "range", min: 0, max: steps.length - 1, step: 1, "aria-label": "Step of the text" });
  const at = steps.indexOf(chosen);
  input.value = at < 0 ? steps.length - 1 : at;
  input.addEventListener("input", () => {
    const place = Number(input.value);
    choose(place === steps.length - 1 ? null : steps[place]);
    show(place);
  });
  show(Number(input.value));
  shown.append(h("div", { class: "through" }, steps.length > 1 ? input : "", out), page);
  return [
    h(
      "div",
      { class: "head" },
      h("h2", { text: "Text over time" }),
      h("span", {
        class: "quiet",
        text: steps.length > 1 ? `what the model wrote at ${int(steps.length)} evaluations` : "what the model wrote",
      }),
    ),
    shown,
  ];
}

const things = ({ task, questions }) => `${int(questions)} ${task.startsWith("text:") ? "documents" : "questions"}`;

/** What `onecard eval` measured of the checkpoints. */
function scores(all) {
  const rows = (all ?? []).filter((row) => row.main !== false).sort((one, other) => other.step - one.step);
  if (!rows.length) return null;
  const figure = (value, error) => `${value.toFixed(4)}${missing(error) ? "" : ` ± ${error.toFixed(4)}`}`;
  const others = [...new Set(rows.flatMap((row) => (row.published ?? []).map((one) => one.model)))];
  const got = (row, model) => row.published?.find((one) => one.model === model);
  const reference = (label, value, source) =>
    h("td", {
      "data-label": label,
      class: missing(value) ? "num unknown" : "num",
      title: source,
      text: missing(value) ? "–" : figure(value),
    });
  const head = ["Task", "Measure", "Score", "Guessing", ...others, "Measured on", "Step"];
  return [
    h(
      "div",
      { class: "head" },
      h("h2", { text: "Scores" }),
      h("span", { class: "quiet", text: "what onecard eval measured of its checkpoints" }),
    ),
    h(
      "div",
      { class: "card" },
      h(
        "table",
        { class: "plain stackable pairs" },
        h(
          "thead",
          {},
          h("tr", {}, head.map((words, i) => h("th", { scope: "col", class: i > 1 ? "num" : null, text: words }))),
        ),
        h(
          "tbody",
          {},
          rows.map((row) =>
            h(
              "tr",
              {},
              h("th", { scope: "row" }, row.task, row.means ? h("span", { class: "sub", text: capital(row.means) }) : null),
              h("td", { "data-label": head[1], text: row.metric.replaceAll("_", " ") }),
              h("td", { "data-label": head[2], class: "num", text: figure(row.value, row.error) }),
              reference("Guessing", row.chance),
              others.map((model) => reference(model, got(row, model)?.value, got(row, model)?.source)),
              h("td", { "data-label": head.at(-2), class: "num", text: things(row) }),
              h("td", { "data-label": head.at(-1), class: "num", text: int(row.step) }),
            ),
          ),
        ),
      ),
    ),
  ];
}

const kicker = ({ run }, alone) => [
  alone ? null : h("a", { href: "/", text: "Runs" }),
  run.state ? state(run.state) : null,
  h("span", { text: run.name }),
  missing(run.params) ? null : h("span", { text: `${short(run.params)} parameters` }),
  hardware(run) ? h("span", { text: hardware(run) }) : null,
  run.format && run.format !== "onecard" ? h("span", { text: `${run.format} log` }) : null,
];

/**
 * The nodes of a run, and `update(answer)`, which keeps opened details, the zoom and the crosshair.
 * `alone` is a run in a file of its own: there is no list to go back to. `play` is where its model writes;
 * `finer(from, to)` gives the same answer with finer curves of these steps.
 */
export function view(first, { alone = false, play = null, finer = null } = {}) {
  const parts = {
    kicker: h("p", { class: "kicker" }),
    verdict: h("h1", { class: "verdict" }),
    lede: h("p", { class: "lede" }),
    figures: h("div", {}),
    findings: h("section", {}),
    scores: h("section", {}),
    samples: h("section", {}),
    config: h("section", {}),
  };
  const drawn = curves(first, finer);
  const before = {};
  let chosen = null; // the step whose text is read; null: the newest
  const replace = (name, key, nodes) => {
    const now = JSON.stringify(key ?? null);
    if (before[name] === now) return; // what has not changed stays: a reader may have opened or selected it
    before[name] = now;
    const node = parts[name];
    const open = new Set([...node.querySelectorAll("details[open]")].map((one) => one.dataset.key));
    node.replaceChildren(...[nodes].flat(4).filter(Boolean));
    node.hidden = !node.childNodes.length;
    for (const one of node.querySelectorAll("details")) one.open = open.has(one.dataset.key);
  };
  const words = (answer) => {
    replace("kicker", [answer.run.state, answer.run.name, answer.run.params], kicker(answer, alone));
    replace("verdict", verdict(answer), verdict(answer));
    replace("lede", lede(answer), lede(answer));
    replace("figures", [answer.run, answer.evals.length, answer.prediction], figures(answer));
    replace("findings", answer.doctor?.findings ?? answer.doctor, findings(answer.doctor, answer.words));
    replace("scores", answer.scores, scores(answer.scores));
    replace("samples", answer.samples, samples(answer.samples, chosen, (step) => (chosen = step)));
    replace("config", answer.config, config(answer.config));
    play?.update(answer.playground);
  };
  words(first);
  return {
    nodes: [
      parts.kicker,
      parts.verdict,
      parts.lede,
      parts.figures,
      drawn.node,
      parts.findings,
      parts.scores,
      parts.samples,
      play?.node,
      parts.config,
    ].filter(Boolean),
    draw: drawn.draw,
    update(answer) {
      words(answer);
      drawn.update(answer);
    },
  };
}
