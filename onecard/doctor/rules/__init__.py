"""Every rule of the doctor, once, in the order in which a person would go through them.

A rule is a function from a case to findings; its name, hyphens for underscores, is the finding's. Its docstring has
four parts, which `onecard doctor --explain` prints and the reference page collects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from onecard.doctor.case import Case
from onecard.doctor.rules import (
    batch,
    card,
    crashes,
    data,
    learning,
    memory,
    pace,
    resume,
    scaling,
    schedule,
    shape,
    speed,
    spikes,
    stability,
)
from onecard.findings import Finding

Rule = Callable[[Case], Iterator[Finding]]
RuleAcross = Callable[[Case, Sequence[Case]], Iterator[Finding]]  # the second: runs given before this one

RULES: tuple[Rule, ...] = (
    shape.heads_do_not_divide,
    speed.contradicting_inputs,
    memory.states_do_not_fit,
    stability.loss_nan,
    memory.oom_system_spill,
    memory.oom_despite_free,
    memory.oom_other_process,
    memory.oom_capacity,
    memory.oom_fragmentation,
    memory.oom_in_eval,
    memory.oom_tensor,
    crashes.compile_failed,
    crashes.crashed,
    stability.diverging,
    learning.not_learning,
    learning.gradient_norm,
    resume.resume_shape_ignored,
    shape.params_mismatch,
    shape.unknown_key,
    batch.batch_arithmetic,
    data.too_many_epochs,
    data.val_same_as_train,
    learning.loss_too_low,
    data.overfitting,
    learning.unsteady_loss,
    stability.bad_initial_loss,
    spikes.loss_spike,
    stability.scaler_skips,
    schedule.decay_horizon,
    schedule.lr_out_of_range,
    schedule.weight_decay_out_of_range,
    batch.small_batch_betas,
    batch.batch_too_large,
    data.needless_dropout,
    data.val_set_tiny,
    scaling.loss_off_expectation,
    pace.waiting_for_data,
    pace.slowing_down,
    card.card_too_hot,
    card.power_limit,
    card.card_shared,
    card.clocks_drop,
    pace.slower_than_planned,
    speed.low_mfu,
    shape.odd_head_size,
    shape.unpadded_vocab,
    speed.throughput_arithmetic,
    scaling.capacity_or_data,
    scaling.tokens_per_parameter,
    scaling.plateau,
    schedule.stopped_early,
    speed.mfu_mislabelled,
    data.val_below_train,
    batch.few_large_updates,
    batch.accumulation_for_target,
    shape.stale_comment,
    schedule.warmup_length,
    speed.eval_too_expensive,
    card.slow_pcie_link,
    shape.logits_returned,
    resume.best_overwritten,
    speed.autotune_sm_warning,
)
RULES_ACROSS: tuple[RuleAcross, ...] = (
    resume.resume_lr_jump,
    resume.out_dir_reused,
    stability.instability_not_precision,
)


def rule_name(rule: Callable[..., object]) -> str:
    """`params-mismatch` of params_mismatch."""
    return rule.__name__.replace("_", "-")


EVERY: tuple[Rule | RuleAcross, ...] = RULES + RULES_ACROSS
NAMES: tuple[str, ...] = tuple(rule_name(rule) for rule in EVERY)
