"""The results of `onecard bench --loss`: the verdict and a table, JSON, and a plot over tokens and over seconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import mean

from rich.console import Console
from rich.table import Table

from onecard import units
from onecard.report.chart import DASHES, LINE_COLOURS, SOFT, Frame, loss_bounds, picture, words_at
from onecard.report.markup import Markup, element
from onecard.report.strict import strict
from onecard.report.tables import print_table
from onecard.runs.learned import Learned, Verdict, by_length, mean_final_loss, standard_error

WIDTH, HEIGHT = 1100, 420
PANEL, LEFT, TOP, BOTTOM, GAP = 430, 64, 56, 76, 110
NAME_HEIGHT = 16
COLUMNS = ("params", "share", "tokens", "training", "val loss", "ms/update", "optimizer")
COUNTED = "Only the loss after the last update of a complete run counts; each has its own schedule, made as long as it."


def loss_json(found: Sequence[Learned], said: Verdict) -> dict[str, object]:
    """Every run with its points, and where the best of ours reaches the final loss of the best of theirs."""
    place = said.reached
    content: dict[str, object] = strict(
        {
            "schema": 1,
            "runs": [_run_json(run) for run in found],
            "ours": said.ours,
            "theirs": said.theirs,
            "mark": said.mark,
            "tokens_ratio": place.tokens_ratio if place else None,
            "seconds_ratio": place.seconds_ratio if place else None,
            "at_most": place.at_most if place else False,
            "errors": {
                "tokens_ratio": place.tokens_error if place else None,
                "seconds_ratio": place.seconds_error if place else None,
                "loss_over_seeds": place.over_seeds if place else None,
                "loss_over_windows": place.over_windows if place else None,
            },
        }
    )
    return content


def _run_json(run: Learned) -> dict[str, object]:
    """A run without the loss of each window, of which there may be thousands."""
    content = run.as_json() | {"final_loss_error": run.final_error}
    del content["window_losses"]
    return content


def print_losses(found: Sequence[Learned], said: Verdict, notes: Sequence[str], console: Console) -> None:
    """The verdict first, then a row for each contender and length: means over its seeds."""
    console.print(verdict_line(found, said), soft_wrap=True)
    console.print()
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in (f"{found[0].device}, torch {found[0].torch}", *COLUMNS):
        table.add_column(column, justify="right" if column in COLUMNS else "left")
    for name in dict.fromkeys(run.name for run in found):
        for number, (share, runs) in enumerate(by_length(run for run in found if run.name == name).items()):
            table.add_row("" if number else name, units.count(runs[0].parameters), f"{share:g}", *_cells(runs))
    print_table(table, console)
    console.print()
    for note in (COUNTED, *_notes(found, said), *notes):
        console.print(note)


def verdict_line(found: Sequence[Learned], said: Verdict) -> str:
    """`fast reaches adamw's final loss 3.638 in 0.41 of its tokens (± 0.02) and 0.52 of its seconds (± 0.03)`"""
    if said.mark is None or said.ours is None:
        return "no comparison: " + (
            "no run of ours is complete" if said.mark else "the other side has no run with a final loss"
        )
    start = f"{said.ours} reaches {said.theirs}'s final loss {said.mark:.3f} in"
    if place := said.reached:
        tokens = f"{place.tokens_ratio:.2f} of its tokens{_give_or_take(place.tokens_error)}"
        seconds = f"{place.seconds_ratio:.2f} of its seconds{_give_or_take(place.seconds_error)}"
        return f"{start} {'at most ' if place.at_most else ''}{tokens} and {seconds}"
    share, runs = list(by_length(run for run in found if run.name == said.ours).items())[-1]
    loss = mean_final_loss(runs)
    above = f"{loss:.3f}, {loss - said.mark:.3f} above" if math.isfinite(loss) else "no number"
    tokens = "as many tokens" if share == 1 else f"{share:g} of its tokens"
    return f"{start.replace('reaches', 'does not reach')} {tokens}: its loss is {above}"


def _give_or_take(error: float | None) -> str:
    return "" if error is None else f" (± {error:.2f})"


def _notes(found: Sequence[Learned], said: Verdict) -> Iterator[str]:
    place = said.reached
    if place and place.at_most:
        yield "The shortest run of ours is there already: shorter --lengths show where it gets there."
    elif place:
        yield (
            "Between two lengths the logarithms of tokens and seconds are interpolated over the loss. ± is one "
            f"standard error, from the difference in loss: {_error(place.over_seeds)} over seeds, "
            f"{_error(place.over_windows)} over windows of the evaluation."
        )
    if len({run.seed for run in found}) == 1:
        yield "One seed: how much seeds differ is not known."
    yield (
        "Training time is updates times the median update: without evaluations, and without compiling "
        f"(the first update took {units.duration(max(run.first_step_seconds for run in found))} at most)."
    )
    yield "No run was kept: these figures are the result."


def _error(error: float | None) -> str:
    return "not known" if error is None else f"{error:.4f}"


def _cells(runs: Sequence[Learned]) -> list[str]:
    losses = [run.final_loss for run in runs]
    error = standard_error(losses)
    shares = [run.optimizer_share for run in runs if run.optimizer_share is not None]
    return [
        units.count(mean(run.tokens for run in runs)),
        units.duration(mean(run.seconds for run in runs)),
        f"{mean(losses):.4f}" + ("" if error is None else f" ± {error:.4f}"),
        f"{1e3 * mean(run.step_seconds for run in runs):,.1f}",
        f"{mean(shares):.0%}" if shares else "",
    ]


def loss_plot(found: Sequence[Learned], said: Verdict) -> str:
    """An SVG: losses over tokens on the left, over training seconds on the right; a dot ends each complete run."""
    styles = {name: _style(number) for number, name in enumerate(dict.fromkeys(run.name for run in found))}
    body = [
        words_at(LEFT, 22, "Validation loss", size=16, weight="bold"),
        words_at(LEFT, 40, verdict_line(found, said)),
    ]
    body += _panel(found, said, styles, 0, "tokens", units.count, left=LEFT)
    body += _panel(found, said, styles, 1, "seconds of training", lambda x: f"{x:g}", left=LEFT + PANEL + GAP)
    for number, (name, style) in enumerate(styles.items()):
        row, column = divmod(number, 2)
        x, y = LEFT + column * (PANEL + GAP), HEIGHT - 12 + NAME_HEIGHT * row
        body.append(element("line", x1=x, x2=x + 36, y1=y - 4, y2=y - 4, stroke_width=2, **style))
        body.append(words_at(x + 44, y, name))
    height = HEIGHT + NAME_HEIGHT * ((len(styles) + 1) // 2)
    return f"{picture(*body, width=WIDTH, height=height, label=verdict_line(found, said))}\n"


def _style(number: int) -> dict[str, str | None]:
    dashes = DASHES[number % len(DASHES)]
    return {"stroke": LINE_COLOURS[number % len(LINE_COLOURS)], "stroke_dasharray": dashes or None}


def _panel(
    found: Sequence[Learned],
    said: Verdict,
    styles: Mapping[str, dict[str, str | None]],
    axis: int,
    label: str,
    shown: Callable[[float], str],
    *,
    left: int,
) -> Iterator[Markup]:
    lines = [
        (run, [(float(point[axis]), point.val_loss) for point in run.points if math.isfinite(point.val_loss)])
        for run in found
    ]
    points = [point for _, line in lines for point in line]
    right, floor = left + PANEL, HEIGHT - BOTTOM
    yield words_at((left + right) / 2, floor + 38, label, anchor="middle")
    if not points:
        yield words_at((left + right) / 2, (TOP + floor) / 2, "no loss is a number", anchor="middle")
        return
    across, losses = (0.0, max(x for x, _ in points)), loss_bounds(loss for _, loss in points)
    frame = Frame(left=left, top=TOP, right=right, floor=floor, x=across, y=losses)
    yield from frame.rows(lambda value: f"{value:.4g}")
    yield from frame.columns(shown)
    drawn = []
    if said.mark is not None:  # what ours has to reach
        (x1, y), (x2, _) = (frame.at(x, said.mark) for x in across)
        drawn.append(element("line", x1=f"{x1:.1f}", x2=f"{x2:.1f}", y1=f"{y:.1f}", y2=f"{y:.1f}", stroke=SOFT))
    for run, line in lines:
        style = styles[run.name]
        drawn.append(frame.line(line, element("title", f"{run.name}, seed {run.seed}"), fill="none", **style))
        for x, y in (frame.at(*end) for end in line[-1:]):
            drawn.append(element("circle", cx=f"{x:.1f}", cy=f"{y:.1f}", r=3, fill=style["stroke"]))
    yield frame.inside(*drawn)
