"""Forward and backward pass of the GPT, written out kernel by kernel, for the setup that almost everybody trains.

In half precision, without dropout and biases, a block is eight kernels forward and twice as many backward. Written out,
they do what autograd and a compiler cannot: products add directly to the residual stream and to the gradients, and use
the fastest kernel of this card (products.py); weights are cast once per update; only a few small Triton kernels are
compiled. All other setups use model.py and torch.compile. Why we wrote this ourselves: docs/adr/0012.

Parameters and gradients are the model's own. The mathematics is that of `model.py` under autocast, with x in half
precision (docs/adr/0011); `tests/train/test_fused.py` compares the two.

Letters: B sequences, T tokens of a sequence, N = B·T, C n_embd, E = 3C, F = 4C, H n_head, D = C / H, V vocab_size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from onecard.models.chunks import chunk_slices
from onecard.train.block_kernels import embedded, embedded_backward, gelu, gelu_backward, norm, norm_backward
from onecard.train.loss import IGNORED, has_kernel, write_losses
from onecard.train.model import GPT, Block
from onecard.train.products import has_products, multiply

ALL = slice(None)


def can_fuse() -> bool:
    """Whether a CUDA machine has what the passes need: Triton, and torch's own cuBLASLt."""
    return has_kernel("cuda") and has_products()


class _Weight:
    """The weight of a linear layer, or some of its rows, with a copy in the type used for products."""

    def __init__(self, parameter: Tensor, narrow_OI: Tensor, rows: slice = ALL) -> None:
        self.parameter = parameter
        self.narrow_OI = narrow_OI
        self._rows = rows

    @classmethod
    def of(cls, parameter: Tensor, dtype: torch.dtype) -> _Weight:
        """The weight with its own copy, unless the parameter already has that type."""
        return cls(parameter, parameter.detach().to(dtype))

    @property
    def thirds(self) -> list[_Weight]:
        """The parts for queries, keys and values, of a weight that makes all three."""
        third = len(self.narrow_OI) // 3
        rows = [slice(start, start + third) for start in (0, third, 2 * third)]
        return [_Weight(self.parameter, self.narrow_OI[each], each) for each in rows]

    def times(self, x_NI: Tensor, *, added_NO: Tensor | None = None) -> Tensor:
        """The layer's output for x, plus `added_NO`."""
        out_NO = x_NI.new_empty(len(x_NI), len(self.narrow_OI))
        multiply(x_NI, self.narrow_OI.t(), out_NO, added_MN=added_NO)
        return out_NO

    def backward(self, d_out_NO: Tensor, *, added_NI: Tensor | None = None) -> Tensor:
        """The gradient of x; where `added_NI` is given, added to it in place."""
        d_x_NI = d_out_NO.new_empty(len(d_out_NO), self.narrow_OI.shape[1]) if added_NI is None else added_NI
        multiply(d_out_NO, self.narrow_OI, d_x_NI, added_MN=added_NI)
        return d_x_NI

    def learn(self, d_out_NO: Tensor, x_NI: Tensor, *, factor: Tensor | None = None) -> None:
        """Add to the weight's gradient, which must already exist."""
        gradient_OI = _gradient(self.parameter)[self._rows]
        multiply(d_out_NO.t(), x_NI, gradient_OI, added_MN=gradient_OI, factor=factor)


