"""Rules about losses that go wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import takewhile

from onecard import units
from onecard.config.command import flags_of
from onecard.doctor.case import Case
from onecard.doctor.course import BLOCKS, FEWEST_POINTS, LAST_BLOCKS, LEAST_RISE_OF_SHORT, rise, training_losses
from onecard.doctor.evidence import (
    IMPOSSIBLE_LOSS,
    WAVES,
    above,
    begins_at_once,
    finite,
    from_scratch,
    known,
    lines,
    lost_at,
    messages,
    no_number,
    noise,
    numbers,
    only_told,
    pairs,
    place,
    saved_steps,
    shown,
    sureness,
    vals,
    vocabulary,
    without_update_from,
    zero_from,
)
from onecard.doctor.needs import CONFIG, Need, needs
from onecard.doctor.rules.spikes import LEAST, WINDOW, high, spikes
from onecard.findings import Finding
from onecard.plan import recipe
from onecard.runs.records import Eval, Step

TRAINING_WAVES = 0.06  # nats: those of all losses, and as much again from text that comes in an order
NOTED = 3  # standard deviations of an evaluation
RECOVERED_FROM_NAN = 5  # finite losses after it
SETTLED_STEPS = 2000  # before, a loss scale is still being found
SKIPS_PER_STEP = 1 / 200
LOWEST_SCALE = 32
FIRST_LOSS_OF_MODDED = 30.0  # nats, of modded-nanogpt, which rightly starts at 16 to 23
LATER = 100  # updates: before, hardly any run has saved a checkpoint
FIRST_UPDATES = 10


def loss_nan(case: Case) -> Iterator[Finding]:
    """A loss or a gradient norm that is nan or infinite.

    What it sees: nan or inf as a training or validation loss; or as the gradient norm of every step until the end of
    the log (at least three), whatever loss is printed; or losses of exactly 0 until the end that no learning led to:
    Trainer prints nan so.

    Why it matters: from that step on the weights are lost, or no update is made; every further hour is wasted.

    What to do: go back to the last checkpoint before it, with half the learning rate (or the table's for the size,
    where that is less) and grad_clip 1.0; compute in bfloat16 where the card has it, which does not overflow as float16
    does. Before the first update no learning rate is to blame: look at the build, the weights and the data. In the
    first updates of a fine-tune in float16 it may also be a loss scaler with fused AdamW, which made nan in older
    versions of torch.

    When it is wrong: a single nan under float16's loss scaling is skipped; if the losses after it are finite, it is an
    error to look into, not fatal: the run goes on.
    """
    records: tuple[Step | Eval, ...] = (*case.steps, *case.evals)
    bad = [record for record in records if not finite(record)]
    if (hidden := without_update_from(case) or zero_from(case)) and all(hidden.step < b.step for b in bad):
        if not _had_learned_in_wide_numbers(case, hidden):
            yield _numerics_broke(case, hidden)
            return
        bad = [hidden]  # from here on no update was made
    if not bad:
        return
    first = min(bad, key=lambda record: record.step)
    after = [step.loss for step in case.steps if step.step > first.step]
    lost = bad[0] is hidden
    recovered = not lost and len(after) >= RECOVERED_FROM_NAN and all(map(math.isfinite, after[-RECOVERED_FROM_NAN:]))
    if not recovered and not lost:
        first = lost_at(case) or first
    good = [step for step in case.steps if step.step < first.step and math.isfinite(step.loss)]
    saved = max((step for step in saved_steps(case) if step < first.step), default=None)
    evaluated = max((e for e in case.evals if 0 < e.step < first.step), key=lambda e: e.step, default=None)
    if recovered:
        yield Finding(
            rule="loss-nan",
            severity="error",
            sure="high",
            what=f"the loss is {no_number(first)} at {place(case, first)}, and finite again later",
            why="the loss of one update is not a number; loss scaling may have skipped it. Not fatal: the run went on",
            fix=f"look at the data and the gradient norm there; grad_clip=1.0{_bfloat16(case)}",
            seen=(*(shown(step) for step in good[-2:]), shown(first)),
        )
        return
    if _before_the_first_update(case, first):
        yield Finding(
            rule="loss-nan",
            severity="fatal",
            sure="high",
            what=f"the loss is {no_number(first)} at {place(case, first)}, before the first update"
            + _ran_on(case, first),
            why="nothing has been learned yet, so it is not the learning rate: the weights that were loaded, the build "
            "or the data are broken",
            fix="start again with one batch in float32 and a fresh build; look at the weights it starts from and at "
            "the token ids of that batch",
            seen=(shown(first),),
        )
        return
    patch = _calmer(case)
    calm = flags_of(patch) or _calm(case)
    may_have_saved = case.run.format != "onecard"  # ours records every checkpoint
    back_to = "start again, as no checkpoint before it is known"
    if saved is not None:
        back_to = f"go back to the checkpoint of step {saved:,}"
    elif evaluated is not None and may_have_saved:
        back_to = f"go back to the last checkpoint before it (evaluated at {place(case, evaluated)})"
    elif first.step >= LATER and may_have_saved:
        back_to = "go back to the last checkpoint before it, or start again if there is none"
    yield Finding(
        rule="loss-nan",
        severity="fatal",
        sure="high",
        what=f"the {'gradient norm is nan' if lost else f'loss is {no_number(first)}'} at {place(case, first)}"
        + _ran_on(case, first),
        why="the weights are lost from there on",
        fix=f"{back_to}; {_scaler_of_old(case, first)}{calm}",
        seen=(*(shown(step) for step in good[-2:]), shown(first)),
        patch=patch,
    )


def _had_learned_in_wide_numbers(case: Case, first: Step) -> bool:
    """Whether a run that is known not to compute in float16 made updates before: its rate is the first suspect."""
    config = known(case, "dtype")
    wide = case.cardless == "cpu" or (config is not None and config.dtype in ("float32", "bfloat16"))
    return wide and first.grad_norm is not None and any(step.step < first.step for step in case.steps)


def _numerics_broke(case: Case, first: Step) -> Finding:
    """A run whose losses look finite and which trains nothing."""
    norm = first.grad_norm is not None and not math.isfinite(first.grad_norm)
    good = [step for step in case.steps if step.step < first.step]
    broken = "the loss is exactly 0"
    if norm:
        broken = f"the gradient norm is {'nan' if math.isnan(first.grad_norm or 0.0) else 'infinite'}"
    since = "in every logged step" if not good else f"from {place(case, first)} on"
    return Finding(
        rule="loss-nan",
        severity="fatal",
        sure="high" if norm else "medium",
        what=f"{broken} {since}"
        + (f", after {good[-1].loss:,.6g}" if good and not norm else "")
        + _ran_on(case, first),
        why="no update is made with such a gradient, whatever loss is printed"
        if norm
        else "no text is learned at one blow: the numbers broke, and Trainer prints nan as 0",
        fix=f"float16 overflows: compute in float32{_bfloat16(case)}, and load weights in float32; then look at the "
        "labels (all masked?) and at a lower learning rate",
        seen=(*(shown(step) for step in good[-1:]), shown(first), shown(case.steps[-1])),
    )


def _before_the_first_update(case: Case, first: Step | Eval) -> bool:
    """Whether no update was made before this record. A loss is printed by the update that it is the loss before."""
    if not case.run.steps_told:
        return False
    from_one = isinstance(first, Step) and case.run.format in ("llm.c", "onecard", "modded-nanogpt", "hf-trainer")
    return (first.step == 0 or (first.step == 1 and from_one)) and begins_at_once(case)


def _ran_on(case: Case, first: Step | Eval) -> str:
    """What the run wasted after it was lost, in a clause; "" where the log ends there."""
    records: tuple[Step | Eval, ...] = (*case.steps, *case.evals)
    after = max(record.step for record in records) - first.step
    if after <= 0:
        return ""
    unit = "update" if case.run.steps_told else "logged step"
    each = case.facts.seconds_per_step if case.run.steps_told else None
    time = f", {units.duration(after * each)}," if each else ""
    return f": {units.things(after, f'further {unit}')}{time} trained nothing"


def _scaler_of_old(case: Case, first: Step | Eval) -> str:
    """A cause beside the learning rate, where a fine-tune in float16 is lost in its first updates."""
    config = known(case, "dtype", "init_from")
    float16 = config is None or config.dtype in ("float16", "auto")
    if first.step > FIRST_UPDATES or not float16 or from_scratch(case) or messages(case, "resume"):
        return ""
    return (
        "if it computes in float16, first try a newer torch or AdamW with fused=False (a loss scaler with fused AdamW "
        "made nan in older ones); then "
    )


def _bfloat16(case: Case) -> str:
    """bfloat16 as one more thing to do; "" for a card that lacks it."""
    if _lacks_bfloat16(case):
        return ""
    return ", or bfloat16" + ("" if case.card else " where the card has it")


def _lacks_bfloat16(case: Case) -> bool:
    """Whether the card does not compute in bfloat16, by its name or because the log says so."""
    said = any(message.values.get("cause") == "no-bfloat16" for message in messages(case, "crash"))
    return said or (case.card is not None and case.card.native_bf16 is False)


def _calm(case: Case) -> str:
    return f"half the learning rate, grad_clip 1.0{_bfloat16(case)}"


def _calmer(case: Case) -> dict[str, object]:
    """Half the rate and at most the usual one, clipping, and bfloat16 where the card computes in it."""
    config = known(case, "learning_rate", "min_lr", "grad_clip", "dtype")
    if config is None:
        return {}
    rate, params = config.learning_rate / 2, case.facts.params_total or case.facts.params
    if params and config.optimizer == "adamw":
        rate = min(rate, recipe.learning_rate(params).value)
    patch: dict[str, object] = {"learning_rate": float(f"{rate:.3g}")}
    if config.min_lr:
        patch["min_lr"] = recipe.min_lr(float(f"{rate:.3g}")).value
    if config.optimizer == "muon":
        patch["muon_learning_rate"] = float(f"{config.muon_learning_rate / 2:.3g}")
    if not 0 < config.grad_clip <= 1:
        patch["grad_clip"] = 1.0
    if config.dtype == "float16" and case.card and case.card.native_bf16:
        patch["dtype"] = "bfloat16"
    return patch


def instability_not_precision(case: Case, others: Sequence[Case]) -> Iterator[Finding]:
    """A nan in float16 that float16 did not cause.

    What it sees: a float16 run whose loss rises before it becomes nan; or, among the runs given together, one in
    float32 or bfloat16 whose loss explodes at about the same step.

    Why it matters: an overflow comes without warning. A loss that climbs first is diverging, and would in any
    precision: changing dtype alone does not fix it.

    What to do: a lower learning rate, a longer warm-up, grad_clip 1.0; only then another dtype.

    When it is wrong: with few logged points before the nan, a rise may be noise.
    """
    nan = next((step for step in case.steps if not math.isfinite(step.loss)), None)
    if nan is None or not _float16(case):
        return
    before = [step for step in case.steps if step.step < nan.step and math.isfinite(step.loss)][-WINDOW:]
    rising = len(before) > LEAST and before[-1].loss > high([step.loss for step in before[:-1]], sigmas=3, least=0.1)
    twin = next((other for other in others if _explodes_near(other, nan.step)), None)
    if not rising and twin is None:
        return
    yield Finding(
        rule="instability-not-precision",
        severity="info",
        sure="medium",
        what=f"the loss was rising before it became nan at {place(case, nan)}"
        if rising
        else f"{twin.run.source if twin else ''} in another precision explodes at about the same step",
        why="float16 overflows without warning; a loss that climbs first diverges in any precision",
        fix="lower the learning rate and clip gradients; another dtype alone will not fix it",
        seen=tuple(shown(step) for step in (*before[-1:], nan, *before[-3:-1])),
    )


def _float16(case: Case) -> bool:
    """Whether it computes in float16: said, or nanoGPT's own choice on a card without bfloat16."""
    config = known(case, "dtype")
    without = case.card is not None and case.card.native_bf16 is False
    if config is None:
        return without and case.run.format == "nanogpt"
    return config.dtype == "float16" or (config.dtype == "auto" and without)


