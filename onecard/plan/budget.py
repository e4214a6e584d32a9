"""What to train with the time and tokens one has: shape, length and settings for the lowest predicted loss."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import astuple, dataclass
from types import MappingProxyType
from typing import Any

from onecard import units
from onecard.config.schema import NANOGPT_KEYS, RunConfig
from onecard.errors import UsageError
from onecard.plan import recipe
from onecard.plan.cards import Card
from onecard.plan.counts import count_params
from onecard.plan.fit import Fit, fit_config, fit_onecard
from onecard.plan.loss import LossForecast, forecast_loss, why_no_forecast
from onecard.plan.ranges import Range
from onecard.plan.recipe import Setting
from onecard.plan.shape import HEAD_SIZE
from onecard.plan.speed import Speed, TrainerName, predict_speed

TRAINING_SHARE = 0.97  # of the hours; the rest goes to starting and compiling
EVALUATIONS = 40  # over the run
FEWEST_STEPS = 100  # a run that anything can be said of
SKETCH_ERROR = 0.005  # nats: what a tenth more speed is worth
MOST_HOURS = 100_000  # eleven years
MOST_TOKENS = 10**15  # more text than there is
# what a budget decides: whoever types one of these beside it is told that it is ignored
DECIDED = frozenset(
    "n_layer n_head n_embd batch_size gradient_accumulation_steps learning_rate min_lr max_iters lr_decay_iters "
    "warmup_iters beta2 eval_interval eval_iters eval_only grad_checkpoint compile".split()
)
_NAMES = ("wandb_project", "wandb_run_name")  # in a file, those of the run it is, and not of the one proposed instead
SMALLER_SHARE = 0.55  # "the smaller model trained longer" has at most this share of the parameters


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A run to make: its config, every setting's source, and what to expect."""

    name: str
    trainer: TrainerName  # whose speed and memory they are
    config: RunConfig
    settings: Mapping[str, Setting]
    process_bytes: int
    speed: Speed
    loss: LossForecast | None
    out_dir: str

    @property
    def seconds(self) -> Range:
        return self.speed.total_seconds


