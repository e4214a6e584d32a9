"""What to change: every fix re-planned, with what it takes off the run's peak and what it costs in speed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from onecard import units
from onecard.config.schema import RunConfig
from onecard.plan.cards import Card
from onecard.plan.fit import EXPANDABLE, HEAD_SIZE, fit_config, train_command
from onecard.plan.memory.predict import Memory, predict_nanogpt
from onecard.plan.speed import predict_speed


@dataclass(frozen=True, kw_only=True)
class Fix:
    """One change and what it does. All figures are re-planned; none is a rule of thumb."""

    name: str
    what: str
    patch: Mapping[str, Any] = field(default_factory=dict)  # config keys
    environment: str = ""  # a setting in front of the command
    code: str = ""  # an edit of nanoGPT's own source
    saves_bytes: int = 0  # off what the driver shows for the process
    slowdown: float | None = None  # 0.1: a tenth slower; negative: faster; None: speed unknown
    fits: bool | None = None  # whether the run fits with this change alone
    same_run: bool = True  # the mathematics stay: same model, context and tokens per update
    why: str

    def command(self, source: str | None) -> str:
        """What to type."""
        return train_command(source, self.patch, environment=self.environment)


@dataclass(frozen=True)
class _Change:
    name: str
    what: str
    why: str
    patch: dict[str, Any] = field(default_factory=dict)
    environment: str = ""
    code: str = ""
    expandable: bool = False
    returns_logits: bool = True
    same_run: bool = True


def ranked_fixes(
    config: RunConfig, card: Card | None, memory: Memory, *, available_bytes: int | None, other_bytes: int = 0
) -> list[Fix]:
    """Fixes for a run under nanoGPT: cures of the same run first, the cheapest leading; then by what they save."""
    speed = predict_speed(config, card)
    fixes = []
    for change in _changes(config, card, available_bytes):
        changed = config.replace(change.patch)
        after = predict_nanogpt(
            changed,
            card,
            available_bytes=available_bytes,
            expandable_segments=change.expandable,
            returns_logits=change.returns_logits,
        )
        faster = predict_speed(changed, card)
        slowdown = speed.tokens_per_second.likely / faster.tokens_per_second.likely - 1 if speed and faster else None
        fixes.append(
            Fix(
                name=change.name,
                what=change.what,
                patch=change.patch,
                environment=change.environment,
                code=change.code,
                saves_bytes=memory.process_bytes - after.process_bytes,
                slowdown=slowdown,
                fits=after.fits,
                same_run=change.same_run,
                why=change.why,
            )
        )
    useful = sorted((fix for fix in fixes if fix.saves_bytes > 0), key=_rank)
    together = best_combination(config, card, memory, available_bytes=available_bytes)
    useful += [together] if together else []
    return useful + list(_not_in_the_config(memory, available_bytes, other_bytes))


def _rank(fix: Fix) -> tuple[bool, bool, float, int]:
    cost = (fix.slowdown or 0.0) if fix.fits and fix.same_run else 0.0
    return fix.fits is False, not fix.same_run, round(cost, 2), -fix.saves_bytes


def best_combination(
    config: RunConfig, card: Card | None, memory: Memory, *, available_bytes: int | None
) -> Fix | None:
    """Every change that costs no speed together, at the fastest micro-batch that fits; None where nothing is left."""
    if available_bytes is None:
        return None
    free = [c for c in _changes(config, card, None) if c.same_run and c.name != "expandable-segments"]
    patch = {key: value for change in free for key, value in change.patch.items()}
    fit = fit_config(config.replace(patch), card, available_bytes, returns_logits=False)
    best, speed = fit.best, predict_speed(config, card)
    if best is None:
        return None
    changed = {key: value for key, value in best.config.model_dump().items() if value != getattr(config, key)}
    return Fix(
        name="best-combination",
        what="all that costs no speed, at the fastest micro-batch that fits",
        patch=changed,
        environment=EXPANDABLE if best.expandable_segments else "",
        code="; ".join(change.code for change in free if change.code),
        saves_bytes=memory.process_bytes - best.process_bytes,
        slowdown=speed.tokens_per_second.likely / best.speed.tokens_per_second.likely - 1
        if speed and best.speed
        else None,
        fits=True,
        why=" + ".join([*(change.name for change in free), f"batch_size={best.config.batch_size}"]),
    )


def _changes(config: RunConfig, card: Card | None, available_bytes: int | None) -> Iterator[_Change]:
    if not config.compile:
        why = "the fused loss makes no float32 copy of the logits, and fused kernels keep less"
        yield _Change("compile", "compile the model", why, {"compile": True})
    if config.dtype == "float32":
        dtype = card.best_dtype() if card else "bfloat16"
        yield _Change(
            "half-precision", f"compute in {dtype}", "activations and logits take 2 bytes, not 4", {"dtype": dtype}
        )
    yield _Change(
        "return-only-the-loss",
        "do not return the logits in training",
        "the loop holds them, and compiled autograd makes a gradient of zeros for them",
        code="model.py, at the end of forward: `return (None if self.training else logits), loss`",
        returns_logits=False,
    )
    if config.vocab_size % 64:
        padded = -(-config.vocab_size // 64) * 64
        yield _Change(
            "pad-the-vocabulary",
            f"round the vocabulary up to {padded:,}",
            "an odd vocabulary makes Inductor copy the logits' gradient to an even one",
            {"vocab_size": padded},
            code="train.py: `model_args['vocab_size'] = -(-meta_vocab_size // 64) * 64`",
        )
    if config.dropout:
        yield _Change("no-dropout", "no dropout", "masks are kept; pretraining needs none", {"dropout": 0.0})
    yield _Change(
        "expandable-segments",
        "let the allocator grow its segments",
        "less is lost between blocks; nothing else changes",
        environment=EXPANDABLE,
        expandable=True,
    )
    if available_bytes is None:
        return  # what must shrink depends on the room there is
    if smaller := _micro_batch_that_fits(config, card, available_bytes):
        yield _Change(
            "smaller-micro-batch",
            f"{smaller['batch_size']} sequences a micro-batch, the same tokens per update",
            "activations and logits shrink with it; the mathematics stays",
            smaller,
        )
    if config.block_size > 256:
        block, accumulation = config.block_size // 2, config.gradient_accumulation_steps * 2
        yield _Change(
            "shorter-block",
            f"a context of {block:,}, the same tokens per update",
            f"the model sees {block:,} tokens back instead of {config.block_size:,}",
            {"block_size": block, "gradient_accumulation_steps": accumulation},
            same_run=False,
        )
    if narrower := _width_that_fits(config, card, available_bytes):
        what = f"n_embd={narrower['n_embd']} with {narrower['n_head']} heads"
        yield _Change("smaller-model", what, "another, smaller model", narrower, same_run=False)


def _micro_batch_that_fits(config: RunConfig, card: Card | None, available_bytes: int) -> dict[str, int] | None:
    """The largest smaller micro-batch that fits at the same tokens per update; the smallest if none does."""
    sizes = [s for s in range(config.batch_size - 1, 0, -1) if config.sequences_per_step % s == 0]
    return _first_that_fits(config, [_patch(config, size) for size in sizes], card, available_bytes)


def _width_that_fits(config: RunConfig, card: Card | None, available_bytes: int) -> dict[str, int] | None:
    """The widest narrower model with heads of 64 that fits; the narrowest if none does."""
    widths = range((config.n_embd - 1) // HEAD_SIZE * HEAD_SIZE, 0, -HEAD_SIZE)
    patches = [{"n_embd": width, "n_head": width // HEAD_SIZE} for width in widths]
    return _first_that_fits(config, patches, card, available_bytes)


def _first_that_fits(
    config: RunConfig, patches: list[dict[str, int]], card: Card | None, available_bytes: int
) -> dict[str, int] | None:
    """Of patches that need ever less memory the first that fits, by halving; the last if none does."""
    low, high = 0, len(patches) - 1
    while low < high:
        middle = (low + high) // 2
        fits = predict_nanogpt(config.replace(patches[middle]), card, available_bytes=available_bytes).fits
        low, high = (low, middle) if fits else (middle + 1, high)
    return patches[low] if patches else None


def _patch(config: RunConfig, batch_size: int) -> dict[str, int]:
    return {"batch_size": batch_size, "gradient_accumulation_steps": config.sequences_per_step // batch_size}


def _not_in_the_config(memory: Memory, available_bytes: int | None, other_bytes: int) -> Iterator[Fix]:
    """What people try, told plainly: other programs, and evaluation."""
    if other_bytes:
        fits = None if available_bytes is None else memory.process_bytes <= available_bytes + other_bytes
        yield Fix(
            name="close-other-programs",
            what="close the programs that hold memory on the card",
            slowdown=0.0,
            fits=fits,
            why=f"takes nothing off this run; gives it up to {units.mib(other_bytes)} more room",
        )
    if memory.peak_phase.name == "train":
        yield Fix(
            name="eval-iters",
            what="fewer eval_iters, or a smaller evaluation batch",
            slowdown=0.0,
            fits=memory.fits,
            why="0 MiB: evaluation keeps no graph and peaks below training; eval_iters only sets how long it takes",
        )
