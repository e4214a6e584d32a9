"""Tables of measurements of onecard's own trainer beside nanoGPT's."""

from __future__ import annotations

import csv
from pathlib import Path

from onecard.config.resolve import resolve
from onecard.config.schema import RunConfig
from onecard.plan.cards import find_card
from onecard.plan.counts import count_params
from onecard.plan.memory.predict import predict_nanogpt
from onecard.units import MIB

GOLDEN = Path(__file__).parents[1] / "tests/golden"
CONTEXT_BYTES = 758 * MIB  # of nanoGPT's process on the H200
SAME = ("n_layer", "n_head", "n_embd", "block_size", "batch_size", "vocab_size", "dtype", "compile")
NAMES = {"384/512": "30M", "384/1024": "40M", "576/1024": "77M", "768/1024": "124M", "1024/1024": "350M"}


def _rows(name: str) -> list[dict[str, str]]:
    with (GOLDEN / name).open() as file:
        return list(csv.DictReader(file))


def _nanogpt(ours: dict[str, str], theirs: list[dict[str, str]]) -> int | None:
    """Measured process bytes of nanoGPT for the same config, without dropout or cap; None if not measured."""
    found = [
        int(row["process_bytes"])
        for row in theirs
        if all(row[key] == ours[key] for key in SAME)
        and float(row["dropout"]) == 0
        and not row["cap_gib"]
        and row["process_bytes"]
    ]
    return max(found, default=None)


def _planned(ours: dict[str, str]) -> int:
    """Process bytes the plan predicts for nanoGPT, where nobody measured them."""
    flags = [(key, ours[key]) for key in (*SAME, "gradient_accumulation_steps")]
    return predict_nanogpt(resolve("batch_size = 1", flags=flags).config, find_card("H200")).process_bytes


def notes_table() -> str:
    """Markdown: what the driver shows for nanoGPT and for onecard, for the notes' configs."""
    theirs = _rows("nanogpt_h200.csv")
    lines = [
        "| model | T | batch | dtype | mode | nanoGPT MiB | onecard MiB | ratio | beyond 16 B a parameter |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in _rows("onecard_h200_notes.csv"):
        used = int(row["process_bytes"])
        measured = _nanogpt(row, theirs)
        before = measured or _planned(row)
        state = 16 * _params(row)
        left, left_before = int(row["train_reserved"]) - state, before - CONTEXT_BYTES - state  # without contexts
        name = NAMES[f"{row['n_embd']}/{row['block_size']}"]
        mode = "compiled" if row["compile"] == "True" else "eager"
        lines.append(
            f"| {name} | {row['block_size']} | {row['batch_size']} | {row['dtype']} | {mode} "
            f"| {before / MIB:,.0f}{'' if measured else ' (planned)'} | {used / MIB:,.0f} "
            f"| {used / before:.2f} | {left / left_before:.0%} |"
        )
    return "\n".join(lines) + "\n"


def beside_table(file: str) -> str:
    """Markdown: both trainers at the same micro-batch without a limit, one command per model."""
    lines = [
        "| model | trainer | tokens/s | driver shows MiB | beyond 16 B a parameter MiB | first step s | val loss |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = [row for row in _rows(file) if not row.get("memory_limit")]
    for theirs, ours in zip(rows[::2], rows[1::2], strict=True):
        name = NAMES[f"{ours['n_embd']}/{ours['block_size']}"]
        state = 16 * _params(ours)
        before, after = (int(row["reserved_bytes"]) - state for row in (theirs, ours))
        faster = float(ours["tokens_per_second"]) / float(theirs["tokens_per_second"])
        recomputes = "" if ours["grad_checkpoint"] == "none" else f", {ours['grad_checkpoint']}"
        for row, speed, share in ((theirs, "", ""), (ours, f" ({faster:.2f})", f" ({after / before:.0%})")):
            trainer = "nanoGPT" if row is theirs else f"onecard{recomputes}"
            lines.append(
                f"| {name}, batch {row['batch_size']} | {trainer} | {float(row['tokens_per_second']):,.0f}{speed} "
                f"| {int(row['process_bytes']) / MIB:,.0f} | {(int(row['reserved_bytes']) - state) / MIB:,.0f}{share} "
                f"| {row['first_step_seconds']} | {float(row['val_loss']):.3f} ± {float(row['val_loss_error']):.3f} |"
            )
    return "\n".join(lines) + "\n"


def limit_table(*names: str) -> str:
    """Markdown: each trainer's micro-batches under 12 GiB, in the order in which they were measured."""
    lines = [
        "| model | dtype | trainer | micro-batch | seed | tokens/s | driver MiB | loss at 10 | 25 | last | val loss |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in (row for name in names for row in _rows(name) if row["memory_limit"]):
        model = NAMES[f"{row['n_embd']}/{row['block_size']}"]
        recomputes = "" if row["grad_checkpoint"] == "none" else f", {row['grad_checkpoint']}"
        trainer = "nanoGPT" if row["trainer"] == "nanogpt" else f"onecard{recomputes}"
        start = f"| {model} | {row['dtype']} | {trainer} | {row['batch_size']} | {row['seed']} "
        if not row["tokens_per_second"]:
            lines.append(start + "| out of memory | | | | | |")
            continue
        lines.append(
            f"{start}| {float(row['tokens_per_second']):,.0f} | {int(row['process_bytes']) / MIB:,.0f} "
            f"| {float(row['loss_at_10']):.3f} | {row['loss_at_25'] and format(float(row['loss_at_25']), '.3f')} "
            f"| {float(row['loss_last']):.3f} "
            f"| {float(row['val_loss']):.3f} ± {float(row['val_loss_error']):.3f} |"
        )
    return "\n".join(lines) + "\n"


def _params(row: dict[str, str]) -> int:
    keys = {key: int(row[key]) for key in ("n_layer", "n_head", "n_embd", "block_size", "vocab_size")}
    return count_params(RunConfig.model_validate(keys)).total
