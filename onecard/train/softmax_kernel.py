"""Softmax, loss and gradient of rows of logits as one Triton kernel: each logit is read once from the card's memory.

One program handles a row, in two loops. The second loop should find the row in the L2 cache. A chunk of logits then
crosses the memory bus once in each direction; separate passes for maximum, sum and gradient would take it three times.
For that only few rows may be in progress at a time, so each row gets many warps. To keep these from waiting for each
other in every iteration, each lane keeps its own maximum and sum until the first loop is done.

Runs on every card Triton supports (compute capability 7.0 and up). `TRITON_INTERPRET=1` runs it on the CPU, for tests.
"""

from __future__ import annotations

import os

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096  # logits in registers at a time
LOGITS_PER_WARP = 256
LOWEST: tl.constexpr = tl.constexpr(-1e30)  # finite, so that the difference of two of them is not NaN
LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)  # exp(x) = exp2(LOG2_E * x), and exp2 is what a card has
ON_CARD: tl.constexpr = tl.constexpr(os.environ.get("TRITON_INTERPRET") != "1")


@triton.jit
def exp2(x):  # type: ignore[no-untyped-def]
    """2 ** x, but 0 where that is below 1e-38: tl.exp2 takes three more instructions for those."""
    if ON_CARD:
        return tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    return tl.exp2(x)


@triton.jit
def _taken_in(highest, total, x):  # type: ignore[no-untyped-def]
    """Each lane's maximum and sum of exp(x - maximum), after one more logit per lane."""
    higher = tl.maximum(highest, x)
    shift = higher * LOG2_E
    return higher, total * exp2(highest * LOG2_E - shift) + exp2(x * LOG2_E - shift)


@triton.jit  # type: ignore[untyped-decorator]
def _capped(x, SOFT_CAP: tl.constexpr):  # type: ignore[no-untyped-def]
    """SOFT_CAP · tanh(x / SOFT_CAP), or x where there is no cap."""
    if SOFT_CAP is not None:
        bell = exp2(tl.abs(x) * (-2 * LOG2_E / SOFT_CAP))  # never overflows
        share = (1 - bell) / (1 + bell)
        return tl.where(x >= 0, share, -share) * SOFT_CAP
    return x


@triton.jit  # type: ignore[untyped-decorator]
def _behind_cap(gradient, capped, SOFT_CAP: tl.constexpr):  # type: ignore[no-untyped-def]
    """The gradient of x from that of `capped` = `_capped(x)`, which it came through."""
    if SOFT_CAP is not None:
        share = capped / SOFT_CAP
        return gradient * (1 - share * share)
    return gradient


@triton.jit  # type: ignore[untyped-decorator]
def _rows(  # type: ignore[no-untyped-def]
    logits,
    targets,
    losses,
    row_stride,
    V: tl.constexpr,
    IGNORED: tl.constexpr,
    GRADIENT: tl.constexpr,
    SOFT_CAP: tl.constexpr,  # None where there is none
    BLOCK: tl.constexpr,
):
    WHOLE: tl.constexpr = V // BLOCK * BLOCK  # up to here no mask is needed
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    dtype = logits.dtype.element_ty
    target = tl.load(targets + row)
    columns = tl.arange(0, BLOCK)
    rest = WHOLE + columns < V
    if target == IGNORED:
        tl.store(losses + row, 0.0)
        if GRADIENT:
            zeros = tl.zeros((BLOCK,), dtype)
            for start in range(0, WHOLE, BLOCK):
                tl.store(logits + start + columns, zeros)
            tl.store(logits + WHOLE + columns, zeros, mask=rest)
        return
    of_target = _capped(tl.load(logits + target).to(tl.float32), SOFT_CAP)
    highest, total = tl.full((BLOCK,), LOWEST, tl.float32), tl.zeros((BLOCK,), tl.float32)
    for start in range(0, WHOLE, BLOCK):
        highest, total = _taken_in(highest, total, _capped(tl.load(logits + start + columns).to(tl.float32), SOFT_CAP))
    x = _capped(tl.load(logits + WHOLE + columns, mask=rest, other=0.0).to(tl.float32), SOFT_CAP)
    x = tl.where(rest, x, -float("inf"))
    highest, total = _taken_in(highest, total, x)
    top = tl.max(highest, axis=0)
    sum_of_row = tl.sum(total * exp2((highest - top) * LOG2_E), axis=0)
    loss = (top - of_target) + tl.log(sum_of_row)
    tl.store(losses + row, loss)
    if GRADIENT:
        log2_sum = top * LOG2_E + tl.log2(sum_of_row)
        tl.debug_barrier()  # all threads have read the target's logit before one of them overwrites it
        gradient = _behind_cap(exp2(x * LOG2_E - log2_sum), tl.where(rest, x, 0.0), SOFT_CAP)
        tl.store(logits + WHOLE + columns, gradient.to(dtype), mask=rest)
        for start in range(0, WHOLE, BLOCK):
            x = _capped(tl.load(logits + start + columns).to(tl.float32), SOFT_CAP)
            gradient = _behind_cap(exp2(x * LOG2_E - log2_sum), x, SOFT_CAP)
            tl.store(logits + start + columns, gradient.to(dtype))
        tl.debug_barrier()  # the target's probability has been written, and is now overwritten
        # p - 1 of the target, from the loss: near p = 1, subtracting rounded numbers would lose it
        at_target = tl.where(loss < 1e-3, loss * (0.5 * loss - 1.0), tl.exp(-loss) - 1.0)
        tl.store(logits + target, _behind_cap(at_target, of_target, SOFT_CAP).to(dtype))


def write_losses(
    logits_nV: Tensor,
    targets_n: Tensor,
    losses_n: Tensor,
    *,
    ignored: int,
    gradient: bool,
    soft_cap: float | None = None,
) -> None:
    """Fill `losses_n` (float32), 0 where the target is `ignored`; with `gradient`, the logits become the gradient."""
    assert all(tensor.stride(-1) == 1 for tensor in (logits_nV, targets_n, losses_n))
    rows, vocab_size = logits_nV.shape
    block = min(BLOCK, triton.next_power_of_2(vocab_size))
    _rows[(rows,)](
        logits_nV,
        targets_n,
        losses_n,
        logits_nV.stride(0),
        V=vocab_size,
        IGNORED=ignored,
        GRADIENT=gradient,
        SOFT_CAP=soft_cap,
        BLOCK=block,
        num_warps=max(1, block // LOGITS_PER_WARP),
    )
