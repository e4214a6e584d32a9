"""nanoGPT's model under nanoGPT's loop, eager: every allocation and free of a run."""

from __future__ import annotations

from onecard.config.schema import RunConfig
from onecard.plan.memory.device import Device
from onecard.plan.memory.nanogpt.eager.backward import Backward
from onecard.plan.memory.tape import Tape


class EagerRun(Backward):
    """train.py with compile=False: the loop over the passes of forward.py and backward.py."""


def eager_tape(config: RunConfig, device: Device, *, returns_logits: bool = True) -> Tape:
    """All of a run's allocations and frees: phases "init", "eval0", "train", "eval", in nanoGPT's order."""
    return EagerRun(config, device, returns_logits=returns_logits).run()
