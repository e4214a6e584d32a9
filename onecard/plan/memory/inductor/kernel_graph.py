"""A graph as TorchInductor sees it before it decides on an order: kernels, and the buffers they read and write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from onecard.paper.tags import WORKSPACE

ITEM = "item"  # the name of nodes that take one result out of a call's tuple


@dataclass(slots=True)
class Kernel:
    """One scheduler node: a fused Triton kernel, a library call, or one item of a call with several results."""

    name: str  # kernels with the same name are one generated kernel, which is tuned once
    reads: tuple[int, ...]
    writes: tuple[int, ...]  # in the order in which the wrapper allocates them
    takes: dict[int, tuple[int, ...]] = field(default_factory=dict)  # written buffer -> buffers it may be written over
    internal_bytes: int = 0  # buffers that fusion keeps in registers: never allocated, but the scheduler counts them
    before: tuple[int, ...] = ()  # hidden buffers of a library call: made before its results, freed at its end
    hidden: tuple[int, ...] = ()  # made after its results: bytes to allocate, or ~k to free the k-th of them early
    scratch: dict[int, tuple[int, ...]] = field(default_factory=dict)  # written buffer -> bytes needed while it is made
    adds_to: tuple[int, ...] = ()  # buffers it changes in place; it also reads them
    timed: bool = False  # Triton times several configurations on the first launch: pointwise kernels, short reductions
    items: tuple[int, ...] = ()  # results that later kernels take out one by one
    moment: str = ""  # what is happening, in words for a person


@dataclass
class KernelGraph:
    """Buffers and kernels of one `call(args)`, in program order."""

    sizes: list[int] = field(default_factory=list)  # bytes, by buffer
    kinds: list[str] = field(default_factory=list)  # element type, by buffer: reuse needs the same type and size
    tags: list[str] = field(default_factory=list)
    counted: list[bool] = field(default_factory=list)  # whether the scheduler's own estimate counts the buffer
    names: list[int] = field(default_factory=list)  # N of Inductor's bufN, by buffer; dead ones are freed by name
    next_name: int = 0  # of the next buffer
    inputs: list[int] = field(default_factory=list)
    borrowed: set[int] = field(default_factory=set)  # inputs the caller also holds: the wrapper's `del` frees nothing
    outputs: list[int] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    moment: str = ""  # given to the kernels that are appended

    def buffer(self, size_bytes: int, kind: str, tag: str, *, counted: bool = True, named: bool = True) -> int:
        """A buffer that some kernel will write; returns its number. A `named` one gets one of Inductor's bufN names."""
        self.sizes.append(size_bytes)
        self.kinds.append(kind)
        self.tags.append(tag)
        self.counted.append(counted)
        self.names.append(self.next_name)
        self.next_name += named
        return len(self.sizes) - 1

    def skip_names(self, count: int) -> None:
        """Skip the names of buffers that are never allocated: fusion keeps them in registers, or nobody reads them."""
        self.next_name += count

    def mark(self, tag: str) -> int:
        """A buffer of no bytes that orders kernels: its readers run after its writer."""
        return self.buffer(0, "none", tag, named=False)

    def input(self, size_bytes: int, tag: str, *, kind: str = "input", counted: bool = True) -> int:
        """A tensor handed in, freed by the wrapper after its last use; `counted=False` for primals and tangents.

        `kind` is its element type, if a kernel may write over it.
        """
        number = self.buffer(size_bytes, kind, tag, counted=counted, named=False)
        self.inputs.append(number)
        return number

    def kernel(
        self,
        name: str,
        reads: Iterable[int],
        writes: Iterable[int],
        *,
        takes: dict[int, tuple[int, ...]] | None = None,
        internal_bytes: int = 0,
        scratch: dict[int, tuple[int, ...]] | None = None,
        adds_to: tuple[int, ...] = (),
        timed: bool = False,
    ) -> None:
        """Append a kernel."""
        self.kernels.append(
            Kernel(
                name,
                tuple(reads),
                tuple(writes),
                takes=takes or {},
                internal_bytes=internal_bytes,
                scratch=scratch or {},
                adds_to=adds_to,
                timed=timed,
                moment=self.moment,
            )
        )

    def call(
        self,
        name: str,
        reads: Iterable[int],
        results: Sequence[int],
        items: Sequence[int],
        *,
        before: tuple[int, ...] = (),
        hidden: tuple[int, ...] = (),
    ) -> None:
        """A library call with several results; `items` are the ones in use, each taken out by its own node."""
        whole = self.buffer(0, "tuple", WORKSPACE)
        self.names[whole] = min(self.names[result] for result in results)  # the tuple is named before its items
        for result in results:
            self.names[result] += 1
        node = Kernel(name, tuple(reads), (whole,), before=before, hidden=hidden, items=tuple(results))
        node.moment = self.moment
        self.kernels.append(node)
        for item in items:
            self.kernels.append(Kernel(ITEM, (whole,), (item,)))

    def sort(self) -> None:
        """Put every kernel behind those it reads from, as Inductor does after fusion, which may have moved one forward.

        Source: scheduler.py, topological_sort_schedule: depth first; what is read is sorted by name, as text.
        """
        writer = {buffer: kernel for kernel in self.kernels for buffer in kernel.writes}
        done: dict[int, Kernel] = {}

        def visit(kernel: Kernel) -> None:
            if id(kernel) not in done:
                for buffer in sorted({*kernel.reads} & writer.keys(), key=lambda read: f"buf{self.names[read]}"):
                    if writer[buffer] is not kernel:
                        visit(writer[buffer])
                done[id(kernel)] = kernel

        for kernel in self.kernels:
            visit(kernel)
        self.kernels = [*done.values()]


@dataclass
class Traced:
    """A graph, with the numbers of the buffers that the loop needs by name."""

    graph: KernelGraph
    named: dict[str, int]
