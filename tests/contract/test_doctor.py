"""`onecard doctor` as a stranger uses it. Every log and run folder here is made by construction."""

import json
import math
import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from onecard.config.schema import RunConfig
from onecard.doctor.live import evaluation_above_training
from onecard.findings import Finding
from onecard.plan.loss import law
from onecard.runs.folder import create_run
from onecard.runs.record_json import to_line
from onecard.runs.records import End, EndReason, FindingRecord, Oom, OomPlace, Record, Start
from tests import made_logs as made
from tests.contract.conftest import Command
from tests.unit.doctor.cases import evaluation, step

# A config after the one of a real question: the comment says 125M, the width makes it 40M.
CONFIG = """\
out_dir = 'out-web'
eval_interval = 500
wandb_run_name = '125M-my-card'
dataset = 'fineweb'
gradient_accumulation_steps = 32     # 16 * 32 = 512 sequences
batch_size = 16
block_size = 1024
# Model (~125M parameters)
n_layer = 12
n_head = 12
n_embd = 384
dropout = 0.1
learning_rate = 1e-3
max_iters = 20000                    # ~3B tokens
warmup_iters = 500
lr_decay_iters = 20000
min_lr = 1e-4
beta2 = 0.99
"""
PARAMS, TOKENS = 40_953_216, 524_288


def log_lines(last: int = 20_000, *, gap: float = -0.07) -> Iterator[str]:
    """What nanoGPT would print for CONFIG on an RTX 4070: the scaling law, 3.91 s an update, MFU of an A100."""
    for number in range(0, last + 1, 100):
        tokens = max(number, 40) * TOKENS
        loss = min(10.87, law(PARAMS, tokens) + 0.21) if number else 10.87
        noise = 0.01 * math.sin(7.7 * number)
        if number % 500 == 0:
            yield f"step {number}: train loss {loss:.4f}, val loss {loss + gap + noise:.4f}"
        if number % 200 == 0:
            milliseconds = 19_150.0 if number % 1000 == 0 else 3910.0
            yield f"iter {number}: loss {loss + gap + 10 * noise:.4f}, time {milliseconds:.2f}ms, mfu 11.50%"


def log(last: int = 20_000, **more: float) -> str:
    return "\n".join(log_lines(last, **more)) + "\n"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    (folder / "train.log").write_text(log())
    (folder / "c.py").write_text(CONFIG)
    return folder


GIVEN = ["train.log", "--config", "c.py", "--gpu", "RTX 4070"]


def by_rule(run: dict[str, object]) -> dict[str, dict[str, object]]:
    return {finding["rule"]: finding for finding in run["findings"]}  # type: ignore[attr-defined, index]


def test_the_question_of_the_run_that_stalls_is_answered_whole(onecard: Command, files: Path) -> None:
    shown = onecard("doctor", *GIVEN, "--json")
    assert shown.code == 1
    assert shown.stderr == ""
    assert shown.json["schema"] == 1
    (run,) = shown.json["runs"]
    assert (run["source"], run["format"]) == ("train.log", "nanogpt")
    found = by_rule(run)
    mismatch = found["params-mismatch"]
    assert mismatch["severity"] == "error"
    assert mismatch["patch"] == {
        "n_embd": 768,
        "batch_size": 8,
        "gradient_accumulation_steps": 64,
        "dropout": 0.0,
        "learning_rate": 6e-4,
        "min_lr": 6e-5,
        "out_dir": "out-web-124M",
    }
    assert re.search(r"[\d,]+ MiB of 11\.69 GiB, [\d.]+ h, loss 3\.3\d \(.*\) at step 10,000", str(mismatch["fix"]))
    assert "cannot be continued" in str(mismatch["fix"])
    assert "dropout is not the reason" in str(found["val-below-train"]["why"])
    assert found["needless-dropout"]["patch"] == {"dropout": 0.0}
    assert "69%" in str(found["mfu-mislabelled"]["what"])
    assert "no plateau" in str(found["capacity-or-data"]["what"])
    assert "plateau" not in found
    assert found["accumulation-for-target"]["patch"] == {"batch_size": 8, "gradient_accumulation_steps": 64}
    assert run["prescription"]["fits"] is True
    assert run["prescription"]["loss_at_steps"]["10000"]["likely"] == pytest.approx(3.345, abs=0.002)


def test_mid_run_the_end_is_foretold(onecard: Command, files: Path) -> None:
    (files / "train.log").write_text(log(14_500))
    (run,) = onecard("doctor", *GIVEN, "--json").json["runs"]
    final = law(PARAMS, 20_000 * TOKENS) + 0.21 - 0.07
    assert run["forecast"]["final_loss"]["low"] < final < run["forecast"]["final_loss"]["high"]
    assert run["forecast"]["seconds_to_go"]["likely"] == pytest.approx(5500 * 3.91 + 11 * 15.24, rel=0.01)
    assert by_rule(run)["stopped-early"]["severity"] == "info"


