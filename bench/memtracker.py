"""What torch's own MemTracker predicts for measured rows, without a GPU: writes docs/measurements/memtracker.csv.

    python bench/memtracker.py --date 2026-11-15 --lines 3,15,45 --out docs/measurements/memtracker.csv

`--lines` are line numbers of tests/golden/nanogpt_h200.csv (its header is line 1); only eager rows can be asked for.

`torch.distributed._tools.mem_tracker.MemTracker` adds up the storages that operations return, each until Python frees
it. It is used out of the box: a restatement of the GPT in ordinary torch functions, under a loop like nanoGPT's, on
fake CPU tensors. Two updates are tracked, because Adam's states exist only from the second on. The prediction is the
highest total of both. There are two predictions:

- `predicted_bytes`: updates of one micro-batch, the use its documentation shows;
- `predicted_accumulating_bytes`: two micro-batches per update if the run accumulates. The second finds gradients, and a
  third would repeat it. MemTracker refuses a module that is called twice, unless it is told to forget it in between.

It cannot see: torch.compile (eager operations only), what the caching allocator reserves, the CUDA context, cuBLAS
workspaces, and scratch that kernels allocate for themselves. Fake CUDA tensors with autograd abort a torch without
CUDA, so it sees the CPU's operations. Where dropout makes these unlike CUDA's, it sees ones like CUDA's instead: a mask
has a byte an element (native_dropout), and attention stores no score matrices, as without dropout. (The CPU's stores
them as soon as there is dropout: with it these rows were 76 % too high in the median, up to 138 %.) What is left of the
CPU are the types that autocast gives the loss. On a machine with a GPU it could do better. Evaluation is not run here.
Neither is GradScaler, because it reads values that fake tensors do not have; it holds two scalars.
"""

from __future__ import annotations

import argparse
import csv
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[1]))  # run as a script, like the other files of this folder

from bench.measured import GOLDEN, Measured, measured_rows
from onecard.config.schema import RunConfig

UPDATES = 2  # Adam's states exist from the second on
CONFIG_COLUMNS = (
    "n_layer n_head n_embd block_size batch_size gradient_accumulation_steps vocab_size dtype dropout bias compile"
).split()
COLUMNS = [
    "line",
    *CONFIG_COLUMNS,
    "predicted_bytes",
    "predicted_accumulating_bytes",
    "measured_train_alloc",
    "seconds",
    "torch",
    "date",
    "note",
]

# B sequences, T tokens, C = n_embd, V = vocab_size


class Block(nn.Module):
    """Attention and MLP, each after a norm and onto the residual."""

    def __init__(self, c: RunConfig) -> None:
        super().__init__()
        self.config = c
        self.norm_1, self.norm_2 = (nn.LayerNorm(c.n_embd, bias=c.bias) for _ in range(2))
        self.qkv = nn.Linear(c.n_embd, 3 * c.n_embd, bias=c.bias)
        self.out = nn.Linear(c.n_embd, c.n_embd, bias=c.bias)
        self.up = nn.Linear(c.n_embd, 4 * c.n_embd, bias=c.bias)
        self.down = nn.Linear(4 * c.n_embd, c.n_embd, bias=c.bias)

    def forward(self, x_BTC: torch.Tensor) -> torch.Tensor:
        x_BTC = x_BTC + self.attention(self.norm_1(x_BTC))
        return x_BTC + self.drop(self.down(functional.gelu(self.up(self.norm_2(x_BTC)))))

    def attention(self, x_BTC: torch.Tensor) -> torch.Tensor:
        B, T, C = x_BTC.shape
        heads = (B, T, self.config.n_head, self.config.head_size)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(x_BTC).split(C, dim=2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)  # CUDA's keeps a seed for its dropout
        return self.drop(self.out(y.transpose(1, 2).contiguous().view(B, T, C)))

    def drop(self, x: torch.Tensor) -> torch.Tensor:
        return dropped(x, self.config.dropout)


def dropped(x: torch.Tensor, share: float) -> torch.Tensor:
    """Dropout as CUDA does it: with a mask of a byte an element."""
    return torch.native_dropout(x, share, train=True)[0] if share else x


