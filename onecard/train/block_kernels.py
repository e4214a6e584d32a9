"""The steps between a GPT's matrix products as Triton kernels: embeddings, LayerNorm without biases, GELU.

All of them forward and backward. Each kernel reads and writes every tensor once and computes in float32 in registers.
Where there are no kernels the functions are plain torch, so that what is built on them can be tested.

Letters: B sequences, T tokens of a sequence, N = B·T, C n_embd, V vocab_size.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from onecard.train.gelu import phi_and_bell
from onecard.train.loss import has_kernel

EPSILON = 1e-5  # as in nn.LayerNorm


def embedded(tokens_BT: Tensor, of_tokens_VC: Tensor, of_positions_TC: Tensor, dtype: torch.dtype) -> Tensor:
    """The sum of both embeddings x_NC, added in their own type."""
    if has_kernel(tokens_BT.device.type):
        from onecard.train import block_kernels_triton

        return block_kernels_triton.embedded(tokens_BT, of_tokens_VC, of_positions_TC, dtype)
    x_BTC = functional.embedding(tokens_BT, of_tokens_VC) + of_positions_TC[: tokens_BT.shape[1]]
    return x_BTC.flatten(0, 1).to(dtype)


def embedded_backward(d_NC: Tensor, tokens_BT: Tensor, d_of_tokens_VC: Tensor, d_of_positions_TC: Tensor) -> None:
    """Add to the gradients of both embeddings."""
    if (
        has_kernel(tokens_BT.device.type) and not torch.are_deterministic_algorithms_enabled()
    ):  # the kernel adds in any order
        from onecard.train import block_kernels_triton

        block_kernels_triton.embedded_backward(d_NC, tokens_BT, d_of_tokens_VC, d_of_positions_TC)
        return
    (batch, length), tokens_N = tokens_BT.shape, tokens_BT.flatten()
    d_NC = d_NC.to(d_of_tokens_VC.dtype)
    d_of_positions_TC[:length] += d_NC.view(batch, length, -1).sum(dim=0)
    d_of_tokens_VC += torch.ops.aten.embedding_dense_backward(d_NC, tokens_N, len(d_of_tokens_VC), -1, False)


def norm(x_NC: Tensor, weight_C: Tensor) -> Tensor:
    """LayerNorm of the rows, in x's type."""
    if has_kernel(x_NC.device.type):
        from onecard.train import block_kernels_triton

        return block_kernels_triton.norm(x_NC, weight_C, EPSILON)
    return functional.layer_norm(x_NC, weight_C.shape, weight_C, None, EPSILON)


def norm_backward(
    d_normed_NC: Tensor,
    x_NC: Tensor,
    weight_C: Tensor,
    d_weight_C: Tensor,
    *,
    d_x_NC: Tensor | None,
    factor: Tensor | None = None,
    again: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """The gradient of x: what bypassed the norm (`d_x_NC`, overwritten) plus `factor` times what came through it.

    The weight's gradient is added to `d_weight_C`. With `again` the norm is also computed again and returned.
    """
    if has_kernel(x_NC.device.type):
        from onecard.train import block_kernels_triton

        return block_kernels_triton.norm_backward(
            d_normed_NC, x_NC, weight_C, d_weight_C, d_x_NC=d_x_NC, factor=factor, again=again, epsilon=EPSILON
        )
    with torch.enable_grad():
        x, weight = x_NC.detach().requires_grad_(), weight_C.detach().requires_grad_()
        normed = norm(x, weight)
    d_normed = d_normed_NC if factor is None else d_normed_NC * factor
    d_x, d_weight = torch.autograd.grad(normed, (x, weight), d_normed)
    d_weight_C += d_weight
    return (d_x if d_x_NC is None else d_x_NC.add_(d_x)), (normed.detach() if again else None)


def gelu(x: Tensor) -> Tensor:
    """The exact GELU, to the precision of half types: train/gelu.py."""
    if has_kernel(x.device.type):
        from onecard.train import block_kernels_triton

        return block_kernels_triton.gelu(x)
    return x * phi_and_bell(x)[0]


def gelu_backward(d_value: Tensor, x: Tensor, *, again: bool = False) -> Tensor | None:
    """`d_value` becomes the gradient of x; with `again` GELU is also computed again and returned."""
    if has_kernel(x.device.type):
        from onecard.train import block_kernels_triton

        return block_kernels_triton.gelu_backward(d_value, x, again=again)
    phi, bell = phi_and_bell(x)
    d_value *= phi + x * bell * (1 / math.sqrt(2 * math.pi))
    return x * phi if again else None
