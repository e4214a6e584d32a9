"""A patch made whole and planned: the micro-batch that fits, the settings that go with it, and what to expect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onecard import units
from onecard.config.schema import SHAPE_KEYS, RunConfig
from onecard.doctor.case import Case
from onecard.doctor.evidence import epochs, known
from onecard.plan import recipe
from onecard.plan.cards import Card
from onecard.plan.counts import count_params
from onecard.plan.fit import fit_config
from onecard.plan.loss import forecast_loss, loss_at
from onecard.plan.memory.predict import Memory, predict_memory
from onecard.plan.precision import settled
from onecard.plan.ranges import Range
from onecard.plan.speed import TrainerName, predict_speed

PLANNED = (*SHAPE_KEYS, "batch_size", "gradient_accumulation_steps", "dropout", "compile", "dtype")
FITTING = ("batch_size", "gradient_accumulation_steps", "grad_checkpoint", "compile")  # what makes a run smaller
NAMED_STEP = 10_000  # where people compare runs


@dataclass(frozen=True, kw_only=True)
class Repair:
    """A patch with all that belongs to it; the figures are the plan's, None where it cannot tell."""

    config: RunConfig  # as it will be
    patch: Mapping[str, object]
    new_run: bool  # another shape: no checkpoint of before can be continued
    card: Card | None
    available_bytes: int | None  # of the card, beside other programs
    process_bytes: int | None
    fits: bool | None
    expandable_segments: bool
    seconds: Range | None
    losses: Mapping[int, Range]  # by step

    def expectation(self) -> str:
        """`7,656 MiB of 11.69 GiB, 52.1 h, loss 3.35 (3.19 to 3.51) at step 10,000`; "" where nothing can be told."""
        told = []
        if self.available_bytes is not None and self.process_bytes is not None:
            fits = "" if self.fits else ": does not fit"
            told.append(f"{units.mib(self.process_bytes)} of {units.gib(self.available_bytes)}{fits}")
        if self.seconds:
            hours = self.seconds.likely / 3600
            told.append(f"{hours:.1f} h" if hours >= 0.1 else units.duration(self.seconds.likely))
        for step, loss in self.losses.items():
            told.append(f"loss {loss.likely:.2f} ({loss.low:.2f} to {loss.high:.2f}) at step {step:,}")
        return ", ".join(told)


def repaired(case: Case, patch: Mapping[str, object]) -> Repair | None:
    """The patch completed and planned on the case's card; None where the config is not known well enough to plan, or
    does not hold together with the patch."""
    config = known(case, *PLANNED)
    if config is None or not patch:
        return None
    whole: dict[str, Any] = dict(patch)
    new_run = any(key in whole and whole[key] != getattr(config, key) for key in SHAPE_KEYS)
    try:
        if new_run:
            whole = _what_goes_with_a_new_shape(case, config, whole)
        changed = config.replace(whole)
    except ValueError:
        return None
    process_bytes = fits = None
    expandable = False
    card, room = case.card, case.available_bytes
    if card and room is not None:
        changed = settled(changed, card)
        memory = memory_of(case, changed, card, available_bytes=room)
        process_bytes, fits = memory.process_bytes, memory.fits
        if not fits and (best := fit_config(changed, card, room, trainer_of(case)).best):
            smaller = {key: value for key, value in best.patch.items() if key in FITTING}
            whole |= smaller
            changed = changed.replace(smaller)
            expandable, process_bytes, fits = best.expandable_segments, best.process_bytes, True
    speed = predict_speed(changed, card, trainer_of(case))
    return Repair(
        config=changed,
        patch=whole,
        new_run=new_run,
        card=card,
        available_bytes=room,
        process_bytes=process_bytes,
        fits=fits,
        expandable_segments=expandable,
        seconds=speed.total_seconds if speed else None,
        losses=_losses(changed) if new_run else {},
    )


def trainer_of(case: Case) -> TrainerName:
    """Whose run it is: what a patch is planned for."""
    return "onecard" if case.run.format == "onecard" else "nanogpt"


def memory_of(case: Case, config: RunConfig, card: Card | None, *, available_bytes: int | None = None) -> Memory:
    """The memory a config needs under the trainer of the case."""
    return predict_memory(settled(config, card), card, trainer_of(case), available_bytes=available_bytes)


def _what_goes_with_a_new_shape(case: Case, config: RunConfig, patch: Mapping[str, Any]) -> dict[str, Any]:
    """The patch with a learning rate for the size, no needless dropout, and a folder of its own."""
    changed = config.replace(patch)
    params = count_params(changed)
    rate = recipe.learning_rate(params.total).value
    whole = {**patch, "learning_rate": rate, "min_lr": recipe.min_lr(rate).value}
    passes = epochs(case, changed.total_tokens)
    if changed.dropout and (passes is None or passes < 1):
        whole["dropout"] = 0.0
    millions = params.nanogpt / 1e6
    size = f"{millions:.0f}M" if millions >= 10 else f"{millions:.2g}M"  # a name that says what is in it
    whole["out_dir"] = case.next_folder or f"{folder_of(case, config)}-{size}"
    return whole


def next_folder(case: Case, config: RunConfig) -> str:
    """Where the run is made anew: beside it, in a folder that is free as far as anybody could look."""
    return case.next_folder or f"{folder_of(case, config)}-2"


def folder_of(case: Case, config: RunConfig) -> str:
    """The folder the run was written to: where it was read, else what its config says."""
    return case.run.folder or config.out_dir.rstrip("/")


def _losses(config: RunConfig) -> dict[int, Range]:
    forecast = forecast_loss(config)
    if forecast is None:
        return {}
    named = loss_at(config, NAMED_STEP) if config.max_iters > NAMED_STEP else None
    return ({NAMED_STEP: named} if named else {}) | {config.max_iters: forecast.final}
