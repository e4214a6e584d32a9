"""Checks files that `onecard tune --share` wrote and adds their runs to those that plans start from.

python bench/add_shared.py FILE...          # checks, and says what it would add
python bench/add_shared.py FILE... --add    # and adds it to onecard/plan/speed/shared_runs.py
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import sys
from pathlib import Path

from onecard.config.schema import RunConfig
from onecard.plan.cards import Card, matching_cards
from onecard.plan.speed import MeasuredRun, predict_speed
from onecard.plan.speed.measured_run import KEYS, SHARED_COLUMNS
from onecard.plan.speed.shared_runs import SHARED_RUNS
from onecard.plan.speed.times import least_seconds

SHARED = Path(__file__).parents[1] / "onecard" / "plan" / "speed" / "shared_runs.py"
END = ")\n# fmt: on\n"
LARGEST_BYTES = 64 * 1024
DATE = re.compile(r"20\d\d-\d\d-\d\d")
VERSION = re.compile(r"[0-9][0-9a-z.+]{0,30}")
# A card is never faster than its products at the published rate. One that is this much slower than estimated did
# something else, too, or was not the card that is named.
SLOWEST = 8.0


class BadFile(ValueError):
    """A file that cannot be added; the message says why."""


def runs_in(text: str, known: tuple[MeasuredRun, ...] = SHARED_RUNS) -> list[MeasuredRun]:
    """The runs of a shared file that are not known yet; BadFile if anything in it is not as `tune` writes it."""
    if len(text) > LARGEST_BYTES:
        raise BadFile(f"larger than {LARGEST_BYTES:,} bytes")
    rows = csv.DictReader(text.splitlines(), strict=True)
    try:
        if tuple(rows.fieldnames or ()) != SHARED_COLUMNS:
            raise BadFile(f"its first line is not {','.join(SHARED_COLUMNS)}")
        found = [_run(row, line) for line, row in enumerate(rows, start=2)]
    except csv.Error as problem:
        raise BadFile(f"it is not CSV: {problem}") from None
    if not found:
        raise BadFile("it has no runs")
    return [run for run in dict.fromkeys(found) if run not in known]


def _run(row: dict[str, str], line: int) -> MeasuredRun:
    def refuse(why: str) -> BadFile:
        return BadFile(f"line {line}: {why}")

    if None in row or None in row.values():
        raise refuse("too many or too few columns")
    cards = matching_cards(row["card"]) if row["card"].strip() else ()
    if len(cards) != 1:
        raise refuse(f"card {row['card'][:60]!r} is not one that onecard gpus lists; add it to card_table.py first")
    if not DATE.fullmatch(row["date"]):
        raise refuse(f"date {row['date'][:20]!r} is not like 2026-11-19")
    for name in ("driver", "torch"):
        if not VERSION.fullmatch(row[name]):
            raise refuse(f"{name} {row[name][:40]!r} is not a version")
    try:
        config = RunConfig().replace({key: _value(row[key]) for key in KEYS})
        speed = float(row["tokens_per_second"])
    except ValueError:
        raise refuse("not a config and a speed") from None
    _check_speed(speed, config, cards[0], refuse)
    return MeasuredRun(
        card=cards[0].name,
        tokens_per_second=round(speed),
        source=f"sent by its owner, driver {row['driver']}, torch {row['torch']}, {row['date']}",
        **{key: getattr(config, key) for key in KEYS},
    )


def _value(text: str) -> object:
    """The value of a cell of CSV: as Python printed it."""
    if text in ("True", "False"):
        return text == "True"
    if not text:
        return None
    return float(text) if re.fullmatch(r"[0-9.e+-]+", text) else text


def _check_speed(speed: float, config: RunConfig, card: Card, refuse) -> None:  # type: ignore[no-untyped-def]
    if not math.isfinite(speed) or speed <= 0:
        raise refuse(f"{speed} tokens/s")
    predicted = predict_speed(config, card, "onecard")
    if predicted is None:
        raise refuse(f"the figures of {card.name} are not known, so its speed cannot be checked")
    fastest = config.tokens_per_step / least_seconds(config, card)
    if speed > fastest:
        raise refuse(f"{speed:,.0f} tokens/s: {card.name} cannot do more than {fastest:,.0f} of this config")
    if speed * SLOWEST < predicted.tokens_per_second.likely:
        raise refuse(f"{speed:,.0f} tokens/s: less than {1 / SLOWEST:.0%} of what is estimated for {card.name}")


def with_runs(module: str, runs: list[MeasuredRun]) -> str:
    """The text of shared_runs.py with more runs."""
    assert module.endswith(END)
    return module.removesuffix(END) + "".join(f"    {_line(run)},\n" for run in runs) + END


def _line(run: MeasuredRun) -> str:
    values = run._asdict()
    said = (f"{name}={json.dumps(value) if isinstance(value, str) else repr(value)}" for name, value in values.items())
    return f"MeasuredRun({', '.join(said)})"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--add", action="store_true")
    options = parser.parse_args(arguments)
    found: list[MeasuredRun] = []
    for path in options.files:
        try:
            runs = runs_in(path.read_text(encoding="utf-8"), (*SHARED_RUNS, *found))
        except (BadFile, OSError, UnicodeDecodeError) as problem:
            sys.stderr.write(f"{path}: {problem}\n")
            return 1
        found += runs
        sys.stdout.writelines(f"{path}: {run.description}\n" for run in runs)
    if options.add:
        SHARED.write_text(with_runs(SHARED.read_text(), found))
    sys.stdout.write(f"{len(found)} new runs{' added' if options.add else ''}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
