"""stop_after_worse: a run ends after so many evaluations in a row worse than its best, and can go on."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from onecard.cli.main import run  # noqa: E402
from onecard.doctor.diagnose import diagnose  # noqa: E402
from onecard.models.evaluation import worse_in_a_row  # noqa: E402
from onecard.runs.folder import load_run  # noqa: E402
from onecard.runs.records import End  # noqa: E402
from onecard.train import loop  # noqa: E402
from onecard.ui.glance import glance  # noqa: E402

TINY = [
    *("--n_layer=1", "--n_head=1", "--n_embd=16", "--block_size=16", "--batch_size=2", "--device=cpu"),
    *("--warmup_iters=2", "--eval_interval=2", "--eval_iters=1", "--max_iters=20", "--lr_decay_iters=20"),
    *("--gradient_accumulation_steps=1", "--keep_checkpoints=1", "--out_dir=r"),
]
FALLING = [5.0, 4.0, 3.0]
WORSE = [3.1, 3.0, 3.2]  # the same as the best is no better


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def here(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONECARD_HOME", str(home))


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Validation losses that evaluations find, by step; the real ones of other steps."""
    real, told = loop._Loop._of_all_ranks, {}

    def of_all_ranks(self: Any, losses: Any) -> Any:
        whole = real(self, losses)
        return type(whole)(mean=told.get(self.trainer.step, whole.mean), spread=0.1, sequences=2)

    monkeypatch.setattr(loop._Loop, "_of_all_ranks", of_all_ranks)

    def tell(losses: Sequence[float]) -> None:
        told.update(zip(itertools.count(0, 2), losses, strict=False))

    return tell


def end() -> End:
    last = load_run("r").end
    assert last
    return last


def checkpoints() -> list[int]:
    return [each.step for each in load_run("r").checkpoints]


def test_losses_in_a_row_are_counted() -> None:
    nan = float("nan")
    assert [worse_in_a_row(FALLING[:count]) for count in range(4)] == [0, 0, 0, 0]
    assert worse_in_a_row([*FALLING, *WORSE]) == 3
    assert worse_in_a_row([*FALLING, *WORSE, 2.9]) == 0
    assert worse_in_a_row([3.0, nan, 3.5]) == 2


def test_it_ends_like_a_normal_end_with_the_best_and_the_last_checkpoint(
    found: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    found([*FALLING, *WORSE, 1.0])
    assert run(["train", *TINY, "--stop_after_worse=3"]) == 0
    said = capsys.readouterr()
    assert (end().reason, end().step, end().best_val_loss) == ("stop_after_worse", 10, 3.0)
    assert checkpoints() == [4, 10]
    assert json.loads(Path("r/checkpoints/best.json").read_text())["step"] == 4
    assert "stopped after 3 evaluations worse than the best, at step 10" in said.out
    assert "onecard train --resume r --stop_after_worse=0" in said.err
    assert "onecard sample r --best" in said.err


def test_it_does_not_end_before_nor_where_it_is_not_asked_to(found: Any) -> None:
    found([*FALLING, *WORSE[:2], 2.0, *WORSE[:2], 1.0, 0.5])
    assert run(["train", *TINY, "--stop_after_worse=3"]) == 0
    assert (end().reason, end().step) == ("finished", 20)


def test_a_resume_says_so_and_goes_on_if_it_is_told_to(found: Any, capsys: pytest.CaptureFixture[str]) -> None:
    found([*FALLING, *WORSE, 3.3, 3.4, 3.5, 3.6, 3.7])
    assert run(["train", *TINY, "--stop_after_worse=3"]) == 0
    before = Path("r/records.jsonl").read_bytes()
    capsys.readouterr()
    assert run(["train", "--resume", "r"]) == 0
    said = capsys.readouterr().err
    assert "stop_after_worse=3 has ended r at step 10, after 3 evaluations worse than the best" in said
    assert "onecard train --resume r --stop_after_worse=0" in said
    assert Path("r/records.jsonl").read_bytes() == before
    assert run(["train", "--resume", "r", "--stop_after_worse=5"]) == 0
    assert (end().reason, end().step) == ("stop_after_worse", 14)
    assert run(["train", "--resume", "r", "--stop_after_worse=0"]) == 0
    assert (end().reason, end().step) == ("finished", 20)


def test_a_resume_counts_what_was_before(found: Any) -> None:
    """Cut after two worse evaluations, it ends at the third."""
    found([*FALLING, *WORSE])
    assert run(["train", *TINY, "--stop_after_worse=3", "--max_iters=8"]) == 0
    assert end().reason == "finished"
    assert run(["train", "--resume", "r", "--max_iters=20"]) == 0
    assert (end().reason, end().step) == ("stop_after_worse", 10)


def test_the_doctor_and_the_page_take_it_for_an_end(found: Any) -> None:
    found([*FALLING, *WORSE])
    assert run(["train", *TINY, "--stop_after_worse=3"]) == 0
    assert "stopped-early" not in {each.rule for each in diagnose(load_run("r")).findings}
    assert glance(Path("r"), Path("r/records.jsonl"))["state"] == "finished"


def test_a_plan_says_that_it_may_end_before(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--gpu", "RTX 4070", "--stop_after_worse=3", "--max_iters=700"]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert "stop_after_worse=3 may end onecard's run before step 700" in said