def test_sizes_of_the_data_are_said_or_read(onecard: Command, files: Path) -> None:
    (run,) = onecard("doctor", *GIVEN, "--json", "--train_tokens=30B", "--val_tokens=5000").json["runs"]
    assert by_rule(run)["needless-dropout"]["sure"] == "high"
    assert by_rule(run)["val-set-tiny"]["severity"] == "warn"
    data = files / "data" / "mine"
    data.mkdir(parents=True)
    (data / "train.bin").write_bytes(b"\1\0" * 50_000)
    (data / "val.bin").write_bytes(b"\1\0" * 2000)
    (run,) = onecard("doctor", *GIVEN, "--json", "--data", "mine").json["runs"]
    assert "2,000 tokens" in str(by_rule(run)["val-set-tiny"]["what"])
    assert by_rule(run)["too-many-epochs"]["severity"] == "error"


def test_a_run_without_config_and_card_is_told_what_it_shows(onecard: Command) -> None:
    shown = onecard("doctor", "-", stdin=log(gap=0.01))
    assert shown.code == 0
    assert "stdin: nanoGPT log" in shown.stdout
    first = shown.stdout.partition("\n\n")[0].replace("\n", " ")
    assert re.search(
        r"log, nothing wrong in the log \(\d notes?\); \d\d checks need the config: --config FILE; 2 need the card",
        first,
    )
    assert "healthy" not in shown.stdout


def test_several_runs_are_several_entries(onecard: Command, files: Path) -> None:
    (files / "two.log").write_text(log(2000) + log(3000, gap=0.05))
    runs = onecard("doctor", "two.log", "train.log", "--json").json["runs"]
    assert [run["source"] for run in runs] == ["two.log", "two.log", "train.log"]
    assert [run["summary"]["last_step"] for run in runs] == [2000, 3000, 20_000]


def test_logs_of_one_name_in_two_folders_are_two_files(onecard: Command, files: Path) -> None:
    for name, width in (("a", 384), ("b", 768)):
        (files / name).mkdir()
        (files / name / "train.log").write_text(log(2000))
        unsaid = CONFIG.replace("out_dir = 'out-web'\n", "").replace("n_embd = 384", f"n_embd = {width}")
        (files / name / "train.config.py").write_text(unsaid)
    runs = onecard("doctor", "a/train.log", "b/train.log", "--json").json["runs"]
    assert [run["source"] for run in runs] == ["a/train.log", "b/train.log"]
    assert "out-dir-reused" not in by_rule(runs[1])  # each has the folder that nanoGPT gives it where it stands


def test_bare_messages_give_one_finding_each(onecard: Command) -> None:
    messages = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 5.00 GiB. GPU 0 has a total capacity of "
        "10.00 GiB of which 2.00 GiB is free. Including non-PyTorch memory, this process has 6.50 GiB memory in use. "
        "Of the allocated memory 6.00 GiB is allocated by PyTorch, and 100.00 MiB is reserved by PyTorch but "
        "unallocated.\n"
        "RuntimeError: CUDA out of memory. Tried to allocate 400.00 MiB (GPU 0; 8.00 GiB total capacity; 9.10 GiB "
        "already allocated; 0 bytes free; 9.30 GiB reserved in total by PyTorch)\n"
    )
    shown = onecard("doctor", "-", "--json", stdin=messages)
    assert shown.code == 1
    (run,) = shown.json["runs"]
    assert run["format"] == "messages"
    assert sorted(finding["rule"] for finding in run["findings"]) == ["oom-capacity", "oom-system-spill"]


def test_a_run_folder_of_ours_is_read(onecard: Command, tmp_path: Path) -> None:
    with create_run(tmp_path / "work" / "runs" / "first", config={"n_layer": 2, "max_iters": 30}) as folder:
        folder.append(
            Start(
                step=0, config={}, versions={}, device="cpu", card=None, predicted_process_bytes=None, resumed_from=None
            )
        )
        for number in range(1, 11):
            folder.append(replace(step(number, math.nan if number > 8 else 4.0), more={}))
    shown = onecard("doctor", "runs/first", "--json")
    assert shown.code == 1
    (run,) = shown.json["runs"]
    assert run["format"] == "onecard"
    assert by_rule(run)["loss-nan"]["severity"] == "fatal"
    assert len(onecard("doctor", "runs", "--json").json["runs"]) == 1, "a folder of runs is its runs"


