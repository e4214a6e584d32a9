"""A model in training: one update, also when memory runs out.

The sequences of a run are numbered, so an update is a pure function of the weights, the step and the config: cut into
smaller micro-batches, or done again after running out of memory, it reads the same data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from onecard.config.schema import RunConfig
from onecard.data.dataset import Dataset
from onecard.data.prefetch import Prefetcher
from onecard.data.windows import Batch, EvalWindows, Windows
from onecard.errors import MachineError, is_out_of_memory
from onecard.models.evaluation import eval_sequences
from onecard.models.training import Losses, Steps
from onecard.models.ways import compiles_blocks, fuses, records_graph, shards
from onecard.plan.schedule import learning_rate
from onecard.train.checkpoint import TrainingState, load_rows, tensors_of
from onecard.train.checkpoint_files import Files, Tensors, WriteFiles, write_whole
from onecard.train.loss import has_kernel
from onecard.train.model import GPT
from onecard.train.oom import OutOfMemory, release_memory, smaller_micro_batch
from onecard.train.operations import DeviceOperations
from onecard.train.optim import AdamW, make_optimizer, set_rates
from onecard.train.precision import Precision, runs_triton
from onecard.train.products import has_products
from onecard.train.ranks import ALONE, Processes

if TYPE_CHECKING:
    from onecard.train.sharding import Sharding


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


def can_write_out() -> bool:
    """Whether a CUDA machine has what written-out passes need: Triton, and torch's own cuBLASLt."""
    return has_kernel("cuda") and has_products()


