"""Every model by its name in configs: its layers, its forward pass, and both its passes written out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from onecard.config.schema import RunConfig
from onecard.models import gpt2, gpt2_passes, nanochat, nanochat_passes
from onecard.models.structure import Structure


class Architecture(NamedTuple):
    """A model."""

    structure: Callable[[RunConfig], Structure]
    model: type[Any]
    passes: type[Any]


ARCHITECTURES = {
    "gpt2": Architecture(gpt2.structure, gpt2.GPT2, gpt2_passes.Passes),
    "nanochat": Architecture(nanochat.structure, nanochat.Nanochat, nanochat_passes.Passes),
}


def architecture_of(config: RunConfig) -> Architecture:
    """The model of a config."""
    return ARCHITECTURES[config.model]


def structure_of(config: RunConfig) -> Structure:
    """The layers of a config's model."""
    return architecture_of(config).structure(config)