OWN = {"n_layer": 2, "n_head": 2, "n_embd": 128, "max_iters": 1000, "lr_decay_iters": 1000, "vocab_size": 50304}
BEGIN = Start(step=0, config={}, versions={}, device="cuda", card=None, predicted_process_bytes=None, resumed_from=None)
OOM_MESSAGE = (
    "CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 11.70 GiB of which 100.00 MiB is "
    "free. Including non-PyTorch memory, this process has 11.50 GiB memory in use. Of the allocated memory 11.00 GiB "
    "is allocated by PyTorch, and 200.00 MiB is reserved by PyTorch but unallocated."
)


def test_a_run_reads_the_same_whatever_its_folder_is_called(onecard: Command, tmp_path: Path) -> None:
    runs = tmp_path / "work" / "runs"
    for name in ("default", "twin"):
        own_run(runs / name)
    said = {name: onecard("doctor", name, "--json", cwd=runs) for name in ("default", "twin")}
    assert said["twin"].stdout.replace("twin", "default") == said["default"].stdout
    assert (
        onecard("doctor", "runs/default", "--json").stdout.replace("runs/default", "default") == said["default"].stdout
    )
    (run,) = said["default"].json["runs"]
    assert "batch_size = 16 (in default)" in str(run["findings"])


def own_run(folder: Path, *more: Record, last: int = 300, begin: Start = BEGIN, **keys: object) -> None:
    """A run of ours that learns for `last` steps, and what else it recorded."""
    with create_run(folder, config={**OWN, "batch_size": 16, "gradient_accumulation_steps": 32, **keys}) as run:
        run.append(begin)
        for number in range(1, last + 1, 10):
            run.append(replace(step(number, 10.8 - number / 100), more={}))
        for record in more:
            run.append(record)


def shrunk(before: int, after: int | None, *, where: OomPlace = "train", at: int = 300) -> Oom:
    accumulation = 512 // after if after and where == "train" else None
    return Oom(
        step=at,
        where=where,
        batch_size_before=before,
        batch_size_after=after,
        accumulation_before=512 // before if where == "train" else None,
        accumulation_after=accumulation,
        message=OOM_MESSAGE,
    )


def ended(reason: EndReason, *, at: int = 300) -> End:
    return End(step=at, tokens=None, reason=reason, best_val_loss=None, seconds=None)


def test_memory_that_ran_out_in_a_run_of_ours_is_an_error_if_it_gave_up(onecard: Command, tmp_path: Path) -> None:
    attempts = [shrunk(8, 4), shrunk(4, 2), shrunk(2, 1), shrunk(1, None)]
    own_run(tmp_path / "work" / "r", *attempts, ended("out-of-memory"))
    shown = onecard("doctor", "r", "--json")
    assert shown.code == 1
    found = by_rule(shown.json["runs"][0])
    assert found["oom-capacity"]["severity"] == "error"
    assert "1.50 GiB more" in str(found["oom-capacity"]["what"])
    assert "not even one sequence" in str(found["oom-capacity"]["what"])
    assert len(found["oom-capacity"]["seen"]) == 4  # type: ignore[arg-type]
    assert found["stopped-early"]["severity"] == "error"
    assert "out of memory" in str(found["stopped-early"]["what"])
    assert shown.json["runs"][0]["summary"]["ended"] == "out-of-memory"


def test_a_run_of_ours_that_went_on_smaller_is_warned_with_what_it_went_on_with(
    onecard: Command, tmp_path: Path
) -> None:
    own_run(tmp_path / "work" / "r", shrunk(16, 8), shrunk(8, 4), shrunk(16, 8, where="eval", at=250))
    shown = onecard("doctor", "r", "--json")
    assert shown.code == 0
    findings = shown.json["runs"][0]["findings"]
    trained, evaluated = [finding for finding in findings if finding["rule"] == "oom-capacity"]
    assert trained["severity"] == "warn"
    assert "batches of 16 became batches of 4" in trained["what"]
    assert trained["patch"]["batch_size"] == 4
    assert trained["patch"]["gradient_accumulation_steps"] == 128
    assert evaluated["patch"] == {"eval_batch_size": 8}
    assert by_rule(shown.json["runs"][0])["oom-in-eval"]["severity"] == "warn"
    text = onecard("doctor", "r").stdout
    assert "seen: step 300: batches of 16, then 8: CUDA out of memory" in text
    assert "healthy" not in text


