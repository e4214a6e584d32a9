"""What a rule may use: settings that are known, losses in order, and the lines that prove them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import takewhile
from statistics import median

from onecard.config.schema import RunConfig
from onecard.doctor.case import Case
from onecard.findings import Finding, Sureness
from onecard.plan.conditions import stated
from onecard.plan.counts import count_params
from onecard.plan.loss import dataset_of, why_data_outside
from onecard.runs.logged import Line, LogFormat, Message
from onecard.runs.records import Checkpoint, Eval, Start, Step

# keys that they do not state have nanoGPT's defaults
NANOGPT_LIKE: tuple[LogFormat, ...] = ("nanogpt", "onecard", "minimal", "messages")
ASSUMED_NOISE = 0.024  # of one evaluation of nanoGPT's 200 batches, where it cannot be measured: the most in real runs
SAME_WINDOWS = 0.5  # of an evaluation's standard error: windows that are read each time differ less from themselves
# Standard errors from which a finding is surer. The best of many evaluations is low by chance, and their noise is
# itself measured, so it takes more than the usual two or three. Of 3,000 healthy made runs, which vary by up to twice
# what real ones do, one reached 5, by val - train (5.7; the next 3.0); by a rise of the loss the highest was 4.3.
MEDIUM_ERRORS, HIGH_ERRORS = 5, 8
# Healthy losses go up and down in slow waves, which are no noise from one to the next. Real evaluations went up by
# 0.016 nats; waves of 0.06 to either side, the widest allowed for, have a standard deviation of 0.04.
WAVES = 0.04  # nats
ROUNDING = 0.01  # "40.56M" of a printed count
FEWEST_WITHOUT_UPDATE = 3  # steps at the end of a log, to say so of the run
NOT_NEARLY_ZERO = 0.5  # nats: a loss that is exactly 0 in the next logged step has not been learned
# Guessing among a million tokens costs 13.8 nats, and the largest vocabularies have a quarter of that.
IMPOSSIBLE_LOSS = 15.0
LARGEST_LOSS = 1e9  # in nats; a larger one is not a loss, and its square may overflow


def above(value: float, limit: float) -> bool:
    """Whether a value exceeds a limit by more than the rounding of decimals: 1.05 - 1 is not above 0.05."""
    return value > limit and not math.isclose(value, limit, rel_tol=1e-9)


def sureness(errors: float) -> Sureness:
    """How sure a finding is, by the number of standard errors by which what is seen exceeds what healthy runs do."""
    return "high" if errors >= HIGH_ERRORS else "medium" if errors >= MEDIUM_ERRORS else "low"


def only_told(finding: Finding, because: str) -> Finding:
    """The finding as information, without a patch; its reason says why it is only information here."""
    return replace(finding, severity="info", why=f"{finding.why}; only a note, because {because}", patch={})


def unless_fine_tuning(finding: Finding, config: RunConfig) -> Finding:
    """The finding, which is about training from scratch; for a run that starts from trained weights, only a note."""
    if not config.starts_pretrained:
        return finding
    return replace(
        only_told(finding, f"the run starts from trained weights ({config.init_from})"),
        fix=f"not needed for fine-tuning; from scratch: {finding.fix}",
    )


def unless_shape_is_given(finding: Finding, config: RunConfig) -> Finding:
    """The finding, which proposes a shape; only a note for a run that starts from trained weights: they have one."""
    if not config.starts_pretrained:
        return finding
    return only_told(finding, f"the shape is that of the weights it starts from ({config.init_from})")


def begins_at_once(case: Case) -> bool:
    """Whether the log has the beginning of its run: an evaluation that prints no step may stand first by a cut."""
    return min((step.step for step in case.steps), default=0) <= 1


def known(case: Case, *keys: str) -> RunConfig | None:
    """The config, if the value of each of `keys` is known: stated somewhere, or a default of nanoGPT's that holds."""
    resolved = case.resolved
    if resolved is None or any(key in case.run.unresolved for key in keys):
        return None
    defaults_hold = case.run.format in NANOGPT_LIKE and (_config_was_given(case) or _agrees_with_the_log(case))
    if defaults_hold or all(resolved.origins[key] != "default" for key in keys):
        return resolved.config
    return None


def _config_was_given(case: Case) -> bool:
    """Whether a whole config is there: a file, a run folder, or the log's own dump of it."""
    resolved = case.resolved
    assert resolved
    from_file = resolved.source is not None and resolved.source != case.run.source
    return bool(case.run.format == "onecard" or case.run.config_source or from_file)


def _agrees_with_the_log(case: Case) -> bool:
    """Whether what the log prints is what the config with its defaults makes."""
    assert case.resolved
    config, run = case.resolved.config, case.run
    if run.printed_tokens_per_step is None or run.printed_params is None:
        return False
    same_size = math.isclose(count_params(config).nanogpt, run.printed_params, rel_tol=ROUNDING)
    return same_size and run.printed_tokens_per_step == config.tokens_per_step


