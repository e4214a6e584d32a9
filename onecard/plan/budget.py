"""What to train with the time and tokens one has: shape, length and settings for the lowest predicted loss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from onecard import units
from onecard.config.recipes import FAST, NANOGPT, following, recipe_values
from onecard.config.schema import KEYS, RunConfig
from onecard.errors import UsageError
from onecard.models.training import EVAL_BATCHES
from onecard.plan import recipe
from onecard.plan.cards import Card
from onecard.plan.counts import count_params
from onecard.plan.data import MANY_EPOCHS, DataSizes
from onecard.plan.ladder import Means, shapes
from onecard.plan.loss import forecast_loss, optimal_params_for_tokens, params_of_law, why_no_forecast
from onecard.plan.proposal import Proposal, proposal_for
from onecard.plan.speed import TrainerName, predict_speed
from onecard.plan.token_worth import FAST_TOKENS, is_gpt2_with_adamw, known_tokens, worth_of

RUN_SHARE = 0.97  # of the hours; the rest goes to starting and compiling
EVALUATION_SHARE = 0.03  # of the run, for evaluations and the checkpoints that go with them
MOST_EVALUATIONS, FEWER_EVALUATIONS = 40, 10  # below the second, each reads less
EVALUATED_TOKENS = 524_288  # of a split: a standard error of 0.02
LEAST_EVAL_BATCHES = EVAL_BATCHES  # from there on an evaluation takes the same memory
LONGEST = 2**40  # updates: the most that a config may have
FEWEST_STEPS = 100  # below this a run shows nothing
LOWEST, LOWEST_OF_GPT2 = "lowest loss", "lowest loss of a GPT-2"  # names; the second beside another model's
WITHOUT_NANOGPT = (
    "the fast recipe trains another model: it can be exported to Hugging Face, where transformers has it as nanochat, "
    "and not to nanoGPT"
)
# Parameters beyond those for which the data, read once, are compute-optimal are worth less and less, as repeated tokens
# are: at 1 + 5.31 times as many, two thirds of what they can be worth is reached (arXiv 2305.16264, appendix A).
WORTH_OF_PARAMS = 1 + 5.31
SMALLER_SHARE = 0.55  # the smaller model has at most this share of the parameters
LARGER_SHARE = 1.8  # and the larger model that is mentioned has at least this
NEAR_OPTIMAL = 1.5  # as a factor: a model within it of the optimal size is called compute-optimal


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What there is to spend. None is no bound; at least one is set."""

    seconds: float | None = None
    tokens: int | None = None
    data_tokens: int | None = None  # what there is to read, None where nobody knows
    most_params: float = math.inf  # above, a model has nothing more to learn from the data

    def within(self, data: DataSizes) -> Budget:
        """The budget with no more tokens than a few epochs of the data, for models that the data are enough for."""
        if data.train_tokens is None:
            return self
        most = MANY_EPOCHS * data.train_tokens
        return replace(
            self,
            tokens=most if self.tokens is None else min(most, self.tokens),
            data_tokens=data.train_tokens,
            most_params=WORTH_OF_PARAMS * optimal_params_for_tokens(data.train_tokens),
        )

    def in_whole_steps(self, block_size: int) -> Budget:
        """The budget with its tokens rounded down to whole updates, of the size that suits so many tokens."""
        if self.tokens is None:
            return self
        sizes = [sequences * block_size for sequences in recipe.sequences_per_step(block_size)]
        enough = [size for size in sizes if self.tokens >= recipe.ENOUGH_STEPS * size]
        return replace(self, tokens=self.tokens - self.tokens % max(enough, default=sizes[0]))

    def steps(self, config: RunConfig, means: Means) -> int:
        """Updates that the budget pays for, after the share of evaluations and checkpoints."""
        bounds: list[float] = []
        if self.tokens is not None:
            bounds.append(self.tokens // config.tokens_per_step)
        if self.seconds is not None:
            run_seconds = RUN_SHARE * self.seconds
            most = min(EVALUATION_SHARE * run_seconds, _between(config, means, _wanted_iters(config), MOST_EVALUATIONS))
            between = max(most, _between(config, means, LEAST_EVAL_BATCHES, 1))
            bounds.append((run_seconds - between) / _step_seconds(config, means))
        return max(0, math.floor(min(bounds)))


def propose(
    config: RunConfig,
    card: Card,
    available_bytes: int,
    budget: Budget,
    *,
    trainer: TrainerName = "nanogpt",
    asked: Mapping[str, Any] = MappingProxyType({}),
) -> list[Proposal]:
    """The run to make within the budget, then one of a smaller model; [] if no run fits the budget.

    With hours, the first has the lowest predicted loss. Tokens alone do not bound the compute, so there it is the run
    for which they are compute-optimal.

    Keys that were `asked` for keep their values, except those that the budget decides. UsageError where no loss can be
    predicted to choose by.
    """
    means = Means(card=card, available_bytes=available_bytes, trainer=trainer, data_tokens=budget.data_tokens)
    base = _base(config, means, asked)
    found = _proposals(base, budget, means, asked)
    if not found or trainer != "onecard" or base.recipe != NANOGPT or "recipe" in asked:
        return found
    fast = _under_fast_recipe(base, budget, means, asked)
    if fast and found[0].name == LOWEST:
        found[0] = replace(found[0], name=LOWEST_OF_GPT2)
    return found + fast


def _proposals(base: RunConfig, budget: Budget, means: Means, asked: Mapping[str, Any]) -> list[Proposal]:
    """The best run from a base and one of a smaller model."""
    budget = _where_law_holds(budget.in_whole_steps(base.block_size), base)
    every = _models(base)
    models = [model for model in every if count_params(model).total <= budget.most_params] or every[:1]
    if budget.tokens is not None and (budget.seconds is None or len(models) == 1):  # the time chooses nothing
        best, name, why = _for_tokens(models, budget, means)
    else:
        best, name, why = _lowest(models, budget, means), LOWEST, "lowest predicted loss for the budget"
    if best is None:
        return []
    best = _at_its_rates(best, base)
    params = count_params(best).total
    first = proposal_for(best, name, why, means, asked)
    if budget.seconds is None:
        first = replace(first, note=_larger(models, params, budget, means))
    smaller = _lowest([m for m in models if count_params(m).total <= SMALLER_SHARE * params], budget, means)
    if smaller is None:
        return [first]
    name = _name_of_smaller(smaller, best, budget)
    why = f"lowest predicted loss of models at most {SMALLER_SHARE * 100:.0f} % as large"
    return [first, proposal_for(_at_its_rates(smaller, base), name, why, means, asked)]


def _at_its_rates(run: RunConfig, base: RunConfig) -> RunConfig:
    """The run with the values that its recipe has for its shape, its batch and its length."""
    return run.replace(following(base.model_dump(), run.model_dump()))


def _under_fast_recipe(base: RunConfig, budget: Budget, means: Means, asked: Mapping[str, Any]) -> list[Proposal]:
    """The best run under the fast recipe; [] where its loss is not known, or a key that was asked for excludes it."""
    values = {key: value for key, value in recipe_values(FAST, base.model_dump()).items() if key not in asked}
    try:
        fast = base.replace({"recipe": FAST, **values})
    except ValueError:  # such as --bias=True, which its model does not have
        return []
    if why_no_forecast(_decided_by_budget(fast)):
        return []
    best = next(iter(_proposals(fast, budget, means, asked)), None)
    return [replace(best, name="the fast recipe", note=WITHOUT_NANOGPT)] if best else []


def _models(base: RunConfig) -> list[RunConfig]:
    """The shapes to choose from: those whose loss can be predicted, with the heads that their recipe gives them."""
    if is_gpt2_with_adamw(base):
        return shapes(base)
    known = (shape for shape in shapes(base) if not why_no_forecast(_with_public_length(shape)))
    return [shape.model_copy(update={"n_head": _at_its_rates(shape, base).n_head}) for shape in known]


def _with_public_length(config: RunConfig) -> RunConfig:
    """The config with as many tokens as the public runs of its recipe."""
    return config.model_copy(update={"max_iters": math.ceil(FAST_TOKENS.likely / config.tokens_per_step)})


def _where_law_holds(budget: Budget, base: RunConfig) -> Budget:
    """The budget with no more tokens than the recipe's loss is known for."""
    _, known = known_tokens(base)
    if known == math.inf:
        return budget
    most = math.floor(known / base.block_size) * base.block_size
    return replace(budget, tokens=most if budget.tokens is None else min(most, budget.tokens))


def least_budget(
    config: RunConfig,
    card: Card,
    available_bytes: int,
    budget: Budget,
    *,
    trainer: TrainerName = "nanogpt",
    asked: Mapping[str, Any] = MappingProxyType({}),
) -> Budget | None:
    """The smallest budget of the same kinds, in two digits and at least this one, for which a run can be proposed.

    None where no budget is enough because memory is short.
    """
    means = Means(card=card, available_bytes=available_bytes, trainer=trainer)
    base = _base(config, means, asked)
    sequences = recipe.sequences_per_step(base.block_size)[0]
    least_seconds, update_tokens = math.inf, sequences * base.block_size
    fewest = max(FEWEST_STEPS, math.ceil(known_tokens(base)[0] / update_tokens))
    for shape in sorted(_models(base), key=means.least_seconds_per_token):
        if means.least_seconds_per_token(shape) * fewest * update_tokens > least_seconds:
            break
        if way := means.way(shape, sequences):
            training = fewest * _step_seconds(way, means)
            whole = max(training / (1 - EVALUATION_SHARE), training + _between(way, means, LEAST_EVAL_BATCHES, 1))
            least_seconds = min(least_seconds, whole / RUN_SHARE)
    if least_seconds == math.inf:
        return None
    seconds, tokens = budget.seconds, budget.tokens
    if seconds is not None:
        seconds = max(seconds, 3600 * _rounded_up(least_seconds / 3600))
    if tokens is not None:
        tokens = max(tokens, round(_rounded_up(fewest * update_tokens)))
    return Budget(seconds=seconds, tokens=tokens)


def _rounded_up(amount: float) -> float:
    """The next number of two digits."""
    unit = 10.0 ** (math.floor(math.log10(amount)) - 1)
    return math.ceil(amount / unit * (1 + 1e-9)) * unit


def _decided_by_budget(config: RunConfig) -> RunConfig:
    """The config with usual values where a budget decides: what is wrong with the given ones does not matter."""
    shaped = _with_public_length(config.replace({"n_layer": 12, "n_head": 12, "n_embd": 768, "eval_only": False}))
    return shaped.replace({key: setting.value for key, setting in recipe.settings_of_training(shaped).items()})


def _base(config: RunConfig, means: Means, asked: Mapping[str, Any]) -> RunConfig:
    """The config that proposals start from, without what a budget decides; UsageError where no law covers it."""
    decided = _decided_by_budget(config)
    if why := why_no_forecast(decided):
        raise UsageError(
            "no run can be proposed for a budget",
            why=f"runs are chosen by their predicted loss, and there is no prediction here: {why}",
            fix="onecard plan CONFIG, without a budget, says whether this run fits and how long it takes",
            name="no-loss-law",
        )
    names = [name for name, key in KEYS.items() if "name" in key.kind and name not in asked]  # of the given run
    unsaid = ("init_from", "eval_only", "eval_iters", *names)
    made: dict[str, Any] = {key: KEYS[key].default for key in unsaid} | {"compile": True}
    # until they are settled: any usual rate, and a schedule that no budget outlasts
    made |= {"learning_rate": decided.learning_rate, "warmup_iters": 0, "max_iters": LONGEST, "lr_decay_iters": LONGEST}
    if "dropout" not in asked:
        made["dropout"] = 0.0
    if means.trainer == "nanogpt" and config.dtype == "float32":
        made["dtype"] = means.card.best_dtype()
    base = config.replace({**made, "grad_checkpoint": "none"})
    return base.replace(following(config.model_dump(), base.model_dump()))


def _for_tokens(models: Sequence[RunConfig], budget: Budget, means: Means) -> tuple[RunConfig | None, str, str]:
    """The run nearest in size to the compute-optimal one for the budget's tokens, its name, and why it was chosen."""
    worth = worth_of(_with_public_length(models[0])) if models else None
    optimal = optimal_params_for_tokens((budget.tokens or 1) * (worth.tokens.likely if worth else 1.0))
    off = {model: math.log(params_of_law(model) / optimal) for model in models}
    runs = (_run(model, budget, means) for model in sorted(models, key=lambda model: abs(off[model])))
    best = next(filter(None, runs), None)
    meant = f"{units.count(round(optimal))} parameters are compute-optimal for the tokens (arXiv 2404.10102)"
    if best is None:
        return None, "", ""
    share = params_of_law(best) / optimal
    if share > NEAR_OPTIMAL:
        return best, "smallest", f"the smallest shape there is: {meant}"
    if share < 1 / NEAR_OPTIMAL:
        bound = "there is" if best.n_embd == models[-1].n_embd else "that fits"
        return best, f"largest {bound}", f"the largest {bound}: {meant}"
    return best, "compute-optimal", meant


def _larger(models: Sequence[RunConfig], params: int, budget: Budget, means: Means) -> str:
    """A sentence on the loss and the time of a larger model with the same tokens; empty where none fits."""
    for model in sorted(models, key=lambda model: count_params(model).total):
        if count_params(model).total >= LARGER_SHARE * params and (run := _run(model, budget, means)):
            loss, speed = forecast_loss(run, means.data_tokens), predict_speed(run, means.card, means.trainer)
            if loss and speed:
                return (
                    f"a larger model reaches a lower loss with the same tokens, and takes longer: "
                    f"{units.count(count_params(run).nanogpt)} ({run.n_layer} x {run.n_embd}) reaches "
                    f"{loss.final.likely:.2f} in about {units.duration(speed.total_seconds.likely)}"
                )
    return ""


def _name_of_smaller(smaller: RunConfig, best: RunConfig, budget: Budget) -> str:
    if budget.seconds is None:
        return "smaller, past optimal"
    return "smaller, trained longer" if smaller.total_tokens > best.total_tokens else "smaller, in less time"


def _lowest(models: Sequence[RunConfig], budget: Budget, means: Means) -> RunConfig | None:
    """The run of the lowest predicted loss; None if none can be made.

    Models are tried in the order of the loss they would reach at their highest speed, until none can do better.
    """
    hoped = {model: _likely(_at_best(model, budget, means), means) for model in models}
    best: RunConfig | None = None
    for model in sorted(models, key=lambda model: (hoped[model], count_params(model).total)):
        if best and hoped[model] >= _likely(best, means):
            break
        run = _run(model, budget, means)
        if run and _likely(run, means) < (_likely(best, means) if best else math.inf):
            best = run
    return best


def _likely(run: RunConfig, means: Means) -> float:
    forecast = forecast_loss(run, means.data_tokens)
    return forecast.final.likely if forecast else math.inf


def _at_best(model: RunConfig, budget: Budget, means: Means) -> RunConfig:
    """The model with at least as many tokens as any way to run it could read within the budget."""
    tokens = float("inf") if budget.tokens is None else budget.tokens
    if budget.seconds is not None:
        tokens = min(tokens, budget.seconds / means.least_seconds_per_token(model))
    steps = math.ceil(tokens / model.block_size)
    return model.model_copy(update={"batch_size": 1, "gradient_accumulation_steps": 1, "max_iters": steps})


def _run(model: RunConfig, budget: Budget, means: Means) -> RunConfig | None:
    """The model with the micro-batch and the updates that read most tokens; None if it does not fit or is too short.

    Longer runs have larger updates: of the sizes with enough updates, the one that reads most tokens.
    """
    at_best = _at_best(model, budget, means).total_tokens
    best: RunConfig | None = None
    for number, sequences in enumerate(recipe.sequences_per_step(model.block_size)):
        fewest = recipe.ENOUGH_STEPS if number else FEWEST_STEPS
        if at_best < fewest * sequences * model.block_size:
            break
        way = means.way(model, sequences)
        steps = budget.steps(way, means) if way else 0
        if way and steps >= fewest and (best is None or steps * way.tokens_per_step >= best.total_tokens):
            best = way.model_copy(update={"max_iters": steps})
    return best and _evaluated(best, means)


def _step_seconds(config: RunConfig, means: Means) -> float:
    """Seconds of an update, with its share of the checkpoints that checkpoint_interval asks for."""
    times = means.times(config)
    saving = times.checkpoint / config.checkpoint_interval if config.checkpoint_interval else 0.0
    return times.step + saving


def _between(config: RunConfig, means: Means, eval_iters: int, evaluations: int) -> float:
    """Seconds of the evaluation before the first update, and of `evaluations` more with a checkpoint each."""
    times = means.times(config.model_copy(update={"eval_iters": eval_iters}))
    return times.evaluation + evaluations * (times.evaluation + times.checkpoint)


def _wanted_iters(config: RunConfig) -> int:
    """eval_iters that read enough tokens for a precise loss."""
    return max(LEAST_EVAL_BATCHES, math.ceil(EVALUATED_TOKENS / (config.batch_size * config.block_size)))


def _evaluated(run: RunConfig, means: Means) -> RunConfig:
    """The run with as many evaluations, of as many tokens, as fit their share of the time."""
    training = run.max_iters * _step_seconds(run, means)
    share = EVALUATION_SHARE / (1 - EVALUATION_SHARE) * training

    def evaluations(eval_iters: int) -> int:
        first, all_of_two = (_between(run, means, eval_iters, number) for number in (0, 1))
        return math.floor((share - first) / (all_of_two - first))

    eval_iters = _wanted_iters(run)
    while eval_iters > LEAST_EVAL_BATCHES and evaluations(eval_iters) < FEWER_EVALUATIONS:
        eval_iters = max(LEAST_EVAL_BATCHES, eval_iters // 2)
    number = max(1, min(MOST_EVALUATIONS, evaluations(eval_iters)))
    interval = 10 * math.ceil(run.max_iters / number / 10)
    return run.model_copy(update={"eval_iters": eval_iters, "eval_interval": interval})
