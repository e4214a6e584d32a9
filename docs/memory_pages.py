"""The tables and the plot of docs/explain/memory.md, made from the measured rows."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping

from bench.measured import GOLDEN, Errors, Measured, measured_rows
from bench.other_estimators import ESTIMATORS
from onecard.plan.memory.predict import PHASES

SETS = {
    "build": ("nanogpt_h200.csv", "nanogpt_h200_build.csv", "nanogpt_h200_odd_shapes.csv"),
    "check": ("nanogpt_h200_check.csv",),
    "own cache": ("nanogpt_h200_own_cache.csv",),
    "fresh": ("nanogpt_h200_fresh.csv",),
}
OWN_SETS = {  # of onecard's own trainer
    "build": ("onecard_h200_build.csv",),
    "check": ("onecard_h200_check.csv",),
    "the notes' configs": ("onecard_h200_notes.csv",),
}
SQUARES = ("check", "fresh")  # set aside
MEMTRACKER = GOLDEN.parents[1] / "docs/measurements/memtracker.csv"


def rows_of(name: str, *, compiled: bool, sets: Mapping[str, tuple[str, ...]] = SETS) -> list[Measured]:
    """The rows of a set that finished."""
    rows = [row for file in sets[name] for row in measured_rows(GOLDEN / file)]
    return [row for row in rows if row.ok and row.predicted.ok and row.config.compile == compiled]


def own_error_table() -> str:
    """Markdown: the same for onecard's own trainer."""
    return error_table(OWN_SETS)


def error_table(sets: Mapping[str, tuple[str, ...]] = SETS) -> str:
    """Markdown: errors by mode, set and quantity."""
    lines = [
        "| | rows | quantity | exact | median | nine of ten within | largest |",
        "|---|---|---|---|---|---|---|",
    ]
    for compiled in (False, True):
        for name in sets:
            rows = rows_of(name, compiled=compiled, sets=sets)
            for what, errors in _quantities(rows).items() if rows else ():
                mode = "compiled" if compiled else "eager"
                share = f"{errors.exact} of {len(errors.values)}"
                lines.append(
                    f"| {mode}, {name} | {len(rows)} | {what} | {share} | {errors.median:.3%} | "
                    f"{errors.nine_of_ten:.3%} | {errors.largest:.2%} |"
                )
    return "\n".join(lines) + "\n"


def short_error_table() -> str:
    """Markdown for README: errors of the set-aside rows, allocated and process."""
    lines = ["| set-aside rows | | exact | nine of ten within | largest |", "|---|---|---|---|---|"]
    for compiled, mode in ((False, "eager"), (True, "compiled")):
        rows = rows_of("check", compiled=compiled)
        for what, errors in {
            "training peak, allocated": Errors.of(row.allocated_error("train") for row in rows),
            "process, as the driver shows it": Errors.of(row.process_error for row in rows),
        }.items():
            share = f"{errors.exact} of {len(rows)}"
            lines.append(f"| {mode} | {what} | {share} | {errors.nine_of_ten:.2%} | {errors.largest:.1%} |")
    return "\n".join(lines) + "\n"


def _quantities(rows: Iterable[Measured]) -> dict[str, Errors]:
    rows = list(rows)
    return {
        "allocated, all phases": Errors.of(row.allocated_error(phase) for row in rows for phase in PHASES),
        "reserved, first evaluation": Errors.of(row.reserved_error("eval0") for row in rows),
        "reserved, training": Errors.of(row.reserved_error("train") for row in rows),
        "process": Errors.of(row.process_error for row in rows),
    }


