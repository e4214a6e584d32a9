"""Documents in, shards out: the loop, and how it goes on after a kill.

Every few seconds the tokens are synced to disk, and then progress.json is replaced: it says how long the files are and
where reading stands. A restart cuts the files to those lengths and reads on from there, so no document is missing or
there twice, and the bytes are those of a preparation that was never stopped, with any number of workers.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from onecard import units
from onecard.config.names import nearest
from onecard.data.blocks import Block, read_blocks
from onecard.data.documents import Bad, parquet_columns, place_words
from onecard.data.encode import Encoded, Encoding, encode_blocks
from onecard.data.hub import Fetch, Fetcher
from onecard.data.learn import good_texts, learn_tokenizer
from onecard.data.manifest import Counts, Progress, read_meta, read_progress, write_meta, write_progress
from onecard.data.nanogpt_meta import characters_meta
from onecard.data.seen import Seen
from onecard.data.shards import SHARD_TOKENS, Format, Layout, ShardWriter
from onecard.data.sources import Source
from onecard.data.tokenizer_files import keep_tokenizer, kept_tokenizer
from onecard.data.tokenizers import Tokenizer
from onecard.data.tokens import STORED, TokenType
from onecard.data.watch import Moment, Watch
from onecard.errors import ConfigError, OnecardError
from onecard.findings import Finding
from onecard.runs.files import check_space, write_atomically, writing
from onecard.runs.lock import Lock

SPLITS = ("train", "val")
VAL_TOKENS = 1_000_000  # what a validation set should have: its standard error is then some 0.003 nats
_SHARES = (0.01, 0.02, 0.05, 0.1)
_BYTES_PER_TOKEN = 4.5  # of English in GPT-2's tokens: 4.54 in FineWeb's samples
_SAVE_SECONDS = 5.0
_SEEN, _LOCK = "seen", "lock"
_OTHER_FOLDER = "choose another folder with --out DIR"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What decides the content of the folder, and must not change between two parts of one preparation."""

    tokenizer: str
    vocab_size: int | None = None  # for a tokenizer that is learned here
    format: Format = "onecard"
    column: str = "text"
    dedup: bool = False
    val_share: float | None = None  # None: as large as 1M tokens need, at most 10 %
    shard_tokens: int = SHARD_TOKENS


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """What a preparation ended with."""

    folder: Path
    meta: dict[str, Any]
    counts: Counts
    new_tokens: int  # written by this process
    seconds: float  # of this process


def prepare(
    source: Source,
    folder: Path,
    *,
    settings: Settings,
    tokenizer: Tokenizer | None,
    tokens: int | None = None,
    workers: int = 1,
    fetch: Fetch | None = None,
    on_moment: Callable[[Moment], None] = lambda moment: None,
    save_seconds: float = _SAVE_SECONDS,
) -> Prepared:
    """Prepare the source into the folder, or go on with it, up to the document that reaches `tokens`.

    `tokenizer` is None for one that is learned from the documents; `fetch` brings a file of the hub to this machine.
    """
    with _working_in(folder):
        progress = _where_it_stands(folder, source, settings, tokens)
        fetcher = Fetcher(fetch)
        if progress.finished and _is_all(progress, source, tokens):
            return _prepared(folder, read_meta(folder), progress, new_tokens=0, seconds=0.0)
        if progress.tokenizer is None:
            watch = Watch(on_moment, source, progress, tokens)
            tokenizer = tokenizer or _learned(source, settings, tokens, fetcher, watch)
            _check_format(settings, tokenizer)
            progress = replace(progress, tokenizer=keep_tokenizer(tokenizer, folder))
            write_progress(folder, progress)
        with _Run(folder, source, progress, tokens, Watch(on_moment, source, progress, tokens)) as run:
            run.read(fetcher, workers=workers, save_seconds=save_seconds)
            return run.finish()


