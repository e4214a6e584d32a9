"""Fetches the vendored packages again, and refuses a file that is not the one whose sum is known.

python -m docs.fetch_vendored           # over the files that are here
python -m docs.fetch_vendored --write   # for another version: change it below, then this writes the sums anew
"""

from __future__ import annotations

import hashlib
import io
import sys
import tarfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path

REGISTRY = "https://registry.npmjs.org/{name}/-/{name}-{version}.tgz"
SUMS = "SHA256SUMS"


@dataclass(frozen=True, kw_only=True)
class Package:
    """A package of npm, and which of its files stand where."""

    name: str
    version: str
    folder: Path
    files: dict[str, str]  # the name here by the name there

    def fetch(self) -> dict[str, bytes]:
        """The content of each file by its name here."""
        address = REGISTRY.format(name=self.name.lower(), version=self.version)
        with urllib.request.urlopen(address, timeout=60) as answer:
            packed = answer.read()
        with tarfile.open(fileobj=io.BytesIO(packed)) as files:
            members = {there: files.extractfile(f"package/{there}") for there in self.files}
            return {self.files[there]: member.read() for there, member in members.items() if member}


PACKAGES = (
    Package(
        name="uPlot",  # MIT
        version="1.6.32",
        folder=Path("onecard/ui/static/vendor"),
        files={
            "dist/uPlot.iife.min.js": "uPlot.iife.min.js",
            "dist/uPlot.min.css": "uPlot.min.css",
            "LICENSE": "uPlot-LICENSE.txt",
        },
    ),
    Package(
        name="axe-core",  # MPL-2.0, for tests only
        version="4.10.3",
        folder=Path("tests/browser/vendor"),
        files={"axe.min.js": "axe.min.js", "LICENSE": "axe-LICENSE.txt", "LICENSE-3RD-PARTY.txt": "axe-3RD-PARTY.txt"},
    ),
)


def known_sums(folder: Path) -> dict[str, str]:
    """The sums that are written in a folder, by name."""
    lines = (folder / SUMS).read_text().splitlines()
    return {name: known for known, name in (line.split() for line in lines)}


def sum_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def main(write: bool) -> int:
    for package in PACKAGES:
        fetched = package.fetch()
        sums = {name: sum_of(content) for name, content in sorted(fetched.items())}
        if write:
            package.folder.mkdir(parents=True, exist_ok=True)
            (package.folder / SUMS).write_text("".join(f"{known}  {name}\n" for name, known in sums.items()))
        elif sums != known_sums(package.folder):
            sys.stderr.write(f"{package.name} {package.version} is not what {package.folder / SUMS} says\n")
            return 1
        for name, content in fetched.items():
            (package.folder / name).write_bytes(content)
    return 0


if __name__ == "__main__":
    raise SystemExit(main("--write" in sys.argv))
