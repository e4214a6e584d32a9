"""How the trainer runs a config on a card. The trainer asks, and so does the plan of its memory and time."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onecard.config.schema import RunConfig

RECOMPUTATION = ("none", "selective", "full")  # grad_checkpoint: less and less memory, more and more work


def recomputations(config: RunConfig) -> tuple[str, ...]:
    """The values of grad_checkpoint that differ for a model: nanochat keeps nothing that selective would drop."""
    return ("none", "full") if config.model == "nanochat" else RECOMPUTATION


def shards(config: RunConfig) -> bool:
    """Whether the ranks hold a share each of the model, which then runs eagerly: weights come and go between passes,
    so nothing that is compiled, written out or recorded can expect them at one place. Config: of `Ranks.as_run`."""
    return config.shard == "full"


def records_graph(config: RunConfig) -> bool:
    """Whether a micro-batch is recorded as a CUDA graph: where it is compiled or written out.

    The exception is full recomputation with dropout: a graph cannot draw the same mask again.
    """
    if config.grad_checkpoint == "full" and config.dropout > 0:
        return False
    return fuses(config) or compiles_blocks(config)


def fuses(config: RunConfig, *, half: bool | None = None) -> bool:
    """Whether the passes are written out (models/*_passes.py): compiled, half precision, no dropout, no biases.

    `half`: whether products run in half precision, if that is known; otherwise the config decides, for a card.
    """
    is_half = config.dtype != "float32" if half is None else half
    return config.compile and is_half and not config.dropout and not config.bias and not shards(config)


def compiles_blocks(config: RunConfig, *, written_out: bool | None = None) -> bool:
    """Whether torch compiles the blocks: GPT-2's, where they are not written out. Others then run eagerly.

    `written_out`: whether they are, if that is known; otherwise the config decides.
    """
    is_written_out = fuses(config) if written_out is None else written_out
    return config.compile and config.model == "gpt2" and not is_written_out and not shards(config)
