"""GPT-2 as nanoGPT writes it: the same parameters, names and initial weights (bit for bit per seed), in less memory.

Letters of tensor names: B sequences, T tokens of a sequence, N = B·T, C n_embd, H n_head, D = C / H, V vocab_size.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
    noop_context_fn,
)

from onecard.config.schema import RunConfig
from onecard.train import loss as chunked
from onecard.train.gelu import gelu

Recompute = Literal["none", "selective", "full"]

COMPILED_SIZES = 64  # of batches, each with its own graphs: every out-of-memory halves the batch again

_PRODUCTS = frozenset({torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default})


def _keep_products(_ctx: Any, operation: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operation in _PRODUCTS else CheckpointPolicy.PREFER_RECOMPUTE


_keep_products_contexts = functools.partial(create_selective_checkpoint_contexts, _keep_products)


def _remade(part: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """part(x), with its inner tensors computed again in the backward pass; `part` must end in a matrix product.

    In eager mode this stops at the last tensor that the backward pass asks for, the input of that product, so the
    product itself is never repeated. A compiler does not stop there; it gets a policy that keeps products instead.
    """
    contexts = _keep_products_contexts if torch.compiler.is_compiling() else noop_context_fn
    return checkpoint(part, x, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)  # type: ignore[no-any-return]


class CausalSelfAttention(nn.Module):
    """Causal attention; `forward` takes queries, keys and values, so that a block can recompute the norm before it."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__()
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)
        self.n_head = config.n_head
        self.dropout = config.dropout

    def forward(self, qkv_BTE: Tensor) -> Tensor:  # E = 3C
        B, T, _ = qkv_BTE.shape
        q_BHTD, k_BHTD, v_BHTD = (
            part_BTC.view(B, T, self.n_head, -1).transpose(1, 2) for part_BTC in qkv_BTE.chunk(3, dim=2)
        )
        y_BHTD = functional.scaled_dot_product_attention(
            q_BHTD, k_BHTD, v_BHTD, dropout_p=self.dropout if self.training else 0.0, is_causal=True
        )
        y_BTC = y_BHTD.transpose(1, 2).flatten(2)
        return functional.dropout(self.c_proj(y_BTC), self.dropout, self.training)


