"""onecard sample as a user types it: which checkpoint, tokens with their probabilities, and prompts on a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from onecard.cli.main import run  # noqa: E402
from onecard.cli.prompts import ask_again_and_again  # noqa: E402
from onecard.config.schema import RunConfig  # noqa: E402
from onecard.runs.checkpoint_state import MODEL  # noqa: E402
from onecard.train.interchange import read_run  # noqa: E402
from onecard.train.model import GPT  # noqa: E402
from tests.warm import ROOT  # noqa: E402

TINY = [
    *("--n_layer=2", "--n_head=2", "--n_embd=32", "--block_size=32", "--batch_size=4", "--device=cpu"),
    *("--warmup_iters=2", "--eval_interval=4", "--eval_iters=2", "--max_iters=8", "--lr_decay_iters=8"),
]
OURS = ("sample", "r", "--prompt", "def f(", "--length", "9", "--temperature", "0.9", "--top-k", "7")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setenv("ONECARD_HOME", str(folder / "home"))
        assert run(["train", *TINY, "--out_dir=r"]) == 0
    return folder / "r"


@pytest.fixture
def trained(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that is finished, in the folder to work in."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished, tmp_path / "r")
    return tmp_path / "r"


def said(capsys: pytest.CaptureFixture[str], *typed: str) -> Any:
    """The object that a command with --json prints."""
    capsys.readouterr()
    run([*typed, "--json"])
    return json.loads(capsys.readouterr().out)


def test_json_says_each_token_with_the_models_own_probability(
    capsys: pytest.CaptureFixture[str], trained: Path
) -> None:
    told = said(capsys, *OURS)
    (tokens,) = told["tokens_of_texts"]
    assert told["prompt"] + "".join(each["text"] for each in tokens) == told["text"]
    assert len(tokens) == 9
    saved = read_run(trained)
    model = GPT(RunConfig(**saved.shape))
    model.load_state_dict(dict(saved.weights), strict=False)
    text = [*told["prompt"].encode(), *(each["token"] for each in tokens)]
    with torch.no_grad():
        probabilities_TV = model.logits(model.hidden(torch.tensor([text])))[0].softmax(dim=-1)
    for place, each in enumerate(tokens, start=len(text) - len(tokens)):
        assert each["probability"] == pytest.approx(probabilities_TV[place - 1, text[place]].item(), rel=1e-4)


def test_a_checkpoint_is_chosen_by_name_or_step(capsys: pytest.CaptureFixture[str], trained: Path) -> None:
    (trained / "checkpoints" / "best.json").write_text(json.dumps({"step": 4, "val_loss": 3.25}))

    def step(*which: str) -> int:
        return said(capsys, *OURS, *which)["step"]  # type: ignore[no-any-return]

    assert [step(), step("--checkpoint", "last"), step("--checkpoint", "8")] == [8, 8, 8]
    assert [step("--best"), step("--checkpoint", "best"), step("--checkpoint", "4")] == [4, 4, 4]
    for which in ("5", "worst", "9" * 5000):
        error = said(capsys, *OURS, "--checkpoint", which)["error"]
        assert error["name"] == "no-such-checkpoint"
        assert "this run has 4 (the best), 8" in error["why"]
        assert error["fix"] == f"--checkpoint {4 if which == '5' else 8}"
    assert said(capsys, *OURS, "--checkpoint", "8", "--best")["error"]["name"] == "usage"
    (trained / "checkpoints" / "step-00000004" / MODEL).write_bytes(b"cut off")
    assert said(capsys, *OURS, "--checkpoint", "4")["error"]["name"] == "damaged-checkpoint"
    assert said(capsys, *OURS, "--checkpoint", "8")["step"] == 8


class Terminal:
    """A command on a terminal of its own, as a person sees and types it."""

    def __init__(self, *arguments: str) -> None:
        self.said = ""
        self._screen, there = os.openpty()
        typed = [sys.executable, "-m", "onecard", *arguments]
        environment = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "dumb", "OMP_NUM_THREADS": "1"}

        def take_the_terminal() -> None:  # so that its Ctrl-C is a signal
            os.setsid()
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)

        self.process = subprocess.Popen(
            typed, stdin=there, stdout=there, stderr=there, env=environment, preexec_fn=take_the_terminal
        )
        os.close(there)

    def type(self, keys: str) -> None:
        os.write(self._screen, keys.encode())

    def wait_for(self, text: str) -> str:
        """What is shown until `text` is."""
        end = time.monotonic() + 100
        while text not in self.said:
            assert time.monotonic() < end, self.said
            if select.select([self._screen], [], [], 1)[0]:
                self.said += os.read(self._screen, 4096).decode(errors="replace")
        shown, _, self.said = self.said.partition(text)
        return shown

    def left_by_ctrl_c(self) -> int:
        """The exit code. Python misses a key that comes in the instant between readline's prompt and its wait."""
        for _ in range(20):
            self.type("\x03")
            with suppress(subprocess.TimeoutExpired):
                return self.process.wait(timeout=5)
        raise AssertionError(self.said)


def test_on_a_terminal_it_asks_again_and_ctrl_c_stops_a_text_and_twice_leaves(trained: Path) -> None:
    terminal = Terminal("sample", "r", "--length", "100000000")
    terminal.wait_for("> ")
    terminal.type("def f(\n")
    terminal.wait_for("\n")
    terminal.wait_for("def f(")
    terminal.type("\x03")
    terminal.wait_for("(Ctrl-C again leaves)")
    terminal.wait_for("> ")
    terminal.type("class\n")
    terminal.wait_for("\n")
    terminal.wait_for("class")
    terminal.type("\x03")
    terminal.wait_for("(Ctrl-C again leaves)")
    terminal.wait_for("> ")
    assert terminal.left_by_ctrl_c() == 130


def test_ctrl_d_leaves_and_each_line_is_answered(capsys: pytest.CaptureFixture[str]) -> None:
    answered: list[str] = []
    typed = iter(["a", KeyboardInterrupt, "b", "stop", "", EOFError])

    def line(_mark: str) -> str:
        key = next(typed)
        if isinstance(key, str):
            return key
        raise key

    def answer(text: str) -> None:
        answered.append(text)
        if text == "stop":
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("builtins.input", line)
        assert ask_again_and_again(answer) == 0
    assert answered == ["a", "b", "stop", ""]
    assert capsys.readouterr().out.count("(Ctrl-C again leaves)") == 2
