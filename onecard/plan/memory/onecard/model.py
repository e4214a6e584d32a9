"""train/model.py without its blocks: embeddings, the stream through the blocks, the last norm, and the way back."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from onecard.plan.memory.kernels import FLOAT, LONG
from onecard.plan.memory.onecard.loss import ChunkedLoss, KeptLoss
from onecard.plan.memory.tags import ACTIVATIONS, GRADIENTS, GRADIENTS_IN_FLIGHT, LOGITS_AND_LOSS, TOKEN_IDS


@dataclass(slots=True)
class Passed:
    """What a forward pass through a block gives to the next, and keeps for its own backward pass."""

    x: int
    added: int
    holds_x: bool  # whether this block's backward pass keeps x alive
    kept: Any


@dataclass(slots=True)
class KeptPass:
    """What a whole forward pass keeps for its backward pass."""

    positions: int
    mask: list[int]  # of dropout on the embeddings
    zeros: int  # added to the first x: a leaf that needs a gradient, like what the blocks add
    blocks: list[Any]
    ln_f: Any
    loss: KeptLoss


class Model(ChunkedLoss):
    """GPT.loss and GPT.token_losses; eager.py and compiled/ describe how a block runs."""

    passed: KeptPass

    @abstractmethod
    def block(self, layer: int, x: int, added: int, *, train: bool) -> Passed:
        """Block.forward; the caller frees x and added."""

    @abstractmethod
    def backward_block(self, kept: Any, gradient: int, branch: int, *, first: bool) -> tuple[int, int]:
        """From the gradients of x and of what is added (`branch`) to those of the incoming x and added."""

    def of_added(self, gradient: int) -> int:
        """The gradient of what was added to x: a cast, or in float32 the same tensor."""
        return self.alloc(self.narrow, GRADIENTS_IN_FLIGHT) if self.is_half else gradient

    def losses_for_evaluation(self) -> int:
        """token_losses under no_grad: the losses of all tokens."""
        hidden = self.transformer(train=False)
        return self.token_losses(hidden)

    def micro_batch(self, *, first: bool) -> None:
        """Trainer._micro_batch; `first` in its update: gradients do not exist yet."""
        free, scalar = self.free, self.scalar
        whole = self.loss_in_training(first)
        loss = scalar(LOGITS_AND_LOSS)  # divided by the accumulation
        free(whole)
        self.autocast_ends(training=True)
        scaled = self.scaled_loss()
        root = scalar(GRADIENTS_IN_FLIGHT)  # of ones
        unscaled = [scalar(GRADIENTS_IN_FLIGHT)] if scaled else []
        divided = scalar(GRADIENTS_IN_FLIGHT)
        free(*unscaled)
        outliving = self.backward_pass(divided, first=first)
        free(root, *scaled, *outliving, loss)

    def loss_in_training(self, first: bool) -> int:
        """The mean loss; what the backward pass needs is in `passed`."""
        hidden = self.transformer(train=True)
        self.passed.loss = self.mean_loss(hidden, first)
        return self.passed.loss.loss

    def embedded(self, *, train: bool) -> tuple[int, int, list[int]]:
        """Positions (freed without gradients), x after dropout, and its mask if there is one."""
        alloc = self.alloc
        positions = alloc(self.T * LONG, TOKEN_IDS)
        tokens_embedded = alloc(self.stream, ACTIVATIONS)
        self.loads("embedding")
        positions_embedded = alloc(self.T * self.C * FLOAT, ACTIVATIONS)
        x = alloc(self.stream, ACTIVATIONS)
        self.free(positions_embedded, tokens_embedded)
        mask = []
        if train and self.drops:
            mask = [alloc(self.mask, ACTIVATIONS)]
            x = self.replaced(x, self.stream, ACTIVATIONS)
        if not train:
            self.free(positions)
        return positions, x, mask

    def transformer(self, *, train: bool) -> int:
        """x after the last norm."""
        free = self.free
        self.tape.moment("forward pass")
        positions, x, mask = self.embedded(train=train)
        added = zeros = self.alloc(self.narrow, ACTIVATIONS)
        held, blocks = False, []  # whether a backward pass holds x
        for layer in range(self.layers):
            passed = self.block(layer, x, added, train=train)
            free(*[] if held else [x], *[] if train and added == zeros else [added])
            x, added, held = passed.x, passed.added, passed.holds_x
            blocks.append(passed.kept)
        hidden, ln_f = self.last_norm(x, added, train=train)
        if train:
            self.passed = KeptPass(positions, mask, zeros, blocks, ln_f, KeptLoss(0, 0, 0, 0))
        free(*[] if held else [x], added)
        return hidden

    def last_norm(self, x: int, added: int, *, train: bool) -> tuple[int, Any]:
        """LastNorm: the hidden states in the compute type, and what its backward pass needs."""
        total = self.alloc(self.stream, ACTIVATIONS)
        ln_f = self.norm("ln_f", total, train)
        hidden = self.replaced(ln_f.out, self.narrow, ACTIVATIONS) if self.is_half else ln_f.out
        if not train:
            self.free(total)
        return hidden, ln_f

    def backward_last_norm(self, kept: Any, d_hidden: int, *, first: bool) -> tuple[int, int]:
        """The gradients of x and of what was added to it."""
        if self.is_half:
            d_hidden = self.replaced(d_hidden, self.stream, GRADIENTS_IN_FLIGHT)
        gradient = self.backward_norm(kept, d_hidden, first, residual=False)
        return gradient, self.of_added(gradient)

    def backward_pass(self, of_loss: int, *, first: bool) -> list[int]:
        """From the gradient of the loss to those of the parameters; returns what outlives it: the zeros and theirs."""
        passed = self.passed
        self.tape.moment("backward pass of the loss")
        d_hidden = self.backward_mean_loss(passed.loss, of_loss)
        gradient, branch = self.backward_last_norm(passed.ln_f, d_hidden, first=first)
        self.tape.moment("backward pass of the blocks")
        for kept in reversed(passed.blocks):
            gradient, branch = self.backward_block(kept, gradient, branch, first=first)
        if branch == gradient:  # float32: the leaf's gradient is a copy
            branch = self.alloc(self.stream, GRADIENTS_IN_FLIGHT)
        self.backward_embeddings(gradient, first)
        return [branch, passed.zeros]

    def backward_embeddings(self, gradient: int, first: bool) -> None:
        """drop, then wpe (summed over the batch), then wte: its rows are added in place to the head's gradient."""
        free, passed = self.free, self.passed
        kept = GRADIENTS if first else GRADIENTS_IN_FLIGHT
        self.tape.moment("backward pass of the embeddings")
        if passed.mask:
            gradient = self.replaced(gradient, self.stream, GRADIENTS_IN_FLIGHT)
            free(*passed.mask)
        summed = self.column_sum(self.B, self.T * self.C * FLOAT, self.T * self.C, GRADIENTS_IN_FLIGHT)
        d_wpe = self.embedding_gradient(self.T, self.T, kept)
        free(summed, passed.positions)
        self.keep("wpe.weight", d_wpe, first)
        free(gradient)
        self.keep("wte.weight", passed.loss.d_weight, first)
