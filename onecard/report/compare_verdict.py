"""The verdict of a comparison: which run is better, why, and what to type next."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from shlex import quote

from onecard import units
from onecard.config.command import train_command
from onecard.doctor.case import Case
from onecard.doctor.compare import FINAL, SAME_TEXT, AtEqual, Comparison, Standing
from onecard.doctor.repair import next_folder, trainer_of
from onecard.report.compare_why import best_run, explained_run, main_cause, printed_mfu, why, why_mfu
from onecard.report.compare_words import (
    NO_DIFFERENCE,
    end_forecast,
    letters,
    place_words,
    progress_words,
    run_letter,
    short_name,
    standing_words,
)
from onecard.report.scores import with_error

MOST_LOSSES = 3  # runs named in a line
Line = tuple[str, str]  # a label and what it says


def verdict_lines(comparison: Comparison) -> Iterator[Line]:
    """Which run is better, its losses, where the runs end, speed, why, what to type next; then why the MFU changed."""
    yield "better", _better(comparison)
    if rows := [rows[-1] for rows in (comparison.at_equal_tokens, comparison.at_equal_seconds) if rows]:
        yield "loss", "; ".join(map(_losses_there, rows))
    if comparison.curves:
        yield "end", "; ".join(_ends(comparison))
    if speed := "; ".join(_speed(comparison)):
        yield "speed", speed
    yield "why", why(comparison)
    yield "next", _next(comparison)
    if mfu := why_mfu(comparison):
        yield "MFU", mfu
    if printed := printed_mfu(comparison):
        yield "" if mfu else "MFU", printed


def _better(comparison: Comparison) -> str:
    if comparison.tokens_differ and comparison.same_text:
        return _by_text(comparison)
    if comparison.measure is None:
        return "not known: the runs have no loss in common"
    if comparison.why_not_comparable:
        return comparison.why_not_comparable
    rows = (("at equal tokens", comparison.at_equal_tokens), ("at equal hours", comparison.at_equal_seconds))
    found = [(where, places[-1].standing) for where, places in rows if places]
    if not found:
        standing = comparison.standings[FINAL[comparison.measure]]
        if standing.undecided:
            return f"not decided: {standing_words(standing)}"
        return _named(comparison, standing) + (": lower last loss" if standing.beaten else "")
    words = list(dict.fromkeys(_named(comparison, standing) for _, standing in found))
    if len(words) == 1:
        everywhere = " and ".join(where for where, _ in found)
        return f"{words[0]}{': lower loss' if found[0][1].beaten else ''} {everywhere}"
    return "; ".join(f"{standing_words(standing)} {where}" for where, standing in found)


def _by_text(comparison: Comparison) -> str:
    """`B (runs/b): lower bits per byte of book.txt`, the scores best first."""
    text = comparison.same_text
    assert text
    order = sorted(range(len(text.scores)), key=lambda run: text.scores[run].bits_per_byte)
    scores = ", ".join(
        f"{run_letter(run)} {with_error(text.scores[run].bits_per_byte, text.scores[run].error)}"
        for run in order[:MOST_LOSSES]
    )
    standing = comparison.standings[SAME_TEXT]
    lower = ": lower" if standing.beaten else ":"
    return f"{_named(comparison, standing)}{lower} bits per byte of {text.name} ({scores})"


def _named(comparison: Comparison, standing: Standing) -> str:
    """The standing, a single winner with its source."""
    winner = standing.winner
    return standing_words(standing) + (
        f" ({short_name(comparison.cases[winner].run.source)})" if winner is not None else ""
    )


def _losses_there(row: AtEqual) -> str:
    """`at 5.77B tokens B 3.3366, A 3.6098`"""
    found = {run: reading.loss for run, reading in enumerate(row.readings) if reading}
    order = sorted(found, key=lambda run: found[run] if math.isfinite(found[run]) else math.inf)
    losses = ", ".join(f"{run_letter(run)} {found[run]:.4f}" for run in order[:MOST_LOSSES])
    return f"at {place_words(row)} {losses}"


def _ends(comparison: Comparison) -> Iterator[str]:
    """Where each run ended, or is and will end; runs that have not finished first."""
    order = sorted(range(len(comparison.cases)), key=lambda run: comparison.finished[run] is True)
    for run in order[: MOST_LOSSES + 1]:
        letter, loss = run_letter(run), comparison.curves[run].end.loss
        if comparison.finished[run]:
            yield f"{letter} ended at {loss:.4f}"
        elif forecast := end_forecast(comparison, run):
            place = progress_words(comparison, run)
            yield f"{letter} {loss:.4f} at {place}, predicted end {forecast}"
        else:
            place = progress_words(comparison, run)
            yield f"{letter} {loss:.4f} {f'at {place}' if place else 'so far (its end is not known)'}"


def _speed(comparison: Comparison) -> Iterator[str]:
    speeds = {run: v for run, case in enumerate(comparison.cases) if (v := case.facts.tokens_per_second) is not None}
    standing = comparison.standings.get("tokens_per_second")
    if standing:
        order = sorted(speeds, key=lambda run: -speeds[run])[: MOST_LOSSES + 1]
        first, *others = (f"{run_letter(run)} {speeds[run]:,.0f}" for run in order)
        verb = "is" if standing.winner is not None else "are"
        said = f"{letters(standing.best)} {verb} faster" if standing.beaten else NO_DIFFERENCE
        yield ", ".join([f"{said}: {first} tokens/s", *others])
    shares = [(run, case.facts.mfu) for run, case in enumerate(comparison.cases) if case.facts.mfu is not None]
    if shares:
        yield "MFU " + ", ".join(f"{run_letter(run)} {100 * mfu:.0f} %" for run, mfu in shares[: MOST_LOSSES + 1])


def _next(comparison: Comparison) -> str:
    """What to type next, and what for."""
    cases = comparison.cases
    paths = list(dict.fromkeys(case.run.source for case in cases))  # one file may hold several runs
    sources = " ".join(map(quote, paths))
    without = [case for case in cases if case.resolved is None]
    if any(case.run.format == "nanogpt" or not comparison.at_equal_tokens for case in without):
        named = " ".join(f"--config {run_letter(run)}.py" for run in range(len(paths)))
        return f"onecard compare {sources} {named}   (with the configs it says more)"
    if comparison.tokens_differ and not comparison.same_text and all(case.run.folder for case in cases):
        scored = " && ".join(f"onecard eval {quote(path)} --text FILE" for path in paths)
        return f"{scored}   (bits per byte of one text can be compared)"
    best = best_run(comparison)
    unfinished = _may_still_win(comparison, best)
    if unfinished is not None:
        return _let_finish(comparison, unfinished)
    if any(case.card is None and case.cardless is None and case.resolved is not None for case in cases):
        return f"onecard compare {sources} --gpu NAME   (the card gives MFU, and what each change does)"
    if best is None and comparison.at_equal_tokens:
        return "train one of them again with another seed: only a larger difference than that counts"
    if experiment := _experiment(comparison):
        return experiment
    run = 0 if best is None else best
    return f"{_doctor_command(cases[run])}   (what to change next in {run_letter(run)})"


def _may_still_win(comparison: Comparison, best: int | None) -> int | None:
    """The run to let finish: the best, else one whose forecast reaches below the best run's last loss."""
    going = [run for run, done in enumerate(comparison.finished) if done is False]
    going = [run for run in going if not (comparison.curves and comparison.curves[run].lost)]
    if best in going or not comparison.curves:
        return best if best in going else None
    lowest = min(curve.end.loss if not curve.lost else math.inf for curve in comparison.curves)
    forecasts = [(run, end_forecast(comparison, run)) for run in going]
    return next((run for run, forecast in forecasts if forecast and forecast.low < lowest), None)


