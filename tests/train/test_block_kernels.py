"""What lies between the products, in plain torch and as Triton kernels, against autograd in float64.

The kernels run in Triton's interpreter, in a process of its own: this file, started as a program, checks them.
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from torch.nn import functional  # noqa: E402

from onecard.train import block_kernels  # noqa: E402

SHAPES = [(1, 8), (37, 100), (5, 1030)]  # rows, channels; the last are more than one warp's
BITS = [False, True]

close = partial(torch.testing.assert_close, rtol=1e-4, atol=1e-5)  # float32, whose order of additions is anyone's


def randn(*shape: int, mean: float = 0.0, seed: int = 0) -> Any:
    return mean + torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def wide(tensor: Any) -> Any:
    return tensor.double().requires_grad_()


# Checks of an implementation: block_kernels, or a namespace with the same functions


def check_embedded(kernels: Any, channels: int) -> None:
    batch, length, vocab_size, longest = 3, 5, 7, 9  # 15 tokens of 7: some come twice
    of_tokens_VC, of_positions_TC = randn(vocab_size, channels), randn(longest, channels, seed=1)
    tokens_BT = torch.randint(vocab_size, (batch, length), generator=torch.Generator().manual_seed(2))
    x_NC = kernels.embedded(tokens_BT, of_tokens_VC, of_positions_TC, torch.float16)
    tables = [wide(of_tokens_VC), wide(of_positions_TC)]
    true_BTC = tables[0][tokens_BT] + tables[1][:length]
    assert x_NC.dtype == torch.float16
    half_a_unit = 2**-11
    torch.testing.assert_close(x_NC.double(), true_BTC.detach().flatten(0, 1), rtol=1.01 * half_a_unit, atol=1e-6)

    d_NC = randn(batch * length, channels, seed=3)
    before = [randn(vocab_size, channels, seed=4), randn(longest, channels, seed=5)]
    found = [each.clone() for each in before]
    kernels.embedded_backward(d_NC, tokens_BT, *found)
    gradients = torch.autograd.grad(true_BTC, tables, d_NC.double().view_as(true_BTC))
    for got, had, gradient in zip(found, before, gradients, strict=True):
        close(got, (had + gradient).float())


def check_norm(kernels: Any, rows: int, channels: int) -> None:
    x_NC, weight_C = randn(rows, channels, mean=3.0), randn(channels, mean=1.0, seed=1)
    true_NC = functional.layer_norm(x_NC.double(), (channels,), weight_C.double())
    close(kernels.norm(x_NC, weight_C), true_NC.float())


def check_norm_backward(kernels: Any, rows: int, channels: int, *, residual: bool, scales: bool, again: bool) -> None:
    x_NC, weight_C = randn(rows, channels, mean=3.0), randn(channels, mean=1.0, seed=1)
    d_normed_NC, d_weight_C, past_NC = (randn(*shape, seed=2) for shape in ((rows, channels), (channels,), x_NC.shape))
    factor = torch.tensor(0.37) if scales else None
    d_x_NC = past_NC.clone() if residual else None

    x, weight = wide(x_NC), wide(weight_C)
    normed = functional.layer_norm(x, (channels,), weight)
    d_x, d_weight = torch.autograd.grad(normed, (x, weight), d_normed_NC.double() * (0.37 if scales else 1.0))
    expected = (d_x + (past_NC if residual else 0)).float(), (d_weight_C + d_weight).float()

    got_NC, again_NC = kernels.norm_backward(
        d_normed_NC, x_NC, weight_C, d_weight_C, d_x_NC=d_x_NC, factor=factor, again=again
    )
    close((got_NC, d_weight_C), expected)
    if residual:
        assert got_NC is d_x_NC, "in the memory of what came past the norm"
    if again:
        close(again_NC, normed.detach().float())
    else:
        assert again_NC is None


def check_gelu(kernels: Any) -> None:
    # The polynomial is right to 3e-6 of the distribution function, and a slope is a sum that may cancel.
    x = torch.cat([torch.linspace(-5.6, 5.6, 4997), torch.tensor([0.0, -30.0, 30.0])]).view(1000, 5)
    d_value = randn(*x.shape)
    true_x = wide(x)
    true = functional.gelu(true_x)
    (d_x,) = torch.autograd.grad(true, true_x, d_value.double())
    near = partial(torch.testing.assert_close, rtol=4e-6, atol=4e-6)
    near(kernels.gelu(x), true.detach().float())
    for again in BITS:
        found = d_value.clone()
        value = kernels.gelu_backward(found, x, again=again)
        near(found, d_x.float(), atol=1e-5)
        if again:
            near(value, true.detach().float())
        else:
            assert value is None


# In plain torch


@pytest.mark.parametrize("channels", [8, 100])
def test_embeddings_are_sums_and_their_gradients_are_added(channels: int) -> None:
    check_embedded(block_kernels, channels)


@pytest.mark.parametrize(("rows", "channels"), SHAPES)
def test_the_norm_is_torchs(rows: int, channels: int) -> None:
    check_norm(block_kernels, rows, channels)


@pytest.mark.parametrize("again", BITS)
@pytest.mark.parametrize("scales", BITS)
@pytest.mark.parametrize("residual", BITS)
@pytest.mark.parametrize(("rows", "channels"), SHAPES)
def test_the_norms_backward_pass_is_autograds(
    rows: int, channels: int, residual: bool, scales: bool, again: bool
) -> None:
    check_norm_backward(block_kernels, rows, channels, residual=residual, scales=scales, again=again)


def test_gelu_and_its_slope_are_the_exact_ones() -> None:
    check_gelu(block_kernels)


# As Triton kernels


@pytest.mark.slow
def test_the_kernels_compute_what_autograd_does() -> None:
    pytest.importorskip("triton", reason="Triton comes with torch's CUDA builds; -m gpu tests the kernels on a card")
    program = f"import runpy; runpy.run_path({__file__!r}, run_name='__main__')"
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=120)
    if "only 0-dimensional arrays can be converted" in done.stderr:
        pytest.skip("the interpreter of this Triton needs numpy < 2.4 for loops whose end is a number of the kernel's")
    assert done.returncode == 0, done.stderr[-3000:]


def check_the_kernels() -> None:
    from onecard.train import block_kernels_triton as triton_kernels

    triton_kernels._multiprocessors = lambda _: 2  # type: ignore[assignment]
    triton_kernels.SUM_ROWS = 4  # fewer than there are parts to add
    kernels = SimpleNamespace(
        embedded=triton_kernels.embedded,
        embedded_backward=triton_kernels.embedded_backward,
        norm=partial(triton_kernels.norm, epsilon=block_kernels.EPSILON),
        norm_backward=partial(triton_kernels.norm_backward, epsilon=block_kernels.EPSILON),
        gelu=triton_kernels.gelu,
        gelu_backward=triton_kernels.gelu_backward,
    )
    check_embedded(kernels, 8)
    check_embedded(kernels, 100)
    check_gelu(kernels)
    for rows, channels in SHAPES:
        check_norm(kernels, rows, channels)
        for residual, scales, again in itertools.product(BITS, repeat=3):
            check_norm_backward(kernels, rows, channels, residual=residual, scales=scales, again=again)


if __name__ == "__main__":
    check_the_kernels()
