"""Text from a checkpoint: as `onecard sample` writes it, one at a time, until it is done or nobody reads it."""

import http.client
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from onecard.errors import OnecardError
from onecard.visible import visible
from tests.made_models import make_model
from tests.ui.conftest import Site

pytest.importorskip("torch", reason="needs torch (CPU): pip install 'onecard[train]'")

ASKED = {"prompt": "def f(", "tokens": 40, "temperature": 0.8, "top_k": 50, "seed": 7}
ENDLESS = ASKED | {"tokens": 1024}
SECRET = "a secret outside of the runs"


def events(answer: bytes) -> list[tuple[str, Any]]:
    found = [block.split("\n", 1) for block in answer.decode().split("\n\n") if block.startswith("event: ")]
    return [(kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for kind, data in found]


def write(site: Site, run: str, asked: object = ASKED, **headers: str) -> Any:
    headers = {"Content_Type": "application/json"} | headers
    return site.ask(f"/api/runs/{run}/text", method="POST", body=json.dumps(asked).encode(), **headers)


def started(site: Site, run: str, asked: object = ENDLESS) -> tuple[http.client.HTTPConnection, Any]:
    """A text whose first letters were read."""
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=60)
    headers = {"Content-Type": "application/json"}
    connection.request("POST", f"/api/runs/{run}/text", json.dumps(asked), headers)
    answer = connection.getresponse()
    while answer.readline() != b"event: text\n":
        pass
    return connection, answer