def said(case: Case, *keys: str) -> tuple[str, ...]:
    """`batch_size = 16 (train.py:12)` for each key."""
    assert case.resolved
    return stated(case.resolved, *keys)


def printed(case: Case, field: str) -> tuple[str, ...]:
    """The line of the log that states a field of the run."""
    line = case.run.printed.get(field)
    return (str(line),) if line else ()


def shown(record: Step | Eval) -> str:
    """The line a record was read from; of our own records, their figures."""
    line = record.more.get("line")
    if isinstance(line, Line):
        return str(line)
    if isinstance(record, Step):
        return f"step {record.step:,}: loss {record.loss:.4f}"
    losses = ((name, getattr(record, f"{name}_loss")) for name in ("train", "val"))
    return f"step {record.step:,}: " + ", ".join(f"{n} loss {v:.4f}" for n, v in losses if v is not None)


def place(case: Case, record: Step | Eval) -> str:
    """`step 1,200`; where the log does not say its steps, how many losses it had until then: `logged loss 12`."""
    return f"{'step' if case.run.steps_told else 'logged loss'} {record.step:,}"


def messages(case: Case, kind: str) -> list[Message]:
    """What the log says of one kind."""
    return [message for message in case.run.messages if message.kind == kind]


def lines(message: Message, most: int = 4) -> tuple[str, ...]:
    """The lines of a message."""
    return tuple(str(line) for line in message.lines[:most])


def vals(case: Case) -> list[tuple[Eval, float]]:
    """Evaluations whose validation loss is a number, and that number, by step."""
    found = [(e, e.val_loss) for e in case.evals if e.val_loss is not None and abs(e.val_loss) < LARGEST_LOSS]
    return sorted(found, key=lambda pair: pair[0].step)


def pairs(case: Case) -> list[tuple[Eval, float, float]]:
    """Evaluations with both losses: (evaluation, train, val). Where only val is evaluated, train is the median of the
    training losses since the evaluation before."""
    found: list[tuple[Eval, float, float]] = []
    steps = [step for step in case.steps if math.isfinite(step.loss)]
    position = 0
    for evaluation, val in vals(case):
        since: list[float] = []
        while position < len(steps) and steps[position].step <= evaluation.step:
            since.append(steps[position].loss)
            position += 1
        train = evaluation.train_loss
        if train is None and since:
            train = median(since[-200:])
        if train is not None and math.isfinite(train):
            found.append((evaluation, train, val))
    return found


def lost_at(case: Case) -> Step | Eval | None:
    """The first of the training losses or evaluations without a finite loss that the run ended with; None if its
    training losses are finite to the end. Evaluations of weights that are lost do not count."""
    last_finite = max((step.step for step in case.steps if finite(step)), default=-1)
    evaluated = max((e.step for e in case.evals if finite(e)), default=-1)
    found: list[Step | Eval] = [step for step in case.steps if step.step > last_finite]
    found += [e for e in case.evals if e.step > max(last_finite, evaluated)]
    return min(found, key=lambda record: record.step, default=None)


def without_update_from(case: Case) -> Step | None:
    """The first of the steps the run ended with that made no update, whatever loss they print: their gradient norm is
    no number. A loss scale that is still being found skips a few; None where the norms become numbers again."""
    ended = [*takewhile(lambda s: not math.isfinite(0.0 if s.grad_norm is None else s.grad_norm), reversed(case.steps))]
    return ended[-1] if len(ended) >= FEWEST_WITHOUT_UPDATE else None


def zero_from(case: Case) -> Step | None:
    """The first of the losses of exactly 0 that the run ended with, where no learning led there: from the first logged
    loss on, or from one that was no near zero. Trainer prints NaN so."""
    ended = [*takewhile(lambda s: s.loss == 0 and not math.isfinite(s.grad_norm or math.nan), reversed(case.steps))]
    before = case.steps[-len(ended) - 1].loss if len(ended) < len(case.steps) else math.inf
    fewest = 1 if IMPOSSIBLE_LOSS < before < math.inf else FEWEST_WITHOUT_UPDATE - 1
    return ended[-1] if len(ended) >= fewest and before > NOT_NEARLY_ZERO else None


def finite(record: Step | Eval) -> bool:
    """Whether all losses of a record are numbers."""
    return all(map(math.isfinite, _losses(record)))


def no_number(record: Step | Eval) -> str:
    """What a loss that is not a finite number is: "nan" or "infinite"."""
    return "nan" if any(map(math.isnan, _losses(record))) else "infinite"


