"""The loop: evaluate, save, update, until done. After every fault the run continues or says clearly why not."""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial, reduce
from itertools import islice
from operator import add
from pathlib import Path
from typing import Literal

import torch

from onecard import __version__
from onecard.config.schema import RunConfig
from onecard.data.dataset import Dataset
from onecard.data.tokenizers import bytes_per_token
from onecard.doctor.live import evaluation_above_training, no_cuda_graph
from onecard.errors import ConfigError, MachineError, OfAnotherRank, OnecardError, first_line, is_out_of_memory
from onecard.models.evaluation import TEXT_TOKENS, SplitLosses, eval_batch_size, worse_in_a_row, writes_text
from onecard.opening import read_file
from onecard.plan.cards import device_of
from onecard.plan.counts import mfu
from onecard.plan.memory.predict import context_of_onecard
from onecard.runs.folder import LOCK, RunFolder
from onecard.runs.records import CardReading, End, EndReason, Eval, FindingRecord, Oom, Record, Sample, Start, Step
from onecard.train.card_watch import CardWatch
from onecard.train.device import cap_memory, card_of, choose_device
from onecard.train.evaluate import evaluate
from onecard.train.interrupt import Interrupt, Stopped
from onecard.train.live_findings import LiveFindings
from onecard.train.memory_snapshot import MeasuredMemory, MemorySnapshot
from onecard.train.oom import OutOfMemory, release_memory
from onecard.train.peaks import Peaks
from onecard.train.precision import allow_tf32, choose_precision, runs_triton
from onecard.train.profiling import Profiling
from onecard.train.progress_text import ProgressText
from onecard.train.ranks import ALONE, Processes
from onecard.train.saving import Saving
from onecard.train.trainer import Shrunk, Trainer

LONGEST_ERROR = 300  # characters of an error that are recorded
PATIENCE = 20  # updates with a NaN loss: float16 may have one for a moment, but no run recovers from twenty


Doing = Literal["evaluating", "updating"]
OnProgress = Callable[[Doing, int, int], None]  # what is being done, batches done, batches in all


@dataclass(frozen=True, kw_only=True)
class Finished:
    """How a run ended."""

    end: End
    measured_memory: MeasuredMemory | None = None  # where a snapshot was asked for
    without_trace: str | None = None  # why the trace that was asked for is not there


def train(
    config: RunConfig,
    folder: RunFolder | None,
    dataset: Dataset,
    *,
    resume: bool,
    on_record: Callable[[Record], None] = lambda _: None,
    on_note: Callable[[str], None] = lambda _: None,
    on_interrupt: Callable[[str], None] = lambda _: None,
    on_progress: OnProgress = lambda _doing, _done, _total: None,
    profile: Path | None = None,
    memory_snapshot: Path | None = None,
    predicted_process_bytes: int | None = None,
    progress_text: ProgressText | None = None,
    processes: Processes = ALONE,
) -> Finished:
    """Train `config` in `folder`; each record is on disk before `on_record` sees it.

    Of several processes only the first has a folder and is heard.

    `on_note` gets what no record holds: settings without effect, damaged checkpoints that were skipped.
    `on_interrupt` is called inside the handler of the first signal with what happens next.
    `on_progress` gets the batches done inside an evaluation or an update, and how many there are.
    `progress_text` draws the texts that `sample_interval` asks for; without it there are none.
    """
    snapshot = MemorySnapshot(memory_snapshot, choose_device(config))
    with Profiling(profile) as profiling, processes.together():
        try:
            loop = _Loop(
                config,
                folder,
                dataset,
                heard=_Heard(on_record=on_record, on_note=on_note, on_interrupt=on_interrupt, on_progress=on_progress),
                after_step=profiling.after_step,
                snapshot=snapshot,
                progress_text=progress_text,
                processes=processes,
            )
            finished = loop.run(resume=resume, predicted_process_bytes=predicted_process_bytes)
        except Exception as error:  # the run has already tried smaller micro-batches
            if not is_out_of_memory(error):
                raise
            raise _too_large(error, choose_device(config)) from error
    return replace(finished, without_trace=profiling.missing)


