"""The caching allocator, case by case, worked out by hand from CUDACachingAllocator's rules."""

from __future__ import annotations

import pytest

from onecard.paper.tape import Tape, changes, parts_at, peaks, rounded
from onecard.plan.memory.allocator import CachingAllocator, LimitReached, segment_bytes
from onecard.plan.memory.replay import replay

KIB, MIB = 2**10, 2**20


@pytest.mark.parametrize(("asked", "given"), [(1, 512), (512, 512), (513, 1024), (MIB, MIB), (MIB + 1, MIB + 512)])
def test_requests_are_rounded_up_to_512_bytes(asked: int, given: int) -> None:
    assert rounded(asked) == given
    allocator = CachingAllocator()
    allocator.malloc(asked)
    assert allocator.allocated_bytes == given


@pytest.mark.parametrize(
    ("asked", "segment"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB),
        (33 * MIB, 34 * MIB),
    ],
)
def test_new_segments_are_2_mib_or_20_mib_or_a_multiple_of_2_mib(asked: int, segment: int) -> None:
    assert segment_bytes(asked) == segment
    allocator = CachingAllocator()
    allocator.malloc(asked)
    assert allocator.requests == [segment]


def test_a_small_block_is_split_and_the_rest_is_used_again() -> None:
    allocator = CachingAllocator()
    allocator.malloc(512 * KIB)
    allocator.malloc(MIB)
    allocator.malloc(512 * KIB)
    assert allocator.requests == [2 * MIB]
    allocator.malloc(512)
    assert allocator.requests == [2 * MIB, 2 * MIB]


def test_a_large_block_is_split_only_if_more_than_1_mib_is_left() -> None:
    allocator = CachingAllocator()
    whole = allocator.malloc(20 * MIB)
    allocator.free(whole)
    allocator.malloc(19 * MIB)  # 1 MiB would be left: not worth a block, so all 20 MiB count as allocated
    assert allocator.allocated_bytes == 20 * MIB

    allocator = CachingAllocator()
    whole = allocator.malloc(20 * MIB)
    allocator.free(whole)
    allocator.malloc(19 * MIB - 512)
    assert allocator.allocated_bytes == 19 * MIB - 512


def test_the_smallest_block_that_fits_is_taken() -> None:
    allocator = CachingAllocator()
    large, fitting = allocator.malloc(40 * MIB), allocator.malloc(30 * MIB)
    allocator.free(large)
    allocator.free(fitting)
    assert allocator.malloc(29 * MIB).address == fitting.address


def test_of_equal_blocks_the_one_at_the_lowest_address_is_taken() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.malloc(600 * MIB) for _ in range(3)]  # each opens a new range below the last
    addresses = [block.address for block in blocks]
    assert addresses == sorted(addresses, reverse=True)
    for block in blocks:
        allocator.free(block)
    assert allocator.malloc(600 * MIB).address == addresses[2]


def test_freed_neighbours_merge_into_one_block() -> None:
    allocator = CachingAllocator()
    blocks = [allocator.malloc(5 * MIB) for _ in range(4)]
    assert allocator.requests == [20 * MIB]
    for index in (0, 2, 1, 3):  # with a neighbour on neither side, one side, both sides
        allocator.free(blocks[index])
    assert allocator.malloc(20 * MIB).size == 20 * MIB
    assert allocator.requests == [20 * MIB]


def test_small_and_large_requests_never_share_a_segment() -> None:
    allocator = CachingAllocator()
    allocator.free(allocator.malloc(30 * MIB))
    allocator.malloc(512)
    assert allocator.requests == [30 * MIB, 2 * MIB]


def test_at_the_limit_cached_segments_go_back_before_memory_has_run_out() -> None:
    allocator = CachingAllocator(limit_bytes=100 * MIB)
    allocator.free(allocator.malloc(60 * MIB))
    allocator.malloc(80 * MIB)  # 60 are cached and too small: given back, then 80 fit
    assert allocator.requests == [60 * MIB, 80 * MIB]
    assert allocator.reserved_bytes == 80 * MIB
    assert allocator.peak_reserved_bytes == 80 * MIB


def test_a_segment_in_use_cannot_be_given_back() -> None:
    allocator = CachingAllocator(limit_bytes=100 * MIB)
    rest = [allocator.malloc(8 * MIB), allocator.malloc(8 * MIB)]
    allocator.free(rest[0])  # 12 of 20 MiB are free, but not all
    with pytest.raises(LimitReached):
        allocator.malloc(82 * MIB)
    allocator.free(rest[1])
    assert allocator.malloc(82 * MIB).size == 82 * MIB


def test_expandable_segments_map_pages_of_2_and_20_mib() -> None:
    allocator = CachingAllocator(expandable_segments=True)
    allocator.malloc(512)
    allocator.malloc(30 * MIB)
    assert allocator.requests == [2 * MIB, 40 * MIB]
    allocator.malloc(15 * MIB)  # 10 MiB are free at the end: 5 more are needed, a page is mapped
    assert allocator.requests == [2 * MIB, 40 * MIB, 20 * MIB]


def test_an_expandable_block_grows_in_place() -> None:
    allocator = CachingAllocator(expandable_segments=True)
    first = allocator.malloc(40 * MIB)
    allocator.free(first)
    grown = allocator.malloc(60 * MIB)
    assert grown.address == first.address
    assert allocator.reserved_bytes == 60 * MIB


def test_expandable_blocks_are_always_split() -> None:
    allocator = CachingAllocator(expandable_segments=True)
    allocator.malloc(20 * MIB - 512)
    assert allocator.allocated_bytes == 20 * MIB - 512


