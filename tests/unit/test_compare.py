"""Comparisons, on runs made by construction, with numbers worked out here."""

import io
import json
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from onecard.config.recipes import recipe_values
from onecard.config.resolve import resolve
from onecard.doctor.case import Case, DataSizes
from onecard.doctor.compare import Comparison, Standing, _lowest, compare_runs
from onecard.doctor.config_diff import UNSAID
from onecard.doctor.curves import Reading, loss_curve, passes, read_at
from onecard.doctor.facts import make_case
from onecard.doctor.rules.stability import loss_nan
from onecard.doctor.single_changes import SingleChange, single_effects
from onecard.errors import MachineError
from onecard.plan.cards import find_card
from onecard.plan.memory.predict import predict_nanogpt, predict_onecard
from onecard.plan.precision import with_dtype
from onecard.plan.speed import TrainerName
from onecard.report.compare import _alone_table, passing_sentence, print_comparison
from onecard.report.compare_json import comparison_json
from onecard.report.compare_plot import plot_html, plot_png, plot_svg
from onecard.report.compare_verdict import verdict_lines
from onecard.runs.foreign import read_logs
from onecard.runs.logged import LoggedRun
from onecard.runs.records import Eval
from tests import made_logs as made
from tests import made_records

SMALL = {**made.SMALL, "gradient_accumulation_steps": 40, "eval_interval": 250, "vocab_size": 50304, "warmup_iters": 0}


def case(lines: Sequence[str], card: str | None = "RTX 5090", **config: object) -> Case:
    (run,) = read_logs(made.as_bytes(lines), source=f"{config.get('wandb_run_name', 'made')}.log")
    text = "\n".join(made.nanogpt_config(**{**SMALL, **config}))
    resolved = resolve(text, filename="made.py")
    return make_case(run, config=resolved, card=find_card(card) if card else None, data=DataSizes())


def test_of_runs_on_the_cpu_the_named_card_has_no_utilisation() -> None:
    on_cpu = [case(evaluated(10.0, 5.0, 4.0), device="cpu"), case(evaluated(10.0, 5.0, 4.0, seconds=2.0), device="cpu")]
    comparison = compare_runs(on_cpu)
    assert [found.facts.mfu for found in comparison.cases] == [None, None]
    assert "mfu" not in comparison.winners
    assert comparison.winners["tokens_per_second"] == 0
    assert "mfu" in compare_runs([case(evaluated(10.0, 5.0, 4.0))] * 2).winners


def evaluated(*losses: float, every: int = 100, seconds: float = 1.0) -> list[str]:
    """A log with these validation losses, one every so many steps."""
    lines = []
    for number, loss in enumerate(losses):
        lines.append(f"step {every * number}: train loss {loss:.4f}, val loss {loss:.4f}")
        lines += [
            f"iter {every * number + k}: loss {loss:.4f}, time {1000 * seconds:.2f}ms, mfu 20.00%" for k in (5, 10, 15)
        ]
    return lines


def of_openwebtext(lines: Sequence[str], *, source: str) -> LoggedRun:
    """A log of which only the data is known."""
    (run,) = read_logs(made.as_bytes(lines), source=source)
    return replace(run, config={**run.config, "dataset": "openwebtext"})


def shown(comparison: Comparison, *, width: int = 160, details: bool = True) -> str:
    out = io.StringIO()
    print_comparison(comparison, Console(file=out, width=width, no_color=True), details=details)
    return out.getvalue()


# reading between the points


def test_a_loss_is_read_on_a_line_over_the_logarithm_of_the_tokens() -> None:
    curve = loss_curve(case(evaluated(10.0, 5.0, 4.0)), "val_loss")
    tokens = 163_840
    middle = math.sqrt(100 * 200) * tokens  # half way on a logarithmic scale
    reading = read_at(curve, "tokens", middle)
    assert reading is not None
    assert reading.loss == pytest.approx(4.5)
    assert reading.noise == pytest.approx(curve.noise / math.sqrt(2))  # the mean of two evaluations
    at_point = read_at(curve, "tokens", 100 * tokens)
    assert at_point is not None
    assert (at_point.loss, at_point.noise) == (pytest.approx(5.0), pytest.approx(curve.noise))


def test_nothing_is_read_beyond_the_ends() -> None:
    curve = loss_curve(case(evaluated(10.0, 5.0, 4.0)), "val_loss")
    assert read_at(curve, "tokens", 201 * 163_840) is None
    assert read_at(curve, "tokens", 99 * 163_840) is None
    assert read_at(curve, "seconds", 0) is None


def test_a_curve_passes_a_loss_where_its_line_does() -> None:
    # 4.5, 4.3, 4.1, 3.9 at steps 100, 200, 400, 800: a line over the logarithm, which is 4.2 half way from 200 to 400
    pairs = ((100, 4.5), (200, 4.3), (400, 4.1), (800, 3.9))
    lines = [f"step {n}: train loss {loss:.4f}, val loss {loss:.4f}" for n, loss in pairs]
    found = passes(loss_curve(case(lines), "val_loss"), Reading(loss=4.2, noise=0.0))
    assert found is not None
    assert found.point.step == round(math.sqrt(200 * 400))
    assert found.point.tokens == pytest.approx(math.sqrt(200 * 400) * 163_840, rel=1e-6)


def test_a_single_low_point_is_no_passing() -> None:
    curve = loss_curve(case(evaluated(10.0, 5.0, 3.9, 4.2, 4.1, 3.8, 3.7)), "val_loss")
    found = passes(curve, Reading(loss=4.0, noise=0.0))
    assert found is not None
    assert found.point.step > 400
    assert passes(curve, Reading(loss=3.0, noise=0.0)) is None


def test_what_lies_before_the_beginning_of_a_run_is_passed_over() -> None:
    run = own(0.0).run
    early = [replace(record, step=number) for number, record in zip((-250, -1), run.records, strict=False)]
    odd = [replace(record, tokens=-1) for record in run.records[:1]]
    comparison = compare_runs([own(0.03), replace(run, records=(*early, *odd, *run.records))])
    assert comparison.curves[1].points == compare_runs([own(0.03), run]).curves[1].points
    assert comparison.winners["at_equal_tokens"] == 1


def test_no_loss_is_read_from_a_negative_time() -> None:
    started = [replace(each, more={"elapsed_seconds": each.step - 1000.0}) for each in own(0.0).evals]
    curve = loss_curve(
        compare_runs([LoggedRun(source="odd", format="onecard", records=tuple(started))]).cases[0], "val_loss"
    )
    assert curve.points[0].seconds == -750.0
    assert read_at(curve, "seconds", 100.0) is None
    assert read_at(curve, "seconds", 375.0) is not None
    backwards = [replace(each, more={"elapsed_seconds": -1.0}) for each in own(0.0).evals]
    runs = [
        LoggedRun(source="odd", format="onecard", records=tuple(each), config={"dataset": "fineweb"})
        for each in (backwards, started, started)
    ]
    assert [row.place for row in compare_runs(runs).at_equal_seconds] == [1000.0, 2000.0, 4000.0]


# who is better


def quick_and_slow(**slow: object) -> Comparison:
    """A quick run that ends at 3.5, and one twice as slow that ends at 3.3."""
    quick = case(made.nanogpt(steps=1000, seconds=0.25, end=3.5), wandb_run_name="quick")
    return compare_runs([quick, case(made.nanogpt(steps=1000, seconds=0.5, end=3.3), wandb_run_name="slow", **slow)])


def test_each_metric_has_its_winner() -> None:
    comparison = quick_and_slow()
    assert comparison.winners["tokens_per_second"] == 0
    assert comparison.winners["mfu"] == 0
    assert comparison.winners["final_val_loss"] == 1
    assert comparison.winners["at_equal_tokens"] == 1
    tokens = comparison.at_equal_tokens[-1]
    assert tokens.place == 1000 * 163_840
    assert [reading.loss for reading in tokens.readings if reading] == pytest.approx(
        [made.smooth_loss(1000, end=3.5), made.smooth_loss(1000, end=3.3)], abs=1e-4
    )


def test_equal_seconds_are_not_equal_tokens() -> None:
    seconds = quick_and_slow().at_equal_seconds[-1]
    assert seconds.place == pytest.approx(250.0)  # where the quick one ends; the slow one is at step 500
    quick, slow = seconds.readings
    assert quick is not None
    assert slow is not None
    assert quick.loss == pytest.approx(made.smooth_loss(1000, end=3.5), abs=1e-4)
    assert slow.loss == pytest.approx(made.smooth_loss(500, end=3.3), abs=1e-4)


