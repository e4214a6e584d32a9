"""nanoGPT's forward graphs as Inductor generates them, for training and for inference.

Each function lists kernels in the order of the generated code (before Inductor reorders them) with the buffers they
read and write: a line here is a line of `output_code.py`. The min-cut partition decides what the forward keeps:
normalised inputs rather than residuals, both sides of GELU, the weight casts, row statistics of the loss.
"""

from __future__ import annotations

from onecard.paper import tags
from onecard.paper.kernels import FLOAT, LONG
from onecard.plan.memory.inductor.kernel_graph import Traced
from onecard.plan.memory.inductor.tuning import loop_is_timed
from onecard.plan.memory.nanogpt.compiled.builder import REALIZE_READS, Builder
from onecard.plan.memory.nanogpt.compiled.shape import Shape

NORM_ROWS = 3  # buffers with one number per row that a norm's kernel keeps in registers: mean, variance, a step between


class _Residual:
    """The residual stream as Inductor sees it: a sum of buffers, which becomes a buffer when it reads too many."""

    def __init__(self, reads: int, parts: list[int]) -> None:
        self.reads = reads  # reads of the expression, weights and indices included
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
    g.kernel("arange", (), (positions,), timed=True)
    seeds: list[int] = []

    def draw_seeds() -> None:
        if s.drops:
            seeds.append(g.buffer(LONG * (2 * s.layers + 1), "long", tags.ACTIVATIONS))
            g.kernel("seeds", (), seeds)

    def random_bytes() -> int:
        return FLOAT * s.N * s.C if s.drops else 0  # the uniform numbers, in registers

    def mask(name: str) -> list[int]:
        if not s.drops:
            return []
        g.skip_names(1)  # the uniform numbers
        return [make.keep(name, g.buffer(s.N * s.C, "bool", tags.ACTIVATIONS))]

    def row_scale(name: str) -> int:
        """A norm's scale per row; Inductor names it at the end of the graph."""
        return make.keep(f"{name}.scale", g.buffer(FLOAT * s.N, "float", tags.ACTIVATIONS, named=False))

    def normed(name: str, y: int, residual: _Residual) -> int:
        """Dropout, residual sum and LayerNorm in one kernel; returns the norm's output."""
        masks = mask(f"{name}.mask")
        is_long = residual.add(y, 1 + s.drops + (s.bias and not s.is_half))
        reads, written, takes = [*seeds, *residual.parts], masks, {}
        if is_long:
            total = make.floats(s.N * s.C, tags.ACTIVATIONS)
            takes[total] = tuple(residual.parts)
            written = [*written, total]
            residual.realize(total)
        g.skip_names(NORM_ROWS)
        norm = make.keep(f"{name}.norm", make.floats(s.N * s.C, tags.ACTIVATIONS))
        takes[norm] = tuple(residual.parts)
        x = make.keep(f"{name}.x", make.act(s.C))
        internal = NORM_ROWS * FLOAT * s.N + random_bytes()
        written = [*written, norm, x, row_scale(name)]
        g.kernel(f"norm of {len(reads)}", reads, written, takes=takes, internal_bytes=internal, timed=s.times_norms)
        return x

    # embeddings and the first norm
    x = make.act(s.C)
    if s.keeps_embeddings:
        place = make.keep("positions embedded", make.floats(s.T * s.C, tags.ACTIVATIONS))
        g.kernel("embed positions", (), (place,), timed=True)
        draw_seeds()
        masks = mask("0.ln_1.mask")
        embedded = make.keep("embedded", make.floats(s.N * s.C, tags.ACTIVATIONS))
        mean = make.keep("0.ln_1.mean", make.floats(s.N, tags.ACTIVATIONS))
        g.skip_names(NORM_ROWS)
        written = [*masks, embedded, mean, row_scale("0.ln_1"), make.keep("0.ln_1.x", x)]
        internal = 2 * FLOAT * s.N + random_bytes()
        g.kernel("first norm", (*seeds, place), written, internal_bytes=internal, timed=s.times_norms)
        residual = _Residual(2 + len(masks), [embedded, place, *masks])
    else:
        draw_seeds()
        masks = mask("0.ln_1.mask")
        g.skip_names(NORM_ROWS)
        norm = make.keep("0.ln_1.norm", make.floats(s.N * s.C, tags.ACTIVATIONS))
        written = [*masks, norm, make.keep("0.ln_1.x", x), row_scale("0.ln_1")]
        internal = NORM_ROWS * FLOAT * s.N + random_bytes()
        g.kernel("first norm", seeds, written, internal_bytes=internal, timed=s.times_norms)
        residual = _Residual(3 + len(masks), masks)

    for layer in range(s.layers):
        weights = make.cast("attn", 3 * s.C, s.C, f"{layer}.c_attn.cast")
        biases = make.cast_bias("attn bias", 3 * s.C)
        qkv = make.matmul([*biases, x, *weights], make.act(3 * s.C, tags.ATTENTION), "addmm" if s.bias else "mm")
        out = make.attention(qkv, layer, training=True)
        weights = make.cast("proj", s.C, s.C, f"{layer}.attn.c_proj.cast")
        y = make.unpadded(out, layer, training=True)
        biases = make.cast_bias("narrow bias", s.C)
        y = make.matmul([*biases, y, *weights], make.act(s.C))
        x = normed(f"{layer}.ln_2", y, residual)

        weights = make.cast("mlp", 4 * s.C, s.C, f"{layer}.c_fc.cast")
        biases = make.cast_bias("fc bias", 4 * s.C)
        inner = make.keep(f"{layer}.inner", make.matmul([*biases, x, *weights], make.act(4 * s.C)))
        gelu = make.keep(f"{layer}.gelu", make.act(4 * s.C))
        weights = [] if s.bias else make.cast("mlp", s.C, 4 * s.C, f"{layer}.mlp.c_proj.cast")
        g.kernel("gelu", (inner,), (gelu,), timed=True)
        weights = weights or make.cast("mlp", s.C, 4 * s.C, f"{layer}.mlp.c_proj.cast")
        biases = make.cast_bias("narrow bias", s.C)
        y = make.matmul([*biases, gelu, *weights], make.act(s.C))
        x = normed(s.next_norm(layer), y, residual)

    make.loss(make.head(x, training=True), training=True)
    return make.traced()


