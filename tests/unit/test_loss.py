"""The forecast against runs that were really made: none of them is an input but through the offset of its dataset."""

import csv
import math
from pathlib import Path
from statistics import mean

import pytest

from onecard.config.schema import RunConfig
from onecard.plan.loss import (
    DATASETS,
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


POINTS = list(
    csv.DictReader((Path(__file__).parents[1] / "golden" / "loss_points.csv").read_text(encoding="utf-8").splitlines())
)


def public(use: str) -> list[dict[str, str]]:
    return [point for point in POINTS if point["use"] == use]


def run_of(point: dict[str, str]) -> RunConfig:
    """Its public run: half a million tokens an update, as all of them had."""
    layers, width = (int(word) for word in point["name"].split()[0:3:2])
    steps = round(float(point["tokens"]) / 524_288)
    return config(
        width, n_layer=layers, n_head=width // 64, dataset=point["dataset"], bias=True, max_iters=steps,
        lr_decay_iters=steps, warmup_iters=int(point["warmup_iters"]),
    )  # fmt: skip


def above_the_law(point: dict[str, str]) -> float:
    return float(point["val_loss"]) - law(float(point["params"]), float(point["tokens"]))


def test_the_offset_of_fineweb_edu_is_that_of_its_public_runs_whichever_is_left_out() -> None:
    edu, runs = DATASETS["fineweb-edu"], public("offset")
    offsets = [above_the_law(run) for run in runs]
    assert len(runs) == 6
    assert edu.offset == pytest.approx(mean(offsets), abs=0.005)
    for left_out in range(len(offsets)):
        of_others = mean(offsets[:left_out] + offsets[left_out + 1 :])
        assert abs(offsets[left_out] - of_others) < edu.spread / 2  # four of them share shape and data: half is theirs


@pytest.mark.parametrize("point", public("offset") + public("check"), ids=lambda point: point["name"])
def test_public_runs_on_fineweb_edu_end_in_their_ranges(point: dict[str, str]) -> None:
    forecast = forecast_loss(run_of(point), int(float(point["data_tokens"])) + 10_000_000)
    assert forecast
    assert forecast.caution == ""
    assert forecast.final.contains(float(point["val_loss"]))


@pytest.mark.parametrize("point", public("passes"), ids=lambda point: point["name"])
def test_data_read_again_widens_the_range_and_is_said(point: dict[str, str]) -> None:
    run, size = run_of(point), int(float(point["data_tokens"]))
    once, again = forecast_loss(run), forecast_loss(run, size)
    assert once
    assert again
    assert again.final.contains(float(point["val_loss"]))
    assert again.final.likely > once.final.likely  # a token that is read again is worth less than a new one
    assert again.final.high > once.final.high
    assert again.caution == f"outside the scaling law: data read {run.total_tokens / size:.3g} times"


def test_no_law_covers_many_passes_over_fewer_tokens_than_the_model_needs() -> None:
    run = config(max_iters=5000)
    assert forecast_loss(run, run.total_tokens // 16)
    size = run.total_tokens // 17
    assert forecast_loss(run, size) is None
    assert loss_at(run, 4500, size) is None
    assert why_no_forecast(run, size) == "no scaling law covers 17 passes over 1.2 tokens per parameter"


def test_nanogpts_own_run_of_33_passes_over_openwebtext_ends_in_its_range() -> None:
    run = config(dataset="openwebtext", gradient_accumulation_steps=60, max_iters=600_000, lr_decay_iters=600_000)
    forecast = forecast_loss(run, 9_035_582_198)
    assert forecast
    assert forecast.final.contains(2.85)  # nanoGPT's README
    assert "read 32.6 times" in forecast.caution


def test_without_warm_up_the_run_may_end_higher_and_that_is_said() -> None:
    (point,) = public("no warm-up")
    without = forecast_loss(run_of(point))
    usual = forecast_loss(run_of(point).replace({"warmup_iters": 715}))
    constant = forecast_loss(run_of(point).replace({"warmup_iters": 715, "decay_lr": False}))
    assert without
    assert usual
    assert constant
    assert without.final.contains(float(point["val_loss"]))
    assert without.final.likely == usual.final.likely
    assert without.final.high > usual.final.high
    assert without.caution == constant.caution == "outside the scaling law, and maybe higher: there is no warm-up"
    assert usual.caution == ""


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
