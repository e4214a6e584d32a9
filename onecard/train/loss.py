"""Cross-entropy of a linear head, a chunk of tokens at a time: the logits of a micro-batch never exist all at once.

The forward pass also computes the gradient, while a chunk's logits are at hand; the backward pass only scales it. So a
step computes each logit once, as the plain loss does, and keeps two tensors instead of the logits: the gradient of the
hidden states (compute type) and that of the weight (float32). Why we wrote this ourselves: docs/adr/0005.

Precision. Products run in the type of the hidden states, softmax and losses in float32, and the weight's gradient is
summed in float32 over the chunks. The kept gradients are those of the *sum* of the losses. Undivided, they are about as
large as the weights, which float16 holds well. If they were divided by the token count first, as in the plain loss, the
small ones would vanish below 6e-8. The backward pass divides them, together with GradScaler's factor: that is part of
`grad_output`, and brings gradients into float16's range.

Letters: N tokens, n tokens of a chunk, C n_embd, V vocab_size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from onecard.models.chunks import chunk_slices, default_chunk_tokens, whole_tiles
from onecard.units import MIB

__all__ = ["default_chunk_tokens", "mean_loss", "token_losses", "write_losses"]

IGNORED = -1  # targets with this value do not count, as in nanoGPT
SLICE_BYTES = 64 * MIB  # of float32 logits, made for one slice of a chunk at a time; the Triton kernel makes none


P = ParamSpec("P")
R = TypeVar("R")


def _uncompiled(function: Callable[P, R]) -> Callable[P, R]:
    """A function that a surrounding torch.compile leaves alone (torch's own decorator has no types)."""
    left_alone: Callable[P, R] = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return left_alone


@functools.cache
def has_kernel(device_type: str) -> bool:
    """Whether our Triton kernel computes losses: on CUDA, if Triton is installed (on Linux it comes with torch)."""
    return device_type == "cuda" and find_spec("triton") is not None


def write_losses(logits_nV: Tensor, targets_n: Tensor, losses_n: Tensor, *, gradient: bool) -> None:
    """Fill `losses_n` in nats, 0 for ignored targets; with `gradient` the logits become the gradient of their sum."""
    if has_kernel(logits_nV.device.type):
        from onecard.train import softmax_kernel

        softmax_kernel.write_losses(logits_nV, targets_n, losses_n, ignored=IGNORED, gradient=gradient)
        return
    rows = whole_tiles(SLICE_BYTES // (4 * logits_nV.shape[1]))
    parts = (torch.split(part, rows) for part in (logits_nV, targets_n, losses_n))
    for part in zip(*parts, strict=True):
        _write_losses_of_slice(*part, gradient=gradient)


def _write_losses_of_slice(logits_nV: Tensor, targets_n: Tensor, losses_n: Tensor, *, gradient: bool) -> None:
    """The same in plain torch, which makes float32 copies: so only a few rows at a time."""
    counts_n = targets_n != IGNORED
    targets_n1 = targets_n.clamp(min=0)[:, None]
    log_probabilities_nV = functional.log_softmax(logits_nV, dim=1, dtype=losses_n.dtype)
    torch.mul(-log_probabilities_nV.gather(1, targets_n1)[:, 0], counts_n, out=losses_n)
    if gradient:
        probabilities_nV = log_probabilities_nV.exp_()
        # p - 1 of the target, from the loss: near p = 1, subtracting rounded numbers would lose it
        probabilities_nV.scatter_(1, targets_n1, torch.expm1(-losses_n)[:, None])
        logits_nV.copy_(probabilities_nV.mul_(counts_n[:, None]))


@_uncompiled
def mean_loss(hidden_NC: Tensor, weight_VC: Tensor, targets_N: Tensor, *, chunk_tokens: int) -> Tensor:
    """Mean cross-entropy in nats (float32 scalar) over targets other than -1; NaN if all are -1, as in torch.

    Its backward pass may run only once: it scales the kept gradients in place. Where gradients are off, none are made.
    """
    if torch.is_grad_enabled() and (hidden_NC.requires_grad or weight_VC.requires_grad):
        return _MeanLoss.apply(hidden_NC, weight_VC, targets_N, chunk_tokens)  # type: ignore[no-untyped-call, no-any-return]
    losses_N = token_losses(hidden_NC, weight_VC, targets_N, chunk_tokens=chunk_tokens)
    return losses_N.sum() / (targets_N != IGNORED).sum()


@_uncompiled
def token_losses(hidden_NC: Tensor, weight_VC: Tensor, targets_N: Tensor, *, chunk_tokens: int) -> Tensor:
    """Cross-entropy losses_N in nats (float32), 0 where the target is -1; without gradients."""
    with torch.no_grad():
        head = _Head(hidden_NC, weight_VC)
        losses_N = head.new_losses()
        for rows in chunk_slices(len(targets_N), chunk_tokens):
            write_losses(head.logits(hidden_NC[rows]), targets_N[rows], losses_N[rows], gradient=False)
    return losses_N


class _MeanLoss(torch.autograd.Function):
    """The mean loss, with its gradients computed in the forward pass."""

    @staticmethod
    def forward(ctx: Any, hidden_NC: Tensor, weight_VC: Tensor, targets_N: Tensor, chunk_tokens: int) -> Tensor:
        head = _Head(hidden_NC, weight_VC)
        losses_N = head.new_losses()
        d_hidden_NC = torch.empty_like(hidden_NC) if hidden_NC.requires_grad else None
        d_weight_VC = torch.zeros_like(weight_VC, dtype=head.sum_dtype) if weight_VC.requires_grad else None
        for rows in chunk_slices(len(targets_N), chunk_tokens):
            logits_nV = head.logits(hidden_NC[rows])
            write_losses(logits_nV, targets_N[rows], losses_N[rows], gradient=True)
            if d_hidden_NC is not None:
                torch.mm(logits_nV, head.weight_VC, out=d_hidden_NC[rows])
            if d_weight_VC is not None:
                _add_product_(d_weight_VC, logits_nV.t(), hidden_NC[rows])
            del logits_nV  # free them before the next chunk's are made
        count = (targets_N != IGNORED).sum()
        ctx.save_for_backward(d_hidden_NC, d_weight_VC, count)
        ctx.weight_dtype = weight_VC.dtype
        return losses_N.sum() / count

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        d_hidden_NC, d_weight_VC, count = ctx.saved_tensors
        factor = grad_output / count
        if d_hidden_NC is not None:
            d_hidden_NC = d_hidden_NC.mul_(factor)
        if d_weight_VC is not None:
            d_weight_VC = d_weight_VC.mul_(factor).to(ctx.weight_dtype)
        return d_hidden_NC, d_weight_VC, None, None


class _Head:
    """The head's weight in the type of the hidden states, cast once for all chunks."""

    def __init__(self, hidden_NC: Tensor, weight_VC: Tensor) -> None:
        self.sum_dtype = torch.promote_types(hidden_NC.dtype, torch.float32)
        self.weight_VC = weight_VC.to(hidden_NC.dtype)
        self._tokens = len(hidden_NC)

    def new_losses(self) -> Tensor:
        return self.weight_VC.new_empty(self._tokens, dtype=self.sum_dtype)

    def logits(self, hidden_nC: Tensor) -> Tensor:
        return torch.mm(hidden_nC, self.weight_VC.t())


def _add_product_(sum_VC: Tensor, a_Vn: Tensor, b_nC: Tensor) -> None:
    """sum_VC += a_Vn @ b_nC, without rounding the product to half precision in between."""
    if sum_VC.dtype == a_Vn.dtype:
        sum_VC.addmm_(a_Vn, b_nC)
    elif sum_VC.is_cuda:
        torch.addmm(sum_VC, a_Vn, b_nC, out_dtype=sum_VC.dtype, out=sum_VC)
    else:
        sum_VC.addmm_(a_Vn.to(sum_VC.dtype), b_nC.to(sum_VC.dtype))
