"""Learning rates worked out by hand."""

import math

import pytest

from onecard.config.schema import RunConfig
from onecard.plan.schedule import learning_rate

COSINE = RunConfig(learning_rate=1e-3, min_lr=1e-4, warmup_iters=9, lr_decay_iters=109, max_iters=109)
STABLE = COSINE.replace({"schedule": "wsd", "lr_decay_iters": 100, "max_iters": 100})


@pytest.mark.parametrize(
    ("step", "rate"),
    [
        (0, 1e-4),  # 1/10 of the full rate: nanoGPT's warm-up has warmup_iters + 1 parts
        (4, 5e-4),
        (8, 9e-4),
        (9, 1e-3),
        (34, 1e-4 + 9e-4 * (1 + math.sqrt(0.5)) / 2),  # a quarter of the way: cos 45°
        (59, 5.5e-4),  # half way between the two rates
        (109, 1e-4),
        (110, 1e-4),
        (10**9, 1e-4),
    ],
)
def test_cosine_follows_nanogpts_iterations(step: int, rate: float) -> None:
    assert learning_rate(COSINE, step) == pytest.approx(rate, rel=1e-12)


@pytest.mark.parametrize(
    ("step", "rate"),
    [(0, 1e-4), (9, 1e-3), (50, 1e-3), (80, 1e-3), (90, 5.5e-4), (95, 3.25e-4), (100, 1e-4), (200, 1e-4)],
)
def test_warm_up_stable_decay_falls_in_a_line_over_the_last_fifth(step: int, rate: float) -> None:
    assert learning_rate(STABLE, step) == pytest.approx(rate, rel=1e-12)


def test_without_decay_the_rate_is_constant_from_the_first_update() -> None:
    constant = COSINE.replace({"decay_lr": False})
    assert {learning_rate(constant, step) for step in (0, 5, 50, 500)} == {1e-3}


@pytest.mark.parametrize("schedule", ["cosine", "wsd"])
@pytest.mark.parametrize(("warmup", "decay"), [(0, 0), (10, 10), (20, 10), (0, 1), (9, 10), (95, 100)])
def test_no_schedule_divides_by_zero_or_leaves_its_bounds(schedule: str, warmup: int, decay: int) -> None:
    config = COSINE.replace({"schedule": schedule, "warmup_iters": warmup, "lr_decay_iters": decay})
    rates = [learning_rate(config, step) for step in range(130)]
    assert all(0 < rate <= 1e-3 for rate in rates)
    assert rates[-1] == 1e-4
    assert rates[warmup:] == sorted(rates[warmup:], reverse=True)
