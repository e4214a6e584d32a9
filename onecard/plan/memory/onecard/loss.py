"""The chunked loss, as train/loss.py computes it: logits of one chunk at a time, both gradients in the forward pass."""

from __future__ import annotations

from dataclasses import dataclass

from onecard.plan.memory.kernels import FLOAT, LONG
from onecard.plan.memory.nanogpt.loop import SCALAR
from onecard.plan.memory.onecard.chunks import default_chunk_tokens, some_chunk_sizes
from onecard.plan.memory.onecard.trainer import Trainer
from onecard.plan.memory.tags import GRADIENTS, GRADIENTS_IN_FLIGHT, LOGITS_AND_LOSS, WEIGHT_CASTS, WORKSPACE


@dataclass(slots=True)
class KeptLoss:
    """What _MeanLoss keeps for its backward pass, and the loss itself."""

    d_hidden: int
    d_weight: int
    count: int
    loss: int


class ChunkedLoss(Trainer):
    """mean_loss and token_losses. Hidden states arrive in the compute type; the head's weight is cast to it once."""

    @property
    def chunks(self) -> list[int]:
        return some_chunk_sizes(self.N, self.config.loss_chunk or default_chunk_tokens(self.V))

    def head_cast(self) -> list[int]:
        return [self.alloc(self.V * self.C * self.item, WEIGHT_CASTS)] if self.is_half else []

    def logits_of_chunk(self, tokens: int) -> None:
        """The logits of a chunk, and what is computed from them in place."""
        logits = self.alloc(tokens * self.V * self.item, LOGITS_AND_LOSS)
        self.cublas("forward")
        self.free(logits)

    def token_losses(self, hidden: int) -> int:
        """Losses of all tokens, without gradients; frees `hidden`."""
        self.tape.moment("loss")
        cast = self.head_cast()
        losses = self.alloc(self.rows, LOGITS_AND_LOSS)
        for tokens in self.chunks:
            self.logits_of_chunk(tokens)
        self.free(*cast, hidden)
        return losses

    def mean_loss(self, hidden: int, first: bool) -> KeptLoss:
        """The mean loss with its gradients; frees `hidden`. `first` in an update: d_weight becomes the gradient."""
        alloc, free = self.alloc, self.free
        self.tape.moment("loss")
        cast = self.head_cast()
        losses = alloc(self.rows, LOGITS_AND_LOSS)
        d_hidden = alloc(self.narrow, GRADIENTS_IN_FLIGHT)
        d_weight = alloc(self.V * self.C * FLOAT, GRADIENTS if first else GRADIENTS_IN_FLIGHT)
        for tokens in self.chunks:
            self.logits_of_chunk(tokens)
        counted = alloc(self.N, LOGITS_AND_LOSS)  # targets != -1
        count = alloc(LONG, LOGITS_AND_LOSS)
        self.tape.temporary(self.N * LONG, WORKSPACE)  # as int64, for the sum
        free(counted)
        total = alloc(SCALAR, LOGITS_AND_LOSS)
        loss = alloc(SCALAR, LOGITS_AND_LOSS)
        free(total, *cast, losses, hidden)
        return KeptLoss(d_hidden, d_weight, count, loss)

    def backward_mean_loss(self, kept: KeptLoss, of_loss: int) -> int:
        """Scale the kept gradients in place; returns the one of the hidden states."""
        factor = self.alloc(SCALAR, GRADIENTS_IN_FLIGHT)
        self.free(factor, of_loss, kept.count)
        return kept.d_hidden
