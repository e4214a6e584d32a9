"""What a Triton kernel's first launch allocates while its configurations are timed."""

from __future__ import annotations

from onecard.paper.device import Device
from onecard.paper.tags import WORKSPACE
from onecard.paper.tape import Tape

TIMED_TWICE = 2  # configurations: a third and fourth would find memory as the second did


def time_configurations(tape: Tape, device: Device, overwritten: list[int], *, may_raise_peak: bool) -> None:
    """Write what timing a kernel's configurations allocates. A buffer as large as the L2 cache flushes it before each.

    Clones stand in for what the kernel writes over (`overwritten`, in bytes). In inference and backward graphs
    (optimize_mem) a clone may not raise the peak: one that does not fit below it is copied to the host instead. The
    first configuration's flush may make that room for the second. Sources: runtime/benchmarking.py;
    runtime/triton_heuristics.py, copy_args_to_cpu_if_needed and maybe_clone_args.
    """
    for _ in range(TIMED_TWICE):
        clones = overwritten
        if overwritten and not may_raise_peak:
            room, clones = tape.room_below_peak(), []
            for size in overwritten:
                if size <= room:
                    room -= size
                    clones.append(size)
        for size in clones:
            tape.temporary(size, WORKSPACE)
        flush = tape.alloc(device.l2_cache_bytes, WORKSPACE)
        for size in clones:
            tape.temporary(size, WORKSPACE)
        tape.free(flush)
