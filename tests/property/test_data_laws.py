"""Whatever the sizes: every window once per epoch, one number says where a run is, and no file crashes a reader."""

import json
import pickle
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from onecard.data.checks import check_dataset
from onecard.data.dataset import open_dataset
from onecard.data.nanogpt_meta import read_meta
from onecard.data.tokens import TokenFile, Tokens
from onecard.data.windows import EvalWindows, Windows
from onecard.errors import ConfigError
from onecard.models.ranks import Ranks

blocks = st.integers(1, 20)
seeds = st.integers(0, 2**63 - 1)


class Counted(Tokens):
    """Tokens whose ids are their positions, in files of the given lengths, without a disk."""

    def __init__(self, *lengths: int) -> None:
        class InMemory(TokenFile):
            def mapped(self) -> Any:
                return np.arange(self.first_byte, self.first_byte + self.count)

        begins = np.cumsum([0, *lengths]).tolist()
        super().__init__([InMemory(Path(), "uint32", begin, n) for begin, n in zip(begins, lengths, strict=False)])


@given(blocks, st.integers(1, 300), seeds, st.integers(0, 5))
def test_in_an_epoch_no_token_is_predicted_twice(block_size: int, more: int, seed: int, epoch: int) -> None:
    windows = Windows(Counted(block_size + more), block_size=block_size, seed=seed)
    _, y = windows.batch(epoch * windows.per_epoch, windows.per_epoch)
    assert len(np.unique(y)) == y.size


@given(blocks, st.integers(1, 300), seeds, st.integers(0, 5))
def test_an_epoch_is_all_of_the_data_but_less_than_two_blocks(
    block_size: int, more: int, seed: int, epoch: int
) -> None:
    windows = Windows(Counted(block_size + more), block_size=block_size, seed=seed)
    starts = windows.starts(epoch * windows.per_epoch, windows.per_epoch)
    assert len(set((starts // block_size).tolist())) == windows.per_epoch
    assert block_size + more - 1 - windows.per_epoch * block_size < 2 * block_size
    assert starts.min() >= 0
    assert starts.max() + block_size < block_size + more


@given(blocks, st.integers(1, 200), seeds, st.integers(0, 200), st.integers(0, 12))
def test_a_batch_is_its_sequences_one_by_one(block_size: int, more: int, seed: int, first: int, count: int) -> None:
    windows = Windows(Counted(block_size + more), block_size=block_size, seed=seed)
    again = Windows(Counted(block_size + more), block_size=block_size, seed=seed)
    x, y = windows.batch(first, count)
    assert x.shape == y.shape == (count, block_size)
    for number in reversed(range(count)):  # the order of asking must not matter
        one_x, one_y = again.batch(first + number, 1)
        assert np.array_equal(one_x[0], x[number])
        assert np.array_equal(one_y[0], y[number])


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 4), st.integers(0, 3))
def test_the_ranks_of_an_update_read_its_sequences_whatever_the_micro_batch(
    world_size: int, micro_batch: int, micro_batches: int, updates_done: int
) -> None:
    """Each rank's micro-batches of two updates, next to those of one rank that reads one sequence at a time."""
    windows = Windows(Counted(300), block_size=4, seed=1)
    sequences = world_size * micro_batch * micro_batches
    first = updates_done * sequences
    read = [windows.batches(first, micro_batch, ranks=Ranks(rank=r, world_size=world_size)) for r in range(world_size)]
    one_by_one = windows.batches(first, 1)
    for _ in range(2):
        update = [next(batches)[0] for batches in read for _ in range(micro_batches)]
        found = sorted(row.tolist() for x_BT in update for row in x_BT)
        assert found == sorted(next(one_by_one)[0][0].tolist() for _ in range(sequences))


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 6))
def test_the_ranks_of_an_evaluation_read_its_windows(count: int, batch: int, world_size: int) -> None:
    windows = EvalWindows(Counted(200), block_size=3, count=count)
    shares = [windows.batches(batch, ranks=Ranks(rank=rank, world_size=world_size)) for rank in range(world_size)]
    found = sorted(row.tolist() for batches in shares for x_BT, _ in batches for row in x_BT)
    assert found == windows.batch(0, count)[0].tolist()


@given(st.lists(st.integers(0, 30), min_size=1, max_size=5), st.data())
def test_shards_read_as_one_file(lengths: list[int], data: st.DataObject) -> None:
    total = sum(lengths)
    start = data.draw(st.integers(0, total))
    length = data.draw(st.integers(0, total - start))
    assert Counted(*lengths).read(start, length).tolist() == list(range(start, start + length))


@given(blocks, st.integers(1, 300), st.integers(1, 60), st.integers(1, 9))
def test_evaluation_windows_never_overlap_and_batches_change_nothing(
    block_size: int, more: int, count: int, batch: int
) -> None:
    windows = EvalWindows(Counted(block_size + more), block_size=block_size, count=count)
    y = np.concatenate([y for _, y in windows.batches(batch)])
    assert np.array_equal(y, windows.batch(0, count)[1])
    assert len(np.unique(y)) == y.size == windows.tokens_read
    assert len(windows) == min(count, (block_size + more - 1) // block_size) >= 1


@given(st.binary(max_size=200))
def test_random_bytes_never_crash_the_pickle_reader(raw: bytes) -> None:
    try:
        read_meta(raw)
    except ValueError:
        pass


@given(st.data())
def test_a_damaged_pickle_never_crashes_its_reader(data: st.DataObject) -> None:
    raw = bytearray(pickle.dumps({"vocab_size": 3, "itos": {0: "a", 1: "b", 2: "c"}}, data.draw(st.integers(0, 5))))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        read_meta(bytes(raw))
    except ValueError:
        pass


@settings(max_examples=50)
@given(
    train=st.binary(max_size=3000),
    val=st.binary(max_size=600),
    meta=st.none()
    | st.binary(max_size=40)
    | st.dictionaries(
        st.sampled_from(["dtype", "vocab_size", "train", "val", "tokenizer", "characters"]),
        st.none()
        | st.integers()
        | st.sampled_from(["uint32", "gpt2", "bytes"])
        | st.lists(st.text(max_size=3), max_size=3),
    ).map(lambda value: json.dumps(value).encode()),
)
def test_a_folder_of_random_bytes_is_data_or_a_clear_error(train: bytes, val: bytes, meta: bytes | None) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.bin").write_bytes(train)
        (folder / "val.bin").write_bytes(val)
        if meta is not None:
            (folder / "meta.json").write_bytes(meta)
        try:
            dataset = open_dataset(name, environ={"ONECARD_HOME": str(folder)})
            check_dataset(dataset, block_size=8, vocab_size=dataset.vocab_size or 50304, eval_tokens=100)
        except ConfigError as problem:
            assert all((problem.what, problem.why, problem.fix))
            return
        assert Windows(dataset.train, block_size=8, seed=0).batch(0, 2)[0].max() < (dataset.vocab_size or 50304)
