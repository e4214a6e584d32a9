"""Why a part of a peak is as large as it is: one line, with arithmetic that a person can check.

Training keeps what its backward pass needs. An evaluation keeps no graph, so the same tag covers less there.
"""

from __future__ import annotations

from onecard.config.schema import RunConfig
from onecard.models.chunks import chunk_starts, default_chunk_tokens
from onecard.models.evaluation import eval_batch_size, eval_sequences
from onecard.models.ways import shards
from onecard.paper import tags
from onecard.paper.kernels import FLOAT
from onecard.plan.counts import count_params
from onecard.units import KIB, MIB

TRAINING = "train"  # the name of the training phase; the other phases are evaluations
LOSSES_ALONE = "only the losses; no logits exist at the peak"


def why_nanogpt(config: RunConfig, tag: str, phase: str, moment: str, size_bytes: int) -> str:
    """Why a part has its size at the peak of a phase of nanoGPT's loop. Its evaluations use training's batch size."""
    tokens = config.batch_size * config.block_size
    if tag != tags.LOGITS_AND_LOSS:
        return _why(config, tag, phase, size_bytes, tokens)
    one = tokens * config.vocab_size * item_bytes(config)
    if size_bytes < one:
        return LOSSES_ALONE
    return f"{size_bytes / one:.3g} x {_size(one)} of logits: {_logits_held(config, phase, moment)}"


def why_onecard(config: RunConfig, tag: str, phase: str, moment: str, size_bytes: int) -> str:
    """The same for onecard's trainer. There, logits exist only for one chunk of tokens at a time."""
    tokens = config.batch_size * config.block_size
    if phase != TRAINING:
        sequences = min(eval_batch_size(config), eval_sequences(config))
        tokens = sequences * config.eval_length
    if tag == tags.OPTIMIZER_STATE and config.optimizer == "muon":
        params = count_params(config).total
        return f"{size_bytes / params:.2g} bytes x {params:,} parameters: one moment of Muon, two of AdamW, float32"
    if tag != tags.LOGITS_AND_LOSS:
        return _why(config, tag, phase, size_bytes, tokens)
    chunk = min(tokens, chunk_starts(tokens, config.loss_chunk or default_chunk_tokens(config.vocab_size)).step)
    one = chunk * config.vocab_size * item_bytes(config)
    if size_bytes < one:
        return LOSSES_ALONE
    then = "; gradient in place" if phase == TRAINING else ""
    return f"logits of {chunk:,} tokens at a time, {_size(one)}{then}"


def item_bytes(config: RunConfig) -> int:
    """Bytes of a value in the compute type."""
    return FLOAT if config.dtype == "float32" else 2


def _size(size_bytes: int) -> str:
    return f"{size_bytes / MIB:,.0f} MiB" if size_bytes >= MIB else f"{size_bytes / KIB:,.0f} KiB"


def _why(config: RunConfig, tag: str, phase: str, size_bytes: int, tokens: int) -> str:
    params = count_params(config).total
    each = size_bytes / tokens / config.n_embd
    share = ", shared by all cards" if shards(config) else ""
    match tag:
        case tags.GRADIENTS if phase != TRAINING:
            return f"{size_bytes / params:.2g} bytes x {params:,} parameters: {_IN_EVALUATION[tag]}"
        case tags.WEIGHTS | tags.GRADIENTS | tags.OPTIMIZER_STATE | tags.WEIGHT_CASTS:
            return f"{size_bytes / params:.2g} bytes x {params:,} parameters{share}: {tags.TAGS[tag]}"
        case tags.ACTIVATIONS | tags.ATTENTION if phase == TRAINING:
            return f"{each / config.n_layer:.3g} bytes x n_embd x n_layer per token: {tags.TAGS[tag]}"
        case tags.ACTIVATIONS | tags.ATTENTION:
            return f"{each:.3g} bytes x n_embd per token, {tokens:,} tokens: {_IN_EVALUATION[tag]}"
    return tags.TAGS[tag]


_IN_EVALUATION = {
    tags.GRADIENTS: "from the last update, freed before the first batch",
    tags.ACTIVATIONS: "of the current layer; no graph is kept",
    tags.ATTENTION: "q, k, v and output of the current layer",
}


def _logits_held(config: RunConfig, phase: str, moment: str) -> str:
    copies = (
        [] if config.compile else ["log-softmax"] if config.dtype == "float32" else ["log-softmax, its float32 copy"]
    )
    if phase == TRAINING:
        if config.compile:
            return "logits, gradient, zero gradient"
        return f"logits, {copies[0]}, gradient"
    held = ["the last step's"] + (["the training loop's old ones"] if phase == "eval" else [])
    return ", ".join(["this step's", *held, *copies] if moment == "head and loss" else held)
