"""A micro-batch as a CUDA graph: its kernels recorded once and launched together, so the card never waits for Python.

A graph owns the memory of its activations for as long as it lives, and adds to gradients that must exist before it is
recorded. So it is let go before anything else wants the memory (an evaluation, a smaller micro-batch) and recorded
again afterwards, which takes about as long as one micro-batch without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn


class RecordedMicroBatch:
    """`run(x_BT, y_BT)`, recorded without being run; calling it copies its arguments and replays."""

    def __init__(self, run: Callable[[Tensor, Tensor], None], x_BT: Tensor, y_BT: Tensor) -> None:
        self._x_BT, self._y_BT = torch.empty_like(x_BT), torch.empty_like(y_BT)
        self._graph = torch.cuda.CUDAGraph()
        # thread_local: the thread that prepares the next batches may pin memory meanwhile
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            run(self._x_BT, self._y_BT)

    def __call__(self, x_BT: Tensor, y_BT: Tensor) -> None:
        self._x_BT.copy_(x_BT, non_blocking=True)
        self._y_BT.copy_(y_BT, non_blocking=True)
        self._graph.replay()


def zero_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Set gradients to zero, in the memory they have; make those that do not exist."""
    existing = []
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        else:
            existing.append(parameter.grad)
    if existing:
        torch._foreach_zero_(existing)
