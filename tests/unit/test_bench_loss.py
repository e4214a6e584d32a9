"""What complete runs say about two recipes: ratios and errors worked out by hand, the verdict, JSON, table and plot."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from onecard.report.bench_loss import loss_json, loss_plot, print_losses, verdict_line
from onecard.runs.learned import Learned, Point, from_json, reached, verdict

LOG_4 = math.log(4)


def run(
    loss: float,
    tokens: int = 1000,
    *,
    name: str = "adamw",
    seed: int = 1,
    windows: Sequence[float] = (),
    each: float = 0.01,
) -> Learned:
    """A run of `tokens` with one token per update, of `each` seconds."""
    return Learned(
        name=name,
        ours=name != "adamw",
        share=tokens / 1000,
        seed=seed,
        updates=tokens,
        points=(Point(tokens // 2, tokens / 2 * each, loss + 1), Point(tokens, tokens * each, loss)),
        window_losses=tuple(windows) or (loss, loss),
        step_seconds=each,
        first_step_seconds=1.5,
        optimizer_share=0.25,
        parameters=10,
        device="cpu",
        torch="2.13.0",
    )


THEIRS = [run(4.0)]
OURS = [run(4.5, 250, name="fast", each=0.02), run(3.5, name="fast", each=0.02)]


def test_half_way_in_loss_is_half_way_in_the_logarithm_of_tokens_and_seconds() -> None:
    place = reached(OURS, THEIRS)
    assert place
    assert place.tokens_ratio == pytest.approx(math.sqrt(250 * 1000) / 1000)  # 0.5
    assert place.seconds_ratio == pytest.approx(math.sqrt(5 * 20) / 10)  # 1.0: each update takes twice as long
    assert not place.at_most


def test_a_run_that_is_exactly_there_gives_its_own_tokens() -> None:
    place = reached([*OURS, run(4.0, 400, name="fast")], THEIRS)
    assert place
    assert place.tokens_ratio == pytest.approx(0.4)


def test_a_shortest_run_that_is_there_already_is_a_bound_without_an_error() -> None:
    place = reached([run(3.9, 250, name="fast"), run(3.5, name="fast")], THEIRS)
    assert place
    assert (place.tokens_ratio, place.at_most, place.tokens_error) == (0.25, True, None)


def test_what_never_gets_there_has_no_ratio() -> None:
    assert reached([run(4.5, 250, name="fast"), run(4.1, name="fast")], THEIRS) is None
    assert reached(OURS, [run(math.nan)]) is None
    assert reached([], THEIRS) is None


def test_a_diverged_run_is_left_out() -> None:
    place = reached([*OURS, run(math.nan, 600, name="fast")], THEIRS)
    assert place
    assert place.tokens_ratio == pytest.approx(0.5)


def test_seeds_that_differ_by_a_tenth_move_the_ratio_by_their_standard_error() -> None:
    theirs = [run(3.9, seed=1), run(4.1, seed=2)]
    ours = [replace(one, seed=seed) for one in OURS for seed in (1, 2)]
    place = reached(ours, theirs)
    assert place
    assert place.over_seeds == pytest.approx(0.1)  # differences of +0.1 and -0.1: deviation 0.1·√2, over √2
    assert place.over_windows == pytest.approx(0.0)
    # over one nat the tokens grow fourfold: their share of 0.5 moves by 0.5 · ln 4 a nat
    assert place.tokens_error == pytest.approx(0.5 * LOG_4 * 0.1)
    assert place.seconds_error == pytest.approx(1.0 * LOG_4 * 0.1)


def test_a_speed_that_differs_between_seeds_counts_in_the_seconds_only() -> None:
    theirs = [run(4.0, seed=1), run(4.0, seed=2)]
    ours = [replace(one, seed=seed, step_seconds=speed) for one in OURS for seed, speed in ((1, 0.01), (2, 0.02))]
    place = reached(ours, theirs)
    assert place
    assert place.tokens_error == pytest.approx(0.0)
    assert place.seconds_error == pytest.approx(1.0 * math.log(2) / 2)


def test_what_is_hard_for_both_sides_is_no_error_of_their_difference() -> None:
    alike = [run(4.5, 250, name="fast", windows=(3.5, 5.5)), run(3.5, name="fast", windows=(2.5, 4.5))]
    place = reached(alike, [run(4.0, windows=(3.0, 5.0))])
    assert place
    assert place.over_windows == pytest.approx(0.0)
    assert place.over_seeds is None  # one seed says nothing
    other = reached(alike, [run(4.0, windows=(5.0, 3.0))])
    assert other
    assert other.over_windows == pytest.approx(2.0)  # differences of -2 and +2


def test_the_best_of_each_side_are_compared() -> None:
    better = replace(run(3.75, seed=1), name="adamw, learning_rate=0.002")
    slower = [replace(one, name="muon") for one in (run(4.5, 250, name="muon"), run(3.7, name="muon"))]
    said = verdict([run(4.0), better, *slower, *OURS])
    assert (said.theirs, said.ours, said.mark) == ("adamw, learning_rate=0.002", "fast", 3.75)
    assert said.reached
    assert said.reached.tokens_ratio == pytest.approx(0.25 * 4**0.75)


def test_the_first_line_is_the_verdict() -> None:
    found = [replace(one, seed=seed) for one in (*THEIRS, *OURS) for seed in (1, 2)]
    shown = StringIO()
    print_losses(found, verdict(found), ["a caution"], Console(file=shown, width=100))
    first, *rest = shown.getvalue().splitlines()
    assert (
        first == "fast reaches adamw's final loss 4.000 in 0.50 of its tokens (± 0.00) and 1.00 of its seconds (± 0.00)"
    )
    assert rest[-1] == "a caution"
    row = next(line.split() for line in rest if line.startswith("adamw "))
    assert row == ["adamw", "10", "1", "1,000", "10.0", "s", "4.0000", "±", "0.0000", "10.0", "25%"]
    assert "Only the loss after the last update" in shown.getvalue()


def test_a_loss_that_is_not_reached_is_said_with_how_far_it_is() -> None:
    found = [*THEIRS, run(4.25, name="fast")]
    assert verdict_line(found, verdict(found)) == (
        "fast does not reach adamw's final loss 4.000 in as many tokens: its loss is 4.250, 0.250 above"
    )


@pytest.mark.parametrize("found", [THEIRS, OURS, [run(math.nan), *OURS]])
def test_without_a_complete_run_of_each_side_nothing_is_compared(found: list[Learned]) -> None:
    assert verdict_line(found, verdict(found)).startswith("no comparison: ")
    assert loss_json(found, verdict(found))["tokens_ratio"] is None
    assert "<svg" in loss_plot(found, verdict(found))


def test_the_json_has_what_the_contract_promises() -> None:
    found = [*THEIRS, *OURS, replace(run(math.nan, name="fast"), seed=2)]
    answer = json.loads(json.dumps(loss_json(found, verdict(found)), allow_nan=False))
    assert answer["schema"] == 1
    assert answer["runs"][0]["points"] == [[500, 5.0, 5.0], [1000, 10.0, 4.0]]
    assert {"name", "seed", "points"} <= answer["runs"][0].keys()
    assert "window_losses" not in answer["runs"][0]
    assert {"tokens_ratio", "seconds_ratio"} <= answer["errors"].keys()
    assert answer["runs"][-1]["points"][-1] == [1000, 10.0, None]


def test_what_a_worker_prints_is_read_back_whole() -> None:
    assert from_json(json.loads(json.dumps(OURS[0].as_json()))) == OURS[0]


def test_the_plot_has_each_run_over_tokens_and_over_seconds() -> None:
    found = [*THEIRS, *OURS]
    picture = loss_plot(found, verdict(found))
    assert picture.count("<polyline") == 2 * len(found)
    assert picture.count("<circle") == 2 * len(found)
    assert "seconds of training" in picture
