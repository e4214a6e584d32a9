"""JSON that lies: wrong types, absurd sizes, endless depth. Three lines and exit code 2, never an internal error."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

from onecard import untrusted_json  # noqa: E402
from onecard.cli.main import run  # noqa: E402
from onecard.runs.folder import load_run  # noqa: E402
from onecard.train import checkpoint  # noqa: E402
from onecard.untrusted_json import BadJson, parsed, read_object  # noqa: E402
from tests.share import WHOLE  # noqa: E402

TINY = [
    *("--n_layer=2", "--n_head=2", "--n_embd=32", "--block_size=32", "--batch_size=4", "--device=cpu"),
    *("--warmup_iters=2", "--eval_interval=4", "--eval_iters=2", "--max_iters=8", "--lr_decay_iters=8"),
]
DEEP = "[" * 200_000
HUGE = 10**400


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of eight updates with checkpoints at steps 4 and 8."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ONECARD_HOME", str(folder / "home"))
        assert run(["train", *TINY, f"--out_dir={folder / 'r'}"]) == 0
    return folder / "r"


@pytest.fixture
def made(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONECARD_HOME", str(trained.parent / "home"))
    shutil.copytree(trained, tmp_path / "r")
    return tmp_path / "r"


def three_lines(said: str) -> bool:
    """Whether the last three lines are an error: notes may stand before it."""
    return [line.split(":")[0].strip() for line in said.splitlines()[-3:]] == ["error", "why", "fix"]


# The reader


@pytest.mark.parametrize("text", [DEEP, '{"a":' * 100_000, "[" * 65 + "]" * 65, '["\\"' + "[" * 100 + '",' + "[" * 70])
def test_depth_is_refused_before_it_is_parsed(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted_json.json, "loads", lambda _: pytest.fail("was parsed"))
    with pytest.raises(BadJson, match="more than 64"):
        parsed(text.encode())


def test_brackets_in_text_and_side_by_side_are_not_deep() -> None:
    value = {"a": "[" * 1000, "b": [[1]] * 1000, 'c"': "\\" * 9 + '"' + "{" * 99}
    assert parsed(json.dumps(value).encode()) == value


@pytest.mark.parametrize("text", ['"' + '\\"' * 500_000 + "\\", "[" * 100 + '"\\' * 500_000, '[{"' * 300_000])
def test_the_time_is_linear_in_the_size(text: str) -> None:
    began = time.perf_counter()
    with pytest.raises(BadJson):
        parsed(text.encode())
    assert time.perf_counter() - began < 2


@pytest.mark.parametrize("content", [b"\xff\xfe{}", b"", b"{", b"nul", b"1" * 5000, b"[1]", b"{}" + b" " * 2**20])
def test_what_is_not_an_object_in_a_file_of_bounded_size_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(BadJson):
        read_object(tmp_path / "a.json")


def test_a_file_that_is_not_one_is_refused() -> None:
    with pytest.raises(BadJson, match="not a regular file"):
        read_object(Path("/dev/zero"))


def test_memory_is_bounded_by_the_size_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    with file.open("wb") as grown:
        grown.truncate(2**33)  # eight GiB of nothing
    tracemalloc.start()
    try:
        with pytest.raises(BadJson, match="larger than"):
            read_object(file)
        assert tracemalloc.get_traced_memory()[1] < 4 * untrusted_json.LONGEST_BYTES
    finally:
        tracemalloc.stop()


WRONG = {
    untrusted_json.whole: [True, 1.5, "1", None, [], HUGE, 2**63, float("nan"), 1e300],
    untrusted_json.count: [-1, HUGE],
    untrusted_json.positive: [0, -1],
    untrusted_json.number: [True, "1", None, {}, HUGE, -HUGE, float("nan"), float("inf"), 1e308],
    untrusted_json.seconds: [-1, 1e308, float("inf"), "1"],
    untrusted_json.text: [1, None, [], True],
    untrusted_json.yes_or_no: [1, 0, "true", None],
    untrusted_json.mapping: [[], "a", None, 1],
    untrusted_json.scalar: [[], {}, HUGE, "a" * 5000, (1,), object()],
}


@pytest.mark.parametrize(("read", "value"), [(read, value) for read, values in WRONG.items() for value in values])
def test_a_reader_takes_one_kind_of_value(read: Callable[[object], object], value: object) -> None:
    with pytest.raises(BadJson) as refused:
        read(value)
    assert len(str(refused.value)) < 120


# The JSON of a checkpoint


def signed(content: dict[str, Any]) -> bytes:
    """A state.json with the checksum that fits, as anybody can make one."""
    content = {key: value for key, value in content.items() if key != "sha256"}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return json.dumps({**content, "sha256": digest}).encode()


def without(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda state: {key: value for key, value in state.items() if key != name}


def changed(**values: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda state: {**state, **values}


NESTED: Any = [[[[{"a": [{}]}]]]]
MALFORMED: dict[str, Callable[[dict[str, Any]], Any]] = {
    **{
        f"no {name}": without(name)
        for name in ("schema", "step", "tokens", "elapsed_seconds", "config", "rng", "files")
    },
    **{
        f"{name} is nested": changed(**{name: NESTED})
        for name in ("step", "config", "rng", "files", "scaler", "schema")
    },
    **{f"{name} is text": changed(**{name: "8"}) for name in ("step", "tokens", "elapsed_seconds", "best_val_loss")},
    **{f"{name} is huge": changed(**{name: HUGE}) for name in ("step", "tokens", "elapsed_seconds", "schema")},
    **{f"{name} is NaN": changed(**{name: float("nan")}) for name in ("step", "elapsed_seconds", "best_val_loss")},
    "the best loss is -10^400": changed(best_val_loss=-HUGE),
    "step is negative": changed(step=-1),
    "step is another's": changed(step=7),
    "step is true": changed(step=True),
    "the fingerprint is a list": changed(data_fingerprint=["a"]),
    "three micro-batches": changed(micro_batches=[4, 4, 4]),
    "a micro-batch of 0": changed(micro_batches=[4, 0]),
    "a micro-batch of 10^12": changed(micro_batches=[4, 10**12]),
    "no sequences": changed(eval_sequences=0),
    "an empty scaler": changed(scaler={}),
    "a scaler of text": changed(scaler={"scale": "x"}),
    "rng of numbers": changed(rng={"cpu": 1}),
    "no size of a file": changed(files={"model.safetensors": {}, "optimizer.safetensors": {}}),
    "files of lists": changed(files={"model.safetensors": [], "optimizer.safetensors": []}),
    "a config of lists": lambda state: {**state, "config": {**state["config"], "n_layer": [2]}},
    "a list": lambda state: [state],
}
LOADED = {  # found when the state is put back: the checkpoint is refused, and not skipped
    "no rng of the CPU": changed(rng={}),
    "rng of another size": changed(rng={"cpu": "00ff"}),
    "rng of zeros": lambda state: {**state, "rng": {"cpu": "00" * (len(state["rng"]["cpu"]) // 2)}},
    "rng that is not hexadecimal": changed(rng={"cpu": "xy"}),
}


def rewrite(made: Path, change: Callable[[dict[str, Any]], Any], name: str = "step-00000008") -> None:
    state = made / "checkpoints" / name / "state.json"
    content = change(json.loads(state.read_text()))
    state.write_bytes(signed(content) if isinstance(content, dict) else json.dumps(content).encode())


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_state_with_a_right_checksum_is_damaged(
    made: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    rewrite(made, MALFORMED[name])
    found = checkpoint.latest_good(made / "checkpoints")
    assert found.path == made / "checkpoints" / "step-00000004"
    assert len(found.skipped[0][1]) < 200
    rewrite(made, MALFORMED[name], "step-00000004")
    for command in (["export", "r", "--to", "nanogpt"], ["train", "--resume", "r", "--max_iters=16"], ["sample", "r"]):
        assert run(command) == 2, command
        assert three_lines(capsys.readouterr().err), command


@pytest.mark.parametrize("name", LOADED)
def test_random_numbers_that_cannot_be_put_back_are_refused(
    made: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    before = torch.get_rng_state()
    rewrite(made, LOADED[name])
    assert run(["train", "--resume", "r", "--max_iters=16"]) == 2
    assert "rng has no state of the cpu generator" in capsys.readouterr().err
    assert before.numel() == torch.get_rng_state().numel()


@pytest.mark.parametrize("text", [DEEP, "[]", '{"step": [8]}', f'{{"step": {HUGE}}}', '{"step": 8, "val_loss": NaN}'])
def test_a_mark_of_the_best_that_lies_is_no_mark(made: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    (made / "checkpoints" / "best.json").write_text(text)
    assert checkpoint.best(made / "checkpoints") is None
    assert run(["export", "r", "--to", "nanogpt", "--best"]) == 2
    said = capsys.readouterr().err
    assert "no-best-checkpoint" in said
    assert "best.json says which, and it is damaged" in said


@pytest.mark.parametrize("content", [DEEP.encode(), b"\xff" * 9, b'{"schema": 1', b" " * 2**21])
def test_a_state_that_is_no_json_is_damaged(made: Path, capsys: pytest.CaptureFixture[str], content: bytes) -> None:
    for name in ("step-00000004", "step-00000008"):
        (made / "checkpoints" / name / "state.json").write_bytes(content)
    assert run(["export", "r", "--to", "nanogpt"]) == 2
    said = capsys.readouterr().err
    assert "damaged-checkpoint" in said
    assert three_lines(said)


# config.json of a run


@pytest.mark.parametrize("text", ["{}", DEEP, "[]", "", '{"n_layer": '])
def test_a_config_of_a_run_that_holds_nothing_is_blamed_as_itself(
    made: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    (made / "config.json").write_text(text)
    assert load_run(made).config["n_layer"] == 2, "the last start record has it"
    (made / "records.jsonl").write_text("")
    assert run(["train", "--resume", "r"]) == 2
    said = capsys.readouterr().err
    assert "config.json is damaged" in said.splitlines()[0]
    if text == "{}":
        assert "is empty ({})" in said
    (made / "records.jsonl").unlink()
    assert run(["train", "--resume", "r"]) == 2
    assert "its config.json" in capsys.readouterr().err


# The other JSON that a command reads

DATA_INFO, PLAN, NEW = ["data", "info", "data"], ["plan", "--dataset=data"], ["train", *TINY, "--out_dir=new"]
READERS = {  # file -> the commands that read it, and how each may end
    "r/config.json": [(["plan", "r"], 2), (["plan", "--init_from=r"], 2)],
    "hf/config.json": [(["plan", "--init_from=hf"], 2), (["import", "hf"], 2)],
    "data/meta.json": [(DATA_INFO, 2), ([*NEW, "--dataset=data"], 2)],
    "data/progress.json": [(DATA_INFO, 2), ([*NEW, "--dataset=data"], 2)],
    "r/vocabulary.json": [(["sample", "r", "--length=2"], 0)],  # the data says the same
    "hf/tokenizer.json": [(["data", "prepare", "data", "--out=new", "--tokenizer=hf"], 2)],
}


def replaced(path: Path, content: str | None) -> None:
    path.unlink(missing_ok=True)
    if content is None:
        os.mkfifo(path)
    else:
        path.write_text(content)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        (file, content)
        for file in READERS
        for content in (DEEP, '{"a":' * 200_000, "[]", "NaN", str(HUGE), None)
        if content is not None or "config" not in file  # a folder without that file is no run, and no model
    ],
)
def test_json_that_lies_is_refused_wherever_it_is_read(
    made: Path, capsys: pytest.CaptureFixture[str], file: str, content: str | None
) -> None:
    """None is a pipe that nobody writes to: reading it would never end."""
    assert run(["export", "r", "--to=hf", "--out=hf"]) == 0
    Path("data").mkdir()
    for split in ("train", "val"):
        Path(f"data/{split}.bin").write_bytes(bytes(4096))
    capsys.readouterr()
    replaced(Path(file), content)
    for command, code in READERS[file]:
        assert run(command) == code, command
        assert code == 0 or three_lines(capsys.readouterr().err)


@pytest.mark.parametrize("file", ["meta.pkl", "train.bin", "val.bin"])
def test_a_pipe_in_a_data_folder_is_not_waited_for(made: Path, capsys: pytest.CaptureFixture[str], file: str) -> None:
    Path("data").mkdir()
    for split in ("train", "val"):
        Path(f"data/{split}.bin").write_bytes(bytes(4096))
    replaced(Path("data") / file, None)
    for command in (DATA_INFO, [*NEW, "--dataset=data"]):
        assert run(command) == 2, command
        assert "a pipe, and only files are read" in capsys.readouterr().err
    assert run([*PLAN, "--gpu=rtx-4070"]) in (0, 1), "a plan needs no data"


def places(value: object, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value."""
    yield before
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*before, key))


