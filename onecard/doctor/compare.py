"""Several runs laid side by side: what differs, who is ahead at equal tokens and at equal hours, and by how much."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from onecard.config.shown import same_value
from onecard.doctor.alone import Alone, single_effects
from onecard.doctor.case import Case, DataSizes
from onecard.doctor.cautions import cautions, different_tokens
from onecard.doctor.config_diff import UNSAID, config_diff, idle_settings
from onecard.doctor.curves import (
    Axis,
    Curve,
    Measure,
    Reading,
    common_measure,
    loss_curve,
    passes,
    same_windows,
    side_by_side,
)
from onecard.doctor.facts import make_case
from onecard.doctor.repair import memory_of, trainer_of
from onecard.plan.cards import Card
from onecard.runs.folder import Run
from onecard.runs.logged import LoggedRun, logged_run

SPEED_NOISE = 0.01  # of a measured speed: clocks and other programs; a rule of thumb
BEYOND_NOISE = 2.0  # standard deviations of a difference that count as one
# The metric of a comparison's last losses, by what they measure.
FINAL: dict[Measure, str] = {
    "val_loss": "final_val_loss",
    "bits_per_byte": "final_bits_per_byte",
    "train_loss": "final_train_loss",
}


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The runs by one metric: those that nothing beyond noise keeps from being the best, and those that are worse."""

    best: tuple[int, ...]
    beaten: tuple[int, ...]  # none: no difference within noise

    @property
    def winner(self) -> int | None:
        """The best run; None where several tie for it."""
        return self.best[0] if len(self.best) == 1 and self.beaten else None


@dataclass(frozen=True, kw_only=True)
class AtEqual:
    """The losses of all runs at the same tokens or seconds; a run that has none there is None."""

    axis: Axis
    place: float
    readings: tuple[Reading | None, ...]
    standing: Standing

    @property
    def winner(self) -> int | None:
        """The run with the lowest loss; None where several tie for it."""
        return self.standing.winner

    @property
    def lead(self) -> float | None:
        """How far the best lies below the next that has a loss which is a number."""
        losses = sorted(reading.loss for reading in self.readings if reading and math.isfinite(reading.loss))
        return losses[1] - losses[0] if len(losses) > 1 else None


