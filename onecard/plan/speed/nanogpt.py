"""What a step of nanoGPT asks of a card: operations, bytes and kernels, part by part.

Letters: N tokens of a micro-batch, T block_size, C n_embd, L n_layer, H n_head, V vocab_size, P parameters. FLOPs of
matrix products and of attention are exact. Bytes are counted from the kernels nanoGPT launches, or set where the count
did not decide (docs/explain/speed.md). Operations outside the tensor cores are fitted to measured kernels.
"""

from __future__ import annotations

from onecard.config.schema import RunConfig
from onecard.models.optimizers import Optimizer, nanogpt_optimizer, optimizer_of
from onecard.plan.counts import count_params
from onecard.plan.speed.work import Costs, MicroBatch, StepWork, Work


def nanogpt_step(config: RunConfig, dtype: str, costs: Costs) -> StepWork:
    """The work of one step of nanoGPT; `dtype` is the type it really runs in."""
    return StepWork(
        micro_batch=_micro_batch(config, dtype, costs, backward=True),
        evaluation_batch=_micro_batch(config, dtype, costs, backward=False),
        evaluation_batches=2 * config.eval_iters,
        evaluations=evaluations(config),
        checkpoints=checkpoints(config),
        accumulation=accumulation(config),
        update=update(config, nanogpt_optimizer(config), dtype),
        tensors=tensors(config),
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


def _micro_batch(config: RunConfig, dtype: str, costs: Costs, *, backward: bool) -> MicroBatch:
    return MicroBatch(
        matmuls=_matmuls(config, dtype, backward),
        attention=attention(config, dtype, costs, backward),
        memory_bound=memory_bound(config, dtype, costs, backward),
        loss=_loss(config, dtype, costs, backward),
    )


def tensors(config: RunConfig) -> int:
    """Parameter tensors."""
    return sum(optimizer_of(config).kinds.values())


def accumulation(config: RunConfig) -> Work:
    """Two reads and a write in float32, tensor by tensor."""
    return Work(moved_bytes=12 * count_params(config).total, kernels=tensors(config))


def update(config: RunConfig, optimizer: Optimizer, dtype: str) -> Work:
    """Gradient clipping and the optimizer, in one kernel for several tensors; and the products of Muon."""
    clipping = 12 if config.grad_clip else 0  # the norm reads 4 bytes a parameter, the scaling reads and writes 4
    muon = optimizer.orthogonalisation
    return Work(
        tensor_flops=muon.flops,
        moved_bytes=clipping * count_params(config).total
        + optimizer.moved_bytes
        + muon.moved_elements * (4 if dtype == "float32" else 2),
        kernels=20 + tensors(config) / 6 + muon.kernels,
        products=muon.products,
    )


def padded_vocabulary(config: RunConfig) -> bool:
    """Whether tensor cores can read the logits in place: rows of 16 bytes."""
    return config.vocab_size % 8 == 0


# A vocabulary that is not a multiple of 8 keeps eager products off the fast kernels. This is an estimate: padding 50257
# to 50304 made all of nanoGPT 25 % faster (Karpathy on Twitter, February 2023) with 31 % of its FLOPs in that product,
# so it ran at about half speed. No row on the H200 shows it.
ODD_VOCABULARY_SLOWDOWN = 2.0


def _matmuls(config: RunConfig, dtype: str, backward: bool) -> Work:
    N, C, L, V = config.batch_size * config.block_size, config.n_embd, config.n_layer, config.vocab_size
    passes = 3 if backward else 1  # forward; gradients of inputs; gradients of weights
    element = 4 if dtype == "float32" else 2
    head_flops: float = 2 * V * C * N
    if not padded_vocabulary(config) and not config.compile:
        head_flops *= ODD_VOCABULARY_SLOWDOWN
    blocks_flops = 24 * L * C * C * N
    # Operands and results: C -> 3C, C -> C, C -> 4C, 4C -> C is 16 C a token and layer; the head C -> V.
    tokens_elements = N * (16 * C * L + C + V)
    weights_elements = 12 * L * C * C + V * C
    return Work(
        tensor_flops=passes * (blocks_flops + head_flops),
        moved_bytes=passes * element * (tokens_elements + weights_elements),
        products=passes * (4 * L + 1),
    )


# Causal kernels work in tiles: each row of queries reads half a tile beyond the diagonal, in both directions.
_ATTENTION_TILE = 128
# Attention's forward kernel takes 0.56 of 2.32 ms (124M batch 8, H200); its two products alone would be 2 of 7.
_FORWARD_ATTENTION = 0.3
# Drawing random numbers per pair: 124M batch 8 took 3.40 ms a micro-batch with dropout 0.1, 2.32 without (H200).
_DROPOUT_IN_ATTENTION = 1.7


def attention(config: RunConfig, dtype: str, costs: Costs, backward: bool) -> Work:
    T, C, L, H = config.block_size, config.n_embd, config.n_layer, config.n_head
    N = config.batch_size * T
    pairs = N * (T + _ATTENTION_TILE) * L / 2  # pairs of a query and a key that is not after it
    products = 7 if backward else 2  # forward: scores, values; backward: scores again and four gradients
    element = 4 if dtype == "float32" else 2
    # Forward reads q, k, v and writes the output: 4 C. Backward reads those four and the gradient twice over, sums the
    # gradient of q in float32, and writes three gradients.
    tensors = 4 + (14 if backward else 0)
    exponentials = pairs * H * costs.attention_flops * (1.0 if backward else _FORWARD_ATTENTION)
    if config.dropout and backward:
        exponentials *= _DROPOUT_IN_ATTENTION
    return Work(
        tensor_flops=products * 2 * pairs * C,
        vector_flops=exponentials,
        moved_bytes=N * C * L * element * tensors,
        products=L * (4 if backward else 1),
    )


def memory_bound(config: RunConfig, dtype: str, costs: Costs, backward: bool) -> Work:
    """Norms, GELU, residuals, embeddings and casts."""
    N, C, L, P = config.batch_size * config.block_size, config.n_embd, config.n_layer, count_params(config).total
    half, dropout = dtype != "float32", config.dropout > 0 and backward
    share = 1.0 if backward else 0.33  # norms, residuals and GELU: about a third of the bytes
    # Reading the kernels gives about 130. 130, 110 and 100 fit the H200 equally well with other shares of its bandwidth
    # (0.85, 0.75, 0.70), and 100 comes nearest to the RTX 4070's runs.
    token_bytes: float = (100 if half else 140) * share
    token_flops = costs.pointwise_flops * share
    if not config.compile:  # every operation reads and writes its tensors alone: 124M batch 8 and 16, profiled
        token_bytes, token_flops = 1.9 * token_bytes, 1.9 * token_flops
    if config.bias and backward:
        token_bytes += 18 if half else 36  # the gradients of biases are sums over tokens
    if dropout:
        token_bytes += 8 if config.compile else 40  # masks of two dropouts a layer
        token_flops += costs.dropout_flops
    cast_bytes = (18 if backward else 6) if half else 0  # a parameter's cast, its transpose, its gradient's cast back
    return Work(
        vector_flops=N * C * (L + 1) * token_flops,
        moved_bytes=N * C * (L + 1) * token_bytes + P * cast_bytes,
        kernels=_pointwise_kernels(config, half) * L + 33 if backward else _forward_kernels(config, half) * L + 13,
        splits=_splits(config, half) * L if backward else 0,
    )


def _pointwise_kernels(config: RunConfig, half: bool) -> float:
    """Kernels of a layer other than products and attention, forward and backward, as counted in profiles."""
    if not half and not config.compile:  # no casts of activations and gradients either
        return 13 + 4 * config.bias
    casts = 4 if half else 0  # of the weights
    kernels = (15 if config.compile else 26) + casts
    if config.bias:
        kernels += 9 + casts  # their gradients are sums over tokens
    if config.dropout and not config.compile:
        kernels += 8
    return kernels


def _splits(config: RunConfig, half: bool) -> float:
    """Zeros and sums of a layer's split products: with more tokens, more of the weights' gradients are split."""
    tokens = config.batch_size * config.block_size
    return min(16.0, tokens / 512) if not half and not config.compile else min(8.0, tokens / 2048)


def _forward_kernels(config: RunConfig, half: bool) -> float:
    """The same for an evaluation batch: norms, GELU, residuals and casts."""
    return (3 if config.compile else 11) + (4 if half else 0)


def _loss(config: RunConfig, dtype: str, costs: Costs, backward: bool) -> Work:
    """Cross-entropy over the logits; in the backward pass also the zero gradient of nanoGPT's returned logits."""
    N, V = config.batch_size * config.block_size, config.vocab_size
    element = 4 if dtype == "float32" else 2
    passes = 5 if backward else 1  # softmax reads; gradient reads, reads zeros and writes; the zeros are written
    logit_bytes: float = element * passes
    if not config.compile:
        # log-softmax written, copied to float32, the copy's gradient zeroed, and cast back
        logit_bytes += 22 if backward else 6
    elif not padded_vocabulary(config):
        # Inductor copies to padded rows and reads unaligned ones: 124M batch 8 with 50257, 1.3 ms a micro-batch
        logit_bytes += element * (8 if backward else 2)
    flops = costs.loss_flops * (1.0 if backward else 0.45)  # the two kernels take 0.56 and 0.64 ms
    return Work(vector_flops=N * V * flops, moved_bytes=N * V * logit_bytes, kernels=4 if backward else 2)
