"""What to type after a run: every command that is offered works, and suits its data."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from onecard.cli.main import run  # noqa: E402

TINY = [
    *("--n_layer=1", "--n_head=1", "--n_embd=32", "--block_size=32", "--batch_size=4", "--device=cpu"),
    *("--warmup_iters=1", "--eval_interval=2", "--eval_iters=2", "--max_iters=2", "--lr_decay_iters=2"),
]
ENGLISH = "".join(f"Number {number} is no code, and its cube is {number**3}.\n\n" for number in range(4000))
ONE_LINE = "".join(f"{number} and " for number in range(20_000))


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """The commands that `train` ends with, after a run on some data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONECARD_HOME", str(tmp_path / "home"))

    def call(*typed: str) -> list[list[str]]:
        capsys.readouterr()
        assert run(["train", *TINY, "--out_dir=r", *typed]) == 0
        said = capsys.readouterr().err.partition("next: ")[2]
        return [shlex.split(line.partition("   (")[0]) for line in said.splitlines()]

    return call


def prepare(text: str, tokenizer: str) -> None:
    Path("text.txt").write_text(text)
    options = ["--out", "data/mine", f"--tokenizer={tokenizer}", "--workers", "1"]
    assert run(["data", "prepare", "text.txt", *options]) == 0


@pytest.mark.parametrize(("text", "tokenizer"), [(ENGLISH, "bytes"), (ENGLISH, "characters"), (ONE_LINE, "characters")])
def test_text_of_a_model_that_knows_no_python_does_not_begin_with_python(
    offered: Any, capsys: pytest.CaptureFixture[str], text: str, tokenizer: str
) -> None:
    prepare(text, tokenizer)
    sample, doctor = offered("--dataset=mine")
    assert sample == ["onecard", "sample", "r"]
    assert doctor == ["onecard", "doctor", "r"]
    capsys.readouterr()
    assert run([*sample[1:], "--length", "5"]) == 0
    assert not capsys.readouterr().out.startswith("def ")


def test_a_model_of_python_is_given_some(offered: Any, capsys: pytest.CaptureFixture[str]) -> None:
    sample, _ = offered()
    assert sample == ["onecard", "sample", "r", "--prompt", "def "]
    assert run([*sample[1:], "--length", "5"]) == 0
    assert capsys.readouterr().out.startswith("def ")


def test_where_no_text_can_be_made_none_is_offered(offered: Any) -> None:
    Path("data/mine").mkdir(parents=True)
    for split in ("train", "val"):
        (np.arange(20_000) % 60).astype(np.uint16).tofile(f"data/mine/{split}.bin")
    assert offered("--dataset=mine", "--vocab_size=64") == [["onecard", "doctor", "r"]]
    assert run(["sample", "r"]) == 2
