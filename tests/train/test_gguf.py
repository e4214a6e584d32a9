"""onecard export --to gguf: the file, read back, is the run. llama.cpp itself: bench/gguf_in_llama_cpp.py."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")
gguf = pytest.importorskip("gguf", reason="needs gguf: pip install 'onecard[gguf]'")

import numpy as np  # noqa: E402

from onecard.cli.main import run  # noqa: E402
from onecard.config.schema import RunConfig  # noqa: E402
from onecard.data.gguf_vocabulary import vocabulary_of  # noqa: E402
from onecard.data.tokenizers import ByteTokenizer  # noqa: E402
from onecard.runs.folder import load_run  # noqa: E402
from onecard.train import gguf_file  # noqa: E402
from onecard.train.interchange import read_run  # noqa: E402
from onecard.train.model import GPT  # noqa: E402
from onecard.train.snapshot import Snapshot  # noqa: E402

SIZES = ["--n_layer=2", "--n_head=2", "--n_embd=32", "--block_size=32", "--batch_size=2", "--eval_iters=1"]
TINY = [*SIZES, "--device=cpu", "--warmup_iters=1", "--max_iters=2", "--eval_interval=2", "--lr_decay_iters=2"]
NAMES = {  # by hand, from llama.cpp's src/models/gpt2.cpp: what it loads, and ours
    "token_embd.weight": "transformer.wte.weight",
    "position_embd.weight": "transformer.wpe.weight",
    "output_norm": "transformer.ln_f",
    **{
        f"blk.{block}.{theirs}": f"transformer.h.{block}.{ours}"
        for block in range(2)
        for theirs, ours in {
            "attn_norm": "ln_1",
            "attn_qkv": "attn.c_attn",
            "attn_output": "attn.c_proj",
            "ffn_norm": "ln_2",
            "ffn_up": "mlp.c_fc",
            "ffn_down": "mlp.c_proj",
        }.items()
    },
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of bytes, `r`, and one of nanochat's layers, `n`."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setenv("ONECARD_HOME", str(folder / "home"))
        assert run(["train", *TINY, "--out_dir=r"]) == 0
        assert run(["train", *TINY, "--out_dir=n", "--model=nanochat"]) == 0
    return folder


@pytest.fixture(autouse=True)
def here(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)
    monkeypatch.setenv("ONECARD_HOME", str(runs / "home"))


def read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """(what the file says, its tensors)."""
    reader = gguf.GGUFReader(path)
    said = {name: field.contents() for name, field in reader.fields.items()}
    return said, {tensor.name: tensor for tensor in reader.tensors}


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert run(["export", *arguments]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3, lines
    return "\n".join(lines)


def test_the_file_holds_the_runs_weights_tokens_and_facts(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    assert run(["export", "r", "--to", "gguf", "--type", "f32", "--out", str(path)]) == 0
    said, tensors = read(path)
    weights = read_run(Path("r")).weights
    expected = {f"{theirs}{end}": f"{ours}{end}" for theirs, ours in NAMES.items() for end in ends(theirs)}
    assert tensors.keys() == expected.keys()
    for theirs, ours in expected.items():
        numbers = weights[ours].numpy() if ours in weights else np.zeros(weights[ours[:-4] + "weight"].shape[:1])
        assert np.array_equal(tensors[theirs].data, numbers), theirs
        assert tensors[theirs].tensor_type.name == "F32"
    config = load_run("r").config
    for key in ("context_length", "embedding_length", "block_count", "attention.head_count"):
        ours = {"context_length": "block_size", "embedding_length": "n_embd", "block_count": "n_layer"}.get(
            key, "n_head"
        )
        assert said[f"gpt2.{key}"] == config[ours]
    assert (said["gpt2.feed_forward_length"], said["general.file_type"]) == (128, 0)
    assert said["gpt2.attention.layer_norm_epsilon"] == pytest.approx(1e-5)
    assert said["tokenizer.ggml.tokens"] == list(vocabulary_of(ByteTokenizer()).tokens)
    assert (said["tokenizer.ggml.model"], said["tokenizer.ggml.eos_token_id"]) == ("rwkv", 0)
    assert said["tokenizer.ggml.add_bos_token"] is False
    loss = load_run("r").evals[-1].val_loss
    assert said["onecard.validation_loss"].startswith(f"{loss:.4f} ± ")
    assert said["general.description"].endswith("parameters, trained on python-stdlib from scratch.")


def ends(name: str) -> list[str]:
    return [""] if name.endswith(".weight") else [".weight", ".bias"]


def model(folder: Path, number_type: Any, **shape: Any) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """(the weights of a fresh model, what its file says, its tensors)."""
    torch.manual_seed(1)
    config = RunConfig(**{"n_layer": 1, "n_head": 2, "n_embd": 64, "block_size": 16, "vocab_size": 256} | shape)
    weights = {name: torch.randn_like(tensor) for name, tensor in GPT(config).named_parameters()}
    snapshot = Snapshot(shape={}, weights=weights)
    path, vocabulary = folder / "m.gguf", vocabulary_of(ByteTokenizer())
    gguf_file.write(path, snapshot, config, vocabulary, number_type=number_type, told={}, instead="")
    return weights, *read(path)


def test_biases_are_written_where_the_model_has_them(tmp_path: Path) -> None:
    weights, _, tensors = model(tmp_path, "f32", bias=True)
    assert np.array_equal(tensors["blk.0.attn_qkv.bias"].data, weights["transformer.h.0.attn.c_attn.bias"].detach())
    assert np.array_equal(tensors["output_norm.bias"].data, weights["transformer.ln_f.bias"].detach())


def test_rows_beyond_the_tokenizer_are_left_out(tmp_path: Path) -> None:
    weights, said, tensors = model(tmp_path, "f32", vocab_size=320)
    assert len(said["tokenizer.ggml.tokens"]) == 256
    assert np.array_equal(tensors["token_embd.weight"].data, weights["transformer.wte.weight"][:256].detach())


def test_half_precision_rounds_matrices_only(tmp_path: Path) -> None:
    weights, said, tensors = model(tmp_path, "f16")
    matrix = weights["transformer.h.0.mlp.c_fc.weight"].detach().numpy()
    assert np.array_equal(tensors["blk.0.ffn_up.weight"].data, matrix.astype(np.float16))
    kinds = {name: tensor.tensor_type.name for name, tensor in tensors.items()}
    exact = {name for name in kinds if name.endswith(".bias") or "norm" in name} | {"position_embd.weight"}
    assert kinds == {name: "F32" if name in exact else "F16" for name in kinds}
    assert said["general.file_type"] == 1


def test_q8_0_is_within_half_a_step_of_each_group(tmp_path: Path) -> None:
    weights, said, tensors = model(tmp_path, "q8_0")
    for theirs, ours in (("token_embd", "wte"), ("blk.0.ffn_down", "h.0.mlp.c_proj")):
        tensor = tensors[f"{theirs}.weight"]
        assert tensor.tensor_type.name == "Q8_0"
        exact = weights[f"transformer.{ours}.weight"].detach().numpy()
        read_back = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(exact.shape)
        groups = exact.reshape(-1, 32)
        step = np.abs(groups).max(axis=1, keepdims=True) / 127
        slack = step * (0.5 + 127 * 2.0**-11 + 1e-3)  # the step itself is kept in half precision
        error = np.abs(read_back.reshape(-1, 32) - groups)
        assert (error <= slack).all()
        assert error.max() > 0
    assert said["general.file_type"] == 7


@pytest.mark.parametrize(
    ("arguments", "name", "why"),
    [
        (["n", "--to", "gguf"], "not-llama-cpps-model", "llama.cpp has no such model"),
        (["r", "--to", "hf", "--type", "f16"], "usage", "float32"),
        (["r", "--to", "gguf", "--out", "there.gguf"], "file-exists", "never overwrites"),
        (["r", "--to", "gguf", "--out", "there"], "usage", "by their ending"),
    ],
)
def test_what_cannot_be_written_is_refused(
    capsys: pytest.CaptureFixture[str], arguments: list[str], name: str, why: str
) -> None:
    Path("there.gguf").write_text("mine")
    said = refused(capsys, *arguments)
    assert f"[{name}]" in said
    assert why in said
    assert Path("there.gguf").read_text() == "mine"
    assert not Path("there").exists()


def test_rows_that_are_not_groups_of_32_are_refused_as_q8_0(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["train", *TINY, "--n_embd=24", "--out_dir=narrow"]) == 0
    said = refused(capsys, "narrow", "--to", "gguf", "--type", "q8_0")
    assert "[not-in-groups]" in said
    assert "--type f16" in said


def test_a_full_disk_leaves_no_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(gguf.GGUFWriter, "write_tensors_to_file", full)
    assert run(["export", "r", "--to", "gguf", "--out", str(tmp_path / "new" / "m.gguf"), "--json"]) == 3
    assert json.loads(capsys.readouterr().out)["error"]["name"] == "disk-full"
    assert not (tmp_path / "new").exists()
