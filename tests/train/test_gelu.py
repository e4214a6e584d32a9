"""The GELU of compiled half precision against float64."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from onecard.train.gelu import gelu, phi_and_bell  # noqa: E402


def all_numbers(dtype: torch.dtype, below: float) -> torch.Tensor:
    """Every finite number of a half-precision type that is smaller than `below` and not too small to square."""
    numbers = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    size = numbers.double().abs()
    return numbers[(size < below) & (size > 1e-15)]


def true_value_and_slope(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    wide = x.double()
    phi = 0.5 * torch.erfc(-wide / math.sqrt(2))
    return wide * phi, phi + wide * torch.exp(-wide * wide / 2) / math.sqrt(2 * math.pi)


def test_the_distribution_function_is_right_to_three_in_a_million() -> None:
    x = torch.linspace(-5.6, 5.6, 100_001)
    phi, bell = phi_and_bell(x)
    assert float((phi.double() / (0.5 * torch.erfc(-x.double() / math.sqrt(2))) - 1).abs().max()) < 3e-6
    assert float((bell.double() / torch.exp(-(x.double() ** 2) / 2) - 1).abs().max()) < 3e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_compiled_every_number_has_the_value_and_slope_of_float64(dtype: torch.dtype) -> None:
    x = all_numbers(dtype, below=5.6).requires_grad_()
    value = torch.compile(gelu, backend="aot_eager")(x)
    (slope,) = torch.autograd.grad(value, x, torch.ones_like(value))
    true_value, true_slope = true_value_and_slope(x.detach())
    # a result that lies about half-way between two numbers of the type may be rounded to either
    assert float((value == true_value.to(dtype)).double().mean()) > 0.997
    assert float((slope == true_slope.to(dtype)).double().mean()) > 0.997
    step = torch.finfo(dtype).eps
    torch.testing.assert_close(value.double(), true_value, rtol=step, atol=1e-7)
    torch.testing.assert_close(slope.double(), true_slope, rtol=step, atol=2e-6)


def test_without_a_compiler_and_in_float32_it_is_torchs_own() -> None:
    x = torch.randn(1000)
    assert torch.equal(gelu(x.bfloat16()), torch.nn.functional.gelu(x.bfloat16()))
    assert torch.equal(torch.compile(gelu, backend="aot_eager")(x), torch.nn.functional.gelu(x))
