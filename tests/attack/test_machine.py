"""The machine's faults: a home that cannot be written, no memory, signals while a command starts, too many layers."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onecard.cli.main import run
from onecard.config.schema import RunConfig
from onecard.data import home
from onecard.errors import ConfigError, is_out_of_memory, out_of_memory
from onecard.inputs.calibration import Device, calibration_of, keep
from onecard.plan.calibration import TimedRun, decisive
from onecard.runs.folder import load_run
from tests.attack.conftest import ROOT, TINY
from tests.warm import WarmProcess

NOWHERE = "/dev/null/home"  # below a file: not even root can make it


def finish(
    *arguments: str, cwd: Path, environment: dict[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | (environment or {})
    command = [sys.executable, "-m", "onecard", *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=cwd, env=environment, timeout=120, check=False, **options
    )


# A home that cannot be written


@pytest.mark.parametrize("environment", [{"ONECARD_HOME": NOWHERE}, {"ONECARD_HOME": "", "HOME": NOWHERE}])
def test_a_run_trains_without_a_home_to_write_to(
    tmp_path: Path, warm_with_torch: WarmProcess, environment: dict[str, str]
) -> None:
    arguments = ["train", *TINY, "--max_iters=2", "--out_dir=r"]
    environment = environment | {"TMPDIR": str(tmp_path)}
    done = warm_with_torch.run(*arguments, cwd=tmp_path, environment=environment)
    assert done.code == 0, done.stderr
    said = [line for line in done.stderr.splitlines() if "cannot be written" in line]
    assert len(said) == 1
    assert str(tmp_path / f"onecard-{os.getuid()}") in said[0]
    assert load_run(tmp_path / "r").finished


def test_a_temporary_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(home.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(home.tempfile, "tempdir", str(tmp_path))
    (tmp_path / f"onecard-{os.getuid()}").mkdir(mode=0o777)
    (tmp_path / f"onecard-{os.getuid()}").chmod(0o777)  # others can write to it
    home._stand_in.cache_clear()
    try:
        found = home.writable_home({"ONECARD_HOME": NOWHERE})
        assert found.parent == tmp_path
        assert found.name != f"onecard-{os.getuid()}"
        assert home.homes({"ONECARD_HOME": NOWHERE}) == [Path(NOWHERE)]
    finally:
        home._stand_in.cache_clear()


def test_a_home_that_can_be_written_is_used_without_a_word(tmp_path: Path) -> None:
    environment = {"ONECARD_HOME": str(tmp_path / "home")}
    assert home.home_note(environment) is None
    assert home.writable_home(environment) == tmp_path / "home"


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of an earlier command whose home could not be written."""
    monkeypatch.setattr(home.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = tmp_path / f"onecard-{os.getuid()}"
    folder.mkdir(mode=0o700)
    home._stand_in.cache_clear()
    yield folder
    home._stand_in.cache_clear()


def test_the_stand_in_is_in_use_only_as_long_as_the_home_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand_in: Path
) -> None:
    monkeypatch.delenv("ONECARD_HOME", raising=False)
    monkeypatch.setenv("HOME", NOWHERE)
    assert home.homes(os.environ) == [Path(NOWHERE, ".cache", "onecard"), stand_in]
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert home.homes(os.environ) == [tmp_path / "home" / ".cache" / "onecard"]


def test_a_named_home_is_the_only_one_even_if_it_cannot_be_written(stand_in: Path) -> None:
    assert home.homes({"ONECARD_HOME": NOWHERE}) == [Path(NOWHERE)]


def test_a_calibration_of_the_stand_in_is_not_merged_into_that_of_a_home(tmp_path: Path, stand_in: Path) -> None:
    device = Device(card="a processor", driver="", torch="2.13.0")
    timed = [TimedRun(config=decisive(RunConfig(n_layer=layers)), tokens_per_second=640.0) for layers in (1, 2)]
    keep(device, timed[:1], date="2026-11-19", environ={"ONECARD_HOME": str(stand_in)})
    named = {"ONECARD_HOME": str(tmp_path / "home")}
    assert calibration_of(device, named) == (None, None)
    keep(device, timed[1:], date="2026-11-20", environ=named)
    found, _ = calibration_of(device, named)
    assert found
    assert found.runs == tuple(timed[1:])


# No memory


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(12, "Cannot allocate memory"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried"),
        ImportError("libtorch_cpu.so: failed to map segment from shared object"),
    ],
)
def test_no_memory_is_exit_3_with_the_machines_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    def broken(_text: str) -> None:
        raise error

    monkeypatch.setattr("onecard.plan.cards.search_cards", broken)
    assert run(["gpus"]) == 3
    what, why, fix = capsys.readouterr().err.splitlines()
    assert what == "error: the computer ran out of memory  [out-of-memory]"
    assert "allocate" in why or str(error) in why
    assert "nvidia-smi" not in fix


