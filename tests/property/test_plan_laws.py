"""Laws of advice: a fit fits, keeps the tokens, and more room or time never makes it worse."""

from math import log
from typing import get_args

from hypothesis import example, given, settings
from hypothesis import strategies as st

from onecard.config.resolve import resolve
from onecard.config.schema import RunConfig
from onecard.inputs.make_plan import make_plan
from onecard.models.ways import RECOMPUTATION
from onecard.plan.budget import Budget, propose
from onecard.plan.cards import find_card
from onecard.plan.fit import fit_nanogpt, fit_onecard
from onecard.plan.intent import intent_findings
from onecard.plan.loss import forecast_loss
from onecard.plan.memory.predict import predict_nanogpt, predict_onecard
from onecard.plan.place import Place
from onecard.plan.proposal import Proposal, config_text
from onecard.plan.speed import TrainerName, predict_speed
from onecard.units import GIB
from tests.share import share

CARD = find_card("RTX 4070")

configs = st.builds(
    lambda heads, **keys: RunConfig().replace({"n_head": heads, "n_embd": heads * 64, "dtype": "bfloat16", **keys}),
    heads=st.integers(1, 12),
    n_layer=st.integers(1, 8),
    batch_size=st.integers(1, 24),
    gradient_accumulation_steps=st.integers(1, 24),
    block_size=st.sampled_from([128, 256, 512, 1024]),
    vocab_size=st.sampled_from([256, 8192, 32000, 50257, 50304]),
    compile=st.booleans(),
)


@settings(max_examples=share(15))
@given(configs, st.integers(1, 12))
def test_a_fit_fits_when_planned_again_and_keeps_the_tokens(config: RunConfig, room: int) -> None:
    fit = fit_nanogpt(config, CARD, room * GIB)
    if fit.best is None:
        assert not any(candidate.fits for candidate in fit.candidates)
        return
    assert fit.best.config.tokens_per_step == config.tokens_per_step
    again = predict_nanogpt(
        fit.best.config, CARD, available_bytes=room * GIB, expandable_segments=fit.best.expandable_segments
    )
    assert again.fits
    assert again.process_bytes <= room * GIB


@settings(max_examples=8)
@given(configs, st.integers(1, 6))
def test_more_room_never_makes_the_fit_slower(config: RunConfig, room: int) -> None:
    small, large = (fit_nanogpt(config, CARD, gib * GIB).best for gib in (room, room * 2))
    if small and small.speed:
        assert large
        assert large.speed
        assert large.speed.tokens_per_second.likely >= small.speed.tokens_per_second.likely * 0.999


@settings(max_examples=share(12))
@given(configs, st.integers(1, 12))
def test_our_fit_fits_when_planned_again_and_keeps_the_tokens(config: RunConfig, room: int) -> None:
    fit = fit_onecard(config, CARD, room * GIB)
    if fit.best is None:
        assert not any(candidate.fits for candidate in fit.candidates)
        return
    assert fit.best.config.tokens_per_step == config.tokens_per_step
    assert fit.best.config == config.replace(fit.best.patch)
    again = predict_onecard(fit.best.config, CARD, available_bytes=room * GIB)
    assert again.fits
    assert again.process_bytes <= room * GIB


@settings(max_examples=8)
@given(configs, st.integers(1, 6))
def test_more_room_never_makes_our_fit_slower(config: RunConfig, room: int) -> None:
    small, large = (fit_onecard(config, CARD, gib * GIB).best for gib in (room, room * 2))
    if small and small.speed:
        assert large
        assert large.speed
        assert large.speed.tokens_per_second.likely >= small.speed.tokens_per_second.likely * 0.999


@settings(max_examples=share(12))
@given(configs.filter(lambda c: c.n_layer >= 4 and c.batch_size * c.block_size >= 1024))
def test_more_recomputation_never_needs_more_memory_and_is_never_faster(config: RunConfig) -> None:
    # of three layers or fewer, what is made again may outweigh what the others no longer keep
    ways = [config.replace({"grad_checkpoint": mode}) for mode in RECOMPUTATION]
    needed = [predict_onecard(way, CARD).phases["train"].allocated_bytes for way in ways]
    assert needed == sorted(needed, reverse=True)
    speeds = [predict_speed(way, CARD, "onecard") for way in ways]
    rates = [speed.tokens_per_second.likely for speed in speeds if speed]
    assert rates == sorted(rates, reverse=True)


CARDS = st.sampled_from(["RTX 3060", "RTX 4070", "RTX 4090", "H200"])
TRAINERS = st.sampled_from(get_args(TrainerName))
FACTORS = st.floats(-3, 0.7).map(lambda power: 1 + 10**power)  # from a thousandth more to six times


