"""Checkpoints: a training state saved, found again and put back exactly; the best and the newest are kept.

What is on the disk, and how it survives a kill or a power cut, is in `checkpoint_files`.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from onecard.config.schema import SHAPE_KEYS, RunConfig
from onecard.errors import MachineError, OnecardError
from onecard.files import MAKE_ROOM, sync_folder, write_atomically, writing
from onecard.models.optimizers import Rule
from onecard.runs.checkpoint_state import (
    MODEL,
    OPTIMIZER,
    SCHEMA,
    STATE,
    BadCheckpoint,
    UnreadableCheckpoint,
    bad,
    checkpoints,
    reading,
    step_of,
    verified_state,
)
from onecard.runs.folder import checkpoint_name
from onecard.train import checkpoint_files
from onecard.train.checkpoint_files import BEST, Tensors, WriteFiles, write_whole
from onecard.train.operations import is_shared
from onecard.train.optim import AdamW
from onecard.train.snapshot import FLOATS
from onecard.untrusted_json import BadJson, count, field, number, read_object

# What must stay equal on resume: another value would be another model, or another text.
IDENTITY_KEYS = (*SHAPE_KEYS, "dataset", "optimizer")
_FEWER = f"{MAKE_ROOM}, or keep fewer checkpoints with --keep_checkpoints=1"


class ResumeMismatch(OnecardError):
    """A checkpoint of another model or another dataset."""

    name = "resume-mismatch"


@dataclass(frozen=True, kw_only=True)
class TrainingState:
    """Where a run stands after `step` updates, apart from weights, optimizer and random numbers."""

    step: int
    tokens: int
    elapsed_seconds: float
    data_fingerprint: str | None = None  # of the token files: the same name may hold another text; None before any
    scaler: Mapping[str, Any] | None = None  # GradScaler.state_dict(); None without a scaler
    best_val_loss: float | None = None
    micro_batches: tuple[int, int] | None = None  # the config's, and the one in use: out of memory halves it
    eval_sequences: int | None = None  # of a split, read in every evaluation


@dataclass(frozen=True)
class Best:
    """The step with the lowest validation loss so far."""

    step: int
    val_loss: float


@dataclass(frozen=True)
class Found:
    """The newest complete checkpoint, and the newer ones that are damaged, each with the reason."""

    path: Path | None
    skipped: tuple[tuple[Path, str], ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """A sentence for each damaged checkpoint, with the one that is used instead."""
        used = f": using {self.path.name}" if self.path else ""
        return tuple(f"{path.name} is damaged ({why}) and was skipped{used}" for path, why in self.skipped)

    def none_whole(self, run: Path) -> OnecardError:
        """The error for a run all of whose checkpoints are damaged."""
        return OnecardError(
            f"every checkpoint of {run} is damaged",
            why="; ".join(f"{path.name}: {why}" for path, why in self.skipped[:3]),
            fix="restore a copy of one, or start a new run with another --out_dir; nothing was changed",
            name="damaged-checkpoint",
        )


# Saving


def save(
    folder: Path,
    *,
    model: nn.Module,
    optimizer: AdamW,
    state: TrainingState,
    config: RunConfig,
    write_files: WriteFiles = write_whole,
) -> Path:
    """The new checkpoint's path, under `folder`; when this returns, a power cut does not lose it.

    A complete checkpoint of this step stays as it is: the same run at the same step has nothing new to save, and
    replacing it would mean a moment without either. On a disk that is too full, checkpoints that would be deleted
    after this one is written are deleted before.
    """
    path = folder / checkpoint_name(state.step)
    with checkpoint_files.changing(path):
        if not folder.is_dir():
            folder.mkdir()
            sync_folder(folder.parent)
        checkpoint_files.clear_leftovers(folder)
        if path.exists():
            if problem_of(path) is None:
                return path
            checkpoint_files.delete(path)
    tensors = tensors_of(model, optimizer)
    rest = {**asdict(state), "config": config.model_dump(), "rng": _rng_states(next(model.parameters()).device)}
    keep = config.keep_checkpoints
    room = _FEWER if keep > 2 and _superfluous(folder, step=state.step, keep=1) else MAKE_ROOM

    def write() -> None:
        with checkpoint_files.changing(path, room=room):
            checkpoint_files.write(path, tensors, rest, room=room, write_files=write_files)

    try:
        write()
    except MachineError as refused:
        if refused.name != "disk-full" or not _made_room(path, checkpoint_files.needed_bytes(tensors), keep=keep):
            raise
        write()
    return path


def tensors_of(model: nn.Module, optimizer: AdamW) -> Tensors:
    """What a checkpoint holds of a model and its optimizer, by file."""
    return {MODEL: dict(model.named_parameters()), OPTIMIZER: _optimizer_tensors(model, optimizer)}


def _made_room(path: Path, needed_bytes: int, *, keep: int) -> bool:
    """Whether there is room for `path` now: after deleting what is deleted anyway once it is written.

    The newest complete checkpoint stays until then, whatever `keep` says; and nothing is deleted if that is not enough.
    """
    try:
        newest = latest_good(path.parent).path
        old = _superfluous(path.parent, step=step_of(newest), keep=max(1, keep - 1)) if newest else []
    except (OSError, UnreadableCheckpoint):  # which are old is not known now
        return False
    if not old or shutil.disk_usage(path.parent).free + sum(map(_size_bytes, old)) < needed_bytes:
        return False
    _delete(old)
    return shutil.disk_usage(path.parent).free >= needed_bytes


def _size_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir())


def mark_best(folder: Path, *, step: int, val_loss: float) -> None:
    """Remember the step with the lowest validation loss; `prune` keeps its checkpoint."""
    content = {"schema": SCHEMA, "step": step, "val_loss": val_loss}
    write_atomically(folder / BEST, json.dumps(content).encode())


def best(folder: Path) -> Best | None:
    """The step marked as best; None where none is. OSError if the mark cannot be read now: there may be one."""
    try:
        content = read_object(folder / BEST)
        return Best(step=field(content, "step", count), val_loss=field(content, "val_loss", number))
    except (FileNotFoundError, BadJson):
        return None


def prune(folder: Path, *, saved: Path, keep: int) -> list[str]:
    """Delete all checkpoints but the newest `keep` and the best, after `saved` was written; notes on those that stay.

    Later steps than `saved` are deleted too: a run only resumes from before them because they are damaged.
    """
    return _prune(folder, step=step_of(saved), keep=keep)


def finish_pruning(folder: Path, *, resumed: Path, keep: int) -> list[str]:
    """Delete what a kill left of an earlier save or `prune`, before a run continues from `resumed`; notes as there.

    A run that was killed while it pruned for the last time saves nothing more. Damaged later checkpoints stay until
    the next save: somebody may still restore them.
    """
    checkpoint_files.clear_leftovers(folder)
    return _prune(folder, step=step_of(resumed), keep=keep, below=step_of(resumed))


def _prune(folder: Path, *, step: int, keep: int, below: float = math.inf) -> list[str]:
    """Delete what is superfluous, of steps less than `below`; nothing if the system does not say which is the best."""
    try:
        old = [path for path in _superfluous(folder, step=step, keep=keep) if step_of(path) < below]
    except OSError as problem:
        return [f"{folder / BEST} cannot be read ({problem.strerror or problem}): no old checkpoint was deleted"]
    return _delete(old)


def _superfluous(folder: Path, *, step: int, keep: int) -> list[Path]:
    """All checkpoints but the best and the newest `keep` up to `step`."""
    marked = best(folder)
    kept = {marked.step} if marked else set()
    kept |= set([found for found in map(step_of, checkpoints(folder)) if found <= step][:keep])
    return [path for path in checkpoints(folder) if step_of(path) not in kept]


def _delete(paths: Iterable[Path]) -> list[str]:
    """Notes on the paths that could not be deleted: that must not end a run."""
    notes = []
    for path in paths:
        try:
            checkpoint_files.delete(path)
        except OSError as problem:
            why = problem.strerror or problem
            notes.append(f"{path.name} is no longer needed but could not be deleted ({why}): see {path.parent}")
    return notes


def mark_best_left(folder: Path, evaluated: Mapping[int, float], *, step: int) -> Best | None:
    """The best of a run that resumes at `step`, marked: the lowest validation loss with a complete checkpoint.

    `evaluated` are the validation losses by step. The mark alone would not do (a kill may come between an evaluation
    and its mark), nor would what the checkpoint itself remembers: it was written before its evaluation. A loss before
    the first update counts without a checkpoint too; then nothing is marked.
    """
    marked = best(folder)
    losses = dict(evaluated) | ({marked.step: marked.val_loss} if marked else {})
    there = {step_of(path): path for path in checkpoints(folder)}
    found = sorted((loss, at) for at, loss in losses.items() if at <= step and math.isfinite(loss))

    def whole(at: int) -> bool:
        return at in there and problem_of(there[at]) is None

    left = next((Best(step=at, val_loss=loss) for loss, at in found if at == 0 or whole(at)), None)
    if left is None or (left.step == 0 and not whole(0)):
        with writing(folder / BEST):
            (folder / BEST).unlink(missing_ok=True)
    elif left != marked:
        mark_best(folder, step=left.step, val_loss=left.val_loss)
    return left


# Loading


def latest_good(folder: Path) -> Found:
    """The newest checkpoint whose files have the sizes and checksums they were saved with.

    A run that trains deletes checkpoints while others read them. One that is gone is not damaged: the list is old then.
    """
    while True:
        skipped: list[tuple[Path, str]] = []
        listed = checkpoints(folder)
        for path in listed:
            problem = problem_of(path)
            if problem is None:
                return Found(path, tuple(skipped))
            if path.is_dir():
                skipped.append((path, problem))
        if listed == checkpoints(folder):
            return Found(None, tuple(skipped))


def load(
    path: Path,
    *,
    model: nn.Module,
    optimizer: AdamW | None,
    config: RunConfig,
    data_fingerprint: str | None = None,
) -> TrainingState:
    """The state saved at `path`, after putting its weights, moments and random numbers back exactly.

    Without an optimizer only the weights are read, and neither dataset nor random numbers matter: for sampling. Nothing
    is changed unless everything fits.
    """
    content = verified_state(path, [MODEL] if optimizer is None else [MODEL, OPTIMIZER])
    _check_identity(path, content, config, data_fingerprint, weights_only=optimizer is None)
    state = TrainingState(**{name: content[name] for name in TrainingState.__dataclass_fields__})
    if optimizer is not None and is_shared(next(model.parameters())):
        random = _random_states(path, content["rng"], next(model.parameters()).device)
        load_rows(path, model=model, optimizer=optimizer)
        _restore_rng(random, next(model.parameters()).device)
        return state
    weights = checkpoint_files.tensors_in(path, MODEL)
    _check_weights(path, weights, model)
    if optimizer is not None:
        random = _random_states(path, content["rng"], next(model.parameters()).device)
        _restore_optimizer(path, checkpoint_files.tensors_in(path, OPTIMIZER), model, optimizer)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])
    if optimizer is not None:
        _restore_rng(random, next(model.parameters()).device)
    return state


def load_rows(path: Path, *, model: nn.Module, optimizer: AdamW) -> None:
    """Put back this rank's rows of the weights and moments saved at `path`, which another rank has verified."""
    from onecard.train.checkpoint_parts import described, read_rows

    with reading(path, file=MODEL):
        saved = described(path)
    parameters = dict(model.named_parameters())
    moments = {name: tensor for name, tensor in saved.items() if "/" in name}
    _check_weights(path, {name: tensor for name, tensor in saved.items() if name not in moments}, model)
    optimizer.make_state()
    to_fill = _optimizer_tensors(model, optimizer)
    for name, tensor in moments.items():
        if name not in to_fill or to_fill[name].shape != tensor.shape or tensor.dtype not in FLOATS:
            expected = to_fill.get(name)
            must = "absent" if expected is None else f"{list(expected.shape)} float32"
            raise bad(
                path, f"{OPTIMIZER}: {name:.80} is {_said((tuple(tensor.shape), tensor.dtype))} and must be {must}"
            )
    wanted = {name: tensor.detach() for name, tensor in parameters.items()}
    read_rows(path, wanted | {name: to_fill[name] for name in moments})


