"""evals.jsonl: kept whole, read in spite of damage; and how exact a difference of two scores is."""

import json
import math
from pathlib import Path

import pytest

from onecard.runs.scores import SCORES, TextScore, append_score, lead, ratio_error, read_scores

SIZES = (100, 200, 300, 50)


def score(*nats: float, step: int = 10, text: str = "a" * 64) -> TextScore:
    bits = [each / math.log(2) for each in nats]
    return TextScore(
        step=step,
        text="book.txt",
        text_sha256=text,
        context=64,
        documents=len(nats),
        bytes=sum(SIZES[: len(nats)]),
        tokens=100,
        nats=sum(nats),
        error=ratio_error(bits, list(SIZES[: len(nats)])),
        document_bytes=SIZES[: len(nats)],
        document_nats=nats,
    )


def test_what_is_appended_is_read_again(tmp_path: Path) -> None:
    one, other = score(70.0, 150.0, 200.0, 30.0), score(69.0, 148.0, step=20)
    append_score(tmp_path, one)
    append_score(tmp_path, other)
    assert read_scores(tmp_path) == (one, other)
    assert read_scores(tmp_path / "no run") == ()


def test_of_one_checkpoint_and_text_the_last_score_counts(tmp_path: Path) -> None:
    for nats in (70.0, 71.0):
        append_score(tmp_path, score(nats, 150.0))
    append_score(tmp_path, score(1.0, 1.0, text="b" * 64))
    assert [found.document_nats[0] for found in read_scores(tmp_path)] == [71.0, 1.0]


def test_a_line_that_was_cut_off_is_passed_over_and_the_next_is_not_lost(tmp_path: Path) -> None:
    append_score(tmp_path, score(70.0, 150.0))
    append_score(tmp_path, score(71.0, 150.0, step=20))
    place = tmp_path / SCORES
    place.write_bytes(place.read_bytes()[:-40])
    assert [found.step for found in read_scores(tmp_path)] == [10]
    append_score(tmp_path, score(72.0, 150.0, step=30))
    assert [found.step for found in read_scores(tmp_path)] == [10, 30]


@pytest.mark.parametrize(
    "change",
    [
        {"kind": "of a later version"},
        {"bytes": 0},
        {"nats": "many"},
        {"document_bytes": [1]},
        {"step": None},
        {"nats": float("nan")},
    ],
)
def test_a_line_that_makes_no_sense_is_passed_over(tmp_path: Path, change: dict[str, object]) -> None:
    append_score(tmp_path, score(70.0, 150.0))
    place = tmp_path / SCORES
    bad = json.loads(place.read_bytes()) | change
    place.write_text(json.dumps(bad) + "\n" + place.read_text())
    assert read_scores(tmp_path) == (score(70.0, 150.0),)


def test_the_error_of_a_ratio_is_that_of_draws_made_again_and_again() -> None:
    import random

    random.seed(1)
    drawn = [(size := random.randint(50, 500), 0.7 * size + random.gauss(0, 20)) for _ in range(400)]
    said = ratio_error([nats for _, nats in drawn], [size for size, _ in drawn])
    again = []
    for _ in range(2000):
        picked = random.choices(drawn, k=len(drawn))
        again.append(sum(nats for _, nats in picked) / sum(size for size, _ in picked))
    mean = sum(again) / len(again)
    bootstrapped = math.sqrt(sum((each - mean) ** 2 for each in again) / len(again))
    assert said == pytest.approx(bootstrapped, rel=0.1)
    assert ratio_error([1.0], [10]) is None


def test_the_difference_of_two_scores_is_more_exact_than_each_of_them() -> None:
    one = score(70.0, 150.0, 200.0, 45.0)
    other = score(71.0, 151.5, 203.0, 45.6)  # the same documents are hard for both
    difference, error = lead(one, other)
    assert difference == pytest.approx((1.0 + 1.5 + 3.0 + 0.6) / math.log(2) / 650)
    assert error is not None
    assert one.error is not None
    assert error < one.error / 10
    assert difference > 2 * error
