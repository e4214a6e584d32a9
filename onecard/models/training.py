"""The training steps, written once: torch's trainer takes them, and so does the plan, on paper.

An update is the gradients of its micro-batches, their norm, and the optimizer's step. Until the step everything can be
thrown away and done again with smaller micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import nan
from typing import Any

from onecard.config.schema import RunConfig
from onecard.errors import first_line
from onecard.models.ranks import ONE_RANK, Ranks
from onecard.models.ways import shards

# How much of a run is enough to see all that happens in it: of many, paper runs only these.
UPDATES = 3  # the optimizer's state exists from the second on; the third is the steady state
EVAL_BATCHES, EVAL_SPLITS = 3, 2  # after the third batch of a split, nothing new happens
MICRO_BATCHES = 3  # the first makes the gradients, the second adds to them, the third is like the second

Tensor = Any  # of torch, or on paper
MicroBatch = Callable[[Tensor, Tensor], None]
Losses = Callable[[Tensor, Tensor], Tensor]  # of x_BT and y_BT, in nats


class Steps:
    """What an update does to a model. `passes` are written-out passes, or None where autograd does the work."""

    def __init__(
        self,
        ops: Any,
        config: RunConfig,
        *,
        loss: Losses,
        token_losses: Losses,
        parameters: Sequence[Any],
        optimizer: Any,
        scaler: Any,
        passes: Any | None,
        records: bool,
        ranks: Ranks = ONE_RANK,
    ) -> None:
        self.ops, self.config, self.ranks = ops, config, ranks
        self.parameters, self.optimizer, self.scaler, self.passes = parameters, optimizer, scaler, passes
        self.records = records  # whether micro-batches are recorded as a CUDA graph
        self.batch_size = config.batch_size
        self.warm = False  # whether a micro-batch of this size has run: what is recorded must be compiled before
        self.recorded: Any | None = None
        self.graph_failure: str | None = None  # why a micro-batch could not be recorded, until it has been reported
        self._mean_loss, self._token_losses = loss, token_losses
        self._loss = ops.zero()  # of the update so far
        self._micro_batch = ops.remembered(self.micro_batch, parameters)
        self.sequence_losses = ops.remembered(self._sequence_losses)

    @property
    def accumulation(self) -> int:
        """Micro-batches of an update on this rank."""
        return self.ranks.sequences_per_step(self.config) // self.batch_size

    @property
    def micro_batches(self) -> int:
        """Micro-batches of an update on all ranks together: each is one part of the gradients and of the loss."""
        return self.accumulation * self.ranks.world_size

    def gradients(self, next_batch: Callable[[], tuple[Tensor, Tensor]], before: Callable[[int, int], None]) -> None:
        """This rank's part of an update's gradients: their sum over all ranks is the update's. The same for the loss.

        They are added up over the micro-batches that `next_batch` gives. `before(done, total)` is called before each.
        """
        ops = self.ops
        ops.set_to_zero(self._loss)
        if self.records and self.warm and self.recorded is None:
            self._record()
        if self.passes:
            self.passes.refresh()
        if self.recorded or self.passes:
            ops.zero_gradients(self.parameters)
        run = self.recorded or self._micro_batch
        for done in ops.repeated(range(self.accumulation), enough=MICRO_BATCHES):
            before(done, self.accumulation)
            x_BT, y_BT = next_batch()
            run(x_BT, y_BT)
        self.warm = True

    def micro_batch(self, x_BT: Tensor, y_BT: Tensor) -> None:
        ops, parts = self.ops, self.micro_batches
        if self.passes:
            scale = self.scaler.scale(ops.share(parts))
            self._loss += self.passes.add_gradients(x_BT, y_BT, scale=scale) / parts
            return
        with ops.autocast():
            loss = self._mean_loss(x_BT, y_BT) / parts
        ops.backward(self.scaler.scale(loss))
        self._loss += loss.detach()

    def _record(self) -> None:
        """Record a micro-batch. If that fails the run continues without: slower if Python is slower than the card."""
        ops = self.ops
        ops.release_memory()
        ops.moment("recording a micro-batch")
        ops.zero_gradients(self.parameters)
        try:
            self.recorded = ops.record_graph(self._micro_batch, self.batch_size, self.config.block_size)
            return
        except Exception as error:
            self.graph_failure = first_line(error)  # not the error itself: its frames hold what must be freed
        self.records = False
        self.optimizer.zero_grad()
        ops.release_memory()

    def sums(self) -> list[Tensor]:
        """What must be summed over the ranks before the step: gradients, and the loss.

        Gradients of a model that is divided among the ranks were summed as they were made.
        """
        gradients = () if shards(self.config) else self.parameters
        return [*(each.grad for each in gradients if each.grad is not None), self._loss]

    def ready_to_step(self) -> Tensor:
        """The gradients' norm before clipping; from here on an update needs no memory, and nothing has changed yet."""
        self.ops.moment("optimizer step")
        self.scaler.unscale_(self.optimizer)
        norm = self.ops.clip_gradients(self.parameters, max_norm=self.config.grad_clip)
        self.optimizer.make_state()
        self.optimizer.make_workspace()
        return norm

    def step(self, norm: Tensor) -> Any:
        """The optimizer's step; returns the update's mean loss and the norm."""
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.free_workspace()
        if self.recorded is None:
            self.optimizer.zero_grad()
        return self.ops.figures(self._loss, norm)

    def _sequence_losses(self, x_BT: Tensor, y_BT: Tensor) -> Tensor:
        """The mean loss of each sequence in nats per token, without gradients: for evaluation."""
        if self.passes:
            return self.ops.mean_of_rows(self.passes.token_losses(x_BT, y_BT))
        with self.ops.autocast():
            return self.ops.mean_of_rows(self._token_losses(x_BT, y_BT))

    def ready_to_evaluate(self) -> None:
        """Give evaluations all the memory that training has between updates."""
        self.free_activations()
        if self.passes:
            self.passes.refresh()

    def free_activations(self) -> None:
        """Give back what a recorded micro-batch holds, gradients included; it is recorded again when next needed."""
        if self.recorded:
            self.recorded = None
            self.optimizer.zero_grad()
            self.ops.release_memory()


def split_loss(
    ops: Any, sequence_losses: Losses, batches: Iterable[Callable[[], tuple[Tensor, Tensor]]]
) -> tuple[float, float, int]:
    """Mean and spread of the losses of a split's sequences, and how many there are.

    `batches` are functions that bring x_BT and y_BT to the card; of fewer than there are ranks, some have none.
    """
    means = []
    for to_device in batches:
        x_BT, y_BT = to_device()
        means.append(sequence_losses(x_BT, y_BT))
    if not means:
        return nan, nan, 0
    sequences = ops.joined_in_double(means)
    return ops.mean_and_spread(sequences)  # type: ignore[no-any-return]
