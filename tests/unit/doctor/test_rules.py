"""Every rule: a run it must find, a run it must leave alone, a docstring in four parts."""

import math
import re
from dataclasses import replace

import pytest

from onecard.config.resolve import resolve
from onecard.config.schema import RunConfig
from onecard.doctor.case import Case
from onecard.doctor.diagnose import diagnose_cases
from onecard.doctor.explain import PARTS, explain, explanations
from onecard.doctor.predict import predict_end
from onecard.doctor.rules import NAMES
from onecard.errors import UsageError
from onecard.findings import Finding
from onecard.inputs.make_plan import make_plan
from onecard.plan import recipe
from onecard.plan.cards import find_card
from onecard.plan.place import Place
from onecard.runs.records import End, Start
from onecard.units import GIB, mib
from tests.unit.doctor.cases import (
    BEFORE,
    FULL,
    HEALTHY,
    HEALTHY_RUN,
    NARROW,
    SICK,
    SMALL,
    SPIKE,
    TOKENS,
    case,
    changed,
    evals,
    evaluation,
    falling_then_raised,
    found,
    learning,
    oom,
    said,
    step,
    steps,
    timed,
    wobble,
)

# The table of the doctor's rules: every name, and the severities it may have.
TABLE = {
    "not-learning": "error warn",
    "loss-too-low": "warn",
    "unsteady-loss": "warn",
    "gradient-norm": "error warn",
    "slowing-down": "warn info",
    "slower-than-planned": "warn",
    "card-too-hot": "warn info",
    "power-limit": "warn info",
    "card-shared": "warn info",
    "slow-pcie-link": "warn info",
    "clocks-drop": "warn info",
    "waiting-for-data": "warn",
    "val-same-as-train": "warn",
    "weight-decay-out-of-range": "warn info",
    "params-mismatch": "error",
    "stale-comment": "info",
    "heads-do-not-divide": "fatal",
    "odd-head-size": "warn info",
    "unpadded-vocab": "warn info",
    "logits-returned": "info",
    "unknown-key": "error warn",
    "batch-arithmetic": "error",
    "accumulation-for-target": "info",
    "small-batch-betas": "warn info",
    "few-large-updates": "info",
    "batch-too-large": "warn",
    "lr-out-of-range": "warn",
    "decay-horizon": "warn info",
    "warmup-length": "info warn",
    "stopped-early": "info",
    "loss-nan": "fatal error",
    "instability-not-precision": "info",
    "loss-spike": "warn info",
    "scaler-skips": "warn",
    "diverging": "error warn info",
    "bad-initial-loss": "warn",
    "overfitting": "warn",
    "val-below-train": "info warn",
    "needless-dropout": "warn info",
    "too-many-epochs": "info warn error",
    "tokens-per-parameter": "info",
    "capacity-or-data": "info",
    "plateau": "info",
    "loss-off-expectation": "warn",
    "mfu-mislabelled": "info",
    "contradicting-inputs": "error",
    "low-mfu": "warn",
    "autotune-sm-warning": "info",
    "throughput-arithmetic": "warn",
    "eval-too-expensive": "info",
    "compile-failed": "error",
    "crashed": "error info",
    "oom-capacity": "error",
    "oom-fragmentation": "error",
    "oom-despite-free": "error",
    "oom-other-process": "error",
    "oom-system-spill": "error",
    "oom-tensor": "info",
    "oom-in-eval": "error",
    "val-set-tiny": "warn",
    "states-do-not-fit": "fatal",
    "resume-shape-ignored": "error",
    "resume-lr-jump": "warn",
    "out-dir-reused": "warn",
    "best-overwritten": "info",
}


def the(name: str, patient: Case) -> Finding:
    (finding,) = found(name, patient)
    return finding


def measured(config: str, last: int, *, step_seconds: float, eval_seconds: float) -> Case:
    """A run of ours until step `last`, evaluated at the beginning and there."""
    updates = [step(number, 4.0, seconds=step_seconds) for number in range(1, last + 1)]
    looks = [replace(evaluation(number, 4.0, 4.0), seconds=eval_seconds) for number in (0, last)]
    return case(config, records=[*updates, *looks], log_format="onecard")


