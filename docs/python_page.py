"""Writes the reference page of the Python names: signatures, docstrings, and the fields of the answers."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import onecard
from onecard.config.reader import comments_in
from onecard.doctor.compare import Comparison
from onecard.doctor.diagnose import Diagnosis
from onecard.paper.tape import Tape
from onecard.plan.plan import Plan

ANSWERS = (Plan, Diagnosis, Comparison, onecard.Run)
INTERNAL = frozenset({Tape})  # every allocation of a step, for drawing the timeline

INTRODUCTION = """\
# Python

Everything a program may import is in `onecard.__all__`. The functions take what the commands take (paths, card names,
config keys) and return the same answers as typed values. None of them imports torch.

```python
import onecard

plan = onecard.make_plan("train_fineweb.py", gpu="RTX 4070", batch_size=8)
if plan.fits is False:
    print(plan.fixes[0].patch)

run = onecard.load_run("runs/default")
run.to_pandas()[["loss", "val_loss"]].plot()

for diagnosis in onecard.diagnose("out/train.log", config="train_fineweb.py", gpu="RTX 4070"):
    print([finding.what for finding in diagnosis.findings])
```

A mistake that a user can fix raises an `onecard.OnecardError`. Its `what`, `why` and `fix` are the three lines that the
command prints, `name` is the kebab-case name, and `exit_code` is the command's exit code. `onecard.__version__` is the
version.

Below, a `Config` is the path of a nanoGPT file, a mapping of keys, or None. A `Source` is a path or a `Run`. An
`Amount` is a whole number of any type (`1e9`, one of numpy's) or text with a unit, as on the command line (`"8GiB"`,
`"10B"`). An unknown config key is refused, in a mapping as well as a keyword.
"""

PARTS = """\
## What the answers are made of

These types are parts of the answers; programs cannot import them. A `RunConfig` has the [config keys](config-keys.md)
as its fields.

"""


def python_page() -> str:
    """The page, in Markdown."""
    functions = ("make_plan", "diagnose", "compare_runs", "load_run")
    inside = _inside(ANSWERS)
    parts = [
        INTRODUCTION,
        *(_section(f"onecard.{name}", getattr(onecard, name)) for name in functions),
        *(_fields(kind, heading="##") for kind in ANSWERS),
        _section("Run.to_pandas", onecard.Run.to_pandas),
        PARTS + "".join(f"- `{name}`: {values}\n" for name, values in _named_types((*ANSWERS, *inside)).items()),
        *(_fields(kind, heading="###") for kind in inside),
    ]
    return "\n".join(parts)


def _section(name: str, thing: Callable[..., Any]) -> str:
    text, _, example = inspect.cleandoc(thing.__doc__ or "").partition(">>> ")
    lines = [f"## `{name}`", "", "```python", _signature(name, thing), "```", "", text.strip(), ""]
    if example:
        lines += ["```pycon", *(f">>> {example}".replace("  # doctest: +SKIP", "").splitlines()), "```", ""]
    return "\n".join(lines)


def _signature(name: str, thing: Callable[..., Any]) -> str:
    """The call as in the source, with one parameter per line."""
    found = inspect.signature(thing)
    lines, keyword_only = [], False
    for parameter in found.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only and "*" not in "".join(lines):
            lines.append("    *,")
        keyword_only = keyword_only or parameter.kind is parameter.KEYWORD_ONLY
        if parameter.name != "self":
            lines.append(f"    {_parameter(parameter)},")
    inside = "\n" + "\n".join(lines) + "\n" if lines else ""
    return f"{name}({inside}) -> {found.return_annotation}"


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{stars}{parameter.name}: {parameter.annotation}{default}"


def _fields(kind: type, *, heading: str) -> str:
    """The section of a dataclass: its docstring, and each field, property and method with its description."""
    name = f"onecard.{kind.__name__}" if kind.__name__ in onecard.__all__ else kind.__name__
    lines = [f"- `{member}`: {said}" if said else f"- `{member}`" for member, said in _members(kind)]
    return "\n".join([f"{heading} `{name}`", "", inspect.getdoc(kind) or "", "", *lines, ""])


def _members(kind: type) -> Iterator[tuple[str, str]]:
    """Every public member as a program reads it, and the comment or docstring next to it.

    If a field of an answer has no comment, the docstring of its type is used.
    """
    comments, hints = _comments(kind), typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if not field.name.startswith("_"):
            of_type = [_first_line(each) for each in _dataclasses_in(hints[field.name]) if kind in ANSWERS]
            yield f"{field.name}: {field.type}", comments.get(field.name) or "; ".join(of_type)
    for name, member in vars(kind).items():
        function = getattr(member, "func", None) or getattr(member, "fget", None) or member
        if name.startswith("_") or not inspect.isfunction(function):
            continue
        found = inspect.signature(function)
        given = ", ".join(_parameter(each) for each in found.parameters.values() if each.name != "self")
        called = f"({given}) ->" if function is member else ":"
        yield f"{name}{called} {found.return_annotation}", _first_line(function)


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def _comments(kind: type) -> dict[str, str]:
    """The comments next to the fields of a class, by field."""
    source = textwrap.dedent(inspect.getsource(kind))
    (defined,) = ast.parse(source).body
    assert isinstance(defined, ast.ClassDef)
    said = comments_in(source)
    return {
        line.target.id: said[line.lineno]
        for line in defined.body
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.lineno in said
    }


def _inside(kinds: tuple[type, ...]) -> list[type]:
    """The dataclasses in the fields of these, and in the fields of those, in the order of first use."""
    found = dict.fromkeys(kinds)
    pending = list(kinds)
    while pending:
        hints = typing.get_type_hints(kind := pending.pop(0))
        for field in dataclasses.fields(kind):
            new = [each for each in _dataclasses_in(hints[field.name]) if each not in found and each not in INTERNAL]
            found |= dict.fromkeys(new)
            pending += new
    return [kind for kind in found if kind not in kinds]


def _named_types(kinds: tuple[type, ...]) -> dict[str, str]:
    """The type names in fields that mean one of several values or types, with these values or types."""
    found: dict[str, str] = {}
    for kind in kinds:
        for word in re.findall(r"\w+", " ".join(str(field.type) for field in dataclasses.fields(kind))):
            named = vars(sys.modules[kind.__module__]).get(word)
            if typing.get_origin(named) in (typing.Literal, types.UnionType, typing.Union):
                found[word] = " | ".join(getattr(each, "__name__", repr(each)) for each in typing.get_args(named))
    return dict(sorted(found.items()))


def _dataclasses_in(hint: Any) -> Iterator[type]:
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        yield hint
    for inner in typing.get_args(hint):
        yield from _dataclasses_in(inner)
