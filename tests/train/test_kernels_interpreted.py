"""All Triton kernels run in Triton's interpreter, on any Linux machine: right numbers, no address outside a tensor.

A process of its own runs the files test_*_kernels.py again, with TRITON_INTERPRET=1, which must be set before Triton is
imported, and torch may have imported it here. In this process the same tests check plain torch.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "onecard"
TESTS = sorted(Path(__file__).parent.glob("test_*_kernels.py"))

Seen = dict[str, dict[str, list[bool]]]  # as tests/interpreter.py writes them: "module.function" -> argument -> values


def kernels(source: str) -> Iterator[ast.FunctionDef]:
    """The functions of a module that Triton compiles."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            decorators = (each.func if isinstance(each, ast.Call) else each for each in node.decorator_list)
            if any(ast.unparse(each).split(".")[-1] == "jit" for each in decorators):
                yield node


def switches(kernel: ast.FunctionDef) -> set[str]:
    """The constexpr arguments that choose what is compiled: those of `if RESIDUAL:`, `if A and not B:`."""
    constants = {
        each.arg for each in kernel.args.args if each.annotation and "constexpr" in ast.unparse(each.annotation)
    }
    chosen: set[str] = set()
    for node in ast.walk(kernel):
        if isinstance(node, ast.If | ast.IfExp):
            parts = list(ast.walk(node.test))
            names = {part.id for part in parts if isinstance(part, ast.Name)}
            plain = all(
                isinstance(part, ast.Name | ast.BoolOp | ast.UnaryOp | ast.boolop | ast.Not | ast.Load)
                for part in parts
            )
            chosen |= names if plain and names <= constants else set()
    return chosen


def never_ran(module: str, source: str, launches: Seen) -> list[str]:
    """What of a module's kernels did not run: whole functions, or a switch that was only on or only off."""
    missing = []
    for kernel in kernels(source):
        name = f"{module}.{kernel.name}"
        if name not in launches:
            missing.append(name)
            continue
        for switch in sorted(switches(kernel)):
            values = launches[name].get(switch, [])
            missing += [f"{name} with {switch} {'on' if on else 'off'}" for on in (True, False) if on not in values]
    return missing


def run_interpreted(*tests: Path, launches: Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment |= {"TRITON_INTERPRET": "1", "ONECARD_LAUNCHES": str(launches)}
    command = [sys.executable, "-m", "pytest", "-p", "tests.interpreter", "-m", "not gpu", *map(str, tests)]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)


for_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Triton is for Linux")


@pytest.fixture(scope="module")
def interpreted(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], Any]:
    """All tests of kernels in the interpreter, and what they started."""
    launches = tmp_path_factory.mktemp("launches") / "launches.json"
    done = run_interpreted(*TESTS, launches=launches)
    return done, json.loads(launches.read_text())


@pytest.mark.slow
@for_linux
def test_every_kernel_and_every_branch_of_it_is_right_in_tritons_interpreter(interpreted: Any) -> None:
    done, launches = interpreted
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    launches = launches["seen"]
    missing = []
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        missing += never_ran(module, path.read_text(), launches)
    assert not missing, "write tests for these in tests/train/test_*_kernels.py:\n" + "\n".join(missing)


def compiled(kernel: Any, types: dict[str, str], constants: dict[str, Any]) -> None:
    """Compile a kernel for a card (compute capability 8.6) as far as PTX; none is needed for that."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource, compile

    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    compile(ASTSource(fn=kernel, signature=signature, constexprs=constants), target=GPUTarget("cuda", 86, 32))


@pytest.mark.slow
@for_linux
def test_every_kernel_compiles_for_a_card_as_the_tests_start_it(interpreted: Any) -> None:
    """The interpreter runs Python that the compiler refuses, such as a function with results of two types."""
    failed = []
    for each in interpreted[1]["started"]:
        if "*fp16" in each["types"].values():
            continue  # as with bfloat16, which cards of 8.6 have
        module, _, name = each["kernel"].rpartition(".")
        try:
            compiled(getattr(import_module(module), name), each["types"], each["constants"])
        except Exception as error:
            failed.append(f"{each}: {error!s:.500}")
    assert not failed, "\n".join(failed)
    assert len(interpreted[1]["started"]) > 20


def test_what_only_the_interpreter_runs_does_not_compile() -> None:
    triton = pytest.importorskip("triton", reason="Triton is for Linux")
    language = triton.language

    @triton.jit
    def _twice(x, y, CAP: language.constexpr):  # type: ignore[no-untyped-def]
        if CAP:
            language.store(y, language.load(x) * CAP)

    for cap, compiles in ((2, True), (2.0, False)):
        failure = None
        try:
            compiled(_twice, {"x": "*fp32", "y": "*fp32"}, {"CAP": cap})
        except Exception as error:
            failure = str(error)
        assert (failure is None) == compiles


STRAY = """
import torch, triton, triton.language as tl

@triton.jit
def _copy(x, y, count, IN: tl.constexpr, OUT: tl.constexpr):
    at = tl.arange(0, 8)
    value = tl.load(x + at, mask=(at < count) | IN)
    tl.store(y + at, value, mask=(at < count) | OUT)

def test_within():
    _copy[(1,)](torch.ones(5), torch.ones(5), 5, IN=False, OUT=False)

def test_stray_load():
    _copy[(1,)](torch.ones(5), torch.ones(5), 5, IN=True, OUT=False)

def test_stray_store():
    _copy[(1,)](torch.ones(5), torch.ones(5), 5, IN=False, OUT=True)
"""


@pytest.mark.slow
@for_linux
def test_a_load_or_store_outside_a_kernels_tensors_fails_its_test(tmp_path: Path) -> None:
    (tmp_path / "test_stray_kernels.py").write_text(STRAY)
    done = run_interpreted(tmp_path / "test_stray_kernels.py", launches=tmp_path / "launches.json")
    assert "2 failed, 1 passed" in done.stdout, done.stdout[-3000:]
    assert "3 of 8 addresses are outside the kernel's tensors" in done.stdout
    assert json.loads((tmp_path / "launches.json").read_text())["seen"] == {
        "test_stray_kernels._copy": {"count": [True], "IN": [False, True], "OUT": [False, True]}
    }


MADE_UP = """
@triton.jit
def _shift(x):
    return x + 1

@triton.autotune(configs=[])
@triton.jit
def _double(x, N: tl.constexpr, AGAIN: tl.constexpr, HALF: tl.constexpr):
    if AGAIN and not HALF:
        x += 1
    if x == N:
        x += 2
"""


def test_a_kernel_or_a_branch_without_a_test_is_named() -> None:
    both = [False, True]
    whole: Seen = {"m._shift": {}, "m._double": {"N": [True], "AGAIN": both, "HALF": both}}
    assert never_ran("m", MADE_UP, whole) == []
    assert never_ran("m", MADE_UP, {"m._double": whole["m._double"]}) == ["m._shift"]
    once = whole | {"m._double": {"N": [True], "AGAIN": [True], "HALF": both}}
    assert never_ran("m", MADE_UP, once) == ["m._double with AGAIN off"]
    names = [kernel.name for path in PACKAGE.rglob("*.py") for kernel in kernels(path.read_text())]
    assert {"_rows", "_norm", "_gelu", "exp2"} <= set(names)
