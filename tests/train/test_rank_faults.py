"""What goes wrong with one of several processes: all go on together or all end, and the user is told once."""

from __future__ import annotations

import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from array import array
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from queue import Queue
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from torch.distributed import TCPStore  # noqa: E402

from onecard.runs.folder import LOCK, RECORDS, load_run  # noqa: E402
from onecard.runs.lock import Lock  # noqa: E402
from onecard.runs.records import Eval, Oom, Start  # noqa: E402
from tests.train.test_several_processes import CONFIG, UPDATES, weights_of  # noqa: E402
from tests.warm import Outcome, WarmProcess  # noqa: E402
from tests.warm_process import TORCH  # noqa: E402

pytestmark = pytest.mark.slow

FAULTS = "tests.train.rank_faults"
HOST = socket.gethostname()
LONG = "--max_iters=100000"


class Started:
    """Ranks that run `onecard train`."""

    def __init__(self, pids: list[int], outcomes: list[Future[Outcome]], folder: Path) -> None:
        self.pids, self._outcomes, self._folder = pids, outcomes, folder

    def reach(self, step: int) -> None:
        """Wait until the run is at least there."""
        said = f'"step":{step},'
        file = self._folder / RECORDS
        until = time.monotonic() + 200
        while not (file.exists() and said in file.read_text()) and time.monotonic() < until:
            time.sleep(0.005)
        assert time.monotonic() < until, "the ranks do not train"

    def send(self, rank: int, number: signal.Signals) -> None:
        os.kill(self.pids[rank], number)

    def end(self, *, within: float = 60) -> list[Outcome]:
        return [outcome.result(timeout=within) for outcome in self._outcomes]


class Machine:
    """A folder with data, and warm processes that become ranks as torchrun makes them.

    As torchrun does, it keeps one store for all attempts, and what they have left there.
    """

    def __init__(self, folder: Path, processes: list[WarmProcess]) -> None:
        self.folder, self._processes = folder, processes
        self._threads = ThreadPoolExecutor(len(processes))
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    @contextmanager
    def with_ranks(self, count: int) -> Iterator[Machine]:
        """The same machine with more ranks."""
        made = [WarmProcess(*TORCH) for _ in range(count - len(self._processes))]
        try:
            yield Machine(self.folder, [*self._processes, *made])
        finally:
            for process in made:
                process.close()

    def start(
        self,
        *arguments: str,
        run: str,
        fault: str = "",
        on: int | None = None,
        per_rank: tuple[str, ...] = (),
        folders: tuple[str, ...] = ("",) * 4,
    ) -> Started:
        """Start a rank in each process, with a fault in one of them or in all."""
        count = len(self._processes)
        of_all: dict[str, object] = {
            "WORLD_SIZE": count,
            "LOCAL_WORLD_SIZE": count,
            "GROUP_RANK": 0,
            "TORCHELASTIC_USE_AGENT_STORE": True,
        }
        of_all |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": self._store.port}
        outcomes, started = [], [Queue[int]() for _ in range(count)]
        for rank, process in enumerate(self._processes):
            named = of_all | {"RANK": rank, "LOCAL_RANK": rank, "FAULT": fault}
            begun = self._threads.submit(
                process.run,
                *("train", "tiny.py", f"--out_dir={run}", *arguments, *per_rank[rank : rank + 1]),
                cwd=self.folder / folders[rank],
                environment={key: str(value) for key, value in named.items()},
                before=FAULTS if fault and on in (None, rank) else None,
                on_start=started[rank].put,
                timeout=300,
            )
            outcomes.append(begun)
        return Started([each.get(timeout=300) for each in started], outcomes, self.folder / run)

    def run(self, *arguments: str, run: str, fault: str = "", on: int | None = None) -> list[Outcome]:
        return self.start(*arguments, run=run, fault=fault, on=on).end()


