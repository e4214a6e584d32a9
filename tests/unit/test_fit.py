"""--fit: the fastest config that fits, the tokens per update kept, or the least that would fit."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from onecard.config.resolve import resolve
from onecard.config.schema import RunConfig
from onecard.inputs.make_plan import make_plan
from onecard.plan.cards import Card, find_card, plain_card
from onecard.plan.counts import count_params
from onecard.plan.fit import Fit, fit_nanogpt, fit_onecard, held_bytes
from onecard.plan.memory import predict
from onecard.plan.memory.predict import Memory, predict_nanogpt, predict_onecard
from onecard.plan.memory.replay import Replay
from onecard.plan.place import Place
from onecard.plan.search import largest
from onecard.plan.shape import shape_for_params
from onecard.plan.speed import predict_speed
from onecard.report.command import changed_command
from onecard.units import GIB, MIB

Fitter = Callable[[RunConfig, Card, int], Fit]
Predictor = Callable[[RunConfig, Card], Memory]

RTX_4070 = find_card("RTX 4070")
BESIDE_A_DESKTOP = RTX_4070.allocatable_bytes - round(2.1 * GIB)


def config(**keys: object) -> RunConfig:
    return RunConfig().replace({"dtype": "bfloat16", "batch_size": 16, "gradient_accumulation_steps": 32, **keys})


def test_the_124m_model_fits_a_4070_in_smaller_micro_batches_with_the_same_tokens() -> None:
    fit = fit_nanogpt(config(), RTX_4070, BESIDE_A_DESKTOP)
    assert fit.best
    assert fit.tokens_kept
    assert fit.best.config.tokens_per_step == 16 * 32 * 1024
    assert fit.best.config.batch_size < 16
    assert fit.best.config.compile
    assert set(fit.best.patch) <= {"batch_size", "gradient_accumulation_steps", "compile", "dtype"}


@pytest.mark.parametrize(
    "keys",
    [{}, {"n_embd": 384}, {"n_embd": 1024, "n_layer": 16, "n_head": 16}, {"compile": False}, {"dtype": "float32"}],
)
def test_a_fit_fits_when_it_is_planned_again(keys: dict[str, object]) -> None:
    fit = fit_nanogpt(config(**keys), RTX_4070, BESIDE_A_DESKTOP)
    assert fit.best
    again = predict_nanogpt(
        fit.best.config,
        RTX_4070,
        available_bytes=BESIDE_A_DESKTOP,
        expandable_segments=fit.best.expandable_segments,
    )
    assert again.fits
    assert again.process_bytes == fit.best.process_bytes <= BESIDE_A_DESKTOP


def test_the_best_is_the_fastest_of_those_that_fit_safely() -> None:
    fit = fit_nanogpt(config(n_embd=384), RTX_4070, BESIDE_A_DESKTOP)
    assert fit.best
    rates = [c.speed.tokens_per_second.likely for c in fit.candidates if c.safe and c.speed]
    assert fit.best.speed
    assert fit.best.speed.tokens_per_second.likely == max(rates)


def test_under_4_gib_the_30m_model_gets_a_smaller_micro_batch() -> None:
    note = config(n_layer=6, n_head=6, n_embd=384, block_size=512, gradient_accumulation_steps=4, dtype="float16")
    fit = fit_nanogpt(note, plain_card(4 * GIB), 4 * GIB)
    assert fit.best
    assert fit.best.process_bytes <= 4 * GIB
    assert fit.best.config.tokens_per_step == note.tokens_per_step


def test_where_nothing_fits_the_smallest_that_would_is_named() -> None:
    fit = fit_nanogpt(config(n_embd=4096, n_head=64, n_layer=32), plain_card(2 * GIB), 2 * GIB)
    assert fit.best is None
    assert fit.smallest
    assert fit.smallest.fits
    assert fit.smallest.process_bytes <= 2 * GIB


@pytest.mark.parametrize(
    "keys", [{}, {"n_embd": 1024, "n_head": 16, "n_layer": 24}, {"compile": False}, {"eval_batch_size": 2}]
)
def test_our_fit_fits_when_it_is_planned_again_and_changes_nothing_but_memory(keys: dict[str, object]) -> None:
    fit = fit_onecard(config(**keys), RTX_4070, BESIDE_A_DESKTOP)
    assert fit.best
    assert fit.tokens_kept
    assert set(fit.best.patch) <= {"batch_size", "gradient_accumulation_steps", "grad_checkpoint"}
    again = predict_onecard(fit.best.config, RTX_4070, available_bytes=BESIDE_A_DESKTOP)
    assert again.fits
    assert again.process_bytes == fit.best.process_bytes <= BESIDE_A_DESKTOP


def test_our_fit_has_most_memory_left_of_all_that_are_as_fast_as_the_fastest() -> None:
    asked = config(gradient_accumulation_steps=3)
    fit = fit_onecard(asked, RTX_4070, BESIDE_A_DESKTOP)
    assert fit.best
    assert fit.best.speed
    every = [
        asked.replace({"batch_size": size, "gradient_accumulation_steps": 48 // size, "grad_checkpoint": mode})
        for size in (1, 2, 3, 4, 6, 8, 12, 16, 24, 48)
        for mode in ("none", "selective", "full")
    ]
    rates: dict[float, int] = {}
    for way in every:
        memory = predict_onecard(way, RTX_4070, available_bytes=BESIDE_A_DESKTOP)
        if memory.is_safe(BESIDE_A_DESKTOP):
            speed = predict_speed(way, RTX_4070, "onecard")
            assert speed
            rates[speed.tokens_per_second.likely] = memory.process_bytes
    as_fast = [size for rate, size in rates.items() if rate >= 0.98 * max(rates)]
    assert len(as_fast) > 1, "or the test shows nothing"
    assert fit.best.process_bytes == min(as_fast)
    assert fit.best.speed.tokens_per_second.likely in rates


def test_recomputation_that_costs_less_than_two_percent_is_taken_for_its_room() -> None:
    fit = fit_onecard(config(gradient_accumulation_steps=1, grad_checkpoint="full"), find_card("H200"), 130 * GIB)
    assert fit.best
    assert fit.best.patch == {"grad_checkpoint": "selective"}
    assert (
        changed_command(fit.best, "my.py", {"n_embd": 768})
        == "onecard train my.py --n_embd=768 --grad_checkpoint=selective"
    )


def test_a_model_that_fits_only_by_recomputing_gets_it() -> None:
    large = config(n_layer=24, n_head=16, n_embd=1024, batch_size=8, gradient_accumulation_steps=1)
    room = predict_onecard(large.replace({"grad_checkpoint": "full"}), RTX_4070).process_bytes
    fit = fit_onecard(large.replace({"gradient_accumulation_steps": 1}), RTX_4070, room)
    assert fit.best
    assert fit.best.config.grad_checkpoint != "none"


def test_a_card_of_unknown_speed_gets_the_least_recomputation_and_the_largest_micro_batch() -> None:
    fit = fit_onecard(config(), plain_card(9 * GIB), 9 * GIB)
    assert fit.best
    assert fit.best.speed is None
    assert fit.best.config.grad_checkpoint == "none"
    assert fit.best.config.batch_size == 16


def test_where_nothing_of_ours_fits_the_smallest_that_would_is_named() -> None:
    fit = fit_onecard(config(n_embd=4096, n_head=64, n_layer=32), plain_card(2 * GIB), 2 * GIB)
    assert fit.best is None
    assert not fit.tokens_kept
    assert fit.smallest
    assert fit.smallest.trainer == "onecard"
    assert predict_onecard(fit.smallest.config, plain_card(2 * GIB), available_bytes=2 * GIB).fits


def test_ours_fits_larger_micro_batches_than_nanogpts() -> None:
    ours, nanogpts = (fit(config(), RTX_4070, BESIDE_A_DESKTOP).best for fit in (fit_onecard, fit_nanogpt))
    assert ours
    assert nanogpts
    assert ours.config.batch_size > nanogpts.config.batch_size


@pytest.mark.parametrize(
    ("wanted", "n_layer", "n_head", "n_embd"),
    [(124_000_000, 12, 12, 768), (63_500_000, 12, 8, 512), (51_400_000, 12, 7, 448)],
)
def test_a_size_finds_its_shape_with_heads_of_64(wanted: int, n_layer: int, n_head: int, n_embd: int) -> None:
    shape = shape_for_params(config(), wanted)
    assert (shape.n_layer, shape.n_head, shape.n_embd) == (n_layer, n_head, n_embd)


@pytest.mark.parametrize("wanted", [30e6, 77e6, 200e6, 350e6, 760e6, 1.3e9])
def test_every_size_is_met_within_five_percent(wanted: float) -> None:
    shape = shape_for_params(config(), round(wanted))
    assert shape.head_size == 64
    assert count_params(shape).nanogpt == pytest.approx(wanted, rel=0.05)


def test_a_fit_leaves_as_much_room_as_predictions_may_be_off() -> None:
    # 12 layers of 1024 in micro-batches of 8 leave 56 MiB, and the context alone is known within 80
    asked = config(n_head=16, n_embd=1024, batch_size=8, gradient_accumulation_steps=64)
    barely = predict_nanogpt(asked, RTX_4070, available_bytes=BESIDE_A_DESKTOP)
    assert barely.fits
    assert BESIDE_A_DESKTOP - barely.process_bytes < 80 * MIB
    fit = fit_nanogpt(asked, RTX_4070, BESIDE_A_DESKTOP)
    assert fit.best
    assert fit.best.safe
    assert fit.best.config.batch_size < 8
    again = predict_nanogpt(fit.best.config, RTX_4070, available_bytes=BESIDE_A_DESKTOP)
    assert BESIDE_A_DESKTOP - again.process_bytes >= again.error_bytes >= 80 * MIB
    assert any(candidate.fits and not candidate.safe for candidate in fit.candidates)


@pytest.mark.parametrize(
    ("fit", "predict"), [(fit_nanogpt, predict_nanogpt), (fit_onecard, predict_onecard)], ids=["nanogpt", "onecard"]
)
def test_where_only_a_tight_fit_is_left_it_is_taken_with_a_warning(fit: Fitter, predict: Predictor) -> None:
    least = config(batch_size=1, gradient_accumulation_steps=1, grad_checkpoint="full", compile=True)
    room = predict(least, RTX_4070).process_bytes
    found = fit(least, RTX_4070, room)
    assert found.best
    assert found.best.fits
    assert not found.best.safe
    assert found.warnings
    assert fit(least, RTX_4070, room + GIB).warnings == ()


def test_what_is_faster_but_not_safe_is_said_to_be_passed_over() -> None:
    asked = config(n_head=16, n_embd=1024, batch_size=8, gradient_accumulation_steps=64)
    fit = fit_nanogpt(asked, RTX_4070, BESIDE_A_DESKTOP)
    other = fit.passed_over
    assert fit.best
    assert other
    assert other.fits
    assert not other.safe
    assert other.rank > fit.best.rank
    left = (BESIDE_A_DESKTOP - other.process_bytes) / MIB
    assert "8 x 64 sequences would be" in fit.why
    assert f"leaves {left:.0f} MiB, and the prediction may be {other.error_bytes / MIB:.0f} MiB off" in fit.why


def test_where_the_fastest_is_safe_nothing_is_passed_over() -> None:
    fit = fit_onecard(config(gradient_accumulation_steps=1), find_card("H200"), 130 * GIB)
    assert fit.passed_over is None
    assert fit.why == "within 2% of the fastest, with more memory left"


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("predict", [predict_nanogpt, predict_onecard])
@pytest.mark.parametrize("shape", [(1, 1, 64), (3, 2, 128), (2, 16, 1024)])
def test_no_run_takes_less_than_every_update_holds(
    shape: tuple[int, int, int], predict: Predictor, compiled: bool, dtype: str
) -> None:
    n_layer, n_head, n_embd = shape
    least = config(n_layer=n_layer, n_head=n_head, n_embd=n_embd, batch_size=1, gradient_accumulation_steps=1)
    least = least.replace({"block_size": 8, "vocab_size": 512, "grad_checkpoint": "full"})
    memory = predict(least.replace({"compile": compiled, "dtype": dtype}), RTX_4070)
    assert memory.process_bytes > held_bytes(least, RTX_4070)


@pytest.mark.parametrize("fit", [fit_nanogpt, fit_onecard])
def test_what_cannot_fit_is_known_without_trying(fit: Fitter, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> Memory:
        raise AssertionError("a run whose weights do not fit was planned")

    large = config(n_layer=48, n_head=25, n_embd=1600)
    monkeypatch.setattr("onecard.plan.fit.predict_nanogpt", fail)
    monkeypatch.setattr("onecard.plan.fit.predict_onecard", fail)
    found = fit(large, RTX_4070, BESIDE_A_DESKTOP)
    assert found.best is None
    assert found.candidates == ()
    assert f"{held_bytes(large, RTX_4070) / MIB:,.0f} MiB" in found.why


def test_where_weights_would_fit_but_no_sequence_does_that_is_said() -> None:
    asked = config(batch_size=1, gradient_accumulation_steps=1)
    room = held_bytes(asked, RTX_4070) + MIB
    fit = fit_onecard(asked, RTX_4070, room)
    assert fit.candidates
    assert fit.why == "nothing fits, not even one sequence at a time"
    assert fit.smallest
    assert fit.smallest.safe


def test_the_error_is_the_contexts_and_a_share_of_what_is_reserved() -> None:
    h200, other = (predict_nanogpt(config(), find_card(name)) for name in ("H200", "RTX 4070"))
    assert h200.error_bytes == round(0.01 * (h200.process_bytes - h200.context_bytes))  # measured: its context is known
    assert other.error_bytes == round(0.02 * (other.process_bytes - other.context_bytes)) + 80 * MIB
    plain = predict_nanogpt(config(), plain_card(9 * GIB))
    assert plain.error_bytes > other.error_bytes  # of a card nobody named the context is a guess


def test_a_command_quotes_a_path_with_spaces() -> None:
    fit = fit_onecard(config(gradient_accumulation_steps=1, grad_checkpoint="full"), find_card("H200"), 130 * GIB)
    assert fit.best
    assert changed_command(fit.best, "my configs/a.py") == "onecard train 'my configs/a.py' --grad_checkpoint=selective"


def test_without_the_environment_no_way_asks_for_expandable_segments() -> None:
    asked = config(n_layer=8, n_head=10, n_embd=640, batch_size=512, gradient_accumulation_steps=1)
    free = fit_nanogpt(asked, RTX_4070, BESIDE_A_DESKTOP).best
    plain = fit_nanogpt(asked, RTX_4070, BESIDE_A_DESKTOP, expandable_segments=False)
    assert free
    assert free.expandable_segments, "this run shows nothing any more: choose another"
    assert plain.best
    assert not any(candidate.expandable_segments for candidate in plain.candidates)
    assert predict_nanogpt(plain.best.config, RTX_4070, available_bytes=BESIDE_A_DESKTOP).is_safe(BESIDE_A_DESKTOP)


def test_a_gain_below_two_percent_is_not_worth_a_risk() -> None:
    asked = config(n_head=16, n_embd=1024, batch_size=8, gradient_accumulation_steps=64)
    fit = fit_nanogpt(asked, RTX_4070, BESIDE_A_DESKTOP)
    other = fit.passed_over
    assert other
    assert other.speed
    assert fit.best
    hardly = replace(other.speed, tokens_per_second=other.speed.tokens_per_second.mapped(lambda rate: rate * 1.0004))
    same = replace(fit, candidates=(replace(fit.best, speed=other.speed), replace(other, speed=hardly)))
    assert same.passed_over is None


@pytest.mark.parametrize("start", [-1, 0, 3, 9, 40])
@pytest.mark.parametrize("count", [0, 1, 2, 17])
def test_the_largest_that_fits_is_found_from_wherever_the_search_starts(start: int, count: int) -> None:
    ways = list(range(count))
    for fitting in range(-1, count):
        found = largest(ways, lambda way, most=fitting: way <= most, start=start)  # type: ignore[misc]
        assert found == (fitting if fitting >= 0 else None)


def test_a_search_that_starts_well_looks_twice() -> None:
    looks: list[int] = []
    assert largest(range(100), lambda way: looks.append(way) or way <= 60, start=60) == 60  # type: ignore[func-returns-value]
    assert looks == [60, 61]


@pytest.mark.parametrize(
    ("card", "params", "layers", "most"), [("RTX 4090", 774_000_000, 12, 32), ("RTX 4070", None, 24, 32)]
)
def test_a_plan_with_a_fit_replays_few_runs(
    card: str, params: int | None, layers: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a plan takes is what its replays take: by halving there were 49 of the first, which took 2.7 seconds."""
    replays: list[int] = []
    real = predict.replay

    def counted(*tape: Any, **settings: Any) -> Replay:
        replays.append(1)
        return real(*tape, **settings)

    monkeypatch.setattr(predict, "replay", counted)
    flags = [
        ("n_layer", str(layers)),
        ("n_embd", "1024"),
        ("n_head", "16"),
        ("max_iters", "1234"),
    ]  # not planned before
    plan = make_plan(
        resolve("n_layer = 12", filename="a.py", flags=flags), Place(card=find_card(card)), fit=True, params=params
    )
    assert plan.fit
    assert plan.fit.best
    assert plan.fixes
    assert 0 < len(replays) <= most, len(replays)


