"""onecard compare as a person types it, on logs made by construction."""

import json
from pathlib import Path

import pytest

from onecard.runs.folder import create_run
from onecard.runs.records import Eval, Step
from tests import made_logs as made
from tests import made_records
from tests.contract.conftest import Command

CONFIG = made.nanogpt_config(**made.SMALL, gradient_accumulation_steps=40, eval_interval=250, vocab_size=50304)


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """A folder with two logs, each with its config beside it."""
    folder = tmp_path / "logs"
    folder.mkdir()
    for name, end, seconds, width in (("small", 3.5, 0.25, 256), ("large", 3.2, 0.5, 512)):
        (folder / f"{name}.log").write_text("\n".join(made.nanogpt(end=end, seconds=seconds)) + "\n")
        (folder / f"{name}.config.py").write_text("\n".join(CONFIG).replace("n_embd = 256", f"n_embd = {width}"))
    return folder


def test_two_logs_are_compared_with_the_configs_beside_them(onecard: Command, logs: Path) -> None:
    shown = onecard("compare", str(logs / "small.log"), str(logs / "large.log"), "--gpu", "RTX 4090")
    assert shown.code == 0
    assert f"config of {logs / 'small.log'}: small.config.py, found beside it" in shown.stderr
    assert "B passes A's final loss" in shown.stdout
    assert "n_embd 256 → 512" in shown.stdout
    assert "predicted, not measured" not in shown.stdout
    detailed = onecard("compare", str(logs / "small.log"), str(logs / "large.log"), "--gpu", "RTX 4090", "--details")
    assert "predicted, not measured" in detailed.stdout


def test_json_is_one_object_and_nothing_else(onecard: Command, logs: Path) -> None:
    shown = onecard("compare", str(logs / "small.log"), str(logs / "large.log"), "--json")
    assert shown.code == 0
    assert shown.stderr == ""
    assert shown.json["schema"] == 1
    assert shown.json["config_diff"] == {"n_embd": [256, 512]}
    assert shown.json["runs"][0]["mfu"] is None  # no card was named
    assert shown.json["winners"]["final_val_loss"] == 1


def test_configs_can_be_named_once_for_all_or_one_by_one(onecard: Command, logs: Path) -> None:
    small, large = str(logs / "small.log"), str(logs / "large.log")
    config = str(logs / "small.config.py")
    one = onecard("compare", small, large, "--config", config, "--json")
    assert one.json["config_diff"] == {}
    swapped = onecard("compare", small, large, "--config", str(logs / "large.config.py"), "--config", config, "--json")
    assert swapped.json["config_diff"] == {"n_embd": [512, 256]}


def test_a_run_folder_is_compared_with_a_log(onecard: Command, logs: Path, tmp_path: Path) -> None:
    with create_run(tmp_path / "run", config={**made.SMALL, "gradient_accumulation_steps": 40}) as folder:
        for number in range(0, 1001, 10):
            tokens, loss = number * 163_840, made.smooth_loss(number, end=3.0)
            if number % 250 == 0:
                folder.append(evaluation(number, tokens, loss))
            folder.append(update(number, tokens, loss))
    found = onecard("compare", str(logs / "small.log"), str(tmp_path / "run"), "--json").json
    assert found["runs"][1]["format"] == "onecard"
    assert found["runs"][1]["seconds"] == 200
    assert found["runs"][1]["reserved_bytes"] == 2**30
    assert found["runs"][1]["evaluation_noise"] == 0.01
    assert found["winners"]["final_val_loss"] == 1


def evaluation(step: int, tokens: int, loss: float) -> Eval:
    return Eval(
        step=step,
        tokens=tokens,
        train_loss=loss,
        val_loss=loss,
        train_loss_error=0.01,
        val_loss_error=0.01,
        block_size=512,
        tokens_read=8192,
        seconds=1.0,
        peak_allocated_bytes=None,
        peak_reserved_bytes=None,
        bits_per_byte=None,
    )


def update(step: int, tokens: int, loss: float) -> Step:
    return Step(
        step=step,
        tokens=tokens,
        loss=loss,
        lr=None,
        grad_norm=None,
        seconds=0.2,
        elapsed_seconds=0.2 * step,
        tokens_per_second=None,
        mfu=None,
        allocated_bytes=None,
        reserved_bytes=2**30,
        data_wait_seconds=None,
    )


def test_logs_of_one_name_in_two_folders_are_told_apart(onecard: Command, logs: Path) -> None:
    for name in ("small", "large"):
        (logs / name).mkdir()
        (logs / f"{name}.log").rename(logs / name / "train.log")
    shown = onecard("compare", "small/train.log", "large/train.log", cwd=logs)
    assert "\nA  small/train.log" in shown.stdout
    assert "\nB  large/train.log" in shown.stdout


def test_a_config_beside_that_is_none_does_not_stop_the_comparison(onecard: Command, logs: Path) -> None:
    (logs / "small.config.py").write_text("this is (no config")
    shown = onecard("compare", "small.log", "large.log", cwd=logs)
    assert shown.code == 0
    assert "config of small.log: not small.config.py, found beside it" in shown.stderr
    assert "A  small.log, config not known" in shown.stdout


def test_a_config_from_standard_input_serves_every_run(onecard: Command, logs: Path) -> None:
    shown = onecard("compare", "small.log", "large.log", "--config", "-", "--json", cwd=logs, stdin="\n".join(CONFIG))
    assert shown.code == 0
    assert shown.json["config_diff"] == {}
    assert shown.json["runs"][0]["params"] == shown.json["runs"][1]["params"] == 16_025_856


