"""The written-out passes against autograd of the model, in plain torch: what they compute, and what they keep.

GELU is a polynomial here, right to 3e-6, and the losses are float32: float64 gradients agree to about that, and a
forgotten term is larger by far. In half precision, on a card: test_fused_on_a_card.py.
"""

from __future__ import annotations

import weakref
from array import array
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from onecard.config.schema import RunConfig  # noqa: E402
from onecard.data.dataset import open_dataset  # noqa: E402
from onecard.models.gpt2_passes import BlockPasses, Passes  # noqa: E402
from onecard.models.ways import fuses  # noqa: E402
from onecard.train.model import GPT  # noqa: E402
from onecard.train.precision import Precision  # noqa: E402
from onecard.train.recorded_micro_batch import zero_gradients  # noqa: E402
from onecard.train.trainer import Trainer  # noqa: E402

TINY = RunConfig(n_layer=3, n_head=2, n_embd=32, block_size=16, vocab_size=65)
MODES = ("none", "selective", "full")
ONE = torch.ones(())


def made(config: RunConfig, dtype: Any = torch.float64) -> GPT:
    """A model whose every weight is random: norms of one would hide a mistake."""
    generator = torch.Generator().manual_seed(5)
    model = GPT(config).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            before = parameter if parameter.dim() == 1 else 0.0
            parameter.copy_(before + 0.2 * torch.randn(parameter.shape, generator=generator, dtype=dtype))
    return model


def batch(config: RunConfig, B: int = 2, T: int | None = None, ignored: int = 0) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(3)
    tokens_BT, targets_BT = torch.randint(config.vocab_size, (2, B, T or config.block_size), generator=generator)
    targets_BT.view(-1)[torch.randperm(targets_BT.numel(), generator=generator)[:ignored]] = -1
    return tokens_BT, targets_BT


def set_gradients(model: GPT) -> dict[str, Any]:
    """Random gradients for every parameter, as if other micro-batches had been there; copies of them."""
    generator = torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}  # type: ignore[union-attr]


def gradients(model: GPT) -> dict[str, Any]:
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def autograds(model: GPT, value: Any) -> dict[str, Any]:
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(value, parameters), strict=True))


# The mathematics


@settings(max_examples=60)
@given(
    layers=st.integers(1, 3),
    heads=st.integers(1, 3),
    head_size=st.integers(3, 8),
    block_size=st.integers(1, 12),
    shorter_by=st.integers(0, 3),
    sequences=st.integers(1, 4),
    vocab_size=st.integers(2, 40),
    loss_chunk=st.one_of(st.none(), st.integers(1, 50)),
    ignored=st.integers(0, 5),
    mode=st.sampled_from(MODES),
    scale=st.sampled_from([1.0, 0.125, 65536.0]),
)
def test_gradients_are_those_of_autograd_and_are_added(
    layers: int,
    heads: int,
    head_size: int,
    block_size: int,
    shorter_by: int,
    sequences: int,
    vocab_size: int,
    loss_chunk: int | None,
    ignored: int,
    mode: Any,
    scale: float,
) -> None:
    config = RunConfig(
        n_layer=layers,
        n_head=heads,
        n_embd=heads * head_size,
        block_size=block_size,
        vocab_size=vocab_size,
        loss_chunk=loss_chunk,
        grad_checkpoint=mode,
    )
    model, length = made(config), max(1, block_size - shorter_by)
    tokens_BT, targets_BT = batch(config, sequences, length, min(ignored, sequences * length - 1))
    usual = model.loss(tokens_BT, targets_BT)
    expected = autograds(model, usual)
    before = set_gradients(model)
    loss = model.passes(torch.float64).add_gradients(tokens_BT, targets_BT, scale=torch.tensor(scale))
    torch.testing.assert_close(loss.double(), usual.detach().double(), rtol=1e-5, atol=1e-5)
    largest = max(float(gradient.norm()) for gradient in expected.values())
    for name, gradient in expected.items():
        added = (model.get_parameter(name).grad - before[name]) / scale  # type: ignore[operator]
        assert (added - gradient).norm() <= 2e-5 * gradient.norm() + 2e-6 * largest, name


