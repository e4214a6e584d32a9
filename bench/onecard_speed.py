"""Predicted against measured speed of onecard's own trainer, and what the card's power limit costs.

PYTHONPATH=. python bench/onecard_speed.py                  # rows of tests/golden, and what was benched
PYTHONPATH=. python bench/onecard_speed.py --fit            # fit the power limit again (bench/speed_fit.py)
PYTHONPATH=. python bench/onecard_speed.py --rows FILE      # rows of bench/onecard_rows.py --speed
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.speed_errors import kind_errors, verdict
from bench.speed_fit import fit_power
from bench.speed_rows import H200, Row, benched_rows, own_rows
from onecard.plan.speed.rates import H200_RATES
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--rows", type=Path)
    args = parser.parse_args()
    if args.fit:
        rates = fit_power()
        print(rates.power, f"written_out_byte={rates.costs.written_out_byte:.3f}")
        return
    for row in own_rows(args.rows) if args.rows else [*own_rows(), *benched_rows()]:
        print(f"{row.trainer} {row.name:75} tokens/s {verdict(row)}; seconds: {kind_errors(row, H200_RATES)}")


if __name__ == "__main__":
    main()
