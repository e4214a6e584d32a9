"""What a checkpoint says about itself: state.json, typed and compared with its checksums. No torch is needed."""

from __future__ import annotations

import errno
import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from onecard.errors import MachineError, OnecardError
from onecard.runs.folder import checkpoint_step
from onecard.untrusted_json import (
    BadJson,
    count,
    field,
    mapping,
    mapping_of,
    number,
    optional,
    positive,
    read_object,
    scalar,
    seconds,
    text,
    whole,
)

SCHEMA = 1
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"

_DAMAGED = (errno.ENOTDIR, errno.EISDIR)  # no later attempt will read it


class BadCheckpoint(OnecardError):
    """A checkpoint that is not what was saved; `why` says where."""

    name = "bad-checkpoint"


class UnreadableCheckpoint(MachineError):
    """A checkpoint that may be complete but cannot be read now: skipping it would lose it."""

    name = "unreadable-checkpoint"


@dataclass(frozen=True, kw_only=True)
class MadeUnder:
    """What a checkpoint says about its run: the settings (of older versions only the identity), and the data."""

    name: str
    config: Mapping[str, Any]
    data_fingerprint: str | None
    micro_batches: tuple[int, int] | None = None  # as in TrainingState


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, newest first, damaged ones too."""
    if not folder.is_dir():
        return []
    return sorted(
        (path for path in folder.iterdir() if checkpoint_step(path.name) is not None and path.is_dir()),
        key=step_of,
        reverse=True,
    )


def step_of(path: Path) -> int:
    step = checkpoint_step(path.name)
    assert step is not None, path
    return step


def made_under(folder: Path) -> MadeUnder | None:
    """What the newest readable checkpoint says about its run, without reading tensors; None if there is none."""
    for path in checkpoints(folder):
        try:
            content = verified_state(path, [])
        except BadCheckpoint:
            continue
        return MadeUnder(
            name=path.name,
            config=content["config"],
            data_fingerprint=content["data_fingerprint"],
            micro_batches=content["micro_batches"],
        )
    return None


def verified_state(path: Path, names: list[str]) -> dict[str, Any]:
    """The content of state.json, typed, after comparing it and the named files with their checksums.

    A checksum shows that nothing was damaged by accident, not that the content makes sense: anybody can compute one.
    """
    with reading(path):
        content = read_object(path / STATE)
        schema = field(content, "schema", whole)
        if schema > SCHEMA:
            raise UnreadableCheckpoint(
                f"the checkpoint {path.name} was written by a newer onecard",
                why=f"{path / STATE} has schema {schema}, this onecard reads {SCHEMA}",
                fix="use the onecard version that wrote it, or a newer one",
            )
        if schema != SCHEMA:
            raise bad(path, f"{STATE} has schema {schema}, this onecard reads {SCHEMA}")
        if content.pop("sha256", None) != digest(content):
            raise bad(path, f"{STATE} does not match its checksum")
        state = {name: field(content, name, read) for name, read in _FIELDS.items()}
        if checkpoint_step(path.name) not in (None, state["step"]):
            raise bad(path, f"{STATE} was saved at step {state['step']:,}, and its folder is called {path.name}")
        files = [file for name in names for file in files_of(path, name, state["files"])]
        for name in files:
            saved, size = state["files"].get(name, {}), (path / name).stat().st_size
            if size != field(saved, "bytes", whole):
                raise bad(path, f"{name} has {size:,} bytes of {saved['bytes']:,}")
            if file_digest(path / name) != saved.get("sha256"):
                raise bad(path, f"{name} does not match its checksum")
    return state


def weights_digest(path: Path) -> str:
    """What tells the weights of the checkpoint `path` from others: the checksum of their file, or of its parts'."""
    with reading(path):
        files = verified_state(path, [])["files"]
        digests = [field(files.get(name, {}), "sha256", text) for name in files_of(path, MODEL, files)]
    return digests[0] if len(digests) == 1 else hashlib.sha256("".join(digests).encode()).hexdigest()


