"""What a page may ask, answered in a worker process: each answer is the JSON of a command, by the same functions."""

from __future__ import annotations

import json
import math
import time
from bisect import bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from io import BytesIO
from typing import TYPE_CHECKING, Any

from onecard.errors import ConfigError, UsageError
from onecard.findings import SEVERITIES
from onecard.opening import pieces
from onecard.report.strict import strict, whole
from onecard.ui.columns import Columns, Reading, Track, columns_of, readings_in
from onecard.ui.curves import card_curves, curves, sensors
from onecard.ui.sources import Source
from onecard.visible import visible

if TYPE_CHECKING:
    from onecard.doctor.case import Case
    from onecard.doctor.compare import Comparison
    from onecard.doctor.diagnose import Diagnosis
    from onecard.plan.nvidia_smi import DriverFigures
    from onecard.plan.plan import Plan
    from onecard.runs.follow import Followed
    from onecard.runs.records import Start

MOST_SPARKS = 60  # points of the small curve in a list
READ_SECONDS = 5.0  # of a run's records for one question, of which many make one answer
KEPT_SOURCES = 2  # whose records stay in memory
GROWING_SECONDS = 600  # without a new record, and a run has ended
KEPT_TRACKS = 6  # run folders whose columns stay in memory, for the next zoom: 8 MB for 100,000 updates
PATH_MARKS = ("/", "\\", "~", "..")

Answer = dict[str, Any]
Asked = Mapping[str, str]  # what a page put into the address


@dataclass
class _Kept:
    """The runs of a source as they were read."""

    followed: Followed
    stamp: tuple[int, int] | None = None
    cases: tuple[Case, ...] = ()


_kept: OrderedDict[str, _Kept] = OrderedDict()
_tracks: OrderedDict[str, Track] = OrderedDict()


def plan(asked: Asked, config: Source | None) -> Answer:
    """What `onecard plan --json` prints; with `more`, also the words to copy and the drawing of a step."""
    from onecard.report.plan_json import plan_json

    asked = dict(asked)
    more = _is_yes(asked.pop("more", ""))
    made = _plan(asked, config)
    return planned(made) if more else plan_json(made)


def planned(made: Plan, *, driver: DriverFigures | None = None) -> Answer:
    """A plan as a page draws it: its JSON, with the words to copy and the drawing of a step."""
    from onecard.report.plan_json import plan_json

    return plan_json(made, driver=driver) | {"ui": _words(made)}


def _plan(asked: dict[str, str], config: Source | None) -> Plan:
    from onecard.inputs.make_plan import plan_named
    from onecard.inputs.questions import check_questions
    from onecard.units import typed_bytes, typed_count

    if config:
        config.check()
    hours, tokens = _read(asked, "hours", float), _read(asked, "tokens", typed_count)
    params, sensitivity = _read(asked, "params", typed_count), _is_yes(asked.pop("sensitivity", ""))
    questions = {"hours": hours, "tokens": tokens, "params": params, "sensitivity": sensitivity or None}
    check_questions(
        {name: f"--{name}" for name, value in questions.items() if value is not None},
        apart=lambda budget, beside: f"ask for {budget}, then for {beside} of a config that it proposes",
    )
    gpu, trainer, fit = asked.pop("gpu", None), asked.pop("trainer", "both"), _is_yes(asked.pop("fit", ""))
    vram, other = _read(asked, "vram", typed_bytes), _read(asked, "other", typed_bytes)
    for key, value in asked.items():
        _refuse_paths(key, value)
    return plan_named(
        str(config.path) if config else None,
        list(asked.items()),
        gpu=gpu,
        vram=vram,
        other=other,
        trainer=trainer,  # type: ignore[arg-type]  # checked there
        fit=fit,
        hours=hours,
        tokens=tokens,
        params=params,
        sensitivity=sensitivity,
    )


def _refuse_paths(key: str, value: str) -> None:
    """UsageError for a key whose value would make a plan read a file that the page names."""
    from onecard.config.hf_config import openai_weights
    from onecard.config.schema import KEYS

    if key not in KEYS or "path" not in KEYS[key].kind:
        return
    own_weights = key == "init_from" and value not in ("scratch", "resume") and not openai_weights(value)
    if own_weights or any(mark in value for mark in PATH_MARKS):
        raise UsageError(
            f"{key} takes a plain name here",
            why="a page cannot name files of this machine",
            fix=f"onecard plan --{key}=PATH, in a terminal",
            name="path-in-page",
        )


