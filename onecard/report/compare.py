"""A comparison as a person reads it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onecard import units
from onecard.config.shown import shown
from onecard.doctor.alone import Alone
from onecard.doctor.case import Case
from onecard.doctor.compare import FINAL, AtEqual, Comparison, Passing, Standing
from onecard.doctor.config_diff import UNSAID, known_settings
from onecard.doctor.curves import Reading, steps_per_point
from onecard.doctor.repair import trainer_of
from onecard.report.summary import TRAINER_NAMES
from onecard.report.tables import print_table
from onecard.units import MIB

MEASURES = {
    "val_loss": "validation loss",
    "bits_per_byte": "validation, bits per byte",
    "train_loss": "training loss",
}
NO_DIFFERENCE = "no difference within noise"


def run_letter(run: int) -> str:
    """A, B, … Z, then R26, R27: a run's name in a table."""
    return chr(ord("A") + run) if run < 26 else f"R{run}"


def print_comparison(comparison: Comparison, console: Console) -> None:
    """Who is better by which measure, what changed, and what the plan says of each change alone."""
    for run, case in enumerate(comparison.cases):
        console.print(Text.assemble((run_letter(run), "bold"), f"  {_described(case)}"), soft_wrap=True)
    console.print()
    print_table(_figures(comparison), console)
    for title, rows in (
        ("at equal tokens", comparison.at_equal_tokens),
        ("at equal hours of training", comparison.at_equal_seconds),
    ):
        if rows and comparison.measure:
            console.print()
            console.print(Text(f"{MEASURES[comparison.measure]} {title}", style="bold"))
            print_table(_at_equal_table(rows, len(comparison.cases)), console)
    if comparison.passings:
        console.print()
    for passing in first_passings(comparison):
        console.print(Text(passing_sentence(passing)), soft_wrap=True)
    for caution in comparison.cautions:
        console.print(Text.assemble(("note", "yellow"), f": {caution}"), soft_wrap=True)
    _print_changes(comparison, console)


def _described(case: Case) -> str:
    config = case.resolved.source if case.resolved else None
    origin = "" if not config or config == case.run.source else f", config {config}"
    known = "" if case.resolved else ", config not known"
    return f"{case.run.source}: {case.run.format}{origin}{known}{_unfinished(case)}"


def _unfinished(case: Case) -> str:
    """`, at update 11,000 of 12,000`: its schedule was not over, so its last loss is not the one it was made for.

    Of another program's run the last updates may only not have been printed.
    """
    to_go, last = case.facts.steps_to_go, case.facts.last_step
    if not to_go or last is None or to_go <= _unprinted(case):
        return ""
    why = f" ({case.end.reason})" if case.end else ""
    return f", at update {last:,} of {last + to_go:,}{why}"


def _unprinted(case: Case) -> int:
    """Updates that may have been made after the last that is logged: by the config, or as the log itself goes."""
    if case.run.format == "onecard":
        return 0
    stated = known_settings(case).get("log_interval")
    logged = sorted({record.step for record in case.steps or case.evals})
    return max(stated if isinstance(stated, int) else 0, logged[-1] - logged[-2] if len(logged) > 1 else 0)


Row = tuple[str, Callable[[Case], str | None], str | None]  # label, what a run has, the metric it decides


