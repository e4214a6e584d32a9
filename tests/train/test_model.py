"""The model against transformers' GPT-2, a plain-torch GPT-2 in float64, and what nanoGPT itself draws and names."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from torch.nn import functional  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from onecard.config.schema import RunConfig  # noqa: E402
from onecard.models.gpt2 import structure  # noqa: E402
from onecard.models.structure import parameters_of  # noqa: E402
from onecard.plan.counts import count_params  # noqa: E402
from onecard.train.model import GPT  # noqa: E402
from onecard.train.operations import SeparateAttention  # noqa: E402

TINY = RunConfig(n_layer=3, n_head=2, n_embd=32, block_size=16, vocab_size=65)
MODES = ("none", "selective", "full")


def made(config: RunConfig, *, seed: int = 1) -> GPT:
    torch.manual_seed(seed)
    return GPT(config)


def batch(config: RunConfig, B: int = 2) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(3)
    tokens_BT, targets_BT = torch.randint(config.vocab_size, (2, B, config.block_size), generator=generator)
    return tokens_BT, targets_BT


def shaken(model: GPT) -> GPT:
    """The model with every weight random: norms of one and biases of zero would hide a mistake."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return model


def gradients(model: Any, value: Any) -> dict[str, Any]:
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(value, parameters), strict=True))


# References


def plain_logits(weights: dict[str, Any], config: RunConfig, tokens_BT: Any) -> Any:
    """GPT-2 written out: attention as softmax(QKᵀ/√D) with a mask, norms and GELU by their formulas."""
    B, T = tokens_BT.shape
    H, D = config.n_head, config.head_size

    def norm(x: Any, name: str) -> Any:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + 1e-5)
        return scaled * weights[f"{name}.weight"] + weights.get(f"{name}.bias", 0)

    def linear(x: Any, name: str) -> Any:
        return x @ weights[f"{name}.weight"].t() + weights.get(f"{name}.bias", 0)

    x = weights["transformer.wte.weight"][tokens_BT] + weights["transformer.wpe.weight"][:T]
    hidden_from = torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1)
    for layer in range(config.n_layer):
        at = f"transformer.h.{layer}"
        qkv = linear(norm(x, f"{at}.ln_1"), f"{at}.attn.c_attn").view(B, T, 3, H, D).permute(2, 0, 3, 1, 4)
        scores = qkv[0] @ qkv[1].transpose(-1, -2) / math.sqrt(D)
        y = torch.exp(torch.log_softmax(scores.masked_fill(hidden_from, -math.inf), dim=-1)) @ qkv[2]
        x = x + linear(y.transpose(1, 2).reshape(B, T, H * D), f"{at}.attn.c_proj")
        wide = linear(norm(x, f"{at}.ln_2"), f"{at}.mlp.c_fc")
        x = x + linear(wide * 0.5 * (1 + torch.erf(wide / math.sqrt(2))), f"{at}.mlp.c_proj")
    return norm(x, "transformer.ln_f") @ weights["transformer.wte.weight"].t()


@pytest.fixture
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
def test_a_deterministic_tied_weight_has_the_same_gradient() -> None:
    test_logits_loss_and_gradients_are_those_of_gpt2_written_out(bias=True)


@pytest.mark.parametrize("bias", [False, True])
def test_logits_loss_and_gradients_are_those_of_gpt2_written_out(bias: bool) -> None:
    config = TINY.replace({"bias": bias, "loss_chunk": 5})
    model = shaken(made(config).double())
    tokens_BT, targets_BT = batch(config)
    targets_BT[0, 3] = -1
    logits_BTV = plain_logits(dict(model.named_parameters()), config, tokens_BT)
    log_p_NV = torch.log_softmax(logits_BTV.flatten(0, 1), dim=1)
    counted = targets_BT.flatten() != -1
    plain = -log_p_NV[counted, targets_BT.flatten()[counted]].mean()
    ours = model.loss(tokens_BT, targets_BT)
    torch.testing.assert_close(model.logits(model.hidden(tokens_BT)), logits_BTV, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients(model, ours), gradients(model, plain), rtol=1e-9, atol=1e-12)