def test_noise_is_no_difference() -> None:
    runs = [case(made.nanogpt(steps=5000, noise=0.02, seed=seed, log_interval=50)) for seed in (1, 2)]
    winners = compare_runs(runs).winners
    metrics = ("tokens_per_second", "mfu", "final_val_loss", "at_equal_tokens", "at_equal_seconds")
    assert winners == dict.fromkeys(metrics)
    assert "no difference within noise" in shown(compare_runs(runs))
    apart = case(made.nanogpt(steps=5000, noise=0.02, seed=2, log_interval=50, end=3.1))
    assert compare_runs([runs[0], apart]).winners["final_val_loss"] == 1


def noisy(*ends: float) -> Comparison:
    """Runs alike but for where they end, each with its own noise."""
    return compare_runs(
        [
            case(made.nanogpt(steps=5000, noise=0.02, seed=seed, log_interval=50, end=end))
            for seed, end in enumerate(ends, 1)
        ]
    )


@pytest.mark.parametrize(
    ("ends", "best", "beaten", "words"),
    [
        ((3.3, 3.3, 3.9), (0, 1), (2,), "A, B (over C)"),
        ((3.9, 3.3, 3.3), (1, 2), (0,), "B, C (over A)"),
        ((3.3, 3.9, 3.3, 3.9), (0, 2), (1, 3), "A, C (over B, D)"),
        ((3.3, 3.6, 3.9), (0,), (1, 2), "A"),
        ((3.3, 3.3, 3.3), (0, 1, 2), (), "no difference within noise"),
    ],
)
def test_runs_that_tie_for_best_are_named_and_those_they_beat(
    ends: tuple[float, ...], best: tuple[int, ...], beaten: tuple[int, ...], words: str
) -> None:
    comparison = noisy(*ends)
    metrics = ("final_val_loss", "at_equal_tokens", "at_equal_seconds")
    found = strictly(comparison)
    for metric in metrics:
        standing = comparison.standings[metric]
        assert (standing.best, standing.beaten) == (best, beaten)
        assert comparison.winners[metric] == (best[0] if len(best) == 1 else None)
        assert found["standings"][metric] == {"best": list(best), "beaten": list(beaten)}
        assert found["winners"][metric] == comparison.winners[metric]
    assert found["at_equal_tokens"]["best"] == list(best)
    table = shown(comparison)
    assert re.search(rf"final validation loss  [^A-Za-z]*{re.escape(words)} *\n", table)
    at_the_end = re.escape(words) + (r" by 0\.\d{3}" if len(best) == 1 else "")
    assert re.search(rf"819\.20M  [^A-Za-z]*{at_the_end} *\n", table)


def test_a_run_with_much_noise_is_not_beaten_for_being_third() -> None:
    losses = [Reading(loss=3.0, noise=0.01), Reading(loss=3.1, noise=0.01), Reading(loss=3.2, noise=0.5), None]
    assert _lowest(losses) == Standing(best=(0, 2), beaten=(1,))


def test_the_better_run_passes_the_others_end() -> None:
    (passing,) = quick_and_slow().passings
    assert (passing.passer, passing.passed) == (1, 0)
    assert passing.passed_seconds == pytest.approx(250.0)
    # 3.3 + 7.6 / (1 + s / 60) = 3.5 + 7.6 / (1 + 1000 / 60) at s = 655; the line between evaluations is near
    assert passing.step == pytest.approx(655, rel=0.1)
    assert passing.seconds == pytest.approx(0.5 * passing.step, rel=0.01)
    sentence = passing_sentence(passing)
    assert sentence.startswith("B passes A's final loss (3.9302) after ")
    assert "A took 4 min (163.84M tokens)" in sentence


def test_a_run_that_is_lower_by_noise_alone_passes_nothing() -> None:
    comparison = noisy(3.3, 3.3)
    assert comparison.winners["final_val_loss"] is None
    assert comparison.curves[0].end.loss != comparison.curves[1].end.loss
    assert comparison.passings == ()
    assert noisy(3.3, 3.9).passings != ()


def test_of_many_runs_the_first_to_pass_each_is_told() -> None:
    ends = ((3.6, 0.25), (3.5, 0.25), (3.1, 0.25), (3.1, 0.5))
    runs = [case(made.nanogpt(end=end, seconds=seconds), wandb_run_name=f"{end}-{seconds}") for end, seconds in ends]
    comparison = compare_runs(runs)
    assert {(passing.passer, passing.passed) for passing in comparison.passings} == {
        *((1, 0), (2, 0), (3, 0)),
        *((2, 1), (3, 1)),
    }
    told = [line.partition(" after ")[0] for line in shown(comparison).splitlines() if " passes " in line]
    assert [sentence.partition(" final")[0] for sentence in told] == ["C passes A's", "C passes B's"]
    assert plot_html(comparison).count(" passes ") == 2


def test_any_number_of_runs_is_compared() -> None:
    runs = [case(made.nanogpt(end=end), wandb_run_name=f"run{end}") for end in (3.6, 3.5, 3.1, 3.4)]
    comparison = compare_runs(runs)
    assert comparison.winners["final_val_loss"] == 2
    assert {passing.passer for passing in comparison.passings if passing.passed == 1} == {2, 3}
    assert "D" in shown(comparison)


def test_a_run_whose_tokens_are_not_known_does_not_hide_the_others() -> None:
    unknown = of_openwebtext(made.llmc_main(steps=1000), source="unknown.log")
    runs = [case(made.nanogpt(end=3.5)), case(made.nanogpt(end=3.1)), unknown]
    last = compare_runs(runs).at_equal_tokens[-1]
    assert last.winner == 1
    assert last.readings[2] is None


def test_nan_never_wins() -> None:
    sick = case([*made.nanogpt(steps=500), "step 750: train loss nan, val loss nan"])
    comparison = compare_runs([case(made.nanogpt()), sick])
    assert comparison.winners["final_val_loss"] == 0
    assert json.loads(json.dumps(comparison_json(comparison), allow_nan=False))["runs"][1]["final_val_loss"] is None


# evaluations on the same windows


def own(
    lift: float, *, tokens_read: int = 8192, dataset: str = "fineweb", card: str | None = None, **config: object
) -> Case:
    """A run of ours with 20 evaluations on a smooth curve, `lift` above it, each with a standard error of 0.05."""
    evals = [
        Eval(
            step=number,
            tokens=None,
            train_loss=None,
            val_loss=made.smooth_loss(number) + lift,
            train_loss_error=None,
            val_loss_error=0.05,
            block_size=512,
            tokens_read=tokens_read,
            seconds=None,
            peak_allocated_bytes=None,
            peak_reserved_bytes=None,
            bits_per_byte=(made.smooth_loss(number) + lift) / 3,
        )
        for number in range(250, 5001, 250)
    ]
    run = LoggedRun(
        source="own", format="onecard", records=tuple(evals), config={**SMALL, "dataset": dataset, **config}
    )
    return make_case(run, config=None, card=find_card(card) if card else None, data=DataSizes())


def test_the_choice_of_the_windows_is_no_difference_between_runs_that_share_them() -> None:
    comparison = compare_runs([own(0.0), own(0.03)])
    assert comparison.winners["final_val_loss"] == 0
    assert comparison.winners["at_equal_tokens"] == 0
    for other in (own(0.03, tokens_read=4096), own(0.03, dataset="other"), case(made.nanogpt(steps=5000))):
        apart = compare_runs([own(0.0), other])
        assert apart.winners["final_val_loss"] is None
        assert apart.curves[0].point_noise == pytest.approx(0.05, rel=0.01)


def test_the_choice_of_the_windows_does_not_average_out_between_two_evaluations() -> None:
    curve = loss_curve(own(0.0), "val_loss")
    between = read_at(curve, "tokens", math.sqrt(2500 * 2750) * 163_840)
    assert between is not None
    assert between.noise == pytest.approx(0.05, rel=0.01)


def test_noise_is_in_the_unit_of_the_losses() -> None:
    curve = loss_curve(own(0.0), "bits_per_byte")
    assert curve.shared_error == pytest.approx(0.05 / 3)


def test_a_run_that_is_logged_more_often_does_not_win_by_that() -> None:
    dense, sparse = (
        case([line for line in made.nanogpt(steps=4000, log_interval=every) if line.startswith("iter")])
        for every in (2, 20)
    )
    comparison = compare_runs([dense, sparse])
    assert comparison.measure == "train_loss"
    for row in comparison.at_equal_tokens:
        assert row.lead is not None
        assert row.lead < 0.02, row.place  # the curve is not straight over the logarithm of the tokens


# what may be said


def test_losses_over_different_vocabularies_are_not_compared() -> None:
    comparison = compare_runs([case(made.nanogpt()), case(made.nanogpt(end=1.2), vocab_size=256)])
    assert comparison.at_equal_tokens == ()
    assert comparison.passings == ()
    assert "final_val_loss" not in comparison.winners
    assert "the losses cannot be compared" in shown(comparison)


