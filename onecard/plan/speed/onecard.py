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

from math import lcm

from onecard.config.schema import RunConfig
from onecard.models.chunks import default_chunk_tokens
from onecard.models.evaluation import eval_sequences
from onecard.models.ways import fuses, records_graph
from onecard.plan.counts import count_params
from onecard.plan.speed import nanogpt
from onecard.plan.speed.work import Costs, MicroBatch, StepWork, Work


def onecard_step(config: RunConfig, dtype: str, costs: Costs) -> StepWork:
    """The work of one step of onecard's trainer; `dtype` is the type it really runs in."""
    evaluated = _evaluated(config)
    return StepWork(
        micro_batch=_micro_batch(config, dtype, costs, backward=True),
        evaluation_batch=_micro_batch(evaluated, dtype, costs, backward=False),
        evaluation_batches=2 * -(-eval_sequences(config) // evaluated.batch_size),
        evaluations=evaluations(config),
        checkpoints=checkpoints(config),
        accumulation=Work() if _written_out(config, costs) else nanogpt.accumulation(config),  # products add them up
        update=_update(config, costs),
        tensors=nanogpt.tensors(config),
        sequences=0,
        recorded=records_graph(config),
        reruns=config.n_layer if _reruns_in_python(config) else 0,
    )


def _reruns_in_python(config: RunConfig) -> bool:
    """Whether Python runs blocks again, or the recomputed parts of them, launch by launch."""
    return config.grad_checkpoint != "none" and not config.compile


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
    shape = {"batch_size": config.eval_batch_size, "block_size": config.eval_block_size}
    return config.model_copy(update={key: value for key, value in shape.items() if value})


def _micro_batch(config: RunConfig, dtype: str, costs: Costs, *, backward: bool) -> MicroBatch:
    attention = nanogpt.attention(config, dtype, costs, backward)
    if backward and config.grad_checkpoint == "full":
        attention += nanogpt.attention(config, dtype, costs, False)
    return MicroBatch(
        matmuls=_matmuls(config, dtype, costs, backward),
        attention=attention,
        memory_bound=_memory_bound(config, dtype, costs, backward),
        loss=_loss(config, dtype, costs, backward),
    )


def _update(config: RunConfig, costs: Costs) -> Work:
    """Clipping and AdamW. For a recorded micro-batch the gradients are set to zero, several tensors per kernel."""
    params, tensors = count_params(config).total, nanogpt.tensors(config)
    found = nanogpt.update(config)
    if records_graph(config):
        found += Work(moved_bytes=4 * params, kernels=tensors / 6)
    if _written_out(config, costs):  # the weights' casts
        found += Work(moved_bytes=6 * params, kernels=tensors / 6)
    return found


def _chunks(config: RunConfig) -> int:
    """Pieces into which the tokens of a micro-batch go through the head."""
    return -(-config.batch_size * config.block_size // (config.loss_chunk or default_chunk_tokens(config.vocab_size)))


def _matmuls(config: RunConfig, dtype: str, costs: Costs, backward: bool) -> Work:
    N, C, L, V = config.batch_size * config.block_size, config.n_embd, config.n_layer, config.vocab_size
    passes = 3 if backward else 1  # forward; gradients of inputs; gradients of weights
    element = 4 if dtype == "float32" else 2
    # The head is never compiled, so a vocabulary that tensor cores cannot read in place is always slow.
    head_flops = (
        passes * 2 * V * C * N * (1.0 if nanogpt.padded_vocabulary(config) else nanogpt.ODD_VOCABULARY_SLOWDOWN)
    )
    head_bytes = passes * element * N * (C + V)
    # A chunk reads the weight for its logits and for the gradient of its inputs, and reads and writes the sum of the
    # weight's gradients in float32.
    chunk_bytes = V * C * (2 * element + 8 if backward else element)
    remade = 16 if backward and config.grad_checkpoint == "full" else 0  # of 24: all but the product of 4C with C
    remade_bytes = 11 if remade else 0  # C -> 3C, C -> C, C -> 4C: of 16
    thirds = 4 if backward and _written_out(config, costs) else 0  # q's, k's and v's gradients, one by one
    return Work(
        tensor_flops=(passes * 24 + remade) * L * C * C * N + head_flops,
        moved_bytes=element * L * C * (N * (passes * 16 + remade_bytes) + passes * 12 * C)
        + head_bytes
        + _chunks(config) * chunk_bytes,
        products=(passes * 4 + thirds + (3 if remade else 0)) * L + passes * _chunks(config),
    )


# Written out, norms read and write 24 bytes per token, layer and n_embd, and GELU 40, of the 130 in nanoGPT's kernels.
_WRITTEN_OUT_BYTES = 64 / 130

# Compiled half precision passes x from block to block in that precision: by reading the kernels 84 bytes a token, layer
# and n_embd, 108 with a float32 x.
_NARROW_STREAM = 84 / 108
# The arithmetic of norms and GELU with ours (train/gelu.py), as a share of torch's: fitted to 12 profiled rows.
_OUR_GELU = 0.5

# Norms, GELU and sums once more, as a share of all such work. Measured on an H200 with an earlier trainer, in kernels
# of 124M at batch 16 and 32; rows of this trainer agree (tests/golden/test_onecard_speed.py).
_REMADE = {"none": 0.0, "selective": 0.10, "full": 0.17}


def _memory_bound(config: RunConfig, dtype: str, costs: Costs, backward: bool) -> Work:
    """Norms, GELU, residuals, embeddings and casts."""
    plain = nanogpt.memory_bound(config, dtype, costs, backward)
    again = 1 + (_REMADE[config.grad_checkpoint] if backward else 0.0)
    if byte := _written_out(config, costs):
        return _in_our_kernels(config, plain, again, byte, backward)
    is_narrow = config.compile and dtype != "float32"
    flops = _OUR_GELU if is_narrow and not (backward and config.grad_checkpoint == "full") else 1.0  # full uses torch's
    kernels = plain.kernels * again
    if backward and config.grad_checkpoint == "full" and not config.compile:
        kernels = plain.kernels + nanogpt.memory_bound(config, dtype, costs, False).kernels
    return Work(
        vector_flops=plain.vector_flops * again * flops,
        moved_bytes=plain.moved_bytes * again * (_NARROW_STREAM if is_narrow else 1.0),
        kernels=kernels,
        splits=plain.splits,
    )


def _in_our_kernels(config: RunConfig, plain: Work, again: float, byte: float, backward: bool) -> Work:
    """The same, written out."""
    N, C, L = config.batch_size * config.block_size, config.n_embd, config.n_layer
    casts = count_params(config).total * (18 if backward else 6)  # nanoGPT makes these in every micro-batch
    return Work(
        vector_flops=plain.vector_flops * again * _OUR_GELU,
        moved_bytes=(plain.moved_bytes - casts) * again * byte * _WRITTEN_OUT_BYTES + N * C * (24 if backward else 10),
        kernels=(8 if backward else 3) * L + 12,
        splits=plain.splits,
    )


def _written_out(config: RunConfig, costs: Costs) -> float | None:
    """Time of a byte where passes are written out, divided by nanoGPT's; None if they are not, or were never timed."""
    return costs.written_out_byte if fuses(config) else None


def _loss(config: RunConfig, dtype: str, costs: Costs, backward: bool) -> Work:
    """One kernel per chunk reads the logits and, for the backward pass, writes their gradient over them."""
    N, C, V = config.batch_size * config.block_size, config.n_embd, config.vocab_size
    element = 4 if dtype == "float32" else 2
    passes = 2 if backward else 1
    flops = costs.loss_flops / 4 * passes  # nanoGPT's two kernels read the logits four times
    # The head's gradient starts at zero and is scaled; that of the hidden states is cast and scaled.
    gradient_bytes = 12 * V * C + (element + 12) * N * C if backward and not _written_out(config, costs) else 0
    return Work(
        vector_flops=N * V * flops,
        moved_bytes=passes * element * N * V + gradient_bytes,
        kernels=_chunks(config) + (4 if backward else 0),
    )
