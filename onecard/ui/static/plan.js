// The planner: drag a model until it fits the card. Every figure is an answer of /api/plan; the address holds the state.

import { failed, frame, h, segmented, say, show } from "./dom.js";
import { ask, follow } from "./live.js";
import { gib, int, missing, short } from "./numbers.js";
import { planned, toType } from "./planned.js";
import { memoryStep } from "./step.js";

const WAIT_MS = 10; // after a movement; while an answer is on its way, nothing else is asked
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
const VOCABULARIES = [96, 256, 4096, 8192, 16384, 32768, 50304, 65536, 100352, 128256, 151936, 200064];
const SIZE = "size"; // a card that is not in the list
const USUAL_CARD = "RTX 4070"; // shown where this machine has none

frame("plan");
const isSetting = (name) => !["gpu", "vram", "other", "trainer", "config"].includes(name); // of the model or its updates
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
    const value = String(state[key] ?? plan?.config[key] ?? "both").toLowerCase(); // the trainers are no key
    for (const input of box.querySelectorAll("input")) input.checked = input.value.toLowerCase() === value;
  });
  return h("div", { class: "switch" }, label, box);
}

const otherGib = () => Number.parseFloat(state.other ?? (plan?.gpu ? plan.gpu.other_bytes / 2 ** 30 : 0)) || 0;
const cards = h("select", {
  "aria-label": "Card",
  onchange: ({ target: { value } }) =>
    move(value === SIZE ? { gpu: undefined, vram: "16GiB" } : { gpu: value || undefined, vram: undefined }),
});
const vramGib = () => Number.parseFloat(state.vram ?? 16) || 16;
const size = slider(
  "Its memory",
  () => [4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96],
  vramGib,
  (value) => ({ vram: `${value}GiB` }),
  (value) => [`${value} GiB`],
);
paints.push(() => {
  size.hidden = !state.vram;
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
    size,
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
    number("vocab_size", "Vocabulary", VOCABULARIES, (value) => [int(value), "tokens"]),
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
    choice("trainer", "Trainer", [
      ["both", "both"],
      ["onecard", "onecard"],
      ["nanogpt", "nanoGPT"],
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
      typedBox.replaceChildren(step.node, ...toType(more));
      step.update(more.timeline);
    }
  } catch {
    // The figures stand; the file to copy comes with the next movement.
  }
  busy = false;
  if (mine !== wanted) update();
}

const sayWhy = ({ what, why, message }) => say([what ?? message, why].filter(Boolean).join(": "));
async function fit() {
  try {
    const { fit: found } = await ask(`/api/plan?${query({ fit: 1 })}`);
    if (!found?.best) return say(found?.note ?? "Nothing with this model fits this card");
    move(found.patch);
    say(found.why);
  } catch (error) {
    sayWhy(error);
  }
}

async function inHours() {
  if (!(hours.value > 0)) return say("Type a number of hours, more than 0");
  try {
    const { proposals } = await ask(`/api/plan?${query({ hours: hours.value })}`);
    if (!proposals?.length) return say("No model is worth training in these hours on this card");
    move(proposals[0].config);
    say(`Proposed: ${proposals[0].name}`);
  } catch (error) {
    sayWhy(error);
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
    sayWhy(error);
  }
}

// ---- the answer
const step = memoryStep();
const typedBox = h("section", {});
function draw() {
  for (const paint of paints) paint();
  const open = answer.querySelector(".parts-box")?.open ?? false;
  const nodes = planned(plan, { width: answer.clientWidth || board.clientWidth, open, typed: typedBox });
  if (!nodes) return refuse({ what: "no trainer can run this config" });
  answer.replaceChildren(...nodes);
}

function refuse(error) {
  answer.replaceChildren(...failed(error).filter(Boolean));
}

// ---- start
try {
  const [{ gpus }, { runs }] = await Promise.all([ask("/api/cards"), ask("/api/runs").catch(() => ({ runs: [] }))]);
  const option = (value, text) => h("option", { value, text });
  starts.append(
    ...(Object.keys(asked).some(isSetting) ? [option("address", "what the address says")] : []),
    option("gpt2", "GPT-2 of 124M, on FineWeb"),
    option("default", "the packaged default"),
    ...runs.filter((run) => run.format === "onecard").map((run) => option(`run ${run.id}`, run.name)),
    option("file", "a file…"),
  );
  if (state.config) starts.value = `run ${state.config}`;
  else if (starts.value !== "address" && Object.keys(asked).length) starts.value = "default";
  plan = await ask(`/api/plan?${query()}`);
  if (!plan.gpu && !state.gpu) {
    state.gpu = USUAL_CARD;
    plan = await ask(`/api/plan?${query()}`);
  }
  cards.append(
    option("", "this machine's card"),
    option("none", "no card"),
    option(SIZE, "a card of another size"),
    ...gpus.map((gpu) =>
      option(gpu.name, `${gpu.name.replace("GeForce ", "")} · ${gib(gpu.allocatable_bytes, 1)} GiB`),
    ),
  );
  const named = (one) => one.value === state.gpu || (one.value && one.value === plan.gpu?.name && state.gpu);
  cards.value = state.vram ? SIZE : ([...cards.options].find(named)?.value ?? "");
  show(board);
  draw();
  details();
} catch (error) {
  show(failed(error), h("p", {}, h("a", { class: "button", href: "plan.html", text: "Start with a usual plan" })));
}
let width = board.clientWidth;
new ResizeObserver(() => {
  if (Math.abs(board.clientWidth - width) < 12 || !plan) return;
  width = board.clientWidth;
  draw();
}).observe(board);
follow("/api/events", ["hello"], () => {});
