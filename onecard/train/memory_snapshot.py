"""--memory_snapshot FILE: the card's memory at the peak of training, in parts; and torch's own snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from onecard.paper.tags import GRADIENTS, LOGITS_AND_LOSS, OPTIMIZER_STATE, WEIGHTS
from onecard.train.operations import own_part
from onecard.train.trainer import Trainer

TAKEN_AFTER = 3  # updates: everything is compiled, recorded and made by then
HISTORY = 1_000_000  # events
REST = "activations and the rest"
# The functions that ask for logits and losses, by file.
_LOGITS = {
    "train/operations.py": {"logits"},
    "models/written_out.py": {"_logits", "_new_losses"},
    "models/chunked_loss.py": {"new_losses"},
}


@dataclass(frozen=True, kw_only=True)
class MeasuredMemory:
    """Bytes alive when most was allocated, by part; they sum to `allocated_bytes`."""

    parts: Mapping[str, int]
    allocated_bytes: int
    reserved_bytes: int


class MemorySnapshot:
    """Records the allocator from its first event on; does nothing without a card or a file to write to."""

    def __init__(self, path: Path | None, device: torch.device) -> None:
        self._path = path if device.type == "cuda" else None
        self.measured: MeasuredMemory | None = None
        if self._path:
            torch.cuda.memory._record_memory_history(max_entries=HISTORY, stacks="python")

    def after_step(self, trainer: Trainer) -> None:
        """After the third update of this process, or the last: measure, write torch's snapshot, and stop recording."""
        if self._path is None or self.measured or (trainer.updates_here < TAKEN_AFTER and not trainer.finished):
            return
        history = torch.cuda.memory._snapshot()["device_traces"][trainer.device.index or 0]
        self.measured = measured_memory(history, trainer)
        torch.cuda.memory._dump_snapshot(str(viz_file(self._path)))  # type: ignore[no-untyped-call]
        torch.cuda.memory._record_memory_history(enabled=None)


def viz_file(path: Path) -> Path:
    """Where torch's snapshot goes, for https://pytorch.org/memory_viz."""
    return path.with_suffix(".pickle")


def measured_memory(history: Iterable[Mapping[str, Any]], trainer: Trainer) -> MeasuredMemory:
    """The parts alive at the peak of the allocator's history: what is known by its tensors, and by who asked for it."""
    alive = live_at_peak(history)
    allocated = sum(entry["size"] for entry in alive)
    states = (own_part(tensor) for state in trainer.optimizer.state.values() for tensor in state.values())
    parameters = [own_part(parameter) for parameter in trainer.model.parameters()]
    parts = {
        WEIGHTS: sum(parameter.nbytes for parameter in parameters),
        GRADIENTS: sum(parameter.nbytes for parameter in parameters),
        OPTIMIZER_STATE: sum(tensor.nbytes for tensor in states if isinstance(tensor, torch.Tensor) and tensor.is_cuda),
        LOGITS_AND_LOSS: sum(entry["size"] for entry in alive if holds_logits(entry)),
    }
    parts[REST] = allocated - sum(parts.values())
    return MeasuredMemory(
        parts=parts, allocated_bytes=allocated, reserved_bytes=torch.cuda.max_memory_reserved(trainer.device)
    )


def live_at_peak(history: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The allocations alive when most bytes were, of a history that begins with an empty allocator."""
    entries = list(history)
    now = most = 0
    peak = -1
    for index, entry in enumerate(entries):
        if entry["action"] == "alloc":
            now += entry["size"]
        elif entry["action"] == "free_completed":
            now -= entry["size"]
        if now > most:
            most, peak = now, index
    alive: dict[int, Mapping[str, Any]] = {}
    for entry in entries[: peak + 1]:
        if entry["action"] == "alloc":
            alive[entry["addr"]] = entry
        elif entry["action"] == "free_completed":
            alive.pop(entry["addr"], None)
    return list(alive.values())


def holds_logits(entry: Mapping[str, Any]) -> bool:
    """Whether an allocation is of a chunk's logits or losses, and not of the head's cast or gradient."""
    frames = entry.get("frames") or ()
    return any(frame["name"] in _asking_for_logits(str(frame["filename"])) for frame in frames)


def _asking_for_logits(filename: str) -> set[str]:
    folder, _, name = filename.rpartition("onecard/")
    return _LOGITS.get(name, set()) if folder else set()
