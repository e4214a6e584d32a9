"""nanochat's operations between the products against autograd in float64: in plain torch, and as Triton kernels.

The kernels run where these tests do in Triton's interpreter: see test_kernels_interpreted.py. They compute in float32
and round once.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from torch.nn import functional  # noqa: E402

from onecard.train import loss, nanochat_kernels  # noqa: E402
from onecard.train.nanochat_kernels import RMS_EPSILON, ROTATION_BASE  # noqa: E402
from tests.rounding import KERNELS, ROUNDING  # noqa: E402

DTYPES = ROUNDING if KERNELS else [torch.float32]  # plain torch rounds half precision at each step
SHAPES = [(1, 8), (37, 100), (32, 64), (5, 1030)]  # rows, channels
HEADS = [(1, 1, 2, 1), (2, 5, 3, 7), (3, 4, 2, 8)]  # sequences, tokens, heads, pairs of a head
BITS = [False, True]


def close(found: Any, true: Any, *, rtol: float = 2e-5, atol: float = 2e-5) -> None:
    """Equal to the true float64 numbers, up to float32's sums and one rounding."""
    rtol += 1.01 * ROUNDING[found.dtype]
    torch.testing.assert_close(found.double(), true.detach(), rtol=rtol, atol=atol)


def randn(*shape: int, seed: int = 0, dtype: Any = torch.float32) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def normed(x: Any) -> Any:
    return functional.rms_norm(x, x.shape[-1:], eps=RMS_EPSILON)


def rotated(x_BTHD: Any) -> Any:
    """Each pair as a complex number, turned by its position: an independent way to say it."""
    pairs = x_BTHD.shape[-1] // 2
    first, second = x_BTHD.split(pairs, dim=-1)
    angle_Td = torch.outer(
        torch.arange(x_BTHD.shape[1]).double(), ROTATION_BASE ** -(torch.arange(pairs).double() / pairs)
    )
    turned = torch.complex(first, second) * torch.exp(-1j * angle_Td)[:, None]
    return torch.cat((turned.real, turned.imag), dim=-1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "channels"), SHAPES)
def test_the_norm_is_torchs(rows: int, channels: int, dtype: Any) -> None:
    x_NC = 3 * randn(rows, channels, dtype=dtype)
    normed_NC, scale_N = nanochat_kernels.rms_normed(x_NC)
    assert (normed_NC.dtype, scale_N.dtype) == (dtype, torch.float32)
    close(normed_NC, normed(x_NC.double()))
    close(scale_N, x_NC.double().square().mean(1).add(RMS_EPSILON).rsqrt())


@pytest.mark.parametrize("scales", BITS)
@pytest.mark.parametrize("adds", BITS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "channels"), SHAPES)
def test_the_norms_backward_pass_is_autograds(rows: int, channels: int, dtype: Any, adds: bool, scales: bool) -> None:
    # From numbers whose norm is exact in half precision: what is kept is the rounded result.
    x_NC = torch.randint(0, 2, (rows, channels), generator=torch.Generator().manual_seed(1)).mul_(4).sub_(2).to(dtype)
    d_normed_NC, past_NC = randn(rows, channels, seed=2, dtype=dtype), randn(rows, channels, seed=3, dtype=dtype)
    normed_NC, scale_N = nanochat_kernels.rms_normed(x_NC)
    x = x_NC.double().requires_grad_()
    (d_x,) = torch.autograd.grad(normed(x), x, d_normed_NC.double() * (0.37 if scales else 1.0))
    d_x_NC = past_NC.clone() if adds else None
    given_NC = d_normed_NC.clone()
    factor = torch.tensor(0.37) if scales else None
    got_NC = nanochat_kernels.rms_norm_backward(given_NC, normed_NC, scale_N, d_x_NC=d_x_NC, factor=factor)
    assert got_NC is (d_x_NC if adds else given_NC), "in the memory of what was given"
    close(got_NC, d_x + (past_NC if adds else 0), atol=1e-2 if dtype != torch.float32 else 2e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("batch", "length", "heads", "pairs"), HEADS)
def test_queries_and_keys_are_turned_and_normed_in_place(
    batch: int, length: int, heads: int, pairs: int, dtype: Any
) -> None:
    C = 2 * heads * pairs
    qkv_NE = 3 * randn(batch * length, 3 * C, dtype=dtype)
    true = qkv_NE.double().view(batch, length, 3, heads, 2 * pairs)
    found_NE = qkv_NE.clone()
    scale_NG = nanochat_kernels.rotate(found_NE, batch=batch, heads=heads)
    found = found_NE.view_as(true)
    for part in (0, 1):
        close(found[:, :, part], normed(rotated(true[:, :, part])), atol=1e-4)
    assert torch.equal(found_NE[:, 2 * C :], qkv_NE[:, 2 * C :]), "values stay"
    close(scale_NG, true[:, :, :2].square().mean(-1).add(RMS_EPSILON).rsqrt().view(batch * length, -1))


