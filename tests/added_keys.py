"""A copy of the package with keys added to its schema, one line each, and nothing else changed."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LINES = """\
    made_penalty: Rate = key(0.0, "a made penalty", "loss")
    made_note: Text | None = key(None, "a made note", "nothing", resume="yes")
    made_folder: Text = key("here", "a made folder", "nothing", kind="path place", resume="yes")
    made_cache: Size | None = key(None, "a made cache", "memory", resume="rounding", planned=False)
"""


def in_copy(folder: Path, program: str) -> Any:
    """What a program prints, as JSON, that runs with a copy of the package with the added keys."""
    if not (folder / "onecard").exists():
        shutil.copytree(ROOT / "onecard", folder / "onecard")
        schema = folder / "onecard/config/schema.py"
        text = schema.read_text(encoding="utf-8")
        last = text.index('\n    @model_validator(mode="after")')
        schema.write_text(text[:last] + LINES + text[last:], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{folder}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
