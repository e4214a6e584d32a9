"""What to change: every fix re-planned, with what it takes off the run's peak and what it costs in speed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from onecard import units
from onecard.config.schema import RunConfig
from onecard.plan.cards import Card
from onecard.plan.fit import EXPANDABLE, HEAD_SIZE, RECOMPUTATION, fit_config, fit_onecard, micro_batches, train_command
from onecard.plan.memory.predict import Memory, predict_nanogpt, predict_onecard
from onecard.plan.speed import Speed, TrainerName, predict_speed

ROOMY = 0.9  # a run that takes no more of what there is needs no fixing


@dataclass(frozen=True, kw_only=True)
class Fix:
    """One change and what it does. All figures are re-planned; none is a rule of thumb."""

    name: str
    what: str
    trainer: TrainerName = "nanogpt"  # whose run it makes
    patch: Mapping[str, Any] = field(default_factory=dict)  # config keys
    environment: str = ""  # a setting in front of the command
    code: str = ""  # an edit of nanoGPT's own source
    saves_bytes: int = 0  # off what the driver shows for the process
    slowdown: float | None = None  # 0.1: a tenth slower; negative: faster; None: speed unknown
    fits: bool | None = None  # whether the run fits with this change alone
    safe: bool = True  # not by less than predictions may be off
    same_run: bool = True  # the mathematics stay: same model, context and tokens per update
    why: str

    def command(self, source: str | None, typed: Mapping[str, Any] | None = None) -> str:
        """What to type; `typed` are keys that were set on the command line and so are in no file."""
        patch = {**(typed or {}), **self.patch}
        return train_command(source, patch, environment=self.environment, trainer=self.trainer)


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


@dataclass(frozen=True)
class _Asked:
    """The run that is to be fixed, under the trainer its user would start."""

    config: RunConfig
    card: Card | None
    trainer: TrainerName
    memory: Memory
    available_bytes: int | None

    @property
    def room_bytes(self) -> int | None:
        """What there is for a run that has too little room; None where it has enough, or nobody knows."""
        available = self.available_bytes
        return available if available is not None and not is_roomy(self.memory, available) else None

    @property
    def speed(self) -> Speed | None:
        return predict_speed(self.config, self.card, self.trainer)

    def needs(self, config: RunConfig, change: _Change | None = None) -> Memory:
        """The memory of a changed run under the same trainer."""
        if self.trainer == "onecard":
            return predict_onecard(config, self.card, available_bytes=self.available_bytes)
        return predict_nanogpt(
            config,
            self.card,
            available_bytes=self.available_bytes,
            expandable_segments=bool(change and change.expandable),
            returns_logits=change is None or change.returns_logits,
        )

    def is_safe(self, memory: Memory) -> bool:
        """Whether a run fits, whatever the prediction may be off by; so it does where no card is known."""
        return self.available_bytes is None or memory.is_safe(self.available_bytes)

    def is_safe_with(self, patch: Mapping[str, Any]) -> bool:
        """The same of the patched run, on a card that is known."""
        return self.available_bytes is not None and self.is_safe(self.needs(self.config.replace(patch)))

    def slowdown(self, config: RunConfig, trainer: TrainerName) -> float | None:
        """How much longer the same tokens take."""
        before, after = self.speed, predict_speed(config, self.card, trainer)
        return before.tokens_per_second.likely / after.tokens_per_second.likely - 1 if before and after else None


def is_roomy(memory: Memory, available_bytes: int) -> bool:
    """Whether a run leaves a tenth of what there is."""
    return memory.process_bytes <= ROOMY * available_bytes


def ranked_fixes(
    config: RunConfig,
    card: Card | None,
    memory: Memory,
    *,
    available_bytes: int | None,
    other_bytes: int = 0,
    trainer: TrainerName = "nanogpt",
    ours: Memory | None = None,
) -> list[Fix]:
    """Fixes for a run under `trainer`: cures of the same run first, the cheapest leading; then by what they save.

    `memory` is what the run takes as it is. With `ours`, what it takes under onecard, to train with onecard instead is
    among the fixes of a run of nanoGPT.
    """
    asked = _Asked(config, card, trainer, memory, available_bytes)
    fixes = [_fix(asked, change) for change in _changes(asked)]
    if ours and trainer == "nanogpt":
        fixes += _with_our_trainer(asked, ours)
    useful = sorted((fix for fix in fixes if fix.saves_bytes > 0), key=_rank)
    together = best_combination(asked) if trainer == "nanogpt" else None
    useful += [together] if together else []
    return useful + list(_not_in_the_config(asked, other_bytes))


def _fix(asked: _Asked, change: _Change) -> Fix:
    changed = asked.config.replace(change.patch)
    after = asked.needs(changed, change)
    return Fix(
        name=change.name,
        what=change.what,
        trainer=asked.trainer,
        patch=change.patch,
        environment=change.environment,
        code=change.code,
        saves_bytes=asked.memory.process_bytes - after.process_bytes,
        slowdown=asked.slowdown(changed, asked.trainer),
        fits=after.fits,
        safe=asked.is_safe(after),
        same_run=change.same_run,
        why=change.why,
    )


def _rank(fix: Fix) -> tuple[bool, bool, bool, float, int]:
    cost = (fix.slowdown or 0.0) if fix.fits and fix.same_run else 0.0
    return fix.fits is False, not fix.same_run, not fix.safe, round(cost, 2), -fix.saves_bytes


def _with_our_trainer(asked: _Asked, ours: Memory) -> Iterator[Fix]:
    """The same run under onecard; where that alone is no cure, recomputing too, and the fastest settings that fit."""
    ways = {"onecard-train": (asked.config, ours)}
    if ours.fits is not True:
        for mode, config in _recomputing(asked.config):
            memory = predict_onecard(config, asked.card, available_bytes=asked.available_bytes)
            ways[f"onecard-{mode}"] = config, memory
    for name, (config, memory) in ways.items():
        patch = _difference(asked.config, config)
        yield Fix(
            name=name,
            what="train with onecard" + (f", {_RECOMPUTES[config.grad_checkpoint]}" if patch else ""),
            trainer="onecard",
            patch=patch,
            saves_bytes=asked.memory.process_bytes - memory.process_bytes,
            slowdown=asked.slowdown(config, "onecard"),
            fits=memory.fits,
            safe=asked.is_safe(memory),
            why="the loss goes through the head in chunks, and no logits are held"
            + (f"; {_RECOMPUTES_WHY[config.grad_checkpoint]}" if patch else ""),
        )
    if ours.fits is False and asked.available_bytes is not None:
        best = fit_onecard(asked.config, asked.card, asked.available_bytes).best
        if best and best.config.batch_size != asked.config.batch_size:
            yield Fix(
                name="onecard-fit",
                what=f"train with onecard, {_sequences(best.config.batch_size)} a micro-batch, same tokens per update",
                trainer="onecard",
                patch=best.patch,
                saves_bytes=asked.memory.process_bytes - best.process_bytes,
                slowdown=asked.slowdown(best.config, "onecard"),
                fits=True,
                safe=best.safe,
                why="the fastest micro-batch and recomputation that fit",
            )


_RECOMPUTES = {"selective": "norms and GELU computed twice", "full": "every block computed twice"}
_RECOMPUTES_WHY = {
    "selective": "what is cheap to make again is not kept for the backward pass",
    "full": "of every block only its input is kept for the backward pass",
}


def _recomputing(config: RunConfig) -> Iterator[tuple[str, RunConfig]]:
    """The config with more recomputation than it has."""
    for mode in RECOMPUTATION[RECOMPUTATION.index(config.grad_checkpoint) + 1 :]:
        yield mode, config.replace({"grad_checkpoint": mode})


def best_combination(asked: _Asked) -> Fix | None:
    """Every change that costs no speed together, at the fastest micro-batch that fits; None where nothing need be."""
    config, card, room_bytes = asked.config, asked.card, asked.room_bytes
    if room_bytes is None:
        return None
    free = [change for change in _free_changes(asked) if change.name != "expandable-segments"]
    patch = {key: value for change in free for key, value in change.patch.items()}
    best = fit_config(config.replace(patch), card, room_bytes, returns_logits=False).best
    if best is None:
        return None
    return Fix(
        name="best-combination",
        what="all that costs no speed, at the fastest micro-batch that fits",
        patch=_difference(config, best.config),
        environment=EXPANDABLE if best.expandable_segments else "",
        code="; ".join(change.code for change in free if change.code),
        saves_bytes=asked.memory.process_bytes - best.process_bytes,
        slowdown=asked.slowdown(best.config, "nanogpt"),
        fits=True,
        safe=best.safe,
        why=" + ".join([*(change.name for change in free), f"batch_size={best.config.batch_size}"]),
    )


def _sequences(count: int) -> str:
    return "one sequence" if count == 1 else f"{count} sequences"


def _difference(before: RunConfig, after: RunConfig) -> dict[str, Any]:
    return {key: value for key, value in after.model_dump().items() if value != getattr(before, key)}


def _changes(asked: _Asked) -> Iterator[_Change]:
    yield from _free_changes(asked)
    if asked.trainer == "onecard":
        for mode, config in _recomputing(asked.config):
            patch = _difference(asked.config, config)
            yield _Change(mode, _RECOMPUTES[mode], _RECOMPUTES_WHY[mode], patch)
    if asked.room_bytes is not None:  # what must shrink depends on the room there is
        yield from _smaller_changes(asked)


def _free_changes(asked: _Asked) -> Iterator[_Change]:
    """Changes of the same run that cost no speed."""
    config, card = asked.config, asked.card
    if not config.compile:
        why = "the fused loss makes no float32 copy of the logits, and fused kernels keep less"
        if asked.trainer == "onecard":
            why = "fused kernels keep less"
        yield _Change("compile", "compile the model", why, {"compile": True})
    if config.dtype == "float32":
        dtype = card.best_dtype() if card else "bfloat16"
        yield _Change(
            "half-precision", f"compute in {dtype}", "activations and logits take 2 bytes, not 4", {"dtype": dtype}
        )
    if asked.trainer == "nanogpt":
        yield _Change(
            "return-only-the-loss",
            "do not return the logits in training",
            "the loop holds them; compiled, autograd makes zeros for them, and their gradient cannot be written over "
            "them",
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
    if asked.trainer == "nanogpt":
        yield _Change(
            "expandable-segments",
            "let the allocator grow its segments",
            "less is lost between blocks; nothing else changes",
            environment=EXPANDABLE,
            expandable=True,
        )


def _smaller_changes(asked: _Asked) -> Iterator[_Change]:
    """Changes that make less of something, as little less as fits."""
    config = asked.config
    if smaller := _micro_batch_that_fits(asked):
        yield _Change(
            "smaller-micro-batch",
            f"{_sequences(smaller['batch_size'])} a micro-batch, the same tokens per update",
            "activations and logits shrink with it; the mathematics stays",
            smaller,
        )
    if config.block_size > 256:
        block, accumulation = config.block_size // 2, config.gradient_accumulation_steps * 2
        patch = {"block_size": block, "gradient_accumulation_steps": accumulation}
        if config.eval_block_size:
            patch["eval_block_size"] = min(block, config.eval_block_size)
        yield _Change(
            "shorter-block",
            f"a context of {block:,}, the same tokens per update",
            f"the model sees {block:,} tokens back instead of {config.block_size:,}",
            patch,
            same_run=False,
        )
    if narrower := _width_that_fits(asked):
        what = f"n_embd={narrower['n_embd']} with heads of {HEAD_SIZE}"
        yield _Change("smaller-model", what, "another, smaller model", narrower, same_run=False)


def _micro_batch_that_fits(asked: _Asked) -> dict[str, int] | None:
    """The largest smaller micro-batch that fits at the same tokens per update; the smallest if none does."""
    config = asked.config
    smaller = [size for size in reversed(micro_batches(config)) if size < config.batch_size]
    return _first_that_fits(asked, [_patch(config, size) for size in smaller])


def _width_that_fits(asked: _Asked) -> dict[str, int] | None:
    """The widest narrower model with heads of 64 that fits; the narrowest if none does."""
    widths = range((asked.config.n_embd - 1) // HEAD_SIZE * HEAD_SIZE, 0, -HEAD_SIZE)
    return _first_that_fits(asked, [{"n_embd": width, "n_head": width // HEAD_SIZE} for width in widths])


def _first_that_fits(asked: _Asked, patches: list[dict[str, int]]) -> dict[str, int] | None:
    """Of patches that need ever less memory the first that fits, by halving; the last if none does."""
    low, high = 0, len(patches) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if asked.is_safe_with(patches[middle]) else (middle + 1, high)
    return patches[low] if patches else None


def _patch(config: RunConfig, batch_size: int) -> dict[str, int]:
    return {"batch_size": batch_size, "gradient_accumulation_steps": config.sequences_per_step // batch_size}


def _not_in_the_config(asked: _Asked, other_bytes: int) -> Iterator[Fix]:
    """What people try, told plainly: other programs, and evaluation."""
    memory, available_bytes = asked.memory, asked.available_bytes
    if other_bytes:
        fits = None if available_bytes is None else memory.process_bytes <= available_bytes + other_bytes
        yield Fix(
            name="close-other-programs",
            what="close the programs that hold memory on the card",
            trainer=asked.trainer,
            slowdown=0.0,
            fits=fits,
            why=f"takes nothing off this run; gives it up to {units.mib(other_bytes)} more room",
        )
    if memory.peak_phase.name == "train":
        yield Fix(
            name="eval-iters",
            what="fewer eval_iters, or a smaller evaluation batch",
            trainer=asked.trainer,
            slowdown=0.0,
            fits=memory.fits,
            safe=asked.is_safe(memory),
            why="0 MiB: evaluation keeps no graph and peaks below training; eval_iters only sets how long it takes",
        )