def test_letters_and_word_parts_are_told_apart_by_where_they_begin() -> None:
    letters = [
        f"step {n}: train loss {loss:.4f}, val loss {loss:.4f}" for n, loss in ((0, 4.2), (500, 1.9), (900, 1.5))
    ]
    comparison = compare_runs([case(made.nanogpt()), *read_logs(made.as_bytes(letters), source="letters.log")])
    assert any(caution.startswith("the losses cannot be compared") for caution in comparison.cautions)
    assert comparison.passings == ()


def test_other_data_and_other_contexts_are_said() -> None:
    comparison = compare_runs([case(made.nanogpt()), case(made.nanogpt(), dataset="other", block_size=256)])
    assert len(comparison.cautions) == 3  # and the noise is assumed
    assert "context lengths differ (512 and 256)" in comparison.cautions[0]
    assert "data differ (openwebtext and other)" in comparison.cautions[1]


def test_what_differs_is_named_in_the_order_of_the_runs() -> None:
    for first, second in (("openwebtext", "fineweb"), ("fineweb", "openwebtext")):
        comparison = compare_runs([case(made.nanogpt(), dataset=name) for name in (first, second)])
        assert any(f"the data differ ({first} and {second})" in caution for caution in comparison.cautions)
    three = [with_vocabulary(size, bits=False) for size in (50304, 256, 1024)]
    assert "the vocabularies differ (50,304, 256 and 1,024)" in compare_runs(three).cautions[0]


def test_a_run_that_is_named_twice_is_told() -> None:
    log = case(made.nanogpt(), wandb_run_name="one")
    copied = replace(log, run=replace(log.run, source="copy.log"))
    assert compare_runs([log, log]).cautions[0] == "one.log is named twice: a run is compared with itself"
    assert compare_runs([log, copied]).cautions[0].startswith("one.log and copy.log hold the same records")
    other = case(made.nanogpt(end=3.1), wandb_run_name="one")
    assert not any("itself" in caution for caution in compare_runs([log, other]).cautions)


def unread(*cases: Case | LoggedRun) -> list[str]:
    found = compare_runs(cases).cautions
    return [caution.removeprefix("no comparison at equal ") for caution in found if "no comparison at" in caution]


def test_why_nothing_is_said_at_equal_tokens_or_hours_is_told() -> None:
    first, second = (of_openwebtext(made.llmc_main(steps=n), source=f"{n}.log") for n in (1000, 2000))
    assert unread(first, second) == [
        "tokens: the tokens of 1000.log and 2000.log are not known",
        "hours: the hours of 1000.log and 2000.log are not known",
    ]
    slow = case(evaluated(10.0, 5.0, 4.0, seconds=9.0), wandb_run_name="slow")
    quick = case(evaluated(10.0, 5.0, 4.0, seconds=1.0), wandb_run_name="quick")
    assert unread(slow, quick) == ["hours: where quick.log ends, after 3 min, no other run has a loss"]
    begun, also_begun = (case(evaluated(10.0), wandb_run_name=name) for name in ("begun", "also_begun"))
    assert unread(slow, begun) == [
        f"{axis}: begun.log has no loss after the first step" for axis in ("tokens", "hours")
    ]
    assert unread(slow, begun, also_begun) == [
        f"{axis}: begun.log and also_begun.log have no loss after the first step" for axis in ("tokens", "hours")
    ]
    assert unread(quick, case(evaluated(10.0, 5.0, 4.1))) == []
    assert unread(quick, case(evaluated(10.0, 5.0), vocab_size=256)) == [], "the losses cannot be compared at all"


def test_a_missing_comparison_is_not_reported_below_a_table() -> None:
    short = case(evaluated(10.0, 5.0, 4.0), wandb_run_name="short")
    lost = case(evaluated(10.0, 5.5, math.nan, every=150), wandb_run_name="lost")  # 200 lies between 150 and 300
    assert unread(short, lost) == [
        "tokens: where short.log ends, after 32.77M tokens, no other run has a loss",
        "hours: where short.log ends, after 3 min, no other run has a loss",
    ]
    earlier = case(evaluated(10.0, 6.0, 5.5, math.nan, every=75), wandb_run_name="earlier")  # read at 100, not at 200
    comparison = compare_runs([short, earlier])
    assert [row.place for row in comparison.at_equal_tokens] == [100 * 163_840]
    assert unread(short, earlier) == []


def evaluated_over(context: int, *, block_size: int = 512) -> Case:
    """A run of ours, evaluated over so many tokens of context."""
    run = own(0.0).run
    evals = [replace(found, block_size=context) for found in run.records if isinstance(found, Eval)]
    config = {**run.config, "block_size": block_size, "eval_block_size": context}
    return make_case(replace(run, records=tuple(evals), config=config), config=None, card=None, data=DataSizes())


def test_losses_over_other_contexts_of_evaluation_are_not_compared() -> None:
    comparison = compare_runs([evaluated_over(512), evaluated_over(256)])
    assert comparison.config_diff == {"eval_block_size": (512, 256)}
    said = "the losses cannot be compared: they were evaluated over different contexts (512 and 256 tokens"
    assert said in comparison.cautions[0]
    assert comparison.at_equal_tokens == comparison.passings == ()
    assert not any("loss" in metric for metric in comparison.winners)


def test_other_contexts_of_training_evaluated_over_the_same_are_compared() -> None:
    comparison = compare_runs([evaluated_over(256), evaluated_over(256, block_size=256)])
    assert not any("context" in caution for caution in comparison.cautions)
    assert comparison.at_equal_tokens


def with_vocabulary(size: int, lift: float = 0.0, *, bits: bool = True) -> Case:
    run = own(lift).run
    evals = [r if bits else replace(r, bits_per_byte=None) for r in run.records if isinstance(r, Eval)]
    config = {**run.config, "vocab_size": size}
    return make_case(replace(run, records=tuple(evals), config=config), config=None, card=None, data=DataSizes())


def test_runs_with_other_tokens_are_compared_in_bits_per_byte_where_both_have_them() -> None:
    comparison = compare_runs([with_vocabulary(50304), with_vocabulary(256, 0.9)])
    assert comparison.measure == "bits_per_byte"
    assert comparison.winners["final_bits_per_byte"] == 0
    assert comparison.at_equal_tokens[-1].winner == 0
    assert comparison.cautions[0] == (
        "the vocabularies differ (50,304 and 256): compared in bits per byte, which do not depend on the tokenizer; "
        "equal tokens are not equal text"
    )
    assert re.search(r"final validation, bits per byte +\d\.\d+ +\d\.\d+ +A", shown(comparison))
    without = compare_runs([with_vocabulary(50304), with_vocabulary(256, bits=False)])
    assert without.measure == "val_loss"
    assert without.cautions[0].startswith("the losses cannot be compared: they are nats per token")


def test_bits_per_byte_over_other_contexts_are_not_compared() -> None:
    other = with_vocabulary(256, 0.9)
    evals = tuple(replace(found, block_size=256) for found in other.evals)
    shorter = make_case(replace(other.run, records=evals), config=None, card=None, data=DataSizes())
    comparison = compare_runs([with_vocabulary(50304), shorter])
    assert comparison.measure == "bits_per_byte"
    assert "compared in bits per byte" in comparison.cautions[0]
    assert comparison.cautions[1].startswith(
        "the losses cannot be compared: they were evaluated over different contexts"
    )
    assert comparison.at_equal_tokens == comparison.at_equal_seconds == comparison.passings == ()
    assert not any("bits" in metric or "equal" in metric for metric in comparison.winners)


def test_bits_per_byte_stand_in_the_table_beside_the_losses() -> None:
    assert re.search(r"last bits per byte +\d\.\d+ +\?", shown(compare_runs([own(0.0), case(made.nanogpt())])))


def strictly(comparison: Comparison) -> dict[str, Any]:
    """The comparison's JSON, written and read with numbers that JSON has."""
    read: dict[str, Any] = json.loads(json.dumps(comparison_json(comparison), allow_nan=False))
    return read


def test_a_run_that_ends_in_nan_has_that_loss_and_the_other_wins() -> None:
    lost = case(evaluated(10.0, 5.0, 4.0, math.nan, math.nan), wandb_run_name="lost")
    good = case(evaluated(10.0, 5.5, 4.5, 4.2, 4.1))
    comparison = compare_runs([lost, good])
    assert math.isnan(comparison.curves[0].end.loss)
    assert comparison.winners["final_val_loss"] == 1
    assert comparison.winners["at_equal_tokens"] == 1
    assert comparison.passings == ()  # neither passes a loss that is none, and 4.0 was not kept
    table = shown(comparison)
    assert re.search(r"latest validation loss +nan +4\.1000 +B *\n", table)  # at step 400 of 1,000
    assert "± nan" not in table
    assert "endless" not in table
    assert "the loss of lost.log is nan from step 300 on; the last finite one is 4.0000 at step 215" in table
    found = strictly(comparison)
    assert found["runs"][0]["final_val_loss"] is None
    assert found["at_equal_tokens"]["loss"][0] is None
    assert found["at_equal_tokens"]["winner"] == 1
    plot_html(comparison)


