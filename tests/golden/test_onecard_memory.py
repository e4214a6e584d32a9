"""Predicted against measured: onecard's own trainer on an H200 (sm_90, torch 2.11), every row, phase and event.

onecard_h200_build.csv: `python bench/onecard_rows.py --rows rows.csv --out measured.csv --jobs 14 --traces traces`,
2026-11-16, looked at while the description was written; _check.csv: drawn at random, set aside, and opened when it was
done; _notes.csv: the notes' configs, likewise. onecard_trace_*.json.gz: every allocation and free of fourteen build
rows. _limits.csv: ten runs of written-out passes under a limit that they just fit, or just do not.

All were measured again whenever the trainer had changed. Two rows set aside were once traced to follow a change, and no
longer count as set aside. Of the others, 131 of 135 figures were exact when they were opened; the rest led back to the
traces of the build rows, where full recomputation without dropout ran two kernels in another order. The last 28 rows of
_check.csv came later, four of compiled blocks without recomputation and the 24 configs whose speed was set aside: all
84 figures were exact when they were opened.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from bench.measured import CARD, GOLDEN, Errors, Measured, measured_rows
from onecard.config.schema import RunConfig
from onecard.paper.device import H200
from onecard.paper.tape import Tape
from onecard.plan.memory.onecard.compiled.blocks import CompiledRun
from onecard.plan.memory.onecard.tape import onecard_tape
from onecard.plan.memory.predict import PHASES, predict_onecard
from onecard.plan.memory.replay import replay
from onecard.units import GIB, MIB, parse_bytes

ROWS = measured_rows(GOLDEN / "onecard_h200_build.csv")
BUILT_WITH = {row.name for row in ROWS} | {  # four of the notes' configs are among these
    "8/4/512 T768 B4x1 V50257 float32 compiled full dropout 0.1 expandable",
    "4/4/512 T1024 B3x1 V100288 bfloat16 compiled selective chunk 1024 dropout 0.1 bias",
}
SET_ASIDE = [
    row
    for name in ("check", "notes")
    for row in measured_rows(GOLDEN / f"onecard_h200_{name}.csv")
    if row.name not in BUILT_WITH
]
TRACES = {path.name.removesuffix(".json.gz"): path for path in sorted(GOLDEN.glob("onecard_trace_*.json.gz"))}

Event = tuple[str, int, int]  # "alloc" or "free", block number, bytes asked for


def named(row: Measured) -> str:
    return row.name.replace(" ", "-").replace("/", "_")


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_allocated_is_right_to_the_byte_in_every_phase(row: Measured) -> None:
    assert row.ok
    assert row.predicted.ok
    found = {phase: row.predicted.phases[phase].allocated_bytes for phase in PHASES}
    assert found == {phase: row.allocated_bytes(phase) for phase in PHASES}


def test_reserved_is_right_to_the_byte_in_every_phase_of_every_row() -> None:
    for phase in PHASES:
        assert Errors.of(row.reserved_error(phase) for row in [*ROWS, *SET_ASIDE]).largest == 0


@pytest.mark.parametrize("row", ROWS, ids=named)
def test_the_process_is_within_two_percent(row: Measured) -> None:
    assert abs(row.process_error) < 0.02


@pytest.mark.parametrize("row", SET_ASIDE, ids=named)
def test_rows_set_aside_are_within_the_limits(row: Measured) -> None:
    assert row.ok
    limit = 0.03 if row.config.compile else 0.01
    assert max(abs(row.allocated_error(phase)) for phase in PHASES) < limit
    assert abs(row.process_error) < 0.05


def test_every_figure_set_aside_is_right_to_the_byte() -> None:
    assert len(SET_ASIDE) == 73
    assert Errors.of(row.allocated_error(phase) for row in SET_ASIDE for phase in PHASES).largest == 0


LIMITED = measured_rows(GOLDEN / "onecard_h200_limits.csv")


def limit_bytes(row: Measured) -> int:
    return parse_bytes(row.columns["memory_limit"])


@pytest.mark.parametrize("row", LIMITED, ids=lambda row: f"{named(row)}-{row.columns['memory_limit']}")
def test_a_run_fits_its_limit_exactly_where_it_did(row: Measured) -> None:
    """Where it did not, a micro-batch could not be recorded, or was made smaller."""
    config = row.config.replace({"memory_limit": limit_bytes(row)})
    memory = predict_onecard(config, CARD, available_bytes=limit_bytes(row))
    assert memory.fits == (not row.columns["note"])
    assert not memory.tight
    if memory.fits:
        assert memory.process_bytes == row.process_bytes


def test_torch_counts_all_of_a_request_against_its_limit_and_a_driver_does_not() -> None:
    shown = 4096 * MIB
    assert [limit_bytes(row) for row in LIMITED if row.columns["note"]][-1] == shown + 6 * MIB
    refused = LIMITED[-1].config.replace({"memory_limit": shown})
    by_torch = predict_onecard(refused, CARD, available_bytes=shown)
    assert (by_torch.process_bytes, by_torch.fits, by_torch.refused_whole) == (shown, False, True)
    smaller_card = predict_onecard(refused.replace({"memory_limit": 12 * GIB}), CARD, available_bytes=shown)
    assert (smaller_card.fits, smaller_card.refused_whole) == (True, False)


HEADS = measured_rows(GOLDEN / "onecard_h200_speed_heads.csv")


def test_deep_and_narrow_models_with_heads_of_32_to_256_are_right_to_the_byte() -> None:
    """No trace of them was looked at: 13 rows, and 10 that were drawn at random (2026-11-20)."""
    assert len(HEADS) == 23
    assert Errors.of(row.allocated_error(phase) for row in HEADS for phase in PHASES).largest == 0


@pytest.mark.parametrize(
    ("keys", "once", "again"),
    [
        ({"n_head": 4, "n_embd": 256, "block_size": 2560, "batch_size": 5, "bias": True}, 1_088_330_240, 1_121_884_672),
        ({"n_embd": 1024, "block_size": 512, "batch_size": 4, "dropout": 0.1}, 1_873_996_800, 1_907_551_232),
        ({"n_embd": 1024, "block_size": 512, "batch_size": 4}, 1_656_825_344, 1_656_825_344),
    ],
)
def test_only_a_run_that_evaluates_between_updates_records_its_graph_again(
    keys: dict[str, Any], once: int, again: int
) -> None:
    """`onecard train` of ten updates, highest bytes in its records: with one evaluation at each end, and one every
    four updates (H200, torch 2.11.0+cu130, 2026-11-20)."""
    size = {"n_layer": 3, "n_head": 16, "vocab_size": 32_000, "gradient_accumulation_steps": 2, "dtype": "bfloat16"}
    config = RunConfig(max_iters=10, eval_iters=2).replace(size | keys)
    found = [
        predict_onecard(config.replace({"eval_interval": interval}), CARD).phases["train"].allocated_bytes
        for interval in (10, 4)
    ]
    assert found == [once, again]


def test_evaluation_stays_below_training_in_every_measured_row() -> None:
    for row in [*ROWS, *SET_ASIDE]:
        assert max(row.allocated_bytes("eval0"), row.allocated_bytes("eval")) < row.allocated_bytes("train")


def load(path: Path) -> tuple[Measured, list[list[Any]]]:
    with gzip.open(path, "rt") as file:
        trace = json.load(file)
    return Measured(trace["config"]), trace["events"]


def recorded(events: list[list[Any]]) -> list[Event]:
    """Allocations and frees in order, without those of compiling; blocks numbered in the order of allocation."""
    numbers: dict[int, int] = {}
    found: list[Event] = []
    for action, *rest in events:
        if action in ("alloc", "free") and rest[2:] != ["compiling"]:
            address, size = rest
            if action == "alloc":
                numbers[address] = len(found)
            found.append((action, numbers[address], size))
    return found


def written(tape: Tape) -> list[Event]:
    first = {event: index for index, event in enumerate(tape.events) if event >= 0}
    return [
        ("alloc", index, tape.sizes[event]) if event >= 0 else ("free", first[~event], tape.sizes[~event])
        for index, event in enumerate(tape.events)
    ]


def comparable(events: list[Event]) -> list[Event]:
    """Blocks renumbered, consecutive frees sorted: autocast empties its cache in the order of a hash table.

    Without blocks of 8 bytes: while a graph is recorded, attention makes its generator's state a little earlier.
    """
    found: list[Event] = []
    frees: list[Event] = []
    numbers: dict[int, int] = {}
    for action, block, size in events:
        if size == 8:
            continue
        if action == "free":
            frees.append((action, numbers[block], size))
        else:
            numbers[block] = len(numbers)
            found += [*sorted(frees), (action, numbers[block], size)]
            frees = []
    return found + sorted(frees)


def tape_of(name: str, row: Measured, *, cold: bool) -> Tape:
    """As it was recorded; of compiled runs `cold` tells whether kernels are timed first."""
    if "_compiled_" in name:
        return CompiledRun(row.config, H200, cold=cold).tape(rounds=1)
    return onecard_tape(row.config, H200, rounds=1)


@pytest.mark.parametrize("name", TRACES)
def test_the_tape_is_the_recorded_run_event_by_event(name: str) -> None:
    row, events = load(TRACES[name])
    tape = tape_of(name, row, cold=False)  # then nothing is timed, as if every kernel had been before
    ours, real = comparable(written(tape)), comparable(recorded(events))
    for index, (mine, theirs) in enumerate(zip(ours, real, strict=False)):
        assert mine == theirs, f"event {index} of {len(real)}"
    assert len(ours) == len(real)


def test_a_tape_of_another_mode_is_not_the_recorded_run() -> None:
    row, events = load(TRACES["onecard_trace_eager_full"])
    other = onecard_tape(row.config.replace({"grad_checkpoint": "selective"}), H200)
    assert comparable(written(other)) != comparable(recorded(events))


@pytest.mark.parametrize("name", TRACES)
def test_the_recorded_segments_add_up_to_what_is_predicted(name: str) -> None:
    row, events = load(TRACES[name])
    now = most = 0
    for action, *rest in events:
        now += {"segment": 1, "given back": -1}.get(action, 0) * (rest[1] if len(rest) > 1 else 0)
        most = max(most, now)
    expandable = row.config.expandable_segments
    assert replay(tape_of(name, row, cold=True), expandable_segments=expandable).reserved_bytes == most
