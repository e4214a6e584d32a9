"""The run folder: refused, locked, torn, full, read-only; and read by others all the while."""

import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from onecard.config.schema import NANOGPT_KEYS, RunConfig
from onecard.errors import ConfigError, MachineError, OnecardError
from onecard.files import HALF_WRITTEN, allow_readers
from onecard.inputs.config import config_named
from onecard.runs import lock
from onecard.runs.folder import (
    CHECKPOINTS,
    RECORDS,
    RunFolder,
    checkpoint_name,
    create_run,
    is_run,
    load_run,
    resume_run,
    runs_in,
)
from onecard.runs.record_json import to_line
from onecard.runs.records import End, Start, Step, Unknown

CONFIG = {"n_layer": 2, "out_dir": "out"}
FORMER: dict[str, object] = {"recipe": None, "param_dtype": "float32", "offload": "none", "tokenizer": None}
ROOT = Path(__file__).parents[2]


def step(number: int) -> Step:
    return Step(
        step=number,
        tokens=number,
        loss=3.0,
        lr=1e-3,
        grad_norm=1.0,
        seconds=0.1,
        elapsed_seconds=number * 0.1,
        tokens_per_second=10.0,
        mfu=None,
        allocated_bytes=None,
        reserved_bytes=None,
        data_wait_seconds=0.0,
    )


def start(number: int, *, resumed_from: str | None = None) -> Start:
    return Start(
        step=number,
        config=CONFIG,
        versions={},
        device="cpu",
        card=None,
        predicted_process_bytes=None,
        resumed_from=resumed_from,
    )


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunFolder]:
    with create_run(tmp_path / "runs" / "a", config=CONFIG) as made:
        yield made


def test_a_new_run_holds_its_config_and_no_records(run: RunFolder) -> None:
    read = load_run(run.path)
    assert read.config == CONFIG
    assert (read.records, read.checkpoints, read.last_step, read.finished, read.end) == ((), (), 0, False, None)


def test_what_was_appended_can_be_read_at_once(run: RunFolder) -> None:
    run.append(start(0))
    run.append(step(1))
    assert run.read().records == (start(0), step(1))
    assert run.read().last_step == 1


def test_a_run_is_finished_when_it_says_so(run: RunFolder) -> None:
    run.append(step(1))
    run.append(End(step=1, tokens=1, reason="finished", best_val_loss=None, seconds=1.0))
    assert run.read().finished
    run.append(start(1, resumed_from="checkpoints/step-00000001"))
    assert not run.read().finished


def test_a_torn_last_line_costs_that_line_alone(run: RunFolder) -> None:
    run.append(step(1))
    with (run.path / "records.jsonl").open("ab") as file:
        file.write(b'{"kind":"step","ste')
    assert run.read().records == (step(1),)
    run.append(step(2))
    read = run.read()
    assert read.records == (step(1), step(2))
    assert read.history.damaged_lines == 1


def test_a_whole_record_without_its_newline_is_kept(run: RunFolder) -> None:
    run.append(step(1))
    records = run.path / "records.jsonl"
    os.truncate(records, records.stat().st_size - 1)
    run.append(step(2))
    assert run.read().records == (step(1), step(2))
    assert run.read().history.damaged_lines == 0


def test_records_deleted_under_a_run_are_written_again(run: RunFolder) -> None:
    notes: list[str] = []
    run.on_note = notes.append
    run.append(start(0))
    run.append(step(1))
    (run.path / RECORDS).unlink()
    run.append(step(2))
    run.append(step(3))
    assert [record.step for record in run.read().steps] == [1, 2, 3]
    assert len(notes) == 1
    assert "was deleted while the run trained" in notes[0]
    assert not run.follow(), "its folder has not moved"


def test_records_put_back_from_an_older_copy_are_completed(run: RunFolder) -> None:
    run.append(step(1))
    older = (run.path / RECORDS).read_bytes()
    run.append(step(2))
    (run.path / RECORDS).unlink()
    (run.path / RECORDS).write_bytes(older)
    run.append(step(3))
    assert [record.step for record in run.read().steps] == [1, 2, 3]


def test_records_replaced_by_other_records_are_kept_and_continued(run: RunFolder) -> None:
    notes: list[str] = []
    run.on_note = notes.append
    run.append(step(1))
    (run.path / RECORDS).unlink()
    (run.path / RECORDS).write_bytes(to_line(replace(step(1), loss=2.5)) + b"edited")
    run.append(step(2))
    assert run.read().steps[0].loss == 2.5
    assert run.read().last_step == 2
    assert "was replaced" in notes[0]


