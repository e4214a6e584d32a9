"""The questions people really asked about a run that stalls, and where the doctor answers them: the main ones within
the first eight lines, the others in what it prints without being asked for more. The log and the config are made."""

from pathlib import Path

import pytest

from tests.contract.conftest import Command
from tests.contract.test_doctor import CONFIG, log
from tests.contract.test_doctor_answers import checkout, saving


@pytest.fixture
def answer(onecard: Command, tmp_path: Path) -> list[str]:
    """What the doctor prints of the finished run, whose config it finds in config/."""
    checkout(tmp_path / "work", train_web=CONFIG + "log_interval = 200\n")
    (tmp_path / "work" / "train.log").write_text(saving(log()))
    return onecard("doctor", "train.log", "--gpu", "RTX 4070").stdout.splitlines()


def first(answer: list[str]) -> str:
    return " ".join(" ".join(answer[:8]).split())


def whole(answer: list[str]) -> str:
    return " ".join(" ".join(answer).split())


def test_40m_or_125m(answer: list[str]) -> None:
    assert "the comment and run name say ~125M; this config is 40.56M (n_embd=384; 768 gives 123.59M)" in first(answer)


def test_what_to_type(answer: list[str]) -> None:
    assert "python train.py config/train_web.py --n_embd=768" in first(answer)


def test_which_accumulation_keeps_half_a_million_tokens(answer: list[str]) -> None:
    assert "--gradient_accumulation_steps=64 --batch_size=8" in first(answer)
    assert "an update is 524,288 tokens (16 x 32 x 1,024), the usual half million" in whole(answer)


def test_is_dropout_needed(answer: list[str]) -> None:
    assert "--dropout=0.0" in first(answer)
    assert "dropout only slows learning" in whole(answer)


def test_what_to_expect(answer: list[str]) -> None:
    assert "MiB of 11.69 GiB" in first(answer)
    assert "at step 10,000" in first(answer)


def test_can_the_old_checkpoint_be_resumed(answer: list[str]) -> None:
    assert "a new run: a checkpoint cannot change its shape" in first(answer)
    assert "a checkpoint with n_embd=384 cannot be continued in the new shape" in whole(answer)


def test_why_is_validation_below_training(answer: list[str]) -> None:
    assert "val is 0.070 below train; dropout is not the reason: the two splits differ" in whole(answer)


def test_is_an_mfu_of_11_percent_bad(answer: list[str]) -> None:
    assert "true MFU is 69% of GeForce RTX 4070; the log's 11.5 to 11.5 % is of an A100" in whole(answer)


def test_is_it_a_plateau_and_what_would_more_buy(answer: list[str]) -> None:
    assert "no plateau: twice the tokens would gain 0.10 nats, twice the parameters 0.23" in whole(answer)


def test_how_many_tokens_per_parameter(answer: list[str]) -> None:
    assert "256 tokens per parameter; about 20 are compute-optimal" in whole(answer)


def test_mid_run_where_will_it_end(onecard: Command, tmp_path: Path, answer: list[str]) -> None:
    (tmp_path / "work" / "train.log").write_text(saving(log(14_500)))
    said = whole(onecard("doctor", "train.log", "--gpu", "RTX 4070").stdout.splitlines())
    assert "forecast ends at val 3.5" in said
    assert "186 per parameter so far, 256 planned" in said
