"""The Triton kernels of nanochat_kernels.py. They run on every card Triton supports (compute capability 7.0 and up)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from onecard.paper.scratch import norm_block

RELU_BLOCK = 2048  # numbers per program
TILE = 4096  # numbers of x that a program of a norm holds at a time


@triton.jit  # type: ignore[untyped-decorator]
def _rms_norm(  # type: ignore[no-untyped-def]
    x, normed, scales, rows, C: tl.constexpr, EPSILON: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    at, inside = row * C + column, (row < rows) & (column < C)
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=1, keep_dims=True) / C + EPSILON)
    tl.store(normed + at, (value * scale).to(normed.dtype.element_ty), mask=inside)
    tl.store(scales + row, scale, mask=row < rows)


@triton.jit  # type: ignore[untyped-decorator]
def _rms_norm_backward(  # type: ignore[no-untyped-def]
    d_normed,
    normed,
    scales,
    d_x,
    factor,
    rows,
    C: tl.constexpr,
    ADDS: tl.constexpr,
    FACTOR: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    at, inside = row * C + column, (row < rows) & (column < C)
    gradient = tl.load(d_normed + at, mask=inside, other=0.0).to(tl.float32)
    value = tl.load(normed + at, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(scales + row, mask=row < rows, other=0.0)
    if FACTOR:
        scale *= tl.load(factor)
    along = tl.sum(gradient * value, axis=1, keep_dims=True) / C
    result = scale * (gradient - value * along)
    if ADDS:
        result += tl.load(d_x + at, mask=inside, other=0.0).to(tl.float32)
    tl.store(d_x + at, result.to(d_x.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _turn(row, T, pair, HALF: tl.constexpr, LOG2_BASE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Cosine and sine of the angles of a token's pairs of numbers."""
    angle = (row % T).to(tl.float32) * tl.exp2(pair.to(tl.float32) * (-LOG2_BASE / HALF))
    return tl.cos(angle), tl.sin(angle)


