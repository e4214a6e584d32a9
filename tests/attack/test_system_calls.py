"""Every system call of a save and of a resume fails once: the run goes on or ends with 3, and nothing is lost."""

from __future__ import annotations

from errno import EINTR, EIO, ENOSPC

import pytest

from tests.attack.conftest import Attack, Fault, Nursery

CHANGING = ("write", "fsync", "rename", "open", "unlink", "mkdir", "truncate")
ERRORS = {**dict.fromkeys(CHANGING, (ENOSPC, EIO, EINTR)), "read": (EIO,)}


def fail_at(attack: Attack, every: int) -> int:
    """Let every `every`-th system call fail, with each error; returns how many failed."""
    calls = {call: attack.calls(call) for call in ERRORS}
    faults = [
        Fault(call=call, n=n, errno=error)
        for call, errors in ERRORS.items()
        for error in errors
        for n in range(1, calls[call] + 1)
    ]
    return attack.hit_all(faults[::every], codes=(0, 3))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["save", "resume"])
def test_a_twentieth_of_the_system_calls_fail(nursery: Nursery, kind: str) -> None:
    assert fail_at(Attack(nursery=nursery, kind=kind), 23) > 10


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["save", "resume"])
def test_every_system_call_fails(nursery: Nursery, kind: str) -> None:
    print(f"{kind}: {fail_at(Attack(nursery=nursery, kind=kind), 1)} failing system calls")
