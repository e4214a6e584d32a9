"""Fixes: re-planned, ranked, honest about evaluation; patches that apply and do what was promised."""

import pytest

from onecard.config.resolve import resolve
from onecard.config.schema import RunConfig
from onecard.inputs.make_plan import make_plan
from onecard.models.evaluation import smaller_eval_batch
from onecard.plan.advice import Fix, ranked_fixes
from onecard.plan.cards import find_card
from onecard.plan.fit import fit_onecard
from onecard.plan.loss import forecast_loss
from onecard.plan.memory.predict import predict_nanogpt, predict_onecard
from onecard.plan.place import Place
from onecard.plan.speed import predict_speed
from onecard.report.command import changed_command
from onecard.report.summary import needs_room, room_caution
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


def test_returning_only_the_loss_saves_two_generations_of_logits_when_compiled() -> None:
    logits = 16 * 1024 * 50304 * 2  # the zeros, and the gradient that is now written over them; measured on an H200
    assert fixes(config())["return-only-the-loss"].saves_bytes == pytest.approx(2 * logits, rel=0.05)


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


def test_programs_cannot_give_back_more_than_the_card_has() -> None:
    room = RTX_4070.allocatable_bytes
    memory = predict_nanogpt(config(), RTX_4070, available_bytes=0)
    found = ranked_fixes(config(), RTX_4070, memory, available_bytes=0, other_bytes=room + GIB)
    (fix,) = (each for each in found if each.name == "close-other-programs")
    assert f"{room / MIB:,.0f} MiB more room" in fix.why
    assert fix.fits == (memory.process_bytes <= room)


def test_cures_come_first_and_the_cheapest_of_them_leads() -> None:
    ranked = [fix for fix in fixes(config()).values() if fix.saves_bytes and fix.name != "best-combination"]
    cures = [fix.fits for fix in ranked]
    assert cures == sorted(cures, reverse=True)
    same_run = [fix.same_run for fix in ranked if fix.fits]
    assert same_run == sorted(same_run, reverse=True)
    costs = [round(fix.slowdown, 2) for fix in ranked if fix.fits and fix.same_run and fix.slowdown is not None]
    assert costs == sorted(costs)


def test_the_best_combination_fits_and_is_as_fast_as_the_best_single_cure() -> None:
    found = fixes(config(batch_size=64, gradient_accumulation_steps=15))
    together = found["best-combination"]
    assert together.fits
    cures = [f.slowdown for f in found.values() if f.fits and f.same_run and f.patch and f.slowdown is not None]
    assert together.slowdown is not None
    assert together.slowdown <= min(cures) + 0.02


def test_every_fix_has_a_command_to_paste() -> None:
    for fix in fixes(config(compile=False)).values():
        assert changed_command(fix, "train_fineweb.py").split()[:1] in (
            ["python"],
            ["PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"],
        )


def with_ours(c: RunConfig, available: int = AVAILABLE) -> dict[str, Fix]:
    memory, ours = (predict(c, RTX_4070, available_bytes=available) for predict in (predict_nanogpt, predict_onecard))
    found = ranked_fixes(c, RTX_4070, memory, available_bytes=available, ours=ours)
    return {fix.name: fix for fix in found}


def test_our_trainer_is_a_fix_of_nanogpts_run_with_the_command_to_paste() -> None:
    fix = with_ours(config())["onecard-train"]
    theirs, ours = predict_nanogpt(config(), RTX_4070), predict_onecard(config(), RTX_4070)
    assert fix.fits
    assert fix.saves_bytes == theirs.process_bytes - ours.process_bytes > 3 * GIB
    assert changed_command(fix, "my.py", {"n_embd": 768}) == "onecard train my.py --n_embd=768"
    assert "onecard-fit" not in with_ours(config()), "it fits as it is"


