"""Several runs side by side: what differs, which is ahead at equal tokens and at equal hours, and by how much."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations

from onecard.config.shown import same_value
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
from onecard.doctor.ends import finished
from onecard.doctor.facts import make_case
from onecard.doctor.predict import Forecast, predict_end
from onecard.doctor.repair import memory_of, trainer_of
from onecard.doctor.same_tasks import SameTask, same_tasks
from onecard.doctor.same_text import SameText, same_text
from onecard.doctor.single_changes import SingleChange, single_effects
from onecard.plan.cards import Card
from onecard.plan.place import Place
from onecard.runs.folder import Run
from onecard.runs.logged import LoggedRun, logged_run

SPEED_NOISE = 0.01  # of a measured speed: clocks and other programs vary; a rule of thumb
BEYOND_NOISE = 2.0  # standard deviations from which a difference counts
SAME_TEXT = "same_text"  # the metric of bits per byte of one text
TASK = "task:"  # begins the metric of a task, before its name
# The metric of the last losses, by what they measure.
FINAL: dict[Measure, str] = {
    "val_loss": "final_val_loss",
    "bits_per_byte": "final_bits_per_byte",
    "train_loss": "final_train_loss",
}


@dataclass(frozen=True, kw_only=True)
class Standing:
    """The runs by one metric: the best and all within noise of it, and those that are worse."""

    best: tuple[int, ...]
    beaten: tuple[int, ...]  # empty: no difference within noise
    undecided: tuple[int, ...] = ()  # worse so far, but not finished: they may still end better

    @property
    def winner(self) -> int | None:
        """The best run; None where several tie, or where a run that has not finished may still win."""
        return self.best[0] if len(self.best) == 1 and self.beaten and not self.undecided else None


@dataclass(frozen=True, kw_only=True)
class AtEqual:
    """The losses of all runs at the same tokens or seconds; None for a run without a loss there."""

    axis: Axis
    place: float
    readings: tuple[Reading | None, ...]
    standing: Standing

    @property
    def winner(self) -> int | None:
        """The run with the lowest loss; None where several tie."""
        return self.standing.winner

    @property
    def lead(self) -> float | None:
        """How far the best lies below the next finite loss."""
        losses = sorted(reading.loss for reading in self.readings if reading and math.isfinite(reading.loss))
        return losses[1] - losses[0] if len(losses) > 1 else None


@dataclass(frozen=True, kw_only=True)
class Passing:
    """When run `passer` falls below the last loss of run `passed`, and what that run took to get there."""

    passer: int
    passed: int
    loss: float
    step: int
    tokens: float | None
    seconds: float | None
    passed_tokens: float | None
    passed_seconds: float | None
    spread: float  # share by which noise may move the place
    passed_finished: bool = True  # False: the loss is the latest of a run that may go on


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Runs side by side, each named by its position."""

    cases: tuple[Case, ...]
    measure: Measure | None  # None: the runs have no loss in common
    finished: tuple[bool | None, ...]  # by run: whether its last loss is its final one; None where nobody knows
    forecasts: tuple[Forecast | None, ...]  # by run: where it will end, as the doctor says; None at the end
    curves: tuple[Curve, ...]
    config_diff: Mapping[str, tuple[object, ...]]
    idle: Mapping[str, str]  # keys of config_diff that have no effect on what was computed, and why
    at_equal_tokens: tuple[AtEqual, ...]  # the last is where the shortest run ends, if another has a loss there
    at_equal_seconds: tuple[AtEqual, ...]
    passings: tuple[Passing, ...]
    standings: Mapping[str, Standing]  # by metric
    same_text: SameText | None  # scores on a text that every run was scored on
    same_tasks: tuple[SameTask, ...]  # scores in tasks whose questions every run answered
    tokens_differ: bool  # the tokenizers cannot be the same: only bits per byte can be compared
    predicted_process_bytes: tuple[int | None, ...]  # as `onecard plan` says; without a card, without its context
    single_changes: Mapping[int, tuple[SingleChange, ...]]  # by run: its changes against run 0, predicted one by one
    cautions: tuple[str, ...]
    brief_cautions: tuple[str, ...]  # the same in a few words each
    why_not_comparable: str  # the losses must not be compared, for this reason; empty where they may be

    @property
    def winners(self) -> dict[str, int | None]:
        """The best run by metric; None where several tie, or where it is not decided yet."""
        return {metric: standing.winner for metric, standing in self.standings.items()}

    @property
    def together(self) -> tuple[str, ...]:
        """Settings that differ and have an effect. If there are several, the runs cannot show which one did it."""
        return tuple(key for key in self.config_diff if key not in self.idle)

    @property
    def first_known(self) -> int:
        """The first run whose config is known; run 0 where none is."""
        return next((run for run, case in enumerate(self.cases) if case.resolved is not None), 0)

    def changed_from_first(self, run: int) -> tuple[str, ...]:
        """The settings in `together` in which a run differs from the first run whose config is known."""
        first = self.first_known
        rows = {key: (self.config_diff[key][first], self.config_diff[key][run]) for key in self.together}
        return tuple(key for key, (a, b) in rows.items() if UNSAID not in (a, b) and not same_value(a, b))


