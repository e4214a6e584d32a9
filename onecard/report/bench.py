"""The results of a benchmark: a table, JSON, and a plot of losses at equal tokens."""

from __future__ import annotations

import math

from rich.console import Console
from rich.table import Table

from onecard import units
from onecard.config.schema import RunConfig
from onecard.report.markup import element, picture
from onecard.report.strict import strict
from onecard.runs.measured import Measured, Summary, speedup, summaries

COLOURS = {"nanogpt": "#c44e52", "onecard": "#4c72b0"}
WIDTH, HEIGHT, MARGIN = 760, 420, 60


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
    """An SVG of every measurement's losses over tokens; colour and a name tell the trainers apart."""
    curves = [one for one in found if len(one.losses) > 1]
    longest = max((len(one.losses) * one.tokens_per_step for one in curves), default=1)
    values = [loss for one in curves for loss in one.losses if math.isfinite(loss)]
    low, high = min(values, default=0.0), max(values, default=1.0)

    def x(tokens: float) -> float:
        return MARGIN + (WIDTH - 2 * MARGIN) * tokens / longest

    def y(loss: float) -> float:
        return MARGIN + (HEIGHT - 2 * MARGIN) * (high - loss) / max(high - low, 1e-9)

    body = []
    for one in curves:
        numbered = [(number, loss) for number, loss in enumerate(one.losses, 1) if math.isfinite(loss)]
        points = " ".join(f"{x(number * one.tokens_per_step):.1f},{y(loss):.1f}" for number, loss in numbered)
        name = f"{one.trainer}, batch {one.batch_size}, seed {one.seed}"
        body.append(
            element(
                "polyline",
                element("title", name),
                points=points,
                fill="none",
                stroke=COLOURS[one.trainer],
                stroke_dasharray="5 3" if one.trainer == "nanogpt" else None,
            )
        )
    for number, (trainer, colour) in enumerate(COLOURS.items()):
        if any(one.trainer == trainer for one in curves):
            words = f"{trainer} ({'dashed' if trainer == 'nanogpt' else 'solid'})"
            body.append(element("text", words, x=WIDTH - 220, y=MARGIN + 20 * number, fill=colour))
    frame = f"M{MARGIN} {MARGIN}V{HEIGHT - MARGIN}H{WIDTH - MARGIN}"
    drawn = picture(
        element("path", d=frame, fill="none", stroke="#333"),
        element("text", f"0 to {units.count(longest)} tokens", x=MARGIN, y=HEIGHT - 20),
        element("text", f"{high:.2f}", x=10, y=MARGIN),
        element("text", f"{low:.2f}", x=10, y=HEIGHT - MARGIN),
        element("text", "training loss at equal tokens", x=MARGIN, y=30, font_weight="bold"),
        *body,
        width=WIDTH,
        height=HEIGHT,
        font_size=13,
    )
    return f"{drawn}\n"