def _explodes_near(other: Case, step: int) -> bool:
    """Whether a run in a wider precision goes up or to nan within a tenth of that step."""
    config = known(other, "dtype")
    if config is None or _float16(other):
        return False
    return any(abs(spike.step.step - step) <= max(10, 0.1 * step) for spike in spikes(other.steps)) or any(
        not math.isfinite(s.loss) and abs(s.step - step) <= max(10, 0.1 * step) for s in other.steps
    )


def scaler_skips(case: Case) -> Iterator[Finding]:
    """Loss scaling that skips updates again and again.

    What it sees: after the first 2,000 iterations, more than one skipped update in 200; or a loss scale below 32.

    Why it matters: float16 gradients overflow, and each skipped update is lost. A scale that keeps falling means that
    the gradients themselves explode.

    What to do: bfloat16 where the card has it; otherwise a lower learning rate.

    When it is wrong: in the first updates skips are how the scale is found; those are not counted.
    """
    found = messages(case, "scaler-skip")
    last = case.facts.last_step or 0
    late = [m for m in found if isinstance(step := m.values.get("step", 0), int) and step >= SETTLED_STEPS]
    scales = [scale for m in found if isinstance(scale := m.values.get("scale"), int | float)]
    often = last > SETTLED_STEPS and len(late) > max(1, (last - SETTLED_STEPS) * SKIPS_PER_STEP)
    low = bool(scales) and min(scales) < LOWEST_SCALE
    if not often and not low:
        return
    config = known(case, "dtype")
    native = case.card is not None and case.card.native_bf16 is True
    what = f"{len(late)} updates skipped in {last - SETTLED_STEPS:,}" if often else ""
    scale = f"the loss scale fell to {min(scales):g}" if low else ""
    yield Finding(
        rule="scaler-skips",
        severity="warn",
        sure="high",
        what="; ".join(filter(None, (what, scale))),
        why="float16 gradients overflow, and each skipped update is lost",
        fix="--dtype=bfloat16, which this card has" if native else f"a lower learning rate{_bfloat16(case)}",
        seen=tuple(line for message in (late or found)[-3:] for line in lines(message, 1)),
        patch={"dtype": "bfloat16"} if native and config and config.dtype != "bfloat16" else {},
    )


