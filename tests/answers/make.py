"""Make golden.json.xz: what every command answered at one commit, with the files that it was asked about.

    python -m tests.answers.make FOLDER

FOLDER is where the files are made first; three small runs are trained there, so it needs torch. The archive is made
once, before a rebuilding, and never edited: test_answers.py compares every answer with it, byte for byte.
"""

from __future__ import annotations

import json
import lzma
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import made_logs
from tests.warm import Outcome, WarmProcess
from tests.warm_process import TORCH

ARCHIVE = Path(__file__).with_name("golden.json.xz")
CARDS = ("RTX 4070", "RTX 3060", "RTX 4090", "H200", "T4")
CONFIGS: dict[str, dict[str, object]] = {
    "gpt2_124m": {"batch_size": 8, "gradient_accumulation_steps": 64, "max_iters": 6000, "dataset": "fineweb"},
    "notes_40m": {
        "n_embd": 384,
        "batch_size": 16,
        "gradient_accumulation_steps": 32,
        "dropout": 0.1,
        "max_iters": 20_000,
    },
    "notes_77m": {"n_embd": 576, "batch_size": 16, "dtype": "float16", "dropout": 0.1, "compile": False},
    "shakespeare": {
        "n_layer": 6,
        "n_head": 6,
        "n_embd": 384,
        "block_size": 256,
        "batch_size": 64,
        "dataset": "shakespeare_char",
    },
    "gpt2_350m": {"n_layer": 24, "n_head": 16, "n_embd": 1024, "batch_size": 4},
    "bias_full": {"n_layer": 8, "n_head": 8, "n_embd": 512, "bias": True, "grad_checkpoint": "full", "batch_size": 24},
    "float32_odd": {"n_layer": 5, "n_head": 7, "n_embd": 504, "dtype": "float32", "vocab_size": 50257, "batch_size": 4},
    "nanochat_muon": {
        "model": "nanochat",
        "optimizer": "muon",
        "n_layer": 10,
        "n_head": 5,
        "n_embd": 640,
        "batch_size": 16,
    },
    "fast": {"recipe": "fast", "n_layer": 8, "n_embd": 512, "block_size": 2048, "batch_size": 8, "max_iters": 2000},
    "sheet_selective": {"grad_checkpoint": "selective", "block_size": 4096, "batch_size": 3, "loss_chunk": 4096},
    "eager_muon": {"optimizer": "muon", "compile": False, "n_layer": 4, "n_embd": 256, "n_head": 4, "batch_size": 32},
    "long_narrow": {
        "n_layer": 36,
        "n_head": 8,
        "n_embd": 480,
        "block_size": 3072,
        "batch_size": 4,
        "eval_batch_size": 2,
    },
}
TINY = "--n_layer=1 --n_head=2 --n_embd=32 --block_size=32 --batch_size=4 --eval_iters=2 --eval_interval=10".split()
TINY += "--device=cpu --dtype=float32 --compile=False --max_iters=30 --warmup_iters=5 --lr_decay_iters=30".split()
RUNS = {"plain": ["--learning_rate=0.01"], "diverged": ["--learning_rate=1000.0"], "muon": ["--optimizer=muon"]}
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.54 GiB. GPU 0 has a total capacity of 11.69 GiB "
    "of which 580.00 MiB is free. Including non-PyTorch memory, this process has 9.02 GiB memory in use. Of the "
    "allocated memory 8.30 GiB is allocated by PyTorch, and 320.00 MiB is reserved by PyTorch but unallocated."
)


def logs() -> dict[str, list[str]]:
    """Logs of other programs, healthy and sick."""
    header = made_logs.nanogpt_header()
    healthy = made_logs.nanogpt(header=header, noise=0.01)
    iters = [line for line in healthy if line.startswith("iter")]
    return {
        "nanogpt.log": healthy,
        "bare.log": made_logs.nanogpt(steps=600, noise=0.02),
        "nan.log": [*healthy[:60], *(line.replace("loss ", "loss nan # ") for line in iters[40:60])],
        "spike.log": [*healthy[:70], *(line.replace("loss 3", "loss 9") for line in iters[60:64]), *iters[64:]],
        "flat.log": [line for line in healthy if line.startswith("iter")][:1] * 40,
        "slow.log": made_logs.nanogpt(header=header, seconds=2.5),
        "short.log": healthy[:25],
        "oom.log": [*header, *made_logs.traceback(OOM, "forward", "estimate_loss")],
        "oom_only.log": [OOM],
        "two_runs.log": [*healthy[:50], *healthy],
        "wrapped.log": list(made_logs.wrapped(healthy, 60)),
        "llmc.log": made_logs.llmc_stdout(steps=80),
        "llmc_main.log": made_logs.llmc_main(),
        "modded.log": made_logs.modded(),
        "nanochat.log": made_logs.nanochat(),
        "trainer.log": made_logs.trainer_stdout(),
        "trainer_state.json": [made_logs.trainer_state()],
        "minimal.log": made_logs.minimal(),
        "no_log.txt": ["Dear diary,", "today nothing was trained."],
        "empty.log": [],
    }


