"""What follows from a run's records, its config and its card; None where nothing does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import TypeVar

from onecard import units
from onecard.config.resolve import Resolved
from onecard.doctor.case import Case, DataSizes, Facts
from onecard.doctor.config_in_log import card_in_log, config_in_log, config_under_log
from onecard.doctor.noise import evaluation_noise, sampling_error, validation
from onecard.plan.cards import Card
from onecard.plan.counts import count_params, flops_per_token
from onecard.runs.logged import LoggedRun
from onecard.runs.records import Eval, Start, Step

ROUNDED_PARAMS = 5_001  # nanoGPT prints millions with two decimals
NANOGPT_PEAK_FLOPS = 312e12  # an A100's, by which nanoGPT divides whatever the card (estimate_mfu)
# Of the peak, without the pairs that causal attention skips: no run is faster. The fastest measured one is at 0.77, on
# an RTX 4070 that boosts a tenth above its published clock; laptops and overclocked cards reach 15 % above theirs, and
# a wider model spends a little more of its time in products. A fifth above the fastest leaves room for both.
LARGEST_SHARE = 0.93
USUAL_NUMBERS = (2, 3, 4, 6, 8, 16)  # of cards in a run


def make_case(
    run: LoggedRun,
    *,
    config: Resolved | None,
    card: Card | None,
    data: DataSizes,
    other_bytes: int | None = None,
    next_folder: str | None = None,
) -> Case:
    """Everything a rule may look at. What the log states wins over the config file, which wins over defaults.

    `other_bytes` of the card are held by other programs, None where nobody said; `next_folder` is free for a new run.
    """
    resolved = config_under_log(config, run) if config else config_in_log(run)
    card = card or card_in_log(run)
    cardless = _without_card(run, resolved)
    tokens_per_step = _tokens_per_step(run, resolved)
    run = _with_cards(run, resolved, card)
    each = tokens_per_step if run.steps_told else None
    steps = tuple(_with_tokens(r, each) for r in run.records if isinstance(r, Step) and _possible(r))
    evals = tuple(_with_tokens(r, each) for r in run.records if isinstance(r, Eval) and _possible(r))
    made = Case(
        run=run,
        resolved=resolved,
        card=card,
        data=_data_sizes(run, said=data),
        facts=_facts(
            run,
            resolved,
            card if cardless is None else None,
            steps=steps,
            evals=evals,
            tokens_per_step=tokens_per_step,
        ),
        steps=steps,
        evals=evals,
        other_bytes=other_bytes,
        next_folder=next_folder,
        cardless=cardless,
    )
    if config is None or made.facts.too_fast is None or _agrees(run, config):
        return made
    bare = make_case(run, config=None, card=card, data=data, other_bytes=other_bytes, next_folder=next_folder)
    facts = replace(bare.facts, mfu=None, too_fast=made.facts.too_fast)
    return replace(bare, facts=facts, rejected=config.source or "the config")


def _agrees(run: LoggedRun, config: Resolved) -> bool:
    """Whether the log prints the parameters and the tokens per update of a config."""
    printed, tokens = run.printed_params, config.config.tokens_per_step
    same_size = printed is not None and abs(count_params(config.config).nanogpt - printed) <= ROUNDED_PARAMS
    return run.format == "onecard" or (
        same_size and run.printed_tokens_per_step in (tokens, tokens * (run.world_size or 1))
    )


def _without_card(run: LoggedRun, resolved: Resolved | None) -> str | None:
    """`cpu` or `mps` of a run that had no card, as it recorded or else as its config says; None of others."""
    devices = [record.device for record in run.records if isinstance(record, Start)]
    device = devices[-1] if devices else resolved.config.device if resolved else None
    return device if device in ("cpu", "mps") else None


def _data_sizes(run: LoggedRun, *, said: DataSizes) -> DataSizes:
    """The sizes that were stated, else those that a run of ours recorded when it last began."""
    train, val = said.train_tokens, said.val_tokens
    for start in reversed([record for record in run.records if isinstance(record, Start)]):
        train = start.train_tokens if train is None else train
        val = start.val_tokens if val is None else val
    return replace(said, train_tokens=train, val_tokens=val)


def _tokens_per_step(run: LoggedRun, resolved: Resolved | None) -> int | None:
    if run.printed_tokens_per_step:
        return run.printed_tokens_per_step
    return resolved.config.tokens_per_step if resolved else None


R = TypeVar("R", Step, Eval)


def _possible(record: Step | Eval) -> bool:
    """Whether a record can be of a run: none is before its beginning."""
    return record.step >= 0 and (record.tokens or 0) >= 0


def _with_tokens(record: R, tokens_per_step: int | None) -> R:
    if record.tokens is not None or tokens_per_step is None:
        return record
    return replace(record, tokens=record.step * tokens_per_step)


def _facts(
    run: LoggedRun,
    resolved: Resolved | None,
    card: Card | None,
    *,
    steps: Sequence[Step],
    evals: Sequence[Eval],
    tokens_per_step: int | None,
) -> Facts:
    params, params_total = _params(run, resolved)
    times = step_times(run, resolved, steps, evals)
    records: tuple[Step | Eval, ...] = (*steps, *evals)
    evaluating = sum(record.seconds or 0.0 for record in evals)
    seconds_per_step = median(times.plain) if times.plain else _stated_seconds_per_step(run, records, evaluating)
    tokens_per_second = _tokens_per_second(steps, tokens_per_step, seconds_per_step)
    flops_per_token = _flops_per_token(run, resolved, params)
    cards = None if run.world_size is None and _several(run) else run.world_size or 1
    mfu = None
    if tokens_per_second and flops_per_token and card and card.peak_flops and cards:
        mfu = flops_per_token * tokens_per_second / (card.peak_flops * cards)
    flops = _needed_flops(run, resolved, flops_per_token) * (tokens_per_second or 0.0)
    too_fast = _too_fast(flops, card, cards)
    if too_fast:
        mfu = None
        tokens_per_second = tokens_per_second if run.printed_tokens_per_step else None
    last_step = max((record.step for record in records), default=None) if run.steps_told else None
    evaluation_seconds = median(times.evaluations) if times.evaluations else None
    seconds = _seconds(run, records, last_step, seconds_per_step, evaluating)
    validated = [record for record in evals if validation(record) is not None]
    finite = [record for record in validated if math.isfinite(validation(record) or 0.0)]
    steps_to_go = _steps_to_go(run, resolved, last_step)
    return Facts(
        params=params,
        params_total=params_total,
        tokens_per_step=tokens_per_step,
        seconds_per_step=seconds_per_step,
        seconds_per_micro_batch=_per_micro_batch(run, resolved, seconds_per_step),
        tokens_per_second=tokens_per_second,
        mfu=mfu,
        too_fast=too_fast,
        cards=cards,
        printed_mfu=median(times.printed_mfu) if times.printed_mfu else None,
        evaluation_seconds=evaluation_seconds,
        evaluation_share=_share(evaluation_seconds, evals, seconds),
        evaluation_noise=evaluation_noise(evals),
        sampling_error=sampling_error(evals),
        last_step=last_step,
        tokens=_tokens(records, last_step, tokens_per_step),
        seconds=seconds,
        steps_to_go=steps_to_go,
        seconds_to_go=steps_to_go * seconds_per_step if steps_to_go is not None and seconds_per_step else None,
        best_val=min(finite, key=lambda record: validation(record) or 0.0, default=None),
        last_val=validated[-1] if validated else None,
    )


def _params(run: LoggedRun, resolved: Resolved | None) -> tuple[int | None, int | None]:
    """Parameters without position embeddings, and all: exact where the config agrees with what was printed."""
    counted = count_params(resolved.config) if resolved else None
    printed, total = run.printed_params, run.printed_params_total
    if counted and printed is not None and abs(counted.nanogpt - printed) > ROUNDED_PARAMS:
        return printed, total  # another model ran than the config describes
    if counted and total is not None and counted.total != total:
        return printed, total
    return (counted.nanogpt, counted.total) if counted else (printed, total)


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """Seconds of plain steps and of evaluations with their checkpoints, and the MFU printed with plain steps."""

    plain: tuple[float, ...]
    evaluations: tuple[float, ...]
    printed_mfu: tuple[float, ...]


def step_times(run: LoggedRun, resolved: Resolved | None, steps: Sequence[Step], evals: Sequence[Eval]) -> StepTimes:
    """Times that mean something: without the first step, which compiles, and apart where nanoGPT's time has both."""
    timed = _timed(steps)
    plain = plain_steps(run, resolved, steps, evals)
    without_eval = {step.step for step in plain}
    with_eval = {step.step for step in timed if step.step not in without_eval}
    usual = median([step.seconds or 0 for step in plain]) if plain else None
    evaluations = [record.seconds for record in evals if record.seconds is not None]
    if usual is not None:
        evaluations += [
            max(0.0, step.seconds - usual) for step in timed if step.step in with_eval and step.seconds is not None
        ]
    printed = [mfu for step in plain if isinstance(mfu := step.more.get("printed_mfu"), float) and mfu > 0]
    return StepTimes(
        plain=tuple(step.seconds or 0 for step in plain),
        evaluations=tuple(evaluations),
        printed_mfu=tuple(printed),
    )