class _Attention:
    """Causal attention by torch's kernels, with their own backward pass and without copies."""

    def __init__(self, qkv_NE: Tensor, *, batch: int, heads: int, trains: bool) -> None:
        parts = qkv_NE.view(batch, -1, 3, heads, qkv_NE.shape[1] // (3 * heads)).unbind(2)
        self._qkv = [part_BTHD.transpose(1, 2).detach().requires_grad_(trains) for part_BTHD in parts]
        q_BHTD, k_BHTD, v_BHTD = self._qkv
        with torch.set_grad_enabled(trains):
            self._y_BHTD = functional.scaled_dot_product_attention(q_BHTD, k_BHTD, v_BHTD, is_causal=True)

    @property
    def y_NC(self) -> Tensor:
        return self._y_BHTD.detach().transpose(1, 2).flatten(2).flatten(0, 1)

    def backward(self, d_y_NC: Tensor) -> list[Tensor]:
        """The gradients of queries, keys and values, each (N, C)."""
        batch, heads, length, _ = self._y_BHTD.shape
        d_y_BHTD = d_y_NC.view(batch, length, heads, -1).transpose(1, 2)
        parts = torch.autograd.grad(self._y_BHTD, self._qkv, d_y_BHTD)
        del self._qkv, self._y_BHTD  # no longer needed
        return [part_BHTD.transpose(1, 2).flatten(2).flatten(0, 1) for part_BHTD in parts]


@dataclass(slots=True)
class _Kept:
    """What a block keeps for its backward pass; what is None is computed again."""

    x: Tensor  # NC
    normed: Tensor | None  # NC
    attention: _Attention
    middle: Tensor  # NC, x after attention
    middle_normed: Tensor | None  # NC
    wide: Tensor  # NF
    activated: Tensor | None  # NF


class _FusedBlock:
    """A block of the model, with both passes written out."""

    def __init__(self, block: Block, dtype: torch.dtype) -> None:
        self.norms = [block.ln_1.weight, block.ln_2.weight]
        linears = (block.attn.c_attn, block.attn.c_proj, block.mlp.c_fc, block.mlp.c_proj)
        self.weights = [_Weight.of(linear.weight, dtype) for linear in linears]
        self.heads = block.attn.n_head
        self.recompute = block.recompute

    def forward(self, x_NC: Tensor, batch: int) -> Tensor:
        """x after the block; nothing is kept."""
        c_attn, c_proj, c_fc, c_out = self.weights
        qkv_NE = c_attn.times(norm(x_NC, self.norms[0]))
        y_NC = _Attention(qkv_NE, batch=batch, heads=self.heads, trains=False).y_NC
        del qkv_NE
        x_NC = c_proj.times(y_NC, added_NO=x_NC)
        del y_NC
        return c_out.times(gelu(c_fc.times(norm(x_NC, self.norms[1]))), added_NO=x_NC)

    def forward_keeping(self, x_NC: Tensor, batch: int) -> tuple[Tensor, _Kept | Tensor]:
        """x after the block, and what its backward pass needs: only the input, if everything is recomputed."""
        if self.recompute == "full":
            return self.forward(x_NC, batch), x_NC
        kept = self._until_the_last_product(x_NC, batch)
        activated_NF = gelu(kept.wide)
        x_NC = self.weights[3].times(activated_NF, added_NO=kept.middle)
        if self.recompute == "none":
            kept.activated = activated_NF
        return x_NC, kept

    def _until_the_last_product(self, x_NC: Tensor, batch: int) -> _Kept:
        c_attn, c_proj, c_fc, _ = self.weights
        keeps = self.recompute != "selective"
        normed_NC = norm(x_NC, self.norms[0])
        attention = _Attention(c_attn.times(normed_NC), batch=batch, heads=self.heads, trains=True)
        kept_normed_NC = normed_NC if keeps else None
        del normed_NC
        middle_NC = c_proj.times(attention.y_NC, added_NO=x_NC)
        middle_normed_NC = norm(middle_NC, self.norms[1])
        wide_NF = c_fc.times(middle_normed_NC)
        return _Kept(x_NC, kept_normed_NC, attention, middle_NC, middle_normed_NC if keeps else None, wide_NF, None)

    def backward(self, d_NC: Tensor, kept: _Kept | Tensor, batch: int) -> Tensor:
        """Turn the gradient of the block's output into that of its input, in the same memory."""
        if isinstance(kept, Tensor):
            kept = self._until_the_last_product(kept, batch)
        c_attn, c_proj, c_fc, c_out = self.weights
        d_wide_NF = c_out.backward(d_NC)
        if kept.activated is not None:
            c_out.learn(d_NC, kept.activated)
            kept.activated = None
            gelu_backward(d_wide_NF, kept.wide)
        else:
            activated_NF = gelu_backward(d_wide_NF, kept.wide, again=True)
            assert activated_NF is not None
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
        linears: list[tuple[_Weight, Tensor]],
        x_NC: Tensor,
        normed_NC: Tensor | None,
        d_NC: Tensor,
    ) -> None:
        """Backward through a norm and the layers after it (with the gradients of their outputs); adds to `d_NC`."""
        d_normed_NC: Tensor | None = None
        for linear, d_out_NO in linears:
            d_normed_NC = linear.backward(d_out_NO, added_NI=d_normed_NC)
        assert d_normed_NC is not None
        weight_C = self.norms[index]
        _, again_NC = norm_backward(
            d_normed_NC, x_NC, weight_C, _gradient(weight_C), d_x_NC=d_NC, again=normed_NC is None
        )
        del d_normed_NC
        read_NC = again_NC if normed_NC is None else normed_NC
        assert read_NC is not None
        for linear, d_out_NO in linears:
            linear.learn(d_out_NO, read_NC)


