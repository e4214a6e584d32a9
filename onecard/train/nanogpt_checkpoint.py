"""nanoGPT's ckpt.pt, both ways: read without running anything in it, and written so that nanoGPT can resume from it.

model           weights, the tied head twice (lm_head.weight and transformer.wte.weight)
optimizer       AdamW's state_dict: moments by number, matrices and embeddings first, then biases and norms
model_args      the shape, and dropout
iter_num        updates done
best_val_loss   of the evaluation at which it was saved
config          every setting of the run
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onecard import units
from onecard.config.resolve import assignments
from onecard.config.schema import GPT2_SHAPE_KEYS, KEYS, NANOGPT_KEYS, RunConfig
from onecard.train.snapshot import (
    FLOATS,
    Snapshot,
    Stated,
    check_plain,
    checked_weights,
    load_tensors,
    not_a_model,
    not_plain,
)
from onecard.untrusted_json import BadJson, count, field, number, scalar

NAME = "ckpt.pt"
CONFIG = "config.py"
NO_LOSS = 1e9  # nanoGPT's best_val_loss before the first evaluation
_WRAPPERS = ("_orig_mod.", "module.")  # torch.compile's and DDP's, in front of every name
_MOMENTS = frozenset({"step", "exp_avg", "exp_avg_sq"})
_LAST_STEP = 10**15  # no run gets there


# Reading


def read(path: Path) -> Snapshot:
    """The model, the moments and the progress in a ckpt.pt."""
    content = load_tensors(path)
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise not_a_model(
            path, 'it has no "model": nanoGPT\'s ckpt.pt holds model, optimizer, model_args, iter_num, config'
        )
    try:
        return _snapshot(path, content)
    except BadJson as problem:
        raise not_a_model(path, f"its {problem}") from None


def _snapshot(path: Path, content: dict[str, Any]) -> Snapshot:
    """The content of a ckpt.pt, checked; BadJson names a field whose value is of another kind than nanoGPT's."""
    model_args, config = (_settings(content.get(name)) for name in ("model_args", "config"))
    if not all(isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in content["model"].items()):
        raise not_a_model(path, 'its "model" holds more than tensors')
    tensors = {_unwrapped(name): tensor for name, tensor in content["model"].items()}
    masks = [name for name in tensors if name.endswith(".attn.bias")]  # the causal mask, kept where flash is missing
    for name in masks:
        del tensors[name]
    check_plain(path, tensors)
    shape, weights = checked_weights(path, tensors, _stated(model_args, config))
    moments, note = _moments(content.get("optimizer"), weights)
    return Snapshot(
        shape=shape,
        weights=weights,
        moments=moments,
        step=field(content, "iter_num", _step),
        val_loss=field(content, "best_val_loss", _loss),
        config={**config, "dropout": model_args.get("dropout", config.get("dropout", 0.0))},
        notes=(note,) if note else (),
    )


def _stated(model_args: Mapping[str, object], config: Mapping[str, object]) -> Stated:
    """The shape as the file states it. A resume by nanoGPT keeps model_args and ignores a changed `config`."""
    shape = {key: model_args[key] for key in GPT2_SHAPE_KEYS if key in model_args}
    if shape.keys() - {"n_head"}:
        return Stated(where="model_args", shape={"n_head": config.get("n_head"), **shape})
    return Stated(where="config", shape={**{key: config.get(key) for key in GPT2_SHAPE_KEYS}, **shape})


def _unwrapped(name: str) -> str:
    while name.startswith(_WRAPPERS):
        name = name.partition(".")[2]
    return name


def _dictionary(value: object) -> dict[Any, Any]:
    return value if isinstance(value, dict) else {}


def _settings(value: object) -> dict[str, object]:
    """The settings in a dictionary; a key that we know must have a number, a text, a yes or no, or nothing."""
    named = {key: item for key, item in _dictionary(value).items() if isinstance(key, str) and key in KEYS}
    return {key: field(named, key, scalar) for key in named}


def _step(value: object) -> int:
    """The updates done; 0 where the file does not say."""
    found = 0 if value is None else count(value)
    if found > _LAST_STEP:
        raise BadJson(f"is {found}, more updates than any run has")
    return found


def _loss(value: object) -> float | None:
    """The loss as a number; nanoGPT saves a tensor, and 1e9 for none yet."""
    if isinstance(value, Tensor):
        value = _one_number(value)
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    found = number(value)
    return found if found < NO_LOSS else None


def _one_number(tensor: Tensor) -> float:
    """The number in a tensor of one number."""
    if problem := not_plain(tensor, (*FLOATS, torch.int64, torch.int32)):
        raise BadJson(problem)
    if tensor.numel() != 1:
        raise BadJson(f"has {tensor.numel()} numbers and should have one")
    return float(tensor.item())


