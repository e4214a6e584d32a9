"""A model as torch's modules: the parameters of its structure, under their names, and the forward pass of models/."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from onecard.config.schema import RunConfig
from onecard.models.architectures import architecture_of
from onecard.models.structure import Embedding, LayerNorm, Linear, Structure, layers_of
from onecard.models.written_out import Passes
from onecard.train.operations import TORCH
from onecard.train.past import Continuations, Past

COMPILED_SIZES = 64  # of batches, each with its own graphs: every out-of-memory halves the batch again


class Part(nn.Module):
    """Some layers of a model. Calling it runs `run`, a function of the layers and tensors."""

    run: Callable[..., Any]

    def forward(self, *tensors: Tensor) -> Any:
        return self.run(self, *tensors)


class CalledNorm(nn.LayerNorm):
    """A norm that is a part of its own."""

    run: Callable[..., Any]

    def forward(self, *tensors: Tensor) -> Any:
        return self.run(self, *tensors)


def modules_of(layers: Structure) -> Part:
    """The structure as modules, whose first weights torch draws in this order."""
    part = Part()
    for name, layer in layers.items():
        if isinstance(layer, list):
            part.add_module(name, nn.ModuleList(modules_of(each) for each in layer))
        elif isinstance(layer, Linear):
            part.add_module(name, nn.Linear(layer.inputs, layer.outputs, bias=layer.bias))
        elif isinstance(layer, Embedding):
            part.add_module(name, nn.Embedding(layer.rows, layer.channels))
        elif isinstance(layer, LayerNorm):
            part.add_module(name, CalledNorm(layer.channels, bias=layer.bias))
        else:
            part.add_module(name, modules_of(layer))
    return part


class GPT(nn.Module):
    """The model of a config. It makes logits only for the positions asked for, never for a whole micro-batch."""

    def __init__(self, config: RunConfig) -> None:
        super().__init__()
        self.config = config
        architecture = architecture_of(config)
        self.architecture = model = architecture.model(TORCH, config)
        self._passes = architecture.passes
        structure = architecture.structure(config)
        parts: Any = modules_of(structure)
        self.transformer, self.lm_head = parts.transformer, parts.lm_head
        for name, layer in layers_of(structure):
            if isinstance(layer, Linear) and layer.tied_to:
                self.get_submodule(layer.tied_to).weight = self.get_submodule(name).weight
        for part, run in model.called(self):
            part.run = run
        layers = [module for module in self.modules() if isinstance(module, nn.Linear | nn.Embedding)]
        model.set_first_weights(layers, self.named_parameters())

    @property
    def blocks(self) -> list[Part]:
        """The layers that repeat, in order."""
        return list(self.transformer.h)

    def hidden(self, tokens_BT: Tensor) -> Tensor:
        """x_BTC after the last norm."""
        x_BTC: Tensor = self.architecture.hidden(self, tokens_BT)[0]
        return x_BTC

    def hidden_after(self, tokens_BT: Tensor, past: Past | Continuations) -> Tensor:
        """x_BTC of tokens that follow those of `past`: only they are read. A `Past` then holds them, too.

        For evaluation mode, without gradients. Nothing of it is compiled.
        """
        length = past.length + tokens_BT.shape[1]
        assert length <= self.config.block_size, f"{length} tokens do not fit block_size={self.config.block_size}"
        x_BTC: Tensor = self.architecture.hidden_after(self, tokens_BT, past)
        if isinstance(past, Past):
            past.length = length
        return x_BTC

    def logits(self, x: Tensor) -> Tensor:
        """The logits (..., V) of hidden states (..., C): pass the positions you need, not a whole batch."""
        return self.architecture.logits(self, x)  # type: ignore[no-any-return]

    def loss(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Mean cross-entropy in nats per token (float32) over targets other than -1, in chunks as the config says."""
        value: Tensor = self.architecture.loss(self, tokens_BT, targets_BT)
        return value

    def token_losses(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Cross-entropy losses_BT in nats (float32), 0 where the target is -1; no gradients: for evaluation."""
        losses_BT: Tensor = self.architecture.token_losses(self, tokens_BT, targets_BT)
        return losses_BT

    def passes(self, dtype: torch.dtype) -> Passes:
        """Its forward and backward pass, written out, with products in `dtype`."""
        passes: Passes = self._passes(TORCH, self.architecture, self, dtype)
        return passes

    def compile_blocks(self) -> None:
        """Compile the repeated block, and the last norm, in place.

        All blocks run the same code with different weights, so the compiler works once for all of them. Shapes are
        fixed (`dynamic=False`), because kernels for one known shape are faster and need no more memory than planned.

        In half precision, x then passes between kernels in half precision: a compiled norm reads it like that and
        computes in float32. Each eager norm would keep a float32 copy of x, so in eager mode x stays float32: ADR 0011.
        """
        # Otherwise torch warns about selective recomputation, though its parts change nothing in place.
        logging.getLogger("torch._higher_order_ops.wrap").setLevel(logging.ERROR)
        torch._dynamo.config.recompile_limit = COMPILED_SIZES
        self.architecture.narrow_stream = True
        for part, _ in self.architecture.called(self):
            part.compile(dynamic=False)
