"""Tensors that have a shape and a place in memory, and no numbers. Python's own reference counts free them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, ClassVar

from onecard.paper.tags import ACTIVATIONS
from onecard.paper.tape import Tape

if TYPE_CHECKING:
    from onecard.paper.autograd import Node
    from onecard.paper.paper import Paper

Shape = tuple[int, ...]


class Storage:
    """A block of the tape. It is freed when nobody refers to it any more."""

    __slots__ = ("block", "paper", "tag")

    def __init__(self, paper: Paper, block: int, tag: str) -> None:
        self.paper, self.block, self.tag = paper, block, tag

    def __del__(self) -> None:
        tape = self.paper.tape
        if self.block >= 0 and not tape.finished:
            tape.events.append(~self.block)

    def is_for(self, tag: str) -> None:
        """Say what the block has been for since it was allocated, where that shows only later."""
        if self.tag != tag:
            self.tag = self.paper.tape.tags[self.block] = tag

    def leave(self) -> int:
        """The block, which somebody else frees from now on."""
        block, self.block = self.block, -1
        return block


class Tensor:
    """A tensor on paper. `dtype` is the size of an element in bytes: a type matters here by nothing else."""

    __slots__ = ("cut", "dtype", "node", "shape", "slot", "storage", "transposed")

    def __init__(self, storage: Storage, shape: Shape, dtype: int) -> None:
        self.storage, self.shape, self.dtype = storage, shape, dtype
        self.node: Node | None = None  # the operation that made it, where a graph is recorded
        self.slot = 0  # which of that operation's results it is
        self.transposed = False  # a gradient that was made as its transpose: autograd never adds into it
        self.cut = False  # cut out of padded rows: a view of other dimensions needs a copy

    @property
    def numel(self) -> int:
        return prod(self.shape)

    @property
    def edge(self) -> tuple[Node | Parameter, int] | None:
        """Where its gradient goes."""
        return None if self.node is None else (self.node, self.slot)

    def like(self, *shape: int) -> Tensor:
        """The same memory in another shape."""
        return Tensor(self.storage, shape, self.dtype)

    # what models and passes ask of a tensor, under torch's names

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Tensor:
        return self.like(len(range(*rows.indices(self.shape[0]))), *self.shape[1:])

    def __add__(self, other: Tensor) -> Tensor:
        return self.storage.paper.add(self, other)

    def __truediv__(self, other: Tensor | int) -> Tensor:
        return self.storage.paper.divided(self, other)

    def __iadd__(self, other: Tensor) -> Tensor:
        return self

    def t(self) -> Tensor:
        return self.like(*reversed(self.shape))

    @property
    def mT(self) -> Tensor:
        *outer, rows, columns = self.shape
        return self.like(*outer, columns, rows)

    def view(self, *shape: int) -> Tensor:
        return self.like(*shape)

    def detach(self) -> Tensor:
        return self.like(*self.shape)

    def flatten(self, first: int = 0, last: int = -1) -> Tensor:
        last %= len(self.shape)
        joined = prod(self.shape[first : last + 1])
        return self.storage.paper.view(self, (*self.shape[:first], joined, *self.shape[last + 1 :]))

    def sum(self) -> Tensor:
        return self.storage.paper.new((), self.dtype, self.storage.tag)

    def view_as(self, other: Tensor) -> Tensor:
        return self.like(*other.shape)


class Parameter(Tensor):
    """A tensor that learns: the end of the graph, where gradients are added up."""

    __slots__ = ("grad", "name")

    order = 1 << 62  # before all operations
    edges: ClassVar[list[None]] = []
    results = 1

    def __init__(self, storage: Storage, shape: Shape, dtype: int, name: str) -> None:
        super().__init__(storage, shape, dtype)
        self.name = name
        self.grad: Tensor | None = None

    @property
    def edge(self) -> tuple[Node | Parameter, int] | None:
        return (self, 0)


@dataclass
class Layer:
    """The parameters of one layer, and what its output is for."""

    weight: Parameter
    bias: Parameter | None = None
    part: str = ACTIVATIONS
    run: Callable[..., Tensor] | None = None  # what calling it does

    def __call__(self, *inputs: Tensor) -> Tensor:
        assert self.run is not None
        return self.run(*inputs)


def tape_of(paper: Paper) -> Tape:
    """The finished tape of a program that has run."""
    paper.tape.finished = True
    return paper.tape
