"""nanoGPT's backward graph as Inductor generates it: kernels in program order, from the loss to the embeddings.

Each layer's gradients are results of the graph, so they are all alive at its end.
"""

from __future__ import annotations

from onecard.paper import kernels, tags
from onecard.paper.kernels import FLOAT, LONG
from onecard.plan.memory.inductor.kernel_graph import Traced
from onecard.plan.memory.inductor.splits import outer_parts
from onecard.plan.memory.inductor.tuning import is_timed
from onecard.plan.memory.nanogpt.compiled.builder import REALIZE_READS, Builder, matrix
from onecard.plan.memory.nanogpt.compiled.shape import Shape


def backward(shape: Shape, kept: Traced) -> Traced:
    """The backward graph of `forward`. Its inputs have the names of what was kept, its results those of parameters."""
    s, make = shape, BackwardBuilder(shape, kept)
    make.graph.moment = "backward pass of the loss"
    d_residual, d_copy = make.norm("ln_f", make.loss_and_head(), None)
    make.graph.moment = "backward pass of the blocks"
    d_x = -1
    for layer in reversed(range(s.layers)):
        d_gelu = make.linear(layer, "mlp.c_proj", d_copy, f"{layer}.gelu")
        d_inner = make.gelu(layer, d_gelu)
        d_x = make.linear(layer, "c_fc", d_inner, f"{layer}.ln_2.x")
        d_residual, d_copy = make.norm(f"{layer}.ln_2", d_x, d_residual)
        y = f"{layer}.out" if s.padded_head == s.D else f"{layer}.y"
        d_y = make.linear(layer, "attn.c_proj", d_copy, y)
        d_qkv = make.attention_backward(layer, d_y)
        d_x = make.linear(layer, "c_attn", d_qkv, f"{layer}.ln_1.x")
        if layer:
            d_residual, d_copy = make.norm(f"{layer}.ln_1", d_x, d_residual)
    make.graph.moment = "backward pass of the embeddings"
    make.embeddings(d_x, d_residual)
    return make.traced()


