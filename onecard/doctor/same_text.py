"""Bits per byte of a text that all compared runs were scored on: they do not depend on the tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from onecard.doctor.case import Case
from onecard.runs.scores import TextScore, lead

BEYOND_NOISE = 2.0  # standard errors from which a difference counts


@dataclass(frozen=True, kw_only=True)
class SameText:
    """The newest score of each run on one text, and the runs by it."""

    scores: tuple[TextScore, ...]
    best: tuple[int, ...]  # the lowest, and all that are within noise of it
    beaten: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.scores[0].text


def same_text(cases: Sequence[Case]) -> SameText | None:
    """The largest text that all runs were scored on; None where there is none."""
    found = [_newest(case) for case in cases]
    shared = set.intersection(*(set(scores) for scores in found))
    if not shared:
        return None
    text = max(shared, key=lambda text: (found[0][text].bytes, text))
    scores = tuple(each[text] for each in found)
    lowest = min(scores, key=lambda score: score.bits_per_byte)
    beaten = tuple(run for run, score in enumerate(scores) if score is not lowest and _is_below(lowest, score))
    return SameText(scores=scores, best=tuple(run for run in range(len(scores)) if run not in beaten), beaten=beaten)


def _newest(case: Case) -> dict[str, TextScore]:
    """The score of the highest step, by text."""
    return {score.text_sha256: score for score in sorted(case.run.text_scores, key=lambda score: score.step)}


def _is_below(one: TextScore, other: TextScore) -> bool:
    difference, error = lead(one, other)
    return error is not None and difference > BEYOND_NOISE * error
