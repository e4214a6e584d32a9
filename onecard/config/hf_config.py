"""A Hugging Face config.json, both ways: the shape of a model that onecard has, under nanoGPT's names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onecard.config.schema import RunConfig

# the files of a model's folder; pytorch_model.bin is a pickle, of before safetensors
CONFIG, WEIGHTS, SHARDS, PICKLED = (
    "config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
)
OPENAI = "openai-community"  # where the hub keeps OpenAI's weights
OPENAI_CONTEXT = 1024  # tokens
OPENAI_WEIGHTS = {  # layers, heads and width, smallest first
    "gpt2": (12, 12, 768),
    "gpt2-medium": (24, 16, 1024),
    "gpt2-large": (36, 20, 1280),
    "gpt2-xl": (48, 25, 1600),
}
NO_BIAS = "onecard_bias"  # our mark for a GPT-2 without biases, false; transformers carries it along


@dataclass(frozen=True, kw_only=True)
class _Described:
    """How transformers describes a model."""

    title: str
    architecture: str  # its class
    sizes: Mapping[str, str]  # its names, and ours
    defaults: Mapping[str, int]  # of what a config.json may leave out
    must_be: Mapping[str, tuple[object, ...]]  # settings with which it is our model; the first is transformers' default


_GPT2 = _Described(
    title="GPT-2",
    architecture="GPT2LMHeadModel",
    sizes={
        "n_layer": "n_layer",
        "n_head": "n_head",
        "n_embd": "n_embd",
        "n_positions": "block_size",
        "vocab_size": "vocab_size",
    },
    defaults={"n_layer": 12, "n_head": 12, "n_embd": 768, "n_positions": 1024, "vocab_size": 50257},
    must_be={
        "activation_function": ("gelu_new", "gelu", "gelu_pytorch_tanh", "gelu_fast"),
        "layer_norm_epsilon": (1e-5,),
        "scale_attn_weights": (True,),
        "scale_attn_by_inverse_layer_idx": (False,),
        "add_cross_attention": (False,),
        "tie_word_embeddings": (True,),
    },
)
_NANOCHAT = _Described(
    title="nanochat",
    architecture="NanoChatForCausalLM",
    sizes={
        "num_hidden_layers": "n_layer",
        "num_attention_heads": "n_head",
        "hidden_size": "n_embd",
        "max_position_embeddings": "block_size",
        "vocab_size": "vocab_size",
    },
    defaults={
        "num_hidden_layers": 12,
        "num_attention_heads": 6,
        "hidden_size": 768,
        "max_position_embeddings": 2048,
        "vocab_size": 50304,
        "intermediate_size": 8192,
    },
    must_be={
        "hidden_act": ("relu2",),
        "rms_norm_eps": (1e-6,),
        "final_logit_softcapping": (15.0,),
        "rope_parameters": ({"rope_type": "default", "rope_theta": 10000.0}, None),
        "rope_theta": (10000.0,),  # here and in rope_scaling in files of early versions
        "rope_scaling": (None,),
        "attention_bias": (False,),
        "tie_word_embeddings": (False,),
    },
)
_MODELS = {"gpt2": _GPT2, "nanochat": _NANOCHAT}  # our names are transformers' model types


def openai_weights(name: object) -> str | None:
    """Which of OpenAI's weights a name means, as `gpt2` or `openai-community/gpt2`; None for other names."""
    short = name.removeprefix(f"{OPENAI}/") if isinstance(name, str) else ""
    return short if short in OPENAI_WEIGHTS else None


def shape_of(hf_config: Mapping[str, Any]) -> dict[str, int | bool | str]:
    """The model and its shape (schema.SHAPE_KEYS); ValueError, saying why, if onecard has no such model."""
    if "model_type" not in hf_config:
        raise ValueError("config.json says no model_type")
    model = hf_config["model_type"]
    if not isinstance(model, str) or model not in _MODELS:
        raise ValueError(f"config.json says model_type={model!r:.40}, and onecard has {' and '.join(_MODELS)}")
    described = _MODELS[model]
    said = {**described.defaults, **hf_config}
    sizes = {ours: said[theirs] for theirs, ours in described.sizes.items()}
    for name, size in sizes.items():
        if type(size) is not int or size < 1:
            raise ValueError(f"config.json says {name}={size!r:.40}")
    for name, values in {**described.must_be, **_implied(model, sizes)}.items():
        if (value := said.get(name, values[0])) not in values:
            ours = " or ".join(map(repr, values))
            raise ValueError(f"config.json says {name}={value!r:.40}, and {described.title}'s is {ours}")
    return {"model": model, **sizes, "bias": model == "gpt2" and hf_config.get(NO_BIAS) is not False}


def _implied(model: str, sizes: Mapping[str, int]) -> dict[str, tuple[object, ...]]:
    """The same as must_be for settings that follow from the sizes."""
    if model == "gpt2":
        return {"n_inner": (None, 4 * sizes["n_embd"])}
    heads, width = sizes["n_head"], sizes["n_embd"]
    return {
        "intermediate_size": (4 * width,),
        "num_key_value_heads": (None, heads),
        "head_dim": (None, width // heads),
    }


def hf_config_of(config: RunConfig, *, end_of_text: int | None) -> dict[str, object]:
    """What config.json says of a model in float32, for transformers."""
    described = _MODELS[config.model]
    settings: dict[str, object] = {name: values[0] for name, values in described.must_be.items()}
    if config.model == "gpt2":
        settings["activation_function"] = "gelu"  # the exact one, which the model was trained with
        settings |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), config.dropout)
        settings |= {} if config.bias else {NO_BIAS: False}
    else:
        settings |= {"intermediate_size": 4 * config.n_embd, "num_key_value_heads": config.n_head}
        settings["pad_token_id"] = end_of_text  # otherwise transformers takes 1
        del settings["rope_theta"], settings["rope_scaling"]
    return {
        "architectures": [described.architecture],
        "model_type": config.model,
        **{theirs: getattr(config, ours) for theirs, ours in described.sizes.items()},
        **settings,
        "bos_token_id": end_of_text,
        "eos_token_id": end_of_text,
        "torch_dtype": "float32",
    }
