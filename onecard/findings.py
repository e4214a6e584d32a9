"""A finding: something about a config or a run that a person should know, with the evidence and the patch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

Severity = Literal["info", "warn", "error", "fatal"]
SEVERITIES: tuple[Severity, ...] = ("fatal", "error", "warn", "info")  # the most urgent first
Sureness = Literal["high", "medium", "low"]


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The three lines of an error, plus the evidence and how sure it is."""

    rule: str
    severity: Severity
    sure: Sureness
    what: str
    why: str
    fix: str
    seen: tuple[str, ...] = ()
    patch: Mapping[str, object] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        return asdict(self) | {"seen": list(self.seen), "patch": dict(self.patch)}
