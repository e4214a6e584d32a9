"""The default that grows with the card: two minutes of training, whatever the card."""

import pytest

from onecard.config.resolve import resolve
from onecard.plan.cards import find_card
from onecard.plan.counts import count_params
from onecard.plan.first_run import PASSES, SECONDS, TOKENS_PER_STEP, first_run
from onecard.plan.speed import predict_speed

DEFAULT = resolve(None).config
CORPUS = 30_000_000


@pytest.mark.parametrize("name", ["RTX 4070", "RTX 3060 12GB", "H200", "GTX 1660", "RTX 4090"])
def test_two_minutes_of_training_on_every_card(name: str) -> None:
    card = find_card(name)
    run = first_run(DEFAULT, card, card.allocatable_bytes, train_tokens=CORPUS)
    assert run is not None
    speed = predict_speed(run, card, "onecard")
    assert speed is not None
    seconds = run.total_tokens / speed.tokens_per_second.likely
    assert seconds <= 1.05 * SECONDS or run.max_iters == 100, "a slow card makes the fewest updates that show anything"
    assert run.tokens_per_step == TOKENS_PER_STEP
    assert run.total_tokens <= PASSES * CORPUS + TOKENS_PER_STEP
    assert (run.dataset, run.vocab_size, run.dtype) == (DEFAULT.dataset, DEFAULT.vocab_size, DEFAULT.dtype)


def test_a_faster_card_trains_a_larger_model() -> None:
    sizes = []
    for name in ("GTX 1660", "RTX 4070", "H200"):
        card = find_card(name)
        run = first_run(DEFAULT, card, card.allocatable_bytes, train_tokens=CORPUS)
        assert run is not None
        sizes.append(count_params(run).total)
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


def test_nothing_fits_a_card_that_is_full() -> None:
    assert first_run(DEFAULT, find_card("RTX 4070"), 2**20, train_tokens=CORPUS) is None
