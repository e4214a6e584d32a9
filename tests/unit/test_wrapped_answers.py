"""Answers at 60 and 80 columns: every word that a wide terminal shows, and no line that is too long."""

import io
import re
from collections import Counter
from collections.abc import Callable

import pytest
from rich.console import Console

from onecard.config.command import EXPANDABLE
from onecard.doctor.compare import compare_runs
from onecard.doctor.diagnose import diagnose_cases
from onecard.doctor.explain import explanations
from onecard.inputs.make_plan import plan_named
from onecard.report.compare import print_comparison
from onecard.report.console import PlainConsole
from onecard.report.doctor import print_diagnoses, print_explanation
from onecard.report.plan import print_plan
from tests.unit.doctor.cases import NARROW, SICK, SMALL, case, learning, timed

WIDE = 100_000
TYPED = re.compile(rf"(?:python train\.py|onecard [a-z]+|{re.escape(EXPANDABLE)})\b|`return | = .*#|^# ")


def shown(show: Callable[[Console], None], width: int) -> str:
    out = io.StringIO()
    show(PlainConsole(file=out, width=width))
    return out.getvalue()


def words(text: str) -> Counter[str]:
    """How often each word is there, without what draws bars and tables."""
    return Counter(word for word in text.split() if not set(word) <= set("█░─"))


def check(show: Callable[[Console], None]) -> None:
    """Fails where a narrow answer has lost a word of the wide one, or has a line that could have been broken."""
    wide = words(shown(show, WIDE))
    assert wide
    for width in (60, 80):
        narrow = shown(show, width)
        assert words(narrow) == wide, (words(narrow) - wide, wide - words(narrow))
        long = [line.rstrip() for line in narrow.splitlines() if len(line.rstrip()) > width]
        assert not [line for line in long if not TYPED.search(line) and " " in line.strip()]


@pytest.mark.parametrize("details", [False, True])
@pytest.mark.parametrize("name", SICK)
def test_a_diagnosis_loses_no_word(name: str, details: bool) -> None:
    (found,) = diagnose_cases([SICK[name]()])
    check(lambda console: print_diagnoses([found], console, details=details))


def test_several_diagnoses_lose_no_word() -> None:
    found = diagnose_cases([SICK["loss-nan"](), SICK["oom-capacity"](), SICK["capacity-or-data"]()])
    check(lambda console: print_diagnoses(found, console))


def test_an_explanation_loses_no_word() -> None:
    for explanation in explanations():
        check(lambda console, one=explanation: print_explanation(one, console))  # type: ignore[misc]


@pytest.mark.parametrize("details", [False, True])
def test_a_comparison_loses_no_word(details: bool) -> None:
    runs = [
        case(SMALL, records=[*timed(9.35), *learning()], card="RTX 4070", source="runs/one.log"),
        case(NARROW, records=[*timed(3.9), *learning(bend=0.2)], card="RTX 4070", source="runs/other.log"),
    ]
    check(lambda console: print_comparison(compare_runs(runs), console, details=details))


@pytest.mark.parametrize("details", [False, True])
@pytest.mark.parametrize(
    ("keys", "asked"),
    [
        ({"n_embd": "384", "n_head": "6", "dropout": "0.1", "dataset": "fineweb"}, {"gpu": "RTX 4070"}),
        ({"n_layer": "24", "n_embd": "1024", "n_head": "16", "batch_size": "64"}, {"gpu": "RTX 4070"}),
        ({"batch_size": "8"}, {"gpu": "RTX 3060", "fit": True}),
        ({"n_embd": "768", "learning_rate": "0.1"}, {"gpu": "none"}),
        ({"dataset": "fineweb"}, {"gpu": "RTX 4070", "hours": 24.0}),
    ],
)
def test_a_plan_loses_no_word(keys: dict[str, str], asked: dict[str, object], details: bool) -> None:
    made = plan_named(None, list(keys.items()), **asked)  # type: ignore[arg-type]
    check(lambda console: print_plan(made, console, details=details))


def test_a_word_that_is_lost_would_be_noticed() -> None:
    with pytest.raises(AssertionError):
        check(lambda console: console.print("twice the tokens would gain " + console.width * "x"))
    with pytest.raises(AssertionError):
        check(
            lambda console: console.print(
                "a line that no terminal of sixty columns can show in a single line of it, as it is", soft_wrap=True
            )
        )
