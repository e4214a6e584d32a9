"""A run is a folder: config.json, records.jsonl, checkpoints/step-NNNNNNNN/.

One process writes (`RunFolder`). Any number of processes can read (`load_run`), also while it writes. Records are only
appended, each with a single write, so `kill -9` can damage only the last line.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from shlex import quote
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Self

from onecard.errors import ConfigError, MachineError, fault_behind, unless_machine_failed
from onecard.files import is_half_written, write_atomically, writing
from onecard.opening import cannot_read, open_file, pieces
from onecard.runs.history import History, each_step_once, read_lines
from onecard.runs.lock import Lock, held_here, left_behind, refuse_in_use
from onecard.runs.record_json import holds_record, to_line
from onecard.runs.records import CardReading, Checkpoint, End, Eval, Record, Start, Step
from onecard.untrusted_json import BadJson, mapping_of, read_object, scalar

if TYPE_CHECKING:
    import pandas

CONFIG, RECORDS, CHECKPOINTS, LOCK = "config.json", "records.jsonl", "checkpoints", "lock"
STEP_COLUMNS = (
    *("loss", "lr", "grad_norm", "seconds", "elapsed_seconds", "tokens_per_second", "mfu"),
    *("allocated_bytes", "reserved_bytes", "data_wait_seconds"),
)
EVAL_COLUMNS = ("train_loss", "val_loss", "train_loss_error", "val_loss_error", "bits_per_byte", "block_size")
_CHECKPOINT = re.compile(r"step-(\d{8,18})", re.ASCII)
LONGEST_RECORD_BYTES = 2**20
_FORMER_KEYS = frozenset("param_dtype offload tokenizer".split())  # always at their defaults


@dataclass(frozen=True)
class SavedCheckpoint:
    """A checkpoint folder, known by its name only; the trainer checks whether its content is complete."""

    step: int
    path: Path


@dataclass(frozen=True)
class Run:
    """Everything in a run folder, for readers."""

    path: Path
    config: Mapping[str, object]
    history: History  # every line ever written
    checkpoints: tuple[SavedCheckpoint, ...]  # by step

    @cached_property
    def records(self) -> tuple[Record, ...]:
        """The valid records: each step once, without what a resume replaced."""
        return each_step_once(self.history.records)

    @cached_property
    def steps(self) -> tuple[Step, ...]:
        return tuple(record for record in self.records if isinstance(record, Step))

    @cached_property
    def evals(self) -> tuple[Eval, ...]:
        return tuple(record for record in self.records if isinstance(record, Eval))

    @property
    def end(self) -> End | None:
        """How the run ended; None if it was killed or is still running."""
        return next((record for record in reversed(self.records) if isinstance(record, End)), None)

    @property
    def finished(self) -> bool:
        return self.end is not None and self.end.reason == "finished"

    @property
    def cut_off(self) -> bool:
        """Whether its process is gone and recorded no end, as far as this machine can tell."""
        return self.end is None and left_behind(self.path / LOCK)

    @property
    def imported(self) -> Checkpoint | None:
        """The checkpoint of imported weights that the run started from; None if it started with new weights."""
        saved = (record for record in self.records if isinstance(record, Checkpoint))
        return next((record for record in saved if record.reason == "imported"), None)

    @property
    def last_step(self) -> int:
        """The number of updates recorded; 0 before the first."""
        return self.steps[-1].step if self.steps else 0

    def to_pandas(self) -> pandas.DataFrame:
        """A table with one row per step, indexed by step: what the step recorded, and its evaluation.

        Unknown values are NaN: most steps have no evaluation, and step 0 has only an evaluation. Needs pandas.

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
    """A run folder that only this process writes to. Made by `create_run` and `resume_run`."""

    def __init__(self, path: Path, *, lock: Lock, config: Mapping[str, object]) -> None:
        self.path = path
        self.config = config
        self.on_note: Callable[[str], None] = lambda _: None  # gets what the user should know
        self._lock = lock
        with writing(path / RECORDS):
            self._records = os.open(path / RECORDS, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._closed = False

    def append(self, record: Record) -> None:
        """Add a record. It survives a crash of this process, and a power cut too, except for steps and readings of
        the card (for speed)."""
        line = to_line(record)
        with writing(self.path / RECORDS):
            self._restore_records()
            if not self._ends_in_newline():
                line = b"\n" + line  # the last line is damaged: without a newline this one would be lost too
            written = os.write(self._records, line)
            while written < len(line):  # a disk that fills up writes a part first; the next write fails
                written += os.write(self._records, line[written:])
            if not isinstance(record, Step | CardReading):
                os.fsync(self._records)

    def _restore_records(self) -> None:
        """Write the records file again if it was deleted or replaced: until now this process has it open, and whole.

        Where the folder itself is gone there is no place to write it: `follow` reports that before the next checkpoint.
        """
        place = self.path / RECORDS
        if os.fstat(self._records).st_nlink or self._is_at(self.path) or not held_here(self.path / LOCK):
            return
        os.lseek(self._records, 0, os.SEEK_SET)
        with os.fdopen(os.dup(self._records), "rb") as file:
            before = file.read()
        after = place.read_bytes() if place.is_file() else b""
        if before.startswith(after):  # deleted, or put back from an older copy
            write_atomically(place, before)
            self.on_note(f"{place} was deleted while the run trained: it was written again, with all records so far")
        else:
            self.on_note(f"{place} was replaced while the run trained: new records are added to what is there now")
        opened = os.open(place, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        os.close(self._records)
        self._records = opened

    def follow(self) -> bool:
        """Whether the folder was moved; if so, `path` is updated. MachineError if the folder is gone."""
        if self._is_at(self.path):
            return False
        place = Path(f"/proc/self/fd/{self._records}")  # Linux knows where an open file is
        moved = place.readlink().parent if place.is_symlink() else None
        if moved and self._is_at(moved):
            self.path = moved
            return True
        try:
            self.path.stat()  # somebody may have put another records file there
        except (FileNotFoundError, NotADirectoryError) as problem:
            raise MachineError(
                f"{self.path} is gone: it was deleted or moved while its run trained",
                why="a checkpoint saved there now would belong to no run",
                fix="put the folder back, then: onecard train --resume " + quote(str(self.path)),
                name="run-gone",
            ) from problem
        except OSError:  # the next write reports it
            pass
        return False

    def _is_at(self, path: Path) -> bool:
        try:
            return os.path.samestat((path / RECORDS).stat(), os.fstat(self._records))
        except OSError as problem:  # a disk that fails once does not say that it is not there
            return fault_behind(problem) is not None

    def _ends_in_newline(self) -> bool:
        size = os.lseek(self._records, 0, os.SEEK_END)
        if size == 0:
            return True
        os.lseek(self._records, size - 1, os.SEEK_SET)
        return os.read(self._records, 1) == b"\n"

    def write_config(self, config: Mapping[str, object]) -> None:
        """Replace config.json: a resume with changed settings does this."""
        write_atomically(self.path / CONFIG, (json.dumps(dict(config), indent=1, allow_nan=False) + "\n").encode())
        self.config = dict(config)

    def checkpoints(self) -> tuple[SavedCheckpoint, ...]:
        """The checkpoints that exist now, by step."""
        return checkpoints_in(self.path)

    def read(self) -> Run:
        """The run as a reader sees it now."""
        return load_run(self.path)

    def close(self, *, in_error: bool = False) -> None:
        """Let others write. After an error the lock file keeps its name, which shows that the run was cut off."""
        if not self._closed:
            self._closed = True
            os.close(self._records)
            self._lock.close(keep_name=in_error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        self.close(in_error=error is not None)


def check_new_run(path: Path) -> None:
    """Refuse a folder that `create_run` would refuse, or that cannot be written. Nothing is left there."""
    with writing(path):
        _refuse_for_new_run(path)
        refuse_in_use(path / LOCK)
        _refuse_checkpoints(path)
        made = [folder for folder in (path, *path.parents) if not folder.exists()]
        try:
            path.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=path):
                pass
        finally:
            for folder in made:
                with suppress(OSError):  # it could not be made, or another process uses it by now
                    folder.rmdir()


def create_run(path: Path, *, config: Mapping[str, object]) -> RunFolder:
    """A locked folder for a new run. A folder with a checkpoint is refused, because the checkpoint would be lost.

    If a folder is refused and does not belong to a run, nothing is written into it, not even the lock.
    """
    with writing(path):
        _refuse_for_new_run(path)
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


def _refuse_for_new_run(path: Path) -> None:
    if path.exists() and not path.is_dir():
        raise ConfigError(
            f"{path} is a file, but a run needs a folder",
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


def _refuse_checkpoints(path: Path) -> None:
    if saved := checkpoints_in(path):
        raise ConfigError(
            f"{path} holds a run already, saved at step {saved[-1].step:,}",
            why="starting again in the same folder would mix two runs and overwrite the checkpoints",
            fix=f"onecard train --resume {quote(str(path))}   (or choose another folder with --out_dir=PATH)",
            name="run-exists",
        )


def _refuse_lost_checkpoints(path: Path) -> None:
    """Refuse a run whose checkpoints are on a disk that is not mounted: it would start again and hide them."""
    place = path / CHECKPOINTS
    if place.is_symlink() and not place.exists():
        raise MachineError(
            f"{place} is a link to {place.readlink()}, which does not exist",
            why="the checkpoints of the run are stored there; the disk may not be mounted",
            fix=f"mount it, or remove the link: rm {quote(str(place))}",
            name="checkpoints-not-here",
        )


def resume_run(path: Path) -> RunFolder:
    """The locked folder of an existing run, with its config. It may have no checkpoint: see `checkpoints`.

    If config.json is damaged or missing, the settings come from the last start record.
    """
    _settings_of(path)  # before anything is written, even the lock: this may not be a run
    _refuse_lost_checkpoints(path)
    lock = Lock(path / LOCK)
    try:
        return RunFolder(path, lock=lock, config=_settings_of(path))
    except BaseException:
        lock.close()
        raise


def load_run(path: Path | str) -> Run:
    """The run in a folder (or in a records.jsonl). Damaged lines and a damaged config.json are skipped."""
    path = Path(path)
    folder = path.parent if path.name == RECORDS else path
    if not is_run(folder):
        raise _no_run(path)
    history = History(())
    try:
        with open_file(folder / RECORDS) as file:
            history = read_lines(pieces(file, longest_bytes=LONGEST_RECORD_BYTES))
    except FileNotFoundError:
        pass  # killed before its first record
    except OSError as problem:
        raise cannot_read(folder / RECORDS, problem) or ConfigError(
            f"{folder / RECORDS} cannot be read",
            why=f"the system says: {problem.strerror or problem}",
            fix=f"ls -l {quote(str(folder))}   (shows who may read it)",
            name="unreadable-run",
        ) from problem
    config = config_in(folder)
    stated = config if config is not None else _last_started(history)
    return Run(folder, stated or {}, history, checkpoints_in(folder))


def _last_started(history: History) -> dict[str, object] | None:
    """The settings in the last start record; None if there is no start record."""
    starts = (record for record in reversed(history.records) if isinstance(record, Start))
    return next((without_former_keys(record.config) for record in starts), None)


def is_run(path: Path) -> bool:
    """Whether a folder can be read as a run."""
    try:
        return (path / RECORDS).is_file() or _is_settings(config_in(path))
    except (OSError, ValueError) as problem:
        return unless_machine_failed(problem, False)


def runs_in(folder: Path) -> tuple[Path, ...]:
    """The run folders directly in `folder`, by name; only `folder` if it is a run itself."""
    if is_run(folder):
        return (folder,)
    try:
        return tuple(sorted(each for each in folder.iterdir() if is_run(each) and not is_half_written(each)))
    except OSError as problem:
        return unless_machine_failed(problem, ())


def checkpoints_in(path: Path) -> tuple[SavedCheckpoint, ...]:
    """The checkpoints of a run folder, by step. Folders with other names, such as half-written ones, do not count."""
    try:
        children = list((path / CHECKPOINTS).iterdir())
    except OSError as problem:
        return unless_machine_failed(problem, ())
    named = [(checkpoint_step(child.name), child) for child in children if child.is_dir()]
    saved = [SavedCheckpoint(step, child) for step, child in named if step is not None]
    return tuple(sorted(saved, key=lambda checkpoint: checkpoint.step))


def checkpoint_name(step: int) -> str:
    """The name of the folder of the checkpoint after `step` updates."""
    return f"step-{step:08d}"


def checkpoint_step(name: str) -> int | None:
    """The step of a checkpoint, from the name of its folder; None if the name is not a checkpoint's."""
    found = _CHECKPOINT.fullmatch(name)
    return int(found[1]) if found else None


def _settings_of(path: Path) -> dict[str, object]:
    """The settings of a run; ConfigError if there is no run, or its settings cannot be read."""
    if not _is_ours(path):
        raise _no_run(path)
    settings = config_in(path)
    if settings is None:
        settings = _last_started(load_run(path).history)
    if settings is None:
        problem = _config_problem(path)
        found = f"it {problem}; " if problem else ""
        raise ConfigError(
            f"{path / CONFIG} is {'damaged' if problem else 'missing'}",
            why=f"{found}it holds the settings of the run, and {RECORDS} has no start record to read them from",
            fix="restore a copy of it, or start a new run in another folder with --out_dir=PATH",
            name="damaged-run",
        )
    return settings


def config_in(path: Path) -> dict[str, object] | None:
    """The content of a folder's config.json; None if it is missing, not a JSON object of settings, or an empty one."""
    try:
        return _read_settings(path) or None
    except (OSError, ValueError) as problem:  # ValueError: not JSON, or a name that no file can have
        return unless_machine_failed(problem, None)


def without_former_keys(settings: Mapping[str, object]) -> dict[str, object]:
    """The settings of a run without keys that only earlier versions had."""
    no_recipe = ("recipe", None)  # as earlier versions said nanoGPT's
    return {key: value for key, value in settings.items() if key not in _FORMER_KEYS and (key, value) != no_recipe}


def _read_settings(path: Path) -> dict[str, object]:
    return without_former_keys(mapping_of(scalar)(read_object(path / CONFIG)))


def _config_problem(path: Path) -> str | None:
    """What is wrong with a folder's config.json, such as "is empty ({})"; None if there is no such file."""
    try:
        return "does not have the keys of a run" if _read_settings(path) else "is empty ({})"
    except BadJson as problem:
        return f"cannot be read ({problem})"
    except (OSError, ValueError) as problem:
        return unless_machine_failed(problem, None)


def is_config_of_run(path: Path) -> bool:
    """Whether a file is the config.json of a run."""
    return path.name == CONFIG and path.is_file() and is_run(path.parent)


def _is_ours(path: Path) -> bool:
    """Whether a folder certainly belongs to a run. Otherwise its config.json must not be overwritten."""
    return _holds_records(path) or _is_settings(config_in(path))


def _is_settings(config: Mapping[str, object] | None) -> bool:
    """Whether a config.json is a run's: it has all of nanoGPT's keys, some of ours, and no others."""
    if config is None:
        return False
    from onecard.config.schema import KEYS, NANOGPT_KEYS  # here only: pydantic is not needed if records decide it

    return NANOGPT_KEYS < config.keys() <= KEYS.keys()


def _holds_records(path: Path) -> bool:
    """Whether there is a records file that starts with a record or is still empty."""
    try:
        with open_file(path / RECORDS) as file:
            first = file.readline(LONGEST_RECORD_BYTES)
    except (OSError, ValueError) as problem:
        return unless_machine_failed(problem, False)
    return not first or holds_record(first)


def _no_run(path: Path) -> ConfigError:
    near = [run for folder in (path, path.parent) for run in runs_in(folder) if run != path]
    beside = f"; runs near it: {', '.join(run.name for run in near[:5])}" if near else ""
    why = f"a run is a folder with {CONFIG} and {RECORDS}"
    if problem := _config_problem(path):
        why = f"its {CONFIG} {problem}, and it has no {RECORDS} of a run"
    return ConfigError(
        f"there is no run in {path}",
        why=why + beside,
        fix=f"give the folder of a run, such as {near[0] if near else 'runs/default'}",
        name="no-such-run",
    )