def test_logits_loss_and_gradients_are_those_of_transformers_gpt2() -> None:
    transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'onecard[dev]'")
    config = TINY.replace({"bias": True, "loss_chunk": 7})
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=config.vocab_size,
            n_positions=config.block_size,
            n_embd=config.n_embd,
            n_layer=config.n_layer,
            n_head=config.n_head,
            activation_function="gelu",
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=None,
            eos_token_id=None,
        )
    ).double()
    ours = shaken(made(config).double())
    turned = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")  # stored transposed

    def as_theirs(name: str, tensor: Any) -> Any:
        return tensor.t() if name.endswith(turned) else tensor

    weights = dict(ours.named_parameters())
    with torch.no_grad():
        assert {name for name, _ in theirs.named_parameters()} == set(weights)
        for name, parameter in theirs.named_parameters():
            parameter.copy_(as_theirs(name, weights[name]))
    tokens_BT, targets_BT = batch(config)
    logits_BTV = theirs(tokens_BT).logits
    their_loss = functional.cross_entropy(logits_BTV.flatten(0, 1), targets_BT.flatten())
    our_loss = ours.loss(tokens_BT, targets_BT)
    torch.testing.assert_close(ours.logits(ours.hidden(tokens_BT)), logits_BTV, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(our_loss, their_loss, rtol=1e-11, atol=1e-11)
    our_gradients = {name: as_theirs(name, value) for name, value in gradients(ours, our_loss).items()}
    torch.testing.assert_close(our_gradients, gradients(theirs, their_loss), rtol=1e-8, atol=1e-11)


# Names, counts, first weights


@pytest.mark.parametrize("bias", [False, True])
def test_parameters_have_nanogpts_names_and_shapes(bias: bool) -> None:
    config = TINY.replace({"bias": bias, "n_layer": 1})
    C, V, T = config.n_embd, config.vocab_size, config.block_size
    expected = {"transformer.wte.weight": (V, C), "transformer.wpe.weight": (T, C), "lm_head.weight": (V, C)}
    layers = {"attn.c_attn": (3 * C, C), "attn.c_proj": (C, C), "mlp.c_fc": (4 * C, C), "mlp.c_proj": (C, 4 * C)}
    for name, shape in {"ln_1": (C,), "ln_2": (C,), **layers}.items():
        expected[f"transformer.h.0.{name}.weight"] = shape
        if bias:
            expected[f"transformer.h.0.{name}.bias"] = shape[:1]
    expected |= {"transformer.ln_f.weight": (C,)} | ({"transformer.ln_f.bias": (C,)} if bias else {})
    model = GPT(config)
    assert {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()} == expected
    assert model.lm_head.weight is model.transformer.wte.weight


@pytest.mark.parametrize("bias", [False, True])
def test_the_plan_counts_this_models_parameters(bias: bool) -> None:
    config = TINY.replace({"bias": bias})
    parameters = list(GPT(config).parameters())
    counted = count_params(config)
    assert sum(parameter.numel() for parameter in parameters) == counted.total
    assert sum(parameter.numel() for parameter in parameters if parameter.dim() >= 2) == counted.decayed
    assert sum(1 for parameter in parameters if parameter.dim() >= 2) == counted.decayed_tensors


def test_first_weights_have_nanogpts_statistics() -> None:
    config = TINY.replace({"n_layer": 8, "n_embd": 128, "bias": True, "vocab_size": 1000, "block_size": 128})
    for name, tensor in made(config).state_dict().items():
        if name.endswith("bias"):
            assert (tensor == 0).all(), name
        elif tensor.dim() == 1:
            assert (tensor == 1).all(), name
        else:
            std = 0.02 / math.sqrt(2 * 8) if name.endswith("c_proj.weight") else 0.02
            assert abs(tensor.std().item() / std - 1) < 0.03, name
            assert abs(tensor.mean().item()) < 4 * std / math.sqrt(tensor.numel()), name


def test_one_seed_draws_nanogpts_very_weights() -> None:
    # Made by running nanoGPT (commit 3adf61e, torch 2.13.0, CPU): torch.manual_seed(1) and its GPT of TINY's shape.
    measured = {
        "transformer.wte.weight": [-0.00490835, 0.03682579, 0.00278701],
        "transformer.wpe.weight": [-0.03030632, 0.02535938, -0.02157811],
        "transformer.h.0.attn.c_attn.weight": [0.01496531, 0.01039605, -0.02797263],
        "transformer.h.1.attn.c_proj.weight": [-0.01221485, -0.00736409, 0.00215714],
        "transformer.h.2.mlp.c_proj.weight": [0.00094063, -0.01028612, -0.00834317],
    }
    weights = made(TINY).state_dict()
    for name, values in measured.items():
        torch.testing.assert_close(weights[name].flatten()[:3], torch.tensor(values), rtol=0, atol=1e-7)


# Recomputing


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_recomputing_changes_no_gradient(mode: str, dropout: float) -> None:
    tokens_BT, targets_BT = batch(TINY)
    config = TINY.replace({"dropout": dropout, "bias": True})
    reference = made(config)
    model = made(config.replace({"grad_checkpoint": mode}))
    got = []
    for each in (reference, model):
        torch.manual_seed(11)
        value = each.loss(tokens_BT, targets_BT)
        got.append((value.item(), gradients(each, value)))
    assert got[0][0] == got[1][0]
    torch.testing.assert_close(got[0][1], got[1][1], rtol=0, atol=0)


class Living(TorchDispatchMode):
    """Bytes of the storages made inside that are still alive; views of a model's weights are not new."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self.sizes.keys() | self.weights:
                    self.sizes[storage._cdata] = storage.nbytes()
                    weakref.finalize(storage, self.sizes.pop, storage._cdata, None)
        return out

    @property
    def bytes(self) -> int:
        gc.collect()
        return sum(self.sizes.values())


def kept_bytes_a_token(mode: str, n_layer: int) -> float:
    config = TINY.replace({"grad_checkpoint": mode, "n_layer": n_layer, "n_embd": 64})
    model, (tokens_BT, _) = GPT(config), batch(config)
    with Living(model) as living:
        hidden_BTC = model.hidden(tokens_BT)
        kept = living.bytes
    del hidden_BTC
    return kept / tokens_BT.numel()


def test_recomputing_keeps_the_bytes_the_docstring_says() -> None:
    # float32, so every tensor has 4 bytes an element: x, qkv (3), attention, x', wide (4) remain of 16 under selective.
    C, H = 64, 2
    block = {mode: kept_bytes_a_token(mode, 3) - kept_bytes_a_token(mode, 2) for mode in MODES}
    assert block["none"] == pytest.approx(4 * 16 * C + 4 * H + 16, rel=0.02)
    assert block["selective"] == pytest.approx(4 * 10 * C + 4 * H, rel=0.02)
    assert block["full"] == pytest.approx(4 * C, rel=0.02)


def flops(mode: str) -> int:
    config = TINY.replace({"grad_checkpoint": mode})
    model, (tokens_BT, targets_BT) = GPT(config), batch(config)
    with FlopCounterMode(display=False) as counter:
        model.loss(tokens_BT, targets_BT).backward()
    return int(counter.get_total_flops())


def test_selective_repeats_no_matrix_product_and_full_repeats_them() -> None:
    assert flops("selective") == flops("none")
    assert flops("full") > 1.15 * flops("none")


# Dropout, evaluation, compiling


def test_dropout_acts_in_training_only() -> None:
    model, (tokens_BT, targets_BT) = made(TINY.replace({"dropout": 0.5})), batch(TINY)
    with torch.no_grad():
        assert model.loss(tokens_BT, targets_BT) != model.loss(tokens_BT, targets_BT)
        model.eval()
        assert model.loss(tokens_BT, targets_BT) == model.loss(tokens_BT, targets_BT)


def test_token_losses_average_to_the_loss() -> None:
    model, (tokens_BT, targets_BT) = made(TINY), batch(TINY)
    targets_BT[1, 5] = -1
    losses_BT = model.token_losses(tokens_BT, targets_BT)
    assert losses_BT.shape == targets_BT.shape
    torch.testing.assert_close(losses_BT.sum() / 31, model.loss(tokens_BT, targets_BT).detach())


def test_a_token_sees_no_later_token() -> None:
    model, (tokens_BT, _) = made(TINY), batch(TINY)
    before_BTC = model.hidden(tokens_BT)
    tokens_BT[:, 9] = (tokens_BT[:, 9] + 1) % TINY.vocab_size
    after_BTC = model.hidden(tokens_BT)
    assert torch.equal(before_BTC[:, :9], after_BTC[:, :9])
    assert not torch.equal(before_BTC[:, 9:], after_BTC[:, 9:])


def test_too_long_a_sequence_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="block_size=16"):
        GPT(TINY).hidden(torch.zeros(1, 17, dtype=torch.long))


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # raised inside torch's compiler
@pytest.mark.parametrize("mode", MODES)
def test_all_blocks_share_one_compiled_graph(mode: str) -> None:
    graphs = []

    def backend(graph: Any, _inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch._dynamo.reset()
    model, (tokens_BT, targets_BT) = made(TINY.replace({"grad_checkpoint": mode})), batch(TINY)
    plain = gradients(model, model.loss(tokens_BT, targets_BT))
    for block in model.transformer.h:
        block.compile(backend=backend, dynamic=False)
    compiled = gradients(model, model.loss(tokens_BT, targets_BT))
    assert len(graphs) == 1
    torch.testing.assert_close(compiled, plain)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::UserWarning")  # raised inside torch's compiler
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA, found none")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_compiled_half_precision_gradients_are_near_float32(mode: str, dtype: Any) -> None:
    config = RunConfig(n_layer=4, n_head=4, n_embd=256, block_size=256, vocab_size=50304, grad_checkpoint=mode)
    model = made(config).cuda()
    tokens_BT, targets_BT = (tensor.cuda() for tensor in batch(config, B=4))
    exact = gradients(model, model.loss(tokens_BT, targets_BT))
    model.compile_blocks()
    with torch.autocast("cuda", dtype):
        value = model.loss(tokens_BT, targets_BT)
    got = gradients(model, value * 1024.0)
    for name, gradient in exact.items():
        assert (got[name] / 1024 - gradient).norm() < 0.03 * gradient.norm(), name


def test_the_modules_have_the_parameters_of_the_structure() -> None:
    for bias in (False, True):
        config = RunConfig(n_layer=2, n_head=2, n_embd=16, block_size=8, vocab_size=32, bias=bias)
        named = {name: tuple(parameter.shape) for name, parameter in GPT(config).named_parameters()}
        assert list(named.items()) == list(parameters_of(structure(config)).items())


def test_attention_holds_its_queries_keys_and_values_until_its_backward_pass() -> None:
    """As on paper, also where torch keeps padded copies of them."""
    qkv_NE = torch.randn(8, 3 * 10)
    kept = SeparateAttention(qkv_NE, batch=2, heads=2, trains=True)
    storage = weakref.ref(qkv_NE.untyped_storage())
    del qkv_NE
    assert storage() is not None
    kept.backward(torch.randn(8, 10))
    assert storage() is None
