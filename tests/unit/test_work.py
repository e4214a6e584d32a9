"""The work of operations on paper: FLOPs, bytes and launches by hand, and a model without a formula."""

from functools import partial

import pytest

from onecard.config.schema import RunConfig
from onecard.models.nanogpt import eager_run
from onecard.models.on_paper import weights_on_paper
from onecard.models.run_on_paper import PaperRun
from onecard.models.structure import Embedding, LayerNorm, Linear, Structure, head
from onecard.models.training import Steps
from onecard.paper.device import H200
from onecard.paper.library import FusedOptimizer, GradScaler
from onecard.paper.operations import PaperOperations
from onecard.paper.tags import ACTIVATIONS
from onecard.paper.tensor import Parameter, Tensor
from onecard.paper.work import ATTENTION_WORK, HEAD, MATMULS, MEMORY_BOUND, UPDATE, Ledger, Parts
from onecard.plan.cards import device_of, find_card
from onecard.plan.counts import count_params, flops_per_token
from onecard.plan.speed import predict_speed
from onecard.plan.speed.on_paper import (
    evaluation_batch_on_paper,
    micro_batch,
    nanogpts,
    ours,
    ours_eager,
    update_on_paper,
)
from onecard.plan.speed.onecard import onecard_step
from onecard.plan.speed.rates import H200_RATES, matmul_flops_per_second, work_seconds

CARD = find_card("H200")
DEVICE = device_of(CARD)
GPT2 = RunConfig(batch_size=8, gradient_accumulation_steps=1, dtype="bfloat16")
N, T, C, L, V = 8 * 1024, 1024, 768, 12, 50304


def on_paper() -> PaperOperations:
    return PaperOperations(DEVICE, half=True, deterministic=False)


@pytest.mark.parametrize("make", [ours, ours_eager, nanogpts])
def test_products_are_six_flops_a_parameter_and_token_and_causal_attention_half_its_pairs(make: object) -> None:
    parts = update_on_paper(make, GPT2, DEVICE)  # type: ignore[arg-type]
    matrices = 12 * L * C * C + V * C  # positions and norms multiply nothing
    assert parts[MATMULS].tensor_flops + parts[HEAD].tensor_flops == 6 * matrices * N
    # scores and values, again scores and four gradients: 7 products; a row sees half a tile of 128 too many
    assert parts[ATTENTION_WORK].tensor_flops == 7 * 2 * N * (T + 128) / 2 * C * L


def test_written_out_a_layer_has_sixteen_products_and_norms_and_gelu_move_64_bytes() -> None:
    one, two = (update_on_paper(ours, GPT2.replace({"n_layer": n_layer}), DEVICE) for n_layer in (1, 2))
    layer = {part: two[part] + one[part] * -1 for part in one}
    assert layer[MATMULS].products == 4 + 2 * 6  # a product each for queries, keys and values on the way back
    assert layer[ATTENTION_WORK].products == 4
    # norms: 2 × (4 forward + 8 back); GELU of 4 C: 16 + 24
    assert layer[MEMORY_BOUND].moved_bytes == (24 + 40) * N * C
    assert layer[MEMORY_BOUND].kernels == 8


def test_an_evaluation_batch_is_the_forward_pass() -> None:
    parts = evaluation_batch_on_paper(ours, GPT2, DEVICE)
    assert parts[MATMULS].tensor_flops == 2 * 12 * L * C * C * N
    assert parts[MEMORY_BOUND].moved_bytes == (8 + 16) * N * C * L + 4 * N * C  # and the last norm
    assert UPDATE not in parts


def test_an_update_clips_and_steps_over_all_parameters() -> None:
    total = count_params(GPT2).total
    assert update_on_paper(nanogpts, GPT2, DEVICE)[UPDATE].moved_bytes == (12 + 28) * total
    assert update_on_paper(nanogpts, GPT2.replace({"grad_clip": 0.0}), DEVICE)[UPDATE].moved_bytes == 28 * total


@pytest.mark.parametrize("keys", [{}, {"grad_checkpoint": "full"}, {"compile": False, "dropout": 0.1, "bias": True}])
def test_layers_that_are_alike_need_not_run(keys: dict[str, object]) -> None:
    config = GPT2.replace({"n_layer": 5, **keys})
    whole = PaperRun(config, DEVICE).work_of_update()
    known = update_on_paper(ours if config.compile else ours_eager, config, DEVICE)
    for part in (MATMULS, ATTENTION_WORK, MEMORY_BOUND, HEAD):
        assert known[part].moved_bytes == pytest.approx(whole[part].moved_bytes)
        assert known[part].launches == pytest.approx(whole[part].launches)
    assert eager_run(config, DEVICE).work_of_update()[MATMULS] == update_on_paper(nanogpts, config, DEVICE)[MATMULS]


