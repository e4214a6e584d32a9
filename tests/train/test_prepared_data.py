"""Prepared data can be trained on as it is, with its own vocabulary, and samples can be decoded."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

ROOT = Path(__file__).parents[2]
TINY = ["--n_layer=1", "--n_head=1", "--n_embd=16", "--block_size=16", "--batch_size=2", "--device=cpu"]


@pytest.mark.parametrize("format", ["onecard", "nanogpt", "llmc"])
def test_prepare_train_sample(tmp_path: Path, format: str) -> None:
    environment = os.environ | {"ONECARD_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def onecard(*arguments: str) -> str:
        command = [sys.executable, "-m", "onecard", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with (tmp_path / "x.jsonl").open("w") as file:
        file.writelines(json.dumps({"text": f"abc {number % 7} cab"}) + "\n" for number in range(200))
    source = ["x.jsonl", "--out", "data/abc", "--tokenizer=characters", "--val-share", "0.4", "--format", format]
    onecard("data", "prepare", *source, "--workers", "1")
    onecard("train", "--dataset=abc", *TINY, "--max_iters=3", "--eval_interval=3", "--eval_iters=1", "--out_dir=run")
    assert json.loads((tmp_path / "run" / "config.json").read_text())["vocab_size"] == len(set("abc 0123456"))
    text = onecard("sample", "run", "--prompt", "abc", "--length", "5")
    assert set(text.strip("\n")) <= set("abc 0123456")
