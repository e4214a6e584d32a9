"""What a resumed run may change, typed or in its config.json: settings, the device, the place of its data."""

from __future__ import annotations

import json
import math
import shlex
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from onecard.cli.main import run  # noqa: E402
from onecard.config.schema import RunConfig  # noqa: E402
from onecard.inputs.resume import as_it_runs  # noqa: E402
from onecard.runs import checkpoint_state  # noqa: E402
from onecard.runs.checkpoint_state import MadeUnder  # noqa: E402
from onecard.runs.folder import load_run  # noqa: E402
from onecard.runs.records import Start  # noqa: E402
from onecard.train.checkpoint import IDENTITY_KEYS  # noqa: E402
from onecard.train.model import GPT  # noqa: E402
from tests.added_keys import in_copy  # noqa: E402

TINY = [
    *("--n_layer=1", "--n_head=1", "--n_embd=32", "--block_size=32", "--batch_size=4", "--device=cpu"),
    *("--gradient_accumulation_steps=2", "--warmup_iters=1", "--eval_interval=3", "--eval_iters=2"),
    *("--max_iters=3", "--lr_decay_iters=3"),
]


class Said(NamedTuple):
    """What a command answered."""

    code: int
    out: str
    err: str

    @property
    def fix(self) -> list[str]:
        """The command that an error of three lines offers."""
        assert self.err.count("\n") == 3, self.err
        return shlex.split(self.err.splitlines()[2].partition("fix: onecard ")[2].partition("   (")[0])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    """A run of 3 updates on a small text of its own, and that text's tokens beside it."""
    place = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(place)
        patched.setenv("ONECARD_HOME", str(home))
        Path("text.txt").write_text(
            "".join(f"{number} is a number, and so is {number**3}.\n\n" for number in range(9000))
        )
        prepare = ["data", "prepare", "text.txt", "--out", "data/numbers", "--tokenizer=characters", "--workers", "1"]
        assert run(prepare) == 0
        assert run(["train", *TINY, "--dataset=numbers", "--out_dir=r"]) == 0
    return place


@pytest.fixture
def trained(tmp_path: Path, home: Path, finished: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONECARD_HOME", str(home))
    return Path("r")


@pytest.fixture
def onecard(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: str) -> Said:
        capsys.readouterr()
        return Said(run(list(arguments)), *capsys.readouterr())

    return call


def edit(path: Path, **changes: object) -> None:
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | changes))


# What config.json says otherwise than the checkpoint


@pytest.mark.parametrize(
    ("key", "was", "value"),
    [
        ("learning_rate", 2e-3, 0.5),
        ("seed", 1337, 1),
        ("dropout", 0.0, 0.1),
        ("weight_decay", 0.1, 0.0),
        ("beta1", 0.9, 0.5),
    ],
)
def test_what_a_flag_may_not_change_config_json_may_not_either(
    onecard: Any, trained: Path, key: str, was: float, value: float
) -> None:
    edit(trained, **{key: value})
    said = onecard("train", "--resume", "r", "--max_iters=5")
    assert said.code == 2
    assert f"{key}={value} (was {was})" in said.err
    assert "r/config.json was edited" in said.err
    again = onecard(*said.fix, "--max_iters=5")
    assert again.code == 0, again.err
    assert load_run(trained).config[key] == was


def test_another_update_is_refused_and_another_micro_batch_is_reported(onecard: Any, trained: Path) -> None:
    edit(trained, batch_size=8)
    said = onecard("train", "--resume", "r", "--max_iters=5")
    assert said.code == 2
    assert "from 8 sequences per update to 16" in said.err
    edit(trained, batch_size=3)
    said = onecard("train", "--resume", "r", "--max_iters=5")
    assert "--batch_size=4" in said.fix
    edit(trained, batch_size=8, gradient_accumulation_steps=1)
    said = onecard("train", "--resume", "r", "--max_iters=5")
    assert said.code == 0, said.err
    assert "changed since step-00000003: gradient_accumulation_steps=1 (was 2), batch_size=8 (was 4)" in said.err
    assert [step.tokens for step in load_run(trained).steps] == [256, 512, 768, 1024, 1280]


