"""Runs from and to elsewhere: any checkpoint into a snapshot, a snapshot into a run folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import TypeVar

import torch

from onecard.config.schema import SHAPE_KEYS, RunConfig
from onecard.errors import ConfigError, unless_machine_failed
from onecard.files import free_name
from onecard.models.optimizers import ADAMW
from onecard.runs.checkpoint_state import (
    MODEL,
    OPTIMIZER,
    STATE,
    BadCheckpoint,
    checkpoints,
    set_aside,
    step_of,
    verified_state,
)
from onecard.runs.folder import CHECKPOINTS, Run, RunFolder, checkpoint_name, is_run, load_run
from onecard.runs.records import Checkpoint, Eval
from onecard.train import checkpoint, checkpoint_files, hf_folder, nanogpt_checkpoint
from onecard.train.checkpoint_files import BEST
from onecard.train.model import GPT
from onecard.train.optim import make_optimizer
from onecard.train.snapshot import Snapshot, Stated, check_plain, checked_weights, not_a_model

T = TypeVar("T")

LAST, BEST_ONE = "last", "best"
MOST_DIGITS = 18  # of a step, as in the names of checkpoints
SHOWN_STEPS = 10


def read_snapshot(path: Path) -> Snapshot:
    """The model at `path`: a nanoGPT checkpoint or the folder it is in, a Hugging Face folder, or a run of onecard."""
    if not path.is_dir():
        return nanogpt_checkpoint.read(path)
    if is_run(path):
        best = quote(f"{path}-best")
        exported = f"onecard export {quote(str(path))} --to hf --best --out {best}"
        return read_run(path, use_best=f"{exported}, and start from {best}")
    if hf_folder.is_hf_folder(path):
        return hf_folder.read(path)
    if (path / nanogpt_checkpoint.NAME).is_file():
        return nanogpt_checkpoint.read(path / nanogpt_checkpoint.NAME)
    raise not_a_model(path, f"it holds neither {nanogpt_checkpoint.NAME} nor config.json with weights")


def holds_model(path: Path) -> bool:
    """Whether a folder that is not a run holds a model that can be imported: nanoGPT's, or a Hugging Face folder."""
    try:
        return hf_folder.is_hf_folder(path) or (path / nanogpt_checkpoint.NAME).is_file()
    except OSError as problem:  # a name that no folder can have
        return unless_machine_failed(problem, False)


def read_run(path: Path, *, which: str = LAST, use_best: str = "--best") -> Snapshot:
    """The checkpoint of a run that is meant by `which` (see `from_checkpoint`); `use_best` chooses the best one."""
    return from_checkpoint(
        path, lambda folder, notes: _read_checkpoint(path, folder, notes, use_best=use_best), which=which
    )


def from_checkpoint(path: Path, read: Callable[[Path, tuple[str, ...]], T], *, which: str = LAST) -> T:
    """What `read` makes of a checkpoint of a run, and of the notes on those that were skipped for it.

    `which` is "last", the newest complete one; "best", the one with the lowest validation loss; or a step, as typed.
    A run that trains may delete the checkpoint while it is read: then the one that is the newest now is read.
    """
    while True:
        folder, notes = _checkpoint_of(path, which)
        try:
            return read(folder, notes)
        except BadCheckpoint:
            if folder.is_dir():
                raise


def _read_checkpoint(path: Path, folder: Path, notes: tuple[str, ...], *, use_best: str) -> Snapshot:
    """The checkpoint `folder` of the run `path`; BadCheckpoint if it is damaged, or deleted meanwhile."""
    run = load_run(path)
    state = verified_state(folder, [MODEL, OPTIMIZER])
    saved = state["config"]
    tensors = checkpoint_files.tensors_in(folder, MODEL)
    check_plain(folder, tensors)
    if wrong := next((name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())), None):
        raise not_numbers(path, folder, why=f"{wrong:.60} has NaN or infinity in it", use_best=use_best)
    stated = Stated(where=STATE, shape={key: saved.get(key) for key in SHAPE_KEYS})
    shape, weights = checked_weights(folder, tensors, stated)
    moments: dict[str, dict[str, torch.Tensor]] = {}
    if saved.get("optimizer") == "adamw":
        for full_name, tensor in checkpoint_files.tensors_in(folder, OPTIMIZER).items():
            key, _, name = full_name.partition("/")
            moments.setdefault(name, {})[key] = tensor
        checkpoint.check_moments(folder, moments, tensors, dict.fromkeys(tensors, ADAMW))
    measured = [record.val_loss for record in run.evals if record.step == state["step"]]
    return Snapshot(
        shape=shape,
        weights=weights,
        moments=moments,
        step=state["step"],
        val_loss=measured[-1] if measured else state["best_val_loss"],
        config=run.config,
        notes=notes,
    )


