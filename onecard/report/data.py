"""What to show while data is prepared, and afterwards: counts, checks, samples."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from onecard import units
from onecard.data.dataset import Dataset
from onecard.data.downloads import Downloads
from onecard.data.prepared import Prepared
from onecard.data.samples import Sample
from onecard.data.watch import Moment
from onecard.findings import Finding
from onecard.report.live_line import redraws
from onecard.report.messages import print_findings

_MUCH_TOKENS = (10**10, 10**11, 10**12)
_TELLING_SECONDS = 10.0  # a shorter preparation mostly starts and checks
_LINE_SECONDS = 10.0  # between two lines, if no bar is drawn


class PrepareDisplay:
    """Shows how far a preparation is: a bar if it can be redrawn, else a line now and then. Use it in a `with`."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self.console = console
        self.quiet = quiet and not redraws(console)
        self._bar: Progress | None = None
        self._task = TaskID(0)
        self._shown_at = 0.0

    def __enter__(self) -> Self:
        if redraws(self.console):
            self._bar = Progress(
                BarColumn(bar_width=24), TextColumn("{task.description}", markup=False), console=self.console
            )
            self._task = self._bar.add_task("starting", total=None)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def __call__(self, moment: Moment) -> None:
        line = moment_line(moment)
        if self._bar:
            share = moment.share if moment.phase == "preparing" else None
            self._bar.update(self._task, description=line, total=None if share is None else 1.0, completed=share or 0.0)
        elif not self.quiet and time.monotonic() - self._shown_at > _LINE_SECONDS:
            self._shown_at = time.monotonic()
            self.console.print(line, soft_wrap=True, markup=False)


def moment_line(moment: Moment) -> str:
    """`12.0%  1.20B tokens  2.51M tokens/s  58 min left`"""
    if moment.phase != "preparing":
        return f"{moment.phase}: {moment.about}"
    parts = [f"{units.count(moment.tokens)} tokens", f"{units.count(moment.tokens_per_second)} tokens/s"]
    if moment.share is not None:
        parts.insert(0, f"{moment.share:.1%}")
        if moment.share > moment.begun_share:
            left = moment.seconds * (1 - moment.share) / (moment.share - moment.begun_share)
            parts.append(f"{units.duration(left)} left")
    return "  ".join(parts)


def prepared_json(prepared: Prepared, findings: tuple[Finding, ...]) -> dict[str, object]:
    """The answer of `data prepare --json`."""
    meta = prepared.meta
    return {
        "schema": 1,
        "folder": str(prepared.folder),
        "tokens": prepared.tokens,
        "documents": meta["documents"],
        "text_bytes": meta["text_bytes"],
        "val_share": meta["val_share"],
        "tokenizer": {"name": meta["tokenizer"], "vocab_size": meta["vocab_size"]},
        "dtype": meta["dtype"],
        "format": meta["format"],
        "source": meta["source"],
        "train": meta["train"],
        "val": meta["val"],
        "new_tokens": prepared.new_tokens,
        "seconds": round(prepared.seconds),
        "findings": [finding.as_json() for finding in findings],
    }


def print_prepared(prepared: Prepared, console: Console, *, downloads: Downloads | None = None) -> None:
    """What is in the folder now, and what was downloaded for it."""
    meta, counts = prepared.meta, prepared.counts
    tokens = prepared.tokens
    total = sum(tokens.values())
    per_token = f", {meta['text_bytes'] / total:.2f} bytes of text per token" if total else ""
    rows = [
        ("train", f"{tokens['train']:,} tokens from {_things(counts.documents['train'], 'document')}"),
        (
            "val",
            f"{tokens['val']:,} tokens from {_things(counts.documents['val'], 'document')}"
            + (f" ({tokens['val'] / total:.2%} of all)" if total else ""),
        ),
        ("tokenizer", f"{meta['tokenizer']}, {meta['vocab_size']:,} tokens{per_token}"),
        ("files", f"{len(meta['train']) + len(meta['val'])} of {meta['dtype']} tokens, {_format(meta['format'])}"),
    ]
    if counts.duplicates:
        rows.append(("left out", f"{_things(counts.duplicates, 'duplicate document')}"))
    for why, number in counts.bad.items():
        rows.append(("left out", f"{number:,} {why} (the first: {counts.first_bad[why]})"))
    if prepared.new_tokens:
        rate = prepared.new_tokens / max(prepared.seconds, 1e-9)
        documents = prepared.new_documents / max(prepared.seconds, 1e-9)
        speed = f"{units.count(rate)} tokens/s, {documents:,.0f} documents/s, {units.duration(prepared.seconds)}"
        rows.append(("speed", speed))
        if prepared.seconds >= _TELLING_SECONDS:
            much = ", ".join(f"{units.count(size)} {units.duration(size / rate)}" for size in _MUCH_TOKENS)
            rows.append(
                ("at that", f"{much}; if that is too long, several machines: docs/how-to/data-past-one-machine.md")
            )
    if downloads:
        rows.append(
            ("downloads", f"{units.size(downloads.size_bytes)} kept in {downloads.folder}, which you may delete")
        )
    _print_rows(str(prepared.folder), rows, console)