def diverging(case: Case) -> Iterator[Finding]:
    """A loss that goes up instead of down.

    What it sees: the last losses are above 15 nats, after lower ones: an error. Or the last three validation losses are
    all above the best, and the training losses too, by more than
    five standard errors: of an evaluation (as they scatter, or half of the error that the run recorded) and of the slow
    waves that healthy losses have (0.04 nats). From eight on it is an error and sure, below that a warning. Or, in the
    training losses alone: so far are the medians of the last three tenths of the run above the best tenth (with waves
    of 0.06), or of the last two or one by more than 1.0 or 1.5 nats, unless the evaluations still improve in that time.
    Of a log with fewer than 40 losses it takes 1.0 nats at least.

    Why it matters: the model gets worse at what it is trained on. This is not overfitting, and it does not go away.

    What to do: stop; go back to the best checkpoint with half the learning rate.

    When it is wrong: after a change of the data or of the learning rate on purpose. A rise of less than five standard
    errors, but more than three times the noise of an evaluation, may go away: it is only a note.
    """
    yield from list(_exploded(case)) or list(_evaluations_rise(case)) or _training_rises(case)


def _exploded(case: Case) -> Iterator[Finding]:
    """Losses that end where no guessing is so bad, after they were lower."""
    limit = FIRST_LOSS_OF_MODDED if case.run.format == "modded-nanogpt" else IMPOSSIBLE_LOSS
    kinds: tuple[Sequence[tuple[Step | Eval, float]], ...] = (training_losses(case), vals(case))
    for points in kinds:
        ended = [*takewhile(lambda point: point[1] > limit, reversed(points))]
        before = points[: len(points) - len(ended)]
        if not ended or not before or points[0][1] > limit:
            continue
        best, last = min(before, key=lambda point: point[1]), points[-1]
        worst = max(ended, key=lambda point: point[1])
        patch = _calmer(case)
        yield Finding(
            rule="diverging",
            severity="error",
            sure="high" if len(ended) > 1 else "medium",
            what=f"the loss exploded: {best[1]:.4g} at {place(case, best[0])}, "
            f"{worst[1]:.4g} at {place(case, worst[0])}" + (f", {last[1]:.4g} at the end" if last is not worst else ""),
            why=f"above {limit:g} nats a model is worse than any guess: what it had learned is lost",
            fix=f"stop, go back to a checkpoint near {place(case, best[0])}, " + (flags_of(patch) or _calm(case)),
            seen=tuple(dict.fromkeys(shown(record) for record in (best[0], worst[0], last[0]))),
            patch=patch,
        )
        return


