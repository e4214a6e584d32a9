"""Diagnosis, forecast, trend and the live watch, on runs made by construction."""

import math
import shlex
from dataclasses import replace

import pytest

from onecard.config.resolve import resolve
from onecard.doctor.case import Case, DataSizes
from onecard.doctor.diagnose import diagnose, diagnose_cases, new_findings, watch
from onecard.doctor.facts import make_case
from onecard.doctor.needs import missing
from onecard.doctor.predict import predict_end
from onecard.doctor.rules import RULES, Rule, rule_name
from onecard.doctor.trend import Falling, trend
from onecard.plan.cards import find_card
from onecard.plan.loss import forecast_loss, law
from onecard.runs.logged import LogFormat
from onecard.runs.records import Eval, FindingRecord, Record, Start, Step
from tests.unit.doctor.cases import (
    HEALTHY_RUN,
    NARROW,
    PARAMS,
    SICK,
    SMALL,
    TOKENS,
    case,
    changed,
    evaluation,
    found,
    learning,
    step,
    steps,
    timed,
    wobble,
)


def test_findings_come_in_the_order_of_what_to_do_first() -> None:
    sick = case(NARROW + "warmup_iters = 5000\nlr_decay_iters = 600000\n", records=steps([4.0, math.nan]))
    (diagnosis,) = diagnose_cases([sick])
    severities = [finding.severity for finding in diagnosis.findings]
    assert severities == sorted(severities, key=("fatal", "error", "warn", "info").index)
    assert [finding.rule for finding in diagnosis.findings[:2]] == ["loss-nan", "params-mismatch"]
    assert diagnosis.exit_code == 1
    assert not diagnosis.healthy


def test_a_healthy_run_is_called_healthy_with_the_evidence() -> None:
    (diagnosis,) = diagnose_cases([case(records=HEALTHY_RUN, card="RTX 4070", train_tokens=10**10)])
    assert diagnosis.healthy
    assert diagnosis.exit_code == 0
    assert any("logged losses are finite" in sentence for sentence in diagnosis.evidence)
    assert any("per doubling of tokens" in sentence for sentence in diagnosis.evidence)
    assert diagnosis.unknown == ()
    assert diagnosis.prescription is None


def test_what_was_not_said_is_named() -> None:
    (diagnosis,) = diagnose_cases([case(None, records=HEALTHY_RUN)])
    assert [words.split("(")[1] for words in diagnosis.unknown] == ["--config)", "--gpu)", "--data or --train_tokens)"]


def test_a_warning_is_not_an_answer_of_no() -> None:
    (diagnosis,) = diagnose_cases([case(changed(lr_decay_iters=20_000))])
    assert not diagnosis.healthy
    assert diagnosis.exit_code == 0


def test_the_command_of_a_patch_leaves_nanogpts_checkpoint_alone() -> None:
    (diagnosis,) = diagnose_cases([case("lr_decay_iters = 600000\nmax_iters = 10000\nout_dir = 'mine/'\n")])
    assert diagnosis.prescription
    assert " --out_dir=mine-2 " in diagnosis.prescription.command


def test_each_finding_has_one_planned_command_that_keeps_the_cures_before_it() -> None:
    (diagnosis,) = diagnose_cases([case(NARROW + "lr_decay_iters = 600000\n", card="RTX 4070")])
    first, *_, made = diagnosis.prescriptions
    assert first == diagnosis.prescription
    assert first.rule == "params-mismatch"
    assert "lr_decay_iters" not in first.repair.patch, "the smallest cure of the first problem"
    assert first.command.startswith("python train.py c.py --n_embd=768")
    assert made.repair.patch["n_embd"] == 768
    assert made.repair.patch["lr_decay_iters"] == 10_000
    assert made.repair.fits
    assert made.repair.new_run


def test_a_patch_that_sets_only_what_is_wrong_goes_with_another() -> None:
    off = NARROW + "decay_lr = False\nlearning_rate = 1e-3\nmin_lr = 1e-4\n"
    (diagnosis,) = diagnose_cases([case(off, card="RTX 4070")])
    patch = diagnosis.prescriptions[-1].repair.patch
    assert patch["decay_lr"] is True
    assert patch["min_lr"] == 6e-5  # of the shape that was meant


def own_run(folder: str | None = "runs/my run", **keys: object) -> Case:
    """A run folder of ours, with what config.json holds: every key."""
    config = resolve(None).config.replace(keys)
    made = case(None, log_format="onecard", stated=config.model_dump(), source=folder or "stdin", records=learning(200))
    return make_case(replace(made.run, folder=folder), config=None, card=None, data=DataSizes())


