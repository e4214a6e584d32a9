"""The words that every view of a comparison uses: names of runs, standings, ranges, changes."""

from __future__ import annotations

from collections.abc import Sequence

from onecard import units
from onecard.config.shown import shown
from onecard.doctor.compare import AtEqual, Comparison, Standing
from onecard.doctor.single_changes import SingleChange
from onecard.plan.ranges import Range

MEASURES = {
    "val_loss": "validation loss",
    "bits_per_byte": "validation, bits per byte",
    "train_loss": "training loss",
}
NO_DIFFERENCE = "no difference within noise"
LONGEST_NAME = 48  # characters of a path; of a longer one its end is shown


def run_letter(run: int) -> str:
    """A, B, … Z, then R26, R27: a run's name in a table."""
    return chr(ord("A") + run) if run < 26 else f"R{run}"


def short_name(name: str, most: int = LONGEST_NAME) -> str:
    """A name, or the end of a long one, where paths differ."""
    return name if len(name) <= most else "…" + name[1 - most :]


def letters(runs: Sequence[int]) -> str:
    """`A, C`"""
    return ", ".join(map(run_letter, runs))


def standing_words(standing: Standing) -> str:
    """`A`; `A, B (over C)` where A and B tie; that there is no difference; or that it is not decided yet."""
    if standing.undecided:
        return f"{letters(standing.best)} so far; {letters(standing.undecided)} may still go on"
    if not standing.beaten:
        return NO_DIFFERENCE
    over = "" if standing.winner is not None else f" (over {letters(standing.beaten)})"
    return letters(standing.best) + over


def change_words(effect: SingleChange) -> str:
    """`batch_size 16 → 8, gradient_accumulation_steps 32 → 64`"""
    changes = effect.named.items()
    return ", ".join(f"{key} {shown(key, before)} → {shown(key, after)}" for key, (before, after) in changes)


def place_words(row: AtEqual) -> str:
    """`5.77B tokens`, `21.7 h`"""
    return f"{units.count(row.place)} tokens" if row.axis == "tokens" else units.duration(row.place)


def progress_words(comparison: Comparison, run: int) -> str:
    """`update 11,000 of 12,000 (max_hours)` of a run that has not finished; "" of others and where nobody knows."""
    case = comparison.cases[run]
    to_go, last = case.facts.steps_to_go, case.facts.last_step
    if comparison.finished[run] is not False or to_go is None or last is None:
        return ""
    why = f" ({case.end.reason})" if case.end else ""
    return f"update {last:,} of {last + to_go:,}{why}"


def end_forecast(comparison: Comparison, run: int) -> Range | None:
    """The predicted final loss of a run that has not finished, where it is the loss that is compared."""
    forecast = comparison.forecasts[run]
    if comparison.finished[run] is not False or comparison.measure != "val_loss" or forecast is None:
        return None
    return None if comparison.curves[run].lost else forecast.final_loss
