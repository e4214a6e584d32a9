"""Before the first step: will the run fit this machine's card, or end on its CPU in a reasonable time?"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onecard import units
from onecard.errors import DoesNotFit, MachineError, UsageError
from onecard.inputs.config import Flags
from onecard.inputs.place import place_here

if TYPE_CHECKING:
    from onecard.config.schema import RunConfig
    from onecard.models.ranks import Ranks
    from onecard.plan.memory.predict import Memory
    from onecard.plan.place import Place

DAY_SECONDS, YEAR_DAYS = 86_400, 365
LONGEST_ON_CPU_SECONDS = DAY_SECONDS  # predicted; a longer run must be asked for with --device=cpu


def place_of_run(config: RunConfig) -> Place | None:
    """This machine's card, if the run would use it."""
    return place_here(config.device) if config.device == "auto" or config.device.startswith("cuda") else None


def larger_default(
    config: RunConfig, flags: Flags, *, train_tokens: int, val_tokens: int
) -> tuple[RunConfig, str | None]:
    """The packaged default, made larger where there is a card, and a line that says so.

    Not where a flag asks for something else to be learned or computed; other flags keep their values.
    """
    from onecard.config.schema import KEYS
    from onecard.plan.counts import count_params
    from onecard.plan.first_run import first_run
    from onecard.plan.speed import predict_speed

    place = place_of_run(config)
    asked = {key for key, _ in flags}
    as_it_is = (KEYS[key].affects <= {"chance"} or "limit" in KEYS[key].kind for key in asked - {"recipe"})
    if place is None or not all(as_it_is):
        return config, None
    available = place.available_bytes_for(config)
    larger = first_run(config, place.card, available, train_tokens=train_tokens, val_tokens=val_tokens)
    if larger is None:
        return config, None
    larger = larger.replace({key: getattr(config, key) for key in asked})
    speed = predict_speed(larger, place.card, "onecard")
    takes = f": about {_roughly(speed.total_seconds.likely)}, after some seconds of compiling" if speed else ""
    return larger, (
        f"no config given; for the {place.card.name} in this machine: {larger.n_layer} layers, {larger.n_embd} wide "
        f"({units.count(count_params(larger).nanogpt)} parameters), {larger.batch_size} x "
        f"{larger.gradient_accumulation_steps} sequences of {larger.block_size}, {larger.max_iters:,} updates{takes}"
    )


def on_cpu(config: RunConfig, *, step: int = 0, insist: str) -> str:
    """One line with the time a run will take on this CPU; MachineError if that is too long and nobody asked for a CPU.

    `insist` is the command that trains on the CPU all the same.
    """
    from onecard.inputs.calibration import Device, calibration_of, torch_here
    from onecard.machine import processor_name, usable_threads
    from onecard.train.cpu import cpu_seconds

    known, note = calibration_of(Device(card=processor_name(), driver="", torch=torch_here()))
    timed = known.run_like(config, usable_threads()) if known else None
    seconds = cpu_seconds(config, step=step, timed=timed)
    updates = max(0, config.max_iters - step)
    work = "one evaluation" if config.eval_only else units.things(updates, "update")
    if config.device == "auto" and seconds.likely > LONGEST_ON_CPU_SECONDS:
        from onecard.train.device import why_no_gpu

        reason = why_no_gpu()
        raise MachineError(
            f"torch sees no GPU, and on this CPU the run would take about {_roughly(seconds.likely)} for {work}",
            why=reason.why,
            fix=f"{reason.fix}; or train on the CPU anyway: {insist}",
            name="no-gpu",
        )
    low, high = _roughly(seconds.low), _roughly(seconds.high)
    between = f"; between {low} and {high}" if low != high else ""
    source = known.source if known and timed else "estimated from a short speed test"
    passed_over = f"; {note}" if note else ""
    return f"on the CPU: about {_roughly(seconds.likely)} for {work} ({source}{between}){passed_over}"


def _roughly(seconds: float) -> str:
    """A predicted time without digits that nobody can predict: `40 s`, `12 min`, `9 days`, `4 years`"""
    if seconds < 120:
        return f"{seconds:.0f} s" if seconds >= 1.5 else "1 s"
    days = seconds / DAY_SECONDS
    if days < 2:
        return units.duration(seconds)
    return f"{days:,.0f} days" if days < 2 * YEAR_DAYS else f"{days / YEAR_DAYS:,.0f} years"