class _Run:
    """One process's part of a preparation; use it in a `with`, which saves whatever happens."""

    def __init__(self, folder: Path, source: Source, begun: Progress, wanted: int | None, watch: Watch) -> None:
        self.folder = folder
        self.source = source
        self.wanted = wanted
        self.watch = watch
        self.progress = replace(begun, finished=False, files_read=0)  # always what the files hold, or less
        self._begun = begun
        self._saved_at = 0.0
        assert begun.tokenizer is not None
        more = max(0, (wanted or 0) - begun.tokens)
        check_space(folder, needed_bytes=more * np.dtype(STORED[_dtype(begun.tokenizer["vocab_size"])]).itemsize)
        self._dtype: TokenType = _dtype(begun.tokenizer["vocab_size"])
        write_progress(folder, self.progress)
        with ExitStack() as opened:
            self._writers = {split: self._writer(split) for split in SPLITS}
            for writer in self._writers.values():
                opened.callback(writer.close)
            self._seen = Seen(folder / _SEEN, count=begun.seen) if begun.settings["dedup"] else None
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
        """Make what is done survive a power cut. First the tokens, then the word that they are there."""
        for writer in self._writers.values():
            writer.save()
        if self._seen:
            self._seen.save()
        seconds = self._begun.seconds + self.watch.seconds
        write_progress(self.folder, replace(self.progress, seconds=seconds))
        self._saved_at = self.watch.seconds

    def finish(self) -> Prepared:
        """End the files and say what they are."""
        progress = self.progress
        if not progress.counts.kept:
            raise _all_bad(self.source, progress)
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
        new_tokens = self.progress.tokens - self._begun.tokens
        return _prepared(self.folder, meta, self.progress, new_tokens=new_tokens, seconds=self.watch.seconds)

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

    def _take(self, block: Block, encoded: Encoded) -> None:
        """Write the documents of a block up to the one that makes it enough; then `progress` is after that one."""
        seen = self._seen.count if self._seen else 0
        is_new = self._seen.are_new(encoded.hashes) if self._seen else np.ones(len(encoded.hashes), dtype=np.bool_)
        bad_places = {position for position, _ in encoded.bad}
        good_places = [position for position in range(len(block.documents)) if position not in bad_places]
        taken = _enough(encoded.lengths * is_new, self.wanted and self.wanted - self.progress.tokens)
        last = len(block.documents) - 1 if taken == len(good_places) else good_places[taken - 1]

        is_new = is_new[:taken]
        lengths = encoded.lengths[:taken]
        is_val = encoded.hashes[:taken] < np.uint64(_threshold(self.progress.settings["val_share"]))
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
            ),
        )

    def _fetch_ahead(self, fetcher: Fetcher, block: Block) -> None:
        """Begin to fetch the next file while this one is read, if this one will not be enough."""
        number = block.afters[-1][0] + 1
        if number >= len(self.source.files) or fetcher.is_here(self.source.files[number]):
            return
        read_bytes = block.disk_bytes
        until = sum(file.size_bytes or 0 for file in self.source.files[:number])
        tokens = self.progress.tokens
        if self.wanted is None or tokens * until / max(1, read_bytes) < 0.95 * self.wanted:
            fetcher.begin(self.source.files[number])


def val_share(source: Source, tokens: int | None) -> float:
    """The share of documents for validation: the smallest of a few that should give 1M tokens, from what is known."""
    known = [tokens] if tokens else []
    known += [round(source.text_bytes / _BYTES_PER_TOKEN)] if source.text_bytes else []
    if not known:
        return _SHARES[0]
    return next((share for share in _SHARES if share * min(known) >= 1.2 * VAL_TOKENS), _SHARES[-1])


def findings_of(prepared: Prepared) -> tuple[Finding, ...]:
    """What a person should know about the data that were made."""
    meta = prepared.meta
    train, val = (sum(entry["tokens"] for entry in meta[split]) for split in SPLITS)
    share, total = meta["val_share"], train + val
    found = []
    if val < VAL_TOKENS:
        better = next((each for each in _SHARES if each > share and each * total >= 1.1 * VAL_TOKENS), None)
        enough = units.count(VAL_TOKENS / _SHARES[-1])
        found.append(
            Finding(
                rule="val-set-tiny",
                severity="warn",
                sure="high",
                what=f"the validation data has {val:,} tokens, fewer than {VAL_TOKENS:,}",
                why=f"{share:.0%} of the documents are for validation, by the hash of their text, and there are "
                f"{total:,} tokens in all; the fewer, the noisier every evaluation",
                fix=f"--val-share {better} --out {prepared.folder}-2"
                if better
                else f"more data: a share of {_SHARES[-1]:.0%} is enough from {enough} tokens on",
                seen=(f"{meta['documents']['val']:,} documents",),
            )
        )
    bad, kept = sum(prepared.counts.bad.values()), prepared.counts.kept
    if bad > 0.05 * (bad + kept):
        found.append(
            Finding(
                rule="many-bad-documents",
                severity="warn",
                sure="high",
                what=f"{bad:,} of {bad + kept:,} documents could not be used",
                why=", ".join(f"{number:,} {why}" for why, number in prepared.counts.bad.items()),
                fix="look at the first of each kind, above",
                seen=tuple(f"{why}: {place}" for why, place in prepared.counts.first_bad.items()),
            )
        )
    return tuple(found)


def _enough(lengths: npt.NDArray[np.int64], wanted: int | None) -> int:
    """How many documents of these lengths it takes to have `wanted` tokens; all of them if they are not enough."""
    if wanted is None:
        return len(lengths)
    return min(len(lengths), int(np.searchsorted(np.cumsum(lengths), wanted)) + 1)


def _threshold(share: float) -> int:
    """Hashes below this are for validation."""
    return min(2**64 - 1, round(share * 2**64))


def _dtype(vocab_size: int) -> TokenType:
    return "uint16" if vocab_size <= 2**16 else "uint32"


def _learned(source: Source, settings: Settings, tokens: int | None, fetcher: Fetcher, watch: Watch) -> Tokenizer:
    if any(file.path is None and file.size_bytes is None for file in source.files):
        raise ConfigError(
            f"--tokenizer={settings.tokenizer} cannot learn from standard input",
            why="it reads the documents twice: once to learn, once to make tokens",
            fix="put them into a file first",
            name="cannot-read-twice",
        )
    files = (fetcher.get(file, on_wait=watch.downloading) for file in source.files)
    limit = tokens if settings.tokenizer == "characters" else None

    def counted() -> Iterator[str]:
        for number, text in enumerate(good_texts(files, column=settings.column, characters=limit), start=1):
            watch.learning(number)
            yield text

    return learn_tokenizer(settings.tokenizer, counted(), vocab_size=settings.vocab_size)


