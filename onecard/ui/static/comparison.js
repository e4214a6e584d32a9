// Runs side by side: the verdict, their curves, who wins, what changed. Every figure is one of `onecard compare --json`.

import { LOSS_STEPS, TIME_STEPS, axes, chart, cursor, lossTick, pen, saves, whole } from "./charts.js";
import { capital, colour, h, segmented } from "./dom.js";
import { pythonValue } from "./findings.js";
import { duration, gib, int, loss, missing, percent, short, tick, timeTick } from "./numbers.js";

export const letterOf = (i) => String.fromCharCode(65 + i);
const STYLES = [
  ["--ink-2", [6, 4]],
  ["--accent", []],
  ["--warn", [2, 3]],
  ["--ok", [10, 3, 2, 3]],
  ["--bad", [4, 2]],
  ["--ink", [1, 2]],
];
const style = (i) => STYLES[i % STYLES.length];
export const letter = (i) => h("span", { class: `letter ${"ab"[i] ?? "c"}`, text: letterOf(i) });
const nameOf = (source) => source.replace(/\/$/, "").split("/").at(-1);

const MEASURES = {
  val_loss: ["Validation loss", "nats"],
  train_loss: ["Training loss", "nats"],
  bits_per_byte: ["Validation loss", "bits per byte"],
};
function plotted(result) {
  const [what, unit] = MEASURES[result.measure] ?? ["Loss", "nats"];
  const { ui, runs } = result;
  let along = ui.curves.every((one) => one.points.some((point) => !missing(point.seconds))) ? "time" : "tokens";
  const equal = () => (along === "time" ? result.at_equal_seconds : result.at_equal_tokens);
  const limit = () => (along === "time" ? equal()?.seconds : equal()?.tokens);
  const points = (one) => {
    const kept = one.points.map((point) => [along === "time" ? point.seconds : point.tokens, point.loss]);
    const known = kept.filter(([x, y]) => !missing(x) && !missing(y));
    return [known.map(([x]) => x), known.map(([, y]) => y)];
  };
  const xWord = (value) => (along === "time" ? timeTick(value) : tick(value));
  const end = () => Math.max(...ui.curves.flatMap((one) => points(one)[0])) * 1.02;
  const limits = () => {
    const all = ui.curves.map((one) => points(one)[1]);
    const low = Math.min(...all.flat());
    const later = all.flatMap((values) => values.slice(values.length > 4 ? Math.ceil(values.length * 0.1) : 0));
    const room = Math.max(0.02, (Math.max(...later) - low) * 0.07);
    return [low - room, Math.max(...later) + room];
  };
  const readout = h("p", { class: "readout", role: "status" });
  const tell = (u) => {
    const i = u?.cursor.idx;
    if (missing(i))
      return readout.replaceChildren(
        h("span", {
          text: "Move over the chart, or focus it and use the arrow keys; drag to zoom, Escape to go back.",
        }),
      );
    const item = (word, value) => h("span", {}, `${word} `, h("b", { text: value }));
    readout.replaceChildren(
      item("at", along === "time" ? duration(u.data[0][i]) : `${short(u.data[0][i])} tokens`),
      ...runs.map((_, k) => item(letterOf(k), missing(u.data[k + 1][i]) ? "–" : loss(u.data[k + 1][i], 4))),
    );
  };
  const draw = (u) => {
    const p = pen(u);
    const halo = colour("--surface");
    p.clip(() => {
      if (limit()) {
        const x = p.X(limit());
        const left = x - p.left > 130 * p.ratio; // of the line is room for its words
        p.line(
          [
            [x, p.top],
            [x, p.bottom],
          ],
          { stroke: colour("--line-2") },
        );
        p.text(
          along === "time" ? `equal time, ${duration(limit())}` : `equal tokens, ${short(limit())}`,
          x + (left ? -6 : 6) * p.ratio,
          p.top + 12 * p.ratio,
          { fill: colour("--ink-2"), align: left ? "right" : "left", halo },
        );
      }
      const crossing = along === "time" ? result.crossings?.[0] : null;
      if (crossing) {
        const [x, y] = [p.X(crossing.seconds), p.Y(crossing.loss)];
        p.dot(x, y, 4.5, halo, colour("--ink"));
        const below = (y + 26 * p.ratio < p.bottom ? 22 : -12) * p.ratio;
        if (u.width >= 520)
          p.text(`${letterOf(crossing.run)} passes ${letterOf(crossing.passes)}'s final loss`, x, y + below, {
            fill: colour("--ink"),
            align: x - p.left > 160 * p.ratio ? "right" : "left",
            weight: "600",
            halo,
          });
      }
      const ends = ui.curves.flatMap((one, i) => {
        const [xs, ys] = points(one);
        if (!xs.length) return [];
        return [{ i, x: Math.min(p.X(xs.at(-1)) + 6 * p.ratio, p.right - 14 * p.ratio), y: p.Y(ys.at(-1)) - 8 * p.ratio }];
      });
      ends.sort((a, b) => b.y - a.y); // from below; a letter that would cover another stands above it
      ends.forEach((one, k) => {
        const size = 13;
        for (const other of ends.slice(0, k))
          if (Math.abs(other.x - one.x) < size * p.ratio) one.y = Math.min(one.y, other.y - size * p.ratio);
        p.text(letterOf(one.i), one.x, one.y, { fill: colour(style(one.i)[0]), weight: "600", size, halo });
      });
    });
  };
  const holder = h("div", {
    class: "plot",
    role: "group",
    "aria-label": `${what} of the runs. Arrow keys read the curves.`,
  });
  const made = chart(holder, (width) => {
    const [x, y] = axes({ x: xWord, y: lossTick(limits), incrs: LOSS_STEPS, size: 38 });
    if (along === "time")
      x.incrs = TIME_STEPS;
    return {
      options: {
        height: width < 520 ? 280 : 360,
        padding: [8, 12, 0, 0],
        cursor: cursor(),
        axes: [x, y],
        scales: { x: { time: false, range: whole(() => [0, end()]) }, y: { range: limits } },
        series: [
          {},
          ...ui.curves.map((_, i) => ({
            stroke: colour(style(i)[0]),
            dash: style(i)[1],
            width: i === 1 ? 2 : 1.8,
            points: { show: false },
            spanGaps: true,
          })),
        ],
        hooks: { setCursor: [tell], draw: [draw] },
      },
      data: window.uPlot.join(ui.curves.map(points)),
    };
  });
  const title = h("span", { class: "quiet" });
  const again = () => {
    title.textContent = `${unit}, against ${along === "time" ? "time in training" : "tokens"}`;
    tell();
    made.draw();
  };
  const node = h(
    "section",
    {},
    h(
      "figure",
      { class: "card" },
      h(
        "figcaption",
        { class: "head" },
        h("h2", { text: what }),
        title,
        h(
          "div",
          { class: "tools" },
          segmented(
            "Against",
            [
              ["time", "equal time"],
              ["tokens", "equal tokens"],
            ],
            along,
            (value) => {
              along = value;
              again();
            },
          ),
          saves(
            "compare",
            () => made.plot,
            () => [["x", [...made.plot.data[0]]], ...runs.map((_, i) => [letterOf(i), [...made.plot.data[i + 1]]])],
          ),
        ),
      ),
      readout,
      holder,
    ),
  );
  return { node, again };
}