@pytest.mark.parametrize("mode", MODES)
def test_float32_gradients_are_those_of_autograd(mode: Any) -> None:
    config = TINY.replace({"grad_checkpoint": mode, "loss_chunk": 7})
    model, (tokens_BT, targets_BT) = made(config, torch.float32), batch(config, ignored=3)
    expected = autograds(model, model.loss(tokens_BT, targets_BT))
    zero_gradients(model.parameters())
    model.passes(torch.float32).add_gradients(tokens_BT, targets_BT, scale=ONE)
    for name, gradient in gradients(model).items():
        assert (gradient - expected[name]).norm() <= 1e-4 * expected[name].norm(), name


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_gives_the_same_gradients(mode: Any) -> None:
    found = []
    for each in ("none", mode):
        model = made(TINY.replace({"grad_checkpoint": each}))
        zero_gradients(model.parameters())
        model.passes(torch.float64).add_gradients(*batch(TINY), scale=ONE)
        found.append(gradients(model))
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-14)


@settings(max_examples=20)
@given(length=st.integers(1, 16), loss_chunk=st.integers(1, 50), ignored=st.integers(0, 5))
def test_losses_of_tokens_are_the_models(length: int, loss_chunk: int, ignored: int) -> None:
    config = TINY.replace({"loss_chunk": loss_chunk})
    model, (tokens_BT, targets_BT) = made(config), batch(config, 3, length, ignored)
    losses_BT = model.passes(torch.float64).token_losses(tokens_BT, targets_BT)
    assert losses_BT.dtype == torch.float32
    torch.testing.assert_close(losses_BT.double(), model.token_losses(tokens_BT, targets_BT), rtol=1e-5, atol=1e-5)
    assert (losses_BT[targets_BT == -1] == 0).all()


def test_losses_of_tokens_leave_gradients_alone() -> None:
    model = made(TINY)
    before = set_gradients(model)
    model.passes(torch.float64).token_losses(*batch(TINY))
    torch.testing.assert_close(gradients(model), before, rtol=0, atol=0)


# Copies of the weights


def passes_with_copies(model: GPT) -> Passes:
    """Matrices become float64, of which the passes have float32 copies; norms float32, as torch's on a CPU must be."""
    model.double()
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.float()
    return model.passes(torch.float32)


def test_weights_that_have_changed_are_taken_over_when_asked() -> None:
    model = made(TINY)
    passes = passes_with_copies(model)
    before_BT = passes.token_losses(*batch(TINY))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("transformer.h.") and parameter.dim() == 2:
                parameter.mul_(1.5)
    assert torch.equal(passes.token_losses(*batch(TINY)), before_BT), "cast once an update, not once a micro-batch"
    passes.refresh()
    after_BT = passes.token_losses(*batch(TINY))
    assert not torch.allclose(after_BT, before_BT, rtol=1e-3)
    assert torch.equal(after_BT, model.passes(torch.float32).token_losses(*batch(TINY)))


def test_every_matrix_is_taken_over() -> None:
    model = made(TINY)
    passes = passes_with_copies(model)
    narrow = [passes._head, *(weight for block in passes.blocks for weight in block.weights)]
    assert {id(weight.parameter) for weight in narrow} == {
        id(parameter)
        for name, parameter in model.named_parameters()
        if parameter.dim() == 2 and name != "transformer.wpe.weight"
    }
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    passes.refresh()
    for weight in narrow:
        assert weight.narrow_OI.dtype == torch.float32
        assert torch.equal(weight.narrow_OI, weight.parameter.float())


def test_gradients_are_added_to_the_parameters_in_their_own_type() -> None:
    model = made(TINY)
    passes = passes_with_copies(model)
    tokens_BT, targets_BT = batch(TINY, ignored=2)
    before = set_gradients(model)
    passes.add_gradients(tokens_BT, targets_BT, scale=ONE)
    exact = made(TINY)
    expected = autograds(exact, exact.loss(tokens_BT, targets_BT))
    for name, gradient in gradients(model).items():
        assert gradient.dtype == model.get_parameter(name).dtype
        assert (gradient - before[name] - expected[name]).norm() <= 1e-4 * expected[name].norm(), name


def test_weights_of_the_type_have_no_copy() -> None:
    model = made(TINY, torch.float32)
    passes = model.passes(torch.float32)
    assert passes._head.narrow_OI.data_ptr() == model.lm_head.weight.data_ptr()
    passes.refresh()
    before_BT = passes.token_losses(*batch(TINY))
    with torch.no_grad():
        model.lm_head.weight.mul_(2)
    assert not torch.allclose(passes.token_losses(*batch(TINY)), before_BT)


# Memory


class Living(TorchDispatchMode):
    """Bytes of the storages made inside that are still alive, without the help of Python's collector of cycles."""

    def __init__(self, known: list[Any]) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.known = {tensor.untyped_storage()._cdata for tensor in known}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.sizes.keys() | self.known:
                    self.sizes[storage._cdata] = storage.nbytes()
                    weakref.finalize(storage, self.sizes.pop, storage._cdata, None)
        return out

    @property
    def bytes(self) -> int:
        return sum(self.sizes.values())


