"""The backward graph of a block as Inductor generates it: what was not kept is recomputed where it is needed."""

from __future__ import annotations

from dataclasses import dataclass

from onecard.paper import kernels, tags
from onecard.paper.kernels import FLOAT
from onecard.plan.memory.inductor.kernel_graph import Kernel, Traced
from onecard.plan.memory.inductor.splits import outer_parts
from onecard.plan.memory.nanogpt.compiled.backward import BackwardBuilder
from onecard.plan.memory.nanogpt.compiled.builder import Builder, matrix
from onecard.plan.memory.nanogpt.compiled.shape import Shape
from onecard.plan.memory.onecard.compiled.forward import NORM_ROWS, gelu_internal_bytes
from onecard.plan.memory.onecard.compiled.keeps import Mode

GRADIENTS_IN = ("d_x", "d_added")  # autograd holds them to the end


def backward(shape: Shape, kept: Traced, mode: Mode) -> Traced:
    """The backward graph. Its inputs have the names of what was kept, its results those of parameters."""
    make = BlockBackward(shape, kept, mode)
    make.graph.moment = "backward pass of the blocks"
    make.run()
    return make.traced()


def last_norm_backward(shape: Shape, kept: Traced) -> Traced:
    """The backward graph of the last norm."""
    make = BlockBackward(shape, kept, "none", gradients_in=("d_hidden",))
    make.graph.moment = "backward pass of the blocks"
    d_x, _ = make.norm_of_block("ln_f", make.named["d_hidden"], None)
    make.keep("x gradient", d_x)
    return make.traced()


@dataclass(frozen=True)
class Again:
    """A norm that is recomputed in the kernel of its own backward pass, and the layer behind it."""

    rows: list[int]  # mean and scale of each row
    normed: int
    linear: str
    dy: int  # the gradient of that layer's output


