"""nanoGPT's backward pass, eager: the forward's operations in reverse, from the loss to the embeddings.

A gradient is freed when the operation that used it is done. Where two meet, the second is added to the first.
"""

from __future__ import annotations

from onecard.plan.memory import kernels
from onecard.plan.memory.kernels import FLOAT, LONG
from onecard.plan.memory.nanogpt.eager.forward import Forward, Layer, Linear, Loss, Norm
from onecard.plan.memory.tags import (
    GRADIENTS,
    GRADIENTS_IN_FLIGHT,
    LOGITS_AND_LOSS,
    WORKSPACE,
)


class Backward(Forward):
    """loss.backward()."""

    def backward(self, gradient: int, ids: tuple[int, int], first: bool) -> None:
        """From the gradient of the loss to those of the embeddings; frees the last forward pass's graph on the way."""
        graph, (X, Y) = self.graph, ids
        residual, tied = self.backward_loss(graph.head, gradient, Y, first)
        self.tape.moment("backward pass of the blocks")
        for layer in reversed(graph.layers):
            self.backward_layer(layer, residual, first)
        self.backward_embedding(graph.embedding, residual, tied, X, first)

    def backward_loss(self, head: Loss, of_loss: int, targets: int, first: bool) -> tuple[int, int]:
        """Returns the gradient of the residual stream, and that of the tied weight as lm_head sees it."""
        alloc, free = self.alloc, self.free
        logits_size = self.N * self.V
        gradient = alloc(logits_size * FLOAT, LOGITS_AND_LOSS)  # nll_loss
        free(of_loss)
        if head.float_copy is not None:
            free(head.float_copy)
        free(targets, head.total_weight)
        if self.is_half:
            gradient = self.replaced(gradient, logits_size * self.item, LOGITS_AND_LOSS)
        gradient = self.replaced(gradient, logits_size * self.item, LOGITS_AND_LOSS)  # log_softmax
        free(head.log_softmax)

        lm_head = head.lm_head
        assert lm_head.saved_input is not None
        tied_size = self.V * self.C
        tied = alloc(tied_size * self.item, GRADIENTS_IN_FLIGHT)
        self.cublas("backward")
        dx = alloc(self.narrow, GRADIENTS_IN_FLIGHT)
        free(gradient)
        if lm_head.weight_cast is not None:
            free(lm_head.weight_cast)
        free(lm_head.saved_input)
        if self.is_half:
            dx = self.replaced(dx, self.stream, GRADIENTS_IN_FLIGHT)
            tied = self.replaced(tied, tied_size * FLOAT, GRADIENTS if first else GRADIENTS_IN_FLIGHT)
        return self.backward_norm(head.ln_f, dx, first, residual=False), tied

    def keep(self, name: str, gradient: int, first: bool) -> None:
        """AccumulateGrad: the first gradient is kept unchanged, a later one is added to it and freed."""
        if first:
            self.gradients[name] = gradient
        else:
            self.free(gradient)

    def backward_norm(self, norm: Norm, gradient: int, first: bool, *, residual: bool) -> int:
        """Gradient of LayerNorm's input. If there is a `residual` gradient, it is added to that in place and freed."""
        alloc, free = self.alloc, self.free
        tag = GRADIENTS if first else GRADIENTS_IN_FLIGHT
        dx = alloc(self.stream, GRADIENTS_IN_FLIGHT)
        kinds = ("weight", "bias") if self.bias else ("weight",)
        of_parameters = [alloc(self.C * FLOAT, tag) for _ in kinds]
        rows = kernels.norm_partial_rows(self.device, self.N, self.C)
        if rows:  # a first pass over parts of the tokens, whose sums replace the gradients
            partial = [alloc(rows * self.C * FLOAT, WORKSPACE) for _ in kinds]
            for index in range(len(kinds)):
                of_parameters[index] = self.column_sum(rows, self.C * FLOAT, self.C, tag, of_parameters[index])
            free(*reversed(partial))
        free(gradient, norm.x, norm.mean, norm.rstd)
        if residual:
            free(dx)
        for kind, block in zip(kinds, of_parameters, strict=True):
            self.keep(f"{norm.name}.{kind}", block, first)
        return dx

    def backward_linear(
        self, linear: Linear, gradient: int, first: bool, *, owned: bool, cast_input: bool, remade: bool = False
    ) -> int:
        """Gradient of the input; those of weight and bias are kept. `owned`: the incoming gradient is freed here.

        `remade`: input and weight cast were recomputed for this, and are freed before the bias is summed.
        """
        alloc, free = self.alloc, self.free
        inputs, outputs = self.linears[linear.name.partition(".")[2]]
        in_flight, kept = GRADIENTS_IN_FLIGHT, GRADIENTS if first else GRADIENTS_IN_FLIGHT
        of_parameters = in_flight if self.is_half else kept  # in half precision they are cast before they are kept
        saved = [block for block in (linear.weight_cast, linear.saved_input) if block is not None]
        if self.bias:  # addmm: input, weight, then the bias summed over all tokens
            dx = alloc(self.N * inputs * self.item, in_flight)
            self.cublas("backward")
            d_weight = alloc(inputs * outputs * self.item, of_parameters)
            saved.reverse()
            if remade:
                free(*saved)
                saved = []
            d_bias = self.column_sum(self.N, outputs * self.item, outputs, of_parameters)
        else:  # mm: weight, input
            d_weight = alloc(inputs * outputs * self.item, of_parameters)
            self.cublas("backward")
            dx = alloc(self.N * inputs * self.item, in_flight)
            d_bias = None
        if owned:
            free(gradient)
        free(*saved)
        if self.is_half:
            if cast_input:
                dx = self.replaced(dx, self.N * inputs * FLOAT, in_flight)
            d_weight = self.replaced(d_weight, inputs * outputs * FLOAT, kept)
            self.keep(f"{linear.name}.weight", d_weight, first)
            if d_bias is not None:
                d_bias = self.replaced(d_bias, outputs * FLOAT, kept)
                self.keep(f"{linear.name}.bias", d_bias, first)
        else:
            if d_bias is not None:
                self.keep(f"{linear.name}.bias", d_bias, first)
            self.keep(f"{linear.name}.weight", d_weight, first)
        return dx

    def backward_branch(self, gradient: int, mask: int | None) -> tuple[int, bool]:
        """The residual's gradient as a branch gets it: cast, and after dropout. False: it is the residual's own."""
        owned = self.is_half
        if self.is_half:
            gradient = self.alloc(self.narrow, GRADIENTS_IN_FLIGHT)
        if mask is not None:
            dropped = self.alloc(self.narrow, GRADIENTS_IN_FLIGHT)
            if owned:
                self.free(gradient)
            self.free(mask)
            gradient, owned = dropped, True
        return gradient, owned

    def backward_layer(self, layer: Layer, gradient: int, first: bool) -> None:
        """Block.forward in reverse; `gradient` of the residual stream is added to in place."""
        branch, owned = self.backward_branch(gradient, layer.mlp_mask)
        dx = self.backward_linear(layer.mlp_c_proj, branch, first, owned=owned, cast_input=False)
        dx = self.replaced(dx, self.N * 4 * self.C * self.item, GRADIENTS_IN_FLIGHT)  # GELU
        self.free(layer.c_fc.out)
        dx = self.backward_linear(layer.c_fc, dx, first, owned=True, cast_input=True)
        self.backward_norm(layer.ln_2, dx, first, residual=True)

        branch, owned = self.backward_branch(gradient, layer.attn_mask)
        dx = self.backward_linear(layer.attn_c_proj, branch, first, owned=owned, cast_input=False)
        dx = self.backward_attention(layer.attention, dx)
        dx = self.backward_linear(layer.c_attn, dx, first, owned=True, cast_input=True)
        self.backward_norm(layer.ln_1, dx, first, residual=True)

    def backward_embedding(self, saved: list[int], gradient: int, tied: int, ids: int, first: bool) -> None:
        """drop, then wpe (summed over the batch), then wte: its gradient is added to lm_head's (the weight is tied)."""
        alloc, free = self.alloc, self.free
        kept = GRADIENTS if first else GRADIENTS_IN_FLIGHT
        self.tape.moment("backward pass of the embeddings")
        positions, *mask = saved
        if mask:
            gradient = self.replaced(gradient, self.stream, GRADIENTS_IN_FLIGHT)
            free(*mask)
        size = self.T * self.C * FLOAT
        summed = self.column_sum(self.B, size, self.T * self.C, GRADIENTS_IN_FLIGHT)
        d_wpe = self.embedding_gradient(self.T, self.T, kept)
        free(summed, positions)
        self.keep("wpe.weight", d_wpe, first)
        d_wte = self.embedding_gradient(self.N, self.V, GRADIENTS_IN_FLIGHT)
        free(gradient, ids)
        if self.is_half:  # lm_head's gradient is a fresh cast: the sum goes into it
            free(d_wte)
        else:  # it is a view (the weight was transposed): the sum is a new tensor
            total = alloc(self.V * self.C * FLOAT, kept)
            free(tied, d_wte)
            tied = total
        self.keep("wte.weight", tied, first)

    def embedding_gradient(self, indices: int, rows: int, tag: str) -> int:
        """embedding_dense_backward: zeros of the weight's shape, and buffers for sorting if there are many indices."""
        alloc, free = self.alloc, self.free
        size = rows * self.C * FLOAT
        if indices <= kernels.EMBEDDING_SORT_FROM:
            return alloc(size, tag)
        sort, partials = indices * LONG, kernels.embedding_partial_rows(indices, rows)
        segments = min(indices, rows)
        by_index = [alloc(sort, WORKSPACE) for _ in ("sorted", "original")]
        counting = alloc(sort, WORKSPACE)
        self.tape.temporary(kernels.sort_scratch(indices), WORKSPACE)
        free(counting)
        out = alloc(size, tag)
        offsets, count = alloc(sort, WORKSPACE), alloc(LONG, WORKSPACE)
        unique = alloc(sort, WORKSPACE)
        self.tape.temporary(kernels.scan_scratch(indices, kernels.UNIQUE_TILE), WORKSPACE)
        free(unique)
        per_segment = [alloc(segments * LONG, WORKSPACE) for _ in ("partials", "their offsets")]
        self.tape.temporary(kernels.scan_scratch(segments, kernels.SCAN_TILE), WORKSPACE)
        partial_count = alloc(LONG, WORKSPACE)
        partial_offsets = alloc(partials * LONG, WORKSPACE)
        if kernels.embedding_adds_atomically(self.device, indices, rows, self.C):
            partial_sums = alloc(partials * LONG, WORKSPACE)  # the segment of each partial sum
        else:
            partial_sums = alloc(partials * self.C * FLOAT, WORKSPACE)
        free(partial_sums, partial_offsets, partial_count, *reversed(per_segment), count, offsets, *reversed(by_index))
        return out
