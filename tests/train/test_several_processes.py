"""The same command as several processes: the same losses, weights and records, whatever their number."""

from __future__ import annotations

import socket
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from onecard.runs.checkpoint_state import MODEL  # noqa: E402
from onecard.runs.folder import CHECKPOINTS, checkpoint_name, load_run  # noqa: E402
from onecard.runs.records import Eval, FindingRecord, Record, Sample, Step  # noqa: E402
from onecard.train.checkpoint_files import tensors_in  # noqa: E402
from tests.warm import Outcome, WarmProcess  # noqa: E402
from tests.warm_process import TORCH  # noqa: E402

pytestmark = pytest.mark.slow

UPDATES = 50
CONFIG = {
    "n_layer": 2,
    "n_head": 2,
    "n_embd": 32,
    "block_size": 16,
    "vocab_size": 64,
    "batch_size": 2,
    "gradient_accumulation_steps": 12,
    "warmup_iters": 5,
    "max_iters": UPDATES,
    "lr_decay_iters": UPDATES,
    "learning_rate": 0.003,
    "eval_interval": 20,
    "eval_iters": 7,
    "device": "cpu",
    "dtype": "float32",
    "dataset": "data",
}
Start = Callable[..., list[Outcome]]  # the number of processes, arguments: their outcomes, by rank


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("several")
    (folder / "data").mkdir()
    tokens = array("H", (index * index // 7 % 61 + index % 3 for index in range(9000)))
    (folder / "data/train.bin").write_bytes(tokens[:8000].tobytes())
    (folder / "data/val.bin").write_bytes(tokens[8000:].tobytes())
    (folder / "tiny.py").write_text("".join(f"{key} = {value!r}\n" for key, value in CONFIG.items()))
    return folder


@pytest.fixture(scope="module")
def warm_processes(warm_with_torch: WarmProcess) -> Iterator[Callable[[int], list[WarmProcess]]]:
    made = [warm_with_torch]

    def get(count: int) -> list[WarmProcess]:
        made.extend(WarmProcess(*TORCH) for _ in range(count - len(made)))
        return made[:count]

    yield get
    for process in made[1:]:
        process.close()


@pytest.fixture(scope="module")
def start(warm_processes: Callable[[int], list[WarmProcess]], place: Path) -> Start:
    def start(count: int, *arguments: str, **per_rank: list[str]) -> list[Outcome]:
        """Run `onecard train` as torchrun starts it; without torchrun for a count of 0."""
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            port = found.getsockname()[1]
        of_all = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}

        def one(rank: int, process: WarmProcess) -> Outcome:
            named = of_all | {"RANK": rank, "LOCAL_RANK": rank}
            environment = {key: str(value) for key, value in named.items()} if count else {}
            more = [values[rank] for values in per_rank.values()]
            return process.run("train", *arguments, *more, cwd=place, environment=environment)

        with ThreadPoolExecutor() as pool:
            return list(pool.map(one, range(max(1, count)), warm_processes(max(1, count))))

    return start


@pytest.fixture(scope="module")
def alone(start: Start, place: Path) -> Path:
    (outcome,) = start(0, "tiny.py", "--out_dir=alone")
    assert outcome.code == 0, outcome.stderr
    return place / "alone"


def weights_of(run: Path, step: int = UPDATES) -> dict[str, Any]:
    return tensors_in(run / CHECKPOINTS / checkpoint_name(step), MODEL)


def records_of(run: Path) -> list[Record]:
    """All but findings: on a busy machine some are about the pace."""
    return [record for record in load_run(run).records if not isinstance(record, FindingRecord)]


def same_run(run: Path, other: Path) -> None:
    """The same losses, parameters and records, but for times and rounding."""
    for ours, theirs in zip(records_of(run), records_of(other), strict=True):
        assert (type(ours), ours.step) == (type(theirs), theirs.step)
        if isinstance(ours, Step) and isinstance(theirs, Step):
            assert (ours.tokens, ours.lr) == (theirs.tokens, theirs.lr)
            assert (ours.loss, ours.grad_norm) == pytest.approx((theirs.loss, theirs.grad_norm), rel=2e-5)
        if isinstance(ours, Eval) and isinstance(theirs, Eval):
            assert (ours.train_loss, ours.val_loss, ours.val_loss_error) == pytest.approx(
                (theirs.train_loss, theirs.val_loss, theirs.val_loss_error), rel=2e-5
            )
            assert ours.tokens_read == theirs.tokens_read
    for name, weight in weights_of(run).items():
        torch.testing.assert_close(weight, weights_of(other)[name], rtol=0, atol=1e-5)


def all_well(outcomes: list[Outcome]) -> None:
    for rank, outcome in enumerate(outcomes):
        assert outcome.code == 0, f"rank {rank}: {outcome.stderr}"


@pytest.mark.parametrize("count", [1, 2, pytest.param(4, marks=pytest.mark.long)])
def test_any_number_of_processes_trains_the_same_model(start: Start, place: Path, alone: Path, count: int) -> None:
    outcomes = start(count, "tiny.py", f"--out_dir=of-{count}")
    all_well(outcomes)
    assert "finished at step 50" in outcomes[0].stdout
    assert all(not other.stdout and not other.stderr for other in outcomes[1:]), "only the first rank prints"
    same_run(place / f"of-{count}", alone)


@pytest.mark.parametrize(
    ("count", "keys"),
    [
        (2, []),
        pytest.param(4, [], marks=pytest.mark.long),
        pytest.param(3, ["--grad_checkpoint=full"], marks=pytest.mark.long),  # rows that do not divide
    ],
)
def test_ranks_that_share_a_model_train_the_same_one(
    start: Start, place: Path, alone: Path, count: int, keys: list[str]
) -> None:
    outcomes = start(count, "tiny.py", f"--out_dir=shared-by-{count}", "--shard=full", *keys)
    all_well(outcomes)
    assert all(not other.stdout and not other.stderr for other in outcomes[1:]), "only the first rank prints"
    same_run(place / f"shared-by-{count}", alone)


def test_only_the_first_process_writes_texts_and_the_losses_stay(start: Start, place: Path) -> None:
    (place / "data/meta.json").write_text('{"tokenizer": "bytes"}')
    try:
        for name, interval in (("quiet", 0), ("texts", 1)):
            keys = ["--max_iters=20", "--dropout=0.1", f"--sample_interval={interval}", "--stop_after_worse=9"]
            outcomes = start(2, "tiny.py", f"--out_dir={name}", "--vocab_size=256", *keys)
            all_well(outcomes)
            assert not outcomes[1].stdout
    finally:
        (place / "data/meta.json").unlink()
    quiet, texts = load_run(place / "quiet"), load_run(place / "texts")
    assert [each.loss for each in texts.steps] == [each.loss for each in quiet.steps]
    assert [each.val_loss for each in texts.evals] == [each.val_loss for each in quiet.evals]
    assert [each.step for each in texts.records if isinstance(each, Sample)] == [0, 20]


def test_a_run_goes_on_with_another_number_of_processes(start: Start, place: Path, alone: Path) -> None:
    all_well(start(0, "tiny.py", "--out_dir=changing", "--max_iters=15"))
    all_well(start(2, "tiny.py", "--out_dir=changing", "--continue", "--max_iters=33"))
    all_well(start(0, "--resume", "changing", "--max_iters=50"))
    for ours, theirs in zip(load_run(place / "changing").steps, load_run(alone).steps, strict=True):
        assert (ours.step, ours.tokens, ours.loss) == (theirs.step, theirs.tokens, pytest.approx(theirs.loss, rel=2e-5))
    for name, weight in weights_of(place / "changing").items():
        torch.testing.assert_close(weight, weights_of(alone)[name], rtol=0, atol=1e-5)


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("muon", marks=pytest.mark.long)])
def test_a_run_goes_on_in_any_layout(start: Start, place: Path, alone: Path, optimizer: str) -> None:
    """One process, four that share the model, two that do not, two that share it: one run."""
    of = [f"--out_dir=layouts-{optimizer}", f"--optimizer={optimizer}"]
    whole = alone
    if optimizer != "adamw":
        whole = place / f"whole-{optimizer}"
        all_well(start(0, "tiny.py", f"--out_dir={whole.name}", f"--optimizer={optimizer}"))
    all_well(start(0, "tiny.py", *of, "--max_iters=11"))
    all_well(start(4, "tiny.py", *of, "--continue", "--max_iters=24", "--shard=full"))
    all_well(start(2, "tiny.py", *of, "--continue", "--max_iters=33", "--shard=none"))
    all_well(start(2, "tiny.py", *of, "--continue", "--max_iters=42", "--shard=full"))
    all_well(start(0, "tiny.py", *of, "--continue", "--max_iters=50", "--shard=full"))
    run = place / of[0].partition("=")[2]
    for ours, theirs in zip(load_run(run).steps, load_run(whole).steps, strict=True):
        assert (ours.step, ours.tokens, ours.loss) == (theirs.step, theirs.tokens, pytest.approx(theirs.loss, rel=2e-5))
    for name, weight in weights_of(run).items():
        torch.testing.assert_close(weight, weights_of(whole)[name], rtol=0, atol=1e-5)