@pytest.mark.parametrize(
    "keys",
    [
        {"lr_decay_iters": 600_000, "max_iters": 100_000, "warmup_iters": 20_000},
        {"n_layer": 2, "n_embd": 64, "dataset": "my data", "lr_decay_iters": 5000, "max_iters": 1000},
        {"learning_rate": 3.0, "min_lr": 0.3, "compile": False, "init_from": "resume"},
    ],
)
def test_the_command_of_a_run_folder_makes_the_same_run_with_the_patch(keys: dict[str, object]) -> None:
    sick = own_run(**keys)
    (diagnosis,) = diagnose_cases([sick])
    made = diagnosis.prescription
    assert made
    assert sick.resolved
    program, verb, *flags = shlex.split(made.command)
    assert (program, verb) == ("onecard", "train")
    typed = [flag.removeprefix("--").partition("=") for flag in flags]
    again = resolve(None, flags=[(key, value) for key, _, value in typed])
    anew = {"out_dir": "runs/my run-2", "init_from": "scratch"}
    assert again.config == sick.resolved.config.replace({**made.repair.patch, **anew})
    assert again.origins["n_embd"] == "--n_embd"  # else a card would choose another shape


def test_the_warm_up_goes_with_the_schedule() -> None:
    (diagnosis,) = diagnose_cases([own_run(lr_decay_iters=600_000, max_iters=100_000, warmup_iters=20_000)])
    (advice,) = [finding.patch for finding in diagnosis.findings if finding.rule == "warmup-length"]
    assert diagnosis.prescription
    assert diagnosis.prescription.repair.patch == {"lr_decay_iters": 100_000, **advice}
    (alone,) = diagnose_cases([case(changed(warmup_iters=2000))])
    assert alone.prescription is None  # information changes nothing by itself


def test_a_new_shape_of_a_run_folder_goes_beside_it() -> None:
    (diagnosis,) = diagnose_cases([own_run(n_embd=768, n_head=64)])
    assert diagnosis.prescription
    assert "'--out_dir=runs/my run-" in diagnosis.prescription.command
    assert "my run-2'" not in diagnosis.prescription.command


def test_records_without_their_folder_take_the_configs() -> None:
    (diagnosis,) = diagnose_cases([own_run(folder=None, lr_decay_iters=5000, max_iters=1000)])
    assert diagnosis.prescription
    assert "--out_dir=runs/default-2" in diagnosis.prescription.command


def test_a_rate_far_too_high_is_not_merely_halved() -> None:
    (finding,) = [f for f in diagnose_cases([lost(1000.0)])[0].findings if f.rule == "loss-nan"]
    assert finding.patch["learning_rate"] == 6e-4
    (finding,) = [f for f in diagnose_cases([lost(6e-4)])[0].findings if f.rule == "loss-nan"]
    assert finding.patch["learning_rate"] == 3e-4


def lost(rate: float) -> Case:
    return case(changed(learning_rate=rate), records=[*steps([10.8, 4.0, math.nan]), *learning(500)])


@pytest.mark.parametrize("word", [math.nan, math.inf])
def test_an_end_that_is_no_number_is_not_told_as_the_last_evaluation(word: float) -> None:
    recorded = [replace(found, val_loss_error=0.01) for found in learning(2000)]
    end = replace(evaluation(2500, word, word), val_loss_error=word)
    (diagnosis,) = diagnose_cases([case(records=[*recorded, end])])
    assert diagnosis.case.facts.evaluation_noise == 0.01
    assert any("at step 2,000" in sentence for sentence in diagnosis.evidence)
    assert not any("last evaluation" in sentence for sentence in diagnosis.evidence if "best" not in sentence)


def test_a_patch_that_changes_memory_says_what_to_expect() -> None:
    (diagnosis,) = diagnose_cases([case(changed(dropout=0.1), card="RTX 4070", train_tokens=10**11)])
    (finding,) = [finding for finding in diagnosis.findings if finding.rule == "needless-dropout"]
    assert "; predicted: " in finding.fix
    assert "MiB of 11.69 GiB" in finding.fix


def test_final_judges_a_run_that_stopped() -> None:
    cut = case(records=learning(5000, bend=0.5))
    rules = [f.rule for f in diagnose_cases([cut], final=True)[0].findings]
    assert "loss-off-expectation" in rules
    assert "loss-off-expectation" not in [f.rule for f in diagnose_cases([cut])[0].findings]
    assert diagnose_cases([cut], final=True)[0].forecast is None


