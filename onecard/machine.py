"""The cards of this machine according to NVML: their names, their memory, and the programs that use it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


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
    used_bytes: int  # by all programs together
    programs: tuple[Program, ...]


def read_gpu(index: int = 0, environment: Mapping[str, str] = os.environ) -> GpuStatus | None:
    """The card with CUDA's number `index`; None if there is no such card or NVML does not answer.

    CUDA numbers only the cards in CUDA_VISIBLE_DEVICES. Its order is NVML's if CUDA_DEVICE_ORDER is PCI_BUS_ID, which
    onecard sets for its own runs.
    """
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
        if handle is None:
            return None
        name = pynvml.nvmlDeviceGetName(handle)
        memory = _memory(pynvml, handle)  # type: ignore[no-untyped-call]
        capability = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
        return GpuStatus(
            name=name.decode() if isinstance(name, bytes) else name,
            compute_capability=(capability[0], capability[1]),
            total_bytes=memory.total,
            driver_bytes=getattr(memory, "reserved", 0),
            used_bytes=memory.used,
            programs=_programs(pynvml, handle),
        )
    except pynvml.NVMLError:
        return None
    finally:
        pynvml.nvmlShutdown()


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
