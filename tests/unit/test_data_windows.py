"""Windows and the thread that makes them ready."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from onecard.data.prefetch import Prefetcher
from onecard.data.tokens import Tokens, token_file
from onecard.data.windows import EvalWindows, Windows


def tokens(folder: Path, count: int) -> Tokens:
    (folder / "x.bin").write_bytes(np.arange(count).astype("<u2").tobytes())
    return Tokens([token_file(folder / "x.bin")])


def test_a_batch_is_tokens_and_the_ones_after_them(tmp_path: Path) -> None:
    x, y = Windows(tokens(tmp_path, 100), block_size=8, seed=1).batch(0, 5)
    assert x.shape == y.shape == (5, 8)
    assert x.dtype == y.dtype == np.int64
    assert x.flags.c_contiguous
    assert y.flags.c_contiguous
    assert np.array_equal(y, x + 1)


def test_the_order_of_a_seed_is_the_same_forever(tmp_path: Path) -> None:
    windows = Windows(tokens(tmp_path, 100), block_size=8, seed=1337)
    assert windows.per_epoch == 11
    assert windows.starts(0, 12).tolist() == [12, 36, 68, 28, 52, 4, 44, 60, 84, 20, 76, 57]


def test_seeds_and_epochs_have_orders_and_offsets_of_their_own(tmp_path: Path) -> None:
    data = tokens(tmp_path, 1000)
    first, other = (Windows(data, block_size=8, seed=seed) for seed in (1, 2))
    count = first.per_epoch
    orders = {tuple(windows.starts(n * count, count) // 8) for windows in (first, other) for n in (0, 1)}
    assert len(orders) == 4
    assert len({int(first.starts(n * count, 1)[0]) % 8 for n in range(40)}) > 4


def test_the_shortest_possible_data_is_one_window(tmp_path: Path) -> None:
    windows = Windows(tokens(tmp_path, 9), block_size=8, seed=1)
    assert windows.per_epoch == 1
    assert windows.batch(0, 3)[1].tolist() == [[1, 2, 3, 4, 5, 6, 7, 8]] * 3


def test_evaluation_windows_are_spread_and_always_the_same(tmp_path: Path) -> None:
    data = tokens(tmp_path, 1001)
    windows = EvalWindows(data, block_size=10, count=4)
    assert [int(x[0, 0]) for x, _ in windows.batches(1)] == [0, 250, 500, 750]
    assert np.array_equal(windows.batch(0, 4)[0], EvalWindows(data, block_size=10, count=4).batch(0, 4)[0])


def test_a_smaller_evaluation_batch_reads_the_same_tokens(tmp_path: Path) -> None:
    windows = EvalWindows(tokens(tmp_path, 1001), block_size=10, count=7)
    whole = windows.batch(0, 7)[1]
    assert np.array_equal(np.concatenate([y for _, y in windows.batches(2)]), whole)
    assert windows.tokens_read == 70


def test_an_evaluation_larger_than_the_data_reads_it_once(tmp_path: Path) -> None:
    windows = EvalWindows(tokens(tmp_path, 35), block_size=10, count=1000)
    assert len(windows) == 3
    assert windows.batch(0, 1000)[0].ravel().tolist() == list(range(30))


def test_prefetched_items_come_in_order_and_end() -> None:
    with Prefetcher(iter(range(50)), depth=3) as ready:
        assert list(ready) == list(range(50))
        assert list(ready) == []


def test_at_most_depth_items_are_made_ahead() -> None:
    made: list[int] = []

    def source() -> Iterator[int]:
        for number in range(100):
            made.append(number)
            yield number

    with Prefetcher(source(), depth=2) as ready:
        assert next(ready) == 0
        time.sleep(0.05)
        assert len(made) <= 4  # one taken, two ready, one waiting for room


def test_an_error_in_the_source_comes_after_the_items_before_it() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise OSError("the disk is gone")

    with Prefetcher(source()) as ready:
        assert next(ready) == 1
        for _ in range(2):
            with pytest.raises(OSError, match="the disk is gone"):
                next(ready)


def test_the_wait_is_measured() -> None:
    def slow() -> Iterator[int]:
        while True:
            time.sleep(0.05)
            yield 0

    with Prefetcher(slow()) as ready:
        next(ready)
        assert 0.02 < ready.waited_seconds < 5
        before = ready.waited_seconds
        time.sleep(0.2)
        next(ready)
        assert ready.waited_seconds - before < 0.02


def test_closing_stops_the_thread_at_once_and_twice_is_fine() -> None:
    ready = Prefetcher(iter(range(10**9)))
    next(ready)
    ready.close()
    ready.close()
    assert not any(thread.name == "onecard-prefetch" for thread in threading.enumerate())
    assert list(ready) == []


def test_a_smaller_batch_takes_over_where_the_larger_one_failed(tmp_path: Path) -> None:
    windows = Windows(tokens(tmp_path, 1000), block_size=8, seed=3)
    with Prefetcher(windows.batches(8, 4)) as ready:
        whole = next(ready)[0]
    with Prefetcher(windows.batches(8, 2)) as ready:
        assert np.array_equal(np.concatenate([next(ready)[0], next(ready)[0]]), whole)
