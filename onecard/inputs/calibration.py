"""What `onecard tune` measured on this machine's card or processor, kept in onecard's home: a file for each, and torch.

A file may be deleted at any time: plans are then what they were before. It has nothing that names a person or a folder.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from onecard.data.home import homes, writable_home
from onecard.opening import cannot_read
from onecard.untrusted_json import BadJson, field, list_of, mapping, number, optional, positive, read_object, text

if TYPE_CHECKING:
    from onecard.config.schema import RunConfig
    from onecard.plan.calibration import Calibration, TimedRun

SCHEMA = 1
FOLDER = "calibrations"
_DAY = re.compile(r"\d{4}-\d\d-\d\d")


@dataclass(frozen=True, kw_only=True)
class Device:
    """What a calibration is for: a card with its driver, or a processor (without one), and the torch that ran."""

    card: str
    driver: str
    torch: str  # 2.13.0: without the name of a build, which an installed package does not always tell

    @property
    def filename(self) -> str:
        """`nvidia-geforce-rtx-4070--driver-580.65.06--torch-2.13.0.json`"""
        driver = f"--driver-{_plain(self.driver)}" if self.driver else ""
        return f"{_plain(self.card)}{driver}--torch-{_plain(self.torch)}.json"


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.") or "unnamed"


def torch_here() -> str:
    """The version of the torch that is installed; empty without one."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return public_version(version("torch"))
    except PackageNotFoundError:
        return ""


def public_version(version: str) -> str:
    """`2.13.0+cu130` -> `2.13.0`"""
    return version.partition("+")[0]


def calibration_of(
    device: Device, environ: Mapping[str, str] = os.environ, *, to_add: bool = False
) -> tuple[Calibration | None, str | None]:
    """The calibration of a device, and a sentence about a file that had to be passed over.

    `to_add` to it: one that cannot be read now may be whole, so that is an error.
    """
    folders = [home / FOLDER for home in homes(environ)]
    for folder in folders:
        path = folder / device.filename
        try:
            return _read(path, device), None
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (BadJson, OSError) as problem:
            if (unread := cannot_read(path, problem)) and to_add:
                raise unread from problem
            again = "" if unread else "; measure again: onecard tune"
            return None, f"{path} is passed over: {getattr(problem, 'strerror', None) or problem}{again}"
    return None, _of_another(folders, device)


def _of_another(folders: Iterable[Path], device: Device) -> str | None:
    """A sentence where the card was measured with another driver or torch."""
    for folder in folders:
        with_another = sorted(folder.glob(f"{_plain(device.card)}--*.json")) if folder.is_dir() else []
        if with_another:
            return (
                f"this machine's {device.card} was measured with another driver or torch than it has now, which does "
                "not count; onecard tune measures again"
            )
    return None


def _read(path: Path, device: Device) -> Calibration:
    from onecard.plan.calibration import Calibration

    content = read_object(path)
    if content.get("kind") != "calibration" or content.get("schema") != SCHEMA:
        raise BadJson("it is not a calibration that this version of onecard reads")
    found = Calibration(
        card=field(content, "card", text),
        driver=field(content, "driver", text),
        torch=field(content, "torch", text),
        date=field(content, "date", _day),
        runs=tuple(field(content, "runs", list_of(_run))),
    )
    if (found.card, found.driver, found.torch) != (device.card, device.driver, device.torch):
        raise BadJson("it is of another card, driver or torch")
    if not found.runs:
        raise BadJson("it has no runs")
    return found


def _day(value: object) -> str:
    found = text(value)
    if not _DAY.fullmatch(found):
        raise BadJson("is not a day like 2026-11-19")
    return found


def _run(value: object) -> TimedRun:
    from onecard.plan.calibration import TimedRun

    content = mapping(value)
    return TimedRun(
        config=field(content, "config", _config),
        tokens_per_second=field(content, "tokens_per_second", _above_zero),
        threads=field(content, "threads", optional(positive)),
        reserved_bytes=field(content, "reserved_bytes", optional(positive)),
        process_bytes=field(content, "process_bytes", optional(positive)),
        predicted_reserved_bytes=field(content, "predicted_reserved_bytes", optional(positive)),
    )


def _above_zero(value: object) -> float:
    if (found := number(value)) <= 0:
        raise BadJson(f"is {found:g}, not above 0")
    return found


def _config(value: object) -> RunConfig:
    from pydantic import ValidationError

    from onecard.config.schema import RunConfig
    from onecard.plan.calibration import DECISIVE_KEYS

    content = mapping(value)
    if unknown := sorted(set(content) - set(DECISIVE_KEYS)):
        raise BadJson(f"has {unknown[0][:40]!r}, which no calibration has")
    try:
        return RunConfig().replace(content)
    except (ValidationError, ValueError):
        raise BadJson("is not a config that onecard runs") from None


def calibration_json(calibration: Calibration) -> dict[str, object]:
    """What a file of it holds."""
    return {
        "schema": SCHEMA,
        "kind": "calibration",
        "card": calibration.card,
        "driver": calibration.driver,
        "torch": calibration.torch,
        "date": calibration.date,
        "runs": [_run_json(run) for run in calibration.runs],
    }


def _run_json(run: TimedRun) -> dict[str, object]:
    from onecard.plan.calibration import DECISIVE_KEYS

    return {
        "config": {key: getattr(run.config, key) for key in DECISIVE_KEYS},
        "tokens_per_second": run.tokens_per_second,
        "threads": run.threads,
        "reserved_bytes": run.reserved_bytes,
        "process_bytes": run.process_bytes,
        "predicted_reserved_bytes": run.predicted_reserved_bytes,
    }


def keep(device: Device, runs: Iterable[TimedRun], *, date: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Add runs to the calibration of a device, made where there is none that can be read; the path of its file."""
    from onecard.files import write_atomically
    from onecard.plan.calibration import Calibration

    known = calibration_of(device, environ, to_add=True)[0]
    empty = Calibration(card=device.card, driver=device.driver, torch=device.torch, date=date, runs=())
    path = writable_home(environ) / FOLDER / device.filename
    path.parent.mkdir(parents=True, exist_ok=True)
    content = calibration_json((known or empty).with_runs(runs, date=date))
    write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
    return path
