"""The trainer with compile=True: compiled blocks, and from the second update on a recorded micro-batch."""

from __future__ import annotations

from collections.abc import Mapping

from onecard.config.schema import RunConfig
from onecard.plan.memory.device import Device
from onecard.plan.memory.inductor.launch import time_configurations
from onecard.plan.memory.inductor.wrapper import Program, compiled
from onecard.plan.memory.kernels import LONG
from onecard.plan.memory.nanogpt.compiled.builder import Traced
from onecard.plan.memory.nanogpt.compiled.shape import Shape
from onecard.plan.memory.onecard.compiled.backward import GRADIENTS_IN, backward, last_norm_backward
from onecard.plan.memory.onecard.compiled.forward import forward, last_norm
from onecard.plan.memory.onecard.compiled.keeps import Mode
from onecard.plan.memory.onecard.model import Model, Passed
from onecard.plan.memory.onecard.recorded import RecordingTrainer
from onecard.plan.memory.tags import (
    ACTIVATIONS,
    ATTENTION,
    GRADIENTS,
    GRADIENTS_IN_FLIGHT,
    WORKSPACE,
)

# The generator's state that memory-efficient attention keeps. It is on the host, but on the card while a graph is
# recorded (mem_eff_attention, attention.cu, _efficient_attention_forward: in_capture_stream).
GENERATOR = ("generator seed", "generator offset")

IN_FLIGHT = {GRADIENTS: GRADIENTS_IN_FLIGHT}  # parameters' gradients that are added to earlier ones

Kept = dict[str, int]  # the blocks of what a forward pass kept, by name


