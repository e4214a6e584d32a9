"""SIGKILL at every system call of a save and of a resume, and at random moments: nothing is lost."""

from __future__ import annotations

import os
import random
import shutil
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


def kill_preparing(nursery: Nursery, tokenizer: list[str], every: int) -> int:
    """Kill `data prepare` before every `every`-th system call; the same command goes on to the same tokens."""
    text = nursery.path / "text.txt"
    text.write_text("".join(f"Document {n}. {'A few words. ' * 20}\n\n" for n in range(400)))
    command = ["data", "prepare", text.name, *tokenizer, "--workers=1", "--out"]
    whole, cut = nursery.path / "apart" / "run", nursery.path / "run"  # a folder is named in its meta.json
    shutil.rmtree(whole, ignore_errors=True)
    assert nursery.run(*command, "apart/run").code == 0, nursery.said()

    def killed_at(n: int) -> int:
        shutil.rmtree(cut, ignore_errors=True)
        (nursery.path / "child.txt").unlink(missing_ok=True)
        return nursery.run(*command, cut.name, fault=Fault(call="any", n=n, errno=0)).calls

    positions = range(1, killed_at(0) + 1, every)
    for n in positions:
        killed_at(n)
        assert nursery.run(*command, cut.name).code == 0, f"killed at {n}\n{nursery.said()}"
        assert files_in(cut) == files_in(whole), f"killed at {n}"
    return len(positions)


def files_in(folder: Path) -> dict[str, bytes]:
    """The data without what tells times, or of work in progress."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in ("progress.json", "lock")}


PREPARING = {"bpe": ["--tokenizer=bpe", "--vocab_size=300"], "characters": ["--tokenizer=characters"]}


@pytest.mark.slow
def test_data_go_on_to_the_same_tokens_after_a_kill_at_any_fourth_system_call(nursery: Nursery) -> None:
    assert kill_preparing(nursery, PREPARING["bpe"], 4) >= 5


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("tokenizer", PREPARING)
def test_data_go_on_to_the_same_tokens_after_a_kill_at_any_system_call(nursery: Nursery, tokenizer: str) -> None:
    print(f"{tokenizer}: {kill_preparing(nursery, PREPARING[tokenizer], 1)} kills")


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
