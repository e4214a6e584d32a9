"""Laws of speed that hold for every config and card."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onecard.config.schema import RunConfig
from onecard.plan.cards import Card, known_cards
from onecard.plan.speed import Speed, TrainerName, nearest_measured, predict_speed

CARDS = st.sampled_from(known_cards())
FACTORS = st.floats(1.0, 8.0)


@st.composite
def configs(draw: st.DrawFn) -> RunConfig:
    heads = draw(st.integers(1, 25))
    return RunConfig(
        n_layer=draw(st.integers(1, 48)),
        n_head=heads,
        n_embd=heads * draw(st.sampled_from([16, 32, 48, 64, 80, 128])),
        block_size=draw(st.integers(1, 4096)),
        batch_size=draw(st.integers(1, 64)),
        gradient_accumulation_steps=draw(st.integers(1, 64)),
        vocab_size=draw(st.sampled_from([2, 65, 32000, 50257, 50304, 100277])),
        dtype=draw(st.sampled_from(["auto", "bfloat16", "float16", "float32"])),
        dropout=draw(st.sampled_from([0.0, 0.1])),
        bias=draw(st.booleans()),
        compile=draw(st.booleans()),
        max_iters=draw(st.integers(0, 10_000)),
        eval_interval=draw(st.integers(1, 10_000)),
        eval_iters=draw(st.integers(1, 500)),
        grad_checkpoint=draw(st.sampled_from(["none", "selective", "full"])),
        loss_chunk=draw(st.none() | st.integers(1, 8192)),
    )


either_trainer = pytest.mark.parametrize("trainer", ["nanogpt", "onecard"])


def speed_of(config: RunConfig, card: Card, trainer: TrainerName) -> Speed:
    speed = predict_speed(config, card, trainer)
    assert speed
    return speed


@either_trainer
@given(config=configs(), card=CARDS)
def test_ranges_are_ordered_and_positive_and_mfu_is_a_share(
    trainer: TrainerName, config: RunConfig, card: Card
) -> None:
    speed = speed_of(config, card, trainer)
    for quantity in (speed.tokens_per_second, speed.micro_batch_seconds, speed.step_seconds, speed.total_seconds):
        assert 0 < quantity.low <= quantity.likely <= quantity.high
        assert quantity.low < quantity.high
    top = speed.tokens_per_second.high / speed.tokens_per_second.likely
    assert 0 < speed.needed_share * top < 1.0001  # no step is faster than its products at the published rate
    assert speed.needed_share <= speed.mfu < 2 * speed.needed_share
    assert 0 < speed.spread <= 0.6


@either_trainer
@given(config=configs(), card=CARDS)
def test_more_layers_are_never_faster(trainer: TrainerName, config: RunConfig, card: Card) -> None:
    deeper = config.replace({"n_layer": config.n_layer + 1})
    assert speed_of(deeper, card, trainer).step_seconds.likely > speed_of(config, card, trainer).step_seconds.likely


@either_trainer
@given(config=configs(), card=CARDS, bandwidth=FACTORS, peak=FACTORS)
def test_more_bandwidth_and_more_peak_are_never_slower(
    trainer: TrainerName, config: RunConfig, card: Card, bandwidth: float, peak: float
) -> None:
    assert card.bandwidth_bytes_per_second
    assert card.peak_flops
    better = replace(
        card,
        bandwidth_bytes_per_second=card.bandwidth_bytes_per_second * bandwidth,
        peak_flops=card.peak_flops * peak,
    )
    now, then = speed_of(config, card, trainer), speed_of(config, better, trainer)
    assert then.tokens_per_second.likely >= now.tokens_per_second.likely * (1 - 1e-9)
    assert then.total_seconds.likely <= now.total_seconds.likely * (1 + 1e-9)


@either_trainer
@given(config=configs(), card=CARDS, times=st.integers(2, 8))
def test_a_larger_micro_batch_at_equal_tokens_is_hardly_ever_slower(
    trainer: TrainerName, config: RunConfig, card: Card, times: int
) -> None:
    many = config.replace({"gradient_accumulation_steps": config.gradient_accumulation_steps * times})
    large = config.replace({"batch_size": config.batch_size * times})
    assert large.tokens_per_step == many.tokens_per_step
    assert (
        speed_of(large, card, trainer).step_seconds.likely <= speed_of(many, card, trainer).step_seconds.likely * 1.001
    )


@either_trainer
@given(config=configs(), card=CARDS, more=st.integers(1, 5000))
def test_more_updates_take_longer(trainer: TrainerName, config: RunConfig, card: Card, more: int) -> None:
    longer = config.replace({"max_iters": config.max_iters + more})
    assert speed_of(longer, card, trainer).total_seconds.likely > speed_of(config, card, trainer).total_seconds.likely


@either_trainer
@given(config=configs(), card=CARDS, interval=st.integers(1, 10_000))
def test_evaluating_more_often_never_shortens_a_run(
    trainer: TrainerName, config: RunConfig, card: Card, interval: int
) -> None:
    oftener = config.replace({"eval_interval": min(interval, config.eval_interval)})
    assert speed_of(oftener, card, trainer).total_seconds.likely >= speed_of(config, card, trainer).total_seconds.likely
    assert speed_of(oftener, card, trainer).step_seconds == speed_of(config, card, trainer).step_seconds


@either_trainer
@given(config=configs(), card=CARDS)
def test_a_nearest_run_is_always_named(trainer: TrainerName, config: RunConfig, card: Card) -> None:
    said, distance = nearest_measured(config, card, trainer)
    assert "tokens/s" in said
    assert distance >= 0
