"""The fastest config that fits: the same model and the same tokens per update, in micro-batches the card can hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from shlex import quote
from typing import Any, TypeVar

from onecard.config.schema import NANOGPT_KEYS, RunConfig
from onecard.plan.cards import Card
from onecard.plan.counts import count_params
from onecard.plan.memory.predict import Memory, predict_nanogpt, predict_onecard
from onecard.plan.speed import Speed, TrainerName, predict_speed

EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
GPT2_WIDTH_PER_LAYER = 64  # 768 / 12
HEAD_SIZE = 64  # what GPT-2 uses and every attention kernel likes
MAX_MICRO_BATCH = 512  # beyond, no card gets faster
RECOMPUTATION = ("none", "selective", "full")  # grad_checkpoint: ever less memory, ever more work
PROGRAMS: dict[TrainerName, str] = {"nanogpt": "python train.py", "onecard": "onecard train"}

T = TypeVar("T")


def train_command(
    source: str | None, patch: Mapping[str, Any], *, environment: str = "", trainer: TrainerName = "nanogpt"
) -> str:
    """The line that starts a trainer with a patch."""
    words = (environment, PROGRAMS[trainer], quote(source) if source else "", flags_of(patch, trainer))
    return " ".join(word for word in words if word)


def flags_of(patch: Mapping[str, Any], trainer: TrainerName) -> str:
    """The patch as a trainer is told it on the command line: nanoGPT refuses keys it does not know."""
    known = NANOGPT_KEYS if trainer == "nanogpt" else patch.keys()
    return " ".join(quote(f"--{key}={value}") for key, value in patch.items() if key in known)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A config that was tried."""

    config: RunConfig
    patch: dict[str, Any]  # what differs from the config that was asked about
    trainer: TrainerName = "nanogpt"
    expandable_segments: bool = False  # of nanoGPT: asked for in the environment
    process_bytes: int
    fits: bool
    safe: bool  # fits even where it takes as much more as predictions may be off
    speed: Speed | None

    def command(self, source: str | None, typed: Mapping[str, Any] | None = None) -> str:
        """What to type to run it; `typed` are keys that were set on the command line and so are in no file."""
        environment = EXPANDABLE if self.expandable_segments else ""
        return train_command(source, {**(typed or {}), **self.patch}, environment=environment, trainer=self.trainer)

    @property
    def rank(self) -> tuple[float, int, int]:
        """Fastest first; at equal speed (or none known) less recomputation, then the larger micro-batch."""
        return _rank(self.config, self.speed)


