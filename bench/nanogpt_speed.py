"""Measure how fast nanoGPT trains, row by row, and where its time goes, on the card in this machine.

    python bench/nanogpt_speed.py --nanogpt ../nanoGPT --rows rows.csv --out speed.csv

Each row runs in its own process: compile and warm up, then the median of ten steps, the update alone, evaluation
steps, and one profiled step whose kernels are summed by kind. Rows run in groups (`--jobs 8`): a group compiles
together. When all of it is ready, its rows are timed one after the other on an otherwise idle machine, on cores that
nobody else uses (bench/quiet_core.py). `steps` are the seconds of each step with those of the loop beside it,
`python_seconds` the loop at its fastest, `free_seconds` the median of ten steps with the threads on any core.
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
from quiet_core import time_quietly

COLUMNS = "n_layer n_head n_embd block_size batch_size gradient_accumulation_steps vocab_size".split()
MEASURED = (
    "ok update_seconds eval_iter_seconds "
    "gemm_seconds attention_seconds triton_seconds loss_seconds other_seconds busy_seconds kernels "
    "warmup_seconds free_seconds python_seconds steps device torch date"
).split()
KINDS = {  # the first kind with a word in the kernel's name; attention kernels are built with cutlass too
    "attention": ("fmha", "flash", "attention", "cudnn"),
    "gemm": ("gemm", "nvjet", "cutlass", "xmma", "cublas", "splitK", "s16816", "s161616"),
    "loss": ("softmax", "nll_loss", "log_softmax"),
    "triton": ("triton",),
}


def wait_for_group(group: Path, size: int) -> None:
    """Return when every row of the group has compiled, or failed."""
    (group / f"ready-{os.getpid()}").touch()
    while len(list(group.glob("ready-*"))) < size:
        time.sleep(0.2)


def measure_row(row: dict[str, str], nanogpt: Path, group: Path, size: int) -> dict[str, Any]:
    """One config: seconds per step and where they go."""
    import contextlib

    import torch
    from torch.profiler import ProfilerActivity, profile

    sys.path.insert(0, str(nanogpt))
    from model import GPT, GPTConfig  # type: ignore[import-not-found]

    c: Any = argparse.Namespace(**{key: int(row[key]) for key in COLUMNS}, dtype=row["dtype"])
    c.dropout, c.bias, c.compile = float(row["dropout"]), row["bias"] == "True", row["compile"] == "True"
    torch.manual_seed(1337)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    half = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(c.dtype)
    ctx: Any = torch.amp.autocast(device_type="cuda", dtype=half) if half else contextlib.nullcontext()
    sizes = {k: getattr(c, k) for k in ("n_layer", "n_head", "n_embd", "block_size", "vocab_size", "bias", "dropout")}
    began = time.perf_counter()
    model: Any = GPT(GPTConfig(**sizes)).to("cuda")
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

    X, Y = get_batch()

    def micro_steps() -> Any:
        nonlocal X, Y
        for _ in range(c.gradient_accumulation_steps):
            with ctx:
                logits, loss = model(X, Y)
                loss = loss / c.gradient_accumulation_steps
            X, Y = get_batch()
            scaler.scale(loss).backward()
        return loss

    def update() -> None:
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)

    def step() -> float:
        start = time.perf_counter()
        loss = micro_steps()
        update()
        loss.item()
        return time.perf_counter() - start

    @torch.no_grad()
    def evaluate(iterations: int) -> float:
        model.eval()
        start = time.perf_counter()
        for _ in range(iterations):
            x, y = get_batch()
            with ctx:
                logits, loss = model(x, y)
            loss.item()
        seconds = time.perf_counter() - start
        model.train()
        return seconds / iterations

    evaluate(2)
    for _ in range(3):
        step()
    found: dict[str, Any] = {"ok": True, "warmup_seconds": time.perf_counter() - began}
    torch.cuda.empty_cache()  # the other rows of the group warm up on the same card
    wait_for_group(group, size)
    with (group / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for _ in range(2):
            step()
        free = [step() for _ in range(10)]
        timed = time_quietly(step)
        updates = []
        for _ in range(5):
            micro_steps()
            torch.cuda.synchronize()
            start = time.perf_counter()
            update()
            torch.cuda.synchronize()
            updates.append(time.perf_counter() - start)
        found["eval_iter_seconds"] = evaluate(5)
        with profile(activities=[ProfilerActivity.CUDA]) as prof:
            step()
            torch.cuda.synchronize()
        events = prof.events()  # before the next row is timed: reading them keeps a core busy
    kinds = dict.fromkeys([*KINDS, "other"], 0.0)
    kernels = 0
    for event in events:
        if event.device_type != torch.autograd.DeviceType.CUDA:
            continue
        name = event.name.lower()
        kind = next((k for k, words in KINDS.items() if any(word.lower() in name for word in words)), "other")
        kinds[kind] += event.device_time_total / 1e6
        kernels += 1
    found |= {f"{kind}_seconds": spent for kind, spent in kinds.items()}
    found["busy_seconds"] = sum(kinds.values())
    found["kernels"] = kernels
    found |= {"free_seconds": median(free), "python_seconds": timed.fastest, "steps": timed.text}
    found["update_seconds"] = median(updates)
    found |= {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "date": time.strftime("%Y-%m-%d")}
    return found


def run_group(rows: list[dict[str, str]], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure some rows, each in a fresh process: compiled together, timed one by one."""
    threads = {"TORCHINDUCTOR_COMPILE_THREADS": str(max(1, (os.cpu_count() or 1) // len(rows)))}
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(rows)) as pool:

        def run(row: dict[str, str]) -> dict[str, Any]:
            command = [sys.executable, __file__, "--worker", json.dumps(row), "--nanogpt", str(args.nanogpt)]
            command += ["--group", folder, "--size", str(len(rows))]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, timeout=args.timeout, env=os.environ | threads
                )
                return row | json.loads(done.stdout.splitlines()[-1])
            except subprocess.TimeoutExpired:
                return row | {"ok": "timeout"}
            except (IndexError, json.JSONDecodeError):
                Path(folder, f"ready-failed-{id(row)}").touch()
                return row | {"ok": done.stderr[-300:].replace("\n", " ")}

        return list(pool.map(run, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nanogpt", type=Path, required=True)
    parser.add_argument("--rows", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=400)
    parser.add_argument("--worker", type=json.loads, help=argparse.SUPPRESS)
    parser.add_argument("--group", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        print(json.dumps(measure_row(args.worker, args.nanogpt, args.group, args.size)))
        return
    with args.rows.open() as file:
        rows = list(csv.DictReader(file))
    with args.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*rows[0], *MEASURED], extrasaction="ignore")
        writer.writeheader()
        for start in range(0, len(rows), args.jobs):
            for found in run_group(rows[start : start + args.jobs], args):
                writer.writerow(found)
                print(found.get("set"), str(found.get("ok"))[:200], flush=True)
            file.flush()


if __name__ == "__main__":
    main()