class Trainer:
    """Weights, optimizer and data position of a run, and the update that moves them on."""

    def __init__(
        self,
        config: RunConfig,
        dataset: Dataset,
        device: torch.device,
        precision: Precision,
        *,
        processes: Processes = ALONE,
    ) -> None:
        ranks = processes.ranks
        ranks.check(config)
        self.config = config = ranks.as_run(config)
        self.ranks, self.processes = ranks, processes
        self.device = device
        self.precision = precision
        torch.manual_seed(config.seed)
        self.sharding: Sharding | None = None
        if shards(config):
            from onecard.train.sharding import Sharding  # importing torch's part for it takes a second

            self.sharding = Sharding(config, processes, device, precision)
        self.model = self.sharding.divided(GPT(config)) if self.sharding else GPT(config).to(device)
        dropout_seed = ranks.dropout_seed(config.seed)  # the weights are the same on all ranks, dropout is not
        if dropout_seed is not None:
            torch.manual_seed(dropout_seed)
        on_card = device.type == "cuda"
        passes = None
        if on_card and fuses(config, half=precision.dtype != torch.float32) and can_write_out():
            passes = self.model.passes(precision.dtype)
        if on_card and runs_triton() and compiles_blocks(config, written_out=passes is not None):
            self.model.compile_blocks()
        self.steps = Steps(
            DeviceOperations(device, precision),
            config,
            loss=lambda x_BT, y_BT: self.model.loss(x_BT, y_BT),
            token_losses=lambda x_BT, y_BT: self.model.token_losses(x_BT, y_BT),
            parameters=list(self.model.parameters()),
            optimizer=make_optimizer(self.model, config),
            scaler=precision.grad_scaler(),
            passes=passes,
            records=on_card and records_graph(config),
            ranks=ranks,
        )
        self.windows = Windows(dataset.train, block_size=config.block_size, seed=config.seed)
        self.dataset = dataset
        self.eval_sequences = eval_sequences(config)
        self.step = 0
        self.updates_here = 0  # in this process
        self.elapsed_seconds = 0.0
        self.best_val_loss: float | None = None
        self.before_micro_batch: Callable[[int, int], None] = lambda _done, _total: None  # of an update
        self._batches: Prefetcher[tuple[Tensor, Tensor]] | None = None
        self._rehearsed: int | None = None  # the micro-batch that fits where the model is divided among ranks
        self._rehearsed_evaluations: set[int] = set()  # the same for evaluations
        self._norm: Tensor | None = None  # of the gradients of the update under way

    @property
    def optimizer(self) -> AdamW:
        optimizer: AdamW = self.steps.optimizer
        return optimizer

    @property
    def scaler(self) -> torch.amp.GradScaler:
        scaler: torch.amp.GradScaler = self.steps.scaler
        return scaler

    @property
    def batch_size(self) -> int:
        """Sequences of a micro-batch now."""
        return self.steps.batch_size

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
    def tokens(self) -> int:
        """Tokens read so far, by all ranks."""
        return self.step * self.config.tokens_per_step

    @property
    def finished(self) -> bool:
        return self.step >= self.config.max_iters

    def update(self, on_shrink: Callable[[Shrunk], None]) -> Update:
        """One update. Out of memory: the gradients are thrown away, the micro-batch is halved, and it starts over."""
        began = time.perf_counter()
        rate = learning_rate(self.config, self.step)
        self._seed_dropout()
        random = self._random_state()
        while True:
            waited = self._batches.waited_seconds if self._batches else 0.0
            if (message := self._prepared()) is None:
                break
            self._set_random_state(random)  # also where shrinking ends the run: it is saved as before this update
            self._shrink(message, on_shrink)
        set_rates(self.optimizer, self.config, self.step)
        norm, self._norm = self._norm, None
        with self._together(), self._speaking():
            figures = self.steps.step(norm)
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

    def _prepared(self) -> str | None:
        """Make all that a step needs; if memory ran out on any rank, what that rank was told."""
        lack_memory = self.processes.lack_memory
        if self.sharding is None:
            return lack_memory(self._gradients) or lack_memory(self._ready_to_step)
        if self._rehearsed != self.batch_size and (message := lack_memory(self._rehearse)):
            return message
        self._rehearsed = self.batch_size
        with self._together():
            self._gradients()
        if message := lack_memory(self._obtain_what_a_step_needs):
            return message
        self._ready_to_step()
        return None

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Work on a model that the ranks share: they wait for each other in it, so none may run out of memory there."""
        try:
            yield
        except Exception as error:
            if not self.sharding or not is_out_of_memory(error):
                raise
            raise MachineError(
                "memory ran out in the middle of an update",
                why="it had fitted when it was rehearsed, and the ranks that share the model wait for this one's part",
                fix="free memory of this card, then go on: the same torchrun command with --continue",
                name="out-of-memory",
            ) from error

    def _obtain_what_a_step_needs(self) -> None:
        self.optimizer.make_state()
        self.optimizer.make_workspace()

    def _rehearse(self) -> None:
        """Two micro-batches in which nothing is sent: the second adds to the gradients of the first."""
        assert self.sharding
        random = self._random_state()
        self.optimizer.make_state()
        batch = self.nothing_to_read(self.batch_size, self.config.block_size)
        with self.sharding.rehearsing(self.model):
            for _ in range(2):
                self.steps.micro_batch(*batch)
        self.optimizer.zero_grad()
        self._set_random_state(random)

    def rehearse_evaluation(self, batch_size: int) -> None:
        """The passes of a batch in which nothing is sent, once for each size."""
        assert self.sharding
        if batch_size not in self._rehearsed_evaluations:
            with self.sharding.rehearsing(self.model):
                self.steps.sequence_losses(*self.nothing_to_read(batch_size, self.config.eval_length))
            self._rehearsed_evaluations.add(batch_size)

    def nothing_to_read(self, sequences: int, length: int) -> tuple[Tensor, Tensor]:
        """A batch of no text, for passes whose results nobody uses."""
        x_BT = torch.zeros(sequences, length, dtype=torch.long, device=self.device)
        return x_BT, x_BT

    def renew(self) -> None:
        """Make a model that is divided anew, after a pass has ended half-way."""
        if self.sharding:
            trains = self.model.training
            self.model = self.sharding.divided_anew()
            self.model.train(trains)

    def _gradients(self) -> None:
        self.steps.gradients(self._next_batch, self.before_micro_batch)
        self.processes.make_buckets(self.steps.sums())

    def _ready_to_step(self) -> None:
        """Every rank has its part of the gradients: the sums, and all else that a step needs."""
        if self.processes.joined:
            self.processes.sum(self.steps.sums())
        with self._together(), self._speaking():  # the norm is of all ranks' shares
            self._norm = self.steps.ready_to_step()

    def _speaking(self) -> AbstractContextManager[None]:
        """Around steps in which ranks that share a model exchange parts of it."""
        return self.processes.speaking() if self.sharding else nullcontext()

    @contextmanager
    def evaluating(self) -> Iterator[Losses]:
        """Losses of sequences without gradients, with all the memory that training has between updates."""
        self.steps.ready_to_evaluate()
        self.model.eval()
        try:
            yield self.steps.sequence_losses
        finally:
            self.model.train()
            if self.sharding:
                self.sharding.free_gathered(self.model)

    def _next_batch(self) -> tuple[Tensor, Tensor]:
        if self._batches is None:
            first = self.step * self.config.sequences_per_step
            batches = self.windows.batches(first, self.batch_size, ranks=self.ranks)
            self._batches = Prefetcher(map(self._pinned, batches))
        x_BT, y_BT = next(self._batches)
        return x_BT.to(self.device, non_blocking=True), y_BT.to(self.device, non_blocking=True)

    def _pinned(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The batch as tensors from which a card can copy while it computes."""
        x_BT, y_BT = (torch.from_numpy(part) for part in batch)
        return (x_BT.pin_memory(), y_BT.pin_memory()) if self.device.type == "cuda" else (x_BT, y_BT)

    def _shrink(self, message: str, on_shrink: Callable[[Shrunk], None]) -> None:
        steps = self.steps
        steps.recorded, steps.warm = None, False
        steps.optimizer.zero_grad()
        steps.scaler = self._same_scaler()
        self.close()
        self.renew()
        release_memory(self.device)
        smaller = smaller_micro_batch(self.batch_size, self.ranks.sequences_per_step(self.config))
        after = self.config.sequences_per_step // smaller if smaller else None
        on_shrink(
            Shrunk(
                before=self.batch_size,
                after=smaller,
                accumulation_before=steps.micro_batches,
                accumulation_after=after,
                message=message,
            )
        )
        if smaller is None:
            steps.batch_size = self.config.batch_size  # a resume tries the full size again
            raise OutOfMemory(message)
        steps.batch_size = smaller

    def _same_scaler(self) -> torch.amp.GradScaler:
        """The scaler in its present state, without its record of gradients that were unscaled and thrown away."""
        scaler = self.precision.grad_scaler()
        if scaler.is_enabled():
            scaler.load_state_dict(self.scaler.state_dict())
        return scaler

    def _seed_dropout(self) -> None:
        """Other ranks than the first draw dropout from the step's own seed."""
        seed = self.ranks.dropout_seed(self.config.seed, self.step) if self.config.dropout else None
        if seed is not None:
            torch.manual_seed(seed)

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

    @contextmanager
    def writing_files(self) -> Iterator[WriteFiles]:
        """On the rank that saves: how the tensors of a checkpoint are written, by all ranks that have some of them."""
        if self.sharding is None:
            yield write_whole
            return
        self.optimizer.make_state()  # as on the others, which cannot know whether there is one
        yield self._write_parts
        self.processes.from_first(None)

    def _write_parts(self, folder: Path, tensors: Tensors) -> Files:
        from onecard.train.checkpoint_parts import write_parts

        self.processes.from_first(str(folder))
        return write_parts(folder, tensors, self.processes)

    def write_parts_asked_for(self) -> None:
        """On the other ranks: write parts of a checkpoint until the rank that saves has it."""
        from onecard.train.checkpoint_parts import write_parts

        self.optimizer.make_state()
        while folder := self.processes.from_first():
            with suppress(OSError):  # all ranks have it; the first one decides
                write_parts(Path(folder), tensors_of(self.model, self.optimizer), self.processes)

    def restore(self, state: TrainingState) -> None:
        """Continue from a checkpoint whose tensors have been loaded."""
        self.step = state.step
        self.elapsed_seconds = state.elapsed_seconds
        self.best_val_loss = state.best_val_loss
        self.eval_sequences = state.eval_sequences or self.eval_sequences
        if state.micro_batches and self._goes_on_in(*state.micro_batches):
            self.steps.batch_size = state.micro_batches[1]
        if state.scaler:
            self.scaler.load_state_dict(dict(state.scaler))
        self.close()

    def as_first_rank(self, resumed_from: Path | None) -> None:
        """Take over where the first rank stands: its weights, its optimizer's state, its step.

        Of a model that is divided, each rank reads its own part of what the first has resumed from.
        """
        processes = self.processes
        if not processes.joined:
            return
        if self.sharding:
            path = processes.from_first(str(resumed_from) if resumed_from else None)
            if path and self.ranks.rank:
                load_rows(Path(path), model=self.model, optimizer=self.optimizer)
        else:
            self._copy_from_first()
        state = processes.from_first(asdict(self.state()))
        if self.ranks.rank:
            self.restore(TrainingState(**state))

    def _copy_from_first(self) -> None:
        processes = self.processes
        parameters = list(self.model.parameters())
        processes.copy_from_first(parameters)
        if processes.from_first(bool(self.optimizer.state)):
            self.optimizer.make_state()
            moments = (self.optimizer.state[parameter] for parameter in parameters)
            processes.copy_from_first(each[name] for each in moments for name in sorted(each))

    def _goes_on_in(self, asked: int, micro_batch: int) -> bool:
        """Whether the micro-batch of the checkpoint is used: not if the user has asked for another, or if it does not
        divide what a rank now reads."""
        return asked == self.config.batch_size and self.ranks.sequences_per_step(self.config) % micro_batch == 0

    def close(self) -> None:
        """Stop reading ahead."""
        if self._batches:
            self._batches.close()
            self._batches = None
