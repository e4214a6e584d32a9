"""Forward and backward pass of GPT-2, written out kernel by kernel, for the setup that almost everybody trains.

In half precision, without dropout and biases, a block is eight kernels forward and twice as many backward. Written out,
they do what autograd and a compiler cannot: products add directly to the residual stream and to the gradients, and use
the fastest kernel of this card; weights are cast once per update; only a few small Triton kernels are compiled. All
other setups use gpt2.py and torch.compile. Why we wrote this ourselves: docs/adr/0012.

Parameters and gradients are the model's own. The mathematics is that of `gpt2.py` under autocast, with x in half
precision (docs/adr/0011); `tests/train/test_fused.py` compares the two.

`ops` are the operations of torch, or of paper. Letters: B sequences, T tokens of a sequence, N = B·T, C n_embd, E = 3C,
F = 4C, H n_head, D = C / H, V vocab_size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onecard.models.chunked_loss import CHUNKS
from onecard.models.chunks import chunk_starts
from onecard.models.gpt2 import GPT2
from onecard.paper.tags import ACTIVATIONS, ATTENTION, GRADIENTS_IN_FLIGHT, LOGITS_AND_LOSS

Tensor = Any  # of torch, or on paper
Layers = Any  # a module of torch, or weights on paper

ALL = slice(None)


class Weight:
    """The weight of a linear layer, or some of its rows, with a copy in the type used for products.

    `part` is what its output is for.
    """

    def __init__(self, ops: Any, parameter: Tensor, narrow_OI: Tensor, part: str, rows: slice = ALL) -> None:
        self.ops, self.parameter, self.narrow_OI, self.part = ops, parameter, narrow_OI, part
        self._rows = rows

    @property
    def thirds(self) -> list[Weight]:
        """The parts for queries, keys and values, of a weight that makes all three."""
        third = len(self.narrow_OI) // 3
        rows = [slice(start, start + third) for start in (0, third, 2 * third)]
        return [Weight(self.ops, self.parameter, self.narrow_OI[each], self.part, each) for each in rows]

    def times(self, x_NI: Tensor, *, added_NO: Tensor | None = None) -> Tensor:
        """The layer's output for x, plus `added_NO`."""
        out_NO = self.ops.empty((len(x_NI), len(self.narrow_OI)), dtype=x_NI.dtype, like=x_NI, part=self.part)
        self.ops.multiply(x_NI, self.narrow_OI.t(), out_NO, added_MN=added_NO)
        return out_NO

    def backward(self, d_out_NO: Tensor, *, added_NI: Tensor | None = None) -> Tensor:
        """The gradient of x; where `added_NI` is given, added to it in place."""
        d_x_NI = added_NI
        if d_x_NI is None:
            shape = len(d_out_NO), self.narrow_OI.shape[1]
            d_x_NI = self.ops.empty(shape, dtype=d_out_NO.dtype, like=d_out_NO, part=GRADIENTS_IN_FLIGHT)
        self.ops.multiply(d_out_NO, self.narrow_OI, d_x_NI, added_MN=added_NI)
        return d_x_NI

    def learn(self, d_out_NO: Tensor, x_NI: Tensor, *, factor: Tensor | None = None) -> None:
        """Add to the weight's gradient, which must already exist."""
        gradient_OI = _gradient(self.parameter)[self._rows]
        self.ops.multiply(d_out_NO.t(), x_NI, gradient_OI, added_MN=gradient_OI, factor=factor)


@dataclass(slots=True)
class Kept:
    """What a block keeps for its backward pass; what is None is computed again."""

    x: Tensor  # NC
    normed: Tensor | None  # NC
    attention: Any
    middle: Tensor  # NC, x after attention
    middle_normed: Tensor | None  # NC
    wide: Tensor  # NF
    activated: Tensor | None  # NF


