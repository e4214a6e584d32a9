"""The answer of a plan in at most eight lines: if it fits, how fast, how long, how good, what to change and type."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple
from functools import partial
from shlex import quote
from typing import TYPE_CHECKING

from onecard import units
from onecard.config.command import EXPANDABLE, flags_of, train_command
from onecard.findings import Finding
from onecard.plan.advice import Fix
from onecard.plan.fit import Fit
from onecard.plan.loss import why_no_forecast
from onecard.plan.memory.predict import PROCESS, Memory
from onecard.plan.plan import NANOGPT_VOCABULARY, Plan, SeveralCards, TrainerPlan, WithoutRecipe
from onecard.plan.speed import Speed, TrainerName
from onecard.report.command import changed_command, plan_command, start_command, start_on_cards
from onecard.report.several_cards import Line, cards_lines

if TYPE_CHECKING:
    from onecard.plan.nvidia_smi import DriverFigures

TRAINER_NAMES: dict[TrainerName, str] = {"nanogpt": "nanoGPT", "onecard": "onecard"}
FAR_OFF = 0.15  # of what the driver shows: more than a prediction is ever off
HIGH_MFU = 0.9  # from here on the share of causal attention alone is given as well


def summary_lines(plan: Plan, *, driver: DriverFigures | None = None) -> Iterator[Line]:
    """The lines, in the order of the questions; `driver` is what it showed."""
    if driver:
        yield "seen", _driver_words(plan, driver)
    if plan.fit:
        yield from _fit_lines(plan.fit, plan)
        return
    if plan.several_cards:
        yield "a card", verdict(plan.several_cards.rank, plan)
        yield from cards_lines(plan.several_cards, plan)
        yield "loss", loss_words(plan)
        yield from _next_on_cards(plan.several_cards, plan)
        return
    for name, planned in plan.trainers.items():
        yield TRAINER_NAMES[name], verdict(planned, plan)
    yield "speed", ("of the evaluation: " if plan.config.eval_only else "") + _each(plan, _speed_words)
    if any(planned.speed for planned in plan.trainers.values()):
        yield "time", _each(plan, _time_words)
    yield "loss", loss_words(plan)
    if plan.without_recipe:
        yield "without", _without_words(plan.without_recipe)
    yield from _next_lines(plan)


def verdict(planned: TrainerPlan, plan: Plan) -> str:
    """Whether a run fits, by how much, and under what assumption."""
    memory, available = planned.memory, plan.available_bytes
    needed = units.mib(memory.process_bytes)
    if available is None or plan.place is None:
        return f'needs {needed} and the CUDA context; name the card to see if it fits: --gpu "RTX 4070"'
    of = f"{memory.process_bytes / units.MIB:,.0f} of {units.mib(available)}"
    if not memory.fits:
        return _not_fitting(memory, available, of)
    if planned.fits_with_desktop is False:
        room = round(max(0, plan.room_bytes or 0) / units.MIB, -2)
        return (
            f"does not fit beside a desktop: needs {needed}, about {room:,.0f} are free (without one "
            f"{available / units.MIB:,.0f})"
        )
    if memory.tight:
        return f"fits, barely: {of}, and only because the allocator gives its cache back at the limit"
    beside = planned.with_desktop
    if beside and plan.room_bytes is not None and (beside.tight or not beside.is_safe(plan.room_bytes)):
        return f"fits: needs {of}; beside a desktop barely{_why_barely(beside, plan.room_bytes)}"
    if caution := room_caution(memory, available):
        cure = f"; start it with {EXPANDABLE}" if memory.first_run_out or memory.later_run_out else ""
        return f"fits, barely: needs {of}: {caution}{cure}"
    left = f"{units.mib(available - memory.process_bytes)} left"
    if planned.fits_with_desktop:
        return f"fits, with room for a desktop: needs {of}, {left}"
    held = plan.place.other_bytes
    return f"fits: needs {of}, {left}" + (f"; other programs hold {units.mib(held)}" if held else "")


def cautions(plan: Plan) -> list[str]:
    """A warning for each run that fits by less than its prediction may be off."""
    available = plan.available_bytes
    return [
        f"under {name}: {caution}"
        for name, planned in plan.trainers.items()
        if available is not None and (caution := room_caution(planned.memory, available))
    ]


def room_caution(memory: Memory, available_bytes: int) -> str | None:
    """A sentence about a run that fits by less than its prediction may be off; None for all others."""
    if not memory.fits or memory.is_safe(available_bytes):
        return None
    if memory.first_run_out:
        return f"the first run, which times kernels, may run out in {memory.first_run_out}; the next does not"
    left = available_bytes - memory.process_bytes
    if memory.later_run_out and left >= memory.error_bytes:
        return f"the first run fits; a later one, which times no kernels, may run out in {memory.later_run_out}"
    return (
        f"{units.mib(left)} left is less than the prediction may be off, about {units.mib(memory.error_bytes)}: "
        "close other programs, or let --fit choose"
    )


def vocabulary_condition(size: int | None) -> str:
    """What nanoGPT, which has no key for it, needs to build a vocabulary of `size`; empty for None and its default."""
    if size in (None, NANOGPT_VOCABULARY):
        return ""
    return (
        f"these figures need meta.pkl beside the data with a vocabulary of {size:,} "
        f"(onecard data prepare --format nanogpt writes it); without it nanoGPT builds {NANOGPT_VOCABULARY:,}"
    )


def _why_barely(memory: Memory, room_bytes: int) -> str:
    """`, with 56 MiB to spare`: why a run that fits in its room does so barely."""
    if memory.tight:
        return ", where the allocator gives its cache back"
    if memory.first_run_out:
        return ", from its second run on"
    if memory.later_run_out:
        return ", in its first run only"
    return f", with {units.mib(room_bytes - memory.process_bytes)} to spare"


def _not_fitting(memory: Memory, available: int, of: str) -> str:
    if memory.refused_whole:
        return f"does not fit: needs {of}, but torch refuses a request at the limit, which it counts whole"
    much = f"{units.mib(memory.process_bytes - available)} too much"
    if memory.is_near(available):
        return f"may not fit: needs {of}, {much}; the prediction may be {units.mib(memory.error_bytes)} off"
    return f"does not fit: needs {of}, {much}"


def _each(plan: Plan, words: Callable[[Speed | None], str]) -> str:
    """One figure of each trainer, with its name where there are two."""
    told = {name: words(planned.speed) for name, planned in plan.trainers.items()}
    first, *others = told.values()
    if all(said == first for said in others):
        return first
    named = [f"{TRAINER_NAMES[name]} {said}" for name, said in told.items()]
    return "; ".join([named[0], *(said.replace(" tokens/s", "") for said in named[1:])])


def _speed_words(speed: Speed | None) -> str:
    if speed is None:
        return "unknown: no card whose speed is known"
    rate = f"{speed.tokens_per_second.likely / 1000:,.1f}k tokens/s ({spread(speed)})"
    here = f", from runs measured on this machine on {speed.measured_here}" if speed.measured_here else ""
    return f"{rate}, MFU {speed.mfu:.0%}" + (counted(speed) if speed.mfu > 1 else "") + here


def _time_words(speed: Speed | None) -> str:
    if speed is None:
        return "unknown"
    low, likely, high = (units.duration(seconds) for seconds in astuple(speed.total_seconds))
    return f"{likely} ({low} to {high})"


def spread(speed: Speed) -> str:
    """`±15%`; where the card's peak bounds it above, `-15% to +3%`"""
    rate = speed.tokens_per_second
    less, more = 1 - rate.low / rate.likely, rate.high / rate.likely - 1
    return f"±{speed.spread:.0%}" if more > 0.99 * speed.spread else f"-{less:.0%} to +{more:.0%}"


