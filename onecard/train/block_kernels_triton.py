"""The Triton kernels of block_kernels.py. They run on every card Triton supports (compute capability 7.0 and up)."""

from __future__ import annotations

import functools
import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from onecard.paper.scratch import norm_block, norm_programs, norm_warps
from onecard.train.gelu import P
from onecard.train.softmax_kernel import exp2

GELU_BLOCK = 2048  # numbers per program
TILE = 4096  # numbers of x that a program of the norm holds at a time
STAGES = 3  # rows that the norm's backward pass reads ahead
SUM_COLUMNS, SUM_ROWS = 8, 256

P0, P1, P2, P3, P4, P5 = (tl.constexpr(coefficient) for coefficient in P)
LOG2_OF_BELL: tl.constexpr = tl.constexpr(-0.5 * math.log2(math.e))
BELL_TO_DENSITY: tl.constexpr = tl.constexpr(1 / math.sqrt(2 * math.pi))


@triton.jit  # type: ignore[untyped-decorator]
def _norm(x, weight, normed, rows, C: tl.constexpr, EPSILON: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    at, inside = row * C + column, (row < rows) & (column < C)
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    mean = tl.sum(value, axis=1, keep_dims=True) / C
    apart = tl.where(inside, value - mean, 0.0)
    scale = tl.rsqrt(tl.sum(apart * apart, axis=1, keep_dims=True) / C + EPSILON)
    by = tl.load(weight + column, mask=column < C, other=0.0)
    tl.store(normed + at, (apart * scale * by).to(normed.dtype.element_ty), mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _norm_backward(  # type: ignore[no-untyped-def]
    d_normed,
    x,
    weight,
    d_x,
    d_out,
    normed,
    factor,
    partial,
    rows,
    C: tl.constexpr,
    EPSILON: tl.constexpr,
    RESIDUAL: tl.constexpr,
    FACTOR: tl.constexpr,
    AGAIN: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
):
    column = tl.arange(0, BLOCK)
    inside = column < C
    by = tl.load(weight + column, mask=inside, other=0.0)
    d_weight = tl.zeros((BLOCK,), tl.float32)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0), num_stages=STAGES):
        at = tl.cast(row, tl.int64) * C + column
        value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        gradient = tl.load(d_normed + at, mask=inside, other=0.0).to(tl.float32)
        if RESIDUAL:
            past = tl.load(d_x + at, mask=inside, other=0.0).to(tl.float32)
        if FACTOR:
            gradient *= tl.load(factor)
        through = gradient * by
        apart = tl.where(inside, value - tl.sum(value, axis=0) / C, 0.0)
        variance, along, mean = (
            tl.sum(apart * apart, axis=0) / C,
            tl.sum(through * apart, axis=0) / C,
            tl.sum(through, axis=0) / C,
        )
        scale = tl.rsqrt(variance + EPSILON)
        apart *= scale
        d_weight += gradient * apart
        if AGAIN:
            tl.store(normed + at, (apart * by).to(normed.dtype.element_ty), mask=inside)
        result = (through - mean - apart * (along * scale)) * scale
        if RESIDUAL:
            result += past
        tl.store(d_out + at, result.to(d_out.dtype.element_ty), mask=inside)
    tl.store(partial + tl.program_id(0) * C + column, d_weight, mask=inside)


