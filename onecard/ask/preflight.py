"""Before the first step: the plan of a run on this machine's card as it is now. What cannot fit is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onecard import units
from onecard.ask.config import Flags
from onecard.ask.place import place_here
from onecard.errors import DoesNotFit, MachineError

if TYPE_CHECKING:
    from onecard.config.schema import RunConfig
    from onecard.plan.memory.predict import Memory
    from onecard.plan.place import Place

# Flags that leave the packaged default what it is: with only these, a card gets the larger one.
HARMLESS = frozenset({"out_dir", "log_style", "loggers", "seed", "memory_limit", "max_hours", "device"})


def place_of_run(config: RunConfig) -> Place | None:
    """This machine's card, if the run would use it."""
    return place_here(config.device) if config.device == "auto" or config.device.startswith("cuda") else None


def larger_default(
    config: RunConfig, flags: Flags, *, train_tokens: int, val_tokens: int
) -> tuple[RunConfig, str | None]:
    """The packaged default, made larger where there is a card and nobody asked for a shape, and words about that."""
    from onecard.plan.counts import count_params
    from onecard.plan.first_run import first_run
    from onecard.plan.speed import predict_speed

    place = place_of_run(config)
    if place is None or {key for key, _ in flags} - HARMLESS:
        return config, None
    available = place.available_bytes_for(config)
    larger = first_run(config, place.card, available, train_tokens=train_tokens, val_tokens=val_tokens)
    if larger is None:
        return config, None
    speed = predict_speed(larger, place.card, "onecard")
    takes = f": about {_roughly(speed.total_seconds.likely)}, after some seconds of compiling" if speed else ""
    return larger, (
        f"no config, and {place.card.name} here: {larger.n_layer} layers, {larger.n_embd} wide "
        f"({units.count(count_params(larger).nanogpt)} parameters), {larger.batch_size} x "
        f"{larger.gradient_accumulation_steps} sequences of {larger.block_size}, {larger.max_iters:,} updates{takes}"
    )


def _roughly(seconds: float) -> str:
    """A predicted time without digits that nobody can predict."""
    return f"{seconds:.0f} s" if seconds < 120 else units.duration(seconds)


def predicted(config: RunConfig) -> Memory | None:
    """The memory a run will take on this machine's card; None without one."""
    from onecard.plan.memory.predict import predict_onecard
    from onecard.plan.precision import settled

    place = place_of_run(config)
    if place is None:
        return None
    return predict_onecard(settled(config, place.card), place.card, available_bytes=place.available_bytes_for(config))


def checked(config: RunConfig, *, fit: bool, source: str | None, typed: Flags = ()) -> tuple[RunConfig, Memory | None]:
    """The config that will run and its predicted memory (None without a card); refused where it cannot fit.

    The refusal's command names the config file it came from, and keeps the flags that were typed.
    """
    from onecard.plan.command import train_command

    place, memory = place_of_run(config), predicted(config)
    if place is None or memory is None:
        if fit:
            raise MachineError(
                "--fit needs an NVIDIA card in this machine",
                why="it fits the run into the card's free memory, and NVML does not answer",
                fix="leave --fit out",
                name="no-gpu",
            )
        return config, None
    if memory.fits is not False and not fit:
        return config, memory
    free = place.available_bytes_for(config)
    fitted = _fitted(config, place, free)
    if fit and fitted is not None:
        return fitted, predicted(fitted)
    fix = None
    if fitted is not None:
        changes = {key: getattr(fitted, key) for key in _FITTED if getattr(fitted, key) != getattr(config, key)}
        fix = train_command(source, {**dict(typed), **changes}, trainer="onecard")
    raise _does_not_fit(memory, free, place, fix)


_FITTED = ("batch_size", "gradient_accumulation_steps", "grad_checkpoint")


def _fitted(config: RunConfig, place: Place, free: int) -> RunConfig | None:
    """The fastest settings of the same updates that fit."""
    from onecard.plan.fit import fit_onecard
    from onecard.plan.precision import settled

    found = fit_onecard(settled(config, place.card), place.card, free)
    if found.best is None:
        return None
    return config.replace({key: getattr(found.best.config, key) for key in _FITTED})


def _does_not_fit(memory: Memory, free: int, place: Place, fix: str | None) -> DoesNotFit:
    largest = max(memory.parts_of(memory.peak_phase.name), key=lambda part: part.size_bytes)
    share = largest.size_bytes / memory.process_bytes
    held = f"; other programs hold {units.gib(place.other_bytes)}" if place.other_bytes else ""
    needs = f"this run needs {units.gib(memory.process_bytes)} and {place.card.name} has {units.gib(free)} for it"
    refused = f"torch would refuse this run a request at {units.mib(free)}, which it counts whole at its limit"
    return DoesNotFit(
        refused if memory.refused_whole else needs,
        why=f"{largest.name} take {units.gib(largest.size_bytes)} ({share:.0%}){held}",
        fix=fix or f"a smaller model: onecard plan --gpu auto --fit says which fits {units.gib(free)}",
    )
