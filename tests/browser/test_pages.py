"""The pages of `onecard ui` in Chromium: what they show is what the records and the commands say."""

import json
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from docs.fetch_vendored import PACKAGES, known_sums, sum_of
from docs.ui_pictures import step_record
from onecard import units
from onecard.config.schema import RunConfig
from onecard.inputs.make_plan import plan_named
from onecard.report.timeline import timeline_json
from tests.browser.conftest import HOSTILE, Site

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
ROOT = Path(__file__).parents[2]
STATIC = ROOT / "onecard/ui/static"
START = {  # where the planner begins
    "dataset": "fineweb",
    "n_layer": "12",
    "n_head": "12",
    "n_embd": "768",
    "block_size": "1024",
    "batch_size": "8",
    "gradient_accumulation_steps": "64",
    "max_iters": "4750",
    "lr_decay_iters": "4750",
    "warmup_iters": "250",
    "learning_rate": "6e-4",
    "min_lr": "6e-5",
    "eval_interval": "250",
    "eval_iters": "100",
}
LATE_SECONDS = 2.0  # after which a new update must have appeared


def test_each_page_opens_without_sideways_scrolling(site: Site) -> None:
    for name, path in site.pages.items():
        page = site.open(path, width=360)
        page.wait_for_selector("h1.verdict")
        assert page.evaluate("document.documentElement.scrollWidth") <= 360, name


def test_a_first_visit_is_small() -> None:
    files = [file for file in STATIC.rglob("*") if file.suffix in (".html", ".css", ".js", ".svg")]
    assert sum(file.stat().st_size for file in files) < 300_000


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_vendored_package_is_the_published_one(package: Any) -> None:
    folder = ROOT / package.folder
    known = known_sums(folder)
    assert {name: sum_of((folder / name).read_bytes()) for name in known} == known
    assert {file.name for file in folder.iterdir()} == {*known, "SHA256SUMS"}
    assert set(known) == set(package.files.values())


def test_a_hostile_name_stays_text(site: Site) -> None:
    page = site.open("/")
    assert page.get_by_role("link", name=HOSTILE).count() == 1
    assert page.locator("main img").count() == 0


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


def test_a_run_of_no_update_says_so_and_one_of_one_has_a_dot(site: Site) -> None:
    page = site.open(site.run("begun"))
    assert "No update is recorded yet." in page.locator("main").inner_text()
    assert page.locator(".plot").first.is_hidden()
    assert "does not print" not in page.locator("main").inner_text()
    page = site.open(site.run("one update"))
    blue = page.locator(".multiples canvas").first.evaluate(
        """canvas => {
            const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            const pixels = Array.from({ length: data.length / 4 }, (_, i) => data.slice(4 * i, 4 * i + 4));
            return pixels.filter(([red, , blue, alpha]) => alpha > 150 && blue - red > 60).length;
        }"""
    )
    assert blue > 3  # the accent: nothing else in the picture has a colour


def test_a_loss_that_is_no_number_is_told(site: Site) -> None:
    page = site.open(site.run("not a number"))
    readout = page.locator(".readout").first
    assert "loss not finite" in " ".join(readout.inner_text().split())
    page.locator(".plot").first.press("Home")
    assert "not finite" not in readout.inner_text()


def test_a_zoom_shows_every_update_until_all_is_shown_again(site: Site) -> None:
    page = site.open(site.run("long"))
    figure = page.locator("figure").first
    chart, readout = page.locator(".plot").first, page.locator(".readout").first
    coarse = page.evaluate("path => fetch(path).then(a => a.json())", f"/api/runs/{site.ids['long']}")["curves"]
    assert coarse["steps"] > 2 * coarse["buckets"]
    for _ in range(250):
        chart.press("ArrowLeft")
    for _ in range(5):
        chart.press("+")
    figure.get_by_text("every update").wait_for()
    lines = (site.folder / "runs/long/records.jsonl").read_text().splitlines()
    losses = {record["step"]: record["loss"] for record in map(json.loads, lines) if record["kind"] == "step"}
    seen = []
    for _ in range(4):
        chart.press("ArrowRight")
        said = " ".join(readout.inner_text().replace(",", "").split())
        seen.append(int(said.split("step ")[1].split()[0]))
        assert f"loss {losses[seen[-1]]:.4f}" in said
    assert [later - earlier for earlier, later in pairwise(seen)] == [10, 10, 10]
    page.get_by_role("button", name="Show all").click()
    figure.get_by_text("every update").wait_for(state="detached")
    assert page.get_by_role("button", name="Show all").count() == 0


