"""Rules about the pace of a run: against its own past, against its plan, and what it waits for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from onecard import units
from onecard.config.schema import RunConfig
from onecard.doctor.case import Case
from onecard.doctor.evidence import known, place, said, shown
from onecard.doctor.facts import elapsed_seconds, plain_steps
from onecard.doctor.needs import CARD, needs, needs_settings
from onecard.doctor.repair import trainer_of
from onecard.findings import Finding
from onecard.plan.precision import with_dtype
from onecard.plan.speed import predict_speed
from onecard.runs.records import Step

# Thresholds are checked on made runs, sick and healthy: docs/measurements/doctor-rates.md
PARTS = 10  # of a run, whose median times are compared
LEAST_TIMES = 30  # logged updates with a time
SLOWER = 1.6  # times: cards that get hot, and growing attention windows, stay below 1.4
MUCH_SLOWER = 4
SLOWER_OF_SHORT, FEWEST_PARTS = 2, 5  # of a log with fewer times
OFF_PLAN = 2.5  # times slower than the lowest that the plan expects
WAITING, MOSTLY_WAITING = 0.2, 0.5  # of the time
LEAST_SLOW = 3  # updates on either side
LEAST_WAITS = 10
LOOK_AT_THE_CARD = (
    "look at the card while it runs (nvidia-smi: temperature, clocks, other processes), the disk and the data"
)


def paces(case: Case) -> list[tuple[Step, float]]:
    """Seconds of single updates without evaluation, in order; where only the total is logged, its differences."""
    steps = plain_steps(case.run, case.resolved, case.steps, case.evals)
    times = [(step, step.seconds) for step in steps if step.seconds is not None]
    if times:
        return times
    logged = [(step, spent) for step in case.steps if isinstance(spent := elapsed_seconds(step), float)]
    return [
        (later, (b - a) / (later.step - earlier.step))
        for (earlier, a), (later, b) in pairwise(logged[1:])
        if later.step > earlier.step and math.isfinite(b - a) and b > a
    ]


def slowing_down(case: Case) -> Iterator[Finding]:
    """Updates that take longer than earlier in the same run.

    What it sees: the median time of an update in two tenths of the run, one after the other, is more than 1.6 times
    that of the fastest tenth; evaluations and the first update are left out. If the run is fast again at the end, it is
    only a note, unless a fifth of all time was lost. In a log with fewer than 30 updates it takes more than twice
    the time; with fewer than 15, that the last three or more all take more than four times as long as every one before.

    Why it matters: the same update does the same work. What takes longer is the machine: a hot card, another program, a
    slow disk, memory that spills to the host.

    What to do: look at nvidia-smi while it runs (temperature, clocks, other processes), the disk and the data loader.

    When it is wrong: where updates grow on purpose: longer sequences, larger batches or attention windows later in the
    run.
    """
    times = paces(case)
    parts = min(PARTS, len(times) // LEAST_SLOW)
    if parts < FEWEST_PARTS:
        yield from _suddenly_slow(case, times)
        return
    slower = SLOWER if len(times) >= LEAST_TIMES else SLOWER_OF_SHORT
    edges = [round(len(times) * number / parts) for number in range(parts + 1)]
    middles = [median(seconds for _, seconds in times[first:after]) for first, after in pairwise(edges)]
    fastest = min(middles)
    since = middles.index(fastest)
    slow = [part for part in range(since + 2, parts) if min(middles[part - 1 : part + 1]) > slower * fastest]
    if not slow:
        return
    still = slow[-1] == parts - 1
    lost = sum(max(0.0, seconds - fastest) for _, seconds in times) / sum(seconds for _, seconds in times)
    times_longer = (middles[-1] if still else max(middles[part] for part in slow)) / fastest
    first, worst = times[edges[since]][0], times[edges[slow[-1]]][0]
    bad = still or lost > WAITING
    yield Finding(
        rule="slowing-down",
        severity="warn" if bad else "info",
        sure="high" if times_longer > MUCH_SLOWER else "medium",
        what=f"an update takes {times_longer:.2g} times as long as earlier in the run: "
        f"{times_longer * fastest:.3g} s, and {fastest:.3g} s then" + ("" if still else "; it was faster again later"),
        why=f"the same update does the same work; {lost:.0%} of the time is lost to it",
        fix=_look(case, times_longer),
        seen=(
            f"{place(case, first)}: {fastest:.4g} s per update",
            f"{place(case, worst)}: {times_longer * fastest:.4g} s per update",
            *(shown(step) for step in (first, worst)),
        ),
    )


def _suddenly_slow(case: Case, times: Sequence[tuple[Step, float]]) -> Iterator[Finding]:
    """The same of a log with few updates."""
    seconds = [each for _, each in times]
    for since in range(LEAST_SLOW, len(times) - LEAST_SLOW + 1):
        before, after = seconds[:since], seconds[since:]
        if min(after) <= MUCH_SLOWER * max(before):
            continue
        longer = median(after) / median(before)
        yield Finding(
            rule="slowing-down",
            severity="warn",
            sure="high",
            what=f"an update takes {longer:.2g} times as long from {place(case, times[since][0])} on: "
            f"{median(after):.3g} s, and {median(before):.3g} s before",
            why="the same update does the same work",
            fix=_look(case, longer),
            seen=tuple(shown(step) for step, _ in times[since - 1 : since + 1]),
        )
        return


def _look(case: Case, longer: float) -> str:
    """Where to look for what takes so much longer."""
    if case.cardless is not None:
        return "look at what else runs on this machine, and at the disk"
    spill = "; on Windows or WSL, whether memory spilled into the computer's own: a smaller micro-batch is fast again"
    return LOOK_AT_THE_CARD + (spill if longer > MUCH_SLOWER else "")


@needs_settings("batch_size", "block_size", "n_layer", "n_embd", "n_head", "dtype", "compile", also=(CARD,))
def slower_than_planned(case: Case, config: RunConfig) -> Iterator[Finding]:
    """A run far slower than its plan.

    What it sees: tokens per second more than 2.5 times below the lowest that `onecard plan` expects of this config on
    this card.

    Why it matters: the plan was checked against measured runs and is off by less than that. Something holds the card
    up: another program, a hot card, a slow disk, a laptop on battery, kernels that were not compiled.

    What to do: look at nvidia-smi while it runs; `onecard bench` measures the card without the data.

    When it is wrong: for the wrong card (--gpu), and for cards that share their memory or power with others.
    """
    measured = case.facts.tokens_per_second
    if case.card is None or case.cardless is not None or not measured or (case.run.world_size or 1) > 1:
        return
    speed = predict_speed(with_dtype(config, case.card), case.card, trainer_of(case))
    if speed is None or measured * OFF_PLAN >= speed.tokens_per_second.low:
        return
    expected = speed.tokens_per_second
    yield Finding(
        rule="slower-than-planned",
        severity="warn",
        sure="medium",
        what=f"{units.count(measured)} tokens/s; the plan expects {units.count(expected.low)} to "
        f"{units.count(expected.high)} on {case.card.name}",
        why=f"{expected.likely / measured:.2g} times slower: something other than the model holds it up",
        fix=LOOK_AT_THE_CARD,
        seen=(*(shown(step) for step in case.steps[-1:]), *said(case, "batch_size", "dtype", "compile")),
    )


def waits(case: Case) -> Sequence[Step]:
    """Updates that say how long they waited for data, without the first."""
    return [s for s in case.steps[1:] if s.data_wait_seconds is not None and s.seconds and math.isfinite(s.seconds)]


@needs(formats=("onecard",))
def waiting_for_data(case: Case) -> Iterator[Finding]:
    """A card that waits for its data.

    What it sees: in a run of onecard's, more than a fifth of the time of all updates is spent waiting for tokens from
    the disk.

    Why it matters: the card does nothing in that time. Reading tokens ahead should take none.

    What to do: put the data on a local disk, not on a network or a USB drive; look at what else reads from it.

    When it is wrong: in the first minutes of a run, while the files come into memory for the first time.
    """
    steps = waits(case)
    if len(steps) < LEAST_WAITS:
        return
    waited = math.fsum(step.data_wait_seconds or 0.0 for step in steps)
    share = waited / math.fsum(step.seconds or 0.0 for step in steps)
    if share <= WAITING:
        return
    worst = max(steps, key=lambda step: step.data_wait_seconds or 0.0)
    config = known(case, "dataset")
    yield Finding(
        rule="waiting-for-data",
        severity="warn",
        sure="high" if share > MOSTLY_WAITING else "medium",
        what=f"{share:.0%} of the time is spent waiting for data",
        why=f"{units.duration(waited)} in {len(steps):,} updates; the card does nothing in that time",
        fix="put the data" + (f" ({config.dataset})" if config else "") + " on a local disk, and look at what else "
        "reads from it",
        seen=(
            f"{place(case, worst)}: {worst.data_wait_seconds:.4g} s of {worst.seconds:.4g} s waiting for data",
            shown(worst),
        ),
    )
