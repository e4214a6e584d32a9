"""The order in which TorchInductor runs the kernels of a graph: `reorder_for_peak_memory`.

Source: torch/_inductor/memory.py. It estimates the peak of the program's own order and of three others, and takes
the order with the lowest.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import NamedTuple

from onecard.plan.memory.inductor.kernel_graph import ITEM, KernelGraph

NEVER = 1 << 60  # the last use of a graph output
NO_SIZE = 1 << 200  # more bytes than any buffer has, however absurd the config


def peak_of(alive: list[int]) -> int:
    """The largest of some estimates, or 0 if all are negative, as in Inductor."""
    return max(0, max(alive))


class Order(NamedTuple):
    """Kernels in some order, and Inductor's estimates for it."""

    kernels: list[int]
    last_uses: list[int]  # positions, by buffer
    alive: list[int]  # bytes, by position

    @property
    def peak(self) -> int:
        return peak_of(self.alive)


class Schedule:
    """Dependencies and sizes of a graph's kernels, and the four orders Inductor tries (memory.py)."""

    def __init__(self, graph: KernelGraph) -> None:
        kernels, buffers = graph.kernels, range(len(graph.sizes))
        count = len(kernels)
        self.count = count
        self.is_output = [False] * len(graph.sizes)
        for buffer in graph.outputs:
            self.is_output[buffer] = True
        readers: list[list[int]] = [[] for _ in buffers]
        writer = [-1] * len(graph.sizes)
        for index, kernel in enumerate(kernels):
            for buffer in kernel.writes:
                writer[buffer] = index
            for buffer in kernel.reads:
                if not readers[buffer] or readers[buffer][-1] != index:
                    readers[buffer].append(index)
        self.readers = readers
        # what the estimate sees: bytes that appear with a kernel, and bytes that go with a buffer's last reader
        self.bytes = [size if counted else 0 for size, counted in zip(graph.sizes, graph.counted, strict=True)]
        self.appears = [0] * count
        self.internal = [kernel.internal_bytes for kernel in kernels]
        self.start = writer[:]
        for index, kernel in enumerate(kernels):
            for buffer in kernel.items:
                if readers[buffer] or self.is_output[buffer]:
                    self.appears[index] += self.bytes[buffer]
                    self.start[buffer] = index
            self.appears[index] += kernel.internal_bytes
            if kernel.name != ITEM:
                self.appears[index] += sum([self.bytes[buffer] for buffer in kernel.writes])
        self.read_sets = [list(dict.fromkeys(kernel.reads)) for kernel in kernels]
        self.before: list[list[int]] = []
        self.after: list[list[int]] = [[] for _ in kernels]
        for index, reads in enumerate(self.read_sets):
            earlier = dict.fromkeys([writer[buffer] for buffer in reads if writer[buffer] >= 0])
            self.before.append(list(earlier))
            for other in earlier:
                self.after[other].append(index)
        self.writes = [kernel.writes for kernel in kernels]
        self.inputs = graph.inputs
        self.buffers = buffers
        self.output_bytes = sum([self.bytes[buffer] for buffer in graph.outputs])

    def best_order(self) -> Order:
        """The order with the lowest estimated peak; program order wins a tie, then the order tried first."""
        best = self.estimated(list(range(self.count)))
        for attempt in (self.least_peak_first, self.breadth_first, self.depth_first):
            order = self.estimated(attempt())
            if order.peak < best.peak:
                best = order
        return best

    def estimated(self, kernels: list[int]) -> Order:
        """An order of the kernels, with each buffer's last use and the bytes alive at each position."""
        last = self.last_uses(kernels)
        return Order(kernels, last, self.estimate(kernels, last))

    def last_uses(self, order: list[int]) -> list[int]:
        """The position of each buffer's last reader; if it has none, its own kernel's; NEVER for outputs."""
        position = [0] * self.count
        for at, index in enumerate(order):
            position[index] = at
        last: list[int] = []
        for buffer in self.buffers:
            readers = self.readers[buffer]
            if self.is_output[buffer]:
                last.append(NEVER)
            elif readers:
                last.append(max([position[index] for index in readers]))
            elif self.start[buffer] >= 0:
                last.append(position[self.start[buffer]])
            else:
                last.append(NEVER)  # an unread input, or a result nobody takes
        return last

    def estimate(self, order: list[int], last_uses: list[int]) -> list[int]:
        """Bytes alive at each position, as Inductor counts them (before any reuse).

        2.11 subtracts outputs at the start instead of never (end_step = -1; 2.13 corrects this), so the numbers may be
        negative. What it compares then is at least 0 (`peak_of`). The recorded reuse of buffers confirms it.
        """
        change = [0] * (self.count + 1)
        change[0] = -self.output_bytes
        for buffer in self.inputs:
            change[0] += self.bytes[buffer]
        for at, index in enumerate(order):
            change[at] += self.appears[index]
            change[at + 1] -= self.internal[index]
        for size, last in zip(self.bytes, last_uses, strict=True):
            if last != NEVER:
                change[last + 1] -= size
        alive, now = [], 0
        for delta in change:
            now += delta
            alive.append(now)
        return alive

    def least_peak_first(self) -> list[int]:
        """memory.topological_sort_lpmf: take what fits under the peak so far and frees most, else what needs least."""
        count, size = self.count, self.appears
        missing = [len(earlier) for earlier in self.before]
        uses = [len(readers) + self.is_output[b] for b, readers in enumerate(self.readers)]
        freed = self.internal[:]
        for index in range(count):
            for buffer in self.read_sets[index]:
                if uses[buffer] == 1:
                    freed[index] += self.bytes[buffer]
            for buffer in self.writes[index]:
                if uses[buffer] == 0:
                    freed[index] += self.bytes[buffer]
        alive = sum([self.bytes[buffer] for buffer in self.inputs])
        peak = max(alive, self.output_bytes)
        # ready kernels, grouped by what decides: (bytes needed, bytes needed less bytes freed)
        ready: dict[tuple[int, int], list[int]] = {}
        waiting = [True] * count
        for index in range(count):
            if not missing[index]:
                heappush(ready.setdefault((size[index], size[index] - freed[index]), []), index)
        order: list[int] = []
        while len(order) < count:
            gap = peak - alive
            chosen = (NO_SIZE, NO_SIZE, NEVER)
            for (needed, net), group in list(ready.items()):
                while group and not (waiting[group[0]] and size[group[0]] - freed[group[0]] == net):
                    heappop(group)
                if not group:
                    del ready[needed, net]
                    continue
                key = (needed if needed > gap else 0, net, group[0])
                if key < chosen:
                    chosen = key
            index = chosen[2]
            waiting[index] = False
            order.append(index)
            alive += size[index]
            peak = max(peak, alive)
            alive -= freed[index]
            for later in self.after[index]:
                missing[later] -= 1
                if not missing[later]:
                    heappush(ready.setdefault((size[later], size[later] - freed[later]), []), later)
            for buffer in self.read_sets[index]:
                uses[buffer] -= 1
                if uses[buffer] == 1:
                    for reader in self.readers[buffer]:
                        freed[reader] += self.bytes[buffer]
                        if waiting[reader] and not missing[reader]:
                            heappush(ready.setdefault((size[reader], size[reader] - freed[reader]), []), reader)
        return order

    def breadth_first(self) -> list[int]:
        """memory.topological_sort_bfs: first what depends on the earliest kernels."""
        missing = [len(earlier) for earlier in self.before]
        position = [0] * self.count
        heap: list[tuple[list[int], int]] = []
        for index in range(self.count):
            if not missing[index]:
                heappush(heap, ([], index))
        order: list[int] = []
        while heap:
            _, index = heappop(heap)
            position[index] = len(order)
            order.append(index)
            for later in self.after[index]:
                missing[later] -= 1
                if not missing[later]:
                    heappush(heap, (sorted([position[other] for other in self.before[later]]), later))
        return order

    def depth_first(self) -> list[int]:
        """memory.topological_sort_dfs: smallest kernels first, each after all it depends on."""
        weight = [
            self.appears[index] + sum([self.bytes[buffer] for buffer in self.read_sets[index]])
            for index in range(self.count)
        ]

        def light(index: int) -> tuple[int, int]:
            return weight[index], index

        seen = [False] * self.count
        order: list[int] = []
        for root in sorted(range(self.count), key=light):
            stack = [root]
            while stack:
                index = stack[-1]
                if index < 0:
                    order.append(~index)
                    stack.pop()
                elif seen[index]:
                    stack.pop()
                else:
                    seen[index] = True
                    stack[-1] = ~index
                    stack.extend(sorted([i for i in self.before[index] if not seen[i]], key=light, reverse=True))
        return order
