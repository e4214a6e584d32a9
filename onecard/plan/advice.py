"""What to change: every fix re-planned, with what it takes off the run's peak and what it costs in speed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from onecard import units
from onecard.config.schema import RunConfig
from onecard.plan.asked import Asked
from onecard.plan.candidate import Candidate
from onecard.plan.cards import Card
from onecard.plan.command import EXPANDABLE, train_command
from onecard.plan.evaluation import eval_batch_size, eval_sequences
from onecard.plan.fit import fit_nanogpt, fit_onecard, from_smaller_weights
from onecard.plan.memory.predict import Memory, predict_onecard
from onecard.plan.remedies import RECOMPUTED, Remedy, evaluating, free_remedies, micro_batch_of, recomputing, remedies
from onecard.plan.speed import TrainerName


@dataclass(frozen=True, kw_only=True)
class Fix:
    """One change and what it does. All figures are re-planned; none is a rule of thumb."""

    name: str
    what: str
    trainer: TrainerName  # whose run it makes
    patch: Mapping[str, Any] = field(default_factory=dict)  # config keys
    environment: str = ""  # a setting in front of the command
    code: str = ""  # an edit of nanoGPT's own source
    saves_bytes: int = 0  # off what the driver shows for the process
    slowdown: float | None  # 0.1: a tenth slower; negative: faster; None: speed unknown
    fits: bool | None  # whether the run fits with this change alone
    safe: bool = True  # not by less than predictions may be off
    same_run: bool = True  # the mathematics stay: same model, context and tokens per update
    why: str

    def command(self, source: str | None, typed: Mapping[str, Any] | None = None) -> str:
        """What to type; `typed` are keys that were set on the command line and so are in no file."""
        patch = {**(typed or {}), **self.patch}
        return train_command(source, patch, environment=self.environment, trainer=self.trainer)


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
    asked = Asked(config=config, card=card, trainer=trainer, memory=memory, available_bytes=available_bytes)
    fixes = [_fix(asked, remedy, _replanned(asked, remedy), trainer=trainer) for remedy in remedies(asked)]
    if ours and trainer == "nanogpt":
        fixes += _with_our_trainer(asked, ours)
    useful = sorted((fix for fix in fixes if fix.saves_bytes > 0), key=_rank)
    told = [fix.patch for fix in useful]
    together = [fix for fix in _best_combination(asked) if fix.code or fix.patch not in told]
    return [*useful, *together, *_smaller_weights(asked), *_not_in_the_config(asked, other_bytes)]


def _replanned(asked: Asked, remedy: Remedy) -> Memory:
    return asked.memory_with(
        remedy.patch, expandable_segments=remedy.expandable_segments, returns_logits=remedy.returns_logits
    )


def _fix(asked: Asked, remedy: Remedy, after: Memory | Candidate, *, trainer: TrainerName) -> Fix:
    """The remedy with what it does to the run, which then is one of `trainer` and takes what `after` says."""
    return Fix(
        name=remedy.name,
        what=remedy.what,
        trainer=trainer,
        patch=remedy.patch,
        environment=EXPANDABLE if remedy.expandable_segments else "",
        code=remedy.code,
        saves_bytes=asked.memory.process_bytes - after.process_bytes,
        slowdown=asked.slowdown(asked.config.replace(remedy.patch), trainer),
        fits=after.fits,
        safe=after.safe if isinstance(after, Candidate) else asked.is_safe(after),
        same_run=remedy.same_run,
        why=remedy.why,
    )


def _rank(fix: Fix) -> tuple[bool, bool, bool, float, int]:
    cost = (fix.slowdown or 0.0) if fix.fits and fix.same_run else 0.0
    return fix.fits is False, not fix.same_run, not fix.safe, round(cost, 2), -fix.saves_bytes


def _with_our_trainer(asked: Asked, ours: Memory) -> Iterator[Fix]:
    """The same run under onecard; where that alone is no cure, recomputing too, and the fastest settings that fit."""
    what, why = "train with onecard", "the loss goes through the head in chunks, and no logits are held"
    yield _fix(asked, Remedy(name="onecard-train", what=what, why=why), ours, trainer="onecard")
    if ours.fits is not True:
        for more in recomputing(asked.config):
            memory = predict_onecard(
                asked.config.replace(more.patch), asked.card, available_bytes=asked.available_bytes
            )
            both = replace(more, name=f"onecard-{more.name}", what=f"{what}, {more.what}", why=f"{why}; {more.why}")
            yield _fix(asked, both, memory, trainer="onecard")
    if ours.fits is False and asked.available_bytes is not None:
        best = fit_onecard(asked.config, asked.card, asked.available_bytes).best
        if best and best.patch.keys() - {"grad_checkpoint"}:  # which alone is told above
            fitted = Remedy(name="onecard-fit", what=f"{what}, {_way(best)}", why=_FASTEST_WAY, patch=best.patch)
            yield _fix(asked, fitted, best, trainer="onecard")


_FASTEST_WAY = "the fastest micro-batch and recomputation that fit"


def _way(best: Candidate) -> str:
    """`8 sequences a micro-batch, same tokens per update`: what our trainer does otherwise, in a candidate."""
    patch, words = best.patch, []
    if "batch_size" in patch:
        words += [micro_batch_of(patch["batch_size"]), "same tokens per update"]
    elif mode := patch.get("grad_checkpoint"):
        words.append(RECOMPUTED[mode][0])
    if "eval_batch_size" in patch:
        words.append(evaluating(patch["eval_batch_size"]))
    return ", ".join(words)


def _best_combination(asked: Asked) -> Iterator[Fix]:
    """All that costs no speed, and the fastest way that then fits: of a run without enough room."""
    config, room_bytes = asked.config, asked.room_bytes
    if room_bytes is None:
        return
    free = [remedy for remedy in free_remedies(asked) if not remedy.expandable_segments]  # the fit tries those itself
    patch = {key: value for remedy in free for key, value in remedy.patch.items()}
    if asked.trainer == "nanogpt":
        best = fit_nanogpt(config.replace(patch), asked.card, room_bytes, returns_logits=False).best
    else:
        best = fit_onecard(config.replace(patch), asked.card, room_bytes).best
    if best is None:
        return
    ways = [f"{key}={value}" for key, value in best.patch.items() if key == "grad_checkpoint"]
    together = Remedy(
        name="best-combination",
        what="what is free, at the fastest micro-batch that fits",
        why=" + ".join([*(remedy.name for remedy in free), f"batch_size={best.config.batch_size}", *ways]),
        patch={key: value for key, value in best.config.model_dump().items() if value != getattr(config, key)},
        code="; ".join(remedy.code for remedy in free if remedy.code),
        expandable_segments=best.expandable_segments,
        returns_logits=False,
    )
    if together.patch or together.code:
        yield _fix(asked, together, best, trainer=asked.trainer)


def _smaller_weights(asked: Asked) -> Iterator[Fix]:
    """Of a run from trained weights that has too little room: smaller ones, in the fastest way that fits."""
    if asked.room_bytes is None or not asked.config.starts_pretrained:
        return
    found = from_smaller_weights(asked.config, asked.card, asked.room_bytes, asked.trainer)
    if found is None:
        return
    yield Fix(
        name="smaller-weights",
        what=f"start from {found.config.init_from}",
        trainer=asked.trainer,
        patch=found.patch,
        environment=EXPANDABLE if found.expandable_segments else "",
        saves_bytes=asked.memory.process_bytes - found.process_bytes,
        slowdown=asked.slowdown(found.config, asked.trainer),
        fits=found.fits,
        safe=found.safe,
        same_run=False,
        why="another, smaller model; the shape is that of the weights",
    )


def _not_in_the_config(asked: Asked, other_bytes: int) -> Iterator[Fix]:
    """What people try, told plainly: other programs, and evaluation."""
    memory, available_bytes = asked.memory, asked.available_bytes
    if other_bytes:
        room_bytes = min(other_bytes, asked.card.allocatable_bytes) if asked.card else other_bytes
        yield Fix(
            name="close-other-programs",
            what="close the programs that hold memory on the card",
            trainer=asked.trainer,
            slowdown=0.0,
            fits=None if available_bytes is None else memory.process_bytes <= available_bytes + room_bytes,
            why=f"takes nothing off this run; gives it up to {units.mib(room_bytes)} more room",
        )
    if asked.trainer == "onecard" and eval_batch_size(asked.config) > eval_sequences(asked.config):
        return  # an evaluation is one batch, which fewer eval_iters make smaller
    below = memory.peak_phase.name == "train"
    yield Fix(
        name="eval-iters",
        what="fewer eval_iters, or a smaller evaluation batch" if below else "fewer eval_iters",
        trainer=asked.trainer,
        slowdown=0.0,
        fits=memory.fits,
        safe=asked.is_safe(memory),
        why=f"0 MiB: evaluation keeps no graph{' and peaks below training' if below else ''}; "
        "eval_iters only sets how long it takes",
    )
