"""The verdict of a comparison: which run is better, why, and what to type next."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from shlex import quote

from onecard import units
from onecard.config.schema import SHAPE_KEYS
from onecard.config.shown import shown
from onecard.doctor.alone import NOT_COVERED, Alone
from onecard.doctor.case import Case
from onecard.doctor.compare import FINAL, AtEqual, Comparison, Standing
from onecard.doctor.repair import next_folder, trainer_of
from onecard.doctor.rules.speed import NANOGPT_PEAK_FLOPS
from onecard.plan.command import train_command
from onecard.plan.ranges import Range

MEASURES = {
    "val_loss": "validation loss",
    "bits_per_byte": "validation, bits per byte",
    "train_loss": "training loss",
}
NO_DIFFERENCE = "no difference within noise"
MOST_LOSSES = 3  # runs named in a line
LONGEST_NAME = 48  # characters of a path; of a longer one its end is shown
LEAST_MFU_CHANGE = 0.01  # share of the MFU below which a change is not named
LEAST_LOSS_CHANGE = 0.005  # nats
NEAR_A100 = 0.1  # a card with this peak or nearly: nanoGPT's own MFU is right
Line = tuple[str, str]  # a label and what it says
# What a larger and a smaller value of a key are called.
CHANGED = {
    "n_embd": ("the wider model", "the narrower model"),
    "n_layer": ("the deeper model", "the shallower model"),
    "block_size": ("the longer context", "the shorter context"),
    "batch_size": ("the larger micro-batch", "the smaller micro-batch"),
    "dropout": ("more dropout", "less dropout"),
    "compile": ("torch.compile", "no torch.compile"),
}
# Why a larger and a smaller value of a key move the MFU, for the change that moved it most.
MFU_REASONS = {
    "n_embd": (
        "wider matrices (n_embd) run the card closer to its peak",
        "narrower matrices (n_embd) use less of the card",
    ),
    "batch_size": (
        "the larger micro-batch (batch_size) keeps the card busier",
        "the smaller micro-batch (batch_size) gives the card less to do at a time",
    ),
    "compile": (
        "torch.compile fuses kernels, so the card waits less for memory",
        "without torch.compile the card waits for memory and launches",
    ),
}


def run_letter(run: int) -> str:
    """A, B, … Z, then R26, R27: a run's name in a table."""
    return chr(ord("A") + run) if run < 26 else f"R{run}"


def short_name(name: str, most: int = LONGEST_NAME) -> str:
    """A name, or the end of a long one, where paths differ."""
    return name if len(name) <= most else "…" + name[1 - most :]


def letters(runs: Sequence[int]) -> str:
    """`A, C`"""
    return ", ".join(map(run_letter, runs))


def standing_words(standing: Standing) -> str:
    """`A`; `A, B (over C)` where A and B tie; that there is no difference; or that it is not decided yet."""
    if standing.undecided:
        return f"{letters(standing.best)} so far; {letters(standing.undecided)} may still go on"
    if not standing.beaten:
        return NO_DIFFERENCE
    over = "" if standing.winner is not None else f" (over {letters(standing.beaten)})"
    return letters(standing.best) + over


def range_words(loss: Range) -> str:
    """`3.33 (3.26 to 3.39)`"""
    return f"{loss.likely:.2f} ({loss.low:.2f} to {loss.high:.2f})"


def change_words(effect: Alone) -> str:
    """`batch_size 16 → 8, gradient_accumulation_steps 32 → 64`"""
    changes = effect.changes.items()
    return ", ".join(f"{key} {shown(key, before)} → {shown(key, after)}" for key, (before, after) in changes)


def progress_words(comparison: Comparison, run: int) -> str:
    """`update 11,000 of 12,000 (max_hours)` of a run that has not finished; "" of others and where nobody knows."""
    case = comparison.cases[run]
    to_go, last = case.facts.steps_to_go, case.facts.last_step
    if comparison.finished[run] is not False or to_go is None or last is None:
        return ""
    why = f" ({case.end.reason})" if case.end else ""
    return f"update {last:,} of {last + to_go:,}{why}"


def verdict_lines(comparison: Comparison) -> Iterator[Line]:
    """Which run is better, its losses, where the runs end, speed, why, what to type next; then why the MFU changed."""
    yield "better", _better(comparison)
    if rows := [rows[-1] for rows in (comparison.at_equal_tokens, comparison.at_equal_seconds) if rows]:
        yield "loss", "; ".join(map(_losses_there, rows))
    if comparison.curves:
        yield "end", "; ".join(_ends(comparison))
    if speed := "; ".join(_speed(comparison)):
        yield "speed", speed
    yield "why", _why(comparison)
    yield "next", _next(comparison)
    if mfu := _why_mfu(comparison):
        yield "MFU", mfu
    if printed := _printed_mfu(comparison):
        yield "" if mfu else "MFU", printed


def _better(comparison: Comparison) -> str:
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


def place_words(row: AtEqual) -> str:
    """`5.77B tokens`, `21.7 h`"""
    return f"{units.count(row.place)} tokens" if row.axis == "tokens" else units.duration(row.place)


