"""A run without a GPU: one that would take years is refused, any other says how long it takes and shows progress."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from onecard.cli.main import run  # noqa: E402
from onecard.config.resolve import resolve  # noqa: E402
from onecard.errors import MachineError  # noqa: E402
from onecard.inputs import preflight  # noqa: E402
from onecard.machine import GpuStatus  # noqa: E402
from onecard.report import training  # noqa: E402
from onecard.runs.folder import load_run  # noqa: E402
from onecard.train import cpu, device  # noqa: E402

FLOPS = 100e9  # of a CPU that is not measured again in every test
CARD_SIZED = "n_layer = 12\nn_head = 12\nn_embd = 576\nbatch_size = 16\nblock_size = 1024\ndataset = 'python-stdlib'\n"
TINY = [
    *("--n_layer=1", "--n_head=1", "--n_embd=32", "--block_size=32", "--batch_size=4", "--max_iters=3"),
    *("--gradient_accumulation_steps=1", "--warmup_iters=1", "--eval_interval=3", "--eval_iters=2"),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def without_a_gpu(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONECARD_HOME", str(home))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(cpu, "matmul_flops", lambda _config: FLOPS)


def lines(text: str) -> list[str]:
    """The three lines of an error, without their beginnings."""
    assert text.count("\n") == 3, text
    return [line.partition(": ")[2] for line in text.splitlines()]


@pytest.mark.parametrize("more", [[], ["--dataset=not_here"]])
def test_a_config_that_would_take_years_is_refused_with_torchs_reason_and_how_to_insist(
    more: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    Path("train_77m.py").write_text(CARD_SIZED)
    assert run(["train", "train_77m.py", "--out_dir=r", *more]) == 3
    what, why, fix = lines(capsys.readouterr().err)
    assert re.fullmatch(r"torch sees no GPU, and on this CPU .* about \d+ years for 600,000 updates  \[no-gpu\]", what)
    assert why == f"torch {torch.__version__} is a build for the CPU only"
    assert fix.endswith(f"onecard train train_77m.py {' '.join(['--out_dir=r', *more])} --device=cpu")
    assert not Path("r").exists()


def test_a_small_config_and_the_default_run_by_themselves_and_say_how_long_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("small.py").write_text("".join(f"{flag[2:]}\n" for flag in TINY) + "dataset = 'python-stdlib'\n")
    assert run(["train", "small.py"]) == 0
    assert "on the CPU: about 1 s for 3 updates (estimated from a short speed test)" in capsys.readouterr().err
    assert run(["train", *TINY, "--out_dir=default"]) == 0
    assert "on the CPU: about 1 s for 3 updates" in capsys.readouterr().err
    packaged = preflight.on_cpu(resolve(None).config, insist="")
    assert re.match(r"on the CPU: about \d+ (s|min) for 800 updates \(.*; between .* and .*\)$", packaged)


def test_a_resume_that_would_take_years_is_refused_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", *TINY, "--out_dir=r"]) == 0
    capsys.readouterr()
    assert run(["train", "--resume", "r", "--max_iters=1e12"]) == 3
    error = "".join(f"{line}\n" for line in capsys.readouterr().err.splitlines() if not line.startswith("warning"))
    _, _, fix = lines(error)
    assert fix.endswith("onecard train --resume r --max_iters=1000000000000 --device=cpu")
    assert load_run(Path("r")).config["max_iters"] == 3


@pytest.mark.parametrize("keys", [{"device": "cpu"}, {"max_iters": 10}, {"eval_only": True, "eval_iters": 1}])
def test_what_was_asked_for_or_is_short_is_not_refused(keys: dict[str, Any]) -> None:
    config = resolve(CARD_SIZED).config.replace({"gradient_accumulation_steps": 1, **keys})
    assert preflight.on_cpu(config, insist="").startswith("on the CPU: about ")


def test_the_limit_is_a_day() -> None:
    config = resolve(CARD_SIZED).config
    update = cpu.cpu_seconds(config.replace({"max_iters": 1000, "eval_iters": 1})).likely / 1000
    day = int(86_400 / update)
    assert preflight.on_cpu(config.replace({"max_iters": int(0.9 * day), "eval_iters": 1}), insist="")
    with pytest.raises(MachineError):
        preflight.on_cpu(config.replace({"max_iters": int(1.1 * day) + 1, "eval_iters": 1}), insist="")


def test_a_card_that_torch_cannot_use_gets_no_plan_and_no_larger_default(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unexpected(*_: object, **__: object) -> None:
        raise AssertionError("the run is on the CPU")

    monkeypatch.setattr(preflight, "place_here", unexpected)
    assert run(["train", *TINY, "--out_dir=r"]) == 0, capsys.readouterr().err
    assert load_run(Path("r")).config["device"] == "auto"


# Why torch sees no GPU


def test_a_build_for_the_cpu_names_the_card_that_the_driver_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    shown = GpuStatus("NVIDIA GeForce RTX 4070", (8, 9), 0, 0, 0, ())
    monkeypatch.setattr(device, "read_gpu", lambda: shown)
    assert device.why_no_gpu().why.endswith("CPU only, although the driver shows a NVIDIA GeForce RTX 4070")
    assert "torch with CUDA" in device.why_no_gpu().fix


@pytest.mark.parametrize("hidden", ["", "-1"])
def test_cards_that_are_hidden_are_to_be_shown_again(hidden: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert device.why_no_gpu() == (f"CUDA_VISIBLE_DEVICES={hidden!r} hides every card", "unset CUDA_VISIBLE_DEVICES")


def test_what_torch_says_about_the_driver_is_repeated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def init() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040). Please update.\nMore.")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(torch.cuda, "init", init)
    assert run(["train", *TINY, "--device=cuda"]) == 3
    what, why, fix = lines(capsys.readouterr().err)
    assert what == "device=cuda, but torch sees no GPU  [no-gpu]"
    assert "driver on your system is too old (found version 11040)" in why
    assert "driver" in fix
    assert fix.endswith("--device=cpu")


# The estimate


def test_the_estimate_counts_updates_and_evaluations() -> None:
    config = resolve(None).config.replace({"max_iters": 100, "eval_interval": 1000})
    once, twice = (cpu.cpu_seconds(config.replace({"max_iters": count})).likely for count in (100, 200))
    assert once < twice < 2 * once, "evaluations at the beginning and the end stay two"
    often = cpu.cpu_seconds(config.replace({"eval_interval": 10})).likely
    assert often > once
    rest = cpu.cpu_seconds(config.replace({"max_iters": 200}), step=100).likely
    assert rest < once, "a resume at step 100 does not evaluate there"


def test_the_speed_test_is_short_and_leaves_torchs_random_numbers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    assert 1e8 < cpu.matmul_flops(resolve(None).config) < 1e14
    assert torch.equal(torch.get_rng_state(), before)


# Progress


def test_a_long_evaluation_shows_progress_on_a_pipe_and_not_in_nanogpts_style(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ten seconds without a line are made none, so that the test need not wait for them."""
    monkeypatch.setattr(training, "QUIET_SECONDS", 0.0)

    def printed(*more: str) -> str:
        assert run(["train", *TINY, "--gradient_accumulation_steps=2", *more]) == 0
        return capsys.readouterr().out

    plain = printed("--out_dir=plain", "--log_interval=3")
    assert "step 0: evaluating, 2 of 4 batches done\n" in plain
    assert "update 1 of 3: 1 of 2 micro-batches done\n" in plain
    assert plain.index("evaluating, 2 of 4") < plain.index("step 0: train")
    shown = printed("--out_dir=nanogpt", "--log_style=nanogpt", "--log_interval=1").splitlines()
    known = r"(step \d+: train loss|iter \d+: loss|warn:) "
    assert all(re.match(known, line) for line in shown), shown
