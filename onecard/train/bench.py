"""One trainer measured in this process: onecard's, or nanoGPT's model from a checkout under nanoGPT's own loop.

`python -m onecard.train.bench JOB` is started by `onecard bench` for every measurement, because memory limits, compile
caches and peaks belong to a process. JOB is JSON; the last line of output is a `Measured`, or the error that `onecard
bench` is to tell as its own. nanoGPT's code is imported from the folder the user named, and run: that is what comparing
with it means. bench_loss.py trains to the end with the same two trainers.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onecard.config.schema import GPT2_SHAPE_KEYS, RunConfig
from onecard.data.dataset import Dataset, open_dataset
from onecard.data.tokens import Tokens
from onecard.data.windows import EvalWindows
from onecard.errors import OnecardError, is_out_of_memory
from onecard.machine import read_gpu
from onecard.models.evaluation import eval_batch_size
from onecard.plan.memory.predict import context_of_onecard
from onecard.plan.schedule import learning_rate
from onecard.runs.measured import Measured
from onecard.train.device import cap_memory, card_of, choose_device
from onecard.train.evaluate import Evaluation, evaluate
from onecard.train.measure_machine import peak_process_bytes
from onecard.train.oom import OutOfMemory
from onecard.train.precision import Precision, allow_tf32, choose_precision
from onecard.train.trainer import Trainer

EVAL_WINDOWS = 64  # sequences of the validation loss
LEAST_TIMED = 3  # updates, where the time for them is limited
FIRST_EVAL_BATCHES = 3  # of each split, before the first update: the allocator sees nothing new after the third


def measure(job: dict[str, Any]) -> Measured:
    """What the job asks for: `trainer`, `config`, `updates`, of which the last `timed` are timed, and `nanogpt`.

    With `seconds`, fewer updates are timed where that is enough, an evaluation is timed too, and no loss is validated.
    `threads` are those of the processor.
    """
    if job.get("threads"):
        torch.set_num_threads(job["threads"])
    config = RunConfig.model_validate(job["config"])
    device = device_for(job, config)
    dataset = open_dataset(config.dataset, environ=os.environ)
    windows = EvalWindows(dataset.val, block_size=config.block_size, count=EVAL_WINDOWS)
    warm_up, is_short = job["updates"] - job["timed"], "seconds" in job
    empty = Measured(
        trainer=job["trainer"],
        batch_size=config.batch_size,
        gradient_accumulation_steps=config.gradient_accumulation_steps,
        grad_checkpoint=config.grad_checkpoint if job["trainer"] == "onecard" else "none",
        seed=config.seed,
        tokens_per_step=config.tokens_per_step,
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        torch=torch.__version__,
    )
    began = time.perf_counter()
    try:
        run = begin(job, config, dataset, device)
        run.evaluate_first()
        losses, seconds = [], []
        for number in range(job["updates"]):
            start = time.perf_counter()
            losses.append(run.step(number))
            seconds.append(time.perf_counter() - start)
            if not number:
                first = time.perf_counter() - began
            if is_short and _is_enough(seconds[warm_up:], job["seconds"]):
                break
        found = replace(
            empty,
            losses=tuple(losses),
            step_seconds=tuple(seconds[warm_up:]),
            first_step_seconds=first,
        )
        found = _with_memory(found, device)  # before the validation, whose memory is not the trainer's
        if is_short:
            run.close()
            return found if device.type == "cuda" else replace(found, process_bytes=peak_process_bytes())
        each = torch.tensor(run.window_losses(windows))
        run.close()
        return replace(found, val_loss=float(each.mean()), val_loss_error=float(each.std()) / math.sqrt(len(each)))
    except Exception as problem:
        if isinstance(problem, OutOfMemory) or is_out_of_memory(problem):
            return replace(empty, out_of_memory=True)
        raise


def _is_enough(timed: list[float], seconds: float) -> bool:
    return len(timed) >= LEAST_TIMED and sum(timed) >= seconds


def _with_memory(found: Measured, device: torch.device) -> Measured:
    """The measurement with the peaks of this process, which only a card has."""
    if device.type != "cuda":
        return found
    status = read_gpu(device.index or 0)
    programs = status.programs if status else ()
    return replace(
        found,
        allocated_bytes=torch.cuda.max_memory_allocated(device),
        reserved_bytes=torch.cuda.max_memory_reserved(device),
        process_bytes=next((program.used_bytes for program in programs if program.pid == os.getpid()), None),
    )


def device_for(job: dict[str, Any], config: RunConfig) -> torch.device:
    """The device of a job, with its settings and under its limit."""
    device = choose_device(config)
    allow_tf32(device)
    torch.use_deterministic_algorithms(config.deterministic)
    if config.memory_limit and device.type == "cuda":
        card = card_of(device)
        context_bytes = context_of_onecard(config, card) if job["trainer"] == "onecard" and card else 0
        cap_memory(device, config.memory_limit, context_bytes=context_bytes or (card.context_bytes if card else 0))
    return device


def begin(job: dict[str, Any], config: RunConfig, dataset: Dataset, device: torch.device) -> Running:
    """The trainer that a job names, before its first update."""
    precision = choose_precision(config, device)
    if job["trainer"] == "onecard":
        return _onecard(config, dataset, device, precision)
    return _nanogpt(Path(job["nanogpt"]), config, dataset, device, precision)


@dataclass(frozen=True, kw_only=True)
class Running:
    """A trainer under way.

    `evaluate_first` is what runs of both begin with, and the blocks that it leaves decide how much the updates reserve:
    of nanoGPT's 40M 1 GiB less than without (tests/golden/test_bench_memory.py). So a measurement of memory calls it;
    bench_loss.py, which measures none, does not.
    """

    evaluate_first: Callable[[], object]
    step: Callable[[int], float]  # the loss of the update with this number
    window_losses: Callable[[EvalWindows], list[float]]  # the mean loss of each window, in nats per token
    close: Callable[[], object]
    optimizer: torch.optim.Optimizer
    parameters: int


def _onecard(config: RunConfig, dataset: Dataset, device: torch.device, precision: Precision) -> Running:
    trainer = Trainer(config, dataset, device, precision)

    def ran_out(_: object) -> None:
        raise OutOfMemory("a benchmark does not shrink the micro-batch")

    def evaluate_first() -> Evaluation:
        batch_size, block_size = eval_batch_size(config), config.eval_length
        train, val = (
            EvalWindows(tokens, block_size=block_size, count=FIRST_EVAL_BATCHES * batch_size)
            for tokens in (dataset.train, dataset.val)
        )
        with trainer.evaluating() as sequence_losses:
            return evaluate(
                sequence_losses, train=train, val=val, batch_size=batch_size, device=device, on_oom=lambda *_: None
            )

    @torch.no_grad()
    def window_losses(windows: EvalWindows) -> list[float]:
        losses: list[float] = []
        with trainer.evaluating() as sequence_losses:
            for x, y in windows.batches(eval_batch_size(config)):
                losses += sequence_losses(torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)).tolist()
        return losses

    return Running(
        evaluate_first=evaluate_first,
        step=lambda _: trainer.update(ran_out).loss,
        window_losses=window_losses,
        close=trainer.close,
        optimizer=trainer.optimizer,
        parameters=sum(parameter.numel() for parameter in trainer.model.parameters()),
    )


def _nanogpt(
    checkout: Path,
    config: RunConfig,
    dataset: Dataset,
    device: torch.device,
    precision: Precision,
) -> Running:
    """nanoGPT's model under nanoGPT's training loop: random windows, the next batch fetched behind the forward pass."""
    sys.path.insert(0, str(checkout))
    from model import GPT, GPTConfig  # type: ignore[import-not-found]

    torch.manual_seed(config.seed)
    keys = (*GPT2_SHAPE_KEYS, "dropout")
    plain: Any = GPT(GPTConfig(**{key: getattr(config, key) for key in keys})).to(device)
    betas = (config.beta1, config.beta2)
    optimizer = plain.configure_optimizers(config.weight_decay, config.learning_rate, betas, device.type)
    scaler = precision.grad_scaler()
    model: Any = torch.compile(plain) if config.compile and device.type == "cuda" else plain

    def batch(tokens: Tokens) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(tokens) - config.block_size, (config.batch_size,)).numpy()
        rows = torch.from_numpy(tokens.rows(starts, config.block_size + 1))
        x, y = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
        if device.type == "cuda":
            x, y = x.pin_memory(), y.pin_memory()
        return x.to(device, non_blocking=True), y.to(device, non_blocking=True)

    following = batch(dataset.train)

    @torch.no_grad()
    def evaluate_first() -> None:
        model.eval()
        for tokens in (dataset.train, dataset.val):
            for _ in range(FIRST_EVAL_BATCHES):
                x, y = batch(tokens)
                with precision.autocast():
                    _logits, loss = model(x, y)
                loss.item()
        model.train()

    def step(number: int) -> float:
        nonlocal following
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, number)
        total = torch.zeros((), device=device)
        for _ in range(config.gradient_accumulation_steps):
            x, y = following
            with precision.autocast():
                _logits, loss = model(x, y)
                loss = loss / config.gradient_accumulation_steps
            following = batch(dataset.train)
            scaler.scale(loss).backward()
            total += loss.detach()
        if config.grad_clip:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), config.grad_clip)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        return total.item()

    @torch.no_grad()
    def window_losses(windows: EvalWindows) -> list[float]:
        plain.eval()
        losses = []
        for x, y in windows.batches(1):
            with precision.autocast():
                losses.append(plain(torch.from_numpy(x).to(device), torch.from_numpy(y).to(device))[1].item())
        plain.train()
        return losses

    return Running(
        evaluate_first=evaluate_first,
        step=step,
        window_losses=window_losses,
        close=lambda: None,
        optimizer=optimizer,
        parameters=sum(parameter.numel() for parameter in plain.parameters()),
    )


def answer(job: dict[str, Any]) -> dict[str, object]:
    """The measurement, or the error that the user can act on and its exit code."""
    try:
        return measure(job).as_json()
    except OnecardError as error:
        return error.as_json() | {"exit_code": error.exit_code}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(answer(json.loads(sys.argv[1]))) + "\n")
