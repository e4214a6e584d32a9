"""A plan as a person reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import astuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onecard import units
from onecard.config.schema import KEYS
from onecard.plan.asked import is_roomy
from onecard.plan.loss import why_no_forecast
from onecard.plan.make import Plan, TrainerPlan
from onecard.plan.place import Place
from onecard.plan.speed import Speed
from onecard.report.advice import loss_lines, print_fit, print_fixes, print_proposals
from onecard.report.memory import TRAINER_NAMES, print_memory, print_sensitivity
from onecard.report.tables import print_table
from onecard.report.talk import print_findings


def print_plan(plan: Plan, console: Console, *, explain: bool = False) -> None:
    """The plan as a person reads it; with --hours or --tokens, what it proposes instead of what was given."""
    if plan.proposals is not None:
        console.print(_grid(_place_lines(plan.place, plan.available_bytes)))
        print_proposals(plan.proposals, console)
        return
    console.print(Text(plan.resolved.source or "the packaged default (no config named)", style="bold"))
    console.print(_grid([*_run_lines(plan), *_place_lines(plan.place, plan.available_bytes), *_loss_lines(plan)]))
    print_trainers(plan, console)
    for name, planned in plan.trainers.items():
        print_memory(planned.memory, console, trainer=name, available_bytes=plan.available_bytes)
    if plan.fixes and needs_fixing(plan):
        print_fixes(plan, console)
    if plan.fit:
        print_fit(plan.fit, plan, console)
    if plan.sensitivity is not None:
        print_sensitivity(plan.sensitivity, console)
    print_findings(plan.findings, console)
    if explain:
        console.print()
        print_origins(plan, console)


HIGH_MFU = 0.9  # from here on it is said that attention is counted whole
Line = tuple[str, str]  # a label, or nothing where the line goes on, and what it says


def _grid(lines: Iterable[Line]) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    for label, words in lines:
        grid.add_row(label, words)
    return grid


def _run_lines(plan: Plan) -> Iterator[Line]:
    config, params = plan.config, plan.params
    extras = (", biases" if config.bias else "") + (f", dropout {config.dropout:g}" if config.dropout else "")
    yield (
        "model",
        f"{units.things(config.n_layer, 'layer')}, {units.things(config.n_head, 'head')} of {config.head_size}, "
        f"width {config.n_embd}, "
        f"context {config.block_size:,}, vocabulary {config.vocab_size:,}{extras}",
    )
    yield (
        "",
        f"{units.count(params.nanogpt)} parameters by nanoGPT's count, {params.total:,} in all, "
        f"{params.decayed:,} decayed in {params.decayed_tensors} tensors",
    )
    yield (
        "update",
        f"{units.things(config.batch_size, 'sequence')} x "
        f"{config.gradient_accumulation_steps:,} micro-batch{'es' if config.gradient_accumulation_steps > 1 else ''} x "
        f"{units.things(config.block_size, 'token')} = {config.tokens_per_step:,} tokens",
    )
    yield (
        "run",
        f"{config.max_iters:,} updates = {units.count(config.total_tokens)} tokens, "
        f"{_few_digits(plan.tokens_per_parameter)} per parameter; "
        f"{units.count(plan.flops_per_token)} FLOPs a token, {plan.flops_per_token * config.total_tokens:.3g} in all",
    )
    yield "precision", f"{config.dtype}, {'compiled' if config.compile else 'eager'}"


def _few_digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _loss_lines(plan: Plan) -> Iterator[Line]:
    lines = loss_lines(plan.loss) if plan.loss else [f"unknown: {why_no_forecast(plan.config)}"]
    yield "loss", lines[0]
    yield from (("", line) for line in lines[1:])


def print_trainers(plan: Plan, console: Console) -> None:
    """The trainers side by side: memory, verdict and speed, and what the speeds stand on."""
    console.print()
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("predicted", style="bold")
    columns = [_trainer_column(planned, plan.available_bytes) for planned in plan.trainers.values()]
    if plan.nanogpt and plan.nanogpt.condition:
        for name, column in zip(plan.trainers, columns, strict=True):
            column["vocabulary"] = f"{plan.config.vocab_size:,}" + (" if told: see below" if name == "nanogpt" else "")
    for name in plan.trainers:
        table.add_column(f"under {TRAINER_NAMES[name]}")
    for label in columns[0]:
        table.add_row(label, *(column[label] for column in columns))
    print_table(table, console)
    for name, planned in plan.trainers.items():
        if planned.speed:
            basis = (
                f"{TRAINER_NAMES[name]}'s speed: {planned.speed.basis}; nearest measured: {planned.nearest_measured}"
            )
            console.print(Text(basis, style="dim"))
    if plan.nanogpt and plan.nanogpt.condition:
        console.print(Text.assemble(("nanoGPT", "bold"), f": {plan.nanogpt.condition}"))
    if plan.nanogpt and plan.onecard and plan.nanogpt.memory.fits is False and plan.onecard.memory.fits:
        console.print(Text("nanoGPT does not fit, onecard does:", style="bold"), plan.train_command, soft_wrap=True)


def _trainer_column(planned: TrainerPlan, available_bytes: int | None) -> dict[str, str]:
    """Label and words, line by line."""
    memory, speed = planned.memory, planned.speed
    whole = "for the process" if memory.knows_context else "without the card's context"
    lines = {"memory": f"{units.mib(memory.process_bytes)} {whole}"}
    if available_bytes is None:
        lines["fits"] = "no card to set it against"
    elif memory.fits:
        barely = "" if memory.is_safe(available_bytes) and not memory.tight else ", barely"
        lines["fits"] = f"yes{barely}, {units.mib(max(0, available_bytes - memory.process_bytes))} left"
    else:
        no = "perhaps not" if memory.is_near(available_bytes) else "no"
        much = f"{units.mib(memory.process_bytes - available_bytes)} too much"
        lines["fits"] = f"{no}, {'refused at the limit' if memory.refused_whole else much}"
    training, *evaluations = (memory.phases[name].allocated_bytes / units.MIB for name in ("train", "eval0", "eval"))
    lines["allocated"] = f"{training:,.0f} MiB training, {max(evaluations):,.0f} evaluating"
    if speed is None:
        return lines | {"speed": "unknown: no card whose speed is known"}
    low, likely, high = (units.duration(seconds) for seconds in astuple(speed.total_seconds))
    return lines | {
        "speed": f"{speed.tokens_per_second.likely / 1000:,.1f}k tokens/s ({_spread(speed)})",
        "": f"{speed.micro_batch_seconds.likely * 1000:,.0f} ms a micro-batch, MFU {speed.mfu:.0%}{_counted(speed)}",
        "the run takes": f"{likely} ({low} to {high})",
    }


def _spread(speed: Speed) -> str:
    """`±15%`; where the card's peak bounds it, `-15% to +3%`"""
    rate = speed.tokens_per_second
    less, more = 1 - rate.low / rate.likely, rate.high / rate.likely - 1
    return f"±{speed.spread:.0%}" if more > 0.99 * speed.spread else f"-{less:.0%} to +{more:.0%}, the card's peak"