def test_gradient_checkpointing_is_in_the_list_even_where_onecard_alone_is_enough() -> None:
    found = with_ours(config())
    assert found["onecard-train"].fits
    full = found["onecard-full"]
    assert "gradient checkpointing" in full.what
    assert full.patch == {"grad_checkpoint": "full"}
    assert full.saves_bytes > found["onecard-train"].saves_bytes


def test_every_fix_says_what_it_costs_in_loss() -> None:
    found = fixes(config(dataset="fineweb", dropout=0.1, max_iters=20_000))
    assert found["smaller-micro-batch"].loss_change == 0.0
    smaller = forecast_loss(config(dataset="fineweb", max_iters=20_000).replace(found["smaller-model"].patch))
    now = forecast_loss(config(dataset="fineweb", max_iters=20_000))
    assert smaller
    assert now
    assert found["smaller-model"].loss_change == smaller.final.likely - now.final.likely > 0
    assert found["shorter-block"].loss_change is None
    assert not found["shorter-block"].comparable
    assert "not comparable" in found["shorter-block"].loss_note
    assert found["eval-iters"].error_times == 4.0
    assert found["no-dropout"].loss_change is None


def test_no_two_fixes_make_the_same_change() -> None:
    for keys in ({}, {"n_embd": 576, "dtype": "float16"}, {"batch_size": 64, "gradient_accumulation_steps": 8}):
        changes = [fix.change for fix in with_ours(config(**keys)).values() if fix.saves_bytes]
        assert len(changes) == len(set(changes)), keys


def test_expandable_segments_that_are_there_already_are_no_fix() -> None:
    asked = config()
    memory = predict_nanogpt(asked, RTX_4070, available_bytes=AVAILABLE, expandable_segments=True)
    found = ranked_fixes(asked, RTX_4070, memory, available_bytes=AVAILABLE, expandable_segments=True)
    assert "expandable-segments" not in {fix.name for fix in found}
    for fix in found:
        if fix.patch:
            assert changed_command(fix, "c.py").startswith("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True ")


def test_nanogpt_is_not_told_keys_it_would_refuse() -> None:
    fix = fixes(config(vocab_size=50257))["pad-the-vocabulary"]
    assert (
        changed_command(fix, "my.py", {"n_embd": 768, "grad_checkpoint": "full"})
        == "python train.py my.py --n_embd=768"
    )
    assert "vocab_size" in fix.code


def test_recomputing_is_a_fix_where_our_trainer_alone_is_none() -> None:
    large = config(n_layer=24, n_head=16, n_embd=1024)
    found = with_ours(large)
    assert not found["onecard-train"].fits
    before = predict_nanogpt(large, RTX_4070).process_bytes
    speed = predict_speed(large, RTX_4070)
    for mode in ("selective", "full"):
        fix, changed = found[f"onecard-{mode}"], large.replace({"grad_checkpoint": mode})
        assert fix.patch == {"grad_checkpoint": mode}
        after = predict_onecard(changed, RTX_4070, available_bytes=AVAILABLE)
        assert fix.saves_bytes == before - after.process_bytes
        assert fix.fits == after.fits
        slower = predict_speed(changed, RTX_4070, "onecard")
        assert speed
        assert slower
        ratio = speed.tokens_per_second.likely / slower.tokens_per_second.likely
        assert fix.slowdown == pytest.approx(ratio - 1)
    assert found["onecard-selective"].saves_bytes < found["onecard-full"].saves_bytes
    assert found["onecard-fit"].fits
    fitted = large.replace(found["onecard-fit"].patch)
    assert fitted.tokens_per_step == large.tokens_per_step
    assert predict_onecard(fitted, RTX_4070, available_bytes=AVAILABLE).fits


