"""Going on with a run: what may change, what that does, and whether there is anything left to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from onecard.ask.config import open_data
from onecard.ask.settle import check_run, config_of
from onecard.errors import ConfigError

if TYPE_CHECKING:
    from onecard.config.schema import RunConfig
    from onecard.data.dataset import Dataset
    from onecard.findings import Finding
    from onecard.runs.folder import Run

# What may change between two parts of one run (the micro-batch at equal tokens per update, and the dataset where its
# token files are the same or the run had none yet: both are checked apart).
RESUMABLE = frozenset(
    "max_iters lr_decay_iters eval_interval log_interval checkpoint_interval keep_checkpoints max_hours "
    "loggers wandb_log wandb_project wandb_run_name log_style device batch_size gradient_accumulation_steps".split()
)
_MICRO_BATCH = ("batch_size", "gradient_accumulation_steps")
_SHOWN_CHANGES = 3
_NOT_ASKED = ("init_from", "out_dir")  # these say that a run is gone on with, and where


def resumed_config(run: Run, asked: Mapping[str, object], origins: Mapping[str, str]) -> tuple[RunConfig, list[str]]:
    """The config to go on with, the checkpoint's under config.json under what was asked for, and what that does.

    What config.json says otherwise than the checkpoint was edited, and counts as typed. ConfigError for what must not
    change. `origins` says where the values asked for came from.
    """
    from onecard.config.resolve import checked
    from onecard.config.schema import KEYS
    from onecard.runs.folder import CHECKPOINTS, CONFIG, config_in
    from onecard.train.checkpoint import made_under
    from onecard.train.trackers import logger_names

    now = config_of(run.path, run.config)
    made = made_under(run.path / CHECKPOINTS)
    fixed = {key: made.config[key] for key in KEYS if made and key in made.config and key not in _NOT_ASKED}
    before = config_of(run.path, {**now.model_dump(), **fixed})
    typed = {key: value for key, value in asked.items() if key not in _NOT_ASKED}
    edited = {key: getattr(now, key) for key in KEYS if key not in typed and getattr(now, key) != getattr(before, key)}
    sources = dict.fromkeys(KEYS, str(run.path / CONFIG)) | {key: origins[key] for key in typed}
    after = checked({**before.model_dump(), **edited, **typed}, sources)
    moved = made is not None and _moved(before, after, run, fingerprint=made.data_fingerprint)
    resumable = RESUMABLE | {"dataset"} if moved else RESUMABLE
    refused = [key for key in (*edited, *typed) if getattr(after, key) != getattr(before, key) and key not in resumable]
    in_file = any(key in edited for key in refused)
    fixing = {**_kept(before, after, run, resumable), **_undone(before, now, resumable)}
    _check(before, after, run, refused=refused, in_file=in_file, fixing=fixing)
    logger_names(after)  # an unknown one is refused before anything is written
    had_data = made is not None and made.data_fingerprint is not None
    said = [*_other_place(before, after, had_data=had_data), *_schedule_changes(before, after, run.last_step)]
    if made and edited:
        said.insert(0, f"{run.path / CONFIG} has changed since {made.name}: {_changes(before, after, edited)}")
    if config_in(run.path) is None:
        said.insert(0, f"{run.path / CONFIG} is damaged or gone: the settings are those of the last start record")
    return after, said


def as_it_runs(config: RunConfig, run: Run) -> RunConfig:
    """The config with the micro-batch that a lack of memory has left the run, unless another is asked for."""
    from onecard.runs.folder import CHECKPOINTS
    from onecard.train.checkpoint import made_under

    made = made_under(run.path / CHECKPOINTS)
    asked, left = (made and made.micro_batches) or (config.batch_size, config.batch_size)
    if asked != config.batch_size or left == asked:
        return config
    micros = -(-config.sequences_per_step // left)
    return config.replace({"batch_size": left, "gradient_accumulation_steps": micros})


def where_it_stands(run: Run, config: RunConfig) -> tuple[bool, list[str]]:
    """Whether there is nothing left to do, and words about that."""
    if not run.checkpoints and run.last_step:  # a run of no updates never had any
        return False, [f"{_without_checkpoints(run)}: it begins again at step 0"]
    if not run.finished or run.last_step < config.max_iters:
        return False, []
    longer = {**_typed(run, config), "max_iters": 2 * run.last_step or max(1, config.lr_decay_iters)}
    return True, [
        f"{run.path} is finished: step {run.last_step:,} of {config.max_iters:,}",
        f"to train longer: {_resume_command(run, longer)}",
    ]


def _without_checkpoints(run: Run) -> str:
    """What has become of a run that has updates and no checkpoint."""
    from onecard.runs.records import Checkpoint

    if not any(isinstance(record, Checkpoint) for record in run.records):
        return f"{run.path} was cut off at step {run.last_step:,}, before its first checkpoint"
    reached = "was finished" if run.finished else f"had reached step {run.last_step:,}"
    return f"{run.path} {reached}, and its checkpoints are gone"


def instead_of_anew(
    problem: ConfigError, path: Path, asked: RunConfig, *, again: str, options: Sequence[str] = ()
) -> ConfigError:
    """The error for a new run where there is one already, with the command that does what was asked.

    That is to go on with it where it would be the same run under `asked` and has something left to do; otherwise the
    command that was typed `again`, in a folder of its own. `options` are those of `again` that a resume takes too.
    """
    from onecard.runs.files import free_path
    from onecard.runs.folder import load_run

    free = quote(f"--out_dir={free_path(path)}")
    try:
        run = load_run(path)
        now = config_of(path, run.config)
    except ConfigError:  # it cannot be gone on with as it is
        return ConfigError(problem.what, why=problem.why, fix=f"{again} {free}", name=problem.name)
    why, kept, reached = problem.why, _kept(now, asked, run, RESUMABLE), _step_reached(run)
    refused = [key for key in _typed(run, asked) if key not in {*kept, "max_iters", "out_dir"}]
    if refused:
        more = ", …" if len(refused) > _SHOWN_CHANGES else ""
        changes = _changes(now, asked, refused[:_SHOWN_CHANGES]) + more
        why = f"starting again there would mix two runs, and going on with it cannot change {changes}"
    is_done = run.finished and asked.max_iters <= run.last_step
    if not refused and not is_done and asked.max_iters >= reached:
        go_on = " ".join([_resume_command(run, kept), *options])
        fix = f"{go_on}   (goes on with it; for a new run, type the same with {free})"
    elif max(now.max_iters, asked.max_iters) > reached:
        fix = f"{again} {free}   (or go on with the one there: {_resume_command(run, kept)})"
    else:
        longer = _resume_command(run, {**kept, "max_iters": 2 * reached})
        fix = f"{again} {free}   (or train the one there longer: {longer})"
    return ConfigError(problem.what, why=why, fix=fix, name=problem.name)


def open_data_again(config: RunConfig, run: Run) -> tuple[Dataset, list[str], tuple[Finding, ...]]:
    """The dataset of a run, which is the one it has read so far, and what to know of it; ConfigError for any other.

    Weights that came without data meet their first here: these are checked as those of a new run are.
    """
    from onecard.ask.pretrained import check_tokens
    from onecard.runs.folder import CHECKPOINTS
    from onecard.train.checkpoint import made_under

    found = _data_at(config, run)
    made = made_under(run.path / CHECKPOINTS)
    if made and made.data_fingerprint is None:
        other = _resume_command(run, {"dataset": "PATH"})
        notes = check_tokens(run.path, config.vocab_size, found, instead=other)
        return found, notes, check_run(config, found)
    if made and made.data_fingerprint != found.fingerprint:
        raise ConfigError(
            f"the data of {run.path} are not those it was trained on",
            why=f"the token files in {found.path} have changed since {made.name} (fingerprint {made.data_fingerprint} "
            f"then, {found.fingerprint} now), and a run reads its data in one order",
            fix=f"{_new_run_command(run)}   (a new run from its weights; or put the old files back)",
            name="resume-mismatch",
        )
    return found, [], ()


def _data_at(config: RunConfig, run: Run) -> Dataset:
    """The dataset a run is to go on with; where it is not there, the error says how to name its place."""
    try:
        return open_data(config)
    except ConfigError as problem:
        if problem.name != "no-such-dataset":
            raise
        typed = {key: value for key, value in _typed(run, config).items() if key != "dataset"}
        elsewhere = _resume_command(run, {**typed, "dataset": "PATH"})
        raise ConfigError(
            problem.what,
            why=f"{problem.why}: it was moved, or the run was",
            fix=f"{elsewhere}   (where its token files are)"
            if run.checkpoints
            else "put it back there, or begin a new run with --out_dir=PATH",
            name=problem.name,
        ) from problem


def _moved(before: RunConfig, after: RunConfig, run: Run, *, fingerprint: str | None) -> bool:
    """Whether the data may have another place: the run had none yet, or has the same token files there."""
    if after.dataset == before.dataset:
        return False
    return fingerprint is None or _data_at(after, run).fingerprint == fingerprint


def _typed(run: Run, after: RunConfig) -> dict[str, object]:
    """What `after` has otherwise than config.json, and so was asked for."""
    now = config_of(run.path, run.config).model_dump()
    return {key: value for key, value in after.model_dump().items() if value != now[key]}


def _kept(before: RunConfig, after: RunConfig, run: Run, resumable: frozenset[str]) -> dict[str, object]:
    """What was asked for and may change: the command that mends the rest must not lose it."""
    wrong = set(_MICRO_BATCH) if after.tokens_per_step != before.tokens_per_step else set()
    if after.max_iters < _step_reached(run):
        wrong.add("max_iters")
    return {key: value for key, value in _typed(run, after).items() if key in resumable - wrong}


def _undone(before: RunConfig, now: RunConfig, resumable: frozenset[str]) -> dict[str, object]:
    """What was edited in config.json against the rules, with the values to type so that the run goes on."""
    micro_batch = _MICRO_BATCH if now.tokens_per_step != before.tokens_per_step else ()
    return {
        key: value
        for key, value in before.model_dump().items()
        if value != getattr(now, key) and (key not in resumable or key in micro_batch)
    }


def _check(
    before: RunConfig,
    after: RunConfig,
    run: Run,
    *,
    refused: Sequence[str],
    in_file: bool,
    fixing: Mapping[str, object],
) -> None:
    """ConfigError where a run cannot go on under `after`: `refused` are the keys that change and must not.

    `fixing` are the values with which it can.
    """
    from onecard.runs.folder import CONFIG

    if refused:
        wanted = {key: value for key, value in _typed(run, after).items() if key != "out_dir"}
        mended = f"{_resume_command(run, fixing)}   (or a new run of its settings: {_like_command(run, wanted)})"
        if list(refused) == ["eval_only"] and after.eval_only:
            mended = f"{_new_run_command(run, {'eval_only': True})}   (evaluates the weights of this run)"
        raise ConfigError(
            f"a resumed run cannot change {_changes(before, after, refused)}",
            why="all but its length, intervals, loggers, device and micro-batch stays from beginning to end"
            + (f"; {run.path / CONFIG} was edited" if in_file else ""),
            fix=mended,
            name="resume-mismatch",
        )
    if after.tokens_per_step != before.tokens_per_step:
        raise _other_update(before, after, run, fixing)
    if after.max_iters != before.max_iters and after.max_iters < _step_reached(run):
        raise _already_beyond(before, after, run, fixing)


def _other_update(before: RunConfig, after: RunConfig, run: Run, fixing: Mapping[str, object]) -> ConfigError:
    whole, rest = divmod(before.sequences_per_step, after.batch_size)
    micro_batch = {} if rest else {"batch_size": after.batch_size, "gradient_accumulation_steps": whole}
    return ConfigError(
        f"a resumed run cannot go from {before.sequences_per_step} sequences per update to {after.sequences_per_step}",
        why="its data order and its steps would no longer be of one run; another micro-batch at equal tokens is fine",
        fix=_resume_command(run, {**fixing, **micro_batch}),
        name="resume-mismatch",
    )


def _already_beyond(before: RunConfig, after: RunConfig, run: Run, fixing: Mapping[str, object]) -> ConfigError:
    reached = _step_reached(run)
    longer = before.max_iters if before.max_iters > reached else 2 * reached
    return ConfigError(
        f"a resumed run cannot end at step {after.max_iters:,}: it is at step {reached:,} already",
        why="max_iters counts all updates of a run from its beginning, and none can be taken back",
        fix=_resume_command(run, {**fixing, "max_iters": longer}),
        name="resume-mismatch",
    )


def _step_reached(run: Run) -> int:
    """The step that a resume begins at: that of the newest checkpoint, or of the end; 0 where there is none."""
    from onecard.runs.folder import CHECKPOINTS, checkpoint_step
    from onecard.train.checkpoint import made_under

    newest = made_under(run.path / CHECKPOINTS)
    saved = (checkpoint_step(newest.name) or 0) if newest else 0
    return max(saved, run.last_step) if saved and run.finished else saved


def _changes(before: RunConfig, after: RunConfig, keys: Iterable[str]) -> str:
    """`batch_size=8 (was 4), device=cpu (was cuda)`"""
    return ", ".join(f"{key}={getattr(after, key)} (was {getattr(before, key)})" for key in keys)


def _other_place(before: RunConfig, after: RunConfig, *, had_data: bool) -> list[str]:
    """What another device or another place of the data means, in words."""
    found = []
    if after.device != before.device:
        found.append(
            f"{_changes(before, after, ['device'])}: another device rounds otherwise, so the losses from here on are "
            "not bit for bit those of the first"
        )
    if after.dataset != before.dataset:
        how = "its token files are the same" if had_data else "the first data of these weights in this run"
        found.append(f"{_changes(before, after, ['dataset'])}: {how}")
    return found


def _schedule_changes(before: RunConfig, after: RunConfig, step: int) -> list[str]:
    """What a longer or shorter run does to the learning rate, in words."""
    from onecard.plan.schedule import learning_rate

    was, now = learning_rate(before, step), learning_rate(after, step)
    found = []
    if abs(now - was) > 0.01 * was:
        found.append(f"the learning rate goes from {was:.3g} to {now:.3g} at step {step:,}: the schedule has changed")
    if after.decay_lr and after.max_iters > max(after.lr_decay_iters, before.max_iters):
        found.append(
            f"from step {after.lr_decay_iters:,} on the learning rate stays at min_lr={after.min_lr:.2g}; "
            f"to decay to the end: --lr_decay_iters={after.max_iters}"
        )
    return found


def _resume_command(run: Run, values: Mapping[str, object] | None = None) -> str:
    """What to type to go on with a run, under these values."""
    return " ".join(["onecard train --resume", quote(str(run.path)), *_flags(values or {})])


def _like_command(run: Run, values: Mapping[str, object]) -> str:
    """What to type for a new run from the beginning with the settings of this one, under these values."""
    from onecard.runs.files import free_path

    return " ".join(["onecard train", quote(str(run.path)), *_flags({**values, "out_dir": free_path(run.path)})])


def _new_run_command(run: Run, values: Mapping[str, object] | None = None) -> str:
    """What to type for a new run with the weights and the settings of this one, under these values."""
    from onecard.runs.files import free_path

    begun = {"init_from": run.path, **(values or {}), "out_dir": free_path(run.path)}
    return " ".join(["onecard train", quote(str(run.path)), *_flags(begun)])


def _flags(values: Mapping[str, object]) -> list[str]:
    from onecard.config.shown import typed

    return [quote(f"--{key}={typed(key, value)}") for key, value in values.items()]
