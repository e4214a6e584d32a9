"""Predicted against measured speed of onecard's own trainer, and what the card's power limit costs.

PYTHONPATH=. python bench/onecard_speed.py                  # rows of tests/golden, and what was benched
PYTHONPATH=. python bench/onecard_speed.py --fit            # fit the power limit again (bench/speed_fit.py)
PYTHONPATH=. python bench/onecard_speed.py --evaluations    # evaluation batches: every row, and the fit of their host
PYTHONPATH=. python bench/onecard_speed.py --rows FILE      # rows of bench/onecard_rows.py --speed
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from math import log
from pathlib import Path

from bench.speed_errors import kind_errors, verdict
from bench.speed_fit import fit_power
from bench.speed_rows import H200, OWN, OWN_CHECK, OWN_EAGER, Row, benched_rows, own_rows
from onecard.config.schema import RunConfig
from onecard.models.evaluation import eval_batch_size, eval_sequences
from onecard.plan.speed.rates import H200_RATES, Rates
from onecard.plan.speed.times import step_times


def error(row: Row) -> float:
    """Relative error of a row's predicted tokens per second."""
    assert row.step_seconds
    return row.step_seconds / step_times(row.config, H200, H200_RATES, row.trainer).step - 1


def table() -> str:
    """Markdown: every row, as predicted; part of docs/explain/speed.md."""
    lines = ["| config | measured tokens/s | predicted | error |", "|---|---|---|---|"]
    for row in own_rows():
        measured, predicted = row.tokens_per_second, row.tokens_per_second * (1 + error(row))
        lines.append(f"| {row.name} | {measured:,.0f} | {predicted:,.0f} | {error(row):+.1%} |")
    return "\n".join(lines) + "\n"


def evaluation_ratio(row: Row, rates: Rates = H200_RATES) -> float:
    """Measured over predicted seconds of a row's evaluation batches."""
    assert row.evaluation_seconds
    times = step_times(row.config, H200, rates, row.trainer)
    return row.evaluation_seconds / (times.evaluation / evaluation_batches(row.config))


def evaluation_batches(config: RunConfig) -> int:
    """Batches of one evaluation of our trainer, both splits."""
    return 2 * -(-eval_sequences(config) // eval_batch_size(config))


def fit_evaluations(rows: list[Row]) -> Rates:
    """The cost of a launch and of a batch with the least absolute logarithms of these compiled rows' ratios."""
    tried = (
        replace(H200_RATES, our_evaluation_launch_seconds=launch * 1e-6, our_evaluation_batch_seconds=batch * 1e-4)
        for launch in range(40, 60)
        for batch in range(8, 21)
    )
    return min(tried, key=lambda rates: sum(abs(log(evaluation_ratio(row, rates))) for row in rows))


def print_evaluations() -> None:
    own, check, eager = (own_rows(path) for path in (OWN, OWN_CHECK, OWN_EAGER))
    for row in [*own, *check, *eager]:
        assert row.evaluation_seconds
        print(f"{row.name:75} {row.evaluation_seconds * 1e3:6.2f} ms, {evaluation_ratio(row):.2f} times the predicted")
    compiled = [row for row in [*own, *check] if row.config.compile]
    for name, rows in (("all", compiled), ("without the rows set aside", own)):
        rates = fit_evaluations(rows)
        print(f"{name}: {rates.our_evaluation_launch_seconds=:.1e} {rates.our_evaluation_batch_seconds=:.1e}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--evaluations", action="store_true")
    parser.add_argument("--rows", type=Path)
    args = parser.parse_args()
    if args.evaluations:
        print_evaluations()
        return
    if args.fit:
        rates = fit_power()
        print(rates.power, f"written_out_byte={rates.costs.written_out_byte:.3f}")
        return
    for row in own_rows(args.rows) if args.rows else [*own_rows(), *benched_rows()]:
        print(f"{row.trainer} {row.name:75} tokens/s {verdict(row)}; seconds: {kind_errors(row, H200_RATES)}")


if __name__ == "__main__":
    main()
