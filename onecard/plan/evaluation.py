"""The evaluation of onecard's trainer: its batch, and what it reads."""

from __future__ import annotations

from onecard.config.schema import RunConfig


def eval_batch_size(config: RunConfig) -> int:
    """Sequences of an evaluation batch: as many as of a micro-batch, unless the config says.

    That needs less memory than training does, whatever the shape, type and recomputation: an evaluation keeps nothing
    for a backward pass and has no gradients (tests/property/test_onecard_memory_laws.py asks the plan).
    """
    return config.eval_batch_size or config.batch_size


def eval_sequences(config: RunConfig) -> int:
    """Sequences that one evaluation reads of a split, each once: as many as nanoGPT does, whatever the batch."""
    return config.eval_iters * config.batch_size


def eval_tokens(config: RunConfig) -> int:
    """Tokens that one evaluation reads of a split; a smaller split is read whole, once."""
    return eval_sequences(config) * (config.eval_block_size or config.block_size)
