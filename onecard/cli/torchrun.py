"""onecard train under torchrun: the first rank prepares the run as one process does, the others join it."""

from __future__ import annotations

import hashlib
import os
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import onecard
from onecard.cli import signals
from onecard.errors import ConfigError, OfAnotherRank, OnecardError, UsageError
from onecard.inputs.before_run import torch_environment
from onecard.inputs.config import open_data
from onecard.models.ranks import ranks_of_torchrun

if TYPE_CHECKING:
    from onecard.config.schema import RunConfig
    from onecard.data.dataset import Dataset
    from onecard.models.ranks import Ranks
    from onecard.train.meeting import Meeting
    from onecard.train.ranks import Joined

_SHOWN = 3  # differences
_PATIENCE_SECONDS = 10.0  # in which another rank on this machine has made the same mistake and torchrun ends this one
_has_met = False  # whether this process has met the other ranks


def is_told(error: OnecardError) -> bool:
    """Whether the first rank of this machine tells of a mistake in the command or its files, so that this one need not.

    Until they meet, ranks do the same with the same command and files. So this one waits for torchrun, which stops it
    when the first has ended; it must not end before, because torchrun would stop the first, which may not have told.
    If nothing comes, the mistake is this rank's alone.
    """
    ranks = ranks_of_torchrun(os.environ)
    if _has_met or ranks is None or ranks.local_rank == 0 or not isinstance(error, UsageError | ConfigError):
        return False
    try:
        time.sleep(_PATIENCE_SECONDS)
    except KeyboardInterrupt:
        return True
    return False


def as_one_of(ranks: Ranks, asked: Mapping[str, object], first: Callable[[Joined], int]) -> int:
    """Train as one of several processes. `asked` is what must be the same on all; `first` is the first rank's work."""
    from onecard.train.meeting import Meeting
    from onecard.train.ranks import WITH_CARD, Joined, has_card

    global _has_met
    signals.check()  # torch has been imported
    same = {**asked, "onecard's code": _code(), "torch": version("torch"), "Python": platform.python_version()}
    meeting = Meeting(ranks, {WITH_CARD: has_card(), "same": {key: str(value) for key, value in same.items()}})
    _has_met = True
    _refuse_difference(meeting)
    processes = Joined(meeting)
    try:
        with processes.together():
            processes.connect()
            return _as_first(processes, first) if ranks.writes else _follow(processes)
    except OnecardError as error:
        if error.name != "rank-stopped":
            signals.forget()  # torchrun ends those that are left by a signal: what happened is told all the same
        raise


def _as_first(processes: Joined, first: Callable[[Joined], int]) -> int:
    try:
        code = first(processes)
    except OnecardError as error:
        with suppress(OnecardError):  # of another rank: this one's says more
            _end(processes, error.exit_code)
        raise
    _end(processes, code)
    return code


def _end(processes: Joined, code: int) -> None:
    """Tell the others, who wait, that all is written and what the exit code is."""
    if not processes.apart:
        processes.from_first({"ended": code})
        processes.leave()


def tell(processes: Joined, config: RunConfig, dataset: Dataset) -> None:
    """What the first rank has prepared; returns once all are ready."""
    told = {"config": config.model_dump(), "data": dataset.fingerprint, "computing": _computing(config)}
    processes.from_first(told)
    _agree(processes, None)


def _follow(processes: Joined) -> int:
    """A rank that neither prepares nor writes nor prints."""
    from onecard.train.loop import train

    told = processes.from_first()
    if "ended" not in told:
        config, dataset = _ready(processes, told)
        train(config, None, dataset, resume=False, processes=processes)
        told = processes.from_first()
    processes.leave()
    code: int = told["ended"]
    return code


def _ready(processes: Joined, told: Mapping[str, object]) -> tuple[RunConfig, Dataset]:
    """The run's config and data on this rank; an error of any rank ends all."""
    from onecard.config.schema import RunConfig

    config = RunConfig.model_validate(told["config"])
    problem: OnecardError | None = None
    os.environ.update(torch_environment(config, os.environ))
    try:
        computing = _computing(config)
        dataset = open_data(config)
        if dataset.fingerprint != told["data"]:
            problem = ConfigError(
                f"{dataset.path} holds other tokens than on the first rank",
                why=f"their fingerprint is {dataset.fingerprint} here and {told['data']} there",
                fix="copy the folder of that machine, or name one that both can read: --dataset=PATH",
                name="ranks-differ",
            )
        elif computing != told["computing"]:
            problem = ConfigError(
                f"it would compute in {computing}, and the first rank in {told['computing']}",
                why="ranks add up their gradients, so all must compute alike",
                fix="cards of one kind on every machine, or name what all can do: --dtype=float16",
                name="ranks-differ",
            )
    except OnecardError as error:
        problem = error
    _agree(processes, problem)
    return config, dataset


def _computing(config: RunConfig) -> str:
    """What this rank would compute in: `bfloat16 on cuda`."""
    from onecard.train.device import choose_device
    from onecard.train.precision import choose_precision

    precision = choose_precision(config, choose_device(config))
    return f"{str(precision.dtype).removeprefix('torch.')} on {precision.device_type}"


def _agree(processes: Joined, problem: OnecardError | None) -> None:
    """Raise the error of the lowest rank that has one, on all: the first rank reports it."""
    said = None
    if problem:
        said = {"what": problem.what, "why": problem.why, "fix": problem.fix, "name": problem.name}
        said["code"] = str(problem.exit_code)
    for rank, error in enumerate(processes.gathered(said)):
        if error:
            raise _of_rank(processes, rank, error)


def _of_rank(processes: Joined, rank: int, error: dict[str, str]) -> OnecardError:
    code = int(error.pop("code"))
    if not processes.ranks.writes:
        processes.from_first()  # which tells the user first
        return OfAnotherRank(code)
    error["what"] = f"{processes.meeting.named([rank])}: {error['what']}"
    found = OnecardError(**error)
    found.exit_code = code
    return found


def _refuse_difference(meeting: Meeting) -> None:
    """Refuse ranks that would not compute the same: other code, another torch, another config."""
    found = [said["same"] for said in meeting.said]
    for rank, theirs in enumerate(found):
        differ = [key for key in sorted(found[0].keys() | theirs.keys()) if found[0].get(key) != theirs.get(key)]
        if not differ:
            continue
        if not meeting.ranks.writes:
            raise OfAnotherRank(ConfigError.exit_code)
        said = [f"{key} is {theirs.get(key)} there and {found[0].get(key)} here" for key in differ[:_SHOWN]]
        raise ConfigError(
            f"{meeting.named([rank])} is not what {meeting.named([0])} is",
            why="; ".join(said) + ("; …" if len(differ) > _SHOWN else ""),
            fix="start the same command with the same files on every machine",
            name="ranks-differ",
        )


def _code() -> str:
    """A fingerprint of the package's source."""
    root = Path(onecard.__file__).parent
    found = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        found.update(f"{file.relative_to(root).as_posix()}\n".encode() + file.read_bytes())
    return f"{onecard.__version__} ({found.hexdigest()[:12]})"
