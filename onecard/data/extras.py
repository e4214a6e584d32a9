"""Packages that only some kinds of data and files need, imported on demand."""

from __future__ import annotations

import importlib
from typing import Any

from onecard.errors import MachineError


class _Numpy:
    """NumPy, imported when it is first used: how large data is can be seen without it."""

    def __getattr__(self, name: str) -> Any:
        return getattr(extra("numpy", purpose="reading tokens"), name)


numpy = _Numpy()


def extra(package: str, *, purpose: str, brought_by: str = "data") -> Any:
    """The module `package`, untyped; MachineError, naming the extra of ours that has it, if it is not installed."""
    try:
        return importlib.import_module(package)
    except ImportError as problem:
        raise MachineError(
            f"{purpose} needs {package}",
            why=f"{package} cannot be imported here",
            fix=f"pip install 'onecard[{brought_by}]'",
            name="missing-package",
        ) from problem
