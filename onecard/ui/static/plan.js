// The planner: drag a model until it fits the card. Every figure is an answer of /api/plan; the address holds the state.

import { code, failed, frame, h, icon, segmented, say, show } from "./dom.js";
import { ask, follow } from "./live.js";
import { memoryCard } from "./memory.js";
import { duration, gib, int, loss, missing, percent, range, rate, short } from "./numbers.js";

const WAIT_MS = 60; // after the last movement; the answer itself takes about as long
const MORE_MS = 350; // the config file and the step's timeline wait until the hand rests

// configs/gpt2_124m.py, so that the first picture is one people know.
const START = {
  dataset: "fineweb",
  n_layer: 12,
  n_head: 12,
  n_embd: 768,
  block_size: 1024,
  batch_size: 8,
  gradient_accumulation_steps: 64,
  vocab_size: 50304,
  max_iters: 4750,
  lr_decay_iters: 4750,
  warmup_iters: 250,
  learning_rate: 6e-4,
  min_lr: 6e-5,
  eval_interval: 250,
  eval_iters: 100,
};
const USUAL_CARD = "RTX 4070"; // shown where this machine has none

frame("plan");
const asked = Object.fromEntries(new URLSearchParams(location.search));
let state = Object.keys(asked).length ? asked : { ...START };
let plan = null;
let more = null;
let wanted = 0; // counts movements, so that a late answer is known to be late

const doubling = (from, to) => Array.from({ length: Math.log2(to / from) + 1 }, (_, i) => from * 2 ** i);
const counting = (from, to, step) => Array.from({ length: (to - from) / step + 1 }, (_, i) => from + i * step);
const divisors = (number) => counting(1, 64, 1).filter((count) => number % count === 0 && number / count >= 16);
const current = (key) => Number(state[key] ?? plan?.config[key]);
const heads = (width) => (width % 64 === 0 ? width / 64 : divisors(width).at(-1));

// ---- controls
const paints = [];
/** A slider over `stops()`; a value between two stops becomes a stop. `patch(value)` is what a movement sets. */
function slider(label, stops, get, patch, words) {
  const out = h("span", { class: "value" });
  const input = h("input", { type: "range", min: 0, step: 1, "aria-label": label });
  let values = [];
  const say = (value) => {
    const [figure, note] = words(value);
    out.replaceChildren(figure, note ? h("small", { text: ` ${note}` }) : "");
    input.setAttribute("aria-valuetext", `${figure} ${note ?? ""}`);
    input.style.setProperty("--fill", `${(100 * input.value) / Math.max(1, values.length - 1)}%`);
  };
  paints.push(() => {
    const value = get();
    if (!Number.isFinite(value)) return;
    values = [...new Set([...stops(), value])].sort((a, b) => a - b);
    input.max = values.length - 1;
    input.value = values.indexOf(value);
    say(value);
  });
  input.addEventListener("input", () => move(patch(values[input.value])));
  return h("div", { class: "field" }, h("span", { "aria-hidden": "true" }, h("span", { text: label }), out), input);
}
const number = (key, label, stops, words, patch = (value) => ({ [key]: value })) =>
  slider(
    label,
    () => stops,
    () => current(key),
    patch,
    words,
  );

function choice(key, label, options) {
  const box = segmented(label, options, null, (value) => move({ [key]: value }));
  paints.push(() => {
    const value = String(state[key] ?? plan?.config[key]).toLowerCase();
    for (const input of box.querySelectorAll("input")) input.checked = input.value.toLowerCase() === value;
  });
  return h("div", { class: "switch" }, label, box);
}

const otherGib = () => Number.parseFloat(state.other ?? (plan?.gpu ? plan.gpu.other_bytes / 2 ** 30 : 0)) || 0;
const cards = h("select", {
  "aria-label": "Card",
  onchange: (event) => move({ gpu: event.target.value || undefined, vram: undefined }),
});
const starts = h("select", { "aria-label": "Start from", onchange: startFrom });
const file = h("input", {
  type: "file",
  accept: ".py,text/plain",
  class: "sr",
  tabindex: "-1",
  "aria-label": "A config file",
  onchange: readFile,
});
const hours = h("input", { type: "number", min: 1, max: 1000, value: 48, class: "hours", "aria-label": "Hours" });