def test_a_logged_run_is_diagnosed_by_itself() -> None:
    made = case(records=HEALTHY_RUN)
    diagnosis = diagnose(made.run, config=resolve(SMALL, filename="c.py"), card=find_card("RTX 4070"))
    assert diagnosis.healthy
    assert diagnosis.case.card == find_card("RTX 4070")


def cut(records: list[Eval], share: float, config: str = SMALL) -> Case:
    return case(config, records=[r for r in records if r.step <= share * 10_000] + timed(9.35)[: round(30 * share)])


@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
@pytest.mark.parametrize("offset", [-0.2, 0.0, 0.3])
def test_the_final_loss_lies_in_the_forecast_of_a_run_cut_short(share: float, offset: float) -> None:
    run = learning(bend=offset)
    forecast = predict_end(cut(run, share))
    assert forecast
    assert forecast.final_loss
    assert forecast.final_loss.contains(run[-1].val_loss or 0)
    assert forecast.final_loss.high - forecast.final_loss.low == pytest.approx(0.12, abs=0.02)


def test_a_run_that_bends_away_late_is_missed_which_the_test_would_notice() -> None:
    run = [replace(e, val_loss=(e.val_loss or 0) - (0.5 if e.step > 7000 else 0)) for e in learning()]
    forecast = predict_end(cut(run, 0.7))
    assert forecast
    assert forecast.final_loss
    assert not forecast.final_loss.contains(run[-1].val_loss or 0)


def test_a_rate_that_falls_only_at_the_end_widens_the_range_below() -> None:
    constant = predict_end(cut(learning(), 0.5, changed(decay_lr=False)))
    cosine = predict_end(cut(learning(), 0.5))
    assert constant
    assert cosine
    assert constant.final_loss
    assert cosine.final_loss
    assert constant.final_loss.low < cosine.final_loss.low - 0.05
    assert constant.final_loss.high == pytest.approx(cosine.final_loss.high, abs=0.01)


def begun_high(offset: float = 0.0, *, every: int = 500) -> list[Eval]:
    """A run whose first evaluations lie above the law, as those of real runs do: 0.8 at step 500, 0.1 at 1,500."""
    return [
        replace(e, val_loss=(e.val_loss or 0) + offset + 2.3 * math.exp(-e.step / 480)) if e.step else e
        for e in learning(every=every)
    ]


@pytest.mark.parametrize("share", [0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7])
@pytest.mark.parametrize("offset", [-0.08, 0.0, 0.08])
def test_evaluations_of_the_beginning_do_not_mislead_the_forecast(share: float, offset: float) -> None:
    run = begun_high(offset, every=125)
    forecast = predict_end(cut(run, share, changed(dataset="fineweb")))
    assert forecast
    assert forecast.final_loss
    assert forecast.final_loss.contains(run[-1].val_loss or 0)
    assert forecast.final_loss.high - forecast.final_loss.low < 0.25


def test_the_range_is_wider_the_less_of_a_run_is_seen() -> None:
    config = changed(dataset="mine", vocab_size=50304)  # of which the plan knows next to nothing
    forecasts = [predict_end(cut(learning(every=125), share, config)) for share in (0.18, 0.24, 0.3)]
    widths = [f.final_loss.high - f.final_loss.low for f in forecasts if f and f.final_loss]
    assert len(widths) == 3
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > 1.5 * widths[-1]


def test_before_its_evaluations_count_a_run_is_forecast_by_its_plan() -> None:
    config = changed(dataset="fineweb")
    forecast, plan = predict_end(cut(begun_high(), 0.1, config)), forecast_loss(resolve(config).config)
    assert forecast
    assert plan
    assert forecast.final_loss == plan.final
    assert "plan" in forecast.basis


def test_a_run_that_is_not_what_was_planned_is_not_forecast_by_the_plan() -> None:
    better = predict_end(cut(learning(bend=-1.0, every=125), 0.1, changed(dataset="fineweb")))
    assert better
    assert better.final_loss is None  # lower already than the plan says it could end
    run = learning(bend=0.6, every=125)
    worse = predict_end(cut(run, 0.5, changed(dataset="fineweb")))
    assert worse
    assert worse.final_loss
    assert worse.final_loss.contains(run[-1].val_loss or 0)
    assert "plan" not in worse.basis


