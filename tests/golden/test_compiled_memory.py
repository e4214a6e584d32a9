"""Predicted against measured: nanoGPT compiled on an H200 (sm_90, torch 2.11), every row and phase of nanogpt_h200.csv.

Two recorded runs show more: the tape's steady state is the real one event by event. Whether a measured run had to tune
its kernels depends on what ran on that machine before it (Inductor keeps a cache on disk), so a row may have been
measured `cold` or not; that is worth up to 14 % of reserved bytes in the first evaluation of a tiny model.
"""

from __future__ import annotations

import csv
import gzip
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from onecard.config.schema import RunConfig
from onecard.paper.device import H200
from onecard.paper.tape import Tape, peaks
from onecard.plan.memory.nanogpt.compiled.tape import compiled_tape
from onecard.plan.memory.replay import Replay, replay

FOLDER = Path(__file__).parent
WHOLE = "n_layer n_head n_embd block_size batch_size gradient_accumulation_steps vocab_size".split()
PHASES = ("eval0", "train", "eval")
TRACES = {path.name.split("_")[-1].partition(".")[0]: path for path in sorted(FOLDER.glob("compiled_trace_*.json.gz"))}

Row = dict[str, str]
Event = tuple[str, int, int]  # "alloc" or "free", block number (-1: older than the window), bytes asked for


def config_of(row: Row) -> RunConfig:
    keys = {key: int(row[key]) for key in WHOLE}
    return RunConfig().replace(
        keys | {"dtype": row["dtype"], "dropout": float(row["dropout"]), "bias": row["bias"] == "True", "compile": True}
    )


with (FOLDER / "nanogpt_h200.csv").open() as file:
    ROWS = [row for row in csv.DictReader(file) if row["compile"] == "True"]


def name_of(index: int) -> str:
    row = ROWS[index]
    text = "{n_layer}/{n_head}/{n_embd}-T{block_size}-B{batch_size}x{gradient_accumulation_steps}-V{vocab_size}-{dtype}"
    return f"{index}-" + text.format(**row)


FITTING = [index for index, row in enumerate(ROWS) if row["ok"] == "True"]


@cache
def tape_of(index: int, cold: bool) -> Tape:
    return compiled_tape(config_of(ROWS[index]), H200, cold=cold)


@cache
def predicted(index: int, cold: bool = True) -> Replay:
    row = ROWS[index]
    limit_bytes = int(float(row["cap_gib"]) * 2**30) if row["cap_gib"] else None
    return replay(tape_of(index, cold), limit_bytes=limit_bytes)


def errors(index: int, what: str, cold: bool = True) -> list[float]:
    """Relative errors of one row: allocated or reserved, by phase."""
    column = {"allocated": "alloc", "reserved": "reserved"}[what]
    phases = predicted(index, cold).phases
    return [getattr(phases[phase], f"{what}_bytes") / int(ROWS[index][f"{phase}_{column}"]) - 1 for phase in PHASES]


@pytest.mark.parametrize("index", FITTING, ids=name_of)
def test_allocated_is_within_half_a_percent_in_every_phase(index: int) -> None:
    assert max(map(abs, errors(index, "allocated"))) < 0.005


@pytest.mark.parametrize("index", FITTING, ids=name_of)
def test_allocated_without_the_allocator_is_within_two_and_a_half_percent(index: int) -> None:
    # blocks that cannot be split are counted whole by the allocator only
    found = peaks(tape_of(index, cold=True))
    row = ROWS[index]
    assert max(abs(found[phase].allocated_bytes / int(row[f"{phase}_alloc"]) - 1) for phase in PHASES) < 0.025


@pytest.mark.parametrize("index", FITTING, ids=name_of)
def test_reserved_in_training_is_within_five_percent(index: int) -> None:
    assert max(map(abs, errors(index, "reserved")[1:])) < 0.05


def test_reserved_is_within_five_percent_in_every_phase_on_nine_rows_of_ten() -> None:
    near = [index for index in FITTING if max(map(abs, errors(index, "reserved"))) < 0.05]
    assert len(near) >= 0.9 * len(FITTING)


def test_reserved_is_within_one_percent_on_nine_rows_of_ten_once_the_cache_on_disk_is_known() -> None:
    best = [
        [
            min(abs(cold), abs(warm))
            for cold, warm in zip(errors(i, "reserved"), errors(i, "reserved", False), strict=True)
        ]
        for i in FITTING
    ]
    assert len([row for row in best if max(row) < 0.01]) >= 0.9 * len(FITTING)


