"""onecard tune as a user types it, on a machine without a card."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onecard.cli.tune import Search
from onecard.cli.worker import OutOfTime
from onecard.config.resolve import resolve
from onecard.config.schema import RunConfig
from onecard.errors import OnecardError
from onecard.inputs.calibration import Device, calibration_of, keep, torch_here
from onecard.machine import processor_name, usable_threads
from onecard.models.evaluation import eval_tokens
from onecard.plan.calibration import TimedRun, decisive
from onecard.runs.measured import Measured
from onecard.runs.tuned import Tuned
from onecard.train.cpu import cpu_seconds
from tests.warm import ROOT, Outcome, WarmProcess

pytest.importorskip("torch", reason="needs torch")

Tune = Callable[..., Outcome]
TINY = ["--device=cpu", "--n_layer=1", "--n_head=1", "--n_embd=16", "--block_size=16", "--batch_size=4"]


@pytest.fixture
def tune(tmp_path: Path, warm_with_torch: WarmProcess) -> Tune:
    def run(*arguments: str) -> Outcome:
        home = {"ONECARD_HOME": str(tmp_path / "home")}
        return warm_with_torch.run("tune", *TINY, "--minutes=0.2", *arguments, cwd=tmp_path, environment=home)

    return run


def test_the_patch_is_the_fastest_of_what_was_measured_and_keeps_the_tokens_of_an_update(
    tune: Tune, tmp_path: Path
) -> None:
    done = tune("--json", "--write", "tuned.py", "--share", "mine.csv", "--gradient_accumulation_steps=4")
    assert done.code == 0, done.stderr
    shared = (tmp_path / "mine.csv").read_text()
    assert shared.strip() in done.stderr  # shown as it is written
    assert str(tmp_path) not in shared
    found = done.json
    assert found["schema"] == 1
    measured = [each for each in found["candidates"] if each["tokens_per_second"]]
    assert measured[0]["patch"] == {}
    assert len(measured) > 1
    fastest = max(each["tokens_per_second"] for each in measured)
    assert found["tokens_per_second"] >= 0.99 * fastest
    assert found["patch"] in [each["patch"] for each in measured]
    assert all(each["process_bytes"] > 2**20 and each["predicted_tokens_per_second"] > 0 for each in measured)
    kept = json.loads(Path(found["calibration"]).read_text())
    assert (kept["driver"], len(kept["runs"])) == ("", len(measured))
    assert {run["tokens_per_second"] for run in kept["runs"]} == {each["tokens_per_second"] for each in measured}
    written = resolve((tmp_path / "tuned.py").read_text(), filename="tuned.py").config
    assert written.tokens_per_step == 4 * 4 * 16
    assert {key: getattr(written, key) for key in found["patch"]} == found["patch"]
    assert written.n_embd == 16


def test_training_on_the_processor_says_how_long_it_takes_by_what_was_measured(
    tmp_path: Path, warm_with_torch: WarmProcess
) -> None:
    """The same model and micro-batch at any number of updates; another model is estimated as before."""
    config = RunConfig().replace({"n_layer": 1, "n_head": 1, "n_embd": 16, "block_size": 16, "batch_size": 4})
    device = Device(card=processor_name(), driver="", torch=torch_here())
    timed = TimedRun(config=decisive(config), tokens_per_second=640.0, threads=usable_threads())
    keep(device, [timed], date="2026-11-19", environ={"ONECARD_HOME": str(tmp_path)})
    known, _ = calibration_of(device, {"ONECARD_HOME": str(tmp_path)})
    assert known
    longer = config.replace({"gradient_accumulation_steps": 10, "max_iters": 100, "eval_interval": 10**6})
    assert known.run_like(longer, usable_threads()) == timed
    assert known.run_like(longer, usable_threads() + 1) is None
    assert known.run_like(longer.replace({"n_embd": 32}), usable_threads()) is None
    evaluated = 2 * 2 * eval_tokens(longer) / 3
    assert cpu_seconds(longer, timed=timed).likely == pytest.approx((100 * 640 + evaluated) / 640)
    said = warm_with_torch.run(
        "train", *TINY, "--max_iters=1", "--eval_iters=1", "--vocab_size=50304", "--out_dir=run",
        cwd=tmp_path, environment={"ONECARD_HOME": str(tmp_path), "OMP_NUM_THREADS": str(usable_threads())},
    )  # fmt: skip
    assert "measured on this machine on 2026-11-19" in said.stdout + said.stderr


def test_ways_whose_processes_break_run_out_of_memory_or_of_time_spoil_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    config = RunConfig.model_validate({"batch_size": 4, "gradient_accumulation_steps": 4, "device": "cpu"})
    products = [{"threads": 2, "batch_size": size, "flops_per_second": 1e9} for size in (16, 8, 4, 2, 1)]
    machine = {"device": "cpu", "name": "a processor", "torch": "2.13.0", "cores": 2, "products": products}

    def lines(module: str, job: dict[str, Any], *_: object, **__: object) -> Iterator[dict[str, Any]]:
        size = job["config"]["batch_size"]
        if module.endswith("machine"):
            yield machine
        elif size == 16:
            raise OnecardError("onecard at batch 16 stopped with an error", why="Aborted", fix="look at it")
        elif size == 2:
            raise OutOfTime("onecard at batch 2 did not end in time", why="slow", fix="give it more time")
        else:
            seconds = () if size == 8 else (0.5, 0.5, 0.5)
            empty = Measured(
                trainer="onecard", batch_size=size, gradient_accumulation_steps=1, grad_checkpoint="none", seed=1
            )
            yield replace(empty, out_of_memory=size == 8, step_seconds=seconds, tokens_per_step=100 * size).as_json()

    monkeypatch.setattr("onecard.cli.tune.worker_lines", lines)
    search = Search(found=Tuned(asked=config), seconds=60, until=time.monotonic() + 60)
    search.run()
    states = {each.way.config.batch_size: each.state for each in search.found.tried}
    assert states == {4: "measured", 16: "failed", 8: "out of memory", 2: "no time left", 1: "measured"}
    assert search.found.best is not None
    assert search.found.best.way.config == config


def test_a_file_that_exists_is_refused_before_anything_is_measured(tune: Tune, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("n_layer = 1\n")
    done = tune("--write", "mine.py")
    assert done.code == 2
    assert "mine.py already exists" in done.stderr
    assert "--write" in done.stderr.splitlines()[2]
    assert "tokens/s" not in done.stderr
    assert (tmp_path / "mine.py").read_text() == "n_layer = 1\n"


@pytest.mark.slow
def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    environment = os.environ | {"ONECARD_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "onecard", "tune", *TINY, "--minutes=30", "--json"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stderr
        while "tokens/s" not in running.stderr.readline():
            assert running.poll() is None
        running.send_signal(signal.SIGINT)
        stdout, stderr = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "interrupted" in stderr
    assert json.loads(stdout)["candidates"][0]["tokens_per_second"] > 0
