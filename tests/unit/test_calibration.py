"""What tune measured on this machine: how it is kept, when it counts, and what it does to a plan."""

from __future__ import annotations

import json
import math
import random
import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

import onecard
from onecard.config.schema import RunConfig
from onecard.errors import MachineError
from onecard.inputs.calibration import FOLDER, Device, calibration_of, keep, torch_here
from onecard.inputs.place import as_measured_here
from onecard.plan.calibrated import calibrated
from onecard.plan.calibration import MOST_RUNS, Calibration, TimedRun, decisive
from onecard.plan.cards import find_card
from onecard.plan.memory.predict import predict_onecard
from onecard.plan.place import Place
from onecard.plan.speed import predict_speed
from onecard.plan.speed.fitted import fitted, left_out_error
from onecard.plan.speed.measured import runs_of_card
from onecard.plan.speed.rates import ADA_GEFORCE_RATES, Rates
from onecard.plan.speed.times import step_times
from onecard.report.plan_json import plan_json
from onecard.units import MIB
from tests.fake_nvml import FakeCard, fake_nvml

RTX_4070 = find_card("RTX 4070")
CARD, DRIVER, TODAY = "NVIDIA GeForce RTX 4070", "580.65.06", "2026-11-19"
GPT2 = RunConfig().replace({"batch_size": 8, "gradient_accumulation_steps": 16, "dtype": "bfloat16", "bias": False})
WAYS = [
    *(GPT2.in_micro_batches(size) for size in (2, 4, 8, 16)),
    GPT2.replace({"grad_checkpoint": "selective"}),
    GPT2.replace({"compile": False}),
]
# A card whose products are a quarter slower than those of the 4070s whose logs are public.
SLOWER = replace(ADA_GEFORCE_RATES, matmul_share=0.86, costs=replace(ADA_GEFORCE_RATES.costs, written_out_byte=0.476))
CONTEXT_BYTES = 213 * MIB


def timed(config: RunConfig, rates: Rates = SLOWER, **more: Any) -> TimedRun:
    """A made measurement: what a card with these rates would show."""
    speed = config.tokens_per_step / step_times(config, RTX_4070, rates, "onecard").step
    memory = predict_onecard(config, RTX_4070)
    reserved = memory.process_bytes - memory.context_bytes
    return TimedRun(
        config=decisive(config),
        tokens_per_second=speed,
        reserved_bytes=reserved,
        process_bytes=reserved + CONTEXT_BYTES,
        predicted_reserved_bytes=reserved,
        **more,
    )


MADE = Calibration(card=CARD, driver=DRIVER, torch="2.13.0", date=TODAY, runs=tuple(timed(way) for way in WAYS))
HERE = calibrated(Place(card=RTX_4070), MADE).card


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with an RTX 4070, and an empty home for calibrations."""
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(FakeCard()))
    monkeypatch.setenv("ONECARD_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def device(**changes: str) -> Device:
    return Device(**({"card": CARD, "driver": DRIVER, "torch": torch_here()} | changes))


def test_a_calibration_is_read_as_it_was_kept(home: Path) -> None:
    path = keep(device(), MADE.runs, date=TODAY)
    assert path.parent == home / FOLDER
    found, note = calibration_of(device())
    assert note is None
    assert found == replace(MADE, torch=torch_here())


def test_measuring_again_replaces_what_is_known_and_keeps_the_rest(home: Path) -> None:
    keep(device(), MADE.runs, date=TODAY)
    again = replace(MADE.runs[0], tokens_per_second=1234.0)
    keep(device(), [again], date="2026-12-24")
    found, _ = calibration_of(device())
    assert found
    assert (found.date, len(found.runs)) == ("2026-12-24", len(MADE.runs))
    assert found.runs[-1] == again
    many = [replace(again, config=again.config.replace({"n_layer": layers})) for layers in range(1, 129)]
    assert len(found.with_runs(many, date=TODAY).runs) == MOST_RUNS


def test_a_file_that_cannot_be_read_now_is_neither_replaced_nor_to_be_deleted(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may hold an hour of measuring."""
    path = keep(device(), MADE.runs, date=TODAY)
    before = path.read_bytes()
    with monkeypatch.context() as patched:
        patched.setattr("onecard.inputs.calibration.read_object", failing)
        _, note = calibration_of(device())
        assert note == f"{path} is passed over: Input/output error"
        with pytest.raises(MachineError):
            keep(device(), MADE.runs[:1], date=TODAY)
    assert path.read_bytes() == before


