"""A comparison as a person reads it: the verdict, the figures, and with details everything else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onecard import units
from onecard.config.recipes import keys_between, recipe_values
from onecard.config.schema import SHAPE_KEYS
from onecard.config.shown import same_value, shown
from onecard.doctor.case import Case
from onecard.doctor.compare import FINAL, SAME_TEXT, TASK, AtEqual, Comparison, Passing
from onecard.doctor.config_diff import UNSAID, known_settings
from onecard.doctor.curves import Reading, steps_per_point
from onecard.doctor.repair import trainer_of
from onecard.doctor.single_changes import NOT_COVERED, SingleChange
from onecard.report.compare_verdict import verdict_lines
from onecard.report.compare_words import (
    MEASURES,
    change_words,
    end_forecast,
    progress_words,
    run_letter,
    standing_words,
)
from onecard.report.console import print_wrapped
from onecard.report.scores import with_error
from onecard.report.summary import TRAINER_NAMES
from onecard.report.tables import print_table
from onecard.units import MIB
from onecard.visible import visible

LABEL_WIDTH = 7
FIRST_NAMED = ("recipe", "optimizer")  # of what differs, before the shape and the rest
COMMANDS = ("next",)  # lines of the verdict that are pasted: never broken


def print_comparison(comparison: Comparison, console: Console, *, details: bool = False) -> None:
    """The verdict, the figures, the losses at equal tokens and hours; with `details` also where everything comes from,
    notes in full, and what the plan says about each change alone."""
    for label, words in verdict_lines(comparison):
        _print_hanging(label, words, console)
    console.print()
    for run in range(len(comparison.cases)):
        described = _described(comparison, run, details=details)
        print_wrapped(described, console, label=f"{run_letter(run)}  ", label_style="bold")
    print_table(_figures(comparison, details=details), console)
    for title, rows in (
        ("at equal tokens", comparison.at_equal_tokens),
        ("at equal hours", comparison.at_equal_seconds),
    ):
        if rows and comparison.measure:
            console.print()
            print_table(
                _at_equal_table(f"{MEASURES[comparison.measure]} {title}", rows, len(comparison.cases)), console
            )
    passings = first_passings(comparison)
    if not details:  # a run that goes on has no end to pass
        passings = [passing for passing in passings if comparison.finished[passing.passed] is not False][:1]
    if passings:
        console.print()
    for passing in passings:
        print_wrapped(passing_sentence(passing), console)
    if details:
        for note in (*comparison.cautions, *_forecast_notes(comparison)):
            print_wrapped(note, console, label="note: ", label_style="yellow")
        _print_changes(comparison, console)
    else:
        _print_in_brief(comparison, console)


def _print_hanging(label: str, words: str, console: Console) -> None:
    """A label, and beside it words that wrap under themselves; a command to paste is never broken."""
    head = label.ljust(LABEL_WIDTH)
    if label in COMMANDS:
        console.print(Text.assemble((head, "bold"), words), soft_wrap=True)
    else:
        print_wrapped(words, console, label=head, label_style="bold")


def _print_in_brief(comparison: Comparison, console: Console) -> None:
    """Notes and changes, and how to see the rest."""
    if notes := [brief for brief in comparison.brief_cautions if brief != comparison.why_not_comparable]:
        _print_hanging("note", "; ".join(notes), console)
    if changed := _changes_in_brief(comparison):
        _print_hanging("differ", changed, console)
    _print_hanging("more", "--details: noise, notes, and each change alone; --plot losses.html; --json", console)


def _forecast_notes(comparison: Comparison) -> Iterator[str]:
    """What the predicted end of each run that has not finished rests on, or why there is none."""
    for run, forecast in enumerate(comparison.forecasts):
        if forecast and comparison.finished[run] is False:
            yield f"the predicted end of {run_letter(run)}: {forecast.basis}"


def _changes_in_brief(comparison: Comparison) -> str:
    """`recipe nanogpt → fast, n_embd 384 → 768, dropout 0.1 → 0.0`: the settings with an effect, what says most about
    a run first; not those that its recipe alone brought."""
    keys = [key for key in comparison.together if not _brought_by_recipe(comparison, key)]
    keys.sort(key=lambda key: (key not in FIRST_NAMED, key not in SHAPE_KEYS))
    rows = [(key, comparison.config_diff[key]) for key in keys]
    return ", ".join(f"{key} {' → '.join(_value(key, value) for value in values)}" for key, values in rows)


def _brought_by_recipe(comparison: Comparison, key: str) -> bool:
    """Whether a key differs because the recipes do: no run has another value than its recipe, or than another run of
    it. nanoGPT's recipe is what its files make of it."""
    recipes = [str(recipe) for recipe in dict.fromkeys(comparison.config_diff.get("recipe", ()))]
    if len(recipes) != 2 or key not in keys_between(recipes[0], recipes[1]):
        return False
    first: dict[str, object] = {}  # by recipe, the value of its first run
    for case, value in zip(comparison.cases, comparison.config_diff[key], strict=True):
        settings = known_settings(case)
        recipe = str(settings.get("recipe"))
        brought = recipe_values(recipe, settings).get(key, value)
        if not same_value(value, brought) or not same_value(value, first.setdefault(recipe, value)):
            return False
    return True