def _evaluations_rise(case: Case) -> Iterator[Finding]:
    found = pairs(case)
    if len(found) < 4:
        return
    last, sigma = found[-3:], noise(case)
    best_val = min(val for _, _, val in found)
    best_train = min(train for _, train, _ in found)
    height = min(min(val - best_val, train - best_train) for _, train, val in last)
    if not above(height, NOTED * sigma):
        return
    best = min(found, key=lambda row: row[2])[0]
    patch = _calmer(case)
    sure = sureness(height / math.hypot(sigma, WAVES))
    finding = Finding(
        rule="diverging",
        severity="error" if sure == "high" else "warn",
        sure=sure,
        what=f"both losses rise: val {numbers(val for _, _, val in last)} after {best_val:.4f} at {place(case, best)}",
        why=f"three evaluations are {height:.3f} or more above the best, in training too; the noise is {sigma:.3f}, "
        f"and slow waves of {WAVES} are healthy",
        fix=f"stop, go back to {place(case, best)}, " + (flags_of(patch) or _calm(case)),
        seen=(shown(best), *(shown(evaluation) for evaluation, _, _ in last)),
        patch=patch,
    )
    yield finding if sure != "low" else only_told(finding, "so small a rise may go away")


def _training_rises(case: Case) -> Iterator[Finding]:
    points = training_losses(case)
    found = rise(points)
    if found is None:
        return
    error = math.hypot(found.error, TRAINING_WAVES)
    sure = sureness(found.height / error)
    first = round(len(points) * (1 - LAST_BLOCKS / BLOCKS))
    best_val = min(vals(case), key=lambda pair: pair[1], default=None)
    still_improves = best_val is not None and best_val[0].step >= points[first][0].step  # evaluations are more exact
    short = len(points) < FEWEST_POINTS and found.height < LEAST_RISE_OF_SHORT
    if sure == "low" or still_improves or short:
        return
    patch = _calmer(case)
    yield Finding(
        rule="diverging",
        severity="error" if sure == "high" else "warn",
        sure=sure,
        what=f"the training loss rises: {found.best:.4g} around {place(case, found.best_record)}, "
        f"{found.last[-1]:.4g} at the end",
        why=f"the last part of the run is {found.height:.2f} nats or more above its best part (± {error:.2f})",
        fix=f"stop, go back to a checkpoint near {place(case, found.best_record)}, " + (flags_of(patch) or _calm(case)),
        seen=tuple(shown(record) for record in (found.best_record, points[first][0], found.last_record)),
        patch=patch,
    )


