"""A plan as a person reads it."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onecard import units
from onecard.config.schema import KEYS
from onecard.plan.make import Plan
from onecard.plan.place import Place
from onecard.report.memory import print_memory
from onecard.report.talk import print_findings


def print_plan(plan: Plan, console: Console, *, explain: bool = False) -> None:
    """The plan as a person reads it."""
    config, params = plan.config, plan.params
    console.print(Text(plan.resolved.source or "the packaged default (no config named)", style="bold"))
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold", no_wrap=True)
    facts.add_column()
    facts.add_row(
        "model",
        f"{config.n_layer} layers, {config.n_head} heads of {config.head_size}, width {config.n_embd}, "
        f"context {config.block_size:,}, vocabulary {config.vocab_size:,}"
        + (", biases" if config.bias else "")
        + (f", dropout {config.dropout:g}" if config.dropout else ""),
    )
    facts.add_row(
        "",
        f"{units.count(params.nanogpt)} parameters by nanoGPT's count, {params.total:,} in all, "
        f"{params.decayed:,} decayed in {params.decayed_tensors} tensors",
    )
    facts.add_row(
        "update",
        f"{config.batch_size} sequences x {config.gradient_accumulation_steps} micro-batches x "
        f"{config.block_size:,} tokens = {config.tokens_per_step:,} tokens",
    )
    facts.add_row(
        "run",
        f"{config.max_iters:,} updates = {units.count(config.total_tokens)} tokens, "
        f"{plan.tokens_per_parameter:.3g} per parameter; "
        f"{units.count(plan.flops_per_token)} FLOPs a token, {plan.flops_per_token * config.total_tokens:.3g} in all",
    )
    facts.add_row("precision", f"{config.dtype}, {'compiled' if config.compile else 'eager'}")
    for label, line in _place_lines(plan.place):
        facts.add_row(label, line)
    facts.add_row("speed, loss", Text("not predicted yet", style="dim"))
    console.print(facts)
    if plan.nanogpt:
        print_memory(plan, plan.nanogpt, console)
    print_findings(plan.findings, console)
    if explain:
        console.print()
        print_origins(plan, console)


def _place_lines(place: Place | None) -> Iterable[tuple[str, str]]:
    if place is None:
        yield "card", "none known: name one with --gpu, or a size with --vram"
        return
    card = place.card
    speed = f", {units.flops(card.peak_flops)} dense 16-bit" if card.peak_flops else ""
    estimate = " (estimate)" if "estimate" in card.allocatable_source else ""
    yield (
        "card",
        f"{card.name}: {units.mib(card.vram_bytes)} by the driver, "
        f"{units.gib(card.allocatable_bytes)} for torch{estimate}{speed}",
    )
    held = ", ".join(f"{p.name} {units.mib(p.used_bytes) if p.used_bytes else '?'}" for p in place.programs[:4])
    if place.other_bytes:
        yield "", f"other programs hold {units.mib(place.other_bytes)}" + (f": {held}" if held else "")
    yield "", f"{units.gib(place.available_bytes)} left for this process, its CUDA context included"


def print_origins(plan: Plan, console: Console) -> None:
    """Every key, its value, where it came from and what it means."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("key", "value", "from", "meaning"):
        table.add_column(heading, overflow="fold")
    for key, meaning in KEYS.items():
        origin = plan.resolved.origins[key]
        value = str(getattr(plan.config, key))
        shown = value if getattr(plan.resolved.config, key) == getattr(plan.config, key) else f"{value} (auto)"
        table.add_row(key, shown, origin, meaning, style="" if origin != "default" else "dim")
    console.print(table)
