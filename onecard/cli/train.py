"""onecard train: check the config, the data and the folder, then hand over to the loop."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from onecard.cli import signals
from onecard.cli.files import PathType, check_writable, without_config
from onecard.cli.flags import Flag
from onecard.cli.library import KeyCommand, console, needs_torch
from onecard.cli.signals import INTERRUPTED
from onecard.cli.torchrun import as_one_of, tell
from onecard.errors import ConfigError, MachineError, OnecardError, UsageError
from onecard.inputs.before_run import check_data, check_keys, config_of, torch_environment
from onecard.inputs.config import config_named, folder_of, open_data, with_vocabulary
from onecard.inputs.preflight import checked, larger_default, on_cpu, place_of_run, predicted
from onecard.inputs.pretrained import check_vocabulary, pretrained, put
from onecard.inputs.resume import (
    as_it_runs,
    begun,
    changed_since,
    instead_of_anew,
    open_data_again,
    resume_command,
    resume_under,
    resumed_config,
    step_reached,
    where_it_stands,
)
from onecard.inputs.tokenizer import keep_tokenizer_in, tokenizer_of
from onecard.models.ranks import ranks_of_torchrun

if TYPE_CHECKING:
    from onecard.config.resolve import Resolved
    from onecard.config.schema import RunConfig
    from onecard.data.dataset import Dataset
    from onecard.plan.memory.predict import Memory
    from onecard.runs.folder import RunFolder
    from onecard.runs.records import End
    from onecard.train.memory_snapshot import MeasuredMemory
    from onecard.train.ranks import Joined

_READ_IT = "onecard sample reads its checkpoints"
_FILES = ("--profile", "--memory_snapshot")
Files = tuple[Path | None, Path | None]  # what these name


@click.command(cls=KeyCommand, short_help="Train: survives out-of-memory, loses nothing, resumes exactly.")
@click.argument("config", required=False, type=PathType())
@click.option("--resume", type=PathType(), metavar="RUN", help="Continue the run in this folder.")
@click.option("--continue", "go_on", is_flag=True, help="Start the run, or continue it if its folder is there.")
@click.option("--fit", is_flag=True, help="First fit the micro-batch to this card, at equal tokens per update.")
@click.option("--profile", type=PathType(), metavar="FILE", help="Write a trace of a few steps, for chrome://tracing.")
@click.option(
    "--memory_snapshot",
    type=PathType(),
    metavar="FILE",
    help="Write measured memory beside planned (JSON), and torch's own.",
)
@click.pass_obj
def train(
    flags: list[Flag],
    /,
    config: str | None,
    resume: str | None,
    go_on: bool,
    fit: bool,
    profile: str | None,
    memory_snapshot: str | None,
) -> int:
    """\b
    Example:
      onecard train train_fineweb.py --batch_size=8 --out_dir=runs/first

    Trains a nanoGPT config as it is. Without a config it trains a small GPT on Python's own source, with no download.

    When memory runs out it halves the micro-batch and continues. Ctrl-C saves and stops; --resume RUN continues.
    """
    needs_torch("planning works without torch, training does not")
    from onecard.config.resolve import flag_values
    from onecard.data.home import home_note
    from onecard.report.messages import print_warnings

    if resume and (config or fit or go_on):
        in_vain = config or ("--fit" if fit else "--continue")
        raise _ignored(f"--resume {resume}", in_vain, Path(resume), flag_values(flags))
    if memory_snapshot and Path(memory_snapshot).suffix == ".pickle":
        raise UsageError(
            f"--memory_snapshot {memory_snapshot} has the ending of torch's own file",
            why="the parts are written as JSON, with torch's own snapshot beside them in a .pickle file",
            fix=f"--memory_snapshot {Path(memory_snapshot).with_suffix('.json')}",
        )
    files = Path(profile) if profile else None, Path(memory_snapshot) if memory_snapshot else None
    ranks = ranks_of_torchrun(os.environ)
    for option, file in zip(_FILES, files, strict=True):
        if file and (ranks is None or ranks.writes):
            check_writable(file, option=option)
    if resume:
        _check_same_run(Path(resume), flag_values(flags))
    resolved = None if resume else config_named(config, flags, otherwise=without_config())
    if resolved and resolved.config.init_from == "resume" and fit:
        raise _ignored("init_from=resume", "--fit", folder_of(resolved), flag_values(flags))

    def go(processes: Joined | None) -> int:
        print_warnings(filter(None, [home_note(os.environ)]), console(stderr=True))
        if resolved is None:
            asked = flag_values(flags)
            return _go_on(Path(str(resume)), asked, {key: f"--{key}" for key in asked}, files, processes)
        folder = folder_of(resolved)
        if resolved.config.init_from == "resume":
            print_warnings(resolved.warnings, console(stderr=True))
            return _go_on(folder, resolved.set_by_user, resolved.origins, files, processes)
        if go_on and begun(folder):
            print_warnings(resolved.warnings, console(stderr=True))
            return _go_on(folder, changed_since(folder, resolved, fit=fit), resolved.origins, files, processes)
        return _begin(resolved, config, flags, fit=fit, files=files, processes=processes)

    if ranks is None:
        return go(None)
    if resolved:
        os.environ.update(torch_environment(resolved.config, os.environ))
    said = resolved.config.model_dump() if resolved else {"--resume": resume, **flag_values(flags)}
    return as_one_of(ranks, said, go)


def _check_same_run(run: Path, asked: Mapping[str, object]) -> None:
    """Refuse flags beside --resume that name another run."""
    out_dir, init_from = asked.get("out_dir", str(run)), asked.get("init_from", "resume")
    if Path(str(out_dir)).resolve() != run.resolve():
        others = [quote(f"--{key}={value}") for key, value in asked.items() if key != "init_from"]
        new = " ".join(["onecard train", quote(str(run)), *others])
        also = f"   (or a new run with its settings: {new})"
        raise _ignored(f"--resume {run}", f"--out_dir={out_dir}", run, asked, also=also)
    if init_from != "resume":
        raise _ignored(f"--resume {run}", f"--init_from={init_from}", run, asked)


def _ignored(said: str, in_vain: str, run: Path, asked: Mapping[str, object], *, also: str = "") -> UsageError:
    others = [quote(f"--{key}={value}") for key, value in asked.items() if key not in ("out_dir", "init_from")]
    return UsageError(
        f"{said} continues that run, in its folder and with its config",
        why=f"{in_vain} would be ignored",
        fix=" ".join(["onecard train --resume", quote(str(run)), *others]) + also,
    )


def _begin(
    resolved: Resolved,
    config: str | None,
    flags: list[Flag],
    *,
    fit: bool,
    files: Files,
    processes: Joined | None,
) -> int:
    """Train a new run."""
    from onecard.config.command import train_command
    from onecard.report.messages import print_findings, print_warnings
    from onecard.runs.folder import create_run

    path = folder_of(resolved)
    resolved = replace(resolved, config=resolved.config.replace({"out_dir": str(path)}))  # as config.json will say
    check_keys(resolved.config)
    options = _options(files)
    again = _again(config, flags, [*(["--fit"] if fit else []), *options])
    here = resolved.config.device.startswith(("auto", "cpu")) or place_of_run(resolved.config)
    if not here:
        _device(resolved.config)  # a missing one is reported first: without it neither folder nor data are of use
    _check_folder(path, resolved, fit=fit, again=again, options=options)
    device = _device(resolved.config)
    insist = train_command(config, {**dict(flags), "device": "cpu"}, trainer="onecard")
    try:
        dataset = open_data(resolved.config)
    except ConfigError:
        if device == "cpu":
            on_cpu(resolved.config, insist=insist)  # as above
        raise
    resolved, model = pretrained(resolved)
    notes = [*model.snapshot.notes, *check_vocabulary(model, dataset)] if model else []
    print_warnings([*resolved.warnings, *notes], console(stderr=True))
    run_config = with_vocabulary(resolved, dataset.model_vocab_size)
    if config is None and device == "cuda":
        run_config, said = larger_default(
            run_config, flags, train_tokens=len(dataset.train), val_tokens=len(dataset.val)
        )
        _say([said] if said else [])
    planned = run_config if device == "cuda" else run_config.replace({"device": device})  # no plan of a card's memory
    fitted, memory = checked(planned, fit=fit, source=config, typed=flags, ranks=processes.ranks if processes else None)
    run_config = fitted.replace({"device": run_config.device})
    if processes:
        chosen = fit or config is None  # here, not by the user
        run_config = processes.ranks.divided(run_config) if chosen else run_config
        processes.ranks.check(run_config)
    takes = [on_cpu(run_config, insist=insist)] if device == "cpu" else []  # refused before there is a folder
    print_findings(check_data(run_config, dataset), console(stderr=True))
    with create_run(path, config=run_config.model_dump()) as folder:
        if model:  # weights from elsewhere become the checkpoint of step 0, and the run continues from it
            put(folder, model.snapshot, run_config, source=model.source, data_fingerprint=dataset.fingerprint)
        keep_tokenizer_in(folder.path, dataset)
        _say(takes)
        return _train(
            run_config, folder, dataset, resume=model is not None, files=files, memory=memory, processes=processes
        )


def _device(config: RunConfig) -> str:
    """`cuda`, `cpu` or `mps`: where the run will train. Imports torch, after setting the environment it reads then."""
    os.environ.update(torch_environment(config, os.environ))
    from onecard.train.device import choose_device

    return choose_device(config).type


def _say(lines: Iterable[str]) -> None:
    for line in lines:
        console(stderr=True).print(line, soft_wrap=True, markup=False)


def _check_folder(path: Path, resolved: Resolved, *, fit: bool, again: str, options: list[str]) -> None:
    """Refuse a folder where no new run can begin; if it holds a run, with the command that does what `again` asked."""
    from onecard.runs.folder import check_new_run, load_run

    try:
        check_new_run(path)
    except ConfigError as problem:
        if problem.name != "run-exists":
            raise
        asked = resolved.config
        with suppress(ConfigError, ValueError):  # what is in the folder cannot be read, or began from other weights
            asked = config_of(path, load_run(path).config).replace(changed_since(path, resolved, fit=fit))
        raise instead_of_anew(problem, path, asked, again=again, options=options) from problem


def _again(config: str | None, flags: list[Flag], options: list[str]) -> str:
    """The command as typed, without its out_dir."""
    keys = [quote(f"--{key}={text}") for key, text in flags if key != "out_dir"]
    return " ".join(["onecard train", *([quote(config)] if config else []), *options, *keys])


def _options(files: Files) -> list[str]:
    """The options that name files, as typed."""
    return [f"{option} {quote(str(file))}" for option, file in zip(_FILES, files, strict=True) if file]


def _go_on(
    path: Path, asked: Mapping[str, object], origins: Mapping[str, str], files: Files, processes: Joined | None
) -> int:
    """Continue the run in a folder, with the settings asked for."""
    from onecard.report.messages import print_findings, print_warnings

    with _folder_to_resume(path) as folder:
        run = folder.read()
        os.environ.update(torch_environment(config_of(run.path, run.config), os.environ))  # before importing torch
        config, notes = resumed_config(run, asked, origins)
        print_warnings(notes, console(stderr=True))
        check_keys(config)
        if processes:
            processes.ranks.check(config, resumed=True)
        done, words = where_it_stands(run, config)
        _say(words)
        if done:
            return 0
        device, step, ranks = _device(config), step_reached(run), processes.ranks if processes else None
        dataset, notes, findings = open_data_again(config, run)
        print_warnings(notes, console(stderr=True))
        print_findings(findings, console(stderr=True))
        if run.imported:  # weights may have come without a tokenizer
            keep_tokenizer_in(folder.path, dataset)
        since = run.imported.step if run.imported else 0
        memory = predicted(as_it_runs(config, run), ranks) if device == "cuda" else None
        if device == "cpu":
            _say([on_cpu(config, step=step, insist=resume_under(config.replace({"device": "cpu"}), run))])
        return _train(
            config, folder, dataset, resume=True, files=files, memory=memory, processes=processes, timed_from=since
        )


def _folder_to_resume(path: Path) -> RunFolder:
    """The folder of the run to continue; where it holds another program's model, the error says how to import it."""
    from onecard.runs.folder import resume_run

    try:
        return resume_run(path)
    except ConfigError as problem:
        if problem.name != "no-such-run" or not os.path.isdir(path):  # noqa: PTH112  # is_dir raises for a long name
            raise
        from onecard.train.interchange import holds_model

        if not holds_model(path):
            raise
        raise ConfigError(
            problem.what,
            why="it holds a model of another program: nanoGPT's ckpt.pt, or a Hugging Face folder",
            fix=f"onecard import {quote(str(path))}   (makes it a run, which can be resumed)",
            name=problem.name,
        ) from problem


