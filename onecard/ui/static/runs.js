// The list of runs: live, sorted and filtered; two or more of them to compare; a log from elsewhere to drop.

import { dropLogs } from "./drop.js";
import { capital, failed, frame, h, hardware, none, s, segmented, show, state } from "./dom.js";
import { tally } from "./findings.js";
import { ask, follow } from "./live.js";
import { duration, gib, int, loss, missing, percent, rate, short } from "./numbers.js";

frame("runs");
const STATES = ["training", "died", "diverged", "interrupted", "finished"];
const picked = new Set();
let runs = [];
let chosen = "all";
let words = "";
let sort = { key: "recent", down: false };

const cap = (text) => h("span", { class: "cap", text });
const toLook = (run) =>
  STATES.slice(1, 4).includes(run.state) ||
  (run.findings && run.findings.fatal + run.findings.error + run.findings.warn > 0);

function sparkline(run) {
  const points = (run.sparkline ?? []).filter(([, value]) => !missing(value));
  if (points.length < 2) return none("fewer than two evaluations");
  const [width, height] = [92, 30];
  const values = points.map(([, value]) => value);
  // The first descent would flatten everything after it: the picture is cut at the ninth of ten values.
  const top = values.slice().sort((a, b) => a - b)[Math.floor((values.length - 1) * 0.9)];
  const low = Math.min(...values);
  const end = Math.max(run.steps_planned ?? 0, points.at(-1)[0]) || 1;
  const x = (step) => 1 + ((width - 6) * step) / end;
  const y = (value) => 3 + (1 - (value - low) / (top - low || 1)) * (height - 7);
  const d = points.map(([step, value], i) => `${i ? "L" : "M"}${x(step).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  const [step, value] = points.at(-1);
  return s(
    "svg",
    {
      class: "spark",
      viewBox: `0 0 ${width} ${height}`,
      role: "img",
      "aria-label": `validation loss from ${loss(values[0])} to ${loss(value)}`,
    },
    s("svg", { x: 0, y: 0, width, height, class: "clip" }, s("path", { d })),
    s("circle", { class: "now", cx: x(step), cy: y(value), r: 2.4 }),
  );
}

function progress(run) {
  if (missing(run.step)) return none("no update is recorded yet");
  const done = run.progress ?? 0;
  const text = !run.steps_planned
    ? `step ${int(run.step)}`
    : run.step >= run.steps_planned
      ? `${int(run.step)} steps`
      : `${Math.floor(100 * done)} % of ${int(run.steps_planned)}`;
  return h(
    "div",
    { class: "progress" },
    h("div", { class: "track" }, h("i", { style: { width: `${Math.max(1, 100 * done)}%` } })),
    h("p", { class: "cap", text }),
  );
}

function memory(run) {
  const planned = run.predicted_process_bytes;
  if (missing(run.reserved_bytes))
    return missing(planned)
      ? none("no card's memory is recorded and none is planned")
      : [h("span", { text: `${gib(planned, 1)} GiB` }), cap("planned")];
  return [h("span", { text: `${gib(run.reserved_bytes)} GiB` }), missing(planned) ? null : cap(`plan ${gib(planned)}`)];
}

function left(run) {
  if (run.state === "finished")
    return missing(run.seconds) ? none("finished") : [h("span", { text: duration(run.seconds) }), cap("it took")];
  if (missing(run.seconds_to_go))
    return none(run.state === "diverged" ? "it diverged" : "nothing says how long an update takes");
  return [h("span", { text: duration(run.seconds_to_go) }), run.state === "training" ? null : cap("if resumed")];
}

const ago = (run) => {
  const seconds = Math.max(0, Date.now() / 1000 - run.changed);
  return run.state === "training"
    ? `written ${duration(Math.round(seconds))} ago`.replace(".0 s", " s")
    : `${duration(seconds)} ago`.replace(/\.\d s/, " s");
};
const kind = (run) =>
  [
    missing(run.params) ? null : short(run.params),
    run.format === "onecard" || !run.format ? hardware(run) : `${run.format} log`,
  ]
    .filter(Boolean)
    .join(" · ");
const value = (key, word, why) => (run) => (missing(run[key]) ? none(why) : word(run[key]));

// title, key to sort by, what a cell shows, class of the cell
const COLUMNS = [
  [
    "Run",
    "name",
    (run) => [
      h("a", { class: "name", href: `run.html?run=${encodeURIComponent(run.id)}`, text: run.name }),
      h("span", { class: "sub", text: kind(run) }),
    ],
    "main",
  ],
  [
    "State",
    "state",
    (run) =>
      run.state
        ? [h("span", { title: run.state_why ?? null }, state(run.state)), cap(ago(run))]
        : none("the log is not read yet"),
  ],
  ["Loss", null, sparkline],
  ["Progress", "progress", progress],
  [
    "Val loss",
    "val_loss",
    (run) =>
      missing(run.val_loss)
        ? none("no evaluation yet")
        : [
            h("span", { text: loss(run.val_loss) }),
            cap(
              missing(run.val_loss_error) ? `at step ${int(run.val_step ?? 0)}` : `± ${run.val_loss_error.toFixed(3)}`,
            ),
          ],
    "num",
  ],
  ["Tokens/s", "tokens_per_second", value("tokens_per_second", rate, "the log does not say"), "num"],
  ["MFU", "mfu", value("mfu", percent, "needs a card and its peak"), "num"],
  ["Memory", "reserved_bytes", memory, "num"],
  ["Left", "seconds_to_go", left, "num"],
  ["Findings", "findings", (run) => (run.findings ? tally(run.findings) : none("the doctor has not looked yet"))],
];
const severity = (counts) =>
  counts ? ((counts.fatal * 1000 + counts.error) * 1000 + counts.warn) * 1000 + counts.info : null;
const SORTS = {
  name: (run) => run.name.toLowerCase(),
  state: (run) => STATES.indexOf(run.state),
  findings: (run) => severity(run.findings),
};
const BIGGEST_FIRST = ["tokens_per_second", "mfu", "reserved_bytes", "findings", "progress"];

function sorted(rows) {
  if (sort.key === "recent") return rows;
  const of = SORTS[sort.key] ?? ((run) => run[sort.key]);
  const sign = BIGGEST_FIRST.includes(sort.key) !== sort.down ? -1 : 1;
  return rows.slice().sort((a, b) => {
    const [x, y] = [of(a), of(b)];
    if (missing(x) || missing(y)) return Number(missing(x)) - Number(missing(y)); // what is not known comes last
    return x < y ? -sign : x > y ? sign : 0;
  });
}

// ---- the parts that stay while rows change
const verdict = h("h1", { class: "verdict" });
const lede = h("p", { class: "lede" });
const body = h("tbody", {});
const empty = h("p", { class: "absent" });
const compare = h("a", { class: "button primary" });
const filters = h("span", {});
const search = h("input", {
  class: "search",
  type: "search",
  placeholder: "Filter by name",
  "aria-label": "Filter by name",
  oninput: (event) => {
    words = event.target.value.toLowerCase();
    draw();
  },
});
const FILTERS = [
  ["all", "All", () => true],
  ["training", "Training", (run) => run.state === "training"],
  ["finished", "Finished", (run) => run.state === "finished"],
  ["look", "Needs a look", toLook],
];

const heads = COLUMNS.map(([title, key, , style]) =>
  h(
    "th",
    { scope: "col", class: style === "num" ? "num" : null, "data-key": key },
    key
      ? h("button", {
          type: "button",
          text: title,
          onclick: () => {
            sort = { key, down: sort.key === key && !sort.down };
            draw();
          },
        })
      : title,
  ),
);
const table = h(
  "div",
  { class: "runs-box" },
  h(
    "table",
    { class: "runs" },
    h("caption", { class: "sr", text: "Runs, newest first unless sorted" }),
    h(
      "thead",
      {},
      h("tr", {}, h("th", { class: "pick" }, h("span", { class: "sr", text: "Choose to compare" })), heads),
    ),
    body,
  ),
);

function row(run) {
  const choose = (event) => {
    event.target.checked ? picked.add(run.id) : picked.delete(run.id);
    draw();
  };
  const marks = [run.state === "training" ? "on" : "", picked.has(run.id) ? "picked" : ""].join(" ").trim();
  return h(
    "tr",
    { class: marks || null },
    h(
      "td",
      { class: "pick" },
      h("input", {
        type: "checkbox",
        "data-run": run.id,
        "aria-label": `Compare ${run.name}`,
        checked: picked.has(run.id),
        onchange: choose,
      }),
    ),
    COLUMNS.map(([title, , cell, style]) =>
      h("td", { class: style, "data-label": style === "main" ? null : title }, cell(run)),
    ),
  );
}

function count(number, one, many) {
  const words = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"];
  return `${words[number] ?? int(number)} ${number === 1 ? one : many}`;
}

function headline() {
  const training = runs.filter((run) => run.state === "training");
  const look = runs.filter(toLook);
  const parts = [
    training.length ? count(training.length, "run trains", "runs train") : null,
    look.length ? count(look.length, "run needs a look", "runs need a look") : null,
  ].filter(Boolean);
  verdict.textContent = !runs.length
    ? "No runs yet."
    : parts.length
      ? `${capital(parts.join("; "))}.`
      : `${capital(count(runs.length, "run", "runs"))}; nothing needs a look.`;
  const first = training[0] ?? look[0];
  lede.textContent = !runs.length
    ? "Start one with onecard train, or drop a log anywhere on this page."
    : !first
      ? ""
      : first.state === "training"
        ? `${first.name} is ${Math.floor(100 * (first.progress ?? 0))} % through${missing(first.seconds_to_go) ? "" : `, ${duration(first.seconds_to_go)} to go`}.`
        : `${first.name}: ${first.first_finding ?? first.state_why}`.replace(/\.?$/, ".");
}

function draw() {
  headline();
  const [, , test] = FILTERS.find(([key]) => key === chosen);
  const rows = sorted(runs.filter((run) => test(run) && run.name.toLowerCase().includes(words)));
  const focused = document.activeElement?.dataset?.run;
  body.replaceChildren(...rows.map(row));
  if (focused) body.querySelector(`input[data-run="${CSS.escape(focused)}"]`)?.focus();
  table.hidden = !rows.length;
  for (const part of [filters, search, compare]) part.hidden = !runs.length;
  empty.hidden = rows.length > 0 || !runs.length;
  empty.textContent = "No run has this name and state.";
  const ready = picked.size >= 2;
  compare.textContent = ready ? `Compare ${picked.size} runs` : "Choose two runs to compare";
  compare.setAttribute("aria-disabled", String(!ready));
  ready
    ? compare.setAttribute("href", `compare.html?${[...picked].map((id) => `run=${encodeURIComponent(id)}`).join("&")}`)
    : compare.removeAttribute("href");
  for (const head of heads)
    head.dataset.key === sort.key
      ? head.setAttribute("aria-sort", sort.down ? "descending" : "ascending")
      : head.removeAttribute("aria-sort");
  for (const [key, title, one] of FILTERS) {
    const label = filters.querySelector(`input[value="${key}"] + span`);
    if (label) label.textContent = `${title} ${runs.filter(one).length}`;
  }
}

async function refresh() {
  runs = (await ask("/api/runs")).runs;
  const there = new Set(runs.map((run) => run.id));
  for (const id of picked) if (!there.has(id)) picked.delete(id);
  draw();
}

const dropped = h("div", { id: "dropped", tabindex: "-1" });
try {
  filters.append(
    segmented(
      "Show",
      FILTERS.map(([key, title]) => [key, title]),
      chosen,
      (key) => {
        chosen = key;
        draw();
      },
    ),
  );
  await refresh();
  show(
    dropped,
    h(
      "div",
      { class: "list" },
      verdict,
      lede,
      h("div", { class: "filters" }, filters, search, h("span", { class: "push" }, dropLogs(dropped), compare)),
      table,
      empty,
    ),
  );
  draw();
  follow("/api/events", ["hello", "run", "runs"], refresh);
} catch (error) {
  show(failed(error));
}
