"""The hub, on this machine: only what is needed comes, breaks are survived, and every refusal is three lines."""

import base64
import hashlib
import io
import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from onecard.cli.main import run as command
from onecard.data import tokenizers
from onecard.data.downloads import download, downloads_of
from onecard.data.hub import find_dataset, hub_name
from onecard.data.manifest import Settings
from onecard.data.prepare import prepare
from onecard.data.prepared import Prepared
from onecard.data.tokenizer_json import byte_letters
from onecard.data.tokenizers import ByteTokenizer
from onecard.data.watch import Moment
from onecard.errors import ConfigError, MachineError
from onecard.report.data import moment_line
from tests.loopback_hub import COMMIT, Hub, serving

arrow = pytest.importorskip("pyarrow", reason="needs pyarrow")
parquet = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
library = pytest.importorskip("huggingface_hub", reason="needs huggingface_hub")
constants = pytest.importorskip("huggingface_hub.constants", reason="needs huggingface_hub")

ROOT = Path(__file__).parents[2]
FINEWEB = "HuggingFaceFW/fineweb"
CONFIGS = [
    {"config_name": "default", "data_files": [{"split": "train", "path": "data/*/*"}]},
    {"config_name": "sample-10BT", "data_files": [{"split": "train", "path": "sample/10BT/*"}]},
    {"config_name": "old", "data_files": "data/CC-1/*.parquet"},
]


def table(name: str, *, rows: int = 100) -> bytes:
    raw = io.BytesIO()
    texts = [f"{name}, row {row}: " + "some words " * 20 for row in range(rows)]
    parquet.write_table(arrow.table({"text": texts}), raw, row_group_size=10)
    return raw.getvalue()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    names = [
        *(f"sample/10BT/{number:03d}_00000.parquet" for number in range(4)),
        "data/CC-1/0.parquet",
        "data/CC-2/0.parquet",
    ]
    files = {"README.md": b"# FineWeb"} | {name: table(name) for name in names}
    with serving(Hub(FINEWEB, files, CONFIGS)) as served:
        reach(served.address, monkeypatch)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield served