def _is_all(progress: Progress, source: Source, tokens: int | None) -> bool:
    """Whether a finished preparation has nothing left to do. Standard input may always have more."""
    if tokens is not None and progress.tokens >= tokens:
        return True
    return progress.files_read == len(source.files) and source.size_bytes is not None


def _where_it_stands(folder: Path, source: Source, settings: Settings, tokens: int | None) -> Progress:
    """What to go on from: the progress in the folder, or a beginning. ConfigError if it is of something else."""
    before = read_progress(folder)
    if before is None and (others := sorted(path.name for path in folder.iterdir() if path.name != _LOCK)):
        raise ConfigError(
            f"{folder} is not empty",
            why=f"it has {', '.join(others[:3])}{' …' if len(others) > 3 else ''}, and no preparation to go on with",
            fix=f"--out {folder}-2",
            name="folder-not-empty",
        )
    if before is None or not before.counts.kept:
        for left in folder.glob("*.part"):  # of a beginning that came to nothing
            left.unlink()
        share = val_share(source, tokens) if settings.val_share is None else settings.val_share
        return Progress(settings=asdict(replace(settings, val_share=share)))
    now = asdict(settings) | ({"val_share": before.settings["val_share"]} if settings.val_share is None else {})
    changed = [
        f"{key}={now[key]} (was {before.settings.get(key)})" for key in now if now[key] != before.settings.get(key)
    ]
    if changed or before.files != source.digest(before.place[0] + 1):
        raise ConfigError(
            f"{folder} holds other data" + (f": {', '.join(changed)}" if changed else ""),
            why="one folder has one source and one way of preparing it"
            + ("" if changed else "; files it was made from are gone, changed, or have new ones between them"),
            fix=f"--out {folder}-2, or remove {folder}",
            name="other-preparation",
        )
    return before


def _check_format(settings: Settings, tokenizer: Tokenizer) -> None:
    if settings.format == "nanogpt" and _dtype(tokenizer.vocab_size) != "uint16":
        raise ConfigError(
            f"a vocabulary of {tokenizer.vocab_size:,} does not fit nanoGPT's files",
            why="they have 16 bits a token",
            fix="--format onecard",
            name="vocabulary-too-large",
        )


def _write_nanogpt_meta(folder: Path, meta: Mapping[str, Any]) -> None:
    """What nanoGPT wants to know of a vocabulary that is not GPT-2's."""
    tokenizer = kept_tokenizer(folder, meta, home=folder, environ={})
    if tokenizer is not None and meta["format"] == "nanogpt" and meta["tokenizer"] != "gpt2":
        said = characters_meta(tokenizer) or {"vocab_size": tokenizer.vocab_size}
        write_atomically(folder / "meta.pkl", pickle.dumps(said))


def _prepared(folder: Path, meta: dict[str, Any], progress: Progress, *, new_tokens: int, seconds: float) -> Prepared:
    return Prepared(folder=folder, meta=meta, counts=progress.counts, new_tokens=new_tokens, seconds=seconds)


def _all_bad(source: Source, progress: Progress) -> ConfigError:
    counts = progress.counts
    if not counts.bad:
        return ConfigError(
            f"{source.name} has no documents",
            why="nothing was in its files" if source.files else "it has no files",
            fix="look at the source",
            name="no-documents",
        )
    total = sum(counts.bad.values())
    column = progress.settings["column"]
    columns = counts.columns or next((parquet_columns(file) for file in source.files if file.kind == "parquet"), ())
    others = [name for name in columns if name != column]
    meant = next((name for name in (nearest(column, others), "text", "content", "body") if name in others), "NAME")
    lacking = Bad.NO_TEXT in counts.bad
    return ConfigError(
        f"none of {total:,} documents of {source.name} can be used",
        why=", ".join(f"{number:,} {why}" for why, number in counts.bad.items())
        + (f" {column}; the columns are {', '.join(columns) or 'not known'}" if lacking else ""),
        fix=f"--column {meant}" if lacking else "look at the source",
        name="all-bad",
    )


@contextmanager
def _working_in(folder: Path) -> Iterator[None]:
    """Inside, the folder exists and is ours alone; what the disk says becomes three lines."""
    with writing(folder, instead=_OTHER_FOLDER):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        lock = Lock(folder / _LOCK)
    except OnecardError as problem:
        if problem.name != "run-in-use":
            raise
        raise ConfigError(
            f"{folder} is in use: another process prepares data there",
            why="two at once would write into the same files",
            fix=f"wait for it, or {_OTHER_FOLDER}",
            name="data-in-use",
        ) from problem
    try:
        with writing(folder, instead=_OTHER_FOLDER):
            yield
    finally:
        lock.close()
