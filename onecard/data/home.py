"""Where onecard keeps what it can make again: prepared data, downloads, compiled code."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from onecard.errors import MachineError


def cache_home(environ: Mapping[str, str]) -> Path:
    """The folder to look in: ONECARD_HOME, or ~/.cache/onecard. It may be missing, or read-only."""
    if named := environ.get("ONECARD_HOME"):
        return Path(named)
    try:
        return Path.home() / ".cache" / "onecard"
    except RuntimeError:  # no HOME, and a user without a line in /etc/passwd
        return _stand_in()


def writable_home(environ: Mapping[str, str]) -> Path:
    """The folder to write to: `cache_home`, made if it is missing, or a temporary folder where it cannot be written."""
    home = cache_home(environ)
    return home if _why_not(home) is None else _stand_in()


def home_note(environ: Mapping[str, str]) -> str | None:
    """One line for the user where `writable_home` is not `cache_home`."""
    home = cache_home(environ)
    problem = _why_not(home)
    if problem is None:
        return None
    return (
        f"{home} cannot be written ({problem}), so caches go to {_stand_in()}: "
        "set ONECARD_HOME to a folder that can be written"
    )


def homes(environ: Mapping[str, str]) -> list[Path]:
    """Every folder to look in: a named home alone; else ~/.cache's and, if that cannot be written, its stand-in."""
    home, shared = cache_home(environ), _shared()
    in_use = shared and _is_ours(shared) and not environ.get("ONECARD_HOME") and _why_not(home) is not None
    return [home, *([shared] if shared and in_use else [])]


def can_write_user_home() -> bool:
    """Whether other programs' caches can be made under HOME."""
    try:
        return os.access(Path.home(), os.W_OK)
    except RuntimeError:  # as in `cache_home`
        return False


def _why_not(folder: Path) -> str | None:
    """Why no file can be made in `folder`, in the system's words; None if one can."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):  # permission bits do not tell for root, or on a read-only disk
            return None
    except OSError as problem:
        return problem.strerror or str(problem)


@cache
def _stand_in() -> Path:
    """The temporary folder that this user's commands share; a new one if another user has made a folder of its name."""
    try:
        shared = _shared()
        if shared:
            with suppress(FileExistsError):
                shared.mkdir(mode=0o700)
            if _is_ours(shared) and _why_not(shared) is None:
                return shared
        return Path(tempfile.mkdtemp(prefix="onecard-"))
    except OSError as problem:
        raise MachineError(
            "there is no folder for caches",
            why=f"neither onecard's home nor the temporary folder can be written: {problem.strerror or problem}",
            fix="set ONECARD_HOME to a folder that can be written",
            name="no-home",
        ) from problem


def _shared() -> Path | None:
    """The path of that temporary folder; None where there is no folder for temporary files."""
    with suppress(OSError):
        return Path(tempfile.gettempdir()) / f"onecard-{_user()}"
    return None


def _is_ours(folder: Path) -> bool:
    """Whether `folder` is a folder of this user that no other user can write to."""
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == _user() and not found.st_mode & 0o022


def _user() -> int:
    return os.getuid() if hasattr(os, "getuid") else 0  # Windows has a temporary folder for each user
