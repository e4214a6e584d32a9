"""A run is a folder: config.json, records.jsonl, checkpoints/step-NNNNNNNN/.

One process writes (`RunFolder`), any number read (`load_run`), also while it writes. Records are only ever appended,
each with a single write, so that `kill -9` can tear the last line and nothing else.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Self

from onecard.errors import ConfigError, MachineError
from onecard.runs.files import write_atomically, writing
from onecard.runs.history import History, each_step_once, read_lines
from onecard.runs.lock import Lock, left_behind
from onecard.runs.record_json import holds_record, to_line
from onecard.runs.records import Checkpoint, End, Eval, Record, Start, Step

if TYPE_CHECKING:
    import pandas

CONFIG, RECORDS, CHECKPOINTS, LOCK = "config.json", "records.jsonl", "checkpoints", "lock"
STEP_COLUMNS = (
    *("loss", "lr", "grad_norm", "seconds", "elapsed_seconds", "tokens_per_second", "mfu"),
    *("allocated_bytes", "reserved_bytes", "data_wait_seconds"),
)
EVAL_COLUMNS = ("train_loss", "val_loss", "train_loss_error", "val_loss_error", "bits_per_byte", "block_size")
_CHECKPOINT = re.compile(r"step-(\d{8,18})", re.ASCII)
_LONGEST_RECORD_BYTES = 2**20


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint folder by its name; whether its content is whole is for the trainer to check."""

    step: int
    path: Path


@dataclass(frozen=True)
class Run:
    """All that a run folder says, for readers."""

    path: Path
    config: Mapping[str, object]
    history: History  # every line ever written
    checkpoints: tuple[SavedCheckpoint, ...]  # by step

    @cached_property
    def records(self) -> tuple[Record, ...]:
        """The records that count: each step once, resumes resolved."""
        return each_step_once(self.history.records)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        return tuple(record for record in self.records if isinstance(record, Step))

    @cached_property
    def evals(self) -> tuple[Eval, ...]:
        return tuple(record for record in self.records if isinstance(record, Eval))

    @property
    def end(self) -> End | None:
        """How it ended; None if it was killed, or runs."""
        return next((record for record in reversed(self.records) if isinstance(record, End)), None)

    @property
    def finished(self) -> bool:
        return self.end is not None and self.end.reason == "finished"

    @property
    def cut_off(self) -> bool:
        """Whether its process is gone without a word, as far as this machine can tell; else it ended, or may run."""
        return self.end is None and left_behind(self.path / LOCK)

    @property
    def imported(self) -> Checkpoint | None:
        """The checkpoint of weights from elsewhere that the run went on from; None if it began with its own."""
        saved = (record for record in self.records if isinstance(record, Checkpoint))
        return next((record for record in saved if record.reason == "imported"), None)

    @property
    def last_step(self) -> int:
        """Updates recorded; 0 before the first."""
        return self.steps[-1].step if self.steps else 0

    def to_pandas(self) -> pandas.DataFrame:
        """One row a step, indexed by step, and in its columns what was recorded of the step and evaluated there.

        What is not known is NaN: most steps are not evaluated, and step 0 is nothing but evaluated. Needs pandas.

        >>> load_run("runs/default").to_pandas()[["loss", "val_loss"]].plot()  # doctest: +SKIP
        """
        try:
            import pandas
        except ImportError as problem:
            raise MachineError(
                "to_pandas needs pandas",
                why="it cannot be imported here",
                fix="pip install pandas   (records without it: run.steps, run.evals)",
                name="missing-package",
            ) from problem
        rows: dict[int, dict[str, object]] = {}
        for step in self.steps:
            rows[step.step] = {name: getattr(step, name) for name in ("tokens", *STEP_COLUMNS)}
        for found in self.evals:
            rows.setdefault(found.step, {}).update({name: getattr(found, name) for name in ("tokens", *EVAL_COLUMNS)})
        columns = ["tokens", *STEP_COLUMNS, *EVAL_COLUMNS]
        table = pandas.DataFrame([rows[number] for number in sorted(rows)], columns=columns, index=sorted(rows))
        return table.rename_axis("step").apply(pandas.to_numeric)


