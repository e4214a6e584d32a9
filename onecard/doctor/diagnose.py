"""diagnose: every rule over a run, the findings in the order of what to do first, and the one command for all."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import get_args

from onecard import units
from onecard.config.command import EXPANDABLE, train_command
from onecard.config.resolve import Resolved, resolve
from onecard.config.schema import KEYS, SHAPE_KEYS, RunConfig
from onecard.doctor.card_readings import in_words
from onecard.doctor.case import Case, DataSizes
from onecard.doctor.config_in_log import stated_in
from onecard.doctor.evidence import lost_at, no_number, pairs, place, vals
from onecard.doctor.facts import make_case
from onecard.doctor.needs import OPTIONS, About, missing, would_be_surer_with
from onecard.doctor.predict import ENDED, Forecast, predict_end, why_no_end
from onecard.doctor.repair import beside_others, next_folder, repaired, same_run_under_onecard, trainer_of
from onecard.doctor.rules import EVERY, NAMES, RULES, RULES_ACROSS, rule_name
from onecard.doctor.trend import Trend, trend
from onecard.doctor.vitals import not_looked_at
from onecard.findings import SEVERITIES, Finding, Sureness
from onecard.plan.cards import Card
from onecard.plan.repair import Repair, is_planned, with_whole_patch
from onecard.plan.speed import TrainerName
from onecard.runs.folder import Run
from onecard.runs.logged import LoggedRun, logged_run
from onecard.runs.records import FindingRecord, Record, Step

DRAWN_BY_CARD = ("n_layer", "n_head", "n_embd", "block_size")  # by onecard's default, where nobody sets them
STANDARD_INPUT = "standard input"  # the source of a config that no command can name
OUT_OF_MEMORY = ("oom-capacity", "oom-other-process", "oom-system-spill")
WATCHED_STEPS = 4000  # a live look goes no further back
SEQUENCES = "sequences_per_update"  # what gradient_accumulation_steps is for, whatever the micro-batch
SAME_UPDATE = 0.1  # a share more or less is the same update


@dataclass(frozen=True, kw_only=True)
class Prescription:
    """What to type for one finding: its cure, with those of the findings before it, planned together."""

    rule: str
    repair: Repair
    command: str
    under_onecard: tuple[str, int] | None = None  # of a run of nanoGPT that ran out of memory: the command, its bytes


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What is wrong with one run, and what to do."""

    case: Case
    findings: tuple[Finding, ...]  # what to do first comes first
    forecast: Forecast | None  # for a run that has not reached its end
    why_no_forecast: str  # of the loss; "" where there is one
    trend: Trend | None
    evidence: tuple[str, ...]  # what the run shows, for a healthy one the reasons to call it so
    prescriptions: tuple[Prescription, ...] = ()  # one for each finding that settings cure, what to do first first
    left_out: Mapping[str, str] = field(default_factory=dict)  # other findings above information, by rule: and why
    unknown: tuple[str, ...] = ()  # what is not known, and how to say it: rules that need it could not look
    unchecked: Mapping[str, About] = field(default_factory=dict)  # rules that could not look, and what they need
    not_looked_at: tuple[str, ...] = ()  # of training loss, trend, speed, gradient norm and split: what is not logged

    @property
    def prescription(self) -> Prescription | None:
        """What to type first."""
        return self.prescriptions[0] if self.prescriptions else None

    def command_for(self, finding: Finding) -> str | None:
        """What to type for a finding."""
        return next((each.command for each in self.prescriptions if each.rule == finding.rule), None)

    @property
    def healthy(self) -> bool:
        """Whether nothing above information was found."""
        return all(finding.severity == "info" for finding in self.findings)

    @property
    def judged(self) -> bool:
        """Whether there is enough to judge: losses of more than one step."""
        return len({step.step for step in self.case.steps} | {found.step for found in self.case.evals}) > 1

    @property
    def exit_code(self) -> int:
        """1 where something is wrong."""
        return 1 if any(finding.severity in ("error", "fatal") for finding in self.findings) else 0


def diagnose(
    run: Run | LoggedRun,
    *,
    config: Resolved | None = None,
    card: Card | None = None,
    data: DataSizes | None = None,
    final: bool = False,
) -> Diagnosis:
    """The diagnosis of one run: a folder from `load_run`, or a log from `read_logs`.

    `config` is the run's config where the run does not state it; `final` says that no more is to come.
    """
    logged = logged_run(run) if isinstance(run, Run) else run
    case = make_case(logged, config=config, card=card, data=data or DataSizes())
    return diagnose_cases([case], final=final)[0]


