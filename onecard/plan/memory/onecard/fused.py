"""train/fused.py: forward and backward pass written out. Every allocation here is a line there."""

from __future__ import annotations

from dataclasses import dataclass

from onecard.plan.memory.kernels import FLOAT, LONG
from onecard.plan.memory.nanogpt.eager.attention import Attention
from onecard.plan.memory.nanogpt.loop import SCALAR
from onecard.plan.memory.onecard.chunks import default_chunk_tokens, some_chunk_sizes
from onecard.plan.memory.onecard.recorded import RecordingTrainer
from onecard.plan.memory.onecard.scratch import WORKSPACE_BYTES, norm_programs
from onecard.plan.memory.tags import (
    ACTIVATIONS,
    ATTENTION,
    GRADIENTS,
    GRADIENTS_IN_FLIGHT,
    LOGITS_AND_LOSS,
    WEIGHT_CASTS,
    WORKSPACE,
)


@dataclass(slots=True)
class Kept:
    """What a block keeps for its backward pass."""

    x: int
    normed: list[int]  # empty if it is recomputed, here and below
    attention: Attention
    middle: int
    middle_normed: list[int]
    wide: int
    activated: list[int]


class FusedTrainer(RecordingTrainer):
    """The trainer with compile=True in half precision, without dropout and biases."""

    head_order = (0, 1, 2)

    @property
    def wide(self) -> int:
        return 4 * self.narrow

    def weights(self) -> None:
        """The model, then its weights in the compute type: block by block, then the head's."""
        super().weights()
        for inputs, outputs in [*self.linears.values()] * self.layers:
            self.alloc(inputs * outputs * self.item, WEIGHT_CASTS)
        self.alloc(self.V * self.C * self.item, WEIGHT_CASTS)

    # what passes use

    def product(self, size: int, tag: str) -> int:
        """A product's result; the first product of a process makes the workspace."""
        out = self.alloc(size, tag)
        if "products" not in self.used:
            self.used.add("products")
            self.alloc(WORKSPACE_BYTES, WORKSPACE)
        return out

    def act(self, size: int) -> int:
        return self.alloc(size, ACTIVATIONS)

    def attended(self, qkv: int, *, trains: bool) -> Attention:
        """_Attention; if heads are padded, its output is copied for every product that reads it."""
        found = self.attention(qkv, trains)
        if trains and self.copies_heads:
            self.free(qkv)  # its padded copies are saved instead
        return found

    def norm_sums(self) -> None:
        """The partial sums of a norm's weight gradient."""
        programs = norm_programs(self.N, self.C, self.device.multiprocessors)
        self.tape.temporary(programs * self.C * FLOAT, WORKSPACE)

    @property
    def chunks(self) -> list[int]:
        return some_chunk_sizes(self.N, self.config.loss_chunk or default_chunk_tokens(self.V))

    # a block

    def forward_block(self, x: int) -> int:
        """_FusedBlock.forward: nothing is kept; the caller frees x."""
        free = self.free
        normed = self.act(self.narrow)
        qkv = self.product(3 * self.narrow, ATTENTION)
        free(normed)
        y = self.attended(qkv, trains=False).out
        free(qkv)
        middle = self.product(self.narrow, ACTIVATIONS)
        free(y)
        normed = self.act(self.narrow)
        wide = self.product(self.wide, ACTIVATIONS)
        free(normed)
        activated = self.act(self.wide)
        free(wide)
        x = self.product(self.narrow, ACTIVATIONS)
        free(activated, middle)
        return x

    def until_the_last_product(self, x: int) -> Kept:
        """_FusedBlock._until_the_last_product."""
        keeps = self.config.grad_checkpoint != "selective"
        normed = self.act(self.narrow)
        qkv = self.product(3 * self.narrow, ATTENTION)
        attention = self.attended(qkv, trains=True)
        if not keeps:
            self.free(normed)
        middle = self.product(self.narrow, ACTIVATIONS)
        if self.copies_heads:
            self.free(attention.out)
        middle_normed = self.act(self.narrow)
        wide = self.product(self.wide, ACTIVATIONS)
        if not keeps:
            self.free(middle_normed)
        kept = [normed] if keeps else []
        return Kept(x, kept, attention, middle, [middle_normed] if keeps else [], wide, [])

    def forward_keeping(self, x: int) -> tuple[int, Kept | int]:
        """_FusedBlock.forward_keeping."""
        if self.config.grad_checkpoint == "full":
            return self.forward_block(x), x
        kept = self.until_the_last_product(x)
        activated = self.act(self.wide)
        x = self.product(self.narrow, ACTIVATIONS)
        if self.config.grad_checkpoint == "none":
            kept.activated = [activated]
        else:
            self.free(activated)
        return x, kept

    def backward_block(self, kept: Kept | int) -> None:
        """_FusedBlock.backward: the incoming gradient is also the outgoing one."""
        if isinstance(kept, int):
            kept = self.until_the_last_product(kept)
        flying, free = GRADIENTS_IN_FLIGHT, self.free
        d_wide = self.product(self.wide, flying)
        if kept.activated:
            free(*kept.activated)
        else:
            self.tape.temporary(self.wide, ACTIVATIONS)
        free(kept.wide)
        self.behind_norm_backward(again=not kept.middle_normed)
        free(d_wide, kept.middle, *kept.middle_normed)
        d_y = self.product(self.narrow, flying)
        if self.copies_heads:
            self.tape.temporary(self.narrow, ATTENTION)
        parts = self.attention_gradients(kept.attention, d_y)
        self.behind_norm_backward(again=not kept.normed)
        free(*parts, *kept.normed, kept.x)

    def behind_norm_backward(self, *, again: bool) -> None:
        """_FusedBlock._behind_norm_backward; with `again` the norm is recomputed, for the layers' own gradients."""
        d_normed = self.product(self.narrow, GRADIENTS_IN_FLIGHT)
        remade = [self.act(self.narrow)] if again else []
        self.norm_sums()
        self.free(d_normed, *remade)

    # passes

    def losses_for_evaluation(self) -> int:
        """FusedPasses.token_losses."""
        self.tape.moment("forward pass")
        x = self.act(self.narrow)
        for _ in range(self.layers):
            before, x = x, self.forward_block(x)
            self.free(before)
        hidden = self.act(self.narrow)
        self.free(x)
        self.tape.moment("loss")
        losses = self.alloc(self.rows, LOGITS_AND_LOSS)
        for tokens in self.chunks:
            self.free(self.product(tokens * self.V * self.item, LOGITS_AND_LOSS))
        self.free(hidden)
        return losses

    def before_update(self) -> None:
        """Make gradients of zero before a micro-batch adds to them."""
        super().before_update()
        if not self.replays:
            self.gradients = {name: self.alloc(size * FLOAT, GRADIENTS) for name, size in self.parameters.items()}

    def micro_batch(self, *, first: bool) -> None:
        """Trainer._micro_batch: makes a scale, then FusedPasses.add_gradients."""
        free, scalar = self.free, self.scalar
        share = scalar(GRADIENTS_IN_FLIGHT)
        scaled = self.scaled_loss()
        scale = scaled[0] if scaled else share
        if scaled:
            free(share)
        loss = self.add_gradients()
        divided = scalar(LOGITS_AND_LOSS)
        free(loss, divided, scale)

    def add_gradients(self) -> int:
        """FusedPasses.add_gradients: the mean loss."""
        free = self.free
        self.tape.moment("forward pass")
        x = self.act(self.narrow)
        kept = []
        for _ in range(self.layers):
            x, of_block = self.forward_keeping(x)
            kept.append(of_block)
        loss, gradient, factor = self.loss_and_gradient()
        self.tape.moment("backward pass of the blocks")
        self.norm_sums()
        free(x)
        while kept:
            self.backward_block(kept.pop())
        self.tape.moment("backward pass of the embeddings")
        if self.config.deterministic:
            wide = self.alloc(self.stream, GRADIENTS_IN_FLIGHT)
            summed = self.column_sum(self.B, self.T * self.C * FLOAT, self.T * self.C, GRADIENTS_IN_FLIGHT)
            free(summed)
            free(self.embedding_gradient(self.V, self.N, GRADIENTS_IN_FLIGHT), wide)
        free(factor, gradient)
        return loss

    def loss_and_gradient(self) -> tuple[int, int, int]:
        """FusedPasses._loss_and_gradient."""
        alloc, free, scalar = self.alloc, self.free, self.scalar
        self.tape.moment("loss")
        hidden = self.act(self.narrow)
        losses = alloc(self.rows, LOGITS_AND_LOSS)
        d_hidden = alloc(self.narrow, GRADIENTS_IN_FLIGHT)
        counted = alloc(self.N, LOGITS_AND_LOSS)
        count = alloc(LONG, LOGITS_AND_LOSS)
        self.tape.temporary(self.N * LONG, WORKSPACE)  # as int64, for the sum
        free(counted)
        factor = scalar(GRADIENTS_IN_FLIGHT)
        for tokens in self.chunks:
            logits = self.product(tokens * self.V * self.item, LOGITS_AND_LOSS)
            if "scaled products" not in self.used:  # the numbers used to time them
                self.used.add("scaled products")
                alloc(SCALAR, WORKSPACE)
                alloc(SCALAR, WORKSPACE)
            free(logits)
        total = scalar(LOGITS_AND_LOSS)
        loss = scalar(LOGITS_AND_LOSS)
        free(total, hidden, losses, count)
        return loss, d_hidden, factor
