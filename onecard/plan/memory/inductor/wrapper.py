"""TorchInductor's wrapper code: every allocation, reuse and `del` of a graph's `call(args)`.

`compiled` takes a graph in program order and orders it as Inductor does (order.py). It gives dead buffers to new ones
as `memory_plan_reuse` does, and returns what the generated code allocates and frees. Sources: torch/_inductor,
scheduler.py and codegen/wrapper.py (read in 2.13; recorded runs show that 2.11 does the same).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from onecard.paper.tags import WORKSPACE
from onecard.paper.tape import Tape
from onecard.plan.memory.inductor.kernel_graph import ITEM, Kernel, KernelGraph
from onecard.plan.memory.inductor.order import NEVER, Order, Schedule, peak_of

First = tuple[int, str, list[int]]  # index into operations, what runs there for the first time, bytes it overwrites
Retag = tuple[int, int, str]  # index into operations, slot, its tag from there on
FirstUse = Callable[[str, list[int]], None]


@dataclass(frozen=True)
class Program:
    """Allocations and frees of one call. A slot is a piece of memory that one buffer after another may live in."""

    sizes: list[int]  # bytes, by slot
    tags: list[str]  # tags of each slot's first buffer
    operations: list[int]  # a slot's number, or its complement (~) when freed
    slots: list[int]  # by buffer
    retags: list[Retag]
    firsts: list[First]
    moments: list[tuple[int, str]]  # (index into operations, what is happening from there on)

    def run(
        self,
        tape: Tape,
        inputs: Mapping[int, int],
        first: FirstUse | None = None,
        other_tags: Mapping[str, str] | None = None,
    ) -> list[int]:
        """Write one call on the tape; returns the tape's block for each slot.

        `inputs` maps input buffers to blocks. `first` is given on the first call only. It is called for each kernel
        that runs for the first time, once its results are allocated, with its name and the bytes of each buffer that
        it writes over. `other_tags` maps tags to the ones to use instead in this call.
        """
        blocks = [-1] * len(self.sizes)
        for buffer, block in inputs.items():
            blocks[self.slots[buffer]] = block
        stops: list[tuple[int, str, list[int] | None]] = [(line, what, None) for line, what in self.moments]
        if first:
            stops = sorted([*stops, *self.firsts], key=lambda stop: stop[0])
        own_tags = {tag: (other_tags or {}).get(tag, tag) for tag in {*self.tags, *(tag for _, _, tag in self.retags)}}
        at = 0
        for stop, what, overwritten in stops:
            self._play(tape, blocks, own_tags, at, stop)
            at = stop
            if overwritten is None:
                tape.moment(what)
            elif first:
                first(what, overwritten)
        self._play(tape, blocks, own_tags, at, len(self.operations) + 1)
        return blocks

    def _play(self, tape: Tape, blocks: list[int], own_tags: dict[str, str], at: int, stop: int) -> None:
        """Write the operations from `at` to `stop`, as Tape.alloc, free and retag do, but in one loop."""
        sizes, tags, events = tape.sizes, tape.tags, tape.events
        own_sizes, first_tags = self.sizes, self.tags
        shift = len(events) - at
        for operation in self.operations[at:stop]:
            if operation >= 0:
                block = len(sizes)
                sizes.append(own_sizes[operation])
                tags.append(own_tags[first_tags[operation]])
                events.append(block)
                blocks[operation] = block
            else:
                events.append(~blocks[~operation])
        start = bisect_left(self.retags, at, key=_line)
        for line, slot, tag in self.retags[start : bisect_left(self.retags, stop, start, key=_line)]:
            tape.retags.append((line + shift, blocks[slot], own_tags[tag]))


def _line(retag: Retag) -> int:
    return retag[0]


def compiled(graph: KernelGraph) -> Program:
    """The graph as Inductor runs it: ordered, with dead buffers reused."""
    schedule = Schedule(graph)
    plan = _Plan(graph, schedule, schedule.best_order())
    for at, index in enumerate(plan.order):
        plan.run(at, graph.kernels[index])
    return plan.program()


class _Plan:
    """The wrapper's lines, written kernel by kernel: allocate or reuse, run, free (codegen/wrapper.py)."""

    def __init__(self, graph: KernelGraph, schedule: Schedule, order: Order) -> None:
        self.graph, self.schedule, self.order = graph, schedule, order.kernels
        self.last, self.peak = order.last_uses, order.peak
        self.alive = order.alive  # kept up to date: a buffer that is reused later lives until then
        self.dying: list[list[int]] = [[] for _ in order.kernels]
        for buffer, at in enumerate(self.last):
            if at < NEVER:
                self.dying[at].append(buffer)
        for buffers in self.dying:  # Scheduler.free_buffers sorts names: buf100 comes before buf99
            if len(buffers) > 1:
                buffers.sort(key=lambda buffer: str(graph.names[buffer]))
        self.inputs = set(graph.inputs)  # a kernel may write over an input, but inputs are not kept for reuse
        self.keys = list(zip(graph.kinds, graph.sizes, strict=True))  # what must match for one to take another's place
        self.sizes: list[int] = []
        self.tags: list[str] = []
        self.tags_now: list[str] = []
        self.retags: list[Retag] = []
        self.slots = [-1] * len(self.keys)
        self.operations: list[int] = []
        self.void: set[int] = set()  # frees that do not happen, because the slot was reused after all
        self.pool: dict[tuple[str, int], list[tuple[int, int, int]]] = {}  # dead: (slot, position, index of its free)
        self.firsts: list[First] = []
        self.known: set[tuple[str, int]] = set()
        self.moments: list[tuple[int, str]] = []
        for buffer in graph.inputs:
            self.slots[buffer] = self.slot(graph.sizes[buffer], graph.tags[buffer])

    def slot(self, size_bytes: int, tag: str) -> int:
        self.sizes.append(size_bytes)
        self.tags.append(tag)
        self.tags_now.append(tag)
        return len(self.sizes) - 1

    def move_in(self, buffer: int, slot: int) -> None:
        """Put a buffer where another one was."""
        self.slots[buffer] = slot
        tag = self.graph.tags[buffer]
        if self.tags_now[slot] != tag:
            self.tags_now[slot] = tag
            self.retags.append((len(self.operations), slot, tag))

    def allocate(self, size_bytes: int, tag: str) -> int:
        slot = self.slot(size_bytes, tag)
        self.operations.append(slot)
        return slot

    def run(self, at: int, kernel: Kernel) -> None:
        """Write the lines of one kernel, at its position in the order."""
        if kernel.name == ITEM:
            if kernel.reads[0] in self.dying[at]:  # the tuple goes, and with it the results that nobody took
                self.operations.extend([~self.slots[buffer] for buffer in self.untaken(kernel.reads[0])])
            return
        if kernel.moment and (not self.moments or self.moments[-1][1] != kernel.moment):
            self.moments.append((len(self.operations), kernel.moment))
        temporary = [self.allocate(size, WORKSPACE) for size in kernel.before]
        taken = self.write(at, kernel)
        for buffer in kernel.items:
            self.slots[buffer] = self.allocate(self.graph.sizes[buffer], self.graph.tags[buffer])
        generated = kernel.name, len(taken)  # a kernel that writes over what it reads is different code
        if generated not in self.known:
            self.known.add(generated)
            kind = "timed" if kernel.timed else kernel.name
            overwritten = [self.graph.sizes[old] for old in (*sorted(taken), *kernel.adds_to)]
            self.firsts.append((len(self.operations), kind, overwritten))
        for size in kernel.hidden:
            if size >= 0:
                temporary.append(self.allocate(size, WORKSPACE))
            else:
                early = temporary[len(kernel.before) + ~size]
                self.operations.append(~early)
                temporary[len(kernel.before) + ~size] = -1
        self.operations.extend([~slot for slot in reversed(temporary) if slot >= 0])
        for buffer in self.dying[at]:
            if buffer in taken or self.slots[buffer] < 0 or buffer in self.graph.borrowed:
                continue
            if buffer not in self.inputs:
                self.pool.setdefault(self.keys[buffer], []).append((self.slots[buffer], at, len(self.operations)))
            self.operations.append(~self.slots[buffer])

    def untaken(self, whole: int) -> list[int]:
        results = self.graph.kernels[self.schedule.start[whole]].items
        return [b for b in results if not self.schedule.readers[b] and not self.schedule.is_output[b]]

    def write(self, at: int, kernel: Kernel) -> set[int]:
        """Find a place for each result; returns the buffers that are written over."""
        taken: set[int] = set()
        for buffer in kernel.writes:
            key = self.keys[buffer]
            for old in kernel.takes.get(buffer, ()):  # SchedulerNode.decide_inplace_update
                free = self.last[old] == at and old not in taken and old not in self.graph.borrowed
                if free and self.holds(old, buffer):
                    self.move_in(buffer, self.slots[old])
                    taken.add(old)
                    break
            else:
                if key[1] and not self.reuse(at, buffer):
                    self.slots[buffer] = self.allocate(key[1], self.graph.tags[buffer])
                    scratch = [self.allocate(size, WORKSPACE) for size in kernel.scratch.get(buffer, ())]
                    self.operations.extend([~slot for slot in reversed(scratch)])
        return taken

    def holds(self, old: int, new: int) -> bool:
        """Whether `new` may be written over `old`: same type, and at most 5 % smaller (can_match_buffer_size)."""
        (old_kind, old_bytes), (kind, size_bytes) = self.keys[old], self.keys[new]
        return kind == old_kind and 0.95 * old_bytes <= size_bytes <= old_bytes

    def reuse(self, at: int, buffer: int) -> bool:
        """Put a buffer where the last dead one of its type and size was, unless keeping that one raises the peak.

        AllocateLine.plan and should_reuse_buffer.
        """
        key = self.keys[buffer]
        dead = self.pool.get(key)
        if not dead:
            return False
        slot, since, line = dead[-1]
        if since + 1 != at:
            if key[1] + peak_of(self.alive[since + 1 : at]) > self.peak:
                return False
            for step in range(since + 1, at):
                self.alive[step] += key[1]
        dead.pop()
        self.void.add(line)
        self.move_in(buffer, slot)
        return True

    def program(self) -> Program:
        """The program without the frees of reused slots."""
        void = sorted(self.void)
        return Program(
            self.sizes,
            self.tags,
            [operation for line, operation in enumerate(self.operations) if line not in self.void],
            self.slots,
            [(line - bisect_left(void, line), slot, tag) for line, slot, tag in self.retags],
            [(line - bisect_left(void, line), kernel, overwritten) for line, kernel, overwritten in self.firsts],
            [(line - bisect_left(void, line), what) for line, what in self.moments],
        )
