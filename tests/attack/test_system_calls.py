"""Every system call of a save and of a resume fails once: the run goes on or ends with 3, and nothing is lost."""

from __future__ import annotations

from errno import EINTR, EIO, ENOSPC

import pytest

from tests.attack.conftest import Attack, Fault, Nursery

CALLS = ("write", "fsync", "rename", "open", "unlink", "mkdir", "truncate")
ERRORS = {"ENOSPC": ENOSPC, "EIO": EIO, "EINTR": EINTR}


def fail_at(attack: Attack, every: int) -> int:
    """Let every `every`-th position fail with one error, all of them with each; returns how many failed."""
    positions = [(call, n) for call in CALLS for n in range(1, attack.calls(call) + 1)]
    pairs = [(call, n, error) for error in ERRORS.values() for call, n in positions]
    for call, n, error in pairs[::every]:
        attack.hit(Fault(call=call, n=n, errno=error), codes=(0, 3))
    return len(pairs[::every])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["save", "resume"])
def test_a_tenth_of_the_system_calls_fail(nursery: Nursery, kind: str) -> None:
    assert fail_at(Attack(nursery=nursery, kind=kind), 11) > 10


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["save", "resume"])
def test_every_system_call_fails(nursery: Nursery, kind: str) -> None:
    print(f"{kind}: {fail_at(Attack(nursery=nursery, kind=kind), 1)} failing system calls")  # noqa: T201
