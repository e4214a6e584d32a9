"""Writing so that a crash, a full disk or a read-only folder loses nothing and ends in a clear sentence."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from shlex import quote

from onecard import units
from onecard.errors import MachineError

OTHER_FOLDER = "choose another folder with --out_dir=PATH"
MAKE_ROOM = "make room"
HALF_WRITTEN = ".onecard-new"  # the end of such a file's name
UNTOUCHED = "what was written before is untouched"
DISK_FULL = {errno.ENOSPC, errno.EDQUOT}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_BROKEN = {errno.EIO, *DISK_FULL}  # the disk has failed, as against a system that has no such call


@contextmanager
def writing(path: Path, *, instead: str = OTHER_FOLDER, room: str = MAKE_ROOM) -> Iterator[None]:
    """Inside, an OSError becomes the MachineError of three lines for `path`.

    `instead` is what else the user can do where writing is forbidden, `room` where the disk is full.
    """
    try:
        yield
    except OSError as problem:
        raise cannot_write(path, problem, instead=instead, room=room) from problem


def cannot_write(path: Path, problem: OSError, *, instead: str = OTHER_FOLDER, room: str = MAKE_ROOM) -> MachineError:
    """What to say when `path` cannot be written: disk-full, read-only or cannot-write."""
    reason = f"the system says: {problem.strerror or problem}; {UNTOUCHED}"
    if problem.errno in DISK_FULL:
        return _disk_full(f"the disk is full: {path} could not be written", why=reason, path=path, room=room)
    if problem.errno in _FORBIDDEN:
        return MachineError(
            f"{path} may not be written",
            why=reason,
            fix=f"look at `ls -ld {_existing(path)}` (a read-only disk, or another user's folder?), or {instead}",
            name="read-only",
        )
    if link := _dangling(path):
        return MachineError(
            f"{path} could not be written",
            why=f"{link} is a link to {link.readlink()}, which is not there; {UNTOUCHED}",
            fix=f"mkdir -p {quote(os.path.realpath(link))}   (or {instead})",
            name="cannot-write",
        )
    return MachineError(
        f"{path} could not be written",
        why=reason,
        fix=f"look at {_existing(path)}, or {instead}",
        name="cannot-write",
    )


def free_name(path: Path) -> str:
    """A name like `path` that nothing has yet, quoted for a command to paste: data-2, plan-3.py."""
    return quote(str(free_path(path)))


def free_path(path: Path) -> Path:
    """A path like `path` where nothing is yet."""
    path = path.resolve() if path.name in ("", "..") else path  # `.` has no name of its own
    stem, suffix = (path.name, "") if path.is_dir() else (path.stem, path.suffix)
    numbered = (path.parent / f"{stem}-{number}{suffix}" for number in count(2))
    return next(name for name in numbered if not name.exists())


def check_space(path: Path, *, needed_bytes: int, room: str = MAKE_ROOM) -> None:
    """Refuse before writing `path`: a full disk is easier to understand with both numbers."""
    free_bytes = shutil.disk_usage(_existing(path)).free
    if needed_bytes > free_bytes:
        needed, free = units.size(needed_bytes), units.size(free_bytes)
        if needed == free:
            needed, free = f"{needed_bytes:,} bytes", f"{free_bytes:,}"
        raise _disk_full(
            f"{path} needs {needed} and the disk has {free} free",
            why=f"the space is looked at before anything is written; {UNTOUCHED}",
            path=path,
            room=room,
        )


def write_atomically(path: Path, content: bytes) -> None:
    """Put `content` at `path`: a reader, or the next start after a power cut, sees all of the old or all of the new."""
    temporary = half_written(path)
    with writing(path):
        try:
            write_durably(temporary, content)
            temporary.replace(path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
            raise
        sync_folder(path.parent)


def half_written(path: Path) -> Path:
    """Where a file or folder is made until all of `path` is there; a kill may leave it, the next write replaces it.

    The name is one that nobody else gives: what lies there already is deleted.
    """
    return path.with_name(f".{path.name}{HALF_WRITTEN}")


def write_durably(path: Path, content: bytes) -> None:
    """Write a file and wait until its content, though not yet its name, is on the disk."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_file(path: Path) -> None:
    """Wait until the content of a file that something else wrote is on the disk."""
    with path.open("r+b") as file:  # Windows syncs only what is open for writing
        os.fsync(file.fileno())


def allow_readers(path: Path) -> None:
    """Give a file that something else wrote the permissions of one that we make; safetensors' are its owner's alone.

    Where the disk knows no permissions, or lets nobody change them, they stay.
    """
    mask = os.umask(0)
    os.umask(mask)
    with suppress(OSError):
        path.chmod(0o666 & ~mask)


def sync_folder(folder: Path) -> None:
    """Make names in `folder` (a rename, a new file) survive a power cut, where the system can promise that."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as problem:  # Windows cannot open a folder, and some network disks cannot sync one
        if problem.errno in _BROKEN:
            raise


def _disk_full(what: str, *, why: str, path: Path, room: str) -> MachineError:
    fix = f"{room} (see `df -h {_existing(path)}`), then the same again (a run: with --resume)"
    return MachineError(what, why=why, fix=fix, name="disk-full")


def _dangling(path: Path) -> Path | None:
    """The link on the way to `path`, or itself one, that leads nowhere."""
    return next((link for link in (path, *path.parents) if link.is_symlink() and not link.exists()), None)


def _existing(path: Path) -> Path:
    """The nearest folder that exists, so that a suggested command works."""
    return next((folder for folder in (path, *path.parents) if folder.is_dir()), Path())
