"""Readers of other programs' logs, on logs made by construction (tests/made_logs.py)."""

import math
import re
from collections.abc import Sequence
from itertools import pairwise

import pytest

from onecard.doctor.case import DataSizes
from onecard.doctor.diagnose import diagnose_cases
from onecard.doctor.facts import make_case
from onecard.errors import OnecardError
from onecard.runs.foreign import draft, read_logs
from onecard.runs.logged import LoggedRun
from onecard.runs.record_json import to_line
from onecard.runs.records import Checkpoint, Eval, Start, Step
from onecard.units import GIB, MIB
from tests import made_logs as made


def read(lines: Sequence[str]) -> tuple[LoggedRun, ...]:
    return read_logs(made.as_bytes(lines), source="made.log")


def read_one(lines: Sequence[str]) -> LoggedRun:
    (run,) = read(lines)
    return run


def steps(run: LoggedRun) -> list[Step]:
    return [record for record in run.records if isinstance(record, Step)]


def evals(run: LoggedRun) -> list[Eval]:
    return [record for record in run.records if isinstance(record, Eval)]


def losses(run: LoggedRun) -> list[tuple[int, float]]:
    return [(step.step, step.loss) for step in steps(run)]


# nanoGPT


def test_nanogpts_steps_evaluations_and_checkpoints_are_read() -> None:
    run = read_one(made.nanogpt(steps=500))
    assert run.format == "nanogpt"
    assert [step.step for step in steps(run)] == list(range(0, 501, 10))
    assert [record.step for record in evals(run)] == [0, 250, 500]
    assert [record.step for record in run.records if isinstance(record, Checkpoint)] == [250, 500]
    assert all(record.best for record in run.records if isinstance(record, Checkpoint))  # each loss is the lowest yet
    first = steps(run)[1]
    assert first.seconds == pytest.approx(0.25)
    assert first.more["last_micro_batch"] is True
    assert "printed_mfu" not in first.more  # -100 % is no measurement
    assert steps(run)[-1].more["printed_mfu"] == pytest.approx(0.215)
    assert str(first.more["line"]).startswith("line 3: iter 10: loss ")
    assert run.unread_lines == 0


def test_the_config_in_the_log_is_read_and_overriding_lines_win() -> None:
    run = read_one([*made.nanogpt_header("batch_size = 20", "out_dir = 'made run'"), *made.nanogpt(steps=10)])
    assert run.config["n_embd"] == 256
    assert run.config["batch_size"] == 20
    assert run.config["out_dir"] == "made run"
    assert run.config["vocab_size"] == 50304
    assert run.config_lines["batch_size"].text == "Overriding: batch_size = 20"
    assert run.config_lines["n_embd"].text == "n_embd = 256"
    assert run.printed_tokens_per_step == 163_840
    assert run.printed_params == 16_030_000
    assert run.printed_params_total == 16_154_624 + 2_304
    assert run.printed["printed_params"].text == "number of parameters: 16.03M"
    assert run.config_source[0].text.startswith("# a small model")


def test_a_config_that_computes_is_evaluated_and_what_cannot_be_is_named() -> None:
    header = [
        "Overriding config with config/a.py:",
        "batch_size = 4 * 2  # sequences",
        "import time",
        "out_dir = f'run-{time.time()}'",
        "max_iters = load()",
        "tokens per iteration will be: 4,096",
    ]
    run = read_one([*header, *made.nanogpt(steps=20)])
    assert run.config["batch_size"] == 8
    assert "max_iters" in run.unresolved
    assert "max_iters" not in run.config


def test_several_config_files_are_read_one_after_the_other() -> None:
    header = [
        "Overriding config with config/a.py:",
        "n_layer = 6",
        "n_head = 6",
        "Overriding config with config/b.py:",
        "n_head = 3",
        "tokens per iteration will be: 4,096",
    ]
    run = read_one([*header, *made.nanogpt(steps=20)])
    assert (run.config["n_layer"], run.config["n_head"]) == (6, 3)
    assert run.config_lines["n_head"].number == 5


