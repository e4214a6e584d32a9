"""transformers' names and layouts of each model's weights, both ways.

GPT-2: transformers keeps its linear layers as OpenAI did (Conv1D: inputs first), so four matrices a block are
transposed. It always has biases, so a model without any is written with zeros, and marked in config.json: reading it
back drops them again.

nanochat: other names, and queries, keys and values each have a matrix of their own.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from onecard.config.schema import RunConfig
from onecard.models.architectures import structure_of
from onecard.models.structure import parameters_of

Weights = Mapping[str, Tensor]

_TRANSPOSED = ("attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight")
BUFFERS = (".attn.bias", ".attn.masked_bias")  # the causal mask in old files of GPT-2
_NANOCHAT_NAMES = (  # parts of ours and of transformers'
    ("transformer.wte.", "model.embed_tokens."),
    ("transformer.h.", "model.layers."),
    (".attn.c_proj.", ".self_attn.o_proj."),
    (".mlp.c_fc.", ".mlp.fc1."),
    (".mlp.c_proj.", ".mlp.fc2."),
)
_JOINED = ".attn.c_attn.weight"
_SEPARATE = tuple(f".self_attn.{part}_proj.weight" for part in "qkv")


def to_hf(config: RunConfig, weights: Weights) -> dict[str, Tensor]:
    """A model's weights as transformers has them."""
    return _nanochat_to_hf(weights) if config.model == "nanochat" else _gpt2_to_hf(config, weights)


def from_hf(model: str, tensors: Weights) -> dict[str, Tensor]:
    """Tensors of transformers' as ours; what does not belong to the model keeps its name. They must be plain."""
    return _nanochat_from_hf(tensors) if model == "nanochat" else _gpt2_from_hf(tensors)


def _gpt2_to_hf(config: RunConfig, weights: Weights) -> dict[str, Tensor]:
    found = {name: _turned(name, tensor).contiguous() for name, tensor in weights.items()}
    with_biases = parameters_of(structure_of(config.replace({"bias": True})))
    return found | {name: torch.zeros(shape) for name, shape in with_biases.items() if name not in found}


def _gpt2_from_hf(tensors: Weights) -> dict[str, Tensor]:
    named = {
        name if name.startswith(("transformer.", "lm_head.")) else f"transformer.{name}": tensor
        for name, tensor in tensors.items()
    }
    return {name: _turned(name, tensor).contiguous() for name, tensor in named.items()}


def _turned(name: str, tensor: Tensor) -> Tensor:
    return tensor.t() if name.endswith(_TRANSPOSED) and tensor.dim() == 2 else tensor


def _nanochat_to_hf(weights: Weights) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        named = {name: tensor}
        if name.endswith(_JOINED):
            thirds = zip(_SEPARATE, tensor.chunk(3), strict=True)
            named = {name.removesuffix(_JOINED) + separate: third for separate, third in thirds}
        found |= {_renamed(each, _NANOCHAT_NAMES): part.contiguous() for each, part in named.items()}
    return found


def _nanochat_from_hf(tensors: Weights) -> dict[str, Tensor]:
    back = tuple((theirs, ours) for ours, theirs in _NANOCHAT_NAMES)
    found = {_renamed(name, back): tensor for name, tensor in tensors.items()}
    for block in [name.removesuffix(_SEPARATE[0]) for name in found if name.endswith(_SEPARATE[0])]:
        names = [block + separate for separate in _SEPARATE]
        parts = [found[name] for name in names if name in found]
        if len(parts) == len(names) and parts[0].dim() and len({part.shape for part in parts}) == 1:
            found = {name: tensor for name, tensor in found.items() if name not in names}
            found[block + _JOINED] = torch.cat(parts)
    return found


def _renamed(name: str, pairs: tuple[tuple[str, str], ...]) -> str:
    for old, new in pairs:
        name = name.replace(old, new)
    return name
