"""The parts of a checkpoint: each rank writes its rows of all tensors, by torch.distributed.checkpoint.

      model-1-of-2.safetensors        the first rank's rows of each weight, by the names of model.safetensors
      optimizer-1-of-2.safetensors    the same of the optimizer's state

They are written in the library's safetensors layout, not in its own, which is pickled: reading one runs nothing. The
header says in which row each tensor begins (`DCP_SHARDING_INFO`). Ranks read their rows of a checkpoint of any layout,
of one process too; one process puts the parts together without the library (`checkpoint_files`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from onecard.errors import first_line
from onecard.files import allow_readers, sync_file
from onecard.opening import cannot_read
from onecard.runs.checkpoint_state import bad, file_digest, part_name
from onecard.train.ranks import Processes


def write_parts(
    folder: Path, tensors: Mapping[str, Mapping[str, Tensor]], processes: Processes
) -> dict[str, dict[str, Any]]:
    """Write this rank's part of the files (name -> tensors), as all ranks do; size and checksum of every rank's files.

    OSError on all ranks if one could not write.
    """
    own: dict[str, dict[str, Any]] = {}
    problem: OSError | None = None
    try:
        own = _write_own(folder, tensors, processes)
    except OSError as error:
        problem = error
    said = processes.gathered([own, [problem.errno, problem.strerror or str(problem)] if problem else None])
    problems = [OSError(*each) for _, each in said if each]
    if problem or problems:
        raise problem or problems[0]
    return {name: facts for files, _ in said for name, facts in files.items()}


def _write_own(
    folder: Path, tensors: Mapping[str, Mapping[str, Tensor]], processes: Processes
) -> dict[str, dict[str, Any]]:
    """Size and checksum of this rank's files."""
    numbers = {name: number for number, named in enumerate(tensors.values(), 1) for name in named}
    writer = HuggingFaceStorageWriter(str(folder), fqn_to_index_mapping=numbers, save_distributed=True)
    written = {name: each.detach() for named in tensors.values() for name, each in named.items()}
    try:
        with processes.speaking():
            save(written, storage_writer=writer)
    except CheckpointException as problem:
        raise _as_os_error(problem) from problem
    rank, of = processes.ranks.rank, processes.ranks.world_size
    own: dict[str, dict[str, Any]] = {}
    for number, name in enumerate(tensors, 1):
        path = folder / part_name(name, rank + 1, of)
        (folder / f"shard-{rank + 1:05d}-model-{number:05d}-of-{len(tensors):05d}.safetensors").rename(path)
        allow_readers(path)
        sync_file(path)
        own[path.name] = {"bytes": path.stat().st_size, "sha256": file_digest(path)}
    return own


def _as_os_error(problem: CheckpointException) -> OSError:
    errors = [error for error, _ in problem.failures.values()]
    return next((error for error in errors if isinstance(error, OSError)), OSError(first_line(errors[0], 240)))


def read_rows(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Fill tensors with what a checkpoint of any layout says of them: of those that ranks share, this rank's rows."""
    try:
        load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(path)), no_dist=True)
    except CheckpointException as problem:
        refused = _as_os_error(problem)
        raise cannot_read(path, refused) or bad(
            path, f"its tensors cannot be read: {first_line(refused, 160)}"
        ) from problem


def described(path: Path) -> dict[str, Tensor]:
    """Every tensor in a checkpoint of any layout, without its numbers."""
    found = HuggingFaceStorageReader(str(path)).read_metadata().state_dict_metadata
    return {
        name: torch.empty(each.size, dtype=each.properties.dtype, device="meta")
        for name, each in found.items()
        if isinstance(each, TensorStorageMetadata)
    }
