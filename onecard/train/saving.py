"""A run's checkpoints as its loop sees them: saving, resuming, remembering the best."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from onecard import units
from onecard.config.schema import RunConfig
from onecard.files import check_space
from onecard.models.optimizers import optimizer_of
from onecard.runs.checkpoint_state import checkpoints
from onecard.runs.folder import CHECKPOINTS, Run, RunFolder, checkpoint_name
from onecard.runs.records import Checkpoint
from onecard.train import checkpoint
from onecard.train.trainer import Trainer

LONGEST_UNSAVED_SECONDS = 15 * 60  # what a power cut may cost, where the config names no interval


class Saving:
    """Where a trainer's states go, and which of them is the newest.

    `on_note` gets notes on checkpoints that were skipped or could not be deleted, and on where a moved run is now.
    """

    def __init__(self, config: RunConfig, run: RunFolder, trainer: Trainer, on_note: Callable[[str], None]) -> None:
        self._config = config
        self._run = run
        self._trainer = trainer
        self._on_note = run.on_note = on_note
        self._newest_step: int | None = None
        self._newest_at = time.monotonic()  # or when training began

    @property
    def _folder(self) -> Path:
        if self._run.follow():
            self._on_note(f"the run folder was moved: the run continues in {self._run.path}")
        return self._run.path / CHECKPOINTS

    def check_space(self) -> None:
        """Refuse a disk without room for the first checkpoint, before an hour of training is lost."""
        if not checkpoints(self._folder):
            check_space(self._folder, needed_bytes=optimizer_of(self._config).saved_bytes + units.MIB)

    @property
    def due(self) -> bool:
        """Whether a checkpoint is due besides those of evaluations."""
        interval = self._config.checkpoint_interval
        if interval:
            return self._trainer.step % interval == 0
        return time.monotonic() - self._newest_at > LONGEST_UNSAVED_SECONDS

    def save(self, reason: str) -> Checkpoint:
        """The record of a checkpoint of this step; those that are not to be kept are gone."""
        began = time.perf_counter()
        trainer, folder = self._trainer, self._folder
        with trainer.writing_files() as write_files:
            path = checkpoint.save(
                folder,
                model=trainer.model,
                optimizer=trainer.optimizer,
                state=trainer.state(),
                config=self._config,
                write_files=write_files,
            )
        self._newest_step, self._newest_at = trainer.step, time.monotonic()
        for note in checkpoint.prune(folder, saved=path, keep=self._config.keep_checkpoints):
            self._on_note(note)
        marked = None
        with suppress(OSError):  # the mark only informs here: a disk that fails once must not end the run
            marked = checkpoint.best(folder)
        return Checkpoint(
            step=trainer.step,
            tokens=trainer.tokens,
            path=str(path.relative_to(self._run.path)),
            seconds=time.perf_counter() - began,
            reason=reason,
            best=bool(marked and marked.step == trainer.step),
        )

    def loss_of_stopping(self) -> str:
        """What stopping now, without saving, would lose: "3 updates since the checkpoint of step 8"; "" for nothing."""
        unsaved = self._trainer.step - (self._newest_step or 0)
        since = "" if self._newest_step is None else f" since the checkpoint of step {self._newest_step:,}"
        return f"{unsaved:,} update{'s' * (unsaved != 1)}{since}" if unsaved else ""

    def evaluated(self, val_loss: float) -> None:
        """Remember this step, and its checkpoint if there is one, if this is the lowest validation loss so far."""
        trainer = self._trainer
        lowest = math.inf if trainer.best_val_loss is None else trainer.best_val_loss
        if not val_loss < lowest:  # also true for NaN
            return
        trainer.best_val_loss = val_loss
        folder = self._folder
        if (folder / checkpoint_name(trainer.step)).is_dir():  # before the first update there may be none
            checkpoint.mark_best(folder, step=trainer.step, val_loss=val_loss)

    def resume(self, before: Run) -> str | None:
        """The checkpoint the trainer now continues from, relative to the run's folder; None if there is none."""
        found = checkpoint.latest_good(self._folder)
        for note in found.notes:
            self._on_note(note)
        if found.path is None and found.skipped:
            raise found.none_whole(self._run.path)
        if found.path is None:
            return None
        trainer = self._trainer
        state = checkpoint.load(
            found.path,
            model=trainer.model,
            optimizer=trainer.optimizer,
            config=self._config,
            data_fingerprint=trainer.dataset.fingerprint,
        )
        trainer.restore(state)
        self._newest_step = trainer.step
        self._take_up_best(before)
        for note in checkpoint.finish_pruning(self._folder, resumed=found.path, keep=self._config.keep_checkpoints):
            self._on_note(note)
        return str(found.path.relative_to(self._run.path))

    def _take_up_best(self, before: Run) -> None:
        """Continue with the best of the run so far that is still on the disk; says what is lost."""
        marked = checkpoint.best(self._folder)
        evaluated = {found.step: found.val_loss for found in before.evals if found.val_loss is not None}
        left = checkpoint.mark_best_left(self._folder, evaluated, step=self._trainer.step)
        if left or marked:
            self._trainer.best_val_loss = left.val_loss if left else None
        if marked and (left is None or left.val_loss > marked.val_loss):
            now = f"step {left.step:,} is the best that is left" if left else "none that was evaluated is left"
            self._on_note(f"the best checkpoint, {checkpoint_name(marked.step)}, is gone or damaged: {now}")
