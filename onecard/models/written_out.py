"""What written-out passes of every model share: weights with copies, the head with its loss, the walk over the blocks.

In half precision, without dropout and biases, a block is a few kernels forward and about twice as many backward.
Written out, they do what autograd and a compiler cannot: products add directly to the residual stream and to the
gradients, and use the fastest kernel of this card; weights are cast once per update; only a few small Triton kernels
are compiled. Why we wrote this ourselves: docs/adr/0012.

Parameters and gradients are the model's own. `ops` are the operations of torch, or of paper. Letters: B sequences,
T tokens of a sequence, N = B·T, C n_embd, V vocab_size; I inputs and O outputs of a layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

from onecard.models.chunked_loss import CHUNKS
from onecard.models.chunks import chunk_starts
from onecard.paper.tags import GRADIENTS_IN_FLIGHT, LOGITS_AND_LOSS

Tensor = Any  # of torch, or on paper
Layers = Any  # a module of torch, or weights on paper

ALL = slice(None)


class Weight:
    """The weight of a linear layer, or some of its rows, with a copy in the type used for products.

    `part` is what its output is for.
    """

    def __init__(self, ops: Any, parameter: Tensor, narrow_OI: Tensor, part: str, rows: slice = ALL) -> None:
        self.ops, self.parameter, self.narrow_OI, self.part = ops, parameter, narrow_OI, part
        self._rows = rows

    @property
    def thirds(self) -> list[Weight]:
        """The parts for queries, keys and values, of a weight that makes all three."""
        third = len(self.narrow_OI) // 3
        rows = [slice(start, start + third) for start in (0, third, 2 * third)]
        return [Weight(self.ops, self.parameter, self.narrow_OI[each], self.part, each) for each in rows]

    def times(self, x_NI: Tensor, *, added_NO: Tensor | None = None) -> Tensor:
        """The layer's output for x, plus `added_NO`."""
        out_NO = self.ops.empty((len(x_NI), len(self.narrow_OI)), dtype=x_NI.dtype, like=x_NI, part=self.part)
        self.ops.multiply(x_NI, self.narrow_OI.t(), out_NO, added_MN=added_NO)
        return out_NO

    def backward(self, d_out_NO: Tensor, *, added_NI: Tensor | None = None) -> Tensor:
        """The gradient of x; where `added_NI` is given, added to it in place."""
        d_x_NI = added_NI
        if d_x_NI is None:
            shape = len(d_out_NO), self.narrow_OI.shape[1]
            d_x_NI = self.ops.empty(shape, dtype=d_out_NO.dtype, like=d_out_NO, part=GRADIENTS_IN_FLIGHT)
        self.ops.multiply(d_out_NO, self.narrow_OI, d_x_NI, added_MN=added_NI)
        return d_x_NI

    def learn(self, d_out_NO: Tensor, x_NI: Tensor, *, factor: Tensor | None = None) -> None:
        """Add to the weight's gradient, which must already exist."""
        gradient_OI = gradient_of(self.parameter)[self._rows]
        self.ops.multiply(d_out_NO.t(), x_NI, gradient_OI, added_MN=gradient_OI, factor=factor)


class Block(Protocol):
    """A block with both passes written out."""

    @property
    def weights(self) -> Sequence[Weight]:
        """Its matrices."""

    def forward(self, x_NC: Tensor, batch: int) -> Tensor:
        """x after the block; nothing is kept."""

    def forward_keeping(self, x_NC: Tensor, batch: int) -> tuple[Tensor, Any]:
        """x after the block, and what its backward pass needs."""

    def backward(self, d_NC: Tensor, kept: Any, batch: int) -> Tensor:
        """Turn the gradient of the block's output into that of its input, in the same memory."""


