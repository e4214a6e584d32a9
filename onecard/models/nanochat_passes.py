"""The forward and backward pass of nanochat.py written out, as gpt2_passes.py has GPT-2's.

The gradient of a norm follows from its result y and the scale r of each row: with y = r · x it is
r · (dy - y · mean(dy · y)). Products keep y anyway, so x is not kept. ReLU²'s follows from its result a: the slope is
2 · sqrt(a). Queries and keys are rotated and normed in place, where the product has written them.

`ops` are the operations of torch, or of paper. Letters: B sequences, T tokens of a sequence, N = B·T, C n_embd, E = 3C,
F = 4C, H n_head, G = 2H heads of queries and keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onecard.models import written_out
from onecard.models.nanochat import SOFT_CAP, Nanochat
from onecard.models.written_out import Layers, Tensor, Weight, gradient_of, with_copy
from onecard.paper.tags import ACTIVATIONS, ATTENTION


@dataclass(slots=True)
class Kept:
    """What a block keeps for its backward pass."""

    normed: Tensor  # NC
    scale: Tensor  # N
    qkv: Tensor  # NE, queries and keys rotated and normed
    qk_scale: Tensor  # NG
    attention: Any
    middle_normed: Tensor  # NC, x after attention, normed
    middle_scale: Tensor  # N
    activated: Tensor | None  # NF


class BlockPasses:
    """A block of the model, with both passes written out."""

    def __init__(self, ops: Any, model: Nanochat, p: Layers, dtype: Any) -> None:
        self.ops = ops
        parts = [(p.attn.c_attn, ATTENTION)] + [(p, ACTIVATIONS) for p in (p.attn.c_proj, p.mlp.c_fc, p.mlp.c_proj)]
        self.weights = [with_copy(ops, layer, part, dtype) for layer, part in parts]
        self.heads = model.heads
        self.recomputes = model.recompute == "full"

    def forward(self, x_NC: Tensor, batch: int) -> Tensor:
        """x after the block; nothing is kept."""
        ops = self.ops
        c_attn, c_proj, c_fc, c_out = self.weights
        qkv_NE = c_attn.times(ops.rms_normed(x_NC)[0])
        ops.rotate(qkv_NE, batch=batch, heads=self.heads)
        y_NC = ops.separate_attention(qkv_NE, batch=batch, heads=self.heads, trains=False).y_NC
        del qkv_NE
        x_NC = c_proj.times(y_NC, added_NO=x_NC)
        del y_NC
        wide_NF = c_fc.times(ops.rms_normed(x_NC)[0])
        ops.square_relu(wide_NF)
        return c_out.times(wide_NF, added_NO=x_NC)

    def forward_keeping(self, x_NC: Tensor, batch: int) -> tuple[Tensor, Kept | Tensor]:
        """x after the block, and what its backward pass needs: only the input, if everything is recomputed."""
        if self.recomputes:
            return self.forward(x_NC, batch), x_NC
        kept, middle_NC = self._until_the_last_product(x_NC, batch)
        return self.weights[3].times(kept.activated, added_NO=middle_NC), kept

    def _until_the_last_product(self, x_NC: Tensor, batch: int) -> tuple[Kept, Tensor]:
        """What the backward pass needs, and x after attention."""
        ops = self.ops
        c_attn, c_proj, c_fc, _ = self.weights
        normed_NC, scale_N = ops.rms_normed(x_NC)
        qkv_NE = c_attn.times(normed_NC)
        qk_scale_NG = ops.rotate(qkv_NE, batch=batch, heads=self.heads)
        attention = ops.separate_attention(qkv_NE, batch=batch, heads=self.heads, trains=True)
        middle_NC = c_proj.times(attention.y_NC, added_NO=x_NC)
        middle_normed_NC, middle_scale_N = ops.rms_normed(middle_NC)
        wide_NF = c_fc.times(middle_normed_NC)
        ops.square_relu(wide_NF)
        kept = Kept(normed_NC, scale_N, qkv_NE, qk_scale_NG, attention, middle_normed_NC, middle_scale_N, wide_NF)
        return kept, middle_NC

    def backward(self, d_NC: Tensor, kept: Kept | Tensor, batch: int) -> Tensor:
        """Turn the gradient of the block's output into that of its input, in the same memory."""
        ops = self.ops
        if not isinstance(kept, Kept):
            kept = self._until_the_last_product(kept, batch)[0]
        c_attn, c_proj, c_fc, c_out = self.weights
        d_wide_NF = c_out.backward(d_NC)
        c_out.learn(d_NC, kept.activated)
        ops.square_relu_backward(d_wide_NF, kept.activated)
        kept.activated = None
        self._behind_norm_backward([(c_fc, d_wide_NF)], kept.middle_normed, kept.middle_scale, d_NC)
        del d_wide_NF, kept.middle_normed, kept.middle_scale
        d_y_NC = c_proj.backward(d_NC)
        c_proj.learn(d_NC, kept.attention.y_NC)
        parts = kept.attention.backward(d_y_NC)
        del d_y_NC
        ops.rotate_backward(parts[:2], kept.qkv, kept.qk_scale, batch=batch, heads=self.heads)
        del kept.qkv, kept.qk_scale
        self._behind_norm_backward(list(zip(c_attn.thirds, parts, strict=True)), kept.normed, kept.scale, d_NC)
        return d_NC

    def _behind_norm_backward(
        self, linears: list[tuple[Weight, Tensor]], normed_NC: Tensor, scale_N: Tensor, d_NC: Tensor
    ) -> None:
        """Backward through a norm and the layers after it (with the gradients of their outputs); adds to `d_NC`."""
        d_normed_NC: Tensor | None = None
        for linear, d_out_NO in linears:
            d_normed_NC = linear.backward(d_out_NO, added_NI=d_normed_NC)
            linear.learn(d_out_NO, normed_NC)
        self.ops.rms_norm_backward(d_normed_NC, normed_NC, scale_N, d_x_NC=d_NC)


class Passes(written_out.Passes):
    """The model's losses and gradients."""

    soft_cap = SOFT_CAP

    def __init__(self, ops: Any, model: Nanochat, p: Layers, dtype: Any) -> None:
        blocks = [BlockPasses(ops, model, block, dtype) for block in p.transformer.h]
        super().__init__(ops, model, p, dtype, blocks)

    def embedded(self, tokens_BT: Tensor) -> Tensor:
        return self.ops.normed_rows(tokens_BT, self.p.transformer.wte.weight, self.dtype)

    def embedded_backward(self, d_NC: Tensor, tokens_BT: Tensor) -> None:
        weight_VC = self.p.transformer.wte.weight
        self.ops.normed_rows_backward(d_NC, tokens_BT, weight_VC, gradient_of(weight_VC))

    def last_norm(self, x_NC: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        normed_NC, scale_N = self.ops.rms_normed(x_NC)
        return normed_NC, (normed_NC, scale_N)

    def last_norm_backward(self, d_hidden_NC: Tensor, kept: tuple[Tensor, Tensor], factor: Tensor) -> Tensor:
        return self.ops.rms_norm_backward(d_hidden_NC, *kept, d_x_NC=None, factor=factor)
