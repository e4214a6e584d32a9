"""How far a preparation is, for the display."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from onecard.data.manifest import Progress
from onecard.data.sources import Source, SourceFile

_TELL_SECONDS = 0.1
Phase = Literal["learning the tokenizer", "downloading", "waiting", "preparing"]


@dataclass(frozen=True, kw_only=True)
class Moment:
    """How far the preparation is now."""

    phase: Phase
    tokens: int
    documents: int
    share: float | None  # of the whole that is done; None if the whole is not known
    begun_share: float  # of the whole that was done before this process began
    seconds: float  # of this process
    tokens_per_second: float
    about: str = ""


class Watch:
    """Reports progress at most ten times a second."""

    def __init__(
        self, on_moment: Callable[[Moment], None], source: Source, begun: Progress, wanted: int | None
    ) -> None:
        self.started = time.monotonic()
        self._on_moment = on_moment
        self._size_bytes = source.size_bytes
        self._wanted = wanted
        self._begun_tokens = begun.tokens
        self._begun_share: float | None = None
        self._told = 0.0
        self._latest = (begun, 0)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def at(self, progress: Progress, disk_bytes: int) -> None:
        """The preparation has come this far."""
        self._latest = progress, disk_bytes
        if self._begun_share is None:  # what earlier processes read must not count as this one's speed
            self._begun_share = self._share(disk_bytes) or 0.0
        self._tell("preparing")

    def learning(self, documents: int) -> None:
        self._tell("learning the tokenizer", f"{documents:,} documents")

    def downloading(self, file: SourceFile, received_bytes: int, holder: str | None) -> None:
        """This much of the file is here; `holder` is the other process that downloads it, if there is one."""
        size = f" of {file.size_bytes / 1e6:,.0f}" if file.size_bytes else ""
        about = f"{file.name}: {received_bytes / 1e6:,.0f}{size} MB"
        if holder:
            self._tell("waiting", f"{holder} is downloading {about}")
        else:
            self._tell("downloading", about)

    def _share(self, disk_bytes: int) -> float | None:
        shares = [self._latest[0].tokens / self._wanted] if self._wanted else []
        shares += [disk_bytes / self._size_bytes] if self._size_bytes else []
        return min(1.0, max(shares)) if shares else None

    def _tell(self, phase: Phase, about: str = "") -> None:
        if self.seconds - self._told < _TELL_SECONDS:
            return
        self._told = self.seconds
        progress, disk_bytes = self._latest
        self._on_moment(
            Moment(
                phase=phase,
                tokens=progress.tokens,
                documents=progress.counts.kept,
                share=self._share(disk_bytes),
                begun_share=self._begun_share or 0.0,
                seconds=self.seconds,
                tokens_per_second=(progress.tokens - self._begun_tokens) / max(self.seconds, 1e-9),
                about=about,
            )
        )