def plain_steps(run: LoggedRun, resolved: Resolved | None, steps: Sequence[Step], evals: Sequence[Eval]) -> list[Step]:
    """Updates with a time of their own: without the first, and without those whose time has an evaluation in it."""
    mixed = run.format == "nanogpt"
    interval = _eval_interval(run, resolved, evals) if mixed else None
    evaluated = {record.step for record in evals} if mixed else set()
    return [s for s in _timed(steps) if s.step not in evaluated and not (interval and s.step % interval == 0)]


def _timed(steps: Sequence[Step]) -> list[Step]:
    timed = [step for step in steps if step.seconds is not None and 0 < step.seconds < math.inf]
    return timed[1:] or timed


def _eval_interval(run: LoggedRun, resolved: Resolved | None, evals: Sequence[Eval]) -> int | None:
    """Updates between evaluations: as configured, else what divides the steps that were evaluated."""
    if resolved and resolved.origins["eval_interval"] != "default":
        return resolved.config.eval_interval
    evaluated = sorted({record.step for record in evals})
    # the last evaluation of a run often stands off the grid
    distances = [later - earlier for earlier, later in pairwise(evaluated)]
    return math.gcd(*(distances[:-1] or distances)) or None if distances else None


def _tokens_per_second(
    steps: Sequence[Step], tokens_per_step: int | None, seconds_per_step: float | None
) -> float | None:
    if tokens_per_step and seconds_per_step:
        return tokens_per_step / seconds_per_step
    printed = [step.tokens_per_second for step in steps[1:] if step.tokens_per_second]
    return median(printed) if printed else None


