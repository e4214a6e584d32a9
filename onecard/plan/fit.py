"""The fastest config that fits: the same model and the same tokens per update, in micro-batches the card can hold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from typing import Any

from onecard import units
from onecard.config.schema import RunConfig
from onecard.models.evaluation import smaller_eval_batch
from onecard.models.optimizers import optimizer_of
from onecard.models.ways import recomputations
from onecard.plan.candidate import Candidate, candidate_of, rank_of
from onecard.plan.cards import Card
from onecard.plan.counts import count_params
from onecard.plan.memory.predict import context_of_onecard, predict_memory, predict_nanogpt, predict_onecard
from onecard.plan.precision import compiles
from onecard.plan.pretrained import smaller_weights
from onecard.plan.search import largest, start_of_search
from onecard.plan.shape import HEAD_SIZE
from onecard.plan.speed import TrainerName, predict_speed

FITTED = ("batch_size", "gradient_accumulation_steps", "grad_checkpoint", "eval_batch_size")  # by fit_onecard
AS_FAST = 0.02  # what is slower by no more than this is as fast: the one with more memory left is taken
WORTH_SAYING = 0.1  # how much faster another number of sequences must be
NEAR = 0.05  # how far it may be from the number asked for
SHORTEST_BLOCK = 64  # a shorter context is of no use
MAX_MICRO_BATCH = 512  # larger ones are no faster on any card


@dataclass(frozen=True, kw_only=True)
class Fit:
    """The fastest config that fits, and what else was tried."""

    asked: RunConfig
    card: Card | None
    available_bytes: int
    trainer: TrainerName
    candidates: tuple[Candidate, ...]  # the chosen one, those that fit safely, those that fit, others; fastest first
    shape: Mapping[str, Any] = field(default_factory=dict)  # the model's keys, where its size was asked for

    @property
    def best(self) -> Candidate | None:
        """The chosen one: of those that fit safely and are as fast as the fastest, the one with most memory left.

        The fastest that fits where none does so safely; None where nothing fits.
        """
        return next((candidate for candidate in self.candidates[:1] if candidate.fits), None)

    @property
    def tokens_kept(self) -> bool:
        """Whether the best has exactly the tokens per update of the config."""
        return self.best is not None and self.best.config.tokens_per_step == self.asked.tokens_per_step

    @property
    def passed_over(self) -> Candidate | None:
        """What would be faster than the best, and fits, but by less than its prediction may be off."""
        best = self.best
        if best is None or not best.safe:
            return None
        barely = [
            each
            for each in self.candidates
            if each.fits and not each.safe and each.rank[0] > best.rank[0] * (1 + AS_FAST)
        ]
        return max(barely, key=lambda each: each.rank, default=None)

    @property
    def why(self) -> str:
        """Why the best was chosen; or why nothing fits."""
        if self.best is None:
            given = f"; the shape is that of the weights of init_from={self.asked.init_from} and cannot change"
            stays = given if self.asked.starts_pretrained else ""
            if self.candidates:
                return "nothing fits, not even one sequence at a time" + stays
            held, available = units.mib(held_bytes(self.asked, self.card)), units.mib(self.available_bytes)
            moments = f"{optimizer_of(self.asked).title}'s moments"
            takes = f"weights, gradients, {moments} and the context take {held} of {available}"
            return f"nothing fits: {takes}{stays}"
        if not self.best.safe:
            return "the fastest of those that fit"
        chosen = "the fastest of those that fit safely"
        if any(each.safe and each.rank[0] > self.best.rank[0] for each in self.candidates):
            chosen = f"within {AS_FAST:.0%} of the fastest, with more memory left"
        if other := self.passed_over:
            chosen += f"; {other.settings} {other.advantage_over(self.best)}, but {other.risk(self.available_bytes)}"
        return chosen

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to know before running the best."""
        unsafe = "every choice leaves less room than the prediction may be off: it may run out of memory"
        return (unsafe,) if self.best and not self.best.safe else ()

    @cached_property
    def neighbour(self) -> Candidate | None:
        """The best for a nearby number of sequences per update, where the given one splits badly; None if no faster."""
        if self.best is None or self.best.speed is None:
            return None
        config = _splitting_better(self.best, self.card, self.available_bytes)
        if config is None:
            return None
        found = fit_config(config, self.card, self.available_bytes, self.trainer).best
        if found is None or not found.safe or found.speed is None:
            return None
        gain = found.speed.tokens_per_second.likely / self.best.speed.tokens_per_second.likely - 1
        return found if gain > WORTH_SAYING else None

    @property
    def note(self) -> str:
        """That a nearby number of sequences per update would be faster; empty where none is."""
        if not (self.best and self.best.speed and (other := self.neighbour) and other.speed):
            return ""
        rate, now = other.speed.tokens_per_second.likely, self.best.speed.tokens_per_second.likely
        config, number = other.config, self.asked.sequences_per_step
        return (
            f"{number:,} sequences per update split badly: {config.sequences_per_step:,}, as {config.batch_size} x "
            f"{config.gradient_accumulation_steps}, would make {rate:,.0f} tokens/s ({rate / now - 1:+.0%})"
        )

    @cached_property
    def smallest(self) -> Candidate | None:
        """Where nothing fits: the smallest change that safely does; None where none is known.

        The model changes. Where its shape is that of trained weights, the context or the weights change instead.
        """
        if self.best:
            return None
        where = (self.card, self.available_bytes, self.trainer)
        if self.asked.starts_pretrained:
            return _shorter(self.asked, *where) or from_smaller_weights(self.asked, *where)
        found = _smaller(self.asked, *where)
        return found and found.with_shape(self.shape)

    def with_shape(self, shape: Mapping[str, Any]) -> Fit:
        """The same answer with the shape in every patch, for a shape that was asked for by its size."""
        return replace(self, shape=shape, candidates=tuple(each.with_shape(shape) for each in self.candidates))


