"""The answer of `onecard tune`: a table of ways while they are measured, the verdict, JSON, and the config file."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from onecard import units
from onecard.config.command import train_command
from onecard.config.recipes import RECIPES
from onecard.config.resolve import Resolved, assignments
from onecard.config.schema import KEYS
from onecard.config.shown import typed
from onecard.plan.speed.measured_run import KEYS as KEYS_OF_A_RUN
from onecard.plan.speed.measured_run import SHARED_COLUMNS
from onecard.plan.tuning import AS_FAST, Tried, Way
from onecard.report.live_line import redraws
from onecard.report.strict import strict
from onecard.report.tables import print_table
from onecard.runs.tuned import Tuned


def tune_json(tuned: Tuned) -> dict[str, object]:
    """The fastest way's patch, every way with what was predicted and measured, and the machine."""
    best = tuned.best
    content: dict[str, object] = strict(
        {
            "schema": 1,
            "patch": best.way.patch if best else {},
            "environment": _environment(best.way) if best else {},
            "tokens_per_second": best.tokens_per_second if best else None,
            "gain": tuned.gain,
            "candidates": [_way_json(each) for each in tuned.tried],
            "machine": tuned.machine,
            "calibration": tuned.calibration,
        }
    )
    return content


def shared_text(tuned: Tuned, *, date: str) -> str:
    """What was measured as CSV, a row for each run: names of card, driver and torch, and figures; nothing personal."""
    said = io.StringIO()
    rows = csv.DictWriter(said, SHARED_COLUMNS, lineterminator="\n")
    rows.writeheader()
    machine = tuned.machine
    named = {key: machine.get(key) or "" for key in ("driver", "torch")} | {"card": machine.get("name") or ""}
    for run in (each.timed for each in tuned.tried if each.timed):
        settings = {key: getattr(run.config, key) for key in KEYS_OF_A_RUN}
        figures = {
            key: getattr(run, key) for key in ("tokens_per_second", "reserved_bytes", "process_bytes", "threads")
        }
        rows.writerow(named | {"date": date} | settings | figures)
    return said.getvalue()


def _way_json(tried: Tried) -> dict[str, object]:
    return {
        "patch": tried.way.patch,
        "environment": _environment(tried.way),
        "predicted_tokens_per_second": tried.way.predicted_tokens_per_second,
        "tokens_per_second": tried.tokens_per_second,
        "predicted_bytes": tried.way.predicted_bytes,
        "process_bytes": tried.process_bytes,
        "state": tried.state,
        "said": tried.said or None,
    }


def _environment(way: Way) -> dict[str, str]:
    return {"OMP_NUM_THREADS": str(way.threads)} if way.threads else {}


def print_tune(tuned: Tuned, resolved: Resolved, console: Console, *, written: str | None) -> None:
    """The verdict, what to type, and a row for each way."""
    console.print(verdict(tuned), soft_wrap=True)
    console.print(f"  type: {_command(tuned, resolved, written)}", soft_wrap=True)
    console.print()
    for line in machine_lines(tuned.machine):
        console.print(f"  {line}", soft_wrap=True, markup=False, highlight=False)
    console.print()
    print_table(_table(tuned.tried, []), console)
    if tuned.calibration:
        here = f"kept in {tuned.calibration}"
        console.print(here if tuned.is_on_cpu else f"{here}: plans for this card use it", soft_wrap=True, markup=False)


def machine_lines(machine: dict[str, Any]) -> Iterator[str]:
    """What was measured of the machine itself, as far as it tells."""
    products = machine.get("products") or []
    if machine.get("device") == "cpu":
        fastest = max(each["flops_per_second"] for each in products)
        cores = units.things(machine["cores"], "core")
        yield f"{machine.get('name') or 'processor'}, {cores}: {fastest / 1e9:,.0f} GFLOP/s in products"
    if machine.get("device") != "cuda":
        return
    held = machine.get("other_bytes")
    memory = [f"{units.mib(machine['allocatable_bytes'])} for torch"]
    memory += [] if held is None else [f"other programs hold {units.mib(held)}"]
    memory += [f"a process's context {units.mib(machine['context_bytes'])}"] if machine.get("context_bytes") else []
    driver = f", driver {machine['driver']}" if machine.get("driver") else ""
    yield f"{machine['name']}{driver}: {', '.join(memory)}"
    largest = {each["dtype"]: each for each in products}  # the last of each type is the largest
    rates = [f"{dtype} {units.flops(each['flops_per_second'])}" for dtype, each in largest.items()]
    yield (
        f"products: {', '.join(rates)}; copies: {machine['bandwidth_bytes_per_second'] / 1e9:,.0f} GB/s; "
        f"a launch: {1e6 * machine['launch_seconds']:.1f} µs"
    )
    if load := machine.get("load"):
        yield _load_words(load)


def _load_words(load: dict[str, Any]) -> str:
    """`20 s under load: 2,610 to 2,475 MHz, 199 of 200 W, 66 °C, products 4% slower at the end; slowed by heat`"""
    said = []
    if load["first_sm_mhz"] and load["sm_mhz"]:
        said.append(f"{load['first_sm_mhz']:,.0f} to {load['sm_mhz']:,.0f} MHz")
    if load["watts"]:
        limit = f" of {load['limit_watts']:.0f}" if load["limit_watts"] else ""
        said.append(f"{load['watts']:.0f}{limit} W")
    if load["celsius"]:
        said.append(f"{load['celsius']:.0f} °C")
    slower = 1 - load["last_flops_per_second"] / load["first_flops_per_second"]
    said.append(f"products {slower:.0%} slower at the end" if slower >= 0.01 else "products as fast at the end")
    why = f"; slowed by {', '.join(load['slowed_by'])}" if load["slowed_by"] else ""
    return f"{load['seconds']:.0f} s under load: {', '.join(said)}{why}"


