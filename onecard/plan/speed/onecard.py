"""What a step of onecard's own trainer asks of a card: nanoGPT's model, with another loss, sum and recomputation.

Letters as in nanogpt.py. What differs from nanoGPT (models/gpt2.py, chunked_loss.py, train/recorded_micro_batch.py):

- the loss goes through the head one chunk of tokens at a time, reads and writes each logit once, and adds every chunk's
  gradient of the head's weight in float32;
- compiled, a micro-batch is one CUDA graph. It adds to gradients that exist, so the first micro-batch is added too;
- compiled half precision passes x on in that precision, and computes GELU in fewer operations;
- without dropout and biases it is written out (models/gpt2_passes.py): the fastest kernels compute the products and add
  to x and to the gradients themselves, and weights are cast once per step;
- grad_checkpoint computes norms and GELU again (selective), or all of a block except its last product (full);
- another thread makes the batches.
"""

from __future__ import annotations

from dataclasses import replace
from math import lcm

from onecard.config.schema import RunConfig
from onecard.models.evaluation import eval_batch_size, eval_sequences
from onecard.models.optimizers import optimizer_of
from onecard.models.ways import compiles_blocks, fuses, records_graph
from onecard.paper.device import Device
from onecard.paper.library import TENSORS_PER_KERNEL
from onecard.paper.work import ACCUMULATION, MATMULS, NOTHING, UPDATE, Parts, Work
from onecard.plan.counts import count_params, count_tensors
from onecard.plan.speed import nanogpt
from onecard.plan.speed.on_paper import (
    evaluation_batch_on_paper,
    micro_batch,
    ours,
    ours_eager,
    update_on_paper,
    with_odd_vocabulary,
)
from onecard.plan.speed.work import Costs, MicroBatch, StepWork


