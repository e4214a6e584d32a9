"""Laws of memory: more never needs less, parts sum to the whole, and the allocator loses no byte."""

from __future__ import annotations

from itertools import pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from onecard.config.schema import RunConfig
from onecard.plan.memory.allocator import CachingAllocator, OutOfMemory, replay
from onecard.plan.memory.device import H200, Device
from onecard.plan.memory.nanogpt_eager import eager_tape
from onecard.plan.memory.tags import (
    LOGITS_AND_LOSS,
    OPTIMIZER_STATE,
    TAGS,
    TOKEN_IDS,
    WEIGHTS,
    WORKSPACE,
)
from onecard.plan.memory.tape import live_blocks, peaks

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
    lambda config, heads, head_size: config.replace({"n_head": heads, "n_embd": heads * head_size}),
    config=configs,
    heads=st.integers(1, 6),
    head_size=st.integers(1, 300),
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
@given(any_head_size, devices)
def test_the_parts_of_every_peak_sum_to_it_and_have_a_reason(config: RunConfig, device: Device) -> None:
    tape = eager_tape(config, device)
    for peak in peaks(tape).values():
        parts = peak.parts(tape)
        assert sum(parts.values()) == peak.allocated_bytes
        assert parts.keys() <= TAGS.keys()


@settings(max_examples=30)
@given(any_head_size, devices, st.booleans())
def test_reserved_is_at_least_allocated_is_at_least_requested(
    config: RunConfig, device: Device, expandable: bool
) -> None:
    tape = eager_tape(config, device)
    alone = peaks(tape)
    for name, phase in replay(tape, expandable_segments=expandable).phases.items():
        live = live_blocks(tape.events[: alone[name].event + 1])
        requested = sum(tape.sizes[block] for block in live)
        assert phase.reserved_bytes >= phase.allocated_bytes >= alone[name].allocated_bytes >= requested


@settings(max_examples=30)
@given(any_head_size, devices)
def test_between_steps_only_what_persists_is_left(config: RunConfig, device: Device) -> None:
    tape = eager_tape(config, device)
    left: dict[str, int] = {}
    for block in live_blocks(tape.events):
        left[tape.tags[block]] = left.get(tape.tags[block], 0) + 1
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
        except OutOfMemory:
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
