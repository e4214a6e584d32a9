"""What to type after a run: every command that is offered works, and suits its data."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from onecard.cli.main import run  # noqa: E402
from onecard.train.profiling import Profiling  # noqa: E402

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


def test_a_vocabulary_larger_than_the_datas_draws_no_token_without_text(
    offered: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare(ONE_LINE, "characters")
    sample, _ = offered("--dataset=mine", "--vocab_size=300")
    capsys.readouterr()
    assert run([*sample[1:], "--prompt", "1 and ", "--length", "50", "--temperature", "9", "--top-k", "300"]) == 0
    assert len(capsys.readouterr().out) == len("1 and ") + 50 + len("\n")


def test_a_run_out_of_hours_says_how_to_go_on(offered: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", *TINY, "--out_dir=r", "--max_hours=1e-9"]) == 0
    assert "to continue: onecard train --resume r\n" in capsys.readouterr().err


def test_a_run_of_no_updates_is_finished_and_has_lost_nothing(offered: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", *TINY, "--out_dir=r", "--max_iters=0"]) == 0
    capsys.readouterr()
    assert run(["train", "--resume", "r"]) == 0
    said = capsys.readouterr()
    assert "gone" not in said.err
    assert "r is finished: step 0 of 0\n" in said.err
    assert not said.out
    (longer,) = (line.partition("to train longer: ")[2] for line in said.err.splitlines() if "longer" in line)
    assert run(shlex.split(longer)[1:]) == 0
    assert "finished at step 2" in capsys.readouterr().out


@pytest.mark.parametrize("rate", [["--recipe=fast", "--n_embd=16"], ["--min_lr=0.0001", "--warmup_iters=0"]])
def test_a_finished_run_is_made_longer_with_its_schedule(
    offered: Any, capsys: pytest.CaptureFixture[str], rate: list[str]
) -> None:
    again = ["train", *TINY, *rate, "--out_dir=r"]
    assert run(again) == 0
    capsys.readouterr()
    assert run(again) == 2
    assert "--lr_decay_iters=4" in capsys.readouterr().err, "a folder that holds a run"
    assert run(["train", "--resume", "r"]) == 0
    said = capsys.readouterr().err
    (longer,) = (line.partition("to train longer: ")[2] for line in said.splitlines() if "longer" in line)
    assert run(shlex.split(longer)[1:]) == 0
    said = "".join(capsys.readouterr())
    assert said.count("the schedule has changed") == 1
    assert "decay-horizon" not in said
    assert "resume-lr-jump" not in said


def test_a_profile_that_cannot_be_written_is_refused_before_the_run(
    offered: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("old.json").write_text("old")
    for option in ("--profile", "--memory_snapshot"):
        assert run(["train", *TINY, "--out_dir=r", option, "nowhere/trace.json"]) == 3
        assert f"{option} trace.json writes into this folder" in capsys.readouterr().err
        assert run(["train", *TINY, "--out_dir=r", option, "old.json", "--device=nonsense"]) == 2
    assert not Path("r").exists()
    assert Path("old.json").read_text() == "old"


@pytest.mark.parametrize(("updates", "said"), [(2, "was not written: the run had fewer than 4 updates"), (6, "wrote")])
def test_it_is_said_whether_a_profile_was_written(
    offered: Any, capsys: pytest.CaptureFixture[str], updates: int, said: str
) -> None:
    assert run(["train", *TINY, "--out_dir=r", f"--max_iters={updates}", "--profile", "trace.json"]) == 0
    (line,) = (line for line in capsys.readouterr().err.splitlines() if "trace.json" in line)
    assert said in line
    assert Path("trace.json").exists() == (said == "wrote")
    if said == "wrote":
        assert json.loads(Path("trace.json").read_text())["traceEvents"]


def test_a_trace_that_cannot_be_written_after_all_ends_no_training(tmp_path: Path) -> None:
    with Profiling(tmp_path / "gone" / "trace.json") as profiling:
        for _ in range(6):
            torch.zeros(1).add_(1)
            profiling.after_step()
    assert profiling.missing == "No such file or directory"


def test_where_no_text_can_be_made_none_is_offered(offered: Any) -> None:
    Path("data/mine").mkdir(parents=True)
    for split in ("train", "val"):
        (np.arange(20_000) % 60).astype(np.uint16).tofile(f"data/mine/{split}.bin")
    assert offered("--dataset=mine", "--vocab_size=64") == [["onecard", "doctor", "r"]]
    assert run(["sample", "r"]) == 2
