"""Rules about size and length: what the scaling law says of a run."""

from __future__ import annotations

from collections.abc import Iterator

from onecard import units
from onecard.doctor.case import Case
from onecard.doctor.evidence import from_scratch, known, of_words, planned_steps, printed, said, shown, vals
from onecard.doctor.rules.data import overfitting
from onecard.doctor.rules.stability import diverging
from onecard.doctor.trend import trend
from onecard.findings import Finding
from onecard.plan.loss import (
    ALPHA,
    BETA,
    COMPUTE_OPTIMAL,
    SHORTEST_CONTEXT,
    UNKNOWN,
    A,
    B,
    dataset_of,
    guessing,
    law,
    optimal_params,
)
from onecard.plan.schedule import learning_rate

FEW, MANY = 10, 100  # tokens per parameter
PLATEAU_GAIN = 0.02  # nats for twice the tokens
OFF = 0.25  # nats beside the law
NEARLY_FINISHED = 0.9


def _size_and_tokens(case: Case) -> tuple[int, int] | None:
    """Parameters and the tokens read so far, where the law speaks of them."""
    params, tokens = case.facts.params_total or case.facts.params, case.facts.tokens
    return (params, tokens) if params and tokens and of_words(case) and from_scratch(case) else None


def tokens_per_parameter(case: Case) -> Iterator[Finding]:
    """A run far from compute-optimal.

    What it sees: the tokens of the whole run (those planned, or those read if no plan is known) divided by the
    parameters, below 10 or above 100. Compute-optimal is about 20 (Chinchilla).

    Why it matters: for the same compute another size would reach a lower loss. Far above 20 is right for a model that
    will be used much: it is smaller and cheaper to run.

    What to do: nothing, if the size is what you want; otherwise the size and tokens that the law gives for the same
    compute.

    When it is wrong: with repeated data, tokens count for less; the law was fitted to data seen once. A test of a few
    updates is not meant to learn.
    """
    known_run = _size_and_tokens(case)
    if known_run is None:
        return
    params, tokens = known_run
    steps, step_tokens = planned_steps(case), case.facts.tokens_per_step
    total = max(tokens, steps * step_tokens) if steps and step_tokens else tokens
    ratio = total / params
    if FEW <= ratio <= MANY:
        return
    best = optimal_params(6.0 * params * total)
    yield Finding(
        rule="tokens-per-parameter",
        severity="info",
        sure="medium",
        what=f"{ratio:.3g} tokens per parameter ({units.count(total)} for {units.count(params)}); "
        f"about {COMPUTE_OPTIMAL} are compute-optimal",
        why="under-trained: a smaller model would reach a lower loss with this compute"
        if ratio < FEW
        else "far past compute-optimal: right for a model that will be used much, costly for the lowest loss",
        fix=f"for the lowest loss with the same compute: {units.count(best)} parameters on "
        f"{units.count(params * total / best)} tokens (arXiv 2404.10102)",
        seen=(*printed(case, "printed_params"), *printed(case, "printed_tokens_per_step"))
        or (f"{params:,} parameters, {total:,} tokens",),
    )


