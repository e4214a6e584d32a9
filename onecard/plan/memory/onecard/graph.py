"""Whether micro-batches are recorded as a CUDA graph: asked by the trainer and by the plan of its memory."""

from __future__ import annotations

from onecard.config.schema import RunConfig


def records_graph(config: RunConfig) -> bool:
    """Where blocks are compiled, unless full recomputation has to repeat dropout: a graph cannot draw the same mask."""
    return config.compile and not (config.grad_checkpoint == "full" and config.dropout > 0)
