"""Bits per byte: every token once, after enough context, the same whatever the batch and the format of the model."""

from __future__ import annotations

import errno
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")
transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'onecard[dev]'")

from onecard import units  # noqa: E402
from onecard.cli.main import run  # noqa: E402
from onecard.config.schema import RunConfig  # noqa: E402
from onecard.runs.scores import SCORES, read_scores  # noqa: E402
from onecard.train import text_score  # noqa: E402
from onecard.train.model import GPT  # noqa: E402
from onecard.train.text_score import document_nats, windows_of  # noqa: E402

SIZE = RunConfig(n_layer=2, n_head=2, n_embd=32, block_size=8, vocab_size=65, dropout=0.3)
DOCUMENTS = [[1, 5, 9, 3], list(range(1, 40)), [7, 8], [int(n * n % 61) for n in range(100)]]
TINY = [
    *("--n_layer=1", "--n_head=2", "--n_embd=32", "--block_size=32", "--batch_size=4", "--device=cpu"),
    *("--warmup_iters=1", "--eval_interval=4", "--eval_iters=1", "--max_iters=4", "--lr_decay_iters=4"),
]
PARTS = [f"The {n}th line of a text, with an é and a 🙂.\n" * 9 for n in range(1, 60)]
TEXT = "<|endoftext|>".join(PARTS)


@pytest.fixture(scope="module")
def model() -> GPT:
    torch.manual_seed(0)
    made = GPT(SIZE)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return made


