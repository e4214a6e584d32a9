"""The model `nanochat` against transformers' own, and its written-out passes against both: losses and gradients."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch.nn import functional  # noqa: E402

from onecard.config.resolve import resolve  # noqa: E402
from onecard.config.schema import RunConfig  # noqa: E402
from onecard.errors import ConfigError  # noqa: E402
from onecard.train.model import GPT  # noqa: E402
from onecard.train.recorded_micro_batch import zero_gradients  # noqa: E402
from tests.train.test_fused import autograds, batch  # noqa: E402

TINY = RunConfig(model="nanochat", n_layer=3, n_head=2, n_embd=32, block_size=16, vocab_size=65)
MODES = ("none", "selective", "full")
ONE = torch.ones(())


def made(config: RunConfig, dtype: Any = torch.float64) -> GPT:
    """A model whose every weight is random: zeros would hide a mistake."""
    generator = torch.Generator().manual_seed(5)
    model = GPT(config).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator, dtype=dtype))
    return model


def transformers_model(config: RunConfig, ours: GPT) -> Any:
    """transformers' model with the same weights."""
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'onecard[dev]'")
    theirs = transformers.NanoChatForCausalLM(
        transformers.NanoChatConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.n_embd,
            intermediate_size=4 * config.n_embd,
            num_hidden_layers=config.n_layer,
            num_attention_heads=config.n_head,
            max_position_embeddings=config.block_size,
            final_logit_softcapping=15.0,
        )
    ).double()
    with torch.no_grad():
        theirs.model.embed_tokens.weight.copy_(ours.transformer.wte.weight)
        theirs.lm_head.weight.copy_(ours.lm_head.weight)
        for to, block in zip(theirs.model.layers, ours.transformer.h, strict=True):
            q, k, v = block.attn.c_attn.weight.chunk(3)
            for name, weight in (("q_proj", q), ("k_proj", k), ("v_proj", v), ("o_proj", block.attn.c_proj.weight)):
                getattr(to.self_attn, name).weight.copy_(weight)
            to.mlp.fc1.weight.copy_(block.mlp.c_fc.weight)
            to.mlp.fc2.weight.copy_(block.mlp.c_proj.weight)
    return theirs


def gradients_of_transformers(theirs: Any, value: Any) -> dict[str, Any]:
    """Its gradients, by our names."""
    value.backward()
    found = {
        "transformer.wte.weight": theirs.model.embed_tokens.weight.grad,
        "lm_head.weight": theirs.lm_head.weight.grad,
    }
    for index, layer in enumerate(theirs.model.layers):
        attention, block = layer.self_attn, f"transformer.h.{index}"
        parts = (attention.q_proj, attention.k_proj, attention.v_proj)
        found[f"{block}.attn.c_attn.weight"] = torch.cat([part.weight.grad for part in parts])
        found[f"{block}.attn.c_proj.weight"] = attention.o_proj.weight.grad
        found[f"{block}.mlp.c_fc.weight"] = layer.mlp.fc1.weight.grad
        found[f"{block}.mlp.c_proj.weight"] = layer.mlp.fc2.weight.grad
    return found


def test_logits_loss_and_gradients_are_those_of_transformers() -> None:
    # Its table of rotations is float32, ours has the type of the weights: angles up to 15 differ by 1e-6.
    model, (tokens_BT, targets_BT) = made(TINY), batch(TINY, ignored=3)
    theirs = transformers_model(TINY, model)
    expected = theirs(tokens_BT).logits
    torch.testing.assert_close(model.logits(model.hidden(tokens_BT)).double(), expected, rtol=0, atol=2e-5)
    usual = functional.cross_entropy(expected.flatten(0, 1), targets_BT.flatten(), ignore_index=-1)
    loss = model.loss(tokens_BT, targets_BT)
    torch.testing.assert_close(loss, usual, rtol=1e-6, atol=1e-6)
    wanted = gradients_of_transformers(theirs, usual)
    for name, gradient in autograds(model, loss).items():
        assert (gradient - wanted[name]).norm() <= 1e-5 * wanted[name].norm(), name


