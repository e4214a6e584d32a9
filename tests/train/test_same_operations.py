"""Models, passes and steps use only operations that torch and paper both have, called in the same way."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

import onecard.models
from onecard.paper.operations import PaperOperations
from onecard.train.operations import DeviceOperations

MODELS = Path(onecard.models.__file__).parent
SHARED = ("chunked_loss", "gpt2", "gpt2_passes", "nanochat", "nanochat_passes", "training", "written_out")


def operations_in(source: str) -> set[str]:
    """Names that are asked of `ops` or `self.ops`."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            asked = node.value
            if (isinstance(asked, ast.Name) and asked.id == "ops") or (
                isinstance(asked, ast.Attribute) and asked.attr == "ops"
            ):
                found.add(node.attr)
    return found


USED = sorted(set().union(*(operations_in((MODELS / f"{name}.py").read_text()) for name in SHARED)))


def differences(name: str, ours: type, paper: type) -> list[str]:
    """What keeps an operation of one from standing in for that of the other."""
    missing = [each.__name__ for each in (ours, paper) if not hasattr(each, name) and name != "autocast"]
    if missing:
        return [f"{owner} has no {name}" for owner in missing]
    if name == "autocast":  # of a device's precision; both take nothing
        return []
    both = [inspect.getattr_static(each, name) for each in (ours, paper)]
    if not all(callable(each) or isinstance(each, staticmethod) for each in both):
        return []
    keywords = [
        {p.name for p in inspect.signature(getattr(each, name)).parameters.values() if p.kind is p.KEYWORD_ONLY}
        for each in (ours, paper)
    ]
    return [] if keywords[0] == keywords[1] else [f"{name} takes {sorted(keywords[0])} and {sorted(keywords[1])}"]


@pytest.mark.parametrize("name", [name for name in USED if name not in ("set_first_weights", "draw_normal")])
def test_both_have_it(name: str) -> None:
    assert differences(name, DeviceOperations, PaperOperations) == []


def test_there_is_something_to_compare() -> None:
    assert {"linear", "multiply", "norm_backward", "zero_gradients", "mean_of_rows"} <= set(USED)


def test_the_checker_complains() -> None:
    class Other(PaperOperations):
        def recomputed(self, part, x):  # type: ignore[no-untyped-def, override]
            return part(x)

    assert differences("recomputed", DeviceOperations, Other)
    assert differences("made_up", DeviceOperations, PaperOperations)
    assert operations_in("def f(ops): self.ops.a(ops.b)") == {"a", "b"}
