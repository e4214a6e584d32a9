"""A diagnosis as the JSON of the contract: bytes, seconds and tokens in base units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from onecard.doctor.case import Facts
from onecard.doctor.diagnose import Diagnosis
from onecard.doctor.evidence import planned_steps
from onecard.doctor.explain import Explanation
from onecard.doctor.predict import Forecast
from onecard.report.strict import strict, whole
from onecard.runs.records import Eval

SCHEMA = 1
DURATIONS = ("evaluation_seconds", "seconds", "seconds_to_go")  # of Facts: whole seconds; seconds per step are a rate


def diagnoses_json(diagnoses: Sequence[Diagnosis]) -> dict[str, Any]:
    """The object of the contract; no number in it is NaN or infinite."""
    made: dict[str, Any] = {"schema": SCHEMA, "runs": [_run(diagnosis) for diagnosis in diagnoses]}
    said: dict[str, Any] = strict(made)
    return said


def explanation_json(explanation: Explanation) -> dict[str, Any]:
    """A rule in words, for --explain --json."""
    return {"schema": SCHEMA} | asdict(explanation)


def _run(diagnosis: Diagnosis) -> dict[str, Any]:
    case, run = diagnosis.case, diagnosis.case.run
    made = {
        "source": run.source,
        "format": run.format,
        "config": case.resolved.source if case.resolved else None,
        "config_note": case.config_note,
        "unchecked": list(diagnosis.unchecked),
        "not_looked_at": list(diagnosis.not_looked_at),
        "summary": _summary(diagnosis),
        "findings": [finding.as_json() for finding in diagnosis.findings],
        "commands": {each.rule: each.command for each in diagnosis.prescriptions},
    }
    if diagnosis.forecast:
        made["forecast"] = _forecast(diagnosis.forecast)
    if first := diagnosis.prescription:
        repair = first.repair
        made["prescription"] = {
            "rule": first.rule,
            "patch": dict(repair.patch),
            "command": first.command,
            "under_onecard": dict(zip(("command", "process_bytes"), first.under_onecard, strict=True))
            if first.under_onecard
            else None,
            "left_out": dict(diagnosis.left_out),
            "new_run": repair.new_run,
            "fits": repair.fits,
            "process_bytes": repair.process_bytes,
            "seconds_total": whole(repair.seconds.likely) if repair.seconds else None,
            "loss_at_steps": {str(step): asdict(loss) for step, loss in repair.losses.items()},
        }
    return made


def _healthy(diagnosis: Diagnosis) -> bool | None:
    """Whether nothing is wrong; None where that cannot be said, because there is little to judge or rules could not
    look."""
    if not diagnosis.healthy:
        return False
    return True if diagnosis.judged and not diagnosis.unchecked and not diagnosis.not_looked_at else None


def _summary(diagnosis: Diagnosis) -> dict[str, Any]:
    """Every fact by its name; evaluations as their step and losses. Seconds and tokens are base units."""
    case, facts = diagnosis.case, diagnosis.case.facts
    summary: dict[str, Any] = {
        "healthy": _healthy(diagnosis),
        "evidence": list(diagnosis.evidence),
        "not_said": list(diagnosis.unknown),
        "config": case.resolved.source if case.resolved else None,
        "unchecked": dict(diagnosis.unchecked),
        "train_tokens": case.data.train_tokens,
        "val_tokens": case.data.val_tokens,
        "data_source": case.data.source,
        "card": case.card.name if case.card else None,
        "other_bytes": case.other_bytes or 0,
        "max_iters": planned_steps(case),
        "ended": case.end.reason if case.end else None,
        "forecast": _forecast_in_brief(diagnosis),
        "why_no_forecast": diagnosis.why_no_forecast or None,
        "logged_steps": len(case.steps),
        "evaluations": len(case.evals),
    }
    for field in fields(Facts):
        value = getattr(facts, field.name)
        if field.name in DURATIONS:
            value = whole(value)
        summary[field.name] = _evaluation(value, told=case.run.steps_told) if isinstance(value, Eval) else value
    if diagnosis.trend:
        summary["gain_per_doubling"] = {
            "gain": diagnosis.trend.gain,
            "error": diagnosis.trend.error,
            "evaluations": len(diagnosis.trend.evaluations),
        }
    return summary


def _forecast_in_brief(diagnosis: Diagnosis) -> dict[str, Any] | None:
    """The step, the loss and the time that the text says, and how the step is known; None without a loss."""
    forecast = diagnosis.forecast
    if forecast is None or forecast.final_loss is None:
        return None
    to_go = forecast.seconds_to_go
    return {
        "step": forecast.step,
        "end": forecast.end,
        "loss": asdict(forecast.final_loss),
        "seconds": {name: whole(value) for name, value in asdict(to_go).items()} if to_go else None,
    }


def _forecast(forecast: Forecast) -> dict[str, Any]:
    made = asdict(forecast)
    if forecast.seconds_to_go:
        made["seconds_to_go"] = {name: whole(value) for name, value in asdict(forecast.seconds_to_go).items()}
    return made


def _evaluation(evaluation: Eval, *, told: bool) -> dict[str, Any]:
    names = ("tokens", "train_loss", "val_loss", "bits_per_byte")
    return {"step": evaluation.step if told else None} | {name: getattr(evaluation, name) for name in names}