def _described(comparison: Comparison, run: int, *, details: bool) -> str:
    case = comparison.cases[run]
    progress = progress_words(comparison, run)
    at = f", at {progress}" if progress else ""
    known = "" if case.resolved else ", config not known"
    if not details:
        return f"{case.run.source}{known}{at}"
    config = case.resolved.source if case.resolved else None
    origin = "" if not config or config == case.run.source else f", config {config}"
    return f"{case.run.source}: {case.run.format}{origin}{known}{at}"


Row = tuple[str, Callable[[Case], str | None], str | None]  # label, what a run has, the metric it decides


def _figures(comparison: Comparison, *, details: bool) -> Table:
    """What each run is and reached, a column per run, and which is better."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("")
    for run in range(len(comparison.cases)):
        table.add_column(run_letter(run), justify="right")
    table.add_column("better")
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
        label, *ends = _last_losses(comparison)
        table.add_row(label, *ends, _better(comparison, FINAL[comparison.measure]))
        forecasts = [end_forecast(comparison, run) for run in range(len(comparison.cases))]
        if any(forecasts):
            table.add_row("  its predicted end", *(str(end) if end else "" for end in forecasts), "")
    if text := comparison.same_text:
        scores = [with_error(score.bits_per_byte, score.error) for score in text.scores]
        table.add_row(f"bits per byte of {text.name}", *scores, _better(comparison, SAME_TEXT))
    for task in comparison.same_tasks:
        right = [with_error(score.value, score.error) for score in task.scores]
        name = Text(visible(f"{task.task}, {task.metric}"))
        table.add_row(name, *right, _better(comparison, TASK + task.task))
    if details and comparison.curves:
        noises = [f"± {curve.point_noise:.4f}" + ("" if curve.noise_known else "*") for curve in comparison.curves]
        table.add_row(f"  noise of one {_point(comparison)}", *noises, "")
    if details and comparison.measure == "val_loss" and any(map(_bits, comparison.cases)):
        table.add_row("last bits per byte", *(_bits(case) or "?" for case in comparison.cases), "")
    return table


def _last_losses(comparison: Comparison) -> Iterator[str]:
    """The label and a cell per run: final losses, latest ones of runs that have not finished, or both, marked."""
    words = ["final" if done else "latest" for done in comparison.finished]
    measure = MEASURES[comparison.measure or "val_loss"]
    shared = len(set(words)) == 1
    yield f"{words[0]} {measure}" if shared else measure
    for word, curve in zip(words, comparison.curves, strict=True):
        yield f"{curve.end.loss:.4f}" + ("" if shared else f" {word}")


def _point(comparison: Comparison) -> str:
    """What one point of the curves is."""
    if comparison.measure != "train_loss":
        return "evaluation"
    return "step" if all(steps_per_point(case.steps) == 1 for case in comparison.cases) else "median"


def _predicted_memory(comparison: Comparison) -> Iterator[str]:
    """The label and a cell per run; what holds for all figures is in the label."""
    sizes = comparison.predicted_process_bytes
    notes = [_prediction_notes(case) for case in comparison.cases]
    predicted = [note for note, size in zip(notes, sizes, strict=True) if size is not None]
    shared = [note for note in predicted[0] if all(note in each for each in predicted)]
    yield "memory, predicted" + "".join(shared)
    for size, said in zip(sizes, notes, strict=True):
        yield "?" if size is None else units.mib(size) + "".join(note for note in said if note not in shared)


def _prediction_notes(case: Case) -> Sequence[str]:
    """For which trainer, and what is missing where no card is known."""
    whose = f" for {TRAINER_NAMES[trainer_of(case)]}"
    return (whose,) if case.card else (whose, ", without the card's context")


def _better(comparison: Comparison, metric: str | None) -> str:
    standing = comparison.standings.get(metric) if metric else None
    return standing_words(standing) if standing else ""


def _card(case: Case) -> str | None:
    """What it ran on; None where it is not known."""
    return case.cardless or (case.card.name if case.card else None)


def memory_bytes(case: Case) -> int | None:
    """The most a onecard run reserved, as measured; None for other programs."""
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


def _at_equal_table(title: str, rows: Sequence[AtEqual], runs: int) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column(title)
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
    lead = row.lead if row.winner is not None else None  # also None where no other loss is finite
    return standing_words(row.standing) + ("" if lead is None else f" by {lead:.3f}")


def first_passings(comparison: Comparison) -> list[Passing]:
    """For each run, the first to pass its last loss: by the clock, else by tokens, else by updates."""
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
    """`B passes A's final loss (3.5228) after 12.4 h ± 23 min (2.51B tokens); A took 21.7 h (10.49B tokens)`"""
    passer, passed = run_letter(passing.passer), run_letter(passing.passed)
    after, took = f"update {passing.step:,}", ""
    if passing.tokens is not None and passing.passed_tokens is not None:
        after, took = f"{units.count(passing.tokens)} tokens", f"{units.count(passing.passed_tokens)} tokens"
    if passing.seconds is not None and passing.passed_seconds is not None:
        time = f"{units.duration(passing.seconds)} ± {units.duration(passing.spread * passing.seconds)}"
        after = f"{time} ({after})"
        took = units.duration(passing.passed_seconds) + (f" ({took})" if took else "")
    which = "final" if passing.passed_finished else "latest"
    said = f"{passer} passes {passed}'s {which} loss ({passing.loss:.4f}) after {after}"
    return said + (f"; {passed} took {took}" if took else "")


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
    for run, effects in comparison.single_changes.items():
        if effects:
            console.print()
            title = f"predicted, not measured: what each change from A to {run_letter(run)} would do to A alone"
            console.print(Text(title, style="bold"))
            print_table(_alone_table(effects), console)
            for why in _reasons_without_loss(effects):
                print_wrapped(f"no prediction of the loss: {why}", console)
    if any(effect.needs_card for effects in comparison.single_changes.values() for effect in effects):
        console.print("?: needs the card: --gpu NAME", markup=False, soft_wrap=True)


def _reasons_without_loss(effects: Sequence[SingleChange]) -> Iterator[str]:
    """Why some changes have no predicted loss; keys that scaling laws do not cover are named together."""
    reasons = list(dict.fromkeys(effect.why_no_loss for effect in effects if effect.why_no_loss))
    if uncovered := [reason.removeprefix(NOT_COVERED).strip() for reason in reasons if reason.startswith(NOT_COVERED)]:
        yield f"{NOT_COVERED} {units.listed(uncovered)}"
    yield from (reason for reason in reasons if not reason.startswith(NOT_COVERED))


def _changes_table(comparison: Comparison) -> Table:
    """A row per key; those without effect last, each with the reason."""
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
    """Which runs differ from the first in several settings: then nobody can say which setting did it."""
    first = run_letter(comparison.first_known)
    for run in range(len(comparison.cases)):
        changed = len(comparison.changed_from_first(run))
        if changed > 1:
            pair = "These" if len(comparison.cases) == 2 else f"From {first} to {run_letter(run)},"
            said = f"{pair} {changed} settings changed together: the runs cannot show which one did it."
            print_wrapped(said, console)


def _alone_table(effects: Sequence[SingleChange]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("change", "tokens/s", "MFU", "memory", "final loss"):
        table.add_column(heading, justify="left" if heading == "change" else "right", overflow="fold")
    for effect in effects:
        ratio, loss = effect.tokens_per_second_ratio, effect.final_loss_difference
        table.add_row(
            Text(change_words(effect)),
            "?" if ratio is None else "same" if abs(ratio - 1) < 0.005 else f"{100 * (ratio - 1):+.0f} %",
            _mfu_change(effect),
            _more_memory(effect),
            "no prediction" if loss is None else "same" if abs(loss) < 0.0005 else f"{loss:+.3f}",
        )
    return table


def _mfu_change(effect: SingleChange) -> str:
    if effect.tokens_per_second_ratio == 1.0:
        return "same"
    if effect.mfu is None:
        return "?"
    before, after = (f"{100 * share:.0f}" for share in effect.mfu)
    return "same" if before == after else f"{before} → {after} %"


def _more_memory(effect: SingleChange) -> str:
    size = effect.process_bytes_difference
    if size is None:
        return "does not fit" if effect.fits is False else "?"
    more = "same" if abs(size) < MIB else f"{size / MIB:+,.0f} MiB"
    return f"{more}: does not fit" if effect.fits is False else more
