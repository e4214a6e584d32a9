"""SIGKILL at every system call of a save and of a resume, and at random moments: nothing is lost."""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path

import pytest

from onecard.runs.folder import load_run
from onecard.runs.records import Start
from tests.attack.conftest import Attack, Fault, Nursery, losses


def kill_at(attack: Attack, every: int) -> int:
    """Kill the command before every `every`-th system call; returns how many kills there were."""
    positions = range(1, attack.calls("any") + 1, every)
    return attack.hit_all([Fault(call="any", n=n, errno=0) for n in positions], codes=(-signal.SIGKILL,))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["save", "resume"])
def test_kills_at_a_tenth_of_the_system_calls(nursery: Nursery, kind: str) -> None:
    assert kill_at(Attack(nursery=nursery, kind=kind), 10) >= 10


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["save", "resume"])
def test_a_kill_at_every_system_call(nursery: Nursery, kind: str) -> None:
    print(f"{kind}: {kill_at(Attack(nursery=nursery, kind=kind), 1)} kills")


@pytest.mark.slow
def test_a_run_killed_ten_times_is_bit_for_bit_the_undisturbed_one(nursery: Nursery) -> None:
    killed_at_random(nursery, 10)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_run_killed_a_hundred_times_is_bit_for_bit_the_undisturbed_one(nursery: Nursery) -> None:
    killed_at_random(nursery, 100)


TINY = [
    *("--n_layer=2", "--n_head=2", "--n_embd=32", "--block_size=32", "--batch_size=4", "--device=cpu"),
    *("--warmup_iters=2", "--eval_interval=50", "--eval_iters=2", "--lr_decay_iters=500", "--checkpoint_interval=5"),
]


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def killed_at_random(nursery: Nursery, count: int) -> None:
    """A run killed `count` times at random moments has the losses of the one left alone."""
    rng = random.Random(count)
    cut, whole = nursery.path / f"cut-{count}", nursery.path / f"uncut-{count}"
    records = cut / "records.jsonl"
    arguments = ["train", *TINY, "--max_iters=1000000", f"--out_dir={cut}"]
    for _ in range(count):
        written = size(records)
        child = nursery.start(*arguments)
        if rng.random() < 0.8:  # many of the others are killed before they train
            deadline = time.monotonic() + 60
            while size(records) == written and time.monotonic() < deadline:
                time.sleep(0.005)
        time.sleep(rng.uniform(0.05, 0.4))  # anywhere: at the start, in a step, a record, a checkpoint
        os.kill(child, signal.SIGKILL)
        assert nursery.end().code == -signal.SIGKILL, nursery.said()
        if (cut / "config.json").exists():
            arguments = ["train", "--resume", str(cut)]
    last = load_run(cut).last_step + 7
    for finishing in (
        ["train", "--resume", str(cut), f"--max_iters={last}"],
        ["train", *TINY, f"--max_iters={last}", f"--out_dir={whole}"],
    ):
        assert nursery.run(*finishing).code == 0, nursery.said()
    assert last > 10 * (count > 10), "the kills came before anything was trained"
    assert losses(cut) == losses(whole)
    starts = [record for record in load_run(cut).history.records if isinstance(record, Start)]
    assert sum(start.resumed_from is not None for start in starts) >= count // 2, "hardly any kill fell into training"
