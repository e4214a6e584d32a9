"""Errors, warnings and findings as text. Colour is never the only sign of what they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from onecard.errors import OnecardError
from onecard.findings import Finding
from onecard.report.console import print_wrapped


def print_error(error: OnecardError, console: Console) -> None:
    """Print the three lines of an error."""
    what, why, fix = (" ".join(text.splitlines()) for text in (error.what, error.why, error.fix))
    console.print(Text.assemble(("error", "bold red"), f": {what}  [{error.name}]"), soft_wrap=True)
    console.print(Text.assemble(("  why", "dim"), f": {why}"), soft_wrap=True)
    console.print(Text.assemble(("  fix", "bold"), f": {fix}"), soft_wrap=True)


def print_warnings(warnings: Iterable[str], console: Console) -> None:
    for warning in warnings:
        console.print(Text.assemble(("warning", "yellow"), f": {warning}"), soft_wrap=True)


def print_findings(findings: Sequence[Finding], console: Console, *, details: bool = True) -> None:
    """Print each finding in three lines, the most urgent first; without details, those of severity info have no reason,
    and a fix only where it is a setting."""
    for number, finding in enumerate(findings):
        style = {"info": "cyan", "warn": "yellow"}.get(finding.severity, "bold red")
        short = finding.severity == "info" and not details
        if not short or not number:
            console.print()
        told = f"{finding.what}  [{finding.rule}]"
        print_wrapped(told, console, label=f"{finding.severity}: ", label_style=style)
        if not short:
            print_wrapped(finding.why, console, label="  why: ", label_style="dim")
        if not short or finding.patch:
            print_wrapped(finding.fix, console, label="  fix: ", label_style="bold")
