"""The corpus that is already here: the source of this Python's standard library, as bytes.

Each file is a document that ends in byte 0. A hash of its name decides whether a document is for validation, so the
split is the same on every machine and in every version. Built once into a cache folder, in a second or two.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onecard.config.known_data import EMBEDDED
from onecard.data.tokens import write_tokens
from onecard.errors import MachineError
from onecard.files import sync_folder, writing
from onecard.untrusted_json import read_object

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
else:
    from onecard.data.extras import numpy as np

NAME, VOCABULARY = EMBEDDED.name, EMBEDDED.vocab_size
VAL_SHARE = 0.05
_NOT_CORPUS = frozenset("test tests idle_test site-packages dist-packages __pycache__ lib-dynload".split())
_STALE_SECONDS = 3600.0


def is_val(name: str) -> bool:
    """Whether the document of this name (relative, with forward slashes) is for validation."""
    # The word before the name was chosen so that pydoc's topics, a large file of prose, is for training. Otherwise
    # it would be half of the validation data.
    number = int.from_bytes(hashlib.sha256(f"onecard {name}".encode()).digest()[:8], "big")
    return number < VAL_SHARE * 2**64


def build_stdlib(home: Path, *, into: Path | None = None, source: Path | None = None) -> Path:
    """The folder of the corpus, with train.bin, val.bin and meta.json.

    If it is not complete in `home`, it is built in `into` (default: `home`).
    """
    root = source or Path(sysconfig.get_path("stdlib"))
    files = source_files(root)
    listing = hashlib.sha256(repr([(name, size) for name, _, size in files]).encode()).hexdigest()
    name = f"{NAME}-{platform.python_version()}-{listing[:8]}"
    for place in (home, into or home):
        folder = place / "data" / name
        if _complete(folder):
            return folder
    documents = _documents(files)
    if not documents["train"] or not documents["val"]:
        raise MachineError(
            "this Python comes without the source of its standard library",
            why=f"{root} holds {len(files)} readable .py files",
            fix="use other data: --dataset=FOLDER (a folder with train.bin and val.bin)",
            name="no-stdlib-source",
        )
    with writing(folder, instead="set ONECARD_HOME to a folder that can be written"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(folder.parent)
        building = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
        try:
            meta: dict[str, object] = {"schema": 1, "name": NAME, "dtype": "uint16", "vocab_size": VOCABULARY}
            meta |= {"tokenizer": "bytes", "source": f"standard library of Python {platform.python_version()}"}
            for split, texts in documents.items():
                meta[split] = [write_tokens(building / f"{split}.bin", _tokens(texts), dtype="uint16")]
            (building / "meta.json").write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")
            _put(building, folder)
        finally:
            shutil.rmtree(building, ignore_errors=True)
    return folder


def source_files(root: Path) -> list[tuple[str, Path, int]]:
    """Name, path and bytes of each source file below `root`, sorted by name."""
    found = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _NOT_CORPUS]
        for name in names:
            path = Path(folder, name)
            if name.endswith(".py") and not name.startswith("_sysconfigdata"):  # this machine's paths, not source
                with suppress(OSError):  # a dangling link
                    found.append((path.relative_to(root).as_posix(), path, path.stat().st_size))
    return sorted(found)


def _documents(files: list[tuple[str, Path, int]]) -> dict[str, list[bytes]]:
    """The texts of both splits, without files that are not UTF-8."""
    documents: dict[str, list[bytes]] = {"train": [], "val": []}
    for name, path, _ in files:
        with suppress(OSError, UnicodeDecodeError):
            text = path.read_bytes()
            text.decode("utf-8")
            if text and b"\0" not in text:
                documents["val" if is_val(name) else "train"].append(text)
    return documents


def _tokens(texts: list[bytes]) -> Iterator[npt.NDArray[np.uint8]]:
    for text in texts:
        yield np.frombuffer(text + b"\0", dtype=np.uint8)


def _complete(folder: Path) -> bool:
    """Whether the cache is complete, judged by the sizes of its files."""
    try:
        meta: dict[str, Any] = read_object(folder / "meta.json")
        entries = meta["train"] + meta["val"]
        return all((folder / entry["file"]).stat().st_size == 2 * entry["tokens"] for entry in entries)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _put(building: Path, folder: Path) -> None:
    """Rename the finished folder into place; another process may have done so first, which is fine."""
    if folder.exists() and not _complete(folder):
        shutil.rmtree(folder)
    try:
        building.rename(folder)
    except OSError:
        if not _complete(folder):
            raise
    sync_folder(folder.parent)


def _remove_stale(parent: Path) -> None:
    """Remove what killed builds left behind."""
    for left in parent.glob(".building-*"):
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > _STALE_SECONDS:
                shutil.rmtree(left, ignore_errors=True)
