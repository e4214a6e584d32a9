"""Cross-entropy of logits, written into the losses, and over the logits their gradient: by a kernel, or plain torch.

Letters: n tokens of a chunk, V vocab_size.
"""

from __future__ import annotations

import functools
import os
from importlib.util import find_spec

import torch
from torch import Tensor
from torch.nn import functional

from onecard.models.chunks import whole_tiles
from onecard.train.precision import runs_triton
from onecard.units import MIB

IGNORED = -1  # targets with this value do not count, as in nanoGPT
SLICE_BYTES = 64 * MIB  # of float32 logits, made for one slice of a chunk at a time; the Triton kernel makes none


@functools.cache
def has_kernel(device_type: str) -> bool:
    """Whether our Triton kernels compute: on CUDA, if Triton is there (on Linux with torch) and knows the card.

    In Triton's interpreter (`TRITON_INTERPRET=1`, for tests) they compute on the CPU.
    """
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return (interpreted or (device_type == "cuda" and runs_triton())) and find_spec("triton") is not None


def write_losses(
    logits_nV: Tensor, targets_n: Tensor, losses_n: Tensor, *, gradient: bool, soft_cap: float | None = None
) -> None:
    """Fill `losses_n` in nats, 0 for ignored targets; with `gradient` the logits become the gradient of their sum.

    With `soft_cap` the losses are those of soft_cap · tanh(x / soft_cap) instead of the logits x.
    """
    if has_kernel(logits_nV.device.type):
        from onecard.train import softmax_kernel

        softmax_kernel.write_losses(
            logits_nV, targets_n, losses_n, ignored=IGNORED, gradient=gradient, soft_cap=soft_cap
        )
        return
    rows = whole_tiles(SLICE_BYTES // (4 * logits_nV.shape[1]))
    parts = (torch.split(part, rows) for part in (logits_nV, targets_n, losses_n))
    for part in zip(*parts, strict=True):
        _write_losses_of_slice(*part, gradient=gradient, soft_cap=soft_cap)


def _write_losses_of_slice(
    logits_nV: Tensor, targets_n: Tensor, losses_n: Tensor, *, gradient: bool, soft_cap: float | None
) -> None:
    """The same in plain torch, which makes float32 copies: so only a few rows at a time."""
    counts_n = targets_n != IGNORED
    targets_n1 = targets_n.clamp(min=0)[:, None]
    capped_nV = logits_nV
    if soft_cap:
        share_nV = torch.tanh(logits_nV.to(losses_n.dtype) / soft_cap)
        capped_nV = soft_cap * share_nV
    log_probabilities_nV = functional.log_softmax(capped_nV, dim=1, dtype=losses_n.dtype)
    torch.mul(-log_probabilities_nV.gather(1, targets_n1)[:, 0], counts_n, out=losses_n)
    if gradient:
        probabilities_nV = log_probabilities_nV.exp_()
        # p - 1 of the target, from the loss: near p = 1, subtracting rounded numbers would lose it
        probabilities_nV.scatter_(1, targets_n1, torch.expm1(-losses_n)[:, None])
        gradients_nV = probabilities_nV.mul_(counts_n[:, None])
        logits_nV.copy_(gradients_nV.mul_(1 - share_nV * share_nV) if soft_cap else gradients_nV)
