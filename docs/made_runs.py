"""Makes two nanoGPT logs from a formula, so that a page can show a comparison of logs. Nobody trained these runs.

Losses follow a curve over tokens, with a wobble as noise. An update takes the seconds written here. The settings are
those of the question in docs/how-to/compare-two-runs.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from onecard.config.schema import RunConfig
from onecard.plan.counts import count_params, mfu

FOLDER = Path("docs/how-to/made-runs")
A100_FLOPS = 312e12  # nanoGPT's own MFU is a fraction of this on every card
_LOG_INTERVAL = 200
_EVAL_SECONDS = 20.0
_NOISE = 0.012  # nats, at most


@dataclass(frozen=True, kw_only=True)
class MadeRun:
    """The figures that a log is made from."""

    settings: dict[str, object]
    updates: int
    update_seconds: float
    floor: float  # nats, the limit of the curve
    above: float  # nats above the floor after a billion tokens


_SHARED = {"dataset": "fineweb", "block_size": 1024, "n_layer": 12, "n_head": 12, "eval_interval": 500}
RUNS = {
    "40M.log": MadeRun(
        settings=_SHARED
        | {"n_embd": 384, "batch_size": 16, "gradient_accumulation_steps": 32, "dropout": 0.1, "max_iters": 20000},
        updates=20_000,
        update_seconds=4.0,
        floor=3.35,
        above=0.70,
    ),
    "124M.log": MadeRun(
        settings=_SHARED
        | {"n_embd": 768, "batch_size": 8, "gradient_accumulation_steps": 64, "dropout": 0.0, "max_iters": 12000},
        updates=11_000,
        update_seconds=9.0,
        floor=3.00,
        above=0.93,
    ),
}


def logs() -> dict[Path, str]:
    """The text of each log by its path in the repository."""
    return {FOLDER / name: "\n".join(made_lines(name, run)) + "\n" for name, run in RUNS.items()}


def made_lines(name: str, run: MadeRun) -> list[str]:
    """What nanoGPT prints: the config, then evaluations, each before the iteration whose time includes it."""
    config = RunConfig().replace(run.settings)
    tokens = config.tokens_per_step
    share = 100 * mfu(config, tokens_per_second=tokens / run.update_seconds, peak_flops=A100_FLOPS)
    lines = [
        "made by docs/made_runs.py: nobody trained this",
        f"Overriding config with config/{Path(name).stem}.py:",
        *(f"{key} = {value!r}" for key, value in run.settings.items()),
        "",
        f"tokens per iteration will be: {tokens:,}",
        f"number of parameters: {count_params(config).nanogpt / 1e6:.2f}M",
    ]
    for step in range(0, run.updates + 1, 100):
        loss = _loss(run, step * tokens)
        evaluation, since = divmod(step, config.eval_interval)
        if since == 0:
            train, val = loss + _wobble(evaluation), loss + _wobble(evaluation + 10)
            lines.append(f"step {step}: train loss {train:.4f}, val loss {val:.4f}")
        if step % _LOG_INTERVAL == 0:
            seconds = run.update_seconds + (_EVAL_SECONDS if since == 0 else 0.0)
            shown = share if step else -100.0  # nanoGPT's value for "not measured yet"
            last = loss + 4 * _wobble(step // _LOG_INTERVAL)  # of one micro-batch, so noisier
            lines.append(f"iter {step}: loss {last:.4f}, time {1000 * seconds:.2f}ms, mfu {shown:.2f}%")
    return lines


def _loss(run: MadeRun, tokens: int) -> float:
    return min(10.9, run.floor + run.above * math.sqrt(1e9 / max(tokens, 1)))


def _wobble(number: int) -> float:
    """Noise that is the same in every Python version: a sine in steps of the golden angle, so neighbours differ."""
    return _NOISE * math.sin(2.4 * number)
