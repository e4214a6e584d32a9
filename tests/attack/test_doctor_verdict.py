"""The doctor is shown runs with a known illness and runs with none; its verdict must be worth something.

`python -m tests.attack.test_doctor_verdict` prints the table of docs/measurements/doctor-rates.md.
"""

import json
import math
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from onecard.config.resolve import resolve
from onecard.data.checks import check_dataset, data_findings
from onecard.data.dataset import open_dataset
from onecard.doctor.case import DataSizes
from onecard.doctor.diagnose import Diagnosis, diagnose
from onecard.doctor.evidence import epochs
from onecard.inputs.make_plan import make_plan
from onecard.plan.cards import find_card
from onecard.plan.place import Place
from onecard.report.doctor import verdict
from onecard.runs.foreign import read_logs
from tests.attack.made_runs import ILLNESSES, NOISE, STRENGTHS, alarms, healthy, healthy_runs, sick_runs
from tests.attack.real_noise import EVALUATION_NOISE, TRAINING_NOISE, training_noise

FOUND = 0.95  # of strong illnesses
FALSE_ALARMS = 0.005  # of healthy runs
FRESH_SICK, FRESH_HEALTHY = 41_000_000, 42_000_000  # seeds that no threshold was chosen by


def diagnosed(lines: Iterator[str] | list[str], data: DataSizes | None = None) -> Diagnosis:
    (run,) = read_logs([f"{line}\n".encode() for line in lines], source="made.log")
    return diagnose(run, data=data)


def logged(number: int, loss: float, seconds: float = 0.2) -> str:
    return f"iter {number}: loss {loss:.4f}, time {1000 * seconds:.2f}ms, mfu 20.00%"


def falling(number: int, dice: random.Random) -> float:
    return 3.3 + 7.6 / (1 + number / 60) + dice.gauss(0, 0.08)


