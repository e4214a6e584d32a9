"""What a run prints: memory that differs from the plan, the time left, progress inside long evaluations and updates."""

import io
import time
from dataclasses import replace

import pytest
from rich.console import Console

from onecard.config.resolve import resolve
from onecard.models.evaluation import evaluations_after
from onecard.plan.cards import find_card
from onecard.plan.memory.predict import Memory, predict_onecard
from onecard.report import training
from onecard.report.training import SETTLED_STEP, TrainingDisplay
from onecard.runs.records import Oom, Record
from tests import made_records as made

CARD = find_card("RTX 4070")
SMALL = "n_layer = 4\nn_head = 4\nn_embd = 256\nblock_size = 256\nbatch_size = 4\ndtype = 'bfloat16'\n"


def reserved(memory: Memory) -> int:
    """The allocator's highest mark in a run as planned."""
    return memory.process_bytes - memory.context_bytes


def said(text: str, memory: Memory, updates: list[Record]) -> list[str]:
    """The complaints of a display that was promised `memory`."""
    out = io.StringIO()
    with TrainingDisplay(resolve(text).config, Console(file=out, width=300)) as display:
        begun = made.start(0, resumed_from=None)
        display(replace(begun, card=CARD.name, predicted_process_bytes=memory.process_bytes))
        for update in updates:
            display(update)
    return [line for line in out.getvalue().splitlines() if "off the plan" in line]


@pytest.mark.parametrize("how", ["", "compile = False\n", "grad_checkpoint = 'full'\n", "n_embd = 768\nn_head = 12\n"])
def test_a_run_that_takes_what_was_planned_hears_nothing(how: str) -> None:
    memory = predict_onecard(resolve(SMALL + how).config, CARD)
    updates: list[Record] = [made.step(number, reserved_bytes=reserved(memory)) for number in range(1, 9)]
    assert said(SMALL + how, memory, updates) == []


def test_one_that_does_not_hears_it_once_and_not_after_a_smaller_micro_batch() -> None:
    memory = predict_onecard(resolve(SMALL).config, CARD)
    more = reserved(memory) + memory.process_bytes // 20
    updates: list[Record] = [made.step(number, reserved_bytes=more) for number in range(1, 9)]
    (words,) = said(SMALL, memory, updates)
    assert "+5.0% off the plan" in words
    sizes = {"batch_size_before": 4, "batch_size_after": 2, "accumulation_before": 40, "accumulation_after": 80}
    shrunk = Oom(step=SETTLED_STEP - 1, where="train", message="", **sizes)
    assert said(SMALL, memory, [shrunk, *updates]) == [], "the plan was for the larger one"


# The time left, on a pipe


def left(text: str, records: list[Record], *, start: int = 0) -> list[str]:
    """What each line of an update says about the time left; empty where it says nothing."""
    out = io.StringIO()
    with TrainingDisplay(resolve(text).config, Console(file=out, width=300)) as display:
        display(made.start(start))
        for record in records:
            display(record)
    lines = [line for line in out.getvalue().splitlines() if line.startswith("step ") and "loss" in line]
    return [line.rpartition("  ")[2] if line.endswith("left") else "" for line in lines]


RUN = "max_iters = 1000\nlog_interval = 1\neval_interval = 1000\n"


def test_the_time_left_is_not_that_of_one_step() -> None:
    """The first update compiles, and one in between waits for the disk: neither counts."""
    seconds = [60.0, 1.0, 1.0, 1.0, 30.0, 1.0]
    said = left(RUN, [made.step(number, seconds=took) for number, took in enumerate(seconds, 1)])
    assert said[:2] == ["", ""], "neither one that compiles nor a single other one says enough"
    assert said[2:] == ["17 min left"] * 4


def test_a_resumed_run_leaves_its_first_update_out_too() -> None:
    steps = [made.step(501, seconds=60.0), made.step(502, seconds=2.0), made.step(503, seconds=2.0)]
    assert left(RUN, steps, start=500) == ["", "", "17 min left"]


def test_the_time_left_follows_a_run_that_gets_faster() -> None:
    seconds = [4.0] * 21 + [1.0] * 20
    assert left(RUN, [made.step(number, seconds=took) for number, took in enumerate(seconds, 1)])[-1] == "16 min left"


