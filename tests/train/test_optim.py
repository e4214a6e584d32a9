"""Groups, clipping and AdamW as nanoGPT has them; number types."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from onecard.config.schema import RunConfig  # noqa: E402
from onecard.plan.counts import count_params  # noqa: E402
from onecard.train import precision  # noqa: E402
from onecard.train.model import GPT  # noqa: E402
from onecard.train.operations import clip_gradients  # noqa: E402
from onecard.train.optim import make_optimizer, parameter_groups, set_rates  # noqa: E402

TINY = RunConfig(n_layer=2, n_head=2, n_embd=32, block_size=16, vocab_size=65, bias=True)
CPU = torch.device("cpu")


def test_matrices_and_embeddings_decay_and_nothing_else() -> None:
    model = GPT(TINY)
    decayed, plain = parameter_groups(model, TINY)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.1, 0.0)
    assert {names[id(p)].split(".")[-1] for p in plain["params"]} == {"weight", "bias"}
    assert all("ln_" in names[id(p)] or names[id(p)].endswith("bias") for p in plain["params"])
    assert len(decayed["params"]) == count_params(TINY).decayed_tensors
    assert sum(p.numel() for p in decayed["params"]) == count_params(TINY).decayed
    assert sum(p.numel() for group in (decayed, plain) for p in group["params"]) == count_params(TINY).total


def test_an_update_is_adamws_formula() -> None:
    config = TINY.replace({"learning_rate": 0.01, "weight_decay": 0.5, "beta1": 0.8, "beta2": 0.9})
    model = GPT(config)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 0.25)
    make_optimizer(model, config).step()
    for name, parameter in model.named_parameters():
        decay = 0.5 if parameter.dim() >= 2 else 0.0
        # First update: both moments, corrected for their start at zero, are the gradient and its square.
        expected = before[name] * (1 - 0.01 * decay) - 0.01 * 0.25 / (0.25 + 1e-8)
        torch.testing.assert_close(parameter.detach(), expected, rtol=1e-5, atol=1e-7)


def test_the_rate_reaches_both_groups() -> None:
    optimizer = make_optimizer(GPT(TINY), TINY)
    config = TINY.replace({"decay_lr": False, "learning_rate": 3e-5})
    set_rates(make_optimizer(GPT(config), config), config, 0)
    set_rates(optimizer, TINY, 0)
    first = 6e-4 / 2001
    assert [group["lr"] for group in optimizer.param_groups] == [first, first]


def test_adamw_is_one_kernel() -> None:
    assert make_optimizer(GPT(TINY), TINY).defaults["fused"] is True


def test_state_made_beforehand_changes_no_step() -> None:
    models = [GPT(TINY), GPT(TINY)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [make_optimizer(model, TINY) for model in models]
    optimizers[1].make_state()
    for _ in range(3):
        for model, optimizer in zip(models, optimizers, strict=True):
            for number, parameter in enumerate(model.parameters()):
                parameter.grad = torch.full_like(parameter, 0.01 * (number + 1))
            optimizer.step()
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(("max_norm", "after"), [(1.0, 1.0), (100.0, 13.0), (0.0, 13.0)])
def test_clipping_returns_the_norm_before_and_zero_only_measures(max_norm: float, after: float) -> None:
    parameters = [torch.zeros(2, requires_grad=True), torch.zeros(1, requires_grad=True), torch.zeros(1)]
    parameters[0].grad, parameters[1].grad = torch.tensor([3.0, 4.0]), torch.tensor([12.0])
    assert clip_gradients(iter(parameters), max_norm=max_norm).item() == pytest.approx(13.0)
    left = torch.cat([parameters[0].grad, parameters[1].grad]).norm().item()
    assert left == pytest.approx(after, rel=1e-5)


# Precision


@pytest.mark.parametrize(("capability", "name"), [((7, 5), "float16"), ((8, 0), "bfloat16"), ((8, 9), "bfloat16")])
def test_auto_is_bfloat16_only_where_it_is_native(
    capability: tuple[int, int], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    chosen = precision.choose_precision(TINY, torch.device("cuda"))
    assert chosen.dtype == getattr(torch, name)


def test_the_cpu_computes_in_float32_and_says_so_when_asked_for_less() -> None:
    assert precision.choose_precision(TINY, CPU) == precision.Precision(device_type="cpu", dtype=torch.float32)
    asked = precision.choose_precision(TINY.replace({"dtype": "bfloat16"}), CPU)
    assert asked.dtype == torch.float32
    assert asked.note is not None
    assert "bfloat16 has no effect" in asked.note


def test_only_float16_is_scaled() -> None:
    scaled = {
        dtype: precision.Precision(device_type="cpu", dtype=dtype).grad_scaler().is_enabled()
        for dtype in (torch.float16, torch.bfloat16, torch.float32)
    }
    assert scaled == {torch.float16: True, torch.bfloat16: False, torch.float32: False}


def test_float32_needs_no_autocast_and_half_does() -> None:
    for dtype, expected in ((torch.float32, False), (torch.bfloat16, True)):
        with precision.Precision(device_type="cpu", dtype=dtype).autocast():
            assert torch.is_autocast_enabled("cpu") is expected
