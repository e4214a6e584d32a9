"""How the trainer runs a config on a card: asked by the trainer and by the plan of its memory and time."""

from __future__ import annotations

from onecard.config.schema import RunConfig


def records_graph(config: RunConfig) -> bool:
    """Where blocks are compiled, unless full recomputation has to repeat dropout: a graph cannot draw the same mask."""
    return config.compile and not (config.grad_checkpoint == "full" and config.dropout > 0)


def fuses(config: RunConfig, *, half: bool | None = None) -> bool:
    """Whether the passes are those of train/fused.py: compiled, in half precision, without dropout and biases.

    `half`: whether products run in half precision, where that is known; else as the config says, for a card.
    """
    is_half = config.dtype != "float32" if half is None else half
    return config.compile and is_half and not config.dropout and not config.bias
