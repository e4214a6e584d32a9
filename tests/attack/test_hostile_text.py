"""Hostile text in every field of every format: no output lets it steer a terminal or become markup."""

import io
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt
from rich.table import Table
from rich.text import Text

from onecard.cli.main import run
from onecard.config.schema import RunConfig
from onecard.findings import Finding
from onecard.report.console import PlainConsole
from onecard.report.markup import element, together
from onecard.report.model_card import model_card
from onecard.runs.folder import load_run
from onecard.runs.record_json import to_json
from onecard.runs.records import Checkpoint, End, Eval, FindingRecord, Oom, Record, Start, Step
from onecard.visible import visible
from tests import made_logs as made
from tests.shared_file import data_in, look_at_file

TERMINAL = "\x1b[31mEVIL\x1b[0m \x1b]0;EVIL\x07 \x9b2J \x08\x08 \x7f \u202eEVIL\u202c \u2066EVIL\u2069 \u2028EVIL"
MARKUP = (
    "<script>document.documentElement.dataset.owned='1'</script> "
    """\"><img src="x" onerror="document.documentElement.dataset.owned='1'"> </title></style></pre><blink> """
    "'><svg onload=document.documentElement.dataset.owned=1> javascript:alert(1) "
    "[EVIL](javascript:alert(1)) ![EVIL](http://evil.example/x) <http://evil.example> "
    "http://evil.example `EVIL` ``` | EVIL | --> ]]> &lt;b&gt; **EVIL** __EVIL__ $HOME \\"
)
HOSTILE = f"{TERMINAL} {MARKUP}"
LINES = "EVIL\n# EVIL\n\n```\n<blink>EVIL</blink>\n"
NAME = "\x1b[31mEVIL\u202e\x07 \"><img onerror='EVIL'>`|<blink>"  # a file name: no slash, and short
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

TAGS = set(
    "html head meta title style body main footer section h1 h2 h3 p dl dt dd ul li pre code article span strong b "
    "details summary figure figcaption svg rect line text polyline polygon circle clippath path".split()
)
ATTRIBUTES = set(
    "lang charset name content class id role aria-label xmlns viewbox width height x y x1 x2 y1 y2 cx cy r d points "
    "fill stroke stroke-width stroke-dasharray clip-path font-family font-size font-weight text-anchor".split()
)


# What outputs may hold


class Page(HTMLParser):
    """Fails on an element or attribute that our reports do not have."""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in TAGS, f"<{tag}>"
        assert {name for name, _ in attrs} <= ATTRIBUTES, f"<{tag} {attrs}>"
        assert tag != "style" or self.get_starttag_text() == "<style>"

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"<!--{data}-->")

    def handle_pi(self, data: str) -> None:
        raise AssertionError(f"<?{data}>")


def look_at_html(html: str) -> None:
    assert not CONTROLS.search(html), CONTROLS.search(html)
    page = Page()
    page.feed(html)
    page.close()
    assert html.count("<style>") == html.count("</style>") == 1
    assert html.count("<title>") - html.count("<polygon") <= 1


def look_at_svg(svg: str) -> None:
    assert not CONTROLS.search(svg), CONTROLS.search(svg)
    for found in ElementTree.fromstring(svg).iter():
        assert found.tag.removeprefix("{http://www.w3.org/2000/svg}").lower() in TAGS
        assert {name.lower() for name in found.attrib} <= ATTRIBUTES


MARKDOWN = MarkdownIt("commonmark").enable(["table", "strikethrough"])


def look_at_markdown(text: str) -> None:
    assert not CONTROLS.search(text), CONTROLS.search(text)
    tokens = [inner for token in MARKDOWN.parse(text) for inner in (token, *(token.children or ()))]
    forbidden = ("html_block", "html_inline", "link_open", "image", "s_open", "em_open")
    assert not [token for token in tokens if token.type in forbidden]
    strong = [tokens[at + 1].content for at, token in enumerate(tokens) if token.type == "strong_open"]
    assert "EVIL" not in strong


def look_at_text(text: str) -> None:
    assert not CONTROLS.search(text), repr(text[max(0, CONTROLS.search(text).start() - 60) :][:120])  # type: ignore[union-attr]


