"""PyTorch's caching allocator for CUDA, restated: what it asks the driver for.

Source: c10/cuda/CUDACachingAllocator.cpp (DeviceCachingAllocator), default settings or expandable_segments:True.

- A request is rounded up to 512 bytes. Up to 1 MiB it comes from the small pool, above from the large pool.
- It takes the smallest free block that is large enough, and the lowest address among equals. What is left over is
  split off if it is worth keeping. A freed block merges with its free neighbours.
- If no block fits, it asks for a new segment: 2 MiB (small pool), 20 MiB (below 10 MiB), else a multiple of 2 MiB.
- At the limit, cached segments that are wholly free go back to the driver and the request is tried once more.
- A CUDA graph or another stream has its own small and large pool. A live graph keeps the free memory of its pools.
- With expandable segments each pool is one range of addresses that grows by whole pages of 2 MiB (small) or 20 MiB.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from onecard.paper.tape import DEFAULT_POOL, EMPTY_CACHE, ROUND_BYTES, rounded

SMALL_BYTES = 2**20  # kSmallSize: the largest request of the small pool
SMALL_SEGMENT_BYTES = 2 * 2**20  # kSmallBuffer
LARGE_SEGMENT_BYTES = 20 * 2**20  # kLargeBuffer
MIN_OWN_SEGMENT_BYTES = 10 * 2**20  # kMinLargeAlloc: from here on a request gets a segment of its own size
ROUND_SEGMENT_BYTES = 2 * 2**20  # kRoundLarge

_ADDRESS_BITS = 62  # a free block's sort key is size << 62 | address: one whole number compares like the pair
_RANGE_BYTES = LARGE_SEGMENT_BYTES << 30  # address space of an expandable segment: whole pages, beyond any card


class MemoryBlock:
    __slots__ = ("address", "allocated", "mapped", "next", "pool", "prev", "size")

    def __init__(
        self, address: int, size: int, pool: _Pool, prev: MemoryBlock | None, next: MemoryBlock | None
    ) -> None:
        self.address = address
        self.size = size
        self.pool = pool
        self.prev = prev
        self.next = next
        self.allocated = False
        self.mapped = True

    @property
    def key(self) -> int:
        return self.size << _ADDRESS_BITS | self.address


class _Pool:
    """Free blocks of one size class, smallest first."""

    __slots__ = ("blocks", "is_small", "keys", "page_bytes", "unmapped")

    def __init__(self, is_small: bool) -> None:
        self.is_small = is_small
        self.page_bytes = SMALL_SEGMENT_BYTES if is_small else LARGE_SEGMENT_BYTES
        self.keys: list[int] = []
        self.blocks: dict[int, MemoryBlock] = {}
        self.unmapped: list[MemoryBlock] = []  # expandable only, by address

    def insert(self, block: MemoryBlock) -> None:
        key = block.size << _ADDRESS_BITS | block.address
        insort(self.keys, key)
        self.blocks[key] = block

    def remove(self, block: MemoryBlock) -> None:
        key = block.size << _ADDRESS_BITS | block.address
        del self.keys[bisect_left(self.keys, key)]
        del self.blocks[key]


class _AddressSpace:
    """Where the driver puts a new segment. Addresses decide which of two equal free blocks is taken first.

    This is not documented; it was read off recorded traces (H200, CUDA 13). A new piece goes to the lowest hole that
    holds it. If none does, a range rounded up to 32 MiB is opened below all others. The first segment has holes of 6
    and 414 MiB before it, and one of 22 MiB behind the memory of the context.
    """

    RANGE_BYTES = 32 * 2**20
    HOLES = ((0, 6 * 2**20), (6 * 2**20, 414 * 2**20), (496 * 2**20, 22 * 2**20))
    FIRST_SEGMENT = 420 * 2**20

    def __init__(self) -> None:
        self.lowest = 2**60  # far from both ends
        self.holes: list[tuple[int, int]] | None = None  # (address, size), by address; None before the first segment

    def place(self, size: int) -> int:
        """Address of a new segment, or of a piece the driver takes for itself."""
        if self.holes is None:
            self.holes = [(self.lowest + offset, room) for offset, room in self.HOLES]
            if size <= SMALL_SEGMENT_BYTES:
                return self.lowest + self.FIRST_SEGMENT
        for index, (address, room) in enumerate(self.holes):
            if room >= size:
                self.holes[index : index + 1] = [(address + size, room - size)] if room > size else []
                return address
        room = -(-size // self.RANGE_BYTES) * self.RANGE_BYTES
        self.lowest -= room
        if room > size:
            self.holes.insert(0, (self.lowest + size, room - size))
        return self.lowest

    def give_back(self, address: int, size: int) -> None:
        """A segment went back to the driver."""
        assert self.holes is not None
        insort(self.holes, (address, size))


class LimitReached(Exception):
    """A request exceeds the limit, even after cached segments were given back."""


class CachingAllocator:
    """One device. `malloc` returns a handle and `free` takes it back; the byte counts are attributes.

    It starts with the pool of the default stream; `obey` opens others and switches between them.
    """

    def __init__(self, *, expandable_segments: bool = False, limit_bytes: int | None = None) -> None:
        self.expandable = expandable_segments
        self.limit_bytes = limit_bytes
        self.small = _Pool(is_small=True)
        self.large = _Pool(is_small=False)
        self.pools = {DEFAULT_POOL: (self.small, self.large)}  # `small` and `large` are the two in use
        self.held: set[str] = set()  # pools of live graphs: they give nothing back
        self.allocated_bytes = 0
        self.reserved_bytes = 0
        self.peak_reserved_bytes = 0
        self.peak_asked_bytes = 0  # including the request itself: what a limit must allow
        self.requests: list[int] = []  # sizes of the segments (or pages) asked from the driver, in order
        self._space = _AddressSpace()
        self._next_range = 0  # expandable only

    def driver_takes(self, size_bytes: int) -> None:
        """The driver takes memory for itself. It is not a segment, but later segments are placed around it."""
        self._space.place(size_bytes)

    def obey(self, order: str) -> None:
        """Do what a tape orders (Tape.order)."""
        if order == EMPTY_CACHE:
            self._release_cached()
            return
        verb, _, name = order.rpartition(" ")
        if verb == "pool":
            new = (_Pool(is_small=True), _Pool(is_small=False))
            self.small, self.large = self.pools.setdefault(name, new)
        elif verb == "hold":
            self.held.add(name)
        else:
            assert verb == "let go", order
            self.held.remove(name)

    def malloc(self, size_bytes: int) -> MemoryBlock:
        """A block of at least `size_bytes`; raises LimitReached at the limit."""
        return self.malloc_rounded(rounded(size_bytes))

    def malloc_rounded(self, size: int) -> MemoryBlock:
        """The same for a size that is already rounded."""
        pool = self.small if size <= SMALL_BYTES else self.large
        keys = pool.keys
        at = bisect_left(keys, size << _ADDRESS_BITS)
        if at < len(keys):
            if self.expandable and at + 1 < len(keys):
                at = self._best_expandable(pool, at)
            block = pool.blocks.pop(keys.pop(at))
        else:
            block = self._new_block(pool, size)
        left = block.size - size
        # should_split: expandable blocks can always be cut; a large one only if more than 1 MiB is left
        if left > SMALL_BYTES or (left >= ROUND_BYTES and (pool.is_small or self.expandable)):
            rest = MemoryBlock(block.address + size, left, pool, block, block.next)
            if block.next is not None:
                block.next.prev = rest
            block.next = rest
            block.size = size
            pool.insert(rest)
        block.allocated = True
        self.allocated_bytes += block.size
        return block

    def free(self, block: MemoryBlock) -> None:
        """Back into the cache, merged with free neighbours."""
        self.allocated_bytes -= block.size
        block.allocated = False
        self._merge(block)
        block.pool.insert(block)

    def _merge(self, block: MemoryBlock) -> None:
        """try_merge_blocks with both neighbours: in the same segment, free, and both mapped or both not."""
        before = block.prev
        if before is not None and not before.allocated and before.mapped is block.mapped:
            self._forget(before)
            block.address = before.address
            block.size += before.size
            block.prev = before.prev
            if block.prev is not None:
                block.prev.next = block
        after = block.next
        if after is not None and not after.allocated and after.mapped is block.mapped:
            self._forget(after)
            block.size += after.size
            block.next = after.next
            if block.next is not None:
                block.next.prev = block

    def _forget(self, block: MemoryBlock) -> None:
        if block.mapped:
            block.pool.remove(block)
        else:
            block.pool.unmapped.remove(block)

    def _new_block(self, pool: _Pool, size: int) -> MemoryBlock:
        """alloc_block, and once more after release_cached_blocks."""
        for attempt in (1, 2):
            block = self._expand(pool, size) if self.expandable else self._new_segment(pool, size)
            if block is not None:
                return block
            if attempt == 1:
                self._release_cached()
        raise LimitReached

    def _may_ask(self, size: int) -> bool:
        """Count a whole request, with what free pages of an expandable segment hold; False if it exceeds the limit."""
        asked = self.reserved_bytes + size
        if self.limit_bytes is not None and asked > self.limit_bytes:
            return False
        if asked > self.peak_asked_bytes:
            self.peak_asked_bytes = asked
        return True

    def _reserve(self, size: int) -> None:
        self.requests.append(size)
        self.reserved_bytes += size
        if self.reserved_bytes > self.peak_reserved_bytes:
            self.peak_reserved_bytes = self.reserved_bytes

    def _new_segment(self, pool: _Pool, size: int) -> MemoryBlock | None:
        wanted = segment_bytes(size)
        if not self._may_ask(wanted):
            return None
        self._reserve(wanted)
        return MemoryBlock(self._space.place(wanted), wanted, pool, None, None)

    def _release_cached(self) -> None:
        """release_cached_blocks: wholly free segments, or wholly free pages, go back to the driver."""
        free = [pools for name, pools in self.pools.items() if name not in self.held]
        for pool in [pool for small, large in free for pool in (large, small)]:
            for block in [pool.blocks[key] for key in pool.keys]:
                if self.expandable:
                    self._unmap(block)
                elif block.prev is None and block.next is None:
                    pool.remove(block)
                    self.reserved_bytes -= block.size
                    self._space.give_back(block.address, block.size)

    # expandable segments

    @staticmethod
    def _best_expandable(pool: _Pool, at: int) -> int:
        """get_free_block: a block that can grow counts with the size it can reach, so others are taken first."""
        keys, blocks = pool.keys, pool.blocks
        while at + 1 < len(keys):
            after = blocks[keys[at]].next
            if after is None or after.mapped:  # it cannot grow, and no later one is smaller
                return at
            if _reach(blocks[keys[at + 1]]) >= _reach(blocks[keys[at]]):
                return at
            at += 1
        return at

    def _expand(self, pool: _Pool, size: int) -> MemoryBlock | None:
        """try_allocate_expandable_block: map pages at the lowest address that then has `size` free bytes in a row."""
        if not self._may_ask(segment_bytes(size)):
            return None
        block = next(_places(pool, size), None)
        if block is None:
            block = MemoryBlock(self._next_range, _RANGE_BYTES, pool, None, None)
            block.mapped = False
            pool.unmapped.append(block)
            self._next_range += _RANGE_BYTES
        if not block.mapped:
            self._map(block, min(block.size, size))
        while block.size < size:
            after = block.next
            assert after is not None, "a range of addresses never ends before it is needed"
            self._map(after, min(size - block.size, after.size))
            block = after
        pool.remove(block)
        return block

    def _map(self, block: MemoryBlock, size: int) -> None:
        pool = block.pool
        mapped = -(-size // pool.page_bytes) * pool.page_bytes
        pool.unmapped.remove(block)
        block.mapped = True
        if mapped < block.size:
            rest = MemoryBlock(block.address + mapped, block.size - mapped, pool, block, block.next)
            rest.mapped = False
            if block.next is not None:
                block.next.prev = rest
            block.next = rest
            block.size = mapped
            insort(pool.unmapped, rest, key=lambda unmapped: unmapped.address)
        self._merge(block)
        pool.insert(block)
        self._reserve(mapped)

    def _unmap(self, block: MemoryBlock) -> None:
        pool = block.pool
        start = -(-block.address // pool.page_bytes) * pool.page_bytes
        end = (block.address + block.size) // pool.page_bytes * pool.page_bytes
        if end <= start:
            return
        pool.remove(block)
        if start > block.address:
            before = MemoryBlock(block.address, start - block.address, pool, block.prev, block)
            if block.prev is not None:
                block.prev.next = before
            block.prev = before
            pool.insert(before)
        if end < block.address + block.size:
            after = MemoryBlock(end, block.address + block.size - end, pool, block, block.next)
            if block.next is not None:
                block.next.prev = after
            block.next = after
            pool.insert(after)
        block.address, block.size, block.mapped = start, end - start, False
        self.reserved_bytes -= block.size
        self._merge(block)
        insort(pool.unmapped, block, key=lambda unmapped: unmapped.address)


def _reach(block: MemoryBlock) -> int:
    """Bytes that an expandable block can grow to."""
    after = block.next
    return block.size + (after.size if after is not None and not after.mapped else 0)


def _places(pool: _Pool, size: int) -> Iterator[MemoryBlock]:
    """find_expandable_block: free blocks that mapping can grow to `size` bytes, lowest address first."""
    for unmapped in pool.unmapped:
        start = unmapped.prev if unmapped.prev is not None and not unmapped.prev.allocated else unmapped
        room, block = 0, start
        while room < size and block is not None and not block.allocated:
            room += block.size
            block = block.next  # type: ignore[assignment]
        if room >= size:
            yield start


def segment_bytes(size_bytes: int) -> int:
    """Bytes asked from the driver for a request that no cached block can serve (get_allocation_size)."""
    if size_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if size_bytes < MIN_OWN_SEGMENT_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-size_bytes // ROUND_SEGMENT_BYTES) * ROUND_SEGMENT_BYTES
