"""Runs from trained weights: nothing that is said of them changes their shape or vocabulary."""

from collections.abc import Mapping
from typing import Any

import pytest

from onecard.config.resolve import resolve
from onecard.errors import UsageError
from onecard.inputs.make_plan import make_plan
from onecard.plan.cards import find_card
from onecard.plan.fit import fit_nanogpt, fit_onecard
from onecard.plan.memory.predict import predict_onecard
from onecard.plan.place import Place
from onecard.plan.plan import Plan
from onecard.plan.pretrained import OF_WEIGHTS, OPENAI_WEIGHTS, smaller_weights
from onecard.plan.speed.work import Trainers
from onecard.units import GIB, MIB

FINE_TUNE = "dataset = 'shakespeare'\nbatch_size = 1\ngradient_accumulation_steps = 32\nmax_iters = 20\ndropout = 0.1\n"


def planned(weights: str, card: str = "RTX 4070", *, trainer: Trainers = "both", sensitivity: bool = False) -> Plan:
    resolved = resolve(f"{FINE_TUNE}init_from = {weights!r}\n", filename="finetune.py")
    return make_plan(resolved, Place(card=find_card(card)), trainer=trainer, fit=True, sensitivity=sensitivity)


def patches(plan: Plan) -> list[Mapping[str, Any]]:
    assert plan.fit
    candidates = [*plan.fit.candidates, *([plan.fit.smallest] if plan.fit.smallest else [])]
    found: list[Mapping[str, Any]] = [fix.patch for fix in plan.fixes]
    return [*found, *(each.patch for each in candidates), *(each.patch for each in plan.findings)]


@pytest.mark.parametrize("trainer", ["nanogpt", "onecard"])
@pytest.mark.parametrize("weights", [*OPENAI_WEIGHTS, "runs/mine"])
def test_no_patch_changes_the_shape_the_vocabulary_or_dropout(weights: str, trainer: Trainers) -> None:
    plan = planned(weights, trainer=trainer)
    assert patches(plan)
    for patch in patches(plan):
        assert not {*OF_WEIGHTS, "dropout"} & patch.keys(), patch
    names = {fix.name for fix in plan.fixes}
    assert not {"pad-the-vocabulary", "smaller-model", "no-dropout"} & names


def test_where_nothing_fits_smaller_weights_are_named_in_a_way_that_fits() -> None:
    plan = planned("gpt2-xl")
    assert plan.fit
    assert plan.fit.best is None
    assert "init_from=gpt2-xl and cannot change" in plan.fit.why
    smallest = plan.fit.smallest
    assert smallest
    flags = [(key, str(value)) for key, value in smallest.patch.items()]
    assert dict(flags)["init_from"] == "gpt2-medium"
    again = make_plan(
        resolve(f"{FINE_TUNE}init_from = 'gpt2-xl'\n", filename="f.py", flags=flags), plan.place, trainer="onecard"
    )
    assert again.fits
    assert again.first.memory.process_bytes == smallest.process_bytes
    assert again.config.n_layer == 24
    (fix,) = (each for each in plan.fixes if each.name == "smaller-weights")
    assert fix.fits
    assert fix.patch["init_from"] == "gpt2-medium"


def test_a_shorter_context_comes_before_other_weights() -> None:
    config = resolve(f"{FINE_TUNE}init_from = 'gpt2'\n").config
    room = predict_onecard(config.replace({"grad_checkpoint": "full"}), None).process_bytes - MIB
    fit = fit_onecard(config, None, room)
    smallest = fit.smallest
    assert fit.best is None
    assert smallest
    assert smallest.config.init_from == "gpt2"
    assert smallest.config.block_size == 512
    assert smallest.config.tokens_per_step == config.tokens_per_step


def test_of_unknown_weights_nothing_smaller_is_made_up() -> None:
    config = resolve(f"{FINE_TUNE}init_from = 'runs/mine'\nn_layer = 48\nn_embd = 1600\nn_head = 25\n").config
    fit = fit_nanogpt(config, find_card("RTX 4070"), 11 * GIB)
    assert (fit.best, fit.smallest) == (None, None)
    assert list(smaller_weights(config)) == []


def test_smaller_weights_are_openais_largest_first() -> None:
    config = resolve("init_from = 'gpt2-xl'").config
    assert [each.init_from for each in smaller_weights(config)] == ["gpt2-large", "gpt2-medium", "gpt2"]
    assert [each.n_embd for each in smaller_weights(config)] == [1280, 1024, 768]


def test_a_size_cannot_be_asked_for_beside_weights() -> None:
    resolved = resolve("init_from = 'gpt2'", filename="f.py")
    with pytest.raises(UsageError) as refused:
        make_plan(resolved, Place(card=find_card("RTX 4070")), fit=True, params=60_000_000)
    assert refused.value.name == "params-of-weights"


def test_no_loss_is_predicted_and_no_shape_varied() -> None:
    plan = planned("gpt2", sensitivity=True)
    assert plan.loss is None
    assert plan.sensitivity
    assert not set(OF_WEIGHTS) & {change.key for change in plan.sensitivity}
