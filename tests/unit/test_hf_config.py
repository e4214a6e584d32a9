"""config.json of a Hugging Face GPT-2: its shape under our names, and what makes it another model."""

from typing import Any

import pytest

from onecard.config.hf_config import gpt2_shape
from onecard.config.resolve import resolve, with_shape

GPT2 = {"model_type": "gpt2", "n_layer": 24, "n_head": 16, "n_embd": 1024, "n_positions": 512, "vocab_size": 50257}
SHAPE = {"n_layer": 24, "n_head": 16, "n_embd": 1024, "block_size": 512, "vocab_size": 50257, "bias": True}


def test_the_shape_is_read_and_what_is_missing_is_transformers_default() -> None:
    assert gpt2_shape(GPT2) == SHAPE
    assert gpt2_shape({"model_type": "gpt2"})["n_layer"] == 12
    assert gpt2_shape(GPT2 | {"n_inner": 4096, "onecard_bias": False})["bias"] is False


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
        gpt2_shape(GPT2 | change)
    with pytest.raises(ValueError, match="no model_type"):
        gpt2_shape({})


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
