"""The commands of the how-to pages that need torch, run in the order of the page, on a project made here."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")
transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'onecard[dev]'")

from onecard.cli.main import run  # noqa: E402
from onecard.config.schema import RESUMABLE_KEYS  # noqa: E402
from onecard.runs.folder import load_run  # noqa: E402
from tests.contract.test_docs import RUN_IN_ORDER, commands_in  # noqa: E402

PAGES = Path(__file__).parents[2] / "docs" / "how-to"
SHAPE: dict[str, Any] = {"n_layer": 1, "n_head": 1, "n_embd": 16, "block_size": 16, "batch_size": 2, "device": "cpu"}
STEPS = {"gradient_accumulation_steps": 1, "eval_interval": 2, "eval_iters": 1, "warmup_iters": 1, "log_interval": 1}
SMALL = {**SHAPE, **STEPS, "max_iters": 4}
FLAGS = [f"--{key}={value}" for key, value in SMALL.items()]
NETWORK = ("gpt2", "--push", "--download")
PAGE_NAMES = ("bring-your-nanogpt-project.md", "evaluate.md", "publish-a-model.md", "track-with-your-tool.md")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def project(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A nanoGPT folder: config, data, checkpoint; a GPT-2 folder beside it, and a finished run."""
    monkeypatch.chdir(tmp_path)
    for name, value in {"ONECARD_HOME": home, "WANDB_MODE": "disabled"}.items():
        monkeypatch.setenv(name, str(value))
    data = tmp_path / "data" / "mine"
    data.mkdir(parents=True)
    for split in ("train", "val"):
        np.random.default_rng(1).integers(0, 256, 2000).astype(np.uint16).tofile(data / f"{split}.bin")
    (data / "meta.json").write_text('{"dtype": "uint16", "vocab_size": 256, "tokenizer": "bytes"}')
    (tmp_path / "config").mkdir()
    lines = [f"{key} = {value!r}\n" for key, value in {**SMALL, "dataset": "mine"}.items()]
    (tmp_path / "config" / "train_mine.py").write_text("".join(lines))
    assert run(["train", *FLAGS, "--out_dir=runs/default"]) == 0
    assert run(["train", "config/train_mine.py", "--out_dir=first"]) == 0
    assert run(["export", "first", "--to", "nanogpt", "--out", "out"]) == 0
    sizes: dict[str, Any] = {"n_layer": 1, "n_head": 1, "n_embd": 16, "n_positions": 32, "vocab_size": 256}
    transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)
    ).save_pretrained("models/small")
    shown = (PAGES / "evaluate.md").read_text()
    for name, kind in (("household.yaml", "yaml"), ("household.jsonl", "json")):
        (tmp_path / name).write_text(shown.partition(f"```{kind}\n")[2].partition("```")[0])
    (tmp_path / "book.txt").write_text("<|endoftext|>".join(f"The {n}th part of a book.\n" * 5 for n in range(9)))
    return tmp_path


@pytest.mark.parametrize("page", PAGE_NAMES)
def test_the_commands_of_a_page_run_one_after_the_other(
    project: Path, page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if page == "track-with-your-tool.md":
        for package in ("tensorboard", "wandb", "trackio"):
            pytest.importorskip(package, reason=f"needs {package}: pip install 'onecard[log]'")
    if page == "evaluate.md":
        pytest.importorskip("lm_eval", reason="needs lm-eval: pip install 'onecard[eval]'")
    commands = [
        command for command in commands_in((PAGES / page).read_text()) if not any(n in command for n in NETWORK)
    ]
    assert len(commands) >= 2
    for command in commands:
        words = shlex.split(command)[1:]
        if words[0] == "train" and "--resume" not in words and "config/train_mine.py" not in words:
            words[1:1] = FLAGS  # the default takes minutes; what the page says comes after, and counts
        code = run(words)
        said = capsys.readouterr().err
        assert code == 0, f"{command}\n{said}"
        assert "failed and is left out" not in said, said


def test_these_pages_are_left_to_this_test() -> None:
    assert set(PAGE_NAMES) <= set(RUN_IN_ORDER)


def test_a_page_whose_commands_do_not_run_is_noticed(project: Path) -> None:
    assert run(shlex.split("import out/ckpt.pt --datset=mine")) == 2


def test_what_the_page_promises_of_a_checkpoint(project: Path) -> None:
    assert run(["import", "out/ckpt.pt"]) == 0
    assert run(["train", "--resume", "runs/out", "--max_iters=6"]) == 0
    assert [step.step for step in load_run("runs/out").steps] == [5, 6]


def test_the_commands_of_the_page_on_training_run_with_fewer_updates(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree("runs/default")
    text = (PAGES / "train-and-resume.md").read_text()
    commands = commands_in(text.replace("=1600", "=6").replace("=1700", "=8"))
    assert len(commands) == 6
    for command in commands:
        words = shlex.split(command)[1:]
        more = FLAGS if words[0] == "train" and "--resume" not in words else []
        assert run([*words, *more]) == 0, f"{command}\n{capsys.readouterr().err}"
    assert load_run("runs/default").last_step == 8
    assert load_run("runs/default").config["grad_checkpoint"] == "full"


def test_the_commands_of_the_page_on_fine_tuning_run_with_fewer_updates(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONECARD_HOME", str(home))
    Path("notes").mkdir()
    for number in range(12):
        Path(f"notes/{number}.md").write_text(f"# Note {number}\n\nThis is what note {number} says.\n" * 9)
    text = (PAGES / "fine-tune.md").read_text().replace("=1000", "=4").replace("_interval=50", "_interval=2")
    commands = [shlex.split(command)[1:] for command in commands_in(text)]
    assert {words[0] for words in commands} >= {"train", "export", "data", "plan", "doctor", "sample"}
    for words in commands:
        files = [found for word in words for found in (sorted(map(str, Path().glob(word))) if "*" in word else [word])]
        small = FLAGS if words[0] == "train" and "--resume" not in words else []
        assert run([files[0], *small, *files[1:]]) in {"doctor": (0, 1)}.get(words[0], (0,)), (
            f"{words}\n{capsys.readouterr().err}"
        )
    assert load_run("runs/notes").config["stop_after_worse"] == 3
    assert Path("models/notes/model.safetensors").is_file()


def test_the_reference_names_every_key_that_a_resume_may_change() -> None:
    """In the table of settings, the rows before the last, which is the rest."""
    page = (PAGES.parent / "reference" / "resuming.md").read_text()
    table = page.partition("## What may change on resume")[2].partition("| everything else")[0]
    first_cells = " ".join(line.split("|")[1] for line in table.splitlines() if line.startswith("|"))
    assert set(re.findall(r"`([a-z_]+)(?:=True)?`", first_cells)) == RESUMABLE_KEYS | {"dataset", "eval_only"}
