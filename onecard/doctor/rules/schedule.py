"""Rules about the learning rate and how long it lasts."""

from __future__ import annotations

from collections.abc import Iterator
from shlex import quote

from onecard.config.schema import RunConfig
from onecard.doctor.case import Case
from onecard.doctor.evidence import (
    above,
    known,
    messages,
    planned_steps,
    said,
    saved_steps,
    shown,
    unless_fine_tuning,
    vals,
)
from onecard.doctor.needs import Need, needs, needs_settings
from onecard.doctor.predict import final_loss
from onecard.findings import Finding
from onecard.plan import conditions, recipe
from onecard.plan.counts import count_params
from onecard.plan.schedule import learning_rate

HIGHEST_END = 0.2  # of the peak
UNFINISHED = 0.9  # of the schedule
FAULTS = {
    "out-of-memory": "out of memory",
    "diverged": "it diverged",
    "error": "an error",
}  # ways to end that nobody chose
LENGTH = Need(
    about="config", met=lambda case: planned_steps(case) is not None or case.end is not None or case.run.cut_off
)


@needs_settings("learning_rate", "optimizer")
def lr_out_of_range(case: Case, config: RunConfig) -> Iterator[Finding]:
    """A learning rate far from what models of this size are trained with.

    What it sees: AdamW's learning_rate above four times or below a quarter of GPT-3's (table 2.1: 6e-4 at 125M, 3e-4
    at 350M, 2.5e-4 at 760M, 2e-4 at 1.3B, interpolated), which grows with the square root of a batch beyond 0.5M. With
    Muon: muon_learning_rate above ten times or below a tenth of 0.02.

    Why it matters: too low wastes tokens, too high makes the loss spike or diverge.

    What to do: start from the table's value, with min_lr a tenth of it; with Muon from 0.02.

    When it is wrong: the high side is soft. Small models take more (1.2e-3 was the best of three we tried at 124M
    with 32,768 tokens per update), and other optimizers have other scales. Fine-tuning wants far less, so there it is
    only a note.
    """
    params = case.facts.params_total or case.facts.params
    if not params:
        return
    seen = said(case, conditions.rate_key(config))
    found = conditions.lr_out_of_range(config, params, case.facts.tokens_per_step, seen=seen)
    if found:
        yield unless_fine_tuning(found, config)


@needs_settings(*conditions.SCHEDULE_SAID)
def decay_horizon(case: Case, config: RunConfig) -> Iterator[Finding]:
    """A learning rate that does not reach its end with the run.

    What it sees: lr_decay_iters differs from max_iters; or decay_lr is off; or min_lr is more than a fifth of
    learning_rate. With min_lr=0 every update after lr_decay_iters has a rate of zero. With onecard's schedule=wsd the
    rate falls only in the last part of lr_decay_iters (decay_share, by default a fifth): in a run that ends before
    that, it never falls.

    Why it matters: the last stretch of falling learning rate is where much of the loss is gained. A cosine 25 % longer
    than the run is measurably worse (Chinchilla, appendix B).

    What to do: lr_decay_iters equal to max_iters, min_lr a tenth of learning_rate.

    When it is wrong: in a run that is meant to be continued, or to be cooled down later, and in a test of a few
    updates, which has nothing to gain. Fine-tuning at a constant rate is usual, so there it is only a note,
    unless that rate is zero.
    """
    if not config.max_iters:
        return
    if over := conditions.schedule_over(config, seen=said(case, *conditions.SCHEDULE_SAID)):
        yield over
        return
    _, highest = conditions.usual_rates(count_params(config).total, config.tokens_per_step)
    far = config.optimizer == "adamw" and config.learning_rate > conditions.FACTOR * highest
    tenth = recipe.min_lr(highest if far else config.learning_rate).value
    patch: dict[str, object] = {}
    told = []
    if not config.decay_lr:
        told.append("decay_lr is off: the rate never falls")
        patch["decay_lr"] = True
    if config.lr_decay_iters != config.max_iters:
        told.append(_falls(config))
        patch["lr_decay_iters"] = config.max_iters
    if config.learning_rate and above(config.min_lr, HIGHEST_END * config.learning_rate):
        told.append(f"it ends at {config.min_lr:g}, {config.min_lr / config.learning_rate:.0%} of its peak")
        patch["min_lr"] = tenth
    told = told[:1] if not config.decay_lr else told  # the other two have no effect then
    if not told:
        return
    source = "Chinchilla, appendix B" if config.schedule == "cosine" else "arXiv 2405.18392"
    finding = Finding(
        rule="decay-horizon",
        severity="warn",
        sure="high",
        what="; ".join(told),
        why=f"the end of a full decay is where much of the loss is gained ({source})",
        fix=" ".join(f"--{key}={value}" for key, value in patch.items()),
        seen=said(case, *conditions.SCHEDULE_SAID),
        patch=patch,
    )
    yield unless_fine_tuning(finding, config)


