"""A diagnosis as a person reads it: what the run is, what is wrong, what to type."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from onecard import units
from onecard.doctor.diagnose import Diagnosis
from onecard.doctor.evidence import noise, place, planned_steps
from onecard.doctor.explain import Explanation
from onecard.findings import SEVERITIES, Finding, Severity
from onecard.plan.ranges import Range

FORMATS = {
    "onecard": "onecard run",
    "nanogpt": "nanoGPT log",
    "llm.c": "llm.c log",
    "modded-nanogpt": "modded-nanogpt log",
    "nanochat": "nanochat log",
    "hf-trainer": "Hugging Face Trainer log",
    "minimal": "log of bare losses",
    "messages": "error messages, no losses",
}
STYLES: dict[Severity, str] = {"info": "cyan", "warn": "yellow", "error": "bold red", "fatal": "bold red"}
PLURALS: dict[Severity, str] = {"fatal": "fatal", "error": "errors", "warn": "warnings", "info": "notes"}
SINGULARS: dict[Severity, str] = {"fatal": "fatal", "error": "error", "warn": "warning", "info": "note"}
Line = tuple[str, str]  # a label and what it says


def print_diagnoses(diagnoses: Sequence[Diagnosis], console: Console) -> None:
    """One run after the other."""
    for number, diagnosis in enumerate(diagnoses):
        if number:
            console.print()
        print_diagnosis(diagnosis, console)


def print_diagnosis(diagnosis: Diagnosis, console: Console) -> None:
    """What the run is, the verdict, and each finding with its evidence."""
    console.print(Text(title(diagnosis), style="bold"), soft_wrap=True)
    for label, words in summary_lines(diagnosis):
        _print_hanging(label, words, console)
    if diagnosis.unknown:
        _print_hanging("not said", unknown(diagnosis), console)
    _print_hanging("verdict", verdict(diagnosis), console, style="bold")
    if diagnosis.healthy:
        for sentence in diagnosis.evidence:
            _print_hanging("", f"- {sentence}", console)
    for finding in diagnosis.findings:
        _print_finding(finding, console)
    if diagnosis.prescription:
        console.print()
        console.print(Text("all of it in one command", style="bold"))
        console.print(Text(f"  {diagnosis.prescription.command}"), soft_wrap=True)
        if expected := diagnosis.prescription.repair.expectation():
            console.print(Text(f"  predicted: {expected}"), soft_wrap=True)


def title(diagnosis: Diagnosis) -> str:
    """`train.log: nanoGPT log, lines 1 to 182`"""
    run = diagnosis.case.run
    return f"{run.source}: {FORMATS[run.format]}"


def unknown(diagnosis: Diagnosis) -> str:
    """`the card (--gpu): rules that need it are silent or less sure`"""
    *most, last = diagnosis.unknown
    them = f"{', '.join(most)} and {last}" if most else last
    return f"{them}: rules that need {'them' if most else 'it'} are silent or less sure"


def verdict(diagnosis: Diagnosis) -> str:
    """`1 error, 2 warnings, 5 notes`, or that the run is healthy."""
    counts = [
        (severity, sum(finding.severity == severity for finding in diagnosis.findings)) for severity in SEVERITIES
    ]
    told = ", ".join(f"{n} {SINGULARS[s] if n == 1 else PLURALS[s]}" for s, n in counts if n)
    if not diagnosis.healthy:
        return told
    if diagnosis.evidence and not diagnosis.judged:
        return "nothing to judge yet: all that is logged is of one step" + (f" ({told})" if told else "")
    if not diagnosis.evidence:
        return "nothing found, and little to go by" + (f" ({told})" if told else "")
    return "healthy: nothing above information" + (f" ({told})" if told else "")


def summary_lines(diagnosis: Diagnosis) -> Iterator[Line]:
    """What is known about the run; every figure says what it is."""
    facts, case = diagnosis.case.facts, diagnosis.case
    model = []
    if facts.params or facts.params_total:
        model.append(f"{units.count(facts.params or facts.params_total or 0)} parameters")
    if facts.tokens_per_step:
        model.append(f"{facts.tokens_per_step:,} tokens per update")
    if model:
        yield "model", ", ".join(model)
    if facts.last_step is not None or not case.run.steps_told:
        yield "so far", _so_far(diagnosis)
    if facts.seconds_per_step or facts.tokens_per_second:
        measured = "measured on the CPU" if case.cardless == "cpu" else "measured"
        yield "speed", ", ".join(_speed(diagnosis)) + f" ({measured})"
    if facts.last_val and facts.last_val.val_loss is not None:
        yield "loss", _loss(diagnosis)
    elif case.steps:
        yield (
            "loss",
            f"{case.steps[-1].loss:.4f} at {place(case, case.steps[-1])} (training; no evaluation is in the log)",
        )
    if diagnosis.forecast:
        yield "forecast", _forecast(diagnosis)


def _so_far(diagnosis: Diagnosis) -> str:
    case, facts, planned = diagnosis.case, diagnosis.case.facts, planned_steps(diagnosis.case)
    if facts.last_step is None:
        told = f"{len(case.steps):,} logged losses, {len(case.evals):,} evaluations; no line tells its step"
    else:
        told = f"step {facts.last_step:,}" + (f" of {planned:,}" if planned else "")
    if facts.tokens is not None:
        told += f", {units.count(facts.tokens)} tokens"
        size = facts.params_total or facts.params
        told += f" ({facts.tokens / size:.3g} per parameter)" if size else ""
    if facts.seconds is not None:
        told += f", {units.duration(facts.seconds)} of training"
    if diagnosis.case.end:
        told += f"; ended: {diagnosis.case.end.reason}"
    elif case.run.cut_off:
        told += "; cut off"
    return told


def _speed(diagnosis: Diagnosis) -> Iterator[str]:
    facts, card = diagnosis.case.facts, diagnosis.case.card
    if facts.tokens_per_second:
        yield f"{facts.tokens_per_second / 1000:,.1f}k tokens/s"
    if facts.seconds_per_step:
        yield f"{facts.seconds_per_step:.3g} s an update"
    if facts.seconds_per_micro_batch:
        yield f"{1000 * facts.seconds_per_micro_batch:,.0f} ms a micro-batch"
    if facts.mfu is not None and card:
        yield f"{facts.mfu:.0%} of {card.name}'s dense peak"
    if facts.evaluation_share is not None:
        yield f"evaluation took {facts.evaluation_share:.1%} of the time"


def _loss(diagnosis: Diagnosis) -> str:
    facts = diagnosis.case.facts
    assert facts.last_val
    last, best = facts.last_val, facts.best_val
    told = f"val {last.val_loss:.4f} at {place(diagnosis.case, last)}"
    if last.train_loss is not None:
        told += f", train {last.train_loss:.4f}"
    if best and best.val_loss is not None and best.step != last.step:
        told += f"; best {best.val_loss:.4f} at {place(diagnosis.case, best)}"
    if facts.evaluation_noise is not None:
        told += f"; one evaluation is good to ± {noise(diagnosis.case):.2g}"
    if facts.sampling_error is not None and facts.sampling_error != facts.evaluation_noise:
        told += f" beside the next, and as a sample of the data to ± {facts.sampling_error:.2g}"
    return told


def _forecast(diagnosis: Diagnosis) -> str:
    forecast = diagnosis.forecast
    assert forecast
    told = []
    if forecast.final_loss:
        told.append(f"ends at val {_range(forecast.final_loss)}")
    if forecast.seconds_to_go:
        low, high = (units.duration(s) for s in (forecast.seconds_to_go.low, forecast.seconds_to_go.high))
        told.append(f"in {units.duration(forecast.seconds_to_go.likely)} ({low} to {high})")
    told.append(f"{forecast.steps_to_go:,} updates to go")
    return ", ".join(told) + f" (predicted: {forecast.basis})"


def _range(quantity: Range) -> str:
    return f"{quantity.likely:.2f} ({quantity.low:.2f} to {quantity.high:.2f})"


LABEL_WIDTH = 10


def _print_hanging(label: str, words: str, console: Console, *, style: str = "") -> None:
    """A label, and beside it words that wrap under themselves."""
    wrapped = textwrap.wrap(words, max(30, console.width - LABEL_WIDTH - 1), break_long_words=False) or [""]
    for number, line in enumerate(wrapped):
        head = label.ljust(LABEL_WIDTH) if number == 0 else " " * LABEL_WIDTH
        console.print(Text.assemble((head, "bold"), (line, style)), soft_wrap=True)


def _print_finding(finding: Finding, console: Console) -> None:
    console.print()
    head = f"{finding.severity}: "
    told = f"{finding.what}  [{finding.rule}]"
    wrapped = textwrap.wrap(told, max(30, console.width - 1), initial_indent=head, break_on_hyphens=False)
    first, *rest = wrapped
    words = (first.removeprefix(head), *rest)
    console.print(Text.assemble((finding.severity, STYLES[finding.severity]), ": ", "\n".join(words)), soft_wrap=True)
    _print_part("why", finding.why, console)
    _print_part("fix", finding.fix, console)
    for line in finding.seen[: 2 if finding.severity == "info" else 4]:
        _print_part("seen", line, console)
    if finding.sure != "high":
        _print_part("sure", {"medium": "medium", "low": "low, a guess"}[finding.sure], console)


def _print_part(label: str, words: str, console: Console) -> None:
    style = {"why": "dim", "fix": "bold", "seen": "dim", "sure": "dim"}[label]
    room = max(30, console.width - 9)
    if label == "seen" and len(words) > 2 * room:
        words = words[: 2 * room - 1] + "…"
    wrapped = textwrap.wrap(words, room, break_long_words=False, break_on_hyphens=False) or [""]
    for number, line in enumerate(wrapped):
        head = f"  {label}: ".ljust(8) if number == 0 else " " * 8
        console.print(Text.assemble((head, style), line), soft_wrap=True)


def print_explanation(explanation: Explanation, console: Console) -> None:
    """A rule in words."""
    console.print(Text.assemble((explanation.name, "bold"), f"  {explanation.summary}"), soft_wrap=True)
    for heading, words in explanation.parts.items():
        console.print()
        console.print(Text(heading, style="bold"))
        for line in textwrap.wrap(words, max(30, console.width - 3), break_long_words=False):
            console.print(Text(f"  {line}"), soft_wrap=True)
