"""Laws of plans on a card whose runs were timed, whatever those runs say."""

import math
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onecard.config.schema import RunConfig
from onecard.inputs.calibration import Device, calibration_of, keep
from onecard.plan.calibrated import calibrated
from onecard.plan.calibration import Calibration, TimedRun
from onecard.plan.cards import Card, known_cards
from onecard.plan.place import Place
from onecard.plan.speed import predict_speed

CARDS = st.sampled_from(known_cards())


@st.composite
def timed_runs(draw: st.DrawFn) -> TimedRun:
    """Any speed of any small way: a broken clock, a card at rest, another program beside it."""
    config = RunConfig().replace(
        {
            "n_layer": draw(st.integers(1, 12)),
            "batch_size": draw(st.integers(1, 16)),
            "grad_checkpoint": draw(st.sampled_from(["none", "selective", "full"])),
            "compile": draw(st.booleans()),
        }
    )
    reserved = draw(st.none() | st.integers(1, 2**40))
    return TimedRun(
        config=config,
        tokens_per_second=draw(st.floats(1e-3, 1e12)),
        reserved_bytes=reserved,
        process_bytes=draw(st.none() | st.integers(1, 2**40)),
        predicted_reserved_bytes=draw(st.none() | st.integers(1, 2**40)) if reserved else None,
    )


def calibrations() -> st.SearchStrategy[Calibration]:
    return st.builds(
        Calibration,
        card=st.just("NVIDIA card"),
        driver=st.just("580.1"),
        torch=st.just("2.13.0"),
        date=st.just("2026-11-19"),
        runs=st.lists(timed_runs(), min_size=1, max_size=4, unique_by=lambda run: run.config).map(tuple),
    )


@settings(max_examples=15, deadline=None)
@given(calibration=calibrations(), card=CARDS)
def test_whatever_was_timed_a_plan_stays_a_plan(calibration: Calibration, card: Card) -> None:
    here = calibrated(Place(card=card), calibration).card
    speed = predict_speed(RunConfig(), here, "onecard")
    assert speed
    assert 0 < speed.tokens_per_second.low <= speed.tokens_per_second.likely <= speed.tokens_per_second.high
    assert math.isfinite(speed.total_seconds.high)
    assert 0 <= here.context_bytes < 2**41


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(calibration=calibrations())
def test_a_file_that_is_deleted_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calibration: Calibration
) -> None:
    monkeypatch.setenv("ONECARD_HOME", str(tmp_path))
    device = Device(card=calibration.card, driver=calibration.driver, torch=calibration.torch)
    path = keep(device, calibration.runs, date=calibration.date)
    assert calibration_of(device) == (calibration, None)
    path.unlink()
    assert calibration_of(device) == (None, None)
