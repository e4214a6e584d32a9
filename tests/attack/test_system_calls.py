"""Every system call of a save, a resume or a look fails once: the command ends as always or with 3; nothing is lost."""

from __future__ import annotations

from collections.abc import Callable
from errno import EINTR, EIO, ENOMEM, ENOSPC, ESTALE
from itertools import cycle

import pytest

from tests.attack.conftest import Attack, Fault, Nursery

CHANGING = ("write", "fsync", "rename", "open", "unlink", "mkdir", "truncate")
LOOKING = ("read", "stat", "readdir")
LOOKS = {
    "doctor": ["doctor", "run", "--json"],
    "compare": ["compare", "run", "half"],
    "plan a run": ["plan", "run"],
    "plan its data": ["plan", "--dataset=run/data"],
    "plan from it": ["plan", "--init_from=run"],
    "data": ["data", "info", "run/data"],
    "sample": ["sample", "run", "--max_new_tokens=3", "--num_samples=1", "--seed=1", "--device=cpu"],
}


def fail_at(attack: Attack, every: int) -> int:
    """Let every `every`-th system call fail; returns how many failed."""
    faults = [
        Fault(call=call, n=n, errno=error)
        for call in CHANGING
        for calls in [attack.calls(call)]
        for error in (ENOSPC, EIO, EINTR)
        for n in range(1, calls + 1)
    ]
    return attack.hit_all((faults + looking_faults(attack.calls))[::every], codes=(0, 3))


def looking_faults(count: Callable[[str], int]) -> list[Fault]:
    """A fault for each call that looks at something, with one error after the other."""
    errors = cycle((ESTALE, ENOMEM, EIO))
    return [Fault(call=call, n=n, errno=next(errors)) for call in ("open", *LOOKING) for n in range(1, count(call) + 1)]


def fail_looks(nursery: Nursery, looks: list[str], every: int) -> int:
    """Let every `every`-th system call of a command that only looks fail; returns how many failed."""
    Attack(nursery=nursery, kind="resume").prepare()
    text = nursery.path / "text.txt"
    text.write_text("".join(f"Document {n}. {'A few words. ' * 20}\n\n" for n in range(400)))
    assert nursery.run("data", "prepare", text.name, "--tokenizer=bytes", "--out", "run/data").code == 0, nursery.said()

    def ended(fault: Fault | None = None) -> tuple[int, str, int]:
        (nursery.path / "child.txt").unlink(missing_ok=True)
        code, calls = nursery.run(*looks, fault=fault)
        return code, nursery.said(), calls

    usual, answer, _ = ended()
    assert usual in (0, 1), answer
    faults = looking_faults(lambda call: ended(Fault(call=call, n=0, errno=0))[2])[::every]
    for fault in faults:
        code, said, _ = ended(fault)
        assert code == 3 or (code, said) == (usual, answer), f"{looks}, {fault}: exit {code}\n{said}"
    return len(faults)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["save", "resume"])
def test_a_twentieth_of_the_system_calls_fail(nursery: Nursery, kind: str) -> None:
    assert fail_at(Attack(nursery=nursery, kind=kind), 23) > 10


@pytest.mark.slow
@pytest.mark.parametrize("looks", LOOKS)
def test_a_look_ends_as_always_or_says_that_the_machine_failed(nursery: Nursery, looks: str) -> None:
    assert fail_looks(nursery, LOOKS[looks], 9)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["save", "resume"])
def test_every_system_call_fails(nursery: Nursery, kind: str) -> None:
    print(f"{kind}: {fail_at(Attack(nursery=nursery, kind=kind), 1)} failing system calls")


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("looks", LOOKS)
def test_every_system_call_of_a_look_fails(nursery: Nursery, looks: str) -> None:
    print(f"{looks}: {fail_looks(nursery, LOOKS[looks], 1)} failing system calls")
