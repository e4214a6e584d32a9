"""What a program asks of a card: every operation says its work once, forward and on the way back, part by part.

Work has no seconds: what a value or a byte costs depends on the card, and is fitted in plan/speed/.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onecard.paper.tensor import Shape, Tensor

MATMULS = "matmuls"  # of the blocks
HEAD = "head"  # products with the logits
ATTENTION_WORK = "attention"
ATTENTION_DROPOUT = "dropout in attention"  # its random numbers, one for each pair of tokens
MEMORY_BOUND = "memory-bound parts"
EMBEDDINGS_WORK = "embeddings"
DROPOUT = "dropout"  # its random numbers; its bytes are memory-bound
LOSS_WORK = "loss"
ACCUMULATION = "accumulation"  # gradients added to those of earlier micro-batches
UPDATE = "update"


@dataclass(frozen=True, slots=True)
class Work:
    """One part of a program, as a card sees it."""

    tensor_flops: float = 0.0  # matrix products
    values: float = 0.0  # read and written by norms, activations and softmax: what tensor cores cannot compute
    moved_bytes: float = 0.0  # read from and written to the card's memory
    kernels: float = 0.0  # launches of everything but products
    products: float = 0.0  # launches of matrix products and attention
    splits: float = 0.0  # zeros and sums of split products, which the product's own launch brings
    vector_flops: float = 0.0  # what the values cost, in operations of the card's shaders

    @property
    def launches(self) -> float:
        """Everything the host starts on the card."""
        return self.kernels + self.products

    @property
    def runs(self) -> float:
        """Everything that runs on the card, whoever starts it."""
        return self.launches + self.splits

    def __add__(self, other: Work) -> Work:
        """Both, one after the other."""
        return Work(
            self.tensor_flops + other.tensor_flops,
            self.values + other.values,
            self.moved_bytes + other.moved_bytes,
            self.kernels + other.kernels,
            self.products + other.products,
            self.splits + other.splits,
            self.vector_flops + other.vector_flops,
        )

    def __mul__(self, times: float) -> Work:
        """The same several times."""
        return Work(
            self.tensor_flops * times,
            self.values * times,
            self.moved_bytes * times,
            self.kernels * times,
            self.products * times,
            self.splits * times,
            self.vector_flops * times,
        )

    def costing(self, flops_per_value: float, *, byte: float = 1.0) -> Work:
        """The same, with what its values cost, and its bytes at `byte` times the usual cost."""
        return Work(
            self.tensor_flops,
            self.values,
            self.moved_bytes * byte,
            self.kernels,
            self.products,
            self.splits,
            self.values * flops_per_value,
        )


Parts = dict[str, Work]
NOTHING = Work()


class Ledger:
    """The work so far, by part."""

    __slots__ = ("_sums",)

    def __init__(self) -> None:
        self._sums: dict[str, list[float]] = {}  # in the order of Work's fields, as far as operations know them

    def _of(self, part: str) -> list[float]:
        sums = self._sums.get(part)
        if sums is None:
            sums = self._sums[part] = [0.0] * 5
        return sums

    def add(
        self,
        part: str,
        *,
        tensor_flops: float = 0.0,
        values: float = 0.0,
        moved_bytes: float = 0.0,
        kernels: float = 0.0,
        products: float = 0.0,
    ) -> None:
        """An operation's work."""
        sums = self._of(part)
        sums[0] += tensor_flops
        sums[1] += values
        sums[2] += moved_bytes
        sums[3] += kernels
        sums[4] += products

    def moves(self, part: str, *tensors: Tensor, kernels: float = 1.0) -> None:
        """A kernel that reads or writes these tensors, each once, and computes little: casts, sums, copies."""
        sums = self._of(part)
        for tensor in tensors:
            sums[2] += prod(tensor.shape) * tensor.dtype
        sums[3] += kernels

    def computes(self, part: str, *tensors: Tensor, kernels: float = 1.0) -> None:
        """A kernel that reads or writes these tensors, each once, and computes much: norms, activations, softmax."""
        sums = self._of(part)
        for tensor in tensors:
            values = prod(tensor.shape)
            sums[1] += values
            sums[2] += values * tensor.dtype
        sums[3] += kernels

    def multiplies(self, part: str, shape: Shape, columns: int, element: int, *, result: int = 0) -> None:
        """A product of (..., inner), of this shape, and (inner, columns), whose elements have `element` bytes.

        The result is written once in the same type, unless `result` says how many bytes of each element are moved.
        """
        *outer, inner = shape
        rows, sums = prod(outer), self._of(part)
        sums[0] += 2.0 * rows * inner * columns
        sums[2] += element * inner * (rows + columns) + (result or element) * rows * columns
        sums[4] += 1

    def so_far(self) -> dict[str, list[float]]:
        """The sums, to be subtracted from later ones."""
        return {part: sums[:] for part, sums in self._sums.items()}

    def since(self, before: dict[str, list[float]]) -> dict[str, list[float]]:
        """What was added after `so_far`."""
        return {
            part: [one - other for one, other in zip(sums, before.get(part, [0.0] * 5), strict=True)]
            for part, sums in self._sums.items()
        }

    def repeat(self, stretch: dict[str, list[float]], times: int = 1) -> None:
        """The work of a stretch again, which did not run again."""
        for part, more in stretch.items():
            self._sums[part] = [one + times * other for one, other in zip(self._of(part), more, strict=True)]

    def taken(self) -> Parts:
        """All work since the last time this was asked."""
        sums, self._sums = self._sums, {}
        return {part: Work(*each) for part, each in sums.items()}