def with_lie(value: Any, place: tuple[Any, ...], lie: object) -> Any:
    if not place:
        return lie
    key, *rest = place
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[key] = with_lie(value[key], tuple(rest), lie)
    return copy


PREPARE = ["data", "prepare", "text.txt", "--out=data", "--tokenizer=bytes", "--workers=1"]


@pytest.mark.parametrize(
    "lie", [None, True, -1, 1e308, HUGE, "x", "\x1b[31m", [], {}, float("nan")], ids=lambda lie: f"{lie!r:.9}"
)
@pytest.mark.parametrize("file", ["meta.json", "progress.json"])
def test_a_lie_at_any_place_of_a_data_folder_is_no_bug(
    made: Path, capsys: pytest.CaptureFixture[str], file: str, lie: object
) -> None:
    Path("text.txt").write_text("A line of text.\n\n" * 2000)
    assert run(PREPARE) == 0
    path = Path("data") / file
    whole = json.loads(path.read_text())
    for place in places(whole):
        for command in (DATA_INFO, PREPARE):
            path.write_text(json.dumps(with_lie(whole, place, lie)))
            code, said = run(command), capsys.readouterr()
            assert code in (0, 1, 2), (place, command, said.err)
            assert "\x1b" not in said.out + said.err, (place, command)