def test_a_damaged_config_still_gives_its_whole_lines() -> None:
    header = [
        "Overriding config with config/a.py:",
        "n_layer = 6",
        "n_head = (",
        "# a long comm",
        "ent that is wrapped",
    ]
    run = read_one([*header, "n_embd = 384", "tokens per iteration will be: 4,096", *made.nanogpt(steps=20)])
    assert run.config["n_layer"] == 6


@pytest.mark.parametrize(
    "line",
    [
        "33iter 7800: loss 3.5123, time 250.00ms, mfu 20.00%",
        "2030-01-02 03:04:05 iter 7800: loss 3.5123, time 250.00ms, mfu 20.00%",
        "[rank0] 03:04:05.678 | iter 7800: loss 3.5123, time 250.00ms",
        "\x1b[32miter 7800\x1b[0m: loss 3.5123, time 250.00ms, mfu 20.00%",
        "progress 10%\riter 7800: loss 3.5123, time 250.00ms, mfu 20.00%\r",
        "iter 7800: loss 3.5123, lr 3.00e-04, time 250.00ms, mfu 20.00%",
        "iter 7800: loss 3.5123, time 0.25s",
    ],
)
def test_a_line_is_read_through_what_terminals_and_loggers_add(line: str) -> None:
    (step,) = steps(read_one([line]))
    assert (step.step, step.loss, step.seconds) == (7800, 3.5123, 0.25)


@pytest.mark.parametrize("width", [17, 24, 33, 40, 47])
def test_lines_that_a_narrow_terminal_wrapped_are_put_together(width: int) -> None:
    whole = made.nanogpt(steps=400, saves=None)
    run = read_one(list(made.wrapped(whole, width)))
    assert losses(run) == losses(read_one(whole))
    assert [e.val_loss for e in evals(run)] == [e.val_loss for e in evals(read_one(whole))]
    assert [step.seconds for step in steps(run)] == [step.seconds for step in steps(read_one(whole))]


@pytest.mark.parametrize("width", range(24, 80))
def test_a_wrapped_line_never_gives_another_number(width: int) -> None:
    def said(lines: Sequence[str]) -> set[tuple[type, int, float | None]]:
        records = [record for run in read(lines) for record in run.records]
        return {(type(r), r.step, r.loss) for r in records if isinstance(r, Step)} | {
            (type(r), r.step, r.val_loss) for r in records if isinstance(r, Eval)
        }

    for lines in (made.nanogpt(steps=300), made.nanochat(steps=30), made.llmc_stdout()):
        assert said(list(made.wrapped(lines, width))) <= said(lines)
        if width >= 45:
            assert said(list(made.wrapped(lines, width))) == said(lines)


def test_a_whole_line_after_a_begun_one_keeps_its_own_number_and_text() -> None:
    whole = "iter 10: loss 3.5123, time 250.00ms, mfu 20.00%"
    (step,) = steps(read_one(["as said in step 5", whole]))
    assert str(step.more["line"]) == f"line 2: {whole}"


def test_a_program_that_prints_few_decimals_is_read_too() -> None:
    assert losses(read_one(["step 3, loss: 9.51", "step 4, loss: 9.25", "step 5, loss: 9.02"])) == [
        (3, 9.51),
        (4, 9.25),
        (5, 9.02),
    ]


def test_a_line_cut_inside_a_number_never_gives_another_number() -> None:
    whole = made.nanogpt(steps=60, saves=None)
    for cut in range(len(whole[-1])):
        run = read_one([*whole[:-1], whole[-1][:cut]])
        assert set(losses(run)) <= set(losses(read_one(whole)))
        known = {step.seconds for step in steps(read_one(whole))} | {None}
        assert {step.seconds for step in steps(run)} <= known
    evaluation = "step 250: train loss 4.1234, val loss 4.5678"
    for cut in range(len(evaluation)):
        run = read_one([*made.nanogpt(steps=100), evaluation[:cut]])
        assert {record.val_loss for record in evals(run)} <= {made.smooth_loss(0), 10.9, 4.5678}


def test_what_is_whole_of_a_cut_line_counts() -> None:
    run = read_one(["iter 10: loss 3.5123, time 250.00ms", "iter 20: loss 3.4012, time 2", "other words", ""])
    assert losses(run) == [(10, 3.5123), (20, 3.4012)]
    assert steps(run)[1].seconds is None