def counted(speed: Speed) -> str:
    """What to know about an MFU near or above 100 %, which counts more than the card computes."""
    return "" if speed.mfu < HIGH_MFU else f" ({speed.needed_share:.0%} counting causal attention only)"


def loss_words(plan: Plan) -> str:
    """The predicted loss at the end, and what more tokens or parameters would buy; or why there is no prediction."""
    loss = plan.loss
    if loss is None:
        return f"no prediction: {why_no_forecast(plan.config, plan.data.train_tokens)}"
    end = f"{loss.final} at the end"
    if loss.caution:
        return f"{end}; {loss.caution}"
    if not loss.double_tokens.likely:
        return end
    return (
        f"{end}; 2x tokens: {-loss.double_tokens.likely:.2f}, 2x parameters: {-loss.double_params.likely:.2f} (±50 %)"
    )


def _without_words(without: WithoutRecipe) -> str:
    """`nanoGPT's recipe, the same length: 5,182 MiB, 60.7k tokens/s, 9.1 h, loss 3.59 (3.48 to 3.70)`"""
    said = [units.mib(without.memory.process_bytes)]
    if without.speed:
        said.append(f"{without.speed.tokens_per_second.likely / 1000:,.1f}k tokens/s")
        said.append(units.duration(without.speed.total_seconds.likely))
    if without.loss:
        said.append(f"loss {without.loss.final}")
    return f"nanoGPT's recipe, the same length: {', '.join(said)}"


