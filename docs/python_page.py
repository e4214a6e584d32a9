"""The reference page of the Python names, from their signatures and docstrings."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import onecard

INTRODUCTION = """\
# Python

Everything a program may import is in `onecard.__all__`. The functions give the answers of the commands as typed values
and take what the commands take: paths, card names, config keys. None of them imports torch.

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

What a user can mend is an `onecard.OnecardError`: `what`, `why` and `fix` are the three lines the command would print,
`name` the kebab-case name, `exit_code` the command's. `onecard.__version__` is the version.

Below, a `Config` is the path of a nanoGPT file, a mapping of keys, or None; a `Source` is a path or a `Run`.
"""


def python_page() -> str:
    """The page, in Markdown."""
    functions = ("make_plan", "diagnose", "compare_runs", "load_run")
    parts = [
        INTRODUCTION,
        *(_section(f"onecard.{name}", getattr(onecard, name)) for name in functions),
        _section("onecard.Run", onecard.Run, signature=False),
        _section("Run.to_pandas", onecard.Run.to_pandas),
    ]
    return "\n".join(parts)


def _section(name: str, thing: Callable[..., Any], *, signature: bool = True) -> str:
    text, _, example = inspect.cleandoc(thing.__doc__ or "").partition(">>> ")
    lines = [f"## `{name}`", ""]
    if signature:
        lines += ["```python", _signature(name, thing), "```", ""]
    lines += [text.strip(), ""]
    if example:
        lines += ["```pycon", *(f">>> {example}".replace("  # doctest: +SKIP", "").splitlines()), "```", ""]
    if thing is onecard.Run:
        lines += [f"- `{member}`: {said}" for member, said in _members(thing)] + [""]
    return "\n".join(lines)


def _signature(name: str, thing: Callable[..., Any]) -> str:
    """The call as in the source, one parameter a line."""
    found = inspect.signature(thing)
    lines, keyword_only = [], False
    for parameter in found.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and not keyword_only and "*" not in "".join(lines):
            lines.append("    *,")
        keyword_only = keyword_only or parameter.kind is parameter.KEYWORD_ONLY
        if parameter.name != "self":
            lines.append(f"    {parameter},".replace("'", ""))
    inside = "\n" + "\n".join(lines) + "\n" if lines else ""
    return f"{name}({inside}) -> {found.return_annotation}"


def _members(kind: type) -> list[tuple[str, str]]:
    """What a run has, and the first line of what is said about it."""
    found = [(name, f"{annotation}") for name, annotation in kind.__annotations__.items()]
    for name, member in vars(kind).items():
        if name.startswith("_") or name in kind.__annotations__ or name == "to_pandas":
            continue
        function = getattr(member, "func", None) or getattr(member, "fget", None) or member
        said = (inspect.getdoc(function) or "").partition("\n")[0]
        returned = getattr(function, "__annotations__", {}).get("return", "")
        found.append((name, f"{returned}. {said}" if said else f"{returned}"))
    return found
