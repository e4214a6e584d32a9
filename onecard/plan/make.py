"""make_plan: from a config and a card to everything onecard can say before launch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onecard.config.resolve import Resolved
from onecard.config.schema import RunConfig
from onecard.findings import Finding
from onecard.plan.counts import Params, count_params, flops_per_token
from onecard.plan.intent import intent_findings
from onecard.plan.place import Place


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything known about a run before it starts."""

    resolved: Resolved
    config: RunConfig  # with dtype=auto settled for the card
    place: Place | None
    params: Params
    flops_per_token: int
    findings: tuple[Finding, ...] = ()

    @property
    def tokens_per_parameter(self) -> float:
        return self.config.total_tokens / self.params.total

    @property
    def fits(self) -> bool | None:
        """Whether the run fits the card; None while nobody knows."""
        return None


def make_plan(resolved: Resolved, place: Place | None = None) -> Plan:
    """The plan of a resolved config at a place (None: no card known)."""
    config = resolved.config
    if config.dtype == "auto":
        config = config.replace({"dtype": place.card.best_dtype() if place else "bfloat16"})
    return Plan(
        resolved=resolved,
        config=config,
        place=place,
        params=count_params(config),
        flops_per_token=flops_per_token(config),
        findings=tuple(_most_urgent_first(intent_findings(resolved))),
    )


def _most_urgent_first(findings: Iterable[Finding]) -> list[Finding]:
    order = ("fatal", "error", "warn", "info")
    return sorted(findings, key=lambda finding: order.index(finding.severity))
