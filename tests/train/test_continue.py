"""train CONFIG --continue: the same command begins a run and, after whatever stopped it, continues it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from onecard.cli.main import run  # noqa: E402
from onecard.config import recipes  # noqa: E402
from onecard.runs.folder import load_run  # noqa: E402
from onecard.runs.records import Start  # noqa: E402
from onecard.train.model import GPT  # noqa: E402

KEYS: dict[str, object] = {
    "n_layer": 1,
    "n_head": 1,
    "n_embd": 32,
    "block_size": 32,
    "batch_size": 4,
    "gradient_accumulation_steps": 2,
    "warmup_iters": 1,
    "eval_interval": 3,
    "eval_iters": 2,
    "max_iters": 6,
    "lr_decay_iters": 6,
    "device": "cpu",
    "dataset": "python-stdlib",
}
Told = tuple[int, str]  # exit code, standard error


def write(**changes: object) -> None:
    Path("small.py").write_text("".join(f"{key} = {value!r}\n" for key, value in {**KEYS, **changes}.items()))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def onecard(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Told]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONECARD_HOME", str(home))
    write()

    def call(*arguments: str) -> Told:
        capsys.readouterr()
        return run(["train", *arguments]), capsys.readouterr().err

    return call


def cut_off(onecard: Callable[..., Told], monkeypatch: pytest.MonkeyPatch, *, after: int) -> None:
    """Begin the run, and let it die after so many updates."""
    calls, real = 0, GPT.loss

    def dying(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 2 * after:
            raise RuntimeError("the power went")
        return real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(GPT, "loss", dying)
        assert onecard("small.py", "--continue", "--out_dir=r")[0] == 70, "our own bug, as far as it knows"


def losses(path: str) -> list[float]:
    return [step.loss for step in load_run(Path(path)).steps]


def starts(path: str) -> list[int]:
    return [record.step for record in load_run(Path(path)).records if isinstance(record, Start)]


@pytest.mark.parametrize(("after", "from_step"), [(2, 0), (4, 3)], ids=["before a checkpoint", "after one"])
def test_the_same_command_begins_and_continues_a_run_bit_for_bit(
    onecard: Callable[..., Told], monkeypatch: pytest.MonkeyPatch, after: int, from_step: int
) -> None:
    assert onecard("small.py", "--out_dir=whole")[0] == 0
    cut_off(onecard, monkeypatch, after=after)
    assert len(losses("r")) == after
    code, said = onecard("small.py", "--continue", "--out_dir=r")
    assert code == 0, said
    assert starts("r")[-1] == from_step
    assert losses("r") == losses("whole")


def test_a_finished_run_says_so(onecard: Callable[..., Told]) -> None:
    assert onecard("small.py", "--continue")[0] == 0
    code, said = onecard("small.py", "--continue")
    assert (code, starts("runs/small")) == (0, [0])
    assert "runs/small is finished: step 6 of 6" in said


def test_without_a_config_the_default_is_continued(onecard: Callable[..., Told]) -> None:
    flags = [f"--{key}={value}" for key, value in KEYS.items()]
    assert onecard(*flags, "--continue")[0] == 0
    code, said = onecard(*flags, "--continue")
    assert code == 0, said
    assert "runs/default is finished" in said


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"n_embd": 64}, "n_embd=64 (was 32)"),
        ({"learning_rate": 0.1, "beta1": 0.5}, "learning_rate=0.1 (was 0.0006), beta1=0.5 (was 0.9)"),
        ({"dropout": 0.1}, "dropout=0.1 (was 0.0)"),
    ],
)
def test_another_config_is_refused_with_what_differs(
    onecard: Callable[..., Told], changes: dict[str, object], named: str
) -> None:
    assert onecard("small.py", "--continue")[0] == 0
    write(**changes)
    code, said = onecard("small.py", "--continue")
    assert code == 2
    assert said.count("\n") == 3
    assert f"cannot change {named}  [resume-mismatch]" in said
    assert starts("runs/small") == [0]


def test_a_key_that_was_taken_out_of_the_file_is_a_difference_too(onecard: Callable[..., Told]) -> None:
    write(beta2=0.9)
    assert onecard("small.py", "--continue")[0] == 0
    write()
    code, said = onecard("small.py", "--continue")
    assert code == 2
    assert "beta2=0.95 (was 0.9)" in said


def test_what_a_resume_may_change_is_changed_and_said(onecard: Callable[..., Told]) -> None:
    assert onecard("small.py", "--continue")[0] == 0
    write(max_iters=8, lr_decay_iters=8, grad_checkpoint="full")
    code, said = onecard("small.py", "--continue")
    assert code == 0, said
    assert "grad_checkpoint=full (was none)" in said
    assert len(losses("runs/small")) == 8


def test_a_run_from_other_weights_is_another_run(onecard: Callable[..., Told]) -> None:
    assert onecard("small.py", "--out_dir=first")[0] == 0
    assert onecard("small.py", "--continue")[0] == 0
    code, said = onecard("small.py", "--continue", "--init_from=first")
    assert code == 2
    assert "runs/small began from init_from=scratch, not from first  [resume-mismatch]" in said


def test_a_run_from_weights_is_continued(onecard: Callable[..., Told]) -> None:
    assert onecard("small.py", "--out_dir=first")[0] == 0
    flags = ["small.py", "--init_from=first", "--out_dir=second", "--continue"]
    assert onecard(*flags)[0] == 0
    code, said = onecard(*flags, "--max_iters=7")
    assert code == 0, said
    assert load_run(Path("second")).last_step == 7


def test_beside_resume_it_would_be_ignored(onecard: Callable[..., Told]) -> None:
    assert onecard("small.py")[0] == 0
    code, said = onecard("--resume", "runs/small", "--continue")
    assert code == 2
    assert "--continue would be ignored" in said


def test_a_folder_that_is_no_run_is_refused_as_ever(onecard: Callable[..., Told]) -> None:
    Path("r").write_text("a file")
    code, said = onecard("small.py", "--continue", "--out_dir=r")
    assert code == 2
    assert "[not-a-folder]" in said


FAST = {"recipe": "fast", "max_iters": 20, "eval_interval": 20, "out_dir": "out"}


def write_fast(**changes: object) -> None:
    """The run under the fast recipe, whose schedule and warm-up of momentum follow max_iters."""
    of_the_recipe = ("warmup_iters", "lr_decay_iters")
    keys = {key: value for key, value in {**KEYS, **FAST, **changes}.items() if key not in of_the_recipe}
    Path("small.py").write_text("".join(f"{key} = {value!r}\n" for key, value in keys.items()))


@pytest.mark.parametrize("way", [("small.py", "--continue"), ("--resume", "out")], ids=["continue", "resume"])
def test_a_longer_run_of_a_recipe_learns_to_its_new_end(onecard: Callable[..., Told], way: tuple[str, ...]) -> None:
    write_fast()
    assert onecard("small.py")[0] == 0
    code, err = onecard(*way, "--max_iters=40")
    assert code == 0, err
    found = load_run(Path("out"))
    assert found.config["lr_decay_iters"] == 40
    assert found.config["muon_momentum_warmup"] == 5  # as the run began
    assert all(step.lr > 0 for step in found.steps)
    assert "learning rate goes from 0 to" in err


def test_a_schedule_that_somebody_set_stays_when_a_recipes_run_gets_longer(onecard: Callable[..., Told]) -> None:
    write_fast()
    assert onecard("small.py", "--lr_decay_iters=30")[0] == 0
    assert onecard("--resume", "out", "--max_iters=40")[0] == 0
    assert load_run(Path("out")).config["lr_decay_iters"] == 30
    assert onecard("--resume", "out", "--max_iters=50", "--lr_decay_iters=45")[0] == 0
    assert load_run(Path("out")).config["lr_decay_iters"] == 45


def test_a_run_is_continued_with_the_values_its_recipe_had_when_it_began(
    onecard: Callable[..., Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_fast(eval_interval=3)
    cut_off(onecard, monkeypatch, after=8)
    monkeypatch.setattr(recipes, "RECIPES", {**recipes.RECIPES, "fast": {**recipes.RECIPES["fast"], "beta2": 0.95}})
    code, err = onecard("small.py", "--continue", "--out_dir=r")
    assert code == 0, err
    assert starts("r") == [0, 6]
    assert load_run(Path("r")).config["beta2"] == 0.99
