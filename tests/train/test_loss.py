"""The chunked loss against torch's own cross-entropy, and the logits it must not hold."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from onecard.models import chunked_loss  # noqa: E402
from onecard.models.chunks import chunk_slices, default_chunk_tokens  # noqa: E402
from onecard.train import loss  # noqa: E402
from onecard.train.operations import TORCH  # noqa: E402
from onecard.units import MIB  # noqa: E402


def mean_loss(hidden_NC: Any, weight_VC: Any, targets_N: Any, *, chunk_tokens: int) -> Any:
    return chunked_loss.mean_loss(TORCH, hidden_NC, weight_VC, targets_N, chunk_tokens)


def problem(N: int, C: int, V: int, *, dtype: Any = torch.float32, ignored: int = 0) -> tuple[Any, Any, Any]:
    generator = torch.Generator().manual_seed(N * 7 + C * 3 + V)
    hidden_NC = torch.randn(N, C, generator=generator, dtype=dtype).requires_grad_()
    weight_VC = (torch.randn(V, C, generator=generator, dtype=dtype) * 0.5).requires_grad_()
    targets_N = torch.randint(V, (N,), generator=generator)
    targets_N[torch.randperm(N, generator=generator)[:ignored]] = -1
    return hidden_NC, weight_VC, targets_N


def plain_loss(hidden_NC: Any, weight_VC: Any, targets_N: Any) -> Any:
    return functional.cross_entropy(hidden_NC @ weight_VC.t(), targets_N, ignore_index=-1)


@settings(max_examples=40)
@given(
    N=st.integers(1, 300), chunk=st.integers(1, 320), ignored=st.integers(0, 5), scale=st.sampled_from([1.0, 65536.0])
)
def test_any_chunk_gives_torchs_loss_and_gradients(N: int, chunk: int, ignored: int, scale: float) -> None:
    hidden_NC, weight_VC, targets_N = problem(N, 8, 23, dtype=torch.float64, ignored=min(ignored, N - 1))
    ours = mean_loss(hidden_NC, weight_VC, targets_N, chunk_tokens=chunk)
    plain = plain_loss(hidden_NC, weight_VC, targets_N)
    our_gradients = torch.autograd.grad(ours * scale, [hidden_NC, weight_VC])
    gradients = torch.autograd.grad(plain * scale, [hidden_NC, weight_VC])
    torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(our_gradients, gradients, rtol=1e-10, atol=1e-12 * scale)


def test_float32_agrees_with_torch_to_rounding() -> None:
    hidden_NC, weight_VC, targets_N = problem(500, 64, 1000, ignored=7)
    ours = mean_loss(hidden_NC, weight_VC, targets_N, chunk_tokens=128)
    plain = plain_loss(hidden_NC, weight_VC, targets_N)
    torch.testing.assert_close(ours, plain, rtol=1e-6, atol=1e-6)
    ours_hidden, ours_weight = torch.autograd.grad(ours, [hidden_NC, weight_VC])
    plain_hidden, plain_weight = torch.autograd.grad(plain, [hidden_NC, weight_VC])
    torch.testing.assert_close(ours_hidden, plain_hidden, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(ours_weight, plain_weight, rtol=1e-4, atol=1e-7)


def test_the_gradient_is_the_numerical_one() -> None:
    # By hand: gradcheck runs one backward pass several times, which this loss refuses.
    hidden_NC, weight_VC, targets_N = problem(5, 3, 4, dtype=torch.float64, ignored=1)
    mean_loss(hidden_NC, weight_VC, targets_N, chunk_tokens=2).backward()
    for tensor in (hidden_NC, weight_VC):
        flat, gradient = tensor.detach().view(-1), tensor.grad.view(-1)
        for index in range(len(flat)):
            values = []
            for step in (1e-6, -2e-6):
                flat[index] += step
                with torch.no_grad():
                    values.append(mean_loss(hidden_NC, weight_VC, targets_N, chunk_tokens=2).item())
            flat[index] += 1e-6
            assert abs((values[0] - values[1]) / 2e-6 - gradient[index].item()) < 1e-8


def test_the_gradient_of_a_nearly_certain_token_survives_half_precision() -> None:
    # p = 0.9995: in bfloat16 the probability is 1, and p - 1 taken from it would be 0.
    logits_NV, targets_N = torch.tensor([[7.6, 0.0]]), torch.tensor([0])
    half_NV = logits_NV.to(torch.bfloat16)
    exact = torch.softmax(half_NV.double(), 1)[0, 0] - 1
    loss.write_losses(half_NV, targets_N, torch.empty(1), gradient=True)
    assert abs(half_NV[0, 0].double() / exact - 1) < 2**-8


def test_token_losses_are_torchs_and_zero_where_ignored() -> None:
    hidden_NC, weight_VC, targets_N = problem(100, 8, 23, dtype=torch.float64, ignored=9)
    ours_N = chunked_loss.token_losses(TORCH, hidden_NC, weight_VC, targets_N, 30)
    plain_N = functional.cross_entropy(hidden_NC @ weight_VC.t(), targets_N, ignore_index=-1, reduction="none")
    torch.testing.assert_close(ours_N, plain_N.detach())
    assert not ours_N.requires_grad
    assert (ours_N[targets_N == -1] == 0).all()


class Tensors(TorchDispatchMode):
    """The largest tensor any operation returned, in elements, and the operations' names."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = 0
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.largest = max(self.largest, tensor.numel())
        self.names.append(func._schema.name)
        return out


