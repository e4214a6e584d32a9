"""What torch's clipping, gradient scaler and optimizers allocate."""

from __future__ import annotations

from collections.abc import Sequence

from onecard.paper import kernels
from onecard.paper.kernels import FLOAT, LONG
from onecard.paper.paper import Paper
from onecard.paper.tags import LOGITS_AND_LOSS, OPTIMIZER_STATE, OPTIMIZER_TEMPORARIES
from onecard.paper.tensor import Parameter, Tensor
from onecard.paper.work import UPDATE

TENSORS_PER_KERNEL = 6  # in operations on lists of tensors (profiled)


def clip_grad_norm(paper: Paper, parameters: Sequence[Parameter], max_norm: float) -> Tensor:
    """torch.nn.utils.clip_grad_norm_: a norm of norms, and a coefficient if it clips."""

    def scalar() -> Tensor:
        return paper.new((), FLOAT, OPTIMIZER_TEMPORARIES)

    elements = [parameter.numel for parameter in parameters]
    partial = paper.new((kernels.foreach_norm_scratch(elements),), 1, OPTIMIZER_TEMPORARIES)
    norms = [scalar() for _ in parameters]
    del partial
    stacked = paper.new((len(norms),), FLOAT, OPTIMIZER_TEMPORARIES)
    total = scalar()
    del stacked, norms
    values = sum(elements) * (3 if max_norm else 1)  # read for the norm; read and written to be scaled
    paper.work.add(UPDATE, moved_bytes=values * FLOAT)
    if max_norm:
        plus_epsilon, reciprocal, coefficient = scalar(), scalar(), scalar()
        del reciprocal, plus_epsilon
        clamped = scalar()
        del coefficient, clamped
    return total


class GradScaler:
    """torch.amp.GradScaler. Where it is not enabled it passes everything through."""

    def __init__(self, paper: Paper, *, enabled: bool) -> None:
        self.paper, self.enabled = paper, enabled
        self._found_inf: Tensor | None = None  # the flag that `unscale_` leaves behind, until the step

    def _scalar(self, dtype: int = FLOAT) -> Tensor:
        return self.paper.new((), dtype, OPTIMIZER_TEMPORARIES)

    def scale(self, x: Tensor) -> Tensor:
        """x times the scale, which is made when it is first used, with its growth tracker."""
        paper = self.paper
        if not self.enabled:
            return x
        if paper.first_use("gradient scaler"):
            paper.hold(FLOAT, OPTIMIZER_STATE)
            paper.hold(FLOAT, OPTIMIZER_STATE)
        node = paper.record([x])
        return paper.result(
            node, paper.new(x.shape, FLOAT, LOGITS_AND_LOSS), lambda gs, _: [paper.gradient(gs[0].shape, FLOAT)]
        )

    def unscale_(self, _optimizer: object) -> None:
        """All gradients by 1 / scale, which is computed in float64, and a flag for infinities."""
        if not self.enabled:
            return
        double = self._scalar(LONG)
        inverse = self._scalar(LONG)
        del double
        factor = self._scalar()
        del inverse
        self._found_inf = self._flag(factor)

    def _flag(self, factor: Tensor) -> Tensor:
        flag = self._scalar()
        flag_copy, factor_copy = self._scalar(), self._scalar()  # for the device, made even if there is only one
        del factor_copy, factor, flag
        return flag_copy

    def step(self, optimizer: FusedOptimizer) -> None:
        """The optimizer's step. One kernel also gets the scale if nobody has unscaled; the flags are summed for it."""
        if not self.enabled or not optimizer.reads_flags:
            optimizer.step()
            self._found_inf = None
            return
        has_unscaled = self._found_inf is not None
        if not has_unscaled:
            self._found_inf = self._flag(self._scalar())  # times 1: gradients are checked, not changed
        held = [self._scalar() for _ in range(1 if has_unscaled else 2)]
        optimizer.step()
        del held
        self._found_inf = None

    def update(self) -> None:
        """A new scale, in place."""


class FusedOptimizer:
    """An optimizer of torch in one kernel: its step changes everything in place, and its state is made by the first.

    `state_elements`: how many elements each tensor of its state has, in order. `moved_bytes`: by a step.
    """

    reads_flags = True  # the kernel itself skips the step where the scaler has found infinities

    def __init__(self, paper: Paper, parameters: list[Parameter], state_elements: list[int], moved_bytes: int) -> None:
        self.paper, self.parameters = paper, parameters
        self._state_elements, self._moved_bytes = state_elements, moved_bytes

    def make_state(self) -> None:
        """What the first step makes."""
        if not self.paper.first_use("optimizer state"):
            return
        for elements in self._state_elements:
            self.paper.hold(elements * FLOAT, OPTIMIZER_STATE)

    def make_workspace(self) -> None:
        """One kernel needs none."""

    def free_workspace(self) -> None:
        """There is none."""

    def step(self) -> None:
        """Everything else happens in place."""
        self.make_state()
        launches = len(self.parameters) / TENSORS_PER_KERNEL
        self.paper.work.add(UPDATE, moved_bytes=self._moved_bytes, kernels=launches)

    def zero_grad(self) -> None:
        """zero_grad(set_to_none=True)."""
        for parameter in self.parameters:
            parameter.grad = None