const head = (first, runs) =>
  h(
    "thead",
    {},
    h(
      "tr",
      {},
      h("th", { scope: "col", text: first }),
      runs.map((_, i) => h("th", { class: "num", scope: "col" }, letter(i))),
      h("th", { scope: "col", text: "Better" }),
    ),
  );
const better = (winner) => (missing(winner) ? h("span", { class: "quiet", text: "" }) : letter(winner));

function winners(result) {
  const { runs, winners: won } = result;
  const row = (name, values, word, winner, noise) =>
    values.every(missing)
      ? null
      : h(
          "tr",
          {},
          h("th", { scope: "row", text: name }),
          values.map((value, i) =>
            h(
              "td",
              { class: `num${winner === i ? " best" : ""}` },
              missing(value) ? "–" : word(value),
              !missing(value) && noise && !missing(noise[i])
                ? h("span", { class: "pm", text: ` ± ${noise[i].toFixed(4)}` })
                : null,
            ),
          ),
          h("td", {}, better(winner)),
        );
  const of = (key) => runs.map((run) => run[key]);
  const four = (value) => loss(value, 4);
  const { at_equal_seconds: time, at_equal_tokens: tokens } = result;
  return h(
    "table",
    { class: "plain" },
    head("Figure", runs),
    h(
      "tbody",
      {},
      time?.loss ? row(`Loss at ${duration(time.seconds)}`, time.loss, four, time.winner, time.noise) : null,
      tokens?.loss ? row(`Loss at ${short(tokens.tokens)} tokens`, tokens.loss, four, tokens.winner, tokens.noise) : null,
      row("Final loss", of("final_val_loss"), four, won.final_val_loss, of("evaluation_noise")),
      row("Tokens per second", of("tokens_per_second"), int, won.tokens_per_second),
      row("MFU", of("mfu"), percent),
      row("Parameters", of("params"), short),
      row("Tokens seen", of("tokens"), short),
      row("Trained", of("seconds"), duration),
      row("Memory, planned (GiB)", of("predicted_process_bytes"), gib),
      row("Memory, the most reserved (GiB)", of("reserved_bytes"), gib),
    ),
  );
}