def test_what_a_run_of_ours_found_of_itself_is_repeated(onecard: Command, tmp_path: Path) -> None:
    finding = evaluation_above_training(
        step=250, evaluation_bytes=3 * 2**30, training_bytes=2**30, eval_batch_size=32, batch_size=16
    )
    own_run(tmp_path / "work" / "r", FindingRecord(step=250, finding=finding))
    (run,) = onecard("doctor", "r", "--json").json["runs"]
    repeated = by_rule(run)["evaluation-above-training"]
    assert repeated["what"] == f"found at step 250, while it trained: {finding.what}"
    assert repeated["seen"] == ["step 250: finding, evaluation-above-training", *finding.seen]
    assert run["summary"]["healthy"] is False


def test_a_finding_that_a_rule_makes_anew_is_not_told_twice(onecard: Command, tmp_path: Path) -> None:
    lost = FindingRecord(
        step=310,
        finding=replace(
            evaluation_above_training(step=1, evaluation_bytes=2, training_bytes=1, eval_batch_size=2, batch_size=1),
            rule="loss-nan",
        ),
    )
    own_run(tmp_path / "work" / "r", replace(step(310, math.nan), more={}), lost)
    (run,) = onecard("doctor", "r", "--json").json["runs"]
    assert [finding["rule"] for finding in run["findings"]].count("loss-nan") == 1
    assert by_rule(run)["loss-nan"]["severity"] == "fatal"


def then(rule: str, *, patch: dict[str, object] | None = None) -> FindingRecord:
    """A warning of a rule at step 250, as a run records it."""
    finding = Finding(
        rule=rule, severity="warn", sure="high", what="as it was then", why="w", fix="f", patch=patch or {}
    )
    return FindingRecord(step=250, finding=finding)


def test_what_the_doctor_sees_of_the_whole_run_replaces_what_was_found_on_the_way(
    onecard: Command, tmp_path: Path
) -> None:
    on_the_way = [then("needless-dropout", patch={"dropout": 0.0}), then("too-many-epochs"), then("decay-horizon")]
    own_run(tmp_path / "work" / "r", *on_the_way)
    (run,) = onecard("doctor", "r", "--json", "--train_tokens=20M").json["runs"]
    assert "7.6 times" in str(by_rule(run)["too-many-epochs"]["what"]), "not the one of then"
    assert not {"needless-dropout", "decay-horizon"} & by_rule(run).keys(), "silence is a verdict too"
    assert "dropout" not in str(run.get("prescription"))
    (unsized,) = onecard("doctor", "r", "--json").json["runs"]
    assert "decay-horizon" not in by_rule(unsized), "which needs nothing that is not known"
    for rule in ("needless-dropout", "too-many-epochs"):
        repeated = by_rule(unsized)[rule]
        assert repeated["what"] == "found at step 250, while it trained: as it was then"
        assert repeated["fix"] == "f (as of then; to judge the whole run: --data DIR)"
        assert repeated["patch"] == {}
    assert "dropout" not in unsized.get("prescription", {}).get("patch", {}), "the run has none already"


def test_a_run_that_recorded_the_size_of_its_data_is_judged_by_it_and_by_nothing_else(
    onecard: Command, tmp_path: Path
) -> None:
    sized = replace(BEGIN, train_tokens=20_000_000, val_tokens=5000)
    own_run(tmp_path / "work" / "r", then("too-many-epochs"), then("needless-dropout"), begin=sized)
    (run,) = onecard("doctor", "r", "--json").json["runs"]
    rules = [finding["rule"] for finding in run["findings"]]
    assert rules.count("too-many-epochs") == 1, "not the finding of then beside it"
    assert "7.6 times" in str(by_rule(run)["too-many-epochs"]["what"])
    assert "needless-dropout" not in rules, "the whole run is judged, and silence is a verdict"
    assert "5,000 tokens" in str(by_rule(run)["val-set-tiny"]["what"])
    assert not [what for what in run["summary"]["not_said"] if "data" in what]
    (other,) = onecard("doctor", "r", "--json", "--train_tokens=1B", "--val_tokens=10M").json["runs"]
    assert not {"too-many-epochs", "val-set-tiny"} & by_rule(other).keys(), "what is said wins"


def test_a_patch_of_then_is_in_the_command_where_only_the_size_of_the_data_is_missing(
    onecard: Command, tmp_path: Path
) -> None:
    on_the_way = [then("needless-dropout", patch={"dropout": 0.0}), then("a-later-rule", patch={"n_layer": 3})]
    own_run(tmp_path / "work" / "r", *on_the_way, dropout=0.1)
    (run,) = onecard("doctor", "r", "--json").json["runs"]
    assert by_rule(run)["needless-dropout"]["patch"] == {"dropout": 0.0}
    assert "--dropout=0.0" in run["prescription"]["command"]
    assert "--dropout=0.1" not in run["prescription"]["command"]
    assert "--n_layer=3" not in run["prescription"]["command"], "of what is not known here, nothing is prescribed"
    assert "--dropout=0.0" in onecard("doctor", "r").stdout


