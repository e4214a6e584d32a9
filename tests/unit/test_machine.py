"""What NVML says, with a made NVML; and machines where it says nothing."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from onecard.inputs.place import place_here
from onecard.machine import read_gpu


class FakeError(Exception):
    pass


CARDS = (b"NVIDIA GeForce RTX 4070", b"NVIDIA GeForce RTX 3090")
UUIDS = (b"GPU-1c7a-40", b"GPU-9e02-30")


def unknown(_uuid: bytes) -> object:
    raise FakeError


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
        nvmlDeviceGetHandleByIndex=lambda index: index if index < len(CARDS) else unknown(b""),
        nvmlDeviceGetCount=lambda: len(CARDS),
        nvmlDeviceGetUUID=lambda handle: UUIDS[handle],
        nvmlDeviceGetHandleByUUID=unknown,
        nvmlDeviceGetName=lambda handle: CARDS[handle],
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
