"""Prepare a source into a folder, from the beginning or from where a preparation stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from onecard.data.document import Bad, Read
from onecard.data.documents import place_words
from onecard.data.downloads import Fetch, Fetcher
from onecard.data.encode import Lacking
from onecard.data.learn import NothingToLearn, good_texts, learn_tokenizer
from onecard.data.manifest import Counts, Settings, write_progress, written_meta
from onecard.data.part import Part
from onecard.data.prepared import Prepared
from onecard.data.resuming import is_all, where_it_stands, working_in
from onecard.data.sources import Source, SourceFile
from onecard.data.tokenizer_files import keep_tokenizer
from onecard.data.tokenizers import Tokenizer
from onecard.data.tokens import token_type
from onecard.data.unusable import unusable
from onecard.data.watch import Moment, Watch
from onecard.errors import ConfigError

_SAVE_SECONDS = 5.0


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
    """Prepare the source into the folder, or continue it, up to the document that reaches `tokens`.

    `tokenizer` is None if it is to be learned from the documents; `fetch` brings a file of the hub to this machine.
    """
    with working_in(folder):
        progress = where_it_stands(folder, source, settings, tokens)
        fetcher = Fetcher(fetch)
        if progress.finished and is_all(progress, source, tokens):
            return Prepared(
                folder=folder,
                settings=progress.settings,
                meta=written_meta(folder),
                counts=progress.counts,
                new_tokens=0,
                seconds=0.0,
            )
        if progress.tokenizer is None:
            write_progress(folder, progress)  # first of all: whatever a kill leaves beside it is known to be ours
            watch = Watch(on_moment, source, progress, tokens)
            tokenizer = tokenizer or _learned(source, settings, tokens, fetcher, watch)
            _check_format(settings, tokenizer)
            progress = replace(progress, tokenizer=keep_tokenizer(tokenizer, folder))
            write_progress(folder, progress)
        with Part(folder, source, progress, tokens, Watch(on_moment, source, progress, tokens)) as part:
            part.read(fetcher, workers=workers, save_seconds=save_seconds)
            return part.finish()


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
    counts = Counts()

    def on_bad(file: SourceFile, read: Read, why: Bad | Lacking) -> None:
        nonlocal counts
        kind, columns = (Bad.NO_TEXT, why.columns) if isinstance(why, Lacking) else (why, ())
        counts = counts.plus(bad={kind: [place_words(file, read.after)]}, columns=columns)

    def counted() -> Iterator[str]:
        texts = good_texts(files, column=settings.column, characters=limit, on_bad=on_bad)
        for number, text in enumerate(texts, start=1):
            watch.learning(number)
            yield text

    try:
        return learn_tokenizer(settings.tokenizer, counted(), vocab_size=settings.vocab_size)
    except NothingToLearn:
        raise unusable(source, counts, column=settings.column) from None


def _check_format(settings: Settings, tokenizer: Tokenizer) -> None:
    if settings.format == "nanogpt" and token_type(tokenizer.vocab_size) != "uint16":
        raise ConfigError(
            f"a vocabulary of {tokenizer.vocab_size:,} does not fit nanoGPT's files",
            why="they have 16 bits per token",
            fix="--format onecard",
            name="vocabulary-too-large",
        )
