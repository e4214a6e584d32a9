"""The written-out passes on a card: half precision, cuBLASLt's products, Triton's kernels, the same bits every time.

Run by hand with `pytest -m gpu tests/train/test_fused_on_a_card.py`; in plain torch: test_fused.py.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from onecard.config.schema import RunConfig  # noqa: E402
from onecard.data.dataset import Dataset, open_dataset  # noqa: E402
from onecard.train import nanochat_kernels, products  # noqa: E402
from onecard.train.model import GPT  # noqa: E402
from onecard.train.precision import choose_precision  # noqa: E402
from onecard.train.products import multiply  # noqa: E402
from onecard.train.recorded_micro_batch import zero_gradients  # noqa: E402
from onecard.train.trainer import Trainer  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA, found none"),
]

DEVICE = "cuda"
MODES = ("none", "selective", "full")
HALF = [torch.bfloat16, torch.float16]
BITS = [False, True]
EVEN = RunConfig(n_layer=2, n_head=4, n_embd=256, block_size=128, vocab_size=1000, loss_chunk=100)
ODD = EVEN.replace({"n_head": 5, "n_embd": 100, "vocab_size": 257})
CONFIGS = {
    "even": EVEN,
    "odd": ODD,
    "nanochat": EVEN.replace({"model": "nanochat"}),
    "nanochat-odd": ODD.replace({"model": "nanochat"}),
}
SCALE = 1024.0  # as GradScaler's: small gradients of float16 must not vanish


# Gradients


def made(config: RunConfig) -> GPT:
    """A model on the card, its norms not all one and nothing zero."""
    torch.manual_seed(1)
    model = GPT(config).to(DEVICE)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1 or not parameter.any():
                parameter += 0.1 * torch.randn_like(parameter)
    return model


def batch(config: RunConfig) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(3)
    tokens_BT, targets_BT = torch.randint(config.vocab_size, (2, 3, config.block_size), generator=generator).to(DEVICE)
    targets_BT[1, 5:9] = -1
    return tokens_BT, targets_BT


def autograds(model: GPT, value: Any) -> dict[str, Any]:
    names, parameters = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(value * SCALE, parameters), strict=True))


def written_out(model: GPT, dtype: Any, tokens_BT: Any, targets_BT: Any) -> tuple[Any, dict[str, Any]]:
    """The loss, and copies of the gradients, from zero on."""
    zero_gradients(model.parameters())
    scale = torch.tensor(SCALE, device=DEVICE)
    loss = model.passes(dtype).add_gradients(tokens_BT, targets_BT, scale=scale)
    return loss, {name: parameter.grad.clone() for name, parameter in model.named_parameters()}  # type: ignore[union-attr]


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_gradients_are_about_as_near_to_float32_as_autocasts(config: RunConfig, dtype: Any) -> None:
    model, (tokens_BT, targets_BT) = made(config), batch(config)
    true_loss = model.loss(tokens_BT, targets_BT)
    exact = autograds(model, true_loss)
    with torch.autocast(DEVICE, dtype):
        usual = autograds(model, model.loss(tokens_BT, targets_BT))

    def errors(found: dict[str, Any]) -> dict[str, float]:
        return {name: float((found[name] - exact[name]).norm() / exact[name].norm()) for name in exact}

    allowed = 1.5 * max(errors(usual).values()) + 0.002
    for mode in MODES:
        model.architecture.recompute = mode
        loss, found = written_out(model, dtype, tokens_BT, targets_BT)
        assert float(loss) == pytest.approx(float(true_loss.detach()), rel=2e-3)
        too_far = {name: error for name, error in errors(found).items() if not error <= allowed}
        assert not too_far, f"{mode}: more than {allowed:.4f}"


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_losses_of_tokens_are_those_of_autocast(config: RunConfig, dtype: Any) -> None:
    model, (tokens_BT, targets_BT) = made(config), batch(config)
    with torch.autocast(DEVICE, dtype):
        usual_BT = model.token_losses(tokens_BT, targets_BT)
    losses_BT = model.passes(dtype).token_losses(tokens_BT, targets_BT)
    torch.testing.assert_close(losses_BT, usual_BT, rtol=0.01, atol=0.02)
    assert float(losses_BT.mean()) == pytest.approx(float(usual_BT.mean()), rel=1e-3)
    assert (losses_BT[targets_BT == -1] == 0).all()


# Products


def randn(rows: int, columns: int, dtype: Any, *, transposed: bool = False) -> Any:
    """A random matrix whose rows lie together in memory, or its columns."""
    shape = (columns, rows) if transposed else (rows, columns)
    matrix = torch.randn(*shape, device=DEVICE).to(dtype)
    return matrix.t() if transposed else matrix


def check(out_MN: Any, a_MK: Any, b_KN: Any, *, added_MN: Any = None, factor: Any = None) -> None:
    """Multiply, and compare with float64, to the roundings of the product and of the result.

    cuBLASLt's kernels for an H200 round a product to half precision before they add to it, as torch does.
    """
    product_MN = a_MK.double() @ b_KN.double() * (1.0 if factor is None else factor.double())
    exact_MN = product_MN if added_MN is None else product_MN + added_MN.double()
    multiply(a_MK, b_KN, out_MN, added_MN=added_MN, factor=factor)
    allowed_MN = torch.finfo(out_MN.dtype).eps / 2 * (product_MN.abs() + exact_MN.abs()) + 1e-3
    too_far_MN = (out_MN.double() - exact_MN).abs() - allowed_MN
    assert float(too_far_MN.max()) <= 0


@pytest.mark.parametrize("out_is_wide", BITS)
@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize(("M", "N", "K"), [(256, 192, 128), (37, 53, 29)])
def test_products_are_those_of_float64(M: int, N: int, K: int, dtype: Any, out_is_wide: bool) -> None:
    out_dtype = torch.float32 if out_is_wide else dtype
    factor = torch.tensor(0.37, device=DEVICE)
    for a_turned, b_turned, scales in itertools.product(BITS, repeat=3):
        a_MK, b_KN = randn(M, K, dtype, transposed=a_turned), randn(K, N, dtype, transposed=b_turned)
        for adds in ("nothing", "another", "itself"):
            out_MN = randn(M, N, out_dtype)
            added_MN = {"nothing": None, "another": randn(M, N, out_dtype), "itself": out_MN}[adds]
            check(out_MN, a_MK, b_KN, added_MN=added_MN, factor=factor if scales else None)


@pytest.mark.parametrize("dtype", HALF, ids=str)
def test_products_of_slices_that_begin_anywhere(dtype: Any) -> None:
    M, N, K = 40, 24, 33
    whole = randn(1, 4000, dtype).flatten()
    matrix, sums = randn(100, 101, dtype), randn(M + 2, N + 1, torch.float32)
    for start in (1, 2, 3, 8):
        a_MK = whole[start : start + M * K].view(M, K)
        b_KN = matrix[start : start + K, start : start + N]
        check(randn(M, N, dtype), a_MK, b_KN)
        check(randn(M, N, torch.float32), a_MK, matrix[start : start + N, start : start + K].t())
    rows = sums.flatten()[N + 1 : N + 1 + M * N].view(M, N)
    before = sums.clone()
    check(rows, a_MK, b_KN, added_MN=rows)
    after, before = sums.flatten(), before.flatten()
    assert torch.equal(after[: N + 1], before[: N + 1]), "nothing is written beside it"
    assert torch.equal(after[N + 1 + M * N :], before[N + 1 + M * N :])


@pytest.fixture
def no_kernel_known() -> Iterator[None]:
    """As in a new process: every kind of product has its kernel still to be chosen."""
    products._product.cache_clear()
    yield
    products._product.cache_clear()


@pytest.mark.usefixtures("no_kernel_known")
@pytest.mark.parametrize("scales", BITS)
def test_timing_the_kernels_leaves_a_sum_as_it_is(scales: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    timed = []
    milliseconds = products._Product._milliseconds

    def counted(*arguments: Any) -> float:
        timed.append(milliseconds(*arguments))
        return timed[-1]

    monkeypatch.setattr(products._Product, "_milliseconds", counted)
    factor = torch.tensor(0.5, device=DEVICE) if scales else None
    a_MK, b_KN = randn(128, 256, torch.bfloat16, transposed=True), randn(256, 192, torch.bfloat16)
    before_MN = randn(128, 192, torch.float32)
    first_MN, second_MN = before_MN.clone(), before_MN.clone()
    check(first_MN, a_MK, b_KN, added_MN=first_MN, factor=factor)
    chosen_from = len(timed)
    assert chosen_from >= 1, "or this test shows nothing"
    check(second_MN, a_MK, b_KN, added_MN=second_MN, factor=factor)
    assert len(timed) == chosen_from, "timed once for all"
    assert torch.equal(first_MN, second_MN)


# The same bits


@pytest.fixture
def deterministic(no_kernel_known: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("architecture", ["gpt2", "nanochat"])
def test_a_deterministic_update_has_the_same_bits_again(
    mode: Any, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products._Product, "_milliseconds", lambda *_: pytest.fail("times differ from run to run"))
    model, (tokens_BT, targets_BT) = made(EVEN.replace({"grad_checkpoint": mode, "model": architecture})), batch(EVEN)
    tokens_BT %= 4  # each has a hundred rows that add to its gradient
    first_loss, first = written_out(model, torch.bfloat16, tokens_BT, targets_BT)
    for _ in range(3):
        loss, again = written_out(model, torch.bfloat16, tokens_BT, targets_BT)
        assert torch.equal(loss, first_loss)
        assert not [name for name in first if not torch.equal(first[name], again[name])]


# In the trainer


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("data")
    tokens = array("H", (index % 100 for index in range(20_000)))
    for name in ("train.bin", "val.bin"):
        (folder / name).write_bytes(tokens.tobytes())
    return open_dataset(str(folder), environ={})


def trainer_of(dataset: Dataset, **keys: Any) -> Trainer:
    run = {"batch_size": 4, "gradient_accumulation_steps": 2, "warmup_iters": 0}
    config = EVEN.replace({**run, **keys})
    device = torch.device(DEVICE, 0)
    return Trainer(config, dataset, device, choose_precision(config, device))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_trainer_uses_them_by_default(dataset: Dataset, dtype: str) -> None:
    assert trainer_of(dataset, dtype=dtype).steps.passes is not None


@pytest.mark.parametrize(
    "keys",
    [{"bias": True}, {"dropout": 0.1}, {"dtype": "float32"}, {"compile": False}],
    ids=lambda keys: next(iter(keys)),
)
def test_the_trainer_uses_the_model_where_they_do_not_fit(dataset: Dataset, keys: dict[str, Any]) -> None:
    assert trainer_of(dataset, **{"dtype": "bfloat16", **keys}).steps.passes is None


@pytest.mark.parametrize("architecture", ["gpt2", "nanochat"])
def test_updates_are_recorded_and_are_those_of_float32(dataset: Dataset, architecture: str) -> None:
    found = []
    for keys in ({"dtype": "bfloat16"}, {"dtype": "float32", "compile": False}):
        trainer = trainer_of(dataset, model=architecture, **keys)
        updates = [trainer.update(lambda shrunk: pytest.fail(str(shrunk))) for _ in range(4)]
        assert trainer.steps.graph_failure is None
        assert (trainer.steps.recorded is not None) == (trainer.steps.passes is not None)
        with trainer.evaluating() as sequence_losses:
            loss = float(sequence_losses(*batch(EVEN)).mean())
        trainer.close()
        found.append([*(update.loss for update in updates), loss])
    ours, exact = found
    assert ours[0] == pytest.approx(exact[0], rel=2e-3), "the same weights and data"
    assert ours == pytest.approx(exact, rel=0.02), "roundings grow from step to step"
    assert ours[3] < ours[0] - {"gpt2": 0.5, "nanochat": 0.3}[architecture], "it learns"


# nanochat's kernels beside plain torch


@pytest.mark.parametrize("dtype", [*HALF, torch.float32], ids=str)
@pytest.mark.parametrize(("heads", "half", "batch_size"), [(12, 32, 3), (5, 7, 2), (1, 128, 1)])
def test_nanochats_kernels_do_what_plain_torch_does(heads: int, half: int, batch_size: int, dtype: Any) -> None:
    generator = torch.Generator().manual_seed(2)
    C, N, V = 2 * half * heads, batch_size * 37, 50
    tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype != torch.float32 else {"rtol": 1e-4, "atol": 1e-4}

    def drawn(*shape: int, dtype: Any = dtype) -> Any:
        return torch.randn(*shape, generator=generator).to(dtype)

    x_NC, d_NC, bypass_NC, qkv_NE = drawn(N, C), drawn(N, C), drawn(N, C), drawn(N, 3 * C)
    weight_VC = drawn(V, C, dtype=torch.float32)
    tokens_BT = torch.randint(V, (batch_size, 37), generator=generator)

    def everything(device: str) -> dict[str, Any]:
        def here(x: Any) -> Any:
            return x.to(device, copy=True)

        normed_NC, scale_N = nanochat_kernels.rms_normed(here(x_NC))
        added_NC = nanochat_kernels.rms_norm_backward(here(d_NC), normed_NC, scale_N, d_x_NC=here(bypass_NC))
        factor = torch.tensor(0.3, device=device)
        alone_NC = nanochat_kernels.rms_norm_backward(here(d_NC), normed_NC, scale_N, d_x_NC=None, factor=factor)
        turned_NE, d_qk = here(qkv_NE), [here(d_NC), here(bypass_NC)]
        scale_NG = nanochat_kernels.rotate(turned_NE, batch=batch_size, heads=heads)
        nanochat_kernels.rotate_backward(d_qk, turned_NE, scale_NG, batch=batch_size, heads=heads)
        squared_NC, d_squared_NC = here(x_NC), here(d_NC)
        nanochat_kernels.square_relu(squared_NC)
        nanochat_kernels.square_relu_backward(d_squared_NC, squared_NC)
        rows_NC = nanochat_kernels.normed_rows(here(tokens_BT), here(weight_VC), dtype)
        d_weight_VC = torch.ones(V, C, device=device)
        nanochat_kernels.normed_rows_backward(here(d_NC), here(tokens_BT), here(weight_VC), d_weight_VC)
        found = dict(locals())
        return {name: found[name] for name in found if isinstance(found[name], torch.Tensor)} | {
            "q": d_qk[0],
            "k": d_qk[1],
        }

    on_card, plain = everything(DEVICE), everything("cpu")
    for name, expected in plain.items():
        torch.testing.assert_close(
            on_card[name].cpu(), expected, **tolerance, msg=lambda text, name=name: f"{name}: {text}"
        )
