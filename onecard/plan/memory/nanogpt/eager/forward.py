"""nanoGPT's forward pass, eager: every allocation and free, in PyTorch's order. Read beside nanoGPT's model.py.

In training, what the backward pass needs is kept. Under no_grad each tensor is freed after its last reader.
"""

from __future__ import annotations

from dataclasses import dataclass

from onecard.plan.memory.kernels import FLOAT, LONG
from onecard.plan.memory.nanogpt.eager.attention import Attention, AttentionCalls
from onecard.plan.memory.nanogpt.loop import SCALAR
from onecard.plan.memory.tags import (
    ACTIVATIONS,
    ATTENTION,
    LOGITS_AND_LOSS,
    TOKEN_IDS,
    WEIGHT_CASTS,
)


@dataclass(slots=True)
class Linear:
    """Blocks of one linear layer in one forward pass."""

    name: str
    out: int
    saved_input: int | None  # what the backward pass needs of the input, if this layer alone holds it
    weight_cast: int | None  # None in float32


@dataclass(slots=True)
class Norm:
    """Blocks of one LayerNorm in one forward pass."""

    name: str
    x: int
    out: int
    mean: int
    rstd: int


@dataclass(slots=True)
class Layer:
    """What one transformer block leaves for its backward pass."""

    ln_1: Norm
    c_attn: Linear
    attention: Attention
    attn_c_proj: Linear
    attn_mask: int | None
    ln_2: Norm
    c_fc: Linear
    gelu: int
    mlp_c_proj: Linear
    mlp_mask: int | None


@dataclass(slots=True)
class Loss:
    """What the head and the loss leave for the backward pass."""

    ln_f: Norm
    lm_head: Linear
    log_softmax: int
    float_copy: int | None  # nll_loss needs float32; None if log_softmax is already float32
    total_weight: int
    loss: int


@dataclass(slots=True)
class Graph:
    """What a whole forward pass leaves for its backward pass."""

    embedding: list[int]  # positions and, with dropout, a mask
    layers: list[Layer]
    head: Loss


