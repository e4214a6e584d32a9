"""Faults inside a rank: imported before the command by the process of that rank, which $FAULT tells what to do."""

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from errno import EIO, ENOSPC
from pathlib import Path
from typing import Any

import torch.distributed as dist

from onecard.cli import torchrun
from onecard.models.gpt2 import GPT2
from onecard.models.training import Steps
from onecard.train import checkpoint_parts, loop, meeting, operations
from onecard.train.operations import DeviceOperations
from onecard.train.optim import AdamW, Muon
from onecard.train.trainer import Trainer

AT_STEP = 7
NO_MEMORY = (
    "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"
)
FAULT, RANK = os.environ["FAULT"], os.environ["RANK"]


def before(owner: Any, name: str, do: Callable[[Any], None]) -> None:
    """Call `do` with the object before its method."""
    method = getattr(owner, name)

    def both(self: Any, *arguments: Any, **named: Any) -> Any:
        do(self)
        return method(self, *arguments, **named)

    setattr(owner, name, both)


def no_memory(trainer: Trainer) -> None:
    if trainer.step == AT_STEP and trainer.batch_size > 1:
        raise RuntimeError(NO_MEMORY)


def broken(trainer: Trainer) -> None:
    if trainer.step == AT_STEP:
        raise ValueError("broken by the test")


def disk_is_full(trainer: Trainer) -> None:
    if trainer.step == AT_STEP:

        def full(_descriptor: int) -> None:
            raise OSError(ENOSPC, os.strerror(ENOSPC))

        os.fsync = full


def no_memory_to_step(steps: Steps) -> None:
    if steps.batch_size > 1:
        raise RuntimeError(NO_MEMORY)


def no_memory_at_all(trainer: Trainer) -> None:
    if trainer.step == AT_STEP:
        raise RuntimeError(NO_MEMORY)


match FAULT:
    case "memory in an update":  # after its first micro-batch
        before(Trainer, "_next_batch", lambda trainer: no_memory(trainer) if trainer._batches else None)
    case "memory to step":
        before(Steps, "ready_to_step", no_memory_to_step)
    case "memory in a pass":  # in the second block
        blocks: list[int] = []

        def attention(model: GPT2) -> None:
            blocks.append(0)
            if len(blocks) == 2:
                raise RuntimeError(NO_MEMORY)

        before(GPT2, "attention", attention)
    case "memory in a backward pass":
        passes: list[int] = []

        def backward(_ops: DeviceOperations) -> None:
            passes.append(0)
            if len(passes) == 2:
                raise RuntimeError(NO_MEMORY)

        before(DeviceOperations, "backward", backward)
    case "memory for a workspace":
        once: list[int] = []

        def workspace(_optimizer: AdamW) -> None:
            once.append(0)
            if len(once) == 1:
                raise RuntimeError(NO_MEMORY)

        before(AdamW, "make_workspace", workspace)
    case "memory in an evaluation":
        evaluating, sizes = Steps._sequence_losses, []

        def losses(steps: Steps, x_BT: Any, y_BT: Any) -> Any:
            sizes.append(len(x_BT))
            if len(sizes) > 1 and len(x_BT) > 1:
                raise RuntimeError(NO_MEMORY)
            return evaluating(steps, x_BT, y_BT)

        Steps._sequence_losses = losses  # type: ignore[method-assign]
    case "memory for one sequence":
        before(Trainer, "_gradients", no_memory_at_all)
    case "exception":
        before(Trainer, "update", broken)
    case "full disk":
        before(Trainer, "update", disk_is_full)
    case "impatient":
        meeting.TIMEOUT = timedelta(seconds=2)
    case "killed while connecting":
        before(meeting.Meeting, "connect", lambda _: os.kill(os.getpid(), signal.SIGKILL))
    case "rank 0 is slow to connect" | "rank 1 is slow to connect":
        slow = FAULT.split()[1] == RANK
        before(meeting.Meeting, "connect", lambda _: time.sleep(9) if slow else Path(f"{RANK} connects").touch())
    case "late to hear that it is connected":
        connect = dist.init_process_group

        def late(*arguments: Any, **named: Any) -> None:
            connect(*arguments, **named)
            time.sleep(1)

        dist.init_process_group = late
    case "no network on another machine":
        os.environ["GROUP_RANK"] = RANK
        if RANK == "1":

            def no_network(*_: Any, **__: Any) -> None:
                raise RuntimeError("Unable to find address for: eth7")

            dist.init_process_group = no_network
    case "another disk":
        loop._says = lambda *_: False
    case "disk fails after a part is written":

        def fails(_: Path) -> None:
            raise OSError(EIO, os.strerror(EIO))

        checkpoint_parts.sync_file = fails
    case "killed before it writes its part":
        checkpoint_parts.save = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
    case "killed in Muon's step":
        before(Muon, "step", lambda _: os.kill(os.getpid(), signal.SIGKILL))
    case "memory for the norm":
        clips: list[int] = []
        clip = operations.clip_gradients

        def short(*arguments: Any, **named: Any) -> Any:
            clips.append(0)
            if len(clips) == 3:
                raise RuntimeError(NO_MEMORY)
            return clip(*arguments, **named)

        operations.clip_gradients = short
    case "in a hurry":
        torchrun._PATIENCE_SECONDS = 0.1
    case "late":
        meeting.TIMEOUT = timedelta(seconds=1)
        if RANK == "1":
            time.sleep(4)
    case "other code":
        torchrun._code = lambda: "1.0 (another)"
