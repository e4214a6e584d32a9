"""make_plan: everything onecard can say before launch, from a config and a card."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args

from onecard import units
from onecard.config.resolve import PACKAGED_DEFAULT, Resolved
from onecard.config.schema import GPT2_VOCABULARIES, KEYS, SHAPE_KEYS, RunConfig, keys_that_affect
from onecard.errors import UsageError
from onecard.findings import SEVERITIES, Finding
from onecard.plan.advice import Fix, ranked_fixes
from onecard.plan.asked import is_roomy
from onecard.plan.budget import DECIDED, Budget, least_budget, propose
from onecard.plan.cards import Card
from onecard.plan.command import EXPANDABLE, train_command
from onecard.plan.conditions import condition_findings
from onecard.plan.counts import Params, count_params, flops_per_token
from onecard.plan.data import NO_SIZES, DataSizes, data_findings
from onecard.plan.fit import Fit, fit_config
from onecard.plan.intent import intent_findings
from onecard.plan.loss import LossForecast, forecast_loss
from onecard.plan.memory.predict import Memory, predict_nanogpt, predict_onecard
from onecard.plan.place import DESKTOP_BYTES, Place
from onecard.plan.precision import settled
from onecard.plan.proposal import Proposal
from onecard.plan.repair import is_planned, make_whole, with_whole_patch
from onecard.plan.sensitivity import Change, single_changes
from onecard.plan.shape import shape_for_params
from onecard.plan.speed import Speed, TrainerName, nearest_measured, predict_speed
from onecard.plan.speed.work import Trainers

MOST_PARAMS = 10**13  # beyond every model there is
_, NANOGPT_VOCABULARY = GPT2_VOCABULARIES  # what its train.py builds unless the data's meta.pkl says otherwise
FAR_OFF = 0.1  # of the parameters asked for
_SHAPE = ("n_layer", "n_head", "n_embd")  # what --params decides


@dataclass(frozen=True, kw_only=True)
class TrainerPlan:
    """The run under one trainer."""

    memory: Memory
    speed: Speed | None  # None where the card's speed is unknown
    nearest_measured: str  # the measured run most like this one, and how it differs
    with_desktop: Memory | None = None  # beside a desktop; None where it is known what others hold, or no card is
    environment: str = ""  # what stands in front of the command for these figures
    condition: str = ""  # what must be true for the trainer to make this run; empty where nothing more must

    @property
    def fits_with_desktop(self) -> bool | None:
        return self.with_desktop.fits if self.with_desktop else None

    @property
    def in_room(self) -> Memory:
        """The memory of the run in the room that is left beside a desktop, or beside what others are known to hold."""
        return self.with_desktop or self.memory


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything known about a run before it starts."""

    resolved: Resolved
    config: RunConfig  # with dtype=auto settled for the card
    place: Place | None
    params: Params
    flops_per_token: int
    available_bytes: int | None  # what the driver may show for the process; None where no card is known
    room_bytes: int | None  # the same beside a desktop, where nobody said what other programs hold
    nanogpt: TrainerPlan | None  # under nanoGPT's own loop; None if not asked for
    onecard: TrainerPlan | None  # under onecard's; None if not asked for
    loss: LossForecast | None  # None where no scaling law covers the run
    data: DataSizes = NO_SIZES
    fixes: tuple[Fix, ...] = ()
    fit: Fit | None = None  # asked for with --fit
    proposals: tuple[Proposal, ...] | None = None  # asked for with --hours or --tokens
    proposed_room_bytes: int | None = None  # what the proposals fit in
    enough: Budget | None = None  # where nothing can be proposed: the smallest budget for which something can
    sensitivity: tuple[Change, ...] | None = None
    findings: tuple[Finding, ...] = ()

    def __repr__(self) -> str:
        """One line: the size, the card, whether it fits, how fast, how good."""
        planned = self.onecard or self.nanogpt
        assert planned, "a plan is of at least one trainer"
        said = [_room(planned.memory, self.place, self.available_bytes)]
        if planned.speed:
            said.append(f"{planned.speed.tokens_per_second.likely / 1000:,.1f}k tokens/s")
        if self.loss:
            said.append(f"loss {self.loss.final.likely:.2f}")
        return f"Plan({units.count(self.params.nanogpt)}, {', '.join(said)})"

    @property
    def tokens_per_parameter(self) -> float:
        return self.config.total_tokens / self.params.total

    @property
    def first(self) -> TrainerPlan:
        """The run under nanoGPT, unless only onecard was asked for."""
        planned = self.nanogpt or self.onecard
        assert planned, "a plan is of at least one trainer"
        return planned

    def lacks_room(self, memory: Memory) -> bool:
        """Whether a run does not fit, or leaves less than a tenth of what there is beside a desktop."""
        return self.room_bytes is not None and not is_roomy(memory, self.room_bytes)

    @property
    def in_need(self) -> TrainerName:
        """The trainer whose run the fixes are for: nanoGPT if asked for, unless only onecard lacks room."""
        return max(self.trainers, key=lambda name: self._need(self.trainers[name].memory))

    def _need(self, memory: Memory) -> tuple[bool, bool]:
        return memory.fits is False, self.lacks_room(memory)

    @property
    def trainers(self) -> dict[TrainerName, TrainerPlan]:
        """The plans that were asked for, by trainer."""
        asked: dict[TrainerName, TrainerPlan | None] = {"nanogpt": self.nanogpt, "onecard": self.onecard}
        return {name: planned for name, planned in asked.items() if planned}

    @property
    def fits(self) -> bool | None:
        """Whether the run fits the card, under onecard where that was asked for; None where no card is known.

        With --fit: whether anything does.
        """
        if self.fit:
            return self.fit.best is not None
        verdicts = [planned.memory.fits for planned in (self.onecard, self.nanogpt) if planned]
        return next((verdict for verdict in verdicts if verdict is not None), None)

    @property
    def source(self) -> str | None:
        """The config as written in a command; None for the packaged default."""
        return "CONFIG" if self.resolved.source == "standard input" else self.resolved.source

    @property
    def typed(self) -> dict[str, Any]:
        """Keys set on the command line."""
        return _asked(self.resolved)

    @property
    def start_command(self) -> str:
        """What to type to start it as it is: onecard, unless only nanoGPT was asked for."""
        if self.onecard:
            return train_command(self.source, self.typed, trainer="onecard")
        environment = self.nanogpt.environment if self.nanogpt else ""
        return train_command(self.source, self.typed, environment=environment, trainer="nanogpt")

    @property
    def cautions(self) -> tuple[str, ...]:
        """A warning for each run that fits by less than its prediction may be off."""
        available = self.available_bytes
        return tuple(
            f"under {name}: {caution}"
            for name, planned in self.trainers.items()
            if available is not None and (caution := room_caution(planned.memory, available))
        )

    @property
    def exit_code(self) -> int:
        """1 where the answer is no: nothing can be proposed, or the run does not fit; else 0."""
        if self.proposals is not None:
            return 0 if self.proposals else 1
        return 1 if self.fits is False else 0


