"""A run that cannot work is refused at once: before torch is imported and before data is opened."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from onecard.config.schema import RunConfig
from onecard.runs.folder import create_run
from tests.made_records import end, step

HEAVY = ("torch", "numpy", "onecard.train")
CODE = f"""
import sys
from onecard.cli.main import run
code = run(sys.argv[1:])
print(code, [name for name in {HEAVY} if name in sys.modules])
"""


def refusal(*arguments: str) -> tuple[str, str]:
    """The last line on standard output, with the exit code and what was imported, and the error."""
    done = subprocess.run([sys.executable, "-c", CODE, *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip(), done.stderr


def saved_run(folder: Path) -> None:
    """A run of 8 updates that is over, with a checkpoint that says nothing."""
    with create_run(folder, config=RunConfig(max_iters=8, out_dir=str(folder)).model_dump()) as made:
        made.append(step(8))
        made.append(end(8, "finished"))
    (folder / "checkpoints" / "step-00000008").mkdir(parents=True)
    (folder / "checkpoints" / "step-00000008" / "state.json").write_text(json.dumps({}))


@pytest.mark.parametrize(
    ("arguments", "code", "name"),
    [
        (("train", "--optimizer=adamw8bit"), 2, "bad-value"),
        (("train", "--loggers=wanb"), 2, "unknown-logger"),
        (("train", "--device=gpu"), 2, "bad-config"),
        (("train", "--out_dir=/proc/no-such-place/run"), 3, "cannot-write"),
        (("train", "--out_dir=file"), 2, "not-a-folder"),
        (("train", "--out_dir=done"), 2, "run-exists"),
        (("train", "--resume", "done", "--device=gpu"), 2, "bad-config"),
        (("train", "--resume", "done", "--n_layer=3"), 2, "resume-mismatch"),
        (("train", "--resume", "nowhere"), 2, "no-such-run"),
        (("train", "--n_layer=0"), 2, "bad-value"),
        (("train", "nowhere.py"), 2, "no-such-file"),
        (("bench", "--loggers=wanb"), 2, "unknown-logger"),
        (("bench", "--device=gpu"), 2, "bad-config"),
    ],
)
def test_what_cannot_work_is_refused_before_torch_is_imported_and_data_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    saved_run(Path("done"))
    before = sorted(Path().rglob("*"))
    said, error = refusal(*arguments)
    assert (said, f"[{name}]" in error) == (f"{code} []", True), error
    assert sorted(Path().rglob("*")) == before, "nothing is left behind"


def test_a_logger_that_is_not_installed_is_refused_before_torch_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hidden = "import importlib.util as u; real = u.find_spec\n"
    hidden += "u.find_spec = lambda name, *a: None if name == 'trackio' else real(name, *a)\n"
    done = subprocess.run(
        [sys.executable, "-c", hidden + CODE, "train", "--loggers=trackio"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "3 []"
    assert "[missing-package]" in done.stderr


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="needs a user whom permissions bind")
def test_a_folder_closed_to_us_is_refused_before_torch_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("closed").mkdir(mode=0o500)
    said, error = refusal("train", "--out_dir=closed/run")
    assert (said, "[read-only]" in error) == ("3 []", True), error
