"""What the plan predicts that each changed setting would do by itself: the measurement of two runs cannot say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from onecard.config.schema import KEYS, NANOGPT_KEYS, RunConfig
from onecard.plan.cards import Card
from onecard.plan.loss import forecast_loss
from onecard.plan.memory.predict import predict_nanogpt, predict_onecard
from onecard.plan.precision import settled
from onecard.plan.speed import TrainerName, predict_speed

# Keys that change what is computed; the others name things, or change how often it is looked at.
_NAMES = frozenset(
    "out_dir wandb_log wandb_project wandb_run_name log_interval eval_interval eval_iters eval_only loggers log_style "
    "always_save_checkpoint keep_checkpoints checkpoint_interval backend device".split()
)
_COMPUTED = frozenset(
    "n_layer n_head n_embd block_size vocab_size dropout bias dtype compile "
    "batch_size gradient_accumulation_steps".split()
)
_COMPUTED_BY_ONECARD = frozenset(
    "grad_checkpoint loss_chunk expandable_segments eval_batch_size eval_block_size".split()
)


@dataclass(frozen=True, kw_only=True)
class Alone:
    """One change and its predicted effects; None where nothing can be said."""

    changes: Mapping[str, tuple[object, object]]  # key -> before, after
    tokens_per_second_ratio: float | None
    process_bytes_difference: int | None
    final_loss_difference: float | None


def counts(key: str) -> bool:
    """Whether a key changes what a run computes."""
    return key not in _NAMES


def single_effects(before: RunConfig, after: RunConfig, card: Card | None, trainer: TrainerName) -> tuple[Alone, ...]:
    """Each change from one config to another, planned by itself on top of the first, under the trainer of the first."""
    before, after = settled(before, card), settled(after, card)
    return tuple(_effect(before, group, after, card, trainer) for group in _groups(before, after))


def _groups(before: RunConfig, after: RunConfig) -> Iterator[Sequence[str]]:
    """Keys that changed, together where one alone would be another thing: a batch cut differently, heads of a width."""
    changed = [key for key in KEYS if counts(key) and getattr(before, key) != getattr(after, key)]
    batch = ("batch_size", "gradient_accumulation_steps")
    if before.sequences_per_step == after.sequences_per_step and batch[0] in changed:
        yield batch
        changed = [key for key in changed if key not in batch]
    if "n_embd" in changed and "n_head" in changed:
        yield ("n_embd", "n_head")
        changed = [key for key in changed if key not in ("n_embd", "n_head")]
    schedule = [key for key in ("max_iters", "lr_decay_iters", "warmup_iters") if key in changed]
    if schedule:
        yield schedule
    yield from ((key,) for key in changed if key not in schedule)


def _effect(
    before: RunConfig, group: Sequence[str], after: RunConfig, card: Card | None, trainer: TrainerName
) -> Alone:
    changes = {key: (getattr(before, key), getattr(after, key)) for key in group}
    try:
        changed = before.replace({key: value for key, (_, value) in changes.items()})
    except ValueError:  # such as a width that the heads do not divide
        changed = None
    own = _COMPUTED_BY_ONECARD if trainer == "onecard" else frozenset()
    if changed is None or not set(group) <= NANOGPT_KEYS | {"vocab_size"} | own:
        return Alone(
            changes=changes,
            tokens_per_second_ratio=None,
            process_bytes_difference=None,
            final_loss_difference=None,
        )
    computed = bool((_COMPUTED | own) & set(group))
    return Alone(
        changes=changes,
        tokens_per_second_ratio=_speed_ratio(before, changed, card, trainer) if computed else 1.0,
        process_bytes_difference=_more_bytes(before, changed, card, trainer) if computed else 0,
        final_loss_difference=_loss_difference(before, changed),
    )


def _speed_ratio(before: RunConfig, changed: RunConfig, card: Card | None, trainer: TrainerName) -> float | None:
    first, second = predict_speed(before, card, trainer), predict_speed(changed, card, trainer)
    if first is None or second is None:
        return None
    return second.tokens_per_second.likely / first.tokens_per_second.likely


def _more_bytes(before: RunConfig, changed: RunConfig, card: Card | None, trainer: TrainerName) -> int:
    predict = predict_onecard if trainer == "onecard" else predict_nanogpt
    return predict(changed, card).process_bytes - predict(before, card).process_bytes


def _loss_difference(before: RunConfig, changed: RunConfig) -> float | None:
    """By the scaling law, which knows parameters and tokens and nothing else; None for what it does not know."""
    first, second = forecast_loss(before), forecast_loss(changed)
    if first is None or second is None or before.vocab_size != changed.vocab_size:
        return None
    difference = second.final.likely - first.final.likely
    return difference if abs(difference) > 1e-9 else None
