"""nanoGPT with one line changed, so that training returns the loss alone: predicted against measured, to the byte.

Measured on an NVIDIA H200, torch 2.11.0+cu130, 2026-11-15, by bench/nanogpt_memory.py with a model.py whose forward
ends in `return (None if targets is not None and self.training else logits), loss`.
"""

from functools import cache

import pytest

from bench.measured import CARD, GOLDEN, Measured, measured_rows
from onecard.plan.cards import device_of
from onecard.plan.memory.predict import PHASES, nanogpt_tape
from onecard.plan.memory.replay import Replay, replay

ROWS = measured_rows(GOLDEN / "nanogpt_h200_loss_only.csv")


@cache
def predicted(index: int, *, returns_logits: bool) -> Replay:
    return replay(nanogpt_tape(ROWS[index].config, device_of(CARD), returns_logits=returns_logits))


def named(index: int) -> str:
    return ROWS[index].name.replace(" ", "-").replace("/", "_")


@pytest.mark.parametrize("index", range(len(ROWS)), ids=named)
def test_every_phase_is_predicted_to_the_byte(index: int) -> None:
    row: Measured = ROWS[index]
    for phase in PHASES:
        found = predicted(index, returns_logits=False).phases[phase]
        assert found.allocated_bytes == row.allocated_bytes(phase), phase
        assert found.reserved_bytes == row.reserved_bytes(phase), phase


@pytest.mark.parametrize(("index", "generations"), [(0, 2), (1, 2), (2, 3), (3, 1)])
def test_it_saves_generations_of_logits(index: int, generations: int) -> None:
    # eager: the loop's own. Compiled: the zeros autograd makes for them, and their gradient, which is written over
    # them; for an odd vocabulary also the padded copy of that gradient, which is padded in place
    config = ROWS[index].config
    logits = config.batch_size * config.block_size * config.vocab_size * 2
    saved = [predicted(index, returns_logits=both).phases["train"].allocated_bytes for both in (True, False)]
    assert (saved[0] - saved[1]) / logits == pytest.approx(generations, abs=0.05)