def _impossible_first(case: Case) -> tuple[Step | Eval, float] | None:
    """The first logged loss, where no vocabulary explains it."""
    firsts: tuple[tuple[Step | Eval, float], ...] = (*training_losses(case)[:1], *vals(case)[:1])
    first = min(firsts, key=lambda point: point[0].step, default=None)
    return first if first and first[1] > IMPOSSIBLE_LOSS else None


VOCABULARY = Need(about="config", met=lambda case: CONFIG.met(case) or _impossible_first(case) is not None)


@needs(VOCABULARY, formats=("nanogpt", "onecard", "minimal", "llm.c", "nanochat"))
def bad_initial_loss(case: Case) -> Iterator[Finding]:
    """A first loss that a model with random weights cannot have.

    What it sees: at step 0 of a run from scratch, a loss above ln(vocab_size) + 1, or below ln(vocab_size) - 0.5. Where
    the vocabulary is not known, or the run does not start from scratch: a first logged loss above 15, which no
    vocabulary explains. modded-nanogpt, which rightly starts at 16 to 23, is not checked.

    Why it matters: random weights know nothing, so the loss is ln V. Higher: the initialisation or the targets are
    wrong. Lower: the answer leaks into the input, or the weights are not random.

    What to do: print a batch and its targets; the targets are the input shifted by one.

    When it is wrong: when the vocabulary is padded far beyond the tokens in use, or the output layer starts biased.
    """
    if case.run.format == "modded-nanogpt":
        return
    if first := _impossible_first(case):
        yield Finding(
            rule="bad-initial-loss",
            severity="warn",
            sure="medium",
            what=f"the first loss is {first[1]:.4g}: a guess among a million tokens costs 13.8",
            why="the initialisation or the targets are wrong, or it is not a mean: a sum over tokens or micro-batches",
            fix="look at the initialisation (std 0.02), at one batch with its targets, and at what is divided by",
            seen=(shown(first[0]),),
        )
        return
    size = vocabulary(case)
    if case.run.format == "hf-trainer" or size is None or not from_scratch(case):
        return
    first_eval = next((e for e in case.evals if e.step == 0 and begins_at_once(case)), None)
    first_step = next((step for step in case.steps if step.step <= 1), None)
    loss = first_eval.val_loss if first_eval else first_step.loss if first_step else None
    record = first_eval or first_step
    if loss is None or record is None or not math.isfinite(loss):
        return
    expected = math.log(size)
    if expected - 0.5 <= loss <= expected + 1:
        return
    high = loss > expected
    yield Finding(
        rule="bad-initial-loss",
        severity="warn",
        sure="high" if case.run.format in ("nanogpt", "onecard") else "medium",
        what=f"the first loss is {loss:.4f}; random weights over {size:,} tokens give ln V = {expected:.2f}",
        why="the initialisation or the targets are wrong"
        if high
        else "the answer leaks into the input, the weights are not random, or the vocabulary is another one",
        fix="look at one batch: the targets must be the input shifted by one token"
        if not high
        else "look at the initialisation (std 0.02) and at one batch with its targets",
        seen=(shown(record),),
    )