def test_half_of_all_reserved_figures_are_right_to_the_byte() -> None:
    figures = [error for index in FITTING for error in errors(index, "reserved")]
    assert figures.count(0) >= 0.5 * len(figures)


@pytest.mark.parametrize(("n_embd", "reserved_mib"), [(384, 3580), (512, 3682), (576, 3754)])
def test_what_tuning_writes_over_is_cloned_only_below_the_peak(n_embd: int, reserved_mib: int) -> None:
    # 16 x 1024 tokens of 4 x 512 or 4 x 576 halves are more than a cache of 60 MiB, 4 x 384 are less: only these are
    # cloned by the second of two timed configurations, in the room that the first one's flush has made
    key = ["12", str(n_embd), "1024", "16", "float16"]
    columns = "n_layer n_embd block_size batch_size dtype".split()
    index = next(index for index in FITTING if [ROWS[index][column] for column in columns] == key)
    assert int(ROWS[index]["eval0_reserved"]) == reserved_mib * 2**20
    assert predicted(index).phases["eval0"].reserved_bytes == reserved_mib * 2**20


# recorded runs


def load(name: str) -> tuple[RunConfig, dict[str, list[list[Any]]], list[list[Any]]]:
    """Config, events by phase, and all events: [action, address, bytes]."""
    with gzip.open(TRACES[name], "rt") as file:
        trace = json.load(file)
    phases: dict[str, list[list[Any]]] = {}
    current: list[list[Any]] = []
    for event in trace["events"]:
        if event[0] == "phase":
            current = phases.setdefault(event[1], [])
        else:
            current.append(event)
    return config_of(trace["config"]), phases, trace["events"]


def recorded(events: list[list[Any]]) -> list[Event]:
    """Allocations and frees, blocks numbered within the window."""
    numbers: dict[int, int] = {}
    found: list[Event] = []
    for action, address, size in events:
        if action == "alloc":
            numbers[address] = len(found)
            found.append(("alloc", len(found), size))
        elif action == "free":
            found.append(("free", numbers.pop(address, -1), size))
    return found


def written(tape: Tape, events: list[int]) -> list[Event]:
    """The tape's events in the same form."""
    return recorded(
        [
            ["alloc", event, tape.sizes[event]] if event >= 0 else ["free", ~event, tape.sizes[~event]]
            for event in events
        ]
    )


def with_frees_sorted(events: list[Event]) -> list[Event]:
    """Consecutive frees, sorted: Inductor deletes buffers in the order of their names, we in the order of creation."""
    found: list[Event] = []
    frees: list[Event] = []
    for event in events:
        if event[0] == "free":
            frees.append(event)
        else:
            found += [*sorted(frees), event]
            frees = []
    return found + sorted(frees)


def in_phase(tape: Tape, phase: str) -> list[int]:
    starts = {name: start for start, name in tape.phases}
    end = min((start for start in starts.values() if start > starts[phase]), default=len(tape.events))
    return tape.events[starts[phase] : end]


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("phase", ["train", "eval"])
def test_the_steady_state_is_the_recorded_run_event_by_event(name: str, phase: str) -> None:
    config, phases, _ = load(name)
    real = recorded(phases["step2"] + phases["update2"] if phase == "train" else phases["eval"])
    tape = compiled_tape(config, H200)
    ours = written(tape, in_phase(tape, phase)[-len(real) :])
    for index, (mine, theirs) in enumerate(zip(with_frees_sorted(ours), with_frees_sorted(real), strict=True)):
        assert mine == theirs, f"event {index}"


@pytest.mark.parametrize("name", TRACES)
def test_a_recorded_run_reserves_what_is_predicted_to_the_byte(name: str) -> None:
    config, _, events = load(name)
    now = most = 0
    for event in events:
        if event[0] in ("segment_alloc", "segment_free"):
            now += event[2] if event[0] == "segment_alloc" else -event[2]
            most = max(most, now)
    assert replay(compiled_tape(config, H200)).reserved_bytes == most


def test_work_grows_linearly_with_layers() -> None:
    config = RunConfig().replace({"batch_size": 4, "block_size": 256, "dtype": "bfloat16"})
    few, more, many = (len(compiled_tape(config.replace({"n_layer": n}), H200).events) for n in (8, 16, 24))
    assert many - more == more - few
