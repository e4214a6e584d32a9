"""The work of a run, read off a run on paper: of any model and optimizer that is written with paper's operations."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from operator import attrgetter
from typing import Any, Protocol

from onecard.config.schema import RunConfig, keys_that_affect
from onecard.models.nanogpt import eager_run
from onecard.models.run_on_paper import PaperRun
from onecard.paper.device import Device
from onecard.paper.work import (
    ATTENTION_DROPOUT,
    ATTENTION_WORK,
    DROPOUT,
    EMBEDDINGS_WORK,
    HEAD,
    LOSS_WORK,
    MATMULS,
    MEMORY_BOUND,
    NOTHING,
    UPDATE,
    Parts,
    Work,
)
from onecard.plan.speed.work import Costs, MicroBatch


class Run(Protocol):
    """A run on paper that can be asked for its work."""

    def work_of_update(self) -> Parts: ...

    def work_of_evaluation_batch(self) -> Parts: ...


Make = Callable[[RunConfig, Device], Run]  # attention's kernels depend on the device

# A vocabulary that is not a multiple of 8 keeps eager products off the fast kernels. This is an estimate: padding 50257
# to 50304 made all of nanoGPT 25 % faster (Karpathy on Twitter, February 2023) with 31 % of its FLOPs in that product,
# so it ran at about half speed. No row on the H200 shows it.
ODD_VOCABULARY_SLOWDOWN = 2.0
# Values that norms and GELU of a layer read and write per token and n_embd, both ways: what pointwise_flops is for.
_VALUES_OF_A_LAYER = 32
_READS_OF_LOGITS = 4  # by nanoGPT's two kernels: what loss_flops is for

# Profiles show more kernels in an update than its operations have: numbers, flags, the host's reading of loss and norm.
_MORE_KERNELS = Work(kernels=20)


class Keys:
    """The keys that decide work, in a model with layers; and around them."""

    def __init__(self, all_keys: Iterable[str]) -> None:
        self.all = tuple(all_keys)
        self.around = tuple(key for key in self.all if key not in ("n_head", "grad_checkpoint"))
        self.values, self.values_around = attrgetter(*self.all), attrgetter(*self.around)


_FOR_UPDATES = Keys({*keys_that_affect("speed"), "grad_clip"} - {"gradient_accumulation_steps", "compile", "n_layer"})
_FOR_EVALUATIONS = Keys(key for key in _FOR_UPDATES.all if key != "grad_checkpoint")
_ONE_MICRO_BATCH = RunConfig(gradient_accumulation_steps=1)


ours: Make = PaperRun  # a run of onecard's trainer, compiled: written out if it can be


def ours_eager(config: RunConfig, device: Device) -> Run:
    """A run of onecard's trainer, one operation after the other."""
    return PaperRun(config.model_copy(update={"compile": False}), device)


nanogpts: Make = eager_run  # a run of nanoGPT without torch.compile


def update_on_paper(make: Make, config: RunConfig, device: Device) -> Parts:
    """The work of a micro-batch, of adding its gradients to others, and of an update."""
    parts = _by_layers(partial(_in_an_update, make, device), _FOR_UPDATES, config)
    parts[UPDATE] += _MORE_KERNELS
    return parts


def evaluation_batch_on_paper(make: Make, config: RunConfig, device: Device) -> Parts:
    """The work of an evaluation batch of `batch_size` sequences."""
    return _by_layers(partial(_in_an_evaluation, make, device), _FOR_EVALUATIONS, config)


def _by_layers(work: Callable[..., Parts], keys: Keys, config: RunConfig) -> Parts:
    """The work of a model whose layers are alike: that of none, and for each what one adds."""
    layers = config.n_layer
    none = work(keys.around, keys.values_around(config), 0)
    one = work(keys.all, keys.values(config), 1)
    return {part: none.get(part, NOTHING) * (1 - layers) + one[part] * layers for part in one}


@lru_cache(maxsize=4096)
def _in_an_update(make: Make, device: Device, keys: tuple[str, ...], values: tuple[Any, ...], layers: int) -> Parts:
    return make(_shallow(keys, values, layers), device).work_of_update()


@lru_cache(maxsize=4096)
def _in_an_evaluation(make: Make, device: Device, keys: tuple[str, ...], values: tuple[Any, ...], layers: int) -> Parts:
    return make(_shallow(keys, values, layers), device).work_of_evaluation_batch()


def _shallow(keys: tuple[str, ...], values: tuple[Any, ...], layers: int) -> RunConfig:
    return _ONE_MICRO_BATCH.model_copy(update=dict(zip(keys, values, strict=True), n_layer=layers))


def micro_batch(parts: Parts, costs: Costs, *, byte: float = 1.0, value: float = 1.0) -> MicroBatch:
    """The parts of a micro-batch with what their values cost.

    `byte` and `value`: cost of those of the memory-bound parts, divided by that in nanoGPT's compiled kernels.
    """
    dropped = parts.get(DROPOUT, NOTHING).costing(costs.dropout_flops / 2)  # each layer has two
    pointwise = value * costs.pointwise_flops / _VALUES_OF_A_LAYER
    return MicroBatch(
        matmuls=parts.get(MATMULS, NOTHING) + parts[HEAD],
        attention=parts.get(ATTENTION_WORK, NOTHING).costing(costs.attention_flops)
        + parts.get(ATTENTION_DROPOUT, NOTHING).costing(costs.attention_dropout_flops),
        memory_bound=parts[MEMORY_BOUND].costing(pointwise, byte=byte) + parts[EMBEDDINGS_WORK] + dropped,
        loss=parts[LOSS_WORK].costing(costs.loss_flops / _READS_OF_LOGITS),
    )


def with_odd_vocabulary(parts: Parts, config: RunConfig) -> Parts:
    """The head's products as they run where tensor cores cannot read logits in place: rows of 16 bytes."""
    if config.vocab_size % 8 == 0:
        return parts
    return parts | {HEAD: parts[HEAD] + Work(tensor_flops=(ODD_VOCABULARY_SLOWDOWN - 1) * parts[HEAD].tensor_flops)}
