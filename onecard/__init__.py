"""onecard: plan, train and understand a GPT on the one graphics card you have."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

TYPE_CHECKING = False  # as typing's: importing that takes longer than everything here, and Ctrl-C may come meanwhile
if TYPE_CHECKING:
    from typing import Any

    from onecard.api import compare_runs, diagnose, make_plan
    from onecard.errors import OnecardError
    from onecard.runs.folder import Run, load_run

    plan, doctor, compare = make_plan, diagnose, compare_runs  # for type checkers; see _CallablePackage

__all__ = ["OnecardError", "Run", "__version__", "compare_runs", "diagnose", "load_run", "make_plan"]
__version__ = "0.1.0"

# `import onecard` stays light: each name loads what it needs when it is first asked for.
_HOMES = {
    "OnecardError": "onecard.errors",
    "Run": "onecard.runs.folder",
    "compare_runs": "onecard.api",
    "diagnose": "onecard.api",
    "load_run": "onecard.runs.folder",
    "make_plan": "onecard.api",
}

# People also call the commands by their names. Some of these names are subpackages, too.
_CALLED = {"plan": "make_plan", "doctor": "diagnose", "compare": "compare_runs"}
_ONLY_COMMANDS = {
    "train": "training is a command, `onecard train CONFIG --key=value`; from Python: "
    'subprocess.run(["onecard", "train", "config.py"], check=True), then onecard.load_run("runs/NAME")',
    "sample": "sampling is a command, `onecard sample RUN --prompt TEXT`; from Python: "
    'subprocess.run(["onecard", "sample", "runs/NAME"], check=True)',
}


class _CallablePackage(ModuleType):
    """A subpackage with the name of a command: `onecard.plan("config.py")` is `onecard.make_plan("config.py")`."""

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        command = self.__name__.removeprefix("onecard.")
        if command in _ONLY_COMMANDS:
            raise TypeError(f"onecard.{command} cannot be called: {_ONLY_COMMANDS[command]}")
        return __getattr__(_CALLED[command])(*arguments, **keywords)


class _Package(ModuleType):
    """onecard itself: importing a subpackage sets it as an attribute here, and so makes it callable."""

    def __setattr__(self, name: str, value: object) -> None:
        if isinstance(value, ModuleType) and (name in _CALLED or name in _ONLY_COMMANDS):
            value.__class__ = _CallablePackage
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name in ("plan", "doctor"):
        return import_module(f"onecard.{name}")
    if name in _ONLY_COMMANDS:
        raise AttributeError(f"module 'onecard' has no function {name!r}: {_ONLY_COMMANDS[name]}")
    name = _CALLED.get(name, name)
    if name not in _HOMES:
        raise AttributeError(f"module 'onecard' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