def failing(_: Path) -> None:
    raise OSError(5, "Input/output error")


def test_nothing_in_a_file_names_a_person_or_a_folder(home: Path) -> None:
    """Its config keys are those that decide speed and memory: not the data, not out_dir, not the name of a run."""
    personal = GPT2.replace({"dataset": "/home/ann/secret", "out_dir": "/home/ann/run", "wandb_run_name": "ann"})
    path = keep(device(), [replace(MADE.runs[0], config=decisive(personal))], date=TODAY)
    assert "ann" not in path.read_text()
    assert str(home) not in path.read_text()


def test_plans_for_this_machines_card_use_it_and_say_so(home: Path) -> None:
    before = onecard.make_plan(n_layer=12, n_embd=768, n_head=12)
    keep(device(), MADE.runs, date=TODAY)
    for gpu in (None, "RTX 4070"):
        plan = onecard.make_plan(n_layer=12, n_embd=768, n_head=12, gpu=gpu)
        content = plan_json(plan)
        assert content["gpu"]["calibration"] == {"date": TODAY, "driver": DRIVER, "torch": torch_here(), "runs": 6}
        assert plan.onecard
        assert plan.onecard.speed
        assert "measured on this machine on 2026-11-19" in plan.onecard.speed.basis
        assert plan.onecard.memory.context_bytes != before.onecard.memory.context_bytes  # type: ignore[union-attr]
    elsewhere = onecard.make_plan(n_layer=12, n_embd=768, n_head=12, gpu="RTX 4090")
    assert plan_json(elsewhere)["gpu"]["calibration"] is None


def test_without_the_file_a_plan_is_the_old_one_bit_for_bit(home: Path) -> None:
    before = plan_json(onecard.make_plan(gpu="RTX 4070"))
    path = keep(device(), MADE.runs, date=TODAY)
    assert plan_json(onecard.make_plan(gpu="RTX 4070")) != before
    path.unlink()
    assert json.dumps(plan_json(onecard.make_plan(gpu="RTX 4070"))) == json.dumps(before)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"schema": 1, "kind": "calibration"}',
        b'{"schema": 99, "kind": "calibration", "runs": []}',
        b'{"schema": 1, "kind": "recipe"}',
        b"[" * 500,
    ],
)
def test_a_damaged_file_is_named_once_and_passed_over(home: Path, content: bytes) -> None:
    before = plan_json(onecard.make_plan(gpu="RTX 4070"))
    path = home / FOLDER / device().filename
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    found = plan_json(onecard.make_plan(gpu="RTX 4070"))
    warnings = [each for each in found["warnings"] if str(path) in each]
    assert len(warnings) == 1
    assert "passed over" in warnings[0]
    assert found | {"warnings": before["warnings"]} == before


@pytest.mark.parametrize(
    ("key", "value"),
    [("tokens_per_second", -1), ("tokens_per_second", None), ("config", {"n_layer": 0}), ("config", {"out_dir": "x"})],
)
def test_absurd_figures_in_a_file_never_reach_a_plan(home: Path, key: str, value: object) -> None:
    path = keep(device(), MADE.runs, date=TODAY)
    content = json.loads(path.read_text())
    content["runs"][1][key] = value
    path.write_text(json.dumps(content))
    found, note = calibration_of(device())
    assert found is None
    assert note
    assert path.name in note


@pytest.mark.parametrize("changed", [{"card": "NVIDIA H200"}, {"driver": "550.1"}, {"torch": "2.11.0"}])
def test_a_file_of_another_card_driver_or_torch_does_not_count(home: Path, changed: dict[str, str]) -> None:
    other = device(**changed)
    path = keep(other, MADE.runs, date=TODAY)
    assert calibration_of(device())[0] is None
    path.rename(path.with_name(device().filename))  # not even under this one's name
    found, note = calibration_of(device())
    assert found is None
    assert note


def test_a_new_driver_says_that_the_card_should_be_measured_again(home: Path) -> None:
    keep(device(driver="550.1"), MADE.runs, date=TODAY)
    notes = [each for each in onecard.make_plan(gpu="RTX 4070").warnings if "onecard tune measures again" in each]
    assert len(notes) == 1


