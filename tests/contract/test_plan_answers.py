"""Answers of a plan that must not mislead: the data here, the allocator's settings, the card in this machine."""

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onecard.config.schema import RunConfig
from onecard.inputs.place import place_named
from onecard.plan.place import DESKTOP_BYTES
from onecard.runs.folder import create_run
from tests.contract.conftest import Command
from tests.fake_nvml import fake_nvml

CONFIG = (
    "dataset = 'mine'\nbatch_size = 8\ngradient_accumulation_steps = 64\nmax_iters = 100\nwarmup_iters = 5\n"
    "eval_iters = 20\n"
)
ON_A_4070 = ("--gpu", "RTX 4070")


def made_data(folder: Path, *, train: int, val: int) -> Path:
    folder.mkdir(parents=True)
    for name, tokens in (("train.bin", train), ("val.bin", val)):
        np.zeros(tokens, dtype=np.uint16).tofile(folder / name)
    return folder


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder like a nanoGPT checkout: a config, and small data that it names."""
    root = tmp_path / "checkout"
    made_data(root / "data" / "mine", train=5_000_000, val=4_000)
    (root / "config").mkdir()
    (root / "config" / "train_mine.py").write_text(CONFIG)
    return root


@pytest.mark.parametrize("inside", [True, False], ids=["in the checkout", "from elsewhere"])
def test_a_plan_uses_the_sizes_of_the_data_that_is_here(onecard: Command, checkout: Path, inside: bool) -> None:
    config = "config/train_mine.py" if inside else str(checkout / "config" / "train_mine.py")
    cwd = {"cwd": checkout} if inside else {}
    plan = onecard("plan", config, *ON_A_4070, "--json", **cwd).json
    assert (plan["data"]["train_tokens"], plan["data"]["val_tokens"]) == (5_000_000, 4_000)
    assert plan["data"]["epochs"] == pytest.approx(100 * 524_288 / 5_000_000)
    findings = {finding["rule"]: finding for finding in plan["findings"]}
    assert "reads its training data 10.5 times" in findings["too-many-epochs"]["what"]
    assert "has 4,000 tokens" in findings["val-set-tiny"]["what"]
    shown = onecard("plan", config, *ON_A_4070, **cwd).stdout
    assert "5.00M tokens, 4,000 for validation; read 10 times" in " ".join(shown.split())


def test_without_the_data_a_plan_says_that_its_size_is_not_checked(onecard: Command) -> None:
    shown = onecard("plan", "-", *ON_A_4070, stdin=CONFIG)
    assert "mine: not found here, so its size is not checked" in shown.stdout
    plan = onecard("plan", "-", *ON_A_4070, "--json", stdin=CONFIG).json
    assert plan["data"]["train_tokens"] is None
    assert not plan["findings"]


def test_a_budget_reads_no_data_more_than_four_times(onecard: Command, checkout: Path) -> None:
    shown = onecard("plan", "config/train_mine.py", *ON_A_4070, "--hours", "48", cwd=checkout)
    plan = onecard("plan", "config/train_mine.py", *ON_A_4070, "--hours", "48", "--json", cwd=checkout).json
    for proposal in plan["proposals"]:
        assert proposal["tokens"] <= 4 * 5_000_000
    assert "data/mine has 5.00M tokens: they are read " in shown.stdout
    assert shown.stdout.startswith(
        "the data are too few for 48 h: data/mine has 5.00M tokens, and 4 epochs of that take "
    )
    assert plan["proposals"][0]["params"] <= 20_000_000, "the data teach a larger model nothing more"
    free = onecard("plan", *ON_A_4070, "--hours", "48").stdout
    assert "assumed: fineweb has at least that many tokens" in free


def test_data_that_is_too_small_for_any_run_is_the_reason_that_is_given(onecard: Command, tmp_path: Path) -> None:
    made_data(tmp_path / "here" / "data" / "mine", train=200_000, val=4_000)
    refused = onecard("plan", "-", *ON_A_4070, "--hours", "48", stdin=CONFIG, cwd=tmp_path / "here")
    assert refused.code == 1
    assert "more data: data/mine has 200,000 tokens" in refused.stdout
    assert refused.stdout.startswith("the data are too few for 48 h: data/mine has 200,000 tokens")


def test_no_run_that_does_not_fit_is_told_to_change_nothing(onecard: Command) -> None:
    keys = "--n_layer=12 --n_head=12 --n_embd=768 --vocab_size=50304 --block_size=1024".split()
    shown = onecard("plan", *ON_A_4070, "--vram", "2GiB", "--other", "0", *keys)
    assert shown.code == 1
    assert "change   nothing" not in shown.stdout
    assert "change   no single setting makes it fit" in shown.stdout
    assert any(
        line.startswith("type     onecard plan --") and line.endswith(" --fit") for line in shown.stdout.splitlines()
    )


def test_a_size_that_was_typed_is_meant_whatever_the_comments_say(onecard: Command) -> None:
    config = "# ~125M parameters model\nn_embd = 768\n"
    assert onecard("plan", "-", *ON_A_4070, "--n_embd=384", "--json", stdin=config).json["findings"] == []
    (said,) = onecard("plan", "-", *ON_A_4070, "--json", stdin=config.replace("768", "384")).json["findings"]
    assert said["rule"] == "params-mismatch"


def test_a_finding_leaves_the_run_as_it_is_in_the_command_and_offers_the_other(onecard: Command) -> None:
    shown = onecard("plan", "-", *ON_A_4070, stdin="# ~125M parameters model\nn_embd = 384\n").stdout.splitlines()
    assert "type     onecard train CONFIG" in shown
    assert any(line.startswith("or type  onecard train CONFIG --n_embd=768") for line in shown[:8])


def test_a_budget_without_a_config_is_sized_by_the_data_it_proposes(onecard: Command, tmp_path: Path) -> None:
    made_data(tmp_path / "here" / "data" / "fineweb", train=5_000_000, val=400_000)
    plan = onecard("plan", *ON_A_4070, "--hours", "48", "--json", cwd=tmp_path / "here").json
    assert plan["data"]["train_tokens"] == 5_000_000
    assert all(proposal["tokens"] <= 20_000_000 for proposal in plan["proposals"])


def test_keys_that_nanogpt_does_not_have_are_said_to_be_none_of_its(onecard: Command) -> None:
    shown = onecard("plan", *ON_A_4070, "--eval_batch_size=2")
    assert "nanoGPT has no eval_batch_size: it ignores such a key in a file" in shown.stderr
    assert "nanoGPT has no" not in onecard("plan", *ON_A_4070, "--eval_batch_size=2", "--trainer", "onecard").stderr


@pytest.mark.parametrize("asked", ["key", "environment"])
def test_expandable_segments_are_planned_for_nanogpt_too(onecard: Command, asked: str) -> None:
    def nanogpt(*arguments: str, **environment: str) -> Any:
        typed = ["plan", "-", *ON_A_4070, "--trainer", "nanogpt", "--json", *arguments]
        return onecard(*typed, stdin="batch_size = 16\n", **environment).json

    plain = nanogpt()
    if asked == "key":
        expandable = nanogpt("--expandable_segments=True")
    else:
        expandable = nanogpt(PYTORCH_CUDA_ALLOC_CONF="max_split_size_mb:512,expandable_segments:True")
        assert expandable["origins"]["expandable_segments"] == "PYTORCH_CUDA_ALLOC_CONF"
    before, after = plain["trainers"]["nanogpt"], expandable["trainers"]["nanogpt"]
    assert before["process_bytes"] != after["process_bytes"]
    assert "expandable segments" in after["assumptions"]
    assert after["environment"] == "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
    assert "expandable-segments" not in {fix["name"] for fix in expandable["fixes"]}


def test_a_named_card_that_is_in_this_machine_is_taken_as_its_driver_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pynvml", fake_nvml())
    for name in ("RTX 4070", "RTX 3090"):  # the made machine has both
        here = place_named(name, None, None)
        assert here
        assert here.other_bytes == 2150 * 2**20, "what the driver counts, less its own share"
    other = place_named("RTX 3060 12GB", None, None)
    assert other
    assert other.other_bytes is None, "not in this machine"
    said = place_named("RTX 4070", None, DESKTOP_BYTES)
    assert said
    assert said.other_bytes == DESKTOP_BYTES


def test_several_cards_are_in_the_json_and_said_to_be_computed(onecard: Command) -> None:
    keys = ["--batch_size=4", "--gradient_accumulation_steps=8", "--max_iters=100000"]
    asked = ["plan", *ON_A_4070, *keys, "--gpus", "2", "--nodes", "2", "--interconnect", "25GbE", "--price", "0.35"]
    cards = onecard(*asked, "--json").json["cards"]
    assert (cards["gpus"], cards["nodes"], cards["ranks"], cards["measured"]) == (2, 2, 4, False)
    assert [link["name"] for link in cards["interconnects"]] == ["pcie-4-x16", "ethernet-25"]
    assert cards["costs"][0]["cost"]["likely"] == pytest.approx(4 * 0.35 * cards["seconds_total"] / 3600, rel=0.02)
    shown = " ".join(onecard(*asked).stdout.split())
    assert "computed: nobody has measured it" in shown
    assert "PCIe 4 x16 (assumed) and 25 Gb/s Ethernet" in shown


def test_several_cards_beside_a_budget_are_refused_with_both_commands(onecard: Command) -> None:
    refused = onecard("plan", *ON_A_4070, "--recipe=fast", "--hours", "5", "--gpus", "2", "--price", "1")
    assert refused.code == 2
    assert "--recipe=fast --gpu 'RTX 4070' --hours 5 --write FILE.py" in refused.stderr
    assert "onecard plan FILE.py --gpus 2 --price 1 --gpu 'RTX 4070'" in refused.stderr


def test_what_a_plan_of_several_cards_says_to_type_fits_as_it_said(onecard: Command) -> None:
    large = ["--n_embd=768", "--n_head=12", "--n_layer=12", "--batch_size=64", "--block_size=1024"]
    large += ["--gradient_accumulation_steps=8"]
    refused = onecard("plan", *ON_A_4070, *large, "--gpus", "2", "--interconnect", "pcie-5-x16", "--json")
    change = refused.json["cards"]["change"]
    assert (refused.code, refused.json["cards"]["command"]) == (1, None)
    again = onecard(*shlex.split(change["command"])[1:], "--json")
    cards = again.json["cards"]
    assert (again.code, cards["fits"], cards["change"]) == (0, True, None)
    assert (cards["process_bytes"], cards["tokens_per_second"]["likely"]) == (
        change["process_bytes"],
        change["tokens_per_second"],
    )
    assert cards["command"].startswith("torchrun --nproc_per_node=2 -m onecard train")


@pytest.mark.parametrize("name", ["gpt-2", "HuggingFaceTB/SmolLM2-135M", "distilgpt2", "nosuchfolder", "out/ckpt.pt"])
@pytest.mark.parametrize("in_file", [False, True], ids=["typed", "in a file"])
def test_weights_of_an_unknown_shape_are_refused_and_not_planned_as_another_model(
    onecard: Command, name: str, in_file: bool
) -> None:
    text = f"{CONFIG}n_layer = 12\n" + (f"init_from = {name!r}\n" if in_file else "")
    refused = onecard("plan", "-", *ON_A_4070, *([] if in_file else [f"--init_from={name}"]), stdin=text)
    assert (refused.code, refused.stdout) == (2, "")
    assert len(refused.stderr.splitlines()) == 3
    assert name in refused.stderr
    assert name.endswith(".pt") or "known by name: gpt2, gpt2-medium, gpt2-large, gpt2-xl" in refused.stderr
    assert ("did you mean gpt2 ?" in refused.stderr) == (name == "gpt-2")


def test_openais_weights_are_known_by_the_hubs_name_too(onecard: Command) -> None:
    for short, params in (("gpt2", 124_439_808), ("gpt2-medium", 354_823_168)):
        plan = onecard("plan", *ON_A_4070, "--json", "--block_size=1024", f"--init_from=openai-community/{short}").json
        assert plan["params"]["total"] == params


def test_a_checkpoint_whose_shape_only_torch_can_read_is_not_planned(onecard: Command, work: Path) -> None:
    (work / "out").mkdir()
    (work / "out" / "ckpt.pt").write_bytes(b"PK")
    for name in ("out", "out/ckpt.pt"):
        refused = onecard("plan", *ON_A_4070, f"--init_from={name}")
        assert (refused.code, "[shape-not-known]" in refused.stderr) == (2, True)
        assert f"onecard import {name} --out_dir=DIR" in refused.stderr


def a_run(folder: Path) -> None:
    keys = {"n_layer": 2, "n_head": 2, "n_embd": 64, "block_size": 64, "vocab_size": 256, "out_dir": folder.name}
    create_run(folder, config=RunConfig().replace(keys).model_dump()).close()


def test_a_plan_of_a_resume_refuses_what_train_would(onecard: Command, work: Path) -> None:
    a_run(work / "r")
    for source in ([], ["r"]):
        refused = onecard("plan", *source, *ON_A_4070, "--init_from=resume", "--out_dir=r", "--n_embd=768")
        assert (refused.code, refused.stdout) == (2, "")
        assert "a resumed run cannot change n_embd=768 (was 64)" in refused.stderr
    plan = onecard("plan", *ON_A_4070, "--json", "--init_from=resume", "--out_dir=r", "--max_iters=9000").json
    assert (plan["config"]["n_embd"], plan["config"]["n_layer"], plan["config"]["max_iters"]) == (64, 2, 9000)
    shown = onecard("plan", *ON_A_4070, "--init_from=resume", "--out_dir=r", "--max_iters=9000").stdout
    assert "type     onecard train --out_dir=r --init_from=resume --max_iters=9000" in shown


def test_a_plan_of_a_resume_says_where_there_is_nothing_to_resume(onecard: Command, work: Path) -> None:
    absent = onecard("plan", *ON_A_4070, "--init_from=resume", "--out_dir=out", "--n_embd=768")
    assert "there is no run in out, and train will refuse to resume it" in absent.stderr
    (work / "out").mkdir()
    (work / "out" / "ckpt.pt").write_bytes(b"PK")
    theirs = onecard("plan", *ON_A_4070, "--init_from=resume", "--out_dir=out", "--n_embd=768")
    assert "out/ckpt.pt is nanoGPT's, which keeps the shape in it" in theirs.stderr
    sized = onecard("plan", *ON_A_4070, "--init_from=resume", "--out_dir=out", "--fit", "--params", "10M")
    assert (sized.code, "[params-of-weights]" in sized.stderr) == (2, True)


def described_data(folder: Path, *, train: int, vocab_size: int) -> None:
    made_data(folder, train=train, val=20_000)
    (folder / "meta.json").write_text(f'{{"schema": 1, "dtype": "uint16", "vocab_size": {vocab_size}}}')


NOT_COVERED = [(256, "bytes"), (65, "characters"), (4096, "larger vocabularies")]


@pytest.mark.parametrize(("vocab_size", "why"), NOT_COVERED)
def test_no_loss_is_predicted_for_data_of_bytes_characters_or_small_vocabularies(
    onecard: Command, work: Path, vocab_size: int, why: str
) -> None:
    described_data(work / "data" / "mine", train=5_000_000, vocab_size=vocab_size)
    asked = ("plan", "--dataset=mine", *ON_A_4070)
    for more in ([], ["--sensitivity"], ["--fit"], ["--fit", "--params", "30M"], ["--trainer", "nanogpt"]):
        plan = onecard(*asked, *more, "--json").json
        assert (plan["config"]["vocab_size"], plan["loss"]) == (vocab_size, None)
        assert why in plan["why_no_loss"]
    for budget in (["--hours", "48"], ["--hours", "48", "--trainer", "nanogpt"], ["--tokens", "4M"]):
        refused = onecard(*asked, *budget)
        assert (refused.code, refused.stdout) == (2, "")
        assert why in refused.stderr.splitlines()[1]
        too_few = refused.stderr.startswith("error: the data are too few for 48 h: 4 epochs of data/mine are 20.00M")
        assert too_few == ("48" in budget)
    command = refused.stderr.rpartition("compare val losses: onecard ")[2].rpartition("   (")[0]
    assert onecard(*shlex.split(command)).code == 0, command


def test_a_name_that_says_characters_is_believed_where_the_data_is_not_here(onecard: Command) -> None:
    for name in ("enwik8_char", "data/tiny-bytes", "my_characters"):
        plan = onecard("plan", f"--dataset={name}", *ON_A_4070, "--json").json
        assert f"(dataset={name})" in plan["why_no_loss"]
        assert onecard("plan", f"--dataset={name}", *ON_A_4070, "--hours", "5").code == 2
    for name in ("charity", "openwebtext"):
        assert onecard("plan", f"--dataset={name}", "--batch_size=64", "--max_iters=99999", "--json").json["loss"]


WIDE = (
    "n_layer = 12\nn_head = 12\nn_embd = 576\nbatch_size = 8\ngradient_accumulation_steps = 64\ndropout = 0.1\n"
    "dataset = 'fineweb'\nmax_iters = 5000\nlr_decay_iters = 5000\ndtype = 'float16'\n"
)


def test_the_first_line_of_the_config_that_died_says_that_it_does_not_fit_with_a_desktop(onecard: Command) -> None:
    typed = ("plan", "-", *ON_A_4070, "--batch_size=16", "--gradient_accumulation_steps=32")
    shown = onecard(*typed, stdin=WIDE).stdout
    assert shown.startswith("nanoGPT  does not fit beside a desktop: needs 11,252 MiB, about 9,900 are free")
    nanogpt = onecard(*typed, "--json", stdin=WIDE).json["trainers"]["nanogpt"]
    assert (nanogpt["fits"], nanogpt["fits_with_desktop"]) == (True, False)


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        (["--batch_size=16"], "; --gradient_accumulation_steps=32 keeps the 524,288 of CONFIG"),
        (["--block_size=512"], "; --gradient_accumulation_steps=128 keeps the 524,288 of CONFIG"),
        (["--batch_size=12"], "; --gradient_accumulation_steps=43 has 528,384, the nearest to the 524,288 of CONFIG"),
        (["--batch_size=16", "--gradient_accumulation_steps=32"], ""),
        (["--gradient_accumulation_steps=32"], ""),
        (["--n_layer=6"], ""),
    ],
)
def test_a_micro_batch_that_is_typed_says_which_accumulation_keeps_the_update(
    onecard: Command, typed: list[str], kept: str
) -> None:
    shown = " ".join(onecard("plan", "-", *ON_A_4070, *typed, stdin=WIDE).stdout.split())
    assert f"tokens{kept} run 5,000 updates" in shown


def test_a_line_says_what_expandable_segments_would_save(onecard: Command) -> None:
    said = "expandable_segments would save "
    assert f"{said}570 MiB" in onecard("plan", "-", *ON_A_4070, stdin=WIDE).stdout
    tight = onecard("plan", "-", *ON_A_4070, "--batch_size=16", stdin=WIDE).stdout
    assert f"{said}nothing" in tight
    assert said not in onecard("plan", *ON_A_4070).stdout, "12 MiB are not worth a line"
    assert said not in onecard("plan", "-", *ON_A_4070, "--expandable_segments=True", stdin=WIDE).stdout
    listed = onecard("plan", "-", *ON_A_4070, "--batch_size=16", "--compile=False", stdin=WIDE).stdout
    assert "expandable segments in the allocator" in listed
    assert said not in listed


@pytest.mark.parametrize("key", ["epochs", "num_train_epochs"])
def test_epochs_are_told_in_updates_where_the_size_of_the_data_is_known(onecard: Command, work: Path, key: str) -> None:
    described_data(work / "data" / "mine", train=5_242_880, vocab_size=50_257)
    refused = onecard("plan", "-", *ON_A_4070, f"--{key}=3", stdin=CONFIG)
    assert (refused.code, "[unknown-key]" in refused.stderr) == (2, True)
    assert "fix: --max_iters=30 --lr_decay_iters=30   (3 epochs)" in refused.stderr
    absent = onecard("plan", "-", *ON_A_4070, f"--{key}=3", "--dataset=other", stdin=CONFIG).stderr
    assert (
        "fix: --max_iters=N, which is epochs x the tokens of other, whose size is not known here, / 524,288" in absent
    )
    for odd in ("x", "inf", "nan", "1e999", "-1"):
        assert onecard("plan", "-", *ON_A_4070, f"--{key}={odd}", stdin=CONFIG).code == 2


def test_a_context_that_the_weights_do_not_have_is_refused_as_train_does(onecard: Command) -> None:
    done = onecard("plan", "--init_from=gpt2", "--block_size=2048", "--gpu", "RTX 3090")
    assert (done.code, "[context-too-long]" in done.stderr) == (2, True)
    assert "--block_size=1024" in done.stderr


def test_no_run_is_proposed_for_data_whose_description_cannot_be_read(onecard: Command, tmp_path: Path) -> None:
    (tmp_path / "data" / "torn").mkdir(parents=True)
    np.zeros(10_000, dtype=np.uint16).tofile(tmp_path / "data" / "torn" / "train.bin")
    (tmp_path / "data" / "torn" / "meta.json").write_text("{torn")
    done = onecard("plan", "--dataset=torn", "--gpu", "RTX 4070", "--hours", "4", cwd=tmp_path)
    assert (done.code, "[data-unusable]" in done.stderr) == (2, True)
