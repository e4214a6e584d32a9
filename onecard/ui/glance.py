"""What a list says of a run folder, from the first and last lines of its records: as fast for a long run as for a short
one."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

from onecard import units
from onecard.opening import open_file
from onecard.runs.folder import LOCK, config_in
from onecard.runs.lock import left_behind
from onecard.runs.record_json import NotARecord, from_line
from onecard.runs.records import End, Eval, Record, Start, Step

TAILS_BYTES = (128 * units.KIB, 2 * units.MIB)  # the second where the first has no evaluation
HEAD_BYTES = 64 * units.KIB
USUAL_STEPS = 20  # the last updates, whose median is the present speed
FRESH_SECONDS = 600  # a run that wrote this recently is taken to train, where no lock says more
FRESH_LOCKED_SECONDS = 6 * 3600  # one whose lock names a process: evaluations and slow steps take their time
ROW = (
    *("state", "state_why", "changed", "step", "steps_planned", "progress", "tokens", "loss"),
    *("val_loss", "val_loss_error", "val_step", "tokens_per_second", "mfu", "reserved_bytes"),
    *("predicted_process_bytes", "seconds", "seconds_to_go", "card", "device"),
)
_STEP = b'{"kind":"step"'


def glance(folder: Path, records: Path) -> dict[str, Any]:
    """The present state of a run folder by the names of a row; fields that its last records do not say are None."""
    size, changed = 0, folder.stat().st_mtime
    start: Start | None = None
    last: list[Record] = []
    try:
        with open_file(records) as file:
            size = file.seek(0, 2)
            changed = records.stat().st_mtime
            file.seek(0)
            start = next((r for r in _parsed(file.read(HEAD_BYTES).splitlines()[:3]) if isinstance(r, Start)), None)
            for tail in TAILS_BYTES:
                file.seek(max(0, size - tail))
                last = list(_last_records(file.read(tail)))
                if tail >= size or any(isinstance(record, Eval) for record in last):
                    break
    except OSError:
        pass  # killed before its first record
    return _row(folder, start, last, changed)


def _last_records(tail: bytes) -> Iterator[Record]:
    """The last records, the latest first: of updates only USUAL_STEPS."""
    steps = 0
    for line in reversed(tail.splitlines()):
        if line.startswith(_STEP):
            steps += 1
            if steps > USUAL_STEPS:
                continue
        yield from _parsed([line])


def _parsed(lines: Iterable[bytes]) -> Iterator[Record]:
    for line in lines:
        try:
            yield from_line(line)
        except NotARecord:  # half a line, at the beginning of what was read or at a crash
            continue


def _row(folder: Path, start: Start | None, last: list[Record], changed: float) -> dict[str, Any]:
    config = config_in(folder) or (dict(start.config) if start else {})
    start = next((record for record in last if isinstance(record, Start)), start)
    steps = [record for record in last if isinstance(record, Step)]
    evaluation = next((record for record in last if isinstance(record, Eval) and _is_finite(record.val_loss)), None)
    end = next((record for record in last if isinstance(record, Start | End)), None)
    step = steps[0] if steps else None
    done = max((record.step for record in (step, evaluation) if record), default=0)
    planned = config.get("max_iters")
    planned = planned if type(planned) is int and planned > 0 else None
    seconds = _median(step.seconds for step in steps)
    state, why = _state(folder, end if isinstance(end, End) else None, step, changed)
    goes_on = state in ("training", "interrupted", "died")  # or would, if resumed
    to_go = max(0, planned - done) * seconds if planned and seconds and goes_on else None
    return {
        "state": state,
        "state_why": why,
        "changed": changed,
        "step": done,
        "steps_planned": planned,
        "progress": min(1.0, done / planned) if planned else None,
        "tokens": step.tokens if step else None,
        "loss": step.loss if step else None,
        "val_loss": evaluation.val_loss if evaluation else None,
        "val_loss_error": evaluation.val_loss_error if evaluation else None,
        "val_step": evaluation.step if evaluation else None,
        "tokens_per_second": _median(step.tokens_per_second for step in steps),
        "mfu": _median(step.mfu for step in steps),
        "reserved_bytes": step.reserved_bytes if step else None,
        "predicted_process_bytes": start.predicted_process_bytes if start else None,
        "seconds": step.elapsed_seconds if step else None,
        "seconds_to_go": to_go,
        "card": start.card if start else None,
        "device": start.device if start else None,
    }


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return median(known) if known else None


def _is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def _state(folder: Path, end: End | None, step: Step | None, changed: float) -> tuple[str, str]:
    """training, finished, interrupted, died or diverged, and how that is known."""
    if end:
        names = {
            "finished": "finished",
            "stop_after_worse": "finished",
            "interrupted": "interrupted",
            "max_hours": "interrupted",
            "diverged": "diverged",
        }
        return names.get(end.reason, "died"), f"it ended at step {end.step:,}: {end.reason}"
    ago = max(0.0, time.time() - changed)
    said = f"its last record is {units.duration(ago)} old"
    if left_behind(folder / LOCK):
        return "died", f"its process is gone and recorded no end; {said}"
    if step and not math.isfinite(step.loss):
        return "diverged", f"its loss is {step.loss} at step {step.step:,}"
    if ago < (FRESH_LOCKED_SECONDS if _names_a_process(folder / LOCK) else FRESH_SECONDS):
        return "training", said
    return "died", f"it recorded no end, and {said}"


def _names_a_process(lock: Path) -> bool:
    try:
        return lock.stat().st_size > 0
    except OSError:
        return False
