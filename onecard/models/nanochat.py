"""A modern GPT, as transformers' `nanochat` has it: written once, for torch and for paper.

What differs from GPT-2: positions are rotations of queries and keys; norms divide by the root mean square and have no
weights, also after the embedding; queries and keys are normed, so that scores stay small; ReLU² instead of GELU; layers
that add to the residual stream start at zero; the head has its own weight, and its logits are soft-capped. What each is
worth: docs/explain/recipe.md.

`ops` are the operations of torch or of paper; `p` are the layers by name. Letters of tensor names: B sequences,
T tokens of a sequence, N = B·T, C n_embd, E = 3C, F = 4C, H n_head, D = C / H, V vocab_size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from onecard.config.schema import RunConfig
from onecard.models.chunked_loss import mean_loss, token_losses
from onecard.models.chunks import default_chunk_tokens
from onecard.models.structure import Embedding, Linear, Structure, head
from onecard.paper.tags import ATTENTION, BLOCKS, EMBEDDINGS, LAST_NORM, LOSS

Tensor = Any  # of torch, or on paper
Layers = Any  # a module of torch, or weights on paper
Past = Any  # keys and values of earlier tokens (train/past.py), of one layer in a block; paper has none

SOFT_CAP = 15.0  # logits are 15 · tanh(x / 15): none can run away
HEAD_STD = 0.001  # of the head's first weights: the first loss is ln V
MATRIX_STD = 0.02  # of the blocks' matrices: smaller than usual, so that Muon's first updates count


def structure(config: RunConfig) -> Structure:
    """The layers, with nanoGPT's names."""
    C = config.n_embd
    block: Structure = {
        "attn": {"c_attn": Linear(C, 3 * C, part=ATTENTION, parts=3), "c_proj": Linear(C, C)},
        "mlp": {"c_fc": Linear(C, 4 * C), "c_proj": Linear(4 * C, C)},
    }
    return {
        "transformer": {"wte": Embedding(config.vocab_size, C), "h": [block] * config.n_layer},
        "lm_head": head(C, config.vocab_size),
    }


class Nanochat:
    """The forward pass. Its backward pass is autograd's.

    Bytes per token and block kept for the backward pass, in half precision:

    - none: 20C + 12H + 8. A norm's gradient needs its result, which a product keeps anyway, and one number per row;
      ReLU²'s needs its result alone. So x itself is not kept, nor the wide tensor before ReLU².
    - selective: the same. What a norm or ReLU² makes is kept instead of what it reads, so there is nothing to save.
    - full: 2C. The forward pass runs again without its last product.
    """

    def __init__(self, ops: Any, config: RunConfig) -> None:
        self.ops = ops
        self.n_layer, self.heads = config.n_layer, config.n_head
        self.block_size, self.recompute = config.block_size, config.grad_checkpoint
        self.soft_cap = SOFT_CAP
        self.chunk_tokens = config.loss_chunk or default_chunk_tokens(config.vocab_size)  # whose logits exist at a time

    def called(self, p: Layers) -> Iterable[tuple[Layers, Callable[..., Any]]]:
        """The parts that are called, and what calling them runs."""
        return [(block, self.block) for block in p.transformer.h]

    def set_first_weights(self, layers: Iterable[Layers], parameters: Iterable[tuple[str, Tensor]]) -> None:
        """Draw the weights. What adds to the residual stream starts at zero, so that blocks first change nothing."""
        for name, parameter in parameters:
            if name.endswith("c_proj.weight"):
                self.ops.set_to_zero(parameter)
            elif name.endswith("wte.weight"):
                self.ops.draw_normal(parameter, std=1.0)
            elif name.startswith("lm_head"):
                self.ops.draw_normal(parameter, std=HEAD_STD)
            else:
                self.ops.draw_normal(parameter, std=MATRIX_STD)

    # a block

    def block(self, p: Layers, x_BTC: Tensor) -> Tensor:
        if self.recompute == "full":
            return self.ops.recomputed(lambda x: self.layers(p, x), x_BTC)
        return self.layers(p, x_BTC)

    def layers(self, p: Layers, x_BTC: Tensor, past: Past = None) -> Tensor:
        x_BTC = x_BTC + self.attention(p.attn, self.ops.rms_norm(x_BTC), past)
        return x_BTC + self.mlp(p.mlp, self.ops.rms_norm(x_BTC))

    def attention(self, p: Layers, x_BTC: Tensor, past: Past = None) -> Tensor:
        ops = self.ops
        qkv_BTE = ops.rotated(ops.linear(x_BTC, p.c_attn), self.heads, past.length if past else 0)
        q, k, v = (ops.heads(part_BTC, self.heads) for part_BTC in ops.thirds(qkv_BTE))
        y = past.attention(q, k, v) if past else ops.attention(q, k, v, 0.0)
        return ops.linear(ops.joined(y), p.c_proj)

    def mlp(self, p: Layers, x_BTC: Tensor) -> Tensor:
        return self.ops.linear(self.ops.relu_squared(self.ops.linear(x_BTC, p.c_fc)), p.c_proj)

    # around the blocks

    def hidden(self, p: Layers, tokens_BT: Tensor) -> tuple[Tensor, Tensor]:
        """x_BTC after the last norm, and the weight of the head."""
        ops, length = self.ops, tokens_BT.shape[1]
        assert length <= self.block_size, f"{length} tokens do not fit block_size={self.block_size}"
        ops.section(EMBEDDINGS)
        x_BTC = ops.normed_embedding(tokens_BT, p.transformer.wte)
        ops.section(BLOCKS)
        for block in p.transformer.h:
            x_BTC = block(x_BTC)
        ops.section(LAST_NORM)
        return ops.rms_norm(x_BTC), p.lm_head.weight

    def hidden_after(self, p: Layers, tokens_BT: Tensor, past: Past) -> Tensor:
        """x_BTC of tokens that follow those of `past`; their keys and values are added to it. For evaluation mode."""
        x_BTC = self.ops.normed_embedding(tokens_BT, p.transformer.wte)
        for block, of_layer in zip(p.transformer.h, past.layers, strict=True):
            x_BTC = self.layers(block, x_BTC, of_layer)
        return self.ops.rms_norm(x_BTC)

    def logits(self, p: Layers, x: Tensor) -> Tensor:
        """The logits (..., V) of hidden states (..., C)."""
        return self.ops.soft_capped(self.ops.linear(x, p.lm_head), SOFT_CAP)

    def loss(self, p: Layers, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Mean cross-entropy in nats per token (float32) over targets other than -1, in chunks as the config says."""
        x_BTC, head_VC = self.hidden(p, tokens_BT)
        self.ops.section(LOSS)
        return mean_loss(
            self.ops, x_BTC.flatten(0, 1), head_VC, targets_BT.flatten(), self.chunk_tokens, soft_cap=SOFT_CAP
        )

    def token_losses(self, p: Layers, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Cross-entropy losses_BT in nats (float32), 0 where the target is -1; no gradients: for evaluation."""
        with self.ops.no_grad():
            x_BTC, head_VC = self.hidden(p, tokens_BT)
            self.ops.section(LOSS)
            losses_N = token_losses(
                self.ops, x_BTC.flatten(0, 1), head_VC, targets_BT.flatten(), self.chunk_tokens, soft_cap=SOFT_CAP
            )
        return losses_N.view_as(targets_BT)
