"""The work of a step of our own trainer: what differs from nanoGPT's, counted by hand."""

from dataclasses import replace

import pytest

from onecard.config.schema import RunConfig
from onecard.models.chunks import chunk_slices, default_chunk_tokens
from onecard.paper.work import Work
from onecard.plan.cards import device_of, find_card
from onecard.plan.counts import count_params
from onecard.plan.speed import predict_speed
from onecard.plan.speed.nanogpt import nanogpt_step
from onecard.plan.speed.onecard import checkpoints, evaluations, onecard_step
from onecard.plan.speed.rates import (
    ADA_GEFORCE_RATES,
    H200_RATES,
    OTHER_MAKERS_RATES,
    rates_by_figures,
)
from onecard.plan.speed.times import step_times
from onecard.plan.speed.work import StepWork, TrainerName

H200, RTX_4070 = find_card("H200"), find_card("RTX 4070")
GPT2 = RunConfig(batch_size=8, gradient_accumulation_steps=64, max_iters=12_000, eval_interval=500, dtype="bfloat16")
N, C, L, V = 8 * 1024, 768, 12, 50304
COMPILED: dict[str, object] = {"dropout": 0.1}  # and so not written out


def step_of(**keys: object) -> StepWork:
    return onecard_step(GPT2.replace(keys), "bfloat16", H200_RATES.costs, device_of(H200))


def test_a_recorded_micro_batch_is_started_as_one_and_sums_into_what_exists() -> None:
    step = step_of()
    assert step.recorded
    assert step.started(64) == 64 * 5
    assert step.sums(64) == 64
    assert step.added(64) == 0
    eager = step_of(compile=False)
    assert eager.started(2) == 2 * eager.micro_batch.whole.launches
    assert eager.sums(64) == 63
    assert eager.added(64) == 63 * (6 * L + 3)
    assert nanogpt_step(GPT2, "bfloat16", H200_RATES.costs, device_of(H200)).sums(64) == 63


def test_zeroing_recorded_gradients_writes_four_bytes_a_parameter_and_casting_matrices_moves_six() -> None:
    eager, compiled, fused = (
        step_of(**keys).update.moved_bytes for keys in (COMPILED | {"compile": False}, COMPILED, {})
    )
    assert compiled - eager == 4 * count_params(GPT2).total
    positions = GPT2.block_size * GPT2.n_embd  # added to x as they are
    assert fused - compiled == 6 * (count_params(GPT2).decayed - positions)


def test_where_nobody_has_timed_written_out_passes_they_count_as_compiled_blocks() -> None:
    for rates in (ADA_GEFORCE_RATES, rates_by_figures(find_card("RTX 3090")), OTHER_MAKERS_RATES):
        assert rates.costs.written_out_byte is None
    untimed = onecard_step(GPT2, "bfloat16", ADA_GEFORCE_RATES.costs, device_of(H200))
    assert untimed.accumulation.moved_bytes > 0
    assert untimed.micro_batch.memory_bound.moved_bytes > step_of().micro_batch.memory_bound.moved_bytes


def test_written_out_passes_add_to_gradients_in_their_products() -> None:
    assert step_of().accumulation == Work()
    assert step_of(**COMPILED).accumulation.moved_bytes > 0


def test_full_recomputation_repeats_all_of_a_block_but_its_last_product() -> None:
    plain, selective, full = (step_of(grad_checkpoint=mode).micro_batch for mode in ("none", "selective", "full"))
    assert selective.matmuls == plain.matmuls
    assert selective.attention == plain.attention
    # C -> 3C, C -> C and C -> 4C are 8 C² weights of 12, at two operations a token each
    assert full.matmuls.tensor_flops - plain.matmuls.tensor_flops == 2 * 8 * C * C * L * N
    assert full.matmuls.products - plain.matmuls.products == 3 * L
    assert full.attention.tensor_flops == pytest.approx(plain.attention.tensor_flops * 9 / 7)
    assert plain.memory_bound.moved_bytes < selective.memory_bound.moved_bytes < full.memory_bound.moved_bytes


def test_recomputation_costs_nothing_in_evaluation() -> None:
    assert step_of(grad_checkpoint="full").evaluation_batch == step_of().evaluation_batch


def test_every_chunk_of_the_loss_passes_over_the_heads_gradient() -> None:
    # by default 4,096 tokens a chunk: 400 MiB of logits in half precision are 4,168 tokens, in whole tiles of 128
    two, eight = step_of().micro_batch, step_of(loss_chunk=1024).micro_batch
    # the weight read twice in 2 bytes, the sum of its gradients read and written in 4
    assert eight.matmuls.moved_bytes - two.matmuls.moved_bytes == 6 * V * C * (2 * 2 + 2 * 4)
    assert eight.matmuls.products - two.matmuls.products == 6 * 3