@pytest.fixture(scope="module")
def site(open_site: Callable[..., Site], tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("named") / "runs"
    make_model(folder / "own")
    make_model(folder / "wider", n_layer=6, n_embd=128)
    return open_site(folder)


@pytest.fixture(scope="module")
def own(site: Site) -> str:
    return site.id_of("own")


@pytest.mark.timeout(120)
def test_it_is_the_text_that_sample_writes(site: Site, own: str) -> None:
    from onecard.inputs.opened import open_model
    from onecard.train.sample import generate

    page = site.ask(f"/api/runs/{own}").json["playground"]
    assert page == {"step": 100, "missing": None}
    told = events(write(site, own).body)
    assert [kind for kind, _ in told[:2]] == ["begin", "model"]
    assert told[1][1]["step"] == 100
    assert told[-1][1]["why"] == "length"
    opened = open_model(str(site.folder / "own"), device="cpu")
    tokens = generate(
        opened.model, list(b"def f("), max_new_tokens=40, temperature=0.8, top_k=50, seed=7, vocab_size=256
    )
    assert "".join(what["text"] for kind, what in told if kind == "text") == visible(
        opened.tokenizer.decode(list(tokens))
    )


@pytest.mark.timeout(120)
def test_one_text_at_a_time_and_a_reader_who_leaves_stops_it(
    site: Site, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from onecard.ui import playground

    wider = site.id_of("wider")
    with monkeypatch.context() as impatient:
        impatient.setattr(playground, "PATIENCE_SECONDS", 0.0)
        connection, answer = started(site, wider)
        ((kind, error),) = events(write(site, own).body)
    assert (kind, error["name"]) == ("refused", "busy")
    number = site.server.site.playground.process.number
    answer.close()
    connection.close()
    told = events(write(site, own).body)  # at once, and the model before it is dropped
    assert told[-1][1]["why"] == "length"
    assert site.server.site.playground.process.number == number


def test_the_server_itself_never_imports_torch(site: Site) -> None:
    """Its process is asked, not this one, which has torch."""
    code = "import onecard.ui.server, onecard.ui.writer, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.timeout(120)
def test_the_process_comes_last_and_ends_with_the_server(site: Site, own: str) -> None:
    from onecard.ui.server import Server
    from onecard.ui.writer import LESS_IMPORTANT

    with Server([site.folder], host="127.0.0.1", port=0) as server:
        other = Site(server, site.folder)
        connection, _ = started(other, own)
        number = server.site.playground.process.number
        assert Path(f"/proc/{number}/oom_score_adj").read_text() == "1000\n"
        assert os.getpriority(os.PRIO_PROCESS, number or 0) == LESS_IMPORTANT
    assert not Path(f"/proc/{number}").exists()
    connection.close()


@pytest.mark.timeout(60)
def test_the_process_ends_when_nobody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    from multiprocessing import Pipe
    from threading import Thread

    from onecard.ui import writer

    monkeypatch.setattr(writer, "IDLE_SECONDS", 0.1)
    monkeypatch.setattr(writer, "_last_in_line", lambda: None)
    _ours, theirs = Pipe()
    thread = Thread(target=writer.write, args=(theirs,), daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive()


def test_a_text_has_a_time_limit(monkeypatch: pytest.MonkeyPatch, site: Site, own: str) -> None:
    from onecard.ui import writer

    monkeypatch.setattr(writer, "WRITING_SECONDS", 0.0)
    asked = writer.Asked(prompt="a", tokens=1024, temperature=0.8, top_k=5, seed=1)
    source, _ = site.server.site.runs.find(own)
    *_, (kind, what) = writer._written(writer._Model(), source, asked)
    assert (kind, what["why"]) == ("end", "time")


@pytest.mark.timeout(60)
def test_a_process_that_hangs_is_ended(monkeypatch: pytest.MonkeyPatch, site: Site, own: str) -> None:
    from onecard.ui import playground

    monkeypatch.setattr(playground, "LOADING_SECONDS", 0.2)
    monkeypatch.setattr(playground, "PATIENCE_SECONDS", 0.2)
    lasting = playground.Playground()
    lasting.process = playground.Process(time.sleep)  # gets the pipe, and fails: nobody answers
    site.server.site.playground, before = lasting, site.server.site.playground
    try:
        *_, (kind, error) = events(write(site, own).body)
    finally:
        site.server.site.playground = before
        lasting.close()
    assert kind == "refused"
    assert error["name"] == "too-slow"


@pytest.mark.parametrize(
    "changed",
    [
        {"tokens": 0},
        {"tokens": 1025},
        {"tokens": "many"},
        {"tokens": True},
        {"temperature": -1},
        {"temperature": 1e30},
        {"temperature": "NaN"},
        {"top_k": 0},
        {"seed": -1},
        {"seed": 2**64},
        {"prompt": 5},
        {"prompt": "a" * 5000},
        {"prompt": None},
    ],
    ids=str,
)
def test_what_no_page_asks_is_refused(site: Site, own: str, changed: dict[str, object]) -> None:
    answer = write(site, own, ASKED | changed)
    assert (answer.status, answer.json["error"]["name"]) == (400, "bad-request")


def test_only_its_own_page_may_ask(site: Site, own: str) -> None:
    assert write(site, own, Origin="http://evil.example").status == 403
    assert write(site, own, Host="evil.example").status == 403
    assert write(site, own, Sec_Fetch_Site="cross-site").status == 403
    assert write(site, own, Content_Type="text/plain").status == 415  # what a form of another page can send
    assert write(site, own, Content_Length=str(2**20)).status == 413
    assert site.ask(f"/api/runs/{own}/text").status == 404
    assert write(site, "0" * 12).status == 404
    assert write(site, "../secret").status in (404, 405)
    assert site.server.site.playground._is_writing is False


def test_beyond_loopback_it_needs_the_token(open_site: Callable[..., Site], site: Site, own: str) -> None:
    other = open_site(site.folder, host="0.0.0.0")
    assert write(other, own).status == 401


@pytest.mark.parametrize("part", ["checkpoints", "checkpoints/step-00000100", "vocabulary.json", "model"])
def test_no_link_leads_out_of_the_named_folder(
    open_site: Callable[..., Site], site: Site, tmp_path: Path, part: str
) -> None:
    part = {"model": "checkpoints/step-00000100/model.safetensors"}.get(part, part)
    run = tmp_path / "runs/own"
    shutil.copytree(site.folder / "own", run)
    (run / part).rename(tmp_path / "elsewhere")
    (run / part).symlink_to(tmp_path / "elsewhere")
    other = open_site(tmp_path / "runs")
    *_, (kind, error) = events(write(other, other.id_of("own")).body)
    assert (kind, error["name"]) == ("refused", "outside")


def refused(run: Path) -> OnecardError:
    """What the process answers that would write a text of this run."""
    from onecard.ui.sources import Source
    from onecard.ui.writer import Asked, _Model, _written

    asked = Asked(prompt="a", tokens=5, temperature=0.8, top_k=5, seed=1)
    with pytest.raises(OnecardError) as error:
        list(_written(_Model(), Source(path=run, root=run.parent, is_folder=True), asked))
    return error.value


@pytest.fixture
def copied(site: Site, tmp_path: Path) -> Path:
    return shutil.copytree(site.folder / "own", tmp_path / "runs/own")


def test_the_data_that_a_config_names_are_not_read(copied: Path, tmp_path: Path) -> None:
    """The tokenizer would come from there: a folder that a stranger's run may name."""
    (copied / "vocabulary.json").unlink()
    data = tmp_path / "data"
    data.mkdir()
    (data / "meta.json").write_text(json.dumps({"tokenizer": "characters", "characters": list(SECRET)}))
    config = json.loads((copied / "config.json").read_text()) | {"dataset": str(data)}
    (copied / "config.json").write_text(json.dumps(config))
    assert refused(copied).name == "no-tokenizer"


def test_a_damaged_checkpoint_is_refused(copied: Path) -> None:
    weights = copied / "checkpoints/step-00000100/model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8] + b"\xff" * 8)
    assert "damaged" in refused(copied).what


def test_a_config_larger_than_the_weights_is_refused_before_memory_is_taken(copied: Path) -> None:
    config = json.loads((copied / "config.json").read_text()) | {"n_layer": 128, "n_embd": 8192}
    (copied / "config.json").write_text(json.dumps(config))
    assert "the config's weights are" in refused(copied).why