# Running commands in this process


Look = Callable[..., int]


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Look:
    """Runs a command in a folder and looks at what it prints; returns the exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_COLOR", "1")

    def looked(*arguments: str, codes: Sequence[int] = (0, 1, 2)) -> int:
        code = run(list(arguments))
        out, err = capsys.readouterr()
        assert code in codes, (arguments, code, err)
        assert "Traceback" not in err
        look_at_text(err)
        if "--markdown" in arguments and out:
            look_at_markdown(out)
        elif "--json" in arguments:
            json.loads(out)
            assert out.isascii()
        else:
            look_at_text(out)
        return code

    return looked


def look_at_runs(look: Look, *paths: str) -> None:
    """Every output of doctor and compare."""
    for path in paths:
        for options in ((), ("--details",), ("--markdown",), ("--json",), ("--html", "report.html")):
            look("doctor", path, *options)
        if Path("report.html").exists():
            look_at_file(Path("report.html").read_text())
            Path("report.html").unlink()
    both = (*paths, *paths)[: max(2, len(paths))]
    for options in ((), ("--details",), ("--plot", "plot.svg"), ("--plot", "plot.html"), ("--html", "report.html")):
        look("compare", *both, *options)
    if Path("report.html").exists():
        look_at_file(Path("report.html").read_text())
        Path("report.html").unlink()
    if Path("plot.svg").exists():
        look_at_svg(Path("plot.svg").read_text())
        look_at_html(Path("plot.html").read_text())
        Path("plot.svg").unlink()
        Path("plot.html").unlink()


# Config files


TEXT_KEYS = [key for key, value in RunConfig.model_validate({}).model_dump().items() if isinstance(value, str)]


def hostile_configs() -> Iterator[tuple[str, str]]:
    free = dict.fromkeys(("dataset", "out_dir", "wandb_project", "wandb_run_name"), HOSTILE)
    yield "free text", "\n".join(f"{key} = {value!r}" for key, value in free.items())
    for key in TEXT_KEYS:
        yield key, f"{key} = {HOSTILE!r}\n"
    yield "number", f"n_layer = {HOSTILE!r}\n"
    yield "comment", f"# {HOSTILE} ~125M parameters, about 3B tokens\nn_layer = 2  # {HOSTILE}\n"
    yield "raw text", "wandb_run_name = '''" + HOSTILE.replace("\\", "").replace("\x1b", "\x1b") + "'''\n"
    yield "unresolved", f"n_layer = load({HOSTILE!r})\n"
    yield "unresolved name", f"out_dir = 'x' + time({HOSTILE!r})\n"
    yield "unknown key", f"evil_key = {HOSTILE!r}\nΕVIL\u0301 = 1\n"
    yield "broken", f"n_layer = = {HOSTILE}\n"
    yield "lines", f"dataset = {LINES!r}\nwandb_run_name = {LINES!r}\n"


@pytest.mark.parametrize(("name", "config"), [*hostile_configs()], ids=[name for name, _ in hostile_configs()])
def test_a_config_file_cannot_steer_any_output(look: Look, name: str, config: str) -> None:
    Path("evil.py").write_text(config)
    Path("good.log").write_text("\n".join(made.nanogpt(steps=100)))
    every = [(), ("--explain",), ("--details",), ("--json",), ("--fit",), ("--timeline", "t.svg"), ("--html", "p.html")]
    for options in every if name in ("free text", "lines") else every[1:3]:
        look("plan", "evil.py", "--gpu", "rtx-4070", *options)
    if Path("p.html").exists():
        look_at_file(Path("p.html").read_text())
    if Path("t.svg").exists():
        look_at_svg(Path("t.svg").read_text())
    for options in ((), ("--details",), ("--markdown",), ("--html", "report.html")):
        look("doctor", "good.log", "--config", "evil.py", *options)
    if Path("report.html").exists():
        look_at_file(Path("report.html").read_text())
    look("compare", "good.log", "good.log", "--config", "evil.py")


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", HOSTILE),
        ("plan", f"--n_layer={HOSTILE}"),
        ("plan", f"--{HOSTILE}=1"),
        ("plan", "--gpu", HOSTILE),
        ("plan", "--vram", HOSTILE),
        ("plan", "--explain", f"--wandb_run_name={HOSTILE}"),
        ("plan", f"--evil={HOSTILE}"),
        ("doctor", HOSTILE),
        ("doctor", "--explain", HOSTILE),
        ("compare", HOSTILE, HOSTILE),
        ("sample", HOSTILE),
        ("export", HOSTILE),
        ("data", "info", HOSTILE),
        (HOSTILE,),
    ],
    ids=lambda arguments: " ".join(word if word.isascii() else "EVIL" for word in arguments)[:30],
)
def test_a_command_line_cannot_steer_the_error(look: Look, arguments: tuple[str, ...]) -> None:
    look(*arguments, codes=(0, 1, 2, 3))


# Run folders


def healthy_records() -> list[Record]:
    config: dict[str, object] = RunConfig.model_validate({"n_layer": 2, "max_iters": 400}).model_dump()
    unknown = {item.name: None for kind in (Start, Step, Eval, End) for item in fields(kind) if item.name != "more"}

    def bare(kind: type[Any], **known: object) -> Any:
        return kind(**({item.name: unknown.get(item.name) for item in fields(kind) if item.name != "more"} | known))

    return [
        bare(
            Start, step=0, config=config, versions={"onecard": "0.1", "torch": "2.13"}, device="cuda", card="RTX 4070"
        ),
        *(bare(Step, step=n, tokens=n * 512, loss=11 - n / 60, seconds=0.1) for n in range(1, 400, 20)),
        *(bare(Eval, step=n, val_loss=11 - n / 60, train_loss=10.9 - n / 60, block_size=64) for n in (0, 200, 400)),
        Checkpoint(step=200, tokens=1, path="checkpoints/step-00000200", seconds=1.0, reason="evaluation", best=True),
        Oom(
            step=300,
            where="train",
            batch_size_before=8,
            batch_size_after=4,
            accumulation_before=1,
            accumulation_after=2,
            message="CUDA out of memory. Tried to allocate 512.00 MiB",
        ),
        FindingRecord(
            step=350,
            finding=Finding(
                rule="made-here",
                severity="warn",
                sure="high",
                what="w",
                why="y",
                fix="f",
                seen=("s",),
                patch={"a": "b"},
            ),
        ),
        bare(End, step=400, reason="finished"),
    ]


def texts_in(value: object, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where texts are in a JSON value; also one new key in every object."""
    if isinstance(value, str):
        yield path
    elif isinstance(value, dict):
        yield (*path, HOSTILE)
        for key, item in value.items():
            yield from texts_in(item, (*path, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from texts_in(item, (*path, number))


def changed(value: Any, path: Sequence[str | int], text: str) -> Any:
    """A copy of a JSON value with another text at `path`."""
    if not path:
        return text
    copy = dict(value) if isinstance(value, dict) else list(value)
    inner = copy.get(path[0]) if isinstance(copy, dict) else copy[path[0]]  # type: ignore[index]
    copy[path[0]] = changed(inner, path[1:], text)  # type: ignore[index, call-overload]
    return copy


def write_run(folder: Path, config: dict[str, object], records: Sequence[object]) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


CONFIG: dict[str, object] = RunConfig.model_validate({"n_layer": 2, "max_iters": 400}).model_dump()
LISTED = [to_json(record) for record in healthy_records()]
PLACES = [
    (number, path)
    for number, record in enumerate(LISTED)
    if record["kind"] not in ("step", "eval") or LISTED[number - 1]["kind"] != record["kind"]  # one of each kind
    for path in texts_in(record)
    if path[0] != "config" or path[1:] in ((HOSTILE,), ("dataset",), ("out_dir",), ("dtype",))
]


@pytest.mark.parametrize(
    ("number", "path"), PLACES, ids=lambda part: str(part)[:40].encode("ascii", "replace").decode()
)
def test_a_record_cannot_steer_any_output(look: Look, number: int, path: tuple[str | int, ...]) -> None:
    for text in (HOSTILE + "\x00\udcff", LINES):
        records = [changed(record, path, text) if at == number else record for at, record in enumerate(LISTED)]
        write_run(Path("run"), CONFIG, records)
        look("doctor", "run", "--html", "report.html")
        look_at_file(Path("report.html").read_text())
        for options in (("--details",), ("--markdown",)):
            look("doctor", "run", *options)


def test_everything_at_once_in_a_run_cannot_steer_any_output(look: Look) -> None:
    """All texts of all records and of the config; then all outputs."""
    records = []
    for record in LISTED:
        for path in texts_in(record):
            if path != ("kind",) and path[0] != "config" and path[-1] not in ("severity", "sure", "where"):
                record = changed(record, path, HOSTILE)
        records.append(record)
    free = dict.fromkeys(("dataset", "out_dir", "wandb_project", "wandb_run_name"), HOSTILE)
    write_run(Path("run"), {**CONFIG, **free}, records)
    look_at_runs(look, "run")
    look("plan", "run", "--explain")


@pytest.mark.parametrize("key", [*TEXT_KEYS, "unknown", HOSTILE], ids=lambda key: key[:20] if key.isascii() else "EVIL")
def test_a_runs_config_cannot_steer_any_output(look: Look, key: str) -> None:
    write_run(Path("run"), {**CONFIG, key: HOSTILE}, LISTED)
    for options in ((), ("--details",), ("--markdown",), ("--html", "report.html")):
        look("doctor", "run", *options)
    look_at_file(Path("report.html").read_text())
    look("plan", "run", "--explain")
    look("compare", "run", "run", "--details")


@pytest.mark.parametrize("field", ["rule", "severity", "sure"])
def test_a_finding_in_a_record_cannot_bring_markup_of_its_own(look: Look, field: str) -> None:
    found = replace(healthy_records()[-2].finding, **{field: "x' onclick='alert(1)'><script>alert(1)</script>"})  # type: ignore[union-attr]
    write_run(Path("run"), CONFIG, [*LISTED[:-2], to_json(FindingRecord(step=3, finding=found))])
    look("doctor", "run", "--html", "report.html", codes=(0, 1))
    look_at_file(Path("report.html").read_text())


# Logs of other programs


def hostile_logs() -> dict[str, list[str]]:
    header = made.nanogpt_header(f"wandb_run_name = {HOSTILE!r}", f"dataset = {HOSTILE}", dataset=HOSTILE)
    traced = made.traceback(made.OOM["2024"] + HOSTILE, f"evil{HOSTILE}", "forward")
    return {
        "nanogpt": [*made.nanogpt(steps=200, header=header, saves=f"out/{NAME}"), *traced],
        "llm.c": made.llmc_main(),
        "llm.c stdout": made.llmc_stdout(),
        "modded": made.modded(),
        "nanochat": made.nanochat(),
        "trainer": made.trainer_stdout(),
        "minimal": made.minimal(),
        "messages": [*traced, f"Not enough SMs to use max_autotune_gemm mode {HOSTILE}"],
    }


@pytest.mark.parametrize("name", [*hostile_logs()])
@pytest.mark.parametrize("where", ["as it is", "before", "after", "in every word"])
def test_a_log_cannot_steer_any_output(look: Look, name: str, where: str) -> None:
    lines = hostile_logs()[name]
    if where == "before":
        lines = [f"{HOSTILE} {line}" for line in lines]
    elif where == "after":
        lines = [f"{line} {HOSTILE}" for line in lines]
    elif where == "in every word":
        lines = [re.sub(r"[A-Za-z_]{6,}(?=\s|$)", lambda word: word[0] + NAME, line) for line in lines]
    Path("evil.log").write_text("\n".join(lines))
    look_at_runs(look, "evil.log")


def test_a_trainer_state_cannot_steer_any_output(look: Look) -> None:
    state = json.loads(made.trainer_state())
    for entry in state["log_history"]:
        entry["evil"] = HOSTILE
        entry[HOSTILE] = 1
    Path("trainer_state.json").write_text(json.dumps(state))
    look_at_runs(look, "trainer_state.json")


# Names of files and folders


@pytest.mark.parametrize(
    "name",
    [NAME, os.fsdecode(b"caf\xe9\xff"), "EVIL\nerror: x", "..EVIL$(id)`id`;&"],
    ids=["escapes", "bytes", "lines", "shell"],
)
def test_a_name_cannot_steer_any_output_and_every_name_works(look: Look, name: str) -> None:
    folder = Path(name)
    write_run(folder, CONFIG, LISTED)
    Path(f"{name}.log").write_text("\n".join(made.nanogpt(steps=200)))
    Path(f"{name}.py").write_text("n_layer = 2\nevil = 1\n")
    look_at_runs(look, name, f"{name}.log")
    for options in ((), ("--explain",), ("--details",), ("--timeline", f"{name}.svg")):
        look("plan", f"{name}.py", *options)
    look_at_svg(Path(f"{name}.svg").read_text())
    look("doctor", name, "--html", f"{name}.html", codes=(0, 1))
    look_at_file(Path(f"{name}.html").read_text())
    look("compare", name, f"{name}.log", "--plot", f"{name}2.html", codes=(0,))
    look_at_html(Path(f"{name}2.html").read_text())
    look("compare", name, f"{name}.log", "--plot", f"{name}2.svg", codes=(0,))
    look_at_svg(Path(f"{name}2.svg").read_text())
    look("plan", f"{name}-missing.py", codes=(2,))


def test_a_name_that_is_not_utf_8_is_drawn_with_its_bytes(look: Look) -> None:
    name = os.fsdecode(b"run-\xff.log")
    Path(name).write_text("\n".join(made.nanogpt(steps=200)))
    look("doctor", name, "--html", "report.html", codes=(0, 1))
    assert data_in(Path("report.html").read_text())["name"] == r"run-\xff.log"
    pytest.importorskip("matplotlib")
    look("compare", name, name, "--plot", "plot.png", codes=(0,))
    assert Path("plot.png").read_bytes().startswith(b"\x89PNG")


# The model card


def test_a_model_card_shows_hostile_text_as_text(tmp_path: Path) -> None:
    records = [
        changed(changed(changed(LISTED[0], ("card",), HOSTILE), ("versions", "torch"), HOSTILE), ("device",), LINES),
        *LISTED[1:],
        {**to_json(healthy_records()[-4]), "step": 0, "path": HOSTILE, "reason": "import", "imported_from": HOSTILE},
    ]
    free = dict.fromkeys(("dataset", "init_from"), HOSTILE)
    write_run(tmp_path / "run", {**CONFIG, "dataset": HOSTILE}, records)
    config = RunConfig.model_validate({**CONFIG, **free})
    for place in (f"./{NAME}", HOSTILE):
        card = model_card(load_run(tmp_path / "run"), config, name=HOSTILE, place=place, step=400, tokenizer=HOSTILE)
        look_at_markdown(card.partition("---\n")[2].partition("---\n")[2])
        assert card.count("\n## ") == 3
    look_at_markdown(
        model_card(load_run(tmp_path / "run"), config, name=LINES, place=LINES, step=400, tokenizer=LINES).split(
            "---\n", 2
        )[2]
    )


# By construction


@pytest.mark.parametrize("terminal", [True, False])
def test_a_console_prints_no_control_character_but_its_own(terminal: bool) -> None:
    written = io.StringIO()
    console = PlainConsole(
        file=written, force_terminal=terminal, width=80, color_system="standard" if terminal else None
    )
    table = Table(title=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(Text(HOSTILE, style="bold"))
    for printed in (HOSTILE, Text(HOSTILE, style="red"), Text.assemble((HOSTILE, "bold")), table):
        console.print(printed)
        console.print(printed, soft_wrap=True)
    ours = re.sub(r"\x1b\[[0-9;]*m", "", written.getvalue())
    look_at_text(ours)
    assert "\x1b[31mEVIL\x1b[0m \x1b]" not in written.getvalue()
    assert r"\x1b[31mEVIL" in written.getvalue()


def test_safe_text_stays_as_it_is() -> None:
    for text in ("", "plain", "a\tb\nc", "naïve Ünïcödé 中文 हिन्दी العربية 👩‍👩‍👧", "C:\\x1b"):
        assert visible(text) == text
    assert visible(visible(HOSTILE)) == visible(HOSTILE)
    assert ascii(visible("\x1b\x9b\u202e" + os.fsdecode(b"\xff"))) == ascii(r"\x1b\x9b\u202e\xff")


def test_only_elements_are_markup() -> None:
    assert str(element("p", "<b>", element("b", "&"), class_='"')) == '<p class="&quot;">&lt;b&gt;<b>&amp;</b></p>'
    by_hand = f"{element('b', 'x')}"
    assert str(element("p", by_hand)) == "<p>&lt;b&gt;x&lt;/b&gt;</p>"
    assert str(together(["<", element("br")], between="&")) == "&lt;&amp;<br/>"
    for tag, attributes in (
        ("script", {}),
        ("a", {"href": "x"}),
        ("p", {"onclick": "x"}),
        ("p x", {}),
        ("p", {"a b": ""}),
    ):
        with pytest.raises(ValueError, match="reports have no"):
            element(tag, **attributes)  # type: ignore[arg-type]


def test_reports_write_markup_in_one_place_only() -> None:
    package = Path(__file__).parents[2] / "onecard"
    shown = [*(package / "report").rglob("*.py"), *(package / "cli").rglob("*.py"), *(package / "doctor").rglob("*.py")]
    tag = re.compile(r"""["']\s*</?[a-z]+[ >{/]|html import escape""")
    found = [str(path.name) for path in shown if tag.search(path.read_text())]
    assert found == ["markup.py"]


# In a browser


def chromium() -> str:
    """Debian's Chromium; without it the test is skipped, but fails where .ci/run has installed it."""
    found = shutil.which("chromium")
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail("chromium is not installed, and .ci/run should have installed it")
        pytest.skip("chromium is not installed")
    return found


def opened(page: Path, folder: Path) -> str:
    """The page as a browser has it after its scripts, if it has any, have run."""
    done = subprocess.run(
        [
            *(chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *(f"--user-data-dir={folder / 'profile'}", "--virtual-time-budget=2000", "--dump-dom", page.as_uri()),
        ],
        capture_output=True,
        timeout=120,
    )
    return done.stdout.decode()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_browser_runs_nothing_from_a_report(look: Look, tmp_path: Path) -> None:
    owned = re.compile(r"<html[^>]*data-owned")
    control = tmp_path / "control.html"
    control.write_text(f"<!doctype html><html><body>{MARKUP}</body></html>")
    assert owned.search(opened(control, tmp_path)), "the attack works where nothing is escaped"
    records = [
        changed(record, path, HOSTILE)
        for record in LISTED
        if record["kind"] == "finding"
        for path in texts_in(record)
        if path not in (("kind",), ("finding", "severity"), ("finding", "sure"))
    ]
    write_run(Path("run"), {**CONFIG, "dataset": MARKUP}, [*LISTED, *records])
    Path(f"{NAME}.log").write_text("\n".join(made.nanogpt(steps=200, header=hostile_logs()["nanogpt"][:30])))
    Path("evil.py").write_text(dict(hostile_configs())["free text"])
    look("plan", "evil.py", "--html", "plan.html")
    look("doctor", "run", f"{NAME}.log", "--html", "doctor.html")
    look("compare", "run", f"{NAME}.log", "--html", "compared.html")
    look("compare", "run", f"{NAME}.log", "--plot", "compare.html")
    look("compare", "run", f"{NAME}.log", "--plot", "compare.svg")
    for name in ("plan.html", "doctor.html", "compared.html", "compare.html", "compare.svg"):
        dom = opened(tmp_path / name, tmp_path)
        drawn = re.sub(r'<script type="application/json".*?</script>', "", dom, flags=re.DOTALL)
        assert "EVIL" in drawn, f"{name} was not opened"
        assert not owned.search(dom)
        ours = 2 if name in ("plan.html", "doctor.html", "compared.html") else 0  # and what plan draws as a picture
        assert len(re.findall(r"<script\b", drawn)) == ours
        assert not re.search(r"<(?:blink|a)\b|<img (?!alt)", drawn)
