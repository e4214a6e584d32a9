"""Softmax, loss and gradient of rows of logits as one Triton kernel: each logit is read once from the card's memory.

A row is worked on by one program in two loops. The second loop finds the row still in the L2 cache, so a chunk of
logits crosses the memory bus once in each direction; separate passes for maximum, sum and gradient take it three times.
Runs on every card Triton supports (compute capability 7.0 on). `TRITON_INTERPRET=1` runs it on the CPU, for tests.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096  # logits in registers at a time
WARPS = 4


@triton.jit  # type: ignore[untyped-decorator]
def _rows(  # type: ignore[no-untyped-def]
    logits,
    targets,
    losses,
    row_stride,
    V: tl.constexpr,
    IGNORED: tl.constexpr,
    GRADIENT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    target = tl.load(targets + row)
    columns = tl.arange(0, BLOCK)
    if target == IGNORED:
        tl.store(losses + row, 0.0)
        if GRADIENT:
            for start in range(0, V, BLOCK):
                zeros = tl.zeros((BLOCK,), logits.dtype.element_ty)
                tl.store(logits + start + columns, zeros, mask=start + columns < V)
        return
    highest = -float("inf")
    total = 0.0  # of exp(x - highest) so far
    for start in range(0, V, BLOCK):
        mask = start + columns < V
        x = tl.load(logits + start + columns, mask=mask, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(highest, tl.max(x, axis=0))
        total = total * tl.exp(highest - higher) + tl.sum(tl.exp(x - higher), axis=0)
        highest = higher
    log_sum = highest + tl.log(total)
    loss = log_sum - tl.load(logits + target).to(tl.float32)
    tl.store(losses + row, loss)
    if GRADIENT:
        tl.debug_barrier()  # the target's logit has been read by all before anybody overwrites it
        # p - 1 of the target, from the loss: near p = 1 the difference of rounded numbers would be lost
        at_target = tl.where(loss < 1e-3, loss * (0.5 * loss - 1.0), tl.exp(-loss) - 1.0)
        for start in range(0, V, BLOCK):
            mask = start + columns < V
            x = tl.load(logits + start + columns, mask=mask, other=-float("inf")).to(tl.float32)
            slope = tl.where(start + columns == target, at_target, tl.exp(x - log_sum))
            tl.store(logits + start + columns, slope.to(logits.dtype.element_ty), mask=mask)


def write_losses(logits_nV: Tensor, targets_n: Tensor, losses_n: Tensor, *, ignored: int, gradient: bool) -> None:
    """Fill `losses_n` (float32), 0 where the target is `ignored`; with `gradient`, the logits become its gradient."""
    assert all(tensor.stride(-1) == 1 for tensor in (logits_nV, targets_n, losses_n))
    rows, vocab_size = logits_nV.shape
    _rows[(rows,)](
        logits_nV,
        targets_n,
        losses_n,
        logits_nV.stride(0),
        V=vocab_size,
        IGNORED=ignored,
        GRADIENT=gradient,
        BLOCK=BLOCK,
        num_warps=WARPS,
    )
