"""What NVML says, with a made NVML; and machines where it says nothing."""

import sys

import pynvml
import pytest

from onecard.inputs.place import place_here
from onecard.machine import read_gpu
from tests import fake_nvml as made
from tests.fake_nvml import fake_nvml


def test_the_card_and_its_programs_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    status = read_gpu()
    assert status is not None
    assert status.name == "NVIDIA GeForce RTX 4070"
    assert status.driver_bytes == 311 * 2**20
    assert status.used_bytes == 2150 * 2**20
    assert [(p.name, p.used_bytes) for p in status.programs] == [("Xorg", 900 * 2**20), ("firefox", None)]


def test_the_drivers_own_share_is_nobodys_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Version 2 of NVML's record counts it as used with some drivers, and with most it does not."""
    for used_has_driver in (False, True):
        monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(used_has_driver=used_has_driver))
        place = place_here()
        assert place
        assert place.other_bytes == 2150 * 2**20


def test_an_old_driver_still_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(old=True))
    status = read_gpu()
    assert status is not None
    assert status.driver_bytes == 0


def test_a_machine_without_nvml_has_no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(broken=True))
    assert read_gpu() is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_gpu() is None


@pytest.mark.parametrize(
    ("visible", "index", "card"),
    [
        (None, 0, "RTX 4070"),
        (None, 1, "RTX 3090"),
        ("1", 0, "RTX 3090"),
        ("1,0", 1, "RTX 4070"),
        (" 1 , 0", 0, "RTX 3090"),
        ("GPU-9e02", 0, "RTX 3090"),
        ("GPU-ffff", 0, None),
        ("0", 1, None),
        ("", 0, None),
        ("-1", 0, None),
    ],
)
def test_the_card_is_the_one_cuda_would_use(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, index: int, card: str | None
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    status = read_gpu(index, {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    assert (status.name.removeprefix("NVIDIA GeForce ") if status else None) == card


@pytest.mark.parametrize(
    ("device", "card"), [("auto", "4070"), ("cuda", "4070"), ("cuda:0", "4070"), ("cuda:1", "3090")]
)
def test_the_place_is_the_runs_own_card(monkeypatch: pytest.MonkeyPatch, device: str, card: str) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    place = place_here(device)
    assert place
    assert place.card.name.endswith(card)


def test_the_made_cards_give_nvmls_own_reasons_for_a_lower_clock() -> None:
    named = {
        "GpuIdle": made.IDLE,
        "ApplicationsClocksSetting": made.SETTING,
        "SwPowerCap": made.POWER_LIMIT,
        "HwSlowdown": made.HARDWARE,
        "SyncBoost": made.SYNC_BOOST,
        "SwThermalSlowdown": made.SOFTWARE_HEAT,
        "HwThermalSlowdown": made.HARDWARE_HEAT,
        "HwPowerBrakeSlowdown": made.POWER_BRAKE,
    }
    assert {name: getattr(pynvml, f"nvmlClocksThrottleReason{name}") for name in named} == named
