"""What to know before trusting a comparison, and when losses must not be compared at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from onecard import units
from onecard.doctor.case import Case
from onecard.doctor.config_diff import known_settings
from onecard.doctor.curves import FEWEST_STEPS, STEPS_PER_POINT, Axis, Curve, Measure, side_by_side, steps_per_point
from onecard.doctor.evidence import (
    ASSUMED_NOISE,
    finite,
    loss_of,
    lost_at,
    no_number,
    place,
    untrained_loss,
    vocabulary,
)
from onecard.runs.records import Eval, Step
from onecard.units import listed

# An untrained model's loss is ln(vocabulary) or more: character models begin below, BPE models above.
CHARACTERS_BEGIN_BELOW, BPE_BEGINS_ABOVE = 8.0, 9.0


@dataclass(frozen=True, slots=True)
class Caution:
    """A sentence about the losses of a comparison."""

    text: str
    brief: str  # the same in a few words
    forbids: bool = False  # True: nothing may be said about which loss is lower


def _forbidding(why: str, brief: str) -> Caution:
    return Caution(f"the losses cannot be compared: {why}", f"the losses cannot be compared: {brief}", forbids=True)


def cautions(cases: Sequence[Case], measure: Measure | None, curves: Sequence[Curve]) -> Iterator[Caution]:
    """What to know about losses that are compared by a measure (None: the runs have no loss in common)."""
    yield from _twice(cases)
    yield from _too_fast(cases)
    if measure is None:
        yield Caution("the runs have no loss in common, so none can be called better", "no loss in common")
        return
    unlike = (*_tokens(cases, measure), *_contexts(cases, measure))
    yield from unlike
    names, datasets = _names(cases), _stated(cases, "dataset")
    if len(datasets) > 1:
        yield Caution(
            f"the data differ ({listed(datasets)}): each loss is measured on its own validation set", "the data differ"
        )
    yield from _lost(cases, curves, names)
    untold = [name for name, case in zip(names, cases, strict=True) if not case.run.steps_told]
    for name in untold:
        yield Caution(
            f"{name} prints no step numbers: no comparison at equal tokens or hours", f"{name} prints no step numbers"
        )
    if len(curves) > 1 and not untold and not any(caution.forbids for caution in unlike):
        yield from _unread(curves, names)
    yield from _noise(cases, measure, curves, names)


def _too_fast(cases: Sequence[Case]) -> Iterator[Caution]:
    """Speeds that no such card reaches, with the config that made them so."""
    for name, case in zip(_names(cases), cases, strict=True):
        if case.facts.too_fast:
            left_out = f", so {case.rejected} is not taken for its config" if case.rejected else ""
            yield Caution(
                f"{name} is of another card, of several cards, or of another config: {case.facts.too_fast}{left_out}",
                f"{name} is not of this card{' or config' if case.rejected else ''} (onecard doctor says why)",
            )


def _noise(cases: Sequence[Case], measure: Measure, curves: Sequence[Curve], names: Sequence[str]) -> Iterator[Caution]:
    """Which training losses are compared where a run has no evaluations, and where the noise is assumed."""
    if measure == "train_loss":
        yield Caution(
            f"not all runs evaluated: these are training losses, {_training_losses(cases, names)}",
            "these are training losses",
        )
    assumed = [name for name, curve in zip(names, curves, strict=True) if not curve.noise_known]
    if assumed:
        losses = "training losses" if measure == "train_loss" else "evaluations"
        yield Caution(
            f"too few {losses} to measure their noise in {listed(assumed)}: {ASSUMED_NOISE:g} is assumed (marked *),"
            " the noise of nanoGPT's 200 batches",
            "the noise is assumed",
        )


def _training_losses(cases: Sequence[Case], names: Sequence[str]) -> str:
    """How training losses make the points of the curves."""
    short = [name for name, case in zip(names, cases, strict=True) if steps_per_point(case.steps) == 1]
    if len(short) == len(names):
        return f"of single steps, as each run logged fewer than {FEWEST_STEPS} finite losses"
    each = f"; single steps of {listed(short)}, which logged fewer than {FEWEST_STEPS} finite losses" if short else ""
    return f"as medians of {STEPS_PER_POINT} steps{each}"


def _twice(cases: Sequence[Case]) -> Iterator[Caution]:
    """Runs that are given twice."""
    for number, case in enumerate(cases):
        same = next((one for one in cases[:number] if one.run.records and _is_same(one, case)), None)
        if same is None:
            continue
        one, other = same.run.source, case.run.source
        named = f"{other} is named twice" if one == other else f"{one} and {other} hold the same records"
        yield Caution(f"{named}: a run is compared with itself", "a run is compared with itself")


def _is_same(one: Case, other: Case) -> bool:
    return one.run.records == other.run.records and known_settings(one) == known_settings(other)


def _unread(curves: Sequence[Curve], names: Sequence[str]) -> Iterator[Caution]:
    """Why there is no comparison at equal tokens, or at equal hours."""
    axes: tuple[tuple[Axis, str, Callable[[float], str]], ...] = (
        ("tokens", "tokens", lambda tokens: f"{units.count(tokens)} tokens"),
        ("seconds", "hours", units.duration),
    )
    for axis, word, said in axes:
        ends = {name: end for name, curve in zip(names, curves, strict=True) if (end := curve.last(axis) or 0) > 0}
        if len(ends) < 2:
            unknown = [name for name, curve in zip(names, curves, strict=True) if curve.last(axis) is None]
            begun = [name for name in names if name not in (*ends, *unknown)]
            why = f"the {word} of {listed(unknown)} are not known" if unknown else _only_begun(begun)
            yield Caution(f"no comparison at equal {word}: {why}", f"no comparison at equal {word}")
        elif not any(side_by_side(curves, axis)):
            shortest = min(ends, key=lambda name: ends[name])
            yield Caution(
                f"no comparison at equal {word}: where {shortest} ends, after {said(ends[shortest])}, no other run "
                "has a loss",
                f"no comparison at equal {word}",
            )


def _only_begun(names: Sequence[str]) -> str:
    return f"{listed(names)} {'has' if len(names) == 1 else 'have'} no loss after the first step"


def different_tokens(cases: Sequence[Case]) -> str | None:
    """Why the tokens cannot be the same, by the stated vocabularies or the first losses; None if they may be."""
    sizes = _stated(cases, "vocab_size")
    if len(sizes) > 1:
        return f"the vocabularies differ ({listed(sizes)})"
    begins = [loss for case in cases if (loss := untrained_loss(case)) is not None]
    if begins and min(begins) < CHARACTERS_BEGIN_BELOW and max(begins) > BPE_BEGINS_ABOVE:
        firsts = dict.fromkeys(f"{loss:.1f}" for loss in begins)
        return f"the losses begin at {listed(firsts)}: the vocabularies cannot be the same"
    return None


def _tokens(cases: Sequence[Case], measure: Measure) -> Iterator[Caution]:
    """The runs have different tokens."""
    differ = different_tokens(cases)
    if differ and measure == "bits_per_byte":
        yield Caution(
            f"{differ}: compared in bits per byte, which do not depend on the tokenizer; equal tokens are not equal "
            "text",
            "compared in bits per byte",
        )
    elif differ:
        yield _forbidding(f"they are nats per token, and {differ}", differ)
    elif measure != "bits_per_byte":
        yield from _untold(cases)


def _untold(cases: Sequence[Case]) -> Iterator[Caution]:
    """Nothing says the data of a run, and so it may be another text than the others', in another vocabulary."""
    named = [(name, case) for name, case in zip(_names(cases), cases, strict=True) if not _dataset(case)]
    neither = [name for name, case in named if vocabulary(case) is None]
    if neither:
        unknown = f"the vocabulary and the data of {listed(neither)}"
        yield _forbidding(f"nothing says {unknown} (--config FILE says both)", f"{unknown} are not known")
    elif named:
        of = listed(name for name, _ in named)
        yield Caution(
            f"nothing says the data of {of}: each loss is measured on its own", f"the data of {of} are not known"
        )


