"""The same question gets the same figure: in a plan's text, its JSON, its fixes, its picture, and from the doctor."""

import io
import re
from typing import Any

from hypothesis import assume, given, settings
from rich.console import Console

from onecard.config.resolve import resolve
from onecard.doctor.diagnose import diagnose_cases
from onecard.doctor.facts import make_case
from onecard.inputs.make_plan import make_plan
from onecard.plan.cards import find_card
from onecard.plan.data import NO_SIZES
from onecard.plan.place import DESKTOP_BYTES, Place
from onecard.plan.plan import Plan
from onecard.report.doctor_json import diagnoses_json
from onecard.report.plan import print_plan
from onecard.report.plan_json import plan_json
from onecard.report.timeline import timeline_svg
from onecard.runs.foreign import read_logs
from onecard.units import MIB
from tests import made_logs as made
from tests.property.test_same_figures_compare import configs
from tests.share import share

CARD = find_card("RTX 4070")


def planned(config: dict[str, object], place: Place | None = None, **options: Any) -> Plan:
    text = "\n".join(made.nanogpt_config(**config))
    return make_plan(resolve(text, filename="made.py"), place or Place(card=CARD), **options)


@settings(max_examples=share(25), deadline=None)
@given(configs())
def test_what_a_plan_prints_is_what_its_json_says(config: dict[str, object]) -> None:
    plan = planned(config)
    answer: Any = plan_json(plan)
    console = Console(file=io.StringIO(), width=200, color_system=None)
    print_plan(plan, console, details=True)
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    for trainer in answer["trainers"].values():
        assert f"{trainer['process_bytes'] / MIB:,.0f} of " in text
        assert f"{trainer['speed']['tokens_per_second']['likely'] / 1000:,.1f}k tokens/s" in text
        assert f"{trainer['phases']['train']['allocated_bytes'] / MIB:,.0f} MiB training" in text
    if answer["loss"]:
        assert text.count(f"{answer['loss']['final']['likely']:.2f} ({answer['loss']['final']['low']:.2f} to ") >= 2
    else:
        assert f"no prediction: {answer['why_no_loss']}" in text


@settings(max_examples=share(25), deadline=None)
@given(configs())
def test_beside_a_desktop_is_beside_two_gibibytes_of_others(config: dict[str, object]) -> None:
    unsaid, said = planned(config), planned(config, Place(card=CARD, other_bytes=DESKTOP_BYTES))
    for name, trainer in unsaid.trainers.items():
        assert trainer.fits_with_desktop == said.trainers[name].memory.fits, name
        assert said.trainers[name].fits_with_desktop is None


@settings(max_examples=share(15), deadline=None)
@given(configs())
def test_what_a_fix_saves_is_the_difference_of_two_plans(config: dict[str, object]) -> None:
    plan = planned(config)
    for fix in plan.fixes:
        if fix.code or fix.environment or not fix.saves_bytes:
            continue
        after = planned(config | dict(fix.patch), trainer=fix.trainer).trainers[fix.trainer]
        if not after.in_room.tight:
            before = plan.trainers[plan.in_need].memory.process_bytes
            assert fix.saves_bytes == before - after.memory.process_bytes, fix.name


@settings(max_examples=share(15), deadline=None)
@given(configs())
def test_the_picture_and_the_table_have_the_same_peak(config: dict[str, object]) -> None:
    memory = planned(config, trainer="nanogpt").first.memory
    drawn = re.search(r"peak ([\d,]+) MiB", timeline_svg(memory, title="x"))
    assert drawn
    drawn_phases = [memory.phases[name].allocated_bytes for name in ("train", "eval")]
    assert drawn[1] in {f"{size / MIB:,.0f}" for size in drawn_phases}
    if max(drawn_phases) - min(drawn_phases) > MIB:
        assert drawn[1] == f"{max(drawn_phases) / MIB:,.0f}"


@settings(max_examples=share(25), deadline=None)
@given(configs())
def test_plan_and_doctor_agree_on_a_fix_and_on_a_patch(config: dict[str, object]) -> None:
    config = config | {"wandb_run_name": "770M-run"}
    (log,) = read_logs(made.as_bytes(made.nanogpt(steps=400, eval_interval=100)), source="made.log")
    resolved = resolve("\n".join(made.nanogpt_config(**config)), filename="made.py")
    plan: Any = plan_json(make_plan(resolved, Place(card=CARD), trainer="nanogpt"))
    diagnosed: Any = diagnoses_json(diagnose_cases([make_case(log, config=resolved, card=CARD, data=NO_SIZES)]))
    findings = {finding["rule"]: finding for finding in diagnosed["runs"][0]["findings"]}
    fixes = {fix["name"]: fix for fix in plan["fixes"]}
    if (said := findings.get("logits-returned")) and "return-only-the-loss" in fixes:
        assert f"saves {fixes['return-only-the-loss']['saves_bytes'] / MIB:,.0f} MiB" in said["what"]
    mine = next((each for each in plan["findings"] if each["rule"] == "params-mismatch"), None)
    assume(mine is not None and mine["patch"] and "params-mismatch" in findings)
    assert mine is not None
    assert mine["patch"] == findings["params-mismatch"]["patch"]