def test_nan_and_inf_are_losses() -> None:
    run = read_one([f"iter {n}: loss {text}, time 250.00ms" for n, text in enumerate(("3.5", "nan", "inf", "-inf"))])
    assert [step.loss for step in steps(run)][2:] == [math.inf, -math.inf]
    assert math.isnan(steps(run)[1].loss)


@pytest.mark.parametrize(
    "second",
    [
        made.nanogpt(steps=200, end=3.0),  # begins again at step 0
        made.nanogpt(first=300, steps=400, end=3.0),  # a number that falls
        [*made.nanogpt_header(), *made.nanogpt(first=600, steps=700)],  # the line that stands once at the start
    ],
)
def test_several_runs_in_one_file_are_told_apart(second: list[str]) -> None:
    one, two = read([*made.nanogpt(steps=500), *second])
    assert max(step.step for step in steps(one)) == 500
    assert [step.step for step in steps(two)] == [step.step for step in steps(read_one(second))]
    assert two.config == read_one(second).config


def test_a_capture_that_repeats_lines_is_one_run() -> None:
    lines = made.nanogpt(steps=500)
    run = read_one([*lines[:40], *lines[25:]])
    assert losses(run) == losses(read_one(lines))


@pytest.mark.parametrize(
    "whole",
    [
        made.nanogpt(steps=500),
        [line for line in made.nanogpt(steps=500) if line.startswith("iter ")],
        made.minimal(steps=2000),
        made.llmc_main(steps=40),
        [f"step {n}, loss: {9 - n / 100:.4f}" for n in range(1, 40)],
    ],
)
def test_the_same_log_twice_in_a_file_is_two_runs(whole: list[str]) -> None:
    one, two = read([*whole, *whole])
    assert losses(one) == losses(two) == losses(read_one(whole))
    assert [e.val_loss for e in evals(one)] == [e.val_loss for e in evals(two)]


@pytest.mark.parametrize(
    "part",
    [
        made.nanogpt(first=500, steps=900),  # begins with an evaluation
        made.nanogpt(first=510, steps=900),  # or with a loss
        made.minimal()[4:],
        made.llmc_main()[100:],
        made.modded()[-8:],
        made.nanochat()[200:],
    ],
)
def test_a_log_that_begins_in_mid_run_is_two_runs_too_when_it_is_there_twice(part: list[str]) -> None:
    one, two = read([*part, *part])
    assert losses(one) == losses(two) == losses(read_one(part))
    assert [e.val_loss for e in evals(one)] == [e.val_loss for e in evals(two)]
    assert len(read([*part, *part, *part])) == 3


@pytest.mark.parametrize("again", [1, 20, 24, 25, 26, 27])
def test_captures_that_overlap_in_mid_run_are_one_run(again: int) -> None:
    lines = made.nanogpt(first=510, steps=1200)  # the first evaluation is line 24, so it is in the overlap or is not
    assert lines[24].startswith("step 750: ")
    run = read_one([*lines[:40], *lines[again:]])
    assert losses(run) == losses(read_one(lines))
    assert [e.val_loss for e in evals(run)] == [e.val_loss for e in evals(read_one(lines))]


def test_a_screen_drawn_again_before_anything_was_trained_is_no_other_run() -> None:
    lines = made.nanogpt(steps=500)
    run = read_one([lines[0], lines[0], lines[1], *lines])
    assert losses(run) == losses(read_one(lines))


def test_what_makes_nanogpt_slow_is_heard() -> None:
    said = ["WARNING: using slow attention. Flash Attention needs a newer torch", "using fused AdamW: False"]
    run = read_one([*said, *made.nanogpt(steps=20)])
    assert [message.kind for message in run.messages] == ["slow-attention", "unfused-adamw"]
    assert read_one(["using fused AdamW: True", *made.nanogpt(steps=20)]).messages == ()


def test_a_resumed_run_says_so() -> None:
    lines = [*made.nanogpt_header(), "Resuming training from out-made", *made.nanogpt(first=500, steps=600)]
    run = read_one(lines)
    assert [message.kind for message in run.messages] == ["resume"]
    assert run.messages[0].values["path"] == "out-made"


# the other formats


