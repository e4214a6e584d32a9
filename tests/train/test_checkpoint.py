"""Checkpoints: exact, verified, and whole whenever the process or the disk gives up."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")
pytest.importorskip("safetensors", reason="needs safetensors: pip install 'onecard[train]'")

from safetensors import SafetensorError  # noqa: E402

from onecard.config.schema import RunConfig  # noqa: E402
from onecard.errors import MachineError, OnecardError  # noqa: E402
from onecard.runs import checkpoint_state  # noqa: E402
from onecard.train import checkpoint, checkpoint_files  # noqa: E402
from onecard.train.model import GPT  # noqa: E402
from onecard.train.optim import make_optimizer  # noqa: E402

TINY = RunConfig(n_layer=2, n_head=2, n_embd=16, block_size=8, vocab_size=31, bias=True, dropout=0.1)

SCALER = {
    "scale": 65536.0,
    "growth_factor": 2.0,
    "backoff_factor": 0.5,
    "growth_interval": 2000,
    "_growth_tracker": 3,
}


class Run:
    """A model in training on random tokens; dropout and data draw from torch's generator."""

    def __init__(self, config: RunConfig = TINY, *, seed: int = 1) -> None:
        torch.manual_seed(seed)
        self.config = config
        self.model = GPT(config)
        self.optimizer = make_optimizer(self.model, config)
        self.step = 0

    def train(self, steps: int) -> list[float]:
        losses = []
        for _ in range(steps):
            tokens_BT, targets_BT = torch.randint(self.config.vocab_size, (2, 4, self.config.block_size))
            value = self.model.loss(tokens_BT, targets_BT)
            value.backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.step += 1
            losses.append(value.item())
        return losses

    def state(self, **changes: Any) -> checkpoint.TrainingState:
        usual: dict[str, Any] = {
            "step": self.step,
            "tokens": self.step * 32,
            "elapsed_seconds": 0.1 + self.step,
            "data_fingerprint": "abc",
            "scaler": SCALER,
            "best_val_loss": 3.25,
        }
        return checkpoint.TrainingState(**usual | changes)

    def save(self, folder: Path, **changes: Any) -> Path:
        return checkpoint.save(
            folder, model=self.model, optimizer=self.optimizer, state=self.state(**changes), config=self.config
        )

    def load(self, path: Path, **options: Any) -> checkpoint.TrainingState:
        usual = {"optimizer": self.optimizer, "config": self.config, "data_fingerprint": "abc"}
        state = checkpoint.load(path, model=self.model, **usual | options)
        self.step = state.step
        return state


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the checkpoints of a run go, whose folder is there."""
    (tmp_path / "run").mkdir()
    return tmp_path / "run" / "checkpoints"


def saved_run(folder: Path, *steps: int) -> Run:
    """A run with a checkpoint at each of these steps."""
    run = Run()
    for step in steps:
        run.train(step - run.step)
        run.save(folder)
    return run


# Exact


def test_a_resumed_run_goes_on_bit_for_bit(folder: Path) -> None:
    run = saved_run(folder, 3)
    saved = run.state()
    undisturbed = run.train(5)
    resumed = Run(seed=99)
    resumed.train(2)
    assert resumed.load(folder / "step-00000003") == saved
    assert resumed.train(5) == undisturbed
    for mine, theirs in zip(resumed.model.parameters(), run.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_every_moment_comes_back_exactly(folder: Path) -> None:
    run = saved_run(folder, 3)
    resumed = Run(seed=99)
    resumed.load(folder / "step-00000003")
    for mine, theirs in zip(resumed.model.parameters(), run.model.parameters(), strict=True):
        moments, expected = resumed.optimizer.state[mine], run.optimizer.state[theirs]
        assert moments.keys() == expected.keys() == {"step", "exp_avg", "exp_avg_sq"}
        assert all(torch.equal(moments[key], expected[key]) for key in expected)


def test_the_state_before_the_first_update_can_be_saved(folder: Path) -> None:
    run = saved_run(folder, 0)
    undisturbed = run.train(3)
    resumed = Run(seed=99)
    resumed.load(folder / "step-00000000")
    assert resumed.train(3) == undisturbed


def test_the_rates_of_the_config_win_over_those_saved(folder: Path) -> None:
    saved_run(folder, 2)
    changed = Run(TINY.replace({"learning_rate": 1e-5, "weight_decay": 0.3}))
    changed.load(folder / "step-00000002")
    assert [(group["lr"], group["weight_decay"]) for group in changed.optimizer.param_groups] == [
        (1e-5, 0.3),
        (1e-5, 0.0),
    ]


def test_sampling_needs_the_weights_only(folder: Path) -> None:
    run = saved_run(folder, 2)
    (folder / "step-00000002" / checkpoint.OPTIMIZER).unlink()
    other = Run(TINY.replace({"dataset": "elsewhere"}), seed=5)
    before = torch.get_rng_state()
    other.load(folder / "step-00000002", optimizer=None)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(other.model.lm_head.weight, run.model.lm_head.weight)


def test_a_loaded_checkpoint_may_be_deleted(folder: Path) -> None:
    run = saved_run(folder, 2)
    undisturbed = run.train(3)
    resumed = Run(seed=99)
    resumed.load(folder / "step-00000002")
    shutil.rmtree(folder)
    assert resumed.train(3) == undisturbed


def test_nothing_is_pickled(folder: Path) -> None:
    saved_run(folder, 2)
    files = sorted(path.name for path in (folder / "step-00000002").iterdir())
    assert files == ["model.safetensors", "optimizer.safetensors", "state.json"]
    for module in (checkpoint, checkpoint_files):
        assert "pickle" not in Path(module.__file__).read_text().replace("pickled", "")
    for name in files[:2]:
        header_bytes = int.from_bytes((folder / "step-00000002" / name).read_bytes()[:8], "little")
        json.loads((folder / "step-00000002" / name).read_bytes()[8 : 8 + header_bytes])


def test_weights_are_saved_by_nanogpts_names_with_the_tied_one_once(folder: Path) -> None:
    from safetensors.torch import load_file

    run = saved_run(folder, 1)
    names = set(load_file(folder / "step-00000001" / checkpoint.MODEL))
    assert names == {name for name, _ in run.model.named_parameters()}
    assert "transformer.wte.weight" in names
    assert "lm_head.weight" not in names


# Damaged


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("name", [checkpoint.MODEL, checkpoint.OPTIMIZER, checkpoint_state.STATE])
@pytest.mark.parametrize("damage", [cut, flip, empty, Path.unlink])
def test_any_damage_is_found_and_the_checkpoint_before_is_used(
    folder: Path, name: str, damage: Callable[[Path], None]
) -> None:
    saved_run(folder, 1, 2)
    damage(folder / "step-00000002" / name)
    found = checkpoint.latest_good(folder)
    assert found.path == folder / "step-00000001"
    assert [path.name for path, _ in found.skipped] == ["step-00000002"]
    assert name in found.skipped[0][1]
    with pytest.raises(checkpoint.BadCheckpoint, match="step-00000002"):
        Run().load(folder / "step-00000002")


def test_a_number_changed_in_the_state_is_found(folder: Path) -> None:
    saved_run(folder, 1)
    state = folder / "step-00000001" / checkpoint_state.STATE
    state.write_text(state.read_text().replace('"tokens": 32', '"tokens": 33'))
    found = checkpoint.latest_good(folder)
    assert found.path is None
    assert found.skipped == ((folder / "step-00000001", "state.json does not match its checksum"),)


def test_a_folder_without_checkpoints_has_no_latest(folder: Path) -> None:
    assert checkpoint.latest_good(folder) == checkpoint.Found(None, ())
    folder.mkdir(parents=True)
    (folder / "step-1x").mkdir()
    (folder / "notes.txt").write_text("mine")
    assert checkpoint.latest_good(folder) == checkpoint.Found(None, ())


def test_a_damaged_load_changes_nothing(folder: Path) -> None:
    saved_run(folder, 1)
    flip(folder / "step-00000001" / checkpoint.OPTIMIZER)
    run = Run(seed=7)
    before = run.model.lm_head.weight.clone()
    with pytest.raises(checkpoint.BadCheckpoint):
        run.load(folder / "step-00000001")
    assert torch.equal(run.model.lm_head.weight, before)
    assert not run.optimizer.state


# Another model, another text


@pytest.mark.parametrize("change", [{"n_layer": 3}, {"n_embd": 32}, {"n_head": 1}, {"vocab_size": 33}, {"bias": False}])
def test_another_shape_or_vocabulary_is_refused_with_what_differs(folder: Path, change: dict[str, Any]) -> None:
    saved_run(folder, 1)
    ((key, value),) = change.items()
    with pytest.raises(OnecardError) as refused:
        Run(TINY.replace(change)).load(folder / "step-00000001")
    assert refused.value.name == "resume-mismatch"
    assert f"{key} was {getattr(TINY, key)} and is {value}" in refused.value.why


@pytest.mark.parametrize(("now", "is_same"), [("abc", True), ("xyz", False), (None, False)])
def test_another_dataset_is_refused_unless_its_token_files_are_the_same(
    folder: Path, now: str | None, is_same: bool
) -> None:
    saved_run(folder, 1)
    run = Run(TINY.replace({"dataset": "other"}))
    if is_same:
        assert run.load(folder / "step-00000001", data_fingerprint=now).step == 1
        return
    with pytest.raises(checkpoint.ResumeMismatch) as refused:
        run.load(folder / "step-00000001", data_fingerprint=now)
    assert f"dataset was {TINY.dataset} and is other" in refused.value.why


def test_weights_without_recorded_data_accept_any_data(folder: Path) -> None:
    saved = Run().save(folder, data_fingerprint=None)
    assert Run(TINY.replace({"dataset": "other"})).load(saved, data_fingerprint="xyz").data_fingerprint is None


def test_other_token_files_under_the_same_name_are_refused(folder: Path) -> None:
    saved_run(folder, 1)
    with pytest.raises(checkpoint.ResumeMismatch, match="cannot be continued") as refused:
        Run().load(folder / "step-00000001", data_fingerprint="xyz")
    assert "abc then, xyz now" in refused.value.why


def test_weights_that_do_not_fit_the_model_are_refused(folder: Path) -> None:
    saved_run(folder, 1)
    run = Run()
    wrong_model = GPT(TINY.replace({"n_layer": 3}))
    with pytest.raises(checkpoint.ResumeMismatch) as refused:
        checkpoint.load(folder / "step-00000001", model=wrong_model, optimizer=None, config=run.config)
    assert "transformer.h.2" in refused.value.why
    assert "is absent and must be" in refused.value.why


# Keeping and deleting


def steps(folder: Path) -> list[int]:
    return [checkpoint.step_of(path) for path in checkpoint.checkpoints(folder)]


def test_the_last_two_and_the_best_are_kept(folder: Path) -> None:
    run = saved_run(folder, 1, 2, 3, 4)
    checkpoint.mark_best(folder, step=1, val_loss=2.5)
    assert checkpoint.prune(folder, saved=folder / "step-00000004", keep=2) == []
    assert steps(folder) == [4, 3, 1]
    assert checkpoint.best(folder) == checkpoint.Best(step=1, val_loss=2.5)
    run.train(1)
    checkpoint.prune(folder, saved=run.save(folder), keep=1)
    assert steps(folder) == [5, 1]


def test_what_cannot_be_deleted_is_noted_and_ends_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = saved_run(folder, 1, 2)

    def refuse(path: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", refuse)
        (note,) = checkpoint.prune(folder, saved=folder / "step-00000002", keep=1)
        assert "step-00000001" in note
        assert "Operation not permitted" in note
        run.train(1)
        run.save(folder)  # what is left of it is in nobody's way
    assert steps(folder) == [3, 2]
    run.train(1)
    run.save(folder)
    assert not list(folder.glob(".gone-*")), "it is cleared once it can be"


def test_of_a_checkpoint_that_was_moved_and_linked_the_link_goes(folder: Path, tmp_path: Path) -> None:
    saved_run(folder, 1, 2)
    (folder / "step-00000001").rename(tmp_path / "elsewhere")
    (folder / "step-00000001").symlink_to(tmp_path / "elsewhere")
    assert checkpoint.latest_good(folder).path == folder / "step-00000002"
    assert checkpoint.prune(folder, saved=folder / "step-00000002", keep=1) == []
    assert steps(folder) == [2]
    assert (tmp_path / "elsewhere" / checkpoint.MODEL).is_file()


def test_files_and_dead_links_with_a_checkpoints_name_are_not_checkpoints(folder: Path) -> None:
    saved_run(folder, 1)
    (folder / "step-99999999").write_text("a file")
    (folder / "step-00000070").symlink_to("nowhere")
    assert checkpoint.latest_good(folder) == checkpoint.Found(folder / "step-00000001", ())
    assert checkpoint.prune(folder, saved=folder / "step-00000001", keep=1) == []


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.EMFILE])
def test_what_cannot_be_read_now_is_not_damaged(folder: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """The next attempt may read it: to pass it over would mean to delete it later."""
    saved_run(folder, 1, 2)
    real = checkpoint_state.file_digest

    def unreadable(path: Path) -> str:
        if path.parent.name == "step-00000002":
            raise OSError(number, os.strerror(number), str(path))
        return real(path)

    monkeypatch.setattr(checkpoint_state, "file_digest", unreadable)
    with pytest.raises(checkpoint_state.UnreadableCheckpoint, match="step-00000002 cannot be read") as refused:
        checkpoint.latest_good(folder)
    assert refused.value.exit_code == 3
    assert os.strerror(number) in refused.value.why
    assert "rm " not in refused.value.fix


@pytest.mark.parametrize(
    "said",
    [
        SafetensorError("Error while deserializing header: I/O error: Input/output error (os error 5)"),
        RuntimeError("unable to mmap 64 bytes from file </r/model.safetensors>: Input/output error (5)"),
    ],
)
def test_a_disk_that_fails_while_tensors_are_read_is_the_machines_fault(
    folder: Path, monkeypatch: pytest.MonkeyPatch, said: Exception
) -> None:
    saved_run(folder, 1)

    def broken(_path: Path) -> None:
        raise said

    monkeypatch.setattr(checkpoint_files, "load_file", broken)
    with pytest.raises(checkpoint_state.UnreadableCheckpoint) as refused:
        Run().load(folder / "step-00000001")
    assert os.strerror(errno.EIO) in refused.value.why
    assert "rm " not in refused.value.fix


def test_nothing_is_deleted_while_the_best_is_not_known(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One failing read of best.json must not delete the best checkpoint."""
    saved_run(folder, 1, 2, 3)
    checkpoint.mark_best(folder, step=1, val_loss=1.0)

    def broken(path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(checkpoint, "read_object", broken)
    for prune in (
        lambda: checkpoint.prune(folder, saved=folder / "step-00000003", keep=1),
        lambda: checkpoint.finish_pruning(folder, resumed=folder / "step-00000003", keep=1),
    ):
        (note,) = prune()
        assert os.strerror(errno.EIO) in note
        assert steps(folder) == [3, 2, 1]


def test_a_checkpoint_of_a_newer_onecard_is_not_passed_over(folder: Path) -> None:
    saved_run(folder, 1, 2)
    path = folder / "step-00000002" / checkpoint_state.STATE
    content = json.loads(path.read_text())
    del content["sha256"]
    content["schema"] = checkpoint_state.SCHEMA + 1
    path.write_text(json.dumps(content | {"sha256": checkpoint_state.digest(content)}))
    with pytest.raises(checkpoint_state.UnreadableCheckpoint, match="newer onecard"):
        checkpoint.latest_good(folder)


def test_damaged_later_checkpoints_do_not_push_out_the_good_one(folder: Path) -> None:
    saved_run(folder, 1, 2, 8, 9)
    flip(folder / "step-00000008" / checkpoint.MODEL)
    flip(folder / "step-00000009" / checkpoint.MODEL)
    resumed = Run()
    resumed.load(checkpoint.latest_good(folder).path or Path())
    resumed.train(1)
    checkpoint.prune(folder, saved=resumed.save(folder), keep=1)
    assert steps(folder) == [3]


def test_a_mark_that_cannot_be_read_is_no_mark(folder: Path) -> None:
    folder.mkdir(parents=True)
    assert checkpoint.best(folder) is None
    for text in ("", "[]", '{"step": "x", "val_loss": 1}', '{"step": 1}', '{"step": 1e400, "val_loss": 1}'):
        (folder / checkpoint.BEST).write_text(text)
        assert checkpoint.best(folder) is None


def test_saving_a_step_twice_keeps_the_first_unless_it_is_damaged(folder: Path) -> None:
    run = saved_run(folder, 2)
    first = (folder / "step-00000002" / checkpoint_state.STATE).stat().st_mtime_ns
    run.save(folder)
    assert (folder / "step-00000002" / checkpoint_state.STATE).stat().st_mtime_ns == first
    flip(folder / "step-00000002" / checkpoint.MODEL)
    run.save(folder)
    assert checkpoint.latest_good(folder).path == folder / "step-00000002"


# A process killed, a disk that refuses


class Killed(BaseException):
    """The process is killed here."""


CALLS = ("mkdir", "rename", "replace", "unlink", "rmdir", "fsync")


class Death:
    """Counts calls into the operating system and dies at one of them; a dead process makes no further call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, at: int) -> None:
        self.at, self.calls = at, 0
        for name in CALLS:
            dying = self.half_a_content if name == "fsync" else None
            monkeypatch.setattr(os, name, self.mortal(getattr(os, name), dying=dying))
        monkeypatch.setattr(
            checkpoint_files, "save_file", self.mortal(checkpoint_files.save_file, dying=self.half_a_file)
        )

    def mortal(self, call: Callable[..., Any], dying: Callable[..., None] | None = None) -> Callable[..., Any]:
        def maybe(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            if self.calls == self.at and dying:
                dying(*args)
            if self.calls >= self.at:
                raise Killed
            return call(*args, **kwargs)

        return maybe

    @staticmethod
    def half_a_file(_tensors: Any, path: Path) -> None:
        path.write_bytes(b"half")

    @staticmethod
    def half_a_content(descriptor: int) -> None:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode):  # before it is flushed, any part of a file may be missing
            os.ftruncate(descriptor, status.st_size // 2)


def deaths(act: Callable[[], None], prepare: Callable[[], None]) -> Iterator[int]:
    """Runs `act` again and again, killed at its first, second, … call, until it lives; yields after each death."""
    for at in range(1, 200):
        prepare()
        with pytest.MonkeyPatch.context() as monkeypatch:
            death = Death(monkeypatch, at=at)
            try:
                act()
            except Killed:
                pass
            else:
                assert death.calls < at
                return
        yield at
    raise AssertionError("it never lived")


def test_killed_at_any_call_of_a_save_the_folder_still_loads(folder: Path) -> None:
    template = folder.with_name("template")
    run = saved_run(template, 1)
    run.train(1)

    def prepare() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(template, folder)

    seen = set()
    for at in deaths(lambda: run.save(folder) and None, prepare):
        found = checkpoint.latest_good(folder)
        assert found.skipped == (), f"call {at} left a half checkpoint under a real name"
        assert found.path is not None
        seen.add(found.path.name)
        assert run.save(folder).name == "step-00000002"  # and the next save clears up
        assert not [path for path in folder.iterdir() if path.name.startswith(".")]
    assert seen == {"step-00000001", "step-00000002"}


def test_killed_at_any_call_of_a_prune_no_checkpoint_is_half_there(folder: Path) -> None:
    template = folder.with_name("template")
    run = saved_run(template, 1, 2, 3)

    def prepare() -> None:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(template, folder)

    died = 0
    for _ in deaths(lambda: checkpoint.prune(folder, saved=folder / "step-00000003", keep=1) and None, prepare):
        died += 1
        for path in checkpoint.checkpoints(folder):
            checkpoint.verify(path)
        checkpoint.prune(folder, saved=run.save(folder), keep=1)
        assert steps(folder) == [3]
        assert len(list(folder.iterdir())) == 1
    assert died >= 8


def test_killed_at_any_call_the_mark_of_the_best_is_the_old_or_the_new(folder: Path) -> None:
    folder.mkdir(parents=True)

    def prepare() -> None:
        checkpoint.mark_best(folder, step=1, val_loss=3.0)

    seen = []
    for _ in deaths(lambda: checkpoint.mark_best(folder, step=2, val_loss=2.0), prepare):
        marked = checkpoint.best(folder)
        assert marked is not None
        seen.append(marked.step)
        shutil.rmtree(Run().save(folder))  # the next save clears up
        assert [path.name for path in folder.iterdir()] == [checkpoint.BEST]
    assert set(seen) == {1, 2}


def refusing(number: int, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that refuses one kind of call with an error number."""

    def refuse(*_args: Any, **_kwargs: Any) -> None:
        raise OSError(number, os.strerror(number))

    def refuse_tensors(_tensors: Any, path: Path) -> None:
        Path(path).write_bytes(b"half")
        # The text is safetensors 0.8's own, for a file that could not be written.
        raise SafetensorError(f"Error while serializing: I/O error: {os.strerror(number)} (os error {number})")

    if call == "save_file":
        monkeypatch.setattr(checkpoint_files, "save_file", refuse_tensors)
    else:
        monkeypatch.setattr(os, call, refuse)


@pytest.mark.parametrize("call", ["mkdir", "save_file", "fsync", "rename"])
@pytest.mark.parametrize(
    ("number", "name"),
    [(errno.ENOSPC, "disk-full"), (errno.EROFS, "read-only"), (errno.EACCES, "read-only"), (errno.EIO, "cannot-write")],
)
def test_a_disk_that_refuses_is_a_clear_sentence_and_nothing_is_lost(
    folder: Path, call: str, number: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = saved_run(folder, 1)
    run.train(1)
    with monkeypatch.context() as patch:
        refusing(number, call, patch)
        with pytest.raises(MachineError) as refused:
            run.save(folder)
    assert (refused.value.name, refused.value.exit_code) == (name, 3)
    assert "what was written before is untouched" in refused.value.why
    assert [path.name for path in folder.iterdir()] == ["step-00000001"]
    checkpoint.verify(folder / "step-00000001")


@pytest.mark.parametrize(("number", "refused"), [(errno.EIO, True), (errno.ENOSPC, True), (errno.EINVAL, False)])
def test_a_folder_that_fails_to_sync_is_refused_and_one_that_cannot_is_not(
    folder: Path, number: int, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = saved_run(folder, 1)
    run.train(1)
    real = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(number, os.strerror(number))  # some network disks know no sync of a folder: EINVAL
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    if refused:
        with pytest.raises(MachineError):
            run.save(folder)
    else:
        run.save(folder)
    assert steps(folder) == ([1] if refused else [2, 1])


def test_an_error_of_safetensors_without_a_number_is_quoted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise SafetensorError("Error while serializing: something new")

    monkeypatch.setattr(checkpoint_files, "save_file", refuse)
    with pytest.raises(MachineError) as refused:
        Run().save(folder)
    assert refused.value.name == "cannot-write"
    assert "something new" in refused.value.why


@pytest.mark.parametrize(("number", "name"), [(errno.ENOSPC, "disk-full"), (errno.EROFS, "read-only")])
def test_a_mark_that_cannot_be_written_leaves_the_old_one(
    folder: Path, number: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.mkdir(parents=True)
    checkpoint.mark_best(folder, step=1, val_loss=3.0)
    refusing(number, "fsync", monkeypatch)
    with pytest.raises(MachineError) as refused:
        checkpoint.mark_best(folder, step=2, val_loss=2.0)
    assert refused.value.name == name
    assert checkpoint.best(folder) == checkpoint.Best(step=1, val_loss=3.0)
    assert [path.name for path in folder.iterdir()] == [checkpoint.BEST]


def test_a_file_that_really_cannot_be_written_is_a_clear_sentence(folder: Path) -> None:
    resource = pytest.importorskip("resource", reason="needs POSIX file size limits")
    run = saved_run(folder, 1)
    run.train(1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(MachineError) as refused:
            run.save(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert re.search("too large", refused.value.why, re.IGNORECASE)
    assert [path.name for path in folder.iterdir()] == ["step-00000001"]


def test_too_little_space_is_seen_before_writing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run()
    folder.mkdir(parents=True)
    usage = shutil.disk_usage(folder)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: usage)
    monkeypatch.setattr(checkpoint_files, "save_file", lambda *_: pytest.fail("it began to write"))
    with pytest.raises(MachineError, match=r"needs \d+ MiB and the disk has 1 KiB free") as refused:
        run.save(folder)
    assert refused.value.name == "disk-full"
    assert list(folder.iterdir()) == []


def with_room_for(checkpoints: float, monkeypatch: pytest.MonkeyPatch, folder: Path, *, each_takes: float = 1) -> None:
    """A disk that holds so many checkpoints of TINY, and says what is free; to delete one frees `each_takes`."""
    run = Run()
    run.train(1)
    each = checkpoint_files.needed_bytes(
        {"m": dict(run.model.named_parameters()), "o": checkpoint._optimizer_tensors(run.model, run.optimizer)}
    )

    def usage(_: Path) -> Any:
        free = checkpoints * each - each * len(checkpoint.checkpoints(folder))
        return SimpleNamespace(free=max(0, int(free)))

    monkeypatch.setattr(shutil, "disk_usage", usage)
    monkeypatch.setattr(checkpoint, "_size_bytes", lambda _: each_takes * each)


@pytest.mark.parametrize("keep", [1, 2])
def test_on_a_full_disk_old_checkpoints_are_deleted_before_saving(
    folder: Path, monkeypatch: pytest.MonkeyPatch, keep: int
) -> None:
    run = saved_run(folder, 1, 2)
    run.config = TINY.replace({"keep_checkpoints": keep})
    with_room_for(2.5, monkeypatch, folder)
    run.train(1)
    run.save(folder)
    assert steps(folder) == [3, 2], "the newest whole one stays until the next is written"
    checkpoint.verify(folder / "step-00000003")


def test_the_best_and_the_newest_whole_one_are_never_deleted_for_room(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = saved_run(folder, 1, 2, 3, 4)
    run.config = TINY.replace({"keep_checkpoints": 1})
    checkpoint.mark_best(folder, step=1, val_loss=2.0)
    flip(folder / "step-00000004" / checkpoint.MODEL)
    with_room_for(3.5, monkeypatch, folder)
    run.step = 3
    run.train(2)
    run.save(folder)
    assert steps(folder) == [5, 3, 1]


def test_nothing_is_deleted_where_it_would_not_be_enough(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = saved_run(folder, 1, 2, 3)
    run.config = TINY.replace({"keep_checkpoints": 1})
    with_room_for(3.1, monkeypatch, folder, each_takes=0.4)
    run.train(1)
    with pytest.raises(MachineError) as refused:
        run.save(folder)
    assert refused.value.name == "disk-full"
    assert steps(folder) == [3, 2, 1]


def test_fewer_checkpoints_are_offered_only_where_that_makes_room(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = saved_run(folder, 1, 2, 3)
    run.config = TINY.replace({"keep_checkpoints": 4})
    with_room_for(3.5, monkeypatch, folder)
    run.train(1)
    with pytest.raises(MachineError) as refused:
        run.save(folder)
    assert "--keep_checkpoints=1" in refused.value.fix
    run.config = TINY.replace({"keep_checkpoints": 1})
    run.save(folder)
    assert steps(folder)[0] == 4
    run.config = TINY.replace({"keep_checkpoints": 4})
    for path in checkpoint.checkpoints(folder)[1:]:
        shutil.rmtree(path)
    with_room_for(1.5, monkeypatch, folder)
    run.train(1)
    with pytest.raises(MachineError) as refused:
        run.save(folder)
    assert "--keep_checkpoints" not in refused.value.fix
