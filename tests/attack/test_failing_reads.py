"""Every open and every read of prepared data fails once: it is the machine's fault, and nothing is called damaged.

No answer advises to delete what may be whole.
"""

from __future__ import annotations

import json
import re
import shutil
from errno import EACCES, EIO, ENOMEM, ESTALE

import pytest

from tests.attack.conftest import TINY, Fault, Nursery

ERRORS = (EIO, ESTALE, EACCES, ENOMEM)
BLAME = re.compile(r"damaged|remove|delete|\brm |prepare the data|copy may|copied|download|no such|there is no|\[bug\]")
MADE = {
    "learned": ("--tokenizer=bpe", "--vocab_size=300", "--dedup", "--val-share=0.3"),
    "nanogpt": ("--tokenizer=characters", "--format", "nanogpt", "--val-share=0.3"),
}
COMMANDS = {
    "info": ("data", "info", "DATA"),
    "plan": ("plan", "--dataset=DATA", "--gpu", "rtx-4070"),
    "train": ("train", *TINY, "--max_iters=1", "--dataset=DATA", "--out_dir=out"),
    "more": ("data", "prepare", "documents.jsonl", "--out", "DATA", "--tokens", "3000", "--workers", "1"),
}


@pytest.fixture(scope="module")
def prepared(nursery: Nursery) -> Nursery:
    """Data in both ways, of which more can be made."""
    lines = (json.dumps({"text": f"document {number}: " + "one two three four " * 9}) for number in range(40))
    (nursery.path / "documents.jsonl").write_text("\n".join(lines))
    for name, how in MADE.items():
        done = nursery.run(
            "data", "prepare", "documents.jsonl", "--out", name, "--tokens", "1500", "--workers", "1", *how
        )
        assert done.code == 0, nursery.said()
    return nursery


def hit(nursery: Nursery, kind: str, name: str, fault: Fault) -> tuple[int, int, str]:
    """How a command ended that had a fault in what it read, how many such calls it made, and what it said."""
    for left in ("run", "out"):
        shutil.rmtree(nursery.path / left, ignore_errors=True)
    (nursery.path / "child.txt").unlink(missing_ok=True)
    shutil.copytree(nursery.path / name, nursery.path / "run")
    typed = [word.replace("DATA", "run") for word in COMMANDS[kind]] + (list(MADE[name]) if kind == "more" else [])
    return *nursery.run(*typed, fault=fault), nursery.said()


def fail_at(nursery: Nursery, every: int) -> int:
    failed, cases = [], []
    for kind in COMMANDS:
        for name in MADE:
            for call in ("open", "read"):
                code, count, said = hit(nursery, kind, name, Fault(call=call, n=0, errno=0))
                assert code in (0, 1), said
                cases += [
                    (kind, name, Fault(call=call, n=n, errno=error)) for error in ERRORS for n in range(1, count + 1)
                ]
    for kind, name, fault in cases[::every]:
        code, _, said = hit(nursery, kind, name, fault)
        if code not in (0, 1, 3) or (code and BLAME.search(said)) or (code == 1 and kind != "plan"):
            failed.append(f"{kind}, {name}, {fault}: {code}\n{said}")
    assert not failed, f"{len(failed)} of {len(cases[::every])}:\n" + "\n\n".join(failed)
    return len(cases[::every])


@pytest.mark.slow
def test_no_failing_read_of_data_calls_them_damaged(prepared: Nursery) -> None:
    assert fail_at(prepared, 23) > 10


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_no_failing_read_of_data_calls_them_damaged_wherever_it_is(prepared: Nursery) -> None:
    print(f"{fail_at(prepared, 1)} failing reads")