class BlockPasses:
    """A block of the model, with both passes written out."""

    def __init__(self, ops: Any, model: GPT2, p: Layers, dtype: Any) -> None:
        self.ops = ops
        self.norms = [p.ln_1.weight, p.ln_2.weight]
        parts = [(p.attn.c_attn, ATTENTION)] + [(p, ACTIVATIONS) for p in (p.attn.c_proj, p.mlp.c_fc, p.mlp.c_proj)]
        self.weights = [_with_copy(ops, layer, part, dtype) for layer, part in parts]
        self.heads = model.heads
        self.recompute = model.recompute

    def forward(self, x_NC: Tensor, batch: int) -> Tensor:
        """x after the block; nothing is kept."""
        ops = self.ops
        c_attn, c_proj, c_fc, c_out = self.weights
        qkv_NE = c_attn.times(ops.norm(x_NC, self.norms[0]))
        y_NC = ops.separate_attention(qkv_NE, batch=batch, heads=self.heads, trains=False).y_NC
        del qkv_NE
        x_NC = c_proj.times(y_NC, added_NO=x_NC)
        del y_NC
        return c_out.times(ops.activated(c_fc.times(ops.norm(x_NC, self.norms[1]))), added_NO=x_NC)

    def forward_keeping(self, x_NC: Tensor, batch: int) -> tuple[Tensor, Kept | Tensor]:
        """x after the block, and what its backward pass needs: only the input, if everything is recomputed."""
        if self.recompute == "full":
            return self.forward(x_NC, batch), x_NC
        kept = self._until_the_last_product(x_NC, batch)
        activated_NF = self.ops.activated(kept.wide)
        x_NC = self.weights[3].times(activated_NF, added_NO=kept.middle)
        if self.recompute == "none":
            kept.activated = activated_NF
        return x_NC, kept

    def _until_the_last_product(self, x_NC: Tensor, batch: int) -> Kept:
        ops = self.ops
        c_attn, c_proj, c_fc, _ = self.weights
        keeps = self.recompute != "selective"
        normed_NC = ops.norm(x_NC, self.norms[0])
        attention = ops.separate_attention(c_attn.times(normed_NC), batch=batch, heads=self.heads, trains=True)
        kept_normed_NC = normed_NC if keeps else None
        del normed_NC
        middle_NC = c_proj.times(attention.y_NC, added_NO=x_NC)
        middle_normed_NC = ops.norm(middle_NC, self.norms[1])
        wide_NF = c_fc.times(middle_normed_NC)
        return Kept(x_NC, kept_normed_NC, attention, middle_NC, middle_normed_NC if keeps else None, wide_NF, None)

    def backward(self, d_NC: Tensor, kept: Kept | Tensor, batch: int) -> Tensor:
        """Turn the gradient of the block's output into that of its input, in the same memory."""
        ops = self.ops
        if not isinstance(kept, Kept):
            kept = self._until_the_last_product(kept, batch)
        c_attn, c_proj, c_fc, c_out = self.weights
        d_wide_NF = c_out.backward(d_NC)
        if kept.activated is not None:
            c_out.learn(d_NC, kept.activated)
            kept.activated = None
            ops.activated_backward(d_wide_NF, kept.wide)
        else:
            activated_NF = ops.activated_backward(d_wide_NF, kept.wide, again=True)
            c_out.learn(d_NC, activated_NF)
            del activated_NF
        del kept.wide
        self._behind_norm_backward(1, [(c_fc, d_wide_NF)], kept.middle, kept.middle_normed, d_NC)
        del d_wide_NF, kept.middle, kept.middle_normed
        d_y_NC = c_proj.backward(d_NC)
        c_proj.learn(d_NC, kept.attention.y_NC)
        parts = list(zip(c_attn.thirds, kept.attention.backward(d_y_NC), strict=True))
        del d_y_NC
        self._behind_norm_backward(0, parts, kept.x, kept.normed, d_NC)
        return d_NC

    def _behind_norm_backward(
        self,
        index: int,
        linears: list[tuple[Weight, Tensor]],
        x_NC: Tensor,
        normed_NC: Tensor | None,
        d_NC: Tensor,
    ) -> None:
        """Backward through a norm and the layers after it (with the gradients of their outputs); adds to `d_NC`."""
        d_normed_NC: Tensor | None = None
        for linear, d_out_NO in linears:
            d_normed_NC = linear.backward(d_out_NO, added_NI=d_normed_NC)
        weight_C = self.norms[index]
        _, again_NC = self.ops.norm_backward(
            d_normed_NC, x_NC, weight_C, _gradient(weight_C), d_x_NC=d_NC, again=normed_NC is None
        )
        del d_normed_NC
        read_NC = again_NC if normed_NC is None else normed_NC
        for linear, d_out_NO in linears:
            linear.learn(d_out_NO, read_NC)