def fit_config(config: RunConfig, card: Card | None, available_bytes: int, trainer: TrainerName) -> Fit:
    """The fastest way to run `config` under a trainer."""
    return (fit_onecard if trainer == "onecard" else fit_nanogpt)(config, card, available_bytes)


def fit_nanogpt(
    config: RunConfig,
    card: Card | None,
    available_bytes: int,
    *,
    returns_logits: bool = True,
    expandable_segments: bool = True,
) -> Fit:
    """The fastest way to run `config` under nanoGPT: half precision, compiled, any micro-batch.

    What fits by less than predictions may be off is taken only where nothing fits safely; of ways that are as fast the
    one with most memory left. Without `expandable_segments` no way needs the environment to ask for them.
    """
    base = _compiled(config, card)
    tried: dict[tuple[int, bool], Candidate] = {}

    def attempt(batch_size: int, expandable: bool) -> Candidate:
        key = (batch_size, expandable)
        if key not in tried:
            changed = base.in_micro_batches(batch_size)
            memory = predict_nanogpt(
                changed,
                card,
                available_bytes=available_bytes,
                expandable_segments=expandable,
                returns_logits=returns_logits,
            )
            tried[key] = candidate_of(config, changed, card, memory, available_bytes, "nanogpt", expandable=expandable)
        return tried[key]

    def search(enough: Callable[[Candidate], bool]) -> bool:
        """Whether any micro-batch passes `enough`; all that were planned are in `tried`."""
        sizes = micro_batches(config)
        ways = [base.in_micro_batches(size) for size in sizes]
        start = start_of_search(ways, card, available_bytes, "nanogpt")
        most = largest(sizes, lambda size: enough(attempt(size, False)), start=start) or 0
        # without the environment variable the answer is simpler, and it rarely allows a larger micro-batch
        larger = [size for size in sizes if size > most]
        if expandable_segments and larger and enough(attempt(larger[0], True)):
            largest(larger[1:], lambda size: enough(attempt(size, True)), start=0)
        return any(map(enough, tried.values()))

    if not is_hopeless(config, card, available_bytes):
        if search(_is_safe):
            ways = [base.in_micro_batches(size) for size in micro_batches(config)]
            for way in _as_fast(ways, tried.values(), card, "nanogpt")[:1]:
                attempt(way.batch_size, False)
        else:
            search(_fits)
    order = sorted(tried.values(), key=lambda each: (*each.rank, not each.expandable_segments), reverse=True)
    return _answer(config, card, available_bytes, "nanogpt", order)


