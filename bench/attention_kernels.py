"""Time torch's causal attention on the card in this machine: what a head of each size costs, forward and backward.

    python bench/attention_kernels.py > docs/measurements/attention.csv

Nanoseconds per token and head. The size of a batch keeps each kernel far longer than its launch. What a pair of tokens
costs is the slope between two lengths; what remains is memory traffic (onecard/paper/attention.py).
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable
from functools import partial

import torch
from torch.nn.functional import scaled_dot_product_attention

TOKENS, CHANNELS, REPEATS = 65_536, 768, 6
LENGTHS = (256, 512, 1024, 2048, 4096)
HEAD_SIZES = (16, 32, 44, 48, 60, 64, 72, 80, 96, 100, 120, 128, 136, 160, 192, 224, 256)
WITH_DROPOUT = (64, 128)


def nanoseconds(run: Callable[[], object]) -> float:
    """Of one call, the mean of some after two to warm up."""
    for _ in range(2):
        run()
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    began.record()
    for _ in range(REPEATS):
        run()
    ended.record()
    torch.cuda.synchronize()
    return float(began.elapsed_time(ended)) * 1e6 / REPEATS


def measured(length: int, head_size: int, dropout: float) -> tuple[float, float, str]:
    """Forward and backward per token and head, and the name of what torch chose."""
    heads = max(1, round(CHANNELS / head_size))
    shape = (TOKENS // length, length, 3, heads, head_size)
    parts = torch.randn(shape, device="cuda", dtype=torch.bfloat16).unbind(2)
    q, k, v = (part.transpose(1, 2).detach().requires_grad_() for part in parts)
    attend = partial(scaled_dot_product_attention, q, k, v, is_causal=True, dropout_p=dropout)
    y, d_y = attend(), torch.randn_like(parts[0]).transpose(1, 2)
    back = partial(torch.autograd.grad, y, (q, k, v), d_y, retain_graph=True)
    each = TOKENS * heads
    return nanoseconds(attend) / each, nanoseconds(back) / each, type(y.grad_fn).__name__


def main() -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["block_size", "head_size", "dropout", "forward_ns", "backward_ns", "node", "device", "torch"])
    for length in LENGTHS:
        for head_size, dropout in [(size, 0.0) for size in HEAD_SIZES] + [(size, 0.1) for size in WITH_DROPOUT]:
            forward, backward, node = measured(length, head_size, dropout)
            told = [f"{forward:.4f}", f"{backward:.4f}", node, torch.cuda.get_device_name(), torch.__version__]
            writer.writerow([length, head_size, dropout, *told])


if __name__ == "__main__":
    main()
