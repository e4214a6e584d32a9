"""Which ways tune tries, when it stops trying, and which it picks."""

from __future__ import annotations

from dataclasses import replace

from onecard.config.schema import RunConfig
from onecard.plan.cards import find_card
from onecard.plan.memory.predict import predict_onecard
from onecard.plan.tuning import Tried, Way, best_of, cannot_win, ways_on_card, ways_on_cpu
from onecard.report.tune import verdict
from onecard.runs.tuned import Tuned
from onecard.units import GIB

CONFIG = RunConfig().replace({"batch_size": 8, "gradient_accumulation_steps": 8})


def tried(speed: float | None, *, predicted: float = 100.0, size: int = 8, process_bytes: int = GIB) -> Tried:
    config = CONFIG.in_micro_batches(size)
    way = Way(config=config, patch={}, predicted_tokens_per_second=predicted)
    state = "measured" if speed else "out of memory"
    return Tried(way=way, state=state, tokens_per_second=speed, process_bytes=process_bytes)  # type: ignore[arg-type]


def test_the_fastest_wins_and_of_equals_the_first() -> None:
    assert best_of([tried(100), tried(None), tried(120)]).tokens_per_second == 120  # type: ignore[union-attr]
    assert best_of([tried(119.5), tried(120)]).tokens_per_second == 119.5  # type: ignore[union-attr]
    assert best_of([tried(None)]) is None


def test_a_way_is_called_the_fastest_only_beside_another_that_was_measured() -> None:
    given = tried(120)

    def said(*others: Tried) -> str:
        return verdict(Tuned(asked=CONFIG, ways=[given.way] * 2, tried=[given, *others]))

    late, slower = (replace(tried(None, size=16), state=state) for state in ("no time left", "cannot win"))
    assert said(tried(100, size=16)) == "the config as given is the fastest way that was measured: 120 tokens/s"
    assert said(tried(120.5, size=16)) == "the config as given is as fast as any other way, within 1%: 120 tokens/s"
    assert "fastest" not in said(late, slower)
    assert said(late, slower).endswith("120 tokens/s; nothing else was measured in the time (--minutes gives more)")
    assert said(slower).endswith("every other way is predicted to be slower")
    assert said(tried(None, size=16)).endswith("no other way ran")
    assert said().endswith("nothing else was measured before the end")


def test_what_takes_more_than_is_free_does_not_win() -> None:
    found = best_of([tried(100), tried(120, process_bytes=3 * GIB)], 2 * GIB)
    assert found
    assert found.tokens_per_second == 100


def test_a_way_is_given_up_only_where_its_prediction_is_far_behind() -> None:
    measured = [tried(90, predicted=100)]
    slow, near = (Way(config=CONFIG, patch={}, predicted_tokens_per_second=speed) for speed in (85.0, 95.0))
    assert cannot_win(slow, measured, doubt=0.1)
    assert not cannot_win(near, measured, doubt=0.1)
    assert not cannot_win(slow, [*measured, tried(60, predicted=50)], doubt=0.1)  # one was faster than predicted
    assert not cannot_win(Way(config=CONFIG, patch={}), measured, doubt=0.1)


def test_on_a_card_every_way_fits_by_prediction_and_keeps_the_tokens_of_an_update() -> None:
    card = find_card("RTX 4070")
    ways = ways_on_card(CONFIG, card, card.allocatable_bytes)
    assert ways[0].patch == {}
    assert 4 <= len(ways) <= 7
    assert len({way.config for way in ways}) == len(ways)
    assert {way.config.tokens_per_step for way in ways} == {CONFIG.tokens_per_step}
    for way in ways:
        memory = predict_onecard(way.config, card, available_bytes=card.allocatable_bytes)
        assert memory.fits, way.patch
    assert any("loss_chunk" in way.patch for way in ways)
    assert any(way.patch.get("compile") is False for way in ways)


def test_a_config_that_is_far_too_large_for_the_card_is_not_started() -> None:
    card = find_card("RTX 4070")
    config = CONFIG.replace({"batch_size": 64, "gradient_accumulation_steps": 1})
    ways = ways_on_card(config, card, 6 * GIB)
    assert ways
    assert all(way.patch for way in ways)


def test_on_a_processor_the_config_as_given_comes_first_with_all_threads() -> None:
    rates = {(threads, size): 1e9 * threads * size for threads in (1, 2) for size in (4, 8, 16)}
    ways = ways_on_cpu(CONFIG, rates, share=0.5)
    assert (ways[0].patch, ways[0].threads) == ({}, 2)
    assert (ways[1].config.batch_size, ways[1].threads) == (16, 2)
    assert {way.config.tokens_per_step for way in ways} == {CONFIG.tokens_per_step}
