"""Every system call of an export and of an import fails once, or the process is killed there: all is there, or nothing.

The same command then succeeds, whatever was left.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Sequence
from errno import EDQUOT, EIO, ENOSPC

import pytest

from tests.attack.conftest import TINY, Fault, Nursery

CHANGING = ("write", "fsync", "rename", "open", "unlink", "mkdir", "truncate")
ERRORS = (ENOSPC, EIO, EDQUOT)
KILLED = 0
COMMANDS = {
    "nanogpt": ("export", "to-export", "--to", "nanogpt", "--out", "run/deep/out"),
    "hf": ("export", "to-export", "--to", "hf", "--out", "run/deep/out"),
    "gguf": ("export", "to-export", "--to", "gguf", "--out", "run/deep/out.gguf"),
    "from nanogpt": ("import", "their-export/ckpt.pt", "--out_dir=run/deep/out", "--dataset=python-stdlib"),
    "from hf": ("import", "hf-export", "--out_dir=run/deep/out", "--dataset=python-stdlib"),
}


@pytest.fixture(scope="module")
def sources(nursery: Nursery) -> Nursery:
    """A run, and its model in both formats that can be imported."""
    for arguments in (
        ("train", *TINY, "--max_iters=4", "--out_dir=to-export"),
        ("export", "to-export", "--to", "nanogpt", "--out", "their-export"),
        ("export", "to-export", "--to", "hf", "--out", "hf-export"),
    ):
        assert nursery.run(*arguments).code == 0, nursery.said()
    return nursery


def there(nursery: Nursery) -> set[str]:
    """The files and folders below the place where the command writes."""
    root = nursery.path / "run"
    return {path.relative_to(root).as_posix() for path in root.rglob("*")}


def wrong(nursery: Nursery, kind: str, fault: Fault, whole: set[str]) -> list[str]:
    """What is wrong after a fault, and after the same command once more."""
    (nursery.path / "child.txt").unlink(missing_ok=True)
    shutil.rmtree(nursery.path / "run")
    (nursery.path / "run").mkdir()
    ended, found, said = nursery.run(*COMMANDS[kind], fault=fault), there(nursery), nursery.said()
    begun = [name for name in found if name.startswith(("deep/out/", "deep/out.gguf"))]
    is_whole, killed = found >= whole, ended.code == -signal.SIGKILL
    again = 0 if is_whole else nursery.run(*COMMANDS[kind]).code
    claims = {
        f"it ended with {ended.code}": killed or ended.code == 3 or (ended.code == 0 and is_whole),
        "there is half an output": is_whole or not (begun if killed else found),
        "it calls a file damaged, or advises to delete one": "damaged" not in said and "rm " not in said,
        f"the repetition ended with {again}": again == 0,
        "something else is left": killed or there(nursery) == whole,
    }
    return [f"{kind}, {fault}: {claim}\n{nursery.said()}" for claim, holds in claims.items() if not holds]


def fail_at(nursery: Nursery, kind: str, every: int, errors: Sequence[int]) -> int:
    """Let every `every`-th system call fail with each error; returns how many failed."""
    shutil.rmtree(nursery.path / "run", ignore_errors=True)
    (nursery.path / "run").mkdir()
    calls = {}
    for call in CHANGING:
        done = nursery.run(*COMMANDS[kind], fault=Fault(call=call, n=0, errno=0))
        assert done.code == 0, nursery.said()
        calls[call], whole = done.calls, there(nursery)
        shutil.rmtree(nursery.path / "run" / "deep")
    faults = [
        Fault(call=call, n=n, errno=error)
        for call, count in calls.items()
        for error in errors
        for n in range(1, count + 1)
    ][::every]
    failed = [each for fault in faults for each in wrong(nursery, kind, fault, whole)]
    assert not failed, f"{len(failed)} of {len(faults)}:\n" + "\n\n".join(failed)
    return len(faults)


@pytest.mark.slow
@pytest.mark.parametrize("kind", COMMANDS)
def test_an_export_or_import_is_whole_or_not_there(sources: Nursery, kind: str) -> None:
    assert fail_at(sources, kind, 13, (*ERRORS, KILLED)) > 3


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", COMMANDS)
def test_an_export_or_import_is_whole_or_not_there_whatever_fails(sources: Nursery, kind: str) -> None:
    print(f"{kind}: {fail_at(sources, kind, 1, (*ERRORS, KILLED))} failing system calls")
