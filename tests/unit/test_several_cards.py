"""Several cards: sums by hand arithmetic, a rank's share, what it costs, and what does not go."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from onecard.config.schema import RunConfig
from onecard.errors import OnecardError
from onecard.inputs.make_plan import plan_named
from onecard.inputs.several_cards import cards_asked_for
from onecard.models.optimizers import optimizer_of
from onecard.models.ranks import Ranks
from onecard.paper.tags import GATHERED, OPTIMIZER_STATE, WEIGHTS
from onecard.paper.tape import parts_at
from onecard.plan.cards import device_of, find_card
from onecard.plan.counts import count_params
from onecard.plan.interconnects import INTERCONNECTS, Interconnect, find_interconnect
from onecard.plan.memory.onecard.tape import onecard_tape
from onecard.plan.memory.predict import predict_onecard
from onecard.plan.place import Place
from onecard.plan.plan import Plan
from onecard.plan.ranges import Range
from onecard.plan.several_cards import Asked, divided, pace_of, share_of, worth_up_to
from onecard.plan.speed import predict_speed
from onecard.plan.speed.communication import BUCKET_BYTES, Traffic, gradient_bytes, ring_bytes, sum_seconds
from onecard.report.plan import print_plan
from onecard.report.plan_json import plan_json

CARD = find_card("RTX 4070")
CONFIG = RunConfig(
    n_layer=4, n_head=4, n_embd=256, block_size=512, batch_size=8, gradient_accumulation_steps=12, max_iters=1000
)


def link(*, bytes_per_second: float = 1e9, step_seconds: float = 0.0, share: float = 1.0) -> Interconnect:
    return Interconnect(
        name="made-up",
        title="made up",
        bytes_per_second=bytes_per_second,
        source="this test",
        reached=Range(low=share / 2, likely=share, high=share),
        reached_source="this test",
        step_seconds=step_seconds,
    )


def planned(config: dict[str, object] | None = None, **asked: object) -> Plan:
    keys = CONFIG.model_dump(exclude_defaults=True) | (config or {})
    return plan_named(keys, [], **({"gpu": "RTX 4070"} | asked))  # type: ignore[arg-type]


@pytest.mark.parametrize(("ranks", "share_sent"), [(1, 0), (2, 1), (3, 4 / 3), (4, 1.5), (8, 1.75), (100, 1.98)])
def test_a_ring_sends_twice_the_sum_but_for_a_share_of_one_rank(ranks: int, share_sent: float) -> None:
    assert ring_bytes(1000, ranks) == pytest.approx(1000 * share_sent)


def test_seconds_of_a_sum_by_hand() -> None:
    # four ranks send 1.5 x 50 MiB at half of 1 GiB/s, then wait 6 steps for each of two buckets
    seconds = sum_seconds(2 * BUCKET_BYTES, 4, (link(bytes_per_second=2**30, share=0.5, step_seconds=0.001),))
    assert seconds.likely == pytest.approx(1.5 * 50 / 1024 / 0.5 + 2 * 6 * 0.001)
    assert seconds.high == pytest.approx(1.5 * 50 / 1024 / 0.25 + 2 * 6 * 0.001)
    assert seconds.low == seconds.likely


def test_the_slowest_link_sets_the_pace() -> None:
    fast, slow = link(bytes_per_second=1e11), link(bytes_per_second=1e9)
    assert sum_seconds(10**9, 2, (fast, slow)) == sum_seconds(10**9, 2, (slow,))
    assert sum_seconds(10**9, 2, (fast,)).likely == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("name", "gigabytes_per_second"),
    [
        ("pcie-4-x8", 15.754),
        ("pcie-4-x16", 31.508),
        ("pcie-5-x16", 63.015),
        ("nvlink-3", 300),
        ("nvlink-3-bridge", 56.25),
        ("nvlink-4", 450),
        ("ethernet-10", 1.25),
        ("infiniband-400", 50),
    ],
)
def test_published_rates_of_one_direction(name: str, gigabytes_per_second: float) -> None:
    found = find_interconnect(name)
    assert found is not None
    assert found.bytes_per_second == pytest.approx(gigabytes_per_second * 1e9, rel=1e-4)


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("PCIe 4.0 x16", "pcie-4-x16"),
        ("pcie4x8", "pcie-4-x8"),
        ("100GbE", "ethernet-100"),
        ("InfiniBand 400", "infiniband-400"),
        ("nvlink", None),
        ("carrier pigeon", None),
        *((each.title, each.name) for each in INTERCONNECTS),
    ],
)
def test_links_are_found_by_the_names_people_use(typed: str, name: str | None) -> None:
    found = find_interconnect(typed)
    assert (found.name if found else None) == name


def test_one_card_is_todays_plan_to_the_byte() -> None:
    today, one = planned(trainer="onecard"), planned(trainer="onecard", gpus=1)
    alone, cards = plan_json(today), plan_json(one)
    several = cards.pop("cards")
    assert cards == alone
    ours = alone["trainers"]["onecard"]
    assert several["process_bytes"] == ours["process_bytes"]
    assert several["tokens_per_second"] == ours["speed"]["tokens_per_second"]
    assert several["seconds_total"] == ours["speed"]["seconds_total"]
    assert several["seconds_per_step"] == ours["speed"]["seconds_per_step"]


def test_a_rank_has_its_share_of_the_update_and_of_the_evaluation() -> None:
    share = share_of(CONFIG.replace({"eval_iters": 10}), 4)
    assert (share.gradient_accumulation_steps, share.eval_iters, share.batch_size) == (3, 3, 8)
    assert share.max_iters == CONFIG.max_iters


def test_memory_of_a_rank_is_that_of_its_tape() -> None:
    config = CONFIG.replace({"gradient_accumulation_steps": 2, "compile": False})
    room = CARD.allocatable_bytes
    memory = predict_onecard(config, CARD, available_bytes=room, ranks=Ranks(world_size=2))
    two = predict_onecard(config, CARD, available_bytes=room)
    assert memory.phases["train"].allocated_bytes < two.phases["train"].allocated_bytes, "no sum of micro-batches"
    several = planned({"gradient_accumulation_steps": 2, "compile": False}, gpus=2).several_cards
    assert several is not None
    assert several.rank.memory == memory


@pytest.mark.parametrize("ranks", [2, 3, 4, 6, 12])
def test_more_cards_are_never_slower_in_computing_and_never_faster_than_their_number(ranks: int) -> None:
    alone, together = pace_of(CONFIG, CARD, 1, ()), pace_of(CONFIG, CARD, ranks, (link(),))
    assert alone
    assert together
    computing = predict_speed(share_of(CONFIG, ranks), CARD, "onecard")
    assert computing
    assert computing.step_seconds.likely <= alone.step_seconds.likely
    assert together.tokens_per_second.likely <= ranks * alone.tokens_per_second.likely
    step = computing.step_seconds.likely + 2 * (ranks - 1) / ranks * gradient_bytes(CONFIG) / 1e9
    assert together.step_seconds.likely == pytest.approx(step)
    assert together.tokens_per_second.likely == pytest.approx(CONFIG.tokens_per_step / step)


def test_cards_are_worth_it_until_another_brings_less_than_half() -> None:
    endless, slow, none = link(bytes_per_second=1e18), link(bytes_per_second=2e9), link(bytes_per_second=1e6)
    big = CONFIG.replace({"gradient_accumulation_steps": 64})
    assert worth_up_to(big, CARD, Asked(links=(none,))) == (1, False)
    some, whole = worth_up_to(big, CARD, Asked(links=(slow,)))
    most, _ = worth_up_to(big, CARD, Asked(links=(endless,)))
    assert some is not None
    assert most is not None
    assert 1 < some < most <= big.sequences_per_step
    assert not whole
    alone, there, next_one = (pace_of(divided(big, ranks), CARD, ranks, (slow,)) for ranks in (1, some, 2 * some))
    assert alone
    assert there
    assert next_one
    gain = (next_one.tokens_per_second.likely - there.tokens_per_second.likely) / some
    assert gain < alone.tokens_per_second.likely / 2


def test_a_second_machine_behind_a_slow_network_does_not_count_against_the_first() -> None:
    inside, network = link(bytes_per_second=1e11), replace(link(bytes_per_second=1e6), between_machines=True)
    big = CONFIG.replace({"gradient_accumulation_steps": 64})
    two_boxes = Asked(per_machine=4, machines=2, links=(inside, network))
    assert worth_up_to(big, CARD, two_boxes) == (4, False)
    assert two_boxes.links_of(4) == (inside,)
    assert two_boxes.links_of(8) == (inside, network)
    assert Asked(per_machine=4, links=(inside,)).links_of(8) == (inside,), "one larger machine"


def test_two_machines_are_compared_with_one() -> None:
    fine = {"batch_size": 2, "gradient_accumulation_steps": 48}
    several = planned(fine, gpus=4, nodes=2, interconnects=["pcie-4-x16", "ethernet-10"]).several_cards
    assert several is not None
    assert several.machine is not None
    alone = planned(fine, gpus=4, interconnects=["pcie-4-x16"]).several_cards
    assert alone is not None
    assert alone.pace is not None
    assert several.machine.tokens_per_second.likely == pytest.approx(alone.pace.tokens_per_second.likely)
    assert several.machines_worth is not None
    assert several.machines_worth < 1, "10 Gb/s make two machines slower than one"
    assert several.cards_worth is not None
    assert alone.cards_worth is not None
    assert several.machines_worth == pytest.approx(several.cards_worth / alone.cards_worth, rel=0.05)
    assert alone.machines_worth is None


def test_the_price_of_all_cards_for_as_long_as_they_take_and_the_cheapest() -> None:
    several = planned(gpus=4, prices=["0.5", "RTX 4090=0.6", "RTX 3050 8 GB=0.001"]).several_cards
    assert several is not None
    assert several.pace is not None
    first, second, third = several.costs
    assert first.cost.likely == pytest.approx(4 * 0.5 * several.pace.total_seconds.likely / 3600)
    assert second.card.name == "GeForce RTX 4090"
    assert second.total_seconds.likely < first.total_seconds.likely
    assert several.cheapest == third


def test_a_card_that_the_run_does_not_fit_is_never_the_cheapest() -> None:
    several = planned({"n_layer": 12, "n_embd": 768, "batch_size": 16}, gpus=2, prices=["1", "GTX 1650=0.001"])
    assert several.several_cards is not None
    assert [cost.fits for cost in several.several_cards.costs] == [True, False]
    assert several.several_cards.cheapest == several.several_cards.costs[0]


@pytest.mark.parametrize(
    ("asked", "name", "fix"),
    [
        ({"gpus": 5}, "ranks-do-not-divide", "--batch_size=7 --gradient_accumulation_steps=15"),
        ({"gpus": 0}, "bad-cards", "--gpus 2"),
        ({"nodes": -1}, "bad-cards", "--nodes 2"),
        ({"gpus": 2, "interconnects": ["pci"]}, "unknown-interconnect", "--interconnect pcie-4-x8"),
        ({"gpus": 2, "interconnects": ["ethernet-10"]}, "interconnect-unused", "--nodes 2"),
        ({"interconnects": ["nvlink-4"]}, "interconnect-unused", "--gpus 2"),
        ({"gpus": 2, "interconnects": ["pcie-5-x16", "nvlink-4"]}, "two-interconnects", "--interconnect pcie-5-x16"),
        ({"gpus": 2, "prices": ["free"]}, "bad-price", "--price 0.35"),
        ({"gpus": 2, "prices": ["nan"]}, "bad-price", "--price 0.35"),
        ({"gpus": 2, "gpu": "none", "prices": ["1"]}, "no-card", "--gpu"),
        ({"gpus": 2, "trainer": "nanogpt"}, "not-nanogpts-cards", "--trainer onecard"),
        ({"gpus": 2, "fit": True}, "two-questions", "onecard plan config --gpu 'GeForce RTX 4070' --gpus 2"),
        ({"gpus": 2, "prices": ["RTX 409=0.35"]}, "unknown-card", '--price "GeForce RTX 4090=0.35"'),
    ],
)
def test_what_cannot_be_planned_is_refused_with_what_to_type(asked: dict[str, object], name: str, fix: str) -> None:
    with pytest.raises(OnecardError) as refused:
        planned(**asked)
    assert refused.value.name == name
    assert fix in refused.value.fix


def test_links_that_nobody_named_are_assumed_and_said() -> None:
    asked = cards_asked_for(4, 2, ["ethernet-100"], (), place=Place(card=CARD))
    assert asked is not None
    assert [each.name for each in asked.links] == ["pcie-4-x16", "ethernet-100"]
    assert asked.assumed == ("PCIe 4 x16",)
    assert asked.ranks.world_size == 8
    assert cards_asked_for(None, None, (), (), place=None) is None


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("model", ["gpt2", "nanochat"])
def test_what_a_run_keeps_is_divided_among_cards_that_share_a_model(model: str, dtype: str, optimizer: str) -> None:
    config = CONFIG.replace({"shard": "full", "dtype": dtype, "optimizer": optimizer, "vocab_size": 4096})
    config = config.replace({"model": model})
    kept = optimizer_of(config).held_bytes - 4 * count_params(config).total  # without gradients
    for ranks in (2, 4):
        tape = onecard_tape(config, device_of(CARD), ranks=Ranks(world_size=ranks))
        at_the_end = parts_at(tape, len(tape.events) - 1)
        ours = sum(at_the_end[tag] for tag in (WEIGHTS, OPTIMIZER_STATE))
        assert ours == pytest.approx(kept / ranks, rel=0.01)  # blocks are rounded up to 512 bytes
        assert GATHERED not in at_the_end, "what is gathered is given back"


def test_cards_that_share_a_model_hold_two_blocks_at_most() -> None:
    """By hand: buffer and weights of a block, and while it computes backwards the buffer of the one before, or its
    gradients on their way; beside them what is outside the blocks, gathered for all of a micro-batch."""
    config = CONFIG.replace({"shard": "full", "dtype": "float32", "vocab_size": 512})
    block = 4 * (12 * 256**2 + 2 * 256)
    rest = 4 * (512 * 256 + 512 * 256 + 256)
    memory = predict_onecard(config, CARD, ranks=Ranks(world_size=2))
    (gathered,) = (part.size_bytes for part in memory.parts_of("train") if part.name == GATHERED)
    assert rest + block <= gathered <= rest + 3 * block


def test_one_process_has_nothing_to_share() -> None:
    shared, alone = (predict_onecard(CONFIG.replace({"shard": shard}), CARD) for shard in ("full", "none"))
    assert shared == alone
    shared_plan, plan = planned({"shard": "full"}).onecard, planned().onecard
    assert shared_plan
    assert plan
    assert shared_plan.speed == plan.speed


def test_traffic_of_cards_that_share_a_model_by_hand() -> None:
    """Two cards, two micro-batches each: blocks come twice in half precision, the rest once, gradients go once."""
    config = CONFIG.replace(
        {"shard": "full", "dtype": "bfloat16", "vocab_size": 512, "gradient_accumulation_steps": 4, "batch_size": 1}
    )
    block, rest = 12 * 256**2 + 2 * 256, 2 * 512 * 256 + 256
    sent = (2 * 2 * 4 * block + 4 * rest + 4 * (4 * block + rest)) / 2
    traffic = Traffic.of(config, 2)
    assert traffic.sent_bytes == pytest.approx(2 * sent)
    slow, fast = link(bytes_per_second=1e3), link(bytes_per_second=1e15)
    assert traffic.seconds((slow,)).likely == pytest.approx(2 * sent / 1e3)
    computing = 6.0  # seconds of an update
    assert traffic.hidden_seconds((slow,), computing) == pytest.approx(computing * 3 / 4), "behind all blocks but one"
    nearly_nothing = traffic.seconds((fast,)).likely
    assert 0 < traffic.hidden_seconds((fast,), computing) < nearly_nothing
    assert traffic.hidden_seconds((fast,), 0.0) == 0


@pytest.mark.parametrize(
    ("shard", "gpus", "way"),
    [("full", 2, "eager: the cards share the model"), ("full", 1, "compiled"), ("none", 2, "compiled")],
)
def test_the_plan_says_whether_blocks_run_compiled(shard: str, gpus: int, way: str) -> None:
    console = Console(width=200, file=StringIO(), record=True)
    print_plan(planned({"shard": shard}, gpus=gpus), console)
    (run,) = (line for line in console.export_text().splitlines() if line.startswith("run "))
    assert run.endswith(f"; bfloat16, {way}")


def told(plan: Plan, **how: bool) -> dict[str, str]:
    """What is printed, by label; lines without one go on with the last."""
    console = Console(width=400, file=StringIO(), record=True)
    print_plan(plan, console, **how)
    return {line[:9].strip(): line[9:].strip() for line in reversed(console.export_text().splitlines())}


def test_what_does_not_fit_the_cards_has_the_fastest_change_that_does() -> None:
    asked = {"n_layer": 12, "n_embd": 768, "batch_size": 96}
    large = planned(asked, gpus=4)
    assert large.fits is False
    assert large.several_cards
    change = large.several_cards.change
    assert change
    assert change.pace
    changed = large.config.replace(dict(change.patch))
    assert changed.tokens_per_step == large.config.tokens_per_step
    assert predict_onecard(changed, CARD, available_bytes=large.room_bytes, ranks=Ranks(world_size=4)).fits
    for other in ({"batch_size": 16, "gradient_accumulation_steps": 72}, {"grad_checkpoint": "full"}):
        planned_so = planned(asked | other, gpus=4)
        assert planned_so.several_cards
        assert planned_so.several_cards.pace
        slower = planned_so.several_cards.pace.tokens_per_second.likely <= change.pace.tokens_per_second.likely
        assert slower or not planned_so.several_cards.rank.fits_with_desktop, other
    assert " --gpu 'GeForce RTX 4070' --gpus 4" in told(large)["type"]
    assert "--fit" not in told(large)["type"]


def test_cards_that_must_share_the_model_are_told_so_and_a_model_too_large_for_them_too() -> None:
    wide = {"n_layer": 8, "n_embd": 2048, "n_head": 16, "vocab_size": 512}
    shared = planned(wide, gpu="GTX 1650", gpus=4)
    assert shared.several_cards
    assert shared.several_cards.change
    assert shared.several_cards.change.patch["shard"] == "full"
    none = planned(wide | {"n_embd": 4096}, gpu="GTX 1650", gpus=2)
    assert none.several_cards
    assert none.several_cards.change is None
    said = told(none)
    assert said["change"].startswith("nothing fits, not even shard=full")
    assert said["type"].endswith("--gpu 'GeForce GTX 1650' --fit")


@pytest.mark.parametrize(
    ("asked", "command"),
    [
        ({"gpus": 2}, "torchrun --nproc_per_node=2 -m onecard train config"),
        (
            {"gpus": 2, "nodes": 2},
            "torchrun --nnodes=2 --rdzv_id=onecard --rdzv_backend=c10d --rdzv_endpoint=HOST:29400 "
            "--nproc_per_node=2 -m onecard train config",
        ),
        ({"prices": ["1"]}, "onecard train config"),
        ({"gpus": 2, "gpu": "none"}, 'onecard plan config --gpus 2 --gpu "RTX 4070"'),
    ],
)
def test_a_run_that_fits_the_cards_has_the_line_that_starts_it(asked: dict[str, object], command: str) -> None:
    assert told(planned(**asked))["type"] == command


def test_only_what_several_cards_do_is_said_to_be_unmeasured() -> None:
    assert "nobody has measured it" not in told(planned(prices=["1"]))["speed"]
    assert "nobody has measured it" in told(planned(gpus=2))["speed"]


def test_all_tables_below_several_cards_are_about_one_of_them() -> None:
    large = {"n_layer": 12, "n_embd": 768, "batch_size": 32}
    console = Console(width=200, file=StringIO(), record=True)
    print_plan(planned(large, gpus=2, sensitivity=True), console, details=True)
    text = console.export_text()
    assert "nanoGPT, " not in text, "no memory of one card's run under nanoGPT"
    assert "under nanoGPT" not in text
    assert "what to change" not in text
    assert "under onecard, on each card" in text
    two = planned(large, gpus=2, sensitivity=True)
    assert two.several_cards
    assert two.sensitivity
    rank, (shared,) = two.several_cards.rank.memory, [each for each in two.sensitivity if each.key == "shard"]
    alone = predict_onecard(two.config, CARD, ranks=Ranks(world_size=2)).process_bytes
    assert shared.process_bytes - shared.difference_bytes == alone
    assert rank.process_bytes >= alone
    assert {each.trainer for each in two.sensitivity} == {"onecard"}


def test_cards_that_need_smaller_micro_batches_are_counted_with_them() -> None:
    coarse = planned({"batch_size": 24, "gradient_accumulation_steps": 4}, gpus=2, interconnects=["pcie-5-x16"])
    several = coarse.several_cards
    assert several
    assert several.worth
    assert several.worth > 4
    assert f"in micro-batches of {divided(coarse.config, several.worth).batch_size}" in told(coarse)["worth it"]