def test_llmcs_main_log_is_read() -> None:
    run = read_one(made.llmc_main())
    assert run.format == "llm.c"
    assert len(steps(run)) == 300
    assert [record.step for record in evals(run)] == [0, 50, 100, 150, 200, 250, 300]
    assert steps(run)[7].lr == pytest.approx(6e-4)
    assert steps(run)[7].grad_norm == pytest.approx(0.3125)


def test_llmcs_stdout_and_its_table_are_read() -> None:
    run = read_one(made.llmc_stdout())
    assert run.format == "llm.c"
    assert run.config["n_embd"] == 768
    assert run.config["learning_rate"] == pytest.approx(6e-4)
    assert run.card_name == "NVIDIA GeForce RTX 4070"
    assert run.printed_tokens_per_step == 65_536
    assert run.printed_params_total == 124_475_904
    assert [record.step for record in evals(run)] == [0, 20, 40]  # by the step printed before
    step = steps(run)[3]
    assert (step.seconds, step.tokens_per_second) == (1.168, 56_110)
    assert step.more["printed_mfu"] == pytest.approx(0.412)


@pytest.mark.parametrize(
    ("line", "rate"),
    [
        ("step 3: train loss 4.123456 (took 1250.000000 ms)", None),
        ("step    3/96: train loss 4.123456 (acc 4.123456) (1250.000000 ms, 65536 tok/s)", 65_536),
    ],
)
def test_the_first_versions_of_llmc_are_read(line: str, rate: float | None) -> None:
    (step,) = steps(read_one([line]))
    assert (step.step, step.loss, step.seconds, step.tokens_per_second) == (3, 4.123456, 1.25, rate)


def test_a_card_that_llmc_does_not_know_has_no_printed_mfu() -> None:
    line = "step   61/74 | loss 3.1 (+nanz)| norm 1.4 (+nanz)| lr 3.00e-04 | 44.57 ms | -100.0% bf16 MFU | 91886 tok/s"
    assert "printed_mfu" not in steps(read_one([line]))[0].more


def test_modded_nanogpt_is_read_with_its_training_time() -> None:
    run = read_one(made.modded())
    assert run.format == "modded-nanogpt"
    assert run.config["max_iters"] == 500
    assert [record.step for record in evals(run)] == [0, 125, 250, 375, 500]
    last = evals(run)[-1]
    assert last.more["elapsed_seconds"] == pytest.approx(140.25 * 500 / 1000)
    assert last.more["seconds_per_step"] == pytest.approx(0.14025)
    assert "seconds_per_step" not in evals(run)[0].more  # nan in the first ten steps


SOURCE = [
    "class Hyperparameters:",
    "    input_bin : str = 'data/fineweb10B/fineweb_train_*.bin' # input .bin to train on",
    "    batch_size : int = 8*64 # batch size, in sequences, across all devices",
    "    sequence_length : int = 1024 # sequence length, in tokens",
    "    num_iterations : int = 2*250 # number of iterations to run",
    "    warmdown_iters : int = 150 # number of iterations of linear warmdown",
    "num_vocab = 50304",
    "model = GPT(GPTConfig(vocab_size=num_vocab, n_layer=12, n_head=6, n_embd=768))",
]


def test_modded_nanogpts_sizes_and_its_cool_down_are_read_from_the_source_before_its_log() -> None:
    run = read_one([*SOURCE, *made.modded()])
    assert run.printed_tokens_per_step == 524_288
    shape = {"n_layer": 12, "n_head": 6, "n_embd": 768, "vocab_size": 50304, "block_size": 1024}
    assert run.config == {
        **shape,
        "max_iters": 500,
        "dataset": "data/fineweb10B",
        "schedule": "wsd",
        "decay_share": pytest.approx(0.3),
    }
    later = ["    batch_size = 8*64*1024 # batch size in tokens", "    cooldown_frac = 0.4 # of training"]
    later.append("model = GPT(vocab_size=50257, num_layers=16, num_heads=8, model_dim=1024).cuda()")
    run = read_one([*later, *made.modded()])
    assert (run.printed_tokens_per_step, run.config["decay_share"], run.config["n_layer"]) == (524_288, 0.4, 16)


