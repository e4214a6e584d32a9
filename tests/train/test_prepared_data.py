"""Prepared data can be trained on as it is, with its own vocabulary, and samples can be decoded."""

import json
from pathlib import Path

import pytest

from tests.warm import WarmProcess

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
