"""A dataset is a folder with train and val tokens: nanoGPT's, llm.c's shards, onecard's own, or the embedded one.

onecard's own folders have a meta.json. You may also put one beside any other .bin files, to say what they are:

    {"schema": 1, "dtype": "uint16", "vocab_size": 256, "tokenizer": "bytes",
     "train": [{"file": "train.bin", "tokens": 11500000, "sha256": "…"}], "val": [{…}]}

Every key may be missing; without "train" and "val" the files are found by their names.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from onecard.config.names import nearest
from onecard.data.folders import SEARCH, find_folder, folder_names
from onecard.data.home import cache_home, writable_home
from onecard.data.hub import NAMED
from onecard.data.manifest import bad_meta, read_meta, read_progress
from onecard.data.nanogpt_meta import MAX_BYTES
from onecard.data.nanogpt_meta import read_meta as read_nanogpt_meta
from onecard.data.stdlib import NAME as EMBEDDED
from onecard.data.stdlib import build_stdlib
from onecard.data.tokenizer_files import kept_tokenizer
from onecard.data.tokenizers import CharacterTokenizer, Tokenizer
from onecard.data.tokens import TokenFile, Tokens, TokenType, fingerprint, token_file, val_in_train
from onecard.errors import ConfigError
from onecard.opening import read_file
from onecard.units import MIB

TILE = 64  # of the products that make logits: with other vocabularies they are slower, and need one more copy
SMALL_BYTES = 64 * MIB  # of token files: up to here, checksums are verified at every opening, which takes 0.05 s
LARGE_VOCABULARY = 1024  # from here on the time of these products matters


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Tokens to train on and to validate on, and what is known about them."""

    name: str
    path: Path
    train: Tokens
    val: Tokens
    vocab_size: int | None  # None if the data does not say
    model_vocab_size: int | None  # what a model for it should have
    tokenizer: Tokenizer | None
    fingerprint: str  # the same for the same tokens, wherever they are stored
    dtype_is_known: bool  # by meta.json, meta.pkl or a header; otherwise it was taken to be uint16


def open_dataset(name_or_path: str, *, environ: Mapping[str, str], search: Sequence[Path] = SEARCH) -> Dataset:
    """The dataset of that name: the embedded one, or a folder in one of `search`, or a path.

    `environ` says where the caches are: of GPT-2's tokenizer, and of the embedded corpus, which is built if needed.
    """
    if name_or_path == EMBEDDED:
        built = build_stdlib(cache_home(environ), into=writable_home(environ))
        return open_folder(built, name=EMBEDDED, environ=environ)
    if folder := find_folder(name_or_path, search=search):
        return open_folder(folder, name=name_or_path, environ=environ)
    near = nearest(name_or_path, [EMBEDDED, *folder_names(search)])
    raise ConfigError(
        f"there is no dataset {name_or_path}",
        why=f"looked for train.bin in {', '.join(str(place / name_or_path) for place in search)}",
        fix=_how_to_have(name_or_path, near or EMBEDDED),
        name="no-such-dataset",
    )


def _how_to_have(name_or_path: str, other: str) -> str:
    """What to type for a dataset that is not here: the command that makes it, or the name of one that is here."""
    folder = Path(name_or_path) if "/" in name_or_path else Path("data", name_or_path)
    if folder.name in NAMED:
        return f"onecard data prepare {folder.name} --out {folder}, or --dataset={other}"
    made = f"onecard data prepare SOURCE --out {folder} (nanoGPT: python {folder}/prepare.py)"
    return f"--dataset={other}, or prepare it first: {made}"


def open_folder(folder: Path, *, name: str, environ: Mapping[str, str]) -> Dataset:
    """The dataset in a folder of token files: reads its description and maps its files."""
    progress = read_progress(folder)
    if progress is not None and not progress.finished:
        raise ConfigError(
            f"{folder} is not completely prepared",
            why=f"`onecard data prepare` stopped after {progress.tokens:,} tokens",
            fix="run the same command again; it continues where it stopped (--tokens N ends it at N tokens)",
            name="data-unfinished",
        )
    meta = read_meta(folder)
    vocab_size = _number_in(meta, "vocab_size")
    model_vocab_size = padded(vocab_size) if vocab_size else None
    tokenizer = kept_tokenizer(folder, meta, environ=environ)
    if (folder / "meta.pkl").exists():
        try:
            nanogpt = read_nanogpt_meta(read_file(folder / "meta.pkl", most_bytes=MAX_BYTES))
        except (OSError, ValueError) as problem:
            raise ConfigError(
                f"{folder / 'meta.pkl'} cannot be used: {problem}",
                why="onecard runs no code in it, so it may only hold plain numbers and texts, as nanoGPT's prepare.py "
                "writes them; NumPy's numbers are not plain",
                fix=f"run `python {folder}/prepare.py` again, with int(…) around a vocab_size of NumPy's; or remove "
                "the file and set --vocab_size=N",
                name="bad-meta",
            ) from problem
        vocab_size = vocab_size or nanogpt.vocab_size
        model_vocab_size = nanogpt.vocab_size  # exactly this, as nanoGPT takes it
        tokenizer = tokenizer or (CharacterTokenizer(nanogpt.characters) if nanogpt.characters else None)
    stated = meta.get("dtype")
    if stated is not None and stated not in get_args(TokenType):
        raise bad_meta(folder, f'"dtype" is {stated!r}, but must be "uint16" or "uint32"')
    too_many = vocab_size is not None and vocab_size > 2**16  # ids that uint16 cannot hold
    dtype: TokenType = stated or ("uint32" if too_many else "uint16")
    train, val = (_split(folder, split, meta=meta, dtype=dtype) for split in ("train", "val"))
    files = train.files + val.files
    small = sum(file.end_byte for file in files) <= SMALL_BYTES
    changed = small and False in _checked(folder, meta, files).values()  # a sample could miss a small change
    return Dataset(
        name=name,
        path=folder,
        train=train,
        val=val,
        vocab_size=vocab_size,
        model_vocab_size=model_vocab_size,
        tokenizer=tokenizer,
        fingerprint=fingerprint(train, val, whole=changed),
        dtype_is_known=stated is not None or too_many or all(file.first_byte for file in files),
    )