class BlockBackward(BackwardBuilder):
    """The backward graph under construction."""

    def __init__(self, shape: Shape, kept: Traced, mode: Mode, gradients_in: tuple[str, ...] = GRADIENTS_IN) -> None:
        Builder.__init__(self, shape)
        self.mode = mode
        self.columns_of_ln_2: Kernel | None = None  # if the same kernel also sums those of ln_1
        self.remaking = False  # results of recomputation have names, but the graph does not return them
        for name, buffer in kept.named.items():
            if name in ("added", "hidden") or (name == "x" and mode == "full"):
                continue
            size, kind, tag = kept.graph.sizes[buffer], kept.graph.kinds[buffer], kept.graph.tags[buffer]
            self.named[name] = self.graph.input(size, tag, kind=kind)
        for name in gradients_in:
            size = shape.N * shape.C * shape.item
            self.named[name] = self.graph.input(size, tags.GRADIENTS_IN_FLIGHT, counted=False)
            self.graph.borrowed.add(self.named[name])

    def keep(self, name: str, buffer: int) -> int:
        if self.remaking:
            self.named[name] = buffer
            return buffer
        return super().keep(name, buffer)

    def run(self) -> None:
        """From what the MLP added back to the block's inputs."""
        s = self.shape
        d_added = self.dropped("mlp", self.named["d_added"])
        if self.mode == "none":
            d_gelu = self.linear(0, "mlp.c_proj", d_added, "gelu")
            (d_inner,) = self.gelu_backward(d_gelu, again=False)
        else:
            d_inner = self.remade_gelu(d_added)
        d_residual, d_copy = self.norm_behind("ln_2", "c_fc", d_inner, self.named["d_x"])
        y = "0.out" if s.padded_head == s.D else "0.y"
        d_y = self.linear(0, "attn.c_proj", d_copy, y)
        d_qkv = self.attention_backward(0, d_y)
        d_residual, d_copy = self.norm_behind("ln_1", "c_attn", d_qkv, d_residual)
        self.keep("x gradient", d_residual)
        self.keep("added gradient", d_copy)
        self.graph.sort()

    def dropped(self, which: str, gradient: int) -> int:
        """Dropout's backward; full recomputation draws the random numbers again."""
        if not self.shape.drops:
            return gradient
        mask = self.named["seeds" if self.mode == "full" else f"{which}.mask"]
        out = self.flying(self.shape.C)
        self.graph.kernel("drop backward", (mask, gradient), (out,), timed=True)
        return out

    # recomputation

    def remake(self) -> None:
        """Full recomputation: the forward pass up to the wide tensor."""
        s, g = self.shape, self.graph
        self.remaking = True
        rows = [self.floats(s.N, tags.ACTIVATIONS) for _ in range(2)]
        self.named["ln_1.mean"], self.named["ln_1.rstd"] = rows
        x = self.named["ln_1.in"] = self.act(s.C)
        internal = NORM_ROWS * FLOAT * s.N
        total = [self.named["ln_1.sum"]]
        g.kernel("norm 1 again", total, (*rows, x), internal_bytes=internal, timed=s.times_norms)
        qkv = self.product("c_attn", x, self.act(3 * s.C, tags.ATTENTION))
        y = self.unpadded(self.attention(qkv, 0, training=True), 0, training=True)
        y = self.product("attn.c_proj", y, self.act(s.C))
        takes: dict[int, tuple[int, ...]] = {}
        seeds = []
        if s.drops:  # the norm is kept, because its sum is one of three
            seeds = [self.named["seeds"]]
            random = self.named["attn.random"] = self.floats(s.N * s.C, tags.ACTIVATIONS)
            scale = self.named["ln_2.scale"] = self.floats(s.N, tags.ACTIVATIONS)
            norm = self.named["ln_2.norm"] = self.floats(s.N * s.C, tags.ACTIVATIONS)
            written, takes = [random, scale, norm], {norm: (y,)}
        else:
            written = [self.floats(s.N, tags.ACTIVATIONS) for _ in range(2)]
            (self.named["ln_2.sum"],), self.named["ln_2.added"] = total, y
            self.named["ln_2.mean"], self.named["ln_2.rstd"] = written
        x = self.named["ln_2.in"] = self.act(s.C)
        written.append(x)
        g.kernel(
            "norm 2 again",
            (*seeds, *total, y),
            written,
            takes=takes,
            internal_bytes=internal,
            timed=s.times_norms,
        )
        self.named["0.inner"] = self.product("c_fc", x, self.act(4 * s.C))
        self.remaking = False

    def product(self, kind: str, x: int, out: int) -> int:
        """A linear layer again, its weight cast again; the cast stays for the layer's own backward."""
        ins, outs = self.shape.linears[kind]
        weights = self.cast_again(kind)
        biases = self.cast_bias(f"{outs} bias", outs)
        if weights:
            self.named[f"0.{kind}.cast"] = weights[0]
        return self.matmul([*biases, x, *weights], out, "addmm" if self.shape.bias else "mm")

    def cast_again(self, kind: str) -> list[int]:
        ins, outs = self.shape.linears[kind]
        return self.cast(f"again {ins * outs}", outs, ins)

    def remade_gelu(self, d_added: int) -> int:
        """mlp.c_proj's backward, with GELU recomputed beside its own backward; returns c_fc's gradient."""
        if self.mode == "full" and not self.shape.bias:  # then the weight's gradient comes first: it needs GELU
            self.remake()
        d_gelu = self.matmul([d_added, *self.cast_again("mlp.c_proj")], self.flying(4 * self.shape.C))
        if self.mode == "full" and self.shape.bias:
            self.remake()
        gelu, d_inner = self.gelu_backward(d_gelu, again=True)
        self.weight_gradient("mlp.c_proj", d_added, gelu)
        return d_inner

    def gelu_backward(self, d_gelu: int, *, again: bool) -> list[int]:
        """GELU's backward, over its input; returns the gradient of c_fc's output, after GELU itself if recomputed."""
        s, g = self.shape, self.graph
        internal = gelu_internal_bytes(s)
        g.skip_names(1 if internal else 0)
        made = [self.act(4 * s.C)] if again else []
        d_inner = self.flying(4 * s.C)
        reads, written = (d_gelu, self.named["0.inner"]), (*made, d_inner)
        g.kernel("gelu backward", reads, written, takes={d_inner: (d_gelu,)}, internal_bytes=internal, timed=True)
        return [*made, d_inner]

    def weight_gradient(self, kind: str, dy: int, x: int) -> None:
        """A linear layer's weight gradient (cast to float32) and bias gradient."""
        s, name = self.shape, f"0.{kind}"
        ins, outs = s.linears[kind]
        if s.is_half:
            d_weight = self.matmul([dy, x], self.buffer(matrix(outs, ins, s.item), tags.GRADIENTS_IN_FLIGHT))
        else:
            self.matmul([dy, x], self.gradient(f"{name}.weight", outs * ins))
        if s.bias:
            partial = self.floats(outs * outer_parts(s.device, outs, s.N), tags.GRADIENTS_IN_FLIGHT)
            self.graph.kernel("column sum", (dy,), (partial,))
            self.graph.kernel("column sum end", (partial,), (self.gradient(f"{name}.bias", outs),))
        if s.is_half:
            cast = self.gradient(f"{name}.weight", outs * ins)
            self.graph.kernel(f"cast {outs * ins}", (d_weight,), (cast,), timed=True)

    # norms

    def norm_behind(self, norm: str, linear: str, dy: int, d_residual: int) -> tuple[int, int]:
        """The backward of a linear layer and of the norm before it; selective recomputes the norm in its kernel."""
        if self.mode != "selective":
            d_x = self.linear(0, linear, dy, f"{norm}.in")
            return self.norm_of_block(norm, d_x, d_residual)
        d_x = self.matmul([dy, *self.cast_again(linear)], self.flying(self.shape.C))
        rows = [self.floats(self.shape.N, tags.ACTIVATIONS) for _ in ("mean", "rstd")]
        normed = self.act(self.shape.C)
        return self.norm_of_block(norm, d_x, d_residual, Again(rows, normed, linear, dy))

    def norm_of_block(self, name: str, dy: int, d_residual: int | None, again: Again | None = None) -> tuple[int, int]:
        """LayerNorm's backward and the residual sum: (the residual's gradient, the gradient of what was added).

        They are one tensor, unless what was added came through attention's dropout. With `again` the same kernel
        recomputes the norm, and the weight gradient of the layer behind it comes next.
        """
        s, g = self.shape, self.graph
        kept = self.kept_for(name)
        drops = s.drops and name == "ln_2"
        masks = [self.named["attn.random" if self.mode == "full" else "attn.mask"]] if drops else []
        # sums over columns that need a row's mean first cannot run beside it (MixOrderReduction.can_fuse)
        fused = s.splits > 0 and again is None
        affine = [f"0.{name}.weight", f"0.{name}.bias"] if s.bias else [f"0.{name}.weight"]
        partial_elements = s.C * outer_parts(s.device, s.C, s.N)
        g.skip_names(2)  # two sums per row
        partials, sums = [], []
        for part in affine:
            partials.append(self.floats(partial_elements, tags.GRADIENTS_IN_FLIGHT))
            sums.append(self.gradient(part, s.C))
        d_x = self.buffer(s.N * s.C * s.item, tags.GRADIENTS_IN_FLIGHT)
        copy = self.flying(s.C) if drops else d_x
        old = () if d_residual is None else (d_residual,)
        reads = [dy, *kept, *masks, *old]
        takes: dict[int, tuple[int, ...]] = {d_x: old if fused else (*old, dy, *kept)}
        if drops and self.mode == "full":
            takes[copy] = tuple(masks)
        internal = 2 * FLOAT * s.N
        if fused:  # rows and columns in one kernel; partial sums of columns in a workspace, added up by torch.sum
            size = FLOAT * len(affine) * s.splits * s.C
            workspace = g.buffer(size, "float", tags.WORKSPACE, counted=False, named=False)
            internal += FLOAT * len(affine) * partial_elements
            needed = kernels.column_sum_buffers(s.device, s.splits, s.C) or ()
            scratch: dict[int, tuple[int, ...]] = dict.fromkeys(sums, needed)
            written = [d_x, *[copy] * drops, workspace, *sums]
            g.kernel(f"{name} backward", reads, written, takes=takes, internal_bytes=internal, scratch=scratch)
            return d_x, copy
        made = [*again.rows, again.normed] if again else []
        written = [*made, d_x, *[copy] * drops]
        g.kernel(f"{name} backward", reads, written, takes=takes, internal_bytes=internal, timed=s.times_norms)
        if again:
            self.weight_gradient(again.linear, again.dy, again.normed)
        normed = [self.named[f"{name}.norm"]] if f"{name}.norm" in self.named else [*kept, *made[:2]]
        if self.columns_of_ln_2:  # both read the sum
            self.columns_of_ln_2.reads += (dy, *normed)
            self.columns_of_ln_2.writes += tuple(partials)
        else:
            g.kernel(f"{name} columns", (dy, *normed), partials)
        if name == "ln_2" and self.mode == "full" and not s.drops:
            self.columns_of_ln_2 = g.kernels[-1]
        for partial, total in zip(partials, sums, strict=True):
            g.kernel("column sum end", (partial,), (total,))
        return d_x, copy

    def kept_for(self, norm: str) -> list[int]:
        """What there is of a norm: its input in some form, and the numbers of its rows."""
        parts = [f"{norm}.{part}" for part in ("sum", "added", "norm", "mean", "rstd", "scale")]
        rows = [self.named[part] for part in parts if part in self.named]
        return [self.named["x"], *rows] if norm == "ln_2" and self.mode != "full" else rows
