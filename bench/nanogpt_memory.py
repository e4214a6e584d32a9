"""Measure what nanoGPT really allocates, row by row, on the card in this machine.

    python bench/nanogpt_memory.py --nanogpt ../nanoGPT --rows rows.csv --out measured.csv

Each row of `rows.csv` is one config; each runs in its own process, under nanoGPT's own loop: evaluation
first, three training steps, evaluation again. Memory does not depend on what else runs on the card, so
`--jobs 6` measures six rows at a time. `--traces DIR` also writes every allocation and free of the rows
whose `trace` column is not empty: the allocator simulation is checked against those.

Nothing of nanoGPT is in this repository: `--nanogpt` names a checkout (used as published, 3adf61e).
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

CONFIG = {
    "n_layer": int,
    "n_head": int,
    "n_embd": int,
    "block_size": int,
    "batch_size": int,
    "gradient_accumulation_steps": int,
    "vocab_size": int,
    "dtype": str,
    "dropout": float,
    "bias": lambda text: text == "True",
    "compile": lambda text: text == "True",
    "cap_gib": lambda text: float(text) if text else None,
    "expandable_segments": lambda text: text == "True",
}
PHASES = ("eval0", "train", "eval")
MEASURED = (
    ["ok", "oom_phase", "init_alloc"]
    + [f"{phase}_{what}" for phase in PHASES for what in ("alloc", "reserved")]
    + ["process_bytes", "device", "torch", "date"]
)
TRAIN_STEPS = 3
EVAL_ITERS = 3


def measure_row(row: dict[str, str], nanogpt: Path, trace: Path | None) -> dict[str, Any]:
    """One config under nanoGPT's loop in this process; returns its measured columns in bytes."""
    import contextlib

    import torch

    sys.path.insert(0, str(nanogpt))
    from model import GPT, GPTConfig  # type: ignore[import-not-found]

    c: Any = argparse.Namespace(**{key: read(row.get(key) or "") for key, read in CONFIG.items()})
    torch.manual_seed(1337)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    if c.cap_gib:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(c.cap_gib * 2**30 / total)
    boundaries: list[tuple[str, int]] = []
    if trace:
        # C++ frames are slow to resolve: only with trace=cpp, and for small models
        stacks = "all" if row["trace"] == "cpp" else "python"
        torch.cuda.memory._record_memory_history(max_entries=2_000_000, stacks=stacks)

    half = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(c.dtype)
    ctx: Any = torch.amp.autocast(device_type="cuda", dtype=half) if half else contextlib.nullcontext()
    torch.zeros(1, device="cuda")  # the context exists before anything is counted
    boundaries.append(("init", time.time_ns() // 1000))
    sizes = {k: getattr(c, k) for k in ("n_layer", "n_head", "n_embd", "block_size", "vocab_size", "bias", "dropout")}
    model: Any = GPT(GPTConfig(**sizes))
    model.to("cuda")
    found: dict[str, Any] = {"ok": True, "init_alloc": torch.cuda.memory_allocated()}
    scaler = torch.amp.GradScaler("cuda", enabled=c.dtype == "float16")
    optimizer = model.configure_optimizers(0.1, 6e-4, (0.9, 0.95), "cuda")
    if c.compile:
        model = torch.compile(model)
    tokens = torch.randint(c.vocab_size, (1_000_000,))

    def get_batch() -> Any:
        starts = torch.randint(len(tokens) - c.block_size, (c.batch_size,))
        x = torch.stack([tokens[i : i + c.block_size] for i in starts])
        y = torch.stack([tokens[i + 1 : i + 1 + c.block_size] for i in starts])
        return x.pin_memory().to("cuda", non_blocking=True), y.pin_memory().to("cuda", non_blocking=True)

    @torch.no_grad()
    def estimate_loss() -> None:
        model.eval()
        for _split in ("train", "val"):
            losses = torch.zeros(EVAL_ITERS)
            for k in range(EVAL_ITERS):
                X, Y = get_batch()
                with ctx:
                    logits, loss = model(X, Y)
                losses[k] = loss.item()
        model.train()

    def close(phase: str) -> None:
        torch.cuda.synchronize()
        found[f"{phase}_alloc"] = torch.cuda.max_memory_allocated()
        found[f"{phase}_reserved"] = torch.cuda.max_memory_reserved()
        torch.cuda.reset_peak_memory_stats()

    phase = "eval0"
    try:
        X, Y = get_batch()
        boundaries.append((phase, time.time_ns() // 1000))
        torch.cuda.reset_peak_memory_stats()
        estimate_loss()
        close(phase)
        phase = "train"
        for step in range(TRAIN_STEPS):
            boundaries.append((f"step{step}", time.time_ns() // 1000))
            for _ in range(c.gradient_accumulation_steps):
                with ctx:
                    logits, loss = model(X, Y)
                    loss = loss / c.gradient_accumulation_steps
                X, Y = get_batch()
                scaler.scale(loss).backward()
            boundaries.append((f"update{step}", time.time_ns() // 1000))
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=True)
            loss.item()
        close(phase)
        phase = "eval"
        boundaries.append((phase, time.time_ns() // 1000))
        estimate_loss()
        close(phase)
    except torch.OutOfMemoryError:
        found |= {"ok": False, "oom_phase": phase}
    boundaries.append(("end", time.time_ns() // 1000))
    found["process_bytes"] = process_bytes() if found["ok"] else None
    found |= {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
    if trace:
        write_trace(trace, torch.cuda.memory._snapshot(), boundaries, row)
    return found


def process_bytes() -> int | None:
    """Bytes the driver shows for this process; None if it does not say."""
    asked = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    for line in subprocess.run(asked, capture_output=True, text=True).stdout.splitlines():
        pid, _, mib = line.partition(",")
        if pid.strip() == str(os.getpid()) and mib.strip().isdigit():
            return int(mib) * 2**20
    return None


def write_trace(path: Path, snapshot: Any, boundaries: list[tuple[str, int]], row: dict[str, str]) -> None:
    """Every event of the caching allocator as [action, address, bytes, frames], phases marked in between."""
    frames: dict[str, int] = {}
    events: list[list[Any]] = []
    pending = sorted(boundaries, key=lambda b: b[1])
    for entry in snapshot["device_traces"][0]:
        while pending and entry["time_us"] >= pending[0][1]:
            events.append(["phase", pending.pop(0)[0]])
        stack = entry.get("frames") or []
        keep = 14 if row["trace"] == "cpp" else 6
        text = " < ".join(f"{Path(f['filename']).name}:{f['line']}:{f['name'][:90]}" for f in stack[:keep])
        events.append([entry["action"], entry["addr"], entry["size"], frames.setdefault(text, len(frames))])
    with gzip.open(path, "wt") as file:
        json.dump({"row": row, "frames": list(frames), "events": events}, file)


def run_worker(row: dict[str, str], args: argparse.Namespace, number: int) -> dict[str, Any]:
    """Measure one row in a fresh process."""
    setting = f"expandable_segments:{row.get('expandable_segments') or 'False'}"
    environment = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": setting, "PYTORCH_ALLOC_CONF": setting}
    command = [sys.executable, __file__, "--worker", json.dumps(row), "--nanogpt", str(args.nanogpt)]
    if args.traces and row.get("trace"):
        command += ["--trace", str(args.traces / f"{number:03d}.json.gz")]
    if row["compile"] == "True":  # its own cache: kernels that another row tuned would not be tuned again
        environment |= {
            "TORCHINDUCTOR_CACHE_DIR": str(args.cache / f"{number:03d}"),
            "TORCHINDUCTOR_FX_GRAPH_CACHE": "0",
        }
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=args.timeout)
        found = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, IndexError, json.JSONDecodeError) as problem:
        tail = done.stderr[-500:] if not isinstance(problem, subprocess.TimeoutExpired) else "timeout"
        found = {"ok": "failed", "oom_phase": tail.replace("\n", " ")}
    print(
        number,
        {k: row.get(k) for k in CONFIG},
        {k: found.get(k) for k in ("ok", "train_alloc", "process_bytes")},
        flush=True,
    )
    return row | found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanogpt", type=Path, required=True)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--cache", type=Path, help="keep the generated code of each compiled row under this folder")
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--trace", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(measure_row(args.worker, args.nanogpt, args.trace)))
        return
    args.cache = args.cache or Path(tempfile.mkdtemp(prefix="inductor-"))
    with args.rows.open() as file:
        rows = list(csv.DictReader(file))
    columns = [*rows[0], *MEASURED]
    if args.traces:
        args.traces.mkdir(parents=True, exist_ok=True)
    with args.out.open("w", newline="") as file, ThreadPoolExecutor(args.jobs) as pool:
        writer = csv.DictWriter(file, columns, extrasaction="ignore")
        writer.writeheader()
        for found in pool.map(lambda job: run_worker(job[1], args, job[0]), enumerate(rows)):
            writer.writerow(found)
            file.flush()


if __name__ == "__main__":
    main()