def _flops_per_token(run: LoggedRun, resolved: Resolved | None, params: int | None) -> float | None:
    """Forward and backward for one token: 6·N + 12·L·C·T (PaLM appendix B), or as the program itself printed."""
    if run.printed_flops_per_token:
        return run.printed_flops_per_token
    if resolved and params == count_params(resolved.config).nanogpt:
        return flops_per_token(resolved.config)
    config: Mapping[str, object] = resolved.config.model_dump() if resolved else run.config
    L, C, T = (config.get(key) for key in ("n_layer", "n_embd", "block_size"))
    if params is None or not (isinstance(L, int) and isinstance(C, int) and isinstance(T, int)):
        return None
    return 6 * params + 12 * L * C * T


def _needed_flops(run: LoggedRun, resolved: Resolved | None, flops_per_token: float | None) -> float:
    """The fewest FLOPs that one token needs: causal attention computes half the pairs that MFU counts. 0: not known."""
    config: Mapping[str, object] = resolved.config.model_dump() if resolved else run.config
    sizes = [config.get(key) for key in ("n_layer", "n_embd", "block_size")]
    skipped = 6 * math.prod(size for size in sizes if isinstance(size, int))
    return max(0.0, (flops_per_token or 0.0) - skipped)


def _too_fast(flops: float, card: Card | None, cards: int | None) -> str | None:
    """That no such card is as fast as the log; None where it may be."""
    if not (card and card.peak_flops and cards) or flops <= LARGEST_SHARE * card.peak_flops * cards:
        return None
    those = f"{cards} of {card.name} have" if cards > 1 else f"one {card.name} has"
    return f"the speed in the log takes {units.flops(flops)}, and {those} {units.flops(card.peak_flops * cards)}"


def _several(run: LoggedRun) -> bool:
    """Whether several processes were started, and nothing says how many."""
    return any(message.kind == "several-processes" for message in run.messages)


