"""Scratch memory of written-out passes: asked by train/products.py and block_kernels_triton.py, and by their plan."""

from __future__ import annotations

from onecard.units import MIB

WORKSPACE_BYTES = 32 * MIB  # for products that are made in parts and summed; as much as torch gives cuBLAS on an H100

CHANNELS_PER_WARP = 1024  # in the backward pass of a norm: most rows are one warp's, which then waits for no other
WARPS_PER_SM = 8  # each program of which has a sum of the weight's gradient of its own


def norm_block(channels: int) -> int:
    """Channels of a row in whole: the power of two that Triton wants."""
    return 1 << (channels - 1).bit_length()


def norm_warps(channels: int) -> int:
    """Warps of a program of a norm's backward pass."""
    return max(1, norm_block(channels) // CHANNELS_PER_WARP)


def norm_programs(rows: int, channels: int, multiprocessors: int) -> int:
    """Programs of a norm's backward pass: as many as run at a time."""
    return min(rows, max(1, WARPS_PER_SM // norm_warps(channels)) * multiprocessors)
