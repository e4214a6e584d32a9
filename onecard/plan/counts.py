"""Parameters, FLOPs and tokens of a run: pure arithmetic, checked against nanoGPT's own printout."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any

from onecard.config.schema import SHAPE_KEYS, RunConfig
from onecard.models.architectures import structure_of
from onecard.models.optimizers import optimizer_of
from onecard.models.structure import Embedding, Kind, Linear, kind_counts, layers_of


@dataclass(frozen=True, kw_only=True)
class Params:
    """Trainable parameters; the tied input and output embedding counts once."""

    total: int
    nanogpt: int  # as nanoGPT prints them: without the position embeddings
    decayed: int  # those to which weight decay applies: matrices and embeddings, or Muon's matrices
    decayed_tensors: int


def count_params(config: RunConfig) -> Params:
    """The parameters of the model that `config` describes: sums over its layers."""
    return _params(_kept(config))


def count_tensors(config: RunConfig) -> int:
    """Tensors of parameters."""
    return sum(_kinds(_kept(config)).values())


_KEYS = (*SHAPE_KEYS, "optimizer")  # all that decides parameters and their weight decay
_kept = attrgetter(*_KEYS)


def _with(values: tuple[Any, ...]) -> RunConfig:
    return RunConfig().model_copy(update=dict(zip(_KEYS, values, strict=True)))


@lru_cache(maxsize=4096)
def _kinds(values: tuple[Any, ...]) -> Counter[Kind]:
    """How many parameters of each kind a model has, by the values of its keys."""
    return kind_counts(structure_of(_with(values)))


@lru_cache(maxsize=4096)
def _looked_up(values: tuple[Any, ...]) -> int:
    """Parameters in embeddings that no layer multiplies with."""
    layers = dict(layers_of(structure_of(_with(values).model_copy(update={"n_layer": 0}))))
    shared = {layer.tied_to for layer in layers.values() if isinstance(layer, Linear)}
    alone = [layer for name, layer in layers.items() if isinstance(layer, Embedding) and name not in shared]
    return sum(layer.rows * layer.channels for layer in alone)


@lru_cache(maxsize=4096)
def _params(values: tuple[Any, ...]) -> Params:
    config, kinds = _with(values), _kinds(values)
    optimizer = optimizer_of(config)
    decayed = {kind: count for kind, count in kinds.items() if optimizer.group_of(kind).decays}
    total = sum(kind.numel * count for kind, count in kinds.items())
    return Params(
        total=total,
        nanogpt=total - config.block_size * config.n_embd,
        decayed=sum(kind.numel * count for kind, count in decayed.items()),
        decayed_tensors=sum(decayed.values()),
    )


def flops_per_token(config: RunConfig) -> int:
    """FLOPs of forward and backward for one token (PaLM appendix B, as nanoGPT counts them).

    Embeddings whose rows are only looked up multiply nothing: positions, and words where the head has its own weight.
    """
    attention = 12 * config.n_layer * config.n_embd * config.block_size
    return 6 * (count_params(config).total - _looked_up(_kept(config))) + attention


def needed_flops_per_token(config: RunConfig) -> int:
    """The fewest FLOPs that training on one token needs: causal attention computes half the pairs that MFU counts."""
    return flops_per_token(config) - 6 * config.n_layer * config.n_embd * config.block_size


def mfu(config: RunConfig, *, tokens_per_second: float, peak_flops: float) -> float:
    """The fraction of a card's dense tensor peak that training at this speed uses."""
    return flops_per_token(config) * tokens_per_second / peak_flops


WIDEST = 2**17  # wider than any model; a comment in a config may claim any size


def shape_for_count(config: RunConfig, wanted: int) -> dict[str, int]:
    """The n_embd (and n_head, if it must change) that bring nanoGPT's count nearest to `wanted`, at the same depth.

    Heads have size 64. Their number stays if that comes within 5 % of `wanted`.
    """

    def distance(width: int) -> int:
        return abs(count_params(config.model_copy(update={"n_embd": width})).nanogpt - wanted)

    def nearest(step: int) -> int:
        width = step
        while width < WIDEST and distance(width + step) < distance(width):
            width += step
        return width

    same_heads = nearest(64 * config.n_head)
    if distance(same_heads) <= 0.05 * wanted:
        return {"n_embd": same_heads}
    width = nearest(64)
    return {"n_embd": width, "n_head": width // 64}