def _falls(config: RunConfig) -> str:
    """When the rate of a schedule falls, against how long the run is; for wsd also where the rate ends."""
    if config.schedule == "cosine":
        return f"the learning rate falls over {config.lr_decay_iters:,} updates, and the run makes {config.max_iters:,}"
    last = learning_rate(config, config.max_iters - 1)
    at_the_end = f" and ends at {last / config.learning_rate:.0%} of the full rate" if config.learning_rate else ""
    return (
        f"the learning rate falls in the last {config.decay_share:.0%} of {config.lr_decay_iters:,} updates, "
        f"and the run makes {config.max_iters:,}{at_the_end}"
    )


@needs_settings("warmup_iters", "max_iters", "decay_lr")
def warmup_length(case: Case, config: RunConfig) -> Iterator[Finding]:
    """A warm-up that is a large part of the run, or very short.

    What it sees: warmup_iters above a tenth of max_iters, or below 100, where the rate has a schedule: a note. A
    warm-up that is not over when the run ends is a warning. In a run of fewer than 1,000 updates a warm-up is either
    above a tenth or below 100; then only one above a tenth gets a patch.

    Why it matters: a long warm-up spends updates at a low rate; a very short one reaches the full rate before
    Adam's moments have settled.

    What to do: 1 to 5 % of the run, and at least 100 updates.

    When it is wrong: in short tests; small models with clipping often need no warm-up at all. Fine-tuning, which
    often has none, is not checked.
    """
    if config.starts_pretrained:
        return
    found = conditions.warmup_length(config, seen=said(case, "warmup_iters", "max_iters"))
    if found:
        yield found


@needs_settings("weight_decay", "learning_rate", "optimizer")
def weight_decay_out_of_range(case: Case, config: RunConfig) -> Iterator[Finding]:
    """A weight decay that takes the weights away.

    What it sees: weight_decay above 1; 0.1 is usual (GPT-3, appendix B).

    Why it matters: each update multiplies every weight by 1 - learning_rate x weight_decay (with Muon: those of
    its matrices, by 1 - muon_learning_rate x weight_decay). Far above the usual value
    the weights go to zero faster than they learn.

    What to do: weight_decay=0.1.

    When it is wrong: with a very small learning rate the product may still be usual.
    """
    found = conditions.weight_decay_out_of_range(config, seen=said(case, "weight_decay", conditions.rate_key(config)))
    if found:
        yield unless_fine_tuning(found, config)