def _ends(comparison: Comparison) -> Iterator[str]:
    """Where each run ended, or is and will end; runs that have not finished first."""
    order = sorted(range(len(comparison.cases)), key=lambda run: comparison.finished[run] is True)
    for run in order[: MOST_LOSSES + 1]:
        letter, loss = run_letter(run), comparison.curves[run].end.loss
        if comparison.finished[run]:
            yield f"{letter} ended at {loss:.4f}"
        elif forecast := end_forecast(comparison, run):
            place = progress_words(comparison, run)
            yield f"{letter} {loss:.4f} at {place}, predicted end {range_words(forecast)}"
        else:
            place = progress_words(comparison, run)
            yield f"{letter} {loss:.4f} {f'at {place}' if place else 'so far (its end is not known)'}"


def end_forecast(comparison: Comparison, run: int) -> Range | None:
    """The predicted final loss of a run that has not finished, where it is the loss that is compared."""
    forecast = comparison.forecasts[run]
    if comparison.finished[run] is not False or comparison.measure != "val_loss" or forecast is None:
        return None
    return None if comparison.curves[run].lost else forecast.final_loss


def _speed(comparison: Comparison) -> Iterator[str]:
    speeds = {run: v for run, case in enumerate(comparison.cases) if (v := case.facts.tokens_per_second) is not None}
    standing = comparison.standings.get("tokens_per_second")
    if standing:
        order = sorted(speeds, key=lambda run: -speeds[run])
        fastest = f"{speeds[order[0]]:,.0f} tokens/s against {speeds[order[1]]:,.0f}"
        winner = standing.winner
        yield f"{run_letter(winner)} is faster: {fastest}" if winner is not None else f"{NO_DIFFERENCE}: {fastest}"
    shares = [(run, case.facts.mfu) for run, case in enumerate(comparison.cases) if case.facts.mfu is not None]
    if shares:
        yield "MFU " + ", ".join(f"{run_letter(run)} {100 * mfu:.0f} %" for run, mfu in shares[: MOST_LOSSES + 1])


def _pair(comparison: Comparison) -> int:
    """The run whose changes from A are explained: the best by loss, else the fastest, else B."""
    for metric in ("at_equal_tokens", "at_equal_seconds", "tokens_per_second"):
        if winner := comparison.winners.get(metric):
            return winner
    return 1


def _why(comparison: Comparison) -> str:
    """The change that is predicted to explain most of the difference, by itself."""
    if not comparison.config_diff:
        known = all(case.resolved is not None for case in comparison.cases)
        return "no setting differs: only seed, data order and noise" if known else "not known without the configs"
    other = _pair(comparison)
    effects = comparison.alone.get(other, ())
    if cause := _main_cause(comparison, effects, other):
        return f"{change_words(cause)}: alone, predicted {', '.join(_effect_words(cause))}"
    if not comparison.together:
        return "no setting that differs has an effect"
    changed = units.listed(comparison.together)
    if _best(comparison) is None:
        return f"changed: {changed}" + ("" if comparison.why_not_comparable else "; no difference beyond noise")
    if uncovered := [effect for effect in effects if effect.why_no_loss]:
        keys = " or ".join(_direction(effect)[0] for effect in uncovered)
        return f"perhaps {keys} (no prediction: {_why_no_loss(uncovered)})"
    return f"changed: {changed}; the predictions do not explain it"


def _why_no_loss(effects: Sequence[Alone]) -> str:
    """That scaling laws do not cover what changed; other reasons are long, and in the details."""
    if all(effect.why_no_loss.startswith(NOT_COVERED) for effect in effects):
        return f"{NOT_COVERED} {'it' if len(effects) == 1 else 'them'}"
    return "--details says why"


def _main_cause(comparison: Comparison, effects: Sequence[Alone], other: int) -> Alone | None:
    """The change of shape that is predicted to move the loss most, the way it was measured; else the one that moves
    the speed most."""
    winner = comparison.winners.get("at_equal_tokens")
    losses = {
        number: effect.final_loss_difference * (-1 if winner == other else 1)
        for number, effect in enumerate(effects)
        if effect.changes.keys() & set(SHAPE_KEYS) and effect.final_loss_difference is not None
    }
    if winner is not None and losses and max(losses.values()) > LEAST_LOSS_CHANGE:
        return effects[max(losses, key=lambda number: losses[number])]
    faster = comparison.winners.get("tokens_per_second")
    speeds = {
        number: math.log(effect.tokens_per_second_ratio) * (1 if faster == other else -1)
        for number, effect in enumerate(effects)
        if effect.tokens_per_second_ratio
    }
    if faster is not None and speeds and max(speeds.values()) > LEAST_MFU_CHANGE:
        return effects[max(speeds, key=lambda number: speeds[number])]
    return None