def test_texts_scores_and_the_card_are_shown(site: Site) -> None:
    page = site.open(site.run("fineweb"))
    text = page.locator(".samples")
    assert "The river of the the and" in " ".join(text.inner_text().split())
    page.get_by_role("slider", name="Step of the text").press("Home")
    assert "zinc" in text.inner_text()
    assert "step 0" in text.inner_text()
    assert "1.1187 ± 0.0041" in page.get_by_role("row", name="bits per byte").inner_text()
    lines = (site.folder / "runs/fineweb/records.jsonl").read_text().splitlines()
    last = [record for record in map(json.loads, lines) if record["kind"] == "card"][-1]
    card = page.locator("section", has=page.get_by_role("heading", name="The card")).last
    assert f"{last['temperature_c']} °C" in card.inner_text()
    assert "Clock lowered by power limit" in card.inner_text()


def test_an_update_appears_without_reloading(site: Site) -> None:
    page = site.open(site.run("fineweb"))
    config = RunConfig().replace(json.loads((site.folder / "runs/fineweb/config.json").read_text()))
    with (site.folder / "runs/fineweb/records.jsonl").open("a") as records:
        records.write(json.dumps(step_record(config, 510)) + "\n")
    page.get_by_text("step 510 of 19,560", exact=True).wait_for(timeout=1000 * LATE_SECONDS)
    page.locator(".readout").first.get_by_text("510", exact=True).wait_for(timeout=1000 * LATE_SECONDS)


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


def test_a_card_of_any_size_and_one_trainer(site: Site) -> None:
    page = site.open("/plan.html")
    page.get_by_label("Card", exact=True).select_option(label="a card of another size")
    page.get_by_role("slider", name="Its memory").press("ArrowRight")
    page.get_by_role("slider", name="Vocabulary").press("ArrowLeft")
    page.get_by_text("onecard", exact=True).first.wait_for()
    page.get_by_role("radio", name="onecard").first.check(force=True)
    page.wait_for_function("() => document.querySelectorAll('.mrow').length === 1")
    assert "vram=20GiB" in page.url
    assert "vocab_size=32768" in page.url
    trainer = planned({"vram": "20GiB", "trainer": "onecard"} | START | {"vocab_size": "32768"})
    size = f"{trainer['process_bytes'] / units.GIB:.2f}"
    page.locator(".mrow").first.get_by_text(re.compile(f"^{size}")).wait_for(timeout=10_000)


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


