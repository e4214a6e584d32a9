"""The Python names: the answers of the commands, from paths, mappings and runs."""

import doctest
import json
import math
import re
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import onecard
import onecard.api
from onecard.plan.proposal import config_text
from onecard.report.compare_json import comparison_json
from onecard.report.plan_json import plan_json
from onecard.runs.folder import create_run
from tests.made_records import start, step
from tests.warm import ROOT, WarmProcess

Answered = Callable[..., Any]

LOG = "\n".join(
    ["tokens per iteration will be: 32,768", "number of parameters: 29.94M"]
    + [f"iter {n}: loss {10.9 - n / 50:.4f}, time 100.00ms, mfu 10.00%" for n in range(100)]
    + ["step 100: train loss 8.9000, val loss 8.9500"]
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of three steps, as a trainer would leave it, and a checkpoint's worth of nothing else."""
    path = tmp_path / "run"
    config = {"n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 16, "batch_size": 2}
    with create_run(path, config=config) as run:
        run.append(start(0, resumed_from=None))
        for number in (1, 2, 3):
            run.append(step(number, loss=4.0 - number, lr=0.1))
    return path


def test_the_examples_in_the_docstrings_are_true() -> None:
    assert doctest.testmod(onecard.api).failed == 0
    assert doctest.testmod(onecard.api).attempted > 0


def test_a_plan_of_a_file_a_mapping_and_nothing(tmp_path: Path) -> None:
    keys = {"n_layer": 6, "n_head": 6, "n_embd": 384, "block_size": 512}
    file = tmp_path / "config.py"
    file.write_text("".join(f"{key} = {value}\n" for key, value in keys.items()))
    plans = [onecard.make_plan(given, gpu="none") for given in (file, str(file), keys)]
    assert {plan.params.nanogpt for plan in plans} == {29_938_560}
    assert plans[0].fits is None
    assert onecard.make_plan(gpu="none").config.dataset == "python-stdlib"


def test_keys_change_a_config_and_are_checked_like_flags() -> None:
    plan = onecard.make_plan({"n_layer": 6}, gpu="RTX 4070", batch_size=4, dtype="float16", compile=False)
    assert (plan.config.batch_size, plan.config.dtype, plan.config.compile) == (4, "float16", False)
    assert plan.resolved.origins["batch_size"] == "--batch_size"
    with pytest.raises(onecard.OnecardError) as refused:
        onecard.make_plan(gpu="none", batchsize=4)
    assert refused.value.name == "unknown-key"
    assert "batch_size" in refused.value.fix


def test_a_mapping_is_checked_like_keywords_and_starts_from_nanogpts_defaults() -> None:
    with pytest.raises(onecard.OnecardError) as refused:
        onecard.make_plan({"n_layers": 3}, gpu="none")
    assert (refused.value.name, refused.value.fix) == ("unknown-key", "did you mean n_layer=3 ?")
    with pytest.raises(onecard.OnecardError, match="n_layers is not a config key"):
        onecard.diagnose("train.log", config={"n_layers": 3})
    bare = onecard.make_plan({}, gpu="4070", n_layer=6)
    assert bare.config == onecard.make_plan({"n_layer": 6}, gpu="4070").config
    assert bare.config.dataset == "openwebtext"


def test_numpys_numbers_are_numbers() -> None:
    numpy = pytest.importorskip("numpy", reason="needs numpy")
    plan = onecard.make_plan(
        {"n_layer": numpy.int64(6)}, vram_bytes=numpy.int64(2**40), batch_size=numpy.int32(4), compile=numpy.False_
    )
    assert (plan.config.n_layer, plan.config.batch_size, plan.config.compile) == (6, 4, False)
    assert plan.fits is True


def test_a_mapping_takes_the_shape_of_what_it_starts_from(folder: Path) -> None:
    run = folder.parent / "model"
    run.mkdir()
    shape = {"model_type": "gpt2", "n_layer": 3, "n_head": 4, "n_embd": 64, "n_positions": 128, "vocab_size": 300}
    (run / "config.json").write_text(json.dumps(shape))
    plan = onecard.make_plan({"init_from": run}, gpu="none")
    assert (plan.config.n_layer, plan.config.n_embd, plan.config.vocab_size) == (3, 64, 300)


def test_a_plan_of_the_embedded_text_knows_its_vocabulary_and_builds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONECARD_HOME", str(tmp_path / "home"))
    assert onecard.make_plan({"dataset": "python-stdlib"}).resolved.config.vocab_size == 256
    assert not (tmp_path / "home").exists()


def test_an_empty_mapping_under_keywords_sets_something() -> None:
    assert onecard.make_plan({}, n_layer=4, gpu="RTX 4070").resolved.warnings == ()


def test_what_is_proposed_for_nanogpt_fits_under_onecard_too(tmp_path: Path) -> None:
    """Whatever evaluation batch the config asks for, of which nanoGPT knows nothing."""
    small: dict[str, Any] = {"gpu": "RTX 4070", "vram_bytes": "4GiB"}
    (proposal, *_) = onecard.make_plan({"eval_batch_size": 512}, hours=24, **small).proposals or ()
    (tmp_path / "proposed.py").write_text(config_text(proposal))
    again = onecard.make_plan(tmp_path / "proposed.py", **small)
    assert again.nanogpt and again.onecard  # noqa: PT018
    assert again.nanogpt.memory.fits
    assert again.onecard.memory.fits


def test_amounts_are_whole_numbers_of_any_kind_or_text_as_the_command_takes_it() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        floats = onecard.make_plan(gpu="RTX 4070", tokens=1e9, other_bytes=2.0**30)
    assert floats.proposals is not None
    steps = [proposal.config.max_iters for proposal in floats.proposals]
    assert all(type(step) is int for step in steps)
    texts = onecard.make_plan(gpu="RTX 4070", tokens="1B", other_bytes="1GiB")
    assert [proposal.config.max_iters for proposal in texts.proposals or ()] == steps
    assert onecard.make_plan({}, vram_bytes="1TiB").available_bytes == 2**40
    fitted = onecard.make_plan(gpu="RTX 4070", trainer="nanogpt", fit=True, params="12M")
    assert fitted.params.nanogpt == pytest.approx(12e6, rel=0.1)


def test_a_plan_fits_searches_and_proposes_as_the_command_does() -> None:
    small = {"n_layer": 6, "n_head": 6, "n_embd": 384, "block_size": 512}
    assert onecard.make_plan(small, vram_bytes=2**40).fits is True
    assert onecard.make_plan(small, vram_bytes=2**30).fits is False
    fitted = onecard.make_plan(small, vram_bytes=4 * 2**30, fit=True)
    assert fitted.fit is not None
    assert fitted.fit.best is not None


def test_a_missing_file_is_three_lines_as_an_exception() -> None:
    for call in (onecard.make_plan, onecard.diagnose, onecard.load_run):
        with pytest.raises(onecard.OnecardError) as refused:
            call("nowhere/at/all")
        assert all((refused.value.what, refused.value.why, refused.value.fix))


def test_a_log_and_a_folder_are_diagnosed(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "train.log").write_text(LOG)
    log, run = onecard.diagnose(tmp_path / "train.log", onecard.load_run(folder), gpu="RTX 4070", final=True)
    assert (log.case.run.format, run.case.run.format) == ("nanogpt", "onecard")
    assert log.case.facts.last_step == 100
    assert log.case.card is not None
    assert [each.case.run.source for each in onecard.diagnose(folder)] == [run.case.run.source]


def test_a_config_speaks_for_a_log(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text(LOG)
    (found,) = onecard.diagnose(tmp_path / "train.log", config={"n_layer": 6, "n_embd": 384, "n_head": 6})
    assert found.case.resolved is not None
    assert found.case.resolved.config.n_embd == 384


def beside(folder: Path, name: str, *, n_embd: int, n_head: int = 6) -> Path:
    """A log with its config beside it."""
    (folder / f"{name}.log").write_text(LOG)
    keys = {"n_layer": 6, "n_head": n_head, "n_embd": n_embd, "block_size": 512, "batch_size": 8}
    keys |= {"gradient_accumulation_steps": 8, "dropout": 0.1, "max_iters": 100}
    (folder / f"{name}.config.py").write_text("".join(f"{key} = {value}\n" for key, value in keys.items()))
    return folder / f"{name}.log"


@pytest.fixture
def answered(warm: WarmProcess) -> Answered:
    """What a command says, as JSON."""
    return lambda *arguments: warm.run(*arguments, "--json", cwd=ROOT).json


@pytest.mark.parametrize("n_head", [6, 7])
def test_a_log_is_diagnosed_as_the_command_does_with_the_config_beside_it(
    tmp_path: Path, n_head: int, answered: Answered
) -> None:
    log = beside(tmp_path, "train", n_embd=384, n_head=n_head)
    (said,) = answered("doctor", str(log), "--gpu", "RTX 4070")["runs"]
    (found,) = onecard.diagnose(log, gpu="RTX 4070")
    assert [finding.rule for finding in found.findings] == [finding["rule"] for finding in said["findings"]]
    assert (found.case.resolved is None) == (n_head == 7)  # seven heads do not divide 384, which is a finding
    (named,) = onecard.diagnose(log, config=log.with_name("train.config.py"), gpu="RTX 4070")
    assert [finding.rule for finding in named.findings] == [finding.rule for finding in found.findings]
    log.with_name("train.config.py").unlink()
    (alone,) = onecard.diagnose(log, gpu="RTX 4070")
    assert len(alone.findings) < len(found.findings)


def test_logs_are_compared_as_the_command_does_with_the_configs_beside_them(tmp_path: Path, answered: Answered) -> None:
    logs = [beside(tmp_path, name, n_embd=n_embd) for name, n_embd in (("a", 384), ("b", 768))]
    said = answered("compare", *map(str, logs), "--gpu", "H200")
    found = onecard.compare_runs(*logs, gpu="H200")
    assert comparison_json(found) == said
    assert said["config_diff"] == {"n_embd": [384, 768]}
    one_named = onecard.compare_runs(*logs, configs=[{"n_embd": 192, "n_head": 6}, None])
    assert one_named.config_diff["n_embd"] == (192, 768)


def test_runs_are_compared(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "train.log").write_text(LOG)
    found = onecard.compare_runs(folder, tmp_path / "train.log", configs=[None, {"n_embd": 384, "n_head": 6}])
    assert found.config_diff["n_embd"] == (32, 384)
    with pytest.raises(onecard.OnecardError, match="needs two runs"):
        onecard.compare_runs(folder)
    with pytest.raises(onecard.OnecardError, match="1 configs for 2 sources"):
        onecard.compare_runs(folder, folder, configs=[None])


def test_a_run_becomes_a_table(folder: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas: pip install pandas")
    evaluated = {"kind": "eval", "step": 2, "tokens": 1024, "val_loss": 2.5, "block_size": 16}
    first = evaluated | {"step": 0, "tokens": 0, "val_loss": "NaN"}
    with (folder / "records.jsonl").open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in (first, evaluated))
    table = onecard.load_run(folder).to_pandas()
    assert list(table.index) == [0, 1, 2, 3]
    assert table.index.name == "step"
    assert list(table["tokens"]) == [0, 512, 1024, 1536]
    assert list(table["loss"].dropna()) == [3.0, 2.0, 1.0]
    assert table.loc[2, "val_loss"] == 2.5
    assert math.isnan(table.loc[3, "val_loss"])
    assert all(pandas.api.types.is_numeric_dtype(kind) for kind in table.dtypes)


def test_a_run_without_records_is_an_empty_table(tmp_path: Path) -> None:
    pytest.importorskip("pandas", reason="needs pandas: pip install pandas")
    create_run(tmp_path / "run", config={}).close()
    table = onecard.load_run(tmp_path / "run").to_pandas()
    assert len(table) == 0
    assert "val_loss" in table.columns


@pytest.mark.parametrize(
    "asked",
    [
        {"hours": math.inf},
        {"hours": math.nan},
        {"hours": -1},
        {"tokens": 0},
        {"fit": True, "params": -1},
        {"fit": True, "params": 0},
        {"fit": True, "params": 10**30},
        {"vram_bytes": -5},
        {"vram_bytes": 12},
        {"other_bytes": -1},
        {"tokens": 1.5},
        {"tokens": math.inf},
        {"tokens": True},
        {"tokens": "many"},
        {"tokens": [1]},
        {"tokens": 10**400},
        {"fit": True, "params": 0.5},
        {"hours": "two"},
        {"hours": 10**400},
        {"hours": True},
        {"vram_bytes": "lots"},
        {"vram_bytes": 2**30 + 0.5},
        {"vram_bytes": object()},
        {"other_bytes": "12"},  # of what?
    ],
)
def test_a_number_that_cannot_be_is_refused_in_three_parts(asked: dict[str, object]) -> None:
    with pytest.raises(onecard.OnecardError) as refused:
        onecard.make_plan(gpu="RTX 4070", **asked)  # type: ignore[arg-type]
    assert refused.value.what
    assert refused.value.why
    assert refused.value.fix


@pytest.mark.parametrize(
    ("asked", "fix"),
    [
        ({"vram_bytes": "12"}, 'vram_bytes="12GiB"'),
        ({"other_bytes": "2,1GiB"}, 'other_bytes="2.1GiB"'),
        ({"tokens": "2,5B"}, 'tokens="2.5B"'),
        ({"tokens": "many"}, 'tokens="124M"'),
    ],
)
def test_text_that_is_no_amount_is_answered_with_what_was_meant(asked: dict[str, Any], fix: str) -> None:
    with pytest.raises(onecard.OnecardError) as refused:
        onecard.make_plan(gpu="RTX 4070", **asked)
    assert refused.value.fix == fix


def test_a_plan_refuses_what_the_command_refuses() -> None:
    with pytest.raises(onecard.OnecardError, match="--params needs --fit"):
        onecard.make_plan(gpu="RTX 4070", params=350_000_000)
    with pytest.raises(onecard.OnecardError, match="12345"):
        onecard.make_plan(gpu=12345)  # type: ignore[arg-type]
    with pytest.raises(onecard.OnecardError, match="'foo' is not a trainer"):
        onecard.make_plan(gpu="RTX 4070", trainer="foo")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("asked", "typed"),
    [
        ({"hours": 4, "params": 124e6}, ["--hours", "4", "--params", "124M"]),
        ({"hours": 4, "params": 124e6, "fit": True}, ["--hours", "4", "--params", "124M", "--fit"]),
        ({"tokens": "1B", "sensitivity": True}, ["--tokens", "1B", "--sensitivity"]),
    ],
)
def test_questions_that_exclude_each_other_do_so_as_in_the_command(
    asked: dict[str, Any], typed: list[str], answered: Answered
) -> None:
    with pytest.raises(onecard.OnecardError) as refused:
        onecard.make_plan(gpu="RTX 4070", **asked)
    error = answered("plan", "--gpu", "RTX 4070", *typed)["error"]
    assert refused.value.name == error["name"]
    assert (refused.value.what, refused.value.why) == (error["what"].replace("--", ""), error["why"].replace("--", ""))
    assert "--" not in refused.value.fix


def test_a_question_that_is_not_asked_excludes_nothing(answered: Answered) -> None:
    with pytest.raises(onecard.OnecardError) as refused:
        onecard.make_plan(gpu="RTX 4070", hours=0, sensitivity=False)
    assert refused.value.as_json() == answered("plan", "--gpu", "RTX 4070", "--hours", "0")


@pytest.mark.parametrize("place", [{}, {"gpu": "none"}, {"gpu": "RTX 4070"}, {"vram_bytes": 2**33}])
def test_a_plan_takes_the_vocabulary_of_the_data_as_the_command_does(
    tmp_path: Path, place: dict[str, Any], answered: Answered
) -> None:
    data = tmp_path / "small"
    data.mkdir()
    for split in ("train", "val"):
        (data / f"{split}.bin").write_bytes(bytes(4000))
    (data / "meta.json").write_text(json.dumps({"schema": 1, "dtype": "uint16", "vocab_size": 97}))
    keys = {"dataset": str(data), "n_layer": 2, "n_head": 2, "n_embd": 32, "block_size": 16}
    config = tmp_path / "config.py"
    config.write_text("".join(f"{key} = {value!r}\n" for key, value in keys.items()))
    said = answered("plan", str(config), *[f"--{key.removesuffix('_bytes')}={value}" for key, value in place.items()])
    found = plan_json(onecard.make_plan(config, **place))
    assert {key: found[key] for key in ("config", "origins")} == {key: said[key] for key in ("config", "origins")}
    assert said["config"]["vocab_size"] == 97
    assert onecard.make_plan(keys, **place).config.vocab_size == 97


def test_a_plan_of_a_run_is_the_commands(folder: Path, answered: Answered) -> None:
    said = answered("plan", str(folder), "--gpu", "RTX 4070")
    assert plan_json(onecard.make_plan(folder, gpu="RTX 4070")) == said
    assert said["config"]["out_dir"] == f"{folder}-2"  # another run is begun, and this one left alone


def test_the_doctor_refuses_amounts_that_cannot_be(folder: Path) -> None:
    for asked in ({"other_bytes": -1}, {"train_tokens": 1.5}, {"val_tokens": "many"}):
        with pytest.raises(onecard.OnecardError):
            onecard.diagnose(folder, **asked)  # type: ignore[arg-type]
    (found,) = onecard.diagnose(folder, train_tokens="1B", val_tokens=1e6, other_bytes="2GiB")
    assert (found.case.data.train_tokens, found.case.data.val_tokens) == (10**9, 10**6)
    assert found.case.other_bytes == 2**31


@pytest.mark.parametrize(
    ("asked", "shown"),
    [
        ({"gpu": "none"}, r"Plan\(123\.59M, no card, loss \d\.\d\d\)"),
        (
            {"gpu": "RTX 4070", "batch_size": 8},
            r"Plan\(123\.59M, GeForce RTX 4070: fits with [\d,]+ MiB left, [\d.]+k tokens/s, loss \d\.\d\d\)",
        ),
        (
            {"gpu": "RTX 4070", "trainer": "nanogpt", "batch_size": 64},
            r"Plan\(123\.59M, GeForce RTX 4070: does not fit, [\d,]+ MiB too much, [\d.]+k tokens/s, loss \d\.\d\d\)",
        ),
        ({"vram_bytes": "8GiB", "vocab_size": 65}, r"Plan\([\d.]+M, a card: fits with [\d,]+ MiB left\)"),
    ],
)
def test_a_plan_is_shown_in_one_line(asked: dict[str, Any], shown: str) -> None:
    plan = onecard.make_plan({"n_layer": 12}, **asked)
    assert re.fullmatch(shown, repr(plan)), repr(plan)


def test_a_traceback_shows_what_to_type() -> None:
    with pytest.raises(onecard.OnecardError) as refused:
        onecard.make_plan(gpu="RTX 4071")
    shown = "".join(traceback.format_exception(refused.value))
    assert f"{refused.value.what}\n  why: {refused.value.why}\n  fix: {refused.value.fix}\n" in shown
