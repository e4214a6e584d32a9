"""onecard: plan, train and understand a GPT on the one graphics card you have."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onecard.api import compare_runs, diagnose, make_plan
    from onecard.errors import OnecardError
    from onecard.runs.folder import Run, load_run

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


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'onecard' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
