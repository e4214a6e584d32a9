"""A dataset is a folder with train and val tokens: nanoGPT's, llm.c's shards, datatrove's, Megatron's, onecard's own,
or the embedded one. Of datatrove and Megatron a single file is one, too.

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
from shlex import quote
from typing import Any, get_args

from onecard.config.names import nearest
from onecard.config.paths import expanded
from onecard.data.folders import SEARCH, find_data, folder_names
from onecard.data.home import cache_home, writable_home
from onecard.data.hub import NAMED
from onecard.data.indexed import indexed_file, is_indexed
from onecard.data.indexed_splits import Splits, indexed_files, indexed_splits
from onecard.data.manifest import bad_meta, read_meta, read_progress
from onecard.data.nanogpt_meta import MAX_BYTES, NanogptMeta
from onecard.data.nanogpt_meta import read_meta as read_nanogpt_meta
from onecard.data.stdlib import NAME as EMBEDDED
from onecard.data.stdlib import build_stdlib
from onecard.data.tokenizer_files import kept_tokenizer, tokenizer_named
from onecard.data.tokenizers import CharacterTokenizer, Tokenizer
from onecard.data.tokens import TokenFile, Tokens, TokenType, fingerprint, token_file
from onecard.errors import ConfigError, unless_machine_failed
from onecard.opening import cannot_read, read_file
from onecard.units import MIB

TILE = 64  # of the products that make logits: with other vocabularies they are slower, and need one more copy
SMALL_BYTES = 64 * MIB  # of token files: up to here, checksums are verified at every opening, which takes 0.05 s
LARGE_VOCABULARY = 1024  # from here on the time of these products matters


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Tokens to train on and to validate on, and what is known about them."""

    name: str
    path: Path  # of the folder, or of a single file with an index
    train: Tokens
    val: Tokens
    vocab_size: int | None  # None if the data does not say
    model_vocab_size: int | None  # what a model for it should have
    tokenizer: Tokenizer | None
    fingerprint: str  # the same for the same tokens, wherever they are stored
    dtype_is_known: bool  # by meta.json, meta.pkl, a header or an index; otherwise it was taken to be uint16
    documents: Mapping[str, int] | None = None  # in each split, where an index or meta.json says
    held_out: str = ""  # in words, where no file is for validation, what it takes from the files for training
    tokenizer_name: str = ""  # where the data says which one it is, but does not have it

    @property
    def folder(self) -> Path:
        return self.path.parent if self.path.is_file() else self.path


def open_dataset(name_or_path: str, *, environ: Mapping[str, str], search: Sequence[Path] = SEARCH) -> Dataset:
    """The dataset of that name: the embedded one, or a folder in one of `search`, or a path.

    `environ` says where the caches are: of GPT-2's tokenizer, and of the embedded corpus, which is built if needed.
    """
    if name_or_path == EMBEDDED:
        built = build_stdlib(cache_home(environ), into=writable_home(environ))
        return open_path(built, name=EMBEDDED, environ=environ)
    if path := find_data(name_or_path, search=search):
        return open_path(path, name=name_or_path, environ=environ)
    places = list(dict.fromkeys(place / expanded(name_or_path) for place in search))  # all the same for a whole path
    near = nearest(name_or_path, [EMBEDDED, *folder_names(search)])
    raise ConfigError(
        f"there is no dataset {name_or_path}",
        why=f"looked for train.bin, or datatrove's or Megatron's files, in {', '.join(map(str, places))}",
        fix=_how_to_have(name_or_path, near or EMBEDDED, places),
        name="no-such-dataset",
    )


def _how_to_have(name_or_path: str, other: str, places: Sequence[Path]) -> str:
    """What to type for a dataset that is not here: the command that makes it, or the name of one that is here."""
    folder = Path(name_or_path) if "/" in name_or_path else Path("data", name_or_path)
    if folder.name in NAMED:
        return f"onecard data prepare {folder.name} --out {folder}, or --dataset={other}"
    if theirs := next((script for place in places if _is_file(script := place / "prepare.py")), None):
        return f"python {quote(str(theirs))}   (nanoGPT's, which makes it), or --dataset={other}"
    return f"--dataset={other}, or prepare it first: onecard data prepare SOURCE --out {quote(str(folder))}"


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError) as problem:  # a name that no file can have
        return unless_machine_failed(problem, False)


def open_path(path: Path, *, name: str, environ: Mapping[str, str]) -> Dataset:
    """The dataset in a folder of token files, or in one file: reads its description and maps its files."""
    folder = path.parent if path.is_file() else path
    progress = read_progress(folder)
    if progress is not None and not progress.finished:
        raise ConfigError(
            f"{folder} is not completely prepared",
            why=f"`onecard data prepare` stopped after {progress.tokens:,} tokens",
            fix="run the same command again; it continues where it stopped (--tokens N ends it at N tokens)",
            name="data-unfinished",
        )
    meta = read_meta(folder)
    vocab_size, model_vocab_size, nanogpt = _vocabulary(folder, meta)
    tokenizer = kept_tokenizer(folder, meta, environ=environ)
    if nanogpt:
        tokenizer = tokenizer or (CharacterTokenizer(nanogpt.characters) if nanogpt.characters else None)
    stated = meta.get("dtype")
    if stated is not None and stated not in get_args(TokenType):
        raise bad_meta(folder, f'"dtype" is {stated!r}, but must be "uint16" or "uint32"')
    too_many = vocab_size is not None and vocab_size > 2**16  # ids that uint16 cannot hold
    splits = _splits(path, meta, dtype=stated or ("uint32" if too_many else "uint16"))
    if tokenizer is None and splits.is_indexed:
        tokenizer, stated_size = tokenizer_named(splits.tokenizer, folder, environ=environ)
        vocab_size = vocab_size or stated_size
        model_vocab_size = model_vocab_size or (padded(vocab_size) if vocab_size else None)
    train, val = Tokens(splits.train), Tokens(splits.val)
    files = train.files + val.files
    small = sum(file.end_byte for file in files) <= SMALL_BYTES
    changed = small and False in _checked(folder, meta, files).values()  # a sample could miss a small change
    return Dataset(
        name=name,
        path=path,
        train=train,
        val=val,
        vocab_size=vocab_size,
        model_vocab_size=model_vocab_size,
        tokenizer=tokenizer,
        fingerprint=fingerprint(train, val, whole=changed),
        dtype_is_known=stated is not None or too_many or splits.dtype_is_known,
        documents=splits.documents or meta.get("documents"),
        held_out=splits.held_out,
        tokenizer_name=splits.tokenizer,
    )


