"""The evaluation batch of onecard's trainer."""

from __future__ import annotations

from onecard.config.schema import RunConfig


def eval_batch_size(config: RunConfig) -> int:
    """Sequences of an evaluation batch: as many as of a micro-batch, unless the config says.

    That needs less memory than training does, whatever the shape, type and recomputation: an evaluation keeps nothing
    for a backward pass and has no gradients (tests/property/test_onecard_memory_laws.py asks the plan).
    """
    return config.eval_batch_size or config.batch_size
