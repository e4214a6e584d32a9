"""How good a run will be: validation loss as a range, from a scaling law and what real runs reached.

L(N, D) = E + A/N^alpha + B/D^beta, the Chinchilla law as refitted by Besiroglu et al. (arXiv 2404.10102), N all
parameters and D tokens read, plus an offset per dataset from published GPT-2-sized runs. It is a law of compute-
optimal runs with a finished schedule; far from them the range widens. Under another recipe than AdamW for GPT-2's shape
a token is worth several of D, near the public runs that say how many; read again, it is worth less (token_worth.py).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import partial

from onecard.config.schema import RunConfig
from onecard.plan.conditions import caution, raised_by, why_outside
from onecard.plan.counts import count_params
from onecard.plan.ranges import Range
from onecard.plan.token_worth import (
    AS_GPT2,
    Worth,
    is_gpt2_with_adamw,
    read_again,
    shape_params,
    why_unknown_worth,
    worth_of,
)

E, A, B, ALPHA, BETA = 1.8172, 482.01, 2085.43, 0.3478, 0.3658
LAW_SOURCE = "the Chinchilla law, refitted (arXiv 2404.10102)"

SMALLEST_VOCABULARY = 8192  # below this, no scaling law was fitted
FEWEST_BYTE_PAIRS = 512  # below, tokens are characters or bytes
BYTES = 256
LETTERS = {"char", "chars", "character", "characters", "byte", "bytes"}  # words in the name of such data
GPT2_SIZES = range(50257, 51201)  # GPT-2's own, and rounded up to a multiple of anything up to 1,024
OTHER_TOKENIZER_SPREAD = 0.6  # nats: a token of 8,192 byte pairs is about four fifths as long as GPT-2's, and as costly
# Token frequencies alone give 7.4 to 7.7 nats for GPT-2's tokenizer on English web text (0.69 ln V) and about 3.3 for
# single letters (0.8 ln V); pairs of letters give 0.59 ln V.
FREQUENCIES_ONLY = 0.65  # of ln V: above, a model does not use the context
GPT2_GUESSING = math.log(50257)
COMPUTE_OPTIMAL = 20  # tokens per parameter, Hoffmann et al. 2022
SHORTEST_CONTEXT = 256  # the law was fitted on runs of 1,024 tokens and more; below this it does not hold
SETTLED_STEPS = 1500  # before, and during twice the warm-up, real runs lie up to 1.2 above the law
MID_RUN_SPREAD = 0.05  # added half-width in mid-run, at the full learning rate (three real runs)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """How far a dataset's validation loss is from the law, in nats per GPT-2 token."""

    offset: float
    spread: float
    source: str


DATASETS = {
    "fineweb-edu": Dataset(offset=0.05, spread=0.11, source="six runs of 30M to 254M on 10B tokens"),
    "fineweb": Dataset(offset=0.21, spread=0.11, source="five runs of 40M to 350M on 5B to 31B tokens"),
    "openwebtext": Dataset(offset=0.09, spread=0.10, source="four runs of 54M to 124M on 4.6B to 295B tokens"),
}
UNKNOWN = Dataset(offset=0.1, spread=0.4, source="no published run: a wide guess")
_ALIASES = {"owt": "openwebtext", "edu": "fineweb-edu", "fineweb_edu": "fineweb-edu", "finewebedu": "fineweb-edu"}


@dataclass(frozen=True, kw_only=True)
class LossForecast:
    """What a run will reach, in nats per token."""

    final: Range
    double_tokens: Range  # how much lower with twice the tokens
    double_params: Range  # how much lower with twice the parameters
    milestones: dict[int, Range]  # by step
    dataset: str  # what the offset is of
    sources: tuple[str, ...]
    caution: str = ""  # where the law hardly applies

    @property
    def perplexity(self) -> Range:
        return self.final.mapped(math.exp)


def law(params: float, tokens: float) -> float:
    """Loss in nats of a compute-optimal run."""
    return float(E + A / params**ALPHA + B / tokens**BETA)