def test_before_it_was_lost_a_run_is_read_as_any_other() -> None:
    curve = loss_curve(case(evaluated(10.0, 5.0, 4.0, math.nan, math.nan)), "val_loss")
    tokens = 163_840
    at_150, at_250, at_300 = (read_at(curve, "tokens", step * tokens) for step in (150, 250, 300))
    assert at_150 is not None
    assert 4.0 < at_150.loss < 5.0
    assert at_250 is None  # nobody looked: lost, or not yet
    assert at_300 is not None
    assert math.isnan(at_300.loss)


@pytest.mark.parametrize("word", [math.nan, math.inf])
def test_runs_without_one_finite_loss_are_compared_and_written(word: float) -> None:
    nothing = case(evaluated(word, word))
    for others in ([nothing], [case(evaluated(10.0, 5.0))]):
        comparison = compare_runs([nothing, *others])
        assert comparison.winners["final_val_loss"] == (None if others == [nothing] else 1)
        assert "no earlier one is finite" in shown(comparison)
        assert strictly(comparison)["runs"][0]["final_val_loss"] is None
        plot_svg(comparison)


def test_a_training_loss_that_ends_in_nan_loses_too() -> None:
    kept = [line for line in made.nanogpt() if line.startswith("iter")]
    comparison = compare_runs([case([*kept, "iter 5000: loss nan, time 250.00ms, mfu 20.00%"]), case(kept)])
    assert comparison.measure == "train_loss"
    assert comparison.winners["final_train_loss"] == 1


def trained(*losses: float) -> list[str]:
    return [f"iter {n}: loss {loss:.4f}, time 100.00ms, mfu 20.00%" for n, loss in enumerate(losses)]


def since(comparison: Comparison) -> list[str]:
    return [caution for caution in comparison.cautions if " on; " in caution]


@pytest.mark.parametrize("finite", [6, 500])
def test_a_training_loss_is_lost_where_the_doctor_says(finite: int) -> None:
    lost = case(trained(*[4.0] * finite, *[math.nan] * 182), wandb_run_name="lost")
    comparison = compare_runs([lost, case(trained(*[4.5] * 600))])
    assert since(comparison) == [
        f"the loss of lost.log is nan from step {finite} on; the last finite one is 4.0000 at step {finite - 1}"
    ]
    assert f"the loss is nan at step {finite}" in next(f.what for f in loss_nan(lost))


def test_a_run_lost_after_its_last_evaluation_is_told() -> None:
    lost = case([*evaluated(10.0, 5.0, 4.0), "iter 220: loss nan, time 100.00ms, mfu 20.00%"], wandb_run_name="lost")
    (told,) = since(compare_runs([lost, case(evaluated(10.0, 5.5, 4.5))]))
    assert told == "the loss of lost.log is nan from step 220 on; the last finite one is 4.0000 at step 215"


def test_evaluations_alone_that_are_lost_are_called_so() -> None:
    lines = evaluated(10.0, 5.0, 4.0, 3.9)
    lines = [line.replace("val loss 3.9000", "val loss nan") for line in lines]
    (told,) = since(compare_runs([case(lines, wandb_run_name="lost"), case(evaluated(10.0, 5.5, 4.5))]))
    assert told == "the validation loss of lost.log is nan from step 300 on; the last finite one is 4.0000 at step 200"


def test_several_runs_of_one_log_are_told_apart() -> None:
    lines = [*evaluated(10.0, 5.0, math.nan), *evaluated(9.0, 4.0, math.nan)]
    two = read_logs(made.as_bytes(lines), source="two.log")
    assert [caution.partition(" is ")[0] for caution in since(compare_runs(two))] == [
        "the loss of two.log (its run 1)",
        "the loss of two.log (its run 2)",
    ]


def test_steps_that_nothing_tells_are_not_laid_beside_others() -> None:
    (untold,) = read_logs(made.as_bytes(made.trainer_lines(end=False)), source="hf.log")
    comparison = compare_runs([case(made.nanogpt(end=5.0)), untold])
    assert comparison.at_equal_tokens == comparison.at_equal_seconds == comparison.passings == ()
    assert any(caution.startswith("hf.log prints no step numbers") for caution in comparison.cautions)


def test_a_nan_between_is_passed_over() -> None:
    comparison = compare_runs([case(evaluated(10.0, math.nan, 4.0)), case(evaluated(10.0, 5.0, 4.5))])
    assert comparison.winners["final_val_loss"] == 0
    assert not any("the loss of" in caution for caution in comparison.cautions)


def begun(loss: float, *, init_from: str = "scratch") -> Case:
    """A run evaluated once, at its end, whose first training loss is `loss`; all state the same vocabulary."""
    lines = [f"iter {10 * n}: loss {loss / (1 + n):.4f}, time 900.00ms, mfu 16.00%" for n in range(5)]
    lines.append(f"step 50: train loss {loss / 6:.4f}, val loss {loss / 6:.4f}")
    (run,) = read_logs(made.as_bytes(lines), source="begun.log")
    config = resolve(f"init_from = {init_from!r}\nvocab_size = 50257\n", filename="begun.py")
    return make_case(run, config=config, card=None, data=DataSizes())


def test_first_training_losses_tell_vocabularies_apart() -> None:
    comparison = compare_runs([begun(10.87), begun(4.26)])
    assert comparison.cautions[0].startswith("the losses cannot be compared")
    assert "begin at 10.9 and 4.3" in comparison.cautions[0]
    assert "final_val_loss" not in comparison.winners
    assert "final_val_loss" in compare_runs([begun(10.87), begun(10.9)]).winners


def test_trained_weights_begin_low_with_any_vocabulary() -> None:
    comparison = compare_runs([begun(10.87), begun(3.3, init_from="gpt2")])
    assert not any(caution.startswith("the losses cannot be compared") for caution in comparison.cautions)
    assert "final_val_loss" in comparison.winners


def test_settings_are_never_read_as_markup() -> None:
    table = shown(compare_runs([case(made.nanogpt()), case(made.nanogpt(), out_dir="[bold]x [/b] :smile:")]))
    assert "[bold]x [/b] :smile:" in table


def test_runs_that_never_evaluated_are_compared_by_their_training_loss() -> None:
    runs = [case([line for line in made.nanogpt(end=end) if line.startswith("iter")]) for end in (3.5, 3.2)]
    comparison = compare_runs(runs)
    assert comparison.measure == "train_loss"
    assert comparison.winners["final_train_loss"] == 1
    assert "final_val_loss" not in comparison.winners
    found = strictly(comparison)
    assert [run["final_val_loss"] for run in found["runs"]] == [None, None]
    assert found["runs"][1]["final_train_loss"] == pytest.approx(made.smooth_loss(905, end=3.2), abs=0.05)
    assert any("these are training losses, as medians of 20 steps" in caution for caution in comparison.cautions)


def test_training_losses_are_said_to_be_medians_only_where_they_are() -> None:
    short, long = (case(trained(*[4.0] * steps), wandb_run_name=f"{steps}") for steps in (99, 100))
    assert compare_runs([long, long]).cautions[1].endswith("these are training losses, as medians of 20 steps")
    comparison = compare_runs([short, long])
    assert [len(curve.points) for curve in comparison.curves] == [99, 5]
    said = "as medians of 20 steps; single steps of 99.log, which logged fewer than 100 finite losses"
    assert any(caution.endswith(said) for caution in comparison.cautions)
    assert "noise of one median" in shown(comparison)
    single = compare_runs([short, case(trained(*[4.5] * 99))])
    said = "these are training losses, of single steps, as each run logged fewer than 100 finite losses"
    assert any(caution.endswith(said) for caution in single.cautions)
    assert "medians" not in shown(single)
    assert "noise of one step " in shown(single)
    assert "noise of one evaluation" in shown(quick_and_slow())


def test_runs_with_nothing_in_common_are_only_described() -> None:
    oom = make_case(read_logs([made.OOM["2024"].encode()], source="x")[0], config=None, card=None, data=DataSizes())
    comparison = compare_runs([case(made.nanogpt()), oom])
    assert comparison.measure is None
    assert "no loss in common" in shown(comparison)


def test_the_config_diff_names_what_differs_and_nothing_else() -> None:
    comparison = quick_and_slow(n_embd=512, dropout=0.1)
    assert comparison.config_diff == {
        "wandb_run_name": ("quick", "slow"),
        "n_embd": (256, 512),
        "dropout": (0.0, 0.1),
    }
    assert comparison.together == ("n_embd", "dropout")  # a name changes nothing
    assert "cannot show which one did it" in shown(comparison)
    assert "cannot show which one did it" not in shown(quick_and_slow(dropout=0.1))


