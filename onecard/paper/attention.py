"""F.scaled_dot_product_attention on paper: what each of PyTorch's four kernels allocates, forward and backward.

Letters: B sequences of T tokens, H heads of D values. Queries, keys and values are views of one tensor, (B, T, H, D).
"""

from __future__ import annotations

from collections.abc import Sequence

from onecard.paper import kernels
from onecard.paper.device import AttentionKernel
from onecard.paper.kernels import FLOAT, LONG
from onecard.paper.paper import Paper
from onecard.paper.tags import ATTENTION, WORKSPACE
from onecard.paper.tensor import Storage, Tensor
from onecard.paper.work import ATTENTION_DROPOUT, ATTENTION_WORK

SCALAR = 4  # bytes of a 0-dimensional float32

# Causal kernels work in tiles: each row of queries reads half a tile beyond the diagonal, in both directions.
TILE = 128
# Of the time that exponentials take, the forward kernel's share: 0.56 of 2.32 ms (124M batch 8, H200); its two products
# alone would be 2 of 7.
FORWARD_SHARE = 0.3
# How many times as long an H200's kernels multiply (bench/attention_kernels.py): flash's do not use Hopper's own
# instructions, and for heads wider than 128 cuDNN's backward pass works in smaller tiles.
FLASH_ON_HOPPER = 2.3
WIDE_HEADS_BACKWARD = 2.0
# The same for the bytes of copies to and from padded heads: 14 copies a layer of 36/8/480, with rows of 120 bytes, took
# 2.9 ps a value (H200, 2026-11-20).
COPY_OF_ODD_HEADS = 2.5