def forecast_loss(config: RunConfig, data_tokens: int | None = None) -> LossForecast | None:
    """The loss of a run; None where no law covers it; why_no_forecast says why. `data_tokens` are in its training data,
    None where nobody knows."""
    tokens, params, worth = config.learned_tokens, params_of_law(config), worth_of(config)
    if why_no_forecast(config, data_tokens) or worth is None:
        return None
    name, dataset = dataset_of(config.dataset)
    reached = partial(_reached, config, data_tokens=data_tokens)
    final = reached(params, tokens)
    return LossForecast(
        final=final,
        double_tokens=_plus_minus_half(final.likely - reached(params, 2 * tokens).likely),
        double_params=_plus_minus_half(final.likely - reached(2 * params, tokens).likely),
        milestones={step: at for step in _milestones(config) if (at := loss_at(config, step, data_tokens)) is not None},
        dataset=name,
        sources=tuple(filter(None, (LAW_SOURCE, f"{name}: {dataset.source}", worth.source))),
        caution=_caution(config, final, data_tokens),
    )


def why_no_forecast(config: RunConfig, data_tokens: int | None = None) -> str:
    """Why there is no forecast of a run; empty where there is one."""
    if config.eval_only or not config.total_tokens:
        return "no update is made"
    if not config.learned_tokens:
        return "the learning rate is zero in every update: nothing is learned"
    if config.starts_pretrained:
        return f"scaling laws cover runs from scratch; this one starts from init_from={config.init_from}"
    if why := why_data_outside(config.vocab_size, config.dataset):
        return why
    if not is_gpt2_with_adamw(config):
        if config.vocab_size not in GPT2_SIZES:
            return f"the public runs of this recipe have GPT-2's vocabulary, not one of {config.vocab_size:,}"
        if dataset_of(config.dataset)[1] is UNKNOWN:
            return f"no public run of this recipe is on data like dataset={config.dataset}"
    return why_unknown_worth(config) or why_outside(config, data_tokens)


def why_data_outside(vocab_size: int, dataset: str = "") -> str:
    """Why the law does not cover data of a vocabulary, or of a name that says what its tokens are; empty where it does.

    Whoever asks the law, or compares with its runs, asks this first.
    """
    name = dataset.replace("\\", "/").rstrip("/").rpartition("/")[2].lower()
    letters = LETTERS.intersection(re.split(r"[^a-z]", name))
    if vocab_size < FEWEST_BYTE_PAIRS or letters:
        said = f"dataset={dataset}" if vocab_size >= FEWEST_BYTE_PAIRS else f"vocab_size={vocab_size}"
        what = "bytes" if vocab_size == BYTES or letters & {"byte", "bytes"} else "characters"
        return f"the scaling law was fitted on BPE tokens, this data has {what} ({said})"
    if vocab_size < SMALLEST_VOCABULARY:
        return f"the scaling law was fitted on larger vocabularies than vocab_size={vocab_size}"
    return ""


def params_of_law(config: RunConfig) -> int:
    """N of the law: all parameters; for other models those of GPT-2 in the same shape."""
    return count_params(config).total if config.model == "gpt2" else shape_params(config)


def expected_loss(config: RunConfig, tokens: int) -> float | None:
    """The loss in nats that a run reaches with `tokens` and a finished schedule; None where no law covers it."""
    steps = max(1, round(tokens / config.tokens_per_step))
    whole = config.model_copy(update={"max_iters": steps, "lr_decay_iters": steps})
    worth = worth_of(whole)
    if worth is None or why_no_forecast(whole):
        return None
    return law(params_of_law(config), tokens * worth.tokens.likely) + dataset_of(config.dataset)[1].offset


def guessing(config: RunConfig) -> float:
    """The loss in nats of guessing, with every token equally likely. No run ends above it."""
    return math.log(config.vocab_size)


def _reached(
    config: RunConfig, params: float, tokens: float, *, data_tokens: int | None = None, unfinished: float = 0.0
) -> Range:
    """The loss of a model of `params` after `tokens`, never above that of guessing.

    Where the law is above guessing, only the low end of the range comes from it. For a short context the high end is
    guessing.
    """
    _, dataset = dataset_of(config.dataset)
    spread = _spread(dataset, tokens / params) + unfinished
    if config.vocab_size not in GPT2_SIZES:
        spread += OTHER_TOKENIZER_SPREAD
    worth = read_again(worth_of(config) or AS_GPT2, tokens, data_tokens)
    lawful = _by_law(params, tokens, dataset, spread, worth)
    most = guessing(config)
    if lawful.likely >= most:
        return Range(low=min(most, law(params, math.inf) + dataset.offset - dataset.spread), likely=most, high=most)
    high = most if config.block_size < SHORTEST_CONTEXT else min(lawful.high + raised_by(config), most)
    return Range(low=lawful.low, likely=lawful.likely, high=high)


