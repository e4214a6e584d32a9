"""Scores in tasks, as text and JSON: each with its error, what guessing gets, and what known models got."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.table import Table
from rich.text import Text

from onecard import units
from onecard.doctor.benchmarks import BEYOND_NOISE, Published, benchmark, binomial_error, differs
from onecard.report.scores import text_rows, with_error
from onecard.runs.scores import TaskScore, TextScore
from onecard.visible import visible

UNKNOWN = "–"


def published(score: TaskScore) -> tuple[Published, ...]:
    """What known models got in the same metric."""
    known = benchmark(score.task)
    return known.published if known and known.metric == score.metric else ()


def meaning(score: TaskScore) -> str:
    """One sentence: whether the score differs from guessing and from known models by more than noise."""
    if score.error is None:
        return "how exact the score is cannot be known from one question"
    words = []
    if score.chance is not None:
        away = score.value - score.chance
        beyond = abs(away) > BEYOND_NOISE * score.error
        words.append(
            "no different from guessing" if not beyond else f"{'better' if away > 0 else 'worse'} than guessing"
        )
    sides: dict[str, list[str]] = {}
    for other in published(score):
        far = differs(score.value, score.error, other.value, _error(score, other))
        side = "no different from" if not far else "better than" if score.value > other.value else "worse than"
        sides.setdefault(side, []).append(other.model)
    words += [f"{side} {' and '.join(models)}" for side, models in sides.items()]
    if not words:
        return "there is nothing known to compare it with"
    return ", ".join(words)


def task_table(scores: Sequence[TaskScore]) -> Table:
    """A row for each score."""
    models = list(dict.fromkeys(other.model for score in scores for other in published(score)))
    steps = len({score.step for score in scores}) > 1
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in [*(["step"] if steps else []), "task", "metric", "score", "guessing", *models, "questions"]:
        table.add_column(column)
    for score in scores:
        others = {other.model: f"{other.value:.4f}" for other in published(score)}
        table.add_row(
            *([f"{score.step:,}"] if steps else []),
            Text(visible(score.task)),
            Text(visible(score.metric)),
            with_error(score.value, score.error),
            UNKNOWN if score.chance is None else f"{score.chance:.4f}",
            *(others.get(model, UNKNOWN) for model in models),
            f"{score.questions:,}",
        )
    return table


def task_lines(scores: Sequence[TaskScore], *, source: str) -> Iterator[str]:
    """What the scores mean, and where the figures are from."""
    steps = len({score.step for score in scores}) > 1
    for score in scores:
        yield f"{f'step {score.step:,}, ' if steps else ''}{visible(score.task)}: {meaning(score)}"
    yield f"a difference counts from {BEYOND_NOISE:.0f} standard errors on"
    by = " and ".join(dict.fromkeys(score.harness for score in scores))
    limits = {score.limit for score in scores} - {None}
    first = f", the first {units.things(max(filter(None, limits)), 'question')} of each" if limits else ""
    at = "" if steps else f", step {scores[0].step:,}"
    yield f"{source}{at}; zero-shot by {by}{first}"
    for model, sources in _sources(scores).items():
        yield f"{model}: {'; '.join(sources)}"


def task_scores_json(scores: Sequence[TaskScore]) -> list[dict[str, object]]:
    """A row for each metric of each score; "main" marks the one that `means` and `published` speak of."""
    rows = []
    for score in scores:
        for metric, (value, error) in score.metrics.items():
            main = metric == score.metric
            rows.append(
                {
                    "task": score.task,
                    "metric": metric,
                    "value": value,
                    "error": error,
                    "chance": score.chance if metric.startswith("acc") else None,
                    "questions": score.questions,
                    "step": score.step,
                    "limit": score.limit,
                    "main": main,
                    "means": meaning(score) if main else None,
                    "published": [_published_json(score, other) for other in published(score)] if main else [],
                    "version": score.version,
                    "harness": score.harness,
                }
            )
    return rows


def scores_json(tasks: Sequence[TaskScore], texts: Sequence[TextScore]) -> list[dict[str, object]]:
    """Every score of a run, for its page: the rows of `onecard eval --json`."""
    return [
        *task_scores_json(tasks),
        *({**row, "step": text.step} for text in texts for row in text_rows(text)),
    ]


def _published_json(score: TaskScore, other: Published) -> dict[str, object]:
    return {"model": other.model, "value": other.value, "error": _error(score, other), "source": other.source}


def _error(score: TaskScore, other: Published) -> float:
    known = benchmark(score.task)
    return binomial_error(other.value, known.questions if known else score.questions)


def _sources(scores: Sequence[TaskScore]) -> dict[str, list[str]]:
    """By model, where its figures are published, and for which tasks."""
    found: dict[str, dict[str, list[str]]] = {}
    for score in scores:
        for other in published(score):
            tasks = found.setdefault(other.model, {}).setdefault(other.source, [])
            if score.task not in tasks:
                tasks.append(score.task)
    return {model: [f"{', '.join(tasks)} from {source}" for source, tasks in by.items()] for model, by in found.items()}
