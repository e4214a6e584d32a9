"""The work of a step as a card and its host see it: a run on paper says most of it (on_paper.py)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from onecard.paper.work import Work

TrainerName = Literal["nanogpt", "onecard"]
Trainers = Literal["both", "onecard", "nanogpt"]


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A forward pass, or a forward and a backward pass, of one micro-batch."""

    matmuls: Work
    attention: Work
    memory_bound: Work
    loss: Work

    @property
    def whole(self) -> Work:
        """All of it."""
        return self.matmuls + self.attention + self.memory_bound + self.loss


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """One trainer's step: gradients of some micro-batches, then an update; and what comes between steps."""

    micro_batch: MicroBatch  # forward and backward
    evaluation_batch: MicroBatch  # forward alone
    evaluation_batches: int  # per evaluation, both splits
    evaluations: int  # per run
    checkpoints: int  # per run
    accumulation: Work  # adding a micro-batch's gradients to the earlier ones
    update: Work  # clipping and the optimizer
    tensors: int  # parameter tensors; the host walks through them in an update
    sequences: int  # per micro-batch; the host copies them one by one; 0 if another thread does
    reruns: int = 0  # blocks of a micro-batch that Python runs again for the backward pass
    stumbles: float = 0.0  # launches of a micro-batch before which Python has to map memory
    recorded: bool = False  # a micro-batch and its sum of gradients are one CUDA graph: one start by the host

    def sums(self, micros: int) -> int:
        """How often gradients are added up: not for the first micro-batch, unless a graph adds to existing ones."""
        return micros if self.recorded else micros - 1

    def started(self, micros: int) -> float:
        """What the host starts on the card for `micros` micro-batches, forward and backward."""
        return micros * (_STARTS_OF_A_GRAPH if self.recorded else self.micro_batch.whole.launches)

    def added(self, micros: int) -> float:
        """Gradients that the host adds to earlier ones; a graph contains its own additions."""
        return 0 if self.recorded else self.sums(micros) * self.accumulation.launches


_STARTS_OF_A_GRAPH = 5  # tokens and targets to the card, each into the graph's own tensor, and the graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Operations outside the tensor cores. They cannot be counted, so they are fitted to kernels measured on an H200.

    The unit is one operation at the card's fp32 peak, so they scale with a card's shader rate.
    """

    pointwise_flops: float  # per token, layer and n_embd: GELU, norms, casts, forward and backward
    loss_flops: float  # per logit: softmax and its gradient
    attention_flops: float  # per head and pair of tokens: the exponentials between the two products
    attention_dropout_flops: float  # per head and pair of tokens: random numbers
    dropout_flops: float  # per token, layer and n_embd: random numbers and masks
    # Time of a byte in the kernels of our trainer's written-out passes, divided by that in nanoGPT's. None where nobody
    # has timed them: there they count as compiled blocks.
    written_out_byte: float | None = None