def estimator_table() -> str:
    """Markdown: the error of every estimator in the training peak."""
    lines = [
        "| estimator | eager: median error | largest | compiled: median error | largest |",
        "|---|---|---|---|---|",
    ]
    rows = [[*rows_of("build", compiled=compiled), *rows_of("check", compiled=compiled)] for compiled in (False, True)]
    ours = [Errors.of(row.allocated_error("train") for row in mode) for mode in rows]
    lines.append(f"| **onecard** | {' | '.join(f'{e.median:.3%} | {e.largest:.2%}' for e in ours)} |")
    for name, estimate in ESTIMATORS.items():
        theirs = [Errors.of(estimate(r.config) / r.allocated_bytes("train") - 1 for r in mode) for mode in rows]
        lines.append(f"| {name} | {' | '.join(f'{e.median:.1%} | {e.largest:.0%}' for e in theirs)} |")
    with MEMTRACKER.open() as file:
        tracked = list(csv.DictReader(file))
    for name, chosen in (
        ("torch MemTracker, no dropout", [row for row in tracked if float(row["dropout"]) == 0]),
        ("torch MemTracker, dropout", [row for row in tracked if float(row["dropout"]) > 0]),
    ):
        errors = Errors.of(_memtracker_error(row) for row in chosen)
        lines.append(f"| {name} ({len(chosen)} rows) | {errors.median:.1%} | {errors.largest:.0%} | not covered | |")
    return "\n".join(lines) + "\n"


def _memtracker_error(row: dict[str, str]) -> float:
    return int(row["predicted_accumulating_bytes"]) / int(row["measured_train_alloc"]) - 1


def error_plot() -> str:
    """SVG: the signed error of every row's worst phase, allocated and reserved, against the limits we promise."""
    width, height = 900, 380
    panels = [
        _panel("allocated", limit=0.01, left=70, width=width / 2 - 90, height=height),
        _panel("reserved", limit=0.08, left=70 + width / 2, width=width / 2 - 90, height=height),
    ]
    view = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-family="sans-serif" font-size="11"'
    background = f'<rect width="{width}" height="{height}" fill="#fff"/>'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {view}>{background}{"".join(panels)}</svg>\n'


def _panel(quantity: str, *, limit: float, left: float, width: float, height: float) -> str:
    """SVG of one quantity: rows from the smallest run to the largest, a dashed limit, twice the limit at the edges."""
    top, bottom = 40.0, height - 50
    middle = (top + bottom) / 2

    def y(error: float) -> float:
        return middle - max(-1.0, min(1.0, error / (2 * limit))) * (bottom - top) / 2

    marks = [_text(left, 20, f"{quantity}: error of each row's worst phase", "bold")]
    for share in (-2, -1, 0, 1, 2):
        dash = 'stroke-dasharray="4 3"' if abs(share) == 1 else ""
        at = y(share * limit)
        marks.append(f'<line x1="{left}" x2="{left + width}" y1="{at:.1f}" y2="{at:.1f}" stroke="#999" {dash}/>')
        marks.append(_text(left - 44, at + 4, f"{share * limit:+.0%}"))
    chosen = [(row, name) for mode in (False, True) for name in SETS for row in rows_of(name, compiled=mode)]
    chosen.sort(key=lambda item: item[0].allocated_bytes("train"))
    for index, (row, name) in enumerate(chosen):
        error = max((getattr(row, f"{quantity}_error")(phase) for phase in PHASES), key=abs)
        x, at = left + width * (index + 0.5) / len(chosen), y(error)
        look = f'fill="{"#1b4f72" if row.config.compile else "none"}" stroke="#1b4f72"'
        title = f"<title>{row.name}: {error:+.3%}</title>"
        if name in SQUARES:
            marks.append(f'<rect x="{x - 3:.1f}" y="{at - 3:.1f}" width="6" height="6" {look}>{title}</rect>')
        else:
            marks.append(f'<circle cx="{x:.1f}" cy="{at:.1f}" r="2.5" {look}>{title}</circle>')
    marks.append(_text(left, bottom + 20, "square: row set aside, circle: other; hollow: eager, filled: compiled"))
    marks.append(
        _text(
            left, bottom + 34, "from the smallest run to the largest; dashed: the limit; beyond the scale: at the edge"
        )
    )
    return "".join(marks)


def _text(x: float, y: float, words: str, weight: str = "normal") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-weight="{weight}">{words}</text>'
