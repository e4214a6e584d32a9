"""What NVML says, with a made NVML; and machines where it says nothing."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from onecard.machine import read_gpu


class FakeError(Exception):
    pass


def fake_nvml(*, broken: bool = False, old: bool = False) -> ModuleType:
    nvml = ModuleType("pynvml")

    def init() -> None:
        if broken:
            raise FakeError

    def memory(_handle: object, version: int | None = None) -> SimpleNamespace:
        if version is not None and old:
            raise FakeError
        if version is not None:
            return SimpleNamespace(total=12282 * 2**20, reserved=311 * 2**20, used=2461 * 2**20)
        return SimpleNamespace(total=12282 * 2**20, used=2461 * 2**20)

    process = SimpleNamespace(pid=7, usedGpuMemory=900 * 2**20)
    hidden = SimpleNamespace(pid=8, usedGpuMemory=None)
    vars(nvml).update(
        NVMLError=FakeError,
        nvmlMemory_v2=2,
        nvmlInit=init,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda _handle: b"NVIDIA GeForce RTX 4070",
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetCudaComputeCapability=lambda _handle: [8, 9],
        nvmlDeviceGetComputeRunningProcesses=lambda _handle: [hidden],
        nvmlDeviceGetGraphicsRunningProcesses=lambda _handle: [process],
        nvmlSystemGetProcessName=lambda pid: b"/usr/lib/xorg/Xorg" if pid == 7 else b"/usr/bin/firefox",
    )
    return nvml


def test_the_card_and_its_programs_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    status = read_gpu()
    assert status is not None
    assert status.name == "NVIDIA GeForce RTX 4070"
    assert status.driver_bytes == 311 * 2**20
    assert [(p.name, p.used_bytes) for p in status.programs] == [("Xorg", 900 * 2**20), ("firefox", None)]


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