class RunFolder:
    """A run folder that this process, and no other, writes. Made by `create_run` and `resume_run`."""

    def __init__(self, path: Path, *, lock: Lock, config: Mapping[str, object]) -> None:
        self.path = path
        self.config = config
        self._lock = lock
        with writing(path / RECORDS):
            self._records = os.open(path / RECORDS, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._closed = False

    def append(self, record: Record) -> None:
        """Add a record: it survives this process at once, and (steps aside, for speed) a power cut too."""
        line = to_line(record)
        with writing(self.path / RECORDS):
            if not self._ends_in_newline():
                line = b"\n" + line  # a torn line stays torn; this one must not be lost with it
            written = os.write(self._records, line)
            while written < len(line):  # a disk that fills up takes a part, then says so
                written += os.write(self._records, line[written:])
            if not isinstance(record, Step):
                os.fsync(self._records)

    def follow(self) -> bool:
        """Whether the folder was moved since; `path` is where it is now. MachineError where it is gone."""
        if self._is_at(self.path):
            return False
        place = Path(f"/proc/self/fd/{self._records}")  # Linux knows where an open file is
        moved = place.readlink().parent if place.is_symlink() else None
        if moved and self._is_at(moved):
            self.path = moved
            return True
        try:
            self.path.stat()  # another file of records may have been put there
        except (FileNotFoundError, NotADirectoryError) as problem:
            raise MachineError(
                f"{self.path} is gone: it was deleted or moved while its run trained",
                why="a checkpoint there would be of no run",
                fix="put the folder back, and type: onecard train --resume " + quote(str(self.path)),
                name="run-gone",
            ) from problem
        except OSError:  # who writes there will hear it
            pass
        return False

    def _is_at(self, path: Path) -> bool:
        try:
            return os.path.samestat((path / RECORDS).stat(), os.fstat(self._records))
        except OSError:
            return False

    def _ends_in_newline(self) -> bool:
        size = os.lseek(self._records, 0, os.SEEK_END)
        if size == 0:
            return True
        os.lseek(self._records, size - 1, os.SEEK_SET)
        return os.read(self._records, 1) == b"\n"

    def write_config(self, config: Mapping[str, object]) -> None:
        """Replace config.json, as a resume with changed settings does."""
        write_atomically(self.path / CONFIG, (json.dumps(dict(config), indent=1, allow_nan=False) + "\n").encode())
        self.config = dict(config)

    def checkpoints(self) -> tuple[SavedCheckpoint, ...]:
        """Those there now, by step."""
        return checkpoints_in(self.path)

    def read(self) -> Run:
        """The run as a reader sees it now."""
        return load_run(self.path)

    def close(self, *, in_error: bool = False) -> None:
        """Let others write. Who leaves in an error leaves a name in the lock: without an end, the run was cut off."""
        if not self._closed:
            self._closed = True
            os.close(self._records)
            self._lock.close(keep_name=in_error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self.close(in_error=error is not None)


def create_run(path: Path, *, config: Mapping[str, object]) -> RunFolder:
    """A locked folder for a run from the beginning. One that holds a checkpoint is refused: it would be lost.

    Nothing is written, the lock neither, into a folder that is refused and is no run's.
    """
    with writing(path):
        if path.exists() and not path.is_dir():
            raise ConfigError(
                f"{path} is a file, and a run is a folder",
                why="out_dir names the folder that will hold records and checkpoints",
                fix="choose another folder with --out_dir=PATH",
                name="not-a-folder",
            )
        if (path / CONFIG).exists() and not _is_ours(path):
            raise ConfigError(
                f"{path} is not a run folder, and has a {CONFIG} of its own",
                why=f"training writes its settings to {CONFIG} and would overwrite that file",
                fix="choose another folder with --out_dir=PATH",
                name="not-a-run",
            )
        _refuse_lost_checkpoints(path)
        if not _is_ours(path):
            _refuse_checkpoints(path)
        path.mkdir(parents=True, exist_ok=True)
    lock = Lock(path / LOCK)
    try:
        _refuse_checkpoints(path)
        folder = RunFolder(path, lock=lock, config=config)
    except BaseException:
        lock.close()
        raise
    try:
        folder.write_config(config)
    except BaseException:
        folder.close()
        raise
    return folder


def _refuse_checkpoints(path: Path) -> None:
    if saved := checkpoints_in(path):
        raise ConfigError(
            f"{path} holds a run already, saved at step {saved[-1].step:,}",
            why="starting again in the same folder would mix two runs and overwrite the checkpoints",
            fix=f"onecard train --resume {quote(str(path))}   (or choose another folder with --out_dir=PATH)",
            name="run-exists",
        )


def _refuse_lost_checkpoints(path: Path) -> None:
    """Refuse a run whose checkpoints are on a disk that is not here: it would begin again, and hide them."""
    place = path / CHECKPOINTS
    if place.is_symlink() and not place.exists():
        raise MachineError(
            f"{place} leads to {place.readlink()}, where nothing is",
            why="the checkpoints of a run belong there; their disk may not be mounted",
            fix=f"mount it, or take the link away: rm {quote(str(place))}",
            name="checkpoints-not-here",
        )


def resume_run(path: Path) -> RunFolder:
    """The locked folder of a run that exists, with its config. Whether there is a checkpoint, `checkpoints` says.

    Where config.json is damaged or gone, the settings are those of the last start record.
    """
    _settings_of(path)  # nothing is written, the lock neither, before this is known to be a run
    _refuse_lost_checkpoints(path)
    lock = Lock(path / LOCK)
    try:
        return RunFolder(path, lock=lock, config=_settings_of(path))
    except BaseException:
        lock.close()
        raise


def load_run(path: Path | str) -> Run:
    """The run in a folder (or of a records.jsonl). Torn lines and a damaged config.json are passed over."""
    path = Path(path)
    folder = path.parent if path.name == RECORDS else path
    if not is_run(folder):
        raise _no_run(path)
    history = History(())
    try:
        with (folder / RECORDS).open("rb") as file:
            history = read_lines(file)
    except FileNotFoundError:
        pass  # killed before its first record
    except OSError as problem:
        raise ConfigError(
            f"{folder / RECORDS} cannot be read",
            why=f"the system says: {problem.strerror or problem}",
            fix=f"ls -l {quote(str(folder))}   (shows who may read it)",
            name="unreadable-run",
        ) from problem
    config = config_in(folder)
    stated = config if config is not None else _last_started(history)
    return Run(folder, stated or {}, history, checkpoints_in(folder))


def _last_started(history: History) -> dict[str, object] | None:
    """The settings in the last start record; None where there is none."""
    return next((dict(record.config) for record in reversed(history.records) if isinstance(record, Start)), None)


def is_run(path: Path) -> bool:
    """Whether a folder can be read as a run's."""
    try:
        return (path / RECORDS).is_file() or _is_settings(config_in(path))
    except (OSError, ValueError):
        return False


def runs_in(folder: Path) -> tuple[Path, ...]:
    """The run folders directly in `folder`, by name; `folder` alone if it is itself a run."""
    if is_run(folder):
        return (folder,)
    try:
        return tuple(sorted(child for child in folder.iterdir() if is_run(child)))
    except OSError:
        return ()


def checkpoints_in(path: Path) -> tuple[SavedCheckpoint, ...]:
    """The checkpoints of a run folder, by step; what has another name (half-written ones) is none."""
    try:
        children = list((path / CHECKPOINTS).iterdir())
    except OSError:
        return ()
    named = [(checkpoint_step(child.name), child) for child in children if child.is_dir()]
    saved = [SavedCheckpoint(step, child) for step, child in named if step is not None]
    return tuple(sorted(saved, key=lambda checkpoint: checkpoint.step))


def checkpoint_name(step: int) -> str:
    """What the folder of the checkpoint after `step` updates is called."""
    return f"step-{step:08d}"


def checkpoint_step(name: str) -> int | None:
    """The updates after which a checkpoint was saved, by the name of its folder; None if it is no checkpoint's."""
    found = _CHECKPOINT.fullmatch(name)
    return int(found[1]) if found else None


def _settings_of(path: Path) -> dict[str, object]:
    """The settings of a run; ConfigError where there is no run, or none with readable settings."""
    if not _is_ours(path):
        raise _no_run(path)
    settings = config_in(path)
    if settings is None:
        settings = _last_started(load_run(path).history)
    if settings is None:
        is_there = (path / CONFIG).is_file()
        raise ConfigError(
            f"{path / CONFIG} is {'damaged' if is_there else 'missing'}",
            why=f"it holds the settings of the run, and {RECORDS} has no start record to read them from",
            fix="put back a copy of it, or begin a new run in another folder with --out_dir=PATH",
            name="damaged-run",
        )
    return settings


def config_in(path: Path) -> dict[str, object] | None:
    """The content of a folder's config.json; None if it is missing or no JSON object."""
    try:
        config = json.loads((path / CONFIG).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return config if isinstance(config, dict) else None


def is_config_of_run(path: Path) -> bool:
    """Whether a file is the config.json of a run."""
    return path.name == CONFIG and path.is_file() and is_run(path.parent)


def _is_ours(path: Path) -> bool:
    """Whether a folder is a run's beyond doubt: only such a one is written to where it has a config.json."""
    return _holds_records(path) or _is_settings(config_in(path))


def _is_settings(config: Mapping[str, object] | None) -> bool:
    """Whether the content of a config.json is a run's: all of nanoGPT's keys, more, and nothing but keys of ours."""
    if config is None:
        return False
    from onecard.config.schema import KEYS, NANOGPT_KEYS  # only here: pydantic, and records say it without

    return NANOGPT_KEYS < config.keys() <= KEYS.keys()


def _holds_records(path: Path) -> bool:
    """Whether there is a file of records that begins with one, or is still empty."""
    try:
        with (path / RECORDS).open("rb") as file:
            first = file.readline(_LONGEST_RECORD_BYTES)
    except (OSError, ValueError):
        return False
    return not first or holds_record(first)


def _no_run(path: Path) -> ConfigError:
    near = [run.name for folder in (path, path.parent) for run in runs_in(folder) if run != path]
    beside = f"; near it are: {', '.join(near[:5])}" if near else ""
    other = f"its {CONFIG} has other keys than a run's, and there are no {RECORDS} of one"
    return ConfigError(
        f"there is no run in {path}",
        why=(other if config_in(path) is not None else f"a run is a folder with {CONFIG} and {RECORDS}") + beside,
        fix="give the folder of a run, such as runs/default",
        name="no-such-run",
    )
