"""Data sets that are known by name, before they are here."""

import pytest

from onecard.config.known_data import EMBEDDED, KNOWN_DATA, known_data


@pytest.mark.parametrize(
    "name", ["shakespeare_char", "data/shakespeare_char", "/home/me/nanoGPT/data/shakespeare_char/"]
)
def test_a_data_set_is_known_by_the_last_part_of_its_path(name: str) -> None:
    assert known_data(name) == KNOWN_DATA["shakespeare_char"]


@pytest.mark.parametrize("name", ["", "shakespeare_char_2", "my-openwebtext", "openwebtext/train.bin"])
def test_other_names_are_not_known(name: str) -> None:
    assert known_data(name) is None


def test_the_splits_of_shakespeare_are_nine_tenths_and_one_of_the_same_text() -> None:
    """Of its 1,115,394 characters, as nanoGPT's prepare.py cuts it."""
    characters = KNOWN_DATA["shakespeare_char"]
    assert (characters.train_tokens, characters.val_tokens) == (int(1_115_394 * 0.9), 1_115_394 - int(1_115_394 * 0.9))
    assert characters.vocab_size == 65


def test_every_known_data_set_names_its_source() -> None:
    assert all(known.source and known.name == name for name, known in KNOWN_DATA.items())
    assert all(known.train_tokens and known.val_tokens for known in KNOWN_DATA.values() if known is not EMBEDDED)
