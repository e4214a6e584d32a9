"""Who takes part in a comparison of recipes, with which settings, for how long."""

from __future__ import annotations

from pathlib import Path

import pytest

from onecard.config.schema import KEYS
from onecard.errors import ConfigError, OnecardError, UsageError
from onecard.inputs.contenders import RECIPE_KEYS, Contender, cautions, contenders, jobs_of

CONFIG = """
batch_size = 8
gradient_accumulation_steps = 2
block_size = 32
max_iters = 1000
lr_decay_iters = 800
warmup_iters = 100
eval_iters = 10
schedule = 'wsd'
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    (tmp_path / "c.py").write_text(CONFIG)
    return str(tmp_path / "c.py")


def made(config: str, *flags: tuple[str, str], against: str = "onecard", **said: list[str]) -> tuple[Contender, ...]:
    return contenders(config, flags, against=against, vocab_size=256, **said)  # type: ignore[arg-type]


def test_the_baseline_is_the_same_config_with_nanogpts_recipe(config: str) -> None:
    theirs, ours = made(config, ("learning_rate", "0.01"))
    assert (theirs.name, theirs.ours, theirs.config.schedule) == ("adamw", False, "cosine")
    assert (ours.name, ours.ours, ours.config.schedule) == ("wsd", True, "wsd")
    assert theirs.config.learning_rate == ours.config.learning_rate == 0.01
    assert theirs.config.replace({"schedule": "wsd"}) == ours.config
    assert theirs.config.vocab_size == 256


def test_the_keys_of_a_recipe_are_ours_and_change_what_is_learned() -> None:
    assert {"schedule", "optimizer"} <= set(RECIPE_KEYS)
    assert not {"learning_rate", "vocab_size", "seed", "max_hours", "eval_block_size"} & set(RECIPE_KEYS)
    assert all(not KEYS[key].nanogpt for key in RECIPE_KEYS)


def test_a_recipe_on_the_command_line_is_for_our_side_and_any_other_key_for_both(config: str) -> None:
    theirs, ours = made(config, ("schedule", "wsd"), ("n_layer", "3"))
    assert (theirs.config.schedule, ours.config.schedule) == ("cosine", "wsd")
    assert theirs.config.n_layer == ours.config.n_layer == 3


def test_each_side_has_a_contender_for_each_combination_of_its_values(config: str) -> None:
    found = made(config, ours=["beta2=0.9,0.99"], theirs=["learning_rate=0.001,0.002", "schedule=cosine,wsd"])
    assert [one.name for one in found] == [
        *("adamw, learning_rate=0.001, schedule=cosine", "adamw, learning_rate=0.001, schedule=wsd"),
        *("adamw, learning_rate=0.002, schedule=cosine", "adamw, learning_rate=0.002, schedule=wsd"),
        *("wsd, beta2=0.9", "wsd, beta2=0.99"),
    ]
    assert [one.config.beta2 for one in found if one.ours] == [0.9, 0.99]


def test_a_shorter_run_of_a_recipe_is_the_recipes_run_of_that_length(config: str) -> None:
    flags = [("recipe", "fast"), ("max_iters", "4000")]
    *_, ours = contenders(config, flags, against="onecard", vocab_size=256)
    half = ours.of_length(2000 * ours.config.tokens_per_step)
    assert (half.max_iters, half.lr_decay_iters) == (2000, 2000)
    assert half.muon_momentum_warmup == 300, "as with --max_iters=2000"


def test_a_shorter_run_has_a_shorter_schedule(config: str) -> None:
    _, ours = made(config)
    half = ours.of_length(500 * 8 * 2 * 32)
    assert (half.max_iters, half.lr_decay_iters, half.warmup_iters) == (500, 400, 50)


def test_a_larger_update_means_fewer_of_them_and_the_same_windows(config: str) -> None:
    found = made(config, ours=["batch_size=8,16"])
    jobs = jobs_of(found, tokens=512_000, lengths=[0.5, 1], seeds=2)
    assert [(job.config.max_iters, job.config.seed) for job in jobs] == [
        *((1000, 1337), (500, 1337), (1000, 1337), (250, 1337), (500, 1337)),
        *((1000, 1338), (500, 1338), (1000, 1338), (250, 1338), (500, 1338)),
    ]
    assert {(job.windows, job.window_tokens) for job in jobs} == {(80, 32)}


def test_where_the_sides_have_different_lengths_of_context_the_shorter_is_evaluated(config: str) -> None:
    jobs = jobs_of(made(config, ours=["block_size=16"]), tokens=512_000, lengths=[1], seeds=1)
    assert {(job.windows, job.window_tokens) for job in jobs} == {(160, 16)}


def test_a_run_too_short_to_train_is_refused_with_a_length_that_is_enough(config: str) -> None:
    found = made(config)
    with pytest.raises(UsageError) as caught:
        jobs_of(found, tokens=10_000, lengths=[0.25, 1], seeds=1)
    assert caught.value.fix.startswith("--tokens 20480,")
    assert jobs_of(found, tokens=20_480, lengths=[0.25, 1], seeds=1)
    with pytest.raises(UsageError) as caught:
        jobs_of(found, tokens=4_000, lengths=[1], seeds=1, seconds=5)
    assert caught.value.fix == "--seconds 7", "and not --tokens, which --seconds excludes"


def test_a_best_value_at_the_edge_of_those_tried_is_said(config: str) -> None:
    found = made(config, theirs=["learning_rate=0.001,0.002,0.004"])
    assert cautions(found, "adamw, learning_rate=0.002", "wsd") == []
    assert cautions(found, "adamw, learning_rate=0.004", "wsd") == [
        "adamw, learning_rate=0.004: the highest learning_rate tried, so a better one may lie beyond"
    ]
    assert cautions(made(config), "adamw", "wsd") == [
        "adamw was not tuned: its learning_rate=0.0006 is the only one tried (--against-set)"
    ]


@pytest.mark.parametrize(
    ("said", "name", "fix"),
    [
        ({"ours": ["learning_rat=0.1"]}, "unknown-key", "--set learning_rate=0.1"),
        ({"theirs": ["learning_rate"]}, "bad-set", "--against-set learning_rate=0.001"),
        ({"ours": ["learning_rate=0.1,,0.2"]}, "bad-set", "--set learning_rate="),
        ({"ours": ["learning_rate=0.1,0.1"]}, "bad-set", "--set learning_rate=0.1"),
        ({"ours": ["learning_rate=0.1", "learning_rate=0.2"]}, "bad-set", "--set learning_rate=0.1,0.2"),
        ({"ours": ["learning_rate=fast"]}, "bad-value", "--learning_rate="),
        ({"ours": ["log_interval=1,2"]}, "does-not-vary", "--set learning_rate="),
        ({"ours": ["seed=1,2"]}, "must-not-vary", "--seeds 2"),
        ({"theirs": ["max_iters=10,20"]}, "must-not-vary", "--tokens"),
        ({"ours": ["vocab_size=300,400"]}, "must-not-vary", "--vocab_size=300, for both"),
        ({"ours": ["max_hours=1"]}, "must-not-vary", "--max_hours=1"),
        ({"theirs": ["schedule=cosine,wsd"], "against": "nanogpt"}, "unknown-key", ""),
    ],
)
def test_values_that_cannot_be_compared_are_refused(
    config: str, said: dict[str, list[str]], name: str, fix: str
) -> None:
    with pytest.raises(OnecardError) as caught:
        made(config, **said)  # type: ignore[arg-type]
    assert caught.value.name == name
    assert fix in caught.value.fix


def test_a_comparison_of_a_run_with_itself_is_refused(tmp_path: Path, config: str) -> None:
    (tmp_path / "plain.py").write_text(CONFIG.replace("wsd", "cosine"))
    plain = str(tmp_path / "plain.py")
    with pytest.raises(UsageError, match="same run"):
        made(plain)
    assert len(made(plain, against="nanogpt")) == 2
    assert len(made(plain, ours=["beta2=0.9"])) == 2


def test_a_run_from_trained_weights_and_a_config_from_standard_input_are_refused(config: str) -> None:
    with pytest.raises(ConfigError, match="from scratch"):
        made(config, ("init_from", "gpt2"))
    with pytest.raises(UsageError, match="standard input"):
        made("-")
