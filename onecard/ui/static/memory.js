// The memory of a plan by part: one bar for each trainer against the card, and the table behind it.

import { capital, h, icon } from "./dom.js";
import { gib, mib } from "./numbers.js";

// A fixed order: steady on the left, fleeting on the right. What has no name here belongs to "the rest".
const FAMILIES = [
  ["model", "the model", ["weights", "weight casts", "gradients", "optimizer state"]],
  ["batch", "the batch", ["attention", "activations", "logits and loss"]],
  ["over", "overhead", ["the rest", "allocator slack", "context"]],
];
const WHEN = {
  model: "grows with the parameters, whatever the batch",
  batch: "grows with micro-batch × context",
  over: "hardly changes",
};
export const PARTS = FAMILIES.flatMap(([family, , names]) => names.map((name) => ({ name, family }))).map((part, i) => ({
  ...part,
  number: i + 1,
}));
const NAMED = new Set(PARTS.map((part) => part.name));

/** The parts that are alive at a trainer's peak, with what the process holds beside them. */
function atPeak(trainer) {
  const phases = Object.entries(trainer.phases);
  const [peak] = phases.reduce((most, one) => (one[1].allocated_bytes > most[1].allocated_bytes ? one : most));
  return trainer.parts.filter((part) => part.phase === peak || part.phase === "process");
}
const ofPart = (parts, name) =>
  parts.filter((part) => (name === "the rest" ? !NAMED.has(part.name) : part.name === name));
const bytesOf = (parts, name) => ofPart(parts, name).reduce((sum, part) => sum + part.bytes, 0);
const paint = (number) => ({ "background-color": `var(--p${number})`, color: `var(--t${number})` });

function label(part, bytes, pixels) {
  const words = `${part.number} ${part.name}`;
  if (pixels >= words.length * 6.3 + 12) return [h("b", { text: words }), gib(bytes)];
  return pixels >= 13 ? h("b", { text: String(part.number) }) : null;
}

function bar(trainer, gpu, scale, pixels) {
  const share = (bytes) => `${(100 * bytes) / scale}%`;
  const stack = h("div", { class: "stack" });
  const parts = atPeak(trainer);
  const room = gpu?.available_bytes;
  if (room)
    stack.append(
      h("div", {
        class: "others f-other",
        title: "other programs",
        style: { left: share(room), width: share(gpu.allocatable_bytes - room) },
      }),
    );
  let from = 0;
  for (const part of PARTS) {
    const bytes = bytesOf(parts, part.name);
    if (!bytes) continue;
    const words = label(part, bytes, (pixels * bytes) / scale);
    const tiny = Array.isArray(words) ? "" : " tiny";
    stack.append(
      h(
        "div",
        {
          class: `seg-part f-${part.family}${tiny}`,
          title: `${part.number} ${part.name}: ${mib(bytes)} MiB`,
          style: { left: share(from), width: share(bytes), ...paint(part.number) },
        },
        words,
      ),
    );
    from += bytes;
  }
  if (room && trainer.process_bytes > room)
    stack.append(h("i", { class: "over", style: { left: share(room), width: share(trainer.process_bytes - room) } }));
  if (room) stack.append(h("i", { class: "limit", style: { left: share(room) } }));
  return stack;
}