class BackwardBuilder(Builder):
    """The backward graph under construction."""

    def __init__(self, shape: Shape, kept: Traced) -> None:
        super().__init__(shape)
        for name, buffer in kept.named.items():
            if name != "loss":
                size, kind, tag = kept.graph.sizes[buffer], kept.graph.kinds[buffer], kept.graph.tags[buffer]
                self.named[name] = self.graph.input(size, tag, kind=kind)
        if shape.returns_logits:
            self.graph.borrowed.add(self.named["logits"])  # train.py's variable `logits` still holds them
        for name in ("tokens", "targets"):
            self.named[name] = self.graph.input(LONG * shape.N, tags.TOKEN_IDS, counted=False)
        self.added = self.graph.mark(tags.GRADIENTS)  # orders a sum's readers after its adder
        # Without a gradient of returned logits to add, theirs has two dimensions, and its long rows have room for the
        # padding (lowering.py, inplace_constant_pad_nd)
        self.pads_in_place = shape.padding.input and not shape.returns_logits
        columns = shape.V_padded if self.pads_in_place else shape.V
        self.graph.skip_names(1)  # one sum per row of logits
        self.d_logits = self.buffer(matrix(shape.N, columns, shape.item), tags.LOGITS_AND_LOSS)
        self.d_head = -1  # the head's own gradient of the tied weight, if it is made early
        self.again: dict[int, tuple[int, ...]] = {}  # the first norm's result, if recomputed: what it is written over

    def gradient(self, name: str, elements: int) -> int:
        """A parameter's gradient: float32, returned by the graph."""
        return self.keep(name, self.floats(elements, tags.GRADIENTS))

    def flying(self, columns: int) -> int:
        """A gradient of activations, N x columns."""
        return self.act(columns, tags.GRADIENTS_IN_FLIGHT)

    def weight(self, name: str) -> list[int]:
        """What a product reads of a weight: its cast; in float32 the parameter itself, which is not a buffer here."""
        return [self.named[name]] if self.shape.is_half else []

    # the loss and the head

    def loss_and_head(self) -> int:
        """Gradients of the logits and of the head's weight; returns the gradient of the last norm's output."""
        s, g, last = self.shape, self.graph, self.named["ln_f.x"]
        statistics = [self.named[name] for name in ("targets", "logits", "largest", "total", "targets counted")]
        over: dict[int, tuple[int, ...]] = {self.d_logits: (self.named["logits"],)}  # unless the loop also holds them
        timed = is_timed(s.N, s.V)
        g.kernel("loss backward", statistics, (self.d_logits,), takes=over, internal_bytes=FLOAT * s.N, timed=timed)
        for_weight = for_input = self.d_logits
        filled = []
        if self.pads_in_place:
            filled = [g.mark(tags.LOGITS_AND_LOSS)]  # orders the product after the filling
            g.kernel("fill padding", (self.d_logits,), filled, adds_to=(self.d_logits,), timed=True)
        pads = []
        if s.padding.weight:
            for_weight = self.buffer(matrix(s.N, s.V_padded, s.item), tags.LOGITS_AND_LOSS)
            pads.append(for_weight)
        if s.padding.input and not self.pads_in_place:
            for_input = self.buffer(matrix(s.N, s.V_padded, s.item), tags.LOGITS_AND_LOSS)
            pads.append(for_input)
        if pads:  # one kernel makes both copies
            g.kernel("pad gradient", (self.d_logits,), pads, timed=True)
        if s.is_half or s.padding.weight:
            rows = s.V_padded if s.padding.weight else s.V
            self.d_head = self.buffer(rows * s.C * s.item, tags.GRADIENTS_IN_FLIGHT)
            self.matmul([for_weight, last], self.d_head)
        weight = self.weight("lm_head.cast")
        if s.padding.input:
            padded = self.buffer(s.V_padded * s.C * s.item, tags.WEIGHT_CASTS)
            g.kernel("pad weight", weight, (padded,), timed=True)
            weight = [padded]
        return self.matmul([for_input, *filled, *weight], self.flying(s.C))

    # a layer

    def linear(self, layer: int, kind: str, dy: int, x: str) -> int:
        """A linear layer's weight gradient (cast to float32) and bias gradient; returns its input's gradient."""
        s, name = self.shape, f"{layer}.{kind}"
        ins, outs = s.linears[kind]
        made: dict[str, int] = {}
        for what in ("input", "weight") if s.bias else ("weight", "input"):
            if what == "input":
                made[what] = self.matmul([dy, *self.weight(f"{name}.cast")], self.flying(ins))
            elif s.is_half:
                d_weight = self.buffer(matrix(outs, ins, s.item), tags.GRADIENTS_IN_FLIGHT)
                made[what] = self.matmul([dy, self.named[x]], d_weight)
            else:
                self.matmul([dy, self.named[x]], self.gradient(f"{name}.weight", outs * ins))
        if s.bias:  # a sum over rows in two steps
            partial = self.floats(outs * outer_parts(s.device, outs, s.N), tags.GRADIENTS_IN_FLIGHT)
            self.graph.kernel("column sum", (dy,), (partial,))
            self.graph.kernel("column sum end", (partial,), (self.gradient(f"{name}.bias", outs),))
        if s.is_half:
            cast = self.gradient(f"{name}.weight", outs * ins)
            self.graph.kernel(f"cast {outs * ins}", (made["weight"],), (cast,), timed=True)
        return made["input"]

    def gelu(self, layer: int, d_gelu: int) -> int:
        """GELU's backward, over its input; returns the gradient of c_fc's output."""
        d_inner = self.flying(4 * self.shape.C)
        reads = (d_gelu, self.named[f"{layer}.inner"])
        self.graph.kernel("gelu backward", reads, (d_inner,), takes={d_inner: (d_gelu,)}, timed=True)
        return d_inner

    def kept_of(self, norm: str, *parts: str) -> list[int]:
        """Those parts of a norm that the forward pass kept."""
        return [self.named[f"{norm}.{part}"] for part in parts if f"{norm}.{part}" in self.named]

    def norm(self, name: str, dy: int, d_residual: int | None, first: tuple[int, ...] = ()) -> tuple[int, int]:
        """LayerNorm's backward and the residual sum: (the residual's gradient, its copy for the sublayer below).

        The copy is in the compute type and after dropout's backward; float32 without dropout needs no copy. `first`,
        for the first norm: the sums to which the embeddings' gradients are added.
        """
        s, g = self.shape, self.graph
        rows, masks = self.kept_of(name, "norm", "mean", "scale"), self.kept_of(name, "mask")
        normed = self.kept_of(name, "norm") or rows
        again: dict[int, tuple[int, ...]] = {}
        if first and s.keeps_embeddings:
            again = self.again
            kept = [self.named["embedded"], self.named["positions embedded"], *rows]
            rows = [*again, *self.kept_of(name, "scale")] if again and s.splits else kept
            normed = [*again] or rows
        ids = [self.named[name] for name, _ in zip(("tokens", "positions"), first, strict=False)]
        old = () if d_residual is None else (d_residual,)
        reads = [dy, *rows, *masks, *ids, *first, *old]
        affine = [f"{name}.weight", f"{name}.bias"] if s.bias else [f"{name}.weight"]
        partial_elements = s.C * outer_parts(s.device, s.C, s.N)
        g.skip_names(2)  # two sums per row
        partials, sums = [], []
        for part in affine:
            partials.append(self.floats(partial_elements, tags.GRADIENTS_IN_FLIGHT))
            sums.append(self.gradient(part, s.C))
        d_x = self.floats(s.N * s.C, tags.GRADIENTS_IN_FLIGHT)
        takes: dict[int, tuple[int, ...]] = {d_x: old if s.splits else (*old, dy)}  # the fused kernel reads dy twice
        copies = (s.is_half or s.drops) and not first
        copy = self.flying(s.C) if copies else d_x
        marks = [self.added] if first else []
        kernel = f"norm backward of {len(reads)}"
        internal = 2 * FLOAT * s.N
        if s.splits:  # rows and columns in one kernel; partial sums of columns in a workspace, added up by torch.sum
            size = FLOAT * len(affine) * s.splits * s.C
            workspace = g.buffer(size, "float", tags.WORKSPACE, counted=False, named=False)
            internal += FLOAT * len(affine) * partial_elements
            copied = [copy] if copies and s.drops else []  # by the same kernel, which reads dropout's mask anyway
            written = [d_x, *copied, workspace, *sums, *marks]
            needed = kernels.column_sum_buffers(s.device, s.splits, s.C) or ()
            scratch: dict[int, tuple[int, ...]] = dict.fromkeys(sums, needed)
            g.kernel(kernel, reads, written, takes=takes, internal_bytes=internal, scratch=scratch)
            if copies and not copied:
                g.kernel("copy gradient", (d_x,), (copy,), timed=True)
            return d_x, copy
        takes |= again
        written = [*again, d_x, copy] if copies else [*again, d_x, *marks]
        timed = s.times_norms
        g.kernel(kernel, reads, written, takes=takes, internal_bytes=internal, adds_to=first, timed=timed)
        g.kernel("norm columns", (dy, *normed), partials)
        for partial, total in zip(partials, sums, strict=True):
            g.kernel("column sum end", (partial,), (total,))
        return d_x, copy

    def attention_backward(self, layer: int, d_y: int) -> int:
        """The attention kernel's backward and the concatenation of its three results; returns that buffer."""
        s, g = self.shape, self.graph
        size = s.N * s.H * s.padded_head * s.item
        names = [f"{layer}.{part}" for part in ("q", "k", "v", "out", "lse", "seed", "offset")]
        reads = [self.named[name] for name in names if name in self.named]
        before: tuple[int, ...] = ()
        if s.padded_head != s.D:
            padded = self.buffer(size, tags.ATTENTION)
            g.kernel("pad attention gradient", (d_y,), (padded,), timed=True)
            d_y = padded
            before = (size, size)  # the kernel needs its gradient and output contiguous by token: it copies both
        results = [self.buffer(size, tags.ATTENTION) for _ in "qkv"]
        if s.kernel == "cudnn":
            hidden: tuple[int, ...] = (kernels.cudnn_backward_workspace(s.B, s.H, s.T, s.D),)
        elif s.kernel == "flash":
            hidden = kernels.flash_backward_buffers(s.B, s.H, s.T, s.padded_head)
        else:  # gradient x output in float32, its row sums, a contiguous copy of these; then the accumulators
            rows = kernels.efficient_logsumexp(s.B, s.H, s.T)
            accumulators = kernels.efficient_backward_workspace(s.B, s.H, s.T, s.D, is_half=s.is_half)
            hidden = (FLOAT * s.N * s.C, rows, rows, ~1, ~0, accumulators, ~2)
        name = "cudnn attention backward" if s.kernel == "cudnn" else "attention backward"
        g.call(name, [d_y, *reads], results, results, before=before, hidden=hidden)
        d_qkv = self.act(3 * s.C, tags.ATTENTION)
        g.kernel("concatenate", results, (d_qkv,), timed=True)
        return d_qkv

    # the embeddings

    def norm_again(self) -> None:
        """Recompute the first norm's result, where only the embeddings are kept and the expression reads too much."""
        s, parts = self.shape, self.kept_of("0.ln_1", "mask", "mean", "scale")
        if not s.keeps_embeddings or len(parts) + 2 <= REALIZE_READS:
            return
        embedded = self.named["embedded"]
        self.again = {self.floats(s.N * s.C, tags.GRADIENTS_IN_FLIGHT): (embedded,)}
        if s.splits:  # otherwise the norm's backward makes it on its way
            reads = [embedded, self.named["positions embedded"], *parts]
            self.graph.kernel("norm again", reads, self.again, takes=self.again, timed=True)

    def embeddings(self, d_x: int, d_residual: int) -> None:
        """The first norm's backward adds to zeros for the tokens; then come the positions and the head's own share."""
        s, g = self.shape, self.graph
        self.norm_again()
        d_tokens = self.floats(s.V * s.C, tags.GRADIENTS_IN_FLIGHT)
        d_places = self.gradient("wpe.weight", s.T * s.C)
        first: tuple[int, ...] = (d_tokens,)
        if s.B == 1:  # one row of positions: the same kernel adds both
            g.kernel("zero positions", (), (d_places,), timed=True)
            first = (d_tokens, d_places)
        g.kernel("zero tokens", (), (d_tokens,), timed=True)
        d_embedded, _ = self.norm("0.ln_1", d_x, d_residual, first)
        if s.B > 1:
            g.kernel("zero positions", (), (d_places,), timed=True)
            shares = (self.named["positions"], d_embedded, d_places)
            g.kernel("add positions", shares, (), adds_to=(d_places,), timed=True)
        shares = (self.d_head, d_tokens, self.added)
        if s.is_half:
            g.kernel("add tokens", shares, (self.gradient("wte.weight", s.V * s.C),), timed=True)
        elif s.padding.weight:
            result = self.gradient("wte.weight", s.V_padded * s.C)
            g.kernel("add tokens", shares, (result,), takes={result: (self.d_head,)}, timed=True)
        else:  # float32: the head's share is a product that adds, so the logits' gradient lives until here
            reads = [d_tokens, self.d_logits, self.named["ln_f.x"], self.added]
            self.matmul(reads, self.gradient("wte.weight", s.V * s.C))
