"""A model and where its training stood: what every format of checkpoint is read into and written from."""

from __future__ import annotations

import warnings
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onecard.config.schema import RunConfig
from onecard.errors import ConfigError, first_line
from onecard.train.model import GPT


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A model, checked to be a GPT-2, under nanoGPT's names."""

    shape: Mapping[str, Any]  # the keys of schema.SHAPE_KEYS
    weights: Mapping[str, Tensor]  # float32, by nanoGPT's names; the tied head once, as transformer.wte.weight
    moments: Mapping[str, Mapping[str, Tensor]] = field(default_factory=dict)  # AdamW's, by parameter; {}: none yet
    step: int = 0
    val_loss: float | None = None
    config: Mapping[str, object] = field(default_factory=dict)  # what the source says of its run, by nanoGPT's keys
    notes: tuple[str, ...] = ()  # what the user should know of what was left out or differs


def checked_weights(source: Path, tensors: Mapping[str, Tensor], *, n_head: object) -> tuple[dict[str, Any], Any]:
    """(shape, float32 weights): the shape read off the tensors themselves, every name and size as GPT-2 has them."""
    weights = dict(tensors)
    _check_numbers(source, weights)
    _tie_head(source, weights)
    try:
        vocab_size, n_embd = weights["transformer.wte.weight"].shape
        block_size, _ = weights["transformer.wpe.weight"].shape
    except (KeyError, ValueError):
        raise not_gpt2(source, "it has no token and position embeddings (transformer.wte, transformer.wpe)") from None
    n_layer = len({name.split(".")[2] for name in weights if name.startswith("transformer.h.")})
    if type(n_head) is not int or n_head < 1 or n_embd % n_head or n_layer < 1:
        raise not_gpt2(source, f"{n_layer} layers of width {n_embd} with n_head={n_head!r:.20} are not a valid model")
    shape = {
        "n_layer": n_layer,
        "n_head": n_head,
        "n_embd": n_embd,
        "block_size": block_size,
        "vocab_size": vocab_size,
        "bias": "transformer.ln_f.bias" in weights,
    }
    have = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    need = parameter_shapes(RunConfig.model_validate(shape))
    differ = sorted(name for name in have.keys() | need.keys() if have.get(name) != need.get(name))
    if differ:
        first = differ[0]
        more = f" (and {len(differ) - 1} more)" if len(differ) > 1 else ""
        raise not_gpt2(
            source, f"{first} is {have.get(first, 'absent')} and should be {need.get(first, 'absent')}{more}"
        )
    return shape, {name: weights[name].float() for name in need}


def cropped(snapshot: Snapshot, block_size: int, *, source: Path) -> Snapshot:
    """The weights for a shorter context: only the first `block_size` positions, at step 0 and without moments."""
    longest = snapshot.shape["block_size"]
    if block_size > longest:
        raise ConfigError(
            f"block_size={block_size} is longer than the {longest} positions of {source}",
            why="the model has learned no embedding for the positions beyond",
            fix=f"--block_size={longest}",
            name="context-too-long",
        )
    name = "transformer.wpe.weight"
    weights = {**snapshot.weights, name: snapshot.weights[name][:block_size].contiguous()}
    return Snapshot(shape={**snapshot.shape, "block_size": block_size}, weights=weights, notes=snapshot.notes)


def parameter_shapes(config: RunConfig) -> dict[str, tuple[int, ...]]:
    """Every parameter of the model of `config`, in its order, with its sizes; nothing is allocated."""
    with torch.device("meta"):
        return {name: tuple(parameter.shape) for name, parameter in GPT(config).named_parameters()}


def _check_numbers(source: Path, weights: Mapping[str, Tensor]) -> None:
    for name, tensor in weights.items():
        if not torch.isfinite(tensor).all():
            raise ConfigError(
                f"the weights of {source} are not numbers",
                why=f"{name} has nan or infinity in it: the run had diverged when it was saved",
                fix="give a checkpoint that was saved before",
                name="weights-not-numbers",
            )


def _tie_head(source: Path, weights: dict[str, Tensor]) -> None:
    head = weights.pop("lm_head.weight", None)
    if head is None:
        return
    embedding = weights.setdefault("transformer.wte.weight", head)
    if not torch.equal(head, embedding):
        raise not_gpt2(source, "its head has weights of its own, and GPT-2's head is its token embedding")


def not_gpt2(source: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{source} is not a GPT-2 that onecard can train",
        why=why,
        fix="give a ckpt.pt of nanoGPT, or a Hugging Face folder whose config.json says model_type gpt2",
        name="not-gpt2",
    )


def load_tensors(path: Path) -> Any:
    """What a torch file holds, tensors on the CPU; only data is read, and a file that wants to run code is refused."""
    try:
        _check_parts(path)
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
        raise _unreadable(path, problem) from problem


def _check_parts(path: Path) -> None:
    """Refuse a file whose checksums say that it is not what was saved: torch does not look at them."""
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as file:
        unchecked = all(part.CRC == 0 for part in file.infolist())  # torch.serialization.set_crc32_options(False)
        damaged = None if unchecked else file.testzip()
    if damaged:
        raise ConfigError(
            f"{path} is damaged",
            why=f"{damaged} in it does not match its checksum: a bit has flipped, or a copy went wrong",
            fix="copy or save it again",
            name="damaged-checkpoint",
        )


def _unreadable(path: Path, problem: Exception) -> ConfigError:
    said = str(problem)
    if "weights only" in said.lower() and _may_be_pickle(path):
        wanted = said.partition("GLOBAL ")[2].split(" ")[0] or "code"
        return ConfigError(
            f"{path} holds more than data, and was not opened",
            why=f"loading it would call {wanted:.60}: a pickle can run any program, and onecard runs none",
            fix="get the file from whom you trust, and save it again there with plain numbers, texts and tensors only",
            name="unsafe-checkpoint",
        )
    why = f"torch says: {first_line(problem, 160)}"
    fix = "give a complete ckpt.pt, as nanoGPT's train.py writes it (a copy may have been cut off)"
    if not isinstance(problem, OSError) and not _may_be_pickle(path):
        why = "it does not begin as the files that torch.save writes: it is a log, a config or something else"
        fix = f"give a ckpt.pt as nanoGPT's train.py writes it; a log is for: onecard doctor {path}"
    return ConfigError(f"{path} cannot be read as a checkpoint", why=why, fix=fix, name="unreadable-checkpoint")


def _may_be_pickle(path: Path) -> bool:
    """Whether a file starts as torch.save's do, or as a pickle does."""
    with path.open("rb") as file:
        return file.read(2)[:1] in (b"P", b"\x80")
