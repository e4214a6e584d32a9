// The answer of a plan: the verdict, speed, time and loss with their ranges, memory by part, what to type.

import { code, h, icon } from "./dom.js";
import { memoryCard } from "./memory.js";
import { duration, gib, loss, missing, percent, range, rate, short } from "./numbers.js";

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

function headline(plan, ours, nano) {
  const { gpu } = plan;
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

/** The nodes of a plan, `width` pixels wide; null where no trainer can run it. `typed` is what toType() gives. */
export function planned(plan, { width, open = false, typed = null }) {
  const { onecard: ours, nanogpt: nano } = plan.trainers;
  const main = ours ?? nano;
  if (!main) return null;
  const shown = [
    ["onecard", ours],
    ["nanoGPT", nano],
  ].filter(([, trainer]) => trainer);
  const { gpu } = plan;
  const { speed } = main;
  const needsCard = gpu ? "nothing measured to go by" : "choose a card";
  return [
    h(
      "p",
      { class: "kicker" },
      h("span", { text: `${short(plan.params.total)} parameters` }),
      gpu
        ? h("span", {
            text: `${gpu.name}, ${gib(gpu.vram_bytes, 1)} GiB${missing(gpu.peak_flops) ? "" : `, ${(gpu.peak_flops / 1e12).toFixed(1)} TFLOP/s`}`,
          })
        : null,
    ),
    ...headline(plan, main, nano),
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
    memoryCard(shown, gpu, width, open),
    plan.warnings.length || plan.findings.length
      ? h(
          "ul",
          { class: "warnings" },
          [...plan.warnings, ...plan.findings.map((found) => `${found.what}: ${found.fix}`)].map((text) =>
            h("li", {}, h("span", { class: "sev-warn" }, icon("warn")), h("span", { text })),
          ),
        )
      : null,
    typed,
    speed
      ? h("p", {
          class: "quiet small",
          text: `Speed: ${speed.basis}.${plan.loss ? ` Loss: ${plan.loss.sources.join("; ")}.` : ""}`,
        })
      : "",
  ].filter(Boolean);
}

/** What to type for a plan. `more` is the plan's `ui`. */
export function toType(more) {
  return [
    h(
      "div",
      { class: "head" },
      h("h2", { text: "To type" }),
      h("span", { class: "quiet", text: more.note ?? "the address of this page gives the same plan" }),
    ),
    h(
      "div",
      { class: "typed" },
      h("div", {}, h("h3", { text: "Train it" }), code(more.command, "Command")),
      h("div", {}, h("h3", { text: "Config file, for nanoGPT too" }), code(more.config_text, "Config file")),
    ),
  ].filter(Boolean);
}
