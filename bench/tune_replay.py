"""`onecard tune` replayed on recorded runs of an H200, on a card that the plan does not know: no card is needed.

PYTHONPATH=. python bench/tune_replay.py            # what tune picks, beside the best of every way there is
PYTHONPATH=. python bench/tune_replay.py --speed    # recorded runs that were left out of a calibration: their speed
PYTHONPATH=. python bench/tune_replay.py --memory   # recorded processes that were left out: their memory

The card that tune sees has the H200's published figures and its context. Its rates begin as those of another maker's
card (for --memory its context, too, as an average one), so what the plan gets to know comes from the replayed runs.
A way that was recorded takes its recorded time. Others take what the rates of the real H200 say, times what the most
similar recorded run of the same model was faster or slower than those; the memory they take is what the plan says of
the real card, within 1 % of what was measured (docs/explain/memory.md). Every timed run is off by noise of 1 %.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shutil
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from functools import cache
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any
from unittest.mock import patch

from bench.measured import CARD, GOLDEN, measured_rows
from bench.measured import Measured as Process
from onecard.config.known_data import EMBEDDED
from onecard.config.schema import SHAPE_KEYS, RunConfig
from onecard.inputs.calibration import FOLDER
from onecard.models.ways import recomputations
from onecard.plan.calibrated import calibrated
from onecard.plan.calibration import DECISIVE_KEYS, Calibration, TimedRun, decisive
from onecard.plan.cards import Card, plain_card
from onecard.plan.fit import micro_batches
from onecard.plan.memory.predict import context_of_onecard, predict_onecard
from onecard.plan.place import Place
from onecard.plan.search import largest
from onecard.plan.speed import ONECARD_RUNS, MeasuredRun, predict_speed
from onecard.plan.speed.fitted import known_speed
from onecard.plan.speed.measured import distance
from onecard.plan.speed.rates import H200_RATES, OTHER_MAKERS_RATES, CardRates
from onecard.plan.speed.times import step_times
from onecard.runs.measured import Measured
from onecard.units import GIB

NOISE = 0.01
LIMITS = (12 * GIB, 24 * GIB, 48 * GIB, 96 * GIB)  # the first that the run as recorded fits into
UNKNOWN_RATES = CardRates(rates=OTHER_MAKERS_RATES, spread=0.6, basis="nothing is known of this card")
BEGUN = "2026-11-19"


@contextmanager
def unknown_card() -> Iterator[Card]:
    """The H200 as a card of which only the published figures are known."""
    plain = plain_card(CARD.vram_bytes)
    context = {name: getattr(plain, name) for name in ("context_bytes", "context_source", "context_error_bytes")}
    with patch("onecard.plan.speed.fitted.estimated_rates", lambda _: UNKNOWN_RATES):
        known_speed.cache_clear()
        yield replace(CARD, **context)
    known_speed.cache_clear()


@contextmanager
def made_driver(module: ModuleType) -> Iterator[None]:
    """That module in place of pynvml."""
    before = sys.modules.get("pynvml")
    sys.modules["pynvml"] = module
    try:
        yield
    finally:
        del sys.modules["pynvml"]
        if before:
            sys.modules["pynvml"] = before


def modelled(config: RunConfig) -> float:
    """Tokens per second by the rates of the real card."""
    return config.tokens_per_step / step_times(config, CARD, H200_RATES, "onecard").step


def _shape(config: RunConfig) -> list[object]:
    return [getattr(config, key) for key in SHAPE_KEYS]


@cache
def true_speed(config: RunConfig) -> float:
    """Tokens per second of a way on the recorded card."""
    config = decisive(config).replace({"memory_limit": None})
    of_model = [run for run in ONECARD_RUNS if _shape(run.config) == _shape(config)]
    near = min(of_model, key=lambda run: distance(run, config, CARD))
    return modelled(config) * near.tokens_per_second / modelled(near.config)


@cache
def true_memory(config: RunConfig) -> tuple[int, int]:
    """Bytes that a way reserves and shows on the recorded card."""
    memory = predict_onecard(config, CARD)
    return memory.process_bytes - memory.context_bytes, memory.process_bytes


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What tune picked for a config, and the best of every way."""

    config: RunConfig
    asked: float  # tokens per second of the config as recorded
    picked: float
    best: float
    ways: int  # that were in the sweep
    measured: int  # by tune

    @property
    def behind(self) -> float:
        return 1 - self.picked / self.best


def limit_of(config: RunConfig) -> int:
    return next(limit for limit in LIMITS if true_memory(config)[1] <= limit)


def sweep(config: RunConfig) -> list[float]:
    """Tokens per second of every micro-batch, recomputation and mode that fits, at equal tokens per update."""
    found = []
    for compiled in (True, False):
        for mode in recomputations(config):
            base = config.replace({"grad_checkpoint": mode, "compile": compiled})
            ways = [base.in_micro_batches(size) for size in micro_batches(config)]
            fits = largest(ways, lambda way: true_memory(way)[1] <= (config.memory_limit or math.inf), start=0)
            found += [true_speed(way) for way in ways if fits and way.batch_size <= fits.batch_size]
    return found


