"""Runs made by construction, with a known illness or with none: no line of them comes from a real log.

Every run is a text, in one of three formats, that goes through the reader like any log. `sick_runs` and `healthy_runs`
make as many as asked for; the number of a run is its seed, so a run that is judged wrongly can be made again.

How much a run varies is drawn from ranges that end at twice what real logs show or beyond (tests/attack/real_noise.py).
Rules are chosen by these runs, never these runs by the rules: a change here needs a figure of a real log.
"""

import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from onecard.config.resolve import resolve
from onecard.doctor.case import Case, DataSizes
from onecard.doctor.facts import make_case
from onecard.doctor.rules import RULES
from onecard.findings import Finding
from onecard.plan import recipe
from onecard.plan.cards import find_card
from onecard.plan.counts import count_params
from onecard.plan.loss import law
from onecard.plan.speed import predict_speed
from onecard.runs.foreign import read_logs
from tests.attack import real_noise

Strength = Literal["weak", "medium", "strong"]
Format = Literal["nanogpt", "llm.c", "onecard", "hf"]
STRENGTHS: tuple[Strength, ...] = ("weak", "medium", "strong")
FORMATS: tuple[Format, ...] = ("nanogpt", "llm.c", "onecard", "hf")
SHAPES = ((4, 4, 256), (6, 6, 384), (8, 8, 512), (12, 12, 768), (24, 16, 1024))
CARD = "RTX 4070"
POINTS = (30, 600)  # logged updates of a run
STATE_CONFIG = 0.25  # of the runs: most people post a log alone
CUT = 0.5  # of the logs lack their end, a third of them their beginning as well
SEQUENCES = ((256, 32), (512, 16), (1024, 1), (1024, 2), (1024, 4), (1024, 8), (1024, 16))  # block_size, batch_size
UPDATES = (16_384, 32_768, 131_072, 262_144, 524_288)  # tokens
SMALL_UPDATE = 131_072  # tokens; below, beta2 must be higher
# Ranges of healthy runs, beside what real logs show (real_noise.py)
NOISE = (0.3, 2.0)  # times real_noise.training_noise
WAVE = 0.06  # nats, the most that all losses of a run go up and down together by; real ones go up by 0.016
EVALUATION_NOISE = (0.0003, 0.15)  # nats; real ones 0.0005 to 0.014, more with fewer batches
SCATTER = (0.05, 2 * real_noise.SAME_WINDOWS_SCATTER)  # of the recorded error, where the windows are the same
GAP = (2 * min(real_noise.GAPS), 0.12)  # nats
LETTER_GAP = (0.0, 2 * max(real_noise.LETTER_GAPS))  # nats, growing with what is learned
HOT = (1.0, 1.25)  # times slower from a third of the run on; real ones 1.004
JITTER = (0.001, 0.2)  # of the logarithm of the seconds; real ones 0.0002 to 0.1
STALLS = 0.02  # of the updates take 1.5 to 6 times as long; real ones 0.0002
NORMS = (0.15, 3.0)  # real ones 0.26 to 1.3
NORM_SPREAD = 0.3  # of the logarithm; real ones 0.07 to 0.3
NORM_PEAKS = 0.001  # of the updates have 3 to 15 times the norm; real ones 0.0002 and 7.5 times


@dataclass
class Made:
    """A run that can be written in any of the formats: one entry per logged update."""

    dice: random.Random
    config: dict[str, object]
    every: int  # updates between logged ones
    curve: list[float]  # the loss without noise
    noise: float  # of a logged loss
    losses: list[float]
    gaps: list[float]  # val - train without noise
    errors: float  # standard error of an evaluation
    scatter: float  # standard deviation of an evaluation from the next
    seconds: list[float]
    norms: list[float]
    rates: list[float]
    resumed: int | None = None  # the logged update at which the run resumes
    eval_every: int = 0  # logged updates between evaluations; 0: none
    trains: list[float] = field(default_factory=list)  # of each evaluation
    vals: list[float] = field(default_factory=list)
    waits: float = 0.01  # share of the time
    data: DataSizes = field(default_factory=DataSizes)
    states_config: bool = True
    on_card: bool = False

    @property
    def points(self) -> int:
        return len(self.losses)

    def evaluated(self) -> list[int]:
        return list(range(0, self.points, self.eval_every)) if self.eval_every else []

    def settled(self, n: int) -> float:
        """How much of its noise a loss has: random weights give nearly the same loss for every text."""
        return min(1.0, 0.05 + n * self.every / 50)

    def evaluate(self, every: int) -> None:
        """Evaluates the curve, each split with its own noise."""
        self.eval_every = every
        self.trains, self.vals = [], []
        for n in self.evaluated():
            train, val = (self.settled(n) * self.dice.gauss(0, self.scatter) for _ in range(2))
            self.trains.append(max(0.0, self.curve[n] + train))
            self.vals.append(max(0.0, self.curve[n] + self.gaps[n] + val))