def info_json(
    dataset: Dataset,
    meta: Mapping[str, Any],
    checked: Mapping[str, bool | None],
    samples: tuple[Sample, ...],
    findings: tuple[Finding, ...],
) -> dict[str, object]:
    """The answer of `data info --json`."""
    splits = {"train": dataset.train, "val": dataset.val}
    return {
        "schema": 1,
        "folder": str(dataset.path),
        "tokens": {split: len(tokens) for split, tokens in splits.items()},
        "vocab_size": dataset.vocab_size,
        "tokenizer": dataset.tokenizer.name if dataset.tokenizer else None,
        "fingerprint": dataset.fingerprint,
        "documents": dataset.documents,
        "held_out": dataset.held_out or None,
        "source": meta.get("source"),
        "damaged": [name for name, is_good in checked.items() if is_good is False],
        "files": [
            {
                "file": file.path.name,
                "split": split,
                "tokens": file.count,
                "dtype": file.dtype,
                "sha256_matches": checked[file.path.name],
            }
            for split, tokens in splits.items()
            for file in tokens.files
        ],
        "samples": [{"split": sample.split, "position": sample.position, "text": sample.text} for sample in samples],
        "findings": [finding.as_json() for finding in findings],
    }


def print_info(
    dataset: Dataset,
    meta: Mapping[str, Any],
    checked: Mapping[str, bool | None],
    samples: tuple[Sample, ...],
    findings: tuple[Finding, ...],
    console: Console,
) -> None:
    """What data a folder has, whether it is intact, samples of its text, and what keeps a run from using it."""
    documents = dataset.documents or {}
    rows = []
    for split, tokens in (("train", dataset.train), ("val", dataset.val)):
        count = f" from {_things(documents[split], 'document')}" if isinstance(documents.get(split), int) else ""
        dtype = tokens.files[0].dtype if tokens.files else "uint16"
        number = f"{len(tokens):,} {dtype} tokens" if dataset.dtype_is_known else f"{len(tokens):,} tokens, as {dtype},"
        rows.append((split, f"{number}{count} in {_things(len(tokens.files), 'file')}"))
    named = f"{dataset.tokenizer_name}, which is not here" if dataset.tokenizer_name else "not known"
    tokenizer = dataset.tokenizer.name if dataset.tokenizer else named
    size = f", {dataset.vocab_size:,} tokens" if dataset.vocab_size else ""
    rows += [("tokenizer", tokenizer + size), ("fingerprint", dataset.fingerprint)]
    if isinstance(source := meta.get("source"), dict):
        rows.append(("source", f"{source.get('name')}, {_things(source.get('files') or 0, 'file')}"))
    damaged = [name for name, is_good in checked.items() if is_good is False]
    unchecked = [name for name, is_good in checked.items() if is_good is None]
    if unchecked:
        rows.append(("checksums", f"none recorded for {', '.join(unchecked[:3])}{' …' if len(unchecked) > 3 else ''}"))
    else:
        good = len(checked) - len(damaged)
        rows.append(("checksums", f"{good} of {_things(len(checked), 'file')} match"))
    rows += [("DAMAGED", f"{name} has changed since it was written") for name in damaged]
    _print_rows(str(dataset.path), rows, console)
    for sample in samples:
        console.print()
        console.print(Text(f"{sample.split}, from token {sample.position:,}:", style="bold"))
        console.print(Text(sample.text), soft_wrap=True)
    print_findings(findings, console)


def _print_rows(title: str, rows: list[tuple[str, str]], console: Console) -> None:
    console.print(Text(title, style="bold"), soft_wrap=True)
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        console.print(Text(f"{name:<{width}}  {value}"), soft_wrap=True)


def _things(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def _format(name: str) -> str:
    return {"onecard": "onecard's shards", "nanogpt": "in nanoGPT's format", "llmc": "with llm.c's header"}[name]
