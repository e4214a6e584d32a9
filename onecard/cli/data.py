"""onecard data: make tokens from text, and inspect them."""

from __future__ import annotations

import json
import os
import signal
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from onecard.cli.files import PathType
from onecard.cli.flags import Flag
from onecard.cli.library import Commands, CountType, KeyCommand, console, json_option, no_flags
from onecard.cli.signals import INTERRUPTED
from onecard.errors import MachineError, UsageError

if TYPE_CHECKING:
    from onecard.data.manifest import Settings
    from onecard.data.sources import Source
    from onecard.data.tokenizers import Tokenizer


DOWNLOADS = "downloads"  # below onecard's home
LEAST_SHARD_TOKENS = 10_000  # with fewer, even a small corpus would be thousands of files


@click.group(cls=Commands, short_help="Make tokens from text: FineWeb, parquet, JSON lines, text.")
def data() -> None:
    """\b
    Example:
      onecard data prepare fineweb-edu --out data/fineweb-edu --tokens 1B

    Makes token files from text, and inspects them.
    """


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of `data prepare`, as typed."""

    source: tuple[str, ...]
    out: str
    tokens: int | None
    tokenizer: str
    ranks: str | None
    format: str
    subset: str | None
    column: str
    dedup: bool
    val_share: float | None
    shard: int
    workers: int | None
    as_json: bool


@data.command(
    cls=KeyCommand,
    keys=("vocab_size",),
    short_help="Make token files from a source; continues if it was stopped.",
)
@click.argument("source", nargs=-1, required=True, type=PathType())
@click.option("--out", required=True, type=PathType(), metavar="DIR", help="The folder to make, or to continue.")
@click.option("--tokens", type=CountType(), metavar="N", help="Stop after this many: 100M, 2.5B. Default: everything.")
@click.option(
    "--tokenizer",
    type=PathType(),
    default="gpt2",
    metavar="NAME",
    help="gpt2, bytes, characters, bpe, or the path of a tokenizer.json.",
    show_default=True,
)
@click.option(
    "--ranks", type=PathType(), metavar="FILE", help="GPT-2's r50k_base.tiktoken, if it is not in tiktoken's cache."
)
@click.option(
    "--format", type=click.Choice(["onecard", "nanogpt", "llmc"]), default="onecard", help="The format of the files."
)
@click.option("--subset", metavar="NAME", help="A subset of a dataset on the hub. Default for FineWeb: sample-10BT.")
@click.option(
    "--column",
    default="text",
    metavar="NAME",
    help="The column that has the text, in parquet and JSON.",
    show_default=True,
)
@click.option("--dedup", is_flag=True, help="Leave out exact copies of earlier documents.")
@click.option(
    "--val-share",
    type=float,
    metavar="SHARE",
    help="Share of documents for validation. Default: enough for 1M tokens, at most 0.1.",
)
@click.option(
    "--shard-tokens",
    "shard",
    type=CountType(),
    default=100_000_000,
    metavar="N",
    help="Tokens in a file. Default: 100M.",
)
@click.option(
    "--workers", type=click.IntRange(min=1), metavar="N", help="Processes. Default: one for each core, at most 20."
)
@json_option
@click.pass_obj
def prepare(flags: list[Flag], /, **options: object) -> int:
    """\b
    Example:
      onecard data prepare fineweb-edu --out data/fineweb-edu --tokens 1B
      onecard data prepare corpus/*.jsonl.zst --out data/mine --tokenizer=bpe --vocab_size=16384

    Makes token files from SOURCE: files or folders (parquet, JSON lines, text; .gz, .zst, .bz2, .xz), - for standard
    input, fineweb, fineweb-edu or owner/name for a dataset on the Hugging Face hub, python-stdlib.

    --tokenizer=bpe is learned from the source, with --vocab_size=N tokens.

    Run the same command again to continue where it stopped; a larger --tokens adds to what is there.

    A core makes about 5,700 documents (3.4M tokens) a second: 10B tokens take 49 minutes of one core, 100B 8 hours, 1T
    3.4 days. Beyond one machine: docs/how-to/data-past-one-machine.md.
    """
    return _prepare(Options(**options), flags)  # type: ignore[arg-type]


def _prepare(options: Options, flags: list[Flag]) -> int:
    _needs_numpy()
    from onecard.data.downloads import download, downloads_of
    from onecard.data.gpt2_ranks import MODEL, fetch_gpt2
    from onecard.data.home import home_note, writable_home
    from onecard.data.hub import find_dataset
    from onecard.data.prepare import prepare as run
    from onecard.data.prepared import files_left_out, findings_of
    from onecard.report.data import PrepareDisplay, prepared_json, print_prepared
    from onecard.report.messages import print_findings, print_warnings

    settings = _settings(options, flags)
    source = _source(options)
    talk = console(stderr=True)
    fetches_gpt2 = isinstance(source, str) and _lacks_ranks(settings, options)
    tokenizer = None if fetches_gpt2 else _tokenizer(settings, options)
    dataset = None
    if isinstance(source, str):  # everything that can be checked without the network has been
        dataset = find_dataset(source, subset=options.subset)
        source = dataset.source
    if fetches_gpt2:
        tokenizer = fetch_gpt2(os.environ)
        talk.print(f"GPT-2's tokenizer was not on this machine: downloaded it from {MODEL}", soft_wrap=True)
    downloads = writable_home(os.environ) / DOWNLOADS
    if dataset:
        print_warnings(filter(None, [home_note(os.environ)]), talk)
    before = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        with PrepareDisplay(talk, quiet=options.as_json) as display:
            prepared = run(
                source,
                Path(options.out),
                settings=settings,
                tokenizer=tokenizer,
                tokens=options.tokens,
                workers=options.workers or _cores(),
                fetch=partial(download, dataset, into=downloads) if dataset else None,
                on_moment=display,
            )
    except KeyboardInterrupt:
        talk.print("stopped; what is done is kept. Run the same command again to continue", soft_wrap=True)
        return INTERRUPTED
    finally:
        signal.signal(signal.SIGTERM, before)
    findings = (*([] if dataset else files_left_out(options.source, out=options.out)), *findings_of(prepared))
    if options.as_json:
        click.echo(json.dumps(prepared_json(prepared, findings)))
        return 0
    kept = downloads_of(dataset, into=downloads) if dataset else None
    print_prepared(prepared, console(), downloads=kept)
    print_findings(findings, talk)
    if all(prepared.tokens.values()):
        talk.print(f"next: onecard train {quote(f'--dataset={options.out}')}", soft_wrap=True, markup=False)
    return 0


def _settings(options: Options, flags: list[Flag]) -> Settings:
    """What decides the content of the folder."""
    from onecard.config.resolve import checked, flag_values
    from onecard.data.manifest import Settings

    if options.tokens is not None and not 1 <= options.tokens < 2**63:
        raise UsageError(
            f"--tokens {options.tokens} is not possible",
            why="it must be a number of tokens, at least 1",
            fix="--tokens 100M",
            name="bad-number",
        )
    if not LEAST_SHARD_TOKENS <= options.shard < 2**31:
        raise UsageError(
            f"--shard-tokens {options.shard} is not possible",
            why=f"it must be the tokens of one file, from {LEAST_SHARD_TOKENS:,} to 2,147,483,647; a run keeps "
            "every file open, and systems allow about 1,000 per program",
            fix="--shard-tokens 100M",
            name="bad-number",
        )
    if options.val_share is not None and not 0 <= options.val_share < 1:  # nan, too
        raise UsageError(
            f"--val-share {options.val_share:g} is not possible",
            why="it must be a share of the documents, from 0 to below 1: training needs the rest",
            fix="--val-share 0.1",
            name="bad-number",
        )
    values = flag_values(flags)
    if other := [key for key in values if key != "vocab_size"]:
        raise UsageError(
            f"onecard data prepare takes no --{other[0]}={values[other[0]]}",
            why="vocab_size is the only config key it takes",
            fix="onecard data prepare --help",
            name="unexpected-key",
        )
    config = checked(values, {key: f"--{key}" for key in values})
    name = options.tokenizer
    vocab_size = config.vocab_size if "vocab_size" in values else None
    if vocab_size is not None and (name != "bpe" or vocab_size < 257):
        raise UsageError(
            f"--vocab_size={vocab_size} does not work with --tokenizer={name}",
            why="only --tokenizer=bpe has a size to choose, at least 257: all bytes and the end of text",
            fix="--tokenizer=bpe --vocab_size=8192",
            name="bad-vocabulary",
        )
    return Settings(
        tokenizer=name,
        vocab_size=vocab_size,
        format=options.format,  # type: ignore[arg-type]  # one of the choices above
        column=options.column,
        dedup=options.dedup,
        val_share=options.val_share,
        shard_tokens=options.shard,
    )


def _lacks_ranks(settings: Settings, options: Options) -> bool:
    """Whether GPT-2's tokenizer is needed, but neither given nor on this machine."""
    from onecard.data.tokenizers import gpt2_tokenizer

    return settings.tokenizer == "gpt2" and options.ranks is None and gpt2_tokenizer(os.environ) is None


def _tokenizer(settings: Settings, options: Options) -> Tokenizer | None:
    """The tokenizer; None if it is to be learned."""
    from onecard.data.tokenizer_files import LEARNED, find_tokenizer

    if settings.tokenizer in LEARNED:
        return None
    ranks = Path(options.ranks) if options.ranks else None
    return find_tokenizer(settings.tokenizer, ranks=ranks, environ=os.environ)


def _source(options: Options) -> Source | str:
    """What to read: files of this machine, or the name of a dataset on the hub."""
    from onecard.data.hub import hub_name
    from onecard.data.sources import local_source, missing

    words = options.source
    local = local_source(words, but=Path(options.out))
    if local is not None:
        if options.subset is not None:
            raise UsageError(
                f"--subset {options.subset} is for datasets on the hub",
                why=f"{words[0]} is on this machine",
                fix="leave --subset out",
                name="usage",
            )
        return local
    repo = hub_name(words[0]) if len(words) == 1 else None
    if repo is None:
        raise missing(words)
    return repo


@data.command(short_help="What is in a data folder, whether it is intact, and some of its text.")
@click.argument("folder", type=PathType())
@click.option(
    "--samples",
    default=2,
    type=click.IntRange(0, 100),
    metavar="N",
    help="Samples to show from each split.",
    show_default=True,
)
@json_option
@click.pass_obj
def info(flags: list[Flag], /, folder: str, samples: int, as_json: bool) -> int:
    """\b
    Example:
      onecard data info data/fineweb-edu

    What is in a data folder (onecard's, nanoGPT's, llm.c's, datatrove's or Megatron's): counts, verified checksums,
    samples as text.

    Exits with 1 if a file has changed since it was written, or if no run could use the data.
    """
    no_flags(flags, "data info")
    _needs_numpy()
    from onecard.data.checks import data_findings
    from onecard.data.dataset import checked_files, open_dataset
    from onecard.data.manifest import read_meta
    from onecard.data.samples import samples as samples_of
    from onecard.report.data import info_json, print_info

    dataset = open_dataset(folder, environ=os.environ)
    meta = read_meta(dataset.folder)
    talk = console(stderr=True)
    with talk.status("reading") if talk.is_terminal else nullcontext():
        checked = checked_files(dataset)
        findings = data_findings(dataset)
    shown = samples_of(dataset, count=samples)
    if as_json:
        click.echo(json.dumps(info_json(dataset, meta, checked, shown, findings)))
    else:
        print_info(dataset, meta, checked, shown, findings, console())
    unusable = any(finding.severity == "error" for finding in findings)
    return 1 if unusable or False in checked.values() else 0


def _cores() -> int:
    """Cores this process may use, but at most 20: workers take about 40 MiB each, so together well below 1 GiB."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, 20)


def _needs_numpy() -> None:
    if find_spec("numpy") is None:
        raise MachineError(
            "numpy is not installed",
            why="token files are arrays",
            fix="pip install 'onecard[data]'",
            name="missing-package",
        )
