"""One run whose speed was measured."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from onecard.config.schema import GPT2_SHAPE_KEYS, RunConfig
from onecard.plan.counts import count_params
from onecard.units import count


class MeasuredRun(NamedTuple):
    """One run in steady state: its card, what its speed depends on, and tokens per second."""

    card: str
    n_layer: int
    n_head: int
    n_embd: int
    block_size: int
    batch_size: int
    gradient_accumulation_steps: int
    vocab_size: int
    dtype: str
    dropout: float
    compile: bool
    tokens_per_second: float
    source: str
    bias: bool = False
    grad_checkpoint: str = "none"
    loss_chunk: int | None = None
    model: str = "gpt2"
    optimizer: str = "adamw"

    @property
    def config(self) -> RunConfig:
        """The run's config, as far as its speed depends on it."""
        return _config_of(self)

    @property
    def params(self) -> int:
        """Parameters as nanoGPT counts them."""
        return count_params(RunConfig.model_validate({key: getattr(self, key) for key in GPT2_SHAPE_KEYS})).nanogpt

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch."""
        return self.batch_size * self.block_size

    @property
    def description(self) -> str:
        """`123.59M (12/12/768), 8 × 1024 bfloat16 compiled on a GeForce RTX 4070: 56,100 tokens/s (public log)`"""
        shape = f"{count(self.params)} ({self.n_layer}/{self.n_head}/{self.n_embd})"
        mode = "compiled" if self.compile else "eager"
        how = f"{self.batch_size} × {self.block_size} {self.dtype} {mode}{' with biases' if self.bias else ''}"
        how += "" if self.grad_checkpoint == "none" else f", {self.grad_checkpoint} recomputation"
        return f"{shape}, {how} on {_a(self.card)}: {self.tokens_per_second:,.0f} tokens/s ({self.source})"


KEYS = tuple(name for name in MeasuredRun._fields if name in RunConfig.model_fields)  # of its config

# Of a file that people send: what was measured, on what, with what.
SHARED_COLUMNS = (
    *("card", "driver", "torch", "date"),
    *KEYS,
    *("tokens_per_second", "reserved_bytes", "process_bytes", "threads"),
)


@cache
def _config_of(run: MeasuredRun) -> RunConfig:
    return RunConfig().replace({key: getattr(run, key) for key in KEYS})


def _a(noun: str) -> str:
    return f"an {noun}" if noun[0] in "AEIOUH" else f"a {noun}"