def test_of_many_edits_the_fix_undoes_all(onecard: Any, trained: Path) -> None:
    edit(trained, seed=1, batch_size=3, beta2=0.5, eval_interval=2)
    said = onecard("train", "--resume", "r", "--max_iters=5", "--seed=1337")
    assert said.code == 2
    done = onecard(*said.fix, "--max_iters=5")
    assert done.code == 0, done.err
    assert "eval_interval=2 (was 3)" in done.err
    assert [load_run(trained).config[key] for key in ("seed", "batch_size", "beta2")] == [1337, 4, 0.99]


def test_a_fix_keeps_what_was_typed_and_may_change(onecard: Any, trained: Path) -> None:
    said = onecard("train", "--resume", "r", "--batch_size=2", "--max_iters=5", "--log_interval=3")
    assert sorted(said.fix[3:]) == [
        *("--batch_size=2", "--gradient_accumulation_steps=4", "--log_interval=3", "--max_iters=5")
    ]
    assert onecard(*said.fix).code == 0
    assert load_run(trained).last_step == 5
    said = onecard("train", "--resume", "r", "--seed=7", "--max_iters=7", "--batch_size=3")
    assert said.fix == ["train", "--resume", "r", "--max_iters=7"]
    said = onecard("train", "--resume", "r", "--seed=7", "--max_iters=2")
    assert said.fix == ["train", "--resume", "r"], "an end before the step reached is no fix"
    said = onecard("train", "--resume", "r", "--max_iters=2", "--log_interval=2")
    assert said.fix == ["train", "--resume", "r", "--log_interval=2", "--max_iters=10", "--lr_decay_iters=10"]
    assert "--resume r --log_interval=2 --max_iters=10" in onecard("train", "--resume", "r", "--log_interval=2").err


@pytest.mark.parametrize("how", [["--resume", "r"], ["--init_from=resume", "--out_dir=r"]])
def test_evaluating_a_run_is_a_new_run_from_its_weights(onecard: Any, trained: Path, how: list[str]) -> None:
    said = onecard("train", *how, "--eval_only=True")
    assert said.fix == ["train", "r", "--init_from=r", "--eval_only=True", "--out_dir=r-2"]
    done = onecard(*said.fix)
    assert done.code == 0, done.err
    assert load_run("r-2").evals[-1].val_loss == load_run("r").evals[-1].val_loss
    assert not load_run("r-2").steps


def test_an_unchanged_config_is_not_mentioned(onecard: Any, trained: Path) -> None:
    said = onecard("train", "--resume", "r", "--max_iters=5", "--lr_decay_iters=3")
    assert said.code == 0
    assert "has changed" not in said.err


def test_a_checkpoint_of_an_older_version_goes_on_as_it_did(onecard: Any, trained: Path) -> None:
    state = trained / "checkpoints" / "step-00000003" / checkpoint_state.STATE
    content = json.loads(state.read_text())
    del content["sha256"]
    content["config"] = {key: content["config"][key] for key in IDENTITY_KEYS}
    state.write_text(json.dumps(content | {"sha256": checkpoint_state.digest(content)}))
    edit(trained, learning_rate=0.5)
    assert onecard("train", "--resume", "r", "--max_iters=5").code == 0