def make_plan(
    resolved: Resolved,
    place: Place | None = None,
    *,
    data: DataSizes = NO_SIZES,
    trainer: Trainers = "both",
    fit: bool = False,
    params: int | None = None,
    budget: Budget | None = None,
    sensitivity: bool = False,
) -> Plan:
    """The plan of a resolved config at a place (None: no card known), with what is asked for beside it.

    `data` has the sizes of the config's dataset; beside a budget, of the one in to_propose_from.

    With both trainers, onecard's run is fitted or proposed. Where nobody said what other programs hold, room for a
    desktop is left. Beside a budget nothing is fitted.
    """
    if trainer not in get_args(Trainers):
        named = " or ".join(map(repr, get_args(Trainers)))
        raise UsageError(f"{trainer!r} is not a trainer", why=f"a plan is for {named}", fix="trainer='both'")
    if params is not None:
        if not fit:
            raise UsageError(
                "--params needs --fit",
                why="without --fit a plan keeps the config's shape",
                fix="the same command with --fit",
                name="params-without-fit",
            )
        resolved = _reshaped(resolved, params)
    unheeded = _unheeded(resolved, place, budget, trainer=trainer, fit=fit)
    resolved = replace(resolved, warnings=(*resolved.warnings, *unheeded))
    card = place.card if place else None
    config = settled(resolved.config, card)
    available_bytes = place.available_bytes_for(config) if place else None
    desktop_bytes = place.beside_desktop_for(config) if place else None
    room_bytes = place.room_bytes_for(config) if place else None
    ours: TrainerName = "nanogpt" if trainer == "nanogpt" else "onecard"  # whose run is fitted and proposed
    expandable = resolved.config.expandable_segments and resolved.origins["expandable_segments"] != "default"
    if (fit or budget) and available_bytes is None:
        raise _needs_a_card("--fit" if fit else "a budget")
    proposals, enough, proposed_room_bytes = None, None, None
    if budget and available_bytes is not None and room_bytes is not None:
        if card is None or predict_speed(config, card) is None:
            raise _needs_a_card("a budget", "its speed is not known")
        base, spent = to_propose_from(resolved, config), budget.within(data)
        for room in sorted({room_bytes, available_bytes}):  # beside a desktop, or else with the card to itself
            proposals = tuple(propose(base, card, room, spent, trainer=ours, asked=_asked(resolved)))
            if proposals:
                proposed_room_bytes = room
                break
        else:
            enough = least_budget(base, card, available_bytes, spent, trainer=ours, asked=_asked(resolved))
    fitted = None
    if fit and not budget and available_bytes is not None and room_bytes is not None:
        fitted = fit_config(config, card, room_bytes, ours)
        if fitted.best is None:
            fitted = fit_config(config, card, available_bytes, ours)
        if params is not None:
            fitted = fitted.with_shape({key: getattr(config, key) for key in _SHAPE})
    nanogpt = onecard = None
    if trainer != "onecard":
        predict = partial(predict_nanogpt, config, card, expandable_segments=expandable)
        nanogpt = _under_nanogpt(resolved, config, card, predict(available_bytes=available_bytes))
        beside = beside_desktop(nanogpt.memory, desktop_bytes, lambda room: predict(available_bytes=room))
        nanogpt = replace(nanogpt, with_desktop=beside, environment=EXPANDABLE if expandable else "")
    if trainer != "nanogpt":
        predict = partial(predict_onecard, config, card)
        onecard = _under_onecard(config, card, predict(available_bytes=available_bytes))
        beside = beside_desktop(onecard.memory, desktop_bytes, lambda room: predict(available_bytes=room))
        onecard = replace(onecard, with_desktop=beside)
    run = proposals[0].config if proposals else config
    if onecard and not (budget and not proposals) and (cut := _cut_short(run, predict_speed(run, card, "onecard"))):
        resolved = replace(resolved, warnings=(*resolved.warnings, cut))
    changes = tuple(single_changes(config, card, trainer, expandable_segments=expandable)) if sensitivity else None
    found = [*intent_findings(resolved), *condition_findings(resolved), *data_findings(config, data, ours)]
    plan = Plan(
        resolved=resolved,
        config=config,
        place=place,
        params=count_params(config),
        flops_per_token=flops_per_token(config),
        available_bytes=available_bytes,
        room_bytes=room_bytes,
        nanogpt=nanogpt,
        onecard=onecard,
        loss=forecast_loss(config),
        fit=fitted,
        proposals=proposals,
        proposed_room_bytes=proposed_room_bytes,
        enough=enough,
        data=data,
        sensitivity=changes,
        findings=tuple(
            _completed(finding, config, place, data, "onecard" if trainer == "onecard" else "nanogpt")
            for finding in _most_urgent_first(found)
        ),
    )
    fixes = ranked_fixes(
        config,
        card,
        plan.trainers[plan.in_need].in_room,
        needed_bytes=plan.trainers[plan.in_need].memory.process_bytes,
        available_bytes=room_bytes,
        other_bytes=_held_by_others(place),
        trainer=plan.in_need,
        ours=onecard.in_room if onecard else None,
        expandable_segments=expandable,
    )
    return replace(plan, fixes=tuple(fixes))


