"""Measure what onecard's own trainer allocates and how fast it is, row by row, on the card in this machine.

    python bench/onecard_rows.py --rows rows.csv --out measured.csv --jobs 8

Each row of `rows.csv` is one config (a column is a key of RunConfig; empty is the default) and runs in its own process
with its own compile cache: an evaluation, updates, an evaluation. Memory does not depend on what else runs on the card,
so a group of rows is measured together. With `--speed` the group then waits, and its rows are timed one after the
other on an otherwise idle machine: the median of ten updates (eager ones on quiet cores: bench/quiet_core.py), and one
profiled update whose kernels are summed by kind.
`--traces DIR` also writes every allocation and free of the rows whose `trace` column is not empty.
"""

from __future__ import annotations

import argparse
import csv
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from nanogpt_memory import process_bytes, write_trace
from nanogpt_speed import KINDS, wait_for_group
from quiet_core import time_quietly

PHASES = ("eval0", "train", "eval")
MEMORY = (
    ["ok", "oom_phase", "init_alloc"]
    + [f"{phase}_{what}" for phase in PHASES for what in ("alloc", "reserved")]
    + ["process_bytes", "micro_batch", "note"]
)
SPEED = (
    "warmup_seconds step_seconds step_seconds_p95 tokens_per_second gemm_seconds attention_seconds triton_seconds "
    "loss_seconds other_seconds busy_seconds span_seconds kernels eval_iter_seconds loss sm_mhz watts "
    "timed_steps"
).split()
NOT_KEYS = {"set", "trace", "sdp"}
WARM_UP = 3


def run_config(row: dict[str, str]) -> Any:
    """The RunConfig of a row; empty columns get nanoGPT's default."""
    from onecard.config.resolve import resolve

    flags = [(key, value) for key, value in row.items() if key not in NOT_KEYS and value]
    return resolve("eval_iters = 3", filename="rows", flags=flags).config


def random_dataset(folder: Path, vocab_size: int) -> Any:
    """A folder of random tokens, as nanoGPT keeps them."""
    import numpy as np

    from onecard.data.dataset import open_path

    rng = np.random.default_rng(0)
    for split, size in (("train", 2_000_000), ("val", 400_000)):
        rng.integers(0, min(vocab_size, 65_536), size, dtype=np.uint16).tofile(folder / f"{split}.bin")
    return open_path(folder, name="random", environ={})


