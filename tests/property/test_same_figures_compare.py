"""The same question gets the same figure: what compare says of a run is what doctor and plan say of it."""

from dataclasses import dataclass
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from onecard.config.resolve import resolve
from onecard.doctor.case import Case, DataSizes
from onecard.doctor.compare import compare_runs
from onecard.doctor.diagnose import diagnose_cases
from onecard.doctor.facts import make_case
from onecard.inputs.make_plan import make_plan
from onecard.plan.cards import find_card
from onecard.plan.place import Place
from onecard.report.compare_json import comparison_json
from onecard.report.doctor_json import diagnoses_json
from onecard.report.plan_json import plan_json
from onecard.runs.foreign import read_logs
from onecard.runs.logged import LoggedRun
from onecard.units import MIB
from tests import made_logs as made
from tests.share import share

CARDS = ("RTX 4070", "RTX 3090", "A100 SXM4 80 GB")
HEADS = 4


@st.composite
def configs(draw: st.DrawFn) -> dict[str, object]:
    """Configs small and large, some of which fill a card."""
    return {
        "n_layer": draw(st.sampled_from([2, 6, 12])),
        "n_head": HEADS,
        "n_embd": 64 * HEADS * draw(st.integers(1, 4)),
        "block_size": draw(st.sampled_from([256, 1024])),
        "batch_size": draw(st.sampled_from([1, 8, 16, 24])),
        "gradient_accumulation_steps": draw(st.sampled_from([1, 5, 40])),
        "dropout": draw(st.sampled_from([0.0, 0.1])),
        "compile": draw(st.booleans()),
        "dataset": draw(st.sampled_from(["fineweb", "openwebtext", "mine"])),
        "vocab_size": draw(st.sampled_from([50304, 50304, 256])),
        "max_iters": draw(st.sampled_from([1000, 2000, 6000])),
        "warmup_iters": 100,
    }


@dataclass(frozen=True, kw_only=True)
class Made:
    """What a run is made of: short, so that a failing example can be read."""

    config: dict[str, object]
    card: str
    ours: bool  # a run of ours, else a log of nanoGPT with its config
    steps: int
    seconds: float
    end: float
    noise: float

    def case(self, **changed: object) -> Case:
        lines = made.nanogpt(steps=self.steps, eval_interval=100, seconds=self.seconds, end=self.end, noise=self.noise)
        (log,) = read_logs(made.as_bytes(lines), source="made.log")
        card, config = find_card(self.card), self.config | changed
        if self.ours:
            log = LoggedRun(source="runs/made", format="onecard", records=log.records, config=config)
            return make_case(log, config=None, card=card, data=DataSizes())
        resolved = resolve("\n".join(made.nanogpt_config(**config)), filename="made.py")
        return make_case(log, config=resolved, card=card, data=DataSizes())


runs = st.builds(
    Made,
    config=configs(),
    card=st.sampled_from(CARDS),
    ours=st.booleans(),
    steps=st.sampled_from([400, 1000]),
    seconds=st.floats(20.0, 200.0),  # no faster than a card can be
    end=st.floats(3.0, 3.6),
    noise=st.sampled_from([0.0, 0.01]),
)


def planned(case: Case, trainer: Any) -> Any:
    assert case.resolved
    assert case.card
    return plan_json(make_plan(case.resolved, Place(card=case.card), trainer=trainer))


@settings(max_examples=share(25), deadline=None)
@given(runs, runs)
def test_compare_says_of_a_run_what_doctor_and_plan_say(one: Made, other: Made) -> None:
    first, second = one.case(), other.case()
    compared: Any = comparison_json(compare_runs([first, second]))
    diagnosed = diagnoses_json(diagnose_cases([first, second]))
    for case, said, doctors in zip((first, second), compared["runs"], diagnosed["runs"], strict=True):
        summary = doctors["summary"]
        for key in ("mfu", "tokens_per_second", "params", "params_total", "tokens_per_step", "seconds_per_micro_batch"):
            assert said[key] == summary[key], key
        for key in ("tokens", "seconds", "last_step", "steps_to_go", "evaluation_noise", "printed_mfu"):
            assert said[key] == summary[key], key
        assert said["latest_val_loss"] == said["final_val_loss"] == summary["last_val"]["val_loss"]
        forecast = doctors.get("forecast")
        assert said["forecast"] == (forecast["final_loss"] if forecast else None)
        trainer = said["predicted_for"]
        plan = planned(case, trainer)
        assert said["predicted_process_bytes"] == plan["trainers"][trainer]["process_bytes"]
        assert (said["params"], said["params_total"]) == (plan["params"]["nanogpt"], plan["params"]["total"])
        assert said["tokens_per_step"] == plan["tokens_per_step"]


CHANGES: dict[str, object] = {"n_embd": 64 * HEADS * 5, "batch_size": 4, "dropout": 0.2, "block_size": 512}


@settings(max_examples=share(15), deadline=None)
@given(runs, st.sampled_from(sorted(CHANGES)))
def test_one_change_alone_is_the_difference_of_two_plans(one: Made, key: str) -> None:
    before, after = one.case(), one.case(**{key: CHANGES[key]})
    compared: Any = comparison_json(compare_runs([before, after]))
    (effect,) = compared["predicted_alone"]["1"]
    trainer = compared["runs"][0]["predicted_for"]
    plans = [planned(case, trainer) for case in (before, after)]
    speeds = [plan["trainers"][trainer]["speed"] for plan in plans]
    assert effect["mfu"] == {"before": speeds[0]["mfu"], "after": speeds[1]["mfu"]}
    if effect["final_loss_difference"]:
        finals = [plan["loss"]["final"]["likely"] for plan in plans]
        assert effect["final_loss_difference"] == finals[1] - finals[0]
    else:
        assert effect["why_no_loss"], key


@settings(max_examples=share(15), deadline=None)
@given(runs, st.integers(1, 400))
def test_memory_under_a_tight_limit_is_the_plans(one: Made, below_mib: int) -> None:
    """Near its limit the allocator gives its cache back, so the process is smaller than without a limit."""
    (free, _) = compare_runs([one.case(), one.case()]).predicted_process_bytes
    assert free
    limited = one.case(memory_limit=max(MIB, free - below_mib * MIB))
    (said, _) = compare_runs([limited, limited]).predicted_process_bytes
    trainer = "onecard" if one.ours else "nanogpt"
    assert said == planned(limited, trainer)["trainers"][trainer]["process_bytes"]