def beside_desktop(memory: Memory, room_bytes: int | None, predict: Callable[[int], Memory]) -> Memory | None:
    """The same run in less room, planned again only where it is not clear that it fits; None for no such room."""
    if room_bytes is None:
        return None
    if memory.is_safe(room_bytes) and not memory.tight:
        return replace(memory, available_bytes=room_bytes)
    return predict(room_bytes)


def _held_by_others(place: Place | None) -> int:
    """Bytes that closing other programs may free: a desktop's where nobody said what they hold."""
    if place is None:
        return 0
    return DESKTOP_BYTES if place.other_bytes is None else place.other_bytes


def _under_nanogpt(resolved: Resolved, config: RunConfig, card: Card | None, memory: Memory) -> TrainerPlan:
    return TrainerPlan(
        memory=memory,
        speed=predict_speed(config, card),
        nearest_measured=nearest_measured(config, card)[0],
        condition=_vocabulary_to_tell(resolved),
    )


def _vocabulary_to_tell(resolved: Resolved) -> str:
    """What nanoGPT needs to build a vocabulary that was set; empty where the data or the weights have it."""
    origin, line = resolved.origins["vocab_size"], resolved.lines.get("vocab_size")
    set_here = origin in ("--vocab_size", PACKAGED_DEFAULT) or origin.endswith(f":{line}")
    return vocabulary_condition(resolved.config.vocab_size) if set_here else ""


