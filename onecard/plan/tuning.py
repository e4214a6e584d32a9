"""Ways to run a config at equal tokens per update, the most promising first, and which of those measured wins.

A way changes how an update is computed, never what it computes: micro-batch, recomputation, chunks of the loss,
compiled or not, and on a processor its threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from onecard.config.schema import RunConfig
from onecard.models.chunks import default_chunk_tokens
from onecard.models.ways import recomputations
from onecard.plan.calibration import TimedRun
from onecard.plan.cards import Card
from onecard.plan.counts import flops_per_token
from onecard.plan.fit import fit_onecard, micro_batches
from onecard.plan.memory.predict import predict_onecard
from onecard.plan.speed import predict_speed

MOST_WAYS = 7  # a handful: each is a process of its own
APART = 1.25  # how many times as large another micro-batch of the same kind must be to be worth a measurement
AS_FAST = 0.01  # what is slower by no more than this is as fast: two measurements of one config differ by as much
# How far measured / predicted may differ between two ways of one config before the slower one could be the faster. On
# a card ways differ by a few per cent. On a processor the prediction knows its products alone.
DOUBT_ON_CARD, DOUBT_ON_CPU = 0.12, 0.5

State = Literal["measured", "out of memory", "failed", "cannot win", "no time left", "interrupted"]


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to run the config that was asked about."""

    config: RunConfig
    patch: dict[str, Any]  # what differs from that config
    threads: int | None = None  # of a processor
    predicted_tokens_per_second: float | None = None  # None where nothing is known of the speed
    predicted_bytes: int | None = None

    @property
    def environment(self) -> str:
        """What stands in front of the command."""
        return f"OMP_NUM_THREADS={self.threads}" if self.threads else ""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A way and what came of it."""

    way: Way
    state: State
    tokens_per_second: float | None = None
    process_bytes: int | None = None
    timed: TimedRun | None = None  # the run behind these figures, which may have had fewer micro-batches
    said: str = ""  # by what failed

    @property
    def ratio(self) -> float | None:
        """Measured tokens per second divided by those that were predicted."""
        if not self.tokens_per_second or not self.way.predicted_tokens_per_second:
            return None
        return self.tokens_per_second / self.way.predicted_tokens_per_second


def best_of(tried: Sequence[Tried], available_bytes: int | None = None) -> Tried | None:
    """The fastest that was measured and fits what is free; of those as fast, the one that was named first."""
    fitting = [
        each
        for each in tried
        if each.tokens_per_second
        and (available_bytes is None or each.process_bytes is None or each.process_bytes <= available_bytes)
    ]
    fastest = max((each.tokens_per_second or 0.0 for each in fitting), default=0.0)
    return next((each for each in fitting if (each.tokens_per_second or 0.0) >= (1 - AS_FAST) * fastest), None)


def cannot_win(way: Way, tried: Sequence[Tried], *, doubt: float) -> bool:
    """Whether a way stays behind the best so far, even if its prediction is low by the worst so far and `doubt`."""
    ratios = [each.ratio for each in tried if each.ratio]
    fastest = max((each.tokens_per_second or 0.0 for each in tried), default=0.0)
    if not ratios or way.predicted_tokens_per_second is None:
        return False
    return way.predicted_tokens_per_second * max(ratios) * (1 + doubt) < fastest


def ways_on_card(config: RunConfig, card: Card, available_bytes: int, *, most: int = MOST_WAYS) -> list[Way]:
    """The config as given, then the most promising others that fit by prediction, the fastest of each kind first."""
    asked = _way_on_card(config, config, card)
    fitted = fit_onecard(config, card, available_bytes)
    roomy = [each for each in fitted.candidates if each.fits]
    found = [_Ranked(config=each.config, speed=each.rank[0]) for each in roomy]
    for mode in recomputations(config):
        of_mode = (each.config.batch_size for each in roomy if each.config.grad_checkpoint == mode)
        most_sequences = max(of_mode, default=0)
        for size in micro_batches(config):
            if size < most_sequences:  # memory grows with the micro-batch: this fits too
                way = config.in_micro_batches(size).replace({"grad_checkpoint": mode})
                found.append(_Ranked(config=way, speed=_speed(way, card) or 0.0))
    found.sort(key=lambda each: (each.speed, each.config.batch_size), reverse=True)
    chosen = [each.config for each in _apart([config], found)][: most - 3]
    fastest = fitted.best.config if fitted.best else config
    if fastest not in (config, *chosen):
        chosen.insert(0, fastest)
    variants = _variants(fastest, card, available_bytes)
    ways = [_way_on_card(config, each, card) for each in [*chosen, *variants] if each != config]
    first = [asked] if _may_fit(config, card, available_bytes) else []
    return [*first, *ways][:most]


@dataclass(frozen=True, kw_only=True)
class _Ranked:
    config: RunConfig
    speed: float


def _apart(known: list[RunConfig], found: Iterable[_Ranked]) -> list[_Ranked]:
    """Those that differ enough from all before them to tell something new."""
    chosen: list[_Ranked] = []
    for each in found:
        before = [*known, *(other.config for other in chosen)]
        near = (
            max(other.batch_size, each.config.batch_size) < APART * min(other.batch_size, each.config.batch_size)
            for other in before
            if other.grad_checkpoint == each.config.grad_checkpoint
        )
        if not any(near):
            chosen.append(each)
    return chosen


def _variants(config: RunConfig, card: Card, available_bytes: int) -> list[RunConfig]:
    """The same micro-batch with another chunk of the loss, and with compilation switched."""
    chunk = config.loss_chunk or default_chunk_tokens(config.vocab_size)
    tokens = config.batch_size * config.block_size
    chunked = config.replace({"loss_chunk": 2 * chunk if tokens > chunk else max(1, tokens // 2)})
    switched = config.replace({"compile": not config.compile})
    return [each for each in (chunked, switched) if predict_onecard(each, card, available_bytes=available_bytes).fits]


def _may_fit(config: RunConfig, card: Card, available_bytes: int) -> bool:
    memory = predict_onecard(config, card, available_bytes=available_bytes)
    return bool(memory.fits) or memory.is_near(available_bytes)


def _way_on_card(asked: RunConfig, config: RunConfig, card: Card) -> Way:
    return Way(
        config=config,
        patch=_patch(asked, config),
        predicted_tokens_per_second=_speed(config, card),
        predicted_bytes=predict_onecard(config, card).process_bytes,
    )


def _speed(config: RunConfig, card: Card) -> float | None:
    speed = predict_speed(config, card, "onecard")
    return speed.tokens_per_second.likely if speed else None


def _patch(asked: RunConfig, config: RunConfig) -> dict[str, Any]:
    return {key: value for key, value in sorted(config.model_dump().items()) if value != getattr(asked, key)}


def sizes_near(config: RunConfig) -> list[int]:
    """Micro-batches from a quarter of the config's to four times it, at equal tokens per update."""
    sizes = micro_batches(config)
    wished = (config.batch_size * factor for factor in (4, 2, 1, 0.5, 0.25))
    near = {min(sizes, key=lambda size: abs(size - each)) for each in wished}
    return sorted(near, reverse=True)