@dataclass(frozen=True, kw_only=True)
class Passing:
    """Run `passer` falls below the final loss of run `passed`, and when, against what that run took."""

    passer: int
    passed: int
    loss: float
    step: int
    tokens: float | None
    seconds: float | None
    passed_tokens: float | None
    passed_seconds: float | None
    spread: float  # share by which noise may move the place


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Runs side by side, each named by its position."""

    cases: tuple[Case, ...]
    measure: Measure | None  # None: the runs measured nothing in common
    curves: tuple[Curve, ...]
    config_diff: Mapping[str, tuple[object, ...]]
    idle: Mapping[str, str]  # of these, the keys without effect on what was computed, and why
    at_equal_tokens: tuple[AtEqual, ...]  # the last is where the shortest run ends, if another has a loss there
    at_equal_seconds: tuple[AtEqual, ...]
    passings: tuple[Passing, ...]
    standings: Mapping[str, Standing]  # by metric
    predicted_process_bytes: tuple[int | None, ...]  # under its trainer, else nanoGPT; no context without a card
    alone: Mapping[int, tuple[Alone, ...]]  # by run: its changes against run 0, each predicted by itself
    cautions: tuple[str, ...]

    @property
    def winners(self) -> dict[str, int | None]:
        """The best run by metric; None where several tie for it."""
        return {metric: standing.winner for metric, standing in self.standings.items()}

    @property
    def together(self) -> tuple[str, ...]:
        """Settings that differ and count: where there are several, the measurement credits no single one."""
        return tuple(key for key in self.config_diff if key not in self.idle)

    @property
    def first_known(self) -> int:
        """The first run whose config is known; run 0 where none is."""
        return next((run for run, case in enumerate(self.cases) if case.resolved is not None), 0)

    def changed_from_first(self, run: int) -> tuple[str, ...]:
        """Those of them in which a run is known to differ from the first whose config is known."""
        first = self.first_known
        rows = {key: (self.config_diff[key][first], self.config_diff[key][run]) for key in self.together}
        return tuple(key for key, (a, b) in rows.items() if UNSAID not in (a, b) and not same_value(a, b))


def compare_runs(runs: Sequence[Run | LoggedRun | Case], *, card: Card | None = None) -> Comparison:
    """The comparison of runs: folders as `load_run` gives them, logs as they were read, or cases with their config."""
    cases = tuple(_case(run, card) for run in runs)
    measure = common_measure(cases, same_tokens=different_tokens(cases) is None)
    same = same_windows(cases)
    curves = tuple(loss_curve(case, measure, same_windows=same) for case in cases) if measure else ()
    told = tuple(cautions(cases, measure, curves))
    compared = () if any(caution.forbids for caution in told) else curves
    differing = config_diff(cases)
    by_tokens, by_seconds = tuple(_at_equal(compared, "tokens")), tuple(_at_equal(compared, "seconds"))
    return Comparison(
        cases=cases,
        measure=measure,
        curves=curves,
        config_diff=differing,
        idle=idle_settings(cases, differing),
        at_equal_tokens=by_tokens,
        at_equal_seconds=by_seconds,
        passings=tuple(_passings(cases, compared)),
        standings=_standings(cases, measure, compared, by_tokens, by_seconds),
        predicted_process_bytes=tuple(_predicted_bytes(case) for case in cases),
        alone=_alone(cases),
        cautions=tuple(caution.text for caution in told),
    )


def _case(run: Run | LoggedRun | Case, card: Card | None) -> Case:
    if isinstance(run, Case):
        return run
    logged = logged_run(run) if isinstance(run, Run) else run
    return make_case(logged, config=None, card=card, data=DataSizes())


def _at_equal(curves: Sequence[Curve], axis: Axis) -> Iterator[AtEqual]:
    for place, readings in side_by_side(curves, axis):
        yield AtEqual(axis=axis, place=place, readings=readings, standing=_lowest(readings))


def _lowest(readings: Sequence[Reading | None]) -> Standing:
    """The run with the lowest loss and all as good within noise, before the others. No number is the worst loss."""
    losses = {
        run: (reading.loss if math.isfinite(reading.loss) else math.inf, reading.noise)
        for run, reading in enumerate(readings)
        if reading
    }
    lowest, lowest_noise = min(losses.values())
    beaten = tuple(
        run for run, (loss, noise) in losses.items() if loss - lowest > BEYOND_NOISE * math.hypot(noise, lowest_noise)
    )
    return Standing(best=tuple(run for run in losses if run not in beaten), beaten=beaten)


def _highest_speed(values: Sequence[float | None]) -> Standing:
    return _lowest([Reading(loss=-value, noise=SPEED_NOISE * value) if value is not None else None for value in values])


def _standings(
    cases: Sequence[Case],
    measure: Measure | None,
    curves: Sequence[Curve],
    by_tokens: Sequence[AtEqual],
    by_seconds: Sequence[AtEqual],
) -> dict[str, Standing]:
    """Who is best per metric, of the metrics that at least two runs have."""
    standings: dict[str, Standing] = {}
    for metric in ("tokens_per_second", "mfu"):
        values = [getattr(case.facts, metric) for case in cases]
        if sum(value is not None for value in values) > 1:
            standings[metric] = _highest_speed(values)
    if curves and measure:
        standings[FINAL[measure]] = _lowest([_final(curve) for curve in curves])
    if by_tokens:
        standings["at_equal_tokens"] = by_tokens[-1].standing
    if by_seconds:
        standings["at_equal_seconds"] = by_seconds[-1].standing
    return standings


def _final(curve: Curve) -> Reading:
    return Reading(loss=curve.end.loss, noise=curve.point_noise)


def _passings(cases: Sequence[Case], curves: Sequence[Curve]) -> Iterator[Passing]:
    """For each pair in which one ends lower by more than noise, when it passed the other's end; unsaid where nothing
    tells its steps."""
    for (passed, higher), (passer, lower) in permutations(enumerate(curves), 2):
        end = higher.end
        if higher.lost or lower.lost or not cases[passer].run.steps_told:
            continue
        if _lowest((_final(lower), _final(higher))).winner != 0:
            continue
        if crossing := passes(lower, _final(higher)):
            yield Passing(
                passer=passer,
                passed=passed,
                loss=end.loss,
                step=crossing.point.step,
                tokens=crossing.point.tokens,
                seconds=crossing.point.seconds,
                passed_tokens=end.tokens,
                passed_seconds=end.seconds,
                spread=crossing.spread,
            )


def _predicted_bytes(case: Case) -> int | None:
    if case.resolved is None or _without_card(case):
        return None
    return memory_of(case, case.resolved.config, case.card).process_bytes


def _alone(cases: Sequence[Case]) -> dict[int, tuple[Alone, ...]]:
    first = cases[0].resolved
    if first is None:
        return {}
    card, trainer, cardless = cases[0].card, trainer_of(cases[0]), _without_card(cases[0])
    return {
        run: single_effects(first.config, case.resolved.config, card, trainer, cardless=cardless)
        for run, case in enumerate(cases)
        if run and case.resolved is not None
    }


def _without_card(case: Case) -> bool:
    """Whether it ran without a card and none is named: what is planned for a card would be nothing to it."""
    return case.cardless is not None and case.card is None
