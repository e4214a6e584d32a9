"""Rules about resumed runs, and folders that are used twice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set
from itertools import pairwise
from shlex import quote
from statistics import median

from onecard import units
from onecard.config.schema import SHAPE_KEYS, RunConfig
from onecard.doctor.case import Case
from onecard.doctor.course import ERROR_OF_MEDIAN, noise_of
from onecard.doctor.evidence import (
    NANOGPT_LIKE,
    WAVES,
    above,
    from_scratch,
    known,
    messages,
    noise,
    only_told,
    place,
    printed,
    said,
    shown,
    sureness,
    vals,
)
from onecard.doctor.facts import ROUNDED_PARAMS
from onecard.doctor.needs import needs_settings
from onecard.doctor.noise import evaluation_noise
from onecard.findings import Finding, Sureness
from onecard.plan.counts import count_params
from onecard.plan.schedule import RATE_KEYS, learning_rate
from onecard.runs.records import Eval, Start, Step

ROUNDING = 0.01
RATE_JUMP = 1.5
LOSS_JUMP = 0.05
STEP_LOSS_JUMP = 0.5  # nats of training losses, which are of other batches
LOSSES_BEFORE, LOSSES_AFTER, LEAST_BEFORE = 20, 3, 5
RATES_SHOWN = ("learning_rate", "min_lr", "decay_lr", "lr_decay_iters")
PAST_PEAK = 2 / 3  # of the highest rate so far: the schedule has begun to fall


@needs_settings("n_layer", "n_embd", "vocab_size", formats=NANOGPT_LIKE)
def resume_shape_ignored(case: Case, config: RunConfig) -> Iterator[Finding]:
    """A changed shape that a resumed run ignores.

    What it sees: a run resumed from a checkpoint that prints another number of parameters than the config makes.

    Why it matters: nanoGPT takes the shape from the checkpoint and silently ignores the config's. The run goes on with
    the old model under the new name.

    What to do: start a new run in a new folder; a checkpoint cannot change its shape. onecard refuses to try.

    When it is wrong: when the config named here is not the one the log was made with.
    """
    stated = case.run.printed_params
    if stated is None or from_scratch(case) or config.starts_pretrained:
        return
    made = count_params(config).nanogpt
    rounding = ROUNDED_PARAMS if case.run.format == "nanogpt" else ROUNDING * made
    if abs(made - stated) <= rounding:
        return
    folder = f"{config.out_dir.rstrip('/')}-{round(made / 1e6)}M"
    yield Finding(
        rule="resume-shape-ignored",
        severity="error",
        sure="high",
        what=f"the resumed model has {units.count(stated)} parameters; the config makes {units.count(made)}",
        why="nanoGPT keeps the checkpoint's shape and silently ignores the config's",
        fix=f"a new run: --init_from=scratch {quote(f'--out_dir={folder}')}",
        seen=(*printed(case, "printed_params"), *said(case, "n_layer", "n_embd")),
        patch={"init_from": "scratch", "out_dir": folder},
    )


def resume_lr_jump(case: Case, others: Sequence[Case]) -> Iterator[Finding]:
    """A learning rate or a loss that jumps up where a run resumes.

    What it sees: a learning rate that has begun to fall and rises by more than half from one logged step to the next
    or from the part before the resume; or a validation loss more than 0.05 higher after the resume than before; or
    training losses that begin, after a resume, more than 0.5 nats and five standard errors above those of the same
    steps before it.

    Why it matters: a rate that is raised again throws away what the decay gained. In one real run it took 50,000 steps
    to get back.

    What to do: keep the schedule: the same learning_rate, min_lr and lr_decay_iters, and the optimizer's state.

    When it is wrong: warm restarts do this on purpose. A onecard run that had made all its updates, and was then made
    longer, is left alone: from the end of a decay, a rate that is worth more updates can only rise. A validation loss
    that rises by less than five standard errors of the difference of two evaluations is only a note.
    """
    longer = _made_longer(case)
    jump = _rate_jump(case.steps, longer)
    if jump:
        before, after = jump
        yield _jumped(
            f"the learning rate rises from {before.lr:.2e} to {after.lr:.2e} between {place(case, before)} and "
            f"{place(case, after)}",
            (shown(before), shown(after)),
        )
        return
    earlier = _part_before(case, others)
    if earlier:
        yield from _jump_between(earlier, case)
    resumed = [r.step for r in case.run.records if isinstance(r, Start) and r.resumed_from and r.step not in longer]
    resumed += [step for m in messages(case, "resume") if isinstance(step := m.values.get("step"), int)]
    for at in resumed:
        evals_before, evals_after = [e for e in case.evals if e.step <= at], [e for e in case.evals if e.step > at]
        losses_before, losses_after = [s for s in case.steps if s.step <= at], [s for s in case.steps if s.step > at]
        yield from list(_loss_jump(case, evals_before, evals_after)) or _step_jump(case, losses_before, losses_after)


def _made_longer(case: Case) -> set[int]:
    """The steps at which a run that had made all its updates was given more."""
    starts = [record for record in case.run.records if isinstance(record, Start)]
    return {later.step for earlier, later in pairwise(starts) if earlier.config.get("max_iters") == later.step}


def _rate_jump(steps: Sequence[Step], longer: Set[int]) -> tuple[Step, Step] | None:
    highest = 0.0
    before: Step | None = None
    for step in steps:
        if step.lr is None:
            continue
        falling = before and before.lr and before.lr <= PAST_PEAK * highest and before.step not in longer
        if before and before.lr and falling and above(step.lr, RATE_JUMP * before.lr):
            return before, step
        highest = max(highest, step.lr)
        before = step
    return None


def _first_step(case: Case) -> int:
    return min([*(step.step for step in case.steps), *(e.step for e in case.evals)], default=0)


def _part_before(case: Case, others: Sequence[Case]) -> Case | None:
    """The earlier run of the same file that this one goes on with."""
    first = _first_step(case)
    if first <= 0 or not case.run.steps_told:
        return None
    parts = [o for o in others if o.run.source == case.run.source and _reached(o) >= first]
    return parts[-1] if parts else None


def _reached(case: Case) -> int:
    """The step that a part of a run may have come to: the next that it would have logged."""
    logged = [step.step for step in case.steps[-2:]]
    return (case.facts.last_step or 0) + max(1, logged[-1] - logged[0] if logged else 1)


def _jump_between(earlier: Case, case: Case) -> Iterator[Finding]:
    first = _first_step(case)
    old, new = known(earlier, *RATE_KEYS), known(case, *RATE_KEYS)
    if old and new and old != new:
        was, now = learning_rate(old, first), learning_rate(new, first)
        if was > 0 and above(now, RATE_JUMP * was):
            yield _jumped(
                f"resumed at step {first:,} with a learning rate of {now:.2e}; it had come down to {was:.2e}",
                (*said(earlier, *RATES_SHOWN), *said(case, *RATES_SHOWN)),
            )
            return
    yield from list(_loss_jump(case, [e for e in earlier.evals if e.step <= first], case.evals)) or _step_jump(
        case, [step for step in earlier.steps if step.step <= first], case.steps
    )


def _loss_jump(case: Case, before: Sequence[Eval], after: Sequence[Eval]) -> Iterator[Finding]:
    if not before or not after:
        return
    for name, unit in (("val_loss", "nats"), ("bits_per_byte", "bits per byte")):
        was, now = getattr(before[-1], name), getattr(after[0], name)
        if was is None or now is None or not math.isfinite(was) or not math.isfinite(now):
            continue
        if above(now - was, LOSS_JUMP):
            apart = [each for part in (before, after) if (each := evaluation_noise(part)) is not None]
            error = math.sqrt(2) * max(apart, default=noise(case))  # of a difference; the jump itself is no noise
            jump = _jumped(
                f"the validation loss is {now:.4f} after the resume and was {was:.4f} before ({unit})",
                (shown(before[-1]), shown(after[0])),
                sureness((now - was) / error),
            )
            yield jump if jump.sure != "low" else only_told(jump, f"two evaluations differ by {error:.3f} by chance")
        return


def _step_jump(case: Case, before: Sequence[Step], after: Sequence[Step]) -> Iterator[Finding]:
    """The same of training losses: the first after the resume against the last before it."""
    old, new = ([step for step in steps if math.isfinite(step.loss)] for steps in (before, after))
    old, new = old[-LOSSES_BEFORE:], new[:LOSSES_AFTER]
    if len(old) < LEAST_BEFORE or len(new) < LOSSES_AFTER:
        return
    was, now = (median(step.loss for step in steps) for steps in (old, new))
    error = ERROR_OF_MEDIAN * noise_of([step.loss for step in old]) * math.sqrt(1 / len(old) + 1 / len(new))
    sure = sureness((now - was) / max(error, WAVES))
    if now - was > STEP_LOSS_JUMP and sure != "low":
        yield _jumped(
            f"the training loss is {now:.4f} after the resume and was {was:.4f} before",
            (shown(old[-1]), shown(new[0])),
            sure,
        )


def _jumped(what: str, seen: tuple[str, ...], sure: Sureness = "high") -> Finding:
    return Finding(
        rule="resume-lr-jump",
        severity="warn",
        sure=sure,
        what=what,
        why="a rate that is raised again, or an optimizer without its state, throws away what the decay gained",
        fix="resume with the same learning_rate, min_lr and lr_decay_iters, and with the optimizer's state",
        seen=seen,
    )


def out_dir_reused(case: Case, others: Sequence[Case]) -> Iterator[Finding]:
    """Two different runs in one folder.

    What it sees: among the runs given together, an earlier one with the same out_dir and another dataset or shape.

    Why it matters: nanoGPT writes one ckpt.pt per folder: the second run overwrites the first's.

    What to do: a folder for each run.

    When it is wrong: if the first folder was moved away in between, or the runs are of different machines.
    """
    config = known(case, "out_dir", "dataset", *SHAPE_KEYS)
    if config is None or case.run.format == "onecard":
        return
    for other in others:
        theirs = known(other, "out_dir", "dataset", *SHAPE_KEYS)
        died = messages(other, "crash") and not other.run.records  # it wrote nothing
        if theirs is None or died or theirs.out_dir != config.out_dir or not from_scratch(case):
            continue
        assert case.resolved
        unsaid = case.resolved.origins["out_dir"] == "default"
        differing = [key for key in ("dataset", *SHAPE_KEYS) if getattr(theirs, key) != getattr(config, key)]
        if not differing or (unsaid and other.run.source != case.run.source):
            continue
        changes = ", ".join(f"{key} {getattr(theirs, key)} and {getattr(config, key)}" for key in differing)
        yield Finding(
            rule="out-dir-reused",
            severity="warn",
            sure="high",
            what=f"two runs with different models or data write to {config.out_dir}: {changes}",
            why="nanoGPT keeps one ckpt.pt per folder: the later run overwrites the earlier one's",
            fix=quote(f"--out_dir={config.out_dir.rstrip('/')}-2"),
            seen=(*said(other, "out_dir", *differing[:2]), *said(case, "out_dir", *differing[:2])),
            patch={"out_dir": f"{config.out_dir.rstrip('/')}-2"},
        )
        return


@needs_settings("always_save_checkpoint", formats=("nanogpt",))
def best_overwritten(case: Case, config: RunConfig) -> Iterator[Finding]:
    """A checkpoint that is always the last one, not the best.

    What it sees: nanoGPT with always_save_checkpoint, which overwrites its one ckpt.pt after every evaluation, and two
    evaluations or more after step 0.

    Why it matters: if the validation loss rises again, the best weights are gone.

    What to do: always_save_checkpoint=False keeps the best instead; onecard keeps both.

    When it is wrong: in pretraining on fresh data the last is nearly always the best, within noise.
    """
    found = [pair for pair in vals(case) if pair[0].step > 0]
    if case.run.format != "nanogpt" or not config.always_save_checkpoint or len(found) < 2:
        return
    best, last = min(found, key=lambda pair: pair[1]), found[-1]
    if best[0] is last[0]:
        what = "every evaluation overwrites ckpt.pt; so far the last is also the best"
    else:
        what = f"ckpt.pt holds step {last[0].step:,} (val {last[1]:.4f}); "
        what += f"the best was step {best[0].step:,} ({best[1]:.4f})"
    yield Finding(
        rule="best-overwritten",
        severity="info",
        sure="high",
        what=what,
        why="always_save_checkpoint keeps the last weights, whatever their loss",
        fix="--always_save_checkpoint=False keeps the best instead; onecard keeps both",
        seen=(*said(case, "always_save_checkpoint"), shown(best[0])),
    )
