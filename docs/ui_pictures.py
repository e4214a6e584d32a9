"""Makes run folders from a formula and pictures of `onecard ui` over them. Nobody trained these runs.

    python -m docs.ui_pictures [FOLDER]

needs Chromium and the package playwright. The planner, the doctor and the comparison are real; the runs are not.
"""

from __future__ import annotations

import json
import math
import shutil
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from docs.made_runs import logs
from onecard.config.schema import RunConfig
from onecard.plan.counts import mfu

PICTURES = Path("docs/ui")
CARD, PEAK_FLOPS = "GeForce RTX 4070", 58.3e12
_GIB = 2**30
_EVERY = 10  # updates between records: a short file for a long run
_SETTINGS: dict[str, object] = {
    "dataset": "fineweb",
    "n_layer": 12,
    "n_head": 12,
    "n_embd": 768,
    "block_size": 1024,
    "batch_size": 8,
    "gradient_accumulation_steps": 64,
    "vocab_size": 50304,
    "learning_rate": 6e-4,
    "min_lr": 6e-5,
    "warmup_iters": 700,
    "max_iters": 19560,
    "lr_decay_iters": 19560,
    "eval_interval": 250,
    "dtype": "bfloat16",
}


def make_run(folder: Path, *, updates: int, settings: dict[str, object] | None = None) -> Path:
    """A run folder of a 124M model on a 12 GB card, still training after `updates`."""
    config = RunConfig().replace(_SETTINGS | (settings or {}) | {"out_dir": str(folder)})
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config.model_dump()))
    lines = [json.dumps(record) for record in records(config, updates)]
    (folder / "records.jsonl").write_text("\n".join(lines) + "\n")
    saved = updates // config.eval_interval * config.eval_interval
    scored = [score(saved), *task_scores(saved)]
    (folder / "evals.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in scored))
    return folder


def records(config: RunConfig, updates: int) -> Iterator[dict[str, Any]]:
    """A start, then updates with evaluations between them; memory ran out once."""
    planned, last_checkpoint = int(5.06 * _GIB), updates // config.eval_interval * config.eval_interval
    yield {"kind": "start", "step": 0, "config": config.model_dump(), "versions": {}, "device": "cuda"} | {
        "card": CARD,
        "predicted_process_bytes": planned,
        "resumed_from": None,
        "train_tokens": 10_000_000_000,
        "val_tokens": 10_000_000,
    }
    for step in range(0, updates + 1, _EVERY):
        tokens = step * config.tokens_per_step
        if step % config.eval_interval == 0:
            loss = _loss(tokens) + 0.004 * _wobble(step)
            yield {"kind": "eval", "step": step, "tokens": tokens, "train_loss": loss - 0.01, "val_loss": loss} | {
                "train_loss_error": 0.006,
                "val_loss_error": 0.006,
                "block_size": config.block_size,
                "tokens_read": 819200,
                "seconds": 8.0,
                "peak_allocated_bytes": None,
                "peak_reserved_bytes": None,
                "bits_per_byte": None,
            }
            yield {"kind": "sample", "step": step, "tokens": tokens, "prompt": _PROMPT, "text": _PROMPT + _text(step)}
        if step:
            yield step_record(config, step)
            yield card_record(step)
        if step == 2140:
            yield {"kind": "oom", "step": step, "where": "training step", "batch_size_before": 16} | {
                "batch_size_after": 8,
                "accumulation_before": 32,
                "accumulation_after": 64,
                "message": "another program took 4,310 MiB",
            }
        if step == last_checkpoint:
            yield {"kind": "checkpoint", "step": step, "tokens": tokens, "path": f"checkpoints/step-{step:08d}"} | {
                "seconds": 1.4,
                "reason": "due",
                "best": True,
            }


def step_record(config: RunConfig, step: int) -> dict[str, Any]:
    """What training writes after an update."""
    tokens, early = step * config.tokens_per_step, step <= 2140
    speed = (62_900 if early else 60_700) * (1 + 0.004 * _wobble(3 * step))
    spike = 0.34 if step == 7850 else 0.0
    return {
        "kind": "step",
        "step": step,
        "tokens": tokens,
        "loss": _loss(tokens) + 0.035 * _wobble(step) * _wobble(7 * step + 1) + spike,
        "lr": _rate(config, step),
        "grad_norm": 0.26 + 1.2 * math.exp(-step / 150) + 0.03 * _wobble(5 * step) + 0.6 * spike,
        "seconds": config.tokens_per_step / speed,
        "elapsed_seconds": tokens / 60_900,
        "tokens_per_second": speed,
        "mfu": mfu(config, tokens_per_second=speed, peak_flops=PEAK_FLOPS),
        "allocated_bytes": int((7.1 if early else 4.79) * _GIB),
        "reserved_bytes": int((7.3 if early else 4.82) * _GIB),
        "data_wait_seconds": 0.01,
    }


def card_record(step: int) -> dict[str, Any]:
    """What the card's sensors say during an update: another program takes memory for a while."""
    power = 196 + 5 * _wobble(11 * step)
    warm = 1 - math.exp(-step / 60)
    return {"kind": "card", "step": step, "elapsed_seconds": step * 8.6, "rank": 0} | {
        "temperature_c": round(38 + 33 * warm + 1.4 * _wobble(2 * step)),
        "power_watts": round(power, 1),
        "power_limit_watts": 200.0,
        "default_power_limit_watts": 200.0,
        "sm_clock_mhz": 2565.0 if power < 199 else 2505.0,
        "memory_clock_mhz": 10251.0,
        "throttle": ["power limit"] if power >= 199 else [],
        "busy": 0.99,
        "other_bytes": int((5.3 if 2100 < step < 2300 else 1.1) * _GIB),
        "other_busy": 0.01,
        "pcie_generation": 4,
        "pcie_width": 16,
        "max_pcie_generation": 4,
        "max_pcie_width": 16,
    }


def score(step: int) -> dict[str, Any]:
    """What `onecard eval` adds of a checkpoint."""
    return {"kind": "text", "step": step, "text": "held_out.txt", "text_sha256": "0" * 64, "context": 1024} | {
        "documents": 214,
        "bytes": 1_048_576,
        "tokens": 238_310,
        "nats": 238_310 * 3.412,
        "error": 0.0041,
        "token_error": 0.0125,
    }


def task_scores(step: int) -> Iterator[dict[str, Any]]:
    """The same of two tasks."""
    for task, metric, value, error, chance, questions in (
        ("hellaswag", "acc_norm", 0.2871, 0.0045, 0.25, 10_042),
        ("arc_easy", "acc_norm", 0.4011, 0.0101, 0.25, 2376),
    ):
        yield {"kind": "task", "step": step, "task": task, "metric": metric, "metrics": {metric: [value, error]}} | {
            "chance": chance,
            "questions": questions,
            "questions_sha256": "0" * 64,
            "limit": None,
            "version": "1",
            "harness": "lm-eval 0.4.12",
        }


_PROMPT = "The river"
_TEXTS = (  # made up, as everything here
    (0, " tub Rac zinc ⁂ of 88 Marl ingest ▸ ule Kent ov ov drip"),
    (500, " of the the and, the of a in the the. The a of, and of the the to"),
    (2000, " was a very good time for the people of the city and the people of the city was a good time"),
    (5000, " was built in the early 1800s, and the town is one of the oldest towns in the river. It is the"),
    (9000, " rises in the hills north of the town, where the first mill was built in 1824. By then the valley had"),
    (12000, " runs past the old mill and under two bridges. In spring it floods the lower meadows, so the farmers"),
)


def _text(step: int) -> str:
    return next(text for first, text in reversed(_TEXTS) if step >= first)


def _loss(tokens: int) -> float:
    return min(10.98, 2.92 + 1.08 * math.sqrt(1e9 / max(tokens, 1)))


def _rate(config: RunConfig, step: int) -> float:
    if step < config.warmup_iters:
        return config.learning_rate * step / config.warmup_iters
    share = (step - config.warmup_iters) / (config.max_iters - config.warmup_iters)
    return config.min_lr + 0.5 * (1 + math.cos(math.pi * share)) * (config.learning_rate - config.min_lr)


def _wobble(number: int) -> float:
    """Noise that is the same in every Python version: a sine in steps of the golden angle, so neighbours differ."""
    return math.sin(2.4 * number)


@contextmanager
def served(*paths: Path) -> Iterator[str]:
    """The address of `onecard ui` over these paths, while it runs."""
    from onecard.ui.server import Server

    with Server(paths, host="127.0.0.1", port=0) as server:
        yield server.guard.link.rstrip("/")


def run_ids(address: str) -> dict[str, str]:
    """The number of each run by its name, as the pages use it."""
    with urllib.request.urlopen(f"{address}/api/runs") as answer:
        return {row["name"]: row["id"] for row in json.load(answer)["runs"]}


def main(folder: Path = PICTURES) -> None:
    """Writes a light picture of each page into the folder."""
    from playwright.sync_api import sync_playwright

    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        place = Path(temporary)
        for path, text in logs().items():
            (place / path.name).write_text(text)
        make_run(place / "runs/fineweb-124m", updates=12_480)
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        with served(place / "40M.log", place / "124M.log", place / "runs") as address:
            ids = run_ids(address)
            pages = {
                "runs": "/",
                "run": f"/run.html?run={ids['fineweb-124m']}",
                "plan": "/plan.html",
                "compare": f"/compare.html?run={ids['40M.log']}&run={ids['124M.log']}",
            }
            for name, path in pages.items():
                page = browser.new_page(viewport={"width": 1280, "height": 860}, color_scheme="light")
                page.goto(address + path)
                page.wait_for_selector("main:not([aria-busy])")
                page.wait_for_timeout(4000)  # until the doctor has looked and the planner has drawn everything
                page.screenshot(path=folder / f"{name}.png")
                page.close()
        browser.close()


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