def ways_untold(config: RunConfig) -> list[Way]:
    """Micro-batches near the config's, for a device of which nothing is known."""
    sizes = [config.batch_size, *(size for size in sizes_near(config) if size != config.batch_size)]
    changed = [config.in_micro_batches(size) for size in sizes]
    return [Way(config=each, patch=_patch(config, each)) for each in changed]


def ways_on_cpu(
    config: RunConfig, rates: Mapping[tuple[int, int], float], *, share: float, most: int = MOST_WAYS
) -> list[Way]:
    """The config with all threads, then other threads and micro-batches, the most promising first.

    `rates`: FLOP/s of a block's widest product by threads and sequences of a micro-batch; `share`: what training
    reaches of it.
    """
    ways = [
        Way(
            config=changed,
            patch=_patch(config, changed),
            threads=threads,
            predicted_tokens_per_second=share * rate / flops_per_token(config),
        )
        for (threads, size), rate in rates.items()
        for changed in [config.in_micro_batches(size)]
    ]
    most_threads = max(threads for threads, _ in rates)
    ways.sort(key=lambda way: way.predicted_tokens_per_second or 0.0, reverse=True)
    ways.sort(key=lambda way: bool(way.patch) or way.threads != most_threads)  # as given comes first
    return ways[:most]