def _losses(record: Step | Eval) -> list[float]:
    every = (record.loss,) if isinstance(record, Step) else (record.val_loss, record.train_loss, record.bits_per_byte)
    return [loss for loss in every if loss is not None]


def loss_of(record: Step | Eval) -> float:
    """The loss of a record; for an evaluation the one on validation data, if it has one."""
    return next(iter(_losses(record)), math.nan)


def noise(case: Case) -> float:
    """Standard deviation of one validation loss from the next: as the losses scatter, and at least a share of the
    standard error that the run recorded; where neither is known, the most in real runs."""
    scattered, recorded = case.facts.evaluation_noise, case.facts.sampling_error
    same_windows = SAME_WINDOWS if case.run.format == "onecard" else 1.0
    errors = [scattered, recorded * same_windows if recorded is not None else None]
    return max((e for e in errors if e is not None and math.isfinite(e) and e > 0), default=ASSUMED_NOISE)


def stated_vocabulary(case: Case) -> int | None:
    """The vocabulary size that the log itself states, with or without a config."""
    size = case.run.config.get("vocab_size")
    return size if isinstance(size, int) and size > 1 else None


def vocabulary(case: Case) -> int | None:
    """The vocabulary size, if anything says it: the log, the config, or data whose tokenizer is GPT-2's."""
    resolved = case.resolved
    if resolved is None:
        return stated_vocabulary(case)
    config = resolved.config
    if resolved.origins["vocab_size"] != "default":
        return config.vocab_size
    if (size := stated_vocabulary(case)) is not None:
        return size
    total, nanogpt = case.run.printed_params_total, case.run.printed_params
    count = count_params(config)
    if total == count.total or (nanogpt and math.isclose(nanogpt, count.nanogpt, rel_tol=ROUNDING)):
        return config.vocab_size
    web_text = dataset_of(config.dataset)[0] != "unknown dataset"
    return config.vocab_size if web_text and known(case, "dataset") else None


def of_words(case: Case) -> bool:
    """Whether the tokens are BPE tokens, as far as known: the scaling law was fitted on those."""
    size = vocabulary(case)
    config = known(case, "dataset")
    return size is not None and not why_data_outside(size, config.dataset if config else "")


def untrained_loss(case: Case) -> float | None:
    """The loss before the first update of a run from random weights; None where it was not logged.

    The training loss of update 1 is measured before that update is made; nanoGPT numbers it 0.
    """
    if not from_scratch(case) or case.run.format == "hf-trainer":  # its logs do not say what it started from
        return None
    evaluated = [e.val_loss if e.val_loss is not None else e.train_loss for e in case.evals if e.step == 0]
    trained = [step.loss for step in case.steps if step.step <= 1]
    return next((loss for loss in (*evaluated, *trained) if loss is not None and math.isfinite(loss)), None)


def from_scratch(case: Case) -> bool:
    """Whether the run began with random weights, as far as anything says."""
    if messages(case, "resume") or any(isinstance(r, Start) and r.resumed_from for r in case.run.records):
        return False
    config = known(case, "init_from")
    return config is None or config.init_from == "scratch"


def saved_steps(case: Case) -> list[int]:
    """The steps of which there is a checkpoint: in the folder of a run of ours, else as far as the log says."""
    if case.run.checkpoints is not None:
        return list(case.run.checkpoints)
    return [record.step for record in case.run.records if isinstance(record, Checkpoint)]


def planned_steps(case: Case) -> int | None:
    """Updates the run was meant to make; None where nothing says how many."""
    config = known(case, "max_iters")
    if config:
        return config.max_iters
    last, to_go = case.facts.last_step, case.facts.steps_to_go
    return last + to_go if last is not None and to_go is not None else None


def planned_tokens(case: Case) -> int | None:
    """Tokens of the whole run: as planned, or as read where that is more; None where neither is known."""
    steps, step_tokens, read = planned_steps(case), case.facts.tokens_per_step, case.facts.tokens
    planned = steps * step_tokens if steps and step_tokens else None
    return max(filter(None, (planned, read)), default=None)


def per_parameter(params: int, *, tokens: int, planned: int, unit: str = "tokens per parameter") -> str:
    """`256 tokens per parameter`; for an unfinished run `186 tokens per parameter so far, 256 planned`."""
    ratios = (tokens / params, planned / params)
    so_far, whole = (f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}" for ratio in ratios)
    return f"{so_far} {unit}" + ("" if tokens >= planned else f" so far, {whole} planned")


def epochs(case: Case, tokens: int | None) -> float | None:
    """How often the training data is read in `tokens`; None where its size is not known."""
    size = case.data.train_tokens
    return tokens / size if size and tokens is not None else None


def numbers(values: Iterable[float], digits: int = 4) -> str:
    """`3.57, 3.58, 3.60`"""
    return ", ".join(f"{value:.{digits}f}" for value in values)