def needs_room(plan: Plan) -> bool:
    """Whether the run does not fit, or leaves less than a tenth of what there is, a desktop's share taken off."""
    return any(plan.lacks_room(planned.memory) for planned in plan.trainers.values())


def _next_lines(plan: Plan) -> Iterator[Line]:
    """What to change first, and what to type; for a finding, also what to type if it is right."""
    run = start_command(plan)
    fix = first_fix(plan) if needs_room(plan) else None
    finding = next((each for each in plan.findings if each.severity != "info"), None)
    starts = plan.onecard or plan.first  # the run that the command starts
    if finding and not plan.lacks_room(starts.memory):
        yield "look at", finding.what
        yield "type", run
        if finding.patch:
            yield "or type", _finding_command(finding, plan)
    elif fix:
        yield "change", fix_words(fix)
        yield "type", changed_command(fix, plan.source, plan.typed)
    elif starts.memory.fits is False:
        yield "change", "no single setting makes it fit"
        yield "type", " ".join(["onecard plan", *_planned_again(plan), "--fit"])
    elif plan.place is None:
        yield "type", " ".join(["onecard plan", *_planned_again(plan), '--gpu "RTX 4070"'])
    else:
        yield "change", "nothing"
        yield "type", run


def _next_on_cards(several: SeveralCards, plan: Plan) -> Iterator[Line]:
    """What starts the run on several cards; where it does not fit, a change that does, and what plans it."""
    asked, change = several.asked, several.change
    again = partial(plan_command, plan.resolved, plan.place)
    if plan.place is None:
        yield "type", f'{again(asked)} --gpu "RTX 4070"'
    elif several.rank.memory.fits is not False:
        if asked.machines > 1:
            yield "start", "type this on each machine; HOST is the name of one of them"
        yield "type", start_on_cards(plan, asked)
    elif change:
        rate = f", {change.pace.tokens_per_second.likely / 1000:,.1f}k tokens/s" if change.pace else ""
        yield "change", f"{_settings(change.patch)}: {verdict(change.rank, plan)}{rate}; the same updates"
        yield "type", again(asked, change.patch)
    else:
        least = ["shard=full"] * (asked.ranks.world_size > 1) + ["grad_checkpoint=full", "batch_size=1"]
        yield "change", f"nothing fits, not even {units.listed(least)}; what one card can hold:"
        yield "type", f"{again(None)} --fit"


def _settings(patch: Mapping[str, object]) -> str:
    """`batch_size=4 and gradient_accumulation_steps=128`"""
    return units.listed([f"{key}={value}" for key, value in patch.items()])


def _planned_again(plan: Plan) -> list[str]:
    """The config and the keys of a plan, as words to type."""
    return [*([quote(plan.source)] if plan.source else []), *filter(None, [flags_of(plan.typed)])]


