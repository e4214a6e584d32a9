"""Follows the runs: which there are, what the list says of them, and when they change."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onecard.errors import ConfigError, OnecardError
from onecard.report.strict import strict
from onecard.ui.glance import ROW, glance
from onecard.ui.news import LIST, News
from onecard.ui.sources import Source, sources_in
from onecard.ui.worker import Worker

LOOK_EVERY_SECONDS = 0.5  # at the sizes of the files
LIST_EVERY_SECONDS = 2.0  # at the folders
LOOK_SECONDS = 120  # at most, for the doctor's look at a run
REST = 20  # times what the doctor's look took, before it looks at the same run again
OWN = ("findings", "first_finding", "sparkline", "params")  # of a summary: what a glance does not know

Stamp = tuple[int, int]
Row = dict[str, Any]


class Runs:
    """The runs under the named paths. Reading is cheap: what did not change is not read again."""

    def __init__(self, named: Sequence[Path]) -> None:
        self.news = News()
        self._named = named
        self._changing = threading.Lock()
        self._sources: dict[str, Source] = {}
        self._stamps: dict[str, Stamp] = {}
        self._glances: dict[str, tuple[Stamp, float, Row]] = {}
        self._looks: dict[str, tuple[Stamp, float, list[Row]]] = {}  # with the time from which to look again
        self._wanted = ""  # the id of the source at which the doctor looks first
        self._worker = Worker(background=True)
        self._ended = threading.Event()
        self._list()

    def start(self) -> None:
        for follow in (self._follow, self._look_at_runs):
            threading.Thread(target=follow, daemon=True).start()

    def close(self) -> None:
        self._ended.set()
        self.news.end()
        self._worker.close()

    def rows(self) -> list[Row]:
        """A row for every run, the newest first."""
        rows = [row for source in list(self._sources.values()) for row in self._rows_of(source)]
        return sorted(rows, key=lambda row: row["changed"] or 0.0, reverse=True)

    def row(self, run: str) -> Row:
        """The row of one run; ConfigError where there is none."""
        source, _ = self.find(run)
        return next((row for row in self._rows_of(source) if row["id"] == run), {"id": run})

    def find(self, run: str) -> tuple[Source, int]:
        """The source of a run and its place in it; ConfigError where there is none."""
        name, _, number = run.partition("-")
        source = self._sources.get(name)
        if source is None or (number and not number.isdecimal()) or len(number) > 6:
            raise ConfigError(
                "there is no such run", why="it is not, or no longer, in the folders shown", fix="go back to the list",
                name="no-such-run",
            )  # fmt: skip
        return source, int(number or 0)

    async def look(self, run: str, *, seconds: float) -> Row:
        """What the doctor said of a run; waits for its first look at most `seconds`, then all is None."""
        source, number = self.find(run)
        self._wanted = source.id
        end = time.monotonic() + seconds
        known = 0
        while source.id not in self._looks and (left := end - time.monotonic()) > 0:
            if self.news.ended:
                break
            known, _ = await self.news.coming(known, seconds=left)
        looks = self._looks_at(source)
        return looks[number] if number < len(looks) else {"row": None, "doctor": None, "prediction": None}

    def _looks_at(self, source: Source) -> list[Row]:
        return self._looks[source.id][2] if source.id in self._looks else []

    def _rows_of(self, source: Source) -> list[Row]:
        summaries = [look["row"] for look in self._looks_at(source)]
        common = {"name": source.path.name or str(source.path), "path": str(source.path)}
        if not source.is_folder:
            changed = source.stamp()[1] / 1e9
            made = summaries or [_unread("not read yet")]
            names = [source.id if number == 0 else f"{source.id}-{number}" for number in range(len(made))]
            return [{"id": name, **common, **row, "changed": changed} for name, row in zip(names, made, strict=True)]
        own = {name: summaries[0][name] if summaries else None for name in OWN}
        return [{"id": source.id, **common, "format": "onecard", **own, **self._glance(source)}]

    def _glance(self, source: Source) -> Row:
        stamp = source.stamp()
        kept = self._glances.get(source.id)
        # the state of a run that stopped without a word changes with time alone
        if kept and kept[0] == stamp and (kept[2]["state"] != "training" or time.monotonic() - kept[1] < 5):
            return kept[2]
        try:
            row: Row = strict(glance(source.path, source.records))
        except OSError:  # it went away
            row = _unread("it is gone")
        self._glances[source.id] = stamp, time.monotonic(), row
        return row

    def _list(self) -> None:
        """Look for runs that came and went."""
        found = {source.id: source for source in sources_in(self._named)}
        if found.keys() != self._sources.keys():
            for gone in self._sources.keys() - found.keys():
                self._glances.pop(gone, None)
                self._looks.pop(gone, None)
                self._stamps.pop(gone, None)
            self._sources = found
            self.news.tell(LIST)

    def _follow(self) -> None:
        """Tell of every file that grew."""
        listed = 0.0
        while not self._ended.wait(LOOK_EVERY_SECONDS):
            try:
                if time.monotonic() - listed > LIST_EVERY_SECONDS:
                    self._list()
                    listed = time.monotonic()
                for name, source in list(self._sources.items()):
                    stamp = source.stamp()
                    if self._stamps.setdefault(name, stamp) != stamp:
                        self._stamps[name] = stamp
                        self.news.tell(name)
            except Exception:  # a disk that fails for a moment must not end it
                traceback.print_exc(file=sys.stderr)

    def _look_at_runs(self) -> None:
        """Let the doctor look at every run that changed, the newest first, in a process of its own."""
        while not self._ended.is_set():
            source = self._next_to_look_at()
            if source is None:
                self._ended.wait(LOOK_EVERY_SECONDS)
                continue
            stamp, began = source.stamp(), time.monotonic()
            try:
                looks = self._worker.ask("looks", source, seconds=LOOK_SECONDS)
            except OnecardError as problem:
                looks = [] if source.is_folder else [{"row": _unread(problem.what), "doctor": None, "prediction": None}]
            if self._ended.is_set():
                return
            took = time.monotonic() - began
            self._looks[source.id] = stamp, time.monotonic() + REST * took, looks
            self.news.tell(source.id)

    def _next_to_look_at(self) -> Source | None:
        now = time.monotonic()
        waiting = [
            (stamp, source)
            for source in list(self._sources.values())
            if source.id not in self._looks
            or (self._looks[source.id][0] != source.stamp() and now > self._looks[source.id][1])
            for stamp in (source.stamp(),)
        ]
        return max(waiting, key=lambda each: (each[1].id == self._wanted, each[0][1]))[1] if waiting else None


def _unread(why: str) -> Row:
    """A row of which nothing is known."""
    return dict.fromkeys((*ROW, *OWN, "format")) | {"state_why": why}
