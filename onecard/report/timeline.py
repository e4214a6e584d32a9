"""A chart of memory during one training step and one evaluation, stacked by part, drawn from the allocation events."""

from __future__ import annotations

from collections.abc import Iterator

from onecard.paper.tape import Tape, changes
from onecard.plan.memory.predict import Memory
from onecard.plan.plan import Plan
from onecard.report.chart import BAND_COLOURS, SOFT, Frame, picture, words_at
from onecard.report.markup import Markup, element
from onecard.report.summary import TRAINER_NAMES
from onecard.units import MIB, mib

WIDTH, HEIGHT = 1100, 560
LEFT, RIGHT, TOP, BOTTOM = 80, 270, 60, 70
COLUMNS = 800
NAME_HEIGHT = 24

Column = tuple[int, dict[str, int]]  # event, bytes by tag


def timeline_of(plan: Plan) -> str:
    """The chart of a plan as SVG text: its run under nanoGPT, unless only onecard was asked for."""
    trainer = TRAINER_NAMES["nanogpt" if plan.nanogpt else "onecard"]
    return timeline_svg(plan.first.memory, title=f"{plan.resolved.source or 'packaged default'} under {trainer}")


def timeline_svg(memory: Memory, *, title: str) -> str:
    """The chart as SVG text, headed `Predicted memory of {title}`."""
    tape = memory.tape
    start, evaluation = _last_step(tape)
    columns = list(_columns(tape, start))
    tags = _by_size(columns)
    peak_event, peak = max(columns, key=lambda column: sum(column[1].values()))
    top = sum(peak.values())
    allocated = memory.phases["train" if peak_event < evaluation else "eval"].allocated_bytes
    frame = Frame(
        left=LEFT,
        top=TOP,
        right=WIDTH - RIGHT,
        floor=HEIGHT - BOTTOM,
        x=(start, max(start + 1, len(tape.events))),
        y=(0, top * 1.05),
    )
    body = [*frame.rows(lambda size: f"{size / MIB:,.0f}", _sizes(top))]
    body.append(words_at(LEFT - 8, TOP - 12, "MiB", anchor="end"))
    base = dict.fromkeys((event for event, _ in columns), 0)
    for number, tag in enumerate(tags):
        lower = list(base.items())
        for event, sizes in columns:
            base[event] += sizes.get(tag, 0)
        points = frame.path([*base.items(), *reversed(lower)])
        body.append(element("polygon", element("title", tag), points=points, fill=_colour(number)))
    body += _names(tags, peak, rounding_bytes=allocated - top)
    middle, _ = frame.at(evaluation, 0)
    across = f"{middle:.1f}"
    body.append(element("line", x1=across, y1=TOP, x2=across, y2=frame.floor, stroke="#333", stroke_dasharray="4 3"))
    body.append(words_at(LEFT, frame.floor + 24, "one training step"))
    body.append(words_at(middle + 4, frame.floor + 24, "one evaluation"))
    order = "left to right: allocations and frees in order (not time)"
    body.append(words_at(LEFT, frame.floor + 46, order, fill=SOFT))
    px, py = frame.at(peak_event, top)
    body.append(element("circle", cx=f"{px:.1f}", cy=f"{py:.1f}", r=4, fill="none", stroke="#000", stroke_width=2))
    said = f"peak {mib(allocated)}: {tape.moment_at(peak_event)}"
    body.append(words_at(min(px, frame.right - 330), py - 10, said, weight="bold"))
    body.append(words_at(LEFT, 24, f"Predicted memory of {title}", size=16, weight="bold"))
    return f"{picture(*body, width=WIDTH, height=HEIGHT)}\n"


def _last_step(tape: Tape) -> tuple[int, int]:
    """The first event of the last training step, and of the evaluation after it."""
    evaluation = tape.phases[-1][0]
    updates = [number for number, (_, what) in enumerate(tape.moments) if what == "optimizer step"]
    return tape.moments[updates[-2] + 1][0], evaluation


def _columns(tape: Tape, start: int) -> Iterator[Column]:
    """Bytes by tag at up to COLUMNS events from `start` on. Each column is the peak of its stretch of events."""
    stride = max(1, (len(tape.events) - start) // COLUMNS)
    alive: dict[str, int] = {}
    total, best, at, column = 0, -1, 0, 0
    kept: dict[str, int] = {}
    for index, tag, size in changes(tape):
        alive[tag] = alive.get(tag, 0) + size
        total += size
        if index < start:
            continue
        if (index - start) // stride != column and best >= 0:
            yield at, kept
            column, best = (index - start) // stride, -1
        if total > best:
            best, at, kept = total, index, dict(alive)
    if best >= 0:
        yield at, kept


def _by_size(columns: list[Column]) -> list[str]:
    """Tags, the steadiest at the bottom: ordered by their lowest size, then by their highest."""
    names = {tag for _, sizes in columns for tag in sizes}
    least = {tag: min(sizes.get(tag, 0) for _, sizes in columns) for tag in names}
    most = {tag: max(sizes.get(tag, 0) for _, sizes in columns) for tag in names}
    return sorted((tag for tag in names if most[tag] >= MIB), key=lambda tag: (-least[tag], -most[tag], tag))


def _sizes(top: int) -> range:
    """The sizes at which lines are drawn: whole powers of two of a MiB apart, at most ten."""
    step = next(s for s in (64, 128, 256, 512, 1024, 2048, 4096, 8192, 2**20) if top / MIB / s <= 10) * MIB
    return range(0, top + 1, step)


def _colour(number: int) -> str:
    return BAND_COLOURS[number % len(BAND_COLOURS)]


def _names(tags: list[str], peak: dict[str, int], *, rounding_bytes: int) -> Iterator[Markup]:
    """Names next to the chart, in the order of the bands, with their size at the peak."""
    left = WIDTH - RIGHT + 34
    yield words_at(left, TOP - 12, "MiB at the peak", fill=SOFT)
    for row, (number, tag) in enumerate(reversed([*enumerate(tags)])):
        y = TOP + 10 + row * NAME_HEIGHT
        yield element("rect", x=left - 20, y=y - 10, width=14, height=14, fill=_colour(number), stroke="#333")
        yield words_at(left, y + 2, f"{tag}: {peak.get(tag, 0) / MIB:,.0f}")
    if rounding_bytes >= MIB:
        below = TOP + 12 + NAME_HEIGHT * len(tags)
        yield words_at(left, below, f"block rounding, not drawn: {rounding_bytes / MIB:,.0f}")
