"""Diagnoses as one page: no network, no script, light and dark, charts drawn inline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from onecard import __version__
from onecard.doctor.diagnose import Diagnosis
from onecard.findings import Finding
from onecard.report.doctor import fixes, left_out, summary_lines, title, unchecked, unknown, verdict
from onecard.report.doctor_chart import loss_chart, throughput_chart

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
    heading = diagnoses[0].case.run.source if len(diagnoses) == 1 else f"{len(diagnoses)} runs"
    body = "\n".join(part for diagnosis in diagnoses for part in _section(diagnosis))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>Diagnosis: {escape(heading)}</title>\n<style>\n{STYLE}\n</style>\n</head>\n<body>\n<main>\n{body}\n"
        f"</main>\n<footer>Made by onecard {__version__}. Figures are measured unless they say predicted.</footer>\n"
        "</body>\n</html>\n"
    )


def _section(diagnosis: Diagnosis) -> Iterator[str]:
    yield '<section class="run">'
    yield f"<h1>{escape(title(diagnosis))}</h1>"
    yield f'<p class="verdict">{escape(verdict(diagnosis))}</p>'
    summary = list(summary_lines(diagnosis))
    summary += [("not known", unknown(diagnosis))] if diagnosis.unknown else []
    summary += [("unchecked", unchecked(diagnosis))] if diagnosis.unchecked else []
    rows = "".join(f"<dt>{escape(label)}</dt><dd>{escape(words)}</dd>" for label, words in summary)
    if rows:
        yield f"<dl>{rows}</dl>"
    if diagnosis.healthy and diagnosis.evidence:
        yield "<ul>" + "".join(f"<li>{escape(sentence)}</li>" for sentence in diagnosis.evidence) + "</ul>"
    if diagnosis.prescription:
        expected, command = diagnosis.prescription.repair.expectation(), diagnosis.prescription.command
        heading = escape(fixes(diagnosis)).capitalize()
        yield f'<h2>{heading}</h2><pre class="command">{escape(command)}</pre>'
        yield f"<p>Predicted: {escape(expected)}</p>" if expected else ""
        yield f"<p>Not in it: {escape(left_out(diagnosis))}</p>" if diagnosis.prescription.left_out else ""
    serious = [finding for finding in diagnosis.findings if finding.severity != "info"]
    notes = [finding for finding in diagnosis.findings if finding.severity == "info"]
    if serious:
        yield "<h2>What to do, most urgent first</h2>"
        yield from map(_article, serious)
    charts = (("Loss", loss_chart(diagnosis.case)), ("Throughput", throughput_chart(diagnosis.case)))
    for caption, svg in charts:
        if svg:
            yield f"<figure><figcaption>{caption}</figcaption>{svg}</figure>"
    if notes:
        yield "<h2>Good to know</h2>"
        yield from map(_article, notes)
    yield "</section>"


def _article(finding: Finding) -> str:
    seen = "\n".join(finding.seen)
    evidence = f"<details><summary>evidence</summary><pre>{escape(seen)}</pre></details>" if seen else ""
    patch = "\n".join(f"{key} = {value!r}" for key, value in finding.patch.items())
    change = f"<pre>{escape(patch)}</pre>" if patch else ""
    return (
        f'<article class="{finding.severity}" id="{finding.rule}"><h3><span class="severity">{finding.severity}</span>'
        f"{escape(finding.what)}</h3><p>{escape(finding.why)}</p><p><strong>Fix:</strong> {escape(finding.fix)}</p>"
        f'{change}{evidence}<p class="rule"><code>{finding.rule}</code> · sure: {finding.sure}</p></article>'
    )
