"""Cross-entropy of a linear head, a chunk of tokens at a time: the logits of a micro-batch never exist together.

The gradient is made on the way, in the forward pass, while a chunk's logits are at hand; the backward pass only scales
it. A step so computes each logit once, as the plain loss does, and keeps two tensors instead of the logits: the
gradient of the hidden states (compute type) and that of the weight (float32). Why ours: docs/adr/0005.

Numbers. Products run in the compute type (autocast's, else the hidden states' own), softmax and losses in float32, and
the weight's gradient adds up in float32 over the chunks. The kept gradients are those of the *sum* of the losses:
undivided they are about as large as the weights, which float16 holds well; divided by the token count first, as the
plain loss does, the small ones would vanish below 6e-8. The division, and GradScaler's factor in `grad_output`, come in
the backward pass in the type of the hidden states, which under autocast is float32: nothing is lost there.

Letters: N tokens, n tokens of a chunk, C n_embd, V vocab_size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from onecard.units import MIB

IGNORED = -1  # a target that counts for nothing, as in nanoGPT
CHUNK_BYTES = 256 * MIB  # of logits in half precision; every chunk is a pass over the weight's gradient: ADR 0005
SLICE_BYTES = 64 * MIB  # of float32 logits, which exist for a slice of a chunk only, and not at all once compiled
TILE_TOKENS = 128  # chunks and slices are whole tiles of the matrix units where they can be


P = ParamSpec("P")
R = TypeVar("R")


def _uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """A function that a surrounding torch.compile leaves alone (torch's own decorator has no types)."""
    left_alone: Callable[P, R] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return left_alone


@dataclass(frozen=True)
class Softmax:
    """The two passes over a chunk's logits_nV for its targets_n, each giving losses_n in float32."""

    losses: Callable[[Tensor, Tensor], Tensor]
    losses_and_probabilities_: Callable[[Tensor, Tensor], Tensor]  # the logits become probabilities, in place


def default_chunk_tokens(vocab_size: int) -> int:
    """Tokens a chunk: as many as have logits of at most 256 MiB in half precision (512 MiB in float32)."""
    return _whole_tiles(CHUNK_BYTES // (2 * vocab_size))


def _whole_tiles(tokens: int) -> int:
    return max(1, tokens - tokens % TILE_TOKENS if tokens >= TILE_TOKENS else tokens)


def _log_softmax(logits_nV: Tensor) -> Tensor:
    return functional.log_softmax(logits_nV, dim=1, dtype=torch.promote_types(logits_nV.dtype, torch.float32))


def _losses(logits_nV: Tensor, targets_n: Tensor) -> Tensor:
    return -_log_softmax(logits_nV).gather(1, targets_n[:, None])[:, 0]


def _losses_and_probabilities_(logits_nV: Tensor, targets_n: Tensor) -> Tensor:
    log_probabilities_nV = _log_softmax(logits_nV)
    losses_n = -log_probabilities_nV.gather(1, targets_n[:, None])[:, 0]
    logits_nV.copy_(log_probabilities_nV.exp_())
    return losses_n


def _in_slices(softmax: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """The same, a few rows at a time: only their float32 copies exist beside the chunk."""

    def sliced(logits_nV: Tensor, targets_n: Tensor) -> Tensor:
        rows = _whole_tiles(SLICE_BYTES // (4 * logits_nV.shape[1]))
        parts = zip(torch.split(logits_nV, rows), torch.split(targets_n, rows), strict=True)
        return torch.cat([softmax(*part) for part in parts])

    return sliced


EAGER = Softmax(losses=_in_slices(_losses), losses_and_probabilities_=_in_slices(_losses_and_probabilities_))


@functools.cache
def compiled_softmax() -> Softmax:
    """The same code as one kernel, which makes no float32 copy and reads and writes a third of the bytes."""
    return Softmax(
        losses=torch.compile(_losses, dynamic=False),
        losses_and_probabilities_=torch.compile(_losses_and_probabilities_, dynamic=False),
    )


@_uncompiled
def mean_loss(
    hidden_NC: Tensor, weight_VC: Tensor, targets_N: Tensor, *, chunk_tokens: int, softmax: Softmax = EAGER
) -> Tensor:
    """Mean cross-entropy in nats (float32 scalar) over targets other than -1; nan where all are -1, as torch's.

    Its backward pass may run once: it scales the kept gradients in place. Without gradients none are made.
    """
    if torch.is_grad_enabled() and (hidden_NC.requires_grad or weight_VC.requires_grad):
        return _MeanLoss.apply(hidden_NC, weight_VC, targets_N, chunk_tokens, softmax)  # type: ignore[no-untyped-call, no-any-return]
    losses_N = token_losses(hidden_NC, weight_VC, targets_N, chunk_tokens=chunk_tokens, softmax=softmax)
    return losses_N.sum() / (targets_N != IGNORED).sum()


@_uncompiled
def token_losses(
    hidden_NC: Tensor, weight_VC: Tensor, targets_N: Tensor, *, chunk_tokens: int, softmax: Softmax = EAGER
) -> Tensor:
    """Cross-entropy losses_N in nats (float32), 0 where the target is -1; without gradients."""
    with torch.no_grad():
        head = _Head(hidden_NC, weight_VC, targets_N)
        losses_N = hidden_NC.new_empty(targets_N.shape, dtype=head.sum_dtype)
        for rows in _chunks(len(targets_N), chunk_tokens):
            chunk = _Chunk(head, rows)
            losses_N[rows] = softmax.losses(chunk.logits_nV, chunk.targets_n) * chunk.counts_n
            del chunk  # before the next chunk's logits are made
    return losses_N


class _MeanLoss(torch.autograd.Function):
    """The mean loss, with its gradients made in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden_NC: Tensor, weight_VC: Tensor, targets_N: Tensor, chunk_tokens: int, softmax: Softmax
    ) -> Tensor:
        head = _Head(hidden_NC, weight_VC, targets_N)
        total = hidden_NC.new_zeros((), dtype=head.sum_dtype)
        d_hidden_NC = torch.empty_like(hidden_NC, dtype=head.dtype) if hidden_NC.requires_grad else None
        d_weight_VC = torch.zeros_like(weight_VC, dtype=head.sum_dtype) if weight_VC.requires_grad else None
        for rows in _chunks(len(targets_N), chunk_tokens):
            chunk = _Chunk(head, rows)
            losses_n = softmax.losses_and_probabilities_(chunk.logits_nV, chunk.targets_n)
            chunk.probabilities_to_gradient_(losses_n)
            total += (losses_n * chunk.counts_n).sum()
            if d_hidden_NC is not None:
                torch.mm(chunk.logits_nV, head.weight_VC, out=d_hidden_NC[rows])
                d_hidden_NC[rows].mul_(chunk.counts_n[:, None])
            if d_weight_VC is not None:
                _add_product_(d_weight_VC, chunk.logits_nV.t(), chunk.hidden_nC)
            del chunk  # before the next chunk's logits are made
        count = (targets_N != IGNORED).sum()
        ctx.save_for_backward(d_hidden_NC, d_weight_VC, count)
        ctx.dtypes = hidden_NC.dtype, weight_VC.dtype
        return total / count

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        d_hidden_NC, d_weight_VC, count = ctx.saved_tensors
        hidden_dtype, weight_dtype = ctx.dtypes
        factor = grad_output / count
        if d_hidden_NC is not None:
            d_hidden_NC = d_hidden_NC.to(hidden_dtype).mul_(factor)
        if d_weight_VC is not None:
            d_weight_VC = d_weight_VC.mul_(factor).to(weight_dtype)
        return d_hidden_NC, d_weight_VC, None, None, None


class _Head:
    """The head in its compute type: the weight cast once for all chunks, the hidden states chunk by chunk."""

    def __init__(self, hidden_NC: Tensor, weight_VC: Tensor, targets_N: Tensor) -> None:
        device_type = hidden_NC.device.type
        autocast = torch.is_autocast_enabled(device_type)
        self.dtype = torch.get_autocast_dtype(device_type) if autocast else hidden_NC.dtype
        self.sum_dtype = torch.promote_types(self.dtype, torch.float32)
        self.weight_VC = weight_VC.to(self.dtype)
        self.hidden_NC = hidden_NC
        self.targets_N = targets_N


class _Chunk:
    """Some tokens with their logits; ignored ones have hidden states of zero, target 0 and count 0.

    Hidden states of zero take a token out of the weight's gradient without another pass over the logits.
    """

    def __init__(self, head: _Head, rows: slice) -> None:
        targets_n = head.targets_N[rows]
        self.counts_n = targets_n != IGNORED
        self.targets_n = targets_n.clamp(min=0)
        self.hidden_nC = head.hidden_NC[rows].to(head.dtype) * self.counts_n[:, None]
        self.logits_nV = torch.mm(self.hidden_nC, head.weight_VC.t())

    def probabilities_to_gradient_(self, losses_n: Tensor) -> None:
        """From softmax to the gradient of the summed losses, in place: the target's p becomes p - 1.

        p - 1 comes from the float32 loss, because near p = 1 the probability in half precision has lost it.
        """
        at_target_n1 = torch.expm1(-losses_n).to(self.logits_nV.dtype)[:, None]
        self.logits_nV.scatter_(1, self.targets_n[:, None], at_target_n1)


def _chunks(tokens: int, chunk_tokens: int) -> list[slice]:
    """Slices of at most `chunk_tokens`, about equal: a small last one would cost a whole pass over the weights."""
    pieces = -(-tokens // chunk_tokens)
    even = -(-tokens // max(1, pieces))
    size = max(1, min(chunk_tokens, -(-even // TILE_TOKENS) * TILE_TOKENS))
    return [slice(start, min(start + size, tokens)) for start in range(0, tokens, size)]


def _add_product_(sum_VC: Tensor, a_Vn: Tensor, b_nC: Tensor) -> None:
    """sum_VC += a_Vn @ b_nC, with no rounding of the product to half precision in between."""
    if sum_VC.dtype == a_Vn.dtype:
        sum_VC.addmm_(a_Vn, b_nC)
    elif sum_VC.is_cuda:
        torch.addmm(sum_VC, a_Vn, b_nC, out_dtype=sum_VC.dtype, out=sum_VC)
    else:
        sum_VC.addmm_(a_Vn.to(sum_VC.dtype), b_nC.to(sum_VC.dtype))
