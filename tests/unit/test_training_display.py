"""Measured memory beside planned: a run that takes what was planned hears nothing, one that does not hears it once."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from onecard.config.resolve import resolve
from onecard.plan.cards import find_card
from onecard.plan.memory.predict import Memory, predict_onecard
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