@pytest.mark.parametrize("value", ["__import__('os').system('false')", "9**9**9", "int(1e30)", "-1", "True"])
def test_a_constant_of_the_source_that_is_no_plain_count_is_not_taken(value: str) -> None:
    run = read_one([f"    batch_size : int = {value} # in sequences", *made.modded()])
    assert run.printed_tokens_per_step is None


def test_constants_of_a_source_mean_nothing_in_other_logs() -> None:
    run = read_one([*SOURCE, *made.nanogpt(steps=100)])
    assert run.config == {}
    assert run.printed_tokens_per_step is None


def test_llmcs_updates_and_data_are_read_from_its_table() -> None:
    lines = made.llmc_stdout()
    rows = [line.replace(f"{'40':<50}", f"{'-1':<50}") if "max_steps" in line else line for line in lines]
    rows.insert(8, f"| train_num_batches     | {'19560':<50} |")
    run = read_one([row.replace("/40 |", " |") for row in rows if not row.startswith("step")] + made.llmc_main())
    assert run.config["max_iters"] == 19_560
    assert run.config["dataset"] == "dev/data/made"


def test_the_tokens_of_an_update_are_read_from_build_nanogpts_first_line() -> None:
    lines = [
        "total desired batch size: 524288",
        "=> calculated gradient accumulation steps: 2",
        "step 1, loss: 10.1234",
    ]
    assert read_one([*lines, "rank 3 sample 0: Hello, I am a model"]).world_size == 4
    assert read_one(lines).printed_tokens_per_step == 524_288


def test_nanochat_is_read_through_its_colours() -> None:
    run = read_one(made.nanochat())
    assert run.format == "nanochat"
    assert run.card_name == "NVIDIA GeForce RTX 4070"
    assert run.world_size == 1
    assert run.printed_flops_per_token == pytest.approx(2.736795e8)
    assert run.printed_params_total == 125_829_354
    assert {key: run.config[key] for key in ("n_layer", "block_size", "batch_size", "gradient_accumulation_steps")} == {
        "n_layer": 8,
        "block_size": 1024,
        "batch_size": 4,
        "gradient_accumulation_steps": 8,
    }
    assert len(steps(run)) == 400
    assert evals(run)[-1].val_loss is None
    assert evals(run)[-1].bits_per_byte == pytest.approx(made.smooth_loss(400) / 3.2, abs=1e-6)


def test_the_stages_of_nanochat_are_runs_and_a_stage_that_trains_nothing_is_none() -> None:
    stage = ["x - INFO - Distributed world size: 1", "Loading model from d8 with step 5000", "Evaluating model: base"]
    tuned = [line.replace("/00400", "") for line in made.nanochat(total_batch=16_384)]
    base, fine = read([*made.nanochat(), *stage, *tuned])
    assert base.printed_tokens_per_step == 32_768
    assert fine.printed_tokens_per_step == 16_384


@pytest.mark.parametrize("quoted", [False, True])
def test_what_hugging_face_trainer_prints_is_read_and_steps_follow_from_epochs(quoted: bool) -> None:
    run = read_one(made.trainer_stdout(quoted=quoted))
    assert run.format == "hf-trainer"
    assert [step.step for step in steps(run)] == list(range(100, 1001, 100))
    assert [record.step for record in evals(run)] == [500, 1000]
    assert steps(run)[0].lr == pytest.approx(5e-5)
    assert evals(run)[0].seconds == 12.5
    assert run.printed_params_total == 124_439_808
    assert run.printed_seconds_per_step == 0.5


def test_without_a_total_the_progress_bar_gives_the_steps() -> None:
    lines = []
    for step in (50, 100, 150):
        lines.append(f"  5%|▌         | {step}/1000 [00:10<03:00,  5.00it/s]")
        lines.append(f"{{'loss': {4.0 - step / 1000}, 'learning_rate': 5e-05, 'epoch': 0.{step}}}")
    assert [step.step for step in steps(read_one(lines))] == [50, 100, 150]


def test_without_a_total_the_last_line_gives_the_steps() -> None:
    run = read_one(made.trainer_lines())
    assert run.steps_told
    for records in (steps(run), evals(run)):
        assert [record.step for record in records] == pytest.approx(range(500, 10_001, 500), rel=0.001)
    assert run.printed_seconds == 3600.0


