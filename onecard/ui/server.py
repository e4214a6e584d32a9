"""The server: the files of the page, and the answers that it asks for. Nothing can be changed through it."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import BoundedSemaphore
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from onecard import units
from onecard.errors import MachineError, OnecardError, UsageError
from onecard.ui.guard import HEADERS, Guard
from onecard.ui.news import LIST
from onecard.ui.remembered import Remembered
from onecard.ui.watch import Runs
from onecard.ui.worker import NoAnswer, Worker

STATIC = Path(__file__).parent / "static"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".txt": "text/plain; charset=utf-8",
}
JSON = "application/json"
ANSWER_SECONDS = 20.0  # of work on one question
DOCTOR_SECONDS = 3.0  # that the page of a run waits for the first diagnosis; an event tells of a later one
LONG_RUN_BYTES = 4 * units.MIB  # of records, for which it does not wait
READ_SECONDS = 60.0  # for the whole of an upload
QUIET_SECONDS = 15.0  # without news, after which a comment keeps a stream open
LARGEST_LOG_BYTES = 32 * units.MIB
LARGEST_CONFIG_BYTES = 64 * units.KIB
LONGEST_QUERY = 8192
MOST_CONNECTIONS = 1024
MOST_COMPARED = 20


class Server(ThreadingHTTPServer):
    """Answers on one address until it is closed."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, named: Sequence[Path], *, host: str, port: int) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._connections = BoundedSemaphore(MOST_CONNECTIONS)
        self.pages = {f"/{file.relative_to(STATIC).as_posix()}": file for file in STATIC.rglob("*") if file.is_file()}
        self.planner, self.reader = Worker(), Worker()
        self.remembered = Remembered()
        self.runs = Runs(named)
        try:
            super().__init__((host, port), Handler)
        except OSError as problem:
            raise _cannot_listen(host, port, problem) from problem
        self.guard = Guard(host=host, port=self.server_address[1])
        self.runs.start()

    def warm(self) -> None:
        """Load what the first answers need, so that they come at once."""
        for worker in (self.planner, self.reader):
            with suppress(OnecardError):
                worker.ask("warm", seconds=ANSWER_SECONDS)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._connections.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def server_close(self) -> None:
        super().server_close()
        self.runs.close()
        for worker in (self.planner, self.reader):
            worker.close()


