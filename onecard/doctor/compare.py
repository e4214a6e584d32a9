"""Several runs laid side by side: what differs, who is ahead at equal tokens and at equal hours, and by how much."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from onecard.doctor.alone import Alone, counts, single_effects
from onecard.doctor.case import Case, DataSizes
from onecard.doctor.curves import (
    Axis,
    Curve,
    Measure,
    Reading,
    common_measure,
    loss_curve,
    passes,
    read_at,
    same_windows,
)
from onecard.doctor.evidence import ASSUMED_NOISE, finite, from_scratch, loss_of, lost_at, no_number, place
from onecard.doctor.facts import make_case
from onecard.plan.cards import Card
from onecard.plan.memory.predict import predict_nanogpt
from onecard.plan.precision import settled
from onecard.runs.folder import Run
from onecard.runs.logged import LoggedRun, logged_run
from onecard.runs.records import Eval, Step

SPEED_NOISE = 0.01  # of a measured speed: clocks and other programs; a rule of thumb
BEYOND_NOISE = 2.0  # standard deviations of a difference that count as one
SHARES = (0.25, 0.5, 1.0)  # of the stretch that all runs have, where losses are read


class Unsaid:
    """A value that nothing tells."""

    def __repr__(self) -> str:
        return "?"


UNSAID = Unsaid()
# The metric of a comparison's last losses, by what they measure.
FINAL: dict[Measure, str] = {
    "val_loss": "final_val_loss",
    "bits_per_byte": "final_bits_per_byte",
    "train_loss": "final_train_loss",
}


@dataclass(frozen=True, kw_only=True)
class AtEqual:
    """The losses of all runs at the same tokens or seconds; a run that has none there is None."""

    axis: Axis
    place: float
    readings: tuple[Reading | None, ...]
    winner: int | None  # None: no difference within noise

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
    at_equal_tokens: tuple[AtEqual, ...]  # the last is where the shortest run ends
    at_equal_seconds: tuple[AtEqual, ...]
    passings: tuple[Passing, ...]
    winners: Mapping[str, int | None]  # by metric; None: no difference within noise
    predicted_process_bytes: tuple[int | None, ...]  # under nanoGPT, as the driver would show
    alone: Mapping[int, tuple[Alone, ...]]  # by run: its changes against run 0, each predicted by itself
    cautions: tuple[str, ...]

    @property
    def together(self) -> tuple[str, ...]:
        """Settings that differ and count: where there are several, the measurement credits no single one."""
        return tuple(key for key in self.config_diff if counts(key))


def compare_runs(runs: Sequence[Run | LoggedRun | Case], *, card: Card | None = None) -> Comparison:
    """The comparison of runs: folders as `load_run` gives them, logs as they were read, or cases with their config."""
    cases = tuple(_case(run, card) for run in runs)
    tokens_differ = different_tokens(cases)
    measure = common_measure(cases, same_tokens=tokens_differ is None)
    same = same_windows(cases)
    curves = tuple(loss_curve(case, measure, same_windows=same) for case in cases) if measure else ()
    cautions = tuple(_cautions(cases, measure, curves, tokens_differ))
    comparable = not any(caution.startswith(_NOT_COMPARABLE) for caution in cautions)
    by_tokens, by_seconds = _at_equal(curves, "tokens"), _at_equal(curves, "seconds")
    return Comparison(
        cases=cases,
        measure=measure,
        curves=curves,
        config_diff=_config_diff(cases),
        at_equal_tokens=by_tokens if comparable else (),
        at_equal_seconds=by_seconds if comparable else (),
        passings=_passings(cases, curves) if comparable else (),
        winners=_winners(cases, measure, curves if comparable else (), by_tokens, by_seconds, comparable=comparable),
        predicted_process_bytes=tuple(_predicted_bytes(case) for case in cases),
        alone=_alone(cases),
        cautions=cautions,
    )


def _case(run: Run | LoggedRun | Case, card: Card | None) -> Case:
    if isinstance(run, Case):
        return run
    logged = logged_run(run) if isinstance(run, Run) else run
    return make_case(logged, config=None, card=card, data=DataSizes())


def _known(case: Case) -> Mapping[str, object]:
    """The config of a run as far as it is known."""
    return case.resolved.config.model_dump() if case.resolved else case.run.config


def _config_diff(cases: Sequence[Case]) -> dict[str, tuple[object, ...]]:
    """Keys with different values; UNSAID where a run does not say. None is a value: `eval_batch_size = None`."""
    known = [_known(case) for case in cases]
    keys = dict.fromkeys(key for values in known for key in values)
    rows = {key: tuple(values.get(key, UNSAID) for values in known) for key in keys}
    said = {key: [value for value in row if value is not UNSAID] for key, row in rows.items()}
    return {key: row for key, row in rows.items() if any(value != said[key][0] for value in said[key])}


def _at_equal(curves: Sequence[Curve], axis: Axis) -> tuple[AtEqual, ...]:
    ends = [end for curve in curves if (end := curve.last(axis))]
    if len(ends) < 2:
        return ()
    shared = min(ends)
    rows = []
    for share in SHARES:
        readings = tuple(read_at(curve, axis, share * shared) for curve in curves)
        if sum(reading is not None for reading in readings) > 1:
            winner = _lowest(readings)
            rows.append(AtEqual(axis=axis, place=share * shared, readings=readings, winner=winner))
    return tuple(rows)


def _lowest(readings: Sequence[Reading | None]) -> int | None:
    """The run with the lowest loss; None if the next is as good within noise. A loss that is no number is the worst."""
    ordered = sorted(
        (reading.loss if math.isfinite(reading.loss) else math.inf, reading.noise, run)
        for run, reading in enumerate(readings)
        if reading
    )
    if len(ordered) < 2:
        return None
    (best, best_noise, run), (second, second_noise, _) = ordered[:2]
    return run if second - best > BEYOND_NOISE * math.hypot(best_noise, second_noise) else None


def _highest_speed(values: Sequence[float | None]) -> int | None:
    known = [Reading(loss=-value, noise=SPEED_NOISE * value) if value is not None else None for value in values]
    return _lowest(known)


def _winners(
    cases: Sequence[Case],
    measure: Measure | None,
    curves: Sequence[Curve],
    by_tokens: Sequence[AtEqual],
    by_seconds: Sequence[AtEqual],
    *,
    comparable: bool,
) -> dict[str, int | None]:
    """The best run per metric, of the metrics that at least two runs have."""
    winners: dict[str, int | None] = {}
    for metric in ("tokens_per_second", "mfu"):
        values = [getattr(case.facts, metric) for case in cases]
        if sum(value is not None for value in values) > 1:
            winners[metric] = _highest_speed(values)
    if curves and measure:
        winners[FINAL[measure]] = _lowest([Reading(loss=curve.end.loss, noise=curve.point_noise) for curve in curves])
    if comparable and by_tokens:
        winners["at_equal_tokens"] = by_tokens[-1].winner
    if comparable and by_seconds:
        winners["at_equal_seconds"] = by_seconds[-1].winner
    return winners


def _passings(cases: Sequence[Case], curves: Sequence[Curve]) -> tuple[Passing, ...]:
    """For each pair in which one ends lower, when it passed the other's end; unsaid where nothing tells its steps."""
    found = []
    for passed, curve in enumerate(curves):
        for passer, other in enumerate(curves):
            end = curve.end
            if passer == passed or curve.lost or other.lost or other.end.loss >= end.loss:
                continue
            if not cases[passer].run.steps_told:
                continue
            if crossing := passes(other, Reading(loss=end.loss, noise=curve.point_noise)):
                at = crossing.point
                found.append(
                    Passing(
                        passer=passer,
                        passed=passed,
                        loss=end.loss,
                        step=at.step,
                        tokens=at.tokens,
                        seconds=at.seconds,
                        passed_tokens=end.tokens,
                        passed_seconds=end.seconds,
                        spread=crossing.spread,
                    )
                )
    return tuple(found)


