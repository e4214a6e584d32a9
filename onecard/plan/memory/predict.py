"""The memory a run takes on a card: its phases, its parts, what the driver shows, and whether it fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial

from onecard.config.schema import RunConfig
from onecard.models.nanogpt import eager_tape
from onecard.models.ranks import ONE_RANK, Ranks
from onecard.models.ways import compiles_blocks, fuses, records_graph, shards
from onecard.paper.device import Device
from onecard.paper.kernels import FLOAT
from onecard.paper.scratch import WORKSPACE_BYTES
from onecard.paper.tape import Tape, parts_at
from onecard.plan.cards import Card, device_of
from onecard.plan.memory.nanogpt.compiled.tape import compiled_tape
from onecard.plan.memory.onecard.tape import onecard_tape
from onecard.plan.memory.replay import RanOut, Replay, ReservedPeak, replay
from onecard.plan.memory.why import item_bytes, why_nanogpt, why_onecard
from onecard.plan.speed.work import TrainerName
from onecard.units import MIB

TAPES = 4  # that are kept: of a run, and of the changes to it that a plan proposes; they are large
PHASES = ("eval0", "train", "eval")  # both trainers evaluate first (eval_only: that is all), train, evaluate again
PROCESS = "process"  # the phase of parts that belong to no single phase: cache and context
ROUNDING = "block rounding"
SLACK = "allocator slack"
BEFORE = "before its first batch"  # the moment of a phase that peaks at its very start
CONTEXT = "context"

# What the driver shows beyond the context once a CUDA graph has been recorded. It was the same in 15 of 16 runs of 2 to
# 12 layers in either precision, and 2 MiB more in one (H200, CUDA 13, torch 2.11, 2026-11-15).
GRAPH_CONTEXT_BYTES = 70 * MIB

# The same for written-out passes, graph included. It is negative because they make no cuBLAS handle, which would take
# more. It was the same in 44 runs of 2 to 24 layers, and 2 MiB more or less in three (H200, CUDA 13, torch 2.11,
# 2026-11-16). Its size on other cards is not known.
FUSED_CONTEXT_BYTES = -56 * MIB

# A cuBLAS handle in such a run. Muon's products make one: the same in 11 runs (H200, CUDA 13, torch 2.11, 2026-11-18).
# The texts of sample_interval make one, too: taken to be as large, not measured.
HANDLE_CONTEXT_BYTES = 64 * MIB

# How far the prediction of what PyTorch reserves may be off. On the measured card, nine of ten processes in every set
# of rows are within 1 % (docs/explain/memory.md). On other cards one run is known; it is within 2 %.
MEASURED_ERROR, UNMEASURED_ERROR = 0.01, 0.02


@dataclass(frozen=True, kw_only=True)
class Part:
    """Bytes alive at the peak of a phase, and why."""

    name: str
    phase: str
    size_bytes: int
    why: str


@dataclass(frozen=True, kw_only=True)
class Phase:
    """One phase of the run, as torch.cuda's statistics would show it."""

    name: str
    allocated_bytes: int
    reserved_bytes: int  # high-water mark so far
    moment: str  # when within the phase the peak falls


@dataclass(frozen=True, kw_only=True)
class Description:
    """What a trainer allocates and frees, under which allocator, and how its parts are explained."""

    make_tape: Callable[[], Tape]
    why: Callable[[str, str, str, int], str]  # arguments: tag, phase, moment, bytes
    expandable_segments: bool
    context: Part
    capped: bool = False  # torch enforces the limit and counts whole requests; a driver gives pages while it has any

    def room_bytes(self, run: Replay) -> int:
        """Bytes that must be available for the run to go as it did when replayed without a limit."""
        return max(run.reserved_bytes, run.asked_bytes if self.capped else 0) + self.context.size_bytes

    def replayed(self, tape: Tape, *, available_bytes: int | None = None) -> Replay:
        """The tape replayed through the allocator, which gets what is available to the process minus its context."""
        limit = None if available_bytes is None else max(0, available_bytes - self.context.size_bytes)
        if limit is None:
            return _without_limit(tape, self.expandable_segments)
        return replay(tape, expandable_segments=self.expandable_segments, limit_bytes=limit)


