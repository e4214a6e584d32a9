"""Whatever a run looks like, the doctor answers: no crash, strict JSON, findings with evidence."""

import io
import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from onecard.config.resolve import resolve
from onecard.doctor.case import Case, DataSizes
from onecard.doctor.compare import compare_runs
from onecard.doctor.diagnose import diagnose_cases
from onecard.doctor.facts import make_case
from onecard.errors import ConfigError
from onecard.findings import Finding
from onecard.plan.cards import find_card
from onecard.report.compare import print_comparison
from onecard.report.compare_json import comparison_json
from onecard.report.compare_plot import plot_svg
from onecard.report.doctor import print_diagnosis
from onecard.report.doctor_json import diagnoses_json
from onecard.report.doctor_markdown import diagnoses_markdown
from onecard.runs.logged import LogFormat, LoggedRun, Message, oom_messages
from onecard.runs.records import End, Eval, FindingRecord, Oom, Record, Step
from onecard.ui.single_file import diagnoses_file
from tests.share import share
from tests.shared_file import data_in
from tests.unit.doctor.cases import SMALL, case, evaluation, learning, said, step

numbers = st.floats(allow_nan=True, allow_infinity=True) | st.sampled_from([0.0, 1e-300, 1e300, -1.0, 3.5, math.nan])
counts = st.none() | st.integers(0, 2**60)


@st.composite
def records(draw: st.DrawFn) -> list[Step | Eval]:
    places = st.integers(0, 10**9) | st.integers(-(10**9), 10**9)
    row = st.tuples(places, st.none() | places, numbers, st.none() | numbers, st.booleans())
    made: list[Step | Eval] = []
    for number, tokens, loss, other, is_step in draw(st.lists(row, max_size=40)):
        if is_step:
            more = {"printed_mfu": other, "printed_tokens_per_second": loss, "printed_seconds": other}
            update = step(number, loss, seconds=other, lr=other, **more)
            made.append(replace(update, tokens=tokens, elapsed_seconds=other))
        else:
            made.append(replace(evaluation(number, other, loss, bits=other), tokens=tokens))
    return made


