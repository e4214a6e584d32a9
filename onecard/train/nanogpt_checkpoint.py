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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onecard import units
from onecard.config.resolve import assignments
from onecard.config.schema import NANOGPT_KEYS, SHAPE_KEYS, RunConfig
from onecard.runs.files import MAKE_ROOM, check_space, half_written, sync_file, sync_folder, writing
from onecard.train.snapshot import Snapshot, checked_weights, load_tensors, not_gpt2

NAME = "ckpt.pt"
CONFIG = "config.py"
NO_LOSS = 1e9  # nanoGPT's best_val_loss before the first evaluation
_WRAPPERS = ("_orig_mod.", "module.")  # torch.compile's and DDP's, in front of every name
_MOMENTS = frozenset({"step", "exp_avg", "exp_avg_sq"})


# Reading


def read(path: Path) -> Snapshot:
    """The model, the moments and the progress in a ckpt.pt."""
    content = load_tensors(path)
    if not isinstance(content, dict) or not isinstance(content.get("model"), dict):
        raise not_gpt2(
            path, 'it has no "model": nanoGPT\'s ckpt.pt holds model, optimizer, model_args, iter_num, config'
        )
    model_args, config = (_dictionary(content.get(name)) for name in ("model_args", "config"))
    tensors = {_unwrapped(str(name)): tensor for name, tensor in content["model"].items()}
    if not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
        raise not_gpt2(path, 'its "model" holds more than tensors')
    masks = [name for name in tensors if name.endswith(".attn.bias")]  # the causal mask, kept where flash is missing
    for name in masks:
        del tensors[name]
    shape, weights = checked_weights(path, tensors, n_head=model_args.get("n_head", config.get("n_head")))
    moments, note = _moments(content.get("optimizer"), weights)
    return Snapshot(
        shape=shape,
        weights=weights,
        moments=moments,
        step=_count(content.get("iter_num")),
        val_loss=_loss(content.get("best_val_loss")),
        config={**config, "dropout": model_args.get("dropout", config.get("dropout", 0.0))},
        notes=(note,) if note else (),
    )


def _unwrapped(name: str) -> str:
    while name.startswith(_WRAPPERS):
        name = name.partition(".")[2]
    return name


def _dictionary(value: object) -> dict[str, Any]:
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else {}


def _count(value: object) -> int:
    return value if type(value) is int and value >= 0 else 0


def _loss(value: object) -> float | None:
    """The loss as a number; nanoGPT saves a tensor, and 1e9 for none yet."""
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, int | float) and math.isfinite(value) and value < NO_LOSS:
        return float(value)
    return None


def _moments(optimizer: object, weights: Mapping[str, Tensor]) -> tuple[dict[str, dict[str, Tensor]], str | None]:
    """(AdamW's moments by parameter, None), or ({}, why they could not be used)."""
    if optimizer is None:
        return {}, "the file holds no optimizer: AdamW's moments start anew, and the loss may rise for some steps"
    state = _dictionary(optimizer).get("state")
    groups = _dictionary(optimizer).get("param_groups")
    other = "its optimizer is not nanoGPT's AdamW: its moments start anew, and the loss may rise for some steps"
    names = numbered_names({name: tensor.dim() for name, tensor in weights.items()})
    if not isinstance(state, dict) or not isinstance(groups, list):
        return {}, other
    numbers = [group.get("params") if isinstance(group, dict) else None for group in groups]
    # the sizes of the groups tell today's order of parameters from that of early 2023, which decayed no embeddings
    if numbers != [list(names[0]), list(names[1])]:
        return {}, other
    found: dict[str, dict[str, Tensor]] = {}
    for number, name in {**names[0], **names[1]}.items():
        if number not in state:  # a parameter that had no gradient yet
            continue
        moments = state[number]
        if not isinstance(moments, dict) or set(moments) != _MOMENTS:
            return {}, other
        first, second = moments["exp_avg"], moments["exp_avg_sq"]
        if not all(isinstance(moment, Tensor) and moment.shape == weights[name].shape for moment in (first, second)):
            return {}, other
        step = torch.as_tensor(moments["step"], dtype=torch.float32).reshape(())
        found[name] = {"step": step, "exp_avg": first.float(), "exp_avg_sq": second.float()}
    return found, None


def numbered_names(dimensions: Mapping[str, int]) -> tuple[dict[int, str], dict[int, str]]:
    """nanoGPT's optimizer numbers of its parameters: those that decay (two dimensions), then the others."""
    decayed = [name for name, count in dimensions.items() if count >= 2]
    others = [name for name, count in dimensions.items() if count < 2]
    return dict(enumerate(decayed)), dict(enumerate(others, start=len(decayed)))


# Writing


def write(path: Path, snapshot: Snapshot, config: RunConfig, *, fused: bool) -> None:
    """Write a ckpt.pt, whole or not at all. `fused` is what nanoGPT's AdamW is on a card, and only there."""
    content = {
        "model": {**snapshot.weights, "lm_head.weight": snapshot.weights["transformer.wte.weight"]},
        "optimizer": _optimizer(snapshot, config, fused=fused),
        "model_args": {key: getattr(config, key) for key in (*SHAPE_KEYS, "dropout")},
        "iter_num": snapshot.step,
        "best_val_loss": NO_LOSS if snapshot.val_loss is None else snapshot.val_loss,
        "config": nanogpt_config(config),
    }
    moments = [moment for named in snapshot.moments.values() for moment in named.values()]
    temporary = half_written(path)
    elsewhere = "choose another place with --out FOLDER"
    room = f"{MAKE_ROOM}, or {elsewhere}"
    with writing(path, instead=elsewhere, room=room):
        needed = sum(tensor.nbytes for tensor in (*snapshot.weights.values(), *moments)) + units.MIB
        check_space(path, needed_bytes=needed, room=room)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with temporary.open("wb") as file:  # opened here: torch would say "unexpected pos" of a full disk
                torch.save(content, file)
            sync_file(temporary)
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)


def nanogpt_config(config: RunConfig) -> dict[str, object]:
    """nanoGPT's own keys, with values it takes: it has no `auto`."""
    values = {key: getattr(config, key) for key in RunConfig.model_fields if key in NANOGPT_KEYS}
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
