"""Kernels that the forward, inference and backward graphs share, with the buffers they read and write."""

from __future__ import annotations

from onecard.paper import kernels, tags
from onecard.paper.kernels import FLOAT, LONG
from onecard.plan.memory.inductor.kernel_graph import KernelGraph, Traced
from onecard.plan.memory.inductor.splits import inner_parts
from onecard.plan.memory.inductor.tuning import is_timed
from onecard.plan.memory.nanogpt.compiled.shape import Shape

ROW_ALIGNMENT = 128  # bytes to which rows of more than 1024 elements are padded (config.comprehensive_padding)
REALIZE_READS = 4  # an expression that reads more buffers than this becomes a buffer (config.realize_reads_threshold)


def matrix(rows: int, columns: int, item: int) -> int:
    """Bytes of a matrix inside a graph: long rows start at multiples of 128 bytes (ir.Layout._pad_strides)."""
    stride = kernels.round_up(columns, ROW_ALIGNMENT // item) if columns > 1024 else columns
    return ((rows - 1) * stride + columns) * item


class Builder:
    """A graph under construction, with what the forward and inference graphs share."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.graph = KernelGraph()
        self.named: dict[str, int] = {}

    # -- buffers -------------------------------------------------------------------------------------------------
    def buffer(self, size_bytes: int, tag: str) -> int:
        return self.graph.buffer(size_bytes, self.shape.kind, tag)

    def floats(self, elements: int, tag: str) -> int:
        return self.graph.buffer(FLOAT * elements, "float", tag)

    def act(self, columns: int, tag: str = tags.ACTIVATIONS) -> int:
        """An N x columns matrix in the compute type."""
        return self.buffer(matrix(self.shape.N, columns, self.shape.item), tag)

    def keep(self, name: str, buffer: int) -> int:
        """A buffer the graph returns, by name."""
        self.named[name] = buffer
        self.graph.outputs.append(buffer)
        return buffer

    # -- kernels both forwards share -----------------------------------------------------------------------------
    def cast(self, name: str, rows: int, columns: int, saved: str = "") -> list[int]:
        """A weight in the compute type: a kernel under autocast, nothing in float32. Returns what a matmul reads."""
        if not self.shape.is_half:
            return []
        weight = self.buffer(matrix(rows, columns, self.shape.item), tags.WEIGHT_CASTS)
        if saved:
            self.keep(saved, weight)
        self.graph.kernel(f"cast {name}", (), (weight,), timed=True)
        return [weight]

    def cast_bias(self, name: str, elements: int) -> list[int]:
        if not (self.shape.is_half and self.shape.bias):
            return []
        bias = self.buffer(self.shape.item * elements, tags.WEIGHT_CASTS)
        self.graph.kernel(f"cast {name}", (), (bias,), timed=True)
        return [bias]

    def matmul(self, reads: list[int], result: int, name: str = "mm") -> int:
        self.graph.kernel(name, reads, (result,))
        return result

    def attention(self, qkv: int, layer: int, training: bool, *, keeps: bool = True) -> int:
        """From queries, keys and values in one buffer to the attention output (N x C); saves what the backward reads.

        `keeps=False`: saves nothing, even in training, because the backward recomputes it all.
        """
        s, g = self.shape, self.graph
        inputs = [qkv]
        if s.padded_head != s.D:  # flash needs multiples of 8: three padded copies
            inputs = [self.buffer(s.N * s.H * s.padded_head * s.item, tags.ATTENTION) for _ in range(3)]
            for which, buffer in enumerate(inputs):
                g.kernel(f"pad {which}", (qkv,), (buffer,), timed=True)
        rows = s.B * s.H * s.T
        out = self.buffer(s.N * s.H * s.padded_head * s.item, tags.ATTENTION)
        efficient = s.kernel not in ("cudnn", "flash")
        rows_bytes = kernels.efficient_logsumexp(s.B, s.H, s.T) if efficient else FLOAT * rows
        logsumexp = g.buffer(rows_bytes, "float", tags.ATTENTION)
        seed, offset = (g.buffer(size, "seed", tags.ATTENTION) for size in (LONG * (1 + (s.kernel == "flash")), LONG))
        keeps = training and keeps
        taken: tuple[int, ...] = (out, logsumexp, seed, offset) if keeps else (out,)
        if s.kernel == "cudnn":
            # the random state first; no log-sum-exp in inference (native/cudnn/MHA.cpp)
            results = (seed, offset, out, logsumexp) if training else (seed, offset, out)
            g.call("cudnn attention", inputs, results, taken, hidden=(kernels.CUDNN_FORWARD_WORKSPACE,))
        elif s.kernel == "flash":
            g.skip_names(1)
            parts = kernels.flash_splits(s.device, s.B, s.H, s.T, s.padded_head)
            parts = 1 if training and s.drops else parts
            accumulated = FLOAT * parts * rows
            width = kernels.flash_rounded_head_size(s.padded_head)
            hidden = (accumulated, accumulated * width) if parts > 1 else ()
            g.call("attention", inputs, (out, logsumexp, seed, offset), taken, hidden=hidden)
        else:
            taken = taken[:2]  # its random state lives on the host
            g.call("attention", inputs, (out, logsumexp) if training else taken, taken)
        if keeps:
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
        self.graph.kernel("unpad", (out,), (y,), timed=True)
        return y

    def loss(self, logits: int, training: bool) -> None:
        """Row statistics of the softmax, then the mean of the rows' losses."""
        s, g = self.shape, self.graph
        largest, total = self.floats(s.N, tags.LOGITS_AND_LOSS), self.floats(s.N, tags.LOGITS_AND_LOSS)
        parts = inner_parts(s.device, s.N, s.V)
        if parts > 1:  # few rows: the largest of a row's parts, of the row, then the same for the sum
            parts_1, parts_2 = (self.floats(parts * s.N, tags.LOGITS_AND_LOSS) for _ in range(2))
            g.kernel("largest of parts", (logits,), (parts_1,))
            timed = is_timed(s.N, parts)
            g.kernel("largest", (parts_1,), (largest,), timed=timed)
            g.kernel("sum of parts", (logits, largest), (parts_2,))
            g.kernel("sum", (parts_2,), (total,), internal_bytes=FLOAT * s.N if training else 0, timed=timed)
        else:
            internal = FLOAT * s.N if training else 0
            g.kernel("softmax", (logits,), (largest, total), internal_bytes=internal, timed=is_timed(s.N, s.V))
        loss = g.buffer(FLOAT, "float", tags.LOGITS_AND_LOSS)
        reads = [logits, largest, total]
        parts = inner_parts(s.device, 1, s.N)
        if parts > 1:
            counts = g.buffer(LONG * parts, "long", tags.LOGITS_AND_LOSS)
            sums = self.floats(parts, tags.LOGITS_AND_LOSS)
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
        """Logits. With padding, the columns of the weight are padded first and the logits keep them."""
        s, g = self.shape, self.graph
        g.moment = "head and loss"
        if s.padding.forward:
            weights = self.cast("head", s.V, s.C, "lm_head.cast" if training else "")
            padded = self.buffer(s.C * s.V_padded * s.item, tags.WEIGHT_CASTS)
            g.kernel("pad head", weights, (padded,), timed=True)
            reads, columns = [x, padded], s.V_padded
        else:
            reads, columns = [x, *self.cast("head", s.V, s.C, "lm_head.cast" if training else "")], s.V
        returned = s.returns_logits or not training  # the caller sees them as in eager mode, row after row
        size = s.N * columns * s.item if returned else matrix(s.N, columns, s.item)
        logits = self.buffer(size, tags.LOGITS_AND_LOSS)
        return self.keep("logits", self.matmul(reads, logits))

    def traced(self) -> Traced:
        return Traced(self.graph, self.named)
