"""Every threshold of the rules' table: below, at and above it, with the severity and the sureness of the table."""

import math
from collections.abc import Sequence

import pytest

from onecard.doctor.case import Case
from onecard.doctor.rules import NAMES
from onecard.plan.cards import find_card
from onecard.plan.counts import count_params
from onecard.plan.loss import law
from onecard.plan.recipe import usual_learning_rate
from onecard.runs.records import Step
from onecard.units import GIB
from tests.unit.doctor.cases import (
    BEFORE,
    CONTINUED,
    HOT,
    PARAMS,
    SICK,
    SMALL,
    TOKENS,
    card_run,
    case,
    changed,
    evals,
    evaluation,
    falling_then_raised,
    found,
    learning,
    norms,
    oom,
    said,
    step,
    steps,
    waiting,
)

INFO, INFO_MEDIUM, INFO_LOW = ("info", "high"), ("info", "medium"), ("info", "low")
WARN, WARN_MEDIUM = ("warn", "high"), ("warn", "medium")
ERROR, FATAL = ("error", "high"), ("fatal", "high")
SILENT = None


def weight(name: str, patient: Case, before: Sequence[Case] = ()) -> tuple[str, str] | None:
    """Severity and sureness of what is found; None where nothing is."""
    weights = {(finding.severity, finding.sure) for finding in found(name, patient, before)}
    assert len(weights) <= 1, weights
    return weights.pop() if weights else None


def sized(stated: int) -> Case:
    """A run of SMALL, 124.37M parameters in all, whose comment states another number, in thousands."""
    return case(f"{SMALL}# a model of ~{stated / 1000}M parameters\n")


def tokens(iters: int) -> Case:
    return case(changed(max_iters=iters, lr_decay_iters=iters), records=learning(1000))


def rate(value: float, **more: object) -> Case:
    return case(changed(learning_rate=value, min_lr=value / 10, **more))


def muon(**keys: object) -> Case:
    """A run of ours with Muon."""
    return case(changed(optimizer="muon", **keys), log_format="onecard")


def jump(to: float) -> Case:
    """Losses of 3.3 (3.3 + 0.3 is a hair below 3.6), and then others."""
    return case(records=steps([*[3.3] * 20, *[to] * 11]))


def skips(count: int, scale: float = 1024.0) -> Case:
    """`count` skipped updates in the 2,000 iterations after the first 2,000."""
    late = [said("scaler-skip", step=2100 + n, scale=scale) for n in range(count)]
    return case(records=steps([4.0] * 41), messages=late)


def level(loss: float, *, gain: float = 0.0, count: int = 40) -> Case:
    """Losses at a level over GPT-2's vocabulary, which fall by so much for twice the steps."""
    return case(records=steps([loss - gain * math.log2((n + 1) / 30) for n in range(count)]))


def swinging(width: float) -> Case:
    """Losses that jump up and down by so much from one to the next."""
    return case(None, records=steps([7.0 + width * (n % 2) for n in range(100)]))


def lagging(gap: float) -> Case:
    """Evaluations so far off the training losses of a program that logs only those."""
    every = [evaluation(n, 4.0 + gap) for n in range(500, 5001, 500)]
    return case(None, records=[*steps([4.0] * 51), *every], log_format="llm.c")


def still(seconds: float, count: int, *, first: int = 0) -> list[Step]:
    """Updates that all take so long."""
    return [step(100 * n + 1, 4.0 - 0.001 * n, seconds=seconds) for n in range(first, first + count)]


def noisy(rows: Sequence[tuple[float, float]]) -> Case:
    """Too few evaluations to tell their noise: 0.024 is assumed."""
    return case(records=evals(rows))


def growing(nats: float, *, evaluations: int = 3) -> Case:
    """The validation loss is past its minimum, and val - train grows by so much, evenly."""
    shares = [(n + 1) / evaluations for n in range(evaluations)]
    later = [(1.8 + (0.1 - nats) * share, 2.0 + 0.1 * share) for share in shares]
    return noisy([(2.0, 2.1), (1.8, 2.0), *later])


def off_the_law(nats: float, *, config: str = SMALL, passes: float | None = None) -> Case:
    last = evaluation(9000, law(PARAMS, 9000 * TOKENS) + 0.21 + nats)
    return case(config, records=[last], train_tokens=round(9000 * TOKENS / passes) if passes else None)