def healthy(seed: int, form: Format) -> Made:
    """A healthy run: of any size, length, noise, schedule; with or without evaluations, config and restarts.

    nanoGPT logs the loss of one micro-batch, the others that of a whole update.
    """
    dice = random.Random(seed)
    layers, heads, width = dice.choice(SHAPES)
    letters = dice.random() < 0.15 and form != "hf"
    vocab = 65 if letters else 50304
    points = round(math.exp(dice.uniform(math.log(POINTS[0]), math.log(POINTS[1]))))
    every = dice.choice((1, 10, 10, 100))
    points = max(points, 300 // every)
    steps = points * every
    block, batch = dice.choice(SEQUENCES)
    accumulation = max(1, round(dice.choice(UPDATES) / (block * batch)))
    tokens = block * batch * accumulation
    shape: dict[str, object] = {"n_layer": layers, "n_head": heads, "n_embd": width}
    shape |= {"block_size": block, "vocab_size": vocab}
    params = count_params(resolve(_file(shape), filename="c.py").config).total
    rate = float(f"{recipe.usual_learning_rate(params):.2g}")
    config: dict[str, object] = {
        "dataset": "letters" if letters else "mine",
        **shape,
        "batch_size": batch,
        "gradient_accumulation_steps": accumulation,
        "max_iters": steps,
        "lr_decay_iters": steps,
        "warmup_iters": recipe.warmup(steps).value,
        "learning_rate": rate,
        "min_lr": rate / 10,
        "beta2": 0.99 if tokens < SMALL_UPDATE else 0.95,
        "eval_interval": 10**9,
    }
    guess = dice.uniform(2.2, 4) if form == "hf" else math.log(vocab)  # Trainer's runs are fine-tunes
    end = 1.4 if letters else max(2.6, min(law(params, steps * tokens) + 0.2, 6.5))
    if form == "hf":
        end = dice.uniform(0.4, 0.8) * guess
    half = dice.uniform(15, 60)  # updates after which half of the way is gone, on a curve that bends
    bend = dice.uniform(0.7, 1.6)  # the larger, the earlier the loss is flat
    final_drop = dice.uniform(0.0, 0.08)
    falling = [
        end + (guess - end) / (1 + (n * every / half) ** bend) - final_drop * (n / points) ** 2 for n in range(points)
    ]
    gap = dice.uniform(*GAP)
    gap_of_letters = dice.uniform(*LETTER_GAP) if letters else 0.0
    error = _between(dice, *EVALUATION_NOISE)
    same_windows = form == "onecard"  # other windows would move all evaluations together
    gap += dice.gauss(0, math.sqrt(2) * error) if same_windows else 0.0
    noise = dice.uniform(*NOISE) * real_noise.training_noise(block * batch if form == "nanogpt" else tokens)
    made = Made(
        dice=dice,
        config=config,
        every=every,
        curve=falling,
        noise=noise,
        losses=falling,
        gaps=[],
        errors=error,
        scatter=error * (dice.uniform(*SCATTER) if same_windows else 1.0),
        seconds=_seconds(dice, points),
        norms=_norms(dice, points, every),
        rates=[_rate(config, n * every) for n in range(points)],
        states_config=dice.random() < STATE_CONFIG and form != "hf",
    )
    made.gaps = [
        made.settled(n) * gap + gap_of_letters * (guess - level) / (guess - end) for n, level in enumerate(falling)
    ]
    waves, order = _waves(made), _waves(made)  # of the model, and of text that comes in an order
    made.curve = [level + wave for level, wave in zip(falling, waves, strict=True)]
    shaken = _shaken(dice, noise, points)
    made.losses = [max(0.5, level + made.settled(n) * shaken[n] + order[n]) for n, level in enumerate(made.curve)]
    if dice.random() < 0.3 and points > 100:  # a spike that comes back
        made.losses[dice.randrange(points // 2, points - 20)] += dice.uniform(0.5, 2)
    made.evaluate(dice.choice((0, 5, 10, 20)) if points >= 60 else dice.choice((0, 5)))
    if made.states_config and dice.random() < 0.7:
        size = round(steps * tokens / dice.choice((0.18, 0.4, 0.9, 2, 3.5)))
        made.data = DataSizes(train_tokens=size, val_tokens=10**8)
    return made


def _between(dice: random.Random, low: float, high: float) -> float:
    """Any number from low to high, each factor as likely as the next."""
    return math.exp(dice.uniform(math.log(low), math.log(high)))


def _waves(made: Made) -> list[float]:
    """A slow wave of at most WAVE nats up and down, with any phase."""
    height, period, phase = made.dice.uniform(0, WAVE), made.dice.uniform(20, 200), made.dice.uniform(0, 2 * math.pi)
    return [made.settled(n) * height * math.sin(n / period + phase) for n in range(made.points)]


def _shaken(dice: random.Random, noise: float, points: int) -> list[float]:
    """Noise of logged losses: normal, now and then a harder text; sometimes a loss is like the one before."""
    keep, value, found = dice.choice((0.0, 0.3, 0.6)), 0.0, []
    for _ in range(points):
        value = keep * value + math.sqrt(1 - keep**2) * dice.gauss(0, 1)
        harder = dice.expovariate(1 / real_noise.TAIL_MEAN) if dice.random() < real_noise.TAIL else 0.0
        found.append(noise * (value + harder))
    return found


def _seconds(dice: random.Random, points: int) -> list[float]:
    """Times of updates: a card that warms up, jitter, stalls, compiling at the start and after a restart."""
    usual, hot, jitter = _between(dice, 0.05, 10), dice.uniform(*HOT), _between(dice, *JITTER)
    found = [
        usual * (1 + (hot - 1) * min(1.0, 3 * n / points)) * math.exp(dice.gauss(0, jitter)) for n in range(points)
    ]
    found[0] *= dice.uniform(1, 60)
    if dice.random() < 0.3:
        found[dice.randrange(points)] *= 60
    return [seconds * (dice.uniform(1.5, 6) if dice.random() < STALLS else 1) for seconds in found]


def _norms(dice: random.Random, points: int, every: int) -> list[float]:
    """Gradient norms: high at the start, then calm, with rare peaks."""
    calm = _between(dice, *NORMS)
    found = [(calm + 20 / (1 + n * every / 20)) * math.exp(dice.gauss(0, NORM_SPREAD)) for n in range(points)]
    return [norm * (dice.uniform(3, 15) if dice.random() < NORM_PEAKS else 1) for norm in found]


def _rate(config: dict[str, object], step: int) -> float:
    highest, warmup, last = (float(config[key]) for key in ("learning_rate", "warmup_iters", "max_iters"))  # type: ignore[arg-type]
    if step < warmup:
        return highest * (step + 1) / (warmup + 1)
    return highest * (0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / max(1, last - warmup))))


def _file(config: dict[str, object]) -> str:
    return "".join(f"{key} = {value!r}\n" for key, value in config.items())


Illness = Callable[[Made, Strength], None]


def _by(strength: Strength, *values: float) -> float:
    return values[STRENGTHS.index(strength)]


def _tokens(made: Made) -> int:
    return resolve(_file(made.config), filename="c.py").config.tokens_per_step


def rising(made: Made, strength: Strength) -> None:
    """All losses rise in the last half; there are no evaluations."""
    half, height = made.points // 2, _by(strength, 0.3, 1.0, 4.0)
    for n in range(half, made.points):
        higher = height * (n - half) / (made.points - half)
        made.curve[n] += higher
        made.losses[n] += higher
    made.evaluate(0)


def diverging(made: Made, strength: Strength) -> None:
    """The same, with evaluations."""
    rising(made, strength)
    made.evaluate(max(1, made.points // 16))


def guessing(made: Made, strength: Strength) -> None:
    """Nothing, or only the frequencies of tokens, is learned: from a little above the limit up to ln V."""
    made.config["vocab_size"] = 50304
    made.evaluate(0)
    level = _by(strength, 7.15, 7.45, 10.9)
    made.losses = [
        max(level, 10.9 - 0.05 * n * made.every) + made.dice.gauss(0, made.noise) for n in range(made.points)
    ]


def leaking(made: Made, strength: Strength) -> None:
    """The answer is in the input."""
    made.evaluate(0)
    made.config["vocab_size"], made.config["dataset"] = 50304, "mine"
    level = _by(strength, 0.1, 0.03, 0.002)
    drop = [max(level, 10.8 * 0.8**n) for n in range(made.points)]
    made.losses = [loss * math.exp(made.dice.gauss(0, 0.1)) for loss in drop]


def swinging(made: Made, strength: Strength) -> None:
    """The loss swings, slowly or from one update to the next."""
    made.evaluate(0)
    size, kind = _by(strength, 0.6, 0.9, 1.2), made.dice.randrange(3)
    for n in range(made.points):
        turn = (math.sin(n / 7), 1 if n % 2 else -1, made.dice.uniform(-1, 1))[kind]
        made.losses[n] = 7.5 + size * turn if n > 3 else made.losses[n]


def exploding(made: Made, strength: Strength) -> None:
    """Gradient norms that are far too large."""
    most = _by(strength, 300.0, 1e4, 1e12)
    least = _by(strength, 300.0, 1e4, 1e6)
    made.norms = [math.exp(made.dice.uniform(math.log(least), math.log(most))) for _ in made.norms]


def slowing(made: Made, strength: Strength) -> None:
    """Updates take longer and longer, or suddenly."""
    factor, drift = _by(strength, 1.4, 2.3, 6.0), made.dice.random() < 0.5
    since = round(made.points * made.dice.uniform(0.3, 0.7))
    for n in range(made.points):
        made.seconds[n] *= 1 + (factor - 1) * (n / made.points) if drift else (factor if n >= since else 1)


def slow(made: Made, strength: Strength) -> None:
    """All of the run is slower than planned."""
    config = resolve(_file(made.config), filename="c.py").config
    card = find_card(CARD)
    assert card
    speed = predict_speed(config, card, "nanogpt")
    assert speed
    factor = _by(strength, 1.8, 3.5, 6.0)
    made.on_card = made.states_config = True
    usual = config.tokens_per_step / speed.tokens_per_second.likely
    made.seconds = [factor * usual * math.exp(made.dice.gauss(0, 0.05)) for _ in made.seconds]


def starving(made: Made, strength: Strength) -> None:
    """The card waits for data."""
    made.waits = _by(strength, 0.15, 0.4, 0.95)


def below(made: Made, strength: Strength) -> None:
    """The validation loss is below the training loss."""
    made.evaluate(made.eval_every or 5)
    made.vals = [max(0.0, val - _by(strength, 0.1, 0.7, 1.5)) for val in made.vals]


def overfitting(made: Made, strength: Strength) -> None:
    """The validation loss turns while the training loss falls on."""
    half, rise = made.points // 2, _by(strength, 0.15, 0.6, 2.0)
    further = [max(0, n - half) / (made.points - half) for n in range(made.points)]
    for n, share in enumerate(further):
        made.curve[n] -= 0.3 * share
        made.losses[n] -= 0.3 * share
        made.gaps[n] += (0.3 + rise) * share
    made.evaluate(max(1, made.points // 20))
    made.data = DataSizes(train_tokens=made.points * made.every * _tokens(made) // 3, val_tokens=10**8)


def not_a_number(made: Made, strength: Strength) -> None:
    """The loss becomes nan: once, or from some update to the end."""
    since = round(made.points * 0.6)
    for n in range(since, made.points if strength != "weak" else since + 1):
        made.losses[n] = math.nan


def spiking(made: Made, strength: Strength) -> None:
    """The loss jumps, for 15 logged updates."""
    since = round(made.points * 0.55)
    for n in range(since, min(made.points, since + 15)):
        made.losses[n] += _by(strength, 0.5, 1.5, 4.0)


def spiking_briefly(made: Made, strength: Strength) -> None:
    """The loss jumps and comes back after two to ten logged updates."""
    since, long = round(made.points * 0.55), made.dice.randrange(2, 11)
    for n in range(since, min(made.points, since + long)):
        made.losses[n] += _by(strength, 0.5, 1.5, 4.0) + _by(strength, 0, 2, 6) * made.noise


def blowing_up(made: Made, strength: Strength) -> None:
    """The loss goes far above any guess, and comes down again, but not to where it was."""
    since, peak = round(made.points * made.dice.uniform(0.5, 0.8)), _by(strength, 9.0, 40.0, 270.0)
    end = math.sqrt(peak) * 2
    for n in range(since, made.points):
        made.losses[n] = made.curve[n] = end + (peak - end) * math.exp(-(n - since) / 4)
    made.evaluate(0)


def first_loss(made: Made, strength: Strength) -> None:
    """The loss is a sum, or the weights are far too large: it begins much too high."""
    made.losses[0] = _by(strength, 12.5, 20.0, 70.0)
    if made.eval_every:
        made.trains[0] = made.vals[0] = made.losses[0]


def ending_low(made: Made, strength: Strength) -> None:
    """The loss falls to what no text allows."""
    made.evaluate(0)
    level = _by(strength, 0.3, 0.09, 0.05)
    made.losses = [max(level, loss * 0.8**n) * made.dice.uniform(0.98, 1.0) for n, loss in enumerate(made.losses)]


def flat(made: Made, strength: Strength) -> None:
    """The loss of random weights does not move, in a log of a few updates."""
    made.evaluate(0)
    points = round(_by(strength, 8, 14, 22))
    level = made.dice.choice((10.82, 10.98))
    made.losses = [level + made.dice.gauss(0, 0.015) for _ in range(points)]


def resuming_higher(made: Made, strength: Strength) -> None:
    """After a resume the loss is much higher, and comes back slowly."""
    since, height = round(made.points * 0.6), _by(strength, 0.3, 1.0, 2.5) + _by(strength, 0, 1, 3) * made.noise
    for n in range(since, made.points):
        made.losses[n] += height * math.exp(-(n - since) / 10)
    made.resumed = since
    made.evaluate(0)


def without_gradient(made: Made, strength: Strength) -> None:
    """Every gradient norm is nan, whatever the loss."""
    made.norms = [math.nan for _ in made.norms]


def memorising(made: Made, strength: Strength) -> None:
    """Few evaluations: val rises far above a training loss that falls on."""
    made.evaluate(max(1, made.points // 4))
    made.data = DataSizes()
    last = len(made.vals) - 1
    for k in range(1, last + 1):
        share = k / last
        made.trains[k] -= _by(strength, 0.2, 0.6, 1.0) * share * made.trains[k] * 0.4
        made.vals[k] = made.vals[1] + _by(strength, 0.05, 0.3, 0.84) * (k - 1) / max(1, last - 1)
    for n in range(made.points):
        made.losses[n] *= 1 - _by(strength, 0.2, 0.6, 1.0) * 0.4 * n / made.points


def bad_start(made: Made, strength: Strength) -> None:
    """The first loss is far above ln V."""
    made.states_config = True
    off = _by(strength, 1.2, 2.0, 6.0)
    made.losses[0] += off
    if made.eval_every:
        made.trains[0] += off
        made.vals[0] += off


def same_splits(made: Made, _: Strength) -> None:
    """The validation data is the training data."""
    made.data = DataSizes(train_tokens=10**11, val_tokens=10**8, val_in_train="is the beginning of the training data")


def repeated(made: Made, strength: Strength) -> None:
    """The data is read too often."""
    made.states_config = True
    read = made.points * made.every * _tokens(made)
    made.data = DataSizes(train_tokens=round(read / _by(strength, 5, 12, 40)), val_tokens=10**8)


def tiny_val(made: Made, strength: Strength) -> None:
    """The validation data is smaller than one evaluation."""
    made.states_config = True
    made.data = DataSizes(train_tokens=10**12, val_tokens=round(_by(strength, 1e5, 2e4, 2e3)))


def setting(key: str, weak: object, medium: object, strong: object) -> Illness:
    """A setting that is wrong by more and more."""

    def ill(made: Made, strength: Strength) -> None:
        made.states_config = True
        made.config[key] = (weak, medium, strong)[STRENGTHS.index(strength)]

    return ill


def fast_rate(made: Made, strength: Strength) -> None:
    """A learning rate far above the usual."""
    made.states_config = True
    made.config["learning_rate"] = float(made.config["learning_rate"]) * _by(strength, 5, 20, 1000)  # type: ignore[arg-type]
    made.config["min_lr"] = float(made.config["learning_rate"]) / 10  # type: ignore[arg-type]


def long_warmup(made: Made, strength: Strength) -> None:
    """A warm-up that is not over when the run ends."""
    made.states_config = True
    made.config["warmup_iters"] = round(made.points * made.every * _by(strength, 1.0, 2.0, 10.0))


def long_decay(made: Made, strength: Strength) -> None:
    """A learning rate that has not come down at the end."""
    made.states_config = True
    made.config["lr_decay_iters"] = round(made.points * made.every * _by(strength, 1.3, 2.0, 10.0))


def renewed_rate(made: Made, strength: Strength) -> None:
    """A learning rate that is raised again after it fell."""
    since = round(0.7 * made.points)
    for n in range(since, made.points):
        made.rates[n] = made.rates[since - 1] * _by(strength, 1.6, 2.5, 6.0) * (1 - 1e-4 * (n - since))


BOTH, WITH, ALONE, OWN = (True, False, False), (True,), (False,), ("onecard",)
ALL: tuple[Format, ...] = ("nanogpt", "llm.c", "onecard")
NUMBERED: tuple[Format, ...] = ("nanogpt", "llm.c")
# illness: the rule that must find it, formats that can show it, with and without config
ILLNESSES: dict[str, tuple[str, Illness, tuple[Format, ...], tuple[bool, ...]]] = {
    "rising": ("diverging", rising, FORMATS, BOTH),
    "blowing-up": ("diverging", blowing_up, FORMATS, ALONE),
    "short-spike": ("loss-spike", spiking_briefly, FORMATS, ALONE),
    "first-loss": ("bad-initial-loss", first_loss, FORMATS, ALONE),
    "last-loss": ("loss-too-low", ending_low, FORMATS, ALONE),
    "flat": ("not-learning", flat, NUMBERED, ALONE),
    "resumes-higher": ("resume-lr-jump", resuming_higher, ("nanogpt",), ALONE),
    "no-gradient": ("loss-nan", without_gradient, ("llm.c", "hf"), ALONE),
    "memorising": ("overfitting", memorising, ("nanogpt", "llm.c", "hf"), ALONE),
    "diverging": ("diverging", diverging, ALL, BOTH),
    "not-learning": ("not-learning", guessing, ALL, BOTH),
    "loss-too-low": ("loss-too-low", leaking, ALL, BOTH),
    "unsteady-loss": ("unsteady-loss", swinging, ALL, BOTH),
    "gradient-norm": ("gradient-norm", exploding, ("llm.c", "onecard"), BOTH),
    "slowing-down": ("slowing-down", slowing, ALL, BOTH),
    "slower-than-planned": ("slower-than-planned", slow, ("nanogpt", "onecard"), WITH),
    "waiting-for-data": ("waiting-for-data", starving, ("onecard",), BOTH),
    "val-below-train": ("val-below-train", below, ALL, BOTH),
    "overfitting": ("overfitting", overfitting, ALL, BOTH),
    "loss-nan": ("loss-nan", not_a_number, FORMATS, BOTH),
    "loss-spike": ("loss-spike", spiking, ALL, BOTH),
    "bad-initial-loss": ("bad-initial-loss", bad_start, ALL, WITH),
    "val-same-as-train": ("val-same-as-train", same_splits, ALL, BOTH),
    "too-many-epochs": ("too-many-epochs", repeated, ALL, WITH),
    "val-set-tiny": ("val-set-tiny", tiny_val, ("nanogpt", "onecard"), WITH),
    "lr-out-of-range": ("lr-out-of-range", fast_rate, ("nanogpt", "onecard"), WITH),
    "weight-decay": (
        "weight-decay-out-of-range",
        setting("weight_decay", 2.0, 10.0, 100.0),
        ("nanogpt", "onecard"),
        WITH,
    ),
    "dropout": ("needless-dropout", setting("dropout", 0.6, 0.8, 0.99), ("nanogpt", "onecard"), WITH),
    "warmup-length": ("warmup-length", long_warmup, ("nanogpt", "onecard"), WITH),
    "decay-horizon": ("decay-horizon", long_decay, ("nanogpt", "onecard"), WITH),
    "resume-lr-jump": ("resume-lr-jump", renewed_rate, ("llm.c", "onecard"), BOTH),
}


@dataclass(frozen=True, kw_only=True)
class Patient:
    """A made run and what is known about it."""

    seed: int
    illness: str  # "" of a healthy one
    rule: str
    strength: Strength | None
    format: Format
    case: Case

    def __repr__(self) -> str:
        kind = f"{self.illness} ({self.strength})" if self.illness else "healthy"
        config = "with" if self.case.resolved else "without"
        return f"{kind}, {self.format}, {config} config, seed {self.seed}"


def sick_runs(count: int, *, first: int = 0) -> Iterator[Patient]:
    """At least `count` runs: every illness in all strengths, formats, with and without config, again and again."""
    kinds = [
        (name, strength, form, with_config)
        for name, (_, _, forms, configs) in ILLNESSES.items()
        for strength in STRENGTHS
        for form in forms
        for with_config in configs
    ]
    for number in range(count):
        name, strength, form, with_config = (
            kinds[number % len(kinds)] if count >= len(kinds) else kinds[number * len(kinds) // count]
        )
        rule, make_ill, *_ = ILLNESSES[name]
        made = healthy(first + number, form)
        made.data = DataSizes()
        make_ill(made, strength)
        if form == "onecard" or (with_config and form != "hf"):
            made.states_config = True
        elif False in ILLNESSES[name][3]:
            made.states_config = False
        yield Patient(
            seed=first + number,
            illness=name,
            rule=rule,
            strength=strength,
            format=form,
            case=written(made, form, least=0.9, whole=name in WHOLE),
        )


def healthy_runs(count: int, *, first: int = 1_000_000) -> Iterator[Patient]:
    """`count` healthy runs in all formats."""
    for number in range(count):
        form = FORMATS[number % len(FORMATS)]
        made = healthy(first + number, form)
        yield Patient(seed=first + number, illness="", rule="", strength=None, format=form, case=written(made, form))


def alarms(case: Case) -> list[Finding]:
    """Findings above information of every rule."""
    from onecard.doctor.rules import RULES_ACROSS

    found = [finding for rule in RULES for finding in rule(case)]
    found += [finding for rule in RULES_ACROSS for finding in rule(case, ())]
    return [finding for finding in found if finding.severity != "info"]


# Illnesses that are in the first lines of a log, or in a few
WHOLE = ("bad-initial-loss", "first-loss", "flat", "memorising", "resumes-higher", "blowing-up")


def written(made: Made, form: Format, *, least: float = 0.3, whole: bool = False) -> Case:
    """The run as a log of a format, read again. Half of the logs are cut, at `least` of their lines or later; some of
    those begin late, too."""
    lines = [*{"nanogpt": _nanogpt, "llm.c": _llmc, "onecard": _onecard, "hf": _hf}[form](made)]
    if not whole and made.dice.random() < CUT:
        last = max(20, round(len(lines) * made.dice.uniform(least, 1)))
        first = made.dice.randrange(1 + len(lines) // 5) if form != "onecard" and made.dice.random() < 1 / 3 else 0
        lines = lines[first:last] if last - first >= 20 else lines[:last]
    (run,) = read_logs([f"{line}\n".encode() for line in lines], source="made.log")
    said = {key: value for key, value in made.config.items() if key != "vocab_size" or form != "nanogpt"}
    config = resolve(_file(said), filename="c.py") if made.states_config else None
    card = find_card(CARD) if made.on_card else None
    return make_case(run, config=config, card=card, data=made.data)


def _nanogpt(made: Made) -> Iterator[str]:
    at = {n: k for k, n in enumerate(made.evaluated())}
    if made.states_config:
        yield f"found vocab_size = {made.config['vocab_size']} (inside data/made/meta.pkl)"
    for n, loss in enumerate(made.losses):
        if n in at:
            yield f"step {n * made.every}: train loss {made.trains[at[n]]:.4f}, val loss {made.vals[at[n]]:.4f}"
        if n == made.resumed:
            yield "Resuming training from out"
        spent = made.seconds[n] * (3.0 if n in at else 1.0)
        yield f"iter {n * made.every}: loss {loss:.4f}, time {1000 * spent:.2f}ms, mfu 20.00%"


def _llmc(made: Made) -> Iterator[str]:
    at = {n: k for k, n in enumerate(made.evaluated())}
    last = made.points * made.every
    for n, loss in enumerate(made.losses):
        step = n * made.every + 1
        yield (
            f"step {step:4d}/{last} | loss {loss:.6f} (+0.10z)| norm {made.norms[n]:.4f} (-0.30z)| "
            f"lr {made.rates[n]:.2e} | {1000 * made.seconds[n]:.2f} ms | 41.2% bf16 MFU | "
            f"{_tokens_at(made) / made.seconds[n]:.0f} tok/s"
        )
        if n in at:
            yield f"val loss {made.vals[at[n]]:.6f}"


def _tokens_at(made: Made) -> int:
    config = made.config
    sizes = (config[key] for key in ("block_size", "batch_size", "gradient_accumulation_steps"))
    return math.prod(size for size in sizes if isinstance(size, int))


def _hf(made: Made) -> Iterator[str]:
    at = {n: k for k, n in enumerate(made.evaluated())}
    for n, loss in enumerate(made.losses):
        epoch = f"'epoch': {3 * (n + 1) / made.points:.2f}}}"
        yield f"{{'loss': {loss:.4f}, 'grad_norm': {made.norms[n]:.6g}, 'learning_rate': {made.rates[n]:.4g}, {epoch}"
        if n in at and n:
            yield f"{{'eval_loss': {made.vals[at[n]]:.4f}, 'eval_runtime': 10.0, {epoch}"


def _onecard(made: Made) -> Iterator[str]:
    at, tokens = {n: k for k, n in enumerate(made.evaluated())}, _tokens_at(made)
    spent = 0.0
    start = {"kind": "start", "step": 0, "config": made.config, "versions": {}, "device": "cuda", "card": None}
    yield json.dumps(start | {"predicted_process_bytes": None, "resumed_from": None})
    for n, loss in enumerate(made.losses):
        step, seconds = n * made.every + 1, made.seconds[n]
        spent += seconds * made.every
        record = {"kind": "step", "step": step, "tokens": step * tokens, "loss": loss, "lr": made.rates[n]}
        record |= {"grad_norm": made.norms[n], "seconds": seconds, "elapsed_seconds": spent}
        record |= {"tokens_per_second": tokens / seconds, "data_wait_seconds": made.waits * seconds}
        yield json.dumps(record)
        if n in at:
            k = at[n]
            evaluated = {
                "kind": "eval",
                "step": step,
                "tokens": step * tokens,
                "block_size": 1024,
                "tokens_read": 10**6,
            }
            evaluated |= {"train_loss": made.trains[k], "val_loss": made.vals[k], "seconds": seconds}
            yield json.dumps(evaluated | {"train_loss_error": made.errors, "val_loss_error": made.errors})
