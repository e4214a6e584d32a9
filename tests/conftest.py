"""One hypothesis profile and the usual signals for everyone, and a home of the tests' own: nobody's caches are used."""

import atexit
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from onecard.config.command import ALLOCATOR_SETTINGS
from tests.warm import NO_TORCH, WarmProcess
from tests.warm_process import TORCH

# No deadlines on busy machines, the same examples every time.
settings.register_profile("onecard", deadline=None, derandomize=True, max_examples=100)
settings.load_profile("onecard")

# Most of these are read once, when the library that looks for them is imported.
HOME = Path(tempfile.mkdtemp(prefix="onecard-tests-"))
atexit.register(shutil.rmtree, HOME, ignore_errors=True)
for name in ("ONECARD_HOME", "HF_HOME", "TRACKIO_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
    os.environ[name] = str(HOME / name.lower())
os.environ.pop("COLUMNS", None)  # which xdist sets: what commands print is as wide as in a pipe

# In the background, or under nohup, these are ignored, and so they would be by every program that a test starts.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)


@pytest.fixture(autouse=True)
def no_allocator_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training in this process sets PyTorch's allocator settings, which a plan in a later test would use."""
    for name in ALLOCATOR_SETTINGS:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmProcess]:
    """Runs commands where torch cannot be imported."""
    folder = tmp_path_factory.mktemp("no_torch")
    (folder / "torch.py").write_text(NO_TORCH)
    process = WarmProcess(python_path=[folder])
    yield process
    process.close()


@pytest.fixture(scope="session")
def warm_with_torch() -> Iterator[WarmProcess]:
    """Runs commands where torch has been imported: those that train, sample, import and export."""
    pytest.importorskip("torch", reason="needs torch")
    process = WarmProcess(*TORCH)
    yield process
    process.close()
