"""A plan as a person reads it: the answer first, then the run and its memory; with details, all that is known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import astuple, replace
from math import prod
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onecard import units
from onecard.config.known_data import EMBEDDED
from onecard.config.schema import KEYS
from onecard.models.ways import shards
from onecard.plan.counts import multiplied_params
from onecard.plan.loss import why_no_forecast
from onecard.plan.plan import Plan, TrainerPlan
from onecard.report.advice import loss_lines, most_useful, print_fit, print_fixes, print_proposals
from onecard.report.console import wrapped
from onecard.report.memory import print_driver_figures, print_memory, print_parts, print_sensitivity
from onecard.report.messages import print_findings
from onecard.report.several_cards import Line, cards_details
from onecard.report.summary import (
    TRAINER_NAMES,
    counted,
    needs_room,
    spread,
    summary_lines,
    verdict,
    vocabulary_condition,
)
from onecard.report.tables import print_table

if TYPE_CHECKING:
    from onecard.plan.nvidia_smi import DriverFigures

WORTH_SAYING = 256 * units.MIB  # of memory, in a run that has room
MORE = "more: --details (every fix with its command, sources), --explain (every key), --json"


def print_plan(
    plan: Plan, console: Console, *, explain: bool = False, details: bool = False, driver: DriverFigures | None = None
) -> None:
    """The plan as a person reads it; with --hours or --tokens, what it proposes instead of what was given."""
    if plan.proposals is not None:
        print_proposals(plan, console)
        return
    if plan.several_cards:  # all of the answer is about one of them, under onecard
        plan = replace(plan.of_a_rank, fixes=())
    print_lines(summary_lines(plan, driver=driver), console)
    console.print()
    print_lines(
        [*_run_lines(plan, details=details), *_data_lines(plan), *_place_lines(plan), *_segments_lines(plan)], console
    )
    if plan.nanogpt and (condition := vocabulary_condition(plan.nanogpt.told_vocabulary)):
        print_lines([("nanoGPT", condition)], console)
    narrower = (
        plan.fit or plan.sensitivity is not None or explain
    ) and not details  # a question of its own: that answer alone
    if details and plan.several_cards:
        for words in cards_details(plan.several_cards):
            print_lines([("cards", words)], console)
    if details:
        print_lines(_loss_lines(plan), console)
        if not plan.several_cards:  # whose speed is not one card's
            print_trainers(plan, console)
        for name, planned in plan.trainers.items():
            print_memory(planned, plan, console, trainer=name)
    elif not narrower:
        print_parts(plan.first.memory, console, trainer="nanogpt" if plan.nanogpt else "onecard")
    if plan.fixes and needs_room(plan) and not narrower:
        print_fixes(plan, console, details=details)
    if plan.fit:
        print_fit(plan.fit, plan, console)
    if plan.sensitivity is not None:
        print_sensitivity(plan.sensitivity, console, of_each_card=plan.several_cards is not None)
    if driver:
        print_driver_figures(driver, plan.first.memory, console)
    print_findings(plan.findings, console, details=details)
    if explain:
        console.print()
        print_origins(plan, console)
    if not details:
        console.print()
        console.print(Text(MORE, style="dim"))


def _keeping_the_update(plan: Plan) -> str:
    """What keeps the tokens of an update where a micro-batch or context was typed without it; empty elsewhere."""
    config, resolved, accumulation = plan.config, plan.resolved, "gradient_accumulation_steps"
    sizes = ("batch_size", "block_size", accumulation)
    if accumulation in plan.typed or not {*sizes} & plan.typed.keys() or config.init_from == "resume":
        return ""
    before = {
        key: resolved.overridden.get(key, KEYS[key].default if key in plan.typed else getattr(config, key))
        for key in sizes
    }
    tokens = prod(value for value in before.values() if isinstance(value, int))
    steps = max(1, round(tokens / (config.batch_size * config.block_size)))
    if tokens == config.tokens_per_step or steps == config.gradient_accumulation_steps:
        return ""
    reached = steps * config.batch_size * config.block_size
    kept = f"keeps the {tokens:,}" if reached == tokens else f"has {reached:,}, the nearest to the {tokens:,}"
    return f"; --{accumulation}={steps} {kept} of {plan.source or 'the default'}"


def _segments_lines(plan: Plan) -> Iterator[Line]:
    """What expandable segments would save under nanoGPT, which has them only if its environment asks for them."""
    if plan.card is None or plan.in_need != "nanogpt" or plan.expandable_segments:
        return
    fix = next((fix for fix in plan.fixes if fix.name == "expandable-segments"), None)
    listed = fix in most_useful(plan.fixes) if needs_room(plan) else fix is None or fix.saves_bytes < WORTH_SAYING
    if listed or not plan.first.memory.fits:
        return  # the list of what to change has it, it is not worth a line, or too much is missing
    saved = f"save {units.mib(fix.saves_bytes)}" if fix else "save nothing"
    yield "nanoGPT", f"expandable_segments would {saved}"


def print_lines(lines: Iterable[Line], console: Console) -> None:
    """Labels and words; words wrap beside their label, but a command stays in one piece to paste."""
    for label, words in lines:
        space = console.width - LABEL_WIDTH
        pieces = [words] if label.endswith("type") or space < 20 else wrapped(words, space)
        for number, piece in enumerate(pieces):
            beside = "" if number else label
            console.print(Text.assemble((f"{beside:<{LABEL_WIDTH}}", "bold"), piece), soft_wrap=True)


LABEL_WIDTH = 9


def _run_lines(plan: Plan, *, details: bool) -> Iterator[Line]:
    config, params = plan.config, plan.params
    extras = (", biases" if config.bias else "") + (f", dropout {config.dropout:g}" if config.dropout else "")
    named = "" if config.model == "gpt2" else f"{config.model}, "
    yield (
        "model",
        f"{named}{units.things(config.n_layer, 'layer')}, {units.things(config.n_head, 'head')} of {config.head_size}, "
        f"width {config.n_embd}, context {config.block_size:,}, vocabulary {config.vocab_size:,}{extras}: "
        f"{units.count(params.nanogpt)} parameters",
    )
    if not details and params.total > params.nanogpt:
        yield "", f"{params.total:,} with position embeddings, which nanoGPT does not count"
    if details:
        positions = " with position embeddings" if params.total > params.nanogpt else ""
        multiplied = multiplied_params(config)
        looked_up = f", {multiplied:,} multiplied" if multiplied < params.nanogpt else ""
        yield (
            "",
            f"{params.total:,} parameters{positions}{looked_up}, {params.decayed:,} of them decayed, in "
            f"{params.decayed_tensors} tensors",
        )
    how = f"{config.dtype}, {_way(plan)}"
    if config.eval_only:
        yield "run", f"one evaluation of {config.eval_iters:,} batches of each split, and no update; {how}"
        return
    yield (
        "update",
        f"{units.things(config.batch_size, 'sequence')} x "
        f"{config.gradient_accumulation_steps:,} micro-batch{'es' if config.gradient_accumulation_steps > 1 else ''} x "
        f"{units.things(config.block_size, 'token')} = {config.tokens_per_step:,} tokens{_keeping_the_update(plan)}",
    )
    yield (
        "run",
        f"{config.max_iters:,} updates = {units.count(config.total_tokens)} tokens, "
        f"{_few_digits(plan.tokens_per_parameter)} per parameter; {how}",
    )
    if details:
        exaflops = plan.flops_per_token * config.total_tokens / 1e18
        yield "", f"{units.count(plan.flops_per_token)} FLOPs per token, {exaflops:,.3g} exaFLOPs in all"


def _way(plan: Plan) -> str:
    """Whether blocks run compiled: not where the cards that were asked for share the model."""
    config = plan.config
    if plan.several_cards and shards(plan.several_cards.asked.ranks.as_run(config)):
        return "eager: the cards share the model"
    return "compiled" if config.compile else "eager"


def _few_digits(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"


def _loss_lines(plan: Plan) -> Iterator[Line]:
    lines = (
        loss_lines(plan.loss)
        if plan.loss
        else [f"no prediction: {why_no_forecast(plan.config, plan.data.train_tokens)}"]
    )
    yield "loss", lines[0]
    yield from (("", line) for line in lines[1:])


def print_trainers(plan: Plan, console: Console) -> None:
    """The trainers side by side: memory, verdict and speed, and what the speeds stand on."""
    console.print()
    table = Table(box=None, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("predicted", style="bold")
    columns = [_trainer_column(planned, plan) for planned in plan.trainers.values()]
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


def _trainer_column(planned: TrainerPlan, plan: Plan) -> dict[str, str]:
    """Label and words, line by line."""
    memory, speed = planned.memory, planned.speed
    whole = "for the process" if memory.knows_context else "without the card's context"
    lines = {"memory": f"{units.mib(memory.process_bytes)} {whole}", "fits": _short_verdict(planned, plan)}
    peaks = {name: phase.allocated_bytes / units.MIB for name, phase in memory.phases.items()}
    training = f"{peaks.pop('train'):,.0f} MiB training, " if "train" in peaks else "MiB: "
    lines["allocated"] = f"{training}{max(peaks.values()):,.0f} evaluating"
    if speed is None:
        return lines | {"speed": "unknown: no card whose speed is known"}
    low, likely, high = (units.duration(seconds) for seconds in astuple(speed.total_seconds))
    return lines | {
        "speed": f"{speed.tokens_per_second.likely / 1000:,.1f}k tokens/s ({spread(speed)})",
        "": f"{speed.micro_batch_seconds.likely * 1000:,.0f} ms a micro-batch, MFU {speed.mfu:.0%}{counted(speed)}",
        "the run takes": f"{likely} ({low} to {high})",
    }


def _short_verdict(planned: TrainerPlan, plan: Plan) -> str:
    """The verdict without its figures."""
    return verdict(planned, plan).partition(":")[0]


def _data_lines(plan: Plan) -> Iterator[Line]:
    """The data of the run, where its size is known; where not, what is assumed."""
    data, config = plan.data, plan.config
    if data.problem:
        refused = (
            "" if "pip install" in data.problem else f"; onecard train will refuse it: onecard data info {data.source}"
        )
        yield "data", f"{data.problem}{refused}"
        return
    if data.train_tokens is None:
        if config.dataset != EMBEDDED.name:
            yield "data", f"{config.dataset}: not found here, so its size is not checked"
        return
    epochs = data.epochs(config.total_tokens)
    read = f"read {epochs:,.2f} times" if epochs and epochs < 10 else f"read {epochs:,.0f} times"
    if config.eval_only:
        read = "only evaluated"
    held_out = f" ({data.held_out})" if data.held_out else ""
    val = "" if data.val_tokens is None else f", {units.count(data.val_tokens)} for validation{held_out}"
    source = data.source if data.here else f"{data.source} (not here)"
    yield "data", f"{source}: {units.count(data.train_tokens)} tokens{val}; {read}"


def _place_lines(plan: Plan) -> Iterator[Line]:
    place, available = plan.place, plan.available_bytes
    if place is None or available is None:
        yield "card", "none known: name one with --gpu, or a size with --vram"
        return
    card = place.card
    named = f" (named by {place.source})" if place.source else ""
    speed = f", {units.flops(card.peak_flops)} dense 16-bit" if card.peak_flops else ""
    estimate = " (estimate)" if "estimate" in card.allocatable_source else ""
    measured = f"; speed and context {card.calibration.source}" if card.calibration else ""
    yield (
        "card",
        f"{card.name}{named}: {units.mib(card.vram_bytes)} by the driver, "
        f"{units.mib(card.allocatable_bytes)} for torch{estimate}{speed}{measured}",
    )
    if available < place.available_bytes:
        yield "", f"memory_limit leaves {units.mib(available)} for this process, its CUDA context included"
    held = ", ".join(f"{p.name} {units.mib(p.used_bytes) if p.used_bytes else '?'}" for p in place.programs[:4])
    if held:
        yield "", f"other programs: {held}"


def print_origins(plan: Plan, console: Console) -> None:
    """Every key, its value, where it came from and what it means."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for heading in ("key", "value", "from", "meaning"):
        table.add_column(heading, overflow="fold")
    for key, said in KEYS.items():
        origin = plan.resolved.origins[key]
        value = str(getattr(plan.config, key))
        shown = value if getattr(plan.resolved.config, key) == getattr(plan.config, key) else f"{value} (auto)"
        table.add_row(key, shown, origin, said.meaning, style="" if origin != "default" else "dim")
    console.print(table)
