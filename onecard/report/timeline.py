"""Memory during one training step and one evaluation by part, from the allocation events: as a chart, and as JSON."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from onecard.paper.tape import Tape, changes
from onecard.plan.memory.predict import BEFORE, Memory
from onecard.plan.plan import Plan
from onecard.report.chart import BAND_COLOURS, SOFT, Frame, picture, words_at
from onecard.report.markup import Markup, element
from onecard.report.summary import TRAINER_NAMES
from onecard.units import MIB, mib

WIDTH, HEIGHT = 1100, 560
LEFT, RIGHT, TOP, BOTTOM = 80, 270, 60, 70
COLUMNS = 800
JSON_COLUMNS = 300
EVALUATION_SHARE = 5  # of the columns one in this many: an evaluation repeats itself
UPDATE = "optimizer step"  # the moment that ends a training step
NAME_HEIGHT = 24

Column = tuple[int, dict[str, int]]  # event, bytes by tag


def timeline_of(plan: Plan) -> str:
    """The chart of a plan as SVG text: its run under nanoGPT, unless only onecard was asked for."""
    plan = plan.of_a_rank
    trainer = TRAINER_NAMES["nanogpt" if plan.nanogpt else "onecard"]
    return timeline_svg(plan.first.memory, title=f"{plan.resolved.source or 'packaged default'} under {trainer}")


def timeline_svg(memory: Memory, *, title: str) -> str:
    """The chart as SVG text, headed `Predicted memory of {title}`."""
    drawn = _drawn(memory, COLUMNS)
    tags, peak = _by_size(drawn.sizes), drawn.sizes[drawn.peak]
    top = sum(peak.values())
    frame = Frame(
        left=LEFT,
        top=TOP,
        right=WIDTH - RIGHT,
        floor=HEIGHT - BOTTOM,
        x=(0, len(drawn.sizes)),
        y=(0, top * 1.05),
    )
    body = [*frame.rows(lambda size: f"{size / MIB:,.0f}", _sizes(top))]
    body.append(words_at(LEFT - 8, TOP - 12, "MiB", anchor="end"))
    base = [0] * len(drawn.sizes)
    for number, tag in enumerate(tags):
        lower = list(enumerate(base))
        base = [below + sizes.get(tag, 0) for below, sizes in zip(base, drawn.sizes, strict=True)]
        points = frame.path([*enumerate(base), *reversed(lower)])
        body.append(element("polygon", element("title", tag), points=points, fill=_colour(number)))
    body += _names(tags, peak, rounding_bytes=drawn.peak_bytes - top)
    middle, _ = frame.at(drawn.evaluation, 0)
    across = f"{middle:.1f}"
    body.append(element("line", x1=across, y1=TOP, x2=across, y2=frame.floor, stroke="#333", stroke_dasharray="4 3"))
    if drawn.evaluation:
        body.append(words_at(LEFT, frame.floor + 24, "one training step"))
    body.append(words_at(middle + 4, frame.floor + 24, "one evaluation"))
    order = "left to right: allocations and frees in order (not time)"
    body.append(words_at(LEFT, frame.floor + 46, order, fill=SOFT))
    px, py = frame.at(drawn.peak, top)
    body.append(element("circle", cx=f"{px:.1f}", cy=f"{py:.1f}", r=4, fill="none", stroke="#000", stroke_width=2))
    said = f"peak {mib(drawn.peak_bytes)}: {drawn.moments[drawn.peak]}"
    body.append(words_at(min(px, frame.right - 330), py - 10, said, weight="bold"))
    body.append(words_at(LEFT, 24, f"Predicted memory of {title}", size=16, weight="bold"))
    return f"{picture(*body, width=WIDTH, height=HEIGHT)}\n"


def timeline_json(memory: Memory) -> dict[str, Any]:
    """The same for a page: bytes of each part by column, and what is happening there."""
    drawn = _drawn(memory, JSON_COLUMNS)
    return {
        "parts": {tag: [sizes.get(tag, 0) for sizes in drawn.sizes] for tag in _by_size(drawn.sizes)},
        "total_bytes": [sum(sizes.values()) for sizes in drawn.sizes],
        "moments": drawn.moments,
        "evaluation": drawn.evaluation,
        "peak": drawn.peak,
        "peak_bytes": drawn.peak_bytes,
    }


@dataclass(frozen=True, kw_only=True)
class _Drawn:
    """Columns from left to right, each the peak of its stretch of events."""

    sizes: list[dict[str, int]]  # bytes by tag
    moments: list[str]
    evaluation: int  # its first column
    peak: int  # the largest column
    peak_bytes: int  # of its phase: with what the allocator adds to blocks, which is in no part


def _drawn(memory: Memory, most: int) -> _Drawn:
    """The training step with the peak of training, and the evaluation after it, in about `most` columns.

    Of a run that only evaluates, the evaluation.
    """
    tape = memory.tape
    trained: list[tuple[int, dict[str, int]]] = []
    for_evaluation = most
    if "train" in memory.peaks:
        step, evaluation = _step_and_evaluation(tape, memory.peaks["train"].event)
        for_evaluation = most // EVALUATION_SHARE
        trained = _columns(tape, step, most - for_evaluation)
    else:
        evaluation = range(next(begin for begin, name in tape.phases if name == "eval0"), len(tape.events))
    columns = [*trained, *_columns(tape, evaluation, for_evaluation)]
    first_batch = next(begin for begin, _ in tape.moments if begin in evaluation)
    totals = [sum(sizes.values()) for _, sizes in columns]
    peak = totals.index(max(totals))
    return _Drawn(
        sizes=[sizes for _, sizes in columns],
        moments=[BEFORE if evaluation.start <= event < first_batch else tape.moment_at(event) for event, _ in columns],
        evaluation=len(trained),
        peak=peak,
        peak_bytes=memory.phases["train" if peak < len(trained) else list(memory.phases)[-1]].allocated_bytes,
    )


def _step_and_evaluation(tape: Tape, peak: int) -> tuple[range, range]:
    """Events of the training step around `peak`, from the update before to its own, and of the evaluation after it."""
    bounds = [*(begin for begin, _ in tape.phases), len(tape.events)]
    after = bisect_right(bounds, peak)
    trained = [moment for moment in tape.moments if bounds[after - 1] <= moment[0] < bounds[after]]
    ends = [end for (_, what), (end, _) in pairwise([*trained, (bounds[after], "")]) if what == UPDATE]
    begin = max((end for end in ends if end <= peak), default=bounds[after - 1])
    end = min(end for end in ends if end > peak)
    return range(begin, end), range(bounds[after], bounds[after + 1])


def _columns(tape: Tape, events: range, most: int) -> list[Column]:
    """Bytes by tag at up to `most` of these events: each column is the peak of its stretch."""
    stride = max(1, -(-len(events) // most))
    alive: dict[str, int] = {}
    total, best = 0, -1
    columns: list[Column] = []
    for index, tag, size in changes(tape):
        if index >= events.stop:
            break
        alive[tag] = alive.get(tag, 0) + size
        total += size
        if index < events.start:
            continue
        if (index - events.start) // stride == len(columns):
            columns.append((index, dict(alive)))
            best = total
        elif total > best:
            columns[-1] = index, dict(alive)
            best = total
    return columns


def _by_size(columns: list[dict[str, int]]) -> list[str]:
    """Tags, the steadiest at the bottom: ordered by their lowest size, then by their highest."""
    names = {tag for sizes in columns for tag in sizes}
    least = {tag: min(sizes.get(tag, 0) for sizes in columns) for tag in names}
    most = {tag: max(sizes.get(tag, 0) for sizes in columns) for tag in names}
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
