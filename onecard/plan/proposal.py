"""A proposed run: its config, the source of every setting, what to expect, and its config file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from typing import Any

from onecard import units
from onecard.config.recipes import default_of, derived_keys
from onecard.config.schema import KEYS, RunConfig
from onecard.models.evaluation import eval_tokens, smaller_eval_batch, standard_error
from onecard.models.training import MICRO_BATCHES
from onecard.plan import recipe
from onecard.plan.counts import count_params
from onecard.plan.ladder import Means
from onecard.plan.loss import LossForecast, forecast_loss
from onecard.plan.ranges import Range
from onecard.plan.recipe import Setting
from onecard.plan.speed import Speed, TrainerName, predict_speed

# the keys that a budget decides; a typed value is ignored, with a warning
DECIDED = frozenset(
    "n_layer n_head n_embd batch_size gradient_accumulation_steps learning_rate min_lr max_iters lr_decay_iters "
    "warmup_iters beta2 eval_interval eval_iters eval_only init_from grad_checkpoint compile".split()
)


@dataclass(frozen=True, kw_only=True)
class Proposal:
    """A proposed run: its config, the source of every setting, and what to expect."""

    name: str
    trainer: TrainerName  # the trainer for which speed and memory are predicted
    config: RunConfig
    settings: Mapping[str, Setting]
    process_bytes: int
    speed: Speed
    loss: LossForecast | None
    out_dir: str
    note: str = ""  # an alternative, and what it costs

    @property
    def seconds(self) -> Range:
        return self.speed.total_seconds


def proposal_for(run: RunConfig, name: str, why: str, means: Means, asked: Mapping[str, Any]) -> Proposal:
    """The proposal for a run: its recipe, and the source of every value. `why` says why it has its shape."""
    if sequences := smaller_eval_batch(run):  # nanoGPT has no such key; with it the run also fits under onecard
        run = run.model_copy(update={"eval_batch_size": sequences})
    process_bytes = means.process_bytes(run)
    settings = _settings(run, means, asked, process_bytes) | {"n_layer": Setting(value=run.n_layer, source=why)}
    run = run.replace({key: setting.value for key, setting in settings.items()})
    speed = predict_speed(run, means.card, means.trainer)
    assert speed  # the run was chosen by its speed
    return Proposal(
        name=name,
        trainer=means.trainer,
        config=run,
        settings=settings,
        process_bytes=process_bytes,
        speed=speed,
        loss=forecast_loss(run, means.data_tokens),
        out_dir=run.out_dir if "out_dir" in asked else f"out-{run.n_layer}x{run.n_embd}",
    )


def _settings(run: RunConfig, means: Means, asked: Mapping[str, Any], process_bytes: int) -> dict[str, Setting]:
    """Every value of the run and where it comes from."""

    def kept(key: str, source: str = "the config's") -> Setting:
        value = getattr(run, key)
        return Setting(value=value, source="as asked" if asked.get(key) == value else source)

    params, steps = count_params(run).total, run.max_iters
    training = recipe.settings_of_training(run)
    of_recipe = {key: kept(key, setting.source) for key, setting in training.items() if key not in DECIDED}
    recomputation = {}
    if run.grad_checkpoint != "none":
        why = "makes room for the fastest micro-batch; nanoGPT ignores this key"
        recomputation["grad_checkpoint"] = Setting(value=run.grad_checkpoint, source=why)
    told = {key: kept(key) for key in ("vocab_size", "bias")}
    however = "" if run.gradient_accumulation_steps >= MICRO_BATCHES else " with any number per update"
    fits = f"fastest that fits{however}, within 1 %: {units.mib(process_bytes)} predicted"
    per_step = recipe.tokens_per_step_source(run.block_size, run.sequences_per_step, steps)
    made: dict[str, Setting] = {
        "n_layer": kept("n_layer"),
        "n_head": Setting(value=run.n_head, source=f"heads of {run.head_size}"),
        "n_embd": Setting(value=run.n_embd, source=f"{params:,} parameters"),
        "block_size": kept("block_size", "GPT-2's, or the config's"),
        **{key: setting for key, setting in told.items() if not _is_default(run, key)},
        "batch_size": Setting(value=run.batch_size, source=fits),
        "gradient_accumulation_steps": Setting(value=run.gradient_accumulation_steps, source=per_step),
        **recomputation,
        "dropout": kept("dropout", "not needed when pretraining for under four epochs (arXiv 2305.16264)"),
        "learning_rate": training["learning_rate"],
        "min_lr": training["min_lr"],
        "max_iters": Setting(value=steps, source="as many as the budget allows"),
        "lr_decay_iters": training["lr_decay_iters"],
        "warmup_iters": training["warmup_iters"],
        "eval_interval": Setting(value=run.eval_interval, source=_interval_source(run, means)),
        "beta2": training["beta2"],
        "dtype": kept("dtype", "the fastest on this card"),
        "compile": Setting(value=True, source="faster, and needs less memory"),
        "eval_iters": Setting(value=run.eval_iters, source=_iters_source(run, means)),
    }
    made |= {"recipe": kept("recipe", f"nanoGPT has no {run.model}"), **of_recipe} if of_recipe else {}
    rest = [key for key in KEYS if key not in made.keys() | {"dataset", "out_dir"}]
    sources = {"eval_batch_size": "the config's, or less if that does not fit"}
    return made | {
        key: _marked(key, kept(key, sources.get(key, "the config's")), run) for key in rest if not _is_default(run, key)
    }


def _interval_source(run: RunConfig, means: Means) -> str:
    times, number = means.times(run), round(run.max_iters / run.eval_interval)
    between = times.evaluations * times.evaluation + times.checkpoints * times.checkpoint
    share = between / (between + run.max_iters * times.step)
    return f"about {units.things(number, 'evaluation')}; with checkpoints they take {100 * share:.1f} % of the time"


def _iters_source(run: RunConfig, means: Means) -> str:
    ours = means.trainer == "onecard"
    tokens = eval_tokens(run) if ours else run.eval_iters * run.batch_size * run.block_size
    return f"{units.count(tokens)} tokens of each split: a standard error of about {standard_error(tokens):.1g}"


def _marked(key: str, setting: Setting, run: RunConfig) -> Setting:
    """The setting; if only onecard has the key, its source says that nanoGPT ignores it, where it can train the run."""
    ours = "" if KEYS[key].nanogpt or run.model != "gpt2" else "; nanoGPT ignores this key"
    return replace(setting, source=setting.source + ours)


def _is_default(run: RunConfig, key: str) -> bool:
    return bool(getattr(run, key) == default_of(key, run.model_dump()))


def config_text(proposal: Proposal) -> str:
    """The text of a config file, each key with its reason. nanoGPT can run a GPT-2's too: it ignores our own keys.

    What the recipe derives from other keys is left out: with another width or length it is derived anew.
    """
    unit, seconds = ("hours", 3600) if proposal.seconds.likely >= 3600 else ("minutes", 60)
    low, likely, high = (f"{each / seconds:,.1f}" for each in astuple(proposal.seconds))
    lines = [
        f"# Proposed by onecard: {proposal.name}, {units.count(count_params(proposal.config).nanogpt)} parameters,",
        f"# {units.count(proposal.config.total_tokens)} tokens, about {likely} {unit} ({low} to {high}).",
        f"dataset = {proposal.config.dataset!r}",
        f"out_dir = {proposal.out_dir!r}",
    ]
    run = proposal.config
    derived = [key for key in derived_keys(run.recipe) if _is_default(run, key)]
    for key, setting in proposal.settings.items():
        if key in derived:
            continue
        if key == "recipe" and derived:
            setting = replace(setting, source=f"{setting.source}; it derives {units.listed(derived)}")
        lines.append(f"{key} = {setting.value!r}".ljust(40) + f" # {setting.source}")
    return "\n".join(lines) + "\n"
