"""onecard train: settle the config, the data and the folder, then hand over to the loop."""

from __future__ import annotations

import json
import os
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from onecard.cli.flags import Flag
from onecard.cli.import_run import put
from onecard.cli.library import INTERRUPTED, KeyCommand, console, needs_torch
from onecard.cli.plan import read_config
from onecard.cli.preflight import checked, larger_default, predicted
from onecard.cli.pretrained import pretrained
from onecard.cli.settle import check_run, open_data, torch_environment, with_vocabulary
from onecard.errors import ConfigError, MachineError, UsageError

if TYPE_CHECKING:
    from onecard.config.resolve import Resolved
    from onecard.config.schema import RunConfig
    from onecard.data.dataset import Dataset
    from onecard.plan.memory.predict import Memory
    from onecard.runs.folder import RunFolder
    from onecard.runs.records import End
    from onecard.train.memory_snapshot import MeasuredMemory

# What may change between two parts of one run (the micro-batch at equal tokens per update, checked apart).
RESUMABLE = frozenset(
    "max_iters lr_decay_iters eval_interval log_interval checkpoint_interval keep_checkpoints max_hours "
    "loggers log_style batch_size gradient_accumulation_steps".split()
)


@click.command(cls=KeyCommand, short_help="Train: survives out-of-memory, loses nothing, resumes exactly.")
@click.argument("config", required=False)
@click.option("--resume", metavar="RUN", help="Go on with the run in this folder.")
@click.option("--fit", is_flag=True, help="First fit the micro-batch to this card, at equal tokens per update.")
@click.option("--profile", metavar="FILE", help="Write a trace of a few steps, for chrome://tracing.")
@click.option("--memory_snapshot", metavar="FILE", help="Write measured memory beside planned (JSON), and torch's own.")
@click.pass_obj
def train(
    flags: list[Flag],
    /,
    config: str | None,
    resume: str | None,
    fit: bool,
    profile: str | None,
    memory_snapshot: str | None,
) -> int:
    """\b
    Example:
      onecard train train_fineweb.py --batch_size=8 --out_dir=runs/first

    Trains a nanoGPT config as it is; without one, a small GPT on Python's own source, with no download.

    Out of memory halves the micro-batch and goes on; Ctrl-C saves and stops; --resume RUN goes on where it stopped.
    """
    needs_torch("planning needs none, training does")
    from onecard.report.talk import print_warnings

    if resume and (config or fit):
        raise UsageError(
            f"--resume {resume} goes on with the config of that run",
            why=f"{config or '--fit'} would be ignored",
            fix=f"onecard train --resume {quote(resume)}",
        )
    if memory_snapshot and Path(memory_snapshot).suffix == ".pickle":
        raise UsageError(
            f"--memory_snapshot {memory_snapshot} is torch's own file",
            why="the parts are written as JSON, and torch's snapshot beside them with the ending .pickle",
            fix=f"--memory_snapshot {Path(memory_snapshot).with_suffix('.json')}",
        )
    resolved = read_config(config, flags)
    if resolved.config.init_from == "resume" and resume is None:
        resume = resolved.config.out_dir
    settled, folder = _resumed(Path(resume), flags) if resume else (None, None)
    if folder and settled and _is_finished(folder, settled):
        folder.close()
        return 0
    run_config = settled or resolved.config
    os.environ.update(torch_environment(run_config, os.environ))
    dataset = open_data(run_config)
    model, memory = None, predicted(run_config) if folder else None
    if folder is None:
        resolved, model = pretrained(resolved)
        print_warnings([*resolved.warnings, *(model.snapshot.notes if model else ())], console(stderr=True))
        run_config = with_vocabulary(resolved, dataset)
        if config is None:
            run_config = larger_default(run_config, flags, train_tokens=len(dataset.train))
        run_config, memory = checked(run_config, fit=fit, source=config, typed=flags)
        check_run(run_config, dataset)
        folder = _new_folder(run_config, resolved)
    with folder:
        if model:  # weights from elsewhere become the checkpoint of step 0, and the run goes on from that
            put(folder, model.snapshot, run_config, source=model.source, data_fingerprint=dataset.fingerprint)
        files = Path(profile) if profile else None, Path(memory_snapshot) if memory_snapshot else None
        return _train(run_config, folder, dataset, resume=bool(resume or model), files=files, memory=memory)


