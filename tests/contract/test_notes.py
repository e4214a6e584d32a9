"""The questions people really asked, as commands, and the right answers. The configs are made here after theirs."""

from typing import Any

import pytest

from tests.contract.conftest import Command

DESKTOP = ["--gpu", "RTX 4070", "--other", "2.1GiB"]
NOTE_001 = (
    "n_layer=6\nn_head=6\nn_embd=384\nblock_size=512\nbatch_size=16\ngradient_accumulation_steps=4\ndtype='float16'\n"
)
NOTE_002 = "n_embd = 576\nbatch_size = 16\ngradient_accumulation_steps = 32\ndtype = 'float16'\neval_iters = 200\n"
NOTE_004 = """\
wandb_run_name = '125M-single-parquet-4070'
dataset = 'fineweb'
gradient_accumulation_steps = 32     # Effective batch size: 16 * 32 = 512 sequences
batch_size = 16
# Model (~125M parameters)
n_embd = 384
max_iters = 20000
lr_decay_iters = 20000
warmup_iters = 500
learning_rate = 1e-3
"""


def asked(onecard: Command, config: str, *arguments: str) -> Any:
    return onecard("plan", "-", "--json", *arguments, stdin=config).json


def nanogpt(plan: Any) -> Any:
    return plan["trainers"]["nanogpt"]


def test_why_4_4_gb(onecard: Command) -> None:
    plan = asked(onecard, NOTE_001, "--gpu", "RTX 4070", "--seen", "4464MiB")
    assert nanogpt(plan)["process_bytes"] == pytest.approx(4464 * 2**20, rel=0.05)
    train = [part for part in nanogpt(plan)["parts"] if part["phase"] == "train"]
    assert max(train, key=lambda part: part["bytes"])["name"] == "logits and loss"
    assert sum(part["bytes"] for part in train) == nanogpt(plan)["phases"]["train"]["allocated_bytes"]
    assert abs(plan["seen"]["unexplained_bytes"]) < 0.05 * 4464 * 2**20


def test_why_it_dies_in_evaluation(onecard: Command) -> None:
    plan = asked(onecard, NOTE_002, *DESKTOP)
    run = nanogpt(plan)
    assert run["fits"] is False
    assert run["ran_out"].startswith("training"), "evaluation is not what does not fit"
    assert run["phases"]["eval"]["allocated_bytes"] < run["phases"]["train"]["allocated_bytes"]
    fixes = {fix["name"]: fix for fix in plan["fixes"]}
    assert fixes["eval-iters"]["saves_bytes"] == 0
    assert fixes["smaller-micro-batch"]["fits"]
    assert asked(onecard, NOTE_002, *DESKTOP, "--eval_iters=1")["trainers"]["nanogpt"][
        "process_bytes"
    ] == pytest.approx(run["process_bytes"], rel=0.001)


def test_384_wide_fits_where_576_does_not(onecard: Command) -> None:
    assert nanogpt(asked(onecard, NOTE_002, *DESKTOP, "--n_embd=384"))["fits"] is True


def test_40m_or_125m(onecard: Command) -> None:
    plan = asked(onecard, NOTE_004, "--gpu", "RTX 4070")
    (finding,) = [finding for finding in plan["findings"] if finding["rule"] == "params-mismatch"]
    assert (
        finding["what"] == "the comment and run name say ~125M; this config is 40.56M (n_embd=384; 768 gives 123.59M)"
    )
    assert finding["patch"]["n_embd"] == 768
    assert finding["patch"]["batch_size"] == 8, "which fits the card"


def test_the_40m_runs_speed_mfu_and_loss_are_foretold(onecard: Command) -> None:
    plan = asked(onecard, NOTE_004, "--gpu", "RTX 4070", "--dropout=0.1")
    speed = nanogpt(plan)["speed"]
    assert speed["tokens_per_second"]["low"] < 134_100 < speed["tokens_per_second"]["high"]
    assert speed["mfu"] == pytest.approx(0.69, abs=0.12), "of this card, not of an A100"
    assert plan["loss"]["final"]["low"] < 3.5228 < plan["loss"]["final"]["high"]
    assert 0 < plan["loss"]["double_tokens"] < plan["loss"]["double_params"]


def test_which_accumulation_for_half_a_million_tokens_at_batch_8(onecard: Command) -> None:
    plan = asked(onecard, NOTE_004, "--batch_size=8")
    (finding,) = [finding for finding in plan["findings"] if finding["rule"] == "accumulation-for-target"]
    assert finding["patch"] == {"gradient_accumulation_steps": 64}
    assert "exactly" in finding["fix"]