def test_the_memory_under_the_cursor_is_that_of_the_plan(site: Site) -> None:
    options = {"gpu": "RTX 4070", "n_layer": "6", "batch_size": "8", "n_embd": "768", "n_head": "12"}
    page = site.open("/plan.html?" + "&".join(f"{key}={value.replace(' ', '+')}" for key, value in options.items()))
    drawn = timeline_json(planned_here(options).memory)
    page.locator(".timeline canvas").wait_for()
    page.locator(".timeline").evaluate("node => node.scrollIntoView()")
    box = page.locator(".timeline .u-over").bounding_box()
    columns = len(drawn["total_bytes"])
    for column in (drawn["peak"], drawn["evaluation"] // 2, drawn["evaluation"] + 9):
        x = box["x"] + box["width"] * (column + 0.5) / columns
        seen = []
        for y in range(int(box["y"] + box["height"]) - 1, int(box["y"]), -4):
            page.mouse.move(x, y)
            said = " ".join(page.locator(".timeline .readout").inner_text().split())
            assert f"all {drawn['total_bytes'][column] / units.GIB:.2f} GiB" in said
            assert drawn["moments"][column] in said
            if said.startswith(("step, ", "evaluation, ")) and (under := re.search(r": \d+ (\D+) ([\d.]+) GiB", said)):
                assert under[2] == f"{drawn['parts'][under[1]][column] / units.GIB:.2f}"
                seen += [under[1]] if under[1] not in seen else []
        tall = {part for part, sizes in drawn["parts"].items() if sizes[column] > 0.05 * max(drawn["total_bytes"])}
        assert tall <= set(seen)
        assert seen[0] == "weights"


def planned_here(options: dict[str, str]) -> Any:
    """onecard's part of a plan."""
    settings = [(key, value) for key, value in options.items() if key != "gpu"]
    return plan_named(None, settings, gpu=options["gpu"], trainer="onecard").onecard


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


def test_two_runs_are_chosen_by_keyboard_and_compared(site: Site) -> None:
    page = site.open("/")
    for name in ("40M.log", "124M.log"):
        page.get_by_label(f"Compare {name}").press("Space")
    page.get_by_role("link", name="Compare 2 runs").press("Enter")
    page.wait_for_selector("text=Who wins")
    assert "passes" in page.locator("h1.verdict").inner_text()


def test_each_of_three_compared_runs_can_be_chosen_anew(site: Site) -> None:
    ids = [site.ids[name] for name in ("40M.log", "124M.log", "fineweb")]
    page = site.open("/compare.html?" + "&".join(f"run={each}" for each in ids))
    assert [page.get_by_label(f"Run {letter}").input_value() for letter in "ABC"] == ids
    many = "&".join(f"run={site.ids[name]}" for name in ("40M.log", "124M.log", *["fineweb", "long"] * 3))
    narrow = site.open(f"/compare.html?{many}", width=360)
    assert narrow.evaluate("document.documentElement.scrollWidth") == 360
    page.get_by_label("Run B").select_option(site.ids["long"])
    page.get_by_role("button", name="Compare", exact=True).click()
    page.wait_for_url(lambda address: site.ids["long"] in address)
    page.wait_for_selector("main:not([aria-busy])")
    assert page.get_by_label("Run C").input_value() == ids[2]


def test_the_better_run_is_that_of_the_command(site: Site) -> None:
    for names in (("fineweb", "brief"), ("brief", "fineweb"), ("40M.log", "124M.log")):
        query = "&".join(f"run={site.ids[name]}" for name in names)
        page = site.open(f"/compare.html?{query}")
        said = page.evaluate("path => fetch(path).then(a => a.json())", f"/api/compare?{query}")
        assert page.locator(".verdict").inner_text().startswith(f"{'AB'[said['at_equal_seconds']['winner']]} is better")
    page = site.open(f"/compare.html?run={site.ids['fineweb']}&run={site.ids['begun']}")
    assert page.locator(".verdict").inner_text() == "No run can be called better."


def test_the_planner_says_what_its_link_started_from(site: Site) -> None:
    said = "select => select.selectedOptions[0].text"
    for path, start in (
        ("/plan.html", "GPT-2 of 124M, on FineWeb"),
        ("/plan.html?gpu=RTX+4070", "the packaged default"),
        ("/plan.html?gpu=RTX+4070&batch_size=4", "what the address says"),
        (f"/plan.html?gpu=RTX+4070&config={site.ids['fineweb']}", "fineweb"),
    ):
        assert site.open(path).get_by_label("Start from").evaluate(said) == start


def test_back_returns_and_a_pasted_link_shows_the_same(site: Site) -> None:
    page = site.open("/")
    page.get_by_role("link", name="fineweb", exact=True).click()
    page.wait_for_selector("text=Evaluations as a table")
    page.go_back()
    page.get_by_role("link", name="fineweb", exact=True).wait_for()
    planner = site.open("/plan.html?gpu=RTX+4060&n_layer=12&n_embd=768&n_head=12&batch_size=8")
    before = planner.locator(".mrow").first.inner_text()
    planner.get_by_role("slider", name="Micro-batch").press("ArrowRight")
    planner.wait_for_function("old => document.querySelector('.mrow').innerText !== old", arg=before)
    pasted = site.open(planner.url.removeprefix(site.address))
    pasted.wait_for_selector(".mrow")
    assert pasted.locator("h1.verdict").inner_text() == planner.locator("h1.verdict").inner_text()
    assert pasted.locator(".mrow").first.inner_text() == planner.locator(".mrow").first.inner_text()


def test_copy_buttons_copy_what_stands_beside_them(site: Site) -> None:
    for name, button in (("planner", "Copy"), ("log", "Copy"), ("log", "Copy as file")):
        page = site.open(site.pages[name])
        copy = page.get_by_role("button", name=button, exact=True).first
        copy.click()
        page.get_by_text("Copied", exact=True).wait_for()
        copied = page.evaluate("navigator.clipboard.readText()")
        beside = copy.locator("xpath=preceding-sibling::pre")
        assert copied.strip(), name
        assert button != "Copy" or copied == beside.inner_text()


def test_a_chart_is_saved_as_a_picture_and_its_data_as_a_table(site: Site) -> None:
    page = site.open(site.pages["run"])
    charts = page.locator("canvas:visible").count()
    assert page.get_by_role("button", name="as PNG").count() == charts
    for what, begin in (("as PNG", b"\x89PNG"), ("the data of", b"step,tokens,seconds,")):
        with page.expect_download() as saved:
            page.get_by_role("button", name=what).first.click()
        assert Path(saved.value.path()).read_bytes().startswith(begin)


def playground(site: Site, name: str) -> Any:
    """The form of a run's page; its page is `form.page`."""
    form = site.open(site.run(name)).get_by_role("form", name="Playground")
    form.wait_for()
    return form


def wait_for_letters(form: Any, count: int) -> str:
    """What was written as soon as it has `count` letters."""
    form.page.wait_for_function(
        "count => document.querySelector('.written').innerText.length >= count", arg=count, timeout=60_000
    )
    return str(form.locator(".written").inner_text())


def test_a_prompt_is_continued_token_by_token_and_the_same_again(site: Site) -> None:
    form = playground(site, "speaks")
    form.get_by_label("Prompt").fill("def f(")
    form.get_by_label("Tokens").fill("60")
    form.get_by_label("Temperature").fill("0")
    form.get_by_role("button", name="Write").press("Enter")
    early = wait_for_letters(form, 8)
    form.get_by_text("tokens/s on the processor").wait_for(timeout=100_000)
    whole = form.locator(".written").inner_text()
    assert early.startswith("def f(")
    assert len(early) < len(whole)
    form.get_by_role("button", name="Write").click()
    form.get_by_text("tokens/s on the processor").wait_for(timeout=100_000)
    assert form.locator(".written").inner_text() == whole


def test_a_text_stops_and_so_does_one_whose_page_is_closed(site: Site) -> None:
    form = playground(site, "speaks")
    form.get_by_label("Tokens").fill("1024")
    for _ in range(2):
        form.get_by_role("button", name="Write").click()
        wait_for_letters(form, 3)
        form.get_by_role("button", name="Stop").click()
        form.get_by_text("Stopped.", exact=True).wait_for()
        stopped = form.locator(".written").inner_text()
        form.page.wait_for_timeout(200)
        assert form.locator(".written").inner_text() == stopped
    form.get_by_role("button", name="Write").click()
    wait_for_letters(form, 3)
    form.page.close()
    other = playground(site, "speaks")
    other.get_by_role("button", name="Write").click()
    wait_for_letters(other, 3)


def test_without_torch_the_playground_says_what_to_install(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    from onecard.inputs import before_run

    monkeypatch.setattr(before_run, "find_spec", lambda name: None)
    missing = before_run.torch_missing("a text comes from the model itself")
    assert missing is not None
    page = site.open(site.run("speaks"))

    def without_torch(route: Any) -> None:
        answer = route.fetch()
        playground = {"step": 100, "missing": missing.as_json()["error"]}
        route.fulfill(response=answer, json=answer.json() | {"playground": playground})

    page.route(f"**/api/runs/{site.ids['speaks']}", without_torch)
    page.reload()
    page.get_by_text('pip install "onecard[train]"').wait_for()
    assert not page.get_by_role("form", name="Playground").is_visible()
    page.unroute_all(behavior="ignoreErrors")


def test_hostile_tokens_of_a_model_stay_text(site: Site) -> None:
    form = playground(site, "hostile speech")
    form.get_by_label("Prompt").fill(HOSTILE)
    form.get_by_role("button", name="Write").click()
    form.get_by_text("tokens/s on the processor").wait_for(timeout=100_000)
    assert form.locator(".written").inner_text().count(HOSTILE) > 2
    assert form.locator("img").count() == 0
    assert form.page.title() == "hostile speech · onecard"


KEYBOARD = """() => {
  const all = [...document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']")];
  const wanted = all.filter((node) =>
    node.checkVisibility({ visibilityProperty: true }) && !node.disabled && node.tabIndex >= 0
      && !(node.type === "radio" && !node.checked));
  window.reached = new Set();
  window.unseen = [];
  document.addEventListener("focusin", ({ target }) => {
    window.reached.add(target);
    const label = target.labels?.[0] ?? target;
    const drawn = ({ outlineStyle, boxShadow }) => outlineStyle !== "none" || boxShadow !== "none";
    const outlined = (node) => node && drawn(getComputedStyle(node));
    if (![target, label, target.nextElementSibling].some(outlined)) window.unseen.push(target.outerHTML.slice(0, 90));
  });
  window.missed = () => wanted.filter((node) => !window.reached.has(node)).map((node) => node.outerHTML.slice(0, 90));
  return wanted.length;
}"""


def test_the_keyboard_alone_reaches_everything_and_shows_where_it_is(site: Site) -> None:
    for name, path in site.pages.items():
        page = site.open(path)
        page.wait_for_selector("h1.verdict")
        page.wait_for_timeout(800)  # the planner's second answer
        for _ in range(page.evaluate(KEYBOARD) + 3):
            page.keyboard.press("Tab")
        assert page.evaluate("missed()") == [], name
        assert page.evaluate("unseen") == [], name


def test_axe_finds_no_serious_problem(site: Site) -> None:
    axe = (ROOT / "tests/browser/vendor/axe.min.js").read_text()
    for dark, names in ((False, [*site.pages]), (True, ["run", "planner"])):
        for name in names:
            page = site.open(site.pages[name], dark=dark, width=1280 if dark else 360)
            page.wait_for_selector("h1.verdict")
            page.wait_for_timeout(800)
            for details in page.locator("details").all()[:3]:
                details.evaluate("node => node.open = true")
            assert problems(page, axe) == [], name


def problems(page: Any, axe: str) -> list[str]:
    """What axe-core finds serious or critical, each with a place."""
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")
    return [
        f"{one['impact']} {one['id']}: {one['nodes'][0]['html'][:120]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]


def test_axe_sees_what_is_wrong(site: Site) -> None:
    page = site.open("/compare.html")
    page.evaluate("document.querySelector('main').insertAdjacentHTML('beforeend', '<img src=\"favicon.svg\">')")
    axe = (ROOT / "tests/browser/vendor/axe.min.js").read_text()
    assert any("image-alt" in problem for problem in problems(page, axe))