def _is_finished(folder: RunFolder, config: RunConfig) -> bool:
    """Whether there is nothing left to do; says so."""
    run = folder.read()
    if not run.finished or run.last_step < config.max_iters:
        return False
    talk = console(stderr=True)
    talk.print(f"{folder.path} is finished: step {run.last_step:,} of {config.max_iters:,}", soft_wrap=True)
    longer = 2 * max(config.max_iters, run.last_step)
    talk.print(
        f"to train longer: onecard train --resume {quote(str(folder.path))} --max_iters={longer}", soft_wrap=True
    )
    return True


def _train(
    config: RunConfig,
    folder: RunFolder,
    dataset: Dataset,
    *,
    resume: bool,
    files: tuple[Path | None, Path | None],
    memory: Memory | None,
) -> int:
    from onecard.report.talk import print_warnings
    from onecard.report.training import TrainingDisplay
    from onecard.runs.records import Record
    from onecard.train.loop import train as run_loop
    from onecard.train.trackers import Trackers

    profile, snapshot = files

    def warn(words: str) -> None:
        print_warnings([words], console(stderr=True))

    with TrainingDisplay(config, console()) as display, Trackers(config, folder.path, warn) as trackers:

        def on_record(record: Record) -> None:
            display(record)
            trackers(record)

        finished = run_loop(
            config,
            folder,
            dataset,
            resume=resume,
            on_record=on_record,
            on_note=warn,
            profile=profile,
            memory_snapshot=snapshot,
            predicted_process_bytes=memory.process_bytes if memory else None,
        )
    if snapshot:
        _write_snapshot(snapshot, finished.measured_memory, memory)
    return _farewell(finished.end, folder.path)


def _write_snapshot(path: Path, measured: MeasuredMemory | None, planned: Memory | None) -> None:
    from onecard.cli.files import write_text
    from onecard.report.snapshot import snapshot_json
    from onecard.train.memory_snapshot import viz_file

    talk = console(stderr=True)
    if measured is None:
        why = "the run ended before its third update" if planned else "only a card's memory can be looked at"
        talk.print(f"{path} was not written: {why}", soft_wrap=True)
        return
    found = snapshot_json(measured.parts, reserved_bytes=measured.reserved_bytes, planned=planned)
    write_text(path, json.dumps(found, indent=1) + "\n", option="--memory_snapshot")
    talk.print(f"wrote {path}, and {viz_file(path)} for https://pytorch.org/memory_viz", soft_wrap=True)


def _farewell(end: End, path: Path) -> int:
    from onecard.runs.folder import CHECKPOINTS
    from onecard.train.checkpoint import latest_good
    from onecard.train.loop import PATIENCE

    if end.reason == "out-of-memory":
        raise MachineError(
            f"one sequence at a time does not fit; the run is saved at step {end.step:,}",
            why="the weights, the optimizer and one sequence's activations need more memory than there is",
            fix=f"free memory and type: onecard train --resume {path}   (or plan a smaller model: onecard plan --fit)",
            name="out-of-memory",
        )
    if end.reason == "diverged":
        newest = latest_good(path / CHECKPOINTS).path
        kept = f"the newest checkpoint is {newest.name}" if newest else "there is no checkpoint yet"
        raise ConfigError(
            f"the loss is no number any more, since about step {end.step - PATIENCE:,}",
            why=f"the weights have overflowed, which no further step can mend; {kept}",
            fix=f"a new run with a lower --learning_rate; onecard doctor {quote(str(path))} says what led to it",
            name="diverged",
        )
    if end.reason == "interrupted":
        console(stderr=True).print(f"to go on: onecard train --resume {quote(str(path))}", soft_wrap=True)
        return INTERRUPTED
    talk = console(stderr=True)
    if not latest_good(path / CHECKPOINTS).path:
        return 0
    talk.print(f'next: onecard sample {quote(str(path))} --prompt "def "   (text from it)', soft_wrap=True)
    talk.print(f"      onecard doctor {quote(str(path))}   (what could be better)", soft_wrap=True)
    return 0


