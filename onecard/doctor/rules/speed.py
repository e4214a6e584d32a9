"""Rules about speed: what the card does, what the log claims, what gets in the way."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, floor
from statistics import median, quantiles

from onecard import units
from onecard.config.schema import RunConfig
from onecard.doctor.case import Case
from onecard.doctor.evidence import above, known, lines, messages, printed, said, shown
from onecard.doctor.facts import NANOGPT_PEAK_FLOPS
from onecard.doctor.needs import CARD, Need, needs
from onecard.doctor.repair import trainer_of
from onecard.findings import Finding
from onecard.plan.speed import predict_speed

LOW_MFU = 0.25
SMALLEST_MFU = 0.0005  # below, it is 0.0 % in print and claims nothing
SMALL_MICRO_BATCH_TOKENS = 4096
NARROW = 512
UNSTEADY = 1.1  # 95th percentile over median of step times
OFF_BY = 0.02
NANOCHAT_TOKENS = 524_288  # its default total_batch_size
EXPENSIVE = 0.10
CHEAP = 0.05
UPDATE = Need(about="config", met=lambda case: _tokens_of_update(case) is not None or not _printed_products(case))
WORK = Need(about="config", met=lambda case: _share_known(case) or not case.steps)
_SLOW = {"slow-attention": "no flash attention (PyTorch 2 has it)", "unfused-adamw": "AdamW is not fused"}  # as logged


def _share_known(case: Case) -> bool:
    return case.cardless is not None or case.facts.mfu is not None or case.facts.too_fast is not None


@needs(CARD, WORK)
def contradicting_inputs(case: Case) -> Iterator[Finding]:
    """A log, a config and a card that are not of one run.

    What it sees: the FLOPs that the tokens per second take, without the pairs that causal attention skips, above 93 %
    of the dense peak of the card times the number of cards. The fastest measured run is at 77 %.

    Why it matters: at least one of the three is of another run, and whatever follows from them would be wrong. So no
    share of the peak is told, and a config that the log does not confirm is left out.

    What to do: name the config of this run, the card it ran on, or the number of cards.

    When it is wrong: for a card that is overclocked by more than a third, and for products of 8-bit numbers.
    """
    rejected, why = case.rejected, case.facts.too_fast
    if why is None or case.card is None:
        return
    suspects = [f"the config (--config; {rejected} is left out)"] if rejected else []
    suspects.append(f"the card (--gpu; {case.card.name} is taken)")
    suspects.append(f"the number of cards (--gpus N; {case.run.world_size or 'one'} is taken)")
    yield Finding(
        rule="contradicting-inputs",
        severity="error",
        sure="high",
        what=f"the log and {'this config' if rejected else 'this card'} are not of one run",
        why=why,
        fix=f"say what it really was: {', or '.join(suspects)}",
        seen=(*printed(case, "printed_params"), *printed(case, "printed_tokens_per_step"))
        or tuple(shown(step) for step in case.steps[-1:]),
    )


def mfu_mislabelled(case: Case) -> Iterator[Finding]:
    """An MFU that was computed for another card.

    What it sees: an MFU printed by nanoGPT, which divides by the 312 TFLOP/s of an A100 whatever the card; or by a
    program that does not know the card and prints 0 or -100 %.

    Why it matters: 12.9 % on an RTX 4070 (58.3 TFLOP/s dense) is 69 % of what the card can do. The run is not as slow
    as it looks.

    What to do: nothing. True MFU = printed x 312 / the card's peak; here it is computed from the median time of updates
    without evaluation, because nanoGPT's average includes evaluation.

    When it is wrong: the card's peak follows its boost clock, ± 10 %. Runs on the CPU are not checked.
    """
    claims = [
        (step, float(mfu))
        for step in case.steps
        if isinstance(mfu := step.more.get("printed_mfu"), int | float) and mfu >= SMALLEST_MFU
    ]
    if case.run.format == "onecard" or case.cardless or case.facts.too_fast:
        return
    if not claims:
        yield from _no_measurement(case)
        return
    positive = [mfu for _, mfu in claims]
    peak = case.card.peak_flops if case.card else None
    true = case.facts.mfu
    if case.run.format == "nanogpt":
        if peak and abs(peak / NANOGPT_PEAK_FLOPS - 1) < 0.1:
            return
        if true is None and peak:
            true = max(positive) * NANOGPT_PEAK_FLOPS / peak
        why = "nanoGPT divides by an A100's 312 TFLOP/s whatever the card"
        why += f"; {case.card.name} has {units.flops(peak)} dense" if case.card and peak else ""
    elif true is not None and abs(median(positive) / true - 1) > 0.1:
        why = f"the program that wrote the log divides by another peak than this card's {units.flops(peak or 0)}"
    else:
        return
    shares = sorted(100 * mfu for mfu in positive)
    claimed = f"the log's {shares[0]:.1f} to {shares[-1]:.1f} % is of " + (
        "an A100" if case.run.format == "nanogpt" else "another peak"
    )
    yield Finding(
        rule="mfu-mislabelled",
        severity="info",
        sure="high" if true is not None and case.card else "medium",
        what=f"true MFU is {true:.0%} of {case.card.name}; {claimed}"
        if true is not None and case.card
        else f"MFU: {claimed}, whatever the card",
        why=why,
        fix="nothing to do: read the true figure instead"
        if true is not None
        else 'name the card with --gpu "RTX 4070" to have the true figure',
        seen=tuple(shown(step) for step, _ in (claims[0], claims[-1])),
    )


def _no_measurement(case: Case) -> Iterator[Finding]:
    """Programs that look the card up in a table of their own print -100 % or 0 where it is not in it."""
    tail = [step for step in case.steps[-3:] if "mfu" in shown(step).lower()]
    if case.run.format not in ("llm.c", "nanochat") or len(tail) < 3:
        return
    yield Finding(
        rule="mfu-mislabelled",
        severity="info",
        sure="high",
        what="the log's MFU is not a measurement"
        + (f": true MFU is {case.facts.mfu:.0%} of {case.card.name}" if case.facts.mfu and case.card else ""),
        why="the program that wrote it does not know this card's peak, and prints -100 % or 0",
        fix="nothing to do: the run is as fast as it is",
        seen=tuple(shown(step) for step in tail[-1:]),
    )


@needs(CARD, WORK)
def low_mfu(case: Case) -> Iterator[Finding]:
    """A card that is mostly idle.

    What it sees: (6N + 12·L·C·T) x tokens per second below a quarter of the card's dense tensor peak (PaLM,
    appendix B), and which of the usual causes the settings and times show.

    Why it matters: the same run could take a half or a quarter of the time.

    What to do: by cause: compile, a half-precision dtype, float16 on cards without bfloat16, larger micro-batches;
    nothing, where the plan expects no more from such a narrow model.

    When it is wrong: peaks follow boost clocks, ± 10 %; models narrower than 512 cannot fill a large card. Runs on the
    CPU are not checked: for them --gpu only says where the next run is planned.
    """
    if case.facts.mfu is None or case.facts.mfu >= LOW_MFU or case.card is None:
        return
    causes: list[str] = []
    patch: dict[str, object] = {}
    config = known(case, "compile", "dtype", "batch_size", "block_size", "n_embd")
    if config:
        if not config.compile:
            causes.append("not compiled")
            patch["compile"] = True
        if config.dtype == "float32":
            causes.append("float32")
            patch["dtype"] = case.card.best_dtype()
        if config.dtype == "bfloat16" and case.card.native_bf16 is False:
            causes.append(f"bfloat16, which {case.card.name} only emulates")
            patch["dtype"] = "float16"
        if config.batch_size * config.block_size < SMALL_MICRO_BATCH_TOKENS:
            causes.append(f"micro-batches of {config.batch_size * config.block_size:,} tokens")
        if config.n_embd < NARROW:
            causes.append(f"a width of {config.n_embd}")
        if config.head_size % 8:
            causes.append(f"heads of {config.head_size}, which flash attention pads")
    slow = {kind: words for kind, words in _SLOW.items() if messages(case, kind)}
    curable = list(slow.values())
    unsteady = _unsteadiness(case)
    if unsteady and unsteady > UNSTEADY:
        curable.append(f"unsteady steps (the slowest of twenty takes {unsteady:.2f} times the median)")
    causes += curable
    yield Finding(
        rule="low-mfu",
        severity="warn",
        sure="medium",
        what=f"the card works at {case.facts.mfu:.0%} of its peak ({units.count(case.facts.tokens_per_second or 0)} "
        "tokens/s)",
        why="possible causes: " + ("; ".join(causes) if causes else "the log shows none of the usual ones"),
        fix=" ".join(f"--{key}={value}" for key, value in patch.items())
        or (_too_narrow(case, config) if config and not curable else None)
        or "a larger micro-batch if it fits (onecard plan --fit), and a look at what else uses the card or the disk",
        seen=(
            *(said(case, "compile", "dtype", "batch_size") if config else ()),
            *(line for kind in slow for line in lines(messages(case, kind)[0], 1)),
            *(shown(step) for step in case.steps[-1:]),
        ),
        patch=patch,
    )


def _too_narrow(case: Case, config: RunConfig) -> str | None:
    """What to say of a model that is as fast as the plan expects of such a narrow one in its largest micro-batch; None
    for others, which could be faster."""
    if case.card is None or case.facts.mfu is None or config.n_embd >= NARROW:
        return None
    whole = {"batch_size": config.sequences_per_step, "gradient_accumulation_steps": 1}
    speed = predict_speed(config.replace(whole), case.card, trainer_of(case))
    if speed is None or speed.mfu >= LOW_MFU or case.facts.mfu < speed.mfu * (1 - speed.spread):
        return None
    return (
        f"nothing to do for this model: the plan expects {speed.mfu:.0%} of {case.card.name} at width {config.n_embd}, "
        "even in micro-batches of a whole update; a wider one uses more of the card"
    )


def _unsteadiness(case: Case) -> float | None:
    """95th percentile of step times over their median, evaluations and the first steps left out."""
    evaluated = {evaluation.step for evaluation in case.evals}
    times = [s.seconds for s in case.steps[3:] if s.seconds and s.step not in evaluated]
    return quantiles(times, n=20)[-1] / median(times) if len(times) >= 20 else None


def autotune_sm_warning(case: Case) -> Iterator[Finding]:
    """A warning about multiprocessors that means nothing.

    What it sees: "Not enough SMs to use max_autotune_gemm" in the log.

    Why it matters: it does not matter. Cards with fewer than 68 multiprocessors skip one autotuner of torch.compile;
    the matrix products then come from cuBLAS, which is as fast.

    What to do: nothing.

    When it is wrong: never; the warning says nothing about your batch or your model.
    """
    found = messages(case, "few-sms")
    if found:
        count = case.card.multiprocessors if case.card else None
        yield Finding(
            rule="autotune-sm-warning",
            severity="info",
            sure="high",
            what="the warning about too few SMs for max_autotune_gemm is harmless",
            why="cards with fewer than 68 multiprocessors skip one autotuner and use cuBLAS"
            + (f"; this one has {count}" if count else ""),
            fix="nothing to do",
            seen=lines(found[0], 1),
        )


@needs(UPDATE)
def throughput_arithmetic(case: Case) -> Iterator[Finding]:
    """A printed speed that does not follow from the printed time.

    What it sees: printed tokens per second x printed seconds differs from the tokens per update by more than 2 %, in
    the median of at least three lines (the first ones are left out: running averages settle). A nanochat log that does
    not state its batch is taken to have the default of 524,288 tokens.

    Why it matters: one of the three is wrong, and forecasts of the hours with it.

    What to do: trust the time; divide the tokens per update by it.

    When it is wrong: where the printed speed is a running average and the times vary much.
    """
    products, tokens = _printed_products(case), _tokens_of_update(case)
    stated = case.facts.tokens_per_step is not None
    if len(products) < 3 or tokens is None:
        return
    product = median(products[len(products) // 10 :])
    if not above(abs(product / tokens - 1), OFF_BY):
        return
    step = next(step for step in reversed(case.steps) if "printed_tokens_per_second" in step.more)
    seconds = step.more.get("printed_seconds")
    right = f"{tokens / seconds:,.0f} tokens/s" if isinstance(seconds, int | float) and seconds else "tokens / seconds"
    yield Finding(
        rule="throughput-arithmetic",
        severity="warn",
        sure="high" if stated else "medium",
        what=f"tokens/s x seconds is {product:,.0f} tokens; an update has {tokens:,}"
        + ("" if stated else " by nanochat's default"),
        why=f"one of them is off by a factor of {product / tokens:.3g}",
        fix=f"by the printed time it is {right}"
        if stated
        else f"if an update has {product:,.0f} tokens, nothing is wrong; otherwise it is {right}",
        seen=(shown(step), *printed(case, "printed_tokens_per_step")),
    )


def _printed_products(case: Case) -> list[float]:
    """Tokens per second x seconds, of each line that prints both."""
    return [
        float(rate) * float(seconds)
        for step in case.steps
        if isinstance(rate := step.more.get("printed_tokens_per_second"), int | float)
        and isinstance(seconds := step.more.get("printed_seconds"), int | float)
        and rate > 0
        and seconds > 0
    ]


def _tokens_of_update(case: Case) -> int | None:
    """Tokens per update: as known, else nanochat's default."""
    default = NANOCHAT_TOKENS if case.run.format == "nanochat" else None
    return case.facts.tokens_per_step if case.facts.tokens_per_step is not None else default


