"""What measurements of a benchmark come to, in JSON and in the table; the figures are worked out by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from onecard.config.schema import RunConfig
from onecard.plan.counts import count_params
from onecard.report.bench import bench_json, bench_plot, print_bench
from onecard.runs.measured import Measured, from_json, speedup, summaries

CONFIG = RunConfig(n_layer=2, n_head=2, n_embd=64, block_size=32, batch_size=4, gradient_accumulation_steps=2)
OURS = Measured(
    trainer="onecard",
    batch_size=4,
    gradient_accumulation_steps=2,
    grad_checkpoint="none",
    seed=1337,
    step_seconds=(0.5, 0.25, 0.25),
    first_step_seconds=1.5,
    tokens_per_step=256,
    losses=(10.5, 9.0),
    val_loss=9.25,
    val_loss_error=0.125,
    allocated_bytes=300_000_000,
    reserved_bytes=400_000_000,
    process_bytes=900_000_000,
    device="cpu",
    torch="2.13.0",
)
AGAIN = replace(
    OURS,
    seed=1338,
    step_seconds=(0.2, 0.2, 0.2),
    first_step_seconds=0.75,
    val_loss=8.75,
    reserved_bytes=410_000_000,
    process_bytes=None,
)
THEIRS = replace(OURS, trainer="nanogpt", step_seconds=(0.5,), val_loss=None, reserved_bytes=None, process_bytes=None)
TOO_LARGE = Measured(
    trainer="nanogpt",
    batch_size=8,
    gradient_accumulation_steps=1,
    grad_checkpoint="none",
    seed=1337,
    out_of_memory=True,
    tokens_per_step=256,
    device="cpu",
    torch="2.13.0",
)
FOUND = [OURS, TOO_LARGE, THEIRS, AGAIN]

# The JSON as programs read it, byte for byte: names, order, and how numbers are written.
SUMMARIES_JSON = (
    '[{"trainer": "nanogpt", "batch_size": 4, "gradient_accumulation_steps": 2, "grad_checkpoint": "none", '
    '"out_of_memory": false, "tokens_per_second": 512.0, "tokens_per_second_each": [512.0], "process_bytes": null, '
    '"reserved_bytes": null, "beyond_state_bytes": null, "val_loss": null, "val_loss_each": [], '
    '"first_step_seconds": [1.5]}, '
    '{"trainer": "nanogpt", "batch_size": 8, "gradient_accumulation_steps": 1, "grad_checkpoint": "none", '
    '"out_of_memory": true, "tokens_per_second": null, "tokens_per_second_each": [], "process_bytes": null, '
    '"reserved_bytes": null, "beyond_state_bytes": null, "val_loss": null, "val_loss_each": [], '
    '"first_step_seconds": []}, '
    '{"trainer": "onecard", "batch_size": 4, "gradient_accumulation_steps": 2, "grad_checkpoint": "none", '
    '"out_of_memory": false, "tokens_per_second": 1152.0, "tokens_per_second_each": [1024.0, 1280.0], '
    '"process_bytes": 900000000, "reserved_bytes": 410000000, "beyond_state_bytes": 356877952, "val_loss": 9.0, '
    '"val_loss_each": [9.25, 8.75], "first_step_seconds": [1.5, 0.75]}]'
)
MEASURED_JSON = (
    '{"trainer": "onecard", "batch_size": 4, "gradient_accumulation_steps": 2, "grad_checkpoint": "none", '
    '"seed": 1337, "out_of_memory": false, "step_seconds": [0.5, 0.25, 0.25], "first_step_seconds": 1.5, '
    '"tokens_per_step": 256, "losses": [10.5, 9.0], "val_loss": 9.25, "val_loss_error": 0.125, '
    '"allocated_bytes": 300000000, "reserved_bytes": 400000000, "process_bytes": 900000000, "device": "cpu", '
    '"torch": "2.13.0", "tokens_per_second": 1024.0}'
)


def test_the_json_is_the_same_byte_for_byte() -> None:
    answer = bench_json(FOUND, CONFIG)
    assert list(answer) == ["schema", "config", "tokens_per_step", "summaries", "speedup", "measured"]
    assert json.dumps(answer["summaries"]) == SUMMARIES_JSON
    assert json.dumps(bench_json([OURS], CONFIG)["measured"]) == f"[{MEASURED_JSON}]"
    assert json.dumps([answer["schema"], answer["tokens_per_step"], answer["speedup"]]) == "[1, 256, 2.25]"


def test_what_a_worker_prints_is_read_back_whole() -> None:
    for one in FOUND:
        assert from_json(json.loads(json.dumps(one.as_json()))) == one


def test_memory_beyond_the_state_is_what_16_bytes_a_parameter_leave() -> None:
    (ours,) = summaries([OURS], CONFIG)
    assert ours.beyond_state_bytes == 400_000_000 - 16 * count_params(CONFIG).total


def test_the_speedup_is_of_the_best_micro_batch_of_each() -> None:
    larger = replace(OURS, batch_size=8, gradient_accumulation_steps=1, step_seconds=(0.125,))
    assert speedup(summaries([OURS, larger, THEIRS], CONFIG)) == pytest.approx(2048 / 512)
    assert speedup(summaries([OURS, larger], CONFIG)) is None
    assert speedup(summaries([OURS, TOO_LARGE], CONFIG)) is None, "running out of memory is no speed"


def test_the_table_has_a_row_for_each_micro_batch() -> None:
    shown = StringIO()
    print_bench(FOUND, CONFIG, Console(file=shown, width=140))
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.getvalue().splitlines() if "│" in line]
    assert rows == [
        ["nanogpt", "4 x 2", "512", "", "", "", "", "1.5 s"],
        ["nanogpt", "8 x 1", "out of memory", "", "", "", "", ""],
        ["onecard", "4 x 2", "1,152", "± 11.1%", "858 MiB", "340 MiB", "9.0000", "1.5 s"],
    ]
    assert "onecard trains 2.25 times as many tokens per second as nanoGPT" in shown.getvalue()


def test_a_measurement_without_figures_is_said_to_have_none() -> None:
    shown = StringIO()
    print_bench([replace(TOO_LARGE, out_of_memory=False)], CONFIG, Console(file=shown, width=140))
    assert "no figures" in shown.getvalue()


def test_the_plot_has_a_line_for_each_measurement_that_trained() -> None:
    assert bench_plot(FOUND).count("<polyline") == 3


def test_a_loss_that_is_no_number_breaks_neither_json_nor_plot() -> None:
    found = [replace(OURS, losses=(10.5, float("nan"), float("inf"), 9.0), val_loss=float("nan")), AGAIN]
    json.dumps(bench_json(found, CONFIG), allow_nan=False)
    picture = bench_plot(found)
    assert "nan" not in picture
    assert "inf" not in picture
    assert picture.count("<polyline") == 2
