"""Going on with a run: what may change, what that does, and whether there is anything left to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from shlex import quote
from typing import TYPE_CHECKING

from onecard.cli.library import console
from onecard.cli.settle import config_of, open_data
from onecard.errors import ConfigError

if TYPE_CHECKING:
    from onecard.config.schema import RunConfig
    from onecard.data.dataset import Dataset
    from onecard.runs.folder import Run

# What may change between two parts of one run (the micro-batch at equal tokens per update, and the dataset where its
# token files are the same: both are checked apart).
RESUMABLE = frozenset(
    "max_iters lr_decay_iters eval_interval log_interval checkpoint_interval keep_checkpoints max_hours "
    "loggers log_style device batch_size gradient_accumulation_steps".split()
)
_NOT_ASKED = ("init_from", "out_dir")  # these say that a run is gone on with, and where


def resumed_config(run: Run, asked: Mapping[str, object], origins: Mapping[str, str]) -> RunConfig:
    """The config to go on with: the checkpoint's under config.json under what was asked for; says what that does.

    What config.json says otherwise than the checkpoint was edited, and counts as typed. ConfigError for what must not
    change. `origins` says where the values asked for came from.
    """
    from onecard.config.schema import KEYS
    from onecard.report.talk import print_warnings
    from onecard.runs.folder import CHECKPOINTS, CONFIG
    from onecard.train.checkpoint import made_under
    from onecard.train.trackers import logger_names

    now = config_of(run.path, run.config)
    made = made_under(run.path / CHECKPOINTS)
    fixed = {key: made.config[key] for key in KEYS if made and key in made.config and key not in _NOT_ASKED}
    before = config_of(run.path, {**now.model_dump(), **fixed})
    typed = {key: value for key, value in asked.items() if key not in _NOT_ASKED}
    edited = {key: getattr(now, key) for key in KEYS if key not in typed and getattr(now, key) != getattr(before, key)}
    sources = dict.fromkeys(KEYS, str(run.path / CONFIG)) | {key: origins[key] for key in typed}
    fingerprint = made.data_fingerprint if made else None
    after = _changed(before, {**edited, **typed}, sources, run, fingerprint=fingerprint, undone=_undone(before, now))
    logger_names(after)  # an unknown one is refused before anything is written
    said = [f"{run.path / CONFIG} has changed since {made.name}: {_changes(before, after, edited)}"] if made else []
    print_warnings(
        [*(said if edited else ()), *_other_place(before, after), *_schedule_changes(before, after, run.last_step)],
        console(stderr=True),
    )
    return after


def is_finished(run: Run, config: RunConfig) -> bool:
    """Whether there is nothing left to do; says so."""
    if not run.finished or run.last_step < config.max_iters:
        return False
    talk = console(stderr=True)
    if not run.checkpoints:
        talk.print(f"{run.path} was finished, and its checkpoints are gone: it begins again at step 0", soft_wrap=True)
        return False
    talk.print(f"{run.path} is finished: step {run.last_step:,} of {config.max_iters:,}", soft_wrap=True)
    talk.print(f"to train longer: {_resume_command(run)} --max_iters={2 * run.last_step}", soft_wrap=True)
    return True


def open_data_again(config: RunConfig, run: Run) -> Dataset:
    """The dataset of a run; where it is not there, the error says how to name its new place."""
    try:
        return open_data(config)
    except ConfigError as problem:
        if problem.name != "no-such-dataset":
            raise
        moved = f"{_resume_command(run)} --dataset=PATH   (where the same token files are now)"
        raise ConfigError(
            problem.what,
            why=f"{problem.why}: it was moved, or the run was",
            fix=moved if run.checkpoints else "put it back there, or begin a new run with --out_dir=PATH",
            name=problem.name,
        ) from problem


def _undone(before: RunConfig, now: RunConfig) -> dict[str, object]:
    """What was edited in config.json against the rules, with the values to type so that the run goes on."""
    micro_batch = ("batch_size", "gradient_accumulation_steps") if now.tokens_per_step != before.tokens_per_step else ()
    return {
        key: value
        for key, value in before.model_dump().items()
        if value != getattr(now, key) and (key not in RESUMABLE or key in micro_batch)
    }


def _changed(
    before: RunConfig,
    wanted: Mapping[str, object],
    sources: Mapping[str, str],
    run: Run,
    *,
    fingerprint: str | None,
    undone: dict[str, object],
) -> RunConfig:
    """`before` under what is wanted; ConfigError for what must not change. `fingerprint` is that of the run's data."""
    from onecard.config.resolve import checked
    from onecard.runs.folder import CONFIG

    after = checked({**before.model_dump(), **wanted}, sources)
    refused = [key for key in wanted if getattr(after, key) != getattr(before, key) and key not in RESUMABLE]
    if "dataset" in refused and fingerprint and open_data_again(after, run).fingerprint == fingerprint:
        refused.remove("dataset")  # the same tokens at another place
        undone.pop("dataset", None)
    if refused:
        in_file = any(sources[key] == str(run.path / CONFIG) for key in refused)
        raise ConfigError(
            f"a resumed run cannot change {_changes(before, after, refused)}",
            why="its weights, data order or records would no longer be of one run"
            + (f"; {run.path / CONFIG} was edited" if in_file else ""),
            fix=f"{_resume_command(run)}{_flags(undone)}   (or start a new run with --out_dir=PATH)",
            name="resume-mismatch",
        )
    if after.tokens_per_step != before.tokens_per_step:
        raise _other_update(before, after, run, undone)
    if after.max_iters != before.max_iters and after.max_iters < (reached := _step_reached(run)):
        longer = before.max_iters if before.max_iters > reached else 2 * reached
        raise ConfigError(
            f"a resumed run cannot end at step {after.max_iters:,}: it is at step {reached:,} already",
            why="max_iters counts all updates of a run from its beginning, and none can be taken back",
            fix=f"{_resume_command(run)}{_flags(undone)} --max_iters={longer}",
            name="resume-mismatch",
        )
    return after


