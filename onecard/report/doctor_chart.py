"""Charts of a run as SVG, drawn by hand: loss and throughput over the updates, told apart without colour."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from onecard.doctor.case import Case
from onecard.doctor.evidence import vals
from onecard.report.chart import LARGEST, Frame, loss_bounds
from onecard.report.markup import Markup, element

WIDTH, HEIGHT = 720, 280
LEFT, RIGHT, TOP, BOTTOM = 56, 88, 14, 34
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
    return _chart(series, title="Loss in nats per token", bounds=loss_bounds, along=along)


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

    frame = Frame(
        left=LEFT, top=TOP, right=WIDTH - RIGHT, floor=HEIGHT - BOTTOM, x=(first, last), y=(low, high), styled=True
    )
    said = "; ".join(f"{line.name} ends at {_number(line.points[-1][1])}" for line in drawn)
    return element(
        "svg",
        *frame.rows(_number),
        *frame.columns(lambda value: f"{value:,.0f}"),
        element("text", along, class_="tick", x=frame.right + 31, y=frame.floor + 18),
        frame.inside(*(part for line in drawn for part in _drawn(line, frame))),
        *_names(drawn, frame),
        class_="chart",
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        role="img",
        aria_label=f"{title}: {said}",
    )


def _drawn(line: Series, frame: Frame) -> Iterator[Markup]:
    yield frame.line(line.points, class_=f"line {line.style}")
    for point in line.points if line.dots else ():
        x, y = frame.at(*point)
        yield element("circle", class_="dot", cx=f"{x:.1f}", cy=f"{y:.1f}", r="2.2")


def _names(drawn: Sequence[Series], frame: Frame) -> Iterator[Markup]:
    """The names beside the ends of their lines."""
    ends = frame.beside([(frame.x[1], line.points[-1][1]) for line in drawn], gap=15)
    for line, (x, y) in zip(drawn, ends, strict=True):
        x, middle = x + 8, f"{y:.1f}"
        yield element("line", class_=f"line {line.style}", x1=x, x2=x + 18, y1=middle, y2=middle)
        yield element("text", line.name, class_="name", x=x + 23, y=f"{y + 4:.1f}")


def _number(value: float) -> str:
    if abs(value) >= 10_000:
        return f"{value / 1000:,.0f}k"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
