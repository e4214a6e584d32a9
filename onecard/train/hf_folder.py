"""A Hugging Face folder of a model, both ways: config.json and model.safetensors, as transformers reads them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from onecard import units
from onecard.config.hf_config import CONFIG, NO_BIAS, PICKLED, SHARDS, WEIGHTS, hf_config_of, shape_of
from onecard.config.schema import RunConfig
from onecard.errors import ConfigError
from onecard.files import allow_readers, sync_file, write_durably
from onecard.models.architectures import structure_of
from onecard.models.structure import parameters_of
from onecard.opening import cannot_read
from onecard.train.checkpoint_files import as_os_error, loaded
from onecard.train.hf_weights import BUFFERS, from_hf, to_hf
from onecard.train.snapshot import Snapshot, Stated, check_plain, checked_weights, load_tensors, not_a_model
from onecard.untrusted_json import BadJson, field, mapping_of, read_object, text

GENERATION = "generation_config.json"
_LONGEST_INDEX_BYTES = 4 * units.MIB  # GPT-2 XL has 580 tensors, some 60 KB


# Reading


def is_hf_folder(path: Path) -> bool:
    return (path / CONFIG).is_file() and any((path / name).is_file() for name in (WEIGHTS, SHARDS, PICKLED))


def read(folder: Path) -> Snapshot:
    """The model in a folder that transformers' save_pretrained wrote, or that was downloaded from the hub."""
    config, shape = _config(folder)
    tensors = {name: tensor for name, tensor in _tensors(folder).items() if not name.endswith(BUFFERS)}
    check_plain(folder, tensors)
    tensors = from_hf(str(shape["model"]), tensors)
    if shape["model"] == "gpt2" and not shape["bias"]:
        tensors = _without_zeros(folder, tensors)
    found, weights = checked_weights(folder, tensors, Stated(where=CONFIG, shape=shape))
    approximate = shape["model"] == "gpt2" and config.get("activation_function", "gelu_new") != "gelu"
    note = "its GELU was the tanh approximation, onecard's is the exact one, as nanoGPT's: logits differ slightly"
    return Snapshot(shape=found, weights=weights, notes=(note,) if approximate else ())


def _config(folder: Path) -> tuple[Mapping[str, object], Mapping[str, int | bool | str]]:
    """(config.json, the shape it states)."""
    try:
        config = read_object(folder / CONFIG)
    except (OSError, BadJson) as problem:
        why = f"{CONFIG} cannot be read: {str(problem)[:120]}"
        raise cannot_read(folder / CONFIG, problem) or not_a_model(folder, why) from problem
    try:
        return config, shape_of(config)
    except ValueError as problem:
        raise not_a_model(folder, str(problem)) from None


def _tensors(folder: Path) -> dict[str, Tensor]:
    try:
        if (folder / WEIGHTS).is_file():
            return loaded(folder / WEIGHTS)
        if (folder / SHARDS).is_file():
            return {name: tensor for file in _shards(folder) for name, tensor in loaded(folder / file).items()}
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as problem:  # KeyError: an unknown type
        raise cannot_read(folder, as_os_error(problem)) or ConfigError(
            f"the weights in {folder} cannot be read",
            why=f"{str(problem)[:160] or type(problem).__name__}",
            fix="download or copy the folder again: a file may have been cut off",
            name="unreadable-checkpoint",
        ) from problem
    content = load_tensors(folder / PICKLED)
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in content.items()
    ):
        raise not_a_model(folder, f"{PICKLED} holds more than tensors")
    return content


def _shards(folder: Path) -> list[str]:
    """The files that hold the tensors, from the index; BadJson, naming the index, if it cannot be right."""
    try:
        index = read_object(folder / SHARDS, longest_bytes=_LONGEST_INDEX_BYTES)
        files = set(field(index, "weight_map", mapping_of(text)).values())
    except BadJson as problem:
        raise BadJson(f"{SHARDS}: {problem}") from None
    if any(Path(name).name != name for name in files):  # an index must not lead out of its folder
        raise BadJson(f"{SHARDS} names a file outside the folder")
    return sorted(files)


def _without_zeros(folder: Path, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    biases = [name for name in tensors if name.endswith(".bias")]
    if any(bool(tensors[name].any()) for name in biases):
        raise not_a_model(folder, f"{CONFIG} says {NO_BIAS}=false, and there are biases that are not zero")
    return {name: tensor for name, tensor in tensors.items() if not name.endswith(".bias")}


# Writing


def needed_bytes(config: RunConfig) -> int:
    """What the folder of a model takes on the disk, at most: float32 weights, and biases in every GPT-2."""
    with_biases = parameters_of(structure_of(config.replace({"bias": config.model == "gpt2"})))
    return 4 * sum(math.prod(size) for size in with_biases.values()) + 2 * units.MIB


def write(folder: Path, snapshot: Snapshot, config: RunConfig, *, end_of_text: int | None) -> None:
    """Put the model and its two configs into `folder`, which exists; OSError if the disk refuses."""
    try:
        save_file(to_hf(config, snapshot.weights), folder / WEIGHTS, metadata={"format": "pt"})
    except SafetensorError as error:
        raise as_os_error(error) from error
    allow_readers(folder / WEIGHTS)
    sync_file(folder / WEIGHTS)
    said = {CONFIG: hf_config_of(config, end_of_text=end_of_text), GENERATION: _generation_config(config, end_of_text)}
    for name, content in said.items():
        write_durably(folder / name, (json.dumps(content, indent=2) + "\n").encode())


def _generation_config(config: RunConfig, end_of_text: int | None) -> dict[str, object]:
    """What bounds generated text: the model knows no position beyond its context, and transformers does not look."""
    ends = {} if end_of_text is None else {"bos_token_id": end_of_text, "eos_token_id": end_of_text}
    return {"max_length": config.block_size, **ends}
