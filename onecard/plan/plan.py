"""A plan: what is known of a run before it starts, from its config and a card; answers.py has the other questions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from onecard import units
from onecard.config.command import EXPANDABLE, flags_of
from onecard.config.resolve import PACKAGED_DEFAULT, Resolved
from onecard.config.schema import GPT2_VOCABULARIES, RunConfig
from onecard.findings import SEVERITIES, Finding
from onecard.models.ranks import ONE_RANK, Ranks
from onecard.plan.advice import Fix
from onecard.plan.budget import Budget
from onecard.plan.cards import Card
from onecard.plan.conditions import condition_findings
from onecard.plan.counts import Params, count_params, flops_per_token
from onecard.plan.data import NO_SIZES, DataSizes, data_findings
from onecard.plan.fit import Fit
from onecard.plan.intent import intent_findings
from onecard.plan.loss import LossForecast, forecast_loss
from onecard.plan.memory.predict import Memory, predict_nanogpt, predict_onecard
from onecard.plan.place import Place
from onecard.plan.precision import OLDEST_OF_TRITON, compiles, with_dtype
from onecard.plan.proposal import Proposal
from onecard.plan.repair import is_planned, make_whole, with_whole_patch
from onecard.plan.run_to_fix import is_roomy
from onecard.plan.sensitivity import Change
from onecard.plan.several_cards import Asked, Cost, Pace
from onecard.plan.speed import Speed, TrainerName, nearest_measured, predict_speed
from onecard.plan.speed.work import Trainers

MOST_OF = 0.5  # of the time: what a budget of hours is meant to be used for
_, NANOGPT_VOCABULARY = GPT2_VOCABULARIES  # what its train.py builds unless the data's meta.pkl says otherwise


@dataclass(frozen=True, kw_only=True)
class TrainerPlan:
    """The run under one trainer."""

    memory: Memory
    speed: Speed | None  # None where the card's speed is unknown
    nearest_measured: str  # the measured run most like this one, and how it differs
    with_desktop: Memory | None = None  # beside a desktop; None where it is known what others hold, or no card is
    environment: str = ""  # what stands in front of the command for these figures
    told_vocabulary: int | None = None  # a vocabulary for which nanoGPT needs meta.pkl; None where it needs none

    @property
    def fits_with_desktop(self) -> bool | None:
        return self.with_desktop.fits if self.with_desktop else None

    @property
    def in_room(self) -> Memory:
        """The memory of the run in the room that is left beside a desktop, or beside what others are known to hold."""
        return self.with_desktop or self.memory


@dataclass(frozen=True, kw_only=True)
class Proposed:
    """What to train with a budget."""

    proposals: tuple[Proposal, ...]  # the best first; () where the budget is too small
    budget: Budget  # as it was asked for
    room_bytes: int | None = None  # what they fit in
    enough: Budget | None = None  # where nothing can be proposed: the smallest budget for which something can

    def too_few(self, data: DataSizes) -> bool:
        """Whether the data, not the time, is what bounds these runs, and most of the time is left."""
        seconds = self.budget.seconds
        if seconds is None or data.train_tokens is None or self.budget.tokens is not None:
            return False
        if not self.proposals:
            return self.enough is not None and self.enough.tokens is not None and self.enough.seconds == seconds
        return all(each.seconds.likely < MOST_OF * seconds for each in self.proposals)


@dataclass(frozen=True, kw_only=True)
class WithoutRecipe:
    """The same run under nanoGPT's recipe, with onecard's trainer."""

    config: RunConfig
    memory: Memory
    speed: Speed | None
    loss: LossForecast | None


@dataclass(frozen=True, kw_only=True)
class FittingShare:
    """A change of settings, the same mathematics, with which a rank's share of a run fits."""

    patch: Mapping[str, Any]
    rank: TrainerPlan
    pace: Pace | None  # None where the card's speed is unknown