def compare_runs(runs: Sequence[Run | LoggedRun | Case], *, card: Card | None = None) -> Comparison:
    """The comparison of runs: folders from `load_run`, logs as they were read, or cases with their config."""
    cases = tuple(_case(run, card) for run in runs)
    tokens_differ = different_tokens(cases) is not None
    measure = common_measure(cases, same_tokens=not tokens_differ)
    same = same_windows(cases)
    curves = tuple(loss_curve(case, measure, same_windows=same) for case in cases) if measure else ()
    found = tuple(cautions(cases, measure, curves))
    why_not_comparable = next((caution.brief for caution in found if caution.forbids), "")
    compared = () if why_not_comparable else curves
    ended = tuple(finished(case) for case in cases)
    differing, text, tasks = config_diff(cases), same_text(cases), same_tasks(cases)
    by_tokens, by_seconds = tuple(_at_equal(compared, "tokens")), tuple(_at_equal(compared, "seconds"))
    return Comparison(
        cases=cases,
        measure=measure,
        finished=ended,
        forecasts=tuple(_end_of(case) for case in cases),
        curves=curves,
        config_diff=differing,
        idle=idle_settings(cases, differing),
        at_equal_tokens=by_tokens,
        at_equal_seconds=by_seconds,
        passings=tuple(_passings(cases, compared, ended)),
        standings=_standings(cases, measure, compared, ended, by_tokens, by_seconds, text, tasks),
        same_text=text,
        same_tasks=tasks,
        tokens_differ=tokens_differ,
        predicted_process_bytes=tuple(_predicted_bytes(case) for case in cases),
        single_changes=_single_changes(cases),
        cautions=tuple(caution.text for caution in found),
        brief_cautions=tuple(caution.brief for caution in found),
        why_not_comparable=why_not_comparable,
    )


def _case(run: Run | LoggedRun | Case, card: Card | None) -> Case:
    if isinstance(run, Case):
        return run
    logged = logged_run(run) if isinstance(run, Run) else run
    return make_case(logged, config=None, card=card, data=DataSizes())


def _end_of(case: Case) -> Forecast | None:
    """Where a run will end, where its end is known."""
    forecast = predict_end(case)
    return forecast if forecast and forecast.is_of_the_end else None


def _at_equal(curves: Sequence[Curve], axis: Axis) -> Iterator[AtEqual]:
    for place, readings in side_by_side(curves, axis):
        yield AtEqual(axis=axis, place=place, readings=readings, standing=_lowest(readings))


def _lowest(readings: Sequence[Reading | None]) -> Standing:
    """The run with the lowest loss and all within noise of it, and the others. NaN counts as the worst loss."""
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
    ended: Sequence[bool | None],
    by_tokens: Sequence[AtEqual],
    by_seconds: Sequence[AtEqual],
    text: SameText | None,
    tasks: Sequence[SameTask],
) -> dict[str, Standing]:
    """The standing by each metric that at least two runs have."""
    standings: dict[str, Standing] = {}
    for metric in ("tokens_per_second", "mfu"):
        values = [getattr(case.facts, metric) for case in cases]
        if sum(value is not None for value in values) > 1:
            standings[metric] = _highest_speed(values)
    if curves and measure:
        standings[FINAL[measure]] = _by_last_loss(curves, ended, by_tokens[-1].standing if by_tokens else None)
    if by_tokens:
        standings["at_equal_tokens"] = by_tokens[-1].standing
    if by_seconds:
        standings["at_equal_seconds"] = by_seconds[-1].standing
    if text:
        standings[SAME_TEXT] = Standing(best=text.best, beaten=text.beaten)
    for each in tasks:
        standings[TASK + each.task] = Standing(best=each.best, beaten=each.beaten)
    return standings


def _by_last_loss(curves: Sequence[Curve], ended: Sequence[bool | None], by_tokens: Standing | None) -> Standing:
    """The standing by last losses. A run that has not finished loses only if it is behind at equal tokens, too: its
    last loss is that of fewer tokens, at a higher learning rate."""
    standing = _lowest([_last(curve) for curve in curves])
    undecided = tuple(
        run
        for run in standing.beaten
        if not ended[run] and not curves[run].lost and not (by_tokens and run in by_tokens.beaten)
    )
    beaten = tuple(run for run in standing.beaten if run not in undecided)
    return Standing(best=standing.best, beaten=beaten, undecided=undecided)


def _last(curve: Curve) -> Reading:
    return Reading(loss=curve.end.loss, noise=curve.point_noise)


def _passings(cases: Sequence[Case], curves: Sequence[Curve], ended: Sequence[bool | None]) -> Iterator[Passing]:
    """For each pair in which one ends lower by more than noise: when it passed the other's last loss. Nothing for logs
    without step numbers."""
    for (passed, higher), (passer, lower) in permutations(enumerate(curves), 2):
        end = higher.end
        if higher.lost or lower.lost or not cases[passer].run.steps_told:
            continue
        if _lowest((_last(lower), _last(higher))).winner != 0:
            continue
        if crossing := passes(lower, _last(higher)):
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
                passed_finished=ended[passed] is True,
            )


def _predicted_bytes(case: Case) -> int | None:
    """What `onecard plan` predicts for the run's config, card and trainer."""
    if case.resolved is None or _without_card(case):
        return None
    config, room = case.resolved.config, None
    if case.card:
        room = Place(card=case.card, other_bytes=case.other_bytes).available_bytes_for(config)
    return memory_of(case, config, case.card, available_bytes=room).process_bytes


def _single_changes(cases: Sequence[Case]) -> dict[int, tuple[SingleChange, ...]]:
    first = cases[0].resolved
    if first is None:
        return {}
    card, trainer, cardless = cases[0].card, trainer_of(cases[0]), _without_card(cases[0])
    size = cases[0].data.train_tokens
    return {
        run: single_effects(first.config, case.resolved.config, card, trainer, cardless=cardless, data_tokens=size)
        for run, case in enumerate(cases)
        if run and case.resolved is not None
    }


def _without_card(case: Case) -> bool:
    """Whether it ran without a card and none is named: then no plan for a card applies to it."""
    return case.cardless is not None and case.card is None
