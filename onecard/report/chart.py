"""Charts as SVG: a picture, its axes, lines and words. What is drawn is the caller's; markup.py escapes all of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from onecard.report.markup import Content, Markup, element

LARGEST = 1e12  # a wider range of values is not drawn
GRID, SOFT = "#ddd", "#555"
# Dashes and a name tell lines apart; colours only help.
LINE_COLOURS = ("#1b4f72", "#b03a2e", "#1e8449", "#7d3c98", "#9a7d0a", "#34495e")
DASHES = ("", "7 4", "2 3", "10 3 2 3", "12 5", "4 2")
# Neighbouring bands also differ in lightness, and each has its name.
BAND_COLOURS = (
    *("#1b4f72", "#aed6f1", "#1e8449", "#a9dfbf", "#7d6608", "#f9e79f"),
    *("#78281f", "#f5b7b1", "#4a235a", "#d7bde2", "#424949", "#ccd1d1"),
)
_ROOM = 4  # beyond an edge, for half the width of a line

Points = Sequence[tuple[float, float]]


def picture(*content: Content, width: int, height: int, label: str | None = None) -> Markup:
    """An SVG picture on white, for a page or a file."""
    return element(
        "svg",
        element("rect", width=width, height=height, fill="#fff"),
        *content,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width} {height}",
        width=width,
        height=height,
        font_family="sans-serif",
        role="img" if label else None,
        aria_label=label,
    )


def words_at(
    x: float, y: float, words: str, *, size: int = 12, anchor: str = "start", weight: str = "normal", fill: str = "#000"
) -> Markup:
    """Words in a picture."""
    return element(
        "text",
        words,
        x=f"{x:.1f}",
        y=f"{y:.1f}",
        font_size=size,
        text_anchor=anchor,
        font_weight=weight,
        fill=fill,
    )


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A rectangle of a picture, and the values at its edges."""

    left: float
    top: float
    right: float
    floor: float
    x: tuple[float, float]  # at the left and at the right
    y: tuple[float, float]  # at the floor and at the top

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Where a point is in the picture."""
        (first, last), (low, high) = self.x, self.y
        across = self.left + (x - first) / (last - first) * (self.right - self.left)
        return across, self.floor - (y - low) / (high - low) * (self.floor - self.top)

    def path(self, points: Points) -> str:
        """Points as SVG writes them."""
        return " ".join(f"{x:.1f},{y:.1f}" for x, y in (self.at(*point) for point in points))

    def line(self, points: Points, *content: Content, **style: str | float | None) -> Markup:
        """A line through points; `content` is its title."""
        return element("polyline", *content, points=self.path(points), **style)

    def inside(self, *content: Content) -> Markup:
        """What is drawn within the frame: what lies outside is cut off, such as the first losses of a run."""
        left, top = self.left - _ROOM, self.top - _ROOM
        width, height = self.right - left + _ROOM, self.floor - top + _ROOM
        view = f"{left:g} {top:g} {width:g} {height:g}"
        return element("svg", *content, x=left, y=top, width=width, height=height, viewBox=view)

    def rows(self, shown: Callable[[float], str], values: Iterable[float] | None = None) -> Iterator[Markup]:
        """A line across at round values of y (or at `values`), with the value at its left."""
        for value in round_values(*self.y) if values is None else values:
            _, y = self.at(self.x[0], value)
            yield element("line", x1=self.left, y1=f"{y:.1f}", x2=self.right, y2=f"{y:.1f}", stroke=GRID)
            yield words_at(self.left - 8, y + 4, shown(value), anchor="end")

    def columns(self, shown: Callable[[float], str]) -> Iterator[Markup]:
        """Round values of x, below the floor."""
        for value in round_values(*self.x):
            x, _ = self.at(value, self.y[0])
            yield words_at(x, self.floor + 18, shown(value), anchor="middle")

    def beside(self, ends: Points, *, gap: float) -> list[tuple[float, float]]:
        """Places for names beside the ends of lines: in the frame, and `gap` apart where they would touch."""
        (low, high), places = self.y, [self.at(*end) for end in ends]
        heights = [self.at(x, min(max(y, low), high))[1] for x, y in ends]
        order = sorted(range(len(ends)), key=lambda number: heights[number])

        def near(number: int, others: Sequence[int]) -> list[float]:
            return [heights[other] for other in others if abs(places[other][0] - places[number][0]) < 2 * gap]

        for rank, number in enumerate(order):
            heights[number] = max([heights[number], *(above + gap for above in near(number, order[:rank]))])
        for rank, number in reversed([*enumerate(order)]):
            heights[number] = min([heights[number], self.floor, *(y - gap for y in near(number, order[rank + 1 :]))])
        return [(x, height) for (x, _), height in zip(places, heights, strict=True)]


def loss_bounds(losses: Iterable[float]) -> tuple[float, float]:
    """A range that shows runs without their first steps: from the lowest loss to above the lower three quarters."""
    ordered = sorted(losses)
    low, most = ordered[0], ordered[3 * (len(ordered) - 1) // 4]
    room = max(0.05, 0.6 * (most - low))
    return low - 0.1 * room, min(ordered[-1], most + room) + 0.1 * room


def round_values(low: float, high: float, *, about: int = 5) -> list[float]:
    """About five round numbers between two bounds."""
    raw = (high - low) / about
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(s * scale for s in (1, 2, 2.5, 5, 10) if s * scale >= raw * 0.999)
    return [number * step for number in range(math.ceil(low / step), math.floor(high / step) + 1)]
