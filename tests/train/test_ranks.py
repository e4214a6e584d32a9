"""Ranks share an update and an evaluation: run one after another, they find together what one rank finds."""

from __future__ import annotations

from array import array
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from onecard.config.schema import RunConfig  # noqa: E402
from onecard.data.dataset import Dataset, open_dataset  # noqa: E402
from onecard.errors import ConfigError  # noqa: E402
from onecard.models.evaluation import SplitLosses  # noqa: E402
from onecard.models.ranks import ONE_RANK, Ranks  # noqa: E402
from onecard.runs.folder import create_run  # noqa: E402
from onecard.train.evaluate import Evaluation, evaluate  # noqa: E402
from onecard.train.loop import _Heard, _Loop  # noqa: E402
from onecard.train.memory_snapshot import MemorySnapshot  # noqa: E402
from onecard.train.precision import Precision  # noqa: E402
from onecard.train.ranks import Processes, in_buckets  # noqa: E402
from onecard.train.trainer import Trainer  # noqa: E402

TINY = RunConfig(
    n_layer=2, n_head=2, n_embd=32, block_size=16, vocab_size=64, batch_size=2, gradient_accumulation_steps=12,
    warmup_iters=0, max_iters=4, eval_interval=2, eval_iters=7, device="cpu", dtype="float32", compile=False,
)  # fmt: skip
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("tokens")
    tokens = array("H", (index * index // 7 % TINY.vocab_size for index in range(4000)))
    for name in ("train.bin", "val.bin"):
        (folder / name).write_bytes(tokens.tobytes())
    return open_dataset(str(folder), environ={})


def trainer_of(ranks: Ranks, dataset: Dataset, **keys: Any) -> Trainer:
    """A rank's trainer, with weights in float64: what is summed in another order then differs by nothing."""
    precision = Precision(device_type="cpu", dtype=torch.float32)
    trainer = Trainer(TINY.replace(keys), dataset, CPU, precision, processes=Processes(ranks))
    trainer.model.double()
    trainer.steps._loss = trainer.steps._loss.double()
    return trainer


def part_of_update(trainer: Trainer) -> list[Any]:
    """The loss and the gradients that a rank finds for the next update."""
    trainer.steps.gradients(trainer._next_batch, trainer.before_micro_batch)
    trainer.close()
    return [trainer.steps._loss, *(each.grad for each in trainer.model.parameters())]


def ranks_of(world_size: int) -> list[Ranks]:
    return [Ranks(rank=rank, world_size=world_size) for rank in range(world_size)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("written_out", [False, True])
def test_the_gradients_of_the_ranks_add_up_to_those_of_the_update(
    dataset: Dataset, world_size: int, written_out: bool
) -> None:
    found = []
    for ranks in (ONE_RANK, *ranks_of(world_size)):
        trainer = trainer_of(ranks, dataset)
        assert trainer.steps.accumulation == 12 // ranks.world_size
        if written_out:
            trainer.steps.passes = trainer.model.passes(torch.float64)
        found.append(part_of_update(trainer))
    undivided, *parts = found
    for part, whole in zip((sum(each) for each in zip(*parts, strict=True)), undivided, strict=True):
        torch.testing.assert_close(part, whole, rtol=1e-9, atol=1e-12)
    if world_size > 1:
        assert not torch.allclose(parts[0][0] * world_size, undivided[0], rtol=1e-6), "each rank read its own"


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_ranks_that_take_the_step_of_the_summed_gradients_stay_where_one_rank_is(
    dataset: Dataset, world_size: int
) -> None:
    def three_updates(trainers: list[Trainer]) -> list[Any]:
        for _ in range(3):
            found = [part_of_update(trainer) for trainer in trainers]
            sums = [sum(each) for each in zip(*found, strict=True)]
            for trainer in trainers:
                for parameter, gradient in zip(trainer.model.parameters(), sums[1:], strict=True):
                    parameter.grad = gradient.clone()
                trainer.steps.step(trainer.steps.ready_to_step())
                trainer.step += 1
        assert {trainer.tokens for trainer in trainers} == {3 * TINY.tokens_per_step}, "records count all ranks' tokens"
        return [list(trainer.model.parameters()) for trainer in trainers]

    (alone,) = three_updates([trainer_of(ONE_RANK, dataset)])
    for weights in three_updates([trainer_of(ranks, dataset) for ranks in ranks_of(world_size)]):
        for ours, theirs in zip(weights, alone, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 5])
def test_the_evaluations_of_the_ranks_add_up_to_the_whole(dataset: Dataset, world_size: int, batch_size: int) -> None:
    trainer = trainer_of(ONE_RANK, dataset)
    train, val = trainer.eval_windows

    def found_by(ranks: Ranks) -> Evaluation:
        with trainer.evaluating() as losses:
            return evaluate(
                losses,
                train=train,
                val=val,
                batch_size=batch_size,
                device=CPU,
                on_oom=pytest.fail,
                processes=Processes(ranks),
            )

    whole, parts = found_by(ONE_RANK), [found_by(ranks) for ranks in ranks_of(world_size)]
    for split in ("train", "val"):
        one, summed = getattr(whole, split), reduce(add, (getattr(part, split) for part in parts))
        assert summed.sequences == one.sequences == len(val) == 14
        assert (summed.mean, summed.error) == pytest.approx((one.mean, one.error), rel=1e-12)
    assert {part.tokens_read for part in parts} == {whole.tokens_read}


def test_losses_of_parts_add_up_by_hand() -> None:
    parts = [SplitLosses(mean=2.0, sequences=1), SplitLosses(), SplitLosses(mean=5.0, spread=2**0.5, sequences=2)]
    summed = reduce(add, parts)  # 2, 4 and 6
    assert (summed.mean, summed.spread, summed.sequences) == (4.0, 2.0, 3)
    assert reduce(add, parts[:2]) == parts[0]


def test_weights_are_the_same_on_all_ranks_and_dropout_is_not(dataset: Dataset) -> None:
    trainers = [trainer_of(ranks, dataset, dropout=0.5) for ranks in ranks_of(3)]
    for trainer in trainers[1:]:
        for ours, first in zip(trainer.model.parameters(), trainers[0].model.parameters(), strict=True):
            assert torch.equal(ours, first)
    states = []
    for ranks in [ONE_RANK, *ranks_of(3)]:
        trainer_of(ranks, dataset, dropout=0.5)
        states.append(torch.get_rng_state())
    assert torch.equal(states[0], states[1]), "the first rank draws what one card draws"
    assert len({state.numpy().tobytes() for state in states}) == 3


def test_an_update_that_does_not_divide_is_refused_before_there_is_a_model(dataset: Dataset) -> None:
    with pytest.raises(ConfigError, match="24 sequences per update, 2 at a time, do not divide among 5 ranks"):
        trainer_of(Ranks(rank=1, world_size=5), dataset)


@pytest.mark.parametrize(("world_size", "before", "after"), [(1, 4, 2), (2, 4, 2), (4, 6, 3), (8, 9, 3)])
def test_after_running_out_of_memory_the_ranks_still_read_the_sequences_of_the_update(
    dataset: Dataset, world_size: int, before: int, after: int
) -> None:
    keys = {"batch_size": before, "gradient_accumulation_steps": 8}
    undivided = part_of_update(trainer_of(ONE_RANK, dataset, **keys))
    parts = []
    for ranks in ranks_of(world_size):
        trainer, told = trainer_of(ranks, dataset, **keys), []
        trainer._shrink("out of memory", told.append)
        assert (told[0].after, trainer.steps.accumulation) == (after, 8 * before // after // world_size)
        assert (told[0].accumulation_before, told[0].accumulation_after) == (8, 8 * before // after), "as in the config"
        parts.append(part_of_update(trainer))
    for part, whole in zip((sum(each) for each in zip(*parts, strict=True)), undivided, strict=True):
        torch.testing.assert_close(part, whole, rtol=1e-9, atol=1e-12)


def test_a_micro_batch_that_does_not_divide_a_ranks_share_is_not_taken_up(dataset: Dataset) -> None:
    keys = {"batch_size": 9, "gradient_accumulation_steps": 8}
    one = trainer_of(ONE_RANK, dataset, **keys)
    one.steps.batch_size = 4
    for world_size, expected in ((1, 4), (2, 4), (4, 9), (8, 9)):
        trainer = trainer_of(Ranks(world_size=world_size), dataset, **keys)
        trainer.restore(one.state())
        assert trainer.batch_size == expected


def contents(path: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize(("rank", "writes"), [(0, True), (1, False)])
def test_only_the_first_rank_writes_and_is_heard(dataset: Dataset, tmp_path: Path, rank: int, writes: bool) -> None:
    heard: list[object] = []
    path = tmp_path / "run"
    with create_run(path, config=TINY.model_dump()) as folder:
        before = contents(path)
        listening = _Heard(
            on_record=heard.append,
            on_note=heard.append,
            on_interrupt=heard.append,
            on_progress=lambda *done: heard.append(done),
        )
        two = Processes(Ranks(rank=rank, world_size=2))
        snapshot = MemorySnapshot(None, CPU)
        loop = _Loop(TINY, folder, dataset, heard=listening, after_step=lambda: None, snapshot=snapshot, processes=two)
        finished = loop.run(resume=False, predicted_process_bytes=None)
        assert (finished.end.reason, finished.end.tokens) == ("finished", 4 * TINY.tokens_per_step)
        assert bool(heard) == (contents(path) != before) == writes


def test_buckets_keep_the_order_and_only_a_larger_tensor_exceeds_one() -> None:
    tensors = [torch.zeros(size) for size in (3, 4, 3, 20, 1, 10, 1)]
    assert [[len(each) for each in bucket] for bucket in in_buckets(tensors, 10)] == [[3, 4, 3], [20], [1], [10], [1]]
    assert list(in_buckets([], 10)) == []
