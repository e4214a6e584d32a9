"""What `onecard doctor` answers first, what it finds by itself, and figures that agree. Every log here is made."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from onecard.api import diagnose
from onecard.report.doctor import print_diagnoses
from tests.contract.conftest import Command
from tests.contract.test_doctor import CONFIG, by_rule, log

HEALTHY = """\
out_dir = 'out-web'
eval_interval = 500
log_interval = 200
dataset = 'fineweb'
gradient_accumulation_steps = 32
batch_size = 16
n_layer = 12
n_head = 6
n_embd = 384
learning_rate = 1e-3
max_iters = 20000
warmup_iters = 500
lr_decay_iters = 20000
min_lr = 1e-4
beta2 = 0.99
always_save_checkpoint = False
"""


def saving(text: str, folder: str = "out-web") -> str:
    """The log of a run that saves a checkpoint after each evaluation."""
    return re.sub(r"^(step [1-9].*)$", rf"\1\nsaving checkpoint to {folder}", text, flags=re.MULTILINE)


def checkout(folder: Path, **configs: str) -> Path:
    """A nanoGPT checkout: its programs, configs, and a log."""
    (folder / "config").mkdir()
    (folder / "train.py").write_text(f"import os\n{CONFIG}\ndef get_batch(split):\n    return split\n")
    (folder / "config" / "train_shakespeare.py").write_text("out_dir = 'out-shakespeare'\nn_embd = 384\n")
    for name, text in configs.items():
        (folder / "config" / f"{name}.py").write_text(text)
    (folder / "train.log").write_text(saving(log()))
    return folder


def data_in(folder: Path, *, train: int, val: int) -> None:
    folder.mkdir(parents=True)
    (folder / "train.bin").write_bytes(b"\1\0" * train)
    (folder / "val.bin").write_bytes(b"\2\0" * val)


def the_run(onecard: Command, *arguments: str, **more: Any) -> Any:
    (run,) = onecard("doctor", *arguments, "--json", **more).json["runs"]
    return run


def shown(*sources: str, width: int = 100, **options: Any) -> list[str]:
    """The lines on a terminal of that width, as long lines break there."""
    out = io.StringIO()
    print_diagnoses(diagnose(*sources, **options), Console(file=out, width=width, highlight=False))
    lines = [
        (line[start : start + width])
        for line in out.getvalue().splitlines()
        for start in range(0, len(line) or 1, width)
    ]
    return [line.rstrip() for line in lines]


# the config is found


def test_the_config_that_names_the_logs_out_dir_is_taken_and_said(onecard: Command, work: Path) -> None:
    checkout(work, train_web=CONFIG + "log_interval = 200\n")
    run = the_run(onecard, "train.log", "--gpu", "RTX 4070")
    assert run["config"] == "config/train_web.py"
    assert run["config_note"] == "config/train_web.py, found: its out_dir is the log's"
    assert "params-mismatch" in by_rule(run)
    said = onecard("doctor", "train.log", "--gpu", "RTX 4070")
    assert "\nconfig    config/train_web.py, found: its out_dir is the log's\n" in said.stdout
    assert said.code == 1


@pytest.mark.parametrize("where", ["out-web/train.log", "logs/train.log"])
def test_it_is_found_from_a_folder_of_the_checkout_too(onecard: Command, work: Path, where: str) -> None:
    checkout(work, train_web=CONFIG + "log_interval = 200\n")
    (work / where).parent.mkdir()
    (work / where).write_text(log() if where.startswith("out-web") else saving(log()))
    assert the_run(onecard, where)["config"] == "config/train_web.py"
    other = work / "elsewhere"
    other.mkdir()
    assert the_run(onecard, f"../{where}", cwd=other)["config"] == "../config/train_web.py"


def test_it_is_found_by_the_parameters_that_the_log_prints(onecard: Command, work: Path) -> None:
    checkout(work, train_web=CONFIG.replace("'out-web'", "'out-other'") + "log_interval = 200\n")
    header = "tokens per iteration will be: 524,288\nnumber of parameters: 40.56M\n"
    (work / "train.log").write_text(header + log())
    run = the_run(onecard, "train.log")
    assert run["config_note"] == "config/train_web.py, found: its model has the log's 40.56M parameters"


def test_of_several_that_fit_equally_none_is_taken_and_all_are_named(onecard: Command, work: Path) -> None:
    one, other = (CONFIG + f"log_interval = 200\nbeta2 = {beta2}\n" for beta2 in (0.95, 0.99))
    checkout(work, a=one, b=other)
    run = the_run(onecard, "train.log")
    assert run["config"] is None
    assert run["config_note"] == "2 files fit this log equally: --config config/a.py or --config config/b.py"
    assert run["config_note"] in onecard("doctor", "train.log").stdout
    (work / "config" / "b.py").write_text(one)
    assert the_run(onecard, "train.log")["config"] == "config/a.py", "a copy is the same config"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("max_iters = 5000\nlog_interval = 200\n", "it ends at step 5,000, the log goes to 20,000"),
        ("eval_interval = 300\nlog_interval = 200\n", "it evaluates every 300 steps, the log does not"),
        ("log_interval = 7\n", "it logs every 7 steps, the log does not"),
    ],
)
def test_a_config_that_cannot_have_made_the_log_is_not_taken(
    onecard: Command, work: Path, change: str, why: str
) -> None:
    checkout(work, train_web=CONFIG + change)
    run = the_run(onecard, "train.log")
    assert run["config"] is None
    assert run["config_note"].startswith("not config/train_web.py, though its out_dir is the log's: " + why)
    assert run["config_note"].endswith("to take it: --config config/train_web.py")


def test_files_that_are_no_configs_are_passed_over(onecard: Command, work: Path) -> None:
    checkout(work, train_web=CONFIG + "log_interval = 200\n")
    (work / "config" / "broken.py").write_text("out_dir = 'out-web' (")
    (work / "config" / "huge.py").write_text("out_dir = 'out-web'\n" + "#" * 100_000)
    (work / "config" / "binary.py").write_bytes(b"\0out_dir = 'out-web'")
    (work / "config" / "other.py").write_text("import os\nos.system('touch ran')\nprint('x')\n")
    (work / "config" / "folder.py").mkdir()
    assert the_run(onecard, "train.log")["config"] == "config/train_web.py"
    assert not (work / "ran").exists()


def test_compare_finds_it_too(onecard: Command, work: Path) -> None:
    checkout(work, train_web=CONFIG + "log_interval = 200\n")
    (work / "other.log").write_text(saving(log(5000), "elsewhere"))
    found = onecard("compare", "train.log", "other.log", "--json").json
    assert found["runs"][0]["params"] == 40_560_000


# what could not be checked


def test_a_log_alone_is_never_called_healthy(onecard: Command, work: Path) -> None:
    (work / "train.log").write_text(log(gap=0.01))
    run = the_run(onecard, "train.log")
    assert run["summary"]["healthy"] is None
    assert {"params-mismatch", "needless-dropout", "lr-out-of-range", "low-mfu"} <= set(run["unchecked"])
    assert "loss-nan" not in run["unchecked"]
    said = onecard("doctor", "train.log").stdout
    needed = sum(about == "config" for about in run["summary"]["unchecked"].values())
    assert f"{needed} checks need the config: --config FILE" in " ".join(said.split())
    assert "healthy" not in said


def test_what_a_log_does_not_show_is_said_and_it_is_not_called_healthy(onecard: Command, work: Path) -> None:
    """nanoGPT prints no gradient norm: everything else was looked at."""
    (work / "train.log").write_text(log(gap=0.01))
    (work / "c.py").write_text(HEALTHY)
    given = ["train.log", "--config", "c.py", "--gpu", "RTX 4070"]
    assert the_run(onecard, *given)["unchecked"] == ["too-many-epochs", "val-same-as-train", "val-set-tiny"]
    assert "3 checks need the data: --data DIR" in onecard("doctor", *given).stdout
    sized = [*given, "--train_tokens=20B", "--val_tokens=20M"]
    assert the_run(onecard, *sized)["unchecked"] == ["val-same-as-train"], "sizes do not show what is in the data"
    data_in(work / "data" / "fineweb", train=700_000, val=4000)
    whole = [*sized, "--data", "data/fineweb"]
    run = the_run(onecard, *whole)
    assert run["unchecked"] == []
    assert run["not_looked_at"] == ["gradient norm"]
    assert run["summary"]["healthy"] is None
    said = " ".join(onecard("doctor", *whole).stdout.split())
    assert "nothing wrong in the log" in said
    assert "not looked at, because too little of it is logged: gradient norm" in said


# the data


@pytest.mark.parametrize("where", ["data/fineweb", "checkout/data/fineweb"])
def test_the_sizes_of_the_data_that_the_config_names_are_used(onecard: Command, work: Path, where: str) -> None:
    (work / "train.log").write_text(log())
    (work / "checkout" / "config").mkdir(parents=True)
    (work / "checkout" / "config" / "c.py").write_text(CONFIG)
    given = ["train.log", "--config", "checkout/config/c.py"]
    assert "'fineweb' is not here: size not known" in onecard("doctor", *given).stdout
    data_in(work / where, train=700_000, val=4000)
    run = the_run(onecard, *given)
    assert (run["summary"]["train_tokens"], run["summary"]["val_tokens"]) == (700_000, 4000)
    assert run["summary"]["data_source"] == where
    assert "4,000 tokens" in by_rule(run)["val-set-tiny"]["what"]
    assert by_rule(run)["too-many-epochs"]["severity"] == "error"
    assert f"4,000 validation tokens, in {where}" in " ".join(onecard("doctor", *given).stdout.split())
    told = the_run(onecard, *given, "--train_tokens=30B")
    assert told["summary"]["train_tokens"] == 30 * 10**9, "what is typed wins"


@pytest.mark.parametrize("broken", ["meta.json", "progress.json", "meta.pkl"])
def test_data_that_cannot_be_read_is_as_if_it_were_not_there(onecard: Command, work: Path, broken: str) -> None:
    (work / "train.log").write_text(log())
    (work / "c.py").write_text(CONFIG)
    data_in(work / "data" / "fineweb", train=10, val=0)
    (work / "data" / "fineweb" / broken).write_text("{")
    assert the_run(onecard, "train.log", "--config", "c.py")["summary"]["train_tokens"] is None


# figures that agree


def test_returning_only_the_loss_saves_the_same_in_plan_and_doctor(onecard: Command, work: Path) -> None:
    (work / "train.log").write_text(log())
    (work / "c.py").write_text(CONFIG)
    for room in ([], ["--other", "1GiB"], ["--other", "6GiB"]):
        run = the_run(onecard, "train.log", "--config", "c.py", "--gpu", "RTX 4070", *room)
        plan = onecard("plan", "c.py", "--gpu", "RTX 4070", "--trainer", "nanogpt", "--json", *room).json
        (fix,) = [fix for fix in plan["fixes"] if fix["name"] == "return-only-the-loss"]
        assert f"{fix['saves_bytes'] / 2**20:,.0f} MiB" in by_rule(run)["logits-returned"]["what"]


def test_a_patch_is_made_whole_alike_in_plan_and_doctor(onecard: Command, work: Path) -> None:
    (work / "train.log").write_text(log())
    (work / "c.py").write_text(CONFIG)
    for room in ([], ["--other", "3GiB"]):
        run = the_run(onecard, "train.log", "--config", "c.py", "--gpu", "RTX 4070", *room)
        plan = onecard("plan", "c.py", "--gpu", "RTX 4070", "--json", *room).json
        (planned,) = [finding for finding in plan["findings"] if finding["rule"] == "params-mismatch"]
        assert planned["patch"] == by_rule(run)["params-mismatch"]["patch"]
        changed = [f"--{key}={value}" for key, value in planned["patch"].items()]
        again = onecard("plan", "c.py", "--gpu", "RTX 4070", "--trainer", "nanogpt", "--json", *room, *changed).json
        assert again["trainers"]["nanogpt"]["fits"] is True


def test_the_last_command_has_every_patch_and_what_has_none_says_why(onecard: Command, work: Path) -> None:
    (work / "train.log").write_text(log())
    large = CONFIG.replace("gradient_accumulation_steps = 32 ", "gradient_accumulation_steps = 160 ")
    (work / "c.py").write_text(large + "lr_decay_iters = 600000\n")
    run = the_run(onecard, "train.log", "--config", "c.py", "--gpu", "RTX 5090", "--val_tokens=4000")
    assert "lr_decay_iters" not in run["prescription"]["patch"], "the smallest cure of the first problem"
    *_, command = run["commands"].values()
    typed = dict(word.removeprefix("--").split("=") for word in command.split() if "=" in word)
    patch = {key: float(value) for key, value in typed.items() if key != "out_dir"}
    assert {"batch-too-large", "decay-horizon", "params-mismatch", "needless-dropout"} <= by_rule(run).keys()
    assert patch.get("batch_size", 16) * patch["gradient_accumulation_steps"] * 1024 == 524_288, "batch-too-large"
    assert (patch["n_embd"], patch["lr_decay_iters"], patch["dropout"]) == (768, 20_000, 0.0)
    assert run["prescription"]["left_out"] == {"val-set-tiny": "no setting fixes it"}
    said = onecard("doctor", "train.log", "--config", "c.py", "--gpu", "RTX 5090", "--val_tokens=4000").stdout
    assert "  no command for: val-set-tiny (no setting fixes it)\n" in said
    assert f"  type: {command}\n" in said


def test_a_patch_that_contradicts_a_more_urgent_one_is_named(onecard: Command, work: Path) -> None:
    (work / "train.log").write_text(log())
    (work / "c.py").write_text("# ~91M params model\nn_head = 10\nn_embd = 390\n")
    made = the_run(onecard, "train.log", "--config", "c.py")["prescription"]
    assert made["left_out"]["odd-head-size"].endswith("and params-mismatch wants 640")


def test_an_unfinished_run_has_one_forecast_and_both_ratios(onecard: Command, work: Path) -> None:
    (work / "c.py").write_text(CONFIG)
    for last in (1500, 6000, 14_500):
        (work / "train.log").write_text(log(last))
        run = the_run(onecard, "train.log", "--config", "c.py")
        likely = f"{run['forecast']['final_loss']['likely']:.2f}"
        assert f"val would be about {likely} " in by_rule(run)["stopped-early"]["why"]
        so_far = f"{last * 524_288 / 40_953_216:,.0f}"
        assert by_rule(run)["tokens-per-parameter"]["what"].startswith(
            f"{so_far} tokens per parameter so far, 256 planned"
        )
        assert (
            f"({so_far} per parameter so far, 256 planned)" in onecard("doctor", "train.log", "--config", "c.py").stdout
        )


# the answer first, and short


@pytest.fixture
def here(work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(work)
    (work / "train.log").write_text(saving(log(gap=0.01)))
    return work


def test_a_sick_run_with_its_config_is_answered_in_eight_lines_and_told_in_forty(here: Path) -> None:
    (here / "c.py").write_text(CONFIG + "log_interval = 200\n")
    lines = shown("train.log", gpu="RTX 4070")
    first = "\n".join(lines[:8])
    assert "this config is 40.56M" in lines[1]
    assert "python train.py c.py --n_embd=768" in first
    assert "predicted: " in first
    assert len(lines) <= 40
    assert sum(len(line.split()) for line in lines) <= 420
    assert lines[-1] == "more: add --details (the long text) or --html report.html (everything, with charts)"


def test_a_healthy_run_is_told_in_twenty_lines(here: Path) -> None:
    (here / "c.py").write_text(HEALTHY)
    lines = shown("train.log", gpu="RTX 4070", train_tokens="20B", val_tokens="20M")
    assert lines[0].startswith("train.log: nanoGPT log, nothing wrong in the log")
    assert "gradient norm" in " ".join(lines[:3])
    assert len(lines) <= 20
    assert sum(len(line.split()) for line in lines) <= 220


def test_a_log_alone_is_told_in_fifteen_lines(here: Path) -> None:
    lines = shown("train.log")
    first = " ".join(lines[:3])
    assert "nothing wrong in the log" in first
    assert "--config FILE" in first
    assert len(lines) <= 15
    assert sum(len(line.split()) for line in lines) <= 140


def test_evidence_is_one_line_unless_details_are_asked_for(onecard: Command, here: Path) -> None:
    (here / "c.py").write_text(CONFIG)
    given = ["doctor", "train.log", "--config", "c.py"]
    short, long = onecard(*given).stdout, onecard(*given, "--details").stdout
    assert re.search(r"\n  seen: line 8: # Model \(~125M parameters\)  \(\+2 more\)\n", short)
    assert short.count("  seen: ") == sum(line.startswith(("error", "warn", "fatal")) for line in short.splitlines())
    assert "\n  seen: n_embd = 384 (c.py:11)\n" in long
    assert "\ninfo: " in long
    assert "\nnotes\n  " in short
    assert long.splitlines()[:3] == short.splitlines()[:3], "the verdict is first in both"
    whole = json.dumps(onecard(*given, "--json").json)
    assert "n_embd = 384 (c.py:11)" in whole, "JSON keeps everything"


def test_the_help_names_the_page_and_the_long_text(onecard: Command) -> None:
    said = onecard("doctor", "--help").stdout
    assert "--html report.html" in " ".join(said.split())
    assert "--details" in said
