"""What this machine can do, measured in this process: its card, or its processor where there is none.

`python -m onecard.train.measure_machine JOB` is started by `onecard tune` before it measures runs. JOB is JSON with a
`config`, the `seconds` to take, and for a processor the `threads` and micro-batches (`sizes`) to try. The last line of
output is what was measured, or the error that `onecard tune` is to tell as its own.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from onecard.config.schema import RunConfig
from onecard.errors import OnecardError
from onecard.machine import CardSensors, processor_name, read_gpu, read_sensors, usable_threads
from onecard.train.device import choose_device
from onecard.train.precision import allow_tf32

PRODUCTS = (1024, 2048, 4096, 8192)  # rows and columns of the square products that are timed on a card
COPIED_BYTES = 256 * 2**20  # far more than any cache holds
STARTS = 2000  # of a kernel that does nothing to speak of
SHARE_OF_LOAD = 0.8  # of the seconds: products without pause, while clock and power are read
SENSOR_SECONDS = 0.5  # between two readings
ROWS_ON_CPU = 4096  # of a product at most: more say nothing new


def measure(job: dict[str, Any]) -> dict[str, object]:
    """The figures of the device that a config would run on."""
    config = RunConfig.model_validate(job["config"])
    device = choose_device(config)
    found: dict[str, object] = {"device": device.type, "torch": torch.__version__}
    if device.type == "cuda":
        return found | _of_card(device, seconds=job["seconds"])
    if device.type == "cpu":
        return found | _of_processor(config, job)
    return found


def _of_processor(config: RunConfig, job: dict[str, Any]) -> dict[str, object]:
    """FLOP/s of a block's widest product by threads and sequences of a micro-batch."""
    cases = [(threads, size) for threads in job["threads"] for size in job["sizes"]]
    products = []
    for threads, size in cases:
        torch.set_num_threads(threads)
        rows = min(ROWS_ON_CPU, size * config.block_size)
        left, right = torch.ones(rows, config.n_embd), torch.ones(config.n_embd, 4 * config.n_embd)
        seconds = _median_seconds(lambda left=left, right=right: torch.mm(left, right), job["seconds"] / len(cases))  # type: ignore[misc]
        flops = 2 * rows * config.n_embd * 4 * config.n_embd / seconds
        products.append({"threads": threads, "batch_size": size, "flops_per_second": flops})
    return {"name": processor_name(), "cores": usable_threads(), "products": products}


def _median_seconds(work: Callable[[], object], until_seconds: float) -> float:
    """Seconds of some work on the processor: the median of what fits into the time, and of three at least."""
    work()  # the first one starts torch's threads
    found: list[float] = []
    until = time.perf_counter() + until_seconds
    while (began := time.perf_counter()) < until or len(found) < 3:
        work()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def peak_process_bytes() -> int | None:
    """The most memory that this process had, as the system counts it; None where it does not."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _of_card(device: torch.device, *, seconds: float) -> dict[str, object]:
    """A card's memory, rates, launch cost, and what its clock and power do under load."""
    number = device.index or 0
    allow_tf32(device)
    torch.zeros(1, device=device)
    properties = torch.cuda.get_device_properties(device)
    each = seconds * (1 - SHARE_OF_LOAD) / (2 * len(PRODUCTS) + 2)
    dtypes = (torch.bfloat16, torch.float16) if torch.cuda.get_device_capability(device) >= (8, 0) else (torch.float16,)
    products = [
        {"dtype": str(dtype).removeprefix("torch."), "size": size, "flops_per_second": _product_rate(dtype, size, each)}
        for dtype in (*dtypes, torch.float32)
        for size in PRODUCTS[: 3 if dtype == torch.float32 else None]
    ]
    bandwidth, launch_seconds = _bandwidth(device, each), _launch_seconds(device)
    load = _under_load(number, dtypes[0], seconds * SHARE_OF_LOAD)
    after = read_gpu(number)
    programs = after.programs if after else ()
    own_bytes = next((program.used_bytes for program in programs if program.pid == os.getpid()), None)
    return {
        "name": torch.cuda.get_device_name(device),
        "driver": after.driver if after else "",
        "total_bytes": properties.total_memory,
        "allocatable_bytes": after.total_bytes - after.driver_bytes if after else properties.total_memory,
        "other_bytes": after.used_bytes - own_bytes if after and own_bytes else None,
        "context_bytes": own_bytes - torch.cuda.memory_reserved(device) if own_bytes else None,
        "products": products,
        "bandwidth_bytes_per_second": bandwidth,
        "launch_seconds": launch_seconds,
        "load": load,
    }


