"""Tensors without numbers: what is allocated and freed, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from onecard.config.schema import RunConfig
from onecard.models import nanogpt, training
from onecard.models.gpt2 import structure
from onecard.models.on_paper import weights_on_paper
from onecard.models.optimizers import ADAMW, Rule
from onecard.models.structure import kind_counts, parameters_of
from onecard.paper.device import H200
from onecard.paper.operations import PaperOperations
from onecard.paper.paper import Paper
from onecard.paper.remembered import Remembered
from onecard.paper.tags import ACTIVATIONS, GRADIENTS
from onecard.paper.tape import Tape
from onecard.paper.tensor import Layer, Tensor
from onecard.plan.memory.onecard.tape import onecard_tape

TINY = RunConfig(
    n_layer=2, n_head=2, n_embd=16, block_size=8, batch_size=2, vocab_size=32, dtype="float32", eval_iters=5
)


def alive(tape: Tape) -> int:
    """Bytes that were asked for and are not freed."""
    return sum(tape.sizes[event] if event >= 0 else -tape.sizes[~event] for event in tape.events)


def test_memory_is_freed_with_its_last_name() -> None:
    paper = Paper(H200, half=False)
    x = paper.new((10,), 4, ACTIVATIONS)
    view = x.like(2, 5)
    del x
    assert alive(paper.tape) == 40
    del view
    assert alive(paper.tape) == 0


def test_a_linear_layer_keeps_its_input_until_the_backward_pass() -> None:
    paper = Paper(H200, half=False)
    layer = Layer(paper.parameter("w", 3, 5))
    weight, workspaces = 3 * 5 * 4, H200.cublas_workspace_bytes
    x = Tensor(paper.new((2, 5), 4, ACTIVATIONS).storage, (2, 5), 4)
    loss = paper.linear(x, layer)
    del x
    assert alive(paper.tape) == weight + workspaces + 2 * 5 * 4 + 2 * 3 * 4
    paper.backward(loss)
    assert layer.weight.grad is not None
    assert layer.weight.grad.storage.tag == GRADIENTS
    assert alive(paper.tape) == 2 * weight + 2 * workspaces + 2 * 3 * 4, (
        "the input has gone; each thread has a workspace"
    )


def test_a_recomputed_part_keeps_only_its_input_and_stops_before_its_last_product() -> None:
    paper = Paper(H200, half=False)
    first, second = Layer(paper.parameter("a", 8, 8)), Layer(paper.parameter("b", 8, 8))
    x = paper.new((4, 8), 4, ACTIVATIONS)
    before = alive(paper.tape)
    out = paper.recomputed(lambda x: paper.linear(paper.gelu(paper.linear(x, first)), second), x)
    kept = alive(paper.tape) - before - H200.cublas_workspace_bytes
    assert kept == 4 * 8 * 4, "the output alone"
    products = len(paper.tape.sizes)
    paper.backward(out)
    made = [paper.tape.sizes[event] for event in paper.tape.events if event >= products]
    remade, gradients = 2, 6  # first product and GELU; ones, and of two weights, GELU and two inputs
    assert len([size for size in made if size in (4 * 8 * 4, 8 * 8 * 4)]) == remade + gradients, "not the last product"


@pytest.mark.parametrize("keys", [{}, {"dtype": "bfloat16"}, {"dtype": "bfloat16", "bias": True}, {"compile": False}])
def test_a_remembered_step_is_the_step(keys: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    config = TINY.replace({"gradient_accumulation_steps": 3, **keys})
    tapes = [(onecard_tape(config, H200), nanogpt.eager_tape(config, H200))]
    copied = Remembered._run

    def forgetful(self: Remembered, *arguments: Any, **named: Any) -> Any:
        self._past.clear()
        return copied(self, *arguments, **named)

    monkeypatch.setattr(Remembered, "_run", forgetful)
    tapes.append((onecard_tape(config, H200), nanogpt.eager_tape(config, H200)))
    for with_memory, without in zip(*tapes, strict=True):
        assert with_memory.sizes == without.sizes
        assert with_memory.tags == without.tags
        assert [abs(event) for event in with_memory.events if event >= 0] == [e for e in without.events if e >= 0]
        assert sorted(with_memory.events) == sorted(without.events)


def test_paper_runs_of_many_micro_batches_only_as_many_as_bring_something_new() -> None:
    ops = PaperOperations(H200, half=False, deterministic=False)
    assert list(ops.repeated(range(100), enough=training.MICRO_BATCHES)) == [0, 1, 99]
    assert list(ops.repeated(range(2), enough=training.MICRO_BATCHES)) == [0, 1]


def test_a_structure_is_counted_as_it_is_made() -> None:
    shapes = parameters_of(structure(TINY.replace({"bias": True})))
    assert sum(kind_counts(structure(TINY.replace({"bias": True}))).values()) == len(shapes)
    paper = Paper(H200, half=False)
    made = weights_on_paper(structure(TINY.replace({"bias": True})), paper).parameters
    assert {each.name: each.shape for each in made} == shapes


def test_an_optimizers_bytes_follow_from_its_moments() -> None:
    assert (ADAMW.held_bytes, ADAMW.saved_bytes, ADAMW.moved_bytes) == (16, 12, 28)
    momentum = Rule(title="SGD", moments=("momentum_buffer",))
    assert (momentum.held_bytes, momentum.saved_bytes, momentum.moved_bytes) == (12, 8, 20)