def test_a_key_that_one_run_sets_and_another_leaves_unset_differs() -> None:
    comparison = compare_runs([case(made.nanogpt()), case(made.nanogpt(), max_hours=2.0)])
    assert comparison.config_diff == {"max_hours": (None, 2.0)}
    assert re.search(r"max_hours +not set +2\.0", shown(comparison))


def test_values_are_shown_as_they_are_typed() -> None:
    ours = own(0.0, min_lr=0.0012 / 10, memory_limit=12 * 2**30), own(0.03, min_lr=6e-5)
    table = shown(compare_runs(ours))
    assert re.search(r"min_lr +0\.00012 +6e-05", table)
    assert re.search(r"memory_limit +12GiB +not set", table)
    assert "min_lr 0.00012 → 6e-05" in table
    assert "memory_limit 12GiB → not set" in table
    assert strictly(compare_runs(ours))["config_diff"]["min_lr"] == [0.0012 / 10, 6e-5]


def test_the_last_bits_of_a_setting_are_no_change() -> None:
    comparison = compare_runs([own(0.0, min_lr=0.0012 / 10), own(0.03, min_lr=0.00012)])
    assert comparison.config_diff == {}
    assert comparison.single_changes[1] == ()


def test_a_type_that_the_card_chooses_anyway_is_no_change() -> None:
    comparison = compare_runs([own(0.0, card="H200", dtype="bfloat16"), own(0.03, card="H200", dtype="auto")])
    assert comparison.config_diff == {"dtype": ("bfloat16", "auto")}
    assert (comparison.together, comparison.single_changes[1]) == ((), ())
    assert re.search(r"dtype +bfloat16 +auto +\(no effect: bfloat16 in both\)", shown(comparison))
    assert strictly(comparison)["changed_without_effect"] == {"dtype": "no effect: bfloat16 in both"}
    for first, second, card in (
        ("bfloat16", "auto", "V100 SXM2 16GB"),
        ("bfloat16", "float16", "H200"),
        ("bfloat16", "auto", None),
    ):
        runs = [own(lift, card=card, dtype=dtype) for lift, dtype in ((0.0, first), (0.03, second))]
        assert compare_runs(runs).together == ("dtype",), card


def test_without_a_card_every_run_computes_in_float32() -> None:
    first, second = own(0.0, device="cpu", dtype="float32"), own(0.03, device="cpu", dtype="auto")
    comparison = compare_runs([first, second])
    assert comparison.idle == {"dtype": "no effect: float32 in both"}
    assert comparison.single_changes[1] == ()


def test_a_limit_that_no_run_reached_changed_nothing() -> None:
    def limited(**config: object) -> Case:
        return own(0.03, card="RTX 4070", **config)

    comparison = compare_runs([own(0.0, card="RTX 4070"), limited(memory_limit=10 * 2**30, max_hours=9.0)])
    assert comparison.together == ()
    assert "(no effect: no run ran out of memory)" in shown(comparison)
    assert "(no effect: no run took that long)" in shown(comparison)
    reached = limited(memory_limit=10 * 2**30, max_hours=9.0)
    records = (*reached.run.records, made_records.oom(4000), made_records.end(5000, "max_hours"))
    stopped = compare_runs([own(0.0), replace(reached, run=replace(reached.run, records=records))])
    assert stopped.together == ("memory_limit", "max_hours")


def test_of_several_runs_it_is_told_which_changed_several_settings_at_once() -> None:
    runs = [own(0.0), own(0.1, dropout=0.1), own(0.2, learning_rate=1e-3), own(0.3, dropout=0.1, learning_rate=1e-3)]
    assert "together" not in shown(compare_runs(runs[:3]))
    assert re.findall(r".*changed together.*", shown(compare_runs(runs))) == [
        "From A to D, 2 settings changed together: the runs cannot show which one did it."
    ]


def test_settings_that_changed_together_are_told_from_the_first_run_whose_config_is_known() -> None:
    (bare,) = read_logs(made.as_bytes(made.nanogpt()), source="bare.log")
    runs = [bare, own(0.0), own(0.1, dropout=0.1), own(0.2, dropout=0.1, learning_rate=1e-3)]
    assert re.findall(r".*changed together.*", shown(compare_runs(runs))) == [
        "From B to D, 2 settings changed together: the runs cannot show which one did it."
    ]


def differing(*runs: Case) -> str:
    """The line without details that names what differs."""
    (said,) = re.findall(r"^differ (.*)$", shown(compare_runs(runs), details=False), re.MULTILINE)
    return str(said)


def test_a_recipe_is_named_for_what_it_brings_and_nothing_else_is_left_out() -> None:
    fast = {"recipe": "fast", **recipe_values("fast", {**SMALL, "max_iters": 5000})}
    nanogpt, by_recipe = own(0.0, max_iters=5000), own(0.1, **{**fast, "max_iters": 5000})
    assert differing(nanogpt, by_recipe) == "recipe nanogpt → fast"
    with_muon = own(0.2, max_iters=5000, optimizer="muon", dropout=0.1)
    assert differing(nanogpt, by_recipe, with_muon) == (
        "recipe nanogpt → fast → nanogpt, optimizer adamw → muon → muon, dropout 0.0 → 0.0 → 0.1"
    )
    other_rate = own(0.1, **{**fast, "max_iters": 5000, "learning_rate": 0.1})
    assert differing(nanogpt, other_rate) == "recipe nanogpt → fast, learning_rate 0.0006 → 0.1"


def test_a_run_that_only_evaluates_is_not_like_one_that_trains() -> None:
    comparison = compare_runs([own(0.0), own(0.03, eval_only=True)])
    assert (comparison.together, comparison.idle) == (("eval_only",), {})
    (alone,) = comparison.single_changes[1]
    effects = (alone.tokens_per_second_ratio, alone.process_bytes_difference, alone.final_loss_difference)
    assert effects == (None, None, None)


def test_keys_are_not_broken_where_runs_are_many() -> None:
    names = [f"data/number-{number}" for number in range(8)]
    runs = [own(0.1, dataset=name, out_dir=name, warmup_iters=number) for number, name in enumerate(names)]
    table = shown(compare_runs(runs), width=120)
    assert re.search(r"^warmup_iters  ", table, re.MULTILINE)


def test_what_a_run_does_not_say_is_no_difference_and_is_shown_as_unknown() -> None:
    (bare,) = read_logs(made.as_bytes(made.nanogpt()), source="bare.log")
    assert compare_runs([case(made.nanogpt()), bare]).config_diff == {}
    comparison = compare_runs([case(made.nanogpt()), case(made.nanogpt(), n_embd=512), bare])
    assert comparison.config_diff == {"n_embd": (256, 512, UNSAID)}
    assert re.search(r"n_embd +256 +512 +\?", shown(comparison))
    assert strictly(comparison)["config_diff"] == {"n_embd": [256, 512, None]}


def test_a_run_that_did_not_finish_says_how_far_it_came() -> None:
    whole, cut = (case(made.nanogpt(steps=1000), max_iters=most, log_interval=10) for most in (1000, 5000))
    first, second = (line for line in shown(compare_runs([whole, cut])).splitlines() if "made.log: nanogpt" in line)
    assert first.endswith("config made.py")
    assert second.endswith("config made.py, at update 1,000 of 5,000")
    assert [run["steps_to_go"] for run in strictly(compare_runs([whole, cut]))["runs"]] == [0, 4000]
    last_lines_not_printed = case(made.nanogpt(steps=1000), max_iters=1009, log_interval=10)
    assert "at update" not in shown(compare_runs([whole, last_lines_not_printed]))
    ours = own(0.0, max_iters=6000)
    ended = replace(ours, run=replace(ours.run, records=(*ours.run.records, made_records.end(5000, "max_hours"))))
    assert "\nA  own: onecard, at update 5,000 of 6,000 (max_hours)\n" in shown(compare_runs([ended, whole]))


def test_updates_that_a_log_never_prints_are_not_missed() -> None:
    """The log's own grid may be wider than the config's, and the config may not be known."""
    logged = case(made.nanogpt(steps=1000, log_interval=100), max_iters=1050, log_interval=10)
    assert "at update" not in shown(compare_runs([logged, logged]))
    for to_go, told in ((9, False), (11, True)):
        config = {"max_iters": 1000 + to_go, "n_head": 7}  # heads that do not divide: no config
        runs = read_logs(made.as_bytes(made.nanogpt(steps=1000)), source="bare.log")
        bare = replace(runs[0], config=config)
        table = shown(compare_runs([logged, bare]))
        assert "B  bare.log: nanogpt, config not known" in table
        assert (f", at update 1,000 of {1000 + to_go:,}" in table) == told


