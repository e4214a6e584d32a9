"""Each attack on the server, as real requests: it answers nothing that it should not, and nothing can be changed."""

import json
import os
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from onecard.runs.record_json import to_line
from tests.made_records import step
from tests.ui.conftest import Site, make_run

SECRET = "a secret outside of the runs"
HOSTILE = "<img src=x onerror=alert(1)>\"'&"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example:{port}", "127.0.0.1:1", ""]
)
def test_a_foreign_host_header_is_refused(site: Site, host: str) -> None:
    """As a page sends it whose name was pointed at 127.0.0.1 (DNS rebinding)."""
    answer = site.ask("/api/runs", Host=host.format(port=site.port))
    assert answer.status == 403
    assert b"half" not in answer.body


def test_two_host_headers_are_refused(site: Site) -> None:
    with socket.create_connection(("127.0.0.1", site.port), timeout=10) as raw:
        raw.sendall(f"GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\nHost: evil.example\r\n\r\n".encode())
        answer = raw.recv(4096)
    assert b" 400 " in answer or b" 403 " in answer
    assert b"default-src 'none'" in answer
    assert b"half" not in answer


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:{port}", "http://127.0.0.1:1"])
def test_another_origin_is_refused(site: Site, origin: str) -> None:
    headers = {"Origin": origin.format(port=site.port)}
    assert site.ask("/api/runs", **headers).status == 403
    assert site.ask("/api/runs", origin=headers["Origin"]).status == 403
    assert site.ask("/api/doctor", method="POST", body=b"iter 0: loss 1", **headers).status == 403


def test_what_another_page_embeds_is_refused_and_a_link_is_followed(site: Site) -> None:
    embedded = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "no-cors", "Sec_Fetch_Dest": "script"}
    assert site.ask("/api/runs", **embedded).status == 403
    followed = {"Sec_Fetch_Site": "cross-site", "Sec_Fetch_Mode": "navigate", "Sec_Fetch_Dest": "document"}
    assert site.ask("/", **followed).status in (200, 404)
    framed = followed | {"Sec_Fetch_Dest": "iframe"}
    assert site.ask("/", **framed).status == 403


def test_its_own_page_may_ask(site: Site) -> None:
    own = {"Origin": f"http://localhost:{site.port}", "Host": f"localhost:{site.port}", "Sec_Fetch_Site": "same-origin"}
    assert site.ask("/api/runs", **own).status == 200


def test_every_answer_has_the_strict_headers(site: Site) -> None:
    for answer in (site.ask("/"), site.ask("/api/runs"), site.ask("/nothing"), site.ask("/api/runs", Host="evil")):
        policy = answer.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize(
    "path",
    [
        "/../server.py",
        "/..%2fserver.py",
        "/%2e%2e/server.py",
        "/static/../../server.py",
        "//etc/passwd",
        "/etc/passwd",
        "/....//server.py",
        "/index.html/../../server.py",
        "/..\\server.py",
        "/index.html%00.js",
        "http://127.0.0.1/../server.py",
    ],
)
def test_no_file_outside_of_the_page_is_served(site: Site, path: str) -> None:
    answer = site.ask(path)
    assert answer.status in (400, 403, 404)
    assert b"uvicorn" not in answer.body
    assert b"root:" not in answer.body


@pytest.mark.parametrize(
    "run", ["../secret", "..%2f..%2fsecret", "/etc/passwd", "-1", "{id}-999999999", "{id}--1", "{id}-x", ""]
)
def test_a_run_is_asked_for_by_id_and_nothing_else(site: Site, run: str) -> None:
    answer = site.ask("/api/runs/" + run.format(id=site.id_of("half")))
    assert answer.status in (400, 404)
    assert set(answer.json) == {"schema", "error"}


def outside(folder: Path) -> Path:
    """A run beside the named folder, with a secret in its config."""
    secret = make_run(folder.parent / "secret")
    config = json.loads((secret / "config.json").read_text()) | {"wandb_project": SECRET}
    (secret / "config.json").write_text(json.dumps(config))
    return secret


