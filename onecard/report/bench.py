"""The results of a benchmark: a table, JSON, and a plot of losses at equal tokens."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table

from onecard import units
from onecard.config.schema import RunConfig
from onecard.report.chart import DASHES, LARGEST, LINE_COLOURS, Frame, picture, words_at
from onecard.report.markup import element
from onecard.report.strict import strict
from onecard.runs.measured import Measured, Summary, speedup, summaries

STYLES = {"nanogpt": (LINE_COLOURS[1], DASHES[1]), "onecard": (LINE_COLOURS[0], DASHES[0])}
WIDTH, HEIGHT = 760, 420
LEFT, RIGHT, TOP, BOTTOM = 60, 40, 56, 60


def bench_json(found: list[Measured], config: RunConfig) -> dict[str, object]:
    """Everything measured, a summary for each trainer and micro-batch, and the ratio of their best speeds."""
    each = summaries(found, config)
    content: dict[str, object] = strict(
        {
            "schema": 1,
            "config": config.model_dump(),
            "tokens_per_step": config.tokens_per_step,
            "summaries": [one.as_json() for one in each],
            "speedup": speedup(each),
            "measured": [one.as_json() for one in found],
        }
    )
    return content


def print_bench(found: list[Measured], config: RunConfig, console: Console) -> None:
    """A row for each trainer and micro-batch; repeated measurements as their median and spread."""
    table = Table(title=f"{found[0].device}, torch {found[0].torch}, {config.tokens_per_step:,} tokens per update")
    for name in (
        "trainer",
        "batch",
        "tokens/s",
        "spread",
        "driver shows",
        "beyond 16 B/param",
        "val loss",
        "first step",
    ):
        table.add_column(name, justify="left" if name == "trainer" else "right")
    each = summaries(found, config)
    for one in each:
        table.add_row(*_cells(one))
    console.print(table)
    if ratio := speedup(each):
        console.print(f"best of each: onecard trains {ratio:.2f} times as many tokens per second as nanoGPT")


def _cells(one: Summary) -> list[str]:
    name = one.trainer + (f", {one.grad_checkpoint}" if one.grad_checkpoint != "none" else "")
    shape = f"{one.batch_size} x {one.gradient_accumulation_steps}"
    if one.tokens_per_second is None:
        return [name, shape, "out of memory" if one.out_of_memory else "no figures", *[""] * 5]
    speeds = one.tokens_per_second_each
    return [
        name,
        shape,
        f"{one.tokens_per_second:,.0f}" + (" (once out of memory)" if one.out_of_memory else ""),
        f"± {(max(speeds) - min(speeds)) / 2 / one.tokens_per_second:.1%}" if len(speeds) > 1 else "",
        units.mib(one.process_bytes) if one.process_bytes else "",
        units.mib(one.beyond_state_bytes) if one.beyond_state_bytes else "",
        f"{one.val_loss:.4f}" if one.val_loss is not None else "",
        f"{one.first_step_seconds[0]:.1f} s" if one.first_step_seconds else "",
    ]


def bench_plot(found: list[Measured]) -> str:
    """An SVG of every measurement's losses over tokens; dashes and a name tell the trainers apart."""
    curves = [one for one in found if len(one.losses) > 1]
    longest = max((len(one.losses) * one.tokens_per_step for one in curves), default=1)
    values = [loss for one in curves for loss in one.losses if math.isfinite(loss)]
    low, high = min(values, default=0.0), max(values, default=1.0)
    if not 0 < high - low < LARGEST:
        low, high = low - 0.5, low + 0.5
    frame = Frame(left=LEFT, top=TOP, right=WIDTH - RIGHT, floor=HEIGHT - BOTTOM, x=(0, longest), y=(low, high))
    body = [*frame.rows(lambda loss: f"{loss:.4g}"), *frame.columns(units.count)]
    body.append(words_at((frame.left + frame.right) / 2, frame.floor + 38, "tokens", anchor="middle"))
    for one in curves:
        name = f"{one.trainer}, batch {one.batch_size}, seed {one.seed}"
        points = [(n * one.tokens_per_step, loss) for n, loss in enumerate(one.losses, 1) if math.isfinite(loss)]
        colour, dashes = STYLES[one.trainer]
        body.append(
            frame.line(points, element("title", name), fill="none", stroke=colour, stroke_dasharray=dashes or None)
        )
    for number, (trainer, (colour, dashes)) in enumerate(STYLES.items()):
        if any(one.trainer == trainer for one in curves):
            words = f"{trainer} ({'dashed' if dashes else 'solid'})"
            body.append(words_at(WIDTH - 220, TOP + 20 * number, words, fill=colour))
    body.append(words_at(LEFT, 26, "Training loss at equal tokens", size=16, weight="bold"))
    return f"{picture(*body, width=WIDTH, height=HEIGHT)}\n"
