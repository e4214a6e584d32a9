"""Memory as a person reads it: the parts with their reasons, a bar, and what each change does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from onecard import units
from onecard.plan.memory.predict import PROCESS, Memory
from onecard.plan.plan import Plan, TrainerPlan
from onecard.plan.sensitivity import Change
from onecard.plan.speed import TrainerName
from onecard.report.console import print_wrapped
from onecard.report.summary import TRAINER_NAMES, verdict
from onecard.report.tables import print_table

if TYPE_CHECKING:
    from onecard.plan.nvidia_smi import DriverFigures

BAR_CELLS = 40
WIDE = 80  # columns: words have room beside a bar
SMALL_SHARE = 0.01  # parts below it share a line
_WITH_CONTEXT = "its context included"
PHASE_NAMES = {"eval0": "first evaluation", "train": "training", "eval": "later evaluations"}


def print_memory(planned: TrainerPlan, plan: Plan, console: Console, *, trainer: TrainerName) -> None:
    """The memory section of a plan, for one trainer's loop."""
    memory = planned.memory
    print_parts(memory, console, trainer=trainer)
    bar, said = _bar(memory, plan.available_bytes), verdict(planned, plan)
    if bar and console.width < WIDE:
        console.print(Text(bar.rstrip()))
    print_wrapped(said, console, label=bar if console.width >= WIDE else "")
    if memory.ran_out:
        console.print(f"runs out in {memory.ran_out}")
    console.print(_phases_line(memory))
    console.print(Text("assumed: " + "; ".join(memory.assumptions), style="dim"))


def print_parts(memory: Memory, console: Console, *, trainer: TrainerName) -> None:
    """What is alive at the peak, part by part, and why."""
    console.print()
    print_table(_parts_table(memory, TRAINER_NAMES[trainer]), console)


def _bar(memory: Memory, available: int | None) -> str:
    """How full the card is, in cells; empty where no card is known."""
    if available is None:
        return ""
    filled = min(BAR_CELLS, round(BAR_CELLS * memory.process_bytes / max(available, 1)))
    return "█" * filled + "░" * (BAR_CELLS - filled) + "  "


def _parts_table(memory: Memory, trainer: str) -> Table:
    """The parts at the peak of the run, and what else is in the driver's figure."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    peak = memory.peak_phase
    table.add_column(f"{trainer}, {PHASE_NAMES[peak.name]}")
    table.add_column("MiB", justify="right")
    table.add_column("share", justify="right")
    table.add_column("why", overflow="fold")
    small = [part for part in memory.parts_of(peak.name) if part.size_bytes < SMALL_SHARE * memory.process_bytes]
    for part in [*memory.parts_of(peak.name), *memory.parts_of(PROCESS)]:
        if part not in small:
            _add_part(table, part.name, part.size_bytes, memory, part.why)
    if names := ", ".join(part.name for part in small if part.size_bytes >= units.MIB):
        _add_part(table, "the rest", sum(part.size_bytes for part in small), memory, names)
    whole = "process (nvidia-smi)" if memory.knows_context else "reserved by PyTorch"
    table.add_row(whole, f"{memory.process_bytes / units.MIB:,.0f}", "", "", style="bold")
    return table


def _add_part(table: Table, name: str, size_bytes: int, memory: Memory, why: str) -> None:
    table.add_row(name, f"{size_bytes / units.MIB:,.0f}", f"{size_bytes / memory.process_bytes:.0%}", why)


def _phases_line(memory: Memory) -> Text:
    """Every phase in one sentence, the peak first."""
    peak = memory.peak_phase
    others = [phase for phase in memory.phases.values() if phase is not peak]
    rest = ", ".join(f"{PHASE_NAMES[phase.name]} {phase.allocated_bytes / units.MIB:,.0f}" for phase in others)
    return Text.assemble(
        ("peak", "bold"),
        f" in {PHASE_NAMES[peak.name]}, {peak.moment}: {peak.allocated_bytes / units.MIB:,.0f} MiB allocated, "
        f"{peak.reserved_bytes / units.MIB:,.0f} reserved; {rest} allocated",
    )


def print_sensitivity(changes: Sequence[Change], console: Console, *, of_each_card: bool = False) -> None:
    """One line per changed setting."""
    console.print()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    trainer = f" under {TRAINER_NAMES[changes[0].trainer]}" if changes else ""
    table.add_column(f"one change{trainer}{', on each card' if of_each_card else ''}")
    table.add_column("process MiB", justify="right")
    table.add_column("difference", justify="right")
    for change in changes:
        whose = "" if change.trainer == changes[0].trainer else f" (under {TRAINER_NAMES[change.trainer]})"
        table.add_row(
            f"{change.key}={change.value}{whose}",
            f"{change.process_bytes / units.MIB:,.0f}",
            f"{change.difference_bytes / units.MIB:+,.0f}",
        )
    print_table(table, console)
    console.print(
        Text("eval_iters changes nothing: evaluation keeps no graph, and reads one batch at a time", style="dim")
    )


def print_driver_figures(driver: DriverFigures, memory: Memory, console: Console) -> None:
    """What the driver showed beside what was predicted."""
    console.print()
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("the driver showed")
    table.add_column("MiB", justify="right")
    table.add_column("")
    shown = driver.process_bytes
    not_told = "not shown per process here (N/A, as on Windows), only for the whole card"
    table.add_row("this process", "?" if shown is None else _mib(shown), not_told if shown is None else _WITH_CONTEXT)
    missing = "" if memory.knows_context else "without the card's context: name the card with --gpu to compare"
    table.add_row("  predicted", _mib(memory.process_bytes), missing)
    if shown and (unexplained := driver.unexplained_bytes(memory)) is not None:
        table.add_row("  unexplained", f"{unexplained / units.MIB:+,.0f}", f"{unexplained / shown:+.1%} of the process")
    if shown is None and memory.knows_context and driver.used_bytes is not None:
        rest = (driver.used_bytes - memory.process_bytes) / units.MIB
        table.add_row("all minus predicted", f"{rest:+,.0f}", "the desktop and other programs, and what is unexplained")
    if driver.other_bytes is not None:
        why = "the desktop and others; this process's own CUDA context is in its figure above"
        table.add_row("other programs", _mib(driver.other_bytes), why)
    if driver.used_bytes is not None:
        table.add_row("in all", _mib(driver.used_bytes), f"of {_mib(driver.total_bytes)}" if driver.total_bytes else "")
    print_table(table, console)


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / units.MIB:,.0f}"