def test_the_command_names_a_folder_that_is_free(onecard: Command, tmp_path: Path) -> None:
    runs = tmp_path / "work" / "runs"
    schedule = {"lr_decay_iters": 5000}
    for name in ("mine", "mine-2"):
        own_run(runs / name, **schedule)
    (run,) = onecard("doctor", "runs/mine", "--json").json["runs"]
    assert "--out_dir=runs/mine-3 " in run["prescription"]["command"] + " "
    (inside,) = onecard("doctor", ".", "--json", cwd=runs / "mine").json["runs"]
    assert f"--out_dir={runs / 'mine-3'} " in inside["prescription"]["command"] + " "
    own_run(runs / "odd", n_embd=120, n_head=6)  # heads of 20: another shape
    own_run(runs / "odd-2")
    (odd,) = onecard("doctor", "runs/odd", "--json").json["runs"]
    assert odd["prescription"]["new_run"] is True
    assert odd["prescription"]["patch"]["out_dir"] == "runs/odd-3"


def test_a_run_whose_process_is_gone_was_cut_off(onecard: Command, tmp_path: Path) -> None:
    folder = tmp_path / "work" / "r"
    own_run(folder)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (folder / "lock").write_text(f"{gone.pid} {socket.gethostname()}\n")
    shown = onecard("doctor", "r", "--json")
    (run,) = shown.json["runs"]
    finding = by_rule(run)["stopped-early"]
    assert (finding["severity"], shown.code) == ("warn", 0)
    assert finding["what"] == "cut off at step 291 of 1,000 (29%)"
    assert finding["fix"] == "start it again: no checkpoint of it is known"
    assert "forecast" not in run
    (folder / "checkpoints/step-00000200").mkdir(parents=True)
    (again,) = onecard("doctor", "r", "--json").json["runs"]
    assert "onecard train --resume r" in by_rule(again)["stopped-early"]["fix"], "there is a checkpoint"
    assert "; cut off" in onecard("doctor", "r").stdout
    for holder in (f"{os.getpid()} {socket.gethostname()}", f"{gone.pid} elsewhere", ""):
        (folder / "lock").write_text(holder)
        (run,) = onecard("doctor", "r", "--json").json["runs"]
        assert "forecast" in run, "nobody can say that it is gone"
    (folder / "lock").write_text(f"{gone.pid} {socket.gethostname()}\n")
    with (folder / "records.jsonl").open("ab") as records:
        records.write(to_line(ended("interrupted")))
    (run,) = onecard("doctor", "r", "--json").json["runs"]
    assert "interrupted" in str(by_rule(run)["stopped-early"]["what"]), "it told its end"


def test_a_card_that_is_named_is_not_the_card_of_a_run_on_the_cpu(onecard: Command, tmp_path: Path) -> None:
    on_cpu = replace(BEGIN, device="cpu")
    own_run(tmp_path / "work" / "r", begin=on_cpu, compile=False, device="cpu", lr_decay_iters=5000)
    own_run(tmp_path / "work" / "on-a-card", compile=False)
    shown = onecard("doctor", "r", "--gpu", "RTX 4070", "--json")
    (run,) = shown.json["runs"]
    assert "low-mfu" not in by_rule(run)
    assert run["summary"]["mfu"] is None
    assert "4070" in run["summary"]["card"], "the next one is planned there"
    assert "--compile=True" not in run["prescription"]["command"]
    assert "--device=cuda" in run["prescription"]["command"]
    (unplanned,) = onecard("doctor", "r", "--json").json["runs"]
    assert "--device=cpu" in unplanned["prescription"]["command"]
    assert "measured on the CPU" in onecard("doctor", "r", "--gpu", "RTX 4070").stdout
    (other,) = onecard("doctor", "on-a-card", "--gpu", "RTX 4070", "--json").json["runs"]
    assert "low-mfu" in by_rule(other), "the same run on a card is judged"


@pytest.mark.parametrize(
    ("reason", "severity", "words"),
    [
        ("error", "error", "an error"),
        ("diverged", "error", "it diverged"),
        ("interrupted", "info", "stopped at step 291 of 1,000 (29%): interrupted"),
        ("max_hours", "info", "stopped at step 291 of 1,000 (29%): max_hours"),
    ],
)
def test_how_a_run_of_ours_ended_is_told_and_nothing_foretold(
    onecard: Command, tmp_path: Path, reason: EndReason, severity: str, words: str
) -> None:
    own_run(tmp_path / "work" / "r", ended(reason))
    shown = onecard("doctor", "r", "--json")
    (run,) = shown.json["runs"]
    assert shown.code == (1 if severity == "error" else 0)
    assert by_rule(run)["stopped-early"]["severity"] == severity
    assert words in str(by_rule(run)["stopped-early"]["what"])
    assert "forecast" not in run
    assert f"ended: {reason}" in " ".join(onecard("doctor", "r").stdout.split())


