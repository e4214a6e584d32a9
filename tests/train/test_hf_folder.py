"""Hugging Face folders: transformers computes the same logits from what we write, and we from what it writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")
transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'onecard[dev]'")

from safetensors.torch import load_file, save_file  # noqa: E402

from onecard.config.schema import SHAPE_KEYS, RunConfig  # noqa: E402
from onecard.errors import ConfigError  # noqa: E402
from onecard.train import hf_folder  # noqa: E402
from onecard.train.model import GPT  # noqa: E402
from onecard.train.snapshot import Snapshot, cropped  # noqa: E402

TINY = RunConfig(n_layer=2, n_head=2, n_embd=32, block_size=16, vocab_size=65, dropout=0.1)
NANOCHAT = TINY.replace({"model": "nanochat", "dropout": 0.0})
MODELS = [TINY, TINY.replace({"bias": True}), NANOCHAT]
TOKENS_BT = torch.randint(65, (3, 16), generator=torch.Generator().manual_seed(2))


def shaken(config: RunConfig) -> GPT:
    """A model with every weight random: norms of one and biases of zero would hide a mistake."""
    torch.manual_seed(1)
    model = GPT(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def snapshot(model: GPT) -> Snapshot:
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    return Snapshot(shape={key: getattr(model.config, key) for key in SHAPE_KEYS}, weights=weights)


def our_logits(found: Snapshot) -> Any:
    model = GPT(RunConfig.model_validate(found.shape)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(found.weights[name])
        return model.logits(model.hidden(TOKENS_BT))


def their_logits(folder: Path) -> Any:
    model, report = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    with torch.no_grad():
        return model.eval()(TOKENS_BT).logits


def theirs(**changes: Any) -> Any:
    """A GPT-2 made by transformers, every weight random."""
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 16, "vocab_size": 65}
    torch.manual_seed(4)
    config = transformers.GPT2Config(**sizes, bos_token_id=None, eos_token_id=None, **changes)
    model = transformers.GPT2LMHeadModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def a_nanochat_of_theirs() -> Any:
    """A nanochat made by transformers, every weight random."""
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 32, "vocab_size": 65}
    torch.manual_seed(4)
    config = transformers.NanoChatConfig(**sizes, intermediate_size=128, max_position_embeddings=16)
    return transformers.NanoChatForCausalLM(config).eval()


@pytest.mark.parametrize("config", MODELS)
def test_transformers_loads_an_export_and_gives_the_same_logits(tmp_path: Path, config: RunConfig) -> None:
    model = shaken(config)
    hf_folder.write(tmp_path, snapshot(model), config, end_of_text=None)
    with torch.no_grad():
        ours = model.logits(model.hidden(TOKENS_BT))
    torch.testing.assert_close(their_logits(tmp_path), ours, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(ours, ours.flip(0)), "logits that are all alike would prove nothing"


def test_an_export_says_how_long_a_text_may_be(tmp_path: Path) -> None:
    hf_folder.write(tmp_path, snapshot(shaken(TINY)), TINY, end_of_text=3)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert (model.generation_config.max_length, model.generation_config.eos_token_id) == (16, 3)
    assert model.generate(TOKENS_BT[:1, :2], do_sample=False, eos_token_id=None, pad_token_id=0).shape == (1, 16)


@pytest.mark.parametrize("config", MODELS)
def test_an_export_comes_back_bit_for_bit(tmp_path: Path, config: RunConfig) -> None:
    before = snapshot(shaken(config))
    hf_folder.write(tmp_path, before, config, end_of_text=None)
    after = hf_folder.read(tmp_path)
    assert after.shape == before.shape
    assert list(after.weights) == list(before.weights)
    assert all(torch.equal(after.weights[name], before.weights[name]) for name in before.weights)
    assert after.notes == ()


def test_a_gpt2_of_transformers_is_read_with_its_logits(tmp_path: Path) -> None:
    model = theirs(activation_function="gelu")
    model.save_pretrained(tmp_path)
    with torch.no_grad():
        torch.testing.assert_close(our_logits(hf_folder.read(tmp_path)), model(TOKENS_BT).logits, rtol=1e-4, atol=1e-5)


def test_a_nanochat_of_transformers_is_read_with_its_logits(tmp_path: Path) -> None:
    model = a_nanochat_of_theirs()
    model.save_pretrained(tmp_path)
    found = hf_folder.read(tmp_path)
    assert (found.shape["model"], found.notes) == ("nanochat", ())
    with torch.no_grad():
        torch.testing.assert_close(our_logits(found), model(TOKENS_BT).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "size", "why"),
    [
        ("model.layers.1.self_attn.k_proj.weight", None, "attn.c_attn.weight is absent"),
        ("model.layers.1.self_attn.k_proj.weight", (16, 32), "attn.c_attn.weight is absent"),
        ("model.layers.0.mlp.fc1.weight", (64, 32), "mlp.c_fc.weight is (64, 32) and should be (128, 32)"),
        ("model.embed_tokens.weight", None, "it has no transformer.wte.weight"),
        ("model.norm.weight", (32,), "model.norm.weight is (32,) and should be absent"),
    ],
)
def test_a_nanochat_with_other_tensors_is_refused(
    tmp_path: Path, name: str, size: tuple[int, ...] | None, why: str
) -> None:
    a_nanochat_of_theirs().save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors.pop(name, None)
    save_file(tensors | ({} if size is None else {name: torch.ones(size)}), tmp_path / "model.safetensors")
    with pytest.raises(ConfigError) as refused:
        hf_folder.read(tmp_path)
    assert refused.value.name == "not-a-model"
    assert why in refused.value.why


def test_a_shorter_context_of_rotary_positions_keeps_every_weight(tmp_path: Path) -> None:
    found = snapshot(shaken(NANOCHAT))
    short = cropped(found, 8, source=tmp_path)
    assert short.shape == {**found.shape, "block_size": 8}
    assert all(torch.equal(short.weights[name], found.weights[name]) for name in found.weights)
    with pytest.raises(ConfigError, match="longer than the 16 positions"):
        cropped(found, 17, source=tmp_path)


def test_openais_gelu_is_said_to_differ_a_little(tmp_path: Path) -> None:
    model = theirs()
    model.save_pretrained(tmp_path)
    found = hf_folder.read(tmp_path)
    assert "tanh approximation" in found.notes[0]
    with torch.no_grad():
        difference = (our_logits(found) - model(TOKENS_BT).logits).abs().max()
    assert 0 < difference < 0.01


def test_shards_pickled_weights_and_bare_names_are_read(tmp_path: Path) -> None:
    model = theirs(activation_function="gelu")
    plain, sharded, pickled = (tmp_path / name for name in ("plain", "sharded", "pickled"))
    model.save_pretrained(plain)
    model.save_pretrained(sharded, max_shard_size="20KB")
    assert (sharded / "model.safetensors.index.json").is_file()
    pickled.mkdir()
    (pickled / "config.json").write_bytes((plain / "config.json").read_bytes())
    bare = {name.removeprefix("transformer."): tensor for name, tensor in model.state_dict().items()}
    bare |= {"h.0.attn.bias": torch.ones(1, 1, 16, 16), "h.0.attn.masked_bias": torch.tensor(-1e4)}
    torch.save(bare, pickled / "pytorch_model.bin")  # as OpenAI's weights were kept on the hub
    wanted = hf_folder.read(plain).weights
    for folder in (sharded, pickled):
        found = hf_folder.read(folder).weights
        assert list(found) == list(wanted)
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)


def test_a_shorter_context_keeps_the_first_positions(tmp_path: Path) -> None:
    found = snapshot(shaken(TINY))
    short = cropped(found, 8, source=tmp_path)
    assert short.shape["block_size"] == 8
    assert torch.equal(short.weights["transformer.wpe.weight"], found.weights["transformer.wpe.weight"][:8])
    with pytest.raises(ConfigError, match="longer than the 16 positions"):
        cropped(found, 17, source=tmp_path)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"model_type": "llama"}, "model_type='llama'"),
        ({"activation_function": "relu"}, "relu"),
        ({"n_inner": 100}, "n_inner=100"),
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon"),
        ({"n_head": 7}, "n_head=7"),
        ({"n_layer": "two"}, "n_layer='two'"),
        ({"onecard_bias": False}, "biases that are not zero"),
    ],
)
def test_another_model_is_refused_with_what_differs(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    theirs().save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ConfigError) as refused:
        hf_folder.read(tmp_path)
    assert refused.value.name == "not-a-model"
    assert why in refused.value.why


def test_damaged_files_are_refused_in_three_lines(tmp_path: Path) -> None:
    theirs().save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ConfigError) as refused:
        hf_folder.read(tmp_path)
    assert refused.value.name == "unreadable-checkpoint"
    weights.write_bytes(whole)
    tensors = load_file(weights)
    del tensors["transformer.h.1.ln_2.weight"]
    save_file(tensors, weights)
    with pytest.raises(ConfigError) as refused:
        hf_folder.read(tmp_path)
    assert "ln_2.weight is absent" in refused.value.why
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(ConfigError, match="not a model"):
        hf_folder.read(tmp_path)


def test_an_index_may_not_lead_out_of_its_folder(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    theirs().save_pretrained(inside)
    (inside / "model.safetensors").rename(tmp_path / "model.safetensors")
    (inside / "model.safetensors.index.json").write_text('{"weight_map": {"wte.weight": "../model.safetensors"}}')
    with pytest.raises(ConfigError, match="cannot be read"):
        hf_folder.read(inside)
