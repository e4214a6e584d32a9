"""What a step of nanoGPT asks of a card: operations, bytes and kernels, part by part.

Letters: N tokens of a micro-batch, T block_size, C n_embd, L n_layer, H n_head, V vocab_size, P parameters. FLOPs of
matrix products and of attention are exact. Bytes are counted from the kernels nanoGPT launches, or set where the count
did not decide (docs/explain/speed.md). Operations outside the tensor cores are fitted to measured kernels.
"""

from __future__ import annotations

from dataclasses import replace

from onecard.config.schema import RunConfig
from onecard.paper.device import Device
from onecard.paper.work import ACCUMULATION, UPDATE, Parts, Work
from onecard.plan.counts import count_params, count_tensors
from onecard.plan.speed.on_paper import (
    evaluation_batch_on_paper,
    micro_batch,
    nanogpts,
    update_on_paper,
    with_odd_vocabulary,
)
from onecard.plan.speed.work import Costs, MicroBatch, StepWork


def nanogpt_step(config: RunConfig, dtype: str, costs: Costs, device: Device) -> StepWork:
    """The work of one step of nanoGPT; `dtype` is the type it really runs in."""
    parts, half = update_on_paper(nanogpts, config, device), dtype != "float32"
    in_evaluation = evaluation_batch_on_paper(nanogpts, config, device)
    return StepWork(
        micro_batch=_micro_batch(parts, config, costs, half=half, backward=True),
        evaluation_batch=_micro_batch(in_evaluation, config, costs, half=half, backward=False),
        evaluation_batches=2 * config.eval_iters,
        evaluations=evaluations(config),
        checkpoints=checkpoints(config),
        accumulation=parts[ACCUMULATION],
        update=parts[UPDATE],
        tensors=count_tensors(config),
        sequences=config.batch_size,
        stumbles=_stumbles(config, dtype),
    )


# CPython keeps the frames of a thread in chunks of 2,048 slots. A compiled backward pass is one function with a slot
# for every tensor it names and every argument. If it leaves less of the chunk than a kernel's launcher needs, each
# launch maps a new chunk and unmaps it again. Slots were counted in TorchInductor's code for 2 to 24 layers. 1,676 and
# 1,880 slots did not stumble; 1,744 to 1,844 did (Python 3.12).
_STUMBLING_FRAMES = range(1720, 1865)


def _stumbles(config: RunConfig, dtype: str) -> float:
    """Launches of a compiled backward pass that map memory first: its Triton kernels and its attention."""
    slots = (68 + 4 * (config.dropout > 0) + 12 * config.bias - 3 * (dtype == "float32")) * config.n_layer + 44
    launches = (23 if config.bias else 13) * config.n_layer
    return launches if config.compile and slots in _STUMBLING_FRAMES else 0


def evaluations(config: RunConfig) -> int:
    """How often nanoGPT evaluates in a run: before the first update, and after every eval_interval."""
    return 1 if config.eval_only else 1 + config.max_iters // config.eval_interval


def checkpoints(config: RunConfig) -> int:
    """How often nanoGPT saves at most: after every evaluation except the first (only the best, unless always)."""
    return 0 if config.eval_only else config.max_iters // config.eval_interval


def _micro_batch(parts: Parts, config: RunConfig, costs: Costs, *, half: bool, backward: bool) -> MicroBatch:
    if not config.compile:
        return in_eager_mode(with_odd_vocabulary(parts, config), config, costs, half=half, backward=backward)
    found = micro_batch(parts, costs)
    return replace(
        found,
        memory_bound=memory_bound(config, half=half, costs=costs, backward=backward),
        loss=_loss(config, half=half, costs=costs, backward=backward),
    )


# What a byte and a value of eager kernels cost, divided by those of compiled ones: 124M batch 8 and 16, profiled.
_EAGER_BYTE = {True: 1.06, False: 1.30}  # by whether the run is in half precision
_EAGER_VALUE = 1.9


def in_eager_mode(parts: Parts, config: RunConfig, costs: Costs, *, half: bool, backward: bool) -> MicroBatch:
    """The parts of a micro-batch, one kernel per operation."""
    found = micro_batch(parts, costs, byte=_EAGER_BYTE[half], value=_EAGER_VALUE)
    # Profiles show more kernels than the operations have: fills, sorts, and sums in two passes.
    unseen = (3 + config.bias) * config.n_layer + 11 if half else 17
    more = Work(kernels=unseen, splits=splits(config, half) * config.n_layer) if backward else Work()
    return replace(found, memory_bound=found.memory_bound + more)


def memory_bound(config: RunConfig, *, half: bool, costs: Costs, backward: bool) -> Work:
    """Norms, GELU, residuals, embeddings and casts, in the kernels that TorchInductor makes of them."""
    N, C, L, P = config.batch_size * config.block_size, config.n_embd, config.n_layer, count_params(config).total
    dropout = config.dropout > 0 and backward
    share = 1.0 if backward else 0.33  # norms, residuals and GELU: about a third of the bytes
    # Reading the kernels gives about 130. 130, 110 and 100 fit the H200 equally well with other shares of its bandwidth
    # (0.85, 0.75, 0.70), and 100 comes nearest to the RTX 4070's runs.
    token_bytes: float = (100 if half else 140) * share
    token_flops = costs.pointwise_flops * share
    if config.bias and backward:
        token_bytes += 18 if half else 36  # the gradients of biases are sums over tokens
    if dropout:
        token_bytes += 8  # masks of two dropouts a layer
        token_flops += costs.dropout_flops
    cast_bytes = (18 if backward else 6) if half else 0  # a parameter's cast, its transpose, its gradient's cast back
    return Work(
        vector_flops=N * C * (L + 1) * token_flops,
        moved_bytes=N * C * (L + 1) * token_bytes + P * cast_bytes,
        kernels=_kernels(config, half) * L + 33 if backward else (7 if half else 3) * L + 13,
        splits=splits(config, half) * L if backward else 0,
    )


def _kernels(config: RunConfig, half: bool) -> int:
    """Kernels of a compiled layer other than products and attention, forward and backward, as counted in profiles."""
    casts = 4 if half else 0  # of the weights
    return 15 + casts + (9 + casts if config.bias else 0)  # gradients of biases are sums over tokens


def splits(config: RunConfig, half: bool) -> float:
    """Zeros and sums of a layer's split products: with more tokens, more of the weights' gradients are split."""
    tokens = config.batch_size * config.block_size
    return min(16.0, tokens / 512) if not half and not config.compile else min(8.0, tokens / 2048)


def _loss(config: RunConfig, *, half: bool, costs: Costs, backward: bool) -> Work:
    """Compiled cross-entropy over the logits; backward also the zero gradient of nanoGPT's returned logits."""
    N, V = config.batch_size * config.block_size, config.vocab_size
    element = 2 if half else 4
    logit_bytes = element * (5 if backward else 1)  # softmax reads; gradient reads, reads zeros, writes; zeros written
    if V % 8:  # copies to padded rows, and unaligned reads: 124M batch 8 with 50257, 1.3 ms a micro-batch
        logit_bytes += element * (8 if backward else 2)
    flops = costs.loss_flops * (1.0 if backward else 0.45)  # the two kernels take 0.56 and 0.64 ms
    return Work(vector_flops=N * V * flops, moved_bytes=N * V * logit_bytes, kernels=4 if backward else 2)