def eval_too_expensive(case: Case) -> Iterator[Finding]:
    """Evaluation that takes more than a tenth of the time.

    What it sees: evaluations and checkpoints take more than a tenth of the time of the whole planned run, by the
    seconds measured so far; where the length is not known, of the time so far.

    Why it matters: it is time not spent training.

    What to do: for the next run a longer eval_interval, or fewer eval_iters: four times fewer doubles the noise. The
    first and the last step are always evaluated, so in a short run only fewer eval_iters help.

    When it is wrong: in short tests, which are soon over anyway.
    """
    config = known(case, "eval_interval", "eval_iters", "max_iters")
    step_seconds, seconds = case.facts.seconds_per_step, case.facts.evaluation_seconds
    longer, of_what = None, "time so far"
    if config and config.max_iters and step_seconds and seconds:
        training = config.max_iters * step_seconds
        cost = seconds * _evaluations(config.max_iters, config.eval_interval)
        share, of_what = cost / (cost + training), "planned run"
        longer = _cheap_interval(config.max_iters, affordable=CHEAP / (1 - CHEAP) * training / seconds)
    elif case.facts.evaluation_share is not None:
        share = case.facts.evaluation_share
    else:
        return
    if not above(share, EXPENSIVE):
        return
    if longer:
        fix = f"--eval_interval={longer}, or fewer eval_iters"
    elif config:
        fix = "fewer eval_iters: the first and the last step are evaluated whatever the interval"
    else:
        fix = "a longer interval, or fewer batches"
    yield Finding(
        rule="eval-too-expensive",
        severity="info",
        sure="high",
        what=f"evaluation takes {share:.0%} of the {of_what}"
        + (f", {units.duration(seconds)} each" if seconds else ""),
        why="it measures the run and does not train it; a twentieth is enough",
        fix=f"for the next run: {fix}",
        seen=(said(case, "max_iters", "eval_interval", "eval_iters") if config else ())
        or tuple(shown(evaluation) for evaluation in case.evals[-1:]),
        patch={"eval_interval": longer} if longer else {},
    )


def _evaluations(max_iters: int, interval: int) -> int:
    """Evaluations of a whole run: at step 0, after every interval, and at the last step."""
    return 1 + ceil(max_iters / interval)


def _cheap_interval(max_iters: int, *, affordable: float) -> int | None:
    """The shortest interval that keeps evaluations affordable; None where even two are too many."""
    return ceil(max_iters / (floor(affordable) - 1)) if affordable >= 2 else None