def _figures(comparison: Comparison) -> Table:
    """What each run is and reached, a column a run, and who is better."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("")
    for run in range(len(comparison.cases)):
        table.add_column(run_letter(run), justify="right")
    table.add_column("better")
    measure = MEASURES.get(comparison.measure or "", "loss")
    cards = [_card(case) for case in comparison.cases]
    if len(set(cards)) > 1:
        table.add_row("card", *(card or "?" for card in cards), "")
    rows: tuple[Row, ...] = (
        ("parameters", lambda case: _count(case.facts.params or case.facts.params_total), None),
        ("tokens per update", lambda case: _whole(case.facts.tokens_per_step), None),
        ("tokens per second", lambda case: _whole(case.facts.tokens_per_second), "tokens_per_second"),
        ("ms per micro-batch", _milliseconds, None),
        ("MFU of the card", _mfu, "mfu"),
        ("memory reserved", lambda case: _mib(memory_bytes(case)), None),
        ("updates", lambda case: _whole(case.facts.last_step), None),
        ("tokens seen", lambda case: _count(case.facts.tokens), None),
        ("training time", lambda case: _duration(case.facts.seconds), None),
    )
    for label, said, metric in rows:
        cells = [said(case) for case in comparison.cases]
        if any(cells):
            table.add_row(label, *(cell or "?" for cell in cells), _better(comparison, metric))
    if any(comparison.predicted_process_bytes):
        table.add_row(*_predicted_memory(comparison), "")
    if comparison.curves and comparison.measure:
        ends = [f"{curve.end.loss:.4f}" for curve in comparison.curves]
        table.add_row(f"final {measure}", *ends, _better(comparison, FINAL[comparison.measure]))
        noises = [f"± {curve.point_noise:.4f}" + ("" if curve.noise_known else "*") for curve in comparison.curves]
        table.add_row(f"  noise of one {_point(comparison)}", *noises, "")
    if comparison.measure == "val_loss" and any(map(_bits, comparison.cases)):
        table.add_row("final bits per byte", *(_bits(case) or "?" for case in comparison.cases), "")
    return table


def _point(comparison: Comparison) -> str:
    """What a point of the curves is."""
    if comparison.measure != "train_loss":
        return "evaluation"
    return "step" if all(steps_per_point(case.steps) == 1 for case in comparison.cases) else "median"


def _predicted_memory(comparison: Comparison) -> Iterator[str]:
    """The label and a cell a run; what is to be said of every figure stands in the label."""
    sizes = comparison.predicted_process_bytes
    notes = [_prediction_notes(case) for case in comparison.cases]
    predicted = [note for note, size in zip(notes, sizes, strict=True) if size is not None]
    shared = [note for note in predicted[0] if all(note in each for each in predicted)]
    yield "memory, predicted" + "".join(shared)
    for size, said in zip(sizes, notes, strict=True):
        yield "?" if size is None else units.mib(size) + "".join(note for note in said if note not in shared)


def _prediction_notes(case: Case) -> Sequence[str]:
    """Whose memory was predicted, and what it lacks where no card is known."""
    whose = f" for {TRAINER_NAMES[trainer_of(case)]}"
    return (whose,) if case.card else (whose, ", without the card's context")


def _better(comparison: Comparison, metric: str | None) -> str:
    standing = comparison.standings.get(metric) if metric else None
    return _standing(standing) if standing else ""


def _standing(standing: Standing) -> str:
    """`A`, or `A, B (over C)` where nothing but noise is between A and B, or that there is nothing else between all."""
    if not standing.beaten:
        return NO_DIFFERENCE
    over = "" if standing.winner is not None else f" (over {_letters(standing.beaten)})"
    return _letters(standing.best) + over


def _letters(runs: Sequence[int]) -> str:
    return ", ".join(map(run_letter, runs))


def _card(case: Case) -> str | None:
    """What it ran on; None where nothing tells."""
    return case.cardless or (case.card.name if case.card else None)


def memory_bytes(case: Case) -> int | None:
    """The most a run of ours reserved, as it measured; other programs do not say."""
    return max((step.reserved_bytes for step in case.steps if step.reserved_bytes is not None), default=None)


def _count(things: float | None) -> str | None:
    return None if things is None else units.count(things)


def _whole(value: float | None) -> str | None:
    return None if value is None else f"{value:,.0f}"


def _mib(size_bytes: int | None) -> str | None:
    return None if size_bytes is None else units.mib(size_bytes)


def _bits(case: Case) -> str | None:
    last = case.facts.last_val
    return f"{last.bits_per_byte:.4f}" if last and last.bits_per_byte is not None else None


def _duration(seconds: float | None) -> str | None:
    return None if seconds is None else units.duration(seconds)


def _milliseconds(case: Case) -> str | None:
    seconds = case.facts.seconds_per_micro_batch
    return None if seconds is None else f"{1000 * seconds:,.1f}"


def _mfu(case: Case) -> str | None:
    return None if case.facts.mfu is None else f"{100 * case.facts.mfu:.1f} %"


def _at_equal_table(rows: Sequence[AtEqual], runs: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("at")
    for run in range(runs):
        table.add_column(run_letter(run), justify="right")
    table.add_column("better")
    for row in rows:
        place = units.count(row.place) if row.axis == "tokens" else units.duration(row.place)
        table.add_row(place, *map(_reading, row.readings), _winner(row))
    return table


def _reading(reading: Reading | None) -> str:
    if reading is None:
        return "?"
    return f"{reading.loss:.4f} ± {reading.noise:.4f}" if math.isfinite(reading.loss) else f"{reading.loss}"


def _winner(row: AtEqual) -> str:
    lead = row.lead if row.winner is not None else None  # None, too, where no other's loss is a number
    return _standing(row.standing) + ("" if lead is None else f" by {lead:.3f}")


def first_passings(comparison: Comparison) -> list[Passing]:
    """Of each run, the one that passes its end first: by the clock, else by the tokens, else by the updates."""
    found: dict[int, Passing] = {}
    for passing in comparison.passings:
        first = found.get(passing.passed)
        if first is None or _sooner(passing, first):
            found[passing.passed] = passing
    return list(found.values())


def _sooner(one: Passing, other: Passing) -> bool:
    if one.seconds is not None and other.seconds is not None:
        return one.seconds < other.seconds
    if one.tokens is not None and other.tokens is not None:
        return one.tokens < other.tokens
    return one.step < other.step


def passing_sentence(passing: Passing) -> str:
    """`B passes A's final loss (3.5228) after 12.4 h ± 0.4 h …; A took 21.7 h …`"""
    passer, passed = run_letter(passing.passer), run_letter(passing.passed)
    after, took = [], []
    if passing.seconds is not None and passing.passed_seconds is not None:
        after.append(f"{units.duration(passing.seconds)} ± {units.duration(passing.spread * passing.seconds)}")
        took.append(units.duration(passing.passed_seconds))
    if passing.tokens is not None and passing.passed_tokens is not None:
        after.append(f"{units.count(passing.tokens)} tokens")
        took.append(f"{units.count(passing.passed_tokens)} tokens")
    after.append(f"update {passing.step:,}")
    said = f"{passer} passes {passed}'s final loss ({passing.loss:.4f}) after {', '.join(after)}"
    return said + (f"; {passed} took {', '.join(took)}" if took else "")


def _print_changes(comparison: Comparison, console: Console) -> None:
    if not comparison.config_diff:
        known = sum(case.resolved is not None for case in comparison.cases)
        said = (
            "no setting differs" if known == len(comparison.cases) else "what changed is not known without the configs"
        )
        console.print()
        console.print(said, markup=False)
        return
    console.print()
    console.print(Text("what changed", style="bold"))
    print_table(_changes_table(comparison), console)
    _print_together(comparison, console)
    for run, effects in comparison.alone.items():
        if effects:
            console.print()
            title = f"predicted, not measured: what each change from A to {run_letter(run)} would do to A by itself"
            console.print(Text(title, style="bold"))
            print_table(_alone_table(effects), console)
    if any(effect.needs_card for effects in comparison.alone.values() for effect in effects):
        console.print("?: a plan needs a card: --gpu NAME", markup=False, soft_wrap=True)


def _changes_table(comparison: Comparison) -> Table:
    """A row a key, those without effect last, each with the reason."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("key", min_width=max(map(len, comparison.config_diff)))
    for run in range(len(comparison.cases)):
        table.add_column(run_letter(run), overflow="fold")
    table.add_column("")
    for key, values in sorted(comparison.config_diff.items(), key=lambda row: row[0] in comparison.idle):
        idle = comparison.idle.get(key)
        table.add_row(Text(key), *(Text(_value(key, value)) for value in values), f"({idle})" if idle else "")
    return table