def test_records_of_a_deleted_folder_are_not_written_into_a_new_one(run: RunFolder) -> None:
    run.append(step(1))
    shutil.rmtree(run.path)
    run.append(step(2))
    assert not run.path.exists()
    run.path.mkdir()
    run.append(step(3))
    assert list(run.path.iterdir()) == [], "it may belong to another run"


def test_history_keeps_what_a_resume_took_back(run: RunFolder) -> None:
    for record in (start(0), step(1), step(2), start(1, resumed_from="c"), step(2)):
        run.append(record)
    read = run.read()
    assert [record.step for record in read.steps] == [1, 2]
    assert len(read.history.records) == 5


def test_a_folder_with_a_checkpoint_is_refused_without_resume(run: RunFolder) -> None:
    (run.path / CHECKPOINTS / checkpoint_name(40)).mkdir(parents=True)
    run.close()
    with pytest.raises(ConfigError) as caught:
        create_run(run.path, config=CONFIG)
    assert caught.value.name == "run-exists"
    assert "step 40" in caught.value.what
    assert f"--resume {run.path}" in caught.value.fix


def test_a_folder_without_a_checkpoint_may_begin_anew(run: RunFolder) -> None:
    run.append(start(0))
    run.append(step(1))
    run.close()
    with create_run(run.path, config={"n_layer": 3}) as again:
        again.append(start(0))
        assert again.read().records == (start(0),)
        assert again.read().config == {"n_layer": 3}


def test_a_folder_with_nothing_but_a_runs_config_may_begin_anew(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(RunConfig().model_dump()))
    (tmp_path / "checkpoints").mkdir()
    with create_run(tmp_path, config=CONFIG) as again:
        assert again.read().config == CONFIG


def test_a_run_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    """It has keys that are gone."""
    (tmp_path / "config.json").write_text(json.dumps(FORMER | RunConfig(n_layer=3).model_dump()))
    assert is_run(tmp_path)
    assert load_run(tmp_path).config == RunConfig(n_layer=3).model_dump()
    found = config_named(str(tmp_path), [])
    assert found.config.n_layer == 3
    assert not any(key in warning for key in FORMER for warning in found.warnings)


def test_the_start_record_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    with create_run(tmp_path, config=CONFIG) as run:
        run.append(replace(start(0), config={**FORMER, "n_layer": 3}))
    (tmp_path / "config.json").unlink()
    assert load_run(tmp_path).config == {"n_layer": 3}


@pytest.mark.parametrize(
    "theirs",
    [
        "{}",
        "[]",
        "{torn",
        '{"model_type": "gpt2", "n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 65}',
        json.dumps(dict.fromkeys(NANOGPT_KEYS, 1)),
        json.dumps(RunConfig().model_dump() | {"model_type": "gpt2"}),
    ],
)
def test_somebody_elses_config_json_is_not_overwritten(tmp_path: Path, theirs: str) -> None:
    (tmp_path / "config.json").write_text(theirs)
    with pytest.raises(ConfigError) as caught:
        create_run(tmp_path, config=CONFIG)
    assert caught.value.name == "not-a-run"
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]
    assert (tmp_path / "config.json").read_text() == theirs


@pytest.mark.parametrize("checkpoints", [None, "checkpoints/epoch-1.pt", "checkpoints/step-00000100/model.pt"])
@pytest.mark.parametrize("records", [None, "1,2,3\n", '{"id": 1}\n', '{"kind": "Pod"}\n'])
@pytest.mark.parametrize("config", [None, "{torn", '{"model_type": "gpt2", "n_layer": 2}'])
def test_a_resume_in_somebody_elses_folder_writes_nothing(
    tmp_path: Path, config: str | None, records: str | None, checkpoints: str | None
) -> None:
    theirs = {"config.json": config, "records.jsonl": records, checkpoints: "weights"}
    for name, text in theirs.items():
        if name is not None and text is not None:
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError) as caught:
        resume_run(tmp_path)
    assert caught.value.name == "no-such-run"
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_somebody_elses_records_do_not_make_their_config_ours(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    (tmp_path / "records.jsonl").write_text('{"id": 1}\n')
    with pytest.raises(ConfigError) as caught:
        create_run(tmp_path, config=CONFIG)
    assert caught.value.name == "not-a-run"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "records.jsonl"]


def test_a_run_that_lost_its_records_resumes(tmp_path: Path) -> None:
    with create_run(tmp_path / "a", config=RunConfig().model_dump()):
        pass
    (tmp_path / "a" / "records.jsonl").unlink()
    with resume_run(tmp_path / "a") as again:
        assert again.read().config == RunConfig().model_dump()


def test_a_folder_of_another_program_is_not_listed_as_a_run(tmp_path: Path) -> None:
    (tmp_path / "theirs" / "checkpoints").mkdir(parents=True)
    (tmp_path / "theirs" / "config.json").write_text('{"model_type": "gpt2"}')
    assert runs_in(tmp_path) == ()


