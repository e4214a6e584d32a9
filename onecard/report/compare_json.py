"""A comparison as the JSON object of the contract."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from onecard.doctor.compare import AtEqual, Comparison, Standing
from onecard.doctor.config_diff import UNSAID
from onecard.doctor.repair import trainer_of
from onecard.doctor.same_tasks import SameTask
from onecard.doctor.single_changes import SingleChange
from onecard.report.compare import memory_bytes
from onecard.report.strict import strict, whole


def comparison_json(comparison: Comparison) -> dict[str, object]:
    """The JSON object of the contract. A run is named by its position; no number is NaN or infinite."""
    made = {
        "schema": 1,
        "runs": [dict(_run_json(comparison, run)) for run in range(len(comparison.cases))],
        "measure": comparison.measure,
        "config_diff": {
            key: [None if value is UNSAID else value for value in values]
            for key, values in comparison.config_diff.items()
        },
        "changed_together": list(comparison.together),
        "changed_without_effect": dict(comparison.idle),
        "at_equal_tokens": _at_equal_json(comparison.at_equal_tokens, "tokens"),
        "at_equal_seconds": _at_equal_json(comparison.at_equal_seconds, "seconds"),
        "crossings": [
            {
                "run": p.passer,
                "passes": p.passed,
                "loss": p.loss,
                "step": p.step,
                "tokens": whole(p.tokens),
                "seconds": whole(p.seconds),
                "spread": p.spread,
                "passed_tokens": whole(p.passed_tokens),
                "passed_seconds": whole(p.passed_seconds),
                "passed_finished": p.passed_finished,
            }
            for p in comparison.passings
        ],
        "winners": comparison.winners,
        "standings": {metric: _standing_json(standing) for metric, standing in comparison.standings.items()},
        "same_text": _same_text_json(comparison),
        "same_tasks": [_same_task_json(task) for task in comparison.same_tasks],
        "predicted_alone": {
            str(run): [_alone_json(effect) for effect in effects] for run, effects in comparison.single_changes.items()
        },
        "cautions": list(comparison.cautions),
    }
    said: dict[str, object] = strict(made)
    return said


def _run_json(comparison: Comparison, run: int) -> Iterator[tuple[str, object]]:
    case = comparison.cases[run]
    facts = case.facts
    last = facts.last_val.val_loss if facts.last_val else None
    forecast = comparison.forecasts[run]
    yield "source", case.run.source
    yield "format", case.run.format
    yield "params", facts.params
    yield "params_total", facts.params_total
    yield "tokens_per_step", facts.tokens_per_step
    yield "tokens_per_second", facts.tokens_per_second
    yield "seconds_per_micro_batch", facts.seconds_per_micro_batch
    yield "mfu", facts.mfu
    yield "printed_mfu", facts.printed_mfu
    yield "finished", comparison.finished[run]
    yield "final_val_loss", last  # of a run that has not finished, its latest
    yield "latest_val_loss", last
    yield "forecast", asdict(forecast.final_loss) if forecast and forecast.final_loss else None
    yield "final_bits_per_byte", facts.last_val.bits_per_byte if facts.last_val else None
    yield "final_train_loss", comparison.curves[run].end.loss if comparison.measure == "train_loss" else None
    yield "evaluation_noise", facts.evaluation_noise
    yield "sampling_error", facts.sampling_error
    yield "tokens", facts.tokens
    yield "seconds", whole(facts.seconds)
    yield "last_step", facts.last_step
    yield "steps_to_go", facts.steps_to_go
    yield "reserved_bytes", memory_bytes(case)
    size = comparison.predicted_process_bytes[run]
    yield "predicted_process_bytes", size
    yield "predicted_for", None if size is None else trainer_of(case)
    yield "gpu", case.card.name if case.card else None


def _at_equal_json(rows: Sequence[AtEqual], unit: str) -> dict[str, object]:
    """The last place at which two runs have a loss, and the earlier ones."""
    places = [
        {
            unit: whole(row.place),
            "loss": [reading.loss if reading else None for reading in row.readings],
            "noise": [reading.noise if reading else None for reading in row.readings],
            "winner": row.winner,
            **_standing_json(row.standing),
        }
        for row in rows
    ]
    return {**places[-1], "earlier": places[:-1]} if places else {}


def _same_text_json(comparison: Comparison) -> dict[str, object] | None:
    """The runs' scores on one text; None where they share none."""
    text = comparison.same_text
    if text is None:
        return None
    return {
        "text": text.name,
        "bits_per_byte": [score.bits_per_byte for score in text.scores],
        "error": [score.error for score in text.scores],
        "step": [score.step for score in text.scores],
        "best": list(text.best),
        "beaten": list(text.beaten),
    }


def _same_task_json(task: SameTask) -> dict[str, object]:
    return {
        "task": task.task,
        "metric": task.metric,
        "value": [score.value for score in task.scores],
        "error": [score.error for score in task.scores],
        "chance": task.scores[0].chance,
        "questions": task.scores[0].questions,
        "step": [score.step for score in task.scores],
        "best": list(task.best),
        "beaten": list(task.beaten),
    }


def _standing_json(standing: Standing) -> dict[str, list[int]]:
    undecided = {"undecided": list(standing.undecided)} if standing.undecided else {}
    return {"best": list(standing.best), "beaten": list(standing.beaten), **undecided}


def _alone_json(effect: SingleChange) -> Mapping[str, object]:
    return {
        "patch": {key: after for key, (_, after) in effect.changes.items()},
        "tokens_per_second_ratio": effect.tokens_per_second_ratio,
        "process_bytes_difference": effect.process_bytes_difference,
        "mfu": {"before": effect.mfu[0], "after": effect.mfu[1]} if effect.mfu else None,
        "final_loss_difference": effect.final_loss_difference,
        "why_no_loss": effect.why_no_loss or None,
        "fits": effect.fits,
    }
