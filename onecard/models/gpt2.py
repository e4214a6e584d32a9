"""GPT-2 as nanoGPT writes it, in less memory: written once, for torch and for paper.

`ops` are the operations of either; `p` are the layers by their names in nanoGPT, `p.attn.c_attn`. Letters of tensor
names: B sequences, T tokens of a sequence, N = B·T, C n_embd, E = 3C, F = 4C, H n_head, D = C / H, V vocab_size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from onecard.config.schema import RunConfig
from onecard.models.chunked_loss import mean_loss, token_losses
from onecard.models.chunks import default_chunk_tokens
from onecard.models.structure import Embedding, LayerNorm, Linear, Structure, head
from onecard.paper.tags import ATTENTION, BLOCKS, EMBEDDINGS, LAST_NORM, LOSS

Tensor = Any  # of torch, or on paper
Layers = Any  # a module of torch, or weights on paper
Past = Any  # keys and values of earlier tokens (train/past.py), of one layer in a block; paper has none


def structure(config: RunConfig) -> Structure:
    """The layers, with nanoGPT's names, in its order."""
    C, bias = config.n_embd, config.bias
    block: Structure = {
        "ln_1": LayerNorm(C, bias),
        "attn": {"c_attn": Linear(C, 3 * C, bias, part=ATTENTION, parts=3), "c_proj": Linear(C, C, bias)},
        "ln_2": LayerNorm(C, bias),
        "mlp": {"c_fc": Linear(C, 4 * C, bias), "c_proj": Linear(4 * C, C, bias)},
    }
    return {
        "transformer": {
            "wte": Embedding(config.vocab_size, C),
            "wpe": Embedding(config.block_size, C),
            "h": [block] * config.n_layer,
            "ln_f": LayerNorm(C, bias),
        },
        "lm_head": head(C, config.vocab_size, tied_to="transformer.wte"),
    }