def _train(
    config: RunConfig,
    folder: RunFolder,
    dataset: Dataset,
    *,
    resume: bool,
    files: Files,
    memory: Memory | None,
    processes: Joined | None,
    timed_from: int = 0,
) -> int:
    from onecard.models.ways import shards
    from onecard.report.console import outlive_disk
    from onecard.report.messages import print_warnings
    from onecard.report.training import TrainingDisplay
    from onecard.runs.folder import RECORDS
    from onecard.runs.records import Record
    from onecard.train.loop import train as run_loop
    from onecard.train.progress_text import ProgressText
    from onecard.train.ranks import ALONE
    from onecard.train.trackers import Trackers

    profile, snapshot = files
    if processes:
        tell(processes, config, dataset)
        ranks = processes.ranks
        share = f"{ranks.sequences_per_step(config):,} of the {config.sequences_per_step:,} sequences of an update"
        _say([f"{ranks.world_size:,} process{'es' * (ranks.world_size > 1)}: each reads {share}"])
    signals.check()  # torch has been imported: from here on nothing swallows an exception

    def warn(words: str) -> None:
        print_warnings([words], console(stderr=True))

    def go_on_unseen(problem: OSError) -> None:
        warn(
            f"standard output cannot be written any more ({problem.strerror}): the run continues, and its records "
            f"are in {folder.path / RECORDS}"
        )

    def progress_text() -> ProgressText | None:
        if not config.sample_interval:
            return None
        if processes and shards(processes.ranks.as_run(config)):
            warn(f"sample_interval={config.sample_interval} writes no texts: no card has the whole model; {_READ_IT}")
            return None
        try:
            return ProgressText(config, tokenizer_of(folder.path, config))
        except OnecardError as problem:
            warn(f"sample_interval={config.sample_interval} writes no texts: {problem.what}; {problem.fix}")
            return None

    screen = console()
    outlive_disk(screen, go_on_unseen)
    shown = TrainingDisplay(config, screen, timed_from=timed_from)
    try:
        with shown as display, Trackers(config, folder.path, warn) as trackers:

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
                on_interrupt=_say_at_once,
                on_progress=display.progress,
                profile=profile,
                memory_snapshot=snapshot,
                predicted_process_bytes=memory.process_bytes if memory else None,
                progress_text=progress_text(),
                processes=processes or ALONE,
            )
    except KeyboardInterrupt:
        _say_what_is_saved(folder)
        raise
    if profile:
        missing = finished.without_trace
        said = f"{profile} was not written: {missing}" if missing else f"wrote {profile}, for chrome://tracing"
        console(stderr=True).print(said, soft_wrap=True)
    if snapshot:
        _write_snapshot(snapshot, finished.measured_memory, memory)
    return _farewell(finished.end, folder.path, config)


