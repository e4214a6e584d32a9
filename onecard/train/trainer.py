"""A model in training: one update, also when memory runs out.

The sequences of a run are numbered, so an update is a pure function of the weights, the step and the config: cut into
smaller micro-batches, or done again after running out of memory, it reads the same data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from onecard.config.schema import RunConfig
from onecard.data.dataset import Dataset
from onecard.data.prefetch import Prefetcher
from onecard.data.windows import Batch, EvalWindows, Windows
from onecard.errors import first_line, is_out_of_memory
from onecard.models.evaluation import eval_sequences
from onecard.models.ways import fuses, records_graph
from onecard.plan.schedule import learning_rate
from onecard.train.checkpoint import TrainingState
from onecard.train.evaluate import TokenLosses
from onecard.train.fused import FusedPasses, can_fuse
from onecard.train.graph import RecordedMicroBatch, zero_gradients
from onecard.train.model import GPT
from onecard.train.oom import OutOfMemory, release_memory, smaller_micro_batch
from onecard.train.optim import clip_gradients, make_optimizer, make_state, set_learning_rate
from onecard.train.precision import Precision


@dataclass(frozen=True, kw_only=True)
class Update:
    """What one update did."""

    loss: float  # mean over all micro-batches, nats per token
    lr: float
    grad_norm: float  # before clipping
    seconds: float
    data_wait_seconds: float


@dataclass(frozen=True, kw_only=True)
class Shrunk:
    """The micro-batch before and after running out of memory; None after the last."""

    before: int
    after: int | None
    accumulation_before: int
    accumulation_after: int | None
    message: str


class Trainer:
    """Weights, optimizer and data position of a run, and the update that moves them on."""

    def __init__(self, config: RunConfig, dataset: Dataset, device: torch.device, precision: Precision) -> None:
        self.config = config
        self.device = device
        self.precision = precision
        torch.manual_seed(config.seed)
        self.model = GPT(config).to(device)
        self.optimizer = make_optimizer(self.model, config)
        self.scaler = precision.grad_scaler()
        self._fused: FusedPasses | None = None
        if device.type == "cuda" and fuses(config, half=precision.dtype != torch.float32) and can_fuse():
            self._fused = FusedPasses(self.model, precision.dtype)
        elif config.compile and device.type == "cuda":
            self.model.compile_blocks()
        self.windows = Windows(dataset.train, block_size=config.block_size, seed=config.seed)
        self.dataset = dataset
        self.eval_sequences = eval_sequences(config)
        self.batch_size = config.batch_size
        self.step = 0
        self.updates_here = 0  # in this process
        self.elapsed_seconds = 0.0
        self.best_val_loss: float | None = None
        self.graph_failure: str | None = None  # why a micro-batch could not be recorded, until it has been reported
        self.before_micro_batch: Callable[[int, int], None] = lambda _done, _total: None  # of an update
        self._loss = torch.zeros((), device=device)  # of the update so far
        self._batches: Prefetcher[tuple[Tensor, Tensor]] | None = None
        self._records = records_graph(config) and device.type == "cuda"
        self._warm = False  # whether a micro-batch of this size has run: what is recorded must be compiled before
        self._recorded: RecordedMicroBatch | None = None

    @property
    def eval_windows(self) -> tuple[EvalWindows, EvalWindows]:
        """Windows of train and val, the same in every evaluation, whatever its batch."""
        block_size = self.config.eval_length
        train, val = (
            EvalWindows(tokens, block_size=block_size, count=self.eval_sequences)
            for tokens in (self.dataset.train, self.dataset.val)
        )
        return train, val

    @property
    def accumulation(self) -> int:
        return self.config.sequences_per_step // self.batch_size

    @property
    def tokens(self) -> int:
        """Tokens read so far."""
        return self.step * self.config.tokens_per_step

    @property
    def finished(self) -> bool:
        return self.step >= self.config.max_iters

    def update(self, on_shrink: Callable[[Shrunk], None]) -> Update:
        """One update. Out of memory: the gradients are thrown away, the micro-batch is halved, and it starts over."""
        began = time.perf_counter()
        rate = learning_rate(self.config, self.step)
        random = self._random_state()
        while True:
            waited = self._batches.waited_seconds if self._batches else 0.0
            try:
                self._gradients()
                norm = self._ready_to_step()
                break
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                message = first_line(error)  # not the error itself: its frames hold what must be freed
            self._set_random_state(random)  # also where shrinking ends the run: it is saved as before this update
            self._shrink(message, on_shrink)
        set_learning_rate(self.optimizer, rate)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        if self._recorded is None:
            self.optimizer.zero_grad(set_to_none=True)
        figures = torch.stack((self._loss, norm.to(self._loss.dtype))).tolist()  # the step's one wait for the device
        self.step += 1
        self.updates_here += 1
        seconds = time.perf_counter() - began
        self.elapsed_seconds += seconds
        assert self._batches
        return Update(
            loss=figures[0],
            lr=rate,
            grad_norm=figures[1],
            seconds=seconds,
            data_wait_seconds=self._batches.waited_seconds - waited,
        )

    def _gradients(self) -> None:
        """Gradients of a whole update, added up over its micro-batches, and its mean loss in `_loss`."""
        self._loss.zero_()
        if self._records and self._warm and self._recorded is None:
            self._record()
        if self._fused:
            self._fused.refresh()
        if self._recorded or self._fused:
            zero_gradients(self.model.parameters())
        run = self._recorded or self._micro_batch
        for done in range(self.accumulation):
            self.before_micro_batch(done, self.accumulation)
            x_BT, y_BT = self._next_batch()
            run(x_BT, y_BT)
        self._warm = True

    def _ready_to_step(self) -> Tensor:
        """The gradients' norm before clipping; from here on an update needs no memory, and nothing has changed yet."""
        self.scaler.unscale_(self.optimizer)
        norm = clip_gradients(self.model.parameters(), max_norm=self.config.grad_clip)
        make_state(self.optimizer)
        return norm

    def _micro_batch(self, x_BT: Tensor, y_BT: Tensor) -> None:
        if self._fused:
            scale = self.scaler.scale(torch.full((), 1 / self.accumulation, device=self.device))
            self._loss += self._fused.add_gradients(x_BT, y_BT, scale=scale) / self.accumulation
            return
        with self.precision.autocast():
            loss = self.model.loss(x_BT, y_BT) / self.accumulation
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self._loss += loss.detach()

    def _record(self) -> None:
        """Record a micro-batch. If that fails the run continues without: slower if Python is slower than the card."""
        release_memory(self.device)
        zero_gradients(self.model.parameters())
        shape = (self.batch_size, self.config.block_size)
        x_BT, y_BT = torch.zeros(2, *shape, dtype=torch.long, device=self.device)
        try:
            self._recorded = RecordedMicroBatch(self._micro_batch, x_BT, y_BT)
            return
        except Exception as error:
            self.graph_failure = first_line(error)  # not the error itself: its frames hold what must be freed
        self._records = False
        self.optimizer.zero_grad(set_to_none=True)
        release_memory(self.device)

    @contextmanager
    def evaluating(self) -> Iterator[TokenLosses]:
        """Losses of tokens without gradients, with all the memory that training has between updates."""
        self.free_activations()
        if self._fused:
            self._fused.refresh()
        self.model.eval()
        try:
            yield self._fused.token_losses if self._fused else self._token_losses
        finally:
            self.model.train()

    def _token_losses(self, x_BT: Tensor, y_BT: Tensor) -> Tensor:
        with self.precision.autocast():
            return self.model.token_losses(x_BT, y_BT)

    def free_activations(self) -> None:
        """Give back what a recorded micro-batch holds, gradients included; it is recorded again when next needed."""
        if self._recorded:
            self._recorded = None
            self.optimizer.zero_grad(set_to_none=True)
            release_memory(self.device)

    def _next_batch(self) -> tuple[Tensor, Tensor]:
        if self._batches is None:
            first = self.step * self.config.sequences_per_step
            self._batches = Prefetcher(map(self._pinned, self.windows.batches(first, self.batch_size)))
        x_BT, y_BT = next(self._batches)
        return x_BT.to(self.device, non_blocking=True), y_BT.to(self.device, non_blocking=True)

    def _pinned(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The batch as tensors from which a card can copy while it computes."""
        x_BT, y_BT = (torch.from_numpy(part) for part in batch)
        return (x_BT.pin_memory(), y_BT.pin_memory()) if self.device.type == "cuda" else (x_BT, y_BT)

    def _shrink(self, message: str, on_shrink: Callable[[Shrunk], None]) -> None:
        self._recorded, self._warm = None, False
        self.optimizer.zero_grad(set_to_none=True)
        self.scaler = self._same_scaler()
        self.close()
        release_memory(self.device)
        smaller = smaller_micro_batch(self.batch_size, self.config.sequences_per_step)
        after = self.config.sequences_per_step // smaller if smaller else None
        on_shrink(
            Shrunk(
                before=self.batch_size,
                after=smaller,
                accumulation_before=self.accumulation,
                accumulation_after=after,
                message=message,
            )
        )
        if smaller is None:
            self.batch_size = self.config.batch_size  # a resume tries the full size again
            raise OutOfMemory(message)
        self.batch_size = smaller

    def _same_scaler(self) -> torch.amp.GradScaler:
        """The scaler in its present state, without its record of gradients that were unscaled and thrown away."""
        scaler = self.precision.grad_scaler()
        if scaler.is_enabled():
            scaler.load_state_dict(self.scaler.state_dict())
        return scaler

    def _random_state(self) -> tuple[Tensor, Tensor | None]:
        """Only dropout draws random numbers in training; without it this costs nothing worth saving."""
        cuda = torch.cuda.get_rng_state(self.device) if self.device.type == "cuda" else None
        return torch.get_rng_state(), cuda

    def _set_random_state(self, state: tuple[Tensor, Tensor | None]) -> None:
        torch.set_rng_state(state[0])
        if state[1] is not None:
            torch.cuda.set_rng_state(state[1], self.device)

    def state(self) -> TrainingState:
        """What a checkpoint must hold beside the tensors."""
        return TrainingState(
            step=self.step,
            tokens=self.tokens,
            elapsed_seconds=self.elapsed_seconds,
            data_fingerprint=self.dataset.fingerprint,
            scaler=self.scaler.state_dict() or None,
            best_val_loss=self.best_val_loss,
            micro_batches=(self.config.batch_size, self.batch_size),
            eval_sequences=self.eval_sequences,
        )

    def restore(self, state: TrainingState) -> None:
        """Continue from a checkpoint whose tensors have been loaded."""
        self.step = state.step
        self.elapsed_seconds = state.elapsed_seconds
        self.best_val_loss = state.best_val_loss
        self.eval_sequences = state.eval_sequences or self.eval_sequences
        if state.micro_batches and state.micro_batches[0] == self.config.batch_size:
            self.batch_size = state.micro_batches[1]  # unless the user has asked for another
        if state.scaler:
            self.scaler.load_state_dict(dict(state.scaler))
        self.close()

    def close(self) -> None:
        """Stop reading ahead."""
        if self._batches:
            self._batches.close()
            self._batches = None
