"""A task file of lm-eval that a user wrote: read as data. Nothing in it is run.

lm-eval's own loader imports Python that such a file names, and its templates can call anything. Here a file may only
name the fields of its questions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onecard.data.extras import extra
from onecard.errors import ConfigError, first_line
from onecard.opening import cannot_read, open_file, pieces, read_file
from onecard.untrusted_json import BadJson, mapping, parsed
from onecard.visible import visible

_MOST_BYTES = 64 * 1024  # of a task file
_LONGEST_BYTES = 1024 * 1024  # of a question
_MOST_QUESTIONS = 1_000_000
_METRICS = {"acc": "mean", "acc_norm": "mean", "perplexity": "perplexity"}
_OF_TYPE = {"multiple_choice": ("acc", "acc_norm"), "loglikelihood": ("acc", "perplexity")}
_SPLITS = ("test_split", "validation_split")
_TEXTS = ("doc_to_text", "doc_to_target", "doc_to_choice")
_KEYS = {
    *("task", "dataset_path", "dataset_kwargs", "output_type", "metric_list", "metadata", "num_fewshot"),
    *("target_delimiter", "description", "tag", *_SPLITS, *_TEXTS),
}


@dataclass(frozen=True)
class TaskFile:
    """The settings of a task, and its questions."""

    config: Mapping[str, Any]  # as lm-eval takes it, without its data
    questions: list[dict[str, Any]]
    sha256: str  # of both


def is_task_file(name: str) -> bool:
    """Whether a name of --tasks means a file: no task of lm-eval's has such a name."""
    return name.endswith((".yaml", ".yml")) or "/" in name


def read_task_file(path: Path) -> TaskFile:
    """The task in a YAML file, with its questions from a file of JSON lines beside it."""
    yaml = extra("yaml", purpose="a task file", brought_by="eval")
    try:
        raw = read_file(path, most_bytes=_MOST_BYTES)
        said = yaml.load(raw, Loader=_loader(yaml))
    except OSError as problem:
        why = f"it cannot be read: {problem.strerror or problem}"
        raise cannot_read(path, problem) or _bad(path, why) from problem
    except yaml.constructor.ConstructorError as problem:
        raise _runs_code(path, str(problem.problem)) from problem
    except _Reused as problem:
        raise _bad(path, "it uses a part of itself again (*name): write it out") from problem
    except Exception as problem:  # of a date, a number or bytes that are none, the library raises nearly anything
        raise _bad(path, f"it is not YAML: {first_line(problem)}") from problem
    if not isinstance(said, dict):
        raise _bad(path, "it is not a list of names with values")
    config = _checked(path, said)
    questions, content = _questions(path, said)
    return TaskFile(config, questions, hashlib.sha256(raw + content).hexdigest())


class _Reused(Exception):
    """Some hundred bytes that name each other are endless when written out."""


def _loader(yaml: Any) -> Any:
    """YAML's reader of plain values, without aliases."""

    class Plain(yaml.SafeLoader):  # type: ignore[misc]  # the module is untyped
        def compose_node(self, parent: object, index: object) -> object:
            if self.check_event(yaml.AliasEvent):
                raise _Reused
            return super().compose_node(parent, index)

    return Plain


def _checked(path: Path, said: Mapping[Any, Any]) -> dict[str, Any]:
    if unknown := [str(key) for key in said if key not in _KEYS]:
        raise _bad(path, f"onecard reads no {unknown[0]} from a task file, as it may run code or download")
    if not isinstance(said.get("task"), str) or not said["task"].strip():
        raise _bad(path, "it has no task, the name of the task")
    kind = said.get("output_type", "multiple_choice")
    if not isinstance(kind, str) or kind not in _OF_TYPE:
        raise _bad(path, f"output_type is {kind}, and answers are scored in multiple_choice and loglikelihood")
    for key in ("doc_to_text", "doc_to_target", *(["doc_to_choice"] if kind == "multiple_choice" else [])):
        if key not in said:
            raise _bad(path, f"it has no {key}")
    for key in _TEXTS:
        _check_template(path, key, said.get(key))
    for key in ("target_delimiter", "description"):
        if not isinstance(said.get(key, ""), str):
            raise _bad(path, f"{key} is not text")
        if "{" in said.get(key, ""):
            raise _bad(path, f"{key} is a template")
    if said.get("num_fewshot", 0) != 0:
        raise _bad(path, "num_fewshot is not 0")
    metadata = said.get("metadata", {})
    version = metadata.get("version", "") if isinstance(metadata, dict) else ""
    return {
        "task": said["task"].strip(),
        "output_type": kind,
        "test_split": "test",
        "num_fewshot": 0,
        "metric_list": _metrics(path, kind, said.get("metric_list")),
        "metadata": {"version": str(version)},
        **{key: said[key] for key in (*_TEXTS, "target_delimiter", "description") if key in said},
    }


