"""Inductor's rules on graphs small enough to work out by hand: what is written over what, and what Triton times."""

from __future__ import annotations

import pytest

from onecard.paper.device import H200, Device
from onecard.paper.tags import ACTIVATIONS
from onecard.paper.tape import Tape
from onecard.plan.memory.inductor.kernel_graph import KernelGraph
from onecard.plan.memory.inductor.tuning import is_timed, loop_is_timed
from onecard.plan.memory.inductor.wrapper import Program, compiled

RTX_4070 = Device(capability=(8, 9), multiprocessors=46)


def one_kernel(result_bytes: int, input_bytes: int, kind: str = "half", *, borrowed: bool = False) -> Program:
    """A kernel that may write its result (of halves) over its one input."""
    graph = KernelGraph()
    x = graph.input(input_bytes, ACTIVATIONS, kind=kind)
    y = graph.buffer(result_bytes, "half", ACTIVATIONS)
    if borrowed:
        graph.borrowed.add(x)
    graph.outputs.append(y)
    graph.kernel("square", (x,), (y,), takes={y: (x,)})
    return compiled(graph)


def writes_over(program: Program) -> bool:
    return program.slots[0] == program.slots[1]


def test_a_result_is_written_over_an_input_that_nobody_else_holds() -> None:
    program = one_kernel(4096, 4096)
    assert writes_over(program)
    assert program.operations == []  # nothing allocated, nothing freed


def test_not_over_one_the_caller_holds_nor_over_another_type() -> None:
    assert not writes_over(one_kernel(4096, 4096, borrowed=True))
    assert not writes_over(one_kernel(4096, 4096, kind="float"))


@pytest.mark.parametrize(("result_bytes", "expected"), [(949, False), (950, True), (1000, True), (1001, False)])
def test_a_result_may_be_five_percent_smaller_than_what_it_is_written_over(result_bytes: int, expected: bool) -> None:
    assert writes_over(one_kernel(result_bytes, 1000)) == expected


def test_an_input_is_not_kept_for_a_later_buffer_of_its_size() -> None:
    graph = KernelGraph()
    x = graph.input(4096, ACTIVATIONS, kind="half")
    y, z = (graph.buffer(size, "half", ACTIVATIONS) for size in (8192, 4096))
    graph.kernel("widen", (x,), (y,))
    graph.kernel("narrow", (y,), (z,))
    graph.outputs.append(z)
    program = compiled(graph)
    assert len(set(program.slots)) == 3
    tape = Tape()
    program.run(tape, {x: tape.alloc(4096, ACTIVATIONS)})
    changes = [tape.sizes[event] if event >= 0 else -tape.sizes[~event] for event in tape.events]
    assert changes == [4096, 8192, -4096, 4096, -8192]


@pytest.mark.parametrize(
    ("rows", "length", "expected"),
    [(1024, 128, True), (1024, 129, False), (1024, 4, True), (4, 64, False), (5, 64, True)],
)
def test_whole_rows_are_timed_where_they_are_short_and_many(rows: int, length: int, expected: bool) -> None:
    # 129 counts as 256, from which on there is one configuration; 5 rows count as 8, which the second one takes
    assert is_timed(rows, length) == expected


@pytest.mark.parametrize(
    ("rows", "length", "expected"),
    [
        (1024, 768, False),  # 512 programs of 8 warps; 6 fit on each of 132 multiprocessors: 792
        (2048, 768, True),  # 1,024 programs
        (2048, 512, False),  # 1,024 programs of 4 warps; 12 fit: 1,584
        (4096, 512, True),
        (4096, 192, False),  # 2,048 programs of 2 warps; 25 fit: 3,300
        (8192, 192, True),
        (2**20, 64, False),  # too short a loop to halve
    ],
)
def test_a_loop_is_timed_again_where_registers_keep_programs_waiting(rows: int, length: int, expected: bool) -> None:
    assert loop_is_timed(H200, rows, length) == expected


def test_a_card_with_fewer_threads_has_registers_for_them_all() -> None:
    assert not loop_is_timed(RTX_4070, 2**20, 512)  # 65,536 / 1,536 = 42 for each thread
