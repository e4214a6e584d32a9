"""onecard doctor: read runs and logs, diagnose, show."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from onecard.cli.flags import Flag
from onecard.cli.library import CountType, KeyCommand, SizeType, console, json_option
from onecard.cli.plan import complete_card, read_config
from onecard.errors import ConfigError, MachineError, UsageError

if TYPE_CHECKING:
    from onecard.config.resolve import Resolved
    from onecard.doctor.case import DataSizes
    from onecard.doctor.diagnose import Diagnosis
    from onecard.plan.cards import Card
    from onecard.runs.logged import LoggedRun

STDIN = "-"


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command, as typed."""

    path: tuple[str, ...]
    config: str | None
    gpu: str | None
    other: int | None
    data: str | None
    train_tokens: int | None
    val_tokens: int | None
    explain: str | None
    final: bool
    html: str | None
    markdown: bool
    as_json: bool


@click.command(cls=KeyCommand, short_help="What is wrong with a run, the evidence, and the patch.")
@click.argument("path", nargs=-1)
@click.option("--config", metavar="CONFIG", help="The nanoGPT config the log was made with (read, never run).")
@click.option("--gpu", metavar="NAME", shell_complete=complete_card, help='The card it ran on ("RTX 4070").')
@click.option("--other", type=SizeType(), metavar="SIZE", help="Memory that other programs hold on the card.")
@click.option("--data", metavar="DIR", help="The data folder, for the number of tokens in each split.")
@click.option("--train_tokens", type=CountType(), metavar="N", help="Tokens in the training data.")
@click.option("--val_tokens", type=CountType(), metavar="N", help="Tokens in the validation data.")
@click.option("--explain", metavar="RULE", help="What a rule sees, why it matters, what to do, when it is wrong.")
@click.option("--final", is_flag=True, help="The log is complete: no more is to come.")
@click.option("--html", metavar="FILE", help="Write one page with charts.")
@click.option("--markdown", is_flag=True, help="Print Markdown, for pasting into an issue.")
@json_option
@click.pass_obj
def doctor(flags: list[Flag], /, **typed: object) -> int:
    """\b
    Example:
      onecard doctor train.log --config train_fineweb.py --gpu "RTX 4070"

    What is wrong with a run, how sure that is, the lines that prove it, and the patch, planned on the card.

    PATH is a run folder, or a log of nanoGPT, nanochat, llm.c, modded-nanogpt or Hugging Face Trainer; - is standard
    input. Several are several runs. A log's config is the file NAME.config.py beside NAME.log, unless --config names
    one. Exit 1 if something is wrong, 0 if not.
    """
    options = Options(**typed)  # type: ignore[arg-type]  # click made them by these names
    if options.explain is not None:
        return _explain(options.explain, as_json=options.as_json)
    _check(options, flags)
    diagnoses, talk = _diagnose(options, flags)
    _show(options, diagnoses, talk)
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


def _check(options: Options, flags: list[Flag]) -> None:
    if not options.path:
        raise UsageError(
            "onecard doctor needs a run or a log",
            why="it looks at what a run has left behind",
            fix="onecard doctor runs/default   (or a log file, or - for standard input)",
            name="no-run",
        )
    flag = f"--{flags[0][0]}={flags[0][1]}" if flags else ""
    if flag and options.config is None and not all(map(config_beside, options.path)):
        raise UsageError(
            f"{flag} needs --config",
            why="a config key changes a config, and none is named",
            fix=shlex.join(["onecard", "doctor", *options.path, "--config", "CONFIG", flag]),
            name="key-without-config",
        )
    if options.as_json and options.markdown:
        raise UsageError(
            "--json and --markdown exclude each other",
            why="both are the whole of standard output",
            fix="leave one of them out",
            name="two-outputs",
        )
    if (*options.path, options.config).count(STDIN) > 1:
        raise UsageError(
            "standard input can be read once",
            why="- is given more than once",
            fix="name files for the others",
            name="stdin-twice",
        )


def _diagnose(options: Options, flags: list[Flag]) -> tuple[list[Diagnosis], list[str]]:
    """The diagnoses, and what was taken without being named."""
    from onecard.doctor.diagnose import diagnose_cases
    from onecard.doctor.facts import make_case

    card, data = doctors_card(options.gpu), _sizes(options)
    named = _config(options.config, flags) if options.config is not None else None
    cases, talk = [], []
    for path in options.path:
        (resolved, stated), taken = (named, []) if named else _found(path, flags)
        talk += taken
        for run in runs_at(path):
            if stated:  # no trainer takes this config: a rule says why
                run = replace(run, config={**stated, **run.config})
            cases.append(make_case(run, config=resolved, card=card, data=data, other_bytes=options.other or 0))
    return diagnose_cases(cases, final=options.final), talk


def config_beside(path: str) -> Path | None:
    """NAME.config.py beside NAME.log; None where there is none."""
    place = Path(path)
    if path == STDIN or not place.name or place.is_dir():
        return None
    beside = place.with_name(f"{place.stem}.config.py")
    return beside if beside.is_file() else None