def _metrics(path: Path, kind: str, said: object) -> list[dict[str, Any]]:
    names = list(_OF_TYPE[kind])
    if said is not None:
        if not isinstance(said, list) or not all(isinstance(each, dict) for each in said):
            raise _bad(path, "metric_list is not a list of metrics")
        names = [each.get("metric") for each in said]
        for each in said:
            name = each.get("metric")
            if (
                not isinstance(name, str)
                or name not in _OF_TYPE[kind]
                or each.get("aggregation", _METRICS[name]) != _METRICS[name]
            ):
                raise _bad(path, f"its metrics may be {' and '.join(_OF_TYPE[kind])}, with their usual aggregation")
    return [{"metric": name, "aggregation": _METRICS[name], "higher_is_better": name != "perplexity"} for name in names]


def _check_template(path: Path, key: str, value: object) -> None:
    """ConfigError where a template does more than name fields: Jinja's can call whatever Python has."""
    if isinstance(value, list):
        if not all(isinstance(each, str) for each in value):
            raise _bad(path, f"{key} is not a list of texts")
        return
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return
    if not isinstance(value, str):
        raise _bad(path, f"{key} is neither text nor a number")
    jinja = extra("jinja2", purpose="a task file", brought_by="eval")
    nodes = jinja.nodes
    allowed = (nodes.Output, nodes.TemplateData, nodes.Name, nodes.Const, nodes.List, nodes.Getitem)
    try:
        template = jinja.Environment(autoescape=False).parse(value)
    except Exception as problem:  # of a number of 9,000 digits, no error of its own
        raise _bad(path, f"{key} is not a template: {first_line(problem)}") from problem
    for node in template.find_all(nodes.Node):
        if not isinstance(node, allowed):
            raise _runs_code(path, f"{key} has {type(node).__name__}")
        if isinstance(node, nodes.Getitem) and not isinstance(node.arg, nodes.Const):
            raise _runs_code(path, f"{key} computes an index")


def _questions(path: Path, said: Mapping[str, Any]) -> tuple[list[dict[str, Any]], bytes]:
    """The questions, and what they were read from."""
    kwargs = said.get("dataset_kwargs")
    files = kwargs.get("data_files") if isinstance(kwargs, dict) else None
    if isinstance(files, dict):
        files = files.get(next((said[split] for split in _SPLITS if split in said), "test"))
    if said.get("dataset_path") != "json" or not isinstance(files, str):
        raise _bad(path, "its questions are not in a file beside it: dataset_path: json, dataset_kwargs: data_files")
    name = Path(files)
    if name.is_absolute() or ".." in name.parts:
        raise _bad(path, f"its questions are in {files}, not beside it")
    place = path.parent / name
    found: list[dict[str, Any]] = []
    content = hashlib.sha256()
    try:
        with open_file(place) as file:
            for number, line in enumerate(pieces(file, longest_bytes=_LONGEST_BYTES), start=1):
                content.update(line)
                if not line.strip():
                    continue
                try:
                    found.append(mapping(parsed(line)))
                except BadJson as problem:
                    raise _bad(path, f"line {number} of {files}: {problem}") from problem
                if len(found) > _MOST_QUESTIONS:
                    raise _bad(path, f"{files} has more than {_MOST_QUESTIONS:,} questions")
    except (OSError, ValueError) as problem:  # ValueError: a name with a NUL
        why = f"{files} cannot be read: {getattr(problem, 'strerror', None) or problem}"
        raise cannot_read(place, problem) or _bad(path, why) from problem
    if not found:
        raise _bad(path, f"{files} has no question")
    return found, content.digest()


def _bad(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{visible(str(path))} is not a task that onecard can ask",
        why=visible(why)[:300],
        fix="docs/how-to/evaluate.md shows a task file",
        name="bad-task-file",
    )


def _runs_code(path: Path, why: str) -> ConfigError:
    return ConfigError(
        f"{visible(str(path))} would run code",
        why=f"{visible(why)[:200]}; of task files only lm-eval's own may run Python",
        fix="name fields only, as in {{question}} or {{choices[0]}}, and prepare the rest in the file of questions",
        name="task-runs-code",
    )
