"""Config files near a path, for a person who named none, or one that is not there or is not a config."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path
from shlex import quote

from onecard.config.names import nearest_file
from onecard.errors import OnecardError
from onecard.inputs.text import THERE, read_text

CONFIG_FOLDERS = ("config", "configs")  # where nanoGPT, we and most people keep them
MOST_READ = 100  # files of a folder
MOST_SHOWN = 3
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)  # as in model.py and train.py


def is_config(text: str) -> bool:
    """Whether a Python text is a config and not a program: it sets config keys, runs nothing and defines nothing."""
    from onecard.config.reader import NotAConfig, read_config
    from onecard.config.schema import KEYS

    try:
        found = read_config(text, {})
    except (NotAConfig, OnecardError):
        return False
    defines = any(isinstance(statement, _DEFINITIONS) for statement in ast.parse(text).body)
    return not KEYS.keys().isdisjoint(found.lines) and not found.code and not defines


def configs_near(path: Path) -> list[Path]:
    """Other config files beside `path`, in config/ or configs/ there, and the same from the working folder."""
    folders = [place / name for place in (path.parent, Path()) for name in (*CONFIG_FOLDERS, ".")]
    return [file for file in python_files(folders) if file != path and _holds_config(file)]


def python_files(folders: Iterable[Path]) -> list[Path]:
    """The Python files in these folders, each once; folders that cannot be read have none."""
    found: dict[Path, None] = {}
    for folder in folders:
        try:
            found |= dict.fromkeys(sorted(folder.glob("*.py"))[:MOST_READ])
        except (OSError, ValueError):
            continue
    return list(found)


def _holds_config(file: Path) -> bool:
    try:
        return is_config(read_text(file))
    except OnecardError:
        return False


def nearby_config(path: Path, *, otherwise: str) -> str:
    """What to type instead of a config that is not there: the one that was probably meant, or those nearby."""
    configs = configs_near(path)
    meant = nearest_file(path.name, [file.name for file in configs])
    if meant:
        found = next(file for file in configs if file.name == meant)
        return f"did you mean {quote(str(found))} ?"
    if not configs:
        return otherwise
    shown = ", ".join(quote(str(file)) for file in configs[:MOST_SHOWN])
    more = f" and {len(configs) - MOST_SHOWN} more" if len(configs) > MOST_SHOWN else ""
    instead = otherwise.removeprefix(THERE).removeprefix(", or ")
    return f"name a config file: {shown}{more}" + (f"; or {instead}" if instead else "")