def vocabulary_condition(size: int) -> str:
    """What nanoGPT, which has no key for it, needs to build a vocabulary of `size`; empty for its default."""
    if size == NANOGPT_VOCABULARY:
        return ""
    return (
        f"these figures need meta.pkl beside the data with a vocabulary of {size:,} "
        f"(onecard data prepare --format nanogpt writes it); without it nanoGPT builds {NANOGPT_VOCABULARY:,}"
    )


def _under_onecard(config: RunConfig, card: Card | None, memory: Memory) -> TrainerPlan:
    nearest, _ = nearest_measured(config, card, "onecard")
    return TrainerPlan(memory=memory, speed=predict_speed(config, card, "onecard"), nearest_measured=nearest)


def _asked(resolved: Resolved) -> dict[str, Any]:
    """Keys set on the command line, with their values. No file holds them, so a command must."""
    config = resolved.config
    return {key: getattr(config, key) for key, origin in resolved.origins.items() if origin.startswith("--")}


def _unheeded(
    resolved: Resolved, place: Place | None, budget: Budget | None, *, trainer: Trainers, fit: bool
) -> Iterator[str]:
    """Warnings about what was asked for and is not part of this plan."""
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
        yield "eval_only=True makes one evaluation and no update: the training below does not happen"
    if budget:
        yield from _decided(resolved, trainer)
    if budget and fit:
        option = "--tokens" if budget.seconds is None else "--hours"
        yield f"--fit is ignored beside {option}: proposed runs fit already"


def _decided(resolved: Resolved, trainer: Trainers) -> Iterator[str]:
    """Keys that were typed and that the budget overrides."""
    config = resolved.config
    halved = {"dtype"} if config.dtype == "float32" and trainer != "onecard" else set()
    as_proposed = {"compile": True, "init_from": "scratch", "eval_only": False}
    for key in sorted(_asked(resolved).keys() & (DECIDED | halved)):
        value = getattr(config, key)
        if key not in as_proposed or value != as_proposed[key]:
            yield f"{key}={value} is ignored: the budget decides {key}"