def verdict(tuned: Tuned) -> str:
    """The fastest way, where there was one to compare it with, and else why there was none."""
    best = tuned.best
    assert best
    assert best.tokens_per_second
    speed = f"{best.tokens_per_second:,.0f} tokens/s"
    if not any(each.tokens_per_second for each in tuned.tried if each is not best):
        return f"{_name(best.way)}: {speed}; {_why_alone(tuned)}"
    ahead = any((each.tokens_per_second or 0.0) > best.tokens_per_second for each in tuned.tried)
    if tuned.is_as_given(best.way) and ahead:
        return f"the config as given is as fast as any other way, within {AS_FAST:.0%}: {speed}"
    if tuned.is_as_given(best.way):
        return f"the config as given is the fastest way that was measured: {speed}"
    gain = tuned.gain
    than = f", {gain:.2f} times as fast as the config as given" if gain else ""
    return f"fastest: {_name(best.way)}: {speed}{than}"


def _why_alone(tuned: Tuned) -> str:
    """Why only one way was measured, where nothing can be called the fastest."""
    others = {each.state for each in tuned.tried if not each.tokens_per_second}
    if "no time left" in others:
        return "nothing else was measured in the time (--minutes gives more)"
    if len(tuned.tried) < len(tuned.ways):
        return "nothing else was measured before the end"
    if others == {"cannot win"}:
        return "nothing else was measured: every other way is predicted to be slower"
    return "no other way ran" if others else "there is no other way to try"


def _command(tuned: Tuned, resolved: Resolved, written: str | None) -> str:
    best = tuned.best
    assert best
    way = best.way
    environment = "" if tuned.is_as_given(way) else way.environment
    source, patch = (written, {}) if written else (resolved.source, {**resolved.typed, **way.patch})
    return train_command(source, patch, environment=environment, trainer="onecard")


def _name(way: Way) -> str:
    """`8 x 64 sequences, grad_checkpoint=selective`, `16 x 1 sequences as given, 2 threads`"""
    config = way.config
    sequences = f"{config.batch_size} x {config.gradient_accumulation_steps} sequences"
    others = {
        key: value for key, value in way.patch.items() if key not in ("batch_size", "gradient_accumulation_steps")
    }
    said = [f"{key}={typed(key, value)}" for key, value in others.items()]
    threads = [units.things(way.threads, "thread")] if way.threads else []
    return ", ".join([sequences if way.patch else f"{sequences} as given", *said, *threads])


def _table(tried: list[Tried], waiting: list[Way]) -> Table:
    table = Table()
    for name in ("way", "predicted tokens/s", "measured", "memory"):
        table.add_column(name, justify="left" if name == "way" else "right")
    for each in tried:
        speed = f"{each.tokens_per_second:,.0f}" if each.tokens_per_second else each.state
        table.add_row(
            _name(each.way), _predicted(each.way), speed, units.mib(each.process_bytes) if each.process_bytes else ""
        )
    for way in waiting:
        table.add_row(_name(way), _predicted(way), "", "")
    return table


def _predicted(way: Way) -> str:
    return f"{way.predicted_tokens_per_second:,.0f}" if way.predicted_tokens_per_second else "not known"


def tuned_text(tuned: Tuned, resolved: Resolved) -> str:
    """A config file with the fastest settings: every key that is not nanoGPT's default or that the recipe would set."""
    best = tuned.best
    assert best
    config = resolved.config.replace(best.way.patch)
    needed = RECIPES.get(config.recipe, {}).keys()
    values = {key: value for key, value in config.model_dump().items() if key in needed or value != KEYS[key].default}
    threads = "" if tuned.is_as_given(best.way) or not best.way.threads else f", with {best.way.environment}"
    where = f"{tuned.machine.get('name') or tuned.machine.get('device')}, torch {tuned.machine.get('torch')}"
    measured = f"{best.tokens_per_second:,.0f} tokens/s{threads}"
    return f"# Measured by onecard tune on {where}:\n# {measured}.\n{assignments(values)}"


class LiveTable:
    """What is measured, as it is measured: a table that is redrawn on a terminal, a line for each way elsewhere."""

    def __init__(self, tuned: Tuned, console: Console, *, until: float) -> None:
        self._tuned, self._console, self._until = tuned, console, until
        self._doing = ""
        self._said = 0  # ways that have their line

    def say(self, doing: str) -> None:
        """What is done now."""
        self._doing = doing

    def tell(self) -> None:
        """Another way has been tried."""
        if redraws(self._console):
            return
        for each in self._tuned.tried[self._said :]:
            said = f"{each.tokens_per_second:,.0f} tokens/s" if each.tokens_per_second else each.state
            predicted = f" (predicted: {_predicted(each.way)})" if each.tokens_per_second else ""
            self._console.print(f"{_name(each.way)}: {said}{predicted}", soft_wrap=True)
        self._said = len(self._tuned.tried)

    def __rich__(self) -> Any:
        left = max(0.0, self._until - time.monotonic())
        line = Text(f"{self._doing}, at most {units.duration(left)} left")
        waiting = self._tuned.ways[len(self._tuned.tried) :]
        return Group(_table(self._tuned.tried, waiting), line) if self._tuned.ways else line


@contextmanager
def live_table(tuned: Tuned, console: Console, *, until: float) -> Iterator[LiveTable]:
    """The table while the block runs; `until` is when the time is over, on the monotonic clock."""
    table = LiveTable(tuned, console, until=until)
    if not redraws(console):
        yield table
        return
    with Live(table, console=console, transient=True, refresh_per_second=4):
        yield table