@dataclass(frozen=True, kw_only=True)
class _Sketch:
    """A shape with the length it would run for: speed only, memory not yet looked at."""

    config: RunConfig
    loss: float


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What there is to spend; None is no bound, and one bound there must be."""

    seconds: float | None = None
    tokens: int | None = None

    def steps(self, config: RunConfig, speed: Speed | None) -> int:
        """Updates the budget pays for, evaluations and checkpoints included."""
        bounds = []
        if self.tokens is not None:
            bounds.append(self.tokens // config.tokens_per_step)
        if self.seconds is not None and speed is not None and config.max_iters:
            each = speed.total_seconds.likely / config.max_iters
            bounds.append(int(self.seconds * TRAINING_SHARE / each))
        return min(bounds, default=0)


def budget_of(*, hours: float | None, tokens: int | None) -> Budget | None:
    """The budget somebody typed; None where nothing was, UsageError where it is no amount to spend."""
    for option, amount, most, example in (("--hours", hours, MOST_HOURS, 48), ("--tokens", tokens, MOST_TOKENS, "10B")):
        if amount is not None and not 0 < amount <= most:  # which nan is not, either
            raise UsageError(
                f"{option} {amount:g} is no budget",
                why=f"{option} takes more than 0 and at most {units.count(most)}",
                fix=f"{option} {example}",
                name="bad-budget",
            )
    if hours is None and tokens is None:
        return None
    return Budget(seconds=None if hours is None else hours * 3600, tokens=tokens)


@dataclass(frozen=True, kw_only=True)
class _Means:
    """What a run is made with."""

    card: Card
    available_bytes: int
    budget: Budget
    trainer: TrainerName
    asked: Mapping[str, Any]  # keys that somebody typed, with their values

    def speed(self, config: RunConfig) -> Speed | None:
        return predict_speed(config, self.card, self.trainer)

    def steps(self, config: RunConfig) -> int:
        """Updates the budget pays for."""
        return self.budget.steps(config, self.speed(config))

    def fit(self, config: RunConfig) -> Fit:
        """The fastest way that fits as a config file says it: nothing that only the environment could ask for."""
        if self.trainer == "onecard":
            return fit_onecard(config, self.card, self.available_bytes)
        return fit_config(config, self.card, self.available_bytes, expandable_segments=False)


def propose(
    config: RunConfig,
    card: Card,
    available_bytes: int,
    budget: Budget,
    *,
    trainer: TrainerName = "nanogpt",
    asked: Mapping[str, Any] = MappingProxyType({}),
) -> list[Proposal]:
    """The run of the lowest predicted loss within the budget, beside it a smaller one trained longer; [] if none.

    Under nanoGPT by default: what fits and is paid for there, onecard runs too. Keys that were `asked` for stay as they
    are in the config, but for those that the budget decides. UsageError where no law foretells a loss to choose by.
    """
    if why := why_no_forecast(config.replace({"max_iters": 1})):
        raise UsageError(
            "no run can be proposed for a budget",
            why=f"runs are chosen by their predicted loss, and none is predicted here: {why}",
            fix="onecard plan CONFIG, without a budget, says whether this run fits and how long it takes",
            name="no-loss-law",
        )
    unsaid = ("init_from", "eval_only", *(key for key in _NAMES if key not in asked))
    config = config.replace({key: RunConfig.model_fields[key].default for key in unsaid})
    means = _Means(card=card, available_bytes=available_bytes, budget=budget, trainer=trainer, asked=asked)
    sketches = sorted(_sketches(config, means), key=lambda sketch: sketch.loss)
    best = _best_that_fits("lowest loss", "lowest predicted loss for the budget", sketches, means)
    if best is None:
        return []
    limit = SMALLER_SHARE * count_params(best.config).total
    smaller = [sketch for sketch in sketches if count_params(sketch.config).total <= limit]
    why = f"lowest predicted loss of models at most {SMALLER_SHARE:.0%} as large".replace("%", " %")
    second = _best_that_fits("smaller, trained longer", why, smaller, means)
    return [best, second] if second else [best]


def _sketches(config: RunConfig, means: _Means) -> Iterator[_Sketch]:
    """Every sensible shape, run as long as the budget allows at a usual micro-batch."""
    for n_layer in (4, 6, 8, 10, 12, 16, 20, 24, 30, 36):
        for n_head in range(2, 26, 2):  # widths of a multiple of 128 suit the card
            width = n_head * HEAD_SIZE
            if not 40 <= width / n_layer <= 86:  # GPT-2's family lies between 33 and 64; wider is faster
                continue
            shape = {"n_layer": n_layer, "n_head": n_head, "n_embd": width}
            batch = {"batch_size": 8, "gradient_accumulation_steps": 8, "max_iters": 1000}
            usual = {"compile": True} | ({} if "dropout" in means.asked else {"dropout": 0.0})
            base = config.replace(usual | shape | batch)
            steps = means.steps(base)
            forecast = forecast_loss(base.model_copy(update={"max_iters": steps}))
            if steps >= FEWEST_STEPS and forecast:
                yield _Sketch(config=base.model_copy(update={"max_iters": steps}), loss=forecast.final.likely)


def _best_that_fits(name: str, why: str, sketches: list[_Sketch], means: _Means) -> Proposal | None:
    """The settled run of the lowest loss, of sketches by their loss; None if none can be settled.

    A sketch that promises less than what was settled before is passed over. So are those about as large as one that
    did not fit, or only in micro-batches so small that it fell short of its promise: they would too.
    """
    best: Proposal | None = None
    too_large = math.inf  # parameters
    for sketch in sketches:
        params = count_params(sketch.config).total
        if params >= too_large or (best and sketch.loss > _likely(best) + SKETCH_ERROR):
            continue
        proposal = _settle(name, why, sketch.config, means)
        if proposal is None:
            too_large = 0.8 * params
            continue
        if _likely(proposal) > sketch.loss + SKETCH_ERROR:
            too_large = 0.9 * params
        if best is None or _likely(proposal) < _likely(best):
            best = proposal
    return best


def _likely(proposal: Proposal) -> float:
    return proposal.loss.final.likely if proposal.loss else math.inf


def _settle(name: str, why: str, config: RunConfig, means: _Means) -> Proposal | None:
    """The run with its micro-batch, length and recipe; None if no micro-batch fits safely. `why` it has its shape."""
    step = recipe.tokens_per_step(config.total_tokens)
    sequences = max(1, step.value // config.block_size)
    fit = means.fit(config.replace({"batch_size": sequences, "gradient_accumulation_steps": 1}))
    if fit.best is None or not fit.best.safe:
        return None
    run = fit.best.config
    steps = means.steps(run)
    settings: dict[str, Setting] = {}
    for _ in range(2):  # the second time with the evaluations of the first paid for
        settings = _settings(run, steps, step, fit.best.process_bytes, means)
        settings["n_layer"] = Setting(value=run.n_layer, source=why)
        run = run.replace({key: setting.value for key, setting in settings.items()})
        steps = means.steps(run)
    while steps < run.max_iters:  # evaluations as often as now take more than was thought
        if steps < FEWEST_STEPS:
            return None
        settings |= _length(steps, run.eval_interval)
        run = run.replace({key: setting.value for key, setting in settings.items()})
        steps = means.steps(run)
    speed = means.speed(run)
    assert speed  # the sketches had one
    return Proposal(
        name=name,
        trainer=means.trainer,
        config=run,
        settings=settings,
        process_bytes=fit.best.process_bytes,
        speed=speed,
        loss=forecast_loss(run),
        out_dir=run.out_dir if "out_dir" in means.asked else f"out-{run.n_layer}x{run.n_embd}",
    )


def _settings(run: RunConfig, steps: int, step: Setting, process_bytes: int, means: _Means) -> dict[str, Setting]:
    """Every value of the run and where it comes from."""

    def kept(key: str, source: str = "the config's") -> Setting:
        value = getattr(run, key)
        return Setting(value=value, source="as asked" if means.asked.get(key) == value else source)

    params = count_params(run).total
    rate = recipe.learning_rate(params)
    interval = max(10, round(steps / EVALUATIONS / 10) * 10)
    recomputation = {}
    if run.grad_checkpoint != "none":
        why = "makes room for the fastest micro-batch; a key of onecard's"
        recomputation["grad_checkpoint"] = Setting(value=run.grad_checkpoint, source=why)
    told = {key: kept(key) for key in ("vocab_size", "bias")}
    made: dict[str, Setting] = {
        "n_layer": kept("n_layer"),
        "n_head": Setting(value=run.n_head, source=f"heads of {HEAD_SIZE}"),
        "n_embd": Setting(value=run.n_embd, source=f"{params:,} parameters"),
        "block_size": kept("block_size", "GPT-2's, or the config's"),
        **{key: setting for key, setting in told.items() if not _is_default(run, key)},
        "batch_size": Setting(value=run.batch_size, source=f"fastest that fits: {units.mib(process_bytes)} predicted"),
        "gradient_accumulation_steps": Setting(value=run.gradient_accumulation_steps, source=step.source),
        **recomputation,
        "dropout": kept("dropout", "pretraining under four epochs needs none (arXiv 2305.16264)"),
        "learning_rate": rate,
        "min_lr": Setting(value=float(f"{rate.value / 10:.2g}"), source="a tenth of the highest (Chinchilla)"),
        **_length(steps, interval),
        "beta2": recipe.beta2(run.tokens_per_step),
        "dtype": kept("dtype", "what this card computes fastest"),
        "compile": Setting(value=True, source="faster and smaller"),
        "eval_iters": Setting(value=100, source="a standard error of about 0.02"),
    }
    known = RunConfig.model_fields.keys() if means.trainer == "onecard" else NANOGPT_KEYS
    rest = [key for key in RunConfig.model_fields if key in known - made.keys() - {"dataset", "out_dir"}]
    return made | {key: kept(key) for key in rest if not _is_default(run, key)}


def _is_default(run: RunConfig, key: str) -> bool:
    return bool(getattr(run, key) == RunConfig.model_fields[key].default)


def _length(steps: int, eval_interval: int) -> dict[str, Setting]:
    return {
        "max_iters": Setting(value=steps, source="what the budget pays for"),
        "lr_decay_iters": Setting(value=steps, source="equal to max_iters (Chinchilla, appendix B)"),
        "warmup_iters": recipe.warmup(steps),
        "eval_interval": Setting(value=eval_interval, source=f"about {round(steps / eval_interval)} evaluations"),
    }


def config_text(proposal: Proposal) -> str:
    """A nanoGPT config file, each key with its reason; keys of onecard's only where its trainer was asked for."""
    low, likely, high = (units.duration(seconds) for seconds in astuple(proposal.seconds))
    lines = [
        f"# Proposed by onecard: {proposal.name}, {units.count(count_params(proposal.config).nanogpt)} parameters,",
        f"# {units.count(proposal.config.total_tokens)} tokens, about {likely} ({low} to {high}).",
        f"dataset = {proposal.config.dataset!r}",
        f"out_dir = {proposal.out_dir!r}",
    ]
    for key, setting in proposal.settings.items():
        lines.append(f"{key} = {setting.value!r}".ljust(40) + f" # {setting.source}")
    return "\n".join(lines) + "\n"
