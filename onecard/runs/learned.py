"""What a comparison of recipes measured: complete runs, and where one side reaches the other's final loss.

The loss that counts is the one after the last update of a run with its own schedule, never one on the way. So our side
trains several complete runs of different lengths, and between two of them the logarithm of tokens (and of seconds) is
interpolated over the loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from statistics import mean, stdev
from typing import Any, NamedTuple


class Point(NamedTuple):
    """An evaluation on the way, or the last."""

    tokens: int
    seconds: float  # of training: updates times the median update
    val_loss: float


@dataclass(frozen=True, kw_only=True)
class Learned:
    """One complete run."""

    name: str
    ours: bool
    share: float  # of the baseline's tokens, as declared beforehand
    seed: int
    updates: int
    points: tuple[Point, ...]
    window_losses: tuple[float, ...]  # of the last evaluation: the same windows for all runs
    step_seconds: float  # of the median update
    first_step_seconds: float  # from building the model: compiling, an update
    optimizer_share: float | None  # of an update's seconds; None on a card, which does not wait for it
    parameters: int
    device: str
    torch: str

    @property
    def tokens(self) -> int:
        return self.points[-1].tokens

    @property
    def seconds(self) -> float:
        return self.points[-1].seconds

    @property
    def final_loss(self) -> float:
        return self.points[-1].val_loss

    @property
    def final_error(self) -> float | None:
        """Standard error of the final loss over the windows; None where it is not known."""
        return standard_error(self.window_losses)

    def as_json(self) -> dict[str, object]:
        return asdict(self) | {"points": [list(point) for point in self.points]}


def from_json(value: Mapping[str, Any]) -> Learned:
    """The run that a worker process printed."""
    known = {field.name: value[field.name] for field in fields(Learned)}
    points = tuple(Point(*point) for point in value["points"])
    return Learned(**known | {"points": points, "window_losses": tuple(value["window_losses"])})


@dataclass(frozen=True, kw_only=True)
class Reached:
    """Where one side reaches the other's final loss, as shares of what the other took."""

    tokens_ratio: float
    seconds_ratio: float
    at_most: bool = False  # the shortest run is there already: the ratios are its own
    tokens_error: float | None = None  # standard errors of the ratios; None for those of at_most
    seconds_error: float | None = None
    over_seeds: float | None = None  # of the difference in loss, over seeds; None for one seed
    over_windows: float | None = None  # and over the windows of the evaluation


def mean_final_loss(runs: Iterable[Learned]) -> float:
    """Mean over seeds; infinite for none, and where a run has no finite loss."""
    losses = [run.final_loss for run in runs]
    return mean(losses) if losses and all(map(math.isfinite, losses)) else math.inf


def by_length(runs: Iterable[Learned]) -> dict[float, list[Learned]]:
    """Runs of one contender by the length declared, the shortest first; the seeds of a length in their order."""
    found: dict[float, list[Learned]] = {}
    for run in sorted(runs, key=lambda run: (run.share, run.seed)):
        found.setdefault(run.share, []).append(run)
    return found


def reached(ours: Iterable[Learned], theirs: Sequence[Learned]) -> Reached | None:
    """Where the runs of one of our contenders reach the mean final loss of theirs; None if they never do."""
    mark = mean_final_loss(theirs)
    lengths = [runs for runs in by_length(ours).values() if math.isfinite(mean_final_loss(runs))]
    if not lengths or not math.isfinite(mark):
        return None
    tokens, seconds = (mean(run.tokens for run in theirs), mean(run.seconds for run in theirs))
    if mean_final_loss(lengths[0]) <= mark:
        first = lengths[0]
        return Reached(
            tokens_ratio=mean(run.tokens for run in first) / tokens,
            seconds_ratio=mean(run.seconds for run in first) / seconds,
            at_most=True,
        )
    for above, below in pairwise(lengths):
        if mean_final_loss(above) > mark >= mean_final_loss(below):
            return _between(above, below, theirs)
    return None


def _between(above: Sequence[Learned], below: Sequence[Learned], theirs: Sequence[Learned]) -> Reached:
    """The crossing between the runs of two lengths, with its standard error.

    Seeds and windows are paired: a seed gives both sides the same order of data, and all read the same windows. What
    both have in common is no error of their difference.
    """
    high, low, mark = (mean_final_loss(runs) for runs in (above, below, theirs))
    part = (high - mark) / (high - low)

    def crossing(short: float, long: float, other: float) -> tuple[float, float]:
        """(share of the other's, its change for a change of the loss)"""
        ratio = math.exp((1 - part) * math.log(short) + part * math.log(long)) / other
        return ratio, ratio * math.log(long / short) / (high - low)

    tokens_ratio, per_loss = crossing(*(mean(run.tokens for run in runs) for runs in (above, below, theirs)))
    seconds_ratio, seconds_per_loss = crossing(*(mean(run.seconds for run in runs) for runs in (above, below, theirs)))
    sides = [{run.seed: run for run in runs} for runs in (above, below, theirs)]
    seeds = sorted(set.intersection(*(set(side) for side in sides)))
    differences, of_windows, speeds = [], [], []
    for seed in seeds:
        a, b, other = (side[seed] for side in sides)
        differences.append((1 - part) * a.final_loss + part * b.final_loss - other.final_loss)
        speeds.append(math.log(b.step_seconds / other.step_seconds))
        triples = zip(a.window_losses, b.window_losses, other.window_losses, strict=True)
        of_windows.append([(1 - part) * x + part * y - z for x, y, z in triples])
    over_seeds = standard_error(differences)
    over_windows = standard_error([mean(window) for window in zip(*of_windows, strict=True)])
    loss_error = math.hypot(over_seeds or 0.0, over_windows or 0.0)
    return Reached(
        tokens_ratio=tokens_ratio,
        seconds_ratio=seconds_ratio,
        tokens_error=per_loss * loss_error,
        seconds_error=math.hypot(seconds_per_loss * loss_error, seconds_ratio * (standard_error(speeds) or 0.0)),
        over_seeds=over_seeds,
        over_windows=over_windows,
    )


def standard_error(values: Sequence[float]) -> float | None:
    """Standard error of the mean; None for fewer than two values, or where one is not finite."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return None
    return stdev(values) / math.sqrt(len(values))


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The best of each side, and where ours reaches the other's final loss."""

    theirs: str | None  # names; None where no run of a side has finished
    ours: str | None
    mark: float | None  # the final loss of the best of theirs
    reached: Reached | None


def verdict(found: Sequence[Learned]) -> Verdict:
    """The best of theirs by final loss against the best of ours: fewest tokens to that loss, else the lowest loss."""
    theirs, ours = ({run.name for run in found if run.ours is is_ours} for is_ours in (False, True))
    runs = {name: [run for run in found if run.name == name] for name in theirs | ours}
    best = min(sorted(theirs), key=lambda name: mean_final_loss(runs[name]), default=None)
    mark = mean_final_loss(runs[best]) if best else math.inf
    places = {name: reached(runs[name], runs[best]) if best else None for name in sorted(ours)}

    def rank(name: str) -> tuple[float, float]:
        place, longest = places[name], list(by_length(runs[name]).values())[-1]
        return (place.tokens_ratio if place else math.inf), mean_final_loss(longest)

    first = min(places, key=rank, default=None)
    return Verdict(
        theirs=best,
        ours=first,
        mark=mark if math.isfinite(mark) else None,
        reached=places[first] if first else None,
    )