def capacity_or_data(case: Case) -> Iterator[Finding]:
    """What twice the tokens and twice the parameters would buy.

    What it sees: the two terms of the scaling law, A/N^alpha and B/D^beta (arXiv 2404.10102), and the run's own trend
    over its last evaluations. Silent below one token per parameter, where no run was fitted.

    Why it matters: "the model is full" cannot be seen in one run. The law says which of the two is the larger part of
    what is left, and how much a doubling takes off.

    What to do: double what buys more, within the hours you have.

    When it is wrong: each gain is ± 50 %. With repeated data tokens buy less.
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
            f"; no plateau: it still falls by {moving.gain:.3f} ± {moving.error:.3f} per doubling of tokens over the "
            f"last {len(moving.evaluations)} evaluations"
        )
    first = "parameters" if by_params > by_tokens else "tokens"
    yield Finding(
        rule="capacity-or-data",
        severity="info",
        sure="medium",
        what=f"twice the tokens would take off about {by_tokens:.2f} nats, twice the parameters {by_params:.2f} "
        f"(each ± 50 %){still}",
        why=f"the scaling law at {units.count(params)} parameters and {units.count(tokens)} tokens; one run cannot "
        "show that a model is full",
        fix=f"double the {first} first, if the hours allow",
        seen=tuple(shown(e) for e in (moving.evaluations[0], moving.evaluations[-1]))
        if moving
        else (f"{params:,} parameters, {tokens:,} tokens",),
    )


def plateau(case: Case) -> Iterator[Finding]:
    """A validation loss that has stopped falling.

    What it sees: a line of val on the logarithm of tokens through the last quarter (at least six) of the evaluations.
    It is a plateau only if even the upper end of the 95 % interval of what twice the tokens would gain is below 0.02
    nats, and the run neither overfits nor diverges.

    Why it matters: hours spent on a plateau are lost, and the cause decides what helps.

    What to do: by the learning rate at the end. Above half its peak: the noise of the steps hides progress; let it
    decay. Below a fifth: the schedule is over; more tokens need a longer schedule. Between: more parameters.

    When it is wrong: at a high, constant learning rate a flat stretch can go over when the rate falls.
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
        what=f"the last {len(moving.evaluations)} evaluations gain {moving.gain:+.3f} ± {moving.error:.3f} nats per "
        "doubling of tokens",
        why=f"even the upper end, {moving.highest_gain:.3f}, is below {PLATEAU_GAIN}; {cause}",
        fix=fix,
        seen=tuple(shown(e) for e in (moving.evaluations[0], moving.evaluations[-1])),
    )


def _share_of_peak(case: Case) -> float | None:
    """The learning rate at the end, of its peak."""
    rates = [step.lr for step in case.steps if step.lr is not None]
    if rates and max(rates) > 0:
        return rates[-1] / max(rates)
    config = known(case, "learning_rate", "min_lr", "decay_lr", "lr_decay_iters", "warmup_iters")
    if config is None or case.facts.last_step is None or not config.learning_rate:
        return None
    return learning_rate(config, case.facts.last_step) / config.learning_rate


def loss_off_expectation(case: Case) -> Iterator[Finding]:
    """A final loss far from what runs of this size and length reach.

    What it sees: after nine tenths of the schedule (or with --final), on a dataset whose offset from the scaling law is
    known (FineWeb +0.21, OpenWebText +0.09, FineWeb-Edu -0.06), a validation loss more than 0.25 nats beside it.

    Why it matters: far above, something is wrong that no curve shows: the tokenizer, the data, the learning rate. Far
    below, the validation data is in the training data, or is another.

    What to do: decode a few batches and read them; check the tokenizer and the split.

    When it is wrong: with repeated data, unusual optimizers, or another tokenizer than GPT-2's. Silent where the law
    does not speak: so few tokens that it has more than ln(vocab_size), the loss of guessing, or contexts below 256.
    """
    known_run, config, last, planned = _size_and_tokens(case), known(case, "dataset"), vals(case), planned_steps(case)
    if known_run is None or config is None or not last or case.facts.tokens_per_step is None:
        return
    evaluation, val = last[-1]
    final = case.facts.steps_to_go == 0 or (planned is not None and evaluation.step >= NEARLY_FINISHED * planned)
    name, dataset = dataset_of(config.dataset)
    if not final or dataset is UNKNOWN or evaluation.step <= 0:
        return
    expected = law(known_run[0], evaluation.step * case.facts.tokens_per_step) + dataset.offset
    if expected >= guessing(config) or config.block_size < SHORTEST_CONTEXT:
        return
    if abs(val - expected) <= OFF:
        return
    high = val > expected
    yield Finding(
        rule="loss-off-expectation",
        severity="warn",
        sure="medium",
        what=f"val is {val:.4f} at the end; {units.count(known_run[0])} parameters on "
        f"{units.count(known_run[1])} tokens of {name} reach about {expected:.2f}",
        why=f"{abs(val - expected):.2f} nats "
        + (
            "above: data, tokenizer or learning rate" if high else "below: is the validation text in the training data?"
        ),
        fix="decode a few batches and read them; check the tokenizer, the split and the learning rate",
        seen=(shown(evaluation), *said(case, "dataset")),
    )
