"""Matrix products by cuBLASLt, each with the kernel that was fastest on this card.

cuBLAS picks a kernel by rules of thumb. It also lists its other kernels, and for the shapes of a GPT one of them is
often faster, by up to a sixth. So the first time a shape is multiplied, all of them are timed on the operands at hand.
A product here can also do two things for which torch.mm needs another pass over memory: add another tensor to its
result, and add its result to float32 gradients.

With torch.use_deterministic_algorithms nothing is timed, and cuBLAS's own choice is used. Off CUDA, torch multiplies.

Letters: out_MN = factor · a_MK @ b_KN + added_MN.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import warnings
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p, sizeof
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onecard.paper.scratch import WORKSPACE_BYTES

CANDIDATES = 32  # kernels to time
CALLS = 5  # of each kernel, in one timing
ROUNDS = 3  # over all kernels; each one's fastest counts: other programs use the card, and it slows as it warms
TINY = 1e-30  # the factor of products that add to gradients, while they are timed: too small to change them

# Values of cublasLt.h and library_types.h
_FLOAT32 = 0
_TYPES = {torch.float32: _FLOAT32, torch.float16: 2, torch.bfloat16: 14}
_COMPUTE_FLOAT32 = 68
_POINTER_MODE, _TRANSPOSE_A, _TRANSPOSE_B = 2, 3, 4  # attributes of a product
_MAX_WORKSPACE, _REDUCTIONS, _ALIGNMENTS = 1, 3, (5, 6, 7, 8)  # attributes of a search; alignments of A, B, C, D
_ON_CARD = 1  # pointer mode: factors are read from the card
_SUMS_IN_FLOAT32 = 2  # the only way to sum parts of a product that we allow
_ALLOC_FAILED = 3


class _Candidate(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("workspace_bytes", c_size_t),
        ("status", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


def has_products() -> bool:
    """Whether torch's own copy of cuBLASLt can be found."""
    return _library() is not None


@functools.cache
def _library() -> Any:
    """The library that torch has loaded, or None."""
    version = (torch.version.cuda or "").partition(".")[0]
    name = f"cublasLt64_{version}.dll" if sys.platform == "win32" else f"libcublasLt.so.{version}"
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def multiply(
    a_MK: Tensor, b_KN: Tensor, out_MN: Tensor, *, added_MN: Tensor | None = None, factor: Tensor | None = None
) -> None:
    """out = factor · a @ b + added; `added` may be `out` itself, `factor` is one float32 on the same device."""
    assert out_MN.is_contiguous()
    assert added_MN is None or added_MN.is_contiguous()
    if not _is_on_card(out_MN):
        _multiply_by_torch(a_MK, b_KN, out_MN, added_MN, factor)
        return
    product = _product(
        out_MN.device.index,
        _operand(a_MK),
        _operand(b_KN),
        (out_MN.dtype, _alignment(out_MN), _alignment(added_MN if added_MN is not None else out_MN)),
        (out_MN.shape[0], out_MN.shape[1], a_MK.shape[1]),
        added_MN is not None,
        factor is not None,
    )
    try:
        product(a_MK, b_KN, out_MN, added_MN, factor)
    except NoKernel:
        _multiply_by_torch(a_MK, b_KN, out_MN, added_MN, factor)


def _is_on_card(matrix: Tensor) -> bool:
    return matrix.is_cuda


class NoKernel(Exception):
    """cuBLASLt has no kernel for a product, or refuses it; torch then multiplies, or says what is wrong."""


def _multiply_by_torch(
    a_MK: Tensor, b_KN: Tensor, out_MN: Tensor, added_MN: Tensor | None, factor: Tensor | None
) -> None:
    if out_MN.is_cuda and out_MN.dtype != a_MK.dtype:
        product_MN = torch.mm(a_MK, b_KN, out_dtype=out_MN.dtype)
    else:
        product_MN = (a_MK @ b_KN).to(out_MN.dtype)
    if factor is not None:
        product_MN *= factor
    torch.add(product_MN, added_MN, out=out_MN) if added_MN is not None else out_MN.copy_(product_MN)


@dataclass(frozen=True)
class _Operand:
    """What a kernel must know about a matrix: its type, the distance to the next row or column, its alignment."""

    dtype: torch.dtype
    transposed: bool  # columns are contiguous, not rows
    stride: int
    alignment: int


def _operand(matrix: Tensor) -> _Operand:
    transposed = matrix.stride(1) != 1
    assert not transposed or matrix.stride(0) == 1, "rows or columns lie together"
    return _Operand(matrix.dtype, transposed, matrix.stride(0 if not transposed else 1), _alignment(matrix))


def _alignment(matrix: Tensor) -> int:
    """The largest power of two, up to 256, that divides the address."""
    address = matrix.data_ptr()
    return min(256, address & -address) if address else 256


def _check(status: int) -> None:
    if status:
        name = "CUBLAS_STATUS_ALLOC_FAILED" if status == _ALLOC_FAILED else f"status {status}"
        raise RuntimeError(f"cuBLASLt answered with {name}")


