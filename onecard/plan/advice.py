"""What to change: every fix planned again, with the memory it saves and what it costs in speed and loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from onecard import units
from onecard.config.command import EXPANDABLE
from onecard.config.schema import RunConfig
from onecard.models.evaluation import eval_batch_size, eval_sequences
from onecard.plan.candidate import Candidate
from onecard.plan.cards import Card
from onecard.plan.fit import fit_nanogpt, fit_onecard, from_smaller_weights
from onecard.plan.loss import forecast_loss
from onecard.plan.memory.predict import Memory, predict_onecard
from onecard.plan.remedies import RECOMPUTED, Remedy, evaluating, free_remedies, micro_batch_of, recomputing, remedies
from onecard.plan.run_to_fix import RunToFix
from onecard.plan.speed import TrainerName

FEWER_EVALS = 16  # times: the notes go from 16 sequences x 200 batches to 2 x 100


@dataclass(frozen=True, kw_only=True)
class Fix:
    """One change and what it does. All figures are planned again; none is a rule of thumb."""

    name: str
    what: str
    trainer: TrainerName  # whose run it makes
    patch: Mapping[str, Any] = field(default_factory=dict)  # config keys
    environment: str = ""  # a setting in front of the command
    code: str = ""  # an edit of nanoGPT's own source
    saves_bytes: int = 0  # off what the driver shows for the process
    slowdown: float | None  # 0.1: a tenth slower; negative: faster; None: speed unknown
    fits: bool | None  # whether the run fits with this change alone
    safe: bool = True  # by more than the prediction may be off
    same_run: bool = True  # the same mathematics: same model, context and tokens per update
    loss_change: float | None = 0.0  # nats of the predicted final loss; None where that is not known
    comparable: bool = True  # the loss is the same quantity as before
    loss_note: str = ""  # why the change is not known, or what else it does to the loss
    error_times: float = 1.0  # how many times as large the standard error of an evaluation becomes
    why: str

    @property
    def change(self) -> tuple[object, ...]:
        """What is changed: two fixes with the same are one."""
        return self.trainer, tuple(sorted(self.patch.items())), self.environment, self.code


def ranked_fixes(
    config: RunConfig,
    card: Card | None,
    memory: Memory,
    *,
    needed_bytes: int | None = None,
    available_bytes: int | None,
    other_bytes: int = 0,
    trainer: TrainerName = "nanogpt",
    ours: Memory | None = None,
    expandable_segments: bool = False,
    data_tokens: int | None = None,
) -> list[Fix]:
    """Fixes for a run under `trainer`: cures of the same run first, the cheapest leading; then by what they save.

    `memory` is what the run takes in its room, `needed_bytes` what it takes where there is room enough (the same, if
    None). With `ours`, what it takes under onecard, training with onecard is among the fixes of a nanoGPT run.
    `expandable_segments`: nanoGPT's environment asks for them already.
    """
    run = RunToFix(
        config=config,
        card=card,
        trainer=trainer,
        memory=memory,
        needed_bytes=memory.process_bytes if needed_bytes is None else needed_bytes,
        available_bytes=available_bytes,
        expandable_segments=expandable_segments,
        data_tokens=data_tokens,
    )
    fixes = [_fix(run, remedy, _replanned(run, remedy), trainer=trainer) for remedy in remedies(run)]
    if ours and trainer == "nanogpt":
        fixes += _with_our_trainer(run, ours)
    useful = sorted((fix for fix in fixes if fix.saves_bytes > 0), key=_rank)
    listed = [fix.change for fix in useful]
    together = [fix for fix in _best_combination(run) if fix.change not in listed]
    return [*useful, *together, *_smaller_weights(run), *_not_in_the_config(run, other_bytes)]


def _replanned(run: RunToFix, remedy: Remedy) -> Memory:
    return run.memory_with(
        remedy.patch, expandable_segments=remedy.expandable_segments, returns_logits=remedy.returns_logits
    )


def _fix(run: RunToFix, remedy: Remedy, after: Memory | Candidate, *, trainer: TrainerName) -> Fix:
    """The remedy with what it does to the run: under `trainer` it then takes what `after` says."""
    expandable = remedy.expandable_segments or run.expandable_segments
    return Fix(
        name=remedy.name,
        what=remedy.what,
        trainer=trainer,
        patch=remedy.patch,
        environment=EXPANDABLE if expandable and trainer == "nanogpt" else "",
        code=remedy.code,
        saves_bytes=run.needed_bytes - after.process_bytes,
        slowdown=run.slowdown(run.config.replace(remedy.patch), trainer),
        fits=after.fits,
        safe=after.safe if isinstance(after, Candidate) else run.is_safe(after),
        same_run=remedy.same_run,
        **_loss_cost(run.config, remedy.patch, same_run=remedy.same_run, data_tokens=run.data_tokens),
        why=remedy.why,
    )


_READS_CONTEXT = {"block_size", "eval_block_size"}


def _loss_cost(
    config: RunConfig, patch: Mapping[str, Any], *, same_run: bool, data_tokens: int | None
) -> dict[str, Any]:
    """What a patch does to the final loss, as the fields of a Fix."""
    if _READS_CONTEXT & patch.keys():
        note = "another quantity: a loss at another context length is not comparable"
        return {"loss_change": None, "comparable": False, "loss_note": note}
    if "dropout" in patch:
        return {"loss_change": None, "loss_note": "not predicted: scaling laws do not cover dropout"}
    if same_run:
        return {"loss_change": 0.0}
    before, after = (forecast_loss(each, data_tokens) for each in (config, config.replace(patch)))
    if before is None or after is None:
        return {"loss_change": None, "loss_note": "not predicted for this run"}
    return {"loss_change": after.final.likely - before.final.likely}


def _rank(fix: Fix) -> tuple[bool, bool, bool, float, int]:
    cost = 0.0
    if fix.fits and fix.same_run:  # of unknown speed, what changes less costs less
        cost = len(fix.patch) if fix.slowdown is None else fix.slowdown
    return fix.fits is False, not fix.same_run, not fix.safe, round(cost, 2), -fix.saves_bytes


def _with_our_trainer(run: RunToFix, ours: Memory) -> Iterator[Fix]:
    """The same run under onecard, alone and with gradient checkpointing; if it does not fit, the fastest that does."""
    what, why = "train with onecard", "the logits are computed in chunks, and none are kept"
    yield _fix(run, Remedy(name="onecard-train", what=what, why=why), ours, trainer="onecard")
    for more in recomputing(run.config):
        memory = predict_onecard(run.config.replace(more.patch), run.card, available_bytes=run.available_bytes)
        both = replace(more, name=f"onecard-{more.name}", what=f"{what}, {more.what}", why=f"{why}; {more.why}")
        yield _fix(run, both, memory, trainer="onecard")
    if ours.fits is False and run.available_bytes is not None:
        best = fit_onecard(run.config, run.card, run.available_bytes).best
        if best and best.patch.keys() - {"grad_checkpoint"}:  # which alone is told above
            fitted = Remedy(name="onecard-fit", what=f"{what}, {_way(best)}", why=_FASTEST_WAY, patch=best.patch)
            yield _fix(run, fitted, best, trainer="onecard")


_FASTEST_WAY = "the fastest micro-batch and recomputation that fit"


def _way(best: Candidate) -> str:
    """`8 sequences a micro-batch`: how a candidate differs from the given run."""
    patch, words = best.patch, []
    if "batch_size" in patch:
        words.append(micro_batch_of(patch["batch_size"]))
    elif mode := patch.get("grad_checkpoint"):
        words.append(RECOMPUTED[mode][0])
    if "eval_batch_size" in patch:
        words.append(evaluating(patch["eval_batch_size"]))
    return ", ".join(words)


def _best_combination(run: RunToFix) -> Iterator[Fix]:
    """All that costs no speed, with the fastest way that then fits, for a run without enough room."""
    config, room_bytes = run.config, run.room_bytes
    if room_bytes is None:
        return
    free = [remedy for remedy in free_remedies(run) if not remedy.expandable_segments]  # fit_nanogpt tries those itself
    patch = {key: value for remedy in free for key, value in remedy.patch.items()}
    if run.trainer == "nanogpt":
        best = fit_nanogpt(config.replace(patch), run.card, room_bytes, returns_logits=False).best
    else:
        best = fit_onecard(config.replace(patch), run.card, room_bytes).best
    if best is None:
        return
    ways = [f"{key}={value}" for key, value in best.patch.items() if key == "grad_checkpoint"]
    together = Remedy(
        name="best-combination",
        what=f"all that costs no speed, and {micro_batch_of(best.config.batch_size)}",
        why=" + ".join([*(remedy.name for remedy in free), f"batch_size={best.config.batch_size}", *ways]),
        patch={key: value for key, value in best.config.model_dump().items() if value != getattr(config, key)},
        code="; ".join(remedy.code for remedy in free if remedy.code),
        expandable_segments=best.expandable_segments,
        returns_logits=False,
    )
    if together.patch or together.code:
        yield _fix(run, together, best, trainer=run.trainer)


def _smaller_weights(run: RunToFix) -> Iterator[Fix]:
    """For a run from trained weights with too little room: smaller weights, in the fastest way that fits."""
    if run.room_bytes is None or not run.config.starts_pretrained:
        return
    found = from_smaller_weights(run.config, run.card, run.room_bytes, run.trainer)
    if found is None:
        return
    yield Fix(
        name="smaller-weights",
        what=f"start from {found.config.init_from}",
        trainer=run.trainer,
        patch=found.patch,
        environment=EXPANDABLE if found.expandable_segments else "",
        saves_bytes=run.needed_bytes - found.process_bytes,
        slowdown=run.slowdown(found.config, run.trainer),
        fits=found.fits,
        safe=found.safe,
        same_run=False,
        loss_change=None,
        loss_note="not predicted: the run starts from trained weights",
        why="another, smaller model; the shape is that of the weights",
    )


def _not_in_the_config(run: RunToFix, other_bytes: int) -> Iterator[Fix]:
    """What people try first: other programs and evaluation settings."""
    memory, available_bytes = run.memory, run.available_bytes
    if other_bytes:
        room_bytes = min(other_bytes, run.card.allocatable_bytes) if run.card else other_bytes
        yield Fix(
            name="close-other-programs",
            what="close the programs that hold memory on the card",
            trainer=run.trainer,
            slowdown=0.0,
            fits=None if available_bytes is None else run.needed_bytes <= available_bytes + room_bytes,
            why=f"saves nothing in this run, but gives it up to {units.mib(room_bytes)} more room",
        )
    if run.trainer == "onecard" and eval_batch_size(run.config) > eval_sequences(run.config):
        return  # an evaluation is one batch here, and fewer eval_iters make it smaller
    below = memory.peak_phase.name == "train"
    yield Fix(
        name="eval-iters",
        what="fewer eval_iters, or a smaller evaluation batch" if below else "fewer eval_iters",
        trainer=run.trainer,
        slowdown=0.0,
        fits=memory.fits,
        safe=run.is_safe(memory),
        loss_note=f"with {FEWER_EVALS} times fewer tokens its standard error is {FEWER_EVALS**0.5:g} times as large",
        error_times=FEWER_EVALS**0.5,
        why=f"0 MiB: evaluation keeps no graph{' and peaks below training' if below else ''}; "
        "eval_iters only sets how long it takes",
    )
