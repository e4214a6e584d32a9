"""onecard data as a user types it: prepared, killed, interrupted, looked at, mistyped; without torch."""

import bz2
import gzip
import hashlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from onecard.cli.data import data
from onecard.config.schema import KEYS
from tests.contract.conftest import ROOT, Command
from tests.loopback_hub import Hub, serving
from tests.share import WHOLE

pytest.importorskip("numpy", reason="needs numpy")

BYTES = ["--tokenizer=bytes", "--workers", "1"]


@pytest.mark.parametrize("command", ["prepare", "info"])
def test_help_opens_with_an_example_and_no_option_is_a_config_key(onecard: Command, command: str) -> None:
    lines = [line.strip() for line in onecard("data", command, "--help").stdout.splitlines() if line.strip()]
    assert lines[1] == "Example:"
    assert lines[2].startswith(f"onecard data {command}")
    for option in data.commands[command].params:
        assert not {name.lstrip("-").replace("-", "_") for name in option.opts} & set(KEYS) or option.name == "source"


def write_lines(path: Path, count: int, *, words: int = 10) -> Path:
    digests = (hashlib.sha256(str(number).encode()).hexdigest() for number in range(count))
    path.write_text("".join(json.dumps({"text": f"{digest} " * words}) + "\n" for digest in digests))
    return path


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.bin"))}