@pytest.mark.parametrize("block_size", [1, 2, 7, 8, 64])
@pytest.mark.parametrize("length", [1, 2, 8, 9, 40])
def test_windows_predict_every_token_once_after_half_a_context(length: int, block_size: int) -> None:
    predicted = []
    for window in windows_of(0, list(range(length)), block_size):
        assert len(window.tokens) <= block_size + 1
        scored = window.tokens[1 + window.first :]
        predicted += scored
        for place, token in enumerate(scored, start=1 + window.first):
            assert place >= min(token, block_size - max(1, block_size // 2) + 1)
    assert predicted == list(range(1, length))


def test_nats_are_those_of_a_softmax_over_all_logits(model: GPT) -> None:
    model.eval()
    direct = []
    for tokens in DOCUMENTS:
        nats = 0.0
        for window in windows_of(0, tokens, SIZE.block_size):
            with torch.no_grad():
                logits = model.logits(model.hidden(torch.tensor([window.tokens[:-1]])))[0].double().log_softmax(-1)
            nats -= sum(float(logits[k, window.tokens[k + 1]]) for k in range(window.first, len(window.tokens) - 1))
        direct.append(nats)
    assert document_nats(model, DOCUMENTS) == pytest.approx(direct, rel=1e-5)


def test_the_batch_does_not_change_the_score_and_shrinks_when_memory_is_short(
    model: GPT, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = document_nats(model, DOCUMENTS)
    token_losses, sizes = model.token_losses, []

    def short_of_memory(tokens_BT: Any, targets_BT: Any) -> Any:
        sizes.append(len(tokens_BT))
        if len(tokens_BT) > 3:
            raise RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return token_losses(tokens_BT, targets_BT)

    monkeypatch.setattr(model, "token_losses", short_of_memory)
    assert document_nats(model, DOCUMENTS) == pytest.approx(whole, rel=1e-6)
    assert max(sizes) > 3, "memory was never short"
    monkeypatch.setattr(text_score, "_WAITING", 1)
    assert document_nats(model, DOCUMENTS) == pytest.approx(whole, rel=1e-6)


def test_a_model_that_diverged_says_so(model: GPT) -> None:
    broken = GPT(SIZE)
    with torch.no_grad():
        broken.transformer.wte.weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError):
        document_nats(broken, DOCUMENTS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of different tokenizers, one of them exported too, and a text."""
    place = tmp_path_factory.mktemp("eval")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(place)
        patched.setenv("ONECARD_HOME", str(place / "home"))
        patched.setenv("HF_HUB_OFFLINE", "1")
        Path("corpus.txt").write_text(TEXT)
        prepared = ["data", "prepare", "corpus.txt", "--workers", "1", "--val-share", "0.1", "--out"]
        assert run([*prepared, "bpe", "--tokenizer=bpe", "--vocab_size=300"]) == 0
        assert run([*prepared, "bytes", "--tokenizer=bytes"]) == 0
        for name in ("bpe", "bytes"):
            assert run(["train", *TINY, f"--dataset={name}", f"--out_dir=runs/{name}"]) == 0
        assert run(["export", "runs/bpe", "--to", "hf", "--out", "hf"]) == 0
        assert run(["export", "runs/bytes", "--to", "nanogpt", "--out", "nano"]) == 0
        Path("book.txt").write_text(TEXT)
    return place


@pytest.fixture
def here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ONECARD_HOME", str(folder / "home"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return folder


def said(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert run([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_a_run_and_what_is_exported_from_it_have_one_score(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for one, other in (("runs/bpe", "hf"), ("runs/bytes", "nano/ckpt.pt")):
        scores = [said(capsys, "eval", model, "--text", "book.txt") for model in (one, other)]
        bits = [[each["bits_per_byte"] for each in score["text"]["documents"]] for score in scores]
        assert bits[0] == pytest.approx(bits[1], rel=1e-5)
        assert len(bits[0]) == len(PARTS)
        assert scores[0]["results"][0]["metric"] == "bits_per_byte"
        assert scores[0]["text"]["bytes"] == sum(len(part.strip().encode()) for part in PARTS)
        assert (here / one / SCORES).exists()
    assert not (here / "hf" / SCORES).exists()


@pytest.mark.parametrize(("number", "code"), [(errno.EROFS, 0), (errno.EACCES, 0), (errno.ENOSPC, 3)])
def test_a_score_that_cannot_be_kept_is_told_all_the_same(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    (kept := here / "runs/bytes" / SCORES).unlink(missing_ok=True)
    real = os.open

    def refused(path: Any, flags: int, *more: Any, **others: Any) -> int:
        if str(path).endswith(SCORES) and flags & os.O_CREAT:
            raise OSError(number, os.strerror(number))
        return real(path, flags, *more, **others)

    monkeypatch.setattr(os, "open", refused)
    assert run(["eval", "runs/bytes", "--text", "book.txt"]) == code
    text = capsys.readouterr()
    assert "bits per byte of book.txt" in text.out
    assert "the score was not kept: " in text.err
    assert "kept in" not in text.err
    found = said(capsys, "eval", "runs/bytes", "--text", "book.txt", code=code)
    assert found["results"][0]["metric"] == "bits_per_byte"
    assert "the score was not kept: " in found["notes"][-1]
    assert not kept.exists()


def test_bits_per_byte_are_those_that_transformers_loss_gives(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("short.txt").write_text("A line, é.")
    score = said(capsys, "eval", "hf", "--text", "short.txt")
    theirs = transformers.AutoModelForCausalLM.from_pretrained("hf")
    ids = transformers.AutoTokenizer.from_pretrained("hf")("<|endoftext|>A line, é.", return_tensors="pt").input_ids
    nats = theirs(ids, labels=ids).loss.item() * (ids.shape[1] - 1)
    assert score["results"][0]["value"] == pytest.approx(nats / math.log(2) / 11, rel=1e-4)
    assert score["results"][1]["value"] == pytest.approx(nats / (ids.shape[1] - 1), rel=1e-4)


def test_a_text_needs_no_lm_eval(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)  # as if it were not installed
    Path("short.txt").write_text("A line.")
    assert said(capsys, "eval", "hf", "--text", "short.txt")["results"]
    assert run(["eval", "hf", "--tasks", "hellaswag"]) == 3
    assert "[missing-package]" in capsys.readouterr().err


def test_compare_takes_one_text_where_the_tokenizers_differ(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("bpe", "bytes"):
        (Path("runs") / name / SCORES).unlink(missing_ok=True)
    run(["compare", "runs/bpe", "runs/bytes"])
    assert "onecard eval runs/bpe --text FILE && onecard eval runs/bytes --text FILE" in capsys.readouterr().out
    bits = [
        said(capsys, "eval", f"runs/{name}", "--text", "book.txt")["results"][0]["value"] for name in ("bpe", "bytes")
    ]
    better = "AB"[bits.index(min(bits))]
    run(["compare", "runs/bpe", "runs/bytes"])
    assert capsys.readouterr().out.startswith(f"better {better} ")
    compared = said(capsys, "compare", "runs/bpe", "runs/bytes")
    assert compared["same_text"]["bits_per_byte"] == pytest.approx(bits)
    assert compared["winners"]["same_text"] == bits.index(min(bits))


def test_how_much_of_a_folder_is_read_is_said_before(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("notes").mkdir()
    for name in ("a.md", "b.txt"):
        Path("notes", name).write_text(TEXT)
    size = units.size(2 * len(TEXT.encode()))
    assert run(["eval", "hf", "--text", "notes"]) == 0
    assert capsys.readouterr().err.startswith(f"scoring notes: 2 files, {size}; the time left shows")
    assert run(["eval", "hf", "--text", "notes", "--limit", "1"]) == 0
    assert capsys.readouterr().err.startswith(f"scoring notes: the first document of 2 files, {size}")
    said(capsys, "eval", "hf", "--text", "notes")


def test_progress_is_the_share_of_windows_that_are_scored(model: GPT, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_score, "BatchSize", lambda small=text_score.BatchSize: small(16))
    shares: list[float] = []
    document_nats(model, [list(range(40))], on_progress=shares.append)
    assert len(shares) > 2
    assert shares == sorted(set(shares))
    assert shares[-1] == 1


def test_limit_scores_the_first_documents_and_is_another_text(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = said(capsys, "eval", "runs/bytes", "--text", "book.txt")["text"]
    first = said(capsys, "eval", "runs/bytes", "--text", "book.txt", "--limit", "1")
    assert first["text"]["documents"] == whole["documents"][:1]
    assert first["results"][0]["error"] is None
    assert len({score.text_sha256 for score in read_scores(Path("runs/bytes"))}) == 2


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["runs/bytes", "--text", "bok.txt"], "no-such-file"),
        (["runs/bytes", "--text", "empty.txt"], "no-text"),
        (["runs/bytes", "--text", "book.txt", "--n_layer=3"], "unexpected-key"),
    ],
)
def test_what_cannot_be_scored_is_three_lines(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], name: str
) -> None:
    Path("empty.txt").write_text("\n\n")
    assert said(capsys, "eval", *arguments, code=2)["error"]["name"] == name
