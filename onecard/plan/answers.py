"""What else can be asked about a plan, one function for each question."""

from __future__ import annotations

from collections.abc import Iterator

from onecard.config.recipes import NANOGPT, following
from onecard.config.resolve import PACKAGED_DEFAULT, Resolved
from onecard.config.schema import KEYS, RunConfig
from onecard.models.ranks import ONE_RANK, Ranks
from onecard.models.ways import recomputations
from onecard.plan.advice import Fix, ranked_fixes
from onecard.plan.budget import Budget, least_budget, propose
from onecard.plan.cards import Card
from onecard.plan.fit import Fit, fit_config
from onecard.plan.loss import forecast_loss
from onecard.plan.memory.predict import predict_onecard
from onecard.plan.place import DESKTOP_BYTES, Place
from onecard.plan.plan import FittingShare, Plan, Proposed, SeveralCards, WithoutRecipe, under_onecard
from onecard.plan.precision import with_dtype
from onecard.plan.sensitivity import Change, single_changes
from onecard.plan.several_cards import Asked, Cost, Pace, Price, cost_of, divided, pace_of, worth_up_to
from onecard.plan.shape import SHAPE_OF_SIZE
from onecard.plan.speed import predict_speed
from onecard.plan.speed.communication import gradient_bytes


def fixes_of(plan: Plan) -> tuple[Fix, ...]:
    """What to change so that the run fits, or takes less memory."""
    needy = plan.trainers[plan.in_need]
    fixes = ranked_fixes(
        plan.config,
        plan.card,
        needy.in_room,
        needed_bytes=needy.memory.process_bytes,
        available_bytes=plan.room_bytes,
        other_bytes=_held_by_others(plan.place),
        trainer=plan.in_need,
        ours=plan.onecard.in_room if plan.onecard else None,
        expandable_segments=plan.expandable_segments,
        data_tokens=plan.data.train_tokens,
    )
    return tuple(fixes)


def _held_by_others(place: Place | None) -> int:
    """Bytes that closing other programs may free: a desktop's where nobody said what they hold."""
    if place is None:
        return 0
    return DESKTOP_BYTES if place.other_bytes is None else place.other_bytes


def fit_of(plan: Plan, *, sized: bool = False) -> Fit:
    """The fastest config that fits: beside a desktop, or else with the card to itself. The plan must have a card.

    `sized`: the shape was chosen for a number of parameters, so patches name it.
    """
    assert plan.room_bytes is not None, "a fit needs a card"
    assert plan.available_bytes is not None, "a fit needs a card"
    fitted = fit_config(plan.config, plan.card, plan.room_bytes, plan.ours)
    if fitted.best is None:
        fitted = fit_config(plan.config, plan.card, plan.available_bytes, plan.ours)
    return fitted.with_shape({key: getattr(plan.config, key) for key in SHAPE_OF_SIZE}) if sized else fitted


def proposed_for(plan: Plan, budget: Budget) -> Proposed:
    """What to train with a budget: beside a desktop, or else with the card to itself. The plan must have a card."""
    assert plan.card is not None, "a budget needs a card"
    assert plan.room_bytes is not None, "a budget needs a card"
    assert plan.available_bytes is not None, "a budget needs a card"
    base, spent = to_propose_from(plan.resolved, plan.config), budget.within(plan.data)
    for room_bytes in sorted({plan.room_bytes, plan.available_bytes}):
        proposals = tuple(propose(base, plan.card, room_bytes, spent, trainer=plan.ours, asked=plan.typed))
        if proposals:
            return Proposed(proposals=proposals, budget=budget, room_bytes=room_bytes)
    enough = least_budget(base, plan.card, plan.available_bytes, spent, trainer=plan.ours, asked=plan.typed)
    return Proposed(proposals=(), budget=budget, enough=enough)


def to_propose_from(resolved: Resolved, config: RunConfig) -> RunConfig:
    """The config; values from the packaged default become nanoGPT's defaults, and its dataset FineWeb."""
    packaged = [key for key, origin in resolved.origins.items() if origin == PACKAGED_DEFAULT]
    usual = {key: KEYS[key].default for key in packaged}
    base = config.replace(usual | ({"dataset": "fineweb"} if "dataset" in usual else {}))
    return base.replace(following(config.model_dump(), base.model_dump()))


def without_recipe(plan: Plan) -> WithoutRecipe | None:
    """The run under nanoGPT's recipe, to see what its own brings; None where it has no other, or that cannot run."""
    given = plan.resolved.without_recipe
    if not given:
        return None
    try:
        config = plan.config.replace({"recipe": NANOGPT, **given})
    except ValueError:  # such as a micro-batch that was meant for the recipe alone
        return None
    card = plan.card
    return WithoutRecipe(
        config=config,
        memory=predict_onecard(config, card, available_bytes=plan.available_bytes),
        speed=predict_speed(config, card, "onecard"),
        loss=forecast_loss(config, plan.data.train_tokens),
    )