def test_the_speed_of_a_card_that_is_unlike_its_model_is_learned() -> None:
    """Of a model of another size, too: its true speed here is what the made card would do."""
    for config in (GPT2.replace({"n_layer": 6, "n_embd": 384, "n_head": 6}), GPT2.replace({"grad_checkpoint": "full"})):
        true = config.tokens_per_step / step_times(config, RTX_4070, SLOWER, "onecard").step
        before, after = predict_speed(config, RTX_4070, "onecard"), predict_speed(config, HERE, "onecard")
        assert before
        assert after
        assert abs(after.tokens_per_second.likely / true - 1) < 0.05
        assert abs(after.tokens_per_second.likely / true - 1) < abs(before.tokens_per_second.likely / true - 1)
        assert after.tokens_per_second.low < true < after.tokens_per_second.high
        assert after.spread < before.spread


def test_noise_between_the_runs_widens_the_range() -> None:
    """A range comes from what is predicted of runs that were left out."""
    noisy = [
        replace(run, tokens_per_second=run.tokens_per_second * (1 + 0.09 * (-1) ** number))
        for number, run in enumerate(MADE.runs)
    ]
    card = calibrated(Place(card=RTX_4070), replace(MADE, runs=tuple(noisy))).card
    calm, wide = (predict_speed(WAYS[2], each, "onecard") for each in (HERE, card))
    assert calm
    assert wide
    assert calm.spread == pytest.approx(0.05)
    assert wide.spread > 0.1


def test_left_out_errors_are_those_of_fits_without_each_run() -> None:
    """fitted.py computes them from one fit; here is a fit for each."""
    wide = [GPT2.replace({"n_layer": 4, "n_embd": width, "n_head": width // 64}) for width in (256, 512, 1024)]
    noise = random.Random(7)
    timed_ways = [replace(run, tokens_per_second=run.tokens_per_second * noise.gauss(1, 0.03)) for run in MADE.runs]
    timed_wide = [
        replace(timed(way), tokens_per_second=timed(way).tokens_per_second * noise.gauss(1, 0.03)) for way in wide
    ]
    runs = runs_of_card(calibrated(Place(card=RTX_4070), replace(MADE, runs=(*timed_ways, *timed_wide))).card)
    squares = []
    for run in runs:
        rates = fitted([other for other in runs if other is not run], RTX_4070, ADA_GEFORCE_RATES)
        predicted = run.config.tokens_per_step / step_times(run.config, RTX_4070, rates, "onecard").step
        squares.append(math.log(predicted / run.tokens_per_second) ** 2)
    assert left_out_error(runs, RTX_4070, ADA_GEFORCE_RATES) == pytest.approx(math.sqrt(mean(squares)), rel=0.05)


def test_a_context_that_was_measured_replaces_the_estimate() -> None:
    memory = predict_onecard(GPT2, HERE)
    assert memory.context_bytes == CONTEXT_BYTES
    assert memory.error_bytes < predict_onecard(GPT2, RTX_4070).error_bytes
    assert HERE.context_source.startswith("measured on this machine on 2026-11-19")


def test_where_the_driver_shows_no_memory_of_processes_the_estimate_stays() -> None:
    quiet = replace(MADE, runs=tuple(replace(run, process_bytes=None) for run in MADE.runs))
    card = calibrated(Place(card=RTX_4070), quiet).card
    assert (card.context_bytes, card.context_source) == (RTX_4070.context_bytes, RTX_4070.context_source)


def test_the_doctor_knows_the_speed_of_this_machines_card_and_of_no_other(home: Path) -> None:
    keep(device(), MADE.runs, date=TODAY)
    here, other = as_measured_here(RTX_4070), as_measured_here(find_card("RTX 4090"))
    assert here
    assert here.calibration
    assert here.context_bytes == HERE.context_bytes
    assert here.allocatable_bytes == RTX_4070.allocatable_bytes  # a run may have been elsewhere: no more than was timed
    assert other == find_card("RTX 4090")
    assert as_measured_here(None) is None


def test_a_fit_starts_from_it_too(home: Path) -> None:
    before = onecard.make_plan(gpu="RTX 4070", fit=True)
    keep(device(), MADE.runs, date=TODAY)
    after = onecard.make_plan(gpu="RTX 4070", fit=True)
    found = [plan.fit.best.speed for plan in (before, after) if plan.fit and plan.fit.best]
    assert [speed and speed.measured_here for speed in found] == [None, TODAY]
