"""What must hold for a scaling law to describe a run: a usual learning rate, warm-up, weight decay and dropout,
and data that are new.

The findings are the doctor's, too: it looks at the same settings after the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose, sqrt

from onecard import units
from onecard.config.command import flags_of
from onecard.config.recipes import FAST, recipe_values
from onecard.config.resolve import Resolved
from onecard.config.schema import RunConfig
from onecard.config.shown import shown
from onecard.findings import Finding
from onecard.plan import recipe
from onecard.plan.counts import count_params
from onecard.plan.data import EPOCHS_BEYOND, FAR_TOO_MANY_EPOCHS

FACTOR = 4  # above and below the table of learning rates
FAR = 16  # times: no run of the law's was so far from it
HIGHEST_RATE = 0.1  # of AdamW for a whole model
HIGHEST_RATE_BESIDE_MUON = 1.0  # of AdamW for embeddings and norms alone: published recipes have up to 0.7
USUAL_MUON_RATE = 0.02  # Muon's own first recipe, and nanochat's
MUON_FACTOR = 10  # above and below it
LONGEST_WARMUP = 0.1  # of the run
HIGHEST_WEIGHT_DECAY = 1.0  # ten times the usual 0.1
USUAL_WEIGHT_DECAY = 0.1  # GPT-3, appendix B; nanoGPT's default
HIGHEST_DROPOUT = 0.5  # more than half of the activations: no published GPT was trained so
HIGH_DROPOUT = 0.3
WITHOUT_WARMUP = 0.2  # nats, added above: twice what the one public pair of runs differs by, 124M on FineWeb-Edu
ENOUGH_FOR_MANY_PASSES = 20  # tokens in the data, per parameter: with fewer, many passes overfit (arXiv 2305.16264)
SCHEDULE_SAID = ("max_iters", "lr_decay_iters", "decay_lr", "min_lr", "learning_rate")


def stated(resolved: Resolved, *keys: str) -> tuple[str, ...]:
    """`batch_size = 16 (train.py:12)` for each key."""
    config, origins = resolved.config, resolved.origins
    return tuple(
        f"{key} = {_as_written(key, getattr(config, key))} "
        f"({'the default' if origins[key] == 'default' else origins[key]})"
        for key in keys
    )


def _as_written(key: str, value: object) -> str:
    return repr(value) if isinstance(value, str) else shown(key, value)


def condition_findings(resolved: Resolved) -> Iterator[Finding]:
    """Settings of a run that has not started and that no scaling law covers; fine-tuning has other rules, but it learns
    nothing at a rate of zero either."""
    config = resolved.config
    if over := schedule_over(config, seen=stated(resolved, *SCHEDULE_SAID)):
        yield over
    if config.starts_pretrained or not config.max_iters:
        return
    found = (
        lr_out_of_range(
            config, count_params(config).total, config.tokens_per_step, seen=stated(resolved, rate_key(config))
        ),
        warmup_length(config, seen=stated(resolved, "warmup_iters", "max_iters")),
        weight_decay_out_of_range(config, seen=stated(resolved, "weight_decay")),
        high_dropout(config, seen=stated(resolved, "dropout")),
    )
    yield from (finding for finding in found if finding and finding.severity != "info")


def why_outside(config: RunConfig, data_tokens: int | None = None) -> str:
    """Which setting is so unusual that no scaling law covers the run; empty where none is."""
    passes, per_parameter = _passes(config, data_tokens), (data_tokens or 0) / count_params(config).total
    if passes > FAR_TOO_MANY_EPOCHS + EPOCHS_BEYOND and per_parameter < ENOUGH_FOR_MANY_PASSES:
        return f"no scaling law covers {_times(passes)} passes over {per_parameter:.2g} tokens per parameter"
    rate = _rate_over_usual(config)
    if not config.learning_rate:
        return "learning_rate=0: nothing is learned"
    highest = HIGHEST_RATE_BESIDE_MUON if config.optimizer == "muon" else HIGHEST_RATE
    if config.learning_rate > highest or (rate is not None and not 1 / FAR <= rate <= FAR):
        return f"learning_rate={config.learning_rate:g} is far from what scaling laws were fitted on" + (
            f" ({_times(rate)} times the usual)" if rate is not None else ""
        )
    if config.optimizer == "muon" and _muon_rate_is_odd(config):
        return f"muon_learning_rate={config.muon_learning_rate:g} is far from the usual {USUAL_MUON_RATE:g}"
    if config.model == "nanochat" and (key := _far_from_recipe(config)):
        return f"{key}={shown(key, getattr(config, key))} is far from recipe=fast, whose loss is known"
    if config.decay_lr and config.warmup_iters >= config.max_iters:
        return (
            f"the warm-up of {config.warmup_iters:,} updates is not over when the run ends after {config.max_iters:,}"
        )
    if config.weight_decay > HIGHEST_WEIGHT_DECAY:
        return f"weight_decay={config.weight_decay:g} is far from what scaling laws were fitted on"
    if config.dropout > HIGHEST_DROPOUT:
        return f"scaling laws do not cover dropout={config.dropout:g}"
    return ""


def caution(config: RunConfig, data_tokens: int | None = None) -> str:
    """Which setting is unusual enough that the loss may be higher than the law says; empty where none is."""
    if (passes := _passes(config, data_tokens)) > 1 + EPOCHS_BEYOND:
        return f"outside the scaling law: data read {passes:.3g} times"
    rate = _rate_over_usual(config)
    if rate is not None and not 1 / FACTOR <= rate <= FACTOR:
        return f"learning_rate={config.learning_rate:g} is {rate:.2g} times the usual: expect a higher loss"
    if config.decay_lr and config.warmup_iters > config.max_iters / 2:
        return f"{config.warmup_iters:,} of {config.max_iters:,} updates are warm-up: expect a higher loss"
    if config.dropout > HIGH_DROPOUT:
        return f"scaling laws do not cover dropout={config.dropout:g}: expect a higher loss"
    if raised_by(config):
        return "outside the scaling law, and maybe higher: there is no warm-up"
    return ""


def raised_by(config: RunConfig) -> float:
    """Nats by which the loss may end higher because there is no warm-up. Muon's public recipes have none."""
    without = config.optimizer == "adamw" and not (config.decay_lr and config.warmup_iters)
    return WITHOUT_WARMUP if without else 0.0


