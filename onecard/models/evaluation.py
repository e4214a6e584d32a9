"""Evaluations: the tokens and batches that onecard reads, and the standard error of the loss."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, nan, sqrt

from onecard.config.schema import RunConfig

# Standard deviation of the loss of a window of 1,024 tokens, in nats. Two GPT-2-like runs on FineWeb evaluated 1.6M and
# 3.3M tokens of a split; their losses are 0.007 to 0.013 off their curves, or 0.3 to 0.6 per window. A window holds
# few documents, so the error falls with the number of windows, not of tokens.
WINDOW_SPREAD, WINDOW_TOKENS = 0.45, 1024

TEXT_TOKENS = 100  # of the text that comes with an evaluation, after its prompt


@dataclass(frozen=True, kw_only=True)
class SplitLosses:
    """Losses of sequences of a split, in nats per token. Those of several ranks add up to those of all."""

    mean: float = nan
    spread: float = nan  # standard deviation; of one sequence there is none
    sequences: int = 0

    @property
    def error(self) -> float:
        """Standard error of the mean."""
        return self.spread / sqrt(self.sequences)

    def __add__(self, other: SplitLosses) -> SplitLosses:
        """Those of both, by Chan, Golub and LeVeque's formula for variances of parts (1979)."""
        if not (self.sequences and other.sequences):
            return self if self.sequences else other
        sequences, apart = self.sequences + other.sequences, other.mean - self.mean
        squares = self._squares + other._squares + apart**2 * self.sequences * other.sequences / sequences
        mean = self.mean + apart * other.sequences / sequences
        return SplitLosses(mean=mean, spread=sqrt(squares / (sequences - 1)), sequences=sequences)

    @property
    def _squares(self) -> float:
        """Sum of the squared distances from the mean."""
        return self.spread**2 * (self.sequences - 1) if self.sequences > 1 else 0.0


def eval_batch_size(config: RunConfig) -> int:
    """Sequences of an evaluation batch: those of a micro-batch, unless the config says otherwise.

    That needs less memory than training for every shape, type and recomputation: an evaluation keeps nothing for a
    backward pass and has no gradients (checked by tests/property/test_onecard_memory_laws.py).
    """
    return config.eval_batch_size or config.batch_size


def smaller_eval_batch(config: RunConfig) -> int | None:
    """Sequences of an evaluation batch with the tokens of a micro-batch; None where it has no more already.

    The same sequences are read, so the loss stays the same, and less memory is needed than in training.
    """
    most = max(1, config.batch_size * config.block_size // config.eval_length)
    return most if min(eval_batch_size(config), eval_sequences(config)) > most else None


def eval_sequences(config: RunConfig) -> int:
    """Sequences that one evaluation reads of a split, each once: as many as nanoGPT reads, for any batch size."""
    return config.eval_iters * config.batch_size


def eval_tokens(config: RunConfig) -> int:
    """Tokens that one evaluation reads of a split; a smaller split is read whole, once."""
    return eval_sequences(config) * config.eval_length


def standard_error(tokens: int) -> float:
    """Standard error, in nats, of a loss over `tokens` of a split: a rule of thumb."""
    return WINDOW_SPREAD / sqrt(tokens / WINDOW_TOKENS)


def writes_text(config: RunConfig, step: int) -> bool:
    """Whether the evaluation at `step` comes with a text: the first, the last, and each that a multiple of
    sample_interval has come before."""
    if not config.sample_interval:
        return False
    before = step - config.eval_interval
    return step in (0, config.max_iters) or step // config.sample_interval > before // config.sample_interval


def worse_in_a_row(losses: Iterable[float]) -> int:
    """How many of the last losses are not below the lowest before them."""
    lowest, count = inf, 0
    for loss in losses:
        lowest, count = (loss, 0) if loss < lowest else (lowest, count + 1)
    return count


def evaluations_after(config: RunConfig, step: int) -> int:
    """Evaluations still to come once update `step` is done and, where it is due, evaluated; the last update has one."""
    if step >= config.max_iters:
        return 0
    last = int(config.max_iters % config.eval_interval > 0)
    return config.max_iters // config.eval_interval - step // config.eval_interval + last
