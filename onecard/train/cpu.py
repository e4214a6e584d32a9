"""How long a run takes on this computer's CPU, estimated from a short test of its speed."""

from __future__ import annotations

import statistics
import time

import torch

from onecard.config.schema import RunConfig
from onecard.models.evaluation import eval_tokens, evaluations_after
from onecard.plan.calibration import TimedRun
from onecard.plan.counts import flops_per_token
from onecard.plan.ranges import Range, within

# Training's share of the speed of one matrix product of the same width. Measured on two cores of an AMD EPYC with torch
# 2.13, seven shapes from 128 to 768 wide: 0.59 to 0.83. A laptop that gets warm, or is used meanwhile, reaches less.
SHARE = Range(low=0.3, likely=0.65, high=0.85)
TIMED_SPREAD = 0.2  # a rule of thumb: what else the machine does meanwhile
OVERHEAD_SECONDS = 0.002  # of an update, however small the model: starting its operations
TEST_SECONDS = 0.1
TEST_ROWS = 512  # enough to fill all cores


def cpu_seconds(config: RunConfig, *, step: int = 0, timed: TimedRun | None = None) -> Range:
    """Seconds of training and evaluation from `step` to the end of the run; `timed` is the same model, timed here."""
    updates = 0 if config.eval_only else max(0, config.max_iters - step)
    evaluations = 1 if config.eval_only else evaluations_after(config, step) + (step % config.eval_interval == 0)
    evaluated_tokens = 2 * evaluations * eval_tokens(config)  # of both splits
    tokens = updates * config.tokens_per_step + evaluated_tokens / 3  # a forward pass alone is a third of the work
    if timed:
        return within(tokens / timed.tokens_per_second, TIMED_SPREAD)
    work_seconds = tokens * flops_per_token(config) / matmul_flops(config)
    return SHARE.mapped(lambda share: work_seconds / share + updates * OVERHEAD_SECONDS)


def matmul_flops(config: RunConfig) -> float:
    """FLOP/s of the product a block spends most time in, [tokens, C] by [C, 4C]: the median of a few, measured now."""
    rows, width = min(TEST_ROWS, config.batch_size * config.block_size), config.n_embd
    left, right = torch.ones(rows, width), torch.ones(width, 4 * width)  # not random: that would move torch's seed
    torch.mm(left, right)  # the first one starts torch's threads
    seconds: list[float] = []
    until = time.perf_counter() + TEST_SECONDS
    while (began := time.perf_counter()) < until or len(seconds) < 3:
        torch.mm(left, right)
        seconds.append(time.perf_counter() - began)
    return 2 * rows * width * 4 * width / statistics.median(seconds)
