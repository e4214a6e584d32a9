// What the doctor found: what to act on first, notes folded, each with its evidence and a patch to copy.

import { capital, code, h, icon } from "./dom.js";
import { mib } from "./numbers.js";

export const SEVERITIES = { fatal: "fatal", error: "error", warn: "warning", info: "note" };
export const pythonValue = (value) =>
  value === true
    ? "True"
    : value === false
      ? "False"
      : value === null
        ? "None"
        : typeof value === "string"
          ? `'${value.replace(/[\\']/g, "\\$&")}'`
          : String(value);
export const flags = (patch) =>
  Object.entries(patch)
    .map(([key, value]) => `--${key}=${typeof value === "string" ? value : pythonValue(value)}`)
    .join(" ");

const patch = (found, command) =>
  command
    ? code(command, "Command")
    : Object.keys(found.patch ?? {}).length
      ? code(flags(found.patch), "Patch")
      : null;
const seen = (found) =>
  h(
    "ul",
    { class: "seen" },
    found.seen.map((line) => h("li", {}, h("code", { text: line }))),
  );
const lines = (count) => (count === 1 ? "1 line that proves it" : `${count} lines that prove it`);
const reasons = (found) => [
  h("p", { text: `Why: ${found.why}.` }),
  h("p", { text: `Do: ${found.fix}${found.fix.endsWith("`") ? "" : "."}` }),
];

const toActOn = (found, command) =>
  h(
    "article",
    { class: `finding s-${found.severity}` },
    h("p", { class: `tag sev-${found.severity}` }, icon(found.severity), SEVERITIES[found.severity]),
    h(
      "div",
      { class: "body" },
      h("h3", { text: capital(found.what) }),
      reasons(found),
      patch(found, command),
      h(
        "details",
        { "data-key": found.rule },
        h(
          "summary",
          {},
          icon("down"),
          `${lines(found.seen.length)} · ${found.sure === "high" ? "sure" : `${found.sure} confidence`}`,
          h("span", { class: "rule", text: found.rule }),
        ),
        seen(found),
      ),
    ),
  );

const toKnow = (found) =>
  h(
    "details",
    { "data-key": found.rule },
    h(
      "summary",
      {},
      icon("down"),
      h("span", { class: "sev-info" }, icon("info")),
      h("span", { text: capital(found.what) }),
      h("span", { class: "rule", text: found.rule }),
    ),
    h("div", { class: "inner" }, reasons(found), patch(found), seen(found)),
  );

const list = (items) =>
  h(
    "ul",
    { class: "seen" },
    items.map((text) => h("li", { text })),
  );
/** What the doctor had to judge by, in its own words. */
function judgedBy({ verdict, lines, evidence }) {
  return h(
    "details",
    { class: "judged", "data-key": "judged by" },
    h("summary", {}, icon("down"), capital(verdict)),
    evidence.length ? list(evidence) : null,
    h(
      "dl",
      { class: "lines" },
      lines.map(([label, text]) => [h("dt", { text: label }), h("dd", { text })]),
    ),
  );
}

/**
 * A section of findings. `doctor` is the run's entry of `onecard doctor --json`, or null while it has not looked;
 * `words` is what its report says beside that.
 */
export function findings(doctor, words = null) {
  const head = (words) =>
    h("div", { class: "head" }, h("h2", { text: "Findings" }), h("span", { class: "quiet", text: words }));
  if (!doctor) return [head("The doctor has not looked yet; the page will show what it finds.")];
  const act = doctor.findings.filter((found) => found.severity !== "info");
  const know = doctor.findings.filter((found) => found.severity === "info");
  const judged = words ? judgedBy(words) : null;
  if (!act.length && !know.length) return [head("Nothing stands out."), judged];
  const { command, under_onecard: ours } = doctor.prescription ?? {};
  return [
    head(`${act.length} to act on, ${know.length} to know`),
    h(
      "div",
      { class: "findings" },
      act.map((found) => toActOn(found, doctor.commands?.[found.rule])),
      know.length ? h("div", { class: "notes" }, know.map(toKnow)) : null,
    ),
    command
      ? h(
          "div",
          { class: "prescription" },
          h("h3", { text: capital(words?.to_type ?? "what to type first") }),
          code(command, "What to type first"),
          words?.expected ? h("p", { class: "quiet", text: `Predicted: ${words.expected}.` }) : null,
          ours ? h("h3", { text: `Or train with onecard: the same run in ${mib(ours.process_bytes)} MiB` }) : null,
          ours ? code(ours.command, "The same run under onecard") : null,
          words?.left_out ? h("p", { class: "quiet", text: `No command for: ${words.left_out}.` }) : null,
        )
      : null,
    judged,
  ];
}

/** The icons and numbers of a row: {"fatal": 0, "warn": 1, …}. */
export function tally(counts) {
  const some = Object.entries(SEVERITIES).filter(([key]) => counts[key]);
  if (!some.length) return h("span", { class: "none", text: "none" });
  return h(
    "span",
    { class: "tally" },
    some.map(([key, word]) =>
      h(
        "span",
        { class: `sev-${key}`, title: `${counts[key]} ${word}` },
        icon(key),
        h("span", { class: "sr", text: word }),
        String(counts[key]),
      ),
    ),
  );
}