def first_fix(plan: Plan) -> Fix | None:
    """The cheapest change that makes the run fit and can be typed; None where there is none."""
    can = [fix for fix in plan.fixes if fix.fits and fix.safe and fix.saves_bytes > 0 and not fix.code]
    return next(iter([*(fix for fix in can if fix.same_run), *can]), None)


def _finding_command(finding: Finding, plan: Plan) -> str:
    return train_command(plan.source, {**plan.typed, **finding.patch}, trainer=plan.ours)


def fix_words(fix: Fix) -> str:
    """`train with onecard: 5,500 MiB less, speed +9%, loss same`"""
    speed, loss = (words.replace("?", "not predicted") for words in (speed_change(fix), loss_change(fix)))
    return f"{fix.what}: {units.mib(fix.saves_bytes)} less, speed {speed}, loss {loss}"


def speed_change(fix: Fix) -> str:
    """`same`, `+9%`, `-3%`, `?`"""
    if fix.slowdown is None:
        return "?"
    return "same" if abs(fix.slowdown) < 0.005 else f"{1 / (1 + fix.slowdown) - 1:+.0%}"


def loss_change(fix: Fix) -> str:
    """`same`, `+0.07`, `std error x4`, `not comparable`, or `?` where there is no prediction"""
    if fix.error_times != 1:
        return f"std error x{fix.error_times:g}"
    if fix.loss_change is None:
        return "?" if fix.comparable else "not comparable"
    return "same" if abs(fix.loss_change) < 0.005 else f"{fix.loss_change:+.2f}"


def _fit_lines(fit: Fit, plan: Plan) -> Iterator[Line]:
    """The settings that fit and what they do; then the config as it was given."""
    best = fit.best
    yield "fit", _fit_words(fit, plan) if best else fit.why
    if best and best.speed:
        yield "speed", _speed_words(best.speed)
        yield "time", _time_words(best.speed)
    yield "loss", loss_words(plan)
    if candidate := best or fit.smallest:
        yield "type", changed_command(candidate, plan.source, plan.typed)
    for name, planned in plan.trainers.items():
        yield "as given", f"{TRAINER_NAMES[name]} {verdict(planned, plan)}"


def _fit_words(fit: Fit, plan: Plan) -> str:
    best = fit.best
    assert best
    config = best.config
    unsaid = plan.place is not None and plan.place.other_bytes is None
    beside = " beside a desktop" if unsaid and fit.available_bytes == plan.room_bytes else ""
    recomputed = "" if config.grad_checkpoint == "none" else f", grad_checkpoint={config.grad_checkpoint}"
    return (
        f"{TRAINER_NAMES[best.trainer]} with batch_size={config.batch_size}, gradient_accumulation_steps="
        f"{config.gradient_accumulation_steps}{recomputed}: {best.process_bytes / units.MIB:,.0f} of "
        f"{units.mib(fit.available_bytes)}{beside}; {fit.why}"
    )


def _driver_words(plan: Plan, driver: DriverFigures) -> str:
    memory = plan.first.memory
    name = TRAINER_NAMES["nanogpt" if plan.nanogpt else "onecard"]
    parts = sorted(
        [*memory.parts_of(memory.peak_phase.name), *memory.parts_of(PROCESS)], key=lambda part: -part.size_bytes
    )
    largest = ", ".join(f"{part.name} {part.size_bytes / units.MIB:,.0f}" for part in parts[:4])
    predicted = f"predicted {memory.process_bytes / units.MIB:,.0f} for {name}: {largest}"
    if driver.process_bytes is None:
        return predicted
    shown = f"the driver shows {units.mib(driver.process_bytes)}; {predicted}"
    off = (driver.process_bytes - memory.process_bytes) / driver.process_bytes
    if memory.knows_context and off > FAR_OFF:
        return f"{shown}. Is that the whole card? nvidia-smi lists this process below, with its own figure"
    return shown
