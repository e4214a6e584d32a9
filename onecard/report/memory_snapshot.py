"""Measured memory next to planned memory: the JSON of --memory_snapshot."""

from __future__ import annotations

from collections.abc import Mapping

from onecard.plan.memory.predict import Memory


def snapshot_json(parts: Mapping[str, int], *, reserved_bytes: int, planned: Memory | None) -> dict[str, object]:
    """Each measured part with its planned size, in bytes. Planned parts with other names go into the last, the rest."""
    *named, rest = parts
    expected = dict.fromkeys(parts, 0)
    if planned:
        for part in planned.parts_of("train"):
            expected[part.name if part.name in named else rest] += part.size_bytes
    known = planned is not None
    return {
        "schema": 1,
        "phase": "train",
        "parts": [
            {"name": name, "measured_bytes": size, "planned_bytes": expected[name] if known else None}
            for name, size in parts.items()
        ],
        "measured_allocated_bytes": sum(parts.values()),
        "planned_allocated_bytes": planned.phases["train"].allocated_bytes if planned else None,
        "measured_reserved_bytes": reserved_bytes,
        "planned_reserved_bytes": planned.process_bytes - planned.context_bytes if planned else None,
    }
