"""Going on with a run: what may change, what that does, and whether there is anything left to do."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote
from typing import TYPE_CHECKING

from onecard.cli.library import console
from onecard.cli.settle import config_of
from onecard.errors import ConfigError

if TYPE_CHECKING:
    from onecard.config.schema import RunConfig
    from onecard.runs.folder import Run

# What may change between two parts of one run (the micro-batch at equal tokens per update, checked apart).
RESUMABLE = frozenset(
    "max_iters lr_decay_iters eval_interval log_interval checkpoint_interval keep_checkpoints max_hours "
    "loggers log_style batch_size gradient_accumulation_steps".split()
)
_NOT_ASKED = ("init_from", "out_dir")  # these say that a run is gone on with, and where


def resumed_config(run: Run, asked: Mapping[str, object], origins: Mapping[str, str]) -> RunConfig:
    """The config to go on with: the run's own under what was asked for; says what that does to the learning rate.

    ConfigError for what must not change. `origins` says where the values asked for came from.
    """
    from onecard.report.talk import print_warnings
    from onecard.train.trackers import logger_names

    before = config_of(run.path, run.config)
    after = _changed(before, asked, origins, run)
    logger_names(after)  # an unknown one is refused before anything is written
    print_warnings(_schedule_changes(before, after, run.last_step), console(stderr=True))
    return after


def is_finished(run: Run, config: RunConfig) -> bool:
    """Whether there is nothing left to do; says so."""
    if not run.finished or run.last_step < config.max_iters:
        return False
    talk = console(stderr=True)
    talk.print(f"{run.path} is finished: step {run.last_step:,} of {config.max_iters:,}", soft_wrap=True)
    talk.print(f"to train longer: {_resume_command(run)} --max_iters={2 * run.last_step}", soft_wrap=True)
    return True


def _changed(before: RunConfig, asked: Mapping[str, object], origins: Mapping[str, str], run: Run) -> RunConfig:
    from onecard.config.resolve import checked
    from onecard.config.schema import KEYS
    from onecard.runs.folder import CONFIG

    wanted = {key: value for key, value in asked.items() if key not in _NOT_ASKED}
    sources = dict.fromkeys(KEYS, str(run.path / CONFIG)) | {key: origins[key] for key in wanted}
    after = checked({**before.model_dump(), **wanted}, sources)
    refused = [key for key in wanted if getattr(after, key) != getattr(before, key) and key not in RESUMABLE]
    if refused:
        now = ", ".join(f"{key}={getattr(after, key)} (was {getattr(before, key)})" for key in refused)
        raise ConfigError(
            f"a resumed run cannot change {now}",
            why="its weights, data order or records would no longer be of one run",
            fix=f"{_resume_command(run)}   (or start a new run with --out_dir=PATH)",
            name="resume-mismatch",
        )
    if after.tokens_per_step != before.tokens_per_step:
        raise _other_update(before, after, run)
    if after.max_iters != before.max_iters and after.max_iters < (reached := _step_reached(run)):
        longer = before.max_iters if before.max_iters > reached else 2 * reached
        raise ConfigError(
            f"a resumed run cannot end at step {after.max_iters:,}: it is at step {reached:,} already",
            why="max_iters counts all updates of a run from its beginning, and none can be taken back",
            fix=f"{_resume_command(run)} --max_iters={longer}",
            name="resume-mismatch",
        )
    return after


def _step_reached(run: Run) -> int:
    """The step that a resume begins at; that of a finished run, also where its checkpoints are gone."""
    saved = run.checkpoints[-1].step if run.checkpoints else 0
    return max(saved, run.last_step) if run.finished else saved


def _other_update(before: RunConfig, after: RunConfig, run: Run) -> ConfigError:
    whole, rest = divmod(before.sequences_per_step, after.batch_size)
    micro_batch = f" --batch_size={after.batch_size} --gradient_accumulation_steps={whole}"
    return ConfigError(
        f"a resumed run cannot go from {before.sequences_per_step} sequences per update to {after.sequences_per_step}",
        why="its data order and its steps would no longer be of one run; another micro-batch at equal tokens is fine",
        fix=_resume_command(run) + ("" if rest else micro_batch),
        name="resume-mismatch",
    )


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