def test_the_predicted_end_includes_evaluations() -> None:
    records = [*timed(9.0), *learning(5000)]
    forecast = predict_end(case(records=records))
    assert forecast
    assert forecast.steps_to_go == 5000
    assert forecast.seconds_to_go
    assert forecast.seconds_to_go.contains(5000 * 9.0)
    assert forecast.seconds_to_go.high < 1.1 * 5000 * 9.0


def test_steps_that_evaluate_do_not_stretch_the_hours_to_come() -> None:
    """nanoGPT's time of a step has its evaluation in it, and of a log with few lines that is every third."""
    logged = [
        step(100 * n, 4.0, seconds=30.0 if 100 * n % 500 == 0 else 9.0) for n in range(1, 51) if n % 5 in (0, 1, 2)
    ]
    forecast = predict_end(case(records=[*logged, *learning(5000)]))
    assert forecast
    assert forecast.seconds_to_go
    assert forecast.seconds_to_go.high < 1.1 * 5000 * 9.0


def test_letters_get_no_forecast_of_their_loss() -> None:
    forecast = predict_end(cut(learning(), 0.5, changed(vocab_size=65)))
    assert forecast
    assert forecast.final_loss is None
    assert "vocabulary" in forecast.basis


def test_a_finished_run_needs_no_forecast() -> None:
    assert predict_end(case(records=learning())) is None
    whole = [replace(found, lr=6e-4 * (0.5 + 0.5 * math.cos(math.pi * found.step / 10_000))) for found in rates(10_000)]
    assert predict_end(case(None, records=[*whole, *learning()])) is None, "the rate has reached its end"


def rates(last: int) -> list[Step]:
    """An update every 50 steps, with a rate that somebody else sets."""
    return [step(number, 4.0, seconds=None) for number in range(50, last + 1, 50)]


@pytest.mark.parametrize(("lowest", "log_format"), [(0.0, "llm.c"), (0.1, "nanogpt"), (0.1, "llm.c")])
@pytest.mark.parametrize("share", [0.3, 0.5, 0.7])
def test_a_rate_that_falls_along_a_cosine_says_where_the_run_ends(
    share: float, lowest: float, log_format: LogFormat
) -> None:
    run = learning(every=250)

    def rate(at: int) -> float:
        risen = at / 300 if at < 300 else 0.5 + 0.5 * math.cos(math.pi * (at - 300) / 9700)
        return round(6e-4 * (lowest + (1 - lowest) * risen), 6)

    seen = [replace(found, lr=rate(found.step)) for found in rates(round(share * 10_000))]
    forecast = predict_end(case(None, records=[*seen, *cut(run, share).evals], log_format=log_format))
    assert forecast
    assert forecast.end == "by the rate"
    assert forecast.step == pytest.approx(10_000, rel=0.01)
    assert forecast.final_loss
    assert forecast.final_loss.contains(run[-1].val_loss or 0)


def test_a_constant_rate_says_no_end() -> None:
    seen = [replace(found, lr=6e-4) for found in rates(5000)]
    forecast = predict_end(case(None, records=[*seen, *learning(5000)]))
    assert forecast
    assert (forecast.end, forecast.step, forecast.is_of_the_end) == ("open", 7500, False)
    assert forecast.final_loss
    assert forecast.final_loss.contains(learning()[15].val_loss or 0)


@pytest.mark.parametrize("share", [0.45, 0.6, 0.8])
def test_the_slope_is_the_runs_own_where_the_laws_is_not(share: float) -> None:
    """Half as steep as the law, and 0.07 nats more in the cool-down of its last fifth, as modded-nanogpt's runs."""
    run = [
        replace(found, val_loss=3.2 + 0.5 * (law(PARAMS, max(1, found.step) * TOKENS) - law(PARAMS, 10_000 * TOKENS)))
        for found in learning(every=125)[1:]
    ]
    stated = {"max_iters": 10_000, "vocab_size": 50304, "schedule": "wsd", "decay_share": 0.2}
    seen = [found for found in run if found.step <= share * 10_000]
    forecast = predict_end(case(None, records=seen, log_format="modded-nanogpt", stated=stated))
    assert forecast
    assert forecast.final_loss
    assert forecast.final_loss.likely == pytest.approx(3.2 - 0.07, abs=0.03)


def test_a_validation_loss_that_rises_is_not_continued() -> None:
    up = [
        replace(found, val_loss=(found.val_loss or 0) + max(0.0, (found.step - 3000) / 5000))
        for found in learning(6000)
    ]
    forecast = predict_end(case(records=up))
    assert forecast
    assert forecast.final_loss is None
    assert "the validation loss rises" in forecast.basis


