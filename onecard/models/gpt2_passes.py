"""GPT-2's forward and backward pass written out, kernel by kernel, for the setup that almost everybody trains.

All other setups use gpt2.py and torch.compile. The mathematics is that of `gpt2.py` under autocast, with x in half
precision (docs/adr/0011); `tests/train/test_fused.py` compares the two.

`ops` are the operations of torch, or of paper. Letters: B sequences, T tokens of a sequence, N = B·T, C n_embd, E = 3C,
F = 4C, H n_head, D = C / H.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onecard.models import written_out
from onecard.models.gpt2 import GPT2
from onecard.models.written_out import Layers, Tensor, Weight, gradient_of, with_copy
from onecard.paper.tags import ACTIVATIONS, ATTENTION


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
        self.weights = [with_copy(ops, layer, part, dtype) for layer, part in parts]
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
            d_normed_NC, x_NC, weight_C, gradient_of(weight_C), d_x_NC=d_NC, again=normed_NC is None
        )
        del d_normed_NC
        read_NC = again_NC if normed_NC is None else normed_NC
        for linear, d_out_NO in linears:
            linear.learn(d_out_NO, read_NC)


class Passes(written_out.Passes):
    """GPT-2's losses and gradients."""

    def __init__(self, ops: Any, model: GPT2, p: Layers, dtype: Any) -> None:
        blocks = [BlockPasses(ops, model, block, dtype) for block in p.transformer.h]
        super().__init__(ops, model, p, dtype, blocks)

    @property
    def _embeddings(self) -> tuple[Tensor, Tensor]:
        """The embeddings of tokens and of positions."""
        return self.p.transformer.wte.weight, self.p.transformer.wpe.weight

    def embedded(self, tokens_BT: Tensor) -> Tensor:
        return self.ops.embedded(tokens_BT, *self._embeddings, self.dtype)

    def embedded_backward(self, d_NC: Tensor, tokens_BT: Tensor) -> None:
        self.ops.embedded_backward(d_NC, tokens_BT, *map(gradient_of, self._embeddings))

    def last_norm(self, x_NC: Tensor) -> tuple[Tensor, Tensor]:
        return self.ops.norm(x_NC, self.p.transformer.ln_f.weight), x_NC

    def last_norm_backward(self, d_hidden_NC: Tensor, x_NC: Tensor, factor: Tensor) -> Tensor:
        weight_C = self.p.transformer.ln_f.weight
        gradient_C = gradient_of(weight_C)
        d_NC, _ = self.ops.norm_backward(d_hidden_NC, x_NC, weight_C, gradient_C, d_x_NC=None, factor=factor)
        return d_NC
