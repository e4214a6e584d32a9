"""onecard doctor: read runs and logs, diagnose, show."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from onecard.cli.files import PathType, without_config
from onecard.cli.flags import Flag
from onecard.cli.library import CountType, KeyCommand, SizeType, console, json_option
from onecard.cli.plan import complete_card
from onecard.errors import UsageError
from onecard.inputs.runs import cases_at, doctors_card, stated_config, stdin_once

if TYPE_CHECKING:
    from onecard.doctor.case import Case, DataSizes
    from onecard.doctor.diagnose import Diagnosis


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command, as typed."""

    path: tuple[str, ...]
    config: str | None
    gpu: str | None
    gpus: int | None
    other: int | None
    data: str | None
    train_tokens: int | None
    val_tokens: int | None
    explain: str | None
    final: bool
    details: bool
    html: str | None
    markdown: bool
    as_json: bool


@click.command(cls=KeyCommand, short_help="What is wrong with a run, the evidence, and the patch.")
@click.argument("path", nargs=-1, type=PathType())
@click.option(
    "--config", type=PathType(), metavar="CONFIG", help="The nanoGPT config the log was made with (read, never run)."
)
@click.option("--gpu", metavar="NAME", shell_complete=complete_card, help='The card it ran on ("RTX 4070").')
@click.option("--gpus", type=click.IntRange(1, 100_000), metavar="N", help="How many of it the run was on.")
@click.option("--other", type=SizeType(), metavar="SIZE", help="Memory that other programs hold on the card.")
@click.option("--data", type=PathType(), metavar="DIR", help="The data folder, to count the tokens in each split.")
@click.option("--train_tokens", type=CountType(), metavar="N", help="Tokens in the training data.")
@click.option("--val_tokens", type=CountType(), metavar="N", help="Tokens in the validation data.")
@click.option("--explain", metavar="RULE", help="What a rule sees, why it matters, what to do, when it is wrong.")
@click.option("--final", is_flag=True, help="The log is complete: the run has ended.")
@click.option("--details", is_flag=True, help="The long text: every finding with all of its evidence.")
@click.option("--html", type=PathType(), metavar="FILE", help="Write everything to one file to share, with charts.")
@click.option("--markdown", is_flag=True, help="Print Markdown, for pasting into an issue.")
@json_option
@click.pass_obj
def doctor(flags: list[Flag], /, **typed: object) -> int:
    """\b
    Example:
      onecard doctor train.log --config train_fineweb.py --gpu "RTX 4070"

    What is wrong with a run, the one command that fixes it, and the evidence. --details prints the long text, and
    --html report.html writes everything to a page with charts.

    PATH is a run folder, or a log of nanoGPT, nanochat, llm.c, modded-nanogpt or Hugging Face Trainer; - is standard
    input. Several are several runs. Without --config, a log's config is looked for beside it and in config/: by name
    (NAME.config.py for NAME.log), out_dir and size. Without --data, the folder of the config's dataset is used where
    it is there. Exit 1 if it finds an error, 0 if not.
    """
    options = Options(**typed)  # type: ignore[arg-type]  # click made them by these names
    if options.explain is not None:
        return _explain(options.explain, as_json=options.as_json)
    _check(options)
    diagnoses = _diagnose(options, flags)
    _show(options, diagnoses)
    return max(diagnosis.exit_code for diagnosis in diagnoses)


def _explain(rule: str, *, as_json: bool) -> int:
    from onecard.doctor.explain import explain
    from onecard.report.doctor import print_explanation
    from onecard.report.doctor_json import explanation_json

    found = explain(rule)
    if as_json:
        click.echo(json.dumps(explanation_json(found)))
    else:
        print_explanation(found, console())
    return 0


def _check(options: Options) -> None:
    if not options.path:
        raise UsageError(
            "onecard doctor needs a run or a log",
            why="it reads what a run has written",
            fix="onecard doctor runs/default   (or a log file, or - for standard input)",
            name="no-run",
        )
    if options.as_json and options.markdown:
        raise UsageError(
            "--json and --markdown exclude each other",
            why="both are the whole of standard output",
            fix="leave one of them out",
            name="two-outputs",
        )
    stdin_once(*options.path, options.config)


def _diagnose(options: Options, flags: list[Flag]) -> list[Diagnosis]:
    from onecard.doctor.diagnose import diagnose_cases

    card, data = doctors_card(options.gpu), _sizes(options)
    named = stated_config(options.config, flags, otherwise=without_config()) if options.config is not None else None
    cases: list[Case] = []
    for path in options.path:
        found_cases, found = cases_at(
            path, named, flags=flags, card=card, data=data, other_bytes=options.other, gpus=options.gpus
        )
        if flags and found.stated == (None, {}):
            raise _needs_config(options, flags, found.note)
        cases += found_cases
    return diagnose_cases(cases, final=options.final)


def _needs_config(options: Options, flags: list[Flag], note: str) -> UsageError:
    """The error for keys that were typed where no config is named or found."""
    flag = f"--{flags[0][0]}={flags[0][1]}"
    return UsageError(
        f"{flag} needs --config",
        why="a config key changes a config, and none is named" + (f" ({note})" if note else ""),
        fix=shlex.join(["onecard", "doctor", *options.path, "--config", "CONFIG", flag]),
        name="key-without-config",
    )


def _sizes(options: Options) -> DataSizes:
    """Tokens in each split: as typed, else as the named data folder has them."""
    import os

    from onecard.doctor.case import DataSizes

    train, val = options.train_tokens, options.val_tokens
    if options.data is not None:
        from onecard.data.dataset import open_dataset
        from onecard.data.folders import find_data
        from onecard.inputs.data_sizes import sizes_at

        path = find_data(options.data)
        sizes = sizes_at(path) if path else None
        if sizes is None or not (sizes.train_tokens or sizes.val_tokens):  # the embedded data, or an error
            sizes = sizes_at(open_dataset(options.data, environ=os.environ).path)
        return replace(sizes, train_tokens=train or sizes.train_tokens, val_tokens=val or sizes.val_tokens)
    return DataSizes(train_tokens=train, val_tokens=val)


def _show(options: Options, diagnoses: list[Diagnosis]) -> None:
    from rich.text import Text

    from onecard.cli.files import write_text
    from onecard.report.doctor import print_diagnoses
    from onecard.report.doctor_json import diagnoses_json
    from onecard.report.doctor_markdown import diagnoses_markdown
    from onecard.report.messages import print_warnings

    if options.html is not None:
        from onecard.ui.single_file import diagnoses_file

        write_text(Path(options.html), diagnoses_file(diagnoses), option="--html")
    if options.as_json:
        click.echo(json.dumps(diagnoses_json(diagnoses), allow_nan=False))
        return
    warnings = {w for d in diagnoses if d.case.resolved for w in d.case.resolved.warnings}
    print_warnings(sorted(warnings), console(stderr=True))
    if options.markdown:
        click.echo(diagnoses_markdown(diagnoses), nl=False)
    else:
        print_diagnoses(diagnoses, console(), details=options.details)
    if options.html is not None:
        console(stderr=True).print(Text(f"wrote {options.html}"), soft_wrap=True)