@pytest.mark.parametrize("every", [10, 25])
def test_epochs_too_coarse_to_tell_losses_apart_put_them_at_even_distances(every: int) -> None:
    run = read_one(made.trainer_lines(every=every, evaluations=False))  # an epoch's hundredth is 33 updates
    assert [step.step for step in steps(run)] == pytest.approx(range(every, 10_001, every), rel=0.001, abs=1)


def test_losses_before_the_progress_bar_shows_get_their_steps_from_those_after_it() -> None:
    first, *others = made.trainer_lines(steps=1000, every=100, epochs=10, end=False, evaluations=False)
    lines = [first]
    for number, line in enumerate(others, start=2):
        lines += [f"  20%|##        | {100 * number}/1000 [00:10<03:00,  5.00it/s]", line]
    run = read_one(lines)
    assert run.steps_told
    assert [step.step for step in steps(run)] == list(range(100, 1001, 100))


@pytest.mark.parametrize("word", ["nan", "inf", "-1", "0", "1e300", "1e-300", "1e15"])
@pytest.mark.parametrize("name", ["epoch", "train_runtime", "train_steps_per_second", "eval_runtime"])
def test_odd_numbers_in_place_of_epochs_and_times_make_no_step_absurd(name: str, word: str) -> None:
    lines = [re.sub(rf"'{name}': [^,}}]*", f"'{name}': {word}", line) for line in made.trainer_lines()]
    run = read_one(lines)
    assert len(steps(run)) == 20
    assert all(0 <= record.step < 10**12 for record in (*steps(run), *evals(run)))
    diagnose_cases([make_case(run, config=None, card=None, data=DataSizes())])


def test_steps_that_nothing_tells_are_not_made_up() -> None:
    run = read_one(made.trainer_lines(end=False))
    assert not run.steps_told
    assert [step.step for step in steps(run)] == list(range(1, 21))  # their order, and no more
    assert len(evals(run)) == 20


def test_evaluations_between_two_losses_are_all_kept() -> None:
    lines = [f"{{'eval_loss': {4 - n / 10}, 'eval_runtime': 6.0, 'epoch': {n}.0}}" for n in range(1, 6)]
    assert [record.val_loss for record in evals(read_one([*lines, lines[-1]]))] == [3.9, 3.8, 3.7, 3.6, 3.5]


def test_a_run_that_printed_its_end_is_followed_by_another() -> None:
    first, second = read([*made.trainer_lines(), *made.trainer_lines(steps=2000, every=100)])
    assert steps(first)[-1].step == pytest.approx(10_000, rel=0.001)
    assert steps(second)[-1].step == pytest.approx(2000, rel=0.001)


@pytest.mark.parametrize("word", ["Infinity", "-Infinity", "NaN", "1e301"])
def test_a_loss_of_trainer_state_json_that_is_no_number_is_kept(word: str) -> None:
    entries = [
        '{"step": 10, "loss": 4.0, "learning_rate": 1e-4, "epoch": 0.1}',
        f'{{"step": 20, "loss": {word}, "learning_rate": {word}, "epoch": 0.2}}',
        f'{{"step": 20, "eval_loss": {word}, "eval_runtime": {word}, "epoch": 0.2}}',
    ]
    text = '{"best_metric": null, "log_history": [' + ",\n".join(entries) + "]}"
    (run,) = read_logs([text.encode()], source="trainer_state.json")
    steps, evals = ([r for r in run.records if isinstance(r, kind)] for kind in (Step, Eval))
    assert [repr(step.loss) for step in steps] == ["4.0", repr(float(word))]
    assert [repr(e.val_loss) for e in evals] == [repr(float(word))]
    assert steps[1].lr is None
    assert evals[0].seconds is None


@pytest.mark.parametrize("share", [1.0, 0.6])
def test_trainer_state_json_is_read_whole_or_cut(share: float) -> None:
    text = made.trainer_state()
    (run,) = read_logs(text[: int(share * len(text))].encode().splitlines(keepends=True), source="trainer_state.json")
    assert run.format == "hf-trainer"
    known = [step.step for step in steps(run)]
    assert known == list(range(100, 1001, 100))[: len(known)]
    assert len(known) >= 10 * share - 1
    if share == 1.0:
        assert run.config["max_iters"] == 1000
        assert [record.step for record in evals(run)] == [500, 1000]


