"""The shapes to choose from, and the fastest way to run each of them on a card. Both are the same for every budget.

So a larger budget never gets a worse run: it can pay for every run that a smaller one can, and for longer ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from onecard.config.schema import KEYS, RunConfig
from onecard.models.evaluation import eval_batch_size, smaller_eval_batch
from onecard.models.training import EVAL_BATCHES, MICRO_BATCHES
from onecard.models.ways import recomputations
from onecard.plan.cards import Card
from onecard.plan.counts import count_params
from onecard.plan.fit import is_hopeless, micro_batches
from onecard.plan.memory.predict import predict_memory
from onecard.plan.recipe import sequences_per_step
from onecard.plan.shape import HEAD_SIZE
from onecard.plan.speed import TrainerName
from onecard.plan.speed.fitted import known_speed
from onecard.plan.speed.times import StepTimes, step_times

LAYERS = (4, 6, 8, 10, 12, 16, 20, 24, 30)
HEADS = range(2, 34, 2)  # so that widths are multiples of 128, which are fast on a card
WIDTH_PER_LAYER = (64, 86)  # the GPT-2 models have 33 to 64; wider is faster
WORTH_MORE_WORK = 0.99  # recomputation is chosen only if it shortens an update to less than this share


def shapes(config: RunConfig) -> list[RunConfig]:
    """The config's model in every sensible shape, smallest first."""
    least, most = WIDTH_PER_LAYER
    found = [
        config.model_copy(update={"n_layer": n_layer, "n_head": n_head, "n_embd": n_head * HEAD_SIZE})
        for n_layer in LAYERS
        for n_head in HEADS
        if least <= n_head * HEAD_SIZE / n_layer <= most
    ]
    return sorted(found, key=lambda shape: count_params(shape).total)


@dataclass(frozen=True, kw_only=True)
class Means:
    """What a run has to work with: the card, its free memory, the trainer, the tokens of its data."""

    card: Card  # of known speed
    available_bytes: int
    trainer: TrainerName
    data_tokens: int | None = None  # None where nobody knows

    def times(self, config: RunConfig) -> StepTimes:
        """The likely seconds of a step, an evaluation and a checkpoint."""
        return step_times(config, self.card, known_speed(self.card).rates, self.trainer)

    def least_seconds_per_token(self, shape: RunConfig) -> float:
        """A lower bound for every way to run a shape: as if any micro-batch fitted, with many of them per update."""
        sequences = sequences_per_step(shape.block_size)[-1]
        return min(self.times(way).step for way in _ways(shape, sequences)) / (sequences * shape.block_size)

    def way(self, shape: RunConfig, sequences: int) -> RunConfig | None:
        """The fastest micro-batch and recomputation that fit safely, for `sequences` per update; None if none fit.

        Recomputation is used only if it is worth its work, so another way may be up to 1 % faster. A config file can
        express the result: it needs no setting that only the environment has.
        """
        best, best_seconds = None, float("inf")
        for mode in recomputations(shape) if self.trainer == "onecard" else ["none"]:
            ways = _ways(shape.model_copy(update={"grad_checkpoint": mode}), sequences)
            seconds = {way.batch_size: self.times(way).step for way in ways}
            faster = [way for way in ways if seconds[way.batch_size] < WORTH_MORE_WORK * best_seconds]
            largest = _largest_micro_batch(self, _one_by_one(faster[0])) if faster else 0
            roomy = [way for way in faster if way.batch_size <= largest]
            if roomy:
                best = min(roomy, key=lambda way: (seconds[way.batch_size], -way.batch_size))
                best_seconds = seconds[best.batch_size]
        return self.with_room(best) if best and best.eval_batch_size else best

    def with_room(self, way: RunConfig) -> RunConfig | None:
        """The way if it fits safely, if needed with smaller evaluation batches; None if it does not fit."""
        if self._is_safe(way):
            return way
        if self.trainer == "onecard" and (sequences := smaller_eval_batch(way)):
            smaller = way.model_copy(update={"eval_batch_size": sequences})
            return smaller if self._is_safe(smaller) else None
        return None

    def _is_safe(self, way: RunConfig) -> bool:
        """Whether it fits safely for any number of micro-batches per update: one or two need no more than several."""
        several = way.model_copy(update={"gradient_accumulation_steps": MICRO_BATCHES})
        return _room(self, _bare(several))[1]

    def process_bytes(self, way: RunConfig) -> int:
        """The bytes that the driver will show for the process."""
        return _room(self, _bare(way))[0]


def _ways(shape: RunConfig, sequences: int) -> list[RunConfig]:
    """The shape with every micro-batch that gives `sequences` per update, the smallest first."""
    whole = shape.model_copy(update={"batch_size": sequences, "gradient_accumulation_steps": 1})
    return [
        shape.model_copy(update={"batch_size": size, "gradient_accumulation_steps": sequences // size})
        for size in micro_batches(whole)
    ]


def _one_by_one(way: RunConfig) -> RunConfig:
    return way.model_copy(update={"batch_size": 1, "gradient_accumulation_steps": 1})


@lru_cache(maxsize=1024)
def _largest_micro_batch(means: Means, shape: RunConfig) -> int:
    """Sequences in the largest micro-batch with which a shape fits safely, for any number per update; 0 if none fits.

    The result for a smaller shape is an upper bound, so the search goes down from there. The result for less
    recomputation is a lower bound, so the search goes up from there.
    """
    ways = _ways(shape, sequences_per_step(shape.block_size)[-1])
    modes = recomputations(shape)
    mode = modes.index(shape.grad_checkpoint)
    if mode:
        less = shape.model_copy(update={"grad_checkpoint": modes[mode - 1]})
        largest = _largest_micro_batch(means, less)
        seconds = float("inf")
        for way in (way for way in ways if way.batch_size > largest):
            last, seconds = seconds, means.times(way).step
            if seconds > WORTH_MORE_WORK * last or not means.with_room(way):
                break
            largest = way.batch_size
        return largest
    smaller = _smaller(shape)
    most = _largest_micro_batch(means, smaller) if smaller else ways[-1].batch_size
    return next((way.batch_size for way in reversed(ways) if way.batch_size <= most and means.with_room(way)), 0)


def _smaller(shape: RunConfig) -> RunConfig | None:
    """The narrowest shape of the same depth; for that one, the narrowest of the next smaller depth, or None."""
    narrowest = {each.n_layer: each for each in reversed(shapes(shape))}
    if shape.n_embd > narrowest[shape.n_layer].n_embd:
        return narrowest[shape.n_layer]
    return narrowest.get(max((depth for depth in narrowest if depth < shape.n_layer), default=0))


def _bare(way: RunConfig) -> RunConfig:
    """The way reduced to what matters for memory: more updates, evaluations and micro-batches need no more."""
    usual = {key: KEYS[key].default for key in ("max_iters", "eval_interval")}
    micros = min(MICRO_BATCHES, way.gradient_accumulation_steps)
    several = EVAL_BATCHES * -(-eval_batch_size(way) // way.batch_size)
    iters = min(way.eval_iters, several)
    return way.model_copy(update={**usual, "gradient_accumulation_steps": micros, "eval_iters": iters})


@lru_cache(maxsize=4096)
def _room(means: Means, way: RunConfig) -> tuple[int, bool]:
    """The bytes of the process, and whether they fit safely."""
    if is_hopeless(way, means.card, means.available_bytes):
        return 0, False
    memory = predict_memory(way, means.card, means.trainer, available_bytes=means.available_bytes)
    return memory.process_bytes, memory.is_safe(means.available_bytes)