def test_evaluations_are_part_of_the_time_left() -> None:
    evaluation = replace(made.evaluation(0), train_loss=3.0, seconds=60.0)
    steps = [made.step(1, seconds=9.0), made.step(2, seconds=0.1), made.step(3, seconds=0.1)]
    records: list[Record] = [evaluation, *steps]
    assert left(RUN.replace("eval_interval = 1000", "eval_interval = 100"), records)[-1] == "12 min left"


@pytest.mark.parametrize(
    ("step", "max_iters", "interval", "expected"),
    [(0, 10, 5, 2), (4, 10, 5, 2), (5, 10, 5, 1), (10, 10, 5, 0), (0, 10, 100, 1), (9, 10, 4, 1), (0, 10, 4, 3)],
)
def test_the_evaluations_that_are_left_are_counted(step: int, max_iters: int, interval: int, expected: int) -> None:
    config = resolve(f"max_iters = {max_iters}\neval_interval = {interval}").config
    assert evaluations_after(config, step) == expected
    done = range(step + 1, max_iters + 1)
    assert expected == sum(number % interval == 0 or number == max_iters for number in done), "as the loop evaluates"


# Progress inside evaluations and updates


class Clock:
    """Seconds that pass when told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(training.time, "monotonic", lambda: self.now)


def test_a_pipe_hears_of_a_long_evaluation_every_ten_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, out = Clock(monkeypatch), io.StringIO()
    with TrainingDisplay(resolve(RUN).config, Console(file=out, width=300)) as display:
        display(made.start(0, resumed_from=None))
        for done in range(400):
            display.progress("evaluating", done, 400)
            clock.now += 0.25
    shown = [line for line in out.getvalue().splitlines() if "evaluating" in line]
    assert shown[:2] == ["step 0: evaluating, 40 of 400 batches done", "step 0: evaluating, 80 of 400 batches done"]
    assert len(shown) == 9


def test_a_pipe_hears_of_a_long_first_update_and_of_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, out = Clock(monkeypatch), io.StringIO()
    with TrainingDisplay(resolve(RUN).config, Console(file=out, width=300)) as display:
        display(made.start(0, resumed_from=None))
        for number in (1, 2):
            for done in range(40):
                display.progress("updating", done, 40)
                clock.now += 1.0
            display(made.step(number, seconds=40.0))
    shown = [line for line in out.getvalue().splitlines() if "micro-batches" in line]
    assert shown == [f"update 1 of 1,000: {done} of 40 micro-batches done" for done in (10, 20, 30)]


@pytest.mark.parametrize(
    ("updates", "waited", "shown"),
    [(0, 0.0, True), (1, 0.0, False), (1, 5.0, True)],
    ids=["at the start", "in a fast run it would flicker", "long"],
)
def test_a_terminal_shows_a_long_evaluation_on_its_live_line(
    monkeypatch: pytest.MonkeyPatch, updates: int, waited: float, shown: bool
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    clock, out = Clock(monkeypatch), io.StringIO()
    console = Console(file=out, width=120, force_terminal=True, color_system=None, legacy_windows=False)
    with TrainingDisplay(resolve(RUN).config, console) as display:
        display(made.start(0, resumed_from=None))
        for number in range(updates):
            display(made.step(number + 1, seconds=1.0))
        clock.now += waited
        display.progress("evaluating", 40, 400)
    assert ("evaluating 40 of 400" in out.getvalue()) == shown


def test_a_pipe_hears_of_one_batch_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(training, "LOOK_SECONDS", 0.01)
    out = io.StringIO()
    with TrainingDisplay(resolve(RUN).config, Console(file=out, width=300)) as display:
        display(made.start(0, resumed_from=None))
        display.progress("evaluating", 0, 400)
        assert "evaluating" not in out.getvalue()
        deadline = time.monotonic() + 10.0
        while "evaluating" not in out.getvalue() and time.monotonic() < deadline:
            time.sleep(0.01)
    assert "step 0: evaluating, 0 of 400 batches done\n" in out.getvalue()
