"""Rules about losses that cannot be right, whatever the data: too high for too long, too low, never at rest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import fmean, median

from onecard.doctor.case import Case
from onecard.doctor.course import (
    FEWEST_POINTS,
    every_loss,
    highest_gain,
    noise_around_slope,
    noise_of,
    swing,
    training_losses,
)
from onecard.doctor.evidence import (
    IMPOSSIBLE_LOSS,
    from_scratch,
    known,
    of_words,
    place,
    shown,
    stated_vocabulary,
    vals,
    vocabulary,
    zero_from,
)
from onecard.doctor.rules.data import overfitting
from onecard.findings import Finding
from onecard.plan.loss import FREQUENCIES_ONLY, GPT2_GUESSING
from onecard.runs.records import Eval, Step

# Thresholds are checked on made runs, sick and healthy: docs/measurements/doctor-rates.md
LEAST_STEPS = 200  # updates; and past the warm-up, where that is known
LEAST_POINTS, LEAST_STUCK = 8, 12  # logged losses in the second half: to see where they are, and that they do not fall
FALLING = 0.2  # nats for twice the steps: at such a height, a run that learns falls by 0.3 and more
LETTERS_BEGIN_ABOVE = 4.0  # nats: ln 55; below, a first loss is of trained weights
WORDS_BEGIN_ABOVE = 8.0  # ln 3,000; first losses between these two may be of trained weights, too
HARDLY_MOVED = 0.1  # nats from such a first loss
AS_GUESSING = 0.3  # nats below ln V: hardly better than random weights
FLAT = 0.05  # nats from the first third of a short log to its last: the first updates of a warm-up make more
LEAST_FLAT = 16  # logged losses, and updates
LEAST_TAUGHT = 3e-5  # sum of the learning rates of all updates, where they are printed: 0.3 nats in a real warm-up
UNTRAINED = 9.0  # nats: no trained model is above, and random weights over words are
LOWEST = 0.1  # nats per token: no text is so easy, not even letter by letter
LOWEST_OF_WORDS = 0.3  # nats per BPE token: program text, the easiest data, is near 1
LAST_SHARE = 0.1
# A training loss varies by 0.42 nats for 1,024 tokens, falling with the square root of their number, and by 0.044 that
# all sequences of an update share: read from six real logs, 4,096 to 524,288 tokens (tests/attack/real_noise.py).
SEQUENCE_TOKENS, SEQUENCE_NOISE, UPDATE_NOISE = 1024, 0.42, 0.044
NINE_TENTHS = 3.3  # standard deviations from the 5th to the 95th percentile of a normal distribution
MORE_THAN_REAL = 2.6  # times as much as in those logs: twice, and 0.3 for percentiles of a short run and slow waves
WIDEST_SWING_OF_BATCH = 1.0  # nats, however many sequences
SLOW_SWING = 0.5  # nats: twice the widest slow waves of healthy runs, 0.12 to either side
SLOW = 5  # times the noise from one loss to the next; 4.4 at most in 1,718 healthy made runs that swing by 0.5 or more
# Nats where nothing says how large a batch is: twice what one sequence makes; and of losses that do not vary like noise
WIDEST_LIKE_NOISE, WIDEST_OF_UNKNOWN = 2.9, 2.2
LARGE_UPDATE = 131_072  # tokens, as the log's speed and time say: the second limit holds for any losses of so many
WIDEST_SWING_UNLEARNED, WIDEST_NOISE_UNLEARNED = 1.7, 2.5  # nats, at a height where next to nothing is learned
STEADY_EVALUATIONS = 0.1  # nats: where evaluations vary by less, only the batches differ
_LOOK = "look at one batch and its targets (the input shifted by one token), the learning rate, and the gradient norm"


def not_learning(case: Case) -> Iterator[Finding]:
    """A loss that stays where a model has learned next to nothing.

    What it sees: over the second half of at least 200 updates (past the warm-up, where that is known) the loss is above
    0.65 ln V and twice the updates would gain less than 0.2 nats, at the upper end of the 95 % interval; or it is at ln
    V or above. Sixteen updates are enough where it stays at ln V, or above 9 nats, and moves by less than 0.05. For
    GPT-2's tokenizer 0.65 ln V is 7.0 nats: knowing only how frequent each token is gives 7.4 to 7.7. Where the
    vocabulary is not known, the loss of the first update stands for ln V, and GPT-2's where that is not logged either.
    A first loss below 8 may be of trained weights: of those only a loss that stays within 0.1 of it, above 4, is told.

    Why it matters: at ln V the model guesses. At the loss of token frequencies it does not use the context. Every
    healthy run passes both within its first few hundred updates.

    What to do: look at one batch and its targets, at the learning rate (zero? a warm-up without end?), at the gradient
    norm, and whether the optimizer has the model's parameters.

    When it is wrong: for data without any order, such as shuffled or random tokens, and for programs that print the sum
    of several losses.
    """
    points = every_loss(case)
    later = points[len(points) // 2 :]
    if not _flat(case, points) and (len(later) < LEAST_POINTS or not _has_settled(case)):
        return
    level = median(loss for _, loss in later)
    guess, says = _guessing(case)
    gain = highest_gain(later)
    # a loss above what is not known to be ln V is of a run that diverges
    guessing = (
        level > guess - AS_GUESSING
        if says == "known"
        else any(abs(level - likely) < AS_GUESSING for likely in (guess, GPT2_GUESSING))
    )
    if says == "first loss" and guess < WORDS_BEGIN_ABOVE and abs(level - guess) > HARDLY_MOVED:
        return  # a fine-tune, as likely as letters
    stuck = len(later) >= LEAST_STUCK and level > FREQUENCIES_ONLY * guess and gain is not None and gain < FALLING
    if not guessing and not stuck:
        return
    vocabulary_is_known = says == "known"
    yield Finding(
        rule="not-learning",
        severity="error" if guessing else "warn",
        sure="high" if vocabulary_is_known and guessing else "medium",
        what=f"the loss is {level:.4g} over the second half of the run"
        + (f": {_no_better(level, guess, says)}" if guessing else ", and it does not fall"),
        why="a model that learns is below ln V, the loss of random weights, after a few updates"
        if guessing
        else f"about {_frequencies(guess)} is what token frequencies alone give: the model does not use the context"
        + ("; the vocabulary is not known: a size like GPT-2's is assumed" if says == "assumed" else ""),
        fix=_LOOK,
        seen=tuple(dict.fromkeys(shown(record) for record in (points[0][0], later[0][0], later[-1][0]))),
    )


def _flat(case: Case, points: Sequence[tuple[Step | Eval, float]]) -> bool:
    """Whether the loss of random weights does not move at all, however early: also the first updates of a warm-up move
    it."""
    losses = [loss for _, loss in points]
    if len(losses) < LEAST_FLAT or (case.run.steps_told and points[-1][0].step - points[0][0].step < LEAST_FLAT):
        return False
    rates = [step.lr for step in case.steps if step.lr is not None]
    if rates and sum(rates) * (case.steps[-1].step - case.steps[0].step) / len(rates) < LEAST_TAUGHT and max(rates) > 0:
        return False
    third = len(losses) // 3
    size, level = vocabulary(case) or stated_vocabulary(case), median(losses)
    untrained = abs(level - math.log(size)) < AS_GUESSING if size and size > 1 else UNTRAINED < level < IMPOSSIBLE_LOSS
    return untrained and abs(median(losses[:third]) - median(losses[-third:])) < FLAT


def _no_better(level: float, guess: float, says: str) -> str:
    if says == "known":
        return f"no better than guessing (ln V = {guess:.2f})"
    if says == "first loss" and abs(level - guess) < AS_GUESSING:
        return f"no better than at the start ({guess:.2f})"
    return f"no better than guessing with GPT-2's tokens (ln V = {GPT2_GUESSING:.2f})"


def _frequencies(guess: float) -> str:
    return f"{0.69 * guess:.1f} to {0.71 * guess:.1f}" if guess > 9 else f"{0.8 * guess:.1f}"


def _has_settled(case: Case) -> bool:
    """Whether the run is long enough to have learned something, as far as anything says."""
    last, config = case.facts.last_step, known(case, "warmup_iters", "decay_lr", "max_iters")
    if last is None:
        return len(every_loss(case)) >= 4 * LEAST_POINTS
    warmup = min(config.warmup_iters, config.max_iters // 2) if config and config.decay_lr else 0
    return last >= max(LEAST_STEPS, 2 * warmup)


def _guessing(case: Case) -> tuple[float, str]:
    """The loss of guessing, and where it comes from: the vocabulary is known, the first loss shows it, or assumed."""
    size = vocabulary(case) or stated_vocabulary(case)
    if size and size > 1:
        return math.log(size), "known"
    first = next((loss for record, loss in every_loss(case) if record.step <= 1), None)
    of_random_weights = case.run.format in ("nanogpt", "onecard", "minimal", "llm.c", "nanochat")
    if first is not None and of_random_weights and from_scratch(case) and LETTERS_BEGIN_ABOVE < first < IMPOSSIBLE_LOSS:
        return first, "first loss"
    return GPT2_GUESSING, "assumed"


def loss_too_low(case: Case) -> Iterator[Finding]:
    """A loss lower than any text allows.

    What it sees: the last tenth of the training losses, or of the validation losses, is below 0.1 nats per token; or
    below 0.3 where the tokens are BPE tokens, as the vocabulary or the first loss (above 9) says. Only for runs from
    scratch. Of training losses it says nothing where `overfitting` is found: then that is the reason.

    Why it matters: text is not that predictable. The answer is in the input (targets that are not shifted, a missing
    causal mask), or the model has memorised a few documents, or validation reads the training data.

    What to do: look at one batch and its targets; the targets are the input shifted by one, and no position may see a
    later one. Then look at the size of the data.

    When it is wrong: for data that is not text (sums, tables, repeated patterns), and where you overfit one batch on
    purpose.
    """
    if not from_scratch(case) or zero_from(case):
        return
    first = next((loss for record, loss in every_loss(case) if record.step <= 1), 0.0)
    limit = LOWEST_OF_WORDS if of_words(case) or UNTRAINED < first < IMPOSSIBLE_LOSS else LOWEST
    for name, points in (("validation", vals(case)), ("training", training_losses(case))):
        last = points[-max(3, round(LAST_SHARE * len(points))) :]
        if len(last) < 3 or (level := median(loss for _, loss in last)) >= limit:
            continue
        if name == "training" and any(overfitting(case)):
            continue
        yield Finding(
            rule="loss-too-low",
            severity="warn",
            sure="medium",
            what=f"the {name} loss is {level:.3g} nats per token at the end: no text is that predictable",
            why="the answer leaks into the input, the labels are wrong, or the model has memorised its data"
            if name == "training"
            else "validation reads text that the model has seen, or the answer leaks into the input",
            fix="look at one batch: targets are the input shifted by one, and no position sees a later one; "
            "then at the size of the data",
            seen=_ends(last),
        )
        return


def _ends(points: Sequence[tuple[Step | Eval, float]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(shown(record) for record, _ in (points[0], points[-1])))


def unsteady_loss(case: Case) -> Iterator[Finding]:
    """A training loss that goes up and down far more than batches differ.

    What it sees: around the best curve that only falls, the losses of the last three quarters of the run span, from
    their 5th to their 95th percentile, more than twice what batches of so many tokens vary by in real runs: 3.6 nats
    for one sequence of 1,024 tokens, at least 1.0; 2.9 where nothing says how many, and 2.2 for losses that are as
    often at the ends of the span as in its middle, which noise is not. Or more than 0.5 in slow swings, which batches
    do not make (five times the noise from one loss to the next). Or more than 1.7 (2.5 if it looks like noise) while
    the loss is so high that next to nothing is learned. Where evaluations are steady (they vary by less than 0.1), only
    the batches differ, and it says nothing.

    Why it matters: single sequences of a text vary by about 0.4 nats, and a batch by less. More than that is a model
    that jumps: the learning rate is too high, or the data alternates between very different sources.

    What to do: a lower learning rate, grad_clip 1.0, more sequences per update; shuffle the documents.

    When it is wrong: for batches of one short sequence, and for data in blocks of very different text.
    """
    points = training_losses(case)
    losses = [loss for _, loss in points]
    found = swing(losses)
    evaluated = [val for _, val in vals(case)]
    evaluated = evaluated[len(evaluated) // 4 :]
    if found is None or (len(evaluated) >= 4 and noise_of(evaluated) < STEADY_EVALUATIONS):
        return
    later = points[len(points) // 4 :]
    width = found.width
    slow = len(later) >= FEWEST_POINTS // 2 and width > max(
        SLOW_SWING, SLOW * NINE_TENTHS * noise_around_slope([loss for _, loss in later])
    )
    unlearned = fmean(losses[len(losses) // 2 :]) > FREQUENCIES_ONLY * _guessing(case)[0]
    limit = _widest(case, like_noise=found.like_noise)
    if unlearned:
        limit = min(limit, WIDEST_NOISE_UNLEARNED if found.like_noise else WIDEST_SWING_UNLEARNED)
    if width <= limit and not slow:
        return
    lowest, highest = (choose(later, key=lambda point: point[1]) for choose in (min, max))
    yield Finding(
        rule="unsteady-loss",
        severity="warn",
        sure="medium",
        what=f"the training loss swings between {lowest[1]:.4g} and {highest[1]:.4g}, and does not settle",
        why=f"nine tenths of the losses span {width:.2f} nats around a falling curve; "
        + (f"batches alone make at most {limit:.2g}" if width > limit else "it swings slowly, which batches do not"),
        fix="a lower learning rate, grad_clip=1.0, more sequences per update; shuffle the documents",
        seen=tuple(shown(record) for record, _ in sorted((lowest, highest), key=lambda point: point[0].step)),
    )


def _widest(case: Case, *, like_noise: bool) -> float:
    """The widest swing that batches of this run explain: nanoGPT logs one micro-batch, the others a whole update."""
    config = known(case, "batch_size", "gradient_accumulation_steps", "block_size")
    if config is None:
        each = [step.seconds * (step.tokens_per_second or 0.0) for step in case.steps if step.seconds]
        large = bool(each) and case.run.format != "nanogpt" and median(each) >= LARGE_UPDATE  # nanoGPT logs a part
        return WIDEST_LIKE_NOISE if like_noise and not large else WIDEST_OF_UNKNOWN
    one_batch = case.run.format in ("nanogpt", "minimal")
    tokens = config.batch_size * config.block_size if one_batch else config.tokens_per_step
    noise = math.hypot(SEQUENCE_NOISE * math.sqrt(SEQUENCE_TOKENS / tokens), UPDATE_NOISE)
    return max(WIDEST_SWING_OF_BATCH, MORE_THAN_REAL * NINE_TENTHS * noise)


HUGE_NORM, ABSURD_NORM = 1e3, 1e6  # norms of healthy runs are 0.1 to 10, and below 100 at the start
VANISHING_NORM = 1e-6
OFTEN = 0.05  # of the updates
LEAST_NORMS = 5


def gradient_norms(case: Case) -> list[Step]:
    """Logged updates after the first few that say their gradient norm, where it is a number."""
    return [s for s in case.steps if s.grad_norm is not None and math.isfinite(s.grad_norm) and s.step > 10]


def gradient_norm(case: Case) -> Iterator[Finding]:
    """Gradients that are far too large, or nearly zero.

    What it sees: gradient norms (before clipping) above 1,000 in the median or in one update of twenty: a warning,
    above 1,000,000 an error; or a median below 0.000001. The first ten updates are left out.

    Why it matters: healthy norms are 0.1 to 10. With clipping, an update with a norm of a million goes in a direction
    that one bad batch decided; without, it destroys the weights. A norm near zero means that nothing is learned.

    What to do: look at the data and the targets of those updates, the initialisation and the loss scale; a lower
    learning rate and grad_clip 1.0.

    When it is wrong: where a program prints norms that are multiplied by a loss scale, or sums over the micro-batches.
    """
    steps = gradient_norms(case)
    if len(steps) < LEAST_NORMS:
        return
    norms = sorted(step.grad_norm or 0.0 for step in steps)
    middle = median(norms)
    often = norms[-max(3, math.ceil(OFTEN * len(norms)))]  # so many are at least as large
    typical = max(middle, often)
    if middle >= VANISHING_NORM and typical <= HUGE_NORM:
        return
    config = known(case, "grad_clip")
    patch: dict[str, object] = {"grad_clip": 1.0} if config and not 0 < config.grad_clip <= 1 else {}
    small = middle < VANISHING_NORM and typical <= HUGE_NORM
    largest = max(steps, key=lambda step: step.grad_norm or 0.0)
    seen = steps[-1] if small else largest
    yield Finding(
        rule="gradient-norm",
        severity="error" if typical > ABSURD_NORM else "warn",
        sure="high" if typical > ABSURD_NORM else "medium",
        what=f"the gradient norm is {middle:.2g}: nothing is learned"
        if small
        else f"the gradient norm is {_norm(typical)} "
        + ("in half of the updates" if middle == typical else "or more in one update of twenty")
        + f", {_norm(norms[-1])} at most",
        why="healthy norms are 0.1 to 10" + ("" if small else "; the updates follow single bad batches"),
        fix=_LOOK
        if small
        else "look at the data of those updates and the initialisation; lower the learning rate"
        + (", --grad_clip=1.0" if patch else ""),
        seen=(f"{place(case, seen)}: gradient norm {seen.grad_norm:.4g}", shown(seen)),
        patch={} if small else patch,
    )


def _norm(value: float) -> str:
    return f"{value:,.0f}" if value < 1e7 else f"{value:.1e}"
