"""Safe writing: a crash, a full disk or a read-only folder loses nothing, and the error says clearly what happened."""

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
from onecard.errors import DISK_FULL, MachineError

OTHER_FOLDER = "choose another folder with --out_dir=PATH"
MAKE_ROOM = "make room"
HALF_WRITTEN = ".onecard-new"  # the end of such a file's name
UNTOUCHED = "what was written before is untouched"
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_BROKEN = {errno.EIO, *DISK_FULL}  # the disk itself failed; other errors mean that the system has no such call


@contextmanager
def writing(path: Path, *, instead: str = OTHER_FOLDER, room: str = MAKE_ROOM) -> Iterator[None]:
    """A context in which an OSError becomes the MachineError for `path`, in three lines.

    `instead` is what else the user can do if writing is forbidden, `room` what to do if the disk is full.
    """
    try:
        yield
    except OSError as problem:
        raise cannot_write(path, problem, instead=instead, room=room) from problem


def cannot_write(path: Path, problem: OSError, *, instead: str = OTHER_FOLDER, room: str = MAKE_ROOM) -> MachineError:
    """The error for a `path` that cannot be written: disk-full, read-only or cannot-write."""
    path = _meant(path)
    reason = f"the system says: {problem.strerror or problem}; {UNTOUCHED}"
    if problem.errno in DISK_FULL:
        return _disk_full(f"the disk is full: {path} could not be written", why=reason, path=path, room=room)
    if problem.errno in _FORBIDDEN:
        return MachineError(
            f"no permission to write {path}",
            why=reason,
            fix=f"look at `ls -ld {_existing(path)}` (a read-only disk, or another user's folder?), or {instead}",
            name="read-only",
        )
    if link := _dangling(path):
        return MachineError(
            f"{path} could not be written",
            why=f"{link} is a link to {link.readlink()}, which does not exist; {UNTOUCHED}",
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
    """An unused name like `path`, quoted for a command to paste: data-2, plan-3.py."""
    return quote(str(free_path(path)))


def free_path(path: Path) -> Path:
    """An unused path like `path`."""
    path = path.resolve() if path.name in ("", "..") else path  # `.` has no name of its own
    stem, suffix = (path.name, "") if path.is_dir() else (path.stem, path.suffix)
    numbered = (path.parent / f"{stem}-{number}{suffix}" for number in count(2))
    return next(name for name in numbered if not name.exists())


def check_space(path: Path, *, needed_bytes: int, room: str = MAKE_ROOM) -> None:
    """Refuse to start writing `path` if it does not fit on the disk; the error has both sizes."""
    path = _meant(path)
    free_bytes = shutil.disk_usage(_existing(path)).free
    if needed_bytes > free_bytes:
        needed, free = units.size(needed_bytes), units.size(free_bytes)
        if needed == free:
            needed, free = f"{needed_bytes:,} bytes", f"{free_bytes:,}"
        raise _disk_full(
            f"{path} needs {needed} and the disk has {free} free",
            why=f"free space is checked before anything is written; {UNTOUCHED}",
            path=path,
            room=room,
        )


def write_atomically(path: Path, content: bytes) -> None:
    """Put `content` at `path`. A reader sees all of the old content or all of the new, even after a power cut."""
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


@contextmanager
def whole(path: Path, *, needed_bytes: int = 0, instead: str = OTHER_FOLDER) -> Iterator[Path]:
    """A temporary path for a new file or folder; it becomes `path` when all is written, and is removed after an error.

    `path` may be an empty folder. Inside, files are flushed by whoever writes them.
    """
    room = f"{MAKE_ROOM}, or {instead}"
    place = path.resolve() if path.exists() else path  # of a link, the folder that it leads to
    made = [folder for folder in place.parents if not folder.exists()]
    written = new = half_written(place)
    with writing(path, instead=instead, room=room):
        check_space(path, needed_bytes=needed_bytes, room=room)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            remove(new)  # what a killed command left
            yield new
            if new.is_dir():
                sync_folder(new)
            if place.is_dir():
                place.rmdir()
            new.rename(place)
            written = place
            sync_folder(place.parent)
        except BaseException:
            with suppress(OSError):
                remove(written)
            for folder in made:
                with suppress(OSError):
                    folder.rmdir()
            raise


def remove(path: Path) -> None:
    """Remove what is there, if anything is; of a link, the link and not where it leads."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def half_written(path: Path) -> Path:
    """The temporary path where a file or folder is written before it is renamed to `path`.

    A kill may leave it behind; the next write replaces it. Nothing else uses this name, so an existing one is deleted.
    """
    return path.with_name(f".{path.name}{HALF_WRITTEN}")


def _meant(path: Path) -> Path:
    """The path that a half-written one will have: only that one means something to a user."""
    halves = (Path(part) for part in path.parts)
    return Path(*(half.name[1:].removesuffix(HALF_WRITTEN) if is_half_written(half) else half for half in halves))


def is_half_written(path: Path) -> bool:
    """Whether a file or folder is not all there, by its name."""
    return path.name.startswith(".") and path.name.endswith(HALF_WRITTEN)


def write_durably(path: Path, content: bytes) -> None:
    """Write a file and wait until its content is on the disk. Its name may not be yet: see `sync_folder`."""
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_file(path: Path) -> None:
    """Wait until the content of a file that something else wrote is on the disk."""
    with path.open("r+b") as file:  # Windows syncs only what is open for writing
        os.fsync(file.fileno())


def allow_readers(path: Path) -> None:
    """Give a file that a library wrote the usual permissions; safetensors makes files that only their owner can read.

    If the disk has no permissions, or does not let us change them, they stay as they are.
    """
    mask = os.umask(0)
    os.umask(mask)
    with suppress(OSError):
        path.chmod(0o666 & ~mask)


def sync_folder(folder: Path) -> None:
    """Make names in `folder` (a rename, a new file) survive a power cut, if the system supports it."""
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
    again = "then type the same command again (to go on with a run that was saved: onecard train --resume RUN)"
    fix = f"{room} (see `df -h {_existing(path)}`), {again}"
    return MachineError(what, why=why, fix=fix, name="disk-full")


def _dangling(path: Path) -> Path | None:
    """The broken link that is `path` or one of its parents; None if there is no such link."""
    return next((link for link in (path, *path.parents) if link.is_symlink() and not link.exists()), None)


def _existing(path: Path) -> Path:
    """The nearest folder that exists: `path` or one of its parents. A command that names it works."""
    return next((folder for folder in (path, *path.parents) if folder.is_dir()), Path())
