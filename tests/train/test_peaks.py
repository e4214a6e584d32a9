"""What the allocator held at most, against a counter that stands in for CUDA's."""

import pytest

torch = pytest.importorskip("torch", reason="training needs torch: pip install 'onecard[train]'")

from onecard.train.peaks import Peaks  # noqa: E402


class Counter:
    """CUDA's peaks: the highest since the last reset, which falls to what is held then."""

    def __init__(self) -> None:
        self.held = self.allocated = self.reserved = 0

    def hold(self, allocated: int, reserved: int) -> None:
        self.held = reserved
        self.allocated, self.reserved = max(self.allocated, allocated), max(self.reserved, reserved)

    def reset(self) -> None:
        self.allocated, self.reserved = 0, self.held


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    counted = Counter()
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: counted.allocated)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: counted.reserved)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: counted.reset())
    return counted


def test_an_evaluations_peak_is_its_own_and_the_runs_is_remembered(counter: Counter) -> None:
    peaks = Peaks(torch.device("cuda", 0))
    counter.hold(70, 90)
    assert (peaks.allocated_in_training(), peaks.reserved_in_run()) == (70, 90)
    counter.hold(0, 20)  # activations are freed
    peaks.begin()
    counter.hold(30, 40)
    assert (peaks.allocated(), peaks.reserved()) == (30, 40)
    assert peaks.highest_in_training == 70, "an evaluation is no training"
    peaks.begin()
    counter.hold(60, 80)
    assert (peaks.allocated_in_training(), peaks.reserved_in_run()) == (60, 90)
    assert peaks.highest_in_training == 70


def test_what_was_reserved_between_two_updates_counts_for_the_run(counter: Counter) -> None:
    peaks = Peaks(torch.device("cuda", 0))
    counter.hold(10, 50)
    peaks.begin()
    counter.hold(10, 20)
    peaks.begin()
    assert peaks.reserved_in_run() == 50


def test_off_cuda_there_are_none() -> None:
    peaks = Peaks(torch.device("cpu"))
    peaks.begin()
    assert [peaks.allocated(), peaks.reserved(), peaks.allocated_in_training(), peaks.reserved_in_run()] == [None] * 4
    assert peaks.highest_in_training == 0
