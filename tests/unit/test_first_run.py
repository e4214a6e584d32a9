"""The default that grows with the card: two minutes of training at most, and nothing that our own doctor warns of."""

import math
from dataclasses import replace

import pytest

from onecard.config.resolve import resolve
from onecard.config.schema import RunConfig
from onecard.doctor.diagnose import Diagnosis, diagnose
from onecard.models.evaluation import eval_tokens
from onecard.plan.cards import Card, find_card, known_cards
from onecard.plan.counts import count_params
from onecard.plan.first_run import FEWEST_STEPS, PASSES, SECONDS, TOKENS_PER_STEP, first_run
from onecard.plan.recipe import SHORT_STEPS
from onecard.plan.speed import predict_speed
from onecard.runs.logged import LoggedRun
from onecard.runs.records import Eval, Record, Start, Step
from tests.made_records import evaluation, step
from tests.share import every_tenth

DEFAULT = resolve(None).config
CORPUS, VALIDATION = 9_614_604, 498_612  # of one Python's standard library


def default_on(card: Card, *, train_tokens: int = CORPUS, val_tokens: int = VALIDATION) -> RunConfig:
    run = first_run(DEFAULT, card, card.allocatable_bytes, train_tokens=train_tokens, val_tokens=val_tokens)
    assert run is not None
    return run


@pytest.mark.parametrize("name", ["RTX 4070", "RTX 3060 12GB", "H200", "GTX 1660", "RTX 4090"])
def test_two_minutes_of_training_at_most_on_every_card(name: str) -> None:
    card = find_card(name)
    run = default_on(card, train_tokens=30_000_000)
    speed = predict_speed(run, card, "onecard")
    assert speed is not None
    seconds = run.total_tokens / speed.tokens_per_second.likely
    assert seconds <= SECONDS or run.max_iters == FEWEST_STEPS, (
        "a slow card makes the fewest updates that show anything"
    )
    assert run.tokens_per_step == TOKENS_PER_STEP
    assert (run.dataset, run.vocab_size, run.dtype) == (DEFAULT.dataset, DEFAULT.vocab_size, DEFAULT.dtype)


@pytest.mark.parametrize("train_tokens", [1_000_000, 9_614_604, 11_501_858, 30_000_001])
def test_whole_updates_never_read_the_data_more_than_four_times(train_tokens: int) -> None:
    run = default_on(find_card("H200"), train_tokens=train_tokens)
    assert PASSES * train_tokens - TOKENS_PER_STEP < run.total_tokens <= PASSES * train_tokens


@pytest.mark.parametrize("card", every_tenth(known_cards()), ids=lambda card: card.name)
def test_the_doctor_has_nothing_to_warn_of(card: Card) -> None:
    run = default_on(card)
    found = {finding.rule: finding.severity for finding in as_predicted(run, card).findings}
    assert set(found.values()) <= {"info"}, found
    assert "eval-too-expensive" not in found
    assert ("warmup-length" in found) == (run.max_iters < SHORT_STEPS), "of a shorter run none is right"


def test_a_default_of_more_epochs_and_larger_evaluations_would_be_warned_of() -> None:
    """What the doctor is asked above it can see."""
    card = find_card("H200")
    longer = default_on(card).replace({"max_iters": 1200, "lr_decay_iters": 1200, "eval_iters": 20, "warmup_iters": 50})
    found = {finding.rule for finding in as_predicted(longer, card).findings}
    assert {"too-many-epochs", "val-set-tiny", "eval-too-expensive", "warmup-length"} <= found


@pytest.mark.parametrize("val_tokens", [40_000, VALIDATION, 10**8])
def test_an_evaluation_fits_the_validation_data_and_is_no_smaller_than_it_need_be(val_tokens: int) -> None:
    run = default_on(find_card("H200"), val_tokens=val_tokens)
    assert eval_tokens(run) <= val_tokens
    evaluations = 1 + math.ceil(run.max_iters / run.eval_interval)
    assert evaluations == 5
    share = 2 * evaluations * eval_tokens(run) / run.total_tokens
    assert share <= 0.05 / 0.95
    assert share > 0.04 or eval_tokens(run) > val_tokens - run.batch_size * run.block_size


def as_predicted(run: RunConfig, card: Card) -> Diagnosis:
    """The doctor's word on such a run, finished, as fast as predicted; a token of evaluation as slow as in training."""
    speed = predict_speed(run, card, "onecard")
    assert speed is not None
    rate, end = speed.tokens_per_second.likely, run.max_iters
    begun = Start(
        step=0,
        config=run.model_dump(),
        versions={},
        device="cuda",
        card=card.name,
        predicted_process_bytes=None,
        resumed_from=None,
        train_tokens=CORPUS,
        val_tokens=VALIDATION,
    )
    steps = [_step(run, number, rate) for number in range(1, end + 1)]
    evals = [_evaluation(run, number, rate) for number in (*range(0, end, run.eval_interval), end)]
    records: tuple[Record, ...] = (begun, *sorted([*steps, *evals], key=lambda record: record.step))
    return diagnose(
        LoggedRun(source="r", format="onecard", records=records, config=run.model_dump(), card_name=card.name)
    )


def _step(run: RunConfig, number: int, rate: float) -> Step:
    seconds = run.tokens_per_step / rate
    return replace(step(number, loss=_loss(run, number), seconds=seconds), tokens=number * run.tokens_per_step)


def _evaluation(run: RunConfig, number: int, rate: float) -> Eval:
    loss, seconds = _loss(run, number), 2 * eval_tokens(run) / rate
    found = evaluation(number, val_loss=loss + 0.02, block_size=run.block_size)
    return replace(found, train_loss=loss, seconds=seconds, tokens=number * run.tokens_per_step)


def _loss(run: RunConfig, number: int) -> float:
    """From an untrained model's loss down to about what such runs reach."""
    return 1.1 + (math.log(run.vocab_size) - 1.1) * math.exp(-8 * number / run.max_iters)


def test_a_faster_card_trains_a_larger_model() -> None:
    sizes = [
        count_params(default_on(find_card(name), train_tokens=30_000_000)).total
        for name in ("GTX 1660", "RTX 4070", "H200")
    ]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


def test_nothing_fits_a_card_that_is_full() -> None:
    assert first_run(DEFAULT, find_card("RTX 4070"), 2**20, train_tokens=CORPUS, val_tokens=VALIDATION) is None


def test_data_too_small_for_large_updates_keeps_the_small_default() -> None:
    card = find_card("H200")
    small = FEWEST_STEPS * TOKENS_PER_STEP // PASSES - 1
    assert first_run(DEFAULT, card, card.allocatable_bytes, train_tokens=small, val_tokens=VALIDATION) is None
