"""The shape of a model for a wanted number of parameters: GPT-2's proportions, heads of size 64."""

from __future__ import annotations

from collections.abc import Iterator
from math import log

from onecard.config.schema import RunConfig
from onecard.plan.counts import count_params

GPT2_WIDTH_PER_LAYER = 64  # 768 / 12
SHAPE_OF_SIZE = ("n_layer", "n_head", "n_embd")  # the keys that shape_for_params sets
HEAD_SIZE = 64  # GPT-2's, and fast in every attention kernel


def shape_for_params(config: RunConfig, wanted: int) -> RunConfig:
    """The shape whose nanoGPT count is nearest to `wanted`, with heads of 64; if several are, the most like GPT-2."""

    def distance(shape: RunConfig) -> float:
        likeness = abs(log(shape.n_embd / shape.n_layer / GPT2_WIDTH_PER_LAYER))
        return abs(log(count_params(shape).nanogpt / wanted)) + 0.01 * likeness

    return min(_shapes(config), key=distance)


def _shapes(config: RunConfig) -> Iterator[RunConfig]:
    for n_layer in sorted({*range(2, 25), 28, 30, 32, 36, 40, 48, config.n_layer}):
        for n_head in range(1, 41):
            width = n_head * HEAD_SIZE
            if 16 <= width / n_layer <= 200:
                yield config.model_copy(update={"n_layer": n_layer, "n_head": n_head, "n_embd": width})
