"""Packages that only some kinds of data need, imported on demand."""

from __future__ import annotations

import importlib
from typing import Any

from onecard.errors import MachineError


def extra(package: str, *, purpose: str) -> Any:
    """The module `package`, untyped; MachineError if it is not installed."""
    try:
        return importlib.import_module(package)
    except ImportError as problem:
        raise MachineError(
            f"{purpose} needs {package}",
            why=f"{package} cannot be imported here",
            fix="pip install 'onecard[data]'",
            name="missing-package",
        ) from problem
