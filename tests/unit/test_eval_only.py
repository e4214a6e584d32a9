"""A run that only evaluates is judged by its evaluation: memory, time, findings, chart."""

from collections.abc import Callable

import pytest

from onecard import make_plan
from onecard.config.schema import RunConfig
from onecard.models.evaluation import eval_tokens
from onecard.plan.cards import find_card
from onecard.plan.memory.predict import Memory, predict_nanogpt, predict_onecard
from onecard.plan.speed import predict_speed
from onecard.plan.speed.rates import H200_RATES
from onecard.plan.speed.times import step_times
from onecard.plan.speed.work import TrainerName
from onecard.report.timeline import timeline_json

CARD = find_card("4070")
TRAINED = RunConfig(batch_size=16, gradient_accumulation_steps=8, dtype="bfloat16", eval_iters=20)
EVALUATED = TRAINED.replace({"eval_only": True})


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("predict", [predict_nanogpt, predict_onecard])
def test_its_memory_is_that_of_the_first_evaluation(predict: Callable[..., Memory], compiled: bool) -> None:
    alone = predict(EVALUATED.replace({"compile": compiled}), CARD)
    before_training = predict(TRAINED.replace({"compile": compiled}), CARD)
    assert set(alone.phases) == {"eval0"}
    assert alone.phases["eval0"] == before_training.phases["eval0"]
    assert alone.process_bytes < before_training.process_bytes
    assert {part.phase for part in alone.parts} == {"eval0", "process"}


@pytest.mark.parametrize("trainer", ["nanogpt", "onecard"])
def test_its_time_and_speed_are_those_of_one_evaluation(trainer: TrainerName) -> None:
    speed = predict_speed(EVALUATED, CARD, trainer)
    training = predict_speed(TRAINED, CARD, trainer)
    assert speed is not None
    assert training is not None
    assert [part.name for part in speed.parts] == ["evaluation"]
    assert speed.total_seconds.likely == pytest.approx(speed.parts[0].seconds)
    tokens = 2 * eval_tokens(EVALUATED)
    assert speed.tokens_per_second.likely * speed.total_seconds.likely == pytest.approx(tokens)
    assert 2 < speed.tokens_per_second.likely / training.tokens_per_second.likely < 4, "forward passes alone"
    assert speed.mfu <= 1


def test_an_evaluation_takes_the_time_it_takes_within_a_run() -> None:
    h200 = find_card("H200")
    assert step_times(EVALUATED, h200, H200_RATES).evaluation == step_times(TRAINED, h200, H200_RATES).evaluation


def test_a_plan_says_nothing_of_training() -> None:
    plan = make_plan({"eval_only": True, "learning_rate": 0.5, "batch_size": 16, "max_iters": 10}, gpu="4070")
    assert plan.loss is None
    assert not {"lr-out-of-range", "warmup-length", "decay-horizon"} & {finding.rule for finding in plan.findings}
    assert plan.config.total_tokens == 0
    trained = make_plan({"learning_rate": 0.5, "batch_size": 16, "max_iters": 10}, gpu="4070")
    assert "lr-out-of-range" in {finding.rule for finding in trained.findings}


def test_its_chart_is_the_evaluation() -> None:
    drawn = timeline_json(predict_onecard(EVALUATED, CARD))
    assert drawn["evaluation"] == 0
    assert max(drawn["total_bytes"]) <= drawn["peak_bytes"]
