"""Laws of speed that hold for every config and card."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from onecard.config.schema import RunConfig
from onecard.plan.cards import Card, known_cards
from onecard.plan.speed import Speed, nearest_measured, predict_speed

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
    )


def speed_of(config: RunConfig, card: Card) -> Speed:
    speed = predict_speed(config, card)
    assert speed
    return speed


@given(configs(), CARDS)
def test_ranges_are_ordered_and_positive_and_mfu_is_a_share(config: RunConfig, card: Card) -> None:
    speed = speed_of(config, card)
    for quantity in (speed.tokens_per_second, speed.micro_batch_seconds, speed.step_seconds, speed.total_seconds):
        assert 0 < quantity.low < quantity.likely < quantity.high
    assert 0 < speed.mfu < 1.2  # a published peak may be exceeded
    assert 0 < speed.spread <= 0.6


@given(configs(), CARDS)
def test_more_layers_are_never_faster(config: RunConfig, card: Card) -> None:
    deeper = config.replace({"n_layer": config.n_layer + 1})
    assert speed_of(deeper, card).step_seconds.likely > speed_of(config, card).step_seconds.likely


@given(configs(), CARDS, FACTORS, FACTORS)
def test_more_bandwidth_and_more_peak_are_never_slower(
    config: RunConfig, card: Card, bandwidth: float, peak: float
) -> None:
    assert card.bandwidth_bytes_per_second
    assert card.peak_flops
    better = replace(
        card,
        bandwidth_bytes_per_second=card.bandwidth_bytes_per_second * bandwidth,
        peak_flops=card.peak_flops * peak,
    )
    now, then = speed_of(config, card), speed_of(config, better)
    assert then.tokens_per_second.likely >= now.tokens_per_second.likely * (1 - 1e-9)
    assert then.total_seconds.likely <= now.total_seconds.likely * (1 + 1e-9)


@given(configs(), CARDS, st.integers(2, 8))
def test_a_larger_micro_batch_at_equal_tokens_is_hardly_ever_slower(config: RunConfig, card: Card, times: int) -> None:
    many = config.replace({"gradient_accumulation_steps": config.gradient_accumulation_steps * times})
    large = config.replace({"batch_size": config.batch_size * times})
    assert large.tokens_per_step == many.tokens_per_step
    assert speed_of(large, card).step_seconds.likely <= speed_of(many, card).step_seconds.likely * 1.001


@given(configs(), CARDS, st.integers(1, 5000))
def test_more_updates_take_longer(config: RunConfig, card: Card, more: int) -> None:
    longer = config.replace({"max_iters": config.max_iters + more})
    assert speed_of(longer, card).total_seconds.likely > speed_of(config, card).total_seconds.likely


@given(configs(), CARDS, st.integers(1, 10_000))
def test_evaluating_more_often_never_shortens_a_run(config: RunConfig, card: Card, interval: int) -> None:
    oftener = config.replace({"eval_interval": min(interval, config.eval_interval)})
    assert speed_of(oftener, card).total_seconds.likely >= speed_of(config, card).total_seconds.likely
    assert speed_of(oftener, card).step_seconds == speed_of(config, card).step_seconds


@given(configs(), CARDS)
def test_a_nearest_run_is_always_named(config: RunConfig, card: Card) -> None:
    said, distance = nearest_measured(config, card)
    assert "tokens/s" in said
    assert distance >= 0
