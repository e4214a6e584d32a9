"""PyTorch's autograd on paper: what an operation keeps for its backward pass, and in which order gradients are made.

Operations run backwards from the last to the first. An operation's results are checked (cast to the type and summed to
the shape of its inputs) while the gradient it was given is still there; then all it kept is let go. A gradient that
meets another is added into it, unless that one was made transposed.

Source: torch/csrc/autograd/engine.cpp (evaluate_function, validate_outputs), input_buffer.cpp (accumulate),
functions/accumulate_grad.h, torch/utils/checkpoint.py.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import TYPE_CHECKING, Any

from onecard.paper.tags import GRADIENTS, Section
from onecard.paper.tensor import Parameter, Shape, Storage, Tensor
from onecard.paper.work import ACCUMULATION, MEMORY_BOUND

if TYPE_CHECKING:
    from onecard.paper.paper import Paper

Gradients = Sequence[Tensor | None]


class Node:
    """An operation of the graph: where its gradients go, what it keeps, how it runs backwards."""

    __slots__ = ("backward", "edges", "lets_go", "metas", "order", "results", "saved", "section")

    def __init__(self, order: int, inputs: Sequence[Tensor | None], section: Section | None) -> None:
        self.order, self.section, self.results = order, section, 1
        self.edges = [None if tensor is None else tensor.edge for tensor in inputs]
        self.metas: list[tuple[Shape, int] | None] = [
            None if tensor is None else (tensor.shape, tensor.dtype) for tensor in inputs
        ]
        self.saved: list[Storage | Remade] = []
        self.lets_go = False  # several operations in one: `backward` itself lets go of what it no longer needs
        self.backward: Callable[[list[Any], list[Storage]], Gradients] | None = None


class Recomputation:
    """A part of a model that keeps only its input, and runs again when its backward pass first asks for something.

    It runs no further than to the last tensor that is asked for.
    """

    def __init__(self, again: Callable[[], object]) -> None:
        self.again = again  # its input stays as long as something of the part is still to be asked for
        self.count = 0  # of the tensors kept in the first run
        self.remade: list[Storage | None] | None = None  # those of the second run

    def keep(self, storage: Storage) -> Remade:
        """Note a tensor of either run. The second one ends with the last of them."""
        if self.remade is None:
            self.count += 1
            return Remade(self, self.count - 1)
        self.remade.append(storage)
        if len(self.remade) == self.count:
            raise AllRemade
        return Remade(self, len(self.remade) - 1)


class Remade:
    """A tensor that is kept by a recomputation: not at all, until it is asked for."""

    __slots__ = ("index", "part")

    def __init__(self, part: Recomputation, index: int) -> None:
        self.part, self.index = part, index

    def take(self, paper: Paper) -> Storage:
        """The tensor, after running the part again if need be; from now on only the caller holds it."""
        part = self.part
        if part.remade is None:
            part.remade = []
            paper.run_again(part, part.again)
        storage = part.remade[self.index]
        part.remade[self.index] = None
        assert storage is not None
        return storage


class AllRemade(Exception):
    """The last tensor that the backward pass needs has been made again."""


def run_backward(paper: Paper, root: Tensor, gradient: Tensor) -> None:
    """From the gradient of `root` to those of all parameters: the latest operation first, parameters at once."""
    assert root.node is not None
    waiting = _uses(root.node)
    given: dict[Node | Parameter, list[Tensor | None]] = {root.node: [gradient]}
    ready: list[tuple[int, int, Node | Parameter]] = [(-root.node.order, 0, root.node)]
    del gradient
    while ready:
        *_, node = heapq.heappop(ready)
        received = given.pop(node)
        if isinstance(node, Parameter):
            _accumulate(paper, node, received)
            continue
        paper.enter_backward(node.section)
        made = _gradients(paper, node, received)
        received = []
        node.saved.clear()
        node.backward = None
        for slot, edge in enumerate(node.edges):
            grad, made[slot] = made[slot], None
            if edge is None:
                continue
            to, at = edge
            slots = given.setdefault(to, [None] * to.results)
            if grad is not None:
                _add(paper, slots, at, grad)
            grad = None
            waiting[to] -= 1
            if not waiting[to]:
                heapq.heappush(ready, (-to.order, slot, to))
    paper.enter_backward(None)


def _uses(root: Node) -> dict[Node | Parameter, int]:
    """How many gradients each operation and parameter waits for."""
    uses: dict[Node | Parameter, int] = {}
    todo: list[Node | Parameter] = [root]
    while todo:
        for edge in todo.pop().edges:
            if edge is not None:
                if edge[0] not in uses:
                    todo.append(edge[0])
                uses[edge[0]] = uses.get(edge[0], 0) + 1
    return uses


def _gradients(paper: Paper, node: Node, received: list[Tensor | None]) -> list[Tensor | None]:
    """The gradients of a node's inputs, each in its input's type and shape."""
    kept = [each.take(paper) if isinstance(each, Remade) else each for each in node.saved]
    if node.lets_go:
        node.saved.clear()
    assert node.backward is not None
    made = list(node.backward(received, kept))
    del kept
    for slot, meta in enumerate(node.metas):
        grad = made[slot]
        if grad is None or meta is None:
            continue
        shape, dtype = meta
        if len(grad.shape) > len(shape) and grad.shape[-len(shape) :] == shape:  # a bias, positions: one for all
            grad = paper.summed(grad, shape)
        if grad.dtype != dtype:
            narrow, grad = grad, paper.gradient(grad.shape, dtype)
            paper.work.moves(MEMORY_BOUND, narrow, grad)
            del narrow
        made[slot] = grad
    return made


def _add(paper: Paper, slots: list[Tensor | None], at: int, grad: Tensor) -> None:
    """Add a gradient to the one that is there, in its memory where that is allowed."""
    before = slots[at]
    if before is None:
        slots[at] = grad
        return
    paper.work.moves(MEMORY_BOUND, before, grad, before)
    if before.transposed:
        slots[at] = paper.gradient(before.shape, before.dtype)


def _accumulate(paper: Paper, parameter: Parameter, received: list[Tensor | None]) -> None:
    """The first gradient of a parameter is kept as it is, or as a copy if somebody else holds it; others are added."""
    grad = received.pop()
    if grad is None:
        return
    if parameter.grad is not None:
        paper.work.moves(ACCUMULATION, parameter.grad, grad, parameter.grad)
        return
    held_by_others = getrefcount(grad.storage) > 2  # more than the tensor and this call
    parameter.grad = paper.gradient(grad.shape, grad.dtype) if held_by_others else grad
    if parameter.name:
        parameter.grad.storage.is_for(GRADIENTS)
