"""The rule about training losses that jump up, and how it tells a jump from noise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from onecard.doctor.case import Case
from onecard.doctor.course import SIGMA_PER_MAD, noise_of
from onecard.doctor.evidence import above, known, only_told, place, shown
from onecard.findings import Finding
from onecard.runs.records import Step

WINDOW, LEAST, NEXT = 20, 5, 10  # logged points before a spike, the fewest that will do, and those after it
SIGMAS = 6
# Where the median of the next ten is as high, too. 2 of 6,000 healthy made runs reach it, at 3 there were 8; at 4, 6 of
# 600 jumps by 4 nats that stay are not found, at 3.5 two.
LASTING_SIGMAS = 3.5
SMALLEST_SPIKE = 0.3  # nats
# A spike that comes back is still told as a warning where no hard batch makes it: so high, or so long.
RECENT, RECENT_SIGMAS, RECENT_LEAST = 6, 12, 2.0  # points, standard deviations, nats
# Nats and standard deviations of a loss, by the points that all lie so far above; real losses reach 7.8 by chance.
GRAVE = {1: (3.5, 28), 2: (2.5, 7), 3: (1.0, 6)}


@dataclass(frozen=True, kw_only=True)
class Spike:
    """A loss that stands out from those before it."""

    step: Step
    previous: Step  # the logged step before it
    before: float  # median
    height: float
    recovered: bool | None  # None: too few points after it to say
    grave: bool  # so high, or for so many points, that no hard batch makes it, even if the loss comes back


def high(losses: list[float], *, sigmas: float, least: float, noise: float = 0.0) -> float:
    """What a loss after `losses` may be before it stands out; they are few, so their noise is `noise` at least."""
    middle = median(losses)
    mad = median(abs(loss - middle) for loss in losses)
    return middle + max(sigmas * max(SIGMA_PER_MAD * mad, noise), least)


def spikes(steps: Sequence[Step]) -> Iterator[Spike]:
    """The spikes among logged steps, in order."""
    finite = [step for step in steps if math.isfinite(step.loss)]
    losses = [step.loss for step in finite]
    noise = noise_of(losses)
    until = 0  # points that belong to the spike before
    for position in range(LEAST, len(losses)):
        window = losses[max(0, position - WINDOW) : position]
        if position < until or losses[position] - min(window) <= SMALLEST_SPIKE:
            continue
        following = losses[position + 1 : position + 1 + NEXT]
        # a loss that falls steeply spreads the window: then the last few points say more
        recent = high(window[-RECENT:], sigmas=RECENT_SIGMAS, least=RECENT_LEAST, noise=noise)
        stays = min(recent, high(window, sigmas=LASTING_SIGMAS, least=SMALLEST_SPIKE, noise=noise))
        recovered = None if len(following) < LEAST else median(following) <= stays
        limit = stays if recovered is False else min(recent, high(window, sigmas=SIGMAS, least=SMALLEST_SPIKE))
        if not above(losses[position], limit):
            continue
        yield Spike(
            step=finite[position],
            previous=finite[position - 1],
            before=median(window),
            height=losses[position] - median(window),
            recovered=recovered,
            grave=any(
                min(losses[position : position + points]) - median(window) > max(least, sigmas * noise)
                for points, (least, sigmas) in GRAVE.items()
                if position + points <= len(losses)
            ),
        )
        until = position + (1 if recovered else NEXT)


def loss_spike(case: Case) -> Iterator[Finding]:
    """A training loss that jumps up.

    What it sees: a logged loss above the median of up to 20 points before it (at least 5) by more than six robust
    standard deviations (6 x 1.4826 x the median absolute deviation) and by more than 0.3 nats. If the median of the
    next ten is not above by more than 3.5, it has recovered and is only a note, unless no
    hard batch makes it: 3.5 nats for a point, 2.5 for two, or 1 for three. If it is, 3.5 are enough for the loss.

    Why it matters: a spike that stays costs the progress of many updates, and often comes before divergence.

    What to do: grad_clip 1.0, a lower learning rate, a higher beta2 if the batch is small; look at the data there.

    When it is wrong: nanoGPT logs the loss of one micro-batch, which is noisy: a single high point is not a spike of
    the run. With fewer than five points after it, it is too early to say: it is only a note.
    """
    found = list(spikes(case.steps))
    if not found:
        return
    lasting = [spike for spike in found if spike.recovered is False or spike.grave]
    worst = max(lasting or found, key=lambda spike: spike.height)
    many = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    told_only = worst.recovered is None and not lasting
    if worst.recovered is False:
        outcome = "and the next ten do not come back"
    elif worst.recovered:
        outcome = "and is back within ten logged points"
    else:
        outcome = "at the end of the log: too early to say whether it stays"
    patch: dict[str, object] = {}
    config = known(case, "grad_clip")
    if lasting and config and not 0 < config.grad_clip <= 1:
        patch = {"grad_clip": 1.0}
    finding = Finding(
        rule="loss-spike",
        severity="warn" if lasting else "info",
        sure="low" if told_only else "medium",
        what=f"the loss jumps by {worst.height:.2f} to {worst.step.loss:.4f} at {place(case, worst.step)}{many}, "
        f"{outcome}",
        why=f"the median of the {WINDOW} points before is {worst.before:.4f}; noise does not reach that far",
        fix="grad_clip=1.0, a lower learning rate, or a higher beta2; look at the data of that step"
        if lasting
        else "nothing to do while it comes back; if spikes become more frequent, lower the learning rate",
        seen=(shown(worst.previous), shown(worst.step)),
        patch=patch,
    )
    yield only_told(finding, "too few points follow to see whether it stays") if told_only else finding
