"""The cards of this machine according to NVML: names, memory, the programs that use them, and what sensors show."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Program:
    """A process that uses memory on the card."""

    pid: int
    name: str
    used_bytes: int | None  # None if the driver does not report it (Windows, containers)


@dataclass(frozen=True)
class GpuStatus:
    """One card of this machine, as its driver reports it now."""

    name: str
    compute_capability: tuple[int, int]
    total_bytes: int
    driver_bytes: int  # kept by the driver itself
    used_bytes: int  # by all programs together; with an old driver its own share is in it
    programs: tuple[Program, ...]
    driver: str = ""  # its version


@dataclass(frozen=True, kw_only=True)
class CardSensors:
    """What a card's sensors show now; None for what it does not tell."""

    temperature_c: int | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None  # that is in force
    default_power_limit_watts: float | None = None  # as the card is sold
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    throttle: tuple[str, ...] | None = None  # why the clock is lower than it could be: words of SLOWED_BY
    busy: float | None = None  # share of the last moment in which any kernel ran, 0 to 1
    other_bytes: int | None = None  # held by other programs
    other_busy: float | None = None  # share of the time of the card that other programs took, 0 to 1
    pcie_generation: int | None = None
    pcie_width: int | None = None  # lanes
    max_pcie_generation: int | None = None  # that card and machine can do
    max_pcie_width: int | None = None


# NVML's reasons for a lower clock (nvml.h, nvmlClocksThrottleReasons), by bit. Idling and settings are no reasons here.
SLOWED_BY = {0x04: "power limit", 0x08: "hardware slowdown", 0x20: "heat", 0x40: "heat", 0x80: "power brake"}


def usable_threads(environment: Mapping[str, str] = os.environ) -> int:
    """Threads that a run may have: OMP_NUM_THREADS where it is set, else the cores that this process may use."""
    if environment.get("OMP_NUM_THREADS", "").isdecimal():
        return max(1, int(environment["OMP_NUM_THREADS"]))
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor_name() -> str:
    """The processor as the system calls it; empty if it does not say."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "")
    except OSError:
        return ""


def read_gpu(index: int = 0, environment: Mapping[str, str] = os.environ) -> GpuStatus | None:
    """The card with CUDA's number `index`; None if there is no such card or NVML does not answer.

    CUDA numbers only the cards in CUDA_VISIBLE_DEVICES. Its order is NVML's if CUDA_DEVICE_ORDER is PCI_BUS_ID, which
    onecard sets for its own runs.
    """
    return _asked(index, environment, _status)


def read_sensors(index: int = 0, environment: Mapping[str, str] = os.environ) -> CardSensors | None:
    """What the sensors of that card show now; None as for `read_gpu`."""
    readings = sensor_readings(index, environment)
    try:
        return next(readings, None)
    finally:
        readings.close()


def sensor_readings(index: int = 0, environment: Mapping[str, str] = os.environ) -> Generator[CardSensors]:
    """What the sensors of that card show each time the next reading is asked for, until the card does not answer."""
    with _opened(index, environment) as card:
        while card and (found := _sensors(*card)) != CardSensors():
            yield found


def _asked(index: int, environment: Mapping[str, str], ask: Callable[[Any, Any], T]) -> T | None:
    """What NVML answers about a card; None if there is no such card or NVML does not answer."""
    with _opened(index, environment) as card:
        return _told(card[0], lambda: ask(*card)) if card else None


@contextmanager
def _opened(index: int, environment: Mapping[str, str]) -> Iterator[tuple[Any, Any] | None]:
    """NVML and its handle of a card; None if there is no such card or NVML does not answer."""
    try:
        import pynvml
    except ImportError:
        yield None
        return
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield None
        return
    try:
        handle = _told(pynvml, lambda: _handle(pynvml, index, environment.get("CUDA_VISIBLE_DEVICES")))
        yield None if handle is None else (pynvml, handle)
    finally:
        pynvml.nvmlShutdown()


def _status(nvml: Any, handle: Any) -> GpuStatus:
    memory = _memory(nvml, handle)  # type: ignore[no-untyped-call]
    driver_bytes = getattr(memory, "reserved", 0)
    capability = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    return GpuStatus(
        name=_text(nvml.nvmlDeviceGetName(handle)),
        compute_capability=(capability[0], capability[1]),
        total_bytes=memory.total,
        driver_bytes=driver_bytes,
        used_bytes=memory.total - memory.free - driver_bytes,  # of two drivers one counts its own share as used
        programs=_programs(nvml, handle),
        driver=_text(_told(nvml, lambda: nvml.nvmlSystemGetDriverVersion()) or ""),
    )


def _sensors(nvml: Any, handle: Any) -> CardSensors:
    def told(name: str, *arguments: object) -> Any:
        return _told(nvml, lambda: getattr(nvml, "nvmlDeviceGet" + name)(handle, *arguments))

    def watts(name: str) -> float | None:
        milliwatts = told(name)
        return None if milliwatts is None else milliwatts / 1000

    bits, busy = told("CurrentClocksThrottleReasons"), told("UtilizationRates")
    return CardSensors(
        temperature_c=told("Temperature", nvml.NVML_TEMPERATURE_GPU),
        power_watts=watts("PowerUsage"),
        power_limit_watts=watts("EnforcedPowerLimit"),
        default_power_limit_watts=watts("PowerManagementDefaultLimit"),
        sm_clock_mhz=told("ClockInfo", nvml.NVML_CLOCK_SM),
        memory_clock_mhz=told("ClockInfo", nvml.NVML_CLOCK_MEM),
        throttle=None if bits is None else tuple(sorted({word for bit, word in SLOWED_BY.items() if bits & bit})),
        busy=None if busy is None else busy.gpu / 100,
        other_bytes=_told(nvml, lambda: _held_by_others(nvml, handle)),
        other_busy=_told(nvml, lambda: _time_of_others(nvml, handle)),
        pcie_generation=told("CurrPcieLinkGeneration"),
        pcie_width=told("CurrPcieLinkWidth"),
        max_pcie_generation=told("MaxPcieLinkGeneration"),
        max_pcie_width=told("MaxPcieLinkWidth"),
    )


def _held_by_others(nvml: Any, handle: Any) -> int | None:
    """Memory that all other processes hold; None where the driver does not say what this one holds."""
    own = next((each.usedGpuMemory for each in _processes(nvml, handle) if each.pid == os.getpid()), None)
    memory = _memory(nvml, handle)  # type: ignore[no-untyped-call]
    used = memory.total - memory.free - getattr(memory, "reserved", 0)
    return None if own is None else max(0, used - own)


def _time_of_others(nvml: Any, handle: Any) -> float | None:
    """Share of the time of the card that other processes took lately; None where this one's own is not told."""
    seen: defaultdict[int, list[int]] = defaultdict(list)
    for sample in nvml.nvmlDeviceGetProcessUtilization(handle, 0):
        if sample.smUtil <= 100:  # drivers leave some samples unset
            seen[sample.pid].append(sample.smUtil)
    if os.getpid() not in seen:  # in a container the driver names other numbers than ours
        return None
    return min(1.0, sum(sum(each) / len(each) for pid, each in seen.items() if pid != os.getpid()) / 100)