def predicted(config: RunConfig, ranks: Ranks | None = None) -> Memory | None:
    """The memory a run will take on this machine's card, as one of `ranks`; None without a card."""
    from onecard.models.ranks import ONE_RANK
    from onecard.plan.memory.predict import predict_onecard
    from onecard.plan.precision import with_dtype

    place = place_of_run(config)
    if place is None:
        return None
    return predict_onecard(
        with_dtype(config, place.card),
        place.card,
        available_bytes=place.available_bytes_for(config),
        ranks=ranks or ONE_RANK,
    )


def checked(
    config: RunConfig, *, fit: bool, source: str | None, typed: Flags = (), ranks: Ranks | None = None
) -> tuple[RunConfig, Memory | None]:
    """The config that will run and its predicted memory (None without a card); refused where it cannot fit.

    The refusal's command names the config file it came from, and keeps the flags that were typed.
    """
    from onecard.config.command import train_command

    shared = ranks if ranks and ranks.world_size > 1 else None
    if fit and shared:
        raise _for_one_card(shared, source, typed)
    place, memory = place_of_run(config), predicted(config, ranks)
    if place is None or memory is None:
        if fit:
            raise MachineError(
                "--fit needs an NVIDIA card in this machine",
                why="it fits the run into the card's free memory, and the NVIDIA driver does not answer",
                fix="leave --fit out",
                name="no-gpu",
            )
        return config, None
    if memory.fits is not False and not fit:
        return config, memory
    free = place.available_bytes_for(config)
    fitted = _leanest_share(config, shared) if shared else _fitted(config, place, free)
    if fit and fitted is not None:
        return fitted, predicted(fitted, ranks)
    fix = None
    if fitted is not None:
        changes = {key: value for key, value in fitted.model_dump().items() if value != getattr(config, key)}
        fix = train_command(source, {**dict(typed), **changes}, trainer="onecard")
    raise _does_not_fit(memory, free, place, fix)


def _fitted(config: RunConfig, place: Place, free: int) -> RunConfig | None:
    """The fastest settings that fit, with the same tokens per update; None if nothing fits."""
    from onecard.plan.fit import fit_onecard
    from onecard.plan.precision import with_dtype

    found = fit_onecard(with_dtype(config, place.card), place.card, free)
    if found.best is None:
        return None
    return config.replace(found.best.patch)


def _leanest_share(config: RunConfig, ranks: Ranks) -> RunConfig | None:
    """The same update with every layer recomputed, one sequence at a time, if a rank's share of it then fits."""
    from onecard.models.ways import recomputations

    leanest = config.in_micro_batches(1).replace({"grad_checkpoint": recomputations(config)[-1]})
    memory = predicted(leanest, ranks)
    return leanest if memory and memory.fits else None


def _for_one_card(ranks: Ranks, source: str | None, typed: Flags) -> UsageError:
    """The refusal of --fit, with the command that plans what one rank of a run holds."""
    from shlex import quote

    machines = ranks.world_size // ranks.local_size
    named = [quote(source)] if source else []
    cards = f"--gpu auto --gpus {ranks.local_size}" + (f" --nodes {machines}" if machines > 1 else "")
    plan = ["onecard plan", *named, cards, *(quote(f"--{key}={text}") for key, text in typed)]
    return UsageError(
        f"--fit fits a run to one card, and here {ranks.world_size} processes share it",
        why="their memory and their speed depend on each other, and the search looks at one alone",
        fix=f"leave --fit out; whether a batch_size fits: {' '.join(plan)}",
        name="fits-one-card",
    )


def _does_not_fit(memory: Memory, free: int, place: Place, fix: str | None) -> DoesNotFit:
    largest = max(memory.parts_of(memory.peak_phase.name), key=lambda part: part.size_bytes)
    share = largest.size_bytes / memory.process_bytes
    held = f"; other programs hold {units.gib(place.other_bytes)}" if place.other_bytes else ""
    needs = f"this run needs {units.gib(memory.process_bytes)} and {place.card.name} has {units.gib(free)} for it"
    refused = f"at a limit of {units.mib(free)} torch would refuse one of this run's allocations"
    return DoesNotFit(
        refused if memory.refused_whole else needs,
        why=f"the largest part is {largest.name}: {units.gib(largest.size_bytes)} ({share:.0%}){held}",
        fix=fix or f"use a smaller model: onecard plan --gpu auto --fit finds one for {units.gib(free)}",
    )