DICE = random.Random(22)
STEPS = range(0, 8000, 10)
LISTED = {  # what was called healthy once, and the rule that finds it
    "a loss that rises for 3,000 updates": ("diverging", [f"iter {i}: loss {4 + i / 500:.4f}" for i in range(3000)]),
    "8,000 updates at 10.98": ("not-learning", [logged(i, 10.98) for i in STEPS]),
    "the same without a first loss": ("not-learning", [logged(i, 10.98) for i in STEPS[50:]]),
    "a plateau at 7.45": (
        "not-learning",
        [logged(i, max(7.45, 10.9 - i / 40) + DICE.gauss(0, 0.1)) for i in STEPS],
    ),
    "a loss of 0.002": ("loss-too-low", [logged(i, max(0.002, 10.9 - i / 40)) for i in STEPS]),
    "a slow swing from 6.3 to 8.7": ("unsteady-loss", [logged(i, 7.5 + 1.2 * math.sin(i / 300)) for i in STEPS]),
    "a fast swing from 6.3 to 8.7": ("unsteady-loss", [logged(i, 8.7 if i // 10 % 2 else 6.3) for i in STEPS]),
    "any loss from 6.3 to 8.7": ("unsteady-loss", [logged(i, DICE.uniform(6.3, 8.7)) for i in STEPS]),
    "ten times as slow from half-way": (
        "slowing-down",
        [logged(i, falling(i, DICE), 0.2 if i < 4000 else 2.0) for i in STEPS],
    ),
    "a fourfold drift": ("slowing-down", [logged(i, falling(i, DICE), 0.2 * (1 + 3 * i / 8000)) for i in STEPS]),
    "suddenly 2.3 times as slow": (
        "slowing-down",
        [logged(i, falling(i, DICE), 0.2 if i < 6000 else 0.46) for i in STEPS],
    ),
    "gradient norms of 1e6 to 1e12": (
        "gradient-norm",
        [f"s:{i} trl:{falling(i, DICE):.4f} lr:0.000600 norm:{10 ** DICE.uniform(6, 12):.4f}" for i in range(3000)],
    ),
    "val 1.5 nats below train": (
        "val-below-train",
        [
            line
            for i in STEPS
            for line in (
                *(
                    [f"step {i}: train loss {falling(i, DICE):.4f}, val loss {falling(i, DICE) - 1.5:.4f}"]
                    * (i % 500 == 0)
                ),
                logged(i, falling(i, DICE)),
            )
        ],
    ),
}


@pytest.mark.parametrize("name", LISTED)
def test_what_was_called_healthy_is_found_with_its_lines(name: str) -> None:
    rule, lines = LISTED[name]
    diagnosis = diagnosed(lines)
    (finding,) = (finding for finding in diagnosis.findings if finding.rule == rule)
    assert finding.severity in ("warn", "error")
    assert any(seen.startswith("line ") for seen in finding.seen)
    assert not diagnosis.healthy
    assert "healthy" not in verdict(diagnosis)


def test_the_same_run_without_its_illness_has_no_alarm() -> None:
    dice = random.Random(3)
    lines = [
        line
        for i in STEPS
        for line in (
            *([f"step {i}: train loss {falling(i, dice):.4f}, val loss {falling(i, dice):.4f}"] * (i % 500 == 0)),
            logged(i, falling(i, dice)),
        )
    ]
    diagnosis = diagnosed(lines)
    assert diagnosis.healthy
    assert diagnosis.not_looked_at == ("gradient norm",)
    assert "not looked at, because too little of it is logged: gradient norm" in verdict(diagnosis)


def ours(**changed: float) -> list[str]:
    """Records of a run of ours that learns; some of its fields otherwise."""
    dice = random.Random(5)
    return [
        json.dumps(
            {"kind": "step", "step": n, "tokens": 512 * n, "loss": falling(n, dice), "lr": 6e-4, "grad_norm": 0.5}
            | {"seconds": 0.2, "elapsed_seconds": 0.2 * n, "data_wait_seconds": 0.001}
            | (changed if n > 200 else {})
        )
        for n in range(1, 401)
    ]


@pytest.mark.parametrize(
    ("rule", "changed"),
    [("waiting-for-data", {"data_wait_seconds": 0.19}), ("slowing-down", {"seconds": 1.2}), ("", {})],
)
def test_a_run_of_ours_that_waits_or_is_six_times_slower(rule: str, changed: dict[str, float]) -> None:
    found = {finding.rule for finding in diagnosed(ours(**changed)).findings if finding.severity != "info"}
    assert found == ({rule} if rule else set())


def noisy_log(seed: int) -> list[str]:
    """A log of evaluations with a standard deviation of 0.1, of a run that learns and then hardly moves."""
    dice = random.Random(seed)
    levels = [(n, 3.5 + 4 / (1 + n / 200)) for n in range(0, 10_001, 500)]
    return [
        f"step {n}: train loss {level + dice.gauss(0, 0.1):.4f}, val loss {level + dice.gauss(0, 0.1):.4f}"
        for n, level in levels
    ]


def test_nothing_is_memorised_below_one_epoch() -> None:
    """Forty noisy logs that read 0.18 of their data, and one with a wide gap from the start."""
    data = DataSizes(train_tokens=round(10_000 * 491_520 / 0.18))
    header = ["tokens per iteration will be: 491,520"]
    runs = [diagnosed([*header, *noisy_log(seed)], data) for seed in range(40)]
    wide = [
        f"step {n}: train loss {2 + 4 / (1 + n):.4f}, val loss {3.4 + 4 / (1 + n):.4f}" for n in range(0, 5001, 500)
    ]
    runs.append(diagnosed([*header, *wide], data))
    assert max(epochs(run.case, run.case.facts.tokens) or 0 for run in runs) == pytest.approx(0.18)
    assert [f.what for run in runs for f in run.findings if f.rule == "overfitting"] == []
    read_often = DataSizes(train_tokens=10**9)
    assert any(f.rule == "overfitting" for f in diagnosed([*header, *wide], read_often).findings)


def test_noisy_evaluations_without_a_data_size_are_hardly_ever_called_sick() -> None:
    runs = [diagnosed(noisy_log(seed)) for seed in range(200)]
    sick = [f.rule for run in runs for f in run.findings if f.severity != "info"]
    assert len(sick) <= FALSE_ALARMS * len(runs), sick


OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 768.00 MiB. GPU 0 has a total capacity of 11.69 GiB "
    "of which 580.00 MiB is free. Process 2451 has {other} GiB memory in use. {ours}Of the allocated memory "
    "{allocated} GiB is allocated by PyTorch, and 120.00 MiB is reserved by PyTorch but unallocated."
)


@pytest.mark.parametrize(
    ("other", "allocated", "this", "cause"),
    [
        ("10.60", "10.20", "", "oom-capacity"),  # the same process, seen from outside its container
        ("10.60", "10.20", "10.58", "oom-capacity"),
        ("6.00", "4.50", "", "oom-other-process"),
        ("6.00", "4.50", "5.00", "oom-other-process"),
    ],
)
def test_sums_that_exceed_the_card_are_no_conclusion(other: str, allocated: str, this: str, cause: str) -> None:
    said = f"Including non-PyTorch memory, this process has {this} GiB memory in use. " if this else ""
    (finding,) = (
        f
        for f in diagnosed([OOM.format(other=other, allocated=allocated, ours=said)]).findings
        if f.rule.startswith("oom-")
    )
    assert finding.rule == cause
    assert ("10.6" in finding.why) is False


OLD_OOM = (
    "RuntimeError: CUDA out of memory. Tried to allocate 400.00 MiB (GPU 0; 15.75 GiB total capacity; 5.10 GiB already "
    "allocated; {free}; {limit}5.20 GiB reserved in total by PyTorch)"
)


@pytest.mark.parametrize(
    ("free", "limit", "cause"),
    [
        ("8.60 GiB free", "", "oom-despite-free"),
        ("900.00 MiB free", "", "oom-despite-free"),
        ("500.00 MiB free", "", "oom-other-process"),  # hardly enough: others hold the rest
        ("8.60 GiB free", "5.30 GiB allowed; ", "oom-capacity"),  # a limit of its own
    ],
)
def test_others_are_not_blamed_where_enough_is_free(free: str, limit: str, cause: str) -> None:
    """Others hold 1.6 GiB there, and what was asked for fits beside them five times."""
    (finding,) = (f for f in diagnosed([OLD_OOM.format(free=free, limit=limit)]).findings if f.rule.startswith("oom-"))
    assert finding.rule == cause
    assert ("other programs hold" in f"{finding.what} {finding.why}") is (cause == "oom-other-process")
    if cause == "oom-despite-free":
        assert finding.sure == "low", "the message does not say why"
        assert free.removesuffix(" free").removesuffix(".00 MiB") in finding.what


USUAL = "dataset='fineweb'\nmax_iters=5000\nlr_decay_iters=5000\nwarmup_iters=200\n"


@pytest.mark.parametrize(
    ("rule", "key", "value"),
    [
        ("lr-out-of-range", "learning_rate", 1.0),
        ("weight-decay-out-of-range", "weight_decay", 100.0),
        ("needless-dropout", "dropout", 0.99),
        ("warmup-length", "warmup_iters", 6000),
    ],
)
def test_a_plan_checks_the_conditions_of_its_law(rule: str, key: str, value: float) -> None:
    card = find_card("RTX 4070")
    assert card
    place = Place(card=card, other_bytes=0)
    usual = make_plan(resolve(USUAL), place)
    assert usual.loss
    assert usual.findings == ()
    plan = make_plan(resolve(f"{USUAL}{key}={value!r}\n", filename="c.py"), place)
    assert plan.loss is None
    (finding,) = plan.findings
    assert (finding.rule, finding.severity) == (rule, "warn")
    assert any(seen.startswith(f"{key} = ") for seen in finding.seen)
    assert key in finding.patch


def test_a_rate_a_little_too_high_keeps_its_forecast_with_a_caution() -> None:
    plan = make_plan(resolve(f"{USUAL}learning_rate=4e-3\n"))
    assert plan.loss
    assert "4" in plan.loss.caution
    assert "expect a higher loss" in plan.loss.caution


def write_data(folder: Path, train: np.ndarray, val: np.ndarray) -> None:
    folder.mkdir(parents=True)
    for name, tokens in (("train", train), ("val", val)):
        tokens.astype("<u2").tofile(folder / f"{name}.bin")


TEXT = np.random.default_rng(1).integers(0, 50_000, 20_000)


@pytest.mark.parametrize(
    ("val", "words"),
    [
        (TEXT, "is the same as the training data"),
        (TEXT[:3000], "is the beginning of the training data"),
        (TEXT[-3000:], "is the end of the training data"),
        (np.concatenate([TEXT[:2999], [7]]), None),
        (np.random.default_rng(2).integers(0, 50_000, 3000), None),
    ],
)
def test_validation_data_that_is_training_data_is_found_everywhere(
    tmp_path: Path, val: np.ndarray, words: str | None
) -> None:
    write_data(tmp_path / "made", TEXT, val)
    dataset = open_dataset(str(tmp_path / "made"), environ={"HOME": str(tmp_path)})
    for found in (data_findings(dataset), check_dataset(dataset, block_size=64, vocab_size=50_304)):
        assert [(f.rule, words in f.what if words else None) for f in found] == (
            [("val-same-as-train", True)] if words else []
        )


def rates(patients: int) -> tuple[dict[tuple[str, str], Counter[str]], list[str], list[str], Counter[str]]:
    """How many illnesses of each kind are found or called healthy; strong ones that were missed; false alarms; how sure
    the alarms were that were right ("high") and those that were false ("high, false")."""
    sure: Counter[str] = Counter()
    counts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    missed = []
    for patient in sick_runs(patients, first=FRESH_SICK):
        found = alarms(patient.case)
        sure.update(finding.sure for finding in found if finding.rule == patient.rule)
        kind = counts[patient.illness, patient.strength or ""]
        kind["made"] += 1
        kind["found"] += any(finding.rule == patient.rule for finding in found)
        kind["called healthy"] += not found
        if patient.strength == "strong" and not any(finding.rule == patient.rule for finding in found):
            missed.append(f"{patient}: {[finding.rule for finding in found]}")
    false = []
    for patient in healthy_runs(patients, first=FRESH_HEALTHY):
        if found := alarms(patient.case):
            sure.update(f"{finding.sure}, false" for finding in found)
            false.append(f"{patient}: {[f'{finding.rule}, sure: {finding.sure}' for finding in found]}")
    return counts, missed, false, sure


@pytest.mark.parametrize("patients", [100, pytest.param(1500, marks=[pytest.mark.long, pytest.mark.timeout(1800)])])
def test_the_aims_are_met(patients: int) -> None:
    counts, missed, false, _ = rates(patients)
    strong = [count for (_, strength), count in counts.items() if strength == "strong"]
    made = sum(count["made"] for count in strong)
    assert sum(count["found"] for count in strong) >= FOUND * made, missed
    assert sum(count["called healthy"] for count in strong) == 0, missed
    assert len(false) <= FALSE_ALARMS * patients, false


def test_healthy_runs_vary_at_least_as_much_as_real_ones() -> None:
    """The generator against the figures of real logs: its law fits them, and its ranges go beyond them."""
    for tokens, noise, _, run in TRAINING_NOISE:
        assert noise < NOISE[1] / 1.5 * training_noise(tokens), run
        if "in bytes" not in run:  # bytes vary less than tokens of GPT-2
            assert training_noise(tokens) == pytest.approx(noise, rel=0.35), run
    made = [healthy(seed, "nanogpt") for seed in range(200)]
    assert max(run.noise for run in made) > 2 * max(noise for _, noise, *_ in TRAINING_NOISE)
    assert min(run.scatter for run in made) < 0.001
    assert max(run.scatter for run in made) > 2 * max(noise for noise, *_ in EVALUATION_NOISE)
    rises = [max(b - min(run.curve[: n + 1]) for n, b in enumerate(run.curve)) for run in made]
    assert max(rises) > 0.1 > 2 * max(rise for _, rise, _ in EVALUATION_NOISE)


def test_a_healthy_run_that_falls_ill_is_noticed() -> None:
    """The generator itself: the same run is healthy, and with an illness it is not."""
    (well,) = healthy_runs(1, first=7)
    assert alarms(well.case) == []
    steps = tuple(replace(step, loss=math.nan) for step in well.case.steps)
    assert alarms(replace(well.case, steps=steps))


def table(patients: int) -> Iterator[str]:
    """The measured rates, as Markdown."""
    counts, missed, false, sure = rates(patients)
    yield (
        "| illness | rule | "
        + " | ".join(f"{strength}: found" for strength in STRENGTHS)
        + " | strong, called healthy |"
    )
    yield "|---|---|" + "---|" * (len(STRENGTHS) + 1)
    for illness, (rule, *_) in ILLNESSES.items():
        shares = (f"{counts[illness, s]['found']} of {counts[illness, s]['made']}" for s in STRENGTHS)
        yield f"| {illness} | `{rule}` | {' | '.join(shares)} | {counts[illness, 'strong']['called healthy']} |"
    strong = [counts[illness, "strong"] for illness in ILLNESSES]
    made, found, called = (sum(count[name] for count in strong) for name in ("made", "found", "called healthy"))
    yield ""
    yield f"Strong illnesses: {found} of {made} found ({found / made:.1%}), {called} called healthy."
    yield f"Healthy runs: {len(false)} of {patients} with an alarm ({len(false) / patients:.2%})."
    for how in ("high", "medium", "low"):
        yield f"Alarms that are sure: {how}: {sure[how]} in sick runs, {sure[f'{how}, false']} in healthy ones."
    yield from (f"- missed: {each}" for each in missed)
    yield from (f"- false alarm: {each}" for each in false)


if __name__ == "__main__":
    sys.stdout.write("\n".join(table(int(sys.argv[1]) if len(sys.argv) > 1 else 1500)) + "\n")