@lru_cache(maxsize=TAPES)
def _without_limit(tape: Tape, expandable_segments: bool) -> Replay:
    return replay(tape, expandable_segments=expandable_segments)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """A run's memory under one trainer. Searches make many of these and read few, so explanations are made on request.

    A prediction does not hold its tape, which is large for a deep model: only the last few of a process are kept.
    """

    phases: dict[str, Phase]
    process_bytes: int  # what the driver shows: everything reserved, plus the context
    error_bytes: int  # how far process_bytes may be off
    fits: bool | None  # None where no card is known
    tight: bool  # fits only because the allocator gives its cache back at the limit
    assumptions: tuple[str, ...]
    available_bytes: int | None
    description: Description = field(repr=False, compare=False)
    peaks: dict[str, ReservedPeak] = field(repr=False)
    first_run_out: str | None = None  # where the first run, which times its kernels, runs out; only if later runs fit
    later_run_out: str | None = None  # where later runs, with no kernels to time, run out; only if the first fits

    @property
    def context_bytes(self) -> int:
        return self.description.context.size_bytes

    @property
    def tape(self) -> Tape:
        """Every allocation and free of the run."""
        return self.description.make_tape()

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The parts at the peak of every phase, then slack and context: what the process takes beyond the largest."""
        tape = self.tape
        parts = [part for name in self.phases for part in _parts(tape, self.peaks[name], self.description.why)]
        slack = self.process_bytes - self.context_bytes - self.peak_phase.allocated_bytes
        parts.append(Part(name=SLACK, phase=PROCESS, size_bytes=slack, why="cached for reuse, or lost between blocks"))
        return (*parts, self.description.context)

    @cached_property
    def ran_out(self) -> str | None:
        """Where memory runs out, for example `training, backward pass of the loss`; None where it does not."""
        if self.fits is not False:
            return None
        tape = self.tape
        return _where(tape, self.description.replayed(tape, available_bytes=self.available_bytes).ran_out)

    @property
    def peak_phase(self) -> Phase:
        """The phase with the largest peak."""
        return max(self.phases.values(), key=lambda phase: phase.allocated_bytes)

    @property
    def knows_context(self) -> bool:
        """Whether `process_bytes` includes the context; it does not where no card is known."""
        return self.context_bytes > 0

    def is_safe(self, available_bytes: int) -> bool:
        """Whether the first run and later ones fit even if the prediction is too low by `error_bytes`."""
        near = self.process_bytes + self.error_bytes > available_bytes
        return bool(self.fits) and not near and self.first_run_out is None and self.later_run_out is None

    def is_near(self, available_bytes: int) -> bool:
        """Whether a run that does not fit would fit if the prediction is too high by `error_bytes`."""
        return self.fits is False and self.process_bytes - self.error_bytes <= available_bytes

    @property
    def refused_whole(self) -> bool:
        """Whether it fails only because torch, at its own limit, counts what free pages hold of a request, too."""
        return self.fits is False and self.process_bytes <= (self.available_bytes or 0)

    def parts_of(self, phase: str) -> list[Part]:
        """The parts of one phase, largest first."""
        return sorted((p for p in self.parts if p.phase == phase), key=lambda part: -part.size_bytes)


@lru_cache(maxsize=TAPES)  # neither expandable segments nor other programs change it
def nanogpt_tape(config: RunConfig, device: Device, *, cold: bool = True, returns_logits: bool = True) -> Tape:
    """Every allocation and free of nanoGPT's model under nanoGPT's loop.

    `cold`: the first run, which times its compiled kernels.
    `returns_logits=False`: a model whose forward returns only the loss in training; nanoGPT's returns both.
    """
    if config.compile:
        return compiled_tape(config, device, cold=cold, returns_logits=returns_logits)
    return eager_tape(config, device, returns_logits=returns_logits)


def predict_memory(
    config: RunConfig, card: Card | None, trainer: TrainerName, *, available_bytes: int | None = None
) -> Memory:
    """The memory of a run under one trainer: nanoGPT as published, or onecard's own."""
    predict = predict_onecard if trainer == "onecard" else predict_nanogpt
    return predict(config, card, available_bytes=available_bytes)


