"""Remedies: what may be changed about a run to make it take less memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from onecard import units
from onecard.config.schema import RunConfig
from onecard.models.evaluation import smaller_eval_batch
from onecard.models.ways import RECOMPUTATION, recomputations
from onecard.plan.fit import SHORTEST_BLOCK, micro_batches
from onecard.plan.precision import compiles
from onecard.plan.run_to_fix import RunToFix
from onecard.plan.search import largest, start_of_search
from onecard.plan.shape import HEAD_SIZE


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """A change that may help. advice.py plans the run again to find what it saves and costs."""

    name: str
    what: str
    why: str
    patch: Mapping[str, Any] = field(default_factory=dict)  # config keys
    code: str = ""  # an edit of nanoGPT's own source
    expandable_segments: bool = False  # a setting of the allocator, in nanoGPT's environment
    returns_logits: bool = True  # False: nanoGPT's model is edited to return the loss alone in training
    same_run: bool = True  # the same mathematics: same model, context and tokens per update


def remedies(run: RunToFix) -> Iterator[Remedy]:
    """Everything that may help a run under its trainer."""
    yield from free_remedies(run)
    if run.trainer == "onecard":
        yield from recomputing(run.config)
    if run.room_bytes is not None:  # how far to shrink depends on the room
        yield from _smaller(run)


def free_remedies(run: RunToFix) -> Iterator[Remedy]:
    """Changes of the same run that cost no speed."""
    config, of_nanogpt = run.config, run.trainer == "nanogpt"
    if not config.compile and compiles(run.card):
        why = "fused kernels keep less"
        if of_nanogpt:
            why = f"the fused loss makes no float32 copy of the logits, and {why}"
        yield Remedy(name="compile", what="compile the model", why=why, patch={"compile": True})
    if config.dtype == "float32":
        dtype = run.card.best_dtype() if run.card else "bfloat16"
        yield Remedy(
            name="half-precision",
            what=f"compute in {dtype}",
            why="activations and logits take 2 bytes, not 4",
            patch={"dtype": dtype},
        )
    if of_nanogpt:
        yield from _edits_of_nanogpt(config)
    elif sequences := smaller_eval_batch(config):
        yield Remedy(
            name="smaller-eval-batch",
            what=evaluating(sequences),
            why="evaluation then needs less than training; the same sequences are read, so its loss stays",
            patch={"eval_batch_size": sequences},
        )
    if config.dropout and not config.starts_pretrained:  # fine-tuning reads few tokens often, and dropout may help
        why = "its masks take memory; pretraining needs no dropout"
        yield Remedy(name="no-dropout", what="no dropout", why=why, patch={"dropout": 0.0})
    if of_nanogpt and not run.expandable_segments:
        yield Remedy(
            name="expandable-segments",
            what="expandable segments in the allocator",
            why="less memory is lost between blocks; nothing else changes",
            expandable_segments=True,
        )


def evaluating(sequences: int) -> str:
    """`evaluate one sequence at a time`, `evaluate 8 sequences at a time`"""
    return f"evaluate {'one sequence' if sequences == 1 else f'{sequences} sequences'} at a time"


def _edits_of_nanogpt(config: RunConfig) -> Iterator[Remedy]:
    yield Remedy(
        name="return-only-the-loss",
        what="do not return the logits in training",
        why="the loop keeps them; compiled, autograd also makes a gradient of zeros for them",
        code="model.py, at the end of forward: `return (None if self.training else logits), loss`",
        returns_logits=False,
    )
    if config.vocab_size % 64 and not config.starts_pretrained:
        padded = -(-config.vocab_size // 64) * 64
        yield Remedy(
            name="pad-the-vocabulary",
            what=f"round the vocabulary up to {padded:,}",
            why="with an odd vocabulary Inductor copies the logits' gradient into a padded one",
            patch={"vocab_size": padded},
            code="train.py: `model_args['vocab_size'] = -(-meta_vocab_size // 64) * 64`",
        )


RECOMPUTED = {
    "selective": ("selective gradient checkpointing", "norms and GELU are computed again in the backward pass"),
    "full": ("gradient checkpointing", "only the input of each block is kept; the backward pass computes it again"),
}


def recomputing(config: RunConfig) -> Iterator[Remedy]:
    """More recomputation than the config has; only onecard's trainer has the key. An evaluation keeps nothing."""
    if config.eval_only:
        return
    for mode in recomputations(config):
        if RECOMPUTATION.index(mode) <= RECOMPUTATION.index(config.grad_checkpoint):
            continue
        what, why = RECOMPUTED[mode]
        yield Remedy(name=mode, what=what, why=why, patch={"grad_checkpoint": mode})


