"""The live line at every width: the step and the time left whole, each figure whole or not there."""

import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from onecard.config.resolve import resolve
from onecard.data.watch import Moment
from onecard.report.data import PrepareDisplay, moment_line
from onecard.report.live_line import LiveLine
from onecard.report.training import TrainingDisplay
from onecard.runs.records import Checkpoint, Record
from onecard.units import GIB
from tests import made_records as made

LEAST = len("1234/4750  119 min left")
# Everything such a line can say, in its order; what is in brackets stands only beside what is before it.
WHOLE = re.compile(
    r"1234/4750(?:  [━╸╺ ]{8,24})?  (?:\?|[\d.]+ (?:s|min|h)) left *"
    r"(?:  loss 3\.8912)?(?:  val 3\.9012)?(?:  lr 6\.0e-04)?(?:  29\.3k tokens/s)?(?:  MFU 45%)?"
    r"(?:  VRAM 9\.64 GiB(?: of 9\.90 GiB planned(?:, card 11\.99 GiB)?)?)?"
    r"(?:  waiting for data 6%)?(?:  saved at 1,000)?"
)


@pytest.fixture(autouse=True)
def a_usual_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


def drawn(text: str) -> list[str]:
    """What stood on the terminal at one time or another, line by line, without the codes that move its cursor."""
    return [line.rstrip() for line in re.split(r"\x1b\[[\d;?]*[A-Za-z]|[\r\n]", text) if line.strip()]


def trained_on_a_card(width: int, *, waited_seconds: float = 0.0) -> str:
    """The last line of a display that has seen an update on an RTX 4070, with all there is to say of it."""
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None, legacy_windows=False)
    update = made.step(
        1234,
        loss=3.8912,
        lr=6e-4,
        seconds=16.0,
        tokens_per_second=29_312.0,
        mfu=0.45,
        reserved_bytes=round(9.4 * GIB),
        data_wait_seconds=waited_seconds,
    )
    with TrainingDisplay(resolve("max_iters = 4750").config, console) as display:
        begun = made.start(0, resumed_from=None)
        display(replace(begun, card="NVIDIA GeForce RTX 4070", predicted_process_bytes=round(9.9 * GIB)))
        display(replace(made.evaluation(1000, val_loss=3.9012), train_loss=3.9))
        display(Checkpoint(step=1000, tokens=None, path="x", seconds=1.0, reason="evaluated", best=True))
        display(update)
    return drawn(out.getvalue())[-1]


@pytest.mark.parametrize("width", [LEAST, 30, 40, 60, 80, 100, 120, 140, 160, 180, 200])
def test_every_width_shows_the_step_and_the_time_left_and_cuts_nothing(width: int) -> None:
    for waited_seconds in (0.0, 1.0):
        line = trained_on_a_card(width, waited_seconds=waited_seconds)
        assert WHOLE.fullmatch(line), line
        assert len(line) <= width


def test_a_narrow_terminal_goes_without_the_least_first() -> None:
    order = ["━", "saved at", ", card", "planned", "lr", "MFU", "waiting", "VRAM", "tokens/s", "val", "loss"]
    before: set[str] = set()
    for width in range(LEAST, 220):
        line = trained_on_a_card(width, waited_seconds=1.0)
        there = {word for word in order if word in line}
        assert there >= before, f"{before - there} was there on a narrower terminal"
        assert there == set(order[len(order) - len(there) :]), line
        before = there
    assert before == set(order)


def test_what_a_usual_terminal_has_room_for() -> None:
    for word in ("1234/4750", "left", "loss", "val", "tokens/s", "VRAM"):
        assert word in trained_on_a_card(80)


def watched(*records: Record) -> list[str]:
    """What a display of sixty updates writes to a terminal."""
    out = io.StringIO()
    console = Console(file=out, width=160, force_terminal=True, color_system=None, legacy_windows=False)
    with TrainingDisplay(resolve("max_iters = 60\nlog_interval = 20").config, console) as display:
        for record in (made.start(0, resumed_from=None), *records):
            display(record)
    return drawn(out.getvalue())


def saved(number: int) -> Checkpoint:
    return Checkpoint(step=number, tokens=None, path=f"step-{number}", seconds=1.0, reason="evaluated", best=True)


def evaluated(number: int, val_loss: float) -> Record:
    return replace(made.evaluation(number, val_loss=val_loss), train_loss=3.0)


def test_the_last_line_has_the_last_evaluation_and_the_last_save() -> None:
    before = (evaluated(50, 3.1773), saved(50), made.step(60))
    assert "val 3.1773" in watched(*before)[-1]
    assert "val 3.1761" in watched(*before, evaluated(60, 3.1761))[-1]
    last = watched(*before, evaluated(60, 3.1761), saved(60), made.end(60, "finished"))[-1]
    assert last.startswith("60/60")
    assert "val 3.1761" in last
    assert last.endswith("saved at 60")


@pytest.mark.parametrize("terminal", ["dumb", "unknown"])
def test_a_terminal_that_cannot_redraw_gets_lines(terminal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", terminal)
    steps = [made.step(number, seconds=1.0) for number in range(1, 61)]
    assert [line.split("  ")[0] for line in watched(*steps)[1:]] == ["step 20/60", "step 40/60", "step 60/60"]


def test_nor_is_a_bar_drawn_there_for_a_preparation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    out = io.StringIO()
    moment = Moment(
        phase="preparing", tokens=5, documents=1, share=0.5, begun_share=0.0, seconds=5.0, tokens_per_second=1.0
    )
    with PrepareDisplay(Console(file=out, width=160, force_terminal=True, color_system=None)) as display:
        display(moment)
    assert out.getvalue() == moment_line(moment) + "\n"


def live(*, width: int, completed: int, seconds_per_step: float) -> list[str]:
    out = io.StringIO()
    seconds = [0.0]
    console = Console(file=out, width=width, force_terminal=True, color_system=None, legacy_windows=False)
    line = LiveLine(console=console, get_time=lambda: seconds[0], auto_refresh=False, speed_estimate_period=1e9)
    task = line.add_task("", total=4750, figures={"loss": "  loss 3.8912"})
    with line:
        for number in range(1, completed + 1):
            seconds[0] += seconds_per_step
            line.update(task, completed=number, refresh=number in (9, completed))
    return drawn(out.getvalue())


def test_the_time_left_is_that_of_the_steps_to_come() -> None:
    assert live(width=40, completed=11, seconds_per_step=1.0)[-1] == "  11/4750  79 min left   loss 3.8912"
    assert live(width=40, completed=11, seconds_per_step=100.0)[-1] == "  11/4750  5 d 12 h left  loss 3.8912"
    assert live(width=60, completed=0, seconds_per_step=1.0)[-1].endswith("? left        loss 3.8912")


def test_figures_stay_in_their_place_as_the_steps_and_the_time_pass() -> None:
    shown = live(width=40, completed=4700, seconds_per_step=2.0)
    assert len({line.index("loss") for line in shown}) == 1
    assert shown[-1].startswith("4700/4750  100.0 s left  loss")
