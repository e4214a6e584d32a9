"""Laws of our own trainer's memory: evaluation stays below training, recomputation saves, parts sum, nothing leaks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onecard.config.schema import RunConfig
from onecard.models.evaluation import eval_batch_size
from onecard.models.ways import fuses
from onecard.paper.device import H200, Device
from onecard.paper.tags import GRADIENTS, LOGITS_AND_LOSS, OPTIMIZER_STATE, WEIGHT_CASTS, WEIGHTS, WORKSPACE
from onecard.paper.tape import live_blocks, parts_at, peaks
from onecard.plan.cards import find_card
from onecard.plan.memory.onecard.tape import onecard_tape
from onecard.plan.memory.predict import PHASES, PROCESS, predict_onecard
from onecard.plan.memory.replay import replay

DEVICES = st.sampled_from(
    [H200, Device(capability=(8, 9), multiprocessors=46), Device(capability=(7, 5), multiprocessors=46)]
)
CARD = find_card("RTX 4070")

configs = st.builds(
    lambda heads, head_size, **keys: RunConfig().replace({"n_head": heads, "n_embd": heads * head_size, **keys}),
    heads=st.integers(1, 12),
    head_size=st.sampled_from([8, 20, 24, 32, 64, 80, 128]),
    n_layer=st.integers(1, 4),
    batch_size=st.integers(1, 32),
    block_size=st.integers(1, 1100),
    vocab_size=st.integers(2, 60_000),
    gradient_accumulation_steps=st.integers(1, 4),
    dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
    dropout=st.sampled_from([0.0, 0.2]),
    bias=st.booleans(),
    compile=st.booleans(),
    grad_checkpoint=st.sampled_from(["none", "selective", "full"]),
    loss_chunk=st.sampled_from([None, 128, 1000]),
    eval_iters=st.sampled_from([1, 3, 200]),
    grad_clip=st.sampled_from([0.0, 1.0]),
    sample_interval=st.sampled_from([0, 1]),
)


@settings(max_examples=150)
@given(configs, DEVICES)
def test_an_evaluation_with_the_default_batch_allocates_less_than_training(config: RunConfig, device: Device) -> None:
    assert eval_batch_size(config) == config.batch_size
    most = peaks(onecard_tape(config, device))
    assert most["eval0"].allocated_bytes < most["train"].allocated_bytes
    assert most["eval"].allocated_bytes < most["train"].allocated_bytes


def test_an_evaluation_with_a_large_batch_of_its_own_can_allocate_more_than_training() -> None:
    most = peaks(onecard_tape(RunConfig().replace({"batch_size": 1, "eval_batch_size": 256, "n_layer": 2}), H200))
    assert most["eval"].allocated_bytes > most["train"].allocated_bytes


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("is_compiled", [False, True], ids=["eager", "compiled"])
def test_the_more_is_recomputed_the_less_is_allocated(dtype: str, is_compiled: bool) -> None:
    config = RunConfig().replace({"n_layer": 6, "dtype": dtype, "compile": is_compiled, "loss_chunk": 1024})
    modes = [config.replace({"grad_checkpoint": mode}) for mode in ("none", "selective", "full")]
    none, selective, full = (peaks(onecard_tape(mode, H200))["train"].allocated_bytes for mode in modes)
    assert full < selective < none


@settings(max_examples=30)
@given(configs, DEVICES)
def test_what_is_left_at_the_end_is_weights_state_and_workspaces(config: RunConfig, device: Device) -> None:
    tape = onecard_tape(config, device)
    left = {tape.tags[block] for block in live_blocks(tape.events)}
    casts = {WEIGHT_CASTS} if fuses(config) else set()  # written-out passes keep theirs
    assert left <= {WEIGHTS, OPTIMIZER_STATE, WORKSPACE, LOGITS_AND_LOSS} | casts
    loss = [block for block in live_blocks(tape.events) if tape.tags[block] == LOGITS_AND_LOSS]
    assert len(loss) == 1  # the update's own, one number


@settings(max_examples=20)
@given(configs, DEVICES, st.booleans())
def test_the_allocator_reserves_at_least_what_is_allocated_in_every_phase(
    config: RunConfig, device: Device, expandable: bool
) -> None:
    found = replay(onecard_tape(config, device), expandable_segments=expandable)
    assert list(found.phases) == ["init", *PHASES]
    for phase in found.phases.values():
        assert phase.reserved_bytes >= phase.allocated_bytes


@settings(max_examples=20)
@given(configs)
def test_parts_sum_to_the_phase_and_to_the_process(config: RunConfig) -> None:
    memory = predict_onecard(config, CARD)
    for name, phase in memory.phases.items():
        assert sum(part.size_bytes for part in memory.parts_of(name)) == phase.allocated_bytes
    beyond = sum(part.size_bytes for part in memory.parts_of(PROCESS))
    assert memory.peak_phase.allocated_bytes + beyond == memory.process_bytes
    assert all(part.why for part in memory.parts)


@settings(max_examples=15)
@given(configs)
def test_there_are_no_gradients_in_an_evaluation(config: RunConfig) -> None:
    tape = onecard_tape(config, H200)
    for phase in ("eval0", "eval"):
        start = max(at for at, name in tape.phases if name == phase)
        # the first batch of ids comes after what a recorded micro-batch held has gone
        first = next(at for at in range(start, len(tape.events)) if tape.events[at] >= 0)
        assert GRADIENTS not in parts_at(tape, first)


def test_the_second_recording_has_the_workspace_that_the_first_made_last() -> None:
    config = RunConfig().replace({"n_layer": 2, "dtype": "bfloat16", "compile": True, "bias": True})
    once, twice = (peaks(onecard_tape(config, H200, rounds=rounds))["train"] for rounds in (1, 2))
    assert twice.allocated_bytes - once.allocated_bytes == H200.cublas_workspace_bytes
    thrice = peaks(onecard_tape(config, H200, rounds=3))["train"]
    assert thrice.allocated_bytes == twice.allocated_bytes


@settings(max_examples=20)
@given(configs, st.floats(0.3, 1.1))
def test_a_run_that_does_not_fit_says_where_it_runs_out(config: RunConfig, share: float) -> None:
    needed = predict_onecard(config, CARD).process_bytes
    memory = predict_onecard(config, CARD, available_bytes=int(needed * share))
    assert memory.fits is (memory.ran_out is None)
    if share >= 1:
        assert memory.fits
    if memory.fits:
        assert memory.process_bytes <= max(needed, int(needed * share))


def test_the_limit_at_which_a_run_fits_is_its_predicted_process() -> None:
    config = RunConfig().replace({"n_layer": 2, "batch_size": 4})
    needed = predict_onecard(config, CARD).process_bytes
    assert predict_onecard(config, CARD, available_bytes=needed).fits
    short = predict_onecard(config, CARD, available_bytes=needed // 2)
    assert short.fits is False
    assert short.ran_out is not None
