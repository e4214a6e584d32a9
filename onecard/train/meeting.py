"""Where the ranks of a run meet: they say who they are, and those that lose another find out which one it was.

All of it goes through the small store that torchrun keeps, so it works before the ranks are connected and after a
connection broke.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple, TypeVar

from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from onecard.errors import MachineError, OfAnotherRank, OnecardError, first_line
from onecard.models.ranks import Ranks
from onecard.units import duration

TIMEOUT = timedelta(minutes=10)  # the longest that a rank waits for another: torch's own for NCCL
ROLL_CALL_SECONDS = 3.0  # how long ranks that lost another one wait to hear which ones are still there
ASKED_TO_STOP = "it was asked to stop"  # the last words of a rank that a signal ended
_PAUSE_SECONDS = 0.02
_LOOK_SECONDS = 0.2  # how often a rank that waits inside torch looks around
_GONE_AWAY = "a rank has gone away"
_LAST = "last"  # whether any rank has left its last words
_GONE, _STOPPED = "ZXx", "Tt"  # states of a process in Linux's /proc
_T = TypeVar("_T")
_WHERE_IN_GLOO = re.compile(r"^(\[\S+:\d+\] )+")


class Place(NamedTuple):
    """Where a rank runs."""

    host: str
    machine: str  # one torchrun: two of them on a host count as two machines
    process: int


class Meeting:
    """The ranks of this attempt at a run: `places` and `said` by rank, and the `store` that only they use."""

    def __init__(self, ranks: Ranks, saying: Mapping[str, object], *, timeout: timedelta | None = None) -> None:
        self.ranks, self.timeout = ranks, timeout or TIMEOUT
        host = socket.gethostname()
        self.places = [Place(host, "", 0)] * ranks.world_size  # until the others have said theirs
        own = Place(host, f"{host} {os.environ.get('GROUP_RANK', '')}", os.getpid())
        try:
            store, _, _ = _hearing_signals(lambda: next(rendezvous("env://", timeout=self.timeout)))
            attempt, everyone = _all_met(store, ranks, [own, saying], self.timeout)
        except (RuntimeError, ValueError) as problem:
            raise self._failed(problem) from problem
        self.places = [Place(*place) for place, _ in everyone]
        self.said: list[dict[str, Any]] = [said for _, said in everyone]
        self.store = PrefixStore(f"onecard/{attempt}", store)

    @property
    def place(self) -> Place:
        return self.places[self.ranks.rank]

    def connect(self, connect: Callable[[Store], None]) -> None:
        """Call `connect`, in which torch waits for all ranks; RuntimeError if one of them goes away meanwhile."""
        # the clone is for that thread: a store answers one thread at a time
        _hearing_signals(lambda: connect(self.store.clone()), look=self._look_for_lost)  # type: ignore[attr-defined]
        self.store.set(f"connected/{self.ranks.rank}", "")
        all_connected = [f"connected/{rank}" for rank in range(self.ranks.world_size)]
        while True:  # until all are: a rank that ended sooner would look killed to one that still connects
            lost = self._is_one_lost()  # asked first, as one that has connected may end between the two questions
            if self.store.check(all_connected):
                return
            if lost:
                raise RuntimeError(_GONE_AWAY)
            time.sleep(_PAUSE_SECONDS)

    def _look_for_lost(self) -> None:
        if self._is_one_lost():
            raise RuntimeError(_GONE_AWAY)

    def _is_one_lost(self) -> bool:
        return bool(self._in_state(_GONE)) or self.store.check([_LAST])

    def say_last(self, words: str, *, told: bool) -> None:
        """Leave word why this rank ends, for those that will notice; `told` if it has told the user itself."""
        with suppress(RuntimeError):
            self._say_last_of(self.ranks.rank, words, told)

    def _say_last_of(self, rank: int, words: str, told: bool) -> None:
        self.store.set(f"last/{rank}", json.dumps([words, told]))
        self.store.set(_LAST, "")

    def killed(self) -> OnecardError | None:
        """The error if another rank on this machine is gone without a word: torchrun then stops all by a signal."""
        with suppress(RuntimeError):
            self.say_here()
            gone = self._gone()
            if gone:
                return self._was_killed(gone) if self._tells() else OfAnotherRank()
        return None

    def lost(self, problem: BaseException, *, connected: bool = True) -> OnecardError:
        """The error of a rank that cannot reach another, any longer or at all: one of each machine tells which one."""
        try:
            self.say_here()
            if not self._tells():
                return OfAnotherRank()
            present, words, gone = self._roll_call()
            if gone:
                return self._was_killed(gone)
        except RuntimeError:  # who kept the store is gone, too
            return self._lost_with_store(problem)
        if words:
            return self._said(*next(iter(words.items())))
        if not connected and not self._in_state(_STOPPED):
            failed = self._failed(problem)
            self.say_last(failed.what, told=True)
            return failed
        return self._silent([rank for rank in range(self.ranks.world_size) if rank not in present], problem)

    def _lost_with_store(self, problem: BaseException) -> OnecardError:
        if any(rank < self.ranks.rank and state not in _GONE + _STOPPED for rank, state in self._states().items()):
            return OfAnotherRank()  # a lower one tells
        gone = self._in_state(_GONE)
        if gone:
            return _ended(f"{self.named(gone)} {_has(gone)} ended", "the others cannot go on without it")
        others = [rank for rank in range(self.ranks.world_size) if rank != self.ranks.rank]
        return self._silent(others, problem)

    def _silent(self, absent: list[int], problem: BaseException) -> OnecardError:
        """The error where ranks do not answer: those here that are stopped, or else those on other machines."""
        stopped = [rank for rank in self._in_state(_STOPPED) if rank in absent]
        elsewhere = [rank for rank in absent if self.places[rank].machine != self.place.machine]
        silent = stopped or elsewhere or absent
        if not silent:
            return _ended("the ranks have lost their connection", f"torch says: {_plain(problem)}")
        what = f"{self.named(silent)} {_has(silent, 'does', 'do')} not answer"
        return _ended(what, "stopped, by SIGSTOP or a debugger" if stopped else f"torch says: {_plain(problem)}")

    def _failed(self, problem: BaseException) -> OnecardError:
        """The error of a rank that could not be connected with the others."""
        return MachineError(
            f"{self.named([self.ranks.rank])} could not reach the others",
            why=f"torch says: {_plain(problem)}",
            fix="check that MASTER_ADDR can be reached; GLOO_SOCKET_IFNAME=eth0 names the network to use",
            name="ranks-cannot-meet",
        )

    def named(self, ranks: list[int]) -> str:
        """`rank 2 on box1`"""
        hosts = ", ".join(dict.fromkeys(self.places[rank].host for rank in ranks))
        return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))} on {hosts}"

    def _said(self, rank: int, said: tuple[str, bool]) -> OnecardError:
        words, told = said
        if told and self.places[rank].machine == self.place.machine:
            return OfAnotherRank()
        if words == ASKED_TO_STOP:
            return _ended(
                f"{self.named([rank])} was asked to stop", "there was nothing to save yet", name="rank-stopped"
            )
        return _ended(f"{self.named([rank])} has ended: {words}", "the others cannot go on without it")

    def _was_killed(self, gone: list[int]) -> OnecardError:
        for rank in gone:  # the other machines cannot see it
            self._say_last_of(rank, "it was killed", told=False)
        why = "gone without a word, and the others cannot go on; where memory is short, Linux kills (dmesg says so)"
        return _ended(f"{self.named(gone)} {_has(gone, 'was', 'were')} killed", why)

    def _tells(self) -> bool:
        """Whether this rank is the one of its machine that tells the user."""
        own = str(self.ranks.rank)
        return self.store.compare_set(f"tells/{self.place.machine}", "", own).decode() == own

    def say_here(self) -> None:
        """Let the others know that this rank was not killed."""
        self.store.set(f"here/{self.ranks.rank}", "")

    def _roll_call(self) -> tuple[set[int], dict[int, tuple[str, bool]], list[int]]:
        """The ranks that are still there, the last words of those that are not, and the killed ones here."""
        until = time.monotonic() + ROLL_CALL_SECONDS
        while True:
            words, present, gone = self._last_words(), self._present(), self._gone()
            known = {*present, *words, *self._in_state(_STOPPED)}
            if words or gone or len(known) == self.ranks.world_size or time.monotonic() > until:
                return present, words, gone
            time.sleep(_PAUSE_SECONDS)

    def _present(self) -> set[int]:
        return {rank for rank in range(self.ranks.world_size) if self.store.check([f"here/{rank}"])}

    def _last_words(self) -> dict[int, tuple[str, bool]]:
        ended = [rank for rank in range(self.ranks.world_size) if self.store.check([f"last/{rank}"])]
        return {rank: json.loads(self.store.get(f"last/{rank}")) for rank in ended}

    def _gone(self) -> list[int]:
        """The ranks of this machine that are gone without a word: seen first to be gone, and then to have said none."""
        gone = self._in_state(_GONE)
        heard_of = {*self._present(), *self._last_words()}
        return [rank for rank in gone if rank not in heard_of]

    def _in_state(self, states: str) -> list[int]:
        """The ranks of this machine whose processes are in one of these states; none where there is no /proc."""
        return [rank for rank, state in self._states().items() if state and state in states]

    def _states(self) -> dict[int, str]:
        """Of the ranks of this machine."""
        here = (rank for rank, place in enumerate(self.places) if place.machine == self.place.machine)
        return {rank: _state(self.places[rank].process) for rank in here}


def _hearing_signals(work: Callable[[], _T], look: Callable[[], None] = lambda: None) -> _T:
    """What `work` returns, which waits inside torch, where no signal is heard: so a thread does it.

    `look` is called now and then, and may end the waiting by an error.
    """
    done: Future[_T] = Future()

    def answer() -> None:
        try:
            done.set_result(work())
        except BaseException as problem:
            done.set_exception(problem)

    Thread(target=answer, daemon=True).start()
    while not wait([done], timeout=_LOOK_SECONDS).done:
        look()
    return done.result()


def _all_met(store: Store, ranks: Ranks, introduction: list[object], timeout: timedelta) -> tuple[str, list[list[Any]]]:
    """A name for this attempt that all ranks know, and what each said, by rank.

    After a restart the store still holds what earlier attempts left there. So the first rank names the attempt, and the
    others go on once it has heard what they say now.
    """
    me = uuid.uuid4().hex
    attempt = answered = ""
    until = time.monotonic() + timeout.total_seconds()
    while time.monotonic() < until:
        if ranks.writes and not attempt:
            attempt = me
            store.set("onecard/attempt", attempt)
        elif not ranks.writes and store.check(["onecard/attempt"]):
            attempt = store.get("onecard/attempt").decode()
        if attempt != answered:
            answered = attempt
            store.set(f"onecard/{attempt}/{ranks.rank}", json.dumps([me, introduction]))
        if ranks.writes and not _absent(store, attempt, ranks):
            everyone = [json.loads(store.get(f"onecard/{attempt}/{rank}")) for rank in range(ranks.world_size)]
            store.set(f"onecard/{attempt}/all", json.dumps(everyone))
        if attempt and store.check([f"onecard/{attempt}/all"]):
            met = json.loads(store.get(f"onecard/{attempt}/all"))
            if met[ranks.rank][0] == me:
                store.set(f"onecard/{attempt}/{ranks.rank} has met", "")
                break
        time.sleep(_PAUSE_SECONDS)
    else:
        raise _waited_in_vain(store, attempt, ranks, timeout)
    if ranks.writes:  # the store may be this process's: it must not end before all have read it
        met_all = [f"onecard/{attempt}/{rank} has met" for rank in range(ranks.world_size)]
        while not store.check(met_all) and time.monotonic() < until:  # not store.wait, which hears no signals
            time.sleep(_PAUSE_SECONDS)
    return attempt, [said for _, said in met]


def _waited_in_vain(store: Store, attempt: str, ranks: Ranks, timeout: timedelta) -> OnecardError:
    waited = duration(timeout.total_seconds())
    if ranks.local_rank:
        return OfAnotherRank()
    what = f"rank {ranks.rank} has waited {waited} for the others"
    if ranks.writes:
        absent = _absent(store, attempt, ranks)
        what = f"rank{'s' * (len(absent) > 1)} {', '.join(map(str, absent))} did not come within {waited}"
    return MachineError(
        what,
        why="nothing begins before all ranks are there",
        fix="see what was printed on the other machines, and type the same torchrun command on all of them",
        name="ranks-cannot-meet",
    )


def _absent(store: Store, attempt: str, ranks: Ranks) -> list[int]:
    return [rank for rank in range(ranks.world_size) if not store.check([f"onecard/{attempt}/{rank}"])]


def _state(process: int) -> str:
    """The state of a process, as one letter; Z where there is none any more, and "" where that cannot be seen."""
    if not Path("/proc/self/stat").exists():
        return ""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "Z"


def _plain(problem: BaseException) -> str:
    """What torch says, without where in its source it says so."""
    return _WHERE_IN_GLOO.sub("", first_line(problem, 400))[:160]


def _has(ranks: list[int], one: str = "has", several: str = "have") -> str:
    return one if len(ranks) == 1 else several


def _ended(what: str, why: str, name: str = "rank-lost") -> MachineError:
    fix = "see what that rank printed; the same torchrun command with --continue goes on"
    return MachineError(what, why=why, fix=fix, name=name)
