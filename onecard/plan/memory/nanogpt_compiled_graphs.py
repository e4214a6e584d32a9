"""nanoGPT's forward graphs as Inductor generates them, for training and for inference.

Each function lists kernels in the order of the generated code (before Inductor reorders them) with the buffers they
read and write, so that a line here is a line of `output_code.py`. Which tensors the forward keeps is the min-cut
partition: normalised inputs rather than residuals, both sides of GELU, the weight casts, row statistics of the loss.
Letters: B batch, T tokens of a sequence, N = B * T, C width, H heads, D head size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from onecard.config.schema import RunConfig
from onecard.plan.memory import kernels, tags
from onecard.plan.memory.device import AttentionKernel, Device
from onecard.plan.memory.inductor_graph import Graph
from onecard.plan.memory.inductor_splits import inner_parts
from onecard.plan.memory.kernels import FLOAT, LONG

REALIZE_READS = 4  # an expression that reads more buffers than this becomes a buffer (config.realize_reads_threshold)
ROW_ALIGNMENT = 128  # bytes to which rows of more than 1024 elements are padded (config.comprehensive_padding)


@dataclass(frozen=True, kw_only=True)
class Padding:
    """Which of the head's matmuls Inductor pads to an aligned vocabulary (fx_passes/pad_mm.py)."""

    forward: bool = False  # logits = x W^T
    weight: bool = False  # W's gradient = dlogits^T x
    input: bool = False  # x's gradient = dlogits W


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Sizes of one compiled model; `item` is the bytes of an activation's element, `kind` its type."""

    B: int
    T: int
    C: int
    H: int
    V: int
    layers: int
    bias: bool
    dropout: bool
    half: bool
    attention: AttentionKernel
    device: Device
    splits: int  # rows of partial sums of a fused LayerNorm backward; 0 where Inductor does not fuse it
    padding: Padding

    @property
    def N(self) -> int:
        return self.B * self.T

    @property
    def D(self) -> int:
        return self.C // self.H

    @property
    def item(self) -> int:
        return 2 if self.half else FLOAT

    @property
    def kind(self) -> str:
        return "half" if self.half else "float"

    @property
    def padded_head(self) -> int:
        return kernels.flash_head_size(self.D) if self.attention == "flash" else self.D

    @property
    def V_padded(self) -> int:
        return kernels.round_up(self.V, 8 if self.half else 4)

    @property
    def keeps_embeddings(self) -> bool:
        """Whether the forward keeps both embeddings and recomputes the first norm, or keeps the norm's result.

        The min-cut's weights (partitioners.py, get_node_weight), per token and in embedding elements: bytes, 1.1 times
        less for each step nearer to the backward, twice if keeping it makes a buffer of what would stay in registers.
        On one side the embeddings of tokens and, shared by B sequences, of positions, and the mean, one step nearer,
        twice; on the other the norm's result, three steps nearer, twice (the scale weighs the same on both). So:
        B >= 3, or 2 from a width of 692 on; checked against the partitioner of torch 2.13 on a CPU. Never with dropout
        (as recorded at batch 4, and at 16 by its size).
        """
        embeddings = (1 + 1 / self.B) * self.C + 2 / 1.1
        return not self.dropout and embeddings < 2 * self.C / 1.1**3