def _cannot_listen(host: str, port: int, problem: OSError) -> MachineError:
    return MachineError(
        f"cannot listen on {host}:{port}",
        why=f"the system says: {problem.strerror or problem}; another onecard ui may be open there",
        fix="onecard ui --port 0   (takes any port that is free)",
        name="port-taken",
    )


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "onecard", ""
    timeout = 30  # for a client that says nothing

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_HEAD(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def log_message(self, format: str, *args: Any) -> None:
        """The terminal shows the address and nothing else."""

    def _answer(self, answer: Callable[[str, list[tuple[str, str]]], None]) -> None:
        guard, address = self.server.guard, urlsplit(self.path)
        try:
            if refusal := guard.refusal(self.headers):
                return self._refuse(403, "refused", refusal, "open the address that the terminal shows")
            query = parse_qsl(address.query[:LONGEST_QUERY], keep_blank_values=True, max_num_fields=200)
            if not guard.is_known(self.headers):
                return self._greet(address.path, dict(query))
            return answer(address.path, query)
        except NoAnswer as problem:
            self._send_json(503, problem.as_json())
        except OnecardError as problem:
            self._send_json(404 if problem.name == "no-such-run" else 400, problem.as_json())
        except ValueError as problem:  # too many fields in the query
            self._refuse(400, "bad-request", str(problem)[:120], "reload the page")
        except OSError:  # the page was closed
            self.close_connection = True

    def _greet(self, path: str, query: dict[str, str]) -> None:
        """A cookie for whoever comes with the printed link; everybody else is refused."""
        guard = self.server.guard
        if not guard.is_token(query.get("token")):
            return self._refuse(
                401, "no-token", "this address needs its token", "open the link that the terminal shows"
            )
        cookie = f"{guard.cookie}={guard.token}; Path=/; HttpOnly; SameSite=Strict"
        place = path if path in self.server.pages else "/"  # the token does not stay in the address
        return self._send(303, b"", "text/plain", {"Set-Cookie": cookie, "Location": place})

    def _get(self, path: str, query: list[tuple[str, str]]) -> None:
        asked = dict(query)
        if path == "/api/runs":
            return self._send_json(200, {"schema": 1, "time": time.time(), "runs": self.server.runs.rows()})
        if path.startswith("/api/runs/"):
            return self._send(200, self._run(path.removeprefix("/api/runs/"), asked), JSON)
        if path == "/api/plan":
            run = asked.pop("config", "")
            config = self.server.runs.find(run)[0] if run else None
            return self._send_json(200, self.server.planner.ask("plan", asked, config, seconds=ANSWER_SECONDS))
        if path == "/api/compare":
            return self._send_json(200, self._compare(query))
        if path in ("/api/cards", "/api/keys"):
            question = path.removeprefix("/api/")
            return self._send_json(200, self.server.planner.ask(question, seconds=ANSWER_SECONDS))
        if path == "/api/events":
            return self._stream()
        return self._static("/index.html" if path == "/" else path)

    def _post(self, path: str, query: list[tuple[str, str]]) -> None:
        largest = {"/api/doctor": LARGEST_LOG_BYTES, "/api/config": LARGEST_CONFIG_BYTES}.get(path)
        if largest is None:
            return self._refuse(404, "not-found", "nothing takes a POST there", "reload the page")
        body = self._body(largest)
        if body is None:
            return None
        if path == "/api/config":
            text = body.decode("utf-8", "replace")
            return self._send_json(200, self.server.planner.ask("config", text, seconds=ANSWER_SECONDS))
        asked, log, config = dict(query), body, None
        if self.headers.get_content_type() == JSON:
            log, config = _log_and_config(body)
        more = asked.get("more", "") not in ("", "0")
        return self._send_json(
            200, self.server.reader.ask("doctor", log, config, asked.get("gpu"), more, seconds=ANSWER_SECONDS)
        )

    def _run(self, run: str, asked: dict[str, str]) -> bytes:
        source, number = self.server.runs.find(run)
        first, last = (_step(asked.get(name)) for name in ("from", "to"))

        def recorded() -> bytes:
            return _encoded(self.server.reader.ask("run", source, number, first, last, seconds=ANSWER_SECONDS))

        found: bytes = self.server.remembered.answer((run, first, last), source.stamp, recorded)
        size, _ = source.stamp()
        look = self.server.runs.look(run, seconds=DOCTOR_SECONDS if size < LONG_RUN_BYTES else 0.0)
        said = {"doctor": look["doctor"], "prediction": look["prediction"]}
        # two objects become one: the records, which are long, are encoded once for all pages
        return _encoded({"schema": 1, "run": self.server.runs.row(run), **said})[:-1] + b", " + found[1:]

    def _compare(self, query: list[tuple[str, str]]) -> dict[str, Any]:
        names = [value for name, value in query if name == "run"]
        asked = dict(query)
        if len(names) > MOST_COMPARED:
            raise UsageError(
                f"{len(names)} runs on one page", why=f"it shows at most {MOST_COMPARED}", fix="onecard compare A B …"
            )
        runs = [self.server.runs.find(name) for name in names]
        more = asked.get("more", "") not in ("", "0")
        answer: dict[str, Any] = self.server.reader.ask("compare", runs, asked.get("gpu"), more, seconds=ANSWER_SECONDS)
        if more:
            answer["ui"]["runs"] = [self.server.runs.row(name) for name in names]
        return answer

    def _stream(self) -> None:
        """Server-sent events until the page is closed; the browser connects again by itself."""
        news = self.server.runs.news
        number = news.number
        self.close_connection = True
        self.send_response(200)
        self._send_headers({"Content-Type": "text/event-stream", "Connection": "close"})
        if self.command == "HEAD":
            return
        try:
            self._write(f"retry: 1000\n\n{_event('hello', {'time': time.time()})}")
            while True:
                number, names = news.after(number, seconds=QUIET_SECONDS)
                events = [_event("runs", {}) if name == LIST else _event("run", {"id": name}) for name in names]
                self._write("".join(events) or ": still here\n\n")
        except OSError:  # the page was closed
            return

    def _write(self, text: str) -> None:
        self.wfile.write(text.encode())
        self.wfile.flush()

    def _body(self, largest: int) -> bytes | None:
        """The body of a POST; None where it was refused."""
        self.close_connection = True  # whatever is left of it is not read as another request
        length = self.headers.get("Content-Length", "")
        if "Transfer-Encoding" in self.headers or not length.isdecimal() or len(length) > 12:
            self._refuse(411, "no-length", "a POST says its length", "send it with Content-Length")
        elif int(length) > largest:
            self._refuse(
                413, "too-large", f"at most {units.size(largest)} are read", "onecard doctor FILE has no limit"
            )
        elif self.headers.get_content_type() not in ("text/plain", JSON):
            self._refuse(415, "not-text", "only text/plain and application/json are read", "send it as text/plain")
        else:
            return self._read(int(length))
        return None

    def _read(self, length: int) -> bytes | None:
        read, end = bytearray(), time.monotonic() + READ_SECONDS
        while len(read) < length:
            piece = self.rfile.read1(min(length - len(read), 2**16)) if time.monotonic() < end else b""
            if not piece:
                self._refuse(408, "too-slow", "the upload stopped or took too long", "try again")
                return None
            read += piece
        return bytes(read)

    def _static(self, path: str) -> None:
        file = self.server.pages.get(path)  # a name in a list: no path is made of what was asked
        if file is None:
            return self._refuse(404, "not-found", "there is no such page", "open /")
        return self._send(200, file.read_bytes(), TYPES.get(file.suffix, "application/octet-stream"))

    def _refuse(self, status: int, name: str, why: str, fix: str) -> None:
        self.close_connection = True
        words = "the request was refused" if status != 404 else "there is nothing here"
        self._send_json(status, OnecardError(words, why=why, fix=fix, name=name).as_json())

    def _send_json(self, status: int, answer: object) -> None:
        self._send(status, _encoded(answer), JSON)

    def _send(self, status: int, body: bytes, kind: str, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        connection = {"Connection": "close"} if self.close_connection else {}
        self._send_headers({"Content-Type": kind, "Content-Length": str(len(body)), **connection, **(more or {})})
        if self.command != "HEAD":
            self.wfile.write(body)

    def _send_headers(self, headers: dict[str, str]) -> None:
        for name, value in (HEADERS | {"Cache-Control": "no-store"} | headers).items():
            self.send_header(name, value)
        self.end_headers()


def _encoded(answer: object) -> bytes:
    return json.dumps(answer, allow_nan=False).encode()


def _event(name: str, data: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


def _step(said: str | None) -> int | None:
    return int(said) if said and said.isdecimal() and len(said) < 19 else None


def _log_and_config(body: bytes) -> tuple[bytes, str | None]:
    """A log with its config, as a page sends both."""
    from onecard.untrusted_json import field, mapping, optional, parsed, text

    said = mapping(parsed(body))
    return field(said, "log", text).encode("utf-8", "replace"), field(said, "config", optional(text))