def test_a_run_with_keys_that_are_gone_goes_on(onecard: Any, trained: Path) -> None:
    """As earlier versions wrote it: config.json, the start record and the checkpoint say param_dtype and others."""
    former = {"recipe": None, "param_dtype": "float32", "offload": "none", "tokenizer": None}
    state = trained / "checkpoints" / "step-00000003" / checkpoint_state.STATE
    content = json.loads(state.read_text())
    del content["sha256"]
    content["config"] |= former
    state.write_text(json.dumps(content | {"sha256": checkpoint_state.digest(content)}))
    edit(trained, **former)
    records = [json.loads(line) for line in (trained / "records.jsonl").read_text().splitlines()]
    records[0]["config"] |= former
    (trained / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    said = onecard("train", "--resume", "r", "--max_iters=5")
    assert said.code == 0, said.err
    assert not any(key in said.err for key in former)
    resumed = load_run(trained).config
    assert resumed.pop("recipe") == "nanogpt", "without one, as None said then"
    assert not resumed.keys() & former.keys()
    assert onecard("doctor", "r").code in (0, 1)
    again = onecard("train", "r", "--out_dir=again", "--max_iters=3")
    assert again.code == 0, again.err
    assert not any(key in again.err for key in former)


# Keys added to the schema, a line each (tests/added_keys.py)

RESUMED = """
import contextlib, io, json
from onecard.cli.main import run

def said(*words):
    with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.redirect_stdout(io.StringIO()):
        code = run(list(words))
    return [code, err.getvalue()]

flags = ["--made_penalty=0.5", "--made_note=first"]
print(json.dumps([
    said("train", *%s, "--dataset=numbers", "--out_dir=made", *flags),
    said("train", "--resume", "made", "--max_iters=4", "--made_note=second"),
    said("train", "--resume", "made", "--max_iters=5", "--made_cache=1GiB"),
    said("train", "--resume", "made", "--max_iters=6", "--made_penalty=0.25"),
]))
"""


def test_an_added_key_follows_the_rule_on_its_line(trained: Path, tmp_path: Path) -> None:
    begun, noted, cached, refused = in_copy(tmp_path, RESUMED % TINY)
    assert (begun[0], noted[0], cached[0], refused[0]) == (0, 0, 0, 2), refused
    assert "made_note" not in noted[1]
    assert "made_cache=1073741824 (was None): the same mathematics; rounding may differ" in cached[1]
    assert "a resumed run cannot change made_penalty=0.25 (was 0.5)" in refused[1]
    assert load_run("made").config["made_note"] == "second"


# A config.json that is damaged or gone


@pytest.mark.parametrize("content", [None, "{", '{"n_layer": "x"}'])
def test_settings_that_are_lost_are_read_from_the_last_start(onecard: Any, trained: Path, content: str | None) -> None:
    before = load_run(trained).config
    config = trained / "config.json"
    if content is None:
        config.unlink()
    else:
        config.write_text(content)
    said = onecard("train", "--resume", "r", "--max_iters=5")
    if content and "n_layer" in content:
        assert said.code == 2
        command = said.err.splitlines()[2].partition("fix: ")[2].partition("   (")[0]
        assert command == "rm r/config.json"
        config.unlink()
        said = onecard("train", "--resume", "r", "--max_iters=5")
    assert said.code == 0, said.err
    assert "r/config.json is damaged or gone: the settings are those of the last start record" in said.err
    assert json.loads(config.read_text()) == {**before, "max_iters": 5}, "written anew"
    assert "damaged or gone" not in onecard("train", "--resume", "r", "--max_iters=6").err


# The device


def test_a_run_of_another_machine_goes_on_with_what_is_here(
    onecard: Any, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    edit(trained, device="cuda")
    text = onecard("sample", "r", "--prompt", "1", "--length", "5")
    assert text.code == 0, text.err
    assert "device=cuda is not available: using cpu" in text.err
    stuck = onecard("train", "--resume", "r", "--max_iters=5")
    assert stuck.code == 3
    assert "use the CPU: --device=cpu" in stuck.err
    said = onecard("train", "--resume", "r", "--max_iters=5", "--device=auto")
    assert said.code == 0, said.err
    assert "device=auto (was cpu)" in said.err
    assert load_run(trained).last_step == 5


# The place of the data


def test_a_run_goes_on_where_its_data_were_moved_to(onecard: Any, trained: Path) -> None:
    Path("data/numbers").rename("elsewhere")
    lost = onecard("train", "--resume", "r", "--max_iters=5")
    assert lost.code == 2
    assert (
        "fix: onecard train --resume r --max_iters=5 --dataset=PATH   (PATH is where its token files are)" in lost.err
    )
    assert "python-stdlib" not in lost.err
    said = onecard("train", "--resume", "r", "--max_iters=5", "--dataset=elsewhere")
    assert said.code == 0, said.err
    assert "dataset=elsewhere (was numbers): its token files are the same" in said.err
    assert load_run(trained).config["dataset"] == "elsewhere"
    assert onecard("train", "--resume", "r", "--max_iters=6").code == 0, "the next part knows it"


def test_a_fix_leaves_the_new_place_of_the_same_data_in_config_json(onecard: Any, trained: Path) -> None:
    Path("data/numbers").rename("elsewhere")
    edit(trained, dataset="elsewhere", seed=1)
    said = onecard("train", "--resume", "r", "--max_iters=5")
    assert said.code == 2
    assert said.fix == ["train", "--resume", "r", "--max_iters=5", "--seed=1337"]
    again = onecard(*said.fix, "--max_iters=5")
    assert again.code == 0, again.err
    assert [load_run(trained).config[key] for key in ("dataset", "seed")] == ["elsewhere", 1337]


def test_other_token_files_are_refused_wherever_they_lie(onecard: Any, trained: Path) -> None:
    shutil.copytree("data/numbers", "other")
    tokens = next(Path("other").glob("*train*.bin"))
    tokens.write_bytes(bytes(100) + tokens.read_bytes()[100:])
    for changed in ("--dataset=other", "--dataset=python-stdlib"):
        said = onecard("train", "--resume", "r", "--max_iters=5", changed)
        assert (said.code, said.err.count("\n")) == (2, 3)
        assert said.err.splitlines()[0].endswith("(was numbers)  [resume-mismatch]")
    missing = onecard("train", "--resume", "r", "--max_iters=5", "--dataset=nowhere")
    assert "there is no dataset nowhere" in missing.err
    assert "--dataset=PATH" in missing.err


def test_data_that_has_grown_is_refused_with_what_works(onecard: Any, trained: Path) -> None:
    prepare = ["data", "prepare", "text.txt", "--out", "data/g", "--tokenizer=bytes", "--workers", "1"]
    prepare += ["--val-share", "0.3", "--tokens"]
    assert onecard(*prepare, "200k").code == 0
    assert onecard("train", *TINY, "--dataset=g", "--out_dir=g", "--lr_decay_iters=9").code == 0
    assert onecard(*prepare, "400k").code == 0
    said = onecard("train", "--resume", "g", "--max_iters=5")
    assert "the data of g have changed since it was trained on them  [resume-mismatch]" in said.err
    assert "the token files in data/g are not those of step-00000003" in said.err
    assert said.fix == ["train", "g", "--init_from=g", "--out_dir=g-2"]
    done = onecard(*said.fix)
    assert done.code == 0, done.err
    assert "began from g" in done.out
    assert load_run("g-2").config["learning_rate"] == load_run("g").config["learning_rate"]


def test_sampling_and_exporting_need_no_data(onecard: Any, trained: Path) -> None:
    shutil.rmtree("data")
    text = onecard("sample", "r", "--prompt", "1", "--length", "5")
    assert text.code == 0, text.err
    assert text.out.startswith("1")
    done = onecard("export", "r", "--to", "hf", "--out", "hf")
    assert done.code == 0
    assert "without a tokenizer" not in done.err
    assert Path("hf/tokenizer.json").is_file()


# Checkpoints that are gone, folders that are not meant


def test_a_finished_run_without_checkpoints_begins_again(onecard: Any, trained: Path) -> None:
    shutil.rmtree(trained / "checkpoints")
    lost = onecard("sample", "r")
    assert (lost.code, lost.err.count("\n")) == (2, 3)
    assert "gone" in lost.err
    said = onecard(*lost.fix)
    assert said.code == 0, said.err
    assert "starts again at step 0" in said.err
    again = load_run(trained)
    assert [step.step for step in again.steps] == [1, 2, 3]
    assert [checkpoint.step for checkpoint in again.checkpoints] == [3]


@pytest.mark.parametrize("flag", ["--out_dir=x", "--init_from=gpt2"])
def test_another_run_beside_resume_is_refused(onecard: Any, trained: Path, flag: str) -> None:
    said = onecard("train", "--resume", "r", "--max_iters=5", flag)
    assert (said.code, said.err.count("\n")) == (2, 3)
    assert f"{flag} would be ignored" in said.err
    assert said.fix == ["train", "--resume", "r", "--max_iters=5"]
    assert onecard("train", "--resume", "r", "--max_iters=4", "--out_dir=./r").code == 0
    starts = [record for record in load_run(trained).history.records if isinstance(record, Start)]
    assert len(starts) == 2


# Another vocabulary


def test_a_run_is_not_fine_tuned_on_tokens_of_another_tokenizer(onecard: Any, trained: Path) -> None:
    tuned = [flag for flag in TINY if "n_" not in flag and "block" not in flag]
    said = onecard("train", *tuned, "--init_from=r", "--dataset=python-stdlib", "--out_dir=other")
    assert (said.code, said.err.count("\n")) == (2, 3), said.err
    assert "[other-tokenizer]" in said.err
    assert "characters (25)" in said.err
    assert "bytes (256)" in said.err
    assert not Path("other").exists()
    same = onecard("train", *tuned, "--init_from=r", "--dataset=numbers", "--out_dir=same")
    assert same.code == 0, same.err
    assert "vocabulary" not in same.err
    assert "began from r" in same.out
    assert "resumed" not in same.out


def test_where_a_tokenizer_is_not_known_a_much_smaller_vocabulary_is_told(onecard: Any, trained: Path) -> None:
    big = onecard("train", *TINY, "--vocab_size=1000", "--dataset=numbers", "--out_dir=big")
    assert big.code == 0
    (Path("big") / "vocabulary.json").unlink()
    edit(Path("big"), dataset="gone")
    tuned = [flag for flag in TINY if "n_" not in flag and "block" not in flag]
    said = onecard("train", *tuned, "--init_from=big", "--dataset=numbers", "--out_dir=other")
    assert said.code == 0, said.err
    assert "numbers has a vocabulary of 25, and big was trained with 1,000" in said.err


def test_a_loss_that_is_no_number_at_the_end_is_told_with_its_first_step(onecard: Any, trained: Path) -> None:
    fatal = ["--learning_rate=1e10", "--grad_clip=0", "--warmup_iters=0", "--max_iters=5", "--decay_lr=False"]
    said = onecard("train", *TINY, *fatal, "--dataset=numbers", "--out_dir=d")
    assert said.code == 2
    first = next(step.step for step in load_run("d").steps if not math.isfinite(step.loss))
    assert f"the loss is NaN or infinite since step {first}  [diverged]" in said.err


# A new run where there is one already


DATA = "--dataset=numbers"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["--max_iters=5"], ["--max_iters=5"]),
        (["--max_iters=5", "--log_interval=2"], ["--max_iters=5", "--log_interval=2"]),
        (["--max_iters=5", "--batch_size=2", "--gradient_accumulation_steps=4"],) * 2,
        (["--max_iters=5", "--profile", "the trace.json"], ["--max_iters=5", "--profile", "the trace.json"]),
    ],
)
def test_a_new_run_that_a_resume_would_be_too_is_offered_the_resume_with_what_was_typed(
    onecard: Any, trained: Path, typed: list[str], offered: list[str]
) -> None:
    said = onecard("train", *TINY, DATA, "--out_dir=r", *typed)
    assert said.code == 2
    assert said.err.splitlines()[0].endswith("[run-exists]")
    assert said.fix[:3] == ["train", "--resume", "r"]
    assert sorted(said.fix[3:]) == sorted(offered)
    assert "--out_dir=r-2" in said.err
    assert onecard(*said.fix).code == 0
    assert load_run(trained).last_step == 5


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["--n_embd=64", "--max_iters=5"], "cannot change n_embd=64 (was 32)"),
        (["--batch_size=2", "--max_iters=5"], "cannot change batch_size=2 (was 4)"),
        (["--init_from=r", "--max_iters=5"], "cannot change init_from=r (was scratch)"),
        ([], "--resume r --max_iters=6 --lr_decay_iters=6)"),  # it is finished: a resume would do nothing
        (["--max_iters=2", "--lr_decay_iters=2"], "--resume r --lr_decay_iters=6 --max_iters=6)"),
    ],
)
def test_a_new_run_that_a_resume_would_not_be_is_offered_a_folder_with_all_that_was_typed(
    onecard: Any, trained: Path, typed: list[str], words: str
) -> None:
    before = (trained / "records.jsonl").read_bytes()
    said = onecard("train", *TINY, DATA, "--out_dir=r", *typed)
    assert said.code == 2
    assert words in said.err
    assert said.fix == ["train", *TINY, DATA, *typed, "--out_dir=r-2"]
    assert onecard(*said.fix).code == 0
    assert load_run("r-2").last_step == (int(typed[-1].rpartition("=")[2]) if typed else 3)
    assert (trained / "records.jsonl").read_bytes() == before