def _say_at_once(words: str) -> None:
    """Write a line to standard error from inside a signal handler, where no buffered stream may be used."""
    with suppress(OSError):  # standard error is closed
        line = "\n" * sys.stderr.isatty()  # the cursor may be behind ^C or the live line, which is redrawn below
        os.write(sys.stderr.fileno(), f"{line}{words}\n".encode())


def _say_what_is_saved(folder: RunFolder) -> None:
    """Say what is saved of a run that was stopped at once."""
    saved = folder.checkpoints()
    talk = console(stderr=True)
    if saved:
        talk.print(f"stopped at once; the newest checkpoint is of step {saved[-1].step:,}", soft_wrap=True)
        talk.print(_to_go_on(folder.path), soft_wrap=True)
    else:
        talk.print("stopped at once; there is no checkpoint yet, so nothing is saved", soft_wrap=True)


def _to_go_on(path: Path) -> str:
    if ranks_of_torchrun(os.environ):
        return "to continue: the same torchrun command, with --continue"
    return f"to continue: onecard train --resume {quote(str(path))}"


def _write_snapshot(path: Path, measured: MeasuredMemory | None, planned: Memory | None) -> None:
    from onecard.cli.files import write_text
    from onecard.report.memory_snapshot import snapshot_json
    from onecard.train.memory_snapshot import viz_file

    talk = console(stderr=True)
    if measured is None:
        why = "the run ended before its third update" if planned else "only a card's memory can be measured"
        talk.print(f"{path} was not written: {why}", soft_wrap=True)
        return
    found = snapshot_json(measured.parts, reserved_bytes=measured.reserved_bytes, planned=planned)
    write_text(path, json.dumps(found, indent=1) + "\n", option="--memory_snapshot")
    talk.print(f"wrote {path}, and {viz_file(path)} for https://pytorch.org/memory_viz", soft_wrap=True)


