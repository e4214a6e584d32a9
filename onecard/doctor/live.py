"""What a run finds out about itself while it trains, explained like the doctor's rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from onecard import units
from onecard.findings import Finding


def no_cuda_graph(why: str) -> Finding:
    """Micro-batches without a CUDA graph.

    What it sees: a compiled run on a card that could not record a micro-batch as a CUDA graph.

    Why it matters: Python then launches every kernel; with small micro-batches the card waits for it. With graphs, and
    some smaller changes, a 30M model became 2.5 times as fast on an H200.

    What to do: nothing is lost, and there is nothing you must do; a larger micro-batch hides the launches. If you see
    it in every run, report it.

    When it is wrong: when the failure was temporary; the next start tries again.
    """
    return Finding(
        rule="no-cuda-graph",
        severity="info",
        sure="high",
        what="micro-batches are not recorded as a CUDA graph: the run goes on, slower where the host is slow",
        why=why,
        fix="nothing to do",
    )


def evaluation_above_training(
    *, step: int, evaluation_bytes: int, training_bytes: int, eval_batch_size: int, batch_size: int
) -> Finding:
    """An evaluation that needed more memory than training.

    What it sees: a peak of allocated bytes in an evaluation above that of all updates so far, by more than a cuBLAS
    workspace.

    Why it matters: a run that has trained for hours can still die in an evaluation. The default evaluation batch is
    planned so that this cannot happen.

    What to do: a smaller eval_batch_size; as many tokens are evaluated, in more batches.

    When it is wrong: when eval_batch_size or eval_block_size were set larger on purpose and there is room.
    """
    return Finding(
        rule="evaluation-above-training",
        severity="warn",
        sure="high",
        what=f"evaluation took {units.mib(evaluation_bytes)}, training {units.mib(training_bytes)}",
        why=f"evaluation batches of {eval_batch_size} are too large beside micro-batches of {batch_size}",
        fix=f"--eval_batch_size={max(1, eval_batch_size // 2)}",
        seen=(f"step {step}",),
    )


def doctor_failed(mistake: str, traceback: Sequence[str]) -> Finding:
    """An error in the doctor's own code.

    What it sees: an error in the code of the doctor that watches a run while it trains.

    Why it matters: the training goes on unharmed, but what else is wrong with it may not be reported.

    What to do: report it with the traceback, which is in the run's records.jsonl; `onecard doctor RUN` may say more.

    When it is wrong: never; it is reported once per run.
    """
    return Finding(
        rule="doctor-failed",
        severity="warn",
        sure="high",
        what=f"the live doctor failed: {mistake}; the training goes on",
        why="this is a bug in onecard, not your mistake; what else is wrong with the run may not be reported",
        fix="please report the traceback, which is in records.jsonl, with the run's config.json",
        seen=tuple(traceback),
    )


LIVE: tuple[Callable[..., Finding], ...] = (no_cuda_graph, evaluation_above_training, doctor_failed)