class Forward(AttentionCalls):
    """GPT.forward, with and without a graph."""

    graph: Graph  # of the last forward pass in training

    def forward(self) -> tuple[int | None, int]:
        """One forward pass in training: logits (None unless returned) and loss; `graph` is for the backward pass."""
        embeddings, positions, x, mask = self.embedding(train=True)
        layers = []
        for layer in range(self.layers):
            x, saved = self.layer(layer, x, train=True)
            layers.append(saved)
        head = self.head(x, train=True)
        self.free(*embeddings)  # the frame of GPT.forward holds them until here
        if self.is_half:
            self.free(head.ln_f.out)  # in float32 it is lm_head's saved input
        self.graph = Graph([positions, *mask], layers, head)
        if self.returns_logits:
            return head.lm_head.out, head.loss
        self.free(head.lm_head.out)  # the loss's backward pass needs only log_softmax
        return None, head.loss

    def forward_for_evaluation(self) -> tuple[int, int]:
        """One forward pass under no_grad: nothing is saved; returns logits and loss."""
        embeddings, positions, x, _ = self.embedding(train=False)
        for layer in range(self.layers):
            x, _saved = self.layer(layer, x, train=False)
        head = self.head(x, train=False)
        self.free(positions, *embeddings, head.ln_f.out)
        return head.lm_head.out, head.loss

    def embedding(self, train: bool) -> tuple[list[int], int, int, list[int]]:
        """tok_emb and pos_emb, positions, x = drop(tok_emb + pos_emb), and a list with the dropout mask, if any."""
        alloc = self.alloc
        self.tape.moment("forward pass")
        positions = alloc(self.T * LONG, TOKEN_IDS)
        tok_emb = alloc(self.stream, ACTIVATIONS)
        self.loads("embedding")
        pos_emb = alloc(self.T * self.C * FLOAT, ACTIVATIONS)
        x = alloc(self.stream, ACTIVATIONS)
        mask: list[int] = []
        if train and self.drops:
            added = x
            mask = [alloc(self.mask, ACTIVATIONS)]
            x = alloc(self.stream, ACTIVATIONS)
            self.free(added)
        return [tok_emb, pos_emb], positions, x, mask

    def layer(self, index: int, x: int, train: bool) -> tuple[int, Layer]:
        """Block.forward: x + attn(ln_1(x)), then x + mlp(ln_2(x))."""
        alloc, free = self.alloc, self.free
        ln_1 = self.norm(f"{index}.ln_1", x, train)
        c_attn = self.linear(f"{index}.c_attn", ln_1.out, train)
        attention = self.attention(c_attn.out, train)
        own = attention.out if self.copies_heads else None  # otherwise attention also saves its output
        attn_c_proj = self.linear(f"{index}.attn.c_proj", own, train, cast_input=False)
        branch, attn_mask = self.dropout(attn_c_proj.out, train)
        if not train:
            free(attention.out)
        if not train or self.copies_heads:
            free(c_attn.out)
        if self.is_half or not train:
            free(ln_1.out)  # in float32 it is c_attn's saved input
        middle = alloc(self.stream, ACTIVATIONS)
        free(branch)

        ln_2 = self.norm(f"{index}.ln_2", middle, train)
        c_fc = self.linear(f"{index}.c_fc", ln_2.out, train)
        gelu = alloc(self.N * 4 * self.C * self.item, ACTIVATIONS)
        if not train:
            free(c_fc.out)
        mlp_c_proj = self.linear(f"{index}.mlp.c_proj", gelu, train, cast_input=False)
        branch, mlp_mask = self.dropout(mlp_c_proj.out, train)
        if not train:
            free(gelu)
        if self.is_half or not train:
            free(ln_2.out)
        out = alloc(self.stream, ACTIVATIONS)
        free(branch)
        if not train:
            free(middle, x)
        return out, Layer(ln_1, c_attn, attention, attn_c_proj, attn_mask, ln_2, c_fc, gelu, mlp_c_proj, mlp_mask)

    def norm(self, name: str, x: int, train: bool) -> Norm:
        """F.layer_norm, always float32."""
        out = self.alloc(self.stream, ACTIVATIONS)
        mean = self.alloc(self.rows, ACTIVATIONS)
        rstd = self.alloc(self.rows, ACTIVATIONS)
        if not train:
            self.free(mean, rstd)
        return Norm(name, x, out, mean, rstd)

    def linear(self, name: str, x: int | None, train: bool, *, cast_input: bool = True) -> Linear:
        """F.linear under autocast: bias, weight and input are cast, from the last argument to the first.

        `x` is the input, if only this layer saves it for the backward pass.
        """
        alloc = self.alloc
        inputs, outputs = self.linears[name.partition(".")[2]]
        weight_cast = None
        if self.is_half:
            if self.bias:
                self.bias_casts.append(alloc(outputs * self.item, WEIGHT_CASTS))
            weight_cast = alloc(inputs * outputs * self.item, WEIGHT_CASTS)
            self.weight_casts.append(weight_cast)
            if cast_input and x is not None:
                x = alloc(self.N * inputs * self.item, ACTIVATIONS)
        out = alloc(self.N * outputs * self.item, ATTENTION if outputs == 3 * inputs else ACTIVATIONS)
        self.cublas("forward", with_lt=self.bias)
        if self.is_half and cast_input and x is not None and not train:
            self.free(x)
        return Linear(name, out, x, weight_cast)

    def dropout(self, x: int, train: bool) -> tuple[int, int | None]:
        """nn.Dropout on a branch: its result and its mask; the input is freed."""
        if not (train and self.drops):
            return x, None
        mask = self.alloc(self.mask, ACTIVATIONS)
        out = self.alloc(self.narrow, ACTIVATIONS)
        self.free(x)
        return out, mask

    def head(self, x: int, train: bool) -> Loss:
        """ln_f, lm_head, and F.cross_entropy: log_softmax in the compute type, nll_loss in float32."""
        alloc, free = self.alloc, self.free
        self.tape.moment("head and loss")
        ln_f = self.norm("ln_f", x, train)
        if not train:
            free(x)
        weight_cast, saved_input = None, ln_f.out
        if self.is_half:
            weight_cast = alloc(self.V * self.C * self.item, WEIGHT_CASTS)
            self.weight_casts.append(weight_cast)
            saved_input = alloc(self.narrow, ACTIVATIONS)
        logits_size = self.N * self.V
        logits = alloc(logits_size * self.item, LOGITS_AND_LOSS)
        if self.is_half and not train:
            free(saved_input)
        log_softmax = alloc(logits_size * self.item, LOGITS_AND_LOSS)
        float_copy = alloc(logits_size * FLOAT, LOGITS_AND_LOSS) if self.is_half else None
        loss = alloc(SCALAR, LOGITS_AND_LOSS)
        total_weight = alloc(SCALAR, LOGITS_AND_LOSS)
        if not train:
            free(total_weight)
            if float_copy is not None:
                free(float_copy)
            free(log_softmax)
        lm_head = Linear("lm_head", logits, saved_input, weight_cast)
        return Loss(ln_f, lm_head, log_softmax, float_copy, total_weight, loss)