def shape_of(config: RunConfig, device: Device, padding: Padding) -> Shape:
    """Sizes and choices of a config on a device."""
    tokens, width = config.batch_size * config.block_size, config.n_embd
    attention = device.attention_kernel(config.dtype, config.head_size)
    # MixOrderReduction.can_fuse: worth it for big, tall matrices only
    fuses = tokens * width >= 5 * 2**20 and tokens >= 2 * width and tokens >= 4096
    rows = max(16, min(128, _last_power_of_2(tokens // (device.multiprocessors * 8)))) if fuses else 0
    partial_rows = ceil(tokens / rows) if rows else 0
    return Shape(
        B=config.batch_size,
        T=config.block_size,
        C=width,
        H=config.n_head,
        V=config.vocab_size,
        layers=config.n_layer,
        bias=config.bias,
        dropout=config.dropout > 0,
        half=config.dtype != "float32",
        attention=attention,
        device=device,
        splits=partial_rows,
        padding=padding,
    )


def _last_power_of_2(value: int) -> int:
    return 1 << (max(value, 1).bit_length() - 1)


def matrix(rows: int, columns: int, item: int) -> int:
    """Bytes of a matrix inside a graph: long rows start at multiples of 128 bytes (ir.Layout._pad_strides)."""
    stride = kernels.round_up(columns, ROW_ALIGNMENT // item) if columns > 1024 else columns
    return ((rows - 1) * stride + columns) * item


@dataclass
class Traced:
    """A graph with the numbers of the buffers that the loop must know by name."""

    graph: Graph
    named: dict[str, int]


class Builder:
    """A graph under construction, with what the forward and inference graphs share."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.graph = Graph()
        self.named: dict[str, int] = {}

    # -- buffers -------------------------------------------------------------------------------------------------
    def half(self, size_bytes: int, tag: str) -> int:
        return self.graph.buffer(size_bytes, self.shape.kind, tag)

    def float(self, elements: int, tag: str) -> int:
        return self.graph.buffer(FLOAT * elements, "float", tag)

    def act(self, columns: int, tag: str = tags.ACTIVATIONS) -> int:
        """An N x columns matrix in the compute type."""
        return self.half(matrix(self.shape.N, columns, self.shape.item), tag)

    def keep(self, name: str, buffer: int) -> int:
        """A buffer the graph returns, by name."""
        self.named[name] = buffer
        self.graph.outputs.append(buffer)
        return buffer

    # -- kernels both forwards share -----------------------------------------------------------------------------
    def cast(self, name: str, rows: int, columns: int, saved: str = "") -> list[int]:
        """A weight in the compute type: a kernel under autocast, nothing in float32. Returns what a matmul reads."""
        if not self.shape.half:
            return []
        weight = self.half(matrix(rows, columns, self.shape.item), tags.WEIGHT_CASTS)
        if saved:
            self.keep(saved, weight)
        self.graph.kernel(f"cast {name}", (), (weight,), pointwise=True)
        return [weight]

    def cast_bias(self, name: str, elements: int) -> list[int]:
        if not (self.shape.half and self.shape.bias):
            return []
        bias = self.half(self.shape.item * elements, tags.WEIGHT_CASTS)
        self.graph.kernel(f"cast {name}", (), (bias,), pointwise=True)
        return [bias]

    def matmul(self, reads: list[int], result: int, name: str = "mm") -> int:
        self.graph.kernel(name, reads, (result,))
        return result

    def attention(self, qkv: int, layer: int, training: bool) -> int:
        """Queries, keys and values in one buffer to the attention output (N x C); saves what the backward reads."""
        s, g = self.shape, self.graph
        inputs = [qkv]
        out = self.half(s.N * s.H * s.padded_head * s.item, tags.ATTENTION)
        if s.padded_head != s.D:  # flash wants multiples of 8: three padded copies
            inputs = [self.half(s.N * s.H * s.padded_head * s.item, tags.ATTENTION) for _ in range(3)]
            for which, buffer in enumerate(inputs):
                g.kernel(f"pad {which}", (qkv,), (buffer,), pointwise=True)
        rows = s.B * s.H * s.T
        seed, offset = g.buffer(LONG, "seed", tags.ATTENTION), g.buffer(LONG, "seed", tags.ATTENTION)
        logsumexp = g.buffer(FLOAT * rows, "float", tags.ATTENTION)
        taken: tuple[int, ...] = (out, logsumexp, seed, offset) if training else (out,)
        if s.attention == "cudnn":
            # the random state first; no log-sum-exp in inference (native/cudnn/MHA.cpp)
            results = (seed, offset, out, logsumexp) if training else (seed, offset, out)
            g.call("attention", inputs, results, taken, hidden=(kernels.CUDNN_FORWARD_WORKSPACE,))
        elif s.attention == "flash":
            seed = g.buffer(2 * LONG, "seed", tags.ATTENTION)
            taken = (out, logsumexp, seed, offset) if training else (out,)
            parts = kernels.flash_splits(s.device, s.B, s.H, s.T, s.padded_head)
            parts = 1 if training and s.dropout else parts
            accumulated = FLOAT * parts * rows
            width = kernels.flash_rounded_head_size(s.padded_head)
            hidden = (accumulated, accumulated * width) if parts > 1 else ()
            g.call("attention", inputs, (out, logsumexp, seed, offset), taken, hidden=hidden)
        else:
            logsumexp = g.buffer(kernels.efficient_logsumexp(s.B, s.H, s.T), "float", tags.ATTENTION)
            taken = (out, logsumexp) if training else (out,)  # its random state lives on the host
            g.call("attention", inputs, taken, taken)
        if training:
            for name, buffer in zip(("q", "k", "v"), inputs, strict=False):
                self.keep(f"{layer}.{name}", buffer)
            for name, buffer in zip(("out", "lse", "seed", "offset"), taken, strict=False):
                self.keep(f"{layer}.{name}", buffer)
        return out

    def unpadded(self, out: int, layer: int, training: bool) -> int:
        """The attention output without the padding of the head size, as the projection reads it."""
        if self.shape.padded_head == self.shape.D:
            return out
        y = self.act(self.shape.C, tags.ATTENTION)
        if training:
            self.keep(f"{layer}.y", y)
        self.graph.kernel("unpad", (out,), (y,), pointwise=True)
        return y

    def loss(self, logits: int, training: bool) -> None:
        """Row statistics of the softmax, then the mean of the rows' losses."""
        s, g = self.shape, self.graph
        largest, total = self.float(s.N, tags.LOGITS_AND_LOSS), self.float(s.N, tags.LOGITS_AND_LOSS)
        parts = inner_parts(s.device, s.N, s.V)
        if parts > 1:  # few rows: the largest of a row's parts, of the row, then the same for the sum
            parts_1, parts_2 = (self.float(parts * s.N, tags.LOGITS_AND_LOSS) for _ in range(2))
            g.kernel("largest of parts", (logits,), (parts_1,))
            g.kernel("largest", (parts_1,), (largest,))
            g.kernel("sum of parts", (logits, largest), (parts_2,))
            g.kernel("sum", (parts_2,), (total,), internal_bytes=FLOAT * s.N if training else 0)
        else:
            g.kernel("softmax", (logits,), (largest, total), internal_bytes=FLOAT * s.N if training else 0)
        loss = g.buffer(FLOAT, "float", tags.LOGITS_AND_LOSS)
        reads = [logits, largest, total]
        parts = inner_parts(s.device, 1, s.N)
        if parts > 1:
            counts = g.buffer(LONG * parts, "long", tags.LOGITS_AND_LOSS)
            sums = self.float(parts, tags.LOGITS_AND_LOSS)
            g.kernel("loss parts", reads, (counts, sums) if training else (sums, counts))
            reads = [counts, sums]
        written = [loss]
        if training:
            weight = g.buffer(FLOAT, "float", tags.LOGITS_AND_LOSS)  # how many targets count
            written.append(self.keep("targets counted", weight))
            self.keep("largest", largest)
            self.keep("total", total)
        g.kernel("loss", reads, written, internal_bytes=LONG)
        self.keep("loss", loss)

    def head(self, x: int, training: bool) -> int:
        """Logits; with padding the columns of the weight are padded first and the logits keep them."""
        s, g = self.shape, self.graph
        g.moment = "head and loss"
        if s.padding.forward:
            weights = self.cast("head", s.V, s.C, "w_head" if training else "")
            padded = self.half(s.C * s.V_padded * s.item, tags.WEIGHT_CASTS)
            g.kernel("pad head", weights, (padded,), pointwise=True)
            reads, columns = [x, padded], s.V_padded
        else:
            reads, columns = [x, *self.cast("head", s.V, s.C, "w_head" if training else "")], s.V
        logits = self.half(s.N * columns * s.item, tags.LOGITS_AND_LOSS)
        return self.keep("logits", self.matmul(reads, logits))

    def traced(self) -> Traced:
        return Traced(self.graph, self.named)


class _Residual:
    """The residual stream as Inductor sees it: a sum of buffers, made a buffer itself when it reads too many."""

    def __init__(self, reads: int, parts: list[int]) -> None:
        self.reads = reads  # of the expression, weights and indices included
        self.parts = parts  # buffers it reads

    def add(self, buffer: int, reads: int) -> bool:
        """Add a sublayer's output; says whether the sum must become a buffer now."""
        self.parts.append(buffer)
        self.reads += reads
        return self.reads > REALIZE_READS

    def realize(self, buffer: int) -> None:
        self.reads, self.parts = 1, [buffer]


def forward(shape: Shape) -> Traced:
    """Training's forward graph."""
    s, make = shape, Builder(shape)
    g = make.graph
    g.moment = "forward pass"
    positions = make.keep("positions", g.buffer(LONG * s.T, "long", tags.TOKEN_IDS))
    g.kernel("arange", (), (positions,), pointwise=True)
    seeds: list[int] = []
    if s.dropout:
        seeds = [g.buffer(LONG * (2 * s.layers + 1), "long", tags.ACTIVATIONS)]
        g.kernel("seeds", (), seeds)

    def random_bytes() -> int:
        return FLOAT * s.N * s.C if s.dropout else 0  # the uniform numbers, in registers

    def mask(name: str) -> list[int]:
        return [make.keep(name, g.buffer(s.N * s.C, "bool", tags.ACTIVATIONS))] if s.dropout else []

    def normed(name: str, y: int, residual: _Residual) -> int:
        """Dropout, residual sum and LayerNorm in one kernel; returns the norm's output."""
        masks = mask(f"{name}.mask")
        is_long = residual.add(y, 1 + s.dropout + (s.bias and not s.half))
        reads, written, takes = [*seeds, *residual.parts], masks, {}
        if is_long:
            total = make.float(s.N * s.C, tags.ACTIVATIONS)
            takes[total] = tuple(residual.parts)
            written = [*written, total]
            residual.realize(total)
        norm = make.keep(f"{name}.norm", make.float(s.N * s.C, tags.ACTIVATIONS))
        takes[norm] = tuple(residual.parts)
        x = make.keep(f"{name}.x", make.act(s.C))
        scale = make.keep(f"{name}.scale", make.float(s.N, tags.ACTIVATIONS))
        internal = 3 * FLOAT * s.N + random_bytes()
        g.kernel("norm", reads, [*written, norm, x, scale], takes=takes, internal_bytes=internal)
        return x

    # embeddings and the first norm
    x = make.act(s.C)
    if s.keeps_embeddings:
        place = make.keep("positions embedded", make.float(s.T * s.C, tags.ACTIVATIONS))
        g.kernel("embed positions", (), (place,), pointwise=True)
        embedded = make.keep("embedded", make.float(s.N * s.C, tags.ACTIVATIONS))
        mean, scale = make.float(s.N, tags.ACTIVATIONS), make.float(s.N, tags.ACTIVATIONS)
        written = [embedded, make.keep("0.ln_1.mean", mean), make.keep("0.ln_1.scale", scale), make.keep("0.ln_1.x", x)]
        g.kernel("first norm", (place,), written, internal_bytes=2 * FLOAT * s.N)
        residual = _Residual(2, [embedded, place])
    else:
        masks = mask("0.ln_1.mask")
        norm, scale = make.float(s.N * s.C, tags.ACTIVATIONS), make.float(s.N, tags.ACTIVATIONS)
        written = [*masks, make.keep("0.ln_1.norm", norm), make.keep("0.ln_1.x", x), make.keep("0.ln_1.scale", scale)]
        g.kernel("first norm", seeds, written, internal_bytes=3 * FLOAT * s.N + random_bytes())
        residual = _Residual(3 + len(masks), masks)

    for layer in range(s.layers):
        weights = make.cast("attn", 3 * s.C, s.C, f"{layer}.w_attn")
        biases = make.cast_bias("attn bias", 3 * s.C)
        qkv = make.matmul([*biases, x, *weights], make.act(3 * s.C, tags.ATTENTION), "addmm" if s.bias else "mm")
        out = make.attention(qkv, layer, training=True)
        weights = make.cast("proj", s.C, s.C, f"{layer}.w_proj")
        y = make.unpadded(out, layer, training=True)
        biases = make.cast_bias("narrow bias", s.C)
        y = make.matmul([*biases, y, *weights], make.act(s.C))
        x = normed(f"{layer}.ln_2", y, residual)

        weights = make.cast("mlp", 4 * s.C, s.C, f"{layer}.w_fc")
        biases = make.cast_bias("fc bias", 4 * s.C)
        inner = make.keep(f"{layer}.inner", make.matmul([*biases, x, *weights], make.act(4 * s.C)))
        gelu = make.keep(f"{layer}.gelu", make.act(4 * s.C))
        weights = [] if s.bias else make.cast("mlp", s.C, 4 * s.C, f"{layer}.w_out")
        g.kernel("gelu", (inner,), (gelu,), pointwise=True)
        weights = weights or make.cast("mlp", s.C, 4 * s.C, f"{layer}.w_out")
        biases = make.cast_bias("narrow bias", s.C)
        y = make.matmul([*biases, gelu, *weights], make.act(s.C))
        x = normed(f"{layer + 1}.ln_1", y, residual)

    make.loss(make.head(x, training=True), training=True)
    return make.traced()


def inference(shape: Shape) -> Traced:
    """Evaluation's graph: nothing is kept, GELU and the norms write over what they read."""
    s, make = shape, Builder(shape)
    g = make.graph
    g.moment = "forward pass"
    x = make.act(s.C)
    g.kernel("first norm", (), (x,), internal_bytes=3 * FLOAT * s.N)
    residual = _Residual(3, [])  # token ids and both embedding tables

    def normed(y: int) -> int:
        is_long = residual.add(y, 1 + (s.bias and not s.half))
        reads, written, takes = tuple(residual.parts), [], {}
        if is_long:
            total = make.float(s.N * s.C, tags.ACTIVATIONS)
            takes[total] = reads
            written = [total]
            residual.realize(total)
        x = make.act(s.C)
        takes[x] = tuple(residual.parts)
        g.kernel("norm", reads, [*written, x], takes=takes, internal_bytes=3 * FLOAT * s.N)
        return x

    for layer in range(s.layers):
        weights = make.cast("attn", 3 * s.C, s.C)
        biases = make.cast_bias("attn bias", 3 * s.C)
        qkv = make.matmul([*biases, x, *weights], make.act(3 * s.C, tags.ATTENTION), "addmm" if s.bias else "mm")
        y = make.unpadded(make.attention(qkv, layer, training=False), layer, training=False)
        weights = make.cast("proj", s.C, s.C)
        biases = make.cast_bias("narrow bias", s.C)
        x = normed(make.matmul([*biases, y, *weights], make.act(s.C)))

        weights = make.cast("mlp", 4 * s.C, s.C)
        biases = make.cast_bias("fc bias", 4 * s.C)
        inner = make.matmul([*biases, x, *weights], make.act(4 * s.C))
        gelu = make.act(4 * s.C)
        g.kernel("gelu", (inner,), (gelu,), takes={gelu: (inner,)}, pointwise=True)
        weights = make.cast("mlp", s.C, 4 * s.C)
        biases = make.cast_bias("narrow bias", s.C)
        x = normed(make.matmul([*biases, gelu, *weights], make.act(s.C)))

    make.loss(make.head(x, training=False), training=False)
    return make.traced()
