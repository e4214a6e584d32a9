"""The diagnosis as text, JSON and Markdown: the same facts in each. As a file: tests/ui/test_single_file.py."""

import io
import json
import math
import re
from dataclasses import replace

import pytest
from rich.console import Console

from onecard import units
from onecard.config.resolve import resolve
from onecard.doctor.case import Case, DataSizes
from onecard.doctor.diagnose import Diagnosis, diagnose_cases
from onecard.doctor.explain import explain
from onecard.doctor.facts import make_case
from onecard.doctor.rules import NAMES
from onecard.report.doctor import print_diagnoses, print_explanation, summary_lines, verdict
from onecard.report.doctor_json import diagnoses_json
from onecard.report.doctor_markdown import diagnoses_markdown
from onecard.report.training import TrainingDisplay
from onecard.runs.foreign import read_logs
from onecard.runs.records import FindingRecord, Record, Step
from tests import made_logs as made
from tests.unit.doctor.cases import (
    BEFORE,
    HEALTHY_RUN,
    NARROW,
    SICK,
    SMALL,
    case,
    changed,
    evaluation,
    learning,
    steps,
    timed,
)


def diagnosed(*cases: Case) -> list[Diagnosis]:
    return diagnose_cases(cases)


def text(diagnoses: list[Diagnosis], width: int = 80, *, details: bool = True) -> str:
    out = io.StringIO()
    print_diagnoses(diagnoses, Console(file=out, width=width, highlight=False), details=details)
    return out.getvalue()