def test_a_config_and_its_options_are_kept_too(onecard: Any, trained: Path) -> None:
    Path("my config.py").write_text("".join(f"{flag[2:]}\n" for flag in TINY if "device" not in flag))
    first = ["train", "my config.py", "--device=cpu", DATA]
    assert onecard(*first).code == 0
    said = onecard(*first, "--seed=7", "--profile", "the trace.json")
    options = ["--profile", "the trace.json", "--device=cpu", DATA, "--seed=7"]
    assert said.fix == ["train", "my config.py", *options, "--out_dir=runs/my-config-2"]


def test_of_a_run_whose_config_is_damaged_only_a_new_one_is_offered(onecard: Any, trained: Path) -> None:
    edit(trained, n_layer="x")
    said = onecard("train", *TINY, DATA, "--out_dir=r")
    assert said.fix == ["train", *TINY, DATA, "--out_dir=r-2"]
    assert "--resume" not in said.err


def test_a_device_that_is_not_here_is_told_before_a_run_that_is(onecard: Any, trained: Path) -> None:
    missing = "mps" if torch.cuda.is_available() else "cuda"
    said = onecard("train", *TINY, DATA, "--out_dir=r", f"--device={missing}")
    assert (said.code, said.err.splitlines()[0][-8:]) == (3, "[no-gpu]")
    assert onecard("train", *TINY, DATA, "--out_dir=new", f"--device={missing}").code == 3
    assert onecard("train", *TINY, DATA, "--out_dir=new", "--device=abacus").code == 2
    assert not Path("new").exists()