@dataclass(frozen=True, kw_only=True)
class SeveralCards:
    """The run on the cards that were asked for."""

    asked: Asked
    rank: TrainerPlan  # memory of the first rank, and its speed as if alone
    gradient_bytes: int  # of a rank, summed over all once an update
    pace: Pace | None  # None where the card's speed is unknown
    alone: Pace | None  # one card
    machine: Pace | None  # one of several machines, where it has several cards
    worth: int | None  # the number of cards past which another brings less than half of itself
    worth_all: bool  # whether that is as many as the sequences of an update allow
    costs: tuple[Cost, ...] = ()
    change: FittingShare | None = None  # what makes it fit, where it does not; None where nothing does

    @property
    def cards_worth(self) -> float | None:
        """How many cards' speed they have together."""
        return self._times(self.alone)

    @property
    def machines_worth(self) -> float | None:
        """How many machines' speed they have together."""
        return self._times(self.machine)

    def _times(self, other: Pace | None) -> float | None:
        if self.pace is None or other is None:
            return None
        return self.pace.tokens_per_second.likely / other.tokens_per_second.likely

    @property
    def cheapest(self) -> Cost | None:
        """The kind of card on which the run costs least, of those that it fits."""
        return min((each for each in self.costs if each.fits), key=lambda each: each.cost.likely, default=None)


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is known of a run before it starts, and the answers to what else was asked."""

    resolved: Resolved
    config: RunConfig  # dtype=auto replaced by what it means on the card
    place: Place | None
    available_bytes: int | None  # what the driver may show for the process; None where no card is known
    room_bytes: int | None  # the same beside a desktop, where nobody said what other programs hold
    nanogpt: TrainerPlan | None  # under nanoGPT's own loop; None if not asked for
    onecard: TrainerPlan | None  # under onecard's; None if not asked for
    loss: LossForecast | None  # None where no scaling law covers the run
    data: DataSizes = NO_SIZES
    findings: tuple[Finding, ...] = ()
    fixes: tuple[Fix, ...] = ()
    fit: Fit | None = None  # None if not asked for
    proposed: Proposed | None = None  # None without a budget
    sensitivity: tuple[Change, ...] | None = None  # None if not asked for
    without_recipe: WithoutRecipe | None = None  # None where the run has nanoGPT's recipe
    several_cards: SeveralCards | None = None  # None if not asked for

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
    def warnings(self) -> list[str]:
        """What to know about the config as it was read, and about the card as it was measured."""
        return [*self.resolved.warnings, *(self.place.notes if self.place else ())]

    @property
    def params(self) -> Params:
        return count_params(self.config)

    @property
    def flops_per_token(self) -> int:
        return flops_per_token(self.config)

    @property
    def tokens_per_parameter(self) -> float:
        return self.config.total_tokens / self.params.total

    @property
    def card(self) -> Card | None:
        return self.place.card if self.place else None

    @property
    def trainers(self) -> dict[TrainerName, TrainerPlan]:
        """The plans that were asked for, by trainer."""
        asked: dict[TrainerName, TrainerPlan | None] = {"nanogpt": self.nanogpt, "onecard": self.onecard}
        return {name: planned for name, planned in asked.items() if planned}

    @property
    def of_a_rank(self) -> Plan:
        """The same with one card's share of the run as its only run, where several cards were asked for."""
        return replace(self, nanogpt=None, onecard=self.several_cards.rank) if self.several_cards else self

    @property
    def first(self) -> TrainerPlan:
        """The run under nanoGPT, unless only onecard was asked for."""
        planned = self.nanogpt or self.onecard
        assert planned, "a plan is of at least one trainer"
        return planned

    @property
    def ours(self) -> TrainerName:
        """The trainer whose run is fitted and proposed: onecard, unless only nanoGPT was asked for."""
        return "onecard" if self.onecard else "nanogpt"

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
    def expandable_segments(self) -> bool:
        """Whether nanoGPT's environment asks for expandable segments."""
        return asks_for_expandable_segments(self.resolved)

    @property
    def proposals(self) -> tuple[Proposal, ...] | None:
        """What to train with the budget, the best first; None without a budget."""
        return self.proposed.proposals if self.proposed else None

    @property
    def fits(self) -> bool | None:
        """Whether the run fits the card, under onecard where that was asked for; None where no card is known.

        Where a fit was asked for: whether anything does. On several cards: whether one rank's share does.
        """
        if self.fit:
            return self.fit.best is not None
        if self.several_cards:
            return self.several_cards.rank.memory.fits
        verdicts = [planned.memory.fits for planned in (self.onecard, self.nanogpt) if planned]
        return next((verdict for verdict in verdicts if verdict is not None), None)

    @property
    def source(self) -> str | None:
        """The config as written in a command; None for the packaged default."""
        return source_of(self.resolved)

    @property
    def typed(self) -> dict[str, object]:
        """Keys set on the command line, with their values. No file holds them, so a command must."""
        return self.resolved.typed

    @property
    def exit_code(self) -> int:
        """1 where the answer is no: nothing can be proposed, or the run does not fit; else 0."""
        if self.proposals is not None:
            return 0 if self.proposals else 1
        return 1 if self.fits is False else 0


def source_of(resolved: Resolved) -> str | None:
    """A config as written in a command; None for the packaged default."""
    return "CONFIG" if resolved.source == "standard input" else resolved.source


def plan_run(
    resolved: Resolved, place: Place | None = None, *, data: DataSizes = NO_SIZES, trainer: Trainers = "both"
) -> Plan:
    """Memory, speed and loss of a resolved config at a place (None: no card known), and findings about it.

    `data` has the sizes of the config's dataset.
    """
    config = with_dtype(resolved.config, place.card if place else None)
    return Plan(
        resolved=resolved,
        config=config,
        place=place,
        available_bytes=place.available_bytes_for(config) if place else None,
        room_bytes=place.room_bytes_for(config) if place else None,
        nanogpt=_under_nanogpt(resolved, config, place) if trainer != "onecard" else None,
        onecard=under_onecard(config, place) if trainer != "nanogpt" else None,
        loss=forecast_loss(config, data.train_tokens),
        data=data,
        findings=tuple(_findings(resolved, config, place, data, trainer)),
    )