def at_mfu(share: float) -> Case:
    """A run of SMALL that uses this share of an RTX 4070."""
    card = find_card("RTX 4070")
    assert card
    assert card.peak_flops
    flops = (6 * count_params(case().resolved.config).nanogpt + 12 * 12 * 768 * 1024) * TOKENS  # type: ignore[union-attr]
    return case(records=[step(n + 1, 4.0, seconds=flops / card.peak_flops / share) for n in range(9)], card="RTX 4070")


def fast(share_off: float) -> Case:
    more = {"printed_seconds": 1.0, "printed_tokens_per_second": TOKENS * (1 + share_off)}
    return case(records=[step(n + 1, 4.0, seconds=1.0, **more) for n in range(9)])


def evaluating(seconds: float) -> Case:
    """Evaluations that take so long after every 100 updates of one second."""
    run = [step(n, 4.0, seconds=1.0 + (seconds if n % 100 == 0 else 0.0)) for n in range(1001)]
    return case(changed(eval_interval=100), records=[*run, *(evaluation(n, 4.0, 4.0) for n in range(0, 1001, 100))])


def states(room: float) -> Case:
    """A run of SMALL on a card of which `room` times its states are nine tenths."""
    return case(messages=[oom(tried=1, capacity=18 * PARAMS * room / 0.9 / GIB, allocated=1)])


def resumed(printed: int) -> Case:
    return case(CONTINUED, printed_params=printed)


def part_before(val: float) -> list[Case]:
    return [case(records=[evaluation(5000, val, val)])]


def card_of_ten(*, allocated: float = 5.0, tried: float = 1.0, unused: float = 0.5, process: float = 9.5) -> Case:
    """A message about a card of 10 GiB, of which half a GiB is free."""
    sizes = {"capacity": 10.0, "tried": tried, "free": 0.5, "allocated": allocated, "reserved_unallocated": unused}
    return case(None, messages=[oom(**sizes, process=process)])


def falling(gain: float) -> Case:
    """Evaluations that fall by exactly so much for twice the tokens."""
    return case(records=[evaluation(n, 4.0 - gain * math.log2(n / 500)) for n in range(500, 10_001, 500)])


