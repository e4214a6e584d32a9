"""diagnose: every rule over a run, the findings in the order of what to do first, and what the run shows by itself."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import get_args

from onecard import units
from onecard.config.resolve import Resolved, resolve
from onecard.config.schema import KEYS, RunConfig
from onecard.doctor.case import Case, DataSizes
from onecard.doctor.config_in_log import stated_in
from onecard.doctor.evidence import pairs, place, vals
from onecard.doctor.facts import make_case
from onecard.doctor.predict import Forecast, predict_end
from onecard.doctor.repair import PLANNED, Repair, next_folder, repaired, trainer_of
from onecard.doctor.rules import NAMES, RULES, RULES_ACROSS, rule_name
from onecard.doctor.trend import Trend, trend
from onecard.findings import SEVERITIES, Finding, Sureness
from onecard.plan.cards import Card
from onecard.plan.command import EXPANDABLE, train_command
from onecard.plan.speed import TrainerName
from onecard.runs.folder import Run
from onecard.runs.logged import LoggedRun, logged_run
from onecard.runs.records import FindingRecord, Record, Step

SCHEDULE = frozenset({"learning_rate", "min_lr", "decay_lr", "lr_decay_iters", "max_iters"})
DRAWN_BY_CARD = ("n_layer", "n_head", "n_embd", "block_size")  # by onecard's default, where nobody sets them
STANDARD_INPUT = "standard input"  # the source of a config that no command can name
WATCHED_STEPS = 4000  # a live look goes no further back
# rules that are silent where a size or the card is not known
OF_TRAINING_DATA = frozenset({"needless-dropout", "too-many-epochs"})
OF_VALIDATION_DATA = frozenset({"val-set-tiny"})
OF_THE_CARD = frozenset({"low-mfu", "states-do-not-fit"})


@dataclass(frozen=True, kw_only=True)
class Prescription:
    """All that the findings would change, planned together."""

    repair: Repair
    command: str


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What is the matter with one run."""

    case: Case
    findings: tuple[Finding, ...]  # what to do first comes first
    forecast: Forecast | None  # of a run that has not reached its end
    trend: Trend | None
    evidence: tuple[str, ...]  # what the run shows, in favour of health where it is healthy
    prescription: Prescription | None
    unknown: tuple[str, ...] = ()  # what was not said, and how to say it: rules that need it were silent or unsure

    @property
    def healthy(self) -> bool:
        """Whether nothing above information was found."""
        return all(finding.severity == "info" for finding in self.findings)

    @property
    def judged(self) -> bool:
        """Whether there is anything to judge by: losses of more than one step."""
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
    findings = first_things_first(_planned(case, finding) for finding in found)
    return Diagnosis(
        case=case,
        findings=findings,
        forecast=None if final or case.end or case.run.cut_off else predict_end(case),
        trend=trend(case),
        evidence=tuple(_evidence(case)),
        prescription=_prescription(case, findings),
        unknown=tuple(_unknown(case)),
    )


def _recorded(case: Case, *, already: Collection[str]) -> list[Finding]:
    """What a run of ours found while it trained and cannot be seen here, of each rule the last. Where a rule can look
    at the whole run its own verdict counts, and that may be silence."""
    found = {record.finding.rule: record for record in case.run.records if isinstance(record, FindingRecord)}
    return [
        _of_then(case, record, _missing(case, rule))
        for rule, record in found.items()
        if rule not in already and (rule not in NAMES or _missing(case, rule)) and _in_todays_words(record.finding)
    ]


def _of_then(case: Case, record: FindingRecord, missing: str | None) -> Finding:
    """A finding of a run that trained, said to be from then. Its patch stands where nothing but what is `missing` here
    could have changed the verdict, for what the run has not changed itself since."""
    found = record.finding
    now = case.resolved.config.model_dump() if case.resolved else {}
    standing = {key: value for key, value in found.patch.items() if now.get(key) != value} if missing else {}
    return replace(
        found,
        what=f"found at step {record.step:,}, while it trained: {found.what}",
        fix=f"{found.fix} (as of then: {missing} has the whole run judged)" if missing else found.fix,
        seen=(f"step {record.step:,}: finding, {found.rule}", *found.seen),
        patch=standing,
    )


def _missing(case: Case, rule: str) -> str | None:
    """The option that lets a rule look, where what it needs was known to the run and is not known here."""
    if (rule in OF_TRAINING_DATA and case.data.train_tokens is None) or (
        rule in OF_VALIDATION_DATA and case.data.val_tokens is None
    ):
        return "--data DIR"
    return "--gpu NAME" if rule in OF_THE_CARD and case.card is None else None


def _in_todays_words(finding: Finding) -> bool:
    """Whether severity and sureness are known here: a later version that wrote the record may have more."""
    return finding.severity in SEVERITIES and finding.sure in get_args(Sureness)


