"""Predicted against measured speed of nanoGPT, and each row's error when it is left out of the fit.

    PYTHONPATH=. python bench/speed_errors.py               # every row, as fitted and left out
    PYTHONPATH=. python bench/speed_errors.py --fit         # fit the rates again and print them
    PYTHONPATH=. python bench/speed_errors.py --markdown    # the table of docs/explain/speed.md
    PYTHONPATH=. python bench/speed_errors.py --public      # public runs of all cards, each card left out of the fit
    PYTHONPATH=. python bench/speed_errors.py --rows FILE   # rows of bench/nanogpt_speed.py, predicted as they are

Left out means: the rates are fitted again (bench/speed_fit.py) without the row and without every other row of the same
config, then predict it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from bench.speed_fit import fit_figures, fit_geforce, fit_h200, paced, update_alone_seconds
from bench.speed_rows import Row, h200_rows, profiled_rows, public_rows, rtx_4070_rows
from onecard.plan.cards import Card
from onecard.plan.speed.predict import predict_speed
from onecard.plan.speed.rates import (
    ADA_GEFORCE_RATES,
    FIGURES_SPREAD,
    H200_RATES,
    Rates,
    estimated_rates,
    rates_by_figures,
)
from onecard.plan.speed.times import step_times


@dataclass(frozen=True)
class Error:
    """Errors of tokens per second: predicted over measured, less one."""

    row: Row
    predicted: float  # tokens per second
    built: float
    left_out: float | None


def errors_of(rows: list[Row], fit_rows: list[Row], fit: Callable[[list[Row]], Rates], rates: Rates) -> list[Error]:
    """Every timed row, as predicted and as predicted by a fit without it."""
    found = []
    for row in rows:
        if row.step_seconds is None:
            continue
        others = [other for other in fit_rows if not row.same_config(other)]
        without = None if len(others) == len(fit_rows) else replace(fit(others), power=rates.power)
        predicted = row.config.tokens_per_step / step_times(row.config, row.card, paced(rates, row)).step
        left_out = (
            row.step_seconds / step_times(row.config, row.card, paced(without, row)).step - 1 if without else None
        )
        found.append(Error(row, predicted, predicted / row.tokens_per_second - 1, left_out))
    return found


def all_errors() -> list[Error]:
    """Errors of all rows the rates come from, and of the one that only checks them."""
    h200, rtx_4070 = h200_rows(), rtx_4070_rows()
    return [
        *errors_of(h200, h200, fit_h200, H200_RATES),
        *errors_of(rtx_4070, rtx_4070[:2], fit_geforce, ADA_GEFORCE_RATES),
    ]


@dataclass(frozen=True)
class PublicError:
    """A public run, as planned and as planned without any run of its card."""

    row: Row
    planned: float  # tokens per second
    left_out: float
    spread: float  # of a card without runs

    @property
    def inside(self) -> bool:
        """Whether the range of the plan without the card's runs holds the run."""
        return abs(self.row.tokens_per_second / self.left_out - 1) <= self.spread


def public_errors() -> list[PublicError]:
    """Every public run. The H200's own rates never saw one, and they are all that an H100 is planned from."""
    rows, found = public_rows(), []
    fitted = [row for row in rows if row.card.architecture != "Hopper"]
    for card in dict.fromkeys(row.card for row in rows):
        known = estimated_rates(card)
        without, spread = known.rates, FIGURES_SPREAD
        if card.architecture != "Hopper":
            without = _without_runs(card, [row for row in fitted if row.card != card])
        for row in rows:
            if row.card == card:
                tokens = row.config.tokens_per_step
                planned, left_out = (
                    tokens / step_times(row.config, card, rates).step for rates in (known.rates, without)
                )
                found.append(PublicError(row, planned, left_out, spread))
    return found


def _without_runs(card: Card, others: list[Row]) -> Rates:
    """As planned if only the others were known. One card has no tensor cores: without it, it counts as an older one."""
    figures = fit_figures(others)
    return rates_by_figures(card, *figures, without_tensor_cores=figures[-1])


