"""The loop: evaluate, save, update, until done; every fault ends in a continued run or a clear sentence."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from onecard import __version__
from onecard.config.schema import RunConfig
from onecard.data.dataset import Dataset
from onecard.data.tokenizers import bytes_per_token
from onecard.doctor.live import evaluation_above_training, no_cuda_graph
from onecard.errors import MachineError, OnecardError
from onecard.machine import read_gpu
from onecard.plan.cards import Card, matching_cards
from onecard.plan.counts import mfu
from onecard.plan.evaluation import eval_batch_size
from onecard.plan.memory.device import device_of
from onecard.plan.memory.predict import context_of_onecard
from onecard.runs.folder import CHECKPOINTS, Run, RunFolder, checkpoint_name
from onecard.runs.records import Checkpoint, End, EndReason, Eval, FindingRecord, Oom, Record, Start, Step
from onecard.train import checkpoint
from onecard.train.evaluate import evaluate
from onecard.train.interrupt import Interrupt, Stopped
from onecard.train.memory_snapshot import MeasuredMemory, MemorySnapshot
from onecard.train.oom import OutOfMemory, first_line, is_out_of_memory
from onecard.train.precision import allow_tf32, choose_device, choose_precision, limit_memory
from onecard.train.profiling import Profiling
from onecard.train.trainer import Shrunk, Trainer
from onecard.train.watched import Watched

LONGEST_ERROR = 300  # characters of an error that are recorded
PATIENCE = 20  # updates without a loss: float16 may lose one for a moment, but no run comes back from twenty


@dataclass(frozen=True, kw_only=True)
class Finished:
    """How a run ended."""

    end: End
    measured_memory: MeasuredMemory | None = None  # where a snapshot was asked for
    without_trace: str | None = None  # why the trace that was asked for is not there


def train(
    config: RunConfig,
    folder: RunFolder,
    dataset: Dataset,
    *,
    resume: bool,
    on_record: Callable[[Record], None],
    on_note: Callable[[str], None] = lambda _: None,
    on_interrupt: Callable[[str], None] = lambda _: None,
    profile: Path | None = None,
    memory_snapshot: Path | None = None,
    predicted_process_bytes: int | None = None,
) -> Finished:
    """Train `config` in `folder`; each record is on disk before `on_record` sees it.

    `on_note` hears what no record holds: settings without effect, damaged checkpoints that were passed over.
    `on_interrupt` hears at the first signal, inside its handler, what follows from it.
    """
    snapshot = MemorySnapshot(memory_snapshot, choose_device(config))
    with Profiling(profile) as profiling:
        try:
            loop = _Loop(
                config,
                folder,
                dataset,
                on_record,
                on_note,
                on_interrupt,
                profiling.after_step,
                snapshot,
                predicted_process_bytes,
            )
            finished = loop.run(resume)
        except Exception as error:  # what a run itself can do about it, it has done
            if not is_out_of_memory(error):
                raise
            raise MachineError(
                "there is no memory for the weights and the optimizer",
                why=first_line(error),
                fix="close what else uses the card (nvidia-smi lists it), or a smaller model: onecard plan --fit",
                name="out-of-memory",
            ) from error
    return replace(finished, without_trace=profiling.missing)


def card_of(device: torch.device) -> Card | None:
    """The card table's row of a device; None off CUDA and for cards it does not know."""
    known = matching_cards(torch.cuda.get_device_name(device)) if device.type == "cuda" else ()
    return known[0] if len(known) == 1 else None


def cap_memory(device: torch.device, limit_bytes: int, *, context_bytes: int) -> None:
    """From now on the allocator runs out of memory, catchably, before the driver shows more than `limit_bytes`.

    The context is what the driver shows for this process beyond the allocator, or `context_bytes` where that is more
    (kernels are loaded as they are first used).
    """
    torch.zeros(1, device=device)
    status = read_gpu(device.index or 0)
    own = next((p.used_bytes for p in status.programs if p.pid == os.getpid()), None) if status else None
    shown = (own or 0) - torch.cuda.memory_reserved(device)
    limit_memory(device, limit_bytes, context_bytes=max(context_bytes, shown))


