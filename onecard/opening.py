"""Opens files that a user names. Only regular files: a device never ends, and a pipe may never begin."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import BinaryIO

from onecard.errors import ConfigError, OnecardError, fault_behind, system_failed

LONGEST_PIECE_BYTES = 16 * 1024  # of a line; no line that we understand is longer
_READ_BYTES = 256 * 1024  # at once
_NO_WAITING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_KINDS = ((stat.S_ISFIFO, "a pipe"), (stat.S_ISSOCK, "a socket"), (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a disk"))


def cannot_read(path: Path | str, problem: Exception) -> OnecardError | None:
    """The error for a file that cannot be read and may be whole; None if the problem is what was named, or is in it."""
    if fault := fault_behind(problem):
        fault.filename = fault.filename or str(path)
        return system_failed(fault)
    behind: BaseException | None = problem
    while behind and not isinstance(behind, PermissionError):
        behind = behind.__cause__ or behind.__context__  # zipfile says "not a zip file" of all that it cannot read
    if behind is None:
        return None
    return ConfigError(
        f"{path} cannot be read",
        why=f"the system says: {behind}",
        fix=f"ls -l {quote(str(path))}   (shows who may read it)",
        name="cannot-read",
    )


class NotAFile(OSError):
    """What was named is a pipe, a device or a socket; `strerror` is a reason to show."""

    def __init__(self, path: Path, mode: int) -> None:
        kind = next((words for is_kind, words in _KINDS if is_kind(mode)), "something else")
        super().__init__(errno.EINVAL, f"it is {kind}, and only files are read", str(path))


def open_file(path: Path) -> BinaryIO:
    """A regular file, opened for reading. OSError if it cannot be opened: NotAFile if it is something else."""
    check_regular(path)  # before it is opened: opening a device can have effects
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NO_WAITING))  # noqa: SIM115
    try:
        _check_regular(path, os.fstat(file.fileno()).st_mode)  # again: it may have been replaced
    except BaseException:
        file.close()
        raise
    return file


def check_regular(path: Path) -> None:
    """NotAFile for a pipe, a device or a socket; OSError where there is nothing. For what others will open."""
    _check_regular(path, path.stat().st_mode)


def _check_regular(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # opening a folder fails by itself, in the system's words
        raise NotAFile(path, mode)


def read_file(path: Path, *, most_bytes: int) -> bytes:
    """The content of a regular file; OSError if it is larger than `most_bytes`."""
    with open_file(path) as file:
        content = _read(file, most_bytes + 1)
    if len(content) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes:,} bytes", str(path))
    return content


def pieces(file: BinaryIO, *, longest_bytes: int = LONGEST_PIECE_BYTES) -> Iterator[bytes]:
    """The lines of a file, each with its end; together they are the whole file.

    A line longer than `longest_bytes` comes in pieces, cut after a carriage return where there is one: programs that
    redraw a progress bar write very long lines. A piece that does not end in a newline goes on in the next.
    """
    rest = b""
    while read := _read(file, _READ_BYTES):
        *lines, rest = (rest + read).split(b"\n")
        for line in lines:
            if len(line) < longest_bytes:
                yield line + b"\n"
            else:
                yield from _cut(line + b"\n", longest_bytes)
        if len(rest) >= longest_bytes:
            *cut, rest = _cut(rest, longest_bytes)
            yield from cut
    if rest:
        yield rest


def _read(file: BinaryIO, most_bytes: int) -> bytes:
    """The next bytes of a file. An error names the file, as those of opening it do."""
    try:
        return file.read(most_bytes)
    except OSError as problem:
        problem.filename = getattr(file, "name", None)
        raise


def _cut(line: bytes, longest_bytes: int) -> Iterator[bytes]:
    """Pieces of at most `longest_bytes`."""
    begin = 0
    while len(line) - begin > longest_bytes:
        end = line.rfind(b"\r", begin, begin + longest_bytes) + 1 or begin + longest_bytes
        yield line[begin:end]
        begin = end
    yield line[begin:]