@pytest.mark.parametrize(("batch_size", "chunk"), [(8, None), (1, 1), (3, 1000), (7, 1024), (5, 5121)])
def test_chunks_are_counted_as_the_trainer_cuts_them(batch_size: int, chunk: int | None) -> None:
    cut = len(chunk_slices(batch_size * 1024, chunk or default_chunk_tokens(V)))
    kernels = step_of(batch_size=batch_size, loss_chunk=chunk).evaluation_batch.loss.kernels
    assert kernels == cut


def test_logits_cross_the_bus_once_each_way_and_once_in_evaluation() -> None:
    training, evaluation = step_of().micro_batch.loss, step_of().evaluation_batch.loss
    assert evaluation.moved_bytes == 2 * N * V
    numbers = 100  # bytes, at most
    assert training.moved_bytes == pytest.approx(4 * N * V, abs=numbers)
    # zeros for the gradient of the head, which is scaled in the backward pass, as is that of the hidden states
    autograds = 4 * N * V + 12 * V * C + 4 * N * C
    assert step_of(**COMPILED).micro_batch.loss.moved_bytes == pytest.approx(autograds, abs=numbers)


def test_an_odd_vocabulary_is_slow_compiled_too_because_the_head_is_not() -> None:
    odd, padded = (step_of(vocab_size=size).micro_batch.matmuls.tensor_flops for size in (50257, 50264))
    assert odd > 1.2 * padded


def test_evaluations_read_as_many_sequences_whatever_their_batch() -> None:
    assert step_of().evaluation_batches == 2 * 200
    assert step_of(eval_batch_size=3).evaluation_batches == 2 * 534  # 1,600 sequences a split
    short = step_of(eval_block_size=256).evaluation_batch
    assert short.loss.moved_bytes == step_of().evaluation_batch.loss.moved_bytes / 4


@pytest.mark.parametrize(
    ("keys", "evaluated", "saved"),
    [
        ({}, 25, 24),
        ({"max_iters": 12_100}, 26, 25),  # and at the end
        ({"max_iters": 1000, "checkpoint_interval": 300}, 3, 5),  # 300, 500, 600, 900, 1000
        ({"max_iters": 0}, 1, 0),
        ({"eval_only": True}, 1, 0),
    ],
)
def test_evaluations_and_checkpoints_are_those_of_our_loop(keys: dict[str, object], evaluated: int, saved: int) -> None:
    config = GPT2.replace(keys)
    assert (evaluations(config), checkpoints(config)) == (evaluated, saved)


def test_a_small_micro_batch_does_not_wait_for_launches() -> None:
    small = GPT2.replace({"batch_size": 1})
    ours, nanogpts = predict_speed(small, H200, "onecard"), predict_speed(small, H200)
    assert ours
    assert nanogpts
    assert nanogpts.host_bound
    assert not ours.host_bound
    assert ours.tokens_per_second.likely > 1.5 * nanogpts.tokens_per_second.likely


@pytest.mark.parametrize(
    ("keys", "card", "spread", "said"),
    [
        ({}, H200, 0.15, "measured on this card"),
        ({"grad_checkpoint": "selective"}, H200, 0.15, "measured on this card"),
        ({"grad_checkpoint": "full"}, H200, 0.15, "measured on this card"),
        ({"compile": False}, H200, 0.15, "measured on this card"),
        ({}, RTX_4070, 0.20, "our trainer was not timed on this card"),
    ],
)
def test_what_nobody_timed_is_wider_and_says_so(
    keys: dict[str, object], card: object, spread: float, said: str
) -> None:
    speed = predict_speed(GPT2.replace({"batch_size": 16, **keys}), card, "onecard")  # type: ignore[arg-type]
    assert speed
    assert speed.spread == spread
    assert said in speed.basis


def test_the_power_limit_slows_what_fills_the_tensor_cores() -> None:
    power = H200_RATES.power
    assert power
    assert power.pace(0.2, "bfloat16") == 1.0
    assert power.pace(power.free_share, "float16") == 1.0
    assert power.pace(2 * power.free_share, "bfloat16") == pytest.approx(2**power.exponent)
    assert power.pace(0.6, "float16") > power.pace(0.6, "bfloat16") > power.pace(0.5, "bfloat16")


def test_it_costs_ours_more_than_nanogpt_and_a_wide_model_more_than_a_narrow_one() -> None:
    unlimited = replace(H200_RATES, power=None)

    def cost(config: RunConfig, trainer: TrainerName) -> float:
        limited, free = (step_times(config, H200, rates, trainer).step for rates in (H200_RATES, unlimited))
        return limited / free

    wide = GPT2.replace({"n_embd": 1536, "n_head": 24})
    narrow = GPT2.replace({"n_embd": 256, "n_head": 4})
    assert cost(GPT2, "onecard") > cost(GPT2, "nanogpt") > 1.0
    assert cost(wide, "onecard") > cost(GPT2, "onecard") > cost(narrow, "onecard") == 1.0


def test_of_other_kinds_of_cards_nobody_knows_it() -> None:
    others = (ADA_GEFORCE_RATES, rates_by_figures(find_card("RTX 3090")), OTHER_MAKERS_RATES)
    assert all(rates.power is None for rates in others)
