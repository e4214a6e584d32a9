"""What every request passes before it is answered, and the form of every answer."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from urllib.parse import parse_qsl

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from onecard.errors import OnecardError
from onecard.ui.guard import Guard
from onecard.ui.process import NoAnswer

JSON = "application/json"
CLOSE = {"Connection": "close"}
LONGEST_QUERY = 8192
MOST_FIELDS = 200  # of a query


class Gate:
    """Answers who may not ask, and lets everybody else through."""

    def __init__(self, app: ASGIApp, *, guard: Guard, pages: frozenset[str]) -> None:
        self._app = app
        self._guard = guard
        self._pages = pages

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await (self._refusal(scope) or self._app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if why := self._guard.refusal(headers):
            return refused(403, "refused", why, "open the address that the terminal shows")
        if not self._guard.is_known(headers):
            return self._greeting(Request(scope))
        return None

    def _greeting(self, request: Request) -> Response:
        """A cookie for whoever comes with the printed link; everybody else is refused."""
        path = request.scope["path"]
        if request.method not in ("GET", "HEAD") or not self._guard.is_token(dict(query_of(request)).get("token")):
            return refused(401, "no-token", "this address needs its token", "open the link that the terminal shows")
        cookie = f"{self._guard.cookie}={self._guard.token}; Path=/; HttpOnly; SameSite=Strict"
        place = path if path in self._pages else "/"  # the token does not stay in the address
        return Response(status_code=303, headers={"Set-Cookie": cookie, "Location": place})


def query_of(request: Request) -> list[tuple[str, str]]:
    """The fields of the address, no more of them than a page sends."""
    text = request.scope["query_string"][:LONGEST_QUERY].decode("latin-1")
    try:
        return parse_qsl(text, keep_blank_values=True, max_num_fields=MOST_FIELDS)
    except ValueError as problem:
        raise OnecardError(
            "the address has too many fields", why=str(problem)[:120], fix="reload the page", name="bad-request"
        ) from problem


def encoded(answer: object) -> bytes:
    return json.dumps(answer, allow_nan=False).encode()


def event(name: str, data: dict[str, Any]) -> str:
    """A server-sent event."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


def json_answer(answer: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(encoded(answer), status, headers, JSON)


def refused(status: int, name: str, why: str, fix: str) -> Response:
    """An answer in the form of every error, after which the connection is closed."""
    words = "the request was refused" if status != 404 else "there is nothing here"
    return json_answer(OnecardError(words, why=why, fix=fix, name=name).as_json(), status, CLOSE)


async def _told(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, OnecardError)
    status = 503 if isinstance(problem, NoAnswer) else 404 if problem.name == "no-such-run" else 400
    return json_answer(problem.as_json(), status)


async def _nothing_here(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, HTTPException)
    return refused(problem.status_code, "not-found", "nothing answers that there", "reload the page")


async def _gone(request: Request, problem: Exception) -> Response:
    return Response(status_code=400, headers=CLOSE)  # nobody reads it: the page was closed


async def _bug(request: Request, problem: Exception) -> Response:
    traceback.print_exception(problem, file=sys.stderr)
    return refused(500, "bug", "this is a bug in onecard: the terminal shows where", "please report it")


Handler = Callable[[Request, Exception], Awaitable[Response]]
ERRORS: dict[Any, Handler] = {
    OnecardError: _told,
    HTTPException: _nothing_here,
    ClientDisconnect: _gone,
    Exception: _bug,
}
