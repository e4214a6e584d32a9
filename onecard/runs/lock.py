"""A lock: one process at a time in a run folder. The system releases it when the process ends, even after a crash."""

from __future__ import annotations

import errno
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path

from onecard.errors import OnecardError
from onecard.files import writing
from onecard.opening import read_file

_BUSY = {errno.EWOULDBLOCK, errno.EACCES}
_UNSUPPORTED = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL}  # some network disks cannot lock
_held: set[int] = set()  # file descriptors


class InUse(OnecardError):
    """Another process holds the lock; `holder` says which one."""

    name = "run-in-use"

    def __init__(self, folder: Path, holder: tuple[int, str] | None) -> None:
        self.holder = f"process {holder[0]} on {holder[1]}" if holder else "another process"
        super().__init__(
            f"{folder} is in use: {self.holder} is training there",
            why="two trainings in one folder would mix their records and overwrite each other's checkpoints",
            fix="wait for it, stop it, or choose another folder with --out_dir=PATH",
        )


class Lock:
    """A lock, held from construction until `close`. Raises InUse while another process holds it.

    The file names the process that holds it. The file stays afterwards; an empty one means nothing. A name that is
    still in it means that this process did not end normally.
    """

    def __init__(self, path: Path) -> None:
        with writing(path):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            with writing(path):
                _take_or_refuse(self._descriptor, path)
                os.ftruncate(self._descriptor, 0)
                os.lseek(self._descriptor, 0, os.SEEK_SET)
                os.write(self._descriptor, f"{os.getpid()} {socket.gethostname()}\n".encode())
        except BaseException:
            os.close(self._descriptor)
            raise
        _held.add(self._descriptor)

    def close(self, *, keep_name: bool = False) -> None:
        """Release the lock. A process that ends without calling this also releases it, but its name stays."""
        if self._descriptor in _held:
            _held.discard(self._descriptor)
            with suppress(OSError):
                if not keep_name:
                    os.ftruncate(self._descriptor, 0)  # on disks without locks only the name counts, so remove it too
                _release(self._descriptor)  # closing is not enough while a forked child has a copy open
            os.close(self._descriptor)


def refuse_in_use(path: Path) -> None:
    """Raise InUse while another process holds the lock. The lock is not kept, and its file not changed."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError:  # there is none, or the next write reports why not
        return
    try:
        if not held_here(path):
            _take_or_refuse(descriptor, path)
    finally:
        os.close(descriptor)


def left_behind(path: Path) -> bool:
    """Whether the process named in a lock file is gone, or no longer holds the lock, without removing its name.

    Then it was killed, lost power, or ended with an error. False if the file names nobody, or if this cannot be
    checked: for a process on another machine, and on Windows.
    """
    holder = _holder(path)
    if holder is None or sys.platform == "win32":
        return False
    pid, host = holder
    if host != socket.gethostname():
        return False
    return not held_here(path) if pid == os.getpid() else not _lives_here(pid, host)


def held_here(path: Path) -> bool:
    """Whether this process holds the lock of a file."""
    with suppress(OSError):
        return any(os.path.samestat(os.fstat(descriptor), path.stat()) for descriptor in _held)
    return False


def _take_or_refuse(descriptor: int, path: Path) -> None:
    """Take the lock; InUse where another process has it or, on a disk without locks, lives and is named in the file."""
    taken = _take(descriptor)
    holder = _holder(path)
    if taken is False or (taken is None and holder is not None and _lives_here(*holder)):
        raise InUse(path.parent, holder)


def _take(descriptor: int) -> bool | None:
    """Whether the lock is ours now; None where this disk has no locks."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(descriptor, 2**30, os.SEEK_SET)  # lock a byte far away, so that others can read the name
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        if problem.errno in _BUSY:
            return False
        if problem.errno in _UNSUPPORTED:
            return None
        raise
    return True


def _release(descriptor: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        os.lseek(descriptor, 2**30, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)
    else:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_UN)


def _holder(path: Path) -> tuple[int, str] | None:
    """The process id and machine in a lock file; None if it names nobody."""
    try:
        pid, host = read_file(path, most_bytes=1024).decode().split()
        return (int(pid), host) if 0 < int(pid) < 2**31 else None
    except (OSError, ValueError):
        return None


def _lives_here(pid: int, host: str) -> bool:
    """Whether that process is running on this machine; False on another machine and on Windows."""
    if pid == os.getpid() or host != socket.gethostname() or sys.platform == "win32":  # on Windows, signal 0 is Ctrl-C
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _let_go_after_fork() -> None:
    """Close a forked child's copies, so that it does not keep its parent's lock. The parent keeps its own."""
    for descriptor in _held:
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go_after_fork)