def test_links_that_lead_out_are_no_runs(open_site: Callable[..., Site], tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    make_run(folder / "own")
    secret = outside(folder)
    (folder / "linked").symlink_to(secret, target_is_directory=True)
    for name in ("config.json", "records.jsonl"):
        linked = make_run(folder / f"has-linked-{name}")
        (linked / name).unlink()
        (linked / name).symlink_to(secret / name)
    (folder / "circle").symlink_to(folder / "circle")
    site = open_site(folder)
    assert [row["name"] for row in site.ask("/api/runs").json["runs"]] == ["own"]


def test_a_link_made_later_is_not_followed(open_site: Callable[..., Site], tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    run = make_run(folder / "own")
    secret = outside(folder)
    site = open_site(folder)
    name = site.id_of("own")
    shutil.rmtree(run)
    run.symlink_to(secret, target_is_directory=True)
    for path in (f"/api/runs/{name}", f"/api/plan?config={name}&gpu=none", f"/api/compare?run={name}&run={name}"):
        answer = site.ask(path)
        assert answer.status in (400, 404), path
        assert SECRET.encode() not in answer.body


@pytest.mark.parametrize("key", ["init_from", "dataset", "out_dir"])
def test_a_plan_reads_no_file_that_the_page_names(site: Site, key: str) -> None:
    for value in (str(site.folder / "done"), "../runs/done", "~", "..", "a\\b"):
        answer = site.ask(f"/api/plan?gpu=none&{key}={value}")
        assert answer.status == 400
        assert answer.json["error"]["name"] == "path-in-page"


@pytest.mark.parametrize(
    "query",
    [
        "n_layer=100000",
        "n_embd=99999999999",
        "batch_size=-1",
        "n_layer=x",
        "hours=nan",
        "vram=1e999TiB",
        "nonsense=1",
        "params=124M",
        "trainer=evil",
    ],
)
def test_a_plan_out_of_bounds_is_an_error_at_once(site: Site, query: str) -> None:
    began = time.monotonic()
    answer = site.ask(f"/api/plan?gpu=RTX+4070&{query}")
    assert answer.status == 400
    assert set(answer.json["error"]) == {"name", "what", "why", "fix"}
    assert time.monotonic() - began < 10


def test_a_plan_that_takes_too_long_is_ended(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onecard.ui.routes.ANSWER_SECONDS", 0.001)
    answer = site.ask("/api/plan?gpu=RTX+4070&n_layer=100&fit=1&sensitivity=1")
    assert (answer.status, answer.json["error"]["name"]) == (503, "too-slow")
    monkeypatch.undo()
    assert site.ask("/api/plan?gpu=none&n_layer=2&n_head=2&n_embd=64").status == 200


@pytest.mark.parametrize("path", ["/api/doctor", "/api/config"])
def test_a_large_upload_is_refused_before_it_is_read(site: Site, path: str) -> None:
    answer = site.ask(path, method="POST", body=b"", Content_Length=str(10**11))
    assert answer.status == 413


@pytest.mark.parametrize(
    "headers",
    [{"Content_Length": "-1"}, {"Content_Length": "x"}, {"Transfer_Encoding": "chunked", "Content_Length": "3"}],
)
def test_an_upload_says_its_length(site: Site, headers: dict[str, str]) -> None:
    assert site.ask("/api/doctor", method="POST", body=b"", **headers).status in (400, 411)


def test_an_upload_that_stops_is_given_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onecard.ui.routes.READ_SECONDS", 0.3)
    with socket.create_connection(("127.0.0.1", site.port), timeout=10) as raw:
        head = f"POST /api/doctor HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\nContent-Type: text/plain\r\n"
        raw.sendall(f"{head}Content-Length: 1000\r\n\r\nhalf".encode())
        began = time.monotonic()
        while raw.recv(4096):
            pass
        assert time.monotonic() - began < 5


@pytest.mark.parametrize("said", [b"", b"GET /api/runs HTTP/1.1\r\nHost: x\r\nX-More: "])
def test_a_connection_that_says_nothing_is_closed(site: Site, said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onecard.ui.server.SILENT_SECONDS", 0.2)
    with socket.create_connection(("127.0.0.1", site.port), timeout=5) as raw:
        raw.sendall(said)
        with suppress(ConnectionResetError):
            assert raw.recv(4096) == b""


def test_a_reader_that_takes_nothing_is_given_up(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onecard.ui.server.SILENT_SECONDS", 0.2)
    ask = f"GET /style.css HTTP/1.1\r\nHost: 127.0.0.1:{site.port}\r\n\r\n".encode()
    asked, got = 2000, 0
    with socket.create_connection(("127.0.0.1", site.port), timeout=20) as raw:
        raw.sendall(ask * asked)
        time.sleep(1)
        with suppress(ConnectionError):
            while piece := raw.recv(2**20):
                got += len(piece)
    assert got < asked * len(site.ask("/style.css").body) / 2


def test_an_upload_that_is_a_form_is_refused(site: Site) -> None:
    """A form of another page can be sent without asking first."""
    kind = "application/x-www-form-urlencoded"
    assert site.ask("/api/doctor", method="POST", body=b"a=b", Content_Type=kind).status == 415


def test_an_upload_is_never_written_and_names_no_file(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = (
        f"Overriding: dataset = {site.folder}\ninit_from = '{site.folder}/done'\nstep 0: train loss 5.0, val loss 5.1\n"
    )
    before = sorted(site.folder.rglob("*"))
    for answer in (
        site.ask("/api/doctor", method="POST", body=log.encode()),
        site.ask("/api/config", method="POST", body=b"import os; os.system('touch hacked')\nn_layer = 3\n"),
    ):
        assert answer.status in (200, 400)
        assert b"Traceback" not in answer.body
    assert sorted(site.folder.rglob("*")) == before
    assert not Path("hacked").exists()


@pytest.mark.parametrize("body", [b"", b"\x00" * 1000, b"[" * 100_000, os.urandom(10_000), b"iter nan: loss nan" * 100])
@pytest.mark.parametrize("kind", ["text/plain", "application/json"])
def test_no_upload_breaks_the_server(site: Site, body: bytes, kind: str) -> None:
    answer = site.ask("/api/doctor", method="POST", body=body, Content_Type=kind)
    assert answer.status in (200, 400)
    assert b"Traceback" not in answer.body


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT"])
def test_nothing_can_be_changed(site: Site, method: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in site.folder.rglob("*")}
    assert site.ask(f"/api/runs/{site.id_of('half')}", method=method).status in (405, 501)
    assert site.ask(f"/api/runs/{site.id_of('half')}", method="POST", body=b"").status == 405
    assert {path: path.stat().st_mtime_ns for path in site.folder.rglob("*")} == before


def test_hostile_names_and_texts_stay_text(open_site: Callable[..., Site], tmp_path: Path) -> None:
    name = HOSTILE.replace("/", "")
    run = make_run(tmp_path / "runs" / name)
    config = json.loads((run / "config.json").read_text()) | {"wandb_project": HOSTILE}
    (run / "config.json").write_text(json.dumps(config))
    with (run / "records.jsonl").open("ab") as file:
        file.write(b'{"kind":"end","step":100,"reason":' + json.dumps(HOSTILE).encode() + b"}\n")
        file.write(b'{"kind":"step","step":101,"loss":1' + b"[" * 5000 + b"\n" + to_line(step(102, loss=float("nan"))))
    site = open_site(tmp_path / "runs")
    (row,) = site.ask("/api/runs").json["runs"]
    assert row["name"] == name
    answer = site.ask(f"/api/runs/{row['id']}")
    assert answer.headers["Content-Type"] == "application/json"
    values = {setting["key"]: setting["value"] for setting in answer.json["config"]}
    assert values["wandb_project"] == HOSTILE


def test_beyond_loopback_everything_needs_the_token(open_site: Callable[..., Site], tmp_path: Path) -> None:
    make_run(tmp_path / "runs" / "own")
    site = open_site(tmp_path / "runs", host="0.0.0.0")
    token = site.server.guard.token
    assert f"?token={token}" in site.server.guard.link
    for path in ("/", "/api/runs", "/api/events", "/?token=", "/?token=wrong", f"/?token={token}x"):
        assert site.ask(path).status == 401, path
    assert site.ask("/api/doctor", method="POST", body=b"x").status == 401
    greeted = site.ask(f"/?token={token}")
    assert (greeted.status, greeted.headers["Location"]) == (303, "/")
    cookie = greeted.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    known = {"Cookie": cookie.split(";")[0]}
    assert site.ask("/api/runs", **known).status == 200
    assert site.ask("/api/runs", Cookie=known["Cookie"] + "x").status == 401
    assert site.ask("/api/runs", **known, Host=f"evil.example:{site.port}").status == 403


def test_loopback_is_the_default() -> None:
    from onecard.cli.ui import ui

    assert {option.name: option.default for option in ui.params}["host"] == "127.0.0.1"