def test_an_error_that_was_recorded_is_told(onecard: Command, tmp_path: Path) -> None:
    said = replace(ended("error"), more={"error": "the disk is full"})
    own_run(tmp_path / "work" / "r", said, lr_decay_iters=40)  # of the run, not of its schedule
    (run,) = onecard("doctor", "r", "--json").json["runs"]
    what = "ended at step 291 of 1,000 (29%): an error: the disk is full"
    assert by_rule(run)["stopped-early"]["what"] == what


def test_a_run_of_ours_without_an_end_may_still_go(onecard: Command, tmp_path: Path) -> None:
    own_run(tmp_path / "work" / "r")
    (run,) = onecard("doctor", "r", "--json").json["runs"]
    assert str(by_rule(run)["stopped-early"]["what"]).startswith("not finished")
    assert run["forecast"]["steps_to_go"] == 709


def test_two_patches_that_do_not_go_together_are_not_prescribed_together(onecard: Command, files: Path) -> None:
    (files / "c.py").write_text("# ~91M params model\nn_head = 10\nn_embd = 390\n")
    shown = onecard("doctor", "train.log", "--config", "c.py", "--json")
    assert shown.code == 1
    (run,) = shown.json["runs"]
    assert by_rule(run)["odd-head-size"]["patch"]["n_head"] == 6  # type: ignore[index]
    assert run["prescription"]["patch"]["n_embd"] == 640
    assert "n_head" not in run["prescription"]["patch"]


def test_a_config_nobody_can_train_is_a_finding(onecard: Command, files: Path) -> None:
    (files / "bad.py").write_text("n_embd = 512\nn_head = 12\n")
    shown = onecard("doctor", "train.log", "--config", "bad.py", "--json")
    assert shown.code == 1
    (run,) = shown.json["runs"]
    assert by_rule(run)["heads-do-not-divide"]["patch"] == {"n_embd": 516}


def test_a_card_of_two_sizes_serves_where_the_peaks_agree(onecard: Command, files: Path) -> None:
    shown = onecard("doctor", "train.log", "--config", "c.py", "--gpu", "4060 ti", "--json")
    assert shown.json["runs"][0]["summary"]["card"].startswith("GeForce RTX 4060 Ti")


def test_explain_prints_the_rule(onecard: Command) -> None:
    shown = onecard("doctor", "--explain", "loss-spike")
    assert shown.code == 0
    assert "When it is wrong" in shown.stdout
    assert onecard("doctor", "--explain", "loss-spike", "--json").json["name"] == "loss-spike"