def onecard_step(config: RunConfig, dtype: str, costs: Costs, device: Device) -> StepWork:
    """The work of one step of onecard's trainer; `dtype` is the type it really runs in."""
    half, is_counted = dtype != "float32", _written_out(config, costs) is not None
    run = ours if is_counted else ours_eager  # compiled blocks have the products of eager ones
    evaluated = _evaluated(config)
    parts, in_evaluation = update_on_paper(run, config, device), evaluation_batch_on_paper(run, evaluated, device)
    if compiles_blocks(config) and config.dropout and config.grad_checkpoint == "full":
        without = config.model_copy(update={"dropout": 0.0})  # eagerly, the last product runs again
        parts[MATMULS] = update_on_paper(ours_eager, without, device)[MATMULS]
    return StepWork(
        micro_batch=_micro_batch(parts, config, costs, half=half, backward=True),
        evaluation_batch=_micro_batch(in_evaluation, evaluated, costs, half=half, backward=False),
        evaluation_batches=2 * -(-eval_sequences(config) // evaluated.batch_size),
        evaluations=evaluations(config),
        checkpoints=checkpoints(config),
        accumulation=parts.get(ACCUMULATION, NOTHING),  # written out, products add gradients up
        update=_update(parts, config, half=half, is_counted=is_counted),
        tensors=count_tensors(config),
        sequences=0,
        recorded=records_graph(config),
        reruns=config.n_layer if _reruns_in_python(config) else 0,
    )


def _reruns_in_python(config: RunConfig) -> bool:
    """Whether Python runs blocks again, or the recomputed parts of them, launch by launch."""
    return config.grad_checkpoint != "none" and not fuses(config) and not compiles_blocks(config)


def evaluations(config: RunConfig) -> int:
    """How often a run evaluates: before the first update, after every eval_interval and at the end."""
    return 1 if config.eval_only else 1 + -(-config.max_iters // config.eval_interval)


def checkpoints(config: RunConfig) -> int:
    """How often a run saves: after every eval_interval, every checkpoint_interval and at the end."""
    if config.eval_only:
        return 0
    one, other = config.eval_interval, config.checkpoint_interval or config.eval_interval
    last = config.max_iters
    between = (last - 1) // one + (last - 1) // other - (last - 1) // lcm(one, other)
    return between + 1 if last else 0


def _evaluated(config: RunConfig) -> RunConfig:
    """The config with the batch and block of its evaluations."""
    return config.model_copy(update={"batch_size": eval_batch_size(config), "block_size": config.eval_length})


def _update(parts: Parts, config: RunConfig, *, half: bool, is_counted: bool) -> Work:
    """Clipping and the optimizer. For a recorded micro-batch the gradients are set to zero, several at a time.

    Muon's products run over batches of all layers, so they are not what one layer adds times the layers.
    """
    found = parts[UPDATE]
    if config.optimizer == "muon":
        muon = optimizer_of(config).orthogonalisation
        found += Work(
            tensor_flops=muon.flops,
            moved_bytes=muon.moved_elements * (2 if half else 4),
            kernels=muon.kernels,
            products=muon.products,
        )
    if is_counted or not records_graph(config):
        return found
    zeros = Work(moved_bytes=4 * count_params(config).total, kernels=count_tensors(config) / TENSORS_PER_KERNEL)
    return found + zeros


def _micro_batch(parts: Parts, config: RunConfig, costs: Costs, *, half: bool, backward: bool) -> MicroBatch:
    parts = with_odd_vocabulary(parts, config)  # the head is never compiled
    if not fuses(config) and not compiles_blocks(config):
        return nanogpt.in_eager_mode(parts, config, costs, half=half, backward=backward)
    if byte := _written_out(config, costs):
        found = micro_batch(parts, costs, byte=byte, value=_OUR_VALUE)
        splits = nanogpt.splits(config, half) * config.n_layer if backward else 0.0
        return replace(found, memory_bound=found.memory_bound + Work(splits=splits))
    return replace(micro_batch(parts, costs), memory_bound=_compiled(config, costs, half=half, backward=backward))


# Compiled half precision passes x from block to block in that precision: by reading the kernels 84 bytes a token, layer
# and n_embd, 108 with a float32 x.
_NARROW_STREAM = 84 / 108
# The arithmetic of norms and GELU with ours (train/gelu.py), as a share of torch's: fitted to 12 profiled rows.
_OUR_GELU = 0.5
_UNTIMED_BYTE = 1.2  # 78 bytes of compiled GPT-2 per token, layer and n_embd, where written out it counts 64
# Of nanochat, which is not compiled: 12/6/768 and 36/2/320 of 22 × 2,048, profiled on an H200 on 2026-11-20.
_NANOCHAT_BYTE = 0.9
_OUR_VALUE = 0.53  # the same for a value that passes through the written-out passes' kernels
# Norms, GELU and sums once more, as a share of all such work. Measured on an H200 with an earlier trainer, in kernels
# of 124M at batch 16 and 32; rows of this trainer agree (tests/golden/test_onecard_speed.py).
_REMADE = {"none": 0.0, "selective": 0.10, "full": 0.17}


def _compiled(config: RunConfig, costs: Costs, *, half: bool, backward: bool) -> Work:
    """Norms, GELU, residuals, embeddings and casts of compiled blocks."""
    plain = nanogpt.memory_bound(config, half=half, costs=costs, backward=backward)
    again = 1 + (_REMADE[config.grad_checkpoint] if backward else 0.0)
    flops = _OUR_GELU if half and not (backward and config.grad_checkpoint == "full") else 1.0  # full uses torch's
    return Work(
        vector_flops=plain.vector_flops * again * flops,
        moved_bytes=plain.moved_bytes * again * (_NARROW_STREAM if half else 1.0),
        kernels=plain.kernels * again,
        splits=plain.splits,
    )


def _written_out(config: RunConfig, costs: Costs) -> float | None:
    """Cost of a byte of written-out passes, divided by nanoGPT's; None where they count as compiled blocks.

    On a card where they were not timed, those of a model that is never compiled cost as much as compiled GPT-2's.
    """
    if not fuses(config):
        return None
    if config.model == "gpt2":
        return costs.written_out_byte
    return _NANOCHAT_BYTE if costs.written_out_byte else _UNTIMED_BYTE
