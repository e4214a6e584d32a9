"""Whether a run reached its end. Only then is its last loss its final loss."""

from __future__ import annotations

from onecard.doctor.case import Case
from onecard.doctor.config_diff import known_settings


def finished(case: Case) -> bool | None:
    """Whether a run made all the updates it was started for, or ended where stop_after_worse says.

    None where its end is not known. The last updates of another program's run may not have been printed. They count as
    made.
    """
    if case.end and case.end.reason in ("finished", "stop_after_worse"):
        return True
    to_go = case.facts.steps_to_go
    return None if to_go is None else to_go <= _unprinted(case)


def _unprinted(case: Case) -> int:
    """Updates that may have followed the last logged one: the log interval, as configured or as seen in the log."""
    if case.run.format == "onecard":
        return 0
    stated = known_settings(case).get("log_interval")
    logged = sorted({record.step for record in case.steps or case.evals})
    return max(stated if isinstance(stated, int) else 0, logged[-1] - logged[-2] if len(logged) > 1 else 0)
