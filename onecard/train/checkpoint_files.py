"""The files of checkpoints: written whole or not at all, compared with their checksums, deleted whole or not at all.

    checkpoints/
      step-00000200/            a checkpoint
        model.safetensors       weights by nanoGPT's names; the tied head once, as transformer.wte.weight
        optimizer.safetensors   "exp_avg/transformer.wte.weight" and so on
        state.json              everything else, and the size and SHA-256 of the two files
      best.json                 which step had the lowest validation loss
      .new-…, .gone-…, ….onecard-new    half-written or half-deleted: never read, cleared by the next save

A folder is written under another name, flushed to the disk and renamed; it is renamed before it is deleted. Nothing is
pickled, so loading a checkpoint from the internet runs nothing. One process writes (the run folder's lock sees to it).
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, load_file, save_file
from torch import Tensor

from onecard import units
from onecard.errors import MachineError, OnecardError, first_line
from onecard.files import (
    MAKE_ROOM,
    allow_readers,
    check_space,
    half_written,
    sync_file,
    sync_folder,
    write_durably,
    writing,
)
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
MODEL, OPTIMIZER, STATE, BEST = "model.safetensors", "optimizer.safetensors", "state.json", "best.json"

_DAMAGED = (errno.ENOTDIR, errno.EISDIR)  # no later attempt will read it
_NEW, _GONE = ".new-", ".gone-"


class BadCheckpoint(OnecardError):
    """A checkpoint that is not what was saved; `why` says where."""

    name = "bad-checkpoint"


class UnreadableCheckpoint(MachineError):
    """A checkpoint that may be complete but cannot be read now: skipping it would lose it."""

    name = "unreadable-checkpoint"


# Writing


@contextmanager
def changing(path: Path, *, room: str = MAKE_ROOM) -> Iterator[None]:
    """Inside, what the disk refuses becomes the error for the checkpoint `path`, and nothing stays half-written."""
    try:
        with writing(path, room=room):
            try:
                yield
            except SafetensorError as error:
                raise as_os_error(error) from error
    except Exception:
        with suppress(OSError):
            clear_leftovers(path.parent)
        raise


def as_os_error(error: Exception) -> OSError:
    """What the system refused; its number is at the end of the message only: "(os error 28)" (safetensors), "(28)"."""
    in_text = re.search(r"\((?:os error )?(\d{1,3})\)$", str(error))
    return OSError(int(in_text[1]), os.strerror(int(in_text[1]))) if in_text else OSError(str(error))


def write(
    path: Path, tensors: Mapping[str, Mapping[str, Tensor]], state: Mapping[str, Any], *, room: str = MAKE_ROOM
) -> None:
    """Make the folder `path` of `tensors` (file name -> its tensors) and of what else there is to say, as JSON."""
    check_space(path, needed_bytes=needed_bytes(tensors), room=room)
    new = path.with_name(_NEW + path.name)
    new.mkdir()
    files = {name: _write_tensors(new / name, named) for name, named in tensors.items()}
    content = {"schema": SCHEMA, **state, "files": files}
    content = json.loads(json.dumps(content, allow_nan=False))  # as it will be read: the checksum is over that
    state_text = json.dumps(content | {"sha256": _digest(content)}, indent=1, allow_nan=False)
    write_durably(new / STATE, state_text.encode())
    sync_folder(new)
    new.rename(path)
    sync_folder(path.parent)


def needed_bytes(tensors: Mapping[str, Mapping[str, Tensor]]) -> int:
    """What a checkpoint of these tensors takes on the disk, at most."""
    return sum(tensor.nbytes for named in tensors.values() for tensor in named.values()) + units.MIB


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Size and checksum of the file written and flushed."""
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)
    allow_readers(path)
    sync_file(path)
    return {"bytes": path.stat().st_size, "sha256": _file_digest(path)}


def delete(path: Path) -> None:
    """Remove a checkpoint; if killed meanwhile, it is either gone or complete."""
    gone = path.with_name(_GONE + path.name)
    _remove(gone)
    path.rename(gone)
    _remove(gone)


def clear_leftovers(folder: Path) -> None:
    """Remove what a killed save or delete left behind, as far as the system lets us."""
    for path in folder.iterdir():
        if path.name.startswith((_NEW, _GONE)) or path == half_written(folder / BEST):
            with suppress(OSError):
                _remove(path)


def _remove(path: Path) -> None:
    """Remove what is there, if anything is; of a link, the link and not where it leads."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


# Reading


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
        if content.pop("sha256", None) != _digest(content):
            raise bad(path, f"{STATE} does not match its checksum")
        state = {name: field(content, name, read) for name, read in _FIELDS.items()}
        if checkpoint_step(path.name) not in (None, state["step"]):
            raise bad(path, f"{STATE} was saved at step {state['step']:,}, and its folder is called {path.name}")
        for name in names:
            saved, size = state["files"].get(name, {}), (path / name).stat().st_size
            if size != field(saved, "bytes", whole):
                raise bad(path, f"{name} has {size:,} bytes of {saved['bytes']:,}")
            if _file_digest(path / name) != saved.get("sha256"):
                raise bad(path, f"{name} does not match its checksum")
    return state


def tensors_in(path: Path, name: str) -> dict[str, Tensor]:
    """The tensors in a file of the checkpoint `path`, mapped into memory; BadCheckpoint if they are not readable."""
    with reading(path, file=name):
        try:
            return _load(path / name)
        except FileNotFoundError:  # what safetensors says of every file it cannot open
            with (path / name).open("rb"):  # raises what is really wrong, if it still is
                return _load(path / name)
        except (SafetensorError, RuntimeError) as problem:  # RuntimeError: it was deleted after it was opened
            refused = as_os_error(problem)
            if refused.errno not in (None, errno.ENOENT):
                raise refused from problem
            raise BadJson(f"it cannot be read: {first_line(problem, 120)}") from problem
        except KeyError as problem:
            raise BadJson(f"it holds numbers of the type {problem}, which torch does not have") from problem


def _load(path: Path) -> dict[str, Tensor]:
    """The tensors in a file. safetensors opens no file whose name is not UTF-8: such a one is read whole."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return load(path.read_bytes())
    return load_file(path)


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


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(content: Mapping[str, Any]) -> str:
    try:
        return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()
    except ValueError:
        raise BadJson("it holds NaN or infinity") from None
