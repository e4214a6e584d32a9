"""onecard bench as a user types it, beside a stand-in that has nanoGPT's names and nothing of its code."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onecard.cli.bench import _sizes
from onecard.config.schema import RunConfig
from onecard.errors import UsageError
from tests.warm import ROOT, Outcome, WarmProcess

pytest.importorskip("torch", reason="needs torch")

Bench = Callable[..., Outcome]
STAND_IN = """
from dataclasses import dataclass
import torch
from torch.nn import functional

@dataclass
class GPTConfig:
    n_layer: int; n_head: int; n_embd: int; block_size: int; vocab_size: int; bias: bool; dropout: float

class GPT(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.table = torch.nn.Embedding(config.vocab_size, config.vocab_size)
        if config.vocab_size == 257:
            raise torch.OutOfMemoryError("CUDA out of memory")

    def forward(self, x, y):
        with open("calls", "a") as calls:
            calls.write("train " if self.training and torch.is_grad_enabled() else "evaluation ")
        logits = self.table(x)
        return logits, functional.cross_entropy(logits.flatten(0, 1), y.flatten())

    def configure_optimizers(self, weight_decay, learning_rate, betas, device_type):
        return torch.optim.AdamW(self.parameters(), lr=learning_rate, betas=betas)
"""
TINY = ["--device=cpu", "--n_layer=1", "--n_head=1", "--n_embd=16", "--block_size=16", "--batch_size=4"]


def environment(tmp_path: Path) -> dict[str, str]:
    return os.environ | {"ONECARD_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def bench(tmp_path: Path, warm_with_torch: WarmProcess) -> Bench:
    """Runs `onecard bench` to its end."""

    def run(*arguments: str) -> Outcome:
        home = {"ONECARD_HOME": str(tmp_path / "home")}
        return warm_with_torch.run("bench", *TINY, *arguments, cwd=tmp_path, environment=home, timeout=240)

    return run


def test_the_micro_batches_it_names_instead_are_taken() -> None:
    config = RunConfig().replace({"batch_size": 12, "gradient_accumulation_steps": 420})
    with pytest.raises(UsageError) as caught:
        _sizes("11", config)
    assert caught.value.fix == "--batches 48,56,60,63"
    assert _sizes(caught.value.fix.removeprefix("--batches "), config) == [48, 56, 60, 63]


def answer(done: Outcome) -> Any:
    assert done.code == 0, done.stderr
    return done.json


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    folder = tmp_path / "nanoGPT"
    folder.mkdir()
    (folder / "model.py").write_text(STAND_IN)
    return folder


def test_nanogpt_evaluates_both_splits_before_its_first_update_as_its_own_loop_does(
    bench: Bench, tmp_path: Path, checkout: Path
) -> None:
    bench("--nanogpt", str(checkout), "--repeat", "1", "--updates", "15", "--json")
    assert (tmp_path / "calls").read_text().split()[:8] == ["evaluation"] * 6 + ["train"] * 2


@pytest.mark.slow
def test_both_trainers_are_measured_on_the_same_tokens(bench: Bench, tmp_path: Path, checkout: Path) -> None:
    done = bench("--nanogpt", str(checkout), "--batches", "2,4", "--repeat", "1", "--plot", "losses.svg", "--json")
    found = answer(done)
    assert [(one["trainer"], one["batch_size"]) for one in found["summaries"]] == [
        *(("nanogpt", 2), ("nanogpt", 4)),
        *(("onecard", 2), ("onecard", 4)),
    ]
    assert {one["tokens_per_step"] for one in found["measured"]} == {4 * 16}
    assert all(len(one["step_seconds"]) == 20 and len(one["losses"]) == 25 for one in found["measured"])
    assert all(3 < one["val_loss"] < 8 for one in found["measured"])
    best = {
        trainer: max(one["tokens_per_second"] for one in found["summaries"] if one["trainer"] == trainer)
        for trainer in ("nanogpt", "onecard")
    }
    assert found["speedup"] == pytest.approx(best["onecard"] / best["nanogpt"])
    assert (tmp_path / "losses.svg").read_text().count("<polyline") == 4


@pytest.mark.slow
def test_what_was_measured_before_a_failure_is_printed(bench: Bench, checkout: Path) -> None:
    fails_next_time = "from pathlib import Path\nassert not Path('ran').exists(), 'broken'\nPath('ran').touch()\n"
    (checkout / "model.py").write_text(STAND_IN + fails_next_time)
    done = bench("--nanogpt", str(checkout), "--repeat", "2", "--json")
    assert done.code == 2
    assert "broken" in done.stderr
    assert [one["trainer"] for one in json.loads(done.stdout)["measured"]] == ["nanogpt", "onecard"]


@pytest.mark.slow
def test_the_vocabulary_is_that_of_the_data(bench: Bench) -> None:
    assert answer(bench("--repeat", "1", "--json"))["config"]["vocab_size"] == 256


@pytest.mark.slow
def test_running_out_of_memory_is_a_result(bench: Bench, checkout: Path) -> None:
    arguments = ["--nanogpt", str(checkout), "--repeat", "1", "--vocab_size=257"]
    done = bench(*arguments)
    assert done.code == 0, done.stderr
    assert "out of memory" in done.stdout
    assert "onecard" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("number", [pytest.param(signal.SIGINT, marks=pytest.mark.long), signal.SIGTERM])
def test_when_interrupted_it_prints_what_has_been_measured(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "onecard", "bench", *TINY, "--repeat", "50", "--json"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stderr
        assert "tokens/s" in running.stderr.readline()
        running.send_signal(number)
        stdout, stderr = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "interrupted" in stderr
    assert 1 <= len(json.loads(stdout)["measured"]) < 50


@pytest.mark.slow
def test_a_card_that_is_not_there_is_the_machines_fault(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    done = bench("--device=cuda", "--json")
    assert done.code == 3, done.stderr
    error = json.loads(done.stdout)["error"]
    assert error["name"] == "no-gpu"
    assert error["what"].startswith("device=cuda, but torch sees no GPU")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--updates", "3"], "too few"),
        (["--repeat", "0"], "range"),
        (["--batches", "3"], "must divide"),
        (["--batches", "many"], "must divide"),
        (["--nanogpt", "nowhere"], "no model.py"),
        (["--vocab_size=100"], "token-out-of-range"),
        (["--optimizer=adamw8bit"], "bad-value"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(bench: Bench, arguments: list[str], words: str) -> None:
    done = bench(*arguments)
    assert done.code == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 3
