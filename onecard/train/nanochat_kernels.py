"""The steps between nanochat's matrix products as Triton kernels: norms without weights, rotation, ReLU², embedding.

All of them forward and backward, and in place where that is possible. Each kernel reads and writes every tensor once
and computes in float32 in registers. Off CUDA the functions are plain torch, so that what is built on them can be
tested.

Letters: B sequences, T tokens of a sequence, N = B·T, C n_embd, E = 3C queries, keys and values, H heads of D, G = 2H,
V vocab_size.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from onecard.train.loss import has_kernel

RMS_EPSILON = 1e-6  # as transformers' nanochat has it
ROTATION_BASE = 10_000.0


def rms_normed(x_NC: Tensor) -> tuple[Tensor, Tensor]:
    """Rows divided by their root mean square, in x's type, and the factor of each row."""
    if has_kernel(x_NC.device.type):
        from onecard.train import nanochat_kernels_triton

        return nanochat_kernels_triton.rms_normed(x_NC, RMS_EPSILON)
    wide_NC = _wide(x_NC)
    scale_N1 = _rms_scale(wide_NC)
    return (wide_NC * scale_N1).to(x_NC.dtype), scale_N1[:, 0]


def rms_norm_backward(
    d_normed_NC: Tensor,
    normed_NC: Tensor,
    scale_N: Tensor,
    *,
    d_x_NC: Tensor | None,
    factor: Tensor | None = None,
) -> Tensor:
    """The gradient of x: what bypassed the norm (`d_x_NC`, overwritten) plus `factor` times what came through it.

    Where nothing bypassed it, it is written over `d_normed_NC`.
    """
    result_NC = d_normed_NC if d_x_NC is None else d_x_NC
    if has_kernel(d_normed_NC.device.type):
        from onecard.train import nanochat_kernels_triton

        nanochat_kernels_triton.rms_norm_backward(
            d_normed_NC, normed_NC, scale_N, result_NC, adds=d_x_NC is not None, factor=factor
        )
        return result_NC
    found_NC = _through_rms_norm(_wide(d_normed_NC), _wide(normed_NC), scale_N[:, None])
    if factor is not None:
        found_NC *= factor
    return result_NC.copy_(found_NC if d_x_NC is None else found_NC + d_x_NC)