def test_a_file_is_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(ConfigError) as caught:
        create_run(tmp_path / "a", config=CONFIG)
    assert caught.value.name == "not-a-folder"


def test_a_run_resumes_with_its_config(run: RunFolder) -> None:
    run.close()
    with resume_run(run.path) as resumed:
        assert resumed.config == CONFIG
        resumed.write_config({"n_layer": 9})
    assert load_run(run.path).config == {"n_layer": 9}


@pytest.mark.parametrize("content", [None, "", "[]", "{", "[" * 100_000])
def test_a_run_without_a_readable_config_does_not_resume(run: RunFolder, content: str | None) -> None:
    run.close()
    config = run.path / "config.json"
    if content is None:
        config.unlink()
    else:
        config.write_text(content)
    with pytest.raises(ConfigError) as caught:
        resume_run(run.path)
    assert caught.value.name == "damaged-run"
    assert ("is missing" if content is None else "is damaged") in caught.value.what
    assert "near it" not in caught.value.why


def test_a_damaged_config_is_read_from_the_last_start(run: RunFolder) -> None:
    run.append(start(0))
    (run.path / "config.json").write_text("{")
    assert load_run(run.path).config == CONFIG
    run.close()
    with resume_run(run.path) as resumed:
        assert resumed.config == CONFIG


def test_a_stranger_with_checkpoints_of_his_own_gets_no_lock(tmp_path: Path) -> None:
    (tmp_path / "his" / "checkpoints" / "step-00000004").mkdir(parents=True)
    with pytest.raises(ConfigError) as caught:
        create_run(tmp_path / "his", config=CONFIG)
    assert caught.value.name == "run-exists"
    assert [path.name for path in (tmp_path / "his").iterdir()] == ["checkpoints"]