def _let_finish(comparison: Comparison, run: int) -> str:
    case, forecast = comparison.cases[run], comparison.forecasts[run]
    letter = run_letter(run)
    rest = f"{case.facts.steps_to_go:,} updates"
    if forecast and forecast.seconds_to_go:
        rest = units.duration(forecast.seconds_to_go.likely)
    if case.run.format == "onecard":
        return f"onecard train --resume {quote(case.run.folder or case.run.source)}   (finish {letter}: {rest})"
    file = _config_file(case)
    if case.run.format == "nanogpt" and file:
        return f"python train.py {quote(file)} --init_from=resume   (finish {letter}: {rest})"
    how = "   (nanoGPT: --init_from=resume)" if case.run.format == "nanogpt" else ""
    return f"let {letter} finish: {rest}{how}"


def _config_file(case: Case) -> str | None:
    """The config as a command names it, a run folder for a onecard run; None where it is not a file."""
    if case.run.folder:
        return case.run.folder
    source = case.resolved.source if case.resolved else None
    return None if source in (None, case.run.source, "standard input") else source


def _experiment(comparison: Comparison) -> str | None:
    """The run that would show which of several changes did it; None where a prediction explains it."""
    other = explained_run(comparison)
    effects = [
        effect
        for effect in comparison.single_changes.get(other, ())
        if effect.changes.keys() & set(comparison.together)
    ]
    file = _config_file(comparison.cases[0])
    if len(effects) < 2 or file is None or main_cause(comparison, effects, other):
        return None
    first = comparison.cases[0]
    assert first.resolved
    patch = {key: after for key, (_, after) in effects[0].named.items()}
    patch["out_dir"] = next_folder(first, first.resolved.config)
    command = train_command(file, patch, trainer=trainer_of(first))
    return f"{command}   (A with one change)"


def _doctor_command(case: Case) -> str:
    words = ["onecard doctor", quote(case.run.source)]
    log = Path(case.run.source)
    file = _config_file(case)
    if file and case.run.format != "onecard" and Path(file) != log.with_name(f"{log.stem}.config.py"):
        words += ["--config", quote(file)]
    if case.card and case.run.format != "onecard":
        words += ["--gpu", quote(case.card.name)]
    return " ".join(words)
