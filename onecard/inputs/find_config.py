"""The config that a log was made with, where nobody names it: looked for beside the log and in config/.

A file is taken if the log says so: its out_dir is where the log saves checkpoints (or the folder the log is in), or its
model has the parameters that the log prints. A file that contradicts the log is not taken, nor one of several that fit
equally. Files are read, never run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from onecard.config.reader import MAX_FILE_BYTES
from onecard.errors import OnecardError
from onecard.inputs.nearby import is_config

if TYPE_CHECKING:
    from onecard.config.resolve import Resolved
    from onecard.runs.logged import LoggedRun

MOST_FILES = 200  # looked at in each folder
MOST_NAMED = 4  # of several that fit
FORMATS = ("nanogpt", "minimal", "messages")  # logs of trainers that read such a config


@dataclass(frozen=True, kw_only=True)
class Found:
    """The file that was found, and why it; or no file, and why none."""

    path: str | None
    why: str


@dataclass(frozen=True, kw_only=True)
class _Fit:
    """How a file goes with a log."""

    path: str
    text: str
    reasons: tuple[str, ...]  # for it, the best first
    against: str  # what in the log contradicts it; "" if nothing
    weight: tuple[bool, bool, bool]


def find_config(log: Path, runs: Sequence[LoggedRun]) -> Found | None:
    """The config of a log; None where nothing fits it, or where it needs none because it repeats its config."""
    if not any(run.format in FORMATS and not run.config_source for run in runs):
        return None
    fits = [fit for path in _candidates(log) if (fit := _fit(path, log, runs))]
    able = [fit for fit in fits if not fit.against]
    best = [fit for fit in able if fit.weight == max(each.weight for each in able)]
    if len({fit.text for fit in best}) == 1:
        return Found(path=best[0].path, why=f"found: {' and '.join(best[0].reasons)}")
    if best:
        named = [f"--config {quote(fit.path)}" for fit in best[:MOST_NAMED]]
        more = f" (and {len(best) - MOST_NAMED} more)" if len(best) > MOST_NAMED else ""
        return Found(path=None, why=f"{len(best)} files fit this log equally: {' or '.join(named)}{more}")
    if fits:
        fit = max(fits, key=lambda fit: fit.weight)
        why = f"not {fit.path}, though {fit.reasons[0]}: {fit.against}; to take it: --config {quote(fit.path)}"
        return Found(path=None, why=why)
    return None


def _candidates(log: Path) -> Iterator[str]:
    """Files beside the log, in config/ beside it and one level above, and in ./config; each once."""
    seen: set[Path] = set()
    for folder in (log.parent, log.parent / "config", log.parent / ".." / "config", Path("config")):
        try:
            names = sorted(entry.name for entry in os.scandir(folder) if entry.name.endswith(".py"))[:MOST_FILES]
        except (OSError, ValueError):
            continue
        for name in names:
            path = folder / name
            try:
                if path.resolve() in seen or not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
                    continue
                seen.add(path.resolve())
            except (OSError, RuntimeError):
                continue
            yield os.path.normpath(path)


def _fit(path: str, log: Path, runs: Sequence[LoggedRun]) -> _Fit | None:
    """How a file goes with the runs of a log; None for one that is not a config, or that nothing connects with it."""
    from onecard.inputs.config import config_as_typed
    from onecard.inputs.text import read_text

    try:
        text = read_text(Path(path))
        if not is_config(text):  # train.py, which sets all keys, is a program
            return None
        resolved = config_as_typed(path, [])
    except (OnecardError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    fits = [_fit_with(run, path, text, resolved, log) for run in runs if run.format in FORMATS]
    able = [fit for fit in fits if fit]
    return max(able, key=lambda fit: (not fit.against, fit.weight), default=None)


def _fit_with(run: LoggedRun, path: str, text: str, resolved: Resolved, log: Path) -> _Fit | None:
    from onecard.doctor.config_in_log import config_under_log
    from onecard.doctor.facts import ROUNDED_PARAMS
    from onecard.plan.counts import count_params
    from onecard.units import count

    ran = config_under_log(resolved, run).config
    stated = resolved.origins["out_dir"] != "default"
    by_folder = stated and _same_folder(ran.out_dir, _saved_in(run) or log.absolute().parent.name)
    params = count_params(ran).nanogpt
    by_params = run.printed_params is not None and abs(params - run.printed_params) <= ROUNDED_PARAMS
    by_tokens = run.printed_tokens_per_step == ran.tokens_per_step
    if not by_folder and not by_params:
        return None
    reasons = []
    if by_folder:
        reasons.append("its out_dir is the log's")
    if by_params:
        reasons.append(f"its model has the log's {count(params)} parameters")
    return _Fit(
        path=path,
        text=text,
        reasons=tuple(reasons),
        against=contradiction(run, resolved),
        weight=(by_folder, by_params, by_tokens),
    )


def _saved_in(run: LoggedRun) -> str | None:
    """The folder that the log says it saves checkpoints in."""
    from onecard.runs.records import Checkpoint

    return next((record.path for record in reversed(run.records) if isinstance(record, Checkpoint)), None)


def _same_folder(one: str, other: str) -> bool:
    return os.path.normpath(one) == os.path.normpath(other) or (
        "/" not in other.strip("/") and Path(one).name == other.strip("/")
    )


def contradiction(run: LoggedRun, resolved: Resolved) -> str:
    """What the log of a run shows that this config cannot have made; "" where there is nothing."""
    return next(_contradictions(run, resolved), "")


def _contradictions(run: LoggedRun, resolved: Resolved) -> Iterator[str]:
    """What the log shows that this config cannot have made."""
    from onecard.doctor.config_in_log import config_under_log
    from onecard.doctor.facts import ROUNDED_PARAMS
    from onecard.plan.counts import count_params
    from onecard.runs.records import Eval, Step
    from onecard.units import count

    ran = config_under_log(resolved, run).config
    params, tokens = run.printed_params, run.printed_tokens_per_step
    if params is not None and abs(count_params(ran).nanogpt - params) > ROUNDED_PARAMS:
        yield f"it makes {count(count_params(ran).nanogpt)} parameters, the log has {count(params)}"
    if tokens is not None and tokens not in (ran.tokens_per_step, ran.tokens_per_step * (run.world_size or 1)):
        yield f"it makes {ran.tokens_per_step:,} tokens per update, the log has {tokens:,}"
    if run.format != "nanogpt" or not run.steps_told:
        return
    steps = [record.step for record in run.records if isinstance(record, Step)]
    evaluated = [record.step for record in run.records if isinstance(record, Eval)]
    if max([*steps, *evaluated], default=0) > ran.max_iters:
        yield f"it ends at step {ran.max_iters:,}, the log goes to {max([*steps, *evaluated]):,}"
    if any(step % ran.eval_interval for step in evaluated):
        yield f"it evaluates every {ran.eval_interval:,} steps, the log does not"
    if ran.log_interval and any(step % ran.log_interval for step in steps):
        yield f"it logs every {ran.log_interval:,} steps, the log does not"
