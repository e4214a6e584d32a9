"""Recipes: named sets of values. Each is a key like any other: `plan --explain` shows it, a file or a flag changes it.

defaults < recipe < file < flags. A file is written for one recipe: the one it names, else nanoGPT's. If a flag names
another, the file's values for the keys of both recipes do not count, because they would be right for the other alone:
AdamW's learning rate of 0.0006 is no rate of Muon's model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import log, prod
from typing import Any

from onecard.config.schema import KEYS, whole

FAST = "fast"
NANOGPT = "nanogpt"  # the recipe of a config that names none: the default of every key


@dataclass(frozen=True)
class From:
    """A value that follows from other keys, unless somebody sets it: `of` gets their values in this order."""

    keys: tuple[str, ...]
    of: Callable[..., object]


def _same(value: object) -> object:
    return value


def _to_two_digits(value: float) -> float:
    return float(f"{value:.2g}")


# The rates were searched at 128 and 768 wide and at 2,048 and 16,384 tokens an update, on short runs
# (docs/measurements/recipe-log.md); between and beyond, these are powers through those few points.
_SIZES = ("n_embd", "batch_size", "gradient_accumulation_steps", "block_size")
_WIDTH, _TOKENS = 768, 16_384


def _muon_rate(width: int, *tokens: int) -> float:
    """0.02, also at half a million tokens an update (nanochat, modded-nanogpt); less for smaller updates."""
    return _to_two_digits(0.02 * min(1.0, prod(tokens) / _TOKENS) ** 0.5 * (width / _WIDTH) ** (-1 / 3))


def _head_rate(width: int, *tokens: int) -> float:
    """AdamW moves every weight of the head at each update, and a wide head has more of them behind each logit."""
    return _to_two_digits(0.003 * (prod(tokens) / _TOKENS) ** 0.2 * (width / _WIDTH) ** -1.25)


_HEAD_SIZE, _MOST_HEADS = 128, 1024
_GPT2_HEAD_SIZE = 64


def _heads(width: int, size: int = _HEAD_SIZE) -> int:
    """Heads of about 128, at least two where the width allows it.

    Normed queries and keys score at most √D. Among 1,024 tokens a score of 8, that of D = 64, cannot pick out one.
    """
    fitting = [heads for heads in range(1, _MOST_HEADS) if width % (2 * heads) == 0] or [1]
    wide = [heads for heads in fitting if heads > 1] or fitting
    return min(wide, key=lambda heads: abs(log(width / heads / size)))


def _gpt2_heads(width: int) -> int:
    return _heads(width, _GPT2_HEAD_SIZE)


def _momentum_warmup(updates: int) -> int:
    """A quarter of a short run."""
    return min(300, updates // 4)


RECIPES: Mapping[str, Mapping[str, object]] = {
    NANOGPT: {},
    # docs/explain/recipe.md says why, and where each is from.
    FAST: {
        "model": "nanochat",
        "n_head": From(("n_embd",), _heads),
        "optimizer": "muon",
        "learning_rate": 0.3,  # of the embedding, which a norm follows
        "head_learning_rate": From(_SIZES, _head_rate),
        "muon_learning_rate": From(_SIZES, _muon_rate),
        "muon_momentum": 0.95,
        "muon_momentum_warmup": From(("max_iters",), _momentum_warmup),
        "beta1": 0.8,
        "beta2": 0.99,
        "weight_decay": 0.0,
        "grad_clip": 0.0,
        "schedule": "wsd",
        "decay_share": 1.0,  # a straight line
        "decay_lr": True,
        "lr_decay_iters": From(("max_iters",), _same),
        "min_lr": 0.0,
        "warmup_iters": 0,
        "dropout": 0.0,
        "bias": False,
    },
}


# Under nanoGPT's recipe, for a file that is written for another and so says neither: nanoGPT's own defaults, 12 heads
# and 600,000 updates until min_lr, would not fit every width and length.
_BACK_TO_NANOGPT: Mapping[str, From] = {
    "n_head": From(("n_embd",), _gpt2_heads),
    "lr_decay_iters": From(("max_iters",), _same),
}


def recipe_values(recipe: str, said: Mapping[str, Any]) -> dict[str, object]:
    """The recipe's values for a config of which `said` is known; {} for one that does not exist."""
    return _made(RECIPES.get(recipe, {}), said)


def values_back(said: Mapping[str, Any]) -> dict[str, object]:
    """What nanoGPT's recipe needs beside its defaults for a file that is written for another."""
    return _made(_BACK_TO_NANOGPT, said)


def derived_keys(recipe: str) -> tuple[str, ...]:
    """The keys whose values the recipe makes from others."""
    return tuple(key for key, value in RECIPES[recipe].items() if isinstance(value, From))


def _made(values: Mapping[str, object], said: Mapping[str, Any]) -> dict[str, object]:
    def value_of(key: str) -> object:
        value = whole(said.get(key, KEYS[key].default))
        return value if type(value) is int and value > 0 else KEYS[key].default  # the config's checks refuse it later

    return {
        key: value.of(*map(value_of, value.keys)) if isinstance(value, From) else value for key, value in values.items()
    }


def following(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, object]:
    """The recipe's values that are others for the sizes after a change; not those that somebody had set."""
    was, now = (recipe_values(str(after["recipe"]), config) for config in (before, after))
    return {key: now[key] for key in now if before[key] == was[key] != now[key]}


def keys_between(recipe: str, other: str) -> frozenset[str]:
    """The keys that two recipes give different values."""
    return frozenset({*RECIPES.get(recipe, {}), *RECIPES.get(other, {})}) if recipe != other else frozenset()


def default_of(key: str, config: Mapping[str, object]) -> object:
    """The value of a key that a file with this recipe need not state."""
    return recipe_values(str(config["recipe"]), config).get(key, KEYS[key].default)
