"""Cards by the names people type, and the figures the product depends on."""

import re

import pytest

from onecard.errors import UnknownCard
from onecard.inputs.runs import doctors_card
from onecard.machine import GpuStatus, Program
from onecard.plan.cards import find_card, known_cards, matching_cards, plain_card, search_cards
from onecard.plan.place import Place, place_of
from onecard.report.cards import cards_json


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("4070", "GeForce RTX 4070"),
        ("A100-PCIE-40-GB", "A100 PCIe 40 GB"),
        ("rtx_3060 (12-GB)", "GeForce RTX 3060 12 GB"),
        ("Apple M1-Max", "Apple M1 Max (32c)"),
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
        ("Tesla V100-PCIE-32GB", "Tesla V100 PCIe 32 GB"),
        ("NVIDIA A100 80GB PCIe", "A100 PCIe 80 GB"),
        ("NVIDIA A800-SXM4-80GB", "A800 SXM4 80 GB"),
        ("NVIDIA A800 80GB PCIe", "A800 PCIe 80 GB"),
        ("NVIDIA H800 PCIe", "H800 PCIe 80 GB"),
        ("NVIDIA H200 NVL", "H200 NVL 141 GB"),
        ("NVIDIA H100 NVL", "H100 NVL 94 GB"),
        ("NVIDIA GH200 480GB", "GH200 96 GB"),  # its processor's memory
        ("gh200", "GH200 96 GB"),
        ("NVIDIA B200", "B200 SXM 180 GB"),
        ("NVIDIA TITAN Xp", "TITAN Xp"),
        ("Tesla P100-PCIE-16GB", "Tesla P100 PCIe 16 GB"),
        ("p4", "Tesla P4"),
        ("3050", "GeForce RTX 3050 8 GB"),
        ("NVIDIA GeForce RTX 3050 Ti Laptop GPU", "GeForce RTX 3050 Ti Mobile"),
        ("3050 laptop 4GB", "GeForce RTX 3050 Mobile 4 GB"),
        ("NVIDIA RTX 4000 Ada Generation", "RTX 4000 Ada Generation"),
        ("t4", "Tesla T4"),
        ("A10", "A10 PCIe"),
        ("A10G", "A10G"),
        ("7900xtx", "Radeon RX 7900 XTX"),
        ("m1 max", "Apple M1 Max (32c)"),
        ("titan rtx", "TITAN RTX"),
        ("4090laptop", "GeForce RTX 4090 Mobile"),
        ("3080 max q", "GeForce RTX 3080 Mobile"),
        ("3060ti 8 GiB", "GeForce RTX 3060 Ti"),
        ("Instinct MI250X", "Radeon Instinct MI250X"),
        ("mi300x", "Radeon Instinct MI300X"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell"),
    ],
)
def test_a_card_is_found_by_the_name_people_type(typed: str, meant: str) -> None:
    assert find_card(typed).name == meant


def test_every_card_is_found_by_its_own_name() -> None:
    for card in known_cards():
        assert find_card(card.name) == card


@pytest.mark.parametrize(
    "typed", ["4060 ti", "a100", "a800", "h100", "h800", "rtx 6000", "V100", "V100 16GB", "3050 laptop"]
)
def test_an_ambiguous_name_is_refused_with_the_choices(typed: str) -> None:
    with pytest.raises(UnknownCard) as caught:
        find_card(typed)
    assert caught.value.name == "ambiguous-card"
    assert len(matching_cards(typed)) > 1
    assert all(card.name in caught.value.what for card in matching_cards(typed))


@pytest.mark.parametrize(
    ("typed", "there_is"),
    [
        ("3060 8gb", ["GeForce RTX 3060 12 GB has 12 GB", "with 8 GB there is GeForce RTX 3060 Ti"]),
        ("4070 16 GB", ["GeForce RTX 4070 has 12 GB", "with 16 GB there is GeForce RTX 4070 Ti SUPER"]),
        ("rtx 4060 16gb", ["GeForce RTX 4060 has 8 GB", "with 16 GB there is GeForce RTX 4060 Ti 16 GB"]),
        ("4090 laptop 24gb", ["GeForce RTX 4090 Mobile has 16 GB", "with 24 GB there is GeForce RTX 4090"]),
        ("V100 24GB", ["Tesla V100 SXM2 16 GB has 16 GB", "Tesla V100 PCIe 32 GB has 32 GB"]),
    ],
)
def test_a_model_with_a_memory_it_has_not_is_refused_with_what_there_is(typed: str, there_is: list[str]) -> None:
    with pytest.raises(UnknownCard) as caught:
        find_card(typed)
    assert all(words in caught.value.why for words in there_is), caught.value.why
    assert find_card(caught.value.fix.removeprefix('--gpu "').removesuffix('"'))  # the fix works


MODELS = sorted({re.sub(r" \d+ GB$", "", card.name) for card in known_cards()})


@pytest.mark.parametrize("size_gb", [2, 4, 6, 8, 10, 11, 12, 16, 20, 24, 32, 40, 48, 80, 96, 128])
def test_a_memory_makes_no_other_model_of_a_card(size_gb: int) -> None:
    for model in MODELS:
        for card in matching_cards(f"{model} {size_gb}GB"):
            assert card.vram_bytes == pytest.approx(size_gb * 2**30, rel=0.07), (model, card.name)
            found = re.sub(r"( Mobile)?( \d+ GB)?$", "", card.name)
            assert found == model.removesuffix(" Mobile"), (model, card.name)


