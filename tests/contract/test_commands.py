"""What every command promises: help with an example, JSON and nothing else, three lines when something is wrong."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from onecard.cli.commands import cli
from onecard.cli.main import run
from onecard.config.schema import KEYS
from tests.contract.conftest import ROOT, Command

COMMANDS = sorted(cli.commands)
COMPUTING = [["plan"], ["gpus"]]  # train talks, and sample writes text


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)])
def test_help_opens_with_an_example(onecard: Command, command: list[str]) -> None:
    shown = onecard(*command, "--help")
    assert shown.code == 0
    lines = [line.strip() for line in shown.stdout.splitlines() if line.strip()]
    assert lines[0].startswith("Usage:")
    assert lines[1] == "Example:"
    assert "onecard" in lines[2]


def test_onecard_alone_shows_its_help(onecard: Command) -> None:
    assert onecard().stdout == onecard("--help").stdout
    assert onecard().code == 0


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["plan", "--gpu", "4070"], 0),
        (["plan", "--vram", "1MiB", "--json"], 1),
        (["plan", "-", "--n_layr=3"], 2),
        (["train", "--out_dir=r"], 3),
        (["doctor", "nothing.log", "--json"], 2),
    ],
)
def test_the_fork_that_other_tests_run_answers_as_a_new_process_does(
    onecard: Command, cold_onecard: Command, arguments: list[str], code: int
) -> None:
    assert onecard(*arguments).code == code
    assert onecard(*arguments) == cold_onecard(*arguments)


def test_every_command_has_a_line_in_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    for name in COMMANDS:
        assert f"onecard {name}" in readme, name


def test_no_option_shares_a_config_keys_name() -> None:
    for name, command in cli.commands.items():
        for option in command.params:
            for spelled in (each for each in option.opts if each.startswith("-")):  # an argument is not typed by name
                assert spelled.lstrip("-").replace("-", "_") not in KEYS, f"{name} {spelled}"


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom onecard.cli.main import run\nrun(['plan', '--help'])\n"
        "print(sorted({'pydantic', 'rich', 'torch', 'numpy', 'pynvml'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_vram_is_a_card_of_that_size_and_its_help_says_so(onecard: Command) -> None:
    assert "A card of this size; the CUDA context is taken off it." in " ".join(
        onecard("plan", "--help").stdout.split()
    )
    planned = json.loads(onecard("plan", "--vram", "1GiB", "--trainer", "nanogpt", "--json").stdout)
    context = planned["gpu"]["context_bytes"]
    needed = planned["trainers"]["nanogpt"]["process_bytes"]
    assert context > 0
    enough, too_little = (
        onecard("plan", "--vram", f"{size}B", "--trainer", "nanogpt") for size in (needed, needed - context)
    )
    assert (enough.code, too_little.code) == (0, 1)


@pytest.mark.parametrize("command", COMPUTING)
def test_json_is_one_object_on_stdout_and_nothing_else(onecard: Command, command: list[str]) -> None:
    shown = onecard(*command, "--json")
    assert shown.code == 0
    assert shown.json["schema"] == 1
    assert shown.stderr == ""


MISTAKES = [
    (["plann"], "unknown-command", "onecard plan"),
    (["plan", "--gpuu", "4070"], "unknown-option", "--gpu"),
    (["gpus", "--bad"], "unknown-option", "onecard gpus --help"),
    (["plan", "--batch_size", "8"], "key-without-value", "--batch_size=8"),
    (["plan", "--batch-size", "8"], "key-without-value", "--batch_size=8"),
    (["plan", "--n_layr=3"], "unknown-key", "--n_layer=3"),
    (["plan", "--n_head=7"], "keys-do-not-fit", "multiple of n_head"),
    (["plan", "--batch_size=16000000", "--block_size=1000000"], "keys-do-not-fit", "half a million"),
    (["plan", "--n_layer=-3"], "bad-value", "--n_layer="),
    (["plan", "nothing.py"], "no-such-file", "onecard plan (without a file)"),
    (["ui", "nothing"], "no-such-file", "onecard ui"),
    (["doctor", "a.log", "--config", "nothing.py"], "no-such-file", "onecard doctor without --config"),
    (["plan", "--nvidia-smi", "nothing"], "no-such-file", "nvidia-smi | onecard plan"),
    (["plan", "."], "unreadable-file", "config file"),
    (["plan", "/dev/zero"], "unreadable-file", "config file"),
    (["plan", "--seen", "much"], "bad-size", "--seen"),
    (["plan", "--nvidia-smi", "-"], "no-process-seen", "nvidia-smi | onecard plan"),
    (["plan", "--timeline", "memory.bmp"], "not-svg", "--timeline memory.svg"),
    (["plan", "--timeline", "."], "not-svg", "--timeline drawn.svg"),
    (["bench", "--plot", "b.png"], "not-svg", "--plot b.svg"),
    (["plan", "--trainer", "other"], "usage", "--help"),
    (["plan", "-"], "empty-config", "`n_layer = 12`"),
    (["plan", ""], "empty-path", "name CONFIG"),
    (["plan", "--timeline", ""], "empty-path", "after --timeline"),
    (["plan", "--hours", "5", "--write", ""], "empty-path", "after --write"),
    (["plan", "--nvidia-smi="], "empty-path", "after --nvidia-smi"),
    (["plan", "--dataset="], "empty-path", "after --dataset"),
    (["compare", "a", "b", "--plot", ""], "empty-path", "after --plot"),
    (["doctor", ""], "empty-path", "name PATH"),
    (["doctor", "a.log", "--html", ""], "empty-path", "after --html"),
    (["export", "run", "--to", "hf", "--out", ""], "empty-path", "after --out"),
    (["bench", "--nanogpt", ""], "empty-path", "after --nanogpt"),
    (["tune", "--write", ""], "empty-path", "after --write"),
    (["tune", "--minutes", "0"], "usage", "onecard tune --help"),
    (["import", ""], "empty-path", "name CKPT_OR_FOLDER"),
    (["sample", ""], "empty-path", "name RUN"),
    (["sample", "run", "--sample-seed", str(2**64)], "usage", "onecard sample --help"),
    (["sample", "run", "--sample-seed", "-1"], "usage", "onecard sample --help"),
    (["plan", "--gpu", "voodoo"], "unknown-card", "onecard gpus"),
    (["plan", "--gpu", "4060 ti"], "ambiguous-card", '--gpu "GeForce RTX 4060 Ti'),
    (["plan", "--vram", "lots"], "bad-size", "--vram 2.1GiB"),
    (["plan", "--vram"], "usage", "onecard plan --help"),
    (["plan", "--hours", "two"], "usage", "onecard plan --hours 0.5"),
    (["plan", "--hours", "1,5"], "usage", "onecard plan --hours 1.5"),
    (["plan", "--gpu", "4070", "--hours=48x", "--n_layer=4"], "usage", "onecard plan --gpu 4070 --hours=0.5"),
    (["plan", "--gpu", "4070", "--hours", "0h"], "bad-budget", "--hours 48"),
    (["bench", "--repeat", "2.5"], "usage", "onecard bench --repeat 2"),
    (["bench", "--repeat", "0"], "usage", "onecard bench --help"),
    (["plan", "--gpu", "RTX 4O70"], "unknown-card", '--gpu "GeForce RTX 4070"'),
    (["data", "prepare", "--out"], "usage", "onecard data prepare --help"),
    (["plan", "--other", "2,1GiB"], "bad-size", "--other 2.1GiB ?"),
    (["plan", "--other", "0.5"], "bad-size", "--other 0.5GiB ?"),
    (["plan", "--other", "2.1"], "bad-size", "--other 2.1GiB ?"),
    (["plan", "--tokens", "2,5B"], "bad-number", "--tokens 2.5B ?"),
    (["plan", "--fit", "--params", "12,4M"], "bad-number", "--params 12.4M ?"),
    (["plan", "--vram", "12"], "bad-size", "--vram 12GiB ?"),
    (["plan", "--vram", "3KiB"], "bad-size", "--vram 2.1GiB"),
    (["plan", "--seen", "4464"], "bad-size", "--seen 4464MiB ?"),
    (["plan", "--gpu", "4070", "--hours", "inf"], "bad-budget", "--hours 48"),
    (["plan", "--gpu", "4070", "--hours", "nan"], "bad-budget", "--hours 48"),
    (["plan", "--gpu", "4070", "--hours", "1e9"], "bad-budget", "--hours 48"),
    (["plan", "--gpu", "4070", "--hours", "0"], "bad-budget", "--hours 48"),
    (["plan", "--gpu", "4070", "--hours", "5", "--explain"], "two-questions", "--write FILE.py"),
    (["plan", "--gpu", "4070", "--tokens", "1B", "--seen", "4GiB"], "two-questions", "FILE.py --seen 4096MiB"),
    (["plan", "--gpu", "4070", "--hours", "5", "--params", "60M"], "two-questions", "FILE.py --fit --params 60000000"),
    (["plan", "a.py", "--gpu", "4070", "--hours", "5", "--explain"], "two-questions", "plan a.py --gpu 4070 --hours 5"),
    (["plan", "--vram", "8GiB", "--hours", "5", "--explain"], "two-questions", "FILE.py --explain --vram 8192MiB"),
    (["plan", "--hours", "5", "--write", "--fit"], "no-name", "--write NAME"),
    (["plan", "--eval_block_size=2048"], "keys-do-not-fit", "--eval_block_size="),
    (["plan", "--gpu", "4070", "--hours", "5", "--vocab_size=65"], "no-loss-law", "--max_iters="),
    (["plan", "--gpu", "4070", "--fit", "--params", "60M", "--init_from=gpt2"], "params-of-weights", "--fit alone"),
    (["plan", "--gpu", "4070", "--fit", "--params", "900B"], "params-out-of-reach", "--params 3.78B"),
    (["plan", "--gpu", "4070", "--tokens", "0"], "bad-budget", "--tokens 10B"),
    (["plan", "--gpu", "4070", "--fit", "--params", "0"], "bad-params", "--params 124M"),
    (["plan", "--params", "0"], "params-without-fit", "--fit"),
    (["plan", "--write", "my file.py"], "write-without-proposal", "--write 'my file.py'"),
    (["plan", "a", "b"], "usage", "--help"),
    (["gpus", "voodoo"], "unknown-card", "onecard gpus"),
    (["gpus", "--n_layer=3"], "unexpected-key", "--help"),
    (["completion", "tcsh"], "usage", "--help"),
]


@pytest.mark.parametrize(("arguments", "name", "fix"), MISTAKES)
def test_a_mistake_gets_three_lines_and_exit_2(onecard: Command, arguments: list[str], name: str, fix: str) -> None:
    shown = onecard(*arguments)
    assert shown.code == 2
    assert shown.stdout == ""
    what, why, how = shown.stderr.splitlines()
    assert what.startswith("error: ")
    assert what.endswith(f"[{name}]")
    assert why.startswith("  why: ")
    assert how.startswith("  fix: ")
    assert fix in how


def test_nothing_held_by_other_programs_needs_no_unit(onecard: Command) -> None:
    assert onecard("plan", "--gpu", "4070", "--other", "0", "--json").json["gpu"]["other_bytes"] == 0


def test_a_budget_that_is_too_small_is_answered_with_one_that_is_enough(onecard: Command) -> None:
    refused = onecard("plan", "--gpu", "4070", "--hours", "0.001")
    assert refused.code == 1
    fix = refused.stdout.splitlines()[-1]
    assert fix.startswith("  fix: --hours ")
    option, hours = fix.removeprefix("  fix: ").split()[:2]
    assert onecard("plan", "--gpu", "4070", option, hours).code == 0


def test_of_two_budgets_that_are_too_small_the_least_of_each_is_named(onecard: Command) -> None:
    refused = onecard("plan", "--gpu", "4070", "--hours", "0.0001", "--tokens", "5")
    assert refused.code == 1
    assert refused.stdout.splitlines()[-1] == "  fix: --hours 0.0027 --tokens 3300000 is enough for one"
    assert onecard("plan", "--gpu", "4070", "--hours", "0.0027", "--tokens", "3300000").code == 0


def test_where_memory_is_what_is_missing_no_budget_is_promised(onecard: Command) -> None:
    refused = onecard("plan", "--gpu", "4070", "--other", "11.5GiB", "--tokens", "1B")
    assert refused.code == 1
    assert "no budget is enough" in refused.stdout.splitlines()[-1]


def test_fit_beside_a_budget_is_told_to_have_no_say(onecard: Command) -> None:
    said = onecard("plan", "--gpu", "4070", "--hours", "5", "--fit")
    assert said.code == 0
    assert "--fit is ignored beside --hours" in said.stderr
    assert "--fit" not in onecard("plan", "--gpu", "4070", "--hours", "5").stderr
    answer = onecard("plan", "--gpu", "4070", "--hours", "5", "--fit", "--json").json
    assert answer["warnings"] == ["--fit is ignored beside --hours: proposed runs fit already"]
    assert answer.get("fit") is None
    assert answer["proposals"]


def test_an_options_tilde_is_home_after_an_equals_sign_too(onecard: Command, tmp_path: Path) -> None:
    assert onecard("plan", "--gpu", "none", "--timeline=~/t.svg", HOME=str(tmp_path)).code == 0
    assert (tmp_path / "t.svg").is_file()


@pytest.mark.parametrize(("arguments", "name", "fix"), [case for case in MISTAKES if case[0][0] in ("plan", "gpus")])
def test_a_mistake_is_json_with_json(onecard: Command, arguments: list[str], name: str, fix: str) -> None:
    shown = onecard(*arguments, "--json")
    assert shown.code == 2
    error = shown.json["error"]
    assert set(error) == {"name", "what", "why", "fix"}
    assert shown.json["schema"] == 1
    assert shown.stderr == ""
    if arguments[-1] != "--vram":  # there, --json is taken for the size
        assert error["name"] == name
        assert fix in error["fix"]


def test_no_card_on_this_machine_is_exit_3(onecard: Command) -> None:
    shown = onecard("plan", "--gpu", "auto", "--json", LD_LIBRARY_PATH="")
    if shown.code == 0:
        pytest.skip("needs a machine without an NVIDIA card")
    assert shown.code == 3
    assert shown.json["error"]["name"] == "no-gpu"


@pytest.mark.parametrize(
    "raw",
    [b"\x00\x01\x02", b"\xff\xfe\xff", b"n_layer = 3\n" * 20_000, b"(" * 3000, b"def", b"n_layer = \xe2\x80\xa8"],
)
def test_no_file_makes_a_traceback(onecard: Command, tmp_path: Path, raw: bytes) -> None:
    file = tmp_path / "strange.py"
    file.write_bytes(raw)
    shown = onecard("plan", str(file))
    assert shown.code == 2
    assert len(shown.stderr.splitlines()) == 3
    assert "Traceback" not in shown.stderr


def test_a_config_may_come_from_standard_input(onecard: Command) -> None:
    shown = onecard("plan", "-", "--json", stdin="n_layer = 6\nn_head = 6\nn_embd = 384\nblock_size = 512\n")
    assert shown.json["params"] == {"total": 30135168, "nanogpt": 29938560, "decayed": 30130176, "decayed_tensors": 26}
    assert shown.json["origins"]["n_layer"] == "standard input:1"


def test_keys_may_stand_anywhere_on_the_line(onecard: Command) -> None:
    before = onecard("--n_layer=3", "plan", "--json").json
    after = onecard("plan", "--json", "--n_layer=3").json
    assert before == after
    assert before["config"]["n_layer"] == 3
    assert before["origins"]["n_layer"] == "--n_layer"


def test_options_may_be_written_with_an_equals_sign(onecard: Command) -> None:
    assert onecard("plan", "--json", "--gpu=4070").json["gpu"]["name"] == "GeForce RTX 4070"


def test_the_plan_has_the_shape_of_the_contract(onecard: Command) -> None:
    plan = onecard("plan", "--gpu", "RTX 4070", "--other", "2.1GiB", "--json").json
    expected = {
        "schema",
        "config",
        "origins",
        "params",
        "tokens_per_step",
        "gpu",
        "trainers",
        "loss",
        "fixes",
        "findings",
    }
    assert expected <= set(plan)
    gpu = plan["gpu"]
    assert gpu["name"] == "GeForce RTX 4070"
    assert gpu["vram_bytes"] == 12282 * 2**20
    assert gpu["allocatable_bytes"] == round(11.69 * 2**30)
    assert gpu["other_bytes"] == round(2.1 * 2**30)
    assert gpu["available_bytes"] == gpu["allocatable_bytes"] - gpu["other_bytes"]
    assert set(plan["trainers"]) == {"nanogpt", "onecard"}
    assert set(plan["origins"]) == set(plan["config"]) == set(KEYS)


NARROW = ["--n_layer=12", "--n_head=9", "--n_embd=576", "--block_size=1024", "--vocab_size=50304", "--batch_size=16"]


def test_both_trainers_are_planned_side_by_side(onecard: Command) -> None:
    plan = onecard("plan", "--gpu", "RTX 4070", "--other", "2.1GiB", "--json", *NARROW).json
    nanogpt, ours = plan["trainers"]["nanogpt"], plan["trainers"]["onecard"]
    assert set(nanogpt) == set(ours)
    for trainer in (nanogpt, ours):
        assert set(trainer["phases"]) == {"eval0", "train", "eval"}
        train = [part["bytes"] for part in trainer["parts"] if part["phase"] == "train"]
        assert sum(train) == trainer["phases"]["train"]["allocated_bytes"]
        assert trainer["speed"]["tokens_per_second"]["likely"] > 0
    assert ours["process_bytes"] < nanogpt["process_bytes"]
    shown = onecard("plan", "--gpu", "RTX 4070", "--other", "2.1GiB", *NARROW)
    first = shown.stdout.splitlines()[0]
    assert first.startswith("nanoGPT  does not fit: needs ")
    assert "\nonecard  fits: needs " in shown.stdout
    assert any(
        line.startswith("type     onecard train --batch_size=16 ") and "--n_embd=576" in line
        for line in shown.stdout.splitlines()
    )
    details = onecard("plan", "--gpu", "RTX 4070", "--other", "2.1GiB", "--details", *NARROW).stdout
    assert "\nnanoGPT, training " in details
    assert "\nonecard, training " in details


@pytest.mark.parametrize(("trainer", "code"), [("nanogpt", 1), ("onecard", 0), ("both", 0)])
def test_the_exit_code_is_onecards_verdict_where_it_was_asked_for(onecard: Command, trainer: str, code: int) -> None:
    done = onecard("plan", "--gpu", "RTX 4070", "--other", "2.1GiB", "--json", "--trainer", trainer, *NARROW)
    assert done.code == code
    asked = {"nanogpt", "onecard"} if trainer == "both" else {trainer}
    assert {name for name, planned in done.json["trainers"].items() if planned} == asked
    assert {fix["trainer"] for fix in done.json["fixes"]} <= asked


def test_our_own_keys_change_our_trainers_memory_alone(onecard: Command) -> None:
    plain, full = (
        onecard("plan", "--gpu", "RTX 4070", "--json", *NARROW, f"--grad_checkpoint={mode}").json["trainers"]
        for mode in ("none", "full")
    )
    assert plain["nanogpt"] == full["nanogpt"]
    assert full["onecard"]["process_bytes"] < 0.7 * plain["onecard"]["process_bytes"]
    assert full["onecard"]["speed"]["seconds_total"] > plain["onecard"]["speed"]["seconds_total"]


def test_the_plan_of_a_named_card_depends_on_nothing_else(onecard: Command, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    first = onecard("plan", "--gpu", "4070", "--json")
    second = onecard(
        "plan", "--gpu", "4070", "--json", cwd=elsewhere, HOME="/nonexistent", LANG="C", CUDA_VISIBLE_DEVICES=""
    )
    assert first.stdout == second.stdout


def test_explain_shows_where_every_value_came_from(onecard: Command) -> None:
    shown = onecard("plan", "--explain", "--n_layer=3").stdout
    for key in KEYS:
        assert any(line.split()[:1] == [key] for line in shown.splitlines()), key
    assert "--n_layer" in shown
    assert "packaged default" in shown


def test_warnings_are_talk_and_go_to_stderr(onecard: Command) -> None:
    shown = onecard("plan", "-", stdin="n_layers = 3\nn_layer = 4\n")
    assert "n_layers (n_layer?)" in shown.stderr
    assert "warning" not in shown.stdout


def test_nothing_is_coloured_in_a_pipe(onecard: Command) -> None:
    assert "\x1b" not in onecard("plan", NO_COLOR="").stdout


def test_completion_scripts_exist_for_three_shells(onecard: Command) -> None:
    for shell in ("bash", "zsh", "fish"):
        shown = onecard("completion", shell)
        assert shown.code == 0
        assert "_ONECARD_COMPLETE" in shown.stdout


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("onecard pl", "plan"),
        ("onecard plan --n_layer=3 --n_e", "--n_embd="),
        ("onecard plan --ex", "--explain"),
        ("onecard plan --gpu 4070", "GeForce RTX 4070"),
    ],
)
def test_the_shell_completes_commands_options_keys_and_cards(onecard: Command, words: str, offered: str) -> None:
    position = str(len(words.split()) - 1)
    shown = onecard(_ONECARD_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=position)
    assert f"plain,{offered}" in shown.stdout.splitlines()


def in_bash(line: str, *, encoding: str = "utf-8") -> subprocess.CompletedProcess[str]:
    """A line of bash, in which `onecard` is this one."""
    line = f'set -o pipefail; onecard() {{ "{sys.executable}" -m onecard "$@"; }}; {line}'
    settings = os.environ | {"PYTHONIOENCODING": encoding}
    return subprocess.run(
        ["bash", "-c", line], capture_output=True, encoding=encoding, cwd=ROOT, timeout=60, env=settings
    )


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("gpus", 0),
        ("gpus --json", 0),
        ("plan configs/gpt2_30m.py --gpu 4070", 0),
        ("plan configs/gpt2_30m.py --gpu 4070 --json", 0),
        ("plan configs/gpt2_30m.py --vram 1GiB", 1),
    ],
)
def test_the_exit_code_of_a_reader_that_stops_early_is_the_answers(command: str, code: int) -> None:
    for reader in ("head -c 1", "true"):  # the second is gone before the first byte
        done = in_bash(f"onecard {command} | {reader}")
        assert done.returncode == code
        assert done.stderr == ""


@pytest.mark.parametrize("command", ["plan", "plan --json", "gpus", "plan --n_layer=x --json"])
def test_a_full_disk_behind_the_output_is_exit_3(command: str) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    done = in_bash(f"onecard {command} > /dev/full")
    assert done.returncode == 3
    what, why, fix = done.stderr.splitlines()
    assert what == "error: cannot write the output  [disk-full]"
    assert why == "  why: No space left on device"
    assert fix.startswith("  fix: ")


@pytest.mark.parametrize(("command", "code"), [("plan", 0), ("plan --json", 0), ("gpus", 0), ("plan --vram 1MiB", 1)])
def test_a_closed_output_changes_no_answer(command: str, code: int) -> None:
    done = in_bash(f"onecard {command} >&-")
    assert done.returncode == code
    assert done.stderr == ""
    assert in_bash(f"onecard {command} >&- 2>&-").returncode == code


@pytest.mark.parametrize(
    "command", ["plan -", "plan --nvidia-smi -", "doctor -", "data prepare - --out {out} --tokenizer=bytes"]
)
def test_a_closed_input_is_an_empty_one(command: str, tmp_path: Path) -> None:
    command = f"onecard {command.format(out=tmp_path / 'out')}"
    closed, empty = in_bash(f"{command} <&-"), in_bash(f"{command} </dev/null")
    assert closed.returncode == 2
    assert len(closed.stderr.splitlines()) == 3
    assert (closed.stdout, closed.stderr) == (empty.stdout, empty.stderr)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_an_encoding_without_our_signs_gets_them_spelled(encoding: str) -> None:
    done = in_bash("onecard plan configs/gpt2_30m.py --gpu 4070 --details | cat", encoding=encoding)
    assert done.returncode == 0
    assert done.stderr == ""
    assert "\n####" in done.stdout
    assert "\\x" not in done.stdout


def test_what_users_typed_is_no_markup(onecard: Command, tmp_path: Path) -> None:
    file = tmp_path / "[bold]my [/b]config.py"
    file.parent.mkdir()
    file.write_text("n_layer = 2\nbatch_size = 512\ngradient_accumulation_steps = 1\n")
    shown = onecard("plan", str(file), "--gpu", "4070", "--fit")
    assert shown.code == 0
    assert f"onecard train '{file}' --" in shown.stdout


def test_without_a_card_the_process_is_not_said_to_be_whole(onecard: Command) -> None:
    shown = onecard("plan", "--gpu", "none").stdout
    assert "MiB and the CUDA context; name the card to see if it fits" in " ".join(shown.split())
    assert "reserved by PyTorch" in shown
    assert "process (nvidia-smi)" not in shown


def test_a_fit_within_the_plans_own_error_says_so(onecard: Command) -> None:
    keys = "--n_layer=12 --n_head=16 --n_embd=1024 --batch_size=8 --gradient_accumulation_steps=64".split()
    place = "--gpu 4070 --other 2.1GiB --block_size=1024 --vocab_size=50304 --dtype=bfloat16".split()
    made = onecard("plan", *place, *keys, "--json").json
    assert made["trainers"]["nanogpt"]["fits"] is True
    (caution,) = made["warnings"]
    assert caution.startswith("under nanogpt: 56 MiB left is less than the prediction may be off, about 272 MiB")
    shown = onecard("plan", *place, *keys).stdout.splitlines()
    assert "56 MiB left is less than the prediction may be off" in " ".join(" ".join(shown[:2]).split())


def test_json_numbers_are_whole_base_units(onecard: Command) -> None:
    plan = json.loads(onecard("plan", "--gpu", "4070", "--json").stdout)
    for name, value in plan["gpu"].items():
        if name.endswith("_bytes"):
            assert isinstance(value, int), name


def test_a_bug_of_ours_says_so_and_where_to_take_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(_text: str) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("onecard.plan.cards.search_cards", broken)
    assert run(["gpus"]) == 70
    shown = capsys.readouterr().err
    assert "ZeroDivisionError: a bug" in shown
    assert "please report" in shown


INTERRUPTED_IMPORT = """
import builtins
load = builtins.__import__
def interrupted(name, *rest, **options):
    if name == "onecard.cli.main":
        raise KeyboardInterrupt
    return load(name, *rest, **options)
