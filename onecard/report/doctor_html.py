"""Diagnoses as one page: no network, no script, light and dark, charts drawn inline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onecard import __version__
from onecard.doctor.diagnose import Diagnosis
from onecard.findings import Finding
from onecard.report.doctor import fixes, left_out, summary_lines, title, unchecked, unknown, verdict
from onecard.report.doctor_chart import loss_chart, throughput_chart
from onecard.report.markup import Markup, element, page, together

STYLE = """
:root { color-scheme: light dark; --ink: #1a1d21; --soft: #5b6470; --paper: #fff; --card: #f5f6f8; --edge: #d5d9df;
  --a: #0b5cad; --b: #b3541e; --c: #9aa3ad; --bad: #b3261e; --warn: #7a5200; --note: #2a5d7c; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8eaed; --soft: #a4adb8; --paper: #15181c; --card: #1e2227;
  --edge: #383e46; --a: #7ab8ff; --b: #ffab70; --c: #8a94a0; --bad: #ff8a80; --warn: #f2c14e; --note: #8ecae6; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 52rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.35rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
section.run + section.run { margin-top: 3rem; padding-top: 2rem; border-top: 1px solid var(--edge); }
.verdict { font-weight: 600; margin: 0 0 1rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15rem 1rem; margin: 0 0 1rem; }
dt { color: var(--soft); } dd { margin: 0; }
article { background: var(--card); border: 1px solid var(--edge); border-left-width: .35rem; border-radius: .4rem;
  padding: .7rem 1rem; margin: .8rem 0; }
article.fatal, article.error { border-left-color: var(--bad); } article.warn { border-left-color: var(--warn); }
article.info { border-left-color: var(--note); }
article h3 { font-size: 1rem; margin: 0 0 .4rem; } article p { margin: .25rem 0; }
.severity { text-transform: uppercase; font-size: .75rem; letter-spacing: .06em; margin-right: .5rem; }
.fatal .severity, .error .severity { color: var(--bad); } .warn .severity { color: var(--warn); }
.info .severity { color: var(--note); }
.rule, .sure { color: var(--soft); font-size: .85rem; }
pre { overflow-x: auto; background: var(--paper); border: 1px solid var(--edge); border-radius: .3rem;
  padding: .5rem .7rem; font-size: .8rem; line-height: 1.4; }
pre.command { white-space: pre-wrap; overflow-wrap: anywhere; }
code, pre { font-family: ui-monospace, monospace; }
summary { cursor: pointer; color: var(--soft); font-size: .85rem; }
figure { margin: 1.2rem 0; } figcaption { font-weight: 600; font-size: .95rem; margin-bottom: .2rem; }
svg.chart { width: 100%; height: auto; display: block; } svg text { fill: var(--soft); font-size: 12px; }
svg .name { fill: var(--ink); } .grid { stroke: var(--edge); stroke-width: 1; }
.line { fill: none; stroke-width: 1.8; } .line.a { stroke: var(--a); } .dot { fill: var(--a); }
.line.b { stroke: var(--b); stroke-dasharray: 6 4; }
.line.c { stroke: var(--c); stroke-width: 1; stroke-dasharray: 1 2; }
footer { margin-top: 3rem; color: var(--soft); font-size: .85rem; }
""".strip()


def diagnoses_html(diagnoses: Sequence[Diagnosis]) -> str:
    """The whole page."""
    heading = diagnoses[0].case.run.source if len(diagnoses) == 1 else f"{len(diagnoses):,} runs"
    made = f"Made by onecard {__version__}. Figures are measured unless they say predicted."
    sections = together((_section(diagnosis) for diagnosis in diagnoses), between="\n")
    body = element("body", element("main", sections), element("footer", made))
    return page(title=f"Diagnosis: {heading}", style=STYLE, body=body)


def _section(diagnosis: Diagnosis) -> Markup:
    return element("section", together(_parts(diagnosis), between="\n"), class_="run")


def _parts(diagnosis: Diagnosis) -> Iterator[Markup]:
    yield element("h1", title(diagnosis))
    yield element("p", verdict(diagnosis), class_="verdict")
    summary = list(summary_lines(diagnosis))
    summary += [("not known", unknown(diagnosis))] if diagnosis.unknown else []
    summary += [("unchecked", unchecked(diagnosis))] if diagnosis.unchecked else []
    if summary:
        yield element(
            "dl", *(part for label, words in summary for part in (element("dt", label), element("dd", words)))
        )
    if diagnosis.healthy and diagnosis.evidence:
        yield element("ul", *(element("li", sentence) for sentence in diagnosis.evidence))
    if diagnosis.prescription:
        yield element("h2", fixes(diagnosis).capitalize())
        yield element("pre", diagnosis.prescription.command, class_="command")
        if expected := diagnosis.prescription.repair.expectation():
            yield element("p", f"Predicted: {expected}")
        if diagnosis.prescription.left_out:
            yield element("p", f"Not in it: {left_out(diagnosis)}")
    serious = [finding for finding in diagnosis.findings if finding.severity != "info"]
    notes = [finding for finding in diagnosis.findings if finding.severity == "info"]
    if serious:
        yield element("h2", "What to do, most urgent first")
        yield from map(_article, serious)
    charts = (("Loss", loss_chart(diagnosis.case)), ("Throughput", throughput_chart(diagnosis.case)))
    for caption, chart in charts:
        if chart:
            yield element("figure", element("figcaption", caption), chart)
    if notes:
        yield element("h2", "Good to know")
        yield from map(_article, notes)


def _article(finding: Finding) -> Markup:
    parts = [
        element("h3", element("span", finding.severity, class_="severity"), finding.what),
        element("p", finding.why),
        element("p", element("strong", "Fix:"), f" {finding.fix}"),
    ]
    if finding.patch:
        parts.append(element("pre", "\n".join(f"{key} = {value!r}" for key, value in finding.patch.items())))
    if finding.seen:
        evidence = element("pre", "\n".join(finding.seen))
        parts.append(element("details", element("summary", "evidence"), evidence))
    parts.append(element("p", element("code", finding.rule), f" · sure: {finding.sure}", class_="rule"))
    return element("article", *parts, class_=finding.severity, id=finding.rule)