# A folder that is no run


@pytest.mark.parametrize("to", ["hf", "nanogpt"])
def test_a_model_of_another_program_is_not_resumed_but_offered_to_be_imported(
    onecard: Any, trained: Path, to: str
) -> None:
    assert onecard("export", "r", "--to", to, "--out", "their model").code == 0
    before = sorted(path.name for path in Path("their model").iterdir())
    said = onecard("train", "--resume", "their model", "--max_iters=5")
    assert said.code == 2
    assert said.err.splitlines()[0].endswith("[no-such-run]")
    assert said.fix == ["import", "their model"]
    assert sorted(path.name for path in Path("their model").iterdir()) == before
    assert onecard(*said.fix).code == 0


@pytest.mark.parametrize("name", ["nowhere", "text.txt", "data", "x" * 300])
def test_what_no_run_can_be_is_three_lines(onecard: Any, trained: Path, name: str) -> None:
    said = onecard("train", "--resume", name)
    assert (said.code, said.err.count("\n")) == (2, 3)
    assert said.err.splitlines()[0].endswith("[no-such-run]")


# Checkpoints that are not there


def test_a_run_whose_checkpoints_are_gone_says_so_before_it_begins_again(trained: Path, onecard: Any) -> None:
    shutil.rmtree(trained / "checkpoints")
    done = onecard("train", "--resume", "r", "--max_iters=4", "--lr_decay_iters=4")
    assert done.code == 0
    assert "r was finished, and its checkpoints are gone: it starts again at step 0" in done.err
    lines = (trained / "records.jsonl").read_text().splitlines()
    kept = [line for line in lines if json.loads(line)["kind"] != "end"]  # as if it had been killed
    (trained / "records.jsonl").write_text("\n".join(kept) + "\n")
    shutil.rmtree(trained / "checkpoints")
    done = onecard("train", "--resume", "r")
    assert "r had reached step 4, and its checkpoints are gone: it starts again at step 0" in done.err


