"""A plan as the JSON of the contract: bytes, seconds and tokens in whole base units."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from onecard.plan.advice import Fix
from onecard.plan.calibration import Calibration
from onecard.plan.candidate import Candidate
from onecard.plan.counts import count_params
from onecard.plan.fit import Fit
from onecard.plan.loss import LossForecast, why_no_forecast
from onecard.plan.place import Place
from onecard.plan.plan import Plan, TrainerPlan
from onecard.plan.proposal import Proposal
from onecard.plan.ranges import Range
from onecard.plan.speed import Speed
from onecard.report.command import changed_command
from onecard.report.several_cards import several_cards_json
from onecard.report.summary import cautions, vocabulary_condition

if TYPE_CHECKING:
    from onecard.plan.nvidia_smi import DriverFigures

SCHEMA = 1


def plan_json(plan: Plan, *, driver: DriverFigures | None = None) -> dict[str, Any]:
    """The plan of the contract, with what --fit, --hours, --sensitivity and --seen add."""
    params = plan.params
    made: dict[str, Any] = {
        "schema": SCHEMA,
        "config": plan.config.model_dump(),
        "origins": dict(plan.resolved.origins),
        "warnings": [*plan.warnings, *cautions(plan)],
        "params": asdict(params),
        "flops_per_token": plan.flops_per_token,
        "tokens_per_step": plan.config.tokens_per_step,
        "total_tokens": plan.config.total_tokens,
        "tokens_per_parameter": plan.tokens_per_parameter,
        "data": asdict(plan.data) | {"epochs": plan.data.epochs(plan.config.total_tokens)},
        "gpu": _place_json(plan.place, plan.available_bytes) if plan.place else None,
        "trainers": {
            "nanogpt": _trainer_json(plan.nanogpt) if plan.nanogpt else None,
            "onecard": _trainer_json(plan.onecard) if plan.onecard else None,
        },
        "loss": _loss_json(plan.loss, plan.tokens_per_parameter) if plan.loss else None,
        "why_no_loss": why_no_forecast(plan.config, plan.data.train_tokens) or None,
        "fixes": [_fix_json(fix, plan) for fix in plan.fixes],
        "findings": [finding.as_json() for finding in plan.findings],
    }
    if plan.fit:
        made["fit"] = _fit_json(plan.fit, plan)
    if plan.proposals is not None:
        made["proposals"] = [_proposal_json(proposal) for proposal in plan.proposals]
    if without := plan.without_recipe:
        made["without_recipe"] = {
            "config": without.config.model_dump(),
            "process_bytes": without.memory.process_bytes,
            "tokens_per_second": _whole(without.speed.tokens_per_second) if without.speed else None,
            "seconds_total": round(without.speed.total_seconds.likely) if without.speed else None,
            "loss": asdict(without.loss.final) if without.loss else None,
        }
    if plan.several_cards:
        made["cards"] = several_cards_json(plan.several_cards, plan)
    if plan.sensitivity is not None:
        made["sensitivity"] = [asdict(change) for change in plan.sensitivity]
    if driver is not None:
        memory = plan.first.memory
        made["seen"] = asdict(driver) | {
            "other_bytes": driver.other_bytes,
            "predicted_bytes": memory.process_bytes,
            "predicted_with_context": memory.knows_context,
            "unexplained_bytes": driver.unexplained_bytes(memory),
        }
    return made


def _trainer_json(planned: TrainerPlan) -> dict[str, Any]:
    memory, speed = planned.memory, planned.speed
    return {
        "fits": memory.fits,
        "fits_with_desktop": planned.fits_with_desktop,
        "ran_out": memory.ran_out,
        "tight": memory.tight,
        "first_run_out": memory.first_run_out,
        "later_run_out": memory.later_run_out,
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
        "error_bytes": memory.error_bytes,
        "parts": [
            {"name": part.name, "phase": part.phase, "bytes": part.size_bytes, "why": part.why} for part in memory.parts
        ],
        "assumptions": list(memory.assumptions),
        "condition": vocabulary_condition(planned.told_vocabulary),
        "environment": planned.environment,
        "speed": _speed_json(speed) | {"nearest_measured": planned.nearest_measured} if speed else None,
    }


def _speed_json(speed: Speed) -> dict[str, Any]:
    return {
        "tokens_per_second": _whole(speed.tokens_per_second),
        "mfu": speed.mfu,
        "mfu_causal": speed.needed_share,
        "seconds_total": round(speed.total_seconds.likely),
        "seconds_total_range": _whole(speed.total_seconds),
        "seconds_per_micro_batch": asdict(speed.micro_batch_seconds),
        "seconds_per_step": asdict(speed.step_seconds),
        "parts": [{"name": part.name, "seconds_per_step": part.seconds, "why": part.why} for part in speed.parts],
        "basis": speed.basis,
    }


def _loss_json(loss: LossForecast, tokens_per_parameter: float) -> dict[str, Any]:
    return {
        "final": asdict(loss.final),
        "perplexity": asdict(loss.perplexity),
        "tokens_per_parameter": tokens_per_parameter,
        "double_tokens": loss.double_tokens.likely,
        "double_params": loss.double_params.likely,
        "double_tokens_range": asdict(loss.double_tokens),
        "double_params_range": asdict(loss.double_params),
        "at_steps": {str(step): asdict(at) for step, at in loss.milestones.items()},
        "dataset": loss.dataset,
        "sources": list(loss.sources),
        "caution": loss.caution,
    }


def _fix_json(fix: Fix, plan: Plan) -> dict[str, Any]:
    return {
        "name": fix.name,
        "what": fix.what,
        "trainer": fix.trainer,
        "patch": dict(fix.patch),
        "environment": fix.environment,
        "code": fix.code,
        "command": changed_command(fix, plan.source, plan.typed),
        "saves_bytes": fix.saves_bytes,
        "slowdown": fix.slowdown,
        "fits": fix.fits,
        "safe": fix.safe,
        "loss_change": fix.loss_change,
        "comparable": fix.comparable,
        "loss_note": fix.loss_note,
        "error_times": fix.error_times,
        "why": fix.why,
    }


def _fit_json(fit: Fit, plan: Plan) -> dict[str, Any]:
    best = fit.best
    return {
        "patch": best.patch if best else None,
        "command": changed_command(best, plan.source, plan.typed) if best else None,
        "tokens_kept": fit.tokens_kept,
        "available_bytes": fit.available_bytes,
        "best": _candidate_json(best) if best else None,
        "why": fit.why,
        "candidates": [_candidate_json(candidate) for candidate in fit.candidates],
        "smallest": _candidate_json(fit.smallest) if fit.smallest else None,
        "note": fit.note or None,
        "warnings": list(fit.warnings),
    }


def _candidate_json(candidate: Candidate) -> dict[str, Any]:
    return {
        "trainer": candidate.trainer,
        "patch": candidate.patch,
        "expandable_segments": candidate.expandable_segments,
        "params": count_params(candidate.config).nanogpt,
        "tokens_per_step": candidate.config.tokens_per_step,
        "process_bytes": candidate.process_bytes,
        "error_bytes": candidate.error_bytes,
        "fits": candidate.fits,
        "safe": candidate.safe,
        "tokens_per_second": _whole(candidate.speed.tokens_per_second) if candidate.speed else None,
    }


def _proposal_json(proposal: Proposal) -> dict[str, Any]:
    return {
        "name": proposal.name,
        "note": proposal.note,
        "trainer": proposal.trainer,
        "config": {key: setting.value for key, setting in proposal.settings.items()},
        "sources": {key: setting.source for key, setting in proposal.settings.items()},
        "params": count_params(proposal.config).nanogpt,
        "tokens": proposal.config.total_tokens,
        "process_bytes": proposal.process_bytes,
        "seconds": round(proposal.seconds.likely),
        "seconds_range": _whole(proposal.seconds),
        "tokens_per_second": _whole(proposal.speed.tokens_per_second),
        "loss": asdict(proposal.loss.final) if proposal.loss else None,
    }


def _whole(quantity: Range) -> dict[str, int]:
    return {name: round(value) for name, value in asdict(quantity).items()}


def _calibration_json(calibration: Calibration) -> dict[str, Any]:
    return {
        "date": calibration.date,
        "driver": calibration.driver,
        "torch": calibration.torch,
        "runs": len(calibration.runs),
    }


def _place_json(place: Place, available_bytes: int | None) -> dict[str, Any]:
    card = place.card
    return {
        "name": card.name,
        "vram_bytes": card.vram_bytes,
        "allocatable_bytes": card.allocatable_bytes,
        "other_bytes": place.other_bytes or 0,
        "other_programs": [{"name": program.name, "used_bytes": program.used_bytes} for program in place.programs],
        "available_bytes": available_bytes,
        "context_bytes": card.context_bytes,
        "peak_flops": card.peak_flops,
        "source": "; ".join(filter(None, (card.vram_source, card.allocatable_source, card.peak_source))),
        "named_by": place.source or None,
        "calibration": _calibration_json(card.calibration) if card.calibration else None,
    }
