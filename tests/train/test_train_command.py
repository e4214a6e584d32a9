"""onecard train and sample as a user types them: signals, refusals."""

from __future__ import annotations

import math
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs torch")

from onecard.runs.folder import load_run
from tests.warm import Outcome, WarmProcess

Finish = Callable[..., Outcome]

ROOT = Path(__file__).parents[2]
TINY = [
    *("--n_layer=2", "--n_head=2", "--n_embd=32", "--block_size=32", "--batch_size=4", "--device=cpu"),
    *("--warmup_iters=2", "--eval_interval=20", "--eval_iters=2"),
]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return os.environ | {"ONECARD_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "onecard", *arguments]


@pytest.fixture
def finish(tmp_path: Path, warm_with_torch: WarmProcess) -> Finish:
    """Runs a command to its end."""

    def run(*arguments: str, **environment: str) -> Outcome:
        home = {"ONECARD_HOME": str(tmp_path / "home")}
        return warm_with_torch.run(*arguments, cwd=tmp_path, environment=home | environment)

    return run


def losses(path: Path) -> list[float]:
    return [step.loss for step in load_run(path).steps]


def test_train_sample_refuse_resume(tmp_path: Path, finish: Finish) -> None:
    short = [*TINY, "--max_iters=6", "--lr_decay_iters=6", "--out_dir=r"]
    done = finish("train", *short)
    assert done.code == 0, done.stderr
    assert "val " in done.stdout
    text = finish("sample", "r", "--prompt", "def ", "--length", "20")
    assert text.code == 0, text.stderr
    assert text.stdout.startswith("def ")
    again = finish("train", *short)
    assert again.code == 2
    assert again.stderr.splitlines()[0].endswith("[run-exists]")
    finished = finish("train", "--resume", "r")
    assert finished.code == 0
    assert "is finished" in finished.stderr
    shape = finish("train", "--resume", "r", "--n_embd=64")
    assert shape.code == 2
    assert "n_embd=64 (was 32)" in shape.stderr
    longer = finish("train", "--resume", "r", "--max_iters=8")
    assert longer.code == 0, longer.stderr
    assert load_run(tmp_path / "r").last_step == 8


def test_a_resume_that_is_refused_leaves_the_folder_as_it_was(tmp_path: Path, finish: Finish) -> None:
    first = [*TINY, "--max_iters=6", "--lr_decay_iters=6", "--out_dir=r"]
    assert finish("train", *first).code == 0
    config = (tmp_path / "r" / "config.json").read_bytes()
    shorter = finish("train", "--resume", "r", "--max_iters=4")
    assert (shorter.code, shorter.stderr.count("\n")) == (2, 3), shorter.stderr
    assert shorter.stderr.splitlines()[0].endswith("[resume-mismatch]")
    assert "step 6" in shorter.stderr
    assert "onecard train --resume r --max_iters=12" in shorter.stderr
    assert (tmp_path / "r" / "config.json").read_bytes() == config
    same = finish("train", "--resume", "r", "--max_iters=6")
    assert "is finished: step 6 of 6" in same.stderr
    other = (tmp_path / "r" / "config.json").read_text().replace("python-stdlib", "gone")
    (tmp_path / "r" / "config.json").write_text(other)
    gone = finish("train", "--resume", "r", "--max_iters=9")
    assert "[no-such-dataset]" in gone.stderr
    assert (tmp_path / "r" / "config.json").read_text() == other


def test_init_from_resume_is_a_resume_with_the_settings_of_the_file(tmp_path: Path, finish: Finish) -> None:
    lines = [f"{flag[2:]}\n" for flag in TINY if "device" not in flag]
    text = "".join([*lines, "device='cpu'\ndataset='python-stdlib'\nlr_decay_iters=6\n"])
    (tmp_path / "small.py").write_text(f"{text}max_iters=6\n")
    begun = finish("train", "small.py")
    assert begun.code == 0, begun.stderr
    resuming = f"{text}init_from='resume'\n"
    (tmp_path / "small.py").write_text(f"{resuming}max_iters=8\n")
    longer = finish("train", "small.py")
    assert longer.code == 0, longer.stderr
    assert load_run(tmp_path / "runs" / "small").last_step == 8, "the folder that the file's name gave"
    assert load_run(tmp_path / "runs" / "small").config["max_iters"] == 8
    assert load_run(tmp_path / "runs" / "small").config["init_from"] == "scratch"
    assert load_run(tmp_path / "runs" / "small").config["out_dir"] == "runs/small"
    (tmp_path / "small.py").write_text(f"{resuming}max_iters=9\nn_embd=64\n")
    refused = finish("train", "small.py")
    assert refused.code == 2
    assert refused.stderr.splitlines()[0].endswith("[resume-mismatch]")
    assert "n_embd=64 (was 32)" in refused.stderr
    assert load_run(tmp_path / "runs" / "small").config["max_iters"] == 8
    fitted = finish("train", "small.py", "--fit")
    assert fitted.code == 2
    assert "--fit would be ignored" in fitted.stderr
    assert "onecard train --resume runs/small" in fitted.stderr
    flags = ["--init_from=resume", "--out_dir=runs/small", "--max_iters=9"]
    typed = finish("train", *flags)
    assert typed.code == 0, typed.stderr
    assert load_run(tmp_path / "runs" / "small").last_step == 9


def test_nanogpts_lines_are_printed_where_asked_for(tmp_path: Path, finish: Finish) -> None:
    style = [
        *TINY,
        "--max_iters=2",
        "--lr_decay_iters=2",
        "--warmup_iters=0",
        "--log_interval=1",
        "--log_style=nanogpt",
    ]
    done = finish("train", *style)
    lines = done.stdout.splitlines()
    assert lines[0].startswith("step 0: train loss ")
    assert lines[1].startswith("iter 1: loss ")


def test_no_gpu_is_exit_3(tmp_path: Path, finish: Finish) -> None:
    for data in ([], ["--dataset=not_here"]):
        done = finish("train", *TINY, "--device=cuda", *data, CUDA_VISIBLE_DEVICES="")
        assert done.code == 3
        assert done.stderr.splitlines()[0].endswith("[no-gpu]")


@pytest.mark.parametrize(
    ("flag", "name"),
    [
        ("--optimizer=adamw8bit", "bad-value"),
        ("--offload=optimizer", "unknown-key"),
        ("--loggers=wanb", "unknown-logger"),
        ("--init_from=gpt2-huge", "weights-not-here"),
        ("--dataset=nope", "no-such-dataset"),
        ("--vocab_size=100", "token-out-of-range"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(
    tmp_path: Path, finish: Finish, flag: str, name: str
) -> None:
    done = finish("train", *TINY, "--out_dir=r", flag)
    assert done.code == 2
    assert done.stderr.splitlines()[0].endswith(f"[{name}]")
    assert not (tmp_path / "r").exists()


def test_a_longer_run_says_what_it_does_to_the_learning_rate(tmp_path: Path, finish: Finish) -> None:
    first = [*TINY, "--max_iters=6", "--lr_decay_iters=6", "--out_dir=r"]
    assert finish("train", *first).code == 0
    flat = finish("train", "--resume", "r", "--max_iters=8")
    (said,) = (line for line in (flat.stderr + flat.stdout).splitlines() if "--lr_decay_iters=8" in line)
    assert said.endswith("[decay-horizon]")
    flat = finish("train", "--resume", "r", "--max_iters=10")
    (said,) = (line for line in (flat.stderr + flat.stdout).splitlines() if "--lr_decay_iters=10" in line)
    assert "from step 6 on the learning rate stays at min_lr" in said, "the doctor reports a rule once in a run"
    raised = finish("train", "--resume", "r", "--max_iters=12", "--lr_decay_iters=12")
    assert "the learning rate goes from" in raised.stderr
    other = finish("train", "--resume", "r", "--max_iters=14", "--batch_size=2")
    assert other.code == 2
    fix = shlex.split(other.stderr.splitlines()[2].partition("fix: ")[2])
    assert fix[:2] == ["onecard", "train"]
    assert finish(*fix[1:], "--max_iters=14").code == 0


def test_a_run_without_a_whole_checkpoint_is_not_begun_anew(tmp_path: Path, finish: Finish) -> None:
    first = [*TINY, "--max_iters=6", "--lr_decay_iters=6", "--out_dir=r"]
    assert finish("train", *first).code == 0
    files = sorted((tmp_path / "r" / "checkpoints").glob("*/model.safetensors"))
    for file in files:
        file.write_bytes(file.read_bytes()[:100])
    again = finish("train", "--resume", "r", "--max_iters=9")
    assert again.code == 2
    assert "[damaged-checkpoint]" in again.stderr
    assert sorted((tmp_path / "r" / "checkpoints").glob("*/model.safetensors")) == files, "nothing was deleted"


def test_a_loss_that_stays_no_number_ends_the_run_and_keeps_the_last_good_checkpoint(
    tmp_path: Path, finish: Finish
) -> None:
    fatal = ["--learning_rate=1e6", "--grad_clip=0", "--max_iters=200", "--eval_interval=5", "--out_dir=r"]
    done = finish("train", *TINY, *fatal)
    assert done.code == 2
    assert "[diverged]" in done.stderr
    run = load_run(tmp_path / "r")
    assert run.last_step < 200
    wrong = [step.step for step in run.steps if not math.isfinite(step.loss)]
    assert wrong
    assert all(saved.step < wrong[0] for saved in run.checkpoints)


def test_a_damaged_config_is_told_in_three_lines(tmp_path: Path, finish: Finish) -> None:
    first = [*TINY, "--max_iters=2", "--out_dir=r"]
    assert finish("train", *first).code == 0
    config = tmp_path / "r" / "config.json"
    config.write_text(config.read_text().replace('"n_layer": 2', '"n_layer": "x"'))
    again = finish("train", "--resume", "r", "--max_iters=4")
    for shown in (
        again,
        finish("sample", "r"),
        finish("export", "r", "--to", "hf"),
    ):
        assert shown.code == 2, shown.stderr
        assert shown.stderr.count("\n") == 3
        assert shown.stderr.splitlines()[0].endswith("n_layer='x' is not a whole number  [damaged-run]")
        assert "fix: rm r/config.json   (then the last start record" in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["config.py", "--resume", "r"], "config.py would be ignored"),
        (["--resume", "r", "--fit"], "--fit would be ignored"),
        (["--memory_snapshot", "memory.pickle"], "memory.json"),
        (["--resume", ""], "--resume is empty"),
        (["--profile", ""], "--profile is empty"),
        (["--memory_snapshot", ""], "--memory_snapshot is empty"),
        ([""], "CONFIG is empty"),
        (["--out_dir="], "--out_dir is empty"),
        (["here.py"], "out_dir is empty"),
    ],
)
def test_what_would_be_ignored_or_overwritten_is_refused(
    tmp_path: Path, finish: Finish, arguments: list[str], words: str
) -> None:
    (tmp_path / "here.py").write_text("out_dir = ''")
    done = finish("train", *arguments)
    assert done.code == 2
    assert words in done.stderr
    assert done.stderr.count("\n") == 3
    assert {path.name for path in tmp_path.iterdir()} <= {"here.py", "home"}


@pytest.mark.parametrize("typed", [["--out_dir=~/r"], ["tilde.py"]])
def test_a_tilde_is_the_home_folder(tmp_path: Path, finish: Finish, typed: list[str]) -> None:
    (tmp_path / "tilde.py").write_text("out_dir = '~/r'\ndataset = 'python-stdlib'")
    me = str(tmp_path / "me")
    done = finish("train", *typed, *TINY, "--max_iters=1", HOME=me)
    assert done.code == 0, done.stderr
    assert load_run(tmp_path / "me" / "r").finished
    assert not (tmp_path / "~").exists()
    again = finish("train", "--resume", "~/r", "--out_dir=~/r", HOME=me)
    assert "is finished" in again.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("streams", ["stdout", "both"])
def test_a_full_disk_under_the_output_ends_no_run(tmp_path: Path, warm_with_torch: WarmProcess, streams: str) -> None:
    done = warm_with_torch.run(
        *("train", *TINY, "--max_iters=3", "--log_interval=1", "--out_dir=r"),
        cwd=tmp_path,
        environment={"ONECARD_HOME": str(tmp_path / "home")},
        stdout=Path("/dev/full"),
        stderr=Path("/dev/full") if streams == "both" else None,
    )
    assert done.code == 0, done.stderr
    assert load_run(tmp_path / "r").finished
    told = [line for line in done.stderr.splitlines() if "No space left on device" in line]
    assert len(told) == (0 if streams == "both" else 1)
    assert all("the run continues" in line and str(Path("r/records.jsonl")) in line for line in told)


def wait_for_step(path: Path, step: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (path / "records.jsonl").exists() and load_run(path).last_step >= step:
            return
        time.sleep(0.05)
    raise AssertionError("the run does not get there")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_exits_130(tmp_path: Path, environment: dict[str, str], number: int) -> None:
    arguments = ["train", *TINY, "--max_iters=100000", "--eval_interval=100000", "--out_dir=r"]  # no evaluation to hit
    with subprocess.Popen(
        command(*arguments), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=tmp_path, env=environment, text=True
    ) as process:
        wait_for_step(tmp_path / "r", 3)
        process.send_signal(number)
        _, talk = process.communicate(timeout=60)
    assert process.returncode == 130, talk
    assert talk.index("stopping after this step, then saving") < talk.index("onecard train --resume r")
    run = load_run(tmp_path / "r")
    assert run.end
    assert run.end.reason == "interrupted"
    assert run.checkpoints[-1].step == run.last_step
