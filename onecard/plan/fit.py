"""The fastest config that fits: the same model and the same tokens per update, in micro-batches the card can hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import log
from typing import Any

from onecard.config.schema import RunConfig
from onecard.plan.cards import Card
from onecard.plan.counts import count_params
from onecard.plan.memory.predict import predict_nanogpt
from onecard.plan.speed import Speed, predict_speed

EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
GPT2_WIDTH_PER_LAYER = 64  # 768 / 12
HEAD_SIZE = 64  # what GPT-2 uses and every attention kernel likes


def train_command(source: str | None, patch: Mapping[str, Any], *, environment: str = "") -> str:
    """The line that starts nanoGPT with a patch."""
    flags = " ".join(f"--{key}={value}" for key, value in patch.items())
    return " ".join(word for word in (environment, "python train.py", source or "", flags) if word)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A config that was tried."""

    config: RunConfig
    patch: dict[str, Any]  # what differs from the config that was asked about
    expandable_segments: bool
    process_bytes: int
    fits: bool
    speed: Speed | None

    def command(self, source: str | None) -> str:
        """What to type to run it under nanoGPT."""
        return train_command(source, self.patch, environment=EXPANDABLE if self.expandable_segments else "")

    @property
    def rank(self) -> tuple[float, int]:
        """Fastest first; at equal speed (or none known) the larger micro-batch."""
        return (self.speed.tokens_per_second.likely if self.speed else 0.0, self.config.batch_size)


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The answer to --fit."""

    best: Candidate | None  # None: nothing fits
    candidates: tuple[Candidate, ...]
    tokens_kept: bool  # whether the best has exactly the tokens per update that were asked for
    smallest: Candidate | None  # where nothing fits: the least change of the model that does
    warnings: tuple[str, ...] = ()


def fit_config(config: RunConfig, card: Card | None, available_bytes: int, *, returns_logits: bool = True) -> Fit:
    """The fastest way to run `config` in `available_bytes`: half precision, compiled, the micro-batch free."""
    asked = config
    settings = {"compile": True}
    if config.dtype == "float32":
        settings["dtype"] = card.best_dtype() if card else "bfloat16"  # type: ignore[assignment]
    base = config.replace(settings)
    tried: dict[tuple[int, bool], Candidate] = {}

    def attempt(batch_size: int, expandable: bool) -> Candidate:
        key = (batch_size, expandable)
        if key not in tried:
            changed = _with_batch(base, batch_size)
            tried[key] = _candidate(asked, changed, card, available_bytes, expandable, returns_logits)
        return tried[key]

    sizes = [size for size in _divisors(config.sequences_per_step) if size <= MAX_MICRO_BATCH]
    for expandable in (False, True):
        _largest(sizes, lambda size, e=expandable: attempt(size, e).fits)  # type: ignore[misc]
    fitting = [candidate for candidate in tried.values() if candidate.fits]
    if not fitting:
        return Fit(
            best=None,
            candidates=tuple(tried.values()),
            tokens_kept=False,
            smallest=_smaller(asked, card, available_bytes),
        )
    # the same speed without the environment variable is the simpler answer
    best = max(fitting, key=lambda candidate: (*candidate.rank, not candidate.expandable_segments))
    ordered = sorted(tried.values(), key=lambda candidate: (candidate.fits, *candidate.rank), reverse=True)
    kept = best.config.tokens_per_step == asked.tokens_per_step
    return Fit(best=best, candidates=tuple(ordered), tokens_kept=kept, smallest=None)


MAX_MICRO_BATCH = 512  # beyond, no card gets faster


def shape_for_params(config: RunConfig, wanted: int) -> RunConfig:
    """The shape whose nanoGPT count is nearest to `wanted`, with heads of 64; of those as near, the most like GPT-2."""

    def distance(shape: RunConfig) -> float:
        likeness = abs(log(shape.n_embd / shape.n_layer / GPT2_WIDTH_PER_LAYER))
        return abs(log(count_params(shape).nanogpt / wanted)) + 0.01 * likeness

    return min(_shapes(config), key=distance)


def _shapes(config: RunConfig) -> Iterator[RunConfig]:
    for n_layer in sorted({*range(2, 25), 28, 30, 32, 36, 40, 48, config.n_layer}):
        for n_head in range(1, 41):
            width = n_head * HEAD_SIZE
            if 16 <= width / n_layer <= 200:
                yield config.model_copy(update={"n_layer": n_layer, "n_head": n_head, "n_embd": width})


def _candidate(
    asked: RunConfig,
    config: RunConfig,
    card: Card | None,
    available_bytes: int,
    expandable: bool,
    returns_logits: bool = True,
) -> Candidate:
    memory = predict_nanogpt(
        config,
        card,
        available_bytes=available_bytes,
        expandable_segments=expandable,
        returns_logits=returns_logits,
    )
    patch = {key: value for key, value in config.model_dump().items() if value != getattr(asked, key)}
    return Candidate(
        config=config,
        patch=patch,
        expandable_segments=expandable,
        process_bytes=memory.process_bytes,
        fits=bool(memory.fits),
        speed=predict_speed(config, card),
    )


def _with_batch(config: RunConfig, batch_size: int) -> RunConfig:
    accumulation = config.sequences_per_step // batch_size
    return config.replace({"batch_size": batch_size, "gradient_accumulation_steps": accumulation})


def _divisors(number: int) -> list[int]:
    return [candidate for candidate in range(1, number + 1) if number % candidate == 0]


def _largest(sizes: list[int], fits: Callable[[int], bool]) -> int | None:
    """The largest of ascending sizes that fits, by halving; and its neighbours are tried on the way."""
    low, high = -1, len(sizes)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(sizes[middle]) else (low, middle)
    return sizes[low] if low >= 0 else None


def _smaller(config: RunConfig, card: Card | None, available_bytes: int) -> Candidate | None:
    """The largest model of this kind that fits at micro-batch 1: narrower, then shallower."""
    base = _with_batch(config.replace({"compile": True}), 1)
    widths = [head * HEAD_SIZE for head in range(1, max(2, config.n_embd // HEAD_SIZE + 1))]
    shapes = [base.replace({"n_embd": width, "n_head": width // HEAD_SIZE}) for width in widths]
    shapes += [shapes[0].replace({"n_layer": max(1, config.n_layer // 4)}), shapes[0].replace({"n_layer": 1})]
    shapes.sort(key=lambda shape: count_params(shape).total)
    found = _largest_shape(config, shapes, card, available_bytes)
    if found is None:
        shorter = [shape.replace({"block_size": max(1, config.block_size // 8)}) for shape in shapes]
        found = _largest_shape(config, shorter, card, available_bytes)
    return found


def _largest_shape(
    asked: RunConfig, shapes: list[RunConfig], card: Card | None, available_bytes: int
) -> Candidate | None:
    best: Candidate | None = None
    low, high = -1, len(shapes)
    while high - low > 1:
        middle = (low + high) // 2
        candidate = _candidate(asked, shapes[middle], card, available_bytes, False)
        if candidate.fits:
            low, best = middle, candidate
        else:
            high = middle
    return best