@needs(LENGTH)
def stopped_early(case: Case) -> Iterator[Finding]:
    """A run that ends before its learning rate has come down.

    What it sees: the last step is below nine tenths of lr_decay_iters (of max_iters, where that is less: the run ends
    there, and decay-horizon checks its rate); or a run of onecard's that recorded a fault as its end: out of memory,
    diverged, an error (an error, at whatever step); or one whose process is gone without recording any end: it was
    killed, or the machine went down (a warning). A log that simply ends may be of a run that is still going: it is
    called "not finished".

    Why it matters: the gain of the rest of the schedule is lost, and the loss so far cannot be compared with the final
    loss of finished runs.

    What to do: let it go on; the final loss is predicted where the scaling law covers this run. After a fault, fix that
    first.

    When it is wrong: when the log is a part of a longer one. A run that stop_after_worse ended is not meant: it ended
    where it was told to.
    """
    if case.end and case.end.reason == "stop_after_worse":
        return
    last = case.facts.last_step
    config = known(case, "lr_decay_iters", "max_iters", "decay_lr")
    end = min(config.lr_decay_iters, config.max_iters) if config and config.decay_lr else planned_steps(case)
    fault = FAULTS.get(case.end.reason) if case.end else None
    if fault:
        yield _failed(case, fault, last or 0, planned_steps(case))
        return
    if case.run.cut_off:
        yield _cut_off(case, last or 0, planned_steps(case))
        return
    if last is None or not end or last <= 0 or last >= UNFINISHED * end:
        return
    at_the_end, basis = final_loss(case, end)
    finished = (
        f"finished, val would be about {at_the_end.likely:.2f} ({at_the_end.low:.2f} to {at_the_end.high:.2f})"
        if at_the_end
        else f"the rest would lower the loss ({basis})"
    )
    stopped = bool(case.end or messages(case, "interrupted")) or case.facts.steps_to_go == 0
    why_ended = f": {case.end.reason}" if case.end and case.end.reason != "finished" else ""
    yield Finding(
        rule="stopped-early",
        severity="info",
        sure="high",
        what=f"{'stopped' if stopped else 'not finished:'} at step {last:,} of {end:,} ({last / end:.0%}){why_ended}",
        why=f"the learning rate has not come down yet; {finished}",
        fix=f"let it go on, or {_resumed(case)}" if case.end is None else _resumed(case),
        seen=_last_seen(case, last),
    )


def _failed(case: Case, fault: str, last: int, end: int | None) -> Finding:
    """That a run of ours ended in a fault."""
    assert case.end
    return Finding(
        rule="stopped-early",
        severity="error",
        sure="high",
        what=f"ended at step {last:,}" + (f" of {end:,} ({last / end:.0%})" if end else "") + f": {fault}{_said(case)}",
        why="the run recorded this itself; the gain of the rest of it is lost",
        fix=f"fix the cause (the other findings, or what the run printed last), then {_resumed(case)}",
        seen=(f"step {case.end.step:,}: end, {case.end.reason}", *_last_seen(case, last)),
    )


def _said(case: Case) -> str:
    """What the error was that a run of ours ended in, where it recorded it."""
    error = case.end.more.get("error") if case.end else None
    return f": {error}" if error else ""


def _cut_off(case: Case, last: int, end: int | None) -> Finding:
    """That the process of a run of ours is gone without a recorded end."""
    return Finding(
        rule="stopped-early",
        severity="warn",
        sure="high",
        what=f"cut off at step {last:,}" + (f" of {end:,} ({last / end:.0%})" if end else ""),
        why="its process is gone and recorded no end: it was killed (kill -9, or the system short of memory), its "
        "disk was full, or the machine went down",
        fix=_resumed(case),
        seen=_last_seen(case, last),
    )


def _resumed(case: Case) -> str:
    """How it goes on: from a checkpoint, where there is one."""
    if not saved_steps(case):
        return "start it again: no checkpoint of it is known"
    ours = case.run.format == "onecard"
    command = f"onecard train --resume {quote(case.run.folder or 'RUN')}" if ours else "--init_from=resume"
    return f"resume it from its last checkpoint: {command}"


def _last_seen(case: Case, last: int) -> tuple[str, ...]:
    evaluations = vals(case)
    return (shown(evaluations[-1][0]),) if evaluations else (f"last step {last:,}",)