Stated = tuple["Resolved | None", dict[str, object]]  # a config; of one that no trainer takes, what it says


def _found(path: str, flags: list[Flag]) -> tuple[Stated, list[str]]:
    """The config beside a log, and a sentence about it; one that cannot be read is left alone, as nobody named it."""
    beside = config_beside(path)
    if beside is None:
        return (None, {}), []
    try:
        return _config(str(beside), flags), [f"config of {Path(path).name}: {beside.name}, found beside it"]
    except ConfigError as problem:
        if flags:
            raise
        return (None, {}), [f"config of {Path(path).name}: not {beside.name}, found beside it: {problem.what}"]


def _config(config: str, flags: list[Flag]) -> Stated:
    """The config that was named; of one whose heads do not divide, what it states instead."""
    try:
        resolved = read_config(config, flags)
        # as typed, so that commands to paste find the file
        return resolved if config == STDIN else replace(resolved, source=config), {}
    except ConfigError as problem:
        stated = _shape_of(config) if problem.name == "keys-do-not-fit" else {}
        if not stated:
            raise
        return None, stated


def _shape_of(config: str) -> dict[str, object]:
    """What a config file says, for one whose keys do not fit together."""
    from onecard.cli.files import read_text
    from onecard.config.reader import read_config as read_file

    return dict(read_file(read_text(Path(config)), {}).values) if config != STDIN else {}


def runs_at(path: str) -> Iterator[LoggedRun]:
    """The runs of a path: a run folder, a folder of them, a log file, or standard input."""
    from onecard.cli.files import neighbour
    from onecard.runs.folder import RECORDS, load_run, runs_in
    from onecard.runs.foreign import read_logs
    from onecard.runs.logged import logged_run

    if path == STDIN:
        yield from read_logs(sys.stdin.buffer, source="stdin")
        return
    place = Path(path)
    try:
        if place.is_dir() or place.name == RECORDS:
            for folder in runs_in(place) or (place,):
                yield logged_run(load_run(folder))
            return
        with place.open("rb") as file:
            yield from read_logs(file, source=place.name)
    except FileNotFoundError as problem:
        raise ConfigError(
            f"there is no file {path}",
            why=f"looked for a run or a log from the folder {Path.cwd().name}/",
            fix=neighbour(place, otherwise="onecard doctor runs/default (or a log file, or - for standard input)"),
            name="no-such-file",
        ) from problem
    except (OSError, ValueError) as problem:
        raise ConfigError(
            f"{path} cannot be read",
            why=getattr(problem, "strerror", None) or str(problem),
            fix="name a run folder or a log file",
            name="unreadable-file",
        ) from problem


def doctors_card(name: str | None) -> Card | None:
    """The card a person means; of several with the same peak the first serves. None for none named."""
    from onecard.plan.cards import find_card, matching_cards

    if name is None or name == "none":
        return None
    found = matching_cards(name)
    if len(found) > 1 and len({card.peak_flops for card in found}) == 1:
        return min(found, key=lambda card: card.allocatable_bytes)  # what fits the smaller fits both
    return find_card(name)


def _sizes(options: Options) -> DataSizes:
    """Tokens in each split: as said, else as the data folder has them."""
    import os
    from importlib.util import find_spec

    from onecard.doctor.case import DataSizes

    train, val = options.train_tokens, options.val_tokens
    if options.data is not None:
        if find_spec("numpy") is None:
            raise MachineError(
                "--data needs numpy",
                why="it opens the token files, and numpy is not installed",
                fix="say the sizes instead: --train_tokens=N --val_tokens=N",
                name="no-numpy",
            )
        from onecard.data.dataset import open_dataset
        from onecard.data.stdlib import cache_home

        dataset = open_dataset(options.data, home=cache_home(os.environ))
        train, val = train or len(dataset.train), val or len(dataset.val)
    return DataSizes(train_tokens=train, val_tokens=val)


def _show(options: Options, diagnoses: list[Diagnosis], talk: list[str]) -> None:
    from rich.text import Text

    from onecard.cli.files import write_text
    from onecard.report.doctor import print_diagnoses
    from onecard.report.doctor_html import diagnoses_html
    from onecard.report.doctor_json import diagnoses_json
    from onecard.report.doctor_markdown import diagnoses_markdown
    from onecard.report.talk import print_warnings

    if options.html is not None:
        write_text(Path(options.html), diagnoses_html(diagnoses), option="--html")
    if options.as_json:
        click.echo(json.dumps(diagnoses_json(diagnoses), allow_nan=False))
        return
    for sentence in talk:
        console(stderr=True).print(Text(sentence), soft_wrap=True)
    warnings = {w for d in diagnoses if d.case.resolved for w in d.case.resolved.warnings}
    print_warnings(sorted(warnings), console(stderr=True))
    if options.markdown:
        click.echo(diagnoses_markdown(diagnoses), nl=False)
    else:
        print_diagnoses(diagnoses, console())
    if options.html is not None:
        console(stderr=True).print(Text(f"wrote {options.html}"), soft_wrap=True)