def changes_of(plan: Plan, asked: Asked | None = None) -> tuple[Change, ...]:
    """What each setting does to memory: of one card, or of each of those that were asked for."""
    trainer = "both" if len(plan.trainers) > 1 and not asked else plan.ours
    expandable, ranks = plan.expandable_segments, asked.ranks if asked else ONE_RANK
    return tuple(single_changes(plan.config, plan.card, trainer, expandable_segments=expandable, ranks=ranks))


def on_cards(plan: Plan, asked: Asked) -> SeveralCards:
    """The run on several cards. Its update must divide among them: ConfigError where it does not."""
    config, card, ranks = plan.config, plan.card, asked.ranks
    ranks.check(config)
    worth, worth_all = worth_up_to(config, card, asked) if asked.links else (None, False)
    rank = under_onecard(config, plan.place, ranks=ranks)
    return SeveralCards(
        asked=asked,
        rank=rank,
        gradient_bytes=gradient_bytes(config),
        pace=pace_of(config, card, ranks.world_size, asked.links),
        alone=pace_of(config, card, 1, ()),
        machine=_one_machine(config, card, asked),
        worth=worth,
        worth_all=worth_all,
        costs=tuple(filter(None, (_cost(plan, asked, price) for price in asked.prices))),
        change=_share_that_fits(plan, asked) if rank.memory.fits is False else None,
    )


def _share_that_fits(plan: Plan, asked: Asked) -> FittingShare | None:
    """The fastest change of the same mathematics that fits the cards: beside a desktop, or else without one."""
    assert plan.room_bytes is not None, "without a card nothing is known not to fit"
    config, card, ranks = plan.config, plan.card, asked.ranks
    leaner = [ways for ways in _leaner(config, ranks) if under_onecard(ways[-1], plan.place, ranks=ranks).memory.fits]
    paced = [(way, pace_of(way, card, ranks.world_size, asked.links)) for ways in leaner for way in ways]
    paced.sort(key=lambda each: -each[1].tokens_per_second.likely if each[1] else 0.0)
    too_large, barely = [config], None
    for way, pace in paced:
        if any(_needs_no_less(way, tried) for tried in too_large):
            continue
        rank = under_onecard(way, plan.place, ranks=ranks)
        patch = {key: value for key, value in way.model_dump().items() if value != getattr(config, key)}
        found = FittingShare(patch=patch, rank=rank, pace=pace)
        if rank.in_room.is_safe(plan.room_bytes):
            return found
        barely = barely or (found if rank.memory.fits else None)
        too_large.append(way)
    return barely


def _leaner(config: RunConfig, ranks: Ranks) -> Iterator[list[RunConfig]]:
    """The same run with more recomputed and halved micro-batches, the leanest last: as it is shared, and shared."""
    recomputed = recomputations(config)
    more = recomputed[recomputed.index(config.grad_checkpoint) :] if config.grad_checkpoint in recomputed else ("full",)
    halved = (config.batch_size >> halvings for halvings in range(config.batch_size.bit_length()))
    sizes = [size for size in halved if ranks.sequences_per_step(config) % size == 0]
    for shard in dict.fromkeys((config.shard, "full" if ranks.world_size > 1 else config.shard)):
        keys = [{"shard": shard, "grad_checkpoint": each} for each in more]
        yield [config.in_micro_batches(size).replace(each) for each in keys for size in sizes]


def _needs_no_less(way: RunConfig, tried: RunConfig) -> bool:
    """Whether a way needs at least the memory of one that was tried: as much shared, no more recomputed."""
    ways = (*recomputations(way), way.grad_checkpoint)
    return (
        way.shard == tried.shard
        and way.batch_size >= tried.batch_size
        and ways.index(way.grad_checkpoint) <= ways.index(tried.grad_checkpoint)
    )


def _one_machine(config: RunConfig, card: Card | None, asked: Asked) -> Pace | None:
    """The pace of one of several machines, if it has several cards among which the update divides."""
    cards = asked.per_machine
    if asked.machines == 1 or cards == 1:
        return None
    return pace_of(divided(config, cards), card, cards, asked.links_of(cards))


def _cost(plan: Plan, asked: Asked, price: Price) -> Cost | None:
    """The price of the run on one kind of card; None where its speed is unknown."""
    config = with_dtype(plan.resolved.config, price.card)
    place = plan.place if price.card == plan.card else Place(card=price.card)
    pace = pace_of(config, price.card, asked.ranks.world_size, asked.links)
    if pace is None:
        return None
    fits = under_onecard(config, place, ranks=asked.ranks).memory.fits
    return cost_of(pace, price, asked.ranks.world_size, fits=fits)
