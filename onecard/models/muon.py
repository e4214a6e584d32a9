"""Muon: momentum whose direction is made orthogonal before it is taken, for the matrices of a model's blocks.

Written once: `ops` are those of torch, which compute it, or of paper, which measure it. A matrix of r x c becomes
U V' of its singular value decomposition U S V', nearly: all its singular values go to about 1. Polynomials of products
do that without a decomposition. Matrices of one shape go through the products together, a batch at a time.

The memory of a step is obtained before anything changes, and the step itself needs none. Letters: n matrices of R rows
and C columns, S the smaller of both.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from onecard.paper.tags import OPTIMIZER_TEMPORARIES

Tensor = Any  # of torch, or on paper

# a, b, c of x' = a x + b (x x') x + c (x x')² x, one step each: Polar Express (Amsel et al. 2025, arXiv 2505.16932),
# five steps for singular values from 0.001 on. They expect a norm of at most 1 / SAFETY, for products in bfloat16.
STEPS = (
    (8.15655, -22.48329, 15.87877),
    (4.04293, -2.80892, 0.50002),
    (3.89167, -2.77248, 0.50606),
    (3.28575, -2.36813, 0.46449),
    (2.34654, -1.70978, 0.42324),
)
SAFETY = 1.01

# The most elements in a batch, if more than one weight is in it. 28 matrices of 768 x 768 fill any card, and their
# workspace is 128 MiB at 2 bytes.
BATCH_ELEMENTS = 2**24

Shape = tuple[int, ...]


@dataclass
class Batch:
    """Matrices of one shape, which go through the products together: weights, or equal parts of them."""

    rows: int
    columns: int
    parts: dict[int, int]  # of each weight, by its place in the list of all

    @property
    def matrices(self) -> int:
        return sum(self.parts.values())

    @property
    def smaller(self) -> int:
        return min(self.rows, self.columns)

    @property
    def elements(self) -> int:
        return self.matrices * self.rows * self.columns

    @property
    def gram_elements(self) -> int:
        return self.matrices * self.smaller**2

    @property
    def scale(self) -> float:
        """What makes updates of tall matrices change their outputs as much as those of square ones."""
        return sqrt(max(1.0, self.rows / self.columns))


def batches(weights: Sequence[tuple[Shape, int]]) -> list[Batch]:
    """All weights, given by shape and number of parts, in batches."""
    found: dict[tuple[int, int], list[Batch]] = {}
    for place, ((rows, columns), parts) in enumerate(weights):
        alike = found.setdefault((rows // parts, columns), [])
        if not alike or alike[-1].elements + rows * columns > BATCH_ELEMENTS:
            alike.append(Batch(rows // parts, columns, {}))
        alike[-1].parts[place] = parts
    return [batch for alike in found.values() for batch in alike]


@dataclass(frozen=True)
class Orthogonalisation:
    """What a card does in a step beside reading and writing weights, gradients and moments."""

    flops: int = 0  # of products
    moved_elements: int = 0  # in the type of products
    products: int = 0  # launches
    kernels: int = 0  # other launches


def orthogonalisation(weights: Sequence[tuple[Shape, int]]) -> Orthogonalisation:
    """The work of one step for weights, given by shape and number of parts."""
    flops = moved = products = kernels = 0
    for batch in batches(weights):
        larger, smaller = max(batch.rows, batch.columns), batch.smaller
        flops += len(STEPS) * batch.matrices * (4 * smaller**2 * larger + 2 * smaller**3)
        # In each step x is read three times, written, and copied for a sum; the Gram matrix and its polynomial too.
        moved += len(STEPS) * (6 * batch.elements + 8 * batch.gram_elements)
        moved += 4 * batch.elements + 4 * batch.gram_elements  # filled, scaled, read for the update
        products += 3 * len(STEPS)
        kernels += 2 * len(STEPS) + 8 + len(batch.parts)
    return Orthogonalisation(flops, moved, products, kernels)


@dataclass(slots=True)
class Workspace:
    """The memory of a step, for its largest batch; each batch takes the beginning."""

    x: Tensor
    next_x: Tensor
    gram: Tensor
    polynomial: Tensor
    norms: Tensor


class OrthogonalUpdates:
    """Muon's updates of weights, each given with its number of parts. `dtype` is that of products."""

    def __init__(self, ops: Any, weights: Sequence[tuple[Tensor, int]], dtype: Any) -> None:
        self.ops, self.dtype = ops, dtype
        self.weights = [weight for weight, _ in weights]
        self.batches = batches([(tuple(weight.shape), parts) for weight, parts in weights])
        self.workspace: Workspace | None = None

    def make_workspace(self) -> None:
        """Obtain all that a step needs, that of the library for products included."""
        if self.workspace is not None:
            return
        x = self._empty(max(batch.elements for batch in self.batches), self.dtype)
        next_x = self._empty(max(batch.elements for batch in self.batches), self.dtype)
        gram = self._empty(max(batch.gram_elements for batch in self.batches), self.dtype)
        polynomial = self._empty(max(batch.gram_elements for batch in self.batches), self.dtype)
        norms = self._empty(max(batch.matrices for batch in self.batches), self.ops.float32)
        one = x[:1].view(1, 1, 1)
        self.ops.multiply_batch(one, one, next_x[:1].view(1, 1, 1))  # a process's first product takes memory
        self.workspace = Workspace(x, next_x, gram, polynomial, norms)

    def free_workspace(self) -> None:
        """Give it back."""
        self.workspace = None

    def step(self, moments: Sequence[Tensor], *, rate: float, momentum: float, decay: float) -> None:
        """Change moments and weights. The gradients are used up."""
        ops = self.ops
        gradients = [weight.grad for weight in self.weights]
        ops.move_towards(moments, gradients, 1 - momentum)
        ops.move_towards(gradients, moments, momentum)  # Nesterov's look-ahead
        for batch in self.batches:
            updates_nRC = self._orthogonalised(batch, gradients)
            weights = [self.weights[place] for place in batch.parts]
            ops.add_updates(weights, list(_pieces(updates_nRC, batch)), kept=1 - rate * decay, by=-rate * batch.scale)

    def _empty(self, elements: int, dtype: Any) -> Tensor:
        return self.ops.empty((elements,), dtype=dtype, like=self.weights[0], part=OPTIMIZER_TEMPORARIES)

    def _orthogonalised(self, batch: Batch, gradients: Sequence[Tensor]) -> Tensor:
        """The matrices of a batch, orthogonalised, in the workspace. x x' is taken on the smaller side of x."""
        ops, space = self.ops, self.workspace
        assert space is not None
        shape, square = (batch.matrices, batch.rows, batch.columns), (batch.matrices, batch.smaller, batch.smaller)
        x, next_x = space.x[: batch.elements].view(*shape), space.next_x[: batch.elements].view(*shape)
        gram = space.gram[: batch.gram_elements].view(*square)
        polynomial = space.polynomial[: batch.gram_elements].view(*square)
        wide = batch.rows <= batch.columns
        ops.copy_all(list(_pieces(x, batch)), [gradients[place] for place in batch.parts])
        for number, (a, b, c) in enumerate(STEPS):
            ops.multiply_batch(*((x, x.mT) if wide else (x.mT, x)), gram)
            if number == 0:
                ops.normalise(x, gram, space.norms[: batch.matrices], safety=SAFETY)
            ops.multiply_batch(gram, gram, polynomial, factor=c, added=gram, share=b)
            ops.multiply_batch(*((polynomial, x) if wide else (x, polynomial)), next_x, added=x, share=a)
            x, next_x = next_x, x
        return x


def _pieces(x_nRC: Tensor, batch: Batch) -> Iterator[Tensor]:
    """What belongs to each weight, in its shape."""
    start = 0
    for parts in batch.parts.values():
        yield x_nRC[start : start + parts].flatten(0, 1)
        start += parts
