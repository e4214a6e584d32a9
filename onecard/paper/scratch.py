"""Scratch memory of written-out passes, for train/products.py, block_kernels_triton.py and the plan."""

from __future__ import annotations

from onecard.units import MIB

WORKSPACE_BYTES = 32 * MIB  # for products computed in parts and summed; as much as torch gives cuBLAS on an H100

CHANNELS_PER_WARP = 1024  # in a norm's backward pass: most rows need one warp, which then waits for no other
WARPS_PER_SM = 8  # each program has its own sum of the weight's gradient


def norm_block(channels: int) -> int:
    """Channels of a whole row, rounded up to a power of two, as Triton needs."""
    return 1 << (channels - 1).bit_length()


def norm_warps(channels: int) -> int:
    """Warps per program in a norm's backward pass."""
    return max(1, norm_block(channels) // CHANNELS_PER_WARP)


def norm_programs(rows: int, channels: int, multiprocessors: int) -> int:
    """Programs in a norm's backward pass: as many as run at a time."""
    return min(rows, max(1, WARPS_PER_SM // norm_warps(channels)) * multiprocessors)