def padded(vocab_size: int) -> int:
    """The vocabulary for a model: a large one is rounded up to whole tiles, as nanoGPT rounds 50,257 to 50,304."""
    return vocab_size if vocab_size < LARGE_VOCABULARY else -(-vocab_size // TILE) * TILE


def checked_files(dataset: Dataset) -> dict[str, bool | None]:
    """Whether each file matches its sha256 in meta.json; None if there is none.

    Reads everything: a minute per 50 GB or so.
    """
    return _checked(dataset.path, read_meta(dataset.path), dataset.train.files + dataset.val.files)


def _checked(folder: Path, meta: Mapping[str, Any], files: Sequence[TokenFile]) -> dict[str, bool | None]:
    promised = {name: digest for split in ("train", "val") for name, _, digest in _entries(folder, meta, split)}
    checked: dict[str, bool | None] = {}
    for stored in files:
        digest = promised.get(stored.path.name)
        if digest is None:
            checked[stored.path.name] = None
            continue
        with stored.path.open("rb") as file:
            checked[stored.path.name] = hashlib.file_digest(file, "sha256").hexdigest() == digest
    return checked


def split_sizes(folder: Path) -> tuple[int, int]:
    """Tokens for training and for validation, from the sizes of their files: nothing is mapped, no checksum verified.

    ConfigError if the folder is not a dataset; (0, 0) if it is not completely prepared.
    """
    train, val = _both_splits(folder)
    return sum(file.count for file in train), sum(file.count for file in val)


def val_in_train_of(folder: Path) -> str:
    """How the validation split is part of the training split, in words; empty where it is not."""
    train, val = _both_splits(folder)
    return val_in_train(Tokens(train), Tokens(val))


def _both_splits(folder: Path) -> tuple[list[TokenFile], list[TokenFile]]:
    """The files for training and for validation; none of a folder that is not prepared to its end."""
    progress = read_progress(folder)
    if progress is not None and not progress.finished:
        return [], []
    meta = read_meta(folder)
    vocab_size = _number_in(meta, "vocab_size")
    if vocab_size is None and (folder / "meta.pkl").exists():
        vocab_size = read_nanogpt_meta(read_file(folder / "meta.pkl", most_bytes=MAX_BYTES)).vocab_size
    dtype: TokenType = "uint32" if meta.get("dtype") == "uint32" or (vocab_size or 0) > 2**16 else "uint16"
    train, val = (_split_files(folder, split, meta=meta, dtype=dtype) for split in ("train", "val"))
    return train, val


def _split(folder: Path, split: str, *, meta: Mapping[str, Any], dtype: TokenType) -> Tokens:
    return Tokens(_split_files(folder, split, meta=meta, dtype=dtype))


def _split_files(folder: Path, split: str, *, meta: Mapping[str, Any], dtype: TokenType) -> list[TokenFile]:
    """The files of a split: as meta.json lists them, or {split}.bin, or shards such as fineweb_{split}_000001.bin."""
    entries = _entries(folder, meta, split)
    if not entries:
        shards = sorted(path for path in folder.glob("*.bin") if re.search(rf"(^|[_-]){split}([_-]|\.bin$)", path.name))
        plain = folder / f"{split}.bin"
        return [token_file(path, dtype=dtype) for path in ([plain] if plain.exists() or not shards else shards)]
    files = [token_file(folder / name, dtype=dtype) for name, _, _ in entries]
    for file, (name, count, _) in zip(files, entries, strict=True):
        if count is not None and file.count != count:
            raise ConfigError(
                f"{folder / name} has {file.count:,} tokens, but meta.json says {count:,}",
                why="the file was cut off, or belongs to other data",
                fix="prepare the data again",
                name="token-file-damaged",
            )
    return files


def _entries(folder: Path, meta: Mapping[str, Any], split: str) -> list[tuple[str, int | None, str | None]]:
    """File name, tokens and sha256 of each file of a split, where meta.json lists them."""
    listed = meta.get(split, [])
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise bad_meta(folder, f'"{split}" is not a list of files')
    entries = []
    for entry in listed:
        name, count, digest = entry.get("file"), entry.get("tokens"), entry.get("sha256")
        if not isinstance(name, str) or name != Path(name).name:  # meta.json must not name a file outside its folder
            raise bad_meta(folder, f'"{split}" has a file named {name!r:.60}')
        entries.append((name, count if type(count) is int else None, digest if isinstance(digest, str) else None))
    return entries


def _number_in(meta: Mapping[str, Any], key: str) -> int | None:
    value = meta.get(key)
    return value if type(value) is int and 0 < value <= 2**24 else None
