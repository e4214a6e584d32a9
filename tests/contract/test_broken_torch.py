"""A torch that is there and cannot be imported is the machine's fault: exit 3 in three lines, as when it is missing."""

from pathlib import Path

import pytest

from tests.contract.conftest import Command

pytest.importorskip("numpy", reason="needs numpy: pip install 'onecard[train]'")

COMMANDS = [["train"], ["bench"], ["tune"], ["sample", "r"], ["export", "r", "--to", "hf"], ["import", "ckpt.pt"]]
BROKEN = {
    "a library is missing": "raise ImportError('libcudart.so.12: cannot open shared object file\\nand so on')",
    "a library cannot be loaded": "raise OSError('libtorch_cpu.so: cannot allocate memory')",
    "a file is older than the others": "raise AttributeError('module torch has no attribute _C')",
    "something else is called torch": "",
}


@pytest.fixture(autouse=True)
def run(onecard: Command, tmp_path: Path) -> None:
    """A run to read: where there is none, that is told before torch is looked at."""
    folder = tmp_path / "work" / "r"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"n_layer": 2}')
    (folder / "records.jsonl").write_text("")


@pytest.fixture(params=BROKEN)
def python_path(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A folder with a torch that cannot be imported."""
    package = tmp_path / "broken" / "torch"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(BROKEN[request.param])
    return str(package.parent)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_every_command_that_needs_it_says_so(onecard: Command, python_path: str, command: list[str]) -> None:
    shown = onecard(*command, python_path=python_path)
    assert (shown.code, shown.stdout) == (3, ""), shown.stderr
    what, why, fix = shown.stderr.splitlines()
    assert what == "error: torch cannot be imported  [no-torch]"
    assert "Error: " in why
    assert "pip install" in fix


@pytest.mark.parametrize("command", COMMANDS[1:], ids=lambda command: command[0])
def test_with_json_it_is_one_object(onecard: Command, command: list[str]) -> None:
    shown = onecard(*command, "--json")  # the fixture's torch raises ImportError
    assert (shown.code, shown.stderr) == (3, "")
    assert shown.json["error"]["name"] == "no-torch"


def test_nothing_is_left_behind(onecard: Command, tmp_path: Path) -> None:
    assert onecard("train", "--out_dir=s").code == 3
    assert not (tmp_path / "work" / "s").exists()