def _words(made: Plan) -> Answer:
    """The command and the config file of a plan, and memory through one step under each trainer."""
    from onecard.config.resolve import assignments
    from onecard.report.command import start_command
    from onecard.report.timeline import timeline_json

    said = {key: getattr(made.config, key) for key, origin in made.resolved.origins.items() if origin != "default"}
    trainers = {"onecard": made.onecard, "nanoGPT": made.nanogpt}
    steps = {name: timeline_json(trainer.memory) for name, trainer in trainers.items() if trainer}
    return {"command": start_command(made), "config_text": assignments(said), "timeline": steps}


def _read(asked: dict[str, str], name: str, read: Callable[[str], Any]) -> Any:
    """The number in the address, None where there is none; it is taken out."""
    value = asked.pop(name, "")
    if not value:
        return None
    try:
        return read(value)
    except ValueError:
        raise UsageError(
            f"{name}={value[:40]} is not a number",
            why=f"{name} takes one",
            fix=f"{name}={'12GiB' if name in ('vram', 'other') else 2}",
            name="bad-number",
        ) from None


def _is_yes(value: str) -> bool:
    return value.lower() not in ("", "0", "false", "no")


def config(text: str) -> Answer:
    """The keys that the text of a config file sets: read, never run."""
    from onecard.config.resolve import resolve

    resolved = resolve(text, filename="config")
    said = {key: getattr(resolved.config, key) for key, origin in resolved.origins.items() if origin != "default"}
    return {"schema": 1, "config": said, "warnings": list(resolved.warnings)}


def cards() -> Answer:
    """What `onecard gpus --json` prints."""
    from onecard.plan.cards import search_cards
    from onecard.report.cards import cards_json

    return cards_json(search_cards(""))


def keys() -> Answer:
    """Every key of a config, its default and its meaning."""
    from onecard.config.schema import KEYS, RunConfig

    fields = RunConfig.model_json_schema()["properties"]
    rows = [{"key": name, "default": key.default, "meaning": key.meaning} for name, key in KEYS.items()]
    for row in rows:
        kinds = fields[str(row["key"])]
        kinds = next((kind for kind in kinds.get("anyOf", ()) if kind.get("type") != "null"), kinds)
        row |= {"choices": kinds.get("enum"), "least": kinds.get("minimum"), "most": kinds.get("maximum")}
    return {"schema": 1, "keys": rows}


def compare(runs: Sequence[tuple[Source, int]], gpu: str | None, more: bool) -> Answer:
    """What `onecard compare --json` prints of the runs; with `more`, also the curves that it compared."""
    from onecard.doctor.case import DataSizes
    from onecard.doctor.compare import compare_runs
    from onecard.inputs.runs import cases_at, doctors_card

    cases: list[Case] = []
    for source, number in runs:
        source.check()
        made, _ = cases_at(str(source.path), None, card=doctors_card(gpu), data=DataSizes(), command="compare")
        cases.append(_numbered(made, number))
    if len(cases) < 2:
        raise UsageError(
            "a comparison needs two runs",
            why="there is nothing to compare it with",
            fix="choose another run beside it",
            name="one-run",
        )
    return compared(compare_runs(cases), more=more)


def compared(comparison: Comparison, *, more: bool = True) -> Answer:
    """A comparison as its JSON; with `more`, also the curves that it compared, as a page draws them."""
    from onecard.report.compare_json import comparison_json

    answer = dict(comparison_json(comparison))
    if more:
        measure = comparison.measure
        answer["ui"] = {"curves": [{"measure": measure, "points": _points(each.points)} for each in comparison.curves]}
    return answer