findings = st.builds(
    Finding,
    rule=st.sampled_from(["loss-nan", "no-cuda-graph", "of-a-later-version"]),
    severity=st.sampled_from(["info", "warn", "error", "fatal", "of-a-later-version"]),
    sure=st.sampled_from(["high", "low", "of-a-later-version"]),
    what=st.text(),
    why=st.text(),
    fix=st.text(),
    patch=st.dictionaries(
        st.sampled_from(["n_embd", "n_head", "dropout", "later_key"]), st.integers(0, 999) | st.text()
    ),
)
own_records = st.one_of(
    st.builds(FindingRecord, step=st.integers(0, 10**6), finding=findings),
    st.builds(
        End,
        step=st.integers(0, 10**6),
        tokens=st.none(),
        reason=st.sampled_from(["finished", "interrupted", "out-of-memory", "error", "of-a-later-version"]),
        best_val_loss=st.none(),
        seconds=st.none(),
    ),
)
own_ooms = st.builds(
    Oom,
    step=st.integers(0, 3),
    where=st.sampled_from(["train", "eval"]),
    batch_size_before=st.integers(1, 64),
    batch_size_after=st.none() | st.integers(1, 32),
    accumulation_before=st.none(),
    accumulation_after=st.none() | st.integers(1, 64),
    message=st.text() | st.just("Tried to allocate 1.50 GiB. GPU 0 has a total capacity of 11.70 GiB"),
)
SIZES = ("tried", "capacity", "free", "allocated", "reserved_unallocated", "process", "other_processes")
foreign_ooms = st.builds(
    lambda sizes, in_eval: said("oom", in_eval=in_eval, **{f"{name}_bytes": size for name, size in sizes.items()}),
    st.dictionaries(st.sampled_from(SIZES), st.integers(0, 2**45)),
    st.booleans(),
)
other_messages = st.sampled_from(
    [said("few-sms"), said("compile-failed"), said("scaler-skip", scale=0.0), said("resume"), said("interrupted")]
)
configs = st.fixed_dictionaries(
    {},
    optional={
        "max_iters": st.integers(0, 10**9),
        "lr_decay_iters": st.integers(0, 10**9),
        "warmup_iters": st.integers(0, 10**6),
        "learning_rate": st.floats(0, 1e3),
        "min_lr": st.floats(0, 1e3),
        "beta2": st.floats(0, 0.99999),
        "dropout": st.sampled_from([0.0, 0.1, 0.9]),
        "batch_size": st.sampled_from([1, 3, 8]),
        "gradient_accumulation_steps": st.integers(1, 10**6),
        "vocab_size": st.sampled_from([1, 65, 50257, 50304]),
        "eval_interval": st.integers(1, 10**9),
        "grad_clip": st.floats(0, 10),
        "decay_lr": st.booleans(),
        "compile": st.booleans(),
        "dtype": st.sampled_from(["auto", "float16", "bfloat16", "float32"]),
        "init_from": st.sampled_from(["scratch", "resume", "gpt2"]),
        "dataset": st.sampled_from(["fineweb", "shakespeare_char", "x"]),
    },
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    given_keys = draw(st.none() | configs)
    config = None
    if given_keys is not None:
        heads, size = draw(st.integers(1, 16)), draw(st.integers(1, 130))
        text = f"n_layer = 2\nn_head = {heads}\nn_embd = {heads * size}\nblock_size = 64\nbatch_size = 2\n"
        text += draw(st.just("") | st.integers(1, 400).map(lambda millions: f"# Model (~{millions}M parameters)\n"))
        config = resolve(text + "".join(f"{k} = {v!r}\n" for k, v in given_keys.items()), filename="c.py")
    formats: list[LogFormat] = ["nanogpt", "onecard", "minimal", "llm.c", "nanochat", "hf-trainer", "messages"]
    messages: list[Message] = draw(st.lists(foreign_ooms | other_messages, max_size=4))
    log_format = draw(st.sampled_from(formats))
    of_run: list[Record] = [*draw(records())]
    if log_format == "onecard":
        of_run += draw(st.lists(own_records | own_ooms, max_size=5))
        messages = list(oom_messages(of_run))
    run = LoggedRun(
        source="x.log",
        format=log_format,
        records=tuple(of_run),
        messages=tuple(messages),
        printed_params=draw(counts),
        printed_params_total=draw(counts),
        printed_tokens_per_step=draw(counts),
        world_size=draw(st.sampled_from([None, 1, 8])),
    )
    return make_case(
        run,
        config=config,
        card=draw(st.sampled_from([None, find_card("RTX 4070"), find_card("V100 SXM2 16GB")])),
        data=DataSizes(train_tokens=draw(counts), val_tokens=draw(counts)),
    )


@given(st.lists(cases(), min_size=1, max_size=2), st.booleans())
@settings(max_examples=share(600), deadline=None)
def test_no_run_is_too_odd_for_the_doctor(made: list[Case], final: bool) -> None:
    diagnoses = diagnose_cases(made, final=final)
    json.dumps(diagnoses_json(diagnoses), allow_nan=False)
    assert diagnoses_markdown(diagnoses).count("## x.log") == len(made)
    assert len(data_in(diagnoses_file(diagnoses))["answer"]["ui"]["runs"]) == len(made)
    for diagnosis in diagnoses:
        for finding in diagnosis.findings:
            assert finding.seen, finding.rule
        print_diagnosis(diagnosis, Console(file=io.StringIO(), width=120))


@given(st.lists(cases(), min_size=2, max_size=3))
@settings(max_examples=share(60), deadline=None)
def test_no_runs_are_too_odd_to_compare(made: list[Case]) -> None:
    comparison = compare_runs(made)
    json.dumps(comparison_json(comparison), allow_nan=False)
    print_comparison(comparison, Console(file=io.StringIO(), width=120))
    print_comparison(comparison, Console(file=io.StringIO(), width=120), details=True)
    assert plot_svg(comparison).endswith("</svg>\n")


@given(st.floats(-1, 1), st.integers(8, 20))
@settings(max_examples=share(30), deadline=None)
def test_a_loss_higher_everywhere_has_the_same_trend(lift: float, last: int) -> None:
    from onecard.doctor.trend import trend

    run = learning(last * 500)
    lifted = [replace(e, val_loss=(e.val_loss or 0) + lift) for e in run]
    plain, high = trend(case(SMALL, records=run)), trend(case(SMALL, records=lifted))
    assert plain
    assert high
    assert math.isclose(plain.gain, high.gain, abs_tol=1e-9)


def test_a_config_that_cannot_be_is_refused_before_the_doctor_sees_it() -> None:
    with pytest.raises(ConfigError):
        resolve("n_layer = -1\n", filename="c.py")