def _predicted_bytes(case: Case) -> int | None:
    if case.resolved is None:
        return None
    return predict_nanogpt(settled(case.resolved.config, case.card), case.card).process_bytes


def _alone(cases: Sequence[Case]) -> dict[int, tuple[Alone, ...]]:
    first = cases[0].resolved
    if first is None:
        return {}
    return {
        run: single_effects(first.config, case.resolved.config, cases[0].card)
        for run, case in enumerate(cases)
        if run and case.resolved is not None
    }


_NOT_COMPARABLE = "the losses do not compare"
# An untrained model's loss is ln(vocabulary) or more: letters begin below, words' parts above.
_LETTERS_BEGIN_BELOW, _WORD_PARTS_BEGIN_ABOVE = 8.0, 9.0


def _cautions(
    cases: Sequence[Case], measure: Measure | None, curves: Sequence[Curve], tokens_differ: str | None
) -> list[str]:
    """What a reader must know before believing the losses."""
    if measure is None:
        return ["the runs have no loss in common: nothing is said about which is better"]
    names = _names(cases)
    said = []
    if tokens_differ and measure == "bits_per_byte":
        said.append(
            f"{tokens_differ}: compared in bits per byte of the text, which the tokenizer does not change; equal "
            "tokens are not equal text"
        )
    elif tokens_differ:
        said.append(f"{_NOT_COMPARABLE}: they are nats per token, and {tokens_differ}")
    said += _contexts(cases, measure)
    datasets = _stated(cases, "dataset")
    if len(datasets) > 1:
        said.append(f"the data differ ({', '.join(datasets)}): a loss is of its own validation set")
    said += _lost(cases, curves, names)
    said += [
        f"no line of {name} tells its step: nothing is said about equal tokens or hours"
        for name, case in zip(names, cases, strict=True)
        if not case.run.steps_told
    ]
    if measure == "train_loss":
        said.append("not all runs evaluated: training losses are compared, as medians of 20 steps")
    assumed = [name for name, curve in zip(names, curves, strict=True) if not curve.noise_known]
    if assumed:
        said.append(
            f"too few evaluations to see their noise in {', '.join(assumed)}: {ASSUMED_NOISE:g} is assumed, as of "
            "nanoGPT's 200 batches"
        )
    return said