def _farewell(end: End, path: Path, config: RunConfig) -> int:
    from onecard.runs.folder import CHECKPOINTS
    from onecard.train.checkpoint import latest_good

    if end.reason == "out-of-memory":
        raise _out_of_memory(end.step, path, config)
    if end.reason == "diverged":
        newest = latest_good(path / CHECKPOINTS).path
        kept = f"the newest checkpoint is {newest.name}" if newest else "there is no checkpoint yet"
        raise ConfigError(
            f"the loss is NaN or infinite since step {_last_number(path) + 1:,}",
            why=f"the weights have overflowed, and no further update can fix that; {kept}",
            fix=f"start a new run with a lower --learning_rate; onecard doctor {quote(str(path))} says what led to it",
            name="diverged",
        )
    if end.reason == "interrupted":
        console(stderr=True).print(_to_go_on(path), soft_wrap=True)
        return INTERRUPTED
    if end.reason == "max_hours":
        console(stderr=True).print(_to_go_on(path), soft_wrap=True)
    worse = end.reason == "stop_after_worse"
    if worse:
        console(stderr=True).print(f"{_to_go_on(path)} --stop_after_worse=0", soft_wrap=True)
    if latest_good(path / CHECKPOINTS).path:
        commands = [*_sampling(path, config, best=worse), f"onecard doctor {quote(str(path))}   (what could be better)"]
        console(stderr=True).print("next: " + "\n      ".join(commands), soft_wrap=True, markup=False)
    return 0


