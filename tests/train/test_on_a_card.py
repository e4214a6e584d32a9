"""What only a card can show: half precision, compiled blocks, graphs, real out-of-memory, the same bits after a resume.

Run by hand with `pytest -m gpu tests/train`; the output of the last run is in docs/measurements/trainer.md. Each run is
the command a person types, in a process of its own: an allocator's limit lasts as long as its process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from onecard.runs.folder import Run, load_run  # noqa: E402
from onecard.runs.records import Eval, Oom, Start, Step  # noqa: E402
from onecard.units import GIB, MIB  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA, found none"),
]

SMALL = "n_layer=4 n_head=4 n_embd=256 block_size=256 batch_size=16 gradient_accumulation_steps=2".split()
SHORT = "lr_decay_iters=12 warmup_iters=2 eval_interval=6 eval_iters=4 learning_rate=2e-3".split()
GPT2 = (
    "n_layer=12 n_head=12 n_embd=768 block_size=1024 vocab_size=50304 max_iters=4 eval_interval=2 eval_iters=2".split()
)


CONTEXT_BYTES = (758 + 70) * MIB  # of a process on an H200, and of a graph in it


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


def onecard(home: Path, run: Path, *keys: str, resume: bool = False, expect: int = 0) -> Run:
    """The run folder after `onecard train` with these keys."""
    command = [sys.executable, "-m", "onecard", "train", "--log_style=plain"]
    command += ["--resume", str(run)] if resume else [f"--out_dir={run}"]
    environment = os.environ | {"ONECARD_HOME": str(home)}
    done = subprocess.run([*command, *(f"--{key}" for key in keys)], env=environment, capture_output=True, text=True)
    assert done.returncode == expect, done.stdout[-2000:] + done.stderr[-4000:]
    return load_run(run)


def steps(run: Run) -> list[Step]:
    return [record for record in run.records if isinstance(record, Step)]


@pytest.fixture(scope="module")
def exact(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = tmp_path_factory.mktemp("runs") / "exact"
    return onecard(home, run, *SMALL, *SHORT, "max_iters=12", "dtype=float32", "compile=False")


@pytest.mark.parametrize("compiled", ["True", "False"])
@pytest.mark.parametrize(
    ("mode", "dtype"), [("none", "bfloat16"), ("selective", "float16"), ("full", "bfloat16"), ("selective", "float32")]
)
def test_every_precision_and_mode_learns_as_float32_does(
    home: Path, tmp_path: Path, exact: Run, mode: str, dtype: str, compiled: str
) -> None:
    keys = [f"dtype={dtype}", f"compile={compiled}", f"grad_checkpoint={mode}"]
    run = onecard(home, tmp_path / "run", *SMALL, *SHORT, "max_iters=12", *keys)
    assert not [record for record in run.records if isinstance(record, Oom)]
    ours, theirs = ([step.loss for step in steps(each)] for each in (run, exact))
    assert ours[0] == pytest.approx(theirs[0], rel=2e-3), "the same weights and data"
    assert ours[-1] == pytest.approx(theirs[-1], rel=0.05), "roundings grow from step to step"
    assert ours[-1] < ours[0] - 1


@pytest.mark.parametrize("dropout", ["0.0", "0.2"])
@pytest.mark.parametrize("compiled", ["True", "False"])
def test_a_deterministic_run_resumes_bit_for_bit(home: Path, tmp_path: Path, compiled: str, dropout: str) -> None:
    keys = [*SMALL, *SHORT, "deterministic=True", f"dropout={dropout}", f"compile={compiled}"]
    whole = onecard(home, tmp_path / "whole", *keys, "max_iters=12")
    onecard(home, tmp_path / "halves", *keys, "max_iters=6")
    halves = onecard(home, tmp_path / "halves", "max_iters=12", resume=True)
    assert [step.loss for step in steps(halves)] == [step.loss for step in steps(whole)]


def test_one_process_of_torchrun_trains_over_nccl_what_it_trains_alone(home: Path, tmp_path: Path) -> None:
    keys = [f"--{key}" for key in (*SMALL, *SHORT, "max_iters=12", "deterministic=True", "log_style=plain")]
    environment = os.environ | {"ONECARD_HOME": str(home), "NCCL_DEBUG": "INFO"}
    environment |= {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}  # wherever this machine's name leads
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=1"]
    runs = []
    for name, start in (("alone", []), ("joined", torchrun)):
        command = [sys.executable, *start, "-m", "onecard", "train", f"--out_dir={tmp_path / name}", *keys]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
        assert ("NCCL INFO" in done.stdout + done.stderr) == bool(start), "gradients go by NCCL under torchrun only"
        runs.append(load_run(tmp_path / name))
    alone, joined = ([(step.step, step.loss, step.grad_norm) for step in steps(run)] for run in runs)
    assert len(joined) == 12
    for ours, theirs in zip(joined, alone, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-6)


LOOP = """
import sys
from pathlib import Path
from onecard.config.resolve import resolve
from onecard.data.dataset import open_dataset
from onecard.runs.folder import create_run
from onecard.train.loop import train
home, run, *flags = sys.argv[1:]
config = resolve(None, flags=[tuple(flag.split("=", 1)) for flag in flags]).config
dataset = open_dataset("python-stdlib", environ={"ONECARD_HOME": home})
with create_run(Path(run), config=config.model_dump()) as folder:
    train(config, folder, dataset, resume=False, on_record=print)