def test_fixes_of_our_own_run_are_planned_with_our_trainer() -> None:
    large = config(n_layer=24, n_head=16, n_embd=1024, compile=False)
    memory = predict_onecard(large, RTX_4070, available_bytes=AVAILABLE)
    found = ranked_fixes(large, RTX_4070, memory, available_bytes=AVAILABLE, trainer="onecard")
    names = {fix.name for fix in found}
    assert {"selective", "full", "smaller-micro-batch", "shorter-block", "smaller-model", "best-combination"} <= names
    assert not {"return-only-the-loss", "expandable-segments", "onecard-train", "smaller-eval-batch"} & names
    for fix in found:
        assert changed_command(fix, "my.py").startswith("onecard train my.py")
        if fix.patch:
            after = predict_onecard(large.replace(fix.patch), RTX_4070, available_bytes=AVAILABLE)
            assert fix.saves_bytes == memory.process_bytes - after.process_bytes
            assert fix.fits == after.fits


def test_a_run_with_room_to_spare_is_not_told_to_shrink() -> None:
    names = fixes(config(n_embd=384, batch_size=4)).keys()
    assert not {"smaller-micro-batch", "shorter-block", "smaller-model", "best-combination"} & names
    assert "return-only-the-loss" in names


def test_a_cure_by_less_than_the_error_is_called_so_and_stands_behind_the_safe_ones() -> None:
    asked = config(n_layer=13, n_head=21, n_embd=1344, batch_size=8, gradient_accumulation_steps=64)
    recomputed = predict_onecard(asked.replace({"grad_checkpoint": "selective"}), RTX_4070)
    room = recomputed.process_bytes + recomputed.error_bytes // 2
    ours = predict_onecard(asked, RTX_4070, available_bytes=room)
    found = ranked_fixes(asked, RTX_4070, ours, available_bytes=room, trainer="onecard")
    selective = next(fix for fix in found if fix.name == "selective")
    assert (selective.fits, selective.safe) == (True, False)
    full = next(fix for fix in found if fix.name == "full")
    assert (full.fits, full.safe) == (True, True)
    assert found.index(full) < found.index(selective)


def test_a_no_within_the_error_is_a_near_one() -> None:
    asked = config(n_embd=384, batch_size=8, compile=False)
    nearly = predict_nanogpt(asked, RTX_4070).process_bytes - 100 * MIB
    planned = predict_nanogpt(asked, RTX_4070, available_bytes=nearly)
    assert planned.fits is False
    assert planned.is_near(nearly)
    assert not planned.is_near(nearly - GIB)


def test_a_run_that_only_fits_once_its_kernels_are_tuned_fits_barely() -> None:
    """The public 40M run, with a desktop beside it: it ran. Of its first run the buffers of timing are in the way."""
    planned = predict_nanogpt(config(n_embd=384, dropout=0.1), RTX_4070, available_bytes=AVAILABLE)
    first = predict_nanogpt(config(n_embd=384, dropout=0.1), RTX_4070)
    assert (planned.fits, planned.is_safe(AVAILABLE)) == (True, False)
    assert planned.first_run_out == "training, backward pass of the loss"
    assert planned.process_bytes + GIB < AVAILABLE < first.process_bytes
    caution = room_caution(planned, AVAILABLE)
    assert caution
    assert "times kernels" in caution
    wider = predict_nanogpt(config(n_embd=576, dropout=0.1), RTX_4070, available_bytes=AVAILABLE)
    assert (wider.fits, wider.first_run_out) == (False, None)


def test_a_run_that_only_fits_while_its_kernels_are_timed_fits_barely() -> None:
    """124M at 14 in 12 GiB on an H200: it ran out after a run at 12 had left its kernels in the cache."""
    asked, limit = config(batch_size=14, gradient_accumulation_steps=30), 12 * GIB
    planned = predict_nanogpt(asked, find_card("H200"), available_bytes=limit)
    assert (planned.fits, planned.is_safe(limit), planned.first_run_out) == (True, False, None)
    assert planned.later_run_out
    assert planned.process_bytes + planned.error_bytes < limit, "as first runs go there is room"
    caution = room_caution(planned, limit)
    assert caution
    assert "a later one" in caution
    smaller = predict_nanogpt(asked.replace({"batch_size": 12}), find_card("H200"), available_bytes=limit)
    assert (smaller.fits, smaller.later_run_out) == (True, None)


