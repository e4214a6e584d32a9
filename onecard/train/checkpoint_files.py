"""The files of checkpoints: written whole or not at all, compared with their checksums, deleted whole or not at all.

    checkpoints/
      step-00000200/            a checkpoint
        model.safetensors       weights by nanoGPT's names; the tied head once, as transformer.wte.weight
        optimizer.safetensors   "exp_avg/transformer.wte.weight" and so on
        state.json              everything else, and the size and SHA-256 of the two files
                                (several ranks that share a model write parts of both: checkpoint_parts)
      best.json                 which step had the lowest validation loss
      .new-…, .gone-…, ….onecard-new    half-written or half-deleted: never read, cleared by the next save

A folder is written under another name, flushed to the disk and renamed; it is renamed before it is deleted. Nothing is
pickled, so loading a checkpoint from the internet runs nothing. One process writes (the run folder's lock sees to it).
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, load_file, save_file
from torch import Tensor

from onecard import units
from onecard.errors import first_line
from onecard.files import (
    MAKE_ROOM,
    allow_readers,
    check_space,
    half_written,
    remove,
    sync_file,
    sync_folder,
    write_durably,
    writing,
)
from onecard.runs.checkpoint_state import SCHEMA, STATE, digest, file_digest, files_of, reading
from onecard.untrusted_json import BadJson, parsed

BEST = "best.json"

_NEW, _GONE = ".new-", ".gone-"


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
    if isinstance(error, OSError) and error.errno is not None:
        return error
    in_text = re.search(r"\((?:os error )?(\d{1,3})\)$", str(error))
    return OSError(int(in_text[1]), os.strerror(int(in_text[1]))) if in_text else OSError(str(error))


Tensors = Mapping[str, Mapping[str, Tensor]]  # by the file they are for, and by name
Files = Mapping[str, Mapping[str, Any]]  # size and checksum of each
WriteFiles = Callable[[Path, Tensors], Files]  # into a folder


def write_whole(folder: Path, tensors: Tensors) -> Files:
    """Write the files of one process, and flush them."""
    return {name: _write_tensors(folder / name, named) for name, named in tensors.items()}


def write(
    path: Path,
    tensors: Tensors,
    state: Mapping[str, Any],
    *,
    room: str = MAKE_ROOM,
    write_files: WriteFiles = write_whole,
) -> None:
    """Make the folder `path` of `tensors` and of what else there is to say, as JSON."""
    check_space(path, needed_bytes=needed_bytes(tensors), room=room)
    new = path.with_name(_NEW + path.name)
    new.mkdir()
    files = write_files(new, tensors)
    content = {"schema": SCHEMA, **state, "files": files}
    content = json.loads(json.dumps(content, allow_nan=False))  # as it will be read: the checksum is over that
    state_text = json.dumps(content | {"sha256": digest(content)}, indent=1, allow_nan=False)
    write_durably(new / STATE, state_text.encode())
    sync_folder(new)
    new.rename(path)
    sync_folder(path.parent)


def needed_bytes(tensors: Tensors) -> int:
    """What a checkpoint of these tensors takes on the disk, at most."""
    return sum(tensor.nbytes for named in tensors.values() for tensor in named.values()) + units.MIB


def _write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Size and checksum of the file written and flushed."""
    save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)
    allow_readers(path)
    sync_file(path)
    return {"bytes": path.stat().st_size, "sha256": file_digest(path)}


def delete(path: Path) -> None:
    """Remove a checkpoint; if killed meanwhile, it is either gone or complete."""
    gone = path.with_name(_GONE + path.name)
    remove(gone)
    path.rename(gone)
    remove(gone)


def clear_leftovers(folder: Path) -> None:
    """Remove what a killed save or delete left behind, as far as the system lets us."""
    for path in folder.iterdir():
        if path.name.startswith((_NEW, _GONE)) or path == half_written(folder / BEST):
            with suppress(OSError):
                remove(path)


# Reading


def tensors_in(path: Path, name: str) -> dict[str, Tensor]:
    """The tensors in a file of the checkpoint `path`, mapped into memory; BadCheckpoint if they are not readable.

    Where several ranks have written parts of it, they are put together.
    """
    with reading(path, file=name):
        parts = files_of(path, name, [file.name for file in path.iterdir()])
        try:
            if parts != [name]:
                return _put_together([path / part for part in parts])
            return loaded(path / name)
        except (SafetensorError, RuntimeError) as problem:  # RuntimeError: it was deleted after it was opened
            refused = as_os_error(problem)
            if refused.errno not in (None, errno.ENOENT):
                raise refused from problem
            raise BadJson(f"it cannot be read: {first_line(problem, 120)}") from problem
        except KeyError as problem:
            raise BadJson(f"it holds numbers of the type {problem}, which torch does not have") from problem


def loaded(path: Path) -> dict[str, Tensor]:
    """The tensors in a file. safetensors opens no file whose name is not UTF-8: such a one is read whole."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return load(path.read_bytes())
    try:
        return load_file(path)
    except FileNotFoundError:  # what safetensors says of every file it cannot open
        with path.open("rb"):  # raises what is really wrong, if it still is
            return load_file(path)


# Parts, as several ranks write them

_ROWS, _FIRST_ROW = "DCP_SHARDING_INFO", "saved_offsets"  # torch's names, in the header of a file


def _put_together(paths: list[Path]) -> dict[str, Tensor]:
    """The whole tensors in all parts of one file."""
    parts: dict[str, list[tuple[int, Tensor]]] = {}
    for path in paths:
        with safe_open(path, framework="pt") as file:
            rows = _rows_of((file.metadata() or {}).get(_ROWS, ""))
            for name in file.keys():  # noqa: SIM118  # it is no mapping
                parts.setdefault(name, []).append((_first_row(rows, name), file.get_tensor(name)))
    return {name: _joined(name, sorted(of_name, key=lambda part: part[0])) for name, of_name in parts.items()}


def _rows_of(text: str) -> Any:
    try:
        return parsed(text.encode())
    except BadJson:
        raise BadJson(f"its header does not say which rows it has: {_ROWS} is {text!r:.60}") from None


def _first_row(rows: Any, name: str) -> int:
    """Where a part of a tensor begins; 0 for a single number."""
    try:
        offsets: list[Any] = [*rows[name][_FIRST_ROW], 0]
    except (KeyError, TypeError):
        raise BadJson(f"it does not say which rows of {name:.60} it has") from None
    first, *columns = offsets
    if type(first) is not int or any(columns):
        raise BadJson(f"it has columns of {name:.60}, not rows")
    return first


def _joined(name: str, parts: list[tuple[int, Tensor]]) -> Tensor:
    ends, tensors = 0, [tensor for _, tensor in parts]
    for first, tensor in parts:
        if first != ends or tensor.shape[1:] != tensors[0].shape[1:] or tensor.dtype != tensors[0].dtype:
            raise BadJson(f"its parts of {name:.60} do not fit together")
        ends += len(tensor) if tensor.dim() else 1
    return torch.cat(tensors) if len(tensors) > 1 else tensors[0]
