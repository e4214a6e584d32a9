"""The forecast against runs that were really made: none of them is an input but through the offset of its dataset."""

import math

import pytest

from onecard.config.schema import RunConfig
from onecard.plan.loss import (
    dataset_of,
    forecast_loss,
    law,
    loss_at,
    optimal_params,
    optimal_params_for_tokens,
    why_no_forecast,
)
from onecard.plan.ranges import Range


def config(n_embd: int = 768, **keys: object) -> RunConfig:
    return RunConfig().replace(
        {"n_embd": n_embd, "batch_size": 8, "gradient_accumulation_steps": 64, "dataset": "fineweb", **keys}
    )


def final(c: RunConfig) -> Range:
    forecast = forecast_loss(c)
    assert forecast
    return forecast.final


def test_the_law_by_hand() -> None:
    assert law(124.4e6, 10.26e9) == pytest.approx(1.8172 + 0.7373 + 0.4540, abs=1e-3)


@pytest.mark.parametrize(
    ("run", "steps", "reached"),
    [
        (config(384, dropout=0.1, warmup_iters=500), 20_000, 3.5228),  # 40.56M on an RTX 4070
        (config(warmup_iters=700), 19_560, 3.2722),  # llm.c, 124M
        (config(1024, n_layer=24, n_head=16), 60_000, 2.9282),  # llm.c, 350M
    ],
)
def test_finished_runs_lie_in_the_range(run: RunConfig, steps: int, reached: float) -> None:
    assert final(run.replace({"max_iters": steps})).contains(reached)


def test_the_repaired_124m_run_at_step_10000_lies_in_the_range() -> None:
    at = loss_at(config(max_iters=12_000, warmup_iters=500), 10_000)
    assert at
    assert at.likely == pytest.approx(3.345, abs=0.002)
    assert at.contains(3.3581)


def test_nothing_is_said_while_warm_up_rules() -> None:
    assert loss_at(config(max_iters=12_000, warmup_iters=500), 500) is None


def test_an_unknown_dataset_widens_the_range() -> None:
    known, unknown = final(config(max_iters=5000)), final(config(max_iters=5000, dataset="my_text"))
    assert unknown.high - unknown.low > 2 * (known.high - known.low)


def test_few_tokens_widen_the_range() -> None:
    long, short = final(config(max_iters=5000)), final(config(max_iters=150, warmup_iters=10))
    assert short.high - short.low > long.high - long.low


def test_bytes_and_characters_have_no_law() -> None:
    assert forecast_loss(config(vocab_size=256)) is None
    assert forecast_loss(config(vocab_size=65)) is None


@pytest.mark.parametrize(
    ("folder", "meant"),
    [
        ("fineweb", "fineweb"),
        ("data/fineweb10B", "fineweb"),
        ("fineweb_edu_10B", "fineweb-edu"),
        ("edu_fineweb10B", "fineweb-edu"),
        ("openwebtext", "openwebtext"),
        ("owt", "openwebtext"),
        ("shakespeare", "unknown dataset"),
        ("growth", "unknown dataset"),
    ],
)
def test_a_dataset_is_known_by_its_folder(folder: str, meant: str) -> None:
    assert dataset_of(folder)[0] == meant


def test_what_doubling_buys_is_a_gain_with_a_wide_range() -> None:
    forecast = forecast_loss(config(384, max_iters=20_000))
    assert forecast
    assert 0 < forecast.double_tokens.low < forecast.double_tokens.likely < forecast.double_params.likely
    assert forecast.perplexity.likely == pytest.approx(math.exp(forecast.final.likely))


def test_the_optimal_size_for_a_compute_budget_is_optimal() -> None:
    flops = 1e19
    best = optimal_params(flops)
    least = law(best, flops / 6 / best)
    for factor in (0.7, 1.4):
        assert law(best * factor, flops / 6 / (best * factor)) > least


def test_the_optimal_size_for_tokens_is_that_for_their_compute() -> None:
    best = optimal_params(1e19)
    assert optimal_params_for_tokens(1e19 / 6 / best) == pytest.approx(best)


@pytest.mark.parametrize("keys", [{"block_size": 1, "max_iters": 100}, {"max_iters": 1, "batch_size": 1}])
def test_no_run_is_predicted_to_end_above_guessing(keys: dict[str, object]) -> None:
    run = config(gradient_accumulation_steps=1, warmup_iters=0, **keys)
    forecast = forecast_loss(run)
    assert forecast
    assert law(1e8, run.total_tokens) > math.log(50304)  # what the law alone would say
    assert forecast.final.likely == forecast.final.high == math.log(50304)
    assert forecast.final.low < 8
    assert "guessing" in forecast.caution
    assert forecast.double_tokens.likely == 0


def test_of_a_short_context_only_the_top_is_unknown() -> None:
    short, usual = (forecast_loss(config(max_iters=20_000, block_size=size)) for size in (128, 256))
    assert short
    assert usual
    assert short.final.high == math.log(50304)
    assert "contexts of 128 tokens" in short.caution
    assert usual.final.high < 5
    assert usual.caution == ""


@pytest.mark.parametrize("vocab_size", [8192, 16384, 32000, 49152, 65536, 100277])
def test_another_tokenizer_widens_the_range_and_is_said(vocab_size: int) -> None:
    ours, theirs = (forecast_loss(config(max_iters=20_000, vocab_size=size)) for size in (vocab_size, 50304))
    assert ours
    assert theirs
    assert ours.final.high - ours.final.low > 4 * (theirs.final.high - theirs.final.low)
    assert f"vocabulary of {vocab_size:,} is not GPT-2's" in ours.caution


@pytest.mark.parametrize("vocab_size", [50257, 50264, 50304, 50432, 50688, 51200])
def test_paddings_of_gpt2s_vocabulary_are_gpt2s(vocab_size: int) -> None:
    forecast = forecast_loss(config(max_iters=20_000, vocab_size=vocab_size))
    assert forecast
    assert forecast.caution == ""
    assert forecast.final.high - forecast.final.low < 0.25


def test_of_a_run_from_trained_weights_nothing_is_said() -> None:
    run = config(max_iters=20_000, init_from="gpt2")
    assert forecast_loss(run) is None
    assert loss_at(run, 10_000) is None
    assert "from scratch" in why_no_forecast(run)


def test_a_missing_forecast_has_its_reason() -> None:
    assert why_no_forecast(config(max_iters=1, warmup_iters=0)) == ""
    assert "warm-up of 2,000 updates is not over" in why_no_forecast(config(max_iters=1))
    assert why_no_forecast(config(max_iters=0)) == "no update is made"
    assert "on BPE tokens, this data has characters" in why_no_forecast(config(vocab_size=65))
    assert "characters" not in why_no_forecast(config(vocab_size=4096))
