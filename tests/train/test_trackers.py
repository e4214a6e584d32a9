"""Trackers: read back with their own readers, never in the way of training."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any, ClassVar

import pytest

pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from onecard.cli.main import run
from onecard.config.loggers import check_loggers, logger_names
from onecard.config.schema import RunConfig
from onecard.errors import ConfigError, MachineError
from onecard.runs.folder import load_run
from onecard.runs.records import End, Eval, Record, Sample, Start, Step
from onecard.train import trackers
from onecard.train.trackers import Trackers, _as_code, logged_values, project_and_name
from onecard.visible import visible
from tests.warm import Outcome, WarmProcess

TINY = [
    *("--n_layer=2", "--n_head=2", "--n_embd=32", "--block_size=32", "--batch_size=4", "--device=cpu"),
    *("--warmup_iters=2", "--eval_interval=4", "--eval_iters=2", "--max_iters=8", "--lr_decay_iters=8"),
    *("--log_interval=1", "--out_dir=r"),
]
NONE = dict.fromkeys(("grad_norm", "seconds", "elapsed_seconds", "tokens_per_second", "mfu", "allocated_bytes"))


def start(step: int = 0) -> Start:
    more: dict[str, Any] = {"card": None, "predicted_process_bytes": None, "resumed_from": None}
    return Start(step=step, config={}, versions={}, device="cpu", **more)


def step(number: int, *, loss: float = 3.0) -> Step:
    return Step(step=number, tokens=number * 8, loss=loss, lr=0.1, reserved_bytes=None, data_wait_seconds=None, **NONE)


def evaluation(number: int) -> Eval:
    unknown = dict.fromkeys(("block_size", "tokens_read", "seconds", "peak_allocated_bytes", "peak_reserved_bytes"))
    losses = {"train_loss": 2.0, "val_loss": 2.5, "train_loss_error": 0.1, "val_loss_error": 0.2, "bits_per_byte": 1.5}
    return Eval(step=number, tokens=number * 8, **losses, **unknown)  # type: ignore[arg-type]


END = End(step=2, tokens=16, reason="finished", best_val_loss=2.5, seconds=1.0)
RUN: list[Record] = [start(), evaluation(0), step(1), step(2), evaluation(2), END]


# In the way of nothing


class Recorder:
    """A tracker that remembers, and fails where told."""

    made: ClassVar[list[Recorder]] = []
    fails_at: ClassVar[str | None] = None

    def __init__(self, config: RunConfig, folder: Path, first: Start) -> None:
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.closed: list[bool] = []
        self._fail("start")
        Recorder.made.append(self)

    def log(self, values: Any, step: int) -> None:
        self._fail("log")
        self.logged.append((step, dict(values)))

    def write(self, text: str, step: int) -> None:
        self.logged.append((step, {"sample": len(text)}))

    def close(self, *, finished: bool) -> None:
        self._fail("close")
        self.closed.append(finished)

    def _fail(self, place: str) -> None:
        if Recorder.fails_at == place:
            raise ConnectionError(f"lost in {place}\nand more")


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> type[Recorder]:
    monkeypatch.setitem(trackers.TRACKERS, "trackio", Recorder)
    monkeypatch.setattr(Recorder, "made", [])
    monkeypatch.setattr(Recorder, "fails_at", None)
    return Recorder


def tell(config: RunConfig, tmp_path: Path, records: list[Record], after: Any = lambda told: None) -> list[str]:
    """The warnings while `records` are told."""
    warnings: list[str] = []
    with Trackers(config, tmp_path, warnings.append) as told:
        for record in records:
            told(record)
        after(told)
    return warnings


def test_steps_and_evaluations_arrive_under_their_step(recorder: type[Recorder], tmp_path: Path) -> None:
    assert tell(RunConfig(loggers="trackio"), tmp_path, RUN) == []
    (made,) = recorder.made
    assert [number for number, _ in made.logged] == [0, 1, 2, 2]
    assert made.logged[1][1] == {"loss": 3.0, "lr": 0.1, "tokens": 8.0}, "what is unknown is not logged"
    assert made.logged[0][1]["val/loss"] == 2.5
    assert made.closed == [True]


@pytest.mark.parametrize("place", ["start", "log", "close"])
def test_a_failing_tracker_is_named_once_and_heard_no_more(
    recorder: type[Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(Recorder, "fails_at", place)
    (warning,) = tell(RunConfig(loggers="trackio"), tmp_path, RUN)
    assert warning.startswith(f"trackio failed and is left out from here on (ConnectionError: lost in {place});")
    assert "\n" not in warning


def test_one_failing_tracker_does_not_silence_another(
    recorder: type[Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> Any:
        raise OSError("no")

    monkeypatch.setitem(trackers.TRACKERS, "wandb", broken)
    warnings = tell(RunConfig(loggers="wandb,trackio"), tmp_path, RUN)
    assert len(warnings) == 1
    assert len(recorder.made[0].logged) == 4


def test_a_run_that_dies_closes_its_trackers_unfinished(recorder: type[Recorder], tmp_path: Path) -> None:
    def killed(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tell(RunConfig(loggers="trackio"), tmp_path, [start(), step(1)], after=killed)
    assert recorder.made[0].closed == [False]


def test_what_trackers_print_does_not_reach_stdout(
    recorder: type[Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Recorder, "_fail", lambda _, place: print(f"chat in {place}"))
    tell(RunConfig(loggers="trackio"), tmp_path, RUN)
    told = capsys.readouterr()
    assert told.out == ""
    assert "chat in log" in told.err


# What is asked for


@pytest.mark.parametrize(
    ("keys", "names"),
    [
        ({}, []),
        ({"loggers": "tensorboard"}, ["tensorboard"]),
        ({"loggers": " trackio, TensorBoard trackio"}, ["trackio", "tensorboard"]),
        ({"wandb_log": True}, ["wandb"]),
        ({"loggers": "wandb", "wandb_log": True}, ["wandb"]),
    ],
)
def test_loggers_are_named_as_people_name_them(keys: dict[str, Any], names: list[str]) -> None:
    assert logger_names(RunConfig(**keys)) == names


def test_an_unknown_or_missing_logger_is_refused_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="no logger wanb") as refused:
        check_loggers(RunConfig(loggers="wanb"))
    assert refused.value.fix == "--loggers=wandb"
    monkeypatch.setattr("onecard.config.loggers.find_spec", lambda name: None)
    with pytest.raises(MachineError, match="needs tensorboard"):
        check_loggers(RunConfig(loggers="tensorboard"))
    check_loggers(RunConfig(wandb_log=True))  # nanoGPT configs carry it along: the run only warns


def test_steps_are_logged_every_log_interval_and_at_the_end() -> None:
    config = RunConfig(log_interval=5, max_iters=12)
    assert [number for number in range(1, 13) if logged_values(step(number), config)] == [5, 10, 12]


def test_the_folder_names_the_run_unless_the_config_does(tmp_path: Path) -> None:
    assert project_and_name(RunConfig(), tmp_path / "mine") == {"project": "onecard", "name": "mine"}
    named = RunConfig(wandb_run_name="124M", wandb_project="fineweb")
    assert project_and_name(named, tmp_path / "mine") == {"project": "fineweb", "name": "124M"}


# The real ones


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def test_tensorboards_own_reader_finds_every_step_once_after_a_resume(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard", reason="needs tensorboard: pip install 'onecard[log]'")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONECARD_HOME", str(home))
    assert run(["train", *TINY, "--loggers=tensorboard", "--checkpoint_interval=100", "--sample_interval=4"]) == 0
    for file in (tmp_path / "r" / "checkpoints" / "step-00000008").iterdir():
        file.unlink()  # as if killed before it was saved: 5 to 8 are done again
    assert run(["train", "--resume", "r", "--max_iters=10"]) == 0
    events = EventAccumulator(str(tmp_path / "r" / "tensorboard")).Reload()
    found = load_run(tmp_path / "r")
    assert [(e.step, pytest.approx(e.value)) for e in events.Scalars("loss")] == [(s.step, s.loss) for s in found.steps]
    evaluated = {e.step: e.value for e in events.Scalars("val/loss")}  # step 4 was evaluated twice, with one result
    assert evaluated == pytest.approx({each.step: each.val_loss for each in found.evals})
    assert found.last_step == 10
    texts = {each.step: each.tensor_proto.string_val[0].decode() for each in events.Tensors("sample/text_summary")}
    written = {each.step: each.text for each in found.records if isinstance(each, Sample)}
    assert written.keys() == {0, 4, 8, 10}
    assert texts == {step: _as_code(text) for step, text in written.items()}


@pytest.mark.slow
def test_wandb_offline_and_trackios_store_hold_the_losses(
    tmp_path: Path, home: Path, warm_with_torch: WarmProcess
) -> None:
    pytest.importorskip("wandb", reason="needs wandb: pip install 'onecard[log]'")
    pytest.importorskip("trackio", reason="needs trackio: pip install 'onecard[log]'")
    offline = {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "HF_HUB_OFFLINE": "1"}
    environment = offline | {"ONECARD_HOME": str(home), "TRACKIO_DIR": str(tmp_path / "trackio")}

    def onecard(*arguments: str) -> Outcome:
        return warm_with_torch.run(*arguments, cwd=tmp_path, environment=environment)

    done = onecard("train", *TINY, "--loggers=wandb,trackio", "--log_style=plain", "--sample_interval=8")
    assert done.code == 0, done.stderr
    assert "warning" not in done.stderr
    assert "rackio" not in done.stdout, "stdout is the run's own"
    losses = {each.step: each.loss for each in load_run(tmp_path / "r").steps}
    assert wandb_losses(tmp_path / "r") == pytest.approx(losses)
    first_id = (tmp_path / "r" / "wandb-id").read_text()
    again = onecard("train", "--resume", "r", "--max_iters=10")
    assert again.code == 0, again.stderr
    assert (tmp_path / "r" / "wandb-id").read_text() == first_id, "a resumed run is the same run there too"
    losses = {each.step: each.loss for each in load_run(tmp_path / "r").steps}
    assert wandb_losses(tmp_path / "r") == pytest.approx(losses)
    written = [each for each in load_run(tmp_path / "r").records if isinstance(each, Sample)]
    pages = [file.read_text() for file in (tmp_path / "r" / "wandb").rglob("*.html")]
    assert {f"<pre style='white-space: pre-wrap'>{escape(visible(each.text))}</pre>" for each in written} == set(pages)
    assert trackio_texts(tmp_path / "trackio" / "onecard.db") == {each.step: _as_code(each.text) for each in written}
    assert trackio_losses(tmp_path / "trackio" / "onecard.db") == pytest.approx(losses)


def trackio_texts(path: Path) -> dict[int, str]:
    with sqlite3.connect(path) as store:
        rows = store.execute("select step, metrics from metrics").fetchall()
    found = {step: json.loads(metrics) for step, metrics in rows}
    return {step: metrics["sample"]["_value"] for step, metrics in found.items() if "sample" in metrics}


def wandb_losses(folder: Path) -> dict[int, float]:
    """Loss by step, from all offline files of a run."""
    from wandb.proto import wandb_internal_pb2

    found: dict[int, float] = {}
    for path in sorted((folder / "wandb").glob("offline-run-*/run-*.wandb")):
        for data in leveldb_log(path.read_bytes()[7:], first=7):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            row = {(item.key or "/".join(item.nested_key)): item.value_json for item in record.history.item}
            if "loss" in row:
                found[int(row["_step"])] = float(json.loads(row["loss"]))
    return found


def leveldb_log(raw: bytes, *, first: int) -> Iterator[bytes]:
    """The records of a file in LevelDB's log format: blocks of 32 KiB; checksum, length, kind, data."""
    place, parts = 0, b""
    while place + 7 <= len(raw):
        left = 32768 - (place + first) % 32768
        if left < 7:
            place += left
            continue
        length, kind = int.from_bytes(raw[place + 4 : place + 6], "little"), raw[place + 6]
        parts += raw[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""


def trackio_losses(database: Path) -> dict[int, float]:
    """Loss by step, from trackio's SQLite store."""
    with sqlite3.connect(database) as store:
        rows = [(number, json.loads(text)) for number, text in store.execute("select step, metrics from metrics")]
    store.close()
    return {number: metrics["loss"] for number, metrics in rows if "loss" in metrics}
