"""Rules about the card itself, as its sensors showed it while the run updated."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from statistics import median

from onecard import units
from onecard.doctor.card_readings import (
    LEAST,
    Cost,
    Readings,
    Watched,
    cost,
    known,
    parted,
    shown,
    slowed_by,
    usual,
    watched,
)
from onecard.doctor.case import Case
from onecard.doctor.needs import needs
from onecard.findings import Finding, Severity, Sureness
from onecard.runs.records import CardReading, Oom
from onecard.units import GIB

LOST = 0.03  # of the time of the run, from which it is a warning
OFTEN = 0.2  # of the readings, from which a state is a warning where its cost is not known
BELOW = 0.95  # of a power limit: another limit was set
OTHERS_BUSY, OTHERS_QUIET = 0.1, 0.05  # of the card's time: a desktop takes a few percent
GROWN_BYTES = GIB  # by other programs, in the run
SLOW_LINK = 0.6  # of the bytes per second that card and machine can do: a step down is half
ALWAYS = 0.9  # of the readings
QUARTERS, LEAST_CLOCKS = 4, 20
DROPPED = 0.9  # of the clock earlier in the run: a card that gets warm loses 2 to 5 %
NOT_SHOWN = "what it costs is not in the records: it was so in nearly every reading"


def _weight(affected: Readings, others: Readings, lost: Cost | None) -> tuple[Severity, Sureness]:
    """How bad a state of the card is: by the time that the whole run lost to it, where the records show that."""
    share = len(affected) / (len(affected) + len(others))
    if lost is None:
        return ("warn" if share >= OFTEN else "info"), "medium"
    return ("warn" if lost.share * share >= LOST else "info"), "high"


def _share(affected: Readings, others: Readings) -> str:
    return f"in {len(affected)} of {len(affected) + len(others)} readings"


def _evidence(affected: Readings, others: Readings) -> tuple[str, ...]:
    return tuple(shown(group[len(group) // 2]) for group in (affected, others) if group)


def _clocks(affected: Readings, others: Readings) -> str:
    slow, fast = usual(affected, "sm_clock_mhz"), usual(others, "sm_clock_mhz")
    if slow is None:
        return "its clock is not told"
    return f"its clock is {slow:,.0f} MHz then" + (f", and {fast:,.0f} MHz otherwise" if fast is not None else "")


@needs(formats=("onecard",))
def card_too_hot(case: Case) -> Iterator[Finding]:
    """A card that lowers its clock because it is hot.

    What it sees: in a run of onecard's, at least five readings of the card's sensors that give heat as the reason for a
    lower clock. A warning where the run lost more than 3 % of its time to it. Where that cannot be measured, because it
    was nearly always so, it takes a fifth of the readings.

    Why it matters: updates take longer for nothing, and a card that runs at its highest temperature wears.

    What to do: clean the fans, give the case air, raise the fan speed; or a lower power limit, with which it stays
    cooler (nvidia-smi -pl WATTS).

    When it is wrong: memory and hot spots have sensors of their own that NVML does not show: the temperature here may
    look harmless. Where updates are not slower in those readings, it is only a note.
    """
    for each in watched(case):
        hot, others = parted(each.readings, "throttle", slowed_by("heat"))
        if len(hot) < LEAST:
            continue
        lost = cost(case, hot, others)
        severity, sure = _weight(hot, others, lost)
        celsius = usual(hot, "temperature_c")
        at = f", at {celsius:.0f} °C" if celsius is not None else ""
        yield Finding(
            rule="card-too-hot",
            severity=severity,
            sure=sure,
            what=f"{each.name} lowers its clock because it is hot: {_share(hot, others)}{at}; {lost or NOT_SHOWN}",
            why=_clocks(hot, others),
            fix="clean its fans, give the case air or raise the fan speed; or set a lower power limit, with which it "
            "stays cooler: sudo nvidia-smi -pl WATTS",
            seen=_evidence(hot, others),
        )


@needs(formats=("onecard",))
def power_limit(case: Case) -> Iterator[Finding]:
    """A card that gets less power than it could have.

    What it sees: in a run of onecard's, a power limit that became lower while the run trained; a limit below the one
    that the card is sold with, and a card that is held by it in half of the readings; or a hardware brake, which a
    power supply pulls. A warning where the run lost more than 3 % of its time to it, or where nobody can know.

    Why it matters: with less power the clock is lower, and updates take longer. A laptop does this on its battery.

    What to do: nvidia-smi -q -d POWER shows the limits, sudo nvidia-smi -pl WATTS sets one; plug the charger in; check
    the power cables of the card.

    When it is wrong: a card at its own limit all the time is not sick: large products take all the power there is, and
    nothing is reported. Somebody may have set a lower limit on purpose, for less noise and heat.
    """
    for each in watched(case):
        yield from _braked(case, each)
        yield from _lowered_limit(case, each)


def _braked(case: Case, each: Watched) -> Iterator[Finding]:
    def by_hardware(reading: CardReading) -> bool:
        return slowed_by("power brake", "hardware slowdown")(reading) and not slowed_by("heat")(reading)

    braked, others = parted(each.readings, "throttle", by_hardware)
    if len(braked) < LEAST:
        return
    lost = cost(case, braked, others)
    severity, sure = _weight(braked, others, lost)
    yield Finding(
        rule="power-limit",
        severity=severity,
        sure=sure,
        what=f"the hardware holds {each.name} back, and not for heat: {_share(braked, others)}; {lost or NOT_SHOWN}",
        why=f"a power supply that is too weak, or a cable, does this; {_clocks(braked, others)}",
        fix="check the card's power cables, and whether the power supply is strong enough; on a laptop, the charger",
        seen=_evidence(braked, others),
    )


def _lowered_limit(case: Case, each: Watched) -> Iterator[Finding]:
    limits = known(each.readings, "power_limit_watts")
    if not limits:
        return
    highest = max(limits)
    low, others = parted(
        each.readings, "power_limit_watts", lambda reading: (reading.power_limit_watts or 0) < BELOW * highest
    )
    if len(low) >= LEAST and len(others) >= LEAST:
        lost = cost(case, low, others)
        severity, sure = _weight(low, others, lost)
        watts = usual(low, "power_limit_watts") or 0
        again = "" if low[-1].step > others[-1].step else f", and is {limits[-1]:.0f} W again"
        yield Finding(
            rule="power-limit",
            severity=severity,
            sure=sure,
            what=f"the power limit of {each.name} was {watts:.0f} W instead of {highest:.0f} W {_share(low, others)}"
            f"{again}; {lost or 'what it costs is not in the records'}",
            why=_clocks(low, others),
            fix="on a laptop: plug the charger in, and choose the power profile for performance; else: "
            f"sudo nvidia-smi -pl {highest:.0f}",
            seen=_evidence(low, others),
        )
        return
    sold_with = usual(each.readings, "default_power_limit_watts")
    held, free = parted(each.readings, "throttle", slowed_by("power limit"))
    now = median(limits)
    if sold_with is None or now >= BELOW * sold_with or len(held) < max(LEAST, len(free)):
        return
    yield Finding(
        rule="power-limit",
        severity="info",
        sure="high",
        what=f"{each.name} may take {now:.0f} W, and is sold with {sold_with:.0f} W",
        why=f"it is at that limit {_share(held, free)}; {_clocks(held, free)}; what more power would bring is not in "
        "the records",
        fix=f"nothing, if it was set on purpose (noise, heat); else: sudo nvidia-smi -pl {sold_with:.0f}",
        seen=_evidence(held, free),
    )


@needs(formats=("onecard",))
def card_shared(case: Case) -> Iterator[Finding]:
    """Other programs that use the card while the run trains.

    What it sees: in a run of onecard's, other programs' kernels in more than a tenth of the card's time, in at least
    five readings; or 1 GiB more of the card's memory in their hands than before, while the run trained. A warning where
    the run lost more than 3 % of its time to it, or ran out of memory after it.

    Why it matters: two programs take turns on a card, and each turn of the other one is lost. Memory costs no speed,
    but the run may have to go on with smaller micro-batches.

    What to do: nvidia-smi names the programs; close them, or start them when the run is done.

    When it is wrong: drivers on Windows and in containers do not say what is whose; then nothing is seen. A desktop
    takes a few percent, which is left out.
    """
    for each in watched(case):
        yield from _time_taken(case, each)
        yield from _memory_taken(case, each)


def _time_taken(case: Case, each: Watched) -> Iterator[Finding]:
    busy, others = parted(each.readings, "other_busy", lambda reading: (reading.other_busy or 0) >= OTHERS_BUSY)
    if len(busy) < LEAST:
        return
    quiet = [reading for reading in others if (reading.other_busy or 0) < OTHERS_QUIET]
    lost = cost(case, busy, quiet)
    severity, sure = _weight(busy, others, lost)
    yield Finding(
        rule="card-shared",
        severity=severity,
        sure=sure,
        what=f"other programs took {usual(busy, 'other_busy') or 0:.0%} of the time of {each.name} "
        f"{_share(busy, others)}; {lost or NOT_SHOWN}",
        why="two programs take turns on a card: the run waits while the other one computes",
        fix="nvidia-smi names the programs: close them, or start them when the run is done",
        seen=tuple(
            f"step {reading.step:,}: other programs take {reading.other_busy:.0%} of the time"
            for reading in (busy[len(busy) // 2], *quiet[len(quiet) // 2 :][:1])
        ),
    )


def _memory_taken(case: Case, each: Watched) -> Iterator[Finding]:
    telling = [reading for reading in each.readings if reading.other_bytes is not None]
    if len(telling) < 2 * LEAST:
        return
    before = median(known(telling[:LEAST], "other_bytes"))
    grown, _ = parted(telling, "other_bytes", lambda reading: (reading.other_bytes or 0) >= before + GROWN_BYTES)
    if len(grown) < LEAST:
        return
    first, most = grown[0], usual(grown, "other_bytes") or 0
    failed = [record for record in case.run.records if isinstance(record, Oom) and record.step >= first.step]
    shrunk = f"; the run ran out of memory at step {failed[0].step:,}" if failed else ", which costs no speed by itself"
    yield Finding(
        rule="card-shared",
        severity="warn" if failed else "info",
        sure="high",
        what=f"other programs hold {units.gib(round(most))} of the memory of {each.name} since step {first.step:,}, "
        f"{units.gib(round(most - before))} more than before{shrunk}",
        why="the memory that others hold is not there for the run",
        fix="nvidia-smi names the programs: close them, or plan for what is left: onecard plan CONFIG --other "
        f"{units.as_typed(round(most))}",
        seen=tuple(
            f"step {reading.step:,}: other programs hold {units.mib(reading.other_bytes or 0)}"
            for reading in (telling[0], first)
        ),
    )


@needs(formats=("onecard",))
def slow_pcie_link(case: Case) -> Iterator[Finding]:
    """A link to the card that is slower than both its ends.

    What it sees: in a run of onecard's, a PCIe link with less than 60 % of the bytes per second that the card and this
    machine can do, in nine of ten readings while the card worked. A warning for several cards.

    Why it matters: several cards send their gradients over the link in every update. One card alone reads a few
    megabytes of tokens, and hardly feels it.

    What to do: seat the card again, without a riser cable; use the slot next to the processor; look at the slot's
    settings in the BIOS.

    When it is wrong: a card at rest lowers its link, which is normal; only readings under load count. A board may give
    half of the lanes to a second card or a disk on purpose.
    """
    cards = list(watched(case))
    for each in cards:
        telling = [reading for reading in each.readings if _link(reading) is not None and _surely_at_work(reading)]
        slow = [reading for reading in telling if (_link(reading) or 1.0) < SLOW_LINK]
        if len(slow) < max(LEAST, ALWAYS * len(telling)):
            continue
        seen = slow[len(slow) // 2]
        several = len(cards) > 1
        yield Finding(
            rule="slow-pcie-link",
            severity="warn" if several else "info",
            sure="high",
            what=f"{each.name} is linked by PCIe {seen.pcie_generation} x{seen.pcie_width}, and could be by PCIe "
            f"{seen.max_pcie_generation} x{seen.max_pcie_width}",
            why="gradients go over this link in every update; how long they take is not in the records"
            if several
            else "one card alone reads a few megabytes of tokens in an update, so this hardly costs speed",
            fix="seat the card again, without a riser cable, in the slot next to the processor"
            + ("" if several else "; nothing, if you train on one card"),
            seen=tuple(
                f"step {reading.step:,}: PCIe {reading.pcie_generation} x{reading.pcie_width}"
                for reading in (slow[0], slow[-1])
            ),
        )


def _link(reading: CardReading) -> float | None:
    """The share of the bytes per second that the link could have: each generation doubles them."""
    now, most = (reading.pcie_generation, reading.pcie_width), (reading.max_pcie_generation, reading.max_pcie_width)
    if now[0] is None or now[1] is None or most[0] is None or most[1] is None:
        return None
    return float(2.0 ** (now[0] - most[0]) * now[1] / most[1])


def _surely_at_work(reading: CardReading) -> bool:
    """Whether the card itself says so: only then is its link a sign."""
    return reading.busy is not None or reading.power_watts is not None


@needs(formats=("onecard",))
def clocks_drop(case: Case) -> Iterator[Finding]:
    """A clock that becomes lower over the run.

    What it sees: in a run of onecard's, a clock of the card in the last quarter of its readings more than 10 % below
    that of an earlier quarter, where neither heat nor another power limit explains it. A warning where updates became
    more than 3 % slower.

    Why it matters: the same updates take longer, and nothing in the run has changed.

    What to do: look at the fans, the power supply and the driver's settings (nvidia-smi -q -d CLOCK,PERFORMANCE); on a
    laptop at the charger and the power profile.

    When it is wrong: a card that gets warm loses 2 to 5 %, which is normal and left out. Somebody may have set the
    clocks.
    """
    for each in watched(case):
        telling = [reading for reading in each.readings if reading.sm_clock_mhz is not None]
        if len(telling) < LEAST_CLOCKS:
            continue
        edges = [round(len(telling) * number / QUARTERS) for number in range(QUARTERS + 1)]
        *earlier, last = (telling[first:after] for first, after in pairwise(edges))
        best = max(earlier, key=lambda quarter: usual(quarter, "sm_clock_mhz") or 0)
        high, low = usual(best, "sm_clock_mhz") or 0, usual(last, "sm_clock_mhz") or 0
        if low >= DROPPED * high or _explained(best, last):
            continue
        lost = cost(case, last, best)
        reasons = sorted({reason for reading in last for reason in reading.throttle or ()})
        yield Finding(
            rule="clocks-drop",
            severity="warn" if lost is None or lost.share >= LOST else "info",
            sure="medium" if lost is None else "high",
            what=f"the clock of {each.name} fell from {high:,.0f} to {low:,.0f} MHz; "
            f"{lost or 'what it costs is not in the records'}",
            why=f"the driver gives a reason: {' and '.join(reasons)}"
            if reasons
            else "the driver gives no reason: neither heat nor power",
            fix="look at fans, power supply and driver settings: nvidia-smi -q -d CLOCK,PERFORMANCE; on a laptop, "
            "at the charger",
            seen=_evidence(last, best),
        )


def _explained(before: Readings, after: Readings) -> bool:
    """Whether heat, a brake or a lower power limit explains a lower clock: other rules tell that."""
    others = [reading for reading in after if slowed_by("heat", "power brake", "hardware slowdown")(reading)]
    limit_before, limit_after = usual(before, "power_limit_watts"), usual(after, "power_limit_watts")
    lowered = limit_before is not None and limit_after is not None and limit_after < BELOW * limit_before
    return lowered or 2 * len(others) >= len(after)
