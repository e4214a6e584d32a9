"""Logs made by construction, in the shape each program prints: no line of them comes from a real log."""

import json
import random
from collections.abc import Iterator, Sequence


def smooth_loss(step: int, *, end: float = 3.3) -> float:
    """A loss that falls from about 11 towards `end`."""
    return end + 7.6 / (1 + step / 60)


def nanogpt_config(**settings: object) -> list[str]:
    """The lines a config file of nanoGPT has, with a comment."""
    return ["# a small model for this test", *(f"{key} = {value!r}" for key, value in settings.items())]


SMALL = {"n_layer": 4, "n_head": 4, "n_embd": 256, "block_size": 512, "batch_size": 8, "max_iters": 1000}


def nanogpt(
    *,
    steps: int = 1000,
    log_interval: int = 10,
    eval_interval: int = 250,
    seconds: float = 0.25,
    eval_seconds: float = 3.0,
    end: float = 3.3,
    noise: float = 0.0,
    seed: int = 1,
    header: Sequence[str] = (),
    mfu: bool = True,
    saves: str | None = "out-made",
    first: int = 0,
) -> list[str]:
    """nanoGPT's stdout: evaluations before the iteration they belong to, whose time includes them."""
    dice = random.Random(seed)
    lines = list(header)
    for step in range(first, steps + 1):
        evaluates = step % eval_interval == 0
        if evaluates:
            train, val = (smooth_loss(step, end=end) + dice.gauss(0, noise) for _ in range(2))
            lines.append(f"step {step}: train loss {train:.4f}, val loss {val:.4f}")
            if saves and step:
                lines.append(f"saving checkpoint to {saves}")
        if step % log_interval == 0:
            spent = seconds + (eval_seconds if evaluates else 0.0) + (8.0 if step == first else 0.0)
            share = f", mfu {-100.0 if step < 5 * log_interval else 21.5:.2f}%" if mfu else ""
            loss = smooth_loss(step, end=end) + dice.gauss(0, 4 * noise)
            lines.append(f"iter {step}: loss {loss:.4f}, time {1000 * spent:.2f}ms{share}")
    return lines


def nanogpt_header(*overrides: str, tokens: int = 163_840, params: str = "16.03M", **config: object) -> list[str]:
    """What nanoGPT prints before it trains: the config file, what overrides it, and counts."""
    return [
        "Overriding config with config/train_made.py:",
        *nanogpt_config(**(SMALL | config)),
        "",
        *(f"Overriding: {override}" for override in overrides),
        f"tokens per iteration will be: {tokens:,}",
        "found vocab_size = 50304 (inside data/made/meta.pkl)",
        "Initializing a new model from scratch",
        f"number of parameters: {params}",
        "num decayed parameter tensors: 18, with 16,154,624 parameters",
        "num non-decayed parameter tensors: 9, with 2,304 parameters",
        "using fused AdamW: True",
    ]


def llmc_main(*, steps: int = 300, every: int = 50) -> list[str]:
    """llm.c's main.log."""
    lines = []
    for step in range(steps + 1):
        if step % every == 0:
            lines.append(f"s:{step} tel:{smooth_loss(step):.4f}")
        if step < steps:
            lines.append(f"s:{step} trl:{smooth_loss(step):.4f} lr:{6e-4:.6f} norm:0.3125")
    return lines


def llmc_stdout(*, steps: int = 40) -> list[str]:
    """llm.c's stdout with its table of settings."""
    rows = {
        "train data pattern": "dev/data/made/*.bin",
        "micro batch size B": "16",
        "sequence length T": "1024",
        "total batch size": "65536",
        "learning rate (LR)": "6.000000e-04",
        "max_steps": str(steps),
        "device": "NVIDIA GeForce RTX 4070",
        "vocab_size V": "50257",
        "num_layers L": "12",
        "num_heads NH": "12",
        "channels C": "768",
        "num_parameters": "124475904",
        "num_processes": "1",
    }
    lines = ["+-----------------------+----+", *(f"| {name:<21} | {value:<50} |" for name, value in rows.items())]
    lines.append("val loss 11.009000")
    for step in range(1, steps + 1):
        lines.append(
            f"step {step:4d}/{steps} | loss {smooth_loss(step):.6f} (+0.10z)| norm 0.4000 (-0.30z)| lr 6.00e-04 | "
            "1168.00 ms | 41.2% bf16 MFU | 56110 tok/s"
        )
        if step % 20 == 0:
            lines.append(f"val loss {smooth_loss(step):.6f}")
    return lines


