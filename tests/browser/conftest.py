"""Debian's Chromium before a server over made runs. Every test fails where a page has written to the console."""

import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from docs.made_runs import logs
from docs.ui_pictures import make_run, run_ids, served
from tests.made_models import make_model

HOSTILE = "<img src=x onerror=document.title=1>"


@dataclass
class Site:
    """A browser before a server over made runs."""

    address: str
    folder: Path
    ids: dict[str, str]
    browser: Any
    complaints: list[str] = field(default_factory=list)
    opened: list[Any] = field(default_factory=list)

    def open(self, path: str, *, width: int = 1280, dark: bool = False) -> Any:
        """A page of the server, or of a file; it is ready, and has nothing more to do at once."""
        context = self.browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            permissions=["clipboard-read", "clipboard-write"],
        )
        self.opened.append(context)
        page = context.new_page()
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.goto(path if path.startswith("file:") else self.address + path)
        page.wait_for_selector("main:not([aria-busy])")
        return page

    def run(self, name: str) -> str:
        return f"/run.html?run={self.ids[name]}"

    @property
    def pages(self) -> dict[str, str]:
        compared = f"/compare.html?run={self.ids['40M.log']}&run={self.ids['124M.log']}"
        return {
            "runs": "/",
            "run": self.run("fineweb"),
            "begun": self.run("begun"),
            "one update": self.run("one update"),
            "not a number": self.run("not a number"),
            "playground": self.run("speaks"),
            "log": self.run("124M.log"),
            "planner": "/plan.html?gpu=RTX+4070",
            "choice": "/compare.html",
            "compare": compared,
        }


def chromium() -> str:
    """Debian's Chromium and playwright; without them the tests are skipped, but fail where .ci/run installs them."""
    missing = "chromium" if shutil.which("chromium") is None else ""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        missing = missing or "playwright"
    if missing and os.environ.get("CI") == "true":
        pytest.fail(f"{missing} is not installed, and .ci/run should have installed it")
    if missing:
        pytest.skip(f"{missing} is not installed")
    return str(shutil.which("chromium"))


def keep(run: Path, wanted: Callable[[dict[str, Any]], Any]) -> None:
    """Only the wanted records of a run, as `wanted` left them."""
    records = [json.loads(line) for line in (run / "records.jsonl").read_text().splitlines()]
    (run / "records.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in records if wanted(each)))


def lower(record: dict[str, Any]) -> bool:
    """A loss that is better at once, but not than what a longer run reaches."""
    if record["kind"] == "step":
        record["loss"] -= 0.5
    return True


def not_a_number(record: dict[str, Any]) -> bool:
    """The loss of an update after 300 is NaN."""
    if record["kind"] == "step" and record["step"] > 300:
        record["loss"] = math.nan
    return True


@pytest.fixture(scope="session")
def served_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    executable, folder = chromium(), tmp_path_factory.mktemp("ui")
    from playwright.sync_api import sync_playwright

    for path, text in logs().items():
        (folder / path.name).write_text(text)
    make_run(folder / "runs/fineweb", updates=500)
    make_run(folder / "runs/long", updates=12_000)
    make_run(folder / "runs" / HOSTILE, updates=300)
    keep(make_run(folder / "runs/begun", updates=0), lambda record: record["kind"] == "start")
    keep(make_run(folder / "runs/one update", updates=10), lambda record: record["kind"] in ("start", "step"))
    keep(make_run(folder / "runs/brief", updates=120), lambda record: record["kind"] != "eval" and lower(record))
    keep(make_run(folder / "runs/not a number", updates=400), not_a_number)
    make_model(folder / "runs" / "speaks", n_layer=6, n_embd=128)
    make_model(folder / "runs" / "hostile speech", token=HOSTILE)
    with served(folder / "40M.log", folder / "124M.log", folder / "runs") as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield Site(address, folder, run_ids(address), browser)
        browser.close()


@pytest.fixture
def site(served_site: Site) -> Iterator[Site]:
    served_site.complaints.clear()
    yield served_site
    for context in served_site.opened:
        context.close()
    served_site.opened.clear()
    assert served_site.complaints == []
