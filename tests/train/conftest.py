"""One thread for tiny models: two threads that wait for each other on a busy machine take ten times as long."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    torch.set_num_threads(1)