LARGE_EVALUATION = config(batch_size=2, gradient_accumulation_steps=40, eval_batch_size=384)
SMALL_ROOM = round(5.5 * GIB)


def test_where_evaluation_is_the_peak_its_batch_is_the_first_cure_and_costs_nothing() -> None:
    memory = predict_onecard(LARGE_EVALUATION, RTX_4070, available_bytes=SMALL_ROOM)
    assert (memory.fits, memory.peak_phase.name) == (False, "eval")
    first, *others = ranked_fixes(LARGE_EVALUATION, RTX_4070, memory, available_bytes=SMALL_ROOM, trainer="onecard")
    assert (first.name, first.patch) == ("smaller-eval-batch", {"eval_batch_size": 2})
    assert (first.fits, first.safe, first.same_run, first.slowdown) == (True, True, True, 0.0)
    after = predict_onecard(LARGE_EVALUATION.replace(first.patch), RTX_4070, available_bytes=SMALL_ROOM)
    assert first.saves_bytes == memory.process_bytes - after.process_bytes > GIB
    assert after.peak_phase.name == "train"
    found = {fix.name: fix for fix in others}
    assert "another quantity" in found["shorter-eval-block"].why
    assert not found["shorter-eval-block"].same_run
    together = found["best-combination"]
    assert together.patch["eval_batch_size"] < 384
    assert together.slowdown is not None
    assert together.slowdown <= 0
    assert found["eval-iters"].why.startswith("0 MiB")


def test_an_evaluation_of_one_batch_is_not_told_that_eval_iters_saves_nothing() -> None:
    asked = LARGE_EVALUATION.replace({"eval_iters": 4})  # 8 sequences of the 384 that a batch may have
    memory = predict_onecard(asked, RTX_4070, available_bytes=SMALL_ROOM)
    found = ranked_fixes(asked, RTX_4070, memory, available_bytes=SMALL_ROOM, trainer="onecard")
    assert "eval-iters" not in {fix.name for fix in found}


def test_evaluation_batches_of_no_more_tokens_than_a_micro_batch_are_left_alone() -> None:
    short = LARGE_EVALUATION.replace({"eval_batch_size": 16, "eval_block_size": 128})
    assert smaller_eval_batch(short) is None
    assert smaller_eval_batch(short.replace({"eval_batch_size": 17})) == 16
    assert smaller_eval_batch(LARGE_EVALUATION.replace({"eval_batch_size": None})) is None


def test_fixes_are_for_the_trainer_that_does_not_fit() -> None:
    flags = [("batch_size", "2"), ("gradient_accumulation_steps", "40"), ("eval_batch_size", "384")]
    card = RTX_4070.with_memory(SMALL_ROOM)
    plan = make_plan(resolve("n_layer = 12", filename="base.py", flags=flags), Place(card=card))
    assert plan.nanogpt
    assert plan.onecard
    assert (plan.nanogpt.memory.fits, plan.onecard.memory.fits, plan.exit_code) == (True, False, 1)
    assert {fix.trainer for fix in plan.fixes} == {"onecard"}
    assert needs_room(plan)
    roomy = make_plan(resolve("n_layer = 12", filename="base.py", flags=flags[:2]), Place(card=card))
    assert {fix.trainer for fix in roomy.fixes} >= {"nanogpt"}


def test_a_fit_keeps_the_evaluation_batch_unless_it_alone_is_too_large() -> None:
    fit = fit_onecard(LARGE_EVALUATION.replace({"eval_batch_size": 1024}), RTX_4070, SMALL_ROOM)
    assert fit.best
    assert fit.best.safe
    assert fit.best.config.eval_batch_size == fit.best.config.batch_size > 2
    roomy = fit_onecard(LARGE_EVALUATION, RTX_4070, RTX_4070.allocatable_bytes)
    assert roomy.best
    assert "eval_batch_size" not in roomy.best.patch
