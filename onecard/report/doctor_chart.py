"""Charts of a run as SVG, drawn by hand: loss and throughput over the updates, told apart without colour."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from onecard.doctor.case import Case
from onecard.doctor.evidence import vals
from onecard.report.axis import round_values
from onecard.report.markup import Markup, element

WIDTH, HEIGHT = 720, 280
LEFT, RIGHT, TOP, BOTTOM = 56, 88, 14, 34
# An inner picture cuts off what lies outside: the first losses of a run are far above all others.
_INNER = (LEFT, TOP - 4, WIDTH - LEFT - RIGHT + 3, HEIGHT - TOP - BOTTOM + 8)
LARGEST = 1e12  # beyond, no axis helps
MOST_POINTS = 360  # of a line; beyond, medians of equal stretches


@dataclass(frozen=True, kw_only=True)
class Series:
    """One line of a chart: its name stands at its end, its dashes tell it apart."""

    name: str
    points: tuple[tuple[float, float], ...]
    style: str  # a CSS class: "a", "b" or "c"
    dots: bool = False


def loss_chart(case: Case) -> Markup | None:
    """Training and validation loss; None where fewer than two points are known."""
    evaluated = [(float(e.step), val) for e, val in vals(case)]
    trained = [
        (float(e.step), e.train_loss) for e in case.evals if e.train_loss is not None and math.isfinite(e.train_loss)
    ]
    steps = [(float(step.step), step.loss) for step in case.steps if math.isfinite(step.loss)]
    series = [
        Series(name="step", points=_thinned(steps), style="c"),
        Series(name="train", points=_thinned(trained), style="b"),
        Series(name="val", points=_thinned(evaluated), style="a", dots=len(evaluated) <= 60),
    ]
    along = "updates" if case.run.steps_told else "losses"
    return _chart(series, title="Loss in nats per token", bounds=_loss_bounds, along=along)


def throughput_chart(case: Case) -> Markup | None:
    """Tokens per second of updates without evaluation, or seconds per update where tokens are not known."""
    evaluated = {evaluation.step for evaluation in case.evals}
    tokens = case.facts.tokens_per_step
    times = [
        (float(step.step), step.seconds)
        for step in case.steps[1:]  # the first compiles
        if step.seconds and math.isfinite(step.seconds) and step.step not in evaluated
    ]
    if tokens:
        rates = tuple((step, tokens / seconds) for step, seconds in times)
        return _chart(
            [Series(name="tokens/s", points=_thinned(rates), style="a")], title="Tokens per second", bounds=_from_zero
        )
    return _chart(
        [Series(name="seconds", points=_thinned(times), style="a")], title="Seconds per update", bounds=_from_zero
    )


def _thinned(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """At most MOST_POINTS points: medians of equal stretches."""
    if len(points) <= MOST_POINTS:
        return tuple(points)
    size = math.ceil(len(points) / MOST_POINTS)
    groups = [points[start : start + size] for start in range(0, len(points), size)]
    return tuple((median(x for x, _ in group), median(y for _, y in group)) for group in groups)


def _loss_bounds(values: list[float]) -> tuple[float, float]:
    """The range that shows the run, not its first steps: the lowest three quarters of losses, and some room."""
    ordered = sorted(values)
    low, high = ordered[0], ordered[min(len(ordered) - 1, (3 * len(ordered)) // 4)]
    room = max(0.05, 0.5 * (high - low))
    return low - 0.1 * room, min(ordered[-1], high + room) + 0.1 * room


def _from_zero(values: list[float]) -> tuple[float, float]:
    return 0.0, 1.1 * max(values)


def _chart(
    series: Iterable[Series],
    *,
    title: str,
    bounds: Callable[[list[float]], tuple[float, float]],
    along: str = "updates",
) -> Markup | None:
    drawn = [line for line in series if len(line.points) > 1]
    if not drawn:
        return None
    low, high = bounds([y for line in drawn for _, y in line.points])
    first, last = min(line.points[0][0] for line in drawn), max(line.points[-1][0] for line in drawn)
    if last <= first or not 0 < high - low < LARGEST:
        return None

    def at(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - first) / (last - first) * (WIDTH - LEFT - RIGHT)
        down = HEIGHT - BOTTOM - (y - low) / (high - low) * (HEIGHT - TOP - BOTTOM)
        return across, down

    lines: list[Markup] = []
    for line in drawn:
        places = [at(x, y) for x, y in line.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        lines.append(element("polyline", class_=f"line {line.style}", points=path))
        if line.dots:
            lines += [element("circle", class_="dot", cx=f"{x:.1f}", cy=f"{y:.1f}", r="2.2") for x, y in places]
    left, top, width, height = _INNER
    view = " ".join(map(str, _INNER))
    window = element("svg", *lines, x=left, y=top, width=width, height=height, viewBox=view)
    ends = [(line, at(line.points[-1][0], min(max(line.points[-1][1], low), high))[1]) for line in drawn]
    said = "; ".join(f"{line.name} ends at {_number(line.points[-1][1])}" for line in drawn)
    return element(
        "svg",
        *_grid(low, high, first, last, at, along),
        window,
        *_labels(ends),
        class_="chart",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=f"{title}: {said}",
    )


def _grid(
    low: float, high: float, first: float, last: float, at: Callable[[float, float], tuple[float, float]], along: str
) -> Iterator[Markup]:
    below = HEIGHT - BOTTOM + 18
    for value in round_values(low, high):
        _, y = at(first, value)
        yield element("line", class_="grid", x1=LEFT, x2=WIDTH - RIGHT, y1=f"{y:.1f}", y2=f"{y:.1f}")
        yield element("text", _number(value), class_="tick", x=LEFT - 8, y=f"{y + 4:.1f}", text_anchor="end")
    for value in round_values(first, last):
        x, _ = at(value, low)
        yield element("text", f"{value:,.0f}", class_="tick", x=f"{x:.1f}", y=below, text_anchor="middle")
    yield element("text", along, class_="tick", x=WIDTH - RIGHT + 31, y=below)


def _labels(ends: list[tuple[Series, float]]) -> Iterator[Markup]:
    """The names beside the ends of their lines, moved apart where they would touch."""
    above = -math.inf
    for line, y in sorted(ends, key=lambda pair: pair[1]):
        y = max(y + 4, above + 15)
        above = y
        x, middle = WIDTH - RIGHT + 8, f"{y - 4:.1f}"
        yield element("line", class_=f"line {line.style}", x1=x, x2=x + 18, y1=middle, y2=middle)
        yield element("text", line.name, class_="name", x=x + 23, y=f"{y:.1f}")


def _number(value: float) -> str:
    if abs(value) >= 10_000:
        return f"{value / 1000:,.0f}k"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
