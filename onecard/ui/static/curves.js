// The curves of one run: loss on top, four small ones below, on one x axis with one crosshair.

import { LOSS_STEPS, TIME_STEPS, axes, chart, cursor, lossTick, pen, saves, showAll, whole } from "./charts.js";
import { capital, colour, h, icon, s, segmented } from "./dom.js";
import { duration, gib, int, learningRate, loss, missing, percent, short, tick, timeTick } from "./numbers.js";
import { closer } from "./zoom.js";

const AXES = { tokens: "tokens", time: "time in training", steps: "steps" };
const CARD = ["temperature_c", "power_watts", "sm_clock_mhz", "other_bytes"];
const SHOWN_EVENTS = 26; // as many as there are letters
const FIRST_DESCENT = 0.08; // share of the stretches that a linear picture leaves out at its top

const known = (values) => values.filter((value) => !missing(value));
const least = (values) => Math.min(...known(values));
const most = (values) => Math.max(...known(values));

/** Events worth a flag: all but the start, and of the checkpoints the last. */
function flagged(events) {
  const last = events.findLastIndex((event) => event.kind === "checkpoint");
  return events
    .filter((event, i) => !["start", "end"].includes(event.kind) && (event.kind !== "checkpoint" || i === last))
    .slice(-SHOWN_EVENTS);
}

/**
 * Nodes that show `run` (an answer of /api/runs/ID), and `update(run)` for the next answer. `finer(from, to)` asks for
 * the same with finer curves of these steps.
 */