@pytest.mark.parametrize("arguments", [("--resume", "r"), (*TINY, "--dataset=numbers", "--out_dir=r")])
def test_checkpoints_on_a_disk_that_is_not_mounted_are_waited_for(
    trained: Path, onecard: Any, arguments: tuple[str, ...]
) -> None:
    (trained / "checkpoints").rename("disk")
    (trained / "checkpoints").symlink_to("../unmounted")
    before = {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()}
    refused = onecard("train", *arguments)
    assert refused.code == 3
    assert "r/checkpoints is a link to ../unmounted, which does not exist" in refused.err
    assert {path: path.read_bytes() for path in trained.rglob("*") if path.is_file()} == before
    (trained / "checkpoints").unlink()
    (trained / "checkpoints").symlink_to("../disk")
    assert onecard("train", "--resume", "r", "--max_iters=4").code == 0


def test_an_empty_folder_with_a_checkpoints_name_is_no_step_reached(trained: Path, onecard: Any) -> None:
    (trained / "checkpoints" / "step-00000070").mkdir()
    assert onecard("train", "--resume", "r", "--max_iters=4").code == 0
    assert load_run("r").last_step == 4


def test_another_project_of_weights_and_biases_may_be_named(trained: Path, onecard: Any) -> None:
    done = onecard("train", "--resume", "r", "--max_iters=4", "--wandb_project=another")
    assert done.code == 0, done.err