function table(trainers) {
  const parts = trainers.map(([, trainer]) => atPeak(trainer));
  const row = (part) => {
    const why = ofPart(parts[0], part.name)
      .map((one) => (part.name === "the rest" ? one.name : one.why))
      .join(", ");
    return h(
      "tr",
      {},
      h("td", {}, h("span", { class: `pkey f-${part.family}`, style: paint(part.number), text: String(part.number) })),
      h("th", { scope: "row", text: part.name }),
      parts.map((some) => h("td", { class: "num", text: mib(bytesOf(some, part.name)) })),
      h("td", { class: "why", text: why }),
    );
  };
  return h(
    "table",
    { class: "plain parts" },
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        h("th", { scope: "col", colspan: 2, text: "Part, in MiB" }),
        trainers.map(([name]) => h("th", { class: "num", scope: "col", text: name })),
        h("th", { class: "why", scope: "col", text: `Why (${trainers[0][0]})` }),
      ),
    ),
    h(
      "tbody",
      {},
      FAMILIES.map(([family, name]) => [
        h(
          "tr",
          { class: "fam" },
          h("th", { scope: "rowgroup", colspan: 2, text: capital(name) }),
          trainers.map(() => h("td", {})),
          h("td", { class: "why", text: WHEN[family] }),
        ),
        PARTS.filter((part) => part.family === family).map(row),
      ]),
    ),
  );
}

/** The card of the page with the bars. `trainers` is [[name, the plan's JSON of it], …], `width` the room in pixels. */
export function memoryCard(trainers, gpu, width, open) {
  const narrow = matchMedia("(max-width: 640px)").matches;
  const pixels = Math.max(200, width - (narrow ? 26 : 142));
  const scale = Math.max(gpu?.allocatable_bytes ?? 0, ...trainers.map(([, trainer]) => trainer.process_bytes)) * 1.005;
  const step =
    [1 / 64, 1 / 32, 1 / 16, 1 / 8, 0.25, 0.5, 1, 2, 4, 8, 16, 32, 64]
      .map((size) => size * 2 ** 30)
      .find((size) => scale / size <= (narrow ? 5 : 9)) ?? 2 ** 37;
  const ticks = Array.from({ length: Math.floor(scale / step) + 1 }, (_, i) => i * step);
  const at = (bytes) => ({ left: `${(100 * bytes) / scale}%` });
  const room = gpu?.available_bytes;
  const said = trainers.map(([name, trainer]) => `${name} ${gib(trainer.process_bytes)} GiB`).join(", ");
  const rows = trainers.map(([name, trainer]) =>
    h(
      "div",
      { class: "mrow" },
      h(
        "p",
        { class: "who" },
        name,
        h("small", { text: `${gib(trainer.process_bytes)} ± ${gib(trainer.error_bytes)}` }),
        trainer.fits === false ? h("small", { class: "no-fit", text: "does not fit" }) : null,
      ),
      bar(trainer, gpu, scale, pixels),
    ),
  );
  return h(
    "section",
    { class: "card" },
    h(
      "div",
      { class: "head" },
      h("h2", { text: "Memory at the peak" }),
      h("span", { class: "quiet", text: "GiB, by part; steady on the left, fleeting on the right" }),
    ),
    h(
      "div",
      { class: "membar", role: "img", "aria-label": said + (room ? `, limit ${gib(room)} GiB` : "") },
      rows,
      h(
        "div",
        { class: "axis", "aria-hidden": "true" },
        ticks.map((tick) => h("span", { style: at(tick), text: String(Number((tick / 2 ** 30).toFixed(3))) })),
        room
          ? h("span", {
              class: room / scale > 0.8 ? "lim end" : "lim",
              style: room / scale > 0.8 ? { right: `${100 - (100 * room) / scale}%` } : at(room),
              text: `limit ${gib(room, 1)}`,
            })
          : null,
      ),
    ),
    h(
      "ul",
      { class: "families" },
      FAMILIES.map(([family, name, names]) => {
        const numbers = PARTS.filter((part) => part.family === family).map((part) => part.number);
        return h(
          "li",
          {},
          h("i", { class: `pkey f-${family}`, style: paint(numbers[1]) }),
          h(
            "span",
            {},
            h("b", { text: `${numbers[0]}–${numbers.at(-1)} ${name} ` }),
            h("span", { class: "quiet", text: names.join(", ") }),
          ),
        );
      }),
    ),
    h(
      "details",
      { class: "parts-box", open },
      h("summary", {}, icon("down"), "Every part, in MiB, and why"),
      h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Parts of memory" }, table(trainers)),
    ),
  );
}
