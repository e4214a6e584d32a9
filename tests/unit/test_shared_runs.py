"""Files that people send of their cards: what is in them, what is refused, and what they do to plans."""

from __future__ import annotations

import ast
import csv
from collections.abc import Iterator
from dataclasses import replace

import pytest

from bench.add_shared import SHARED, BadFile, runs_in, with_runs
from onecard.config.schema import RunConfig
from onecard.plan.calibration import TimedRun, decisive
from onecard.plan.cards import find_card
from onecard.plan.speed import MeasuredRun, measured, nearest_measured, predict_speed
from onecard.plan.speed.fitted import known_speed
from onecard.plan.speed.rates import rates_by_figures
from onecard.plan.speed.times import step_times
from onecard.plan.tuning import Tried, Way
from onecard.report.tune import shared_text
from onecard.runs.tuned import Tuned

CARD = find_card("RTX 3060 Ti")  # nobody has measured it: its rates come from its figures
GPT2 = RunConfig().replace({"batch_size": 8, "gradient_accumulation_steps": 16, "dtype": "bfloat16", "bias": False})
WAYS = [*(GPT2.in_micro_batches(size) for size in (2, 4, 8)), GPT2.replace({"grad_checkpoint": "full"})]
PLANNED = rates_by_figures(CARD)
TRUE = replace(
    PLANNED,
    matmul_share=0.8 * PLANNED.matmul_share,
    attention_share=1.17 * PLANNED.attention_share,
    bandwidth_share=0.92,
    costs=replace(PLANNED.costs, written_out_byte=0.476),
)


def speed_of(config: RunConfig) -> float:
    return config.tokens_per_step / step_times(config, CARD, TRUE, "onecard").step


def made_text(personal: str = "") -> str:
    tuned = Tuned(
        asked=GPT2.replace({"dataset": f"{personal}data", "out_dir": f"{personal}runs"}),
        machine={
            "device": "cuda",
            "name": "NVIDIA GeForce RTX 3060 Ti",
            "driver": "580.65.06",
            "torch": "2.13.0+cu130",
        },
    )
    for way in WAYS:
        run = TimedRun(config=decisive(way), tokens_per_second=speed_of(way), reserved_bytes=5 * 2**30)
        config = way.replace({"dataset": f"{personal}data"})
        tuned.tried.append(Tried(way=Way(config=config, patch={}), state="measured", timed=run))
    return shared_text(tuned, date="2026-11-19")


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The made runs among those that plans start from."""
    monkeypatch.setattr(measured, "SHARED_RUNS", tuple(runs_in(made_text())))
    known_speed.cache_clear()
    yield
    known_speed.cache_clear()


def test_a_shared_file_says_what_was_measured_and_nothing_personal() -> None:
    text = made_text(personal="/home/ann/")
    assert "ann" not in text
    rows = list(csv.DictReader(text.splitlines()))
    assert len(rows) == len(WAYS)
    assert rows[0]["card"] == "NVIDIA GeForce RTX 3060 Ti"
    assert rows[0]["tokens_per_second"] == str(speed_of(WAYS[0]))


@pytest.mark.parametrize(
    "config", [GPT2.in_micro_batches(16), GPT2.replace({"n_layer": 6, "n_embd": 512, "n_head": 8})]
)
def test_the_range_of_a_card_that_nobody_had_measured_narrows_and_its_centre_moves(
    config: RunConfig, request: pytest.FixtureRequest
) -> None:
    before = predict_speed(config, CARD, "onecard")
    request.getfixturevalue("sent")
    after = predict_speed(config, CARD, "onecard")
    assert before
    assert after
    true = speed_of(config)
    assert after.spread < before.spread
    assert abs(after.tokens_per_second.likely / true - 1) < 0.05 < abs(before.tokens_per_second.likely / true - 1)
    assert after.tokens_per_second.low < true < after.tokens_per_second.high
    assert "runs that people sent of this card" in after.basis


@pytest.mark.usefixtures("sent")
def test_the_nearest_measured_run_is_one_of_them() -> None:
    said, distance = nearest_measured(GPT2, CARD, "onecard")
    assert "sent by its owner, driver 580.65.06, torch 2.13.0+cu130, 2026-11-19" in said
    assert distance == 0


@pytest.mark.usefixtures("sent")
def test_other_cards_are_planned_as_before() -> None:
    other = find_card("RTX 3070")
    speed = predict_speed(GPT2, other, "onecard")
    assert speed
    assert "sent" not in speed.basis


def changed(column: str, value: str, *, line: int = 1) -> str:
    rows = list(csv.reader(made_text().splitlines()))
    rows[line][rows[0].index(column)] = value
    return "\n".join(",".join(row) for row in rows) + "\n"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "first line"),
        ("card,speed\n", "first line"),
        (made_text().splitlines()[0], "no runs"),
        (made_text() + "short,row\n", "columns"),
        (made_text() + "x" * 100_000, "larger"),
        (changed("card", "NVIDIA GeForce RTX 9999"), "onecard gpus"),
        (changed("card", "A100"), "onecard gpus"),  # which of them?
        (changed("date", "yesterday"), "date"),
        (changed("driver", "=HYPERLINK()"), "driver"),
        (changed("torch", ""), "torch"),
        (changed("n_layer", "0"), "not a config"),
        (changed("dtype", "int8"), "not a config"),
        (changed("tokens_per_second", "nan"), "nan"),
        (changed("tokens_per_second", "9e9"), "cannot do more"),
        (changed("tokens_per_second", "12"), "less than"),
    ],
)
def test_what_is_not_as_tune_writes_it_is_refused(text: str, why: str) -> None:
    with pytest.raises(BadFile, match=why):
        runs_in(text)


def test_what_is_known_already_is_not_added_again() -> None:
    runs = tuple(runs_in(made_text()))
    assert len(runs) == len(WAYS)
    assert runs_in(made_text(), known=runs) == []


def test_runs_become_lines_that_python_reads_back() -> None:
    runs = runs_in(made_text())
    module = with_runs(SHARED.read_text(), runs)
    table = next(node.value for node in ast.parse(module).body if isinstance(node, ast.AnnAssign))
    read = eval(compile(ast.Expression(table), "shared_runs", "eval"), {"MeasuredRun": MeasuredRun})
    assert list(read)[-len(runs) :] == runs