def test_cards_are_named_where_they_differ() -> None:
    table = shown(compare_runs([own(0.0, card="RTX 4070"), own(0.0, card="H200"), own(0.0, device="cpu")]))
    assert re.search(r"\ncard +GeForce RTX 4070 +H200.* +cpu", table)
    assert "\ncard" not in shown(compare_runs([own(0.0, card="H200"), own(0.1, card="H200")]))


def foreign(card: str | None) -> Case:
    return case(evaluated(10.0, 5.0, 4.0), card)


def predicted_memory(*cases: Case | LoggedRun) -> str:
    table = shown(compare_runs(cases), width=200)
    return next(line.strip() for line in table.splitlines() if line.startswith("memory, predicted"))


def test_predicted_memory_says_where_the_context_is_not_in_it() -> None:
    without = predicted_memory(foreign(None), foreign(None))
    assert re.fullmatch(r"memory, predicted for nanoGPT, without the card's context( +[\d,]+ MiB){2}", without)
    both_known = predicted_memory(foreign("RTX 4070"), foreign("RTX 4070"))
    assert re.fullmatch(r"memory, predicted for nanoGPT( +[\d,]+ MiB){2}", both_known)
    one_known = predicted_memory(foreign("RTX 4070"), foreign(None))
    assert re.fullmatch(r"memory, predicted for nanoGPT +[\d,]+ MiB +[\d,]+ MiB, without the card's context", one_known)


def test_memory_is_predicted_for_the_trainer_of_each_run_and_named_by_it() -> None:
    ours = own(0.0, card="RTX 4070")
    assert re.fullmatch(r"memory, predicted for onecard( +[\d,]+ MiB){2}", predicted_memory(ours, ours))
    mixed = predicted_memory(ours, foreign("RTX 4070"))
    assert re.fullmatch(r"memory, predicted +[\d,]+ MiB for onecard +[\d,]+ MiB for nanoGPT", mixed)
    mixed = predicted_memory(ours, foreign(None), LoggedRun(source="bare", format="onecard", records=()))
    assert re.search(r"MiB for onecard +[\d,]+ MiB for nanoGPT, without the card's context +\?$", mixed)
    comparison = compare_runs([ours, foreign("RTX 4070")])
    planned = [
        predict(with_dtype(each.resolved.config, each.card), each.card).process_bytes
        for predict, each in zip((predict_onecard, predict_nanogpt), comparison.cases, strict=True)
        if each.resolved
    ]
    assert list(comparison.predicted_process_bytes) == planned
    assert planned[0] < planned[1], "logits in chunks"
    assert [run["predicted_for"] for run in strictly(comparison)["runs"]] == ["onecard", "nanogpt"]


@pytest.mark.parametrize("width", [40, 60])
def test_a_narrow_comparison_has_every_figure_of_a_wide_one(width: int) -> None:
    for comparison in (quick_and_slow(n_embd=512), noisy(3.3, 3.3, 3.9)):
        narrow = shown(comparison, width=width)
        assert "…" not in narrow
        figures = re.findall(r"\d[\d,.]*\d", shown(comparison, width=400))
        assert len(figures) > 20
        assert set(figures) <= set(re.findall(r"\d[\d,.]*\d", narrow))


# predicted alone


def test_each_change_is_planned_by_itself() -> None:
    card = find_card("RTX 4070")
    first = resolve("\n".join(made.nanogpt_config(**SMALL, dataset="fineweb"))).config
    second = first.replace({"n_embd": 512, "batch_size": 4, "gradient_accumulation_steps": 80, "learning_rate": 1e-3})
    batch, width, rate = single_effects(first, second, card, "nanogpt")
    assert set(batch.changes) == {"batch_size", "gradient_accumulation_steps"}  # the same tokens, cut differently
    assert batch.final_loss_difference == 0.0
    assert batch.process_bytes_difference is not None
    assert batch.process_bytes_difference < 0
    assert width.changes == {"n_embd": (256, 512)}
    assert width.tokens_per_second_ratio is not None
    assert width.tokens_per_second_ratio < 1
    assert width.final_loss_difference is not None
    assert width.final_loss_difference < 0
    assert (rate.tokens_per_second_ratio, rate.process_bytes_difference, rate.final_loss_difference) == (1.0, 0, None)


def test_a_change_that_cannot_stand_alone_says_so() -> None:
    first = resolve("n_embd = 384\nn_head = 6\nn_layer = 2").config
    (both,) = single_effects(first, first.replace({"n_embd": 320, "n_head": 5}), None, "nanogpt")
    assert set(both.changes) == {"n_embd", "n_head"}
    assert both.tokens_per_second_ratio is None  # no card
    assert both.process_bytes_difference is not None


def test_each_change_is_planned_under_the_trainer_of_the_first_run() -> None:
    ours, wider = (own(0.0, card="RTX 4070", n_embd=width) for width in (256, 512))
    theirs = case(evaluated(10.0, 5.0, 4.0), dataset="fineweb")
    (by_onecard,), (by_nanogpt,) = (compare_runs([first, wider]).single_changes[1] for first in (ours, theirs))
    assert by_onecard.changes == by_nanogpt.changes == {"n_embd": (256, 512)}
    assert by_onecard.process_bytes_difference != by_nanogpt.process_bytes_difference
    assert by_onecard.tokens_per_second_ratio != by_nanogpt.tokens_per_second_ratio


def test_what_only_onecard_has_is_planned_for_onecard_and_not_guessed_for_nanogpt() -> None:
    first = resolve("\n".join(made.nanogpt_config(**SMALL, dataset="fineweb"))).config
    second = first.replace({"grad_checkpoint": "full"})
    (ours,) = single_effects(first, second, find_card("RTX 4070"), "onecard")
    assert ours.process_bytes_difference is not None
    assert ours.process_bytes_difference < 0
    assert ours.tokens_per_second_ratio is not None
    assert ours.tokens_per_second_ratio < 1
    (theirs,) = single_effects(first, second, find_card("RTX 4070"), "nanogpt")
    assert (theirs.process_bytes_difference, theirs.tokens_per_second_ratio) == (None, None)


@pytest.mark.parametrize("trainer", ["onecard", "nanogpt"])
def test_a_limit_changes_nothing_by_itself(trainer: TrainerName) -> None:
    first = resolve("\n".join(made.nanogpt_config(**SMALL, dataset="fineweb"))).config
    second = first.replace({"memory_limit": 10 * 2**30, "seed": 7, "max_hours": 3.0})
    for effect in single_effects(first, second, find_card("RTX 4070"), trainer):
        assert (effect.tokens_per_second_ratio, effect.process_bytes_difference) == (1.0, 0), effect.changes
        assert effect.final_loss_difference == (0.0 if "memory_limit" in effect.changes else None)


