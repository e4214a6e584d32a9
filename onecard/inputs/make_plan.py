"""A plan and the answers to all that was asked about it, for the command and for Python programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, get_args

from onecard import units
from onecard.errors import ConfigError, UsageError
from onecard.inputs.config import Flags, Named, config_to_plan, data_places
from onecard.inputs.data_sizes import sizes_of_data
from onecard.inputs.ignored import cut_short, ignored
from onecard.inputs.place import place_named
from onecard.inputs.questions import MOST_TOKENS, budget_of
from onecard.inputs.several_cards import cards_asked_for
from onecard.inputs.text import THERE
from onecard.plan.data import NO_SIZES, DataSizes

if TYPE_CHECKING:
    from onecard.config.resolve import Resolved
    from onecard.config.schema import RunConfig
    from onecard.plan.budget import Budget
    from onecard.plan.place import Place
    from onecard.plan.plan import Plan, Proposed
    from onecard.plan.several_cards import Asked
    from onecard.plan.speed.work import Trainers

MOST_PARAMS = 10**13  # beyond every model there is
FAR_OFF = 0.1  # of the parameters asked for


def plan_named(
    config: Named,
    flags: Flags,
    *,
    gpu: str | None = None,
    vram: int | None = None,
    other: int | None = None,
    place: Place | None = None,
    trainer: Trainers = "both",
    fit: bool = False,
    params: int | None = None,
    hours: float | None = None,
    tokens: int | None = None,
    sensitivity: bool = False,
    gpus: int | None = None,
    nodes: int | None = None,
    interconnects: Sequence[str] = (),
    prices: Sequence[str] = (),
    otherwise: str = THERE,
) -> Plan:
    """The plan of a config as a user names it, on the card that is named (or at `place`).

    `otherwise` is what to do where there is no such file.
    """
    from onecard.plan.answers import to_propose_from

    budget = budget_of(hours=hours, tokens=tokens)
    place = place or place_named(gpu, vram, other)
    several = cards_asked_for(gpus, nodes, interconnects, prices, place=place)
    resolved = config_to_plan(config, flags, otherwise=otherwise)
    read = to_propose_from(resolved, resolved.config) if budget else resolved.config
    return make_plan(
        resolved,
        place,
        data=sizes_of_data(read, data_places(config)),
        trainer=trainer,
        fit=fit,
        params=params,
        budget=budget,
        sensitivity=sensitivity,
        several=several,
    )


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
    several: Asked | None = None,
) -> Plan:
    """The plan of a resolved config at a place (None: no card known), with what is asked for beside it.

    `data` has the sizes of the config's dataset; beside a budget, of the one in to_propose_from.

    With both trainers, onecard's run is fitted or proposed. Where nobody said what other programs hold, room for a
    desktop is left. Beside a budget nothing is fitted.
    """
    from onecard.plan.answers import changes_of, fit_of, fixes_of, on_cards, without_recipe
    from onecard.plan.plan import plan_run

    _check_trainer(trainer)
    trainer = _trainer_of_model(resolved.config, trainer)
    if params is not None:
        resolved = _reshaped(resolved, params, fit=fit)
    shown: Trainers = "onecard" if several else trainer
    warnings = *resolved.warnings, *ignored(resolved, place, budget, trainer=shown, fit=fit)
    _check_card(resolved, place, fit=fit, budget=budget)
    if several:
        _check_several(resolved, several, place, trainer=trainer, fit=fit)
    plan = plan_run(replace(resolved, warnings=warnings), place, data=data, trainer=trainer)
    plan = replace(
        plan,
        fixes=fixes_of(plan),
        fit=fit_of(plan, sized=params is not None) if fit and not budget else None,
        proposed=_proposed(plan, budget) if budget else None,
        sensitivity=changes_of(plan, several) if sensitivity else None,
        without_recipe=without_recipe(plan) if not budget else None,
        several_cards=on_cards(plan, several) if several else None,
    )
    return replace(plan, resolved=replace(plan.resolved, warnings=(*warnings, *cut_short(plan))))


def _proposed(plan: Plan, budget: Budget) -> Proposed:
    """What to train with a budget; where no law covers the data, UsageError with the length that it pays for."""
    from onecard.plan.answers import proposed_for
    from onecard.plan.data import MANY_EPOCHS
    from onecard.plan.loss import why_data_outside
    from onecard.report.command import plan_command

    if plan.data.problem:
        raise ConfigError(
            f"no run can be proposed for data that cannot be used: {plan.data.problem}",
            why="how long a run should be depends on how much there is to read",
            fix=f"onecard data info {plan.config.dataset}   (says what is wrong with it)",
            name="data-unusable",
        )
    try:
        return proposed_for(plan, budget)
    except UsageError as problem:
        speed, data = plan.trainers[plan.ours].speed, plan.data
        outside = why_data_outside(plan.config.vocab_size, plan.config.dataset)
        if problem.name != "no-loss-law" or not outside or speed is None or plan.config.eval_only:
            raise
        rate, hours = speed.tokens_per_second.likely, f"{(budget.seconds or 0) / 3600:g} h"
        tokens = budget.within(data).tokens
        if budget.seconds is not None:
            tokens = min(round(budget.seconds * rate), tokens or MOST_TOKENS)
        assert tokens, "a budget has a bound"
        updates = max(1, tokens // plan.config.tokens_per_step)
        again = plan_command(plan.resolved, plan.place, None, {"max_iters": updates, "lr_decay_iters": updates})
        params = units.count(plan.params.total)
        what, length = problem.what, f"what the budget pays for with the config's {params} parameters"
        if data.train_tokens and tokens >= MANY_EPOCHS * data.train_tokens:
            length = f"{MANY_EPOCHS} epochs"
            if budget.seconds is not None:
                what = (
                    f"the data are too few for {hours}: {MANY_EPOCHS} epochs of {data.source} are "
                    f"{units.count(tokens)} tokens, which the config's {params} parameters read in "
                    f"{units.duration(tokens / rate)}"
                )
        raise UsageError(
            what,
            why=problem.why,
            fix=f"choose the size yourself, and compare val losses: {again}   ({length})",
            name=problem.name,
        ) from problem


def _check_trainer(trainer: str) -> None:
    from onecard.plan.speed.work import Trainers

    if trainer not in get_args(Trainers):
        named = " or ".join(map(repr, get_args(Trainers)))
        raise UsageError(f"{trainer!r} is not a trainer", why=f"a plan is for {named}", fix="trainer='both'")


def _trainer_of_model(config: RunConfig, trainer: Trainers) -> Trainers:
    """The trainers that can train the model, of those asked for: nanoGPT trains GPT-2 alone."""
    if config.model == "gpt2" or trainer == "onecard":
        return trainer
    if trainer == "nanogpt":
        raise UsageError(
            f"nanoGPT cannot train model={config.model}",
            why="its model.py has GPT-2's layers and no others",
            fix="--trainer onecard, or " + ("--model=gpt2" if config.recipe == "nanogpt" else "--recipe=nanogpt"),
            name="not-nanogpts-model",
        )
    return "onecard"


def _check_card(resolved: Resolved, place: Place | None, *, fit: bool, budget: Budget | None) -> None:
    """UsageError where a question needs a card, or the speed of one, and none is known."""
    from onecard.plan.precision import with_dtype
    from onecard.plan.speed import predict_speed

    if (fit or budget) and place is None:
        raise _needs_a_card("--fit" if fit else "a budget")
    if budget and place and predict_speed(with_dtype(resolved.config, place.card), place.card) is None:
        raise _needs_a_card("a budget", "its speed is not known")


def _check_several(resolved: Resolved, several: Asked, place: Place | None, *, trainer: Trainers, fit: bool) -> None:
    """UsageError where the plan of several cards cannot be made beside what else was asked."""
    from onecard.plan.precision import with_dtype
    from onecard.plan.speed import predict_speed
    from onecard.report.command import plan_command

    if trainer == "nanogpt":
        raise UsageError(
            "several cards and prices are planned for onecard's trainer alone",
            why="how nanoGPT's DistributedDataParallel sums gradients is not modelled",
            fix="--trainer onecard",
            name="not-nanogpts-cards",
        )
    if fit:
        raise UsageError(
            "--fit does not go with several cards or a price",
            why="--fit searches for one card; a plan of several says by itself which change fits, where yours does not",
            fix=plan_command(resolved, place, several),
            name="two-questions",
        )
    for price in several.prices:
        if predict_speed(with_dtype(resolved.config, price.card), price.card) is None:
            raise _needs_a_card("--price", f"the speed of {price.card.name} is not known")


def _needs_a_card(option: str, why: str = "no card is known here") -> UsageError:
    return UsageError(
        f"{option} needs a card to plan for",
        why=why,
        fix='--gpu "RTX 4070"' + (" (or --vram 12GiB)" if option == "--fit" else ""),
        name="no-card",
    )


def _reshaped(resolved: Resolved, params: int, *, fit: bool) -> Resolved:
    """The same run with a shape of about `params` parameters."""
    from onecard.config.recipes import following
    from onecard.plan.counts import count_params
    from onecard.plan.shape import SHAPE_OF_SIZE, shape_for_params

    if not fit:
        raise UsageError(
            "--params needs --fit",
            why="without --fit a plan keeps the config's shape",
            fix="the same command with --fit",
            name="params-without-fit",
        )
    if resolved.config.init_from != "scratch":
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
    config = config.replace(following(resolved.config.model_dump(), config.model_dump()))
    typed = [key for key in SHAPE_OF_SIZE if key in resolved.typed]
    said = (f"{key}={getattr(resolved.config, key)} is ignored: --params decides the shape" for key in typed)
    origins = dict(resolved.origins) | dict.fromkeys(SHAPE_OF_SIZE, "--params")
    return replace(resolved, config=config, origins=origins, warnings=(*resolved.warnings, *said))