class _Product:
    """A kind of product: cuBLASLt's description of it, and the kernel that computes it.

    cuBLASLt is column-major: what is out_MN in memory is, for cuBLASLt, the N x M product of b and a.
    """

    def __init__(
        self,
        device: int,
        a: _Operand,
        b: _Operand,
        out: tuple[torch.dtype, int, int],
        shape: tuple[int, int, int],
        adds: bool,
        scales: bool,
    ) -> None:
        M, N, K = shape
        dtype, out_alignment, added_alignment = out
        self._handle, self._workspace = _handle(device), _workspace(device)
        self._lt = lt = _library()
        self._kind = c_void_p()
        _check(lt.cublasLtMatmulDescCreate(byref(self._kind), _COMPUTE_FLOAT32, _FLOAT32))
        for attribute, value in (
            (_TRANSPOSE_A, int(b.transposed)),
            (_TRANSPOSE_B, int(a.transposed)),
            (_POINTER_MODE, _ON_CARD if scales else 0),
        ):
            _check(lt.cublasLtMatmulDescSetAttribute(self._kind, attribute, byref(c_int32(value)), c_size_t(4)))
        self._b = _layout(b.dtype, *((K, N) if b.transposed else (N, K)), b.stride)
        self._a = _layout(a.dtype, *((M, K) if a.transposed else (K, M)), a.stride)
        self._out = _layout(dtype, N, M, N)
        self._alignments = (b.alignment, a.alignment, added_alignment, out_alignment)
        self._one, self._tiny, self._share_of_added = (
            c_void_p(_number(device, value).data_ptr()) if scales else byref(c_float(value))
            for value in (1.0, TINY, float(adds))
        )
        self._searched = False
        self._chosen: _Candidate | None = None  # None if cuBLASLt has no kernel

    def __call__(
        self, a_MK: Tensor, b_KN: Tensor, out_MN: Tensor, added_MN: Tensor | None, factor: Tensor | None
    ) -> None:
        operands = (a_MK, b_KN, out_MN if added_MN is None else added_MN, out_MN)
        if not self._searched:
            self._chosen, self._searched = self._fastest(operands), True
        number = self._one if factor is None else c_void_p(factor.data_ptr())
        if self._chosen is None or self._run(self._chosen, operands, number):
            shape = f"{len(a_MK)} x {len(b_KN)} x {b_KN.shape[1]}"
            warnings.warn(f"cuBLASLt has no kernel for a product of {shape}: torch multiplies, slower", stacklevel=3)
            raise NoKernel

    def _run(self, candidate: _Candidate, operands: tuple[Tensor, ...], factor: Any) -> int:
        a, b, added, out = (c_void_p(each.data_ptr()) for each in operands)
        status: int = self._lt.cublasLtMatmul(
            self._handle,
            self._kind,
            factor,
            b,
            self._b,
            a,
            self._a,
            self._share_of_added,
            added,
            self._out,
            out,
            self._out,
            byref(candidate.algorithm),
            c_void_p(self._workspace.data_ptr()),
            c_size_t(self._workspace.nbytes),
            c_void_p(torch.cuda.current_stream().cuda_stream),
        )
        return status

    def _candidates(self) -> list[_Candidate]:
        """The kernels cuBLASLt has for this product; the first is the one it would choose."""
        lt, search = self._lt, c_void_p()
        _check(lt.cublasLtMatmulPreferenceCreate(byref(search)))
        attributes = [(_MAX_WORKSPACE, c_uint64(self._workspace.nbytes)), (_REDUCTIONS, c_uint32(_SUMS_IN_FLOAT32))]
        attributes += [(key, c_uint32(value)) for key, value in zip(_ALIGNMENTS, self._alignments, strict=True)]
        for key, value in attributes:
            _check(lt.cublasLtMatmulPreferenceSetAttribute(search, key, byref(value), c_size_t(sizeof(value))))
        found, count = (_Candidate * CANDIDATES)(), c_int()
        status = lt.cublasLtMatmulAlgoGetHeuristic(
            self._handle,
            self._kind,
            self._b,
            self._a,
            self._out,
            self._out,
            search,
            CANDIDATES,
            found,
            byref(count),
        )
        lt.cublasLtMatmulPreferenceDestroy(search)
        return [] if status else [candidate for candidate in found[: count.value] if candidate.status == 0]

    def _fastest(self, operands: tuple[Tensor, ...]) -> _Candidate | None:
        candidates = self._candidates()
        if not candidates:
            return None
        if torch.are_deterministic_algorithms_enabled() or torch.cuda.is_current_stream_capturing():
            return candidates[0]
        _, _, added, out = operands
        factor = self._tiny if added is out else self._one  # timing must not change a sum that the product adds to
        working = [each for each in candidates if self._run(each, operands, factor) == 0]
        rounds = [[self._milliseconds(each, operands, factor) for each in working] for _ in range(ROUNDS)]
        best = [min(times) for times in zip(*rounds, strict=True)]
        return working[best.index(min(best))] if working else None

    def _milliseconds(self, candidate: _Candidate, operands: tuple[Tensor, ...], factor: Any) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        start.record()
        for _ in range(CALLS):
            self._run(candidate, operands, factor)
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))


_product = functools.cache(_Product)


def _layout(dtype: torch.dtype, rows: int, columns: int, stride: int) -> c_void_p:
    layout = c_void_p()
    _check(
        _library().cublasLtMatrixLayoutCreate(
            byref(layout), _TYPES[dtype], c_uint64(rows), c_uint64(columns), c_int64(stride)
        )
    )
    return layout


@functools.cache
def _handle(device: int) -> c_void_p:
    handle = c_void_p()
    with torch.cuda.device(device):
        _check(_library().cublasLtCreate(byref(handle)))
    return handle


@functools.cache
def _number(device: int, value: float) -> Tensor:
    """A number that stays on the card."""
    return torch.tensor(value, device=torch.device("cuda", device))


@functools.cache
def _workspace(device: int) -> Tensor:
    return torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=torch.device("cuda", device))
