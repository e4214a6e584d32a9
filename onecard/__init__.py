"""onecard: plan, train and understand a GPT on the one graphics card you have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onecard.plan.make import make_plan
    from onecard.runs.folder import load_run

__all__ = ["__version__", "load_run", "make_plan"]
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:  # `import onecard` stays light: pydantic loads with the first plan
    if name == "make_plan":
        from onecard.plan.make import make_plan

        return make_plan
    if name == "load_run":
        from onecard.runs.folder import load_run

        return load_run
    raise AttributeError(f"module 'onecard' has no attribute {name!r}")