def test_the_plan_of_a_resumed_run_is_of_the_micro_batch_it_goes_on_with(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = RunConfig(batch_size=8, gradient_accumulation_steps=6)
    left: list[Any] = [None, (8, 8), (8, 4), (8, 5), (4, 2)]
    found = []
    for micro_batches in left:
        made = MadeUnder(name="step-00000003", config={}, data_fingerprint=None, micro_batches=micro_batches)
        monkeypatch.setattr("onecard.runs.checkpoint_state.made_under", lambda _, made=made: made)
        planned = as_it_runs(asked, load_run(trained))
        found.append((planned.batch_size, planned.gradient_accumulation_steps))
    assert found == [(8, 6), (8, 6), (4, 12), (5, 10), (8, 6)], "one that is asked for anew is taken"


# What changes how an update is computed, and not what it learns


def resumed_losses(onecard: Any, run: Path, *typed: str) -> tuple[list[float], str]:
    """The losses of the updates after a resume of the run of 3, and what was said."""
    copy = Path(f"{run}-copy-{len(list(Path().iterdir()))}")
    shutil.copytree(run, copy)
    said = onecard("train", "--resume", str(copy), "--max_iters=6", "--lr_decay_iters=6", *typed)
    assert said.code == 0, said.err
    return [step.loss for step in load_run(copy).steps if step.step > 3], said.err


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("--grad_checkpoint=full", "grad_checkpoint=full (was none): the same mathematics"),
        ("--grad_checkpoint=selective", "grad_checkpoint=selective (was none): the same mathematics"),
        ("--loss_chunk=7", "loss_chunk=7 (was None): the same mathematics"),
        ("--compile=False", "compile=False (was True): the same mathematics"),
        ("--eval_batch_size=1", "eval_batch_size=1 (was None): the same mathematics"),
    ],
)
def test_how_an_update_is_computed_may_change_and_the_losses_stay(
    onecard: Any, trained: Path, typed: str, said: str
) -> None:
    before, silent = resumed_losses(onecard, trained)
    again, _ = resumed_losses(onecard, trained)
    assert again == before, "unchanged, a resume is bit for bit the same"
    assert "mathematics" not in silent
    after, words = resumed_losses(onecard, trained, typed)
    assert after == pytest.approx(before, rel=1e-5)
    (line,) = [line for line in words.splitlines() if said in line]
    assert line.endswith("rounding may differ")