def _passes(config: RunConfig, data_tokens: int | None) -> float:
    """How often the run reads its data; 0 where nobody knows."""
    return config.learned_tokens / data_tokens if data_tokens else 0.0


def _rate_over_usual(config: RunConfig) -> float | None:
    """The learning rate over GPT-3's for the size; between that of 125M and the run's own below. None where the
    optimizer has another scale."""
    if config.optimizer != "adamw":
        return None
    low, high = usual_rates(count_params(config).total, config.tokens_per_step)
    rate = config.learning_rate
    return rate / high if rate > high else rate / low if rate < low else 1.0


def usual_rates(params: int, tokens_per_step: int | None) -> tuple[float, float]:
    """The lowest and the highest usual learning rate of AdamW: below 125M the table does not rise, but runs do."""
    grown = sqrt(max(1.0, (tokens_per_step or 0) / recipe.USUAL_TOKENS_PER_STEP))
    usual = recipe.usual_learning_rate(params) * grown
    return min(usual, recipe.GPT3_LEARNING_RATES[0][1] * grown), usual


def lr_out_of_range(
    config: RunConfig, params: int, tokens_per_step: int | None, *, seen: tuple[str, ...]
) -> Finding | None:
    """The finding about a learning rate far above or below the usual; None for others."""
    if config.optimizer == "muon":
        return _muon_rate_out_of_range(config, seen)
    if not config.learning_rate:
        return None
    rate, (low, usual) = config.learning_rate, usual_rates(params, tokens_per_step)
    if not _above(rate, FACTOR * usual) and not _above(low / FACTOR, rate):
        return None
    advised = float(f"{usual:.2g}")
    patch = {"learning_rate": advised, "min_lr": recipe.min_lr(advised).value}
    return Finding(
        rule="lr-out-of-range",
        severity="warn",
        sure="medium",
        what=f"learning_rate={rate:g} for {units.count(params)} parameters; {advised:g} is usual",
        why=f"{_times(rate / usual)} times GPT-3's for this size: "
        + ("such a rate wastes tokens" if rate < usual else "such a rate risks spikes and divergence"),
        fix=flags_of(patch),
        seen=seen,
        patch=patch,
    )


def rate_key(config: RunConfig) -> str:
    """The key of the learning rate that most of the model follows."""
    return "muon_learning_rate" if config.optimizer == "muon" else "learning_rate"


def _far_from_recipe(config: RunConfig) -> str:
    """The key of a rate of AdamW's part that is far from the recipe's; empty where none is."""
    of_recipe = recipe_values(FAST, config.model_dump())
    for key in ("learning_rate", "head_learning_rate"):
        usual = of_recipe[key]
        assert isinstance(usual, float)
        rate = config.learning_rate if getattr(config, key) is None else getattr(config, key)
        if not usual / FAR <= rate <= usual * FAR:
            return key
    return ""


def _muon_rate_is_odd(config: RunConfig) -> bool:
    over = config.muon_learning_rate / USUAL_MUON_RATE
    return _above(over, MUON_FACTOR) or _above(1 / MUON_FACTOR, over)