def model_vocabulary(path: Path) -> int | None:
    """The vocabulary of a model for the data at `path`, as far as meta.json or meta.pkl says; no token is read."""
    folder = path.parent if path.is_file() else path
    return _vocabulary(folder, read_meta(folder))[1]


def _vocabulary(folder: Path, meta: Mapping[str, Any]) -> tuple[int | None, int | None, NanogptMeta | None]:
    """(the vocabulary of the data, that of a model for it, nanoGPT's meta.pkl)."""
    vocab_size = _number_in(meta, "vocab_size")
    if not (folder / "meta.pkl").exists():
        return vocab_size, padded(vocab_size) if vocab_size else None, None
    try:
        nanogpt = read_nanogpt_meta(read_file(folder / "meta.pkl", most_bytes=MAX_BYTES))
    except (OSError, ValueError) as problem:
        raise cannot_read(folder / "meta.pkl", problem) or ConfigError(
            f"{folder / 'meta.pkl'} cannot be used: {problem}",
            why="onecard runs no code in it, so it may only hold plain numbers and texts, as nanoGPT's prepare.py "
            "writes them; NumPy's numbers are not plain",
            fix=f"run `python {folder}/prepare.py` again, with int(…) around a vocab_size of NumPy's; or move "
            "the file elsewhere and set --vocab_size=N",
            name="bad-meta",
        ) from problem
    return vocab_size or nanogpt.vocab_size, nanogpt.vocab_size, nanogpt  # exactly this, as nanoGPT takes it


def padded(vocab_size: int) -> int:
    """The vocabulary for a model: a large one is rounded up to whole tiles, as nanoGPT rounds 50,257 to 50,304."""
    return vocab_size if vocab_size < LARGE_VOCABULARY else -(-vocab_size // TILE) * TILE


def checked_files(dataset: Dataset) -> dict[str, bool | None]:
    """Whether each file matches its sha256 in meta.json; None if there is none.

    Reads everything: a minute per 50 GB or so.
    """
    return _checked(dataset.folder, read_meta(dataset.folder), dataset.train.files + dataset.val.files)


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


def splits_at(path: Path) -> Splits:
    """The files for training and for validation, from their names and sizes: no token is read, no checksum verified.

    ConfigError if this is not a dataset; no files of a folder that is not prepared to its end.
    """
    folder = path.parent if path.is_file() else path
    progress = read_progress(folder)
    if progress is not None and not progress.finished:
        return Splits(train=[], val=[])
    meta = read_meta(folder)
    vocab_size = _number_in(meta, "vocab_size")
    if vocab_size is None and (folder / "meta.pkl").exists():
        vocab_size = read_nanogpt_meta(read_file(folder / "meta.pkl", most_bytes=MAX_BYTES)).vocab_size
    dtype: TokenType = "uint32" if meta.get("dtype") == "uint32" or (vocab_size or 0) > 2**16 else "uint16"
    return _splits(path, meta, dtype=dtype)


def _splits(path: Path, meta: Mapping[str, Any], *, dtype: TokenType) -> Splits:
    """The files of both splits: as meta.json lists them, else as their program writes them."""
    listed = path.is_dir() and any(_entries(path, meta, split) for split in ("train", "val"))
    if not listed and (indexed := indexed_files(path)):
        return indexed_splits(path, indexed, dtype=dtype)
    train, val = (_split_files(path, split, meta=meta, dtype=dtype) for split in ("train", "val"))
    return Splits(train=train, val=val, dtype_is_known=all(file.first_byte for file in train + val))


def _split_files(folder: Path, split: str, *, meta: Mapping[str, Any], dtype: TokenType) -> list[TokenFile]:
    """The files of a split: as meta.json lists them, or {split}.bin, or shards such as fineweb_{split}_000001.bin."""
    entries = _entries(folder, meta, split)
    if not entries:
        shards = sorted(path for path in folder.glob("*.bin") if re.search(rf"(^|[_-]){split}([_-]|\.bin$)", path.name))
        plain = folder / f"{split}.bin"
        return [token_file(path, dtype=dtype) for path in ([plain] if plain.exists() or not shards else shards)]
    paths = [folder / name for name, _, _ in entries]
    files = [
        indexed_file(path, dtype=dtype).stored if is_indexed(path) else token_file(path, dtype=dtype) for path in paths
    ]
    for file, (name, count, _) in zip(files, entries, strict=True):
        if count is not None and file.count != count:
            raise ConfigError(
                f"{folder / name} has {file.count:,} tokens, but meta.json says {count:,}",
                why="the file was cut off, or belongs to other data",
                fix="put back a copy of it, or prepare the data again",
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
