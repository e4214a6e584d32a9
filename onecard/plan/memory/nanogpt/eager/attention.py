"""F.scaled_dot_product_attention, eager, forward and backward: what each of PyTorch's four kernels allocates."""

from __future__ import annotations

from dataclasses import dataclass

from onecard.plan.memory import kernels
from onecard.plan.memory.kernels import FLOAT, LONG
from onecard.plan.memory.nanogpt.eager.state import State
from onecard.plan.memory.nanogpt.loop import SCALAR
from onecard.plan.memory.tags import (
    ATTENTION,
    GRADIENTS_IN_FLIGHT,
    WORKSPACE,
)


@dataclass(slots=True)
class Attention:
    """Blocks of one attention call: its output, and what else is freed when its backward pass is done."""

    out: int
    saved: list[int]


class AttentionCalls(State):
    """Attention within nanoGPT's program."""

    head_order = (1, 0, 2)  # the order of the views of qkv: model.py makes k, q, v

    def attention(self, qkv: int, train: bool, *, keeps: bool | None = None) -> Attention:
        """F.scaled_dot_product_attention with the kernel PyTorch chooses; `qkv` is one buffer, saved in training.

        `keeps=False`: nothing is saved in training either, because the backward pass recomputes it all.
        """
        alloc, free = self.alloc, self.free
        B, H, T, D = self.B, self.H, self.T, self.D
        keeps = train if keeps is None else keeps
        if self.kernel == "math":
            return self.math_attention(train, keeps)
        if self.kernel == "efficient":
            out = alloc(self.narrow, ATTENTION)
            logsumexp = [alloc(kernels.efficient_logsumexp(B, H, T), ATTENTION)] if train else []
            if self.is_half and D > 128:  # the output does not fit in registers: it is summed in float32
                self.tape.temporary(self.N * self.C * FLOAT, WORKSPACE)
            if not keeps:
                free(*logsumexp)
            return Attention(out, [qkv, *logsumexp])
        if self.kernel == "cudnn":
            seed, offset = alloc(LONG, ATTENTION), alloc(LONG, ATTENTION)
            out = alloc(self.narrow, ATTENTION)
            logsumexp = [alloc(B * H * T * FLOAT, ATTENTION)] if train else []
            self.loads("cudnn")
            self.tape.temporary(kernels.CUDNN_FORWARD_WORKSPACE, WORKSPACE)
            if not keeps:
                free(*logsumexp, seed, offset)
            return Attention(out, [qkv, *logsumexp, offset, seed])
        return self.flash_attention(qkv, train, keeps)

    def flash_attention(self, qkv: int, train: bool, keeps: bool) -> Attention:
        """Flash: heads padded to a multiple of 8; keys cut into parts when the batch is too small to fill the card."""
        alloc, free = self.alloc, self.free
        B, H, T, D = self.B, self.H, self.T, self.D
        drops = train and self.drops
        padded = kernels.flash_head_size(D)
        size = self.N * H * padded * self.item
        inputs = [qkv] if padded == D else [alloc(size, ATTENTION) for _ in "qkv"]
        out = alloc(size, ATTENTION)
        logsumexp = alloc(B * H * T * FLOAT, ATTENTION)
        splits = 1 if drops else kernels.flash_splits(self.device, B, H, T, padded)
        columns = [1, kernels.flash_rounded_head_size(padded)] if splits > 1 else []
        partial = [alloc(splits * B * H * T * width * FLOAT, WORKSPACE) for width in columns]  # log-sum-exp, output
        rng_state = alloc(2 * LONG, WORKSPACE if drops else ATTENTION)
        unused = alloc(LONG, ATTENTION)
        if drops:  # made again, with the generator's state
            rng_state = self.replaced(rng_state, 2 * LONG, ATTENTION)
        free(*reversed(partial))
        if padded == D:
            if not keeps:
                free(unused, rng_state, logsumexp)
            return Attention(out, [qkv, logsumexp, rng_state, unused])
        if not keeps:
            free(unused, rng_state, logsumexp, *inputs)
        contiguous = alloc(self.narrow, ATTENTION)  # y.transpose(1, 2).contiguous(): without the padding
        if not keeps:
            free(out)
        return Attention(contiguous, [*inputs, logsumexp, out, rng_state, unused])

    def math_attention(self, train: bool, keeps: bool) -> Attention:
        """_scaled_dot_product_attention_math in float32: scores of all pairs of tokens, softmax, product."""
        alloc, free = self.alloc, self.free
        pairs = self.B * self.H * self.T * self.T
        drops = train and self.drops
        q = alloc(self.narrow, ATTENTION)  # multiplied by the root of the scale, like k below
        ones = alloc(self.T * self.T, ATTENTION)
        lower = alloc(self.T * self.T, ATTENTION)
        free(ones)
        zero, minus_infinity = alloc(SCALAR, ATTENTION), alloc(SCALAR, ATTENTION)
        causal = alloc(self.T * self.T * FLOAT, ATTENTION)
        free(minus_infinity, zero, lower)
        k = alloc(self.narrow, ATTENTION)
        copies = [alloc(self.narrow, ATTENTION) for _ in "qk"]  # bmm needs (heads, tokens, head size) in a row
        scores = alloc(pairs * FLOAT, ATTENTION)
        free(k)
        if not keeps:
            free(*copies)
        softmax = alloc(pairs * FLOAT, ATTENTION)
        masked = alloc(pairs, ATTENTION)  # _safe_softmax looks for rows that see nothing
        rows = alloc(self.B * self.H * self.T, ATTENTION)
        self.tape.temporary(SCALAR, ATTENTION)
        free(rows, masked, scores)
        saved = [softmax]
        if drops:
            saved += [alloc(pairs, ATTENTION), alloc(pairs * FLOAT, ATTENTION)]
        v = alloc(self.narrow, ATTENTION)
        product = alloc(self.narrow, ATTENTION)
        if not keeps:
            free(v, *saved)
        free(q, causal)
        out = alloc(self.narrow, ATTENTION)
        free(product)
        return Attention(out, [*copies, v, *saved] if keeps else [])

    def backward_attention(self, attention: Attention, gradient: int) -> int:
        """Gradient of qkv, as one buffer (the gradient of split is a cat)."""
        parts = self.attention_gradients(attention, gradient)
        qkv_gradient = self.alloc(3 * self.narrow, GRADIENTS_IN_FLIGHT)
        self.free(*parts)
        return qkv_gradient

    def attention_gradients(self, attention: Attention, gradient: int) -> list[int]:
        """Gradients of q, k and v. Frees what attention saved, and the gradient of its output."""
        alloc, free = self.alloc, self.free
        B, H, T, D = self.B, self.H, self.T, self.D
        if self.kernel == "math":
            return self.backward_math_attention(attention, gradient)
        if self.copies_heads:
            return self.backward_padded_flash(attention, gradient)
        parts = [alloc(self.narrow, GRADIENTS_IN_FLIGHT) for _ in "qkv"]
        if self.kernel == "flash":
            softmax_d, dq_accum = (alloc(size, WORKSPACE) for size in kernels.flash_backward_buffers(B, H, T, D))
            free(dq_accum, softmax_d)
        elif self.kernel == "cudnn":
            self.loads("cudnn backward")
            self.tape.temporary(kernels.cudnn_backward_workspace(B, H, T, D), WORKSPACE)
        else:
            delta = self.efficient_delta()
            scratch = kernels.efficient_backward_workspace(B, H, T, D, is_half=self.is_half)
            self.tape.temporary(scratch, WORKSPACE)
            free(delta)
        free(gradient)
        qkv, logsumexp, *rest = attention.saved
        free(qkv, logsumexp, attention.out, *rest)
        return parts

    def efficient_delta(self) -> int:
        """Row sums of gradient x output; in float32 three operations before the kernel compute them."""
        size = self.N * self.H * FLOAT
        if self.is_half:
            return self.alloc(size, WORKSPACE)
        product = self.alloc(self.N * self.C * FLOAT, WORKSPACE)
        delta = self.alloc(size, WORKSPACE)
        if self.H > 1:  # transposed and made contiguous
            delta = self.replaced(delta, size, WORKSPACE)
        self.free(product)
        return delta

    def backward_math_attention(self, attention: Attention, gradient: int) -> list[int]:
        """The products and the softmax of math_attention in reverse."""
        alloc, free, replaced = self.alloc, self.free, self.replaced
        pairs = self.B * self.H * self.T * self.T * FLOAT
        q_copy, k_copy, v_copy, softmax, *dropped = attention.saved
        gradient = replaced(gradient, self.narrow, GRADIENTS_IN_FLIGHT)
        dv = alloc(self.narrow, GRADIENTS_IN_FLIGHT)
        scores = alloc(pairs, GRADIENTS_IN_FLIGHT)
        free(gradient, v_copy, *dropped[1:])
        if dropped:
            scores = replaced(scores, pairs, GRADIENTS_IN_FLIGHT)
            free(dropped[0])
        softmax_gradient = alloc(pairs, GRADIENTS_IN_FLIGHT)
        self.tape.temporary(pairs, WORKSPACE)
        free(scores, softmax)
        dq, dk = (alloc(self.narrow, GRADIENTS_IN_FLIGHT) for _ in "qk")
        free(softmax_gradient, q_copy, k_copy)
        dq, dk, dv = (replaced(block, self.narrow, GRADIENTS_IN_FLIGHT) for block in (dq, dk, dv))
        return [replaced(dk, self.narrow, GRADIENTS_IN_FLIGHT), dq, dv]

    def backward_padded_flash(self, attention: Attention, gradient: int) -> list[int]:
        """Flash on padded heads: the gradient is padded, two inputs become contiguous, then the padding is cut off."""
        alloc, free = self.alloc, self.free
        padded = kernels.flash_head_size(self.D)
        size = self.N * self.H * padded * self.item
        gradient = self.replaced(gradient, size, GRADIENTS_IN_FLIGHT)
        copies = [alloc(size, WORKSPACE) for _ in ("gradient", "out")]
        wide = [alloc(size, GRADIENTS_IN_FLIGHT) for _ in "qkv"]
        buffers = kernels.flash_backward_buffers(self.B, self.H, self.T, padded)
        softmax_d, dq_accum = (alloc(buffer, WORKSPACE) for buffer in buffers)
        free(dq_accum, softmax_d, *reversed(copies), gradient, *attention.saved)
        cut = [self.replaced(block, self.narrow, GRADIENTS_IN_FLIGHT) for block in reversed(wide)][::-1]
        # the views are undone in reverse; the padded layout forces copies
        return [self.replaced(cut[part], self.narrow, GRADIENTS_IN_FLIGHT) for part in reversed(self.head_order)]
