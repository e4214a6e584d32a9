"""Which reductions Triton times in several configurations at their first launch, as it does pointwise kernels.

Source: torch/_inductor/runtime/triton_heuristics.py. It compares sizes that are rounded up to powers of two.
"""

from __future__ import annotations

from onecard.paper.device import Device

MANY_ROWS = 8  # rows that the second configuration of a whole-row reduction takes at once
LONG_ROW = 256  # from here on there is no second configuration: one row at a time
WHOLE_ROW = 1024  # up to here a kernel holds a row at once; it loops over longer ones (should_use_persistent_reduction)
WARP = 32
LOOP_ROWS = 2  # rows a program takes in a reduction that loops over them
LOOP_REGISTERS = 40  # registers of a thread. Recorded runs show only that it is more than 32 and at most 64
REGISTERS = 65536  # registers of a multiprocessor


def is_timed(rows: int, length: int) -> bool:
    """Whether Triton times a kernel that reduces each of `rows` rows of `length` neighbouring elements.

    Source: _persistent_reduction_configs.
    """
    return _power_of_2(rows) >= MANY_ROWS and _power_of_2(length) < LONG_ROW


def loop_is_timed(device: Device, rows: int, length: int) -> bool:
    """Whether Triton times a kernel that loops over each row against one with half the step.

    It does if registers, not threads, limit how many programs run on a multiprocessor (CachingAutotuner,
    _dynamic_scale_rblock; the number of warps comes from triton_config_reduction).
    """
    step = _power_of_2(length)
    enough_registers = REGISTERS // device.threads_per_multiprocessor
    if step <= 64 or enough_registers >= LOOP_REGISTERS:
        return False
    warps = min(max(step // 128, 2), 8)
    resident = device.multiprocessors * (REGISTERS // (LOOP_REGISTERS * WARP * warps))
    return _power_of_2(rows) // LOOP_ROWS > resident


def _power_of_2(value: int) -> int:
    return 1 << (value - 1).bit_length()
