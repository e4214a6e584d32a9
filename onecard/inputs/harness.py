"""EleutherAI's lm-eval: its tasks by name or from a file of the user, asked of a model of ours.

Only tasks that come with lm-eval may run Python; a file of the user is read by task_file.py. Data sets come from
Hugging Face's cache, and from the hub only if the user asks for that.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version as version_of
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from onecard.config.names import nearest
from onecard.config.paths import expanded
from onecard.data.extras import extra
from onecard.doctor.benchmarks import CORE, benchmark
from onecard.errors import ConfigError, MachineError, OnecardError, UsageError, first_line, is_out_of_memory
from onecard.inputs.task_file import is_task_file, read_task_file
from onecard.runs.scores import TaskScore, packed

if TYPE_CHECKING:
    from onecard.inputs.opened import Opened

CORE_TASKS = "core"
_PURPOSE = "scoring tasks"
_NO_FILTER = "none"  # what lm-eval calls answers as they are
_ANSWER_TYPES = ("multiple_choice", "loglikelihood", "loglikelihood_rolling")
# Folders of lm-eval with the core tasks: to read all of its 15,000 files takes seconds.
_FOLDERS = {"hellaswag", "piqa", "arc", "lambada", "sciq", "winogrande", "blimp", "logiqa"}


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A task to score, with its data."""

    name: str
    parts: Mapping[str, Any]  # lm-eval's tasks by their names: one, or those of a group
    version: str
    harness: str
    characters: int  # of its questions: about how much work it is
    file: str | None = None  # that a user wrote


def task_names(typed: str | None) -> list[str]:
    """The tasks that --tasks names; the core tasks without it."""
    names: list[str] = []
    for name in (typed or CORE_TASKS).split(","):
        names += [each.task for each in CORE] if name.strip() == CORE_TASKS else [name.strip()]
    if not all(names):
        raise UsageError(
            f"--tasks {typed} has an empty name",
            why="tasks are named with commas between them",
            fix=f"--tasks {','.join(filter(None, names)) or CORE_TASKS}",
        )
    return list(dict.fromkeys(names))


def load_tasks(names: Sequence[str], *, command: str, download: bool) -> list[Asked]:
    """The tasks with their data; ConfigError for an unknown name, MachineError for data that is not here.

    `command` is what the user typed, without --download.
    """
    extra("lm_eval", purpose=_PURPOSE, brought_by="eval")
    with _quiet(), _hub(download=download):
        return [
            _from_file(Path(expanded(name)))
            if is_task_file(name)
            else _packaged(name, command=command, download=download)
            for name in names
        ]


def score_task(
    opened: Opened, asked: Asked, *, limit: int | None, on_progress: Callable[[float], None] = lambda share: None
) -> TaskScore:
    """What the model answers to a task's questions; `on_progress` hears the share that is done."""
    from onecard.inputs.harness_model import Model

    evaluator = extra("lm_eval.evaluator", purpose=_PURPOSE, brought_by="eval")
    try:
        with _quiet():
            found = evaluator.evaluate(
                lm=Model(opened, on_progress=on_progress),
                task_dict={"tasks": dict(asked.parts), "groups": {}, "group_map": {}},
                limit=limit,
                bootstrap_iters=0,  # the errors are ours: lm-eval draws 100,000 samples for some
                log_samples=True,
            )
        return _score(opened, asked, found, limit=limit)
    except (OnecardError, OSError):
        raise
    except Exception as problem:
        if asked.file is None or is_out_of_memory(problem):
            raise
        raise _not_asked(asked.file, problem) from problem  # a question whose answer is 0.5, say


# tasks


def _from_file(path: Path) -> Asked:
    file = read_task_file(path)
    datasets = extra("datasets", purpose=_PURPOSE, brought_by="eval")
    task = extra("lm_eval.api.task", purpose=_PURPOSE, brought_by="eval")
    try:
        table = datasets.table.InMemoryTable.from_pylist(file.questions)
        questions = datasets.Dataset(table, fingerprint=file.sha256[:16])  # named: or all of it is pickled for a name
        made = task.ConfigurableTask(config={**file.config, "custom_dataset": lambda **_: {"test": questions}})
    except Exception as problem:  # whatever lm-eval or a template raises about what the user wrote
        raise _not_asked(str(path), problem) from problem
    return _asked(
        file.config["task"],
        [made],
        version=f"{file.config['metadata']['version']} {file.sha256[:16]}".strip(),
        file=str(path),
    )


