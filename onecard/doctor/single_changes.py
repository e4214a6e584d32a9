"""What the plan predicts for each changed setting by itself. Two measured runs cannot show that."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from onecard.config.recipes import keys_between
from onecard.config.schema import KEYS, PLANNED_KEYS, RunConfig, keys_that_affect
from onecard.config.shown import same_value
from onecard.plan.cards import Card
from onecard.plan.loss import forecast_loss, guessing, why_no_forecast
from onecard.plan.memory.predict import Memory, predict_memory
from onecard.plan.precision import with_dtype
from onecard.plan.speed import Speed, TrainerName, predict_speed
from onecard.units import listed

_BATCH = ("batch_size", "gradient_accumulation_steps")
NOT_COVERED = "scaling laws do not cover"


@dataclass(frozen=True, kw_only=True)
class SingleChange:
    """One change and its predicted effects; None where there is no prediction."""

    changes: Mapping[str, tuple[object, object]]  # key -> before, after
    tokens_per_second_ratio: float | None = None
    mfu: tuple[float, float] | None = None  # predicted share of the card's dense peak, before and after
    process_bytes_difference: int | None = None
    final_loss_difference: float | None = None
    why_no_loss: str = ""  # why there is no prediction of the loss
    fits: bool | None = None  # with the change, on the card and under memory_limit; None if it did not fit before
    needs_card: bool = False  # a known card would allow more predictions

    @property
    def named(self) -> Mapping[str, tuple[object, object]]:
        """The changes by which people know it: of another recipe that alone, which brings the others."""
        return {key: values for key, values in self.changes.items() if key == "recipe" or "recipe" not in self.changes}


def counts(key: str) -> bool:
    """Whether a key changes what a run computes."""
    return key not in KEYS or bool(KEYS[key].affects)


def single_effects(
    before: RunConfig,
    after: RunConfig,
    card: Card | None,
    trainer: TrainerName,
    *,
    cardless: bool = False,
    data_tokens: int | None = None,
) -> tuple[SingleChange, ...]:
    """Each change from one config to another, planned by itself on top of the first, under the trainer of the first.

    `cardless`: the first ran without a card and none is named, so neither memory nor speed is planned.
    """
    if cardless:  # both trainers compute in float32 then
        before, after = (config.replace({"dtype": "float32"}) for config in (before, after))
    before, after = with_dtype(before, card), with_dtype(after, card)
    planner = _Planner(before=before, card=card, trainer=trainer, cardless=cardless, data_tokens=data_tokens)
    return tuple(planner.effect({key: getattr(after, key) for key in group}) for group in _groups(before, after))


def _groups(before: RunConfig, after: RunConfig) -> Iterator[Sequence[str]]:
    """Keys that changed, grouped where one alone would mean something else: a recipe, the same batch cut differently,
    or heads that go with a width."""
    changed = [key for key in KEYS if counts(key) and not same_value(getattr(before, key), getattr(after, key))]
    if "recipe" in changed:
        together = {"recipe", *keys_between(before.recipe, after.recipe)}
        yield [key for key in changed if key in together]
        changed = [key for key in changed if key not in together]
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
    """The config of the first run, and the plan of it with something changed."""

    before: RunConfig
    card: Card | None
    trainer: TrainerName
    cardless: bool
    data_tokens: int | None  # of the first run's training data

    def effect(self, patch: Mapping[str, object]) -> SingleChange:
        changes = {key: (getattr(self.before, key), value) for key, value in patch.items()}
        try:
            changed = self.before.replace(patch)
        except ValueError:  # such as a width that the heads do not divide
            return SingleChange(changes=changes, why_no_loss="the config is not valid with this change alone")
        why_no_loss = self._why_no_loss(changed, patch.keys())
        difference = None if why_no_loss else self._loss_difference(changed, patch.keys())
        alone = SingleChange(changes=changes, final_loss_difference=difference, why_no_loss=why_no_loss)
        computed = [
            key for key in keys_that_affect("memory", "speed") if key in patch and "limit" not in KEYS[key].kind
        ]
        known = KEYS if self.trainer == "onecard" else PLANNED_KEYS
        if not all(KEYS[key].planned for key in patch) or any(key not in known for key in computed):
            return alone
        if computed:
            return self._computed(alone, changed)
        return self._limited(alone, changed) if "memory_limit" in patch else self._same(alone)

    def _computed(self, alone: SingleChange, changed: RunConfig) -> SingleChange:
        """The effect of a change to what is computed."""
        if self.cardless:
            return replace(alone, needs_card=True)
        first, second = self._speed(self.before), self._speed(changed)
        return replace(
            alone,
            tokens_per_second_ratio=second.tokens_per_second.likely / first.tokens_per_second.likely
            if first and second
            else None,
            mfu=(first.mfu, second.mfu) if first and second else None,
            process_bytes_difference=self._memory(changed).process_bytes - self._memory(self.before).process_bytes,
            fits=self._fits(changed),
            needs_card=self.card is None,
        )

    def _limited(self, alone: SingleChange, changed: RunConfig) -> SingleChange:
        """The effect of another memory limit: none if the run stays below it before and after.

        Above it, onecard makes the same updates in smaller micro-batches. How many is not planned.
        """
        if self.cardless or self.trainer != "onecard":  # a CPU and nanoGPT have no limit
            return self._same(replace(alone, fits=self._fits(changed)))
        before, after = self._room(self.before), self._room(changed)
        if before is None or after is None:
            return replace(alone, needs_card=True)
        free = before == after or self._memory(self.before).process_bytes <= min(before, after)
        alone = replace(alone, fits=self._fits(changed))
        return self._same(alone) if free else alone

    def _same(self, alone: SingleChange) -> SingleChange:
        """A change that leaves speed and memory as they were."""
        speed = None if self.cardless else self._speed(self.before)
        mfu = (speed.mfu, speed.mfu) if speed else None
        return replace(alone, tokens_per_second_ratio=1.0, mfu=mfu, process_bytes_difference=0)

    def _why_no_loss(self, changed: RunConfig, keys: Collection[str]) -> str:
        """Why there is no prediction of what a change does to the loss; empty if there is one."""
        if _learns_the_same(keys):
            return ""
        if other := set(keys).intersection(keys_that_affect("measure")):
            return f"with another {listed(sorted(other))} the loss is another quantity"
        for config in (self.before, changed):
            if why := why_no_forecast(config, self.data_tokens):
                return why
            forecast = forecast_loss(config, self.data_tokens)
            if forecast is None or forecast.final.likely == guessing(config):
                return f"{config.total_tokens:,} tokens are too few for the scaling law"
        if abs(self._loss_difference(changed, keys)) <= 1e-9:
            return f"{NOT_COVERED} {listed(keys)}"
        return ""

    def _loss_difference(self, changed: RunConfig, keys: Collection[str]) -> float:
        """What a change does to the final loss, by the scaling law of parameters and tokens."""
        if _learns_the_same(keys):
            return 0.0
        first, second = (forecast_loss(config, self.data_tokens) for config in (self.before, changed))
        assert first
        assert second
        return second.final.likely - first.final.likely

    def _speed(self, config: RunConfig) -> Speed | None:
        return predict_speed(config, self.card, self.trainer)

    def _memory(self, config: RunConfig, available_bytes: int | None = None) -> Memory:
        return predict_memory(config, self.card, self.trainer, available_bytes=available_bytes)

    def _fits(self, changed: RunConfig) -> bool | None:
        """Whether the run fits with a change; None where it is too close to call."""
        room, before = self._room(changed), self._room(self.before)
        if room is None or before is None or self._memory(self.before).process_bytes > before:
            return None
        memory = self._memory(changed, room)
        return None if memory.is_near(room) else memory.fits

    def _room(self, config: RunConfig) -> int | None:
        """What the driver may show for the process. nanoGPT has no memory_limit."""
        if self.card is None:
            return None
        limit = config.memory_limit if self.trainer == "onecard" else None
        return min(self.card.allocatable_bytes, limit or self.card.allocatable_bytes)


def _learns_the_same(keys: Collection[str]) -> bool:
    """Whether every update stays the same: the same batch cut differently, or another way to compute it."""
    return all(KEYS[key].affects <= {"memory", "speed"} for key in keys) or set(keys) == set(_BATCH)
