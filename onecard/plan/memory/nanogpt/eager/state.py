"""What an eager run holds besides train.py's variables, and what every part of its model uses."""

from __future__ import annotations

from onecard.config.schema import RunConfig
from onecard.plan.memory import kernels
from onecard.plan.memory.device import Device
from onecard.plan.memory.kernels import FLOAT
from onecard.plan.memory.nanogpt.loop import Loop
from onecard.plan.memory.tags import WORKSPACE


class State(Loop):
    """Sizes that are used often, autocast's cache, and operations on blocks."""

    def __init__(self, config: RunConfig, device: Device, *, returns_logits: bool = True) -> None:
        super().__init__(config, device, returns_logits=returns_logits)
        # whether attention saves its own copies instead of qkv, and its output is copied before the projection
        self.copies_heads = self.kernel == "math" or (self.kernel == "flash" and self.D % 8 != 0)
        self.stream = self.N * self.C * FLOAT  # the residual stream and everything added to it
        self.narrow = self.N * self.C * self.item  # a token's C values in the compute type
        self.mask = self.N * self.C  # a dropout mask: one byte a value
        self.rows = self.N * FLOAT  # one float32 a token
        self.weight_casts: list[int] = []  # autocast's cache, emptied when the context exits
        self.bias_casts: list[int] = []

    def autocast_ends(self, *, training: bool) -> None:
        """`with ctx` ends: casts are no longer cached; in training the backward pass still holds the weights'."""
        if not training:
            self.free(*self.weight_casts)
        self.free(*self.bias_casts)
        self.weight_casts, self.bias_casts = [], []

    def replaced(self, block: int, size: int, tag: str) -> int:
        """A new block made from an old one, which is then freed: a cast, or an operation's gradient."""
        new = self.alloc(size, tag)
        self.free(block)
        return new

    def column_sum(self, rows: int, size: int, columns: int, tag: str, replaces: int | None = None) -> int:
        """sum(0) of a matrix: the result, and the buffers of a reduction in two passes."""
        out = self.alloc(size, tag)
        buffers = kernels.column_sum_buffers(self.device, rows, columns)
        if buffers:
            partial, semaphores = (self.alloc(buffer, WORKSPACE) for buffer in buffers)
            self.free(semaphores, partial)
        if replaces is not None:
            self.free(replaces)
        return out
