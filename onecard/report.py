"""Plans, cards and errors as text and as JSON. The only module that knows colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onecard import units
from onecard.config.schema import KEYS
from onecard.errors import OnecardError
from onecard.findings import Finding
from onecard.plan.cards import Card
from onecard.plan.make import Plan
from onecard.plan.place import Place

SCHEMA = 1


def print_error(error: OnecardError, console: Console) -> None:
    """The three lines of an error."""
    console.print(Text.assemble(("error", "bold red"), f": {error.what}  [{error.name}]"), soft_wrap=True)
    console.print(Text.assemble(("  why", "dim"), f": {error.why}"), soft_wrap=True)
    console.print(Text.assemble(("  fix", "bold"), f": {error.fix}"), soft_wrap=True)


def print_warnings(warnings: Iterable[str], console: Console) -> None:
    for warning in warnings:
        console.print(Text.assemble(("warning", "yellow"), f": {warning}"), soft_wrap=True)


def plan_json(plan: Plan) -> dict[str, Any]:
    """The plan of the contract: bytes, seconds and tokens in whole base units."""
    params = plan.params
    return {
        "schema": SCHEMA,
        "config": plan.config.model_dump(),
        "origins": dict(plan.resolved.origins),
        "warnings": list(plan.resolved.warnings),
        "params": {
            "total": params.total,
            "nanogpt": params.nanogpt,
            "decayed": params.decayed,
            "decayed_tensors": params.decayed_tensors,
        },
        "flops_per_token": plan.flops_per_token,
        "tokens_per_step": plan.config.tokens_per_step,
        "total_tokens": plan.config.total_tokens,
        "tokens_per_parameter": plan.tokens_per_parameter,
        "gpu": _place_json(plan.place) if plan.place else None,
        "trainers": {"nanogpt": None, "onecard": None},
        "loss": None,
        "fixes": [],
        "findings": [finding.as_json() for finding in plan.findings],
    }


def _place_json(place: Place) -> dict[str, Any]:
    card = place.card
    return {
        "name": card.name,
        "vram_bytes": card.vram_bytes,
        "allocatable_bytes": card.allocatable_bytes,
        "other_bytes": place.other_bytes,
        "other_programs": [{"name": program.name, "used_bytes": program.used_bytes} for program in place.programs],
        "available_bytes": place.available_bytes,
        "context_bytes": card.context_bytes,
        "peak_flops": card.peak_flops,
        "source": "; ".join(filter(None, (card.vram_source, card.allocatable_source, card.peak_source))),
    }


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
        f"{units.count(params.nanogpt)} parameters as nanoGPT counts them, {params.total:,} in all; "
        f"weight decay on {params.decayed_tensors} tensors with {params.decayed:,}",
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
    facts.add_row("memory", Text("not predicted yet", style="dim"))
    facts.add_row("speed, loss", Text("not predicted yet", style="dim"))
    console.print(facts)
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


def print_findings(findings: Sequence[Finding], console: Console) -> None:
    """Each finding in three lines, the most urgent first."""
    for finding in findings:
        style = {"info": "cyan", "warn": "yellow"}.get(finding.severity, "bold red")
        console.print()
        console.print(Text.assemble((finding.severity, style), f": {finding.what}  [{finding.rule}]"), soft_wrap=True)
        console.print(Text.assemble(("  why", "dim"), f": {finding.why}"), soft_wrap=True)
        console.print(Text.assemble(("  fix", "bold"), f": {finding.fix}"), soft_wrap=True)


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


def cards_json(cards: Iterable[Card]) -> dict[str, Any]:
    return {"schema": SCHEMA, "gpus": [_card_json(card) for card in cards]}


def _card_json(card: Card) -> dict[str, Any]:
    capability = card.compute_capability
    return {
        "name": card.name,
        "architecture": card.architecture,
        "compute_capability": f"{capability[0]}.{capability[1]}" if capability else None,
        "multiprocessors": card.multiprocessors,
        "vram_bytes": card.vram_bytes,
        "allocatable_bytes": card.allocatable_bytes,
        "context_bytes": card.context_bytes,
        "bandwidth_bytes_per_second": card.bandwidth_bytes_per_second,
        "peak_flops": card.peak_flops,
        "fp32_flops": card.fp32_flops,
        "native_bf16": card.native_bf16,
        "sources": {
            "vram_bytes": card.vram_source,
            "allocatable_bytes": card.allocatable_source,
            "context_bytes": card.context_source,
            "peak_flops": card.peak_source,
        },
    }


def print_cards(cards: Sequence[Card], console: Console) -> None:
    """The card table; estimates are marked ~."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("card", no_wrap=True)
    for heading in ("driver MiB", "torch GiB", "GB/s", "TFLOP/s", "cc", "bf16"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("peak from", overflow="fold")
    for card in cards:
        capability = card.compute_capability
        table.add_row(
            card.name,
            _marked(f"{card.vram_bytes / units.MIB:,.0f}", card.vram_source),
            _marked(f"{card.allocatable_bytes / units.GIB:.2f}", card.allocatable_source),
            f"{card.bandwidth_bytes_per_second / 1e9:,.0f}" if card.bandwidth_bytes_per_second else "-",
            _marked(f"{card.peak_flops / 1e12:,.1f}" if card.peak_flops else "-", card.peak_source),
            f"{capability[0]}.{capability[1]}" if capability else "-",
            "yes" if card.native_bf16 else "no",
            card.peak_source.removeprefix("estimate: "),
        )
    console.print(table)
    console.print(Text("~ estimate; --json gives the source of every figure", style="dim"))


def _marked(figure: str, source: str) -> str:
    return f"~{figure}" if source.startswith("estimate") else figure
