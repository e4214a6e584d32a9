"""The rules about the card: what they say, what it costs, and records that could fool them."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from onecard.config.resolve import resolve
from onecard.doctor.case import Case, DataSizes
from onecard.doctor.diagnose import diagnose_cases, watch
from onecard.report.training import TrainingDisplay
from onecard.runs.logged import recorded_run
from onecard.runs.record_json import to_line
from onecard.runs.records import CardReading, Oom, Record
from onecard.units import GIB
from tests.made_records import card_reading, end, start
from tests.unit.doctor.cases import HOT, SICK, TOKENS, card_run, case, found, step

CARD_RULES = ("card-too-hot", "power-limit", "card-shared", "slow-pcie-link", "clocks-drop")


def everything(patient: Case) -> set[str]:
    return {finding.rule for name in CARD_RULES for finding in found(name, patient)}


def with_records(patient: Case, *more: Record) -> Case:
    return case(records=[*patient.run.records, *more], log_format="onecard")


@pytest.mark.parametrize("name", CARD_RULES)
def test_each_illness_is_told_by_its_own_rule_alone(name: str) -> None:
    assert everything(SICK[name]()) == {name}


@pytest.mark.parametrize(
    ("name", "slower"), [("card-too-hot", 1.15), ("power-limit", 1.5), ("card-shared", 1.4), ("clocks-drop", 1.3)]
)
def test_the_cost_is_measured_in_the_runs_own_updates(name: str, slower: float) -> None:
    (finding,) = found(name, SICK[name]())
    lost = TOKENS * (1 - 1 / slower)
    said = next(word for word in finding.what.split("(")[-1].split() if word[0].isdigit())
    assert float(said.replace(",", "")) == pytest.approx(lost, rel=0.03)
    assert float(finding.what.split("it costs ")[1].split("%")[0]) == pytest.approx(100 * (1 - 1 / slower), abs=1)
    assert finding.sure == "high"


def test_without_the_tokens_of_an_update_the_cost_is_a_share() -> None:
    records = SICK["card-too-hot"]().run.records
    (finding,) = found("card-too-hot", case(None, records=records, log_format="onecard"))
    assert finding.what.endswith("it costs 13% of the speed")


def test_where_it_was_always_so_the_cost_is_not_made_up() -> None:
    (finding,) = found("card-too-hot", card_run((100, 1.0, HOT)))
    assert "not in the records" in finding.what
    assert "%" not in finding.what


def test_noise_in_the_updates_is_no_cost() -> None:
    """Updates that jitter by 20 %, the same in both states."""
    hot = card_run((40, 1.0, {}), (40, 1.0, HOT))
    jittery = [replace(r, seconds=1 + 0.4 * (7 * r.step % 10) / 10) if r.kind == "step" else r for r in hot.run.records]
    (finding,) = found("card-too-hot", case(records=jittery, log_format="onecard"))
    assert "updates are not slower for it" in finding.what
    assert finding.severity == "info"


@pytest.mark.parametrize(
    "lie",
    [
        {"temperature_c": 4000},
        {"temperature_c": -40},
        {"sm_clock_mhz": 0},
        {"power_watts": 1e9},
        {"busy": 30},
        {"other_bytes": -1},
        {"pcie_width": 0},
        {"power_limit_watts": float("nan")},
        {"other_busy": float("inf")},
    ],
)
@pytest.mark.parametrize("name", CARD_RULES)
def test_a_reading_with_an_impossible_figure_is_not_believed(name: str, lie: dict[str, object]) -> None:
    records = [replace(r, **lie) if isinstance(r, CardReading) else r for r in SICK[name]().run.records]  # type: ignore[arg-type]
    assert everything(case(records=records, log_format="onecard")) == set()


@pytest.mark.parametrize("name", CARD_RULES)
def test_one_reading_proves_nothing(name: str) -> None:
    *_, last = (record for record in SICK[name]().run.records if isinstance(record, CardReading))
    healthy = card_run((99, 1.0, {}))
    assert everything(with_records(healthy, step(100, 3.9, seconds=2.0), replace(last, step=100))) == set()
    assert everything(case(records=[last], log_format="onecard")) == set()


@pytest.mark.parametrize("name", CARD_RULES)
def test_fields_that_are_not_told_are_no_sign_of_anything(name: str) -> None:
    bare = {item: None for item in card_reading(1).__slots__ if item not in ("step", "more", "elapsed_seconds")}
    assert everything(card_run((60, 1.0, bare), (40, 1.5, bare))) == set()
    for item in bare:  # each alone is missing from a run that is ill otherwise: nothing breaks
        found(name, case(records=[_without(r, item) for r in SICK[name]().run.records], log_format="onecard"))


def _without(record: Record, item: str) -> Record:
    return replace(record, **{item: None}) if isinstance(record, CardReading) else record  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CARD_RULES)
def test_a_card_that_waits_is_not_judged(name: str) -> None:
    """Clocks, link and power of a card at rest, in every second reading: as during evaluations, saves, or slow data."""
    rest = {"busy": 0.03, "sm_clock_mhz": 210, "power_watts": 19.0, "pcie_generation": 1, "throttle": ()}
    parts = [part for _ in range(20) for part in ((2, 1.0, {}), (2, 1.0, rest))]
    assert everything(card_run(*parts)) == set()
    assert everything(card_run((40, 1.0, {}), (40, 1.0, rest))) == set()


def test_power_tells_rest_from_work_where_the_driver_does_not() -> None:
    rest = {"busy": None, "pcie_generation": 1, "power_watts": 30.0}
    assert everything(card_run((40, 1.0, rest))) == set()
    assert everything(card_run((40, 1.0, rest | {"power_watts": 190.0}))) == {"slow-pcie-link"}


def test_a_link_is_no_sign_where_nobody_says_that_the_card_works() -> None:
    assert everything(card_run((40, 1.0, {"pcie_generation": 1, "busy": None, "power_watts": None}))) == set()


def test_a_resume_on_a_repaired_card_is_judged_by_itself() -> None:
    sick = SICK["card-too-hot"]()
    later = card_run((130, 1.0, {})).run.records[200:]
    assert everything(with_records(sick, start(100), *later)) == set()
    assert everything(with_records(sick, start(100), *later[:20])) == {"card-too-hot"}, "ten readings are too few"


def test_of_several_cards_the_sick_one_is_named() -> None:
    records = [
        each
        for record in SICK["card-too-hot"]().run.records
        for each in (
            [replace(record, rank=3), card_reading(record.step)] if isinstance(record, CardReading) else [record]
        )
    ]
    (finding,) = found("card-too-hot", case(records=records, log_format="onecard"))
    assert finding.what.startswith("the card of rank 3 lowers its clock")


def test_a_slow_link_is_a_warning_where_gradients_go_over_it() -> None:
    records = [
        each
        for record in SICK["slow-pcie-link"]().run.records
        for each in ([record, replace(record, rank=1)] if isinstance(record, CardReading) else [record])
    ]
    assert {f.severity for f in found("slow-pcie-link", case(records=records, log_format="onecard"))} == {"warn"}


def test_memory_that_others_took_is_a_warning_once_the_run_had_too_little() -> None:
    patient = card_run((50, 1.0, {}), (50, 1.0, {"other_bytes": 6 * GIB}))
    (note,) = found("card-shared", patient)
    assert note.severity == "info"
    assert "since step 51, 4.00 GiB more than before, which costs no speed" in note.what
    failed = Oom(
        step=70,
        where="train",
        batch_size_before=8,
        batch_size_after=4,
        accumulation_before=1,
        accumulation_after=2,
        message="out of memory",
    )
    (finding,) = found("card-shared", with_records(patient, failed))
    assert finding.severity == "warn"
    assert "ran out of memory at step 70" in finding.what
    assert "--other 6GiB" in finding.fix


def test_a_running_run_is_told_while_it_trains_and_once() -> None:
    config = resolve(None).config
    for name in CARD_RULES:
        records = [replace(r, tokens=r.step) if r.kind == "step" else r for r in SICK[name]().run.records]
        told = [finding.rule for finding in watch(records, config, None, DataSizes())]
        severities = {finding.severity for finding in found(name, SICK[name]())}
        assert (name in told) == (severities == {"warn"}), name
        assert name not in [finding.rule for finding in watch(records, config, None, DataSizes(), {name})]


def test_the_readings_are_read_from_a_file_and_are_evidence_for_a_healthy_run() -> None:
    lines = [to_line(record) for record in card_run((40, 1.0, {})).run.records if isinstance(record, CardReading)]
    (diagnosis,) = diagnose_cases([case(records=recorded_run(lines, source="r").records, log_format="onecard")])
    assert "the card usually showed 66 °C, 198 W of its limit of 200 W, 2,610 MHz (40 readings)" in diagnosis.evidence
    assert not {finding.rule for finding in diagnosis.findings} & set(CARD_RULES)


def printed(*records: Record, **keys: object) -> str:
    out = io.StringIO()
    config = resolve(None).config.replace(keys)
    with TrainingDisplay(config, Console(file=out, width=200, force_terminal=False)) as display:
        for record in records:
            display(record)
    return out.getvalue()


def test_the_end_of_a_run_says_what_slowed_the_card_and_nothing_of_a_healthy_one() -> None:
    healthy = [card_reading(number) for number in range(1, 95)]
    hot = [card_reading(number, **HOT) for number in range(95, 101)]
    line = "the card was slowed by heat in 6 of 100 readings, at 87 °C at most: onecard doctor says what it costs"
    assert line in printed(*healthy, *hot, end(100, "finished"))
    assert "card" not in printed(*healthy, *hot[:2], end(100, "finished")), "two readings"
    assert "card" not in printed(*healthy, end(100, "finished")), "the power limit is usual"
    assert "card" not in printed(*healthy, *hot, end(100, "finished"), log_style="nanogpt")
