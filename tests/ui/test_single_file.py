"""`--html` of plan, doctor and compare: one file with the data of `--json`, which needs nothing else."""

import json
import re
from pathlib import Path

import pytest

from onecard.cli.main import run
from onecard.doctor.diagnose import diagnose_cases
from onecard.runs.foreign import read_logs
from onecard.ui import single_file
from onecard.ui.single_file import bundle, diagnoses_file
from tests import made_logs as made
from tests.shared_file import data_in, look_at_file, skeleton
from tests.unit.doctor.cases import NARROW, SICK, case, learning, steps

STATIC = Path(single_file.__file__).parent / "static"


@pytest.mark.parametrize(
    "command",
    [
        ["plan", "--gpu", "rtx-4070"],
        ["plan", "--gpu", "rtx-4070", "--hours", "12"],
        ["plan", "--gpu", "rtx-4070", "--seen", "2GiB"],
        ["doctor", "one.log", "two.log"],
        ["compare", "one.log", "two.log"],
    ],
    ids=" ".join,
)
def test_a_file_has_the_answer_of_json_and_nothing_to_load(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one.log").write_text("\n".join(made.nanogpt(steps=200)))
    Path("two.log").write_text("\n".join(made.nanogpt(steps=300)))
    assert run([*command, "--json", "--html", "file.html"]) in (0, 1)
    answer = json.loads(capsys.readouterr().out)
    html = Path("file.html").read_text()
    look_at_file(html)
    said = data_in(html)
    assert said["command"] == command[0]
    del said["answer"]["ui"]
    assert said["answer"] == answer


def test_what_a_run_says_changes_only_the_data() -> None:
    plain, evil = (
        diagnoses_file(diagnose_cases([case(NARROW, records=learning(100), source=source)]))
        for source in ("a.log", "</script><script>alert(1)</script><!--\x1b\u202e")
    )
    assert skeleton(plain) == skeleton(evil)
    look_at_file(evil)
    assert data_in(evil)["answer"]["runs"][0]["source"] == r"</script><script>alert(1)</script><!--\x1b\u202e"


def test_a_log_that_tells_only_seconds_has_a_speed_and_a_clock() -> None:
    (run,) = read_logs(made.as_bytes(made.nanogpt(steps=200)), source="x.log")
    html = diagnoses_file(diagnose_cases([case(NARROW, records=run.records)]))
    curves = data_in(html)["answer"]["ui"]["runs"][0]["curves"]
    known = [speed for speed in curves["tokens_per_second"]["mean"] if speed]
    assert known
    assert min(known) > 0
    assert curves["seconds"] == sorted(curves["seconds"])


def test_a_long_run_makes_a_small_file() -> None:
    records = steps([4.0 + 0.001 * (n % 7) for n in range(50_000)], every=1)
    assert len(diagnoses_file(diagnose_cases([case(None, records=records)]))) < 400_000


def test_a_sick_run_has_its_findings_in_words_where_no_script_runs() -> None:
    html = diagnoses_file(diagnose_cases([SICK["oom-capacity"]()]))
    words = re.search(r"<noscript><pre>(.*?)</pre>", html, re.DOTALL)
    assert words
    assert "[oom-capacity]" in words[1]


def test_a_module_that_the_bundle_would_misread_is_refused(tmp_path: Path) -> None:
    for text in ('import x from "./dom.js";\n', "export default 1;\n", 'const end = "</script>";\n'):
        (tmp_path / "first.js").write_text(text)
        bundle.cache_clear()
        with pytest.raises(AssertionError):
            bundle(tmp_path, "first.js")
    bundle.cache_clear()
    assert bundle(STATIC, "shared.js").count("const $dom = (() => {") == 1
