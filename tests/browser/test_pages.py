"""The pages of `onecard ui` in Chromium: what they show is what the records and the commands say."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from docs.made_runs import logs
from docs.ui_pictures import make_run, run_ids, served, step_record
from onecard import units
from onecard.config.schema import RunConfig

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
STATIC = Path(__file__).parents[2] / "onecard/ui/static"
HOSTILE = "<img src=x onerror=document.title=1>"
LATE_SECONDS = 2.0  # after which a new update must have appeared


@dataclass
class Site:
    """A browser before a server over made runs."""

    address: str
    folder: Path
    ids: dict[str, str]
    browser: Any
    complaints: list[str] = field(default_factory=list)

    def open(self, path: str, *, width: int = 1280) -> Any:
        page = self.browser.new_page(viewport={"width": width, "height": 900})
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.goto(self.address + path)
        page.wait_for_selector("main:not([aria-busy])")
        return page

    def run(self, name: str) -> str:
        return f"/run.html?run={self.ids[name]}"


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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    executable, folder = chromium(), tmp_path_factory.mktemp("ui")
    from playwright.sync_api import sync_playwright

    for path, text in logs().items():
        (folder / path.name).write_text(text)
    make_run(folder / "runs/fineweb", updates=500)
    make_run(folder / "runs" / HOSTILE, updates=300)
    with served(folder / "40M.log", folder / "124M.log", folder / "runs") as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        yield Site(address, folder, run_ids(address), browser)
        browser.close()


def pages(site: Site) -> list[str]:
    compared = f"/compare.html?run={site.ids['40M.log']}&run={site.ids['124M.log']}"
    return ["/", site.run("fineweb"), site.run("124M.log"), "/plan.html", "/compare.html", compared]


def test_each_page_opens_without_a_complaint_and_without_sideways_scrolling(site: Site) -> None:
    for path in pages(site):
        page = site.open(path, width=360)
        page.wait_for_selector("h1.verdict")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
        page.close()
    assert site.complaints == []


def test_a_first_visit_is_small() -> None:
    files = [file for file in STATIC.rglob("*") if file.suffix in (".html", ".css", ".js", ".svg")]
    assert sum(file.stat().st_size for file in files) < 300_000


def test_the_vendored_library_is_the_published_one() -> None:
    vendor = STATIC / "vendor"
    sums = [line.split() for line in (vendor / "SHA256SUMS").read_text().splitlines()]
    assert {name: hashlib.sha256((vendor / name).read_bytes()).hexdigest() for _, name in sums} == {
        name: known for known, name in sums
    }
    assert {file.name for file in vendor.iterdir()} == {name for _, name in sums} | {"SHA256SUMS"}


def test_a_hostile_name_stays_text(site: Site) -> None:
    page = site.open("/")
    assert page.get_by_role("link", name=HOSTILE).count() == 1
    assert page.locator("main img").count() == 0
    page.close()


def test_a_point_of_the_chart_is_the_record(site: Site) -> None:
    page = site.open(site.run("fineweb"))
    chart = page.locator(".plot").first
    lines = (site.folder / "runs/fineweb/records.jsonl").read_text().splitlines()
    steps = [record for record in map(json.loads, lines) if record["kind"] == "step"]
    for key, record in (("Home", steps[0]), ("End", steps[-1])):
        chart.press(key)
        said = page.locator(".readout").first.inner_text()
        assert f"step {record['step']}" in " ".join(said.split())
        assert f"loss {record['loss']:.4f}" in " ".join(said.split())
    page.close()


def test_an_update_appears_without_reloading(site: Site) -> None:
    page = site.open(site.run("fineweb"))
    config = RunConfig().replace(json.loads((site.folder / "runs/fineweb/config.json").read_text()))
    with (site.folder / "runs/fineweb/records.jsonl").open("a") as records:
        records.write(json.dumps(step_record(config, 510)) + "\n")
    page.get_by_text("step 510 of 19,560", exact=True).wait_for(timeout=1000 * LATE_SECONDS)
    page.locator(".readout").first.get_by_text("510", exact=True).wait_for(timeout=1000 * LATE_SECONDS)
    page.close()


def test_the_planner_says_what_the_command_says(site: Site) -> None:
    asked = {"gpu": "RTX 4060", "n_layer": "24", "n_embd": "1024", "n_head": "16", "batch_size": "16"}
    page = site.open("/plan.html?" + "&".join(f"{key}={value.replace(' ', '+')}" for key, value in asked.items()))
    for layers in ("24", "23"):  # as the address says, then after a movement of the slider
        trainer = planned(asked | {"n_layer": layers})
        size, error = (f"{trainer[key] / units.GIB:.2f}" for key in ("process_bytes", "error_bytes"))
        page.locator(".mrow").first.get_by_text(f"{size} ± {error}").wait_for(timeout=10_000)
        assert f"MFU {100 * trainer['speed']['mfu']:.0f} %" in page.locator(".big").inner_text()
        page.get_by_role("slider", name="Layers").press("ArrowLeft")
    assert "n_layer=22" in page.url
    page.close()


def planned(options: dict[str, str]) -> Any:
    """onecard's part of what `onecard plan --json` says."""
    command = [
        sys.executable,
        "-m",
        "onecard",
        "plan",
        *(f"--{key}={value}" for key, value in options.items()),
        "--json",
    ]
    done = subprocess.run(command, capture_output=True)
    return json.loads(done.stdout)["trainers"]["onecard"]


def test_a_dropped_log_is_diagnosed(site: Site) -> None:
    page = site.open("/")
    log = (site.folder / "124M.log").read_text()
    page.evaluate(
        """(text) => {
          const files = new DataTransfer();
          files.items.add(new File([text], "mine.log", { type: "text/plain" }));
          document.dispatchEvent(new DragEvent("drop", { dataTransfer: files, bubbles: true, cancelable: true }));
        }""",
        log,
    )
    page.wait_for_selector("#dropped .finding")
    assert "decay-horizon" in page.locator("#dropped").inner_text()
    assert page.locator("#dropped canvas").count() >= 1
    page.close()


def test_two_runs_are_chosen_by_keyboard_and_compared(site: Site) -> None:
    page = site.open("/")
    for name in ("40M.log", "124M.log"):
        page.get_by_label(f"Compare {name}").press("Space")
    page.get_by_role("link", name="Compare 2 runs").press("Enter")
    page.wait_for_selector("text=Who wins")
    assert "passes" in page.locator("h1.verdict").inner_text()
    page.go_back()
    page.wait_for_selector(".runs")
    page.close()
