"""Fixes: re-planned, ranked, honest about evaluation; patches that apply and do what was promised."""

import pytest

from onecard.config.schema import RunConfig
from onecard.plan.advice import Fix, ranked_fixes
from onecard.plan.cards import find_card
from onecard.plan.memory.predict import predict_nanogpt
from onecard.units import GIB, MIB

RTX_4070 = find_card("RTX 4070")
OTHER = round(2.1 * GIB)
AVAILABLE = RTX_4070.allocatable_bytes - OTHER


def config(**keys: object) -> RunConfig:
    return RunConfig().replace({"dtype": "bfloat16", "batch_size": 16, "gradient_accumulation_steps": 32, **keys})


def fixes(c: RunConfig) -> dict[str, Fix]:
    memory = predict_nanogpt(c, RTX_4070, available_bytes=AVAILABLE)
    found = ranked_fixes(c, RTX_4070, memory, available_bytes=AVAILABLE, other_bytes=OTHER)
    return {fix.name: fix for fix in found}


def test_returning_only_the_loss_saves_one_generation_of_logits_when_compiled() -> None:
    logits = 16 * 1024 * 50304 * 2
    assert fixes(config())["return-only-the-loss"].saves_bytes == pytest.approx(logits, rel=0.05)


def test_an_odd_vocabulary_is_padded_and_saves_a_copy() -> None:
    fix = fixes(config(vocab_size=50257, n_embd=384))["pad-the-vocabulary"]
    assert fix.patch == {"vocab_size": 50304}
    assert fix.saves_bytes > 1 * GIB


def test_compile_and_half_precision_are_advised_where_they_are_off() -> None:
    found = fixes(config(compile=False, dtype="float32"))
    assert found["compile"].saves_bytes > 0
    assert found["half-precision"].saves_bytes > 0
    assert not {"compile", "half-precision"} & fixes(config()).keys()


def test_the_smaller_micro_batch_keeps_the_tokens_and_fits() -> None:
    fix = fixes(config())["smaller-micro-batch"]
    changed = config().replace(fix.patch)
    assert changed.tokens_per_step == config().tokens_per_step
    assert fix.fits
    assert predict_nanogpt(changed, RTX_4070, available_bytes=AVAILABLE).fits


@pytest.mark.parametrize("keys", [{}, {"compile": False}, {"vocab_size": 50257, "dropout": 0.1}, {"dtype": "float32"}])
def test_every_patch_replans_to_what_was_promised(keys: dict[str, object]) -> None:
    base = config(**keys)
    before = predict_nanogpt(base, RTX_4070).process_bytes
    for fix in fixes(base).values():
        if fix.patch and not fix.code and not fix.environment:
            after = predict_nanogpt(base.replace(fix.patch), RTX_4070, available_bytes=AVAILABLE)
            assert abs((before - after.process_bytes) - fix.saves_bytes) <= 2 * MIB, fix.name
            assert after.fits == fix.fits


def test_eval_iters_is_plainly_labelled_0_mib() -> None:
    fix = fixes(config())["eval-iters"]
    assert fix.saves_bytes == 0
    assert fix.why.startswith("0 MiB")


def test_closing_programs_takes_nothing_off_the_run_but_gives_room() -> None:
    fix = fixes(config(n_embd=576))["close-other-programs"]
    assert fix.saves_bytes == 0
    assert "2,150 MiB more room" in fix.why


def test_cures_come_first_and_the_cheapest_of_them_leads() -> None:
    ranked = [fix for fix in fixes(config()).values() if fix.saves_bytes and fix.name != "best-combination"]
    cures = [fix.fits for fix in ranked]
    assert cures == sorted(cures, reverse=True)
    same_run = [fix.same_run for fix in ranked if fix.fits]
    assert same_run == sorted(same_run, reverse=True)
    costs = [round(fix.slowdown, 2) for fix in ranked if fix.fits and fix.same_run and fix.slowdown is not None]
    assert costs == sorted(costs)


def test_the_best_combination_fits_and_is_no_slower_than_the_best_single_cure() -> None:
    found = fixes(config())
    together = found["best-combination"]
    assert together.fits
    cures = [f.slowdown for f in found.values() if f.fits and f.same_run and f.patch and f.slowdown is not None]
    assert together.slowdown is not None
    assert together.slowdown <= min(cures)


def test_every_fix_has_a_command_to_paste() -> None:
    for fix in fixes(config(compile=False)).values():
        assert fix.command("train_fineweb.py").split()[:1] in (
            ["python"],
            ["PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"],
        )
