"""Files of `--html` in Chromium, opened from disk: they need nothing else, and run nothing that is not theirs."""

from pathlib import Path

import pytest

from onecard.cli.main import run
from tests.browser.conftest import HOSTILE, Site
from tests.browser.test_pages import ROOT, problems

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
ATTACK = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"


@pytest.fixture
def files(site: Site, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The address of each file; the runs in them have hostile names and settings."""
    config = tmp_path / "evil.py"
    config.write_text(f"dataset = {ATTACK!r}\nwandb_run_name = {ATTACK!r}\n")
    evil = site.folder / "runs" / HOSTILE
    log = tmp_path / f"{HOSTILE}.log"
    log.write_text(f"{ATTACK}\n{(site.folder / '40M.log').read_text()}{ATTACK}\n")
    commands = {
        "plan": ["plan", str(config), "--gpu", "RTX 4070"],
        "doctor": ["doctor", str(evil), str(log), "--gpu", "RTX 4070"],
        "compare": ["compare", str(log), str(site.folder / "124M.log"), "--gpu", "RTX 4070"],
    }
    for name, command in commands.items():
        assert run([*command, "--html", str(tmp_path / f"{name}.html")]) in (0, 1)
    capsys.readouterr()
    return {name: (tmp_path / f"{name}.html").as_uri() for name in commands}


def test_a_file_opens_from_disk_and_shows_hostile_text_as_text(site: Site, files: dict[str, str]) -> None:
    said = {"plan": "owned", "doctor": HOSTILE, "compare": HOSTILE}
    for name, address in files.items():
        page = site.open(address, width=360)
        asked = []
        page.on("request", lambda request, asked=asked: asked.append(request.url))
        page.reload()
        page.wait_for_selector("main:not([aria-busy])")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, name
        assert page.title().startswith(f"onecard {name}: ")
        assert said[name] in page.locator("main").text_content()
        assert page.locator("main img[src=x], main script").count() == 0
        assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def test_a_script_that_gets_into_a_file_does_not_run(site: Site, files: dict[str, str], tmp_path: Path) -> None:
    """The second line of defence, looked at where the first is taken away."""
    broken = tmp_path / "broken.html"
    text = (tmp_path / "plan.html").read_text()
    broken.write_text(text.replace("<header", "<script>document.title='owned'</script><b onclick=\"x\"></b><header", 1))
    page = site.open(broken.as_uri())
    assert page.title() != "owned"
    assert [complaint for complaint in site.complaints if "Content Security Policy" in complaint]
    site.complaints.clear()


def test_a_file_is_read_by_keyboard_saved_and_copied(site: Site, files: dict[str, str]) -> None:
    page = site.open(files["doctor"])
    page.locator(".plot").first.press("End")
    assert "step" in page.locator(".readout").first.inner_text()
    with page.expect_download() as saved:
        page.get_by_role("button", name="as PNG").first.click()
    assert Path(saved.value.path()).read_bytes().startswith(b"\x89PNG")
    page = site.open(files["plan"])
    page.get_by_role("button", name="Copy", exact=True).first.click()
    page.get_by_text("Copied", exact=True).wait_for()
    assert page.evaluate("navigator.clipboard.readText()").startswith("onecard train ")


def test_axe_finds_no_serious_problem_in_a_file(site: Site, files: dict[str, str]) -> None:
    axe = (ROOT / "tests/browser/vendor/axe.min.js").read_text()
    for name, address in files.items():
        assert problems(site.open(address, dark=True), axe) == [], name


def test_without_scripts_a_file_shows_the_text_of_the_command(site: Site, files: dict[str, str]) -> None:
    context = site.browser.new_context(java_script_enabled=False)
    site.opened.append(context)
    page = context.new_page()
    page.goto(files["doctor"])
    assert "[oom]" in page.locator("noscript").inner_text() or "fix:" in page.locator("noscript").inner_text()
