"""What a token is worth: how many tokens of GPT-2's shape under AdamW one token of another recipe stands for.

The scaling law is of runs with AdamW. Public runs state how many tokens other recipes need for the same loss at the
same size; divided, they give a factor in tokens. It holds near those runs, and nothing is said elsewhere. A token that
is read again is worth less than a new one. Sources: docs/explain/loss.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import exp, hypot, inf, log

from onecard.config.schema import RunConfig
from onecard.plan.counts import count_params
from onecard.plan.ranges import Range

LAW_TOKENS = 7.25e9  # with which the law gives 3.28, the mark of the public runs, for 124M on FineWeb
PUBLIC_PARAMS = 124e6  # of GPT-2's shape: 12 layers of 768
# Tokens to 3.28 by modded-nanogpt's records: 4,578 updates of 524,288 with Muon, rotary positions, ReLU², normed
# queries and keys, zero projections and an untied head; 3,250 in its later track with every rate tuned; 6,200 with Muon
# and rotary positions alone.
FAST_TOKENS = Range(low=1.70e9, likely=2.40e9, high=3.25e9)
# Muon against tuned AdamW: 1.4 times at 0.1B and 1.1 times at 1.2B (arXiv 2509.02046); at most the 1.73 of
# modded-nanogpt's track 3, whose AdamW is said to be undertuned.
MUON_AT = ((1e8, 1.4), (1.2e9, 1.1))
LEAST_OF_MUON, MOST_OF_MUON = 1.0, 1.73
SIZES = 2  # times smaller or larger than the public runs, at most
FAR_TOKENS = 8  # times fewer or more
SHORTEST = 512  # tokens of context: the public runs have 1,024
WORTH_OF_PASSES = 15.39  # Muennighoff et al. (arXiv 2305.16264): what endless repetition adds, in passes
SPREAD_PER_DOUBLING = 0.03  # nats, of tokens or size away from the public runs: a judgement


@dataclass(frozen=True, kw_only=True)
class Worth:
    """How many of the law's tokens a token is worth."""

    tokens: Range
    spread: float  # nats, for the distance to the public runs
    source: str


AS_GPT2 = Worth(tokens=Range(low=1.0, likely=1.0, high=1.0), spread=0.0, source="")


def worth_of(config: RunConfig) -> Worth | None:
    """The worth of a run's tokens; None where no public run is near; why_unknown_worth says why."""
    if is_gpt2_with_adamw(config):
        return AS_GPT2
    if why_unknown_worth(config):
        return None
    if config.model == "gpt2":
        (small, at_small), (large, at_large) = MUON_AT
        share = min(1.0, max(0.0, log(shape_params(config) / small) / log(large / small)))
        likely = at_small + share * (at_large - at_small)
        tokens = Range(low=LEAST_OF_MUON, likely=likely, high=MOST_OF_MUON)
        return Worth(tokens=tokens, spread=0.0, source=f"Muon: {likely:.1f} times AdamW's tokens (arXiv 2509.02046)")
    tokens = FAST_TOKENS.mapped(lambda needed: LAW_TOKENS / needed)
    away = hypot(_doublings(shape_params(config), PUBLIC_PARAMS), _doublings(config.learned_tokens, FAST_TOKENS.likely))
    return Worth(
        tokens=tokens,
        spread=SPREAD_PER_DOUBLING * away,
        source=f"recipe fast: a token is worth {tokens.likely:.1f} ({tokens.low:.1f} to {tokens.high:.1f}) of AdamW's, "
        "by modded-nanogpt's records at 124M",
    )


def read_again(worth: Worth, tokens: float, data_tokens: int | None) -> Worth:
    """The worth of tokens of which only `data_tokens` are new. At best all count; at worst the others count half
    of what is likely."""
    if not data_tokens or tokens <= data_tokens:
        return worth
    new = data_tokens / tokens
    again = new * WORTH_OF_PASSES * (1 - exp((1 - 1 / new) / WORTH_OF_PASSES))
    known = worth.tokens
    counted = Range(low=known.low * (new + again / 2), likely=known.likely * (new + again), high=known.high)
    return replace(worth, tokens=counted)


def why_unknown_worth(config: RunConfig) -> str:
    """Why no public run is near a run that is not GPT-2 with AdamW; empty where one is."""
    if is_gpt2_with_adamw(config):
        return ""
    if config.optimizer != "muon":
        return f"no public run tells what model={config.model} reaches with optimizer={config.optimizer}"
    name = "recipe=fast" if config.model != "gpt2" else "optimizer=muon"
    largest = SIZES * PUBLIC_PARAMS if config.model != "gpt2" else SIZES * MUON_AT[-1][0]
    if not PUBLIC_PARAMS / SIZES <= shape_params(config) <= largest:
        return (
            f"the public runs of {name} have {PUBLIC_PARAMS / 1e6:.0f}M parameters"
            + (f" to {MUON_AT[-1][0] / 1e9:g}B" if config.model == "gpt2" else "")
            + f", in GPT-2's shape this one {shape_params(config) / 1e6:,.0f}M"
        )
    if config.block_size < SHORTEST:
        return f"the public runs of {name} have 1,024 tokens of context, this one {config.block_size}"
    least, most = known_tokens(config)
    if not least <= config.learned_tokens <= most:
        return (
            f"the public runs of {name} have about {FAST_TOKENS.likely / 1e9:g}B tokens, "
            f"this one {config.learned_tokens / 1e9:,.2g}B"
        )
    return ""


def known_tokens(config: RunConfig) -> tuple[float, float]:
    """The fewest and the most tokens for which the loss of a recipe is known."""
    return (0.0, inf) if config.model == "gpt2" else (FAST_TOKENS.likely / FAR_TOKENS, FAST_TOKENS.likely * FAR_TOKENS)


def is_gpt2_with_adamw(config: RunConfig) -> bool:
    """Whether the law holds as it is."""
    return config.model == "gpt2" and config.optimizer == "adamw"


def shape_params(config: RunConfig) -> int:
    """The parameters of GPT-2 in the config's shape, by which public runs are named."""
    return count_params(config.model_copy(update={"model": "gpt2"})).total


def _doublings(one: float, other: float) -> float:
    return abs(log(one / other, 2))