def diagnose_cases(cases: Sequence[Case], *, final: bool = False) -> list[Diagnosis]:
    """A diagnosis of each case; rules about several runs look at those before."""
    if final:
        ended = {"steps_to_go": 0, "seconds_to_go": 0.0}
        cases = [replace(case, facts=replace(case.facts, **ended)) for case in cases]  # type: ignore[arg-type]
    return [_diagnosed(case, cases[:position], final=final) for position, case in enumerate(cases)]


def _diagnosed(case: Case, before: Sequence[Case], *, final: bool) -> Diagnosis:
    found = [finding for rule in RULES for finding in rule(case)]
    found += [finding for rule in RULES_ACROSS for finding in rule(case, before)]
    found += _recorded(case, already={finding.rule for finding in found})
    ordered = first_things_first(found)
    lost = lost_at(case)
    ended = final or case.end is not None or case.run.cut_off
    forecast = None if ended or lost else predict_end(case)
    if lost:
        unforeseen = f"the loss is {no_number(lost)} from {place(case, lost)} on"
    elif ended:
        unforeseen = ENDED
    elif forecast is None:
        unforeseen = why_no_end(case)
    else:
        unforeseen = "" if forecast.final_loss else forecast.basis
    beside = beside_others(case)
    prescriptions, left_out = _prescriptions(beside, ordered)
    return Diagnosis(
        case=case,
        findings=tuple(_planned(beside, finding) for finding in ordered),
        forecast=forecast,
        why_no_forecast=unforeseen,
        trend=trend(case),
        evidence=tuple(_evidence(case)),
        prescriptions=tuple(prescriptions),
        left_out=left_out,
        unknown=tuple(_unknown(case)),
        unchecked={rule_name(rule): about for rule in EVERY if (about := missing(rule, case))},
        not_looked_at=not_looked_at(case),
    )


def _recorded(case: Case, *, already: Collection[str]) -> list[Finding]:
    """What a run of ours found while it trained and cannot be seen here, the last finding of each rule. Where a rule
    can look at the whole run, its own verdict counts, and that may be that nothing is wrong."""
    found = {record.finding.rule: record for record in case.run.records if isinstance(record, FindingRecord)}
    return [
        _of_then(case, record, _missing(case, rule))
        for rule, record in found.items()
        if rule not in already and (rule not in NAMES or _missing(case, rule)) and _in_todays_words(record.finding)
    ]


def _of_then(case: Case, record: FindingRecord, missing: str | None) -> Finding:
    """A finding from while the run trained, marked as such. Its patch stands where only what is `missing` here could
    change the verdict, and only for what the run has not changed itself since."""
    found = record.finding
    now = case.resolved.config.model_dump() if case.resolved else {}
    standing = {key: value for key, value in found.patch.items() if now.get(key) != value} if missing else {}
    return replace(
        found,
        what=f"found at step {record.step:,}, while it trained: {found.what}",
        fix=f"{found.fix} (as of then; to judge the whole run: {missing})" if missing else found.fix,
        seen=(f"step {record.step:,}: finding, {found.rule}", *found.seen),
        patch=standing,
    )


def _missing(case: Case, name: str) -> str | None:
    """The option that lets a rule look, where what it needs was known to the run and is not known here."""
    rule = next((rule for rule in EVERY if rule_name(rule) == name), None)
    about = would_be_surer_with(rule, case) if rule else None
    return OPTIONS[about] if about else None


def _in_todays_words(finding: Finding) -> bool:
    """Whether severity and sureness are known here: a later version may have written the record."""
    return finding.severity in SEVERITIES and finding.sure in get_args(Sureness)