def test_a_card_without_memory_is_named() -> None:
    error = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB")
    assert is_out_of_memory(error)
    assert "nvidia-smi" in out_of_memory(error).fix


def test_a_failure_of_the_system_is_exit_3(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(_text: str) -> None:
        raise OSError(5, "Input/output error", "cards.csv")

    monkeypatch.setattr("onecard.plan.cards.search_cards", broken)
    assert run(["gpus"]) == 3
    assert capsys.readouterr().err.startswith("error: cards.csv could not be read or written  [system-failed]\n")


def test_an_error_that_a_broken_disk_caused_is_exit_3(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_text: str) -> None:
        try:
            raise OSError(5, "Input/output error", "state.json")
        except OSError:
            raise ConfigError("it is damaged", why="it cannot be read", fix="look at it") from None

    monkeypatch.setattr("onecard.plan.cards.search_cards", broken)
    assert run(["gpus"]) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "mebibytes", [pytest.param(300, marks=pytest.mark.long), 400, 700, pytest.param(800, marks=pytest.mark.long)]
)
def test_a_limit_on_memory_never_ends_as_a_bug(tmp_path: Path, mebibytes: int) -> None:
    pytest.importorskip("torch", reason="needs torch")
    limit = (mebibytes * 2**20, mebibytes * 2**20)
    done = finish(
        *("train", *TINY, "--max_iters=2", "--out_dir=r"),
        cwd=tmp_path,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, limit),
    )
    # Code of torch's own may end the process before Python hears of it.
    ended_by_torch = done.returncode == -signal.SIGABRT and "std::bad_alloc" in done.stderr
    assert done.returncode in (0, 3) or ended_by_torch, done.stderr
    assert "nvidia-smi" not in done.stderr
    assert "reinstall" not in done.stderr, "torch is well: there was no memory for it"


# Signals while a command starts

# The line is written when Python has started and onecard begins: before that, no code of ours runs.
STARTED = """
import os
from onecard.__main__ import main
from onecard.cli import signals
os.write(1, b"\\n")
main()
"""


def interrupted(number: int, delay: float, *arguments: str, cwd: Path) -> None:
    """Send a signal so many seconds after the start, and look at how the command ends."""
    with subprocess.Popen(
        [sys.executable, "-c", STARTED, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    ) as process:
        assert process.stdout
        process.stdout.readline()
        time.sleep(delay)
        process.send_signal(number)
        try:
            _, talk = process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == 130, f"{delay} s: exit {process.returncode}\n{talk}"
    assert "Traceback" not in talk
    assert "Exception ignored" not in talk


@pytest.mark.parametrize("delay", [0.005, 0.01, 0.02, 0.03, 0.05, 0.08])
def test_ctrl_c_while_a_command_starts_is_exit_130(tmp_path: Path, delay: float) -> None:
    interrupted(signal.SIGINT, delay, "plan", "--gpu", "rtx-4070", cwd=tmp_path)


LONG = [*TINY, "--max_iters=1000000", "--log_interval=1000000", "--out_dir=r"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("delay", [0.02, 0.3, 0.9, 1.5])
def test_a_signal_before_the_loop_is_exit_130(tmp_path: Path, number: int, delay: float) -> None:
    interrupted(number, delay, "train", *LONG, cwd=tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("hundredths", range(2, 302, 5))
def test_a_signal_at_any_moment_is_exit_130(tmp_path: Path, number: int, hundredths: int) -> None:
    interrupted(number, hundredths / 100, "train", *LONG, cwd=tmp_path)


# Too many layers


def test_a_plan_of_a_thousand_layers_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--gpu", "rtx-4070", "--n_layer=1024"]) == 2
    what, why, fix = capsys.readouterr().err.splitlines()
    assert what == "error: n_layer=1024 is not at most 128  [bad-value]"
    assert "Llama 3.1 405B has 126" in why
    assert fix == "  fix: --n_layer=12"


@pytest.mark.slow
@pytest.mark.parametrize("keys", [[], ["--compile=False"]])
def test_the_deepest_plan_is_answered_within_five_seconds(tmp_path: Path, keys: list[str]) -> None:
    (tmp_path / "deep.py").write_text("n_layer = 128\n")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = finish("plan", "deep.py", "--gpu", "rtx-4070", *keys, cwd=tmp_path)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 1, done.stderr
    assert after.ru_utime - before.ru_utime < 5.0, "seconds of this process, however busy the machine is"