def heads(paper: Paper, x: Tensor, number: int) -> Tensor:
    """(B, T, C) as (B, T, H, D). A gradient that was cut out of padded heads needs a copy on the way back."""
    node = paper.record([x])
    shape, dtype = x.shape, x.dtype
    out = x.like(*shape[:-1], number, shape[-1] // number)

    def backward(gs: list[Tensor], _kept: list[Storage]) -> list[Tensor]:
        if not gs[0].cut:
            return [gs[0].like(*shape)]
        _copies(paper, gs[0].numel, dtype)
        return [paper.gradient(shape, dtype)]

    return paper.result(node, out, backward)


def joined(paper: Paper, y: Tensor) -> Tensor:
    """(B, T, H, D) as (B, T, C), where C = H * D: a copy if heads are padded or in another order."""
    B, T, H, D = y.shape
    if not y.cut:
        return paper.view(y, (B, T, H * D))
    node = paper.record([y])
    _copies(paper, y.numel, y.dtype)
    return paper.result(node, paper.new((B, T, H * D), y.dtype, ATTENTION), lambda gs, _: [gs[0].like(B, T, H, D)])


def _copies(paper: Paper, values: int, dtype: int) -> None:
    """The work of a copy to or from heads that are padded or in another order."""
    paper.work.add(ATTENTION_WORK, moved_bytes=COPY_OF_ODD_HEADS * 2 * values * dtype, kernels=1)


def attention(paper: Paper, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    """Causal attention by the kernel that PyTorch chooses. `dropout` is 0 in an evaluation."""
    out = _kernel(paper, q, k, v, dropout)
    (B, T, H, D), element = q.shape, q.dtype
    kernel = _kernel_of(paper, q)
    pairs = H * B * T * (T + TILE) / 2  # of a query and a key that is not after it
    width = kernels.multiplied_head_size(kernel, D)
    on_hopper = paper.device.capability == (9, 0)
    slower = FLASH_ON_HOPPER if on_hopper and kernel == "flash" else 1.0
    slower_backward = WIDE_HEADS_BACKWARD if kernel == "cudnn" and width > 128 else 1.0

    def works(share: float, products: float, tensors: int, launches: int) -> None:
        if dropout:
            paper.work.add(ATTENTION_DROPOUT, values=share * pairs)
        paper.work.add(
            ATTENTION_WORK,
            tensor_flops=slower * products * 2 * pairs * width,
            values=share * pairs,
            moved_bytes=B * T * H * D * element * tensors,
            products=launches,
        )

    works(FORWARD_SHARE, 2, 4, 1)  # scores and values; q, k, v and the output
    if out.node is not None and out.node.backward is not None:
        of_kernel = out.node.backward

        def backward(gs: list[Tensor], kept: list[Storage]) -> Sequence[Tensor | None]:
            # Scores again and four gradients. The gradient and the output are read twice, then from the cache; the
            # gradient of q is summed in float32.
            works(1 - FORWARD_SHARE, 5 * slower_backward, 12, 3)
            return of_kernel(gs, kept)

        out.node.backward = backward
    return out


def _kernel(paper: Paper, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    kernel, D = _kernel_of(paper, q), q.shape[-1]
    if kernel == "math":
        return _math(paper, q, k, v, dropout)
    if kernel == "flash" and kernels.flash_head_size(D) != D:
        return _padded_flash(paper, q, k, v, dropout)
    return {"efficient": _efficient, "cudnn": _cudnn, "flash": _flash}[kernel](paper, q, k, v, dropout)


def _kernel_of(paper: Paper, q: Tensor) -> AttentionKernel:
    *_, T, _H, D = q.shape
    return paper.device.attention_kernel("float32" if q.dtype == FLOAT else "half", D, T)


def _efficient(paper: Paper, q: Tensor, k: Tensor, v: Tensor, _dropout: float) -> Tensor:
    (B, T, H, D), dtype = q.shape, q.dtype
    node = paper.record([q, k, v], q, k, v)
    out = paper.new(q.shape, dtype, ATTENTION)
    if paper.grad_enabled:
        logsumexp = paper.new((kernels.efficient_logsumexp(B, H, T),), 1, ATTENTION)
        paper.save(node, logsumexp)
    if dtype < FLOAT and D > 128:  # the output does not fit in registers: it is summed in float32
        paper.scratch(B * T * H * D * FLOAT)
    paper.save(node, out)

    def backward(_gs: list[Tensor], _kept: list[Storage]) -> list[Tensor]:
        parts = [paper.gradient((B, T, H, D), dtype) for _ in "qkv"]
        row_sums = B * T * H
        if dtype < FLOAT:
            delta = paper.new((row_sums,), FLOAT, WORKSPACE)
        else:  # row sums of gradient x output: three operations before the kernel
            product = paper.new((B, T, H, D), FLOAT, WORKSPACE)
            delta = paper.new((row_sums,), FLOAT, WORKSPACE)
            if H > 1:  # transposed and made contiguous
                delta = paper.new((row_sums,), FLOAT, WORKSPACE)
            del product
        paper.scratch(kernels.efficient_backward_workspace(B, H, T, D, is_half=dtype < FLOAT))
        del delta
        return parts

    return paper.result(node, out, backward)


def _cudnn(paper: Paper, q: Tensor, k: Tensor, v: Tensor, _dropout: float) -> Tensor:
    (B, T, H, D), dtype = q.shape, q.dtype
    node = paper.record([q, k, v], q, k, v)
    seed, offset = (paper.new((), LONG, ATTENTION) for _ in range(2))
    out = paper.new(q.shape, dtype, ATTENTION)
    kept = [out, seed, offset]
    if paper.grad_enabled:
        kept.append(paper.new((B, H, T), FLOAT, ATTENTION))  # log-sum-exp
    paper.loads("cudnn")
    paper.scratch(kernels.CUDNN_FORWARD_WORKSPACE)
    paper.save(node, *kept)

    def backward(_gs: list[Tensor], _kept: list[Storage]) -> list[Tensor]:
        parts = [paper.gradient((B, T, H, D), dtype) for _ in "qkv"]
        paper.loads("cudnn backward")
        paper.scratch(kernels.cudnn_backward_workspace(B, H, T, D))
        return parts

    return paper.result(node, out, backward)


def _flash(paper: Paper, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    (B, T, H, D), dtype = q.shape, q.dtype
    node = paper.record([q, k, v], q, k, v)
    out = paper.new(q.shape, dtype, ATTENTION)
    logsumexp = paper.new((B, H, T), FLOAT, ATTENTION)
    splits = 1 if dropout else kernels.flash_splits(paper.device, B, H, T, D)
    columns = [1, kernels.flash_rounded_head_size(D)] if splits > 1 else []
    partial = [paper.new((splits, B, H, T, width), FLOAT, WORKSPACE) for width in columns]  # log-sum-exp, output
    random_state = paper.new((2,), LONG, WORKSPACE if dropout else ATTENTION)
    unused = paper.new((), LONG, ATTENTION)
    if dropout:  # made again, with the generator's state
        random_state = paper.new((2,), LONG, ATTENTION)
    del partial
    paper.save(node, logsumexp, out, random_state, unused)

    def backward(_gs: list[Tensor], _kept: list[Storage]) -> list[Tensor]:
        parts = [paper.gradient((B, T, H, D), dtype) for _ in "qkv"]
        paper.scratch(*kernels.flash_backward_buffers(B, H, T, D))
        return parts

    return paper.result(node, out, backward)


def _padded_flash(paper: Paper, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    """Flash on heads that are padded to a multiple of 8: copies of q, k and v, and a result that is cut again."""
    (B, T, H, D), dtype = q.shape, q.dtype
    wide = kernels.flash_head_size(D)

    def padded(x: Tensor) -> Tensor:
        def cut_off(_gs: list[Tensor], _kept: list[Storage]) -> list[Tensor]:
            _copies(paper, B * T * H * D, dtype)
            gradient = paper.gradient((B, T, H, D), dtype)
            gradient.cut = True
            return [gradient]

        _copies(paper, B * T * H * D, dtype)
        return paper.result(paper.record([x]), paper.new((B, T, H, wide), dtype, ATTENTION), cut_off)

    q, k, v = (padded(part) for part in (q, k, v))
    out = _flash(paper, q, k, v, dropout)
    if out.node is not None:
        flash = out.node.backward
        assert flash is not None

        def backward(gs: list[Tensor], kept: list[Storage]) -> list[Tensor]:
            copies = [paper.new((B, T, H, wide), dtype, WORKSPACE) for _ in ("gradient", "out")]  # made contiguous
            _copies(paper, 2 * B * T * H * wide, dtype)
            parts = flash(gs, kept)
            del copies
            return list(parts)  # type: ignore[arg-type]

        out.node.backward = backward
    node = paper.record([out])
    cut = paper.result(node, out.like(B, T, H, D), lambda _gs, _: [paper.gradient((B, T, H, wide), dtype)])
    cut.cut = True
    return cut


def _math(paper: Paper, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    """_scaled_dot_product_attention_math in float32: scores of all pairs of tokens, softmax, product."""
    B, T, H, _ = shape = q.shape
    node = paper.record([q, k, v])

    def new(*dims: int, dtype: int = FLOAT) -> Tensor:
        return paper.new(dims, dtype, ATTENTION)

    scaled_q = new(*shape)  # multiplied by the root of the scale, like k below
    ones, lower = new(T, T, dtype=1), new(T, T, dtype=1)
    del ones
    numbers = [new(), new()]  # zero and minus infinity
    causal = new(T, T)
    del numbers, lower
    scaled_k = new(*shape)
    copies = [new(*shape) for _ in "qk"]  # bmm needs (heads, tokens, head size) in a row
    paper.save(node, *copies)
    scores = new(B, H, T, T)
    del scaled_k, copies
    softmax = new(B, H, T, T)
    masked = new(B, H, T, T, dtype=1)  # _safe_softmax looks for rows that see nothing
    rows = new(B, H, T, dtype=1)
    paper.tape.temporary(SCALAR, ATTENTION)
    del rows, masked, scores
    kept = [softmax]
    del softmax
    if dropout:
        kept += [new(B, H, T, T, dtype=1), new(B, H, T, T)]
    v_copy = new(*shape)
    out = new(*shape)
    paper.save(node, v_copy, *kept)
    del v_copy, kept
    del scaled_q, causal
    out.cut = True  # its heads come before its tokens
    if node is not None:
        node.lets_go = True

    def backward(gs: list[Tensor], kept: list[Storage]) -> list[Tensor]:
        dv, softmax_gradient = _through_values(paper, shape, gs, kept)
        dq, dk = (paper.gradient(shape, FLOAT) for _ in "qk")
        del softmax_gradient
        kept.clear()
        dq = paper.gradient(shape, FLOAT)
        dk = paper.gradient(shape, FLOAT)
        dv = paper.gradient(shape, FLOAT)
        dk.cut = True  # the keys were transposed
        return [dq, dk, dv]

    return paper.result(node, out, backward)


def _through_values(
    paper: Paper, shape: tuple[int, ...], gs: list[Tensor], kept: list[Storage]
) -> tuple[Tensor, Tensor]:
    """Backwards through the product with the values, dropout and softmax: the gradients of values and scores."""
    B, T, H, _ = shape
    dropped = kept[4:]
    has_mask = bool(dropped)
    q_copy, k_copy, v_copy, softmax = kept[:4]
    kept[:] = [q_copy, k_copy]
    del q_copy, k_copy
    gradient = paper.gradient(shape, FLOAT)
    gs.clear()
    dv = paper.gradient(shape, FLOAT)
    scores = paper.gradient((B, H, T, T), FLOAT)
    del gradient, v_copy
    del dropped[1:]
    if has_mask:
        scores = paper.gradient((B, H, T, T), FLOAT)
        dropped.clear()
    softmax_gradient = paper.gradient((B, H, T, T), FLOAT)
    paper.scratch(B * H * T * T * FLOAT)
    del scores, softmax
    return dv, softmax_gradient