def _resumed(path: Path, flags: list[Flag]) -> tuple[RunConfig, RunFolder]:
    """The config and the locked folder of a run to go on with, under the changes that are allowed."""
    from onecard.config.resolve import checked
    from onecard.config.schema import KEYS
    from onecard.report.talk import print_warnings
    from onecard.runs.folder import resume_run
    from onecard.train.trackers import logger_names

    folder = resume_run(path)
    try:
        known = {key: value for key, value in folder.config.items() if key in KEYS}
        before = checked(known, dict.fromkeys(KEYS, str(path / "config.json")))
        after = _changed(before, flags, path)
        logger_names(after)  # an unknown one is refused before anything is written
        print_warnings(_schedule_changes(before, after, folder.read().last_step), console(stderr=True))
        folder.write_config(after.model_dump())
    except BaseException:
        folder.close()
        raise
    return after, folder


def _schedule_changes(before: RunConfig, after: RunConfig, step: int) -> list[str]:
    """What a longer or shorter run does to the learning rate, in words."""
    from onecard.plan.schedule import learning_rate

    was, now = learning_rate(before, step), learning_rate(after, step)
    found = []
    if abs(now - was) > 0.01 * was:
        found.append(f"the learning rate goes from {was:.2g} to {now:.2g} at step {step:,}: the schedule has changed")
    if after.decay_lr and after.max_iters > max(after.lr_decay_iters, before.max_iters):
        found.append(
            f"from step {after.lr_decay_iters:,} on the learning rate stays at min_lr={after.min_lr:.2g}; "
            f"to decay to the end: --lr_decay_iters={after.max_iters}"
        )
    return found


def _changed(before: RunConfig, flags: list[Flag], path: Path) -> RunConfig:
    from onecard.config.resolve import checked, flag_values
    from onecard.config.schema import RunConfig

    wanted = {key: value for key, value in flag_values(flags).items() if key not in ("init_from", "out_dir")}
    origins = dict.fromkeys(RunConfig.model_fields, f"{path}") | {key: f"--{key}" for key in wanted}
    after = checked({**before.model_dump(), **wanted}, origins)
    refused = [key for key in wanted if getattr(after, key) != getattr(before, key) and key not in RESUMABLE]
    if after.tokens_per_step != before.tokens_per_step:
        raise _other_update(before, after, path)
    if refused:
        now = ", ".join(f"{key}={getattr(after, key)} (was {getattr(before, key)})" for key in dict.fromkeys(refused))
        raise ConfigError(
            f"a resumed run cannot change {now}",
            why="its weights, data order or records would no longer be of one run",
            fix=f"onecard train --resume {path}   (or start a new run with --out_dir=PATH)",
            name="resume-mismatch",
        )
    return after


def _other_update(before: RunConfig, after: RunConfig, path: Path) -> ConfigError:
    whole, rest = divmod(before.sequences_per_step, after.batch_size)
    fix = f"onecard train --resume {quote(str(path))}"
    if not rest:
        fix += f" --batch_size={after.batch_size} --gradient_accumulation_steps={whole}"
    return ConfigError(
        f"a resumed run cannot go from {before.sequences_per_step} sequences per update to {after.sequences_per_step}",
        why="its data order and its steps would no longer be of one run; another micro-batch at equal tokens is fine",
        fix=fix,
        name="resume-mismatch",
    )


def _new_folder(config: RunConfig, resolved: Resolved) -> RunFolder:
    """nanoGPT's out_dir where it is set; otherwise runs/ and the config's name."""
    from onecard.runs.folder import create_run

    name = Path(resolved.source or "default").stem.replace(" ", "-")
    path = Path("runs") / name if resolved.origins["out_dir"] == "default" else Path(config.out_dir)
    return create_run(path, config=config.model_dump())
