"""A Hugging Face hub of models on this machine: what snapshot_download, create_repo and upload_folder ask of it."""

from __future__ import annotations

import base64
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

COMMIT = "2" * 40


@dataclass
class ModelHub:
    """What is served, and what arrived."""

    repo: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    address: str = ""
    asked: list[str] = field(default_factory=list)  # "GET /path"
    tokens: set[str | None] = field(default_factory=set)  # of requests about the repository: the client asks others
    created: list[dict[str, Any]] = field(default_factory=list)
    arrived: dict[str, bytes] = field(default_factory=dict)


@contextmanager
def serving(hub: ModelHub) -> Iterator[ModelHub]:
    """The hub at `hub.address` until the `with` ends."""
    api = f"/api/models/{hub.repo}"

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self.get()

        def do_GET(self) -> None:
            self.get()

        def get(self) -> None:
            path = self.noted()
            found = re.fullmatch(rf"/{hub.repo}/resolve/[^/]+/(.+)", path)
            if path in (api, f"{api}/revision/main"):
                siblings = [{"rfilename": name} for name in hub.files]
                self.send_json({"id": hub.repo, "sha": COMMIT, "siblings": siblings})
            elif path.startswith(f"{api}/tree/"):
                self.send_json(
                    [{"type": "file", "path": n, "size": len(raw), "oid": "0"} for n, raw in hub.files.items()]
                )
            elif found and found[1] in hub.files:
                raw = hub.files[found[1]]
                tags = {"ETag": f'"{hashlib.sha256(raw).hexdigest()}"', "X-Repo-Commit": COMMIT}
                self.send(raw, tags)
            else:
                self.send(b"", {"X-Error-Code": "RepoNotFound"}, status=404)

        def do_POST(self) -> None:
            path = self.noted()
            raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if path == "/api/repos/create":
                hub.created.append(json.loads(raw))
                self.send_json({"url": f"{hub.address}/{hub.repo}", "id": hub.repo})
            elif path == f"{api}/preupload/main":
                names = [file["path"] for file in json.loads(raw)["files"]]
                self.send_json({"files": [{"path": n, "uploadMode": "regular", "shouldIgnore": False} for n in names]})
            elif path == f"{api}/commit/main":
                for line in map(json.loads, raw.splitlines()):
                    if line["key"] == "file":
                        hub.arrived[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
                self.send_json({"commitUrl": f"{hub.address}/{hub.repo}/commit/{COMMIT}", "commitOid": COMMIT})
            elif path == "/api/validate-yaml":
                self.send_json({"errors": [], "warnings": []})
            else:
                self.send(b"", {}, status=404)

        def noted(self) -> str:
            path = unquote(urlsplit(self.path).path)
            hub.asked.append(f"{self.command} {path}")
            if path in ("/api/repos/create", api) or path.startswith((f"{api}/", f"/{hub.repo}/")):
                hub.tokens.add(self.headers.get("Authorization"))
            return path

        def send_json(self, value: Any) -> None:
            self.send(json.dumps(value).encode(), {"Content-Type": "application/json"})

        def send(self, raw: bytes, headers: Mapping[str, str], *, status: int = 200) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(raw))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(raw)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
