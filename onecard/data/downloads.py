"""Files of the hub, brought to this machine: one at a time, each downloaded once.

If huggingface_hub's cache has a file, it is used. Otherwise the file goes to a folder of our own: the library resumes a
download after a lost connection, but starts again after a kill, and the files have two gigabytes each.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from onecard.data.extras import extra
from onecard.data.hub import PURPOSE, HubDataset, told
from onecard.data.sources import SourceFile
from onecard.runs.lock import InUse, Lock

_LOOK_SECONDS = 0.5  # between two checks of another process's download

OnBytes = Callable[[int], None]  # gets the size of each part that has arrived
OnHolder = Callable[[str | None], None]  # gets the other process that downloads the file; None: no other


def download(
    dataset: HubDataset,
    file: SourceFile,
    on_bytes: OnBytes = lambda size: None,
    on_holder: OnHolder = lambda holder: None,
    *,
    into: Path,
) -> SourceFile:
    """The file on this machine: from huggingface_hub's cache if it is there, else below the folder `into`.

    `on_bytes` gets the size of each part that arrives, and first the size of what was there before. One process
    downloads a file; others wait for it as long as it lives, and their `on_holder` gets its name.
    """
    hub = extra("huggingface_hub", purpose=PURPOSE)
    where = {"repo_type": "dataset", "revision": dataset.revision}
    with told(dataset.repo):
        cached = hub.try_to_load_from_cache(dataset.repo, file.name, **where)
        if isinstance(cached, str):
            return replace(file, path=Path(cached))
        path = into / dataset.repo / dataset.revision / file.name
        if not path.exists():
            _fetch(hub.hf_hub_url(dataset.repo, file.name, **where), path, on_bytes, on_holder)
    return replace(file, path=path)


@dataclass(frozen=True, kw_only=True)
class Downloads:
    """What was downloaded of a dataset, in this and earlier revisions; it stays until someone deletes it."""

    folder: Path
    size_bytes: int


def downloads_of(dataset: HubDataset, *, into: Path) -> Downloads | None:
    """What was downloaded of a dataset into the folder `into`; None if nothing."""
    folder, size_bytes = into / dataset.repo, 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # a download may end, and be renamed, while we look
            size_bytes += path.stat().st_size if path.is_file() else 0
    return Downloads(folder=folder, size_bytes=size_bytes) if size_bytes else None


def _fetch(url: str, path: Path, on_bytes: OnBytes, on_holder: OnHolder) -> None:
    """Download an address of the hub into a file; if another process is already doing so, wait for it."""
    known = extra("huggingface_hub", purpose=PURPOSE).get_hf_file_metadata(url)
    etag = re.sub(r"[^\w-]", "", str(known.etag))[:64]
    part = path.with_name(f"{path.name}.{etag[:16]}.part")  # for this content only
    part.parent.mkdir(parents=True, exist_ok=True)
    heard_bytes = 0

    def tell(size_bytes: int) -> None:
        nonlocal heard_bytes
        on_bytes(size_bytes - heard_bytes)
        heard_bytes = size_bytes

    def look(holder: str) -> None:
        on_holder(holder)
        tell(_size(part, heard_bytes))

    lock_file = path.with_name(f"{path.name}.lock")
    lock = _waited_for(lock_file, on_look=look)
    on_holder(None)
    try:
        if not path.exists():
            tell(_size(part, 0))
            _receive(url, known, part, on_bytes)
            _check(part, etag)
            part.replace(path)
        with suppress(OSError):  # a process that opened it earlier finds the file, too
            lock_file.unlink(missing_ok=True)
    finally:
        lock.close()


def _waited_for(lock_file: Path, *, on_look: Callable[[str], None]) -> Lock:
    """The lock, once no other process holds it; until then `on_look` gets the holder. A lock ends with its process."""
    while True:
        try:
            return Lock(lock_file)
        except InUse as problem:
            on_look(problem.holder)
        time.sleep(_LOOK_SECONDS)


def _receive(url: str, known: Any, part: Path, on_bytes: OnBytes) -> None:
    """Append what is still missing of the file."""
    headers = extra("huggingface_hub", purpose=PURPOSE).utils.build_hf_headers()
    if urlsplit(known.location).netloc != urlsplit(url).netloc:
        headers.pop("authorization", None)  # the token is for the hub, not for the store it redirects to

    class Silent(extra("tqdm", purpose=PURPOSE).tqdm):  # type: ignore[misc]
        """The library's progress bar, which reports to us instead of the terminal."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options | {"disable": True})

        def update(self, n: float | None = 1) -> None:
            on_bytes(int(n or 0))

    with part.open("ab") as content:
        extra("huggingface_hub.file_download", purpose=PURPOSE).http_get(
            known.location,
            content,
            resume_size=content.tell(),
            headers=headers,
            expected_size=known.size,
            tqdm_class=Silent,
        )


def _check(part: Path, etag: str) -> None:
    """Remove a file that is not what the hub says; the etag of a large file is its sha256."""
    if not re.fullmatch(r"[0-9a-f]{64}", etag):
        return
    with part.open("rb") as received:
        digest = hashlib.file_digest(received, "sha256").hexdigest()
    if digest != etag:
        part.unlink()
        raise OSError(f"{part.name} is not what the hub has; it was removed")


def _size(path: Path, otherwise: int) -> int:
    """Bytes of a file; `otherwise` if it does not exist."""
    try:
        return path.stat().st_size
    except OSError:
        return otherwise


Fetch = Callable[
    [SourceFile, OnBytes, OnHolder], SourceFile
]  # a file and its listeners -> the same file on this machine
OnWait = Callable[[SourceFile, int, str | None], None]  # gets the bytes that are here, and who else fetches the file


class Fetcher:
    """Fetches files ahead, each in a thread that ends with the process; without `fetch` they are here already."""

    def __init__(self, fetch: Fetch | None) -> None:
        self._fetch = fetch
        self._threads: dict[str, threading.Thread] = {}
        self._found: dict[str, SourceFile | BaseException] = {}
        self._received: dict[str, int] = {}
        self._holders: dict[str, str | None] = {}  # other processes that fetch a file

    def is_here(self, file: SourceFile) -> bool:
        """Whether there is nothing to fetch, or fetching has begun."""
        return self._fetch is None or file.name in self._threads

    def begin(self, file: SourceFile) -> None:
        """Fetch it in the background, unless fetching has begun."""
        if not self.is_here(file):
            self._threads[file.name] = threading.Thread(target=self._run, args=(file,), daemon=True)
            self._threads[file.name].start()

    def get(self, file: SourceFile, *, on_wait: OnWait) -> SourceFile:
        """The file, once it is here; twice a second `on_wait` gets the bytes that are here and who else fetches it."""
        if self._fetch is None:
            return file
        self.begin(file)
        thread = self._threads[file.name]
        while thread.is_alive():
            on_wait(file, self._received.get(file.name, 0), self._holders.get(file.name))
            thread.join(0.5)
        found = self._found[file.name]
        if isinstance(found, BaseException):
            raise found
        return found

    def _run(self, file: SourceFile) -> None:
        def received(more_bytes: int) -> None:
            self._received[file.name] = self._received.get(file.name, 0) + more_bytes

        def held(holder: str | None) -> None:
            self._holders[file.name] = holder

        try:
            assert self._fetch is not None
            self._found[file.name] = self._fetch(file, received, held)
        except BaseException as problem:  # raised again for the thread that waits for the file
            self._found[file.name] = problem
