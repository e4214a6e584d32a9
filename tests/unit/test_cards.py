"""Cards by the names people type, and the figures the product depends on."""

import pytest

from onecard.errors import UnknownCard
from onecard.machine import GpuStatus, Program
from onecard.plan.cards import find_card, known_cards, matching_cards, plain_card, search_cards
from onecard.plan.place import Place, place_of


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("4070", "GeForce RTX 4070"),
        ("rtx4070 laptop", "GeForce RTX 4070 Mobile"),
        ("NVIDIA GeForce RTX 4070 Laptop GPU", "GeForce RTX 4070 Mobile"),
        ("RTX 4070 Ti SUPER", "GeForce RTX 4070 Ti SUPER"),
        ("4070tisuper", "GeForce RTX 4070 Ti SUPER"),
        ("rtx-4070", "GeForce RTX 4070"),
        ("4070 8GB", "GeForce RTX 4070 Mobile"),
        ("3080", "GeForce RTX 3080"),
        ("3080 12gb", "GeForce RTX 3080 12 GB"),
        ("3060", "GeForce RTX 3060 12 GB"),
        ("3060 max-q", "GeForce RTX 3060 Mobile"),
        ("NVIDIA A100-SXM4-80GB", "A100 SXM4 80 GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM5 80 GB"),
        ("NVIDIA H200", "H200 SXM 141 GB"),
        ("Tesla V100-SXM2-16GB", "Tesla V100 SXM2 16 GB"),
        ("t4", "Tesla T4"),
        ("A10", "A10 PCIe"),
        ("A10G", "A10G"),
        ("7900xtx", "Radeon RX 7900 XTX"),
        ("m1 max", "Apple M1 Max (32c)"),
        ("titan rtx", "TITAN RTX"),
    ],
)
def test_a_card_is_found_by_the_name_people_type(typed: str, meant: str) -> None:
    assert find_card(typed).name == meant


def test_every_card_is_found_by_its_own_name() -> None:
    for card in known_cards():
        assert find_card(card.name) == card


@pytest.mark.parametrize("typed", ["4060 ti", "a100", "h100", "rtx 6000"])
def test_an_ambiguous_name_is_refused_with_the_choices(typed: str) -> None:
    with pytest.raises(UnknownCard) as caught:
        find_card(typed)
    assert caught.value.name == "ambiguous-card"
    assert len(matching_cards(typed)) > 1
    assert all(card.name in caught.value.what for card in matching_cards(typed))


@pytest.mark.parametrize("typed", ["", "rtx", "voodoo 2", "4071", "💥"])
def test_an_unknown_card_is_refused(typed: str) -> None:
    with pytest.raises(UnknownCard):
        find_card(typed)


def test_the_rtx_4070_is_what_its_owner_sees() -> None:
    card = find_card("RTX 4070")
    assert card.vram_bytes == 12282 * 2**20
    assert card.allocatable_bytes == round(11.69 * 2**30)
    assert card.peak_flops == 58.3e12
    assert card.compute_capability == (8, 9)
    assert card.native_bf16


def test_every_figure_has_a_source_or_is_an_estimate() -> None:
    assert len(known_cards()) >= 80
    for card in known_cards():
        assert card.vram_source, card.name
        assert card.allocatable_source, card.name
        assert card.peak_source, card.name
        assert card.context_source, card.name
        assert 0 < card.allocatable_bytes <= card.vram_bytes
        assert card.peak_flops
        assert card.bandwidth_bytes_per_second


def test_bf16_is_native_from_compute_capability_8() -> None:
    for card in known_cards():
        if card.compute_capability:
            assert card.native_bf16 == (card.compute_capability >= (8, 0)), card.name
    assert find_card("T4").best_dtype() == "float16"


def test_cards_are_searched_by_word() -> None:
    assert len(search_cards("")) == len(known_cards())
    assert len(search_cards("4070")) == 5
    assert all(card.architecture == "Hopper" for card in search_cards("hopper"))
    with pytest.raises(UnknownCard):
        search_cards("voodoo")


def test_this_machines_card_is_taken_as_the_driver_says() -> None:
    status = GpuStatus(
        name="NVIDIA GeForce RTX 4070",
        compute_capability=(8, 9),
        total_bytes=12282 * 2**20,
        driver_bytes=311 * 2**20,
        used_bytes=(311 + 2150) * 2**20,
        programs=(Program(1, "Xorg", 900 * 2**20),),
    )
    place = place_of(status)
    assert place.card.peak_flops == 58.3e12
    assert place.card.allocatable_bytes == (12282 - 311) * 2**20
    assert place.other_bytes == 2150 * 2**20
    assert place.available_bytes == (12282 - 311 - 2150) * 2**20


def test_a_card_nobody_knows_is_planned_from_its_memory() -> None:
    status = GpuStatus("NVIDIA Strange 9000", (12, 0), 10 * 2**30, 0, 0, ())
    place = place_of(status)
    assert place.card.name == "NVIDIA Strange 9000"
    assert place.card.peak_flops is None
    assert place.card.native_bf16


def test_vram_and_other_replace_what_the_card_says() -> None:
    place = Place(card=find_card("4070")).with_memory(vram_bytes=4 * 2**30, other_bytes=2**30)
    assert place.available_bytes == 3 * 2**30
    assert plain_card(4 * 2**30).allocatable_bytes == 4 * 2**30