builtins.__import__ = interrupted
from onecard.__main__ import main
main()
"""


def test_ctrl_c_while_modules_are_read_is_exit_130_and_silent() -> None:
    command = [sys.executable, "-c", INTERRUPTED_IMPORT]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_near_no_is_hedged_and_is_still_a_no(onecard: Command) -> None:
    keys = ["--n_embd=384", "--dropout=0.1", "--compile=False", "--batch_size=8", "--gradient_accumulation_steps=32"]
    done = onecard(
        "plan", "-", "--gpu", "4070", "--other", "3600MiB", "--trainer", "nanogpt", *keys, stdin="n_layer = 12"
    )
    assert done.code == 1
    assert done.stdout.startswith("nanoGPT  may not fit: ")
    assert "MiB too much; the prediction may be " in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("--eval_only=True", "no update"),
        ("--max_hours=0.0001", "stops onecard's run at about step"),
    ],
)
def test_what_a_plan_leaves_out_is_said(onecard: Command, key: str, said: str) -> None:
    assert said in " ".join(onecard("plan", "--gpu", "4070", "--json", key).json["warnings"])


@pytest.mark.parametrize("named", ["run", "run/config.json"])
def test_a_run_can_be_planned_again(onecard: Command, tmp_path: Path, named: str) -> None:
    (tmp_path / "run").mkdir()
    keys = {"n_layer": 3, "n_head": 2, "n_embd": 64, "compile": False, "eval_batch_size": None, "dataset": "a'b"}
    (tmp_path / "run/config.json").write_text(json.dumps(keys))
    planned = onecard("plan", str(tmp_path / named), "--gpu", "4070", "--json", "--batch_size=4").json["config"]
    assert {key: planned[key] for key in keys} == keys
    assert planned["batch_size"] == 4


def test_commands_about_a_run_begin_another_one(onecard: Command, tmp_path: Path) -> None:
    folder = tmp_path / "work" / "runs" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"n_layer": 3, "n_head": 2, "n_embd": 64, "out_dir": "runs/mine"}))
    (folder / "records.jsonl").write_text("")
    fitted = onecard("plan", "runs/mine", "--gpu", "4070", "--fit", "--json").json
    assert fitted["fit"]["command"].startswith("onecard train runs/mine --out_dir=runs/mine-2 ")
    typed = onecard("plan", "runs/mine", "--gpu", "4070", "--fit", "--json", "--out_dir=b").json
    assert typed["fit"]["command"].startswith("onecard train runs/mine --out_dir=b ")


@pytest.mark.parametrize("text", ["", "[1, 2]", '{"n_layer": ', "n_layer = 3"])
def test_json_that_is_no_config_is_refused(onecard: Command, tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    done = onecard("plan", str(tmp_path / "config.json"), "--json")
    assert (done.code, done.json["error"]["name"]) == (2, "unreadable-file")


@pytest.mark.parametrize(
    "command", [["plan", "model.py"], ["train", "model.py"], ["doctor", "a.log", "--config", "model.py"]]
)
def test_a_program_is_not_taken_for_a_config(onecard: Command, tmp_path: Path, command: list[str]) -> None:
    work = tmp_path / "work"
    (work / "config").mkdir()
    (work / "config" / "train_mine.py").write_text("n_layer = 6\n")
    (work / "config" / "notes.py").write_text("print('not a config')\n")
    (work / "model.py").write_text("import torch\n\nclass GPT:\n    pass\n")
    (work / "train.py").write_text("n_layer = 12\nexec(open('configurator.py').read())\n")
    (work / "a.log").write_text("iter 0: loss 10.9, time 100.00ms, mfu -100.00%\n")
    done = onecard(*command)
    assert done.code == 2
    assert "error: model.py sets no config key" in done.stderr
    assert "fix: name a config, such as config/train_mine.py\n" in done.stderr


def data_folder(folder: Path, vocab_size: int) -> None:
    """Token files and a meta.pkl, as nanoGPT's prepare.py leaves them."""
    folder.mkdir(parents=True)
    for split in ("train", "val"):
        (folder / f"{split}.bin").write_bytes(bytes(4000))
    (folder / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": vocab_size}))


def test_the_datas_vocabulary_is_planned_where_the_data_are(onecard: Command, tmp_path: Path) -> None:
    data_folder(tmp_path / "work" / "data" / "letters", 65)
    (tmp_path / "work" / "c.py").write_text("dataset = 'letters'\n")
    for card in ([], ["--gpu", "4070"], ["--gpu", "none"], ["--vram", "8GiB"]):
        here = onecard("plan", "c.py", "--json", *card).json
        assert (here["config"]["vocab_size"], here["origins"]["vocab_size"]) == (65, "data/letters")
    assert onecard("plan", "c.py", "--json", "--vocab_size=128").json["config"]["vocab_size"] == 128
    elsewhere = onecard("plan", "-", "--json", "--gpu", "4070", stdin="dataset = 'not_here'").json
    assert (elsewhere["config"]["vocab_size"], elsewhere["origins"]["vocab_size"]) == (50304, "default")


@pytest.mark.parametrize(
    ("name", "size", "origin"),
    [
        ("shakespeare_char", 65, "nanoGPT's shakespeare_char"),
        ("data/shakespeare_char", 65, "nanoGPT's shakespeare_char"),
        ("openwebtext", 50304, "default"),  # the same as nanoGPT's default
        ("my_shakespeare_char", 50304, "default"),
    ],
)
def test_nanogpts_own_data_sets_are_known_by_name(onecard: Command, name: str, size: int, origin: str) -> None:
    planned = onecard("plan", "-", "--json", "--gpu", "4070", stdin=f"dataset = {name!r}").json
    assert (planned["config"]["vocab_size"], planned["origins"]["vocab_size"]) == (size, origin)
    if size == 65:
        assert planned["loss"] is None
        assert planned["why_no_loss"].startswith("the scaling law was fitted on BPE tokens, this data has characters")


def test_data_that_is_here_beats_what_is_known_of_its_name(onecard: Command, tmp_path: Path) -> None:
    data_folder(tmp_path / "work" / "data" / "shakespeare_char", 97)
    planned = onecard("plan", "-", "--json", stdin="dataset = 'shakespeare_char'").json
    assert (planned["config"]["vocab_size"], planned["origins"]["vocab_size"]) == (97, "data/shakespeare_char")


@pytest.mark.parametrize("config", ["config/train.py", "train.py"])
def test_the_data_of_the_configs_own_checkout_is_found_from_elsewhere(
    onecard: Command, tmp_path: Path, config: str
) -> None:
    checkout = tmp_path / "nanoGPT"
    data_folder(checkout / "data" / "letters", 71)
    (checkout / "config").mkdir()
    (checkout / config).write_text("dataset = 'letters'\n")
    planned = onecard("plan", f"../nanoGPT/{config}", "--json").json
    assert planned["config"]["vocab_size"] == 71
    assert Path(planned["origins"]["vocab_size"]).name == "letters"


def test_sizes_and_vocabularies_of_data_are_seen_without_numpy(cold_onecard: Command, tmp_path: Path) -> None:
    (tmp_path / "no_torch" / "numpy.py").write_text("raise ImportError('numpy is not installed')\n")
    for text in ("dataset = 'fineweb'", "dataset = 'shakespeare_char'", "dataset = 'python-stdlib'"):
        assert cold_onecard("plan", "-", "--json", "--gpu", "4070", stdin=text).code == 0
    folder = tmp_path / "work" / "data" / "letters"
    data_folder(folder, 71)
    for split, tokens in (("train", 50_000), ("val", 4_000)):
        (folder / f"{split}.bin").write_bytes(bytes(2 * tokens))
    text = "dataset = 'letters'\nmax_iters = 3000\n"
    plan = cold_onecard("plan", "-", "--json", "--gpu", "4070", stdin=text).json
    assert plan["config"]["vocab_size"] == 71
    assert (plan["data"]["train_tokens"], plan["data"]["val_tokens"]) == (50_000, 4_000)
    assert {"val-set-tiny", "too-many-epochs"} <= {finding["rule"] for finding in plan["findings"]}
    refused = cold_onecard("plan", "-", "--hours", "48", "--gpu", "4070", stdin=text)
    assert refused.stderr.startswith(
        "error: the data are too few for 48 h: 4 epochs of data/letters are 200,000 tokens"
    )
    (tmp_path / "work" / "log.txt").write_text("step 0: train loss 4.3, val loss 4.3\niter 0: loss 4.3, time 9.0ms\n")
    doctor = cold_onecard("doctor", "log.txt", "--data", "data/letters", "--json")
    assert doctor.code in (0, 1), doctor.stderr
    (folder / "meta.json").write_text('{"schema": 1, "vocab_size": 71, "train": [{"file": "train.bin", "tokens": 7}]}')
    assert "has 50,000 tokens, but meta.json says 7" in cold_onecard("plan", "-", "--gpu", "4070", stdin=text).stdout


def test_data_that_are_not_here_are_taken_to_be_gpt2s(onecard: Command) -> None:
    """Not to have the vocabulary of the packaged default, which is that of other data."""
    planned = onecard("plan", "--dataset=fineweb", "--json").json
    assert (planned["config"]["vocab_size"], planned["origins"]["vocab_size"]) == (50304, "default")
    embedded = onecard("plan", "-", "--gpu", "4070", "--json", stdin="dataset = 'python-stdlib'").json
    assert embedded["config"]["vocab_size"] == 256


@pytest.mark.parametrize("command", ["plan", "doctor", "compare", "sample"])
def test_a_name_that_no_disk_takes_is_refused(onecard: Command, command: str) -> None:
    shown = onecard(command, "a" * 300, "--json")
    assert (shown.code, shown.stderr) == (2, ""), shown.stderr
    assert shown.json["error"]["name"]


def test_a_line_break_in_a_name_makes_no_fourth_line(onecard: Command) -> None:
    assert len(onecard("plan", "a\nb").stderr.splitlines()) == 3


def test_a_limit_without_a_card_is_no_verdict(onecard: Command) -> None:
    done = onecard("plan", "--json", "--memory_limit=6GiB")
    assert done.code == 0
    assert [done.json["trainers"][name]["fits"] for name in ("nanogpt", "onecard")] == [None, None]
    assert any("--vram 6GiB" in warning for warning in done.json["warnings"])
    limited = onecard("plan", "--json", "--memory_limit=6GiB", "--gpu", "4070").json
    assert limited["gpu"]["available_bytes"] == 6 * 2**30


@pytest.mark.parametrize("params", ["63.5M", "1.5B"])
def test_the_patch_of_a_fit_by_size_says_the_shape(onecard: Command, params: str) -> None:
    """Config and patch are the answer, whether it fits or is the smallest thing that would."""
    typed = ["--fit", "--params", params, "--json", "--gpu", "4070", "--n_layer=24"]
    done = onecard("plan", "-", *typed, stdin="n_layer = 6").json
    fit = done["fit"]
    shape = {"n_layer", "n_head", "n_embd"}
    patch = fit["patch"] if fit["patch"] else fit["smallest"]["patch"]
    assert shape <= patch.keys()
    assert any("n_layer=24 is ignored" in warning for warning in done["warnings"])


NVIDIA_SMI = """\
|   0  NVIDIA GeForce RTX 4070        Off |   00000000:01:00.0  On |                  N/A |
| 30%   61C    P2            178W /  200W |    6582MiB /  12282MiB |     98%      Default |
|    0   N/A  N/A           35811      C   python                                 4464MiB |
"""


def test_the_card_is_the_one_that_nvidia_smi_names(onecard: Command) -> None:
    done = onecard("plan", "--nvidia-smi", "-", "--json", stdin=NVIDIA_SMI).json
    assert done["gpu"]["name"] == "GeForce RTX 4070"
    assert done["gpu"]["named_by"] == "the nvidia-smi text"
    assert done["gpu"]["other_bytes"] == (6582 - 4464) * 2**20
    named = onecard("plan", "--gpu", "4070", "--json").json
    assert done["seen"]["predicted_bytes"] == named["trainers"]["nanogpt"]["process_bytes"]
    unknown = NVIDIA_SMI.replace("GeForce RTX 4070", "Voodoo 5 5500   ")
    done = onecard("plan", "--nvidia-smi", "-", "--json", stdin=unknown).json
    assert (done["gpu"], done["seen"]["unexplained_bytes"]) == (None, None)


def test_a_card_that_was_typed_is_not_overruled_by_nvidia_smi(onecard: Command) -> None:
    done = onecard("plan", "--nvidia-smi", "-", "--gpu", "H200", "--json", stdin=NVIDIA_SMI).json
    assert (done["gpu"]["named_by"], done["gpu"]["other_bytes"]) == (None, 0)
    assert "H200" in done["gpu"]["name"]


def test_a_written_proposal_fits_when_it_is_planned_again(onecard: Command) -> None:
    where = ["--gpu", "RTX 4070", "--other", "2.1GiB"]
    made = onecard("plan", *where, "--hours", "6", "--write", "x.py", "--json").json["proposals"][0]
    again = onecard("plan", "x.py", *where, "--trainer", made["trainer"], "--json")
    assert again.code == 0
    planned = again.json["trainers"][made["trainer"]]
    assert (planned["fits"], planned["process_bytes"]) == (True, made["process_bytes"])
    assert planned["speed"]["seconds_total_range"] == made["seconds_range"]