@lru_cache(maxsize=8)  # a plan asks once for itself and again for its fixes
def fit_onecard(config: RunConfig, card: Card | None, available_bytes: int) -> Fit:
    """The fastest way to run `config` under onecard's trainer: any micro-batch and recomputation, the rest as given.

    Where only a large evaluation batch keeps a way from fitting, it is cut to the tokens of a micro-batch. Memory grows
    with the micro-batch and falls with recomputation. So for each kind of recomputation the search is for the largest
    micro-batch that fits and is faster than the best so far. What fits by less than predictions may be off is taken
    only where nothing fits safely; of ways that are as fast the one with most memory left.
    """
    tried: dict[RunConfig, Candidate] = {}

    def attempt(way: RunConfig) -> Candidate:
        if way not in tried:
            tried[way] = planned(way)
            if not tried[way].safe and (sequences := smaller_eval_batch(way)):
                tried[way] = planned(way.replace({"eval_batch_size": sequences}))
        return tried[way]

    def planned(way: RunConfig) -> Candidate:
        memory = predict_onecard(way, card, available_bytes=available_bytes)
        return candidate_of(config, way, card, memory, available_bytes, "onecard")

    def search(enough: Callable[[Candidate], bool]) -> bool:
        """Whether any way passes `enough`; all that were planned are in `tried`."""
        best: Candidate | None = None
        for mode in recomputations(config):
            ways = [config.in_micro_batches(size).replace({"grad_checkpoint": mode}) for size in micro_batches(config)]
            ranks = {way.batch_size: rank_of(way, predict_speed(way, card, "onecard")) for way in ways}
            faster = [way for way in ways if best is None or ranks[way.batch_size] > best.rank]
            largest(
                faster,
                lambda way: enough(attempt(way)),
                start=start_of_search(faster, card, available_bytes, "onecard"),
            )
            best = max(filter(enough, tried.values()), key=lambda each: each.rank, default=None)
        return best is not None

    if not is_hopeless(config, card, available_bytes):
        if search(_is_safe):
            for mode in recomputations(config):
                modal = config.replace({"grad_checkpoint": mode})
                ways = [modal.in_micro_batches(size) for size in micro_batches(config)]
                for way in _as_fast(ways, tried.values(), card, "onecard")[:1]:
                    attempt(way)
        else:
            search(_fits)
    order = sorted(tried.values(), key=lambda each: each.rank, reverse=True)
    return _answer(config, card, available_bytes, "onecard", order)


def _as_fast(
    ways: Sequence[RunConfig], tried: Iterable[Candidate], card: Card | None, trainer: TrainerName
) -> list[RunConfig]:
    """Of ways that need ever more memory those as fast as the fastest safe one; none where speeds are unknown."""
    fastest = max((each.rank[0] for each in tried if each.safe), default=0.0)
    if not fastest:
        return []
    return [way for way in ways if rank_of(way, predict_speed(way, card, trainer))[0] >= (1 - AS_FAST) * fastest]


