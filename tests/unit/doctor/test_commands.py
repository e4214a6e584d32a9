"""What the doctor tells people to type: the smallest cure of the first problem, accepted by the trainer it names."""

import math
import random
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace

import pytest

from onecard.config.command import ALLOCATOR_SETTINGS
from onecard.config.resolve import resolve
from onecard.config.schema import NANOGPT_KEYS, RunConfig
from onecard.doctor.case import Case
from onecard.doctor.diagnose import Diagnosis, diagnose_cases
from onecard.inputs.before_run import check_keys
from onecard.plan.counts import count_params
from onecard.plan.memory.predict import predict_memory
from onecard.plan.precision import with_dtype
from onecard.runs.records import Checkpoint, End, Record
from onecard.units import GIB
from tests.attack.made_runs import sick_runs
from tests.unit.doctor.cases import NARROW, SICK, SMALL, case, changed, evals, oom, steps

FULL = {"capacity": 11.7, "free": 0.1, "allocated": 11.0, "reserved_unallocated": 0.2, "process": 11.5}
CONFIGS = {"c.py": SMALL}


def diagnosed(patient: Case) -> Diagnosis:
    (diagnosis,) = diagnose_cases([patient])
    return diagnosis


def commands(diagnosis: Diagnosis) -> Iterator[str]:
    """Every command of an answer."""
    for made in diagnosis.prescriptions:
        yield made.command
        if made.under_onecard:
            yield made.under_onecard[0]


def accepted(command: str, diagnosis: Diagnosis) -> RunConfig:
    """The config that a command trains; fails where its trainer refuses the command or the run before it begins."""
    words = shlex.split(command)
    if words[0].startswith(ALLOCATOR_SETTINGS):
        words = words[1:]
    assert words[:2] in (["python", "train.py"], ["onecard", "train"]), command
    flags = [word.removeprefix("--").partition("=")[::2] for word in words[2:] if word.startswith("--")]
    files = [word for word in words[2:] if not word.startswith("--")]
    resolved = diagnosis.case.resolved
    assert resolved
    assert files in ([], [resolved.source]), command
    if words[0] == "python":
        assert {key for key, _ in flags} <= set(NANOGPT_KEYS), command
    said = {key: getattr(resolved.config, key) for key in resolved.origins} if files else {}
    text = "".join(f"{key} = {value!r}\n" for key, value in said.items())
    config = resolve(text if files else None, filename="c.py", flags=flags).config
    check_keys(config)
    assert config.min_lr <= config.learning_rate, command
    assert config.n_embd % config.n_head == 0
    assert config.init_from != "resume"
    if place := diagnosis.case.place:
        trainer = "nanogpt" if words[0] == "python" else "onecard"
        planned = with_dtype(config, place.card)
        memory = predict_memory(planned, place.card, trainer, available_bytes=place.available_bytes_for(planned))
        segments = "expandable_segments:True" in command
        assert segments or memory.process_bytes <= place.available_bytes, command
    return config


def test_a_cure_fits_beside_what_other_programs_hold() -> None:
    """The run would fit the card alone; of 11.7 GiB others hold 8."""
    held = {"capacity": 11.7, "free": 0.1, "allocated": 3.2, "reserved_unallocated": 0.1, "process": 3.6}
    diagnosis = diagnosed(case(NARROW, messages=[oom(tried=1.5, **held)], card="RTX 4070"))
    first = diagnosis.prescription
    assert first
    assert first.rule == "oom-other-process"
    for command in commands(diagnosis):
        config = accepted(command, diagnosis)
        trainer = "nanogpt" if command.startswith("python") else "onecard"
        assert diagnosis.case.card
        memory = predict_memory(with_dtype(config, diagnosis.case.card), diagnosis.case.card, trainer)
        assert memory.process_bytes < 3.8 * GIB, command