class Gpt(nn.Module):
    """GPT-2's shape with the output head tied to the token embedding."""

    def __init__(self, c: RunConfig) -> None:
        super().__init__()
        self.dropout = c.dropout
        self.tokens = nn.Embedding(c.vocab_size, c.n_embd)
        self.positions = nn.Embedding(c.block_size, c.n_embd)
        self.blocks = nn.ModuleList([Block(c) for _ in range(c.n_layer)])
        self.norm = nn.LayerNorm(c.n_embd, bias=c.bias)
        self.head = nn.Linear(c.n_embd, c.vocab_size, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids_BT: torch.Tensor, targets_BT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x_BTC = self.tokens(ids_BT) + self.positions(torch.arange(ids_BT.shape[1]))
        x_BTC = dropped(x_BTC, self.dropout)
        for block in self.blocks:
            x_BTC = block(x_BTC)
        logits_BTV = self.head(self.norm(x_BTC))
        loss = functional.cross_entropy(logits_BTV.view(-1, logits_BTV.shape[-1]), targets_BT.view(-1))
        return logits_BTV, loss


def tracked_peak_bytes(config: RunConfig, *, micro_steps: int) -> int:
    """Highest total of bytes MemTracker sees while `config` trains on fake tensors."""
    half = config.dtype != "float32"
    with FakeTensorMode():
        model = Gpt(config)
        optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, fused=True)
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        with tracker:
            for _ in range(UPDATES):
                for _ in range(micro_steps):
                    ids, targets = (torch.zeros(config.batch_size, config.block_size, dtype=torch.long) for _ in "xy")
                    with torch.autocast("cpu", dtype=getattr(torch, config.dtype), enabled=half):
                        logits, loss = model(ids, targets)  # nanoGPT's loop holds the logits through the backward pass
                    loss.backward()
                    tracker.reset_mod_stats()  # as its own message asks, before a module is called again
                nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        (peak,) = tracker.get_tracker_snapshot("peak").values()
    return int(peak["Total"])


def tracked_row(line: int, row: Measured, *, date: str) -> dict[str, Any]:
    """One row of the CSV: predicted bytes, or a note that says why there are none, and the first one's seconds."""
    found: dict[str, Any] = {"line": line, "torch": torch.__version__, "date": date}
    found |= {column: row.columns[column] for column in CONFIG_COLUMNS}
    found["measured_train_alloc"] = row.allocated_bytes("train")
    started = time.perf_counter()
    try:
        found["predicted_bytes"] = tracked_peak_bytes(row.config, micro_steps=1)
        found["seconds"] = round(time.perf_counter() - started, 1)
        found["predicted_accumulating_bytes"] = (
            tracked_peak_bytes(row.config, micro_steps=2)
            if row.config.gradient_accumulation_steps > 1
            else found["predicted_bytes"]
        )
    except Exception as error:  # whatever MemTracker cannot run belongs in the table, not in a traceback
        found["note"] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", required=True, help="line numbers of the measured rows, with commas")
    parser.add_argument("--date", required=True, help="the day to record, YYYY-MM-DD")
    parser.add_argument("--out", required=True, type=Path, help="the CSV to write")
    asked = parser.parse_args()
    rows = dict(enumerate(measured_rows(GOLDEN / "nanogpt_h200.csv"), start=2))
    lines = [int(text) for text in asked.lines.split(",")]
    for line in lines:
        if line not in rows or rows[line].config.compile or not rows[line].ok:
            parser.error(f"line {line} of nanogpt_h200.csv is not an eager run that finished")
    asked.out.parent.mkdir(parents=True, exist_ok=True)
    with asked.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for line in lines:
            found = tracked_row(line, rows[line], date=asked.date)
            writer.writerow(found)
            file.flush()  # a run that is stopped keeps its rows
            print(
                line, rows[line].name, *(error_shown(found, key) for key in COLUMNS if "predicted" in key), flush=True
            )


def error_shown(found: dict[str, Any], column: str) -> str:
    """The relative error of one prediction, as text."""
    return f"{found[column] / found['measured_train_alloc'] - 1:+.1%}" if column in found else found["note"]


if __name__ == "__main__":
    main()
