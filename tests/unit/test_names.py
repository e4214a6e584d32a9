"""The name that was meant, of those that are known."""

import pytest

from onecard.config.names import nearest

KNOWN = ("characters", "fineweb-edu", "beta1", "beta2", "eval_iters", "eval_only", "My-Run.log", "backend")


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("char", "characters"),  # an abbreviation of one of them
        ("Fine", "fineweb-edu"),
        ("fineweb_edu", "fineweb-edu"),
        ("my_run.log", "My-Run.log"),
        ("eval_iter", "eval_iters"),
        ("eval_onyl", "eval_only"),  # no beginning, and near
        ("beta", "beta2"),  # the beginning of two
        ("beta1", "beta1"),
        ("fin", None),  # too short for an abbreviation
        ("bet1", "beta1"),
        ("bad", None),  # 0.6 of the letters of backend
        ("", None),
        ("something", None),
    ],
)
def test_the_only_name_that_begins_so_is_meant_or_else_the_nearest(word: str, meant: str | None) -> None:
    assert nearest(word, KNOWN) == meant


def test_a_name_that_another_begins_with_is_itself() -> None:
    assert nearest("fineweb", ("fineweb-edu", "fineweb")) == "fineweb"
