"""Every part of a phase says why it is there, and what is said of an evaluation is true of one: it keeps no graph."""

import gc
import re
import weakref
from itertools import product

import pytest

from onecard.config.schema import RunConfig
from onecard.paper.tags import ACTIVATIONS, ATTENTION, GRADIENTS, LOGITS_AND_LOSS
from onecard.plan.cards import find_card
from onecard.plan.memory.predict import BEFORE, TAPES, Memory, Part, predict_nanogpt, predict_onecard
from onecard.plan.memory.why import LOSSES_ALONE, item_bytes
from onecard.units import MIB

RTX_4070 = find_card("RTX 4070")
EVALUATIONS = ("eval0", "eval")


def config(**keys: object) -> RunConfig:
    small = {"n_layer": 3, "batch_size": 4, "gradient_accumulation_steps": 2, "dtype": "bfloat16"}
    return RunConfig().replace({**small, **keys})


def of_evaluation(memory: Memory, tag: str | None = None) -> list[Part]:
    found = [part for phase in EVALUATIONS for part in memory.parts_of(phase) if tag in (None, part.name)]
    assert found
    return found


KINDS = [
    {"dtype": dtype, "compile": is_compiled, "vocab_size": vocab, "grad_checkpoint": mode}
    for dtype, is_compiled, vocab, mode in product(
        ("float32", "bfloat16"), (False, True), (65, 50257, 50304), ("none", "full")
    )
]


@pytest.mark.parametrize("predict", [predict_nanogpt, predict_onecard])
@pytest.mark.parametrize("keys", KINDS, ids=str)
def test_no_part_of_an_evaluation_is_said_to_be_for_a_backward_pass(predict: object, keys: dict[str, object]) -> None:
    memory = predict(config(dropout=0.1, bias=True, eval_batch_size=16, **keys), RTX_4070)  # type: ignore[operator]
    for part in of_evaluation(memory):
        assert "backward" not in part.why
        assert "gradient" not in part.why, part
    assert any("for backward" in part.why for part in memory.parts_of("train"))


@pytest.mark.parametrize("keys", KINDS, ids=str)
def test_activations_of_an_evaluation_are_counted_by_its_own_tokens(keys: dict[str, object]) -> None:
    asked = config(eval_batch_size=24, eval_block_size=512, **keys)
    for memory, tokens in (
        (predict_nanogpt(asked, RTX_4070), 4 * 1024),
        (predict_onecard(asked, RTX_4070), 24 * 512),
        (predict_onecard(asked.replace({"eval_iters": 3}), RTX_4070), 3 * 4 * 512),  # all there is to read
    ):
        for part in of_evaluation(memory, ACTIVATIONS):
            said = re.match(r"([\d.]+) bytes x n_embd per token, ([\d,]+) tokens", part.why)
            assert said, part.why
            assert int(said[2].replace(",", "")) == tokens
            assert float(said[1]) * asked.n_embd * tokens == pytest.approx(part.size_bytes, rel=0.01)


@pytest.mark.parametrize("keys", KINDS, ids=str)
def test_logits_of_nanogpts_evaluation_are_as_many_as_are_named(keys: dict[str, object]) -> None:
    asked = config(**keys)
    memory = predict_nanogpt(asked, RTX_4070)
    one = 4 * 1024 * asked.vocab_size * item_bytes(asked)
    worth = {"this step's": 1, "the last step's": 1, "the training loop's old ones": 1, "log-softmax": 1}
    worth["its float32 copy"] = 2
    for part in of_evaluation(memory, LOGITS_AND_LOSS):
        named = part.why.partition(": ")[2].split(", ")
        losses = 4 * 1024 * 8  # a token's, by kernels that write them down
        assert sum(worth[name] for name in named) * one == pytest.approx(part.size_bytes, rel=0.02, abs=losses)


def test_logits_of_our_evaluation_are_those_of_a_chunk_of_what_it_reads() -> None:
    short = config(eval_batch_size=64, eval_iters=1, eval_block_size=256, compile=False)  # reads 4 sequences in all
    for part in of_evaluation(predict_onecard(short, RTX_4070), LOGITS_AND_LOSS):
        assert part.why.startswith(f"logits of 1,024 tokens at a time, {1024 * 50304 * 2 / MIB:.0f} MiB")
    wide = config(eval_batch_size=1024)  # of which the blocks take more than the loss does
    for part in of_evaluation(predict_onecard(wide, RTX_4070), LOGITS_AND_LOSS):
        assert part.size_bytes < MIB
        assert part.why == LOSSES_ALONE


def test_an_evaluation_smaller_than_what_training_left_says_so() -> None:
    memory = predict_onecard(config(eval_iters=1, eval_block_size=64), RTX_4070)
    assert memory.phases["eval"].moment == BEFORE
    (gradients,) = (part for part in memory.parts_of("eval") if part.name == GRADIENTS)
    assert gradients.why.endswith("from the last update, freed before the first batch")


def test_attention_of_an_evaluation_is_that_of_one_layer() -> None:
    for layers in (3, 6):
        memory = predict_onecard(config(n_layer=layers, vocab_size=65, compile=False, eval_batch_size=16), RTX_4070)
        for part in of_evaluation(memory, ATTENTION):
            assert part.why.endswith("q, k, v and output of the current layer")
            assert f"{part.size_bytes / (16 * 1024) / 768:.3g} bytes x n_embd per token" in part.why


def test_what_explains_a_prediction_is_kept_without_its_tape() -> None:
    memory = predict_onecard(config(), RTX_4070)
    assert memory.parts is memory.parts
    tape = weakref.ref(memory.tape)
    for layers in range(1, TAPES + 2):
        predict_onecard(config(n_layer=layers), RTX_4070)
    gc.collect()
    assert tape() is None, "it is large, and predictions are kept for a while"
    assert memory.tape.sizes, "it can be made again"
