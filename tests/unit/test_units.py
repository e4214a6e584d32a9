"""Sizes and counts, as people type and read them."""

import pytest

from onecard import units


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4464MiB", 4464 * 2**20),
        ("12 GB", 12 * 10**9),
        ("11.69GiB", round(11.69 * 2**30)),
        ("1024", 1024),
        ("2g", 2 * 2**30),
        ("1,024 KiB", 2**20),
        ("0", 0),
        ("1,234,567.5 kb", 1_234_567_500),
        ("12_000", 12_000),
    ],
)
def test_sizes_are_read_in_binary_and_decimal_units(text: str, size: int) -> None:
    assert units.parse_bytes(text) == size


@pytest.mark.parametrize(
    "text",
    [
        *("", "lots", "-1GiB", "1..2GiB", "12 parsecs", "1e400", "nan", "9" * 30 + "TB", "٣GiB"),
        *("2,1GiB", "11,60GiB", "1,0000", "1234,567", "1,234,5", ",5GiB", "1,GiB"),  # a comma marks thousands
    ],
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        units.parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "meant"),
    [("2,1GiB", "2.1GiB"), (" 11,60 GB ", "11.60 GB"), ("1,2,3GiB", None), ("2.1", None), ("2,1 parsecs", None)],
)
def test_a_comma_for_a_point_is_offered_with_a_point(text: str, meant: str | None) -> None:
    assert units.with_point(text, parse=units.parse_bytes) == meant


@pytest.mark.parametrize(
    ("text", "size"),
    [("12GiB", 12 * 2**30), ("4464m", 4464 * 2**20), (" 0 ", 0), ("0.0", 0), ("12884901888", 12 * 2**30)],
)
def test_a_typed_size_has_a_unit_or_needs_none(text: str, size: int) -> None:
    assert units.typed_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "meant"),
    [("12", "12GiB"), ("0.5", "0.5GiB"), ("4464 ", "4464MiB"), ("2,1GiB", "2.1GiB"), ("lots", None), ("", None)],
)
def test_an_invalid_size_says_what_was_meant(text: str, meant: str | None) -> None:
    with pytest.raises(units.NotAnAmount) as refused:
        units.typed_bytes(text)
    assert refused.value.meant == meant


def test_a_typed_count_is_a_number_or_says_what_was_meant() -> None:
    assert units.typed_count("124M") == 124_000_000
    for text, meant in (("12,4M", "12.4M"), ("many", None)):
        with pytest.raises(units.NotAnAmount) as refused:
            units.typed_count(text)
        assert refused.value.meant == meant


def test_a_gigabyte_is_not_a_gibibyte() -> None:
    assert units.parse_bytes("12GiB") - units.parse_bytes("12GB") == 884_901_888


def test_counts_are_read_as_people_write_models() -> None:
    assert units.parse_count("124M") == 124_000_000
    assert units.parse_count("1.5B") == 1_500_000_000
    assert units.parse_count("1,000,000") == 1_000_000
    with pytest.raises(ValueError):
        units.parse_count("2,5B")


def test_numbers_print_short() -> None:
    assert units.count(40_560_000) == "40.56M"
    assert units.count(10_485_760_000) == "10.49B"
    assert units.count(512) == "512"
    assert units.mib(4464 * 2**20) == "4,464 MiB"
    assert units.gib(round(11.69 * 2**30)) == "11.69 GiB"
    assert [units.size(size) for size in (0, 2**10, 2**20, 2**30)] == ["0 KiB", "1 KiB", "1 MiB", "1.00 GiB"]
    assert units.duration(21.7 * 3600) == "21.7 h"
    assert units.duration(53 * 3600) == "2 d 5 h"


def test_one_thing_is_not_several() -> None:
    assert [units.things(count, "head") for count in (1, 2, 1200)] == ["1 head", "2 heads", "1,200 heads"]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (12 * 2**30, "12GiB"),
        (3 * 2**29, "1.5GiB"),
        (round(11.69 * 2**30), "11.69GiB"),
        (11 * 10**9, "11GB"),
        (5000 * 2**20, "5000MiB"),
        (12_345_678_901, "12345678901"),
    ],
)
def test_a_size_is_written_as_it_was_typed(size: int, text: str) -> None:
    assert units.as_typed(size) == text
    assert units.parse_bytes(text) == size


def test_words_are_listed() -> None:
    assert units.listed(["a"]) == "a"
    assert units.listed(["a", "b", "c"]) == "a, b and c"