def predict_nanogpt(
    config: RunConfig,
    card: Card | None,
    *,
    available_bytes: int | None = None,
    expandable_segments: bool = False,
    returns_logits: bool = True,
) -> Memory:
    """The memory of a run under nanoGPT on a card, where the driver may show at most `available_bytes` for the process.

    This predicts the first run, unless that one runs out and the next one, whose kernels are tuned already, does not.
    Where segments only just hold everything, the buffers for timing kernels decide where the rest is placed. That can
    change the result by the size of the logits. If only the first run fits, `later_run_out` says where the next fails.
    """
    return _predict_nanogpt(config, card, available_bytes, expandable_segments, returns_logits)


@lru_cache(maxsize=64)  # a plan, its fixes and its fit predict the same runs
def _predict_nanogpt(
    config: RunConfig, card: Card | None, available_bytes: int | None, expandable_segments: bool, returns_logits: bool
) -> Memory:
    device = device_of(card)

    def memory(*, cold: bool) -> Memory:
        description = Description(
            make_tape=partial(nanogpt_tape, config, device, cold=cold, returns_logits=returns_logits),
            why=partial(why_nanogpt, config),
            expandable_segments=expandable_segments,
            context=_context(card.context_bytes, card.context_source) if card else NO_CONTEXT,
        )
        return _memory(
            description, card, available_bytes, tuple(_assumptions(config, device, card, expandable_segments))
        )

    first = memory(cold=True)
    if not config.compile or available_bytes is None:
        return first
    if first.fits:
        logits_bytes = config.batch_size * config.block_size * config.vocab_size * item_bytes(config)
        if first.process_bytes + logits_bytes <= available_bytes:
            return first
        later = memory(cold=False)
        return first if later.fits else replace(first, later_run_out=later.ran_out)
    if first.peak_phase.allocated_bytes + first.context_bytes > available_bytes:
        return first  # no later run fits either
    later = memory(cold=False)
    return replace(later, first_run_out=first.ran_out) if later.fits else first


def predict_onecard(
    config: RunConfig, card: Card | None, *, available_bytes: int | None = None, ranks: Ranks = ONE_RANK
) -> Memory:
    """The memory of a run under onecard's own trainer on a card, with the allocator settings of the config.

    `ranks`: as one of several processes, each with a card like this one.
    """
    return _predict_onecard(config, card, available_bytes, ranks)


@lru_cache(maxsize=64)
def _predict_onecard(config: RunConfig, card: Card | None, available_bytes: int | None, ranks: Ranks) -> Memory:
    config = ranks.as_run(config)
    device = device_of(card)
    context = _context(context_of_onecard(config, card), _context_source(config, card)) if card else NO_CONTEXT
    description = Description(
        make_tape=partial(onecard_tape, config, device, ranks=ranks),
        why=partial(why_onecard, config),
        expandable_segments=config.expandable_segments,
        context=context,
        capped=config.memory_limit is not None and config.memory_limit <= (available_bytes or math.inf),
    )
    return _memory(description, card, available_bytes, tuple(_onecard_assumptions(config, device, card)))


def context_of_onecard(config: RunConfig, card: Card) -> int:
    """Bytes the driver shows for a run, beyond what PyTorch reserved."""
    return card.context_bytes + more_context(config, card)


