"""Logs as people post them: no config, a few lines, the beginning or the end cut off. Every line here is made up."""

import math
import random
from collections.abc import Iterable

import pytest

from onecard.doctor.case import DataSizes
from onecard.doctor.diagnose import Diagnosis, diagnose_cases
from onecard.doctor.facts import make_case
from onecard.findings import Finding
from onecard.plan.cards import find_card
from onecard.runs.foreign import read_logs

DICE = random.Random(35)


def every(lines: Iterable[str], gpu: str | None = None) -> list[Diagnosis]:
    """The diagnoses of all runs in a log, of which nothing else is known."""
    card = find_card(gpu) if gpu else None
    runs = read_logs([f"{line}\n".encode() for line in lines], source="posted.log")
    return diagnose_cases([make_case(run, config=None, card=card, data=DataSizes()) for run in runs])


def rules(lines: Iterable[str], gpu: str | None = None) -> dict[str, Finding]:
    """What is found above information, by rule."""
    found = [finding for diagnosis in every(lines, gpu) for finding in diagnosis.findings]
    return {finding.rule: finding for finding in found if finding.severity != "info"}


def gpt(step: int, loss: float, ms: float = 200.0) -> str:
    return f"iter {step}: loss {loss:.4f}, time {ms:.2f}ms, mfu 20.00%"


def look(step: int, train: float, val: float) -> str:
    return f"step {step}: train loss {train:.4f}, val loss {val:.4f}"


def c_line(step: int, loss: float, ms: float = 3600.0) -> str:
    shown = f"{loss:7.6f}" if math.isfinite(loss) else "    nan"
    return (
        f"step {step:4d}/19560 | loss {shown} (+nanz)| norm {shown} (+nanz)| lr 1.00e-06 | {ms:.2f} ms | "
        f"36.0% bf16 MFU | {1000 * 524288 / ms:.0f} tok/s"
    )


def trainer(loss: float, norm: float | None = 0.5, epoch: float = 0.1) -> str:
    gradient = "" if norm is None else f"'grad_norm': {norm}, "
    return f"{{'loss': {loss}, {gradient}'learning_rate': 0.0001, 'epoch': {epoch}}}"


def falling(step: int, end: float = 3.3) -> float:
    return end + (10.9 - end) / (1 + step / 60)


HEALTHY = [gpt(step, falling(step) + DICE.gauss(0, 0.08)) for step in range(0, 2000, 10)]


