"""Pools of the caching allocator: what a CUDA graph or another stream allocates, and what is left of it."""

from __future__ import annotations

import pytest

from onecard.paper.tape import DEFAULT_POOL, EMPTY_CACHE, Tape
from onecard.plan.memory.allocator import CachingAllocator, LimitReached
from onecard.plan.memory.replay import replay

MIB = 2**20


@pytest.mark.parametrize("expandable", [False, True])
def test_a_pool_does_not_use_what_is_free_in_another(expandable: bool) -> None:
    allocator = CachingAllocator(expandable_segments=expandable)
    allocator.free(allocator.malloc(40 * MIB))
    allocator.obey("pool graph")
    allocator.malloc(40 * MIB)
    assert allocator.reserved_bytes == 80 * MIB
    allocator.obey(f"pool {DEFAULT_POOL}")
    allocator.malloc(40 * MIB)
    assert allocator.reserved_bytes == 80 * MIB


@pytest.mark.parametrize("expandable", [False, True])
def test_a_block_is_freed_into_the_pool_it_came_from(expandable: bool) -> None:
    allocator = CachingAllocator(expandable_segments=expandable)
    allocator.obey("pool graph")
    block = allocator.malloc(40 * MIB)
    allocator.obey(f"pool {DEFAULT_POOL}")
    allocator.free(block)
    allocator.malloc(40 * MIB)
    assert allocator.reserved_bytes == 80 * MIB


@pytest.mark.parametrize("expandable", [False, True])
def test_emptying_the_cache_gives_back_what_no_graph_holds(expandable: bool) -> None:
    allocator = CachingAllocator(expandable_segments=expandable)
    allocator.free(allocator.malloc(40 * MIB))
    for order in ("pool graph", "hold graph"):
        allocator.obey(order)
    allocator.free(allocator.malloc(60 * MIB))
    allocator.obey(EMPTY_CACHE)
    assert allocator.reserved_bytes == 60 * MIB
    allocator.obey("let go graph")
    allocator.obey(EMPTY_CACHE)
    assert allocator.reserved_bytes == 0
    assert allocator.peak_reserved_bytes == 100 * MIB


def test_pages_of_a_pool_that_hold_a_block_stay() -> None:
    allocator = CachingAllocator(expandable_segments=True)
    allocator.obey("pool graph")
    before, kept, after = (allocator.malloc(size * MIB) for size in (30, 32, 60))
    allocator.free(before)
    allocator.free(after)
    allocator.obey(EMPTY_CACHE)
    assert kept.allocated
    assert allocator.reserved_bytes == 60 * MIB  # three pages of 20 MiB: 30 to 62 of 122


def test_a_held_pool_gives_nothing_back_at_the_limit() -> None:
    tape = Tape()
    tape.phase("train")
    tape.free(tape.alloc(60 * MIB, "activations"))
    tape.order("pool graph")
    tape.alloc(60 * MIB, "activations")
    assert replay(tape, limit_bytes=100 * MIB).ok
    tape.orders.insert(0, (0, f"hold {DEFAULT_POOL}"))
    found = replay(tape, limit_bytes=100 * MIB)
    assert found.ran_out is not None
    assert found.ran_out.wanted_bytes == 60 * MIB


def test_an_unknown_order_is_a_mistake_of_ours() -> None:
    with pytest.raises(AssertionError, match="drop everything"):
        CachingAllocator().obey("drop everything")


def test_a_limit_holds_for_all_pools_together() -> None:
    allocator = CachingAllocator(limit_bytes=100 * MIB)
    allocator.malloc(60 * MIB)
    allocator.obey("pool graph")
    with pytest.raises(LimitReached):
        allocator.malloc(60 * MIB)
