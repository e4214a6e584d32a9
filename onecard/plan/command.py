"""What to type to start a trainer: program, config, keys, and a setting in front."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote
from typing import Any

from onecard.config.schema import NANOGPT_KEYS
from onecard.config.shown import typed
from onecard.plan.speed import TrainerName

ALLOCATOR_SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # the old name, and that of torch >= 2.10
EXPANDABLE = f"{ALLOCATOR_SETTINGS[0]}=expandable_segments:True"
PROGRAMS: dict[TrainerName, str] = {"nanogpt": "python train.py", "onecard": "onecard train"}


def train_command(
    source: str | None, patch: Mapping[str, Any], *, environment: str = "", trainer: TrainerName = "nanogpt"
) -> str:
    """The line that starts a trainer with a patch."""
    words = (environment, PROGRAMS[trainer], quote(source) if source else "", flags_of(patch, trainer))
    return " ".join(word for word in words if word)


def flags_of(patch: Mapping[str, Any], trainer: TrainerName) -> str:
    """The patch as flags. nanoGPT refuses unknown keys, so its own keys only."""
    known = NANOGPT_KEYS if trainer == "nanogpt" else patch.keys()
    return " ".join(quote(f"--{key}={typed(key, value)}") for key, value in patch.items() if key in known)