class TestNumbersThatBroke:
    @pytest.mark.parametrize("loss", [4.6, 0.0])
    @pytest.mark.parametrize("norm", ["nan", "inf"])
    def test_a_gradient_norm_that_is_never_a_number_is_loss_nan_whatever_the_loss(self, loss: float, norm: str) -> None:
        (finding,) = rules([trainer(loss, float(norm), 0.05 * n) for n in range(1, 5)]).values()
        assert (finding.rule, finding.severity) == ("loss-nan", "fatal")
        assert "in every logged step: 3 further logged steps trained nothing" in finding.what
        assert "checkpoint" not in finding.fix

    def test_a_loss_scale_that_is_still_being_found_is_no_fault(self) -> None:
        lines = [trainer(3.0 - 0.01 * n, math.inf if n < 4 else 0.7, 0.01 * n) for n in range(60)]
        assert rules(lines) == {}

    def test_a_huge_loss_and_then_exactly_nothing_is_broken_numerics_and_no_leak(self) -> None:
        for zeros in (1, 8):
            lines = [trainer(344093.0, None, 0.01), *(trainer(0.0, None, 0.01 * n) for n in range(2, 2 + zeros))]
            found = rules(lines)
            assert found["loss-nan"].severity == "fatal"
            assert "exactly 0" in found["loss-nan"].what
            assert "loss-too-low" not in found

    def test_a_loss_of_0_with_a_gradient_is_no_broken_number(self) -> None:
        """Some of Trainer's relatives print 0 for a loss whose gradient is not 0."""
        assert "loss-nan" not in rules([trainer(0.0, 0.4, 0.01 * n) for n in range(1, 30)])

    def test_nan_before_the_first_update_is_not_blamed_on_the_learning_rate_and_its_cost_is_counted(self) -> None:
        finding = rules(["val loss nan", *(c_line(step, math.nan) for step in range(1, 903))])["loss-nan"]
        assert "before the first update" in finding.what
        assert "902 further updates, 54 min, trained nothing" in finding.what
        assert "not the learning rate" in finding.why
        assert "checkpoint" not in finding.fix
        assert finding.patch == {}

    def test_what_ran_on_after_nan_is_counted(self) -> None:
        finding = rules([gpt(n, 4.0 if n < 3 else math.nan, 8640.0) for n in range(5004)])["loss-nan"]
        assert finding.what == "the loss is nan at step 3: 5,000 further updates, 12.0 h, trained nothing"
        assert finding.fix.startswith("start again"), "no checkpoint was written in three updates"

    def test_the_first_update_of_a_fine_tune_may_be_lost_to_a_scaler_too(self) -> None:
        header = ["Overriding config with config/finetune.py:", "init_from = 'gpt2'", "learning_rate = 3e-5", ""]
        lines = [*header, look(0, 4.1872, 4.0326), gpt(0, 4.8131), gpt(1, math.nan)]
        assert "AdamW with fused=False" in rules(lines)["loss-nan"].fix
        later = [*header, *(gpt(step, 4.0) for step in range(200)), gpt(200, math.nan)]
        assert "fused" not in rules(later)["loss-nan"].fix

    def test_a_card_without_bfloat16_is_not_advised_to_use_it(self) -> None:
        lines = [*HEALTHY, gpt(2000, math.nan), gpt(2010, math.nan)]
        assert "bfloat16" not in rules(lines, "V100 SXM2 16GB")["loss-nan"].fix
        assert "bfloat16" in rules(lines, "RTX 4070")["loss-nan"].fix
        refused = "RuntimeError: Current CUDA Device does not support bfloat16. Please switch dtype to float16."
        assert "bfloat16" not in rules([refused, *lines])["loss-nan"].fix


CRASHES = {
    "misaligned": (["[CUDA ERROR] at file train_gpt2.cu:265:", "misaligned address"], "wrong address"),
    "illegal": (["RuntimeError: CUDA error: an illegal memory access was encountered"], "wrong address"),
    "cuBLAS": (["[cuBLAS ERROR]: 14 train_gpt2.cu 1290"], "cuBLAS"),
    "an assertion of C": (["train_gpt2: train_gpt2.cu:12: void f(): Assertion `B <= 64' failed."], "assertion"),
    "token ids": (
        ["../Loss.cu:250: nll: block: [0,0,0], thread: [3,0,0] Assertion `t >= 0 && t < n_classes` failed."] * 40,
        "outside the vocabulary",
    ),
    "NCCL": (["[rank1]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970"], "NCCL"),
    "NCCL's watchdog": (["[E] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=8)"], "NCCL"),
    "killed": (["Killed"], "the system killed"),
    "killed, by a shell": (["./run.sh: line 3: 12345 Killed                  python train.py"], "the system killed"),
    "killed, in a batch job": (
        ["slurmstepd: error: Detected 1 oom_kill event in StepId=1."],
        "the system killed",
    ),
    "killed, under torchrun": (["  exitcode  : -9 (pid: 4242)"], "the system killed"),
    "no bfloat16": (["RuntimeError: Current CUDA Device does not support bfloat16."], "no bfloat16"),
    "disk": (["OSError: [Errno 28] No space left on device"], "disk is full"),
    "segmentation": (["Segmentation fault (core dumped)"], "crashed"),
    "any error of Python": (
        ["Traceback (most recent call last):", '  File "train.py", line 9, in <module>', "    x = y", "ValueError: no"],
        "ValueError",
    ),
}