@settings(max_examples=60)
@given(
    layers=st.integers(1, 3),
    heads=st.integers(1, 3),
    half=st.integers(1, 4),
    block_size=st.integers(1, 12),
    shorter_by=st.integers(0, 3),
    sequences=st.integers(1, 4),
    vocab_size=st.integers(2, 40),
    loss_chunk=st.one_of(st.none(), st.integers(1, 50)),
    ignored=st.integers(0, 5),
    mode=st.sampled_from(MODES),
    scale=st.sampled_from([1.0, 0.125, 65536.0]),
)
def test_written_out_gradients_are_those_of_autograd_and_are_added(
    layers: int,
    heads: int,
    half: int,
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
        model="nanochat",
        n_layer=layers,
        n_head=heads,
        n_embd=2 * heads * half,
        block_size=block_size,
        vocab_size=vocab_size,
        loss_chunk=loss_chunk,
        grad_checkpoint=mode,
    )
    model, length = made(config), max(1, block_size - shorter_by)
    tokens_BT, targets_BT = batch(config, sequences, length, min(ignored, sequences * length - 1))
    usual = model.loss(tokens_BT, targets_BT)
    expected = autograds(model, usual)
    generator = torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    before = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}  # type: ignore[union-attr]
    loss = model.passes(torch.float64).add_gradients(tokens_BT, targets_BT, scale=torch.tensor(scale))
    torch.testing.assert_close(loss.double(), usual.detach().double(), rtol=1e-5, atol=1e-5)
    largest = max(float(gradient.norm()) for gradient in expected.values())
    for name, gradient in expected.items():
        added = (model.get_parameter(name).grad - before[name]) / scale  # type: ignore[operator]
        assert (added - gradient).norm() <= 1e-5 * gradient.norm() + 1e-6 * largest, name


@pytest.mark.parametrize("mode", MODES)
def test_float32_gradients_are_those_of_autograd(mode: Any) -> None:
    config = TINY.replace({"grad_checkpoint": mode, "loss_chunk": 7})
    model, (tokens_BT, targets_BT) = made(config, torch.float32), batch(config, ignored=3)
    expected = autograds(model, model.loss(tokens_BT, targets_BT))
    zero_gradients(model.parameters())
    model.passes(torch.float32).add_gradients(tokens_BT, targets_BT, scale=ONE)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert (parameter.grad - expected[name]).norm() <= 1e-4 * expected[name].norm(), name


def test_losses_of_tokens_are_the_models() -> None:
    model, (tokens_BT, targets_BT) = made(TINY.replace({"loss_chunk": 9})), batch(TINY, 3, 11, 2)
    losses_BT = model.passes(torch.float64).token_losses(tokens_BT, targets_BT)
    torch.testing.assert_close(losses_BT.double(), model.token_losses(tokens_BT, targets_BT), rtol=1e-5, atol=1e-5)
    assert (losses_BT[targets_BT == -1] == 0).all()


def test_the_first_loss_is_that_of_a_guess() -> None:
    model = GPT(TINY)
    assert model.loss(*batch(TINY)).item() == pytest.approx(torch.log(torch.tensor(65.0)).item(), abs=5e-3)


@pytest.mark.parametrize(
    ("flags", "fix"),
    [
        (("dropout", "0.1"), "--dropout=0.0"),
        (("bias", "True"), "--bias=False"),
        (("n_embd", "35"), "n_embd"),
    ],
)
def test_what_the_model_does_not_have_is_refused(flags: tuple[str, str], fix: str) -> None:
    with pytest.raises(ConfigError) as refused:
        resolve("n_head = 5\nn_embd = 40\nmodel = 'nanochat'", filename="c.py", flags=[flags])
    assert fix in refused.value.fix