def part_name(name: str, number: int, of: int) -> str:
    """What a part of a file is called, as each of several ranks writes one: model-1-of-2.safetensors."""
    stem, _, ending = name.rpartition(".")
    return f"{stem}-{number}-of-{of}.{ending}"


def files_of(path: Path, name: str, there: Collection[str]) -> list[str]:
    """Of the files of the checkpoint `path`, those that hold `name`: itself, or else its parts."""
    stem, _, ending = name.rpartition(".")
    numbers = [re.fullmatch(rf"{stem}-[1-9]\d{{0,5}}-of-([1-9]\d{{0,5}})\.{ending}", each) for each in there]
    counts = {int(found[1]) for found in numbers if found}
    if name in there or not counts:
        return [name]
    if len(counts) > 1:
        raise bad(path, f"{STATE} has parts of {name} from different numbers of ranks")
    return [part_name(name, number, of) for of in counts for number in range(1, of + 1)]


@contextmanager
def reading(path: Path, file: str = STATE) -> Iterator[None]:
    """Inside, a file of the checkpoint `path` that is missing, unreadable or wrong becomes the error that says so."""
    try:
        yield
    except FileNotFoundError as missing:
        raise bad(path, f"{Path(missing.filename).name} is missing") from None
    except OSError as error:
        if error.errno in _DAMAGED:
            raise bad(path, f"it cannot be read: {error.strerror}") from None
        raise UnreadableCheckpoint(
            f"the checkpoint {path.name} cannot be read",
            why=f"{error.filename or path}: {error.strerror or error}",
            fix=_who_may_read(path) if isinstance(error, PermissionError) else _try_again(path),
        ) from error
    except BadJson as problem:
        raise bad(path, f"{file}: {problem}") from None


def _who_may_read(path: Path) -> str:
    return f"ls -l {quote(str(path))}   (shows who may read it; it may be complete, so it is not skipped)"


def _try_again(path: Path) -> str:
    return f"try again: it may be complete. If it fails every time: {set_aside(path)}   (the one before is used)"


def bad(path: Path, why: str) -> BadCheckpoint:
    """The error for a checkpoint that is not what was saved."""
    return BadCheckpoint(
        f"the checkpoint {path.name} is damaged",
        why=why,
        fix=f"{set_aside(path)}   (then the checkpoint before it is used)",
    )


def set_aside(path: Path) -> str:
    """The command after which a checkpoint is not used any more. Nothing is deleted: it may be whole after all."""
    return f"mv {quote(str(path))} {quote(str(path.with_name(f'aside-{path.name}')))}"


def _micro_batches(value: object) -> tuple[int, int]:
    """(the config's micro-batch, the one in use, which is never larger)."""
    if not isinstance(value, list) or len(value) != 2:
        raise BadJson("is not a list of two numbers")
    asked, used = positive(value[0]), positive(value[1])
    if used > asked:
        raise BadJson(f"says {used} is in use, more than the {asked} of the config")
    return asked, used


def _scaler(value: object) -> dict[str, float | int]:
    """The state of a GradScaler: all of it, each a positive number, or the count since it last grew."""
    content = mapping(value)
    state: dict[str, float | int] = {name: field(content, name, number) for name in _FACTORS}
    if any(factor <= 0 for factor in state.values()):
        raise BadJson("has a factor that is not positive")
    return (
        state
        | {"growth_interval": field(content, "growth_interval", positive)}
        | {"_growth_tracker": field(content, "_growth_tracker", count)}
    )


_FACTORS = ("scale", "growth_factor", "backoff_factor")
_FIELDS: dict[str, Callable[[object], Any]] = {
    "step": count,
    "tokens": count,
    "elapsed_seconds": seconds,
    "data_fingerprint": optional(text),
    "scaler": optional(_scaler),
    "best_val_loss": optional(number),
    "micro_batches": optional(_micro_batches),
    "eval_sequences": optional(positive),
    "config": mapping_of(scalar),
    "rng": mapping_of(text),
    "files": mapping_of(mapping),
}


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest(content: Mapping[str, Any]) -> str:
    try:
        return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()
    except ValueError:
        raise BadJson("it holds NaN or infinity") from None
