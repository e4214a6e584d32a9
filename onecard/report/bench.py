"""What a benchmark found: a table, JSON, and a plot of losses at equal tokens."""

from __future__ import annotations

from itertools import groupby
from statistics import mean, median

from rich.console import Console
from rich.table import Table

from onecard import units
from onecard.config.schema import RunConfig
from onecard.plan.counts import count_params
from onecard.runs.measured import Measured

BYTES_PER_PARAMETER = 16  # weights, gradients and AdamW's two moments in float32: what no trainer can do without
COLOURS = {"nanogpt": "#c44e52", "onecard": "#4c72b0"}
WIDTH, HEIGHT, MARGIN = 760, 420, 60


def _groups(found: list[Measured]) -> list[list[Measured]]:
    """Measurements of one trainer and micro-batch together, in the order of the table."""
    ordered = sorted(found, key=lambda one: (one.trainer, one.batch_size))
    return [list(group) for _, group in groupby(ordered, key=lambda one: (one.trainer, one.batch_size))]


def _summary(group: list[Measured], config: RunConfig) -> dict[str, object]:
    first = group[0]
    speeds = [one.tokens_per_second for one in group if one.tokens_per_second]
    losses = [one.val_loss for one in group if one.val_loss is not None]
    process = max((one.process_bytes or 0 for one in group), default=0) or None
    reserved = max((one.reserved_bytes or 0 for one in group), default=0) or None
    state = BYTES_PER_PARAMETER * count_params(config).total
    return {
        "trainer": first.trainer,
        "batch_size": first.batch_size,
        "gradient_accumulation_steps": first.gradient_accumulation_steps,
        "grad_checkpoint": first.grad_checkpoint,
        "out_of_memory": any(one.out_of_memory for one in group),
        "tokens_per_second": median(speeds) if speeds else None,
        "tokens_per_second_each": speeds,
        "process_bytes": process,
        "reserved_bytes": reserved,
        "beyond_state_bytes": reserved - state if reserved else None,  # what is left after 16 bytes a parameter
        "val_loss": mean(losses) if losses else None,
        "val_loss_each": losses,
        "first_step_seconds": [one.first_step_seconds for one in group if one.first_step_seconds],
    }


def bench_json(found: list[Measured], config: RunConfig) -> dict[str, object]:
    """Everything measured, a summary of each trainer and micro-batch, and the ratio of the best two."""
    summaries = [_summary(group, config) for group in _groups(found)]
    return {
        "schema": 1,
        "config": config.model_dump(),
        "tokens_per_step": config.tokens_per_step,
        "summaries": summaries,
        "speedup": _speedup(summaries),
        "measured": [one.as_json() for one in found],
    }


def _best(summaries: list[dict[str, object]], trainer: str) -> dict[str, object] | None:
    fast = [one for one in summaries if one["trainer"] == trainer and one["tokens_per_second"]]
    return max(fast, key=lambda one: one["tokens_per_second"], default=None)  # type: ignore[arg-type, return-value]


def _speedup(summaries: list[dict[str, object]]) -> float | None:
    """onecard's best tokens per second over nanoGPT's best."""
    ours, theirs = _best(summaries, "onecard"), _best(summaries, "nanogpt")
    return ours["tokens_per_second"] / theirs["tokens_per_second"] if ours and theirs else None  # type: ignore[operator]


def print_bench(found: list[Measured], config: RunConfig, console: Console) -> None:
    """A row for each trainer and micro-batch; of repeated measurements the median, with the spread."""
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
    summaries = [_summary(group, config) for group in _groups(found)]
    for one in summaries:
        table.add_row(*_cells(one))
    console.print(table)
    if speedup := _speedup(summaries):
        console.print(f"best of each: onecard makes {speedup:.2f} times nanoGPT's tokens per second")


def _cells(one: dict[str, object]) -> list[str]:
    name = str(one["trainer"]) + (f", {one['grad_checkpoint']}" if one["grad_checkpoint"] != "none" else "")
    shape = f"{one['batch_size']} x {one['gradient_accumulation_steps']}"
    speed = one["tokens_per_second"]
    if one["out_of_memory"] and not speed:
        return [name, shape, "out of memory", *[""] * 5]
    each: list[float] = one["tokens_per_second_each"]  # type: ignore[assignment]
    spread = f"± {(max(each) - min(each)) / 2 / median(each):.1%}" if len(each) > 1 else ""

    def size(key: str) -> str:
        return units.mib(one[key]) if one[key] else ""  # type: ignore[arg-type]

    loss = f"{one['val_loss']:.4f}" if one["val_loss"] is not None else ""
    firsts: list[float] = one["first_step_seconds"]  # type: ignore[assignment]
    first = f"{firsts[0]:.1f} s" if firsts else ""
    return [name, shape, f"{speed:,.0f}", spread, size("process_bytes"), size("beyond_state_bytes"), loss, first]


def bench_plot(found: list[Measured]) -> str:
    """An SVG of every measurement's losses over tokens; colour and a name tell the trainers apart."""
    curves = [one for one in found if len(one.losses) > 1]
    longest = max((len(one.losses) * one.tokens_per_step for one in curves), default=1)
    values = [loss for one in curves for loss in one.losses]
    low, high = min(values, default=0.0), max(values, default=1.0)

    def x(tokens: float) -> float:
        return MARGIN + (WIDTH - 2 * MARGIN) * tokens / longest

    def y(loss: float) -> float:
        return MARGIN + (HEIGHT - 2 * MARGIN) * (high - loss) / max(high - low, 1e-9)

    body = []
    for one in curves:
        points = " ".join(f"{x((n + 1) * one.tokens_per_step):.1f},{y(loss):.1f}" for n, loss in enumerate(one.losses))
        dash = ' stroke-dasharray="5 3"' if one.trainer == "nanogpt" else ""
        name = f"{one.trainer}, batch {one.batch_size}, seed {one.seed}"
        line = f'points="{points}" fill="none" stroke="{COLOURS[one.trainer]}"{dash}'
        body.append(f"<polyline {line}><title>{name}</title></polyline>")
    for number, (trainer, colour) in enumerate(COLOURS.items()):
        if any(one.trainer == trainer for one in curves):
            words = f"{trainer} ({'dashed' if trainer == 'nanogpt' else 'solid'})"
            body.append(f'<text x="{WIDTH - 220}" y="{MARGIN + 20 * number}" fill="{colour}">{words}</text>')
    axis = f'<path d="M{MARGIN} {MARGIN}V{HEIGHT - MARGIN}H{WIDTH - MARGIN}" fill="none" stroke="#333"/>'
    labels = (
        f'<text x="{MARGIN}" y="{HEIGHT - 20}">0 to {units.count(longest)} tokens</text>'
        f'<text x="10" y="{MARGIN}">{high:.2f}</text><text x="10" y="{HEIGHT - MARGIN}">{low:.2f}</text>'
        f'<text x="{MARGIN}" y="30" font-weight="bold">training loss at equal tokens</text>'
    )
    view = f'viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="13"'
    inside = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>{axis}{labels}{"".join(body)}'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {view}>{inside}</svg>\n'
