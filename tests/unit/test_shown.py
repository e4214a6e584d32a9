"""Values of a config as people read them."""

import math

import pytest

from onecard.config.resolve import resolve
from onecard.config.schema import RunConfig
from onecard.config.shown import same_value, shown, typed


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("min_lr", 0.0012 / 10, "0.00012"),  # which is 0.00011999999999999999
        ("min_lr", 6e-05, "6e-05"),
        ("dropout", 0.0, "0.0"),
        ("learning_rate", 1e-3 / 3, "0.000333333333333"),
        ("learning_rate", 0.00012000001, "0.00012000001"),  # another number
        ("learning_rate", math.nan, "nan"),
        ("memory_limit", 12 * 2**30, "12GiB"),
        ("memory_limit", 10**400, str(10**400)),  # which no config has, and a damaged file may
        ("memory_limit", None, "not set"),
        ("max_hours", None, "not set"),
        ("batch_size", 2**30, "1073741824"),  # no size in bytes
        ("compile", True, "True"),
        ("loggers", "", '""'),
        ("dataset", "fineweb", "fineweb"),
    ],
)
def test_a_value_is_shown_shortly_and_as_it_is_typed(key: str, value: object, text: str) -> None:
    assert shown(key, value) == text


def test_every_default_is_shown() -> None:
    texts = {key: shown(key, value) for key, value in RunConfig().model_dump().items()}
    assert texts["learning_rate"] == "0.0006"
    assert all(0 < len(text) < 20 for text in texts.values())


def test_the_last_bits_of_a_number_are_no_difference() -> None:
    assert same_value(0.0012 / 10, 0.00012)
    assert same_value(0, 0.0)
    assert same_value(math.inf, math.inf)
    assert not same_value(0.00012, 0.0001200001)
    assert not same_value("0.1", 0.1)
    assert not same_value(None, 0.0)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("memory_limit", 12 * 2**30, "12GiB"),
        ("memory_limit", 4110 * 2**20, "4110MiB"),
        ("memory_limit", 12 * 2**30 + 1, "12884901889"),
        ("batch_size", 1024, "1024"),  # no size in bytes
        ("min_lr", 0.0012 / 10, "0.00011999999999999999"),  # every digit
    ],
)
def test_what_is_typed_says_exactly_the_value(key: str, value: object, text: str) -> None:
    assert typed(key, value) == text
    flags = resolve("", filename="c.py", flags=[(key, text)])
    assert getattr(flags.config, key) == value