@pytest.mark.parametrize(
    ("records", "why"),
    [
        (learning(5000)[3:], "the vocabulary is not stated, and the log does not begin at step 0"),
        ([evaluation(0, 4.2), *learning(5000)[1:]], "the vocabulary is not stated, and the first loss is 4.20"),
        (learning(1000), "fewer than 3 evaluations"),
    ],
)
def test_a_refused_forecast_says_what_is_missing(records: list[Eval], why: str) -> None:
    forecast = predict_end(case(None, records=records))
    assert forecast
    assert forecast.final_loss is None
    assert why in forecast.basis


def test_the_trend_is_the_slope_by_hand() -> None:
    falling = [evaluation(2**n * 100, 5.0 - 0.1 * n) for n in range(6)]
    found = trend(case(records=falling))
    assert found
    assert found.gain == pytest.approx(0.1)
    assert found.error == pytest.approx(0.0, abs=1e-9)
    assert trend(case(records=falling[:5])) is None


def test_the_trend_has_the_error_of_its_noise() -> None:
    noisy = [evaluation(n * 500, 3.5 + wobble(n, 0.02)) for n in range(1, 41)]
    found = trend(case(records=noisy))
    assert found
    assert len(found.evaluations) == 10
    assert abs(found.gain) < 3 * found.error
    assert found.highest_gain > found.gain


def test_the_interval_of_the_trend_is_students() -> None:
    for free, factor in ((4, 2.776), (11, 2.201), (16, 2.120), (30, 2.042), (60, 2.0)):
        found = Falling(gain=0.0, error=1.0, points=free + 2)
        assert found.highest_gain == factor  # two-sided, 95 %


class TestWatching:
    config = resolve(SMALL, filename="c.py").config

    def test_a_new_finding_is_reported_once(self) -> None:
        records: list[Record] = [start(), *steps([10.8, 4.0, math.nan])]
        (finding,) = watch(records, self.config, None, DataSizes(), ())
        assert finding.rule == "loss-nan"
        assert watch(records, self.config, None, DataSizes(), {"loss-nan"}) == []
        told = [*records, FindingRecord(step=200, finding=finding)]
        assert watch(told, self.config, None, DataSizes()) == [], "what is in the records was told"

    def test_a_run_that_learns_is_left_in_peace(self) -> None:
        for last in (0, 500, 3000, 10_000):
            records: list[Record] = [start(), *(r for r in HEALTHY_RUN if r.step <= last)]
            assert watch(records, self.config, None, DataSizes(train_tokens=10**10), ()) == []

    def test_information_and_guesses_are_not_told_while_it_runs(self) -> None:
        assert new_findings(case(changed(dropout=0.1)), ()) == []
        assert new_findings(SICK["loss-nan"](), ())

    def test_only_the_last_thousands_of_steps_are_looked_at(self) -> None:
        long = [start(), *steps([10.8, *[4.0] * 30, *[9.0] * 30, *[4.0] * 8000], every=1)]
        assert watch(long, self.config, None, DataSizes(), ()) == []


@pytest.mark.parametrize("rule", RULES, ids=rule_name)
def test_a_rule_declares_what_it_cannot_look_without(rule: Rule) -> None:
    """A sick run is found; without config, card and data it is found still, or the rule says what it lacks."""
    name = rule_name(rule)
    sick = SICK[name]()
    assert missing(rule, sick) is None
    bare = make_case(sick.run, config=None, card=None, data=DataSizes())
    assert (missing(rule, bare) is None) == bool(found(name, bare))
    (diagnosis,) = diagnose_cases([bare])
    assert (name in diagnosis.unchecked) == (missing(rule, bare) is not None)


@pytest.mark.parametrize(
    ("name", "about"), [("low-mfu", "card"), ("too-many-epochs", "data"), ("val-set-tiny", "data")]
)
def test_a_rule_that_lacks_the_card_or_the_data_says_which(name: str, about: str) -> None:
    sick = SICK[name]()
    (diagnosis,) = diagnose_cases([make_case(sick.run, config=sick.resolved, card=None, data=DataSizes())])
    assert diagnosis.unchecked[name] == about
    assert name not in {finding.rule for finding in diagnosis.findings}


def start() -> Start:
    return Start(
        step=0, config={}, versions={}, device="cpu", card=None, predicted_process_bytes=None, resumed_from=None
    )


def test_the_constructed_healthy_run_follows_the_law() -> None:
    last = learning()[-1]
    assert last.train_loss == pytest.approx(law(PARAMS, 10_000 * TOKENS) + 0.21, abs=0.011)
