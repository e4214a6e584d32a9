"""A model and where its training stood: what every format of checkpoint is read into and written from."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onecard import units
from onecard.config.resolve import context_too_long
from onecard.config.schema import SHAPE_KEYS, RunConfig
from onecard.errors import ConfigError, first_line
from onecard.models.architectures import ARCHITECTURES, structure_of
from onecard.models.structure import Embedding, Structure, outside_blocks, parameters_of, tied_layers
from onecard.opening import cannot_read
from onecard.untrusted_pickle import CONTAINERS, DATA, BadPickle, Unsafe, check

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
_MOST_PICKLED_BYTES = 64 * units.MIB  # of what is no tensor: a checkpoint of GPT-2 has some 100 KB
_PICKLES = 5  # in a file that is no archive: mark, version, machine, content, names of the tensors
_INSTRUCTIONS = DATA | {"GLOBAL", "REDUCE", "NEWOBJ", "BUILD", "BINPERSID", "SHORT_BINSTRING"}


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A model, checked to be one of ours, under nanoGPT's names."""

    shape: Mapping[str, Any]  # the keys of schema.SHAPE_KEYS: the model, and its sizes
    weights: Mapping[str, Tensor]  # float32, by nanoGPT's names; a tied head once, as transformer.wte.weight
    moments: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)  # AdamW's, by parameter; {}: none yet
    step: int = 0
    val_loss: float | None = None
    config: Mapping[str, object] = field(default_factory=dict)  # what the source says of its run, by nanoGPT's keys
    notes: tuple[str, ...] = ()  # what the user should know of what was left out or differs


@dataclass(frozen=True, kw_only=True)
class Stated:
    """What a file says about its tensors: `shape` has some of schema.SHAPE_KEYS, or all; without `model`, a GPT-2's."""

    where: str  # config.json, model_args
    shape: Mapping[str, object]


def checked_weights(source: Path, tensors: Mapping[str, Tensor], stated: Stated) -> tuple[dict[str, Any], Any]:
    """(shape, float32 weights): every name and size as the model has them, and as the file itself states them.

    The tensors must be plain (see `check_plain`). Most of the shape can be seen from them; where the file states
    something else, half a model was saved or the config belongs to another one.
    """
    weights = dict(tensors)
    _check_numbers(source, weights)
    model = stated.shape.get("model") or "gpt2"
    if not isinstance(model, str) or model not in ARCHITECTURES:
        raise not_a_model(source, f"{stated.where} says model={_shown(model)}, not {' or '.join(ARCHITECTURES)}")
    of_any_size = structure_of(RunConfig().replace({"model": model}))
    _tie_layers(source, weights, tied_layers(of_any_size))
    layers = {name.split(".")[2] for name in weights if name.startswith("transformer.h.")}
    shape = {"model": model, "n_layer": len(layers), **_seen(source, weights, of_any_size)}
    for key in ("n_head", "block_size"):  # what tensors may not show
        shape.setdefault(key, stated.shape.get(key))
    n_layer, n_embd, n_head = shape["n_layer"], shape["n_embd"], shape["n_head"]
    if type(n_head) is not int or n_head < 1 or n_embd < 1 or n_embd % n_head or n_layer < 1:
        raise not_a_model(
            source, f"{n_layer} layers of width {n_embd} with n_head={_shown(n_head)} are not a valid model"
        )
    _check_stated(source, shape, layers, stated)
    try:
        config = RunConfig.model_validate(shape)
    except ValueError:
        raise not_a_model(source, f"{shape} is not a valid shape") from None
    have = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    need = parameters_of(structure_of(config))
    differ = sorted(name for name in have.keys() | need.keys() if have.get(name) != need.get(name))
    if differ:
        first = differ[0]
        more = f" (and {len(differ) - 1} more)" if len(differ) > 1 else ""
        raise not_a_model(
            source, f"{first} is {have.get(first, 'absent')} and should be {need.get(first, 'absent')}{more}"
        )
    return shape, {name: weights[name].float() for name in need}


def _seen(source: Path, weights: Mapping[str, Tensor], structure: Structure) -> dict[str, Any]:
    """The sizes that the tensors show; the context is not among them where positions have no weights."""
    tables = [f"{name}.weight" for name, layer in outside_blocks(structure) if isinstance(layer, Embedding)]
    if missing := [name for name in tables if name not in weights or weights[name].dim() != 2]:
        raise not_a_model(source, f"it has no {units.listed(missing)}")
    vocab_size, n_embd = weights["transformer.wte.weight"].shape
    sizes = {"n_embd": n_embd, "vocab_size": vocab_size, "bias": "transformer.ln_f.bias" in weights}
    if "transformer.wpe.weight" in tables:
        sizes["block_size"], width = weights["transformer.wpe.weight"].shape
        if width != n_embd:
            raise not_a_model(source, f"its token embeddings are {n_embd} wide and its position embeddings {width}")
    return sizes