def _effect_words(effect: Alone) -> Iterator[str]:
    """`loss -0.348`, `tokens/s -56 %`, `MFU 68 → 85 %`"""
    if effect.final_loss_difference:
        yield f"loss {effect.final_loss_difference:+.3f}"
    if effect.tokens_per_second_ratio is not None:
        yield f"tokens/s {100 * (effect.tokens_per_second_ratio - 1):+.0f} %"
    if effect.mfu:
        yield mfu_change_words(effect.mfu)


def mfu_change_words(mfu: tuple[float, float]) -> str:
    """`MFU 68 → 85 %`"""
    return f"MFU {100 * mfu[0]:.0f} → {100 * mfu[1]:.0f} %"


def _why_mfu(comparison: Comparison) -> str:
    """Why the MFU of the run rose or fell against A's, by what is predicted of each change; "" where it did not."""
    other, winner = _pair(comparison), comparison.winners.get("mfu")
    if winner is None or other not in comparison.alone or len(comparison.cases) > 2:
        return ""
    rose = winner == other
    moves = [
        (math.log(effect.mfu[1] / effect.mfu[0]), effect)
        for effect in comparison.alone[other]
        if effect.mfu and min(effect.mfu) > 0
    ]
    ordered = sorted((move for move in moves if abs(move[0]) >= LEAST_MFU_CHANGE), key=lambda move: -abs(move[0]))
    along = [effect for move, effect in ordered if (move > 0) == rose]
    against = [effect for move, effect in ordered if (move > 0) != rose]
    if not along:
        return ""
    key, larger = _direction(along[0])
    reasons = MFU_REASONS.get(key)
    moved = ("raised", "lowered") if rose else ("lowered", "raised")
    said = reasons[not larger] if reasons else f"{change_words(along[0])} {moved[0]} it"
    return said + (f"; {_change_name(against[0])} {moved[1]} it" if against else "")


def _direction(effect: Alone) -> tuple[str, bool]:
    """The key that names a change, and whether its value grew."""
    for key in (*CHANGED, *effect.changes):
        if key in effect.changes:
            before, after = effect.changes[key]
            grew = isinstance(before, int | float) and isinstance(after, int | float) and after > before
            return key, grew
    raise AssertionError("a change has a key")


def _change_name(effect: Alone) -> str:
    key, larger = _direction(effect)
    return CHANGED[key][not larger] if key in CHANGED else change_words(effect)


def _printed_mfu(comparison: Comparison) -> str:
    """The highest MFU that nanoGPT's logs print, and of which card that is; "" where it is of the right one.

    nanoGPT prints a running mean that evaluations pull down, so the highest is nearest to the speed of updates.
    """
    cases = comparison.cases
    printed = [_highest_printed_mfu(case) for case in cases]
    if any(case.run.format != "nanogpt" or case.cardless for case in cases) or None in printed:
        return ""
    peaks = {case.card.peak_flops if case.card else None for case in cases}
    said = f"the logs printed {_shares(printed, 1)}, of an A100's {NANOGPT_PEAK_FLOPS / 1e12:.0f} TFLOP/s"
    if len(peaks) != 1 or (peak := peaks.pop()) is None:
        return f"{said}, whatever the card; --gpu NAME gives the true share"
    if abs(peak / NANOGPT_PEAK_FLOPS - 1) < NEAR_A100:
        return ""
    true = [case.facts.mfu for case in cases]
    return said if None in true else f"{said}: {_shares(true, 0)} of this card"


def _highest_printed_mfu(case: Case) -> float | None:
    printed = (step.more.get("printed_mfu") for step in case.steps)
    return max((mfu for mfu in printed if isinstance(mfu, float) and mfu > 0), default=None)


def _shares(shares: Sequence[float | None], digits: int) -> str:
    return units.listed(f"{100 * (share or 0):.{digits}f} %" for share in shares)


def _next(comparison: Comparison) -> str:
    """What to type next, and what for."""
    cases = comparison.cases
    paths = list(dict.fromkeys(case.run.source for case in cases))  # one file may hold several runs
    sources = " ".join(map(quote, paths))
    without = [case for case in cases if case.resolved is None]
    if any(case.run.format == "nanogpt" or not comparison.at_equal_tokens for case in without):
        named = " ".join(f"--config {run_letter(run)}.py" for run in range(len(paths)))
        return f"onecard compare {sources} {named}   (with the configs it says more)"
    best = _best(comparison)
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


def _best(comparison: Comparison) -> int | None:
    """The best run by loss: at equal tokens, else at equal hours, else by last losses."""
    metrics = ("at_equal_tokens", "at_equal_seconds", FINAL.get(comparison.measure) if comparison.measure else None)
    found = (comparison.winners.get(metric) for metric in metrics if metric in comparison.winners)
    return next((winner for winner in found if winner is not None), None)


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
    other = _pair(comparison)
    effects = [effect for effect in comparison.alone.get(other, ()) if effect.changes.keys() & set(comparison.together)]
    file = _config_file(comparison.cases[0])
    if len(effects) < 2 or file is None or _main_cause(comparison, effects, other):
        return None
    first = comparison.cases[0]
    assert first.resolved
    patch = {key: after for key, (_, after) in effects[0].changes.items()}
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