WIDTH, HEADS, TOKENS = 64, 2, 32
KEPT = {  # bytes a token and block: x, q, k, v, y, x', 4 wide, and 2 normed and 4 activated, with attention's sums
    "none": 4 * 16 * WIDTH + 4 * HEADS,
    "selective": 4 * 10 * WIDTH + 4 * HEADS,
    "full": 4 * WIDTH,
}


def living_bytes_a_token(mode: Any, layers: int, monkeypatch: pytest.MonkeyPatch) -> tuple[float, list[float], float]:
    """Alive when all blocks have run, when each one's backward pass begins, and at the end."""
    config = TINY.replace({"grad_checkpoint": mode, "n_layer": layers, "n_embd": WIDTH, "n_head": HEADS})
    model, (tokens_BT, targets_BT) = made(config, torch.float32), batch(config)
    assert tokens_BT.numel() == TOKENS
    zero_gradients(model.parameters())
    of_model = [tensor for parameter in model.parameters() for tensor in (parameter, parameter.grad)]
    passes, living = model.passes(torch.float32), Living([*of_model, tokens_BT, targets_BT])
    forward_ends: list[float] = []
    backward_begins: list[float] = []

    def noting(function: Any, notes: list[float]) -> Any:
        def noted(*arguments: Any) -> Any:
            notes.append(living.bytes / TOKENS)
            return function(*arguments)

        return noted

    with monkeypatch.context() as patch, living:
        patch.setattr(passes, "_loss_and_gradient", noting(passes._loss_and_gradient, forward_ends))
        patch.setattr(BlockPasses, "backward", noting(BlockPasses.backward, backward_begins))
        passes.add_gradients(tokens_BT, targets_BT, scale=ONE)
        end = living.bytes / TOKENS
    return forward_ends[0], backward_begins, end


@pytest.mark.parametrize("mode", MODES)
def test_a_block_keeps_twice_the_bytes_that_the_models_docstring_says_of_half_precision(
    mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    three, two = (living_bytes_a_token(mode, layers, monkeypatch)[0] for layers in (3, 2))
    assert three - two == KEPT[mode]


@pytest.mark.parametrize("mode", MODES)
def test_what_a_block_has_kept_is_gone_when_its_backward_pass_is_over(
    mode: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, (third, second, first), end = living_bytes_a_token(mode, 3, monkeypatch)
    assert third - second == second - first == KEPT[mode]
    assert end < 1, "nothing but the loss"


# In the trainer


@pytest.mark.parametrize(
    ("keys", "half", "written_out"),
    [
        ({}, True, True),
        ({}, None, True),
        ({"grad_checkpoint": "full"}, True, True),
        ({}, False, False),
        ({"dtype": "float32"}, None, False),
        ({"bias": True}, True, False),
        ({"dropout": 0.1}, True, False),
        ({"compile": False}, True, False),
    ],
)
def test_the_case_almost_everybody_trains_is_written_out(
    keys: dict[str, Any], half: bool | None, written_out: bool
) -> None:
    assert fuses(RunConfig().replace(keys), half=half) == written_out


def test_a_trainer_with_written_out_passes_learns_and_evaluates_as_without(tmp_path: Path) -> None:
    tokens = array("H", (index % TINY.vocab_size for index in range(4000)))
    for name in ("train.bin", "val.bin"):
        (tmp_path / name).write_bytes(tokens.tobytes())
    dataset = open_dataset(str(tmp_path), environ={})
    config = TINY.replace({"batch_size": 2, "gradient_accumulation_steps": 2, "learning_rate": 1e-3, "warmup_iters": 0})
    found = []
    for written_out in (False, True):
        trainer = Trainer(config, dataset, torch.device("cpu"), Precision(device_type="cpu", dtype=torch.float32))
        assert trainer.steps.passes is None, "off CUDA the model's own"
        if written_out:
            trainer.steps.passes = passes_with_copies(trainer.model)
        updates = [trainer.update(lambda shrunk: pytest.fail(str(shrunk))) for _ in range(4)]
        with trainer.evaluating() as sequence_losses:
            losses_B = sequence_losses(*batch(config))
        trainer.close()
        found.append(([update.loss for update in updates], [update.grad_norm for update in updates], losses_B))
    for usual, ours in zip(*found, strict=True):
        torch.testing.assert_close(torch.as_tensor(ours), torch.as_tensor(usual), rtol=1e-4, atol=1e-4)
    assert found[0][0][-1] < found[0][0][0]