def _cut_short(config: RunConfig, speed: Speed | None) -> str | None:
    """A warning that max_hours stops a run before its end; None where it does not."""
    if config.max_hours is None or speed is None or config.max_hours * 3600 >= speed.total_seconds.likely:
        return None
    reached = int(config.max_iters * config.max_hours * 3600 / speed.total_seconds.likely)
    return (
        f"max_hours={config.max_hours:g} stops onecard's run at about step {reached:,} of {config.max_iters:,}: "
        "the hours and the loss here are for the whole run"
    )


def to_propose_from(resolved: Resolved, config: RunConfig) -> RunConfig:
    """The config; values from the packaged default become nanoGPT's defaults, and its dataset FineWeb."""
    packaged = [key for key, origin in resolved.origins.items() if origin == PACKAGED_DEFAULT]
    usual = {key: KEYS[key].default for key in packaged}
    return config.replace(usual | ({"dataset": "fineweb"} if "dataset" in usual else {}))


def _reshaped(resolved: Resolved, params: int) -> Resolved:
    """The same run with a shape of about `params` parameters."""
    if resolved.config.starts_pretrained:
        raise UsageError(
            f"--params does not go with init_from={resolved.config.init_from}",
            why="a run that starts from trained weights keeps their shape",
            fix="--fit alone, or --init_from=scratch beside --params",
            name="params-of-weights",
        )
    if not 1 <= params <= MOST_PARAMS:
        raise UsageError(
            f"no model has {params:,} parameters",
            why=f"--params takes a number from 1 to {units.count(MOST_PARAMS)}",
            fix="--fit --params 124M",
            name="bad-params",
        )
    config = shape_for_params(resolved.config, params)
    nearest = count_params(config).nanogpt
    if abs(nearest - params) > FAR_OFF * params:
        raise UsageError(
            f"no shape has about {units.count(params)} parameters",
            why=f"the nearest, {config.n_layer} layers of width {config.n_embd} and a vocabulary of "
            f"{config.vocab_size:,}, has {units.count(nearest)}",
            fix=f"--fit --params {units.count(nearest)}",
            name="params-out-of-reach",
        )
    unheeded = [key for key in _SHAPE if resolved.origins[key].startswith("--")]
    said = (f"{key}={getattr(resolved.config, key)} is ignored: --params decides the shape" for key in unheeded)
    origins = dict(resolved.origins) | dict.fromkeys(_SHAPE, "--params")
    return replace(resolved, config=config, origins=origins, warnings=(*resolved.warnings, *said))


def _room(memory: Memory, place: Place | None, available_bytes: int | None) -> str:
    """`GeForce RTX 4070: fits with 2,164 MiB left`"""
    if place is None or available_bytes is None or memory.fits is None:
        return "no card" if place is None else f"{place.card.name}: not known to fit"
    left = available_bytes - memory.process_bytes
    if memory.fits:
        return f"{place.card.name}: fits with {units.mib(left)} left"
    return f"{place.card.name}: does not fit" + (f", {units.mib(-left)} too much" if left < 0 else "")


def _needs_a_card(option: str, why: str = "no card is known here") -> UsageError:
    return UsageError(
        f"{option} needs a card to plan for",
        why=why,
        fix='--gpu "RTX 4070"' + (" (or --vram 12GiB)" if option == "--fit" else ""),
        name="no-card",
    )


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


def _completed(
    finding: Finding, config: RunConfig, place: Place | None, data: DataSizes, trainer: TrainerName
) -> Finding:
    """The finding with its patch made whole on the card, as the doctor does it; as it is where no card is known.

    With both trainers it is made to fit nanoGPT: then it fits onecard, too.
    """
    if place is None or not is_planned(finding):
        return finding
    made = make_whole(config, finding.patch, place=place, trainer=trainer, train_tokens=data.train_tokens)
    return with_whole_patch(finding, made) if made else finding


def _most_urgent_first(findings: Iterable[Finding]) -> list[Finding]:
    return sorted(findings, key=lambda finding: SEVERITIES.index(finding.severity))
