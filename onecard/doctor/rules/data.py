"""Rules about the data: how often it is seen, how it is split."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import mean, median

from onecard import units
from onecard.config.schema import RunConfig
from onecard.doctor.case import Case
from onecard.doctor.course import ERROR_OF_MEDIAN, noise_around_slope, training_losses
from onecard.doctor.evidence import (
    WAVES,
    above,
    epochs,
    known,
    noise,
    of_words,
    only_told,
    pairs,
    place,
    printed,
    said,
    shown,
    sureness,
    unless_fine_tuning,
)
from onecard.doctor.needs import TOKENS, TRAINING_DATA, VALIDATION_DATA, Need, needs, needs_settings
from onecard.doctor.repair import trainer_of
from onecard.findings import Finding, Severity
from onecard.plan import conditions as plan_conditions
from onecard.plan import data as plan_data
from onecard.plan.data import EPOCHS_BEYOND, FAR_TOO_MANY_EPOCHS, MANY_EPOCHS, WANTED_VAL_TOKENS, tokens_per_evaluation
from onecard.plan.loss import dataset_of
from onecard.runs.records import Eval, FindingRecord

PAST_MINIMUM = 3  # evaluations
SMALLEST_RISE = 0.1  # nats of val - train
WIDE_GAP, FEW_EVALS_GAP = 1.0, 0.5
FEW_EVALS = 5
MANY_EVALS = 7  # enough to average three on either side
FEW_LOSSES, FEW_LOSSES_NOISE = 5, 0.15  # training losses, too few to see their noise, and what is assumed
SPLITS_DIFFER = 0.07  # nats of val - train, to either side: the most in healthy real runs on web text
ABOVE_BY_CHANCE = 2 * math.sqrt(2)  # standard deviations of an evaluation: two of a difference
FAR_BELOW = 0.3  # nats of val below train; 0.07 is the most in healthy real runs
LEAST_ROWS = 3  # evaluations
FAR_BELOW_TRAINED = 0.6  # the same where train is the mean of training losses, with dropout and lagging behind
# A run of ours compares its splits when it starts, and records what it finds.
SPLITS = Need(
    about="data",
    met=lambda case: case.data.val_in_train is not None or (case.run.format == "onecard" and not _recorded_same(case)),
)
BOTH_IN_EVAL_MODE = ("nanogpt", "onecard", "minimal")


def overfitting(case: Case) -> Iterator[Finding]:
    """A model that memorises its training data.

    What it sees: the validation loss has been past its minimum for at least three evaluations, and val - train (the
    mean of three evaluations, where there are seven) has risen by more than 0.1 nats and five standard errors; or
    val - train exceeds 1.0; or, with fewer than five evaluations, exceeds 0.5 with the validation loss above an earlier
    one by more than its noise. A gap itself has the error of both losses, and 0.07 nats by which splits differ. It is
    sure from eight standard errors on. Only after the data has been read once, where its size is known: text that was
    seen once cannot be memorised.

    Why it matters: after the minimum, training makes the model worse on everything but its own data.

    What to do: keep the checkpoint of the minimum; more data, a smaller model, or dropout of 0.1 to 0.2. With
    stop_after_worse=3, a run of onecard's ends after three evaluations that were worse than the best.

    When it is wrong: splits of different difficulty have a gap that is there from the start and does not grow.
    """
    found = pairs(case)
    read = epochs(case, case.facts.tokens)
    if not found or (read is not None and read < 1):
        return
    lowest = min(range(len(found)), key=lambda position: found[position][2])
    best, _, best_val = found[lowest]
    last, train, val = found[-1]
    many = len(found) >= MANY_EVALS
    gap = _gap(found, len(found) - 1)
    rise = gap - _gap(found, lowest)
    sigma = noise(case)
    error = _error_of_gap(case, found, evaluations=3 if many else 1)
    past = len(found) - 1 - lowest
    came_back = mean(value for _, _, value in found[-PAST_MINIMUM:]) <= best_val + sigma
    turned = past >= PAST_MINIMUM and above(rise, SMALLEST_RISE) and not (came_back and many)
    few = len(found) < FEW_EVALS and above(gap, FEW_EVALS_GAP) and above(val - best_val, ABOVE_BY_CHANCE * sigma)
    wide = few or above(gap, WIDE_GAP)
    sure = sureness(
        max(
            rise / (math.sqrt(2) * error) if turned else 0.0,
            gap / math.hypot(error, _gap_error(case, [last]), SPLITS_DIFFER) if wide else 0.0,
        )
    )
    if sure == "low":
        return
    patch: dict[str, object] = {}
    config = known(case, "dropout")
    if config and not config.dropout:
        patch = {"dropout": 0.1}
    stops = case.run.format != "onecard" or (case.resolved and case.resolved.config.stop_after_worse)
    kept = place(case, best) + ("" if stops else " (--best), and next time --stop_after_worse=3")
    yield Finding(
        rule="overfitting",
        severity="warn",
        sure=sure,
        what=f"val is {val:.4f} and train {train:.4f} at {place(case, last)}; val was best at {place(case, best)} "
        f"({best_val:.4f})"
        if past
        else f"val lies {gap:.2f} above train at {place(case, last)}",
        why=f"since then the gap has grown by {rise:.2f}, and val has not come back in {past} evaluations"
        if turned
        else f"a gap of {gap:.2f} nats: the model has memorised its training data",
        fix=f"keep the checkpoint of {kept}; more data, a smaller model, or dropout 0.1 to 0.2",
        seen=tuple(dict.fromkeys(shown(e) for e in (best, found[(lowest + len(found) - 1) // 2][0], last))),
        patch=patch,
    )


def _error_of_gap(case: Case, found: Sequence[tuple[Eval, float, float]], *, evaluations: int) -> float:
    """Standard error of val - train in the mean of so many evaluations: by the noise of each loss, and at least as the
    differences scatter. Where train is the median of logged losses, it also has their waves, from text that comes in an
    order."""
    if any(evaluation.train_loss is not None for evaluation, _, _ in found):
        gaps = [val - train for e, train, val in found if e.step > 0]
        return max(math.sqrt(2) * noise(case), _scatter(gaps)) / math.sqrt(evaluations)
    losses = [loss for _, loss in training_losses(case)]
    noise_of_loss = noise_around_slope(losses) if len(losses) >= FEW_LOSSES else FEW_LOSSES_NOISE
    of_median = ERROR_OF_MEDIAN * noise_of_loss / math.sqrt(max(1.0, min(200, len(losses) / len(found))))
    return math.hypot(math.hypot(noise(case), of_median) / math.sqrt(evaluations), WAVES)


def _scatter(values: Sequence[float]) -> float:
    """Standard deviation of values around a line through their neighbours, also of few; 0 of fewer than three."""
    bends = [a - 2 * b + c for a, b, c in zip(values, values[1:], values[2:], strict=False)]
    return math.hypot(*bends) / math.sqrt(6 * len(bends)) if bends else 0.0


def _gap(found: Sequence[tuple[Eval, float, float]], position: int) -> float:
    """val - train at an evaluation; where there are many, the mean with its neighbours."""
    first = max(0, min(position - 1, len(found) - 3)) if len(found) >= MANY_EVALS else position
    rows = found[first : first + 3] if len(found) >= MANY_EVALS else found[position : position + 1]
    return mean(val - train for _, train, val in rows)


def val_below_train(case: Case) -> Iterator[Finding]:
    """A validation loss below the training loss.

    What it sees: over the last half of the evaluations (at least three), val - train is below zero by more than twice
    its standard error, where both splits are evaluated the same way (nanoGPT and onecard: model.eval(), no dropout): a
    note. From 0.3 nats and four standard errors on it is a warning. nanoGPT reads new batches in each evaluation, so
    many evaluations are surer than one. onecard reads the same windows each time, so they are not. Other programs only
    log training losses: there it takes 0.6 nats.

    Why it matters: dropout is not the reason: it is off in both. The two splits differ: the validation text is easier,
    or so small that chance decides how hard it is.

    What to do: shuffle the documents, then split by document, with at least a million validation tokens. Compare runs
    on the same split only.

    When it is wrong: where a program evaluates the training loss with dropout on; for those only a wide gap counts.
    """
    evaluated_alike = case.run.format in BOTH_IN_EVAL_MODE
    rows = [row for row in pairs(case) if row[0].step > 0 and (row[0].train_loss is not None or not evaluated_alike)]
    rows = rows[-max(LEAST_ROWS, len(rows) - len(rows) // 2) :]
    if not rows:
        return
    gaps = [val - train for _, train, val in rows]
    error = _gap_error(case, [row[0] for row in rows])
    far = -mean(gaps) > max(FAR_BELOW if evaluated_alike else FAR_BELOW_TRAINED, 4 * error)
    if mean(gaps) > -2 * error or not (evaluated_alike or (far and len(rows) >= LEAST_ROWS)):
        return
    config = known(case, "dropout")
    size = case.data.val_tokens
    dropout = f"dropout={config.dropout:g} is off in both evaluations" if config and config.dropout else ""
    yield Finding(
        rule="val-below-train",
        severity="warn" if far else "info",
        sure="high" if evaluated_alike else "medium",
        what=f"val is {-mean(gaps):.3f} below train; dropout is not the reason: the two splits differ",
        why=f"over {_last(len(gaps))} (± {error:.3f}); "
        + (
            "both are measured without dropout, so dropout is not the reason"
            if evaluated_alike
            else "dropout alone does not make such a gap"
        )
        + (f" ({dropout})" if dropout else "")
        + (f"; the validation data has only {size:,} tokens" if size and size < WANTED_VAL_TOKENS else ""),
        fix="shuffle documents before splitting, split by document, and validate on at least 1,000,000 tokens",
        seen=tuple(shown(evaluation) for evaluation, _, _ in rows[-3:]),
    )


def _last(evaluations: int) -> str:
    return "the last evaluation" if evaluations == 1 else f"the last {evaluations} evaluations"


def _gap_error(case: Case, evals: Sequence[Eval]) -> float:
    """Standard error of the mean of val - train over these evaluations.

    Batches drawn anew, as nanoGPT's, make errors that are independent and average out. Windows that are the same each
    time, as onecard's, make one error: that of a single evaluation, however many there are.
    """
    if case.run.format != "onecard":
        return max(noise(case), 1e-4) * math.sqrt(2 / len(evals))
    recorded = [
        math.hypot(e.train_loss_error, e.val_loss_error)
        for e in evals
        if e.train_loss_error is not None and e.val_loss_error is not None
    ]
    finite = [error for error in recorded if math.isfinite(error)]
    return max(median(finite) if finite else noise(case) * math.sqrt(2), 1e-4)


@needs_settings("dropout", "max_iters", surer_with=(TRAINING_DATA,))
def needless_dropout(case: Case, config: RunConfig) -> Iterator[Finding]:
    """Dropout where no token is seen twice.

    What it sees: dropout above 0 in a run that reads less than one epoch of its training data. It is sure where the
    size of the data is known, and a guess where only the name of a large web corpus is. For other BPE data it is only a
    note; character data, which is small and read many times, is not checked. Above 0.5 it is too much for any data.

    Why it matters: dropout protects against memorising. Data that is seen once cannot be memorised, and dropout then
    only slows learning (arXiv 2305.16264, 2305.13230).

    What to do: dropout=0.0.

    When it is wrong: with a small dataset read many times; give its size with --data or --train_tokens. For
    fine-tuning it is only a note: there dropout protects what was learned before.
    """
    if not config.dropout:
        return
    if high := plan_conditions.high_dropout(config, seen=said(case, "dropout")):
        yield high
        return
    passes = epochs(case, max(config.total_tokens, case.facts.tokens or 0))
    if passes is not None and passes >= 1:
        return
    if passes is None and not of_words(case):
        return
    finding = Finding(
        rule="needless-dropout",
        severity="warn",
        sure="high" if passes is not None else "low",
        what=f"dropout={config.dropout:g}, and "
        + (
            f"the run reads {passes:.2f} epochs of its training data"
            if passes is not None
            else f"{config.dataset!r} is probably read less than once"
        ),
        why="data that is seen once cannot be memorised: dropout only slows learning (arXiv 2305.16264)"
        + ("" if passes is not None else "; its size is not known (--data DIR or --train_tokens=N)"),
        fix="--dropout=0.0",
        seen=(*said(case, "dropout", "dataset"), *_data_said(case)),
        patch={"dropout": 0.0},
    )
    if passes is None and dataset_of(config.dataset)[0] == "unknown dataset":
        yield only_told(finding, "neither the size nor the name of the data shows that it is large")
    else:
        yield unless_fine_tuning(finding, config)


@needs(TOKENS, TRAINING_DATA)
def too_many_epochs(case: Case) -> Iterator[Finding]:
    """Data that is read over and over.

    What it sees: tokens read so far are more than 4 times (a warning) or 16 times (an error) the training tokens. A
    200th of an epoch more is ignored: updates are whole, and the last may go a little beyond. It is a note where
    stop_after_worse ended the run: it ended in time, and its best checkpoint is kept.

    Why it matters: up to four epochs, repeated tokens are worth nearly as much as new ones; after sixteen, almost
    nothing (arXiv 2305.16264).

    What to do: more data, or a shorter run.

    When it is wrong: for a small dataset that is all there is; then watch `overfitting` instead.
    """
    size, tokens = case.data.train_tokens, case.facts.tokens
    passes = epochs(case, tokens)
    if passes is None or size is None or tokens is None or passes <= MANY_EPOCHS + EPOCHS_BEYOND:
        return
    far = passes > FAR_TOO_MANY_EPOCHS + EPOCHS_BEYOND
    limit = FAR_TOO_MANY_EPOCHS if far else MANY_EPOCHS
    times = f"{passes:,.1f}" if passes < 1000 else f"{passes:,.0f}"
    what = f"the training data was read {times if round(passes, 1) > limit else f'more than {limit}'} times"
    severity: Severity = "error" if far else "warn"
    kept = ""
    if case.end and case.end.reason == "stop_after_worse":
        severity = "info"
        best = f", that of {place(case, case.facts.best_val)}," if case.facts.best_val else ""
        what += ", and stop_after_worse ended the run in time"
        kept = f"; the best checkpoint{best} is kept (--best)"
    yield Finding(
        rule="too-many-epochs",
        severity=severity,
        sure="high",
        what=what,
        why=f"{units.count(tokens)} tokens of {units.count(size)}; beyond {limit} epochs "
        + ("more of it teaches almost nothing" if far else "it is worth less and less")
        + kept,
        fix=f"more data: at least {units.count(tokens / MANY_EPOCHS)} tokens for so long a run",
        seen=(*_data_said(case), f"{tokens:,} tokens read"),
    )


@needs_settings("eval_iters", "batch_size", "block_size", also=(VALIDATION_DATA,))
def val_set_tiny(case: Case, config: RunConfig) -> Iterator[Finding]:
    """A validation set smaller than one evaluation.

    What it sees: fewer validation tokens (from --data, --val_tokens or the run) than one evaluation reads: eval_iters x
    batch_size x block_size (x eval_block_size, where onecard is given one; eval_batch_size changes memory, not tokens).

    Why it matters: the loss looks precise, but is only about those few documents: it can be above or below the training
    loss by chance. nanoGPT reads the same few again and again; onecard reads each once.

    What to do: at least 1,000,000 validation tokens, split off by document.

    When it is wrong: never; but a small dataset may not have more.
    """
    trainer = trainer_of(case)
    size, read = case.data.val_tokens, tokens_per_evaluation(config, trainer)
    if size is not None and size < read:
        seen = (f"{size:,} validation tokens", *said(case, "eval_iters", "batch_size", "block_size"))
        yield plan_data.val_set_tiny(size, read, trainer, seen=seen)


@needs(SPLITS)
def val_same_as_train(case: Case) -> Iterator[Finding]:
    """Validation data that is training data.

    What it sees: with the data at hand (--data, or the folder of the config's dataset), the validation split is the
    same as the training split, or as its beginning or its end.

    Why it matters: the model is evaluated on what it trains on. The validation loss says nothing about new text, and
    overfitting is not seen.

    What to do: split by document, and take the validation documents out of the training data.

    When it is wrong: never, but it only compares the beginning and the end: a copy in the middle is not found.
    """
    if case.data.val_in_train:
        yield plan_data.val_same_as_train(case.data.val_in_train, source=case.data.source)


def _recorded_same(case: Case) -> bool:
    return any(isinstance(r, FindingRecord) and r.finding.rule == "val-same-as-train" for r in case.run.records)


def _data_said(case: Case) -> tuple[str, ...]:
    size = case.data.train_tokens
    told = (f"{size:,} training tokens",) if size else ()
    return (*told, *printed(case, "printed_tokens_per_step"))
