"""Errors of other libraries, shown in one line."""

import pytest

from onecard.errors import first_line, kind_and_line


@pytest.mark.parametrize(
    ("error", "line", "with_kind"),
    [
        (ValueError("one\ntwo"), "one", "ValueError: one"),
        (ValueError("\n  one  \n"), "one", "ValueError: one"),
        (ValueError(), "ValueError", "ValueError"),
        (ValueError(" \n "), "ValueError", "ValueError"),
        (ValueError("12345678901234"), "1234567890", "ValueError: 1234567890"),
    ],
)
def test_an_error_is_shown_in_one_short_line(error: Exception, line: str, with_kind: str) -> None:
    assert (first_line(error, 10), kind_and_line(error, 10)) == (line, with_kind)
