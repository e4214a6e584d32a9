"""The server: uvicorn on one address, in a thread of its own, until it is closed."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from onecard import units
from onecard.errors import MachineError, OnecardError
from onecard.ui.guard import HEADERS, Guard
from onecard.ui.routes import ANSWER_SECONDS, Site, application

LARGEST_HEAD_BYTES = 32 * units.KIB
SILENT_SECONDS = 15.0  # without a request, or without taking anything of an answer
MOST_CONNECTIONS = 1024
MOST_WAITING = 128  # connections that the system holds until they are accepted


class Server:
    """Answers on one address, as long as it is open."""

    def __init__(self, named: Sequence[Path], *, host: str, port: int) -> None:
        try:
            self._socket = _listening(host, port)
        except OSError as problem:
            raise _cannot_listen(host, port, problem) from problem
        self.guard = Guard(host=host, port=self._socket.getsockname()[1])
        self.site = Site(named)
        # Nothing is believed that a proxy could say, and nothing is printed: the terminal shows the address alone.
        self._uvicorn = uvicorn.Server(
            uvicorn.Config(
                application(self.site, self.guard),
                loop="asyncio",
                http=Connection,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="critical",
                access_log=False,
                proxy_headers=False,
                server_header=False,
                headers=list(HEADERS.items()),
                limit_concurrency=MOST_CONNECTIONS,
                h11_max_incomplete_event_size=LARGEST_HEAD_BYTES,
            )
        )
        self._thread = threading.Thread(target=self._uvicorn.run, kwargs={"sockets": [self._socket]}, daemon=True)

    def __enter__(self) -> Server:
        self.site.runs.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End at once, whatever is open."""
        self._uvicorn.should_exit = self._uvicorn.force_exit = True
        self.site.close()
        self._thread.join()
        self._socket.close()

    def wait(self) -> None:
        """Until it ends; Ctrl-C comes through."""
        while self._thread.is_alive():
            self._thread.join(0.5)  # on Windows, Ctrl-C waits for the end of a join

    def warm(self) -> None:
        """Load what the first answers need, so that they come at once."""
        for worker in (self.site.planner, self.site.reader):
            with suppress(OnecardError):
                worker.ask("warm", seconds=ANSWER_SECONDS)


def _listening(host: str, port: int) -> socket.socket:
    return socket.create_server(
        (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=MOST_WAITING
    )


def _cannot_listen(host: str, port: int, problem: OSError) -> MachineError:
    return MachineError(
        f"cannot listen on {host}:{port}",
        why=f"the system says: {problem.strerror or problem}; another onecard ui may be open there",
        fix="onecard ui --port 0   (takes any port that is free)",
        name="port-taken",
    )


class Connection(H11Protocol):
    """One connection. uvicorn waits for ever for a first request, for the rest of a head and for a reader; this does
    not."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._seen: Any = None
        self._unsent = 0
        self._look_again()

    def connection_lost(self, exc: Exception | None) -> None:
        self._next_look.cancel()
        super().connection_lost(exc)

    def _look_again(self) -> None:
        self._next_look = self.loop.call_later(SILENT_SECONDS, self._look)

    def _look(self) -> None:
        answering = self.cycle is not None and not self.cycle.response_complete
        unsent = self.transport.get_write_buffer_size()
        nothing_is_taken = unsent >= self._unsent > 0
        nothing_is_asked = not answering and not unsent and self.cycle is self._seen
        if nothing_is_taken or nothing_is_asked:
            self.transport.abort()
            return
        self._seen, self._unsent = self.cycle, unsent
        self._look_again()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP gets the strict headers, too."""
        if self.cycle is None or self.cycle.response_complete:
            headers = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
            head = f"HTTP/1.1 400 Bad Request\r\n{headers}Content-Length: 0\r\nConnection: close\r\n\r\n"
            self.transport.write(head.encode())
        self.transport.close()