const controls = h(
  "form",
  { class: "controls", "aria-label": "Settings of the plan", onsubmit: (event) => event.preventDefault() },
  h(
    "fieldset",
    {},
    h("legend", { text: "The card" }),
    cards,
    slider(
      "Other programs hold",
      () => counting(0, 8, 0.25),
      otherGib,
      (value) => ({ other: `${value}GiB` }),
      (value) => [`${value.toFixed(2)} GiB`],
    ),
  ),
  h(
    "fieldset",
    {},
    h("legend", { text: "The model" }),
    h("p", { class: "field", "aria-hidden": "true", text: "Start from" }),
    starts,
    file,
    number("n_layer", "Layers", counting(1, 48, 1), (value) => [int(value)]),
    number(
      "n_embd",
      "Width",
      counting(64, 2048, 64),
      (value) => [int(value)],
      (value) => ({ n_embd: value, n_head: heads(value) }),
    ),
    slider(
      "Heads",
      () => divisors(current("n_embd")),
      () => current("n_head"),
      (value) => ({ n_head: value }),
      (value) => [int(value), `of ${short(current("n_embd") / value)}`],
    ),
    number("block_size", "Context", doubling(64, 8192), (value) => [int(value), "tokens"]),
  ),
  h(
    "fieldset",
    {},
    h("legend", { text: "The update" }),
    number("batch_size", "Micro-batch", [1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 32, 48, 64, 96, 128], (value) => [
      int(value),
    ]),
    number("gradient_accumulation_steps", "Accumulation", doubling(1, 512), (value) => [
      int(value),
      plan ? `${int(plan.tokens_per_step)} tokens an update` : "",
    ]),
    number(
      "max_iters",
      "Updates",
      [200, 500, 1000, 2000, 4750, 10000, 20000, 50000, 100000, 200000, 600000],
      (value) => [int(value), plan ? `${short(plan.total_tokens)} tokens` : ""],
      (value) => ({ max_iters: value, lr_decay_iters: value }),
    ),
  ),
  h(
    "fieldset",
    {},
    h("legend", { text: "How" }),
    choice("grad_checkpoint", "Checkpointing", [
      ["none", "off"],
      ["selective", "selective"],
      ["full", "full"],
    ]),
    choice("dtype", "Precision", [
      ["bfloat16", "bf16"],
      ["float16", "fp16"],
      ["float32", "fp32"],
    ]),
    choice("compile", "Compile", [
      ["True", "on"],
      ["False", "off"],
    ]),
    choice("recipe", "Recipe", [
      ["nanogpt", "nanoGPT"],
      ["fast", "fast"],
    ]),
  ),
  h(
    "div",
    { class: "asks" },
    h("button", { class: "button primary", type: "button", onclick: fit, text: "Fit to this card" }),
    h(
      "span",
      { class: "in-hours" },
      hours,
      h("button", { class: "button", type: "button", onclick: inHours, text: "What in these hours?" }),
    ),
  ),
);

const answer = h("div", { class: "answer" });
const board = h("div", { class: "planner" }, controls, answer);

// ---- asking: one request at a time, the last movement always wins
const query = (extra = {}) => {
  const params = new URLSearchParams();
  for (const [key, value] of Object.entries({ ...state, ...extra }))
    if (!missing(value) && value !== "") params.set(key, value);
  return params;
};
let timer;
let busy = false;
function move(patch) {
  state = { ...state, ...patch };
  for (const key of Object.keys(state)) if (state[key] === undefined) delete state[key];
  wanted += 1;
  history.replaceState(null, "", `?${query()}`);
  for (const paint of paints) paint();
  clearTimeout(timer);
  timer = setTimeout(update, WAIT_MS);
}

async function update() {
  if (busy) return;
  busy = true;
  let mine;
  do {
    mine = wanted;
    try {
      plan = await ask(`/api/plan?${query()}`);
      if (mine === wanted) draw();
    } catch (error) {
      if (mine === wanted) refuse(error);
    }
  } while (mine !== wanted);
  busy = false;
  clearTimeout(timer);
  timer = setTimeout(details, MORE_MS);
}

async function details() {
  const mine = wanted;
  if (busy) return;
  busy = true;
  try {
    const full = await ask(`/api/plan?${query({ more: 1 })}`);
    if (mine === wanted) {
      more = full.ui;
      typed();
    }
  } catch {
    // The figures stand; the file to copy comes with the next movement.
  }
  busy = false;
  if (mine !== wanted) update();
}

async function fit() {
  try {
    const { fit: found } = await ask(`/api/plan?${query({ fit: 1 })}`);
    if (!found?.best) return say(found?.note ?? "Nothing with this model fits this card");
    move(found.patch);
    say(found.why);
  } catch (error) {
    say(error.what ?? error.message);
  }
}