def more_context(config: RunConfig, card: Card) -> int:
    if fuses(config) and is_measured(card):
        has_handle = config.optimizer == "muon" or config.sample_interval > 0
        return FUSED_CONTEXT_BYTES + (HANDLE_CONTEXT_BYTES if has_handle else 0)
    return GRAPH_CONTEXT_BYTES if records_graph(config) else 0


def _context_source(config: RunConfig, card: Card) -> str:
    more = more_context(config, card)
    if not more:
        return card.context_source
    what = f"a CUDA graph adds {more // MIB}" if more > 0 else f"a CUDA graph, but no cuBLAS handle: {more // MIB}"
    return f"{card.context_source}; {what} MiB (measured on an H200)"


def is_measured(card: Card) -> bool:
    """Whether processes were measured on this card."""
    return card.context_source.startswith("measured")


def _context(size_bytes: int, why: str) -> Part:
    return Part(name=CONTEXT, phase=PROCESS, size_bytes=size_bytes, why=why)


NO_CONTEXT = _context(0, "no card is known")


def _memory(
    description: Description, card: Card | None, available_bytes: int | None, assumptions: tuple[str, ...]
) -> Memory:
    """Replay without a limit. If that exceeds the limit but might still fit, replay again under the limit."""
    tape = description.make_tape()
    run = description.replayed(tape)
    fits, tight = None if available_bytes is None else True, False
    context_bytes = description.context.size_bytes
    if available_bytes is not None and description.room_bytes(run) > available_bytes:
        most = max(run.phases.values(), key=lambda peak: peak.allocated_bytes)
        least = sum(parts_at(tape, most.event).values()) + context_bytes  # what any allocator needs at that moment
        limited = description.replayed(tape, available_bytes=available_bytes) if least <= available_bytes else None
        fits = tight = limited is not None and limited.ok
        run = limited if limited and tight else run
    return Memory(
        phases={name: _phase(tape, run.phases[name]) for name in PHASES if name in run.phases},
        process_bytes=run.reserved_bytes + context_bytes,
        error_bytes=_error_bytes(run.reserved_bytes, card),
        fits=fits,
        tight=tight,
        assumptions=assumptions,
        available_bytes=available_bytes,
        description=description,
        peaks=run.phases,
    )


def _error_bytes(reserved_bytes: int, card: Card | None) -> int:
    """How far a predicted process may be off, in bytes: a share of what PyTorch reserves, plus the context's error."""
    share = MEASURED_ERROR if card and is_measured(card) else UNMEASURED_ERROR
    if card and card.reserved_error is not None:
        share = max(MEASURED_ERROR, card.reserved_error)
    return round(share * reserved_bytes) + (card.context_error_bytes if card else 0)


def _phase(tape: Tape, peak: ReservedPeak) -> Phase:
    begins = next(start for start, name in tape.phases if name == peak.phase)
    return Phase(
        name=peak.phase,
        allocated_bytes=peak.allocated_bytes,
        reserved_bytes=peak.reserved_bytes,
        moment=tape.moment_at(peak.event) if peak.event >= begins else BEFORE,
    )


def _parts(tape: Tape, peak: ReservedPeak, why: Callable[[str, str, str, int], str]) -> Iterator[Part]:
    alive, moment = peak.parts(tape), tape.moment_at(peak.event)
    for tag, size in alive.items():
        yield Part(name=tag, phase=peak.phase, size_bytes=size, why=why(tag, peak.phase, moment, size))
    unsplit = peak.allocated_bytes - sum(alive.values())
    if unsplit:
        larger = "up to 1 MiB more than asked for: too small to split off"
        yield Part(name=ROUNDING, phase=peak.phase, size_bytes=unsplit, why=larger)


def _where(tape: Tape, ran_out: RanOut | None) -> str | None:
    if ran_out is None:
        return None
    name = {"eval0": "the first evaluation", "train": "training", "eval": "evaluation after training"}
    return f"{name.get(ran_out.phase, ran_out.phase)}, {tape.moment_at(ran_out.event)}"


