"""Rules about size and length: what the scaling law predicts for a run."""

from __future__ import annotations

from collections.abc import Iterator

from onecard import units
from onecard.config.schema import RunConfig
from onecard.doctor.case import Case
from onecard.doctor.evidence import (
    epochs,
    from_scratch,
    known,
    of_words,
    per_parameter,
    planned_steps,
    planned_tokens,
    printed,
    said,
    shown,
    vals,
)
from onecard.doctor.needs import CONFIG, needs, needs_settings
from onecard.doctor.rules.data import overfitting
from onecard.doctor.rules.stability import diverging
from onecard.doctor.trend import trend
from onecard.findings import Finding
from onecard.plan.conditions import raised_by
from onecard.plan.data import EPOCHS_BEYOND, MANY_EPOCHS
from onecard.plan.loss import (
    ALPHA,
    BETA,
    COMPUTE_OPTIMAL,
    SHORTEST_CONTEXT,
    UNKNOWN,
    A,
    B,
    dataset_of,
    expected_loss,
    guessing,
    law,
    optimal_params,
)
from onecard.plan.schedule import RATE_KEYS, learning_rate
from onecard.plan.token_worth import is_gpt2_with_adamw

FEW, MANY = 10, 100  # tokens per parameter
PLATEAU_GAIN = 0.02  # nats for twice the tokens
OFF = 0.25  # nats beside the law
NEARLY_FINISHED = 0.9


def _size_and_tokens(case: Case) -> tuple[int, int] | None:
    """Parameters and the tokens read so far, where the law covers them: it is one of GPT-2's shape and AdamW."""
    params, tokens = case.facts.params_total or case.facts.params, case.facts.tokens
    if case.resolved and not is_gpt2_with_adamw(case.resolved.config):
        return None
    return (params, tokens) if params and tokens and of_words(case) and from_scratch(case) else None


@needs(CONFIG)
def tokens_per_parameter(case: Case) -> Iterator[Finding]:
    """A run far from compute-optimal.

    What it sees: the tokens of the whole run (as planned; as read, if nothing says how long it was meant to be)
    divided by the parameters, below 10 or above 100. Compute-optimal is about 20 (Chinchilla).

    Why it matters: for the same compute another size would reach a lower loss. Far above 20 is right for a model that
    will be used a lot: it is smaller and cheaper to run.

    What to do: nothing, if the size is what you want; otherwise the size and tokens that the law gives for the same
    compute.

    When it is wrong: with repeated data, tokens count for less; the law was fitted to data seen once. A test of a few
    updates is not meant to learn.
    """
    known_run = _size_and_tokens(case)
    if known_run is None:
        return
    params, tokens = known_run
    total = planned_tokens(case) or tokens
    ratio = total / params
    if FEW <= ratio <= MANY:
        return
    best = optimal_params(6.0 * params * total)
    yield Finding(
        rule="tokens-per-parameter",
        severity="info",
        sure="medium",
        what=f"{per_parameter(params, tokens=tokens, planned=total)}; about {COMPUTE_OPTIMAL} are compute-optimal",
        why=f"{units.count(total)} tokens for {units.count(params)} parameters: "
        + (
            "under-trained, a smaller model would reach a lower loss with this compute"
            if ratio < FEW
            else "far past compute-optimal, right for a model that will be used a lot, costly for the lowest loss"
        ),
        fix=f"for the lowest loss with the same compute: {units.count(best)} parameters on "
        f"{units.count(params * total / best)} tokens (arXiv 2404.10102)",
        seen=(*printed(case, "printed_params"), *printed(case, "printed_tokens_per_step"))
        or (f"{params:,} parameters, {total:,} tokens",),
    )


@needs(CONFIG)
def capacity_or_data(case: Case) -> Iterator[Finding]:
    """What twice the tokens and twice the parameters would gain.

    What it sees: the two terms of the scaling law, A/N^alpha and B/D^beta (arXiv 2404.10102), and the run's own trend
    over its last evaluations. Below one token per parameter it says nothing: the law was fitted on no such run.

    Why it matters: one run cannot show that "the model is full". The law says which of the two terms is the larger part
    of what is left, and how much a doubling would take off.

    What to do: double what gains more, within the hours you have.

    When it is wrong: each gain is ± 50 %. With repeated data, more tokens gain less.
    """
    known_run = _size_and_tokens(case)
    if known_run is None:
        return
    params, tokens = known_run
    if tokens < params:
        return  # far from every run the law was fitted to
    by_tokens = B / tokens**BETA * (1 - 2**-BETA)
    by_params = A / params**ALPHA * (1 - 2**-ALPHA)
    moving = trend(case)
    still = ""
    if moving and moving.highest_gain >= PLATEAU_GAIN and moving.gain > 2 * moving.error:
        still = (
            f"; no plateau: over the last {len(moving.evaluations)} evaluations val still falls by {moving.gain:.3f} ± "
            f"{moving.error:.3f} per doubling of tokens"
        )
    first = "parameters" if by_params > by_tokens else "tokens"
    yield Finding(
        rule="capacity-or-data",
        severity="info",
        sure="medium",
        what=f"{'no plateau: ' if still else ''}twice the tokens would gain {by_tokens:.2f} nats, twice the parameters "
        f"{by_params:.2f}",
        why=f"the scaling law at {units.count(params)} parameters and {units.count(tokens)} tokens, each ± 50 %; "
        f"one run cannot show that a model is full{still}",
        fix=f"double the {first} first, if the hours allow",
        seen=tuple(shown(e) for e in (moving.evaluations[0], moving.evaluations[-1]))
        if moving
        else (f"{params:,} parameters, {tokens:,} tokens",),
    )


