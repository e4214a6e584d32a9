"""What was asked of a plan and is not part of it, as warnings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from onecard import units

if TYPE_CHECKING:
    from onecard.config.resolve import Resolved
    from onecard.plan.budget import Budget
    from onecard.plan.place import Place
    from onecard.plan.plan import Plan
    from onecard.plan.speed.work import Trainers


def ignored(
    resolved: Resolved, place: Place | None, budget: Budget | None, *, trainer: Trainers, fit: bool
) -> Iterator[str]:
    """Warnings about what was asked for and is not part of this plan."""
    from onecard.config.resolve import PACKAGED_DEFAULT
    from onecard.config.schema import KEYS, SHAPE_KEYS, keys_that_affect

    if place is None and (limit := resolved.config.memory_limit):
        yield (
            f"memory_limit={units.gib(limit)} needs a card: name it with --gpu, "
            f"or plan a card of that size with --vram {limit / units.GIB:g}GiB"
        )
    if place is not None and not (device := resolved.config.device).startswith(("auto", "cuda")):
        yield f"device={device} would not use the {place.card.name}: memory and speed here are for that card"
    has = {*SHAPE_KEYS, "expandable_segments"}  # nanoGPT has these from its data and its environment
    own = [key for key in keys_that_affect("memory") if not KEYS[key].nanogpt and key not in has]
    unknown = [key for key in own if resolved.origins[key] not in ("default", PACKAGED_DEFAULT)]
    if unknown and trainer != "onecard" and not budget:
        yield (
            f"nanoGPT has no {units.listed(unknown)}: it ignores such a key in a file and refuses it as a flag; "
            "its figures here are without"
        )
    if resolved.config.eval_only and not budget:
        yield "eval_only=True makes one evaluation and no update: memory, speed and time below are the evaluation's"
    if budget:
        yield from _decided(resolved, trainer)
    if budget and fit:
        option = "--tokens" if budget.seconds is None else "--hours"
        yield f"--fit is ignored beside {option}: proposed runs fit already"


def _decided(resolved: Resolved, trainer: Trainers) -> Iterator[str]:
    """Keys that were typed and that the budget overrides."""
    from onecard.plan.proposal import DECIDED

    config = resolved.config
    halved = {"dtype"} if config.dtype == "float32" and trainer != "onecard" else set()
    as_proposed = {"compile": True, "init_from": "scratch", "eval_only": False}
    for key in sorted(resolved.typed.keys() & (DECIDED | halved)):
        value = getattr(config, key)
        if key not in as_proposed or value != as_proposed[key]:
            yield f"{key}={value} is ignored: the budget decides {key}"


def cut_short(plan: Plan) -> Iterator[str]:
    """Warnings that max_hours or stop_after_worse ends onecard's run, planned or proposed, before its last update."""
    from onecard.plan.speed import predict_speed

    if not plan.onecard or plan.proposals == ():
        return
    config = plan.proposals[0].config if plan.proposals else plan.config
    if config.stop_after_worse:
        yield (
            f"stop_after_worse={config.stop_after_worse} may end onecard's run before step {config.max_iters:,}: "
            "the hours and the loss here are for the whole run"
        )
    speed = predict_speed(config, plan.card, "onecard")
    if config.max_hours is None or speed is None or config.max_hours * 3600 >= speed.total_seconds.likely:
        return
    reached = int(config.max_iters * config.max_hours * 3600 / speed.total_seconds.likely)
    yield (
        f"max_hours={config.max_hours:g} stops onecard's run at about step {reached:,} of {config.max_iters:,}: "
        "the hours and the loss here are for the whole run"
    )