def _answer(
    asked: RunConfig, card: Card | None, available_bytes: int, trainer: TrainerName, order: Sequence[Candidate]
) -> Fit:
    """The chosen candidate, then those that fit safely, those that fit, and the others, each in their order."""
    ordered = sorted(order, key=lambda candidate: (not candidate.safe, not candidate.fits))
    fastest = max((each.rank[0] for each in order if each.safe), default=0.0)
    as_fast = [each for each in ordered if each.safe and fastest and each.rank[0] >= (1 - AS_FAST) * fastest]
    if as_fast:
        hundredth = max(1, available_bytes // 100)  # of the room: what saves less than that is not worth a change
        chosen = min(as_fast, key=lambda each: each.process_bytes // hundredth)  # the first of equals is the fastest
        ordered.sort(key=lambda each: each is not chosen)
    return Fit(asked=asked, card=card, available_bytes=available_bytes, trainer=trainer, candidates=tuple(ordered))


def _compiled(config: RunConfig, card: Card | None) -> RunConfig:
    """The config as nanoGPT runs it fastest: compiled, where the card can, and in half precision."""
    half = {"dtype": card.best_dtype() if card else "bfloat16"} if config.dtype == "float32" else {}
    return config.replace({"compile": compiles(card), **half})


def held_bytes(config: RunConfig, card: Card | None) -> int:
    """Bytes that every update holds, whatever the micro-batch and the trainer: no run of `config` takes less."""
    context_bytes = min(card.context_bytes, context_of_onecard(config, card)) if card else 0
    return optimizer_of(config).held_bytes + context_bytes


def is_hopeless(config: RunConfig, card: Card | None, available_bytes: int) -> bool:
    """Whether the run cannot fit, known without planning its activations."""
    return held_bytes(config, card) > available_bytes


def _is_safe(candidate: Candidate) -> bool:
    return candidate.safe


def _fits(candidate: Candidate) -> bool:
    return candidate.fits


def micro_batches(config: RunConfig) -> list[int]:
    """The micro-batches that keep the tokens per update."""
    number = config.sequences_per_step
    return [size for size in range(1, min(number, MAX_MICRO_BATCH) + 1) if number % size == 0]


def _splitting_better(best: Candidate, card: Card | None, available_bytes: int) -> RunConfig | None:
    """The best's run with the nearest number of sequences that splits into micro-batches as large as fit.

    None where those are at most 1.5 times as large as the best's.
    """
    config, number = best.config, best.config.sequences_per_step

    def has_room(size: int) -> bool:
        way = config.replace({"batch_size": size, "gradient_accumulation_steps": 1})
        return start_of_search([way], card, available_bytes, best.trainer) == 0

    sizes = range(1, min(number, MAX_MICRO_BATCH) + 1)
    room = largest(sizes, has_room, start=config.batch_size) or 0
    if 2 * room <= 3 * config.batch_size:
        return None
    away = range(1, round(NEAR * number) + 1)
    for near in (number + step * sign for step in away for sign in (1, -1)):
        if size := next((size for size in range(room, room // 2, -1) if near % size == 0), None):
            return config.replace({"batch_size": size, "gradient_accumulation_steps": near // size})
    return None


def _frugal(asked: RunConfig, card: Card | None, trainer: TrainerName) -> RunConfig:
    """The same run in as little memory as a trainer can: micro-batches of one sequence."""
    if trainer == "nanogpt":
        return _compiled(asked, card).in_micro_batches(1)
    base = asked.in_micro_batches(1).replace({"grad_checkpoint": recomputations(asked)[-1]})
    return base.replace({"eval_batch_size": 1}) if smaller_eval_batch(base) else base


def _attempts(
    asked: RunConfig, card: Card | None, available_bytes: int, trainer: TrainerName
) -> Callable[[RunConfig], Candidate | None]:
    """A function from a changed config to its candidate, None where it does not fit safely; each is planned once."""

    @cache
    def attempt(changed: RunConfig) -> Candidate | None:
        if is_hopeless(changed, card, available_bytes):
            return None
        memory = predict_memory(changed, card, trainer, available_bytes=available_bytes)
        candidate = candidate_of(asked, changed, card, memory, available_bytes, trainer)
        return candidate if candidate.safe else None

    return attempt


def _shorter(asked: RunConfig, card: Card | None, available_bytes: int, trainer: TrainerName) -> Candidate | None:
    """The same model with the longest of half, a quarter … of the context that fits, at the same tokens per update."""
    base, attempt = _frugal(asked, card, trainer), _attempts(asked, card, available_bytes, trainer)
    block, accumulation = base.block_size, base.gradient_accumulation_steps
    while block % 2 == 0 and block > SHORTEST_BLOCK:
        block, accumulation = block // 2, accumulation * 2
        shorter = {"block_size": block, "gradient_accumulation_steps": accumulation}
        if asked.eval_block_size:
            shorter["eval_block_size"] = min(asked.eval_block_size, block)
        if found := attempt(base.replace(shorter)):
            return found
    return None


def from_smaller_weights(
    asked: RunConfig, card: Card | None, available_bytes: int, trainer: TrainerName
) -> Candidate | None:
    """The fastest way to start from the largest smaller weights that fit safely; None where none are known."""
    for config in smaller_weights(asked):
        best = fit_config(config, card, available_bytes, trainer).best
        if best and best.safe:
            return replace(best, patch={"init_from": config.init_from, **best.patch})
    return None


def _smaller(asked: RunConfig, card: Card | None, available_bytes: int, trainer: TrainerName) -> Candidate | None:
    """The largest model of this depth that fits at micro-batch 1: narrower, then shallower, then of shorter context."""
    base, attempt = _frugal(asked, card, trainer), _attempts(asked, card, available_bytes, trainer)
    widths = [head * HEAD_SIZE for head in range(1, max(2, asked.n_embd // HEAD_SIZE + 1))]
    shapes = [base.replace({"n_embd": width, "n_head": width // HEAD_SIZE}) for width in widths]
    shapes += [shapes[0].replace({"n_layer": max(1, asked.n_layer // 4)}), shapes[0].replace({"n_layer": 1})]
    shapes.sort(key=lambda shape: count_params(shape).total)
    shorter = {"block_size": max(1, asked.block_size // 8)}
    if asked.eval_block_size:
        shorter["eval_block_size"] = min(asked.eval_block_size, shorter["block_size"])
    for ways in (shapes, [shape.replace(shorter) for shape in shapes]):
        start = start_of_search(ways, card, available_bytes, trainer)
        if found := largest(ways, lambda shape: attempt(shape) is not None, start=start):
            return attempt(found)
    return None
