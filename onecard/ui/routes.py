"""The addresses of the page, and what each answers: all of them only read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from anyio import CancelScope
from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from onecard import units
from onecard.errors import UsageError
from onecard.ui.gate import CLOSE, ERRORS, JSON, Gate, encoded, event, json_answer, query_of, refused
from onecard.ui.guard import Guard
from onecard.ui.news import LIST
from onecard.ui.playground import LARGEST_BYTES, Playground, asked_for
from onecard.ui.remembered import Remembered
from onecard.ui.watch import Runs
from onecard.ui.worker import Worker

STATIC = Path(__file__).parent / "static"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".txt": "text/plain; charset=utf-8",
}
ANSWER_SECONDS = 20.0  # of work on one question
DOCTOR_SECONDS = 20.0  # that a page waits for the first diagnosis; an event tells of a later one
READ_SECONDS = 60.0  # for the whole of an upload
QUIET_SECONDS = 15.0  # without news, after which a comment keeps a stream open
LARGEST_LOG_BYTES = 32 * units.MIB
LARGEST_CONFIG_BYTES = 64 * units.KIB
MOST_COMPARED = 20


class Site:
    """What the answers are made from: the runs, two processes that work on questions, and one that writes."""

    def __init__(self, named: Sequence[Path]) -> None:
        self.pages = {f"/{file.relative_to(STATIC).as_posix()}": file for file in STATIC.rglob("*") if file.is_file()}
        self.planner, self.reader = Worker(), Worker()
        self.playground = Playground()
        self.remembered = Remembered()
        self.runs = Runs(named)

    def close(self) -> None:
        self.runs.close()
        for process in (self.planner, self.reader, self.playground):
            process.close()

    def routes(self) -> list[Route]:
        return [
            Route("/api/runs", self.list),
            Route("/api/runs/{run}", self.run),
            Route("/api/runs/{run}/diagnosis", self.diagnosis),
            Route("/api/runs/{run}/text", self.text, methods=["POST"]),
            Route("/api/plan", self.plan),
            Route("/api/compare", self.compare),
            Route("/api/cards", self.cards),
            Route("/api/keys", self.keys),
            Route("/api/events", self.events),
            Route("/api/doctor", self.doctor, methods=["POST"]),
            Route("/api/config", self.config, methods=["POST"]),
            Route("/{page:path}", self.page),
        ]

    async def list(self, request: Request) -> Response:
        return json_answer({"schema": 1, "time": time.time(), "runs": await run_sync(self.runs.rows)})

    async def run(self, request: Request) -> Response:
        run, asked = request.path_params["run"], dict(query_of(request))
        source, number = self.runs.find(run)
        first, last = (_step(asked.get(name)) for name in ("from", "to"))

        async def recorded() -> bytes:
            made: bytes | None = None
            while made is None:  # a long run is read in parts, and others are answered between them
                made = await _asked(self.reader, "run", source, number, first, last)
            return made

        found: bytes = await self.remembered.answer((run, first, last), source.stamp, recorded)
        # two objects become one: the records, which are long, are encoded once for all pages
        return Response(encoded(await self._said(run))[:-1] + b", " + found[1:], media_type=JSON)

    async def diagnosis(self, request: Request) -> Response:
        """What the doctor says of a run, as soon as it has looked: curves do not wait for it."""
        return json_answer(await self._said(request.path_params["run"], seconds=DOCTOR_SECONDS))

    async def _said(self, run: str, *, seconds: float = 0.0) -> dict[str, Any]:
        look = await self.runs.look(run, seconds=seconds)
        row = await run_sync(self.runs.row, run)
        return {"schema": 1, "run": row, "doctor": look["doctor"], "prediction": look["prediction"]}

    async def text(self, request: Request) -> Response:
        """What the newest checkpoint of a run writes, token by token, until it is done or the page is closed."""
        source, _ = self.runs.find(request.path_params["run"])
        body = await _body(request, LARGEST_BYTES, kinds=(JSON,))
        if isinstance(body, Response):
            return body
        return Stream(self.playground.told(source, asked_for(body), request.is_disconnected))

    async def plan(self, request: Request) -> Response:
        asked = dict(query_of(request))
        run = asked.pop("config", "")
        config = self.runs.find(run)[0] if run else None
        return json_answer(await _asked(self.planner, "plan", asked, config))

    async def cards(self, request: Request) -> Response:
        return json_answer(await _asked(self.planner, "cards"))

    async def keys(self, request: Request) -> Response:
        return json_answer(await _asked(self.planner, "keys"))

    async def compare(self, request: Request) -> Response:
        query = query_of(request)
        names = [value for name, value in query if name == "run"]
        asked = dict(query)
        if len(names) > MOST_COMPARED:
            raise UsageError(
                f"{len(names)} runs on one page", why=f"it shows at most {MOST_COMPARED}", fix="onecard compare A B …"
            )
        runs = [self.runs.find(name) for name in names]
        more = asked.get("more", "") not in ("", "0")
        answer: dict[str, Any] = await _asked(self.reader, "compare", runs, asked.get("gpu"), more)
        if more:
            answer["ui"]["runs"] = [self.runs.row(name) for name in names]
        return json_answer(answer)

    async def events(self, request: Request) -> Response:
        """Server-sent events until the page is closed; the browser connects again by itself."""
        if request.method == "HEAD":
            return Response(media_type=Stream.media_type)
        return Stream(self._told())

    async def _told(self) -> AsyncGenerator[str, None]:
        news = self.runs.news
        number = news.number
        yield f"retry: 1000\n\n{event('hello', {'time': time.time()})}"
        while not news.ended:
            number, names = await news.coming(number, seconds=QUIET_SECONDS)
            told = [event("runs", {}) if name == LIST else event("run", {"id": name}) for name in names]
            yield "".join(told) or ": still here\n\n"

    async def doctor(self, request: Request) -> Response:
        body = await _body(request, LARGEST_LOG_BYTES)
        if isinstance(body, Response):
            return body
        asked, log, config, name = dict(query_of(request)), body, None, None
        if _content_type(request) == JSON:
            log, config, name = await run_sync(_log_and_config, body)
        more = asked.get("more", "") not in ("", "0")
        return json_answer(await _asked(self.reader, "doctor", log, config, name, asked.get("gpu"), more))

    async def config(self, request: Request) -> Response:
        body = await _body(request, LARGEST_CONFIG_BYTES)
        if isinstance(body, Response):
            return body
        return json_answer(await _asked(self.planner, "config", body.decode("utf-8", "replace")))

    async def page(self, request: Request) -> Response:
        path = request.url.path
        file = self.pages.get("/index.html" if path == "/" else path)  # no path is made of what was asked
        if file is None:
            return refused(404, "not-found", "there is no such page", "open /")
        return Response(await run_sync(file.read_bytes), media_type=TYPES.get(file.suffix, "application/octet-stream"))


class Stream(StreamingResponse):
    """Server-sent events. When the page is closed, what makes them is told so at once."""

    media_type = "text/event-stream"

    def __init__(self, told: AsyncGenerator[str, None]) -> None:
        super().__init__(told, headers=CLOSE)
        self._told = told

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            with CancelScope(shield=True):
                await self._told.aclose()


def application(site: Site, guard: Guard) -> Starlette:
    """The addresses behind their gate."""
    gate = Middleware(Gate, guard=guard, pages=frozenset(site.pages))
    made = Starlette(routes=site.routes(), middleware=[gate], exception_handlers=ERRORS)
    made.router.redirect_slashes = False
    return made


async def _asked(worker: Worker, question: str, *asked: Any) -> Any:
    """The answer of a worker, while others are served."""
    return await run_sync(lambda: worker.ask(question, *asked, seconds=ANSWER_SECONDS))


async def _body(request: Request, largest: int, *, kinds: tuple[str, ...] = ("text/plain", JSON)) -> bytes | Response:
    """The body of a POST, or why it was refused. A refusal closes: what is left of the body is no other request."""
    length = request.headers.get("Content-Length", "")
    if "Transfer-Encoding" in request.headers or not length.isdecimal() or len(length) > 12:
        return refused(411, "no-length", "a POST says its length", "send it with Content-Length")
    if int(length) > largest:
        return refused(413, "too-large", f"at most {units.size(largest)} are read", "onecard doctor FILE has no limit")
    if _content_type(request) not in kinds:
        return refused(415, "not-text", f"only {' and '.join(kinds)} is read", f"send it as {kinds[0]}")
    read = bytearray()
    try:
        async with asyncio.timeout(READ_SECONDS):
            async for piece in request.stream():
                read += piece
    except TimeoutError:
        return refused(408, "too-slow", "the upload stopped or took too long", "try again")
    return bytes(read)


def _content_type(request: Request) -> str:
    return request.headers.get("Content-Type", "").partition(";")[0].strip().lower()


def _step(said: str | None) -> int | None:
    return int(said) if said and said.isdecimal() and len(said) < 19 else None


def _log_and_config(body: bytes) -> tuple[bytes, str | None, str | None]:
    """A log with its config and the name of the config's file, as a page sends them."""
    from onecard.untrusted_json import BadJson, field, mapping, optional, parsed, text

    try:
        said = mapping(parsed(body))
        log = field(said, "log", text).encode("utf-8", "replace")
        return log, field(said, "config", optional(text)), field(said, "config_name", optional(text))
    except BadJson as problem:
        raise UsageError(
            "this is not a log with its config", why=str(problem), fix="drop the log on the page", name="bad-request"
        ) from problem