@triton.jit  # type: ignore[untyped-decorator]
def _rotate(  # type: ignore[no-untyped-def]
    qkv,
    scales,
    T,
    E: tl.constexpr,
    G: tl.constexpr,
    HALF: tl.constexpr,
    EPSILON: tl.constexpr,
    LOG2_BASE: tl.constexpr,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    pair = tl.arange(0, PAIRS)[None, :]
    cos, sin = _turn(row, T, pair, HALF, LOG2_BASE)
    head = tl.arange(0, HEADS)[:, None]
    at, inside = row * E + head * (2 * HALF) + pair, (head < G) & (pair < HALF)
    first = tl.load(qkv + at, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(qkv + at + HALF, mask=inside, other=0.0).to(tl.float32)
    squares = tl.sum(first * first + second * second, axis=1, keep_dims=True)
    scale = tl.rsqrt(squares / (2 * HALF) + EPSILON)
    tl.store(qkv + at, ((first * cos + second * sin) * scale).to(qkv.dtype.element_ty), mask=inside)
    tl.store(qkv + at + HALF, ((second * cos - first * sin) * scale).to(qkv.dtype.element_ty), mask=inside)
    tl.store(scales + row * G + head, scale, mask=head < G)


@triton.jit  # type: ignore[untyped-decorator]
def _rotate_backward(  # type: ignore[no-untyped-def]
    d_q,
    d_k,
    qkv,
    scales,
    T,
    d_stride,
    E: tl.constexpr,
    H: tl.constexpr,
    HALF: tl.constexpr,
    LOG2_BASE: tl.constexpr,
    HEADS: tl.constexpr,
    PAIRS: tl.constexpr,
):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    pair = tl.arange(0, PAIRS)[None, :]
    cos, sin = _turn(row, T, pair, HALF, LOG2_BASE)
    head = tl.arange(0, HEADS)[:, None]
    inside = (head < H) & (pair < HALF)
    of_head = head * (2 * HALF) + pair
    d = d_q
    if part == 1:
        d = d_k
    d += row * d_stride
    y = qkv + row * E + part * (2 * HALF * H)
    first = tl.load(d + of_head, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(d + of_head + HALF, mask=inside, other=0.0).to(tl.float32)
    y_first = tl.load(y + of_head, mask=inside, other=0.0).to(tl.float32)
    y_second = tl.load(y + of_head + HALF, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(scales + row * (2 * H) + part * H + head, mask=head < H, other=0.0)
    along = tl.sum(first * y_first + second * y_second, axis=1, keep_dims=True) / (2 * HALF)
    first = scale * (first - y_first * along)
    second = scale * (second - y_second * along)
    tl.store(d + of_head, (first * cos - second * sin).to(d.dtype.element_ty), mask=inside)
    tl.store(d + of_head + HALF, (second * cos + first * sin).to(d.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _square_relu(x, count, MOST: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    above = tl.maximum(tl.load(x + at, mask=at < count, other=0.0).to(tl.float32), 0.0)
    if MOST is not None:
        above = tl.minimum(above, MOST)
    tl.store(x + at, (above * above).to(x.dtype.element_ty), mask=at < count)


@triton.jit  # type: ignore[untyped-decorator]
def _square_relu_backward(d_value, value, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    slope = 2.0 * tl.sqrt(tl.load(value + at, mask=at < count, other=0.0).to(tl.float32))
    gradient = tl.load(d_value + at, mask=at < count, other=0.0).to(tl.float32)
    tl.store(d_value + at, (gradient * slope).to(d_value.dtype.element_ty), mask=at < count)


@triton.jit  # type: ignore[untyped-decorator]
def _normed_rows(tokens, weight, x, C: tl.constexpr, EPSILON: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    value = tl.load(weight + tl.load(tokens + row) * C + column, mask=column < C, other=0.0)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / C + EPSILON)
    tl.store(x + row * C + column, (value * scale).to(x.dtype.element_ty), mask=column < C)


@triton.jit  # type: ignore[untyped-decorator]
def _normed_rows_backward(  # type: ignore[no-untyped-def]
    tokens, d_x, weight, d_weight, C: tl.constexpr, EPSILON: tl.constexpr, BLOCK: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    at = tl.load(tokens + row) * C + column
    value = tl.load(weight + at, mask=column < C, other=0.0)
    gradient = tl.load(d_x + row * C + column, mask=column < C, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=0) / C + EPSILON)
    value *= scale
    gradient = scale * (gradient - value * (tl.sum(gradient * value, axis=0) / C))
    tl.atomic_add(d_weight + at, gradient, mask=column < C, sem="relaxed")


def rms_normed(x_NC: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """nanochat_kernels.rms_normed."""
    rows, channels = x_NC.shape
    normed_NC, scale_N = torch.empty_like(x_NC), x_NC.new_empty(rows, dtype=torch.float32)
    block, at_once = _tile(channels)
    _rms_norm[(triton.cdiv(rows, at_once),)](
        x_NC, normed_NC, scale_N, rows, C=channels, EPSILON=epsilon, ROWS=at_once, BLOCK=block, num_warps=4
    )
    return normed_NC, scale_N


def rms_norm_backward(
    d_normed_NC: Tensor, normed_NC: Tensor, scale_N: Tensor, d_x_NC: Tensor, *, adds: bool, factor: Tensor | None
) -> None:
    """The gradient of x is written into `d_x_NC`, or added to it."""
    rows, channels = normed_NC.shape
    block, at_once = _tile(channels)
    _rms_norm_backward[(triton.cdiv(rows, at_once),)](
        d_normed_NC,
        normed_NC,
        scale_N,
        d_x_NC,
        factor,
        rows,
        C=channels,
        ADDS=adds,
        FACTOR=factor is not None,
        ROWS=at_once,
        BLOCK=block,
        num_warps=4,
    )


def rotate(qkv_NE: Tensor, *, batch: int, heads: int, epsilon: float, base: float) -> Tensor:
    """nanochat_kernels.rotate."""
    rows, width = qkv_NE.shape
    half = width // (6 * heads)
    scale_NG = qkv_NE.new_empty(rows, 2 * heads, dtype=torch.float32)
    _rotate[(rows,)](
        qkv_NE,
        scale_NG,
        rows // batch,
        E=width,
        G=2 * heads,
        HALF=half,
        EPSILON=epsilon,
        LOG2_BASE=math.log2(base),
        HEADS=norm_block(2 * heads),
        PAIRS=norm_block(half),
        num_warps=4,
    )
    return scale_NG


def rotate_backward(
    d_qk: Sequence[Tensor], qkv_NE: Tensor, scale_NG: Tensor, *, batch: int, heads: int, base: float
) -> None:
    """nanochat_kernels.rotate_backward."""
    rows, width = qkv_NE.shape
    half = width // (6 * heads)
    d_q_NC, d_k_NC = d_qk
    assert d_q_NC.stride() == d_k_NC.stride()
    _rotate_backward[(rows, 2)](
        d_q_NC,
        d_k_NC,
        qkv_NE,
        scale_NG,
        rows // batch,
        d_q_NC.stride(0),
        E=width,
        H=heads,
        HALF=half,
        LOG2_BASE=math.log2(base),
        HEADS=norm_block(heads),
        PAIRS=norm_block(half),
        num_warps=4,
    )


def square_relu(x: Tensor, most: float | None) -> None:
    """nanochat_kernels.square_relu; `most` is what x is cut to first."""
    _square_relu[(triton.cdiv(x.numel(), RELU_BLOCK),)](x, x.numel(), MOST=most, BLOCK=RELU_BLOCK, num_warps=4)


def square_relu_backward(d_value: Tensor, value: Tensor) -> None:
    """nanochat_kernels.square_relu_backward."""
    _square_relu_backward[(triton.cdiv(value.numel(), RELU_BLOCK),)](
        d_value, value, value.numel(), BLOCK=RELU_BLOCK, num_warps=4
    )


def normed_rows(tokens_BT: Tensor, weight_VC: Tensor, dtype: torch.dtype, epsilon: float) -> Tensor:
    """nanochat_kernels.normed_rows."""
    channels = weight_VC.shape[1]
    x_NC = weight_VC.new_empty(tokens_BT.numel(), channels, dtype=dtype)
    _normed_rows[(len(x_NC),)](tokens_BT, weight_VC, x_NC, C=channels, EPSILON=epsilon, BLOCK=norm_block(channels))
    return x_NC


def normed_rows_backward(
    d_NC: Tensor, tokens_BT: Tensor, weight_VC: Tensor, d_weight_VC: Tensor, epsilon: float
) -> None:
    """nanochat_kernels.normed_rows_backward."""
    channels = d_NC.shape[1]
    _normed_rows_backward[(len(d_NC),)](
        tokens_BT, d_NC, weight_VC, d_weight_VC, C=channels, EPSILON=epsilon, BLOCK=norm_block(channels)
    )


def _tile(channels: int) -> tuple[int, int]:
    """Columns and rows that a program of a norm holds at a time."""
    block = norm_block(channels)
    return block, max(1, min(16, TILE // block))
