"""Known hashes against a plain set, across files and restarts."""

from pathlib import Path

import numpy as np
import pytest

from onecard.data.duplicates import DocumentHashes
from onecard.errors import ConfigError


def batches(seed: int, *, count: int) -> list[np.ndarray]:
    random = np.random.RandomState(seed)
    return [random.randint(0, 500, size=random.randint(0, 40)).astype(np.uint64) * 2**54 for _ in range(count)]


def expected(known: set[int], hashes: np.ndarray) -> list[bool]:
    new = []
    for each in hashes.tolist():
        new.append(each not in known)
        known.add(each)
    return new


@pytest.mark.parametrize("run_length", [3, 16, 100, 10_000])
def test_new_is_what_a_set_says(tmp_path: Path, run_length: int) -> None:
    seen, known = DocumentHashes(tmp_path, count=0, run_length=run_length), set[int]()
    for hashes in batches(0, count=60):
        assert seen.are_new(hashes).tolist() == expected(known, hashes)
    assert seen.count == len(known) > 300
    seen.close()


@pytest.mark.parametrize("run_length", [3, 16, 100, 10_000])
def test_what_came_after_the_last_save_is_forgotten(tmp_path: Path, run_length: int) -> None:
    known: set[int] = set()
    count = 0
    for start in range(5):
        seen = DocumentHashes(tmp_path, count=count, run_length=run_length)
        for hashes in batches(start, count=12):
            assert seen.are_new(hashes).tolist() == expected(known, hashes)
        count = seen.count
        seen.save(count)
        for hashes in batches(start + 100, count=12):
            seen.are_new(hashes)  # and then the process was killed
        seen.close()
    assert count == len(known)


def test_only_part_of_the_last_batch_may_be_kept(tmp_path: Path) -> None:
    seen = DocumentHashes(tmp_path, count=0, run_length=4)
    assert seen.are_new(np.arange(10, dtype=np.uint64)).all()
    seen.save(6)
    seen.close()
    again = DocumentHashes(tmp_path, count=6, run_length=4)
    assert again.are_new(np.arange(10, dtype=np.uint64)).tolist() == [False] * 6 + [True] * 4
    again.close()


def test_old_files_do_not_pile_up(tmp_path: Path) -> None:
    seen = DocumentHashes(tmp_path, count=0, run_length=8)
    for start in range(0, 200, 4):
        seen.are_new(np.arange(start, start + 4, dtype=np.uint64))
        seen.save(seen.count)
    assert len(list(tmp_path.glob("arrived-*"))) <= 2
    assert len(list(tmp_path.glob("sorted-*"))) == 25
    seen.close()


def test_a_file_that_lost_hashes_is_found(tmp_path: Path) -> None:
    DocumentHashes(tmp_path, count=0).close()
    with pytest.raises(ConfigError) as caught:
        DocumentHashes(tmp_path, count=5)
    assert caught.value.name == "preparation-damaged"


def test_stopped_between_two_files_it_can_still_be_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = DocumentHashes(tmp_path, count=0, run_length=8)
    seen.are_new(np.arange(6, dtype=np.uint64))

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as stopping:
        stopping.setattr(DocumentHashes, "_begin", stop)
        with pytest.raises(KeyboardInterrupt):
            seen.are_new(np.arange(6, 12, dtype=np.uint64))
    seen.save(6)
    seen.close()
    again = DocumentHashes(tmp_path, count=6, run_length=8)
    assert again.are_new(np.arange(10, dtype=np.uint64)).tolist() == [False] * 6 + [True] * 4
    again.close()