def rotate(qkv_NE: Tensor, *, batch: int, heads: int, first: int = 0) -> Tensor:
    """Queries and keys become rotated by their position and normed; returns the factor of each head's norm, (N, G).

    Positions are counted from `first`: the kernel knows only 0, which training needs.
    """
    if first == 0 and has_kernel(qkv_NE.device.type):
        from onecard.train import nanochat_kernels_triton

        return nanochat_kernels_triton.rotate(qkv_NE, batch=batch, heads=heads, epsilon=RMS_EPSILON, base=ROTATION_BASE)
    qk_NGD = qkv_NE[:, : qkv_NE.shape[1] // 3 * 2].view(len(qkv_NE), 2 * heads, -1)
    wide_NGD = _wide(qk_NGD)
    scale_NG1 = _rms_scale(wide_NGD)
    qk_NGD.copy_(_rotated(wide_NGD, batch, first=first, back=False) * scale_NG1)
    return scale_NG1[..., 0].contiguous()


def rotate_backward(d_qk: Sequence[Tensor], qkv_NE: Tensor, scale_NG: Tensor, *, batch: int, heads: int) -> None:
    """The gradients of queries and of keys, (N, C) each, become those before `rotate`, in place."""
    if has_kernel(qkv_NE.device.type):
        from onecard.train import nanochat_kernels_triton

        nanochat_kernels_triton.rotate_backward(d_qk, qkv_NE, scale_NG, batch=batch, heads=heads, base=ROTATION_BASE)
        return
    for index, d_NC in enumerate(d_qk):
        C = d_NC.shape[1]
        y_NHD = _wide(qkv_NE[:, index * C : (index + 1) * C].reshape(len(qkv_NE), heads, -1))
        scale_NH1 = scale_NG[:, index * heads : (index + 1) * heads, None]
        d_NHD = d_NC.view(len(d_NC), heads, -1)
        d_NHD.copy_(_rotated(_through_rms_norm(_wide(d_NHD), y_NHD, scale_NH1), batch, back=True))


MOST_IN_FLOAT16 = 255.0  # whose square it still holds


def square_relu(x: Tensor) -> None:
    """x becomes the square of what is above zero; in float16 at most 65,025, so that none becomes infinite."""
    most = MOST_IN_FLOAT16 if x.dtype == torch.float16 else None
    if has_kernel(x.device.type):
        from onecard.train import nanochat_kernels_triton

        nanochat_kernels_triton.square_relu(x, most)
        return
    x.clamp_(min=0, max=most).square_()


def square_relu_backward(d_value: Tensor, value: Tensor) -> None:
    """`d_value` becomes the gradient of x, whose square is `value`: the slope is 2x."""
    if has_kernel(d_value.device.type):
        from onecard.train import nanochat_kernels_triton

        nanochat_kernels_triton.square_relu_backward(d_value, value)
        return
    d_value.mul_(value.sqrt().mul_(2))


def normed_rows(tokens_BT: Tensor, weight_VC: Tensor, dtype: torch.dtype) -> Tensor:
    """The tokens' rows of a weight divided by their root mean square, x_NC."""
    if has_kernel(tokens_BT.device.type):
        from onecard.train import nanochat_kernels_triton

        return nanochat_kernels_triton.normed_rows(tokens_BT, weight_VC, dtype, RMS_EPSILON)
    rows_NC = weight_VC[tokens_BT.flatten()]
    return (rows_NC * _rms_scale(rows_NC)).to(dtype)


def normed_rows_backward(d_NC: Tensor, tokens_BT: Tensor, weight_VC: Tensor, d_weight_VC: Tensor) -> None:
    """Add to the gradient of the weight."""
    if (
        has_kernel(tokens_BT.device.type) and not torch.are_deterministic_algorithms_enabled()
    ):  # the kernel adds in any order
        from onecard.train import nanochat_kernels_triton

        nanochat_kernels_triton.normed_rows_backward(d_NC, tokens_BT, weight_VC, d_weight_VC, RMS_EPSILON)
        return
    tokens_N = tokens_BT.flatten()
    rows_NC = weight_VC.detach()[tokens_N]
    scale_N1 = _rms_scale(rows_NC)
    d_rows_NC = _through_rms_norm(d_NC.to(rows_NC.dtype), rows_NC * scale_N1, scale_N1)
    d_weight_VC += torch.ops.aten.embedding_dense_backward(d_rows_NC, tokens_N, len(d_weight_VC), -1, False)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _rms_scale(x: Tensor) -> Tensor:
    return torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + RMS_EPSILON)


def _through_rms_norm(d: Tensor, normed: Tensor, scale: Tensor) -> Tensor:
    """The gradient before a norm: with y = r · x it is r · (dy - y · mean(dy · y))."""
    return scale * (d - normed * (d * normed).mean(dim=-1, keepdim=True))


def _rotated(x_NGD: Tensor, batch: int, *, first: int = 0, back: bool) -> Tensor:
    """Heads turned by their position, pair by pair: the i-th of the first half with the i-th of the second."""
    half = x_NGD.shape[-1] // 2
    position_T = torch.arange(first, first + len(x_NGD) // batch, dtype=x_NGD.dtype, device=x_NGD.device)
    frequency_d = ROTATION_BASE ** -(torch.arange(half, dtype=x_NGD.dtype, device=x_NGD.device) / half)
    angle_Td = position_T[:, None] * frequency_d * (-1 if back else 1)
    cos, sin = (part_Td.repeat(batch, 1)[:, None] for part_Td in (angle_Td.cos(), angle_Td.sin()))
    one, other = x_NGD[..., :half], x_NGD[..., half:]
    return torch.cat((one * cos + other * sin, other * cos - one * sin), dim=-1)
