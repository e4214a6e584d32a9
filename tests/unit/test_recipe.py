"""Settings by rules of thumb: their values, and that their sources say how each came about."""

import pytest

from onecard.plan import recipe


@pytest.mark.parametrize(
    ("params", "rate", "source"),
    [
        (
            16_300_000,
            1.2e-3,
            "the best of three we tried at 124M, and the highest we use; GPT-3's 0.0006 at 125M with 1/sqrt",
        ),
        (45_000_000, 1e-3, "GPT-3's 0.0006 at 125M with 1/sqrt(params)"),
        (125_000_000, 6e-4, "GPT-3's 0.0006 at 125M with 1/sqrt(params)"),
        (203_000_000, 4.3e-4, "GPT-3 table 2.1, interpolated"),
        (1_600_000_000, 2e-4, "GPT-3 table 2.1: 0.0002 at 1.3B, the lowest we use"),
    ],
)
def test_a_learning_rate_says_which_rule_made_it(params: int, rate: float, source: str) -> None:
    made = recipe.learning_rate(params)
    assert made.value == pytest.approx(rate)
    assert made.source.startswith(source)


def test_a_tenth_of_a_learning_rate_has_two_digits() -> None:
    assert 1.2e-3 / 10 != 1.2e-4
    assert recipe.min_lr(1.2e-3).value == 1.2e-4
    assert recipe.min_lr(4.3e-4).value == 4.3e-5


def test_a_capped_learning_rate_says_what_the_rule_would_give() -> None:
    assert recipe.learning_rate(16_300_000).source.endswith("would be 0.0017")
    largest_capped = round(125e6 * (6e-4 / recipe.HIGHEST_LEARNING_RATE) ** 2)
    assert "would be" in recipe.learning_rate(largest_capped - 1000).source
    assert "would be" not in recipe.learning_rate(largest_capped + 1000).source


@pytest.mark.parametrize(
    ("block_size", "choices"),
    [(1024, [32, 64, 128, 256, 512]), (1000, [32, 64, 128, 256, 512]), (2**19, [1]), (2**20, [1])],
)
def test_updates_double_from_32768_tokens_to_half_a_million(block_size: int, choices: list[int]) -> None:
    assert recipe.sequences_per_step(block_size) == choices


def test_the_size_of_an_update_says_why_it_is_so() -> None:
    assert recipe.tokens_per_step_source(1024, 512, 200) == "GPT-3's half million tokens per update"
    assert "for 3,000 updates" in recipe.tokens_per_step_source(1024, 64, 3000)
    assert "32,768 tokens per update, the fewest" in recipe.tokens_per_step_source(1024, 32, 2999)
