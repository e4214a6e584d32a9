"""What was measured on one card of one machine: how a few runs went there."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from onecard.config.schema import RunConfig, keys_that_affect

# What a run is timed for. Other keys, such as names of folders, are nobody's business.
DECISIVE_KEYS = keys_that_affect("memory", "speed")
MOST_RUNS = 40  # of one card that are kept: the latest


@dataclass(frozen=True, kw_only=True)
class TimedRun:
    """Some updates of our trainer, in a process of their own: what they were of, their speed and their memory."""

    config: RunConfig  # as it ran; DECISIVE_KEYS alone
    tokens_per_second: float
    threads: int | None = None  # of a processor
    reserved_bytes: int | None = None  # by PyTorch; None off a card
    process_bytes: int | None = None  # as the driver showed it; None where it does not say
    predicted_reserved_bytes: int | None = None  # before the run

    @property
    def context_bytes(self) -> int | None:
        """What the driver showed beyond what PyTorch reserved."""
        if not self.process_bytes or not self.reserved_bytes or self.process_bytes < self.reserved_bytes:
            return None
        return self.process_bytes - self.reserved_bytes

    @property
    def reserved_error(self) -> float | None:
        """How far the prediction of what PyTorch reserves was off, as a share of it."""
        if not self.predicted_reserved_bytes or not self.reserved_bytes:
            return None
        return self.reserved_bytes / self.predicted_reserved_bytes - 1


def decisive(config: RunConfig) -> RunConfig:
    """The config with everything that changes neither speed nor memory at its default."""
    return RunConfig().replace({key: getattr(config, key) for key in DECISIVE_KEYS})


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """The runs that were timed on one card, with one driver and one torch; of a processor, without a driver."""

    card: str  # its name by the driver, or the processor's
    driver: str
    torch: str
    date: str  # of the latest run: 2026-11-19
    runs: tuple[TimedRun, ...]

    def __hash__(self) -> int:
        """Of little: plans look cards up again and again."""
        return hash((self.card, self.driver, self.torch, self.date, len(self.runs)))

    @property
    def source(self) -> str:
        """`measured on this machine on 2026-11-19`"""
        return f"measured on this machine on {self.date}"

    def run_like(self, config: RunConfig, threads: int) -> TimedRun | None:
        """The run of this model, micro-batch and number of threads, with any number of micro-batches."""
        asked = decisive(config).replace({"gradient_accumulation_steps": 1})
        alike = (
            run
            for run in reversed(self.runs)
            if run.threads == threads and run.config.replace({"gradient_accumulation_steps": 1}) == asked
        )
        return next(alike, None)

    def with_runs(self, runs: Iterable[TimedRun], *, date: str) -> Calibration:
        """The same with more runs: a way that is known already was measured again, which replaces it."""
        found = {(run.config, run.threads): run for run in self.runs}
        for run in runs:
            found.pop((run.config, run.threads), None)  # so that it becomes the latest
            found[run.config, run.threads] = run
        return replace(self, runs=tuple(found.values())[-MOST_RUNS:], date=date)
