"""Evaluations: what onecard's read, in which batches, and how sure a loss of so many tokens is."""

from __future__ import annotations

from math import sqrt

from onecard.config.schema import RunConfig

# Standard deviation of the loss of a window of 1,024 tokens, in nats. Evaluations of two GPT-2-like runs on FineWeb, of
# 1.6M and 3.3M tokens of a split, lie 0.007 to 0.013 off their curves: 0.3 to 0.6 a window. Tokens of one window are of
# few documents, so it is by windows, and not by tokens, that a mean gets surer.
WINDOW_SPREAD, WINDOW_TOKENS = 0.45, 1024


def eval_batch_size(config: RunConfig) -> int:
    """Sequences of an evaluation batch: as many as of a micro-batch, unless the config says.

    That needs less memory than training does, whatever the shape, type and recomputation: an evaluation keeps nothing
    for a backward pass and has no gradients (tests/property/test_onecard_memory_laws.py asks the plan).
    """
    return config.eval_batch_size or config.batch_size


def smaller_eval_batch(config: RunConfig) -> int | None:
    """Sequences of an evaluation batch with no more tokens than a micro-batch; None where there are no more anyway.

    The same sequences are read, so the loss stays; what is needed is less than training needs.
    """
    most = max(1, config.batch_size * config.block_size // config.eval_length)
    return most if min(eval_batch_size(config), eval_sequences(config)) > most else None


def eval_sequences(config: RunConfig) -> int:
    """Sequences that one evaluation reads of a split, each once: as many as nanoGPT does, whatever the batch."""
    return config.eval_iters * config.batch_size


def eval_tokens(config: RunConfig) -> int:
    """Tokens that one evaluation reads of a split; a smaller split is read whole, once."""
    return eval_sequences(config) * config.eval_length


def standard_error(tokens: int) -> float:
    """About how far the loss of so many tokens of a split lies off that of all of it, in nats: a rule of thumb."""
    return WINDOW_SPREAD / sqrt(tokens / WINDOW_TOKENS)


def evaluations_after(config: RunConfig, step: int) -> int:
    """Evaluations still to come once update `step` is done and, where it is due, evaluated; the last update has one."""
    if step >= config.max_iters:
        return 0
    last = int(config.max_iters % config.eval_interval > 0)
    return config.max_iters // config.eval_interval - step // config.eval_interval + last
