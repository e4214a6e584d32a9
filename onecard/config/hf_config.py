"""A Hugging Face config.json of a GPT-2: its shape under nanoGPT's names, and whether it is GPT-2 at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Settings of transformers' GPT2Config that would make another model: the values that are GPT-2's, the default first.
_MUST_BE: dict[str, tuple[object, ...]] = {
    "model_type": ("gpt2",),
    "activation_function": ("gelu_new", "gelu", "gelu_pytorch_tanh", "gelu_fast"),
    "layer_norm_epsilon": (1e-5,),
    "scale_attn_weights": (True,),
    "scale_attn_by_inverse_layer_idx": (False,),
    "add_cross_attention": (False,),
    "tie_word_embeddings": (True,),
}
_SIZES = {
    "n_layer": "n_layer",
    "n_head": "n_head",
    "n_embd": "n_embd",
    "n_positions": "block_size",
    "vocab_size": "vocab_size",
}
_GPT2 = {"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024, "vocab_size": 50257}  # transformers' defaults
NO_BIAS = "onecard_bias"  # our mark for a model without biases, false; transformers carries it along


def gpt2_shape(config: Mapping[str, Any]) -> dict[str, int | bool]:
    """n_layer, n_head, n_embd, block_size, vocab_size and bias; ValueError, saying why, if it is not a GPT-2."""
    if "model_type" not in config:
        raise ValueError("config.json says no model_type")
    for name, values in _MUST_BE.items():
        if (value := config.get(name, values[0])) not in values:
            raise ValueError(f"config.json says {name}={value!r:.40}, and GPT-2's is {values[0]!r}")
    sizes = {ours: config.get(theirs, _GPT2[theirs]) for theirs, ours in _SIZES.items()}
    for name, size in sizes.items():
        if type(size) is not int or size < 1:
            raise ValueError(f"config.json says {name}={size!r:.40}")
    if config.get("n_inner") not in (None, 4 * sizes["n_embd"]):
        raise ValueError(f"config.json says n_inner={config['n_inner']!r:.40}, and GPT-2's MLP is four times as wide")
    return {**sizes, "bias": config.get(NO_BIAS) is not False}
