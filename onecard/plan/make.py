"""make_plan: from a config and a card to everything onecard can say before launch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from onecard.config.resolve import Resolved
from onecard.config.schema import RunConfig
from onecard.errors import UsageError
from onecard.findings import Finding
from onecard.plan.advice import Fix, ranked_fixes
from onecard.plan.budget import Budget, Proposal, propose
from onecard.plan.counts import Params, count_params, flops_per_token
from onecard.plan.fit import Fit, fit_config, shape_for_params
from onecard.plan.intent import intent_findings
from onecard.plan.loss import LossForecast, forecast_loss
from onecard.plan.memory.predict import Memory, predict_nanogpt
from onecard.plan.place import Place
from onecard.plan.sensitivity import Change, single_changes
from onecard.plan.speed import Speed, nearest_measured, predict_speed


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
    speed: Speed | None  # under nanoGPT; None where the card's speed is unknown
    nearest_measured: str  # the measured run most like this one, and how it differs
    loss: LossForecast | None  # None where no law speaks of this vocabulary
    fixes: tuple[Fix, ...] = ()
    fit: Fit | None = None  # asked for with --fit
    proposals: tuple[Proposal, ...] | None = None  # asked for with --hours or --tokens
    sensitivity: tuple[Change, ...] | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def tokens_per_parameter(self) -> float:
        return self.config.total_tokens / self.params.total

    @property
    def fits(self) -> bool | None:
        """Whether the run fits the card; None where nobody knows. With --fit: whether anything does."""
        if self.fit:
            return self.fit.best is not None
        return self.nanogpt.fits if self.nanogpt else None

    @property
    def exit_code(self) -> int:
        """1 where the answer is no."""
        return 1 if self.fits is False or self.proposals == () else 0


def make_plan(
    resolved: Resolved,
    place: Place | None = None,
    *,
    nanogpt: bool = True,
    fit: bool = False,
    params: int | None = None,
    budget: Budget | None = None,
    sensitivity: bool = False,
) -> Plan:
    """The plan of a resolved config at a place (None: no card known), with what is asked for beside it."""
    if params:
        resolved = _reshaped(resolved, params)
    config = settled(resolved.config, place)
    available_bytes = available(config, place)
    card = place.card if place else None
    memory = predict_nanogpt(config, card, available_bytes=available_bytes) if nanogpt else None
    fixes: list[Fix] = []
    if memory:
        other_bytes = place.other_bytes if place else 0
        fixes = ranked_fixes(config, card, memory, available_bytes=available_bytes, other_bytes=other_bytes)
    if (fit or budget) and available_bytes is None:
        raise _needs_a_card("--fit" if fit else "--hours")
    proposals = None
    if budget and available_bytes is not None:
        if card is None or predict_speed(config, card) is None:
            raise _needs_a_card("--hours", "its speed is not known")
        proposals = tuple(propose(config, card, available_bytes, budget))
    return Plan(
        resolved=resolved,
        config=config,
        place=place,
        params=count_params(config),
        flops_per_token=flops_per_token(config),
        available_bytes=available_bytes,
        nanogpt=memory,
        speed=predict_speed(config, card),
        nearest_measured=nearest_measured(config, card)[0],
        loss=forecast_loss(config),
        fixes=tuple(fixes),
        fit=fit_config(config, card, available_bytes) if fit and available_bytes is not None else None,
        proposals=proposals,
        sensitivity=tuple(single_changes(config, card)) if sensitivity else None,
        findings=tuple(_most_urgent_first(intent_findings(resolved))),
    )


def _reshaped(resolved: Resolved, params: int) -> Resolved:
    """The same run with a shape of about `params` parameters."""
    config = shape_for_params(resolved.config, params)
    origins = dict(resolved.origins) | dict.fromkeys(("n_layer", "n_head", "n_embd"), "--params")
    return replace(resolved, config=config, origins=origins)


def _needs_a_card(option: str, why: str = "no card is known here") -> UsageError:
    return UsageError(
        f"{option} needs a card to plan for",
        why=why,
        fix=f'{option} ... --gpu "RTX 4070"' + (" (or --vram 12GiB)" if option == "--fit" else ""),
        name="no-card",
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