def _points(points: Sequence[Any]) -> list[Answer]:
    """At most a thousand points of a curve."""
    every = max(1, -(-len(points) // 1000))
    made: list[Answer] = strict([asdict(point) for point in points[::every]])
    return made


def doctor(log: bytes, config_text: str | None, config_name: str | None, gpu: str | None, more: bool) -> Answer:
    """What `onecard doctor - --json` prints of a log; only the text given is read, and nothing is written.

    `config_name` is what the doctor's commands call the config.
    """
    from onecard.config.resolve import resolve
    from onecard.doctor.case import DataSizes
    from onecard.doctor.diagnose import diagnose_cases
    from onecard.doctor.facts import make_case
    from onecard.inputs.runs import doctors_card
    from onecard.runs.foreign import read_logs

    card = doctors_card(gpu)
    resolved = resolve(config_text, filename=config_name or "config") if config_text else None
    runs = read_logs(pieces(BytesIO(log)), source="stdin")
    cases = [make_case(run, config=resolved, card=card, data=DataSizes()) for run in runs]
    return diagnosed(diagnose_cases(cases), more=more)


def diagnosed(found: Sequence[Diagnosis], *, more: bool = True) -> Answer:
    """Diagnoses as their JSON; with `more`, also each run with its curves, and the doctor's words, for a page."""
    from onecard.report.doctor_json import diagnoses_json

    answer = diagnoses_json(found)
    if more:
        answer["ui"] = {
            "runs": [
                _recorded(each.case)
                | {"run": _summary(each), "prediction": strict(_prediction(each)), "words": _doctors_words(each)}
                for each in found
            ]
        }
    return answer


def _doctors_words(found: Diagnosis) -> Answer:
    """What the doctor had to judge by, and what its command does not do."""
    from onecard.report.doctor import fixes, left_out, summary_lines, title, unchecked, unknown, verdict

    lines = [*summary_lines(found)]
    lines += [("not known", unknown(found))] if found.unknown else []
    lines += [("unchecked", unchecked(found))] if found.unchecked else []
    expected = found.prescription.repair.expectation() if found.prescription else ""
    return {
        "title": title(found),
        "verdict": verdict(found),
        "lines": lines,
        "evidence": list(found.evidence) if found.healthy else [],
        "to_type": fixes(found),
        "expected": expected,
        "left_out": left_out(found),
    }


def looks(source: Source) -> list[Answer]:
    """What the doctor says of every run of a source: for the list, and for the page of the run."""
    from onecard.doctor.diagnose import diagnose_cases
    from onecard.report.doctor_json import diagnoses_json

    found = diagnose_cases(_cases(source))
    if time.time() - source.stamp()[1] / 1e9 > GROWING_SECONDS:
        del _kept[source.id]  # nothing will be added: it is not looked at again
    said = diagnoses_json(found)["runs"]
    return [
        {"row": _summary(each), "doctor": doctor, "prediction": strict(_prediction(each))}
        for each, doctor in zip(found, said, strict=True)
    ]


def run(source: Source, number: int, first: int | None, last: int | None) -> bytes | None:
    """What is recorded of one run, as JSON; its curves between two steps. None where it is long: ask again."""
    try:
        found = _tracked(source) if source.is_folder else None
    except _NotReadYet:
        return None
    case, columns, readings = found or (_numbered(_cases(source), number), None, None)
    answer = _recorded(case, columns, readings, first=first, last=last) | {"playground": _playground(source)}
    return json.dumps(answer, allow_nan=False).encode()


def _playground(source: Source) -> Answer | None:
    """The step of the checkpoint that can write a text, and what must be installed before; None without one."""
    from onecard.inputs.before_run import torch_missing
    from onecard.runs.folder import checkpoints_in

    saved = checkpoints_in(source.path) if source.is_folder else ()
    missing = torch_missing("a text comes from the model itself")
    return {"step": saved[-1].step, "missing": missing.as_json()["error"] if missing else None} if saved else None


class _NotReadYet(Exception):
    """What was read is kept, and more is there."""


def _tracked(source: Source) -> tuple[Case, Columns, list[Reading]] | None:
    """A run folder as far as its page needs it without the doctor: its updates as columns, and no other use of them.

    None where it has no config or no records, and where speed and time must be derived: the whole reader does that.
    """
    from onecard.doctor.case import DataSizes
    from onecard.doctor.facts import make_case
    from onecard.runs.folder import Run, checkpoints_in, config_in
    from onecard.runs.history import History
    from onecard.runs.logged import logged_run

    source.check()
    config = config_in(source.path)
    if config is None:
        return None
    track = _tracks.pop(source.id, None) or Track(source.path)
    try:
        read = track.read(seconds=READ_SECONDS)
    except OSError:
        return None
    _tracks[source.id] = track
    while len(_tracks) > KEPT_TRACKS:
        _tracks.popitem(last=False)
    if read is None:
        raise _NotReadYet
    columns, readings, others = read
    if any(all(map(math.isnan, columns.values[name])) for name in ("elapsed_seconds", "tokens_per_second")):
        del _tracks[source.id]
        return None
    logged = logged_run(Run(source.path, config, History(others), checkpoints_in(source.path)))
    case = make_case(logged, config=None, card=None, data=DataSizes())
    return case, _with_tokens(columns, case.facts.tokens_per_step), readings


def _with_tokens(columns: Columns, tokens_per_step: int | None) -> Columns:
    """The columns with tokens counted where they were not recorded."""
    tokens = columns.values["tokens"]
    if tokens_per_step:
        for place, recorded in enumerate(tokens):
            if recorded != recorded:  # NaN
                tokens[place] = columns.step[place] * tokens_per_step
    return columns


def _numbered(made: Sequence[Case], number: int) -> Case:
    if not 0 <= number < len(made):
        raise ConfigError("there is no such run", why="the log holds fewer", fix="reload the list", name="no-such-run")
    return made[number]


def _cases(source: Source) -> Sequence[Case]:
    """The runs of a source as the doctor takes them. Those read last are kept, and only what was added is read."""
    from onecard.doctor.case import DataSizes
    from onecard.inputs.runs import cases_at, cases_of
    from onecard.runs.follow import Followed
    from onecard.runs.logged import logged_run

    source.check()
    stamp = source.stamp()
    kept = _kept.pop(source.id, None) or _Kept(Followed(source.path))
    if kept.stamp != stamp:
        if source.is_folder:
            run = logged_run(kept.followed.run())
            kept.cases = tuple(cases_of([run], (None, {}), card=None, data=DataSizes()))
        else:
            kept.cases = tuple(cases_at(str(source.path), None, card=None, data=DataSizes())[0])
        kept.stamp = stamp
    _kept[source.id] = kept
    while len(_kept) > KEPT_SOURCES:
        _kept.popitem(last=False)
    return kept.cases


def _summary(found: Diagnosis) -> Answer:
    from onecard.doctor.ends import finished
    from onecard.doctor.evidence import planned_steps
    from onecard.doctor.noise import validation
    from onecard.report.compare import memory_bytes

    case, facts = found.case, found.case.facts
    planned, last = planned_steps(case), facts.last_val
    severities = Counter(finding.severity for finding in found.findings)
    done = finished(case)
    evaluated = [(record.step, loss) for record in case.evals if (loss := validation(record)) is not None]
    every = max(1, -(-len(evaluated) // MOST_SPARKS))
    to_go = found.forecast.seconds_to_go if found.forecast and found.forecast.is_of_the_end else None
    row = {
        "format": case.run.format,
        "state": "finished" if done else "interrupted",
        "state_why": {
            True: "the log reaches its last update",
            False: "the log ends before the last planned update",
        }.get(bool(done), "")
        if done is not None
        else "the log does not say how long the run is",
        "step": facts.last_step,
        "steps_planned": planned,
        "progress": min(1.0, facts.last_step / planned) if planned and facts.last_step is not None else None,
        "tokens": facts.tokens,
        "loss": case.steps[-1].loss if case.steps else None,
        "val_loss": validation(last) if last else None,
        "val_loss_error": last.val_loss_error if last else None,
        "val_step": last.step if last and case.run.steps_told else None,
        "tokens_per_second": facts.tokens_per_second,
        "mfu": facts.mfu,
        "reserved_bytes": memory_bytes(case),
        "predicted_process_bytes": _predicted_bytes(case),
        "seconds": facts.seconds,
        "seconds_to_go": to_go.likely if to_go else None,
        "card": case.card.name if case.card else None,
        "device": start.device if (start := _last_start(case)) else None,
        "params": facts.params,
        "findings": {severity: severities[severity] for severity in SEVERITIES},
        "first_finding": found.findings[0].what if found.findings else None,
        "sparkline": evaluated[::every] + (evaluated[-1:] if every > 1 else []),
    }
    said: Answer = strict(row)
    return said


def _predicted_bytes(case: Case) -> int | None:
    """What the plan said when the run last started."""
    start = _last_start(case)
    return start.predicted_process_bytes if start else None


def _last_start(case: Case) -> Start | None:
    from onecard.runs.records import Start

    return next((record for record in reversed(case.run.records) if isinstance(record, Start)), None)


def _recorded(
    case: Case,
    columns: Columns | None = None,
    readings: Sequence[Reading] | None = None,
    *,
    first: int | None = None,
    last: int | None = None,
) -> Answer:
    """The records of a case for its page; `columns` and `readings` are those that the case has not."""
    from onecard.report.task_scores import scores_json
    from onecard.runs.records import Sample

    if columns is None or readings is None:
        columns, readings = _columns(case), readings_in(case.run.records)
    evaluations = ("tokens", "train_loss", "train_loss_error", "val_loss", "val_loss_error", "bits_per_byte")
    clock = _clock(case, columns)
    card = case.card
    answer: Answer = {
        "config": _settings(case),
        "sensors": sensors(readings),
        "events": [_event(record, clock) for record in case.run.records if record.kind in _EVENTS],
        "evals": [
            {"step": record.step, "seconds": clock(record.step)} | {name: getattr(record, name) for name in evaluations}
            for record in case.evals
        ],
        "samples": [
            {"step": record.step, "tokens": record.tokens, "prompt": record.prompt, "text": visible(record.text)}
            for record in case.run.records
            if isinstance(record, Sample)
        ],
        "scores": scores_json(case.run.task_scores, case.run.text_scores),  # in the order in which they were measured
        "memory": {
            "predicted_process_bytes": _predicted_bytes(case),
            "card": card.name if card else None,
            "vram_bytes": card.vram_bytes if card else None,
            "allocatable_bytes": card.allocatable_bytes if card else None,
            "available_bytes": case.available_bytes,
        },
    }
    shown = curves(columns, first=first, last=last) | {"steps_told": case.run.steps_told}
    shown |= card_curves(readings, shown)
    if not any(seconds is not None for seconds in shown["seconds"]):
        shown["seconds"] = [clock(step) for step in shown["step"]]
    said: Answer = strict(answer)
    return said | {"curves": shown}


def _columns(case: Case) -> Columns:
    """The updates of a case. Tokens per second that were not recorded follow from its seconds, where no evaluation is
    among them."""
    columns = columns_of(case.steps)
    tokens, evaluated = case.facts.tokens_per_step, {evaluation.step for evaluation in case.evals}
    rates = columns.values["tokens_per_second"]
    for place, step in enumerate(case.steps):
        # the first update compiles
        if step.tokens_per_second is None and tokens and step.seconds and place and step.step not in evaluated:
            rates[place] = tokens / step.seconds
    return columns


def _clock(case: Case, columns: Columns) -> Callable[[int], float | None]:
    """Seconds of training up to a step: as the run recorded them, else as a log tells its speed."""
    from onecard.doctor.curves import clock_of

    seconds = columns.values["elapsed_seconds"]
    if all(map(math.isnan, seconds)):
        return clock_of(case)

    def at(step: int) -> float | None:
        for place in range(bisect_right(columns.step, step) - 1, -1, -1):
            if not math.isnan(seconds[place]):
                return seconds[place]
        return 0.0

    return at


def _settings(case: Case) -> list[Answer]:
    from onecard.config.schema import KEYS

    resolved = case.resolved
    if resolved is None:
        return []
    return [
        {
            "key": name,
            "value": getattr(resolved.config, name),
            "origin": resolved.origins[name],
            "default": key.default,
            "meaning": key.meaning,
        }
        for name, key in KEYS.items()
    ]


_EVENTS: dict[str, Callable[[Any], str]] = {
    "start": lambda record: (
        f"{'resumed from ' + record.resumed_from if record.resumed_from else 'started'}"
        f" on {record.card or record.device}"
    ),
    "checkpoint": lambda record: f"saved {record.path} ({record.reason})",
    "oom": lambda record: (
        f"out of memory with batches of {record.batch_size_before}"
        + (f", then {record.batch_size_after}" if record.batch_size_after else "")
    ),
    "finding": lambda record: record.finding.what,
    "end": lambda record: f"ended: {record.reason}",
}


def _event(record: Any, clock: Callable[[int], float | None]) -> Answer:
    kind = "resume" if record.kind == "start" and record.resumed_from else record.kind
    event = {
        "kind": kind,
        "step": record.step,
        "tokens": getattr(record, "tokens", None),
        "seconds": clock(record.step),
        "what": _EVENTS[record.kind](record),
    }
    return event | ({"severity": record.finding.severity} if kind == "finding" else {})


def _prediction(found: Diagnosis) -> Answer | None:
    forecast, facts = found.forecast, found.case.facts
    if forecast is None or not forecast.is_of_the_end:
        return None
    planned = forecast.step
    to_go = forecast.seconds_to_go
    so_far = facts.seconds
    return {
        "step": planned,
        "tokens": planned * facts.tokens_per_step if facts.tokens_per_step else None,
        "seconds": whole(so_far + to_go.likely) if so_far is not None and to_go else None,
        "loss": asdict(forecast.final_loss) if forecast.final_loss else None,
        "seconds_to_go": asdict(to_go) if to_go else None,
        "basis": forecast.basis,
    }


def warm() -> None:
    """Load what the first answers need."""
    import onecard.doctor.facts
    import onecard.runs.logged  # noqa: F401

    plan({"gpu": "none"}, None)


QUESTIONS: Mapping[str, Callable[..., Any]] = {
    "plan": plan,
    "config": config,
    "cards": cards,
    "keys": keys,
    "compare": compare,
    "doctor": doctor,
    "looks": looks,
    "run": run,
    "warm": warm,
}