def modded(*, steps: int = 500) -> list[str]:
    """modded-nanogpt's log: times are of training so far."""
    lines = ["import os", "print0(f'step:{step}/{args.num_iterations}')", "=" * 20]
    for step in range(0, steps + 1, 125):
        average = "nan" if step == 0 else "140.25"
        spent = f"train_time:{140.25 * step:.0f}ms step_avg:{average}ms"
        lines.append(f"step:{step}/{steps} val_loss:{smooth_loss(step):.4f} {spent}")
        if step < steps:
            lines.append(f"step:{step + 1}/{steps} train_loss:{smooth_loss(step + 1):.4f} {spent}")
    return lines


NANOCHAT = {"sequence_len": 1024, "vocab_size": 32768, "n_layer": 8, "n_head": 4, "n_embd": 512}


def nanochat(*, steps: int = 400, total_batch: int = 32_768) -> list[str]:
    """nanochat's stdout, colours included."""
    lines = [
        "2030-01-02 03:04:05,678 - nanochat.common - \x1b[32m\x1b[1mINFO\x1b[0m - Distributed world size: 1",
        "GPU: NVIDIA GeForce RTX 4070 | Peak FLOPS (BF16): inf",
        "Vocab size: 32,768",
        "Model config:",
        *json.dumps(
            {"sequence_len": 1024, "vocab_size": 32768, "n_layer": 8, "n_head": 4, "n_embd": 512}, indent=2
        ).split("\n"),
        "total                   : 125,829,354",
        "Estimated FLOPs per token: 2.736795e+08",
        f"Using user-provided number of iterations: {steps:,}",
        "Tokens / micro-batch / rank: 4 x 1024 = 4,096",
        f"Total batch size {total_batch:,} => gradient accumulation steps: {total_batch // 4096}",
    ]
    for step in range(steps + 1):
        if step % 100 == 0:
            lines.append(f"Step {step:05d} | Validation bpb: {smooth_loss(step) / 3.2:.6f}")
        if step < steps:
            lines.append(
                f"step {step:05d}/{steps:05d} ({100 * step / steps:.2f}%) | loss: {smooth_loss(step):.6f} | "
                f"lrm: 1.00 | dt: 316.50ms | tok/sec: {total_batch / 0.3165:,.0f} | bf16_mfu: 0.00 | epoch: 1 | "
                f"total time: {0.3165 * step / 60:.2f}m"
            )
    return lines


def trainer_stdout(*, steps: int = 1000, every: int = 100, quoted: bool = False) -> list[str]:
    """What Hugging Face Trainer prints: no line has its step."""
    mark = "'" if quoted else ""
    lines = [
        "***** Running training *****",
        "  Num examples = 80,000",
        "  Num Epochs = 2",
        "  Instantaneous batch size per device = 8",
        "  Gradient Accumulation steps = 4",
        f"  Total optimization steps = {steps:,}",
        "  Number of trainable parameters = 124,439,808",
    ]
    for step in range(every, steps + 1, every):
        values = {"loss": round(smooth_loss(step), 4), "grad_norm": 1.25, "learning_rate": 5e-05}
        pairs = ", ".join(f"'{name}': {mark}{value}{mark}" for name, value in values.items())
        lines.append(f"{{{pairs}, 'epoch': {mark}{2 * step / steps:.2f}{mark}}}")
        if step % (5 * every) == 0:
            lines.append(
                f"{{'eval_loss': {smooth_loss(step):.4f}, 'eval_runtime': 12.5, 'epoch': {2 * step / steps:.2f}}}"
            )
    lines.append(
        "{'train_runtime': 500.0, 'train_samples_per_second': 64.0, 'train_steps_per_second': 2.0, "
        "'train_loss': 4.1, 'epoch': 2.0}"
    )
    return lines


