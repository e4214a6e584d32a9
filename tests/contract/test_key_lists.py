"""What is true of a key stands on its line in config/schema.py: no other file lists keys by what they do."""

import ast
from collections.abc import Iterator
from pathlib import Path

from onecard.config.schema import KEYS

ROOT = Path(__file__).parents[2]
ENOUGH = 3  # keys that make a list
# Lists of what one function does with keys. A new key joins them only if that function learns about it.
OF_ONE_FUNCTION = {
    "onecard/cli/sample.py TAKEN": "keys of nanoGPT's sample.py",
    "onecard/config/hf_config.py _GPT2": "transformers' names",
    "onecard/config/hf_config.py _NANOCHAT": "transformers' names",
    "onecard/config/names.py _ELSEWHERE": "what other trainers call them",
    "onecard/doctor/diagnose.py DRAWN_BY_CARD": "what the default for a card chooses",
    "onecard/doctor/rules/resume.py RATES_SHOWN": "the lines that a finding shows",
    "onecard/plan/conditions.py SCHEDULE_SAID": "the lines that a finding shows",
    "onecard/config/recipes.py _BACK_TO_NANOGPT": "what nanoGPT's recipe needs for another's file",
    "onecard/plan/proposal.py DECIDED": "what a budget decides",
    "onecard/config/recipes.py RECIPES": "the values of each recipe",
    "onecard/config/recipes.py _SIZES": "what a recipe's rates follow from",
    "onecard/plan/fit.py FITTED": "what --fit chooses",
    "onecard/plan/shape.py SHAPE_OF_SIZE": "what --params chooses",
    "onecard/plan/speed/on_paper.py _FOR_UPDATES": "keys by which works are remembered",
    "onecard/plan/sensitivity.py SCALED": "what is halved and doubled",
    "onecard/report/compare_why.py CHANGED": "words for some changes",
    "onecard/report/compare_why.py MFU_REASONS": "words for some changes",
}


def lists_of_keys(source: str) -> Iterator[str]:
    """The names of a module's constants that hold three or more keys."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            texts = [each.value for each in ast.walk(node.value) if isinstance(each, ast.Constant)]
            words = [text.split() for text in texts if isinstance(text, str)]
            if len({key for found in words if KEYS.keys() >= set(found) for key in found}) >= ENOUGH:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                yield ast.unparse(target)


def test_no_file_lists_keys_by_what_they_do() -> None:
    found = {
        f"{path.relative_to(ROOT).as_posix()} {name}"
        for path in sorted((ROOT / "onecard").rglob("*.py"))
        if "foreign" not in path.parts  # names of other programs
        for name in lists_of_keys(path.read_text(encoding="utf-8"))
    }
    assert found == OF_ONE_FUNCTION.keys(), "put what is true of a key on its line in onecard/config/schema.py"


def test_a_list_of_keys_is_found_however_it_is_written() -> None:
    assert list(lists_of_keys('A = frozenset("n_layer n_head dropout".split())')) == ["A"]
    assert list(lists_of_keys('A = ("n_layer", "n_head", "dropout")')) == ["A"]
    assert list(lists_of_keys('A: dict[str, str] = {"loss_chunk": "x", "compile": "y", "seed": "z"}')) == ["A"]
    assert list(lists_of_keys('A = {*B, "loss_chunk", "compile", "seed"}')) == ["A"]
    assert not list(lists_of_keys('A = ("n_layer", "n_head")\nB = "the seed, the device and compile"'))