def first_things_first(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings by severity, then in the order of the rules, then what a run found of itself."""

    def place(finding: Finding) -> tuple[int, int]:
        known_rule = finding.rule in NAMES
        return SEVERITIES.index(finding.severity), NAMES.index(finding.rule) if known_rule else len(NAMES)

    return tuple(sorted(findings, key=place))


def _planned(case: Case, finding: Finding) -> Finding:
    """The finding with its patch planned on the card, where the patch changes memory or speed."""
    if finding.severity == "info" or "predicted: " in finding.fix or not set(finding.patch) & set(PLANNED):
        return finding
    made = repaired(case, finding.patch)
    if made is None or not made.expectation():
        return finding
    return replace(finding, patch=dict(made.patch), fix=f"{finding.fix}; predicted: {made.expectation()}")


def _prescription(case: Case, findings: Sequence[Finding]) -> Prescription | None:
    """The patches of findings above information in one, each whole or not at all: one that would set a key otherwise
    than a more urgent finding does, or make a config that cannot be, is left for later.

    A schedule that changes takes the warm-up with it, which is only information by itself.
    """
    patch: dict[str, object] = {}
    for finding in findings:
        if finding.severity != "info" or (finding.rule == "warmup-length" and patch.keys() & SCHEDULE):
            more = {key: value for key, value in finding.patch.items() if key in KEYS}
            agrees = all(patch.get(key, value) == value for key, value in more.items())
            if agrees and _possible(case, {**patch, **more}):
                patch |= more
    made = repaired(case, patch)
    return None if made is None else Prescription(repair=made, command=_command(case, made))


def _possible(case: Case, patch: Mapping[str, object]) -> bool:
    """Whether the config holds together with the patch."""
    if case.resolved is None:
        return False
    try:
        case.resolved.config.replace(patch)
    except ValueError:
        return False
    return True


def _command(case: Case, made: Repair) -> str:
    """The line that makes the run anew with the patch, in a folder of its own: no checkpoint is written over."""
    assert case.resolved
    trainer, resolved = trainer_of(case), case.resolved
    file = None if resolved.source in (case.run.source, STANDARD_INPUT) else resolved.source
    settings = _beyond_file(case, resolved) if file else _all_settings(resolved.config, trainer)
    if "out_dir" not in made.patch:
        settings["out_dir"] = next_folder(case, resolved.config)
    if case.card and case.cardless == resolved.config.device:
        settings["device"] = "cuda"  # the next one is planned on a card
    environment = EXPANDABLE if made.expandable_segments else ""
    return train_command(file, {**settings, **made.patch}, environment=environment, trainer=trainer)


def _beyond_file(case: Case, resolved: Resolved) -> dict[str, object]:
    """What ran otherwise than the config file says: keys of the command line, and those that the log states."""
    return {
        key: getattr(resolved.config, key)
        for key, origin in resolved.origins.items()
        if origin.startswith("--") or origin == stated_in(case.run, key)
    }


def _all_settings(config: RunConfig, trainer: TrainerName) -> dict[str, object]:
    """Every setting that a trainer without a config file would have otherwise, and the shape in any case."""
    base = resolve(None).config if trainer == "onecard" else RunConfig.model_validate({})
    differing = [key for key in KEYS if getattr(config, key) != getattr(base, key) or key in DRAWN_BY_CARD]
    named = {key: getattr(config, key) for key in differing}
    if named.get("init_from") == "resume":
        del named["init_from"]  # the run is made anew
    return named


def _unknown(case: Case) -> Iterator[str]:
    if case.run.format == "messages" and case.resolved is None:
        yield "the config (--config)"
        return
    if case.resolved is None:
        yield "the config (--config)"
    if case.card is None:
        yield "the card (--gpu)"
    if not case.run.steps_told:
        yield "the steps (no line of the log tells its own)"
    if case.data.train_tokens is None:
        yield "the size of the data (--data or --train_tokens)"


def _evidence(case: Case) -> Iterator[str]:
    """What the run shows, one sentence each."""
    losses = [step.loss for step in case.steps]
    if losses and all(map(math.isfinite, losses)):
        yield f"all {len(losses):,} logged losses are finite: {losses[0]:.4f} at first, {losses[-1]:.4f} at last"
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
            f"it falls by {moving.gain:.3f} ± {moving.error:.3f} nats per doubling of tokens over the last "
            f"{len(moving.evaluations)} evaluations"
        )
    times = [step.seconds for step in case.steps[3:] if step.seconds]
    if case.facts.seconds_per_step and len(times) >= 10:
        middle = median(times)
        steady = median(abs(seconds - middle) for seconds in times) / middle if middle else 0.0
        yield f"an update takes {case.facts.seconds_per_step:.4g} s, half of them within {max(steady, 0.001):.1%}"
    if case.facts.mfu is not None and case.card:
        yield f"{case.facts.mfu:.0%} of the dense peak of {case.card.name} ({units.flops(case.card.peak_flops or 0)})"


def new_findings(case: Case, already: Collection[str]) -> list[Finding]:
    """Findings above information, and not mere guesses, of rules that are not among `already` told."""
    found = [finding for rule in RULES if rule_name(rule) not in already for finding in rule(case)]
    found += [finding for rule in RULES_ACROSS if rule_name(rule) not in already for finding in rule(case, ())]
    return [f for f in first_things_first(found) if f.severity != "info" and f.sure != "low"]


def watch(
    records: Sequence[Record], config: RunConfig, card: Card | None, data: DataSizes, already: Collection[str] = ()
) -> list[Finding]:
    """What a run that trains shows for the first time; told before are the findings in `records`, and `already`.

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