def _value(key: str, value: object) -> str:
    return repr(value) if value is UNSAID else shown(key, value)


def _print_together(comparison: Comparison, console: Console) -> None:
    """Which runs differ from the first known in several settings, so that a measurement credits no single one."""
    first = run_letter(comparison.first_known)
    for run in range(len(comparison.cases)):
        changed = len(comparison.changed_from_first(run))
        if changed > 1:
            pair = "These" if len(comparison.cases) == 2 else f"From {first} to {run_letter(run)},"
            said = f"{pair} {changed} settings changed together, so the measurement credits no single one."
            console.print(said, markup=False, soft_wrap=True)


def _alone_table(effects: Sequence[Alone]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("change", "tokens/s", "memory", "final loss"):
        table.add_column(heading, justify="left" if heading == "change" else "right", overflow="fold")
    for effect in effects:
        ratio, loss = effect.tokens_per_second_ratio, effect.final_loss_difference
        changes = effect.changes.items()
        table.add_row(
            Text(", ".join(f"{key} {shown(key, before)} → {shown(key, after)}" for key, (before, after) in changes)),
            "?" if ratio is None else "same" if abs(ratio - 1) < 0.005 else f"{100 * (ratio - 1):+.0f} %",
            _more_memory(effect),
            "the law is silent" if loss is None else "same" if abs(loss) < 0.0005 else f"{loss:+.3f}",
        )
    return table


def _more_memory(effect: Alone) -> str:
    size = effect.process_bytes_difference
    if size is None:
        return "does not fit" if effect.fits is False else "?"
    more = "same" if abs(size) < MIB else f"{size / MIB:+,.0f} MiB"
    return f"{more}: does not fit" if effect.fits is False else more