def test_files_beside_tables_are_named_with_the_command_that_reads_them(onecard: Command, tmp_path: Path) -> None:
    (tmp_path / "my corpus").mkdir()
    write_lines(tmp_path / "my corpus" / "x.jsonl", 50)
    (tmp_path / "my corpus" / "README.md").write_text("about x")
    (tmp_path / "my corpus" / "notes.txt").write_text("a note\n\nanother")
    done = onecard("data", "prepare", "my corpus", "--out", "out", *BYTES, cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert "a file of my corpus was not read, such as notes.txt  [files-left-out]" in done.stderr
    typed = "data prepare 'my corpus' 'my corpus/notes.txt' --out out"
    assert f"fix: name them, too: onecard {typed}" in done.stderr
    found = onecard(*shlex.split(typed), *BYTES, "--json", cwd=tmp_path).json
    assert found["documents"]["train"] + found["documents"]["val"] == 51  # the same folder, with what was left out
    assert "files-left-out" not in [finding["rule"] for finding in found["findings"]]


def test_prepare_then_info(onecard: Command, tmp_path: Path) -> None:
    write_lines(tmp_path / "x.jsonl", 500)
    done = onecard("data", "prepare", "x.jsonl", "--out", "out", *BYTES, cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert "train" in done.stdout
    assert "[val-set-tiny]" in done.stderr
    assert "next: onecard train --dataset=out" in done.stderr
    shown = onecard("data", "info", "out", cwd=tmp_path)
    assert shown.code == 0
    assert "2 of 2 files match" in shown.stdout
    assert "val, from token 0:" in shown.stdout
    report = onecard("data", "info", "out", "--json", "--samples", "1", cwd=tmp_path).json
    assert report["tokens"]["train"] + report["tokens"]["val"] == 500 * 651
    assert [sample["split"] for sample in report["samples"]] == ["train", "val"]
    assert report["damaged"] == []


def test_few_documents_are_for_both_training_and_validation(onecard: Command, tmp_path: Path) -> None:
    (tmp_path / "corpus").mkdir()
    for number in range(3):
        (tmp_path / "corpus" / f"{number}.txt").write_text(f"text number {number} " * 100)
    done = onecard("data", "prepare", "corpus", "--out", "out", *BYTES, cwd=tmp_path)
    assert done.code == 0, done.stderr
    assert "next: onecard train --dataset=out" in done.stderr
    report = onecard("data", "prepare", "corpus", "--out", "out", *BYTES, "--json", cwd=tmp_path).json
    assert (report["documents"]["train"], report["documents"]["val"]) == (2, 1)


def test_an_empty_split_is_told_with_the_share_that_fills_it(onecard: Command, tmp_path: Path) -> None:
    raw = write_lines(tmp_path / "x.jsonl", 4).read_bytes()
    for share in ("0", "0.9999999"):
        out = f"out-{share}"
        done = onecard("data", "prepare", "-", "--out", out, *BYTES, "--val-share", share, stdin=raw, cwd=tmp_path)
        assert done.code == 0
        assert "[empty-split]" in done.stderr
        assert "next:" not in done.stderr
        fix = done.stderr.partition("  fix: ")[2].split()
        assert fix[0::2] == ["--val-share", "--out"]
        again = onecard("data", "prepare", "-", *fix, *BYTES, stdin=raw, cwd=tmp_path)
        assert f"next: onecard train --dataset={fix[3]}" in again.stderr
        (tmp_path / fix[3]).rename(tmp_path / f"second-{share}")


def test_one_document_is_told_to_be_one(onecard: Command, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("only one")
    done = onecard("data", "prepare", "x.txt", "--out", "out", *BYTES, cwd=tmp_path)
    assert "a document is never cut" in done.stderr
    assert "more text" in done.stderr
    assert "next:" not in done.stderr


def test_a_vocabulary_smaller_than_asked_for_is_told(onecard: Command, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="needs tokenizers")
    write_lines(tmp_path / "x.jsonl", 3)
    bpe = ["--tokenizer=bpe", "--workers", "1"]
    done = onecard("data", "prepare", "x.jsonl", "--out", "a", *bpe, "--vocab_size=9999", cwd=tmp_path)
    size = json.loads((tmp_path / "a" / "meta.json").read_bytes())["vocab_size"]
    assert f"the tokenizer has {size:,} tokens, not the 9,999 of --vocab_size" in done.stderr
    fitting = onecard("data", "prepare", "x.jsonl", "--out", "b", *bpe, "--vocab_size=2.6e2", cwd=tmp_path)
    unasked = onecard("data", "prepare", "x.jsonl", "--out", "c", *bpe, cwd=tmp_path)
    for shown in (fitting, unasked):
        assert shown.code == 0
        assert "vocabulary-smaller" not in shown.stderr


def test_a_file_that_changed_is_found_and_exit_1(onecard: Command, tmp_path: Path) -> None:
    write_lines(tmp_path / "x.jsonl", 50)
    onecard("data", "prepare", "x.jsonl", "--out", "out", *BYTES, cwd=tmp_path)
    file = tmp_path / "out" / "train-00000.bin"
    file.write_bytes(b"\x01" + file.read_bytes()[1:])
    shown = onecard("data", "info", "out", cwd=tmp_path)
    assert shown.code == 1
    assert "DAMAGED" in shown.stdout
    report = onecard("data", "info", "out", "--json", cwd=tmp_path)
    assert (report.code, report.json["damaged"]) == (1, ["train-00000.bin"])


def test_info_reads_nanogpts_folders_and_says_what_it_cannot_know(onecard: Command, tmp_path: Path) -> None:
    for name in ("train.bin", "val.bin"):
        (tmp_path / name).write_bytes(bytes(range(100)))
    shown = onecard("data", "info", ".", cwd=tmp_path)
    assert shown.code == 0
    assert "none recorded for train.bin, val.bin" in shown.stdout
    assert onecard("data", "info", ".", "--json", cwd=tmp_path).json["tokenizer"] is None


def pairs_of_bytes(folder: Path, ids: list[int], *, width: int) -> None:
    """nanoGPT's two files with these ids, each in so many bytes, and nothing that says how many."""
    for name in ("train.bin", "val.bin"):
        (folder / name).write_bytes(b"".join(number.to_bytes(width, "little") for number in ids))


def test_info_refuses_what_no_run_could_use_and_says_what_train_would(onecard: Command, tmp_path: Path) -> None:
    pairs_of_bytes(tmp_path, [7919 * number % 50257 for number in range(2000)], width=4)
    shown = onecard("data", "info", ".", cwd=tmp_path)
    assert shown.code == 1
    assert "4,000 tokens, as uint16, in 1 file" in shown.stdout
    assert "error: train.bin looks like uint32 tokens, but would be read as uint16  [wrong-dtype]" in shown.stdout
    report = onecard("data", "info", ".", "--json", cwd=tmp_path)
    (finding,) = report.json["findings"]
    assert (report.code, finding["rule"], finding["severity"]) == (1, "wrong-dtype", "error")
    command = finding["fix"].partition("   (")[0]
    subprocess.run(["sh", "-c", command], cwd=tmp_path, check=True)
    mended = onecard("data", "info", ".", cwd=tmp_path)
    assert (mended.code, "2,000 uint32 tokens in 1 file" in mended.stdout) == (0, True)


@pytest.mark.parametrize(("ids", "nothing"), [([], "0 tokens"), ([5], "1 token")])
def test_info_refuses_files_without_a_sequence(onecard: Command, tmp_path: Path, ids: list[int], nothing: str) -> None:
    pairs_of_bytes(tmp_path, ids, width=2)
    shown = onecard("data", "info", ".", cwd=tmp_path)
    assert shown.code == 1
    assert f"error: train.bin has {nothing}: there is nothing to train on  [data-too-short]" in shown.stdout
    assert f"fix: onecard data prepare SOURCE --out {tmp_path}" in " ".join(shown.stdout.split())


def test_info_warns_of_ids_that_a_run_must_be_told_of(onecard: Command, tmp_path: Path) -> None:
    pairs_of_bytes(tmp_path, [1, 60_000, 2, 65_000], width=2)
    shown = onecard("data", "info", ".", cwd=tmp_path)
    assert shown.code == 0
    assert "warn: train.bin has token id 60,000 at position 1" in shown.stdout
    assert "fix: --vocab_size=65024 " in shown.stdout
    (tmp_path / "meta.json").write_text('{"vocab_size": 61000}')
    damaged = onecard("data", "info", ".", cwd=tmp_path)
    assert damaged.code == 1
    assert "token id 65,000 at position 3, but its own vocabulary has only 61,000 tokens" in damaged.stdout
    assert "fix: prepare the data again" in damaged.stdout


def test_more_files_than_can_be_open_are_told_in_three_lines(onecard: Command, tmp_path: Path) -> None:
    pytest.importorskip("resource", reason="limits of a process are Unix's")
    for number in range(200):
        (tmp_path / f"x_train_{number:06}.bin").write_bytes(bytes(range(100)))
    (tmp_path / "val.bin").write_bytes(bytes(range(100)))
    command = ["sh", "-c", 'ulimit -n 100; exec "$@"', "sh", sys.executable, "-m", "onecard", "data", "info", "."]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert (done.returncode, done.stderr.count("\n")) == (3, 3), done.stderr
    assert "the 200 token files of . cannot all be open at once" in done.stderr
    assert "fix: ulimit -n " in done.stderr


def test_samples_cannot_steer_the_terminal(onecard: Command, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("\x1b[31mred\x07 [bold]not bold[/bold]\n" * 500)
    onecard("data", "prepare", "x.txt", "--out", "out", *BYTES, cwd=tmp_path)
    shown = onecard("data", "info", "out", cwd=tmp_path).stdout
    assert "\x1b" not in shown
    assert r"\x1b[31mred\x07 [bold]not bold[/bold]" in shown


def test_json_is_one_object_and_the_talk_is_elsewhere(onecard: Command, tmp_path: Path) -> None:
    write_lines(tmp_path / "x.jsonl", 50)
    done = onecard("data", "prepare", "x.jsonl", "--out", "out", *BYTES, "--json", cwd=tmp_path)
    assert done.code == 0
    assert done.stderr == ""
    assert done.json["schema"] == 1
    assert sum(done.json["tokens"].values()) == done.json["new_tokens"] == 50 * 651
    assert done.json["findings"][0]["rule"] == "val-set-tiny"
    assert isinstance(done.json["seconds"], int), "whole base units"
    again = onecard("data", "prepare", "x.jsonl", "--out", "out", *BYTES, "--json", cwd=tmp_path)
    assert again.json["new_tokens"] == 0
    assert again.json["train"] == done.json["train"]


def test_standard_input_and_files_give_the_same_tokens(onecard: Command, tmp_path: Path) -> None:
    raw = write_lines(tmp_path / "x.jsonl", 100).read_bytes()
    (tmp_path / "y.jsonl.gz").write_bytes(gzip.compress(raw))
    share = ["--val-share", "0.1"]
    onecard("data", "prepare", "x.jsonl", "--out", "a", *BYTES, *share, cwd=tmp_path)
    onecard("data", "prepare", "y.jsonl.gz", "--out", "b", *BYTES, *share, cwd=tmp_path)
    for name, piped in (("c", raw), ("d", gzip.compress(raw))):
        done = onecard("data", "prepare", "-", "--out", name, *BYTES, *share, stdin=piped, cwd=tmp_path)
        assert done.code == 0, done.stderr
    assert content(tmp_path / "a") == content(tmp_path / "b") == content(tmp_path / "c") == content(tmp_path / "d")


def test_the_source_of_this_python_needs_nothing_else(onecard: Command, tmp_path: Path) -> None:
    done = onecard(
        "data", "prepare", "python-stdlib", "--out", "o", *BYTES, "--tokens", "1M", "--format", "nanogpt", cwd=tmp_path
    )
    assert done.code == 0, done.stderr
    assert sum(len(raw) for raw in content(tmp_path / "o").values()) >= 2_000_000, "two bytes a token"
    assert (tmp_path / "o" / "meta.pkl").exists()


Start = Callable[[], subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Start:
    """Begin to prepare some 4 MB with two workers, in a process group of its own."""
    write_lines(tmp_path / "x.jsonl", 1200, words=50)

    def begin() -> subprocess.Popen[bytes]:
        command = ["data", "prepare", "x.jsonl", "--out", "out", "--tokenizer=bytes", "--workers", "2"]
        return subprocess.Popen(
            [sys.executable, "-c", SLOWED, *command, "--dedup"],
            cwd=tmp_path,
            env=os.environ | {"ONECARD_HOME": str(tmp_path / "home"), "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    return begin


# The command as it is, but saved after every block, and with blocks small enough to be killed between.
SLOWED = """
import sys
import onecard.data.blocks, onecard.data.prepare
from onecard.cli.main import main
onecard.data.blocks._BLOCK_BYTES = 2**16
onecard.data.prepare.prepare.__kwdefaults__["save_seconds"] = 0.0
if __name__ == "__main__":
    main(sys.argv[1:])
"""


def wait_for_tokens(folder: Path, *, more_than: int, process: subprocess.Popen[bytes]) -> int:
    """Until so many tokens are said to be there; how many there are."""
    until = time.monotonic() + 60
    while time.monotonic() < until and process.poll() is None:
        tokens = tokens_in(folder)
        if tokens > more_than:
            return tokens
        time.sleep(0.005)
    return tokens_in(folder)


def tokens_in(folder: Path) -> int:
    from onecard.data.manifest import read_progress

    progress = read_progress(folder) if folder.exists() else None
    return progress.tokens if progress else 0


def group_is_gone(group: int) -> bool:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.05)
    return False


@pytest.mark.slow
def test_killed_again_and_again_no_document_is_lost_or_there_twice(start: Start, tmp_path: Path) -> None:
    whole = start()
    whole.communicate(timeout=120)
    assert whole.returncode == 0
    expected = content(tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "whole")
    tokens, kills = 0, 0
    for _ in range(4 if WHOLE else 2):
        process = start()
        tokens = wait_for_tokens(tmp_path / "out", more_than=tokens + 300_000, process=process)
        kills += process.poll() is None
        process.kill()  # kill -9, of the parent alone
        process.communicate(timeout=60)
        assert group_is_gone(process.pid), "workers do not outlive their parent"
    assert kills
    last = start()
    output, _ = last.communicate(timeout=120)
    assert last.returncode == 0
    assert content(tmp_path / "out") == expected
    meta = [json.loads((tmp_path / folder / "meta.json").read_bytes()) for folder in ("out", "whole")]
    assert meta[0]["documents"] == meta[1]["documents"] == meta[0]["documents"] | {"duplicates": 0, "bad": {}}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_keeps_what_is_done_and_exits_130(start: Start, tmp_path: Path, number: int) -> None:
    process = start()
    wait_for_tokens(tmp_path / "out", more_than=300_000, process=process)
    os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
    _, talk = process.communicate(timeout=60)
    assert process.returncode == 130, talk.decode()
    assert b"Run the same command again to continue" in talk
    assert b"Traceback" not in talk
    assert group_is_gone(process.pid)
    kept = tokens_in(tmp_path / "out")
    assert kept > 300_000
    again = start()
    shown, _ = again.communicate(timeout=120)
    assert again.returncode == 0
    assert tokens_in(tmp_path / "out") > kept


def test_fineweb_comes_from_the_hub_and_only_then(onecard: Command, tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    pytest.importorskip("huggingface_hub", reason="needs huggingface_hub")
    files = {}
    for number in range(3):
        parquet.write_table(arrow.table({"text": [f"{number} {row} " * 50 for row in range(100)]}), tmp_path / "t")
        files[f"sample/10BT/{number:03d}_00000.parquet"] = (tmp_path / "t").read_bytes()
    configs = [{"config_name": "sample-10BT", "data_files": [{"split": "train", "path": "sample/10BT/*"}]}]
    with serving(Hub("HuggingFaceFW/fineweb-edu", files, configs)) as hub:
        environment = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "hf")}
        write_lines(tmp_path / "x.jsonl", 5)
        onecard("data", "prepare", "x.jsonl", "--out", "a", *BYTES, cwd=tmp_path, **environment)
        onecard("data", "prepare", "a/b.parquet", "--out", "b", *BYTES, cwd=tmp_path, **environment)
        assert hub.asked == []
        done = onecard(
            "data",
            "prepare",
            "fineweb-edu",
            "--out",
            "c",
            *BYTES,
            "--tokens",
            "1k",
            "--json",
            cwd=tmp_path,
            **environment,
        )
        assert done.code == 0, done.stderr
        assert done.json["source"]["name"] == "HuggingFaceFW/fineweb-edu sample-10BT"
        assert hub.downloads() == ["sample/10BT/000_00000.parquet"]
        told = onecard(
            "data", "prepare", "fineweb-edu", "--out", "c", *BYTES, "--tokens", "1k", cwd=tmp_path, **environment
        )
        assert "KiB kept in " in told.stdout
        assert "/downloads/HuggingFaceFW/fineweb-edu, which you may delete" in told.stdout
        again = onecard("data", "prepare", "no/such", "--out", "d", *BYTES, cwd=tmp_path, **environment)
        assert (again.code, len(again.stderr.splitlines())) == (2, 3)


MISTAKES = [
    (["data", "prepar", "x"], "unknown-command", "onecard data prepare"),
    (["data", "prepare", "x.jsonl"], "usage", "--help"),
    (["data", "prepare", "--out", "o"], "usage", "--help"),
    (["data", "prepare", "qq/nowhere.parquet", "--out", "o", *BYTES], "no-such-source", "onecard data prepare"),
    (["data", "prepare", "x.json", "--out", "o", *BYTES], "no-such-source", "x.jsonl"),
    (["data", "prepare", "x.json", "--out", "o"], "no-such-source", "x.jsonl"),
    (["data", "prepare", "x.json", "--out", "o", "--tokenizer=gpt3"], "no-such-source", "x.jsonl"),
    (["data", "prepare", "x.jsonl", "--out", "o", "--tokenizer", "gpt3"], "no-such-tokenizer", "--tokenizer=gpt2"),
    (["data", "prepare", "x.jsonl", "--out", "o", "--tokenizer="], "empty-path", "--tokenizer"),
    (["data", "prepare", "x.jsonl", "--out", "o", "--vocab_size", "300"], "key-without-value", "--vocab_size=300"),
    (["data", "prepare", "x.jsonl", "--out", "o"], "no-ranks", "--ranks FILE"),
    (["data", "prepare", "fineweb", "--out", "o"], "hub-unreachable", "check the network"),
    (["data", "prepare", "x.jsonl", "--out", "o", "--ranks", "x.jsonl"], "bad-ranks", "--ranks"),
    (["data", "prepare", "x.jsonl", "--out", "o", "--tokenizer=gpt3"], "no-such-tokenizer", "--tokenizer=gpt2"),
    (["data", "prepare", "x.jsonl", "--out", "o", "--n_layer=3"], "unexpected-key", "--help"),
    (["data", "prepare", "x.jsonl", "--out", "o", *BYTES, "--vocab_size=300"], "bad-vocabulary", "--tokenizer=bpe"),
    (["data", "prepare", "x.jsonl", "--out", "o", *BYTES, "--vocab_size=8e3"], "bad-vocabulary", "--tokenizer=bpe"),
    (["data", "prepare", "x.jsonl", "--out", "o", *BYTES, "--vocab_size=1.5"], "bad-value", "--vocab_size="),
    (["data", "prepare", "x.jsonl", "--out", "o", *BYTES, "--vocab_size=many"], "bad-value", "--vocab_size="),
    (["data", "prepare", "x.jsonl", "--out", "o", "--tokenizer=2024"], "no-such-tokenizer", "--tokenizer=gpt2"),
    (["data", "prepare", "x.jsonl", "--out", "o", *BYTES, "--tokens", "many"], "bad-number", "--tokens"),
    (["data", "prepare", "x.jsonl", "--out", "o", *BYTES, "--tokens", "0"], "bad-number", "--tokens"),
    (["data", "prepare", "x.jsonl", "--out", "o", *BYTES, "--shard-tokens", "0"], "bad-number", "--shard-tokens"),
    (["data", "prepare", "x.jsonl", "--out", "o", *BYTES, "--shard-tokens", "1"], "bad-number", "--shard-tokens 100M"),
    (
        ["data", "prepare", "x.jsonl", "--out", "o", *BYTES, "--shard-tokens", "9999"],
        "bad-number",
        "--shard-tokens 100M",
    ),
    (["data", "prepare", "x.jsonl", "--out", "o", *BYTES, "--shard-tokens", "3B"], "bad-number", "--shard-tokens"),
    *(
        (["data", "prepare", "x.jsonl", "--out", "o", *BYTES, "--val-share", share], "bad-number", "--val-share 0.1")
        for share in ("2", "1", "-0.1", "nan", "inf")
    ),
    (["data", "prepare", "x.jsonl", "--out", "o", *BYTES, "--val-share", "some"], "usage", "--val-share 0.5"),
    (["data", "prepare", "x.jsonl", "--out", "o", *BYTES, "--subset", "s"], "usage", "--subset"),
    (["data", "prepare", "x.jsonl", "--out", "o", *BYTES, "--column", "body"], "all-bad", "--column text"),
    (["data", "prepare", "x.jsonl", "--out", ".", *BYTES], "folder-not-empty", "--out"),
    (["data", "prepare", "x.jsonl", "--out", "x.jsonl", *BYTES], "cannot-write", "--out DIR"),
    (["data", "prepare", "empty.txt", "--out", "o", *BYTES], "no-documents", "look"),
    (["data", "prepare", "-", "--out", "o", "--tokenizer=characters"], "cannot-read-twice", "file"),
    (["data", "info", "nowhere"], "no-such-dataset", "--dataset"),
    (["data", "info", "."], "no-such-dataset", "--dataset"),
    (["data", "info", "nowhere", "--n_layer=3"], "unexpected-key", "--help"),
]


def told(stderr: str) -> list[str]:
    """The lines of standard error but those of progress, which appear where the machine takes over two seconds."""
    return [line for line in stderr.splitlines() if not re.match(r" *[0-9.]+%  ", line)]


@pytest.mark.parametrize(("arguments", "name", "fix"), MISTAKES)
def test_a_mistake_gets_three_lines(
    onecard: Command, tmp_path: Path, arguments: list[str], name: str, fix: str
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    write_lines(folder / "x.jsonl", 5)
    (folder / "empty.txt").write_text("")
    environment = {"TIKTOKEN_CACHE_DIR": str(tmp_path / "no"), "HF_ENDPOINT": "http://127.0.0.1:9"}
    shown = onecard(*arguments, cwd=folder, **environment)
    assert shown.code == (3 if name in ("cannot-write", "hub-unreachable") else 2), shown.stderr
    assert shown.stdout == ""
    what, why, how = told(shown.stderr)
    assert what.startswith("error: ")
    assert what.endswith(f"[{name}]")
    assert why.startswith("  why: ")
    assert fix in how


@pytest.mark.parametrize(("arguments", "name", "fix"), MISTAKES[3:6])
def test_a_mistake_is_json_with_json(
    onecard: Command, tmp_path: Path, arguments: list[str], name: str, fix: str
) -> None:
    write_lines(tmp_path / "x.jsonl", 5)
    error = onecard(*arguments, "--json", cwd=tmp_path)
    assert (error.code, error.stderr) == (2, "")
    assert error.json["error"]["name"] == name
    assert fix in error.json["error"]["fix"]


def test_an_unfinished_folder_is_not_trained_on(start: Start, onecard: Command, tmp_path: Path) -> None:
    process = start()
    wait_for_tokens(tmp_path / "out", more_than=300_000, process=process)
    process.kill()
    process.communicate(timeout=60)
    shown = onecard("data", "info", "out", cwd=tmp_path)
    assert shown.code == 2
    assert shown.stderr.splitlines()[0].endswith("[data-unfinished]")


# The command, with a function of ours that fails as the disk or the user would have it.
FAILING = """
import errno, sys
from pathlib import Path
from onecard.cli.main import run
from onecard.files import cannot_write
import {module} as module
def fail(*_):
    raise {problem}
module.{function} = fail
sys.exit(run(["data", "prepare", "x.jsonl", "--out", "out", "--tokenizer=bytes", "--workers", "1"]))
"""
FULL = 'OSError(errno.ENOSPC, "No space left on device")'
TOLD = f'cannot_write(Path("out/meta.json"), {FULL})'


def failing(folder: Path, *, module: str, function: str, problem: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", FAILING.format(module=module, function=function, problem=problem)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "ONECARD_HOME": str(folder)},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("module", "function", "problem"),
    [
        ("onecard.data.part", "ShardWriter.write", FULL),
        ("onecard.data.shards", "sync_folder", FULL),
        ("onecard.data.part", "write_meta", TOLD),
    ],
)
def test_a_full_disk_is_three_lines_and_exit_3(
    onecard: Command, tmp_path: Path, module: str, function: str, problem: str
) -> None:
    write_lines(tmp_path / "x.jsonl", 5)
    done = failing(tmp_path, module=module, function=function, problem=problem)
    assert done.returncode == 3, done.stderr
    assert done.stderr.splitlines()[0].endswith("[disk-full]")
    assert onecard("data", "prepare", "x.jsonl", "--out", "out", *BYTES, cwd=tmp_path).code == 0


@pytest.mark.parametrize(
    ("module", "function"), [("onecard.data.shards", "hashlib.file_digest"), ("onecard.data.part", "write_meta")]
)
def test_interrupted_in_its_last_moment_it_exits_130(
    onecard: Command, tmp_path: Path, module: str, function: str
) -> None:
    write_lines(tmp_path / "x.jsonl", 5)
    done = failing(tmp_path, module=module, function=function, problem="KeyboardInterrupt")
    assert done.returncode == 130, done.stderr
    assert told(done.stderr) == ["stopped; what is done is kept. Run the same command again to continue"]
    assert onecard("data", "prepare", "x.jsonl", "--out", "out", *BYTES, cwd=tmp_path).code == 0


TEXTS = [f"Grüße Nummer {number}, und was danach kommt." for number in range(40)]
LINES = "".join(json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in TEXTS)
MENDED = {
    "x.jsonl": (LINES.encode("utf-16"), "iconv"),
    "y.txt": ("\n".join(TEXTS).encode("latin-1"), "iconv"),
    "z.json": (json.dumps([{"text": text} for text in TEXTS]).encode(), "jq"),
}


@pytest.mark.parametrize("name", MENDED)
def test_what_is_not_utf8_lines_is_told_with_the_command_that_mends_it(
    onecard: Command, tmp_path: Path, name: str
) -> None:
    raw, program = MENDED[name]
    (tmp_path / name).write_bytes(raw)
    for tokenizer in ("bytes", "characters"):
        arguments = ["--out", f"out-{tokenizer}", f"--tokenizer={tokenizer}", "--workers", "1"]
        refused = onecard("data", "prepare", name, *arguments, cwd=tmp_path)
        assert (refused.code, len(told(refused.stderr))) == (2, 3), refused.stderr
        assert "[all-bad]" in refused.stderr
        fix = told(refused.stderr)[2].partition("fix: ")[2].partition("   (")[0]
        assert fix.startswith(program)
    piped = onecard("data", "prepare", "-", "--out", "piped", *BYTES, "--json", stdin=raw, cwd=tmp_path)
    assert piped.code == 2
    assert piped.json["error"]["fix"].startswith(program)
    if shutil.which(program) is None:
        pytest.skip(f"needs {program} to try what the message says")
    subprocess.run(fix, shell=True, check=True, cwd=tmp_path)
    done = onecard("data", "prepare", fix.split("> ")[1], "--out", "out", *BYTES, "--json", cwd=tmp_path)
    assert done.code == 0, done.stdout
    assert done.json["text_bytes"] >= sum(len(text.encode()) for text in TEXTS)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress], ids=["gz", "bz2"])
def test_a_cut_off_file_on_standard_input_is_told(
    onecard: Command, tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    noise = b"".join(json.dumps({"text": hashlib.sha256(bytes([n])).hexdigest()}).encode() + b"\n" for n in range(200))
    whole = pack(noise)
    done = onecard("data", "prepare", "-", "--out", "nothing", *BYTES, "--json", stdin=whole[:30], cwd=tmp_path)
    assert done.code == 2
    assert done.json["error"]["name"] == "all-bad"
    broken = whole[:20] + bytes(20) + whole[40:]
    done = onecard("data", "prepare", "-", "--out", "broken", *BYTES, stdin=broken, cwd=tmp_path)
    assert (done.code, len(told(done.stderr))) == (2, 3), done.stderr
    if pack is gzip.compress:
        done = onecard("data", "prepare", "-", "--out", "most", *BYTES, stdin=whole[:-100], cwd=tmp_path)
        assert done.code == 0, done.stderr
        assert "[file-left-out]" in done.stderr
