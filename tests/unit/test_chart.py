"""The parts of every chart: places of values, names that do not touch, lines that stay in their frame."""

import itertools
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onecard.report.chart import Frame, loss_bounds, picture, round_values, words_at

FRAME = Frame(left=100, top=50, right=500, floor=250, x=(0, 10), y=(2, 4))


@pytest.mark.parametrize(("value", "place"), [((0, 2), (100, 250)), ((10, 4), (500, 50)), ((5, 3), (300, 150))])
def test_a_value_is_where_the_axes_say(value: tuple[float, float], place: tuple[float, float]) -> None:
    assert FRAME.at(*value) == place


def test_names_that_would_touch_are_moved_apart_and_others_stay() -> None:
    ends = [(10, 3.0), (10, 3.01), (1, 3.0)]
    (_, first), (_, second), (_, far) = FRAME.beside(ends, gap=13)
    assert (second, far) == pytest.approx((149, 150)), "the upper one, and one that ends elsewhere, stay at their lines"
    assert first == pytest.approx(second + 13)


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(-5, 9)), min_size=1, max_size=12))
def test_names_stay_above_the_floor_and_apart(ends: list[tuple[float, float]]) -> None:
    at_one_place = FRAME.beside([(10, y) for _, y in ends], gap=13)
    heights = sorted(y for _, y in at_one_place)
    assert heights[-1] <= FRAME.floor
    assert all(below - above > 12.999 for above, below in itertools.pairwise(heights))


def test_what_lies_outside_the_frame_is_cut_off() -> None:
    window = ElementTree.fromstring(str(FRAME.inside(FRAME.line([(0, 2), (1, 400)], stroke="#000"))))
    left, top, width, height = map(float, window.attrib["viewBox"].split())
    assert (left, top) == (96, 46)
    assert (left + width, top + height) == (504, 254)


def test_grid_lines_carry_their_value() -> None:
    line, words = map(str, list(FRAME.rows("{:g} nats".format, [3]))[:2])
    assert 'y1="150.0"' in line
    assert ">3 nats</text>" in words


def test_words_are_escaped() -> None:
    assert "<b>" not in str(picture(words_at(0, 0, "<b>"), width=9, height=9))


def test_bounds_leave_out_the_first_losses_and_marks_are_round() -> None:
    low, high = loss_bounds([11.0, 4.0, 3.5, 3.4, 3.3, 3.2, 3.1, 3.0])
    assert low < 3.0 < high < 5.0
    assert round_values(3.0, 4.1) == pytest.approx([3.0, 3.25, 3.5, 3.75, 4.0])