@pytest.mark.parametrize("card", ["RTX 4070", None])
def test_after_too_little_memory_nothing_makes_the_model_larger(card: str | None) -> None:
    large = NARROW.replace("batch_size = 8", "batch_size = 64").replace("_steps = 64", "_steps = 8")
    diagnosis = diagnosed(case(large, messages=[oom(tried=6.14, **FULL)], card=card))
    first = diagnosis.prescription
    assert first
    assert first.rule == "oom-capacity"
    assert set(first.repair.patch) == {"batch_size", "gradient_accumulation_steps"}, "the smallest cure"
    for command in commands(diagnosis):
        assert accepted(command, diagnosis).n_embd == 384
    comment = next(finding for finding in diagnosis.findings if finding.rule == "params-mismatch")
    assert (comment.severity, comment.patch) == ("info", {})


def test_the_same_run_under_onecard_is_among_the_cures() -> None:
    diagnosis = diagnosed(SICK["oom-capacity"]())
    (finding,) = [finding for finding in diagnosis.findings if finding.rule == "oom-capacity"]
    said = re.search(r"or train with onecard: the same run in ([\d,]+) MiB", finding.fix)
    assert said
    first = diagnosis.prescription
    assert first
    assert first.under_onecard
    command, process_bytes = first.under_onecard
    assert f"{process_bytes / 2**20:,.0f}" == said[1]
    assert command.startswith("onecard train c.py ")
    assert accepted(command, diagnosis).tokens_per_step == diagnosis.case.facts.tokens_per_step


def test_without_a_card_a_larger_model_takes_no_more_memory_than_the_run_did() -> None:
    wide = NARROW.replace("batch_size = 8", "batch_size = 16").replace("_steps = 64", "_steps = 32")
    diagnosis = diagnosed(case(wide, records=steps([10.8, 4.0, 3.9])))
    first = diagnosis.prescription
    assert first
    assert (first.repair.patch["n_embd"], first.repair.patch["batch_size"]) == (768, 8)
    ran, meant = (
        predict_memory(config, None, "nanogpt").process_bytes
        for config in (resolve(wide, filename="c.py").config, accepted(first.command, diagnosis))
    )
    assert meant <= ran


def test_the_end_of_the_rate_follows_the_rate() -> None:
    lost = changed(learning_rate=1000.0, min_lr=500.0, lr_decay_iters=600_000)
    for records in (steps([10.8, 900.0, float("nan"), float("nan")]), steps([10.8, 4.0])):
        diagnosis = diagnosed(case(lost, records=records))
        for command in commands(diagnosis):
            config = accepted(command, diagnosis)
            assert config.min_lr <= 6e-5 or config.learning_rate == 1000
        for finding in diagnosis.findings:
            assert finding.patch.get("min_lr", 0) <= 6e-5  # type: ignore[operator]


def test_nothing_is_resumed_without_a_checkpoint() -> None:
    def said(*more: Record, **keys: object) -> str:
        end = End(step=200, tokens=0, reason="diverged", best_val_loss=None, seconds=1.0)
        patient = case(changed(**keys), records=[*steps([10.8, 4.0, float("nan")]), *more, end], log_format="onecard")
        return " ".join(finding.fix for finding in diagnosed(patient).findings)

    assert "--resume" not in said()
    assert "the checkpoint of step" not in said()
    saved = Checkpoint(step=100, tokens=0, path="checkpoints/step-00000100", seconds=1.0, reason="eval", best=True)
    assert "--resume" in said(saved)
    assert "go back to the checkpoint of step 100" in said(saved)
    assert "resume" not in " ".join(
        finding.fix for finding in diagnosed(case(records=evals([(10.8, 10.8), (5.0, 5.0)]))).findings
    )


@pytest.mark.parametrize("name", SICK)
def test_every_command_of_a_finding_is_accepted(name: str) -> None:
    diagnosis = diagnosed(SICK[name]())
    for command in commands(diagnosis):
        accepted(command, diagnosis)