def _dataset(case: Case) -> object:
    return known_settings(case).get("dataset")


def _contexts(cases: Sequence[Case], measure: Measure) -> Iterator[Caution]:
    """The losses were not measured over the same context length."""
    trained = [_context(case) for case in cases]
    read = [{found.block_size or context for found in case.evals} for case, context in zip(cases, trained, strict=True)]
    if measure == "train_loss":
        read = [{context} for context in trained]
    lengths = dict.fromkeys(length for each in read for length in each if length is not None)
    if len(lengths) < 2:
        return
    each_length = listed(f"{length:,}" for length in lengths)
    if all(each == {context} for each, context in zip(read, trained, strict=True)):
        yield Caution(
            f"the context lengths differ ({each_length}): a longer context lowers the loss by itself",
            "the context lengths differ",
        )
    else:
        yield _forbidding(
            f"they were evaluated over different contexts ({each_length} tokens: eval_block_size), and a longer context"
            " lowers the loss by itself",
            f"evaluated over different contexts ({each_length})",
        )


def _context(case: Case) -> int | None:
    length = known_settings(case).get("block_size")
    return length if isinstance(length, int) else None


def _lost(cases: Sequence[Case], curves: Sequence[Curve], names: Sequence[str]) -> Iterator[Caution]:
    """Which runs ended with a NaN or infinite loss, and since when, as in the doctor's rule loss-nan."""
    for case, curve, name in zip(cases, curves, names, strict=True):
        records: list[Step | Eval] = [*case.steps, *case.evals]
        loss, lost = "loss", lost_at(case)
        if lost is None and curve.lost:  # the training losses stay finite, only evaluations are NaN
            records, loss = list(case.evals), "validation loss"
            lost = next((found for found in case.evals if found.step == curve.lost.step), None)
        if lost is None:
            continue
        good = [record for record in records if record.step < lost.step and finite(record)]
        last = max(good, key=lambda record: record.step, default=None)
        before = (
            f"the last finite one is {loss_of(last):.4f} at {place(case, last)}" if last else "no earlier one is finite"
        )
        since = f"the {loss} of {name} is {no_number(lost)} from {place(case, lost)} on"
        yield Caution(f"{since}; {before}", since)


def _names(cases: Sequence[Case]) -> list[str]:
    """The runs by their sources; `train.log (its run 2)` where a file holds several."""
    sources = [case.run.source for case in cases]
    return [
        source if sources.count(source) == 1 else f"{source} (its run {sources[: run + 1].count(source)})"
        for run, source in enumerate(sources)
    ]


def _stated(cases: Sequence[Case], key: str) -> list[str]:
    """The different known values of a key, in the order of the runs."""
    values = dict.fromkeys(value for case in cases if (value := known_settings(case).get(key)) is not None)
    return [f"{value:,}" if isinstance(value, int) else str(value) for value in values]
