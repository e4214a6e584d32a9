"""Steps that somebody disturbed do not count (bench/quiet_core.py)."""

import os
import sys
import time

import pytest

from bench.quiet_core import ENOUGH, Timed, parsed, time_quietly


def test_a_step_counts_if_the_loops_around_it_ran_about_as_fast_as_the_fastest() -> None:
    timed = Timed([(1.0, 0.0016), (2.0, 0.0020), (3.0, 0.0022), (4.0, 0.0035)], fastest=0.0016)
    assert timed.quiet == [1.0, 2.0]


def test_too_few_quiet_steps_tell_nothing() -> None:
    steps = [(float(number), 0.0016) for number in range(ENOUGH)]
    assert Timed(steps, fastest=0.0016).seconds == 2.0
    assert Timed(steps[1:], fastest=0.0016).seconds is None


def test_steps_are_read_as_they_were_written() -> None:
    timed = Timed([(0.17402, 0.00163), (0.26, 0.0035)], fastest=0.0016)
    assert timed.text == "0.17402:0.00163 0.26000:0.00350"
    assert parsed(timed.text, 0.0016) == timed


@pytest.mark.skipif(sys.platform != "linux", reason="cores are chosen with sched_setaffinity")
def test_steps_are_taken_until_enough_were_quiet_or_the_time_is_up() -> None:
    def step() -> float:
        time.sleep(0.001)
        return 0.001

    cores, began = os.sched_getaffinity(0), time.perf_counter()
    try:
        timed = time_quietly(step, wanted=3, limit_seconds=1.0)
    finally:
        os.sched_setaffinity(0, cores)
    assert len(timed.quiet) == 3 or time.perf_counter() - began >= 1.0
    assert all(seconds == 0.001 for seconds, _ in timed.steps)
