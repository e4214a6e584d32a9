"""Docs that cannot rot: generated pages are in sync, README's commands run, links lead somewhere."""

import re
import shlex
import shutil
from fnmatch import fnmatch
from pathlib import Path

import pytest

from docs import generate, made_runs
from onecard.plan.cards import known_cards
from onecard.report.cards import cards_json
from tests.contract.conftest import ROOT, Command

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_generated_pages_are_what_the_code_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    stale = [str(path.relative_to(ROOT)) for path, text in generate.pages().items() if path.read_text() != text]
    assert not stale, f"run `make docs`: {stale}"


def test_the_page_of_cards_has_the_source_of_every_figure() -> None:
    page = generate.cards().splitlines()
    for card in cards_json(known_cards())["gpus"]:
        row = next(line for line in page if line.startswith(f"| {card['name']} |"))
        assert all(source in row for source in card["sources"].values()), card["name"]


def commands_in(text: str) -> list[str]:
    """Lines of code blocks that call onecard, comments cut off."""
    lines = [
        line.strip().removeprefix("$ ")
        for block in re.findall(r"^```sh\n(.*?)^```", text, re.M | re.S)
        for line in block.splitlines()
    ]
    return [line.split("  #")[0].strip() for line in lines if line.startswith("onecard ")]


# these need torch, which is kept away here, and data: tests/train runs them
NEED_TORCH = (
    "onecard train",
    "onecard sample",
    "onecard import",
    "onecard export",
    "onecard bench",
    "onecard eval",
    "onecard tune",
)
NEVER_ENDS = ("onecard ui",)  # by itself: tests/ui runs it
RUN_IN_ORDER = (
    "bring-your-nanogpt-project.md",
    "evaluate.md",
    "fine-tune.md",
    "fineweb-on-one-machine.md",  # by test_data_docs.py, with a hub on this machine
    "publish-a-model.md",
    "track-with-your-tool.md",
)


@pytest.mark.parametrize(
    ("page", "command"),
    [
        (page.name, command)
        for page in PAGES
        for command in commands_in(page.read_text())
        if page.name not in RUN_IN_ORDER and not command.startswith(NEED_TORCH + NEVER_ENDS)
    ],
)
def test_every_command_in_the_docs_runs(onecard: Command, tmp_path: Path, page: str, command: str) -> None:
    for folder in ("configs", made_runs.FOLDER):  # what a command writes must not land in the repository
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shown = onecard(*shlex.split(command)[1:], cwd=tmp_path)
    assert shown.code in (0, 1), f"{page}: {command}\n{shown.stderr}"


def test_the_plan_says_which_accumulation_keeps_the_update_where_the_page_promises_it(onecard: Command) -> None:
    page = (ROOT / "docs/how-to/which-model.md").read_text()
    command, promised = "onecard plan configs/gpt2_124m.py --batch_size=16", "--gradient_accumulation_steps=32"
    assert command in commands_in(page)
    assert f"`{promised}` keeps them exactly" in page
    shown = onecard(*shlex.split(command)[1:], cwd=ROOT)
    assert f"fix: {promised} keeps it exactly" in shown.stdout


def test_the_readme_has_commands_to_run() -> None:
    assert len(commands_in((ROOT / "README.md").read_text())) >= 3


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


CODE = [
    path for folder in ("onecard", "tests", "bench", "docs") for path in (ROOT / folder).rglob("*") if path.is_file()
]
FILES = [path.relative_to(ROOT).as_posix() for path in CODE]
OF_OTHERS = (
    "convert_hf_to_gguf.py",
    "tools/preprocess_data.py",
    "finetune_shakespeare.py",
)  # llama.cpp, Megatron, nanoGPT
OF_THE_READER = ("out-back/config.py",)


def files_not_here(text: str) -> list[str]:
    """Our files that a page names in backticks and that are not here. One marked with (gone) belongs to history."""
    named = re.findall(r"`([\w./*-]+)`(?! \(gone\))", text)
    ours = [name for name in named if re.match(r"(onecard|tests|bench|docs)/.", name) or name.endswith(".py")]
    return [
        name
        for name in ours
        if not re.search(r"NAME|^\.py$", name)
        and name not in OF_OTHERS + OF_THE_READER
        and not any(fnmatch(f"/{file}", f"*/{name}") for file in FILES)
        and not list(ROOT.glob(name.rstrip("/")))
    ]


@pytest.mark.parametrize("page", [*PAGES, *sorted((ROOT / "tests").rglob("README.md"))], ids=lambda page: page.name)
def test_every_file_that_a_page_names_is_here(page: Path) -> None:
    assert page.name == "CHANGELOG.md" or not files_not_here(page.read_text())  # a changelog is history


def test_a_file_that_is_not_here_is_found_in_a_page() -> None:
    assert files_not_here("`onecard/cli/main.py`, `main.py`, `cli/main.py`, `tests/golden/*.csv`, `bench/`") == []
    assert files_not_here("`models/NAME.py`, `onecard/train/old.py` (gone)") == []
    assert files_not_here("`onecard/train/old.py`, `old.py` and `docs/old.md`, `main.py`") == [
        "onecard/train/old.py",
        "old.py",
        "docs/old.md",
    ]


def test_no_page_names_a_path_of_somebodys_machine() -> None:
    for page in PAGES:
        assert not re.search(r"/(home|root|Users|work)/", page.read_text()), page
