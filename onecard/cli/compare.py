"""onecard compare: read runs and logs, compare them, show the result."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import click

from onecard.cli.files import PathType, without_config
from onecard.cli.flags import Flag
from onecard.cli.library import console, json_option, no_flags
from onecard.cli.plan import complete_card
from onecard.errors import UsageError
from onecard.inputs.runs import EXAMPLES, cases_at, doctors_card, stated_config, stdin_once

if TYPE_CHECKING:
    from onecard.doctor.case import Case
    from onecard.doctor.compare import Comparison

MOST_RUNS = 1_000  # each is compared with each: a few seconds


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command, as typed."""

    path: tuple[str, ...]
    config: tuple[str, ...]
    gpu: str | None
    plot: str | None
    html: str | None
    details: bool
    as_json: bool


@click.command(short_help="Which run is better, by which measure, and what changed.")
@click.argument("path", nargs=-1, type=PathType())
@click.option(
    "--config",
    type=PathType(),
    metavar="CONFIG",
    multiple=True,
    help="The config of a log: once for all, or once per path.",
)
@click.option("--gpu", metavar="NAME", shell_complete=complete_card, help='The card they ran on ("RTX 4070").')
@click.option(
    "--plot", type=PathType(), metavar="FILE", help="Draw the losses over tokens and hours: .svg, .html or .png."
)
@click.option("--html", type=PathType(), metavar="FILE", help="Write everything to one file to share, with charts.")
@click.option("--details", is_flag=True, help="Also print noise, notes in full, and what each change alone would do.")
@json_option
@click.pass_obj
def compare(flags: list[Flag], /, **typed: object) -> int:
    """\b
    Example:
      onecard compare small.log large.log --gpu "RTX 4070" --plot losses.svg

    Which run is better: by loss at equal tokens and at equal hours, and by speed. Why, and what to type next.

    PATH is a run folder, or a log of nanoGPT, nanochat, llm.c, modded-nanogpt or Hugging Face Trainer; - is standard
    input. Without --config, the config of a log is looked for beside it and in config/.
    """
    from onecard.doctor.compare import compare_runs

    options = Options(**typed)  # type: ignore[arg-type]  # click made them by these names
    no_flags(flags, "compare")
    _check(options)
    cases, notes = _cases(options)
    comparison = compare_runs(cases)
    if options.plot is not None:
        _plot(comparison, Path(options.plot))
        notes.append(f"wrote {options.plot}")
    if options.html is not None:
        from onecard.cli.files import write_text
        from onecard.ui.single_file import comparison_file

        write_text(Path(options.html), comparison_file(comparison), option="--html")
        notes.append(f"wrote {options.html}")
    _show(comparison, notes, details=options.details, as_json=options.as_json)
    return 0


def _check(options: Options) -> None:
    from onecard.report.compare_plot import SUFFIXES

    if not options.path:
        raise UsageError(
            "onecard compare needs runs or logs",
            why="it compares two runs or more, and you named no run",
            fix=EXAMPLES["compare"],
            name="no-run",
        )
    stdin_once(*options.path, *options.config)
    if len(options.config) not in (0, 1, len(options.path)):
        raise UsageError(
            f"{len(options.config)} configs for {len(options.path)} paths",
            why="--config is given once for all paths, or once for each, in their order",
            fix="onecard compare A.log B.log --config A.py --config B.py",
            name="configs-do-not-match",
        )
    if options.plot is not None and Path(options.plot).suffix.lower() not in SUFFIXES:
        raise UsageError(
            f"cannot draw {options.plot}: unknown file ending",
            why=f"the file ending sets the format; known endings are {', '.join(SUFFIXES)}",
            fix=f"--plot {Path(options.plot).stem or 'losses'}.svg",
            name="unknown-plot",
        )


def _cases(options: Options) -> tuple[list[Case], list[str]]:
    """The runs with their configs, and what was found without being named."""
    from onecard.doctor.case import DataSizes

    card = doctors_card(options.gpu)
    named = [stated_config(config, [], otherwise=without_config()) for config in options.config]
    if len(named) == 1:
        named *= len(options.path)
    cases: list[Case] = []
    notes: list[str] = []
    for number, path in enumerate(options.path):
        stated = named[number] if named else None
        made, found = cases_at(path, stated, card=card, data=DataSizes(), command="compare")
        notes += [f"config of {path}: {found.note}"] if found.note else []
        cases += made
        if len(cases) > MOST_RUNS:
            raise UsageError(
                f"{path} brings the comparison to {len(cases):,} runs, and it takes at most {MOST_RUNS:,}",
                why="every run is compared with every other one",
                fix=f"onecard doctor {quote(path)} --json   (looks at any number of runs, each by itself)",
                name="too-many-runs",
            )
    if len(cases) < 2:
        first = quote(options.path[0])
        raise UsageError(
            f"{options.path[0]} holds one run, and a comparison needs two",
            why="there is nothing to compare it with",
            fix=f"onecard compare {first} ANOTHER   (onecard doctor {first} looks at one run)",
            name="one-run",
        )
    return cases, notes


def _plot(comparison: Comparison, path: Path) -> None:
    from onecard.cli.files import write_bytes, write_text
    from onecard.report.compare_plot import plot_html, plot_png, plot_svg

    match path.suffix.lower():
        case ".svg":
            write_text(path, plot_svg(comparison), option="--plot")
        case ".html":
            write_text(path, plot_html(comparison), option="--plot")
        case _:
            write_bytes(path, plot_png(comparison), option="--plot")


def _show(comparison: Comparison, notes: list[str], *, details: bool, as_json: bool) -> None:
    from rich.text import Text

    from onecard.report.compare import print_comparison
    from onecard.report.compare_json import comparison_json
    from onecard.report.messages import print_warnings

    if as_json:
        click.echo(json.dumps(comparison_json(comparison), allow_nan=False))
        return
    stderr = console(stderr=True)
    for sentence in notes:
        stderr.print(Text(sentence), soft_wrap=True)
    warnings = {w: None for case in comparison.cases if case.resolved for w in case.resolved.warnings}
    print_warnings(warnings, stderr)
    print_comparison(comparison, console(), details=details)