def plateau(case: Case) -> Iterator[Finding]:
    """A validation loss that has stopped falling.

    What it sees: a line of val on the logarithm of tokens through the last quarter (at least six) of the evaluations.
    It is a plateau only if twice the tokens would gain less than 0.02 nats even at the upper end of the 95 % interval,
    and the run neither overfits nor diverges.

    Why it matters: hours spent on a plateau are lost, and the cause decides what helps.

    What to do: it depends on the learning rate at the end. Above half its peak: the noise of the steps hides progress;
    let it decay. Below a fifth: the schedule is over; more tokens need a longer schedule. Between: more parameters.

    When it is wrong: at a high, constant learning rate a flat stretch can end when the rate falls.
    """
    moving = trend(case)
    if moving is None or moving.highest_gain >= PLATEAU_GAIN:
        return
    if any(diverging(case)) or any(overfitting(case)):
        return
    share = _share_of_peak(case)
    if share is None:
        cause, fix = "the learning rate is not known", "look at the learning rate: still high, let it decay"
    elif share > 0.5:
        cause = f"the learning rate is still {share:.0%} of its peak: the noise of the steps hides progress"
        fix = "let the learning rate decay to a tenth"
    elif share < 0.2:
        cause = f"the learning rate is down to {share:.0%} of its peak: the schedule is over"
        fix = "a longer schedule for more tokens, or a larger model"
    else:
        cause = f"the learning rate is {share:.0%} of its peak, and still nothing moves"
        fix = "more parameters (see capacity-or-data)"
    yield Finding(
        rule="plateau",
        severity="info",
        sure="medium",
        what=f"plateau: the last {len(moving.evaluations)} evaluations gain {moving.gain:+.3f} ± {moving.error:.3f} "
        "nats per doubling of tokens",
        why=f"even the upper end, {moving.highest_gain:.3f}, is below {PLATEAU_GAIN}; {cause}",
        fix=fix,
        seen=tuple(shown(e) for e in (moving.evaluations[0], moving.evaluations[-1])),
    )


def _share_of_peak(case: Case) -> float | None:
    """The learning rate at the end, of its peak."""
    rates = [step.lr for step in case.steps if step.lr is not None]
    if rates and max(rates) > 0:
        return rates[-1] / max(rates)
    config = known(case, *RATE_KEYS)
    if config is None or case.facts.last_step is None or not config.learning_rate:
        return None
    return learning_rate(config, case.facts.last_step) / config.learning_rate


@needs_settings("dataset")
def loss_off_expectation(case: Case, config: RunConfig) -> Iterator[Finding]:
    """A final loss far from what runs of this size and length reach.

    What it sees: after nine tenths of the schedule (or with --final), on a dataset with a known offset from the scaling
    law (FineWeb +0.21, OpenWebText +0.09, FineWeb-Edu +0.05), a validation loss more than 0.25 nats above or below it.

    Why it matters: far above, something is wrong that the curve does not show: the tokenizer, the data, the learning
    rate. Far below, the validation data is in the training data, or is not what you think.

    What to do: decode a few batches and read them; check the tokenizer and the split.

    When it is wrong: with unusual optimizers, or another tokenizer than GPT-2's. Under recipe=fast and
    Muon the plan's loss of the recipe is expected, near the public runs it is from. It says nothing where the law does
    not hold: so few tokens that it predicts more than ln(vocab_size), the loss of guessing, contexts below 256, or data
    that were read more than four times. Without warm-up a run may lie 0.2 higher.
    """
    last, planned, tokens = vals(case), planned_steps(case), case.facts.tokens
    params = case.facts.params_total or case.facts.params
    if not last or not tokens or not params or case.facts.tokens_per_step is None or not of_words(case):
        return
    if not from_scratch(case):
        return
    evaluation, val = last[-1]
    final = case.facts.steps_to_go == 0 or (planned is not None and evaluation.step >= NEARLY_FINISHED * planned)
    name, dataset = dataset_of(config.dataset)
    if not final or dataset is UNKNOWN or evaluation.step <= 0:
        return
    read = evaluation.step * case.facts.tokens_per_step
    if (epochs(case, read) or 0) > MANY_EPOCHS + EPOCHS_BEYOND:
        return
    if is_gpt2_with_adamw(config):
        expected: float | None = law(params, read) + dataset.offset
    else:
        expected = expected_loss(config, read)
    if expected is None or expected >= guessing(config) or config.block_size < SHORTEST_CONTEXT:
        return
    high = val > expected
    if abs(val - expected) <= OFF + (raised_by(config) if high else 0):
        return
    yield Finding(
        rule="loss-off-expectation",
        severity="warn",
        sure="medium",
        what=f"val is {val:.4f} at the end; {units.count(params)} parameters on "
        f"{units.count(tokens)} tokens of {name} reach about {expected:.2f}",
        why=f"{abs(val - expected):.2f} nats "
        + (
            "above: data, tokenizer or learning rate" if high else "below: is the validation text in the training data?"
        ),
        fix="decode a few batches and read them; check the tokenizer, the split and the learning rate",
        seen=(shown(evaluation), *said(case, "dataset")),
    )