class Passes:
    """A model's losses and gradients, computed by the written-out passes. `dtype` is that of products."""

    def __init__(self, ops: Any, model: GPT2, p: Layers, dtype: Any) -> None:
        self.ops, self._p, self._dtype = ops, p, dtype
        self._chunk_tokens, self._longest = model.chunk_tokens, model.block_size
        self.blocks = [BlockPasses(ops, model, block, dtype) for block in p.transformer.h]
        self._head = _with_copy(ops, p.lm_head, LOGITS_AND_LOSS, dtype)
        weights = [self._head, *(weight for block in self.blocks for weight in block.weights)]
        self._narrow = [each for each in weights if each.narrow_OI.dtype != each.parameter.dtype]

    def refresh(self) -> None:
        """Cast the weights again, after they have changed."""
        if self._narrow:
            self.ops.copy_all([each.narrow_OI for each in self._narrow], [each.parameter for each in self._narrow])

    def token_losses(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Cross-entropy losses_BT in nats (float32), 0 where the target is -1."""
        ops = self.ops
        with ops.no_grad():
            ops.moment("forward pass")
            x_NC = self._embedded(tokens_BT)
            for block in self.blocks:
                x_NC = block.forward(x_NC, len(tokens_BT))
            hidden_NC = ops.norm(x_NC, self._p.transformer.ln_f.weight)
            del x_NC
            ops.moment("loss")
            targets_N = targets_BT.flatten()
            losses_N = self._new_losses(hidden_NC)
            for rows in self._chunks(targets_N):
                ops.write_losses(self._logits(hidden_NC[rows]), targets_N[rows], losses_N[rows], gradient=False)
            return losses_N.view_as(targets_BT)

    def add_gradients(self, tokens_BT: Tensor, targets_BT: Tensor, *, scale: Tensor) -> Tensor:
        """The mean loss over targets other than -1; `scale` times its gradient is added to the parameters'."""
        ops, batch = self.ops, len(tokens_BT)
        with ops.no_grad():
            ops.moment("forward pass")
            x_NC = self._embedded(tokens_BT)
            kept = []
            for block in self.blocks:
                x_NC, of_block = block.forward_keeping(x_NC, batch)
                kept.append(of_block)
                del of_block
            loss, d_hidden_NC, factor = self._loss_and_gradient(x_NC, targets_BT.flatten(), scale)
            ops.moment("backward pass of the blocks")
            weight_C = self._p.transformer.ln_f.weight
            d_NC, _ = ops.norm_backward(d_hidden_NC, x_NC, weight_C, _gradient(weight_C), d_x_NC=None, factor=factor)
            del x_NC, d_hidden_NC
            for block in reversed(self.blocks):
                d_NC = block.backward(d_NC, kept.pop(), batch)
            ops.moment("backward pass of the embeddings")
            ops.embedded_backward(d_NC, tokens_BT, *map(_gradient, self._embeddings))
            return loss

    @property
    def _embeddings(self) -> tuple[Tensor, Tensor]:
        """The embeddings of tokens and of positions."""
        return self._p.transformer.wte.weight, self._p.transformer.wpe.weight

    def _embedded(self, tokens_BT: Tensor) -> Tensor:
        length = tokens_BT.shape[1]
        assert length <= self._longest, f"{length} tokens do not fit block_size={self._longest}"
        return self.ops.embedded(tokens_BT, *self._embeddings, self._dtype)

    def _chunks(self, targets_N: Tensor) -> Any:
        starts = chunk_starts(len(targets_N), self._chunk_tokens)
        return (slice(start, start + starts.step) for start in self.ops.repeated(starts, enough=CHUNKS))

    def _new_losses(self, hidden_NC: Tensor) -> Tensor:
        return self.ops.empty((len(hidden_NC),), dtype=self.ops.float32, like=hidden_NC, part=LOGITS_AND_LOSS)

    def _logits(self, hidden_nC: Tensor) -> Tensor:
        return self._head.times(hidden_nC)

    def _loss_and_gradient(self, x_NC: Tensor, targets_N: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The mean loss, the gradient of the losses' sum for the last norm's output, and the factor it still needs.

        As in chunked_loss.py: before the division, gradients of logits are about as large as weights, which suits
        float16.
        """
        ops = self.ops
        ops.moment("loss")
        hidden_NC = ops.norm(x_NC, self._p.transformer.ln_f.weight)
        losses_N = self._new_losses(hidden_NC)
        d_hidden_NC = ops.empty(hidden_NC.shape, dtype=hidden_NC.dtype, like=hidden_NC, part=GRADIENTS_IN_FLIGHT)
        count = ops.counted(targets_N)
        factor = scale / count
        for rows in self._chunks(targets_N):
            logits_nV = self._logits(hidden_NC[rows])
            ops.write_losses(logits_nV, targets_N[rows], losses_N[rows], gradient=True)
            ops.multiply(logits_nV, self._head.narrow_OI, d_hidden_NC[rows])
            self._head.learn(logits_nV, hidden_NC[rows], factor=factor)
            del logits_nV  # free them before the next chunk's are made
        return losses_N.sum() / count, d_hidden_NC, factor


def _with_copy(ops: Any, layer: Layers, part: str, dtype: Any) -> Weight:
    """A layer's weight with its own copy, unless the parameter already has that type."""
    return Weight(ops, layer.weight, ops.cast(layer.weight.detach(), dtype), part)


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