async function inHours() {
  try {
    const { proposals } = await ask(`/api/plan?${query({ hours: hours.value })}`);
    if (!proposals?.length) return say("No model is worth training in these hours on this card");
    move(proposals[0].config);
    say(`Proposed: ${proposals[0].name}`);
  } catch (error) {
    say(error.what ?? error.message);
  }
}

function restart(next) {
  const { gpu, vram, other } = state;
  state = Object.fromEntries(Object.entries({ gpu, vram, other }).filter(([, value]) => value !== undefined));
  move(next);
}
function startFrom() {
  if (starts.value === "address") return restart(asked);
  if (starts.value === "file") return file.click();
  restart(starts.value === "gpt2" ? START : starts.value === "default" ? {} : { config: starts.value.slice(4) });
}
async function readFile() {
  const [chosen] = file.files;
  if (!chosen) return;
  try {
    const { config } = await ask("/api/config", {
      method: "POST",
      headers: { "Content-Type": "text/plain" },
      body: await chosen.text(),
    });
    restart(config);
  } catch (error) {
    say(error.what ?? error.message);
  }
}

// ---- the answer
const whisker = ({ low, likely, high }) =>
  h(
    "div",
    { class: "whisk", "aria-hidden": "true" },
    h("i", { style: { left: `${(100 * (likely - low)) / (high - low || 1)}%` } }),
  );
const twoDigits = (value) => loss(value, 2);

function big(title, values, word, unit, notes, why) {
  return h(
    "div",
    {},
    h("dt", { text: title }),
    h(
      "dd",
      { title: values ? null : why },
      values ? word(values.likely) : "–",
      unit && values ? h("small", { text: ` ${unit}` }) : null,
    ),
    h(
      "dd",
      { class: "note" },
      values ? whisker(values) : null,
      values ? [range(values, word), ...notes].filter(Boolean).join(" · ") : why,
    ),
  );
}

function headline(ours, nano, gpu) {
  const needs = `${gib(ours.process_bytes, 1)} GiB`;
  if (!gpu)
    return [
      h("h1", { class: "verdict", text: `Needs about ${needs}.` }),
      h("p", { class: "lede", text: "Choose a card to see whether it fits and how long it takes." }),
    ];
  const room = `${gib(gpu.available_bytes, 1)} GiB`;
  const fits = ours.fits
    ? [`Fits${gpu.other_bytes ? " beside other programs" : ""}: ${gib(ours.process_bytes, 1)} of ${room}.`]
    : [h("span", { class: "no", text: "Does not fit" }), `: needs ${needs} of ${room}.`];
  const fix = plan.fixes.find((one) => one.fits && one.trainer === "onecard");
  const nanoWords = !nano
    ? ""
    : nano.fits
      ? `nanoGPT needs ${gib(nano.process_bytes, 1)} GiB.`
      : `nanoGPT would need ${gib(nano.process_bytes, 1)} GiB and run out of memory${nano.ran_out ? ` (${nano.ran_out})` : ""}.`;
  const tight =
    ours.fits && ours.tight
      ? "It is tight: within the error of the plan. "
      : ours.fits && ours.fits_with_desktop === false
        ? "Not beside a desktop, though. "
        : "";
  return [
    h("h1", { class: "verdict" }, fits),
    h("p", { class: "lede", text: tight + nanoWords + (!ours.fits && fix ? ` A way out: ${fix.what}.` : "") }),
  ];
}