def verify(path: Path) -> None:
    """Raise BadCheckpoint unless every file is as it was saved."""
    verified_state(path, [MODEL, OPTIMIZER])


def problem_of(path: Path) -> str | None:
    """Why a checkpoint is not what was saved; None for a complete one."""
    try:
        verify(path)
    except BadCheckpoint as bad:
        return bad.why
    return None


def _check_identity(
    path: Path, content: Mapping[str, Any], config: RunConfig, data_fingerprint: str | None, *, weights_only: bool
) -> None:
    saved: Mapping[str, Any] = content["config"]
    keys = SHAPE_KEYS if weights_only else IDENTITY_KEYS
    was = content["data_fingerprint"]
    known = None not in (was, data_fingerprint)
    differ = [
        f"{key} was {_saved(saved, key)!s:.60} and is {getattr(config, key)}"
        for key in keys
        if _saved(saved, key) != getattr(config, key)
        and not (key == "dataset" and was in (None, data_fingerprint))  # no data yet, or the same at another place
    ]
    if not weights_only and known and was != data_fingerprint:
        differ.append(f"the token files have changed (fingerprint {was} then, {data_fingerprint} now)")
    if differ:
        raise _mismatch(path, differ)


def _saved(saved: Mapping[str, Any], key: str) -> Any:
    """What a checkpoint says of a key; one that was saved before there were several models holds a GPT-2."""
    return saved.get(key, "gpt2" if key == "model" else None)


