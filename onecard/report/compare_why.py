"""Why one run of a comparison is better or faster: the change that explains most, and what moved the MFU."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from onecard import units
from onecard.config.schema import SHAPE_KEYS
from onecard.doctor.case import Case
from onecard.doctor.compare import FINAL, Comparison
from onecard.doctor.facts import NANOGPT_PEAK_FLOPS
from onecard.doctor.single_changes import NOT_COVERED, SingleChange
from onecard.report.compare_words import change_words

LEAST_MFU_CHANGE = 0.01  # share of the MFU below which a change is not named
LEAST_LOSS_CHANGE = 0.005  # nats
NEAR_A100 = 0.1  # a card with this peak or nearly: nanoGPT's own MFU is right
# What a larger and a smaller value of a key are called.
CHANGED = {
    "n_embd": ("the wider model", "the narrower model"),
    "n_layer": ("the deeper model", "the shallower model"),
    "block_size": ("the longer context", "the shorter context"),
    "batch_size": ("the larger micro-batch", "the smaller micro-batch"),
    "dropout": ("more dropout", "less dropout"),
    "compile": ("torch.compile", "no torch.compile"),
}
# Why a larger and a smaller value of a key move the MFU, for the change that moved it most.
MFU_REASONS = {
    "n_embd": (
        "wider matrices (n_embd) run the card closer to its peak",
        "narrower matrices (n_embd) use less of the card",
    ),
    "batch_size": (
        "the larger micro-batch (batch_size) keeps the card busier",
        "the smaller micro-batch (batch_size) gives the card less to do at a time",
    ),
    "compile": (
        "torch.compile fuses kernels, so the card waits less for memory",
        "without torch.compile the card waits for memory and launches",
    ),
}


def why(comparison: Comparison) -> str:
    """The change that is predicted to explain most of the difference, by itself."""
    if not comparison.config_diff:
        known = all(case.resolved is not None for case in comparison.cases)
        return "no setting differs: only seed, data order and noise" if known else "not known without the configs"
    other = explained_run(comparison)
    effects = comparison.single_changes.get(other, ())
    if cause := main_cause(comparison, effects, other):
        return f"{change_words(cause)}: alone, predicted {', '.join(_effect_words(cause))}"
    if not comparison.together:
        return "no setting that differs has an effect"
    changed = units.listed(comparison.together)
    if best_run(comparison) is None:
        return f"changed: {changed}" + ("" if comparison.why_not_comparable else "; no difference beyond noise")
    if uncovered := [effect for effect in effects if effect.why_no_loss]:
        keys = " or ".join(_direction(effect)[0] for effect in uncovered)
        return f"perhaps {keys} (no prediction: {_why_no_loss(uncovered)})"
    return f"changed: {changed}; the predictions do not explain it"


def _why_no_loss(effects: Sequence[SingleChange]) -> str:
    """That scaling laws do not cover what changed; other reasons are long, and in the details."""
    if all(effect.why_no_loss.startswith(NOT_COVERED) for effect in effects):
        return f"{NOT_COVERED} {'it' if len(effects) == 1 else 'them'}"
    return "--details says why"


def why_mfu(comparison: Comparison) -> str:
    """Why the MFU of the run rose or fell against A's, by what is predicted of each change; "" where it did not."""
    other, winner = explained_run(comparison), comparison.winners.get("mfu")
    if winner is None or other not in comparison.single_changes or len(comparison.cases) > 2:
        return ""
    rose = winner == other
    moves = [
        (math.log(effect.mfu[1] / effect.mfu[0]), effect)
        for effect in comparison.single_changes[other]
        if effect.mfu and min(effect.mfu) > 0
    ]
    ordered = sorted((move for move in moves if abs(move[0]) >= LEAST_MFU_CHANGE), key=lambda move: -abs(move[0]))
    along = [effect for move, effect in ordered if (move > 0) == rose]
    against = [effect for move, effect in ordered if (move > 0) != rose]
    if not along:
        return ""
    key, larger = _direction(along[0])
    reasons = MFU_REASONS.get(key) if larger == rose else None  # they hold for a larger value that raises it
    moved = ("raised", "lowered") if rose else ("lowered", "raised")
    said = reasons[not larger] if reasons else f"{change_words(along[0])} {moved[0]} it"
    return said + (f"; {_change_name(against[0])} {moved[1]} it" if against else "")