def _checkpoint_of(path: Path, which: str) -> tuple[Path, tuple[str, ...]]:
    """The checkpoint folder of a run that is meant by `which`, and what was skipped for it."""
    if which == BEST_ONE:
        return _best_checkpoint(path), ()
    if which != LAST:
        return _checkpoint_of_step(path, which), ()
    found = checkpoint.latest_good(path / CHECKPOINTS)
    if found.path is None and found.skipped:
        raise found.none_whole(path)
    if found.path is None:
        raise _no_checkpoint(load_run(path))
    return found.path, found.notes


def _checkpoint_of_step(path: Path, which: str) -> Path:
    """The checkpoint of a run with that step; the errors name the steps that there are."""
    there = {step_of(folder): folder for folder in checkpoints(path / CHECKPOINTS)}
    if not there:
        raise _no_checkpoint(load_run(path))
    asked = int(which) if which.isascii() and which.isdecimal() and len(which) <= MOST_DIGITS else None
    marked = checkpoint.best(path / CHECKPOINTS)
    listed = [f"{step}{' (the best)' * bool(marked and marked.step == step)}" for step in sorted(there)[-SHOWN_STEPS:]]
    if asked not in there:
        near = max(there) if asked is None else min(there, key=lambda step: abs(step - asked))
        raise ConfigError(
            f"{path} has no checkpoint {which:.40}",
            why=f"a checkpoint is named best, last or by its step; this run has {', '.join(listed)}",
            fix=f"--checkpoint {near}",
            name="no-such-checkpoint",
        )
    problem = checkpoint.problem_of(there[asked])
    if problem is None:
        return there[asked]
    if not there[asked].is_dir():  # the run trains, and has deleted it
        return _checkpoint_of_step(path, which)
    raise ConfigError(
        f"the checkpoint of step {asked} of {path} is damaged",
        why=f"{problem}; this run has {', '.join(listed)}",
        fix="--checkpoint last   (the newest complete one)",
        name="damaged-checkpoint",
    )


def _best_checkpoint(path: Path) -> Path:
    """The checkpoint of a run that is marked as its best; if it is gone, the error says what is used otherwise."""
    folder = path / CHECKPOINTS
    marked = checkpoint.best(folder)
    what = f"{path} has no best checkpoint"
    why = "none was marked: a run marks one at every evaluation that is better than all before"
    if (folder / BEST).exists():
        why = f"{folder / BEST} says which, and it is damaged"
    if marked:
        best = folder / checkpoint_name(marked.step)
        problem = checkpoint.problem_of(best) if best.is_dir() else "it is not there any more"
        if problem is None:
            return best
        if marked != checkpoint.best(folder):  # the run trains, and has a better one
            return _best_checkpoint(path)
        what = f"the best checkpoint of {path}, {best.name}, is {'damaged' if best.is_dir() else 'gone'}"
        why = f"{problem}; its validation loss was {marked.val_loss:.4f}"
    found = checkpoint.latest_good(folder)
    if found.path is None:
        raise found.none_whole(path) if found.skipped else _no_checkpoint(load_run(path))
    raise ConfigError(
        what,
        why=why,
        fix=f"ask for the newest complete one instead of the best: that of step {step_of(found.path):,}",
        name="no-best-checkpoint",
    )


