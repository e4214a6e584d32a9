"""A diagnosis as a person reads it: the verdict, what to type, what the run is, and the findings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.text import Text

from onecard import units
from onecard.config.command import flags_of
from onecard.doctor.case import Case
from onecard.doctor.diagnose import Diagnosis
from onecard.doctor.evidence import NANOGPT_LIKE, epochs, noise, per_parameter, place, planned_steps, planned_tokens
from onecard.doctor.explain import Explanation
from onecard.doctor.needs import OPTIONS
from onecard.doctor.predict import ENDED, REACHED
from onecard.findings import SEVERITIES, Finding, Severity
from onecard.report.console import print_wrapped, wrapped

FORMATS = {
    "onecard": "onecard run",
    "nanogpt": "nanoGPT log",
    "llm.c": "llm.c log",
    "modded-nanogpt": "modded-nanogpt log",
    "nanochat": "nanochat log",
    "hf-trainer": "Hugging Face Trainer log",
    "litgpt": "LitGPT log",
    "minimal": "log of bare losses",
    "messages": "error messages, no losses",
}
STYLES: dict[Severity, str] = {"info": "cyan", "warn": "yellow", "error": "bold red", "fatal": "bold red"}
PLURALS: dict[Severity, str] = {"fatal": "fatal", "error": "errors", "warn": "warnings", "info": "notes"}
SINGULARS: dict[Severity, str] = {"fatal": "fatal", "error": "error", "warn": "warning", "info": "note"}
MOST_SHOWN = 50  # runs of one answer; --details shows all
Line = tuple[str, str]  # a label and what it says


def print_diagnoses(diagnoses: Sequence[Diagnosis], console: Console, *, details: bool = False) -> None:
    """One run after the other, the verdict and what to type first; with `details` all of it."""
    if len(diagnoses) > 1:
        _print_worst(diagnoses, console)
    shown = diagnoses if details else _most_urgent(diagnoses)
    for number, diagnosis in enumerate(shown):
        if number:
            console.print()
        print_diagnosis(diagnosis, console, details=details)
    if left := len(diagnoses) - len(shown):
        console.print()
        print_wrapped(f"{left:,} more runs are not shown; none of them is worse than those above", console)
    if not details:
        console.print()
        print_wrapped(MORE, console, style="dim")


def _print_worst(diagnoses: Sequence[Diagnosis], console: Console) -> None:
    """Of several runs, how many there are and the most urgent finding of all."""
    urgent = [(number, each.findings[0]) for number, each in enumerate(diagnoses, 1) if each.findings]
    number, worst = min(urgent, key=lambda found: SEVERITIES.index(found[1].severity), default=(0, None))
    said = "" if worst is None or worst.severity == "info" else f"; most urgent, in run {number}: {worst.what}"
    print_wrapped(f"{len(diagnoses)} runs{said}", console, style="bold")
    console.print()


def _most_urgent(diagnoses: Sequence[Diagnosis]) -> list[Diagnosis]:
    """At most MOST_SHOWN diagnoses, the worst ones, in the order of the runs."""

    def urgency(number: int) -> int:
        severities = [SEVERITIES.index(finding.severity) for finding in diagnoses[number].findings]
        return min(severities, default=len(SEVERITIES))

    worst = sorted(range(len(diagnoses)), key=urgency)[:MOST_SHOWN]
    return [diagnoses[number] for number in sorted(worst)]


def print_diagnosis(diagnosis: Diagnosis, console: Console, *, details: bool = False) -> None:
    """The verdict, the one command, what the run is, and each finding."""
    _print_verdict(diagnosis, console)
    _print_what_to_type(diagnosis, console)
    summary = [*summary_lines(diagnosis, brief=not details)]
    if details and diagnosis.unknown:
        summary.append(("not known", unknown(diagnosis)))
    if not diagnosis.healthy and diagnosis.unchecked:
        summary.append(("unchecked", unchecked(diagnosis)))
    if summary:
        console.print()
    for label, words in summary:
        _print_hanging(label, words, console)
    if details and diagnosis.healthy:
        for sentence in diagnosis.evidence:
            _print_hanging("", f"- {sentence}", console)
    shown = diagnosis.prescription.command if diagnosis.prescription else None
    for finding in diagnosis.findings:
        if details or finding.severity != "info":
            command = diagnosis.command_for(finding)
            _print_told(finding, command, console, details=details, above=command is not None and command == shown)
            shown = command or shown
    notes = [finding for finding in diagnosis.findings if finding.severity == "info"]
    if notes and not details:
        console.print()
        console.print(Text("notes", style=STYLES["info"]))
        for finding in notes:
            _print_note(finding, console)


def _print_verdict(diagnosis: Diagnosis, console: Console) -> None:
    """The first lines: what run it is, and what is wrong with it."""
    print_wrapped(f"{title(diagnosis)}, {verdict(diagnosis)}", console, style="bold")
    if not diagnosis.healthy:
        print_wrapped(diagnosis.findings[0].what, console, label="  ")


def _print_what_to_type(diagnosis: Diagnosis, console: Console) -> None:
    """The command for the most urgent finding that settings cure; where they do not cure the first one, its fix too."""
    made = diagnosis.prescription
    if not diagnosis.healthy and (made is None or made.rule != diagnosis.findings[0].rule):
        print_wrapped(f"fix: {diagnosis.findings[0].fix}", console, label="  ")
    if made is None:
        return
    print_wrapped(f"{fixes(diagnosis)}:", console, style="bold")
    _print_command(made.command, console)
    unplanned = "" if made.repair.card or made.repair.no_more_than_before else "memory not checked"
    unplanned += "" if made.repair.card else f"{': ' if unplanned else ''}--gpu NAME makes it fit your card"
    expected = made.repair.expectation()
    if told := "; ".join(filter(None, (f"predicted: {expected}" if expected else "", unplanned))):
        print_wrapped(told, console, label="  ")
    if made.under_onecard:
        command, process_bytes = made.under_onecard
        print_wrapped(f"or train with onecard: the same run in {units.mib(process_bytes)}:", console, style="bold")
        _print_command(command, console)
    if left_out(diagnosis):
        print_wrapped(f"no command for: {left_out(diagnosis)}", console, label="  ")


def _print_command(command: str, console: Console, *, indent: int = 2) -> None:
    """A command in one piece, to copy."""
    console.print(Text(f"{' ' * indent}{command}"), soft_wrap=True)


def fixes(diagnosis: Diagnosis) -> str:
    """`what to type first, for loss-nan`; and where no checkpoint can be continued."""
    made = diagnosis.prescription
    first = " first" if len(diagnosis.prescriptions) > 1 else ""
    rule = f", for {made.rule}" if made else ""
    new = " (a new run: a checkpoint cannot change its shape)" if made and made.repair.new_run else ""
    return f"what to type{first}{rule}{new}"


def left_out(diagnosis: Diagnosis) -> str:
    """`val-set-tiny (no setting fixes it)`: findings for which there is no command."""
    return "; ".join(f"{rule} ({why})" for rule, why in diagnosis.left_out.items())


def title(diagnosis: Diagnosis) -> str:
    """`train.log: nanoGPT log`"""
    run = diagnosis.case.run
    return f"{run.source}: {FORMATS[run.format]}"


def unknown(diagnosis: Diagnosis) -> str:
    """`the card (--gpu): checks that need it could not look, or are less sure`"""
    *most, last = diagnosis.unknown
    them = f"{', '.join(most)} and {last}" if most else last
    return f"{them}: checks that need {'them' if most else 'it'} could not look, or are less sure"


def unchecked(diagnosis: Diagnosis) -> str:
    """`24 checks need the config: --config FILE; 2 need the card: --gpu NAME`"""
    counts = Counter(diagnosis.unchecked.values())
    told: list[str] = []
    for about, option in OPTIONS.items():
        if number := counts[about]:
            checks = (" check" if number == 1 else " checks") if not told else ""
            need = "needs" if number == 1 else "need"
            readable = about != "config" or diagnosis.case.run.format in NANOGPT_LIKE
            told.append(
                f"{number}{checks} {need} the {about}: {option}"
                if readable
                else f"{number}{checks} {need} settings that such a log does not have"
            )
    return "; ".join(told)


def missing_signs(diagnosis: Diagnosis) -> str:
    """`not looked at, because too little is logged: speed, gradient norm`; empty where all five were looked at."""
    signs = ", ".join(diagnosis.not_looked_at)
    return f"not looked at, because too little of it is logged: {signs}" if signs else ""


def verdict(diagnosis: Diagnosis) -> str:
    """`1 error, 2 warnings, 5 notes`; that nothing is wrong, and what could not be checked; or that it is healthy."""
    counts = [
        (severity, sum(finding.severity == severity for finding in diagnosis.findings)) for severity in SEVERITIES
    ]
    told = ", ".join(f"{n} {SINGULARS[s] if n == 1 else PLURALS[s]}" for s, n in counts if n)
    notes = f" ({told})" if told else ""
    if not diagnosis.healthy:
        return told
    if diagnosis.evidence and not diagnosis.judged:
        return f"nothing to judge yet: only one step is logged{notes}"
    if not diagnosis.evidence:
        return f"nothing that a rule knows: is it the log of a run?{notes}"
    if diagnosis.unchecked or diagnosis.not_looked_at:
        where = "run" if diagnosis.case.run.format == "onecard" else "log"
        told_first = f"nothing wrong in the {where}{notes}"
        return "; ".join(filter(None, (told_first, unchecked(diagnosis), missing_signs(diagnosis))))
    return f"healthy: every check could look, and nothing is wrong{notes}"


def summary_lines(diagnosis: Diagnosis, *, brief: bool = False) -> Iterator[Line]:
    """What is known about the run; every figure says what it is. A brief one has the speed in one line."""
    facts, case = diagnosis.case.facts, diagnosis.case
    if case.config_note or case.resolved:
        yield "config", case.config_note or str(case.resolved.source if case.resolved else "")
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
        yield "speed", ", ".join(_speed(diagnosis, brief=brief)) + f" ({measured})"
    if facts.last_val and facts.last_val.val_loss is not None:
        yield "loss", _loss(diagnosis)
    elif case.steps:
        yield (
            "loss",
            f"{case.steps[-1].loss:.4f} at {place(case, case.steps[-1])} (training; the log has no evaluation)",
        )
    if diagnosis.forecast:
        yield "forecast", _forecast(diagnosis)
    elif (case.steps or case.evals) and diagnosis.why_no_forecast not in (ENDED, REACHED):
        yield "forecast", f"none: {diagnosis.why_no_forecast}"
    if case.resolved or case.data.train_tokens or case.data.val_tokens:
        yield "data", _data(case)


def _so_far(diagnosis: Diagnosis) -> str:
    case, facts, planned = diagnosis.case, diagnosis.case.facts, planned_steps(diagnosis.case)
    if facts.last_step is None:
        told = f"{len(case.steps):,} logged losses, {len(case.evals):,} evaluations; no line says its step"
    else:
        told = f"step {facts.last_step:,}" + (f" of {planned:,}" if planned else "")
    if facts.tokens is not None:
        told += f", {units.count(facts.tokens)} tokens"
        size, whole = facts.params_total or facts.params, planned_tokens(case) or facts.tokens
        told += f" ({per_parameter(size, tokens=facts.tokens, planned=whole, unit='per parameter')})" if size else ""
    if facts.seconds is not None:
        told += f", {units.duration(facts.seconds)} of training"
    if diagnosis.case.end:
        told += f"; ended: {diagnosis.case.end.reason}"
    elif case.run.cut_off:
        told += "; cut off"
    return told


def _data(case: Case) -> str:
    """Tokens in each split, how often they are read, and where that is from; or what is assumed."""
    data, told = case.data, []
    if data.train_tokens is not None:
        read = epochs(case, case.facts.tokens)
        told.append(
            f"{units.count(data.train_tokens)} training tokens" + (f" ({_epochs(read)} epochs read)" if read else "")
        )
    if data.val_tokens is not None:
        told.append(f"{units.count(data.val_tokens)} validation tokens")
    if told:
        return ", ".join(told) + (f", in {data.source}" if data.source else "")
    name = case.resolved.config.dataset if case.resolved else ""
    return f"{name!r} is not here: size not known, taken to be read less than once (--data DIR)"


def _epochs(read: float) -> str:
    return f"{read:,.0f}" if read >= 10 else f"{read:.2g}"


def _speed(diagnosis: Diagnosis, *, brief: bool) -> Iterator[str]:
    facts, card = diagnosis.case.facts, diagnosis.case.card
    if facts.tokens_per_second:
        several = facts.cards is not None and facts.cards > 1
        yield f"{facts.tokens_per_second / 1000:,.1f}k tokens/s" + (
            f" on {facts.cards} cards ({facts.tokens_per_second / 1000 / (facts.cards or 1):,.1f}k each)"
            if several
            else ""
        )
    if facts.seconds_per_step:
        yield f"{facts.seconds_per_step:.3g} s an update"
    if facts.seconds_per_micro_batch and not brief:
        yield f"{1000 * facts.seconds_per_micro_batch:,.0f} ms a micro-batch"
    if facts.mfu is not None and card:
        yield f"{facts.mfu:.0%} of {card.name}'s dense peak" + (" each" if (facts.cards or 1) > 1 else "")
    if facts.evaluation_share is not None and not (brief and facts.evaluation_share < WORTH_SAYING):
        yield f"evaluation took {facts.evaluation_share:.1%} of the time"


def _loss(diagnosis: Diagnosis) -> str:
    facts = diagnosis.case.facts
    assert facts.last_val
    last, best = facts.last_val, facts.best_val
    told = f"val {last.val_loss:.4f} at {place(diagnosis.case, last)}"
    if last.step == 0 and diagnosis.case.steps and (newest := diagnosis.case.steps[-1]).step:
        told = f"{newest.loss:.4f} at {place(diagnosis.case, newest)} (training); before the first update {told}"
    if last.train_loss is not None:
        told += f", train {last.train_loss:.4f}"
    if best and best.val_loss is not None and best.step != last.step:
        told += f"; best {best.val_loss:.4f} at {place(diagnosis.case, best)}"
    if facts.evaluation_noise is not None:
        told += f"; one evaluation is good to ± {noise(diagnosis.case):.2g}"
    if facts.sampling_error is not None and facts.sampling_error != facts.evaluation_noise:
        told += f" against the next, and to ± {facts.sampling_error:.2g} as a sample of the data"
    return told


def _forecast(diagnosis: Diagnosis) -> str:
    forecast = diagnosis.forecast
    assert forecast
    told = []
    if not forecast.is_of_the_end:
        more = units.duration(forecast.seconds_to_go.likely) if forecast.seconds_to_go else ""
        updates = f"{forecast.steps_to_go:,} more updates"
        told.append(f"after {more} more at this pace ({updates})" if more else f"after {updates}")
        told.append(f"val {forecast.final_loss}" if forecast.final_loss else "")
        told.append("nothing says where the run ends")
        basis = f" (predicted: {forecast.basis})" if forecast.final_loss else f"; {forecast.basis}"
        return ", ".join(filter(None, told)) + basis
    if forecast.final_loss:
        told.append(f"ends at val {forecast.final_loss}")
    if forecast.seconds_to_go:
        low, high = (units.duration(s) for s in (forecast.seconds_to_go.low, forecast.seconds_to_go.high))
        told.append(f"in {units.duration(forecast.seconds_to_go.likely)} ({low} to {high})")
    where = f", at step {forecast.step:,}, where the learning rate ends" if forecast.end == "by the rate" else ""
    told.append(f"{forecast.steps_to_go:,} updates to go{where}")
    return ", ".join(told) + (f" (predicted: {forecast.basis})" if forecast.final_loss else f"; {forecast.basis}")


LABEL_WIDTH = 10
LONGEST_QUOTE = 400  # characters of a line of a log: an out-of-memory message is shown whole
WORTH_SAYING = 0.05  # of the time, spent on evaluation
MORE = "more: add --details (the long text) or --html report.html (everything, with charts)"


def _quoted(line: str) -> str:
    """A line of a log as evidence; of one that is very long the beginning."""
    return line if len(line) <= LONGEST_QUOTE else f"{line[: LONGEST_QUOTE - 2]} …"


def _print_told(finding: Finding, command: str | None, console: Console, *, details: bool, above: bool) -> None:
    """A finding: what, why and the fix, its command unless it stands `above`, and the lines of evidence.

    Without details only the first of those, and no settings that stand above.
    """
    console.print()
    guess = " (a guess)" if finding.sure == "low" and not details else ""
    first, *rest = wrapped(f"{finding.severity}{guess}: {finding.what}  [{finding.rule}]", console.width - 3)
    console.print(
        Text.assemble((finding.severity, STYLES[finding.severity]), first.removeprefix(finding.severity)),
        soft_wrap=True,
    )
    for line in rest:
        console.print(Text(f"  {line}"), soft_wrap=True)
    _print_part("why", finding.why, console)
    fix = finding.fix if details else finding.fix.partition("; predicted: ")[0]
    if above and not details and len(finding.patch) > 1:
        fix = fix.replace(flags_of(finding.patch), "the command above")
    _print_part("fix", fix, console)
    if command and not above:
        console.print(Text.assemble(("  type: ", "bold"), command), soft_wrap=True)
    seen = finding.seen if details else finding.seen[:1]
    for line in seen:
        left = len(finding.seen) - len(seen)
        _print_part("seen", _quoted(line) + (f"  (+{left} more)" if left else ""), console)
    if details and finding.sure != "high":
        _print_part("sure", {"medium": "medium", "low": "low, a guess"}[finding.sure], console)


def _print_note(finding: Finding, console: Console) -> None:
    """A finding that is only information: what, and its rule."""
    for number, line in enumerate(wrapped(f"{finding.what}  [{finding.rule}]", console.width - 4)):
        console.print(Text(f"{'   ' if number else '  '}{line}"), soft_wrap=True)


def _print_hanging(label: str, words: str, console: Console) -> None:
    print_wrapped(words, console, label=label.ljust(LABEL_WIDTH), label_style="bold")


def _print_part(label: str, words: str, console: Console) -> None:
    print_wrapped(words, console, label=f"  {label}: ".ljust(8), label_style="bold" if label == "fix" else "dim")


def print_explanation(explanation: Explanation, console: Console) -> None:
    """A rule in words."""
    print_wrapped(explanation.summary, console, label=f"{explanation.name}  ", label_style="bold")
    for heading, words in explanation.parts.items():
        console.print()
        console.print(Text(heading, style="bold"))
        for line in wrapped(words, console.width - 3):
            console.print(Text(f"  {line}"), soft_wrap=True)