def _step_reached(run: Run) -> int:
    """The step that a resume begins at: that of the newest checkpoint, or of the end; 0 where there is none."""
    saved = run.checkpoints[-1].step if run.checkpoints else 0
    return max(saved, run.last_step) if saved and run.finished else saved


def _changes(before: RunConfig, after: RunConfig, keys: Iterable[str]) -> str:
    """`batch_size=8 (was 4), device=cpu (was cuda)`"""
    return ", ".join(f"{key}={getattr(after, key)} (was {getattr(before, key)})" for key in keys)


def _flags(values: Mapping[str, object]) -> str:
    return "".join(f" {quote(f'--{key}={value}')}" for key, value in values.items())


def _other_update(before: RunConfig, after: RunConfig, run: Run, undone: Mapping[str, object]) -> ConfigError:
    whole, rest = divmod(before.sequences_per_step, after.batch_size)
    micro_batch = {"batch_size": after.batch_size, "gradient_accumulation_steps": whole}
    return ConfigError(
        f"a resumed run cannot go from {before.sequences_per_step} sequences per update to {after.sequences_per_step}",
        why="its data order and its steps would no longer be of one run; another micro-batch at equal tokens is fine",
        fix=_resume_command(run) + _flags({**undone, **({} if rest else micro_batch)}),
        name="resume-mismatch",
    )


def _other_place(before: RunConfig, after: RunConfig) -> list[str]:
    """What another device or another place of the data means, in words."""
    found = []
    if after.device != before.device:
        found.append(
            f"{_changes(before, after, ['device'])}: another device rounds otherwise, so the losses from here on are "
            "not bit for bit those of the first"
        )
    if after.dataset != before.dataset:
        found.append(f"{_changes(before, after, ['dataset'])}: its token files are the same")
    return found


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


def _resume_command(run: Run) -> str:
    return f"onecard train --resume {quote(str(run.path))}"
