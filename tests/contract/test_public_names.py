"""What a program may import, and nothing else: light to import, typed, documented with an example."""

import dataclasses
import inspect
import re
import subprocess
import sys
import types
import typing

import pytest

import onecard
import onecard.plan
from onecard.doctor.case import Case, Facts
from onecard.doctor.compare import Comparison
from onecard.doctor.diagnose import Diagnosis
from onecard.findings import Finding
from onecard.plan.memory.predict import Memory
from onecard.plan.plan import Plan, TrainerPlan
from onecard.plan.speed import Speed
from tests.contract.conftest import ROOT

NAMES = ["OnecardError", "Run", "__version__", "compare_runs", "diagnose", "load_run", "make_plan"]


def test_the_package_offers_what_the_contract_names() -> None:
    assert onecard.__all__ == NAMES
    for name in onecard.__all__:
        assert getattr(onecard, name) is not None
    assert set(NAMES) <= set(dir(onecard))


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="make_plans"):
        _ = onecard.make_plans  # type: ignore[attr-defined]


IMPORTS = [
    "",
    "import onecard.plan.plan, onecard.doctor",
    "from onecard import plan, doctor",
    "from onecard import api",
]


@pytest.mark.parametrize("before", IMPORTS)
def test_commands_are_python_names_too_whatever_was_imported_before(before: str) -> None:
    """`plan` and `doctor` are packages as well, which importing anything below them puts into onecard's namespace."""
    code = (
        f"{before}\nimport onecard\nplan = onecard.plan({{'n_layer': 2}}, gpu='none', batch_size=3)\n"
        "print(plan.config.n_layer, plan.config.batch_size, onecard.doctor(), onecard.compare.__name__)\n"
        "import onecard.plan.cards\nprint(len(onecard.plan.cards.known_cards()) > 9)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["2 3 [] compare_runs", "True"]


@pytest.mark.parametrize("command", ["train", "sample"])
def test_a_command_without_a_function_says_what_to_type(command: str) -> None:
    with pytest.raises((AttributeError, TypeError), match=f"is a command, `onecard {command} .*subprocess.run"):
        getattr(onecard, command)("config.py")


def test_the_training_package_cannot_be_called_and_says_what_to_type() -> None:
    pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")
    code = "import onecard.train\ntry:\n    onecard.train('c.py')\nexcept TypeError as problem:\n    print(problem)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("onecard.train cannot be called: training is a command, `onecard train CONFIG")


def test_importing_onecard_is_light() -> None:
    code = "import sys, onecard; print('pydantic' in sys.modules, 'torch' in sys.modules, 'click' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False False False"


@pytest.mark.parametrize("name", ["make_plan", "diagnose", "compare_runs"])
def test_functions_are_typed_and_show_an_example(name: str) -> None:
    function = getattr(onecard, name)
    signature = inspect.signature(function)
    assert all(parameter.annotation is not inspect.Parameter.empty for parameter in signature.parameters.values())
    assert signature.return_annotation is not inspect.Signature.empty
    assert ">>> " in (function.__doc__ or "")


def test_to_pandas_is_typed_and_shows_an_example() -> None:
    assert ">>> " in (onecard.Run.to_pandas.__doc__ or "")
    assert typing.get_overloads(onecard.Run.to_pandas) == []
    assert "DataFrame" in str(onecard.Run.to_pandas.__annotations__["return"])


def unnamed(kind: type, page: str) -> list[str]:
    """The public fields, properties and methods of a dataclass that its section of the page does not list."""
    section = re.search(rf"^##+ `(?:onecard\.)?{kind.__name__}`\n(.*?)(?=^##|\Z)", page, re.M | re.S)
    fields = {field.name for field in dataclasses.fields(kind)}
    members = {
        *fields,
        *(name for name, member in vars(kind).items() if not isinstance(member, types.MemberDescriptorType)),
    }
    listed = re.findall(r"^- `(\w+)", section[1], re.M) if section else []
    return sorted(name for name in members if not name.startswith("_") and name not in listed)


def test_every_field_of_an_answer_is_in_the_reference() -> None:
    page = (ROOT / "docs/reference/python.md").read_text()
    for kind in (Plan, Diagnosis, Comparison, onecard.Run, TrainerPlan, Memory, Speed, Finding, Case, Facts):
        assert not unnamed(kind, page), kind.__name__


def test_the_check_of_fields_sees_one_that_is_missing() -> None:
    page = (ROOT / "docs/reference/python.md").read_text()
    assert unnamed(Plan, page.replace("- `fits: ", "- ")) == ["fits"]
    assert unnamed(Comparison, page.replace("- `winners: ", "- ")) == ["winners"]
    assert "findings" in unnamed(Diagnosis, page.replace("## `Diagnosis`", "## `Diagnoses`"))


def test_every_public_name_is_in_the_reference() -> None:
    page = (ROOT / "docs/reference/python.md").read_text()
    for name in [*(f"onecard.{name}" for name in NAMES), "Run.to_pandas"]:
        assert name in page, name
