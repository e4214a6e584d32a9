"""What is divided among ranks: all of it, nothing twice, and a clear error where it cannot be."""

from __future__ import annotations

from itertools import islice

import pytest

from onecard.config.schema import RunConfig
from onecard.errors import ConfigError
from onecard.models.evaluation import eval_sequences
from onecard.models.ranks import ONE_RANK, Ranks, ranks_of_torchrun
from onecard.models.run_on_paper import PaperRun
from onecard.paper.device import H200
from onecard.plan.memory.onecard.tape import onecard_tape

TINY = RunConfig(n_layer=1, n_head=2, n_embd=64, block_size=64, vocab_size=256, batch_size=2, eval_iters=4)


def all_of(world_size: int) -> list[Ranks]:
    return [Ranks(rank=rank, world_size=world_size) for rank in range(world_size)]


def update(sequences: int, micro_batch: int) -> RunConfig:
    return TINY.replace({"batch_size": micro_batch, "gradient_accumulation_steps": sequences // micro_batch})


def test_one_rank_has_everything_and_writes() -> None:
    assert ONE_RANK.share(range(0, 10, 3)) == range(0, 12, 3)
    assert list(islice(ONE_RANK.turns(6, 2), 3)) == [6, 8, 10]
    assert ONE_RANK.writes
    assert ONE_RANK.dropout_seed(1337) is None, "as one card has always drawn"


def test_ranks_take_turns() -> None:
    assert [list(islice(ranks.turns(12, 2), 3)) for ranks in all_of(3)] == [[12, 18, 24], [14, 20, 26], [16, 22, 28]]
    assert [list(ranks.share(range(0, 14, 2))) for ranks in all_of(3)] == [[0, 6, 12], [2, 8], [4, 10]]


def test_one_of_several_writes_and_each_draws_its_own_dropout() -> None:
    assert [ranks.writes for ranks in all_of(3)] == [True, False, False]
    seeds = [ranks.dropout_seed(seed) for ranks in all_of(4)[1:] for seed in (0, 1337, 2**63 - 1)]
    assert len({*seeds}) == len(seeds)
    assert all(seed is not None and 0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize(
    ("sequences", "micro_batch", "world_size", "fix"),
    [
        (480, 12, 7, "--gradient_accumulation_steps=42   (504 sequences per update: the nearest that divides)"),
        (
            480,
            12,
            64,
            "--batch_size=8 --gradient_accumulation_steps=64   (512 sequences per update: the nearest that divides)",
        ),
        (
            16,
            16,
            3,
            "--batch_size=5 --gradient_accumulation_steps=3   (15 sequences per update: the nearest that divides)",
        ),
        (1, 1, 3, "--gradient_accumulation_steps=3   (3 sequences per update: the nearest that divides)"),
        (480, 12, 3, "--batch_size=10 --gradient_accumulation_steps=48   (the same 480 sequences per update)"),
        (40, 8, 4, "--batch_size=10 --gradient_accumulation_steps=4   (the same 40 sequences per update)"),
        (8, 8, 8, "--batch_size=1 --gradient_accumulation_steps=8   (the same 8 sequences per update)"),
    ],
)
def test_what_does_not_divide_is_refused_with_the_nearest_that_does(
    sequences: int, micro_batch: int, world_size: int, fix: str
) -> None:
    config = update(sequences, micro_batch)
    with pytest.raises(ConfigError) as refused:
        Ranks(world_size=world_size).check(config)
    assert refused.value.name == "ranks-do-not-divide"
    assert refused.value.fix == fix
    patch = dict(flag.removeprefix("--").split("=") for flag in fix.partition("(")[0].split())
    Ranks(world_size=world_size).check(config.replace({key: int(value) for key, value in patch.items()}))


@pytest.mark.parametrize(("world_size", "micro_batch"), [(1, 12), (2, 12), (3, 10), (64, 12)])
def test_a_micro_batch_that_onecard_chooses_divides_where_any_does(world_size: int, micro_batch: int) -> None:
    divided = Ranks(world_size=world_size).divided(update(480, 12))
    assert (divided.batch_size, divided.sequences_per_step) == (micro_batch, 480)


def test_what_ranks_evaluate_does_not_depend_on_their_number() -> None:
    config = update(480, 12).replace({"eval_iters": 5})
    assert [eval_sequences(Ranks(world_size=n).divided(config)) for n in (1, 2, 3, 64)] == [60, 60, 60, 60]


def test_a_run_that_goes_on_is_offered_a_number_of_ranks_that_divides_its_updates() -> None:
    with pytest.raises(ConfigError) as refused:
        Ranks(world_size=3).check(update(16, 8), resumed=True)
    assert refused.value.fix.startswith("torchrun --nproc_per_node=2, ")


def test_one_rank_takes_every_update() -> None:
    for sequences, micro_batch in ((480, 12), (5, 5), (7, 1)):
        ONE_RANK.check(update(sequences, micro_batch))


@pytest.mark.parametrize("keys", [{}, {"dtype": "float32"}, {"compile": False}])
def test_on_paper_a_rank_allocates_what_one_card_does_with_its_share_of_the_update(keys: dict[str, object]) -> None:
    shared = TINY.replace({"gradient_accumulation_steps": 4, **keys})
    whole = shared.replace({"gradient_accumulation_steps": 1, "eval_iters": 1})
    of_rank = onecard_tape(shared, H200, ranks=Ranks(rank=3, world_size=4))
    alone, undivided = onecard_tape(whole, H200), onecard_tape(shared, H200)
    assert (of_rank.sizes, of_rank.tags, of_rank.events) == (alone.sizes, alone.tags, alone.events)
    assert len(of_rank.events) < len(undivided.events)


def test_on_paper_the_batches_of_an_evaluation_are_divided() -> None:
    config = TINY.replace({"eval_batch_size": 3})  # 8 sequences: 3, 3 and 2
    batches = [PaperRun(config, H200, ranks=ranks).eval_batches for ranks in all_of(4)]
    assert batches == [[3], [3], [2], []]
    assert PaperRun(config, H200).eval_batches == [3, 3, 2]


def test_a_process_is_one_of_several_only_where_torchrun_says_all_of_it() -> None:
    said = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
    assert ranks_of_torchrun(said) is None, "a variable that somebody left in a shell"
    said |= {"MASTER_ADDR": "node0", "MASTER_PORT": "29400"}
    assert ranks_of_torchrun(said) == Ranks(rank=3, world_size=4, local_rank=1, local_size=2)
