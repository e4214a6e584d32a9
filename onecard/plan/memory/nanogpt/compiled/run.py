"""nanoGPT's model under nanoGPT's loop, with torch.compile: every allocation and free, in PyTorch's order.

What compilation changes: the backward returns all gradients at its end, so old and new ones coexist while
accumulating. Because the graph returns logits, autograd passes the backward a zero gradient of their size.
"""

from __future__ import annotations

from onecard.config.schema import RunConfig
from onecard.plan.memory.device import Device
from onecard.plan.memory.inductor.launch import time_configurations
from onecard.plan.memory.inductor.wrapper import Program, compiled
from onecard.plan.memory.nanogpt.compiled.backward import backward
from onecard.plan.memory.nanogpt.compiled.builder import Traced
from onecard.plan.memory.nanogpt.compiled.forward import forward, inference
from onecard.plan.memory.nanogpt.compiled.shape import Padding, Shape
from onecard.plan.memory.nanogpt.loop import Loop
from onecard.plan.memory.tags import GRADIENTS, GRADIENTS_IN_FLIGHT, LOGITS_AND_LOSS, WORKSPACE
from onecard.plan.memory.tape import Tape


def compiled_tape(
    config: RunConfig,
    device: Device,
    *,
    cold: bool = True,
    returns_logits: bool = True,
    padding: Padding | None = None,
) -> Tape:
    """All of a run's allocations and frees: phases "init", "eval0", "train", "eval", in nanoGPT's order.

    `cold`: the first run of this model on this machine, when Triton times its kernels and Inductor times the padding of
    the head. Later runs find both in the cache on disk, and reserve a few tens of MiB less.
    `padding`: the outcome of timing an odd vocabulary's head, if it is not the usual one.
    """
    return CompiledRun(config, device, cold=cold, returns_logits=returns_logits, padding=padding).run()


class CompiledRun(Loop):
    """train.py with compile=True: the model is three graphs, each compiled when it is first called."""

    def __init__(
        self,
        config: RunConfig,
        device: Device,
        *,
        cold: bool = True,
        returns_logits: bool = True,
        padding: Padding | None = None,
    ) -> None:
        super().__init__(config, device, returns_logits=returns_logits)
        self.cold = cold
        self.shape = Shape(config, device, returns_logits=returns_logits, padding=padding)
        self.programs: dict[str, tuple[Traced, Program]] = {}
        self.running = ""  # the graph that was called last
        self.kept: dict[str, int] = {}  # what the last forward pass in training left for the backward pass

    def forward_for_evaluation(self) -> tuple[int, int]:
        """The inference graph."""
        found = self.call("evaluation")
        return found["logits"], found["loss"]

    def forward(self) -> tuple[int | None, int]:
        """The forward graph of training. `kept` has what the backward graph takes, always including the logits."""
        self.kept = self.call("forward")
        return self.kept["logits"] if self.returns_logits else None, self.kept.pop("loss")

    def backward(self, gradient: int, ids: tuple[int, int], first: bool) -> None:
        """The backward graph. Autograd passes a gradient for each output: for the logits, zeros, held to the end.

        Logits that are not returned belong only to the graph (a donated buffer): their gradient is written over them.
        """
        X, Y = ids
        zeros = [self.alloc(self.N * self.V * self.item, LOGITS_AND_LOSS)] if self.returns_logits else []
        other_tags = None if first else {GRADIENTS: GRADIENTS_IN_FLIGHT}
        found = self.call("backward", self.kept | {"tokens": X, "targets": Y}, other_tags)
        self.free(*zeros, gradient)
        new = {name: found[name] for name in self.parameters}
        if first:
            self.gradients = new
        else:
            self.free(*new.values())  # added to the old ones

    # the graphs

    def call(
        self, name: str, inputs: dict[str, int] | None = None, other_tags: dict[str, str] | None = None
    ) -> dict[str, int]:
        """Run a compiled graph; returns the blocks of its inputs and of what it returns, by name."""
        first = name not in self.programs
        if first:
            self.compile(name)
        traced, program = self.programs[name]
        self.running = name
        given = {traced.named[key]: block for key, block in (inputs or {}).items()}
        blocks = program.run(self.tape, given, self.first_use if first else None, other_tags)
        return {key: blocks[program.slots[buffer]] for key, buffer in traced.named.items()}

    @property
    def thread(self) -> str:
        """Whose cuBLAS handle is in use."""
        return "backward" if self.running == "backward" else "forward"

    def first_use(self, kernel: str, overwritten: list[int]) -> None:
        """What a kernel's first launch allocates: library workspaces, which stay, and Triton's tuning, which ends."""
        if kernel in ("mm", "addmm"):
            self.cublas(self.thread, with_lt=kernel == "addmm")  # a bias goes through cuBLASLt
        if self.kernel == "cudnn" and kernel.startswith("attention"):
            self.loads(kernel.replace("attention", "cudnn"))
        if kernel == "timed" and self.cold:
            time_configurations(self.tape, self.device, overwritten, may_raise_peak=self.running == "forward")

    def compile(self, name: str) -> None:
        """Trace, partition, schedule and plan a graph; torch.compile does it when the graph is first called."""
        if name == "evaluation":
            traced = inference(self.shape)
        elif name == "forward":
            traced = forward(self.shape)
        else:
            traced = backward(self.shape, self.programs["forward"][0])
        self.programs[name] = (traced, compiled(traced.graph))
        if self.cold and self.shape.V_padded != self.shape.V:
            self.time_padding(name)

    def time_padding(self, name: str) -> None:
        """Inductor times the head's products before it pads them: the forward's once, both gradients' in training."""
        s, alloc, free = self.shape, self.alloc, self.free
        logits, padded_logits = s.N * s.V * s.item, s.N * s.V_padded * s.item
        weight, padded_weight = s.V * s.C * s.item, s.V_padded * s.C * s.item
        x = s.N * s.C * s.item
        self.tape.moment("compilation")

        def timed(operands: list[int], plain: list[int], copies: list[int], padded: list[int]) -> None:
            """Random operands and those copies that are not timed; then what each of the two ways allocates."""
            held = [alloc(size, WORKSPACE) for size in operands + copies]
            for way in (plain, padded):
                for flushed in (False, True):
                    flush = [alloc(self.device.l2_cache_bytes, WORKSPACE)] if flushed else []
                    made = [alloc(size, WORKSPACE) for size in way]
                    self.cublas(self.thread)
                    free(*made, *flush)
            free(*held)

        if name == "evaluation":
            timed([x, weight], [logits], [], [padded_weight, padded_logits])
        elif name == "forward":
            if s.is_half:  # gradient and weight are padded when they are made
                timed([logits, weight], [x], [padded_logits, padded_weight], [x])
            else:
                timed([logits, weight], [x], [padded_logits], [padded_weight, x])
            timed([logits, x], [weight], [], [padded_logits, padded_weight])
