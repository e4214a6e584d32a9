"""Other people's trackers: TensorBoard, Weights & Biases and trackio get what records.jsonl has, and may fail.

records.jsonl is what counts. A tracker that raises is named once and then left out; training never waits for it.
Evaluations have nanoGPT's names (train/loss, val/loss), so that old and new runs lie in one chart.
"""

from __future__ import annotations

import importlib
import math
import secrets
import sys
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from functools import partial
from html import escape
from pathlib import Path
from textwrap import indent
from typing import Any, Protocol, Self

from onecard.config.loggers import logger_names
from onecard.config.schema import KEYS, RunConfig
from onecard.errors import kind_and_line
from onecard.runs.records import End, Eval, Record, Sample, Start, Step
from onecard.visible import visible

Values = Mapping[str, float]


class Tracker(Protocol):
    """What each of them can do; made when the run starts."""

    def log(self, values: Values, step: int) -> None: ...
    def write(self, text: str, step: int) -> None: ...
    def close(self, *, finished: bool) -> None: ...


class TensorBoard:
    """Event files in RUN/tensorboard; what a resume takes back is purged."""

    def __init__(self, config: RunConfig, folder: Path, start: Start) -> None:
        writer: Any = importlib.import_module("torch.utils.tensorboard").SummaryWriter
        again = start.step + 1 if start.step else None
        self._writer = writer(log_dir=str(folder / "tensorboard"), purge_step=again)
        rows = "\n".join(f"| {key} | {value} |" for key, value in config.model_dump().items())
        self._writer.add_text("config", f"| key | value |\n|---|---|\n{rows}", start.step)

    def log(self, values: Values, step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def write(self, text: str, step: int) -> None:
        self._writer.add_text("sample", _as_code(text), step)

    def close(self, *, finished: bool) -> None:
        self._writer.close()


class Wandb:
    """A Weights & Biases run, online or as WANDB_MODE says; a resumed run keeps its id."""

    def __init__(self, config: RunConfig, folder: Path, start: Start) -> None:
        self._wandb: Any = importlib.import_module("wandb")
        self._run = self._wandb.init(
            **project_and_name(config, folder),
            config=config.model_dump(),
            dir=str(folder),
            id=_kept_id(folder / "wandb-id", new=not start.step),
            resume="allow",
        )

    def log(self, values: Values, step: int) -> None:
        self._run.log(dict(values), step=step)

    def write(self, text: str, step: int) -> None:
        page = f"<pre style='white-space: pre-wrap'>{escape(visible(text))}</pre>"
        self._run.log({"sample": self._wandb.Html(page, inject=False)}, step=step)

    def close(self, *, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


class Trackio:
    """A run in trackio's local store, or wherever TRACKIO_SPACE_ID sends it."""

    def __init__(self, config: RunConfig, folder: Path, start: Start) -> None:
        self._trackio: Any = importlib.import_module("trackio")
        self._trackio.init(
            **project_and_name(config, folder),
            config=config.model_dump(),
            resume="allow" if start.step else "never",
            embed=False,
        )

    def log(self, values: Values, step: int) -> None:
        self._trackio.log(dict(values), step=step)

    def write(self, text: str, step: int) -> None:
        self._trackio.log({"sample": self._trackio.Markdown(_as_code(text))}, step=step)

    def close(self, *, finished: bool) -> None:
        self._trackio.finish()


TRACKERS: dict[str, Callable[[RunConfig, Path, Start], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "trackio": Trackio,
}


class Trackers:
    """Hands each record to the trackers a config asks for; use it in a `with`."""

    def __init__(self, config: RunConfig, folder: Path, on_warning: Callable[[str], None]) -> None:
        self._config = config
        self._folder = folder
        self._on_warning = on_warning
        self._names = logger_names(config)
        self._open: dict[str, Tracker] = {}
        self._finished = False

    def __enter__(self) -> Self:
        return self

    def __call__(self, record: Record) -> None:
        match record:
            case Start():
                for name in self._names:
                    self._try(name, self._start, name, record)
            case Step() | Eval():
                values = logged_values(record, self._config)
                for name in list(self._open) if values else ():
                    self._try(name, self._open[name].log, values, record.step)
            case Sample():
                for name in list(self._open):
                    self._try(name, self._open[name].write, record.text, record.step)
            case End():
                self._finished = record.reason in ("finished", "stop_after_worse")

    def __exit__(self, *_: object) -> None:
        for name in list(self._open):
            self._try(name, partial(self._open[name].close, finished=self._finished))
        self._open.clear()

    def _start(self, name: str, record: Start) -> None:
        self._open[name] = TRACKERS[name](self._config, self._folder, record)

    def _try(self, name: str, act: Callable[..., None], *arguments: object) -> None:
        try:
            with redirect_stdout(sys.stderr):  # some of them print, and stdout is the run's
                act(*arguments)
        except Exception as problem:
            self._open.pop(name, None)
            self._on_warning(
                f"{name} failed and is left out from here on ({kind_and_line(problem, 160)}); "
                "training continues, and records.jsonl has everything"
            )


def logged_values(record: Step | Eval, config: RunConfig) -> dict[str, float]:
    """The numbers of a record under the names they have in a chart; steps only every log_interval."""
    if isinstance(record, Step):
        if record.step % config.log_interval and record.step != config.max_iters:
            return {}
        names = ("loss", "lr", "grad_norm", "tokens", "tokens_per_second", "mfu", "seconds")
        found = {name: getattr(record, name) for name in (*names, "allocated_bytes", "reserved_bytes")}
    else:
        found = {
            "train/loss": record.train_loss,
            "val/loss": record.val_loss,
            "train/loss_error": record.train_loss_error,
            "val/loss_error": record.val_loss_error,
            "val/bits_per_byte": record.bits_per_byte,
            "val/perplexity": math.exp(record.val_loss) if record.val_loss and record.val_loss < 100 else None,
        }
    return {name: float(value) for name, value in found.items() if value is not None}


def project_and_name(config: RunConfig, folder: Path) -> dict[str, str]:
    """wandb_project and wandb_run_name; left at nanoGPT's defaults, `onecard` and the run folder's name say more."""
    instead = {"wandb_project": "onecard", "wandb_run_name": folder.resolve().name}
    said = {key: getattr(config, key) for key in instead if getattr(config, key) != KEYS[key].default}
    project, name = (said.get(key, instead[key]) for key in instead)
    return {"project": project, "name": name}


def _as_code(text: str) -> str:
    """The text in Markdown, as it is: nothing in it is markup."""
    return indent(visible(text), "    ", lambda _: True)


def _kept_id(path: Path, *, new: bool) -> str:
    """The tracker's id of this run, kept in its folder."""
    if new or not path.is_file():
        path.write_text(secrets.token_hex(8))
    return path.read_text().strip()
