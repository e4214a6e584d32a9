"""Settings as words to type: a patch as flags, and the line that starts a trainer with it."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote
from typing import Any, Literal

from onecard.config.schema import NANOGPT_KEYS
from onecard.config.shown import typed

ALLOCATOR_SETTINGS = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")  # the old name, and that of torch >= 2.10
EXPANDABLE = f"{ALLOCATOR_SETTINGS[0]}=expandable_segments:True"
PROGRAMS = {"nanogpt": "python train.py", "onecard": "onecard train"}


def train_command(
    source: str | None,
    patch: Mapping[str, Any],
    *,
    environment: str = "",
    trainer: Literal["nanogpt", "onecard"] = "nanogpt",
) -> str:
    """The line that starts a trainer with a patch. nanoGPT refuses unknown keys, so it gets its own keys only."""
    known = {key: value for key, value in patch.items() if trainer == "onecard" or key in NANOGPT_KEYS}
    words = (environment, PROGRAMS[trainer], quote(source) if source else "", flags_of(known))
    return " ".join(word for word in words if word)


def flags_of(patch: Mapping[str, object]) -> str:
    """A patch as it is typed."""
    return " ".join(quote(f"--{key}={typed(key, value)}") for key, value in patch.items())
