"""The trainer on a CPU: it learns, resumes bit for bit, and lives through every out-of-memory we can make."""

from __future__ import annotations

import errno
import json
import os
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch")

from onecard.config.resolve import resolve  # noqa: E402
from onecard.config.schema import RunConfig  # noqa: E402
from onecard.data.dataset import Dataset, open_dataset  # noqa: E402
from onecard.doctor.diagnose import diagnose  # noqa: E402
from onecard.errors import MachineError, OnecardError  # noqa: E402
from onecard.models.evaluation import SplitLosses, eval_tokens  # noqa: E402
from onecard.runs.folder import create_run, load_run, resume_run  # noqa: E402
from onecard.runs.records import Checkpoint, End, Eval, FindingRecord, Oom, Record, Start, Step  # noqa: E402
from onecard.train import checkpoint, loop, operations  # noqa: E402
from onecard.train.evaluate import Evaluation  # noqa: E402
from onecard.train.loop import _Loop, train  # noqa: E402
from onecard.train.model import GPT  # noqa: E402
from onecard.train.oom import smaller_micro_batch  # noqa: E402
from onecard.train.optim import AdamW  # noqa: E402
from onecard.train.precision import Precision  # noqa: E402
from onecard.train.trainer import Trainer  # noqa: E402
from onecard.units import MIB  # noqa: E402


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return open_dataset("python-stdlib", environ={"ONECARD_HOME": str(tmp_path_factory.mktemp("home"))})


