"""Continuing a run: what may change, what a change does, and whether there is anything left to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from onecard import units
from onecard.errors import ConfigError
from onecard.inputs.before_run import check_data, config_of
from onecard.inputs.config import open_data

if TYPE_CHECKING:
    from onecard.config.resolve import Resolved
    from onecard.config.schema import RunConfig
    from onecard.data.dataset import Dataset
    from onecard.findings import Finding
    from onecard.runs.folder import Run

_SHOWN_CHANGES = 3


def _by_rule(rule: str) -> list[str]:
    """The keys with this rule on resume, a word of schema.RESUME."""
    from onecard.config.schema import KEYS

    return [name for name, key in KEYS.items() if key.resume == rule]


def resumed_config(run: Run, asked: Mapping[str, object], origins: Mapping[str, str]) -> tuple[RunConfig, list[str]]:
    """The config to continue with, and what its changes do: the checkpoint's, then config.json's, then what was asked.

    A value in config.json that differs from the checkpoint's was edited, and counts as typed. A recipe's schedule
    follows a new length. ConfigError for what must not change. `origins` says where the values asked for came from.
    """
    from onecard.config.loggers import logger_names
    from onecard.config.recipes import following
    from onecard.config.resolve import checked
    from onecard.config.schema import KEYS, RESUMABLE_KEYS
    from onecard.runs.checkpoint_state import made_under
    from onecard.runs.folder import CHECKPOINTS, CONFIG, config_in

    now = config_of(run.path, run.config)
    made, which = made_under(run.path / CHECKPOINTS), _by_rule("which run")
    fixed = {key: made.config[key] for key in KEYS if made and key in made.config and key not in which}
    before = config_of(run.path, {**now.model_dump(), **fixed})
    typed = {key: value for key, value in asked.items() if key not in which}
    edited = {key: getattr(now, key) for key in KEYS if key not in typed and getattr(now, key) != getattr(before, key)}
    sources = dict.fromkeys(KEYS, str(run.path / CONFIG)) | {key: origins[key] for key in typed}
    after = checked({**before.model_dump(), **edited, **typed}, sources)
    follow = following(before.model_dump(), after.model_dump())  # a recipe's schedule ends with the run
    after = after.replace({key: follow[key] for key in follow.keys() & RESUMABLE_KEYS - edited.keys() - typed.keys()})
    moved = made is not None and _moved(before, after, run, fingerprint=made.data_fingerprint)
    resumable = RESUMABLE_KEYS | {"dataset"} if moved else RESUMABLE_KEYS
    refused = [key for key in (*edited, *typed) if getattr(after, key) != getattr(before, key) and key not in resumable]
    in_file = any(key in edited for key in refused)
    fixing = {**_kept(before, after, run, resumable), **_undone(before, now, resumable)}
    _check(before, after, run, refused=refused, in_file=in_file, fixing=fixing)
    logger_names(after)  # refuses an unknown one before anything is written
    had_data = made is not None and made.data_fingerprint is not None
    said = [
        *_other_data(before, after, had_data=had_data),
        *_other_rounding(before, after),
        *_schedule_changes(before, after, run),
    ]
    if made and edited:
        said.insert(0, f"{run.path / CONFIG} has changed since {made.name}: {_changes(before, after, edited)}")
    if config_in(run.path) is None:
        said.insert(0, f"{run.path / CONFIG} is damaged or gone: the settings are those of the last start record")
    return after, said


def begun(path: Path) -> bool:
    """Whether a folder holds a run that has saved something: --continue resumes it, and begins anything else."""
    from onecard.runs.folder import checkpoints_in, is_run

    return is_run(path) and bool(checkpoints_in(path))


def changed_since(path: Path, resolved: Resolved, *, fit: bool) -> dict[str, object]:
    """What a config, as `train` was given it, says differently from the run in its folder.

    Left out is what a new run does not take from the config: the vocabulary of the data, the shape of weights that it
    starts from, what --fit chooses; without a config file, the default's own values (a card gets larger ones). A run
    keeps the values its recipe gave it, which follow from its length, or may be others by now.
    ConfigError where the run began from other weights.
    """
    from onecard.config.schema import RESUMABLE_KEYS, SHAPE_KEYS
    from onecard.runs.folder import load_run

    run = load_run(path)
    now = config_of(path, run.config)
    if resolved.config.init_from != now.init_from:
        raise ConfigError(
            f"{path} began from init_from={now.init_from}, not from {resolved.config.init_from}",
            why="--continue resumes the run in its folder only if it is the same run",
            fix=f"{resume_command(run)}   (or begin another run with --out_dir=PATH)",
            name="resume-mismatch",
        )
    asked = resolved.set_by_user if resolved.source is None else resolved.config.model_dump()
    of_recipe = {key for key, origin in resolved.origins.items() if origin.startswith("recipe ")}
    taken = {*_by_rule("which run"), *(of_recipe - RESUMABLE_KEYS)}
    if "vocab_size" not in resolved.set_by_user:
        taken.add("vocab_size")
    if resolved.config.starts_pretrained:
        taken.update(SHAPE_KEYS)
    if fit:
        from onecard.plan.fit import FITTED

        taken.update(FITTED)
    return {key: value for key, value in asked.items() if key not in taken and value != getattr(now, key)}


def as_it_runs(config: RunConfig, run: Run) -> RunConfig:
    """The config with the micro-batch that was left after running out of memory, unless another is asked for."""
    from onecard.runs.checkpoint_state import made_under
    from onecard.runs.folder import CHECKPOINTS

    made = made_under(run.path / CHECKPOINTS)
    asked, left = (made and made.micro_batches) or (config.batch_size, config.batch_size)
    if asked != config.batch_size or left == asked:
        return config
    micros = -(-config.sequences_per_step // left)
    return config.replace({"batch_size": left, "gradient_accumulation_steps": micros})


def where_it_stands(run: Run, config: RunConfig) -> tuple[bool, list[str]]:
    """Whether there is nothing left to do, and lines that say so."""
    from onecard.models.evaluation import worse_in_a_row

    if not run.checkpoints and run.last_step:  # a run of no updates never had any
        return False, [f"{_without_checkpoints(run)}: it starts again at step 0"]
    worse, most = (
        worse_in_a_row(each.val_loss for each in run.evals if each.val_loss is not None),
        config.stop_after_worse,
    )
    if run.end and run.end.reason == "stop_after_worse" and 0 < most <= worse:
        on = resume_command(run, {**_typed(run, config), "stop_after_worse": 0})
        return True, [
            f"stop_after_worse={most} has ended {run.path} at step {run.last_step:,}, after "
            f"{units.things(worse, 'evaluation')} worse than the best",
            f"to train on: {on}   (or a larger number)",
        ]
    if not run.finished or run.last_step < config.max_iters:
        return False, []
    updates = 2 * run.last_step or max(1, config.lr_decay_iters)
    longer = {**_typed(run, config), **_longer(config, updates)}
    return True, [
        f"{run.path} is finished: step {run.last_step:,} of {config.max_iters:,}",
        f"to train longer: {resume_command(run, longer)}",
    ]


def _without_checkpoints(run: Run) -> str:
    """What happened to a run that has updates and no checkpoint."""
    from onecard.runs.records import Checkpoint

    if not any(isinstance(record, Checkpoint) for record in run.records):
        return f"{run.path} was cut off at step {run.last_step:,}, before its first checkpoint"
    reached = "was finished" if run.finished else f"had reached step {run.last_step:,}"
    return f"{run.path} {reached}, and its checkpoints are gone"


def instead_of_anew(
    problem: ConfigError, path: Path, asked: RunConfig, *, again: str, options: Sequence[str] = ()
) -> ConfigError:
    """The error for a new run in a folder that holds one already, with the command that does what was asked.

    That command resumes the run if `asked` describes the same run and it has something left to do. Otherwise it is the
    command that was typed, `again`, with a folder of its own. `options` are those of `again` that a resume takes too.
    """
    from onecard.config.schema import RESUMABLE_KEYS
    from onecard.files import free_path
    from onecard.runs.folder import load_run

    free = quote(f"--out_dir={free_path(path)}")
    try:
        run = load_run(path)
        now = config_of(path, run.config)
    except ConfigError:  # it cannot be resumed as it is
        return ConfigError(problem.what, why=problem.why, fix=f"{again} {free}", name=problem.name)
    why, kept, reached = problem.why, _kept(now, asked, run, RESUMABLE_KEYS), step_reached(run)
    refused = [key for key in _typed(run, asked) if key not in {*kept, "max_iters", "out_dir"}]
    if refused:
        more = ", …" if len(refused) > _SHOWN_CHANGES else ""
        changes = _changes(now, asked, refused[:_SHOWN_CHANGES]) + more
        why = f"starting again there would mix two runs, and a resumed run cannot change {changes}"
    is_done = run.finished and asked.max_iters <= run.last_step
    if not refused and not is_done and asked.max_iters >= reached:
        go_on = " ".join([resume_command(run, kept), *options])
        fix = f"{go_on}   (continues it; for a new run, type the same with {free})"
    elif max(now.max_iters, asked.max_iters) > reached:
        fix = f"{again} {free}   (or continue the one there: {resume_command(run, kept)})"
    else:
        longer = resume_command(run, {**kept, **_longer(now, 2 * reached)})
        fix = f"{again} {free}   (or train the one there longer: {longer})"
    return ConfigError(problem.what, why=why, fix=fix, name=problem.name)


def open_data_again(config: RunConfig, run: Run) -> tuple[Dataset, list[str], tuple[Finding, ...]]:
    """The dataset a run has read so far, with notes and findings about it; ConfigError for any other dataset.

    Imported weights may get their first data here, which is checked as that of a new run is.
    """
    from onecard.inputs.pretrained import check_tokens
    from onecard.runs.checkpoint_state import made_under
    from onecard.runs.folder import CHECKPOINTS

    found = _data_at(config, run)
    made = made_under(run.path / CHECKPOINTS)
    if made and made.data_fingerprint is None:
        other = resume_command(run, {"dataset": "PATH"})
        notes = check_tokens(run.path, config.vocab_size, found, instead=other)
        return found, notes, check_data(config, found)
    if made and made.data_fingerprint != found.fingerprint:
        raise ConfigError(
            f"the data of {run.path} have changed since it was trained on them",
            why=f"the token files in {found.path} are not those of {made.name} (fingerprint {made.data_fingerprint} "
            f"then, {found.fingerprint} now), and a run must read its data in one order",
            fix=f"{_new_run_command(run)}   (a new run from its weights; or restore the old files)",
            name="resume-mismatch",
        )
    return found, [], ()


def _data_at(config: RunConfig, run: Run) -> Dataset:
    """The dataset to continue with; where it is missing, the error says how to give its path."""
    try:
        return open_data(config)
    except ConfigError as problem:
        if problem.name != "no-such-dataset":
            raise
        typed = {key: value for key, value in _typed(run, config).items() if key != "dataset"}
        elsewhere = resume_command(run, {**typed, "dataset": "PATH"})
        raise ConfigError(
            problem.what,
            why=f"{problem.why}: the data or the run folder was moved",
            fix=f"{elsewhere}   (PATH is where its token files are)"
            if run.checkpoints
            else "put it back there, or start a new run with --out_dir=PATH",
            name=problem.name,
        ) from problem


def _moved(before: RunConfig, after: RunConfig, run: Run, *, fingerprint: str | None) -> bool:
    """Whether another dataset path is fine: the run had no data yet, or the same token files are there."""
    if after.dataset == before.dataset:
        return False
    return fingerprint is None or _data_at(after, run).fingerprint == fingerprint


def _typed(run: Run, after: RunConfig) -> dict[str, object]:
    """The values of `after` that differ from config.json: those that were asked for."""
    now = config_of(run.path, run.config).model_dump()
    return {key: value for key, value in after.model_dump().items() if value != now[key]}


def _kept(before: RunConfig, after: RunConfig, run: Run, resumable: frozenset[str]) -> dict[str, object]:
    """What was asked for and may change: the command that fixes the rest must keep it."""
    wrong = set(_by_rule("equal tokens")) if after.tokens_per_step != before.tokens_per_step else set()
    if after.max_iters < step_reached(run):
        wrong.add("max_iters")
    return {key: value for key, value in _typed(run, after).items() if key in resumable - wrong}


def _undone(before: RunConfig, now: RunConfig, resumable: frozenset[str]) -> dict[str, object]:
    """The keys edited in config.json against the rules, with the values to type so that the run can continue."""
    micro_batch = _by_rule("equal tokens") if now.tokens_per_step != before.tokens_per_step else ()
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
    """ConfigError if a run cannot continue under `after`: `refused` are the keys that change and must not.

    `fixing` are the values with which it can.
    """
    from onecard.runs.folder import CONFIG

    if refused:
        wanted = {key: value for key, value in _typed(run, after).items() if key != "out_dir"}
        fix = f"{resume_command(run, fixing)}   (or a new run with its settings: {_like_command(run, wanted)})"
        if list(refused) == ["eval_only"] and after.eval_only:
            fix = f"{_new_run_command(run, {'eval_only': True})}   (evaluates the weights of this run)"
        raise ConfigError(
            f"a resumed run cannot change {_changes(before, after, refused)}",
            why="only its length, intervals, loggers, device, micro-batch and memory settings may change"
            + (f"; {run.path / CONFIG} was edited" if in_file else ""),
            fix=fix,
            name="resume-mismatch",
        )
    if after.tokens_per_step != before.tokens_per_step:
        raise _other_update(before, after, run, fixing)
    if after.max_iters != before.max_iters and after.max_iters < step_reached(run):
        raise _already_beyond(before, after, run, fixing)


def _other_update(before: RunConfig, after: RunConfig, run: Run, fixing: Mapping[str, object]) -> ConfigError:
    whole, rest = divmod(before.sequences_per_step, after.batch_size)
    micro_batch = {} if rest else {"batch_size": after.batch_size, "gradient_accumulation_steps": whole}
    return ConfigError(
        f"a resumed run cannot go from {before.sequences_per_step} sequences per update to {after.sequences_per_step}",
        why="its data order and its steps would change; another micro-batch at equal tokens per update is fine",
        fix=resume_command(run, {**fixing, **micro_batch}),
        name="resume-mismatch",
    )


def _already_beyond(before: RunConfig, after: RunConfig, run: Run, fixing: Mapping[str, object]) -> ConfigError:
    reached = step_reached(run)
    longer = before.max_iters if before.max_iters > reached else 2 * reached
    return ConfigError(
        f"a resumed run cannot end at step {after.max_iters:,}: it is already at step {reached:,}",
        why="max_iters counts all updates of a run from its start, and none can be undone",
        fix=resume_command(run, {**fixing, **_longer(before, longer)}),
        name="resume-mismatch",
    )


def _longer(config: RunConfig, updates: int) -> dict[str, object]:
    """The values that make a run longer, with its schedule: what is added at the lowest rate learns little."""
    too_short = config.decay_lr and config.lr_decay_iters < updates
    return {"max_iters": updates, **({"lr_decay_iters": updates} if too_short else {})}


def step_reached(run: Run) -> int:
    """The step a resume starts at: that of the newest checkpoint, or of the end; 0 where there is none."""
    from onecard.runs.checkpoint_state import made_under
    from onecard.runs.folder import CHECKPOINTS, checkpoint_step

    newest = made_under(run.path / CHECKPOINTS)
    saved = (checkpoint_step(newest.name) or 0) if newest else 0
    return max(saved, run.last_step) if saved and run.finished else saved


def _changes(before: RunConfig, after: RunConfig, keys: Iterable[str]) -> str:
    """`batch_size=8 (was 4), device=cpu (was cuda)`"""
    return ", ".join(f"{key}={getattr(after, key)} (was {getattr(before, key)})" for key in keys)


def _other_data(before: RunConfig, after: RunConfig, *, had_data: bool) -> list[str]:
    """What another dataset path means, in words."""
    if after.dataset == before.dataset:
        return []
    how = "its token files are the same" if had_data else "the first data of this run"
    return [f"{_changes(before, after, ['dataset'])}: {how}"]


def _other_rounding(before: RunConfig, after: RunConfig) -> list[str]:
    """What another device or another way to compute an update means, in words."""
    changed = [key for key in _by_rule("rounding") if getattr(before, key) != getattr(after, key)]
    return [f"{_changes(before, after, [key])}: the same mathematics; rounding may differ" for key in changed]


def _schedule_changes(before: RunConfig, after: RunConfig, run: Run) -> list[str]:
    """What a longer or shorter run does to the learning rate, in words; not what the doctor will say when it starts."""
    from onecard.plan.schedule import learning_rate
    from onecard.runs.records import FindingRecord

    step = run.last_step
    was, now = learning_rate(before, step), learning_rate(after, step)
    found = []
    if abs(now - was) > 0.01 * was:
        found.append(f"the learning rate goes from {was:.3g} to {now:.3g} at step {step:,}: the schedule has changed")
    # the doctor reports a rule once in a run
    told = any(isinstance(record, FindingRecord) and record.finding.rule == "decay-horizon" for record in run.records)
    if told and after.decay_lr and after.max_iters > max(after.lr_decay_iters, before.max_iters):
        found.append(
            f"from step {after.lr_decay_iters:,} on the learning rate stays at min_lr={after.min_lr:.2g}; "
            f"to decay to the end: --lr_decay_iters={after.max_iters}"
        )
    return found


def resume_command(run: Run, values: Mapping[str, object] | None = None) -> str:
    """What to type to continue a run with these values."""
    return " ".join(["onecard train --resume", quote(str(run.path)), *_flags(values or {})])


def resume_under(config: RunConfig, run: Run) -> str:
    """What to type to continue a run with this config."""
    return resume_command(run, _typed(run, config))


def _like_command(run: Run, values: Mapping[str, object]) -> str:
    """What to type for a new run from the beginning, with this one's settings and these values."""
    from onecard.files import free_path

    return " ".join(["onecard train", quote(str(run.path)), *_flags({**values, "out_dir": free_path(run.path)})])


def _new_run_command(run: Run, values: Mapping[str, object] | None = None) -> str:
    """What to type for a new run with this one's weights and settings and these values."""
    from onecard.files import free_path

    begun = {"init_from": run.path, **(values or {}), "out_dir": free_path(run.path)}
    return " ".join(["onecard train", quote(str(run.path)), *_flags(begun)])


def _flags(values: Mapping[str, object]) -> list[str]:
    from onecard.config.shown import typed

    return [quote(f"--{key}={typed(key, value)}") for key, value in values.items()]