@pytest.mark.parametrize("details", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_every_finding_reads_in_80_columns(name: str, details: bool) -> None:
    shown = text(diagnosed(*BEFORE.get(name, list)(), SICK[name]()), details=details)
    typed = re.compile("python train.py|onecard train ")
    long = [line for line in shown.splitlines() if len(line) > 80 and not typed.search(line)]
    assert not [line for line in long if " " in line.strip() and not line.startswith("  predicted")]
    assert f"[{name}]" in re.sub(r"\s+", " ", shown)


def test_the_text_has_what_why_fix_and_the_lines_that_prove_it() -> None:
    shown = text(diagnosed(SICK["loss-nan"]()), width=120)
    assert "fatal: the loss is nan at step 200" in shown
    assert "\n  why: " in shown
    assert "\n  fix: " in shown
    assert "\n  seen: line 202: iter 100: loss 4.1000" in shown


def test_a_healthy_run_reads_as_healthy() -> None:
    run = [replace(r, grad_norm=0.4) if isinstance(r, Step) else r for r in HEALTHY_RUN]
    patient = case(records=run, card="RTX 4070", train_tokens=10**10, val_tokens=10**7, val_in_train="")
    (diagnosis,) = diagnosed(patient)
    assert diagnosis.not_looked_at == ()
    assert diagnosis.unchecked == {}
    assert verdict(diagnosis).startswith("healthy")
    assert "- all 100 logged losses are finite" in text([diagnosis])


def test_a_run_that_logs_little_is_not_called_healthy() -> None:
    (diagnosis,) = diagnosed(
        case(records=learning(), card="RTX 4070", train_tokens=10**10, val_tokens=10**7, val_in_train="")
    )
    assert diagnosis.healthy
    assert diagnosis.unchecked == {}
    assert diagnosis.not_looked_at == ("speed", "gradient norm")
    assert not verdict(diagnosis).startswith("healthy")
    assert "not looked at, because too little of it is logged: speed, gradient norm" in verdict(diagnosis)
    assert diagnoses_json([diagnosis])["runs"][0]["not_looked_at"] == ["speed", "gradient norm"]
    assert diagnoses_json([diagnosis])["runs"][0]["summary"]["healthy"] is None


def test_steps_that_nothing_tells_are_said_to_be_unknown() -> None:
    lines = made.trainer_lines(end=False)
    lines[22] = lines[22].replace(lines[22].split()[1], "nan,")  # the twelfth loss
    (run,) = read_logs(made.as_bytes(lines), source="hf.log")
    (diagnosis,) = diagnosed(make_case(run, config=None, card=None, data=DataSizes()))
    shown = text([diagnosis], width=200)
    assert "20 logged losses, 20 evaluations; no line says its step" in shown
    assert "the steps (no line of the log says its own)" in shown
    assert "at logged loss 12" in shown
    assert not re.search(r"\bsteps? \d", shown)
    assert "of the time" not in shown
    assert "doubling" not in shown
    summary = diagnoses_json([diagnosis])["runs"][0]["summary"]
    assert summary["last_step"] is None
    assert summary["last_val"]["step"] is None


def test_a_note_shows_the_step_it_speaks_of_and_the_one_before() -> None:
    losses = [4.0] * 30
    losses[7], losses[20] = 4.5, 5.5
    shown = text(diagnosed(case(records=steps(losses))), width=120)
    told = shown[shown.index("the loss jumps by 1.50 to 5.5000 at step 2,000 (and 1 more)") :]
    assert re.findall(r"seen: (.*)", told)[:2] == [
        "line 3802: iter 1900: loss 4.0000",
        "line 4002: iter 2000: loss 5.5000",
    ]


def test_a_log_of_nothing_is_not_called_healthy() -> None:
    (diagnosis,) = diagnosed(case(None))
    assert verdict(diagnosis) == "nothing that a rule knows: is it the log of a run?"


def test_the_json_is_the_contracts_and_strict() -> None:
    made = diagnoses_json(diagnosed(SICK["loss-nan"](), case(NARROW, card="RTX 4070", records=learning(5000))))
    again = json.loads(json.dumps(made, allow_nan=False))
    assert again["schema"] == 1
    nan, narrow = again["runs"]
    assert {"source", "format", "summary", "findings"} <= set(nan)
    for finding in nan["findings"] + narrow["findings"]:
        assert set(finding) == {"rule", "severity", "sure", "what", "why", "fix", "seen", "patch"}
        assert finding["severity"] in ("info", "warn", "error", "fatal")
        assert finding["sure"] in ("high", "medium", "low")
        assert isinstance(finding["seen"], list)
    assert narrow["prescription"]["patch"]["n_embd"] == 768
    assert narrow["forecast"]["steps_to_go"] == 5000
    assert narrow["summary"]["last_val"]["step"] == 5000


@pytest.mark.parametrize("last", [0, 1000, 3000, 9500])
@pytest.mark.parametrize("config", [SMALL, changed(vocab_size=65), None])
def test_the_json_has_the_forecast_that_the_text_has(last: int, config: str | None) -> None:
    found = diagnosed(case(config, records=[*timed(9.35)[: last // 100], *learning(last)], card="RTX 4070"))
    summary = diagnoses_json(found)["runs"][0]["summary"]
    (said,) = [line for line in text(found, width=1000).splitlines() if line.startswith("forecast")]
    forecast, why = summary["forecast"], summary["why_no_forecast"]
    assert (forecast is None) == (why is not None)
    if forecast is None:
        assert why in said
        return
    assert why is None
    low, likely, high = (f"{forecast['loss'][name]:.2f}" for name in ("low", "likely", "high"))
    assert f"val {likely} ({low} to {high})" in said
    assert forecast["step"] == (10_000 if config else last + last // 2), "without a config, half as many updates again"
    assert forecast["seconds"].keys() == {"low", "likely", "high"}
    hours = units.duration(forecast["seconds"]["likely"])
    assert (f"in {hours} (" if config else f"after {hours} more") in said


@pytest.mark.parametrize(
    ("records", "why"),
    [
        (learning(10_000), "the run has reached its last update"),
        (steps([4.0, 4.1, math.nan, math.nan]), "the loss is nan from step 200 on"),
    ],
)
def test_why_there_is_no_forecast_is_said(records: list[Record], why: str) -> None:
    summary = diagnoses_json(diagnosed(case(records=records)))["runs"][0]["summary"]
    assert (summary["forecast"], summary["why_no_forecast"]) == (None, why)


def test_numbers_json_does_not_have_become_null() -> None:
    made = diagnoses_json(diagnosed(case(records=[evaluation(0, math.inf, math.nan), *steps([math.nan] * 3)])))
    assert made["runs"][0]["summary"]["last_val"]["val_loss"] is None


def test_markdown_keeps_stars_and_pipes_as_they_are() -> None:
    made = diagnoses_markdown(diagnosed(case("batch_size = 8  # 16 * 32 = 512\ngradient_accumulation_steps = 64\n")))
    assert "16 \\* 32" in made
    assert made.startswith("## ")


def test_an_explanation_has_its_four_headings() -> None:
    out = io.StringIO()
    print_explanation(explain("plateau"), Console(file=out, width=80))
    for heading in ("What it sees", "Why it matters", "What to do", "When it is wrong"):
        assert f"\n{heading}\n" in out.getvalue()


def test_a_finding_of_a_run_that_trains_is_one_line() -> None:
    out = io.StringIO()
    (finding, *_) = diagnosed(SICK["loss-nan"]())[0].findings
    config = resolve(None).config
    with TrainingDisplay(config, Console(file=out, width=80)) as display:
        display(FindingRecord(step=200, finding=finding))
    (line,) = out.getvalue().splitlines()
    assert line.startswith("fatal: the loss is nan at step 200: 100 further updates, 16 min, trained nothing; go")
    assert line.endswith("[loss-nan]")


def test_a_run_whose_end_nobody_says_is_forecast_for_more_hours_at_its_pace() -> None:
    (text,) = [
        words
        for label, words in summary_lines(diagnosed(case(None, records=[*timed(9.35), *learning(5000)]))[0])
        if label == "forecast"
    ]
    assert text.startswith("after 6.5 h more at this pace (2,500 more updates), val 3.")
    assert "nothing says where the run ends" in text
