"""The settings of several runs side by side, as far as anything tells them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from onecard.doctor.case import Case


class Unsaid:
    """A value that nothing tells."""

    def __repr__(self) -> str:
        return "?"


UNSAID = Unsaid()


def known_settings(case: Case) -> Mapping[str, object]:
    """The config of a run as far as it is known."""
    return case.resolved.config.model_dump() if case.resolved else case.run.config


def config_diff(cases: Sequence[Case]) -> dict[str, tuple[object, ...]]:
    """Keys with different values; UNSAID where a run does not say. None is a value: `eval_batch_size = None`."""
    known = [known_settings(case) for case in cases]
    keys = dict.fromkeys(key for settings in known for key in settings)
    rows = {key: tuple(settings.get(key, UNSAID) for settings in known) for key in keys}
    return {key: row for key, row in rows.items() if _differ(row)}


def _differ(row: Sequence[object]) -> bool:
    said = [value for value in row if value is not UNSAID]
    return any(value != said[0] for value in said)