def reach(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do what HF_ENDPOINT does, which the library reads only once."""
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template.replace(constants.ENDPOINT, address))
    monkeypatch.setattr(constants, "ENDPOINT", address)


def run(
    folder: Path,
    repo: str = FINEWEB,
    *,
    tokens: int | None = None,
    subset: str | None = None,
    workers: int = 1,
    on_moment: Callable[[Moment], None] = lambda moment: None,
) -> Prepared:
    dataset = find_dataset(repo, subset=subset)
    settings = Settings(tokenizer="bytes", val_share=0.1)

    def fetch(file: Any, *listeners: Any) -> Any:
        return download(dataset, file, *listeners, into=folder.parent / "downloads")

    return prepare(
        dataset.source,
        folder,
        settings=settings,
        tokenizer=ByteTokenizer(),
        tokens=tokens,
        fetch=fetch,
        workers=workers,
        on_moment=on_moment,
    )


@pytest.mark.parametrize(
    ("word", "repo"),
    [
        ("fineweb", FINEWEB),
        ("fineweb-edu", "HuggingFaceFW/fineweb-edu"),
        ("roneneldan/TinyStories", "roneneldan/TinyStories"),
        ("hf://roneneldan/TinyStories", "roneneldan/TinyStories"),
        ("folder/mistyped", None),
        ("owner/data.parquet", None),
        ("owner/file.jsonl", None),
        ("wikitext", None),
        ("a/b/c", None),
        ("", None),
    ],
)
def test_only_what_is_surely_meant_is_asked_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str, repo: str | None
) -> None:
    (tmp_path / "folder").mkdir()
    monkeypatch.chdir(tmp_path)
    assert hub_name(word) == repo


def test_fineweb_is_its_ten_billion_token_sample_in_order(hub: Hub) -> None:
    found = find_dataset(FINEWEB, subset=None)
    assert [file.name for file in found.files] == [f"sample/10BT/{number:03d}_00000.parquet" for number in range(4)]
    assert (found.subset, found.revision) == ("sample-10BT", COMMIT)
    assert found.source.size_bytes == sum(len(hub.files[file.name]) for file in found.files)
    assert hub.downloads() == []


@pytest.mark.parametrize(
    ("subset", "files"), [("default", ["data/CC-1/0.parquet", "data/CC-2/0.parquet"]), ("old", ["data/CC-1/0.parquet"])]
)
def test_a_subset_is_what_the_datasets_card_says(hub: Hub, subset: str, files: list[str]) -> None:
    assert [file.name for file in find_dataset(FINEWEB, subset=subset).files] == files


def test_an_unknown_subset_is_refused_with_the_nearest_name(hub: Hub) -> None:
    with pytest.raises(ConfigError) as caught:
        find_dataset(FINEWEB, subset="sample-10B")
    assert (caught.value.name, caught.value.fix) == ("no-such-subset", "--subset sample-10BT")


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["README.md", "data/train-0.parquet", "data/test-0.parquet"], ["data/train-0.parquet"]),
        (["a.parquet", "b.parquet", "x.jsonl"], ["a.parquet", "b.parquet"]),
        (["a.parquet", "validation.parquet"], ["a.parquet"]),
        (["train.jsonl.gz", "valid.jsonl.gz"], ["train.jsonl.gz"]),
        (["TinyStories-train.txt", "TinyStories-valid.txt"], ["TinyStories-train.txt"]),
    ],
)
def test_a_dataset_without_a_card_is_read_by_its_names(hub: Hub, names: list[str], chosen: list[str]) -> None:
    hub.repo, hub.files, hub.configs = "some/one", dict.fromkeys(names, b"x"), []
    assert [file.name for file in find_dataset("some/one", subset=None).files] == chosen


def test_a_dataset_without_data_is_refused(hub: Hub) -> None:
    hub.repo, hub.files, hub.configs = "some/one", {"README.md": b"x"}, []
    with pytest.raises(ConfigError) as caught:
        find_dataset("some/one", subset=None)
    assert caught.value.name == "no-data-files"


@pytest.mark.parametrize("workers", [1, 2])
def test_only_as_many_files_come_as_the_tokens_need(hub: Hub, tmp_path: Path, workers: int) -> None:
    in_file = sum(len(f"sample/10BT/000_00000.parquet, row {row}: ") + 220 + 1 for row in range(100))
    run(tmp_path / "out", tokens=in_file, workers=workers)
    assert hub.downloads() == ["sample/10BT/000_00000.parquet"]
    run(tmp_path / "out", tokens=in_file + 1, workers=workers)
    assert hub.downloads() == [f"sample/10BT/{number:03d}_00000.parquet" for number in range(2)]
    run(tmp_path / "out", workers=workers)
    assert sorted(hub.downloads()) == [f"sample/10BT/{number:03d}_00000.parquet" for number in range(4)], "each once"
    before = len(hub.asked)
    assert run(tmp_path / "out", workers=workers).new_tokens == 0
    assert not [asked for asked in hub.asked[before:] if "/resolve/" in asked[1]], "finished: nothing is fetched"
    whole = run(tmp_path / "whole", workers=workers)
    assert whole.counts.kept == 400
    for path in (tmp_path / "whole").glob("*.bin"):
        assert path.read_bytes() == (tmp_path / "out" / path.name).read_bytes()


def test_what_was_downloaded_may_be_deleted_and_only_what_is_still_to_be_read_comes_again(
    hub: Hub, tmp_path: Path
) -> None:
    in_file = sum(len(f"sample/10BT/000_00000.parquet, row {row}: ") + 220 + 1 for row in range(100))
    run(tmp_path / "out", tokens=in_file + in_file // 2)
    into = tmp_path / "downloads"
    kept = downloads_of(find_dataset(FINEWEB, subset=None), into=into)
    names = hub.downloads()
    assert kept
    assert kept.folder == into / FINEWEB
    assert kept.size_bytes == sum(len(hub.files[name]) for name in names)
    shutil.rmtree(kept.folder)
    assert downloads_of(find_dataset(FINEWEB, subset=None), into=into) is None
    run(tmp_path / "out")
    again = hub.downloads()[len(names) :]
    assert sorted(again) == [f"sample/10BT/{number:03d}_00000.parquet" for number in (1, 2, 3)], "not the first"
    run(tmp_path / "whole")
    for path in (tmp_path / "whole").glob("*.bin"):
        assert path.read_bytes() == (tmp_path / "out" / path.name).read_bytes()


def test_a_download_that_broke_off_goes_on_where_it_stopped(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    dataset = find_dataset(FINEWEB, subset=None)
    received = 0
    into = tmp_path / "downloads"

    class Killed(BaseException):
        pass

    def until_killed(size: int) -> None:
        nonlocal received
        received += size
        if received > 3000:
            raise Killed

    with pytest.raises(Killed):
        download(dataset, dataset.files[0], until_killed, into=into)
    told: list[int] = []
    here = download(dataset, dataset.files[0], told.append, into=into)
    assert here.path is not None
    assert [path.name for path in here.path.parent.iterdir()] == ["000_00000.parquet"]
    assert sum(told) == len(hub.files[here.name])
    assert here.path.read_bytes() == hub.files[here.name]
    (begun,) = [span for method, path, span in hub.asked if method == "GET" and "/resolve/" in path and span]
    assert int(begun.removeprefix("bytes=").rstrip("-")) == told[0] == 3000


@pytest.fixture
def fetch(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Download the first file of FineWeb, a thousand bytes at a time, looking often at who else does."""
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    monkeypatch.setattr("onecard.data.downloads._LOOK_SECONDS", 0.01)
    dataset = find_dataset(FINEWEB, subset=None)
    return lambda on_bytes: download(dataset, dataset.files[0], on_bytes, into=tmp_path / "downloads")


def test_two_at_once_download_a_file_once(hub: Hub, fetch: Any) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slowly(size: int) -> None:
        if size:
            begun.set()
            go_on.wait(20)

    told: list[int] = []
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(fetch, slowly)
        assert begun.wait(20)
        second = threads.submit(fetch, told.append)
        while not told:  # it waits, and tells of what the first has
            time.sleep(0.01)
        go_on.set()
        here, again = (each.result(20) for each in (first, second))
    content = hub.files[here.name]
    assert here.path == again.path
    assert here.path.read_bytes() == content
    assert sum(told) <= len(content), "nothing is counted twice"
    assert hub.downloads() == [here.name], "once"
    assert [path.name for path in here.path.parent.iterdir()] == ["000_00000.parquet"]


def test_who_waited_for_a_download_that_breaks_off_goes_on_with_it(hub: Hub, fetch: Any) -> None:
    begun, go_on = threading.Event(), threading.Event()
    received = 0

    class Killed(BaseException):
        pass

    def until_killed(size: int) -> None:
        nonlocal received
        received += size
        if received > 3000:
            begun.set()
            go_on.wait(20)
            raise Killed

    told: list[int] = []
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(fetch, until_killed)
        assert begun.wait(20)
        second = threads.submit(fetch, told.append)
        while not told:
            time.sleep(0.01)
        go_on.set()
        assert isinstance(first.exception(20), Killed)
        here = second.result(20)
    assert here.path.read_bytes() == hub.files[here.name]
    assert sum(told) == len(hub.files[here.name])
    spans = [span for method, path, span in hub.asked if method == "GET" and "/resolve/" in path]
    assert spans == ["", "bytes=3000-"], "the second fetched the rest alone"


HOLD = """
import sys, time
from pathlib import Path
from onecard.runs.lock import Lock
held = Lock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(60)
"""


def test_who_waits_says_for_which_process_and_goes_on_when_that_is_killed(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onecard.data.downloads._LOOK_SECONDS", 0.01)
    name = find_dataset(FINEWEB, subset=None).files[0].name
    lock = tmp_path / "downloads" / FINEWEB / COMMIT / f"{name}.lock"
    lock.parent.mkdir(parents=True)
    lines: list[str] = []
    with subprocess.Popen([sys.executable, "-c", HOLD, str(lock)], stdout=subprocess.PIPE, cwd=ROOT) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        waiting = f"waiting: process {other.pid} on {socket.gethostname()} is downloading {name}: 0 of 0 MB"

        def watch(moment: Moment) -> None:
            lines.append(moment_line(moment))
            if lines.count(waiting) == 2:  # it is said for as long as it is so
                other.kill()

        prepared = run(tmp_path / "out", tokens=1000, on_moment=watch)
        other.kill()
    assert waiting in lines
    assert prepared.counts.kept == 4


def test_a_file_in_the_librarys_cache_is_not_fetched_again(hub: Hub, tmp_path: Path) -> None:
    dataset = find_dataset(FINEWEB, subset=None)
    cached = library.hf_hub_download(FINEWEB, dataset.files[0].name, repo_type="dataset", revision=COMMIT)
    before = len(hub.asked)
    assert download(dataset, dataset.files[0], into=tmp_path / "downloads").path == Path(cached)
    assert len(hub.asked) == before
    assert not (tmp_path / "downloads").exists()


def test_a_file_that_is_not_what_the_hub_has_is_refused_and_fetched_anew(hub: Hub, tmp_path: Path) -> None:
    dataset = find_dataset(FINEWEB, subset=None)
    folder = tmp_path / FINEWEB / COMMIT / "sample" / "10BT"
    folder.mkdir(parents=True)
    etag = hashlib.sha256(hub.files[dataset.files[0].name]).hexdigest()
    (folder / f"000_00000.parquet.{etag[:16]}.part").write_bytes(b"something else")
    with pytest.raises(MachineError) as caught:
        download(dataset, dataset.files[0], into=tmp_path)
    assert "not what the hub has" in caught.value.why
    here = download(dataset, dataset.files[0], into=tmp_path)
    assert here.path is not None
    assert here.path.read_bytes() == hub.files[here.name]


def test_a_connection_that_is_cut_is_tried_again(hub: Hub, tmp_path: Path) -> None:
    hub.break_after = 500
    assert run(tmp_path / "out", tokens=1000).counts.kept == 4
    assert hub.break_after is None


def test_what_is_not_there_or_cannot_be_reached_is_three_lines(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as caught:
        find_dataset("no/such", subset=None)
    assert caught.value.name == "no-such-dataset"
    with pytest.raises(ConfigError) as caught:
        find_dataset("what is this?", subset=None)
    assert caught.value.name == "no-such-dataset"
    dataset = find_dataset(FINEWEB, subset=None)
    reach("http://127.0.0.1:9", monkeypatch)
    with pytest.raises(MachineError) as unreachable:
        download(dataset, dataset.files[0], into=tmp_path)
    assert unreachable.value.name == "hub-unreachable"
    assert unreachable.value.exit_code == 3


# GPT-2's tokenizer, which comes with the data


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine that has no tokenizer yet: onecard's home on it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ONECARD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "no-cache"))
    return tmp_path / "home"


def made_vocabulary(monkeypatch: pytest.MonkeyPatch) -> tuple[bytes, bytes]:
    """(ranks that pass for GPT-2's, the same as OpenAI's vocab.json): all bytes, and pairs of no text."""
    pieces = [bytes((byte,)) for byte in range(256)] + [b"\xff%d" % number for number in range(50000)]
    ranks = b"".join(base64.b64encode(piece) + f" {rank}\n".encode() for rank, piece in enumerate(pieces))
    monkeypatch.setattr(tokenizers, "_GPT2_SHA256", hashlib.sha256(ranks).hexdigest())
    letters = byte_letters()
    vocabulary = {"".join(letters[byte] for byte in piece): rank for rank, piece in enumerate(pieces)}
    listed = dict(reversed(({**vocabulary, "<|endoftext|>": 50256}).items()))  # in any order
    return ranks, json.dumps(listed).encode()


def prepare_fineweb(*more: str) -> int:
    return command(["data", "prepare", "fineweb", "--out", "o", "--workers", "1", "--tokens", "1k", *more])


def test_a_fresh_machine_gets_gpt2s_tokenizer_with_the_data(
    hub: Hub, fresh: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tiktoken", reason="needs tiktoken")
    ranks, vocabulary = made_vocabulary(monkeypatch)
    hub.models = {"openai-community/gpt2/vocab.json": vocabulary}
    assert prepare_fineweb() == 0
    assert (
        "GPT-2's tokenizer was not on this machine: downloaded it from openai-community/gpt2" in capsys.readouterr().err
    )
    assert (fresh / "r50k_base.tiktoken").read_bytes() == ranks == Path("o/r50k_base.tiktoken").read_bytes()
    assert json.loads(Path("o/meta.json").read_bytes())["tokenizer"] == "gpt2"
    hub.asked.clear()
    assert command(["data", "prepare", "fineweb", "--out", "again", "--workers", "1", "--tokens", "1k"]) == 0
    assert not any("vocab.json" in path for _, path, _ in hub.asked)


def test_only_data_of_the_hub_brings_the_tokenizer(
    hub: Hub, fresh: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("x.jsonl").write_text('{"text": "some words"}\n')
    assert command(["data", "prepare", "x.jsonl", "--out", "o"]) == 2
    assert "[no-ranks]" in capsys.readouterr().err
    assert hub.asked == []
    assert prepare_fineweb("--tokenizer=bytes") == 0
    assert not any("openai-community" in path for _, path, _ in hub.asked)


@pytest.mark.parametrize("served", [None, b"{}", b"not json", b'{"a": "b"}'])
def test_a_tokenizer_that_does_not_come_is_three_lines(
    hub: Hub, fresh: Path, served: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.models = {} if served is None else {"openai-community/gpt2/vocab.json": served}
    assert prepare_fineweb() == 3
    what, why, fix = capsys.readouterr().err.splitlines()
    assert what == "error: GPT-2's tokenizer could not be downloaded  [ranks-unreachable]"
    assert why.startswith("  why: vocab.json of openai-community/gpt2: ")
    assert fix.endswith("--ranks r50k_base.tiktoken, or --tokenizer=bytes")
    assert not any(fresh.glob("*.tiktoken")), "nothing wrong is kept"
    assert hub.downloads() == [] or hub.downloads() == ["vocab.json"], "the data is not fetched in vain"
