"""The work of a run, read off a run on paper: of any model and optimizer that is written with paper's operations."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Protocol

from onecard.config.schema import RunConfig, keys_that_affect
from onecard.models.nanogpt import eager_run
from onecard.models.run_on_paper import PaperRun
from onecard.paper.device import Device
from onecard.paper.work import (
    ATTENTION_WORK,
    DROPOUT,
    EMBEDDINGS_WORK,
    HEAD,
    LOSS_WORK,
    MATMULS,
    MEMORY_BOUND,
    NOTHING,
    Parts,
    Work,
)
from onecard.plan.cards import device_of
from onecard.plan.speed.work import Costs, MicroBatch


class Run(Protocol):
    """A run on paper that can be asked for its work."""

    def work_of_update(self) -> Parts: ...

    def work_of_evaluation_batch(self) -> Parts: ...


Make = Callable[[RunConfig, Device], Run]

# A vocabulary that is not a multiple of 8 keeps eager products off the fast kernels. This is an estimate: padding 50257
# to 50304 made all of nanoGPT 25 % faster (Karpathy on Twitter, February 2023) with 31 % of its FLOPs in that product,
# so it ran at about half speed. No row on the H200 shows it.
ODD_VOCABULARY_SLOWDOWN = 2.0
# Values that norms and GELU of a layer read and write per token and n_embd, both ways: what pointwise_flops is for.
_VALUES_OF_A_LAYER = 32
_READS_OF_LOGITS = 4  # by nanoGPT's two kernels: what loss_flops is for

_KEYS = {*keys_that_affect("memory", "speed"), "grad_clip"} - {"memory_limit", "expandable_segments"}
_NO_DEVICE = device_of(None)  # work does not depend on it


def update_on_paper(make: Make, config: RunConfig) -> Parts:
    """The work of a micro-batch, of adding its gradients to others, and of an update."""
    return _by_layers(make, _alike(config, gradient_accumulation_steps=1), False)


def evaluation_batch_on_paper(make: Make, config: RunConfig) -> Parts:
    """The work of an evaluation batch of `batch_size` sequences."""
    size = {"eval_batch_size": None, "eval_block_size": None, "gradient_accumulation_steps": 1}
    return _by_layers(make, _alike(config, **size, grad_checkpoint="none"), True)


def ours(config: RunConfig, device: Device) -> Run:
    """A run of onecard's trainer."""
    return PaperRun(config, device)


def nanogpts(config: RunConfig, device: Device) -> Run:
    """A run of nanoGPT without torch.compile."""
    return eager_run(config, device)


def _alike(config: RunConfig, **changes: object) -> RunConfig:
    """A config of the same work; others of that work give the same one."""
    return _PLAIN.model_copy(update={key: getattr(config, key) for key in _KEYS} | changes)


_PLAIN = RunConfig()


@lru_cache(maxsize=4096)
def _by_layers(make: Make, config: RunConfig, evaluates: bool) -> Parts:
    """The work of a model whose layers are alike: without layers, and `n_layer` times what one adds."""

    def work(layers: int) -> Parts:
        run = make(config.model_copy(update={"n_layer": layers}), _NO_DEVICE)
        return run.work_of_evaluation_batch() if evaluates else run.work_of_update()

    none, one = work(0), work(1)
    return {part: none.get(part, NOTHING) * (1 - config.n_layer) + one[part] * config.n_layer for part in one}


def micro_batch(parts: Parts, costs: Costs, *, byte: float = 1.0, value: float = 1.0) -> MicroBatch:
    """The parts of a micro-batch with what their values cost.

    `byte` and `value`: cost of those of the memory-bound parts, divided by that in nanoGPT's compiled kernels.
    """
    dropped = parts.get(DROPOUT, NOTHING).costing(costs.dropout_flops / 2)  # each layer has two
    pointwise = value * costs.pointwise_flops / _VALUES_OF_A_LAYER
    return MicroBatch(
        matmuls=parts.get(MATMULS, NOTHING) + parts[HEAD],
        attention=parts.get(ATTENTION_WORK, NOTHING).costing(costs.attention_flops),
        memory_bound=parts[MEMORY_BOUND].costing(pointwise, byte=byte) + parts[EMBEDDINGS_WORK] + dropped,
        loss=parts[LOSS_WORK].costing(costs.loss_flops / _READS_OF_LOGITS),
    )


def with_odd_vocabulary(parts: Parts, config: RunConfig) -> Parts:
    """The head's products as they run where tensor cores cannot read logits in place: rows of 16 bytes."""
    if config.vocab_size % 8 == 0:
        return parts
    return parts | {HEAD: parts[HEAD] + Work(tensor_flops=(ODD_VOCABULARY_SLOWDOWN - 1) * parts[HEAD].tensor_flops)}
