"""Cross-entropy of a linear head, a chunk of tokens at a time: the logits of a micro-batch never exist all at once.

The forward pass also computes the gradient, while a chunk's logits are at hand; the backward pass only scales it. So a
step computes each logit once, as the plain loss does, and keeps two tensors instead of the logits: the gradient of the
hidden states (compute type) and that of the weight (float32). Why we wrote this ourselves: docs/adr/0005.

Precision. Products run in the type of the hidden states, softmax and losses in float32, and the weight's gradient is
summed in float32 over the chunks. The kept gradients are those of the *sum* of the losses. Undivided, they are about as
large as the weights, which float16 holds well. If they were divided by the token count first, as in the plain loss, the
small ones would vanish below 6e-8. The backward pass divides them, together with GradScaler's factor: that is part of
`grad_output`, and brings gradients into float16's range.

Letters: N tokens, n tokens of a chunk, C n_embd, V vocab_size.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from onecard.models.chunks import chunk_starts
from onecard.paper.tags import GRADIENTS_IN_FLIGHT, LOGITS_AND_LOSS

CHUNKS = 16  # after these, the allocator has nothing new to see

Tensor = Any  # of torch, or on paper


class LossAndGradients(NamedTuple):
    """The mean loss, and the gradients of the losses' sum; `count` is what they are still to be divided by."""

    loss: Tensor
    d_hidden: Tensor | None  # NC
    d_weight: Tensor | None  # VC
    count: Tensor


def new_losses(ops: Any, hidden_NC: Tensor) -> Tensor:
    """Room for the loss of each token."""
    return ops.empty((len(hidden_NC),), dtype=ops.wide_type(hidden_NC), like=hidden_NC, part=LOGITS_AND_LOSS)


def token_losses(
    ops: Any,
    hidden_NC: Tensor,
    weight_VC: Tensor,
    targets_N: Tensor,
    chunk_tokens: int,
    *,
    soft_cap: float | None = None,
) -> Tensor:
    """Cross-entropy losses_N in nats (float32), 0 where the target is -1; without gradients.

    With `soft_cap` the logits are soft_cap · tanh(x / soft_cap).
    """
    with ops.no_grad():
        narrow_VC = ops.cast(weight_VC, hidden_NC.dtype)
        losses_N = new_losses(ops, hidden_NC)
        starts = chunk_starts(len(targets_N), chunk_tokens)
        for start in ops.repeated(starts, enough=CHUNKS):
            rows = slice(start, start + starts.step)
            logits_nV = ops.logits(hidden_NC[rows], narrow_VC)
            ops.write_losses(logits_nV, targets_N[rows], losses_N[rows], gradient=False, soft_cap=soft_cap)
            del logits_nV
        return losses_N


def mean_loss(
    ops: Any,
    hidden_NC: Tensor,
    weight_VC: Tensor,
    targets_N: Tensor,
    chunk_tokens: int,
    *,
    soft_cap: float | None = None,
) -> Tensor:
    """Mean cross-entropy in nats (float32 scalar) over targets other than -1; NaN if all are -1, as in torch.

    Its backward pass may run only once: it scales the kept gradients in place. Where gradients are off, none are made.
    """

    def without_gradients() -> Tensor:
        losses_N = token_losses(ops, hidden_NC, weight_VC, targets_N, chunk_tokens, soft_cap=soft_cap)
        return losses_N.sum() / ops.counted(targets_N)

    def made(hidden_NC: Tensor, weight_VC: Tensor, *, of_hidden: bool, of_weight: bool) -> LossAndGradients:
        return mean_loss_and_gradients(
            ops,
            hidden_NC,
            weight_VC,
            targets_N,
            chunk_tokens,
            soft_cap=soft_cap,
            of_hidden=of_hidden,
            of_weight=of_weight,
        )

    return ops.with_own_gradients(made, without_gradients, hidden_NC, weight_VC)


def mean_loss_and_gradients(
    ops: Any,
    hidden_NC: Tensor,
    weight_VC: Tensor,
    targets_N: Tensor,
    chunk_tokens: int,
    *,
    soft_cap: float | None = None,
    of_hidden: bool = True,
    of_weight: bool = True,
) -> LossAndGradients:
    """The mean loss over targets other than -1, and the gradients that are wanted."""
    narrow_VC, wide = ops.cast(weight_VC, hidden_NC.dtype), ops.wide_type(hidden_NC)
    losses_N = new_losses(ops, hidden_NC)
    d_hidden_NC = d_weight_VC = None
    if of_hidden:
        d_hidden_NC = ops.empty(hidden_NC.shape, dtype=hidden_NC.dtype, like=hidden_NC, part=GRADIENTS_IN_FLIGHT)
    if of_weight:
        d_weight_VC = ops.zeros(weight_VC.shape, dtype=wide, like=hidden_NC, part=GRADIENTS_IN_FLIGHT)
    starts = chunk_starts(len(targets_N), chunk_tokens)
    for start in ops.repeated(starts, enough=CHUNKS):
        rows = slice(start, start + starts.step)
        logits_nV = ops.logits(hidden_NC[rows], narrow_VC)
        ops.write_losses(logits_nV, targets_N[rows], losses_N[rows], gradient=True, soft_cap=soft_cap)
        if d_hidden_NC is not None:
            ops.product_into(d_hidden_NC[rows], logits_nV, narrow_VC)
        if d_weight_VC is not None:
            ops.add_product(d_weight_VC, logits_nV.t(), hidden_NC[rows])
        del logits_nV  # free them before the next chunk's are made
    count = ops.counted(targets_N)
    return LossAndGradients(losses_N.sum() / count, d_hidden_NC, d_weight_VC, count)