def test_what_is_remembered_or_repeated_counts_as_often_as_it_would_run() -> None:
    ops = on_paper()

    def cast(x: Tensor) -> Tensor:
        return ops.cast(x, 2)

    x = ops.new((4, 8), 4, ACTIVATIONS)
    remembered = ops.remembered(cast)
    for _ in range(5):
        remembered(x)
    assert ops.work.taken()[MEMORY_BOUND].moved_bytes == 5 * 32 * (4 + 2)
    for _ in ops.repeated(range(100), enough=3):
        cast(x)
    assert ops.work.taken()[MEMORY_BOUND].kernels == 100


def test_a_product_moves_its_operands_and_its_result() -> None:
    work = Ledger()
    work.multiplies(MATMULS, (3, 5), 7, 2)
    found = work.taken()[MATMULS]
    assert (found.tensor_flops, found.moved_bytes, found.products) == (2 * 3 * 5 * 7, 2 * (15 + 35 + 21), 1)
    assert work.taken() == {}


WIDE = 512


def toy() -> Structure:
    """A model that nobody has written a formula for: a head of its own, and two layers before it."""
    return {
        "words": Embedding(1000, C),
        "norm": LayerNorm(C),
        "up": Linear(C, WIDE),
        "down": Linear(WIDE, C),
        "head": head(C, 1000),
    }


def work_of_toy() -> tuple[Parts, list[Parameter]]:
    ops = on_paper()
    p = weights_on_paper(toy(), ops)

    def loss(x_BT: Tensor, y_BT: Tensor) -> Tensor:
        x = ops.embedding(x_BT, p.words)
        x = x + ops.linear(ops.gelu(ops.linear(ops.layer_norm(x, p.norm), p.up)), p.down)
        return ops.cross_entropy(ops.linear(x, p.head), y_BT)

    steps = Steps(
        ops,
        GPT2,
        loss=loss,
        token_losses=loss,
        parameters=p.parameters,
        optimizer=FusedOptimizer(ops, p.parameters, [], 28 * sum(each.numel for each in p.parameters)),
        scaler=GradScaler(ops, enabled=False),
        passes=None,
        records=False,
    )
    ops.work.taken()
    steps.gradients(partial(ops.batch, 8, 1024), lambda _done, _total: None)
    steps.step(steps.ready_to_step())
    return ops.work.taken(), p.parameters


def test_a_new_model_has_a_speed_without_a_formula() -> None:
    parts, parameters = work_of_toy()
    assert parts[MATMULS].tensor_flops == 6 * 2 * C * WIDE * N
    assert parts[HEAD].tensor_flops == 6 * 1000 * C * N
    assert parts[UPDATE].moved_bytes == (12 + 28) * sum(parameter.numel for parameter in parameters)
    products = matmul_flops_per_second(CARD, H200_RATES, "bfloat16")
    seconds = work_seconds(micro_batch(parts, H200_RATES.costs).whole, CARD, H200_RATES, products)
    flops = parts[MATMULS].tensor_flops + parts[HEAD].tensor_flops
    assert flops / products < seconds < 10 * flops / products


@pytest.mark.parametrize("keys", [{}, {"compile": False}, {"grad_checkpoint": "full"}])
def test_nanochat_has_no_formula_and_a_speed_near_gpt2s(keys: dict[str, object]) -> None:
    gpt2, nanochat = (GPT2.replace({"model": name, **keys}) for name in ("gpt2", "nanochat"))
    for card in (CARD, find_card("RTX 4070")):
        new, known = (predict_speed(config, card, "onecard") for config in (nanochat, gpt2))
        assert new
        assert known
        assert 0.85 < new.tokens_per_second.likely / known.tokens_per_second.likely < 1.35
    run = onecard_step(nanochat, "bfloat16", H200_RATES.costs, H200).micro_batch
    products = 6 * (12 * L * C * C + V * C) * N
    if nanochat.grad_checkpoint == "none":
        assert run.matmuls.tensor_flops == products


def test_needed_flops_leave_out_what_is_only_looked_up() -> None:
    nanochat = GPT2.replace({"model": "nanochat"})
    assert flops_per_token(nanochat) == 6 * (12 * L * C * C + V * C) + 12 * L * C * T
