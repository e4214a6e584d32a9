"""A Hugging Face config.json: the model and its shape under our names, and what makes it another model."""

from typing import Any

import pytest

from onecard.config.hf_config import hf_config_of, shape_of
from onecard.config.resolve import resolve, with_shape
from onecard.config.schema import SHAPE_KEYS, RunConfig

GPT2 = {"model_type": "gpt2", "n_layer": 24, "n_head": 16, "n_embd": 1024, "n_positions": 512, "vocab_size": 50257}
SIZES = {"n_layer": 24, "n_head": 16, "n_embd": 1024, "block_size": 512, "vocab_size": 50257}
SHAPE = {"model": "gpt2", **SIZES, "bias": True}
NANOCHAT = {
    "model_type": "nanochat",
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "hidden_size": 64,
    "max_position_embeddings": 32,
    "vocab_size": 65,
    "intermediate_size": 256,
}


def test_the_shape_is_read_and_what_is_missing_is_transformers_default() -> None:
    assert shape_of(GPT2) == SHAPE
    assert shape_of({"model_type": "gpt2"})["n_layer"] == 12
    assert shape_of(GPT2 | {"n_inner": 4096, "onecard_bias": False})["bias"] is False


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": "llama"},
        {"activation_function": "silu"},
        {"n_inner": 1},
        {"n_layer": 0},
        {"n_embd": "wide"},
        {"scale_attn_weights": False},
    ],
)
def test_another_model_is_refused_with_the_setting(change: dict[str, Any]) -> None:
    (name,) = change
    with pytest.raises(ValueError, match=name):
        shape_of(GPT2 | change)
    with pytest.raises(ValueError, match="no model_type"):
        shape_of({})


def test_a_nanochat_is_read_and_what_is_missing_is_transformers_default() -> None:
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 64, "block_size": 32, "vocab_size": 65}
    assert shape_of(NANOCHAT) == {"model": "nanochat", **sizes, "bias": False}
    early = {"rope_theta": 10000.0, "rope_scaling": None, "num_key_value_heads": 2}
    assert shape_of(NANOCHAT | early) == shape_of(NANOCHAT)


@pytest.mark.parametrize(
    "change",
    [
        {"model_type": ["nanochat"]},
        {"hidden_act": "gelu"},
        {"intermediate_size": 8192},
        {"num_key_value_heads": 1},
        {"head_dim": 64},
        {"rms_norm_eps": 1e-5},
        {"final_logit_softcapping": 30.0},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0}},
        {"rope_theta": 5000.0},
        {"attention_bias": True},
        {"tie_word_embeddings": True},
        {"max_position_embeddings": None},
    ],
)
def test_another_nanochat_is_refused_with_the_setting(change: dict[str, Any]) -> None:
    (name,) = change
    said = "block_size" if name == "max_position_embeddings" else name
    with pytest.raises(ValueError, match=said):
        shape_of(NANOCHAT | change)


def test_a_config_that_is_written_is_read_as_the_same_shape() -> None:
    for model in ("gpt2", "nanochat"):
        config = RunConfig(model=model, n_layer=2, n_head=2, n_embd=64, block_size=32, vocab_size=65)
        shape = shape_of(hf_config_of(config, end_of_text=3))
        assert shape == {key: getattr(config, key) for key in SHAPE_KEYS}


def test_a_run_takes_the_shape_of_the_weights_it_starts_from() -> None:
    found = with_shape(resolve("batch_size = 4\n", filename="c.py"), SHAPE, origin="init_from=x")
    assert {key: getattr(found.config, key) for key in SHAPE} == SHAPE
    assert found.origins["n_layer"] == "init_from=x"
    assert found.warnings == ()


def test_a_shorter_context_stays_and_what_was_set_in_vain_is_said() -> None:
    found = with_shape(resolve("block_size = 256\nn_layer = 3\n", filename="c.py"), SHAPE, origin="init_from=x")
    assert found.config.block_size == 256
    assert found.config.n_layer == 24
    assert found.warnings == ("init_from=x fixes the shape: n_layer has no effect",)
    again = with_shape(found, SHAPE, origin="init_from=x")
    assert again.warnings == found.warnings, "said once"


def test_weights_of_another_model_change_the_model() -> None:
    found = with_shape(resolve("model = 'gpt2'\n", filename="c.py"), shape_of(NANOCHAT), origin="init_from=x")
    assert found.config.model == "nanochat"
    assert found.warnings[-1] == "init_from=x fixes the shape: model has no effect"
    openais = resolve("init_from = 'gpt2'\nmodel = 'nanochat'\n", filename="c.py")
    assert openais.config.model == "gpt2"
    assert "init_from=gpt2 fixes the shape: model has no effect" in openais.warnings