def _counted(speed: Speed) -> str:
    """What an MFU near or above 100 % counts besides what the card computes."""
    if speed.mfu < HIGH_MFU:
        return ""
    return f" ({speed.needed_share:.0%} if only causal attention counts)"


def needs_fixing(plan: Plan) -> bool:
    """Whether the run does not fit, or with less than a tenth of the card to spare."""
    memory = plan.trainers[plan.in_need].memory
    return plan.available_bytes is not None and not is_roomy(memory, plan.available_bytes)


def _place_lines(place: Place | None, available_bytes: int | None) -> Iterator[Line]:
    if place is None or available_bytes is None:
        yield "card", "none known: name one with --gpu, or a size with --vram"
        return
    card = place.card
    named = f" (named by {place.source})" if place.source else ""
    speed = f", {units.flops(card.peak_flops)} dense 16-bit" if card.peak_flops else ""
    estimate = " (estimate)" if "estimate" in card.allocatable_source else ""
    yield (
        "card",
        f"{card.name}{named}: {units.mib(card.vram_bytes)} by the driver, "
        f"{units.gib(card.allocatable_bytes)} for torch{estimate}{speed}",
    )
    held = ", ".join(f"{p.name} {units.mib(p.used_bytes) if p.used_bytes else '?'}" for p in place.programs[:4])
    if place.other_bytes:
        yield "", f"other programs hold {units.mib(place.other_bytes)}" + (f": {held}" if held else "")
    limited = " (memory_limit)" if available_bytes < place.available_bytes else ""
    yield "", f"{units.gib(available_bytes)} left for this process, its CUDA context included{limited}"


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