class Passes(ABC):
    """A model's losses and gradients, computed by written-out passes. `dtype` is that of products.

    A model says what comes before its blocks and after them: `embedded`, `last_norm` and their backward passes.
    """

    soft_cap: float | None = None  # of the logits

    def __init__(self, ops: Any, model: Any, p: Layers, dtype: Any, blocks: Sequence[Block]) -> None:
        self.ops, self.p, self.dtype, self.blocks = ops, p, dtype, blocks
        self._chunk_tokens, self._longest = model.chunk_tokens, model.block_size
        self._head = with_copy(ops, p.lm_head, LOGITS_AND_LOSS, dtype)
        weights = [self._head, *(weight for block in blocks for weight in block.weights)]
        self._narrow = [each for each in weights if each.narrow_OI.dtype != each.parameter.dtype]

    # around the blocks: each model has its own

    @abstractmethod
    def embedded(self, tokens_BT: Tensor) -> Tensor:
        """x_NC before the first block."""

    @abstractmethod
    def embedded_backward(self, d_NC: Tensor, tokens_BT: Tensor) -> None:
        """Add to the gradients of the embeddings."""

    @abstractmethod
    def last_norm(self, x_NC: Tensor) -> tuple[Tensor, Any]:
        """x after the last norm, and what that norm's backward pass needs."""

    @abstractmethod
    def last_norm_backward(self, d_hidden_NC: Tensor, kept: Any, factor: Tensor) -> Tensor:
        """`factor` times the gradient of x before the last norm, in the memory of `d_hidden_NC`."""

    # the whole model

    def refresh(self) -> None:
        """Cast the weights again, after they have changed."""
        if self._narrow:
            self.ops.copy_all([each.narrow_OI for each in self._narrow], [each.parameter for each in self._narrow])

    def token_losses(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Cross-entropy losses_BT in nats (float32), 0 where the target is -1."""
        ops = self.ops
        with ops.no_grad():
            ops.moment("forward pass")
            x_NC = self._embedded(tokens_BT)
            for block in self.blocks:
                x_NC = block.forward(x_NC, len(tokens_BT))
            hidden_NC = self.last_norm(x_NC)[0]
            del x_NC
            ops.moment("loss")
            targets_N = targets_BT.flatten()
            losses_N = self._new_losses(hidden_NC)
            for rows in self._chunks(targets_N):
                self._write_losses(self._logits(hidden_NC[rows]), targets_N[rows], losses_N[rows], gradient=False)
            return losses_N.view_as(targets_BT)

    def add_gradients(self, tokens_BT: Tensor, targets_BT: Tensor, *, scale: Tensor) -> Tensor:
        """The mean loss over targets other than -1; `scale` times its gradient is added to the parameters'."""
        ops, batch = self.ops, len(tokens_BT)
        with ops.no_grad():
            ops.moment("forward pass")
            x_NC = self._embedded(tokens_BT)
            kept = []
            for block in self.blocks:
                x_NC, of_block = block.forward_keeping(x_NC, batch)
                kept.append(of_block)
                del of_block
            ops.moment("loss")
            hidden_NC, of_norm = self.last_norm(x_NC)
            del x_NC
            loss, d_hidden_NC, factor = self._loss_and_gradient(hidden_NC, targets_BT.flatten(), scale)
            del hidden_NC
            ops.moment("backward pass of the blocks")
            d_NC = self.last_norm_backward(d_hidden_NC, of_norm, factor)
            del d_hidden_NC, of_norm
            for block in reversed(self.blocks):
                d_NC = block.backward(d_NC, kept.pop(), batch)
            ops.moment("backward pass of the embeddings")
            self.embedded_backward(d_NC, tokens_BT)
            return loss

    def _embedded(self, tokens_BT: Tensor) -> Tensor:
        length = tokens_BT.shape[1]
        assert length <= self._longest, f"{length} tokens do not fit block_size={self._longest}"
        return self.embedded(tokens_BT)

    def _chunks(self, targets_N: Tensor) -> Any:
        starts = chunk_starts(len(targets_N), self._chunk_tokens)
        return (slice(start, start + starts.step) for start in self.ops.repeated(starts, enough=CHUNKS))

    def _new_losses(self, hidden_NC: Tensor) -> Tensor:
        return self.ops.empty((len(hidden_NC),), dtype=self.ops.float32, like=hidden_NC, part=LOGITS_AND_LOSS)

    def _logits(self, hidden_nC: Tensor) -> Tensor:
        return self._head.times(hidden_nC)

    def _write_losses(self, logits_nV: Tensor, targets_n: Tensor, losses_n: Tensor, *, gradient: bool) -> None:
        self.ops.write_losses(logits_nV, targets_n, losses_n, gradient=gradient, soft_cap=self.soft_cap)

    def _loss_and_gradient(self, hidden_NC: Tensor, targets_N: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The mean loss, the gradient of the losses' sum for the last norm's output, and the factor it still needs.

        As in chunked_loss.py: before the division, gradients of logits are about as large as weights, which suits
        float16.
        """
        ops = self.ops
        losses_N = self._new_losses(hidden_NC)
        d_hidden_NC = ops.empty(hidden_NC.shape, dtype=hidden_NC.dtype, like=hidden_NC, part=GRADIENTS_IN_FLIGHT)
        count = ops.counted(targets_N)
        factor = scale / count
        for rows in self._chunks(targets_N):
            logits_nV = self._logits(hidden_NC[rows])
            self._write_losses(logits_nV, targets_N[rows], losses_N[rows], gradient=True)
            ops.multiply(logits_nV, self._head.narrow_OI, d_hidden_NC[rows])
            self._head.learn(logits_nV, hidden_NC[rows], factor=factor)
            del logits_nV  # free them before the next chunk's are made
        return losses_N.sum() / count, d_hidden_NC, factor


def with_copy(ops: Any, layer: Layers, part: str, dtype: Any) -> Weight:
    """A layer's weight with its own copy, unless the parameter already has that type."""
    return Weight(ops, layer.weight, ops.cast(layer.weight.detach(), dtype), part)


def gradient_of(parameter: Tensor) -> Tensor:
    """A parameter's gradient, which must already exist."""
    assert parameter.grad is not None
    return parameter.grad
