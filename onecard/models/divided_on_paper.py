"""A run on paper whose model is divided among the ranks, as FSDP2 does it for train/sharding.py: one rank's memory.

A rank holds its rows of every weight. A group (a block; all that is outside of them) is gathered into a buffer, and
from there into its weights. The next block of the backward pass is gathered while one computes. When a group's
gradients are made, its weights are freed; the gradients are put into another buffer, and this rank's rows of their sum
come out of it. Sources: torch/distributed/fsdp/_fully_shard/_fsdp_param_group.py and _fsdp_collectives.py of 2.13.
FSDP2 gathers and sums on streams of their own, among which the allocator shares no free memory; here there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

from onecard.config.schema import RunConfig
from onecard.models.on_paper import Named, optimizer_on_paper
from onecard.models.optimizers import optimizer_of
from onecard.models.ranks import Ranks
from onecard.models.run_on_paper import PaperRun
from onecard.models.structure import Kind
from onecard.paper.device import Device
from onecard.paper.kernels import FLOAT
from onecard.paper.library import FusedOptimizer
from onecard.paper.operations import PaperOperations
from onecard.paper.tags import GATHERED, GRADIENTS
from onecard.paper.tensor import Parameter, Shape, Storage, Tensor

NOWHERE = -1  # the block of a weight that is not there


class DividedOperations(PaperOperations):
    """Weights are made elsewhere, and the end of a backward pass is told."""

    after_backward: Callable[[], None]

    def parameter(self, name: str, *shape: int) -> Parameter:
        return Parameter(Storage(self, NOWHERE, GATHERED), shape, FLOAT, name)

    def remembered(self, function: Callable[..., Any], parameters: Any = ()) -> Any:
        """What is gathered is no input of the function, so nothing is remembered."""
        return function

    def backward(self, loss: Tensor) -> None:
        super().backward(loss)
        self.after_backward()


class Group:
    """Weights that are gathered together."""

    def __init__(self, weights: list[Parameter], shares: list[Parameter], dtype: int) -> None:
        self.weights, self.shares, self.dtype = weights, shares, dtype
        self.arrived: Tensor | None = None  # the buffer, until the weights have been copied out of it
        self.gathered: list[Tensor] = []
        for weight in weights:
            weight.dtype = dtype

    @property
    def share(self) -> int:
        """Elements of one rank."""
        return sum(each.numel for each in self.shares)


class DividedRun(PaperRun):
    """A run as one of several ranks that share its model."""

    def __init__(self, config: RunConfig, device: Device, *, ranks: Ranks) -> None:
        self._of = ranks.world_size
        self._kept: Tensor | None = None  # the buffer of the group that was gathered last, in a forward pass
        self._summed: Tensor | None = None  # that of the gradients that were summed last
        super().__init__(config, device, ranks=ranks)

    def operations(self, device: Device) -> PaperOperations:
        ops = DividedOperations(device, half=self.config.dtype != "float32", deterministic=self.config.deterministic)
        ops.after_backward = self._end_backward
        return ops

    def trained(self, p: Named) -> list[Parameter]:
        """This rank's shares."""
        ops, of = self.ops, self._of

        def share(weight: Parameter) -> Parameter:
            rows, *rest = weight.shape
            return PaperOperations.parameter(ops, weight.name, -(-rows // of), *rest)

        shares = {weight.name: share(weight) for weight in p.parameters}

        def group(within: str, dtype: int) -> Group:
            weights = [each for each in p.parameters if each.name.startswith(within) and each.name in left]
            left.difference_update(each.name for each in weights)
            return Group(weights, [shares[each.name] for each in weights], dtype)

        left = set(shares)
        self._blocks = [group(block.name, ops.compute_dtype) for block in p.transformer.h]
        self._rest = group("", FLOAT)
        return list(shares.values())

    def optimizer(self, shares: list[Parameter], kinds: dict[str, Kind]) -> FusedOptimizer:
        whole = {weight.name: self._somewhere_else(weight) for weight in self.p.parameters}
        return optimizer_on_paper(self.ops, shares, optimizer_of(self.config), kinds, whole=whole, of=self._of)

    def _somewhere_else(self, weight: Parameter) -> Parameter:
        """A whole weight and its gradient, which are nowhere on this card."""
        whole = Parameter(Storage(self.ops, NOWHERE, GATHERED), weight.shape, FLOAT, weight.name)
        whole.grad = whole.detach()
        return whole

    def loss(self, x_BT: Tensor, y_BT: Tensor) -> Tensor:
        self._gather(self._rest, forward=True)
        value: Tensor = self.model.loss(self.p, x_BT, y_BT)
        self._kept = None
        return self._marked(value, lambda: self._begin_gathering(len(self._blocks) - 1))

    def token_losses(self, x_BT: Tensor, y_BT: Tensor) -> Tensor:
        self._gather(self._rest, forward=True)
        value: Tensor = self.model.token_losses(self.p, x_BT, y_BT)
        self._kept = None
        return value

    def evaluate(self) -> None:
        super().evaluate()
        self._rest.gathered = []

    def connect(self, p: Named, model: Any) -> None:
        super().connect(p, model)
        for number, block in enumerate(p.transformer.h):
            block.run = partial(self._block, number, block.run)

    def _block(self, number: int, run: Callable[..., Any], *inputs: Tensor) -> Any:
        """A block's forward pass, with what comes before and after its backward pass."""
        group = self._blocks[number]
        self._gather(group, forward=True)
        inputs = self._marked_together(inputs, lambda: self._sum(group))
        outputs = run(*inputs)
        del inputs
        group.gathered = []
        mark = partial(self._marked, before=partial(self._before_backward, number))
        return mark(outputs) if isinstance(outputs, Tensor) else tuple(map(mark, outputs))

    # what comes when

    def _before_backward(self, number: int) -> None:
        group = self._blocks[number]
        if not group.gathered:
            self._gather(group, forward=False)
            self._begin_gathering(number - 1)

    def _end_backward(self) -> None:
        self._sum(self._rest)
        self._summed = None

    def _marked(self, x: Tensor, before: Callable[[], None]) -> Tensor:
        """x; `before` is called when its gradient has been made."""
        (out,) = self._marked_together((x,), before)
        return out

    def _marked_together(self, tensors: tuple[Tensor, ...], then: Callable[[], None]) -> tuple[Tensor, ...]:
        """The tensors; `then` is called when all their gradients have been made."""
        node = self.ops.record(list(tensors))
        if node is None:
            return tensors
        node.results = len(tensors)
        marked = tuple(each.detach() for each in tensors)
        for slot, each in enumerate(marked):
            each.node, each.slot = node, slot

        def backward(gradients: list[Any], _kept: list[Storage]) -> list[Any]:
            then()
            return list(gradients)

        node.backward = backward
        return marked

    # memory

    def _new(self, shape: Shape, dtype: int) -> Tensor:
        return self.ops.new(shape, dtype, GATHERED)

    def _begin_gathering(self, number: int) -> None:
        """Make the buffer for a block's weights, and fill it."""
        if number < 0:
            return
        group = self._blocks[number]
        if group.arrived is None and not group.gathered:
            group.arrived = self._buffer(group)

    def _buffer(self, group: Group) -> Tensor:
        narrow = self._new((group.share,), group.dtype) if group.dtype != FLOAT else None
        whole = self._new((self._of * group.share,), group.dtype)
        del narrow
        return whole

    def _gather(self, group: Group, *, forward: bool) -> None:
        if group.gathered:
            return
        arrived, group.arrived = group.arrived or self._buffer(group), None
        if forward:
            self._kept = None
        group.gathered = [self._new((self._of * each.numel,), group.dtype) for each in group.shares]
        if forward:
            self._kept = arrived  # until the next group has been gathered

    def _sum(self, group: Group) -> None:
        """Free a group's weights, and sum its gradients over the ranks."""
        group.gathered = []
        self._summed = None
        whole = self._new((self._of * group.share,), FLOAT)
        for weight in group.weights:
            weight.grad = None
        mine = self.ops.new((group.share,), FLOAT, GRADIENTS)
        self._summed = whole
        for share in group.shares:
            if share.grad is None:
                share.grad = mine.like(prod(share.shape))
