"""A patch made whole and planned: the micro-batch that fits, the settings that go with it, and what to expect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from onecard import units
from onecard.config.command import flags_of
from onecard.config.recipes import RECIPES, following
from onecard.config.schema import PLANNED_KEYS, SHAPE_KEYS, RunConfig
from onecard.findings import Finding
from onecard.plan import recipe
from onecard.plan.cards import Card
from onecard.plan.counts import count_params
from onecard.plan.fit import fit_config
from onecard.plan.loss import forecast_loss, loss_at
from onecard.plan.memory.predict import predict_memory
from onecard.plan.place import Place
from onecard.plan.precision import with_dtype
from onecard.plan.ranges import Range
from onecard.plan.speed import TrainerName, predict_speed

NAMED_STEP = 10_000  # where people compare runs


@dataclass(frozen=True, kw_only=True)
class Repair:
    """A patch with everything that belongs to it; the figures are the plan's, None where it has no prediction."""

    config: RunConfig  # as it will be
    patch: Mapping[str, object]
    new_run: bool  # another shape: no earlier checkpoint can be continued
    card: Card | None
    available_bytes: int | None  # of the card, beside other programs
    process_bytes: int | None
    fits: bool | None
    expandable_segments: bool
    no_more_than_before: bool  # without a card: planned to take no more memory than the run that was made
    seconds: Range | None
    losses: Mapping[int, Range]  # by step

    @property
    def flags(self) -> str:
        """The patch as it is typed."""
        return flags_of(self.patch)

    def expectation(self) -> str:
        """`7,656 MiB of 11.69 GiB, 52.1 h, loss 3.35 (3.19 to 3.51) at step 10,000`; "" without any prediction."""
        parts = []
        if self.available_bytes is not None and self.process_bytes is not None:
            fits = "" if self.fits else ": does not fit"
            parts.append(f"{units.mib(self.process_bytes)} of {units.gib(self.available_bytes)}{fits}")
        if self.no_more_than_before:
            parts.append("no more memory than this run took")
        if self.seconds:
            hours = self.seconds.likely / 3600
            parts.append(f"{hours:,.1f} h" if hours >= 0.1 else units.duration(self.seconds.likely))
        for step, loss in self.losses.items():
            parts.append(f"loss {loss.likely:.2f} ({loss.low:.2f} to {loss.high:.2f}) at step {step:,}")
        return ", ".join(parts)


def make_whole(
    config: RunConfig,
    patch: Mapping[str, object],
    *,
    place: Place | None,
    trainer: TrainerName,
    train_tokens: int | None = None,
    folder: str | None = None,
    next_folder: str | None = None,
    ran: bool = False,
) -> Repair | None:
    """The patch completed and planned on the card of a place; None where the config does not hold together with it.

    Where no card is known, a run of this config that `ran` shows how much memory there is at least.

    Where nobody said what other programs hold of the card, room for a desktop is left if anything fits beside one.
    `train_tokens` are in the training data; `folder` is where the run writes (its out_dir, if None), and `next_folder`
    a free one beside it.
    """
    whole: dict[str, Any] = dict(patch)
    new_run = any(key in whole and whole[key] != getattr(config, key) for key in SHAPE_KEYS)
    try:
        if new_run:
            whole = _with_what_a_new_shape_needs(config, whole, train_tokens=train_tokens)
            size = _size_in_a_name(config.replace(whole))
            whole["out_dir"] = next_folder or f"{folder or config.out_dir.rstrip('/')}-{size}"
        whole |= _end_of_the_rate(config, whole)
        changed = config.replace(whole)
    except ValueError:
        return None
    process_bytes = fits = available_bytes = None
    expandable = False
    card = place.card if place else None
    rooms: list[int] = []
    if place:
        changed = with_dtype(changed, card)
        available_bytes = place.available_bytes_for(changed)
        rooms = [room for room in (place.beside_desktop_for(changed), available_bytes) if room is not None]
    elif ran and new_run:
        rooms = [predict_memory(config, None, trainer).process_bytes]
    if rooms:
        memory = predict_memory(changed, card, trainer, available_bytes=rooms[0])
        process_bytes, fits = memory.process_bytes, memory.fits
        for room in rooms if not fits else ():
            if best := fit_config(changed, card, room, trainer).best:
                whole |= best.patch
                changed = best.config
                expandable, process_bytes, fits = best.expandable_segments, best.process_bytes, True
                break
    speed = predict_speed(changed, card, trainer)
    return Repair(
        config=changed,
        patch=whole,
        new_run=new_run,
        card=card,
        available_bytes=available_bytes,
        process_bytes=process_bytes,
        fits=fits if place else None,
        expandable_segments=expandable,
        no_more_than_before=bool(place is None and fits),
        seconds=speed.total_seconds if speed else None,
        losses=_losses(changed, train_tokens) if new_run else {},
    )


def is_planned(finding: Finding) -> bool:
    """Whether a finding gets its patch completed: it is above information, and its patch changes memory or speed."""
    return finding.severity != "info" and bool(set(finding.patch) & set(PLANNED_KEYS))


def with_whole_patch(finding: Finding, made: Repair) -> Finding:
    """The finding with its patch made whole, and what to expect of it."""
    fix = finding.fix.replace(flags_of(finding.patch), made.flags, 1)
    expected = f"; predicted: {made.expectation()}" if made.expectation() else ""
    return replace(finding, patch=dict(made.patch), fix=f"{fix}{expected}")


def _with_what_a_new_shape_needs(
    config: RunConfig, patch: Mapping[str, Any], *, train_tokens: int | None
) -> dict[str, Any]:
    """The patch with a learning rate for the size (a lower one in the patch stays) and without needless dropout."""
    changed = config.replace(patch)
    whole = {**following(config.model_dump(), changed.model_dump()), **patch}
    if "learning_rate" not in RECIPES[config.recipe]:  # which has rates for every size
        rate = recipe.learning_rate(count_params(changed).total).value
        rate = min(rate, patch.get("learning_rate", rate))
        whole |= {"learning_rate": rate, "min_lr": recipe.min_lr(rate).value}
    reads_once = train_tokens is None or changed.total_tokens < train_tokens
    if changed.dropout and reads_once and "dropout" not in patch:
        whole["dropout"] = 0.0
    return whole


def _end_of_the_rate(config: RunConfig, patch: Mapping[str, Any]) -> dict[str, object]:
    """The min_lr that goes with a changed learning rate, or is not above it."""
    rate, lowest = (patch.get(key, getattr(config, key)) for key in ("learning_rate", "min_lr"))
    follows = lowest and ("learning_rate" in patch or lowest > rate)
    return {"min_lr": recipe.min_lr(rate).value} if follows else {}


def _size_in_a_name(config: RunConfig) -> str:
    """`124M`: so that a folder's name says what is in it."""
    millions = count_params(config).nanogpt / 1e6
    return f"{millions:.0f}M" if millions >= 10 else f"{millions:.2g}M"


def _losses(config: RunConfig, train_tokens: int | None) -> dict[int, Range]:
    forecast = forecast_loss(config, train_tokens)
    if forecast is None:
        return {}
    named = loss_at(config, NAMED_STEP, train_tokens) if config.max_iters > NAMED_STEP else None
    return ({NAMED_STEP: named} if named else {}) | {config.max_iters: forecast.final}
