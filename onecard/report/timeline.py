"""A chart of memory during one training step and one evaluation, stacked by part, drawn from the allocation events."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from onecard.paper.tape import Tape, changes
from onecard.plan.memory.predict import Memory
from onecard.report.markup import Markup, element, picture, words_at
from onecard.units import MIB, mib

WIDTH, HEIGHT = 1100, 560
LEFT, RIGHT, TOP, BOTTOM = 80, 270, 60, 70
COLUMNS = 800
# Neighbouring bands also differ in lightness, and each has its name: nothing is shown by colour alone.
COLOURS = (
    *("#1b4f72", "#aed6f1", "#1e8449", "#a9dfbf", "#7d6608", "#f9e79f"),
    *("#78281f", "#f5b7b1", "#4a235a", "#d7bde2", "#424949", "#ccd1d1"),
)

Column = tuple[int, dict[str, int]]  # event, bytes by tag


def timeline_svg(memory: Memory, *, title: str) -> str:
    """The chart as SVG text, headed `Predicted memory of {title}`."""
    tape = memory.tape
    start, evaluation = _last_step(tape)
    columns = list(_columns(tape, start))
    tags = _by_size(columns)
    peak_event, peak = max(columns, key=lambda column: sum(column[1].values()))
    top = sum(peak.values())
    allocated = memory.phases["train" if peak_event < evaluation else "eval"].allocated_bytes
    right, floor = WIDTH - RIGHT, HEIGHT - BOTTOM

    def x(event: int) -> float:
        return LEFT + (event - start) * (right - LEFT) / max(1, len(tape.events) - start)

    def y(size: int) -> float:
        return floor - size * (floor - TOP) / (top * 1.05)

    body = [*_axis(top, y, right)]
    base = dict.fromkeys((event for event, _ in columns), 0)
    for number, tag in enumerate(tags):
        lower = [(x(event), y(base[event])) for event, _ in columns]
        for event, sizes in columns:
            base[event] += sizes.get(tag, 0)
        upper = [(x(event), y(base[event])) for event, _ in columns]
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in [*upper, *reversed(lower)])
        colour = COLOURS[number % len(COLOURS)]
        body.append(element("polygon", element("title", tag), points=points, fill=colour))
    body += _names(tags, peak, right)
    if (rounding := allocated - top) >= MIB:
        below = TOP + 12 + 24 * len(tags)
        body.append(words_at(right + 34, below, f"block rounding, not drawn: {rounding / MIB:,.0f} at the peak"))
    middle = x(evaluation)
    across = f"{middle:.1f}"
    body.append(element("line", x1=across, y1=TOP, x2=across, y2=floor, stroke="#333", stroke_dasharray="4 3"))
    body.append(words_at(LEFT, floor + 24, "one training step"))
    body.append(words_at(middle + 4, floor + 24, "one evaluation"))
    body.append(words_at(LEFT, floor + 46, "left to right: allocations and frees in order (not time)", fill="#555"))
    px, py = x(peak_event), y(top)
    body.append(element("circle", cx=f"{px:.1f}", cy=f"{py:.1f}", r=4, fill="none", stroke="#000", stroke_width=2))
    body.append(
        words_at(min(px, right - 330), py - 10, f"peak {mib(allocated)}: {tape.moment_at(peak_event)}", weight="bold")
    )
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


def _axis(top: int, y: Callable[[int], float], right: int) -> Iterator[Markup]:
    step = next(s for s in (64, 128, 256, 512, 1024, 2048, 4096, 8192, 2**20) if top / MIB / s <= 10) * MIB
    for size in range(0, top + 1, step):
        height = y(size)
        yield element("line", x1=LEFT, y1=f"{height:.1f}", x2=right, y2=f"{height:.1f}", stroke="#ddd")
        yield words_at(LEFT - 8, height + 4, f"{size // MIB:,}", anchor="end")
    yield words_at(LEFT - 8, TOP - 12, "MiB", anchor="end")


def _names(tags: list[str], peak: dict[str, int], right: int) -> Iterator[Markup]:
    """Names next to the chart, in the order of the bands, with their size at the peak."""
    spacing = 24
    for number, tag in enumerate(reversed(tags)):
        colour = COLOURS[(len(tags) - 1 - number) % len(COLOURS)]
        height = TOP + 10 + number * spacing
        yield element("rect", x=right + 14, y=height - 10, width=14, height=14, fill=colour, stroke="#333")
        yield words_at(right + 34, height + 2, f"{tag}: {peak.get(tag, 0) / MIB:,.0f} at the peak")