def measure_row(row: dict[str, str], group: Path, size: int, speed: bool, trace: Path | None) -> dict[str, Any]:
    """One config in this process: bytes of each phase, and with `speed` the seconds."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from onecard.plan.memory.predict import context_of_onecard
    from onecard.train.device import cap_memory, card_of, choose_device
    from onecard.train.evaluate import evaluate
    from onecard.train.oom import OutOfMemory
    from onecard.train.precision import allow_tf32, choose_precision
    from onecard.train.trainer import Trainer

    config = run_config(row)
    device = choose_device(config)
    allow_tf32(device)
    boundaries: list[tuple[str, int]] = []
    if trace:
        torch.cuda.memory._record_memory_history(max_entries=2_000_000, stacks="python")
    torch.zeros(1, device=device)
    if config.memory_limit:
        card = card_of(device)
        cap_memory(device, config.memory_limit, context_bytes=context_of_onecard(config, card) if card else 0)

    def mark(phase: str) -> None:
        boundaries.append((phase, time.time_ns() // 1000))

    mark("init")
    began = time.perf_counter()
    found: dict[str, Any] = {"ok": True}
    with tempfile.TemporaryDirectory() as folder:
        dataset = random_dataset(Path(folder), config.vocab_size)
        trainer = Trainer(config, dataset, device, choose_precision(config, device))
        found["init_alloc"] = torch.cuda.memory_allocated()
        shrunk: list[Any] = []

        def evaluation() -> float:
            train, val = trainer.eval_windows
            with trainer.evaluating() as token_losses:
                done = evaluate(
                    token_losses,
                    train=train,
                    val=val,
                    batch_size=config.eval_batch_size or config.batch_size,
                    device=device,
                    on_oom=lambda *event: shrunk.append(event),
                )
            return done.seconds / (2 * config.eval_iters)

        def close(phase: str) -> None:
            torch.cuda.synchronize()
            found[f"{phase}_alloc"] = torch.cuda.max_memory_allocated()
            found[f"{phase}_reserved"] = torch.cuda.max_memory_reserved()
            torch.cuda.reset_peak_memory_stats()

        phase = "eval0"
        try:
            torch.cuda.reset_peak_memory_stats()
            mark(phase)
            evaluation()
            close(phase)
            phase = "train"
            for number in range(WARM_UP):
                mark(f"step{number}")
                trainer.update(shrunk.append)
                if not number:
                    found["warmup_seconds"] = time.perf_counter() - began
            found["process_bytes"] = process_bytes()
            close(phase)
            phase = "eval"
            mark(phase)
            evaluation()
            close(phase)
        except OutOfMemory:
            found |= {"ok": False, "oom_phase": phase}
        mark("end")
        found["micro_batch"] = trainer.batch_size
        found["note"] = trainer.steps.graph_failure or ""
        if trace:
            write_trace(trace, torch.cuda.memory._snapshot(), boundaries, row)
        if speed:
            torch.cuda.empty_cache()
            wait_for_group(group, size)
            if found["ok"]:
                with (group / "lock").open("w") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX)
                    for _ in range(5):
                        trainer.update(shrunk.append)
                    clocks = []

                    def step() -> float:
                        seconds = trainer.update(shrunk.append).seconds
                        clocks.append((torch.cuda.clock_rate(), torch.cuda.power_draw() / 1000))
                        return seconds

                    # A compiled graph does not wait for the host, and at the power limit a pause makes it look faster.
                    seconds = [step() for _ in range(10)] if config.compile else time_quietly(step).quiet
                    if not seconds:
                        sys.exit("no quiet step: others keep every core of this machine busy")
                    found["eval_iter_seconds"] = evaluation()
                    with profile(activities=[ProfilerActivity.CUDA]) as prof:
                        found["loss"] = trainer.update(shrunk.append).loss
                        torch.cuda.synchronize()
                found["timed_steps"] = len(seconds)
                found["sm_mhz"], found["watts"] = (median(each) for each in zip(*clocks, strict=True))
                found["step_seconds"], found["step_seconds_p95"] = median(seconds), max(seconds)
                found["tokens_per_second"] = config.tokens_per_step / median(seconds)
                found |= kernel_seconds(prof)
                found["top"] = top_kernels(prof)
        trainer.close()
    found |= {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
    return found


def _on_device(prof: Any) -> list[Any]:
    import torch

    return [event for event in prof.events() if event.device_type == torch.autograd.DeviceType.CUDA]


def kernel_seconds(prof: Any) -> dict[str, Any]:
    """Seconds of a profiled update by kind of kernel, and how many kernels."""
    kinds = dict.fromkeys([*KINDS, "other"], 0.0)
    events = _on_device(prof)
    for event in events:
        name = event.name.lower()
        kind = next((k for k, words in KINDS.items() if any(word.lower() in name for word in words)), "other")
        kinds[kind] += event.device_time_total / 1e6
    found: dict[str, Any] = {f"{kind}_seconds": spent for kind, spent in kinds.items()}
    span = max(event.time_range.end for event in events) - min(event.time_range.start for event in events)
    return found | {"busy_seconds": sum(kinds.values()), "span_seconds": span / 1e6, "kernels": len(events)}


def top_kernels(prof: Any) -> list[tuple[str, int, float]]:
    """The slowest kernels of a profiled update: name, launches, milliseconds."""
    sums: dict[str, list[float]] = {}
    for event in _on_device(prof):
        entry = sums.setdefault(event.name[:110], [0, 0.0])
        entry[0] += 1
        entry[1] += event.device_time_total / 1e3
    ranked = sorted(sums.items(), key=lambda item: -item[1][1])
    return [(name, int(count), round(spent, 3)) for name, (count, spent) in ranked[:40]]


def run_group(rows: list[tuple[int, dict[str, str]]], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure some rows, each in a fresh process."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(rows)) as pool:

        def run(job: tuple[int, dict[str, str]]) -> dict[str, Any]:
            number, row = job
            setting = f"expandable_segments:{row.get('expandable_segments') or 'True'}"
            environment = os.environ | {
                "PYTORCH_CUDA_ALLOC_CONF": setting,
                "PYTORCH_ALLOC_CONF": setting,
                "TORCHINDUCTOR_CACHE_DIR": str(args.cache / f"{number:03d}"),
                "TORCHINDUCTOR_COMPILE_THREADS": str(max(1, (os.cpu_count() or 1) // len(rows))),
            }
            command = [sys.executable, __file__, "--worker", json.dumps(row), "--group", folder]
            command += ["--size", str(len(rows))] + (["--speed"] if args.speed else [])
            if args.traces and row.get("trace"):
                command += ["--trace", str(args.traces / f"{number:03d}.json.gz")]
            try:
                done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=args.timeout)
                found = json.loads(done.stdout.splitlines()[-1])
            except subprocess.TimeoutExpired:
                found = {"ok": "timeout"}
            except (IndexError, json.JSONDecodeError):
                found = {"ok": "failed", "oom_phase": done.stderr[-1500:].replace("\n", " ")}
            if found["ok"] not in (True, False):
                Path(folder, f"ready-failed-{number}").touch()
            return row | found

        return list(pool.map(run, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--cache", type=Path, default=Path("/tmp/onecard-rows"))
    for hidden, kind in (("--worker", json.loads), ("--group", Path), ("--size", int), ("--trace", Path)):
        parser.add_argument(hidden, type=kind, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(measure_row(args.worker, args.group, args.size, args.speed, args.trace)))
        return
    with args.rows.open() as file:
        rows = list(csv.DictReader(file))
    if args.traces:
        args.traces.mkdir(parents=True, exist_ok=True)
    columns = [*rows[0], *MEMORY, *(SPEED if args.speed else ["warmup_seconds"]), "device", "torch", "date"]
    with args.out.open("w", newline="") as file, args.out.with_suffix(".jsonl").open("w") as details:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        numbered = list(enumerate(rows))
        for start in range(0, len(rows), args.jobs):
            for found in run_group(numbered[start : start + args.jobs], args):
                writer.writerow(found)
                details.write(json.dumps(found) + "\n")
                print({key: value for key, value in found.items() if key not in ("device", "torch", "date", "top")})
            sys.stdout.flush()
            file.flush()
            details.flush()


if __name__ == "__main__":
    main()
