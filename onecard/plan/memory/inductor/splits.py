"""How many parts TorchInductor cuts a reduction into when it has too few results to fill the card.

Source: torch/_inductor/choices.py, reduction_split_factor. The partial results are a buffer of their own.
"""

from __future__ import annotations

from math import ceil, isqrt

from onecard.paper.device import Device

WARP = 32
THREADS = 8 * WARP  # threads of a program
MOST = 512  # most elements of a thread


def inner_parts(device: Device, results: int, length: int) -> int:
    """Parts of `results` reductions over `length` neighbouring elements each; 1 where they are not cut."""
    whole = 524288 if device.capability[0] >= 10 else 8192
    if results >= 2 * device.multiprocessors or length <= whole:
        return 1
    threads = device.multiprocessors * device.threads_per_multiprocessor
    if length * results <= WARP * threads:
        each = WARP
    elif length * results < MOST * threads:
        blocks = ceil(threads // (2 * THREADS) / results)
        each = _even(length, ceil(length / (THREADS * blocks)), 30)
    else:
        each = _even(length, MOST, 50)
    return ceil(length / (each * THREADS))


def outer_parts(device: Device, results: int, length: int) -> int:
    """Parts of a sum over the `length` rows of a matrix with `results` columns."""
    threads = device.multiprocessors * device.threads_per_multiprocessor
    if length * results < WARP * threads:
        each = WARP
    elif length * results < MOST * threads:
        blocks = ceil(threads // THREADS / ceil(results / 128))
        each = _even(length, ceil(length / (4 * blocks)), 20)
    else:
        each = _even(length, MOST, 50)
    return ceil(length / (4 * each))


def _even(length: int, wanted: int, tolerance: int) -> int:
    """The divisor of `length` nearest to `wanted` (a warp at least), or `wanted` itself if none is near."""
    small = [value for value in range(1, isqrt(length) + 1) if length % value == 0]
    divisors = sorted({*small, *(length // value for value in small)})
    nearest = min(divisors, key=lambda value: abs(value - wanted))
    return max(nearest, WARP) if abs(nearest - wanted) < tolerance else wanted