def tuned(config: RunConfig, home: Path, seed: int = 1) -> Tuned:
    """The whole command on a config, its processes replayed; `home` keeps the data."""
    config = config.replace({"memory_limit": limit_of(config)})
    found = _command(config, home, random.Random(seed))
    ways = [*sweep(config), *(true_speed(config.replace(each["patch"])) for each in found["candidates"])]
    return Tuned(
        config=config,
        asked=true_speed(config),
        picked=true_speed(config.replace(found["patch"])),
        best=max(ways),
        ways=len(ways),
        measured=sum(1 for each in found["candidates"] if each["tokens_per_second"]),
    )


def _command(config: RunConfig, home: Path, chance: random.Random) -> dict[str, Any]:
    """What `onecard tune --json` prints for a config, on a machine with a made card that was never tuned."""
    from onecard.cli.main import run
    from tests.fake_nvml import FakeCard, fake_nvml

    card = FakeCard(
        name="NVIDIA H200",
        capability=(9, 0),
        total_bytes=CARD.vram_bytes,
        driver_bytes=CARD.vram_bytes - CARD.allocatable_bytes,
        used_bytes=0,
        programs=[],
    )

    def lines(module: str, job: dict[str, Any], *_: object, **__: object) -> Iterator[dict[str, Any]]:
        if module.endswith("machine"):
            yield {"device": "cuda", "name": card.name, "driver": "580.65.06", "torch": "2.11.0"} | MACHINE
            return
        yield _process(RunConfig.model_validate(job["config"]), config.memory_limit or 0, chance).as_json()

    keys = {key: getattr(config, key) for key in DECISIVE_KEYS}  # all: what is not typed is the packaged default's
    words = [f"--{key}={value}" for key, value in keys.items() if value is not None]
    out = StringIO()
    with (
        patch.dict(os.environ, {"ONECARD_HOME": str(home)}),
        made_driver(fake_nvml(card)),
        patch("onecard.cli.tune.worker_lines", lines),
        unknown_card(),
        redirect_stdout(out),
        redirect_stderr(StringIO()) as talk,
    ):
        shutil.rmtree(home / FOLDER, ignore_errors=True)
        code = run(["tune", *words, f"--dataset={EMBEDDED.name}", "--minutes=60", "--json"])
    assert code == 0, talk.getvalue()
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


MACHINE = {
    "allocatable_bytes": CARD.allocatable_bytes,
    "context_bytes": None,
    "other_bytes": 0,
    "products": [],
    "bandwidth_bytes_per_second": 4e12,
    "launch_seconds": 5e-6,
    "load": None,
}


def _process(config: RunConfig, limit_bytes: int, chance: random.Random) -> Measured:
    """What a process of tune would have measured."""
    reserved, shown = true_memory(config)
    empty = Measured(
        trainer="onecard",
        batch_size=config.batch_size,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        grad_checkpoint=config.grad_checkpoint,
        seed=config.seed,
        tokens_per_step=config.tokens_per_step,
    )
    if shown > limit_bytes:
        return replace(empty, out_of_memory=True)
    seconds = config.tokens_per_step / true_speed(config) * chance.gauss(1, NOISE)
    return replace(empty, step_seconds=(seconds,) * 3, reserved_bytes=reserved, process_bytes=shown)


def recorded_configs() -> list[RunConfig]:
    """Every config that was recorded, each once."""
    return list(dict.fromkeys(run.config for run in ONECARD_RUNS))


def timed(runs: Sequence[MeasuredRun]) -> tuple[TimedRun, ...]:
    return tuple(TimedRun(config=run.config, tokens_per_second=run.tokens_per_second) for run in runs)


def speed_error(run: MeasuredRun, runs: Sequence[MeasuredRun], card: Card) -> tuple[float, float]:
    """How far a run is predicted off that was left out of a calibration by `runs`, and the range that was said."""
    known = Calibration(card="made", driver="", torch="2.11.0", date=BEGUN, runs=timed(runs))
    speed = predict_speed(run.config, calibrated(Place(card=card), known).card, "onecard")
    assert speed
    return speed.tokens_per_second.likely / run.tokens_per_second - 1, speed.spread


def same_model(one: MeasuredRun, other: MeasuredRun) -> bool:
    return _shape(one.config) == _shape(other.config)