def _onecard_assumptions(config: RunConfig, device: Device, card: Card | None) -> Iterator[str]:
    yield from _about_card(config, device, card)
    if fuses(config):
        yield f"a workspace of {WORKSPACE_BYTES / MIB:.4g} MiB for matrix products"
    else:
        workspaces = "four" if records_graph(config) else "two"
        yield f"{workspaces} cuBLAS workspaces of {device.cublas_workspace_bytes / MIB:.4g} MiB"
    yield "expandable segments" if config.expandable_segments else "default allocator settings"
    if compiles_blocks(config):
        yield from _not_modelled(config, device)
    if shards(config):
        yield "blocks run eagerly, because cards that share a model gather and free them all the time"
        yield "gathered blocks by FSDP2's source, as if all ran on one stream: not measured on several cards"


def _assumptions(config: RunConfig, device: Device, card: Card | None, expandable_segments: bool) -> Iterator[str]:
    yield from _about_card(config, device, card)
    yield f"two cuBLAS workspaces of {device.cublas_workspace_bytes / MIB:.4g} MiB"
    yield "expandable segments" if expandable_segments else "default allocator settings"
    if config.compile:
        yield from _padded_vocabulary(config)
        yield from _not_modelled(config, device)


def _about_card(config: RunConfig, device: Device, card: Card | None) -> Iterator[str]:
    names = {"cudnn": "cuDNN", "flash": "flash", "efficient": "memory-efficient", "math": "plain (unfused)"}
    kernel = device.attention_kernel(config.dtype, config.head_size, config.block_size)
    major, minor = device.capability
    yield f"{names[kernel]} attention, PyTorch 2.11's choice for sm_{major}{minor}"
    if card is None or card.compute_capability is None:
        who = "no card was named" if card is None else f"{card.name}'s kernels are not known"
        yield f"a card like the RTX 4070 (sm_{major}{minor}, {device.multiprocessors} multiprocessors): {who}"


def _padded_vocabulary(config: RunConfig) -> Iterator[str]:
    """What Inductor decides by timing (fx_passes/pad_mm.py) when it compiles the head, and the bytes at stake."""
    aligned, tokens = _aligned(config), config.batch_size * config.block_size
    logits_bytes = tokens * config.vocab_size * item_bytes(config)
    if config.vocab_size % aligned and logits_bytes >= MIB:
        at_stake = f"copies of {logits_bytes / MIB:,.0f} MiB"
        if config.dtype == "float32":  # the head's own gradient is then made late or early (Shape.possible_paddings)
            kept_bytes = tokens * config.n_embd * FLOAT
            at_stake += f" and how long {kept_bytes / MIB:,.0f} MiB of the last norm's result are kept"
        yield (
            f"a vocab_size that is not a multiple of {aligned} is padded where that was faster on an H200; timing on "
            f"this card may choose differently, which changes {at_stake}"
        )


def _not_modelled(config: RunConfig, device: Device) -> Iterator[str]:
    """What Inductor was never seen to do, or may do depending on a timing."""
    aligned, tokens = _aligned(config), config.batch_size * config.block_size
    for name, size in (("n_embd", config.n_embd), ("batch_size x block_size", tokens)):
        if size % aligned and size > 1:
            yield f"not modelled: Inductor may pad products, because {name} = {size} is not a multiple of {aligned}"
    if device.attention_kernel(config.dtype, config.head_size, config.block_size) == "math":
        scores_bytes = tokens * config.n_head * config.block_size * FLOAT
        yield f"not modelled: compiled plain attention, whose scores take {scores_bytes / MIB:,.1f} MiB per layer"


def _aligned(config: RunConfig) -> int:
    """Elements in 16 bytes: matrix products are fastest when their sizes are multiples of this."""
    return 16 // item_bytes(config)