def test_a_page_and_markdown_are_written(onecard: Command, files: Path) -> None:
    shown = onecard("doctor", *GIVEN, "--html", "page.html", "--markdown")
    assert shown.code == 1
    assert shown.stdout.startswith("## train.log")
    page = (files / "page.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "nats, against" in page
    assert "wrote page.html" in shown.stderr


def test_final_says_that_no_more_is_to_come(onecard: Command, files: Path) -> None:
    (files / "train.log").write_text(log(10_000))
    (run,) = onecard("doctor", *GIVEN, "--final", "--json").json["runs"]
    assert by_rule(run)["stopped-early"]["what"].startswith("stopped at")  # type: ignore[attr-defined]
    assert "forecast" not in run


@pytest.mark.parametrize(
    ("arguments", "name", "fix"),
    [
        (["doctor"], "no-run", "onecard doctor runs/default"),
        (["doctor", "train.lgo"], "no-such-file", "train.log"),
        (["doctor", "train.log", "--n_embd=3"], "key-without-config", "--config"),
        (["doctor", "train.log", "--config", "nothing.py"], "no-such-file", "onecard doctor without --config"),
        (["doctor", "train.log", "--gpu", "voodoo"], "unknown-card", "onecard gpus"),
        (["doctor", "train.log", "--train_tokens=lots"], "bad-number", "--train_tokens"),
        (["doctor", "train.log", "--json", "--markdown"], "two-outputs", "leave one"),
        (["doctor", "-", "-"], "stdin-twice", "name files"),
        (["doctor", "--explain", "loss-spikes"], "unknown-rule", "--explain loss-spike"),
        (["doctor", "train.log", "--html", "no/such/folder/x.html"], "cannot-write", "--html x.html"),
        (["doctor", "train.log", "--data", "nowhere"], "no-such-dataset", "--dataset="),
    ],
)
def test_a_mistake_gets_three_lines(onecard: Command, files: Path, arguments: list[str], name: str, fix: str) -> None:
    shown = onecard(*arguments)
    assert shown.code in (2, 3)
    error = json.loads(shown.stdout)["error"] if "--json" in arguments else None
    if error:
        assert error["name"] == name
        assert fix in error["fix"]
        return
    what, why, how = shown.stderr.splitlines()
    assert what.endswith(f"[{name}]")
    assert why.startswith("  why: ")
    assert fix in how


@pytest.mark.parametrize("content", [b"", b"\0\1\2\xff" * 100, b"hello\n" * 50, b"{}\n"])
def test_nothing_readable_is_exit_2_and_a_sentence(onecard: Command, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "work" / "odd.log").write_bytes(content)
    shown = onecard("doctor", "odd.log")
    assert shown.code == 2
    assert len(shown.stderr.splitlines()) == 3
    assert onecard("doctor", "-", "--json", stdin=content).json["error"]["why"]


def test_a_config_is_no_log(onecard: Command, tmp_path: Path) -> None:
    own_run(tmp_path / "work" / "r")
    for command, others in (("doctor", ""), ("compare", " ANOTHER")):
        shown = onecard(command, "r/config.json", *(["r"] if others else []))
        what, why, fix = shown.stderr.splitlines()
        assert (shown.code, what) == (2, "error: r/config.json is a config, not a log  [config-no-log]")
        assert "r/records.jsonl" in why
        assert fix.strip() == f"fix: onecard {command} r{others}   (or, for what it needs: onecard plan r/config.json)"
    whole = RunConfig.model_validate({}).model_dump()
    (tmp_path / "work" / "r" / "config.json").write_text(json.dumps(whole))
    (tmp_path / "work" / "r" / "records.jsonl").unlink()
    assert "fix: onecard plan r/config.json" in onecard("doctor", "r/config.json").stderr


def test_a_folder_that_is_no_run_is_told(onecard: Command, tmp_path: Path) -> None:
    (tmp_path / "work" / "empty").mkdir()
    shown = onecard("doctor", "empty")
    assert shown.code == 2
    assert shown.stderr.splitlines()[0].endswith("[no-such-run]")


def test_a_config_beside_the_log_is_taken_and_said(onecard: Command, files: Path) -> None:
    (files / "train.config.py").write_text(CONFIG)
    shown = onecard("doctor", "train.log")
    assert shown.stderr == ""
    assert "\nconfig    train.config.py, found beside it\n" in shown.stdout
    assert "[params-mismatch]" in shown.stdout
    found = onecard("doctor", "train.log", "--dropout=0.3", "--json")
    assert found.stderr == ""
    assert found.json["runs"][0]["summary"]["config"] == found.json["runs"][0]["config"] == "train.config.py"
    assert "--dropout=0.0" in found.json["runs"][0]["prescription"]["command"]


def test_a_config_that_is_named_wins_over_the_one_beside(onecard: Command, files: Path) -> None:
    (files / "train.config.py").write_text(CONFIG)
    (files / "c.py").write_text(CONFIG.replace("n_embd = 384", "n_embd = 768"))
    shown = onecard("doctor", "train.log", "--config", "c.py", "--json")
    assert shown.json["runs"][0]["summary"]["config"] == "c.py"
    assert "beside" not in onecard("doctor", "train.log", "--config", "c.py").stdout


def test_a_config_beside_that_is_none_does_not_stop_the_diagnosis(onecard: Command, files: Path) -> None:
    (files / "train.config.py").write_text("this is (no config")
    shown = onecard("doctor", "train.log")
    assert shown.code == 0
    assert "not train.config.py, found beside it" in shown.stdout


def test_what_other_programs_hold_is_not_planned_with(onecard: Command, files: Path) -> None:
    whole, (run,) = (onecard("doctor", *GIVEN, *more, "--json").json["runs"] for more in ((), ("--other", "6GiB")))
    assert run["summary"]["other_bytes"] == 6 * 2**30
    assert " of 5.69 GiB" in str(by_rule(run)["params-mismatch"]["fix"])
    assert run["prescription"]["fits"] is True
    assert run["prescription"]["process_bytes"] <= 5.69 * 2**30 < whole[0]["prescription"]["process_bytes"]
    wrong = onecard("doctor", *GIVEN, "--other", "much")
    assert wrong.code == 2
    assert "[bad-size]" in wrong.stderr


def test_the_command_names_the_config_so_that_a_shell_finds_it(onecard: Command, files: Path) -> None:
    (files / "my configs").mkdir()
    (files / "my configs" / "c.py").write_text(CONFIG.replace("'out-web'", "'out web'"))
    found = onecard("doctor", "train.log", "--config", "my configs/c.py", "--beta1=0.8", "--json")
    words = shlex.split(found.json["runs"][0]["prescription"]["command"])
    assert words[:3] == ["python", "train.py", "my configs/c.py"]
    assert "--out_dir=out web-124M" in words
    assert "--beta1=0.8" in words  # typed, and so in no file
    assert "'--out_dir=out web-124M'" in str(by_rule(found.json["runs"][0])["params-mismatch"]["fix"])


def test_a_config_that_no_command_can_name_is_written_out(onecard: Command, files: Path) -> None:
    found = onecard("doctor", "train.log", "--config", "-", "--json", stdin=CONFIG)
    program, script, *flags = shlex.split(found.json["runs"][0]["prescription"]["command"])
    assert (program, script) == ("python", "train.py")
    assert {"--n_embd=768", "--dataset=fineweb", "--max_iters=20000", "--out_dir=out-web-124M"} <= set(flags)
    assert all(flag.startswith("--") for flag in flags)


@pytest.mark.parametrize("iteration", ["", "iter 0: loss 10.8720, time 32025.45ms, mfu -100.00%\n"])
def test_one_evaluation_at_step_0_is_nothing_to_judge_yet(onecard: Command, iteration: str) -> None:
    text = "step 0: train loss 10.8684, val loss 10.8727\n" + iteration
    shown = onecard("doctor", "-", stdin=text)
    assert shown.code == 0
    assert "log, nothing to judge yet" in shown.stdout or "losses, nothing to judge yet" in shown.stdout
    assert "healthy" not in shown.stdout
    assert onecard("doctor", "-", "--json", stdin=text).json["runs"][0]["summary"]["healthy"] is None


def test_names_and_paths_are_never_read_as_markup(onecard: Command, files: Path) -> None:
    name = "[bold]x [b] :smile:"
    (files / f"{name}.log").write_text(log())
    (files / f"{name}.config.py").write_text(CONFIG)
    shown = onecard("doctor", f"{name}.log", "--html", f"{name}.html")
    assert shown.stdout.startswith(f"{name}.log: nanoGPT log")
    assert f"config    {name}.config.py, found beside it" in shown.stdout
    assert f"wrote {name}.html" in shown.stderr
    assert f"python train.py '{name}.config.py'" in shown.stdout
    compared = onecard("compare", f"{name}.log", f"{name}.log", "--details")
    assert f"{name}.log: nanogpt, config {name}.config.py" in compared.stdout


def test_evaluations_alone_are_a_log(onecard: Command) -> None:
    lines = [evaluation(500 * n, 4.0 - 0.2 * n) for n in range(5)]
    text = "".join(f"step {e.step}: train loss {e.val_loss:.4f}, val loss {e.val_loss:.4f}\n" for e in lines)
    assert onecard("doctor", "-", "--json", stdin=text).json["runs"][0]["format"] == "minimal"


def test_a_config_from_standard_input_serves_every_run(onecard: Command, files: Path) -> None:
    (files / "two.log").write_text(log(2000) + log(3000, gap=0.05))
    runs = onecard("doctor", "two.log", "--config", "-", "--json", stdin=CONFIG).json["runs"]
    assert [run["summary"]["params"] for run in runs] == [40_560_000, 40_560_000]


@pytest.mark.parametrize("extra", [[], ["--gpu", "4070"], ["--config", "c.py"], ["--train_tokens=1B"]])
def test_it_answers_with_whatever_it_is_told(onecard: Command, files: Path, extra: list[str]) -> None:
    shown = onecard("doctor", "train.log", *extra, "--json")
    assert shown.code == (1 if "--config" in extra else 0)
    assert shown.json["runs"][0]["summary"]["not_said"]


def test_the_number_of_cards_can_be_said_and_divides_the_share(onecard: Command, tmp_path: Path) -> None:
    log = tmp_path / "two.log"
    log.write_text("\n".join(made.nanogpt(seconds=0.25, header=made.nanogpt_header(gradient_accumulation_steps=40))))
    one, two = (onecard("doctor", str(log), "--gpu", "RTX 4070", *gpus, "--json") for gpus in ((), ("--gpus", "2")))
    assert one.code == 1
    assert one.json["runs"][0]["summary"]["mfu"] is None
    assert next(f["rule"] for f in one.json["runs"][0]["findings"]) == "contradicting-inputs"
    summary = two.json["runs"][0]["summary"]
    assert summary["cards"] == 2
    assert 0.5 < summary["mfu"] < 0.6
    assert "655.4k tokens/s on 2 cards (327.7k each)" in onecard("doctor", str(log), "--gpus", "2").stdout