def test_one_process_reads_what_ranks_that_shared_a_model_have_saved(
    start: Start, place: Path, warm_with_torch: WarmProcess
) -> None:
    (place / "data/meta.json").write_text('{"tokenizer": "bytes"}')
    (place / "text.txt").write_text("A text that the model is asked about.\n" * 20)
    keys = ["--max_iters=4", "--eval_interval=2", "--keep_checkpoints=9", "--vocab_size=256"]
    try:
        all_well(start(2, "tiny.py", "--out_dir=read", "--shard=full", *keys))
    finally:
        (place / "data/meta.json").unlink()
    for command in (
        ["sample", "read", "--max_new_tokens=3", "--prompt", "A"],
        ["export", "read", "--to", "hf", "--out", "exported"],
        ["eval", "read", "--text", "text.txt"],
        ["doctor", "read"],
    ):
        outcome = warm_with_torch.run(*command, cwd=place)
        assert outcome.code == 0, f"{command}: {outcome.stderr}"
    damaged = place / "read" / CHECKPOINTS / checkpoint_name(4) / "model-2-of-2.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    (again,) = start(0, "--resume", "read", "--max_iters=5")
    assert again.code == 0, again.stderr
    assert "step-00000004 is damaged" in again.stderr
    assert [each.step for each in load_run(place / "read").steps][-3:] == [3, 4, 5]


def test_what_does_not_divide_is_refused_once_and_nothing_is_written(start: Start, place: Path) -> None:
    first, second = start(2, "tiny.py", "--out_dir=odd", "--gradient_accumulation_steps=3")
    assert (first.code, second.code) == (2, 2)
    assert "6 sequences per update, 2 at a time, do not divide among 2 ranks" in first.stderr
    assert not second.stderr
    assert not (place / "odd").exists()


def test_fit_is_refused_once_and_nothing_is_written(start: Start, place: Path) -> None:
    first, second = start(2, "tiny.py", "--fit", "--out_dir=fitted")
    assert (first.code, second.code) == (2, 2)
    assert "--fit fits a run to one card, and here 2 processes share it" in first.stderr
    assert not second.stderr
    assert not (place / "fitted").exists()