def _names(cases: Sequence[Case]) -> list[str]:
    """The runs by their sources; of a source that holds several, `train.log (its run 2)`."""
    sources = [case.run.source for case in cases]
    return [
        source if sources.count(source) == 1 else f"{source} (its run {sources[: run + 1].count(source)})"
        for run, source in enumerate(sources)
    ]


def _contexts(cases: Sequence[Case], measure: Measure) -> Iterator[str]:
    """That losses were not measured over the same number of tokens of context."""
    trained = [_context(case) for case in cases]
    read = [{found.block_size or context for found in case.evals} for case, context in zip(cases, trained, strict=True)]
    if measure == "train_loss":
        read = [{context} for context in trained]
    lengths = {length for each in read for length in each if length is not None}
    if len(lengths) < 2:
        return
    told = ", ".join(f"{length:,}" for length in sorted(lengths))
    if all(each == {context} for each, context in zip(read, trained, strict=True)):
        yield f"the context lengths differ ({told}): a longer one lowers the loss by itself"
    else:
        yield (
            f"{_NOT_COMPARABLE}: the contexts they were evaluated over differ ({told} tokens: eval_block_size), and a "
            "longer one lowers the loss by itself"
        )


def _context(case: Case) -> int | None:
    length = _known(case).get("block_size")
    return length if isinstance(length, int) else None


def _lost(cases: Sequence[Case], curves: Sequence[Curve], names: Sequence[str]) -> Iterator[str]:
    """Which runs ended with a loss that is no number, and since when: as the doctor's rule loss-nan has it."""
    for case, curve, name in zip(cases, curves, names, strict=True):
        records: list[Step | Eval] = [*case.steps, *case.evals]
        loss, lost = "loss", lost_at(case)
        if lost is None and curve.lost:  # the training losses stay finite, and evaluations alone are lost
            records, loss = list(case.evals), "validation loss"
            lost = next((found for found in case.evals if found.step == curve.lost.step), None)
        if lost is None:
            continue
        good = [record for record in records if record.step < lost.step and finite(record)]
        last = max(good, key=lambda record: record.step, default=None)
        before = (
            f"the last finite one is {loss_of(last):.4f} at {place(case, last)}" if last else "none before is finite"
        )
        yield f"the {loss} of {name} is {no_number(lost)} from {place(case, lost)} on; {before}"


def _untrained_loss(case: Case) -> float | None:
    """The loss before the first update of a run with random weights; None where it was not logged.

    The training loss of update 1 is measured before that update is made; nanoGPT calls the update 0.
    """
    if not from_scratch(case) or case.run.format == "hf-trainer":  # whose logs do not say what they began with
        return None
    evaluated = [e.val_loss if e.val_loss is not None else e.train_loss for e in case.evals if e.step == 0]
    trained = [step.loss for step in case.steps if step.step <= 1]
    return next((loss for loss in (*evaluated, *trained) if loss is not None and math.isfinite(loss)), None)


def different_tokens(cases: Sequence[Case]) -> str | None:
    """That the tokens are not the same, by what is stated or by where untrained models begin; None if they may be."""
    sizes = _stated(cases, "vocab_size")
    begins = [loss for case in cases if (loss := _untrained_loss(case)) is not None]
    if len(sizes) > 1:
        return f"the vocabularies differ ({', '.join(sizes)})"
    if begins and min(begins) < _LETTERS_BEGIN_BELOW and max(begins) > _WORD_PARTS_BEGIN_ABOVE:
        return f"the losses begin at {min(begins):.1f} and {max(begins):.1f}: the vocabularies cannot be the same"
    return None


def _stated(cases: Sequence[Case], key: str) -> list[str]:
    """The different values of a key, as far as they are known."""
    values = {value for case in cases if (value := _known(case).get(key)) is not None}
    return sorted(f"{value:,}" if isinstance(value, int) else str(value) for value in values)
