"""The documents of files as texts, one after another, for what reads them without preparing them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from onecard.config.names import nearest_file
from onecard.data.document import Bad
from onecard.data.documents import read_documents
from onecard.data.encode import document_text
from onecard.data.sources import SourceFile, left_out, local_files
from onecard.errors import ConfigError

COLUMN = "text"


@dataclass
class Texts:
    """The texts of a file or folder. Reading them counts what is left out, and how far it is."""

    files: Sequence[SourceFile]
    left_out: Counter[str] = field(default_factory=Counter)  # by the reason
    read_bytes: int = 0  # on disk

    @property
    def size_bytes(self) -> int | None:
        """Of all files; None where that is not known."""
        sizes = [file.size_bytes for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        """Each document, also as UTF-8."""
        before = 0
        for file in self.files:
            for read in read_documents(file, column=COLUMN):
                found: object = read.document
                if isinstance(found, bytes):
                    found = document_text(found, column=COLUMN if read.is_json else None)
                self.read_bytes = before + read.disk_bytes
                if isinstance(found, tuple):
                    yield found
                elif found is not Bad.EMPTY:
                    self.left_out[str(found) if isinstance(found, Bad) else str(Bad.NO_TEXT)] += 1
            before += file.size_bytes or 0


def texts_at(named: str) -> Texts:
    """The texts of a file or a folder; ConfigError where there is none."""
    files = local_files(named)
    if files is None:
        path = Path(named)
        near = (
            nearest_file(path.name, [child.name for child in path.parent.iterdir()]) if path.parent.is_dir() else None
        )
        raise ConfigError(
            f"there is no file {named[:200]}",
            why=f"it was looked for from the folder {Path.cwd().name}/",
            fix=f"did you mean {path.parent / near} ?"
            if near
            else "name a text (.txt, .jsonl, .parquet, packed) or a folder",
            name="no-such-file",
        )
    beside = left_out(named)
    return Texts(files, Counter({f"a file beside tables, such as {beside[0].name}": len(beside)} if beside else {}))
