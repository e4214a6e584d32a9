"""A diagnosis as Markdown, for pasting into an issue."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from onecard import units
from onecard.doctor.diagnose import Diagnosis
from onecard.findings import Finding
from onecard.report.doctor import fixes, left_out, summary_lines, title, unchecked, unknown, verdict
from onecard.report.markdown import code, fenced, plain


def diagnoses_markdown(diagnoses: Sequence[Diagnosis]) -> str:
    """One section a run."""
    return "\n\n".join("\n".join(_section(diagnosis)) for diagnosis in diagnoses) + "\n"


def _section(diagnosis: Diagnosis) -> Iterator[str]:
    yield from (f"## {plain(title(diagnosis))}", "", f"**{plain(verdict(diagnosis))}**")
    summary = list(summary_lines(diagnosis))
    summary += [("not known", unknown(diagnosis))] if diagnosis.unknown else []
    summary += [("unchecked", unchecked(diagnosis))] if diagnosis.unchecked else []
    if summary:
        yield from ("", "| | |", "|---|---|", *(f"| {plain(label)} | {plain(words)} |" for label, words in summary))
    if diagnosis.healthy and diagnosis.evidence:
        yield from ("", *(f"- {plain(sentence)}" for sentence in diagnosis.evidence))
    for finding in diagnosis.findings:
        yield from _finding(finding)
        first = diagnosis.prescription is not None and finding.rule == diagnosis.prescription.rule
        if not first and (command := diagnosis.command_for(finding)):  # the first stands below
            yield from ("", *fenced("sh", [command]))
    if diagnosis.prescription:
        yield from ("", f"### {plain(fixes(diagnosis))}", "", *fenced("sh", [diagnosis.prescription.command]))
        if expected := diagnosis.prescription.repair.expectation():
            yield from ("", f"predicted: {plain(expected)}")
        if alternative := diagnosis.prescription.under_onecard:
            command, process_bytes = alternative
            yield from ("", f"or train with onecard: the same run in {units.mib(process_bytes)}", "")
            yield from fenced("sh", [command])
        if diagnosis.left_out:
            yield from ("", f"no command for: {plain(left_out(diagnosis))}")


def _finding(finding: Finding) -> Iterator[str]:
    yield from ("", f"### {plain(finding.severity)}: {plain(finding.what)} ({code(finding.rule)})", "")
    yield from (f"- why: {plain(finding.why)}", f"- fix: {plain(finding.fix)}", f"- sure: {plain(finding.sure)}")
    if finding.seen:
        yield from ("", *fenced("text", finding.seen))