def made_up(seed: int) -> Case:
    """A run with odd settings that ran out of memory, diverged, or was only wrongly set."""
    dice = random.Random(seed)
    keys: dict[str, object] = {
        "n_embd": 64 * dice.choice((2, 6, 12, 16)),
        "n_head": dice.choice((2, 4, 8)),
        "n_layer": dice.choice((2, 6, 12)),
        "batch_size": dice.choice((1, 3, 8, 64)),
        "gradient_accumulation_steps": dice.choice((1, 5, 64, 1000)),
        "learning_rate": dice.choice((1e-6, 6e-4, 0.1, 1000.0)),
        "min_lr": dice.choice((0.0, 6e-5, 0.5, 500.0)),
        "dtype": dice.choice(("float32", "float16", "bfloat16")),
        "dropout": dice.choice((0.0, 0.1)),
        "max_iters": dice.choice((10, 5000, 100_000)),
        "lr_decay_iters": dice.choice((10, 5000, 600_000)),
        "warmup_iters": dice.choice((0, 2000)),
        "decay_lr": dice.choice((True, True, False)),
        "weight_decay": dice.choice((0.1, 30.0)),
        "out_dir": dice.choice(("out", "out 125M", "it's")),
        "init_from": dice.choice(("scratch", "scratch", "resume", "gpt2")),
    }
    if keys["init_from"] == "gpt2":
        keys |= {"n_layer": 12, "n_head": 12, "n_embd": 768, "block_size": 1024}
    comment = dice.choice(("", "# Model (~125M parameters)\n", "# Model (~7B parameters)\n"))
    losses = dice.choice(([], [10.8, 4.0, 3.9], [10.8, 30.0, float("nan"), float("nan")]))
    return case(
        changed(**keys) + comment,
        records=steps(losses),
        messages=dice.choice(([], [oom(tried=1.5, **FULL)], [oom(in_eval=True, tried=6.0, **FULL)])),
        card=dice.choice((None, "RTX 4070", "V100 SXM2 16GB")),
        log_format=dice.choice(("nanogpt", "onecard")),
        train_tokens=dice.choice((None, 10**6, 10**11)),
        val_tokens=dice.choice((None, 1000)),
    )


@pytest.mark.parametrize("seed", range(40))
def test_every_command_of_a_made_up_run_is_accepted(seed: int) -> None:
    diagnosis = diagnosed(made_up(seed))
    for command in commands(diagnosis):
        accepted(command, diagnosis)
    died = any(message.kind == "oom" for message in diagnosis.case.run.messages)
    config = diagnosis.case.resolved.config if diagnosis.case.resolved else None
    for command in commands(diagnosis) if died and config else ():
        assert count_params(accepted(command, diagnosis)).total <= count_params(config).total


def test_every_command_for_a_sick_run_is_accepted() -> None:
    shown = 0
    for patient in sick_runs(200):
        if patient.case.resolved is None or not patient.case.resolved.source:
            continue  # nothing to type
        diagnosis = diagnosed(patient.case)
        for command in commands(diagnosis):
            accepted(command, diagnosis)
            shown += 1
    assert shown > 20


def test_a_run_whose_gradients_are_lost_by_its_rate_is_told_the_rate_not_float16() -> None:
    made = steps([5.28, 8765.0, *[32510.0] * 6])
    records: list[Record] = [
        replace(each, grad_norm=1.0 if number < 3 else math.nan) for number, each in enumerate(made)
    ]
    diagnosis = diagnosed(case(SMALL + "learning_rate = 1000.0\ndtype = 'float32'\n", records=records))
    first = diagnosis.prescription
    assert first
    assert first.rule == "loss-nan"
    assert first.repair.patch["learning_rate"] < 1
    assert not any("float16" in finding.fix for finding in diagnosis.findings if finding.rule == "loss-nan")