@pytest.mark.parametrize("value", [[2], {"a": 1}, HUGE, "x" * 5000, float("nan"), None, True])
@pytest.mark.parametrize("key", ["n_layer", "bias", "dropout", "dataset"])
def test_a_setting_of_another_kind_is_refused(
    made: Path, capsys: pytest.CaptureFixture[str], key: str, value: object
) -> None:
    said = json.loads((made / "config.json").read_text())
    (made / "config.json").write_text(json.dumps({**said, key: value}))
    for command in (["plan", "r", "--gpu=rtx-4070"], ["plan", "--init_from=r", "--gpu=rtx-4070"]):
        code = run(command)
        assert code in (0, 1, 2), command
        assert code != 2 or three_lines(capsys.readouterr().err)


PARSERS = {  # who may parse JSON without untrusted_json, and why
    "untrusted_json.py": "it is the reader",
    "cli/worker.py": "what our own process printed",
    "train/bench.py": "what our own process was given",
    "train/bench_loss.py": "what our own process was given",
    "train/measure_machine.py": "what our own process was given",
    "train/meeting.py": "what another rank of the same run said",
    "train/ranks.py": "what another rank of the same run said",
    "train/checkpoint_files.py": "what was written a line before",
    "data/encode.py": "a row of somebody's text: what is too deep is skipped",
    "data/gguf_vocabulary.py": "what the tokenizers library wrote",
    "data/gpt2_ranks.py": "a download, whose checksum is known",
    "runs/foreign/hf_trainer.py": "one entry without braces inside, of a bounded file",
}