const typedBox = h("section", {});
function draw() {
  for (const paint of paints) paint();
  const { onecard: ours, nanogpt: nano } = plan.trainers;
  if (!ours && !nano) return refuse({ what: "no trainer can run this config" });
  const shown = [
    ["onecard", ours],
    ["nanoGPT", nano],
  ].filter(([, trainer]) => trainer);
  const open = answer.querySelector(".parts-box")?.open ?? false;
  const main = ours ?? nano;
  const speed = main.speed;
  const { gpu } = plan;
  const needsCard = gpu ? "nothing measured to go by" : "choose a card";
  const nodes = [
    h(
      "p",
      { class: "kicker" },
      h("span", { text: `${short(plan.params.total)} parameters` }),
      gpu
        ? h("span", {
            text: `${gpu.name}, ${gib(gpu.vram_bytes, 1)} GiB, ${(gpu.peak_flops / 1e12).toFixed(1)} TFLOP/s`,
          })
        : null,
    ),
    ...headline(main, nano, gpu),
    h(
      "dl",
      { class: "big" },
      big(
        "Speed",
        speed?.tokens_per_second,
        rate,
        "tokens/s",
        [
          missing(speed?.mfu) ? null : `MFU ${percent(speed.mfu)}`,
          nano?.speed && ours ? `nanoGPT ${rate(nano.speed.tokens_per_second.likely)}` : null,
        ],
        needsCard,
      ),
      big("The run takes", speed?.seconds_total_range, duration, "", [`${short(plan.total_tokens)} tokens`], needsCard),
      big(
        "Loss at the end",
        plan.loss?.final,
        twoDigits,
        "nats",
        [
          missing(plan.tokens_per_parameter)
            ? null
            : `${plan.tokens_per_parameter.toFixed(plan.tokens_per_parameter < 10 ? 1 : 0)} tokens per parameter`,
        ],
        plan.why_no_loss ?? "nothing to predict from",
      ),
    ),
    memoryCard(shown, gpu, answer.clientWidth || board.clientWidth, open),
    plan.warnings.length || plan.findings.length
      ? h(
          "ul",
          { class: "warnings" },
          [...plan.warnings, ...plan.findings.map((found) => `${found.what}: ${found.fix}`)].map((text) =>
            h("li", {}, h("span", { class: "sev-warn" }, icon("warn")), h("span", { text })),
          ),
        )
      : null,
    typedBox,
    speed
      ? h("p", {
          class: "quiet small",
          text: `Speed: ${speed.basis}.${plan.loss ? ` Loss: ${plan.loss.sources.join("; ")}.` : ""}`,
        })
      : "",
  ];
  answer.replaceChildren(...nodes.filter(Boolean));
}

function typed() {
  if (!more) return;
  const parts = [
    h(
      "div",
      { class: "head" },
      h("h2", { text: "To type" }),
      h("span", { class: "quiet", text: "the address of this page gives the same plan" }),
    ),
    h(
      "div",
      { class: "typed" },
      h("div", {}, h("h3", { text: "Train it" }), code(more.command, "Command")),
      h("div", {}, h("h3", { text: "Config file, for nanoGPT too" }), code(more.config_text, "Config file")),
    ),
  ];
  typedBox.replaceChildren(...(more.timeline_svg ? [timeline(more.timeline_svg)] : []), ...parts);
}
const timeline = (svg) =>
  h(
    "figure",
    { class: "card timeline" },
    h("figcaption", { class: "head" }, h("h2", { text: "Memory through one step" })),
    h(
      "div",
      { class: "scroll" },
      h("img", {
        alt: "Memory through one training step, by part; the table above has the figures of its peak",
        src: `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`,
      }),
    ),
  );

function refuse(error) {
  answer.replaceChildren(...failed(error).filter(Boolean));
}

// ---- start
try {
  const [{ gpus }, { runs }] = await Promise.all([ask("/api/cards"), ask("/api/runs").catch(() => ({ runs: [] }))]);
  const option = (value, text) => h("option", { value, text });
  starts.append(
    ...(asked.n_layer || asked.n_embd ? [option("address", "what the address says")] : []),
    option("gpt2", "GPT-2 of 124M, on FineWeb"),
    option("default", "the packaged default"),
    ...runs.filter((run) => run.format === "onecard").map((run) => option(`run ${run.id}`, run.name)),
    option("file", "a file…"),
  );
  if (state.config) starts.value = `run ${state.config}`;
  plan = await ask(`/api/plan?${query()}`);
  if (!plan.gpu && !state.gpu) {
    state.gpu = USUAL_CARD;
    plan = await ask(`/api/plan?${query()}`);
  }
  cards.append(
    option("", "this machine's card"),
    option("none", "no card"),
    ...gpus.map((gpu) =>
      option(gpu.name, `${gpu.name.replace("GeForce ", "")} · ${gib(gpu.allocatable_bytes, 1)} GiB`),
    ),
  );
  cards.value =
    [...cards.options].find(
      (one) => one.value === state.gpu || (one.value && one.value === plan.gpu?.name && state.gpu),
    )?.value ?? "";
  show(board);
  draw();
  details();
} catch (error) {
  show(board);
  refuse(error);
}
let width = board.clientWidth;
new ResizeObserver(() => {
  if (Math.abs(board.clientWidth - width) < 12 || !plan) return;
  width = board.clientWidth;
  draw();
}).observe(board);
follow("/api/events", ["hello"], () => {});