def _muon_rate_out_of_range(config: RunConfig, seen: tuple[str, ...]) -> Finding | None:
    if not _muon_rate_is_odd(config):
        return None
    rate, patch = config.muon_learning_rate, {"muon_learning_rate": USUAL_MUON_RATE}
    low = "the matrices of blocks hardly learn" if rate < USUAL_MUON_RATE else "such a rate risks divergence"
    return Finding(
        rule="lr-out-of-range",
        severity="warn",
        sure="medium",
        what=f"muon_learning_rate={rate:g}; {USUAL_MUON_RATE:g} is usual for models of any size",
        why=f"every update of a matrix has singular values of about this size; {low}",
        fix=flags_of(patch),
        seen=seen,
        patch=patch,
    )


def schedule_over(config: RunConfig, *, seen: tuple[str, ...]) -> Finding | None:
    """The finding about a schedule that ends at a rate of zero before the run does; None for others."""
    learning, planned = config.learning_steps, config.max_iters
    if learning == planned:
        return None
    patch = {"lr_decay_iters": planned}
    return Finding(
        rule="decay-horizon",
        severity="warn",
        sure="high",
        what=f"the learning rate is zero from update {learning:,} on: the last {planned - learning:,} of {planned:,} "
        "updates learn nothing",
        why=f"min_lr=0, and the schedule ends at lr_decay_iters={config.lr_decay_iters:,}",
        fix=flags_of(patch),
        seen=seen,
        patch=patch,
    )


def warmup_length(config: RunConfig, *, seen: tuple[str, ...]) -> Finding | None:
    """The finding about a warm-up above a tenth of the run or below 100 updates; a warning if it is not over when the
    run ends. None for others."""
    if not config.decay_lr or not config.max_iters:
        return None
    if config.optimizer == "muon" and not config.warmup_iters:
        return None  # its updates have one size from the first on: published recipes have none
    share = config.warmup_iters / config.max_iters
    if config.warmup_iters >= 100 and share <= LONGEST_WARMUP:
        return None
    advised = recipe.warmup(config.max_iters).value
    as_it_is = share <= LONGEST_WARMUP and config.max_iters < recipe.SHORT_STEPS
    patch = {} if as_it_is else {"warmup_iters": advised}
    unfinished = config.warmup_iters >= config.max_iters
    return Finding(
        rule="warmup-length",
        severity="warn" if unfinished else "info",
        sure="high" if unfinished else "medium",
        what=f"{config.warmup_iters:,} updates of warm-up in a run of {config.max_iters:,}"
        + ("" if unfinished else f" ({share:.1%})"),
        why="the run ends before the learning rate has reached its full value"
        if unfinished
        else "1 to 5 % is usual, and at least 100 updates",
        fix="nothing to do in so short a run: 100 updates would be more than a tenth of it"
        if as_it_is
        else flags_of(patch),
        seen=seen,
        patch=patch,
    )


def weight_decay_out_of_range(config: RunConfig, *, seen: tuple[str, ...]) -> Finding | None:
    """The finding about a weight decay above 1; None for others."""
    if config.weight_decay <= HIGHEST_WEIGHT_DECAY:
        return None
    patch = {"weight_decay": USUAL_WEIGHT_DECAY}
    taken = min(1.0, config.weight_decay * getattr(config, rate_key(config)))
    return Finding(
        rule="weight-decay-out-of-range",
        severity="warn",
        sure="medium",
        what=f"weight_decay={config.weight_decay:g}; {USUAL_WEIGHT_DECAY:g} is usual",
        why=f"each update takes {taken:.2g} of every weight away: the weights go to zero faster than they learn",
        fix=flags_of(patch),
        seen=seen,
        patch=patch,
    )


def high_dropout(config: RunConfig, *, seen: tuple[str, ...]) -> Finding | None:
    """The finding about dropout above one half, however often the data is read; None for others."""
    if config.dropout <= HIGHEST_DROPOUT:
        return None
    patch = {"dropout": 0.0}
    return Finding(
        rule="needless-dropout",
        severity="warn",
        sure="high",
        what=f"dropout={config.dropout:g} removes more than half of the activations",
        why="usual: 0.1 to 0.2 for data that is read several times, 0.0 for data that is read once (arXiv 2305.16264)",
        fix=flags_of(patch),
        seen=seen,
        patch=patch,
    )


def _times(ratio: float) -> str:
    """`1,700` or `0.083`."""
    return f"{float(f'{ratio:.2g}'):,.0f}" if ratio >= 100 else f"{ratio:.2g}"


def _above(value: float, limit: float) -> bool:
    """Whether a value exceeds a limit by more than the rounding of decimals."""
    return value > limit and not isclose(value, limit, rel_tol=1e-9)