@pytest.fixture(scope="module")
def machine(warm_with_torch: WarmProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    folder = tmp_path_factory.mktemp("faults")
    for place, change in ((folder, 0), (folder / "elsewhere", 1)):
        (place / "data").mkdir(parents=True)
        tokens = array("H", (index * index // 7 % 61 + index % 3 for index in range(9000)))
        tokens[0] += change
        (place / "data/train.bin").write_bytes(tokens[:8000].tobytes())
        (place / "data/val.bin").write_bytes(tokens[8000:].tobytes())
        (place / "tiny.py").write_text("".join(f"{key} = {value!r}\n" for key, value in CONFIG.items()))
    second = WarmProcess(*TORCH)
    yield Machine(folder, [warm_with_torch, second])
    second.close()


@pytest.fixture(scope="module")
def whole(machine: Machine) -> Path:
    """The run of two ranks that nothing disturbs."""
    assert [each.code for each in machine.run(run="whole")] == [0, 0]
    return machine.folder / "whole"


def told_once(outcomes: list[Outcome], *words: str) -> str:
    """The one error that the ranks print together, which has these words."""
    said = "".join(outcome.stderr for outcome in outcomes)
    assert said.count("error:") == 1, said
    error = said[said.index("error:") :]
    assert all(word in error for word in words), said
    assert re.fullmatch(r"error: .*\n  why: .*\n  fix: .*\n", error), said
    return error


@pytest.mark.parametrize("fault", ["memory in an update", "memory to step"])
def test_out_of_memory_on_one_rank_shrinks_the_micro_batch_on_all(machine: Machine, whole: Path, fault: str) -> None:
    run = fault.replace(" ", "-")
    outcomes = machine.run(run=run, fault=fault, on=1)
    assert [each.code for each in outcomes] == [0, 0], outcomes[0].stderr
    records = load_run(machine.folder / run).records
    (short,) = [record for record in records if isinstance(record, Oom)]
    assert (short.where, short.batch_size_before, short.batch_size_after) == ("train", 2, 1)
    assert (short.accumulation_before, short.accumulation_after) == (12, 24)
    assert "can't allocate memory" in short.message
    for ours, theirs in zip(load_run(machine.folder / run).steps, load_run(whole).steps, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=2e-5)


@pytest.mark.parametrize("fault", ["memory in a backward pass", "memory for a workspace"])
def test_out_of_memory_on_one_of_ranks_that_share_a_model_shrinks_the_micro_batch_on_all(
    machine: Machine, whole: Path, fault: str
) -> None:
    run = f"shared-{fault.replace(' ', '-')}"
    outcomes = machine.run("--shard=full", "--max_iters=6", run=run, fault=fault, on=1)
    assert [each.code for each in outcomes] == [0, 0], outcomes[0].stderr
    (short,) = [record for record in load_run(machine.folder / run).records if isinstance(record, Oom)]
    assert (short.where, short.batch_size_before, short.batch_size_after) == ("train", 2, 1)
    assert "can't allocate memory" in short.message
    for ours, theirs in zip(load_run(machine.folder / run).steps, load_run(whole).steps, strict=False):
        assert ours.loss == pytest.approx(theirs.loss, rel=2e-5)


def test_out_of_memory_in_one_ranks_evaluation_of_a_shared_model_shrinks_its_batch_on_all(
    machine: Machine, whole: Path
) -> None:
    keys = ["--shard=full", "--max_iters=2"]
    outcomes = machine.run(*keys, run="shared-short-eval", fault="memory in a pass", on=1)
    assert [each.code for each in outcomes] == [0, 0], outcomes[0].stderr
    records = load_run(machine.folder / "shared-short-eval").records
    assert {(each.where, each.batch_size_after) for each in records if isinstance(each, Oom)} == {("eval", 1)}
    first, undisturbed = (
        next(each for each in load_run(run).records if isinstance(each, Eval))
        for run in (machine.folder / "shared-short-eval", whole)
    )
    assert first.val_loss == pytest.approx(undisturbed.val_loss, rel=1e-6)


def test_out_of_memory_in_one_ranks_evaluation_shrinks_its_batch_on_all(machine: Machine, whole: Path) -> None:
    outcomes = machine.run("--max_iters=3", run="short-eval", fault="memory in an evaluation", on=1)
    assert [each.code for each in outcomes] == [0, 0], outcomes[0].stderr
    records = load_run(machine.folder / "short-eval").records
    assert {(each.where, each.batch_size_after) for each in records if isinstance(each, Oom)} == {("eval", 1)}
    evals, undisturbed = ([each for each in load_run(run).records if isinstance(each, Eval)] for run in (
        machine.folder / "short-eval", whole))  # fmt: skip
    assert evals[0].val_loss == pytest.approx(undisturbed[0].val_loss, rel=1e-6)
    assert evals[0].tokens_read == undisturbed[0].tokens_read


def test_where_not_one_sequence_fits_on_one_rank_all_save_and_end(machine: Machine) -> None:
    outcomes = machine.run(run="too-short", fault="memory for one sequence", on=1)
    told_once(outcomes, "one sequence at a time does not fit in memory; the run is saved at step 7")
    assert [each.code for each in outcomes] == [3, 3]


@pytest.mark.parametrize(("rank", "number"), [(0, signal.SIGINT), (1, signal.SIGTERM)])
def test_a_signal_on_one_rank_stops_all_after_the_same_step_and_saves(
    machine: Machine, whole: Path, rank: int, number: signal.Signals
) -> None:
    run = f"asked-{rank}"
    started = machine.start(run=run)
    started.reach(5)
    started.send(rank, number)
    outcomes = started.end()
    assert [each.code for each in outcomes] == [130, 130]
    assert not outcomes[1].stderr
    assert not outcomes[1].stdout
    assert f"rank {rank} on {HOST} was asked to stop: stopping, then saving" in outcomes[0].stderr
    assert "the same torchrun command, with --continue" in outcomes[0].stderr
    stopped = load_run(machine.folder / run)
    assert stopped.checkpoints[-1].step == stopped.last_step < UPDATES
    assert [each.code for each in machine.run("--continue", run=run)] == [0, 0]
    same_losses(machine.folder / run, whole)


def same_losses(run: Path, other: Path) -> None:
    ours, theirs = ([(step.step, step.loss) for step in load_run(each).steps] for each in (run, other))
    assert ours == theirs


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_ends_the_others_with_one_message_that_names_it(machine: Machine, rank: int) -> None:
    run = f"killed-{rank}"
    started = machine.start(LONG, run=run)
    started.reach(5)
    started.send(rank, signal.SIGKILL)
    outcomes = started.end(within=20)
    assert outcomes[rank].code == -signal.SIGKILL
    assert outcomes[1 - rank].code == 3
    told_once(outcomes, f"rank {rank} on {HOST} was killed", "[rank-lost]", "--continue")


def test_torchrun_starts_a_killed_run_again_and_it_goes_on_from_its_newest_checkpoint(
    machine: Machine, whole: Path
) -> None:
    run = machine.folder / "again"
    command = "--standalone --nproc_per_node=2 --max-restarts=1 -m onecard train tiny.py --out_dir=again --continue"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", *command.split(), "--checkpoint_interval=10"],
        cwd=machine.folder,
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    ) as torchrun:
        Started([], [], run).reach(13)
        first = int((run / LOCK).read_text().split()[0])
        os.kill(first, signal.SIGKILL)
        _, said = torchrun.communicate(timeout=200)
    assert torchrun.returncode == 0, said
    assert said.count("error: ") == said.count(f"error: rank 0 on {HOST} was killed") == 1, said
    starts = [record for record in load_run(run).history.records if isinstance(record, Start)]
    assert [start.resumed_from is not None for start in starts] == [False, True]
    same_losses(run, whole)


def test_an_exception_on_one_rank_ends_all_and_says_where_it_was(machine: Machine) -> None:
    outcomes = machine.run(run="broken", fault="exception", on=1)
    assert [each.code for each in outcomes] == [3, 70]
    assert "error:" not in outcomes[0].stderr, "the rank itself has told"
    assert f"this was on rank 1 on {HOST}" in outcomes[1].stderr
    assert outcomes[1].stderr.count("ValueError: broken by the test") == 1


def test_a_rank_that_no_longer_answers_is_not_waited_for_without_end(machine: Machine) -> None:
    started = machine.start(LONG, run="stopped", fault="impatient")
    started.reach(5)
    started.send(1, signal.SIGSTOP)
    first = started._outcomes[0].result(timeout=30)
    started.send(1, signal.SIGKILL)
    assert first.code == 3
    told_once([first], f"rank 1 on {HOST} does not answer", "stopped, by SIGSTOP")


def test_a_rank_that_does_not_come_is_not_waited_for_without_end(machine: Machine) -> None:
    first = machine.start(run="late", fault="late").end()[0]
    assert first.code == 3
    told_once([first], "rank 1 did not come within 1.0 s", "[ranks-cannot-meet]")
    assert not (machine.folder / "late").exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_killed_while_they_connect_ends_the_others(machine: Machine, rank: int) -> None:
    outcomes = machine.start(run="unconnected", fault="killed while connecting", on=rank).end(within=20)
    assert (outcomes[rank].code, outcomes[1 - rank].code) == (-signal.SIGKILL, 3)
    told_once(outcomes, f"rank {rank} on {HOST} was killed", "[rank-lost]", "--continue")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_to_a_rank_that_waits_to_be_connected_ends_all(machine: Machine, rank: int) -> None:
    started = machine.start(run="unconnected", fault=f"rank {1 - rank} is slow to connect")
    connecting = machine.folder / f"{rank} connects"
    until = time.monotonic() + 60
    while time.monotonic() < until and not connecting.exists():
        time.sleep(0.01)
    time.sleep(0.5)
    started.send(rank, signal.SIGTERM)
    assert started._outcomes[rank].result(timeout=6).code == 130, "it waits for the slow one"
    other = started._outcomes[1 - rank].result(timeout=30)
    assert other.code == 3
    told_once([other], f"rank {rank} on {HOST} was asked to stop", "[rank-stopped]")


def test_an_error_of_the_first_rank_is_told_where_another_hears_late_that_it_is_connected(
    machine: Machine, whole: Path
) -> None:
    with machine.with_ranks(4) as ranks:
        outcomes = ranks.run(run="whole", fault="late to hear that it is connected", on=3)
    assert [each.code for each in outcomes] == [2] * 4
    told_once(outcomes, "[run-exists]")


def test_a_rank_that_cannot_connect_ends_those_on_other_machines(machine: Machine) -> None:
    outcomes = machine.start(run="unconnected", fault="no network on another machine").end(within=30)
    assert [each.code for each in outcomes] == [3, 3]
    told_once([outcomes[0]], f"rank 1 on {HOST}", "could not reach the others", "[rank-lost]")
    told_once([outcomes[1]], "Unable to find address for: eth7", "[ranks-cannot-meet]")


def test_ranks_that_share_a_model_must_see_one_folder(machine: Machine) -> None:
    outcomes = machine.run("--shard=full", run="elsewhere-1", fault="another disk", on=1)
    assert [each.code for each in outcomes] == [2, 2]
    told_once(outcomes, "rank 1 cannot see the run folder", "[folder-not-shared]", "--out_dir")


def test_a_disk_that_fails_one_rank_that_shares_a_model_ends_all(machine: Machine) -> None:
    keys = ("--shard=full", "--max_iters=6", "--checkpoint_interval=3")
    outcomes = machine.run(*keys, run="shared-disk", fault="disk fails after a part is written", on=1)
    assert [each.code for each in outcomes] == [3, 3]
    told_once(outcomes, "Input/output error")


@pytest.mark.parametrize("fault", ["killed before it writes its part", "killed in Muon's step"])
def test_a_killed_rank_that_shares_a_model_is_named(machine: Machine, fault: str) -> None:
    keys = ("--shard=full", "--optimizer=muon", "--checkpoint_interval=3")
    outcomes = machine.run(*keys, run=f"shared-{fault[:15].replace(' ', '-')}", fault=fault, on=1)
    assert [each.code for each in outcomes] == [3, -signal.SIGKILL]
    told_once(outcomes, f"rank 1 on {HOST} was killed", "[rank-lost]")


def test_memory_that_runs_out_where_ranks_that_share_a_model_wait_ends_all(machine: Machine) -> None:
    outcomes = machine.run("--shard=full", run="shared-norm", fault="memory for the norm", on=1)
    assert [each.code for each in outcomes] == [3, 3]
    told_once(outcomes, f"rank 1 on {HOST}", "memory ran out in the middle of an update")


def test_a_full_disk_on_the_first_rank_ends_all(machine: Machine) -> None:
    outcomes = machine.run(LONG, run="full", fault="full disk", on=0)
    assert [each.code for each in outcomes] == [3, 3]
    told_once(outcomes, "No space left on device")


def test_ranks_with_other_code_another_config_or_other_data_are_refused_with_what_differs(machine: Machine) -> None:
    refused: list[tuple[dict[str, Any], list[str]]] = [
        ({"fault": "other code", "on": 1}, ["onecard's code is 1.0 (another) there and"]),
        ({"per_rank": ("--n_layer=2", "--n_layer=3")}, ["is not what rank 0 on", "n_layer is 3 there and 2 here"]),
        ({"folders": ("", "elsewhere")}, ["data holds other tokens than on the first rank", "their fingerprint is"]),
    ]
    for how, words in refused:
        outcomes = machine.start(run=f"differ-{len(how)}", **how).end()
        assert [each.code for each in outcomes] == [2, 2]
        told_once(outcomes, f"rank 1 on {HOST}", *words, "[ranks-differ]")
        assert not list(machine.folder.glob("differ-*/checkpoints/*"))


def test_a_mistake_that_all_ranks_make_is_told_by_the_first(machine: Machine) -> None:
    for number, (typed, name) in enumerate({"--n_layr=2": "[unknown-key]", "--bogus": "[unknown-option]"}.items()):
        ranks = machine.start(typed, run=f"mistaken-{number}")
        first = ranks._outcomes[0].result(timeout=60)
        time.sleep(0.5)
        ranks.send(1, signal.SIGTERM)  # as torchrun does
        outcomes = ranks.end()
        assert outcomes[0].code == 2
        assert outcomes[1].code in (2, 130), "a signal that comes before it has read the command ends it, too"
        assert told_once([first], name) == told_once(outcomes, name)


def test_a_mistake_that_only_another_rank_makes_is_told_by_it(machine: Machine) -> None:
    ranks = machine.start(run="alone", per_rank=("--n_layer=2", "--n_layr=2"), fault="in a hurry", on=1)
    other = ranks._outcomes[1].result(timeout=60)
    ranks.send(0, signal.SIGTERM)
    assert [each.code for each in ranks.end()] == [130, 2]
    told_once([other], "[unknown-key]")


def test_two_jobs_in_one_folder_are_refused(machine: Machine, whole: Path) -> None:
    before = sorted((file, file.stat().st_mtime_ns) for file in whole.rglob("*") if file.name != LOCK)
    with closing(Lock(whole / LOCK)):
        outcomes = machine.run("--continue", LONG, run="whole")
    assert [each.code for each in outcomes] == [2, 2]
    told_once(outcomes, "whole is in use", f"process {os.getpid()} on {HOST}")
    assert sorted((file, file.stat().st_mtime_ns) for file in whole.rglob("*") if file.name != LOCK) == before


@pytest.mark.parametrize(
    ("count", "kills"), [(2, 3), pytest.param(4, 50, marks=[pytest.mark.long, pytest.mark.timeout(3600)])]
)
def test_a_run_whose_ranks_are_killed_at_random_has_the_losses_of_the_one_left_alone(
    machine: Machine, count: int, kills: int
) -> None:
    rng, run = random.Random(kills), f"killed-{kills}-times"
    records = machine.folder / run / RECORDS
    often = ("--checkpoint_interval=5", "--eval_interval=50", "--lr_decay_iters=500")
    with machine.with_ranks(count) as ranks:
        trained = 0
        for _ in range(kills):
            written = records.stat().st_size if records.exists() else 0
            started = ranks.start("--continue", LONG, *often, run=run)
            if rng.random() < 0.8:  # many of the others are killed before they train
                until = time.monotonic() + 60
                while not (records.exists() and records.stat().st_size > written) and time.monotonic() < until:
                    time.sleep(0.005)
            time.sleep(rng.uniform(0, 0.6))  # anywhere: where they meet, in a step, a sum, a record, a checkpoint
            killed = rng.randrange(count)
            started.send(killed, signal.SIGKILL)
            started._outcomes[killed].result(timeout=60)
            others = [rank for rank in range(count) if rank != killed]
            for rank in others:  # as torchrun does
                with suppress(ProcessLookupError):
                    started.send(rank, signal.SIGTERM)
            outcomes = started.end(within=30)  # torchrun kills after 30 seconds
            assert outcomes[killed].code == -signal.SIGKILL
            said = "".join(outcome.stderr for outcome in outcomes)
            assert {outcomes[rank].code for rank in others} <= {3, 130}, said
            assert said.count("error:") <= 1, said
            assert f"rank {killed} on {HOST} was killed" in said or "error:" not in said, said
            trained += records.exists() and records.stat().st_size > written
        last = load_run(machine.folder / run).last_step + 7
        whole = f"never-{run}"
        for name in (run, whole):
            assert {each.code for each in ranks.run("--continue", f"--max_iters={last}", *often, run=name)} == {0}
    assert trained > kills // 2, "hardly any kill fell into training"
    same_losses(machine.folder / run, machine.folder / whole)
    for name, weight in weights_of(machine.folder / run, last).items():
        assert torch.equal(weight, weights_of(machine.folder / whole, last)[name])
    print(f"{kills} kills among {count} ranks, {trained} of them in training; {last} updates, equal bit for bit")
