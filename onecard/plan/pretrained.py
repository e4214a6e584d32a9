"""Runs that start from trained weights: the weights fix the shape, so only the choice of weights is free."""

from __future__ import annotations

from collections.abc import Iterator

from onecard.config.hf_config import OPENAI_WEIGHTS, openai_weights
from onecard.config.resolve import resolve
from onecard.config.schema import GPT2_SHAPE_KEYS, RunConfig

OF_WEIGHTS = tuple(key for key in GPT2_SHAPE_KEYS if key != "block_size")  # a run may use a shorter context


def smaller_weights(config: RunConfig) -> Iterator[RunConfig]:
    """The same run from each smaller set of OpenAI's weights, the largest first; nothing for other weights."""
    names, given = list(OPENAI_WEIGHTS), openai_weights(config.init_from)
    for name in reversed(names[: names.index(given)] if given else []):
        weights = resolve(f"init_from = {name!r}").config
        yield config.replace({"init_from": name, **{key: getattr(weights, key) for key in OF_WEIGHTS}})
