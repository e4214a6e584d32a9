"""Every system call of a save and of a resume fails once: the run goes on or ends with 3, and nothing is lost."""

from __future__ import annotations

from errno import EINTR, EIO, ENOSPC

import pytest

from tests.attack.conftest import Attack, Fault, Nursery

CALLS = ("write", "fsync", "rename", "open", "unlink", "mkdir", "truncate")
ERRORS = {"ENOSPC": ENOSPC, "EIO": EIO, "EINTR": EINTR}


def fail_at(attack: Attack, every: int) -> int:
    """Let every `every`-th system call fail, with each error; returns how many failed."""
    positions = [(call, n) for call in CALLS for n in range(1, attack.calls(call) + 1)]
    faults = [Fault(call=call, n=n, errno=error) for error in ERRORS.values() for call, n in positions]
    return attack.hit_all(faults[::every], codes=(0, 3))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["save", "resume"])
def test_a_tenth_of_the_system_calls_fail(nursery: Nursery, kind: str) -> None:
    assert fail_at(Attack(nursery=nursery, kind=kind), 11) > 10


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["save", "resume"])
def test_every_system_call_fails(nursery: Nursery, kind: str) -> None:
    print(f"{kind}: {fail_at(Attack(nursery=nursery, kind=kind), 1)} failing system calls")
