"""A Hugging Face hub on this machine: one dataset and files of models, at the addresses that onecard asks for."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT = "1" * 40


@dataclass
class Hub:
    """What is served, and what was asked for."""

    repo: str
    files: Mapping[str, bytes]
    configs: list[dict[str, Any]] = field(default_factory=list)
    asked: list[tuple[str, str, str]] = field(default_factory=list)  # method, path, Range
    models: Mapping[str, bytes] = field(default_factory=dict)  # owner/name/file -> its content
    break_after: int | None = None  # bytes of a file after which the connection is cut, once
    address: str = ""

    def downloads(self) -> list[str]:
        """The files whose content was asked for, in order."""
        return [
            path.rpartition("/resolve/")[2].partition("/")[2]
            for method, path, _ in self.asked
            if method == "GET" and "/resolve/" in path
        ]


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """The hub at `hub.address` until the `with` ends."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer(body=False)

        def do_GET(self) -> None:
            self.answer(body=True)

        def answer(self, *, body: bool) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.asked.append((self.command, path, self.headers.get("Range", "")))
            api = f"/api/datasets/{hub.repo}"
            if path.startswith(f"{api}/tree/"):
                under = path.removeprefix(f"{api}/tree/").partition("/")[2]
                listed = [
                    {"type": "file", "path": name, "size": len(raw), "oid": hashlib.sha1(raw).hexdigest()}
                    for name, raw in hub.files.items()
                    if name.startswith(under)
                ]
                self.send_json(listed)
            elif path in (api, f"{api}/revision/main"):
                siblings = [{"rfilename": name} for name in hub.files]
                self.send_json(
                    {"id": hub.repo, "sha": COMMIT, "siblings": siblings, "cardData": {"configs": hub.configs}}
                )
            elif (found := re.fullmatch(rf"/datasets/{hub.repo}/resolve/[^/]+/(.+)", path)) and found[1] in hub.files:
                self.send_file(hub.files[found[1]], body=body)
            elif (model := re.sub("^/(.+?)/resolve/[^/]+/", r"\1/", path)) in hub.models:
                self.send_file(hub.models[model], body=body)
            else:
                self.send_response(404)
                self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()

        def send_json(self, value: Any) -> None:
            raw = json.dumps(value).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def send_file(self, raw: bytes, *, body: bool) -> None:
            begin = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            first = int(begin[1]) if begin else 0
            part = raw[first:]
            self.send_response(206 if begin else 200)
            self.send_header("ETag", f'"{hashlib.sha256(raw).hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(len(part)))
            if begin:
                self.send_header("Content-Range", f"bytes {first}-{len(raw) - 1}/{len(raw)}")
            self.end_headers()
            if not body:
                return
            if hub.break_after is not None:
                part, hub.break_after = part[: hub.break_after], None
                self.wfile.write(part)
                self.wfile.flush()
                self.connection.close()
                self.close_connection = True
            else:
                self.wfile.write(part)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