def _says(path: Path, words: str) -> bool:
    try:
        return read_file(path, most_bytes=len(words.encode())) == words.encode()
    except OSError:
        return False


def _too_large(error: BaseException, device: torch.device) -> MachineError:
    on_card = device.type == "cuda"
    others = "other programs that use the card (nvidia-smi lists them)" if on_card else "other programs"
    return MachineError(
        f"{'the card' if on_card else 'this computer'} has not enough memory for the weights and the optimizer",
        why=first_line(error),
        fix=f"close {others}, or train a smaller model: onecard plan --fit",
        name="out-of-memory",
    )


@dataclass(frozen=True, kw_only=True)
class _Heard:
    """The callbacks of `train`."""

    on_record: Callable[[Record], None]
    on_note: Callable[[str], None]
    on_interrupt: Callable[[str], None]
    on_progress: OnProgress


_SILENCE = _Heard(
    on_record=lambda _: None,
    on_note=lambda _: None,
    on_interrupt=lambda _: None,
    on_progress=lambda _doing, _done, _total: None,
)


class _Loop:
    """The loop of one rank; only the first writes and is heard."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder | None,
        dataset: Dataset,
        *,
        heard: _Heard,
        after_step: Callable[[], None],
        snapshot: MemorySnapshot,
        progress_text: ProgressText | None = None,
        processes: Processes = ALONE,
    ) -> None:
        self.config = config
        self.processes = processes
        writes = processes.ranks.writes
        assert folder or not writes
        self.folder = folder if writes else None
        self.heard = heard = heard if writes else _SILENCE
        self.after_step = after_step
        self.snapshot = snapshot
        self.progress_text = progress_text if writes else None
        self.device = choose_device(config)
        self.precision = choose_precision(config, self.device)
        allow_tf32(self.device)
        torch.use_deterministic_algorithms(config.deterministic)
        if self.precision.note:
            heard.on_note(self.precision.note)
        if config.compile and self.device.type == "cuda" and not runs_triton():
            heard.on_note("compile=True has no effect on this card: it is too old for Triton, so nothing is compiled")
        if processes.ranks.as_run(config) != config:
            heard.on_note(f"shard={config.shard} has nothing to divide: this is one process; torchrun starts several")
        self.card = card_of(self.device)
        if config.memory_limit and self.device.type == "cuda":
            context_bytes = context_of_onecard(config, self.card) if self.card else 0
            cap_memory(self.device, config.memory_limit, context_bytes=context_bytes)
        self.trainer = Trainer(config, dataset, self.device, self.precision, processes=processes)
        self.trainer.before_micro_batch = partial(heard.on_progress, "updating")
        self.saving = Saving(config, self.folder, self.trainer, heard.on_note) if self.folder else None
        self.peaks = Peaks(self.device)
        self.eval_batch_size = eval_batch_size(config)
        self.without_loss = 0  # updates in a row whose loss was NaN or infinite
        self.evaluating = False
        self.val_losses: dict[int, float] = {}  # of every evaluation of the run, by step
        self.interrupt = Interrupt(self._asked, repeated=processes.joined)
        self.live_findings = LiveFindings(config, self.card, dataset)
        self.card_watch = CardWatch(self.device, ranks=processes.ranks.world_size)
        self.bytes_per_token = bytes_per_token(dataset.val, dataset.tokenizer) if dataset.tokenizer else None

    def run(self, *, resume: bool, predicted_process_bytes: int | None) -> Finished:
        if self.trainer.sharding:
            self._check_all_see_folder()
        resumed_from = self._resume() if resume else None
        if not self.config.eval_only and self.saving:
            self.saving.check_space()
        if resume and self.folder:  # every check has passed: the run continues with these settings
            self.folder.write_config(self.config.model_dump())
        self.trainer.as_first_rank(self.folder.path.resolve() / resumed_from if self.folder and resumed_from else None)
        self._record_start(resumed_from, predicted_process_bytes)
        try:
            end = self._end(self._trained())
            self._record(end)
        except BaseException as error:
            self._record_fault(error)
            raise
        return Finished(end=end, measured_memory=self.snapshot.measured)

    def _check_all_see_folder(self) -> None:
        """Refuse ranks that would write their parts of a checkpoint elsewhere than the first one."""
        own = (str(self.folder.path.resolve()), (self.folder.path / LOCK).read_text()) if self.folder else None
        path, said = self.processes.from_first(own)
        blind = [rank for rank, sees in enumerate(self.processes.gathered(_says(Path(path) / LOCK, said))) if not sees]
        if blind and not self.folder:
            raise OfAnotherRank(ConfigError.exit_code)
        if blind:
            raise ConfigError(
                f"rank{'s' * (len(blind) > 1)} {', '.join(map(str, blind))} cannot see the run folder, {path}",
                why="with shard=full every rank writes its part of a checkpoint there",
                fix="--out_dir=PATH on a disk that all machines have under the same path",
                name="folder-not-shared",
            )

    def _asked(self) -> None:
        """A signal came. Of several ranks the first says so once all have heard: it may have come to any of them."""
        if not self.processes.joined:
            self.heard.on_interrupt(self._what_follows())

    def _what_follows(self) -> str:
        """What a request to stop leads to now, and what a second one would cost."""
        left = "stopping this evaluation" if self.evaluating else "stopping after this step"
        saving = self._then_saving()
        lost = self.saving.loss_of_stopping() if self.saving else ""
        return f"{left}{saving}; Ctrl-C again stops at once" + (f" and loses {lost}" if lost else "")

    def _then_saving(self) -> str:
        return "" if self.without_loss or self.config.eval_only else ", then saving"

    def _trained(self) -> EndReason:
        """Why training stopped, saved."""
        began = time.perf_counter()
        with self.interrupt, self.card_watch:
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
        """Record how the run ended, if that can be written; on a full disk only the lock file that stays shows it."""
        stopped = isinstance(error, KeyboardInterrupt)
        end = self._end("interrupted") if stopped else self._end("error", {"error": first_line(error, LONGEST_ERROR)})
        with suppress(OnecardError):
            if self.folder:
                self.folder.append(end)

    def _steps(self, began: float) -> EndReason:
        trainer, config = self.trainer, self.config
        worse = False  # whether enough evaluations in a row were worse than the best
        fresh = True  # no update since the start, or since the checkpoint that was resumed from
        while True:
            last = trainer.finished
            evaluating = last or trainer.step % config.eval_interval == 0
            if not fresh and (evaluating or self._due()):
                self._save("finished" if last else "due")
            if evaluating:
                # after a resume too: the checkpoint was written before this evaluation, which may not have finished
                self._evaluate()
                worse = self._has_worsened()
                if writes_text(config, trainer.step) or (worse and config.sample_interval):
                    self._write_text()
            if last or config.eval_only:
                return "diverged" if self.without_loss else "finished"
            if worse:
                return "stop_after_worse"
            self._stop_if_asked()
            if config.max_hours and self.processes.any(time.perf_counter() - began > config.max_hours * 3600):
                self._save("max_hours")
                return "max_hours"
            self._update()
            self.after_step()
            self.snapshot.after_step(trainer)
            fresh = False
            if self.without_loss >= PATIENCE:
                return "diverged"

    def _due(self) -> bool:
        """Whether a checkpoint is due besides those of evaluations; where all ranks write it, the first one says so."""
        due = bool(self.saving and self.saving.due)
        return self.processes.any(due) if self.trainer.sharding else due

    def _stop_if_asked(self) -> None:
        """Raise Stopped on all ranks if a signal came to one."""
        asked = self.processes.asked_to_stop(self.interrupt.requested)
        if asked and self.processes.joined:
            self.heard.on_interrupt(f"{asked}: stopping{self._then_saving()}")
        if asked:
            raise Stopped

    def _update(self) -> None:
        trainer = self.trainer
        if trainer.updates_here:  # the first also compiles
            self.card_watch.updates()
        update = trainer.update(self._shrunk)
        self.without_loss = 0 if math.isfinite(update.loss) else self.without_loss + 1
        rate, cards = self.config.tokens_per_step / update.seconds, self.processes.ranks.world_size
        peak = self.card.peak_flops if self.card else None
        allocated, reserved, cards_read = self._highest(
            self.peaks.allocated_in_training(), self.peaks.reserved_in_run(), int(self.card_watch.has_reading)
        )
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
                mfu=mfu(self.config, tokens_per_second=rate, peak_flops=peak * cards) if peak else None,
                allocated_bytes=allocated,
                reserved_bytes=reserved,
                data_wait_seconds=update.data_wait_seconds,
            )
        )

        if trainer.steps.graph_failure:
            self._record(FindingRecord(step=trainer.step, finding=no_cuda_graph(trainer.steps.graph_failure)))
            trainer.steps.graph_failure = None
        if cards_read:
            self._record_cards()

    def _record_cards(self) -> None:
        """Record what the cards of all ranks show: the slowest holds up the others."""
        reading = self.card_watch.take()
        step, elapsed_seconds = self.trainer.step, self.trainer.elapsed_seconds
        for rank, known in enumerate(self.processes.gathered(asdict(reading) if reading else None)):
            if known:
                throttle = None if known["throttle"] is None else tuple(known["throttle"])  # JSON has lists
                known |= {"step": step, "elapsed_seconds": elapsed_seconds, "rank": rank, "throttle": throttle}
                self._record(CardReading(**known))

    def _shrunk(self, shrunk: Shrunk) -> None:
        if not self.config.eval_batch_size and shrunk.after:  # evaluation never uses more than fits in training
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
        self.card_watch.pauses()
        train, val = trainer.eval_windows
        with trainer.evaluating() as sequence_losses:
            self.peaks.begin()
            self.evaluating = True
            found = evaluate(
                sequence_losses,
                train=train,
                val=val,
                batch_size=self.eval_batch_size,
                device=self.device,
                on_oom=self._eval_shrunk,
                before_batch=self._before_eval_batch,
                processes=self.processes,
                rehearse=trainer.rehearse_evaluation if trainer.sharding else None,
            )
            self.evaluating = False
        self.eval_batch_size = found.batch_size
        of_train, of_val = self._of_all_ranks(found.train), self._of_all_ranks(found.val)
        allocated, reserved = self._highest(self.peaks.allocated(), self.peaks.reserved())
        self._record(
            Eval(
                step=trainer.step,
                tokens=trainer.tokens,
                train_loss=of_train.mean,
                val_loss=of_val.mean,
                train_loss_error=of_train.error,
                val_loss_error=of_val.error,
                block_size=self.config.eval_length,
                tokens_read=found.tokens_read,
                seconds=found.seconds,
                peak_allocated_bytes=allocated,
                peak_reserved_bytes=reserved,
                bits_per_byte=self._bits_per_byte(of_val.mean),
            )
        )
        self._check_peak(self.peaks.allocated())
        self.peaks.begin()
        self.val_losses[trainer.step] = of_val.mean
        if self.saving:
            self.saving.evaluated(of_val.mean)
        for finding in self.live_findings.new_findings():
            self._record(FindingRecord(step=trainer.step, finding=finding))

    def _has_worsened(self) -> bool:
        """Whether as many evaluations in a row as stop_after_worse says were worse than the best: the first rank, which
        knows all of a resumed run, decides."""
        most = self.config.stop_after_worse
        return bool(most and self.processes.from_first(worse_in_a_row(self.val_losses.values()) >= most))

    def _write_text(self) -> None:
        """Record a text of the model as it is now. Running out of memory for it does not end the run.

        The first rank draws it. The others wait token by token: so none waits for long, and a signal to one stops all.
        """
        trainer, text, problem = self.trainer, self.progress_text, ""
        drawing = text.tokens(trainer.model) if text else iter(())
        tokens: list[int] = []
        for _ in range(TEXT_TOKENS):
            self._stop_if_asked()
            try:
                tokens += islice(drawing, 1)
            except Exception as error:
                if not isinstance(error, FloatingPointError) and not is_out_of_memory(error):
                    raise
                problem = first_line(error)  # not the error itself: its frames hold what must be freed
        if problem:
            release_memory(self.device)
            self.heard.on_note(f"no text of step {trainer.step:,}: {problem}; the run goes on")
        elif text:
            said = text.text(tokens)
            self._record(Sample(step=trainer.step, tokens=trainer.tokens, prompt=text.prompt, text=said))
        self.peaks.begin()

    def _of_all_ranks(self, found: SplitLosses) -> SplitLosses:
        parts = self.processes.gathered((found.mean, found.spread, found.sequences))
        return reduce(add, (SplitLosses(mean=mean, spread=spread, sequences=count) for mean, spread, count in parts))

    def _highest(self, *peaks_bytes: int | None) -> list[int | None]:
        """Of all ranks: the card that needs most decides what fits."""
        return [None if peak is None else int(peak) for peak in self.processes.highest(peaks_bytes)]

    def _before_eval_batch(self, done: int, total: int) -> None:
        self.heard.on_progress("evaluating", done, total)
        self._stop_if_asked()

    def _check_peak(self, evaluation_bytes: int | None) -> None:
        """Report an evaluation that needed more memory than training: the plan promises that none does.

        A tiny model's training may peak before cuBLAS allocates its last workspace, which evaluation then counts.
        """
        allowed = self.peaks.highest_in_training + device_of(self.card).cublas_workspace_bytes
        if evaluation_bytes and self.peaks.highest_in_training and evaluation_bytes > allowed:
            finding = evaluation_above_training(
                step=self.trainer.step,
                evaluation_bytes=evaluation_bytes,
                training_bytes=self.peaks.highest_in_training,
                eval_batch_size=self.eval_batch_size,
                batch_size=self.trainer.batch_size,
            )
            self._record(FindingRecord(step=self.trainer.step, finding=finding))

    def _bits_per_byte(self, loss: float) -> float | None:
        """Nats per token as bits per byte of text: the figure that compares across tokenizers."""
        return loss / math.log(2) / self.bytes_per_token if self.bytes_per_token else None

    def _eval_shrunk(self, before: int, after: int | None, message: str) -> None:
        self.trainer.renew()
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
        """Save, unless the loss is NaN: never replace a good checkpoint with NaN weights."""
        self.card_watch.pauses()
        if self.without_loss:
            return
        if self.saving:
            self._record(self.saving.save(reason))
        elif self.trainer.sharding:
            self.trainer.write_parts_asked_for()

    def _resume(self) -> str | None:
        if not self.folder or not self.saving:
            return None
        before = self.folder.read()
        resumed_from = self.saving.resume(before)
        reached = self.trainer.step
        self.val_losses = {
            each.step: each.val_loss for each in before.evals if each.val_loss is not None and each.step <= reached
        }
        if resumed_from:  # how the earlier part ended is already known
            self.live_findings.add_all(record for record in before.records if not isinstance(record, End))
        return resumed_from

    def _record_start(self, resumed_from: str | None, predicted_process_bytes: int | None) -> None:
        self._record(
            Start(
                step=self.trainer.step,
                config=self.config.model_dump(),
                versions={"onecard": __version__, "torch": torch.__version__, "python": platform.python_version()},
                device=str(self.device),
                card=self.card.name if self.card else None,
                predicted_process_bytes=predicted_process_bytes,
                resumed_from=resumed_from,
                train_tokens=len(self.trainer.dataset.train),
                val_tokens=len(self.trainer.dataset.val),
                cards=self.processes.ranks.world_size if self.card else None,
            )
        )

    def _record(self, record: Record) -> None:
        if self.folder:
            self.folder.append(record)
        self.live_findings.add(record)
        self.heard.on_record(record)