def test_a_run_that_ends_in_an_error_counts_as_cut_off_until_resumed(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with suppress(ZeroDivisionError), create_run(path, config=CONFIG):
        assert not load_run(path).cut_off, "it is at work"
        raise ZeroDivisionError
    assert load_run(path).cut_off
    with resume_run(tmp_path / "a"):
        pass
    assert not load_run(tmp_path / "a").cut_off


def test_the_missing_run_error_names_runs_nearby(run: RunFolder) -> None:
    with pytest.raises(ConfigError) as caught:
        load_run(run.path.parent / "b")
    assert caught.value.name == "no-such-run"
    assert "runs near it: a" in caught.value.why


def test_runs_are_listed_by_name(tmp_path: Path) -> None:
    for name in ("b", "a"):
        create_run(tmp_path / name, config=CONFIG).close()
    (tmp_path / "c").mkdir()
    assert [path.name for path in runs_in(tmp_path)] == ["a", "b"]
    assert runs_in(tmp_path / "a") == (tmp_path / "a",)
    assert runs_in(tmp_path / "nowhere") == ()


def test_a_run_is_also_found_by_its_records(run: RunFolder) -> None:
    assert load_run(run.path / "records.jsonl").config == CONFIG


def test_checkpoints_are_sorted_and_half_written_ones_do_not_count(run: RunFolder) -> None:
    for name in ("step-00000200", "step-00000030", "step-123456789", "step-00000040.tmp", ".step-00000050", "step-7"):
        (run.path / "checkpoints" / name).mkdir(parents=True)
    (run.path / "checkpoints" / "step-00000060").write_text("a file")
    assert [saved.step for saved in run.checkpoints()] == [30, 200, 123456789]
    assert run.checkpoints()[0].path == run.path / CHECKPOINTS / checkpoint_name(30)


def test_a_second_training_in_a_folder_is_refused(run: RunFolder) -> None:
    with pytest.raises(OnecardError) as caught:
        resume_run(run.path)
    assert caught.value.name == "run-in-use"
    assert str(os.getpid()) in caught.value.what
    assert all((caught.value.what, caught.value.why, caught.value.fix))
    run.close()
    resume_run(run.path).close()


def test_a_lock_ends_with_its_process_however_that_ends(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from onecard.runs.folder import create_run\n"
        "run = create_run(Path(sys.argv[1]), config={'n_layer': 2}); print('locked', flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "a")], stdout=subprocess.PIPE, cwd=ROOT) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"locked\n"
        with pytest.raises(OnecardError, match=f"process {other.pid}"):
            resume_run(tmp_path / "a")
        other.send_signal(signal.SIGKILL)
        other.wait()
    resume_run(tmp_path / "a").close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork, this system has none")
def test_a_forked_child_does_not_keep_the_lock_of_its_dead_parent(tmp_path: Path) -> None:
    code = (
        "import os, sys, time; from pathlib import Path; from onecard.runs.folder import create_run\n"
        "run = create_run(Path(sys.argv[1]), config={'n_layer': 2})\n"
        "if os.fork() == 0: print(os.getpid(), flush=True)\n"
        "time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "a")], stdout=subprocess.PIPE, cwd=ROOT
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
        parent.wait()
        try:
            resume_run(tmp_path / "a").close()
        finally:
            os.kill(child, signal.SIGKILL)


def test_where_disks_cannot_lock_a_living_process_is_respected(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    run.close()
    monkeypatch.setattr(lock, "_take", lambda _descriptor: None)
    (run.path / "lock").write_text(f"{os.getppid()} {socket.gethostname()}\n")
    with pytest.raises(OnecardError) as caught:
        resume_run(run.path)
    assert caught.value.name == "run-in-use"
    (run.path / "lock").write_text(f"{2**31 - 2} {socket.gethostname()}\n")
    resume_run(run.path).close()


@pytest.mark.parametrize("content", ["", "x y", "-1 h", "999999999999999999999 h", "\0", "1 2 3"])
def test_a_lock_file_with_anything_in_it_is_no_obstacle(run: RunFolder, content: str) -> None:
    run.close()
    (run.path / "lock").write_text(content)
    resume_run(run.path).close()


@pytest.mark.parametrize(
    ("number", "name"), [(errno.ENOSPC, "disk-full"), (errno.EROFS, "read-only"), (errno.EIO, "cannot-write")]
)
def test_a_write_that_fails_is_three_lines_and_exit_code_3(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch, number: int, name: str
) -> None:
    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(MachineError) as caught:
        run.append(step(1))
    assert (caught.value.name, caught.value.exit_code) == (name, 3)
    assert all((caught.value.what, caught.value.why, caught.value.fix))


def test_a_disk_that_fills_up_in_mid_line_loses_that_line_alone(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.append(step(1))
    real, left = os.write, [30]

    def small_disk(descriptor: int, content: bytes) -> int:
        if left[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = real(descriptor, content[: left[0]])
        left[0] -= taken
        return taken

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", small_disk)
        with pytest.raises(MachineError, match="disk is full"):
            run.append(step(2))
    assert run.read().records == (step(1),)
    run.append(step(2))
    assert run.read().records == (step(1), step(2))


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o002, 0o664), (0o077, 0o600)])
def test_a_file_of_another_library_gets_the_permissions_that_the_user_gives(
    tmp_path: Path, mask: int, mode: int
) -> None:
    path = tmp_path / "model.safetensors"
    path.touch(mode=0o600)
    before = os.umask(mask)
    try:
        allow_readers(path)
        assert os.umask(mask) == mask, "and the mask stays"
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == mode


def test_a_disk_without_permissions_keeps_them_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(Path, "chmod", refuse)
    (tmp_path / "model.safetensors").touch()
    allow_readers(tmp_path / "model.safetensors")


def test_a_config_that_cannot_be_written_leaves_the_old_one(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(MachineError, match="disk is full"):
        run.write_config({"n_layer": 9})
    assert load_run(run.path).config == CONFIG
    assert not list(run.path.glob(f".*{HALF_WRITTEN}"))


def test_a_read_only_folder_is_exit_code_3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:  # chmod would not stop root, who may run the tests
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(MachineError) as caught:
        create_run(tmp_path / "a", config=CONFIG)
    assert (caught.value.name, caught.value.exit_code) == ("read-only", 3)
    assert "--out_dir=PATH" in caught.value.fix


def test_a_folder_that_cannot_be_made_is_exit_code_3(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError):
        create_run(tmp_path / "file" / "a", config=CONFIG)


def test_records_of_a_later_version_are_written_and_read(run: RunFolder) -> None:
    run.append(Unknown(kind="later", more={"x": 1}))
    assert json.loads((run.path / "records.jsonl").read_text()) == {"kind": "later", "x": 1}
    assert run.read().records[0].kind == "later"


def test_the_runs_package_needs_the_standard_library_only() -> None:
    code = "import sys, onecard.runs.folder; print([m for m in ('numpy', 'pydantic', 'torch') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["link", "link/below"])
def test_a_link_that_leads_nowhere_is_told_with_what_to_make(tmp_path: Path, name: str) -> None:
    (tmp_path / "link").symlink_to("not there")
    with pytest.raises(MachineError, match="could not be written") as refused:
        create_run(tmp_path / name, config=CONFIG)
    assert f"{tmp_path / 'link'} is a link to not there, which does not exist" in refused.value.why
    made = refused.value.fix.partition("   (")[0]
    assert made == f"mkdir -p '{tmp_path.resolve() / 'not there'}'"
    subprocess.run(made, shell=True, check=True)
    create_run(tmp_path / name, config=CONFIG).close()