function onTheWay(result) {
  const rows = (equal, word) =>
    equal?.loss
      ? [...equal.earlier, equal].map((one) =>
          h(
            "tr",
            {},
            h("th", { scope: "row", text: word(one) }),
            one.loss.map((value, i) =>
              h("td", { class: `num${one.winner === i ? " best" : ""}`, text: missing(value) ? "–" : loss(value) }),
            ),
            h("td", {}, better(one.winner)),
          ),
        )
      : [];
  return h(
    "table",
    { class: "plain" },
    head("Loss after", result.runs),
    h(
      "tbody",
      {},
      rows(result.at_equal_seconds, (one) => duration(one.seconds)),
      rows(result.at_equal_tokens, (one) => `${short(one.tokens)} tokens`),
    ),
  );
}

const signed = (value, word) => (value === 0 ? "same" : `${value > 0 ? "+" : "−"}${word(Math.abs(value))}`);
const aloneOf = (result) => (result.runs.length === 2 ? (result.predicted_alone?.["1"] ?? []) : []);
function changes(result) {
  const keys = Object.keys(result.config_diff);
  if (!keys.length) return h("p", { class: "quiet", text: "No setting differs." });
  const alone = aloneOf(result);
  const rest = keys.filter((key) => !alone.some((one) => key in one.patch));
  const rows = [...alone.map((one) => [Object.keys(one.patch), one]), ...rest.map((key) => [[key], null])];
  const value = (key, i) =>
    h(
      "div",
      {},
      h("code", { text: missing(result.config_diff[key][i]) ? "?" : pythonValue(result.config_diff[key][i]) }),
    );
  const effect = (label, one, key, word, why) =>
    h("td", {
      class: "num",
      "data-label": label,
      title: missing(one?.[key]) ? why : null,
      text: missing(one?.[key]) ? "–" : word(one[key]),
    });
  const predicted = alone.length > 0;
  return h(
    "table",
    { class: "plain stackable" },
    h(
      "thead",
      {},
      h(
        "tr",
        {},
        h("th", { scope: "col", text: "Setting" }),
        result.runs.map((_, i) => h("th", { scope: "col" }, letter(i))),
        predicted
          ? ["Tokens/s", "Memory", "Final loss"].map((text) => h("th", { scope: "col", class: "num", text }))
          : null,
      ),
    ),
    h(
      "tbody",
      {},
      rows.map(([names, one]) =>
        h(
          "tr",
          {},
          h(
            "th",
            { scope: "row" },
            names.map((key) => h("div", {}, h("code", { text: key }))),
          ),
          result.runs.map((_, i) =>
            h(
              "td",
              { "data-label": letterOf(i) },
              names.map((key) => value(key, i)),
            ),
          ),
          predicted
            ? [
                effect(
                  "Tokens/s",
                  one,
                  "tokens_per_second_ratio",
                  (ratio) => (ratio === 1 ? "same" : `× ${ratio.toFixed(2)}`),
                  "needs a card that was measured",
                ),
                effect(
                  "Memory",
                  one,
                  "process_bytes_difference",
                  (bytes) => signed(bytes, (size) => `${int(size / 2 ** 20)} MiB`),
                  "no plan",
                ),
                effect(
                  "Final loss",
                  one,
                  "final_loss_difference",
                  (nats) => signed(nats, loss),
                  one?.why_no_loss ?? "has no effect that a law predicts",
                ),
              ]
            : null,
        ),
      ),
    ),
  );
}