def first_things_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings by severity, then in the order of the rules, then what a run found of itself."""

    def place(finding: Finding) -> tuple[int, int]:
        known_rule = finding.rule in NAMES
        return SEVERITIES.index(finding.severity), NAMES.index(finding.rule) if known_rule else len(NAMES)

    return tuple(sorted(findings, key=place))


def _planned(case: Case, finding: Finding) -> Finding:
    """The finding with its patch planned on the card, where the patch changes memory or speed."""
    if "predicted: " in finding.fix or not is_planned(finding):
        return finding
    made = repaired(case, finding.patch)
    return finding if made is None or not made.expectation() else with_whole_patch(finding, made)


def _prescriptions(case: Case, findings: Sequence[Finding]) -> tuple[list[Prescription], dict[str, str]]:
    """What to type for each finding above information, and why there is nothing to type for the others, by rule.

    Each keeps the cures of the findings before it. A changed length takes the warm-up with it, which alone is only
    information.
    """
    made: list[Prescription] = []
    left_out: dict[str, str] = {}
    if case.resolved is None or case.facts.too_fast:
        return made, left_out
    config = case.resolved.config
    merged: dict[str, object] = {}
    by: dict[str, str] = {}  # the rule that wants each key
    warm_up = next((_wanted(f, config) for f in findings if f.rule == "warmup-length" and f.severity == "info"), {})
    for finding in findings:
        if finding.severity == "info" or finding.rule in by.values():
            continue
        wanted = _wanted(finding, config)
        wanted |= warm_up if wanted.keys() & {"lr_decay_iters", "max_iters"} else {}
        reason = _against(config, merged, wanted, by) if wanted else "no setting fixes it"
        repair = None if reason else repaired(case, _as_keys(config, {**merged, **wanted}))
        if reason or repair is None:
            left_out[finding.rule] = reason or "too little of the config is known"
        elif repair.fits is False:
            left_out[finding.rule] = "no micro-batch of that run fits the card"
        else:
            merged |= wanted
            by = dict.fromkeys(wanted, finding.rule) | by
            ours = same_run_under_onecard(case) if finding.rule in OUT_OF_MEMORY and not made else None
            same = made and made[-1].repair.config == repair.config  # what is typed before cures this too
            made.append(
                Prescription(
                    rule=finding.rule,
                    repair=repair,
                    command=made[-1].command if same else _command(case, repair, trainer_of(case)),
                    under_onecard=(_command(case, ours, "onecard"), ours.process_bytes or 0) if ours else None,
                )
            )
    return made, left_out


def _wanted(finding: Finding, config: RunConfig) -> dict[str, object]:
    """What a finding itself would change. A new shape brings other keys with it, but only when all of it is planned.
    Of an update, the micro-batch and the sequences are wanted: the accumulation follows from both."""
    patch = {key: value for key, value in finding.patch.items() if key in KEYS}
    if shape := {key: value for key, value in patch.items() if key in SHAPE_KEYS and value != getattr(config, key)}:
        return shape
    sequences = _sequences(config, patch)
    if abs(sequences - config.sequences_per_step) > SAME_UPDATE * config.sequences_per_step:
        patch[SEQUENCES] = sequences
    patch.pop("gradient_accumulation_steps", None)
    if "learning_rate" in patch:
        patch.pop("min_lr", None)  # it follows the rate
    return patch


def _sequences(config: RunConfig, patch: Mapping[str, object]) -> int:
    """Sequences per update with a patch to the batch."""
    batch, steps = (patch.get(key, getattr(config, key)) for key in ("batch_size", "gradient_accumulation_steps"))
    return batch * steps if isinstance(batch, int) and isinstance(steps, int) else config.sequences_per_step


def _as_keys(config: RunConfig, wanted: Mapping[str, object]) -> dict[str, object]:
    """What is wanted as keys of a config: the accumulation makes the update from the micro-batch."""
    patch = dict(wanted)
    sequences, batch = patch.pop(SEQUENCES, config.sequences_per_step), patch.get("batch_size", config.batch_size)
    if {SEQUENCES, "batch_size"} & wanted.keys() and isinstance(sequences, int) and isinstance(batch, int):
        patch["gradient_accumulation_steps"] = max(1, round(sequences / max(1, batch)))
    return patch


def _against(
    config: RunConfig, merged: Mapping[str, object], wanted: Mapping[str, object], by: Mapping[str, str]
) -> str | None:
    """Why a patch cannot join those of more urgent findings; None where it can."""
    for key, value in wanted.items():
        if merged.get(key, value) != value:
            return f"it wants {key}={value}, and {by[key]} wants {merged[key]}"
    try:
        config.replace(_as_keys(config, {**merged, **wanted}))
    except ValueError:
        return f"{' '.join(f'{key}={value}' for key, value in wanted.items())} does not go with the rest"
    return None


def _command(case: Case, made: Repair, trainer: TrainerName) -> str:
    """The line that starts the run again with the patch, in a new folder: no checkpoint is overwritten."""
    assert case.resolved
    resolved = case.resolved
    file = None if resolved.source in (case.run.source, STANDARD_INPUT) else resolved.source
    settings = _beyond_file(case, resolved) if file else _all_settings(resolved.config, trainer)
    if "out_dir" not in made.patch:
        settings["out_dir"] = next_folder(case, resolved.config)
    if resolved.config.init_from == "resume":  # the run starts again
        settings["init_from"] = "scratch"
    if case.card and case.cardless == resolved.config.device:
        settings["device"] = "cuda"  # the next one is planned on a card
    environment = EXPANDABLE if made.expandable_segments else ""
    return train_command(file, {**settings, **made.patch}, environment=environment, trainer=trainer)


def _beyond_file(case: Case, resolved: Resolved) -> dict[str, object]:
    """What ran differently from the config file: keys of the command line, and those that the log states."""
    return {
        key: getattr(resolved.config, key)
        for key, origin in resolved.origins.items()
        if origin.startswith("--") or origin == stated_in(case.run, key)
    }


def _all_settings(config: RunConfig, trainer: TrainerName) -> dict[str, object]:
    """Every setting that differs from what a trainer without a config file would use, and always the shape."""
    base = resolve(None).config if trainer == "onecard" else RunConfig.model_validate({})
    differing = [key for key in KEYS if getattr(config, key) != getattr(base, key) or key in DRAWN_BY_CARD]
    return {key: getattr(config, key) for key in differing}


def _unknown(case: Case) -> Iterator[str]:
    if case.run.format == "messages" and case.resolved is None:
        yield "the config (--config)"
        return
    if case.resolved is None:
        yield "the config (--config)"
    if case.card is None:
        yield "the card (--gpu)"
    if case.facts.cards is None:
        yield "the number of cards (several processes were started: --gpus N)"
    if not case.run.steps_told:
        yield "the steps (no line of the log says its own)"
    if case.data.train_tokens is None:
        yield "the size of the data (--data or --train_tokens)"


def _evidence(case: Case) -> Iterator[str]:
    """What the run shows, one sentence each."""
    losses = [step.loss for step in case.steps]
    if losses and all(map(math.isfinite, losses)):
        yield f"all {len(losses):,} logged losses are finite: first {losses[0]:.4f}, last {losses[-1]:.4f}"
    evaluated = vals(case)
    if len(evaluated) > 1:
        best, loss = min(evaluated, key=lambda pair: pair[1])
        where = "the last evaluation" if best is case.facts.last_val else place(case, best)
        yield f"val goes from {evaluated[0][1]:.4f} to {evaluated[-1][1]:.4f}, best {loss:.4f} at {where}"
    both = pairs(case)
    if both and both[-1][0].train_loss is not None:
        where = "the last evaluation" if both[-1][0] is case.facts.last_val else place(case, both[-1][0])
        yield f"val - train is {both[-1][2] - both[-1][1]:+.4f} at {where}"
    moving = trend(case)
    if moving and moving.gain > 0:
        yield (
            f"val falls by {moving.gain:.3f} ± {moving.error:.3f} nats per doubling of tokens over the last "
            f"{len(moving.evaluations)} evaluations"
        )
    times = [step.seconds for step in case.steps[3:] if step.seconds]
    if case.facts.seconds_per_step and len(times) >= 10:
        middle = median(times)
        steady = median(abs(seconds - middle) for seconds in times) / middle if middle else 0.0
        yield f"an update takes {case.facts.seconds_per_step:.4g} s, half of them within {max(steady, 0.001):.1%}"
    if case.facts.mfu is not None and case.card:
        cards = f"{case.facts.cards} x " if (case.facts.cards or 1) > 1 else ""
        peak = units.flops(case.card.peak_flops or 0)
        yield f"{case.facts.mfu:.0%} of the dense peak of {cards}{case.card.name} ({peak}{' each' if cards else ''})"
    if card := in_words(case.run.records):
        yield card


def new_findings(case: Case, already: Collection[str]) -> list[Finding]:
    """Findings above information that are more than guesses, of rules that are not in `already`."""
    found = [finding for rule in RULES if rule_name(rule) not in already for finding in rule(case)]
    found += [finding for rule in RULES_ACROSS if rule_name(rule) not in already for finding in rule(case, ())]
    return [f for f in first_things_first(found) if f.severity != "info" and f.sure != "low"]


def watch(
    records: Sequence[Record], config: RunConfig, card: Card | None, data: DataSizes, already: Collection[str] = ()
) -> list[Finding]:
    """What a run in training shows for the first time; not again what is in `records` or `already`.

    `records` are all so far.
    """
    told = {*already, *(record.finding.rule for record in records if isinstance(record, FindingRecord))}
    return new_findings(_live_case(records, config, card, data), told)


def _live_case(records: Sequence[Record], config: RunConfig, card: Card | None, data: DataSizes) -> Case:
    steps = [record.step for record in records if isinstance(record, Step)]
    since = steps[-WATCHED_STEPS] if len(steps) > WATCHED_STEPS else 0
    recent = tuple(record for record in records if not isinstance(record, Step) or record.step >= since)
    values: Mapping[str, object] = config.model_dump()
    run = LoggedRun(source=config.out_dir, format="onecard", records=recent, config=values)
    resolved = Resolved(config, dict.fromkeys(KEYS, "config.json"))
    return make_case(run, config=resolved, card=card, data=data)
