"""A source that cannot be used, or only in part: why, and what to type."""

from __future__ import annotations

from pathlib import PurePath
from shlex import quote

from onecard.config.names import nearest
from onecard.data.document import Bad
from onecard.data.manifest import Counts
from onecard.data.parquet import parquet_columns
from onecard.data.sources import STANDARD_INPUT, STDIN, Source, SourceFile
from onecard.errors import ConfigError

_UNPACK = {".gz": "gzip -dc", ".zst": "zstd -dc", ".bz2": "bzip2 -dc", ".xz": "xz -dc"}
WHOLE_FILES = (Bad.DAMAGED, Bad.UTF16, Bad.ARRAY)  # reported once per file, not for each document


def unusable(source: Source, counts: Counts, *, column: str) -> ConfigError:
    """The error for a source without a single document that can be used."""
    name = STANDARD_INPUT if source.name == STDIN else source.name
    if not counts.bad:
        return ConfigError(
            f"{name} has no documents",
            why="its files are empty" if source.files else "it has no files",
            fix="look at the source",
            name="no-documents",
        )
    total = sum(counts.bad.values())
    columns = counts.columns or next((parquet_columns(file) for file in source.files if file.kind == "parquet"), ())
    others = [each for each in columns if each != column]
    meant = next((each for each in (nearest(column, others), "text", "content", "body") if each in others), "NAME")
    lacking = Bad.NO_TEXT in counts.bad
    return ConfigError(
        f"none of the {total:,} documents of {name} can be used" if total > 1 else f"nothing in {name} can be used",
        why=", ".join(f"{number:,} {why}" if total > 1 else why for why, number in counts.bad.items())
        + (f" {column}; the columns are {', '.join(columns) or 'not known'}" if lacking else ""),
        fix=f"--column {meant}" if lacking else _cure_of_most(counts, source),
        name="all-bad",
    )


def _cure_of_most(counts: Counts, source: Source) -> str:
    """What fixes the most frequent problem, where it occurred first."""
    why = Bad(max(counts.bad, key=lambda each: counts.bad[each]))
    place = counts.first_bad.get(why, "")
    file = next((file for file in source.files if place == file.name or place.startswith(f"{file.name}, ")), None)
    return cure_of(why, _shown(file))


def cure_of(why: Bad, file: str) -> str:
    """What fixes a file, given by its path or name."""
    match why:
        case Bad.UTF16:
            return _piped("iconv -f UTF-16 -t UTF-8", file, into=f"utf8-{_plain(file)}")
        case Bad.NOT_UTF8:
            command = _piped("iconv -f LATIN1 -t UTF-8", file, into=f"utf8-{_plain(file)}")
            return f"{command}   (if it is Latin-1; `file` guesses)"
        case Bad.ARRAY:
            return _piped("jq -c '.[]'", file, into=f"{PurePath(_plain(file)).stem}.jsonl")
        case Bad.DAMAGED:
            return "download or copy it again: it is cut off or broken"
        case Bad.NOT_JSON:
            return "put one JSON object on each line; a plain text file needs a name that ends in .txt"
    return "look at the source"


def _shown(file: SourceFile | None) -> str:
    """A file as a person would type it."""
    if file is None:
        return "FILE"
    return str(file.path) if file.path else file.name


def _plain(file: str) -> str:
    """The name of a file once it is unpacked."""
    name = PurePath(file)
    return name.stem if name.suffix.lower() in _UNPACK else name.name


def _piped(program: str, file: str, *, into: str) -> str:
    """The command line that sends a file through a program into another file."""
    if file == STANDARD_INPUT:
        return f"{program} | onecard data prepare {STDIN} …"
    if unpack := _UNPACK.get(PurePath(file).suffix.lower()):
        return f"{unpack} {quote(file)} | {program} > {quote(into)}   (then prepare that file)"
    return f"{program} {quote(file)} > {quote(into)}   (then prepare that file)"
