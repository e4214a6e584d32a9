"""Prepared data can be trained on as it is, with its own vocabulary, and samples can be decoded."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.indexed_files import documents, write_datatrove, write_megatron
from tests.warm import Outcome, WarmProcess

TINY = ["--n_layer=1", "--n_head=1", "--n_embd=16", "--block_size=16", "--batch_size=2", "--device=cpu"]


@pytest.mark.parametrize("format", ["onecard", "nanogpt", "llmc"])
def test_prepare_train_sample(tmp_path: Path, warm_with_torch: WarmProcess, format: str) -> None:
    def onecard(*arguments: str) -> str:
        done = warm_with_torch.run(*arguments, cwd=tmp_path, environment={"ONECARD_HOME": str(tmp_path / "home")})
        assert done.code == 0, done.stderr
        return done.stdout

    with (tmp_path / "x.jsonl").open("w") as file:
        file.writelines(json.dumps({"text": f"abc {number % 7} cab"}) + "\n" for number in range(200))
    source = ["x.jsonl", "--out", "data/abc", "--tokenizer=characters", "--val-share", "0.4", "--format", format]
    onecard("data", "prepare", *source, "--workers", "1")
    onecard("train", "--dataset=abc", *TINY, "--max_iters=3", "--eval_interval=3", "--eval_iters=1", "--out_dir=run")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["vocab_size"] == len(set("abc 0123456"))
    text = onecard("sample", "run", "--prompt", "abc", "--length", "5")
    assert set(text.strip("\n")) <= set("abc 0123456")


@pytest.mark.parametrize("write", [write_datatrove, write_megatron])
def test_train_on_what_datatrove_or_megatron_wrote(
    tmp_path: Path, warm_with_torch: WarmProcess, write: Callable[..., Path]
) -> None:
    def onecard(*arguments: str) -> Outcome:
        done = warm_with_torch.run(*arguments, cwd=tmp_path, environment={"ONECARD_HOME": str(tmp_path / "home")})
        assert done.code == 0, done.stderr
        return done

    for number in range(2):
        write(tmp_path / "data" / "big" / f"{number}{'.ds' if write is write_datatrove else '.bin'}", documents(60))
    (tmp_path / "data" / "big" / "meta.json").write_text('{"tokenizer": "bytes", "vocab_size": 256}')
    train = ["train", *TINY, "--max_iters=3", "--eval_interval=3", "--eval_iters=1", "--dataset=big"]
    run = onecard(*train, "--out_dir=run")
    assert "the last documents of each file" in run.stdout + run.stderr
    assert json.loads((tmp_path / "run" / "config.json").read_text())["vocab_size"] == 256
    onecard("sample", "run", "--length", "5")
    said = onecard("data", "info", "big", "--json").json
    assert sum(said["documents"].values()) == 120
    assert said["held_out"] == "the last documents of each file"
    assert [finding["rule"] for finding in said["findings"]] == ["val-held-out"]
    planned = onecard("plan", "--dataset=big", "--n_layer=1").stdout
    assert f"{said['tokens']['val']} for validation (the last documents of each file)" in planned