def _moments(optimizer: object, weights: Mapping[str, Tensor]) -> tuple[dict[str, dict[str, Tensor]], str | None]:
    """(AdamW's moments by parameter, None), or ({}, why they could not be used)."""
    if optimizer is None:
        return {}, "the file holds no optimizer: AdamW's moments start from zero, and the loss may rise for some steps"
    state, groups = (_dictionary(optimizer).get(name) for name in ("state", "param_groups"))
    other = (
        "its optimizer is not nanoGPT's AdamW: AdamW's moments start from zero, and the loss may rise for some steps"
    )
    names = numbered_names({name: tensor.dim() for name, tensor in weights.items()})
    if not isinstance(state, dict) or not isinstance(groups, list):
        return {}, other
    numbers = [_dictionary(group).get("params") for group in groups]
    if not all(isinstance(params, list) and all(type(each) is int for each in params) for params in numbers):
        return {}, other
    # the sizes of the groups tell today's order of parameters from that of early 2023, which decayed no embeddings
    if numbers != [list(names[0]), list(names[1])]:
        return {}, other
    found: dict[str, dict[str, Tensor]] = {}
    for place, name in {**names[0], **names[1]}.items():
        if place not in state:  # a parameter that had no gradient yet
            continue
        moments = state[place]
        if not isinstance(moments, dict) or set(moments) != _MOMENTS:
            return {}, other
        first, second = moments["exp_avg"], moments["exp_avg_sq"]
        if not isinstance(first, Tensor) or not isinstance(second, Tensor):
            return {}, other
        if problem := not_plain(first) or not_plain(second):  # first: even the shape of some kinds cannot be asked for
            raise BadJson(f"optimizer's moment of {name} {problem}")
        if not first.shape == second.shape == weights[name].shape:
            return {}, other
        step = torch.tensor(field(moments, "step", _updates), dtype=torch.float32)
        found[name] = {"step": step, "exp_avg": first.float(), "exp_avg_sq": second.float()}
    return found, None


def _updates(value: object) -> float:
    """AdamW's own count of its updates: a tensor of one number, in old files a number."""
    found = number(_one_number(value) if isinstance(value, Tensor) else value)
    if not 0 <= found <= _LAST_STEP:
        raise BadJson(f"of the optimizer is {found:g}, not a number of updates")
    return found


def numbered_names(dimensions: Mapping[str, int]) -> tuple[dict[int, str], dict[int, str]]:
    """nanoGPT's optimizer numbers of its parameters: those that decay (two dimensions), then the others."""
    decayed = [name for name, count in dimensions.items() if count >= 2]
    others = [name for name, count in dimensions.items() if count < 2]
    return dict(enumerate(decayed)), dict(enumerate(others, start=len(decayed)))


# Writing


class _Told(BufferedWriter):
    """A file that remembers why it could not be written: torch's zip writer calls that an unexpected position."""

    problem: OSError | None = None

    def write(self, content: Any, /) -> int:
        try:
            return super().write(content)
        except OSError as problem:
            self.problem = problem
            raise


def needed_bytes(snapshot: Snapshot) -> int:
    """What a ckpt.pt takes on the disk, at most."""
    moments = [moment for named in snapshot.moments.values() for moment in named.values()]
    return sum(tensor.nbytes for tensor in (*snapshot.weights.values(), *moments)) + units.MIB


def write(path: Path, snapshot: Snapshot, config: RunConfig, *, fused: bool) -> None:
    """Write a ckpt.pt; OSError if the disk refuses. `fused` is what nanoGPT's AdamW is on a card, and only there."""
    content = {
        "model": {**snapshot.weights, "lm_head.weight": snapshot.weights["transformer.wte.weight"]},
        "optimizer": _optimizer(snapshot, config, fused=fused),
        "model_args": {key: getattr(config, key) for key in (*GPT2_SHAPE_KEYS, "dropout")},
        "iter_num": snapshot.step,
        "best_val_loss": NO_LOSS if snapshot.val_loss is None else snapshot.val_loss,
        "config": nanogpt_config(config),
    }
    with _Told(FileIO(path, "wb")) as file:
        try:
            torch.save(content, file)
        except RuntimeError as problem:
            raise file.problem or problem from problem
        file.flush()
        os.fsync(file.fileno())


def nanogpt_config(config: RunConfig) -> dict[str, object]:
    """nanoGPT's own keys, with values it takes: it has no `auto`."""
    values = {key: getattr(config, key) for key in KEYS if key in NANOGPT_KEYS}
    values["dataset"] = config.dataset.removeprefix("data/")  # nanoGPT looks for it there itself
    if config.device == "auto":
        values["device"] = "cuda"
    if config.dtype == "auto":
        values["dtype"] = "bfloat16"
    return values


def config_text(config: RunConfig, *, folder: Path, dataset: str, on_card: bool) -> str:
    """A config with which nanoGPT's train.py resumes from the ckpt.pt in `folder`, which gives it only the shape."""
    here = {} if on_card else {"device": "cpu", "dtype": "float32", "compile": False}
    values = nanogpt_config(config) | here
    return assignments(values | {"init_from": "resume", "out_dir": str(folder.resolve()), "dataset": dataset})


def _optimizer(snapshot: Snapshot, config: RunConfig, *, fused: bool) -> dict[str, Any]:
    """The state_dict of the AdamW that nanoGPT would have made for these parameters."""
    decayed, others = numbered_names({name: tensor.dim() for name, tensor in snapshot.weights.items()})
    blank = [torch.nn.Parameter(torch.empty(0)) for _ in (decayed, others)]
    adamw = torch.optim.AdamW(
        [
            {"params": [blank[0]], "weight_decay": config.weight_decay},
            {"params": [blank[1]], "weight_decay": 0.0},
        ],
        lr=config.learning_rate,
        betas=(config.beta1, config.beta2),
    )
    groups = adamw.state_dict()["param_groups"]
    for group, numbers in zip(groups, (decayed, others), strict=True):
        group |= {"params": list(numbers), "fused": True if fused else None}
    numbered = {**decayed, **others}
    return {
        "state": {
            number: dict(snapshot.moments[name]) for number, name in numbered.items() if name in snapshot.moments
        },
        "param_groups": groups,
    }