export function curves(first, finer = null) {
  let run = first;
  let coarse = first.curves;
  const zoom = closer(finer, () => {
    take();
    for (const panel of panels) panel.update((plot) => plot.refresh());
    lossPlot.refresh();
    describe();
    tell();
  });
  const take = () => {
    run = { ...run, curves: zoom.shown(coarse) };
  };
  const own = run.run.format === "onecard"; // its records will have tokens and seconds, if they have none yet
  let along = own || known(run.curves.tokens).length ? "tokens" : "steps";
  let log = false;
  const WORDS = run.curves.steps_told === false ? { ...AXES, steps: "logged losses" } : AXES;
  const xOf = { tokens: (point) => point.tokens, time: (point) => point.seconds, steps: (point) => point.step };
  const at = (point) => xOf[along](point);
  const atStep = (step) => {
    const i = run.curves.step.findIndex((one) => one >= step);
    return i < 0 ? null : xs()[i];
  };
  const leastX = () => Math.max(known(xs()).find((value) => value > 1e-9) ?? 1, 1e-9);
  const xs = (of = run.curves) => {
    const values = { tokens: of.tokens, time: of.seconds, steps: of.step }[along];
    return log ? values.map((value) => Math.max(value, 1e-9)) : values;
  };
  /** The smallest and the largest x that are shown, or null for all. */
  const part = (u) => {
    const { min, max } = u?.scales.x ?? {};
    const x = xs();
    return missing(min) || !x.length || (min <= x[0] && max >= x.at(-1)) ? null : { min, max };
  };
  const zoomed = (u) => {
    const shown = part(u);
    const x = xs(coarse);
    const from = shown ? x.findIndex((value) => value >= shown.min) : -1;
    const to = shown ? x.findIndex((value) => value >= shown.max) : -1;
    if (shown && from < 0) return; // only what is to come is shown
    zoom.look(coarse, shown ? from : null, to < 0 ? x.length - 1 : to);
    all.hidden = !shown;
  };
  const all = h("button", { class: "mini", type: "button", hidden: true, text: "Show all", onclick: () => showAll() });
  /** What is predicted of a run that trains. */
  const ahead = () => (run.run.state === "training" ? run.prediction : null);
  const end = () => {
    const planned = ahead() ? at(run.prediction) : null;
    return most([planned, ...xs(), ...run.evals.map(at)]);
  };
  const xWord = (value) => (along === "time" ? timeTick(value) : tick(value));
  const scale = () => ({ time: false, distr: log ? 3 : 1, range: whole(() => [log ? leastX() : 0, end()]) });
  const decades = (_, ticks) => ticks.map((value) => (/^[125]/.test(value.toExponential()) ? value : null));
  const bothAxes = (options) => {
    const [x, y] = axes({ x: xWord, ...options });
    if (along === "time" && !log)
      x.incrs = TIME_STEPS;
    if (log) x.filter = decades;
    if (log) y.filter = (_, ticks) => ticks;
    return [x, y];
  };

  // ---- what every chart of the page draws
  const events = () => flagged(run.events);
  const flagLines = (p, withFlags = false) => {
    let taken = -Infinity; // flags that would overlap step aside to the right
    events().forEach((event, i) => {
      const value = at(event) ?? atStep(event.step);
      if (missing(value)) return;
      const x = Math.round(p.X(log ? Math.max(value, leastX()) : value));
      if (x < p.left || x > p.right) return;
      p.line(
        [
          [x, p.top + (withFlags ? 15 * p.ratio : 0)],
          [x, p.bottom],
        ],
        { stroke: colour("--line-2"), dash: [2, 3] },
      );
      if (!withFlags) return;
      const size = 14 * p.ratio;
      taken = Math.min(Math.max(x, taken + size + 2 * p.ratio), p.right - size / 2);
      p.box(taken - size / 2, p.top + p.ratio, size, colour("--surface"), colour("--ink-3"));
      p.text(letter(i), taken, p.top + 1.5 * p.ratio + size / 2, {
        fill: colour("--ink"),
        align: "center",
        base: "middle",
        weight: "600",
        size: 10,
      });
    });
  };
  const letter = (i) => String.fromCharCode(65 + i);
  const options = (height, y, axis, series, draw, bands = []) => ({
    height,
    padding: [8, 12, 0, 0],
    cursor: cursor(),
    scales: { x: scale(), y },
    axes: bothAxes(axis),
    series: [{}, ...series],
    bands,
    hooks: {
      setCursor: [(u) => tell(u.cursor.idx)],
      setScale: [(u, key) => key === "x" && u === lossPlot.plot && zoomed(u)],
      draw: [
        (u) => {
          const p = pen(u);
          p.clip(() => draw(p, u));
        },
      ],
    },
  });
  const hidden = { stroke: "transparent", points: { show: false } };
  /** A line through one value is no line: a dot shows it. */
  const dotAlone = (values) => ({ show: known(values).length === 1, size: 5 });

  // ---- loss
  const lossOf = () => run.curves.loss ?? { min: [], mean: [], max: [] };
  const limits = (u = lossPlot.plot) => {
    const shown = part(u);
    if (shown) return closeLimits(shown);
    const { min, max } = coarse.loss ?? lossOf();
    const skipped = log ? 0 : Math.floor(max.length * FIRST_DESCENT);
    const from = xs(coarse)[skipped] ?? 0;
    const seen = run.evals.filter((one) => at(one) >= from || run.evals.length < 3).flatMap((one) => [one.val_loss]);
    const high = most([...max.slice(skipped), ...seen]);
    const low = least([...min, ...run.evals.map((one) => one.val_loss), ahead()?.loss?.low]);
    return around(low, high);
  };
  /** Around what a part of the x axis shows. */
  const closeLimits = (shown) => {
    const inside = (x) => x >= shown.min && x <= shown.max;
    const x = xs();
    const { min, max } = lossOf();
    const evaluated = run.evals.filter((one) => inside(at(one))).map((one) => one.val_loss);
    const of = (values) => [...values.filter((_, i) => inside(x[i])), ...evaluated];
    return around(least(of(min)), most(of(max)));
  };
  const around = (low, high) => {
    if (!Number.isFinite(high) || !Number.isFinite(low)) return [0, 1];
    const room = Math.max(0.02, (high - low) * 0.06);
    return log ? [low * 0.97, high * 1.05] : [low - room, high + room];
  };
  const drawLoss = (p) => {
    const accent = colour("--accent");
    const surface = colour("--surface");
    flagLines(p, true);
    const points = run.evals.filter((one) => !missing(one.val_loss) && !missing(at(one)) && (!log || at(one) > 0));
    const E = points.map((one) => [p.X(at(one)), one.val_loss, one.val_loss_error ?? 0]);
    p.area(
      E.map(([x, y, error]) => [x, p.Y(y + error)]),
      E.map(([x, y, error]) => [x, p.Y(y - error)]),
      colour("--accent-mid"),
    );
    p.line(
      E.map(([x, y]) => [x, p.Y(y)]),
      { stroke: accent, width: 1.5 },
    );
    for (const [x, y] of E) if (E.length < 80) p.dot(x, p.Y(y), 2, accent);
    const latest = E.at(-1);
    if (latest) prediction(p, latest);
    notFinite(p);
  };
  /** Where the loss is a number no more, a line says so: the curve alone only ends. */
  const notFinite = (p) => {
    const value = xs(coarse)[coarse.not_finite?.[0]];
    if (missing(value)) return;
    const [x, bad] = [p.X(value), colour("--bad")];
    p.line(
      [
        [x, p.top],
        [x, p.bottom],
      ],
      { stroke: bad, dash: [6, 3] },
    );
    const left = x - p.left > 120 * p.ratio;
    p.text("loss is not finite", x + (left ? -6 : 6) * p.ratio, p.top + 30 * p.ratio, {
      fill: bad,
      align: left ? "right" : "left",
      weight: "600",
      halo: colour("--surface"),
    });
  };
  const prediction = (p, [x0, y0]) => {
    const ends = ahead()?.loss;
    if (!ends || missing(at(run.prediction))) return;
    const accent = colour("--accent");
    const x1 = p.X(at(run.prediction)) - 5 * p.ratio;
    if (x1 <= x0) return;
    const fan = (to) =>
      Array.from({ length: 25 }, (_, k) => [
        x0 + ((x1 - x0) * k) / 24,
        p.Y(y0 + (to - y0) * (1 - (1 - k / 24) ** 1.6)),
      ]);
    p.area(fan(ends.high), fan(ends.low), colour("--accent-band"));
    p.line(fan(ends.likely), { stroke: accent, width: 1.6, dash: [5, 4] });
    p.line(
      [
        [x1, p.Y(ends.high)],
        [x1, p.Y(ends.low)],
      ],
      { stroke: accent, width: 2 },
    );
    p.dot(x1, p.Y(ends.likely), 3.6, colour("--surface"), accent);
    const words = `${loss(ends.likely, 2)} (${loss(ends.low, 2)} to ${loss(ends.high, 2)})`;
    const halo = colour("--surface");
    const y = p.Y(ends.high) - 20 * p.ratio;
    p.text(words, x1, y, { fill: colour("--ink"), align: "right", weight: "600", size: 12, halo });
    p.text("predicted end", x1, y + 13 * p.ratio, { fill: colour("--ink-3"), align: "right", halo });
  };
  const lossHolder = h("div", { class: "plot", role: "group" });
  const lossPlot = chart(lossHolder, (width) => {
    const { min, mean, max } = lossOf();
    return {
      options: options(
        width < 520 ? 260 : 340,
        { distr: log ? 3 : 1, range: limits },
        { y: lossTick(limits), incrs: LOSS_STEPS, size: 38 },
        [hidden, hidden, { stroke: colour("--ink-3"), width: 1, alpha: 0.75, points: dotAlone(mean) }],
        drawLoss,
        [{ series: [2, 1], fill: colour("--train-band") }],
      ),
      data: [xs(), min, max, mean],
    };
  });

  // ---- the line above the charts: the values under the crosshair
  const readout = h("p", { class: "readout", role: "status" });
  function tell(index) {
    const { step, tokens, seconds } = run.curves;
    if (!step.length) return readout.replaceChildren("No update is recorded yet.");
    const moved = !missing(index);
    const i = Math.min(index ?? step.length - 1, step.length - 1);
    const item = (word, value) => h("span", {}, `${word} `, h("b", { text: value }));
    const { min, max } = lossOf();
    const evaluation = run.evals.findLast((one) => one.step <= step[i] && !missing(one.val_loss));
    readout.replaceChildren(
      item(moved ? "step" : run.run.state === "training" ? "now: step" : "end: step", int(step[i])),
      missing(tokens[i]) ? "" : item("tokens", short(tokens[i])),
      missing(seconds[i]) ? "" : item("after", duration(seconds[i])),
      missing(min[i])
        ? item("loss", "not finite")
        : item(
            "loss",
            min[i] === max[i] ? loss(min[i], 4) : `${loss(min[i])} to ${missing(max[i]) ? "not finite" : loss(max[i])}`,
          ),
      evaluation ? item(`val at ${int(evaluation.step)}`, withError(evaluation)) : "",
    );
  }
  const withError = (one) =>
    loss(one.val_loss, 4) + (missing(one.val_loss_error) ? "" : ` ± ${one.val_loss_error.toFixed(4)}`);

  // ---- small charts
  const small = ({ title, note, key, word, absent, top, lines, incrs, worst = false, size = 46 }) => {
    const holder = h("div", { class: "plot", role: "group" });
    const value = h("b", {});
    const values = () => run.curves[key] ?? { min: [], mean: [], max: [] };
    const range = () => [
      0,
      (Math.max(
        most([...values().max.slice(worst ? Math.floor(values().max.length * FIRST_DESCENT) : 0), top?.() ?? 0, 1e-12]),
      ) || 1) * 1.1,
    ];
    const draw = (p) => {
      flagLines(p);
      for (const mark of lines?.() ?? []) {
        const y = p.Y(mark.value);
        p.line(
          [
            [p.left, y],
            [p.right, y],
          ],
          { stroke: colour("--ink-2"), dash: [6, 3] },
        );
        const room = y - p.top > 16 * p.ratio; // above the line, else below it
        p.text(mark.label, p.right - 4 * p.ratio, y + (room ? -5 : 13) * p.ratio, {
          fill: colour("--ink-2"),
          align: "right",
          halo: colour("--surface"),
        });
      }
    };
    const series = [
      hidden,
      hidden,
      { width: 1.5, spanGaps: true },
    ];
    const plot = chart(holder, () => ({
      options: options(
        138,
        { range },
        { y: (v) => (v ? word(v) : "0"), size, space: 28, incrs },
        series.map((one) =>
          one === hidden ? one : { ...one, stroke: colour("--accent"), points: dotAlone(values().mean) },
        ),
        draw,
        [{ series: [2, 1], fill: colour("--accent-band") }],
      ),
      data: [xs(), values().min, values().max, values().mean],
    }));
    const update = (again) => {
      const there = known(values().mean);
      value.textContent = there.length ? word(there.at(-1)) : "";
      node.hidden = !there.length;
      holder.setAttribute(
        "aria-label",
        `${title}: ${there.length ? `now ${word(there.at(-1))}` : (absent ?? "not recorded")}. Arrow keys read the curve.`,
      );
      if (there.length) again(plot);
    };
    const node = h(
      "figure",
      { class: "card" },
      h(
        "figcaption",
        { class: "head" },
        h("h3", { text: title }),
        h("span", { class: "quiet", text: note }),
        value,
        saves(
          `${run.run.name}-${key}`,
          () => plot.plot,
          () => named([key]),
        ),
      ),
      holder,
    );
    return { node, update, title, absent, key };
  };
  const memory = () => run.memory ?? {};
  const limit = () => run.sensors?.power_limit_watts;
  const clip = () => run.config.find((one) => one.key === "grad_clip")?.value;
  const bytes = {
    word: (v) => `${gib(v, v % 2 ** 30 ? 1 : 0)} GiB`,
    size: 54,
    incrs: [0.5, 1, 2, 4, 8, 16, 32].map((size) => size * 2 ** 30),
  };
  const panels = [
    small({ title: "Learning rate", note: "", key: "lr", word: learningRate, absent: "This log does not print it." }),
    small({
      title: "Gradient norm",
      note: "band: lowest to highest",
      key: "grad_norm",
      word: (v) => (v < 100 ? v.toFixed(2) : int(v)),
      worst: true,
      absent: "This log does not print it. onecard train does.",
      lines: () => (clip() > 0 ? [{ value: clip(), label: `clipped at ${clip()}` }] : []),
    }),
    small({
      title: "Tokens per second",
      note: "band: lowest to highest",
      key: "tokens_per_second",
      word: tick,
      absent: "The log does not say.",
    }),
    small({
      title: "MFU",
      note: "share of the card's peak",
      key: "mfu",
      word: percent,
      absent: run.run.card ? "The log does not print its true share." : "Needs a card and its peak: this run names none.",
    }),
    small({
      title: "Memory",
      note: "reserved; dashed: plan and limit",
      key: "reserved_bytes",
      ...bytes,
      absent: "No card's memory is recorded: the run is on the processor, or the log does not say.",
      top: () => Math.max(memory().predicted_process_bytes ?? 0, memory().available_bytes ?? 0),
      lines: () =>
        [
          ["plan", memory().predicted_process_bytes],
          ["the card's limit", memory().available_bytes],
        ]
          .filter(([, bytes]) => !missing(bytes))
          .map(([name, bytes]) => ({ value: bytes, label: `${name} ${gib(bytes)}` })),
    }),
    small({ title: "Temperature", key: "temperature_c", word: (v) => `${int(v)} °C` }),
    small({
      title: "Power",
      note: "dashed: its limit",
      key: "power_watts",
      word: (v) => `${int(v)} W`,
      top: () => limit() ?? 0,
      lines: () => (missing(limit()) ? [] : [{ value: limit(), label: `limit ${int(limit())} W` }]),
    }),
    small({
      title: "Clock",
      note: "of the multiprocessors",
      key: "sm_clock_mhz",
      word: (v) => `${int(v)} MHz`,
      size: 64,
    }),
    small({
      title: "Other programs",
      note: "what they hold of its memory",
      key: "other_bytes",
      ...bytes,
    }),
  ];
  /** What the card's readings say in words. */
  const sensors = h("span", { class: "quiet" });
  const ofCard = (panel) => CARD.includes(panel.key);
  const cardPart = h(
    "section",
    {},
    h("div", { class: "head" }, h("h2", { text: "The card" }), sensors),
    h("div", { class: "multiples" }, panels.filter(ofCard).map((panel) => panel.node)),
  );
  const describeCard = () => {
    const { slowed, pcie_generation: link, pcie_width: lanes, ...other } = run.sensors ?? {};
    const reasons = Object.entries(slowed ?? {}).map(([reason, share]) => `${reason} ${percent(share)}`);
    const fullLink = `${other.max_pcie_generation}.0 x${other.max_pcie_width}`;
    const words = [
      slowed
        ? `Clock lowered by ${reasons.length ? `${reasons.join(", ")} of the readings` : "nothing: neither heat nor its power limit"}.`
        : "",
      missing(link) || missing(lanes)
        ? ""
        : `PCIe ${link}.0 x${lanes}${missing(other.max_pcie_generation) || fullLink === `${link}.0 x${lanes}` ? "" : ` of ${fullLink}`}.`,
      other.default_power_limit_watts > other.power_limit_watts
        ? `Power limit ${int(other.power_limit_watts)} of the usual ${int(other.default_power_limit_watts)} W.`
        : "",
    ].filter(Boolean);
    cardPart.hidden = panels.every((panel) => !ofCard(panel) || panel.node.hidden);
    sensors.textContent = words.join(" ");
  };

  // ---- around the charts
  const swatch = (d, kind) =>
    s("svg", { class: "swatch", viewBox: "0 0 16 10", "aria-hidden": "true" }, s("path", { d, class: kind }));
  const key = (d, kind, words) => h("span", { class: "key" }, swatch(d, kind), words);
  const predicted = key("M0 5h16", "k-dash", "predicted");
  const title = h("span", { class: "quiet" });
  const absent = h("ul", { class: "not-drawn" });
  const list = h("ol", { class: "events" });
  const table = h("tbody", {});
  const legend = h(
    "div",
    { class: "readout legend" },
    key("M0 5h16", "k-val", "validation, with its error"),
    key("M0 2h16v6H0z", "k-band", "training loss, lowest to highest of each stretch"),
    predicted,
  );
  const evaluations = h(
    "details",
    { "data-key": "evaluations" },
    h("summary", {}, icon("down"), "Evaluations as a table"),
    h(
      "table",
      { class: "plain evaluations" },
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          ["Step", "Tokens", "Train loss", "Val loss"].map((words) =>
            h("th", { scope: "col", class: "num", text: words }),
          ),
        ),
      ),
      table,
    ),
  );
  const describe = () => {
    const { max } = lossOf();
    const above = !log && max.length && max[0] > limits()[1] ? `; begins at ${loss(max[0], 1)}, above the picture` : "";
    const each = zoom.each(coarse);
    const close = each > 1 ? `; a stretch is ${int(each)} updates` : "; every update";
    title.textContent = `nats, against ${WORDS[along]}${log ? ", both axes logarithmic" : ""}${part(lossPlot.plot) ? close : log ? "" : above}`;
    const latest = run.evals.at(-1);
    lossHolder.setAttribute(
      "aria-label",
      `Loss against ${WORDS[along]}${latest && !missing(latest.val_loss) ? `: validation ${withError(latest)} at step ${int(latest.step)}` : ""}. Arrow keys read the curve.`,
    );
    describeCard();
    predicted.hidden = !ahead()?.loss;
    const gone = panels.filter((panel) => panel.node.hidden && panel.absent);
    const begun = run.curves.step.length > 0;
    absent.hidden = !gone.length || !begun;
    for (const part of [lossHolder, legend, evaluations]) part.hidden = !begun && !run.evals.length;
    absent.replaceChildren(...gone.map((panel) => h("li", {}, h("b", { text: `${panel.title}: ` }), panel.absent)));
    list.hidden = !events().length;
    list.replaceChildren(
      ...events().map((event, i) =>
        h(
          "li",
          {},
          h("span", { class: "flag", text: letter(i) }),
          h("span", { class: "num", text: int(event.step) }),
          h("b", { text: event.kind === "oom" ? "out of memory" : event.kind }),
          h("span", { text: capital(event.what) }),
        ),
      ),
    );
    table.replaceChildren(
      ...run.evals.map((one) =>
        h(
          "tr",
          {},
          h("th", { scope: "row", class: "num", text: int(one.step) }),
          h("td", { class: "num", text: missing(one.tokens) ? "–" : short(one.tokens) }),
          h("td", { class: "num", text: missing(one.train_loss) ? "–" : loss(one.train_loss, 4) }),
          h("td", { class: "num", text: missing(one.val_loss) ? "–" : withError(one) }),
        ),
      ),
    );
  };
  const draw = () => {
    for (const panel of panels) panel.update((plot) => plot.draw());
    describe();
    tell();
    lossPlot.draw();
  };
  const SERIES = [
    ...["loss", "lr", "grad_norm", "tokens_per_second", "mfu", "allocated_bytes", "reserved_bytes"],
    ...CARD,
  ];
  const named = (keys) => {
    const { curves: c } = run;
    const parts = keys.filter((key) => c[key]);
    return [
      ["step", c.step],
      ["tokens", c.tokens],
      ["seconds", c.seconds],
      ...parts.flatMap((key) => ["min", "mean", "max"].map((kind) => [`${key}_${kind}`, c[key][kind]])),
    ];
  };
  const choices = Object.keys(WORDS).filter(
    (key) => own || key === "steps" || known(run.curves[key === "time" ? "seconds" : key]).length,
  );
  const node = h(
    "section",
    {},
    h(
      "figure",
      { class: "card" },
      h(
        "figcaption",
        { class: "head" },
        h("h2", { text: "Loss" }),
        title,
        h(
          "div",
          { class: "tools" },
          choices.length > 1
            ? segmented(
                "Against",
                choices.map((one) => [one, one]),
                along,
                (value) => {
                  along = value;
                  draw();
                },
              )
            : null,
          segmented(
            "Axes",
            [
              ["linear", "linear"],
              ["log", "log"],
            ],
            "linear",
            (value) => {
              log = value === "log";
              draw();
            },
          ),
          all,
          saves(
            `${run.run.name}-loss`,
            () => lossPlot.plot,
            () => named(SERIES),
          ),
        ),
      ),
      readout,
      lossHolder,
      legend,
      list,
      evaluations,
    ),
    h(
      "div",
      { class: "multiples" },
      panels.filter((panel) => !ofCard(panel)).map((panel) => panel.node),
    ),
    absent,
    cardPart,
  );
  return {
    node,
    draw,
    update(next) {
      coarse = next.curves;
      run = next;
      take();
      for (const panel of panels) panel.update((plot) => plot.refresh());
      describe();
      tell();
      lossPlot.refresh();
    },
  };
}
