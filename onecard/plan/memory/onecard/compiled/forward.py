"""The forward graphs of a block as Inductor generates them: for evaluation, and for each way of recomputing.

A line here is a line of the generated code, before Inductor reorders it. x and what is added to it belong to the
caller; both are in the compute type. Which tensors are kept is up to the partitioner's min-cut (none) or the
checkpoints (selective); full keeps only the sum of the inputs.
"""

from __future__ import annotations

from onecard.paper import tags
from onecard.paper.kernels import FLOAT, LONG
from onecard.plan.memory.inductor.kernel_graph import Traced
from onecard.plan.memory.nanogpt.compiled.builder import Builder
from onecard.plan.memory.nanogpt.compiled.shape import Shape
from onecard.plan.memory.onecard.compiled.keeps import Mode, kept_of_stream

NORM_ROWS = 3  # numbers per row that a norm's kernel keeps in registers: mean, variance, a step between


def gelu_internal_bytes(shape: Shape) -> int:
    """Bytes in registers of what train/gelu.py uses twice, in float32. It runs in half precision, except with full."""
    return 4 * shape.C * shape.N * FLOAT if shape.is_half and shape.config.grad_checkpoint != "full" else 0


def forward(shape: Shape, mode: Mode) -> Traced:
    """The graph of one block. Its results are "x" and "added"; what it keeps has the backward graph's names."""
    make = BlockBuilder(shape, mode)
    make.graph.moment = "forward pass"
    y = make.attention_half(kept_casts=mode == "none", kept_qkv=mode in ("none", "selective"))
    x = make.second_norm(y)
    make.mlp_half(x)
    return make.traced()


def last_norm(shape: Shape, mode: Mode) -> Traced:
    """The graph of the last norm: its result is named "hidden"."""
    make = BlockBuilder(shape, mode)
    make.graph.moment = "forward pass"
    make.norm_of_sum("ln_f", result="hidden")
    return make.traced()