def left_out_speeds() -> dict[str, list[tuple[float, float]]]:
    """Errors and ranges of recorded runs, by what the calibration knew of them."""
    found: dict[str, list[tuple[float, float]]] = {}
    with unknown_card() as card:
        for run in ONECARD_RUNS:
            others = [each for each in ONECARD_RUNS if each is not run]
            found.setdefault("all other runs", []).append(speed_error(run, others, card))
            foreign = [each for each in others if not same_model(each, run)]
            found.setdefault("all runs of other models", []).append(speed_error(run, foreign, card))
            siblings = [each for each in others if same_model(each, run)]
            if len(siblings) >= 2:
                found.setdefault("the other runs of its model alone", []).append(speed_error(run, siblings, card))
            for model in MODELS_ALONE:
                runs = [each for each in ONECARD_RUNS if (each.n_layer, each.n_embd) == model]
                if run not in runs:
                    name = f"the {len(runs)} runs of {model[0]} layers {model[1]} wide alone"
                    found.setdefault(name, []).append(speed_error(run, runs, card))
    return found


MODELS_ALONE = ((24, 1024), (12, 768), (12, 384))  # of which there are three runs and more


PROCESSES = ("onecard_h200_build.csv", "onecard_h200_check.csv", "onecard_h200_notes.csv", "onecard_h200_speed.csv")
A_TUNE = 7  # processes that calibrate


def recorded_processes() -> list[Process]:
    """Every process of our trainer whose memory was recorded as it was asked for."""
    rows = [row for name in PROCESSES for row in measured_rows(GOLDEN / name)]
    return [row for row in rows if row.ok and row.columns["micro_batch"] == row.columns["batch_size"]]


def left_out_memory(rows: Sequence[Process], *, seed: int = 1) -> list[float]:
    """Errors of what the driver shows of processes that did not calibrate; seven that are drawn do."""
    chance = random.Random(seed)
    drawn = chance.sample(list(rows), A_TUNE)
    with unknown_card() as card:
        runs = tuple(
            TimedRun(
                config=decisive(row.config),
                tokens_per_second=1.0,
                reserved_bytes=max(map(row.reserved_bytes, UNTIL_READ)),
                process_bytes=row.process_bytes,
            )
            for row in drawn
        )
        known = Calibration(card="made", driver="", torch="2.11.0", date=BEGUN, runs=runs)
        here = calibrated(Place(card=card), known).card
        left = [row for row in rows if row not in drawn]
        return [_shown(row, here) / row.process_bytes - 1 for row in left]


UNTIL_READ = ("eval0", "train")  # bench/onecard_rows.py reads a process's bytes before the last evaluation


def _shown(row: Process, card: Card) -> int:
    """What the driver is predicted to show then, of a process that evaluates once, as recorded ones do."""
    reserved_bytes = max(row.predicted.phases[phase].reserved_bytes for phase in UNTIL_READ)
    return reserved_bytes + context_of_onecard(row.config, card)


def _told(errors: Sequence[float], bound: float) -> str:
    sizes = sorted(map(abs, errors))
    inside = sum(size <= bound for size in sizes) / len(sizes)
    return (
        f"{len(sizes)} | {statistics.median(sizes):.1%} | {sizes[math.ceil(0.9 * len(sizes)) - 1]:.1%} | "
        f"{sizes[-1]:.1%} | {inside:.0%}"
    )


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--memory", action="store_true")
    options = parser.parse_args(arguments)
    if options.speed:
        _print_speeds()
    elif options.memory:
        _print_memory()
    else:
        _print_picks()


def _print_speeds() -> None:
    print("| calibrated by | runs | median | nine of ten | worst | within 5 % | inside the range |")
    print("|---|---|---|---|---|---|---|")
    for name, found in left_out_speeds().items():
        inside = sum(abs(error) <= spread for error, spread in found) / len(found)
        print(f"| {name} | {_told([error for error, _ in found], 0.05)} | {inside:.0%} |")


def _print_memory() -> None:
    print("| drawn | processes | median | nine of ten | worst | within 2 % |\n|---|---|---|---|---|---|")
    rows = recorded_processes()
    for seed in range(1, 4):
        print(f"| {seed} | {_told(left_out_memory(rows, seed=seed), 0.02)} |")


def _print_picks() -> None:
    print("| config | as recorded | picked | best of all | behind | measured |\n|---|---|---|---|---|---|")
    results = []
    with TemporaryDirectory() as home:
        for config in recorded_configs():
            found = tuned(config, Path(home))
            results.append(found)
            c = found.config
            shape = (
                f"{c.n_layer}/{c.n_head}/{c.n_embd} {c.batch_size} x {c.gradient_accumulation_steps} x {c.block_size}"
            )
            print(
                f"| {shape} {c.dtype} {c.grad_checkpoint} in {(c.memory_limit or 0) // GIB} GiB | {found.asked:,.0f} | "
                f"{found.picked:,.0f} | {found.best:,.0f} | {found.behind:.1%} | {found.measured} of {found.ways} |",
                flush=True,
            )
    good = sum(each.behind <= 0.03 for each in results)
    print(f"within 3 % of the best: {good} of {len(results)}")


if __name__ == "__main__":
    main(sys.argv[1:])