def tiny(**keys: Any) -> RunConfig:
    shape = {"n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 32, "batch_size": 4, "device": "cpu"}
    run = {"max_iters": 8, "lr_decay_iters": 8, "warmup_iters": 2, "eval_interval": 4, "eval_iters": 2}
    return resolve(None).config.replace({**shape, **run, "gradient_accumulation_steps": 2, **keys})


def run(config: RunConfig, dataset: Dataset, path: Path, *, resume: bool = False) -> list[Record]:
    seen: list[Record] = []
    folder = resume_run(path) if resume else create_run(path, config=config.model_dump())
    with folder:
        train(config, folder, dataset, resume=resume, on_record=seen.append)
    return seen


def losses(path: Path) -> list[float]:
    return [step.loss for step in load_run(path).steps]


def test_it_learns(dataset: Dataset, tmp_path: Path) -> None:
    config = tiny(max_iters=30, lr_decay_iters=30, eval_interval=30, learning_rate=1e-2)
    run(config, dataset, tmp_path / "run")
    found = losses(tmp_path / "run")
    assert found[0] == pytest.approx(5.545, abs=0.2), "about ln 256 at the beginning"
    assert found[-1] < found[0] - 1


def test_records_are_those_of_the_contract(dataset: Dataset, tmp_path: Path) -> None:
    config = tiny()
    seen = run(config, dataset, tmp_path / "run")
    kinds = [type(record) for record in seen]
    assert kinds[0] is Start
    assert kinds[-1] is End
    steps = [record for record in seen if isinstance(record, Step)]
    assert [step.step for step in steps] == list(range(1, 9)), "max_iters=8 means 8 updates"
    assert [step.tokens for step in steps] == [config.tokens_per_step * n for n in range(1, 9)]
    assert [record.step for record in seen if isinstance(record, Eval)] == [0, 4, 8]
    saved = [(index, record) for index, record in enumerate(seen) if isinstance(record, Checkpoint)]
    for index, record in saved:
        following = seen[index + 1]
        assert isinstance(following, Eval), "a checkpoint is written before the evaluation"
        assert following.step == record.step
    lines = (tmp_path / "run" / "records.jsonl").read_text().splitlines()
    keys = {"kind", "step", "tokens", "loss", "lr", "grad_norm", "seconds", "elapsed_seconds", "tokens_per_second"}
    assert keys | {"mfu", "allocated_bytes", "reserved_bytes"} <= set(json.loads(lines[2]))


def test_evaluations_read_the_same_windows_every_time(dataset: Dataset, tmp_path: Path) -> None:
    config = tiny(learning_rate=0.0, min_lr=0.0)
    evals = [record for record in run(config, dataset, tmp_path / "run") if isinstance(record, Eval)]
    assert len({record.val_loss for record in evals}) == 1
    assert all(record.val_loss_error and record.val_loss_error > 0 for record in evals)


@pytest.mark.parametrize("keys", [{}, {"dropout": 0.2}], ids=["plain", "dropout"])
def test_a_resumed_run_is_bit_for_bit_the_undisturbed_one(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any]
) -> None:
    config = tiny(**keys)
    run(config, dataset, tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(GPT, "loss", failing_at(GPT.loss, 11, RuntimeError("the power went")))
        with pytest.raises(RuntimeError, match="power"):
            run(config, dataset, tmp_path / "cut")
    assert 4 <= load_run(tmp_path / "cut").last_step < 8
    run(config, dataset, tmp_path / "cut", resume=True)
    assert losses(tmp_path / "cut") == losses(tmp_path / "whole")
    whole, cut = (load_run(tmp_path / name) for name in ("whole", "cut"))
    assert [(e.step, e.val_loss) for e in cut.evals] == [(e.step, e.val_loss) for e in whole.evals]


def failing_at(real: Callable[..., Any], call: int, error: BaseException) -> Callable[..., Any]:
    """`real`, but for one call that raises."""
    count = 0

    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        nonlocal count
        count += 1
        if count == call:
            raise error
        return real(*arguments, **keywords)

    return wrapped


def assert_halved_to_the_end(seen: list[Record]) -> None:
    halvings = [(oom.batch_size_before, oom.batch_size_after) for oom in seen if isinstance(oom, Oom)]
    assert halvings == [(4, 2), (2, 1), (1, None)]
    assert isinstance(seen[-1], End)
    assert seen[-1].reason == "out-of-memory"


@pytest.fixture(scope="module")
def undisturbed(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of a run with a single evaluation at its end."""
    path = tmp_path_factory.mktemp("undisturbed") / "run"
    run(tiny(eval_interval=8), dataset, path)
    return losses(path)


@pytest.mark.parametrize("call", range(1, 17))
def test_out_of_memory_at_any_micro_batch_neither_loses_nor_repeats_a_step(
    dataset: Dataset, undisturbed: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    config = tiny(eval_interval=8)
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    monkeypatch.setattr(GPT, "loss", failing_at(GPT.loss, call, error))
    seen = run(config, dataset, tmp_path / "short")
    (oom,) = [record for record in seen if isinstance(record, Oom)]
    assert (oom.where, oom.batch_size_before, oom.batch_size_after) == ("train", 4, 2)
    assert (oom.accumulation_before, oom.accumulation_after) == (2, 4)
    steps = [record for record in seen if isinstance(record, Step)]
    assert [step.step for step in steps] == list(range(1, 9))
    assert [step.tokens for step in steps] == [config.tokens_per_step * n for n in range(1, 9)]
    assert losses(tmp_path / "short") == pytest.approx(undisturbed, rel=1e-4), "other data were read"


def test_out_of_memory_in_the_backward_pass_is_survived_too(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = torch.OutOfMemoryError("CUDA out of memory.")
    monkeypatch.setattr(torch.Tensor, "backward", failing_at(torch.Tensor.backward, 5, error))
    seen = run(tiny(), dataset, tmp_path / "run")
    assert isinstance(seen[-1], End)
    assert seen[-1].reason == "finished"
    assert [record.step for record in seen if isinstance(record, Oom)] == [2]


@pytest.mark.parametrize(("where", "what"), [(operations, "clip_gradients"), (AdamW, "make_state")])
@pytest.mark.parametrize("call", [1, 5])
def test_out_of_memory_on_the_way_to_the_optimizers_step_changes_nothing(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Any, what: str, call: int
) -> None:
    run(tiny(), dataset, tmp_path / "whole")
    error = torch.OutOfMemoryError("CUDA out of memory.")
    monkeypatch.setattr(where, what, failing_at(getattr(where, what), call, error))
    seen = run(tiny(), dataset, tmp_path / "short")
    assert [record.step for record in seen if isinstance(record, Oom)] == [call - 1]
    assert losses(tmp_path / "short") == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)


@pytest.mark.parametrize(
    ("where", "what", "call", "step"),
    [(AdamW, "make_state", 3, 2), (AdamW, "make_state", 1, 0), (GPT, "loss", 1, 0), (GPT, "loss", 4, 1)],
)
def test_a_scaler_forgets_gradients_that_were_thrown_away(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Any, what: str, call: int, step: int
) -> None:
    monkeypatch.setattr(Precision, "grad_scaler", lambda _: torch.amp.GradScaler("cpu", init_scale=256.0))
    run(tiny(), dataset, tmp_path / "whole")
    error = torch.OutOfMemoryError("CUDA out of memory.")
    monkeypatch.setattr(where, what, failing_at(getattr(where, what), call, error))
    seen = run(tiny(), dataset, tmp_path / "short")
    assert [record.step for record in seen if isinstance(record, Oom)] == [step]
    assert losses(tmp_path / "short") == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_an_optimizer_whose_state_never_fits_ends_with_a_checkpoint(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dropout: float
) -> None:
    config = tiny(dropout=dropout)

    def full(_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(AdamW, "make_state", full)
    seen = run(config, dataset, tmp_path / "run")
    assert isinstance(seen[-1], End)
    assert seen[-1].reason == "out-of-memory"
    assert [saved.step for saved in load_run(tmp_path / "run").checkpoints] == [0]
    monkeypatch.undo()
    run(config, dataset, tmp_path / "run", resume=True)
    run(config, dataset, tmp_path / "whole")
    assert losses(tmp_path / "run") == losses(tmp_path / "whole"), "it goes on as if nothing had been"


def test_without_memory_for_the_weights_it_says_so(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 148.00 MiB.")
    monkeypatch.setattr(GPT, "to", failing_at(GPT.to, 1, error))
    with pytest.raises(MachineError, match="not enough memory for the weights") as told:
        run(tiny(), dataset, tmp_path / "run")
    assert told.value.name == "out-of-memory"
    assert "148.00 MiB" in told.value.why


def test_at_micro_batch_1_it_ends_with_a_checkpoint(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, updates = GPT.loss, 0

    def full(*arguments: Any, **keywords: Any) -> Any:
        nonlocal updates
        updates += 1
        if updates > 6:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return real(*arguments, **keywords)

    monkeypatch.setattr(GPT, "loss", full)
    seen = run(tiny(), dataset, tmp_path / "run")
    assert_halved_to_the_end(seen)
    assert [saved.step for saved in load_run(tmp_path / "run").checkpoints] == [3]


def test_out_of_memory_in_evaluation_halves_its_batch_and_gives_the_same_loss(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tiny(), dataset, tmp_path / "whole")
    error = torch.OutOfMemoryError("CUDA out of memory.")
    monkeypatch.setattr(GPT, "token_losses", failing_at(GPT.token_losses, 2, error))
    seen = run(tiny(), dataset, tmp_path / "short")
    (oom,) = [record for record in seen if isinstance(record, Oom)]
    assert (oom.where, oom.batch_size_before, oom.batch_size_after) == ("eval", 4, 2)
    whole, short = (load_run(tmp_path / name).evals for name in ("whole", "short"))
    assert [e.val_loss for e in short] == pytest.approx([e.val_loss for e in whole], rel=1e-5)
    assert [e.tokens_read for e in short] == [e.tokens_read for e in whole]


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")]
)
@pytest.mark.parametrize("what", ["loss", "token_losses"])
def test_out_of_memory_is_known_by_all_its_names(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, what: str
) -> None:
    monkeypatch.setattr(GPT, what, failing_at(getattr(GPT, what), 2, error))
    seen = run(tiny(), dataset, tmp_path / "run")
    assert [bool(record.message) for record in seen if isinstance(record, Oom)] == [True]


def test_a_resumed_run_keeps_the_micro_batch_that_fitted(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(max_iters=4)
    monkeypatch.setattr(GPT, "loss", failing_at(GPT.loss, 1, torch.OutOfMemoryError("CUDA out of memory.")))
    run(config, dataset, tmp_path / "run")
    monkeypatch.undo()
    used: list[int] = []
    real = GPT.loss
    monkeypatch.setattr(GPT, "loss", lambda *given, **keys: used.append(len(given[1])) or real(*given, **keys))
    run(config.replace({"max_iters": 6}), dataset, tmp_path / "run", resume=True)
    assert set(used) == {2}
    used.clear()
    asked = config.replace({"max_iters": 8, "batch_size": 8, "gradient_accumulation_steps": 1})
    run(asked, dataset, tmp_path / "run", resume=True)
    assert set(used) == {8}, "the user's own wish comes first"


@pytest.mark.parametrize("keys", [{}, {"eval_batch_size": 3}, {"eval_block_size": 16}, {"batch_size": 8}])
def test_an_evaluation_reads_what_is_said_beforehand(dataset: Dataset, tmp_path: Path, keys: dict[str, int]) -> None:
    config = tiny(eval_only=True, **keys)
    run(config, dataset, tmp_path / "run")
    (found,) = load_run(tmp_path / "run").evals
    assert found.tokens_read == 2 * eval_tokens(config), "of both splits"
    by_hand = {"eval_block_size": 2 * 4 * 16, "batch_size": 2 * 8 * 32}.get(next(iter(keys), ""), 2 * 4 * 32)
    assert eval_tokens(config) == by_hand


def test_another_micro_batch_evaluates_the_same_windows(dataset: Dataset, tmp_path: Path) -> None:
    config = tiny(learning_rate=0.0, min_lr=0.0, max_iters=4)
    run(config, dataset, tmp_path / "run")
    smaller = config.replace({"max_iters": 8, "batch_size": 1, "gradient_accumulation_steps": 8})
    run(smaller, dataset, tmp_path / "run", resume=True)
    evals = load_run(tmp_path / "run").evals
    assert len({record.tokens_read for record in evals}) == 1
    assert [record.val_loss for record in evals] == pytest.approx([evals[0].val_loss] * len(evals), rel=1e-5)


def test_changed_settings_are_kept_once_the_run_goes_on_with_them(dataset: Dataset, tmp_path: Path) -> None:
    config, path = tiny(max_iters=4), tmp_path / "run"
    run(config, dataset, path)
    run(config.replace({"max_iters": 6}), dataset, path, resume=True)
    assert json.loads((path / "config.json").read_text())["max_iters"] == 6
    for file in (path / "checkpoints").glob("*/model.safetensors"):
        file.write_bytes(b"damaged")
    with pytest.raises(OnecardError):
        run(config.replace({"max_iters": 9}), dataset, path, resume=True)
    assert json.loads((path / "config.json").read_text())["max_iters"] == 6, "refused: nothing was changed"


def test_a_loss_that_is_no_number_is_never_the_best(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = GPT.token_losses
    calls: list[int] = []

    def first_is_nan(*given: Any, **keys: Any) -> Any:
        calls.append(0)
        losses_BT = real(*given, **keys)
        return losses_BT * float("nan") if len(calls) <= 4 else losses_BT

    monkeypatch.setattr(GPT, "token_losses", first_is_nan)
    seen = run(tiny(), dataset, tmp_path / "run")
    assert isinstance(seen[-1], End)
    assert seen[-1].best_val_loss is not None
    assert seen[-1].best_val_loss < 6


def test_evaluation_that_never_fits_ends_clearly(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_arguments: Any, **_keywords: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(GPT, "token_losses", full)
    seen = run(tiny(), dataset, tmp_path / "run")
    assert_halved_to_the_end(seen)


def test_what_failed_in_evaluation_is_freed_before_the_next_try(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, held = GPT.token_losses, []

    def once(self: GPT, *arguments: Any, **keywords: Any) -> Any:
        if not held:
            activations = torch.zeros(10)
            held.append(weakref.ref(activations))
            raise torch.OutOfMemoryError("CUDA out of memory.")
        assert held[0]() is None, "the error's frames keep what must be freed"
        return real(self, *arguments, **keywords)

    monkeypatch.setattr(GPT, "token_losses", once)
    run(tiny(), dataset, tmp_path / "run")
    assert held


def test_other_errors_are_not_swallowed(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GPT, "loss", failing_at(GPT.loss, 3, ValueError("a bug\nin two lines")))
    with pytest.raises(ValueError, match="a bug"):
        run(tiny(), dataset, tmp_path / "run")
    end = load_run(tmp_path / "run").end
    assert end
    assert (end.step, end.reason, end.more) == (1, "error", {"error": "a bug"}), "the doctor can tell"


def test_a_second_interrupt_is_recorded_as_one(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GPT, "loss", failing_at(GPT.loss, 3, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        run(tiny(), dataset, tmp_path / "run")
    end = load_run(tmp_path / "run").end
    assert end
    assert end.reason == "interrupted"


def test_a_run_that_cannot_even_record_its_end_was_cut_off(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.write

    def full(descriptor: int, content: bytes) -> int:
        if b'"kind":"checkpoint"' in content or b'"kind":"end"' in content:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, content)

    path = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(MachineError) as refused:
            run(tiny(), dataset, path)
    assert refused.value.name == "disk-full"
    assert load_run(path).end is None
    assert load_run(path).cut_off
    with resume_run(path):
        assert not load_run(path).cut_off, "somebody is at it"
    assert not load_run(path).cut_off
    run(tiny(), dataset, path, resume=True)
    assert load_run(path).finished


@pytest.mark.parametrize(
    ("batch", "sequences", "smaller"), [(16, 512, 8), (12, 480, 6), (5, 40, 2), (3, 9, 1), (1, 8, None)]
)
def test_a_smaller_micro_batch_divides_the_step(batch: int, sequences: int, smaller: int | None) -> None:
    assert smaller_micro_batch(batch, sequences) == smaller


def test_eval_only_evaluates_and_stops(dataset: Dataset, tmp_path: Path) -> None:
    seen = run(tiny(eval_only=True), dataset, tmp_path / "run")
    assert [type(record) for record in seen] == [Start, Eval, End]


def test_max_hours_saves_and_stops(dataset: Dataset, tmp_path: Path) -> None:
    seen = run(tiny(max_hours=1e-9), dataset, tmp_path / "run")
    assert isinstance(seen[-1], End)
    assert seen[-1].reason == "max_hours"
    assert load_run(tmp_path / "run").checkpoints


def test_the_last_checkpoints_and_the_best_are_kept(dataset: Dataset, tmp_path: Path) -> None:
    run(tiny(max_iters=12, lr_decay_iters=12, eval_interval=2, keep_checkpoints=2), dataset, tmp_path / "run")
    assert {saved.step for saved in load_run(tmp_path / "run").checkpoints} >= {10, 12}
    assert len(load_run(tmp_path / "run").checkpoints) <= 3


def test_a_run_that_is_moved_meanwhile_goes_on_where_it_is(dataset: Dataset, tmp_path: Path) -> None:
    config, before, after = tiny(), tmp_path / "before", tmp_path / "after"
    run(config, dataset, tmp_path / "undisturbed")
    said: list[str] = []

    def move(record: Record) -> None:
        if isinstance(record, Step) and record.step == 2:
            before.rename(after)

    with create_run(before, config=config.model_dump()) as folder:
        train(config, folder, dataset, resume=False, on_record=move, on_note=said.append)
        assert folder.path == after
    assert said == [f"the run folder was moved: the run continues in {after}"]
    assert not before.exists()
    assert losses(after) == losses(tmp_path / "undisturbed")
    assert {saved.step for saved in load_run(after).checkpoints} >= {4, 8}


def test_another_file_of_records_in_the_folder_ends_nothing(dataset: Dataset, tmp_path: Path) -> None:
    """As an editor leaves it, which writes a new file and renames it."""
    config, path = tiny(), tmp_path / "run"

    def edit(record: Record) -> None:
        if isinstance(record, Step) and record.step == 2:
            shutil.copy(path / "records.jsonl", path / "edited")
            (path / "edited").rename(path / "records.jsonl")

    with create_run(path, config=config.model_dump()) as folder:
        finished = train(config, folder, dataset, resume=False, on_record=edit)
    assert finished.end.reason == "finished"
    assert {saved.step for saved in load_run(path).checkpoints} == {4, 8}


def test_a_run_whose_folder_is_deleted_ends_with_a_clear_error(dataset: Dataset, tmp_path: Path) -> None:
    config, path = tiny(), tmp_path / "run"

    def delete(record: Record) -> None:
        if isinstance(record, Step) and record.step == 2:
            shutil.rmtree(path)

    with create_run(path, config=config.model_dump()) as folder, pytest.raises(MachineError, match="is gone") as gone:
        train(config, folder, dataset, resume=False, on_record=delete)
    assert gone.value.name == "run-gone"
    assert not path.exists(), "no ghost of it is made"


def test_a_disk_without_room_for_a_checkpoint_is_refused_before_the_first_update(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = SimpleNamespace(free=2**18)
    monkeypatch.setattr("onecard.files.shutil.disk_usage", lambda _: free)
    with pytest.raises(MachineError) as refused:
        run(tiny(), dataset, tmp_path / "run")
    assert refused.value.name == "disk-full"
    assert load_run(tmp_path / "run").steps == ()
    run(tiny(eval_only=True), dataset, tmp_path / "evaluated")  # saves nothing


def test_how_the_part_before_ended_is_no_finding_of_the_next(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(max_iters=40, lr_decay_iters=40, eval_interval=10)
    with monkeypatch.context() as patch:
        patch.setattr(GPT, "loss", failing_at(GPT.loss, 50, RuntimeError("the power went")))
        with pytest.raises(RuntimeError, match="power"):
            run(config, dataset, tmp_path / "run")
    seen = run(config, dataset, tmp_path / "run", resume=True)
    rules = {record.finding.rule for record in seen if isinstance(record, FindingRecord)}
    assert "stopped-early" not in rules


def test_a_quarter_of_an_hour_without_a_checkpoint_is_the_most(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def saved_at(name: str, **keys: Any) -> list[int]:
        seen = run(tiny(max_iters=6, eval_interval=6, **keys), dataset, tmp_path / name)
        return [record.step for record in seen if isinstance(record, Checkpoint)]

    assert saved_at("fast") == [6]
    clock = iter(range(0, 10**9, 400))
    monkeypatch.setattr("onecard.train.saving.time.monotonic", lambda: next(clock))
    by_time = saved_at("slow")
    assert by_time[-1] == 6
    assert len(by_time) > 1
    assert saved_at("named", checkpoint_interval=4) == [4, 6], "an interval that is named is kept to"


@pytest.mark.parametrize(("evaluation", "reported"), [(100, False), (100 + 40 * MIB, True), (None, False)])
def test_an_evaluation_above_training_is_reported(evaluation: int | None, reported: bool) -> None:
    looped: Any = _Loop.__new__(_Loop)  # on a CPU there are no peaks to measure
    seen: list[Record] = []
    looped.card, looped.peaks, looped.eval_batch_size = None, SimpleNamespace(highest_in_training=100), 8
    looped.trainer = SimpleNamespace(step=7, batch_size=4)
    looped._record = seen.append
    looped._check_peak(evaluation)
    assert [type(record) for record in seen] == ([FindingRecord] if reported else [])


def test_the_doctor_watches_and_reports_each_finding_once(dataset: Dataset, tmp_path: Path) -> None:
    config = tiny(max_iters=40, lr_decay_iters=80, eval_interval=10, dropout=0.2, learning_rate=0.05)
    seen = run(config, dataset, tmp_path / "run")
    findings = [record for record in seen if isinstance(record, FindingRecord)]
    rules = [record.finding.rule for record in findings]
    assert "lr-out-of-range" in rules, "0.05 is far above any rate for AdamW"
    assert len(rules) == len(set(rules))
    assert all(isinstance(seen[seen.index(record) - 1], Eval | FindingRecord) for record in findings)
    again = run(config.replace({"max_iters": 50}), dataset, tmp_path / "run", resume=True)
    assert not {record.finding.rule for record in again if isinstance(record, FindingRecord)} & set(rules)


def test_the_folder_of_a_run_tells_the_doctor_the_size_of_its_data(dataset: Dataset, tmp_path: Path) -> None:
    config = tiny(max_iters=4, lr_decay_iters=4, dropout=0.2)
    seen = run(config, dataset, tmp_path / "run")
    begun = next(record for record in seen if isinstance(record, Start))
    assert (begun.train_tokens, begun.val_tokens) == (len(dataset.train), len(dataset.val))
    assert "needless-dropout" in {record.finding.rule for record in seen if isinstance(record, FindingRecord)}
    found = diagnose(load_run(tmp_path / "run"))
    assert (found.case.data.train_tokens, found.case.data.val_tokens) == (len(dataset.train), len(dataset.val))
    assert not [what for what in found.unknown if "data" in what]
    (dropout,) = [finding for finding in found.findings if finding.rule == "needless-dropout"]
    assert "while it trained" not in dropout.what, "the doctor can look for itself"
    assert dropout.sure == "high"


def test_a_bug_of_the_doctor_is_reported_once_and_does_not_end_training(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken_rule(_: Any) -> None:
        raise ZeroDivisionError("no evaluations\nand more")

    run(tiny(), dataset, tmp_path / "plain")
    monkeypatch.setattr("onecard.doctor.diagnose.RULES", (broken_rule,))
    seen = run(tiny(), dataset, tmp_path / "run")
    assert sum(isinstance(record, Eval) for record in seen) == 3, "it failed three times"
    (told,) = [record for record in seen if isinstance(record, FindingRecord)]
    assert told.finding.what == "the live doctor failed: ZeroDivisionError: no evaluations; the training goes on"
    assert any("in broken_rule" in line for line in told.finding.seen), "the traceback says where"
    assert told in load_run(tmp_path / "run").records
    assert losses(tmp_path / "run") == losses(tmp_path / "plain")
    again = run(tiny(max_iters=12), dataset, tmp_path / "run", resume=True)
    assert isinstance(again[-1], End)
    assert not [record for record in again if isinstance(record, FindingRecord)], "a resumed run has told it"


def test_a_graph_that_cannot_be_recorded_is_told_at_once_and_once(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    class Recording(Trainer):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self.steps.records = True

    monkeypatch.setattr("onecard.train.operations.RecordedMicroBatch", failing)
    run(tiny(), dataset, tmp_path / "plain")
    monkeypatch.setattr("onecard.train.loop.Trainer", Recording)
    seen = run(tiny(), dataset, tmp_path / "failing")
    told = [record for record in seen if isinstance(record, FindingRecord) and record.finding.rule == "no-cuda-graph"]
    assert [(record.step, record.finding.why) for record in told] == [
        (2, "operation not permitted when stream is capturing")
    ]
    assert losses(tmp_path / "failing") == losses(tmp_path / "plain")


# The best checkpoint of a run that goes on


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[int, float]:
    """Validation losses by step, to be filled in by the test; every evaluation gives what is said here."""
    said: dict[int, float] = {}
    real = _Loop._evaluate

    def at_its_step(self: Any) -> None:
        found = Evaluation(
            train=SplitLosses(mean=1.0, spread=0.1, sequences=1),
            val=SplitLosses(mean=said[self.trainer.step], spread=0.1, sequences=1),
            tokens_read=1,
            seconds=0.0,
            batch_size=1,
        )
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(loop, "evaluate", lambda *_, **__: found)
            real(self)

    monkeypatch.setattr(_Loop, "_evaluate", at_its_step)
    return said


def marked(path: Path) -> tuple[int, float]:
    found = checkpoint.best(path / "checkpoints")
    assert found
    return found.step, found.val_loss


def longer(steps: int, **keys: Any) -> RunConfig:
    return tiny(max_iters=steps, eval_interval=4, keep_checkpoints=1, **keys)


def test_the_best_survives_however_often_a_finished_run_is_extended(
    dataset: Dataset, tmp_path: Path, measured: dict[int, float]
) -> None:
    measured.update({0: 9.0, 4: 4.0, 6: 3.0, 7: 3.5, 8: 3.4, 9: 3.3, 10: 3.2})
    path = tmp_path / "run"
    run(longer(4), dataset, path)
    run(longer(6), dataset, path, resume=True)
    for steps in (7, 9, 10):
        seen = run(longer(steps), dataset, path, resume=True)
        assert isinstance(seen[-1], End)
        assert seen[-1].best_val_loss == 3.0
        assert marked(path) == (6, 3.0)
    assert {saved.step for saved in load_run(path).checkpoints} == {6, 10}


def test_a_kill_between_an_evaluation_and_its_mark_loses_no_best(
    dataset: Dataset, tmp_path: Path, measured: dict[int, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured.update({0: 9.0, 4: 4.0, 6: 3.0, 7: 3.5})
    path = tmp_path / "run"
    run(longer(4), dataset, path)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "mark_best", failing_at(checkpoint.mark_best, 1, RuntimeError("killed")))
        with pytest.raises(RuntimeError, match="killed"):
            run(longer(6), dataset, path, resume=True)
    assert marked(path) == (4, 4.0)
    run(longer(7), dataset, path, resume=True)
    assert marked(path) == (6, 3.0)


@pytest.mark.parametrize("damage", ["deleted", "cut", "unmarked"])
def test_a_best_that_is_lost_is_forgotten_and_the_best_that_is_left_is_told(
    dataset: Dataset, tmp_path: Path, measured: dict[int, float], damage: str
) -> None:
    measured.update({0: 9.0, 4: 3.0, 6: 4.0, 8: 5.0, 9: 4.5, 10: 3.9})
    path = tmp_path / "run"
    run(longer(4), dataset, path)
    run(longer(6), dataset, path, resume=True)
    best = path / "checkpoints" / "step-00000004"
    if damage == "deleted":
        shutil.rmtree(best)
    elif damage == "cut":
        (best / "model.safetensors").write_bytes(b"")
    else:
        (path / "checkpoints" / "best.json").unlink()
    notes: list[str] = []
    with resume_run(path) as folder:
        train(longer(9), folder, dataset, resume=True, on_record=lambda _: None, on_note=notes.append)
    if damage == "unmarked":
        assert marked(path) == (4, 3.0), "the records still say which it is"
        return
    assert marked(path) == (6, 4.0)
    assert notes == ["the best checkpoint, step-00000004, is gone or damaged: step 6 is the best that is left"]
    run(longer(10), dataset, path, resume=True)
    assert marked(path) == (10, 3.9), "a better one than what is left is the best"


def test_a_resume_leaves_what_an_undisturbed_run_leaves(
    dataset: Dataset, tmp_path: Path, measured: dict[int, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured.update({0: 2.0, 4: 4.0, 8: 3.0})  # nothing is better than before the first update
    ends = []
    for name in ("whole", "cut"):
        path = tmp_path / name
        if name == "cut":
            with monkeypatch.context() as patched:
                patched.setattr(GPT, "loss", failing_at(GPT.loss, 11, RuntimeError("the power went")))
                with pytest.raises(RuntimeError, match="power"):
                    run(longer(8), dataset, path)
        ends.append(run(longer(8), dataset, path, resume=name == "cut")[-1])
        assert not (path / "checkpoints" / "best.json").exists()
    assert [end.best_val_loss for end in ends if isinstance(end, End)] == [2.0, 2.0]