class BlockBuilder(Builder):
    """A block's forward graph under construction; the backward graph of full recomputation also starts with one."""

    def __init__(self, shape: Shape, mode: Mode) -> None:
        super().__init__(shape)
        self.mode = mode
        self.training = mode != "evaluation"
        self.drops = self.training and shape.drops
        self.seeds: list[int] = []
        # recorded runs show that dropout then never writes over what it reads
        self.drops_in_full_float32 = self.drops and mode == "full" and not shape.is_half

    def flow(self) -> int:
        """A tensor of the stream: x, or what stands for it between two sums."""
        return self.buffer(self.shape.N * self.shape.C * self.shape.item, tags.ACTIVATIONS)

    def kept(self, name: str, buffer: int, condition: bool) -> int:
        return self.keep(name, buffer) if condition else buffer

    def norm_of_sum(self, name: str, *, result: str) -> int:
        """x + added and its norm in one kernel; returns the norm. The graph returns it too if `result` names it."""
        s, g = self.shape, self.graph
        stream = kept_of_stream(s, self.mode)
        written = []
        if stream == "sum":
            written.append(self.keep(f"{name}.sum", self.flow()))
        if self.mode == "none" and stream == "sum":
            written += [self.keep(f"{name}.{row}", self.floats(s.N, tags.ACTIVATIONS)) for row in ("mean", "rstd")]
        g.skip_names(NORM_ROWS)
        if stream == "norm":
            written.append(self.keep(f"{name}.norm", self.floats(s.N * s.C, tags.ACTIVATIONS)))
        x = self.kept(result, self.act(s.C), bool(result))
        written.append(x)
        if stream == "norm":
            scale = g.buffer(FLOAT * s.N, "float", tags.ACTIVATIONS, named=False)
            written.append(self.keep(f"{name}.scale", scale))
        g.kernel("norm 1", (), written, internal_bytes=NORM_ROWS * FLOAT * s.N, timed=s.times_norms)
        return x

    def attention_half(self, *, kept_casts: bool, kept_qkv: bool) -> int:
        """ln_1, c_attn, attention and its projection; returns what attention adds to x."""
        s = self.shape
        x = self.norm_of_sum("ln_1", result="ln_1.in" if self.mode == "none" else "")
        weights = self.cast("attn", 3 * s.C, s.C, "0.c_attn.cast" if kept_casts else "")
        biases = self.cast_bias("attn bias", 3 * s.C)
        qkv = self.matmul([*biases, x, *weights], self.act(3 * s.C, tags.ATTENTION), "addmm" if s.bias else "mm")
        out = self.attention(qkv, 0, self.training, keeps=kept_qkv)
        weights = self.cast("proj", s.C, s.C, "0.attn.c_proj.cast" if kept_qkv else "")
        y = self.unpadded(out, 0, training=kept_qkv)
        biases = self.cast_bias("narrow bias", s.C)
        return self.matmul([*biases, y, *weights], self.act(s.C))

    def second_norm(self, y: int) -> int:
        """Dropout, the sum and ln_2 in one kernel; returns the norm's output."""
        s, g = self.shape, self.graph
        written = []
        if self.drops:
            self.seeds = [g.buffer(2 * LONG, "long", tags.ACTIVATIONS)]
            if self.mode == "full":
                self.keep("seeds", self.seeds[0])
            g.kernel("seeds", (), self.seeds)
            g.skip_names(1)  # the uniform numbers
            if self.mode in ("none", "selective"):
                written.append(self.keep("attn.mask", g.buffer(s.N * s.C, "bool", tags.ACTIVATIONS)))
        middle = self.keep("x", self.flow())
        written.append(middle)
        if self.mode == "none":
            mean, rstd = (self.keep(f"ln_2.{name}", self.floats(s.N, tags.ACTIVATIONS)) for name in ("mean", "rstd"))
            written += [mean, rstd]
        g.skip_names(NORM_ROWS)
        x = self.kept("ln_2.in", self.act(s.C), self.mode == "none")
        written.append(x)
        internal = NORM_ROWS * FLOAT * s.N + (FLOAT * s.N * s.C if self.drops else 0)
        takes: dict[int, tuple[int, ...]] = {} if self.drops_in_full_float32 else {middle: (y,)}
        g.kernel("norm 2", (*self.seeds, y), written, takes=takes, internal_bytes=internal, timed=s.times_norms)
        return x

    def mlp_half(self, x: int) -> None:
        """c_fc, GELU, c_proj and dropout."""
        s, g = self.shape, self.graph
        keeps = self.mode == "none"
        weights = self.cast("mlp", 4 * s.C, s.C, "0.c_fc.cast" if keeps else "")
        biases = self.cast_bias("fc bias", 4 * s.C)
        wide = self.matmul([*biases, x, *weights], self.act(4 * s.C))
        self.kept("0.inner", wide, self.mode in ("none", "selective"))
        internal = gelu_internal_bytes(s)
        g.skip_names(1 if internal else 0)
        gelu = self.kept("gelu", self.act(4 * s.C), keeps)
        g.kernel("gelu", (wide,), (gelu,), takes={gelu: (wide,)}, internal_bytes=internal, timed=True)
        weights = self.cast("mlp", s.C, 4 * s.C, "0.mlp.c_proj.cast" if keeps else "")
        biases = self.cast_bias("narrow bias", s.C)
        added = self.matmul([*biases, gelu, *weights], self.act(s.C))
        if self.drops:
            g.skip_names(1)
            masks = []
            if self.mode != "full":
                masks = [self.keep("mlp.mask", g.buffer(s.N * s.C, "bool", tags.ACTIVATIONS))]
            dropped = self.act(s.C)
            taken: dict[int, tuple[int, ...]] = {} if self.drops_in_full_float32 else {dropped: (added,)}
            g.kernel("drop", (*self.seeds, added), (*masks, dropped), takes=taken, timed=True)
            added = dropped
        self.keep("added", added)