def _smaller(run: RunToFix) -> Iterator[Remedy]:
    """A smaller run, shrunk no further than needed to fit."""
    config = run.config
    if smaller := _micro_batch_that_fits(run):
        yield Remedy(
            name="smaller-micro-batch",
            what=f"{micro_batch_of(smaller['batch_size'])}, the same tokens per update",
            why="activations and logits shrink with it; the mathematics stays the same",
            patch=smaller,
        )
    if config.block_size > 256:
        block = config.block_size // 2
        patch = {"block_size": block, "gradient_accumulation_steps": config.gradient_accumulation_steps * 2}
        if config.eval_block_size:
            patch["eval_block_size"] = min(block, config.eval_block_size)
        yield Remedy(
            name="shorter-block",
            what=f"a context of {block:,}, the same tokens per update",
            why=f"the model sees {block:,} tokens back instead of {config.block_size:,}",
            patch=patch,
            same_run=False,
        )
    if run.memory.peak_phase.name != "train" and (read := _evaluated_context_that_fits(run)):
        yield Remedy(
            name="shorter-eval-block",
            what=f"evaluate contexts of {units.things(read['eval_block_size'], 'token')}",
            why="fewer tokens are read; a loss at another context length is another quantity",
            patch=read,
            same_run=False,
        )
    if not config.starts_pretrained and (narrower := _width_that_fits(run)):
        what = f"n_embd={narrower['n_embd']} with heads of {HEAD_SIZE}"
        yield Remedy(name="smaller-model", what=what, why="another, smaller model", patch=narrower, same_run=False)


def micro_batch_of(count: int) -> str:
    """`one sequence a micro-batch`, `8 sequences a micro-batch`"""
    return "one sequence a micro-batch" if count == 1 else f"{count} sequences a micro-batch"


def _micro_batch_that_fits(run: RunToFix) -> dict[str, int] | None:
    """The largest smaller micro-batch that fits at the same tokens per update; the smallest if none does."""
    sequences, size_now = run.config.sequences_per_step, run.config.batch_size
    smaller = [size for size in reversed(micro_batches(run.config)) if size < size_now]
    patches = [{"batch_size": size, "gradient_accumulation_steps": sequences // size} for size in smaller]
    return _first_that_fits(run, patches)


def _evaluated_context_that_fits(run: RunToFix) -> dict[str, int] | None:
    """The longest half, quarter … of the evaluated context with which the run fits; the shortest if none does."""
    if run.trainer == "nanogpt":
        return None  # nanoGPT has no such key
    length = run.config.eval_length
    halves = [length >> halvings for halvings in range(1, length.bit_length())]
    return _first_that_fits(run, [{"eval_block_size": each} for each in halves if each >= SHORTEST_BLOCK])


def _width_that_fits(run: RunToFix) -> dict[str, int] | None:
    """The widest narrower model with heads of 64 that fits; the narrowest if none does."""
    widths = range((run.config.n_embd - 1) // HEAD_SIZE * HEAD_SIZE, 0, -HEAD_SIZE)
    return _first_that_fits(run, [{"n_embd": width, "n_head": width // HEAD_SIZE} for width in widths])


def _first_that_fits(run: RunToFix, patches: list[dict[str, int]]) -> dict[str, int] | None:
    """The first patch that fits, of patches that need less and less memory; the last if none does."""
    if not patches or run.available_bytes is None:
        return None
    ways = patches[::-1]
    configs = [run.config.replace(patch) for patch in ways]
    start = start_of_search(configs, run.card, run.available_bytes, run.trainer)
    return largest(ways, run.is_safe_with, start=start) or ways[0]
