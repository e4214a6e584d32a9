"""Compiled graphs in a program on paper: each is traced and planned when it is first called, then runs as planned."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from onecard.paper.paper import Paper
from onecard.paper.tags import GRADIENTS, GRADIENTS_IN_FLIGHT
from onecard.paper.tensor import Parameter, Shape, Storage, Tensor
from onecard.plan.memory.inductor.kernel_graph import Traced
from onecard.plan.memory.inductor.launch import time_configurations
from onecard.plan.memory.inductor.wrapper import Program, compiled

IN_FLIGHT = {GRADIENTS: GRADIENTS_IN_FLIGHT}  # parameters' gradients that are added to earlier ones


class CompiledGraphs:
    """The graphs of a compiled model, by name. `forward` names those whose timing may raise the peak."""

    def __init__(self, paper: Paper, trace: Callable[[str], Traced], *, forward: str, cold: bool) -> None:
        self.paper, self.trace, self.forward, self.cold = paper, trace, forward, cold
        self.programs: dict[str, tuple[Traced, Program]] = {}
        self.running = ""

    def call(
        self, name: str, inputs: Mapping[str, int] | None = None, other_tags: Mapping[str, str] | None = None
    ) -> dict[str, int]:
        """Run a compiled graph; returns the blocks of its inputs and of what it returns, by name."""
        traced, program = self.compiled(name)
        self.running = name
        first = self.paper.first_use(f"graph {name}{', recorded' * self.paper.captures}")  # layers run the same code
        given = {traced.named[key]: block for key, block in (inputs or {}).items() if key in traced.named}
        blocks = program.run(self.paper.tape, given, self.first_use if first else None, other_tags)
        return {key: blocks[program.slots[buffer]] for key, buffer in traced.named.items()}

    def compiled(self, name: str) -> tuple[Traced, Program]:
        """The graph, traced and planned when it is first called."""
        if name not in self.programs:
            traced = self.trace(name)
            self.programs[name] = traced, compiled(traced.graph)
        return self.programs[name]

    def first_use(self, kernel: str, overwritten: list[int]) -> None:
        """What a kernel's first launch allocates: library workspaces, which stay, and Triton's tuning, which ends."""
        if kernel in ("mm", "addmm"):
            self.paper.cublas(with_lt=kernel == "addmm")  # a bias goes through cuBLASLt
        if self.paper.captures:
            return
        if kernel.startswith("cudnn attention"):
            self.paper.loads(kernel.replace(" attention", ""))
        if kernel == "timed" and self.cold:
            may_raise_peak = self.running == self.forward
            time_configurations(self.paper.tape, self.paper.device, overwritten, may_raise_peak=may_raise_peak)

    def tensor(self, block: int, shape: Shape, dtype: int) -> Tensor:
        """A block that a graph returned, as a tensor of the program."""
        return Tensor(Storage(self.paper, block, self.paper.tape.tags[block]), shape, dtype)

    def gradient(self, parameter: Parameter, block: int) -> Tensor:
        """A parameter's gradient that a graph returned."""
        return Tensor(Storage(self.paper, block, GRADIENTS), parameter.shape, parameter.dtype)