def _check_stated(source: Path, shape: Mapping[str, Any], layers: set[str], stated: Stated) -> None:
    """Refuse tensors of another shape than the file states: a part is missing, or they belong to another config."""
    differ = [
        f"{stated.where} says {key}={_shown(said)}, and the tensors say {shape[key]}"
        for key in SHAPE_KEYS
        if (said := stated.shape.get(key)) is not None and said != shape[key]
    ]
    said = stated.shape.get("n_layer")
    if type(said) is int and 0 < said != shape["n_layer"]:
        number = next((layer for layer in range(said) if str(layer) not in layers), None)
        first = f"transformer.h.{said} is one too many" if number is None else f"transformer.h.{number} is missing"
        differ[0] += f" ({first})"
    if differ:
        raise ConfigError(
            f"the config and the tensors of {source} disagree",
            why="; ".join(differ),
            fix="copy or save it again, both together: a part may be missing, or the config is another model's",
            name="config-and-tensors-disagree",
        )


def _shown(value: object) -> str:
    """A value from a file in a few characters; of anything large only its kind."""
    plain = value is None or isinstance(value, bool | float | str) or (isinstance(value, int) and abs(value) < 2**63)
    return f"{value!r:.20}" if plain else type(value).__name__


def check_plain(source: Path, tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors that are not plain floating-point numbers, all of them in the file, before one is touched."""
    for name, tensor in tensors.items():
        if problem := not_plain(tensor):
            raise not_a_model(source, f"{name:.60} {problem}")
    storages = {
        storage.data_ptr(): storage.nbytes() for storage in (each.untyped_storage() for each in tensors.values())
    }
    claimed = sum(tensor.nbytes for name, tensor in tensors.items() if name != "lm_head.weight")  # tied: there twice
    if claimed > sum(storages.values()):
        held = units.size(sum(storages.values()))
        raise not_a_model(
            source, f"its tensors share numbers: they claim {units.size(claimed)}, and the file holds {held}"
        )


def not_plain(tensor: Tensor, dtypes: tuple[torch.dtype, ...] = FLOATS) -> str | None:
    """Why a tensor's values must not be touched: its kind, type or size; None for a plain one. Reads no value."""
    if type(tensor) not in (Tensor, torch.nn.Parameter) or tensor.is_nested:
        return "is a special kind of tensor, not plain numbers"
    if tensor.layout is not torch.strided:
        return f"is a {_short(tensor.layout)} tensor, not plain numbers"
    if tensor.is_quantized:
        return f"is quantized ({_short(tensor.dtype)}), not plain numbers"
    if tensor.device.type != "cpu":
        return f"has no numbers: it is on the device {tensor.device.type}"
    if tensor.dtype not in dtypes:
        return f"is of type {_short(tensor.dtype)}, and weights are {_short(dtypes[0])}, bfloat16 or float16"
    held = tensor.untyped_storage().nbytes()
    if tensor.nbytes > held:
        return f"claims {units.size(tensor.nbytes)}, and the file holds {units.size(held)} of it"
    return None


def _short(name: object) -> str:
    return str(name).removeprefix("torch.")


def cropped(snapshot: Snapshot, block_size: int, *, source: Path) -> Snapshot:
    """The model for a shorter context: only the first `block_size` positions, at step 0 and without moments."""
    longest = snapshot.shape["block_size"]
    if block_size > longest:
        raise context_too_long(block_size, longest, source)
    name, weights = "transformer.wpe.weight", dict(snapshot.weights)
    if name in weights:  # rotary positions have no weights
        weights[name] = weights[name][:block_size].contiguous()
    return Snapshot(shape={**snapshot.shape, "block_size": block_size}, weights=weights, notes=snapshot.notes)


def _check_numbers(source: Path, weights: Mapping[str, Tensor]) -> None:
    for name, tensor in weights.items():
        if not torch.isfinite(tensor).all():
            raise ConfigError(
                f"the weights of {source} are not numbers",
                why=f"{name} has nan or infinity in it: the run had diverged when it was saved",
                fix="give a checkpoint that was saved before",
                name="weights-not-numbers",
            )


def _tie_layers(source: Path, weights: dict[str, Tensor], tied: Mapping[str, str]) -> None:
    """Drop the second copy of every weight that two layers share."""
    for name, to in tied.items():
        own = weights.pop(f"{name}.weight", None)
        if own is not None and not torch.equal(own, weights.setdefault(f"{to}.weight", own)):
            raise not_a_model(source, "its head has weights of its own, and GPT-2's head is its token embedding")


def not_a_model(source: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{source} is not a model that onecard can train",
        why=why,
        fix="give a ckpt.pt of nanoGPT, or a Hugging Face folder whose config.json says model_type gpt2 or nanochat",
        name="not-a-model",
    )


def load_tensors(path: Path) -> Any:
    """What a torch file holds, tensors on the CPU; only data is read, and a file that wants to run code is refused."""
    try:
        _check_regular(path)
        _check_parts(path)
        _check_pickles(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickle protocols: what cannot be read is refused below
            # not mapped: nanoGPT saves over its ckpt.pt in place, and a mapped file would change under us
            return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise ConfigError(
            f"there is no file {path}",
            why="looked for a checkpoint, as torch.save writes it",
            fix="give the path of a ckpt.pt, e.g. out/ckpt.pt",
            name="no-such-file",
        ) from None
    except ConfigError:
        raise
    except Exception as problem:  # damaged files raise nearly anything
        raise cannot_read(path, problem) or _unreadable(path, problem) from problem


def _check_regular(path: Path) -> None:
    """Refuse what could be read for ever: a pipe, a terminal, /dev/zero."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise ConfigError(
            f"{path} cannot be read as a checkpoint",
            why="it is not a regular file",
            fix="give the path of a ckpt.pt, e.g. out/ckpt.pt",
            name="unreadable-checkpoint",
        )


def _check_parts(path: Path) -> None:
    """Refuse a file that grows when it is read, or that is not what was saved: torch does not look at checksums."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as file:
        claimed, held = sum(part.file_size for part in file.infolist()), path.stat().st_size
        if claimed > held:  # torch.save compresses nothing
            raise ConfigError(
                f"{path} cannot be read as a checkpoint",
                why=f"it claims to hold {units.size(claimed)}, and the file has {units.size(held)}",
                fix="give a complete ckpt.pt, as nanoGPT's train.py writes it",
                name="unreadable-checkpoint",
            )
        unchecked = all(part.CRC == 0 for part in file.infolist())  # torch.serialization.set_crc32_options(False)
        damaged = None if unchecked else file.testzip()
    if damaged:
        raise ConfigError(
            f"{path} is damaged",
            why=f"{damaged} in it does not match its checksum: a bit has flipped, or a copy went wrong",
            fix="copy or save it again",
            name="damaged-checkpoint",
        )


def _check_pickles(path: Path) -> None:
    """BadPickle unless all that torch would unpickle is quick, and calls at most torch's own: torch's list decides."""
    with path.open("rb") as file:
        is_archive = file.read(4) == b"PK\x03\x04"  # as torch decides
        if is_archive:
            content = torch._C.PyTorchFileReader(str(path)).get_record("data.pkl")  # the one that torch will take
        else:
            file.seek(0)
            content = file.read(_MOST_PICKLED_BYTES)
    if is_archive and len(content) > _MOST_PICKLED_BYTES:
        raise BadPickle(f"it holds more than {units.size(_MOST_PICKLED_BYTES)} that are no tensors")
    pickles = BytesIO(content)
    for _ in range(1 if is_archive else _PICKLES):
        check(pickles, instructions=_INSTRUCTIONS, calls=lambda name: name in CONTAINERS or name.startswith("torch."))


def _unreadable(path: Path, problem: Exception) -> ConfigError:
    said = str(problem)
    wanted = problem.called if isinstance(problem, Unsafe) else said.partition("GLOBAL ")[2].split(" ")[0] or "code"
    if (isinstance(problem, Unsafe) or "weights only" in said.lower()) and _may_be_pickle(path):
        return ConfigError(
            f"{path} holds more than data, and was not opened",
            why=f"loading it would call {wanted:.60}: a pickle can run any program, and onecard runs none",
            fix="save it again with only numbers, texts and tensors in it, or get it from somebody you trust",
            name="unsafe-checkpoint",
        )
    why = str(problem) if isinstance(problem, BadPickle) else f"torch says: {first_line(problem, 160)}"
    fix = "give a complete ckpt.pt, as nanoGPT's train.py writes it (a copy may have been cut off)"
    if not isinstance(problem, OSError) and not _may_be_pickle(path):
        why = "it does not begin as the files that torch.save writes: it is a log, a config or something else"
        fix = f"give a ckpt.pt as nanoGPT's train.py writes it; a log is for: onecard doctor {path}"
    return ConfigError(f"{path} cannot be read as a checkpoint", why=why, fix=fix, name="unreadable-checkpoint")


def _may_be_pickle(path: Path) -> bool:
    """Whether a file starts as torch.save's do, or as a pickle does."""
    with path.open("rb") as file:
        return file.read(2)[:1] in (b"P", b"\x80")