def public_markdown(errors: list[PublicError]) -> str:
    """The table of public runs in docs/explain/speed.md."""
    lines = [
        "| card | config | measured tokens/s | planned | error | left out | in its range |",
        "|---|---|---|---|---|---|---|",
    ]
    for e in errors:
        measured, inside = e.row.tokens_per_second, "yes" if e.inside else "no"
        planned, left_out = (f"{speed / measured - 1:+.0%}" for speed in (e.planned, e.left_out))
        lines.append(
            f"| {e.row.card.name} | {e.row.name} | {measured:,.0f} | {e.planned:,.0f} | {planned} | {left_out} | "
            f"±{e.spread:.0%}: {inside} |"
        )
    return "\n".join(lines) + "\n"


def markdown(errors: list[Error]) -> str:
    """The table of docs/explain/speed.md."""
    lines = [
        "| card | config | measured tokens/s | predicted | error | left out of the fit |",
        "|---|---|---|---|---|---|",
    ]
    for e in errors:
        left_out = f"{e.left_out:+.1%}" if e.left_out is not None else "never in it"
        lines.append(
            f"| {e.row.card.name} | {e.row.name} | {e.row.tokens_per_second:,.0f} | {e.predicted:,.0f} | "
            f"{e.built:+.1%} | {left_out} |"
        )
    return "\n".join(lines) + "\n"


def verdict(row: Row) -> str:
    """How far a row is from its prediction, and whether its range contains it."""
    speed = predict_speed(row.config, row.card, row.trainer)
    assert speed
    if row.step_seconds is None:
        return "not decided: too few quiet steps"
    inside = "inside" if speed.tokens_per_second.contains(row.tokens_per_second) else "OUTSIDE"
    return f"{speed.tokens_per_second.likely / row.tokens_per_second - 1:+.1%} {inside} ±{speed.spread:.0%}"


def kind_errors(row: Row, rates: Rates) -> str:
    """The relative error of each kind of kernel, and of each thing timed."""
    times = step_times(row.config, row.card, rates, row.trainer)
    kinds = {
        "products": (times.matmuls, row.matmul_seconds),
        "attention": (times.attention, row.attention_seconds),
        "rest": (times.memory_bound + times.loss + times.optimizer, row.rest_seconds),
        "update": (update_alone_seconds(row.config, row.card, rates), row.update_seconds),
        "step": (times.step, row.step_seconds),
        "evaluation": (times.evaluation / 2 / row.config.eval_iters, row.evaluation_seconds),
    }
    return " ".join(f"{kind} {p / m - 1:+.1%}" if m else f"{kind} -" for kind, (p, m) in kinds.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--public", action="store_true")
    parser.add_argument("--rows", type=Path)
    args = parser.parse_args()
    if args.fit:
        print(fit_h200(h200_rows()))
        print(fit_geforce(rtx_4070_rows()[:2]))
    elif args.markdown:
        print(markdown(all_errors()), end="")
    elif args.public:
        errors = public_errors()
        print(public_markdown(errors), end="")
        print(f"fitted to all: {fit_figures([row for row in public_rows() if row.card.architecture != 'Hopper'])}")
        off = sorted(abs(e.left_out / e.row.tokens_per_second - 1) for e in errors)
        print(f"left out: median {median(off):.1%}, {sum(e.inside for e in errors)} of {len(errors)} in their range")
    elif args.rows:
        for row in profiled_rows(args.rows, timed=True):
            print(f"{row.name:70} tokens/s {verdict(row)}; seconds: {kind_errors(row, H200_RATES)}")
    else:
        for row in h200_rows():
            print(f"{row.name:70} seconds: {kind_errors(row, H200_RATES)}")
        for e in all_errors():
            left_out = f"{e.left_out:+.1%}" if e.left_out is not None else "-"
            print(f"{e.row.card.name:18} {e.row.name:70} tokens/s {e.built:+.1%}, left out {left_out}")


if __name__ == "__main__":
    main()
