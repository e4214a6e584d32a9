"""What lies between the products against autograd in float64: in plain torch, and as Triton kernels.

The kernels run where these tests do in Triton's interpreter: see test_kernels_interpreted.py. They compute in float32
and round once.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from torch.nn import functional  # noqa: E402

from onecard.train import block_kernels  # noqa: E402
from tests.rounding import KERNELS, ROUNDING  # noqa: E402
from tests.share import every_tenth  # noqa: E402

DTYPES = ROUNDING if KERNELS else [torch.float32]  # plain torch rounds half precision at each step
SHAPES = [(1, 8), (37, 100), (32, 64), (5, 1030)]  # rows, channels; the last are more than one warp's
BITS = [False, True]


@pytest.fixture(autouse=True)
def few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of columns take several rounds, as they do on a card with many multiprocessors."""
    if KERNELS:
        from onecard.train import block_kernels_triton

        monkeypatch.setattr(block_kernels_triton, "SUM_ROWS", 4)


def close(found: Any, true: Any, *, rtol: float = 1e-5, atol: float = 1e-5) -> None:
    """Equal to the true float64 numbers, up to float32's sums, whose order is anyone's, and one rounding."""
    rtol += 1.01 * ROUNDING[found.dtype]
    torch.testing.assert_close(found.double(), true.detach(), rtol=rtol, atol=atol)


def randn(*shape: int, mean: float = 0.0, seed: int = 0, dtype: Any = torch.float32) -> Any:
    return (mean + torch.randn(*shape, generator=torch.Generator().manual_seed(seed))).to(dtype)


def wide(tensor: Any) -> Any:
    return tensor.double().requires_grad_()


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("channels", [1, 8, 100])
def test_embeddings_are_sums_and_their_gradients_are_added(channels: int, dtype: Any) -> None:
    batch, length, vocab_size, longest = 3, 5, 7, 9  # 15 tokens of 7: some come twice
    of_tokens_VC, of_positions_TC = randn(vocab_size, channels), randn(longest, channels, seed=1)
    tokens_BT = torch.randint(vocab_size, (batch, length), generator=torch.Generator().manual_seed(2))
    x_NC = block_kernels.embedded(tokens_BT, of_tokens_VC, of_positions_TC, dtype)
    tables = [wide(of_tokens_VC), wide(of_positions_TC)]
    true_BTC = tables[0][tokens_BT] + tables[1][:length]
    assert x_NC.dtype == dtype
    close(x_NC, true_BTC.flatten(0, 1), rtol=1e-6, atol=1e-6)

    d_NC = randn(batch * length, channels, seed=3, dtype=dtype)
    before = [randn(vocab_size, channels, seed=4), randn(longest, channels, seed=5)]
    found = [each.clone() for each in before]
    block_kernels.embedded_backward(d_NC, tokens_BT, *found)
    gradients = torch.autograd.grad(true_BTC, tables, d_NC.double().view_as(true_BTC))
    for got, had, gradient in zip(found, before, gradients, strict=True):
        close(got, had + gradient)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "channels"), SHAPES)
def test_the_norm_is_torchs(rows: int, channels: int, dtype: Any) -> None:
    x_NC, weight_C = randn(rows, channels, mean=3.0, dtype=dtype), randn(channels, mean=1.0, seed=1)
    normed_NC = block_kernels.norm(x_NC, weight_C)
    assert normed_NC.dtype == dtype
    close(normed_NC, functional.layer_norm(x_NC.double(), (channels,), weight_C.double()))


# A case of the interpreter takes a fifth of a second.
NORM_CASES = list(product(SHAPES, DTYPES, BITS, BITS, BITS))


@pytest.mark.parametrize(("shape", "dtype", "residual", "scales", "again"), every_tenth(NORM_CASES))
def test_the_norms_backward_pass_is_autograds(
    shape: tuple[int, int], dtype: Any, residual: bool, scales: bool, again: bool
) -> None:
    rows, channels = shape
    x_NC, weight_C = randn(rows, channels, mean=3.0, dtype=dtype), randn(channels, mean=1.0, seed=1)
    d_normed_NC, past_NC = (randn(rows, channels, seed=seed, dtype=dtype) for seed in (2, 3))
    d_weight_C = randn(channels, seed=4)
    factor = torch.tensor(0.37) if scales else None
    d_x_NC = past_NC.clone() if residual else None

    x, weight = wide(x_NC), wide(weight_C)
    normed = functional.layer_norm(x, (channels,), weight)
    d_x, d_weight = torch.autograd.grad(normed, (x, weight), d_normed_NC.double() * (0.37 if scales else 1.0))
    true_NC, true_C = d_x + (past_NC if residual else 0), d_weight_C + d_weight

    got_NC, again_NC = block_kernels.norm_backward(
        d_normed_NC, x_NC, weight_C, d_weight_C, d_x_NC=d_x_NC, factor=factor, again=again
    )
    close(got_NC, true_NC)
    close(d_weight_C, true_C)
    if residual:
        assert got_NC is d_x_NC, "in the memory of what came past the norm"
    if again:
        close(again_NC, normed)
    else:
        assert again_NC is None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gelu_and_its_slope_are_the_exact_ones(dtype: Any) -> None:
    # The polynomial is right to 3e-6 of the distribution function, and a slope is a sum that may cancel.
    x = torch.cat([torch.linspace(-5.6, 5.6, 4997), torch.tensor([0.0, -30.0, 30.0])]).view(1000, 5).to(dtype)
    d_value = randn(*x.shape, dtype=dtype)
    true_x = wide(x)
    true = functional.gelu(true_x)
    (d_x,) = torch.autograd.grad(true, true_x, d_value.double())
    near = partial(close, rtol=4e-6, atol=4e-6)
    near(block_kernels.gelu(x), true)
    for again in BITS:
        found = d_value.clone()
        value = block_kernels.gelu_backward(found, x, again=again)
        near(found, d_x, atol=1e-5)
        if again:
            near(value, true)
        else:
            assert value is None