def _no_checkpoint(run: Run) -> ConfigError:
    """The error for a run without a checkpoint: it has none yet, never saved one, or they are gone."""
    named = quote(str(run.path))
    yet, fix = " yet", f"onecard train --resume {named}"
    why = "a run saves its first one at its first evaluation after step 0"
    if run.finished:
        yet = ""
        if any(isinstance(record, Checkpoint) for record in run.history.records):
            why, fix = "it was finished, and its checkpoints are gone", f"{fix}   (trains it again from step 0)"
        elif run.config.get("eval_only"):
            why = "none was ever saved: with eval_only=True it was evaluated, and not trained"
            fix = f"onecard train {named} --eval_only=False --out_dir={free_name(run.path)}   (trains a new one)"
        else:
            why, fix = "none was ever saved: it ended at step 0", f"{fix} --max_iters=N"
    return ConfigError(f"{run.path} has no checkpoint{yet}", why=why, fix=fix, name="no-checkpoint")


def not_numbers(run: Path, folder: Path, *, why: str, use_best: str = "--best") -> ConfigError:
    """The error for a checkpoint of a run that diverged, and how to have a better one; `use_best` has the best."""
    step = step_of(folder)
    before = [path for path in checkpoints(folder.parent) if step_of(path) < step]
    marked = checkpoint.best(folder.parent)
    if marked and folder.parent / checkpoint_name(marked.step) in before:
        fix = f"{use_best}   (step {marked.step:,}, with a validation loss of {marked.val_loss:.4f})"
    elif before:
        fix = f"{set_aside(folder)}   ({before[0].name}, the checkpoint before it, is used then)"
    else:
        fix = f"onecard doctor {quote(str(run))}   (it says when the run diverged, and what to change)"
    return ConfigError(
        f"the weights of step {step:,} of {run} are not numbers",
        why=f"{why}: the run had diverged when it was saved",
        fix=fix,
        name="weights-not-numbers",
    )


def model_of(snapshot: Snapshot, config: RunConfig) -> GPT:
    """The model with its weights, on the CPU."""
    model = GPT(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(snapshot.weights[name])
    return model


def save_snapshot(
    folder: RunFolder, snapshot: Snapshot, config: RunConfig, *, source: str, data_fingerprint: str | None
) -> Path:
    """The checkpoint written into `folder`, from which `--resume` continues; its records say where it came from."""
    torch.manual_seed(config.seed)  # what the run draws from here on depends on its seed alone
    model = model_of(snapshot, config)
    optimizer = make_optimizer(model, config)
    if config.optimizer == "adamw":
        for name, parameter in model.named_parameters():
            if name in snapshot.moments:
                optimizer.state[parameter].update(snapshot.moments[name])
    state = checkpoint.TrainingState(
        step=snapshot.step,
        tokens=snapshot.step * config.tokens_per_step,
        elapsed_seconds=0.0,
        data_fingerprint=data_fingerprint,
        best_val_loss=snapshot.val_loss,
    )
    path = checkpoint.save(folder.path / CHECKPOINTS, model=model, optimizer=optimizer, state=state, config=config)
    origin: dict[str, object] = {"imported_from": source}
    if snapshot.val_loss is not None:
        checkpoint.mark_best(folder.path / CHECKPOINTS, step=snapshot.step, val_loss=snapshot.val_loss)
        folder.append(_evaluation(state, config, origin))
    folder.append(
        Checkpoint(
            step=state.step,
            tokens=state.tokens,
            path=str(path.relative_to(folder.path)),
            seconds=None,
            reason="imported",
            best=snapshot.val_loss is not None,
            more=origin,
        )
    )
    return path


def _evaluation(state: checkpoint.TrainingState, config: RunConfig, origin: dict[str, object]) -> Eval:
    """What the other program measured when it saved; how well it measured is not known."""
    return Eval(
        step=state.step,
        tokens=state.tokens,
        train_loss=None,
        val_loss=state.best_val_loss,
        train_loss_error=None,
        val_loss_error=None,
        block_size=config.block_size,
        tokens_read=None,
        seconds=None,
        peak_allocated_bytes=None,
        peak_reserved_bytes=None,
        bits_per_byte=None,
        more=origin,
    )