AFTER = case(records=[evaluation(5000, 1.05, 1.05)])
USUAL = usual_learning_rate(PARAMS)
ROWS = [
    ("params-mismatch", sized(146_300), SILENT),  # 124.37M is 15.0 % less
    ("params-mismatch", sized(146_400), ERROR),
    ("params-mismatch", sized(107_400), ERROR),  # 123.59M is 15.1 % more
    ("params-mismatch", sized(107_500), SILENT),
    ("stale-comment", case(SMALL.replace("10000\n", "10000  # ~5.5B tokens\n", 1)), SILENT),  # 4.7 % off
    ("stale-comment", case(SMALL.replace("10000\n", "10000  # ~5.52B tokens\n", 1)), INFO),
    ("heads-do-not-divide", case(None, stated={"n_embd": 769, "n_head": 12}), FATAL),
    ("odd-head-size", case(changed(n_head=6)), SILENT),  # 128
    ("odd-head-size", case(changed(n_head=16)), INFO),  # 48
    ("odd-head-size", case(changed(n_head=64)), WARN),  # 12
    ("unpadded-vocab", case(changed(vocab_size=50304)), SILENT),
    ("unpadded-vocab", case(changed(vocab_size=50264)), INFO),  # of 8
    ("unpadded-vocab", case(changed(vocab_size=50257)), WARN),
    ("unpadded-vocab", case(changed(vocab_size=50257, compile=False)), INFO),
    ("logits-returned", case(), INFO),
    ("logits-returned", case(changed(vocab_size=65)), None),  # the plan without them is as large
    ("unknown-key", case(changed(eval_batch_size=2)), ERROR),
    ("batch-arithmetic", case(printed_tokens_per_step=TOKENS + 1), ERROR),
    ("accumulation-for-target", case(), INFO),
    ("small-batch-betas", case(changed(batch_size=1, gradient_accumulation_steps=127)), WARN_MEDIUM),
    ("small-batch-betas", case(changed(batch_size=1, gradient_accumulation_steps=128)), SILENT),
    ("small-batch-betas", case(changed(gradient_accumulation_steps=1, beta2=0.9501)), SILENT),
    ("small-batch-betas", case(changed(gradient_accumulation_steps=1, beta2=0.95, max_iters=25)), WARN_MEDIUM),
    ("few-large-updates", case(changed(max_iters=1500, lr_decay_iters=1500)), INFO_MEDIUM),
    ("few-large-updates", case(changed(max_iters=1501, lr_decay_iters=1501)), SILENT),
    ("few-large-updates", case(changed(max_iters=100, lr_decay_iters=100)), INFO_MEDIUM),
    ("few-large-updates", case(changed(max_iters=99, lr_decay_iters=99)), SILENT),  # a test
    ("few-large-updates", case(changed(max_iters=1000, gradient_accumulation_steps=7)), SILENT),  # 28,672 a half
    ("few-large-updates", case(changed(max_iters=1000, gradient_accumulation_steps=8)), INFO_MEDIUM),
    ("few-large-updates", case(changed(max_iters=1000, optimizer="muon")), SILENT),
    ("batch-too-large", case(changed(gradient_accumulation_steps=256)), SILENT),
    ("batch-too-large", case(changed(gradient_accumulation_steps=257)), WARN_MEDIUM),
    ("lr-out-of-range", rate(4.0001 * USUAL), WARN_MEDIUM),
    ("lr-out-of-range", rate(4 * USUAL), SILENT),
    ("lr-out-of-range", rate(6e-4 / 4), SILENT),
    ("lr-out-of-range", rate(6e-4 / 4.001), WARN_MEDIUM),
    ("lr-out-of-range", rate(7.9 * USUAL, gradient_accumulation_steps=256), SILENT),  # four times the batch
    ("lr-out-of-range", rate(8.1 * USUAL, gradient_accumulation_steps=256), WARN_MEDIUM),
    ("lr-out-of-range", muon(muon_learning_rate=0.21), WARN_MEDIUM),
    ("lr-out-of-range", muon(muon_learning_rate=0.2), SILENT),
    ("lr-out-of-range", muon(muon_learning_rate=0.002), SILENT),
    ("lr-out-of-range", muon(muon_learning_rate=0.0019), WARN_MEDIUM),
    ("lr-out-of-range", muon(learning_rate=0.3, min_lr=0.0), SILENT),  # of embeddings, beside Muon
    ("decay-horizon", case(changed(lr_decay_iters=9999)), WARN),
    ("decay-horizon", case(changed(lr_decay_iters=600_000, max_iters=25)), WARN),  # however short
    ("decay-horizon", case(changed(decay_lr=False)), WARN),
    *(("decay-horizon", case(changed(learning_rate=r, min_lr=r / 5)), SILENT) for r in (1e-3, 6e-4, 3e-4, 7e-4)),
    ("decay-horizon", case(changed(learning_rate=3e-4, min_lr=6e-5)), SILENT),  # 0.2 * 3e-4 is a hair below 6e-5
    ("decay-horizon", case(changed(learning_rate=3e-4, min_lr=6.01e-5)), WARN),
    ("warmup-length", case(changed(warmup_iters=99)), INFO_MEDIUM),
    ("warmup-length", case(changed(warmup_iters=100)), SILENT),
    ("warmup-length", case(changed(warmup_iters=1000)), SILENT),
    ("warmup-length", case(changed(warmup_iters=1001)), INFO_MEDIUM),
    ("warmup-length", case(changed(warmup_iters=50, max_iters=600)), INFO_MEDIUM),
    ("warmup-length", case(changed(warmup_iters=5, max_iters=25)), INFO_MEDIUM),
    ("stopped-early", case(records=[step(9000, 4.0)]), SILENT),
    ("stopped-early", case(records=[step(8999, 4.0)]), INFO),
    ("loss-nan", case(records=[step(1, math.nan)]), FATAL),
    ("loss-nan", case(records=[step(1, math.inf)]), FATAL),
    ("loss-spike", jump(3.6), SILENT),
    ("loss-spike", jump(3.601), WARN_MEDIUM),
    ("scaler-skips", skips(10), SILENT),
    ("scaler-skips", skips(11), WARN),
    ("scaler-skips", skips(1, scale=32.0), SILENT),
    ("scaler-skips", skips(1, scale=31.0), WARN),
    ("diverging", noisy([(3.0, 3.0), *[(3.072, 3.072)] * 3]), SILENT),
    ("diverging", noisy([(3.0, 3.0), *[(3.073, 3.073)] * 3]), INFO_LOW),
    ("diverging", noisy([(3.0, 3.0), *[(3.23, 3.23)] * 3]), INFO_LOW),  # 5 x 0.0466, of noise and waves
    ("diverging", noisy([(3.0, 3.0), *[(3.24, 3.24)] * 3]), WARN_MEDIUM),
    ("diverging", noisy([(3.0, 3.0), *[(3.37, 3.37)] * 3]), WARN_MEDIUM),  # 8 x 0.0466
    ("diverging", noisy([(3.0, 3.0), *[(3.38, 3.38)] * 3]), ERROR),
    ("diverging", noisy([(3.0, 3.0), *[(3.38, 3.38)] * 2]), SILENT),
    ("diverging", noisy([(3.0, 3.0), *[(3.0, 3.38)] * 3]), SILENT),  # val alone
    ("bad-initial-loss", case(records=[evaluation(0, math.log(50304) + 0.999)]), SILENT),
    ("bad-initial-loss", case(records=[evaluation(0, math.log(50304) + 1.001)]), WARN),
    ("bad-initial-loss", case(records=[evaluation(0, math.log(50304) - 0.499)]), SILENT),
    ("bad-initial-loss", case(records=[evaluation(0, math.log(50304) - 0.501)]), WARN),
    ("overfitting", noisy([(1.0, 2.0)]), SILENT),
    ("overfitting", noisy([(1.0, 2.001)]), WARN),
    ("overfitting", noisy([(2.0, 1.9), (1.5, 2.0)]), SILENT),
    ("overfitting", noisy([(2.0, 1.9), (1.499, 2.0)]), WARN_MEDIUM),  # 5.9 x 0.085, of both losses and of splits
    ("overfitting", noisy([(2.0, 1.9), (1.3, 2.0)]), WARN),  # 8.2
    ("overfitting", noisy([(2.0, 2.0), (1.5, 2.067)]), SILENT),  # few, and above an earlier one by 2 x 0.024 x sqrt 2
    ("overfitting", noisy([(2.0, 2.0), (1.5, 2.069)]), WARN_MEDIUM),
    ("overfitting", growing(0.25, evaluations=2), SILENT),  # past its minimum for two
    ("overfitting", growing(0.23), SILENT),  # 5 x 2 x 0.024 is 0.24
    ("overfitting", growing(0.25), WARN_MEDIUM),
    ("overfitting", growing(0.37), WARN_MEDIUM),
    ("overfitting", growing(0.39), WARN),  # 8 x 2 x 0.024
    ("overfitting", noisy([(2.0, 2.1), (1.8, 2.0), *[(1.61, 2.2)] * 3]), SILENT),  # 0.39 at once: a jump is noise
    ("val-below-train", noisy([(4.0, 4.0), (3.5, 3.44)]), SILENT),  # 2 x 0.024 x sqrt 2 is 0.068
    ("val-below-train", noisy([(4.0, 4.0), (3.5, 3.43)]), INFO),
    ("needless-dropout", case(changed(dropout=0.1), train_tokens=10_000 * TOKENS), SILENT),  # one epoch
    ("needless-dropout", case(changed(dropout=0.1), train_tokens=10_000 * TOKENS + 1), WARN),
    ("needless-dropout", case(changed(dropout=0.1)), ("warn", "low")),
    ("needless-dropout", case(train_tokens=10**12), SILENT),
    ("needless-dropout", case(changed(dropout=0.5), train_tokens=10**9), SILENT),
    ("needless-dropout", case(changed(dropout=0.51), train_tokens=10**9), WARN),
    ("weight-decay-out-of-range", case(changed(weight_decay=1.0)), SILENT),
    ("weight-decay-out-of-range", case(changed(weight_decay=1.1)), WARN_MEDIUM),
    ("warmup-length", case(changed(warmup_iters=9999)), INFO_MEDIUM),
    ("warmup-length", case(changed(warmup_iters=10_000)), WARN),
    ("val-same-as-train", case(val_in_train=""), SILENT),
    ("val-same-as-train", case(val_in_train="is the beginning of the training data"), WARN),
    ("val-below-train", case(records=learning(gap=-0.29)), INFO),
    ("val-below-train", case(records=learning(gap=-0.31)), WARN),
    ("val-below-train", lagging(-0.59), SILENT),
    ("val-below-train", lagging(-0.61), WARN_MEDIUM),
    ("not-learning", level(10.5), WARN_MEDIUM),
    ("not-learning", level(10.53), ERROR),  # ln 50,304 is 10.83
    ("not-learning", level(7.03), SILENT),  # 0.65 ln V is 7.04
    ("not-learning", level(7.05), WARN_MEDIUM),
    ("not-learning", level(7.45, gain=0.21), SILENT),
    ("not-learning", level(7.45, gain=0.19), WARN_MEDIUM),
    ("not-learning", level(10.98, count=7), SILENT),  # too few points
    ("loss-too-low", case(None, records=steps([0.101] * 20)), SILENT),
    ("loss-too-low", case(None, records=steps([0.099] * 20)), WARN_MEDIUM),
    ("loss-too-low", case(records=steps([0.31] * 20)), SILENT),
    ("loss-too-low", case(records=steps([0.29] * 20)), WARN_MEDIUM),
    ("unsteady-loss", swinging(1.69), SILENT),
    ("unsteady-loss", swinging(1.71), WARN_MEDIUM),
    ("gradient-norm", case(None, records=norms(*[999.0] * 20)), SILENT),
    ("gradient-norm", case(None, records=norms(*[1001.0] * 20)), WARN_MEDIUM),
    ("gradient-norm", case(None, records=norms(*[1e6 + 1] * 20)), ERROR),
    ("gradient-norm", case(None, records=norms(*[1e-7] * 20)), WARN_MEDIUM),
    ("slowing-down", case(None, records=[*still(0.2, 40), *still(0.3199, 40, first=40)]), SILENT),
    ("slowing-down", case(None, records=[*still(0.2, 40), *still(0.3201, 40, first=40)]), WARN_MEDIUM),
    ("slowing-down", case(None, records=[*still(0.2, 40), *still(0.81, 40, first=40)]), WARN),
    ("slowing-down", case(None, records=[*still(0.3201, 40), *still(0.2, 40, first=40)]), SILENT),  # faster
    ("slower-than-planned", at_mfu(0.29), SILENT),  # the plan expects 0.83, and 0.72 at least
    ("slower-than-planned", at_mfu(0.27), WARN_MEDIUM),
    ("card-too-hot", card_run((96, 1.0, {}), (4, 1.5, HOT)), SILENT),  # seconds only
    ("card-too-hot", card_run((50, 1.0, {}), (50, 1.055, HOT)), INFO),  # 2.6 % of the time
    ("card-too-hot", card_run((50, 1.0, {}), (50, 1.075, HOT)), WARN),  # 3.5 %
    ("card-too-hot", card_run((50, 1.0, {}), (50, 1.0, HOT)), INFO),  # updates are not slower
    ("card-too-hot", card_run((100, 1.0, HOT)), WARN_MEDIUM),  # never anything else to compare with
    ("power-limit", card_run((96, 1.0, {}), (4, 2.0, {"power_limit_watts": 90.0})), SILENT),
    ("power-limit", card_run((50, 1.0, {}), (50, 1.5, {"power_limit_watts": 191.0})), SILENT),
    ("power-limit", card_run((50, 1.0, {}), (50, 1.075, {"power_limit_watts": 189.0})), WARN),
    ("power-limit", card_run((50, 1.0, {}), (50, 1.0, {"power_limit_watts": 189.0})), INFO),
    ("power-limit", card_run((100, 1.0, {"power_limit_watts": 189.0})), INFO),  # sold with 200 W
    ("power-limit", card_run((100, 1.0, {"power_limit_watts": 191.0})), SILENT),
    ("power-limit", card_run((100, 1.0, {"power_limit_watts": 189.0, "throttle": ()})), SILENT),  # it needs no more
    ("power-limit", card_run((50, 1.0, {}), (50, 2.0, {"throttle": ("power brake", "hardware slowdown")})), WARN),
    ("power-limit", card_run((50, 1.0, {}), (50, 2.0, {"throttle": ("hardware slowdown", "heat")})), SILENT),  # heat
    ("card-shared", card_run((50, 1.0, {}), (50, 1.5, {"other_busy": 0.09})), SILENT),
    ("card-shared", card_run((50, 1.0, {}), (50, 1.5, {"other_busy": 0.11})), WARN),
    ("card-shared", card_run((50, 1.0, {}), (50, 1.0, {"other_busy": 0.11})), INFO),
    ("card-shared", card_run((50, 1.0, {}), (50, 1.0, {"other_bytes": 3 * GIB - 1})), SILENT),
    ("card-shared", card_run((50, 1.0, {}), (50, 1.0, {"other_bytes": 3 * GIB})), INFO),
    ("slow-pcie-link", card_run((40, 1.0, {"pcie_generation": 3})), INFO),  # half
    ("slow-pcie-link", card_run((40, 1.0, {"pcie_width": 8})), INFO),
    ("slow-pcie-link", card_run((40, 1.0, {"pcie_width": 12})), SILENT),
    ("slow-pcie-link", card_run((5, 1.0, {}), (35, 1.0, {"pcie_generation": 1})), SILENT),  # it has been whole
    ("clocks-drop", card_run((60, 1.0, {}), (40, 1.5, {"sm_clock_mhz": 2360})), SILENT),
    ("clocks-drop", card_run((60, 1.0, {}), (40, 1.5, {"sm_clock_mhz": 2340})), WARN),
    ("clocks-drop", card_run((60, 1.0, {}), (40, 1.0, {"sm_clock_mhz": 2340})), INFO),  # updates are not slower
    ("clocks-drop", card_run((60, 1.0, {}), (40, 1.5, {"sm_clock_mhz": 1500} | HOT)), SILENT),  # card-too-hot says it
    ("waiting-for-data", case(records=waiting(0.2), log_format="onecard"), SILENT),
    ("waiting-for-data", case(records=waiting(0.21), log_format="onecard"), WARN_MEDIUM),
    ("waiting-for-data", case(records=waiting(0.51), log_format="onecard"), WARN),
    ("diverging", case(None, records=steps([*[4.0] * 35, *[4.29] * 15])), SILENT),
    ("diverging", case(None, records=steps([*[4.0] * 35, *[4.31] * 15])), WARN_MEDIUM),  # 5 x 0.06, of waves
    ("diverging", case(None, records=steps([*[4.0] * 35, *[4.47] * 15])), WARN_MEDIUM),
    ("diverging", case(None, records=steps([*[4.0] * 35, *[4.49] * 15])), ERROR),  # 8 x 0.06
    ("too-many-epochs", case(records=[step(400, 4.0)], train_tokens=100 * TOKENS), SILENT),
    ("too-many-epochs", case(records=[step(4005, 4.0)], train_tokens=1000 * TOKENS), SILENT),  # whole updates
    ("too-many-epochs", case(records=[step(401, 4.0)], train_tokens=100 * TOKENS), WARN),
    ("too-many-epochs", case(records=[step(1600, 4.0)], train_tokens=100 * TOKENS), WARN),
    ("too-many-epochs", case(records=[step(1601, 4.0)], train_tokens=100 * TOKENS), ERROR),
    ("tokens-per-parameter", tokens(math.floor(10 * PARAMS / TOKENS)), INFO_MEDIUM),
    ("tokens-per-parameter", tokens(math.ceil(10 * PARAMS / TOKENS)), SILENT),
    ("tokens-per-parameter", tokens(math.floor(100 * PARAMS / TOKENS)), SILENT),
    ("tokens-per-parameter", tokens(math.ceil(100 * PARAMS / TOKENS)), INFO_MEDIUM),
    ("tokens-per-parameter", case(changed(max_iters=25), records=[step(25, 8.0)]), INFO_MEDIUM),  # however short
    ("capacity-or-data", case(records=learning()), INFO_MEDIUM),
    ("plateau", falling(0.0201), SILENT),
    ("plateau", falling(0.0199), INFO_MEDIUM),
    ("loss-off-expectation", off_the_law(0.249), SILENT),
    ("loss-off-expectation", off_the_law(0.251), WARN_MEDIUM),
    ("loss-off-expectation", off_the_law(-0.249), SILENT),
    ("loss-off-expectation", off_the_law(-0.251), WARN_MEDIUM),
    ("loss-off-expectation", off_the_law(0.251, passes=4), WARN_MEDIUM),
    ("loss-off-expectation", off_the_law(0.251, passes=4.01), SILENT),  # the law is of new tokens
    ("loss-off-expectation", off_the_law(0.449, config=SMALL + "\nwarmup_iters = 0\n"), SILENT),
    ("loss-off-expectation", off_the_law(0.451, config=SMALL + "\nwarmup_iters = 0\n"), WARN_MEDIUM),
    ("loss-off-expectation", off_the_law(-0.251, config=SMALL + "\nwarmup_iters = 0\n"), WARN_MEDIUM),
    ("low-mfu", at_mfu(0.2501), SILENT),
    ("low-mfu", at_mfu(0.2499), WARN_MEDIUM),
    ("throughput-arithmetic", fast(0.02), SILENT),
    ("throughput-arithmetic", fast(0.021), WARN),
    ("throughput-arithmetic", fast(-0.021), WARN),
    ("eval-too-expensive", evaluating(11.0), SILENT),  # 1,111 of 11,111 seconds
    ("eval-too-expensive", evaluating(11.2), INFO),
    ("oom-system-spill", card_of_ten(allocated=10.0), SILENT),
    ("oom-system-spill", card_of_ten(allocated=10.1), ERROR),
    ("oom-other-process", card_of_ten(process=8.5), SILENT),  # others hold 1 GiB
    ("oom-other-process", card_of_ten(process=8.4), ERROR),
    ("oom-other-process", card_of_ten(process=8.4, tried=1.7), SILENT),  # it would not fit without them
    ("oom-despite-free", card_of_ten(tried=0.21), SILENT),  # 0.5 GiB is free; 0.3 are 3 %
    ("oom-despite-free", card_of_ten(tried=0.19), ("error", "low")),
    ("oom-capacity", card_of_ten(allocated=8.69), SILENT),  # 0.3 GiB of what is left are 3 %
    ("oom-capacity", card_of_ten(allocated=8.71), ERROR),
    ("oom-fragmentation", card_of_ten(allocated=8.69), ERROR),
    ("oom-fragmentation", card_of_ten(unused=0.49), SILENT),  # less than was asked for
    ("val-set-tiny", case(val_tokens=200 * 8 * 1024), SILENT),
    ("val-set-tiny", case(val_tokens=200 * 8 * 1024 - 1), WARN),
    ("states-do-not-fit", states(1.001), SILENT),
    ("states-do-not-fit", states(0.999), FATAL),
    ("resume-shape-ignored", resumed(123_590_000), SILENT),
    ("resume-shape-ignored", resumed(123_650_000), ERROR),  # the checkpoint has biases
    ("resume-lr-jump", case(records=falling_then_raised(3e-4)), SILENT),
    ("resume-lr-jump", case(records=falling_then_raised(3.01e-4)), WARN),
    ("best-overwritten", case(records=learning()), INFO),
    # no numbers to pass: it is there or it is not
    ("instability-not-precision", SICK["instability-not-precision"](), INFO_MEDIUM),
    ("mfu-mislabelled", SICK["mfu-mislabelled"](), INFO),
    ("contradicting-inputs", SICK["contradicting-inputs"](), ERROR),
    ("autotune-sm-warning", SICK["autotune-sm-warning"](), INFO),
    ("compile-failed", SICK["compile-failed"](), ERROR),
    ("crashed", case(records=steps([4.0]), messages=[said("crash", 10_000, cause="nccl")]), ERROR),
    ("crashed", case(records=steps([4.0]), messages=[said("crash", 1, cause="nccl")]), INFO),  # it was started again
    ("crashed", case(messages=[said("crash", cause="time-over")]), INFO),
    ("oom-tensor", SICK["oom-tensor"](), INFO),
    ("oom-in-eval", SICK["oom-in-eval"](), ERROR),
]


@pytest.mark.parametrize(("name", "patient", "expected"), ROWS, ids=[f"{n}-{row[0]}" for n, row in enumerate(ROWS)])
def test_a_threshold_is_where_the_table_has_it(name: str, patient: Case, expected: tuple[str, str] | None) -> None:
    assert weight(name, patient) == expected


def test_a_folder_used_twice_weighs_what_the_table_says() -> None:
    assert weight("out-dir-reused", SICK["out-dir-reused"](), BEFORE["out-dir-reused"]()) == WARN


def test_every_row_of_the_table_is_weighed() -> None:
    assert {name for name, *_ in ROWS} | {"out-dir-reused"} == set(NAMES)


def test_a_loss_that_rises_over_a_resume_by_no_more_than_the_limit_is_no_jump() -> None:
    assert weight("resume-lr-jump", AFTER, part_before(1.0)) is SILENT  # 1.05 - 1.0 is a hair above 0.05
    assert weight("resume-lr-jump", AFTER, part_before(0.999)) == INFO_LOW
    assert weight("resume-lr-jump", AFTER, part_before(0.87)) == WARN_MEDIUM  # 5.3 x 0.024 x sqrt 2
    assert weight("resume-lr-jump", AFTER, part_before(0.77)) == WARN