class MLP(nn.Module):
    """C -> 4C -> C; a block runs the two halves itself, because the wide tensor between them is its largest."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__()
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)


class Block(nn.Module):
    """One transformer block: x + attention, then x + MLP, each behind a norm.

    The last sum of a block is left to the next block, where x passes through a norm anyway. Compiled, sum and norm are
    then one kernel, and x is read and written one time less.

    Bytes per token kept for the backward pass in half precision, and what each mode costs (in eager mode x is float32):

    - none: 36C + 4H, compiled 32C + 4H. Nothing is computed twice.
    - selective: 24C + 4H, compiled 20C + 4H. Norms and GELU are computed again, but no matrix product. It keeps x,
      queries, keys and values, the attention's output, x after attention and the wide tensor before GELU. To keep less
      would repeat a product: C FLOPs per byte for each linear layer, T for attention. So there is no cheap next step.
    - full: 4C, compiled 2C. The forward pass runs again without its last product: about a quarter more matrix work.
    """

    def __init__(self, config: RunConfig) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.mlp = MLP(config)
        self.dropout = config.dropout
        self.recompute: Recompute = config.grad_checkpoint

    def forward(self, x_BTC: Tensor, added_BTC: Tensor) -> tuple[Tensor, Tensor]:
        """x after attention, and what the MLP adds to it."""
        x_BTC = x_BTC + added_BTC
        if self.recompute == "full" and torch.is_grad_enabled():
            keep_rng = self.dropout > 0 and self.training  # for the same masks; without dropout it only costs time
            return checkpoint(self._layers, x_BTC, use_reentrant=False, preserve_rng_state=keep_rng)  # type: ignore[no-any-return]
        return self._layers(x_BTC)

    def _layers(self, x_BTC: Tensor) -> tuple[Tensor, Tensor]:
        qkv_BTE = self._part(self._into_attention, x_BTC)
        x_BTC = x_BTC + self.attn(qkv_BTE)
        wide_BTF = self._part(self._into_mlp, x_BTC)
        return x_BTC, functional.dropout(self._part(self._out_of_mlp, wide_BTF), self.dropout, self.training)

    def _into_attention(self, x_BTC: Tensor) -> Tensor:
        qkv_BTE: Tensor = self.attn.c_attn(self.ln_1(x_BTC))
        return qkv_BTE

    def _into_mlp(self, x_BTC: Tensor) -> Tensor:
        wide_BTF: Tensor = self.mlp.c_fc(self.ln_2(x_BTC))
        return wide_BTF

    def _out_of_mlp(self, wide_BTF: Tensor) -> Tensor:  # F = 4C
        # Both are the exact GELU, as in nanoGPT. Ours is not used where a whole block is recomputed: the compiler would
        # keep what its value and slope have in common, in float32, in the mode that is meant to save memory.
        activate = functional.gelu if self.recompute == "full" else gelu
        x_BTC: Tensor = self.mlp.c_proj(activate(wide_BTF))
        return x_BTC

    def _part(self, part: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        return _remade(part, x) if self.recompute == "selective" and torch.is_grad_enabled() else part(x)


class _TiedEmbedding(torch.autograd.Function):
    """Rows of the weight that the head shares, and that weight for the head to use.

    So the weight's gradient comes from the head alone, and that of the rows is added to it in place. With two separate
    gradients, autograd would make a second one of V x C, nearly all zeros, and add both.
    """

    @staticmethod
    def forward(ctx: Any, weight_VC: Tensor, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(tokens_BT)
        return functional.embedding(tokens_BT, weight_VC), weight_VC.view_as(weight_VC)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_rows_BTC: Tensor, d_weight_VC: Tensor) -> tuple[Tensor, None]:
        (tokens_BT,) = ctx.saved_tensors
        if torch.are_deterministic_algorithms_enabled():  # index_add_ would wait then, which a graph cannot do
            rows_VC = torch.ops.aten.embedding_dense_backward(d_rows_BTC, tokens_BT, len(d_weight_VC), -1, False)
            return d_weight_VC.add_(rows_VC), None
        return d_weight_VC.index_add_(0, tokens_BT.flatten(), d_rows_BTC.flatten(0, 1)), None


class LastNorm(nn.LayerNorm):
    """The norm after the last block, in the type that the head multiplies in."""

    def forward(self, x_BTC: Tensor, added_BTC: Tensor) -> Tensor:  # type: ignore[override]
        x_BTC = x_BTC + added_BTC
        return super().forward(x_BTC).to(_compute_dtype(x_BTC))


class Transformer(nn.Module):
    """Everything below the head; a class of its own only to give parameters the names they have in nanoGPT."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.drop = nn.Dropout(config.dropout)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = LastNorm(config.n_embd, bias=config.bias)
        self.narrow_stream = False  # compiled: see `GPT.compile_blocks`

    def forward(self, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
        """x_BTC after the last norm, and the weight of the head (see `_TiedEmbedding`)."""
        x_BTC, head_VC = self._embedded(tokens_BT)
        if self.narrow_stream:
            x_BTC = x_BTC.to(_compute_dtype(x_BTC))
        # Zeros for the first block, in the form in which blocks add, so that one compiled graph fits them all.
        added_BTC = torch.zeros_like(x_BTC, dtype=_compute_dtype(x_BTC), requires_grad=x_BTC.requires_grad)
        for block in self.h:
            x_BTC, added_BTC = block(x_BTC, added_BTC)
        return self.ln_f(x_BTC, added_BTC), head_VC

    def _embedded(self, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
        positions_T = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)
        x_BTC, head_VC = _TiedEmbedding.apply(self.wte.weight, tokens_BT)  # type: ignore[no-untyped-call]
        x_BTC = x_BTC + self.wpe(positions_T)
        return self.drop(x_BTC), head_VC


def _compute_dtype(x: Tensor) -> torch.dtype:
    """The type that linear layers return here: autocast's, or else x's own."""
    return torch.get_autocast_dtype(x.device.type) if torch.is_autocast_enabled(x.device.type) else x.dtype


class GPT(nn.Module):
    """The model of a config. It makes logits only for the positions asked for, never for a whole micro-batch."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__()
        self.config = config
        self.transformer = Transformer(config)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight
        self._set_first_weights()

    def _set_first_weights(self) -> None:
        # Weights are drawn in nanoGPT's order, so that the same seed gives the same model in both.
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):  # these add to the residual stream, 2 · n_layer of them
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * self.config.n_layer))

    def hidden(self, tokens_BT: Tensor) -> Tensor:
        """x_BTC after the last norm."""
        return self._hidden_and_head(tokens_BT)[0]

    def _hidden_and_head(self, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
        length, longest = tokens_BT.shape[1], self.config.block_size
        assert length <= longest, f"{length} tokens do not fit block_size={longest}"
        return self.transformer(tokens_BT)  # type: ignore[no-any-return]

    def logits(self, x: Tensor) -> Tensor:
        """The logits (..., V) of hidden states (..., C): pass the positions you need, not a whole batch."""
        return self.lm_head(x)  # type: ignore[no-any-return]

    def loss(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Mean cross-entropy in nats per token (float32) over targets other than -1, in chunks as the config says."""
        x_BTC, head_VC = self._hidden_and_head(tokens_BT)
        return chunked.mean_loss(
            x_BTC.flatten(0, 1),
            head_VC,
            targets_BT.flatten(),
            chunk_tokens=self.chunk_tokens,
        )

    def token_losses(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Cross-entropy losses_BT in nats (float32), 0 where the target is -1; no gradients: for evaluation."""
        with torch.no_grad():
            x_BTC, head_VC = self._hidden_and_head(tokens_BT)
            losses_N = chunked.token_losses(
                x_BTC.flatten(0, 1),
                head_VC,
                targets_BT.flatten(),
                chunk_tokens=self.chunk_tokens,
            )
        return losses_N.view_as(targets_BT)

    @property
    def chunk_tokens(self) -> int:
        """Tokens whose logits exist at a time."""
        return self.config.loss_chunk or chunked.default_chunk_tokens(self.config.vocab_size)

    def compile_blocks(self) -> None:
        """Compile the repeated block, and the last norm, in place.

        All blocks run the same code with different weights, so the compiler works once for all of them. Shapes are
        fixed (`dynamic=False`), because kernels for one known shape are faster and need no more memory than planned.

        In half precision, x then passes between kernels in half precision: a compiled norm reads it like that and
        computes in float32. Each eager norm would keep a float32 copy of x, so in eager mode x stays float32: ADR 0011.
        """
        # Otherwise torch warns about the selective contexts of `_remade`, though their parts change nothing in place.
        logging.getLogger("torch._higher_order_ops.wrap").setLevel(logging.ERROR)
        torch._dynamo.config.recompile_limit = COMPILED_SIZES
        self.transformer.narrow_stream = True
        for part in (*self.transformer.h, self.transformer.ln_f):
            part.compile(dynamic=False)