def test_json_is_parsed_in_one_place() -> None:
    package = Path(untrusted_json.__file__).parent
    found = {
        path.relative_to(package).as_posix() for path in package.rglob("*.py") if "json.load" in path.read_text("utf-8")
    }
    assert found == PARSERS.keys()


# Records

FIELDS = (
    *("tokens", "loss", "lr", "grad_norm", "seconds", "elapsed_seconds", "tokens_per_second", "mfu"),
    *("allocated_bytes", "reserved_bytes", "data_wait_seconds"),
    *("val_loss", "val_loss_error", "train_loss", "peak_allocated_bytes"),
)
ABSURD = ("1e308", "-1e308", str(HUGE), str(-HUGE), "1e39", "-1e39", "9223372036854775807", "NaN", '"Infinity"')


LIES = (*ABSURD, DEEP, '"text"', "[1]")


@pytest.mark.parametrize("value", LIES)
def test_an_absurd_number_in_a_record_ends_no_command(
    made: Path, capsys: pytest.CaptureFixture[str], value: str
) -> None:
    """In a field of every step and evaluation at once: what survives the reader is read by the rules."""
    lines = (made / "records.jsonl").read_text().splitlines()
    for field in FIELDS if WHOLE else FIELDS[LIES.index(value) % 4 :: 4]:
        changed_lines = []
        for line in lines:
            record = json.loads(line)
            if record["kind"] in ("step", "eval", "end") and field in record:
                line = json.dumps({**record, field: "HERE"}).replace('"HERE"', value)
            changed_lines.append(line)
        (made / "records.jsonl").write_text("\n".join(changed_lines) + "\n")
        for command in (["doctor", "r"], ["doctor", "r", "--json"], ["compare", "r", "r"]):
            assert run(command) in (0, 1, 2), (field, command, capsys.readouterr().err)