@pytest.mark.parametrize("typed", ["{} {}", "{}{}"])
@pytest.mark.parametrize("suffix", ["Ti", "SUPER", "XT", "XTX", "Mobile"])
def test_a_suffix_is_never_dropped(typed: str, suffix: str) -> None:
    for model in MODELS:
        for card in matching_cards(typed.format(model, suffix)):
            assert suffix in card.name.split(), (model, card.name)
            assert set(model.split()) <= set(card.name.split()), (model, card.name)


def test_a_wrong_digit_is_another_card_or_none() -> None:
    for model in MODELS:
        for number in re.findall(r"\d{4}", model):
            wrong = number[:-2] + str((int(number[-2:]) + 1) % 100).zfill(2)
            for card in matching_cards(model.replace(number, wrong)):
                assert wrong in card.name, (model, card.name)


@pytest.mark.parametrize(
    "typed", ["", "rtx", "voodoo 2", "4071", "💥", "m1", "M2 Pro", "ultra", "ada", "xtx", "laptop", "8gb"]
)
def test_an_unknown_card_is_refused(typed: str) -> None:
    with pytest.raises(UnknownCard):
        find_card(typed)


@pytest.mark.parametrize(
    ("typed", "near"),
    [("m2", "Apple M2 Ultra (76c)"), ("ada", "RTX 6000 Ada Generation"), ("mi300", "Radeon Instinct MI300X")],
)
def test_a_refusal_names_what_is_near(typed: str, near: str) -> None:
    with pytest.raises(UnknownCard) as caught:
        find_card(typed)
    assert near in caught.value.why
    assert caught.value.fix == f'--gpu "{near}"'


@pytest.mark.parametrize(("typed", "size"), [("GTX 1080", "8GiB"), ("GTX 1080 Ti 11GB", "11GiB"), ("940mx", "8GiB")])
def test_a_number_that_no_card_has_is_near_none_and_a_size_is_offered(typed: str, size: str) -> None:
    with pytest.raises(UnknownCard) as caught:
        find_card(typed)
    assert caught.value.fix.startswith(f"--vram {size} ")


@pytest.mark.parametrize(("typed", "number"), [("RTX 407", "4070"), ("RTX 2070 max", "2070"), ("4070 tii", "4070")])
def test_what_is_near_has_the_number_that_was_typed(typed: str, number: str) -> None:
    with pytest.raises(UnknownCard) as caught:
        find_card(typed)
    assert number in caught.value.fix


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


def test_the_json_of_a_card_has_the_source_of_every_figure() -> None:
    for card in cards_json(known_cards())["gpus"]:
        figures = {name for name in card if name not in ("name", "architecture", "sources") and card[name] is not None}
        assert figures >= {"bandwidth_bytes_per_second", "fp32_flops", "native_bf16", "vram_bytes", "peak_flops"}
        assert card["sources"].keys() == figures
        assert all(card["sources"].values()), card["name"]
        if card["architecture"] == "Apple":  # nobody confirms what Apple says of itself
            assert card["sources"]["bandwidth_bytes_per_second"].startswith("estimate")


def test_bf16_is_native_from_compute_capability_8() -> None:
    for card in known_cards():
        if card.compute_capability:
            assert card.native_bf16 == (card.compute_capability >= (8, 0)), card.name
    assert find_card("T4").best_dtype() == "float16"


def test_cards_are_searched_by_word() -> None:
    assert len(search_cards("")) == len(known_cards())
    assert len(search_cards("4070")) == 5
    assert all(card.architecture == "Hopper" for card in search_cards("hopper"))
    assert [card.name for card in search_cards("m1")] == ["Apple M1 Max (32c)"]  # for a list, letters are enough
    assert [card.name for card in search_cards("4070 8gb")] == ["GeForce RTX 4070 Mobile"]
    with pytest.raises(UnknownCard):
        search_cards("voodoo")


def test_this_machines_card_is_taken_as_the_driver_says() -> None:
    status = GpuStatus(
        name="NVIDIA GeForce RTX 4070",
        compute_capability=(8, 9),
        total_bytes=12282 * 2**20,
        driver_bytes=311 * 2**20,
        used_bytes=2150 * 2**20,
        programs=(Program(1, "Xorg", 900 * 2**20),),
    )
    place = place_of(status)
    assert place.card.peak_flops == 58.3e12
    assert place.card.allocatable_bytes == (12282 - 311) * 2**20
    assert place.other_bytes == 2150 * 2**20
    assert place.available_bytes == (12282 - 311 - 2150) * 2**20


@pytest.mark.parametrize(
    ("name", "gib", "meant"),
    [
        ("NVIDIA GeForce RTX 3050 Laptop GPU", 6, "GeForce RTX 3050 Mobile 6 GB"),
        ("NVIDIA GeForce RTX 4060 Ti", 16, "GeForce RTX 4060 Ti 16 GB"),
        ("NVIDIA GeForce RTX 3080", 10, "GeForce RTX 3080"),
    ],
)
def test_of_two_cards_with_one_name_this_machine_has_the_one_with_its_memory(name: str, gib: int, meant: str) -> None:
    place = place_of(GpuStatus(name, (8, 6), gib * 2**30, 0, 0, ()))
    assert place.card.name == meant
    assert place.card.peak_flops


@pytest.mark.parametrize(
    ("typed", "taken"),
    [("V100", "Tesla V100 SXM2 16 GB"), ("V100 32GB", "Tesla V100 SXM2 32 GB"), ("A100", "A100 PCIe 40 GB")],
)
def test_the_doctor_takes_a_name_of_several_cards_whose_peaks_agree(typed: str, taken: str) -> None:
    card = doctors_card(typed)
    assert card
    assert card.name == taken
    with pytest.raises(UnknownCard):
        find_card(typed)


def test_the_doctor_refuses_a_name_of_cards_with_other_peaks() -> None:
    with pytest.raises(UnknownCard):
        doctors_card("H100")


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
