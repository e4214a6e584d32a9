"""onecard bench --loss: what a run is measured by, and the whole command on a tiny model."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from onecard.config.schema import RunConfig
from onecard.data.dataset import open_dataset
from onecard.runs.learned import Learned
from tests.train.test_bench_command import STAND_IN, TINY, environment
from tests.warm import WarmProcess

pytest.importorskip("torch", reason="needs torch")

SHORT = [
    *("--max_iters=40", "--lr_decay_iters=40", "--warmup_iters=4", "--learning_rate=0.001"),
    *("--eval_interval=16", "--eval_iters=4"),
]
LEARNING = ["bench", "--loss", *TINY, *SHORT, "--against", "adamw", "--set", "learning_rate=0.01", "--lengths", "0.5,1"]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunConfig:
    """A tiny run on random bytes."""
    import numpy as np

    random = np.random.RandomState(1)
    for split, tokens in (("train", 6000), ("val", 2000)):
        random.choice(64, size=tokens, p=np.arange(1, 65) / 2080).astype(np.uint16).tofile(tmp_path / f"{split}.bin")
    keys = {"n_layer": 1, "n_head": 1, "n_embd": 16, "block_size": 16, "vocab_size": 64, "batch_size": 4}
    schedule = {"max_iters": 20, "lr_decay_iters": 20, "warmup_iters": 2, "eval_interval": 8, "eval_iters": 5}
    return RunConfig().replace(
        {
            **keys,
            **schedule,
            "gradient_accumulation_steps": 2,
            "dataset": str(tmp_path),
            "device": "cpu",
            "learning_rate": 0.01,
        }
    )


def learned(config: RunConfig, trainer: str = "onecard", checkout: Path | None = None) -> Learned:
    from onecard.train.bench_loss import learn

    job = {"name": "a", "ours": True, "share": 1.0, "trainer": trainer, "config": config.model_dump()}
    return learn({**job, "windows": 20, "window_tokens": 16, "nanogpt": str(checkout)}, lambda _: None)


def test_the_losses_are_those_that_training_records(config: RunConfig, tmp_path: Path) -> None:
    from onecard.runs.folder import create_run
    from onecard.runs.records import Eval
    from onecard.train.loop import train

    records: list[Any] = []
    dataset = open_dataset(config.dataset, environ={})
    with create_run(tmp_path / "run", config=config.model_dump()) as folder:
        train(config, folder, dataset, resume=False, on_record=records.append)
    evaluated = {record.tokens: record.val_loss for record in records if isinstance(record, Eval) and record.step}
    points = learned(config).points
    assert [point.tokens for point in points] == [8 * 128, 16 * 128, 20 * 128]
    assert {point.tokens: point.val_loss for point in points} == pytest.approx(evaluated, abs=1e-6)


def test_training_seconds_are_updates_times_the_median_update(config: RunConfig) -> None:
    run = learned(config)
    assert [point.seconds / run.step_seconds for point in run.points] == pytest.approx([8, 16, 20])
    assert run.first_step_seconds > run.step_seconds
    assert run.optimizer_share
    assert 0 < run.optimizer_share < 1
    assert len(run.window_losses) == 20
    assert sum(run.window_losses) / 20 == pytest.approx(run.final_loss)


def test_nanogpts_model_is_evaluated_on_the_same_windows_as_ours(config: RunConfig, tmp_path: Path) -> None:
    """The stand-in is a table of logits: after one update at rate 0 its losses are known for any tokens."""
    import torch
    from torch.nn import functional

    from onecard.data.windows import EvalWindows

    (tmp_path / "model.py").write_text(STAND_IN.replace('with open("calls", "a") as calls:', "if False:"))
    still = config.replace({"max_iters": 1, "learning_rate": 0.0, "min_lr": 0.0})
    sys.modules.pop("model", None)
    run = learned(still, "nanogpt", tmp_path)
    torch.manual_seed(still.seed)
    table = torch.nn.Embedding(64, 64).weight.detach()
    windows = EvalWindows(open_dataset(config.dataset, environ={}).val, block_size=16, count=20)
    x, y = next(windows.batches(20))
    expected = functional.cross_entropy(
        table[torch.from_numpy(x)].transpose(1, 2), torch.from_numpy(y), reduction="none"
    )
    assert run.window_losses == pytest.approx(expected.mean(dim=1).tolist(), abs=1e-5)
    assert run.parameters == 64 * 64


@pytest.mark.slow
def test_two_rates_are_compared_from_the_command_line(tmp_path: Path, warm_with_torch: WarmProcess) -> None:
    home = {"ONECARD_HOME": str(tmp_path / "home")}
    done = warm_with_torch.run(*LEARNING, "--plot", "l.svg", "--json", cwd=tmp_path, environment=home, timeout=240)
    assert done.code == 0, done.stderr
    runs = done.json["runs"]
    assert [(run["name"], run["seed"], run["updates"]) for run in runs] == [
        *(("adamw", 1337, 40), ("ours, learning_rate=0.01", 1337, 20), ("ours, learning_rate=0.01", 1337, 40)),
        *(("adamw", 1338, 40), ("ours, learning_rate=0.01", 1338, 20), ("ours, learning_rate=0.01", 1338, 40)),
    ]
    assert [point[0] for point in runs[0]["points"]] == [16 * 64, 32 * 64, 40 * 64]
    assert runs[1]["points"][-1][0] == 20 * 64
    assert 0 < done.json["tokens_ratio"] <= 1
    assert done.json["mark"] == pytest.approx((runs[0]["points"][-1][2] + runs[3]["points"][-1][2]) / 2)
    assert (tmp_path / "l.svg").read_text().count("<polyline") == 2 * 6
    assert "6/6" in done.stderr
    assert "left" in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_nanogpt_from_a_folder_is_the_other_side(tmp_path: Path, warm_with_torch: WarmProcess) -> None:
    (tmp_path / "nanoGPT").mkdir()
    (tmp_path / "nanoGPT/model.py").write_text(STAND_IN)
    home = {"ONECARD_HOME": str(tmp_path / "home")}
    arguments = ["bench", "--loss", *TINY, *SHORT, "--against", "nanogpt", "--nanogpt", "nanoGPT", "--seeds", "1"]
    done = warm_with_torch.run(
        *arguments, "--lengths", "1", "--seconds", "0.2", cwd=tmp_path, environment=home, timeout=240
    )
    assert done.code == 0, done.stderr
    assert "nanogpt's final loss" in done.stdout.splitlines()[0]
    assert "One seed" in done.stdout


@pytest.mark.slow
def test_when_interrupted_it_tells_what_is_complete(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "onecard", *LEARNING, "--json"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stderr
        while not (line := running.stderr.readline()).startswith("1/6"):
            assert line, "it ended before its first run"
        running.send_signal(signal.SIGINT)
        stdout, stderr = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "interrupted" in stderr
    answer = json.loads(stdout)
    assert 1 <= len(answer["runs"]) < 6
    assert answer["runs"][0]["name"] == "adamw"


@pytest.mark.parametrize(
    ("arguments", "name", "fix"),
    [
        (["--loss"], "no-other-side", "--against adamw"),
        (["--loss", "--against", "nanogpt"], "no-checkout", "--nanogpt ../nanoGPT"),
        (["--loss", "--against", "adamw", "--nanogpt", "."], "two-questions", "--against nanogpt"),
        (["--loss", "--against", "nanogpt", "--nanogpt", "nowhere"], "not-nanogpt", "git clone"),
        (["--loss", "--against", "adamw", "--lengths", "0,1"], "bad-lengths", "--lengths 0.4"),
        (["--loss", "--against", "adamw", "--lengths", "0.5,1.5"], "bad-lengths", "--lengths 0.4"),
        (["--loss", "--against", "adamw", "--lengths", "half"], "bad-lengths", "--lengths 0.4"),
        (["--loss", "--against", "adamw", "--seconds", "5", "--tokens", "1M"], "two-questions", "--seconds 5, or"),
        (["--loss", "--against", "adamw", "--seconds", "0"], "usage", "--seconds 60"),
        (["--loss", "--against", "adamw", "--batches", "2"], "two-questions", "leave --batches out"),
        (["--against", "adamw"], "two-questions", "--loss --against adamw"),
        (["--set", "beta2=0.9"], "two-questions", "--loss"),
        (["--loss", "--against", "adamw", "--set", "learning_rat=0.1"], "unknown-key", "--set learning_rate=0.1"),
        (["--loss", "--against", "adamw", "--set", "log_interval=1,2"], "does-not-vary", "--set learning_rate="),
        (["--loss", "--against", "adamw"], "nothing-to-compare", "--set learning_rate="),
        (["--loss", "--against", "adamw", "--dataset=nowhere"], "no-such-dataset", ""),
        (["--loss", "--against", "adamw", "--set", "beta2=0.9", "--tokens", "100"], "too-short", "--tokens"),
    ],
)
def test_what_cannot_be_compared_is_refused_at_once(
    tmp_path: Path, warm_with_torch: WarmProcess, arguments: list[str], name: str, fix: str
) -> None:
    home = {"ONECARD_HOME": str(tmp_path / "home")}
    done = warm_with_torch.run("bench", *TINY, *arguments, cwd=tmp_path, environment=home, timeout=60)
    assert done.code == 2
    what, why, how = done.stderr.splitlines()
    assert what.endswith(f"[{name}]")
    assert why.startswith("  why: ")
    assert fix in how
