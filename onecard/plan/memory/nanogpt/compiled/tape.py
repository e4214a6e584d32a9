"""nanoGPT's model under nanoGPT's loop, with torch.compile: three graphs instead of model.py.

What compilation changes: the backward returns all gradients at its end, so old and new ones coexist while
accumulating. Because the graph returns logits, autograd passes the backward a zero gradient of their size.
"""

from __future__ import annotations

from onecard.config.schema import RunConfig
from onecard.models.gpt2 import structure
from onecard.models.nanogpt import Train
from onecard.models.on_paper import weights_on_paper
from onecard.paper.device import Device
from onecard.paper.paper import Paper
from onecard.paper.tags import LOGITS_AND_LOSS, WORKSPACE
from onecard.paper.tape import Tape
from onecard.paper.tensor import Parameter, Storage, Tensor
from onecard.plan.memory.inductor.calls import IN_FLIGHT, CompiledGraphs
from onecard.plan.memory.inductor.kernel_graph import Traced
from onecard.plan.memory.nanogpt.compiled.backward import backward
from onecard.plan.memory.nanogpt.compiled.forward import forward, inference
from onecard.plan.memory.nanogpt.compiled.shape import Padding, Shape


def compiled_tape(
    config: RunConfig,
    device: Device,
    *,
    cold: bool = True,
    returns_logits: bool = True,
    padding: Padding | None = None,
    train: type[Train] = Train,
) -> Tape:
    """All of a run's allocations and frees: phases "init", "eval0", "train", "eval", in nanoGPT's order.

    `cold`: the first run of this model on this machine, when Triton times its kernels and Inductor times the padding of
    the head. Later runs find both in the cache on disk, and reserve a few tens of MiB less.
    `padding`: the outcome of timing an odd vocabulary's head, if it is not the usual one.
    """
    paper = Paper(device, half=config.dtype != "float32")
    paper.starts()
    p = weights_on_paper(structure(config), paper)
    shape = Shape(config, device, returns_logits=returns_logits, padding=padding)
    return train(paper, config, CompiledGPT(paper, shape, p.parameters, cold=cold), p.parameters).tape()


class CompiledGPT:
    """The compiled model: graphs for inference, forward and backward, each compiled when it is first called."""

    def __init__(self, paper: Paper, shape: Shape, parameters: list[Parameter], *, cold: bool) -> None:
        self.paper, self.shape, self.parameters = paper, shape, parameters
        self.graphs = CompiledGraphs(paper, self.trace, forward="forward", cold=cold)

    def __call__(self, X: Tensor, Y: Tensor) -> tuple[Tensor | None, Tensor]:
        """Logits (None unless returned) and loss."""
        s, call = self.shape, self.graphs.call
        logits_shape = s.N, s.V
        if not self.paper.grad_enabled:
            found = call("inference")
            return self.graphs.tensor(found["logits"], logits_shape, s.item), self.graphs.tensor(found["loss"], (), 4)
        kept = call("forward")  # what the backward graph takes, always including the logits
        loss = self.graphs.tensor(kept.pop("loss"), (), 4)
        logits = self.graphs.tensor(kept["logits"], logits_shape, s.item) if s.returns_logits else None
        node = self.paper.record(self.parameters, X, Y)

        def run_backward(_gs: list[Tensor], batch: list[Storage]) -> list[Tensor]:
            """Autograd passes a gradient for each output: for the logits, zeros, held to the end.

            Logits that are not returned belong only to the graph (a donated buffer): their gradient is written over
            them.
            """
            zeros = self.paper.new(logits_shape, s.item, LOGITS_AND_LOSS) if s.returns_logits else None
            ids = dict(zip(("tokens", "targets"), (storage.leave() for storage in batch), strict=True))
            other_tags = None if self.parameters[0].grad is None else IN_FLIGHT
            found = call("backward", kept | ids, other_tags)
            del zeros
            return [self.graphs.gradient(each, found[graph_name(each.name)]) for each in self.parameters]

        return logits, self.paper.result(node, loss, run_backward)

    def trace(self, name: str) -> Traced:
        """A graph before it is scheduled."""
        if self.graphs.cold and self.shape.V_padded != self.shape.V:
            self.time_padding(name)
        if name == "backward":
            return backward(self.shape, self.graphs.compiled("forward")[0])
        return inference(self.shape) if name == "inference" else forward(self.shape)

    def time_padding(self, name: str) -> None:
        """Inductor times the head's products before it pads them: the forward's once, both gradients' in training."""
        s, paper = self.shape, self.paper
        logits, padded_logits = s.N * s.V * s.item, s.N * s.V_padded * s.item
        weight, padded_weight = s.V * s.C * s.item, s.V_padded * s.C * s.item
        x = s.N * s.C * s.item
        paper.moment("compilation")

        def made(sizes: list[int]) -> list[Tensor]:
            return [paper.new((size,), 1, WORKSPACE) for size in sizes]

        def timed(operands: list[int], plain: list[int], copies: list[int], padded: list[int]) -> None:
            """Random operands and those copies that are not timed; then what each of the two ways allocates."""
            held = made(operands + copies)
            for way in (plain, padded):
                for flushed in ([], [paper.device.l2_cache_bytes]):
                    results = made(flushed + way)
                    paper.cublas()
                    del results
            del held

        if name == "inference":
            timed([x, weight], [logits], [], [padded_weight, padded_logits])
        elif name == "forward":
            if s.is_half:  # gradient and weight are padded when they are made
                timed([logits, weight], [x], [padded_logits, padded_weight], [x])
            else:
                timed([logits, weight], [x], [padded_logits], [padded_weight, x])
            timed([logits, x], [weight], [], [padded_logits, padded_weight])


def graph_name(parameter: str) -> str:
    """The short name that graphs have for a parameter: 3.c_attn.weight, 3.mlp.c_proj.weight, wte.weight."""
    short = parameter.removeprefix("transformer.").removeprefix("h.")
    return short.replace("attn.c_attn", "c_attn").replace("mlp.c_fc", "c_fc")