function headline({ runs, measure, winners: won, crossings, at_equal_seconds: time, at_equal_tokens: tokens }) {
  const crossing = crossings?.[0];
  const sooner = crossing && !missing(crossing.seconds) && crossing.seconds < crossing.passed_seconds;
  if (sooner && crossing.run === time?.winner)
    return `${letterOf(crossing.run)} is better: it passes ${letterOf(crossing.passes)}'s final loss after ${duration(crossing.seconds)}, where ${letterOf(crossing.passes)} took ${duration(crossing.passed_seconds)}.`;
  if (!missing(time?.winner)) return `${letterOf(time.winner)} is better after the same time.`;
  if (!missing(tokens?.winner)) return `${letterOf(tokens.winner)} is better after the same tokens.`;
  if (!missing(won.final_val_loss)) return `${letterOf(won.final_val_loss)} ends lower.`;
  if (!measure) return "No run can be called better.";
  return runs.length ? "No run is clearly better: the difference is within the noise." : "";
}

const lede = (result) =>
  (result.cautions ?? [])
    .map((caution) => (typeof caution === "string" ? caution : (caution.what ?? "")))
    .map((words) => capital(words).replace(/[^.]$/, "$&."))
    .join(" ");

/** The nodes of a comparison, and `draw()` for when they are on the page. `between` stands below the verdict. */
export function comparison(result, between = null) {
  const names = result.runs.map((run, i) => h("span", {}, letter(i), nameOf(result.ui.runs?.[i]?.name ?? run.source)));
  const chartBox = result.measure ? plotted(result) : null;
  /** A column for each run may need more than there is: then the table scrolls, and the page does not. */
  const wide = (label, table) =>
    result.runs.length > 2 ? h("div", { class: "wide", tabindex: "0", role: "group", "aria-label": label }, table) : table;
  const alone = aloneOf(result);
  const together = result.changed_together ?? [];
  const nodes = [
    h("p", { class: "kicker names" }, names),
    h("h1", { class: "verdict", text: headline(result) }),
    lede(result) ? h("p", { class: "lede", text: lede(result) }) : null,
    between,
    chartBox?.node,
    h(
      "section",
      { class: "two" },
      h("div", { class: "card" }, h("div", { class: "head" }, h("h2", { text: "Who wins" })), wide("Who wins", winners(result))),
      result.measure &&
      h(
        "div",
        { class: "card" },
        h(
          "div",
          { class: "head" },
          h("h2", { text: "On the way" }),
          h("span", { class: "quiet", text: "the same time, the same tokens" }),
        ),
        wide("On the way", onTheWay(result)),
      ),
    ),
    h(
      "section",
      {},
      h(
        "div",
        { class: "card" },
        h(
          "div",
          { class: "head" },
          h("h2", { text: alone.length ? "What changed, and what each change alone would do to A" : "What changed" }),
          alone.length ? h("span", { class: "quiet", text: "effects are predicted, not measured" }) : null,
        ),
        wide("What changed", changes(result)),
        together.length > 1
          ? h("p", {
              class: "lede small",
              text: `These ${together.length} settings changed together, so the measurement credits no single one.`,
            })
          : null,
      ),
    ),
  ];
  return { nodes, draw: () => chartBox?.again() };
}