class FusedPasses:
    """A model's losses and gradients, computed by the written-out passes."""

    def __init__(self, model: GPT, dtype: torch.dtype) -> None:
        self._model = model
        self._dtype = dtype
        self._blocks = [_FusedBlock(block, dtype) for block in model.transformer.h]  # type: ignore[arg-type]
        self._head = _Weight.of(model.lm_head.weight, dtype)
        weights = [self._head, *(weight for block in self._blocks for weight in block.weights)]
        self._narrow = [each for each in weights if each.narrow_OI.dtype != each.parameter.dtype]

    @torch.no_grad()
    def refresh(self) -> None:
        """Cast the weights again, after they have changed."""
        if self._narrow:
            torch._foreach_copy_([each.narrow_OI for each in self._narrow], [each.parameter for each in self._narrow])

    @torch.no_grad()
    def token_losses(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Cross-entropy losses_BT in nats (float32), 0 where the target is -1."""
        x_NC = self._embedded(tokens_BT)
        for block in self._blocks:
            x_NC = block.forward(x_NC, len(tokens_BT))
        hidden_NC = norm(x_NC, self._model.transformer.ln_f.weight)
        del x_NC
        targets_N = targets_BT.flatten()
        losses_N = self._new_losses(targets_N)
        for rows in chunk_slices(len(targets_N), self._model.chunk_tokens):
            write_losses(self._logits(hidden_NC[rows]), targets_N[rows], losses_N[rows], gradient=False)
        return losses_N.view_as(targets_BT)

    @torch.no_grad()
    def add_gradients(self, tokens_BT: Tensor, targets_BT: Tensor, *, scale: Tensor) -> Tensor:
        """The mean loss over targets other than -1; `scale` times its gradient is added to the parameters'."""
        batch = len(tokens_BT)
        x_NC = self._embedded(tokens_BT)
        kept = []
        for block in self._blocks:
            x_NC, of_block = block.forward_keeping(x_NC, batch)
            kept.append(of_block)
        loss, d_hidden_NC, factor = self._loss_and_gradient(x_NC, targets_BT.flatten(), scale)
        weight_C = self._model.transformer.ln_f.weight
        d_NC, _ = norm_backward(d_hidden_NC, x_NC, weight_C, _gradient(weight_C), d_x_NC=None, factor=factor)
        del x_NC, d_hidden_NC, of_block
        for block in reversed(self._blocks):
            d_NC = block.backward(d_NC, kept.pop(), batch)
        embedded_backward(d_NC, tokens_BT, *map(_gradient, self._embeddings))
        return loss

    @property
    def _embeddings(self) -> tuple[Tensor, Tensor]:
        """The embeddings of tokens and of positions."""
        return self._model.transformer.wte.weight, self._model.transformer.wpe.weight

    def _embedded(self, tokens_BT: Tensor) -> Tensor:
        length, longest = tokens_BT.shape[1], self._model.config.block_size
        assert length <= longest, f"{length} tokens do not fit block_size={longest}"
        return embedded(tokens_BT, *self._embeddings, self._dtype)

    def _new_losses(self, targets_N: Tensor) -> Tensor:
        return torch.empty_like(targets_N, dtype=torch.float32)

    def _logits(self, hidden_nC: Tensor) -> Tensor:
        return self._head.times(hidden_nC)

    def _loss_and_gradient(self, x_NC: Tensor, targets_N: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The mean loss, the gradient of the losses' sum for the last norm's output, and the factor it still needs.

        As in loss.py: before the division, gradients of logits are about as large as weights, which suits float16.
        """
        hidden_NC = norm(x_NC, self._model.transformer.ln_f.weight)
        losses_N = self._new_losses(targets_N)
        d_hidden_NC = torch.empty_like(hidden_NC)
        count = (targets_N != IGNORED).sum()
        factor = scale / count
        for rows in chunk_slices(len(targets_N), self._model.chunk_tokens):
            logits_nV = self._logits(hidden_NC[rows])
            write_losses(logits_nV, targets_N[rows], losses_N[rows], gradient=True)
            multiply(logits_nV, self._head.narrow_OI, d_hidden_NC[rows])
            self._head.learn(logits_nV, hidden_NC[rows], factor=factor)
            del logits_nV  # free them before the next chunk's are made
        return losses_N.sum() / count, d_hidden_NC, factor


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
