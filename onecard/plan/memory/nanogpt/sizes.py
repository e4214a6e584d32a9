"""Sizes of a compiled GPT-2, by letters.

Letters, here and wherever the model is described: B sequences of T tokens, N = B * T, C = n_embd, H heads of D values,
V = vocab_size. FLOAT is 4 bytes; `item` is an element in the compute type: 2 bytes under autocast, 4 in float32.
"""

from __future__ import annotations

from functools import cached_property

from onecard.config.schema import RunConfig
from onecard.paper.device import Device
from onecard.paper.kernels import FLOAT


class Sizes:
    """A config on a device, by letters. `returns_logits`: also in training, as nanoGPT's forward does."""

    def __init__(self, config: RunConfig, device: Device, *, returns_logits: bool = True) -> None:
        self.config = config
        self.device = device
        self.returns_logits = returns_logits
        self.B, self.T, self.C = config.batch_size, config.block_size, config.n_embd
        self.H, self.D, self.V = config.n_head, config.head_size, config.vocab_size
        self.N = self.B * self.T
        self.layers, self.bias, self.drops = config.n_layer, config.bias, config.dropout > 0
        self.is_half = config.dtype != "float32"  # autocast is on
        self.item = 2 if self.is_half else FLOAT
        self.kernel = device.attention_kernel(config.dtype, self.D, self.T)

    @cached_property
    def linears(self) -> dict[str, tuple[int, int]]:
        """(inputs, outputs) of the linear layers of a block, by their names in model.py."""
        C = self.C
        return {"c_attn": (C, 3 * C), "attn.c_proj": (C, C), "c_fc": (C, 4 * C), "mlp.c_proj": (4 * C, C)}
