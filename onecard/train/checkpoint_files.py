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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from shlex import quote
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from onecard import units
from onecard.errors import MachineError, OnecardError
from onecard.runs.files import (
    MAKE_ROOM,
    allow_readers,
    check_space,
    half_written,
    sync_file,
    sync_folder,
    write_durably,
    writing,
)

SCHEMA = 1
MODEL, OPTIMIZER, STATE, BEST = "model.safetensors", "optimizer.safetensors", "state.json", "best.json"

_DAMAGED = (errno.EIO, errno.ENOTDIR, errno.EISDIR)  # no later attempt will read it
_NEW, _GONE = ".new-", ".gone-"
_STATE_LIMIT_BYTES = 16 * units.MIB  # a state.json is some 30 KB; a huge one is not ours


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


def as_os_error(error: SafetensorError) -> OSError:
    """What the system refused; safetensors gives its number in the message only: "I/O error: … (os error 28)"."""
    in_text = re.search(r"os error (\d+)", str(error))
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
    text = json.dumps(content | {"sha256": _digest(content)}, indent=1, allow_nan=False)
    write_durably(new / STATE, text.encode())
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
    """The content of state.json, after comparing it and the named files with their checksums."""

    def bad(why: str) -> BadCheckpoint:
        return BadCheckpoint(
            f"the checkpoint {path.name} is damaged",
            why=why,
            fix=f"rm -r {quote(str(path))}   (then the checkpoint before it is used)",
        )

    try:
        if (path / STATE).stat().st_size > _STATE_LIMIT_BYTES:
            raise bad(f"{STATE} is too large")
        content = json.loads((path / STATE).read_text())
        digest = content.pop("sha256")
        if content["schema"] > SCHEMA:
            raise UnreadableCheckpoint(
                f"the checkpoint {path.name} was written by a newer onecard",
                why=f"{path / STATE} has schema {content['schema']}, this onecard reads {SCHEMA}",
                fix="use the onecard version that wrote it, or a newer one",
            )
        if content["schema"] != SCHEMA:
            raise bad(f"{STATE} has schema {content['schema']}, this onecard reads {SCHEMA}")
        if digest != _digest(content):
            raise bad(f"{STATE} does not match its checksum")
        for name in names:
            saved, size = content["files"][name], (path / name).stat().st_size
            if size != saved["bytes"]:
                raise bad(f"{name} has {size:,} bytes of {saved['bytes']:,}")
            if _file_digest(path / name) != saved["sha256"]:
                raise bad(f"{name} does not match its checksum")
    except FileNotFoundError as missing:
        raise bad(f"{Path(missing.filename).name} is missing") from None
    except OSError as error:
        if error.errno in _DAMAGED:
            raise bad(f"it cannot be read: {error.strerror}") from None
        raise UnreadableCheckpoint(
            f"the checkpoint {path.name} cannot be read",
            why=f"{error.filename or path}: {error.strerror}",
            fix=f"ls -l {quote(str(path))}   (shows who may read it; it may be complete, so it is not skipped)",
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError):
        raise bad(f"{STATE} was not written by onecard") from None
    return content  # type: ignore[no-any-return]


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()