def _out_of_memory(step: int, path: Path, config: RunConfig) -> MachineError:
    """The error of a run in which not even one sequence fits, with what may still help."""
    from onecard.runs.folder import load_run
    from onecard.runs.records import Oom

    run = load_run(path)
    in_evaluation = next((r.where == "eval" for r in reversed(run.records) if isinstance(r, Oom)), False)
    if in_evaluation or config.grad_checkpoint == "full":
        fix = f"free memory, then: {resume_command(run)}   (or plan a smaller model: onecard plan --fit)"
    else:
        less = resume_command(run, {"grad_checkpoint": "full"})
        fix = f"{less}   (slower, but keeps less in memory; or free memory and resume without it)"
    what = "evaluating" if in_evaluation else "training on"
    return MachineError(
        f"{what} one sequence at a time does not fit in memory; the run is saved at step {step:,}",
        why="the weights, the optimizer and one sequence's activations need more memory than is free",
        fix=fix,
        name="out-of-memory",
    )


def _sampling(path: Path, config: RunConfig, *, best: bool) -> list[str]:
    """What samples text from a run's best checkpoint or newest; nothing where its tokens cannot become text."""
    from onecard.data.stdlib import NAME as EMBEDDED
    from onecard.inputs.tokenizer import tokenizer_of

    try:
        tokenizer_of(path, config)
    except OnecardError:
        return []
    prompt = ' --prompt "def "' if config.dataset == EMBEDDED else ""  # only that data is known to be Python
    which = " --best" * best
    return [f"onecard sample {quote(str(path))}{which}{prompt}   (text from it)"]


def _last_number(path: Path) -> int:
    """The last step of a run with a finite loss; 0 if there was none."""
    from onecard.runs.folder import load_run

    return max((step.step for step in load_run(path).steps if math.isfinite(step.loss)), default=0)