def _told(nvml: Any, ask: Callable[[], Any]) -> Any:
    """One figure; None where the card or its driver does not tell it."""
    try:
        return ask()
    except (nvml.NVMLError, AttributeError):
        return None


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _handle(nvml, index: int, visible: str | None):  # type: ignore[no-untyped-def]
    """NVML's handle of the visible card number `index`; None if there is no such card."""
    if visible is None:
        return nvml.nvmlDeviceGetHandleByIndex(index)
    name = (visible.split(",")[index : index + 1] or [""])[0].strip()
    if name.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(name))
    if not name.startswith(("GPU-", "MIG-")):
        return None
    for number in range(nvml.nvmlDeviceGetCount()):  # CUDA accepts the beginning of a UUID
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
        uuid = nvml.nvmlDeviceGetUUID(handle)
        if (uuid.decode() if isinstance(uuid, bytes) else uuid).startswith(name):
            return handle
    return nvml.nvmlDeviceGetHandleByUUID(name.encode())


def _memory(nvml, handle):  # type: ignore[no-untyped-def]  # pynvml has no types
    """NVML's memory record. Version 2 lists the driver's own share separately; old drivers have only version 1."""
    try:
        return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except (nvml.NVMLError, AttributeError, TypeError):
        return nvml.nvmlDeviceGetMemoryInfo(handle)


def _programs(nvml: Any, handle: Any) -> tuple[Program, ...]:
    found = {
        each.pid: Program(each.pid, _process_name(nvml, each.pid), each.usedGpuMemory)
        for each in _processes(nvml, handle)
    }
    return tuple(sorted(found.values(), key=lambda program: -(program.used_bytes or 0)))


def _processes(nvml: Any, handle: Any) -> Iterator[Any]:
    """NVML's records of the processes on a card."""
    yield from _told(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)) or ()
    yield from _told(nvml, lambda: nvml.nvmlDeviceGetGraphicsRunningProcesses(handle)) or ()


def _process_name(nvml: Any, pid: int) -> str:
    try:
        name = nvml.nvmlSystemGetProcessName(pid)
        return Path(name.decode() if isinstance(name, bytes) else name).name
    except (nvml.NVMLError, UnicodeDecodeError):
        return f"process {pid}"
