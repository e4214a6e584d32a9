"""make_plan: from a config and a card to everything onecard can say before launch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from onecard.config.resolve import Resolved
from onecard.config.schema import RunConfig
from onecard.findings import Finding
from onecard.plan.counts import Params, count_params, flops_per_token
from onecard.plan.intent import intent_findings
from onecard.plan.memory.predict import Memory, predict_nanogpt
from onecard.plan.place import Place


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything known about a run before it starts."""

    resolved: Resolved
    config: RunConfig  # with dtype=auto settled for the card
    place: Place | None
    params: Params
    flops_per_token: int
    available_bytes: int | None  # what the driver may show for the process; None where no card is known
    nanogpt: Memory | None  # memory under nanoGPT's own loop; None if not asked for
    findings: tuple[Finding, ...] = ()

    @property
    def tokens_per_parameter(self) -> float:
        return self.config.total_tokens / self.params.total

    @property
    def fits(self) -> bool | None:
        """Whether the run fits the card; None where nobody knows."""
        return self.nanogpt.fits if self.nanogpt else None

    @property
    def exit_code(self) -> int:
        """1 where the answer is no."""
        return 1 if self.fits is False else 0


def make_plan(resolved: Resolved, place: Place | None = None, *, nanogpt: bool = True) -> Plan:
    """The plan of a resolved config at a place (None: no card known)."""
    config = settled(resolved.config, place)
    available_bytes = available(config, place)
    card = place.card if place else None
    return Plan(
        resolved=resolved,
        config=config,
        place=place,
        params=count_params(config),
        flops_per_token=flops_per_token(config),
        available_bytes=available_bytes,
        nanogpt=predict_nanogpt(config, card, available_bytes=available_bytes) if nanogpt else None,
        findings=tuple(_most_urgent_first(intent_findings(resolved))),
    )


def settled(config: RunConfig, place: Place | None) -> RunConfig:
    """The config with dtype=auto replaced by what it means on this card."""
    if config.dtype != "auto":
        return config
    return config.replace({"dtype": place.card.best_dtype() if place else "bfloat16"})


def available(config: RunConfig, place: Place | None) -> int | None:
    """Bytes the driver may show for the process: what the card has left, and no more than memory_limit."""
    bounds = [place.available_bytes if place else None, config.memory_limit]
    return min((bound for bound in bounds if bound is not None), default=None)


def _most_urgent_first(findings: Iterable[Finding]) -> list[Finding]:
    order = ("fatal", "error", "warn", "info")
    return sorted(findings, key=lambda finding: order.index(finding.severity))
