"""An answer as one file to share: the page's own drawing with the data inside. It needs no server and no network.

A policy in the file lets a browser run the two scripts that stand in it, by their hashes, and load nothing.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from onecard import __version__
from onecard.report.console import PlainConsole
from onecard.report.markup import together
from onecard.report.strict import strict
from onecard.ui import answers
from onecard.visible import visible

if TYPE_CHECKING:
    from onecard.doctor.compare import Comparison
    from onecard.doctor.diagnose import Diagnosis
    from onecard.plan.nvidia_smi import DriverFigures
    from onecard.plan.plan import Plan

STATIC = Path(__file__).parent / "static"
TEMPLATE = Path(__file__).with_name("single_file.html")
LIBRARY = "vendor/uPlot.iife.min.js"
STYLES = ("vendor/uPlot.min.css", "style.css")
FIRST = "shared.js"  # draws what stands in the file
WORDS_WIDTH = 100  # columns of the text that is shown where scripts may not run

_IMPORT = re.compile(r'^import \{([^}]*)\} from "\./([a-z_]+\.js)";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:const|function) (\w+))", re.MULTILINE)
_MARK = re.compile(r"\[([a-z]+)\]")


def plan_file(made: Plan, *, driver: DriverFigures | None = None) -> str:
    """A plan to share."""
    from onecard.report.plan import print_plan

    name = made.resolved.source or "packaged default"
    said = answers.planned(made, driver=driver)
    return _file("plan", name, said, lambda console: print_plan(made, console, details=True, driver=driver))


def comparison_file(comparison: Comparison) -> str:
    """A comparison of runs to share."""
    from onecard.report.compare import print_comparison

    names = " and ".join(case.run.source for case in comparison.cases[:3])
    said = answers.compared(comparison)
    return _file("compare", names, said, lambda console: print_comparison(comparison, console, details=True))


def diagnoses_file(found: Sequence[Diagnosis]) -> str:
    """What the doctor says of runs, to share."""
    from onecard.report.doctor import print_diagnoses

    names = " and ".join(each.case.run.source for each in found[:3])
    return _file(
        "doctor", names, answers.diagnosed(found), lambda console: print_diagnoses(found, console, details=True)
    )


def _file(command: str, name: str, answer: dict[str, Any], report: Callable[[Console], None]) -> str:
    told = io.StringIO()
    report(PlainConsole(file=told, width=WORDS_WIDTH, no_color=True))
    library, style = (STATIC / LIBRARY).read_text().strip(), _style()
    script = bundle(STATIC, FIRST)
    parts = {
        "policy": f"default-src 'none'; script-src {_hash(library)} {_hash(script)}; style-src {_hash(style)}; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'",
        "title": str(together([f"onecard {command}: {name}"])),
        "style": style,
        "words": str(together([told.getvalue()])),
        "data": _data({"command": command, "name": name, "version": __version__, "answer": answer}),
        "library": library,
        "script": script,
    }
    return _MARK.sub(lambda mark: parts[mark[1]], TEMPLATE.read_text())


def _data(answer: object) -> str:
    """JSON that cannot end the script element around it: without <, > and &, and in ASCII."""
    text = json.dumps(_visible(strict(answer)), allow_nan=False)
    return text.replace("<", r"\u003c").replace(">", r"\u003e").replace("&", r"\u0026")


def _visible(value: Any) -> Any:
    """The same with what would reorder or hide text spelled out."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {visible(str(key)): _visible(each) for key, each in value.items()}
    return [_visible(each) for each in value] if isinstance(value, (list, tuple)) else value


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@cache
def _style() -> str:
    return "\n".join((STATIC / name).read_text().strip() for name in STYLES)


@cache
def bundle(folder: Path, first: str) -> str:
    """A module with all that it imports, as one script: each module is a function that returns what it exports."""
    written: dict[str, str] = {}
    _write_module(folder, first, written)
    script = "\n".join(written.values())
    assert "</" not in script, "it may end the element around it"
    return script


def _write_module(folder: Path, name: str, written: dict[str, str]) -> None:
    if name in written:
        return
    text = (folder / name).read_text()
    for _, other in _IMPORT.findall(text):
        _write_module(folder, other, written)
    exported = ", ".join(_EXPORT.findall(text))
    text = _EXPORT.sub("", _IMPORT.sub(lambda found: f"const {{{found[1]}}} = {_variable(found[2])};\n", text))
    assert not re.search(r"^(?:import|export)\b", text, re.MULTILINE), f"{name} imports in a way that is not read here"
    written[name] = f"const {_variable(name)} = (() => {{\n{text}return {{ {exported} }};\n}})();"


def _variable(name: str) -> str:
    """`$dom` for dom.js"""
    return f"${Path(name).stem}"
