"""The cards of this machine according to NVML: their names, their memory, and the programs that use it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
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

    celsius: int | None = None
    watts: float | None = None
    limit_watts: float | None = None
    sm_mhz: int | None = None
    slowed_by: tuple[str, ...] = ()  # why the clock is lower than it could be: words of SLOWED_BY


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
    return _asked(index, environment, _sensors)


def _asked(index: int, environment: Mapping[str, str], ask: Callable[[Any, Any], T]) -> T | None:
    """What NVML answers about a card; None if there is no such card or NVML does not answer."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        handle = _handle(pynvml, index, environment.get("CUDA_VISIBLE_DEVICES"))
        return None if handle is None else ask(pynvml, handle)
    except pynvml.NVMLError:
        return None
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
    milliwatts = _told(nvml, lambda: nvml.nvmlDeviceGetPowerUsage(handle))
    limit = _told(nvml, lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle))
    bits = _told(nvml, lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)) or 0
    return CardSensors(
        celsius=_told(nvml, lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        watts=None if milliwatts is None else milliwatts / 1000,
        limit_watts=None if limit is None else limit / 1000,
        sm_mhz=_told(nvml, lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        slowed_by=tuple(sorted({reason for bit, reason in SLOWED_BY.items() if bits & bit})),
    )


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


def _programs(nvml, handle) -> tuple[Program, ...]:  # type: ignore[no-untyped-def]
    found: dict[int, Program] = {}
    for ask in (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses):
        try:
            for process in ask(handle):
                found[process.pid] = Program(process.pid, _process_name(nvml, process.pid), process.usedGpuMemory)
        except nvml.NVMLError:
            continue
    return tuple(sorted(found.values(), key=lambda program: -(program.used_bytes or 0)))


def _process_name(nvml, pid: int) -> str:  # type: ignore[no-untyped-def]
    try:
        name = nvml.nvmlSystemGetProcessName(pid)
        return Path(name.decode() if isinstance(name, bytes) else name).name
    except (nvml.NVMLError, UnicodeDecodeError):
        return f"process {pid}"