def test_at_the_limit_expandable_segments_give_back_whole_free_pages() -> None:
    allocator = CachingAllocator(expandable_segments=True, limit_bytes=100 * MIB)
    kept, freed = allocator.malloc(10 * MIB), allocator.malloc(50 * MIB)
    allocator.free(freed)  # pages 0-20 hold the first 10 MiB; pages 20-60 are wholly free
    small = allocator.malloc(512)
    allocator.malloc(66 * MIB)  # at 10 MiB: needs 76, so pages up to 80
    assert allocator.reserved_bytes == 82 * MIB
    allocator.free(small)
    allocator.free(kept)
    with pytest.raises(LimitReached):
        allocator.malloc(80 * MIB)
    assert allocator.reserved_bytes == 80 * MIB  # the small pool's page went back; 0-10 is not a whole page


def test_all_of_a_request_counts_against_the_limit_of_expandable_segments_also_what_free_pages_hold() -> None:
    """alloc_block compares the whole size before it looks for free pages; read off runs under ten limits on an H200."""

    def grown(limit_bytes: int | None) -> CachingAllocator:
        allocator = CachingAllocator(expandable_segments=True, limit_bytes=limit_bytes)
        allocator.malloc(50 * MIB)  # three pages of 20 MiB, of which 10 stay free
        allocator.malloc(30 * MIB)
        return allocator

    free = grown(None)
    assert free.reserved_bytes == 80 * MIB
    assert free.peak_asked_bytes == 90 * MIB
    assert grown(90 * MIB).reserved_bytes == 80 * MIB
    with pytest.raises(LimitReached):
        grown(88 * MIB)


def test_pages_may_be_more_than_was_asked_for() -> None:
    allocator = CachingAllocator(expandable_segments=True, limit_bytes=50 * MIB)
    allocator.malloc(50 * MIB)
    assert (allocator.peak_asked_bytes, allocator.reserved_bytes) == (50 * MIB, 60 * MIB)


def test_expandable_pages_are_counted_from_the_start_of_their_own_range() -> None:
    # the large pool's range comes second here: it must begin with a whole page, too
    allocator = CachingAllocator(expandable_segments=True, limit_bytes=62 * MIB)
    allocator.malloc(512)
    allocator.free(allocator.malloc(60 * MIB))
    kept = allocator.malloc(MIB + 512)
    with pytest.raises(LimitReached):
        allocator.malloc(80 * MIB)
    assert allocator.reserved_bytes == 22 * MIB  # the first page holds a block, the other two went back
    assert kept.allocated


def test_what_the_driver_takes_moves_later_segments_and_nothing_else() -> None:
    plain, beside = CachingAllocator(), CachingAllocator()
    for allocator in (plain, beside):
        allocator.malloc(512)
    beside.driver_takes(64 * MIB)
    assert beside.malloc(30 * MIB).address - plain.malloc(30 * MIB).address == 64 * MIB
    assert beside.reserved_bytes == plain.reserved_bytes


def small_tape() -> Tape:
    tape = Tape()
    tape.phase("load")
    weights = tape.alloc(30 * MIB, "weights")
    tape.phase("work")
    tape.temporary(50 * MIB, "workspace")
    tape.temporary(40 * MIB, "workspace")
    tape.phase("rest")
    tape.free(weights)
    return tape


def test_a_replay_gives_the_peak_of_each_phase_and_reserved_so_far() -> None:
    done = replay(small_tape())
    assert done.ok
    assert {name: phase.allocated_bytes // MIB for name, phase in done.phases.items()} == {
        "load": 30,
        "work": 80,
        "rest": 30,
    }
    assert {name: phase.reserved_bytes // MIB for name, phase in done.phases.items()} == {
        "load": 30,
        "work": 80,
        "rest": 80,
    }
    assert done.phases["work"].event == peaks(small_tape())["work"].event == 1


def test_a_block_counts_as_what_it_is_used_for_now() -> None:
    tape = Tape()
    tape.phase("work")
    first = tape.alloc(MIB, "attention")
    tape.alloc(MIB, "weights")
    tape.retag(first, "activations")
    tape.alloc(2 * MIB, "workspace")
    tape.free(first)
    assert parts_at(tape, 1) == {"attention": MIB, "weights": MIB}
    assert parts_at(tape, 2) == {"workspace": 2 * MIB, "activations": MIB, "weights": MIB}
    assert parts_at(tape, 3) == {"workspace": 2 * MIB, "weights": MIB}
    assert list(changes(tape))[2:] == [
        (2, "attention", -MIB),
        (2, "activations", MIB),
        (2, "workspace", 2 * MIB),
        (3, "activations", -MIB),
    ]


def test_room_below_the_peak_is_what_was_freed_since() -> None:
    tape = Tape()
    first = tape.alloc(3 * MIB, "weights")
    assert tape.room_below_peak() == 0
    tape.free(first)
    tape.alloc(MIB, "weights")
    assert tape.room_below_peak() == 2 * MIB
    tape.alloc(4 * MIB, "weights")
    assert tape.room_below_peak() == 0


def test_a_replay_says_where_memory_ran_out() -> None:
    done = replay(small_tape(), limit_bytes=79 * MIB)
    assert not done.ok
    assert done.ran_out is not None
    assert (done.ran_out.phase, done.ran_out.event, done.ran_out.wanted_bytes) == ("work", 1, 50 * MIB)
    assert list(done.phases) == ["load"]