class _Loop:
    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        dataset: Dataset,
        on_record: Callable[[Record], None],
        on_note: Callable[[str], None],
        on_interrupt: Callable[[str], None],
        after_step: Callable[[], None],
        snapshot: MemorySnapshot,
        predicted_process_bytes: int | None,
    ) -> None:
        self.config = config
        self.snapshot = snapshot
        self.predicted_process_bytes = predicted_process_bytes
        self.after_step = after_step
        self.folder = folder
        self.on_record = on_record
        self.device = choose_device(config)
        self.precision = choose_precision(config, self.device)
        allow_tf32(self.device)
        torch.use_deterministic_algorithms(config.deterministic)
        self.on_note = on_note
        if self.precision.note:
            on_note(self.precision.note)
        self.card = card_of(self.device)
        if config.memory_limit and self.device.type == "cuda":
            context_bytes = context_of_onecard(config, self.card) if self.card else 0
            cap_memory(self.device, config.memory_limit, context_bytes=context_bytes)
        self.trainer = Trainer(config, dataset, self.device, self.precision)
        self.checkpoints = folder.path / CHECKPOINTS
        self.eval_batch_size = eval_batch_size(config)
        self.without_loss = 0  # updates in a row whose loss was no number
        self.saved_step: int | None = None  # that of the newest checkpoint
        self.evaluating = False
        self.interrupt = Interrupt(lambda: on_interrupt(self._what_follows()))
        self.training_peak_bytes = 0
        self.reserved_bytes = 0  # the highest so far
        self.watched = Watched(config, self.card, dataset)
        self.bytes_per_token = bytes_per_token(dataset.val, dataset.tokenizer) if dataset.tokenizer else None

    def run(self, resume: bool) -> Finished:
        resumed_from = self._resume() if resume else None
        if resume:  # nothing can be refused any more: the run goes on with these settings
            self.folder.write_config(self.config.model_dump())
        self._record_start(resumed_from)
        try:
            end = self._end(self._trained())
            self._record(end)
        except BaseException as error:
            self._record_fault(error)
            raise
        return Finished(end=end, measured_memory=self.snapshot.measured)

    def _what_follows(self) -> str:
        """What a request to stop leads to now, and what a second one would cost."""
        left = "stopping this evaluation" if self.evaluating else "stopping after this step"
        saving = "" if self.without_loss or self.config.eval_only else ", then saving"
        unsaved = self.trainer.step - (self.saved_step or 0)
        updates = f"{unsaved:,} update{'s' * (unsaved != 1)}"
        since = "" if self.saved_step is None else f" since the checkpoint of step {self.saved_step:,}"
        return f"{left}{saving}; Ctrl-C again stops at once" + (f" and loses {updates}{since}" if unsaved else "")

    def _trained(self) -> EndReason:
        """Why training stopped, saved."""
        began = time.perf_counter()
        with self.interrupt:
            try:
                return self._steps(began)
            except Stopped:
                if not self.config.eval_only:
                    self._save("interrupted")
                return "interrupted"
            except OutOfMemory:
                self._save("out of memory")
                return "out-of-memory"
            finally:
                self.trainer.close()

    def _end(self, reason: EndReason, more: Mapping[str, object] | None = None) -> End:
        return End(
            step=self.trainer.step,
            tokens=self.trainer.tokens,
            reason=reason,
            best_val_loss=self.trainer.best_val_loss,
            seconds=self.trainer.elapsed_seconds,
            more=more or {},
        )

    def _record_fault(self, error: BaseException) -> None:
        """Record how the run ended, if that can be written: on a full disk the lock that is left behind must do."""
        stopped = isinstance(error, KeyboardInterrupt)
        (said, *_) = str(error).splitlines() or [type(error).__name__]
        end = self._end("interrupted") if stopped else self._end("error", {"error": said[:LONGEST_ERROR]})
        with suppress(OnecardError):
            self.folder.append(end)

    def _steps(self, began: float) -> EndReason:
        trainer, config = self.trainer, self.config
        fresh = True  # nothing has happened since the start, or since the checkpoint that was resumed from
        while True:
            last = trainer.finished
            due = trainer.step % config.eval_interval == 0
            if not fresh and (last or due or trainer.step % self._checkpoint_interval == 0):
                self._save("finished" if last else "due")
            if due or last:
                # after a resume too: the checkpoint was written before this evaluation, which may never have happened
                self._evaluate()
            if last or config.eval_only:
                return "diverged" if self.without_loss else "finished"
            self.interrupt.check()
            if config.max_hours and time.perf_counter() - began > config.max_hours * 3600:
                self._save("max_hours")
                return "max_hours"
            self._update()
            self.after_step()
            self.snapshot.after_step(trainer)
            fresh = False
            if self.without_loss >= PATIENCE:
                return "diverged"

    @property
    def _checkpoint_interval(self) -> int:
        return self.config.checkpoint_interval or self.config.eval_interval

    def _update(self) -> None:
        trainer = self.trainer
        update = trainer.update(self._shrunk)
        self.without_loss = 0 if math.isfinite(update.loss) else self.without_loss + 1
        rate = self.config.tokens_per_step / update.seconds
        peak = self.card.peak_flops if self.card else None
        self._record(
            Step(
                step=trainer.step,
                tokens=trainer.tokens,
                loss=update.loss,
                lr=update.lr,
                grad_norm=update.grad_norm,
                seconds=update.seconds,
                elapsed_seconds=trainer.elapsed_seconds,
                tokens_per_second=rate,
                mfu=mfu(self.config, tokens_per_second=rate, peak_flops=peak) if peak else None,
                allocated_bytes=self._training_peak(),
                reserved_bytes=self._reserved_so_far(),
                data_wait_seconds=update.data_wait_seconds,
            )
        )

        if trainer.graph_failure:
            self._record(FindingRecord(step=trainer.step, finding=no_cuda_graph(trainer.graph_failure)))
            trainer.graph_failure = None

    def _shrunk(self, shrunk: Shrunk) -> None:
        if not self.config.eval_batch_size and shrunk.after:  # what does not fit in training shall not in evaluation
            self.eval_batch_size = min(self.eval_batch_size, shrunk.after)
        self._record(
            Oom(
                step=self.trainer.step,
                where="train",
                batch_size_before=shrunk.before,
                batch_size_after=shrunk.after,
                accumulation_before=shrunk.accumulation_before,
                accumulation_after=shrunk.accumulation_after,
                message=shrunk.message,
            )
        )

    def _evaluate(self) -> None:
        """Evaluate and record it; one that is interrupted is dropped."""
        trainer = self.trainer
        trainer.free_activations()
        self._start_counting_peaks()
        train, val = trainer.eval_windows
        self.evaluating = True
        found = evaluate(
            trainer.model,
            train=train,
            val=val,
            batch_size=self.eval_batch_size,
            precision=self.precision,
            device=self.device,
            on_oom=self._eval_shrunk,
            before_batch=self.interrupt.check,
        )
        self.evaluating = False
        self.eval_batch_size = found.batch_size
        lowest = math.inf if trainer.best_val_loss is None else trainer.best_val_loss
        best = found.val.mean < lowest  # never, if it is no number
        self._record(
            Eval(
                step=trainer.step,
                tokens=trainer.tokens,
                train_loss=found.train.mean,
                val_loss=found.val.mean,
                train_loss_error=found.train.error,
                val_loss_error=found.val.error,
                block_size=self.config.eval_block_size or self.config.block_size,
                tokens_read=found.tokens_read,
                seconds=found.seconds,
                peak_allocated_bytes=self._cuda(torch.cuda.max_memory_allocated),
                peak_reserved_bytes=self._cuda(torch.cuda.max_memory_reserved),
                bits_per_byte=self._bits_per_byte(found.val.mean),
            )
        )
        self._check_peak(self._cuda(torch.cuda.max_memory_allocated))
        self._start_counting_peaks()
        if best:
            trainer.best_val_loss = found.val.mean
            if (self.checkpoints / checkpoint_name(trainer.step)).is_dir():  # before the first update there may be none
                checkpoint.mark_best(self.checkpoints, step=trainer.step, val_loss=found.val.mean)
        for finding in self.watched.new_findings():
            self._record(FindingRecord(step=trainer.step, finding=finding))

    def _start_counting_peaks(self) -> None:
        self._reserved_so_far()
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)

    def _reserved_so_far(self) -> int | None:
        peak = self._cuda(torch.cuda.max_memory_reserved)
        self.reserved_bytes = max(self.reserved_bytes, peak or 0)
        return None if peak is None else self.reserved_bytes

    def _training_peak(self) -> int | None:
        """Most bytes allocated at a time since the last evaluation, which resets the count."""
        peak = self._cuda(torch.cuda.max_memory_allocated)
        self.training_peak_bytes = max(self.training_peak_bytes, peak or 0)
        return peak

    def _check_peak(self, evaluation_bytes: int | None) -> None:
        """Evaluation must not need more than training did: the plan says so, and here it is held to it.

        A tiny model's training may peak before cuBLAS has made its last workspace, which is then there in evaluation.
        """
        allowed = self.training_peak_bytes + device_of(self.card).cublas_workspace_bytes
        if evaluation_bytes and self.training_peak_bytes and evaluation_bytes > allowed:
            finding = evaluation_above_training(
                step=self.trainer.step,
                evaluation_bytes=evaluation_bytes,
                training_bytes=self.training_peak_bytes,
                eval_batch_size=self.eval_batch_size,
                batch_size=self.trainer.batch_size,
            )
            self._record(FindingRecord(step=self.trainer.step, finding=finding))

    def _bits_per_byte(self, loss: float) -> float | None:
        """Nats per token as bits per byte of text: the figure that compares across tokenizers."""
        return loss / math.log(2) / self.bytes_per_token if self.bytes_per_token else None

    def _eval_shrunk(self, before: int, after: int | None, message: str) -> None:
        self._record(
            Oom(
                step=self.trainer.step,
                where="eval",
                batch_size_before=before,
                batch_size_after=after,
                accumulation_before=None,
                accumulation_after=None,
                message=message,
            )
        )

    def _save(self, reason: str) -> None:
        """Save, unless the loss is no number: weights that are none must not push out those that are."""
        if self.without_loss:
            return
        began = time.perf_counter()
        trainer = self.trainer
        path = checkpoint.save(
            self.checkpoints,
            model=trainer.model,
            optimizer=trainer.optimizer,
            state=trainer.state(),
            config=self.config,
        )
        self.saved_step = trainer.step
        checkpoint.prune(self.checkpoints, saved=path, keep=self.config.keep_checkpoints)
        marked = checkpoint.best(self.checkpoints)
        self._record(
            Checkpoint(
                step=trainer.step,
                tokens=trainer.tokens,
                path=str(path.relative_to(self.folder.path)),
                seconds=time.perf_counter() - began,
                reason=reason,
                best=bool(marked and marked.step == trainer.step),
            )
        )

    def _resume(self) -> str | None:
        found = checkpoint.latest_good(self.checkpoints)
        for note in found.notes:
            self.on_note(note)
        if found.path is None and found.skipped:
            raise found.none_whole(self.folder.path)
        if found.path is None:
            return None
        trainer = self.trainer
        state = checkpoint.load(
            found.path,
            model=trainer.model,
            optimizer=trainer.optimizer,
            config=self.config,
            data_fingerprint=trainer.dataset.fingerprint,
        )
        trainer.restore(state)
        self.saved_step = trainer.step
        before = self.folder.read()
        self._take_up_best(before)
        self.watched.add_all(before.records)
        return str(found.path.relative_to(self.folder.path))

    def _take_up_best(self, run: Run) -> None:
        """Go on with the best of the run so far, as far as it is left on the disk; says what is not."""
        marked = checkpoint.best(self.checkpoints)
        evaluated = {found.step: found.val_loss for found in run.evals if found.val_loss is not None}
        left = checkpoint.mark_best_left(self.checkpoints, evaluated, step=self.trainer.step)
        if left or marked:
            self.trainer.best_val_loss = left.val_loss if left else None
        if marked and (left is None or left.val_loss > marked.val_loss):
            now = f"step {left.step:,} is the best that is left" if left else "none that was evaluated is left"
            self.on_note(f"the best checkpoint, {checkpoint_name(marked.step)}, is gone or damaged: {now}")

    def _record_start(self, resumed_from: str | None) -> None:
        self._record(
            Start(
                step=self.trainer.step,
                config=self.config.model_dump(),
                versions={"onecard": __version__, "torch": torch.__version__, "python": platform.python_version()},
                device=str(self.device),
                card=self.card.name if self.card else None,
                predicted_process_bytes=self.predicted_process_bytes,
                resumed_from=resumed_from,
            )
        )

    def _record(self, record: Record) -> None:
        self.folder.append(record)
        self.watched.add(record)
        self.on_record(record)

    def _cuda(self, statistic: Callable[[torch.device], int]) -> int | None:
        return statistic(self.device) if self.device.type == "cuda" else None