@settings(max_examples=share(25), deadline=None)
@example(0.19, 0.2 / 0.19, "H200", "nanogpt", 1024)
@example(0.604, 0.61 / 0.604, "RTX 4070", "onecard", 1024)
@example(0.06, 0.07 / 0.06, "RTX 4090", "onecard", 1024)
@given(st.floats(-1.7, 2.3).map(lambda power: 10**power), FACTORS, CARDS, TRAINERS, st.sampled_from([1000, 1024]))
def test_more_hours_never_predict_a_worse_loss(
    hours: float, factor: float, card: str, trainer: TrainerName, block_size: int
) -> None:
    base, place = (
        RunConfig().replace({"dataset": "fineweb", "dtype": "bfloat16", "block_size": block_size}),
        find_card(card),
    )
    budgets = [Budget(seconds=h * 3600) for h in (hours, hours * factor)]
    short, long = (propose(base, place, place.allocatable_bytes, budget, trainer=trainer) for budget in budgets)
    if short:
        assert _likely(long[0]) <= _likely(short[0])
    for proposals, budget in zip((short, long), budgets, strict=True):
        assert all(proposal.seconds.likely <= (budget.seconds or 0) for proposal in proposals)


@settings(max_examples=share(15), deadline=None)
@given(st.floats(6.6, 12).map(lambda power: 10**power), FACTORS, CARDS, TRAINERS)
def test_more_tokens_never_predict_a_worse_loss(tokens: float, factor: float, card: str, trainer: TrainerName) -> None:
    base, place = RunConfig().replace({"dataset": "fineweb", "dtype": "bfloat16"}), find_card(card)
    less, more = (
        propose(base, place, place.allocatable_bytes, Budget(tokens=round(number)), trainer=trainer)[0]
        for number in (tokens, tokens * factor)
    )
    assert _likely(more) <= _likely(less)
    assert less.config.total_tokens <= tokens


def _likely(proposal: Proposal) -> float:
    assert proposal.loss
    return proposal.loss.final.likely


@settings(max_examples=share(5, least=3), deadline=None)
@given(
    st.floats(0.02, 1000),
    CARDS,
    TRAINERS,
    st.sampled_from([8192, 32000, 50304, 100277]),
)
def test_a_written_config_says_nothing_that_contradicts_it(
    hours: float, card: str, trainer: TrainerName, vocab_size: int
) -> None:
    base = RunConfig().replace({"dataset": "fineweb", "dtype": "bfloat16", "vocab_size": vocab_size})
    place = find_card(card)
    for proposal in propose(base, place, place.allocatable_bytes, Budget(seconds=hours * 3600), trainer=trainer):
        resolved = resolve(config_text(proposal), filename="written.py")
        assert intent_findings(resolved) == []
        assert resolved.config.n_embd == proposal.config.n_embd


@settings(max_examples=share(4, least=2), deadline=None)
@example(6, 2.1, "nanogpt")
@given(st.floats(0.02, 200), st.floats(0, 9), TRAINERS)
def test_a_written_config_fits_as_written_when_planned_again(
    hours: float, other_gib: float, trainer: TrainerName
) -> None:
    place = Place(card=CARD, other_bytes=round(other_gib * GIB))
    plan = make_plan(resolve(None), place, trainer=trainer, budget=Budget(seconds=hours * 3600))
    for proposal in plan.proposals or ():
        again = make_plan(resolve(config_text(proposal), filename="written.py"), place, trainer=trainer)
        assert again.fits
        assert again.first.memory.process_bytes == proposal.process_bytes
        assert again.first.memory.is_safe(place.available_bytes)


@given(configs.filter(lambda c: c.vocab_size >= 8192), st.integers(100, 10_000))
def test_more_steps_and_more_layers_never_predict_a_worse_loss(config: RunConfig, steps: int) -> None:
    config = config.replace({"warmup_iters": 10})  # over before the shortest run ends
    base = forecast_loss(config.replace({"max_iters": steps}))
    longer = forecast_loss(config.replace({"max_iters": 2 * steps}))
    deeper = forecast_loss(config.replace({"max_iters": steps, "n_layer": config.n_layer + 1}))
    assert base
    assert longer
    assert deeper
    guessing = log(config.vocab_size)
    assert max(base.final.high, longer.final.high, deeper.final.high) <= guessing
    assert longer.final.likely < base.final.likely or base.final.likely == guessing
    assert deeper.final.likely < base.final.likely or base.final.likely == guessing
