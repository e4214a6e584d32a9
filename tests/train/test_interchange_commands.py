"""onecard import, export and init_from as a user types them."""

from __future__ import annotations

import io
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")
transformers = pytest.importorskip("transformers", reason="needs transformers: pip install 'onecard[dev]'")
constants = pytest.importorskip("huggingface_hub.constants", reason="needs huggingface_hub")

from safetensors import SafetensorError  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from onecard.cli.main import run  # noqa: E402
from onecard.config.schema import RunConfig  # noqa: E402
from onecard.files import HALF_WRITTEN  # noqa: E402
from onecard.inputs import hf_hub  # noqa: E402
from onecard.runs.checkpoint_state import MODEL, OPTIMIZER, STATE  # noqa: E402
from onecard.runs.folder import load_run  # noqa: E402
from onecard.runs.records import Start  # noqa: E402
from onecard.train import checkpoint_files  # noqa: E402
from onecard.train.interchange import read_run, read_snapshot  # noqa: E402
from onecard.train.model import GPT  # noqa: E402
from tests.loopback_models import ModelHub, serving  # noqa: E402

TINY = [
    *("--n_layer=2", "--n_head=2", "--n_embd=32", "--block_size=32", "--batch_size=4", "--device=cpu"),
    *("--warmup_iters=2", "--eval_interval=4", "--eval_iters=2", "--max_iters=8", "--lr_decay_iters=8"),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, and a hub cache and login of nobody's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONECARD_HOME", str(home))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("HF_TOKEN", raising=False)
    return tmp_path


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setenv("ONECARD_HOME", str(home))
        assert run(["train", *TINY, "--out_dir=r"]) == 0
    return folder / "r"


@pytest.fixture
def trained(finished: Path, here: Path) -> Path:
    """A run that is finished, in the folder to work in."""
    shutil.copytree(finished, here / "r", symlinks=True)
    return Path("r")


class Said:
    """What a command printed."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def error(self) -> str:
        """The name of the error, of three lines."""
        lines = self.err.splitlines()
        assert len(lines) == 3, self.err
        found = re.search(r"\[([a-z0-9-]+)\]$", lines[0])
        assert found
        return found[1]

    @property
    def fix(self) -> list[str]:
        """The command of ours that an error offers."""
        assert self.error
        return shlex.split(self.err.splitlines()[2].partition("fix: onecard ")[2].partition("   (")[0])

    @property
    def next(self) -> list[str]:
        """The commands to paste, without what is said of them."""
        return [line.partition("   (")[0] for line in re.findall("^next: (.*)$", self.err, re.MULTILINE)]


@pytest.fixture
def onecard(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*arguments: str) -> Said:
        capsys.readouterr()
        code = run(list(arguments))
        return Said(code, *capsys.readouterr())

    return call


def gpt2(folder: Path, *, vocab_size: int = 256, n_positions: int = 64) -> Path:
    """A small GPT-2 as transformers saves it."""
    torch.manual_seed(0)
    sizes = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": n_positions, "vocab_size": vocab_size}
    transformers.GPT2LMHeadModel(
        transformers.GPT2Config(**sizes, bos_token_id=None, eos_token_id=None)
    ).save_pretrained(folder)
    return folder


# There and back


def test_to_nanogpt_and_back_resumes_and_samples(onecard: Any, trained: Path) -> None:
    done = onecard("export", "r", "--to", "nanogpt", "--out", "out")
    assert done.code == 0
    assert "python sample.py --out_dir=" in done.err
    assert sorted(path.name for path in Path("out").iterdir()) == ["ckpt.pt", "config.py", "meta.pkl"]
    assert "put meta.pkl there" in done.err
    done = onecard("import", "out/ckpt.pt", "--json")
    assert done.code == 0
    said = json.loads(done.out)
    assert (said["schema"], said["run"], said["step"], said["moments"], said["notes"]) == (1, "runs/out", 8, True, [])
    assert said["val_loss"] == load_run("r").evals[-1].val_loss
    done = onecard("train", "--resume", "runs/out", "--max_iters=10")
    assert done.code == 0
    starts = [record for record in load_run("runs/out").records if isinstance(record, Start)]
    assert starts[-1].resumed_from == "checkpoints/step-00000008"
    assert load_run("runs/out").last_step == 10
    done = onecard("sample", "runs/out", "--prompt", "def ", "--length", "5")
    assert done.code == 0
    assert done.out.startswith("def ")


def test_a_folder_with_ckpt_pt_is_nanogpts_out_dir(onecard: Any, trained: Path) -> None:
    onecard("export", "r", "--to", "nanogpt", "--out", "out-mine")
    assert onecard("import", "out-mine").code == 0
    assert load_run("runs/out-mine").config["max_iters"] == 8


def test_to_hugging_face_writes_what_transformers_needs(onecard: Any, trained: Path) -> None:
    done = onecard("export", "r", "--to", "hf", "--json")
    said = json.loads(done.out)
    assert said["pushed_to"] is None
    assert said["files"] == [
        *("README.md", "config.json", "generation_config.json", "model.safetensors"),
        *("tokenizer.json", "tokenizer_config.json"),
    ]
    tokenizer = transformers.AutoTokenizer.from_pretrained(said["path"])
    model = transformers.AutoModelForCausalLM.from_pretrained(said["path"]).eval()
    tokens = tokenizer("def f(", return_tensors="pt")["input_ids"]
    greedy = model.generate(tokens, max_new_tokens=8, do_sample=False, pad_token_id=0)[0].tolist()
    sampled = onecard("sample", "r", "--prompt", "def f(", "--length", "8", "--temperature", "0").out
    assert tokenizer.decode(greedy) == sampled.removesuffix("\n")


def test_a_terminal_is_not_steered_by_what_a_model_says(
    onecard: Any, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = ("sample", "r", "--prompt", "\x1b[2J", "--length", "3")
    assert onecard(*typed).out.startswith("\x1b[2J")  # into a file, to the byte
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert onecard(*typed).out.startswith("\\x1b[2J")


def test_transformers_writes_a_text_by_the_printed_command(onecard: Any, trained: Path, capsys: Any) -> None:
    done = onecard("export", "r", "--to", "hf", "--out", "a place, 'mine'")
    python, option, code = shlex.split(done.next[0])
    assert (python, option) == ("python", "-c")
    exec(code, {})  # a text longer than the 32 positions would be an IndexError
    assert re.search(r"generated_text': ['\"]The", capsys.readouterr().out), "whichever quotes the text needs"
    Path("text.txt").write_text("".join(f"{number} and {number**3}.\n\n" for number in range(9000)))  # no T, no h
    letters = ["--tokenizer=characters", "--workers", "1"]
    assert onecard("data", "prepare", "text.txt", "--out", "data/numbers", *letters).code == 0
    assert onecard("train", *TINY, "--dataset=numbers", "--out_dir=n").code == 0
    exec(shlex.split(onecard("export", "n", "--to", "hf").next[0])[2], {})
    assert "generated_text': '" in capsys.readouterr().out


def test_the_model_card_tells_the_runs_facts(onecard: Any, trained: Path, tmp_path: Path) -> None:
    onecard("export", "r", "--to", "hf", "--out", "published")
    card = Path("published/README.md").read_text()
    last = load_run("r").evals[-1]
    assert card.startswith("---\nlibrary_name: transformers\n")
    assert f"{last.val_loss:.4f} ± {last.val_loss_error:.4f} nats per token" in card
    assert "| updates | 8 of 128 tokens |" in card
    assert "n_embd = 32" in card
    assert "trained on `python-stdlib` from scratch." in card
    assert str(tmp_path) not in card, "a card names no folder of somebody's machine"


def test_hugging_face_and_back_is_the_same_model(onecard: Any, trained: Path) -> None:
    onecard("export", "r", "--to", "hf", "--out", "published")
    assert onecard("import", "published", "--dataset=python-stdlib", *TINY[4:]).code == 0
    before, after = read_run(Path("r")), read_run(Path("runs/published"))
    assert before.shape == after.shape
    assert all(torch.equal(before.weights[name], after.weights[name]) for name in before.weights)
    assert after.step == 0
    typed = ("--prompt", "def ", "--length", "8", "--temperature", "0")
    texts = [onecard("sample", name, *typed).out for name in ("r", "runs/published")]
    assert texts[0] == texts[1]


def test_the_best_checkpoint_is_exported_where_asked_for(onecard: Any, trained: Path) -> None:
    onecard("train", "--resume", "r", "--max_iters=12", "--keep_checkpoints=3")
    marked = Path("r/checkpoints/best.json")
    marked.write_text(json.dumps(json.loads(marked.read_text()) | {"step": 8}))
    assert json.loads(onecard("export", "r", "--to", "nanogpt", "--best", "--json").out)["step"] == 8
    assert json.loads(onecard("export", "r", "--to", "nanogpt", "--json").out)["step"] == 12
    marked.unlink()
    assert onecard("export", "r", "--to", "nanogpt", "--best", "--out", "x").error == "no-best-checkpoint"


def test_the_checkpoint_that_is_named_is_exported(onecard: Any, trained: Path) -> None:
    def step(*which: str) -> int:
        out = str(Path("out", "-".join(which) or "none"))
        exported: int = json.loads(onecard("export", "r", "--to", "hf", "--out", out, "--json", *which).out)["step"]
        return exported

    kept = sorted(int(path.name.split("-")[1]) for path in Path("r/checkpoints").glob("step-*"))
    assert [step(), step("--checkpoint", "last"), step("--checkpoint", "best"), step("--best")] == [kept[-1]] * 4
    assert step("--checkpoint", str(kept[0])) == kept[0] < kept[-1]
    missing = onecard("export", "r", "--to", "hf", "--checkpoint", "5")
    assert (missing.error, "--checkpoint 4" in missing.err) == ("no-such-checkpoint", True)
    assert onecard("export", "r", "--to", "hf", "--best", "--checkpoint", "last").error == "usage"


def diverge(run: Path, step: int) -> None:
    """Make the weights of a checkpoint NaN, as a diverged run saves them: whole, with the right checksums."""
    folder = run / "checkpoints" / f"step-{step:08d}"
    state = json.loads((folder / STATE).read_text())
    files = {name: load_file(folder / name) for name in (MODEL, OPTIMIZER)}
    files[MODEL] = {name: torch.full_like(tensor, float("nan")) for name, tensor in files[MODEL].items()}
    shutil.rmtree(folder)
    said = {key: value for key, value in state.items() if key not in ("schema", "files", "sha256")}
    checkpoint_files.write(folder, files, said)


DIVERGED = [("sample", "r"), ("export", "r", "--to", "hf"), ("export", "r", "--to", "nanogpt"), ("import", "r")]


def test_weights_that_are_not_numbers_are_refused_with_the_best_ones(onecard: Any, trained: Path) -> None:
    onecard("train", "--resume", "r", "--max_iters=12", "--keep_checkpoints=3")
    marked = Path("r/checkpoints/best.json")
    marked.write_text(json.dumps({"step": 8, "val_loss": 3.25}))
    diverge(trained, 12)
    for arguments in DIVERGED:
        done = onecard(*arguments)
        assert (done.error, done.code, done.out) == ("weights-not-numbers", 2, ""), arguments
        assert "of step 12 of r" in done.err
        if arguments[0] != "import":
            assert "fix: --best   (step 8, with a validation loss of 3.2500)" in done.err
            assert onecard(*arguments, "--best").code == 0
        else:
            instead, and_then = re.findall(r"fix: onecard (.*), and start from (.*)   \(step 8,", done.err)[0]
            assert onecard(*instead.split()).code == 0
            assert onecard("import", and_then).code == 0
    marked.unlink()
    done = onecard("sample", "r")
    assert "fix: mv r/checkpoints/step-00000012 r/checkpoints/aside-step-00000012   (step-00000008, " in done.err
    shutil.rmtree("r/checkpoints/step-00000012")
    assert onecard("sample", "r", "--length", "3").code == 0


def test_without_a_better_checkpoint_the_doctor_is_named(onecard: Any, trained: Path) -> None:
    for folder in Path("r/checkpoints").glob("step-*"):
        if folder.name != "step-00000008":
            shutil.rmtree(folder)
    diverge(trained, 8)
    assert "fix: onecard doctor r " in onecard("sample", "r").err


def test_a_text_as_json_is_the_text_that_is_printed(onecard: Any, trained: Path) -> None:
    typed = ("sample", "r", "--prompt", "def f(", "--length", "7", "--sample-seed", "3")
    said = onecard(*typed, "--json")
    assert (said.code, said.err) == (0, "")
    found = json.loads(said.out)
    assert found["text"] + "\n" == onecard(*typed).out
    assert found["text"].startswith("def f(")
    assert found["texts"] == [found["text"]]
    del found["text"], found["texts"], found["tokens_of_texts"]  # see test_sample_command.py
    assert found == {
        "schema": 1,
        "run": "r",
        "step": 8,
        "prompt": "def f(",
        "tokens": 7,
        "temperature": 0.8,
        "top_k": 200,
        "seed": 3,
        "device": "cpu",
        "notes": [],
    }


# The model nanochat

MODERN = [*TINY, "--model=nanochat"]


@pytest.fixture(scope="module")
def finished_nanochat(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    folder = tmp_path_factory.mktemp("finished_nanochat")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.setenv("ONECARD_HOME", str(home))
        assert run(["train", *MODERN, "--out_dir=n"]) == 0
    return folder / "n"


@pytest.fixture
def nanochat(finished_nanochat: Path, here: Path) -> Path:
    """A run of nanochat that is finished, in the folder to work in."""
    shutil.copytree(finished_nanochat, here / "n", symlinks=True)
    return Path("n")


def test_a_nanochat_is_exported_with_its_logits_and_comes_back(onecard: Any, nanochat: Path) -> None:
    assert onecard("export", "n", "--to", "hf", "--out", "published").code == 0
    before = read_run(nanochat)
    ours = GPT(RunConfig.model_validate(before.shape)).eval()
    ours.load_state_dict(dict(before.weights))
    theirs = transformers.AutoModelForCausalLM.from_pretrained("published").eval()
    assert type(theirs).__name__ == "NanoChatForCausalLM"
    tokens_BT = torch.randint(256, (2, 32), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        logits = ours.logits(ours.hidden(tokens_BT))
        torch.testing.assert_close(logits, theirs(tokens_BT).logits, rtol=0, atol=1e-4)
    assert not torch.allclose(logits, logits.flip(0), atol=1e-2), "logits that are all alike would prove nothing"
    card = Path("published/README.md").read_text()
    assert "A nanochat-shaped language model" in card
    assert "tags: [nanochat, onecard]" in card
    assert "transformers >= 5.0" in card
    assert "position embeddings" not in card
    assert onecard("import", "published", "--dataset=python-stdlib", *TINY[4:]).code == 0
    after = read_run(Path("runs/published"))
    assert after.shape == before.shape
    assert all(torch.equal(before.weights[name], after.weights[name]) for name in before.weights)
    typed = ("--prompt", "def ", "--length", "8", "--temperature", "0")
    assert onecard("sample", "n", *typed).out == onecard("sample", "runs/published", *typed).out


def test_the_printed_command_makes_text_from_a_nanochat(onecard: Any, nanochat: Path, capsys: Any) -> None:
    done = onecard("export", "n", "--to", "hf")
    exec(shlex.split(done.next[0])[2], {})
    assert re.search(r"generated_text': ['\"]The", capsys.readouterr().out)


def test_a_run_begins_from_a_nanochat_whatever_model_it_names(onecard: Any, nanochat: Path) -> None:
    onecard("export", "n", "--to", "hf", "--out", "published")
    short = [*TINY[3:], "--block_size=16", "--init_from=published", "--out_dir=f"]
    assert onecard("train", *short).code == 0
    config = load_run("f").config
    assert [config[key] for key in ("model", "n_embd", "block_size")] == ["nanochat", 32, 16]


def test_nanogpt_gets_no_nanochat(onecard: Any, nanochat: Path) -> None:
    done = onecard("export", "n", "--to", "nanogpt")
    assert (done.code, done.error) == (2, "not-nanogpts-model")
    assert not (nanochat / "export").exists()
    assert onecard(*done.fix).code == 0
    Path("model.py").touch()
    done = onecard("bench", *MODERN, "--nanogpt", ".")
    assert (done.code, done.error) == (2, "not-nanogpts-model")


def test_a_text_longer_than_the_context_is_cut_to_it(onecard: Any, nanochat: Path) -> None:
    prompt = "def f(self, x, y, z): return x + y + z\n"
    assert len(prompt) > 32
    typed = ("--length", "6", "--temperature", "0")
    whole = onecard("sample", "n", "--prompt", prompt, *typed)
    last = onecard("sample", "n", "--prompt", prompt[-32:], *typed)
    assert whole.code == 0
    assert whole.out == prompt[:-32] + last.out


def test_a_resume_keeps_its_model(onecard: Any, nanochat: Path, trained: Path) -> None:
    for folder, other in (("n", "gpt2"), ("r", "nanochat")):
        done = onecard("train", "--resume", folder, "--max_iters=10", f"--model={other}")
        assert (done.code, done.error) == (2, "resume-mismatch")
        assert "model" in done.err.splitlines()[0]
    assert onecard("train", "--resume", "n", "--max_iters=10").code == 0


def of_before_models(run: Path) -> None:
    """Make the run one of a version that had GPT-2 alone: nothing names its model."""
    config = json.loads((run / "config.json").read_text())
    del config["model"]
    (run / "config.json").write_text(json.dumps(config))
    for folder in (run / "checkpoints").glob("step-*"):
        state = json.loads((folder / STATE).read_text())
        files = {name: load_file(folder / name) for name in (MODEL, OPTIMIZER)}
        shutil.rmtree(folder)
        del state["config"]["model"]
        said = {key: value for key, value in state.items() if key not in ("schema", "files", "sha256")}
        checkpoint_files.write(folder, files, said)


def test_a_run_that_names_no_model_is_of_gpt2(onecard: Any, trained: Path) -> None:
    of_before_models(trained)
    assert read_run(trained).shape["model"] == "gpt2"
    done = onecard("train", "--resume", "r", "--max_iters=10", "--model=nanochat")
    assert done.error == "resume-mismatch"
    assert onecard("plan", "--init_from=r").code == 0
    assert onecard("export", "r", "--to", "nanogpt").code == 0
    assert onecard("train", "--resume", "r", "--max_iters=10").code == 0


# nanoGPT's way of asking for a text

OURS = ("sample", "r", "--prompt", "def f(", "--length", "9", "--temperature", "0.9", "--top-k", "7")


@pytest.mark.parametrize(
    "typed",
    [
        ("r", "--start=def f(", "--max_new_tokens=9", "--temperature=0.9", "--top_k=7"),
        ("r", "--start", "def f(", "--max_new_tokens", "9", "--temperature", "0.9", "--top_k", "7"),
        ("--out_dir=r", "--start=FILE:prompt.txt", "--max_new_tokens=9", "--temperature=0.9", "--top_k=7"),
        (*OURS[1:], "--seed=1337", "--device=cpu", "--compile=False", "--dtype=float32", "--init_from=resume"),
        (*OURS[1:], "--num_samples=1"),
    ],
)
def test_what_is_typed_for_nanogpts_sample_gives_the_same_text(
    onecard: Any, trained: Path, typed: tuple[str, ...]
) -> None:
    Path("prompt.txt").write_text("def f(")
    expected, done = onecard(*OURS), onecard("sample", *typed)
    assert (done.code, done.err) == (0, "")
    assert done.out == expected.out


def test_several_texts_are_apart_and_each_can_be_made_again(onecard: Any, trained: Path) -> None:
    done = onecard(*OURS, "--num_samples=3", "--seed=5")
    alone = [onecard(*OURS, f"--seed={seed}").out for seed in (5, 6, 7)]
    assert done.out == "".join(f"{text}---------------\n" for text in alone)
    assert len(set(alone)) == 3
    said = json.loads(onecard(*OURS, "--num_samples", "3", "--sample-seed", "5", "--json").out)
    assert [f"{text}\n" for text in said["texts"]] == alone
    assert said["text"] == said["texts"][0]


def test_the_mark_between_texts_begins_a_text(onecard: Any, trained: Path) -> None:
    typed = ("sample", "r", "--length", "9")
    assert onecard(*typed, "--start=<|endoftext|>").out == onecard(*typed).out


@pytest.mark.parametrize(
    ("typed", "name", "fix"),
    [
        (["r", "--prompt", "a", "--start=b"], "usage", "leave --start out"),
        (["r", "--out_dir=r"], "usage", "leave --out_dir out"),
        (["r", "--seed=1", "--sample-seed", "2"], "usage", "leave --seed out"),
        ([], "usage", "onecard sample runs/default, or nanoGPT's --out_dir=runs/default"),
        (["r", "--start=FILE:not-there.txt"], "no-such-file", "name a file that exists"),
        (["r", "--init_from=gpt2-xl"], "unexpected-key", "onecard import gpt2-xl --download"),
        (["r", "--compile=True"], "unexpected-key", "leave --compile out"),
        (["r", "--dtype=bfloat16"], "unexpected-key", "leave --dtype out"),
        (["r", "--n_layer=3"], "unexpected-key", "onecard sample --help"),
        (["r", "--sed=3"], "unknown-key", "--seed=3"),
        (["r", "--seed=many"], "bad-value", "--seed=1337"),
        (["r", "--seed", "3"], "key-without-value", "onecard sample --seed=3"),
        (
            ["r", "--device=cuda:99"] if not torch.cuda.is_available() else ["r", "--device=mps"],
            "no-gpu",
            "install a torch with CUDA",
        ),
        (["r", "--num_samples=0"], "usage", "onecard sample --help"),
        (["--out_dir=out"], "nanogpt-folder", "onecard import out/ckpt.pt, then onecard sample runs/out"),
    ],
)
def test_what_sample_cannot_do_is_refused_with_what_to_type(
    onecard: Any, trained: Path, typed: list[str], name: str, fix: str
) -> None:
    Path("out").mkdir()
    Path("out/ckpt.pt").touch()
    done = onecard("sample", *typed)
    assert (done.error, done.out) == (name, "")
    assert f"fix: {fix}" in done.err or f"did you mean {fix}" in done.err


@pytest.mark.parametrize(("run", "name"), [("r", "weights-not-numbers"), ("nowhere", "no-such-run")])
def test_a_text_that_cannot_be_made_is_one_error_object(onecard: Any, trained: Path, run: str, name: str) -> None:
    diverge(trained, 8)
    said = onecard("sample", run, "--json")
    assert (said.code, said.err) == (2, "")
    assert json.loads(said.out)["error"]["name"] == name


def test_nothing_is_printed_before_what_was_typed_is_checked(onecard: Any, trained: Path) -> None:
    for option in (("--temperature", "-1"), ("--temperature", "nan"), ("--prompt", "")):
        done = onecard("sample", "r", *option)
        assert (done.error, done.code, done.out) == ("usage", 2, "")


def test_a_file_that_is_not_a_checkpoint_is_refused(onecard: Any) -> None:
    for name, content in (("hi.log", b"hello\n"), ("empty.pt", b""), ("config.py", b"n_layer = 2\n")):
        Path(name).write_bytes(content)
        done = onecard("import", name)
        assert done.error == "unreadable-checkpoint"
        assert "does not begin as the files that torch.save writes" in done.err
        assert f"onecard doctor {name}" in done.err
    Path("cut.pt").write_bytes(b"PK\x03\x04 and no more")
    assert "torch says" in onecard("import", "cut.pt").err


# Weights without data, and what is known of them


def published(onecard: Any, run_: str = "r") -> None:
    assert onecard("export", run_, "--to", "hf", "--out", "pub").code == 0


def test_weights_that_came_without_data_get_them_on_resume(onecard: Any, trained: Path) -> None:
    published(onecard)
    few = ["--batch_size=4", "--gradient_accumulation_steps=1", "--eval_iters=2", "--max_iters=2", "--device=cpu"]
    done = onecard("import", "pub", *few)
    assert done.next == ["onecard sample runs/pub"]
    assert onecard(*shlex.split(done.next[0])[1:], "--length", "3").code == 0
    told = "the dataset openwebtext is not here; to continue training: onecard train --resume runs/pub --dataset=PATH"
    assert told in done.err
    lost = onecard("train", "--resume", "runs/pub", "--max_iters=3")
    assert lost.fix == ["train", "--resume", "runs/pub", "--max_iters=3", "--dataset=PATH"]
    found = onecard(*lost.fix[:-1], "--dataset=python-stdlib")
    assert found.code == 0, found.err
    assert "the first data of this run" in found.err
    assert load_run("runs/pub").last_step == 3
    again = onecard("train", "--resume", "runs/pub", "--max_iters=4")
    assert again.code == 0, again.err
    Path("other").mkdir()
    for split in ("train", "val"):
        Path(f"other/{split}.bin").write_bytes(bytes(2000))
    assert onecard("train", "--resume", "runs/pub", "--max_iters=5", "--dataset=other").error == "resume-mismatch"


def test_first_data_of_another_tokenizer_are_refused(onecard: Any, trained: Path) -> None:
    published(onecard)
    onecard("import", "pub")
    Path("text.txt").write_text("".join(f"{number} is a number.\n\n" for number in range(9000)))
    letters = ["--tokenizer=characters", "--workers", "1"]
    assert onecard("data", "prepare", "text.txt", "--out", "data/numbers", *letters).code == 0
    before = sorted(path.name for path in Path("runs/pub").iterdir())
    refused = onecard("train", "--resume", "runs/pub", "--dataset=numbers")
    assert refused.code == 2
    assert "[other-tokenizer]" in refused.err
    assert "onecard train --resume runs/pub --dataset=PATH" in refused.err
    assert sorted(path.name for path in Path("runs/pub").iterdir()) == before


def test_a_second_import_is_offered_another_folder_with_all_that_was_typed(onecard: Any, trained: Path) -> None:
    onecard("export", "r", "--to", "nanogpt", "--out", "my out")
    assert onecard("import", "my out/ckpt.pt", "--dataset=gone").code == 0
    refused = onecard("import", "my out/ckpt.pt", "--dataset=python-stdlib", "--learning_rate=1e-4")
    assert refused.error == "run-exists"
    done = onecard(*refused.fix)
    assert done.code == 0, done.err
    assert load_run("runs/my out-2").config["learning_rate"] == 1e-4
    assert done.next == ["onecard train --resume 'runs/my out-2' --max_iters=16", "onecard sample 'runs/my out-2'"]
    for command in done.next:
        assert onecard(*shlex.split(command)[1:]).code == 0, command


def test_a_checkpoint_without_its_tokenizer_is_not_said_to_sample(onecard: Any, trained: Path) -> None:
    onecard("export", "r", "--to", "nanogpt", "--out", "out")
    done = onecard("import", "out", "--dataset=gone")
    assert done.next == []
    assert "no text can be sampled from it yet: the tokenizer of runs/out is not known" in done.err
    assert onecard("train", "--resume", "runs/out", "--dataset=python-stdlib", "--max_iters=9").code == 0
    assert onecard("sample", "runs/out", "--length", "3").code == 0, "its data brought the tokenizer"


def test_how_far_the_next_command_trains_is_said_where_nobody_chose_it(onecard: Any, trained: Path) -> None:
    published(onecard)
    told = "next: onecard train --resume runs/pub   (to step 600,000, nanoGPT's default; "
    assert told in onecard("import", "pub", "--dataset=python-stdlib").err
    chosen = onecard("import", "pub", "--dataset=python-stdlib", "--max_iters=7", "--out_dir=x")
    assert "600,000" not in chosen.err


def test_where_weights_came_from_is_recorded_and_told(onecard: Any, trained: Path, tmp_path: Path) -> None:
    published(onecard)
    few = ["--dataset=python-stdlib", "--batch_size=4", "--eval_iters=2", "--max_iters=2", "--device=cpu"]
    few.append("--gradient_accumulation_steps=1")
    onecard("import", str(tmp_path / "pub"), *few)
    assert load_run("runs/pub").config["init_from"] == str(tmp_path / "pub")
    onecard("export", "runs/pub", "--to", "hf", "--out", "untrained")
    card = Path("untrained/README.md").read_text()
    assert "with the weights of `pub`, not trained further." in card
    assert f"began from {tmp_path / 'pub'}" in onecard("train", "--resume", "runs/pub").out
    onecard("export", "runs/pub", "--to", "hf", "--out", "trained")
    card = Path("trained/README.md").read_text()
    assert "trained on `python-stdlib` from the weights of `pub`." in card
    assert "per parameter); tokens read before the import: not known |" in card


def test_time_before_an_import_is_not_claimed(onecard: Any, trained: Path) -> None:
    onecard("export", "r", "--to", "nanogpt", "--out", "out")
    onecard("import", "out")
    assert load_run("runs/out").config["init_from"] == "scratch", "the run that goes on began so"
    for last in (10, 11):  # the second part, too, knows of the import
        done = onecard("train", "--resume", "runs/out", f"--max_iters={last}")
        tokens = f"{128 * last:,} tokens, {128 * (last - 8)} of them since the import in "
        assert f"finished at step {last}: {tokens}" in done.out
    onecard("export", "runs/out", "--to", "hf", "--out", "published")
    card = Path("published/README.md").read_text()
    assert "imported from `out` at step 8, then trained on `python-stdlib`." in card
    assert "| updates | 11 of 128 tokens, 3 of them since the import |" in card
    assert re.search(r"\| training time \| [\d.]+ \w+ since the import; before that: not known \|", card)


def test_nanogpts_config_says_what_its_checkpoint_does_not(onecard: Any, here: Path) -> None:
    Path("text.txt").write_text("".join(f"{number} is a number, and so is {number**3}.\n\n" for number in range(9000)))
    for name, form in (("shards", "onecard"), ("plain", "nanogpt")):
        how = ["--tokenizer=bytes", "--workers", "1", "--shard-tokens", "60000", "--format", form]
        assert onecard("data", "prepare", "text.txt", "--out", f"data/{name}", *how).code == 0
        out = Path(f"back {name}").resolve()
        few = ["--max_iters=2", "--eval_interval=2", "--learning_rate=3e-4", f"--dataset=data/{name}"]
        assert onecard("train", *TINY, *few, f"--out_dir={name}").code == 0
        done = onecard("export", name, "--to", "nanogpt", "--out", str(out))
        sample, *joining, train = done.next
        assert shlex.split(sample) == ["python", "sample.py", f"--out_dir={out}", "--device=cpu"]
        assert shlex.split(train) == ["python", "train.py", f"{out}/config.py", "--max_iters=4"]
        for command in joining:
            subprocess.run(command, shell=True, check=True)
        said: dict[str, Any] = {}
        exec((out / "config.py").read_text(), said)  # as nanoGPT's configurator does
        wanted = {"init_from": "resume", "out_dir": str(out), "learning_rate": 3e-4, "batch_size": 4, "device": "cpu"}
        assert wanted.items() <= said.items()
        data = Path("data") / said["dataset"]  # as nanoGPT joins them
        kept = b"".join(path.read_bytes() for path in sorted(Path(f"data/{name}").glob("train*.bin")))
        assert (data / "train.bin").read_bytes() == kept
        assert (data / "val.bin").stat().st_size > 0
    shutil.rmtree("data")
    done = onecard("export", "plain", "--to", "nanogpt", "--out", "blind")
    assert [command.split()[1] for command in done.next] == ["sample.py"]
    assert "nanoGPT's train.py needs train.bin and val.bin in its data/plain/" in done.err


def test_a_run_that_only_evaluated_has_saved_nothing(onecard: Any, here: Path) -> None:
    assert onecard("train", *TINY, "--eval_only=True", "--out_dir=e e").code == 0
    done = onecard("sample", "e e")
    assert done.error == "no-checkpoint"
    assert "none was ever saved" in done.err
    again = onecard(*done.fix)
    assert again.code == 0, again.err
    assert onecard("sample", "e e-2", "--length", "3").code == 0


# init_from


def test_a_folder_to_start_from_gives_its_weights_and_shape(onecard: Any) -> None:
    gpt2(Path("small"))
    config = [*("--batch_size=4", "--device=cpu", "--eval_interval=4", "--eval_iters=2", "--max_iters=2")]
    done = onecard("train", "--init_from=small", "--block_size=32", *config, "--learning_rate=0", "--min_lr=0")
    assert done.code == 0, done.err
    run_ = load_run("runs/default")
    assert {key: run_.config[key] for key in ("n_layer", "n_embd", "block_size", "vocab_size", "bias")} == {
        "n_layer": 2,
        "n_embd": 32,
        "block_size": 32,
        "vocab_size": 256,
        "bias": True,
    }
    assert run_.config["init_from"] == "small"
    ours, theirs = read_run(Path("runs/default")).weights, read_snapshot(Path("small")).weights
    assert torch.equal(ours["transformer.wpe.weight"], theirs["transformer.wpe.weight"][:32])
    for name in theirs.keys() - {"transformer.wpe.weight"}:
        torch.testing.assert_close(ours[name], theirs[name], msg=name)
    assert "tanh approximation" in done.err
    assert run_.last_step == 2
    assert onecard("train", "--resume", "runs/default", "--max_iters=3").code == 0


def test_the_plan_knows_the_shape_too(onecard: Any) -> None:
    gpt2(Path("small"))
    plan = json.loads(onecard("plan", "--init_from=small", "--json").out)
    assert plan["config"]["n_embd"] == 32
    assert plan["origins"]["n_embd"] == "init_from=small"
    assert plan["config"]["block_size"] == 64, "no longer than its positions"


def test_a_checkpoint_and_a_run_can_be_started_from(onecard: Any, trained: Path) -> None:
    onecard("export", "r", "--to", "nanogpt", "--out", "out")
    rest = ["--batch_size=4", "--device=cpu", "--eval_interval=4", "--eval_iters=2", "--max_iters=1"]
    for number, source in enumerate(["out/ckpt.pt", "r"]):
        done = onecard("train", f"--init_from={source}", f"--out_dir=new{number}", "--learning_rate=0", *rest)
        assert done.code == 0, done.err
        found = load_run(f"new{number}")
        assert found.config["n_embd"] == 32
        first = found.evals[0]
        assert first.step == 0, "a new run, whose weights are old"
        assert first.val_loss == pytest.approx(load_run("r").evals[-1].val_loss, abs=0.5)


def test_what_the_user_set_in_vain_is_said(onecard: Any) -> None:
    gpt2(Path("small"))
    done = onecard("train", "--init_from=small", "--n_layer=7", *TINY[4:], "--max_iters=0")
    assert done.code == 0
    assert "init_from=small fixes the shape: n_layer has no effect" in done.err
    assert load_run("runs/default").config["n_layer"] == 2


def test_openais_weights_are_found_in_the_cache_and_never_fetched_unasked(
    onecard: Any, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert onecard("train", "--init_from=gpt2-xl", *TINY[4:]).error == "weights-not-here"
    assert onecard("import", "gpt2").error == "weights-not-here"
    cached = gpt2(here / "cache" / "models--openai-community--gpt2" / "snapshots" / "607a30d783df")
    monkeypatch.setattr(
        "huggingface_hub.try_to_load_from_cache",
        lambda repo, file: str(cached / file) if repo == "openai-community/gpt2" and (cached / file).exists() else None,
    )
    assert onecard("import", "gpt2", "--dataset=python-stdlib").code == 0
    assert load_run("runs/gpt2").config["n_embd"] == 32


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("scrach", "did you mean scratch"),
        ("gpt2-xl", "--download"),
        ("you/model", "--download"),
        ("a/b/c", "give the path"),
    ],
)
def test_a_name_that_is_not_here_gets_the_fix_it_needs(onecard: Any, name: str, fix: str) -> None:
    done = onecard("train", f"--init_from={name}", *TINY[4:])
    assert done.error == "weights-not-here"
    assert fix in done.err.splitlines()[2]


def test_a_setting_of_the_checkpoint_that_means_nothing_here_can_be_overruled(onecard: Any, trained: Path) -> None:
    onecard("export", "r", "--to", "nanogpt", "--out", "out")
    content = torch.load("out/ckpt.pt", weights_only=True)
    content["config"] |= {"dtype": "fp8", "my_own_key": [1, 2]}
    torch.save(content, "out/ckpt.pt")
    done = onecard("import", "out")
    assert done.error == "bad-value"
    assert "ckpt.pt" in done.err or "out" in done.err
    assert onecard("import", "out", "--dtype=float32").code == 0


def test_a_download_that_fails_is_three_lines(onecard: Any) -> None:
    done = onecard("import", "nobody/nothing", "--download")
    assert done.code == 3
    assert done.error == "download-failed"


# Refusals


def test_what_cannot_be_imported_is_named_and_nothing_else(onecard: Any, trained: Path) -> None:
    onecard("export", "r", "--to", "nanogpt", "--out", "out")
    done = onecard("import", "out/ckpt.pt", "--batch_size=8")
    assert done.error == "import-mismatch"
    assert "batch_size=8 (is 4)" in done.err
    assert "gradient_accumulation_steps" not in done.err


def test_nanogpt_is_not_told_to_sample_with_a_tokenizer_that_is_not_its_own(onecard: Any, here: Path) -> None:
    Path("text.txt").write_text("".join(f"{number} is a number, and so is {number**3}.\n\n" for number in range(9000)))
    bpe = ["--tokenizer=bpe", "--vocab_size=300", "--workers", "1"]
    assert onecard("data", "prepare", "text.txt", "--out", "data/numbers", *bpe).code == 0
    assert onecard("train", *TINY, "--dataset=numbers", "--out_dir=n").code == 0
    done = onecard("export", "n", "--to", "nanogpt", "--out", "out")
    assert done.code == 0
    assert "nanoGPT's sample.py expects GPT-2's tokens" in done.err
    assert "python sample.py" not in done.err
    assert [command.split()[0] for command in done.next] == ["cat", "python"]
    shutil.rmtree("data")
    assert onecard("sample", "n", "--prompt", "1", "--length", "5").code == 0, "the run has its tokenizer"


def test_mistakes_are_three_lines_and_write_nothing(onecard: Any, trained: Path) -> None:
    onecard("export", "r", "--to", "nanogpt", "--out", "out")
    mistakes = {
        ("import", "nothing.pt"): "no-such-file",
        ("import", "out/ckpt.pt", "--n_embd=64"): "import-mismatch",
        ("import", "out/ckpt.pt", "--batch_size=8"): "import-mismatch",
        ("import", "out/ckpt.pt", "--n_layr=2"): "unknown-key",
        ("import", "out/ckpt.pt", "--max_iters=many"): "bad-value",
        ("import", "out/ckpt.pt", "--out_dir=r"): "run-exists",
        ("import", "some/deep/path"): "weights-not-here",
        ("import", "out/ckpt.pt", "--dtype=fp8"): "bad-value",
        ("import",): "usage",
        ("export", "r"): "usage",
        ("export", "r", "--to", "onnx"): "usage",
        ("export", "nowhere", "--to", "hf"): "no-such-run",
        ("export", "r", "--to", "nanogpt", "--out", "out"): "file-exists",
        ("export", "r", "--to", "nanogpt", "--push", "me/model"): "usage",
        ("export", "r", "--to", "hf", "--private"): "usage",
        ("export", "r", "--to", "hf", "--n_layer=3"): "unexpected-key",
    }
    before = sorted(Path().rglob("*"))
    for arguments, name in mistakes.items():
        done = onecard(*arguments)
        assert (done.error, done.code) == (name, 2), arguments
    assert sorted(Path().rglob("*")) == before


def test_a_whole_folder_takes_no_others_place(onecard: Any, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("mine").mkdir()
    Path("mine/notes.txt").write_text("mine")
    Path("empty").mkdir()
    Path("link").symlink_to("empty")
    assert onecard("export", "r", "--to", "hf", "--out", "link").code == 0
    assert Path("empty/config.json").is_file()
    said = onecard("import", "link", "--out_dir=mine")
    assert (said.error, said.fix) == ("file-exists", ["import", "link", "--out_dir=mine-2"])
    Path("here").mkdir()
    monkeypatch.chdir("here")
    said = onecard("export", "../r", "--to", "nanogpt", "--out", ".")
    assert (said.error, said.err.splitlines()[2]) == ("file-exists", "  fix: --out new")
    assert not list(Path().iterdir())


def test_data_that_do_not_fit_the_model_are_refused_at_once(onecard: Any) -> None:
    gpt2(Path("small"), vocab_size=100)
    assert onecard("import", "small", "--dataset=python-stdlib").error == "token-out-of-range"


def test_sampling_works_without_the_data(onecard: Any, trained: Path) -> None:
    onecard("export", "r", "--to", "nanogpt", "--out", "out")
    done = onecard("import", "out", "--dataset=elsewhere")
    assert done.code == 0
    assert "the dataset elsewhere is not here" in done.err
    done = onecard("sample", "runs/out")
    assert done.error == "no-tokenizer"
    onecard("export", "r", "--to", "hf", "--out", "hf")
    Path("runs/out/tokenizer.json").write_bytes(Path("hf/tokenizer.json").read_bytes())
    assert onecard("sample", "runs/out", "--length", "3").code == 0


@pytest.mark.parametrize(
    ("kind", "writer", "error"),
    [
        ("hf", "onecard.train.hf_folder.save_file", SafetensorError("I/O error: No space left (os error 28)")),
        ("nanogpt", "torch.save", OSError(28, "No space left on device")),
    ],
)
def test_a_full_disk_leaves_nothing_half_written(
    onecard: Any, trained: Path, monkeypatch: pytest.MonkeyPatch, kind: str, writer: str, error: Exception
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(writer, full)
        done = onecard("export", "r", "--to", kind, "--out", "published")
    assert (done.code, done.error) == (3, "disk-full")
    assert [path for path in Path().rglob("published*") if path.is_file()] == []
    assert not list(Path().rglob(f".*{HALF_WRITTEN}"))
    assert onecard("export", "r", "--to", kind, "--out", "published").code == 0


@pytest.mark.parametrize("kind", ["hf", "nanogpt"])
def test_too_full_a_disk_is_told_with_a_command_that_works_and_two_numbers_that_differ(
    onecard: Any, trained: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2**20))
        done = onecard("export", "r", "--to", kind, "--out", "there/published")
    assert (done.code, done.error) == (3, "disk-full")
    (looked_at,) = re.findall("`df -h (.*)`", done.err)
    assert Path(looked_at).is_dir()
    assert "--out PATH" in done.err
    needs, has = re.findall(r"needs (\S+ \S+) and the disk has (.*) free", done.err)[0]
    assert needs != has


# Checkpoints that are damaged or gone


def damage(step: int) -> None:
    (Path("r/checkpoints") / f"step-{step:08d}" / MODEL).write_bytes(b"cut off")


READING = [("sample", "r", "--length", "3"), ("export", "r", "--to", "hf"), ("export", "r", "--to", "nanogpt")]


@pytest.mark.parametrize("arguments", READING, ids=lambda arguments: " ".join(arguments[::3]))
def test_an_older_checkpoint_is_used_with_a_warning(onecard: Any, trained: Path, arguments: tuple[str, ...]) -> None:
    damage(8)
    said = "step-00000008 is damaged (model.safetensors has 7 bytes of "
    done = onecard(*arguments)
    assert done.code == 0
    (note,) = [line for line in done.err.splitlines() if said in line]
    assert note.endswith("and was skipped: using step-00000004")
    shutil.rmtree("r/export", ignore_errors=True)
    told = json.loads(onecard(*arguments, "--json").out)
    assert told["step"] == 4
    assert told["notes"][0].startswith(said)


@pytest.mark.parametrize("arguments", READING, ids=lambda arguments: " ".join(arguments[::3]))
def test_a_lost_best_checkpoint_is_reported_with_what_works(
    onecard: Any, trained: Path, arguments: tuple[str, ...]
) -> None:
    Path("r/checkpoints/best.json").write_text(json.dumps({"step": 4, "val_loss": 3.25}))
    damage(4)
    done = onecard(*arguments, "--best")
    assert done.error == "no-best-checkpoint"
    assert "the best checkpoint of r, step-00000004, is damaged" in done.err
    shutil.rmtree("r/checkpoints/step-00000004")
    done = onecard(*arguments, "--best")
    assert done.error == "no-best-checkpoint"
    assert "step-00000004, is gone" in done.err
    assert "fix: ask for the newest complete one instead of the best: that of step 8" in done.err
    assert json.loads(onecard(*arguments, "--json").out)["step"] == 8
    damage(8)
    for best in ([], ["--best"]):
        done = onecard(*arguments, *best)
        assert done.error == "damaged-checkpoint"
        assert "rm -r" not in done.err
    shutil.rmtree("r/checkpoints/step-00000008")
    assert onecard(*arguments, "--best").error == "no-checkpoint"


# The model card


def test_the_card_loads_the_model_from_beside_its_folder(onecard: Any, trained: Path) -> None:
    assert onecard("export", "r", "--to", "hf", "--out", "there/published").code == 0
    card = Path("there/published/README.md").read_text()
    (code,) = re.findall("```python\n(from transformers.*?)```", card, re.DOTALL)
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir("there")
        read: dict[str, Any] = {}
        exec(code, read)
    assert read["model"].config.n_layer == 2
    assert "hf upload USER/NAME ./published" in card


def test_a_flipped_bit_in_a_nanogpt_checkpoint_is_found(onecard: Any, trained: Path) -> None:
    assert onecard("export", "r", "--to", "nanogpt", "--out", "out").code == 0
    path = Path("out/ckpt.pt")
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] + bytes([whole[len(whole) // 2] ^ 1]) + whole[len(whole) // 2 + 1 :])
    assert onecard("import", "out/ckpt.pt").error == "damaged-checkpoint"
    torch.serialization.set_crc32_options(False)  # as some save, for speed: nothing can be found then
    try:
        torch.save(torch.load(io.BytesIO(whole), weights_only=True), path)
    finally:
        torch.serialization.set_crc32_options(True)
    assert onecard("import", "out/ckpt.pt").code == 0


@pytest.mark.parametrize("kind", ["hf", "nanogpt"])
def test_an_export_touches_nothing_beside_it(onecard: Any, trained: Path, kind: str) -> None:
    other = Path("model.tmp")
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    assert onecard("export", "r", "--to", kind, "--out", "model").code == 0
    assert (other / "thesis.txt").read_text() == "years of work"
    assert all(path.stat().st_mode & 0o044 for path in Path("model").iterdir()), "a group may read what is published"


# The hub


def test_push_refuses_without_a_token_before_anything_is_written(
    onecard: Any, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    done = onecard("export", "r", "--to", "hf", "--push", "me/model")
    assert (done.code, done.error) == (2, "no-hub-token")
    assert not Path("r/export").exists()


@pytest.fixture
def model_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModelHub]:
    """A hub on this machine, and a token for it."""
    folder = gpt2(tmp_path / "uploaded")
    files = {path.name: path.read_bytes() for path in folder.iterdir()} | {"flax_model.msgpack": b"not asked for"}
    with serving(ModelHub("me/model", files)) as hub:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", hub.address)  # what HF_ENDPOINT does, which is read only once
        monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", hub.address)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setenv("HF_TOKEN", "hf_test")
        yield hub


def test_push_uploads_the_folder_and_only_when_asked(onecard: Any, trained: Path, model_hub: ModelHub) -> None:
    assert onecard("export", "r", "--to", "hf", "--out", "a").code == 0
    assert model_hub.asked == []
    done = onecard("export", "r", "--to", "hf", "--out", "b", "--push", "me/model", "--private")
    assert done.code == 0, done.err
    assert "pushed to https://huggingface.co/me/model" in done.err
    (made,) = model_hub.created
    assert made["name"] == "model"
    assert made.get("private") is True or made.get("visibility") == "private"  # as its versions say it
    assert model_hub.arrived == {path.name: path.read_bytes() for path in Path("b").iterdir()}
    assert "# me/model" in model_hub.arrived["README.md"].decode()
    assert model_hub.tokens == {"Bearer hf_test"}


def test_a_download_is_asked_for_once_and_then_cached(onecard: Any, model_hub: ModelHub) -> None:
    assert onecard("import", "me/model").error == "weights-not-here"
    assert model_hub.asked == []
    done = onecard("import", "me/model", "--download", "--dataset=python-stdlib")
    assert done.code == 0, done.err
    assert load_run("runs/model").config["n_embd"] == 32
    assert not any("flax" in asked for asked in model_hub.asked if "/resolve/" in asked)
    model_hub.asked.clear()
    assert onecard("import", "me/model", "--dataset=python-stdlib", "--out_dir=again").code == 0
    assert model_hub.asked == []


def test_a_model_of_before_safetensors_is_downloaded_too(onecard: Any, model_hub: ModelHub, tmp_path: Path) -> None:
    torch.save(load_file(tmp_path / "uploaded" / "model.safetensors"), tmp_path / "pytorch_model.bin")
    pickled = (tmp_path / "pytorch_model.bin").read_bytes()
    kept = {name: raw for name, raw in model_hub.files.items() if name != "model.safetensors"}
    model_hub.files = {**kept, "pytorch_model.bin": pickled}
    done = onecard("import", "me/model", "--download", "--dataset=python-stdlib")
    assert done.code == 0, done.err
    assert load_run("runs/model").config["n_embd"] == 32


def test_a_push_that_fails_keeps_the_folder(monkeypatch: pytest.MonkeyPatch, onecard: Any, trained: Path) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route")

    hub = SimpleNamespace(get_token=lambda: "hf_test", create_repo=fail)
    monkeypatch.setattr(hf_hub, "_hub", lambda _: hub)
    done = onecard("export", "r", "--to", "hf", "--out", "b", "--push", "me/model")
    assert (done.code, done.error) == (3, "push-failed")
    assert "no route" in done.err
    assert Path("b/model.safetensors").is_file()
