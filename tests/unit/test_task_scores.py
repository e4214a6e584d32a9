"""Scores in tasks: kept whole, read in spite of damage, and what a difference means."""

from __future__ import annotations

import io
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from onecard.doctor.benchmarks import CORE, GPT2, NEAR_CHANCE, PYTHIA, benchmark, binomial_error
from onecard.doctor.same_tasks import SameTask, _ranked, task_lead
from onecard.report.task_scores import meaning, task_lines, task_scores_json, task_table
from onecard.runs.scores import SCORES, TaskScore, append_score, packed, read_scores, read_task_scores


def score(value: float = 0.5, error: float | None = 0.01, *, task: str = "piqa", **changes: Any) -> TaskScore:
    made = TaskScore(
        step=10,
        task=task,
        metric="acc",
        metrics={"acc": (value, error), "acc_norm": (value - 0.1, error)},
        chance=0.5,
        questions=1838,
        questions_sha256="a" * 64,
        limit=None,
        version="1.0",
        harness="lm-eval 0.4.13",
    )
    return replace(made, **changes)


def answered(answers: list[int], **changes: Any) -> TaskScore:
    share = sum(answers) / len(answers)
    error = binomial_error(share, len(answers))
    return score(share, error, questions=len(answers), right=packed(answers), **changes)


def test_what_is_appended_is_read_again_and_texts_stay_apart(tmp_path: Path) -> None:
    one, other = answered([1, 0, 1, 1, 0, 0, 1]), score(task="sciq", step=20, weights="b" * 64)
    append_score(tmp_path, one)
    append_score(tmp_path, other)
    assert read_task_scores(tmp_path) == (one, other)
    assert read_scores(tmp_path) == ()
    assert one.answers == (1, 0, 1, 1, 0, 0, 1)
    assert other.answers == ()


def test_of_one_checkpoint_task_and_limit_the_last_score_counts(tmp_path: Path) -> None:
    for value in (0.5, 0.6):
        append_score(tmp_path, score(value))
    append_score(tmp_path, score(0.7, limit=5))
    assert [found.value for found in read_task_scores(tmp_path)] == [0.6, 0.7]


@pytest.mark.parametrize(
    "change",
    [
        {"metric": "of another task"},
        {"metrics": {"acc": 0.5}},
        {"metrics": {"acc": [0.5, "exact"]}},
        {"metrics": {"acc": [float("nan"), None]}},
        {"questions": 0},
        {"right": "xyz"},
        {"limit": 0},
        {"task": None},
        {"kind": "of a later version"},
    ],
)
def test_a_line_that_makes_no_sense_is_passed_over(tmp_path: Path, change: dict[str, object]) -> None:
    append_score(tmp_path, score())
    place = tmp_path / SCORES
    bad = json.loads(place.read_bytes()) | {"step": 99} | change
    place.write_text(json.dumps(bad) + "\n" + place.read_text())
    assert read_task_scores(tmp_path) == (score(),)


def test_answers_that_are_neither_right_nor_wrong_are_not_packed() -> None:
    assert packed([0.5, 1]) == ""
    draw = random.Random(2)
    for count in range(1, 30):
        answers = [draw.randrange(2) for _ in range(count)]
        assert answered(answers).answers == tuple(answers)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.51, f"no different from guessing, worse than {GPT2} and {PYTHIA}"),
        (0.60, f"better than guessing, no different from {GPT2} and {PYTHIA}"),
        (0.70, f"better than guessing, better than {GPT2} and {PYTHIA}"),
        (0.40, f"worse than guessing, worse than {GPT2} and {PYTHIA}"),
    ],
)
def test_one_sentence_says_what_a_score_means(value: float, words: str) -> None:
    assert meaning(score(value, 0.0114)) == words


def test_what_is_not_known_is_said() -> None:
    assert meaning(score(error=None)) == "how exact the score is cannot be known from one question"
    own = score(task="mine", chance=None)
    assert meaning(own) == "there is nothing known to compare it with"
    (main, other) = task_scores_json([own])
    assert (main["main"], main["published"], other["means"]) == (True, [], None)


def test_published_figures_count_in_their_own_metric_only() -> None:
    by_length = score(metric="acc_norm")
    assert "GPT-2" not in meaning(by_length)
    assert task_scores_json([score()])[0]["published"][0] == {  # type: ignore[index]
        "model": GPT2,
        "value": 0.6289,
        "error": pytest.approx(binomial_error(0.6289, 1838)),
        "source": "model card of crumb/gpt2023 on the Hugging Face hub",
    }


def test_the_core_tasks_differ_from_guessing_and_the_others_hardly_do() -> None:
    chance = {"hellaswag": 0.25, "piqa": 0.5, "arc_easy": 0.25, "lambada_openai": 0.0, "sciq": 0.25, "winogrande": 0.5}
    chance |= {"arc_challenge": 0.25, "logiqa": 0.25}
    for each in CORE:
        for other in each.published:
            assert other.value - chance[each.task] > 5 * binomial_error(other.value, each.questions), each.task
    for each in NEAR_CHANCE:
        for other in each.published:
            assert other.value - chance[each.task] < 2.5 * binomial_error(other.value, each.questions), each.task
    assert all(benchmark(each.task) is each for each in (*CORE, *NEAR_CHANCE))


def test_a_table_shows_names_as_they_are() -> None:
    out = io.StringIO()
    named = score(task="[red]mine\x1b[0m")
    Console(file=out, width=200, no_color=True).print(task_table([named, score()]))
    assert "[red]mine\\x1b" in out.getvalue()
    assert "0.5000 ± 0.0100" in out.getvalue()
    lines = list(task_lines([named, score(limit=5)], source="runs/x"))
    assert any("the first 5 questions" in line for line in lines)
    assert any(line.startswith(f"{GPT2}: piqa from ") for line in lines)


def test_answers_side_by_side_tell_more_than_two_errors() -> None:
    draw = random.Random(1)
    worse = [draw.random() < 0.5 for _ in range(1000)]
    better = [each or draw.random() < 0.04 for each in worse]  # right wherever the other is, and in a few more
    one, other = answered(list(map(int, better))), answered(list(map(int, worse)))
    difference, error = task_lead(one, other)
    assert difference == pytest.approx((sum(better) - sum(worse)) / 1000)
    assert error is not None
    assert one.error is not None
    assert error < one.error / 2
    assert _ranked((other, one)) == SameTask(scores=(other, one), best=(1,), beaten=(0,))
    apart = _ranked((replace(other, right=""), replace(one, right="")))
    assert apart.beaten == (), "without the answers the difference is within noise"