def test_a_limit_below_what_a_run_needs_is_told() -> None:
    card = find_card("RTX 4070")
    first = resolve("\n".join(made.nanogpt_config(**SMALL, dataset="fineweb"))).config
    needed = predict_onecard(with_dtype(first, card), card).process_bytes
    (tight,) = single_effects(first, first.replace({"memory_limit": needed // 2}), card, "onecard")
    assert (tight.fits, tight.tokens_per_second_ratio, tight.process_bytes_difference) == (False, None, None)
    assert tight.final_loss_difference == 0.0, "the same updates, in smaller micro-batches"
    (ignored,) = single_effects(first, first.replace({"memory_limit": needed // 2}), card, "nanogpt")
    assert ignored.process_bytes_difference == 0
    comparison = compare_runs([own(0.0, card="RTX 4070"), own(0.0, card="RTX 4070", memory_limit=2**30)])
    assert re.search(r"memory_limit not set → 1GiB +\? +\? +does not fit +same", shown(comparison))


def test_a_limit_that_binds_or_that_nobody_can_judge_has_an_unknown_effect() -> None:
    card = find_card("RTX 4070")
    first = resolve("\n".join(made.nanogpt_config(**SMALL, dataset="fineweb"))).config
    needed = predict_onecard(with_dtype(first, card), card).process_bytes

    def effect(before: int | None, after: int | None, *, named: bool = True, cardless: bool = False) -> SingleChange:
        configs = [first.replace({"memory_limit": limit}) for limit in (before, after)]
        (found,) = single_effects(*configs, card if named else None, "onecard", cardless=cardless)
        return found

    raised, lifted = effect(needed // 2, 2 * needed), effect(needed // 2, None)
    # one byte less still fits: the allocator gives its cache back
    near, unjudged = effect(None, needed * 99 // 100), effect(2 * needed, 3 * needed, named=False)
    for alone in (raised, lifted, near, unjudged):
        known = (alone.tokens_per_second_ratio, alone.process_bytes_difference, alone.fits)
        assert known == (None, None, None), alone.changes
        assert alone.final_loss_difference == 0.0
    assert [alone.needs_card for alone in (raised, lifted, near, unjudged)] == [False, False, False, True]
    beyond_the_card = effect(2 * card.allocatable_bytes, None)
    on_the_cpu = effect(needed // 2, None, named=False, cardless=True)
    for alone in (effect(2 * needed, None), beyond_the_card, on_the_cpu):
        assert (alone.tokens_per_second_ratio, alone.process_bytes_difference) == (1.0, 0), alone.changes


def test_a_change_that_would_not_fit_by_itself_is_told() -> None:
    # 384 wide fits a card of 12 GB at batch 16, 768 wide at batch 8: the author's two runs
    card = find_card("RTX 4070")
    first = resolve("n_embd = 384\nbatch_size = 16\ngradient_accumulation_steps = 32\ndataset = 'fineweb'").config
    second = first.replace({"n_embd": 768, "batch_size": 8, "gradient_accumulation_steps": 64})
    batch, width = single_effects(first, second, card, "nanogpt")
    assert (batch.fits, width.fits) == (True, False)
    table = _alone_table((batch, width))
    assert [str(cell) for cell in table.columns[3].cells][1].endswith(" MiB: does not fit")
    too_large = first.replace({"n_embd": 1536, "batch_size": 64})
    assert [effect.fits for effect in single_effects(too_large, first, card, "nanogpt")] == [None, None]
    assert [effect.fits for effect in single_effects(first, second, None, "nanogpt")] == [None, None]


def test_no_loss_is_predicted_for_other_data_and_for_too_few_tokens() -> None:
    first = resolve("\n".join(made.nanogpt_config(**SMALL, dataset="fineweb"))).config
    (data,) = single_effects(first, first.replace({"dataset": "openwebtext"}), None, "nanogpt")
    assert data.final_loss_difference is None
    assert data.why_no_loss == "with another dataset the loss is another quantity"
    short = first.replace({"max_iters": 2, "batch_size": 1, "gradient_accumulation_steps": 1})
    (longer,) = single_effects(short, short.replace({"max_iters": 100_000}), None, "nanogpt")
    assert longer.final_loss_difference is None, "2 updates are no better than guessing"
    assert longer.why_no_loss == "1,024 tokens are too few for the scaling law"
    (enough,) = single_effects(first, first.replace({"max_iters": 2 * first.max_iters}), None, "nanogpt")
    assert enough.final_loss_difference is not None


def test_what_changes_no_update_changes_no_loss() -> None:
    first = resolve("\n".join(made.nanogpt_config(**SMALL, dataset="fineweb"))).config
    changes = {"compile": False, "grad_checkpoint": "full", "loss_chunk": 512, "expandable_segments": False}
    effects = single_effects(first, first.replace(changes), find_card("RTX 4070"), "onecard")
    assert [effect.final_loss_difference for effect in effects] == [0.0] * 4


def test_of_runs_on_the_cpu_nothing_is_predicted_of_a_card() -> None:
    on_cpu = [own(0.0, device="cpu"), own(0.0, device="cpu", n_embd=512, learning_rate=1e-3)]
    comparison = compare_runs(on_cpu)
    width, rate = comparison.single_changes[1]
    assert (width.tokens_per_second_ratio, width.process_bytes_difference) == (None, None)
    assert (rate.tokens_per_second_ratio, rate.process_bytes_difference) == (1.0, 0)
    assert comparison.predicted_process_bytes == (None, None)
    assert "memory, predicted" not in shown(comparison)
    assert "?: needs the card: --gpu NAME" in shown(comparison)
    card = find_card("RTX 4070")
    named = compare_runs([replace(each, card=card) for each in on_cpu])
    assert None not in named.predicted_process_bytes
    assert "needs the card" not in shown(named)


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"deterministic": True}, id="never planned"),
        pytest.param({"grad_checkpoint": "full"}, id="not of nanoGPT"),
        pytest.param({"n_head": 3, "n_embd": 384, "batch_size": 8}, id="planned"),
        pytest.param({"learning_rate": 1e-3}, id="no effect on the plan"),
    ],
)
def test_a_card_is_asked_for_only_where_it_would_help(changed: dict[str, object]) -> None:
    lines = evaluated(10.0, 5.0, 4.0)
    comparison = compare_runs([case(lines, card=None), case(lines, card=None, **changed)])
    assert ("?: needs the card" in shown(comparison)) == ("n_embd" in changed)


def test_no_card_helps_a_shape_that_cannot_be() -> None:
    first = resolve("block_size = 512\neval_block_size = 512").config
    second = first.replace({"block_size": 256, "eval_block_size": 256})
    effects = single_effects(first, second, None, "onecard")
    assert {key: effect.needs_card for effect in effects for key in effect.changes} == {
        "block_size": False,  # alone, shorter than what it is evaluated over
        "eval_block_size": True,
    }


def test_predictions_are_labelled() -> None:
    assert "predicted, not measured" in shown(quick_and_slow(n_embd=512))


# out


def test_json_has_what_the_contract_names() -> None:
    found = json.loads(json.dumps(comparison_json(quick_and_slow(n_embd=512)), allow_nan=False))
    assert found["schema"] == 1
    keys = "source params tokens_per_step tokens_per_second seconds_per_micro_batch mfu final_val_loss tokens seconds"
    assert set(keys.split()) <= set(found["runs"][0])
    assert found["config_diff"]["n_embd"] == [256, 512]
    assert found["at_equal_tokens"]["tokens"] == 163_840_000
    assert found["at_equal_tokens"]["winner"] == 1
    assert found["at_equal_seconds"]["seconds"] == 250
    assert found["winners"]["tokens_per_second"] == 0
    assert found["crossings"][0]["run"] == 1
    assert found["predicted_alone"]["1"][0]["patch"] == {"n_embd": 512}


def test_the_picture_names_the_runs_and_escapes_them() -> None:
    comparison = compare_runs([case(made.nanogpt(), wandb_run_name="a<b"), case(made.nanogpt(end=3.0))])
    svg, page = plot_svg(comparison), plot_html(comparison)
    assert svg.startswith("<svg ")
    assert "A: a&lt;b.log" in svg
    assert svg.count("<polyline") == 4  # two runs over tokens, two over hours
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")  # needs no network
    assert svg.strip() in page


def test_the_picture_has_room_for_the_names_of_many_runs() -> None:
    names = [f"a/long/path/to/the/folder/where/all/of/the/runs/are/kept/number-{number}" for number in range(10)]
    svg = plot_svg(compare_runs([case(made.nanogpt(), wandb_run_name=name) for name in names]))
    height = int(re.findall(r'viewBox="0 0 \d+ (\d+)"', svg)[0])
    drawn = re.findall(r'<text x="[\d.]+" y="([\d.]+)"[^>]*>([A-J]: [^<]+)', svg)
    assert [name[:3] + name.rpartition("-")[2] for _, name in drawn] == [
        f"{letter}: {number}.log" for number, letter in enumerate("ABCDEFGHIJ")
    ]
    assert all(float(y) < height - 8 for y, _ in drawn)
    assert all(len(name) <= 51 for _, name in drawn), "three stand side by side"


def test_a_picture_of_runs_without_speed_says_what_is_not_known() -> None:
    runs = [read_logs(made.as_bytes(made.llmc_main(steps=n)), source="x")[0] for n in (200, 300)]
    assert "tokens: not known" in plot_svg(compare_runs(runs))


def test_a_png_is_drawn_of_any_runs() -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'onecard[plot]'")
    without_speed = [read_logs(made.as_bytes(made.llmc_main(steps=n)), source="x")[0] for n in (200, 300)]
    lost, huge = case(evaluated(math.nan, math.nan)), case(evaluated(1e15, 1e13))
    for runs in (quick_and_slow().cases, without_speed, [lost, lost], [huge, huge], [huge] * 7):
        assert plot_png(compare_runs(runs)).startswith(b"\x89PNG")


def test_png_without_matplotlib_is_said_in_three_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MachineError) as problem:
        plot_png(quick_and_slow())
    assert (problem.value.exit_code, problem.value.name) == (3, "no-matplotlib")
    assert "onecard[plot]" in problem.value.fix
    assert ".svg" in problem.value.fix


# the verdict


def verdict(*cases: Case | LoggedRun) -> dict[str, str]:
    """The lines of the verdict by their labels."""
    return dict(verdict_lines(compare_runs(cases)))


def test_the_verdict_names_the_better_run_by_each_measure() -> None:
    said = dict(verdict_lines(quick_and_slow()))
    assert said["better"] == "B at equal tokens; A at equal hours"
    assert said["loss"] == "at 163.84M tokens B 3.7302, A 3.9302; at 4 min A 3.9302, B 4.1143"
    assert said["end"] == "A ended at 3.9302; B ended at 3.7302"
    assert said["speed"].startswith("A is faster: A 655,360 tokens/s, B 327,680; MFU A ")
    assert list(said)[:6] == ["better", "loss", "end", "speed", "why", "next"]


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        ((0.5, 0.25, 0.3), "B is faster: B 655,360 tokens/s, C 546,133, A 327,680"),
        ((0.25, 0.5, 0.25), "A, C are faster: A 655,360 tokens/s, C 655,360, B 327,680"),
        ((0.25, 0.25, 0.25), "no difference within noise: A 655,360 tokens/s, B 655,360, C 655,360"),
    ],
)
def test_every_speed_is_said_with_the_run_it_is_of(seconds: tuple[float, ...], said: str) -> None:
    runs = [case(made.nanogpt(steps=1000, seconds=each), wandb_run_name=f"run{each}") for each in seconds]
    assert verdict(*runs)["speed"].startswith(f"{said}; MFU A ")


def test_no_difference_is_no_verdict_and_asks_for_another_seed() -> None:
    said = dict(verdict_lines(noisy(3.3, 3.3)))
    assert said["better"] == "no difference within noise at equal tokens and at equal hours"
    assert said["why"] == "no setting differs: only seed, data order and noise"
    assert said["next"].startswith("train one of them again with another seed")
    changed = verdict(*(case(made.nanogpt(steps=5000, noise=0.02, seed=n), learning_rate=n / 1000) for n in (1, 2)))
    assert changed["why"] == "changed: learning_rate; no difference beyond noise"


def test_losses_that_cannot_be_compared_have_no_verdict() -> None:
    said = verdict(case(made.nanogpt()), case(made.nanogpt(end=1.2), vocab_size=256))
    assert said["better"] == "the losses cannot be compared: the vocabularies differ (50,304 and 256)"
    assert "loss" not in said


def test_a_log_whose_end_is_not_known_has_a_latest_loss() -> None:
    bare = [read_logs(made.as_bytes(made.nanogpt(end=end)), source=f"{end}.log")[0] for end in (3.3, 3.5)]
    said = verdict(*bare)
    assert said["end"] == "A 3.7302 so far (its end is not known); B 3.9302 so far (its end is not known)"
    assert said["next"].startswith("onecard compare 3.3.log 3.5.log --config A.py --config B.py ")
    comparison = compare_runs(bare)
    assert comparison.finished == (None, None)
    assert [run["finished"] for run in strictly(comparison)["runs"]] == [None, None]
    assert re.search(r"latest validation loss +3\.7302 +3\.9302", shown(comparison))


def test_logs_whose_vocabulary_and_data_nobody_says_get_no_verdict_on_their_losses() -> None:
    logs = [read_logs(made.as_bytes(made.llmc_main(steps=n)), source=f"{n}.log")[0] for n in (1000, 1001)]
    comparison, said = compare_runs(logs), verdict(*logs)
    assert said["better"] == (
        "the losses cannot be compared: the vocabulary and the data of 1000.log and 1001.log are not known"
    )
    assert comparison.winners.get("final_val_loss") is None
    assert "no difference" not in shown(comparison)
    told = [replace(log, config={"vocab_size": 50257, "dataset": "dev/data/fineweb10B"}) for log in logs]
    assert verdict(*told)["better"].startswith("no difference within noise")
    quick = replace(
        logs[0], records=tuple(replace(each, seconds=0.1) for each in logs[0].records), printed_tokens_per_step=1024
    )
    slow = replace(
        logs[1], records=tuple(replace(each, seconds=0.2) for each in logs[1].records), printed_tokens_per_step=1024
    )
    assert compare_runs([quick, slow]).winners == {"tokens_per_second": 0}, "speeds can be compared"


def test_logs_of_the_same_vocabulary_but_unknown_data_are_compared_with_a_caution() -> None:
    logs = [
        replace(of_openwebtext(made.llmc_main(steps=n), source=f"{n}.log"), config={"vocab_size": 50257})
        for n in (1000, 1001)
    ]
    assert any(
        said.startswith("nothing says the data of 1000.log and 1001.log") for said in compare_runs(logs).cautions
    )


def test_a_lost_run_loses_though_it_has_not_finished() -> None:
    lost = case(evaluated(10.0, 5.0, 4.0, math.nan, math.nan), max_iters=5000)
    comparison = compare_runs([lost, case(evaluated(10.0, 5.5, 4.5, 4.2, 4.1), max_iters=400)])
    assert comparison.finished == (False, True)
    assert comparison.winners["final_val_loss"] == 1
    assert dict(verdict_lines(comparison))["end"].startswith("A nan at update ")


def test_the_better_run_is_to_be_finished() -> None:
    ours = own(0.0, max_iters=6000)
    folder = replace(ours, run=replace(ours.run, folder="runs/ours"))
    assert verdict(folder, own(0.1))["next"] == "onecard train --resume runs/ours   (finish A: 1,000 updates)"
    log = case(made.nanogpt(steps=1000, end=3.1), max_iters=1500)
    said = verdict(case(made.nanogpt(end=3.5)), log)["next"]
    assert re.fullmatch(r"python train\.py made\.py --init_from=resume   \(finish B: .+\)", said)


def test_a_finished_winner_goes_to_the_doctor() -> None:
    said = verdict(case(made.nanogpt(end=3.5), wandb_run_name="a"), case(made.nanogpt(end=3.3), wandb_run_name="b"))
    command = "onecard doctor b.log --config made.py --gpu 'GeForce RTX 5090'"
    assert said["next"] == f"{command}   (what to change next in B)"


def test_a_card_is_asked_for_before_anything_else_is_tried() -> None:
    said = verdict(case(made.nanogpt(end=3.5), card=None), case(made.nanogpt(end=3.3), card=None, n_embd=512))
    assert said["next"].startswith("onecard compare made.log --gpu NAME ")


def test_why_the_mfu_fell_is_told_from_the_other_side() -> None:
    wide = case(made.nanogpt(seconds=0.5), n_embd=512, wandb_run_name="wide")
    narrow = case(made.nanogpt(seconds=0.5), n_embd=256, wandb_run_name="narrow")
    assert verdict(wide, narrow)["MFU"] == "narrower matrices (n_embd) use less of the card"
    assert "MFU" not in verdict(own(0.0, card="RTX 4070"), own(0.1, card="RTX 4070")), "nothing was measured"


def test_a_printed_mfu_is_left_alone_on_the_card_it_is_of() -> None:
    runs = [case(made.nanogpt(end=end), card="A100 SXM4 80 GB") for end in (3.5, 3.3)]
    assert "printed" not in " ".join(verdict(*runs).values())
    named = [replace(run, card=find_card("RTX 4070")) for run in runs]
    assert "the logs printed 21.5 % and 21.5 %, of an A100's 312 TFLOP/s" in " ".join(verdict(*named).values())


def test_a_long_path_is_shortened_in_the_verdict() -> None:
    long = "a/very/long/path/to/the/folder/where/all/of/the/runs/are/kept/train"
    said = verdict(case(made.nanogpt(end=3.5)), case(made.nanogpt(end=3.3), wandb_run_name=long))
    assert said["better"].startswith("B (…")
    assert "/kept/train.log): lower loss" in said["better"]


def test_notes_are_short_without_details_and_whole_with_them() -> None:
    comparison = compare_runs([case(made.nanogpt()), case(made.nanogpt(), dataset="other")])
    assert re.search(r"note +the data differ; the noise is assumed\n", shown(comparison, details=False))
    assert "note: the data differ (openwebtext and other): each loss is measured on its own" in shown(comparison)


def test_the_details_say_what_a_forecast_rests_on() -> None:
    cut = case(made.nanogpt(steps=1000, eval_interval=50), max_iters=5000, warmup_iters=100, dataset="fineweb")
    comparison = compare_runs([case(made.nanogpt()), cut])
    assert "note: the predicted end of B: " in shown(comparison)
    assert "note: the predicted end of A" not in shown(comparison)


def test_keys_without_a_predicted_loss_are_named_in_one_line() -> None:
    comparison = compare_runs(
        [own(0.0, dataset="fineweb"), own(0.1, dropout=0.1, learning_rate=1e-3, weight_decay=0.2)]
    )
    told = [line for line in shown(comparison).splitlines() if line.startswith("no prediction of the loss")]
    assert told == ["no prediction of the loss: scaling laws do not cover dropout, learning_rate and weight_decay"]


def test_a_file_of_several_runs_is_named_once_in_the_next_command() -> None:
    lines = [*evaluated(10.0, 5.0, 4.0), *evaluated(10.0, 4.5, 3.5)]
    said = verdict(*read_logs(made.as_bytes(lines), source="two.log"))
    assert said["next"].startswith("onecard compare two.log --config A.py ")
