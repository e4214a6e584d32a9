"""Tiny models: one thread, since two that wait for each other take ten times as long, and a short speed test."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def short_speed_test(one_thread: None) -> None:
    """The one that a run on the CPU begins with takes longer than such a run."""
    from onecard.train import cpu

    cpu.TEST_SECONDS = 0.0
