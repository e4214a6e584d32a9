"""What the plan predicts that each changed setting would do by itself: the measurement of two runs cannot say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from onecard.config.schema import KEYS, NOT_BUILT_YET, RunConfig
from onecard.config.shown import same_value
from onecard.plan.cards import Card
from onecard.plan.loss import forecast_loss, guessing
from onecard.plan.memory.predict import Memory, predict_memory
from onecard.plan.precision import settled
from onecard.plan.speed import TrainerName, predict_speed

# Keys that change what is computed; the others name things, or change how often it is looked at.
_NAMES = frozenset(
    "out_dir wandb_log wandb_project wandb_run_name log_interval eval_interval eval_iters loggers log_style "
    "always_save_checkpoint keep_checkpoints checkpoint_interval backend device".split()
)
_COMPUTED = frozenset(
    "n_layer n_head n_embd block_size vocab_size dropout bias dtype compile "
    "batch_size gradient_accumulation_steps".split()
)
_COMPUTED_BY_ONECARD = frozenset(
    "grad_checkpoint loss_chunk expandable_segments eval_batch_size eval_block_size".split()
)
_NOT_PLANNED = frozenset({"deterministic", "eval_only", *NOT_BUILT_YET})
_BATCH = ("batch_size", "gradient_accumulation_steps")
# What leaves every update as it is, but for rounding.
_LEARNS_THE_SAME = frozenset(
    "compile grad_checkpoint loss_chunk expandable_segments eval_batch_size memory_limit".split()
)


@dataclass(frozen=True, kw_only=True)
class Alone:
    """One change and its predicted effects; None where nothing can be said."""

    changes: Mapping[str, tuple[object, object]]  # key -> before, after
    tokens_per_second_ratio: float | None = None
    process_bytes_difference: int | None = None
    final_loss_difference: float | None = None
    fits: bool | None = None  # with it, on the card and under memory_limit; None, too, where it did not fit before
    needs_card: bool = False  # more could be said, were a card known


def counts(key: str) -> bool:
    """Whether a key changes what a run computes."""
    return key not in _NAMES


def single_effects(
    before: RunConfig, after: RunConfig, card: Card | None, trainer: TrainerName, *, cardless: bool = False
) -> tuple[Alone, ...]:
    """Each change from one config to another, planned by itself on top of the first, under the trainer of the first.

    `cardless`: the first ran without a card and none is meant, so that neither memory nor speed is planned.
    """
    if cardless:  # both trainers compute in float32 there
        before, after = (config.replace({"dtype": "float32"}) for config in (before, after))
    before, after = settled(before, card), settled(after, card)
    planner = _Planner(before=before, card=card, trainer=trainer, cardless=cardless)
    return tuple(planner.effect({key: getattr(after, key) for key in group}) for group in _groups(before, after))


def _groups(before: RunConfig, after: RunConfig) -> Iterator[Sequence[str]]:
    """Keys that changed, together where one alone would be another thing: a batch cut differently, heads of a width."""
    changed = [key for key in KEYS if counts(key) and not same_value(getattr(before, key), getattr(after, key))]
    if before.sequences_per_step == after.sequences_per_step and _BATCH[0] in changed:
        yield _BATCH
        changed = [key for key in changed if key not in _BATCH]
    if "n_embd" in changed and "n_head" in changed:
        yield ("n_embd", "n_head")
        changed = [key for key in changed if key not in ("n_embd", "n_head")]
    schedule = [key for key in ("max_iters", "lr_decay_iters", "warmup_iters") if key in changed]
    if schedule:
        yield schedule
    yield from ((key,) for key in changed if key not in schedule)


@dataclass(frozen=True, kw_only=True)
class _Planner:
    """A run as it was, and what the plan says of it with something changed."""

    before: RunConfig
    card: Card | None
    trainer: TrainerName
    cardless: bool

    def effect(self, patch: Mapping[str, object]) -> Alone:
        changes = {key: (getattr(self.before, key), value) for key, value in patch.items()}
        try:
            changed = self.before.replace(patch)
        except ValueError:  # such as a width that the heads do not divide
            return Alone(changes=changes)
        alone = Alone(changes=changes, final_loss_difference=_loss_difference(self.before, changed, patch.keys()))
        own = _COMPUTED_BY_ONECARD
        if patch.keys() & (_NOT_PLANNED if self.trainer == "onecard" else _NOT_PLANNED | own):
            return alone
        if patch.keys() & (_COMPUTED | own):
            return self._computed(alone, changed)
        return self._limited(alone, changed) if "memory_limit" in patch else _same(alone)

    def _computed(self, alone: Alone, changed: RunConfig) -> Alone:
        """The effect of a change to what is computed."""
        if self.cardless:
            return replace(alone, needs_card=True)
        return replace(
            alone,
            tokens_per_second_ratio=self._speed_ratio(changed),
            process_bytes_difference=self._memory(changed).process_bytes - self._memory(self.before).process_bytes,
            fits=self._fits(changed),
            needs_card=self.card is None,
        )

    def _limited(self, alone: Alone, changed: RunConfig) -> Alone:
        """The effect of another limit: none where it binds neither before nor after.

        Where it binds, the updates stay, in smaller micro-batches: in how many is not planned.
        """
        if self.cardless or self.trainer != "onecard":  # neither knows a limit
            return _same(replace(alone, fits=self._fits(changed)))
        before, after = self._room(self.before), self._room(changed)
        if before is None or after is None:
            return replace(alone, needs_card=True)
        free = before == after or self._memory(self.before).process_bytes <= min(before, after)
        alone = replace(alone, fits=self._fits(changed))
        return _same(alone) if free else alone

    def _speed_ratio(self, changed: RunConfig) -> float | None:
        first, second = (predict_speed(config, self.card, self.trainer) for config in (self.before, changed))
        if first is None or second is None:
            return None
        return second.tokens_per_second.likely / first.tokens_per_second.likely

    def _memory(self, config: RunConfig, available_bytes: int | None = None) -> Memory:
        return predict_memory(config, self.card, self.trainer, available_bytes=available_bytes)

    def _fits(self, changed: RunConfig) -> bool | None:
        """Whether the run fits with a change; None where the prediction is too near to tell."""
        room, before = self._room(changed), self._room(self.before)
        if room is None or before is None or self._memory(self.before).process_bytes > before:
            return None
        memory = self._memory(changed, room)
        return None if memory.is_near(room) else memory.fits

    def _room(self, config: RunConfig) -> int | None:
        """What the driver may show for the process; nanoGPT knows no limit."""
        if self.card is None:
            return None
        limit = config.memory_limit if self.trainer == "onecard" else None
        return min(self.card.allocatable_bytes, limit or self.card.allocatable_bytes)


def _same(alone: Alone) -> Alone:
    """A change that leaves speed and memory as they were."""
    return replace(alone, tokens_per_second_ratio=1.0, process_bytes_difference=0)


def _loss_difference(before: RunConfig, changed: RunConfig, keys: Iterable[str]) -> float | None:
    """By the scaling law, which knows parameters and tokens and nothing else; None for what it does not know.

    Nothing is what a batch cut differently changes, or other ways to the same update.
    """
    keys = set(keys)
    if keys <= _LEARNS_THE_SAME or keys == set(_BATCH):
        return 0.0
    first, second = forecast_loss(before), forecast_loss(changed)
    if first is None or second is None or keys & {"vocab_size", "dataset"}:  # a loss over other tokens, or other text
        return None
    if any(forecast.final.likely == guessing(before) for forecast in (first, second)):
        return None  # so few tokens that the law says nothing
    difference = second.final.likely - first.final.likely
    return difference if abs(difference) > 1e-9 else None