def test_the_teaching_versions_are_read() -> None:
    run = read_one(made.minimal())
    assert run.format == "minimal"
    assert run.printed_params == 10_788_929
    assert len(evals(run)) == 11
    piped = "step    7 | loss: 6.1234 | lr 1.0e-05 | norm: 2.1 | dt: 310.00ms | tok/sec: 52,850.5"
    (step,) = steps(read_one([piped]))
    assert (step.step, step.seconds, step.tokens_per_second, step.grad_norm) == (7, 0.31, 52_850.5, 2.1)
    assert losses(read_one(["step 3, loss: 9.512345678", "step 4, loss: 9.2512345"])) == [
        (3, 9.512345678),
        (4, 9.2512345),
    ]
    run = read_one(["0 val 10.9511", "0 train 10.9551", "1 train 10.6512", "250 val 5.8123"])
    assert (len(steps(run)), [record.val_loss for record in evals(run)]) == (2, [10.9511, 5.8123])


def test_our_own_records_are_read_from_their_file() -> None:
    start = Start(
        step=0,
        config={"n_layer": 2},
        versions={},
        device="cpu",
        card=None,
        predicted_process_bytes=None,
        resumed_from=None,
    )
    (run,) = read_logs([to_line(start)], source="records.jsonl")
    assert run.format == "onecard"
    assert run.config == {"n_layer": 2}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("|   0  NVIDIA A100-SXM4-80GB          On  | 00000000:07:00.0 Off |", "NVIDIA A100-SXM4-80GB"),
        ("|   0  Tesla V100-SXM2-16GB           Off | 00000000:07:00.0 Off |", "Tesla V100-SXM2-16GB"),
        ("using device: cuda (NVIDIA GeForce RTX 3090)", "NVIDIA GeForce RTX 3090"),
        ("Peak flops undefined for: NVIDIA GeForce RTX 4070, MFU will show as 0%", "NVIDIA GeForce RTX 4070"),
    ],
)
def test_the_card_is_read_wherever_it_is_named(line: str, name: str) -> None:
    assert read_one([line, *made.minimal()]).card_name == name


# messages


@pytest.mark.parametrize("year", made.OOM)
def test_every_generation_of_out_of_memory_message_gives_the_same_numbers(year: str) -> None:
    (message,) = read_one([made.OOM[year]]).messages
    values = message.values
    assert message.kind == "oom"
    assert values["tried_bytes"] == 512 * MIB
    assert values["capacity_bytes"] == 8 * GIB
    assert values["free_bytes"] == 128 * MIB
    assert values["allocated_bytes"] == 6.5 * GIB
    assert values["reserved_unallocated_bytes"] == (256 if year == "2021" else 64) * MIB
    assert values.get("process_bytes") == (6.75 * GIB if year >= "2023" else None)
    assert values.get("other_processes_bytes") == (GIB if year == "2023" else None)
    assert "in_eval" not in values  # no traceback tells


def test_a_file_of_bare_messages_is_one_run_with_a_message_each() -> None:
    lines = [text for year in made.OOM for text in (f"## seen in {year}, 16 GiB", made.OOM[year])]
    run = read_one(lines)
    assert run.format == "messages"
    assert [message.lines[0].number for message in run.messages] == [2, 4, 6, 8]


@pytest.mark.parametrize("function", ["estimate_loss", "evaluate", "validate", "evaluation_loop"])
def test_a_traceback_tells_whether_evaluation_ran_out(function: str) -> None:
    during = read_one([*made.nanogpt(steps=20), *made.traceback(made.OOM["2024"], "<module>", function, "forward")])
    assert during.messages[0].values["in_eval"] is True
    assert during.messages[0].values["step"] == 20
    assert any(function in line.text for line in during.messages[0].lines)
    training = read_one(made.traceback(made.OOM["2024"], "<module>", "forward"))
    assert training.messages[0].values["in_eval"] is False


def test_an_old_traceback_is_no_evidence_for_a_later_message() -> None:
    lines = [*made.traceback("ValueError: x", "estimate_loss"), *made.nanogpt(steps=20), made.OOM["2024"]]
    _, message = read_one([*lines, *made.nanogpt(first=30, steps=40)]).messages
    assert message.kind == "oom"
    assert "in_eval" not in message.values
    assert message.values["step"] == 20


