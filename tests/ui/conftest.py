"""A server on a free port of this machine, over made runs, and real requests to it."""

import http.client
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from onecard.config.schema import RunConfig
from onecard.runs.record_json import to_line
from tests.made_records import _bare, end, start, step

if TYPE_CHECKING:
    from onecard.ui.server import Server

CONFIG = RunConfig.model_validate({"n_layer": 2, "n_head": 2, "n_embd": 64, "max_iters": 200}).model_dump()


def make_run(folder: Path, *, steps: int = 100, ended: str | None = None) -> Path:
    """A run folder whose loss falls from 5 to 3, with a spike of 9 at step 57."""
    from onecard.runs.records import Eval

    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    lines = [to_line(start(0, resumed_from=None))]
    for number in range(1, steps + 1):
        loss = 9.0 if number == 57 else 5 - 2 * number / steps
        lines.append(
            to_line(step(number, loss=loss, seconds=0.5, elapsed_seconds=number / 2, tokens_per_second=1000.0))
        )
        if number % 25 == 0:
            known = {"val_loss": loss + 0.1, "train_loss": loss, "val_loss_error": 0.01, "tokens": 512 * number}
            lines.append(to_line(_bare(Eval, step=number, block_size=64, **known)))
    if ended:
        lines.append(to_line(end(steps, ended)))
    (folder / "records.jsonl").write_bytes(b"".join(lines))
    return folder


@dataclass
class Answer:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Site:
    """A server, and requests to it as a browser sends them."""

    server: "Server"
    folder: Path
    port: int = field(init=False)

    def __post_init__(self) -> None:
        self.port = self.server.guard.port

    def ask(self, path: str, *, method: str = "GET", body: bytes | None = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.putrequest(method, path, skip_host="Host" in named, skip_accept_encoding=True)
        if body is not None:
            named = {"Content-Length": str(len(body)), "Content-Type": "text/plain"} | named
        for name, value in named.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        found = Answer(answer.status, answer.headers, answer.read())
        connection.close()
        return found

    def id_of(self, name: str) -> str:
        return next(str(row["id"]) for row in self.ask("/api/runs").json["runs"] if row["name"] == name)


@pytest.fixture(scope="module")
def open_site() -> Iterator[Callable[..., Site]]:
    """Opens servers, and closes them at the end."""
    with ExitStack() as opened:

        def open_one(folder: Path, *, named: list[Path] | None = None, host: str = "127.0.0.1") -> Site:
            from onecard.ui.server import Server

            return Site(opened.enter_context(Server(named or [folder], host=host, port=0)), folder)

        yield open_one


@pytest.fixture(scope="module")
def site(open_site: Callable[..., Site], tmp_path_factory: pytest.TempPathFactory) -> Site:
    folder = tmp_path_factory.mktemp("named") / "runs"
    make_run(folder / "done", steps=200, ended="finished")
    make_run(folder / "half")
    return open_site(folder)
