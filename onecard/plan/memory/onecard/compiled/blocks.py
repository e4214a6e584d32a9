"""onecard's trainer with compiled blocks: the blocks and the last norm are Inductor's graphs."""

from __future__ import annotations

from functools import partial

from onecard.config.schema import RunConfig
from onecard.models.gpt2 import GPT2
from onecard.models.on_paper import Named
from onecard.models.ranks import ONE_RANK, Ranks
from onecard.models.run_on_paper import PaperRun
from onecard.paper.device import Device
from onecard.paper.kernels import LONG
from onecard.paper.tags import ATTENTION
from onecard.paper.tensor import Layer, Parameter, Storage, Tensor
from onecard.plan.memory.inductor.calls import IN_FLIGHT, CompiledGraphs
from onecard.plan.memory.inductor.kernel_graph import Traced
from onecard.plan.memory.nanogpt.compiled.shape import Shape
from onecard.plan.memory.nanogpt.compiled.tape import graph_name
from onecard.plan.memory.onecard.compiled.backward import backward, last_norm_backward
from onecard.plan.memory.onecard.compiled.forward import forward, last_norm


class CompiledRun(PaperRun):
    """Blocks are three graphs (evaluation, forward, backward), each compiled when it is first called."""

    def __init__(self, config: RunConfig, device: Device, *, ranks: Ranks = ONE_RANK, cold: bool = True) -> None:
        self.cold = cold
        super().__init__(config, device, ranks=ranks)

    def connect(self, p: Named, model: GPT2) -> None:
        """Blocks and the last norm are graphs; x passes between them in the type of products."""
        model.narrow_stream = True
        self.mode = self.config.grad_checkpoint
        self.shape = Shape(self.config, self.ops.device)
        self.graphs = CompiledGraphs(self.ops, self.trace, forward=self.mode, cold=self.cold)
        for block in p.transformer.h:
            block.run = partial(self.block, [each for each in p.parameters if each.name.startswith(block.name)])
        p.transformer.ln_f.run = partial(self.last_norm, p.transformer.ln_f)

    def block(self, parameters: list[Parameter], x: Tensor, added: Tensor) -> tuple[Tensor, Tensor]:
        """The forward graph of a block, or the one for evaluation: x after attention, and what the MLP adds to it."""
        ops, graphs = self.ops, self.graphs
        shape, dtype = x.shape, ops.compute_dtype
        node = ops.record([x, added, *parameters])
        kept = graphs.call(self.mode if node else f"evaluation of {shape[0]} x {shape[1]}")
        out = [graphs.tensor(kept[name], shape, dtype) for name in ("x", "added")]
        if node is None:
            return out[0], out[1]
        if self.mode != "full":
            ops.save(node, out[0])  # the backward graph reads it, too
        if ops.captures and self.shape.kernel not in ("cudnn", "flash") and self.mode != "full":
            # The generator's state that memory-efficient attention keeps. It is on the host, but on the card while a
            # graph is recorded (mem_eff_attention, attention.cu, _efficient_attention_forward: in_capture_stream).
            ops.save(node, *(ops.new((), LONG, ATTENTION) for _ in ("seed", "offset")))

        def backward(gs: list[Tensor], saved: list[Storage]) -> list[Tensor]:
            """The backward graph; the gradients of its parameters all come at its end."""
            inputs = kept | {name: each.storage.block for name, each in zip(("d_x", "d_added"), gs, strict=True)}
            if self.mode != "full":
                saved[0].leave()
            found = graphs.call("backward", inputs, None if parameters[0].grad is None else IN_FLIGHT)
            of_parameters = [graphs.gradient(each, found[_in_block(each.name)]) for each in parameters]
            of_x, of_added = found["x gradient"], found["added gradient"]
            d_x = graphs.tensor(of_x, shape, dtype)
            d_added = d_x.detach() if of_added == of_x else graphs.tensor(of_added, shape, dtype)
            return [d_x, d_added, *of_parameters]

        node.results, node.backward = 2, backward
        for slot, tensor in enumerate(out):
            tensor.node, tensor.slot = node, slot
        return out[0], out[1]

    def last_norm(self, layer: Layer, x: Tensor, added: Tensor) -> Tensor:
        """The graph of the last norm, or the one for evaluation."""
        ops, graphs = self.ops, self.graphs
        shape, dtype = x.shape, ops.compute_dtype
        parameters = [each for each in (layer.weight, layer.bias) if each is not None]
        node = ops.record([x, added, *parameters])
        kept = graphs.call("last norm" if node else f"last norm of {shape[0]} x {shape[1]}")

        def backward(gs: list[Tensor], _saved: list[Storage]) -> list[Tensor]:
            """Its backward graph; the gradient of what was added is the same as that of x."""
            inputs = kept | {"d_hidden": gs[0].storage.block}
            found = graphs.call("last norm backward", inputs, None if layer.weight.grad is None else IN_FLIGHT)
            of_parameters = [graphs.gradient(each, found[f"0.ln_f.{each.name.split('.')[-1]}"]) for each in parameters]
            d_x = graphs.tensor(found["x gradient"], shape, dtype)
            return [d_x, d_x.detach(), *of_parameters]

        return ops.result(node, graphs.tensor(kept["hidden"], shape, dtype), backward)

    def trace(self, name: str) -> Traced:
        """A graph before it is scheduled."""
        if name == "backward":
            return backward(self.shape, self.graphs.compiled(self.mode)[0], self.mode)
        if name == "last norm backward":
            return last_norm_backward(self.shape, self.graphs.compiled("last norm")[0])
        if name == self.mode:
            return forward(self.shape, self.mode)
        if name == "last norm":
            return last_norm(self.shape, "none")
        sequences, tokens = map(int, name.partition(" of ")[2].split(" x "))
        batch = {"batch_size": sequences, "block_size": tokens, "eval_block_size": None}
        shape = Shape(self.config.replace(batch), self.ops.device)
        return (last_norm if name.startswith("last norm") else forward)(shape, "evaluation")


def _in_block(parameter: str) -> str:
    """A parameter's name in the graph that all blocks share: that of the first."""
    return f"0.{graph_name(parameter).partition('.')[2]}"
