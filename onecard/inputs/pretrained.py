"""A model that exists already: to start from (init_from) or to import, and whether it has the data's tokenizer."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from onecard.errors import ConfigError, OnecardError, unless_machine_failed
from onecard.inputs.config import Flags

if TYPE_CHECKING:
    from onecard.config.resolve import Resolved
    from onecard.config.schema import RunConfig
    from onecard.data.dataset import Dataset
    from onecard.data.tokenizers import Tokenizer
    from onecard.runs.folder import RunFolder
    from onecard.train.snapshot import Snapshot


@dataclass(frozen=True, kw_only=True)
class Pretrained:
    """A model to start from, and where it was found."""

    source: Path
    snapshot: Snapshot


def pretrained(resolved: Resolved) -> tuple[Resolved, Pretrained | None]:
    """(the config with the model's shape, the model cropped to the config's block_size); None from scratch."""
    from onecard.config.resolve import with_shape
    from onecard.train.snapshot import cropped

    name = resolved.config.init_from
    if not resolved.config.starts_pretrained:
        return resolved, None
    source, snapshot = bring(name)
    resolved = with_shape(resolved, snapshot.shape, origin=f"init_from={name}")
    return resolved, Pretrained(source=source, snapshot=cropped(snapshot, resolved.config.block_size, source=source))


def check_vocabulary(model: Pretrained, dataset: Dataset) -> list[str]:
    """Warnings where the data has another vocabulary than the model; ConfigError where the tokenizers differ."""
    learned = model.snapshot.shape["vocab_size"]
    return check_tokens(model.source, learned, dataset, instead="--init_from=scratch")


def check_tokens(source: Path, learned: int, dataset: Dataset, *, instead: str) -> list[str]:
    """The same for the model of a run or a folder, with a vocabulary of `learned`; `instead` is what else to type."""
    from onecard.data.tokenizers import agree

    own, datas = _tokenizer_of(source), dataset.tokenizer
    if own and datas and not agree(own, datas):
        same = {"gpt2": "gpt2", "bytes": "bytes", "tokenizer.json": quote(str(source))}.get(own.name)
        prepare = f"onecard data prepare SOURCE --out DIR --tokenizer={same}, or " if same else ""
        raise ConfigError(
            f"{source} was trained on tokens of {own.name} ({own.vocab_size:,}), and {dataset.name} has those of "
            f"{datas.name} ({datas.vocab_size:,})",
            why="the same id means another text in each, and the model knows only its own",
            fix=f"{prepare}{instead}",
            name="other-tokenizer",
        )
    known = dataset.vocab_size
    if not (own and datas) and known and known < 0.9 * learned:
        return [
            f"{dataset.name} has a vocabulary of {known:,}, and {source} was trained with {learned:,}: "
            "if the tokenizers differ, the weights are useless for this text"
        ]
    return []


def _tokenizer_of(source: Path) -> Tokenizer | None:
    """The tokenizer that a run or a Hugging Face folder was trained with; None where it cannot be known."""
    from onecard.data.tokenizer_files import JSON_FILE, find_tokenizer
    from onecard.inputs.before_run import config_of
    from onecard.inputs.tokenizer import tokenizer_of
    from onecard.runs.folder import is_run, load_run

    try:
        if is_run(source):
            return tokenizer_of(source, config_of(source, load_run(source).config))
        if (source / JSON_FILE).is_file():
            return find_tokenizer(str(source), ranks=None, environ=os.environ)
    except OnecardError as problem:
        unless_machine_failed(problem, None)  # it names none, or none that is here
    return None


def bring(source: str, *, download: bool = False) -> tuple[Path, Snapshot]:
    """(its path, the model): a file, a folder, or a name in Hugging Face's cache; from the hub only with `download`."""
    from onecard.inputs.hf_hub import place_of
    from onecard.train.interchange import read_snapshot

    path = place_of(source, download=download)
    return path, read_snapshot(path)


def imported_config(snapshot: Snapshot, flags: Flags, source: Path, *, name: str) -> tuple[Snapshot, RunConfig]:
    """nanoGPT's defaults < what the checkpoint says < flags; the shape is the checkpoint's, or a shorter context.

    Weights alone begin a new run, whose init_from is their `name`; a run that continues keeps its own.
    """
    from onecard.config.resolve import checked, flag_values
    from onecard.config.schema import KEYS
    from onecard.train.snapshot import cropped

    said = {key: value for key, value in snapshot.config.items() if key in KEYS and "place" not in KEYS[key].kind}
    if not snapshot.step:
        said["init_from"] = name
    elif said.get("init_from") == "resume":  # of itself: what it began from is not known any more
        del said["init_from"]
    given = flag_values(flags)
    origins = dict.fromkeys(KEYS, "default") | dict.fromkeys(said, source.name) | {key: f"--{key}" for key in given}
    config = checked({"out_dir": str(_default_folder(source)), **said, **snapshot.shape, **given}, origins)
    if config.block_size != snapshot.shape["block_size"] and not snapshot.step:
        snapshot = cropped(snapshot, config.block_size, source=source)
    update: dict[str, object] = {key: said[key] for key in ("batch_size", "gradient_accumulation_steps") if key in said}
    before = checked({**config.model_dump(), **update, **snapshot.shape}, origins)
    fixed = [key for key in snapshot.shape if getattr(config, key) != getattr(before, key)]
    if snapshot.step and config.tokens_per_step != before.tokens_per_step:
        keys = ("batch_size", "gradient_accumulation_steps")
        fixed += [key for key in keys if getattr(config, key) != getattr(before, key)]
    if fixed:
        named = ", ".join(f"{key}={getattr(config, key)} (is {getattr(before, key)})" for key in dict.fromkeys(fixed))
        raise ConfigError(
            f"{source.name} cannot be imported with {named}",
            why="the shape of its weights and the tokens per update cannot change",
            fix="leave these keys out",
            name="import-mismatch",
        )
    return snapshot, config


def put(
    folder: RunFolder, snapshot: Snapshot, config: RunConfig, *, source: Path, data_fingerprint: str | None
) -> None:
    """Fill a new run folder with a model from elsewhere, and with its tokenizer where it brought one."""
    from onecard.data.tokenizer_files import JSON_FILE
    from onecard.data.tokenizers import MOST_BYTES
    from onecard.files import write_atomically
    from onecard.opening import read_file
    from onecard.train.interchange import save_snapshot

    save_snapshot(folder, snapshot, config, source=str(source), data_fingerprint=data_fingerprint)
    if source.is_dir() and (source / JSON_FILE).is_file():
        write_atomically(folder.path / JSON_FILE, read_file(source / JSON_FILE, most_bytes=MOST_BYTES))


def _default_folder(source: Path) -> Path:
    """runs/ and the name of the folder it is in: nanoGPT's checkpoints are all called ckpt.pt."""
    place = source.resolve()
    if place.parent.name == "snapshots":  # models--org--name/snapshots/revision, in the hub's cache
        return Path("runs") / place.parent.parent.name.rpartition("--")[2]
    return Path("runs") / (place.parent.name if place.name == "ckpt.pt" else place.name.removesuffix(".pt"))