"""


@pytest.mark.parametrize("compiled", ["True", "False"])
def test_out_of_memory_under_a_limit_halves_the_micro_batch_and_goes_on(
    home: Path, tmp_path: Path, compiled: str
) -> None:
    # The command would refuse what cannot fit, so the loop is called past it: as if another program took the memory.
    shape = [*GPT2, "batch_size=64", "gradient_accumulation_steps=1", f"compile={compiled}", "dtype=bfloat16"]
    environment = os.environ | {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    command = [sys.executable, "-c", LOOP, str(home), str(tmp_path / "run"), *shape, "memory_limit=9.25GiB"]
    done = subprocess.run(command, env=environment | {"ONECARD_HOME": str(home)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    run = load_run(tmp_path / "run")
    ooms = [record for record in run.records if isinstance(record, Oom)]
    assert ooms, "64 sequences must not fit 9.25 GiB, or this test shows nothing"
    assert all(record.where == "train" for record in ooms)
    assert [record.step for record in steps(run)] == [1, 2, 3, 4]
    assert [record.tokens for record in steps(run)] == [65_536 * n for n in (1, 2, 3, 4)]
    small = ooms[-1].batch_size_after or 1
    undisturbed = [f"batch_size={small}", f"gradient_accumulation_steps={64 // small}", f"compile={compiled}"]
    same = onecard(home, tmp_path / "same", *GPT2, *undisturbed, "dtype=bfloat16")
    found, expected = ([record.loss for record in steps(each)] for each in (run, same))
    assert found == pytest.approx(expected, rel=1e-3), "the same samples, summed in any order"


def test_what_cannot_fit_is_refused_with_the_command_that_does(home: Path, tmp_path: Path) -> None:
    keys = [*GPT2, "batch_size=64", "gradient_accumulation_steps=1", "memory_limit=9.25GiB"]
    command = [sys.executable, "-m", "onecard", "train", f"--out_dir={tmp_path / 'run'}", *(f"--{key}" for key in keys)]
    environment = os.environ | {"ONECARD_HOME": str(home)}
    refused = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert refused.returncode == 1, refused.stderr
    assert "[does-not-fit]" in refused.stderr
    assert not (tmp_path / "run").exists()
    fitted = subprocess.run([*command, "--fit"], env=environment, capture_output=True, text=True)
    assert fitted.returncode == 0, fitted.stderr[-3000:]
    run = load_run(tmp_path / "run")
    assert not [record for record in run.records if isinstance(record, Oom)]
    start = next(record for record in run.records if isinstance(record, Start))
    used = max(record.reserved_bytes or 0 for record in steps(run)) + CONTEXT_BYTES
    assert start.predicted_process_bytes == pytest.approx(used, rel=0.05), "planned and measured"


@pytest.mark.parametrize(
    "keys",
    [
        "n_layer=12 n_head=12 n_embd=576 batch_size=16 gradient_accumulation_steps=4 eval_iters=200 dtype=float16",
        "n_layer=12 n_head=12 n_embd=768 batch_size=16 gradient_accumulation_steps=4 eval_iters=20 dtype=bfloat16",
    ],
    ids=["77M", "124M"],
)
def test_a_12_gb_card_with_a_desktop_on_it_is_enough(home: Path, tmp_path: Path, keys: str) -> None:
    common = "block_size=1024 vocab_size=50304 max_iters=6 eval_interval=3 memory_limit=9.25GiB".split()
    run = onecard(home, tmp_path / "run", *keys.split(), *common)
    assert not [record for record in run.records if isinstance(record, Oom)]
    assert len(steps(run)) == 6
    start = next(record for record in run.records if isinstance(record, Start))
    assert start.card
    reserved = max(record.reserved_bytes or 0 for record in steps(run))
    assert reserved + CONTEXT_BYTES <= 9.25 * GIB


def test_evaluation_stays_below_training(home: Path, tmp_path: Path) -> None:
    run = onecard(home, tmp_path / "run", *GPT2, "batch_size=8", "gradient_accumulation_steps=2", "compile=False")
    training = max(record.reserved_bytes or 0 for record in steps(run))
    evaluations = [record for record in run.records if isinstance(record, Eval)]
    assert len(evaluations) == 3
    assert all((record.peak_allocated_bytes or 0) < training for record in evaluations)


@pytest.mark.parametrize("compiled", ["True", "False"])
def test_a_memory_snapshot_sets_measured_beside_planned(home: Path, tmp_path: Path, compiled: str) -> None:
    command = [sys.executable, "-m", "onecard", "train", f"--out_dir={tmp_path / 'run'}"]
    keys = [*GPT2, "batch_size=8", "gradient_accumulation_steps=2", f"compile={compiled}", "dtype=bfloat16"]
    written = tmp_path / "memory.json"
    done = subprocess.run(
        [*command, *(f"--{key}" for key in keys), "--memory_snapshot", str(written)],
        env=os.environ | {"ONECARD_HOME": str(home)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(written.read_text())
    assert sum(part["measured_bytes"] for part in found["parts"]) == found["measured_allocated_bytes"]
    assert found["measured_allocated_bytes"] == pytest.approx(found["planned_allocated_bytes"], rel=0.01)
    assert found["measured_reserved_bytes"] == pytest.approx(found["planned_reserved_bytes"], rel=0.05)
    for part in found["parts"]:
        assert part["measured_bytes"] == pytest.approx(part["planned_bytes"], rel=0.1), part
    assert written.with_suffix(".pickle").stat().st_size > 0
