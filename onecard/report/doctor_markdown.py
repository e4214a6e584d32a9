"""A diagnosis as Markdown, for pasting into an issue."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from onecard.doctor.diagnose import Diagnosis
from onecard.findings import Finding
from onecard.report.doctor import fixes, left_out, summary_lines, title, unchecked, unknown, verdict


def diagnoses_markdown(diagnoses: Sequence[Diagnosis]) -> str:
    """One section a run."""
    return "\n\n".join("\n".join(_section(diagnosis)) for diagnosis in diagnoses) + "\n"


def _section(diagnosis: Diagnosis) -> Iterator[str]:
    yield from (f"## {_plain(title(diagnosis))}", "", f"**{verdict(diagnosis)}**")
    summary = list(summary_lines(diagnosis))
    summary += [("not known", unknown(diagnosis))] if diagnosis.unknown else []
    summary += [("unchecked", unchecked(diagnosis))] if diagnosis.unchecked else []
    if summary:
        yield from ("", "| | |", "|---|---|", *(f"| {label} | {_plain(words)} |" for label, words in summary))
    if diagnosis.healthy and diagnosis.evidence:
        yield from ("", *(f"- {_plain(sentence)}" for sentence in diagnosis.evidence))
    for finding in diagnosis.findings:
        yield from _finding(finding)
    if diagnosis.prescription:
        yield from ("", f"### {fixes(diagnosis)}", "", *_fenced("sh", [diagnosis.prescription.command]))
        if expected := diagnosis.prescription.repair.expectation():
            yield from ("", f"predicted: {_plain(expected)}")
        if diagnosis.prescription.left_out:
            yield from ("", f"not in it: {_plain(left_out(diagnosis))}")


def _finding(finding: Finding) -> Iterator[str]:
    yield from ("", f"### {finding.severity}: {_plain(finding.what)} (`{finding.rule}`)", "")
    yield from (f"- why: {_plain(finding.why)}", f"- fix: {_plain(finding.fix)}", f"- sure: {finding.sure}")
    if finding.seen:
        yield from ("", *_fenced("text", finding.seen))


def _fenced(kind: str, lines: Sequence[str]) -> list[str]:
    return [f"```{kind}", *(line.replace("```", "'''").replace("\n", " ") for line in lines), "```"]


def _plain(words: str) -> str:
    """Words that Markdown shows as they are; underscores within words need no care."""
    words = words.replace("\n", " ").replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\`*|\[\]])", r"\\\1", words)
