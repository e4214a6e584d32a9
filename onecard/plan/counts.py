"""Parameters, FLOPs and tokens of a run: pure arithmetic, checked against nanoGPT's own printout."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter
from typing import Any

from onecard.config.schema import SHAPE_KEYS, RunConfig
from onecard.models.architectures import structure_of
from onecard.models.optimizers import kinds_in, optimizer_of
from onecard.models.structure import Embedding, Structure, outside_blocks, tied_layers


@dataclass(frozen=True, kw_only=True)
class Params:
    """Trainable parameters; a tied input and output embedding counts once."""

    total: int
    nanogpt: int  # as nanoGPT prints them: without the position embeddings, where the model has any
    decayed: int  # those to which weight decay applies: matrices and embeddings, or Muon's matrices
    decayed_tensors: int


def count_params(config: RunConfig) -> Params:
    """The parameters of the model that `config` describes: sums over its layers."""
    return _params(_kept(config))


def count_tensors(config: RunConfig) -> int:
    """Tensors of parameters."""
    return sum(kinds_in(config).values())


_KEYS = (*SHAPE_KEYS, "optimizer")  # all that decides parameters and their weight decay
_kept = attrgetter(*_KEYS)


def _with(values: tuple[Any, ...]) -> RunConfig:
    return RunConfig().model_copy(update=dict(zip(_KEYS, values, strict=True)))


@lru_cache(maxsize=4096)
def _params(values: tuple[Any, ...]) -> Params:
    config = _with(values)
    optimizer, kinds = optimizer_of(config), kinds_in(config)
    decayed = {kind: count for kind, count in kinds.items() if optimizer.group_of(kind).decays}
    total = sum(kind.numel * count for kind, count in kinds.items())
    return Params(
        total=total,
        nanogpt=total - _embeddings(structure_of(config)).get("transformer.wpe", 0),
        decayed=sum(kind.numel * count for kind, count in decayed.items()),
        decayed_tensors=sum(decayed.values()),
    )


def multiplied_params(config: RunConfig) -> int:
    """The parameters that cost FLOPs: all but embeddings that are only looked up. A tied one is multiplied as the head.

    Of a GPT-2 these are the ones that nanoGPT counts.
    """
    return _multiplied(_kept(config))


@lru_cache(maxsize=4096)
def _multiplied(values: tuple[Any, ...]) -> int:
    structure = structure_of(_with(values))
    heads = set(tied_layers(structure).values())
    looked_up = sum(size for name, size in _embeddings(structure).items() if name not in heads)
    return _params(values).total - looked_up


def _embeddings(structure: Structure) -> dict[str, int]:
    """The parameters of every embedding, by name."""
    outside = outside_blocks(structure)
    return {name: layer.rows * layer.channels for name, layer in outside if isinstance(layer, Embedding)}


def flops_per_token(config: RunConfig) -> int:
    """FLOPs of forward and backward for one token (PaLM appendix B; of a GPT-2 as nanoGPT counts them)."""
    attention = 12 * config.n_layer * config.n_embd * config.block_size
    return 6 * multiplied_params(config) + attention


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
