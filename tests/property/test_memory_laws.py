"""Laws of memory: more never needs less, parts sum to the whole, and the allocator loses no byte."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onecard.config.schema import RunConfig
from onecard.models.nanogpt import eager_tape
from onecard.paper.device import H200, Device
from onecard.paper.tags import (
    GRADIENTS,
    LOGITS_AND_LOSS,
    OPTIMIZER_STATE,
    OPTIMIZER_TEMPORARIES,
    TAGS,
    TOKEN_IDS,
    WEIGHTS,
    WORKSPACE,
)
from onecard.paper.tape import changes, live_blocks, parts_at, peaks
from onecard.plan.cards import Card, find_card
from onecard.plan.memory.allocator import CachingAllocator, LimitReached
from onecard.plan.memory.nanogpt.compiled.tape import compiled_tape
from onecard.plan.memory.predict import PHASES, PROCESS, nanogpt_tape, predict_nanogpt
from onecard.plan.memory.replay import replay

RTX_4070 = Device(capability=(8, 9), multiprocessors=46)
RTX_2080 = Device(capability=(7, 5), multiprocessors=46)

configs = st.builds(
    lambda heads, head_size, **keys: RunConfig().replace({"n_head": heads, "n_embd": heads * head_size, **keys}),
    heads=st.integers(1, 8),
    head_size=st.sampled_from([8, 24, 32, 64, 80, 128]),
    n_layer=st.integers(1, 3),
    batch_size=st.integers(1, 20),
    block_size=st.integers(1, 1100),
    vocab_size=st.integers(2, 60_000),
    gradient_accumulation_steps=st.integers(1, 4),
    dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
    dropout=st.sampled_from([0.0, 0.2]),
    bias=st.booleans(),
)
any_head_size = st.builds(
    lambda config, heads, head_size, **keys: config.replace({"n_head": heads, "n_embd": heads * head_size, **keys}),
    config=configs,
    heads=st.integers(1, 6),
    head_size=st.integers(1, 300),
    compile=st.booleans(),
)
devices = st.sampled_from([H200, RTX_4070, RTX_2080])


@settings(max_examples=40)
@given(configs, st.sampled_from(["n_layer", "batch_size", "vocab_size", "n_embd"]))
def test_more_layers_batch_width_or_vocabulary_never_need_less(config: RunConfig, key: str) -> None:
    # two passes over a bias gradient take scratch that depends on the shape in steps, up and down: no bias here
    config = config.replace({"bias": False})
    more = config.replace({key: getattr(config, key) + (8 * config.n_head if key == "n_embd" else 1)})
    less_peaks, more_peaks = peaks(eager_tape(config, H200)), peaks(eager_tape(more, H200))
    for phase in ("init", "eval0", "train", "eval"):
        assert more_peaks[phase].allocated_bytes >= less_peaks[phase].allocated_bytes


@settings(max_examples=30)
@given(configs)
def test_returning_only_the_loss_never_needs_more(config: RunConfig) -> None:
    both, loss_only = (compiled_tape(config, H200, cold=False, returns_logits=returns) for returns in (True, False))
    assert peaks(loss_only)["train"].allocated_bytes <= peaks(both)["train"].allocated_bytes


@settings(max_examples=30)
@given(any_head_size, devices)
def test_the_parts_of_every_peak_sum_to_it_and_have_a_reason(config: RunConfig, device: Device) -> None:
    tape = nanogpt_tape(config, device)
    for peak in peaks(tape).values():
        parts = peak.parts(tape)
        assert sum(parts.values()) == peak.allocated_bytes
        assert parts.keys() <= TAGS.keys()


@settings(max_examples=15)
@given(any_head_size, devices)
def test_parts_grow_and_shrink_to_what_they_are_at_every_peak(config: RunConfig, device: Device) -> None:
    tape = nanogpt_tape(config, device)
    wanted = {peak.event for peak in peaks(tape).values()} | {len(tape.events) - 1}
    parts: Counter[str] = Counter()
    previous = 0
    for event, tag, size in changes(tape):
        if event != previous and previous in wanted:
            assert +parts == parts_at(tape, previous)
        parts[tag] += size
        previous = event
    assert +parts == parts_at(tape, previous)


@settings(max_examples=20)
@given(any_head_size, devices)
def test_gradients_are_never_more_than_one_of_each_parameter(config: RunConfig, device: Device) -> None:
    # what is not yet added to them is in flight, however often its memory is used again
    tape = nanogpt_tape(config, device)
    weights = parts_at(tape, tape.phases[1][0] - 1)[WEIGHTS]
    most = now = 0
    for _, tag, size in changes(tape):
        now += size if tag == GRADIENTS else 0
        most = max(most, now)
    padding = 8 * config.n_embd * 4  # Inductor returns the rows of a padded vocabulary as well
    assert weights <= most <= weights + padding


@settings(max_examples=30)
@given(any_head_size, devices, st.booleans())
def test_reserved_is_at_least_allocated_is_at_least_requested(
    config: RunConfig, device: Device, expandable: bool
) -> None:
    tape = nanogpt_tape(config, device)
    alone = peaks(tape)
    for name, phase in replay(tape, expandable_segments=expandable).phases.items():
        live = live_blocks(tape.events[: alone[name].event + 1])
        requested = sum(tape.sizes[block] for block in live)
        assert phase.reserved_bytes >= phase.allocated_bytes >= alone[name].allocated_bytes >= requested


@settings(max_examples=30)
@given(any_head_size, devices)
def test_between_steps_only_what_persists_is_left(config: RunConfig, device: Device) -> None:
    tape = nanogpt_tape(config, device)
    now = dict(enumerate(tape.tags)) | {block: tag for _, block, tag in tape.retags}
    left = Counter(now[block] for block in live_blocks(tape.events))
    # logits and loss of the last micro-step, and the batch fetched for the next
    assert left.keys() == {WEIGHTS, OPTIMIZER_STATE, WORKSPACE, TOKEN_IDS, LOGITS_AND_LOSS}
    assert left[TOKEN_IDS] == left[LOGITS_AND_LOSS] == 2
    scaler = 2 if config.dtype == "float16" else 0
    assert left[OPTIMIZER_STATE] == 3 * left[WEIGHTS] + scaler


@settings(max_examples=30)
@given(any_head_size, devices)
def test_a_second_evaluation_allocates_and_frees_the_same_as_the_first(config: RunConfig, device: Device) -> None:
    tape = eager_tape(config, device)
    starts = {name: start for start, name in tape.phases}
    workspaces = {block for block in live_blocks(tape.events) if tape.tags[block] == WORKSPACE}
    stretches = tape.events[starts["eval0"] : starts["train"]], tape.events[starts["eval"] :]
    first, second = (
        [(event >= 0, tape.sizes[event if event >= 0 else ~event]) for event in events if event not in workspaces]
        for events in stretches
    )
    assert first == second


CARDS = [
    None,
    *map(find_card, "RTX 4070/T4/V100 SXM2 32GB/TITAN Xp/RTX 3060/H100 SXM5 80 GB/RTX 5090/RX 7900 XTX".split("/")),
]
extremes = st.builds(
    lambda heads, head_size, **keys: RunConfig().replace({"n_head": heads, "n_embd": heads * head_size, **keys}),
    heads=st.sampled_from([1, 2, 5]),
    head_size=st.sampled_from([1, 3, 8, 20, 36, 42, 64, 80, 96, 128, 160, 256, 512]),
    n_layer=st.sampled_from([1, 2]),
    batch_size=st.sampled_from([1, 2, 3, 8]),
    block_size=st.sampled_from([1, 2, 17, 1000]),
    vocab_size=st.sampled_from([1, 2, 7, 65, 256, 50_257, 100_277]),
    gradient_accumulation_steps=st.integers(1, 4),
    dtype=st.sampled_from(["auto", "float32", "float16", "bfloat16"]),
    dropout=st.sampled_from([0.0, 0.1]),
    bias=st.booleans(),
    compile=st.booleans(),
    grad_clip=st.sampled_from([0.0, 1.0]),
    eval_iters=st.sampled_from([1, 2, 200]),
)


@settings(max_examples=150, deadline=None)
@given(extremes, st.sampled_from(CARDS), st.sampled_from([None, 0, 2**30, 10 * 2**30]), st.booleans(), st.booleans())
def test_every_config_has_a_prediction_whose_parts_add_up(
    config: RunConfig, card: Card | None, available_bytes: int | None, expandable: bool, returns_logits: bool
) -> None:
    memory = predict_nanogpt(
        config,
        card,
        available_bytes=available_bytes,
        expandable_segments=expandable,
        returns_logits=returns_logits,
    )
    for name in PHASES:
        phase = memory.phases[name]
        assert 0 < phase.allocated_bytes <= phase.reserved_bytes
        assert sum(part.size_bytes for part in memory.parts_of(name)) == phase.allocated_bytes
        assert phase.moment
    rest = sum(part.size_bytes for part in memory.parts_of(PROCESS))
    assert memory.peak_phase.allocated_bytes + rest == memory.process_bytes
    assert all(part.size_bytes >= 0 and part.why for part in memory.parts)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"n_embd": 60, "n_head": 1}, "n_embd = 60 is not a multiple of 8"),
        ({"batch_size": 1, "block_size": 17}, "batch_size x block_size = 17 is not a multiple of 8"),
        ({"vocab_size": 50_257}, "changes copies of 1,178 MiB"),
        ({"vocab_size": 65, "dtype": "float32"}, "copies of 3 MiB and how long 36 MiB of the last norm's result are"),
        ({"dtype": "float32", "n_embd": 762, "n_head": 6, "batch_size": 1}, "scores take 24.0 MiB per layer"),
    ],
)
def test_what_the_compiler_may_do_otherwise_is_said(keys: dict[str, object], words: str) -> None:
    config = RunConfig().replace({"n_layer": 1, "dtype": "bfloat16", **keys})
    assert words in " ".join(predict_nanogpt(config, None).assumptions)
    assert words not in " ".join(predict_nanogpt(config.replace({"compile": False}), None).assumptions)


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_clipping_and_few_evaluations_are_read_from_the_config(compiled: bool) -> None:
    config = RunConfig().replace({"n_layer": 2, "dtype": "float16", "compile": compiled})

    def shape(**keys: object) -> tuple[int, set[str]]:
        tape = nanogpt_tape(config.replace(keys), H200)
        starts = {name: start for start, name in tape.phases}
        batches = [block for block in tape.events[starts["eval"] :] if block >= 0 and tape.tags[block] == TOKEN_IDS]
        sizes = [tape.sizes[block] for block in batches]
        norms = [tag for tag, size in zip(tape.tags, tape.sizes, strict=True) if size == stacked_norms]
        return sizes.count(config.batch_size * config.block_size * 8), set(norms)

    stacked_norms = 4 * len([tag for tag in nanogpt_tape(config, H200).tags if tag == WEIGHTS])
    assert shape() == (12, {OPTIMIZER_TEMPORARIES})
    assert shape(eval_iters=1)[0] == 4  # X and Y for each of two splits
    assert shape(grad_clip=0.0)[1] == set()


sizes = st.one_of(st.integers(1, 4096), st.integers(1, 3 * 2**20), st.integers(1, 60 * 2**20), st.integers(1, 2**30))


@settings(max_examples=60)
@given(st.lists(st.tuples(sizes, st.integers(0, 9)), max_size=60), st.booleans(), st.booleans())
def test_random_programs_never_make_the_allocator_lose_bytes(
    program: list[tuple[int, int]], expandable: bool, limited: bool
) -> None:
    """Each step allocates a size, then frees one of the live blocks for choices from 4 up."""
    allocator = CachingAllocator(expandable_segments=expandable, limit_bytes=2**31 if limited else None)
    live = []
    for size, choice in program:
        try:
            live.append(allocator.malloc(size))
        except LimitReached:
            assert limited
        if choice >= 4 and live:
            allocator.free(live.pop(size % len(live)))
        in_use = sorted((block.address, block.size) for block in live)
        assert all(start + length <= following for (start, length), (following, _) in pairwise(in_use))
        assert allocator.allocated_bytes == sum(length for _, length in in_use)
        free = [block for pool in (allocator.small, allocator.large) for block in pool.blocks.values()]
        assert allocator.reserved_bytes == allocator.allocated_bytes + sum(block.size for block in free)
    for block in live:
        allocator.free(block)
    assert allocator.allocated_bytes == 0


@settings(max_examples=60)
@given(st.lists(sizes, max_size=40), st.randoms(use_true_random=False))
def test_freeing_all_leaves_every_segment_whole(program: list[int], random: Random) -> None:
    allocator = CachingAllocator()
    blocks = [allocator.malloc(size) for size in program]
    random.shuffle(blocks)
    for block in blocks:
        allocator.free(block)
    free = [block.size for pool in (allocator.small, allocator.large) for block in pool.blocks.values()]
    assert sorted(free) == sorted(allocator.requests)
