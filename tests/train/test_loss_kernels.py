"""Losses and gradients of logits against float64: in plain torch, and as a Triton kernel in the interpreter.

See test_kernels_interpreted.py. Both compute in float32 and round once.
"""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from torch.nn import functional  # noqa: E402

from onecard.train import loss  # noqa: E402
from tests.rounding import KERNELS, ROUNDING  # noqa: E402

BLOCK = 64
SMALLEST = {torch.float32: 0.0, torch.float16: 2**-24, torch.bfloat16: 0.0}  # below float16's normal numbers
BESIDE = 5  # columns of the memory beside a row: a chunk's rows need not be neighbours


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    if KERNELS:
        from onecard.train import softmax_kernel

        monkeypatch.setattr(softmax_kernel, "BLOCK", BLOCK)


def check(logits_nV: Any, targets_n: Any, *, gradient: bool) -> None:
    """Compare with float64. Of the largest logit, float32 leaves an error of 2**-22 in an exponent.

    The sum of a row is 1 or more, right to a few 2**-23, and so is the gradient of a target that is nearly certain.
    """
    rows, vocab_size = logits_nV.shape
    memory = torch.full((rows, vocab_size + BESIDE), 7.0, dtype=logits_nV.dtype)
    found_nV, losses_n = memory[:, :vocab_size], torch.full((rows,), torch.nan)
    found_nV.copy_(logits_nV)
    loss.write_losses(found_nV, targets_n, losses_n, gradient=gradient)

    exact_nV = logits_nV.double().requires_grad_()
    exact_n = functional.cross_entropy(exact_nV, targets_n, ignore_index=loss.IGNORED, reduction="none")
    error = 2**-22 * max(4.0, logits_nV.abs().max().item())
    torch.testing.assert_close(losses_n.double(), exact_n.detach(), rtol=1e-6, atol=error)
    assert (memory[:, vocab_size:] == 7.0).all(), "memory beside the rows was written to"
    if gradient:
        (d_nV,) = torch.autograd.grad(exact_n.sum(), exact_nV)
        allowed_nV = (error + 1.01 * ROUNDING[logits_nV.dtype]) * d_nV.abs() + SMALLEST[logits_nV.dtype] + 1e-30
        allowed_nV.scatter_add_(1, targets_n.clamp(min=0)[:, None], torch.full((rows, 1), 2.0**-20).double())
        far_nV = (found_nV.double() - d_nV).abs() / allowed_nV
        assert far_nV.max() <= 1.0, (
            f"{far_nV.max():.3g} times the error allowed, at {divmod(int(far_nV.argmax()), vocab_size)}"
        )
    else:
        assert torch.equal(found_nV, logits_nV)


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("vocab_size", [1, 3, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 1003])
def test_losses_and_gradients_are_torchs_for_any_vocabulary(vocab_size: int, dtype: Any, gradient: bool) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    logits_nV = (4 * torch.randn(5, vocab_size, generator=generator)).to(dtype)
    targets_n = torch.randint(vocab_size, (5,), generator=generator)
    targets_n[1], targets_n[2], targets_n[4] = 0, loss.IGNORED, vocab_size - 1
    check(logits_nV, targets_n, gradient=gradient)
    check(logits_nV[:1], targets_n[:1], gradient=gradient)


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("scale", [0.0, 1e-4, 1000.0, 30000.0])
def test_small_and_large_logits_neither_overflow_nor_lose_the_target(scale: float, dtype: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    logits_nV = scale * (2 * torch.rand(4, BLOCK + 9, generator=generator) - 1)
    logits_nV[3] -= scale  # none above 0
    logits_nV = logits_nV.to(dtype)
    targets_n = torch.tensor([3, int(logits_nV[1].argmax()), BLOCK + 8, 0])
    check(logits_nV, targets_n, gradient=True)


@pytest.mark.parametrize("dtype", ROUNDING, ids=str)
@pytest.mark.parametrize("lead", [0.0, 4.0, 12.0, 20.0, 40.0])
def test_a_nearly_certain_target_keeps_its_gradient(lead: float, dtype: Any) -> None:
    logits_nV = torch.zeros(2, BLOCK + 1, dtype=dtype)
    logits_nV[0, 3], logits_nV[1, BLOCK] = lead, lead
    check(logits_nV, torch.tensor([3, BLOCK]), gradient=True)