def test_a_record_of_10_to_the_308_seconds_is_a_damaged_line(made: Path) -> None:
    with (made / "records.jsonl").open("a") as file:
        file.write('{"kind": "step", "step": 9, "loss": 5.0, "seconds": 1e308}\n')
    history = load_run(made).history
    assert history.damaged_lines == 1
    assert load_run(made).last_step == 8


# Names that are not UTF-8

ODD = os.fsdecode(b"r\xff\xfe")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have no such names")
def test_a_run_whose_name_is_not_utf8_is_sampled_and_exported(made: Path) -> None:
    made.rename(ODD)
    assert run(["sample", ODD, "--length=2", "--device=cpu", "--json"]) == 0
    for kind in ("nanogpt", "hf"):
        assert run(["export", ODD, f"--to={kind}", f"--out={kind}"]) == 0
    assert run(["import", ODD, "--out_dir=new"]) == 0


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have no such names")
def test_data_from_a_file_whose_name_is_not_utf8_is_prepared(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path(ODD).write_text("A line of text.\n\n" * 2000)
    assert run(["data", "prepare", ODD, "--out=data", "--tokenizer=bytes", "--workers=1"]) == 0
    assert run(["data", "info", "data"]) == 0
    capsys.readouterr()
    assert run(["train", *TINY, f"--out_dir={ODD}"]) == 2
    assert "is not text in UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize("value", [[], {}, [["a"]], HUGE])
def test_a_config_with_a_setting_of_another_kind_is_no_bug(
    made: Path, capsys: pytest.CaptureFixture[str], value: object
) -> None:
    shutil.copytree(made, "other")
    said = json.loads((made / "config.json").read_text())
    for key in ("dataset", "n_layer", "block_size", "out_dir"):
        (made / "config.json").write_text(json.dumps({**said, key: value}))
        lines = (Path("other") / "records.jsonl").read_text().splitlines()
        started = [json.loads(line) for line in lines]
        started = [{**each, "config": {**each["config"], key: value}} if "config" in each else each for each in started]
        for records in (lines, [json.dumps(each) for each in started]):
            (made / "records.jsonl").write_text("\n".join(records) + "\n")
            for command in (["compare", "r", "other"], ["doctor", "r"], ["plan", "r", "--gpu=rtx-4070"]):
                assert run(command) in (0, 1, 2), (key, command, capsys.readouterr().err)
