"""One complete run in this process, for `onecard bench --loss`: trained to the end of its schedule.

`python -m onecard.train.bench_loss JOB` prints a line of JSON now and then, `{"updates": N}`, and last a `Learned` or
an error. Nothing is saved: the figures are all that stays of the run.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from onecard.config.schema import RunConfig
from onecard.data.dataset import open_dataset
from onecard.data.windows import EvalWindows
from onecard.errors import MachineError, OnecardError, first_line, is_out_of_memory
from onecard.runs.learned import Learned, Point
from onecard.train.bench import begin, device_for
from onecard.train.oom import OutOfMemory

SETTLING = 5  # updates that compile, record and settle: not among those whose median counts
SAID_EVERY = 0.5  # seconds


def learn(job: dict[str, Any], say: Callable[[int], None]) -> Learned:
    """The run of a job: `trainer`, `config`, `nanogpt`, the windows, and what it is called. `say` hears the updates."""
    config = RunConfig.model_validate(job["config"])
    device = device_for(job, config)
    dataset = open_dataset(config.dataset, environ=os.environ)
    windows = EvalWindows(dataset.val, block_size=job["window_tokens"], count=job["windows"])
    began = said = time.perf_counter()
    running = begin(job, config, dataset, device)
    optimizer_seconds = _timed(running.optimizer) if device.type == "cpu" else []
    seconds: list[float] = []
    losses: list[tuple[int, list[float]]] = []  # updates done, and the loss of each window
    first = 0.0
    for number in range(config.max_iters):
        start = time.perf_counter()
        running.step(number)
        now = time.perf_counter()
        seconds.append(now - start)
        first = first or now - began
        done = number + 1
        if done == config.max_iters or done % config.eval_interval == 0:
            losses.append((done, running.window_losses(windows)))
        if now - said > SAID_EVERY:
            say(done)
            said = now
    running.close()
    step_seconds = median(seconds[SETTLING:] or seconds)
    # torch waits for the processor, so an optimizer's part can be timed there, and on a card it cannot
    share = median(optimizer_seconds[SETTLING:] or optimizer_seconds) / step_seconds if optimizer_seconds else None
    points = (
        Point(tokens=done * config.tokens_per_step, seconds=done * step_seconds, val_loss=sum(each) / len(each))
        for done, each in losses
    )
    return Learned(
        **{key: job[key] for key in ("name", "ours", "share")},
        seed=config.seed,
        updates=config.max_iters,
        points=tuple(points),
        window_losses=tuple(losses[-1][1]),
        step_seconds=step_seconds,
        first_step_seconds=first,
        optimizer_share=share,
        parameters=running.parameters,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        torch=torch.__version__,
    )


def _timed(optimizer: torch.optim.Optimizer) -> list[float]:
    """The seconds of each step of an optimizer from now on."""
    seconds: list[float] = []
    began = 0.0

    def before(*_: object) -> None:
        nonlocal began
        began = time.perf_counter()

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(lambda *_: seconds.append(time.perf_counter() - began))
    return seconds


def answer(job: dict[str, Any], say: Callable[[int], None]) -> dict[str, object]:
    """The run, or the error that the user can act on and its exit code."""
    try:
        try:
            return learn(job, say).as_json()
        except Exception as problem:
            if isinstance(problem, OutOfMemory) or is_out_of_memory(problem):
                raise MachineError(
                    f"{job['name']} does not fit: memory ran out",
                    why=first_line(problem, 240),
                    fix="a smaller --batch_size with more --gradient_accumulation_steps, for the same tokens an update",
                    name="out-of-memory",
                ) from problem
            raise
    except OnecardError as error:
        return error.as_json() | {"exit_code": error.exit_code}


def _write(line: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _write(answer(json.loads(sys.argv[1]), lambda done: _write({"updates": done})))
