"""What `make` installs: every extra, so that every error that names one is about an environment of the user's own."""

import re
import tomllib

from tests.contract.conftest import ROOT

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def test_make_installs_every_extra() -> None:
    installed = re.findall(r'--editable "\.\[([a-z,]+)\]"', (ROOT / "Makefile").read_text())
    assert [sorted(names.split(",")) for names in installed] == [sorted(EXTRAS)]


def test_every_extra_that_is_named_exists() -> None:
    texts = [path.read_text() for path in (*(ROOT / "onecard").rglob("*.py"), *(ROOT / "docs").rglob("*.md"))]
    named = {
        name for text in texts for names in re.findall(r"\bonecard\[([a-z,]+)\]", text) for name in names.split(",")
    }
    assert {"train", "data", "log", "plot"} <= named <= EXTRAS.keys()