def _check_weights(path: Path, weights: Mapping[str, Tensor], model: nn.Module) -> None:
    have = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in weights.items()}
    need = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in model.named_parameters()}
    names = sorted(name for name in have.keys() | need.keys() if have.get(name) != need.get(name))
    if names:
        raise _mismatch(
            path, [f"{name} is {_said(have.get(name))} and must be {_said(need.get(name))}" for name in names]
        )


def _said(tensor: tuple[tuple[int, ...], torch.dtype] | None) -> str:
    return "absent" if tensor is None else f"{list(tensor[0])} {str(tensor[1]).removeprefix('torch.')}"


def _mismatch(path: Path, differ: list[str]) -> ResumeMismatch:
    more = f"; and {len(differ) - 4} more" if len(differ) > 4 else ""
    return ResumeMismatch(
        f"{path.name} cannot be continued with this config",
        why="; ".join(differ[:4]) + more,
        fix="resume without changing these, or start a new run with another --out_dir",
    )


# The optimizer: its tensors by the names of their parameters


def _optimizer_tensors(model: nn.Module, optimizer: AdamW) -> dict[str, Tensor]:
    return {
        f"{key}/{name}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def _restore_optimizer(path: Path, tensors: Mapping[str, Tensor], model: nn.Module, optimizer: AdamW) -> None:
    """Hand the tensors to the optimizer under its own numbering; its rates and decays stay those of the config."""
    by_name: dict[str, dict[str, Tensor]] = {}
    for full_name, tensor in tensors.items():
        key, _, name = full_name.partition("/")
        by_name.setdefault(name, {})[key] = tensor
    names = {parameter: name for name, parameter in model.named_parameters()}
    numbered = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    rules = optimizer.rules()
    check_moments(path, by_name, dict(model.named_parameters()), {names[each]: rule for each, rule in rules.items()})
    # safetensors maps the file into memory; what stays on the CPU is copied, so that the file may be deleted.
    state = {
        number: {key: value.clone() if parameter.is_cpu or not value.dim() else value for key, value in moments.items()}
        for number, parameter in enumerate(numbered)
        if (moments := by_name.get(names[parameter]))
    }
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def check_moments(
    path: Path,
    by_name: Mapping[str, Mapping[str, Tensor]],
    parameters: Mapping[str, Tensor],
    rules: Mapping[str, Rule],
) -> None:
    """Refuse moments that the rules of parameters cannot have made: of another size or type, or missing."""
    if unknown := sorted(by_name.keys() - parameters.keys()):
        raise bad(path, f"{OPTIMIZER} is for {unknown[0] or 'nothing':.60}, and the model has no such part")
    for name, parameter in parameters.items():
        moments = by_name.get(name)
        if moments is None:  # before its first update, or a parameter that had no gradient yet
            continue
        rule = rules[name]
        sizes: dict[str, tuple[int, ...]] = dict.fromkeys(rule.numbers, ())
        sizes |= dict.fromkeys(rule.moments, tuple(parameter.shape))
        have = {key: tuple(tensor.shape) for key, tensor in moments.items()}
        strange = [key for key, tensor in moments.items() if tensor.dtype not in FLOATS]
        differ = [key for key in sorted(have.keys() | sizes.keys()) if have.get(key) != sizes.get(key)]
        if wrong := [*differ, *strange]:
            found = moments.get(wrong[0])
            said = _said(None if found is None else (tuple(found.shape), found.dtype))
            must = f"{list(sizes[wrong[0]])} float32" if wrong[0] in sizes else "absent"
            raise bad(path, f"{OPTIMIZER}: {wrong[0]:.40} of {name} is {said} and must be {must}")
        for each in rule.numbers:
            if not 0 <= moments[each].item() < math.inf:
                raise bad(path, f"{OPTIMIZER}: {each} of {name} is {moments[each].item()}")


# Random numbers


def _rng_states(device: torch.device) -> dict[str, str]:
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return {name: bytes(state.tolist()).hex() for name, state in states.items()}


def _random_states(path: Path, saved: Mapping[str, str], device: torch.device) -> dict[str, Tensor]:
    """The saved states, each tried on a generator that nobody uses: a wrong one is refused before anything changes."""
    names = ["cpu", *(["cuda"] if device.type == "cuda" and "cuda" in saved else [])]  # a run may move to a card
    states = {}
    for name in names:
        try:
            states[name] = torch.tensor(list(bytes.fromhex(saved[name])), dtype=torch.uint8)
            torch.Generator(device if name == "cuda" else "cpu").set_state(states[name])
        except (KeyError, ValueError, RuntimeError, TypeError):
            raise bad(path, f"{STATE}: rng has no state of the {name} generator") from None
    return states


def _restore_rng(states: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(states["cpu"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