def test_a_wrapped_out_of_memory_message_is_put_together() -> None:
    run = read_one(list(made.wrapped([made.OOM["2023"]], 80)))
    assert len(run.messages) == 1
    assert run.messages[0].values["allocated_bytes"] == 6.5 * GIB
    assert run.messages[0].values["process_bytes"] == 6.75 * GIB


def test_the_absurd_size_some_containers_make_torch_print_is_left_out() -> None:
    text = made.OOM["2023"].replace("1.00 GiB memory in use", "17179869184.00 GiB memory in use")
    assert "other_processes_bytes" not in read_one([text]).messages[0].values


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("/tmp/x.c:1:10: fatal error: Python.h: No such file or directory", "python-headers"),
        ("ModuleNotFoundError: No module named 'triton'", "no-triton"),
        ("RuntimeError: Cannot find a working triton installation.", "no-triton"),
        ("RuntimeError: Failed to find C compiler. Please specify via CC environment variable.", "no-compiler"),
        ("torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:", "backend"),
    ],
)
def test_a_failed_compilation_is_named_by_its_cause(line: str, cause: str) -> None:
    failed = [line, "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:"]
    (message,) = read_one(failed).messages
    assert message.kind == "compile-failed"
    assert message.values["cause"] == cause
    (message,) = read_one(failed[::-1]).messages
    assert message.values["cause"] == cause


def test_warnings_and_skipped_steps_become_messages() -> None:
    lines = [
        "W0102 x/_inductor/utils.py:1] [0/0] Not enough SMs to use max_autotune_gemm mode",
        *made.nanogpt(steps=30),
        "Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0",
        "KeyboardInterrupt",
    ]
    few, skip, stop = read_one(lines).messages
    assert (few.kind, skip.kind, stop.kind) == ("few-sms", "scaler-skip", "interrupted")
    assert skip.values == {"scale": 32768.0, "step": 30}


# nothing, much, strange


@pytest.mark.parametrize(
    ("lines", "name"),
    [([], "empty-log"), (["words", "and words"], "unreadable-log"), (["n_layer = 3"], "unreadable-log")],
)
def test_nothing_readable_is_said_in_three_lines_and_exit_2(lines: list[str], name: str) -> None:
    with pytest.raises(OnecardError) as problem:
        read(lines)
    assert (problem.value.name, problem.value.exit_code) == (name, 2)
    assert problem.value.why
    assert problem.value.fix


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_what_windows_shells_save_is_read(encoding: str) -> None:
    text = "\r\n".join(made.nanogpt(steps=200))
    (run,) = read_logs(text.encode(encoding).splitlines(keepends=True), source="x")
    assert losses(run) == losses(read_one(made.nanogpt(steps=200)))


def test_a_step_that_every_process_prints_is_one_step_also_of_very_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft, "MOST_RECORDS", 100)
    lines = [f"s:{n} trl:{'nan' if n == 5 else '3.5000'}" for n in range(1000) for _ in range(2)]
    numbers = [step.step for step in steps(read_one(lines))]
    assert numbers == sorted(set(numbers))
    assert 5 in numbers  # a loss that is no number outlives every thinning
    nans = read_one([f"s:{n} trl:nan" for n in range(5000)])
    assert len(steps(nans)) <= 100 + draft.MOST_ODD


def test_of_very_many_steps_an_even_share_and_every_nan_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    most = 1000
    monkeypatch.setattr(draft, "MOST_RECORDS", most)
    many = 5 * most
    lines = (f"s:{n} trl:{'nan' if n == many - 7 else '3.5000'}\n".encode() for n in range(many))
    (run,) = read_logs(lines, source="x")
    kept = steps(run)
    assert most / 2 < len(kept) <= most + 1
    assert run.kept_one_step_in == 8
    assert [step.step for step in kept if math.isnan(step.loss)] == [many - 7]
    distances = {later.step - earlier.step for earlier, later in pairwise(kept)}
    assert max(distances) == 8
    assert {later.step - earlier.step for earlier, later in pairwise(kept[:100])} == {8}
    assert run.unread_lines == 0
