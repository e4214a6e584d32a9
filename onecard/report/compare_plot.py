"""Losses of several runs over tokens and over hours, as SVG drawn by hand, one HTML page, or PNG by matplotlib."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from warnings import catch_warnings

from onecard import units
from onecard.doctor.compare import Comparison
from onecard.doctor.curves import Axis, Curve
from onecard.errors import MachineError
from onecard.report.chart import DASHES, LARGEST, LINE_COLOURS, SOFT, Frame, loss_bounds, picture, words_at
from onecard.report.compare import first_passings, passing_sentence
from onecard.report.compare_verdict import verdict_lines
from onecard.report.compare_words import MEASURES, run_letter, short_name
from onecard.report.markup import Markup, element, page
from onecard.visible import visible

SUFFIXES = (".svg", ".html", ".png")
WIDTH, HEIGHT = 1100, 470
PANEL, LEFT, TOP, BOTTOM, GAP = 430, 64, 56, 96, 110
NAMES_A_ROW, NAME_HEIGHT = 3, 16  # of the names below the panels
MOST_POINTS = 500
STYLE = """
body { font-family: sans-serif; max-width: 1120px; margin: 2em auto; padding: 0 1em; }
h1 { overflow-wrap: anywhere; }
svg { max-width: 100%; height: auto; }
""".strip()


@dataclass(frozen=True, kw_only=True)
class Line:
    """A run in one panel."""

    run: int
    points: tuple[tuple[float, float], ...]

    @property
    def colour(self) -> str:
        return LINE_COLOURS[self.run % len(LINE_COLOURS)]

    @property
    def dashes(self) -> str:
        return DASHES[self.run % len(DASHES)]


def plot_svg(comparison: Comparison) -> str:
    """The picture as SVG text: loss over tokens on the left, over hours of training on the right."""
    return f"{_picture(comparison)}\n"


def _picture(comparison: Comparison) -> Markup:
    rows = -(-len(comparison.cases) // NAMES_A_ROW)
    measure = MEASURES.get(comparison.measure or "", "loss")
    body = [words_at(LEFT, 26, measure.capitalize(), size=16, weight="bold")]
    for number, (axis, label, shown) in enumerate(_PANELS):
        left = LEFT + number * (PANEL + GAP)
        body += _panel(_lines(comparison.curves, axis), left=left, label=label, shown=shown)
    for run, case in enumerate(comparison.cases):
        row, column = divmod(run, NAMES_A_ROW)
        name = f"{run_letter(run)}: {short_name(case.run.source)}"
        body.append(words_at(LEFT + 360 * column, HEIGHT - 34 + NAME_HEIGHT * row, name))
    named = f"{measure} of " + ", ".join(case.run.source for case in comparison.cases)
    return picture(*body, width=WIDTH, height=HEIGHT + NAME_HEIGHT * max(0, rows - 2), label=named)


def plot_html(comparison: Comparison) -> str:
    """One page that needs nothing else: the verdict, the picture, which run passes which, and notes."""
    title = "Comparison of " + ", ".join(case.run.source for case in comparison.cases)
    body = element(
        "body",
        element("h1", title),
        *(element("p", element("b", label), f" {words}") for label, words in verdict_lines(comparison)),
        _picture(comparison),
        *(element("p", passing_sentence(passing)) for passing in first_passings(comparison)),
        *(element("p", f"Note: {caution}") for caution in comparison.cautions),
    )
    return page(title=title, style=STYLE, body=body)


def plot_png(comparison: Comparison) -> bytes:
    """The same picture as PNG; MachineError where matplotlib cannot be imported."""
    try:
        figure = import_module("matplotlib.figure").Figure(figsize=(11, 4.7), layout="constrained")
    except ImportError as problem:
        raise MachineError(
            "a .png needs matplotlib",
            why="matplotlib draws the picture, and it cannot be imported here",
            fix='pip install "onecard[plot]"   (--plot FILE.svg and FILE.html need nothing)',
            name="no-matplotlib",
        ) from problem
    measure = MEASURES.get(comparison.measure or "", "loss")
    for axes, (axis, label, shown) in zip(figure.subplots(1, 2), _PANELS, strict=True):
        axes.set_xlabel(label)
        axes.set_ylabel(measure)
        lines = _lines(comparison.curves, axis)
        if said := _instead(lines, label):
            axes.text(0.5, 0.5, said, horizontalalignment="center", transform=axes.transAxes)
            continue
        for line in lines:
            style = (0, tuple(float(part) for part in line.dashes.split())) if line.dashes else "solid"
            letter = run_letter(line.run)
            name = visible(f"{letter}: {comparison.cases[line.run].run.source}").replace("$", r"\$")  # no formula
            axes.plot(*zip(*line.points, strict=True), linestyle=style, color=line.colour, label=name)
            axes.text(*line.points[-1], f" {letter}", color=line.colour, fontweight="bold", clip_on=True)
        axes.set_xlim(0, 1.05 * _furthest(lines))
        axes.set_ylim(*_bounds(lines))
        axes.xaxis.set_major_formatter(lambda value, _, shown=shown: shown(value))
        axes.legend(fontsize=8)
    drawn = io.BytesIO()
    with catch_warnings(action="ignore"):  # about letters that the font does not have
        figure.savefig(drawn, format="png", dpi=150)
    return drawn.getvalue()


def _hours(hours: float) -> str:
    return f"{hours:g}"


_PANELS: tuple[tuple[Axis, str, Callable[[float], str]], ...] = (
    ("tokens", "tokens", units.count),
    ("seconds", "hours of training", _hours),
)


def _lines(curves: Sequence[Curve], axis: Axis) -> list[Line]:
    found = []
    for run, curve in enumerate(curves):
        scale = 1.0 if axis == "tokens" else 1 / 3600
        places = [(point.tokens if axis == "tokens" else point.seconds, point.loss) for point in curve.points]
        points = [(place * scale, loss) for place, loss in places if place is not None]
        stride = max(1, len(points) // MOST_POINTS)
        if len(points) > 1:
            thinned = (*points[:-1:stride], points[-1])
            found.append(Line(run=run, points=thinned))
    return found


def _panel(lines: Sequence[Line], *, left: int, label: str, shown: Callable[[float], str]) -> Iterator[Markup]:
    right, floor = left + PANEL, HEIGHT - BOTTOM
    yield words_at((left + right) / 2, floor + 38, label, anchor="middle")
    if said := _instead(lines, label):
        yield words_at((left + right) / 2, (TOP + floor) / 2, said, anchor="middle", fill=SOFT)
        return
    frame = Frame(left=left, top=TOP, right=right, floor=floor, x=(0.0, _furthest(lines)), y=_bounds(lines))
    yield from frame.rows(lambda value: f"{value:.4g}")
    yield from frame.columns(shown)
    yield frame.inside(
        *(
            frame.line(
                line.points,
                fill="none",
                stroke=line.colour,
                stroke_width=2,
                stroke_dasharray=line.dashes or None,
            )
            for line in lines
        )
    )
    for line, (x, y) in zip(lines, frame.beside([line.points[-1] for line in lines], gap=13), strict=True):
        yield words_at(x + 6, y + 4, run_letter(line.run), weight="bold", fill=line.colour)


def _instead(lines: Sequence[Line], label: str) -> str | None:
    """What a panel says instead of lines; None where lines can be drawn."""
    if _furthest(lines) <= 0:
        return f"{label}: not known"
    low, high = _bounds(lines)
    return None if 0 < high - low < LARGEST else "losses too large to draw"


def _furthest(lines: Sequence[Line]) -> float:
    return max((line.points[-1][0] for line in lines), default=0.0)


def _bounds(lines: Sequence[Line]) -> tuple[float, float]:
    return loss_bounds(y for line in lines for _, y in line.points)