@triton.jit  # type: ignore[untyped-decorator]
def _add_column_sums(partial, total, rows, C: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    for start in range(0, rows, ROWS):
        row = start + tl.arange(0, ROWS)[:, None]
        sums += tl.load(partial + row * C + column[None, :], mask=(row < rows) & (column[None, :] < C), other=0.0)
    before = tl.load(total + column, mask=column < C)
    tl.store(total + column, before + tl.sum(sums, axis=0), mask=column < C)


@triton.jit
def _phi_and_bell(x):  # type: ignore[no-untyped-def]
    bell = exp2(x * x * LOG2_OF_BELL)
    t = tl.abs(x) * 0.3 + 1.0
    t = tl.rsqrt(t * t)  # the reciprocal, in fewer instructions than a division
    tail = (((((P0 * t + P1) * t + P2) * t + P3) * t + P4) * t + P5) * (t * bell)
    return tl.where(x >= 0, 1.0 - tail, tail), bell


@triton.jit  # type: ignore[untyped-decorator]
def _gelu(x, value, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    wide = tl.load(x + at, mask=at < count, other=0.0).to(tl.float32)
    phi, _ = _phi_and_bell(wide)
    tl.store(value + at, (wide * phi).to(value.dtype.element_ty), mask=at < count)


@triton.jit  # type: ignore[untyped-decorator]
def _gelu_backward(d_value, x, value, count, AGAIN: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    wide = tl.load(x + at, mask=at < count, other=0.0).to(tl.float32)
    gradient = tl.load(d_value + at, mask=at < count, other=0.0).to(tl.float32)
    phi, bell = _phi_and_bell(wide)
    if AGAIN:
        tl.store(value + at, (wide * phi).to(value.dtype.element_ty), mask=at < count)
    slope = phi + wide * bell * BELL_TO_DENSITY
    tl.store(d_value + at, (gradient * slope).to(d_value.dtype.element_ty), mask=at < count)


@triton.jit  # type: ignore[untyped-decorator]
def _embedded(tokens, of_tokens, of_positions, x, T, C: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    token = tl.load(tokens + row)
    value = tl.load(of_tokens + token * C + column, mask=column < C)
    value += tl.load(of_positions + row % T * C + column, mask=column < C)
    tl.store(x + row * C + column, value.to(x.dtype.element_ty), mask=column < C)


@triton.jit  # type: ignore[untyped-decorator]
def _add_to_tokens(tokens, d_x, d_of_tokens, C: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    gradient = tl.load(d_x + row * C + column, mask=column < C).to(tl.float32)
    tl.atomic_add(d_of_tokens + tl.load(tokens + row) * C + column, gradient, mask=column < C, sem="relaxed")


@triton.jit  # type: ignore[untyped-decorator]
def _add_to_positions(d_x, d_of_positions, B, T, C: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    position = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    total = tl.load(d_of_positions + position * C + column, mask=column < C)
    for sequence in range(B):
        total += tl.load(d_x + (sequence * T + position) * C + column, mask=column < C).to(tl.float32)
    tl.store(d_of_positions + position * C + column, total, mask=column < C)


def embedded(tokens_BT: Tensor, of_tokens_VC: Tensor, of_positions_TC: Tensor, dtype: torch.dtype) -> Tensor:
    """block_kernels.embedded."""
    channels = of_tokens_VC.shape[1]
    x_NC = of_tokens_VC.new_empty(tokens_BT.numel(), channels, dtype=dtype)
    _embedded[(len(x_NC),)](
        tokens_BT, of_tokens_VC, of_positions_TC, x_NC, tokens_BT.shape[1], C=channels, BLOCK=norm_block(channels)
    )
    return x_NC


def embedded_backward(d_NC: Tensor, tokens_BT: Tensor, d_of_tokens_VC: Tensor, d_of_positions_TC: Tensor) -> None:
    """block_kernels.embedded_backward."""
    (batch, length), channels = tokens_BT.shape, d_NC.shape[1]
    block = norm_block(channels)
    _add_to_positions[(length,)](d_NC, d_of_positions_TC, batch, length, C=channels, BLOCK=block)
    _add_to_tokens[(len(d_NC),)](tokens_BT, d_NC, d_of_tokens_VC, C=channels, BLOCK=block)


def norm(x_NC: Tensor, weight_C: Tensor, epsilon: float) -> Tensor:
    """block_kernels.norm."""
    rows, channels = x_NC.shape
    normed_NC = torch.empty_like(x_NC)
    block, at_once = _tile(channels)
    _norm[(triton.cdiv(rows, at_once),)](
        x_NC, weight_C, normed_NC, rows, C=channels, EPSILON=epsilon, ROWS=at_once, BLOCK=block, num_warps=4
    )
    return normed_NC


def norm_backward(
    d_normed_NC: Tensor,
    x_NC: Tensor,
    weight_C: Tensor,
    d_weight_C: Tensor,
    *,
    d_x_NC: Tensor | None,
    factor: Tensor | None,
    again: bool,
    epsilon: float,
) -> tuple[Tensor, Tensor | None]:
    """block_kernels.norm_backward."""
    rows, channels = x_NC.shape
    programs = norm_programs(rows, channels, _multiprocessors(x_NC.device))
    out_NC = d_normed_NC if d_x_NC is None else d_x_NC
    normed_NC = torch.empty_like(x_NC) if again else None
    partial_PC = weight_C.new_empty(programs, channels)
    _norm_backward[(programs,)](
        d_normed_NC,
        x_NC,
        weight_C,
        d_x_NC,
        out_NC,
        normed_NC,
        factor,
        partial_PC,
        rows,
        C=channels,
        EPSILON=epsilon,
        RESIDUAL=d_x_NC is not None,
        FACTOR=factor is not None,
        AGAIN=again,
        BLOCK=norm_block(channels),
        STAGES=STAGES,
        num_warps=norm_warps(channels),
    )
    _add_column_sums[(triton.cdiv(channels, SUM_COLUMNS),)](
        partial_PC, d_weight_C, programs, C=channels, ROWS=SUM_ROWS, COLUMNS=SUM_COLUMNS, num_warps=4
    )
    return out_NC, normed_NC


def gelu(x: Tensor) -> Tensor:
    """block_kernels.gelu."""
    value = torch.empty_like(x)
    _gelu[(triton.cdiv(x.numel(), GELU_BLOCK),)](x, value, x.numel(), BLOCK=GELU_BLOCK, num_warps=4)
    return value


def gelu_backward(d_value: Tensor, x: Tensor, *, again: bool) -> Tensor | None:
    """block_kernels.gelu_backward."""
    value = torch.empty_like(x) if again else None
    _gelu_backward[(triton.cdiv(x.numel(), GELU_BLOCK),)](
        d_value, x, value, x.numel(), AGAIN=again, BLOCK=GELU_BLOCK, num_warps=4
    )
    return value


def _tile(channels: int) -> tuple[int, int]:
    """Columns and rows that a program of the norm holds at a time."""
    block = norm_block(channels)
    return block, max(1, min(16, TILE // block))


@functools.cache
def _multiprocessors(device: torch.device) -> int:
    """Of a card; Triton's interpreter runs one program at a time."""
    if device.type != "cuda":
        return 1
    return torch.cuda.get_device_properties(device).multi_processor_count