def test_under_4_gb(onecard: Command) -> None:
    for trainer, programs in (
        ("both", ("onecard train",)),
        ("nanogpt", ("python train.py", "PYTORCH_CUDA_ALLOC_CONF")),
    ):
        plan = asked(onecard, NOTE_001, "--vram", "4GiB", "--fit", "--trainer", trainer)
        best = plan["fit"]["best"]
        assert best["fits"]
        assert best["process_bytes"] <= 4 * 2**30
        assert best["tokens_per_step"] == plan["tokens_per_step"]
        assert plan["fit"]["command"].startswith(programs)


def test_a_proposal_answers_whatever_the_given_config_needs(onecard: Command) -> None:
    assert onecard("plan", "-", "--json", *DESKTOP, stdin=NOTE_002).code == 0
    huge = NOTE_002 + "n_layer = 48\n"
    assert onecard("plan", "-", "--json", *DESKTOP, stdin=huge).code == 1
    assert onecard("plan", "-", "--json", *DESKTOP, "--hours", "10", stdin=huge).code == 0


def test_what_for_a_weekend_on_a_4070(onecard: Command) -> None:
    plan = onecard("plan", "--json", *DESKTOP, "--hours", "48").json
    best, smaller, fast = plan["proposals"]
    assert (fast["name"], fast["config"]["recipe"]) == ("the fast recipe", "fast")
    assert set(fast["config"]) == set(fast["sources"])
    assert best["seconds"] <= 48 * 3600
    assert best["params"] > smaller["params"]
    assert best["tokens"] < smaller["tokens"]
    assert set(best["config"]) == set(best["sources"])
    assert best["loss"]["low"] < best["loss"]["likely"] < best["loss"]["high"]


def test_a_size_gets_its_shape_and_its_micro_batch(onecard: Command) -> None:
    plan = onecard(
        "plan", "--json", *DESKTOP, "--fit", "--params", "124M", "--vocab_size=50304", "--block_size=1024"
    ).json
    config = plan["config"]
    assert (config["n_layer"], config["n_head"], config["n_embd"]) == (12, 12, 768)
    assert plan["params"]["nanogpt"] == pytest.approx(124e6, rel=0.05)
    assert plan["origins"]["n_embd"] == "--params"


def test_a_proposal_is_saved_and_never_over_a_file(onecard: Command, tmp_path: Any) -> None:
    file = tmp_path / "weekend.py"
    arguments = ["plan", *DESKTOP, "--hours", "10", "--write", str(file)]
    assert onecard(*arguments).code == 0
    text = file.read_text()
    assert "max_iters = " in text
    again = onecard(*arguments)
    assert again.code == 2
    assert again.stderr.splitlines()[0].endswith("[file-exists]")
    assert file.read_text() == text
    assert onecard("plan", str(file), *DESKTOP).code == 0


CASES = {  # what people type most, and nothing about it is long
    "the config that died": (NOTE_002, ["--gpu", "RTX 4070"]),
    "the same beside a desktop": (NOTE_002, DESKTOP),
    "a small one that fits": (NOTE_001, ["--gpu", "RTX 4070"]),
    "under nanoGPT alone": (NOTE_002, [*DESKTOP, "--trainer", "nanogpt"]),
    "a fit": (NOTE_002, ["--gpu", "RTX 4070", "--fit"]),
    "no card": (NOTE_001, ["--gpu", "none"]),
    "a large model on another card": (
        "n_layer = 24\nn_head = 16\nn_embd = 1024\nbatch_size = 8\n",
        ["--gpu", "RTX 3060 12GB"],
    ),
    "an MFU near the card's peak": ("batch_size = 16\ngradient_accumulation_steps = 32\n", ["--gpu", "RTX 4070"]),
}


def lines_of(onecard: Command, config: str, *arguments: str) -> list[str]:
    return onecard("plan", "-", *arguments, stdin=config).stdout.splitlines()


def head(onecard: Command, config: str, *arguments: str) -> str:
    """The first eight lines, as one."""
    return " ".join(" ".join(lines_of(onecard, config, *arguments)[:8]).split())


@pytest.mark.parametrize("case", CASES)
def test_a_plan_is_short_and_opens_with_the_answer(onecard: Command, case: str) -> None:
    config, arguments = CASES[case]
    lines = lines_of(onecard, config, *arguments)
    opening = lines[: lines.index("")]
    assert len(opening) <= 9 if "--fit" in arguments else len(opening) <= 8, opening
    assert len(lines) <= 40, f"{len(lines)} lines"
    assert len(" ".join(lines).split()) <= 420, "words"
    assert all(len(line.rstrip()) <= 100 for line in lines if not line.startswith("type "))
    assert any(line.startswith("type ") for line in opening)
    labels = [line.split()[0] for line in opening if line[0] != " "]
    assert labels[0] in ("nanoGPT", "onecard", "fit")
    assert "loss" in labels
    assert "speed" in labels


