"""How the trainer runs a config on a card. The trainer asks, and so does the plan of its memory and time."""

from __future__ import annotations

from onecard.config.schema import RunConfig


def records_graph(config: RunConfig) -> bool:
    """Whether a micro-batch is recorded as a CUDA graph: where blocks are compiled.

    The exception is full recomputation with dropout: a graph cannot draw the same mask again.
    """
    return config.compile and not (config.grad_checkpoint == "full" and config.dropout > 0)


def fuses(config: RunConfig, *, half: bool | None = None) -> bool:
    """Whether the passes are written out (gpt2_passes.py): compiled, in half precision, without dropout and biases.

    `half`: whether products run in half precision, if that is known; otherwise the config decides, for a card.
    """
    is_half = config.dtype != "float32" if half is None else half
    return config.compile and is_half and not config.dropout and not config.bias