def _card_seconds(work: Callable[[], object], until_seconds: float) -> float:
    """Seconds of some work on the card: the mean of as many as fit into the time, after some that warm up."""
    for _ in range(3):
        work()
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    times = max(3, min(10_000, int(until_seconds / max(1e-6, time.perf_counter() - began))))
    start: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    end: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    start.record()
    for _ in range(times):
        work()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / times


def _product_rate(dtype: torch.dtype, size: int, seconds: float) -> float:
    """FLOP/s of a square product; its values are random, because zeros draw little power."""
    left, right = (torch.randn(size, size, device="cuda").to(dtype) for _ in range(2))
    out = torch.empty(size, size, device="cuda", dtype=dtype)
    return 2 * size**3 / _card_seconds(lambda: torch.mm(left, right, out=out), seconds)


def _bandwidth(device: torch.device, seconds: float) -> float:
    """Bytes per second of a copy, read and written."""
    source = torch.zeros(COPIED_BYTES // 4, device=device)
    target = torch.empty_like(source)
    return 2 * COPIED_BYTES / _card_seconds(lambda: target.copy_(source), seconds)


def _launch_seconds(device: torch.device) -> float:
    """Seconds that this machine's processor needs to start a kernel from Python, while the card runs ahead of it."""
    value = torch.zeros(1, device=device)
    for _ in range(100):
        value.add_(1)
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(STARTS):
        value.add_(1)
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / STARTS


def _under_load(number: int, dtype: torch.dtype, seconds: float) -> dict[str, object] | None:
    """Products without pause: their rate at first and at last, and what the card's sensors show meanwhile."""
    size = PRODUCTS[-1]
    left, right = (torch.randn(size, size, device="cuda").to(dtype) for _ in range(2))
    out = torch.empty(size, size, device="cuda", dtype=dtype)
    rates: list[float] = []
    seen: list[CardSensors] = []
    began = time.perf_counter()
    while (now := time.perf_counter()) < began + seconds:
        times = 0
        while time.perf_counter() < now + SENSOR_SECONDS:
            for _ in range(4):
                torch.mm(left, right, out=out)
            torch.cuda.synchronize()
            times += 4
        rates.append(times * 2 * size**3 / (time.perf_counter() - now))
        if sensors := read_sensors(number):
            seen.append(sensors)
    if not rates:
        return None
    return {
        "seconds": time.perf_counter() - began,
        "first_flops_per_second": rates[0],
        "last_flops_per_second": statistics.median(rates[-3:]),
        "first_sm_mhz": next((each.sm_clock_mhz for each in seen if each.sm_clock_mhz), None),
        "sm_mhz": _last(each.sm_clock_mhz for each in seen),
        "watts": _last(each.power_watts for each in seen),
        "limit_watts": _last(each.power_limit_watts for each in seen),
        "celsius": _last(each.temperature_c for each in seen),
        "slowed_by": sorted({reason for each in seen for reason in each.throttle or ()}),
    }


def _last(values: Any) -> float | None:
    """The median of the last three that are known."""
    known = [value for value in values if value is not None][-3:]
    return statistics.median(known) if known else None


def answer(job: dict[str, Any]) -> dict[str, object]:
    """The measurement, or the error that the user can act on and its exit code."""
    try:
        return measure(job)
    except OnecardError as error:
        return error.as_json() | {"exit_code": error.exit_code}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(answer(json.loads(sys.argv[1]))) + "\n")
