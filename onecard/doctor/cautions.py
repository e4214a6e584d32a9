"""What a reader must know before believing a comparison, and what forbids to lay losses side by side."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from onecard import units
from onecard.doctor.case import Case
from onecard.doctor.config_diff import known_settings
from onecard.doctor.curves import FEWEST_STEPS, STEPS_PER_POINT, Axis, Curve, Measure, side_by_side, steps_per_point
from onecard.doctor.evidence import ASSUMED_NOISE, finite, from_scratch, loss_of, lost_at, no_number, place
from onecard.runs.records import Eval, Step
from onecard.units import listed

# An untrained model's loss is ln(vocabulary) or more: letters begin below, words' parts above.
LETTERS_BEGIN_BELOW, WORD_PARTS_BEGIN_ABOVE = 8.0, 9.0


@dataclass(frozen=True, slots=True)
class Caution:
    """A sentence about the losses of a comparison."""

    text: str
    forbids: bool = False  # to say which of the losses is lower


def _forbidding(why: str) -> Caution:
    return Caution(f"the losses do not compare: {why}", forbids=True)


def cautions(cases: Sequence[Case], measure: Measure | None, curves: Sequence[Curve]) -> Iterator[Caution]:
    """What is to be known of losses that are compared by a measure (None: there is none in common)."""
    yield from _twice(cases)
    if measure is None:
        yield Caution("the runs have no loss in common: nothing is said about which is better")
        return
    unlike = (*_tokens(cases, measure), *_contexts(cases, measure))
    yield from unlike
    names, datasets = _names(cases), _stated(cases, "dataset")
    if len(datasets) > 1:
        yield Caution(f"the data differ ({listed(datasets)}): a loss is of its own validation set")
    yield from _lost(cases, curves, names)
    untold = [name for name, case in zip(names, cases, strict=True) if not case.run.steps_told]
    for name in untold:
        yield Caution(f"no line of {name} tells its step: nothing is said about equal tokens or hours")
    if len(curves) > 1 and not untold and not any(caution.forbids for caution in unlike):
        yield from _unread(curves, names)
    yield from _noise(cases, measure, curves, names)


def _noise(cases: Sequence[Case], measure: Measure, curves: Sequence[Curve], names: Sequence[str]) -> Iterator[Caution]:
    """What the points of the curves are where they are no evaluations, and where their noise is assumed."""
    if measure == "train_loss":
        yield Caution(f"not all runs evaluated: the losses are of {_training_losses(cases, names)}")
    assumed = [name for name, curve in zip(names, curves, strict=True) if not curve.noise_known]
    if assumed:
        losses = "training losses" if measure == "train_loss" else "evaluations"
        yield Caution(
            f"too few {losses} to see their noise in {listed(assumed)}: {ASSUMED_NOISE:g} (marked *) is assumed, as of "
            "nanoGPT's 200 batches"
        )


def _training_losses(cases: Sequence[Case], names: Sequence[str]) -> str:
    """What training losses make the points of the curves."""
    short = [name for name, case in zip(names, cases, strict=True) if steps_per_point(case.steps) == 1]
    if len(short) == len(names):
        return f"single training steps, as each run has fewer than {FEWEST_STEPS} finite losses logged"
    each = f"; single steps of {listed(short)}, with fewer than {FEWEST_STEPS} finite losses logged" if short else ""
    return f"training, as medians of {STEPS_PER_POINT} steps{each}"


def _twice(cases: Sequence[Case]) -> Iterator[Caution]:
    """Which of the runs are one and the same."""
    for number, case in enumerate(cases):
        same = next((one for one in cases[:number] if one.run.records and _is_same(one, case)), None)
        if same is None:
            continue
        one, other = same.run.source, case.run.source
        named = f"{other} is named twice" if one == other else f"{one} and {other} hold the same records"
        yield Caution(f"{named}: a run is compared with itself")


def _is_same(one: Case, other: Case) -> bool:
    return one.run.records == other.run.records and known_settings(one) == known_settings(other)


def _unread(curves: Sequence[Curve], names: Sequence[str]) -> Iterator[Caution]:
    """Why no losses stand side by side at equal tokens, or at equal hours."""
    axes: tuple[tuple[Axis, str, Callable[[float], str]], ...] = (
        ("tokens", "tokens", lambda tokens: f"{units.count(tokens)} tokens"),
        ("seconds", "hours", units.duration),
    )
    for axis, word, said in axes:
        ends = {name: end for name, curve in zip(names, curves, strict=True) if (end := curve.last(axis) or 0) > 0}
        if len(ends) < 2:
            unknown = [name for name, curve in zip(names, curves, strict=True) if curve.last(axis) is None]
            begun = [name for name in names if name not in (*ends, *unknown)]
            why = f"those of {listed(unknown)} are not known" if unknown else _only_begun(begun)
            yield Caution(f"nothing is said at equal {word}: {why}")
        elif not any(side_by_side(curves, axis)):
            shortest = min(ends, key=lambda name: ends[name])
            yield Caution(
                f"nothing is said at equal {word}: where {shortest} ends, after {said(ends[shortest])}, no other run "
                "has a loss"
            )


def _only_begun(names: Sequence[str]) -> str:
    return f"there is no loss of {listed(names)} after {'its' if len(names) == 1 else 'their'} beginning"


def different_tokens(cases: Sequence[Case]) -> str | None:
    """That the tokens are not the same, by what is stated or by where untrained models begin; None if they may be."""
    sizes = _stated(cases, "vocab_size")
    if len(sizes) > 1:
        return f"the vocabularies differ ({listed(sizes)})"
    begins = [loss for case in cases if (loss := _untrained_loss(case)) is not None]
    if begins and min(begins) < LETTERS_BEGIN_BELOW and max(begins) > WORD_PARTS_BEGIN_ABOVE:
        told = dict.fromkeys(f"{loss:.1f}" for loss in begins)
        return f"the losses begin at {listed(told)}: the vocabularies cannot be the same"
    return None


def _untrained_loss(case: Case) -> float | None:
    """The loss before the first update of a run with random weights; None where it was not logged.

    The training loss of update 1 is measured before that update is made; nanoGPT calls the update 0.
    """
    if not from_scratch(case) or case.run.format == "hf-trainer":  # whose logs do not say what they began with
        return None
    evaluated = [e.val_loss if e.val_loss is not None else e.train_loss for e in case.evals if e.step == 0]
    trained = [step.loss for step in case.steps if step.step <= 1]
    return next((loss for loss in (*evaluated, *trained) if loss is not None and math.isfinite(loss)), None)


def _tokens(cases: Sequence[Case], measure: Measure) -> Iterator[Caution]:
    """That a token of one run is not a token of another."""
    differ = different_tokens(cases)
    if differ and measure == "bits_per_byte":
        yield Caution(
            f"{differ}: compared in bits per byte of the text, which the tokenizer does not change; equal tokens are "
            "not equal text"
        )
    elif differ:
        yield _forbidding(f"they are nats per token, and {differ}")


def _contexts(cases: Sequence[Case], measure: Measure) -> Iterator[Caution]:
    """That losses were not measured over the same number of tokens of context."""
    trained = [_context(case) for case in cases]
    read = [{found.block_size or context for found in case.evals} for case, context in zip(cases, trained, strict=True)]
    if measure == "train_loss":
        read = [{context} for context in trained]
    lengths = dict.fromkeys(length for each in read for length in each if length is not None)
    if len(lengths) < 2:
        return
    told = listed(f"{length:,}" for length in lengths)
    if all(each == {context} for each, context in zip(read, trained, strict=True)):
        yield Caution(f"the context lengths differ ({told}): a longer one lowers the loss by itself")
    else:
        yield _forbidding(
            f"the contexts they were evaluated over differ ({told} tokens: eval_block_size), and a longer one lowers "
            "the loss by itself"
        )


def _context(case: Case) -> int | None:
    length = known_settings(case).get("block_size")
    return length if isinstance(length, int) else None


def _lost(cases: Sequence[Case], curves: Sequence[Curve], names: Sequence[str]) -> Iterator[Caution]:
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
        yield Caution(f"the {loss} of {name} is {no_number(lost)} from {place(case, lost)} on; {before}")


def _names(cases: Sequence[Case]) -> list[str]:
    """The runs by their sources; of a source that holds several, `train.log (its run 2)`."""
    sources = [case.run.source for case in cases]
    return [
        source if sources.count(source) == 1 else f"{source} (its run {sources[: run + 1].count(source)})"
        for run, source in enumerate(sources)
    ]


def _stated(cases: Sequence[Case], key: str) -> list[str]:
    """The different values of a key in the order of the runs, as far as they are known."""
    values = dict.fromkeys(value for case in cases if (value := known_settings(case).get(key)) is not None)
    return [f"{value:,}" if isinstance(value, int) else str(value) for value in values]