def _packaged(name: str, *, command: str, download: bool) -> Asked:
    """A task, a tag or a group that comes with lm-eval."""
    manager = _manager(everything=benchmark(name) is None)
    if name not in manager.all_tasks:
        near = nearest(name, manager.all_tasks)
        raise UsageError(
            f"lm-eval has no task {name}",
            why=f"nor is it a task file; --tasks {CORE_TASKS} stands for {', '.join(each.task for each in CORE)}",
            fix=f"--tasks {near}" if near else f"--tasks {CORE_TASKS}",
            name="unknown-task",
        )
    try:
        found = manager.load([name])["tasks"].values()
    except Exception as problem:
        raise (_not_fetched(name, problem) if download else _no_data(name, problem, command)) from problem
    for task in found:
        if task.OUTPUT_TYPE not in _ANSWER_TYPES or getattr(task, "UNSAFE_CODE", False):
            raise UsageError(
                f"onecard does not score {name}",
                why="its answers are to be written, or run as programs; onecard scores given answers by likelihood",
                fix=f"--tasks {CORE_TASKS}, or another task of multiple choice",
                name="not-scored",
            )
    versions = {str(task.VERSION) for task in found}
    return _asked(name, list(found), version=versions.pop() if len(versions) == 1 else "")


def _manager(*, everything: bool) -> Any:
    tasks = extra("lm_eval.tasks", purpose=_PURPOSE, brought_by="eval")
    if everything:
        return tasks.TaskManager()
    here = Path(tasks.__file__).parent
    return tasks.TaskManager(include_path=[str(here / folder) for folder in sorted(_FOLDERS)], include_defaults=False)


def _asked(name: str, parts: Sequence[Any], *, version: str, file: str | None = None) -> Asked:
    for part in parts:
        if part.config.num_fewshot is None:
            part.set_config(key="num_fewshot", value=0)
        part.set_fewshot_seed(seed=1234)  # lm-eval's own
    return Asked(
        name=name,
        parts={part.config.task: part for part in parts},
        version=version,
        harness=f"lm-eval {version_of('lm_eval')}",
        characters=sum(_characters(part) for part in parts),
        file=file,
    )


def _characters(part: Any) -> int:
    """About how long a task's questions are: that of its first hundred, times their number."""
    docs = part.eval_docs
    first = [len(str(docs[place])) for place in range(min(100, len(docs)))]
    return round(fmean(first) * len(docs)) if first else 0


# scores


def _score(opened: Opened, asked: Asked, found: Mapping[str, Any], *, limit: int | None) -> TaskScore:
    """A group's score is the mean of its parts, as lm-eval's groups of equal parts have it."""
    samples: dict[str, list[dict[str, Any]]] = {part: found["samples"][part] for part in asked.parts}
    metrics: dict[str, tuple[float, float | None]] = {}
    names = [key for part in asked.parts for key in found["results"][part] if key.endswith(f",{_NO_FILTER}")]
    for key in dict.fromkeys(names):
        metric = key.partition(",")[0]
        each = [_metric(asked.parts[part], metric, found["results"][part], samples[part]) for part in asked.parts]
        if metric.endswith("_stderr") or any(value is None for value, _ in each):
            continue
        values, errors = [value for value, _ in each if value is not None], [error for _, error in each]
        known = [error for error in errors if error is not None]
        error = math.hypot(*known) / len(each) if len(known) == len(each) else None
        if math.isfinite(value := fmean(values)):
            metrics[metric] = (value, error if error is None or math.isfinite(error) else None)
    if not metrics:
        raise ConfigError(
            f"{asked.name} gave no score",
            why="lm-eval's metrics of it are not numbers of answers to questions",
            fix=f"--tasks {CORE_TASKS}",
            name="no-score",
        )
    known_as = benchmark(asked.name)
    best = known_as.metric if known_as and known_as.metric in metrics else None
    main = best or next((metric for metric in ("acc_norm", "acc") if metric in metrics), next(iter(metrics)))
    rows = [row for part in asked.parts for row in samples[part]]
    return TaskScore(
        step=opened.step,
        task=asked.name,
        metric=main,
        metrics=metrics,
        chance=_chance(asked, rows) if main.startswith("acc") else None,
        questions=len(rows),
        questions_sha256=_digest(rows),
        limit=limit,
        version=asked.version,
        harness=asked.harness,
        weights=opened.weights,
        right=packed([float(row[main]) for row in rows]) if main.startswith("acc") else "",
    )


