"""Tasks that tell small models apart: what they ask, what guessing gets, and what known models got.

Every published figure is zero-shot and by lm-eval, in the metric that its task names here; a model without one is left
out. None was found for GPT-2 355M: OpenAI's own LAMBADA figures are of another form of the task.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

BEYOND_NOISE = 2.0  # standard errors from which a difference counts

_PYTHIA = "EleutherAI/pythia, evals/pythia-v1/pythia-160m/zero-shot/160m_step143000.json"
_MAMBA = "arXiv 2312.00752, table 3"
_CRUMB = "model card of crumb/gpt2023 on the Hugging Face hub"
_KARPATHY = "karpathy/llm.c, dev/data/hellaswag.py"
_ISSUE = "EleutherAI/lm-evaluation-harness, issue 2159"

GPT2, PYTHIA = "GPT-2 124M", "Pythia-160M"


@dataclass(frozen=True)
class Published:
    """What a known model got."""

    model: str
    value: float
    source: str


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A task of lm-eval."""

    task: str  # its name there
    asks: str
    metric: str
    questions: int  # in all
    published: tuple[Published, ...] = field(default=())


# The tasks that `--tasks core` stands for.
CORE = (
    Benchmark(
        task="hellaswag",
        asks="which of four sentences goes on with a scene",
        metric="acc_norm",
        questions=10_042,
        published=(Published(GPT2, 0.3114, _KARPATHY), Published(PYTHIA, 0.302, _MAMBA)),
    ),
    Benchmark(
        task="piqa",
        asks="which of two ways to do an everyday thing works",
        metric="acc",
        questions=1_838,
        published=(Published(GPT2, 0.6289, _CRUMB), Published(PYTHIA, 0.6273, _PYTHIA)),
    ),
    Benchmark(
        task="arc_easy",
        asks="questions of science lessons, easy ones",
        metric="acc",
        questions=2_376,
        published=(Published(PYTHIA, 0.4352, _PYTHIA),),
    ),
    Benchmark(
        task="lambada_openai",
        asks="the last word of a passage",
        metric="acc",
        questions=5_153,
        published=(Published(GPT2, 0.3256, _ISSUE), Published(PYTHIA, 0.3284, _PYTHIA)),
    ),
    Benchmark(
        task="sciq",
        asks="questions of science exams, after a text that helps",
        metric="acc",
        questions=1_000,
        published=(Published(GPT2, 0.75, _CRUMB), Published(PYTHIA, 0.741, _PYTHIA)),
    ),
    Benchmark(
        task="blimp",
        asks="which of two sentences is grammatical, in 67 ways to be wrong",
        metric="acc",
        questions=67_000,
    ),
)
# Tasks in which models of this size do not differ from guessing, each with the figures that say so.
NEAR_CHANCE = (
    Benchmark(
        task="winogrande",
        asks="which of two nouns a sentence speaks of",
        metric="acc",
        questions=1_267,
        published=(Published(GPT2, 0.5161, _CRUMB), Published(PYTHIA, 0.5312, _PYTHIA)),
    ),
    Benchmark(
        task="arc_challenge",
        asks="questions of science lessons, hard ones",
        metric="acc",
        questions=1_172,
        published=(Published(GPT2, 0.1903, _CRUMB), Published(PYTHIA, 0.1877, _PYTHIA)),
    ),
    Benchmark(
        task="logiqa",
        asks="questions of logic",
        metric="acc",
        questions=651,
        published=(Published(PYTHIA, 0.1905, _PYTHIA),),
    ),
)
_KNOWN = {each.task: each for each in (*CORE, *NEAR_CHANCE)}


def benchmark(task: str) -> Benchmark | None:
    return _KNOWN.get(task)


def binomial_error(share: float, questions: int) -> float:
    """The standard error of a share of right answers."""
    return math.sqrt(max(share * (1 - share), 0.0) / questions)


def differs(value: float, error: float | None, other: float, other_error: float) -> bool | None:
    """Whether two scores of different models differ by more than noise; None where it cannot be known."""
    if error is None:
        return None
    return abs(value - other) > BEYOND_NOISE * math.hypot(error, other_error)