def inference(shape: Shape) -> Traced:
    """Evaluation's graph: nothing is kept, GELU and the norms write over what they read."""
    s, make = shape, Builder(shape)
    g = make.graph
    g.moment = "forward pass"
    g.skip_names(NORM_ROWS)
    x = make.act(s.C)
    internal = NORM_ROWS * FLOAT * s.N
    timed = loop_is_timed(s.device, s.N, s.C)  # the one norm that loops over its rows in every recorded run
    g.kernel("first norm", (), (x,), internal_bytes=internal, timed=timed)
    residual = _Residual(3, [])  # token ids and both embedding tables

    def normed(y: int) -> int:
        is_long = residual.add(y, 1 + (s.bias and not s.is_half))
        reads, written, takes = tuple(residual.parts), [], {}
        if is_long:
            total = make.floats(s.N * s.C, tags.ACTIVATIONS)
            takes[total] = reads
            written = [total]
            residual.realize(total)
        g.skip_names(NORM_ROWS)
        x = make.act(s.C)
        takes[x] = tuple(residual.parts)
        written.append(x)
        g.kernel(f"norm of {len(reads)}", reads, written, takes=takes, internal_bytes=internal, timed=s.times_norms)
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
        g.kernel("gelu", (inner,), (gelu,), takes={gelu: (inner,)}, timed=True)
        weights = make.cast("mlp", s.C, 4 * s.C)
        biases = make.cast_bias("narrow bias", s.C)
        x = normed(make.matmul([*biases, gelu, *weights], make.act(s.C)))

    make.loss(make.head(x, training=False), training=False)
    return make.traced()