def _metric(
    part: Any, metric: str, results: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> tuple[float | None, float | None]:
    """(a metric of a part, its standard error over the questions, where it is known)."""
    value = results.get(f"{metric},{_NO_FILTER}")
    if not isinstance(value, int | float):
        return None, None
    each = [row.get(metric) for row in rows]
    if len(each) < 2 or not all(isinstance(one, int | float) for one in each):
        return float(value), None
    aggregation = getattr(part.aggregation().get(metric), "__name__", "")
    error = stdev([float(row[metric]) for row in rows]) / math.sqrt(len(each))
    if aggregation == "perplexity":  # exp of the mean: to first order
        return float(value), float(value) * error
    return float(value), error if aggregation == "mean" else None


def _chance(asked: Asked, rows: Sequence[Mapping[str, Any]]) -> float | None:
    """What guessing gets: one of the answers that a question offers; nothing where it offers none."""
    kinds = {part.OUTPUT_TYPE for part in asked.parts.values()}
    if kinds == {"loglikelihood"}:
        return 0.0
    if kinds != {"multiple_choice"} or any("acc_mutual_info" in row["metrics"] for row in rows):
        return None
    return fmean(1 / len(row["arguments"]) for row in rows)


def _digest(rows: Sequence[Mapping[str, Any]]) -> str:
    seen = hashlib.sha256()
    for row in rows:
        seen.update(json.dumps([row["arguments"], row["target"]], default=str).encode() + b"\n")
    return seen.hexdigest()


# around lm-eval


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the progress bars and warnings of libraries: what a user must know is said by onecard."""
    loggers = [logging.getLogger(name) for name in ("lm_eval", "datasets", "huggingface_hub")]
    before = [logger.level for logger in loggers]
    datasets = extra("datasets", purpose=_PURPOSE, brought_by="eval")
    task = extra("lm_eval.api.task", purpose=_PURPOSE, brought_by="eval")
    bar = task.tqdm
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    datasets.disable_progress_bars()
    task.tqdm = lambda items, **_: items
    try:
        yield
    finally:
        task.tqdm = bar
        datasets.enable_progress_bars()
        for logger, level in zip(loggers, before, strict=True):
            logger.setLevel(level)


@contextmanager
def _hub(*, download: bool) -> Iterator[None]:
    """With Hugging Face's cache alone, unless `download`."""
    places = [
        extra("huggingface_hub.constants", purpose=_PURPOSE, brought_by="eval"),
        extra("datasets.config", purpose=_PURPOSE, brought_by="eval"),
    ]
    before = [place.HF_HUB_OFFLINE for place in places]
    for place in places:
        place.HF_HUB_OFFLINE = not download
    _forget_sessions()
    try:
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = value
        _forget_sessions()


def _forget_sessions() -> None:
    """Hugging Face's library decides when it makes a session whether that may reach the hub."""
    http = extra("huggingface_hub.utils", purpose=_PURPOSE, brought_by="eval")
    if hasattr(http, "close_session"):
        http.close_session()


def _no_data(name: str, problem: Exception, command: str) -> MachineError:
    return MachineError(
        f"the questions of {name} are not on this machine",
        why=f"its data set is not in Hugging Face's cache: {first_line(problem)[:200]}",
        fix=f"{command} --download   (fetches it once)",
        name="no-questions",
    )


def _not_fetched(name: str, problem: Exception) -> MachineError:
    return MachineError(
        f"the questions of {name} could not be fetched",
        why=f"Hugging Face's library says: {first_line(problem)[:200]}",
        fix="try again, or copy Hugging Face's cache (HF_HOME) from a machine that has them",
        name="no-questions",
    )


def _not_asked(name: str, problem: Exception) -> ConfigError:
    return ConfigError(
        f"the questions of {name} cannot be asked",
        why=f"lm-eval says: {first_line(problem)[:200]}",
        fix="compare the names in its templates with the fields of its questions",
        name="bad-task-file",
    )
