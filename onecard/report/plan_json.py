"""A plan as the JSON of the contract: bytes, seconds and tokens in whole base units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from onecard.plan.make import Plan
from onecard.plan.memory.predict import Memory
from onecard.plan.place import Place
from onecard.plan.seen import Seen
from onecard.plan.sensitivity import Change

SCHEMA = 1


def plan_json(plan: Plan, *, changes: Sequence[Change] | None = None, seen: Seen | None = None) -> dict[str, Any]:
    """The plan of the contract, with what --sensitivity and --seen add."""
    params = plan.params
    made: dict[str, Any] = {
        "schema": SCHEMA,
        "config": plan.config.model_dump(),
        "origins": dict(plan.resolved.origins),
        "warnings": list(plan.resolved.warnings),
        "params": {
            "total": params.total,
            "nanogpt": params.nanogpt,
            "decayed": params.decayed,
            "decayed_tensors": params.decayed_tensors,
        },
        "flops_per_token": plan.flops_per_token,
        "tokens_per_step": plan.config.tokens_per_step,
        "total_tokens": plan.config.total_tokens,
        "tokens_per_parameter": plan.tokens_per_parameter,
        "gpu": _place_json(plan.place) if plan.place else None,
        "trainers": {"nanogpt": _trainer_json(plan.nanogpt) if plan.nanogpt else None, "onecard": None},
        "loss": None,
        "fixes": [],
        "findings": [finding.as_json() for finding in plan.findings],
    }
    if changes is not None:
        made["sensitivity"] = [asdict(change) for change in changes]
    if seen is not None:
        predicted = plan.nanogpt.process_bytes if plan.nanogpt else None
        made["seen"] = asdict(seen) | {
            "other_bytes": seen.other_bytes,
            "predicted_bytes": predicted,
            "unexplained_bytes": None if predicted is None else seen.process_bytes - predicted,
        }
    return made


def _trainer_json(memory: Memory) -> dict[str, Any]:
    return {
        "fits": memory.fits,
        "ran_out": memory.ran_out,
        "tight": memory.tight,
        "phases": {
            name: {
                "allocated_bytes": phase.allocated_bytes,
                "reserved_bytes": phase.reserved_bytes,
                "moment": phase.moment,
            }
            for name, phase in memory.phases.items()
        },
        "context_bytes": memory.context_bytes,
        "process_bytes": memory.process_bytes,
        "parts": [
            {"name": part.name, "phase": part.phase, "bytes": part.size_bytes, "why": part.why} for part in memory.parts
        ],
        "assumptions": list(memory.assumptions),
        "speed": None,
    }


def _place_json(place: Place) -> dict[str, Any]:
    card = place.card
    return {
        "name": card.name,
        "vram_bytes": card.vram_bytes,
        "allocatable_bytes": card.allocatable_bytes,
        "other_bytes": place.other_bytes,
        "other_programs": [{"name": program.name, "used_bytes": program.used_bytes} for program in place.programs],
        "available_bytes": place.available_bytes,
        "context_bytes": card.context_bytes,
        "peak_flops": card.peak_flops,
        "source": "; ".join(filter(None, (card.vram_source, card.allocatable_source, card.peak_source))),
    }
