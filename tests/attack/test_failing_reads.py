"""Every open and read of data, runs and models fails once: nothing is called damaged, nothing is to be deleted.

The exit code is the machine's, 3; a file that may not be read is the user's to open, 2.
"""

from __future__ import annotations

import json
import re
import shutil
from errno import EACCES, EIO, ENOMEM, ESTALE

import pytest

from tests.attack.conftest import TINY, Fault, Nursery

ERRORS = (EIO, ESTALE, EACCES, ENOMEM)
BLAME = re.compile(r"damaged|cut off|remove|delete|\brm |the data again|copied|download|no such|there is no|\[bug\]")
PREPARE = ("data", "prepare", "documents.jsonl", "--workers", "1", "--val-share=0.3")
LEARNED = (*PREPARE, "--tokenizer=bpe", "--vocab_size=300", "--dedup")
NANOGPTS = (*PREPARE, "--tokenizer=characters", "--format", "nanogpt")
MADE = {
    "learned": (*LEARNED, "--tokens", "1500", "--out", "learned"),
    "nanogpts": (*NANOGPTS, "--tokens", "1500", "--out", "nanogpts"),
    "trained": ("train", *TINY, "--max_iters=4", "--out_dir=trained"),
    "checkpoint": ("export", "trained", "--to", "nanogpt", "--out", "checkpoint"),
    "folder": ("export", "trained", "--to", "hf", "--out", "folder"),
}
READ = (  # what is read, copied to "run"; the command
    ("learned", ("data", "info", "run")),
    ("nanogpts", ("data", "info", "run")),
    ("learned", ("plan", "--dataset=run", "--gpu", "rtx-4070")),
    ("learned", ("train", *TINY, "--max_iters=1", "--dataset=run", "--out_dir=out")),
    ("nanogpts", ("train", *TINY, "--max_iters=1", "--dataset=run", "--out_dir=out")),
    ("learned", (*LEARNED, "--tokens", "3000", "--out", "run")),
    ("nanogpts", (*NANOGPTS, "--tokens", "3000", "--out", "run")),
    ("trained", ("export", "run", "--to", "hf", "--out", "out")),
    ("trained", ("sample", "run", "--length", "3")),
    ("checkpoint", ("import", "run/ckpt.pt", "--out_dir=out")),
    ("folder", ("import", "run", "--out_dir=out")),
)


@pytest.fixture(scope="module")
def made(nursery: Nursery) -> Nursery:
    """Data in two formats, of which more can be made; a run, and its model as others have it."""
    lines = (json.dumps({"text": f"document {number}: " + "one two three four " * 9}) for number in range(40))
    (nursery.path / "documents.jsonl").write_text("\n".join(lines))
    for name, typed in MADE.items():
        shutil.rmtree(nursery.path / name, ignore_errors=True)
        assert nursery.run(*typed).code == 0, nursery.said()
    return nursery


def hit(nursery: Nursery, name: str, typed: tuple[str, ...], fault: Fault) -> tuple[int, int, str]:
    """How a command ended that had a fault in what it read, how many such calls it made, and what it said."""
    for left in ("run", "out"):
        shutil.rmtree(nursery.path / left, ignore_errors=True)
    (nursery.path / "child.txt").unlink(missing_ok=True)
    shutil.copytree(nursery.path / name, nursery.path / "run")
    return *nursery.run(*typed, fault=fault), nursery.said()


def fail_at(nursery: Nursery, every: int) -> int:
    """Let every `every`-th open or read fail with each error; returns how many failed."""
    cases = []
    for name, typed in READ:
        for call in ("open", "read"):
            code, count, said = hit(nursery, name, typed, Fault(call=call, n=0, errno=0))
            assert code in (0, 1 if typed[0] == "plan" else 0), said
            faults = (Fault(call=call, n=n, errno=error) for error in ERRORS for n in range(1, count + 1))
            cases += [(name, typed, fault) for fault in faults]
    failed = []
    for name, typed, fault in cases[::every]:
        code, _, said = hit(nursery, name, typed, fault)
        right = {0, 3} | ({2} if fault.errno == EACCES else set()) | ({1} if typed[0] == "plan" else set())
        if code not in right or (code > 1 and BLAME.search(said)):
            failed.append(f"{' '.join(typed)}, {name}, {fault}: {code}\n{said}")
    assert not failed, f"{len(failed)} of {len(cases[::every])}:\n" + "\n\n".join(failed)
    return len(cases[::every])


@pytest.mark.slow
def test_no_failing_read_is_called_damage(made: Nursery) -> None:
    assert fail_at(made, 41) > 10


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_no_failing_read_is_called_damage_wherever_it_is(made: Nursery) -> None:
    print(f"{fail_at(made, 1)} failing reads")