def test_a_number_of_sequences_that_splits_badly_is_told_its_neighbour() -> None:
    prime = config(batch_size=1, gradient_accumulation_steps=479)
    for fit in (fit_onecard(prime, RTX_4070, BESIDE_A_DESKTOP), fit_nanogpt(prime, RTX_4070, BESIDE_A_DESKTOP)):
        assert fit.best
        assert fit.best.config.batch_size == 1
        assert fit.neighbour
        assert fit.neighbour.safe
        assert fit.neighbour.config.sequences_per_step == 480
        assert fit.neighbour.speed
        assert fit.note.startswith("479 sequences per update split badly: 480, as ")
        assert f"{fit.neighbour.speed.tokens_per_second.likely:,.0f} tokens/s" in fit.note
    assert not fit_onecard(config(), RTX_4070, BESIDE_A_DESKTOP).note


def test_a_saving_of_less_than_a_hundredth_of_the_room_changes_nothing() -> None:
    small = RunConfig(n_layer=4, n_head=2, n_embd=128, block_size=128, vocab_size=256, batch_size=16, model="nanochat")
    found = fit_onecard(small.replace({"gradient_accumulation_steps": 1}), find_card("RTX 4070"), 9_923 * MIB)
    assert found.best
    assert found.best.patch == {}, "full recomputation saves 2 MiB of 356 here, and costs nothing while launches decide"
