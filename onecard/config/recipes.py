"""Recipes: named sets of values. Each is a key like any other: `plan --explain` shows it, a file or a flag changes it.

defaults < recipe < file < flags. A file is written for one recipe: the one it names, else nanoGPT's. If a flag names
another, the file's values for the keys of both recipes do not count, because they would be right for the other alone:
AdamW's learning rate of 0.0006 is no rate of Muon's model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from onecard.config.schema import KEYS

FAST = "fast"
NANOGPT = "nanogpt"  # the recipe of a config that names none: the default of every key


@dataclass(frozen=True)
class SameAs:
    """The value of another key, unless somebody sets this one."""

    key: str


RECIPES: Mapping[str, Mapping[str, object]] = {
    NANOGPT: {},
    # docs/explain/recipe.md says why, and where each is from.
    FAST: {
        "model": "nanochat",
        "optimizer": "muon",
        "learning_rate": 0.3,  # of the embedding
        "head_learning_rate": 0.01,
        "muon_learning_rate": 0.02,
        "muon_momentum": 0.95,
        "beta1": 0.9,
        "beta2": 0.95,
        "weight_decay": 0.0,
        "grad_clip": 0.0,
        "schedule": "wsd",
        "decay_share": 1.0,  # a straight line
        "decay_lr": True,
        "lr_decay_iters": SameAs("max_iters"),
        "min_lr": 0.0,
        "warmup_iters": 0,
        "dropout": 0.0,
        "bias": False,
    },
}


def recipe_values(recipe: str, said: Mapping[str, object]) -> dict[str, object]:
    """The recipe's values for a config of which `said` is known; {} for one that does not exist."""
    return {
        key: said.get(value.key, KEYS[value.key].default) if isinstance(value, SameAs) else value
        for key, value in RECIPES.get(recipe, {}).items()
    }


def keys_between(recipe: str, other: str) -> frozenset[str]:
    """The keys that two recipes give different values."""
    return frozenset({*RECIPES.get(recipe, {}), *RECIPES.get(other, {})}) if recipe != other else frozenset()


def default_of(key: str, config: Mapping[str, object]) -> object:
    """The value of a key that a file with this recipe need not state."""
    return recipe_values(str(config["recipe"]), config).get(key, KEYS[key].default)