def test_the_rules_are_those_of_the_table_each_once() -> None:
    assert sorted(NAMES) == sorted(TABLE)
    assert sorted(SICK) == sorted(HEALTHY) == sorted(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_a_sick_run_is_found_with_evidence(name: str) -> None:
    findings = found(name, SICK[name](), BEFORE.get(name, list)())
    assert findings
    for finding in findings:
        assert finding.rule == name
        assert finding.severity in TABLE[name].split()
        assert finding.seen, "no finding without evidence"
        assert all((finding.what, finding.why, finding.fix))


@pytest.mark.parametrize("name", TABLE)
def test_a_healthy_run_is_left_alone(name: str) -> None:
    assert found(name, HEALTHY[name](), BEFORE.get(name, list)()) == []


@pytest.mark.parametrize("name", TABLE)
def test_a_rule_explains_itself_in_four_parts(name: str) -> None:
    explanation = explain(name)
    assert list(explanation.parts) == list(PARTS)
    assert all(len(words) > 5 for words in explanation.parts.values())
    assert explanation.summary.endswith(".")


def test_an_unknown_rule_gets_the_nearest_name() -> None:
    with pytest.raises(UsageError) as problem:
        explain("loss-spikes")
    assert problem.value.fix == "onecard doctor --explain loss-spike"
    assert explain("Loss_Spike").name == "loss-spike"
    assert len(explanations()) == len(TABLE)


@pytest.mark.parametrize("name", NAMES)
def test_a_run_of_which_nothing_is_known_has_no_finding(name: str) -> None:
    assert found(name, case(None)) == []


def start(number: int, **config: object) -> Start:
    """Training begins, or is resumed, at this step."""
    return Start(
        step=number,
        config=config,
        versions={},
        device="cpu",
        card=None,
        predicted_process_bytes=None,
        resumed_from="c" if number else None,
    )


class TestTheMismatch:
    def test_the_patch_is_complete_and_planned(self) -> None:
        finding = the("params-mismatch", case(NARROW, card="RTX 4070"))
        assert finding.patch == {
            "n_embd": 768,
            "learning_rate": 6e-4,
            "min_lr": 6e-5,
            "dropout": 0.0,
            "out_dir": "out-124M",
        }  # 8 sequences fit already
        assert "MiB of 11.69 GiB" in finding.fix
        assert " h, loss " in finding.fix
        assert "cannot be continued" in finding.fix

    def test_a_micro_batch_that_does_not_fit_is_made_smaller_at_the_same_tokens(self) -> None:
        wide = NARROW + "batch_size = 16\ngradient_accumulation_steps = 32\nmax_iters = 20000\nlr_decay_iters = 20000\n"
        finding = the("params-mismatch", case(wide, card="RTX 4070"))
        assert finding.patch["batch_size"] == 8
        assert finding.patch["gradient_accumulation_steps"] == 64
        assert "still 524,288 tokens per update" in finding.fix
        assert "at step 10,000" in finding.fix

    def test_without_a_card_it_says_how_to_have_it_planned(self) -> None:
        finding = the("params-mismatch", case(NARROW))
        assert "batch_size" not in finding.patch
        assert "--gpu" in finding.fix

    def test_a_log_of_another_model_than_the_config_is_told(self) -> None:
        finding = the("params-mismatch", case(printed_params=40_560_000))
        assert "40.56M" in finding.what
        assert "123.59M" in finding.what

    def test_heads_of_64_come_first(self) -> None:
        finding = the("params-mismatch", case(SMALL.replace("n_embd = 768", "n_embd = 384") + "# ~63M parameters\n"))
        assert finding.patch["n_embd"] == 512
        assert finding.patch["n_head"] == 8

    def test_for_pretrained_weights_only_the_comment_can_be_fixed(self) -> None:
        finding = the("params-mismatch", case(f"{NARROW}init_from = 'runs/mine'\n", card="RTX 4070"))
        assert (finding.severity, finding.patch) == ("info", {})
        assert finding.fix == "fix the comment or the name"
        assert "gives" not in finding.what, "no other shape is proposed"
        assert "the weights it starts from (runs/mine)" in finding.why
        odd = the("odd-head-size", case(changed(n_embd=768, n_head=64, init_from="runs/mine")))
        assert (odd.severity, odd.patch) == ("info", {})

    @pytest.mark.parametrize("wanted", [1.4, 2.5, 9, 14, 124])
    def test_the_folder_of_a_new_shape_keeps_its_promise(self, wanted: float) -> None:
        small = changed(n_layer=2, n_head=1, n_embd=768, block_size=256, vocab_size=8192)
        finding = the("params-mismatch", case(f"{small}# a model of ~{wanted}M parameters\n"))
        assert finding.patch["out_dir"].startswith("out-")  # type: ignore[attr-defined]
        made = "".join(f"{key} = {value!r}\n" for key, value in finding.patch.items())
        assert found("params-mismatch", case(small + made)) == []


class TestTheBatch:
    def test_the_accumulation_for_half_a_million_tokens_says_whether_it_is_exact(self) -> None:
        exact = the("accumulation-for-target", case(changed(gradient_accumulation_steps=40)))
        assert exact.patch == {"gradient_accumulation_steps": 64}
        assert "exactly" in exact.fix
        nearly = the("accumulation-for-target", case(changed(batch_size=12, gradient_accumulation_steps=40)))
        assert nearly.patch == {"gradient_accumulation_steps": 43}
        assert "about that: 528,384" in nearly.fix

    def test_it_follows_the_micro_batch_of_the_shape_that_was_meant(self) -> None:
        wide = NARROW + "batch_size = 16\ngradient_accumulation_steps = 32\n"
        finding = the("accumulation-for-target", case(wide, card="RTX 4070"))
        assert finding.patch == {"batch_size": 8, "gradient_accumulation_steps": 64}

    def test_beta2_keeps_its_half_life_in_tokens(self) -> None:
        assert the("small-batch-betas", case(changed(gradient_accumulation_steps=4))).patch == {"beta2": 0.9968}
        other = the("small-batch-betas", case(changed(gradient_accumulation_steps=4, beta2=0.9)))
        assert other.patch == {"beta2": 0.9934}  # 0.9 ^ (1 / 16)
        assert "(0.9 ^ (32,768 / 524,288))" in other.fix

    def test_a_short_run_gets_more_and_smaller_updates_of_the_same_tokens(self) -> None:
        short = changed(max_iters=1000, lr_decay_iters=1000, warmup_iters=100)
        assert the("few-large-updates", case(short)).patch == {
            "gradient_accumulation_steps": 22,  # 1000 x 524,288 tokens / 3,000 updates is 21.3 micro-batches of 8,192
            "beta2": 0.9825,  # 0.95 ^ (22 / 64)
            "max_iters": 2909,
            "lr_decay_iters": 2909,
            "warmup_iters": 100,
        }
        assert not found("accumulation-for-target", case(short)), "the two would contradict each other"

    @pytest.mark.parametrize(("batch", "beta2", "advised"), [(8, 0.95, 0.9992), (1, 0.95, 0.9999), (8, 0.0, 0.9992)])
    def test_the_smallest_batches_get_a_beta2_that_can_be_set(self, batch: int, beta2: float, advised: float) -> None:
        config = changed(batch_size=batch, gradient_accumulation_steps=1, beta2=beta2)
        patch = the("small-batch-betas", case(config)).patch
        assert patch == {"beta2": advised}
        assert RunConfig.model_validate(patch)

    def test_the_recipe_of_a_budget_says_the_same(self) -> None:
        assert recipe.beta2(32_768).value == 0.9968
        assert recipe.beta2(TOKENS).value == 0.95

    @pytest.mark.parametrize(
        ("world", "accumulation", "reached"), [(1, 64, 524_288), (8, 64, 524_288), (6, 66, 540_672)]
    )
    def test_nanogpts_accumulation_counts_the_micro_batches_of_all_cards(
        self, world: int, accumulation: int, reached: int
    ) -> None:
        for rule, now in (("accumulation-for-target", 5 * world), ("batch-too-large", 300 * world)):
            finding = the(rule, case(changed(gradient_accumulation_steps=now), world_size=world))
            assert finding.patch == {"gradient_accumulation_steps": accumulation}
            assert accumulation % world == 0, "nanoGPT asserts it"
            assert f"{reached:,}" in finding.fix or rule != "accumulation-for-target"

    def test_other_programs_count_the_micro_batches_of_one_card(self) -> None:
        said_all = "".join(
            f"{key} = {value!r}\n" for key, value in RunConfig().model_dump().items() if value is not None
        )
        config = said_all + changed(gradient_accumulation_steps=5)
        finding = the("accumulation-for-target", case(config, world_size=8, log_format="hf-trainer"))
        assert finding.patch == {"gradient_accumulation_steps": 8}
        assert "an update is 327,680 tokens (8 x 5 x 1,024 x 8 cards)" in finding.what

    def test_the_words_say_what_the_advice_is(self) -> None:
        advised = the("small-batch-betas", case(changed(gradient_accumulation_steps=4))).patch["beta2"]
        assert f"{advised:g} at 32,768" in explain("small-batch-betas").parts["What to do"]

    def test_cards_multiply_or_divide_the_accumulation(self) -> None:
        assert found("batch-arithmetic", case(printed_tokens_per_step=8 * 524_288, world_size=8)) == []
        assert found("batch-arithmetic", case(printed_tokens_per_step=524_288, world_size=8)) == []


class TestTheSchedule:
    def test_low_and_high_rates_are_told(self) -> None:
        low = the("lr-out-of-range", case(changed(learning_rate=1e-4, min_lr=1e-5)))
        assert low.patch == {"learning_rate": 6e-4, "min_lr": 6e-5}
        assert found("lr-out-of-range", case(changed(learning_rate=2.4e-3, min_lr=2.4e-4))) == []

    def test_a_large_batch_allows_a_higher_rate(self) -> None:
        high = {"learning_rate": 4e-3, "min_lr": 4e-4}
        assert found("lr-out-of-range", case(changed(**high)))
        assert found("lr-out-of-range", case(changed(**high, gradient_accumulation_steps=256))) == []

    def test_three_ways_not_to_decay(self) -> None:
        assert the("decay-horizon", case(changed(decay_lr=False))).patch["decay_lr"] is True
        assert the("decay-horizon", case(changed(min_lr=3e-4))).patch == {"min_lr": 6e-5}
        assert the("decay-horizon", case(changed(lr_decay_iters=600_000))).patch == {"lr_decay_iters": 10_000}

    def test_a_rate_that_falls_only_at_the_end_must_have_its_end(self) -> None:
        wsd = {"schedule": "wsd", "max_iters": 30, "learning_rate": 1e-3, "min_lr": 1e-4}
        never = the("decay-horizon", case(changed(**wsd, lr_decay_iters=400, warmup_iters=5)))
        assert never.what == (
            "the learning rate falls in the last 20% of 400 updates, "
            "and the run makes 30 and ends at 100% of the full rate"
        )
        assert never.patch == {"lr_decay_iters": 30}
        over = the("decay-horizon", case(changed(**wsd, lr_decay_iters=20, warmup_iters=5)))
        assert over.what.endswith("the run makes 30 and ends at 10% of the full rate")
        assert found("decay-horizon", case(changed(**wsd, lr_decay_iters=30, warmup_iters=5))) == []

    def test_a_log_that_ends_is_not_finished_and_says_what_finishing_would_bring(self) -> None:
        finding = the("stopped-early", case(records=learning(5000)))
        assert finding.what.startswith("not finished")
        forecast = predict_end(case(records=learning(5000)))
        assert forecast
        assert forecast.final_loss
        assert f"val would be about {forecast.final_loss.likely:.2f}" in finding.why, "one forecast, not two"

    @pytest.mark.parametrize(
        ("iters", "warmup", "patch"),
        [
            (25, 5, {"warmup_iters": 1}),
            (600, 100, {"warmup_iters": 30}),
            (600, 50, {}),  # 100 would be more than a tenth
            (1000, 50, {"warmup_iters": 100}),
            (10_000, 2000, {"warmup_iters": 300}),
        ],
    )
    def test_a_warm_up_is_fixed_where_it_can_be(self, iters: int, warmup: int, patch: dict[str, object]) -> None:
        finding = the("warmup-length", case(changed(max_iters=iters, warmup_iters=warmup)))
        assert finding.patch == patch
        assert patch or "nothing to do in so short a run" in finding.fix

    @pytest.mark.parametrize("iters", [100, 999, 1000, 3000, 20_000, 600_000])
    def test_the_recipes_warm_up_is_no_more_than_a_tenth_and_100_where_that_can_be(self, iters: int) -> None:
        updates = recipe.warmup(iters).value
        assert updates <= iters / 10
        assert updates >= 100 or iters < 1000


class TestStability:
    def test_a_nan_names_the_last_good_step_and_halves_the_rate(self) -> None:
        finding = the("loss-nan", SICK["loss-nan"]())
        assert finding.severity == "fatal"
        assert finding.patch == {"learning_rate": 3e-4, "min_lr": 3e-5}, "the end follows the rate"
        assert any("4.1000" in line for line in finding.seen)

    def test_bfloat16_is_offered_where_the_card_has_it(self) -> None:
        half = changed(dtype="float16")
        assert the("loss-nan", case(half, records=steps([4.0, math.nan]), card="RTX 4070")).patch["dtype"] == "bfloat16"
        assert "dtype" not in the("loss-nan", case(half, records=steps([4.0, math.nan]), card="V100 SXM2 16GB")).patch

    def test_a_nan_that_passes_is_an_error_not_the_end(self) -> None:
        assert the("loss-nan", case(records=steps([4.0, math.nan, *[4.0] * 8]))).severity == "error"

    def test_infinity_and_evaluations_count(self) -> None:
        assert the("loss-nan", case(records=steps([4.0, math.inf]))).severity == "fatal"
        assert the("loss-nan", case(records=evals([(4.0, 4.0), (math.nan, math.nan)]))).severity == "fatal"

    def test_the_end_of_a_run_is_where_it_is_lost_for_good(self) -> None:
        finding = the("loss-nan", case(records=steps([4.0, math.nan, *[4.0] * 8, math.nan, math.nan])))
        assert finding.severity == "fatal"
        assert "at step 1,000" in finding.what  # step 100 passed

    def test_the_lines_shown_are_of_the_spike_that_is_told(self) -> None:
        finding = the("loss-spike", case(records=steps([*SPIKE, 5.0, *SPIKE, 6.0, *SPIKE])))
        assert "to 6.0000 at step 6,100 (and 1 more)" in finding.what
        assert [line.partition(": ")[2].split(":")[0] for line in finding.seen] == ["iter 6000", "iter 6100"]

    def test_a_spike_that_comes_back_is_information(self) -> None:
        finding = the("loss-spike", case(records=steps([*SPIKE, 6.0, *SPIKE])))
        assert finding.severity == "info"
        assert "step 3,000" in finding.what

    @pytest.mark.parametrize("height", [0.2, 0.29])
    def test_what_is_smaller_than_a_third_of_a_nat_is_no_spike(self, height: float) -> None:
        assert found("loss-spike", case(records=steps([*[4.0] * 20, 4.0 + height, *[4.0] * 10]))) == []

    def test_the_noise_of_one_micro_batch_is_no_spike(self) -> None:
        noisy = [4.0 + wobble(n, 0.3) for n in range(200)]
        assert found("loss-spike", case(records=steps(noisy))) == []

    def test_four_points_are_too_few(self) -> None:
        assert found("loss-spike", case(records=steps([4.0, 4.0, 4.0, 4.0, 9.0]))) == []

    def test_a_recorded_error_of_the_windows_does_not_hide_divergence(self) -> None:
        falling = [4.0 - 0.05 * n for n in range(20)]
        rows = [(loss, loss) for loss in (*falling, *(falling[-1] + rise for rise in (0.36, 0.4, 0.44)))]
        run = [replace(e, val_loss_error=0.02, train_loss_error=0.02) for e in evals(rows)]
        assert the("diverging", case(records=run, log_format="onecard")).severity == "error"

    def test_a_wiggle_within_the_error_of_the_evaluations_is_not_divergence(self) -> None:
        falling = [4.0 - 0.05 * n for n in range(20)]
        rows = [(loss, loss) for loss in (*falling, *(falling[-1] + rise for rise in (0.051, 0.055, 0.06)))]
        run = [replace(e, val_loss_error=0.37, train_loss_error=0.37) for e in evals(rows)]
        assert found("diverging", case(records=run, log_format="onecard")) == []

    def test_a_sinking_scale_is_found_early(self) -> None:
        assert the("scaler-skips", case(messages=[said("scaler-skip", step=10, scale=16.0)])).severity == "warn"

    def test_a_run_without_a_card_is_not_sent_to_nvidia_smi(self) -> None:
        slow = SICK["slowing-down"]()
        assert "nvidia-smi" in the("slowing-down", slow).fix
        assert "nvidia-smi" not in the("slowing-down", replace(slow, cardless="cpu")).fix

    def test_overfitting_is_not_divergence(self) -> None:
        assert found("diverging", SICK["overfitting"]()) == []
        assert found("overfitting", SICK["diverging"]()) == []

    def test_a_float32_twin_that_explodes_there_too_acquits_float16(self) -> None:
        half = case(changed(dtype="float16"), records=steps([*SPIKE, 4.0, math.nan]))
        twin = case(changed(dtype="float32"), records=steps([*SPIKE, *[9.0] * 12]))
        assert found("instability-not-precision", half, [twin])
        calm = case(changed(dtype="float32"), records=steps([*SPIKE, *SPIKE]))
        assert found("instability-not-precision", half, [calm]) == []

    def test_too_low_a_first_loss_leaks(self) -> None:
        finding = the("bad-initial-loss", case(records=[evaluation(0, 9.5, 9.5)]))
        assert "leaks" in finding.why

    def test_letters_have_another_first_loss_than_words(self) -> None:
        config = SMALL.replace("'fineweb'", "'shakespeare_char'")
        letters = [evaluation(0, 4.2, 4.2)]
        assert found("bad-initial-loss", case(config, records=letters)) == []  # the vocabulary is not known
        assert found("bad-initial-loss", case(changed(vocab_size=65), records=letters)) == []
        assert found("bad-initial-loss", case(records=letters))


class TestWhatIsOnlyTold:
    """Exceptions from the table: never silent, and the reason says so."""

    @pytest.mark.parametrize(
        ("name", "patient"),
        [
            ("lr-out-of-range", case(changed(init_from="gpt2", learning_rate=3e-5, min_lr=3e-6))),
            ("decay-horizon", case(changed(init_from="gpt2", decay_lr=False))),
            ("small-batch-betas", case(changed(init_from="gpt2", gradient_accumulation_steps=4))),
            ("needless-dropout", case(changed(init_from="gpt2", dropout=0.1), train_tokens=10**11)),
            ("needless-dropout", case(changed(dropout=0.1, dataset="mine", vocab_size=50304))),
            ("unpadded-vocab", case(changed(vocab_size=65))),
            ("unpadded-vocab", case(changed(init_from="gpt2"))),
            ("loss-spike", case(records=steps([*SPIKE, 6.0, 6.0]))),
        ],
    )
    def test_it_is_information_that_prescribes_nothing(self, name: str, patient: Case) -> None:
        finding = the(name, patient)
        assert finding.severity == "info"
        assert "; only a note, because " in finding.why
        assert finding.patch == {}
        assert re.search("only (a note|notes)", " ".join(explain(name).parts.values()))

    def test_waves_of_evaluations_are_no_divergence(self) -> None:
        """Evaluations on fixed windows have hardly any noise; healthy ones went up by 0.016, and 0.12 is allowed."""
        falling = [4.0 - 0.05 * n for n in range(20)]

        def risen(by: float) -> Finding:
            losses = (*falling, *[falling[-1] + by] * 3)
            return the("diverging", case(records=evals([(loss, loss) for loss in losses]), log_format="onecard"))

        assert (risen(0.12).severity, risen(0.12).sure, risen(0.12).patch) == ("info", "low", {})
        assert "; only a note, because so small a rise may go away" in risen(0.12).why
        assert (risen(0.24).severity, risen(0.24).sure) == ("warn", "medium")
        assert (risen(0.38).severity, risen(0.38).sure) == ("error", "high")

    def test_a_rise_within_the_noise_over_a_resume(self) -> None:
        before = case(records=learning(5000))
        rough = [
            evaluation(n, e.val_loss + (0.1 if n % 1000 else -0.1))
            for e in learning()[10:]
            if (n := e.step) and e.val_loss
        ]
        rough[0] = evaluation(5000, before.evals[-1].val_loss + 0.1)  # type: ignore[operator]
        (finding,) = found("resume-lr-jump", case(records=rough), [before])
        assert finding.severity == "info"
        assert "only a note, because two evaluations differ by" in finding.why

    def test_a_rise_within_the_noise_over_a_resume_of_our_own(self) -> None:
        wild = [evaluation(e.step, e.val_loss + (0.1 if e.step % 1000 else -0.1)) for e in learning() if e.val_loss]
        resumed = start(5000)
        before, after = wild[:11], wild[11:]
        after[0] = evaluation(5500, before[-1].val_loss + 0.1)  # type: ignore[operator]
        records = [*before, resumed, *after]
        (finding,) = found("resume-lr-jump", case(records=records))
        assert finding.severity == "info"

    def test_a_nan_that_passed_and_an_out_of_memory_that_was_fixed_say_so(self) -> None:
        assert "Not fatal: the run went on" in the("loss-nan", case(records=steps([4.0, math.nan, *[4.0] * 8]))).why
        message = oom(tried=1.5, **FULL)
        after = {"step": 3, "batch_size_before": 16, "batch_size_after": 8, "accumulation_after": 2}
        mended = replace(message, values={**message.values, **after})
        finding = the("oom-capacity", case(messages=[mended], log_format="onecard"))
        assert finding.severity == "warn"
        assert "only a warning, because the run went on" in finding.why


class TestTheData:
    def test_val_below_train_is_not_blamed_on_dropout(self) -> None:
        finding = the("val-below-train", case(changed(dropout=0.1), records=learning(gap=-0.07)))
        assert "dropout is not the reason" in finding.why

    def test_the_same_windows_read_again_prove_no_more(self) -> None:
        run = [replace(e, train_loss_error=0.03, val_loss_error=0.04) for e in learning(gap=-0.07)]
        assert the("val-below-train", case(records=run))  # nanoGPT draws other batches each time
        assert found("val-below-train", case(records=run, log_format="onecard")) == []  # -0.07 ± 0.05, however often
        sure = [replace(e, train_loss_error=0.02, val_loss_error=0.02) for e in run]
        assert "± 0.028" in the("val-below-train", case(records=sure, log_format="onecard")).why

    def test_programs_that_train_with_dropout_on_are_left_out(self) -> None:
        assert found("val-below-train", case(None, records=learning(gap=-0.07), log_format="hf-trainer")) == []

    def test_dropout_is_a_guess_where_the_size_of_the_data_is_not_said(self) -> None:
        assert the("needless-dropout", case(changed(dropout=0.1))).sure == "low"
        assert the("needless-dropout", SICK["needless-dropout"]()).sure == "high"
        letters = SMALL.replace("'fineweb'", "'shakespeare_char'") + "dropout = 0.2\n"
        assert found("needless-dropout", case(letters)) == []

    def test_one_evaluation_reads_what_the_trainer_reads(self) -> None:
        ours = changed(eval_batch_size=64, eval_block_size=512)
        tokens = 200 * 8 * 512
        assert found("val-set-tiny", case(ours, val_tokens=tokens, log_format="onecard")) == []
        finding = the("val-set-tiny", case(ours, val_tokens=tokens - 1, log_format="onecard"))
        assert f"would read {tokens:,}" in finding.what
        assert "all of it, once" in finding.why
        assert "at least 1,000,000 tokens" in finding.fix
        assert "at least 1,638,400 tokens" in the("val-set-tiny", case(val_tokens=200 * 8 * 1024 - 1)).fix
        assert "read 2.0 times" in the("val-set-tiny", case(val_tokens=200 * 8 * 512)).why

    def test_four_epochs_of_whole_updates_are_four(self) -> None:
        read = 587 * 65_536
        ours = changed(batch_size=64, gradient_accumulation_steps=1)
        assert found("too-many-epochs", case(ours, records=[step(587, 1.2)], train_tokens=9_614_604)) == []
        finding = the("too-many-epochs", case(ours, records=[step(587, 1.2)], train_tokens=read // 4 * 100 // 101))
        assert finding.what == "the training data was read more than 4 times", "and not 4.0, which nobody warns of"

    def test_sixteen_epochs_are_an_error(self) -> None:
        assert the("too-many-epochs", case(records=learning(), train_tokens=3 * 10**8)).severity == "error"
        assert the("too-many-epochs", case(records=learning(), train_tokens=10**9)).severity == "warn"

    def test_many_epochs_that_stop_after_worse_ended_are_a_note_that_names_the_best(self) -> None:
        ended = End(step=10_000, tokens=None, reason="stop_after_worse", best_val_loss=3.0, seconds=None)
        for reason, severity in (("stop_after_worse", "info"), ("finished", "error")):
            records = [*learning(), replace(ended, reason=reason)]
            finding = the("too-many-epochs", case(records=records, train_tokens=3 * 10**8, log_format="onecard"))
            assert finding.severity == severity
            assert ("ended the run in time" in finding.what) is (severity == "info")
            assert ("the best checkpoint, that of step 10,000, is kept" in finding.why) is (severity == "info")

    def test_a_gap_of_a_nat_is_overfitting_without_a_minimum(self) -> None:
        assert found("overfitting", case(records=evals([(4.2, 4.2), (1.0, 2.1)])))

    def test_few_evaluations_need_half_a_nat_and_a_rise(self) -> None:
        assert found("overfitting", case(records=evals([(2.0, 2.1), (1.6, 2.18)])))
        assert found("overfitting", case(records=evals([(2.0, 2.1), (1.6, 2.15)]))) == [], "within the noise"
        assert found("overfitting", case(records=evals([(2.0, 2.2), (1.6, 2.15)]))) == []


class TestTheShape:
    @pytest.mark.parametrize("card", [None, "RTX 4070"])
    @pytest.mark.parametrize("keys", [{}, {"dtype": "float32"}, {"batch_size": 16}, {"n_embd": 384, "dropout": 0.1}])
    def test_returning_only_the_loss_saves_what_the_plan_says(self, keys: dict[str, object], card: str | None) -> None:
        finding = the("logits-returned", case(changed(**keys), card=card))
        plan = make_plan(resolve(changed(**keys)), Place(card=find_card(card)) if card else None, trainer="nanogpt")
        (fix,) = [fix for fix in plan.fixes if fix.name == "return-only-the-loss"]
        assert f"saves {mib(fix.saves_bytes)}" in finding.what

    def test_of_a_run_that_cannot_be_planned_one_copy_of_the_logits_is_counted(self) -> None:
        patient = case(changed(n_embd=768))
        unplanned = replace(patient, run=replace(patient.run, unresolved=frozenset({"n_layer"})))
        finding = the("logits-returned", unplanned)
        assert "saves 786 MiB" in finding.what
        assert finding.why.startswith("at least: one copy of the logits is 2 bytes x 8 x 1,024 tokens x 50,304")

    def test_a_size_that_was_meant_is_told_of_other_programs_too(self) -> None:
        said_all = "".join(
            f"{key} = {value!r}\n" for key, value in RunConfig().model_dump().items() if value is not None
        )
        without = "".join(line + "\n" for line in said_all.splitlines() if not line.startswith("out_dir"))
        assert the("params-mismatch", case(without + NARROW, log_format="llm.c")).patch["n_embd"] == 768


class TestScaling:
    def test_a_falling_run_is_called_no_plateau_and_never_full(self) -> None:
        finding = the("capacity-or-data", case(records=learning()))
        assert "no plateau" in finding.what
        assert "± 50 %" in finding.why

    def test_an_overfitting_run_is_no_plateau(self) -> None:
        assert found("plateau", SICK["overfitting"]()) == []

    def test_the_learning_rate_names_the_cause(self) -> None:
        finding = the("plateau", SICK["plateau"]())
        assert "the schedule is over" in finding.why
        constant = the("plateau", case(changed(decay_lr=False), records=SICK["plateau"]().evals))
        assert "noise of the steps" in constant.why

    def test_the_final_loss_is_not_judged_mid_run(self) -> None:
        assert found("loss-off-expectation", case(records=learning(5000, bend=0.5))) == []

    def test_a_loss_far_below_the_law_is_told_too(self) -> None:
        assert "below" in the("loss-off-expectation", case(records=learning(bend=-0.5))).why

    @pytest.mark.parametrize(("updates", "val"), [(10, 10.7), (1, 10.83), (40, 9.0)])
    def test_the_law_is_not_asked_where_guessing_is_better(self, updates: int, val: float) -> None:
        smoke = changed(n_layer=2, n_head=2, n_embd=64, batch_size=2, gradient_accumulation_steps=1, block_size=256)
        short = f"{smoke}max_iters = {updates}\nlr_decay_iters = {updates}\n"
        assert found("loss-off-expectation", case(short, records=[evaluation(updates, val)])) == []

    def test_the_law_is_not_asked_about_short_contexts(self) -> None:
        high = learning(bend=0.5)
        letters = changed(block_size=128, batch_size=64)
        assert the("loss-off-expectation", case(changed(block_size=256, batch_size=32), records=high))
        assert found("loss-off-expectation", case(letters, records=high)) == []


class TestSpeed:
    def test_mfu_is_of_this_card(self) -> None:
        finding = the("mfu-mislabelled", SICK["mfu-mislabelled"]())
        assert "true MFU is 82%" in finding.what
        assert finding.sure == "high"
        assert the("mfu-mislabelled", case(records=timed(9.35, mfu=0.154))).sure == "medium"

    def test_no_mfu_is_mislabelled_that_prints_as_nothing_or_is_of_no_card(self) -> None:
        assert found("mfu-mislabelled", case(records=timed(9.35, mfu=0.0004))) == []
        assert the("mfu-mislabelled", case(records=timed(9.35, mfu=0.0006)))
        assert found("mfu-mislabelled", case(changed(device="cpu"), records=timed(9.35, mfu=0.154))) == []

    @pytest.mark.parametrize("last", [19, 800])
    def test_the_cost_of_evaluation_is_of_the_planned_run(self, last: int) -> None:
        planned = changed(max_iters=800, lr_decay_iters=800, eval_interval=200)
        assert found("eval-too-expensive", measured(planned, last, step_seconds=1.53, eval_seconds=14.0)) == []

    def test_the_interval_that_is_proposed_makes_evaluation_cheap(self) -> None:
        planned = changed(max_iters=1000, lr_decay_iters=1000, eval_interval=10)
        finding = the("eval-too-expensive", measured(planned, 100, step_seconds=1.0, eval_seconds=10.0))
        assert finding.what == "evaluation takes 50% of the planned run, 10.0 s each"  # 1,010 of 2,010 seconds
        assert finding.patch == {"eval_interval": 250}  # 5 evaluations: 50 of 1,050 seconds, less than a twentieth
        assert finding.fix.startswith("for the next run: --eval_interval=250")
        lasting = changed(**{"max_iters": 1000, "lr_decay_iters": 1000, **finding.patch})
        assert found("eval-too-expensive", measured(lasting, 100, step_seconds=1.0, eval_seconds=10.0)) == []

    def test_no_interval_is_proposed_beyond_the_run(self) -> None:
        short = changed(max_iters=25, lr_decay_iters=25, eval_interval=5)
        finding = the("eval-too-expensive", measured(short, 25, step_seconds=1.5, eval_seconds=14.0))
        assert finding.patch == {}
        assert "eval_interval" not in finding.fix
        assert finding.fix.startswith("for the next run: fewer eval_iters")

    def test_a_seen_value_has_no_more_digits_than_say_it(self) -> None:
        finding = the("decay-horizon", case(changed(learning_rate=0.0012, min_lr=0.3 * 0.0012)))
        assert str(0.3 * 0.0012) == "0.00035999999999999997"
        assert any(line.startswith("min_lr = 0.00036 (") for line in finding.seen)

    def test_low_mfu_names_its_causes(self) -> None:
        finding = the("low-mfu", SICK["low-mfu"]())
        assert "not compiled" in finding.why
        assert finding.patch == {"compile": True}
        emulated = case(changed(dtype="bfloat16"), records=timed(60.0), card="V100 SXM2 16GB")
        assert the("low-mfu", emulated).patch == {"dtype": "float16"}

    def test_low_mfu_of_a_model_too_narrow_for_its_card_asks_for_nothing_that_cannot_help(self) -> None:
        shape = {"n_layer": 4, "n_head": 4, "n_embd": 192, "block_size": 256, "vocab_size": 256}
        narrow = changed(**shape, batch_size=256, gradient_accumulation_steps=1)
        as_planned = the("low-mfu", case(narrow, records=timed(0.005), card="H200", log_format="onecard"))
        assert "a width of 192" in as_planned.why
        assert as_planned.fix.startswith("nothing to do for this model: the plan expects")
        assert "a wider one" in as_planned.fix
        slower = the("low-mfu", case(narrow, records=timed(0.02), card="H200", log_format="onecard"))
        assert slower.fix.startswith("a larger micro-batch"), "the plan expects more of it: something is in its way"
        elsewhere = the("low-mfu", case(narrow, records=timed(0.2), card="RTX 4070", log_format="onecard"))
        assert elsewhere.fix.startswith("a larger micro-batch"), "it can fill a smaller card"
        unfused = case(
            narrow, records=timed(0.005), card="H200", log_format="onecard", messages=[said("unfused-adamw")]
        )
        assert the("low-mfu", unfused).fix.startswith("a larger micro-batch"), "what the log blames can be cured"

    def test_low_mfu_is_blamed_on_what_the_log_says(self) -> None:
        said_so = [said("slow-attention"), said("unfused-adamw")]
        finding = the("low-mfu", case(records=timed(40.0), card="RTX 4070", messages=said_so))
        assert "no flash attention" in finding.why
        assert "AdamW is not fused" in finding.why
        assert {"line 5: slow-attention", "line 5: unfused-adamw"} <= set(finding.seen)

    def test_nanochats_default_batch_is_assumed_less_surely(self) -> None:
        finding = the(
            "throughput-arithmetic", case(None, records=timed(1.0, tokens_per_second=1e5), log_format="nanochat")
        )
        assert finding.sure == "medium"


class TestMemory:
    def test_each_of_nanogpts_cards_holds_all_states(self) -> None:
        large = changed(n_layer=48, n_embd=1600, n_head=25)
        assert the("states-do-not-fit", case(large, card="RTX 4070", world_size=2)).severity == "fatal"
        sharded = case(large, card="RTX 4070", world_size=2, log_format="hf-trainer", printed_params=1_550_000_000)
        assert found("states-do-not-fit", sharded) == []

    def test_other_programs_that_hold_all_of_the_card_are_what_is_told(self) -> None:
        full = replace(case(card="RTX 4070"), other_bytes=99 * GIB)
        finding = the("states-do-not-fit", full)
        assert "nothing is left on the card: other programs hold 99.00 GiB of its 11.69 GiB" in finding.what
        assert "0 parameters" not in finding.fix
        assert "nvidia-smi" in finding.fix
        beside = the("states-do-not-fit", replace(full, other_bytes=10 * GIB))
        assert "1.69 GiB left beside the 10.00 GiB of other programs" in beside.what
        assert re.search(r"at most \d\d\.\d+M parameters", beside.fix)

    @pytest.mark.parametrize(
        ("sizes", "name"),
        [
            ({"tried": 1, "capacity": 8, "free": 0, "allocated": 9}, "oom-system-spill"),
            ({"tried": 2, "capacity": 12, "free": 0.5, "allocated": 8, "process": 8.5}, "oom-other-process"),
            ({"tried": 6, "capacity": 12, "free": 2.5, "allocated": 7, "process": 7.4}, "oom-capacity"),  # still short
            ({"tried": 1, "capacity": 12, "free": 0.1, "allocated": 11, "process": 11.7}, "oom-capacity"),
            (
                {"tried": 1, "capacity": 12, "free": 0.5, "allocated": 7, "reserved_unallocated": 3.9, "process": 11.3},
                "oom-fragmentation",
            ),
            ({"tried": 1, "capacity": 12, "free": 1.5, "allocated": 8, "process": 8.5}, "oom-despite-free"),
            ({"tried": 6, "capacity": 16, "allocated": 10.2}, "oom-capacity"),  # cut short: no free, no reserved
            ({}, "oom-capacity"),
        ],
    )
    def test_a_message_has_one_cause(self, sizes: dict[str, float], name: str) -> None:
        patient = case(None, messages=[oom(**sizes)], log_format="messages")
        causes = [n for n in NAMES if n.startswith("oom-") for _ in found(n, patient)]
        assert causes == [name]

    def test_the_cure_is_planned_on_the_card(self) -> None:
        patient = case(
            changed(batch_size=64, gradient_accumulation_steps=8), messages=[oom(tried=6.2)], card="RTX 4070"
        )
        (diagnosis,) = diagnose_cases([patient])
        finding = next(finding for finding in diagnosis.findings if finding.rule == "oom-capacity")
        assert finding.patch == {"batch_size": 8, "gradient_accumulation_steps": 64}
        assert "predicted: 7,6" in finding.fix

    def test_logits_are_known_by_their_size(self) -> None:
        assert "8 x 1,024 x 50,304 x 2 bytes" in the("oom-tensor", SICK["oom-tensor"]()).what
        scores = 8 * 12 * 1024 * 1024 * 2 / 2**30
        assert (
            "attention scores" in the("oom-tensor", case(messages=[oom(tried=scores, capacity=12, allocated=11)])).what
        )

    def test_a_bare_message_names_the_likely_tensor_itself(self) -> None:
        patient = case(None, messages=[oom(tried=64 * 1024 * 50304 * 2 / 2**30, capacity=11.7, allocated=6.8)])
        assert "64 x 1,024 x 50,304 x 2 bytes" in the("oom-capacity", patient).why
        assert found("oom-tensor", patient) == []

    def test_evaluation_is_not_what_needs_most(self) -> None:
        finding = the("oom-in-eval", SICK["oom-in-eval"]())
        assert "cannot train" in finding.why
        assert "eval_iters saves no memory" in finding.fix
        fits = case(messages=[oom(in_eval=True, tried=1.0)], card="RTX 4090")
        assert "training fits" in the("oom-in-eval", fits).why


class TestResume:
    def test_a_falling_rate_is_no_jump(self) -> None:
        assert found("resume-lr-jump", case(records=falling_then_raised(2.5e-4))) == []

    def test_a_finished_run_that_is_made_longer_raises_its_rate_on_purpose(self) -> None:
        *before, raised = falling_then_raised(6e-4)
        worse = [evaluation(400, 3.0), start(400), raised, evaluation(500, 4.0)]
        unfinished, ended = start(0, max_iters=1000), start(0, max_iters=400)
        (finding,) = found("resume-lr-jump", case(records=[unfinished, *before, *worse]))
        assert "the learning rate rises" in finding.what
        assert found("resume-lr-jump", case(records=[ended, *before, *worse])) == []

    def test_a_warm_up_is_no_jump(self) -> None:
        assert found("resume-lr-jump", case(records=steps([4.0] * 4, lrs=[1e-5, 1e-4, 3e-4, 6e-4]))) == []

    def test_the_part_before_in_the_same_file_is_looked_at(self) -> None:
        before = case(records=learning(5000))
        after = case(records=[evaluation(5000, 4.2, 4.2), *learning()[11:]])
        assert "was" in found("resume-lr-jump", after, [before])[0].what
        assert found("resume-lr-jump", case(records=learning()[10:]), [before]) == []
        elsewhere = case(records=learning(5000), source="other.log")
        assert found("resume-lr-jump", after, [elsewhere]) == []

    def test_a_higher_rate_in_the_second_part_is_found_from_the_configs(self) -> None:
        before = case(records=learning(9500))
        after = case(changed(max_iters=20_000, lr_decay_iters=20_000), records=learning()[19:])
        assert "learning rate" in found("resume-lr-jump", after, [before])[0].what

    def test_bits_per_byte_count_like_nats(self) -> None:
        before = case(None, records=[evaluation(500, None, bits=0.935)], log_format="nanochat")
        after = case(None, records=[evaluation(500, None, bits=1.016)], log_format="nanochat")
        assert "bits per byte" in found("resume-lr-jump", after, [before])[0].what

    def test_the_default_folder_counts_within_one_file_only(self) -> None:
        narrow = SMALL.replace("n_embd = 768", "n_embd = 384")
        assert found("out-dir-reused", case(), [case(narrow)])
        assert found("out-dir-reused", case(), [case(narrow, source="other.log")]) == []


class TestKeys:
    def test_a_slip_of_the_pen_gets_the_key_that_was_meant(self) -> None:
        assert "did you mean n_layer?" in the("unknown-key", case(changed(n_layers=3))).fix

    def test_a_name_that_resembles_no_key_is_a_warning(self) -> None:
        assert the("unknown-key", case(changed(zzz=3))).severity == "warn"

    def test_onecard_honours_its_own(self) -> None:
        assert found("unknown-key", case(changed(eval_batch_size=2), log_format="onecard")) == []


def test_defaults_are_not_taken_for_facts_of_other_programs() -> None:
    stranger = case("n_layer = 6\n", records=HEALTHY_RUN, log_format="llm.c")
    assert [name for name in NAMES for _ in found(name, stranger)] == []