def trainer_lines(
    *, steps: int = 10_000, every: int = 500, epochs: float = 3.0, end: bool = True, evaluations: bool = True
) -> list[str]:
    """The same without what it prints at the start: nothing tells the steps but the last line."""
    lines = []
    for step in range(every, steps + 1, every):
        epoch = f"'epoch': {epochs * step / steps:.2f}}}"
        lines.append(f"{{'loss': {smooth_loss(step):.4f}, 'grad_norm': 1.1, 'learning_rate': 5e-05, {epoch}")
        if evaluations:
            lines.append(f"{{'eval_loss': {smooth_loss(step):.4f}, 'eval_runtime': 6.0, {epoch}")
    if end:
        lines.append(
            f"{{'train_runtime': 3600.0, 'train_samples_per_second': 22.2, 'train_steps_per_second': "
            f"{steps / 3600:.3f}, 'train_loss': 3.7, 'epoch': {epochs}}}"
        )
    return lines


def trainer_state(*, steps: int = 1000, every: int = 100) -> str:
    """Hugging Face Trainer's trainer_state.json."""
    history: list[dict[str, float]] = []
    for step in range(every, steps + 1, every):
        history.append({"epoch": 2 * step / steps, "learning_rate": 5e-05, "loss": smooth_loss(step), "step": step})
        if step % (5 * every) == 0:
            history.append(
                {"epoch": 2 * step / steps, "eval_loss": smooth_loss(step), "eval_runtime": 12.5, "step": step}
            )
    state = {"best_metric": None, "epoch": 2.0, "log_history": history, "max_steps": steps, "train_batch_size": 8}
    return json.dumps(state, indent=2)


def minimal(*, steps: int = 5000, every: int = 500) -> list[str]:
    """The teaching version's output."""
    return [
        "10.788929 M parameters",
        *(
            f"step {step}: train loss {smooth_loss(step, end=1.0):.4f}, val loss {smooth_loss(step, end=1.2):.4f}"
            for step in range(0, steps + 1, every)
        ),
    ]


OOM = {
    "2019": "RuntimeError: CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 8.00 GiB total capacity; "
    "6.50 GiB already allocated; 128.00 MiB free; 64.00 MiB cached)",
    "2021": "RuntimeError: CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 8.00 GiB total capacity; "
    "6.50 GiB already allocated; 128.00 MiB free; 6.75 GiB reserved in total by PyTorch) If reserved memory is >> "
    "allocated memory try setting max_split_size_mb to avoid fragmentation.",
    "2023": "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total "
    "capacty of 8.00 GiB of which 128.00 MiB is free. Process 4321 has 1.00 GiB memory in use. Including non-PyTorch "
    "memory, this process has 6.75 GiB memory in use. Of the allocated memory 6.50 GiB is allocated by PyTorch, and "
    "64.00 MiB is reserved by PyTorch but unallocated.",
    "2024": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity of "
    "8.00 GiB of which 128.00 MiB is free. Including non-PyTorch memory, this process has 6.75 GiB memory in use. Of "
    "the allocated memory 6.50 GiB is allocated by PyTorch, and 64.00 MiB is reserved by PyTorch but unallocated.",
}

FULL_CARD = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.53 GiB. GPU 0 has a total capacity of 8.00 GiB of "
    "which 96.00 MiB is free. Including non-PyTorch memory, this process has 7.80 GiB memory in use. Of the allocated "
    "memory 7.60 GiB is allocated by PyTorch, and 20.00 MiB is reserved by PyTorch but unallocated."
)


def traceback(message: str, *functions: str) -> list[str]:
    """A traceback through the named functions."""
    frames = [part for name in functions for part in (f'  File "train.py", line 10, in {name}', f"    {name}()")]
    return ["Traceback (most recent call last):", *frames, message]


def as_bytes(lines: Sequence[str]) -> list[bytes]:
    """The lines as a file gives them."""
    return [f"{line}\n".encode() for line in lines]


def wrapped(lines: Sequence[str], width: int) -> Iterator[str]:
    """The lines as a terminal of that width shows them, and tmux saves them."""
    for line in lines:
        yield from (line[start : start + width].rstrip() for start in range(0, max(1, len(line)), width))