def test_the_config_that_died_is_no_plain_yes(onecard: Command) -> None:
    first = lines_of(onecard, NOTE_002, "--gpu", "RTX 4070")[0]
    assert first == (
        "nanoGPT  does not fit beside a desktop: needs 11,052 MiB, about 9,900 are free (without one 11,971)"
    )
    plan = asked(onecard, NOTE_002, "--gpu", "RTX 4070")
    assert (nanogpt(plan)["fits"], nanogpt(plan)["fits_with_desktop"]) == (True, False)
    assert plan["trainers"]["onecard"]["fits_with_desktop"] is True
    beside = asked(onecard, NOTE_002, *DESKTOP)
    assert (nanogpt(beside)["fits"], nanogpt(beside)["fits_with_desktop"]) == (False, None)
    assert head(onecard, NOTE_002, *DESKTOP).startswith("nanoGPT does not fit: needs 11,052 of 9,820 MiB")


def test_what_to_change_and_what_to_type_stand_in_the_first_eight_lines(onecard: Command) -> None:
    said = head(onecard, NOTE_002, "--gpu", "RTX 4070")
    assert "change train with onecard: 5,500 MiB less, speed +9%, loss same type onecard train CONFIG" in said
    alone = head(onecard, NOTE_002, *DESKTOP, "--trainer", "nanogpt")
    assert "type python train.py CONFIG --batch_size=8 --gradient_accumulation_steps=64" in alone


def test_how_fast_how_long_and_how_good_stand_in_the_first_eight_lines(onecard: Command) -> None:
    plan = asked(onecard, NOTE_002, "--gpu", "RTX 4070")
    said = head(onecard, NOTE_002, "--gpu", "RTX 4070")
    for trainer in plan["trainers"].values():
        assert f" {trainer['speed']['tokens_per_second']['likely'] / 1000:.1f}k " in said
    final = plan["loss"]["final"]
    assert f"loss {final['likely']:.2f} ({final['low']:.2f} to {final['high']:.2f}) at the end" in said


def test_where_4464_mib_come_from_stands_in_the_first_lines(onecard: Command) -> None:
    said = head(onecard, NOTE_001, "--gpu", "RTX 4070", "--seen", "4464MiB")
    assert said.startswith("seen the driver shows 4,464 MiB; predicted 4,444 for nanoGPT: logits and loss 2,358")


def test_a_fit_leaves_room_for_a_desktop_unless_other_says_otherwise(onecard: Command) -> None:
    plan = asked(onecard, NOTE_002, "--gpu", "RTX 4070", "--fit", "--trainer", "nanogpt")
    room = plan["gpu"]["allocatable_bytes"] - 2 * 2**30
    assert plan["fit"]["available_bytes"] == room
    assert plan["fit"]["best"]["process_bytes"] <= room
    assert plan["fit"]["patch"], "as it is it would not leave that room"
    alone = asked(onecard, NOTE_002, "--gpu", "RTX 4070", "--other", "0", "--fit", "--trainer", "nanogpt")
    assert alone["fit"]["available_bytes"] == plan["gpu"]["allocatable_bytes"]
    assert alone["trainers"]["nanogpt"]["fits_with_desktop"] is None


def test_where_only_an_empty_card_is_enough_the_fit_says_so(onecard: Command) -> None:
    tight = asked(onecard, NOTE_002, "--vram", "2200MiB", "--fit")
    assert tight["fit"]["best"]["process_bytes"] <= 2200 * 2**20
    assert tight["fit"]["available_bytes"] == 2200 * 2**20


def test_the_list_of_changes_has_checkpointing_and_says_what_each_costs_in_loss(onecard: Command) -> None:
    text = onecard("plan", "-", "--gpu", "RTX 4070", stdin=NOTE_002).stdout
    row = {line.split("  ")[0]: line for line in text.partition("what to change")[2].splitlines()[1:] if line}
    assert "same" in row["train with onecard, gradient checkpointing"]
    assert "not comparable" in row["a context of 512, the same tokens per update"]
    assert "+0.22" in row["n_embd=384 with heads of 64"]
    assert "std error x4" in row["fewer eval_iters, or a smaller evaluation batch"]


def test_sensitivity_tells_of_checkpointing_too(onecard: Command) -> None:
    changes = asked(onecard, NOTE_002, "--gpu", "RTX 4070", "--sensitivity")["sensitivity"]
    full = next(change for change in changes if (change["key"], change["value"]) == ("grad_checkpoint", "full"))
    assert full["trainer"] == "onecard"
    assert full["difference_bytes"] < 0
    assert {change["trainer"] for change in changes} == {"nanogpt", "onecard"}


def test_what_to_train_in_a_weekend_is_said_first(onecard: Command) -> None:
    shown = onecard("plan", "--gpu", "RTX 4070", "--hours", "48").stdout.splitlines()
    assert shown[0].startswith("train ")
    assert "predicted loss" in shown[0]
    assert shown[1].endswith(" with --recipe=fast"), "which predicts a lower loss"
    assert shown[2].startswith("about ")
    assert "with onecard" in shown[2]
    assert any(line.startswith("to start: ") for line in shown[:8])
