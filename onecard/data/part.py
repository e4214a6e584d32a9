"""One process's part of a preparation: documents in, shards out, saved so that a kill loses nothing.

Every few seconds the tokens are synced to disk, and then progress.json is replaced: it says how long the files are and
how far reading is. A restart cuts the files to those lengths and continues reading from there. So no document is
missing or written twice, and the bytes are the same as without a stop, with any number of workers.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from onecard.data.blocks import DocumentBlock, read_blocks
from onecard.data.document import Bad
from onecard.data.documents import place_words
from onecard.data.downloads import Fetcher
from onecard.data.duplicates import DocumentHashes
from onecard.data.encode import Encoded, Encoding, encode_blocks
from onecard.data.manifest import Progress, write_meta, write_progress
from onecard.data.nanogpt_meta import characters_meta
from onecard.data.prepared import Prepared
from onecard.data.shards import Layout, ShardWriter
from onecard.data.sources import Source
from onecard.data.split import SPLITS, val_threshold
from onecard.data.tokenizer_files import kept_tokenizer
from onecard.data.tokens import TOKEN_BYTES, token_type
from onecard.data.unusable import unusable
from onecard.data.watch import Watch
from onecard.files import check_space, write_atomically

_SEEN = "seen"


class Part:
    """One process's part of a preparation; use it in a `with`, which saves even after an error."""

    def __init__(self, folder: Path, source: Source, begun: Progress, wanted: int | None, watch: Watch) -> None:
        self.folder = folder
        self.source = source
        self.wanted = wanted
        self.watch = watch
        self.progress = replace(begun, finished=False, files_read=0)  # always what the files hold, or less
        self._begun = begun
        self._saved_at = 0.0
        assert begun.tokenizer is not None
        self._dtype = token_type(begun.tokenizer["vocab_size"])
        more = max(0, (wanted or 0) - begun.tokens)
        check_space(folder, needed_bytes=more * TOKEN_BYTES[self._dtype])
        write_progress(folder, self.progress)
        with ExitStack() as opened:
            self._writers = {split: self._writer(split) for split in SPLITS}
            for writer in self._writers.values():
                opened.callback(writer.close)
            self._seen = DocumentHashes(folder / _SEEN, count=begun.seen) if begun.settings["dedup"] else None
            if self._seen:
                opened.callback(self._seen.close)
            self._files = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._files:
            if not self.progress.finished and (kind is None or not issubclass(kind, OSError)):
                self.save()

    def read(self, fetcher: Fetcher, *, workers: int, save_seconds: float) -> None:
        """Read, encode and write until the source ends or there are enough tokens."""
        settings = self.progress.settings
        how = Encoding(
            folder=self.folder,
            said=self.progress.tokenizer or {},
            column=settings["column"],
            end_first=settings["format"] == "llmc",
        )
        if self._is_enough:
            return
        blocks = read_blocks(
            self.source, self.progress.place, column=settings["column"], fetcher=fetcher, on_wait=self.watch.downloading
        )
        with closing(encode_blocks(blocks, how, workers=workers)) as results:
            for block, encoded in results:
                self._take(block, encoded)
                self.watch.at(self.progress, block.disk_bytes)
                if self._is_enough:
                    break
                self._fetch_ahead(fetcher, block)
                if self.watch.seconds - self._saved_at > save_seconds:
                    self.save()
            else:
                self.progress = replace(self.progress, files_read=len(self.source.files))

    def save(self) -> None:
        """Make what is done survive a power cut. First the tokens, then the record that says they are there."""
        for writer in self._writers.values():
            writer.save()
        if self._seen:
            self._seen.save(self.progress.seen)
        seconds = self._begun.seconds + self.watch.seconds
        write_progress(self.folder, replace(self.progress, seconds=seconds))
        self._saved_at = self.watch.seconds

    def finish(self) -> Prepared:
        """End the files and write what they are."""
        progress = self.progress
        if not progress.counts.kept:
            raise unusable(self.source, progress.counts, column=progress.settings["column"])
        self.save()  # also what --dedup has seen: it must be complete, in case more tokens are wanted later
        entries = {split: writer.finish() for split, writer in self._writers.items()}
        assert progress.tokenizer is not None
        meta = {
            "name": self.folder.resolve().name,
            **progress.tokenizer,
            "dtype": self._dtype,
            "format": progress.settings["format"],
            "source": {"name": self.source.name, "revision": self.source.revision, "files": len(self.source.files)},
            "documents": {
                **progress.counts.documents,
                "duplicates": progress.counts.duplicates,
                "bad": dict(progress.counts.bad),
            },
            "text_bytes": progress.counts.text_bytes,
            "val_share": progress.settings["val_share"],
            **entries,
        }
        _write_nanogpt_meta(self.folder, meta)
        write_meta(self.folder, meta)
        seconds = self._begun.seconds + self.watch.seconds
        splits = {split: {"whole": entries[split], "begun": 0} for split in SPLITS}
        self.progress = replace(progress, splits=splits, seconds=seconds, finished=True)
        write_progress(self.folder, self.progress)
        return Prepared(
            folder=self.folder,
            settings=progress.settings,
            meta=meta,
            counts=progress.counts,
            new_tokens=self.progress.tokens - self._begun.tokens,
            new_documents=progress.counts.kept - self._begun.counts.kept,
            seconds=self.watch.seconds,
        )

    @property
    def _is_enough(self) -> bool:
        return self.wanted is not None and self.progress.tokens >= self.wanted

    def _writer(self, split: str) -> ShardWriter:
        settings = self.progress.settings
        layout = Layout(
            folder=self.folder,
            split=split,
            format=settings["format"],
            dtype=self._dtype,
            shard_tokens=settings["shard_tokens"],
        )
        return ShardWriter(layout, **self.progress.splits.get(split, {}))

    def _take(self, block: DocumentBlock, encoded: Encoded) -> None:
        """Write the documents of a block up to the one that makes it enough; `progress` is then after that one."""
        seen = self._seen.count if self._seen else 0
        is_new = self._seen.are_new(encoded.hashes) if self._seen else np.ones(len(encoded.hashes), dtype=np.bool_)
        bad_places = {position for position, _ in encoded.bad}
        good_places = [position for position in range(len(block.documents)) if position not in bad_places]
        taken = _enough(encoded.lengths * is_new, self.wanted and self.wanted - self.progress.tokens)
        last = len(block.documents) - 1 if taken == len(good_places) else good_places[taken - 1]

        is_new = is_new[:taken]
        lengths = encoded.lengths[:taken]
        is_val = encoded.hashes[:taken] < np.uint64(val_threshold(self.progress.settings["val_share"]))
        ids = encoded.ids[: int(lengths.sum())]
        chosen = {"train": is_new & ~is_val, "val": is_new & is_val}
        for split, writer in self._writers.items():
            writer.write(ids if chosen[split].all() else ids[np.repeat(chosen[split], lengths)])

        bad: dict[Bad, list[str]] = {}
        for position, why in encoded.bad:
            if position <= last:
                file, after = block.afters[position]
                bad.setdefault(why, []).append(place_words(self.source.files[file], after))
        place = block.afters[last]
        self.progress = replace(
            self.progress,
            place=place,
            files=self.source.digest(place[0] + 1),
            splits={split: writer.state() for split, writer in self._writers.items()},
            seen=seen + int(is_new.sum()) if self._seen else 0,
            counts=self.progress.counts.plus(
                documents={split: int(chosen[split].sum()) for split in SPLITS},
                duplicates=int((~is_new).sum()),
                text_bytes=int(encoded.sizes[:taken][is_new].sum()),
                bad=bad,
                columns=encoded.columns,
                lowest=np.unique(encoded.hashes[:taken])[:2].tolist(),
            ),
        )

    def _fetch_ahead(self, fetcher: Fetcher, block: DocumentBlock) -> None:
        """Begin to fetch the next file while this one is being read, if this one will not be enough."""
        number = block.afters[-1][0] + 1
        if number >= len(self.source.files) or fetcher.is_here(self.source.files[number]):
            return
        read_bytes = block.disk_bytes
        until = sum(file.size_bytes or 0 for file in self.source.files[:number])
        tokens = self.progress.tokens
        if self.wanted is None or tokens * until / max(1, read_bytes) < 0.95 * self.wanted:
            fetcher.begin(self.source.files[number])


def _enough(lengths: npt.NDArray[np.int64], wanted: int | None) -> int:
    """How many documents of these lengths it takes to have `wanted` tokens; all of them if they are not enough."""
    if wanted is None:
        return len(lengths)
    return min(len(lengths), int(np.searchsorted(np.cumsum(lengths), wanted)) + 1)


def _write_nanogpt_meta(folder: Path, meta: Mapping[str, Any]) -> None:
    """Write the meta.pkl that nanoGPT needs for a vocabulary other than GPT-2's."""
    tokenizer = kept_tokenizer(folder, meta, environ=os.environ)
    if tokenizer is not None and meta["format"] == "nanogpt" and meta["tokenizer"] != "gpt2":
        said = characters_meta(tokenizer) or {"vocab_size": tokenizer.vocab_size}
        write_atomically(folder / "meta.pkl", pickle.dumps(said))