def make_files(folder: Path) -> None:
    """Configs, logs, and the text files of three small runs."""
    for name, settings in CONFIGS.items():
        (folder / f"{name}.py").write_text("".join(f"{key} = {value!r}\n" for key, value in settings.items()))
    for name, lines in logs().items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    process = WarmProcess(*TORCH)
    for name, keys in RUNS.items():
        process.run("train", *TINY, *keys, f"--out_dir=runs/{name}", cwd=folder, environment=environment(folder))
    process.close()


def environment(folder: Path) -> dict[str, str]:
    return {"ONECARD_HOME": str(folder / "home"), "COLUMNS": "100"}


def commands() -> Iterator[list[str]]:
    """What is asked, as typed."""
    for number, name in enumerate(CONFIGS):
        config = f"{name}.py"
        for card in CARDS:
            yield ["plan", config, "--gpu", card, "--json"]
            yield ["plan", config, "--gpu", card, *(["--details"] if number % 2 else [])]
        card = CARDS[number % len(CARDS)]
        yield ["plan", config, "--gpu", card, "--fit", "--json"]
        yield ["plan", config, "--gpu", card, "--fit"]
        yield ["plan", config, "--gpu", card, "--sensitivity"]
        yield ["plan", config, "--gpu", card, "--hours", str(3 * number + 3), "--json"]
        yield ["plan", config, "--gpu", card, "--hours", str(3 * number + 3)]
        yield ["plan", config, "--gpu", card, "--other", "1GiB", "--explain"]
        yield ["plan", config, "--gpu", card, "--gpus", "4", "--trainer", "onecard", "--json"]
        yield ["plan", config, "--gpu", card, "--tokens", "300M"]
        yield ["plan", config, "--gpu", card, "--seen", "9GiB", "--trainer", "nanogpt"]
        yield ["plan", config, "--vram", "10GiB", "--fit", "--params", "30M", "--json"]
    sources = [*logs(), *(f"runs/{name}" for name in RUNS)]
    for number, source in enumerate(sources):
        yield ["doctor", source, "--json"]
        yield ["doctor", source, "--gpu", CARDS[number % 5]]
        if number % 4 == 0:
            yield ["doctor", source, "--markdown", "--gpu", CARDS[number % 5]]
            yield ["doctor", source, "--config", "gpt2_124m.py", "--gpu", "RTX 4070", "--json"]
    yield ["doctor", *sources[:5]]
    for one, other in zip(sources, sources[1:] + sources[:1], strict=True):
        yield ["compare", one, other, "--json"]
        yield ["compare", one, other]
    yield ["compare", "nanogpt.log", "bare.log", "llmc.log", "runs/plain"]
    yield from (["gpus"], ["gpus", "--json"], ["plan"], ["plan", "--json"], ["data", "info", "nowhere"])
    for bad in (
        ["plan", "missing.py"],
        ["plan", "--n_layer=x"],
        ["doctor", "nowhere"],
        ["train", "--resume", "runs/none"],
    ):
        yield bad
        yield [*bad, "--json"]


def answer(process: WarmProcess, command: list[str], folder: Path) -> dict[str, object]:
    """What a command says on a machine without a card, with the folder's path taken out."""
    found: Outcome = process.run(
        *command, cwd=folder, environment=environment(folder), python_path=str(folder / "no_card")
    )
    said = {"stdout": found.stdout, "stderr": found.stderr}
    return {"command": command, "code": found.code} | {
        key: text.replace(str(folder), "HERE") for key, text in said.items()
    }


def read_archive() -> dict[str, Any]:
    """`commit`, `files` by name, and `answers`."""
    found: dict[str, Any] = json.loads(lzma.decompress(ARCHIVE.read_bytes()))
    return found


def write_files(files: dict[str, str], folder: Path) -> None:
    no_card = {"no_card/pynvml.py": "raise ImportError('this machine has no card')\n"}
    for name, text in {**files, **no_card}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def main() -> None:
    made, clean = (Path(sys.argv[1]) / name for name in ("made", "clean"))
    made.mkdir(parents=True)
    make_files(made)
    kinds = ("*.py", "*.log", "*.txt", "*.json", "runs/*/*.json", "runs/*/*.jsonl")
    files = {str(path.relative_to(made)): path.read_text() for kind in kinds for path in sorted(made.glob(kind))}
    write_files(files, clean)
    process = WarmProcess()
    answers = [answer(process, command, clean) for command in commands()]
    process.close()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    whole = {"commit": commit, "files": files, "answers": answers}
    ARCHIVE.write_bytes(lzma.compress(json.dumps(whole, indent=0).encode(), preset=9))
    print(f"{len(files)} files, {len(answers)} answers, {ARCHIVE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