def test_another_memory_limit_changes_nothing(onecard: Any, trained: Path) -> None:
    before, _ = resumed_losses(onecard, trained)
    after, words = resumed_losses(onecard, trained, "--memory_limit=2GiB")
    assert after == before
    assert "memory_limit=2147483648 (was None): the same mathematics" in words


def test_changes_are_kept_for_the_next_resume(onecard: Any, trained: Path) -> None:
    assert onecard("train", "--resume", "r", "--max_iters=5", "--grad_checkpoint=full").code == 0
    assert load_run(trained).config["grad_checkpoint"] == "full"
    assert "grad_checkpoint" not in onecard("train", "--resume", "r", "--max_iters=6").err


def test_what_is_learned_still_may_not_change(onecard: Any, trained: Path) -> None:
    said = onecard("train", "--resume", "r", "--max_iters=5", "--grad_checkpoint=full", "--dropout=0.1")
    assert said.code == 2
    assert said.fix == ["train", "--resume", "r", "--max_iters=5", "--grad_checkpoint=full"]


@pytest.mark.parametrize(
    ("typed", "offered"), [([], ["--grad_checkpoint=full"]), (["--grad_checkpoint=full"], [])], ids=["none", "full"]
)
def test_where_one_sequence_does_not_fit_a_resume_with_recomputation_is_offered(
    onecard: Any, trained: Path, monkeypatch: pytest.MonkeyPatch, typed: list[str], offered: list[str]
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    with monkeypatch.context() as patch:
        patch.setattr(GPT, "loss", full)
        said = onecard("train", "--resume", "r", "--max_iters=5", "--lr_decay_iters=5", *typed)
    assert said.code == 3
    assert "training on one sequence at a time does not fit in memory; the run is saved at step 3" in said.err
    assert "with batch 2: continuing with 1" in said.out
    assert ("--resume with --grad_checkpoint=full needs less memory" in said.out) == bool(offered)
    fix = said.err.splitlines()[-1].partition("onecard ")[2].partition("   (")[0]
    assert shlex.split(fix) == ["train", "--resume", "r", *offered]
    done = onecard(*shlex.split(fix))
    assert done.code == 0, done.err
    assert load_run(trained).last_step == 5


def test_an_evaluation_that_does_not_fit_is_not_offered_what_only_training_needs(
    onecard: Any, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(GPT, "token_losses", full)
    said = onecard("train", "--resume", "r", "--max_iters=5")
    assert said.code == 3
    assert "evaluating one sequence at a time does not fit" in said.err
    assert "grad_checkpoint" not in said.err