class CompiledTrainer(RecordingTrainer, Model):
    """Blocks are three graphs (evaluation, forward, backward), each compiled when it is first called."""

    def __init__(self, config: RunConfig, device: Device, *, cold: bool = True) -> None:
        super().__init__(config, device)
        self.cold = cold
        self.mode: Mode = config.grad_checkpoint
        self.programs: dict[str, tuple[Traced, Program]] = {}
        self.shape = Shape(config, device)
        self.called: set[tuple[str, bool]] = set()  # graphs called before, and whether while recording
        self.running = ""  # the graph being called

    # blocks

    def block(self, layer: int, x: int, added: int, *, train: bool) -> Passed:
        """The forward graph of a block, or the one for evaluation."""
        found = self.call(self.mode if train else f"evaluation of {self.B}")
        if not train:
            return Passed(found["x"], found["added"], False, None)
        kept = found | {"layer": layer}
        if self.capturing and self.kernel == "efficient" and self.mode != "full":
            kept |= {name: self.alloc(LONG, ATTENTION) for name in GENERATOR}
        return Passed(found["x"], found["added"], self.mode != "full", kept)

    def backward_block(self, kept: Kept, gradient: int, branch: int, *, first: bool) -> tuple[int, int]:
        """The backward graph of a block; the gradients of its parameters all come at its end."""
        layer = kept["layer"]
        inputs = kept | dict(zip(GRADIENTS_IN, (gradient, branch), strict=True))
        found = self.call("backward", inputs, None if first else IN_FLIGHT)
        self.free(*{gradient, branch})
        gradient, branch = found["x gradient"], found["added gradient"]
        if layer == 0:  # the gradient of the zeros is a copy, made before others are added up
            branch = self.alloc(self.narrow, GRADIENTS_IN_FLIGHT)
        self.free(*[kept[name] for name in GENERATOR if name in kept])
        for name, block in found.items():
            if name.endswith((".weight", ".bias")):
                self.keep(f"{layer}.{name.partition('.')[2]}", block, first)
        return gradient, branch

    # around the blocks

    def embedded(self, *, train: bool) -> tuple[int, int, list[int]]:
        """As in eager mode, and x in the compute type."""
        positions, x, mask = super().embedded(train=train)
        return positions, self.replaced(x, self.narrow, ACTIVATIONS) if self.is_half else x, mask

    def last_norm(self, x: int, added: int, *, train: bool) -> tuple[int, Kept]:
        """The graph of the last norm, or the one for evaluation."""
        found = self.call("last norm" if train else f"last norm of {self.B}")
        return found["hidden"], found

    def backward_last_norm(self, kept: Kept, d_hidden: int, *, first: bool) -> tuple[int, int]:
        """Its backward graph; the gradient of what was added is the same as that of x."""
        found = self.call("last norm backward", kept | {"d_hidden": d_hidden}, None if first else IN_FLIGHT)
        self.free(d_hidden)
        for name in [name for name in found if name.endswith((".weight", ".bias"))]:
            self.keep(name.removeprefix("0."), found[name], first)
        return found["x gradient"], found["x gradient"]

    def backward_embeddings(self, gradient: int, first: bool) -> None:
        """As in eager mode, from the gradient in float32."""
        if self.is_half:
            gradient = self.replaced(gradient, self.stream, GRADIENTS_IN_FLIGHT)
        super().backward_embeddings(gradient, first)

    # graphs

    def call(
        self, name: str, inputs: Mapping[str, int] | None = None, other_tags: Mapping[str, str] | None = None
    ) -> dict[str, int]:
        """Run a compiled graph; returns the blocks of its inputs and of what it returns, by name."""
        if name not in self.programs:
            self.programs[name] = self.compiled(name)
        traced, program = self.programs[name]
        self.running = name
        first = (self.running, self.capturing) not in self.called  # all layers run the same code
        self.called.add((self.running, self.capturing))
        given = {traced.named[key]: block for key, block in (inputs or {}).items() if key in traced.named}
        blocks = program.run(self.tape, given, self.first_use if first else None, other_tags)
        self.running = ""
        return {key: blocks[program.slots[buffer]] for key, buffer in traced.named.items()}

    def compiled(self, name: str) -> tuple[Traced, Program]:
        """Trace, schedule and plan a graph."""
        if name == "backward":
            traced = backward(self.shape, self.programs[self.mode][0], self.mode)
        elif name == "last norm backward":
            traced = last_norm_backward(self.shape, self.programs["last norm"][0])
        elif name == self.mode:
            traced = forward(self.shape, self.mode)
        elif name == "last norm":
            traced = last_norm(self.shape, "none")
        else:
            batch = {"batch_size": self.B, "block_size": self.T, "eval_block_size": None}
            shape = Shape(self.config.replace(batch), self.device)
            traced = (last_norm if name.startswith("last norm") else forward)(shape, "evaluation")
        return traced, compiled(traced.graph)

    def first_use(self, kernel: str, overwritten: list[int]) -> None:
        """What a kernel's first launch allocates: library workspaces, which stay, and Triton's tuning, which ends."""
        if kernel in ("mm", "addmm"):
            self.cublas("backward" if self.running.endswith("backward") else "forward", with_lt=kernel == "addmm")
        if self.capturing:
            return
        if self.kernel == "cudnn" and kernel.startswith("attention"):
            self.loads(kernel.replace("attention", "cudnn"))
        if kernel == "timed" and self.cold:
            may_raise_peak = self.running == self.mode
            time_configurations(self.tape, self.device, overwritten, may_raise_peak=may_raise_peak)

    def cublas(self, thread: str, *, with_lt: bool = False) -> None:
        """A product. The stream on which a graph is recorded has its own workspaces, which outlive the graph."""
        if not self.capturing:
            super().cublas(thread, with_lt=with_lt)
            return
        device = self.device
        needed = {f"recorded {thread}": device.cublas_workspace_bytes}
        if with_lt:
            needed[f"recorded {thread}, lt"] = device.cublaslt_workspace_bytes
        for what, size in needed.items():
            if what not in self.used:
                self.used.add(what)
                self.alloc(size, WORKSPACE)