class GPT2:
    """The forward pass. Its backward pass is autograd's.

    A block is x + attention, then x + MLP, each behind a norm. The last sum of a block is left to the next block, where
    x passes through a norm anyway. Compiled, sum and norm are then one kernel, and x is read and written one time less.

    Bytes per token kept for the backward pass in half precision, and what each mode costs (in eager mode x is float32):

    - none: 36C + 4H, compiled 32C + 4H. Nothing is computed twice.
    - selective: 24C + 4H, compiled 20C + 4H. Norms and GELU are computed again, but no matrix product. It keeps x,
      queries, keys and values, the attention's output, x after attention and the wide tensor before GELU. To keep less
      would repeat a product: C FLOPs per byte for each linear layer, T for attention. So there is no cheap next step.
    - full: 4C, compiled 2C. The forward pass runs again without its last product: about a quarter more matrix work.
    """

    def __init__(self, ops: Any, config: RunConfig) -> None:
        self.ops = ops
        self.n_layer, self.heads = config.n_layer, config.n_head
        self.block_size, self.dropout = config.block_size, config.dropout
        self.recompute = config.grad_checkpoint
        self.chunk_tokens = config.loss_chunk or default_chunk_tokens(config.vocab_size)  # whose logits exist at a time
        self.narrow_stream = False  # whether x passes between blocks in the type of products

    def called(self, p: Layers) -> Iterable[tuple[Layers, Callable[..., Any]]]:
        """The parts that are called, and what calling them runs."""
        return [*((block, self.block) for block in p.transformer.h), (p.transformer.ln_f, self.last_norm)]

    def set_first_weights(self, layers: Iterable[Layers], parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Draw the weights in nanoGPT's order, so that the same seed gives the same model in both.

        `layers` are the linear layers and embeddings, in order; `parameters` all parameters by name.
        """
        for layer in layers:
            self.ops.draw_normal(layer.weight, std=0.02)
            if getattr(layer, "bias", None) is not None:
                self.ops.set_to_zero(layer.bias)
        for name, parameter in parameters:
            if name.endswith("c_proj.weight"):  # these add to the residual stream, 2 · n_layer of them
                self.ops.draw_normal(parameter, std=0.02 / math.sqrt(2 * self.n_layer))

    # a block

    def block(self, p: Layers, x_BTC: Tensor, added_BTC: Tensor) -> tuple[Tensor, Tensor]:
        """x after attention, and what the MLP adds to it."""
        x_BTC = x_BTC + added_BTC
        if self.recompute == "full":
            random = self.dropout > 0 and p.training  # for the same masks; without dropout it only costs time
            return self.ops.recomputed(lambda x: self.layers(p, x), x_BTC, random=random)  # type: ignore[no-any-return]
        return self.layers(p, x_BTC)

    def layers(self, p: Layers, x_BTC: Tensor, past: Past = None) -> tuple[Tensor, Tensor]:
        qkv_BTE = self.part(self.into_attention, p, x_BTC)
        x_BTC = x_BTC + self.attention(p.attn, qkv_BTE, past)
        wide_BTF = self.part(self.into_mlp, p, x_BTC)
        return x_BTC, self.ops.dropout(self.part(self.out_of_mlp, p, wide_BTF), self.dropout, p.training)

    def part(self, part: Callable[[Layers, Tensor], Tensor], p: Layers, x: Tensor) -> Tensor:
        """A part that ends in a matrix product; with selective recomputation, all but that product runs again."""
        if self.recompute == "selective":
            return self.ops.recomputed(lambda x: part(p, x), x, keep_products=True)
        return part(p, x)

    def into_attention(self, p: Layers, x_BTC: Tensor) -> Tensor:
        return self.ops.linear(self.ops.layer_norm(x_BTC, p.ln_1), p.attn.c_attn)

    def into_mlp(self, p: Layers, x_BTC: Tensor) -> Tensor:
        return self.ops.linear(self.ops.layer_norm(x_BTC, p.ln_2), p.mlp.c_fc)

    def out_of_mlp(self, p: Layers, wide_BTF: Tensor) -> Tensor:
        # Both are the exact GELU, as in nanoGPT. Ours is not used where a whole block is recomputed: the compiler would
        # keep what its value and slope have in common, in float32, in the mode that is meant to save memory.
        gelu = self.ops.torch_gelu if self.recompute == "full" else self.ops.gelu
        return self.ops.linear(gelu(wide_BTF), p.mlp.c_proj)

    def attention(self, p: Layers, qkv_BTE: Tensor, past: Past = None) -> Tensor:
        ops = self.ops
        q, k, v = (ops.heads(part_BTC, self.heads) for part_BTC in ops.thirds(qkv_BTE))
        y = past.attention(q, k, v) if past else ops.attention(q, k, v, self.dropout if p.training else 0.0)
        y = ops.joined(y)
        return ops.dropout(ops.linear(y, p.c_proj), self.dropout, p.training)

    # around the blocks

    def hidden(self, p: Layers, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
        """x_BTC after the last norm, and the weight of the head (see `ops.tied_embedding`)."""
        ops, length = self.ops, tokens_BT.shape[1]
        assert length <= self.block_size, f"{length} tokens do not fit block_size={self.block_size}"
        ops.section(EMBEDDINGS)
        x_BTC, head_VC = self.embedded(p.transformer, tokens_BT)
        ops.section(BLOCKS)
        if self.narrow_stream:
            x_BTC = ops.in_compute_type(x_BTC)
        # Zeros for the first block, in the form in which blocks add, so that one compiled graph fits them all.
        added_BTC = ops.zeros_to_add(x_BTC)
        for block in p.transformer.h:
            x_BTC, added_BTC = block(x_BTC, added_BTC)
        ops.section(LAST_NORM)
        return p.transformer.ln_f(x_BTC, added_BTC), head_VC

    def hidden_after(self, p: Layers, tokens_BT: Tensor, past: Past) -> Tensor:
        """x_BTC of tokens that follow those of `past`; their keys and values are added to it. For evaluation mode."""
        ops = self.ops
        x_BTC = ops.embedding(tokens_BT, p.transformer.wte)
        x_BTC = x_BTC + ops.embedding(ops.positions(tokens_BT) + past.length, p.transformer.wpe)
        added_BTC = ops.zeros_to_add(x_BTC)
        for block, of_layer in zip(p.transformer.h, past.layers, strict=True):
            x_BTC, added_BTC = self.layers(block, x_BTC + added_BTC, of_layer)
        return self.last_norm(p.transformer.ln_f, x_BTC, added_BTC)

    def embedded(self, p: Layers, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
        ops = self.ops
        positions_T = ops.positions(tokens_BT)
        x_BTC, head_VC = ops.tied_embedding(p.wte.weight, tokens_BT)
        x_BTC = x_BTC + ops.embedding(positions_T, p.wpe)
        return ops.dropout(x_BTC, self.dropout, p.training), head_VC

    def last_norm(self, p: Layers, x_BTC: Tensor, added_BTC: Tensor) -> Tensor:
        """The norm after the last block, in the type that the head multiplies in."""
        x_BTC = x_BTC + added_BTC
        return self.ops.in_compute_type(self.ops.layer_norm(x_BTC, p))

    def logits(self, p: Layers, x: Tensor) -> Tensor:
        """The logits (..., V) of hidden states (..., C)."""
        return self.ops.linear(x, p.lm_head)

    def loss(self, p: Layers, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Mean cross-entropy in nats per token (float32) over targets other than -1, in chunks as the config says."""
        x_BTC, head_VC = self.hidden(p, tokens_BT)
        self.ops.section(LOSS)
        return mean_loss(self.ops, x_BTC.flatten(0, 1), head_VC, targets_BT.flatten(), self.chunk_tokens)

    def token_losses(self, p: Layers, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Cross-entropy losses_BT in nats (float32), 0 where the target is -1; no gradients: for evaluation."""
        with self.ops.no_grad():
            x_BTC, head_VC = self.hidden(p, tokens_BT)
            self.ops.section(LOSS)
            losses_N = token_losses(self.ops, x_BTC.flatten(0, 1), head_VC, targets_BT.flatten(), self.chunk_tokens)
        return losses_N.view_as(targets_BT)