def _with_cards(run: LoggedRun, resolved: Resolved | None, card: Card | None) -> LoggedRun:
    """The run with its number of cards: as recorded, or as a nanoGPT log shows it, whose tokens are those of all cards
    and its MFU that of one. A program that divides by the card's own peak shows nothing."""
    recorded = [start.cards for start in run.records if isinstance(start, Start) and start.cards]
    if recorded and run.world_size is None:
        return replace(run, world_size=recorded[-1])
    if (
        run.world_size is not None
        or run.format != "nanogpt"
        or not (run.printed_params and run.printed_tokens_per_step)
    ):
        return run
    steps = [record for record in run.records if isinstance(record, Step) and _possible(record)]
    times = step_times(run, resolved, steps, [record for record in run.records if isinstance(record, Eval)])
    flops = _flops_per_token(run, resolved, _params(run, resolved)[0])
    if not times.plain or not times.printed_mfu or not flops:
        return run
    all_cards = flops * run.printed_tokens_per_step / median(times.plain)
    ratio = all_cards / (max(times.printed_mfu) * NANOGPT_PEAK_FLOPS)
    own = (card.peak_flops or 0.0) / NANOGPT_PEAK_FLOPS if card else 0.0
    found = (n for n in USUAL_NUMBERS if abs(ratio / n - 1) < 0.03 and abs(own / n - 1) > 0.1)
    return replace(run, world_size=next(found, None))


def _stated_seconds_per_step(run: LoggedRun, records: Sequence[Step | Eval], evaluating: float) -> float | None:
    """A program's own average, where it prints no time of single steps; one of the whole run has `evaluating` in it."""
    stated = [seconds for record in records if isinstance(seconds := record.more.get("seconds_per_step"), float)]
    if stated:
        return stated[-1]
    whole, average = run.printed_seconds, run.printed_seconds_per_step
    return average * (whole - evaluating) / whole if whole and average and whole > evaluating else average


def _seconds(
    run: LoggedRun,
    records: Sequence[Step | Eval],
    last_step: int | None,
    seconds_per_step: float | None,
    evaluating: float,
) -> float | None:
    """Seconds of training: as counted by the program, else all but those of evaluation, else steps times the usual
    step."""
    elapsed = [
        seconds
        for record in records
        if isinstance(seconds := elapsed_seconds(record), float) and math.isfinite(seconds)
    ]
    if elapsed:
        return max(elapsed)
    if run.printed_seconds is not None:
        return max(0.0, run.printed_seconds - evaluating)
    return last_step * seconds_per_step if last_step is not None and seconds_per_step else None


def elapsed_seconds(record: Step | Eval) -> object:
    """Training time at a record, where the program prints it."""
    return record.elapsed_seconds if isinstance(record, Step) else record.more.get("elapsed_seconds")


def _tokens(records: Sequence[Step | Eval], last_step: int | None, tokens_per_step: int | None) -> int | None:
    counted = max((record.tokens for record in records if record.tokens is not None), default=None)
    if counted is not None or last_step is None or tokens_per_step is None:
        return counted
    return last_step * tokens_per_step


def _per_micro_batch(run: LoggedRun, resolved: Resolved | None, seconds_per_step: float | None) -> float | None:
    """nanoGPT divides the accumulation among the processes."""
    accumulation = resolved.config.gradient_accumulation_steps if resolved else None
    stated = run.config.get("gradient_accumulation_steps")
    if accumulation is None and isinstance(stated, int):
        accumulation = stated
    if seconds_per_step is None or not accumulation:
        return None
    return seconds_per_step / max(1, accumulation // (run.world_size or 1))


def _steps_to_go(run: LoggedRun, resolved: Resolved | None, last_step: int | None) -> int | None:
    """Updates that were planned and not made; None of a run that was to make none."""
    max_iters = _max_iters(run, resolved)
    eval_only = resolved.config.eval_only if resolved else run.config.get("eval_only")
    return None if not max_iters or eval_only or last_step is None else max(0, max_iters - last_step)


def _max_iters(run: LoggedRun, resolved: Resolved | None) -> int | None:
    stated = run.config.get("max_iters")
    if resolved and resolved.origins["max_iters"] != "default":
        return resolved.config.max_iters
    return stated if isinstance(stated, int) else None


def _share(evaluation_seconds: float | None, evals: Sequence[Eval], seconds: float | None) -> float | None:
    if evaluation_seconds is None or not seconds:
        return None
    evaluating = evaluation_seconds * len(evals)
    return evaluating / (evaluating + seconds)