def test_the_logits_of_a_micro_batch_never_exist() -> None:
    hidden_NC, weight_VC, targets_N = problem(1024, 4, 2000)
    with Tensors() as seen:
        mean_loss(hidden_NC, weight_VC, targets_N, chunk_tokens=128).backward()
    assert seen.largest == 128 * 2000
    with Tensors() as seen:
        plain_loss(hidden_NC, weight_VC, targets_N).backward()
    assert seen.largest == 1024 * 2000, "the measure must see what it is to rule out"


def test_float32_copies_exist_for_a_slice_of_a_chunk_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "SLICE_BYTES", 128 * 4 * 2000)
    targets_N = torch.randint(2000, (1024,))
    logits_NV = torch.randn(1024, 2000).to(torch.bfloat16)
    expected_N = functional.cross_entropy(logits_NV.float(), targets_N, reduction="none")
    losses_N = torch.empty(1024)
    with Tensors() as seen:
        loss.write_losses(logits_NV, targets_N, losses_N, gradient=True)
    assert seen.largest == 128 * 2000
    torch.testing.assert_close(losses_N, expected_N)


def test_without_gradients_no_gradient_is_made() -> None:
    hidden_NC, weight_VC, targets_N = problem(256, 8, 23)
    with torch.no_grad(), Tensors() as seen:
        value = mean_loss(hidden_NC, weight_VC, targets_N, chunk_tokens=128)
    assert seen.names.count("aten::mm") == 2  # the logits of two chunks, and nothing else
    torch.testing.assert_close(value, plain_loss(hidden_NC, weight_VC, targets_N).detach())


def test_a_second_backward_pass_is_an_error_not_a_wrong_gradient() -> None:
    hidden_NC, weight_VC, targets_N = problem(20, 8, 23)
    value = mean_loss(hidden_NC, weight_VC, targets_N, chunk_tokens=8)
    value.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="inplace"):
        value.backward()


@pytest.mark.parametrize("vocab_size", [65, 256, 50257, 50304, 151936, 2**24])
def test_default_chunks_are_bounded_in_bytes(vocab_size: int) -> None:
    tokens = default_chunk_tokens(vocab_size)
    assert tokens >= 1
    assert 2 * tokens * vocab_size <= 400 * MIB
    assert tokens % 128 == 0 or tokens < 128


@given(tokens=st.integers(0, 20_000), chunk=st.integers(1, 5000))
def test_chunks_cover_every_token_once_and_are_about_equal(tokens: int, chunk: int) -> None:
    covered = [index for rows in chunk_slices(tokens, chunk) for index in range(rows.start, rows.stop)]
    assert covered == list(range(tokens))
    assert len(chunk_slices(tokens, chunk)) == -(-tokens // chunk)


needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA, found none")


@pytest.mark.parametrize(("capability", "computes"), [((6, 0), False), ((6, 1), False), ((7, 0), True), ((9, 0), True)])
def test_our_kernels_compute_on_the_cards_that_triton_knows(
    capability: tuple[int, int], computes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(loss, "find_spec", lambda _: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert loss.has_kernel.__wrapped__("cuda") == computes


@pytest.mark.gpu
@needs_cuda
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kernel", [False, True])
def test_half_precision_on_a_card_is_as_near_to_float64_as_torchs_own(
    dtype: Any, kernel: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    N, C, V, scale = 4096, 256, 50304, 65536.0
    hidden_NC = torch.randn(N, C, device="cuda").requires_grad_()
    weight_VC = (torch.randn(V, C, device="cuda") * 0.02).requires_grad_()
    targets_N = torch.randint(V, (N,), device="cuda")
    assert loss.has_kernel("cuda")
    monkeypatch.setattr(loss, "has_kernel", lambda _: kernel)

    def gradients(value: Any, inputs: Any) -> Any:
        return value.detach(), *torch.autograd.grad(value * scale, inputs)

    exact_inputs = [hidden_NC.detach().double().requires_grad_(), weight_VC.detach().double().requires_grad_()]
    exact = gradients(plain_loss(*exact_inputs, targets_N), exact_inputs)
    with torch.autocast("cuda", dtype):
        ours = mean_loss(hidden_NC.to(dtype), weight_VC, targets_N, chunk_tokens=1024)
        plain = plain_loss(hidden_NC, weight_VC, targets_N)
    for name, got, usual, want in zip(
        ("loss", "hidden", "weight"),
        gradients(ours, [hidden_NC, weight_VC]),
        gradients(plain, [hidden_NC, weight_VC]),
        exact,
        strict=True,
    ):
        error, usual_error = ((value.double() - want).norm() / want.norm() for value in (got, usual))
        assert error <= 1.1 * usual_error + 1e-6, f"{name}: {error:.2e} against torch's {usual_error:.2e}"