def _by_law(params: float, tokens: float, dataset: Dataset, spread: float, worth: Worth) -> Range:
    """The law's range for tokens of this worth. What is uncertain in them has nothing to do with the rest."""
    likely, best, worst = (
        law(params, tokens * each) + dataset.offset
        for each in (worth.tokens.likely, worth.tokens.high, worth.tokens.low)
    )
    spread = math.hypot(spread, worth.spread)
    return Range(
        low=likely - math.hypot(spread, likely - best), likely=likely, high=likely + math.hypot(spread, worst - likely)
    )


def _caution(config: RunConfig, final: Range, data_tokens: int | None) -> str:
    if final.likely == guessing(config):
        return f"no better than guessing: {config.learned_tokens:,} tokens are too few for the scaling law"
    if config.block_size < SHORTEST_CONTEXT:
        return f"the scaling law does not cover contexts of {config.block_size} tokens: expect a higher loss"
    if config.vocab_size not in GPT2_SIZES:
        return (
            f"a wide guess: a vocabulary of {config.vocab_size:,} is not GPT-2's, and nats per token depend on how "
            "much text a token holds"
        )
    return caution(config, data_tokens) or (
        "" if config.model == "gpt2" else f"the law was fitted on GPT-2s, not on {config.model}"
    )


def loss_at(config: RunConfig, step: int, data_tokens: int | None = None) -> Range | None:
    """The validation loss after `step` updates; None during warm-up and shortly after."""
    if step < max(SETTLED_STEPS, 2 * config.warmup_iters) or why_no_forecast(config, data_tokens):
        return None
    last = config.learning_steps
    if step < last and not is_gpt2_with_adamw(config):
        return None  # no public run says how far above its end such a run is
    tokens, params = min(step, last) * config.tokens_per_step, params_of_law(config)
    unfinished = MID_RUN_SPREAD if step < last else 0.0
    return _reached(config, params, tokens, data_tokens=data_tokens, unfinished=unfinished)


def dataset_of(name: str) -> tuple[str, Dataset]:
    """The dataset that a folder's name stands for, and its offset."""
    plain = name.lower().replace("\\", "/").rstrip("/").rsplit("/", maxsplit=1)[-1]
    words = {*re.split(r"[-_. ]", plain), plain}
    for alias, meant in _ALIASES.items():
        if alias in words or (alias != "edu" and alias != "owt" and alias in plain):
            return meant, DATASETS[meant]
    for known, dataset in DATASETS.items():
        if known in plain:
            return known, dataset
    return "unknown dataset", UNKNOWN


def optimal_params(compute_flops: float) -> float:
    """Parameters that reach the lowest loss for 6·N·D FLOPs, by the law."""
    ratio = (ALPHA * A / (BETA * B)) ** (1 / (ALPHA + BETA))
    return float(ratio * (compute_flops / 6) ** (BETA / (ALPHA + BETA)))


def optimal_params_for_tokens(tokens: float) -> float:
    """Parameters of the run whose compute is best spent on `tokens`, by the law."""
    return float((ALPHA * A / (BETA * B) * tokens**BETA) ** (1 / ALPHA))


def _spread(dataset: Dataset, tokens_per_parameter: float) -> float:
    """Half the width of the range. Wider for few tokens, where warm-up and batch size decide."""
    starved = max(0.0, math.log2(COMPUTE_OPTIMAL / 2 / tokens_per_parameter))
    return dataset.spread + 0.1 * starved


def _plus_minus_half(gain: float) -> Range:
    return Range(low=gain / 2, likely=gain, high=gain * 1.5)


def _milestones(config: RunConfig) -> list[int]:
    """Steps worth naming: quarters of the run, and round thousands of long ones."""
    quarters = [round(config.max_iters * share / 4) for share in (1, 2, 3)]
    round_thousands = [step for step in (5000, 10_000, 20_000, 50_000, 100_000) if step < config.max_iters]
    return sorted({*quarters, *round_thousands, config.max_iters})
