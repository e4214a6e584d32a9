"""The known settings of several runs side by side."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from onecard.config.shown import same_value
from onecard.doctor.case import Case
from onecard.doctor.single_changes import counts
from onecard.runs.records import Oom


class Unsaid:
    """A value that nobody knows."""

    def __repr__(self) -> str:
        return "?"


UNSAID = Unsaid()


def known_settings(case: Case) -> Mapping[str, object]:
    """The known part of a run's config."""
    return case.resolved.config.model_dump() if case.resolved else case.run.config


def config_diff(cases: Sequence[Case]) -> dict[str, tuple[object, ...]]:
    """Keys with different values; UNSAID where a value is not known. None is a value: `eval_batch_size = None`."""
    known = [known_settings(case) for case in cases]
    keys = dict.fromkeys(key for settings in known for key in settings)
    rows = {key: tuple(settings.get(key, UNSAID) for settings in known) for key in keys}
    return {key: row for key, row in rows.items() if _differ(row)}


def _differ(row: Sequence[object]) -> bool:
    said = [value for value in row if value is not UNSAID]
    return any(not same_value(value, said[0]) for value in said)


def idle_settings(cases: Sequence[Case], differing: Iterable[str]) -> dict[str, str]:
    """Settings that differ without effect on what the runs computed, each with the reason."""
    computed = {computed_in(case) for case in cases}
    reasons = {key: "no effect on the result" for key in differing if not counts(key)}
    if len(computed) == 1 and (only := computed.pop()):
        reasons["dtype"] = f"no effect: {only} in {'both' if len(cases) == 2 else 'all'}"
    if not any(isinstance(record, Oom) for case in cases for record in case.run.records):
        reasons["memory_limit"] = "no effect: no run ran out of memory"
    if not any(case.end and case.end.reason == "max_hours" for case in cases):
        reasons["max_hours"] = "no effect: no run took that long"
    if not any(case.end and case.end.reason == "stop_after_worse" for case in cases):
        reasons["stop_after_worse"] = "no effect: it ended no run"
    return {key: reasons[key] for key in differing if key in reasons}


def computed_in(case: Case) -> str | None:
    """The type a run computed in; None where it is not known."""
    if case.cardless:
        return "float32"  # whatever is asked for, under both trainers
    dtype = known_settings(case).get("dtype")
    if dtype == "auto":
        return case.card.best_dtype() if case.card else None
    return dtype if isinstance(dtype, str) else None