class TestCrashes:
    @pytest.mark.parametrize("name", CRASHES)
    def test_a_line_with_which_a_program_dies_is_an_error_with_its_line(self, name: str) -> None:
        lines, words = CRASHES[name]
        for before in (HEALTHY, []):
            diagnoses = every([*before, *lines])
            (finding,) = [f for d in diagnoses for f in d.findings if f.rule == "crashed"]
            assert finding.severity == "error"
            assert words in finding.what
            assert any(seen.startswith("line ") for seen in finding.seen)
            assert max(d.exit_code for d in diagnoses) == 1

    @pytest.mark.parametrize("name", CRASHES)
    def test_a_run_that_went_on_after_it_is_only_told(self, name: str) -> None:
        lines, _ = CRASHES[name]
        again = [gpt(step, falling(step)) for step in range(2000, 4000, 10)]
        assert rules([*HEALTHY, *lines, *again]) == {}

    def test_a_crash_that_the_log_survived_does_not_hide_the_last_one(self) -> None:
        again = [gpt(step, falling(step)) for step in range(2000, 4000, 10)]
        last = "RuntimeError: CUDA error: an illegal memory access was encountered"
        finding = rules([*HEALTHY, "Killed", *again, last])["crashed"]
        assert finding.severity == "error"
        assert last in finding.seen[0]

    @pytest.mark.parametrize(
        "line",
        [
            "KeyboardInterrupt",
            "NCCL version 2.21.5+cuda12.4",
            "NCCL_DEBUG=WARN TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
            "He killed the king, and all were killed by night.",
            "using fused AdamW: True",
            "CUBLAS_STATUS_SUCCESS",
            "W0101 torch/_inductor/utils.py:137] Not enough SMs to use max_autotune_gemm mode",
        ],
    )
    def test_what_only_sounds_like_a_crash_is_none(self, line: str) -> None:
        assert rules([*HEALTHY, line]) == {}

    def test_an_interrupted_traceback_is_no_crash(self) -> None:
        stop = ["Traceback (most recent call last):", '  File "train.py", line 9, in <module>', "KeyboardInterrupt"]
        assert rules([*HEALTHY, *stop]) == {}

    def test_memory_that_ran_out_is_told_once_by_its_own_rule(self) -> None:
        text = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
        traceback = ["Traceback (most recent call last):", '  File "train.py", line 9, in <module>', text]
        assert set(rules([*HEALTHY, *traceback])) == {"oom-capacity"}

    def test_llm_c_that_runs_out_of_memory_says_how_much_it_asked_for(self) -> None:
        lines = [
            "| train data pattern    | x |",
            "| micro batch size B    | 64                                                 |",
            "| device                | NVIDIA A100-PCIE-40GB                              |",
            "allocated 237 MiB for model parameters",
            "allocating 237 MiB for parameter gradients",
            "allocating 39612 MiB for activations",
            "[CUDA ERROR] at file train_gpt2.cu:265:",
            "out of memory",
        ]
        (finding,) = rules(lines).values()
        assert finding.rule == "oom-capacity"
        assert "38.68 GiB more was asked for with 474 MiB in use" in finding.what
        assert finding.fix.startswith("-b 32")

    def test_a_run_that_holds_more_than_its_card_has_spilled(self) -> None:
        lines = [f"{gpt(n, falling(n), 200 if n < 30 else 2600)}, mem 14.2GiB" for n in range(60)]
        assert rules(lines, "RTX 4070")["oom-system-spill"].severity == "error"
        assert "oom-system-spill" not in rules(lines, "RTX 4090")

    @pytest.mark.parametrize("count", [16, 60])
    def test_updates_that_suddenly_take_ten_times_as_long_are_told_with_what_spills(self, count: int) -> None:
        lines = [gpt(n, falling(n), 200 if n < count // 2 else 2400) for n in range(count)]
        assert "WSL" in rules(lines)["slowing-down"].fix


class TestMemory:
    def test_a_card_that_is_full_to_the_brim_is_not_fragmented(self) -> None:
        text = (
            "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 160.00 MiB. GPU 0 has a total capacty "
            "of 39.56 GiB of which 50.00 MiB is free. Process 41 has 39.50 GiB memory in use. Of the allocated memory "
            "37.80 GiB is allocated by PyTorch, and 330.00 MiB is reserved by PyTorch but unallocated."
        )
        assert set(rules([text])) == {"oom-capacity"}

    @pytest.mark.parametrize(("allocated", "claimed"), [(8.5, False), (7.4, False), (5.0, True)])
    def test_an_old_message_does_not_take_its_own_context_for_other_programs(
        self, allocated: float, claimed: bool
    ) -> None:
        text = (
            f"RuntimeError: CUDA out of memory. Tried to allocate 512.00 MiB (GPU 0; 10.76 GiB total capacity; "
            f"{allocated} GiB already allocated; 90.00 MiB free; {allocated + 0.1:.2f} GiB reserved in total)"
        )
        (finding,) = rules([text]).values()
        assert (finding.rule == "oom-other-process") is claimed
        assert ("other programs" in f"{finding.what} {finding.why}") is claimed


def swinging(width: float, kind: int, count: int) -> list[str]:
    shapes = (lambda n: math.sin(n / 3), lambda n: 1 if n % 2 else -1, lambda _: DICE.uniform(-1, 1))
    return [gpt(10 * n, falling(10 * n, 5.0) + width / 2 * shapes[kind](n)) for n in range(count)]


class TestNotFooledWithoutAConfig:
    @pytest.mark.parametrize("line", [gpt, c_line])
    def test_a_first_loss_of_70_is_told(self, line: type[gpt]) -> None:  # type: ignore[valid-type]
        assert "bad-initial-loss" in rules([line(1, 70.3), *(line(n, falling(10 * n)) for n in range(2, 90))])
        assert "bad-initial-loss" not in rules([line(1, 11.2), *(line(n, falling(10 * n)) for n in range(2, 90))])

    def test_a_first_loss_of_70_of_a_trainer_without_steps_is_told(self) -> None:
        assert "bad-initial-loss" in rules([trainer(70.3), *(trainer(round(3 + 60 / n, 4)) for n in range(1, 40))])

    @pytest.mark.parametrize("count", [30, 300])
    def test_a_final_loss_of_a_twentieth_is_told(self, count: int) -> None:
        lines = [gpt(10 * n, max(0.05, 10.9 * math.exp(-20 * n / count))) for n in range(count)]
        assert "loss-too-low" in rules(lines)

    def test_a_memorised_text_is_overfitting_and_not_a_leak(self) -> None:
        lines = []
        for k in range(21):
            train, val = 0.035 + 4.2 / (1 + k) ** 2, 0.65 + 0.035 * k if k else 4.2
            lines += [look(250 * k, train, val), *(gpt(250 * k + n, train) for n in range(0, 250, 50))]
        found = rules(lines)
        assert "overfitting" in found
        assert "loss-too-low" not in found

    @pytest.mark.parametrize("kind", [0, 1, 2])
    @pytest.mark.parametrize("count", [80, 300])
    def test_swings_of_three_nats_are_told(self, kind: int, count: int) -> None:
        assert "unsteady-loss" in rules(swinging(3.0, kind, count))

    def test_the_noise_of_single_sequences_is_no_swing(self) -> None:
        lines = [gpt(10 * n, falling(10 * n) + DICE.gauss(0, 0.42)) for n in range(300)]
        assert rules(lines) == {}

    @pytest.mark.parametrize("split", [True, False])
    def test_a_resume_that_jumps_by_two_and_a_half_nats_is_told(self, split: bool) -> None:
        header = ["tokens per iteration will be: 491,520"] if split else []
        after = [gpt(n, falling(n) + 2.5 * math.exp(-(n - 2000) / 60)) for n in range(2000, 3000, 10)]
        calm = [gpt(n, falling(n) + DICE.gauss(0, 0.08)) for n in range(2000, 3000, 10)]
        assert "resume-lr-jump" in rules([*HEALTHY, "Resuming training from out", *header, *after])
        assert rules([*HEALTHY, "Resuming training from out", *header, *calm]) == {}

    def test_val_that_rises_while_train_falls_is_overfitting_in_two_evaluations(self) -> None:
        one = [look(0, 10.9, 10.9), gpt(0, 10.9), look(500, 4.2, 4.48), gpt(500, 4.1), look(1000, 2.4, 5.32)]
        other = [trainer(3.9, epoch=0.5), "{'eval_loss': 4.48, 'eval_runtime': 10.0, 'epoch': 1.0}"]
        other += [trainer(2.4, epoch=1.5), "{'eval_loss': 5.32, 'eval_runtime': 10.0, 'epoch': 2.0}"]
        assert "overfitting" in rules(one)
        assert "overfitting" in rules(other)

    @pytest.mark.parametrize("first", [0, 76])
    def test_22_lines_at_the_loss_of_random_weights_are_not_learning(self, first: int) -> None:
        flat = [10.82 + DICE.gauss(0, 0.01) for _ in range(22)]
        assert rules([gpt(first + n, loss) for n, loss in enumerate(flat)])["not-learning"].severity == "error"
        lit = [f"iter {first + n} step {n // 2}: loss {x:.4f}, iter time: 198.35ms" for n, x in enumerate(flat)]
        assert rules(lit)["not-learning"].severity == "error"

    def test_the_first_updates_of_a_slow_warm_up_are_not_called_so(self) -> None:
        assert rules([gpt(n, 10.9 - 0.0009 * n * (n + 1)) for n in range(22)]) == {}

    @pytest.mark.parametrize("before", [8, 60])
    def test_a_loss_that_exploded_is_an_error_even_when_it_comes_down(self, before: int) -> None:
        losses = [*(falling(40 * n, 4.6) for n in range(before)), 9, 40, 120, 270, 200, 110, 60, 42, 35, 31]
        diagnosis, *_ = every([gpt(10 * n, loss) for n, loss in enumerate(losses)])
        (finding,) = [f for f in diagnosis.findings if f.rule == "diverging"]
        assert finding.severity == "error"
        assert "270 at step" in finding.what
        assert "31 at the end" in finding.what
        assert diagnosis.exit_code == 1

    def test_a_short_spike_that_no_batch_makes_is_a_warning_though_it_comes_back(self) -> None:
        spiked = [gpt(10 * n, falling(10 * n) + (4.0 if 100 <= n < 103 else 0.0)) for n in range(200)]
        assert "loss-spike" in rules(spiked)
        hard = [gpt(10 * n, falling(10 * n) + (2.0 if n == 100 else 0.0)) for n in range(200)]
        assert rules(hard) == {}

    def test_a_healthy_log_is_left_alone(self) -> None:
        assert rules(HEALTHY) == {}
        assert rules(HEALTHY[40:70]) == {}
        assert rules([trainer(round(1.1 + 1.9 / (1 + n / 9), 4), epoch=0.02 * n) for n in range(90)]) == {}


def test_updates_that_read_most_of_the_data_are_told() -> None:
    lines = [
        "Overriding config with config/train_shakespeare_char.py:",
        "dataset = 'shakespeare_char'",
        "batch_size = 64",
        "block_size = 256",
        "max_iters = 5000",
        "",
        "total number of tokens per iteration: 655360",
        "found vocab_size = 65 (inside data/shakespeare_char/meta.pkl)",
        *(gpt(n, 1.3 + 2.9 / (1 + n / 40)) for n in range(0, 450, 10)),
    ]
    (diagnosis,) = every(lines)
    (finding,) = [f for f in diagnosis.findings if f.rule == "few-large-updates"]
    assert "65% of all training data" in finding.what
    assert finding.patch == {"gradient_accumulation_steps": 1}