@pytest.mark.parametrize("strided", BITS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("batch", "length", "heads", "pairs"), HEADS)
def test_the_gradients_of_queries_and_keys_are_autograds(
    batch: int, length: int, heads: int, pairs: int, dtype: Any, strided: bool
) -> None:
    N, C = batch * length, 2 * heads * pairs
    qkv_NE = randn(N, 3 * C, dtype=dtype)
    d_NE = randn(N, 3 * C, seed=1, dtype=dtype)
    d_qk = [d_NE[:, :C], d_NE[:, C : 2 * C]] if strided else [d_NE[:, :C].clone(), d_NE[:, C : 2 * C].clone()]
    true = qkv_NE.double().view(batch, length, 3, heads, 2 * pairs).requires_grad_()
    turned = torch.stack([normed(rotated(true[:, :, part])) for part in (0, 1)])
    given = torch.stack([part.double().view(batch, length, heads, -1) for part in d_qk])
    (d_true,) = torch.autograd.grad(turned, true, given)
    kept_NE = qkv_NE.clone()
    scale_NG = nanochat_kernels.rotate(kept_NE, batch=batch, heads=heads)
    nanochat_kernels.rotate_backward(d_qk, kept_NE, scale_NG, batch=batch, heads=heads)
    of_norms = float(scale_NG.max())  # a small norm makes the gradient, and its error, large
    for part, found_NC in enumerate(d_qk):
        atol = of_norms * (1e-4 if dtype == torch.float32 else 0.05)
        close(found_NC, d_true[:, :, part].reshape(N, C), atol=atol)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [1, 2047, 5000])
def test_relu_squared_and_its_slope_are_the_exact_ones(count: int, dtype: Any) -> None:
    x, d_value = randn(count, dtype=dtype), randn(count, seed=1, dtype=dtype)
    true_x = x.double().requires_grad_()
    true = functional.relu(true_x).square()
    (d_x,) = torch.autograd.grad(true, true_x, d_value.double())
    nanochat_kernels.square_relu(x)
    close(x, true)
    nanochat_kernels.square_relu_backward(d_value, x)
    # The slope comes from the rounded square; below 6e-5 the squares of float16 lose their digits.
    close(d_value, d_x, rtol=1e-5 + ROUNDING[dtype], atol=2e-3 if dtype == torch.float16 else 1e-5)


def test_the_square_of_a_large_number_is_finite_in_float16() -> None:
    x = torch.tensor([-300.0, 3.0, 254.0, 256.0, 60000.0], dtype=torch.float16)
    nanochat_kernels.square_relu(x)
    assert x.tolist() == [0.0, 9.0, 64512.0, 65024.0, 65024.0]
    wide = torch.tensor([60000.0])
    nanochat_kernels.square_relu(wide)
    assert wide.item() == 3.6e9


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("channels", [1, 8, 100])
def test_normed_rows_of_an_embedding_and_their_gradient(channels: int, dtype: Any) -> None:
    weight_VC = randn(7, channels)
    tokens_BT = torch.randint(7, (3, 5), generator=torch.Generator().manual_seed(2))  # some come twice
    true_VC = weight_VC.double().requires_grad_()
    true_NC = normed(true_VC[tokens_BT.flatten()])
    x_NC = nanochat_kernels.normed_rows(tokens_BT, weight_VC, dtype)
    assert x_NC.dtype == dtype
    close(x_NC, true_NC)
    d_NC, before_VC = randn(15, channels, seed=3, dtype=dtype), randn(7, channels, seed=4)
    found_VC = before_VC.clone()
    nanochat_kernels.normed_rows_backward(d_NC, tokens_BT, weight_VC, found_VC)
    (gradient_VC,) = torch.autograd.grad(true_NC, true_VC, d_NC.double())
    close(found_VC, before_VC + gradient_VC, atol=1e-4)


@pytest.mark.parametrize("gradient", BITS)
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("scale", [1e-3, 5.0, 40.0, 3000.0])
def test_losses_of_soft_capped_logits(scale: float, dtype: Any, gradient: bool) -> None:
    cap, rows, words = 15.0, 6, 131
    logits_nV = (scale * randn(rows, words)).to(dtype)
    targets_n = torch.tensor([3, 0, loss.IGNORED, words - 1, int(logits_nV[4].argmax()), int(logits_nV[5].argmin())])
    exact_nV = logits_nV.double().requires_grad_()
    capped_nV = cap * torch.tanh(exact_nV / cap)
    exact_n = functional.cross_entropy(capped_nV, targets_n, ignore_index=loss.IGNORED, reduction="none")
    found_nV, losses_n = logits_nV.clone(), torch.full((rows,), torch.nan)
    loss.write_losses(found_nV, targets_n, losses_n, gradient=gradient, soft_cap=cap)
    torch.testing.assert_close(losses_n.double(), exact_n.detach(), rtol=2e-6, atol=2e-5)
    if gradient:
        (d_nV,) = torch.autograd.grad(exact_n.sum(), exact_nV)
        close(found_nV, d_nV, atol=3e-6)
    else:
        assert torch.equal(found_nV, logits_nV)
