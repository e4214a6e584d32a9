"""What to type to start a planned run: as it is, or with a change."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onecard.config.command import train_command
from onecard.plan.advice import Fix
from onecard.plan.candidate import Candidate
from onecard.plan.plan import Plan


def start_command(plan: Plan) -> str:
    """The run as it is: under onecard, unless only nanoGPT was asked for."""
    environment = plan.nanogpt.environment if plan.nanogpt and plan.ours == "nanogpt" else ""
    return train_command(plan.source, plan.typed, environment=environment, trainer=plan.ours)


def changed_command(change: Fix | Candidate, source: str | None, typed: Mapping[str, Any] | None = None) -> str:
    """The run of a config with a change; `typed` are keys from the command line, which no file holds."""
    patch = {**(typed or {}), **change.patch}
    return train_command(source, patch, environment=change.environment, trainer=change.trainer)
