"""onecard's trainer, eager, compiled or fused: every allocation and free of a run."""

from __future__ import annotations

from onecard.config.schema import RunConfig
from onecard.plan.memory.device import Device
from onecard.plan.memory.onecard.compiled.run import CompiledTrainer
from onecard.plan.memory.onecard.eager import EagerTrainer
from onecard.plan.memory.onecard.fused import FusedTrainer
from onecard.plan.memory.onecard.graph import fuses, records_graph
from onecard.plan.memory.tape import Tape


def onecard_tape(config: RunConfig, device: Device, *, rounds: int | None = None) -> Tape:
    """All of a run's allocations and frees: phases "init", "eval0", then `rounds` times "train" and "eval".

    The default is as many rounds as bring something new. When a micro-batch is recorded for the second time, the cuBLAS
    workspaces that the first recording left behind exist from its start.
    """
    compiled = FusedTrainer if fuses(config) else CompiledTrainer
    trainer = compiled if config.compile else EagerTrainer
    return trainer(config, device).run(rounds or (2 if records_graph(config) else 1))
