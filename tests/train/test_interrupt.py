"""Ctrl-C: acknowledged at once, heeded between two batches of an evaluation, and a second one says what is left."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from onecard.cli.main import run as onecard
from onecard.config.resolve import resolve
from onecard.config.schema import RunConfig
from onecard.data.dataset import Dataset, open_dataset
from onecard.runs.folder import create_run, load_run, resume_run
from onecard.runs.records import End, Eval, Record
from onecard.train.interrupt import Interrupt
from onecard.train.loop import train
from onecard.train.model import GPT

SHAPE = {"n_layer": 1, "n_head": 1, "n_embd": 32, "block_size": 32, "batch_size": 2, "device": "cpu"}
STEPS = {"max_iters": 6, "lr_decay_iters": 6, "warmup_iters": 1, "eval_interval": 2, "eval_iters": 4}
KEYS: dict[str, Any] = {**SHAPE, **STEPS}
BATCHES = 2 * KEYS["eval_iters"]  # of an evaluation


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return open_dataset("python-stdlib", environ={"ONECARD_HOME": str(tmp_path_factory.mktemp("home"))})


def tiny(**keys: Any) -> RunConfig:
    return resolve(None).config.replace({**KEYS, **keys})


def run(config: RunConfig, dataset: Dataset, path: Path, *, resume: bool = False) -> tuple[list[Record], list[str]]:
    """What was recorded, and what was said to signals."""
    seen: list[Record] = []
    said: list[str] = []
    with resume_run(path) if resume else create_run(path, config=config.model_dump()) as folder:
        train(config, folder, dataset, resume=resume, on_record=seen.append, on_interrupt=said.append)
    return seen, said


def pressing(real: Callable[..., Any], *, at: int, times: int = 1, seen: list[int] | None = None) -> Callable[..., Any]:
    """A function during whose call number `at` Ctrl-C is pressed."""
    calls = seen if seen is not None else []

    def wrapped(*arguments: Any, **options: Any) -> Any:
        calls.append(len(calls) + 1)
        if calls[-1] == at:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        return real(*arguments, **options)

    return wrapped


def test_the_first_signal_is_told_at_once_and_the_second_stops() -> None:
    said: list[str] = []
    with Interrupt(lambda: said.append("stopping")) as interrupt:
        assert not interrupt.requested
        signal.raise_signal(signal.SIGTERM)
        assert said == ["stopping"]
        assert interrupt.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert said == ["stopping"]


@pytest.mark.parametrize("name", ["SIGHUP", "SIGTERM"])
def test_a_signal_that_no_person_sends_may_come_twice(name: str) -> None:
    """A closed terminal's SIGHUP comes from the shell and from the kernel: the run is saved all the same."""
    said: list[str] = []
    number = getattr(signal, name, None)
    if number is None:
        pytest.skip(f"needs {name}, which this system has not")
    with Interrupt(lambda: said.append("stopping")) as interrupt:
        for _ in range(3):
            signal.raise_signal(number)
        assert said == ["stopping"]
        assert interrupt.requested
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("step", [0, 4, 6])
def test_an_interrupted_evaluation_is_dropped_and_made_up_for(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    undisturbed, _ = run(tiny(), dataset, tmp_path / "undisturbed")
    batches: list[int] = []
    pressed_at = BATCHES * (step // KEYS["eval_interval"]) + 3
    with monkeypatch.context() as patched:
        patched.setattr(GPT, "token_losses", pressing(GPT.token_losses, at=pressed_at, seen=batches))
        seen, said = run(tiny(), dataset, tmp_path / "run")
    assert said == ["stopping this evaluation, then saving; Ctrl-C again stops at once"]
    assert len(batches) == pressed_at, "not one batch more"
    assert all(record.step != step for record in seen if isinstance(record, Eval))
    assert isinstance(seen[-1], End)
    assert (seen[-1].reason, seen[-1].step) == ("interrupted", step)
    assert load_run(tmp_path / "run").checkpoints[-1].step == step
    run(tiny(), dataset, tmp_path / "run", resume=True)
    whole, gone_on = load_run(tmp_path / "undisturbed"), load_run(tmp_path / "run")
    assert [record.loss for record in gone_on.steps] == [record.loss for record in whole.steps]
    assert [(record.step, record.val_loss) for record in gone_on.evals] == [
        (record.step, record.val_loss) for record in undisturbed if isinstance(record, Eval)
    ]
    assert gone_on.finished


def test_of_an_interrupted_eval_only_nothing_is_saved(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GPT, "token_losses", pressing(GPT.token_losses, at=2))
    seen, said = run(tiny(eval_only=True), dataset, tmp_path / "run")
    assert said == ["stopping this evaluation; Ctrl-C again stops at once"]
    assert isinstance(seen[-1], End)
    assert seen[-1].reason == "interrupted"
    assert not load_run(tmp_path / "run").checkpoints


@pytest.mark.parametrize(
    ("eval_interval", "at", "lost"),
    [
        (100, 1, ""),
        (100, 2, " and loses 1 update"),
        (100, 5, " and loses 4 updates"),
        (2, 6, " and loses 1 update since the checkpoint of step 4"),
    ],
)
def test_it_is_said_what_a_second_ctrl_c_would_lose(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, eval_interval: int, at: int, lost: str
) -> None:
    monkeypatch.setattr(GPT, "loss", pressing(GPT.loss, at=at))
    config = tiny(eval_interval=eval_interval, gradient_accumulation_steps=1)
    seen, said = run(config, dataset, tmp_path / "run")
    assert said == [f"stopping after this step, then saving; Ctrl-C again stops at once{lost}"]
    assert seen[-1].step == at, "the step under way was finished"
    assert load_run(tmp_path / "run").checkpoints[-1].step == at


@pytest.mark.parametrize(
    ("eval_interval", "left"),
    [
        (100, "stopped at once; there is no checkpoint yet, so nothing is saved\n"),
        (2, "stopped at once; the newest checkpoint is of step 2\nto continue: onecard train --resume r\n"),
    ],
)
def test_a_second_ctrl_c_says_what_is_left(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    eval_interval: int,
    left: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONECARD_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(GPT, "loss", pressing(GPT.loss, at=4, times=2))
    keys = {**KEYS, "eval_interval": eval_interval, "gradient_accumulation_steps": 1, "out_dir": "r"}
    assert onecard(["train", *(f"--{key}={value}" for key, value in keys.items())]) == 130
    talk = capfd.readouterr().err
    first, second = talk.index("stopping after this step, then saving; Ctrl-C again"), talk.index(left)
    assert first < second
