"""Paths as typed -> cases: the runs there, each with its config, as the doctor and comparisons take them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from onecard.errors import ConfigError, UsageError
from onecard.inputs.config import STDIN, Flags, config_as_typed, data_places
from onecard.inputs.find_config import contradiction, find_config
from onecard.inputs.text import THERE, neighbour, read_text
from onecard.opening import NotAFile, cannot_read, open_file, pieces

if TYPE_CHECKING:
    from onecard.config.resolve import Resolved
    from onecard.doctor.case import Case, DataSizes
    from onecard.plan.cards import Card
    from onecard.runs.logged import LoggedRun


EXAMPLES = {  # by the command that reads runs
    "doctor": "onecard doctor runs/default (or a log file, or - for standard input)",
    "compare": "onecard compare runs/a runs/b   (or log files)",
}


def stdin_once(*sources: str | None) -> None:
    """UsageError if standard input is named more than once."""
    if sources.count(STDIN) > 1:
        raise UsageError(
            "standard input can be read once",
            why="- is given more than once",
            fix="name files for the others",
            name="stdin-twice",
        )


def config_beside(path: str) -> Path | None:
    """NAME.config.py beside NAME.log; None where there is none."""
    place = Path(path)
    if path == STDIN or not place.name or place.is_dir():
        return None
    beside = place.with_name(f"{place.stem}.config.py")
    return beside if beside.is_file() else None


Stated = tuple["Resolved | None", dict[str, object]]  # a config; for one that no trainer takes, what it says


@dataclass(frozen=True, kw_only=True)
class FoundConfig:
    """The config of a log that was found without being named."""

    stated: Stated
    note: str  # which file it is and why, or why none was taken; "" where there is nothing to say
    guessed: bool = False  # by what the log says, and not by the file's name


def look_for_config(path: str, flags: Flags, runs: Sequence[LoggedRun]) -> FoundConfig:
    """The config of the runs in a log: NAME.config.py beside it, else the one file near it that fits what it says.

    A file that cannot be read is left alone, as nobody named it.
    """
    beside = config_beside(path)
    if beside is not None:
        try:
            stated = stated_config(str(beside), flags)
        except ConfigError as problem:
            if flags:
                raise
            return FoundConfig(stated=(None, {}), note=f"not {beside.name}, found beside it: {problem.what}")
        return FoundConfig(stated=stated, note=f"{beside.name}, found beside it")
    if path == STDIN or Path(path).is_dir():
        return FoundConfig(stated=(None, {}), note="")
    found = find_config(Path(path), runs)
    if found is None or found.path is None:
        return FoundConfig(stated=(None, {}), note=found.why if found else "")
    return FoundConfig(stated=stated_config(found.path, flags), note=f"{found.path}, {found.why}", guessed=True)


def cases_at(
    path: str,
    stated: Stated | None,
    *,
    flags: Flags = (),
    card: Card | None,
    data: DataSizes,
    other_bytes: int | None = None,
    gpus: int | None = None,
    command: str = "doctor",
) -> tuple[list[Case], FoundConfig]:
    """The runs of a path with the config that is stated for them, else with the one that is found; `command` asks.
    `gpus` is the number of cards each ran on, None where it is left to the log.

    A config that was guessed is not given to runs that contradict it.
    """
    runs = [replace(run, world_size=gpus or run.world_size) for run in runs_at(path, command=command)]
    found = FoundConfig(stated=stated, note="") if stated else look_for_config(path, flags, runs)
    cases: list[Case] = []
    for run in runs:
        resolved = found.stated[0]
        fits = not (found.guessed and resolved and contradiction(run, resolved))
        cases += cases_of(
            [run],
            found.stated if fits else (None, {}),
            card=card,
            data=data,
            other_bytes=other_bytes,
            config_note=found.note if fits else "",
        )
    return cases, found


def stated_config(config: str, flags: Flags, *, otherwise: str = THERE) -> Stated:
    """The config that was named; for one with heads that do not divide, what it states instead."""
    try:
        return config_as_typed(config, flags, otherwise=otherwise), {}
    except ConfigError as problem:
        stated = _shape_of(config) if problem.name == "keys-do-not-fit" else {}
        if not stated:
            raise
        return None, stated


def _shape_of(config: str) -> dict[str, object]:
    """What a config file says whose keys do not fit together."""
    from onecard.config.reader import read_config

    return dict(read_config(read_text(Path(config)), {}).values) if config != STDIN else {}


def cases_of(
    runs: Iterable[LoggedRun],
    stated: Stated,
    *,
    card: Card | None,
    data: DataSizes,
    other_bytes: int | None = None,
    config_note: str = "",
) -> Iterator[Case]:
    """The runs with the config that is stated for them, and the sizes of the data it names where that is here."""
    from onecard.doctor.config_in_log import card_in_log
    from onecard.doctor.facts import make_case
    from onecard.files import free_path
    from onecard.inputs.place import as_measured_here

    resolved, keys = stated
    for run in runs:
        if keys:  # no trainer takes this config: a rule says why
            run = replace(run, config={**keys, **run.config})
        case = make_case(
            run,
            config=resolved,
            card=as_measured_here(card or card_in_log(run)),
            data=data,
            other_bytes=other_bytes,
            next_folder=str(free_path(Path(run.folder))) if run.folder else None,
        )
        yield replace(case, data=_data_of(case), config_note=config_note)


def _data_of(case: Case) -> DataSizes:
    """The sizes of the data: as stated or recorded, else as the folder of the dataset has them."""
    from onecard.doctor.evidence import known
    from onecard.inputs.data_sizes import sizes_of_data

    data, config = case.data, known(case, "dataset")
    if config is None or (data.train_tokens is not None and data.val_tokens is not None):
        return data
    found = sizes_of_data(config, data_places(case.resolved.source if case.resolved else None))
    if not found.here:
        return data
    return replace(
        data,
        train_tokens=found.train_tokens if data.train_tokens is None else data.train_tokens,
        val_tokens=found.val_tokens if data.val_tokens is None else data.val_tokens,
        source=found.source if data.train_tokens is None and data.val_tokens is None else data.source,
    )


def runs_at(path: str, *, command: str = "doctor") -> Iterator[LoggedRun]:
    """The runs of a path: a run folder, a folder of them, a log file, or standard input; `command` asks for them."""
    from onecard.runs.folder import RECORDS, is_config_of_run, load_run, runs_in
    from onecard.runs.foreign import read_logs
    from onecard.runs.logged import logged_run

    if path == STDIN:
        yield from read_logs(pieces(sys.stdin.buffer), source="stdin")
        return
    place = Path(path)
    try:
        if place.is_dir() or place.name == RECORDS:
            for folder in runs_in(place) or (place,):
                yield logged_run(load_run(folder))
            return
        if is_config_of_run(place):
            raise _config_no_log(place, command=command)
        with open_file(place) as file:
            yield from read_logs(pieces(file), source=path)
    except FileNotFoundError as problem:
        raise ConfigError(
            f"there is no file {path}",
            why=f"looked for a run or a log from the folder {Path.cwd().name}/",
            fix=neighbour(place, otherwise=EXAMPLES[command]),
            name="no-such-file",
        ) from problem
    except (OSError, ValueError) as problem:
        raise cannot_read(path, problem) or ConfigError(
            f"{path} cannot be read",
            why=getattr(problem, "strerror", None) or str(problem),
            fix=f"cat {quote(path)} | onecard {command} -"
            if isinstance(problem, NotAFile) and place.is_fifo()
            else "name a run folder or a log file",
            name="unreadable-file",
        ) from problem


def _config_no_log(place: Path, *, command: str) -> ConfigError:
    """The error for a config where a log should be: what it can be given to, and the run it is of."""
    from onecard.runs.folder import RECORDS

    planned = f"onecard plan {quote(str(place))}"
    run = place.parent
    there = (run / RECORDS).is_file()
    instead = f"onecard {command} {quote(str(run))}" + (" ANOTHER" if command == "compare" else "")
    return ConfigError(
        f"{place} is a config, not a log",
        why="it says what was meant to run, not what happened" + (f"; that is in {run / RECORDS}" if there else ""),
        fix=f"{instead}   (or, for what it needs: {planned})" if there else planned,
        name="config-no-log",
    )


def doctors_card(name: str | None) -> Card | None:
    """The card a person means; None where none is named. Of several whose peaks agree, the smallest is taken."""
    from onecard.plan.cards import find_card, matching_cards, of_one_speed

    if name is None or name == "none":
        return None
    return of_one_speed(matching_cards(name)) or find_card(name)