def printed_mfu(comparison: Comparison) -> str:
    """The highest MFU that nanoGPT's logs print, and of which card that is; "" where it is of the right one.

    nanoGPT prints a running mean that evaluations pull down, so the highest is nearest to the speed of updates.
    """
    cases = comparison.cases
    printed = [_highest_printed_mfu(case) for case in cases]
    if any(case.run.format != "nanogpt" or case.cardless for case in cases) or None in printed:
        return ""
    peaks = {case.card.peak_flops if case.card else None for case in cases}
    said = f"the logs printed {_shares(printed, 1)}, of an A100's {NANOGPT_PEAK_FLOPS / 1e12:.0f} TFLOP/s"
    if len(peaks) != 1 or (peak := peaks.pop()) is None:
        return f"{said}, whatever the card; --gpu NAME gives the true share"
    if abs(peak / NANOGPT_PEAK_FLOPS - 1) < NEAR_A100:
        return ""
    true = [case.facts.mfu for case in cases]
    return said if None in true else f"{said}: {_shares(true, 0)} of this card"


def explained_run(comparison: Comparison) -> int:
    """The run whose changes from A are explained: the best by loss, else the fastest, else B."""
    metrics = ("at_equal_tokens", "at_equal_seconds", "tokens_per_second")
    winners = (comparison.winners.get(metric) for metric in metrics)
    return next((winner for winner in winners if winner is not None), 1) or 1


def best_run(comparison: Comparison) -> int | None:
    """The best run by loss: at equal tokens, else at equal hours, else by last losses."""
    metrics = ("at_equal_tokens", "at_equal_seconds", FINAL.get(comparison.measure) if comparison.measure else None)
    found = (comparison.winners.get(metric) for metric in metrics if metric in comparison.winners)
    return next((winner for winner in found if winner is not None), None)


def main_cause(comparison: Comparison, effects: Sequence[SingleChange], other: int) -> SingleChange | None:
    """The change of shape that is predicted to move the loss most, the way it was measured; else the one that moves
    the speed most."""
    winner = comparison.winners.get("at_equal_tokens")
    losses = {
        number: effect.final_loss_difference * (-1 if winner == other else 1)
        for number, effect in enumerate(effects)
        if effect.changes.keys() & set(SHAPE_KEYS) and effect.final_loss_difference is not None
    }
    if winner is not None and losses and max(losses.values()) > LEAST_LOSS_CHANGE:
        return effects[max(losses, key=lambda number: losses[number])]
    faster = comparison.winners.get("tokens_per_second")
    speeds = {
        number: math.log(effect.tokens_per_second_ratio) * (1 if faster == other else -1)
        for number, effect in enumerate(effects)
        if effect.tokens_per_second_ratio
    }
    if faster is not None and speeds and max(speeds.values()) > LEAST_MFU_CHANGE:
        return effects[max(speeds, key=lambda number: speeds[number])]
    return None


def _effect_words(effect: SingleChange) -> Iterator[str]:
    """`loss -0.348`, `tokens/s -56 %`, `MFU 68 → 85 %`"""
    if effect.final_loss_difference:
        yield f"loss {effect.final_loss_difference:+.3f}"
    if effect.tokens_per_second_ratio is not None:
        yield f"tokens/s {100 * (effect.tokens_per_second_ratio - 1):+.0f} %"
    if effect.mfu:
        yield f"MFU {100 * effect.mfu[0]:.0f} → {100 * effect.mfu[1]:.0f} %"


def _direction(effect: SingleChange) -> tuple[str, bool]:
    """The key that names a change, and whether its value grew."""
    for key in (*CHANGED, *effect.named):
        if key in effect.named:
            before, after = effect.named[key]
            grew = isinstance(before, int | float) and isinstance(after, int | float) and after > before
            return key, grew
    raise AssertionError("a change has a key")


def _change_name(effect: SingleChange) -> str:
    key, larger = _direction(effect)
    return CHANGED[key][not larger] if key in CHANGED else change_words(effect)


def _highest_printed_mfu(case: Case) -> float | None:
    printed = (step.more.get("printed_mfu") for step in case.steps)
    return max((mfu for mfu in printed if isinstance(mfu, float) and mfu > 0), default=None)


def _shares(shares: Sequence[float | None], digits: int) -> str:
    return units.listed(f"{100 * (share or 0):.{digits}f} %" for share in shares)