@pytest.mark.parametrize(
    ("suffix", "begins", "holds"),
    [
        ("svg", b"<svg ", b"<polyline"),
        ("html", b"<!doctype html>", b"<polyline"),
        ("png", b"\x89PNG\r\n", b"IEND"),
    ],
)
def test_a_picture_is_drawn(onecard: Command, logs: Path, suffix: str, begins: bytes, holds: bytes) -> None:
    if suffix == "png":
        pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'onecard[plot]'")
    picture = logs / f"losses.{suffix}"
    shown = onecard("compare", str(logs / "small.log"), str(logs / "large.log"), "--plot", str(picture))
    assert shown.code == 0
    assert f"wrote {picture}" in shown.stderr
    assert picture.read_bytes().startswith(begins)
    assert holds in picture.read_bytes()


def test_a_name_is_drawn_whatever_its_letters(onecard: Command, logs: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install 'onecard[plot]'")
    for name, letters in (("small", "a$b_{c$"), ("large", "_लॉग<&>")):
        (logs / f"{name}.log").rename(logs / f"{letters}.log")
    for suffix in ("svg", "html", "png"):
        shown = onecard("compare", "a$b_{c$.log", "_लॉग<&>.log", "--plot", f"x.{suffix}", cwd=logs)
        assert (shown.code, shown.stderr) == (0, f"wrote x.{suffix}\n")


def test_a_log_of_several_runs_is_compared_with_itself(onecard: Command, logs: Path) -> None:
    both = logs / "both.log"
    both.write_text((logs / "small.log").read_text() + (logs / "large.log").read_text())
    assert len(onecard("compare", str(both), "--json").json["runs"]) == 2


def test_standard_input_is_a_log(onecard: Command, logs: Path) -> None:
    shown = onecard("compare", "-", str(logs / "large.log"), "--json", stdin=(logs / "small.log").read_bytes())
    assert [run["source"] for run in shown.json["runs"]] == ["stdin", str(logs / "large.log")]


def test_a_config_that_no_trainer_takes_says_what_it_can(onecard: Command, logs: Path) -> None:
    for name in ("small", "large"):
        config = logs / f"{name}.config.py"
        config.write_text(config.read_text() + "\nn_head = 7\n")
    logs_named = ("compare", "small.log", "large.log", "--json")
    found = onecard(*logs_named, cwd=logs)
    named = onecard(*logs_named, "--config", "small.config.py", "--config", "large.config.py", cwd=logs)
    assert found.json == named.json
    assert named.json["config_diff"] == {"n_embd": [256, 512]}


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ([], "no-run"),
        (["small.log"], "one-run"),
        (["small.log", "nothing.log"], "no-such-file"),
        (["small.log", "empty.log"], "empty-log"),
        (["small.log", "small.config.py"], "unreadable-log"),
        (["small.log", "large.log", "--plot", "losses.bmp"], "unknown-plot"),
        (["small.log", "large.log", "--plot", "no/such/folder/x.svg"], "cannot-write"),
        (["small.log", "large.log", "--gpu", "voodoo"], "unknown-card"),
        (["small.log", "large.log", "--n_layer=3"], "unexpected-key"),
        (["small.log", "large.log", "--config", "empty.log"], "empty-config"),
        (["a", "b", "c", "--config", "x", "--config", "y"], "configs-do-not-match"),
        (["-", "-"], "stdin-twice"),
        (["-", "large.log", "--config", "-"], "stdin-twice"),
        (["small.log", "large.log", "--config", "-", "--config", "-"], "stdin-twice"),
    ],
)
def test_a_mistake_gets_three_lines(onecard: Command, logs: Path, arguments: list[str], name: str) -> None:
    (logs / "empty.log").write_text("")
    shown = onecard("compare", *arguments, cwd=logs)
    assert shown.code == (3 if name == "cannot-write" else 2)
    assert shown.stdout == ""
    lines = [line for line in shown.stderr.splitlines() if not line.startswith("config of")]
    assert len(lines) == 3, shown.stderr
    assert lines[0].endswith(f"[{name}]")
    assert shown.stderr.count("why: ") == 1


def test_a_path_that_is_not_there_is_answered_with_this_command(onecard: Command, logs: Path) -> None:
    far, near = (onecard("compare", "small.log", name, cwd=logs).stderr for name in ("runs/nothing", "larg.log"))
    assert "fix: onecard compare runs/a runs/b   (or log files)" in far
    assert "fix: did you mean large.log ?" in near


def test_a_config_in_place_of_a_run_is_answered_with_this_command(onecard: Command, logs: Path) -> None:
    with create_run(logs / "run", config=made.SMALL):
        pass
    shown = onecard("compare", "run/config.json", "small.log", cwd=logs)
    assert shown.stderr.splitlines()[0].endswith("[config-no-log]")
    assert "fix: onecard compare run ANOTHER   (or, for what it needs: onecard plan run/config.json)" in shown.stderr


def test_a_run_stopped_before_its_first_update_is_told_as_unfinished(onecard: Command, logs: Path) -> None:
    with create_run(logs / "run", config={**made.SMALL, "max_hours": 1e-7}) as folder:
        folder.append(evaluation(0, 0, 10.9))
        folder.append(made_records.end(0, "max_hours"))
    shown = onecard("compare", "run", "small.log", cwd=logs)
    assert "\nA  run, at update 0 of 1,000 (max_hours)\n" in shown.stdout


def test_no_number_in_the_json_is_infinite(onecard: Command, logs: Path) -> None:
    sick = logs / "sick.log"
    lines = [f"step {n}: train loss nan, val loss nan\niter {n}: loss inf, time 1.00ms\n" for n in range(9)]
    sick.write_text("".join(lines))
    shown = onecard("compare", str(logs / "small.log"), str(sick), "--json")
    assert shown.code == 0
    assert json.loads(shown.stdout, parse_constant=pytest.fail)["runs"][1]["final_val_loss"] is None