def _under_nanogpt(resolved: Resolved, config: RunConfig, place: Place | None) -> TrainerPlan:
    card, expandable = place.card if place else None, asks_for_expandable_segments(resolved)
    predict = partial(predict_nanogpt, config, card, expandable_segments=expandable)
    memory, with_desktop = _in_both_rooms(config, place, lambda room: predict(available_bytes=room))
    return TrainerPlan(
        memory=memory,
        speed=predict_speed(config, card),
        nearest_measured=nearest_measured(config, card)[0],
        with_desktop=with_desktop,
        environment=EXPANDABLE if expandable else "",
        told_vocabulary=_vocabulary_to_tell(resolved),
    )


def under_onecard(config: RunConfig, place: Place | None, *, ranks: Ranks = ONE_RANK) -> TrainerPlan:
    """The run under onecard's trainer; as one of several ranks its memory is the rank's, its speed that of one card."""
    card = place.card if place else None
    memory, with_desktop = _in_both_rooms(
        config, place, lambda room: predict_onecard(config, card, available_bytes=room, ranks=ranks)
    )
    return TrainerPlan(
        memory=memory,
        speed=predict_speed(config, card, "onecard"),
        nearest_measured=nearest_measured(config, card, "onecard")[0],
        with_desktop=with_desktop,
    )


def _in_both_rooms(
    config: RunConfig, place: Place | None, predict: Callable[[int | None], Memory]
) -> tuple[Memory, Memory | None]:
    """The memory of a run in all the room there is, and beside a desktop (None where others' share is known).

    It is predicted again only where it is not clear that it fits beside a desktop.
    """
    memory = predict(place.available_bytes_for(config) if place else None)
    room_bytes = place.beside_desktop_for(config) if place else None
    if room_bytes is None:
        return memory, None
    if memory.is_safe(room_bytes) and not memory.tight:
        return memory, replace(memory, available_bytes=room_bytes)
    return memory, predict(room_bytes)


def asks_for_expandable_segments(resolved: Resolved) -> bool:
    """Whether nanoGPT's environment asks for them: the default is onecard's alone."""
    return resolved.config.expandable_segments and resolved.origins["expandable_segments"] != "default"


def _vocabulary_to_tell(resolved: Resolved) -> int | None:
    """A vocabulary that was set, which nanoGPT does not build by itself; None where the data or the weights have it."""
    origin, line, size = resolved.origins["vocab_size"], resolved.lines.get("vocab_size"), resolved.config.vocab_size
    set_here = "vocab_size" in resolved.typed or origin == PACKAGED_DEFAULT or origin.endswith(f":{line}")
    return size if set_here and size != NANOGPT_VOCABULARY else None


def _findings(
    resolved: Resolved, config: RunConfig, place: Place | None, data: DataSizes, trainer: Trainers
) -> Iterator[Finding]:
    """What to know about the config and its data, the most urgent first, with patches made whole on the card.

    With both trainers a patch is made to fit nanoGPT: then it fits onecard, too. Without a card it stays as it is.
    """
    about_data = data_findings(config, data, "nanogpt" if trainer == "nanogpt" else "onecard")
    about_training = [] if config.eval_only else [*intent_findings(resolved), *condition_findings(resolved)]
    found = [*_not_compiled(resolved.config, place, trainer), *about_training, *about_data]
    for finding in sorted(found, key=lambda each: SEVERITIES.index(each.severity)):
        made = None
        if place is not None and is_planned(finding):
            fitted_to: TrainerName = "onecard" if trainer == "onecard" else "nanogpt"
            made = make_whole(config, finding.patch, place=place, trainer=fitted_to, train_tokens=data.train_tokens)
        yield with_whole_patch(finding, made) if made else finding


def _not_compiled(config: RunConfig, place: Place | None, trainer: Trainers) -> Iterator[Finding]:
    """A card that torch.compile has no kernels for: the figures are of the run without."""
    if not config.compile or place is None or compiles(place.card):
        return
    eager = {"compile": False}
    capability, oldest = (".".join(map(str, each)) for each in (place.card.compute_capability or (), OLDEST_OF_TRITON))
    yield Finding(
        rule="compile-failed",
        severity="warn",
        sure="high",
        what=f"torch.compile does not run on a {place.card.name}: planned without",
        why=f"Triton needs compute capability {oldest}, this card has {capability}"
        + ("" if trainer == "onecard" else "; onecard then trains without, nanoGPT fails"),
        fix=f"{flags_of(eager)}, with a build of PyTorch that still has kernels for this card",
        patch=eager,
    )


def _room(memory: Memory, place: Place | None, available_bytes: int | None) -> str:
    """`GeForce RTX 4070: fits with 2,164 MiB left`"""
    if place is None or available_bytes is None or memory.fits is None:
        return "no card" if place is None else f"{place.card.name}: not known to fit"
    left = available_bytes - memory.process_bytes
    if memory.fits:
        return f"{place.card.name}: fits with {units.mib(left)} left"
    return f"{place.card.name}: does not fit" + (f", {units.mib(-left)} too much" if left < 0 else "")