def _rank(config: RunConfig, speed: Speed | None) -> tuple[float, int, int]:
    likely = speed.tokens_per_second.likely if speed else 0.0
    return likely, -RECOMPUTATION.index(config.grad_checkpoint), config.batch_size


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The answer to --fit."""

    best: Candidate | None  # None: nothing fits
    candidates: tuple[Candidate, ...]
    tokens_kept: bool  # whether the best has exactly the tokens per update that were asked for
    smallest: Candidate | None  # where nothing fits: the least change of the model that does, safely
    warnings: tuple[str, ...] = ()


def fit_config(config: RunConfig, card: Card | None, available_bytes: int, *, returns_logits: bool = True) -> Fit:
    """The fastest way to run `config` under nanoGPT: half precision, compiled, the micro-batch free.

    What fits by less than predictions may be off is taken only where nothing fits safely.
    """
    settings = {"compile": True}
    if config.dtype == "float32":
        settings["dtype"] = card.best_dtype() if card else "bfloat16"  # type: ignore[assignment]
    base = config.replace(settings)
    tried: dict[tuple[int, bool], Candidate] = {}

    def attempt(batch_size: int, expandable: bool) -> Candidate:
        key = (batch_size, expandable)
        if key not in tried:
            changed = _with_batch(base, batch_size)
            memory = predict_nanogpt(
                changed,
                card,
                available_bytes=available_bytes,
                expandable_segments=expandable,
                returns_logits=returns_logits,
            )
            tried[key] = _candidate(config, changed, card, memory, available_bytes, "nanogpt", expandable=expandable)
        return tried[key]

    def search(enough: Callable[[Candidate], bool]) -> bool:
        """Whether there is a micro-batch that is enough; all that were looked at are in `tried`."""
        sizes = micro_batches(config)
        largest = _largest(sizes, lambda size: enough(attempt(size, False))) or 0
        # the same micro-batch without the environment variable is the simpler answer, and one step more is rare
        larger = [size for size in sizes if size > largest]
        if larger and enough(attempt(larger[0], True)):
            _largest(larger[1:], lambda size: enough(attempt(size, True)))
        return any(map(enough, tried.values()))

    if not search(_is_safe):
        search(_fits)
    order = sorted(tried.values(), key=lambda each: (*each.rank, not each.expandable_segments), reverse=True)
    smallest = None if any(each.fits for each in order) else _smaller(base, config, card, available_bytes, "nanogpt")
    return _answer(config, order, smallest)


def fit_onecard(config: RunConfig, card: Card | None, available_bytes: int) -> Fit:
    """The fastest way to run `config` under onecard's trainer: micro-batch and recomputation free, all else as asked.

    Memory grows with the micro-batch and falls with recomputation, so for each kind the largest that fits is found by
    halving, among those that would be faster than what was found before. What fits by less than predictions may be off
    is taken only where nothing fits safely.
    """
    tried: dict[RunConfig, Candidate] = {}

    def attempt(way: RunConfig) -> Candidate:
        if way not in tried:
            memory = predict_onecard(way, card, available_bytes=available_bytes)
            tried[way] = _candidate(config, way, card, memory, available_bytes, "onecard")
        return tried[way]

    def search(enough: Callable[[Candidate], bool]) -> bool:
        """Whether there is a way that is enough; all that were looked at are in `tried`."""
        best: Candidate | None = None
        for mode in RECOMPUTATION:
            ways = [_with_batch(config, size).replace({"grad_checkpoint": mode}) for size in micro_batches(config)]
            ranks = {way.batch_size: _rank(way, predict_speed(way, card, "onecard")) for way in ways}
            faster = [way for way in ways if best is None or ranks[way.batch_size] > best.rank]
            _largest(faster, lambda way: enough(attempt(way)))
            best = max(filter(enough, tried.values()), key=lambda each: each.rank, default=None)
        return best is not None

    found = search(_is_safe) or search(_fits)
    order = sorted(tried.values(), key=lambda each: each.rank, reverse=True)
    smallest = None
    if not found:
        base = config.replace({"grad_checkpoint": RECOMPUTATION[-1]})
        smallest = _smaller(base, config, card, available_bytes, "onecard")
    return _answer(config, order, smallest)


def _answer(asked: RunConfig, order: Sequence[Candidate], smallest: Candidate | None) -> Fit:
    """The first of the ordered candidates that fits safely, else of those that fit, and the others behind it."""
    ordered = sorted(order, key=lambda candidate: (not candidate.safe, not candidate.fits))
    best = ordered[0] if ordered and ordered[0].fits else None
    unsafe = ("nothing leaves more room than the prediction may be off: it may run out of memory",)
    return Fit(
        best=best,
        candidates=tuple(ordered),
        tokens_kept=best is not None and best.config.tokens_per_step == asked.tokens_per_step,
        smallest=smallest,
        warnings=unsafe if best and not best.safe else (),
    )


def _is_safe(candidate: Candidate) -> bool:
    return candidate.safe


def _fits(candidate: Candidate) -> bool:
    return candidate.fits


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
    memory: Memory,
    available_bytes: int,
    trainer: TrainerName,
    *,
    expandable: bool = False,
) -> Candidate:
    return Candidate(
        config=config,
        patch={key: value for key, value in config.model_dump().items() if value != getattr(asked, key)},
        trainer=trainer,
        expandable_segments=expandable,
        process_bytes=memory.process_bytes,
        fits=bool(memory.fits),
        safe=memory.is_safe(available_bytes),
        speed=predict_speed(config, card, trainer),
    )


def _with_batch(config: RunConfig, batch_size: int) -> RunConfig:
    accumulation = config.sequences_per_step // batch_size
    return config.replace({"batch_size": batch_size, "gradient_accumulation_steps": accumulation})


def micro_batches(config: RunConfig) -> list[int]:
    """The micro-batches that keep the tokens per update."""
    number = config.sequences_per_step
    return [size for size in range(1, min(number, MAX_MICRO_BATCH) + 1) if number % size == 0]


def _largest(ways: Sequence[T], fits: Callable[[T], bool]) -> T | None:
    """The last that fits of ways that need ever more memory, by halving; None if none does."""
    low, high = -1, len(ways)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(ways[middle]) else (low, middle)
    return ways[low] if low >= 0 else None


def _smaller(
    base: RunConfig, asked: RunConfig, card: Card | None, available_bytes: int, trainer: TrainerName
) -> Candidate | None:
    """The largest model of this kind that fits at micro-batch 1: narrower, then shallower, then of shorter context."""
    predict = predict_onecard if trainer == "onecard" else predict_nanogpt
    base = _with_batch(base, 1)
    widths = [head * HEAD_SIZE for head in range(1, max(2, asked.n_embd // HEAD_SIZE + 1))]
    shapes = [base.replace({"n_embd": width, "n_head": width // HEAD_SIZE}) for width in widths]
    shapes += [shapes[0].replace({"n_layer": max(1, asked.n_layer // 4)}), shapes[0].replace({"n_layer": 1})]
    shapes.sort(key=lambda shape: count_params(shape).total)
    shorter = {"block_size": max(1, asked.block_size // 8)}
    if asked.eval_block_size:
        shorter["eval_block_size"] = min(asked.eval_block_size, shorter["block_size"])
    for ways in (shapes, [shape.replace(shorter) for shape in shapes]):
        found = _largest(
            ways, lambda shape: predict(shape, card, available_bytes=available_bytes).is_safe(available_bytes)
        )
        if found:
            memory = predict(found, card, available_bytes=available_bytes)
            return _candidate(asked, found, card, memory, available_bytes, trainer)
    return None
