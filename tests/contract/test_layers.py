"""Imports only point down, torch stays in train/ and click in cli/, pure packages stay pure, plans name no options."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = {
    "onecard.errors": 0,
    "onecard.files": 0,
    "onecard.findings": 0,
    "onecard.opening": 0,
    "onecard.units": 0,
    "onecard.untrusted_json": 0,
    "onecard.untrusted_pickle": 0,
    "onecard.visible": 0,
    "onecard.machine": 1,
    "onecard.config": 1,
    "onecard.paper": 2,
    "onecard.models": 3,
    "onecard.plan": 4,
    "onecard.runs": 5,
    "onecard.doctor": 6,
    "onecard.data": 7,
    "onecard.train": 8,
    "onecard.report": 9,
    "onecard.inputs": 10,
    "onecard.api": 11,  # below the command line, which it does without
    "onecard.ui": 12,
    "onecard.cli": 13,
    "onecard.__main__": 13,
    "onecard": 13,  # the package itself re-exports from below, lazily
}
PURE = ("onecard.paper", "onecard.models", "onecard.plan", "onecard.doctor")
_OPTION = re.compile(r"--[a-z]")
IMPURE_NAMES = {"open", "print", "input", "exec", "eval"}
IMPURE_MODULES = {"os", "time", "sys", "pathlib", "subprocess", "socket", "datetime", "random"}


def layer(module: str) -> int | None:
    """The layer of a module, by its longest known prefix."""
    parts = module.split(".")
    if parts[0] != "onecard":
        return None
    for length in range(len(parts), 1, -1):
        if (known := LAYERS.get(".".join(parts[:length]))) is not None:
            return known
    return LAYERS["onecard"] if len(parts) == 1 else -1


def violations(module: str, source: str) -> Iterator[str]:
    """Every way in which a module breaks the architecture."""
    own = layer(module)
    assert own is not None
    if own == -1:
        yield f"{module} has no layer: give it one in this test and in docs/architecture.md"
    pure = module.startswith(PURE)
    for node in ast.walk(ast.parse(source)):
        for name in imported(node):
            target = layer(name)
            if target is not None and target > own:
                yield f"{module}:{node.lineno} imports {name}, which is above it"  # type: ignore[attr-defined]
            top = name.split(".")[0]
            if top == "torch" and not module.startswith("onecard.train"):
                yield f"{module} imports torch"
            if top == "click" and not module.startswith("onecard.cli"):
                yield f"{module} imports click"
            if pure and top in IMPURE_MODULES and not only_counts_references(node):
                yield f"{module} is pure and imports {top}"
        if module.startswith("onecard.plan") and isinstance(node, ast.Constant) and _OPTION.search(str(node.value)):
            yield f"{module}:{node.lineno} says {node.value!r}: a plan speaks of settings, not of what is typed"
        if pure and isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_NAMES:
            yield f"{module}:{node.lineno} is pure and calls {node.func.id}"


def only_counts_references(node: ast.AST) -> bool:
    """`from sys import getrefcount`: paper frees what Python frees."""
    return isinstance(node, ast.ImportFrom) and [alias.name for alias in node.names] == ["getrefcount"]


def imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module:
        if node.module == "onecard":
            return [f"onecard.{alias.name}" for alias in node.names]
        return [node.module]
    return []


def modules() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "onecard").rglob("*.py")):
        if path.name == "packaged_default.py":
            continue
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        yield name, path.read_text()


def test_the_package_keeps_its_layers() -> None:
    found = [problem for name, source in modules() for problem in violations(name, source)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("module", "source", "complaint"),
    [
        ("onecard.plan.x", "from onecard.cli.main import main", "above"),
        ("onecard.units", "from onecard import errors, plan", "above"),
        ("onecard.config.x", "import onecard.report", "above"),
        ("onecard.plan.x", "def f():\n    import torch", "torch"),
        ("onecard.report", "from torch import nn", "torch"),
        ("onecard.api", "def f():\n    from onecard.cli.plan import plan", "above"),
        ("onecard.inputs.x", "import onecard.api", "above"),
        ("onecard.inputs.x", "import click", "imports click"),
        ("onecard.api", "def f():\n    from click import Option", "imports click"),
        ("onecard.plan.x", "open('x')", "calls open"),
        ("onecard.doctor.x", "print('x')", "calls print"),
        ("onecard.plan.x", "import time", "imports time"),
        ("onecard.plan.x", "from os import environ", "imports os"),
        ("onecard.plan.x", "fix = '--dropout=0.0'", "speaks of settings"),
        ("onecard.plan.x", "fix = f'--batch_size={size}'", "speaks of settings"),
        ("onecard.paper.x", "from sys import getrefcount, stdout", "imports sys"),
        ("onecard.models.x", "import torch", "torch"),
        ("onecard.stray", "", "no layer"),
    ],
)
def test_the_checker_complains_of_a_bad_file(module: str, source: str, complaint: str) -> None:
    assert any(complaint in problem for problem in violations(module, source))


@pytest.mark.parametrize(
    "source", ["from onecard.config.schema import RunConfig", "from onecard import units", "import math"]
)
def test_the_checker_lets_a_good_file_pass(source: str) -> None:
    assert list(violations("onecard.plan.x", source)) == []
