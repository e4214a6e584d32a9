"""A config key is one line: keys added to the schema alone are read, checked, shown, planned and compared."""

import json
from pathlib import Path
from typing import Any

import pytest

from onecard.config.schema import KEYS, RunConfig
from tests.added_keys import in_copy

PROGRAM = r"""
import io, json
from contextlib import redirect_stderr, redirect_stdout

import click

import onecard
from docs.generate import config_keys
from onecard.cli.commands import cli
from onecard.cli.main import run
from onecard.config.command import train_command
from onecard.config.resolve import resolve
from onecard.config.schema import RunConfig
from onecard.doctor.case import DataSizes
from onecard.doctor.config_diff import config_diff, idle_settings
from onecard.doctor.facts import make_case
from onecard.doctor.single_changes import single_effects
from onecard.inputs.make_plan import make_plan
from onecard.plan.cards import find_card
from onecard.plan.place import Place
from onecard.report.model_card import SHOWN_KEYS
from onecard.runs.logged import LoggedRun

MADE = {"made_penalty": 0.5, "made_note": "2024", "made_folder": "there", "made_cache": 2**30}


def typed(*words):
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run(list(words))
    return [code, out.getvalue(), err.getvalue()]


FLAGS = ["--made_penalty=0.5", "--made_note=2024", "--made_folder=~/x", "--made_cache=1GiB"]
WRONG = ["--made_penalty=-1", "--made_folder=", "--made_cache=1", "--made_foldr=x"]
FILE = "n_layer = 12\nmade_penalty = 0.5\nmade_cache = '1GiB'\n"
before, after = RunConfig(), RunConfig(**MADE)
cases = [
    make_case(LoggedRun(source="r", format="onecard", records=(), config=config.model_dump()), config=None, card=None,
              data=DataSizes())
    for config in (before, after)
]
effects = single_effects(before, after, find_card("RTX 4070"), "onecard")
plan = make_plan(resolve(FILE, filename="c.py"), Place(card=find_card("RTX 4070")))
plan_command = cli.commands["plan"]
print(json.dumps({
    "package": onecard.__file__,
    "planned": typed("plan", "--gpu", "none", "--json", *FLAGS),
    "explained": typed("plan", "--gpu", "none", "--explain", *FLAGS),
    "refused": [typed("plan", flag) for flag in WRONG],
    "completed": [item.value for item in plan_command.shell_complete(click.Context(plan_command), "--made")],
    "reference": [line for line in config_keys().splitlines() if "`made_" in line],
    "schema": {name: found for name, found in RunConfig.model_json_schema()["properties"].items() if name in MADE},
    "warned": list(plan.resolved.warnings),
    "nanogpt": train_command(None, {"n_layer": 2, **MADE}, trainer="nanogpt"),
    "onecard": train_command(None, {"n_layer": 2, **MADE}, trainer="onecard"),
    "differ": {key: list(row) for key, row in config_diff(cases).items()},
    "idle": idle_settings(cases, MADE),
    "alone": {next(iter(e.changes)): [e.tokens_per_second_ratio, e.process_bytes_difference, e.final_loss_difference,
                                      e.why_no_loss] for e in effects},
    "card": [key for key in SHOWN_KEYS if key in MADE],
}))
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the package says with four keys added; ~ is /home/me."""
    folder = tmp_path_factory.mktemp("added")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("HOME", "/home/me")
        found = in_copy(folder, PROGRAM)
    assert Path(found["package"]).is_relative_to(folder)
    assert not any(key.startswith("made_") for key in KEYS)
    return found


def test_flags_and_origins(answers: Any) -> None:
    code, out, _ = answers["planned"]
    plan = json.loads(out)
    assert code == 0
    values = {"made_penalty": 0.5, "made_note": "2024", "made_folder": "/home/me/x", "made_cache": 2**30}
    assert {key: plan["config"][key] for key in values} == values
    assert [plan["origins"][key] for key in values] == [f"--{key}" for key in values]
    assert set(plan["config"]) == {*RunConfig.model_fields, *values}


def test_wrong_values_are_refused_by_name(answers: Any) -> None:
    whats = [err.splitlines()[0] for _, _, err in answers["refused"]]
    assert [code for code, _, _ in answers["refused"]] == [2, 2, 2, 2]
    assert whats[0].startswith("error: made_penalty=-1 is not at least 0")
    assert whats[1].startswith("error: --made_folder is empty")
    assert whats[2].startswith("error: made_cache=1 is only 1 bytes")
    assert "--made_folder=x" in answers["refused"][3][2]


def test_help_and_reference(answers: Any) -> None:
    assert answers["completed"] == ["--made_penalty=", "--made_note=", "--made_folder=", "--made_cache="]
    shown = " ".join(answers["explained"][1].split())
    assert "made_penalty 0.5 --made_penalty a made penalty" in shown
    assert answers["reference"] == [
        "| `made_penalty` | `0.0` | a made penalty | loss | no |",
        "| `made_note` | `None` | a made note | nothing | yes |",
        "| `made_folder` | `'here'` | a made folder | nothing | yes |",
        "| `made_cache` | `None` | a made cache | memory | yes: the same mathematics; rounding may differ |",
    ]


def test_the_json_schema(answers: Any) -> None:
    made = answers["schema"]["made_cache"]
    assert (made["description"], made["default"], made["affects"]) == ("a made cache", None, ["memory"])
    assert made["resume"] == "rounding"
    assert answers["schema"]["made_penalty"]["minimum"] == 0


def test_nanogpt_does_not_have_them(answers: Any) -> None:
    ignored, without = answers["warned"]
    assert ignored == "c.py: nanoGPT would silently ignore made_penalty, made_cache; onecard honours them"
    assert without.startswith("nanoGPT has no made_cache: ")
    assert answers["nanogpt"] == "python train.py --n_layer=2"
    assert answers["onecard"] == (
        "onecard train --n_layer=2 --made_penalty=0.5 --made_note=2024 --made_folder=there --made_cache=1GiB"
    )


def test_comparisons(answers: Any) -> None:
    assert answers["differ"] == {
        "made_penalty": [0.0, 0.5],
        "made_note": [None, "2024"],
        "made_folder": ["here", "there"],
        "made_cache": [None, 2**30],
    }
    assert answers["idle"] == dict.fromkeys(("made_note", "made_folder"), "no effect on the result")
    assert answers["alone"] == {
        "made_penalty": [1.0, 0, None, "scaling laws do not cover made_penalty"],
        "made_cache": [None, None, 0.0, ""],  # the plan does not know what it does to memory
    }


def test_a_model_card_says_what_the_model_comes_from(answers: Any) -> None:
    assert answers["card"] == ["made_penalty"]
