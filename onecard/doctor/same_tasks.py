"""Tasks whose questions all compared runs answered, and which run answers them better."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from onecard.doctor.benchmarks import BEYOND_NOISE
from onecard.doctor.case import Case
from onecard.runs.scores import TaskScore


@dataclass(frozen=True, kw_only=True)
class SameTask:
    """The score of each run's highest step in one task, and the runs by it."""

    scores: tuple[TaskScore, ...]
    best: tuple[int, ...]  # the highest, and all that are within noise of it
    beaten: tuple[int, ...]

    @property
    def task(self) -> str:
        return self.scores[0].task

    @property
    def metric(self) -> str:
        return self.scores[0].metric


def same_tasks(cases: Sequence[Case]) -> tuple[SameTask, ...]:
    """The tasks that all runs share, each with the most questions they share of it."""
    found = [_newest(case) for case in cases]
    shared = set.intersection(*(set(scores) for scores in found))
    tasks: dict[str, tuple[TaskScore, ...]] = {}
    for key in (key for key in found[0] if key in shared):
        scores = tuple(each[key] for each in found)
        known = tasks.get(scores[0].task)
        if known is None or scores[0].questions > known[0].questions:
            tasks[scores[0].task] = scores
    return tuple(_ranked(scores) for scores in tasks.values())


def task_lead(one: TaskScore, other: TaskScore) -> tuple[float, float | None]:
    """(how far `one` is above `other`, the standard error of that), both of the same questions.

    What is hard for one model is hard for the other: answers set side by side tell more than the two errors.
    """
    difference = one.value - other.value
    pairs = list(zip(one.answers, other.answers, strict=True)) if len(one.answers) == len(other.answers) else []
    if len(pairs) > 1:
        each = [a - b for a, b in pairs]
        mean = sum(each) / len(each)
        squares = sum((value - mean) ** 2 for value in each)
        return difference, math.sqrt(squares / (len(each) - 1) / len(each))
    if one.error is None or other.error is None:
        return difference, None
    return difference, math.hypot(one.error, other.error)


def _newest(case: Case) -> dict[tuple[str, str, str], TaskScore]:
    """The score of the highest step, by task, metric and questions."""
    ordered = sorted(case.run.task_scores, key=lambda score: score.step)
    return {(score.task, score.metric, score.questions_sha256): score for score in ordered}


def _ranked(scores: tuple[TaskScore, ...]) -> SameTask:
    highest = max(scores, key=lambda score: score.value)
    beaten = tuple(run for run, score in enumerate(scores) if score is not highest and _is_above(highest, score))
    best = tuple(run for run in range(len(scores)) if run not in beaten)
    return SameTask(scores=scores, best=best, beaten=beaten)


def _is_above(one: TaskScore, other: TaskScore) -> bool:
    difference, error = task_lead(one, other)
    return error is not None and difference > BEYOND_NOISE * error
