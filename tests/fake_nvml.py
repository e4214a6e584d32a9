"""A made NVML, to stand in for the module pynvml: cards whose every reading a test chooses, and changes as it goes."""

import os
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

MIB = 2**20
# nvml.h's bits of nvmlClocksThrottleReasons; test_machine.py holds them against pynvml's own
IDLE, SETTING, POWER_LIMIT, HARDWARE, SYNC_BOOST = 0x01, 0x02, 0x04, 0x08, 0x10
SOFTWARE_HEAT, HARDWARE_HEAT, POWER_BRAKE = 0x20, 0x40, 0x80


class FakeError(Exception):
    """NVMLError: not supported, no such card, no driver."""


@dataclass
class FakeProgram:
    """A process on a card; `pid` 0 is the process that asks, `used_bytes` None is what drivers on Windows answer."""

    pid: int
    path: str
    used_bytes: int | None
    busy: int = 0  # percent of the time of the card
    draws: bool = False  # a graphics process


@dataclass
class FakeCard:
    """A card at work and in good health: the RTX 4070 of the notes with its desktop. None is N/A."""

    name: str = "NVIDIA GeForce RTX 4070"
    uuid: str = "GPU-1c7a-40"
    capability: tuple[int, int] = (8, 9)
    total_bytes: int = 12282 * MIB
    driver_bytes: int = 311 * MIB
    used_bytes: int = 2150 * MIB  # by programs
    programs: list[FakeProgram] = field(
        default_factory=lambda: [
            FakeProgram(7, "/usr/lib/xorg/Xorg", 900 * MIB, draws=True),
            FakeProgram(8, "/usr/bin/firefox", None),
        ]
    )
    celsius: int | None = 66
    milliwatts: int | None = 187_000
    limit_milliwatts: int | None = 200_000
    default_limit_milliwatts: int | None = 200_000
    sm_mhz: int | None = 2610
    max_sm_mhz: int | None = 3105
    memory_mhz: int | None = 10501
    busy: int | None = 98  # percent
    slowed_by: int | None = 0  # bits
    pcie_generation: int | None = 4
    max_pcie_generation: int | None = 4
    pcie_width: int | None = 16
    max_pcie_width: int | None = 16


def fake_nvml(
    *cards: FakeCard, driver: str = "580.65.06", broken: bool = False, old: bool = False, used_has_driver: bool = False
) -> ModuleType:
    """The module pynvml of a machine with `cards`, by default an RTX 4070 and an RTX 3090.

    `broken`: no driver answers. `old`: a driver that knows no version 2 of the memory record, no throttle reasons and
    no times of processes. `used_has_driver`: version 2 counts the driver's own share as used, as some drivers do.
    """
    here = cards or (FakeCard(), FakeCard(name="NVIDIA GeForce RTX 3090", uuid="GPU-9e02-30", capability=(8, 6)))
    nvml = ModuleType("pynvml")

    def told(value: Any, *, known: bool = True) -> Any:
        if value is None or not known:
            raise FakeError
        return value

    def init() -> None:
        if broken:
            raise FakeError

    def by_index(index: int) -> FakeCard:
        return told(here[index] if index < len(here) else None)

    def by_uuid(uuid: bytes) -> FakeCard:
        return told(next((card for card in here if card.uuid == uuid.decode()), None))

    def memory(card: FakeCard, version: int | None = None) -> SimpleNamespace:
        told(True, known=version is None or not old)
        free = card.total_bytes - card.driver_bytes - card.used_bytes
        if version is None:  # used is what is not free
            return SimpleNamespace(total=card.total_bytes, free=free, used=card.total_bytes - free)
        used = card.used_bytes + (card.driver_bytes if used_has_driver else 0)
        return SimpleNamespace(total=card.total_bytes, reserved=card.driver_bytes, free=free, used=used)

    def pid_of(program: FakeProgram) -> int:
        return program.pid or os.getpid()

    def programs(card: FakeCard, *, draws: bool) -> list[SimpleNamespace]:
        found = (program for program in card.programs if program.draws == draws)
        return [SimpleNamespace(pid=pid_of(each), usedGpuMemory=each.used_bytes) for each in found]

    def times(card: FakeCard, _since: int) -> list[SimpleNamespace]:
        busy = [SimpleNamespace(pid=pid_of(each), smUtil=each.busy) for each in card.programs if each.busy]
        return told(busy or None, known=not old)

    def path_of(pid: int) -> bytes:
        paths = [each.path for card in here for each in card.programs if pid_of(each) == pid]
        return told(paths[0] if paths else None).encode()

    vars(nvml).update(
        NVMLError=FakeError,
        NVML_TEMPERATURE_GPU=0,
        NVML_CLOCK_SM=1,
        NVML_CLOCK_MEM=2,
        nvmlMemory_v2=2,
        nvmlInit=init,
        nvmlShutdown=lambda: None,
        nvmlSystemGetDriverVersion=lambda: driver.encode(),
        nvmlSystemGetProcessName=path_of,
        nvmlDeviceGetCount=lambda: len(here),
        nvmlDeviceGetHandleByIndex=by_index,
        nvmlDeviceGetHandleByUUID=by_uuid,
        nvmlDeviceGetUUID=lambda card: card.uuid.encode(),
        nvmlDeviceGetName=lambda card: card.name.encode(),
        nvmlDeviceGetCudaComputeCapability=lambda card: list(card.capability),
        nvmlDeviceGetMemoryInfo=memory,
        nvmlDeviceGetComputeRunningProcesses=lambda card: programs(card, draws=False),
        nvmlDeviceGetGraphicsRunningProcesses=lambda card: programs(card, draws=True),
        nvmlDeviceGetProcessUtilization=times,
        nvmlDeviceGetTemperature=lambda card, _sensor: told(card.celsius),
        nvmlDeviceGetPowerUsage=lambda card: told(card.milliwatts),
        nvmlDeviceGetEnforcedPowerLimit=lambda card: told(card.limit_milliwatts),
        nvmlDeviceGetPowerManagementDefaultLimit=lambda card: told(card.default_limit_milliwatts),
        nvmlDeviceGetClockInfo=lambda card, clock: told(card.sm_mhz if clock == 1 else card.memory_mhz),
        nvmlDeviceGetMaxClockInfo=lambda card, _clock: told(card.max_sm_mhz),
        nvmlDeviceGetUtilizationRates=lambda card: SimpleNamespace(gpu=told(card.busy), memory=0),
        nvmlDeviceGetCurrentClocksThrottleReasons=lambda card: told(card.slowed_by, known=not old),
        nvmlDeviceGetCurrPcieLinkGeneration=lambda card: told(card.pcie_generation),
        nvmlDeviceGetMaxPcieLinkGeneration=lambda card: told(card.max_pcie_generation),
        nvmlDeviceGetCurrPcieLinkWidth=lambda card: told(card.pcie_width),
        nvmlDeviceGetMaxPcieLinkWidth=lambda card: told(card.max_pcie_width),
    )
    return nvml
