"""sample_interval: texts that a run writes while it trains, and that change nothing else of it."""

from __future__ import annotations

import json
import os
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from onecard.cli.main import run  # noqa: E402
from onecard.config.schema import RunConfig  # noqa: E402
from onecard.models.evaluation import TEXT_TOKENS, writes_text  # noqa: E402
from onecard.runs.folder import Run, load_run  # noqa: E402
from onecard.runs.records import Eval, Record, Sample, Step  # noqa: E402
from onecard.train import progress_text  # noqa: E402

TINY = [
    *("--n_layer=2", "--n_head=2", "--n_embd=32", "--block_size=32", "--batch_size=4", "--device=cpu"),
    *("--warmup_iters=2", "--eval_interval=4", "--eval_iters=2", "--max_iters=12", "--lr_decay_iters=12"),
    *("--gradient_accumulation_steps=1", "--learning_rate=1e-2", "--min_lr=1e-3"),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def here(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONECARD_HOME", str(home))


def trained(name: str, *keys: str) -> Run:
    assert run(["train", *TINY, f"--out_dir={name}", *keys]) == 0
    return load_run(name)


def samples(found: Run) -> list[Sample]:
    return [record for record in found.records if isinstance(record, Sample)]


def losses(records: tuple[Record, ...]) -> list[float | None]:
    return [each.loss if isinstance(each, Step) else each.val_loss for each in records if isinstance(each, Step | Eval)]


def due(**keys: int) -> list[int]:
    """The steps of the evaluations of a run that come with a text."""
    config = RunConfig(**keys)
    evaluated = {*range(0, config.max_iters, config.eval_interval), config.max_iters}
    return sorted(step for step in evaluated if writes_text(config, step))


def test_a_text_comes_with_the_evaluation_that_is_next() -> None:
    assert due(max_iters=100, eval_interval=20) == []
    assert due(max_iters=100, eval_interval=20, sample_interval=1) == [0, 20, 40, 60, 80, 100]
    assert due(max_iters=100, eval_interval=20, sample_interval=40) == [0, 40, 80, 100]
    assert due(max_iters=100, eval_interval=20, sample_interval=50) == [0, 60, 100]
    assert due(max_iters=90, eval_interval=40, sample_interval=1000) == [0, 90]


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_the_losses_are_the_same_bits_with_texts_and_without(dropout: float) -> None:
    keys = [f"--dropout={dropout}"]
    without, with_texts = trained("without", *keys), trained("with", *keys, "--sample_interval=1")
    assert samples(without) == []
    assert [each.step for each in samples(with_texts)] == [0, 4, 8, 12]
    assert len(losses(without.records)) == 16
    assert losses(with_texts.records) == losses(without.records)


def test_a_text_is_what_the_sample_command_writes(capsys: pytest.CaptureFixture[str]) -> None:
    found = trained("r", "--sample_interval=8", "--sample_prompt=def f(")
    shown = capsys.readouterr().out
    assert [(each.step, each.tokens) for each in samples(found)] == [(0, 0), (8, 1024), (12, 1536)]
    assert "step 8, a text of the model:\n    def f(" in shown
    for each in samples(found)[1:]:
        which = ["--checkpoint", str(each.step), "--prompt", "def f(", "--length", str(TEXT_TOKENS), "--json"]
        assert run(["sample", "r", *which]) == 0
        assert (each.prompt, each.text) == ("def f(", json.loads(capsys.readouterr().out)["text"])


def test_a_resume_writes_the_texts_of_the_undisturbed_run_once() -> None:
    whole = trained("whole", "--sample_interval=1")
    trained("cut", "--sample_interval=1", "--max_iters=8", "--lr_decay_iters=12")
    assert run(["train", "--resume", "cut", "--max_iters=12"]) == 0
    assert samples(load_run("cut")) == samples(whole)


@pytest.mark.parametrize(
    ("error", "words"),
    [(torch.OutOfMemoryError("CUDA out of memory. Tried"), "CUDA out of memory"), (FloatingPointError("NaN"), "NaN")],
)
def test_a_text_that_fails_does_not_end_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception, words: str
) -> None:
    real, calls = progress_text.generate, 0

    def failing(*arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        for count, token in enumerate(real(*arguments, **keywords)):
            if calls == 2 and count == 3:
                raise error
            yield token

    monkeypatch.setattr(progress_text, "generate", failing)
    found = trained("r", "--sample_interval=1")
    assert found.finished
    assert [each.step for each in samples(found)] == [0, 8, 12]
    assert f"no text of step 4: {words}" in capsys.readouterr().err


def test_ctrl_c_in_a_text_stops_and_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Any] = progress_text.generate

    def interrupted(*arguments: Any, **keywords: Any) -> Any:
        for token in real(*arguments, **keywords):
            os.kill(os.getpid(), 2)
            yield token

    monkeypatch.setattr(progress_text, "generate", interrupted)
    assert run(["train", *TINY, "--out_dir=r", "--sample_interval=1"]) == 130
    assert samples(load_run("r")) == []
    monkeypatch.undo()


def test_without_a_tokenizer_it_says_so_once_and_trains(capsys: pytest.CaptureFixture[str]) -> None:
    Path("data").mkdir()
    for split in ("train", "val"):
        Path("data", f"{split}.bin").write_bytes(array("H", range(200)).tobytes() * 40)
    assert samples(trained("r", "--sample_interval=1", "--dataset=data", "--vocab_size=600")) == []
    said = capsys.readouterr().err
    assert said.count("sample_interval=1 writes no texts: the tokenizer of r is not known") == 1


TEXT = "Ein kleiner Text, \u0646\u0635 \u0642\u0635\u064a\u0631, \u090f\u0915 \u092a\u093e\u0920 \U0001f600."


def prepared(tokenizer: str, *size: str) -> None:
    lines = (json.dumps({"text": f"{TEXT} {number}\n"}) for number in range(200))
    Path("text.jsonl").write_text("\n".join(lines))
    made = ["--out", "made", f"--tokenizer={tokenizer}", "--val-share", "0.2", *size]
    assert run(["data", "prepare", "text.jsonl", *made]) == 0


@pytest.mark.parametrize("tokenizer", ["bytes", "characters", "bpe"])
def test_texts_of_every_tokenizer_begin_with_the_prompt(tokenizer: str) -> None:
    prepared(tokenizer, *(["--vocab_size=300"] if tokenizer == "bpe" else []))
    found = trained("r", "--dataset=made", "--sample_interval=4", "--sample_prompt=\u0646\u0635 \u092a")
    assert len(samples(found)) == 4
    assert all(each.text.startswith("\u0646\u0635 \u092a") for each in samples(found))
    assert all(len(each.text) > len(each.prompt) for each in samples(found))


def test_a_prompt_that_the_tokenizer_lacks_is_told_once_and_the_run_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    prepared("characters")
    capsys.readouterr()
    assert samples(trained("r", "--dataset=made", "--sample_interval=4", "--sample_prompt=QQ")) == []
    assert capsys.readouterr().err.count("writes no texts: the text has 1 characters that the data does not have") == 1


def test_a_prompt_without_an_interval_is_said_to_have_no_effect(capsys: pytest.CaptureFixture[str]) -> None:
    trained("r", "--sample_prompt=x")
    said = capsys.readouterr().err
    assert "sample_prompt has no effect with sample_interval=0: it counts with sample_interval" in said
